#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""config.json as transformers and titan read it: equal losses, or a refusal.

    mutate_configs.py [--every N] [--only TEXT] [--list] TITAN FOLDER [BASE...]

Every key of every family is left out, set to null and changed, and keys of other families are added. For each such
config.json transformers makes a model with random weights, which is saved beside it; the loss of a few tokens is
compared with `TITAN eval`. titan may refuse what transformers reads, but it must not compute something else. FOLDER is
for temporary files. --every N tries one of N mutations (and always the bases), --only those whose names have TEXT,
--list prints every outcome. Exit code 77 (skipped) when transformers or torch cannot be imported.
"""
import argparse
import collections
import copy
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import warnings

try:
    import torch
    import transformers
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

SEQ_LEN, SAMPLES, VOCAB = 48, 6, 97
TOLERANCE = 2e-5  # of a loss; rounding in float32 gives 2e-6, the smallest effect of a key that counts 1e-3

DECODER = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
           "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 128,
           "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "attention_dropout": 0.0, "initializer_range": 0.02,
           "use_cache": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
THETA = {"rope_type": "default", "rope_theta": 500.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5,
        "original_max_position_embeddings": 16}
LATENT = {"num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 8, "n_shared_experts": 1,
          "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "q_lora_rank": 24,
          "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
          "routed_scaling_factor": 1.5, "output_router_logits": False, "attention_bias": False}


def decoder(model_type, **more):
    return {"model_type": model_type, **DECODER, "rope_parameters": THETA, **more}


BASES = {
    "llama": decoder("llama", attention_bias=False, mlp_bias=False, head_dim=12, pretraining_tp=1),
    "llama_llama3": decoder("llama", rope_parameters=LLAMA3),
    "llama_yarn": decoder("llama", rope_parameters=YARN),
    "llama_v4": {k: v for k, v in decoder("llama", rope_theta=500.0, rope_scaling={
        "type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}).items() if k != "rope_parameters"},
    "llama_dynamic": decoder("llama", max_position_embeddings=32,
                             rope_parameters={"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}),
    "llama_tied": decoder("llama", tie_word_embeddings=True),
    "mistral": decoder("mistral", head_dim=16, sliding_window=24),
    "mistral_full": decoder("mistral", head_dim=16, sliding_window=None),
    "ministral": decoder("ministral", head_dim=16, sliding_window=24,
                         layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
    "internlm3": decoder("internlm3", head_dim=12, attention_bias=False, mlp_bias=False),
    "iquestcoder": decoder("iquestcoder", head_dim=12, attention_bias=False, mlp_bias=False),
    "qwen3": decoder("qwen3", head_dim=16, attention_bias=False, use_sliding_window=False, sliding_window=24,
                     max_window_layers=1),
    "qwen3_window": decoder("qwen3", head_dim=16, use_sliding_window=True, sliding_window=24, max_window_layers=1,
                            layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
    "qwen3_moe": decoder("qwen3_moe", head_dim=16, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=2,
                         norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False,
                         sliding_window=24, attention_bias=False, router_aux_loss_coef=0.001,
                         output_router_logits=False),
    "mixtral": decoder("mixtral", head_dim=None, num_local_experts=8, num_experts_per_tok=2, sliding_window=None,
                       output_router_logits=False, router_aux_loss_coef=0.02, router_jitter_noise=0.0),
    "mixtral_window": decoder("mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=24),
    "deepseek_v2": decoder("deepseek_v2", **LATENT, topk_method="group_limited_greedy", norm_topk_prob=False,
                           rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}),
    "deepseek_v2_greedy": decoder("deepseek_v2", **{**LATENT, "n_group": None, "topk_group": None,
                                                    "q_lora_rank": None}, topk_method="greedy"),
    "deepseek_v3": decoder("deepseek_v3", **LATENT, norm_topk_prob=True, rope_interleave=True, topk_method="noaux_tc",
                           scoring_func="sigmoid", num_nextn_predict_layers=0,
                           rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}),
    "deepseek_v3_plain": decoder("deepseek_v3", **LATENT, norm_topk_prob=False, num_nextn_predict_layers=0),
    "gpt_oss": decoder("gpt_oss", head_dim=16, num_local_experts=8, num_experts_per_tok=2, sliding_window=24,
                       rope_parameters={**YARN, "truncate": False}, attention_bias=True, swiglu_alpha=1.702,
                       swiglu_limit=7.0, output_router_logits=False, router_aux_loss_coef=0.9,
                       layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "gpt_oss_v4": {k: v for k, v in decoder("gpt_oss", head_dim=16, num_local_experts=4, num_experts_per_tok=2,
                                            sliding_window=24, rope_theta=500.0,
                                            rope_scaling={**YARN, "truncate": True}).items()
                   if k != "rope_parameters"},
    "gpt2": {"model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_inner": None,
             "n_positions": 64, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0,
             "embd_pdrop": 0.0, "attn_pdrop": 0.0, "scale_attn_weights": True, "reorder_and_upcast_attn": False,
             "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False, "tie_word_embeddings": True,
             "summary_type": "cls_index", "use_cache": True, "bos_token_id": 1, "eos_token_id": 2},
}

# A class without a base uses the configuration of its golden run.
for path in sorted((pathlib.Path(__file__).parent.parent / "golden/data").glob("*/config.json")):
    made = json.loads(path.read_text())
    if made["model_type"] not in {base["model_type"] for base in BASES.values()}:
        BASES[path.parent.name] = {key: value for key, value in made.items()
                                   if key not in ("architectures", "dtype", "transformers_version")}
        BASES[path.parent.name]["vocab_size"] = VOCAB

BASES["exaone4_full"] = decoder("exaone4", sliding_window=None, sliding_window_pattern=None, rope_parameters=LLAMA3,
                                layer_types=["full_attention"] * 3)
BASES["glm4_moe_plain"] = decoder("glm4_moe", moe_intermediate_size=24, n_routed_experts=8, n_shared_experts=1,
                                  num_experts_per_tok=2, first_k_dense_replace=1, norm_topk_prob=False,
                                  routed_scaling_factor=1.5, num_mtp_layers=0)

# Keys that a base lacks: keys of other families, and older spellings.
ADDED = {
    "use_sliding_window": [False, True], "sliding_window": [24, None], "max_window_layers": [1, 0],
    "layer_types": [["full_attention"] * 3, ["sliding_attention"] * 3, ["full_attention", "sliding_attention"] * 2],
    "rope_theta": [300.0], "partial_rotary_factor": [0.5, 1.0], "original_max_position_embeddings": [8, None],
    "rope_scaling": [None, {}, {"rope_type": "default"}, {"type": "default"}, {**LLAMA3, "factor": 2.0},
                     {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}, {"factor": 2.0},
                     {"type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 2.0}],
    "rope_parameters": [None, {}, {"rope_theta": 300.0}, {"full_attention": {"rope_type": "default",
                                                                             "rope_theta": 300.0}}],
    "head_dim": [8, None], "num_key_value_heads": [1], "attention_bias": [True, False, None], "mlp_bias": [True],
    "norm_topk_prob": [None, False, True], "rope_interleave": [None, False, True], "num_experts": [4],
    "num_local_experts": [4], "n_routed_experts": [4], "num_experts_per_tok": [3], "hidden_size": [24],
    "num_hidden_layers": [1], "num_attention_heads": [2], "max_position_embeddings": [64, 32], "n_embd": [24],
    "intermediate_size": [64], "moe_intermediate_size": [16], "n_shared_experts": [2], "n_group": [2, 1],
    "topk_group": [1], "topk_method": ["greedy", "group_limited_greedy"], "scoring_func": ["softmax", "sigmoid"],
    "routed_scaling_factor": [2.0], "first_k_dense_replace": [2], "decoder_sparse_step": [2],
    "mlp_only_layers": [[1]], "q_lora_rank": [8, None], "attention_dropout": [None], "hidden_act": ["gelu", "relu"],
    "activation_function": ["relu"], "rms_norm_eps": [1e-3], "layer_norm_epsilon": [1e-3],
    "tie_word_embeddings": [True], "num_mtp_layers": [0], "scale_attn_weights": [False], "qk_layernorm": [True],
    "use_qk_norm": [True], "embedding_multiplier": [2.0], "residual_multiplier": [0.5], "attention_multiplier": [0.1],
    "logits_scaling": [4.0], "no_rope_layers": [[0, 1, 1]], "final_logit_softcapping": [5.0],
    "attn_logit_softcapping": [5.0], "clip_qkv": [0.1], "router_jitter_noise": [0.1], "swiglu_limit": [1.0],
    "swiglu_alpha": [1.0], "logit_scale": [0.1], "rotary_pct": [0.5], "rotary_emb_base": [300.0],
    "parallel_attn": [True], "qkv_bias": [True], "use_bias": [True], "is_decoder": [True],
    "per_layer_config": [{"1": {"intermediate_size": 40}}], "tie_encoder_decoder": [True], "moe_layer_freq": [2],
    "chunk_size_feed_forward": [16],
}
STRINGS = {"hidden_act": ["gelu", "swish", "relu", "gelu_python", "gelu_accurate", "gelu_new"],
           "activation_function": ["relu", "gelu", "gelu_pytorch_tanh", "gelu_fast", "gelu_10"],
           "topk_method": ["greedy", "group_limited_greedy", "noaux_tc", "other"],
           "scoring_func": ["softmax", "sigmoid"], "rope_type": ["default", "linear", "yarn", "llama3", "other"],
           "type": ["default", "yarn"], "summary_type": ["last"]}


def changed(key, value):
    """Other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2, 1, 0]
    if isinstance(value, float):
        return [value * 2, value / 3 if value else 0.1, 0.0, 1]
    if isinstance(value, str):
        return [other for other in STRINGS.get(key, []) if other != value]
    if key == "layer_types":
        return [["full_attention"] * 3, ["sliding_attention"] * 3, value[::-1], value[:2], value + value]
    if key == "mlp_only_layers":
        return [[], [1], [0, 2], [0, 1, 2]]
    return []


def mutations(base):
    """(name, config.json) of the base, of each of its keys absent, null and changed, and of each added key."""
    yield "as it is", base
    for key, value in base.items():
        if key == "model_type":
            continue
        without = {k: v for k, v in base.items() if k != key}
        yield f"no {key}", without
        others = [None] if value is not None else []
        for other in others + changed(key, value):
            yield f"{key} {json.dumps(other)}", {**base, key: other}
        if isinstance(value, dict):
            for inner, number in value.items():
                yield f"no {key}.{inner}", {**base, key: {k: v for k, v in value.items() if k != inner}}
                for other in [None] + changed(inner, number):
                    yield f"{key}.{inner} {json.dumps(other)}", {**base, key: {**value, inner: other}}
            for inner, other in (("attention_factor", 1.3), ("mscale", 0.5), ("mscale_all_dim", 0.5),
                                 ("partial_rotary_factor", 0.5), ("truncate", False), ("factor", 3.0)):
                if inner not in value:
                    yield f"{key}.{inner} {other} added", {**base, key: {**value, inner: other}}
    for key, values in ADDED.items():
        for value in values:
            if key not in base or key in ("rope_parameters", "rope_scaling"):
                yield f"{key} {json.dumps(value)} added", {**base, key: value}
    few = ["model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
           "num_key_value_heads", "moe_intermediate_size", "num_experts_per_tok", "n_embd", "n_layer", "n_head"]
    yield "sizes alone", {key: base[key] for key in few if key in base}
    for key, inside in (("original_max_position_embeddings", 8), ("rope_theta", 300.0)):
        for scaling in (LLAMA3, YARN):
            rest = {k: v for k, v in scaling.items() if k != key}
            plain = {k: v for k, v in base.items() if not k.startswith("rope_")}
            if base["model_type"] != "gpt2":
                yield f"{key} outside of {scaling['rope_type']}", {**plain, "rope_parameters": rest, key: inside}
                yield f"{key} outside of {scaling['rope_type']} too", {**plain, "rope_scaling": scaling, key: inside}


def randomize(model):
    """Weights for which every key matters: embeddings so small that eps counts, the rest large."""
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=random)
            if weight.ndim == 1 and "norm" in name or ".ln_" in name and name.endswith("weight"):
                weight.copy_(1 + 0.3 * noise)
            elif "embed" in name or ".wte." in name or ".wpe." in name:
                weight.copy_(0.004 * noise)
            elif weight.ndim == 1:
                weight.copy_(0.3 * noise)
            else:
                weight.copy_(noise * 1.6 / weight.shape[-1] ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=random))


def loss_of_transformers(folder, tokens):
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    randomize(model)
    text = (folder / "config.json").read_text()
    model.save_pretrained(folder)
    (folder / "config.json").write_text(text)
    ids = tokens[:SEQ_LEN * SAMPLES].view(SAMPLES, SEQ_LEN)
    with torch.no_grad():
        logits = model(ids).logits.double()
    wanted = tokens[1:SEQ_LEN * SAMPLES + 1].view(-1)
    loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), wanted).item()
    if loss != loss:
        raise ValueError("the loss is not a number")
    return loss


def loss_of_titan(titan, folder, data):
    done = subprocess.run([titan, "eval", folder, "--dataset", "tokens", "--dataset-path", data, "--seq-len",
                           str(SEQ_LEN), "--json"], capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr
    return json.loads(done.stdout)["loss"], done.stderr


def compare(titan, folder, data, tokens, config):
    """The outcome, and the text to print about it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    try:
        theirs = loss_of_transformers(folder, tokens)
    except Exception as reason:  # of any type: transformers has no single error for a file that it cannot read
        return "not by transformers", f"{type(reason).__name__}: {str(reason).splitlines()[0] if str(reason) else ''}"
    ours, messages = loss_of_titan(titan, folder, data)
    if ours is None:
        return "refused", messages.strip().splitlines()[0]
    if abs(ours - theirs) <= TOLERANCE * max(1.0, abs(theirs)):
        return "equal", f"{ours:.6f}"
    return "DIFFERENT", f"{ours:.6f}, transformers {theirs:.6f} {messages.strip()}"


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--every", type=int, default=1)
    options.add_argument("--only", default="")
    options.add_argument("--list", action="store_true")
    options.add_argument("titan")
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("base", nargs="*")
    options = options.parse_args()
    known = json.loads((pathlib.Path(__file__).parent.parent / "unit/data/hf_classes.json").read_text())
    missing = known.keys() - {config["model_type"] for config in BASES.values()}
    assert not missing, f"no base has the model_type {missing}"
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(50)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    data = options.folder / "tokens.bin"
    tokens = torch.randint(0, 20, (SEQ_LEN * SAMPLES + 1,), generator=torch.Generator().manual_seed(3))
    data.write_bytes(struct.pack("<3i", 20240520, 1, len(tokens)) + bytes(1012) +
                     struct.pack(f"<{len(tokens)}H", *tokens.tolist()))
    counts, bad = collections.Counter(), []
    number = 0
    for name in options.base or BASES:
        for what, config in mutations(copy.deepcopy(BASES[name])):
            number += 1
            if options.only not in f"{name}: {what}" or (what != "as it is" and number % options.every):
                continue
            outcome, text = compare(options.titan, options.folder / "model", data, tokens, config)
            counts[outcome] += 1
            if outcome == "DIFFERENT" or (what == "as it is" and outcome != "equal"):
                bad.append(f"{name}: {what}: {outcome}: {text}")
            if options.list:
                print(f"{name}: {what}: {outcome}: {text}", flush=True)
    shutil.rmtree(options.folder / "model", ignore_errors=True)
    print(", ".join(f"{n} {outcome}" for outcome, n in counts.items()))
    for line in bad:
        print(line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
