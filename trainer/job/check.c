/* SPDX-License-Identifier: MIT
 *
 * Finds those faults of a configuration that can be found without ranks. When a run starts, the code that uses a value
 * checks it again; this file reports all faults earlier, at once, each with its place.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

#include "core/base/mem.h"
#include "core/data/dataset.h"
#include "core/data/source.h"
#include "core/optim/lr.h"
#include "core/tokenizer/tokenizer.h"
#include "parallel/layout/init.h"
#include "parallel/layout/units.h"
#include "trainer/job/job.h"

struct checking {
    struct tt_config *cfg;
    struct tt_config_report *report;
    struct tt_model *model; /* NULL: the model cannot be made */
};

/* --- the model --- */

static void model_fault(void *arg, const enum tt_key *keys, const char *message)
{
    struct checking *c = arg;

    tt_config_fault(c->cfg, c->report, keys, "%s", message);
}

/* Reports this thread's error as a fault of a key. */
static void fault(struct checking *c, enum tt_key key)
{
    tt_config_fault(c->cfg, c->report, TT_KEY_LIST(key), "%s", tt_error_message());
}

/* If files are not checked, a config.json that cannot be read is no fault here; commands that need it report it. */
static void drop_fault(void *arg, const enum tt_key *keys, const char *message)
{
    (void)arg;
    (void)keys;
    (void)message;
}

/* Applies rules to the keys that a Hugging Face folder in initial_load_path sets, which titan knows only now. */
static void check_folder(struct checking *c)
{
    if (tt_config_is_bad(c->cfg, TT_KEY(checkpoint.initial_load_path)) ||
        tt_config_is_bad(c->cfg, TT_KEY(model.hf_assets_path)))
        return;
    if (tt_job_adopt_folder(c->cfg) < 0)
        tt_config_fault(c->cfg, c->report,
                        TT_KEY_LIST(TT_KEY(checkpoint.initial_load_path), TT_KEY(model.hf_assets_path)), "%s",
                        tt_error_message());
    else if (c->cfg->checkpoint.initial_load_in_hf && !c->cfg->checkpoint.initial_load_model_only)
        tt_config_fault(c->cfg, c->report,
                        TT_KEY_LIST(TT_KEY(checkpoint.initial_load_model_only), TT_KEY(checkpoint.initial_load_in_hf)),
                        "a Hugging Face folder holds only weights\nhelp: set checkpoint.initial_load_model_only=true");
}

static void check_model(struct checking *c, bool with_files)
{
    const struct tt_config *cfg = c->cfg;
    struct tt_model_dims over;
    bool is_silent;

    check_folder(c);
    is_silent = strcmp(cfg->model.flavor, "hf") == 0 && !with_files;
    if (tt_config_is_bad(cfg, TT_KEY(model.name)) || tt_config_is_bad(cfg, TT_KEY(model.flavor)))
        return;
    if (with_files && tt_job_adopt_family(c->cfg) < 0)
        is_silent = false; /* tt_model_check reports errors in config.json */
    if (tt_job_adopt_vocabulary(c->cfg) < 0)
        fault(c, TT_KEY(model.hf_assets_path));
    over = tt_job_model_overrides(cfg);
    if (tt_model_check(cfg->model.name, cfg->model.flavor, &over, cfg->model.hf_assets_path,
                       is_silent ? drop_fault : model_fault, c, &c->model) < 0)
        c->model = NULL;
    for (int i = 0; i < tt_config_n_rows && c->model; i++) {
        if (!tt_text_begins(tt_config_rows[i].path, "model.") || !tt_config_is_bad(cfg, tt_config_rows[i].id))
            continue;
        tt_model_free(c->model);
        c->model = NULL;
    }
}

static void check_seq_len(struct checking *c, enum tt_key key, int64_t seq_len)
{
    if (c->model && tt_model_check_seq_len(c->model, seq_len, c->cfg->training.document_mask) < 0)
        fault(c, key);
}

/* --- policies --- */

/* Reports an error that carries a key; any other error is not about the configuration. */
static void key_fault(struct checking *c)
{
    if (tt_error_key() != TT_KEY_NONE)
        fault(c, tt_error_key());
}

/* Without a model, only the syntax of expressions can be checked. */
static void check_expressions(struct checking *c, enum tt_key key, const struct tt_words *words)
{
    struct tt_patterns patterns = {0};

    if (words->is_list && tt_patterns_init(key, *words, &patterns) < 0)
        key_fault(c);
    tt_patterns_release(&patterns);
}

static bool policies_are_good(const struct tt_config *cfg)
{
    return !tt_config_is_bad(cfg, TT_KEY(parallelism.fsdp_wrap_policy)) &&
           !tt_config_is_bad(cfg, TT_KEY(parallelism.fsdp_reshard_after_forward));
}

/* Checks the sharding policies on one rank. An integer must divide the number of shard ranks, which is not known here.
 * Regular expressions do not depend on the mesh. */
static void check_policies(struct checking *c)
{
    const struct tt_config *cfg = c->cfg;
    const struct tt_words *wrap = &cfg->parallelism.fsdp_wrap_policy,
                          *reshard = &cfg->parallelism.fsdp_reshard_after_forward;
    struct tt_sharding sharding = tt_sharding_of(*wrap, *reshard);
    struct tt_layout *layout = NULL;
    struct tt_mesh mesh = tt_mesh_single();

    if (!policies_are_good(cfg))
        return;
    check_expressions(c, TT_KEY(parallelism.fsdp_wrap_policy), wrap);
    check_expressions(c, TT_KEY(parallelism.fsdp_reshard_after_forward), reshard);
    if (!c->model || !policies_are_good(cfg))
        return;
    if (sharding.reshard == TT_RESHARD_AFTER_FORWARD_PART)
        sharding.reshard = TT_RESHARD_AFTER_FORWARD_ALWAYS;
    if (tt_layout_new(c->model, &mesh, 0, &sharding, NULL, &layout) < 0)
        key_fault(c);
    tt_layout_free(layout);
}

/* Losses of routers need routers, and the z-loss needs softmax logits. */
static void check_router_losses(struct checking *c)
{
    const struct tt_config *cfg = c->cfg;
    const struct {
        enum tt_key key;
        double coefficient;
    } losses[] = {{TT_KEY(training.sequence_balance_loss), cfg->training.sequence_balance_loss},
                  {TT_KEY(training.microbatch_balance_loss), cfg->training.microbatch_balance_loss},
                  {TT_KEY(training.global_batch_balance_loss), cfg->training.global_batch_balance_loss},
                  {TT_KEY(training.router_z_loss), cfg->training.router_z_loss}};

    for (size_t i = 0; i < sizeof losses / sizeof *losses && c->model && !c->model->dims.moe.experts; i++)
        if (losses[i].coefficient > 0.0)
            tt_config_fault(c->cfg, c->report, TT_KEY_LIST(losses[i].key),
                            "%s has no experts\nhelp: set %s to 0, or choose a model "
                            "with experts",
                            c->model->title, tt_key_name(losses[i].key));
    if (c->model && c->model->dims.moe.experts && c->model->dims.moe.score != TT_SCORE_SOFTMAX &&
        cfg->training.router_z_loss > 0.0)
        tt_config_fault(c->cfg, c->report, TT_KEY_LIST(TT_KEY(training.router_z_loss)),
                        "the routers of %s take sigmoids of their logits, and the z-loss is for softmax\nhelp: set "
                        "training.router_z_loss to 0",
                        c->model->title);
}

/* --- the schedule --- */

static void check_ends(struct checking *c)
{
    const char *text = c->cfg->lr_scheduler.ends;
    struct tt_lr_ends ends;

    if (text && !tt_lr_ends_read(text, &ends))
        tt_config_fault(
            c->cfg, c->report, TT_KEY_LIST(TT_KEY(lr_scheduler.ends)),
            "expected STEP:LAST,STEP:LAST, with growing steps from 0 on, and no LAST before its STEP, found "
            "'%s'\nhelp: the run that is to be repeated printed such a list when its last step moved",
            text);
}

/* --- the pipeline --- */

static void check_pipeline(struct checking *c, bool with_files)
{
    const struct tt_config *cfg = c->cfg;
    const char *csv = cfg->parallelism.pipeline_parallel_schedule_csv;
    struct tt_stage_split split = {0};
    struct tt_pipeline *pipeline = NULL;
    int microbatches = 0;
    if (cfg->parallelism.pipeline_parallel_degree == 1 ||
        tt_config_is_bad(cfg, TT_KEY(parallelism.pipeline_parallel_degree)))
        return;
    if (tt_job_pipeline_microbatches(cfg, &microbatches) < 0)
        key_fault(c);
    if (!c->model)
        return;
    /* the file of a schedule is read only if files are checked, and only if it exists */
    if (tt_job_pipeline_split(cfg, (int)c->model->dims.n_layers, &split) < 0 ||
        (microbatches && (!*csv || with_files) &&
         tt_job_pipeline_new(cfg, split.n_stages, microbatches, &pipeline) < 0))
        key_fault(c);
    tt_pipeline_free(pipeline);
    tt_stage_split_release(&split);
}

/* --- files --- */

static const char data_remedy[] = "titan downloads nothing; name the file or folder that holds the data";

static bool check_exists(struct checking *c, enum tt_key key, const char *path, const char *remedy)
{
    struct stat st;
    char *seen, *beside;

    if (!path || tt_config_is_bad(c->cfg, key))
        return false;
    if (stat(path, &st) == 0 || (remedy == data_remedy && tt_source_is_there(path)))
        return true;
    if (errno != ENOENT) {
        tt_config_fault(c->cfg, c->report, TT_KEY_LIST(key), "cannot examine '%s': %s", path, strerror(errno));
        return false;
    }
    seen = tt_path_seen(path);
    beside = tt_config_beside(c->cfg, key);
    tt_config_fault(c->cfg, c->report, TT_KEY_LIST(key), "'%s' does not exist%s\nhelp: %s", path, seen,
                    beside ? beside : remedy);
    tt_free(seen);
    tt_free(beside);
    return false;
}

/* Whether some of the datasets are text (or, with !text, packed). */
static bool reads(const struct tt_datasets *datasets, bool text)
{
    const struct tt_dataset_kind *kind = NULL;
    bool found = false;

    for (int i = 0; i < datasets->n; i++)
        found = found || (tt_dataset_find(datasets->entry[i].dataset, &kind) == 0 && kind->is_text == text);
    return found;
}

/* The files of a list. Files for validation are checked if they differ from those for training. */
static void check_list(struct checking *c, enum tt_key key, const struct tt_datasets *d)
{
    struct stat st;

    if (tt_config_is_bad(c->cfg, key))
        return;
    for (int i = 0; i < d->n && d->is_list; i++) {
        const char *path = d->entry[i].dataset_path;
        char *seen = path && !tt_source_is_there(path) && stat(path, &st) < 0
                         ? errno == ENOENT ? tt_path_seen(path) : tt_strdup("")
                         : NULL;

        if (seen)
            tt_config_fault_entry(c->cfg, c->report, key, i, "cannot read '%s': %s%s\nhelp: %s", path, strerror(errno),
                                  seen, data_remedy);
        tt_free(seen);
    }
}

static void check_tokenizer(struct checking *c)
{
    const struct tt_config *cfg = c->cfg;
    const char *folder = cfg->model.hf_assets_path;
    struct tt_tokenizer *tokenizer = NULL;
    char has[32], rows[32];

    if (!reads(&cfg->training.dataset, true) && !(cfg->validation.enable && reads(&cfg->validation.dataset, true)))
        return;
    if (tt_config_is_bad(cfg, TT_KEY(model.hf_assets_path)) ||
        (folder &&
         !check_exists(c, TT_KEY(model.hf_assets_path), folder,
                       "name the folder that holds tokenizer.json and config.json, or leave the key out for the "
                       "built-in tokenizer")))
        return;
    if (tt_tokenizer_load(folder, &tokenizer) < 0)
        fault(c, TT_KEY(model.hf_assets_path));
    else if (c->model && tt_tokenizer_info(tokenizer)->vocab_size > c->model->dims.vocab_size)
        tt_config_fault(
            c->cfg, c->report,
            TT_KEY_LIST(TT_KEY(model.vocab_size), TT_KEY(model.hf_assets_path), TT_KEY(model.flavor)),
            "the tokenizer has %s tokens (%s), but the model has rows for %s\nhelp: set model.vocab_size to "
            "at least %lld, with Hugging Face weights also checkpoint.initial_load_extend_vocabulary, or "
            "model.hf_assets_path to the tokenizer of the model",
            tt_text_count(has, sizeof has, tt_tokenizer_info(tokenizer)->vocab_size),
            tt_tokenizer_info(tokenizer)->where, tt_text_count(rows, sizeof rows, c->model->dims.vocab_size),
            (long long)tt_tokenizer_info(tokenizer)->vocab_size);
    tt_tokenizer_free(tokenizer);
}

/* Compares packed tokens with the configuration's tokenizer. Other code reports missing files. */
static void check_tokens(struct checking *c, enum tt_key key, const struct tt_datasets *d,
                         const struct tt_tokenizer *tokenizer)
{
    for (int i = 0; i < d->n && !tt_config_is_bad(c->cfg, key); i++) {
        const struct tt_dataset_entry entry = tt_config_dataset(c->cfg, d, i);
        const struct tt_dataset_spec spec = {.name = entry.dataset, .path = entry.dataset_path, .tokenizer = tokenizer};
        struct stat st;

        if (!entry.dataset_path || stat(entry.dataset_path, &st) < 0 || tt_dataset_peek(&spec) == 0)
            continue;
        if (d->is_list)
            tt_config_fault_entry(c->cfg, c->report, key, i, "%s", tt_error_message());
        else
            fault(c, key);
    }
}

static void check_packed(struct checking *c)
{
    const struct tt_config *cfg = c->cfg;
    const char *folder = cfg->model.hf_assets_path;
    struct tt_tokenizer *tokenizer = NULL;

    if (!reads(&cfg->training.dataset, false) && !(cfg->validation.enable && reads(&cfg->validation.dataset, false)))
        return;
    /* without a tokenizer in the folder there is nothing to compare; a broken one is reported where it is needed */
    if (tt_config_is_bad(cfg, TT_KEY(model.hf_assets_path)) || tt_tokenizer_load(folder, &tokenizer) < 0)
        tokenizer = NULL;
    check_tokens(c, TT_KEY(training.dataset), &cfg->training.dataset, tokenizer);
    if (cfg->validation.enable && tt_config_is_set(cfg, TT_KEY(validation.dataset)))
        check_tokens(c, TT_KEY(validation.dataset), &cfg->validation.dataset, tokenizer);
    tt_tokenizer_free(tokenizer);
}

static void check_files(struct checking *c)
{
    const struct tt_config *cfg = c->cfg;
    struct tt_machine machine;

    (void)check_exists(c, TT_KEY(training.dataset_path), cfg->training.dataset_path, data_remedy);
    check_list(c, TT_KEY(training.dataset), &cfg->training.dataset);
    if (cfg->validation.enable) {
        (void)check_exists(c, TT_KEY(validation.dataset_path), cfg->validation.dataset_path, data_remedy);
        if (tt_config_is_set(cfg, TT_KEY(validation.dataset)))
            check_list(c, TT_KEY(validation.dataset), &cfg->validation.dataset);
    }
    check_tokenizer(c);
    check_packed(c);
    (void)check_exists(c, TT_KEY(checkpoint.initial_load_path), cfg->checkpoint.initial_load_path,
                       "name a checkpoint, or leave the key out to start from random weights");
    if (check_exists(c, TT_KEY(parallelism.machine_file), cfg->parallelism.machine_file,
                     "`titan bench --save FILE` writes one; without the key there is a built-in table") &&
        tt_job_machine(cfg, &machine) < 0)
        key_fault(c);
}

/* --- all checks --- */

static void check(struct checking *c, bool with_files)
{
    static const enum tt_key degrees[] = {
        TT_KEY(parallelism.tensor_parallel_degree), TT_KEY(parallelism.exact_tensor_parallel_degree),
        TT_KEY(parallelism.context_parallel_degree), TT_KEY(parallelism.exact_context_parallel_degree),
        TT_KEY(parallelism.expert_parallel_degree)};
    const struct tt_words none = {0};
    bool degrees_are_good = true;

    check_model(c, with_files);
    check_seq_len(c, TT_KEY(training.seq_len), c->cfg->training.seq_len);
    if (c->cfg->validation.enable && c->cfg->validation.seq_len != c->cfg->training.seq_len)
        check_seq_len(c, TT_KEY(validation.seq_len), c->cfg->validation.seq_len);
    check_policies(c);
    if (c->model && tt_init_rules_apply(c->model, c->cfg->model.init_std, c->cfg->model.init_rules) < 0)
        key_fault(c);
    check_router_losses(c);
    check_ends(c);
    if (c->model && tt_param_groups_apply(c->model, c->cfg->optimizer.no_decay, none) < 0) /* check this key alone */
        key_fault(c);
    if (c->model && tt_param_groups_apply(c->model, none, c->cfg->optimizer.lr_factors) < 0)
        key_fault(c);
    check_pipeline(c, with_files);
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++)
        degrees_are_good = degrees_are_good && !tt_config_is_bad(c->cfg, degrees[i]);
    if (degrees_are_good && c->model && tt_job_check_divisions(c->cfg, c->model) < 0)
        key_fault(c);
    if (with_files)
        check_files(c);
    tt_model_free(c->model);
}

void tt_job_check(struct tt_config *cfg, struct tt_config_report *report, void *arg)
{
    struct checking c = {.cfg = cfg, .report = report};

    (void)arg;
    check(&c, false);
}

void tt_job_check_files(struct tt_config *cfg, struct tt_config_report *report, void *arg)
{
    struct checking c = {.cfg = cfg, .report = report};

    (void)arg;
    check(&c, true);
}

/*
 * --- keys that have no effect because of another key ---
 *
 * torchtitan's files are full of them, so they are no errors; but whoever sets one should know.
 */

enum { IDLE_KEYS = 12 };

/* A reason, if it holds, and the keys that then have no effect. */
struct idle {
    bool holds;
    const char *why;
    enum tt_key key[IDLE_KEYS];
};

/* Numbers may be written in several ways. */
static bool is_default(const struct tt_config_row *row, const char *value)
{
    const char *preset = row->preset ? row->preset : row->kind == TT_KIND_TEXT ? "null" : "";
    char *end;
    double number = strtod(value, &end);

    return strcmp(value, preset) == 0 || (*value && !*end && number == strtod(preset, &end) && !*end);
}

static const char *reason(const struct idle *idle, int n, enum tt_key key)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < IDLE_KEYS && idle[i].holds && idle[i].key[k]; k++)
            if (idle[i].key[k] == key)
                return idle[i].why;
    return NULL;
}

void tt_job_idle_each(const struct tt_config *cfg, bool has_experts,
                      void (*take)(void *arg, const struct tt_config_row *key, const char *value, const char *why),
                      void *arg)
{
    bool one_context =
        cfg->parallelism.context_parallel_degree == 1 && cfg->parallelism.exact_context_parallel_degree == 1;
    const struct idle idle[] = {
        {!cfg->checkpoint.enable,
         "checkpoint.enable is false",
         {TT_KEY(checkpoint.folder), TT_KEY(checkpoint.interval), TT_KEY(checkpoint.keep_latest_k),
          TT_KEY(checkpoint.load_only), TT_KEY(checkpoint.async_mode), TT_KEY(checkpoint.last_save_model_only),
          TT_KEY(checkpoint.last_save_in_hf), TT_KEY(checkpoint.export_dtype),
          TT_KEY(checkpoint.enable_first_step_checkpoint), TT_KEY(checkpoint.save_policy), TT_KEY(checkpoint.filter)}},
        {!cfg->validation.enable,
         "validation.enable is false",
         {TT_KEY(validation.dataset), TT_KEY(validation.dataset_path), TT_KEY(validation.local_batch_size),
          TT_KEY(validation.seq_len), TT_KEY(validation.freq), TT_KEY(validation.steps)}},
        {!cfg->profiling.enable_profiling,
         "profiling.enable_profiling is false",
         {TT_KEY(profiling.profile_freq), TT_KEY(profiling.save_traces_folder)}},
        {!cfg->metrics.enable_tensorboard, "metrics.enable_tensorboard is false", {TT_KEY(metrics.save_tb_folder)}},
        {!cfg->metrics.enable_jsonl, "metrics.enable_jsonl is false", {TT_KEY(metrics.expert_loads)}},
        {!has_experts,
         "the model has no experts",
         {TT_KEY(metrics.expert_loads), TT_KEY(training.load_balance_coeff), TT_KEY(debug.moe_force_load_balance),
          TT_KEY(parallelism.moe_window)}},
        {cfg->parallelism.fsdp_engine == TT_ENGINE_EAGER,
         "parallelism.fsdp_engine is eager",
         {TT_KEY(parallelism.fsdp_bucket_bytes)}},
        {cfg->parallelism.pipeline_parallel_degree == 1,
         "parallelism.pipeline_parallel_degree is 1",
         {TT_KEY(parallelism.pipeline_parallel_schedule), TT_KEY(parallelism.pipeline_parallel_schedule_csv),
          TT_KEY(parallelism.pipeline_parallel_microbatch_size), TT_KEY(parallelism.pipeline_parallel_layers_per_stage),
          TT_KEY(parallelism.pipeline_parallel_first_stage_less_layers),
          TT_KEY(parallelism.pipeline_parallel_last_stage_less_layers),
          TT_KEY(parallelism.module_fqns_per_model_part)}},
        {one_context,
         "parallelism.context_parallel_degree is 1",
         {TT_KEY(parallelism.context_parallel_method), TT_KEY(parallelism.context_parallel_load_balancer)}},
        {cfg->activation_checkpoint.mode != TT_AC_SELECTIVE,
         "activation_checkpoint.mode is not selective",
         {TT_KEY(activation_checkpoint.selective_ac_option)}},
        {cfg->optimizer.name != TT_OPTIM_MUON,
         "optimizer.name is not Muon",
         {TT_KEY(optimizer.muon_momentum), TT_KEY(optimizer.muon_nesterov), TT_KEY(optimizer.muon_ns_steps),
          TT_KEY(optimizer.muon_adjust_lr)}},
        {!cfg->lora.rank, "lora.rank is 0", {TT_KEY(lora.alpha), TT_KEY(lora.rslora), TT_KEY(lora.target_modules)}},
        {cfg->lr_scheduler.decay_ratio == 0.0,
         "lr_scheduler.decay_ratio is 0",
         {TT_KEY(lr_scheduler.decay_type), TT_KEY(lr_scheduler.min_lr_factor)}},
    };

    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];
        const char *why = reason(idle, (int)(sizeof idle / sizeof *idle), row->id);
        bool is_built_in = tt_text_begins(tt_config_origin(cfg, row->id), "builtin:");
        struct tt_text value = {0};

        if (!why || !tt_config_is_set(cfg, row->id) || is_built_in)
            continue;
        tt_config_value_text(cfg, row, &value);
        if (!is_default(row, value.text ? value.text : ""))
            take(arg, row, value.text ? value.text : "", why);
        tt_text_release(&value);
    }
}
