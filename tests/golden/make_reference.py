#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the reference runs of this folder that are titan's own: `make_reference.py RUN...`, in data/RUN.

Needs torch, transformers, numpy and safetensors (no accelerator, no downloads; a minute of CPU). A run is a Hugging
Face model with made-up weights, trained in float64 by plain PyTorch: AdamW, norm clipping, torchtitan's learning
rates. To add one, write two files into data/RUN, and then run this with each of the options below that the run should
have, --bfloat16 at least, and make_generate_reference.py:
    config.json                      the class and its sizes
    expect.json                      {"case": what is special, the seed, the deviation of weights, and the recipe}
It leaves
    config.json, model.safetensors   the model before the first step, float32
    tokens.bin                       llm.c's format: 256 int32 of header, then uint16
    final.safetensors                the weights after the last step
    expect.json                      the case, and the loss, gradient norm and learning rate of every step
data/llama3, data/llama3_tied_scaled, data/qwen3 and data/gpt2 were made the same way, earlier; their seeds are lost.
In a run with experts (`gap` in its case) no token's choice may be a near-tie. Without experts, a run that ranks divide
beside that of its family has `"divided": true`.

`make_reference.py --seeds RUN...` prints the first seed from the case's own on with which no choice of experts is a
near-tie.

`make_reference.py --bfloat16 RUN...` runs the first step of the models in data/RUN in bfloat16, and adds to
expect.json
    bfloat16                         its loss and gradient norm, and how many results in bfloat16 led to each

`make_reference.py --documents RUN...` trains the models in data/RUN again, with a block-causal mask and positions
that begin again in each document, and adds to expect.json
    documents                        where the stream's documents begin, and loss, gradient norm and learning rate

`make_reference.py --z-loss RUN...` trains the models in data/RUN again, with a z-loss, and adds to expect.json
    z_loss                           its coefficient, and loss, z-loss, gradient norm and learning rate

`make_reference.py --ema RUN...` trains the models in data/RUN again, with the exponential moving averages
of torch.optim.swa_utils. It leaves ema.safetensors, the averages after the last step, and adds to expect.json
    ema                              their decay

`make_reference.py --router-losses RUN...` trains the models in data/RUN again, with auxiliary losses of their
routers, computed over the whole batch of a step, and adds to expect.json
    router_losses                    coefficients, loss, gradient norm, learning rate, and the auxiliary losses

`make_reference.py --gradients RUN...` computes the gradients of the first step of the models in data/RUN in float64,
kept from transformers' casts to float32, and leaves
    gradients.json                   the loss; for each tensor of the files its norm, and its product with probe(n);
                                     the same for the output of each module, and for the output's gradient

`make_reference.py --muon RUN...` trains the models in data/RUN again with torch.optim.Muon for the matrices of
the blocks, also in float64: PyTorch's own code, kept from its cast to bfloat16. Muon's recipe is in expect.json. It
leaves muon.safetensors, the final weights, and adds to expect.json
    muon                             loss, gradient norm and learning rate
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
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

DATA = pathlib.Path(__file__).resolve().parent / "data"

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


def open_config(folder):
    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "num_mtp_layers"):
        config.num_mtp_layers = 0
    return config


def implementations(config):
    """The default way to multiply the rows of experts cannot do all types and sizes."""
    sparse = any(getattr(config, key, 0) for key in ("num_experts", "num_local_experts", "n_routed_experts"))
    return {"attn_implementation": "eager", **({"experts_implementation": "eager"} if sparse else {})}


def make_model(config, case, model=None):
    """Made-up weights, of a new model or in place of those that one has."""
    model = (model or AutoModelForCausalLM.from_config(config, **implementations(config))).float()
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
                is_norm = parameter.dim() == 1 or "_norm." in name
                parameter.copy_(1 + 0.1 * noise if is_norm else case["weight_std"] * noise)
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

    def __init__(self, model):
        self.gap, self.without, self.top_k = math.inf, 0, model.config.num_experts_per_tok
        self.hooks = []
        self.groups, self.kept = getattr(model.config, "n_group", 1), getattr(model.config, "topk_group", 1)
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
    """Makes casts of float64 to narrower types copies, as in norms, softmax and Muon."""
    NARROW = (torch.bfloat16, torch.float32)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if isinstance(args[0] if args else None, torch.Tensor) and args[0].dtype == torch.float64:
            to = kwargs.get("dtype") or next((arg for arg in args[1:] if isinstance(arg, torch.dtype)), None)
            if func is torch.Tensor.float or (func in (torch.Tensor.to, torch.Tensor.type) and to in self.NARROW):
                return args[0].clone()
            if kwargs.get("dtype") in self.NARROW:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


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
        with KeepFloat64():
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


def read(folder):
    """expect.json, its recipe, and the tokens of the run."""
    expect = json.loads((folder / "expect.json").read_text())
    tokens = numpy.frombuffer((folder / "tokens.bin").read_bytes()[1024:], numpy.uint16).astype(numpy.int64)
    return expect, expect["case"], tokens


def write(folder, expect):
    (folder / "expect.json").write_text(json.dumps(expect, indent=1) + "\n")


def find_seed(folder):
    """The first seed from the case's own on with which no choice of experts is a near-tie in any step."""
    case, config, model = json.loads((folder / "expect.json").read_text())["case"], open_config(folder), None
    count = case["steps"] * case["global_batch_size"] * case["seq_len"] + 1
    while True:
        tokens = torch.from_numpy(made_up_tokens(count, config.vocab_size, case["seed"]))
        model = make_model(config, case, model).double().train()
        routers = WatchRouters(model)
        with torch.no_grad():
            model(input_ids=tokens[:-1].view(-1, case["seq_len"]), use_cache=False)
        if routers.gap > case["gap"]:
            train(model, tokens, case)
        if routers.gap > case["gap"]:
            break
        routers.remove()
        case["seed"] += 1
    print(folder.name, "seed", case["seed"], "gap", routers.gap, "experts without tokens", routers.without, flush=True)


def make(folder):
    case, config = json.loads((folder / "expect.json").read_text())["case"], open_config(folder)
    count = case["steps"] * case["global_batch_size"] * case["seq_len"] + 1
    tokens = made_up_tokens(count, config.vocab_size, case["seed"])
    write_tokens(folder / "tokens.bin", tokens)
    model = make_model(config, case)
    model.save_pretrained(folder, safe_serialization=True)
    model = model.double().train()
    routers = WatchRouters(model) if "gap" in case else None
    seen = train(model, torch.from_numpy(tokens), case)
    if routers:
        if not routers.gap > case["gap"]:
            sys.exit(f"{folder.name}: a near-tie of {routers.gap:.2g}; take another seed")
        seen["routers"] = {"smallest_gap": routers.gap, "experts_without_tokens": routers.without}
    model.float().save_pretrained(folder / "final", safe_serialization=True)  # names and experts as in files
    (folder / "final" / "model.safetensors").rename(folder / "final.safetensors")
    shutil.rmtree(folder / "final")
    write(folder, {"case": case, **seen})
    print(folder.name, "loss", seen["loss"][0], "to", seen["loss"][-1], "norms", min(seen["grad_norm"]),
          max(seen["grad_norm"]))


def save_weights(model, path):
    final = {key: value.detach().float().contiguous() for key, value in model.named_parameters()}
    save_file(final, path, metadata={"format": "pt"})


def open_model(folder, dtype=torch.float64):
    how = implementations(AutoConfig.from_pretrained(folder))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **how).train()


def least_gradient(folder, tokens, case, offsets):
    """The smallest gradient of the first step, after clipping, that is not zero."""
    model = open_model(folder)
    train(model, tokens, {**case, "steps": 1}, offsets)
    return min(p.grad[p.grad != 0].abs().min().item() for p in model.parameters())


def add_documents(folder):
    """AdamW's first step is the sign of a gradient, unless eps is as large as it. So if a gradient is so small that
    float32 gets another one, the runs part at once: then the documents are others."""
    expect, case, tokens = read(folder)
    for seed in range(21, 60):
        random = numpy.random.default_rng(seed)
        offsets = [0]
        while offsets[-1] < len(tokens):
            offsets.append(offsets[-1] + int(random.integers(1, 60)))
        offsets[-1] = len(tokens)
        least = least_gradient(folder, torch.from_numpy(tokens), case, offsets[:-1])
        if least > 1e-7:
            break
    print(folder.name, "seed of documents", seed, "least gradient", least)
    model = open_model(folder)
    seen = train(model, torch.from_numpy(tokens), case, offsets[:-1])
    expect["documents"] = {"offsets": offsets, **seen}
    write(folder, expect)
    print(folder.name, "loss", seen["loss"][0], "to", seen["loss"][-1], "without", expect["loss"][0], "to",
          expect["loss"][-1])


def add_chat(folder):
    """The same tokens as conversations, in which turns of a few tokens are learned."""
    expect, case, tokens = read(folder)
    random = numpy.random.default_rng(22)
    offsets, learned = [0], []
    while offsets[-1] < len(tokens):
        offsets.append(min(offsets[-1] + int(random.integers(3, 40)), len(tokens)))
        while len(learned) < offsets[-1]:
            learned += [0] * int(random.integers(1, 9)) + [1] * int(random.integers(1, 9))
        del learned[offsets[-1]:]
    model = open_model(folder)
    packs = pack(tokens, offsets, learned, case["seq_len"])
    seen = train(model, torch.from_numpy(tokens), case, packs=packs)
    expect["chat"] = {"offsets": offsets, "learned": "".join(map(str, learned)), **seen}
    write(folder, expect)
    print(folder.name, len(packs[0]), "samples, loss", seen["loss"][0], "to", seen["loss"][-1])


def add_z_loss(folder, coefficient=0.02):
    """So large a coefficient that the gradients differ by far more than by roundings."""
    expect, case, tokens = read(folder)
    model = open_model(folder)
    seen = train(model, torch.from_numpy(tokens), case, z_loss=coefficient)
    expect["z_loss"] = {"coefficient": coefficient, **seen}
    write(folder, expect)
    print(folder.name, "loss", seen["loss"][0], "to", seen["loss"][-1], "z-loss", seen["z_loss"][0], "to",
          seen["z_loss"][-1], "without", expect["loss"][-1])


def add_router_losses(folder):
    """So large coefficients that the gradients differ by far more than by roundings; z is of routers with softmax."""
    expect, case, tokens = read(folder)
    model = open_model(folder)
    coefficients = {"sequence": 0.05, "global_batch": 0.2}
    if not any("e_score_correction_bias" in name for name, _ in model.named_buffers()):
        coefficients["z"] = 0.02
    gaps = WatchRouters(model)
    seen = train(model, torch.from_numpy(tokens), case, routers=RouterLosses(model, coefficients))
    if not gaps.gap > 1e-4:
        sys.exit(f"{folder.name}: a near-tie of {gaps.gap:.2g}; take other coefficients")
    expect["router_losses"] = {"coefficients": coefficients, "smallest_gap": gaps.gap, **seen}
    write(folder, expect)
    print(folder.name, "gap", gaps.gap, {key: value for key, value in seen.items() if key != "lr"}, "without",
          expect["grad_norm"])


def add_ema(folder, decay=0.8):
    """PyTorch's averages of the weights, which begin as a copy of them. Training is what it is without averages."""
    expect, case, tokens = read(folder)
    model = open_model(folder)
    averages = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    averages.update_parameters(model)  # the first update copies
    seen = train(model, torch.from_numpy(tokens), case, averages=averages)
    save_weights(averages.module, folder / "ema.safetensors")
    expect["ema"] = {"decay": decay}
    write(folder, expect)
    print(folder.name, "loss", seen["loss"][-1], "without averages", expect["loss"][-1])


def add_muon(folder):
    expect, case, tokens = read(folder)
    model = open_model(folder)
    recipe = expect["muon"]["recipe"]
    seen = train(model, torch.from_numpy(tokens), case, muon=recipe)
    save_weights(model, folder / "muon.safetensors")
    expect["muon"] = {"recipe": recipe, **seen}
    write(folder, expect)
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


def rope_frequencies(rotary):
    """As transformers computes them, but in float64."""
    rope, count = rotary.config.rope_parameters, rotary.inv_freq.numel()
    base, pair = rope["rope_theta"], torch.arange(count, dtype=torch.float64)
    plain = base ** (-pair / count)
    if rope.get("rope_type", "default") == "default":
        return plain
    if rope["rope_type"] != "yarn":
        sys.exit(f"no frequencies in float64 for {rope['rope_type']}")
    original = rope["original_max_position_embeddings"]
    low, high = (2 * count * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
                 for turns in (rope.get("beta_fast") or 32, rope.get("beta_slow") or 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * count - 1)
    ramp = ((pair - low) / (high - low)).clamp(0, 1)
    return plain / rope["factor"] * ramp + plain * (1 - ramp)


def keep_rope_wide(model):
    for module in model.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            def angles(x, position_ids, frequencies=rope_frequencies(module), scale=module.attention_scaling):
                turns = position_ids[..., None].double() * frequencies
                turns = torch.cat((turns, turns), dim=-1)
                return turns.cos() * scale, turns.sin() * scale
            module.forward = angles


def probe(count):
    return numpy.array([math.cos(0.7 * i + 0.1) for i in range(count)])


def numbers_of(x):
    return [x.norm().item(), float(x.detach().flatten().numpy() @ probe(x.numel()))]


def keep_outputs(model):
    """The outputs of modules that are tensors, by their names; backward leaves their gradients in them."""
    outputs = {}
    for name, module in model.named_modules():
        def keep(module, args, out, name=name):
            out = out[0] if isinstance(out, tuple) else out  # attention returns its weights too
            if torch.is_tensor(out) and out.requires_grad:
                out.retain_grad()
                outputs[name] = out
        module.register_forward_hook(keep)
    return outputs


def add_gradients(folder):
    expect, case, tokens = read(folder)
    length, batch = case["seq_len"], case["global_batch_size"]
    tokens = torch.from_numpy(tokens[:batch * length + 1])
    model = open_model(folder).double()  # routers too, which transformers keeps in float32
    keep_rope_wide(model)
    outputs = keep_outputs(model)
    with KeepFloat64():
        logits = model(input_ids=tokens[:-1].view(batch, length), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[1:])
        loss.backward()
    modules = {name: numbers_of(x) + numbers_of(x.grad) for name, x in outputs.items() if x.grad is not None}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    model.save_pretrained(folder / "gradients", safe_serialization=True)  # names and experts as in files
    found = load_file(folder / "gradients" / "model.safetensors")
    shutil.rmtree(folder / "gradients")
    numbers = {name: numbers_of(x) for name, x in found.items() if not name.endswith("e_score_correction_bias")}
    (folder / "gradients.json").write_text(
        json.dumps({"loss": loss.item(), "tensors": numbers, "modules": modules}, indent=0) + "\n")
    print(folder.name, "loss", loss.item(), "without float32", expect["loss"][0])


def add_bfloat16(folder):
    expect, case, tokens = read(folder)
    length, batch = case["seq_len"], case["global_batch_size"]
    tokens = torch.from_numpy(tokens[:batch * length + 1])
    model = open_model(folder, torch.bfloat16)
    with CountRoundings() as roundings:
        logits = model(input_ids=tokens[:-1].view(batch, length), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[1:])
        forward = roundings.count
        loss.backward()
    norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
    expect["bfloat16"] = {"loss": loss.item(), "grad_norm": norm,
                          "roundings": {"loss": forward, "grad_norm": roundings.count}}
    write(folder, expect)
    print(folder.name, "loss", loss.item() / expect["loss"][0] - 1, "norm", norm / expect["grad_norm"][0] - 1,
          "roundings", forward, roundings.count)


PARTS = {"--bfloat16": add_bfloat16, "--documents": add_documents, "--z-loss": add_z_loss, "--ema": add_ema,
         "--router-losses": add_router_losses, "--gradients": add_gradients, "--muon": add_muon, "--chat": add_chat,
         "--seeds": find_seed}

if __name__ == "__main__":
    wanted = sys.argv[1:]
    fn = PARTS[wanted.pop(0)] if wanted and wanted[0].startswith("--") else make
    for name in wanted:
        fn(DATA / name)
