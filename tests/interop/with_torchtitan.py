#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains torchtitan's debug model for one step with torchtitan's own code on the CPU, and judges titan by it.

    with_torchtitan.py TORCHTITAN TITAN FOLDER     TORCHTITAN: a checkout; FOLDER: a new folder for the dumps

In float64 and in float32: the model of torchtitan.models.llama3 with random weights, saved through its own
Llama3StateDictAdapter, makes gradients; `titan reference` makes its own from the same weights and tokens; and `titan
compare --gradients` must find no difference. Exit code 77 when torchtitan cannot be imported.
"""
import json
import os
import subprocess
import sys

sys.path.insert(0, sys.argv[1])
try:
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file, save_file
    from torchtitan.models.llama3 import Llama3StateDictAdapter, llama3_configs
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

BATCH, SEQUENCE = 4, 64


def attend(q, k, v, *, scale=None, enable_gqa=False, **unused):
    """In place of FlexAttention, which is for GPUs: (tokens, heads, width) each."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa)
    return out[0].transpose(0, 1)


def build(config, dtype, weights):
    """torchtitan's rotary positions are float32 unless float() keeps doubles."""
    narrow = torch.Tensor.float
    if dtype == torch.float64:
        torch.Tensor.float = torch.Tensor.double
    model = config.build().to(dtype)
    for name, module in model.named_modules():
        if hasattr(module, "_precompute_cache"):
            module.cache = module._precompute_cache()
        if name.endswith("inner_attention"):
            module.forward = attend
    if weights is None:
        generator = torch.Generator().manual_seed(7)
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.data.copy_(1 + 0.1 * noise if "norm" in name else noise if "tok_" in name else 0.05 * noise)
    else:
        model.load_state_dict(weights, strict=False)
    return model, narrow


def gradients_of(model, tokens, labels):
    loss = 0.0
    for row, wanted in zip(tokens, labels):  # torchtitan's model sees one packed row of tokens
        logits = model(row, positions=torch.arange(SEQUENCE))
        part = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), wanted, reduction="sum") / labels.numel()
        part.backward()
        loss += float(part.detach())
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.grad)
    return loss, model.state_dict()  # in which queries, keys and values are apart


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(titan, folder):
    os.makedirs(f"{folder}/weights")
    config = llama3_configs["debugmodel"](attn_backend="flex")
    adapter = Llama3StateDictAdapter(config, None)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, config.vocab_size, (BATCH, SEQUENCE + 1), generator=generator)
    tokens, labels = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    save_file({"input_ids": tokens, "labels": labels}, f"{folder}/batch.safetensors")
    model, _ = build(config, torch.float32, None)
    state = {name: x.detach().clone() for name, x in model.state_dict().items()}
    save_file({name: x.contiguous() for name, x in adapter.to_hf(dict(state)).items()},
              f"{folder}/weights/model.safetensors")
    attention, layer = config.layers[0].attention, config.layers[0]
    rope = attention.rope
    with open(f"{folder}/weights/config.json", "w") as file:
        json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": config.dim,
                   "vocab_size": config.vocab_size, "num_hidden_layers": len(config.layers),
                   "num_attention_heads": attention.n_heads,
                   "num_key_value_heads": attention.n_kv_heads or attention.n_heads,
                   "intermediate_size": state["layers.0.feed_forward.w1.weight"].shape[0],
                   "rms_norm_eps": getattr(layer.attention_norm, "eps", None) or 1e-5,
                   "rope_theta": rope.theta, "max_position_embeddings": rope.max_context_length,
                   "tie_word_embeddings": False, "hidden_act": "silu",
                   "rope_scaling": {"rope_type": "llama3", "factor": rope.scaling_factor,
                                    "low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor,
                                    "original_max_position_embeddings": rope.original_max_position_embeddings}}, file)
    with open(f"{folder}/config.yaml", "w") as file:
        file.write("training: {dataset: kjv}\n")
    for dtype in ("float64", "float32"):
        model, narrow = build(config, getattr(torch, dtype), state)
        loss, gradients = gradients_of(model, tokens, labels)
        torch.Tensor.float = narrow
        path = f"{folder}/torchtitan-{dtype}"
        os.makedirs(f"{path}/step-1/gradients")
        save_file({name: x.contiguous() for name, x in adapter.to_hf(gradients).items()},
                  f"{path}/step-1/gradients/model.safetensors")
        with open(f"{path}/reference.json", "w") as file:
            json.dump({"schema": 1, "dtype": dtype,
                       "steps": [{"step": 1, "loss": loss, "tokens": labels.numel()}]}, file)
        run(titan, "reference", "--config", f"{folder}/config.yaml", "--weights", f"{folder}/weights", "--batch",
            f"{folder}/batch.safetensors", "--dtype", dtype, "--out", f"{folder}/titan-{dtype}")
        own = load_file(f"{folder}/titan-{dtype}/step-1/gradients/model.safetensors")
        theirs = load_file(f"{path}/step-1/gradients/model.safetensors")
        worst = max((float((own[name] - x).norm() / x.norm()), name) for name, x in theirs.items())
        print(f"{dtype}: {len(own)} gradients, the largest relative error is {worst[0]:.1e} in {worst[1]}; loss "
              f"{loss:.9g}")
        print(run(titan, "compare", "--gradients", path, f"{folder}/titan-{dtype}").splitlines()[0])


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[3])
