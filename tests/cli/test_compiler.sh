#!/bin/bash
# SPDX-License-Identifier: MIT
# The recorded run (test_bits.sh) and the checks of kernels, compiled by the other compiler: by clang if gcc compiled
# this build, else by gcc. The build stays in other-compiler, in the build folder.
. "$(dirname "$0")/lib.sh"

case_another_compiler_makes_the_same_bits() {
    local other=$TITAN_BUILD/other-compiler by=clang
    case $(strings -a "$TITAN") in *"clang version"*) by=gcc ;; esac
    command -v $by >/dev/null || skip "no $by"
    [ -e "$other/build.ninja" ] || CC=$by meson setup "$other" "$TITAN_SOURCE" --buildtype=release -Dman=disabled \
        >out 2>err || not_as "meson cannot use $by"
    ninja -C "$other" titan tests/kernels/kernelcheck >out 2>err || not_as "$by does not compile titan"
    "$other/tests/kernels/kernelcheck" >out 2>err || not_as "kernels compiled by $by are not right"
    TITAN=$other/titan bash "$TITAN_SOURCE/tests/cli/test_bits.sh" >out 2>err || not_as "$by makes other bits"
}

run_cases
