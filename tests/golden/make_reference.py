#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the reference runs of this folder that are titan's own: `make_reference.py [CASE...]`, into data/CASE.

Needs torch, transformers, numpy and safetensors (no accelerator, no downloads; a minute of CPU). A case is a Hugging
Face model with made-up weights, trained in float64 by plain PyTorch: AdamW, norm clipping, torchtitan's learning
rates. It leaves
    config.json, model.safetensors   the model before the first step, float32
    tokens.bin                       llm.c's format: 256 int32 of header, then uint16
    final.safetensors                the weights after the last step
    expect.json                      the recipe, and the loss, gradient norm and learning rate of every step
data/llama3, data/llama3_tied_scaled, data/qwen3 and data/gpt2 were made the same way, earlier.

`make_reference.py --seeds CASE...` prints the first seed from the case's own on with which no choice of experts is a
near-tie.

`make_reference.py --bfloat16 [FOLDER...]` runs the first step of the models in data/FOLDER (default: all) in bfloat16,
and adds to expect.json
    bfloat16                         its loss and gradient norm, and how many results in bfloat16 led to each

`make_reference.py --documents FOLDER...` trains the models in data/FOLDER again, with a block-causal mask and positions
that begin again in each document, and adds to expect.json
    documents                        where the stream's documents begin, and loss, gradient norm and learning rate

`make_reference.py --z-loss FOLDER...` trains the models in data/FOLDER again, with a z-loss, and adds to expect.json
    z_loss                           its coefficient, and loss, z-loss, gradient norm and learning rate

`make_reference.py --ema FOLDER...` trains the models in data/FOLDER again, with the exponential moving averages
of torch.optim.swa_utils. It leaves ema.safetensors, the averages after the last step, and adds to expect.json
    ema                              their decay

`make_reference.py --router-losses FOLDER...` trains the models in data/FOLDER again, with auxiliary losses of their
routers, computed over the whole batch of a step, and adds to expect.json
    router_losses                    coefficients, loss, gradient norm, learning rate, and the auxiliary losses

`make_reference.py --muon FOLDER...` trains the models in data/FOLDER again with torch.optim.Muon for the matrices of
the blocks, also in float64: PyTorch's own code, kept from its cast to bfloat16. It leaves muon.safetensors, the final
weights, and adds to expect.json
    muon                             Muon's recipe, and loss, gradient norm and learning rate
"""
import json
import math
import pathlib
import shutil
import sys

import numpy
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.overrides import TorchFunctionMode
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (AutoModelForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, GPT2Config, GPT2LMHeadModel,
                          GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

DATA = pathlib.Path(__file__).resolve().parent / "data"

CASES = {
    # Odd sizes, one kv head for five query heads, a batch for 1, 2, 3, 4, 6 and 12 ranks, a schedule with a plateau.
    "llama3_three": {
        "seed": 11, "weight_std": 0.08,
        "model": {"hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1,
                  "intermediate_size": 88, "vocab_size": 331, "tie_word_embeddings": False},
        "seq_len": 32, "global_batch_size": 12, "steps": 10, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 2, "decay_ratio": 0.5, "decay_type": "sqrt", "min_lr_factor": 0.0},
    },
    # Every step clips by a factor of a hundred. Adam cancels a constant factor, so eps is large enough to show it.
    "llama3_clipped": {
        "seed": 12, "weight_std": 0.3,
        "model": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3,
                  "intermediate_size": 56, "vocab_size": 127, "tie_word_embeddings": True},
        "seq_len": 24, "global_batch_size": 6, "steps": 12, "max_norm": 0.03,
        "optimizer": {"name": "AdamW", "lr": 1e-2, "beta1": 0.8, "beta2": 0.97, "eps": 3e-4, "weight_decay": 0.05},
        "lr_scheduler": {"warmup_steps": 1, "decay_ratio": None, "decay_type": "linear", "min_lr_factor": 0.2},
    },
    # Mistral: a sliding window that is shorter than the sequences, in all layers.
    "llama3_window": {
        "family": "mistral", "seed": 16, "weight_std": 0.08,
        "model": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "head_dim": 10, "intermediate_size": 52, "sliding_window": 5, "vocab_size": 157,
                  "tie_word_embeddings": False},
        "seq_len": 24, "global_batch_size": 8, "steps": 4, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 2, "decay_ratio": None, "decay_type": "cosine", "min_lr_factor": 0.1},
    },
    # Untied, heads wider than dim / heads, three query heads for each kv head; a batch for 1, 2, 3, 4, 8 and 24 ranks.
    "qwen3_eight": {
        "family": "qwen3", "seed": 13, "weight_std": 0.08,
        "model": {"hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
                  "head_dim": 14, "intermediate_size": 52, "vocab_size": 211, "tie_word_embeddings": False},
        "seq_len": 24, "global_batch_size": 24, "steps": 10, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 2, "decay_ratio": None, "decay_type": "cosine", "min_lr_factor": 0.1},
    },
    # Sequences shorter than the positions, an odd head dimension, a feed-forward that is not four times the width.
    "gpt2_eight": {
        "family": "gpt2", "seed": 14, "weight_std": 0.08,
        "model": {"n_embd": 35, "n_layer": 3, "n_head": 5, "n_inner": 93, "n_positions": 41, "vocab_size": 211},
        "seq_len": 24, "global_batch_size": 24, "steps": 10, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 2, "decay_ratio": 0.6, "decay_type": "linear", "min_lr_factor": 0.1},
    },
    # Three of eight experts for each token, in every layer. As in all cases with experts, the seed is one with which no
    # token's choice is a near-tie. This case is an older one: its routers are so sharp that the margin is that
    # of tiny probabilities; of logits it is 7e-4.
    "qwen3_moe": {
        "family": "qwen3_moe", "seed": 15, "weight_std": 0.08, "gate_std": 1.0, "gap": 1e-12,
        "model": {"hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
                  "head_dim": 14, "intermediate_size": 52, "moe_intermediate_size": 20, "num_experts": 8,
                  "num_experts_per_tok": 3, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
                  "vocab_size": 211, "tie_word_embeddings": False},
        "seq_len": 24, "global_batch_size": 8, "steps": 6, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 2, "decay_ratio": None, "decay_type": "cosine", "min_lr_factor": 0.1},
    },
    # The first layer is dense, and gates are scores as they are. One expert is so quiet that it gets no token in some
    # steps.
    "qwen3_moe_dense": {
        "family": "qwen3_moe", "seed": 410, "weight_std": 0.08, "gate_std": 0.35, "gap": 1e-3, "quiet": 5,
        "model": {"hidden_size": 28, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "head_dim": 10, "intermediate_size": 44, "moe_intermediate_size": 18, "num_experts": 12,
                  "num_experts_per_tok": 2, "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [0],
                  "vocab_size": 157, "tie_word_embeddings": True},
        "seq_len": 8, "global_batch_size": 8, "steps": 3, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 1, "decay_ratio": 0.5, "decay_type": "linear", "min_lr_factor": 0.2},
    },
    # Two of five experts, which are as wide as the configuration's feed-forward; no norms of heads.
    "mixtral_moe": {
        "family": "mixtral", "seed": 1783, "weight_std": 0.08, "gate_std": 0.35, "gap": 1e-3,
        "model": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "head_dim": 10, "intermediate_size": 36, "num_local_experts": 5, "num_experts_per_tok": 2,
                  "vocab_size": 193, "tie_word_embeddings": False},
        "seq_len": 8, "global_batch_size": 8, "steps": 4, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 2, "decay_ratio": None, "decay_type": "cosine", "min_lr_factor": 0.1},
    },
    # Experts in layers 1 and 3 of five, and a sliding window that is shorter than the sequences, in all layers.
    "qwen3_moe_sparse": {
        "family": "qwen3_moe", "seed": 1711, "weight_std": 0.08, "gate_std": 0.35, "gap": 1e-3,
        "model": {"hidden_size": 28, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "head_dim": 10, "intermediate_size": 44, "moe_intermediate_size": 18, "num_experts": 6,
                  "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": [4],
                  "use_sliding_window": True, "sliding_window": 3, "vocab_size": 157, "tie_word_embeddings": False},
        "seq_len": 8, "global_batch_size": 8, "steps": 3, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 1, "decay_ratio": 0.5, "decay_type": "linear", "min_lr_factor": 0.2},
    },
    # DeepSeek-V3: a latent of queries, groups of which some are not kept, biases, of which one is so low that its
    # expert gets no token, YaRN for sequences below its original length.
    "deepseek_v3": {
        "family": "deepseek_v3", "seed": 1129, "weight_std": 0.08, "gate_std": 0.35, "gap": 1e-3,
        "bias": [0.11, -0.07, 0.02, -0.6, 0.0, 0.16, -0.13, 0.05],
        "model": {"hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 6,
                  "intermediate_size": 52, "moe_intermediate_size": 20, "n_routed_experts": 8, "n_shared_experts": 2,
                  "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
                  "norm_topk_prob": True, "routed_scaling_factor": 2.5, "q_lora_rank": 32, "kv_lora_rank": 24,
                  "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "vocab_size": 211,
                  "tie_word_embeddings": False},
        "rope": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.7,
                 "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64},
        "seq_len": 12, "global_batch_size": 8, "steps": 4, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 2, "decay_ratio": None, "decay_type": "cosine", "min_lr_factor": 0.1},
    },
    # No latent of queries, one group, gates as they are, YaRN for sequences above its original length, a tied head.
    "deepseek_v3_long": {
        "family": "deepseek_v3", "seed": 581, "weight_std": 0.08, "gate_std": 0.35, "gap": 1e-3,
        "bias": [0.0, 0.05, -0.12, 0.09, -0.04, 0.02],
        "model": {"hidden_size": 28, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
                  "intermediate_size": 44, "moe_intermediate_size": 18, "n_routed_experts": 6, "n_shared_experts": 1,
                  "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
                  "norm_topk_prob": False, "routed_scaling_factor": 1.0, "q_lora_rank": None, "kv_lora_rank": 20,
                  "qk_nope_head_dim": 10, "qk_rope_head_dim": 12, "v_head_dim": 16, "vocab_size": 157,
                  "tie_word_embeddings": True},
        "rope": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 0.7,
                 "beta_fast": 2.0, "beta_slow": 0.1, "original_max_position_embeddings": 5},
        "seq_len": 12, "global_batch_size": 8, "steps": 4, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 1, "decay_ratio": 0.5, "decay_type": "linear", "min_lr_factor": 0.2},
    },
    # gpt-oss: a window that is shorter than the sequences, gates and factors of which some are clamped, YaRN for
    # sequences below its original length.
    "gpt_oss": {
        "family": "gpt_oss", "seed": 2110, "weight_std": 0.08, "gate_std": 0.35, "gap": 1e-3, "expert_bias_std": 4.0,
        "model": {"hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
                  "head_dim": 10, "intermediate_size": 20, "num_local_experts": 6, "num_experts_per_tok": 2,
                  "sliding_window": 3, "vocab_size": 211, "tie_word_embeddings": False},
        "rope": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                 "truncate": False, "original_max_position_embeddings": 64},
        "seq_len": 8, "global_batch_size": 8, "steps": 3, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 2, "decay_ratio": None, "decay_type": "cosine", "min_lr_factor": 0.1},
    },
    # A quiet expert, which gets no token in some steps, YaRN for sequences above its original length, a tied head.
    "gpt_oss_long": {
        "family": "gpt_oss", "seed": 408, "weight_std": 0.08, "gate_std": 0.35, "gap": 1e-3, "expert_bias_std": 3.0,
        "quiet": 2,
        "model": {"hidden_size": 28, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
                  "head_dim": 12, "intermediate_size": 18, "num_local_experts": 8, "num_experts_per_tok": 2,
                  "sliding_window": 5, "vocab_size": 157, "tie_word_embeddings": True},
        "rope": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "beta_fast": 2.0, "beta_slow": 0.13,
                 "truncate": False, "original_max_position_embeddings": 5},
        "seq_len": 8, "global_batch_size": 8, "steps": 3, "max_norm": 1.0,
        "optimizer": {"name": "AdamW", "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "lr_scheduler": {"warmup_steps": 1, "decay_ratio": 0.5, "decay_type": "linear", "min_lr_factor": 0.2},
    },
}


def lr_factor(step, steps, warmup_steps, decay_ratio, decay_type, min_lr_factor):
    """torchtitan's warm-up, plateau and decay; step counts from 0."""
    warmup = min(warmup_steps, steps)
    decay = steps - warmup if decay_ratio is None else min(round(steps * decay_ratio), steps - warmup)
    plateau_end = steps + 1 - decay
    if step < warmup:
        return (step + 1) / warmup
    if step < plateau_end:
        return 1.0
    done = (step + 1 - plateau_end) / decay
    curve = {"linear": 1 - done, "sqrt": 1 - math.sqrt(done), "cosine": 0.5 * (1 + math.cos(math.pi * done))}
    return min_lr_factor + (1 - min_lr_factor) * curve[decay_type]


def made_up_tokens(count, vocab, seed):
    """A noisy rule with two tokens of memory: something that can be learned."""
    random = numpy.random.default_rng(seed)
    tokens = numpy.zeros(count, numpy.int64)
    tokens[:2] = random.integers(1, vocab, size=2)
    for i in range(2, count):
        follows = random.random() < 0.7
        tokens[i] = (3 * tokens[i - 1] + tokens[i - 2] + 7) % vocab if follows else random.integers(0, vocab)
    return tokens


def write_tokens(path, tokens):
    header = numpy.zeros(256, numpy.int32)
    header[:3] = [20240520, 1, len(tokens)]
    path.write_bytes(header.tobytes() + tokens.astype(numpy.uint16).tobytes())


def random_model(case):
    rope = {"max_position_embeddings": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    family = case.get("family", "llama3")
    if family == "gpt2":
        return GPT2LMHeadModel(GPT2Config(attn_implementation="eager", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                          **case["model"]))
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(attn_implementation="eager", rms_norm_eps=1e-6, **rope, **case["model"]))
    if family == "qwen3_moe":
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(attn_implementation="eager", experts_implementation="eager",
                                                  rms_norm_eps=1e-6, **rope, **case["model"]))
    if family == "deepseek_v3":
        return DeepseekV3ForCausalLM(DeepseekV3Config(attn_implementation="eager", experts_implementation="eager",
                                                      rms_norm_eps=1e-6, max_position_embeddings=128, num_mtp_layers=0,
                                                      rope_parameters=dict(case["rope"]), **case["model"]))
    if family == "gpt_oss":
        return GptOssForCausalLM(GptOssConfig(attn_implementation="eager", experts_implementation="eager",
                                              rms_norm_eps=1e-5, max_position_embeddings=128,
                                              rope_parameters=dict(case["rope"]), **case["model"]))
    if family == "mixtral":
        return MixtralForCausalLM(MixtralConfig(attn_implementation="eager", experts_implementation="eager",
                                                rms_norm_eps=1e-5, sliding_window=None, **rope, **case["model"]))
    if family == "mistral":
        return MistralForCausalLM(MistralConfig(attn_implementation="eager", rms_norm_eps=1e-5, **rope,
                                                **case["model"]))
    return LlamaForCausalLM(LlamaConfig(attn_implementation="eager", rms_norm_eps=1e-5, **rope, **case["model"]))


def make_model(case, model=None):
    """Made-up weights, of a new model or in place of those that one has."""
    model = (model or random_model(case)).float()
    generator = torch.Generator().manual_seed(case["seed"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(".bias"):
                parameter.copy_(0.05 * noise)
            elif name.endswith(".gate_up_proj_bias"):
                parameter.copy_(case["expert_bias_std"] * noise)
            elif name.endswith((".mlp.gate.weight", ".mlp.router.weight")):
                parameter.copy_(case["gate_std"] * noise)
                if "quiet" in case:
                    parameter[case["quiet"]] *= 0.01
            else:
                parameter.copy_(case["weight_std"] * noise if parameter.dim() > 1 else 1 + 0.1 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith(".e_score_correction_bias"):
                buffer.copy_(torch.tensor(case["bias"]))
    return model


def positions_of(at, length, offsets):
    """The position of each token of a sample in its document, as far as that is in the sample."""
    starts = [max([offset for offset in offsets if offset <= i] + [0]) for i in range(at, at + length)]
    return torch.tensor([i - max(start, at) for i, start in zip(range(at, at + length), starts)])


def block_causal(positions, window=None):
    """What to add to the scores of attention: 0 where a token may attend, otherwise the least number."""
    index = torch.arange(positions.shape[1])
    start = (index - positions).unsqueeze(-1)
    seen = (index.unsqueeze(0) <= index.unsqueeze(1)) & (index >= start)
    if window:
        seen &= index.unsqueeze(0) > index.unsqueeze(1) - window
    return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float64).min).unsqueeze(1)


def masks_of(model, positions):
    """The same, or with sliding windows one for each type of layer."""
    if "sliding_attention" not in (getattr(model.config, "layer_types", None) or []):
        return block_causal(positions)
    return {"full_attention": block_causal(positions),
            "sliding_attention": block_causal(positions, model.config.sliding_window)}


def pack(tokens, offsets, learned, length):
    """Samples of whole conversations: inputs, labels (-100: not learned) and positions, padded with token 0."""
    samples, at = [], length
    for begin, end in zip(offsets, offsets[1:]):
        ids, marks = tokens[begin:end][:length].tolist(), learned[begin:end][:length]
        if end - begin > length and 1 not in marks[1:]:
            continue
        if at + len(ids) > length:
            samples.append(([0] * length, [-100] * length, list(range(length))))
            at = 0
        after = at + len(ids)
        inputs, labels, positions = samples[-1]
        inputs[at:after] = ids
        labels[at:after] = [id if mark else -100 for id, mark in zip(ids[1:], marks[1:])] + [-100]
        positions[at:] = [*range(len(ids)), *range(length - after)]
        at = after
    return [torch.tensor(part) for part in zip(*samples)]


class WatchRouters:
    """The smallest gap between what decides for the last expert that a token gets and for the first that it does not
    get, a probability with its bias; or for groups of experts, the sum of two of these. And the number of experts
    without a token, over all layers and steps."""

    def __init__(self, model, case):
        self.gap, self.without, self.top_k = math.inf, 0, case["model"]["num_experts_per_tok"]
        self.hooks = []
        self.groups, self.kept = case["model"].get("n_group", 1), case["model"].get("topk_group", 1)
        for name, module in model.named_modules():
            if name.endswith((".mlp.gate", ".mlp.router")):
                self.hooks.append(module.register_forward_hook(self.see))

    def remove(self):
        for hook in self.hooks:
            hook.remove()

    def see(self, module, inputs, output):
        logits = torch.nn.functional.linear(inputs[0].flatten(0, -2), module.weight, getattr(module, "bias", None))
        logits = logits.detach()
        bias = getattr(module, "e_score_correction_bias", None)
        choice = logits.softmax(dim=-1) if bias is None else logits.sigmoid() + bias
        if self.groups > 1:
            groups = choice.view(len(choice), self.groups, -1)
            best = groups.topk(2, dim=-1).values.sum(dim=-1).topk(self.kept + 1, dim=-1)
            self.note(best.values)
            kept = torch.zeros(groups.shape[:2]).scatter_(1, best.indices[:, :-1], 1).bool()
            choice = groups.masked_fill(~kept.unsqueeze(-1), -math.inf).flatten(1)
        best = choice.topk(self.top_k + 1, dim=-1)
        self.note(best.values)
        self.without += logits.shape[-1] - best.indices[:, :-1].unique().numel()

    def note(self, values):
        self.gap = min(self.gap, (values[:, -2] - values[:, -1]).min().item())


class RouterLosses:
    """Auxiliary losses of all routers over the tokens of a step, as titan-methods(7) says them."""

    def __init__(self, model, coefficients):
        self.coefficients, self.config, self.inputs, self.before = coefficients, model.config, {}, {}
        for name, module in model.named_modules():
            if name.endswith(".mlp.gate"):
                module.register_forward_hook(self.see)

    def see(self, module, inputs, output):
        self.inputs[module] = inputs[0].flatten(0, -2)

    def chosen(self, module, scores):
        """1 for the experts of each token."""
        choice, groups = scores.detach(), getattr(self.config, "n_group", 1)
        if hasattr(module, "e_score_correction_bias"):
            choice = choice + module.e_score_correction_bias
        if groups > 1:
            apart = choice.view(len(choice), groups, -1)
            best = apart.topk(2, dim=-1).values.sum(dim=-1).topk(self.config.topk_group, dim=-1).indices
            kept = torch.zeros(apart.shape[:2]).scatter_(1, best, 1).bool()
            choice = apart.masked_fill(~kept.unsqueeze(-1), -math.inf).flatten(1)
        best = choice.topk(self.config.num_experts_per_tok, dim=-1).indices
        return torch.zeros_like(choice).scatter_(1, best, 1)

    def finish(self, sequences):
        """The losses of a step of so many sequences; their f of the global batch is that of the call before."""
        found = {name: 0.0 for name in self.coefficients}
        for module, x in self.inputs.items():
            logits = x @ module.weight.T
            sigmoid = hasattr(module, "e_score_correction_bias")
            scores = logits.sigmoid() if sigmoid else logits.softmax(dim=-1)
            slots, experts = self.chosen(module, scores), logits.shape[-1]
            share = slots / self.config.num_experts_per_tok
            p = scores / scores.sum(dim=-1, keepdim=True)
            f = share.view(sequences, -1, experts).mean(dim=1)
            each = experts * (f * p.view(sequences, -1, experts).mean(dim=1)).sum(dim=-1)
            before = self.before.get(module, torch.full((experts,), 1 / experts, dtype=torch.float64))
            terms = {"sequence": each.mean(), "global_batch": experts * (before * p.mean(dim=0)).sum(),
                     "z": logits.logsumexp(dim=-1).square().mean()}
            for name, coefficient in self.coefficients.items():
                found[name] = found[name] + coefficient * terms[name]
            self.before[module] = share.mean(dim=0)
        return found


class KeepFloat64(TorchFunctionMode):
    """Makes casts to bfloat16 copies."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to and (kwargs or {}).get("dtype") is torch.bfloat16:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


def train(model, tokens, case, offsets=None, packs=None, z_loss=None, muon=None, averages=None,
          routers=None):
    recipe, length, batch = case["optimizer"], case["seq_len"], case["global_batch_size"]
    matrices = [p for name, p in model.named_parameters() if muon and ".layers." in name and p.dim() == 2]
    others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
    optimizers = [torch.optim.AdamW(others, lr=recipe["lr"], betas=(recipe["beta1"], recipe["beta2"]),
                                    eps=recipe["eps"], weight_decay=recipe["weight_decay"])]
    if muon:
        optimizers.append(torch.optim.Muon(matrices, lr=recipe["lr"], weight_decay=recipe["weight_decay"], **muon))
    seen = {"loss": [], "grad_norm": [], "lr": []}
    if z_loss is not None:
        seen["z_loss"] = []
    for name in routers.coefficients if routers else ():
        seen[name] = []
    for step in range(case["steps"]):
        rate = recipe["lr"] * lr_factor(step, case["steps"], **case["lr_scheduler"])
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        starts = [(step * batch + i) * length for i in range(batch)]
        inputs = torch.stack([tokens[at:at + length] for at in starts])
        labels = torch.stack([tokens[at + 1:at + length + 1] for at in starts])
        documents = {}
        if offsets is not None:
            positions = torch.stack([positions_of(at, length, offsets) for at in starts])
            documents = {"position_ids": positions, "attention_mask": masks_of(model, positions)}
        if packs is not None:
            index = torch.arange(step * batch, (step + 1) * batch) % len(packs[0])
            inputs, labels, positions = (part[index] for part in packs)
            documents = {"position_ids": positions, "attention_mask": masks_of(model, positions)}
        logits = model(input_ids=inputs, use_cache=False, **documents).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        trained_on = loss
        if z_loss is not None:
            added = z_loss * logits.flatten(0, 1).logsumexp(dim=1).square().mean()
            seen["z_loss"].append(added.item())
            trained_on = loss + added
        for name, added in routers.finish(batch).items() if routers else ():
            seen[name].append(added.item())
            trained_on = trained_on + added
        model.zero_grad()
        trained_on.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), case["max_norm"])
        with KeepFloat64():
            for optimizer in optimizers:
                optimizer.step()
            if averages is not None:
                averages.update_parameters(model)
        for key, value in (("loss", loss.item()), ("grad_norm", norm.item()), ("lr", rate)):
            seen[key].append(value)
    return seen


def find_seed(name):
    """The first seed from the case's own on with which no choice of experts is a near-tie in any step."""
    case, model = dict(CASES[name]), None
    count = case["steps"] * case["global_batch_size"] * case["seq_len"] + 1
    while True:
        tokens = torch.from_numpy(made_up_tokens(count, case["model"]["vocab_size"], case["seed"]))
        model = make_model(case, model).double().train()
        routers = WatchRouters(model, case)
        with torch.no_grad():
            model(input_ids=tokens[:-1].view(-1, case["seq_len"]), use_cache=False)
        if routers.gap > case["gap"]:
            train(model, tokens, case)
        if routers.gap > case["gap"]:
            break
        routers.remove()
        case["seed"] += 1
    print(name, "seed", case["seed"], "gap", routers.gap, "experts without tokens", routers.without, flush=True)


def make(name):
    case, folder = CASES[name], DATA / name
    folder.mkdir(parents=True, exist_ok=True)
    count = case["steps"] * case["global_batch_size"] * case["seq_len"] + 1
    tokens = made_up_tokens(count, case["model"]["vocab_size"], case["seed"])
    write_tokens(folder / "tokens.bin", tokens)
    model = make_model(case)
    model.save_pretrained(folder, safe_serialization=True)
    model = model.double().train()
    routers = WatchRouters(model, case) if "gap" in case else None
    seen = train(model, torch.from_numpy(tokens), case)
    if routers:
        if not routers.gap > case["gap"]:
            sys.exit(f"{name}: a near-tie of {routers.gap:.2g}; take another seed")
        seen["routers"] = {"smallest_gap": routers.gap, "experts_without_tokens": routers.without}
        model.float().save_pretrained(folder / "final", safe_serialization=True)  # experts are separate in files
        (folder / "final" / "model.safetensors").rename(folder / "final.safetensors")
        shutil.rmtree(folder / "final")
    else:
        final = {key: value.detach().float().contiguous() for key, value in model.named_parameters()}
        save_file(final, folder / "final.safetensors", metadata={"format": "pt"})
    recipe = {key: case[key] for key in
              ("seq_len", "global_batch_size", "steps", "optimizer", "max_norm", "lr_scheduler")}
    (folder / "expect.json").write_text(json.dumps({"case": recipe, **seen}, indent=1) + "\n")
    print(name, "loss", seen["loss"][0], "to", seen["loss"][-1], "norms", min(seen["grad_norm"]),
          max(seen["grad_norm"]))


def add_documents(folder):
    expect = json.loads((folder / "expect.json").read_text())
    tokens = numpy.frombuffer((folder / "tokens.bin").read_bytes()[1024:], numpy.uint16).astype(numpy.int64)
    random = numpy.random.default_rng(21)
    offsets = [0]
    while offsets[-1] < len(tokens):
        offsets.append(offsets[-1] + int(random.integers(1, 60)))
    offsets[-1] = len(tokens)
    case = {key: value for key, value in expect["case"].items() if key != "data"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").train()
    seen = train(model, torch.from_numpy(tokens), case, offsets[:-1])
    expect["documents"] = {"offsets": offsets, **seen}
    (folder / "expect.json").write_text(json.dumps(expect, indent=1) + "\n")
    print(folder.name, "loss", seen["loss"][0], "to", seen["loss"][-1], "without", expect["loss"][0], "to",
          expect["loss"][-1])


def open_model(folder, dtype=torch.float64):
    """The default way to multiply the rows of experts cannot do all types and sizes."""
    has_experts = any(word in folder.name for word in ("_moe", "deepseek", "gpt_oss"))
    experts = {"experts_implementation": "eager"} if has_experts else {}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **experts).train()


def add_chat(folder):
    """The same tokens as conversations, in which turns of a few tokens are learned."""
    expect = json.loads((folder / "expect.json").read_text())
    tokens = numpy.frombuffer((folder / "tokens.bin").read_bytes()[1024:], numpy.uint16).astype(numpy.int64)
    random = numpy.random.default_rng(22)
    offsets, learned = [0], []
    while offsets[-1] < len(tokens):
        offsets.append(min(offsets[-1] + int(random.integers(3, 40)), len(tokens)))
        while len(learned) < offsets[-1]:
            learned += [0] * int(random.integers(1, 9)) + [1] * int(random.integers(1, 9))
        del learned[offsets[-1]:]
    case = {key: value for key, value in expect["case"].items() if key != "data"}
    model = open_model(folder)
    packs = pack(tokens, offsets, learned, case["seq_len"])
    seen = train(model, torch.from_numpy(tokens), case, packs=packs)
    expect["chat"] = {"offsets": offsets, "learned": "".join(map(str, learned)), **seen}
    (folder / "expect.json").write_text(json.dumps(expect, indent=1) + "\n")
    print(folder.name, len(packs[0]), "samples, loss", seen["loss"][0], "to", seen["loss"][-1])


def add_z_loss(folder, coefficient=0.02):
    """So large a coefficient that the gradients differ by far more than by roundings."""
    expect = json.loads((folder / "expect.json").read_text())
    tokens = numpy.frombuffer((folder / "tokens.bin").read_bytes()[1024:], numpy.uint16).astype(numpy.int64)
    case = {key: value for key, value in expect["case"].items() if key != "data"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").train()
    seen = train(model, torch.from_numpy(tokens), case, z_loss=coefficient)
    expect["z_loss"] = {"coefficient": coefficient, **seen}
    (folder / "expect.json").write_text(json.dumps(expect, indent=1) + "\n")
    print(folder.name, "loss", seen["loss"][0], "to", seen["loss"][-1], "z-loss", seen["z_loss"][0], "to",
          seen["z_loss"][-1], "without", expect["loss"][-1])


def add_router_losses(folder):
    """So large coefficients that the gradients differ by far more than by roundings; z is of routers with softmax."""
    expect = json.loads((folder / "expect.json").read_text())
    tokens = numpy.frombuffer((folder / "tokens.bin").read_bytes()[1024:], numpy.uint16).astype(numpy.int64)
    case = {key: value for key, value in expect["case"].items() if key != "data"}
    model = open_model(folder)
    coefficients = {"sequence": 0.05, "global_batch": 0.2}
    if not any("e_score_correction_bias" in name for name, _ in model.named_buffers()):
        coefficients["z"] = 0.02
    watched = {"model": {"num_experts_per_tok": model.config.num_experts_per_tok,
                         "n_group": getattr(model.config, "n_group", 1),
                         "topk_group": getattr(model.config, "topk_group", 1)}}
    gaps = WatchRouters(model, watched)
    seen = train(model, torch.from_numpy(tokens), case, routers=RouterLosses(model, coefficients))
    if not gaps.gap > 1e-4:
        sys.exit(f"{folder.name}: a near-tie of {gaps.gap:.2g}; take other coefficients")
    expect["router_losses"] = {"coefficients": coefficients, "smallest_gap": gaps.gap, **seen}
    (folder / "expect.json").write_text(json.dumps(expect, indent=1) + "\n")
    print(folder.name, "gap", gaps.gap, {key: value for key, value in seen.items() if key != "lr"}, "without",
          expect["grad_norm"])


def add_ema(folder, decay=0.8):
    """PyTorch's averages of the weights, which begin as a copy of them. Training is what it is without averages."""
    expect = json.loads((folder / "expect.json").read_text())
    tokens = numpy.frombuffer((folder / "tokens.bin").read_bytes()[1024:], numpy.uint16).astype(numpy.int64)
    case = {key: value for key, value in expect["case"].items() if key != "data"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").train()
    averages = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    averages.update_parameters(model)  # the first update copies
    seen = train(model, torch.from_numpy(tokens), case, averages=averages)
    final = {key: value.detach().float().contiguous() for key, value in averages.module.named_parameters()}
    save_file(final, folder / "ema.safetensors", metadata={"format": "pt"})
    expect["ema"] = {"decay": decay}
    (folder / "expect.json").write_text(json.dumps(expect, indent=1) + "\n")
    print(folder.name, "loss", seen["loss"][-1], "without averages", expect["loss"][-1])


MUON = {
    "llama3": {"momentum": 0.95, "nesterov": True, "ns_steps": 5, "adjust_lr_fn": "match_rms_adamw"},
    "qwen3": {"momentum": 0.8, "nesterov": False, "ns_steps": 4, "adjust_lr_fn": "original"},
}


def add_muon(folder):
    expect = json.loads((folder / "expect.json").read_text())
    tokens = numpy.frombuffer((folder / "tokens.bin").read_bytes()[1024:], numpy.uint16).astype(numpy.int64)
    case = {key: value for key, value in expect["case"].items() if key != "data"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").train()
    seen = train(model, torch.from_numpy(tokens), case, muon=MUON[folder.name])
    final = {key: value.detach().float().contiguous() for key, value in model.named_parameters()}
    save_file(final, folder / "muon.safetensors", metadata={"format": "pt"})
    expect["muon"] = {"recipe": MUON[folder.name], **seen}
    (folder / "expect.json").write_text(json.dumps(expect, indent=1) + "\n")
    print(folder.name, "loss", seen["loss"][0], "to", seen["loss"][-1], "with AdamW", expect["loss"][-1])


class CountRoundings(TorchDispatchMode):
    """Counts the tensors of bfloat16 that operations compute, without those that only move values."""
    MOVES = {"_unsafe_view", "cat", "clone", "embedding", "neg", "scalar_tensor", "slice_backward", "where", "zeros"}

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket.__name__ not in self.MOVES:
            outputs = result if isinstance(result, (tuple, list)) else [result]
            self.count += sum(isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 for x in outputs)
        return result


def add_bfloat16(folder):
    expect = json.loads((folder / "expect.json").read_text())
    length, batch = expect["case"]["seq_len"], expect["case"]["global_batch_size"]
    tokens = numpy.frombuffer((folder / "tokens.bin").read_bytes()[1024:], numpy.uint16)[:batch * length + 1]
    tokens = torch.from_numpy(tokens.astype(numpy.int64))
    model = open_model(folder, torch.bfloat16)
    with CountRoundings() as roundings:
        logits = model(input_ids=tokens[:-1].view(batch, length), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[1:])
        forward = roundings.count
        loss.backward()
    norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
    expect["bfloat16"] = {"loss": loss.item(), "grad_norm": norm,
                          "roundings": {"loss": forward, "grad_norm": roundings.count}}
    (folder / "expect.json").write_text(json.dumps(expect, indent=1) + "\n")
    print(folder.name, "loss", loss.item() / expect["loss"][0] - 1, "norm", norm / expect["grad_norm"][0] - 1,
          "roundings", forward, roundings.count)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bfloat16"]:
        for wanted in sys.argv[2:] or sorted(path.name for path in DATA.iterdir()):
            add_bfloat16(DATA / wanted)
    elif sys.argv[1:2] == ["--documents"]:
        for wanted in sys.argv[2:]:
            add_documents(DATA / wanted)
    elif sys.argv[1:2] == ["--z-loss"]:
        for wanted in sys.argv[2:]:
            add_z_loss(DATA / wanted)
    elif sys.argv[1:2] == ["--router-losses"]:
        for wanted in sys.argv[2:]:
            add_router_losses(DATA / wanted)
    elif sys.argv[1:2] == ["--ema"]:
        for wanted in sys.argv[2:]:
            add_ema(DATA / wanted)
    elif sys.argv[1:2] == ["--muon"]:
        for wanted in sys.argv[2:]:
            add_muon(DATA / wanted)
    elif sys.argv[1:2] == ["--chat"]:
        for wanted in sys.argv[2:]:
            add_chat(DATA / wanted)
    elif sys.argv[1:2] == ["--seeds"]:
        for wanted in sys.argv[2:]:
            find_seed(wanted)
    else:
        for wanted in sys.argv[1:] or CASES:
            make(wanted)
