# SPDX-License-Identifier: MIT
# Nothing that is printed is lost when writes are interrupted, find a full pipe that does not block, or are short.
. "$(dirname "$0")/../cli/lib.sh"

interrupt=$TITAN_BUILD/tests/fault/libinterrupt.so

# interrupted ARGUMENT...: runs titan with writes that are interrupted.
interrupted() {
    printf 'interrupted titan' >command
    printf " '%s'" "$@" >>command
    code=0
    TITAN_INTERRUPT=1 LD_PRELOAD=$interrupt "$TITAN" "$@" >out 2>err </dev/null || code=$?
}

case_standard_output_is_whole() {
    ! ldd "$TITAN" | grep -qE "lib(asan|tsan)" || skip "a sanitizer must be loaded first"
    run help
    expect_ok
    mv out whole
    interrupted help
    expect_ok
    expect_same out whole
    run models --json
    expect_ok
    mv out whole
    interrupted models --json
    expect_ok
    expect_same out whole
}

case_standard_error_is_whole() {
    ! ldd "$TITAN" | grep -qE "lib(asan|tsan)" || skip "a sanitizer must be loaded first"
    run trian
    mv err whole
    interrupted trian
    expect_code 2
    expect_same err whole
}

# The launcher passes on its ranks' output, even what is still in the pipe when they have ended.
case_what_ranks_print_is_whole() {
    ! ldd "$TITAN" | grep -qE "lib(asan|tsan)" || skip "a sanitizer must be loaded first"
    mkdir bin
    cat >bin/mpirun <<'EOF'
#!/bin/sh
unset LD_PRELOAD
seq 1 9000
seq 1 9000 >&2
EOF
    chmod +x bin/mpirun
    export PATH=$PWD/bin:$PATH
    seq 1 9000 >whole
    interrupted launch -n 2 -- version
    expect_ok
    expect_same out whole
    expect_same err whole
}

run_cases
