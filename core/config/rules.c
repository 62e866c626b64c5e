/* SPDX-License-Identifier: MIT
 *
 * Rules between keys that do not depend on the number of ranks, and values whose feature is not built yet. A rule is
 * skipped when one of its keys already has an error.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/config/internal.h"

/* Writes the reason for refusing the configuration, or nothing. The second kind of function serves several keys; it
 * gets the first key of its row. */
typedef void (*rule_fn)(const struct tt_config *cfg, struct tt_text *why);
typedef void (*rule_of_key_fn)(const struct tt_config *cfg, enum tt_key key, struct tt_text *why);

/* where: the beginning of the keys' names, "training." or, in an entry of a list, "". */
static void need_path(const char *where, const char *dataset, const char *path, struct tt_text *why)
{
    bool is_built_in = tt_text_is_listed(dataset, "kjv|kjv_validation");

    if (!is_built_in && !path) {
        tt_text_add(why,
                    "dataset '%s' needs %sdataset_path\nhelp: titan downloads nothing; name the file or folder, or use "
                    "the built-in dataset 'kjv'",
                    dataset, where);
    } else if (is_built_in && path) {
        tt_text_add(why,
                    "dataset '%s' is built in and would not read %sdataset_path '%s'\nhelp: set %sdataset to text, "
                    "jsonl or tokens",
                    dataset, where, path, where);
    }
}

/* Refuses files whose name shows that the dataset cannot read their format. */
static void fit_format(const char *where, const char *dataset, const char *path, struct tt_text *why)
{
    static const char *const tables[] = {".parquet", ".arrow", ".feather"};
    static const char *const lines[] = {".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson"};

    for (size_t i = 0; path && strcmp(dataset, "text") == 0 && i < sizeof tables / sizeof *tables; i++) {
        if (tt_text_ends(path, tables[i]))
            tt_text_add(why,
                        "'%s' is a table, and dataset 'text' does not read its columns\nhelp: set %sdataset=%s, and "
                        "%stext_field if the text is not in the column \"text\"",
                        path, where, i ? "arrow" : "parquet", *where ? "training." : "");
    }
    for (size_t i = 0; path && strcmp(dataset, "text") == 0 && i < sizeof lines / sizeof *lines; i++) {
        if (tt_text_ends(path, lines[i]))
            tt_text_add(why,
                        "'%s' holds JSON lines, and dataset 'text' would train on their braces and quotes\nhelp: set "
                        "%sdataset=jsonl, and %stext_field if the text is not in \"text\"",
                        path, where, *where ? "training." : "");
    }
}

static void documents_are_known(const struct tt_config *cfg, enum tt_key key, struct tt_text *why)
{
    const struct tt_datasets *d = &cfg->training.dataset;
    bool is_wanted = key == TT_KEY(validation.split) ? cfg->validation.split > 0.0 : cfg->training.document_mask;

    for (int i = 0; i < d->n && is_wanted && !why->size; i++)
        if (strcmp(d->entry[i].dataset, "tokens_u16") == 0)
            tt_text_add(why,
                        "dataset '%s' does not say where its documents begin\nhelp: titan's own packed files do; titan "
                        "data pack makes them from text",
                        d->entry[i].dataset);
}

static bool is_same_data(const struct tt_dataset_entry *a, const struct tt_dataset_entry *b)
{
    return strcmp(a->dataset, b->dataset) == 0 && !a->dataset_path == !b->dataset_path &&
           (!a->dataset_path || strcmp(a->dataset_path, b->dataset_path) == 0);
}

/* Held-out documents must belong to the training data. */
static void split_has_one_dataset(const struct tt_config *cfg, struct tt_text *why)
{
    const struct tt_datasets *t = &cfg->training.dataset, *v = &cfg->validation.dataset;
    bool is_same = t->n == v->n && t->is_list == v->is_list;

    for (int i = 0; i < t->n && is_same; i++) {
        const struct tt_dataset_entry a = tt_config_dataset(cfg, t, i), b = tt_config_dataset(cfg, v, i);

        is_same = is_same_data(&a, &b);
    }
    if (cfg->validation.split > 0.0 && !is_same)
        tt_text_add(why, "split holds out documents of training.dataset, but validation.dataset names other data to "
                         "validate on\nhelp: remove one of the two; without split nothing is held out");
}

/* The datasets of training or validation, by the section of a key. */
struct data {
    const char *where;
    const struct tt_datasets *datasets;
    const char *path;
    bool is_one; /* it is in use, and is not a list */
};

static struct data data_of(const struct tt_config *cfg, enum tt_key key)
{
    bool is_training = tt_text_begins(tt_key_name(key), "training.");
    const struct tt_datasets *d = is_training ? &cfg->training.dataset : &cfg->validation.dataset;

    return (struct data){is_training ? "training." : "validation.", d,
                         is_training ? cfg->training.dataset_path : cfg->validation.dataset_path,
                         (is_training || cfg->validation.enable) && !d->is_list};
}

static void data_has_path(const struct tt_config *cfg, enum tt_key key, struct tt_text *why)
{
    const struct data d = data_of(cfg, key);

    if (d.is_one)
        need_path(d.where, d.datasets->entry->dataset, d.path, why);
}

static void data_has_format(const struct tt_config *cfg, enum tt_key key, struct tt_text *why)
{
    const struct data d = data_of(cfg, key);

    if (d.is_one)
        fit_format(d.where, d.datasets->entry->dataset, d.path, why);
}

static void path_is_of_one(const struct tt_config *cfg, enum tt_key key, struct tt_text *why)
{
    const struct data d = data_of(cfg, key);

    if (d.datasets->is_list && d.path)
        tt_text_add(why,
                    "the path of one dataset is set, although there is a list of datasets\nhelp: each entry of the "
                    "list has its own dataset_path");
}

/* Whether an earlier entry has the same name. */
static bool is_name_taken(const struct tt_datasets *d, int entry)
{
    int i = 0;

    while (strcmp(d->entry[i].name, d->entry[entry].name) != 0)
        i++;
    return i < entry;
}

static void check_entry(const struct tt_config *cfg, const struct tt_datasets *d, int i, struct tt_text *why)
{
    const struct tt_dataset_entry *e = &d->entry[i];

    need_path("", e->dataset, e->dataset_path, why);
    if (!why->size)
        fit_format("", e->dataset, e->dataset_path, why);
    if (!why->size && is_name_taken(d, i))
        tt_text_add(why, "another entry is called '%s' too\nhelp: give each its own name: {name: WORD, ...}", e->name);
    if (!why->size && d == &cfg->validation.dataset && e->weight != 1.0)
        tt_text_add(why, "the weight %g has no meaning: every set is validated by itself", e->weight);
}

/* Suggests a change for each of the two keys, since only the user knows which one is wrong. */
static void batch_multiple(const struct tt_config *cfg, struct tt_text *why)
{
    int64_t global = cfg->training.global_batch_size, local = cfg->training.local_batch_size;
    int64_t divisor = local;

    if (global <= 0 || global % local == 0)
        return;
    tt_text_add(why, "global_batch_size %" PRId64 " is not a multiple of local_batch_size %" PRId64, global, local);
    if (local > global) {
        tt_text_add(why,
                    "\nhelp: a step has %" PRId64 " sequence%s: set training.local_batch_size=%" PRId64
                    ", or a training.global_batch_size of at least %" PRId64,
                    global, global == 1 ? "" : "s", global, local);
        return;
    }
    while (global % divisor)
        divisor--;
    tt_text_add(why,
                "\nhelp: set training.global_batch_size=%" PRId64 ", or training.local_batch_size=%" PRId64
                ", which divides %" PRId64,
                global / local * local, divisor, global);
}

static void epochs_repeat(const struct tt_config *cfg, struct tt_text *why)
{
    if (cfg->training.epochs != TT_NULL_INT && cfg->training.epochs > 1 && !cfg->dataloader.repeat)
        tt_text_add(why,
                    "%" PRId64 " epochs need data that repeats\nhelp: set dataloader.repeat=true, or "
                    "training.epochs=1",
                    cfg->training.epochs);
}

static void new_rows_are_trained(const struct tt_config *cfg, struct tt_text *why)
{
    if (cfg->checkpoint.initial_load_extend_vocabulary && cfg->lora.rank)
        tt_text_add(why,
                    "with lora.rank %" PRId64 " the embedding is not trained, so new rows would stay as they are\n"
                    "help: set lora.rank to 0, or leave the vocabulary as it is",
                    cfg->lora.rank);
}

static void lora_has_modules(const struct tt_config *cfg, struct tt_text *why)
{
    if (cfg->lora.rank && cfg->lora.target_modules.n == 0)
        tt_text_add(why,
                    "with lora.rank %" PRId64 " nothing would be trained\nhelp: name at least one layer, such as "
                    "[q_proj, v_proj]",
                    cfg->lora.rank);
}

/* The rank may follow from a folder of adapters; tt_job_adopt_folder checks it then. */
static void base_is_frozen(const struct tt_config *cfg, struct tt_text *why)
{
    if (cfg->lora.base_dtype != TT_PACKING_NONE && !cfg->lora.rank && !cfg->checkpoint.initial_load_path)
        tt_text_add(why, "only frozen weights can be packed, and with lora.rank 0 all weights are trained\n"
                         "help: set lora.rank, or lora.base_dtype to default");
}

static void adapters_are_dropped_out(const struct tt_config *cfg, struct tt_text *why)
{
    if (cfg->lora.dropout > 0.0 && !cfg->lora.rank && !cfg->checkpoint.initial_load_path)
        tt_text_add(why, "dropout is for adapters, and with lora.rank 0 there are none\n"
                         "help: set lora.rank, or lora.dropout to 0");
}

static void adapters_have_magnitudes(const struct tt_config *cfg, struct tt_text *why)
{
    if (cfg->lora.dora && !cfg->lora.rank && !cfg->checkpoint.initial_load_path)
        tt_text_add(why, "magnitudes (DoRA) are of weights with adapters, and with lora.rank 0 there are none\n"
                         "help: set lora.rank, or lora.dora to false");
}

/* This export cannot be made from a checkpoint without the frozen weights. */
static void base_is_exported(const struct tt_config *cfg, struct tt_text *why)
{
    if (cfg->lora.base_dtype != TT_PACKING_NONE && cfg->checkpoint.last_save_in_hf)
        tt_text_add(why,
                    "checkpoints of packed weights hold only the adapters\nhelp: leave last_save_in_hf off; titan ckpt "
                    "consolidate --format hf merges them into the weights");
}

/* What initial_load_path contains is known only when it is read. */
static void weights_are_loaded(const struct tt_config *cfg, struct tt_text *why)
{
    const char *key = cfg->checkpoint.initial_load_extend_vocabulary ? "initial_load_extend_vocabulary"
                      : cfg->checkpoint.initial_load_leave_out.n     ? "initial_load_leave_out"
                                                                     : NULL;

    if (key && !cfg->checkpoint.initial_load_in_hf && !cfg->checkpoint.initial_load_path)
        tt_text_add(why,
                    "%s has no effect without weights to start from\nhelp: set checkpoint.initial_load_path, or "
                    "checkpoint.initial_load_in_hf for those of model.hf_assets_path",
                    key);
}

/* A folder of the run must be below dump_folder, so that --overwrite removes only what belongs to the run. */
static void folder_is_inside(const struct tt_config *cfg, enum tt_key key, struct tt_text *why)
{
    const char *path = *(char *const *)tt_config_member(cfg, tt_config_row(key));
    bool up = false, named = false;

    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");

        up = up || (n == 2 && strncmp(p, "..", 2) == 0);
        named = named || (n > 0 && !(n == 1 && *p == '.'));
        p += n + (p[n] == '/');
    }
    if (path[0] == '/' || up || !named)
        tt_text_add(why,
                    "'%s' is not a folder inside job.dump_folder\nhelp: name it relative to dump_folder, without '..'",
                    path);
}

static void rope_order(const struct tt_config *cfg, struct tt_text *why)
{
    /* false if either is null */
    if (cfg->model.rope_scaling.low_freq_factor >= cfg->model.rope_scaling.high_freq_factor) {
        tt_text_add(why, "rope_scaling.low_freq_factor %g must be less than high_freq_factor %g",
                    cfg->model.rope_scaling.low_freq_factor, cfg->model.rope_scaling.high_freq_factor);
    }
}

static void head_groups(const struct tt_config *cfg, struct tt_text *why)
{
    int64_t heads = cfg->model.n_heads, kv = cfg->model.n_kv_heads;

    if (heads != TT_NULL_INT && kv != TT_NULL_INT && heads % kv) {
        tt_text_add(why,
                    "n_heads %" PRId64 " is not a multiple of n_kv_heads %" PRId64 "\nhelp: set model.n_kv_heads to ",
                    heads, kv);
        tt_text_add_divisors(why, heads);
    }
}

static void degree_is_exact(const struct tt_config *cfg, enum tt_key key, struct tt_text *why)
{
    bool is_tensor = key == TT_KEY(parallelism.exact_tensor_parallel_degree);
    const char *what = is_tensor ? "tensor_parallel" : "context_parallel";
    int64_t degree = is_tensor ? cfg->parallelism.tensor_parallel_degree : cfg->parallelism.context_parallel_degree;
    int64_t exact =
        is_tensor ? cfg->parallelism.exact_tensor_parallel_degree : cfg->parallelism.exact_context_parallel_degree;

    if ((exact & (exact - 1)) != 0)
        tt_text_add(why,
                    "exact_%s_degree %" PRId64 " is not a power of two\nhelp: use 1, 2, 4, 8, 16, 32 or 64, at least "
                    "the largest degree that is to give the same bits",
                    what, exact);
    else if (degree > 64)
        tt_text_add(why, "%s_degree %" PRId64 " is more than 64", what, degree);
    else if (degree < exact && exact % degree)
        tt_text_add(why, "%s_degree %" PRId64 " does not divide exact_%s_degree %" PRId64 "\nhelp: use a power of two",
                    what, degree, what, exact);
}

/* clang-format off */
#define RULE(check, ...) {check, NULL, {__VA_ARGS__}}
#define RULE_OF_KEY(check, ...) {NULL, check, {__VA_ARGS__}}
static const struct {
    rule_fn check;
    rule_of_key_fn check_key; /* used instead of `check` */
    enum tt_key keys[4];      /* the keys that it reads; the error is reported at the first of them that the user set */
} rules[] = {
    RULE_OF_KEY(data_has_path, TT_KEY(training.dataset), TT_KEY(training.dataset_path)),
    RULE_OF_KEY(data_has_path, TT_KEY(validation.dataset), TT_KEY(validation.dataset_path), TT_KEY(validation.enable)),
    RULE_OF_KEY(path_is_of_one, TT_KEY(training.dataset_path), TT_KEY(training.dataset)),
    RULE_OF_KEY(path_is_of_one, TT_KEY(validation.dataset_path), TT_KEY(validation.dataset)),
    RULE_OF_KEY(documents_are_known, TT_KEY(training.document_mask), TT_KEY(training.dataset)),
    RULE(split_has_one_dataset, TT_KEY(validation.split), TT_KEY(validation.dataset), TT_KEY(validation.dataset_path)),
    RULE_OF_KEY(documents_are_known, TT_KEY(validation.split), TT_KEY(training.dataset)),
    RULE_OF_KEY(data_has_format, TT_KEY(training.dataset_path), TT_KEY(training.dataset)),
    RULE_OF_KEY(data_has_format, TT_KEY(validation.dataset_path), TT_KEY(validation.dataset)),
    RULE(batch_multiple, TT_KEY(training.global_batch_size), TT_KEY(training.local_batch_size)),
    RULE(epochs_repeat, TT_KEY(training.epochs), TT_KEY(dataloader.repeat)),
    RULE(lora_has_modules, TT_KEY(lora.target_modules), TT_KEY(lora.rank)),
    RULE(base_is_frozen, TT_KEY(lora.base_dtype), TT_KEY(lora.rank)),
    RULE(adapters_are_dropped_out, TT_KEY(lora.dropout), TT_KEY(lora.rank)),
    RULE(adapters_have_magnitudes, TT_KEY(lora.dora), TT_KEY(lora.rank)),
    RULE(base_is_exported, TT_KEY(checkpoint.last_save_in_hf), TT_KEY(lora.base_dtype)),
    RULE(new_rows_are_trained, TT_KEY(checkpoint.initial_load_extend_vocabulary), TT_KEY(lora.rank)),
    RULE(weights_are_loaded, TT_KEY(checkpoint.initial_load_extend_vocabulary),
         TT_KEY(checkpoint.initial_load_leave_out)),
    RULE_OF_KEY(folder_is_inside, TT_KEY(checkpoint.folder)),
    RULE_OF_KEY(folder_is_inside, TT_KEY(metrics.save_tb_folder)),
    RULE_OF_KEY(folder_is_inside, TT_KEY(profiling.save_traces_folder)),
    RULE(rope_order, TT_KEY(model.rope_scaling.low_freq_factor), TT_KEY(model.rope_scaling.high_freq_factor)),
    RULE(head_groups, TT_KEY(model.n_heads), TT_KEY(model.n_kv_heads)),
    RULE_OF_KEY(degree_is_exact, TT_KEY(parallelism.exact_tensor_parallel_degree),
                TT_KEY(parallelism.tensor_parallel_degree)),
    RULE_OF_KEY(degree_is_exact, TT_KEY(parallelism.exact_context_parallel_degree),
                TT_KEY(parallelism.context_parallel_degree)),
};
/* clang-format on */

static struct tt_config_origin *origin_of(const struct tt_config *cfg, enum tt_key key)
{
    return tt_config_origin_of(cfg, tt_config_row(key));
}

bool tt_config_is_bad(const struct tt_config *cfg, enum tt_key key)
{
    return origin_of(cfg, key)->is_bad;
}

/* 0: the user set no value; 1: the built-in configuration did; 2: a file or a flag did. */
static int claim(const struct tt_config *cfg, const struct tt_config_row *row)
{
    return tt_config_is_users(cfg, row) + tt_config_is_set(cfg, row->id);
}

void tt_config_fault(struct tt_config *cfg, struct tt_config_report *report, const enum tt_key *keys, const char *fmt,
                     ...)
{
    const struct tt_config_row *at = NULL;
    char message[1500];
    va_list args;

    for (; *keys; keys++) {
        const struct tt_config_row *row = tt_config_row(*keys);

        if (origin_of(cfg, *keys)->is_bad)
            return;
        if (!at || claim(cfg, row) > claim(cfg, at))
            at = row;
    }
    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    tt_config_origin_of(cfg, at)->is_bad = true;
    tt_config_report_value(report, cfg, at, message);
}

/* The place of an entry: the origin of its list, "my.yaml:14:7", with the line and column of the entry. */
static char *place_of_entry(const struct tt_config_origin *o, const struct tt_dataset_entry *entry)
{
    const char *end = strrchr(o->where, ':');

    while (end && entry->line && end > o->where && *--end != ':')
        ;
    return end && entry->line ? tt_format("%.*s:%d:%d", (int)(end - o->where), o->where, entry->line, entry->column)
                              : tt_strdup(o->where);
}

void tt_config_fault_entry(struct tt_config *cfg, struct tt_config_report *report, enum tt_key key, int entry,
                           const char *fmt, ...)
{
    const struct tt_datasets *d = tt_config_member(cfg, tt_config_row(key));
    char *where = place_of_entry(origin_of(cfg, key), &d->entry[entry]), message[1500];
    int n = snprintf(message, sizeof message, "entry %d: ", entry + 1);
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(message + n, sizeof message - (size_t)n, fmt, args);
    va_end(args);
    origin_of(cfg, key)->is_bad = true;
    tt_config_report_key(report, where, tt_key_name(key), message);
    tt_free(where);
}

/* Rules whose message needs no function. */
static void check_plain_rules(struct tt_config *cfg, struct tt_config_report *report)
{
    const struct tt_words *reshard = &cfg->parallelism.fsdp_reshard_after_forward;
    bool hf_weights = cfg->checkpoint.initial_load_in_hf, averages = cfg->ema.validate;
    bool moves_end = cfg->lr_scheduler.finish_by != TT_NULL_INT || cfg->lr_scheduler.ends;
    /* it may follow from initial_load_path, which is known only when folders are examined */
    bool no_hf_path = !cfg->model.hf_assets_path && !cfg->checkpoint.initial_load_path;
    const struct {
        bool is_broken;
        const char *why;
        enum tt_key keys[4]; /* as in the table above */
    } plain[] = {
        {!cfg->metrics.sample_freq && (cfg->metrics.sample_prompt || cfg->metrics.sample_tokens != 32),
         "no text is sampled while metrics.sample_freq is 0\nhelp: set metrics.sample_freq, for instance to 100",
         {TT_KEY(metrics.sample_prompt), TT_KEY(metrics.sample_tokens), TT_KEY(metrics.sample_freq)}},
        {!cfg->metrics.task_freq && cfg->metrics.tasks.n,
         "no task is evaluated while metrics.task_freq is 0\nhelp: set metrics.task_freq, for instance to 100",
         {TT_KEY(metrics.tasks), TT_KEY(metrics.task_freq)}},
        {cfg->metrics.task_freq && !cfg->metrics.tasks.n,
         "there is no task to evaluate\nhelp: set metrics.tasks=[FILE], a task that titan eval --task reads",
         {TT_KEY(metrics.task_freq), TT_KEY(metrics.tasks)}},
        {moves_end && !(cfg->lr_scheduler.decay_ratio < 1.0),
         "the last step can move only while the learning rate is constant, and without lr_scheduler.decay_ratio (below "
         "1) it decays from the end of the warm-up on\nhelp: set lr_scheduler.decay_ratio, for instance to 0.2",
         {TT_KEY(lr_scheduler.finish_by), TT_KEY(lr_scheduler.ends), TT_KEY(lr_scheduler.decay_ratio)}},
        {moves_end && cfg->lr_scheduler.total_steps != TT_NULL_INT,
         "lr_scheduler.total_steps fixes the end of the decay\nhelp: leave one of the two keys out",
         {TT_KEY(lr_scheduler.finish_by), TT_KEY(lr_scheduler.ends), TT_KEY(lr_scheduler.total_steps)}},
        {cfg->lr_scheduler.ends && cfg->lr_scheduler.finish_by != TT_NULL_INT,
         "lr_scheduler.ends repeats the decisions of an earlier run, and lr_scheduler.finish_by makes new ones\nhelp: "
         "set one of them to null",
         {TT_KEY(lr_scheduler.ends), TT_KEY(lr_scheduler.finish_by)}},
        {cfg->training.dtype == TT_DTYPE_BFLOAT16 && cfg->training.mixed_precision_param != TT_DTYPE_BFLOAT16,
         "weights in bfloat16 compute in bfloat16\nhelp: set training.mixed_precision_param=bfloat16",
         {TT_KEY(training.dtype), TT_KEY(training.mixed_precision_param)}},
        {averages && isnan(cfg->ema.decay),
         "there are no averages to validate\nhelp: set ema.decay, for example to 0.999",
         {TT_KEY(ema.validate), TT_KEY(ema.decay)}},
        {averages && cfg->training.dtype != TT_DTYPE_FLOAT32,
         "only weights in float32 can be exchanged with their averages\nhelp: set training.dtype=float32",
         {TT_KEY(ema.validate), TT_KEY(training.dtype)}},
        {strcmp(cfg->model.flavor, "hf") == 0 && no_hf_path,
         "flavor 'hf' needs model.hf_assets_path, the folder that holds config.json",
         {TT_KEY(model.flavor), TT_KEY(model.hf_assets_path)}},
        {hf_weights && no_hf_path,
         "initial_load_in_hf needs checkpoint.initial_load_path or model.hf_assets_path, the folder that holds the "
         "weights",
         {TT_KEY(checkpoint.initial_load_in_hf), TT_KEY(checkpoint.initial_load_path), TT_KEY(model.hf_assets_path)}},
        {hf_weights && !cfg->checkpoint.initial_load_model_only,
         "a Hugging Face folder holds only weights\nhelp: set checkpoint.initial_load_model_only=true",
         {TT_KEY(checkpoint.initial_load_model_only), TT_KEY(checkpoint.initial_load_in_hf)}},
        {cfg->checkpoint.load_step >= 0 && !cfg->checkpoint.enable,
         "load_step has no effect while checkpoint.enable is false\nhelp: set checkpoint.enable=true",
         {TT_KEY(checkpoint.load_step), TT_KEY(checkpoint.enable)}},
        {!reshard->is_list && strcmp(reshard->word[0], "auto") == 0 &&
             cfg->parallelism.fsdp_engine != TT_ENGINE_PLANNED,
         "fsdp_reshard_after_forward 'auto' needs the planned scheduler\nhelp: set parallelism.fsdp_engine=planned",
         {TT_KEY(parallelism.fsdp_reshard_after_forward), TT_KEY(parallelism.fsdp_engine)}},
    };

    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (plain[i].is_broken)
            tt_config_fault(cfg, report, plain[i].keys, "%s", plain[i].why);
}

static void check_rule(struct tt_config *cfg, int r, struct tt_config_report *report)
{
    struct tt_text why = {0};

    for (const enum tt_key *key = rules[r].keys; *key; key++) {
        if (origin_of(cfg, *key)->is_bad)
            return;
    }
    if (rules[r].check)
        rules[r].check(cfg, &why);
    else
        rules[r].check_key(cfg, rules[r].keys[0], &why);
    if (why.size)
        tt_config_fault(cfg, report, rules[r].keys, "%s", why.text);
    tt_text_release(&why);
}

/* Checks each entry of a list by itself, so that all faults are reported. */
static void check_list(struct tt_config *cfg, enum tt_key key, const struct tt_datasets *d,
                       struct tt_config_report *report)
{
    if (origin_of(cfg, key)->is_bad || origin_of(cfg, key)->is_derived)
        return;
    for (int i = 0; i < d->n && d->is_list; i++) {
        struct tt_text why = {0};

        check_entry(cfg, d, i, &why);
        if (why.size)
            tt_config_fault_entry(cfg, report, key, i, "%s", why.text);
        tt_text_release(&why);
    }
}

/* Whether the value works today (.works in schema.def). */
static void check_built(const struct tt_config *cfg, const struct tt_config_row *row, struct tt_config_report *report)
{
    struct tt_text value = {0}, message = {0};
    bool works;

    tt_config_value_text(cfg, row, &value);
    works = tt_config_origin_of(cfg, row)->is_bad || tt_text_is_listed(value.text, row->works);
    if (!works && cfg->origins->unbuilt) {
        tt_text_add(cfg->origins->unbuilt, "%s=%s\n", row->path, value.text);
    } else if (!works) {
        tt_text_add(&message, "'%s' needs %s, which is not built yet\nhelp: what works now: ", value.text, row->needs);
        tt_text_add_replaced(&message, row->works, strlen(row->works), "|", ", ");
        tt_config_report_value(report, cfg, row, message.text);
    }
    tt_text_release(&value);
    tt_text_release(&message);
}

void tt_config_tolerate_unbuilt(struct tt_config *cfg, struct tt_text *unbuilt)
{
    cfg->origins->unbuilt = unbuilt;
}

void tt_config_check_rules(struct tt_config *cfg, struct tt_config_report *report)
{
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        check_rule(cfg, (int)r, report);
    check_plain_rules(cfg, report);
    check_list(cfg, TT_KEY(training.dataset), &cfg->training.dataset, report);
    check_list(cfg, TT_KEY(validation.dataset), &cfg->validation.dataset, report);
    for (int i = 0; i < tt_config_n_rows; i++)
        if (tt_config_rows[i].works)
            check_built(cfg, &tt_config_rows[i], report);
}
