/* SPDX-License-Identifier: MIT
 *
 * Questions as people type them: words and short options in place of keys.
 */
#include "cli/estimate/typed.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <ctype.h>

#include "cli/cli.h"
#include "cli/estimate/names.h"
#include "core/base/mem.h"
#include "estimate/hardware/machine.h"

/* Options that only this form accepts. */
static const char *const options[] = {"gpus",  "nodes", "days",      "price",   "network", "lora",        "qlora",
                                      "dtype", "seq",   "optimizer", "offload", "float8",  "batch",       "recompute",
                                      "mfu",   "tp",    "pp",        "cp",      "ep",      "micro_batch", "zero"};

/* Words before the flags of another trainer name the model. */
static int n_model_words(const struct tt_args *args)
{
    int n = 0;

    while (n < args->n_words && args->word[n][0] != '-')
        n++;
    return n;
}

/* The first option of this form, or NULL. */
static const char *first_option(const struct tt_args *args)
{
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (tt_args_has(args, options[i]))
            return options[i];
    return NULL;
}

bool tt_cluster_typed_is(const struct tt_args *args)
{
    return tt_args_has(args, "machine") || n_model_words(args) > 0 || first_option(args);
}

/* --- numbers with units --- */

/* Reads a number above 0 with an optional K, M, B (G) or T, each `thousand` times the one before, or with a word. */
static bool read_amount(const char *text, double thousand, double *ret_count)
{
    static const char letters[] = "kmbt";
    static const char *const words[] = {"thousand", "million", "billion", "trillion"};
    char *end;
    double value = strtod(text, &end);
    int power = 0;

    if (end == text)
        return false;
    end += strspn(end, " ");
    for (int i = 0; i < 4; i++)
        if (strcasecmp(end, words[i]) == 0 || (tolower((unsigned char)*end) == letters[i] && !end[1]))
            power = i + 1;
    if (*end && power == 0 && strcasecmp(end, "g") != 0)
        return false;
    *ret_count = value * pow(thousand, *end && power == 0 ? 3 : power);
    return *ret_count >= 1 && *ret_count <= 1e18;
}

/* Bytes/s from "100Gb", "400Gb/s", "8x400Gb", "100Gbit/s", "50GB/s": a small b means bits. */
static bool read_network(const char *text, double *ret_rate)
{
    double value = 1, factor;
    char *end;

    for (;;) {
        double next = strtod(text, &end);

        if (end == text || !(next > 0))
            return false;
        value *= next;
        if (*end != 'x' && *end != '*')
            break;
        text = end + 1;
    }
    end += strspn(end, " ");
    factor = *end == 'G' || *end == 'g'   ? 1e9
             : *end == 'T' || *end == 't' ? 1e12
             : *end == 'M' || *end == 'm' ? 1e6
                                          : 0;
    if (factor == 0)
        return false;
    end++;
    if (*end == 'B')
        *ret_rate = value * factor;
    else if (*end == 'b' || !*end)
        *ret_rate = value * factor / 8;
    else
        return false;
    end += *end != 0;
    return !*end || tt_text_is_listed(end, "/s|ps|e|E|it|it/s|its|its/s|yte/s|ytes/s");
}

/* --- devices --- */

static void add_ranks(struct tt_cluster_typed *t, double n)
{
    TT_PUSH(t->ranks, t->n_ranks, t->cap) = (int)n;
}

static bool is_a_machine(const char *word)
{
    const struct tt_cluster_machine *m;

    for (int i = 0; (m = tt_cluster_machine_at(i)); i++)
        if (tt_names_is_number_of(word, m->name))
            return true;
    return false;
}

static bool is_path(const char *text)
{
    return strchr(text, '/') || tt_text_ends(text, ".json");
}

static int fail_gpus(const char *text)
{
    return tt_fail(TT_EUSAGE,
                   "estimate: --gpus '%s' is not a number of GPUs and their name\nhelp: for instance --gpus 64xh100, "
                   "--gpus 8,64xa100-80, or --gpus h100 to find the number",
                   text);
}

/* Makes "8xH100" of "H100x8", "h100:8", "gpu:h100:8", "8 H100s" and "8x NVIDIA H100 80GB HBM3". The caller frees it. */
static char *usual_gpus(const char *text)
{
    size_t n = strlen(text), digits = 0, end;
    char *out, *memory;

    if (strncasecmp(text, "gpu:", 4) == 0) {
        text += 4;
        n -= 4;
    }
    while (digits < n && isdigit((unsigned char)text[n - 1 - digits]))
        digits++;
    end = n - digits;
    if (digits > 0 && end > 1 && !isdigit((unsigned char)*text) && strchr("xX*:", text[end - 1]) &&
        isalnum((unsigned char)text[end - 2]))
        out = tt_format("%sx%.*s", text + end, (int)end - 1, text);
    else
        out = tt_strdup(text);
    memory = strcasestr(out, " hbm3");
    if (memory)
        *memory = 0;
    n = strlen(out);
    if (n > 2 && tolower((unsigned char)out[n - 1]) == 's' && isdigit((unsigned char)out[n - 2]))
        out[n - 1] = 0;
    return out;
}

/* Reads "64xh100", "2x8xh100", "64 h100", "8,16,64xh100", "h100" or "64". */
static int read_usual_gpus(const char *text, struct tt_cluster_typed *t)
{
    const char *at = text;
    double n = 0;

    for (;;) {
        size_t digits = strspn(at, "0123456789");
        char *number;
        bool is_name;

        if (digits == 0)
            break;
        number = tt_strndup(at, digits);
        is_name = !at[digits] && is_a_machine(number);
        if (!is_name)
            n = (n > 0 ? n : 1) * strtod(number, NULL);
        tt_free(number);
        if (is_name)
            break;
        at += digits;
        if (n < 1 || n > TT_MOST_RANKS || *at == '.')
            return fail_gpus(text);
        at += strspn(at, " ");
        if (*at == ',' && at[1]) {
            add_ranks(t, n);
            n = 0;
            at++;
        } else if (*at == 'x' || *at == 'X' || *at == '*') {
            at += 1 + strspn(at + 1, " ");
            if (!*at)
                return fail_gpus(text);
        }
    }
    if (*at && !isalnum((unsigned char)*at) && !strchr("./~", *at))
        return fail_gpus(text);
    if (n > 0)
        add_ranks(t, n);
    else if (t->n_ranks > 0 || !*at)
        return fail_gpus(text);
    if (*at)
        t->machine = tt_strdup(at);
    return 0;
}

static int read_gpus(const char *text, struct tt_cluster_typed *t)
{
    char *usual = is_path(text) ? tt_strdup(text) : usual_gpus(text);
    int rc = read_usual_gpus(usual, t);

    tt_free(usual);
    return rc;
}

/* Whether a word is a number of GPUs with their name, as in "8xh100". */
static bool is_gpus(const char *word)
{
    size_t n = strspn(word, "0123456789");

    return n > 0 && (word[n] == 'x' || word[n] == 'X') && isalnum((unsigned char)word[n + 1]);
}

/* The GPUs that a command line names: the option's words, "8 x h100" among the words, or a word like "8xh100". *n is
 * the number of words; words that name GPUs are taken off. The caller frees the text; NULL: there are none. */
static char *gpus_of(const struct tt_args *args, const char *option, int *n)
{
    struct tt_text all = {0};

    if (option && option[strspn(option, "0123456789")] == 0)
        for (int i = 1; i < *n; i++)
            if (tt_text_is_listed(args->word[i], "x|X|*")) {
                tt_text_add(&all, "%s", option);
                for (int k = i; k < *n; k++)
                    tt_text_add(&all, "%s", args->word[k]);
                *n = i;
                return all.text;
            }
    if (!option && *n > 1 && is_gpus(args->word[*n - 1])) {
        --*n;
        return tt_strdup(args->word[*n]);
    }
    return option ? tt_strdup(option) : NULL;
}

/* --- the command line --- */

static void add_override(struct tt_cluster_typed *t, char *text)
{
    t->override[t->n_overrides++] = text;
}

/* Reads the recomputation, as the keys of the configuration. */
static int read_recompute(const char *word, struct tt_cluster_typed *t)
{
    static const char *const words[] = {"none", "op", "selective", "full"};

    if (!word || strcmp(word, "auto") == 0)
        return 0;
    if (!tt_text_is_listed(word, "none|op|selective|full"))
        return tt_cli_fail_choice("recompute", word, words, (int)(sizeof words / sizeof *words));
    t->fixed.again = true;
    add_override(t, tt_format("--activation_checkpoint.mode=%s", strcmp(word, "op") == 0 ? "selective" : word));
    if (tt_text_is_listed(word, "op|selective"))
        add_override(t, tt_strdup("--activation_checkpoint.selective_ac_option=op"));
    return 0;
}

static int read_count(const struct tt_args *args, const char *option, double thousand, const char *wanted,
                      double *value)
{
    const char *text = tt_args_last(args, option);

    if (text && !read_amount(text, thousand, value))
        return tt_fail(TT_EUSAGE, "estimate: --%s '%s' is not %s", option, text, wanted);
    return 0;
}

static int read_batch(const struct tt_args *args, struct tt_cluster_typed *t)
{
    const char *text = tt_args_last(args, "batch");
    int rc = read_count(args, "batch", 1024,
                        "a number of sequences or tokens\nhelp: for instance --batch 512 (sequences of a step) or "
                        "--batch 4M (tokens of a step)",
                        &t->batch);

    if (rc < 0)
        return rc;
    t->batch_is_tokens = text && !isdigit((unsigned char)text[strlen(text) - 1]);
    if (t->batch > 0 && !t->batch_is_tokens && (floor(t->batch) != t->batch || t->batch > 1e9))
        return tt_fail(TT_EUSAGE, "estimate: --batch '%s' is not a whole number of sequences", text);
    return 0;
}

/* Reads a number with a character before it ("$2.50") or behind it ("40%"), if the text has it. */
static int read_marked(const struct tt_args *args, const char *option, char mark, double low, double high,
                       const char *wanted, double *value)
{
    const char *text = tt_args_last(args, option), *at = text;
    char *end;
    double read;

    if (!text)
        return 0;
    at += *at == mark;
    read = strtod(at, &end);
    end += end > at && *end == mark;
    if (end == at || *end || !(read >= low) || !(read <= high))
        return tt_fail(TT_EUSAGE, "estimate: --%s '%s' is not %s", option, text, wanted);
    *value = read;
    return 0;
}

static const struct {
    const char *option, *wanted;
    size_t offset;
} degrees[] = {{"tp", "ranks of tensor parallelism", offsetof(struct tt_cluster_fixed, tp)},
               {"pp", "stages of a pipeline", offsetof(struct tt_cluster_fixed, pp)},
               {"cp", "ranks of context parallelism", offsetof(struct tt_cluster_fixed, cp)},
               {"ep", "ranks of expert parallelism", offsetof(struct tt_cluster_fixed, ep)},
               {"micro_batch", "sequences of a microbatch", offsetof(struct tt_cluster_fixed, micro_batch)}};

bool tt_cluster_typed_limits(const struct tt_args *args)
{
    bool any = false;

    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++)
        any = any || tt_args_has(args, degrees[i].option);
    return any;
}

/* Reads what all layouts have in common, which files and keys say in another way. */
static int read_degrees(const struct tt_args *args, struct tt_cluster_typed *t)
{
    int rc = 0;

    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        int64_t value = 0;

        TT_TRY(tt_cli_count("estimate", args, degrees[i].option, 1, TT_MOST_RANKS, &value));
        *(double *)((char *)&t->fixed + degrees[i].offset) = (double)value;
    }
out:
    return rc;
}

static int read_numbers(const struct tt_args *args, struct tt_cluster_typed *t)
{
    enum { LEAST_TOKENS = 1000 };
    const char *network = tt_args_last(args, "network");
    int rc = 0;

    TT_TRY(tt_cli_real("estimate", args, "days", 1e-3, 1e5, "a number of days", &t->days));
    TT_TRY(read_marked(args, "price", '$', 1e-6, 1e6, "dollars for an hour of one device", &t->price));
    TT_TRY(read_marked(args, "mfu", '%', 0.01, 1000, "a number of percent", &t->mfu));
    TT_TRY(tt_cli_real("estimate", args, "nodes", 1, TT_MOST_RANKS, "a number of nodes", &t->nodes));
    TT_TRY(read_count(args, "tokens", 1000, "a number of tokens\nhelp: for instance --tokens 15e12, or --tokens 1T",
                      &t->tokens));
    if (t->tokens > 0 && t->tokens < LEAST_TOKENS)
        TT_TRY(tt_fail(TT_EUSAGE,
                       "estimate: --tokens '%s' are too few for a run\nhelp: for instance --tokens 15T, or "
                       "--tokens '15 trillion' in quotes",
                       tt_args_last(args, "tokens")));
    TT_TRY(read_count(args, "seq", 1024, "a number of tokens\nhelp: for instance --seq 8192", &t->seq));
    if (floor(t->seq) != t->seq || t->seq > 1e9)
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --seq '%s' is not a whole number of tokens\nhelp: for instance --seq 8192",
                       tt_args_last(args, "seq")));
    if (t->seq > 0)
        add_override(t, tt_format("--training.seq_len=%.0f", t->seq));
    TT_TRY(read_batch(args, t));
    if (network && !read_network(network, &t->network))
        TT_TRY(tt_fail(TT_EUSAGE,
                       "estimate: --network '%s' is not the rate of a node's network\nhelp: for instance --network "
                       "100Gb, --network 8x400Gb or --network 50GB/s",
                       network));
    TT_TRY(read_recompute(tt_args_last(args, "recompute"), t));
    TT_TRY(read_degrees(args, t));
out:
    return rc;
}

int tt_cluster_typed_read(const struct tt_args *args, struct tt_cluster_typed *ret_typed)
{
    struct tt_cluster_typed *t = ret_typed;
    const char *model = tt_args_last(args, "model"), *option = first_option(args);
    const char *machine = tt_args_last(args, "machine");
    int n = n_model_words(args), n_all = n, rc = 0;
    char *gpus = gpus_of(args, tt_args_last(args, "gpus"), &n);
    struct tt_text words = {0};

    t->any = n > 0 || option || gpus;
    for (int i = 0; i < n; i++)
        tt_text_add(&words, "%s%s", i ? " " : "", args->word[i]);
    t->n_words = n_all;
    if (n > 0 && (tt_text_ends(words.text, ".yaml") || tt_text_ends(words.text, ".toml")))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: '%s' is not a model\nhelp: --%s %s reads a configuration", words.text,
                       tt_text_ends(words.text, ".yaml") ? "config" : "torchtitan", words.text));
    if (n > 0 && model)
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: '%s' and --model %s both name a model\nhelp: give one of them", words.text,
                       model));
    if (machine && is_gpus(machine))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --machine '%s' has a number before the name\nhelp: --gpus %s", machine,
                       machine));
    if (gpus && (tt_args_has(args, "machine") || tt_args_has(args, "ranks"))) {
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --gpus gives the machine and the number\nhelp: leave --machine and "
                                  "--ranks out, as in --gpus 64xh100"));
    }
    if (t->any && n == 0 && !gpus && !tt_args_has(args, "machine"))
        TT_TRY(tt_fail(TT_EUSAGE,
                       "estimate: --%s needs a model and GPUs\nhelp: for instance titan estimate llama3.1-8b --gpus "
                       "8xh100",
                       option));
    t->model = words.text ? tt_strdup(words.text) : NULL;
    if (gpus)
        TT_TRY(read_gpus(gpus, t));
    TT_TRY(read_numbers(args, t));
    if (t->nodes > 0 && (floor(t->nodes) != t->nodes || t->n_ranks > 0 || tt_args_has(args, "ranks")))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --nodes is a whole number of nodes, in place of a number of GPUs\nhelp: "
                                  "for instance --nodes 8 --gpus h100"));
out:
    tt_text_release(&words);
    tt_free(gpus);
    return rc;
}

void tt_cluster_typed_release(struct tt_cluster_typed *t)
{
    for (int i = 0; i < t->n_overrides; i++)
        tt_free(t->override[i]);
    tt_free(t->model);
    tt_free(t->machine);
    tt_free(t->ranks);
}

/* --- what the job trains, and in which numbers --- */

static int apply_float8(struct tt_cluster_job *job, const char *option)
{
    if (!(job->machine->number[TT_M_PEAK_F8].value > 0))
        return tt_fail(TT_EUSAGE, "estimate: %s cannot compute in float8\nhelp: leave %s out", job->machine->name,
                       option);
    job->float8 = true;
    return 0;
}

static int apply_dtype(const char *dtype, struct tt_cluster_job *job)
{
    static const char *const words[] = {"mixed", "bf16", "fp16", "fp8", "fp32"};

    if (!dtype || tt_text_is_listed(dtype, "mixed|fp16|float16|half")) /* fp16 needs weights and moments in float32 */
        return 0;
    if (tt_text_is_listed(dtype, "bf16|bfloat16"))
        tt_cluster_pure_bf16(job);
    else if (tt_text_is_listed(dtype, "fp8|float8"))
        return apply_float8(job, "--dtype fp8");
    else if (tt_text_is_listed(dtype, "fp32|float32"))
        job->float32 = true;
    else
        return tt_cli_fail_choice("dtype", dtype, words, (int)(sizeof words / sizeof *words));
    return 0;
}

static int apply_offload(const char *offload, struct tt_cluster_job *job)
{
    if (!offload)
        return 0;
    for (int i = 0; i <= TT_OFFLOAD_ALL; i++)
        if (strcmp(offload, tt_cluster_offload_words[i]) == 0) {
            job->offload = (enum tt_cluster_offload)i;
            return 0;
        }
    return tt_cli_fail_choice("offload", offload, tt_cluster_offload_words, TT_OFFLOAD_ALL + 1);
}

int tt_cluster_typed_apply(const struct tt_args *args, struct tt_cluster_job *job)
{
    enum { USUAL_RANK = 16, MOST_RANK = 8192 };
    const char *optimizer = tt_args_last(args, "optimizer");
    int64_t rank = 0;
    int rc = 0;

    TT_TRY(tt_cli_count("estimate", args, "lora", 1, MOST_RANK, &rank));
    if (tt_args_has(args, "qlora")) {
        job->base_bits = 4;
        rank = rank > 0 ? rank : USUAL_RANK;
    }
    if (rank > 0)
        job->lora_rank = (double)rank;
    TT_TRY(apply_dtype(tt_args_last(args, "dtype"), job));
    if (optimizer && !tt_cluster_optimizer_find(optimizer, &job->optimizer))
        TT_TRY(tt_cli_fail_choice("optimizer", optimizer, tt_cluster_optimizer_words, TT_CLUSTER_OPTIMIZERS));
    TT_TRY(apply_offload(tt_args_last(args, "offload"), job));
    if (tt_args_has(args, "float8"))
        TT_TRY(apply_float8(job, "--float8"));
out:
    return rc;
}
