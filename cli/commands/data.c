/* SPDX-License-Identifier: MIT
 *
 * `titan data`: turns text into a packed token file, inspects such files, and makes tokenizers.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/config/args.h"
#include "core/data/dataset.h"
#include "core/data/source.h"
#include "core/data/table.h"
#include "core/os/file.h"
#include "core/tokenizer/tokenizer.h"
#include "core/tokenizer/train.h"

/**
 * What a corpus contains: its documents, their lengths, the scripts of their letters, equal documents, odd characters.
 * Memory: about 40 bytes for a document. Two documents count as equal if their hashes of 128 bits are.
 */
enum { TT_SURVEY_SCRIPTS = 18 };

struct tt_survey {
    int64_t documents, empty, bytes;
    int64_t duplicates, duplicate_bytes; /* documents that are equal to an earlier one */
    int64_t odd_bytes;                   /* of control characters, U+FFFD, private characters and the like */
    int64_t letters, letters_of[TT_SURVEY_SCRIPTS];
    int64_t *length; /* in bytes, of every document; sorted by length_at */
    int64_t cap;
    bool is_sorted;
    struct tt_survey_hash {
        uint64_t part[2];
    } * hash; /* a table of hashes by their first part; 0, 0: free */
    size_t n_hashes, hash_cap;
};

/* --- what a corpus contains --- */

/* Blocks of letters, in order. Digits, punctuation, symbols and marks are in none. */
static const struct {
    uint32_t first, last;
    int script;
} blocks[] = {
    {0x41, 0x5a, 0},      {0x61, 0x7a, 0},      {0xaa, 0xaa, 0},       {0xba, 0xba, 0},      {0xc0, 0xd6, 0},
    {0xd8, 0xf6, 0},      {0xf8, 0x24f, 0},     {0x370, 0x3ff, 1},     {0x400, 0x52f, 2},    {0x531, 0x58f, 3},
    {0x5d0, 0x5f2, 4},    {0x620, 0x64a, 5},    {0x66e, 0x6d3, 5},     {0x6fa, 0x6ff, 5},    {0x750, 0x77f, 5},
    {0x904, 0x939, 6},    {0x958, 0x961, 6},    {0x985, 0x9b9, 7},     {0xb85, 0xbb9, 8},    {0xc05, 0xc39, 9},
    {0xe01, 0xe30, 10},   {0xe40, 0xe46, 10},   {0xf40, 0xf6c, 16},    {0x10a0, 0x10ff, 11}, {0x1100, 0x11ff, 12},
    {0x1200, 0x137f, 13}, {0x1e00, 0x1eff, 0},  {0x1f00, 0x1fff, 1},   {0x3041, 0x309f, 14}, {0x30a1, 0x30ff, 14},
    {0x3400, 0x4dbf, 15}, {0x4e00, 0x9fff, 15}, {0xac00, 0xd7a3, 12},  {0xf900, 0xfaff, 15}, {0xff21, 0xff3a, 0},
    {0xff41, 0xff5a, 0},  {0xff66, 0xff9d, 14}, {0x20000, 0x323af, 15}};

static const char *const scripts[TT_SURVEY_SCRIPTS] = {
    "Latin",  "Greek", "Cyrillic", "Armenian", "Hebrew",   "Arabic", "Devanagari", "Bengali", "Tamil",
    "Telugu", "Thai",  "Georgian", "Hangul",   "Ethiopic", "Kana",   "Han",        "Tibetan", "other"};

/* The name of a script, such as "Latin"; the last one is "other". */
static const char *script_name(int number)
{
    return scripts[number];
}

/* The script of a letter beyond ASCII; -1: it is no letter. */
static int script_of(uint32_t code)
{
    int low = 0, high = (int)(sizeof blocks / sizeof *blocks) - 1;

    while (low <= high) {
        int middle = (low + high) / 2;

        if (code < blocks[middle].first)
            high = middle - 1;
        else if (code > blocks[middle].last)
            low = middle + 1;
        else
            return blocks[middle].script;
    }
    return (code >= 0x700 && code < 0x2000) || (code >= 0xa000 && code < 0xac00) ? TT_SURVEY_SCRIPTS - 1 : -1;
}

static bool is_odd(uint32_t code)
{
    return (code < 0x20 && code != '\t' && code != '\n' && code != '\r' && code != '\f') ||
           (code >= 0x7f && code < 0xa0) || (code >= 0xe000 && code < 0xf900) || code == 0xfffd || code == 0xfeff ||
           (code & 0xfffe) == 0xfffe || code >= 0xe0000;
}

static void count_letters(struct tt_survey *s, const char *text, size_t size)
{
    for (size_t i = 0; i < size;) {
        uint32_t code = (unsigned char)text[i];
        int n = 1, script;

        if (code >= 0x80) {
            n = tt_utf8_decode(text + i, size - i, &code);
            n = n ? n : 1;
        }
        script = code >= 0x80 ? script_of(code) : (code | 0x20) >= 'a' && (code | 0x20) <= 'z' ? 0 : -1;
        if (script >= 0) {
            s->letters++;
            s->letters_of[script]++;
        }
        s->odd_bytes += is_odd(code) ? n : 0;
        i += (size_t)n;
    }
}

/* Where the hash is, or could be. */
static struct tt_survey_hash *place(const struct tt_survey *s, const struct tt_survey_hash *h)
{
    size_t i = h->part[0] & (s->hash_cap - 1);

    while ((s->hash[i].part[0] || s->hash[i].part[1]) &&
           (s->hash[i].part[0] != h->part[0] || s->hash[i].part[1] != h->part[1]))
        i = (i + 1) & (s->hash_cap - 1);
    return &s->hash[i];
}

static void grow(struct tt_survey *s)
{
    struct tt_survey_hash *old = s->hash;
    size_t old_cap = s->hash_cap;

    s->hash_cap = old_cap ? 2 * old_cap : 1024;
    s->hash = tt_calloc(s->hash_cap, sizeof *s->hash);
    for (size_t i = 0; i < old_cap; i++)
        if (old[i].part[0] || old[i].part[1])
            *place(s, &old[i]) = old[i];
    tt_free(old);
}

/* Takes a document of valid UTF-8; returns whether an equal one came before. Zero-initialise the survey. */
static bool add_to_survey(struct tt_survey *survey, const char *text, size_t size)
{
    struct tt_survey_hash h = {{tt_hash64(text, size, 0), tt_hash64(text, size, 1) | 1}}, *at;
    bool is_known;

    if (2 * survey->n_hashes >= survey->hash_cap)
        grow(survey);
    at = place(survey, &h);
    is_known = at->part[1] != 0;
    *at = h;
    survey->n_hashes += !is_known;
    survey->duplicates += is_known;
    survey->duplicate_bytes += is_known ? (int64_t)size : 0;
    survey->empty += size == 0;
    survey->bytes += (int64_t)size;
    survey->is_sorted = false;
    TT_PUSH(survey->length, survey->documents, survey->cap) = (int64_t)size;
    count_letters(survey, text, size);
    return is_known;
}

static void release_counts(struct tt_survey *survey)
{
    tt_free(survey->length);
    tt_free(survey->hash);
    *survey = (struct tt_survey){0};
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* The length that the given share (0 to 1) of the documents does not exceed; 0 without documents. */
static int64_t length_at(struct tt_survey *survey, double share)
{
    int64_t i = (int64_t)(share * (double)survey->documents);

    if (!survey->documents)
        return 0;
    if (!survey->is_sorted)
        qsort(survey->length, (size_t)survey->documents, sizeof *survey->length, compare);
    survey->is_sorted = true;
    return survey->length[i < survey->documents ? i : survey->documents - 1];
}

enum { SHOWN_TOKENS = 32 };

static const struct tt_option options[] = {
    {"dataset", TT_KEY_NAME(training.dataset), "NAME",
     "what to read (kjv, text, jsonl, parquet, ...; inspect: also tokens, tokens_u16)"},
    {"dataset_path", TT_KEY_NAME(training.dataset_path), "PATH", "pack: a file or a folder of files"},
    {"text_field", TT_KEY_NAME(training.text_field), "FIELD",
     "pack: the field of JSON lines that holds the text (default: text)"},
    {"chat_template", TT_KEY_NAME(training.chat_template), "NAME",
     "pack: how jsonl_sft writes messages (default: auto)"},
    {"tokenizer", TT_KEY_NAME(model.hf_assets_path), "DIR",
     "folder with tokenizer.json (default: the built-in tokenizer)"},
    {"out", NULL, "PATH", "pack: the token file to write; tokenizer: the folder"},
    {"vocab", NULL, "N", "tokenizer: how many tokens to make (default: 8192)"},
    {"pattern", NULL, "NAME", "tokenizer: how text is cut into words: llama3 (default), gpt2 or a regular expression"},
    {"bos", NULL, "TOKEN", "tokenizer: the token that begins a document (default: as in NAME's model; \"\": none)"},
    {"eos", NULL, "TOKEN", "tokenizer: the token that ends a document (default: as in NAME's model; \"\": none)"},
    {"special", NULL, "TOKEN", "tokenizer: another special token; may repeat"},
    {"force", NULL, NULL, "tokenizer: replace the tokenizer in the folder"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan data pack --dataset NAME [--dataset-path PATH] [--chat-template NAME] [--tokenizer DIR] "
    "--out FILE [--json]\n"
    "       titan data inspect PATH [--dataset NAME] [--text-field FIELD] [--tokenizer DIR] [--json]\n"
    "       titan data dedup --dataset NAME [--dataset-path PATH] [--text-field FIELD] --out FILE [--json]\n"
    "       titan data tokenizer [--vocab N] [--pattern NAME] --out DIR [--json] TEXT...\n\n"
    "pack tokenizes documents into one file that training.dataset=tokens maps; inspect checks such a file\n"
    "(or one of llm.c, or headerless uint16 tokens) and says what is in it, or, with the name of a dataset\n"
    "of text, counts its documents. dedup writes every document once, as JSON lines. tokenizer makes a\n"
    "byte-level BPE from text, in Hugging Face's format.\n\n";

/* A hash as 16 hexadecimal digits, or null if the file does not contain it. */
static json_t *hex(uint64_t hash)
{
    char digits[24];

    if (!hash)
        return json_null();
    (void)snprintf(digits, sizeof digits, "%016" PRIx64, hash);
    return json_string(digits);
}

static json_t *id_or_null(int64_t id)
{
    return id < 0 ? json_null() : json_integer(id);
}

static json_t *describe(const char *path, const struct tt_token_info *info)
{
    return json_pack("{s:o, s:s, s:I, s:I, s:I, s:s, s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:s?}", "path",
                     tt_json_string(path), "format",
                     info->format == TT_TOKENS_TITAN  ? "titan"
                     : info->format == TT_TOKENS_LLMC ? "llm.c"
                                                      : "raw",
                     "tokens", (json_int_t)info->n_tokens, "learned", (json_int_t)info->n_learned, "documents",
                     (json_int_t)info->n_documents, "dtype", info->item_size == 2 ? "uint16" : "uint32", "bytes",
                     (json_int_t)info->file_size, "vocab_size", id_or_null(info->vocab_size ? info->vocab_size : -1),
                     "bos", id_or_null(info->bos), "eos", id_or_null(info->eos), "max_id", (json_int_t)info->max_id,
                     "digest", hex(info->digest), "source", hex(info->source_hash), "tokenizer",
                     hex(info->tokenizer_hash), "unicode", *info->unicode ? info->unicode : NULL);
}

/* Prints json as JSON, or as one line per member, with free text in quotes; releases it. */
static int print_result(json_t *json, const struct tt_args *args)
{
    enum { KEY_COLUMNS = 15 };
    const char *key;
    json_t *value;

    if (!json)
        return tt_fail(TT_EDATA, "the path is not valid UTF-8 and cannot be printed");
    if (tt_args_has(args, "json")) {
        tt_cli_print_line(json);
        return 0;
    }
    json_object_foreach(json, key, value)
    {
        char *text = tt_json_text(value), count[32];

        if (json_is_integer(value))
            tt_print("%-*s %s\n", KEY_COLUMNS, key, tt_text_count(count, sizeof count, json_integer_value(value)));
        else if (json_is_real(value))
            tt_print("%-*s %.2f\n", KEY_COLUMNS, key, json_real_value(value));
        else if (json_is_string(value) && strcmp(key, "first_text") != 0)
            tt_print("%-*s %s\n", KEY_COLUMNS, key, json_string_value(value));
        else
            tt_print("%-*s %s\n", KEY_COLUMNS, key, json_is_null(value) ? "-" : text);
        tt_free(text);
    }
    json_decref(json);
    return 0;
}

static int pack(const struct tt_args *args)
{
    const char *out = tt_args_last(args, "out"), *name = tt_args_last(args, "dataset");
    struct tt_tokenizer *tokenizer = NULL;
    struct tt_token_info info = {0};
    struct tt_dataset_spec spec = {.name = name,
                                   .path = tt_args_last(args, "dataset_path"),
                                   .text_field = tt_args_last(args, "text_field"),
                                   .chat_template = tt_args_last(args, "chat_template")};
    int rc = 0;

    if (!out || !name || args->n_words != 1)
        return tt_fail(TT_EUSAGE,
                       "data pack needs %s\nhelp: titan data pack --dataset text --dataset-path PATH --out "
                       "FILE",
                       args->n_words != 1 ? "--dataset-path before the name of a file"
                       : !name            ? "--dataset"
                                          : "--out");
    TT_TRY(tt_tokenizer_load(tt_args_last(args, "tokenizer"), &tokenizer));
    spec.tokenizer = tokenizer;
    TT_TRY(tt_dataset_pack(&spec, out, &info));
    rc = print_result(describe(out, &info), args);
out:
    tt_tokenizer_free(tokenizer);
    return rc;
}

/* Adds the first tokens as text, unless the file is known to come from another tokenizer. */
static int add_text(json_t *json, const struct tt_dataset *d, const char *folder, const int32_t *ids, int64_t n)
{
    const struct tt_token_info *info = &d->ref.info;
    struct tt_tokenizer *tokenizer = NULL;
    struct tt_text text = {0};
    int64_t bad;
    int rc = 0;

    TT_TRY(tt_tokenizer_load(folder, &tokenizer));
    if (info->tokenizer_hash != tt_tokenizer_info(tokenizer)->hash && (!folder || info->tokenizer_hash)) {
        if (folder) {
            rc = tt_fail(TT_EDATA, "%s was packed with another tokenizer, not with %s", d->ref.path,
                         tt_tokenizer_info(tokenizer)->where);
        }
        goto out;
    }
    TT_TRY(tt_tokenizer_decode(tokenizer, ids, n, &text));
    bad = text.size ? tt_utf8_invalid(text.text, text.size) : 0; /* the last token may end within a character */
    (void)json_object_set_new(json, "first_text",
                              json_stringn(text.size ? text.text : "", bad < 0 ? text.size : (size_t)bad));
out:
    tt_text_release(&text);
    tt_tokenizer_free(tokenizer);
    return rc;
}

/* --- titan data inspect and dedup of text --- */

struct survey {
    struct tt_survey counts;
    struct tt_encoder *encoder; /* NULL: tokens are not counted */
    struct tt_ids ids;
    int64_t tokens;
    int fd; /* where documents are written, -1: nowhere */
    const char *name;
    bool are_lines; /* documents are lines of JSON already */
    struct tt_text line;
};

static int take_document(void *arg, const char *text, size_t size)
{
    struct survey *s = arg;
    bool is_known = add_to_survey(&s->counts, text, size);
    int rc = 0, error;

    if (s->encoder) {
        s->ids.n = 0;
        TT_TRY(tt_encoder_encode_document(s->encoder, text, size, &s->ids));
        s->tokens += (int64_t)s->ids.n;
    }
    if (s->fd < 0 || is_known)
        return 0;
    s->line.size = 0;
    tt_text_add(&s->line, "%s", s->are_lines ? "" : "{\"text\": ");
    if (s->are_lines)
        tt_text_add_bytes(&s->line, text, size);
    else
        tt_table_add_string(&s->line, text, size);
    tt_text_add(&s->line, "%s\n", s->are_lines ? "" : "}");
    error = tt_file_put(s->fd, s->line.text, s->line.size);
    if (error)
        rc = tt_file_fail("write", s->name, error, NULL);
out:
    return rc;
}

static json_t *describe_survey(struct survey *s, const char *path)
{
    struct tt_survey *c = &s->counts;
    json_t *json =
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "path", tt_json_string(path), "documents",
                  (json_int_t)c->documents, "empty", (json_int_t)c->empty, "bytes", (json_int_t)c->bytes, "length_p50",
                  (json_int_t)length_at(c, 0.5), "length_p90", (json_int_t)length_at(c, 0.9), "length_max",
                  (json_int_t)length_at(c, 1.0), "duplicates", (json_int_t)c->duplicates, "duplicate_bytes",
                  (json_int_t)c->duplicate_bytes, "odd_percent",
                  tt_json_number(c->bytes ? 100.0 * (double)c->odd_bytes / (double)c->bytes : 0.0));

    if (s->encoder)
        (void)json_object_set_new(json, "tokens", json_integer(s->tokens));
    for (int i = 0; i < TT_SURVEY_SCRIPTS; i++) {
        char *key = tt_format("letters_%s", script_name(i));

        if (c->letters_of[i])
            (void)json_object_set_new(json, key, json_integer(c->letters_of[i]));
        tt_free(key);
    }
    return json;
}

static void survey_release(struct survey *s)
{
    release_counts(&s->counts);
    tt_encoder_free(s->encoder);
    tt_ids_release(&s->ids);
    tt_text_release(&s->line);
}

static int inspect_text(const struct tt_args *args, const struct tt_dataset_spec *spec)
{
    const char *folder = tt_args_last(args, "tokenizer");
    struct tt_tokenizer *tokenizer = NULL;
    struct survey s = {.fd = -1};
    int rc = 0;

    if (folder) {
        TT_TRY(tt_tokenizer_load(folder, &tokenizer));
        TT_TRY(tt_encoder_new(tokenizer, &s.encoder));
    }
    TT_TRY(tt_dataset_each(spec, "reading documents", take_document, &s));
    rc = print_result(describe_survey(&s, spec->path ? spec->path : spec->name), args);
out:
    survey_release(&s);
    tt_tokenizer_free(tokenizer);
    return rc;
}

struct writing {
    const struct tt_dataset_spec *spec;
    struct survey *survey;
};

static int write_first(void *arg, int fd, const char *name)
{
    const struct writing *w = arg;

    w->survey->fd = fd;
    w->survey->name = name;
    return tt_dataset_each(w->spec, "reading documents", take_document, w->survey);
}

static int dedup(const struct tt_args *args)
{
    const char *out = tt_args_last(args, "out");
    struct tt_dataset_spec spec = {.name = tt_args_last(args, "dataset"),
                                   .path = tt_args_last(args, "dataset_path"),
                                   .text_field = tt_args_last(args, "text_field")};
    struct survey s = {.fd = -1};
    struct writing w = {&spec, &s};
    int rc = 0;

    if (!out || !spec.name || args->n_words != 1)
        return tt_fail(TT_EUSAGE, "data dedup needs --dataset, --dataset-path and --out\nhelp: titan data dedup "
                                  "--dataset jsonl --dataset-path PATH --out FILE.jsonl");
    s.are_lines = strcmp(spec.name, "jsonl_sft") == 0;
    TT_TRY(tt_file_replace_by(out, write_first, &w));
    rc = print_result(json_pack("{s:o, s:I, s:I, s:I, s:I}", "path", tt_json_string(out), "documents",
                                (json_int_t)(s.counts.documents - s.counts.duplicates), "bytes",
                                (json_int_t)(s.counts.bytes - s.counts.duplicate_bytes), "dropped",
                                (json_int_t)s.counts.duplicates, "dropped_bytes", (json_int_t)s.counts.duplicate_bytes),
                      args);
out:
    survey_release(&s);
    return rc;
}

static int inspect(const struct tt_args *args)
{
    const char *name = tt_args_last(args, "dataset");
    struct tt_dataset_spec spec = {.name = name ? name : "tokens", .path = args->n_words > 1 ? args->word[1] : NULL};
    struct tt_dataset_ref *ref = tt_calloc(1, sizeof *ref);
    struct tt_dataset *d = NULL;
    int32_t ids[SHOWN_TOKENS];
    json_t *json = NULL, *list;
    int64_t n;
    int rc = 0;

    if (args->n_words != 2)
        TT_TRY(tt_fail(TT_EUSAGE, "data inspect takes one file\nhelp: titan data inspect FILE"));
    if (strncmp(spec.name, "tokens", 6) != 0) {
        spec.text_field = tt_args_last(args, "text_field");
        rc = inspect_text(args, &spec);
        goto out;
    }
    TT_TRY(tt_dataset_prepare(&spec, ref));
    TT_TRY(tt_dataset_open(ref, &d));
    n = ref->info.n_tokens < SHOWN_TOKENS ? ref->info.n_tokens : SHOWN_TOKENS;
    TT_TRY(tt_dataset_copy(d, 0, n, ids));
    json = describe(ref->path, &ref->info);
    list = json_array();
    for (int64_t i = 0; i < n; i++)
        (void)json_array_append_new(list, json_integer(ids[i]));
    (void)json_object_set_new(json, "first_tokens", list);
    TT_TRY(add_text(json, d, tt_args_last(args, "tokenizer"), ids, n));
    rc = print_result(json_incref(json), args);
out:
    json_decref(json);
    tt_dataset_free(d);
    tt_free(ref);
    return rc;
}

/* --- titan data tokenizer --- */

enum { MOST_SPECIAL = 1024, DEFAULT_VOCAB = 8192 };

struct job {
    const struct tt_args *args;
    const char *out, *pattern, *bos, *eos;
    int64_t vocab;
    const char *special[MOST_SPECIAL];
    int n_special;
};

static int add_special(struct job *job, const char *token)
{
    for (int i = 0; i < job->n_special; i++)
        if (strcmp(job->special[i], token) == 0)
            return 0; /* bos and eos may be the same token */
    if (!*token)
        return tt_fail(TT_EUSAGE, "--special: a token must not be empty");
    if (tt_utf8_invalid(token, strlen(token)) >= 0)
        return tt_fail(TT_EUSAGE, "--special: a token must be valid UTF-8");
    if (job->n_special == MOST_SPECIAL)
        return tt_fail(TT_EUSAGE, "--special: more than %d special tokens", MOST_SPECIAL);
    job->special[job->n_special++] = token;
    return 0;
}

/* The BOS or EOS token: from --bos or --eos, or from the model whose pattern is used; NULL: none. */
static const char *end_token(const struct job *job, const char *option, const char *llama3)
{
    const char *token = tt_args_last(job->args, option);

    if (!token)
        token = strcmp(job->pattern, "gpt2") == 0 ? "<|endoftext|>" : llama3;
    return *token ? token : NULL;
}

static int read_options(struct job *job)
{
    const struct tt_args *args = job->args;
    const char *token;
    bool exists = false;
    char *file = NULL;
    int rc = 0;

    job->out = tt_args_last(args, "out");
    job->pattern = tt_args_has(args, "pattern") ? tt_args_last(args, "pattern") : "llama3";
    job->vocab = DEFAULT_VOCAB;
    if (!job->out || args->n_words < 2)
        return tt_fail(TT_EUSAGE, "data tokenizer needs %s\nhelp: titan data tokenizer --vocab 8192 --out DIR TEXT...",
                       job->out ? "text: files or folders" : "--out");
    TT_TRY(tt_cli_count("data tokenizer", args, "vocab", 256, INT32_MAX, &job->vocab));
    job->bos = end_token(job, "bos", "<|begin_of_text|>");
    job->eos = end_token(job, "eos", "<|end_of_text|>");
    if (job->bos)
        TT_TRY(add_special(job, job->bos));
    if (job->eos)
        TT_TRY(add_special(job, job->eos));
    for (int i = 0; (token = tt_args_value(args, "special", i)); i++)
        TT_TRY(add_special(job, token));
    if (job->vocab < 256 + job->n_special)
        return tt_fail(TT_EUSAGE, "--vocab: %lld is too small: 256 bytes and %d special tokens are the least",
                       (long long)job->vocab, job->n_special);
    file = tt_format("%s/tokenizer.json", job->out);
    rc = tt_path_exists(file, &exists);
    if (rc == 0 && exists && !tt_args_has(args, "force"))
        rc = tt_fail(TT_EUSAGE, "'%s' exists\nhelp: --force replaces it", file);
out:
    tt_free(file);
    return rc;
}

static int count_document(void *arg, const char *text, size_t size)
{
    return tt_word_counts_add(arg, text, size);
}

/* Without --dataset, the names of the files tell their kind. */
static int count_path(const struct job *job, const char *path, struct tt_word_counts *words)
{
    struct tt_dataset_spec spec = {
        .name = tt_args_last(job->args, "dataset"), .path = path, .text_field = tt_args_last(job->args, "text_field")};
    int rc = 0;

    if (!spec.name)
        TT_TRY(tt_source_guess(path, &spec.name));
    if (!tt_text_is_one_of(spec.name, "text|jsonl|parquet|arrow"))
        return tt_fail(TT_EUSAGE, "data tokenizer reads --dataset text, jsonl, parquet or arrow, not '%s'", spec.name);
    TT_TRY(tt_dataset_each(&spec, "counting words", count_document, words));
out:
    return rc;
}

/* `titan data tokenizer`. */
static int run_tokenizer(const struct tt_args *args)
{
    struct job *job = tt_calloc(1, sizeof *job);
    struct tt_tokenizer *tokenizer = NULL;
    struct tt_word_counts words = {0};
    struct tt_bpe_trained trained = {0};
    int rc;

    job->args = args;
    TT_TRY(read_options(job));
    rc = tt_word_counts_init(&words, job->pattern, TT_WORDS_MOST);
    if (rc == TT_EDATA) /* an invalid expression is a fault of the option, not of a file */
        rc = tt_fail(TT_EUSAGE, "%s", tt_error_message());
    TT_TRY(rc);
    for (int i = 1; i < args->n_words; i++)
        TT_TRY(count_path(job, args->word[i], &words));
    TT_TRY(tt_bpe_train(&words, job->vocab, job->n_special, job->special, &trained));
    TT_TRY(tt_bpe_write(&trained, &words, job->bos, job->eos, job->out));
    TT_TRY(tt_tokenizer_load(job->out, &tokenizer)); /* loads it as a run would, before reporting success */
    if (words.n_dropped)
        tt_warn("the text has more than %zu different words; the rarest, %lld of %lld in all, were not used",
                words.most, (long long)words.n_dropped, (long long)words.n_words);
    if (trained.n_tokens < job->vocab)
        tt_warn("the text gives no more than %d tokens, but %lld were wanted\nhelp: use more text, or --vocab %d",
                trained.n_tokens, (long long)job->vocab, trained.n_tokens);
    rc = print_result(json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "path", tt_json_string(job->out), "tokens",
                                (json_int_t)trained.n_tokens, "special", (json_int_t)trained.n_special, "merges",
                                (json_int_t)trained.n_merges, "words", (json_int_t)words.n_words, "different",
                                (json_int_t)words.count.n, "bytes", (json_int_t)trained.text_bytes, "bytes_per_token",
                                trained.text_tokens
                                    ? tt_json_number((double)trained.text_bytes / (double)trained.text_tokens)
                                    : json_null()),
                      args);
out:
    tt_tokenizer_free(tokenizer);
    tt_bpe_trained_release(&trained);
    tt_word_counts_release(&words);
    tt_free(job);
    return rc;
}

static const struct tt_cli_verb verbs[] = {
    {"pack", .run = pack},
    {"inspect", .run = inspect},
    {"dedup", .run = dedup},
    {"tokenizer", .run = run_tokenizer},
    {0},
};

const struct tt_command tt_command_data = {
    .name = "data",
    .arguments = "pack|inspect|dedup|tokenizer ...",
    .summary = "turn text into a token file, inspect one, or make a tokenizer",
    .usage = usage,
    .options = options,
    .verbs = verbs,
};
