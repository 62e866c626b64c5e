/* SPDX-License-Identifier: MIT
 *
 * The start of a run: from its own newest checkpoint, from other weights, or from random ones.
 */
#include "trainer/start/start.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/durable/patience.h"
#include "checkpoint/load/hf.h"
#include "checkpoint/load/load.h"
#include "checkpoint/steps/line.h"
#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "trainer/data/data.h"
#include "trainer/job/job.h"
#include "trainer/job/tensors.h"
#include "trainer/run/folder.h"
#include "trainer/start/base.h"
#include "trainer/start/magnitudes.h"

/* --- changes since the step from which a run continues --- */

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

/* TT_EDATA, with the values, if the checkpoint belongs to another model: shapes differ, or the same shapes mean
 * something else (heads, rotary frequencies, epsilon). Not collective. */
static int check_model(const struct tt_config *cfg, const json_t *meta)
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

/* TT_EDATA if a new run would begin from the adapters of the checkpoint at path, and these were trained with another
 * lora.alpha, lora.rslora or lora.dora. meta: from the manifest; may be NULL. Not collective. */
static int check_adapters(const struct tt_config *cfg, const char *path, const json_t *meta)
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

/* The keys whose values differ from those of an earlier configuration: {"training.steps": [60, 90], …}. Free it with
 * json_decref. */
static json_t *changed_keys(const struct tt_config *cfg, const json_t *before)
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

/* --- a run that continues --- */

/* Steps that were set aside, or that a killed save renamed, count too. Later code handles them, under the lock; the run
 * must not begin anew. */
int tt_start_can_resume(const struct tt_config *cfg, bool *ret_can)
{
    char *folder = tt_run_folder_checkpoints(cfg), **names = NULL;
    bool exists = false, is_folder = false;
    int n = 0, rc = 0;

    *ret_can = false;
    TT_TRY(tt_path_exists(cfg->job.dump_folder, &exists));
    TT_TRY(tt_path_is_folder(cfg->job.dump_folder, &is_folder));
    if (exists && !is_folder)
        TT_TRY(
            tt_fail(TT_EDATA,
                    "job.dump_folder '%s' is not a folder\nhelp: choose another --job.dump_folder, or remove the file",
                    cfg->job.dump_folder));
    if (cfg->checkpoint.enable)
        TT_TRY(tt_folder_list_found(folder, &names, &n));
    for (int i = 0; i < n; i++)
        *ret_can = *ret_can || tt_step_number_aside(names[i]) >= 0 || strncmp(names[i], ".old-step-", 10) == 0;
out:
    tt_names_free(names, n);
    tt_free(folder);
    return rc;
}

/* In a different order, the run would read some samples twice and others never. */
static int fail_position(const char *key, const char *then, const char *now)
{
    return tt_fail(
        TT_EDATA,
        "the checkpoint was trained with %s %s, but this run has %s: the position in the data would refer to "
        "other samples\n"
        "help: to start the data over, --checkpoint.exclude_from_loading=dataloader",
        key, then, now);
}

/* The part of a mixture with that name; NULL: there is none. */
static const json_t *find_part(const json_t *parts, const char *name)
{
    const json_t *part;
    size_t i;

    json_array_foreach(parts, i, part)
    {
        const char *text = json_string_value(json_object_get(part, "name"));

        if (text && strcmp(text, name) == 0)
            return part;
    }
    return NULL;
}

static double total_share(const json_t *parts)
{
    const json_t *part;
    double total = 0.0;
    size_t i;

    json_array_foreach(parts, i, part) total += json_number_value(json_object_get(part, "share"));
    return total;
}

/* Lists the differences of a mixture by name: "; 'a' was 30% of the samples, is 40%; 'b' is gone". */
static int fail_mixture(const json_t *before, const struct tt_train_data *now)
{
    struct tt_text out = {0};
    const json_t *part;
    size_t k;
    int rc;

    for (int i = 0; i < now->n; i++) {
        double is = 100.0 * (double)now->mixture.share[i] / (double)now->mixture.period, was;
        const char *digest;
        char text[32];

        part = find_part(before, now->part[i].name);
        was = part ? 100.0 * json_number_value(json_object_get(part, "share")) / total_share(before) : 0.0;
        digest = json_string_value(json_object_get(part, "digest"));
        (void)snprintf(text, sizeof text, "%016" PRIx64, now->part[i].dataset->ref.info.digest);
        if (!part)
            tt_text_add(&out, "; '%s' is new", now->part[i].name);
        else if (was != is)
            tt_text_add(&out, "; '%s' was %.6g%% of the samples, is %.6g%%", now->part[i].name, was, is);
        if (digest && strcmp(digest, text) != 0)
            tt_text_add(&out, "; '%s' has other tokens", now->part[i].name);
    }
    json_array_foreach(before, k, part)
    {
        const char *name = json_string_value(json_object_get(part, "name"));
        int i = 0;

        while (name && i < now->n && strcmp(now->part[i].name, name) != 0)
            i++;
        if (name && i == now->n)
            tt_text_add(&out, "; '%s' is gone", name);
    }
    rc = tt_fail(TT_EDATA,
                 "the checkpoint was trained on another mixture of data%s\nhelp: to start the data over, "
                 "--checkpoint.exclude_from_loading=dataloader",
                 out.size ? out.text : ": its entries were in a different order");
    tt_text_release(&out);
    return rc;
}

/* A run can continue from its position in the data only if its samples are the same. An older titan did not record
 * their order. */
static int check_data(const struct tt_config *cfg, const struct tt_train_data *data_now, const json_t *meta)
{
    const json_t *data = json_object_get(meta, "data");
    const json_t *seed = json_object_get(data, "seed"), *shuffle = json_object_get(data, "shuffle");
    const char *digest = json_string_value(json_object_get(data, "digest")), *longs = tt_datasets_longs(cfg, data_now);
    const char *longs_then = json_string_value(json_object_get(data, "long_conversations"));
    int64_t seq_len = (int64_t)json_integer_value(json_object_get(data, "seq_len"));
    double split = json_number_value(json_object_get(data, "split"));
    char then[32], now[32];

    if (seq_len != cfg->training.seq_len) {
        (void)snprintf(then, sizeof then, "%" PRId64, seq_len);
        (void)snprintf(now, sizeof now, "%" PRId64, cfg->training.seq_len);
        return fail_position(TT_KEY_NAME(training.seq_len), then, now);
    }
    (void)snprintf(now, sizeof now, "%016" PRIx64, tt_train_data_digest(data_now));
    if (digest && strcmp(digest, now) != 0 && data_now->n > 1 && json_object_get(data, "parts"))
        return fail_mixture(json_object_get(data, "parts"), data_now);
    if (!digest || strcmp(digest, now) != 0)
        return tt_fail(TT_EDATA,
                       "the checkpoint was trained on other data or with another tokenizer (token digest %s, now "
                       "%s)\nhelp: to start the data over, --checkpoint.exclude_from_loading=dataloader",
                       digest ? digest : "none", now);
    if (split !=
        cfg->validation.split) /* otherwise, documents on which the model was trained would be used for validation */
        return tt_fail_key(
            TT_EDATA, TT_KEY(validation.split),
            "the checkpoint was trained with validation.split %.10g%%, but this run has %.10g%%: other documents "
            "would be held out, and the position in the data would refer to other samples\n"
            "help: set validation.split=%.10g%%; or, to start the data over, "
            "--checkpoint.exclude_from_loading=dataloader",
            100.0 * split, 100.0 * cfg->validation.split, 100.0 * split);
    if (json_is_integer(seed) && json_is_true(shuffle) && cfg->dataloader.shuffle &&
        (int64_t)json_integer_value(seed) != cfg->dataloader.seed) {
        (void)snprintf(then, sizeof then, "%" PRId64, (int64_t)json_integer_value(seed));
        (void)snprintf(now, sizeof now, "%" PRId64, cfg->dataloader.seed);
        return fail_position(TT_KEY_NAME(dataloader.seed), then, now);
    }
    if (json_is_boolean(shuffle) && json_is_true(shuffle) != cfg->dataloader.shuffle)
        return fail_position(TT_KEY_NAME(dataloader.shuffle), json_is_true(shuffle) ? "true" : "false",
                             cfg->dataloader.shuffle ? "true" : "false");
    if (longs && longs_then && strcmp(longs, longs_then) != 0)
        return fail_position(TT_KEY_NAME(dataloader.long_conversations), longs_then, longs);
    return 0;
}

/* Takes step, samples and schedule from a manifest's description, except what `skip` excludes. TT_EDATA if this run's
 * samples differ. */
static int restore(const struct tt_config *cfg, const struct tt_train_data *data, const json_t *meta, unsigned skip,
                   struct tt_train_progress *at)
{
    int rc = 0;

    if (!(skip & TT_SKIP_DATALOADER))
        TT_TRY(check_data(cfg, data, meta));
    rc = tt_train_progress_restore(cfg, meta, skip, at);
out:
    return rc;
}

static bool is_complete(const struct tt_setup *setup, const struct tt_train_data *data,
                        const struct tt_train_progress *at)
{
    return at->step >= tt_train_progress_last_step(at, setup, data);
}

/* Accepts a step if it fits the present configuration (tt_ckpt_request). The last step of a run may contain only the
 * weights, which suffice if no step is left to train. */
static int accept(void *arg, const struct tt_manifest *manifest, unsigned *skip)
{
    const struct tt_saver *saver = arg;
    struct tt_train_progress at;

    if (!(*skip & TT_SKIP_TRAIN_STATE) && tt_manifest_group_size(manifest, TT_CKPT_OPTIM, NULL) == 0 &&
        tt_train_progress_restore(saver->setup->cfg, manifest->meta, *skip, &at) == 0 &&
        is_complete(saver->setup, saver->data, &at))
        *skip |= TT_SKIP_OPTIMIZER;
    return check_model(saver->setup->cfg, manifest->meta);
}

/* Decides to which line the coming steps belong. Rank 0 sets aside the steps that do not belong to this line. */
static int settle_line(struct tt_saver *saver, const char *run_id, const struct tt_train_progress *at,
                       const struct tt_ckpt_request *request, const struct tt_ckpt_found *found)
{
    const struct tt_setup *s = saver->setup;
    bool asks = request->line.load_step >= 0 || request->line.skip;
    struct tt_line_start start = {.step = found->step,
                                  .begins = asks && !found->applied,
                                  .restarts = (request->line.skip & TT_SKIP_TRAIN_STATE) && !found->applied,
                                  .damaged = found->damaged,
                                  .n_damaged = found->n_damaged};
    int rc = 0;

    saver->line = start.begins ? tt_line_new(run_id, found->meta, &request->line) : tt_line_of(found->meta);
    if (!saver->store || is_complete(s, saver->data, at))
        goto out; /* nothing will be saved */
    rc = s->comm->rank == 0 ? tt_line_start(saver->store, &start) : 0;
    TT_TRY(tt_comm_agree(s->comm, rc));
out:
    return rc;
}

/* Describes the step from which the run continues, for the banner. Epochs are counted first, since training.steps is
 * one of the keys that may have changed. */
static void describe_step(const struct tt_setup *s, const struct tt_train_data *data, struct tt_train_progress *at,
                          const char *folder, const struct tt_ckpt_found *found, struct tt_start *start)
{
    const json_t *config = json_object_get(found->meta, "config"), *mesh = json_object_get(found->meta, "mesh");
    const json_t *training = json_object_get(config, "training"), *parallelism = json_object_get(config, "parallelism");
    int64_t global = (int64_t)json_integer_value(json_object_get(training, "global_batch_size"));
    int64_t local = (int64_t)json_integer_value(json_object_get(training, "local_batch_size"));
    bool is_piped = json_integer_value(json_object_get(parallelism, "pipeline_parallel_degree")) > 1;

    tt_train_progress_count_steps(at, s, data);
    start->since.step = found->step;
    start->since.keys = changed_keys(s->cfg, config);
    start->since.batch = global > 0 ? global
                                    : local * (int64_t)json_integer_value(json_object_get(mesh, "dp_replicate")) *
                                          (int64_t)json_integer_value(json_object_get(mesh, "dp_shard"));
    start->since.microbatch = /* as in tt_job_init */
        is_piped ? (int64_t)json_integer_value(json_object_get(parallelism, "pipeline_parallel_microbatch_size"))
                 : local;
    (void)snprintf(start->weights_from, sizeof start->weights_from, "step-%" PRId64 " of %s", found->step, folder);
}

/* Loads the step from which the run continues, if its folder contains one, and decides the line of its coming steps.
 * Steps that do not belong to that line are set aside after everything is loaded. Collective. */
static int resume(struct tt_saver *saver, const char *folder, const char *run_id, struct tt_train_progress *at,
                  struct tt_start *start, bool *ret_resumed)
{
    const struct tt_setup *s = saver->setup;
    struct tt_ckpt_request request;
    struct tt_ckpt_found found = {.step = -1};
    const json_t *loads;
    int64_t n, *engine_loads = tt_engine_loads(s->engine, &n);
    const char *sync, *now = tt_setup_sync_word(s->cfg->training.gradient_sync);
    int rc = 0;

    TT_TRY(tt_job_resume_request(s->cfg, &request));
    request.accept = accept;
    request.arg = saver;
    TT_TRY(tt_ckpt_resume(s->comm, &s->job.mesh, folder, &request, &saver->tensors.state, &found));
    *ret_resumed = found.step >= 0;
    if (found.step < 0) {
        saver->line = tt_line_new(run_id, NULL, &request.line);
        goto out;
    }
    if (saver->base)
        TT_TRY(tt_comm_agree(s->comm, tt_base_check(s->job.model, saver->base, found.meta)));
    TT_TRY(tt_comm_agree(s->comm, restore(s->cfg, saver->data, found.meta, found.skip, at)));
    /* if a checkpoint does not contain expert loads, the run assumes even loads */
    loads = found.skip & TT_SKIP_TRAIN_STATE ? NULL : json_object_get(found.meta, "expert_loads");
    for (int64_t i = 0; i < n && (int64_t)json_array_size(loads) == n; i++)
        engine_loads[i] = (int64_t)json_integer_value(json_array_get(loads, (size_t)i));
    start->averages_begin = found.skip & (TT_SKIP_OPTIMIZER | TT_SKIP_AVERAGES);
    if (start->averages_begin)
        tt_state_start_averages(tt_engine_state(s->engine), tt_engine_layout(s->engine));
    TT_TRY(settle_line(saver, run_id, at, &request, &found));
    if (found.applied)
        tt_note("checkpoint.load_step and exclude_from_loading were applied when this line of steps began; it "
                "continues from step-%" PRId64 " (titan ckpt rollback %s STEP goes back again)",
                found.step, s->cfg->job.dump_folder);
    sync = tt_setup_recorded_sync(found.meta);
    /* on a layout that does not change the bits, sums over runs do not change them either */
    if (sync && strcmp(sync, now) != 0 &&
        (!tt_setup_layout_exact(s) || strcmp(sync, tt_setup_sync_word(TT_SYNC_LAST_MICROBATCH)) == 0))
        tt_note(
            "the checkpoint was trained with gradient_sync %s, this run continues with %s: losses differ in rounding",
            sync, now);
    /* a line that counts from 0 will reach this step number again, with other weights */
    saver->saved_step = at->step == found.step ? found.step : -1;
    describe_step(s, saver->data, at, folder, &found, start);
out:
    tt_ckpt_found_release(&found);
    return rc;
}

/* --- the start --- */

/* The weights to start from; NULL: random ones. If the run begins from adapters of PEFT, the weights to which these
 * belong. Of the configuration. */
static const char *initial_weights(const struct tt_config *cfg)
{
    const char *path = cfg->checkpoint.initial_load_path;

    if (path && tt_job_is_adapter(path))
        return cfg->model.hf_assets_path;
    return cfg->checkpoint.initial_load_in_hf && !path ? cfg->model.hf_assets_path : path;
}

/* The initial weights; NULL: random ones. */
static const char *initial_path(const struct tt_config *cfg)
{
    return initial_weights(cfg);
}

/* The folder of PEFT's adapters to start from; NULL: none. */
static const char *adapter_path(const struct tt_config *cfg)
{
    const char *path = cfg->checkpoint.initial_load_path;

    return path && tt_job_is_adapter(path) ? path : NULL;
}

static void describe_initial(const struct tt_config *cfg, struct tt_start *start)
{
    const char *adapter = adapter_path(cfg);

    (void)snprintf(start->weights_from, sizeof start->weights_from, "from %s%s%s", initial_path(cfg),
                   adapter ? " and " : "", adapter ? adapter : "");
}

static void describe_random(const struct tt_config *cfg, struct tt_start *start)
{
    (void)snprintf(start->weights_from, sizeof start->weights_from, "random init (seed %" PRId64 ")", cfg->debug.seed);
    start->is_random = true;
}

/* The parts of the checkpoint that are not loaded. */
static int initial_skip(const struct tt_config *cfg, unsigned *ret_skip)
{
    int rc = tt_job_skip_flags(cfg, ret_skip);
    enum tt_key key = cfg->checkpoint.initial_load_extend_vocabulary ? TT_KEY(checkpoint.initial_load_extend_vocabulary)
                                                                     : TT_KEY(checkpoint.initial_load_leave_out);

    /* these weights are not from a Hugging Face folder */
    if (cfg->checkpoint.initial_load_extend_vocabulary || cfg->checkpoint.initial_load_leave_out.n)
        return tt_fail(TT_EUSAGE,
                       "%s is only for Hugging Face folders, and '%s' is not one\n"
                       "help: titan ckpt consolidate %s FOLDER --format hf makes one",
                       tt_key_name(key), initial_path(cfg), initial_path(cfg));
    if (rc == 0 && cfg->checkpoint.initial_load_model_only)
        *ret_skip |= TT_SKIP_OPTIMIZER | TT_SKIP_LR_SCHEDULER | TT_SKIP_DATALOADER | TT_SKIP_TRAIN_STATE;
    return rc;
}

/* Continues from the progress of the run that saved the checkpoint. meta is NULL if the checkpoint does not record
 * it. */
static int restore_initial(const struct tt_config *cfg, const struct tt_train_data *data, const json_t *meta,
                           unsigned skip, struct tt_train_progress *at)
{
    int rc = 0;

    TT_TRY(check_adapters(cfg, initial_path(cfg), meta));
    if (!meta || cfg->checkpoint.initial_load_model_only)
        return 0;
    if (json_object_get(meta, "torch")) { /* the position in another program's data loader is meaningless here */
        if (!(skip & TT_SKIP_TRAIN_STATE) && !json_object_get(meta, "step"))
            return tt_fail(TT_EDATA,
                           "'%s' does not say how many steps were done (train_state.step)\nhelp: set %s: "
                           "[train_state, lr_scheduler, optimizer], or checkpoint.initial_load_model_only: true",
                           initial_path(cfg), TT_KEY_NAME(checkpoint.exclude_from_loading));
        if (!(skip & TT_SKIP_DATALOADER))
            tt_note("'%s' is a PyTorch checkpoint: the position of its data loader is not used, so the data begins "
                    "with the first sample",
                    initial_path(cfg));
        skip |= TT_SKIP_DATALOADER;
    }
    rc = restore(cfg, data, meta, skip, at);
out:
    return rc;
}

static struct tt_hf_options hf_options(const struct tt_config *cfg)
{
    return (struct tt_hf_options){.leave_out = &cfg->checkpoint.initial_load_leave_out,
                                  .extend_vocabulary = cfg->checkpoint.initial_load_extend_vocabulary};
}

/* Frozen weights are packed while they are read, which only the readers of these formats do. */
static int check_base(const struct tt_setup *s)
{
    const struct tt_config *cfg = s->cfg;

    if (!tt_job_base_is_apart(s->job.model) || !initial_path(cfg) || cfg->checkpoint.initial_load_in_hf)
        return 0;
    return tt_fail_key(TT_EUSAGE, TT_KEY(lora.base_dtype),
                       "with %s the weights come from a Hugging Face folder or a GGUF file, and '%s' is neither\n"
                       "help: titan ckpt consolidate %s FOLDER --format hf makes one",
                       TT_KEY_NAME(lora.base_dtype), initial_path(cfg), initial_path(cfg));
}

/* Loads the weights that checkpoints leave out, whether or not the run continues from one. Initialises adapters.
 * Collective. */
static int load_base(struct tt_saver *saver)
{
    const struct tt_setup *s = saver->setup;
    const struct tt_hf_options options = hf_options(s->cfg);
    int rc = 0;

    TT_TRY(tt_comm_agree(s->comm, check_base(s)));
    rc = initial_path(s->cfg) ? tt_engine_init_trained(s->engine, (uint64_t)s->cfg->debug.seed)
                              : tt_engine_init_params(s->engine, (uint64_t)s->cfg->debug.seed);
    TT_TRY(tt_comm_agree(s->comm, rc));
    if (initial_path(s->cfg))
        TT_TRY(tt_hf_load(s->comm, initial_path(s->cfg), &options, s->job.model, &saver->tensors.whole));
    if (s->cfg->checkpoint.enable)
        rc = tt_base_describe(s, &saver->tensors, initial_path(s->cfg), &saver->base);
out:
    return rc;
}

/* Loads adapters of PEFT's format. Collective. */
static int load_adapters(const struct tt_saver *saver)
{
    const struct tt_setup *s = saver->setup;
    const char *path = adapter_path(s->cfg);

    return path ? tt_hf_load(s->comm, path, &(struct tt_hf_options){.adapters = true}, s->job.model,
                             &saver->tensors.whole)
                : 0;
}

static int load_initial(const struct tt_saver *saver, struct tt_train_progress *at, struct tt_start *start)
{
    const struct tt_setup *s = saver->setup;
    const struct tt_ckpt_state *state = &saver->tensors.state;
    const struct tt_config *cfg = s->cfg;
    const struct tt_hf_options options = hf_options(cfg);
    unsigned skip = 0;
    json_t *meta = NULL;
    int rc = 0;

    if (s->job.model->dims.lora.rank) /* the adapters, which the initial weights may lack */
        TT_TRY(tt_comm_agree(s->comm, tt_engine_init_params(s->engine, (uint64_t)cfg->debug.seed)));
    if (cfg->checkpoint.initial_load_in_hf) {
        TT_TRY(tt_hf_load(s->comm, initial_path(cfg), &options, s->job.model, &saver->tensors.whole));
        TT_TRY(load_adapters(saver));
    } else {
        TT_TRY(initial_skip(cfg, &skip));
        TT_TRY(
            tt_ckpt_load(s->comm, &s->job.mesh, initial_path(cfg), cfg->checkpoint.load_policy, &skip, state, &meta));
        TT_TRY(tt_comm_agree(s->comm, restore_initial(cfg, saver->data, meta, skip, at)));
    }
    if (cfg->checkpoint.initial_load_in_hf || (skip & (TT_SKIP_OPTIMIZER | TT_SKIP_AVERAGES)))
        tt_state_start_averages(tt_engine_state(s->engine), tt_engine_layout(s->engine));
    describe_initial(cfg, start);
out:
    json_decref(meta);
    return rc;
}

/* Warns if the folder of the model's config.json contains weights too, since the user probably wanted to start from
 * them. Collective. */
static int warn_random(const struct tt_setup *s)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    const char *folder = s->cfg->model.hf_assets_path;
    bool has_weights = false, looks = s->comm->rank == 0 && strcmp(s->cfg->model.flavor, "hf") == 0 && folder;
    int rc = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names && looks && rc == 0 && !has_weights; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);

        rc = tt_path_exists(path, &has_weights);
        tt_free(path);
    }
    if (rc == 0 && has_weights)
        tt_warn("training starts from random weights: those in '%s' are not used\n"
                "help: --checkpoint.initial_load_in_hf loads them",
                folder);
    return tt_comm_agree(s->comm, rc);
}

static int load(struct tt_saver *saver, const char *run_id, struct tt_train_progress *at, struct tt_start *ret_start)
{
    const struct tt_config *cfg = saver->setup->cfg;
    struct tt_engine *engine = saver->setup->engine;
    char *folder = tt_run_folder_checkpoints(cfg);
    bool resumed = false, apart = tt_job_base_is_apart(saver->setup->job.model);
    int rc = 0;

    *ret_start = (struct tt_start){.since.step = -1};
    if (apart)
        TT_TRY(load_base(saver));
    if (cfg->checkpoint.enable)
        TT_TRY(resume(saver, folder, run_id, at, ret_start, &resumed));
    if (resumed)
        goto out;
    if (apart && initial_path(cfg)) {
        TT_TRY(load_adapters(saver));
        tt_state_start_averages(tt_engine_state(engine), tt_engine_layout(engine));
        describe_initial(cfg, ret_start);
        goto out;
    }
    if (initial_path(cfg)) {
        rc = load_initial(saver, at, ret_start);
        goto out;
    }
    if (!apart)
        TT_TRY(tt_comm_agree(saver->setup->comm, tt_engine_init_params(engine, (uint64_t)cfg->debug.seed)));
    tt_state_start_averages(tt_engine_state(engine), tt_engine_layout(engine));
    TT_TRY(warn_random(saver->setup));
    describe_random(cfg, ret_start);
out:
    tt_free(folder);
    return rc;
}

int tt_start_load(struct tt_saver *saver, const char *run_id, struct tt_train_progress *at, struct tt_start *ret_start)
{
    int rc = load(saver, run_id, at, ret_start);

    return rc < 0 ? rc : tt_magnitudes_start(saver->setup, &saver->tensors);
}

struct peek {
    const struct tt_setup *setup;
    const struct tt_train_data *data;
    struct tt_train_progress *at;
    char *step;    /* the path of the step from which the run continues; NULL: examine the weights to start from */
    unsigned skip; /* parts of the step that are not loaded */
};

/* Compares the tensors of a checkpoint with the model, without reading them. */
static int examine(void *arg)
{
    const struct peek *peek = arg;
    const struct tt_setup *s = peek->setup;
    const struct tt_hf_options options = hf_options(s->cfg);
    const char *path = peek->step ? peek->step : initial_path(s->cfg);
    struct tt_job_tensors tensors = {0};
    json_t *meta = NULL;
    unsigned skip = peek->skip;
    int rc = 0;

    if (!peek->step)
        TT_TRY(check_base(s));
    if (!peek->step && s->cfg->checkpoint.initial_load_in_hf) {
        const char *adapter = adapter_path(s->cfg);

        TT_TRY(tt_hf_examine(path, &options, s->job.model));
        return adapter ? tt_hf_examine(adapter, &(struct tt_hf_options){.adapters = true}, s->job.model) : 0;
    }
    if (!peek->step)
        TT_TRY(initial_skip(s->cfg, &skip));
    tt_job_tensors_init(&s->job.engine, NULL, &tensors);
    TT_TRY(tt_ckpt_examine(path, &tensors.state, skip, &meta));
    if (!peek->step)
        rc = restore_initial(s->cfg, peek->data, meta, skip, peek->at);
out:
    tt_job_tensors_release(&tensors);
    json_decref(meta);
    return rc;
}

/* The part of tt_start_peek that looks for a step in the run's own folder. */
static int peek_step(const struct tt_setup *s, const struct tt_train_data *data, struct tt_train_progress *at,
                     struct tt_start *start, bool *ret_resumes)
{
    char *folder = tt_run_folder_checkpoints(s->cfg);
    struct tt_ckpt_found found = {.step = -1};
    struct tt_ckpt_request request;
    struct peek peek = {.setup = s};
    int rc = 0;

    TT_TRY(tt_job_resume_request(s->cfg, &request));
    TT_TRY(tt_ckpt_peek(s->comm, folder, &request, &found));
    *ret_resumes = found.step >= 0;
    if (found.step < 0)
        goto out;
    rc = check_model(s->cfg, found.meta);
    if (rc == 0)
        rc = restore(s->cfg, data, found.meta, found.skip, at);
    TT_TRY(tt_comm_agree(s->comm, rc));
    peek.step = tt_step_path(folder, found.step);
    peek.skip = found.skip | (is_complete(s, data, at) ? TT_SKIP_OPTIMIZER : 0);
    TT_TRY(tt_patience_work(s->comm, s->comm->rank == 0, examine, &peek));
    describe_step(s, data, at, folder, &found, start);
out:
    tt_ckpt_found_release(&found);
    tt_free(peek.step);
    tt_free(folder);
    return rc;
}

int tt_start_peek(const struct tt_setup *s, const struct tt_train_data *data, bool starts_over,
                  struct tt_train_progress *at, struct tt_start *ret_start)
{
    struct tt_patience patience = tt_patience_begin(s->comm, "look at the checkpoint");
    struct peek peek = {.setup = s, .data = data, .at = at};
    bool resumes = false;
    int rc = 0;

    *ret_start = (struct tt_start){.since.step = -1};
    if (s->cfg->checkpoint.enable && !starts_over)
        TT_TRY(peek_step(s, data, at, ret_start, &resumes));
    if (!resumes && initial_path(s->cfg)) {
        TT_TRY(tt_patience_work(s->comm, s->comm->rank == 0, examine, &peek));
        TT_TRY(tt_comm_broadcast(s->comm, at, sizeof *at, 0));
        describe_initial(s->cfg, ret_start);
    } else if (!resumes) {
        TT_TRY(warn_random(s));
        describe_random(s->cfg, ret_start);
    }
out:
    tt_patience_end(s->comm, &patience);
    return rc;
}

void tt_start_release(struct tt_start *start)
{
    json_decref(start->since.keys);
    start->since.keys = NULL;
}
