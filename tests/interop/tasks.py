#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Scores of tests/cli/tasks by lm-evaluation-harness: `tasks.py MODEL TASKS SAMPLES RESULTS`.

MODEL is a Hugging Face folder with a tokenizer. Writes SAMPLES/FORMAT.jsonl as `lm_eval --log_samples` does, and
RESULTS: for each format the log-likelihoods of every document, and the metrics. The task files are those of
lm-evaluation-harness, over local documents.
"""
import json
import os
import re
import sys

import lm_eval
from lm_eval.models.huggingface import HFLM


def plain(text):
    text = text.strip().replace(" [title]", ". ")
    return re.sub("\\[.*?\\]", "", text).replace("  ", " ")


def wikihow(doc):
    context = doc["ctx_a"] + " " + doc["ctx_b"].capitalize()
    return {"query": plain(doc["activity_label"] + ": " + context), "choices": [plain(one) for one in doc["endings"]]}


def before_blank(doc):
    return [doc["sentence"][:doc["sentence"].index("_")] + doc[option] for option in ("option1", "option2")]


ACC = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}
NORM = dict(ACC, metric="acc_norm")
PERPLEXITY = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
CHOICE = {"output_type": "multiple_choice", "metric_list": [ACC, NORM]}
QUESTION = "Question: {{question}}\nAnswer:"

TASKS = {
    "arc": dict(CHOICE, doc_to_text=QUESTION, doc_to_target="{{choices.label.index(answerKey)}}",
                doc_to_choice="{{choices.text}}"),
    "openbookqa": dict(CHOICE, doc_to_text="question_stem", doc_to_choice="{{choices.text}}",
                       doc_to_target="{{choices.label.index(answerKey.lstrip())}}"),
    "hellaswag": dict(CHOICE, process_docs=lambda docs: docs.map(wikihow), doc_to_text="{{query}}",
                      doc_to_target="{{label}}", doc_to_choice="choices"),
    "piqa": dict(CHOICE, doc_to_text="Question: {{goal}}\nAnswer:", doc_to_target="label",
                 doc_to_choice="{{[sol1, sol2]}}"),
    "winogrande": {"output_type": "multiple_choice", "metric_list": [ACC],
                   "doc_to_text": lambda doc: int(doc["answer"]) - 1, "doc_to_choice": before_blank,
                   "doc_to_target": lambda doc: doc["sentence"][doc["sentence"].index("_") + 1:].strip()},
    "boolq": dict(CHOICE, doc_to_text="{{passage}}\nQuestion: {{question}}?\nAnswer:", doc_to_target="label",
                  doc_to_choice=["no", "yes"]),
    "sciq": dict(CHOICE, doc_to_text="{{support.lstrip()}}\n" + QUESTION, doc_to_target=3,
                 doc_to_choice="{{[distractor1, distractor2, distractor3, correct_answer]}}"),
    "mmlu": dict(CHOICE, doc_to_choice=["A", "B", "C", "D"], doc_to_target="answer",
                 description="The following are multiple choice questions (with answers) about abstract algebra.\n\n",
                 doc_to_text="{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\n"
                             "D. {{choices[3]}}\nAnswer:"),
    "lambada": {"output_type": "loglikelihood", "metric_list": [PERPLEXITY, ACC],
                "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}", "doc_to_target": "{{' '+text.split(' ')[-1]}}"},
    "choices": dict(CHOICE, doc_to_text="context", doc_to_choice="{{choices}}", doc_to_target="gold"),
}


def sample(one):
    """As lm_eval writes it."""
    arguments = {f"gen_args_{i}": {f"arg_{j}": text for j, text in enumerate(pair)}
                 for i, pair in enumerate(one["arguments"])}
    return dict(one, arguments=arguments, target=str(one["target"]))


def main(model, tasks, samples, results):
    described = [dict(task, task=name, dataset_path="json", test_split="test",
                      dataset_kwargs={"data_files": {"test": os.path.join(tasks, name + ".jsonl")}})
                 for name, task in TASKS.items()]
    found = lm_eval.simple_evaluate(model=HFLM(pretrained=model, device="cpu", dtype="float32", batch_size=1),
                                    tasks=described, log_samples=True, bootstrap_iters=0)
    wanted = {}
    for name, docs in found["samples"].items():
        with open(os.path.join(samples, name + ".jsonl"), "w", encoding="utf-8") as to:
            to.writelines(json.dumps(sample(one), default=str, ensure_ascii=False) + "\n" for one in docs)
        docs = sorted(docs, key=lambda one: one["doc_id"])
        wanted[name] = {"logprobs": [[answer[0] for answer in one["filtered_resps"]] for one in docs]}
        for key, value in found["results"][name].items():
            if key in ("acc,none", "acc_norm,none", "perplexity,none"):
                wanted[name][key.split(",")[0]] = value
    with open(results, "w", encoding="utf-8") as to:
        json.dump(wanted, to, indent=1)
        to.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
