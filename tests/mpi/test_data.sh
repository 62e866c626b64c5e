#!/bin/bash
# SPDX-License-Identifier: MIT
# Ranks that do not see the same files. Each has a folder of its own, as if it were on another host.
. "$TITAN_SOURCE/tests/cli/lib.sh"

# apart ARGUMENT...: titan on two ranks, one in folder a, one in folder b.
apart() {
    printf 'mpirun -n 2, one in folder a, one in folder b: titan' >command
    printf " '%s'" "$@" >>command
    mkdir -p a b
    # mpirun could get two programs, each with its own --wdir, but Open MPI 5.0.7 crashes on that.
    cat >in_a_folder <<'END'
#!/bin/bash
folders=(a b)
cd "${folders[$OMPI_COMM_WORLD_RANK]}" && exec "$@"
END
    chmod +x in_a_folder
    code=0
    timeout 120 "$TITAN_SOURCE/tools/run-ranks" 2 "$PWD/in_a_folder" "$TITAN" "$@" >out 2>err </dev/null || code=$?
}

losses_of() {
    grep -o '"loss": *[0-9.e-]*' "$1/metrics.jsonl"
}

# Makes the corpus, which is shared, and the losses of ranks with common files.
make_shared_corpus_and_losses() {
    make_corpus
    run_ranks 2 train $tiny --job.dump_folder=together
    expect_ok
    losses_of together >together.txt
    [ -s together.txt ] || not_as "no losses"
}

case_every_host_makes_its_own_cache() {
    make_shared_corpus_and_losses
    apart train $tiny --training.dataset_path="$PWD/corpus.txt" --dataloader.cache_dir=cache
    expect_ok
    cmp -s a/cache/*.tokens b/cache/*.tokens || not_as "the caches differ"
    losses_of a/run >apart.txt
    expect_same together.txt apart.txt
}

case_a_damaged_cache_of_another_host_is_made_again() {
    make_shared_corpus_and_losses
    mkdir -p a/cache b/cache
    for damage in content size; do
        cp cache/*.tokens a/cache/
        cp cache/*.tokens b/cache/
        [ $damage = content ] && printf 'xy' | dd of="$(ls b/cache/*.tokens)" bs=1 seek=300 conv=notrunc 2>/dev/null
        [ $damage = size ] && truncate -s -8 b/cache/*.tokens
        apart train $tiny --training.dataset_path="$PWD/corpus.txt" --job.dump_folder=$damage
        expect_ok
        cmp -s a/cache/*.tokens b/cache/*.tokens || not_as "the caches differ"
        losses_of a/$damage >apart.txt
        expect_same together.txt apart.txt
    done
}

case_another_token_file_on_another_host_is_refused() {
    make_corpus
    run data pack --dataset text --dataset_path corpus.txt --out tokens
    expect_ok
    mkdir a b
    cp tokens a/
    cp tokens b/
    apart train $tiny --training.dataset=tokens --training.dataset_path=tokens --job.dump_folder=same
    expect_ok
    printf 'xy' | dd of=b/tokens bs=1 seek=300 conv=notrunc 2>/dev/null
    apart train $tiny --training.dataset=tokens --training.dataset_path=tokens
    expect_error 3 "host '$(hostname)': 'tokens' does not hold the tokens that were prepared: its digest is"
    truncate -s -8 b/tokens
    apart train $tiny --training.dataset=tokens --training.dataset_path=tokens
    expect_error 3 "host '$(hostname)': 'tokens' does not hold the tokens that were prepared: it has"
    rm b/tokens
    apart train $tiny --training.dataset=tokens --training.dataset_path=tokens
    expect_error 3 "host '$(hostname)': cannot open 'tokens': no such file"
}

case_other_text_on_another_host_is_refused() {
    make_corpus
    mkdir a b
    cp corpus.txt a/
    sed 's/evening/dawning/' corpus.txt >b/corpus.txt
    apart train $tiny
    expect_error 3 "host '$(hostname)': '.*tokens' holds other tokens than rank 0's file"
}

run_cases
