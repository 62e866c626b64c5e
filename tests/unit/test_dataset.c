/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/data/dataset.h"
#include "core/data/table.h"
#include "core/os/file.h"
#include "core/tokenizer/charset.h"
#include "tests/help/log.h"

#define DATA TT_SOURCE_DIR "/tests/unit/data/"

static char folder[] = "/tmp/titan_dataset_XXXXXX";
static struct tt_tokenizer *tokenizer;
static struct tt_dataset_ref ref;

/* A path in the test's folder, valid during the next 15 calls. */
static const char *at(const char *name)
{
    static char paths[16][256];
    static int next;
    char *path = paths[next++ % 16];

    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static const char *put(const char *name, const void *bytes, size_t size)
{
    const char *path = at(name);

    if (tt_file_replace(path, bytes, size) < 0)
        fail_msg("%s", tt_error_message());
    return path;
}

static const char *put_text(const char *name, const char *text)
{
    return put(name, text, strlen(text));
}

static int prepare(const char *name, const char *path, const char *field)
{
    struct tt_dataset_spec spec = {.name = name,
                                   .path = path,
                                   .text_field = field,
                                   .tokenizer = tokenizer,
                                   .vocab_size = 2048,
                                   .cache_dir = at("cache")};

    return tt_dataset_prepare(&spec, &ref);
}

static struct tt_dataset *open_dataset(const char *name, const char *path, const char *field)
{
    struct tt_dataset *d = NULL;

    if (prepare(name, path, field) < 0 || tt_dataset_open(&ref, &d) < 0)
        fail_msg("%s", tt_error_message());
    return d;
}

static void expect_failure(int rc, int code, const char *message)
{
    assert_int_equal(rc, code);
    if (!strstr(tt_error_message(), message))
        fail_msg("'%s' instead of '%s'", tt_error_message(), message);
}

/* Each document is BOS, the text, EOS. */
static void expect_documents(const struct tt_dataset *d, int n, const char *const *texts)
{
    assert_int_equal(d->ref.info.n_documents, n);
    for (int i = 0; i < n; i++) {
        int64_t begin = d->offsets[i], size = d->offsets[i + 1] - begin;
        int32_t *ids = tt_calloc((size_t)size, sizeof *ids);
        struct tt_text text = {0};

        assert_int_equal(tt_dataset_copy(d, begin, size, ids), 0);
        assert_int_equal(ids[0], tt_tokenizer_info(tokenizer)->bos);
        assert_int_equal(ids[size - 1], tt_tokenizer_info(tokenizer)->eos);
        tt_text_add_bytes(&text, "", 0);
        assert_int_equal(tt_tokenizer_decode(tokenizer, ids + 1, size - 2, &text), 0);
        assert_string_equal(text.text, texts[i]);
        tt_text_release(&text);
        tt_free(ids);
    }
}

static void builtin_corpora_have_their_chapters(void **state)
{
    struct tt_dataset *d = open_dataset("kjv", NULL, NULL);

    assert_int_equal(d->ref.info.n_documents, 1130);
    assert_int_equal(d->ref.info.n_tokens, 1068459);
    assert_int_equal(d->ref.info.item_size, 2);
    assert_int_equal(d->offsets[1130], 1068459);
    tt_dataset_free(d);
    d = open_dataset("kjv_validation", NULL, NULL);
    assert_int_equal(d->ref.info.n_documents, 59);
    assert_int_equal(d->ref.info.n_tokens, 55367);
    tt_dataset_free(d);
}

static void json_lines_are_read_plain_and_packed(void **state)
{
    static const char *const names[] = {DATA "docs.jsonl", DATA "docs.jsonl.gz", DATA "docs.jsonl.zst"};
    static const char *const texts[] = {"In the beginning", "was the Word \xc3\xa9", "last without newline"};
    static const char *const urls[] = {"a", "b"};
    uint64_t digest = 0;

    for (int i = 0; i < 3; i++) {
        struct tt_dataset *d = open_dataset(i ? "jsonl" : "c4", names[i], NULL);

        expect_documents(d, 3, texts);
        if (i)
            assert_true(d->ref.info.digest == digest);
        digest = d->ref.info.digest;
        tt_dataset_free(d);
    }
    expect_failure(prepare("jsonl", names[0], "url"), TT_EDATA, "docs.jsonl:4: no string field 'url' (fields: text)");
    (void)put_text("url.jsonl", "{\"url\": \"a\"}\n{\"url\": \"b\"}\n");
    {
        struct tt_dataset *d = open_dataset("jsonl", at("url.jsonl"), "url");

        expect_documents(d, 2, urls);
        tt_dataset_free(d);
    }
}

static void folders_are_read_in_the_order_of_names(void **state)
{
    static const char *const texts[] = {"alpha", "beta\n", "gamma"};
    static const char *const lines[] = {"one", "two"};
    static const char *const marked[] = {"marked"};
    struct tt_dataset *d;

    assert_int_equal(tt_folder_make(at("many/sub")), 0);
    (void)put_text("many/b.txt", "\xef\xbb\xbf"
                                 "beta\n"); /* the byte order mark is not part of the text */
    (void)put_text("many/a.txt", "alpha");
    (void)put_text("many/sub/c.txt", "gamma");
    (void)put_text("many/empty.txt", "");
    (void)put_text("many/.hidden", "no");
    d = open_dataset("text", at("many"), NULL);
    expect_documents(d, 3, texts);
    tt_dataset_free(d);
    assert_int_equal(tt_folder_make(at("lines")), 0);
    (void)put_text("lines/2.jsonl", "{\"text\": \"two\"}");
    (void)put_text("lines/1.json", "{\"text\": \"one\"}\n");
    (void)put_text("lines/README", "not data");
    d = open_dataset("jsonl", at("lines"), NULL);
    expect_documents(d, 2, lines);
    tt_dataset_free(d);
    d = open_dataset("jsonl", DATA "bom.jsonl.gz", NULL);
    expect_documents(d, 1, marked);
    tt_dataset_free(d);
}

/* The same, whatever command reads the files; a folder of files works too. */
static void json_lines_are_not_read_as_text(void **state)
{
    assert_int_equal(tt_folder_make(at("mixed")), 0);
    (void)put_text("mixed/a.txt", "one");
    expect_failure(prepare("text", put_text("x.jsonl", "{\"text\": \"a\"}\n"), NULL), TT_EDATA,
                   "x.jsonl' holds JSON lines");
    (void)put_text("mixed/b.ndjson.gz", "x");
    expect_failure(prepare("text", at("mixed"), NULL), TT_EDATA, "help: dataset 'jsonl' reads them");
}

static void files_of_a_folder_are_not_left_out_in_silence(void **state)
{
    assert_int_equal(tt_folder_make(at("shards")), 0);
    (void)put_text("shards/a.jsonl", "{\"text\": \"one\"}\n");
    (void)put_text("shards/b.csv", "x");
    (void)put_text("shards/c.txt", "x");
    log_catch();
    tt_dataset_free(open_dataset("jsonl", at("shards"), NULL));
    assert_int_equal(caught.notes, 1);
    assert_non_null(strstr(caught.last, "2 files were left out"));
    assert_non_null(strstr(caught.last, "/shards/c.txt' is one"));
    log_release();
    (void)put_text("shards/d.jsonl.xz", "x");
    expect_failure(prepare("jsonl", at("shards"), NULL), TT_EDATA,
                   "d.jsonl.xz' is packed in a way that titan does not");
}

static void broken_text_is_named_with_its_place(void **state)
{
    static const struct {
        const char *dataset, *content, *message;
    } bad[] = {
        {"jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"\n", "bad:2:"},
        {"jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"\n", "invalid JSON: "},
        {"jsonl", "{\"text\": \"a\"} {\n", "bad:1:15: invalid JSON: end of file expected"},
        {"jsonl", "{\"content\": \"a\", \"url\": \"u\"}\n",
         "bad:1: no string field 'text' (fields: content, url)\nhelp: set training.text_field=content"},
        {"jsonl", "{\"id\": \"a\", \"messages\": []}\n",
         "(fields: id, messages)\nhelp: dataset 'jsonl_sft' reads chat data"},
        {"jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n", "help: dataset 'jsonl_sft' reads"},
        {"jsonl", "{\"text\": 7}\n", "bad:1: field 'text' is a number, wanted a string"},
        {"jsonl", "[1, 2]\n", "bad:1: the line is an array, wanted an object with a field 'text'"},
        {"jsonl", "[\n{\"text\": \"a\"}\n]\n", "bad:1: the file is one JSON document over many lines"},
        {"jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\xff\"}\n", "bad:2: invalid UTF-8 at byte 25 of the file (0xff)"},
        {"text",
         "one\ntwo\nthr\xe4"
         "e\n",
         "bad:3: invalid UTF-8 at byte 11 of the file (0xe4)"},
        {"jsonl", "", "bad' holds no text (1 file, 0 documents, all empty)"},
        {"jsonl", "\n \r\n", "bad' holds no text (1 file, 0 documents, all empty)"},
        {"jsonl", "{\"text\": \"\"}\n", "bad' holds no text (1 file, 1 documents, all empty)"},
        {"text", "", "bad' holds no text"},
        {"text", "version https://git-lfs.github.com/spec/v1\noid", "bad' is a Git LFS pointer"},
        {"jsonl", "\n<!DOCTYPE html><html>", "bad' is a web page, not data"},
        {"jsonl", "<html>", "bad' is a web page, not data"},
        {"text", "PAR1xxxx", "bad' is a table\nhelp: dataset 'parquet' reads it"},
        {"jsonl", "PAR1xxxx", "bad: byte 8 of 8: a file of Parquet does not end here"},
        {"arrow", "\xff\xff\xff\xff\x08\x01\x01\x01", "bad: byte 8 of 8: the file ends before its last batch does"},
        {"parquet", "{\"text\": \"a\"}\n", "bad' does not begin as a file of Parquet or Arrow"},
        {"parquet", "PARE", "bad' is an encrypted Parquet file"},
        {"jsonl", "\x1f\x8b\x08not gzip at all", "bad: cannot unpack at byte"},
        {"jsonl", "\x28\xb5\x2f\xfdnot zstd", "bad: cannot unpack at byte"},
        {"jsonl", "\x28\xb5\x2f\xfd", "bad: cannot unpack at byte 4 of 4: the file is truncated"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_failure(prepare(bad[i].dataset, put_text("bad", bad[i].content), NULL), TT_EDATA, bad[i].message);
    assert_int_equal(tt_folder_make(at("nothing")), 0);
    expect_failure(prepare("text", at("nothing"), NULL), TT_EDATA, "nothing' holds no files");
    expect_failure(prepare("jsonl", at("nothing"), NULL), TT_EDATA, "holds no files named .jsonl");
    expect_failure(prepare("text", at("no such"), NULL), TT_EDATA, "no such file");
    expect_failure(prepare("jsonl", NULL, NULL), TT_EUSAGE, "dataset 'jsonl' needs a path");
    expect_failure(prepare("jsonll", NULL, NULL), TT_EUSAGE, "help: did you mean 'jsonl'?");
}

static void fields_that_nobody_reads_may_hold_any_value(void **state)
{
    static const char *const texts[] = {"one", "two", "three", "four", "five", "last"};
    struct tt_dataset *d;

    (void)put_text("wild.jsonl", "{\"hash\": 18446744073709551615, \"text\": \"one\"}\n"
                                 "{\"text\": \"two\", \"n\": -1000000000000000019884624838656, \"e\": 1e999}\n"
                                 "{\"score\": [NaN, -Infinity, {\"a\": [], \"b\": {}}], \"text\": \"three\"}\n"
                                 "{\"cut\": \"\\ud83d\", \"\\udc00\": 0, \"text\": \"four\"}\n"
                                 " { \"te\\u0078t\" :\t\"five\" , \"nul\": \"\\u0000\" } \r\n"
                                 "{\"text\": \"first\", \"text\": \"last\"}\n");
    d = open_dataset("jsonl", at("wild.jsonl"), NULL);
    expect_documents(d, 6, texts);
    tt_dataset_free(d);
}

static void escapes_become_characters(void **state)
{
    static const char *const texts[] = {"\xf0\x9f\x98\x80", "cut \xef\xbf\xbd", "\xef\xbf\xbd\xef\xbf\xbd",
                                        "\xef\xbf\xbd\xf0\x9f\x98\x80", "\b\f\n\r\t\"\\/ \xc3\xa9"};
    struct tt_dataset *d;

    (void)put_text("escapes.jsonl", "{\"text\": \"\\ud83d\\ude00\"}\n{\"text\": \"cut \\ud83d\"}\n"
                                    "{\"text\": \"\\ude00\\ud83d\"}\n{\"text\": \"\\ud83d\\ud83d\\uDE00\"}\n"
                                    "{\"text\": \"\\b\\f\\n\\r\\t\\\"\\\\\\/ \\u00e9\"}\n");
    d = open_dataset("jsonl", at("escapes.jsonl"), NULL);
    expect_documents(d, 5, texts);
    tt_dataset_free(d);
}

static void what_is_not_json_is_named_with_its_column(void **state)
{
    static const struct {
        const char *line, *message;
    } bad[] = {
        {"{\"text\": \"a\", \"n\": 01}", "bad:1:21: invalid JSON: a number begins with 0"},
        {"{\"text\": \"a\", \"n\": -}", "bad:1:21: invalid JSON: invalid number"},
        {"{\"text\": \"a\", \"n\": 1.}", "bad:1:22: invalid JSON: invalid number"},
        {"{\"text\": \"a\", \"n\": 1e+}", "bad:1:23: invalid JSON: invalid number"},
        {"{\"text\": \"a\", \"n\": tru}", "bad:1:20: invalid JSON: a value was expected"},
        {"{\"text\": \"a\", \"n\": [1, 2}", "bad:1:25: invalid JSON: ',' or ']' was expected"},
        {"{\"text\": \"a\", \"n\": [1,]}", "bad:1:23: invalid JSON: a value was expected"},
        {"{\"text\": \"a\", \"n\": {\"b\" 1}}", "bad:1:25: invalid JSON: ':' was expected"},
        {"{\"text\": \"a\",}", "bad:1:14: invalid JSON: a key in quotes was expected"},
        {"{\"text\": \"a\\x\"}", "bad:1:12: invalid JSON: invalid escape"},
        {"{\"text\": \"a\\u12g4\"}", "bad:1:12: invalid JSON: invalid \\u escape"},
        {"{\"text\": \"a\tb\"}", "bad:1:12: invalid JSON: control character in a string"},
        {"{\"text\": \"a", "bad:1:12: invalid JSON: the text ends early"},
        {"{\"text\": \"a\", \"n\": [{", "invalid JSON: the text ends early"},
        {"{\"text\": ", "invalid JSON: the text ends early"},
        {"{", "the file is one JSON document over many lines"},
        {" ]", "bad:1:2: invalid JSON: a value was expected"},
    };
    char *deep = tt_calloc(5000, 1);

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_failure(prepare("jsonl", put_text("bad", bad[i].line), NULL), TT_EDATA, bad[i].message);
    memcpy(deep, "{\"a\":", 5);
    memset(deep + 5, '[', 4000);
    expect_failure(prepare("jsonl", put_text("bad", deep), NULL), TT_EDATA, "values are nested too deeply");
    tt_free(deep);
}

static void truncated_packed_text_is_refused(void **state)
{
    static const char *const names[] = {DATA "docs.jsonl.gz", DATA "docs.jsonl.zst"};

    for (int i = 0; i < 2; i++) {
        char *bytes = NULL;
        size_t size = 0;

        assert_int_equal(tt_file_read(names[i], &bytes, &size), 0);
        expect_failure(prepare("jsonl", put("cut", bytes, size - 10), NULL), TT_EDATA, "the file is truncated");
        tt_free(bytes);
    }
}

static void gzip_members_follow_one_another(void **state)
{
    char *bytes = NULL, *twice;
    size_t size = 0;
    struct tt_dataset *d;

    assert_int_equal(tt_file_read(DATA "docs.jsonl.gz", &bytes, &size), 0);
    twice = tt_calloc(2 * size, 1);
    memcpy(twice, bytes, size);
    memcpy(twice + size, bytes, size);
    /* The last line of the first member does not end, so the second member continues it, and the line is not JSON. */
    expect_failure(prepare("jsonl", put("twice.gz", twice, 2 * size), NULL), TT_EDATA, "twice.gz:4:");
    d = open_dataset("text", at("twice.gz"), NULL);
    assert_int_equal(d->ref.info.n_documents, 1);
    tt_dataset_free(d);
    tt_free(bytes);
    tt_free(twice);
}

static const char *put_parts(const char *name, const char *first, size_t first_size, const char *second,
                             size_t second_size)
{
    char *all = tt_calloc(first_size + second_size, 1);
    const char *path;

    memcpy(all, first, first_size);
    memcpy(all + first_size, second, second_size);
    path = put(name, all, first_size + second_size);
    tt_free(all);
    return path;
}

static void padding_and_skippable_frames_are_passed(void **state)
{
    static const char skippable[] = "\x50\x2a\x4d\x18\x04\0\0\0abcd", zeros[1024] = "";
    struct tt_dataset *d;
    char *gz = NULL, *zst = NULL;
    size_t gz_size = 0, zst_size = 0;

    assert_int_equal(tt_file_read(DATA "docs.jsonl.gz", &gz, &gz_size), 0);
    assert_int_equal(tt_file_read(DATA "docs.jsonl.zst", &zst, &zst_size), 0);
    d = open_dataset("jsonl", put_parts("pzstd.jsonl.zst", skippable, 12, zst, zst_size), NULL);
    assert_int_equal(d->ref.info.n_documents, 3);
    tt_dataset_free(d);
    d = open_dataset("jsonl", put_parts("after.jsonl.zst", zst, zst_size, skippable, 12), NULL);
    assert_int_equal(d->ref.info.n_documents, 3);
    tt_dataset_free(d);
    d = open_dataset("jsonl", put_parts("padded.jsonl.gz", gz, gz_size, zeros, sizeof zeros), NULL);
    assert_int_equal(d->ref.info.n_documents, 3);
    tt_dataset_free(d);
    expect_failure(prepare("jsonl", put_parts("rest.jsonl.gz", gz, gz_size, "\0\0x", 3), NULL), TT_EDATA,
                   "rest.jsonl.gz: cannot unpack at byte");
    tt_free(gz);
    tt_free(zst);
}

static void other_packings_and_encodings_are_named(void **state)
{
    static const struct {
        const char *content;
        size_t size;
        const char *message;
    } cases[] = {
        {"\x04\x22\x4d\x18lz4", 7, "x' is compressed by lz4, which titan does not read\nhelp: unpack it"},
        {"\xfd"
         "7zXZ\0",
         6, "x' is compressed by xz"},
        {"BZh91AY", 7, "x' is compressed by bzip2"},
        {"\xff\xfe{\0\"\0", 6, "x' is text in UTF-16, which titan does not read\nhelp: convert it: iconv -f UTF-16 -t"},
        {"\xfe\xff\0{\0\"", 6, "x' is text in UTF-16"},
        {"a\0b\0c\0", 6, "x' is text in UTF-16, which titan does not read\nhelp: convert it: iconv -f UTF-16LE -t"},
        {"\0a\0b\0c", 6, "iconv -f UTF-16BE -t"},
        {"\xff\xfe\0\0a\0\0\0", 8, "x' is text in UTF-32"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_failure(prepare("text", put("x", cases[i].content, cases[i].size), NULL), TT_EDATA, cases[i].message);
}

/* ---- tables, and the same rows as JSON lines; write_tables.py made both ---- */

#define TABLES TT_SOURCE_DIR "/tests/fuzz/corpus/table/"

static uint64_t digest_of(const char *name, const char *path)
{
    if (prepare(name, path, NULL) < 0)
        fail_msg("%s", tt_error_message());
    return ref.info.digest;
}

static void tables_are_the_same_data_as_json_lines(void **state)
{
    static const char *const tables[] = {"snappy.parquet",
                                         "zstd-v2.parquet",
                                         "gzip.parquet",
                                         "lz4-v2.parquet",
                                         "none.parquet",
                                         "delta_length_byte_array.parquet",
                                         "delta_byte_array.parquet",
                                         "stream.arrow",
                                         "lz4.arrow",
                                         "zstd.arrow",
                                         "dictionary.arrow"};
    uint64_t wanted = digest_of("jsonl", TABLES "texts.jsonl"), pairs = digest_of("jsonl_sft", TABLES "pairs.jsonl");

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        char *path = tt_format(TABLES "texts-%s", tables[i]);

        log_catch();
        if (digest_of(tt_text_ends(path, ".arrow") ? "arrow" : "parquet", path) != wanted)
            fail_msg("%s holds other texts than texts.jsonl", path);
        assert_non_null(strstr(caught.last, "1 of 14 documents were left out, since their 'text' is null"));
        assert_true(digest_of("jsonl", path) == wanted);
        tt_free(path);
    }
    log_release();
    assert_true(digest_of("jsonl_sft", TABLES "pairs.parquet") == pairs);
}

static int add_row(void *arg, const struct tt_row *row)
{
    struct tt_text *all = arg;

    tt_text_add_bytes(all, row->text, row->size);
    tt_text_add(all, "\n");
    return 0;
}

static void add_rows(const char *path, struct tt_text *all)
{
    char *bytes = NULL;
    size_t size = 0;
    struct tt_table table = {
        .name = path, .columns = "output|messages|instruction|response|completion|input|prompt|tools", .fn = add_row};

    assert_int_equal(tt_file_read(path, &bytes, &size), 0);
    table.bytes = (const uint8_t *)bytes;
    table.size = size;
    table.arg = all;
    if ((tt_text_ends(path, ".arrow") ? tt_arrow_each(&table) : tt_parquet_each(&table)) < 0)
        fail_msg("%s", tt_error_message());
    tt_free(bytes);
}

/* Lists, groups, numbers and nulls, nested, are the same JSON from both formats. */
static void rows_of_tables_become_json(void **state)
{
    static const char second[] = "{\"prompt\":\"\\\"the\",\"input\":null,\"output\":null,\"instruction\":-2,"
                                 "\"response\":[],\"completion\":null}\n";
    static const char fourth[] = "\"output\":1e300,\"instruction\":3,\"response\":[2,3],\"completion\":[null,"
                                 "{\"a\":2}]}\n";
    struct tt_text parquet = {0}, arrow = {0};

    add_rows(TABLES "types.parquet", &parquet);
    add_rows(TABLES "types.arrow", &arrow);
    assert_string_equal(parquet.text, arrow.text);
    assert_non_null(strstr(parquet.text, second));
    assert_non_null(strstr(parquet.text, fourth));
    parquet.size = arrow.size = 0;
    add_rows(TABLES "chats.parquet", &parquet);
    add_rows(TABLES "chats.arrow", &arrow);
    assert_string_equal(parquet.text, arrow.text);
    assert_true(
        tt_text_begins(parquet.text, "{\"messages\":[{\"role\":\"system\",\"content\":\"be brief\",\"weight\":null}"));
    tt_text_release(&parquet);
    tt_text_release(&arrow);
}

static void tables_without_the_text_say_so(void **state)
{
    static const struct {
        const char *dataset, *file, *field, *message;
    } bad[] = {
        {"parquet", "texts-none.parquet", "url",
         "no column 'url' (columns: id, text)\nhelp: set training.text_field=text"},
        {"arrow", "texts-stream.arrow", "id",
         "column 'id' is integers, wanted text\nhelp: set training.text_field=text"},
        {"parquet", "texts-none.parquet", "id", "column 'id' is an integer, wanted text"},
        {"parquet", "chats.parquet", NULL,
         "no column 'text' (columns: id, messages, tools)\nhelp: dataset 'jsonl_sft'"},
        {"arrow", "chats.arrow", "messages",
         "column 'messages' is lists, wanted text\nhelp: dataset 'jsonl_sft' reads"},
        {"jsonl_sft", "texts-none.parquet", NULL, "no column is a member of chat data (columns: id, text)"},
        {"parquet", "texts-brotli.parquet", NULL, "column 'text': titan does not read pages compressed by Brotli"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *path = tt_format(TABLES "%s", bad[i].file);

        expect_failure(prepare(bad[i].dataset, path, bad[i].field), TT_EDATA, bad[i].message);
        tt_free(path);
    }
}

/* Whatever byte is changed, and wherever the file is cut off, it is read or refused with one message. */
static void damaged_tables_are_refused(void **state)
{
    static const char *const files[] = {"texts-snappy.parquet", "texts-gzip.parquet", "chats.parquet",
                                        "texts-lz4.arrow",      "texts-zstd.arrow",   "chats.arrow"};

    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char *path = tt_format(TABLES "%s", files[f]), *bytes = NULL;
        bool is_arrow = tt_text_ends(path, ".arrow");
        struct tt_text all = {0};
        struct tt_table table = {.name = files[f], .columns = "text|messages|tools", .fn = add_row, .arg = &all};
        int refused = 0;

        assert_int_equal(tt_file_read(path, &bytes, &table.size), 0);
        table.bytes = (const uint8_t *)bytes;
        for (size_t i = 0; i < table.size; i += 5) {
            int rc;

            bytes[i] ^= 0x11;
            all.size = 0;
            rc = is_arrow ? tt_arrow_each(&table) : tt_parquet_each(&table);
            assert_true(rc == 0 || rc == TT_EDATA);
            refused += rc < 0;
            bytes[i] ^= 0x11;
        }
        assert_true(refused > 20);
        for (size_t cut = table.size - 1; cut > 16; cut -= cut / 16) {
            struct tt_table part = table;

            part.size = cut;
            all.size = 0;
            if ((is_arrow ? tt_arrow_each(&part) : tt_parquet_each(&part)) != TT_EDATA)
                assert_int_equal((unsigned char)bytes[0], 0xff); /* a stream may end after any batch */
        }
        tt_text_release(&all);
        tt_free(bytes);
        tt_free(path);
    }
}

static void copy_table(const char *from, const char *to)
{
    char *bytes = NULL;
    size_t size = 0;

    assert_int_equal(tt_file_read(from, &bytes, &size), 0);
    (void)put(to, bytes, size);
    tt_free(bytes);
}

/* A folder of datasets, with the splits of its dictionary; a pattern chooses among them. */
static void folders_of_datasets_are_read_as_they_say(void **state)
{
    uint64_t wanted = digest_of("jsonl", TABLES "texts.jsonl");

    assert_int_equal(tt_folder_make(at("hub/train")), 0);
    assert_int_equal(tt_folder_make(at("hub/test")), 0);
    copy_table(TABLES "texts-stream.arrow", "hub/train/data-00000-of-00001.arrow");
    (void)put_text("hub/train/state.json", "{\"_data_files\": [{\"filename\": \"data-00000-of-00001.arrow\"}]}");
    (void)put_text("hub/train/dataset_info.json", "{\n}");
    (void)put_text("hub/train/cache-1.arrow", "not data");
    copy_table(TABLES "texts-stream.arrow", "hub/test/data-00000-of-00001.arrow");
    assert_true(digest_of("arrow", at("hub/train")) == wanted);
    assert_true(digest_of("arrow", at("hub/tr*")) == wanted);
    expect_failure(prepare("arrow", at("hub"), NULL), TT_EDATA,
                   "hub' holds the splits 'test' and 'train' of a dataset");
    (void)put_text("hub/train/state.json", "{\"_data_files\": [{\"filename\": \"../x.arrow\"}]}");
    expect_failure(prepare("arrow", at("hub/train"), NULL), TT_EDATA, "item 1 of '_data_files' does not name a file");
    expect_failure(prepare("arrow", at("hub/no*"), NULL), TT_EDATA, "no file matches '");
    assert_int_equal(tt_folder_make(at("flat")), 0);
    copy_table(TABLES "texts-none.parquet", "flat/train-00000-of-00002.parquet");
    copy_table(TABLES "texts-gzip.parquet", "flat/train-00001-of-00002.parquet");
    assert_int_equal(prepare("parquet", at("flat"), NULL), 0);
    assert_int_equal(ref.info.n_documents, 26);
    copy_table(TABLES "texts-gzip.parquet", "flat/validation-00000-of-00001.parquet");
    expect_failure(prepare("parquet", at("flat"), NULL), TT_EDATA, "help: name the files or the folder of one: '");
    assert_int_equal(prepare("parquet", at("flat/train-*"), NULL), 0);
    assert_int_equal(ref.info.n_documents, 26);
}

/* What a reader sees of a page is its text; files that are no text are named. */
static void pages_of_html_are_read_without_their_tags(void **state)
{
    static const char *const texts[] = {"# kept *as it is*",
                                        "One & two\n\na bold word \xe2\x80\x94"
                                        "A\xc3\xa9&unknown;\n\nx\ny\n\n a\n  b\n\n1 < 2\nz\n\nc d\n"};
    struct tt_dataset *d;

    assert_int_equal(tt_folder_make(at("site")), 0);
    copy_table(TABLES "page.html", "site/page.html");
    (void)put_text("site/empty.html", "<html><script>x()</script> <p></p></html>");
    (void)put_text("site/a.md", "# kept *as it is*");
    d = open_dataset("text", at("site"), NULL);
    expect_documents(d, 2, texts);
    tt_dataset_free(d);
    (void)put_text("site/book.epub", "x");
    expect_failure(prepare("text", at("site"), NULL), TT_EDATA, "book.epub' is a book in a zip archive");
    assert_non_null(strstr(tt_error_message(), "help: make text of it: pandoc"));
    expect_failure(prepare("text", put_text("paper.PDF", "x"), NULL), TT_EDATA, "help: make text of it: pdftotext");
    expect_failure(prepare("text", put_text("paper", "%PDF-1.4"), NULL), TT_EDATA, "paper' is a PDF file");
}

static void a_loop_of_links_is_named(void **state)
{
    assert_int_equal(tt_folder_make(at("ring")), 0);
    assert_int_equal(tt_folder_make(at("ring/inner")), 0);
    (void)put_text("ring/a.txt", "text");
    assert_int_equal(symlink("..", at("ring/inner/back")), 0);
    expect_failure(prepare("text", at("ring"), NULL), TT_EDATA, "/inner/back' is a link to '");
    assert_non_null(strstr(tt_error_message(), "a loop of links"));
}

static void documents_without_a_separator_are_said(void **state)
{
    static const char json[] = "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}, \"pre_tokenizer\": "
                               "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}}";
    struct tt_tokenizer *t = NULL;
    struct tt_dataset_spec spec = {.name = "jsonl", .path = DATA "docs.jsonl"};
    struct tt_token_info info;

    log_catch();
    assert_int_equal(tt_tokenizer_parse(json, strlen(json), NULL, 0, "t.json", &t), 0);
    spec.tokenizer = t;
    assert_int_equal(tt_dataset_pack(&spec, at("joined.tokens"), &info), 0);
    assert_int_equal(caught.warnings, 2); /* the other one is about bytes that are not tokens */
    assert_non_null(
        strstr(caught.last, "t.json names no token that begins or ends a document, so the 3 documents of "));
    log_release();
    tt_tokenizer_free(t);
}

static struct timespec modified(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return st.st_mtim;
}

static void caches_are_kept_and_damaged_ones_made_again(void **state)
{
    const char *path = put_text("cached.txt", "In the beginning God created the heaven and the earth.");
    char *bytes = NULL, *cache;
    struct timespec before, after;
    uint64_t digest;
    size_t size = 0;

    assert_int_equal(prepare("text", path, NULL), 0);
    cache = tt_strdup(ref.path);
    digest = ref.info.digest;
    before = modified(cache);
    assert_int_equal(prepare("text", at("cached.txt"), NULL), 0);
    after = modified(cache);
    assert_memory_equal(&before, &after, sizeof after); /* it was not written again */
    assert_int_equal(tt_file_read(cache, &bytes, &size), 0);
    for (size_t damage = 0; damage <= size;
         damage += 3) { /* flip a bit of every third byte, then cut the last byte off */
        char *copy = tt_calloc(size, 1);

        memcpy(copy, bytes, size);
        if (damage < size)
            copy[damage] ^= 4;
        assert_int_equal(tt_file_replace(cache, copy, damage < size ? size : size - 1), 0);
        log_catch();
        assert_int_equal(prepare("text", at("cached.txt"), NULL), 0);
        assert_non_null(strstr(caught.last, "making the token cache again: "));
        assert_true(ref.info.digest == digest);
        tt_free(copy);
    }
    log_release();
    (void)put_text("cached.txt", "In the beginning was the Word.");
    assert_int_equal(prepare("text", at("cached.txt"), NULL), 0);
    assert_string_not_equal(ref.path, cache);
    tt_free(bytes);
    tt_free(cache);
}

static void tokenizers_have_caches_of_their_own(void **state)
{
    struct tt_dataset_spec spec = {.name = "kjv_validation", .cache_dir = at("cache")};
    struct tt_tokenizer *other = NULL;
    char *path;

    assert_int_equal(prepare("kjv_validation", NULL, NULL), 0);
    path = tt_strdup(ref.path);
    assert_int_equal(tt_tokenizer_load(DATA "gpt2_small.json", &other), 0);
    spec.tokenizer = other;
    assert_int_equal(tt_dataset_prepare(&spec, &ref), 0);
    assert_string_not_equal(ref.path, path);
    assert_int_equal(ref.info.n_documents, 59);
    assert_int_equal(ref.info.bos, -1);
    tt_tokenizer_free(other);
    tt_free(path);
}

/* A chat template may write any token that tokenizer_config.json names, not only BOS and EOS. */
static void conversations_are_made_again_for_other_tokens_of_the_template(void **state)
{
    static const char config[] = "{\"pad_token\": \"%s\", \"chat_template\": \"{%% for m in messages %%}"
                                 "{{ pad_token }}{{ m.content }}{%% endfor %%}\"}";
    const struct tt_tokenizer_info *files = tt_tokenizer_info(tokenizer);
    struct tt_dataset_spec spec = {.name = "jsonl_sft", .cache_dir = at("cache")};
    uint64_t digest[2];

    spec.path = put_text("chats.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"day\"}, "
                                        "{\"role\": \"assistant\", \"content\": \"night\"}]}\n");
    for (int i = 0; i < 2; i++) {
        struct tt_tokenizer *named = NULL;
        char text[256];

        (void)snprintf(text, sizeof text, config, i ? "[two]" : "[one]");
        assert_int_equal(tt_tokenizer_parse(files->json, files->json_size, text, strlen(text), "named", &named), 0);
        spec.tokenizer = named;
        if (tt_dataset_prepare(&spec, &ref) < 0)
            fail_msg("%s", tt_error_message());
        digest[i] = ref.info.digest;
        tt_tokenizer_free(named);
    }
    assert_true(digest[0] != digest[1]);
}

static void failed_packing_leaves_nothing(void **state)
{
    struct tt_dataset_spec spec = {
        .name = "jsonl", .path = put_text("half.jsonl", "{\"text\": \"a\"}\n{"), .tokenizer = tokenizer};
    struct tt_token_info info;
    char **names = NULL;
    int n = 0;

    assert_int_equal(tt_folder_make(at("out")), 0);
    expect_failure(tt_dataset_pack(&spec, at("out/x.tokens"), &info), TT_EDATA, "half.jsonl:2:");
    assert_int_equal(tt_folder_list(at("out"), &names, &n), 0);
    assert_int_equal(n, 0);
    tt_names_free(names, n);
    expect_failure(tt_dataset_pack(&spec, at("no/such/x.tokens"), &info), TT_EIO, "cannot create '");
    assert_int_equal(mkfifo(at("out/pipe"), 0600), 0);
    expect_failure(tt_dataset_pack(&spec, at("out/pipe"), &info), TT_EUSAGE, "out/pipe': it exists and is not a file");
    expect_failure(tt_dataset_pack(&spec, at("out"), &info), TT_EUSAGE, "out': it exists and is not a file");
    spec.name = "tokens";
    expect_failure(tt_dataset_pack(&spec, at("out/x.tokens"), &info), TT_EUSAGE, "is already packed");
}

static void packed_files_train_as_their_text_does(void **state)
{
    struct tt_dataset_spec spec = {.name = "jsonl", .path = DATA "docs.jsonl", .tokenizer = tokenizer};
    static const char *const texts[] = {"In the beginning", "was the Word \xc3\xa9", "last without newline"};
    struct tt_token_info info;
    struct tt_dataset *d;
    char *bytes = NULL;
    size_t size = 0;

    assert_int_equal(tt_dataset_pack(&spec, at("docs.tokens"), &info), 0);
    d = open_dataset("tokens", at("docs.tokens"), NULL);
    expect_documents(d, 3, texts);
    assert_memory_equal(&d->ref.info, &info, sizeof info);
    assert_true(info.tokenizer_hash == tt_tokenizer_info(tokenizer)->hash);
    assert_string_equal(info.unicode, TT_UNICODE_VERSION);
    tt_dataset_free(d);
    assert_int_equal(tt_file_read(at("docs.tokens"), &bytes, &size), 0);
    (void)put("cut.tokens", bytes, size - 8);
    expect_failure(prepare("tokens", at("cut.tokens"), NULL), TT_EDATA, "is truncated: ");
    (void)put("cut.tokens", bytes, 100);
    expect_failure(prepare("tokens", at("cut.tokens"), NULL), TT_EDATA, "less than its header");
    bytes[200] ^= 1;
    (void)put("bent.tokens", bytes, size);
    expect_failure(prepare("tokens", at("bent.tokens"), NULL), TT_EDATA, "does not match the checksum");
    tt_free(bytes);
}

/* A tokenizer without BOS and EOS gives an empty document no tokens. */
static void empty_documents_may_outnumber_the_tokens(void **state)
{
    struct tt_dataset_spec spec = {.name = "jsonl"};
    struct tt_tokenizer *plain = NULL;
    struct tt_token_info info;
    struct tt_dataset *d;

    assert_int_equal(tt_tokenizer_load(DATA "gpt2_small.json", &plain), 0);
    spec.tokenizer = plain;
    spec.path = put_text("hollow.jsonl", "{\"text\": \"\"}\n{\"text\": \"\"}\n{\"text\": \"a\"}\n{\"text\": \"\"}\n");
    assert_int_equal(tt_dataset_pack(&spec, at("hollow.tokens"), &info), 0);
    assert_int_equal(info.n_documents, 4);
    assert_int_equal(info.n_tokens, 1);
    expect_failure(prepare("tokens", at("hollow.tokens"), NULL), TT_EDATA, "packed with another tokenizer");
    spec = (struct tt_dataset_spec){.name = "tokens", .path = at("hollow.tokens"), .tokenizer = plain};
    assert_int_equal(tt_dataset_peek(&spec), 0);
    assert_int_equal(tt_dataset_prepare(&spec, &ref), 0);
    assert_int_equal(tt_dataset_open(&ref, &d), 0);
    assert_memory_equal(&d->ref.info, &info, sizeof info);
    tt_dataset_free(d);
    tt_tokenizer_free(plain);
}

static void foreign_token_files_are_read(void **state)
{
    int32_t llmc[256 + 2] = {20240520, 1, 4};
    const uint16_t tokens[4] = {5, 2047, 0, 9};
    int32_t ids[4];
    struct tt_dataset *d;

    memcpy(llmc + 256, tokens, sizeof tokens);
    (void)put("llmc.bin", llmc, sizeof llmc);
    (void)put("raw.bin", tokens, sizeof tokens);
    for (int i = 0; i < 2; i++) {
        d = i ? open_dataset("tokens_u16", at("raw.bin"), NULL) : open_dataset("tokens", at("llmc.bin"), NULL);
        assert_int_equal(d->ref.info.n_tokens, 4);
        assert_int_equal(d->ref.info.n_documents, 1);
        assert_null(d->offsets);
        assert_int_equal(d->ref.info.max_id, 2047);
        assert_int_equal(tt_dataset_copy(d, 1, 3, ids), 0);
        assert_int_equal(ids[0], 2047);
        assert_int_equal(ids[2], 9);
        tt_dataset_free(d);
    }
}

static void wrong_token_files_are_refused(void **state)
{
    int32_t llmc[256 + 2] = {20240520, 1, 5};
    const uint16_t tokens[4] = {5, 2047, 4000, 9};
    struct tt_dataset_spec spec = {.name = "kjv", .tokenizer = tokenizer, .vocab_size = 2000, .cache_dir = at("cache")};

    (void)put("llmc.bin", llmc, sizeof llmc);
    expect_failure(prepare("tokens", at("llmc.bin"), NULL), TT_EDATA,
                   "is truncated or damaged: its header says 5 tokens, 1034 bytes, the file has 1032");
    llmc[1] = 3;
    expect_failure(prepare("tokens", put("llmc.bin", llmc, sizeof llmc), NULL), TT_EDATA, "of version 3, wanted 1");
    expect_failure(prepare("tokens", put("llmc.bin", llmc, 1000), NULL), TT_EDATA, "less than llm.c's header");
    llmc[1] = 1;
    llmc[2] = 0;
    expect_failure(prepare("tokens", put("llmc.bin", llmc, 1024), NULL), TT_EDATA, "holds no tokens");
    expect_failure(prepare("tokens", put("raw.bin", tokens, sizeof tokens), NULL), TT_EDATA,
                   "is neither a token file of titan nor one of llm.c\nhelp: for headerless uint16");
    expect_failure(prepare("tokens_u16", at("raw.bin"), NULL), TT_EDATA,
                   "raw.bin: token id 4000 at position 2, but model.vocab_size is 2048 (largest id in the file: 4000)");
    expect_failure(prepare("tokens_u16", put("raw.bin", tokens, 7), NULL), TT_EDATA, "an odd number of bytes (7)");
    expect_failure(prepare("tokens_u16", put("raw.bin", tokens, 0), NULL), TT_EDATA, "raw.bin' is empty");
    expect_failure(tt_dataset_prepare(&spec, &ref), TT_EUSAGE,
                   "the tokenizer has 2,048 tokens (built-in tokenizer.json), "
                   "model.vocab_size is 2,000");
}

static void a_file_that_changed_is_not_opened(void **state)
{
    const uint16_t tokens[4] = {5, 2047, 0, 9};
    struct tt_dataset *d = NULL;

    assert_int_equal(prepare("tokens_u16", put("moving.bin", tokens, sizeof tokens), NULL), 0);
    (void)put("moving.bin", tokens, 6);
    expect_failure(tt_dataset_open(&ref, &d), TT_EDATA,
                   "moving.bin' does not hold the tokens that were prepared: it has 6 bytes here, but 8 were prepared");
}

/* A copy on another host may have the same size and other tokens. */
static void ids_that_were_not_prepared_are_refused(void **state)
{
    const uint16_t tokens[4] = {5, 2047, 0, 9}, others[4] = {5, 2047, 2048, 9};
    struct tt_dataset *d = NULL;
    int32_t ids[4];

    assert_int_equal(prepare("tokens_u16", put("copy.bin", tokens, sizeof tokens), NULL), 0);
    (void)put("copy.bin", others, sizeof others);
    assert_int_equal(tt_dataset_open(&ref, &d), 0);
    assert_int_equal(tt_dataset_copy(d, 0, 2, ids), 0);
    expect_failure(
        tt_dataset_copy(d, 1, 3, ids), TT_EDATA,
        "copy.bin' does not hold the tokens that were prepared: id 2048 at position 2, the largest was 2047");
    expect_failure(tt_dataset_verify(d), TT_EDATA, "copy.bin' does not hold the tokens that were prepared: its digest");
    assert_int_equal(truncate(at("copy.bin"), 6), 0);
    expect_failure(tt_dataset_copy(d, 2, 2, ids), TT_EDATA,
                   "copy.bin' does not hold the tokens that were prepared: it has 6 bytes");
    expect_failure(tt_dataset_recheck(d), TT_EDATA, "it has 6 bytes here, but 8 were prepared");
    assert_int_equal(tt_dataset_copy(d, 3, 2, ids), TT_EINTERNAL);
    tt_dataset_free(d);
}

static int start(void **state)
{
    return mkdtemp(folder) ? tt_tokenizer_load(NULL, &tokenizer) : -1;
}

static int finish(void **state)
{
    tt_tokenizer_free(tokenizer);
    return tt_folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builtin_corpora_have_their_chapters),
        cmocka_unit_test(json_lines_are_read_plain_and_packed),
        cmocka_unit_test(folders_are_read_in_the_order_of_names),
        cmocka_unit_test(json_lines_are_not_read_as_text),
        cmocka_unit_test(broken_text_is_named_with_its_place),
        cmocka_unit_test(fields_that_nobody_reads_may_hold_any_value),
        cmocka_unit_test(escapes_become_characters),
        cmocka_unit_test(what_is_not_json_is_named_with_its_column),
        cmocka_unit_test(truncated_packed_text_is_refused),
        cmocka_unit_test(files_of_a_folder_are_not_left_out_in_silence),
        cmocka_unit_test(gzip_members_follow_one_another),
        cmocka_unit_test(padding_and_skippable_frames_are_passed),
        cmocka_unit_test(other_packings_and_encodings_are_named),
        cmocka_unit_test(tables_are_the_same_data_as_json_lines),
        cmocka_unit_test(rows_of_tables_become_json),
        cmocka_unit_test(tables_without_the_text_say_so),
        cmocka_unit_test(damaged_tables_are_refused),
        cmocka_unit_test(folders_of_datasets_are_read_as_they_say),
        cmocka_unit_test(pages_of_html_are_read_without_their_tags),
        cmocka_unit_test(a_loop_of_links_is_named),
        cmocka_unit_test(documents_without_a_separator_are_said),
        cmocka_unit_test(caches_are_kept_and_damaged_ones_made_again),
        cmocka_unit_test(tokenizers_have_caches_of_their_own),
        cmocka_unit_test(conversations_are_made_again_for_other_tokens_of_the_template),
        cmocka_unit_test(failed_packing_leaves_nothing),
        cmocka_unit_test(packed_files_train_as_their_text_does),
        cmocka_unit_test(empty_documents_may_outnumber_the_tokens),
        cmocka_unit_test(foreign_token_files_are_read),
        cmocka_unit_test(wrong_token_files_are_refused),
        cmocka_unit_test(a_file_that_changed_is_not_opened),
        cmocka_unit_test(ids_that_were_not_prepared_are_refused),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, start, finish);
}
