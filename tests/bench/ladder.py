#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The ladder behind the losses that `titan new` expects: small runs, and the constants that fit them.

    tests/bench/ladder.py run --titan build/titan --runs runs.tsv --text prose=kjv.jsonl --text man=man.jsonl \\
        --work FOLDER PLAN.txt
    tests/bench/ladder.py fit runs.tsv [--table cli/new/ladder.def]
    tests/bench/ladder.py rates runs.tsv

A line of PLAN.txt is `ROLE TEXT DEPTH VOCAB TOKENS [FACTOR]`: a run of the model that `titan new` makes for the depth,
with FACTOR (1) times the learning rate of its rule. ROLE is fit, rate (only the sweep of the learning rate uses it)
or held (predicted, never fitted). Every run appends a line to runs.tsv; runs that it has already are left out, so the
command can be repeated. Texts are JSON lines with a field "text". A FOLDER keeps tokenizers and token caches.

N are the parameters that multiply: all but the embedding. D are the bytes of text that the run reads. The loss is in
nats per byte, so that vocabularies compare: the validation loss at the last step, on 2 % of the documents, which
training leaves out, times the tokens per byte of the text. `fit` minimizes Huber's loss of the difference of
logarithms (delta 1e-3, as Hoffmann et al. 2022) of

    loss = factor of the text x (E + (A / N)^alpha + (B / D)^beta)

by the simplex method from several beginnings, with two pairs of published exponents and with free ones, and compares
the held runs with their predictions. `rates` prints the
learning rate with the lowest loss of every sweep, by a parabola through the best three in the logarithm of the rate.
"""
import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import time

COLUMNS = ("role", "text", "depth", "vocab", "tokens", "batch", "factor", "lr", "n", "d", "loss", "seconds")
SEQ_LEN = 512


def dims(depth):
    """The widths that follow from a depth, as in core/models' llama3 with heads of 64."""
    dim = 64 * depth
    return dim, depth, 64 * math.ceil(8 * dim / 3 / 64)


def multiplying(depth, vocab):
    dim, _, ffn = dims(depth)
    return depth * (4 * dim * dim + 3 * dim * ffn + 2 * dim) + dim + dim * vocab


def rule_batch(tokens):
    """Sequences: a power of two near Li et al.'s batch, as in tt_rule_batch."""
    return max(1, 2 ** round(math.log2(0.58 * tokens ** 0.571 / SEQ_LEN)))


def rule_lr(n, tokens):
    """The rate of tt_rule_batch."""
    return 3.7 * n ** -0.52 * tokens ** 0.085


def titan(args, *words):
    done = subprocess.run([args.titan, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"titan {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def tokens_per_byte(args, text, path, vocab):
    """Makes the tokenizer once; returns its folder and the tokens (with BOS and EOS) per byte of the text."""
    folder = os.path.join(args.work, f"{text}-{vocab}")
    about = os.path.join(folder, "about.json")
    if not os.path.exists(about):
        titan(args, "data", "tokenizer", "--vocab", str(vocab), "--out", folder, "--force", path)
        counts = titan(args, "data", "inspect", path, "--dataset", "jsonl", "--tokenizer", folder, "--json")
        with open(about, "w") as f:
            f.write(counts)
    with open(about) as f:
        counts = json.load(f)
    return folder, counts["tokens"] / counts["bytes"]


def one_run(args, role, text, depth, vocab, tokens, factor):
    path = args.texts[text]
    folder, ratio = tokens_per_byte(args, text, path, vocab)
    dim, heads, ffn = dims(depth)
    n = multiplying(depth, vocab)
    batch = rule_batch(tokens)
    lr = factor * rule_lr(n, tokens)
    steps = max(1, round(tokens / batch / SEQ_LEN))
    out = os.path.join(args.work, "run")
    keys = {
        "job.dump_folder": out, "model.name": "llama3", "model.flavor": "debugmodel", "model.hf_assets_path": folder,
        "model.dim": dim, "model.n_layers": depth, "model.n_heads": heads, "model.n_kv_heads": heads,
        "model.head_dim": 64, "model.ffn_dim": ffn, "model.vocab_size": vocab, "model.rope_theta": 10000,
        "model.rope_scaling.factor": 1, "model.tie_embeddings": "false",
        "training.dataset": "jsonl", "training.dataset_path": path, "training.seq_len": SEQ_LEN,
        "training.local_batch_size": min(batch, 16), "training.global_batch_size": batch, "training.steps": steps,
        "training.mixed_precision_param": "bfloat16", "activation_checkpoint.mode": "none",
        "optimizer.lr": f"{lr:.6g}", "optimizer.no_decay": "[norm]", "lr_scheduler.warmup_steps": round(0.05 * steps),
        "validation.enable": "true", "validation.split": "2%", "validation.freq": steps,
        "validation.local_batch_size": 8, "metrics.log_freq": max(1, steps // 10), "dataloader.cache_dir": args.work,
        "checkpoint.enable": "false", "parallelism.threads_per_rank": args.threads,
    }
    begun = time.time()
    titan(args, "train", "--config", "builtin:defaults", "--overwrite", *(f"--{k}={v}" for k, v in keys.items()))
    loss = seconds = None
    with open(os.path.join(out, "metrics.jsonl")) as f:
        for line in f:
            record = json.loads(line)
            if record["type"] == "validate" and record["step"] == steps:
                loss = record["loss"]
            seconds = record.get("time", 0.0) - begun
    row = dict(role=role, text=text, depth=depth, vocab=vocab, tokens=steps * batch * SEQ_LEN, batch=batch * SEQ_LEN,
               factor=factor, lr=f"{lr:.6g}", n=n, d=round(steps * batch * SEQ_LEN / ratio),
               loss=f"{loss * ratio:.5f}", seconds=f"{seconds:.0f}")
    fresh = not os.path.exists(args.runs)
    with open(args.runs, "a") as f:
        if fresh:
            print(*COLUMNS, sep="\t", file=f)
        print(*(row[c] for c in COLUMNS), sep="\t", file=f)
    print(*(f"{c} {row[c]}" for c in COLUMNS), flush=True)


def read_runs(name):
    """The runs of a table, or of the table that titan compiles in; numbers as numbers."""
    with open(name) as f:
        names = f.readline().rstrip("\n").split("\t")
        rows = [dict(zip(names, line.rstrip("\n").split("\t"))) for line in f if line.strip()]
    for row in rows:
        for key in ("depth", "vocab", "tokens", "batch", "n", "d"):
            row[key] = int(row[key])
        for key in ("factor", "lr", "loss", "seconds"):
            row[key] = float(row[key])
    return rows


def run(args):
    with open(args.plan) as f:
        plan = [line.split() for line in f if line.split() and not line.startswith("#")]
    for words in plan:
        role, text, depth, vocab, tokens = words[0], words[1], int(words[2]), int(words[3]), float(words[4])
        factor = float(words[5]) if len(words) > 5 else 1.0
        done = read_runs(args.runs) if os.path.exists(args.runs) else []
        if any((r["role"], r["text"], r["depth"], r["vocab"], r["factor"]) == (role, text, depth, vocab, factor)
               and abs(r["tokens"] / tokens - 1) < 0.1 for r in done):
            continue
        one_run(args, role, text, depth, vocab, tokens, factor)


# --- the fit ---

def simplex(f, start, step=0.3, rounds=4000):
    """Nelder and Mead's method; returns the best point and its value."""
    n = len(start)
    points = [list(start)] + [[x + (step if i == j else 0.0) for j, x in enumerate(start)] for i in range(n)]
    points = [(f(p), p) for p in points]
    for _ in range(rounds):
        points.sort(key=lambda p: p[0])
        if points[-1][0] - points[0][0] < 1e-13:
            break
        center = [sum(p[1][j] for p in points[:-1]) / n for j in range(n)]

        def along(t):
            p = [c + t * (w - c) for c, w in zip(center, points[-1][1])]
            return f(p), p
        new = along(-1.0)
        if new[0] < points[0][0]:
            new = min(new, along(-2.0), key=lambda p: p[0])
        elif new[0] >= points[-2][0]:
            new = min(new, along(0.5), along(-0.5), key=lambda p: p[0])
        if new[0] < points[-1][0]:
            points[-1] = new
        else:
            points = [points[0]] + [(f(q), q) for q in
                                    ([b + 0.5 * (x - b) for b, x in zip(points[0][1], p)] for _, p in points[1:])]
    return min(points, key=lambda p: p[0])


# The exponents are those of Besiroglu et al. 2024, who fitted Hoffmann's runs again, those of Hoffmann et al. 2022, and
# free. The ladder cannot tell these apart, but they differ far beyond it.
LAWS = (("Besiroglu's exponents", (0.3478, 0.3658)), ("Hoffmann's exponents", (0.34, 0.28)), ("free exponents", None))


def predict(constants, scale, n, d):
    e, a, alpha, b, beta = constants
    return scale * (e + (a / n) ** alpha + (b / d) ** beta)


def fit_rows(rows, texts, exponents=None):
    """Constants and factors of the texts; exponents: (alpha, beta) that are not fitted."""
    def unpack(p):
        alpha, beta = exponents or (math.exp(p[-2]), math.exp(p[-1]))
        constants = (math.exp(p[0]), math.exp(p[1]), alpha, math.exp(p[2]), beta)
        return constants, dict(zip(texts, [1.0] + [math.exp(s) for s in p[3:]]))

    def cost(p):
        try:
            constants, scales = unpack(p)
            total = 0.0
            for r in rows:
                x = abs(math.log(predict(constants, scales[r["text"]], r["n"], r["d"]) / r["loss"]))
                total += 0.5 * x * x if x < 1e-3 else 1e-3 * (x - 0.5e-3)
            return total
        except (OverflowError, ValueError):
            return math.inf
    best = None
    for e, a, alpha, beta in itertools.product((0.2, 0.8), (1e2, 1e5), (0.2, 0.4), (0.3, 0.5)):
        start = [math.log(e), math.log(a), math.log(1e6)] + [0.0] * (len(texts) - 1)
        found = simplex(cost, start + ([] if exponents else [math.log(alpha), math.log(beta)]))
        found = simplex(cost, found[1], 0.1)
        if best is None or found[0] < best[0]:
            best = found
    return unpack(best[1])


def fit(args):
    rows = read_runs(args.runs)
    used = [r for r in rows if r["role"] == "fit"]
    texts = sorted({r["text"] for r in used}, key=lambda t: (-sum(r["text"] == t for r in used), t))
    worst = 0.0
    for name, exponents in LAWS:
        constants, scales = fit_rows(used, texts, exponents)
        print(name + ": E {:.4f}  A {:.4g}  alpha {:.4f}  B {:.4g}  beta {:.4f}".format(*constants))
        print("factors:", "  ".join(f"{t} {scales[t]:.3f}" for t in texts))
        for r in rows:
            if r["role"] == "rate" or r["text"] not in scales:
                continue
            p = predict(constants, scales[r["text"]], r["n"], r["d"])
            if exponents == LAWS[0][1]:
                worst = max(worst, abs(math.log(p / r["loss"])))
            print(f"{r['role']:5} {r['text']:6} depth {r['depth']}  N {r['n'] / 1e6:6.2f}M  D {r['d'] / 1e6:6.1f} MB  "
                  f"loss {r['loss']:.4f}  law {p:.4f}  {100 * (p / r['loss'] - 1):+.2f} %")
    if args.table:
        write_table(args, rows, used, texts, worst)


def write_table(args, rows, used, texts, worst):
    """Writes ladder.def: the runs, and the laws of all of them and of all but one."""
    fewer = [[r for r in used if r is not left] for left in used if sum(r["text"] == left["text"] for r in used) > 1]
    laws = [fit_rows(some, texts, exponents) for some in [used] + fewer for _, exponents in LAWS]
    with open(args.table, "w") as f:
        f.write(HEAD)
        for r in rows:
            f.write(f"TT_LADDER_RUN({r['role']}, {r['text']}, {r['depth']}, {r['vocab']}, {r['tokens']}, {r['batch']}, "
                    f"{r['lr']:.6g}, {r['n']}, {r['d']}, {r['loss']:.5f})\n")
        f.write("\n")
        for constants, scales in laws:
            code = [s for t, s in scales.items() if t == "code"]
            prose = [s for t, s in scales.items() if t != "code"]
            ends = ["{" + f"{g(prose) * w:.4f}, {g(code) * w:.4f}" + "}"
                    for g, w in ((min, math.exp(-worst)), (max, math.exp(worst)))]
            numbers = [f"{c:.6g}" for c in constants] + ends
            f.write(f"TT_LADDER_LAW({', '.join(numbers)})\n")
        f.write("\n#undef TT_LADDER_RUN\n#undef TT_LADDER_LAW\n")


HEAD = """/* SPDX-License-Identifier: MIT
 *
 * The ladder: small runs on titan, and the laws that fit them. tests/bench/ladder.py made the runs, and writes this
 * file (fit --table). BENCHMARKS.md names the machine, and says how well the laws predict runs that they have not seen.
 *
 *   TT_LADDER_RUN(role, text, depth, vocabulary, tokens, batch, lr, N, D, loss)
 *     role   fit; held: predicted only; rate: of the sweeps of learning rate and batch only
 *     batch  in tokens;  N: parameters without the embedding;  D: bytes read;  loss: validation, in nats per byte
 *   TT_LADDER_LAW(E, A, alpha, B, beta, {low}, {high})
 *     loss = s (E + (A / N)^alpha + (B / D)^beta), with s between low and high, for text and for code: the factors of
 *     the texts, widened by the largest error of the first law. Three laws fit all runs: with the exponents of
 *     Besiroglu et al. 2024, of Hoffmann et al. 2022, and free ones. The others leave a run out.
 */
#ifndef TT_LADDER_RUN
#define TT_LADDER_RUN(...)
#endif
#ifndef TT_LADDER_LAW
#define TT_LADDER_LAW(...)
#endif

"""


def rates(args):
    rows = [r for r in read_runs(args.runs) if r["role"] in ("fit", "rate")]
    groups = {}
    for r in rows:
        groups.setdefault((r["text"], r["depth"], r["tokens"]), []).append(r)
    for (text, depth, tokens), sweep in groups.items():
        if len(sweep) < 3:
            continue
        sweep.sort(key=lambda r: r["lr"])
        i = min(range(len(sweep)), key=lambda k: sweep[k]["loss"])
        best = sweep[i]["lr"]
        inside = 0 < i < len(sweep) - 1
        if inside:
            x = [math.log(sweep[k]["lr"]) for k in (i - 1, i, i + 1)]
            y = [sweep[k]["loss"] for k in (i - 1, i, i + 1)]
            s = [(y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])]
            best = math.exp((x[0] + x[1]) / 2 - s[0] * (x[2] - x[0]) / 2 / (s[1] - s[0]))
        rule = rule_lr(sweep[0]["n"], tokens)
        print(f"{text} depth {depth}, {tokens / 1e6:.1f}M tokens: best {best:.3g}{'' if inside else ' (at the edge)'}, "
              f"rule {rule:.3g}, rule / best {rule / best:.2f};  "
              + "  ".join(f"{r['lr']:.3g}: {r['loss']:.4f}" for r in sweep))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    p = verbs.add_parser("run")
    p.add_argument("plan")
    p.add_argument("--titan", required=True)
    p.add_argument("--runs", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--text", action="append", default=[], metavar="NAME=FILE")
    for verb in ("fit", "rates"):
        p = verbs.add_parser(verb)
        p.add_argument("runs")
        if verb == "fit":
            p.add_argument("--table", metavar="ladder.def", help="write the table that titan compiles in")
    args = parser.parse_args()
    if args.verb == "run":
        args.texts = dict(t.split("=", 1) for t in args.text)
    {"run": run, "fit": fit, "rates": rates}[args.verb](args)


if __name__ == "__main__":
    main()
