#!/bin/sh
# SPDX-License-Identifier: MIT Runs a command. Its exit code must be CODE, and a line of its output (both streams) must
# contain TEXT. At most one rank may report that it waited for another.
#   expect.sh CODE TEXT COMMAND...
code=$1
text=$2
shift 2
output=$("$@" 2>&1 </dev/null)
found=$?
printf '%s\n' "$output"
if [ "$found" -ne "$code" ]; then
    echo "expected exit code $code, got $found"
    exit 1
fi
if ! printf '%s\n' "$output" | grep -qF -- "$text"; then
    echo "expected '$text' in the output"
    exit 1
fi
if [ "$(printf '%s\n' "$output" | grep -c 'error: rank [0-9]* waited')" -gt 1 ]; then
    echo "expected one message about the silent rank"
    exit 1
fi
