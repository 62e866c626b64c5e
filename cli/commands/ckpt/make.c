/* SPDX-License-Identifier: MIT
 *
 * `titan ckpt consolidate, convert, average`: checkpoints in other formats, and their mean.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/tools/consolidate.h"
#include "checkpoint/tools/convert.h"
#include "cli/commands/ckpt/ckpt.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/base/text.h"

/* A GGUF file has a type of its own, and is one file. */
static int read_type(const struct tt_args *args, struct tt_consolidate *options_out)
{
    static const char *const refused[] = {"dtype", "max_shard_size"};
    const char *type = tt_args_last(args, "type");
    bool gguf = options_out->format == TT_FORMAT_GGUF;

    if (type && !gguf)
        return tt_fail(TT_EUSAGE, "--type is of --format gguf\nhelp: other formats take --dtype");
    for (size_t i = 0; gguf && i < sizeof refused / sizeof *refused; i++)
        if (tt_args_has(args, refused[i]))
            return tt_fail(TT_EUSAGE, "%s",
                           i ? "--format gguf writes one file, so --max-shard-size has no meaning"
                             : "--format gguf takes --type, not --dtype\nhelp: --type bf16");
    options_out->type = type ? tt_gguf_type_named(type) : NULL;
    if (type && !options_out->type)
        return tt_fail(TT_EUSAGE, "no type '%s'\nhelp: --type takes f32, f16, bf16, q8_0 or q4_0", type);
    return 0;
}

static int read_options(const struct tt_args *args, struct tt_consolidate *options_out)
{
    static const struct {
        const char *name;
        enum tt_dtype dtype;
    } dtypes[] = {{"float32", TT_F32}, {"bfloat16", TT_BF16}, {"float16", TT_F16}};
    const char *format = tt_args_last(args, "format"), *dtype = tt_args_last(args, "dtype");
    const char *size = tt_args_last(args, "max_shard_size");

    if (format && strcmp(format, "hf") == 0)
        options_out->format = TT_FORMAT_HF;
    else if (format && strcmp(format, "dcp") == 0)
        options_out->format = TT_FORMAT_DCP;
    else if (format && strcmp(format, "gguf") == 0)
        options_out->format = TT_FORMAT_GGUF;
    else if (format && strcmp(format, "titan") != 0)
        return tt_fail(TT_EUSAGE, "no format '%s'\nhelp: --format takes titan, hf, dcp or gguf", format);
    if (tt_args_has(args, "adapter")) {
        if (format)
            return tt_fail(TT_EUSAGE, "--adapter writes PEFT's format, so --format %s has no meaning", format);
        options_out->format = TT_FORMAT_PEFT;
    }
    if (read_type(args, options_out) < 0)
        return TT_EUSAGE;
    for (size_t i = 0; dtype && i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, dtype) != 0)
            continue;
        options_out->has_dtype = true;
        options_out->dtype = dtypes[i].dtype;
    }
    if (dtype && !options_out->has_dtype)
        return tt_cli_fail_choice("dtype", dtype, (const char *const[]){"float32", "bfloat16", "float16"}, 3);
    if (size && (!tt_text_to_bytes(size, &options_out->max_shard_bytes) || options_out->max_shard_bytes < 1))
        return tt_fail(TT_EUSAGE, "--max-shard-size '%s' is not a size\nhelp: such as 500MiB or 5GiB", size);
    options_out->told = (struct tt_told){.model = tt_args_last(args, "model"),
                                         .flavor = tt_args_last(args, "flavor"),
                                         .assets = tt_args_last(args, "assets")};
    if (!options_out->told.model != !options_out->told.flavor)
        return tt_fail(TT_EUSAGE, "--model and --flavor name a model together\nhelp: --model llama3 --flavor 8B");
    options_out->averages = tt_args_has(args, "ema");
    options_out->force = tt_args_has(args, "force");
    return 0;
}

static int make(const struct tt_args *args, struct tt_consolidate what,
                int (*write)(const struct tt_consolidate *options, struct tt_consolidated *ret_result))
{
    const char *pattern;
    struct tt_consolidated done;
    char bytes[32];
    int rc = 0;

    what.leave_out.is_list = true;
    for (int cap = 0; (pattern = tt_args_value(args, "leave_out", what.leave_out.n));)
        TT_PUSH(what.leave_out.word, what.leave_out.n, cap) = (char *)(uintptr_t)pattern;
    TT_TRY(read_options(args, &what));
    TT_TRY(write(&what, &done));
    tt_free(what.leave_out.word);
    if (tt_args_has(args, "json"))
        return tt_cli_print_json(json_pack("{s:o,s:o,s:i,s:i,s:I}", "source", tt_json_string(done.source),
                                           "destination", tt_json_string(what.destination), "files", done.files,
                                           "tensors", done.tensors, "bytes", (json_int_t)done.bytes));
    if (what.n_more)
        tt_print("mean of %d checkpoints: ", 1 + what.n_more);
    tt_print("%s -> %s: %d tensors, %d file%s, %s\n", done.source, what.destination, done.tensors, done.files,
             done.files == 1 ? "" : "s", tt_text_bytes(bytes, sizeof bytes, (double)done.bytes));
    return tt_cli_finish();
out:
    tt_free(what.leave_out.word);
    return tt_cli_fail(rc);
}

int tt_ckpt_verb_consolidate(const struct tt_args *args)
{
    return make(args, (struct tt_consolidate){.source = args->word[1], .destination = args->word[2]},
                tt_ckpt_consolidate);
}

int tt_ckpt_verb_convert(const struct tt_args *args)
{
    const char *format = tt_args_last(args, "format");

    if (format && strcmp(format, "dcp") != 0)
        return tt_cli_fail(tt_fail(TT_EUSAGE, "'titan ckpt convert' takes --format dcp only: else the source decides\n"
                                              "help: titan ckpt consolidate takes --format titan, hf and gguf"));
    return make(args, (struct tt_consolidate){.source = args->word[1], .destination = args->word[2]}, tt_ckpt_convert);
}

/* Reads n numbers between commas, of which none is negative and one is not 0. */
static int read_shares(const char *text, double *share, int n)
{
    const char *at = text;
    double sum = 0.0;
    int found = 0;

    for (char *end = NULL;; at = end + 1) {
        double number = strtod(at, &end);

        if (end == at || !isfinite(number) || number < 0.0 || (*end && *end != ','))
            return tt_fail(TT_EUSAGE, "--weights '%s': '%s' does not begin with a number that is at least 0", text, at);
        if (found < n)
            share[found] = number;
        found++;
        sum += number;
        if (!*end)
            break;
    }
    if (found != n)
        return tt_fail(TT_EUSAGE, "--weights '%s' has %d number%s for %d checkpoints", text, found,
                       found == 1 ? "" : "s", n);
    return sum > 0.0 && isfinite(sum) ? 0 : tt_fail(TT_EUSAGE, "--weights '%s': the sum is %g", text, sum);
}

int tt_ckpt_verb_average(const struct tt_args *args)
{
    const char *weights = tt_args_last(args, "weights"), *out = tt_args_last(args, "out");
    int n = args->n_words - 1, rc = 0;
    double *share = tt_calloc((size_t)n, sizeof *share);

    if (!out)
        rc = tt_fail(TT_EUSAGE, "'titan ckpt average' needs a folder to write\nhelp: titan ckpt average A B --out DST");
    else if (weights)
        rc = read_shares(weights, share, n);
    if (rc == 0)
        rc = make(args,
                  (struct tt_consolidate){.source = args->word[1],
                                          .more = (const char *const *)&args->word[2],
                                          .n_more = n - 1,
                                          .share = weights ? share : NULL,
                                          .destination = out},
                  tt_ckpt_average);
    else
        rc = tt_cli_fail(rc);
    tt_free(share);
    return rc;
}
