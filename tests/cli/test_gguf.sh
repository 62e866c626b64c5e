#!/bin/bash
# SPDX-License-Identifier: MIT GGUF files: `ckpt consolidate --format gguf`, and the commands that read them (generate,
# train, ckpt inspect, verify, convert), for the models of the golden runs. test_interop.sh compares with llama.cpp.
. "$(dirname "$0")/lib.sh"

golden=$TITAN_SOURCE/tests/golden/data

# make_step NAME: makes a checkpoint, step/, from the Hugging Face folder of a golden run, with a tokenizer of its
# vocabulary.
make_step() {
    rm -rf hf step
    mkdir hf
    cp "$golden/$1"/{config.json,generation_config.json,model.safetensors} hf/
    chmod u+w hf/*
    # YaRN, the scale of scores and the layers without RoPE as in llama.cpp
    sed -i 's/"mscale": .*,/"mscale": 0.7,/; s/"beta_fast": .*,/"beta_fast": 32.0,/; s/"beta_slow": .*,/"beta_slow": 1.0,/
        s/"attention_factor": .*,/"attention_factor": null,/
        s/"query_pre_attn_scalar": .*,/"query_pre_attn_scalar": 12,/' hf/config.json
    python3 - hf/config.json <<'EOF'
import json, sys
config = json.load(open(sys.argv[1]))
if "no_rope_layers" in config:
    config["no_rope_layers"] = [int((l + 1) % 4 != 0) for l in range(config["num_hidden_layers"])]
if config["model_type"] == "gemma3_text":
    config["layer_types"] = ["sliding_attention"] * len(config["layer_types"])
json.dump(config, open(sys.argv[1], "w"))
EOF
    run ckpt convert hf step
    expect_ok
}

case_weights_come_back_the_same() {
    for name in $(ls "$golden"); do
        make_step $name
        rm -rf again x.gguf
        run ckpt consolidate step x.gguf --format gguf
        case $name in
        *_dense | *_sparse | qwen2_moe) # some layers without experts
            expect_error 3 "llama.cpp cannot run this .* model: all its layers have experts"
            continue
            ;;
        esac
        if [ ! -e x.gguf ]; then # a family for which titan writes no such files, or that llama.cpp computes otherwise
            expect_error 3 "titan writes no GGUF files of|llama.cpp cannot run this"
            ! grep -q "cannot run" err || echo "$name" >>refused.txt
            continue
        fi
        expect_ok
        run ckpt verify --deep x.gguf
        expect_ok
        run ckpt convert x.gguf again
        expect_ok
        refuse_err "another program"
        case $name in
        gemma*) # norms, which are 1 + w in the file, are rounded once
            run ckpt diff step again --atol 1.2e-7
            expect_ok
            rm -rf step x.gguf
            mv again step
            run ckpt consolidate step x.gguf --format gguf
            run ckpt convert x.gguf again
            expect_ok
            ;;
        esac
        run ckpt diff step again
        expect_ok
        expect_out "^EQUAL"
        run ckpt diff x.gguf step # under titan's names
        expect_ok
        expect_out "^EQUAL"
    done
    printf '%s\n' cohere2_one cohere2_plus ernie4_5 gemma gpt_neox_sequential olmoe_moe seed_oss_biased >wanted.txt
    expect_same wanted.txt refused.txt
}

# Blocks of a quantized tensor are bytes in the file, not numbers to compare or to average.
case_blocks_are_never_taken_for_numbers() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    run ckpt consolidate run x.gguf --format gguf --type q8_0
    expect_ok
    run ckpt consolidate run y.gguf --format gguf --type q4_0
    expect_ok
    for target in "consolidate x.gguf new" "consolidate x.gguf new --format dcp" "average x.gguf y.gguf --out new" \
        "average run x.gguf --out new" "consolidate x.gguf new --format hf"; do
        run ckpt $target
        expect_error 2 "'x.gguf' is already a GGUF file" "help: titan ckpt convert"
        refuse_file new
    done
    run ckpt diff x.gguf y.gguf --json
    expect_code 1
    expect_json 'assert not found["only_a"] and not found["only_b"], found
names = {t["name"]: t for t in found["different"]}
assert "layers.0.attention.wq.weight" in names and "norm.weight" not in names and "output.weight" not in names, names
assert names["layers.0.attention.wq.weight"]["why"] == "values", names'
    run ckpt diff x.gguf run --atol 0.03
    expect_ok
}

# Prints the tokens of the JSON in out.
tokens() {
    python3 -c 'import json; print(json.load(open("out"))["tokens"])'
}

# Blocks stay as they are in the file; the elements are the same, so in float32 the text is that of unpacked matrices.
# Matrices that are converted while they are loaded have the blocks of the exported file.
case_blocks_are_generated_from_as_they_are() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    run ckpt consolidate run hf --format hf
    expect_ok
    for type in q4_0 q8_0; do
        run ckpt consolidate run x.gguf --format gguf --type $type
        expect_ok
        for dtype in float32 bfloat16; do
            ask="--prompt-tokens 5,17,3,29,11,2,40 --greedy --max-new-tokens 24 --ignore-eos --json --dtype $dtype"
            run generate x.gguf $ask --threads 2
            expect_ok
            expect_json "assert found['weights']['$type'] >= 14 and 'unpacked' not in found['weights'], found['weights']
assert found['memory_bytes'] > 0"
            tokens >found.txt
            for of in hf run; do
                run generate $of $ask --weights $type
                expect_ok
                tokens >converted.txt
                expect_same found.txt converted.txt
            done
            run generate x.gguf $ask --weights unpacked
            expect_json "assert list(found['weights']) == ['unpacked'], found['weights']"
            tokens >unpacked.txt
            [ $dtype = bfloat16 ] || expect_same found.txt unpacked.txt
        done
        run eval x.gguf --dataset text --dataset_path corpus.txt --seq_len 32 --json
        expect_ok
        cp out packed.json
        run eval x.gguf --dataset text --dataset_path corpus.txt --seq_len 32 --json --weights unpacked
        expect_json "
packed = json.load(open('packed.json'))
assert packed['weights']['$type'] >= 13 and packed['loss'] == found['loss'], (packed, found)"
        rm x.gguf
    done
}

# Loading converts the matrices of titan's own checkpoints too, on any number of ranks. What they hold in bfloat16 stays
# as it is, and adapters are not packed.
case_matrices_of_checkpoints_are_converted_while_they_are_loaded() {
    make_corpus
    run train $tiny --checkpoint.enable --training.dtype=bfloat16 --training.mixed_precision_param=bfloat16 \
        --ema.decay=0.5
    expect_ok
    run ckpt consolidate run hf --format hf
    expect_ok
    run ckpt consolidate run whole
    expect_ok
    text="--dataset text --dataset_path corpus.txt --seq_len 32 --json"
    while read -r ranks path type more; do
        run eval hf $text --weights $type
        expect_ok
        cp out hf.json
        run_ranks "$ranks" eval "$path" $text --weights $type $more
        expect_ok
        expect_json "
hf, kind = json.load(open('hf.json')), {'stored': 'bfloat16'}.get('$type', '$type')
assert found['weights'] == hf['weights'] and found['weights'][kind] >= 13, found['weights']
assert abs(found['loss'] - hf['loss']) <= ('tensor' in '$more') * 1e-6, (found, hf)"
    done <<'EOF2'
1 run stored
2 run nf4
2 whole int8 --parallelism.data_parallel_replicate_degree=2
2 whole unpacked --parallelism.tensor_parallel_degree=2
EOF2
    run eval run $text --ema --weights q4_0
    expect_ok
    run_ranks 2 eval run $text --weights nf4 --parallelism.tensor_parallel_degree=2
    expect_error 2 "--weights nf4 needs whole rows, which tensor parallelism cuts"
    run train $tiny --checkpoint.enable --job.dump_folder=adapted --lora.rank=32
    expect_ok
    run generate adapted --prompt And --max-new-tokens 2 --weights q8_0 --json
    expect_ok
    expect_json "assert found['weights']['q8_0'] == 16 and found['weights']['unpacked'] >= 8, found['weights']"
}

# A file made from a run with the built-in tokenizer is enough to generate and to train; its tokens are the run's.
case_a_file_is_enough_to_generate_and_to_train() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    run ckpt consolidate run own.gguf --format gguf
    expect_ok
    expect_out "^run/checkpoint/step-3 -> own.gguf: 22 tensors, 1 file, "
    expect_file own.gguf
    run generate run --prompt "And the evening" --greedy --max-new-tokens 12 --json
    expect_ok
    python3 -c 'import json; print(json.load(open("out"))["tokens"])' >wanted.txt
    run generate own.gguf --prompt "And the evening" --greedy --max-new-tokens 12 --json
    expect_ok
    python3 -c 'import json; print(json.load(open("out"))["tokens"])' >found.txt
    expect_same wanted.txt found.txt
    # sizes and tokenizer are the file's; the first step does not change the weights
    run train $more --job.dump_folder=next --checkpoint.initial_load_path=own.gguf
    expect_ok
    expect_err "model and tokenizer from checkpoint.initial_load_path"
    expect_err "weights  from own.gguf"
    run ckpt consolidate run weights
    expect_ok
    run ckpt consolidate next others
    expect_ok
    run ckpt diff weights others
    expect_ok
    expect_out "^EQUAL"
    # training from a file keeps its tokenizer, so the result can become a file again
    run ckpt consolidate next own2.gguf --format gguf
    expect_ok
    run_ranks 2 train $more --job.dump_folder=two --checkpoint.initial_load_path=own2.gguf
    expect_ok
}
more="--training.seq_len=32 --training.local_batch_size=2 --training.global_batch_size=4 --training.steps=1
    --optimizer.lr=0 --metrics.log_freq=1 --metrics.peak_flops=1e9 --dataloader.cache_dir=cache --training.dataset=text
    --training.dataset_path=corpus.txt --checkpoint.enable --lr_scheduler.warmup_steps=1"

# The errors of each type are bounded, and its file has the right size.
case_types_are_as_exact_as_they_can_be() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    for type in f32 f16 bf16 q8_0 q4_0; do
        rm -rf back
        run ckpt consolidate run $type.gguf --format gguf --type $type
        expect_ok
        run ckpt convert $type.gguf back
        expect_ok
        python3 - $type back <<'EOF2' >problem.txt 2>&1 || not_as "$type: $(cat problem.txt)"
import array, glob, json, os, struct, sys
def load(folder):
    tensors = {}
    for path in glob.glob(folder + "/**/*.safetensors", recursive=True):
        data = open(path, "rb").read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__" and not name.startswith("state."):
                begin, end = (8 + size + at for at in entry["data_offsets"])
                part = data[begin:end]
                if entry["dtype"] == "F32":
                    tensors[name] = array.array("f", part)
                elif entry["dtype"] == "BF16":
                    tensors[name] = array.array("f", b"".join(b"\0\0" + part[i : i + 2]
                                                             for i in range(0, len(part), 2)))
                else:
                    tensors[name] = array.array("f", struct.unpack(f"<{len(part) // 2}e", part))
    return tensors
kind = sys.argv[1]
a, b = load("run/checkpoint/step-3/model"), load(sys.argv[2])
most = {"f32": 0.0, "f16": 2**-11, "bf16": 2**-8, "q8_0": 0.57 / 127, "q4_0": 1.02 / 8}[kind]
assert a and a.keys() == b.keys()
for name in a:
    narrow = "norm" not in name
    bound = most if narrow else 0.0
    if kind == "q4_0" and name == "output.weight":
        bound = 0.57 / 127
    for i in range(0, len(a[name]), 32):
        block, other = a[name][i : i + 32], b[name][i : i + 32]
        largest = max(map(abs, block))
        for x, y in zip(block, other):
            scale = abs(x) if kind in ("f16", "bf16") else largest
            assert abs(x - y) <= bound * scale + (2**-25 if kind == "f16" and narrow else 0) , (name, i, x, y)
n = sum(len(t) for name, t in a.items() if "norm" not in name)
bits = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q4_0": 4.5}[kind]
size, out = os.path.getsize(kind + ".gguf"), len(a["output.weight"]) * (4 if kind == "q4_0" else 0) / 8
assert 0 <= size - n * bits / 8 - out < 240000, (size, n * bits / 8 + out)
EOF2
    done
}

case_mistakes_are_named() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    run ckpt consolidate run model --format gguf
    expect_error 2 "writes one file, and 'model' does not end in .gguf" "help: name the file, such as model.gguf"
    run ckpt consolidate run . --format gguf
    expect_error 2 "'.' is a folder" "such as ./model.gguf"
    run ckpt consolidate run x.gguf --format gguf --dtype float32
    expect_error 2 "takes --type, not --dtype"
    run ckpt consolidate run x.gguf --format gguf --max-shard-size 1MiB
    expect_error 2 "--max-shard-size has no meaning"
    run ckpt consolidate run x.gguf --format gguf --type q8
    expect_error 2 "no type 'q8'" "f32, f16, bf16, q8_0 or q4_0"
    run ckpt consolidate run x --type q8_0
    expect_error 2 "--type belongs to --format gguf"
    refuse_file x.gguf
    run ckpt consolidate run x.gguf --format gguf
    expect_ok
    run ckpt consolidate run x.gguf --format gguf
    expect_error 2 "'x.gguf' exists" "help: --force replaces it"
    run ckpt consolidate run x.gguf --format gguf --force --type f16
    expect_ok
    printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' >theirs.gguf
    run ckpt consolidate run theirs.gguf --format gguf --force
    expect_error 2 "'theirs.gguf' is not a GGUF file of titan's: --force will not replace it"
    run ckpt consolidate x.gguf y.gguf --format gguf
    expect_error 2 "'x.gguf' is already a GGUF file" "help: titan ckpt convert"
    # the name of a folder may end like this too
    run ckpt consolidate run folder.gguf
    expect_ok
    run generate folder.gguf --prompt And --max-new-tokens 2
    expect_ok
    run ckpt consolidate run folder.gguf --format gguf --force
    expect_error 2 "'folder.gguf' is a folder"
    [ -z "$(ls -A | grep tmp)" ] || not_as "temporary files: $(ls -A)"
}

# Other programs copy all metadata of a file: llama-quantize writes other tensors, with the checksums of the old ones.
case_a_file_that_another_program_made_of_it_is_good() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    run ckpt consolidate run x.gguf --format gguf --type f32
    expect_ok
    python3 - x.gguf theirs.gguf <<'EOF2' || not_as "cannot be rewritten"
import struct, sys
data = open(sys.argv[1], "rb").read()
at = 8
def number(form):
    global at
    value, = struct.unpack_from("<" + form, data, at)
    at += struct.calcsize(form)
    return value
def skip(kind):
    global at
    if kind == 8:
        size = number("Q")
        at += size
    elif kind == 9:
        item, n = number("I"), number("Q")
        for _ in range(n):
            skip(item)
    else:
        at += (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)[kind]
n_tensors, n_values = number("Q"), number("Q")
for _ in range(n_values):
    size = number("Q")
    at += size
    skip(number("I"))
values, tensors = data[24:at], []
for _ in range(n_tensors):
    size = number("Q")
    name, at = data[at : at + size], at + size
    shape = [number("Q") for _ in range(number("I"))]
    tensors.append((name, shape, number("I"), number("Q")))
start, infos, body = (at + 31) // 32 * 32, b"", b""
for name, shape, kind, offset in tensors:
    n = 1
    for size in shape:
        n *= size
    part = data[start + offset : start + offset + 4 * n]
    if len(shape) > 1: # float16
        part, kind = struct.pack(f"<{n}e", *struct.unpack(f"<{n}f", part)), 1
    infos += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    infos += struct.pack("<IQ", kind, len(body))
    body += part + bytes(-len(part) % 32)
head = data[:8] + struct.pack("<QQ", n_tensors, n_values) + values + infos
open(sys.argv[2], "wb").write(head + bytes(-len(head) % 32) + body)
EOF2
    run ckpt verify theirs.gguf
    expect_ok
    run ckpt diff theirs.gguf run --atol 0.003
    expect_ok
    run generate theirs.gguf --prompt And --max-new-tokens 2
    expect_ok
    run ckpt consolidate run theirs.gguf --format gguf --force
    expect_error 2 "'theirs.gguf' is not a GGUF file of titan's"
}

# generation_config.json may name one token that the tokenizer lacks, or a list.
case_the_token_that_ends_an_answer_is_in_the_file() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    run ckpt consolidate run hf --format hf
    expect_ok
    for ids in 7 "[7, 8]"; do
        rm -rf base x.gguf
        echo "{\"eos_token_id\": $ids}" >hf/generation_config.json
        run ckpt convert hf base
        expect_ok
        run ckpt consolidate base x.gguf --format gguf
        expect_ok
        python3 - <<'EOF2' || not_as "$ids: no eot_token_id of 7"
import struct
data = open("x.gguf", "rb").read()
key = b"tokenizer.ggml.eot_token_id"
at = data.index(key) + len(key)
assert struct.unpack_from("<II", data, at) == (4, 7)
EOF2
    done
}

case_numbers_that_a_type_cannot_hold_are_refused() {
    make_step llama3
    for value in 9e8 nan; do
        python3 - $value <<'EOF2' || not_as "cannot be written"
import json, struct, sys
data = bytearray(open("hf/model.safetensors", "rb").read())
size, = struct.unpack_from("<Q", data)
entry = json.loads(data[8 : 8 + size])["model.layers.0.self_attn.v_proj.weight"]
assert entry["dtype"] == "F32"
struct.pack_into("<f", data, 8 + size + entry["data_offsets"][0], float(sys.argv[1]))
open("hf/model.safetensors", "wb").write(data)
EOF2
        rm -rf step
        run ckpt convert hf step
        expect_ok
        for type in q8_0 q4_0; do
            run ckpt consolidate step x.gguf --format gguf --type $type
            expect_error 3 "has .*, which (Q8_0|Q4_0|float16) cannot hold"
            refuse_file x.gguf
        done
    done
}

case_damaged_files_are_named() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    run ckpt consolidate run x.gguf --format gguf
    expect_ok
    head -c 700000 x.gguf >cut.gguf
    run generate cut.gguf --prompt x
    expect_error 3 "'cut.gguf' is truncated: it has 700000 bytes" "help: copy or download the file again"
    run train --checkpoint.initial_load_path=cut.gguf --job.dump_folder=no
    expect_code 2
    expect_err "'cut.gguf' is truncated"
    head -c 2000 x.gguf >cut.gguf
    run ckpt verify cut.gguf
    expect_bad "does not end within them"
    cp x.gguf bad.gguf
    printf '\1\2' | dd of=bad.gguf bs=1 seek=900000 conv=notrunc 2>/dev/null
    run ckpt verify bad.gguf
    expect_bad "'bad.gguf' is damaged: tensor 'blk.*has checksum"
    # a value that no size is: whoever changed it, titan says so
    python3 -c 'data = bytearray(open("x.gguf", "rb").read())
data[data.index(b"model", data.index(b"general.type"))] ^= 1
open("bad.gguf", "wb").write(data)'
    run ckpt verify bad.gguf
    expect_bad "the values .* have checksum .*: another program changed them, or the file is damaged"
    run generate bad.gguf --prompt And --max-new-tokens 2
    expect_ok
    expect_err "'bad.gguf': the values .* another program changed them"
    echo hello >text.gguf
    run generate text.gguf --prompt x
    expect_error 3 "'text.gguf' is not a GGUF file"
    run generate none.gguf --prompt x
    expect_error 3 "no checkpoint at 'none.gguf'"
    # every place of the header with another byte: a message or a result, never a signal
    for at in $(seq 4 97 2600); do
        cp x.gguf bad.gguf
        printf '\377' | dd of=bad.gguf bs=1 seek=$at conv=notrunc 2>/dev/null
        run ckpt inspect bad.gguf
        [ $code = 0 ] || [ $code = 3 ] || not_as "byte $at"
    done
}

# A type that titan does not read, and a shape that is not the model's: every command says so, once.
case_tensors_that_do_not_fit_are_named_by_every_command() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    run ckpt consolidate run x.gguf --format gguf --type q8_0
    expect_ok
    python3 - <<'EOF2' || not_as "cannot be edited"
import struct
def edit(path, tensor, change):
    data = bytearray(open("x.gguf", "rb").read())
    at = data.index(tensor) + len(tensor)
    n, = struct.unpack_from("<I", data, at)
    shape = struct.unpack_from(f"<{n}Q", data, at + 4)
    shape, kind = change(shape, *struct.unpack_from("<I", data, at + 4 + 8 * n))
    struct.pack_into(f"<{n}QI", data, at + 4, *shape, kind)
    open(path, "wb").write(data)
edit("type.gguf", b"blk.0.attn_q.weight", lambda shape, kind: (shape, 14))
edit("shape.gguf", b"blk.1.ffn_gate.weight", lambda shape, kind: (shape[::-1], kind))
EOF2
    more="--training.seq_len=32 --training.local_batch_size=2 --training.steps=1 --dataloader.cache_dir=cache
        --training.dataset=text --training.dataset_path=corpus.txt --job.dump_folder=no"
    while IFS='|' read -r file code message help; do
        run generate $file.gguf --prompt x
        expect_error 3 "$message" "$help"
        run eval $file.gguf --dataset text --dataset_path corpus.txt --seq_len 32 --weights q4_0
        expect_error 3 "$message" "$help"
        run train $more --checkpoint.initial_load_path=$file.gguf
        expect_error $code "$message" "$help"
        run train $more --model.flavor=hf --model.hf_assets_path=$file.gguf --checkpoint.initial_load_in_hf \
            --lora.rank=2 --lora.base_dtype=q8_0
        expect_error $code "$message" "$help"
    done <<'EOF2'
type|2|'type.gguf': tensor 'blk.0.attn_q.weight' is Q6_K; titan reads F32, F16, BF16, Q8_0 and Q4_0|help: take the file
shape|3|'shape.gguf': tensor 'blk.1.ffn_gate.weight' is .0:64, 0:128., wanted .0:128, 0:64. for|help: the sizes in the
EOF2
}

run_cases
