#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Models with unusual settings, trained by titan and by transformers in float64.

    train_unusual.py [--every N] [--only TEXT] [--list] TITAN FOLDER [CLASS...]

A model of each class that titan reads, in each of the forms below: heads narrower or wider than the model says, biases
or none, each kind of RoPE in the spellings of transformers 4 and 5, windows in some layers, weights in float32,
bfloat16 or float16 and in several files. A form is made of the keys that a class has; what transformers itself cannot
make is left out. Of each model: two steps of training on one rank, and on two, which share the work as the form says,
with equal bits; the losses and gradient norms are those of transformers in float64; so are greedy tokens. titan may
refuse a model or a division if its message says why. FOLDER is for temporary files. --every N tries one of N models,
--only those whose names have TEXT, --list prints all outcomes. Exit code 77 (skipped) when transformers or torch cannot
be imported.
"""
import argparse
import collections
import copy
import json
import pathlib
import shutil
import subprocess
import sys
import warnings

try:
    import torch
    import transformers
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))

from make_reference import KeepFloat64, implementations, made_up_tokens, train, write_tokens  # noqa: E402
from mutate_configs import BASES, LLAMA3, THETA, YARN, randomize  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
LENGTH, BATCH, STEPS = 24, 4, 2
PROMPT = [5, 17, 3, 29, 11, 2, 40, 8]
CASE = {"seq_len": LENGTH, "global_batch_size": BATCH, "steps": STEPS, "max_norm": 1.0,
        "optimizer": {"lr": 0.004, "beta1": 0.9, "beta2": 0.95, "eps": 1e-4, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 1, "decay_ratio": None, "decay_type": "linear", "min_lr_factor": 0.0}}
# The relative error of a step in float32. The first step of AdamW is the sign of gradients that are not near eps.
MOST = ({"loss": 1e-5, "grad_norm": 2e-4}, {"loss": 1e-4, "grad_norm": 2e-3})
FLAGS = ("--training.dataset=tokens", f"--training.seq_len={LENGTH}", f"--training.global_batch_size={BATCH}",
         f"--training.steps={STEPS}", "--optimizer.lr=0.004", "--optimizer.eps=1e-4", "--optimizer.beta2=0.95",
         "--lr_scheduler.warmup_steps=1", "--checkpoint.initial_load_in_hf",
         "--training.load_balance_coeff=0", "--metrics.log_freq=1", "--metrics.peak_flops=1e9")
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}
LONG = {"rope_type": "longrope", "rope_theta": 500.0}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
ONE = "--training.local_batch_size=1"
# How two ranks divide the work, and what makes the bits of one rank those of two.
SHARD = ([ONE, "--parallelism.data_parallel_shard_degree=2"], [ONE])
TENSOR = ([ONE, "--parallelism.tensor_parallel_degree=2"], [ONE, "--parallelism.exact_tensor_parallel_degree=2"])
CONTEXT = ([ONE, "--parallelism.context_parallel_degree=2"], [ONE, "--parallelism.exact_context_parallel_degree=2"])
STAGES = (["--training.local_batch_size=4", "--parallelism.pipeline_parallel_microbatch_size=1",
           "--parallelism.pipeline_parallel_degree=2"], [ONE])
EXPERTS = ([*SHARD[0], "--parallelism.expert_parallel_degree=2"], [ONE])

# Name: keys, of which a class takes those that it has; RoPE; the type of the weights; whether in several files; whether
# config.json is written as by transformers 4; how two ranks divide the work.
FORMS = {
    "one key head": ({"num_key_value_heads": 1, "head_dim": 20, "vocab_size": 131, "tie_word_embeddings": True},
                     {}, "bfloat16", True, True, SHARD),
    "biases": ({"attention_bias": True, "mlp_bias": True, "use_bias": True, "qkv_bias": True, "head_dim": 8,
                "attention_out_bias": True, "use_qkv_bias": True, "num_key_value_heads": 4,
                "tie_word_embeddings": False}, LLAMA3, "float16", False, True, TENSOR),
    "no biases": ({"attention_bias": False, "mlp_bias": False, "use_bias": False, "qkv_bias": False, "head_dim": 16,
                   "use_qkv_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None,
                   "norm_topk_prob": False, "num_key_value_heads": 2, "use_qk_norm": False},
                  {**LINEAR, "partial_rotary_factor": 0.25}, "float32", False, True, CONTEXT),
    "windows": ({"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1, "layer_types": MIXED,
                 "norm_topk_prob": True, "head_dim": 24, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
                {**YARN, "partial_rotary_factor": 0.5}, "float32", True, False, STAGES),
    "short factors": ({"hidden_act": "silu", "num_hidden_layers": 2, "layer_types": MIXED[:2], "head_dim": 16,
                       "original_max_position_embeddings": 64, "max_position_embeddings": 128, "tie_word_embeddings":
                       True, "num_shared_experts": 2, "n_shared_experts": 2, "no_rope_layers": [1, 0]},
                      {**LONG, "original_max_position_embeddings": 64, "partial_rotary_factor": 0.75}, "bfloat16",
                      False, False, EXPERTS),
    "long factors": ({"num_key_value_heads": 4, "use_parallel_residual": False, "original_max_position_embeddings": 4,
                      "max_position_embeddings": 32, "use_qk_norm": True, "logit_scale": 0.3, "head_dim": 12,
                      "decoder_sparse_step": 2, "mlp_only_layers": [], "rms_norm_eps": 1e-3}, {**LONG,
                      "original_max_position_embeddings": 4, "attention_factor": 1.3}, "float32", True, False, TENSOR),
    "dynamic": ({"max_position_embeddings": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
                 "layer_types": MIXED[::-1], "sliding_window": 5, "query_pre_attn_scalar": 5, "mlp_only_layers": [1],
                 "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2,
                 "logits_scaling": 2.5}, DYNAMIC, "float16", False, False, SHARD),
}
GPT2 = {"n_head": 6, "n_inner": 100, "activation_function": "gelu_pytorch_tanh", "vocab_size": 131,
        "tie_word_embeddings": False}


def bases():
    """The first base of each class."""
    found = {}
    for base in BASES.values():
        found.setdefault(base["model_type"], base)
    return found


def rope_of(known, rope, config):
    """The RoPE of a form: in classes with one for each kind of layer, that of layers without a window; with a factor
    for each rotated pair, and without the part that is rotated in classes that rotate all."""
    rope = copy.deepcopy(rope or THETA)
    kinds = {"full_attention", "sliding_attention"} & set(known.get("rope_parameters") or {})
    inner = (known.get("rope_parameters") or {}).get("full_attention" if kinds else "partial_rotary_factor")
    partial = inner.get("partial_rotary_factor") if kinds else inner
    if partial is None:
        rope.pop("partial_rotary_factor", None)
    head = known.get("kv_lora_rank") and config["qk_rope_head_dim"] or config.get("head_dim") or (
        config["hidden_size"] // config["num_attention_heads"])
    pairs = int(head * rope.get("partial_rotary_factor", partial or 1.0)) // 2
    if rope["rope_type"] == "longrope":
        rope |= {"short_factor": [1.0 + 0.1 * i for i in range(pairs)],
                 "long_factor": [1.5 + 0.75 * i for i in range(pairs)]}
    return {"full_attention": rope, "sliding_attention": THETA} if kinds else rope


def config_of(base, form):
    """The base with the keys of a form that its class has."""
    known = transformers.AutoConfig.for_model(base["model_type"]).to_dict()
    keys, rope = form[:2]
    config = {**base, **{key: value for key, value in keys.items() if key in known or key in base}}
    if "kv_lora_rank" in known:  # heads are other keys
        config.pop("head_dim", None)
        config |= {key: base[key] for key in ("num_attention_heads", "num_key_value_heads")}
    if base["model_type"] == "gpt2":
        return {**base, **GPT2} if "sliding_window" not in keys else {**base, "n_layer": 3}
    if "layer_types" in known and len(config.get("layer_types") or MIXED) != config["num_hidden_layers"]:
        config["layer_types"] = (config["layer_types"] * 3)[:config["num_hidden_layers"]]
    for key in ("no_rope_layers",):
        if key in config and len(config[key]) != config["num_hidden_layers"]:
            config[key] = (list(config[key]) * 3)[:config["num_hidden_layers"]]
    if "layer_types" in keys and "layer_types" in known and not {**known, **config}.get("sliding_window"):
        config["sliding_window"] = 7
    if "rope_parameters" in known:
        config["rope_parameters"] = rope_of(known, rope, {**known, **config})
    return config


def as_of_version_4(path):
    """Rewrites a config.json in the older spelling."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters", None) or {}
    if "full_attention" in rope:  # Gemma 3's; version 4 had one RoPE for all layers of OLMo 3
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    rope = dict(rope)
    if rope:
        config["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        config["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    config["torch_dtype"] = config.pop("dtype", "float32")
    config["transformers_version"] = "4.55.0"
    path.write_text(json.dumps(config, indent=1))


def make(config, form, folder):
    """Saves a model as transformers does."""
    _, _, dtype, is_cut, is_older, _ = form
    config = transformers.AutoConfig.for_model(**copy.deepcopy(config))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    with torch.no_grad():  # the loss begins near that of equal probabilities
        for name, weight in model.named_parameters():
            if "embed" in name or ".wte." in name:
                weight.mul_(40)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="40KB" if is_cut else "5GB")
    if is_older and config.model_type != "olmo3":
        as_of_version_4(folder / "config.json")


def reference(folder, tokens):
    """Losses, norms, greedy tokens, and the least distance of a greedy token's logit from the next one."""
    how = implementations(transformers.AutoConfig.from_pretrained(folder))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **how)
    ids, gap = list(PROMPT), 1.0
    with KeepFloat64(), torch.no_grad():
        for _ in range(10):
            best = model.eval()(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
            gap = min(gap, (best.values[0] - best.values[1]).item())
            ids.append(best.indices[0].item())
    return train(model.train(), torch.from_numpy(tokens), CASE), ids[len(PROMPT):], gap


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    message = next((line for line in lines if "error:" in line), (lines or ["no message"])[-1])
    return done.returncode, done.stdout, message


def train_with_titan(titan, folder, data, out, ranks, flags):
    """The steps' (loss, gradient norm), or None; and the message."""
    shutil.rmtree(out, ignore_errors=True)
    start = [SOURCE / "tools/run-ranks", ranks] if ranks > 1 else []
    code, _, message = run(*start, titan, "train", "--model.flavor=hf", f"--model.hf_assets_path={folder}",
                           f"--training.dataset_path={data}", f"--job.dump_folder={out}", *FLAGS, *flags)
    if code:
        return None, message
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [(line["loss"], line["grad_norm"]) for line in lines if "grad_norm" in line]
    return steps, message


def relative(found, wanted):
    return abs(found - wanted) / max(1.0, abs(wanted))


def compare(titan, folder, config, form):
    """(outcome, text)"""
    sparse, (two, one) = any("num_experts_per_tok" in key for key in config), form[-1]
    if form[-1] is EXPERTS and not sparse:
        two, one = SHARD
    if form[-1] is TENSOR and sparse:  # which share the experts too
        two = [*two, EXPERTS[0][-1]]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model, data = folder / "model", folder / "tokens.bin"
    try:
        make(config, form, model)
        tokens = made_up_tokens(STEPS * BATCH * LENGTH + 1, min(config["vocab_size"], 97), 3)
        wanted, ids, gap = reference(model, tokens)
    except Exception as reason:  # of any type: transformers has no single error for what it cannot make
        return "not by transformers", f"{type(reason).__name__}: {(str(reason) or ' ').splitlines()[0]}"
    write_tokens(data, tokens)
    found, message = train_with_titan(titan, model, data, folder / "one", 1, one)
    if found is None:
        return "refused", message
    off = max(relative(value, wanted[key][step]) / MOST[step][key]
              for step, ours in enumerate(found) for key, value in zip(("loss", "grad_norm"), ours))
    if not len(found) == STEPS or not off < 1:
        return "DIFFERENT", f"{found}, transformers {wanted}"
    code, out, message = run(titan, "generate", model, "--prompt-tokens", ",".join(map(str, PROMPT)), "--greedy",
                             "--ignore-eos", "--max-new-tokens", 10, "--json")
    if code:
        return "DIFFERENT", f"no tokens: {message}"
    if gap > 1e-4 and json.loads(out)["tokens"] != ids:
        return "DIFFERENT", f"tokens {json.loads(out)['tokens']}, transformers {ids}, least distance {gap:.1e}"
    divided, message = train_with_titan(titan, model, data, folder / "two", 2, two)
    if divided is None:
        return "not divided", f"{two[-1]}: {message}"
    if divided != found:
        return "DIFFERENT", f"{divided} on two ranks ({two[-1]}), {found} on one"
    return "equal", f"{off:.3f} of what may differ, least distance {gap:.1e}"


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--every", type=int, default=1)
    options.add_argument("--only", default="")
    options.add_argument("--list", action="store_true")
    options.add_argument("titan")
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("classes", nargs="*")
    options = options.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(50)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    counts, bad, number = collections.Counter(), [], 0
    for family, base in bases().items():
        for name, form in FORMS.items():
            number += 1
            if (options.classes and family not in options.classes) or options.only not in f"{family}: {name}" or (
                    number % options.every):
                continue
            try:
                config = config_of(base, form)
            except Exception as reason:
                outcome, text = "not by transformers", str(reason)
            else:
                outcome, text = compare(options.titan, options.folder / "held", config, form)
            counts[outcome] += 1
            if outcome == "DIFFERENT":
                bad.append(f"{family}: {name}: {outcome}: {text}")
            if options.list:
                print(f"{family}: {name}: {outcome}: {text}", flush=True)
    shutil.rmtree(options.folder / "held", ignore_errors=True)
    print(", ".join(f"{n} {outcome}" for outcome, n in counts.items()))
    for line in bad:
        print(line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
