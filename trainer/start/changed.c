/* SPDX-License-Identifier: MIT
 *
 * Changes since the step from which a run continues: the refused ones, and the banner's lines about the others.
 */
#include "trainer/start/changed.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"

enum { SHOWN = 12 };

/* Whether two values compute the same. Numbers are compared as float32, however they were written. */
static bool same_value(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;

    if (json_is_number(a) && json_is_number(b))
        return json_equal(a, b) || (float)json_number_value(a) == (float)json_number_value(b);
    if (!json_is_object(a) || !json_is_object(b))
        return json_equal(a, b) == 1;
    json_object_foreach((json_t *)(uintptr_t)a, key, value)
    {
        json_t *other = json_object_get(b, key);

        if (other && !same_value(value, other))
            return false;
    }
    return true;
}

/* A value as a person would write it: the shortest number that reads back as the same float32. */
static char *value_text(const json_t *value)
{
    char text[64] = "";

    if (!json_is_real(value))
        return tt_json_text(value);
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, digits < 17 && fabs(json_real_value(value)) >= 1.0 ? "%.*f" : "%.*g",
                       fabs(json_real_value(value)) >= 1.0 ? digits - 1 : digits, json_real_value(value));
        if (strtof(text, NULL) == (float)json_real_value(value))
            break;
    }
    return tt_strdup(text);
}

/* --- the model --- */

/* The keys of a model, and whether they change the shapes of tensors. */
static const struct model_key {
    const char *section, *key;
    bool is_shape;
} model_keys[] = {
    {"model", "name", true},        {"model", "dim", true},           {"model", "n_layers", true},
    {"model", "ffn_dim", true},     {"model", "vocab_size", true},    {"model", "tie_embeddings", true},
    {"lora", "rank", true},         {"lora", "target_modules", true}, {"model", "n_heads", false},
    {"model", "n_kv_heads", false}, {"model", "head_dim", false},     {"model", "norm_eps", false},
    {"model", "rope_theta", false}, {"model", "rope_scaling", false}, {"lora", "alpha", false},
};
enum { MODEL_KEYS = sizeof model_keys / sizeof model_keys[0] };

static const json_t *value_of(const json_t *config, const struct model_key *key)
{
    return json_object_get(json_object_get(config, key->section), key->key);
}

static bool has_adapters(const json_t *config)
{
    return json_integer_value(json_object_get(json_object_get(config, "lora"), "rank")) > 0;
}

/* Whether a run's step cannot be used with the present value of a key. An older titan may not have recorded it. */
static bool differs(const json_t *before, const json_t *now, const struct model_key *key)
{
    const json_t *a = value_of(before, key), *b = value_of(now, key);

    if (strcmp(key->section, "lora") == 0 && !has_adapters(before) && !has_adapters(now))
        return false;
    return a && b && !json_is_null(a) && !json_is_null(b) && !same_value(a, b);
}

static void add_key(struct tt_text *text, const char *section, const char *key, const json_t *value)
{
    char *word = value_text(value);

    tt_text_add(text, "%s%s%s%s %s", text->size ? ", " : "", section, section[0] ? "." : "", key, word);
    tt_free(word);
}

int tt_changed_check_model(const struct tt_config *cfg, const json_t *meta)
{
    json_t *now = tt_config_to_json(cfg, false);
    const json_t *before = json_object_get(meta, "config");
    struct tt_text was = {0}, is = {0};
    bool shapes = false;
    int rc = 0;

    for (int i = 0; i < MODEL_KEYS; i++)
        shapes = shapes || (model_keys[i].is_shape && differs(before, now, &model_keys[i]));
    for (int i = 0; i < MODEL_KEYS; i++) {
        const struct model_key *key = &model_keys[i];
        bool of_model = strcmp(key->section, "model") == 0;

        if (!differs(before, now, key))
            continue;
        add_key(&was, of_model && (shapes || was.size) ? "" : key->section, key->key, value_of(before, key));
        add_key(&is, of_model ? "" : key->section, key->key, value_of(now, key));
    }
    if (was.size && shapes)
        rc = tt_fail(TT_EDATA,
                     "'%s' holds a run of another model: that run: %s; this one: %s\nhelp: choose another "
                     "--job.dump_folder, or replace that run with --overwrite",
                     cfg->job.dump_folder, was.text, is.text);
    else if (was.size)
        rc = tt_fail(TT_EDATA,
                     "the checkpoint was trained with another meaning of its weights: %s; this run has %s\nhelp: set "
                     "it as it was, or choose another --job.dump_folder and begin there from these weights with "
                     "checkpoint.initial_load_path",
                     was.text, is.text);
    tt_text_release(&was);
    tt_text_release(&is);
    json_decref(now);
    return rc;
}

int tt_changed_check_adapters(const struct tt_config *cfg, const char *path, const json_t *meta)
{
    const json_t *config = json_object_get(meta, "config");
    const json_t *alpha = json_object_get(json_object_get(config, "lora"), "alpha");

    if (!cfg->lora.rank || !has_adapters(config) || !json_is_number(alpha) ||
        json_number_value(alpha) == cfg->lora.alpha)
        return 0;
    return tt_fail(TT_EDATA,
                   "the adapters in '%s' were trained with lora.alpha %g; this run has lora.alpha %g\n"
                   "help: set lora.alpha=%g",
                   path, json_number_value(alpha), cfg->lora.alpha, json_number_value(alpha));
}

/* --- the other keys --- */

/* Keys that do not change what a run computes, only how it is started, shown or found. */
static bool is_not_shown(const char *path)
{
    static const char *const prefixes[] = {"job.", "checkpoint.load_step", "checkpoint.exclude_from_loading",
                                           "metrics.disable_color_printing"};

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(path, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

json_t *tt_changed_keys(const struct tt_config *cfg, const json_t *before)
{
    json_t *now = tt_config_to_json(cfg, false), *changed = json_object(), *section, *value;
    const char *section_name, *key;

    json_object_foreach(now, section_name, section)
    {
        json_object_foreach(section, key, value)
        {
            json_t *old = json_object_get(json_object_get(before, section_name), key);
            char path[256];

            if (!old || same_value(old, value)) /* a key that an older titan did not have did not change */
                continue;
            (void)snprintf(path, sizeof path, "%s.%s", section_name, key);
            (void)json_object_set_new(changed, path, json_pack("[O, O]", old, value));
        }
    }
    json_decref(now);
    return changed;
}

/* Whether the change makes the losses differ, from here on, from the run's without it. */
static bool changes_curve(const struct tt_config *cfg, const char *path)
{
    static const char *const prefixes[] = {"training.seq_len",
                                           "training.max_norm",
                                           "training.z_loss",
                                           "training.load_balance_coeff",
                                           "training.sequence_balance_loss",
                                           "training.microbatch_balance_loss",
                                           "training.global_batch_balance_loss",
                                           "training.router_z_loss",
                                           "training.mixed_precision_",
                                           "training.dtype",
                                           "training.dataset",
                                           "training.text_field",
                                           "training.document_mask",
                                           "training.chat_template",
                                           "validation.split",
                                           "dataloader.long_conversations",
                                           "optimizer.",
                                           "lr_scheduler.",
                                           "dataloader.seed",
                                           "dataloader.shuffle",
                                           "parallelism.reduction_order"};

    if (strcmp(path, "training.steps") == 0) /* the schedule has the length of the run */
        return cfg->lr_scheduler.total_steps == TT_NULL_INT;
    if (strcmp(path, "debug.seed") == 0) /* it rounds weights */
        return cfg->training.dtype == TT_DTYPE_BFLOAT16;
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(path, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/* A layer has as many grains as the larger of two degrees, which are at the end of these paths. */
static bool changes_grains(const json_t *changed, const char *path, const char *degree, int64_t now, int64_t exact_now)
{
    char *of[2] = {tt_format("parallelism.%s", degree), tt_format("parallelism.exact_%s", degree)};
    bool is_one = strcmp(path, of[0]) == 0 || strcmp(path, of[1]) == 0;
    int64_t is[2] = {now, exact_now}, was[2];

    for (int k = 0; k < 2; k++) {
        const json_t *pair = json_object_get(changed, of[k]);

        was[k] = pair ? (int64_t)json_integer_value(json_array_get(pair, 0)) : is[k];
        tt_free(of[k]);
    }
    return is_one && (was[0] > was[1] ? was[0] : was[1]) != (is[0] > is[1] ? is[0] : is[1]);
}

/* A gradient in bfloat16 is rounded before it is added to the gradients of the sequence's other ranks. */
static bool changes_rounding(const struct tt_setup *setup, const char *path)
{
    return setup->job.engine.reduce_dtype != TT_F32 && strcmp(path, "parallelism.context_parallel_degree") == 0;
}

/* Ranks that add the gradients of several microbatches first, or that are no power of two, add in an order of their
 * own. */
static bool changes_order(const struct tt_setup *setup, const char *path)
{
    static const char *const batch[] = {"parallelism.data_parallel_replicate_degree",
                                        "parallelism.data_parallel_shard_degree"},
                             *const whole[] = {"parallelism.context_parallel_degree",
                                               "parallelism.expert_parallel_degree"};
    const struct tt_engine_options *o = &setup->job.engine;
    bool exact = tt_setup_layout_exact(setup), sums = o->reduce == TT_REDUCE_RUNS && o->microbatches > 1;
    bool found = false;

    for (int i = 0; i < 2; i++)
        found = found || (!exact && strcmp(path, batch[i]) == 0) || ((!exact || sums) && strcmp(path, whole[i]) == 0);
    return found;
}

/* The value that a degree had before. */
static int64_t degree_before(const json_t *changed, const char *path, int64_t now)
{
    const json_t *pair = json_object_get(changed, path);

    return pair ? (int64_t)json_integer_value(json_array_get(pair, 0)) : now;
}

/* Sums over runs have the bits of those over microbatches, if ranks had and have whole sequences and all experts, and
 * the microbatches of a step are a power of two. */
static bool changes_sums(const struct tt_setup *setup, const json_t *changed, const char *path, const json_t *pair)
{
    const char *last = tt_setup_sync_word(TT_SYNC_LAST_MICROBATCH);
    int64_t n = setup->job.global_batch / setup->job.microbatch_size;
    bool whole = degree_before(changed, "parallelism.context_parallel_degree", setup->job.mesh.size[TT_MESH_CP]) == 1 &&
                 degree_before(changed, "parallelism.expert_parallel_degree", setup->job.mesh.size[TT_MESH_EP]) == 1;

    if (strcmp(path, "training.gradient_sync") != 0)
        return false;
    return !whole || (n & (n - 1)) != 0 || !tt_setup_layout_exact(setup) ||
           strcmp(json_string_value(json_array_get(pair, 0)), last) == 0 ||
           strcmp(json_string_value(json_array_get(pair, 1)), last) == 0;
}

/* Which tokens are a grain of a sequence. */
static bool changes_pieces(const struct tt_setup *setup, const char *path)
{
    return setup->job.mesh.cp_grains > 1 && strcmp(path, "parallelism.context_parallel_load_balancer") == 0;
}

static void add_change(struct tt_text *text, const char *path, const json_t *pair)
{
    char *was = value_text(json_array_get(pair, 0)), *is = value_text(json_array_get(pair, 1));

    tt_text_add(text, "%s%s %s -> %s", text->size ? ", " : "", path, was, is);
    tt_free(was);
    tt_free(is);
}

/* What a step or a microbatch had and has, unless a key that changed says so: the key whose values these are. */
static void add_sequences(const json_t *changed, const char *key, const char *what, int64_t before, int64_t now,
                          struct tt_text *all, struct tt_text *curve)
{
    const json_t *pair = json_object_get(changed, key);
    bool is_named =
        json_integer_value(json_array_get(pair, 0)) == before && json_integer_value(json_array_get(pair, 1)) == now;

    if (!before || before == now)
        return;
    if (!is_named)
        tt_text_add(all, "%ssequences a %s %" PRId64 " -> %" PRId64, all->size ? ", " : "", what, before, now);
    if (is_named)
        tt_text_add(curve, "%s%s", curve->size ? ", " : "", key);
    else
        tt_text_add(curve, "%ssequences a %s", curve->size ? ", " : "", what);
}

void tt_changed_text(const struct tt_setup *setup, const struct tt_changes *since, struct tt_text *out)
{
    struct tt_text all = {0}, curve = {0};
    const char *path;
    json_t *pair;
    int n = 0;

    json_object_foreach(since->keys, path, pair)
    {
        if (is_not_shown(path))
            continue;
        if (n++ < SHOWN)
            add_change(&all, path, pair);
        if (changes_curve(setup->cfg, path) || changes_rounding(setup, path) || changes_pieces(setup, path) ||
            changes_order(setup, path) || changes_sums(setup, since->keys, path, pair) ||
            changes_grains(since->keys, path, "tensor_parallel_degree", setup->cfg->parallelism.tensor_parallel_degree,
                           setup->cfg->parallelism.exact_tensor_parallel_degree) ||
            changes_grains(since->keys, path, "context_parallel_degree",
                           setup->cfg->parallelism.context_parallel_degree,
                           setup->cfg->parallelism.exact_context_parallel_degree))
            tt_text_add(&curve, "%s%s", curve.size ? ", " : "", path);
    }
    add_sequences(since->keys, "training.global_batch_size", "step", since->batch, setup->job.global_batch, &all,
                  &curve);
    add_sequences(since->keys,
                  setup->job.pipeline ? "parallelism.pipeline_parallel_microbatch_size" : "training.local_batch_size",
                  "microbatch", since->microbatch, setup->job.microbatch_size, &all, &curve);
    if (all.size)
        tt_text_add(out, "  changed  since step-%" PRId64 ": %s", since->step, all.text);
    if (n > SHOWN)
        tt_text_add(out, " and %d more", n - SHOWN);
    if (all.size)
        tt_text_add(out, "\n");
    if (curve.size && since->step < setup->cfg->training.steps)
        tt_text_add(out, "           from here on the losses are not those of the run as it was: %s\n", curve.text);
    tt_text_release(&all);
    tt_text_release(&curve);
}
