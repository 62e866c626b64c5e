#!/bin/bash
# SPDX-License-Identifier: MIT titan doctor: what it says about faults that a test can cause, on one host and on two.
. "$(dirname "$0")/lib.sh"

# with_limit ULIMIT-OPTION VALUE ARGUMENT...: runs titan under a limit.
with_limit() {
    printf 'ulimit %s %s; titan' "$1" "$2" >command
    printf " '%s'" "${@:3}" >>command
    code=0
    (ulimit "$1" "$2" && exec "$TITAN" "${@:3}") >out 2>err </dev/null || code=$?
}

case_every_check_has_a_line() {
    run doctor
    expect_ok
    sed -n 's/^TT_CHECK("\([^"]*\)".*/\1/p' "$TITAN_SOURCE/cli/doctor/doctor.def" >checks
    [ "$(wc -l <checks)" -gt 10 ] || not_as "no checks found in doctor.def"
    while read -r check; do
        expect_out "^(ok|warning) +$check  "
    done <checks
    refuse_file outputs
}

case_json_has_the_same_lines() {
    run doctor --json
    expect_ok
    expect_json '
assert found["ranks"] == 1 and found["hosts"] == 1 and found["exit"] == 0 and found["worst"] in ("ok", "warning")
assert len(found["checks"]) > 10
for line in found["checks"]:
    assert line["ranks"] == [0] and len(line["hosts"]) == 1 and line["found"]
    assert (line["help"] is None) == (line["level"] == "ok"), line'
}

case_a_folder_that_cannot_be_written_is_an_error() {
    run doctor --job.dump_folder=/proc/nowhere
    expect_code 3
    expect_out "^error +dump folder +/proc/nowhere, cannot create "
    expect_out "help: set job.dump_folder to a folder that can be written"
}

case_too_little_address_space_is_an_error() {
    ! ldd "$TITAN" | grep -qE "lib(asan|tsan)" || skip "a sanitizer maps more than that itself"
    export TITAN_CPU=blas # OpenBLAS computes its products
    with_limit -v 400000 doctor --parallelism.threads_per_rank=4
    expect_code 6
    expect_out "^error +address space +390.62 MiB, no room for the buffers of matrix products"
    expect_out "help: raise the limit on virtual memory"
}

case_limits_of_files_are_warnings() {
    with_limit -n 64 doctor
    expect_ok
    expect_out "^warning +open files +64$"
    with_limit -f 100000 doctor
    expect_ok
    expect_out "^warning +file size +97.66 MiB$"
}

case_a_busy_machine_is_a_warning() {
    run doctor
    expect_out "^ok +load +0.1 on 2 CPUs$"
    export TITAN_PROC=$PWD/proc
    load_of 13.20 14
    run doctor
    expect_ok
    expect_out "^warning +load +load 13 on 2 CPUs: others use this machine$"
    expect_out "help: measured peaks, mfu and predictions are too low"
}

case_slow_kernels_are_a_warning() {
    TITAN_CPU=generic run doctor
    expect_ok
    grep -q '^ok  *cpu .*neither' out && skip "this processor has no faster kernels"
    expect_out "^warning +cpu .*titan's kernels: generic, products of bfloat16 widened to float32"
    expect_out "help: unset TITAN_CPU"
}

case_kernels_of_openblas_count_only_where_they_are_used() {
    TITAN_CPU=avx2 OPENBLAS_CORETYPE=Nehalem run doctor
    ! grep -q "this processor lacks" err || skip "this processor has no AVX2"
    expect_ok
    expect_out "^ok +blas .*Nehalem kernels, which are older than this processor, not used"
    TITAN_CPU=blas OPENBLAS_CORETYPE=Nehalem run doctor
    expect_ok
    expect_out "^warning +blas .*Nehalem kernels, which are older than this processor"
    expect_out "help: unset OPENBLAS_CORETYPE"
}

case_ranks_that_are_not_bound_are_a_warning_once() {
    [ "$(nproc)" -ge 2 ] || skip "one core"
    OMPI_MCA_hwloc_base_binding_policy=none run_ranks 2 doctor
    expect_ok
    expect_out "^warning +binding +not bound: 2 ranks may use the same"
    [ "$(grep -c ' binding  ' out)" = 1 ] || not_as "expected one line for both ranks"
}

# What differs between hosts gets one line for each, with its ranks.
case_two_hosts_in_one_report() {
    ! "$TITAN" version | grep -q "Open MPI v5" || skip "to Open MPI 5, daemons with the same hostname are one host"
    cat >agent <<END
#!/bin/bash
export TMPDIR=$top/\$1-\$\$
mkdir "\$TMPDIR" && shift && exec bash -c "\$*"
END
    cat >limited <<'END'
#!/bin/bash
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || ulimit -n 64
exec "$@"
END
    "$TITAN" version --json >version
    python3 -c 'import json, sys
old = json.load(open("version"))["version"].encode() + b"\0"
open("other", "wb").write(open(sys.argv[1], "rb").read().replace(old, b"9" * (len(old) - 1) + b"\0"))' "$TITAN"
    cat >other_host <<END
#!/bin/bash
[ "\$OMPI_COMM_WORLD_RANK" = 0 ] || exec ./other "\$@"
exec "$TITAN" "\$@"
END
    chmod +x agent limited other other_host
    printf 'mpirun on two hosts' >command
    code=0
    timeout 100 "$TITAN_SOURCE/tools/run-ranks" 2 --host alpha:1,beta:1 --mca plm_rsh_agent "$PWD/agent" \
        --mca btl self,tcp ./limited "$TITAN" doctor >out 2>err </dev/null || code=$?
    expect_ok
    expect_out "2 ranks on 2 hosts$"
    expect_out "^ok +open files +[0-9a-z]+: rank 0 \("
    expect_out "^warning +open files +64: rank 1 \("
    expect_out "^ok +clock +hosts differ by at most 0\.0"
    expect_out "all hosts must see the same folder|takes up memory|^ok +dump folder +.*(NFS|9p|FUSE)"
    expect_out "^ok +titan "
    code=0
    timeout 100 "$TITAN_SOURCE/tools/run-ranks" 2 --host alpha:1,beta:1 --mca plm_rsh_agent "$PWD/agent" \
        --mca btl self,tcp ./other_host doctor >out 2>err </dev/null || code=$?
    expect_code 2
    expect_out "^error +titan +.*ranks run different builds of titan: .* on rank 0 \(.* 99999 on rank 1 \("
    expect_out "help: install the same titan on all hosts"
}

case_a_wrong_configuration_is_said_once() {
    run doctor --training.seqlen=3
    expect_error 2 "unknown key"
    run doctor --training.seq_len=x nonsense
    expect_code 2
}

run_cases
