#!/bin/bash
# SPDX-License-Identifier: MIT Folders with weights in FP8 blocks, in MXFP4 or in bitsandbytes' formats give the same
# results as folders with the decoded values in bfloat16.
. "$(dirname "$0")/lib.sh"

golden=$TITAN_SOURCE/tests/golden/data
scripts=$(cd "$(dirname "$0")" && pwd)

# make_folders NAME METHOD: ./packed and ./plain from the folder of a golden run.
make_folders() {
    rm -rf packed plain step other exported
    python3 "$scripts/pack_weights.py" "$golden/$1" "$2" packed plain >problem.txt 2>&1 || not_as "$(cat problem.txt)"
}

case_converted_weights_are_those_of_bfloat16() {
    while read -r name method; do
        make_folders "$name" "$method"
        run ckpt convert packed step
        expect_ok
        run ckpt verify --deep step
        expect_ok
        run ckpt convert plain other
        expect_ok
        run ckpt diff step other
        expect_ok
        expect_out "^EQUAL"
        run ckpt diff packed step
        expect_ok
        expect_out "^EQUAL"
    done <<'EOF2'
llama3 nf4-f32
llama3 fp8
llama3 fp8-small
llama3_tied_scaled fp8-e8m0
qwen3 fp8-bf16
qwen3 fp8-one
qwen3_moe fp8-small
deepseek_v3 fp8-small
gpt_oss mxfp4
llama3 nf4
phi3 nf4-plain
starcoder2 int8
EOF2
}

case_the_export_is_not_quantized() {
    make_folders gpt_oss mxfp4
    run ckpt convert packed step
    run ckpt convert step exported --dtype bfloat16
    expect_ok
    ! grep quantization exported/config.json >found || not_as "config.json says: $(cat found)"
    run ckpt convert exported other
    expect_ok
}

# Ranks read parts of the tensors, and the step does not change; neither does generation.
case_runs_from_them_are_the_same() {
    for of in "deepseek_v3 fp8-small" "gpt_oss mxfp4"; do
        read -r name method <<<"$of"
        make_folders "$name" "$method"
        for folder in packed plain; do
            rm -rf "run-$folder"
            run_ranks 2 train --model.flavor=hf --model.hf_assets_path=$folder --checkpoint.initial_load_path=$folder \
                --checkpoint.initial_load_in_hf --checkpoint.enable --training.dataset=tokens \
                --training.dataset_path="$golden/$name/tokens.bin" --training.seq_len=16 --training.steps=2 \
                --training.local_batch_size=1 --job.dump_folder=run-$folder
            expect_ok
            run generate $folder --greedy --prompt_tokens 5,6,7 --max_new_tokens 8
            expect_ok
            cp out "$folder.out"
        done
        run ckpt diff run-packed/checkpoint/step-2 run-plain/checkpoint/step-2
        expect_ok
        expect_out "^EQUAL"
        cmp packed.out plain.out || not_as "other tokens"
    done
}

# In a run that keeps frozen weights packed, the blocks of a folder stay as they are: their elements are those of a run
# that unpacks them.
case_packed_weights_stay_packed() {
    sizes="--model.name=llama3 --model.flavor=debugmodel --model.n_layers=1 --model.dim=64 --model.n_heads=4
        --model.ffn_dim=128 --training.steps=1 --training.seq_len=16 --training.local_batch_size=1"
    run train $sizes --checkpoint.enable --checkpoint.last_save_in_hf --job.dump_folder=made
    expect_ok
    hf=made/checkpoint/step-1/hf
    for method in int8 nf4-qlora nf4-plain; do
        rm -rf packed plain kept unpacked
        python3 "$scripts/pack_weights.py" $hf $method packed plain >problem.txt 2>&1 || not_as "$(cat problem.txt)"
        cp $hf/tokenizer* packed/
        for of in kept unpacked; do
            base=default
            [ $of = unpacked ] || base=${method%-*}
            run train --model.flavor=hf --model.hf_assets_path=packed --checkpoint.initial_load_in_hf --lora.rank=2 \
                --lora.base_dtype=$base --checkpoint.enable --training.steps=2 --training.seq_len=16 \
                --training.local_batch_size=1 --job.dump_folder=$of
            expect_ok
            if [ $of$method = keptnf4-plain ]; then
                expect_err "in 4 bits, but not in blocks of 64 nf4 elements with double quantization: .* packed anew"
            else
                refuse_err "packed anew"
            fi
            run ckpt consolidate $of adapter-$of --adapter --force
            expect_ok
        done
        [ $method = nf4-plain ] ||
            expect_same adapter-kept/adapter_model.safetensors adapter-unpacked/adapter_model.safetensors
    done
}

# edit PYTHON: changes the tensors t of packed/model.safetensors: name -> [dtype, shape, bytes].
edit() {
    python3 - "$1" <<'EOF2' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, struct, sys
data = open("packed/model.safetensors", "rb").read()
size = struct.unpack("<Q", data[:8])[0]
t = {name: [e["dtype"], e["shape"], data[8 + size + e["data_offsets"][0] : 8 + size + e["data_offsets"][1]]]
     for name, e in json.loads(data[8 : 8 + size]).items()}
exec(sys.argv[1])
header, at = {}, 0
for name, (dtype, shape, data) in t.items():
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
    at += len(data)
text = json.dumps(header).encode()
with open("packed/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in t.values()))
EOF2
}

case_elements_and_scales_that_do_not_belong_together_are_refused() {
    q=model.layers.1.self_attn.q_proj.weight
    down=model.layers.0.mlp.experts.down_proj
    while IFS='|' read -r method change message; do
        make_folders "$([ "$method" = mxfp4 ] && echo gpt_oss || echo llama3)" "$method"
        edit "$change"
        run ckpt convert packed step
        expect_error 3 "$message"
        refuse_file step
    done <<EOF2
fp8|del t["${q}_scale_inv"]|lack tensor '${q}_scale_inv'
fp8|t["${q}_scale_inv"] = ["F32", [2, 1], bytes(8)]|'$q' is F8_E4M3 .*are F32 .0:2, 0:1.; wanted .* block of 128 by 128
fp8|t["${q}_scale_inv"][0] = "I32"|scales '${q}_scale_inv' are I32
fp8|t["$q"][0] = "I8"|'$q' is I8, but there are scales for it
mxfp4|del t["${down}_scales"]|lack tensor '${down}_scales'
mxfp4|t["${down}_scales"][0] = "I8"|wanted 16 bytes in the last dimension
nf4|del t["${q}.nested_absmax"]|lack tensor '${q}.nested_absmax'
nf4|del t["${q}.quant_state.bitsandbytes__nf4"]|tables other than nf4 and fp4 are not supported
nf4|t["$q"][0] = "I8"|'$q' is I8 .*; wanted two elements of its matrix in each byte
nf4|t["$q"][1] = [1, 7]; t["$q"][2] = bytes(7)|'$q' is U8 .*; wanted two elements of its matrix in each byte
nf4|t["${q}.absmax"] = t["${q}.quant_map"]|'${q}.absmax' is F32 .*; wanted [0-9]* elements of U8
int8|t["${q%weight}SCB"] = ["F32", [2], bytes(8)]|SCB' is F32 .*; wanted a float for each row
EOF2
}

case_other_quantizations_say_what_converts_them() {
    make_folders llama3 fp8
    for method in gptq awq compressed-tensors; do
        cp packed/config.json config.json
        sed -i "s/\"quant_method\": \"fp8\"/\"quant_method\": \"$method\"/" packed/config.json
        run ckpt convert packed step
        expect_error 3 "quant_method '$method' is not supported" "python3 -c "
        cp config.json packed/config.json
    done
}

run_cases
