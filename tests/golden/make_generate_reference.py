#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes data/MODEL/generate.json, which says how transformers continues some prompts:
`make_generate_reference.py [MODEL...]`.

Needs torch and transformers (no accelerator, no downloads; seconds). Every folder of data/ with a config.json is
a Hugging Face model with made-up weights. Prompts are token ids, since there is no tokenizer; decoding is greedy,
in float64, with transformers' own cache, and does not end at EOS. A prompt is left out if two tokens
are nearly as likely, so that float32 must give the same tokens; `gap` is the smallest difference between the
largest two logits.
"""
import json
import sys

import numpy
import torch

from make_reference import DATA, open_model

LENGTHS = [1, 2, 7, 40, 70]
NEW_TOKENS = 40
SMALLEST_GAP = 1e-3


def continue_greedily(model, prompt):
    """The tokens after the prompt, and the smallest gap on the way."""
    ids, cache, tokens, gaps = torch.tensor([prompt]), None, [], []
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            best = torch.topk(out.logits[0, -1], 2)
            gaps.append((best.values[0] - best.values[1]).item())
            tokens.append(best.indices[0].item())
            ids = best.indices[:1].unsqueeze(0)
    return tokens, min(gaps)


def make(name):
    model = open_model(DATA / name).eval()
    random = numpy.random.default_rng(5)
    limit = model.config.max_position_embeddings - NEW_TOKENS
    rope, cases = getattr(model.config, "rope_parameters", None) or {}, []
    # LongRoPE: titan rotates all of a sequence by the factors that its longest length has
    first = rope.get("original_max_position_embeddings", 0) if rope.get("rope_type") == "longrope" else 0
    lengths = [n for n in LENGTHS if n > first or n + NEW_TOKENS <= first]
    for length in lengths:
        for _ in range(20):
            prompt = random.integers(0, model.config.vocab_size, size=min(length, limit)).tolist()
            tokens, gap = continue_greedily(model, prompt)
            if gap >= SMALLEST_GAP:
                cases.append({"prompt": prompt, "tokens": tokens, "gap": gap})
                break
    assert len(cases) == len(lengths), f"{name}: no prompt of some length is clear enough"
    lines = ",\n ".join(json.dumps(case) for case in cases)
    (DATA / name / "generate.json").write_text('{"cases": [\n ' + lines + "\n]}\n")
    print(name, "smallest gap", min(case["gap"] for case in cases), "distinct tokens",
          [len(set(case["tokens"])) for case in cases])


if __name__ == "__main__":
    for wanted in sys.argv[1:] or sorted(path.parent.name for path in DATA.glob("*/config.json")):
        make(wanted)
