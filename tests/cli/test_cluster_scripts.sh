#!/bin/bash
# SPDX-License-Identifier: MIT estimate --megatron: scripts that start a training; titan reads them without running
# them.
. "$(dirname "$0")/lib.sh"

# check_json FILE 'PYTHON EXPRESSION'...: each is true for the JSON of FILE, `o`; j is its first job.
check_json() {
    python3 - "$@" <<'EOF_PYTHON' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, sys
o = json.load(open(sys.argv[1]))
j = o["jobs"][0]
def other(name):
    return json.load(open(name + ".json"))["jobs"][0]
for expression in sys.argv[2:]:
    assert eval(expression), expression
EOF_PYTHON
}

# Scripts are read and not run, but titan evaluates the values that they give to variables.
case_scripts_of_megatron_may_have_variables() {
    cat >pretrain.sh <<'END'
TP_SIZE=${TP_SIZE:-2}
NUM_LAYERS=24   # of GPT
LAYERS=$NUM_LAYERS
ARGS="--num-layers ${LAYERS} --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --merge-file $MERGES
      --tensor-model-parallel-size $TP_SIZE --micro-batch-size ${1:-4} --global-batch-size 512 --bf16"
if true; then ARGS="$ARGS --no-rope-fusion"
fi
END
    run estimate --machine h100-sxm --ranks 16 --megatron pretrain.sh --json
    expect_ok
    check_json out 'j["layout"]["tp"] == 2 and j["layout"]["micro_batch"] == 4' \
        'abs(j["run"]["checkpoint_bytes"] / 12 / (24 * 12 * 2048**2 + 50432 * 2048) - 1) < 0.01' \
        'o["not_counted"][0]["key"] == "--no-rope-fusion" and o["not_counted"][0]["value"] == ""'
}

# A script with positional arguments and branches, as in collections of recipes.
recipe() {
    cat >recipe.sh <<'END'
#!/bin/bash
set -e
ENV=$1
if [ $ENV = dsw ]; then
    MASTER_PORT=$(shuf -n 1 -i 10000-65535)
    NNODES=1
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
fi
DISTRIBUTED_ARGS="--nproc_per_node 8 --nnodes $NNODES --master_port $MASTER_PORT"
MODEL_SIZE=$2
TP=$3
AC=$4
MOE=$5
TRAIN_TOKENS=${6}
GLOBAL_BATCH_SIZE=256
SEQ_LEN=4096
if [ $MODEL_SIZE = 7B ]; then
    NUM_LAYERS=32
    HIDDEN_SIZE=4096
    gqa_options=""
elif [ $MODEL_SIZE = 70B ]; then
    NUM_LAYERS=80
    HIDDEN_SIZE=8192
    gqa_options=" \\
        --group-query-attention \\
        --num-query-groups 8"
fi
if [ -z ${MP_AC_LAYERS} ]; then
    MP_AC_LAYERS=1
fi
if [ $AC = full ]; then
    _check=$(( ($NUM_LAYERS / $TP) % ${MP_AC_LAYERS} ))
    if [ $_check != 0 ]; then
        echo "not a multiple"
        exit -1
    fi
    ac_options=" --recompute-method uniform --recompute-granularity full"
elif [ $AC = sel ]; then
    ac_options="--recompute-activations"
elif [ $AC = none ]; then
    ac_options=" \\
    "
fi
case "$MOE" in
    true | yes) moe_options="--moe-router-topk 1 --num-experts 4 --expert-model-parallel-size 2" ;;
    *) moe_options="" ;;
esac
if [ $TP -gt 1 ]; then
    sp_options="--sequence-parallel"
fi
if [ "${LOAD:-none}" != none ]; then
    load_options="--load $LOAD"
fi
unused_options="--tensor-model-parallel-size 64"
TRAIN_ITERS=$(( ${TRAIN_TOKENS} / ${GLOBAL_BATCH_SIZE} / ${SEQ_LEN} ))
megatron_options=" --train-iters ${TRAIN_ITERS} --micro-batch-size 1 --global-batch-size ${GLOBAL_BATCH_SIZE} \\
    --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN_SIZE} --num-attention-heads $((HIDDEN_SIZE / 128)) \\
    --seq-length ${SEQ_LEN} --tensor-model-parallel-size ${TP} --vocab-size 32000 --swiglu --bf16 \\
    --use-distributed-optimizer"
run_cmd="torchrun $DISTRIBUTED_ARGS pretrain_gpt.py
 ${megatron_options} ${ac_options} ${gqa_options} ${moe_options} ${sp_options} ${load_options}"
echo ${run_cmd}
eval ${run_cmd} 2>&1 | tee log
END
}

# The script's arguments or variables choose the branch that counts.
case_branches_of_scripts_are_chosen() {
    recipe
    run estimate --machine h100-sxm --ranks 64 --megatron recipe.sh --json \
        --script-args 'dsw 70B 8 full false 1048576000'
    expect_ok
    check_json out 'j["layout"]["tp"] == 8 and j["layout"]["recompute"] == "full" and j["layout"]["ep"] == 1' \
        'abs(j["run"]["checkpoint_bytes"] / 12
             / (80 * (8192**2 * 2.25 + 3 * 8192 * 21824) + 32768 * 8192) - 1) < 0.01' 'j["run"]["steps"] == 1000'
    cp out args.json
    run estimate --machine h100-sxm --ranks 64 --megatron recipe.sh --json --set MODEL_SIZE=70B --set TP=8 \
        --set 4=full --set MOE=no --set TRAIN_TOKENS=1048576000
    expect_ok
    check_json out 'j["step_s"] == other("args")["step_s"] and j["memory_bytes"] == other("args")["memory_bytes"]'
    run estimate --machine h200 --ranks 64 --megatron recipe.sh --json --script-args 'dlc 7B 2 sel yes 1048576000'
    expect_ok
    check_json out 'j["layout"]["ep"] == 2 and j["layout"]["recompute"] == "attention" and j["layout"]["tp"] == 2'
    # a variable that a branch sets may be given instead
    run estimate --machine h100-sxm --ranks 64 --megatron recipe.sh --json --script-args 'dsw 7B 2 none no 1048576000' \
        --set NUM_LAYERS=16
    expect_ok
    check_json out '[x["key"] for x in o["not_counted"]] == ["$load_options", "$MP_AC_LAYERS"]' \
        'abs(j["run"]["checkpoint_bytes"] / 12 / (16 * (4096**2 * 4 + 3 * 4096 * 10880) + 32000 * 4096) - 1) < 0.03'
}

# If nothing chooses a branch, the script is refused, with all that the user has to choose.
case_branches_of_scripts_that_nothing_chooses_are_refused() {
    recipe
    run estimate --machine h100-sxm --ranks 64 --megatron recipe.sh
    expect_code 2
    expect_err "MODEL_SIZE \(7B or 70B\) decides NUM_LAYERS, HIDDEN_SIZE and gqa_options"
    expect_err "AC \(full, sel or none\) decides ac_options"
    expect_err "MOE \(true or yes\) decides moe_options"
    expect_err "TP decides --tensor-model-parallel-size"
    expect_err "help: choose with --set, such as --set [A-Z_]+="
    ! grep -E "ENV|NNODES|MASTER_PORT|unused" err >/dev/null || not_as "names what does not matter"
    run estimate --machine h100-sxm --ranks 64 --megatron recipe.sh --script-args 'dsw 13B 8 full false 1048576000'
    expect_code 2
    expect_err "nothing|--num-layers"
    run estimate --machine h100-sxm --ranks 64 --megatron recipe.sh --set MODEL_SIZE
    expect_code 2
    expect_err "'MODEL_SIZE' is not NAME=VALUE"
    run estimate --machine h100-sxm --ranks 64 --set A=1
    expect_code 2
    expect_err "for the script of --megatron"
    base="--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 --micro-batch-size 1
          --global-batch-size 64 --vocab-size 32000 --bf16 --swiglu"
    base=$(echo $base)
    printf 'TP=$(nproc)\ntorchrun x.py %s --tensor-model-parallel-size $TP\n' "$base" >program.sh
    printf '. ./cluster.conf\ntorchrun x.py %s --tensor-model-parallel-size ${TP:-2}\n' "$base" >source.sh
    for name in program source; do
        run estimate --machine h100-sxm --ranks 8 --megatron $name.sh
        expect_code 2
        expect_err "TP decides --tensor-model-parallel-size"
        run estimate --machine h100-sxm --ranks 8 --megatron $name.sh --set TP=4 --json
        expect_ok
        check_json out 'j["layout"]["tp"] == 4'
    done
    printf 'for tp in 1 2 4; do\ntorchrun x.py %s --tensor-model-parallel-size $tp\ndone\n' "$base" >loop.sh
    run estimate --machine h100-sxm --ranks 8 --megatron loop.sh
    expect_code 2
    expect_err "starts Megatron more than once"
    expect_err "help: choose one with --set tp=VALUE"
    run estimate --machine h100-sxm --ranks 8 --megatron loop.sh --set tp=4 --json
    expect_ok
    check_json out 'j["layout"]["tp"] == 4'
    printf 'while true; do\nA=1\ndone\n' >endless.sh
    run estimate --machine h100-sxm --ranks 8 --megatron endless.sh
    expect_code 2
    expect_err "endless.sh:1: the loop does not end"
    printf 'A="x\n' >quote.sh
    run estimate --machine h100-sxm --ranks 8 --megatron quote.sh
    expect_code 3
    expect_err "quote.sh:1: a quoted or bracketed part has no end"
    printf 'if true; then\nA=1\n' >open.sh
    run estimate --machine h100-sxm --ranks 8 --megatron open.sh
    expect_code 3
    expect_err "open.sh:3: wanted fi, found the end"
    printf 'python train.py --epochs 3\n' >other.sh
    run estimate --machine h100-sxm --ranks 8 --megatron other.sh
    expect_code 2
    expect_err "other.sh passes Megatron-LM none of the flags that titan reads"
}

# Lists, functions, loops, here-documents and tests, as in Megatron-LM's own examples.
case_scripts_of_megatron_are_evaluated() {
    cat >train.sh <<'END'
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
CHECKPOINT_PATH=${1:-"checkpoints/llama"}
TOKENIZER_ARG=${2:-"MOCK"} # a path, or "MOCK"
mkdir -p "$(dirname "$CHECKPOINT_PATH")"
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
NUM_LAYERS=$((2 ** 4 + (7 > 3 ? 0 : 8)))
DTYPE="fp8"
usage() {
    echo "usage: $0"
    exit 1
}
layers() { MOE_LAYERS=$(($1 - 1)); }
layers $NUM_LAYERS
[ -f pretrain_gpt.py ] || usage
cat <<EOF >config.txt
--num-layers 99 "it's not closed
EOF
MODEL_ARGS=(
    --num-layers $NUM_LAYERS # --num-layers 98
    --hidden-size 2048
    --num-attention-heads 16 \\
    --seq-length 4096 --vocab-size 128256 --swiglu
    # --untie-embeddings-and-output-weights
)
MOE_ARGS=(--num-experts 64 --moe-layer-freq "([0]+[1]*$MOE_LAYERS)" --moe-ffn-hidden-size 1408 --moe-router-topk 6)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 128 --bf16)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" && -n $DTYPE ]]; then
    DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-amax-history-len 1024")
fi
DATA_ARGS_LIST=()
if [[ "$TOKENIZER_ARG" == "MOCK" ]] || [[ -z "$TOKENIZER_ARG" ]]; then
    DATA_ARGS_LIST+=("--mock-data" "--tokenizer-type NullTokenizer")
else
    DATA_ARGS_LIST+=("--tokenizer-model $TOKENIZER_ARG")
fi
TP=1
for i in 1 2; do TP=$((TP * 2)); done
if (( TP > 1 )); then TRAINING_ARGS+=(--sequence-parallel); fi
if [ ! -f "$CHECKPOINT_PATH/latest" ]; then LOAD="--load $CHECKPOINT_PATH"; fi
case $(hostname) in
    a*) export NCCL_IB_HCA=mlx5 ;;
    *) ;;
esac
torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py \\
    ${MODEL_ARGS[@]} "${MOE_ARGS[@]}" \\
    ${TRAINING_ARGS[@]} ${DTYPE_ARGS[@]} ${LOAD} --tensor-model-parallel-size $TP ${DATA_ARGS_LIST[*]} "$@"
END
    run estimate --machine h100-sxm --ranks 32 --megatron train.sh --json
    expect_ok
    check_json out 'j["layout"]["tp"] == 4 and j["layout"]["float8"] and j["layout"]["micro_batch"] == 1' \
        'abs(j["run"]["checkpoint_bytes"] / 12
             / (16 * 4 * 2048**2 + 3 * 2048 * (5440 + 15 * 64 * 1408) + 128512 * 2048) - 1) < 0.01'
    # words that the script passes on
    run estimate --machine h100-sxm --ranks 32 --megatron train.sh --json --script-args 'x y --recompute-activations'
    expect_ok
    check_json out 'j["layout"]["recompute"] == "attention"'
}

run_cases
