/* SPDX-License-Identifier: MIT
 *
 * `titan data tokenizer`: makes a byte-level BPE from text.
 */
#include <string.h>

#include "cli/cli.h"
#include "cli/commands/data.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/data/source.h"
#include "core/os/path.h"
#include "core/tokenizer/tokenizer.h"
#include "core/tokenizer/train/merges.h"

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
            return 0; /* bos may be eos */
    if (!*token)
        return tt_fail(TT_EUSAGE, "--special: a token must not be empty");
    if (tt_utf8_invalid(token, strlen(token)) >= 0)
        return tt_fail(TT_EUSAGE, "--special: a token must be valid UTF-8");
    if (job->n_special == MOST_SPECIAL)
        return tt_fail(TT_EUSAGE, "--special: more than %d special tokens", MOST_SPECIAL);
    job->special[job->n_special++] = token;
    return 0;
}

/* Of --bos and --eos, or as in the model whose pattern is used; NULL: none. */
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
    char *file;
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
    tt_free(file);
out:
    return rc;
}

/* A wrong expression is a wrong option here, not a wrong file. */
static int init_words(const struct job *job, struct tt_word_counts *words)
{
    int rc = tt_word_counts_init(words, job->pattern, TT_WORDS_MOST);

    if (rc == TT_EDATA) {
        char *message = tt_strdup(tt_error_message());

        rc = tt_fail(TT_EUSAGE, "%s", message);
        tt_free(message);
    }
    return rc;
}

static bool is_jsonl(const char *path)
{
    static const char *const ends[] = {".jsonl",     ".ndjson",     ".jsonl.gz", ".ndjson.gz",
                                       ".jsonl.zst", ".ndjson.zst", ".json.gz"};
    size_t n = strlen(path);

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && strcmp(path + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

static int count_document(void *arg, const char *text, size_t size)
{
    return tt_word_counts_add(arg, text, size);
}

/* Without --dataset, the name of a file tells its kind; a folder has text files. */
static int count_path(const struct job *job, const char *path, struct tt_word_counts *words)
{
    const char *name = tt_args_last(job->args, "dataset"), *field = tt_args_last(job->args, "text_field");
    struct tt_source source = {0};
    bool lines = name ? strcmp(name, "jsonl") == 0 : is_jsonl(path);
    int rc;

    if (name && !lines && strcmp(name, "text") != 0)
        return tt_fail(TT_EUSAGE, "data tokenizer reads --dataset text or jsonl, not '%s'", name);
    TT_TRY(tt_source_init(&source, lines ? TT_SOURCE_JSONL : TT_SOURCE_TEXT, path, field ? field : "text"));
    TT_TRY(tt_source_each(&source, "counting words", count_document, words));
out:
    tt_source_release(&source);
    return rc;
}

static void report(const struct job *job, const struct tt_word_counts *words, const struct tt_bpe_trained *trained)
{
    if (words->n_dropped)
        tt_warn("the text has more than %zu different words; the rarest, %lld of %lld in all, were not used",
                words->most, (long long)words->n_dropped, (long long)words->n_words);
    if (trained->n_tokens < job->vocab)
        tt_warn("the text gives no more than %d tokens, %lld were wanted\nhelp: use more text, or --vocab %d",
                trained->n_tokens, (long long)job->vocab, trained->n_tokens);
}

/* Reads what was written, as a run will, before it is called a success. */
static int check(const struct job *job)
{
    struct tt_tokenizer *tokenizer = NULL;
    int rc = tt_tokenizer_load(job->out, &tokenizer);

    tt_tokenizer_free(tokenizer);
    return rc;
}

int tt_data_tokenizer(const struct tt_args *args)
{
    struct job *job = tt_calloc(1, sizeof *job);
    struct tt_word_counts words = {0};
    struct tt_bpe_trained trained = {0};
    int rc;

    job->args = args;
    tt_cli_install_log();
    TT_TRY(read_options(job));
    TT_TRY(init_words(job, &words));
    for (int i = 1; i < args->n_words; i++)
        TT_TRY(count_path(job, args->word[i], &words));
    TT_TRY(tt_bpe_train(&words, job->vocab, job->n_special, job->special, &trained));
    TT_TRY(tt_bpe_write(&trained, &words, job->bos, job->eos, job->out));
    TT_TRY(check(job));
    report(job, &words, &trained);
    TT_TRY(tt_data_print(
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "path", tt_json_string(job->out), "tokens",
                  (json_int_t)trained.n_tokens, "special", (json_int_t)trained.n_special, "merges",
                  (json_int_t)trained.n_merges, "words", (json_int_t)words.n_words, "different",
                  (json_int_t)words.count.n, "bytes", (json_int_t)trained.text_bytes, "bytes_per_token",
                  trained.text_tokens ? tt_json_number((double)trained.text_bytes / (double)trained.text_tokens)
                                      : json_null()),
        tt_args_has(args, "json")));
out:
    tt_bpe_trained_release(&trained);
    tt_word_counts_release(&words);
    tt_free(job);
    return rc;
}
