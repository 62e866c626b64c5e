/* SPDX-License-Identifier: MIT
 *
 * `titan data`: turns text into a packed token file, inspects such files, and makes tokenizers (data_tokenizer.c).
 */
#include "cli/commands/data.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/config/args.h"
#include "core/data/dataset.h"

enum { SHOWN_TOKENS = 32 };

const struct tt_option tt_data_options[] = {
    {"dataset", "training.dataset", "NAME", "what to read (pack: kjv, text, jsonl, ...; inspect: tokens, tokens_u16)"},
    {"dataset_path", "training.dataset_path", "PATH", "pack: a file or a folder of files"},
    {"text_field", "training.text_field", "FIELD", "pack: the field of JSON lines that holds the text (default: text)"},
    {"chat_template", "training.chat_template", "NAME", "pack: how jsonl_sft writes messages (default: auto)"},
    {"tokenizer", "model.hf_assets_path", "DIR", "folder with tokenizer.json (default: the built-in tokenizer)"},
    {"out", NULL, "PATH", "pack: the token file to write; tokenizer: the folder"},
    {"vocab", NULL, "N", "tokenizer: how many tokens to make (default: 8192)"},
    {"pattern", NULL, "NAME", "tokenizer: how text is cut into words: llama3 (default), gpt2 or a regular expression"},
    {"bos", NULL, "TOKEN", "tokenizer: the token that begins a document (default: as in NAME's model; \"\": none)"},
    {"eos", NULL, "TOKEN", "tokenizer: the token that ends a document (default: as in NAME's model; \"\": none)"},
    {"special", NULL, "TOKEN", "tokenizer: another special token; may repeat"},
    {"force", NULL, NULL, "tokenizer: replace the tokenizer in the folder"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {NULL, NULL, NULL, NULL},
};

static const char usage[] =
    "usage: titan data pack --dataset NAME [--dataset-path PATH] [--chat-template NAME] [--tokenizer DIR] "
    "--out FILE [--json]\n"
    "       titan data inspect FILE [--dataset tokens_u16] [--tokenizer DIR] [--json]\n"
    "       titan data tokenizer [--vocab N] [--pattern NAME] --out DIR [--json] TEXT...\n\n"
    "pack tokenizes documents into one file that training.dataset=tokens maps; inspect checks such a file\n"
    "(or one of llm.c, or headerless uint16 tokens) and says what is in it. tokenizer makes a\n"
    "byte-level BPE from text, in Hugging Face's format.\n\n";

static const char *format_name(const struct tt_token_info *info)
{
    return info->format == TT_TOKENS_TITAN ? "titan" : info->format == TT_TOKENS_LLMC ? "llm.c" : "raw";
}

/* A hash as 16 hexadecimal digits, or null if the file does not have it. */
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
                     tt_json_string(path), "format", format_name(info), "tokens", (json_int_t)info->n_tokens, "learned",
                     (json_int_t)info->n_learned, "documents", (json_int_t)info->n_documents, "dtype",
                     info->item_size == 2 ? "uint16" : "uint32", "bytes", (json_int_t)info->file_size, "vocab_size",
                     id_or_null(info->vocab_size ? info->vocab_size : -1), "bos", id_or_null(info->bos), "eos",
                     id_or_null(info->eos), "max_id", (json_int_t)info->max_id, "digest", hex(info->digest), "source",
                     hex(info->source_hash), "tokenizer", hex(info->tokenizer_hash), "unicode",
                     *info->unicode ? info->unicode : NULL);
}

/* Prints one line per member, in order. Strings with arbitrary content are quoted. */
static void print_members(json_t *json)
{
    enum { KEY_COLUMNS = 15 };
    const char *key;
    json_t *value;

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
}

int tt_data_print(json_t *json, bool as_json)
{
    if (!json)
        return tt_fail(TT_EDATA, "the path is not valid UTF-8 and cannot be printed");
    if (as_json) {
        char *text = tt_json_text(json);

        tt_print("%s\n", text);
        tt_free(text);
    } else {
        print_members(json);
    }
    json_decref(json);
    return fflush(stdout) ? tt_fail(TT_EIO, "cannot write to standard output") : 0;
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

    if (!out || !name || args->n_words != 1) {
        return tt_fail(TT_EUSAGE,
                       "data pack needs %s\nhelp: titan data pack --dataset text --dataset-path PATH --out "
                       "FILE",
                       args->n_words != 1 ? "--dataset-path before the name of a file"
                       : !name            ? "--dataset"
                                          : "--out");
    }
    TT_TRY(tt_tokenizer_load(tt_args_last(args, "tokenizer"), &tokenizer));
    spec.tokenizer = tokenizer;
    TT_TRY(tt_dataset_pack(&spec, out, &info));
    TT_TRY(tt_data_print(describe(out, &info), tt_args_has(args, "json")));
out:
    tt_tokenizer_free(tokenizer);
    return rc;
}

/* Adds the first tokens as text, unless the tokenizer is known to differ from the one that made the file. */
static int add_text(json_t *json, const struct tt_dataset *d, const char *folder, const int32_t *ids, int64_t n)
{
    const struct tt_token_info *info = &d->ref.info;
    struct tt_tokenizer *tokenizer = NULL;
    struct tt_text text = {0};
    int64_t bad;
    int rc = 0;

    TT_TRY(tt_tokenizer_load(folder, &tokenizer));
    if (info->tokenizer_hash != tt_tokenizer_hash(tokenizer) && (!folder || info->tokenizer_hash)) {
        if (folder) {
            rc = tt_fail(TT_EDATA, "%s was packed with another tokenizer than %s", d->ref.path,
                         tt_tokenizer_where(tokenizer));
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

static int inspect(const struct tt_args *args)
{
    const char *name = tt_args_last(args, "dataset");
    struct tt_dataset_spec spec = {.name = name ? name : "tokens", .path = args->n_words > 1 ? args->word[1] : NULL};
    struct tt_dataset_ref *ref = tt_calloc(1, sizeof *ref);
    struct tt_dataset *d = NULL;
    int32_t ids[SHOWN_TOKENS];
    json_t *json = NULL, *list = NULL;
    int64_t n;
    int rc = 0;

    if (args->n_words != 2) {
        TT_TRY(tt_fail(TT_EUSAGE, "data inspect takes one file\nhelp: titan data inspect FILE"));
    }
    if (strncmp(spec.name, "tokens", 6) != 0) {
        TT_TRY(tt_fail(TT_EUSAGE, "data inspect looks into packed files: --dataset is tokens or tokens_u16, not '%s'",
                       spec.name));
    }
    TT_TRY(tt_dataset_prepare(&spec, ref));
    TT_TRY(tt_dataset_open(ref, &d));
    n = ref->info.n_tokens < SHOWN_TOKENS ? ref->info.n_tokens : SHOWN_TOKENS;
    TT_TRY(tt_dataset_copy(d, 0, n, ids));
    json = describe(ref->path, &ref->info);
    list = json_array();
    for (int64_t i = 0; i < n; i++)
        (void)json_array_append_new(list, json_integer(ids[i]));
    (void)json_object_set(json, "first_tokens", list);
    TT_TRY(add_text(json, d, tt_args_last(args, "tokenizer"), ids, n));
    TT_TRY(tt_data_print(json_incref(json), tt_args_has(args, "json")));
out:
    json_decref(json);
    json_decref(list);
    tt_dataset_free(d);
    tt_free(ref);
    return rc;
}

static int run(int argc, char **argv, struct tt_args **ret_args)
{
    const struct tt_args *args;
    int rc = 0;

    TT_TRY(tt_args_parse(argc, argv, tt_data_options, ret_args));
    args = *ret_args;
    if (tt_args_has(args, "help"))
        return tt_cli_print_help(usage, tt_data_options);
    if (args->n_overrides)
        return tt_fail(TT_EUSAGE, "data: unknown option '%s'\nhelp: titan data --help", args->override[0]);
    if (args->n_words && strcmp(args->word[0], "pack") == 0)
        return pack(args);
    if (args->n_words && strcmp(args->word[0], "inspect") == 0)
        return inspect(args);
    if (args->n_words && strcmp(args->word[0], "tokenizer") == 0)
        return tt_data_tokenizer(args);
    if (args->n_words) {
        static const char *const verbs[] = {"pack", "inspect", "tokenizer"};
        const char *near = tt_text_nearest(args->word[0], verbs, 3);

        return tt_fail(TT_EUSAGE, "unknown command 'data %s'\nhelp: %s%s", args->word[0],
                       near ? "titan data " : "use one of data pack, data inspect, data tokenizer", near ? near : "");
    }
    return tt_fail(TT_EUSAGE,
                   "'titan data' needs to know what to do\nhelp: use one of data pack, data inspect, data tokenizer");
out:
    return rc;
}

int tt_command_data(int argc, char **argv)
{
    struct tt_args *args = NULL;
    int rc = run(argc, argv, &args);

    tt_args_free(args);
    return rc < 0 ? tt_cli_fail(rc) : rc > 0 ? rc : tt_cli_finish();
}
