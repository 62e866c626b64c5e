#!/bin/bash
# SPDX-License-Identifier: MIT The Debian package: it can be built from the tree, lintian finds no error, and its
# program runs. Nothing is installed.
. "$(dirname "$0")/lib.sh"

case_the_debian_package_is_built_and_its_program_trains() {
    command -v dpkg-buildpackage >/dev/null && command -v dh >/dev/null || skip "no dpkg-buildpackage, or no debhelper"
    mkdir tree
    tar -C "$TITAN_SOURCE" --exclude='./build*' --exclude=./outputs --exclude=./.git -c . | tar -C tree -x
    (cd tree && dpkg-checkbuilddeps) 2>missing || skip "$(head -1 missing)"
    echo "dpkg-buildpackage -us -uc -b" >command
    (cd tree && DEB_BUILD_OPTIONS=nocheck dpkg-buildpackage -us -uc -b) >out 2>err || not_as "the package was not built"
    package=$(echo titan_*.deb)
    expect_file "$package"
    if command -v lintian >/dev/null; then
        echo "lintian $package" >command
        lintian --allow-root --fail-on error "$package" >out 2>err || not_as "lintian found errors"
    fi
    dpkg-deb -x "$package" files
    for file in bin/titan share/titan/configs/debug.yaml share/man/man1/titan.1.gz share/man/man5/titan-config.5.gz \
        share/bash-completion/completions/titan share/zsh/vendor-completions/_titan \
        share/fish/vendor_completions.d/titan.fish share/doc/titan/examples/hostfile share/doc/titan/copyright; do
        expect_file "files/usr/$file"
    done
    TITAN=$PWD/files/usr/bin/titan
    run version
    expect_out "^titan [0-9.]+$"
    make_corpus
    run train $tiny
    expect_ok
    expect_out "^step: +3/3"
}

run_cases
