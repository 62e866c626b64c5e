#!/bin/bash
# SPDX-License-Identifier: MIT
# quickstart on systems that lack something: what it says, and that it never harms existing files. Nothing is installed.
. "$(dirname "$0")/lib.sh"

# system TOOL...: makes a system that contains a copy of quickstart, these tools and nothing else.
system() {
    mkdir -p tree/bin
    cp "$TITAN_SOURCE/quickstart" tree/
    for tool in bash awk cat cut date dirname head id mkdir rm sed sh sleep sort tail touch tr uname "$@"; do
        ln -sf "$(command -v "$tool")" tree/bin/
    done
}

# fake TOOL TEXT: makes a program that prints TEXT and adds its arguments to the file `called`. It fails if TEXT is
# "fails".
fake() {
    rm -f "tree/bin/$1" # it may be a link to the real tool
    printf '#!/bin/sh\necho "%s $*" >>"%s/called"\n%s[ "%s" != fails ]\n' "$1" "$PWD" "${2:+echo $2; }" "$2" \
        >"tree/bin/$1"
    chmod +x "tree/bin/$1"
}

quickstart() {
    echo "quickstart $*" >command
    code=0
    PATH=$PWD/tree/bin tree/quickstart "$@" >out 2>err </dev/null || code=$?
}

case_without_apt_it_names_the_packages() {
    system
    quickstart
    expect_code 1
    expect_err "this system has no apt-get"
    expect_err "libopenmpi-dev .*libyaml-dev"
}

case_other_package_managers_get_their_own_names() {
    system
    for manager in dnf:openmpi-devel zypper:libjansson-devel brew:open-mpi; do
        fake "${manager%:*}" ""
        quickstart test
        expect_code 1
        expect_err "${manager%:*} install .*${manager#*:}"
        rm "tree/bin/${manager%:*}"
    done
    refuse_file called
}

# present: makes every tool and library that the table asks for.
present() {
    for tool in cc ninja pkg-config python3 mpirun scdoc; do
        fake $tool ""
    done
}

case_without_root_it_names_the_command_that_installs() {
    system
    fake apt-get ""
    fake id 1000
    quickstart
    expect_code 1
    expect_err "this user is not root, and there is no sudo"
    expect_err "as root: apt-get install --no-install-recommends .*libyaml-dev"
    ! grep -q apt-get called || not_as "apt-get was called: $(cat called)"
}

case_without_root_only_what_the_program_needs_must_be_there() {
    system
    present
    rm tree/bin/scdoc tree/bin/pkg-config
    printf '#!/bin/sh\n[ "$2" != cmocka ]\n' >tree/bin/pkg-config
    chmod +x tree/bin/pkg-config
    fake apt-get ""
    fake id 1000
    fake meson 0.61.2
    fake ninja fails
    quickstart
    expect_code 1
    expect_out "all that is needed is installed; not scdoc"
    expect_err "the build failed"
    grep -q "meson setup build .*-Dtests=false" called || not_as "meson was not asked for no tests: $(cat called)"
    quickstart test
    expect_code 1
    expect_err "as root: apt-get install --no-install-recommends scdoc libcmocka-dev"
}

case_install_asks_meson_for_the_folder() {
    system
    present
    fake meson 0.61.2
    fake ninja fails
    quickstart install "my prefix"
    expect_code 1
    expect_err "the build failed"
    grep -q -- "--prefix=$PWD/my prefix\$" called || not_as "meson was not given the folder: $(cat called)"
    expect_file "my prefix"
}

case_an_old_meson_is_replaced_for_this_folder_only() {
    system
    present
    fake meson 0.53.2
    fake python3 fails
    quickstart
    expect_code 1
    expect_out "meson 0.53.2 is older than 0.61"
    expect_err "titan needs meson 0.61 or newer, found 0.53.2, and pip could not install it in build/venv"
    grep -q "python3 -m venv build/venv" called || not_as "no environment was tried: $(cat called)"
}

# It comes from PyPI, and the installed meson is kept.
case_a_missing_ninja_is_named() {
    system chmod
    present
    rm tree/bin/ninja
    fake meson 0.61.2
    printf '#!/bin/sh\n[ "$1" = -c ]\n' >tree/bin/python3 # it can make environments, but making one fails
    quickstart
    expect_code 1
    expect_out "^==> ninja: installing in build/venv"
    expect_err "titan needs ninja, found none, and pip could not install it in build/venv"
    cat >tree/bin/python3 <<END
#!/bin/sh
[ "\$1" != -c ] || exit 0
mkdir -p build/venv/bin
printf '#!/bin/sh\necho "pip \$*" >>$PWD/called\nexit 1\n' >build/venv/bin/pip
chmod +x build/venv/bin/pip
END
    quickstart
    expect_code 1
    grep -q "^pip install ninja\$" called || not_as "pip was not asked for ninja alone: $(cat called)"
}

case_the_meson_of_ubuntu_22_04_is_new_enough() {
    system
    present
    fake meson 0.61.2
    fake python3 fails
    fake ninja fails
    quickstart
    expect_code 1
    refuse_out "is older"
    expect_err "the build failed"
    grep -q "meson setup build" called || not_as "meson was not asked to configure: $(cat called)"
}

case_a_build_that_cannot_be_configured_keeps_its_files() {
    system
    present
    fake meson fails
    printf '#!/bin/sh\n[ "$1" = --version ] && echo 1.0.1\n' >tree/bin/meson
    mkdir -p tree/build/outputs
    touch tree/build/build.ninja tree/build/outputs/mine
    quickstart
    expect_code 1
    expect_err "meson could not configure the build"
    refuse_err "rm -r"
    expect_file tree/build/outputs/mine
}

run_cases
