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

/* Whether two values have the same effect. Numbers are compared as float32, in any notation. */
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

static const json_t *value_of(const json_t *config, const struct tt_config_row *row)
{
    const char *dot = strchr(row->section, '.');
    char outer[64];

    (void)snprintf(outer, sizeof outer, "%.*s", dot ? (int)(dot - row->section) : (int)strlen(row->section),
                   row->section);
    config = json_object_get(config, outer);
    return json_object_get(dot ? json_object_get(config, dot + 1) : config, row->key);
}

static bool has_adapters(const json_t *config)
{
    return json_integer_value(value_of(config, tt_config_row(TT_KEY(lora.rank)))) > 0;
}

static void add_key(struct tt_text *text, const char *key, const json_t *value)
{
    char *word = value_text(value);

    tt_text_add(text, "%s%s %s", text->size ? ", " : "", key, word);
    tt_free(word);
}

/* Adds those keys with the flag whose values differ, each with its old and new value. */
static void add_differing(const json_t *before, const json_t *now, int flag, struct tt_text *was, struct tt_text *is)
{
    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];
        const char *key = tt_text_begins(row->path, "model.") ? row->path + strlen("model.") : row->path;
        const json_t *a = value_of(before, row), *b = value_of(now, row);
        bool idle = strcmp(row->section, "lora") == 0 && !has_adapters(before) && !has_adapters(now);

        /* an older titan may not have recorded the key */
        if (!(row->flags & flag) || idle || !a || !b || json_is_null(a) || json_is_null(b) || same_value(a, b))
            continue;
        add_key(was, flag == TT_FLAG_WEIGHTS && !was->size ? row->path : key, a);
        add_key(is, key, b);
    }
}

int tt_changed_check_model(const struct tt_config *cfg, const json_t *meta)
{
    json_t *now = tt_config_to_json(cfg, false);
    const json_t *before = json_object_get(meta, "config");
    struct tt_text was = {0}, is = {0};
    bool shapes;
    int rc = 0;

    add_differing(before, now, TT_FLAG_SHAPES, &was, &is);
    shapes = was.size > 0;
    add_differing(before, now, TT_FLAG_WEIGHTS, &was, &is);
    if (was.size && shapes)
        rc = tt_fail(TT_EDATA,
                     "'%s' holds a run of another model: that run: %s; this one: %s\nhelp: choose another "
                     "--job.dump_folder, or replace that run with --overwrite",
                     cfg->job.dump_folder, was.text, is.text);
    else if (was.size)
        rc = tt_fail(TT_EDATA,
                     "the checkpoint gives its weights another meaning: it has %s; this run has %s\n"
                     "help: set the old value, or choose another --job.dump_folder and begin there from these weights "
                     "with checkpoint.initial_load_path",
                     was.text, is.text);
    tt_text_release(&was);
    tt_text_release(&is);
    json_decref(now);
    return rc;
}

int tt_changed_check_adapters(const struct tt_config *cfg, const char *path, const json_t *meta)
{
    const json_t *config = json_object_get(meta, "config"), *lora = json_object_get(config, "lora");
    const json_t *alpha = json_object_get(lora, "alpha");
    bool rslora = json_is_true(json_object_get(lora, "rslora")), dora = json_is_true(json_object_get(lora, "dora"));

    if (!cfg->lora.rank || !has_adapters(config))
        return 0;
    if (json_is_number(alpha) && json_number_value(alpha) != cfg->lora.alpha)
        return tt_fail(TT_EDATA,
                       "the adapters in '%s' were trained with lora.alpha %g; this run has lora.alpha %g\n"
                       "help: set lora.alpha=%g",
                       path, json_number_value(alpha), cfg->lora.alpha, json_number_value(alpha));
    if (rslora != cfg->lora.rslora)
        return tt_fail(TT_EDATA, "the adapters in '%s' were trained with lora.rslora %s\nhelp: set lora.rslora=%s",
                       path, rslora ? "true" : "false", rslora ? "true" : "false");
    if (dora != cfg->lora.dora)
        return tt_fail(TT_EDATA, "the adapters in '%s' were trained with lora.dora %s\nhelp: set lora.dora=%s", path,
                       dora ? "true" : "false", dora ? "true" : "false");
    return 0;
}

/* --- the other keys --- */

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

            if (!old || same_value(old, value)) /* a key that the older titan did not know has not changed */
                continue;
            (void)snprintf(path, sizeof path, "%s.%s", section_name, key);
            (void)json_object_set_new(changed, path, json_pack("[O, O]", old, value));
        }
    }
    json_decref(now);
    return changed;
}

/* The old value of a degree. */
static int64_t degree_before(const json_t *changed, enum tt_key key, int64_t now)
{
    const json_t *pair = json_object_get(changed, tt_key_name(key));

    return pair ? (int64_t)json_integer_value(json_array_get(pair, 0)) : now;
}

/* A layer's number of grains is the larger of two degrees. */
static bool changes_grains(const json_t *changed, enum tt_key degree, int64_t now, enum tt_key exact, int64_t exact_now)
{
    int64_t was = degree_before(changed, degree, now), exact_was = degree_before(changed, exact, exact_now);

    return (was > exact_was ? was : exact_was) != (now > exact_now ? now : exact_now);
}

/* Whether sums over runs may differ in bits from sums over microbatches. They do not if, before and now, ranks have
 * whole sequences and all experts, and the number of microbatches in a step is a power of two. */
static bool changes_sums(const struct tt_setup *setup, const json_t *changed, const json_t *pair)
{
    const char *last = tt_setup_sync_word(TT_SYNC_LAST_MICROBATCH);
    const struct tt_mesh *mesh = &setup->job.mesh;
    int64_t n = setup->job.global_batch / setup->job.microbatch_size;
    bool whole = degree_before(changed, TT_KEY(parallelism.context_parallel_degree), mesh->size[TT_MESH_CP]) == 1 &&
                 degree_before(changed, TT_KEY(parallelism.expert_parallel_degree), mesh->size[TT_MESH_EP]) == 1;

    return !whole || (n & (n - 1)) != 0 || !tt_setup_layout_exact(setup) ||
           strcmp(json_string_value(json_array_get(pair, 0)), last) == 0 ||
           strcmp(json_string_value(json_array_get(pair, 1)), last) == 0;
}

/* Whether the changed key makes later losses differ from those of an unchanged run. */
static bool changes_curve(const struct tt_setup *setup, const json_t *changed, const struct tt_config_row *row,
                          const json_t *pair)
{
    const struct tt_config *cfg = setup->cfg;
    const struct tt_engine_options *o = &setup->job.engine;
    bool exact = tt_setup_layout_exact(setup), sums = o->reduce == TT_REDUCE_RUNS && o->microbatches > 1;

    switch ((int)row->id) {
    case TT_KEY(training.steps): /* the length of the run changes the schedule */
        return cfg->lr_scheduler.total_steps == TT_NULL_INT;
    case TT_KEY(debug.seed): /* it seeds the rounding of weights */
        return cfg->training.dtype == TT_DTYPE_BFLOAT16;
    case TT_KEY(training.gradient_sync):
        return changes_sums(setup, changed, pair);
    case TT_KEY(parallelism.context_parallel_load_balancer): /* it decides which tokens form a grain of a sequence */
        return setup->job.mesh.cp_grains > 1;
    /* If the number of ranks is not a power of two, they add in a different order. */
    case TT_KEY(parallelism.data_parallel_replicate_degree):
    case TT_KEY(parallelism.data_parallel_shard_degree):
        return !exact;
    /* So do ranks that first add up the gradients of several microbatches. */
    case TT_KEY(parallelism.expert_parallel_degree):
        return !exact || sums;
    case TT_KEY(parallelism.context_parallel_degree):
        /* ranks that share a sequence round to bfloat16 before they add */
        if (!exact || sums || o->reduce_dtype != TT_F32)
            return true;
        /* fall through */
    case TT_KEY(parallelism.exact_context_parallel_degree):
        return changes_grains(
            changed, TT_KEY(parallelism.context_parallel_degree), cfg->parallelism.context_parallel_degree,
            TT_KEY(parallelism.exact_context_parallel_degree), cfg->parallelism.exact_context_parallel_degree);
    case TT_KEY(parallelism.tensor_parallel_degree):
    case TT_KEY(parallelism.exact_tensor_parallel_degree):
        return changes_grains(changed, TT_KEY(parallelism.tensor_parallel_degree),
                              cfg->parallelism.tensor_parallel_degree, TT_KEY(parallelism.exact_tensor_parallel_degree),
                              cfg->parallelism.exact_tensor_parallel_degree);
    default:
        return row->flags & TT_FLAG_CURVE;
    }
}

/* Appends the change in the number of sequences of a step or microbatch, unless the change of `key` already shows
 * it. */
static void add_sequences(const json_t *changed, enum tt_key key, const char *what, int64_t before, int64_t now,
                          struct tt_text *all, struct tt_text *curve)
{
    const json_t *pair = json_object_get(changed, tt_key_name(key));
    bool is_named =
        json_integer_value(json_array_get(pair, 0)) == before && json_integer_value(json_array_get(pair, 1)) == now;

    if (!before || before == now)
        return;
    if (!is_named)
        tt_text_add(all, "%ssequences a %s %" PRId64 " -> %" PRId64, all->size ? ", " : "", what, before, now);
    if (is_named)
        tt_text_add(curve, "%s%s", curve->size ? ", " : "", tt_key_name(key));
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
        const struct tt_config_row *row = tt_config_row_find(path); /* NULL for a mapping */

        if (row && row->flags & TT_FLAG_QUIET)
            continue;
        if (n++ < SHOWN) {
            char *was = value_text(json_array_get(pair, 0)), *is = value_text(json_array_get(pair, 1));

            tt_text_add(&all, "%s%s %s -> %s", all.size ? ", " : "", path, was, is);
            tt_free(was);
            tt_free(is);
        }
        if (row && changes_curve(setup, since->keys, row, pair))
            tt_text_add(&curve, "%s%s", curve.size ? ", " : "", path);
    }
    add_sequences(since->keys, TT_KEY(training.global_batch_size), "step", since->batch, setup->job.global_batch, &all,
                  &curve);
    add_sequences(since->keys,
                  setup->job.pipeline ? TT_KEY(parallelism.pipeline_parallel_microbatch_size)
                                      : TT_KEY(training.local_batch_size),
                  "microbatch", since->microbatch, setup->job.microbatch_size, &all, &curve);
    if (all.size)
        tt_text_add(out, "  changed  since step-%" PRId64 ": %s", since->step, all.text);
    if (n > SHOWN)
        tt_text_add(out, " and %d more", n - SHOWN);
    if (all.size)
        tt_text_add(out, "\n");
    if (curve.size && since->step < setup->cfg->training.steps)
        tt_text_add(out, "           from here on, the losses differ from those of the unchanged run: %s\n",
                    curve.text);
    tt_text_release(&all);
    tt_text_release(&curve);
}
