#!/bin/bash
# SPDX-License-Identifier: MIT meson install: what it installs, and that the result works from any folder it is moved
# to.
. "$(dirname "$0")/lib.sh"

# install_and_move: makes ./moved/titan from the build, as an administrator who moves an installed prefix would.
install_and_move() {
    command -v meson >/dev/null || skip "no meson"
    echo "meson install" >command
    DESTDIR=$PWD/root meson install -C "$TITAN_BUILD" --no-rebuild >out 2>err || not_as "meson install failed"
    program=$(find root -path '*/bin/titan')
    [ -n "$program" ] || not_as "no bin/titan was installed"
    mkdir moved
    mv "${program%/bin/titan}" moved/titan
    TITAN=$PWD/moved/titan/bin/titan
    share=$PWD/moved/titan/share
}

case_an_installation_is_complete() {
    install_and_move
    for file in titan/mpi-env titan/configs/debug.yaml doc/titan/README.md doc/titan/LICENSE \
        doc/titan/examples/hostfile doc/titan/examples/one-node.sh doc/titan/examples/many-nodes.sh; do
        expect_file "$share/$file"
    done
    diff -r "$TITAN_SOURCE/configs" "$share/titan/configs" >differences || not_as "$(cat differences)"
    for shell in bash:bash-completion/completions/titan zsh:zsh/site-functions/_titan \
        fish:fish/vendor_completions.d/titan.fish; do
        run completion "${shell%%:*}"
        expect_ok
        expect_same out "$share/${shell#*:}"
    done
    if [ -e "$TITAN_BUILD/man/titan.1" ]; then
        for page in "$TITAN_SOURCE"/man/*.scd; do
            page=$(basename "$page" .scd)
            expect_file "$share/man/man${page##*.}/$page"
        done
        expect_file "$share/man/man5/titan-config.5"
    fi
    ! find root moved -name '*.a' -o -name '*.so*' | grep -q . || not_as "a library was installed"
}

case_a_moved_program_finds_its_configurations() {
    install_and_move
    run plan --config configs/debug.yaml --ranks 2
    expect_ok
    run config check configs/debug.yaml
    expect_ok
    expect_err "no file configs/debug.yaml here: titan's own is read, $share/titan/configs/debug.yaml"
    run config show --config configs/debug.yaml --origin
    expect_out "# $share/titan/configs/debug.yaml:[0-9]"
    run config check configs/llama3_1b.yaml
    expect_error 2 "configs/llama3_1b.yaml"
    run config check debug.yaml
    expect_error 2 "debug.yaml"
    mkdir configs
    echo 'training: {steps: 7}' >configs/debug.yaml
    run config show --config configs/debug.yaml --origin
    expect_out "steps: 7 +# configs/debug.yaml:1"
    refuse_err "titan's own"
}

run_cases
