#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The defaults of transformers' classes: what they take if a config.json contains only its model_type.

    class_defaults.py TYPE...            prints the table of these model_types; tests/unit/data/hf_classes.json is what
                                         transformers 5.24 said of all that titan reads
    class_defaults.py --compare TABLE    exit code 1 if the installed transformers says something else

For each class the keys that it saves with their values, and the sizes that its model has with them. The table may also
have published models of a class: the part of their config.json that counts, and the parameters that transformers' model
has with it (which --compare prints). Exit code 77 (skipped) when transformers cannot be imported, or with --compare if
it is older than version 5 or torch is missing.
"""
import json
import sys

try:
    import torch
    import transformers
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

VERSIONED = {"transformers_version", "_name_or_path", "id2label", "label2id"}


def first(config, *names):
    """The first of these attributes that the class has, whatever its value is."""
    for name in names:
        if hasattr(config, name):
            return getattr(config, name)
    return None


def sizes(config):
    heads = config.num_attention_heads
    width = config.hidden_size // heads
    latent = hasattr(config, "kv_lora_rank")
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)  # of layers without a window
    sparse = first(config, "num_experts", "n_routed_experts", "num_local_experts") or 0
    result = {
        "dim": config.hidden_size, "n_layers": config.num_hidden_layers, "n_heads": heads,
        "n_kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": config.qk_head_dim if latent else getattr(config, "head_dim", None) or width,
        "ffn_dim": first(config, "intermediate_size", "n_inner") or 4 * config.hidden_size,
        "vocab_size": config.vocab_size, "max_positions": config.max_position_embeddings,
        "norm_eps": first(config, "rms_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layer_norm_eps"),
        "tied": config.tie_word_embeddings,
        "rope_type": rope.get("rope_type"), "theta": rope.get("rope_theta", 0.0), "factor": rope.get("factor", 0.0),
        "original_max": rope.get("original_max_position_embeddings", 0.0),
        "windows": [i for i, kind in enumerate(getattr(config, "layer_types", None) or [])
                    if kind == "sliding_attention"],
        "window": getattr(config, "sliding_window", None) or 0, "experts": sparse,
    }
    if sparse:
        result.update(top_k=config.num_experts_per_tok or 0, norm_topk_prob=getattr(config, "norm_topk_prob", True),
                      expert_width=getattr(config, "moe_intermediate_size", None) or config.intermediate_size,
                      shared=getattr(config, "n_shared_experts", 0),
                      dense=getattr(config, "first_k_dense_replace", 0), groups=getattr(config, "n_group", None) or 0,
                      kept_groups=getattr(config, "topk_group", None) or 0,
                      scale=getattr(config, "routed_scaling_factor", 0.0))
    if latent:
        result.update(kv_rank=config.kv_lora_rank, q_rank=config.q_lora_rank, rope_dim=config.qk_rope_head_dim,
                      value_dim=config.v_head_dim)
    return result


def parameters(model_type, keys):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(model_type, **keys))
    return sum(parameter.numel() for parameter in model.parameters())


def table(types):
    result = {}
    for model_type in types:
        config = transformers.AutoConfig.for_model(model_type)
        keys = {key: value for key, value in config.to_dict().items() if key not in VERSIONED}
        if "layer_types" in keys:
            keys["layer_types"] = sorted(set(keys["layer_types"]))
        result[config.model_type] = {"keys": keys, "sizes": sizes(config)}
    return result


def text(types):
    lines = [f' "{name}": {{\n  "keys": {json.dumps(of["keys"])},\n  "sizes": {json.dumps(of["sizes"])}\n }}'
             for name, of in table(types).items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    transformers.logging.set_verbosity(50)
    if sys.argv[1:2] != ["--compare"]:
        sys.stdout.write(text(sys.argv[1:]))
        sys.exit(0)
    if int(transformers.__version__.split(".")[0]) < 5:
        print(f"skipped: transformers {transformers.__version__}")
        sys.exit(77)
    with open(sys.argv[2], encoding="utf-8") as file:
        wanted = json.load(file)
    found = json.loads(text(wanted))
    for name, of in found.items():
        of["published"] = {flavor: {**model, "parameters": parameters(name, model["config"])}
                           for flavor, model in wanted[name].setdefault("published", {}).items()}
        for part in ("keys", "sizes", "published"):
            for key in sorted(of[part].keys() | wanted[name][part].keys()):
                if of[part].get(key) != wanted[name][part].get(key):
                    print(f"{name}: {key} is {of[part].get(key)}, was {wanted[name][part].get(key)}")
    sys.exit(found != wanted)
