#!/bin/bash
# SPDX-License-Identifier: MIT
# titan data: packing, inspecting packed files, and training on them.
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

# This tokenizer spells words in characters. Python reads the tokens that titan packs, trains on and generates.
case_a_tokenizer_of_sentencepiece_goes_the_whole_way() {
    folder=$TITAN_SOURCE/tests/unit/data/transformers/v4/mistral7b
    make_corpus
    run data pack --dataset text --dataset_path corpus.txt --tokenizer "$folder" --out corpus.tokens
    expect_ok
    run data inspect corpus.tokens --tokenizer "$folder" --json
    expect_ok
    mv out inspected.json
    run train $tiny --model.hf_assets_path="$folder" --checkpoint.enable
    expect_ok
    run train $tiny --model.hf_assets_path="$folder" --job.dump_folder=tokens --training.dataset=tokens \
        --training.dataset_path=corpus.tokens
    expect_ok
    losses_of run >a
    losses_of tokens >b
    expect_same a b
    run ckpt consolidate run exported --format hf
    expect_ok
    for file in tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json; do
        expect_same "$folder/$file" exported/$file
    done
    run generate exported --prompt "And the" --max-new-tokens 8 --num-samples 20 --ignore-eos --json
    expect_ok
    python3 - "$folder/tokenizer.json" <<'EOF' >problem.txt 2>&1 || not_as "the texts: $(cat problem.txt)"
import json, re, sys
tokenizer, inspected, made = (json.load(open(path)) for path in (sys.argv[1], "inspected.json", "out"))
special = [token["id"] for token in tokenizer["added_tokens"] if token["special"]]
tokens = {id: token for token, id in tokenizer["model"]["vocab"].items()}
tokens.update({token["id"]: token["content"] for token in tokenizer["added_tokens"]})
def bytes_text(match):
    data = bytes.fromhex(match.group().replace("<0x", "").replace(">", ""))
    try:
        return data.decode()
    except UnicodeDecodeError:
        return len(data) * "\ufffd"
def text(ids):
    joined = "".join(tokens[id] for id in ids if id not in special).replace("\u2581", " ")
    joined = re.sub("(<0x[0-9A-F]{2}>)+", bytes_text, joined)
    return joined[1:] if joined[:1] == " " else joined
corpus = open("corpus.txt").read()
assert inspected["first_tokens"][0] == 1, inspected
first = text(inspected["first_tokens"])
assert len(first) > 10 and corpus.startswith(first) and inspected["first_text"].endswith(first), inspected
assert made["prompt_tokens"][0] == 1 and text(made["prompt_tokens"]) == "And the", made
assert len(made["samples"]) == 20
for sample in made["samples"]:
    known = [id for id in made["prompt_tokens"] + sample["tokens"] if id in tokens]
    assert "And the" + sample["text"] == text(known), sample
assert any(sample["text"].startswith(" ") for sample in made["samples"]), made # at the beginning of a text the space would be lost
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

# The numbers of another tokenizer mean other words, and every command that reads them for a model says so.
case_tokens_of_another_tokenizer_are_refused() {
    make_corpus
    mkdir other
    cp "$TITAN_SOURCE/tests/unit/data/qwen_small.json" other/tokenizer.json
    run data pack --dataset text --dataset_path corpus.txt --tokenizer other --out other.tokens
    expect_ok
    run data pack --dataset text --dataset_path corpus.txt --out own.tokens
    expect_ok
    theirs="other.tokens' was packed with another tokenizer \(hash [0-9a-f]{16}\), not with built-in .* \(hash [0-9a-f]{16}\)"
    tokens="--training.dataset=tokens --training.dataset_path"
    run train $tiny $tokens=other.tokens
    expect_error 3 "$theirs" "^help: .*model.hf_assets_path"
    run train $tiny $tokens=other.tokens --dry-run
    expect_error 2 "$theirs"
    run config check $tiny $tokens=other.tokens
    expect_code 2
    expect_err "$theirs"
    run train $tiny $tokens=own.tokens --validation.enable --validation.dataset=tokens \
        --validation.dataset_path=other.tokens
    expect_error 3 "$theirs"
    run train $tiny $tokens=own.tokens --checkpoint.enable --training.steps=1
    expect_ok
    run train $tiny $tokens=own.tokens --checkpoint.enable --model.hf_assets_path=other
    expect_error 3 "own.tokens' was packed with another tokenizer.*, not with other/tokenizer.json"
    run eval run --tokenizer other
    expect_error 3 "own.tokens' was packed with another tokenizer.*, not with other/tokenizer.json"
    run train $tiny $tokens=other.tokens --model.hf_assets_path=other --job.dump_folder=others --dry-run
    expect_ok
    expect_out "made with other/tokenizer.json"
    run config check $tiny $tokens=other.tokens --model.hf_assets_path=other
    expect_ok
}

# Files with a header are not read as headerless tokens, which would turn the header into tokens.
case_a_header_is_not_read_as_tokens() {
    make_corpus
    run data pack --dataset text --dataset_path corpus.txt --out own.bin
    expect_ok
    python3 - <<'END'
import struct
tokens = struct.pack("<900H", *[i % 7 for i in range(900)])
open("llmc.bin", "wb").write(struct.pack("<256i", 20240520, 1, 900, *[0] * 253) + tokens)
head = b"{'descr': '<u2', 'fortran_order': False, 'shape': (900,), }"
open("array.bin", "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + head.ljust(117) + b"\n" + tokens)
END
    for command in "train $tiny" "train $tiny --dry-run" "config check $tiny"; do
        code_wanted=2 # also when files are inspected with the configuration
        [ "$command" != "train $tiny" ] || code_wanted=3
        run $command --training.dataset=tokens_u16 --training.dataset_path=own.bin
        expect_code $code_wanted
        expect_err "own.bin' begins with the header of a token file of titan"
        expect_err "^ *help: .*training.dataset=tokens"
        run $command --training.dataset=tokens_u16 --training.dataset_path=llmc.bin
        expect_code $code_wanted
        expect_err "llmc.bin' begins with the header of a token file of llm.c"
        run $command --training.dataset=tokens_u16 --training.dataset_path=array.bin
        expect_code $code_wanted
        expect_err "array.bin' begins with the header of an array of NumPy"
    done
    run train $tiny --training.dataset=tokens --training.dataset_path=llmc.bin --dry-run
    expect_ok
    # tokens that do not name their tokenizer need none, not even one that titan can read
    mkdir strange
    echo '{"model": {"type": "WordLevel"}}' >strange/tokenizer.json
    run train $tiny --training.dataset=tokens --training.dataset_path=llmc.bin --model.hf_assets_path=strange
    expect_ok
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

case_failed_packing_leaves_no_file() {
    printf '{"text": "one"}\nbroken\n' >broken.jsonl
    run data pack --dataset jsonl --dataset_path broken.jsonl --out broken.tokens
    expect_error 3 "broken.jsonl:2"
    refuse_file broken.tokens
    [ -z "$(ls -A | grep tmp)" ] || not_as "a temporary file was left: $(ls -A)"
}

case_a_cache_is_used_again() {
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

case_a_damaged_cache_is_made_again() {
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

# The rows of a table are the same data as their lines, on every layout; a run over files that a pattern names resumes.
case_tables_train_as_their_lines_do() {
    tables=$TITAN_SOURCE/tests/fuzz/corpus/table
    run data tokenizer --vocab 300 --special '<|im_start|>' --special '<|im_end|>' --out made \
        "$tables/texts.jsonl" "$tables/texts-zstd-v2.parquet" "$tables/texts-stream.arrow"
    expect_ok
    grep -v null "$tables/texts.jsonl" >texts.jsonl
    mkdir many lines
    for part in 0 1; do
        cp "$tables/texts-gzip.parquet" many/train-$part-of-2.parquet
        cp "$tables/texts-snappy.parquet" many/test-$part-of-2.parquet
        cp texts.jsonl lines/$part.jsonl
    done
    options="$tiny --model.hf_assets_path=made --training.seq_len=8 --checkpoint.enable"
    run train $options --training.dataset=jsonl --training.dataset_path=lines --job.dump_folder=jsonl --training.steps=2
    expect_ok
    run train $options --training.dataset=jsonl --training.dataset_path=lines --job.dump_folder=jsonl
    expect_ok
    options="$options --training.dataset=parquet --job.dump_folder=parquet"
    run_ranks 2 train $options --training.dataset_path='many/train-*' --training.steps=2
    expect_ok
    run train $options --training.dataset_path='many/train-*'
    expect_ok
    expect_err "training starts at step 3"
    losses_of jsonl >a
    losses_of parquet >b
    expect_same a b
    run data pack --dataset jsonl_sft --chat-template chatml --tokenizer made --dataset_path "$tables/chats.jsonl" \
        --out lines.tokens --json
    expect_ok
    grep -o '"digest": *"[^"]*"' out >a
    for table in chats.parquet chats.arrow; do
        run data pack --dataset jsonl_sft --chat-template chatml --tokenizer made --dataset_path "$tables/$table" \
            --out rows.tokens --json
        expect_ok
        grep -o '"digest": *"[^"]*"' out >b
        expect_same a b
    done
}

case_text_is_counted_and_written_once() {
    printf '{"text": "%s"}\n' "one two" "" "\u03b1\u03b2\u4e2d \u0001" "one two" "three" "" >a.jsonl
    run data inspect a.jsonl --dataset jsonl --json
    expect_ok
    expect_json 'assert (found["documents"], found["empty"], found["bytes"], found["length_p50"], found["length_max"],
    found["duplicates"], found["duplicate_bytes"]) == (6, 2, 28, 7, 9, 2, 7), found
assert (found["letters_Latin"], found["letters_Greek"], found["letters_Han"]) == (17, 2, 1), found
assert abs(found["odd_percent"] - 100 / 28) < 1e-9 and "tokens" not in found, found'
    run data inspect a.jsonl --dataset jsonl
    expect_ok
    expect_out "^odd_percent +3.57$"
    run data dedup --dataset jsonl --dataset-path a.jsonl --out b.jsonl --json
    expect_ok
    expect_json 'assert (found["documents"], found["dropped"], found["dropped_bytes"]) == (4, 2, 7), found
assert [json.loads(line)["text"] for line in open("b.jsonl")] == ["one two", "", "\u03b1\u03b2\u4e2d \1", "three"]'
    run data inspect b.jsonl --dataset jsonl --json
    expect_ok
    expect_json 'assert (found["documents"], found["duplicates"]) == (4, 0), found'
    run data dedup --dataset tokens --dataset-path a.jsonl --out c.jsonl
    expect_error 2 "dataset 'tokens' contains tokens, not text"
    refuse_file c.jsonl
    run data dedup --dataset jsonl
    expect_error 2 "needs --dataset, --dataset-path and --out"
}

# start_training: starts an endless run in the background and waits for its first steps. Its process is $pid.
start_training() {
    make_corpus
    echo "titan train, in the background" >command
    background "$TITAN" train $tiny --training.steps=10000000 --metrics.log_freq=10
    pid=$job
    trap 'kill -9 $pid 2>/dev/null' EXIT
    wait_for_step 10
    tokens=$(ls cache/*.tokens)
}

wait_for_step() {
    until grep -q "\"step\": *$1[,}]" run/metrics.jsonl 2>/dev/null; do
        kill -0 $pid 2>/dev/null || not_as "the run ended early"
        sleep 0.05
    done
}

# end_training: waits for the end of that run. Its exit code goes to $code.
end_training() {
    code=0
    wait $pid || code=$?
}

case_a_cache_that_is_cut_off_in_a_run_is_an_error() {
    start_training
    truncate -s 1000 "$tokens"
    end_training
    expect_error 3 "$tokens' does not hold the tokens that were prepared: it has 1000 bytes here"
}

case_a_cache_that_is_overwritten_in_a_run_is_an_error() {
    start_training
    printf '\1\2\1\3\1\4\1\5' | dd of="$tokens" bs=1 seek=131 conv=notrunc 2>/dev/null
    end_training
    expect_error 3 "$tokens' does not hold the tokens that were prepared: its digest is"
}

case_a_cache_that_is_touched_or_replaced_in_a_run_stays_in_use() {
    start_training
    touch "$tokens"
    last=$(grep -o '"step": *[0-9]*' run/metrics.jsonl | tail -1 | tr -dc 0-9)
    wait_for_step $((last + 20))
    echo other >other
    mv other "$tokens"
    last=$(grep -o '"step": *[0-9]*' run/metrics.jsonl | tail -1 | tr -dc 0-9)
    wait_for_step $((last + 20))
    kill -TERM $pid
    end_training
    expect_code 75
}

case_leftovers_of_killed_tokenizing_are_removed() {
    make_corpus
    mkdir cache
    dead=x.tokens.tmp-0123456789abcdef
    touch cache/$dead cache/y.tokens.tmp.1234 cache/notes.tokens.tmp-0123 cache/z.tmp-0123456789abcdef \
        cache/live.tokens.tmp-0123456789abcdef
    exec 7<cache/live.tokens.tmp-0123456789abcdef
    flock -n 7 || not_as "nobody holds that lock"
    run train $tiny
    expect_ok
    refuse_file cache/$dead
    refuse_file cache/y.tokens.tmp.1234
    expect_file cache/live.tokens.tmp-0123456789abcdef
    expect_file cache/notes.tokens.tmp-0123
    expect_file cache/z.tmp-0123456789abcdef
    exec 7<&-
    touch out.tokens.tmp-0123456789abcdef other.tokens.tmp-0123456789abcdef
    run data pack --dataset text --dataset_path corpus.txt --out out.tokens
    expect_ok
    refuse_file out.tokens.tmp-0123456789abcdef
    expect_file other.tokens.tmp-0123456789abcdef
}

# The file of a stopped writer is kept; that of a killed one is removed.
case_the_file_of_a_living_writer_is_not_removed() {
    make_corpus
    awk '{ printf "{\"text\": \"%s\"}\n", $0 }' corpus.txt >corpus.jsonl
    for i in $(seq 300); do cat corpus.jsonl; done >long.jsonl
    echo "titan data pack, in the background" >command
    background "$TITAN" data pack --dataset jsonl --dataset_path long.jsonl --out long.tokens
    pid=$job
    trap 'kill -9 $pid 2>/dev/null' EXIT
    # before it has the lock, the file may be removed; the writer then makes another
    until ls long.tokens.tmp-* 2>/dev/null >found && ! flock -n 7 7<"$(cat found)"; do
        kill -0 $pid 2>/dev/null || skip "the writer was too quick"
    done
    kill -STOP $pid
    until grep -q '^State:.[TZ]' /proc/$pid/status; do sleep 0.01; done
    if ls long.tokens.tmp-* 2>/dev/null >found; then
        "$TITAN" data pack --dataset text --dataset_path corpus.txt --out long.tokens >out2 2>err2 ||
            not_as "$(cat err2)"
        expect_file "$(cat found)"
    fi
    kill -KILL $pid
    wait $pid
    "$TITAN" data pack --dataset text --dataset_path corpus.txt --out long.tokens >out2 2>err2 || not_as "$(cat err2)"
    ! ls long.tokens.tmp-* 2>/dev/null >found || not_as "left: $(cat found)"
}

case_inspect_refuses_what_is_not_a_token_file() {
    make_corpus
    run data inspect corpus.txt
    expect_error 3 "corpus.txt"
    run data inspect nosuch.tokens
    expect_error 3 "nosuch.tokens"
    run data inspect
    expect_error 2 "inspect"
}

case_a_packed_line_without_end_is_refused() {
    { echo '{"text": "one"}'; printf '{"text": "'; head -c 200M /dev/zero | tr '\0' a; echo '"}'; } |
        gzip -1 >long.jsonl.gz
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

# The `tokenizers` library made the built-in tokenizer from the built-in text.
case_a_tokenizer_is_that_of_the_tokenizers_library() {
    run data tokenizer --vocab 2048 --out made "$TITAN_SOURCE/assets/kjv_train.jsonl" --json
    expect_ok
    python3 - "$TITAN_SOURCE/assets/tokenizer.json" <<'EOF' >problem.txt 2>&1 || not_as "$(tail -3 problem.txt)"
import json, sys
theirs, ours, out = (json.load(open(path)) for path in (sys.argv[1], "made/tokenizer.json", "out"))
assert list(ours["model"]["vocab"].items()) == list(theirs["model"]["vocab"].items())
assert ours["model"]["merges"] == [" ".join(merge) for merge in theirs["model"]["merges"]]
for key in ("added_tokens", "pre_tokenizer", "decoder", "normalizer", "post_processor"):
    assert ours[key] == theirs[key], key
assert (out["tokens"], out["special"], out["merges"]) == (2048, 2, 1790), out
config = json.load(open("made/tokenizer_config.json"))
assert (config["bos_token"], config["eos_token"]) == ("<|begin_of_text|>", "<|end_of_text|>"), config
EOF
}

case_a_tokenizer_comes_from_all_files_in_any_packing() {
    command -v zstd >/dev/null || skip "no zstd" # quickstart installs it only for `test`
    make_corpus
    mkdir folder rows
    head -100 corpus.txt >folder/a.txt
    tail -n +101 corpus.txt >folder/b.txt
    awk '{ printf "{\"words\": \"%s\\n\"}\n", $0 }' corpus.txt | gzip >lines.jsonl.gz
    cp lines.jsonl.gz rows
    zstd -q corpus.txt -o packed.zst
    for text in corpus.txt folder packed.zst "folder/a.txt folder/b.txt" lines.jsonl.gz rows; do
        run data tokenizer --vocab 400 --pattern gpt2 --text-field words --out "made ${text%% *}" $text
        expect_ok
        expect_same "made corpus.txt/tokenizer.json" "made ${text%% *}/tokenizer.json"
    done
}

case_a_model_trains_with_an_own_tokenizer() {
    make_corpus
    run data tokenizer --vocab 2100 --pattern gpt2 --special '<|pad|>' --out made corpus.txt
    expect_ok
    expect_err "the text gives no more than [0-9]* tokens, but 2100 were wanted"
    tokens=$(sed -n 's/^tokens *//p' out)
    run data tokenizer --vocab 2100 --out made "$TITAN_SOURCE/assets/kjv_train.jsonl" --force
    expect_ok
    expect_out "^tokens +2,100$"
    run train $tiny --model.hf_assets_path=made --checkpoint.enable --verbose
    expect_ok
    expect_err "parameters, 2,112 rows of vocabulary .made/tokenizer.json: 2,100 tokens, padded to a multiple of 64."
    grep -q "^  vocab_size: 2112$" run/run.yaml || not_as "run.yaml: $(grep vocab_size run/run.yaml)"
    run config show --model.hf_assets_path=made --origin
    expect_out "  vocab_size: 2112 .*# made/tokenizer.json: 2,100 tokens, padded to a multiple of 64"
    # weights of another program have one row per token, unless titan makes the embedding longer anyway
    run config show --model.hf_assets_path=made --origin --checkpoint.initial_load_path=elsewhere
    expect_out "  vocab_size: 2100 .*# made/tokenizer.json: 2,100 tokens$"
    run config show --model.hf_assets_path=made --origin --checkpoint.initial_load_path=elsewhere \
        --checkpoint.initial_load_extend_vocabulary
    expect_out "  vocab_size: 2112 "
    run config check --model.hf_assets_path=made
    expect_ok
    run config check --model.hf_assets_path=made --model.vocab_size=2099
    expect_error 2 "the tokenizer has 2,100 tokens .*the model has rows for 2,099"
    run generate run --prompt "And" --max-new-tokens 3
    expect_ok
}

# rows_are ROWS OPTION...: checks the number of rows of the vocabulary with the tokenizer `made`.
rows_are() {
    run config show --model.hf_assets_path=made "${@:2}"
    expect_ok
    expect_out "^  vocab_size: $1$"
}

case_the_vocabulary_is_that_of_the_tokenizer_or_of_the_weights() {
    make_corpus
    run data tokenizer --vocab 300 --out made corpus.txt
    expect_ok
    rows_are 320
    rows_are 300 --model.vocab_size=300
    rows_are 320 --model.flavor=8B
    rows_are 128256 --model.flavor=8B --checkpoint.initial_load_path=elsewhere # weights that are not here yet
    options="$tiny --model.hf_assets_path=made --training.steps=1"
    # with as many rows as an older titan made, or as somebody chose, a run continues, and others can begin from it
    run train $options --checkpoint.enable --model.vocab_size=300
    expect_ok
    rows_are 300 --checkpoint.enable --job.dump_folder=run
    run train $options --checkpoint.enable --training.steps=2
    expect_ok
    expect_err "training starts at step 2"
    run train $options --job.dump_folder=next --checkpoint.initial_load_path=run
    expect_ok
    expect_err "weights  from .*run"
    rows_are 320 --checkpoint.enable --job.dump_folder=other
    run data tokenizer --vocab 310 --out made corpus.txt --force # not the run's tokenizer
    expect_ok
    rows_are 320 --checkpoint.enable --job.dump_folder=run
    # a tokenizer that fills nearly all rows of the flavor is taken for the published models' own
    run data tokenizer --vocab 2020 --out made "$TITAN_SOURCE/assets/kjv_train.jsonl" --force
    expect_ok
    rows_are 2048
}

# With these logits every row is equally likely, and 20 of 320 rows are not tokens.
case_rows_that_are_no_tokens_are_never_generated() {
    make_corpus
    run data tokenizer --vocab 300 --out made corpus.txt
    expect_ok
    run train $tiny --model.hf_assets_path=made --training.steps=1 --optimizer.lr=1e-9 --model.init_std=1e-6 \
        --checkpoint.enable --checkpoint.last_save_in_hf
    expect_ok
    for source in run run/checkpoint/step-1/hf; do
        for how in "--temperature 1" "--top-k 310" "--top-p 0.99"; do
            run generate $source --prompt And --max-new-tokens 900 --max-seq-len 1000 --ignore-eos $how --json
            expect_ok
            expect_json 'assert len(found["tokens"]) == 900 and max(found["tokens"]) in range(290, 300), found'
        done
    done
}

case_wrong_tokenizer_options_are_refused() {
    make_corpus
    for wrong in "--vocab=255 corpus.txt|--vocab '255' is not" "--vocab=257 corpus.txt|257 is too small" \
        "--pattern=(a corpus.txt|invalid regular expression" "|needs text" "--dataset=tokens corpus.txt|not 'tokens'" \
        "--special= corpus.txt|must not be empty" "--bos=$(printf '\377') corpus.txt|must be valid UTF-8"; do
        run data tokenizer --out made ${wrong%%|*}
        expect_error 2 "${wrong#*|}"
        refuse_file made
    done
    run data tokenizer corpus.txt
    expect_error 2 "needs --out"
    echo '{"x": 1}' >b.jsonl
    run data tokenizer --out made b.jsonl
    expect_error 3 "b.jsonl:1: no string field 'text'"
    mkdir made && echo '{}' >made/tokenizer.json
    run data tokenizer --out made corpus.txt
    expect_error 2 "made/tokenizer.json' exists" "force"
}

run_cases
