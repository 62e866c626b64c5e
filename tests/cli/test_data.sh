#!/bin/bash
# SPDX-License-Identifier: MIT
# titan data: packing, looking into packed files, and training on them.
. "$(dirname "$0")/lib.sh"

losses_of() {
    grep -o '"loss": *[0-9.e-]*' "$1/metrics.jsonl"
}

case_pack_and_inspect_agree() {
    make_corpus
    run data pack --dataset text --dataset_path corpus.txt --out corpus.tokens --json
    expect_ok
    mv out packed.json
    run data inspect corpus.tokens --json
    expect_ok
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "the JSON of data: $(cat problem.txt)"
import json
packed, inspected = json.load(open("packed.json")), json.load(open("out"))
for key in ("format", "tokens", "documents", "dtype", "bytes", "vocab_size", "max_id", "digest"):
    assert packed[key] == inspected[key], key
assert packed["documents"] == 1 and packed["dtype"] == "uint16" and packed["vocab_size"] == 2048
assert inspected["first_tokens"][0] == packed["bos"]
assert "And the evening" in inspected["first_text"]
EOF
}

case_packed_tokens_train_as_the_text_does() {
    make_corpus
    run data pack --dataset text --dataset_path corpus.txt --out corpus.tokens
    expect_ok
    run train $tiny --job.dump_folder=text
    expect_ok
    run train $tiny --job.dump_folder=tokens --training.dataset=tokens --training.dataset_path=corpus.tokens
    expect_ok
    losses_of text >a
    losses_of tokens >b
    expect_same a b
}

case_compressed_json_lines_are_the_same_data() {
    make_corpus
    awk '{ printf "{\"text\": \"%s\"}\n", $0 }' corpus.txt >corpus.jsonl
    gzip -k corpus.jsonl
    run data pack --dataset jsonl --dataset_path corpus.jsonl --out plain.tokens
    expect_ok
    run data pack --dataset jsonl --dataset_path corpus.jsonl.gz --out packed.tokens
    expect_ok
    run data inspect plain.tokens --json
    grep -o '"digest": *"[^"]*"' out >a
    run data inspect packed.tokens --json
    grep -o '"digest": *"[^"]*"' out >b
    expect_same a b
    [ -s a ] || not_as "no digest"
}

case_built_in_corpus_has_its_chapters() {
    run data pack --dataset kjv_validation --out v.tokens --json
    expect_ok
    expect_out '"documents": *59[,}]'
}

case_pack_does_not_leave_half_a_file() {
    printf '{"text": "one"}\nbroken\n' >broken.jsonl
    run data pack --dataset jsonl --dataset_path broken.jsonl --out broken.tokens
    expect_error 3 "broken.jsonl:2"
    refuse_file broken.tokens
    [ -z "$(ls -A | grep tmp)" ] || not_as "a temporary file was left: $(ls -A)"
}

case_cache_is_used_again() {
    make_corpus
    run train $tiny
    expect_ok
    find cache -type f -name '*' -printf '%p %i %T@\n' | sort >before
    run train $tiny --overwrite
    expect_ok
    find cache -type f -name '*' -printf '%p %i %T@\n' | sort >after
    expect_same before after
    [ -s before ] || not_as "no cache file"
}

case_damaged_cache_is_made_again() {
    make_corpus
    run train $tiny --job.dump_folder=a
    expect_ok
    for file in $(find cache -type f -size +1k); do
        truncate -s -10 "$file"
    done
    run train $tiny --job.dump_folder=b
    expect_ok
    losses_of a >a.txt
    losses_of b >b.txt
    expect_same a.txt b.txt
}

case_inspect_of_what_is_no_token_file() {
    make_corpus
    run data inspect corpus.txt
    expect_error 3 "corpus.txt"
    run data inspect nosuch.tokens
    expect_error 3 "nosuch.tokens"
    run data inspect
    expect_error 2 "inspect"
}

case_a_packed_line_without_end_is_refused() {
    { echo '{"text": "one"}'; printf '{"text": "'; head -c 200M /dev/zero | tr '\0' a; echo '"}'; } | gzip -1 >long.jsonl.gz
    run data pack --dataset jsonl --dataset_path long.jsonl.gz --out long.tokens
    expect_error 3 "long.jsonl.gz:2: the line is longer than 128.00 MiB when it is unpacked"
    refuse_file long.tokens
}

case_pack_says_what_is_missing() {
    run data pack --dataset text --out x.tokens
    expect_error 2 "dataset_path|path"
    run data pack --dataset text --dataset_path corpus.txt
    expect_error 2 "out"
}

run_cases
