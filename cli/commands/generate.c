/* SPDX-License-Identifier: MIT
 *
 * `titan generate`: continues a prompt with the weights of a checkpoint or a Hugging Face folder, or holds a
 * conversation. One process.
 */
#include "cli/generate/generate.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/os/file.h"
#include "trainer/generation.h"
#include "trainer/job/job.h"
#include "trainer/step/metrics.h"

static const struct tt_option options[] = {
    {"prompt", NULL, "TEXT", "what to continue; - reads standard input"},
    {"prompt_file", NULL, "FILE", "the same, from a file"},
    {"prompt_tokens", NULL, "N,N...", "the same, as token ids"},
    {"prompts", NULL, "FILE",
     "many prompts: a text on each line or, in a .jsonl file, an object with \"prompt\" or \"prompt_tokens\", and "
     "perhaps \"id\"; prints a line of JSON for each, in order"},
    {"batch", NULL, "N",
     "with --prompts, number of texts that are generated together; the texts stay the same (default: 8)"},
    {"output", NULL, "FILE", "with --prompts, write the lines to FILE"},
    {"chat", NULL, NULL,
     "answer the prompt as the message of a user, by the model's chat template; without a prompt, hold a "
     "conversation"},
    {"system", NULL, "TEXT", "with --chat, the system message"},
    {"chat_template", TT_KEY_NAME(training.chat_template), "NAME",
     "with --chat: llama3, qwen3 or chatml (default: as the model was trained, or as its tokenizer says)"},
    {"max_new_tokens", "max_tokens", "N",
     "most tokens to generate (default: 128; 512 for each answer of a conversation)"},
    {"greedy", NULL, NULL, "take the most likely token each time, as --temperature 0 does"},
    {"temperature", "temp", "X", "higher is bolder (default: 0.8, or 1 with --top-k or --top-p)"},
    {"top_k", NULL, "N", "draw from the N most likely tokens (default: 0, all of them)"},
    {"top_p", NULL, "X",
     "draw from the most likely tokens that make up this much probability (default: 0.95, or 1 with --temperature or "
     "--top-k)"},
    {"seed", NULL, "N", "the same seed draws the same text (default: 42)"},
    {"num_samples", NULL, "N", "texts to generate (default: 1)"},
    {"max_seq_len", NULL, "N",
     "longest context, prompt included (default: the model's; in a conversation at most 4096)"},
    {"ignore_eos", NULL, NULL, "continue after the end of a text"},
    {"echo", NULL, NULL, "print the prompt before the text"},
    {"tokenizer", NULL, "DIR", "tokenizer.json to use instead of the weights' own"},
    {"ema", NULL, NULL, "use the averages of the weights that the run keeps (ema.decay) instead of the weights"},
    {"dtype", NULL, "TYPE", "float32, or bfloat16, which takes half the memory for weights (default: float32)"},
    {"base", NULL, "PATH",
     "where the frozen weights of a run with lora.base_dtype are now (default: where the run found them)"},
    {"weights", NULL, "TYPE",
     "how matrices are kept in memory: stored, as in files with bfloat16 or blocks of q4_0, q8_0, nf4 or int8; "
     "unpacked; or the type to which loading converts them: bfloat16, int8, nf4, q4_0 or q8_0 (default: stored)"},
    {"threads", NULL, "N", "threads (default: one for each core)"},
    {"memory", NULL, "SIZE", "memory that may be used, such as 8GiB (default: 0.9 of this machine's)"},
    {"json", NULL, NULL, "print JSON when all is done"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan generate PATH --prompt TEXT [options]\n"
    "       titan generate PATH --prompts FILE [--batch N] [--output FILE] [options]\n"
    "       titan generate PATH --chat [--system TEXT] [options]\n\n"
    "Continues TEXT and prints the new text as it is made. PATH is a run, a checkpoint folder (newest\n"
    "good step), a step, a consolidated folder, a folder from Hugging Face, or a GGUF file. With --chat and no\n"
    "prompt it is a conversation: on a terminal you type; otherwise each line of standard input is a turn.\n\n";

/* How many tokens of a long prompt one run takes: enough rows for fast GEMMs, but little memory. */
enum { PROMPT_ROWS = 5 * TT_ATTENTION_ROWS }; /* full blocks of attention */

/* Defaults for conversations. The key/value cache has room for the whole context, and the longest context of a Hugging
 * Face model may not fit in memory. An answer is usually longer than a sample. */
enum { CONVERSATION_CONTEXT = 4096, CONVERSATION_TOKENS = 512, BATCH = 8 };

struct settings {
    struct tt_sampling sampling;
    enum tt_dtype dtype;
    int64_t max_new_tokens, seed, samples, max_seq_len, threads, memory, batch;
    bool json, echo, ignore_eos;
};

/* --- options --- */

/* What many prompts need, and what they do not have. */
static int check_batch(const struct tt_args *args)
{
    static const char *const single[] = {"prompt", "prompt_file", "prompt_tokens", "json", "echo"};
    static const char *const shown[] = {"--prompt", "--prompt-file", "--prompt-tokens", "--json", "--echo"};

    if (!tt_args_has(args, "prompts")) {
        if (tt_args_has(args, "batch") || tt_args_has(args, "output"))
            return tt_fail(TT_EUSAGE, "generate: --batch and --output need --prompts FILE");
        return 0;
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (tt_args_has(args, single[i]))
            return tt_fail(TT_EUSAGE, "generate: --prompts and %s exclude each other%s", shown[i],
                           i == 3 ? "\nhelp: --prompts always prints JSON, one line for each text" : "");
    return 0;
}

static int read_settings(const struct tt_args *args, struct settings *s)
{
    const char *memory = tt_args_last(args, "memory");
    bool is_greedy = tt_args_has(args, "greedy"), has_temperature = tt_args_has(args, "temperature");
    bool says_how = has_temperature || tt_args_has(args, "top_k") || tt_args_has(args, "top_p");
    int rc = 0;

    *s = (struct settings){.sampling = {.temperature = is_greedy  ? 0.0
                                                       : says_how ? 1.0
                                                                  : 0.8,
                                        .top_p = is_greedy || says_how ? 1.0 : 0.95},
                           .max_new_tokens = tt_prompt_is_conversation(args) ? CONVERSATION_TOKENS : 128,
                           .seed = 42,
                           .samples = 1,
                           .batch = BATCH,
                           .threads = tt_team_cores(),
                           .memory = (int64_t)(0.9 * tt_job_machine_bytes()),
                           .json = tt_args_has(args, "json"),
                           .echo = tt_args_has(args, "echo"),
                           .ignore_eos = tt_args_has(args, "ignore_eos")};
    TT_TRY(tt_cli_count("generate", args, "max_new_tokens", 1, INT32_MAX, &s->max_new_tokens));
    TT_TRY(tt_cli_count("generate", args, "top_k", 0, INT32_MAX, &s->sampling.top_k));
    TT_TRY(tt_cli_count("generate", args, "seed", 0, INT64_MAX, &s->seed));
    TT_TRY(tt_cli_count("generate", args, "batch", 1, 65536, &s->batch));
    TT_TRY(tt_cli_count("generate", args, "num_samples", 1, 1000000, &s->samples));
    TT_TRY(tt_cli_count("generate", args, "max_seq_len", 1, INT32_MAX, &s->max_seq_len));
    TT_TRY(tt_cli_count("generate", args, "threads", 1, 4096, &s->threads));
    TT_TRY(tt_cli_dtype(args, &s->dtype));
    TT_TRY(tt_cli_real("generate", args, "top_p", 1e-6, 1.0, "a number from 1e-6 to 1.0", &s->sampling.top_p));
    if (is_greedy && says_how)
        return tt_fail(TT_EUSAGE,
                       "generate: --greedy takes the most likely token; --temperature, --top-k and --top-p draw "
                       "one\nhelp: leave out either");
    TT_TRY(tt_cli_real("generate", args, "temperature", 0.0, 1e6, "a number from 0.0 to 1000000.0",
                       &s->sampling.temperature));
    if (s->samples > 1 && s->sampling.temperature == 0.0)
        rc = tt_fail(TT_EUSAGE,
                     "generate: --num-samples %" PRId64 " at temperature 0 would be the same text over and "
                     "over\nhelp: set --temperature, for instance 0.8",
                     s->samples);
    else if (memory && (!tt_text_to_bytes(memory, &s->memory) || s->memory < 1))
        rc = tt_fail(TT_EUSAGE, "generate: --memory '%s' is not a size\nhelp: for instance --memory 8GiB", memory);
    TT_TRY(rc);
    TT_TRY(check_batch(args));
    /* a conversation is shown turn by turn */
    for (int i = 0; i < 3 && rc == 0 && tt_prompt_is_conversation(args); i++) {
        static const char *const refused[] = {"json", "num_samples", "echo"};
        static const char *const shown[] = {"--json", "--num-samples", "--echo"};

        if (tt_args_has(args, refused[i]))
            rc = tt_fail(TT_EUSAGE,
                         "generate: --chat without a prompt is a conversation, which has no %s\nhelp: ask for a "
                         "single answer with --prompt; /save in a conversation writes it as JSON",
                         shown[i]);
    }
out:
    return rc;
}

/* --- the settings of the run --- */

/*
 * The longest context: the requested one, or the one used in training, or the longest that the model allows. It never
 * exceeds the number of learned positions of the model.
 */
static int64_t longest(const struct settings *s, const struct tt_pretrained *w)
{
    int64_t positions = w->model->dims.max_positions ? w->model->dims.max_positions : INT32_MAX;
    int64_t wanted = s->max_seq_len ? s->max_seq_len : w->trained_seq_len ? w->trained_seq_len : positions;

    return w->model->row->learned_positions && wanted > positions ? positions : wanted;
}

/* The last token is never fed to the model, so it takes no room in the context. */
static int choose_context(const struct settings *s, const struct tt_pretrained *w, int64_t prompt, int64_t *ret_context)
{
    int64_t most = longest(s, w), wanted = prompt + s->max_new_tokens - 1;

    if (prompt > most)
        return tt_fail(TT_EUSAGE,
                       "the prompt has %" PRId64 " tokens, the context %s %" PRId64
                       "\nhelp: shorten the prompt, or set --max-seq-len",
                       prompt, s->max_seq_len ? "is limited to" : "of this model", most);
    *ret_context = wanted < most ? wanted : most;
    return 0;
}

static int check_memory(const struct settings *s, const struct tt_generator *g, int64_t context, bool may_convert)
{
    struct tt_generator_memory m = tt_generator_memory(g);
    char total[32], weights[32], cache[32], limit[32];

    if (m.total <= s->memory)
        return 0;
    return tt_fail(
        TT_EFIT,
        "this needs %s (weights %s, cache of %" PRId64 " tokens %s), but --memory allows %s\nhelp: ask for fewer "
        "tokens with --max-new-tokens or --max-seq-len, or use %s%sa smaller model",
        tt_text_bytes(total, sizeof total, (double)m.total), tt_text_bytes(weights, sizeof weights, (double)m.weights),
        context, tt_text_bytes(cache, sizeof cache, (double)m.cache),
        tt_text_bytes(limit, sizeof limit, (double)s->memory), s->dtype == TT_F32 ? "--dtype bfloat16 or " : "",
        may_convert ? "--weights q8_0 or " : "");
}

/* --- the run --- */

struct run {
    const struct tt_args *args;
    struct settings settings;
    struct tt_pretrained weights;
    struct tt_prompt prompt;
    struct tt_prompts prompts; /* n is 0 if there is a single prompt */
    struct tt_generator *generator;
    int64_t context;
    double load_sec, prompt_sec, sample_sec;
    int64_t prompt_tokens, sampled; /* of all samples together */
    json_t *samples;
};

/*
 * The context of many prompts: the longest one that a prompt has alone. The angles of long and of short contexts may
 * differ (longrope); then a prompt would not have the text that it has alone.
 */
static int choose_batch(struct run *r, int64_t *ret_longest)
{
    const struct tt_rope *rope = &r->weights.model->dims.rope;
    int64_t n = r->prompts.n * r->settings.samples, shortest = 0;

    *ret_longest = r->context = 0;
    for (int i = 0; i < r->prompts.n; i++) {
        const struct tt_prompts_line *line = &r->prompts.line[i];
        int64_t context = 0;
        int rc = choose_context(&r->settings, &r->weights, (int64_t)line->ids.n, &context);

        if (rc < 0)
            return tt_wrap(rc, "%s:%" PRId64, tt_args_last(r->args, "prompts"), line->number);
        *ret_longest = *ret_longest > (int64_t)line->ids.n ? *ret_longest : (int64_t)line->ids.n;
        r->context = r->context > context ? r->context : context;
        shortest = i && shortest < context ? shortest : context;
    }
    if (tt_rope_is_long(rope) && (double)shortest <= rope->original_max && (double)r->context > rope->original_max)
        return tt_fail(TT_EUSAGE,
                       "prompts with contexts of %" PRId64 " and %" PRId64
                       " tokens cannot be generated together: beyond "
                       "%g tokens, %s has other angles for all positions\nhelp: put long and short prompts into "
                       "separate files",
                       shortest, r->context, rope->original_max, r->weights.model->title);
    r->settings.batch = r->settings.batch < n ? r->settings.batch : n;
    return 0;
}

static int prepare(struct run *r, struct tt_comm *comm)
{
    const struct tt_args *args = r->args;
    struct tt_generator_options o = {
        .dtype = r->settings.dtype, .prompt_rows = PROMPT_ROWS, .threads = (int)r->settings.threads};
    const struct tt_mesh mesh = tt_mesh_single();
    bool talks = tt_prompt_is_conversation(args);
    double start = tt_clock_sec();
    int64_t longest_prompt;
    int rc = 0;

    TT_TRY(tt_pretrained_open(comm, args->word[0], tt_args_has(args, "ema"), &r->weights));
    r->weights.base = tt_args_last(args, "base");
    TT_TRY(tt_pretrained_pack(&r->weights, tt_args_last(args, "weights"), r->settings.dtype, true));
    if (tt_args_has(args, "prompts"))
        TT_TRY(tt_prompts_read(args, &r->weights, &r->prompts));
    else
        TT_TRY(tt_prompt_read(args, &r->weights, &r->prompt));
    /* files may be missing because the step has since been removed or replaced */
    if (tt_step_explain(TT_EDATA, r->weights.path, &r->weights.place) == TT_EREMOVED)
        TT_TRY(TT_EREMOVED);
    longest_prompt = (int64_t)r->prompt.ids.n;
    r->context = longest(&r->settings, &r->weights);
    if (!r->settings.max_seq_len && r->context > CONVERSATION_CONTEXT)
        r->context = CONVERSATION_CONTEXT;
    if (r->prompts.n)
        TT_TRY(choose_batch(r, &longest_prompt));
    else if (!talks)
        TT_TRY(choose_context(&r->settings, &r->weights, longest_prompt, &r->context));
    o.model = r->weights.model;
    o.context = r->context;
    o.sequences = r->prompts.n ? r->settings.batch : 1;
    if (!talks && o.prompt_rows > longest_prompt)
        o.prompt_rows = longest_prompt;
    TT_TRY(tt_generator_new(&o, &r->generator));
    TT_TRY(check_memory(&r->settings, r->generator, r->context, !r->weights.is_apart && !tt_args_has(args, "weights")));
    TT_TRY(tt_generator_allocate(r->generator));
    TT_TRY(tt_pretrained_load(comm, &mesh, &r->weights, tt_generator_layout(r->generator),
                              tt_generator_state(r->generator)));
    r->load_sec = tt_clock_sec() - start;
out:
    return rc;
}

static void take_down(struct run *r)
{
    tt_generator_free(r->generator);
    r->generator = NULL;
    tt_prompt_release(&r->prompt);
    r->prompt = (struct tt_prompt){0};
    tt_prompts_release(&r->prompts);
    tt_pretrained_release(&r->weights);
}

static json_t *ids_json(const struct tt_ids *ids)
{
    json_t *list = json_array();

    for (size_t i = 0; i < ids->n; i++)
        (void)json_array_append_new(list, json_integer(ids->id[i]));
    return list;
}

/* Makes and streams one text; lines of dashes separate several texts. */
static int make_sample(struct run *r, const struct tt_generation *generation, int64_t s)
{
    FILE *to = r->settings.json ? NULL : stdout;
    struct tt_continuation c = {.stream = {.to = to}};
    int rc = 0;

    if (to && s > 0)
        (void)fputs("----\n", to);
    if (to && r->settings.echo && r->prompt.text)
        (void)fputs(r->prompt.text, to);
    TT_TRY(tt_generation_run(generation, s, &c));
    if (to && (c.stream.text.size == 0 || c.stream.text.text[c.stream.text.size - 1] != '\n'))
        (void)fputc('\n', to);
    if (c.finish == TT_FINISH_CONTEXT)
        tt_note("stopped after %zu tokens: the context of %" PRId64 " is full (--max-seq-len)", c.tokens.n, r->context);
    r->sample_sec += c.seconds;
    r->sampled += (int64_t)c.tokens.n;
    (void)json_array_append_new(
        r->samples,
        json_pack("{s:o*, s:o, s:s}", "text",
                  r->prompt.tokenizer ? json_stringn(c.stream.text.text ? c.stream.text.text : "", c.stream.text.size)
                                      : json_null(),
                  "tokens", ids_json(&c.tokens), "finish", tt_finish_name(c.finish)));
out:
    tt_continuation_release(&c);
    return rc;
}

static int make_samples(struct run *r)
{
    int64_t vocab = r->weights.model->dims.vocab_size;
    float *after_prompt = tt_calloc((size_t)vocab, sizeof *after_prompt);
    struct tt_generation generation = {.generator = r->generator,
                                       .tokenizer = r->prompt.tokenizer,
                                       .prompt_logits = after_prompt,
                                       .prompt = r->prompt.ids.id,
                                       .prompt_tokens = (int64_t)r->prompt.ids.n,
                                       .max_new_tokens = r->settings.max_new_tokens,
                                       .seed = (uint64_t)r->settings.seed,
                                       .stop = r->prompt.stop.id,
                                       .n_stop = r->settings.ignore_eos ? 0 : (int)r->prompt.stop.n};
    const float *logits = NULL;
    double start = tt_clock_sec();
    int rc = 0;

    generation.picker = tt_picker_new(&r->settings.sampling, vocab);
    TT_TRY(tt_generator_feed(r->generator, r->prompt.ids.id, (int64_t)r->prompt.ids.n, &logits));
    memcpy(after_prompt, logits, (size_t)vocab * sizeof *after_prompt);
    r->prompt_sec = tt_clock_sec() - start;
    r->prompt_tokens = (int64_t)r->prompt.ids.n;
    for (int64_t s = 0; s < r->settings.samples; s++)
        TT_TRY(make_sample(r, &generation, s));
out:
    tt_picker_free(generation.picker);
    tt_free(after_prompt);
    return rc;
}

static int open_output(const struct run *r, FILE **ret_to)
{
    const char *path = tt_args_last(r->args, "output");

    *ret_to = path ? fopen(path, "w") : stdout;
    return *ret_to ? 0 : tt_fail(TT_EIO, "cannot write '%s': %s", path, strerror(errno));
}

static int make_batch(struct run *r)
{
    struct tt_batch batch = {.generator = r->generator,
                             .sequences = r->settings.batch,
                             .prompts = &r->prompts,
                             .vocab_size = r->weights.model->dims.vocab_size,
                             .max_new_tokens = r->settings.max_new_tokens,
                             .samples = r->settings.samples,
                             .seed = (uint64_t)r->settings.seed,
                             .ignore_eos = r->settings.ignore_eos};
    int rc = 0;

    TT_TRY(open_output(r, &batch.to));
    batch.picker = tt_picker_new(&r->settings.sampling, batch.vocab_size);
    rc = tt_batch_run(&batch);
    tt_picker_free(batch.picker);
    if (batch.to != stdout && fclose(batch.to) != 0 && rc == 0)
        rc = tt_fail(TT_EIO, "cannot write '%s': %s", tt_args_last(r->args, "output"), strerror(errno));
    r->prompt_tokens = batch.prompt_tokens;
    r->prompt_sec = batch.prompt_sec;
    r->sampled = batch.new_tokens;
    r->sample_sec = batch.new_sec;
out:
    return rc;
}

static double rate(int64_t n, double seconds)
{
    return seconds > 0.0 ? (double)n / seconds : 0.0;
}

static int print_json(const struct run *r)
{
    const struct settings *s = &r->settings;
    struct tt_generator_memory m = tt_generator_memory(r->generator);
    json_t *first = json_array_get(r->samples, 0);
    json_t *o = json_pack(
        "{s:o, s:b, s:o, s:o?, s:O, s:O, s:O, s:O}", "path", tt_json_string(r->weights.path), "ema",
        (int)r->weights.averages, "model", json_sprintf("%s/%s", r->weights.model->row->name, r->weights.model->flavor),
        "prompt", r->prompt.text ? tt_json_string(r->prompt.text) : json_null(), "text", json_object_get(first, "text"),
        "tokens", json_object_get(first, "tokens"), "finish", json_object_get(first, "finish"), "samples", r->samples);

    (void)json_object_update_new(o, json_pack("{s:o, s:f, s:I, s:f, s:I, s:I, s:s, s:o, s:I, s:f, s:f, s:f, s:f}",
                                              "prompt_tokens", ids_json(&r->prompt.ids), "temperature",
                                              s->sampling.temperature, "top_k", (json_int_t)s->sampling.top_k, "top_p",
                                              s->sampling.top_p, "seed", (json_int_t)s->seed, "context",
                                              (json_int_t)r->context, "dtype", tt_cli_dtype_name(s->dtype), "weights",
                                              tt_pretrained_packings(&r->weights), "memory_bytes", (json_int_t)m.total,
                                              "load_seconds", r->load_sec, "prompt_seconds", r->prompt_sec, "seconds",
                                              r->sample_sec, "tokens_per_second", rate(r->sampled, r->sample_sec)));
    return tt_cli_print_json(o);
}

static bool has_prompt(const struct tt_args *args)
{
    return tt_args_has(args, "prompt") || tt_args_has(args, "prompt_file") || tt_args_has(args, "prompt_tokens") ||
           tt_args_has(args, "prompts");
}

static bool is_missing(const char *path)
{
    bool exists = true;

    return tt_path_exists(path, &exists) == 0 && !exists;
}

/* Whether the only word is a text and not a path. */
static bool is_prompt(const struct tt_args *args)
{
    return !has_prompt(args) && strchr(args->word[0], ' ') && is_missing(args->word[0]);
}

/* A text after the path, or in place of a path, is probably meant as the prompt. */
static int fail_words(const struct tt_args *args)
{
    struct tt_text prompt = {0}, quoted = {0}, path = {0};
    bool all = args->n_words && is_missing(args->word[0]); /* the first word too */
    int rc;

    if (args->n_words == 0 || has_prompt(args))
        return tt_fail(TT_EUSAGE,
                       "generate takes one checkpoint or folder, %s\nhelp: titan generate PATH --prompt TEXT",
                       args->n_words ? "several words were given" : "none was given");
    for (int i = all ? 0 : 1; i < args->n_words; i++)
        tt_text_add(&prompt, "%s%s", prompt.size ? " " : "", args->word[i]);
    tt_text_add_word(&quoted, prompt.text);
    tt_text_add_word(&path, args->word[0]);
    if (all)
        rc = tt_fail(TT_EUSAGE,
                     "generate: which model? '%s' is not a path, and a prompt needs --prompt\n"
                     "help: titan generate outputs/quick --prompt %s",
                     prompt.text, quoted.text);
    else
        rc = tt_fail(TT_EUSAGE,
                     "generate: '%s' comes after the path; a prompt needs --prompt\n"
                     "help: titan generate %s --prompt %s",
                     prompt.text, path.text, quoted.text);
    tt_text_release(&prompt);
    tt_text_release(&quoted);
    tt_text_release(&path);
    return rc;
}

static int generate(struct tt_comm *comm, void *args)
{
    struct run r = {.args = args, .samples = json_array()};
    bool again = false;
    int tries = 0, rc = 0;

    if (comm->size > 1)
        TT_TRY(
            tt_fail(TT_EUSAGE,
                    "generate runs as one process, %d were started\nhelp: start it without mpirun; it uses all cores",
                    comm->size));
    if (r.args->n_words != 1 || is_prompt(args))
        TT_TRY(fail_words(args));
    TT_TRY(read_settings(args, &r.settings));
    do {
        if (again)
            take_down(&r);
        rc = tt_pretrained_explain(comm, prepare(&r, comm), &r.weights, r.args->word[0], &tries, &again);
    } while (again);
    TT_TRY(rc);
    if (tt_prompt_is_conversation(args)) {
        const struct tt_conversation conversation = {.generator = r.generator,
                                                     .weights = &r.weights,
                                                     .prompt = &r.prompt,
                                                     .sampling = r.settings.sampling,
                                                     .system = tt_args_last(args, "system"),
                                                     .context = r.context,
                                                     .prompt_rows = PROMPT_ROWS,
                                                     .max_new_tokens = r.settings.max_new_tokens,
                                                     .seed = (uint64_t)r.settings.seed,
                                                     .ignore_eos = r.settings.ignore_eos};

        TT_TRY(tt_conversation_run(&conversation));
    } else if (r.prompts.n) {
        TT_TRY(make_batch(&r));
    } else {
        TT_TRY(make_samples(&r));
    }
    rc = r.settings.json ? print_json(&r) : tt_cli_finish();
    if (rc == 0 && !r.settings.json && !tt_prompt_is_conversation(args)) {
        char before[32], after[32];

        if (r.prompts.n)
            (void)fprintf(stderr, "titan: %d prompt%s of ", r.prompts.n, r.prompts.n == 1 ? "" : "s");
        else
            (void)fprintf(stderr, "titan: prompt of ");
        (void)fprintf(stderr, "%" PRId64 " token%s in %s, %" PRId64 " token%s in %s: %.0f tokens/s\n", r.prompt_tokens,
                      r.prompt_tokens == 1 ? "" : "s", tt_text_duration(before, sizeof before, r.prompt_sec), r.sampled,
                      r.sampled == 1 ? "" : "s", tt_text_duration(after, sizeof after, r.sample_sec),
                      rate(r.sampled, r.sample_sec));
    }
out:
    take_down(&r);
    json_decref(r.samples);
    return rc;
}

const struct tt_command tt_command_generate = {
    .name = "generate",
    .arguments = "PATH --prompt TEXT",
    .summary = "continue a text with a checkpoint or a Hugging Face folder",
    .usage = usage,
    .options = options,
    .run_ranks = generate,
};
