# SPDX-License-Identifier: MIT
"""A training job of some tens of milliseconds, for campaigns that run it thousands of times.

It tokenizes a text of its own with a tokenizer of its own, trains four steps, saves after each, keeps two, writes
TensorBoard events and a trace, and exports for Hugging Face. This file makes its inputs, runs it, and lists what is
wrong with the folder that a run left. Python's standard library only.
"""
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

STEPS = 4
HANG_SECONDS = 120

# Byte-level tokenizers spell bytes that are not printable as these characters.
PRINTABLE = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))

CONFIG = """model:
  flavor: debugmodel
  dim: 16
  n_layers: 1
  n_heads: 2
  n_kv_heads: 1
  ffn_dim: 16
  vocab_size: 258
  hf_assets_path: ../inputs/tokenizer
training:
  dataset: text
  dataset_path: ../inputs/text
  seq_len: 16
  local_batch_size: 1
  global_batch_size: 12
  steps: 4
dataloader:
  cache_dir: cache
lr_scheduler:
  warmup_steps: 1
  total_steps: 4
checkpoint:
  enable: true
  interval: 1
  keep_latest_k: 2
metrics:
  log_freq: 1
  peak_flops: 1e9
parallelism:
  threads_per_rank: 1
comm:
  init_timeout_seconds: 60
  train_timeout_seconds: 60
job:
  dump_folder: run
"""


def byte_names():
    spare = 256
    for byte in range(256):
        if byte in PRINTABLE:
            yield chr(byte)
        else:
            yield chr(spare)
            spare += 1


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def make_inputs(folder):
    """The text, the tokenizer and the configuration."""
    specials = ["<|begin|>", "<|end|>"]
    vocab = {name: i for i, name in enumerate(specials + list(byte_names()))}
    added = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, name in enumerate(specials)]
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                   "use_regex": True},
                 "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True,
                                                     "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                           "vocab": vocab, "merges": []}}
    write(folder + "/tokenizer/tokenizer.json", json.dumps(tokenizer))
    write(folder + "/tokenizer/tokenizer_config.json",
          json.dumps({"bos_token": specials[0], "eos_token": specials[1],
                      "tokenizer_class": "PreTrainedTokenizerFast"}))
    for name in "ab":
        write(f"{folder}/text/{name}.txt", "".join(f"The evening and the morning were day {i}{name}.\n"
                                                   for i in range(20)))
    write(folder + "/config.yaml", CONFIG)


def settings():
    """The environment of every run: tools/mpi-env's variables, and an MPI that reads no other process's memory."""
    env = dict(os.environ)
    text = subprocess.run([". " + os.environ["TITAN_SOURCE"] + "/tools/mpi-env; env -0"], shell=True, check=True,
                          capture_output=True).stdout.decode()
    env.update(line.split("=", 1) for line in text.split("\0") if line.startswith("OMPI_"))
    env.update({"OMPI_MCA_btl_vader_single_copy_mechanism": "none", "LC_ALL": "C.UTF-8"})
    return env


def copy_program(build, folder):
    """Copies titan, so that a build in the meantime does not change it. None if a sanitizer must be loaded first."""
    linked = subprocess.run(["ldd", build + "/titan"], check=True, capture_output=True).stdout
    return None if b"libasan" in linked or b"libtsan" in linked else shutil.copy(build + "/titan", folder)


def fast_folder():
    """A file system in memory makes a case ten times as fast, since nothing waits for a disk."""
    try:
        return "/dev/shm" if shutil.disk_usage("/dev/shm").free > 1 << 30 else None
    except OSError:
        return None


def print_report(title, text, failed, options):
    """Writes a campaign's findings to standard output, as TAP if asked for, and to a file if there is one. Returns the
    exit code."""
    if options.report:
        with open(options.report, "w", encoding="utf-8") as file:
            file.write(text)
    if options.tap:
        text = f"1..1\n{'not ok' if failed else 'ok'} 1 - {title}\n" + "".join(f"# {line}\n"
            for line in text.splitlines())
    print(text, end="")
    return 1 if failed else 0


def descendants(pid):
    """pid and every process below it, as far as they can be seen."""
    found, parents = [pid], {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="latin-1") as file:
                    parents.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
            except (OSError, IndexError, ValueError):
                pass
    for parent in found:
        found.extend(parents.get(parent, []))
    return found


def kill_tree(pid):
    for process in reversed(descendants(pid)):
        try:
            os.kill(process, signal.SIGKILL)
        except OSError:
            pass


class Result:
    def __init__(self, code, out, err, hung, seconds):
        self.code, self.out, self.err, self.hung, self.seconds = code, out, err, hung, seconds

    def errors(self):
        return [line for line in self.err.splitlines() if line.startswith("titan: error:")]

    def shown(self):
        return f"exit {self.code}{' (hung)' if self.hung else ''}\n{self.err[-3000:]}"


def command(titan, ranks, arguments, env=()):
    """The command line. env comes between mpirun and titan, so that only ranks are preloaded."""
    start = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    return start + (["env", *env] if env else []) + [titan, *arguments]


def run(arguments, folder, environment, limit=HANG_SECONDS):
    """Runs a command in a folder and returns its Result. A command that hangs is killed with all its children."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(arguments, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=err,
                                 start_new_session=True)
        hung = False
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            hung = True
            kill_tree(child.pid)
            code = child.wait()
        out.seek(0)
        err.seek(0)
        return Result(code, out.read().decode(errors="replace"), err.read().decode(errors="replace"), hung,
                      time.monotonic() - began)


def files_of(folder):
    """Path below folder -> digest of the bytes, for every file."""
    found = {}
    for at, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(at, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = hashlib.sha256(file.read()).hexdigest()
    return found


def step_of(folder):
    """The data that must be equal in two saves of one step: the bytes of every file, and of the manifest the parts that
    describe the step. A hidden folder there is an unfinished export."""
    files = {path: digest for path, digest in files_of(folder).items() if not path.startswith(".")}
    if "manifest.json" in files:
        try:
            with open(folder + "/manifest.json", encoding="utf-8") as file:
                manifest = json.load(file)
            files["manifest.json"] = repr((manifest["step"], manifest["sample_cursor"], manifest["optimizer_step"],
                                           sorted((name, t["digest"]) for name, t in manifest["tensors"].items())))
        except (ValueError, KeyError, TypeError) as error:
            files["manifest.json"] = f"not a manifest: {error}"
    return files


def without_export(files):
    return {path: digest for path, digest in files.items() if not path.startswith("hf/")}


def steps_in(run_folder):
    """Number -> path of every published step of a run."""
    folder = run_folder + "/checkpoint"
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {int(name[5:]): folder + "/" + name for name in names if re.fullmatch(r"step-\d+", name)}


def losses_of(run_folder):
    """Step -> loss and gradient norm of its last record; and the lines that are not JSON."""
    losses, torn = {}, []
    path = run_folder + "/metrics.jsonl"
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    torn.append(line[:60])
                    continue
                if record.get("type") == "step":
                    losses[record["step"]] = (record["loss"], record["grad_norm"])
    return losses, torn


class Reference:
    """The result of an undisturbed run: the files of every step, losses, and the names that are left at the end."""

    def __init__(self, run_folder):
        self.steps = {number: step_of(path) for number, path in steps_in(run_folder).items()}
        self.losses = losses_of(run_folder)[0]

    def wrong_step(self, number, path, export):
        """Why the step differs from the reference's, or None. Without export its hf folder may be missing."""
        found, wanted = step_of(path), self.steps.get(number)
        if wanted is None:
            return f"step-{number} was never saved"
        if not export and not any(name.startswith("hf/") for name in found):
            wanted = without_export(wanted)
        if found == wanted:
            return None
        names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        return f"step-{number} differs in {', '.join(names[:4])}"

    def wrong_steps(self, run_folder):
        for number, path in sorted(steps_in(run_folder).items()):
            wrong = self.wrong_step(number, path, False)
            if wrong:
                yield wrong

    def wrong_end(self, run_folder, every_record=True):
        """What is wrong with a complete run."""
        found = steps_in(run_folder)
        wrong = self.wrong_step(STEPS, found[STEPS], True) if STEPS in found else f"step-{STEPS} is missing"
        if wrong:
            yield wrong
        losses, torn = losses_of(run_folder)
        if torn:
            yield f"metrics.jsonl has a torn line: {torn[0]}"
        for step, values in self.losses.items():
            if losses.get(step, values) != values:
                yield f"metrics.jsonl: step {step} has other values"
            elif step not in losses and every_record:
                yield f"metrics.jsonl: no record of step {step}"


def leftovers(folder):
    """Names in a job's folder that a finished run must not leave."""
    for at, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.relpath(os.path.join(at, name), folder)
            if name == ".lock":
                continue
            if name.startswith(".") or ".tmp" in name or "trash" in name:
                yield path
            elif os.path.dirname(path) == "run/checkpoint" and not re.fullmatch(r"step-\d+", name):
                yield path


def clear(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
