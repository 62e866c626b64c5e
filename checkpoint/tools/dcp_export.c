/* SPDX-License-Identifier: MIT
 *
 * What torchtitan saves, from what titan has saved. The options of the optimizer and the learning rates follow from the
 * configuration in the manifest.
 */
#include "checkpoint/tools/dcp_export.h"

#include <math.h>
#include <string.h>

#include "checkpoint/dcp/write.h"
#include "checkpoint/format/state.h"
#include "checkpoint/hf/folder.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/models/model_json.h"
#include "core/optim/lr.h"
#include "core/os/file.h"
#include "parallel/layout/patterns.h"

/* torchtitan would ignore the adapters and load the weights without them. */
static int check_adapters(const struct tt_source *source, const struct tt_model *model)
{
    if (model->dims.lora.rank == 0)
        return 0;
    return tt_fail(TT_EDATA,
                   "'%s' has low-rank adapters, which torchtitan does not read\n"
                   "help: titan ckpt consolidate --format hf merges them into the weights; convert its result",
                   source->path);
}

int tt_dcp_export_open(struct tt_source *source, struct tt_model **ret_model, struct tt_weights *ret_weights)
{
    char *assets = tt_source_assets(source), *path = tt_format("%s/model.json", assets);
    bool is_hf = false, has_model = false;
    int rc = 0;

    TT_TRY(tt_source_is_hf(source, &is_hf));
    if (is_hf) {
        TT_TRY(tt_model_from_hf(assets, ret_model));
        TT_TRY(tt_weights_from_hf(source, *ret_model, TT_EXTRA_REFUSED, ret_weights));
    } else {
        TT_TRY(tt_path_exists(path, &has_model));
        if (has_model) {
            TT_TRY(tt_model_json_load(path, ret_model));
            TT_TRY(check_adapters(source, *ret_model));
        }
        tt_weights_stored(source, TT_CKPT_MODEL, ret_weights);
    }
out:
    tt_free(path);
    tt_free(assets);
    return rc;
}

/* --- what the manifest says --- */

static const json_t *setting(const struct tt_dcp_export *e, const char *section, const char *key)
{
    return json_object_get(json_object_get(json_object_get(e->source->manifest.meta, "config"), section), key);
}

static double real(const struct tt_dcp_export *e, const char *section, const char *key, double absent)
{
    const json_t *value = setting(e, section, key);

    return json_is_number(value) ? json_number_value(value) : absent;
}

static int64_t count(const struct tt_dcp_export *e, const char *section, const char *key, int64_t absent)
{
    const json_t *value = setting(e, section, key);

    return json_is_integer(value) ? (int64_t)json_integer_value(value) : absent;
}

static int64_t done(const struct tt_dcp_export *e, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(e->source->manifest.meta, key));
}

static bool says_options(const struct tt_dcp_export *e)
{
    return json_is_number(setting(e, "optimizer", "lr")) && setting(e, "optimizer", "name");
}

/* The rate of the next step, as torchtitan has set it when it saves. */
static double next_rate(const struct tt_dcp_export *e)
{
    const char *decay = json_string_value(setting(e, "lr_scheduler", "decay_type"));
    const struct tt_lr_schedule schedule = {
        .base = real(e, "optimizer", "lr", 0.0),
        .warmup_steps = count(e, "lr_scheduler", "warmup_steps", 0),
        .total_steps = count(e, "lr_scheduler", "total_steps", count(e, "training", "steps", 1)),
        .decay_ratio = real(e, "lr_scheduler", "decay_ratio", NAN),
        .decay = decay && strcmp(decay, "sqrt") == 0     ? TT_LR_SQRT
                 : decay && strcmp(decay, "cosine") == 0 ? TT_LR_COSINE
                                                         : TT_LR_LINEAR,
        .min_factor = real(e, "lr_scheduler", "min_lr_factor", 0.0),
    };

    return tt_lr_at(&schedule, done(e, "lr_step") + 1);
}

static struct tt_words words_of(const json_t *list)
{
    struct tt_words words = {.is_list = true, .word = tt_calloc(json_array_size(list) + 1, sizeof(char *))};

    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_string(json_array_get(list, i)))
            words.word[words.n++] = tt_strdup(json_string_value(json_array_get(list, i)));
    return words;
}

static void words_release(struct tt_words *words)
{
    for (int i = 0; i < words->n; i++)
        tt_free(words->word[i]);
    tt_free((void *)words->word);
}

/* Gives the model's parameters the optimizer and the options that they had for themselves. */
static int apply_groups(const struct tt_dcp_export *e)
{
    const char *name = json_string_value(setting(e, "optimizer", "name"));
    struct tt_words no_decay = words_of(setting(e, "optimizer", "no_decay"));
    struct tt_words factors = words_of(setting(e, "optimizer", "lr_factors"));
    int rc = tt_param_groups_apply(e->model, no_decay, factors);

    if (name && strcmp(name, "Muon") == 0)
        tt_param_groups_use_muon(e->model);
    words_release(&no_decay);
    words_release(&factors);
    return rc;
}

/* --- the keys --- */

static int put_int(struct tt_dcp_writer *w, const char *root, const char *key, int64_t number)
{
    struct tt_pickler p = {0};

    tt_pickler_begin(&p);
    tt_pickler_int(&p, number);
    return tt_dcp_writer_object(w, key, root, &p);
}

static int put_bool(struct tt_dcp_writer *w, const char *root, const char *key, bool value)
{
    struct tt_pickler p = {0};

    tt_pickler_begin(&p);
    tt_pickler_bool(&p, value);
    return tt_dcp_writer_object(w, key, root, &p);
}

/* A list of one number. */
static int put_list(struct tt_dcp_writer *w, const char *root, const char *key, double number)
{
    struct tt_pickler p = {0};

    tt_pickler_begin(&p);
    tt_pickler_add(&p, TT_PICKLER_LIST);
    tt_pickler_add(&p, TT_PICKLER_MARK);
    tt_pickler_real(&p, number);
    tt_pickler_add(&p, TT_PICKLER_APPENDS);
    return tt_dcp_writer_object(w, key, root, &p);
}

/* What an option of a parameter is: a number, a list of two or three numbers, true or false, or a word. */
struct option {
    const char *name;
    enum { REAL, COUNT, PAIR, TRIPLE, FLAG, WORD } kind;
    double number[3];
    const char *word;
};

static int put_option(struct tt_dcp_writer *w, const char *param, const struct option *option)
{
    char *key = tt_format("optimizer.param_groups.%s.%s", param, option->name);
    struct tt_pickler p = {0};
    int rc;

    tt_pickler_begin(&p);
    if (option->kind == PAIR || option->kind == TRIPLE)
        tt_pickler_add(&p, TT_PICKLER_MARK);
    if (option->kind == FLAG)
        tt_pickler_bool(&p, option->number[0] != 0.0);
    else if (option->kind == COUNT)
        tt_pickler_int(&p, (int64_t)option->number[0]);
    else if (option->kind == WORD)
        tt_pickler_text(&p, option->word);
    else
        tt_pickler_real(&p, option->number[0]);
    if (option->kind == PAIR || option->kind == TRIPLE) {
        tt_pickler_real(&p, option->number[1]);
        if (option->kind == TRIPLE)
            tt_pickler_real(&p, option->number[2]);
        tt_pickler_add(&p, TT_PICKLER_TUPLE);
    }
    rc = tt_dcp_writer_object(w, key, "optimizer", &p);
    tt_free(key);
    return rc;
}

/* PyTorch takes all options of the optimizer from the checkpoint, also how it computes: as torchtitan's default, with
 * the fused kernel. */
static int write_adam(const struct tt_dcp_export *e, struct tt_dcp_writer *w, const struct tt_param *param)
{
    const char *name = json_string_value(setting(e, "optimizer", "name"));
    const struct option option[] = {
        {"betas", PAIR, .number = {real(e, "optimizer", "beta1", 0.9), real(e, "optimizer", "beta2", 0.95)}},
        {"eps", REAL, .number = {real(e, "optimizer", "eps", 1e-8)}},
        {"decoupled_weight_decay", FLAG, .number = {name && strcmp(name, "Adam") != 0}},
        {"fused", FLAG, .number = {1.0}},
        {"foreach", FLAG, .number = {0.0}},
        {"amsgrad", FLAG, .number = {0.0}},
        {"maximize", FLAG, .number = {0.0}},
        {"capturable", FLAG, .number = {0.0}},
        {"differentiable", FLAG, .number = {0.0}},
    };
    int rc = 0;

    for (size_t i = 0; i < sizeof option / sizeof option[0] && rc == 0; i++)
        rc = put_option(w, param->name, &option[i]);
    return rc;
}

/* Those of torch.optim.Muon; the coefficients and eps are its own, and titan's. */
static int write_muon(const struct tt_dcp_export *e, struct tt_dcp_writer *w, const struct tt_param *param)
{
    const char *adjust = json_string_value(setting(e, "optimizer", "muon_adjust_lr"));
    const struct option option[] = {
        {"momentum", REAL, .number = {real(e, "optimizer", "muon_momentum", 0.95)}},
        {"nesterov", FLAG, .number = {!json_is_false(setting(e, "optimizer", "muon_nesterov"))}},
        {"ns_coefficients", TRIPLE, .number = {3.4445, -4.7750, 2.0315}},
        {"eps", REAL, .number = {1e-7}},
        {"ns_steps", COUNT, .number = {(double)count(e, "optimizer", "muon_ns_steps", 5)}},
        {"adjust_lr_fn", WORD, .word = adjust ? adjust : "match_rms_adamw"},
    };
    int rc = 0;

    for (size_t i = 0; i < sizeof option / sizeof option[0] && rc == 0; i++)
        rc = put_option(w, param->name, &option[i]);
    return rc;
}

static int write_options(const struct tt_dcp_export *e, struct tt_dcp_writer *w)
{
    double rate = next_rate(e), base = real(e, "optimizer", "lr", 0.0);
    int rc = 0;

    TT_TRY(apply_groups(e));
    for (int p = 0; p < e->model->n_params; p++) {
        const struct tt_param *param = &e->model->params[p];
        const struct option option[] = {
            {"lr", REAL, .number = {rate * param->lr_factor}},
            {"initial_lr", REAL, .number = {base * param->lr_factor}},
            {"weight_decay", REAL, .number = {param->no_decay ? 0.0 : real(e, "optimizer", "weight_decay", 0.1)}},
        };

        for (size_t i = 0; i < sizeof option / sizeof option[0]; i++)
            TT_TRY(put_option(w, param->name, &option[i]));
        TT_TRY(param->muon ? write_muon(e, w, param) : write_adam(e, w, param));
    }
    TT_TRY(put_list(w, "lr_scheduler", "lr_scheduler.base_lrs", base));
    TT_TRY(put_list(w, "lr_scheduler", "lr_scheduler._last_lr", rate));
out:
    return rc;
}

static int write_counts(const struct tt_dcp_export *e, struct tt_dcp_writer *w)
{
    int rc = 0;

    TT_TRY(put_int(w, "train_state", "train_state.step", done(e, "step")));
    TT_TRY(put_int(w, "train_state", "train_state.ntokens_seen", done(e, "ntokens_seen")));
    TT_TRY(put_int(w, "lr_scheduler", "lr_scheduler.last_epoch", done(e, "lr_step")));
    TT_TRY(put_int(w, "lr_scheduler", "lr_scheduler._step_count", done(e, "lr_step") + 1));
    TT_TRY(put_bool(w, "lr_scheduler", "lr_scheduler._is_initial", false));
    TT_TRY(put_bool(w, "lr_scheduler", "lr_scheduler._get_lr_called_within_step", false));
out:
    return rc;
}

/* torchtitan keeps no averages of weights under such keys, so they would only be bytes that nobody reads. */
static bool leave_averages_out(struct tt_weights *moments)
{
    int n = 0;
    bool any;

    for (int i = 0; i < moments->n; i++)
        if (!tt_ckpt_is_average(moments->weight[i].name))
            moments->weight[n++] = moments->weight[i];
    any = n < moments->n;
    moments->n = n;
    return any;
}

/* The moments of each parameter and, with the first of them, the number of its updates. */
static int write_moments(const struct tt_dcp_export *e, struct tt_dcp_writer *w, struct tt_weights *moments)
{
    static const char first[] = ".exp_avg";
    struct tt_weights_file file = {.weights = moments,
                                   .dtype = tt_calloc((size_t)moments->n, sizeof(enum tt_dtype)),
                                   .what = e->file->what,
                                   .done = e->file->done,
                                   .total = e->file->total};
    float updates = (float)done(e, "optimizer_step");
    int rc = 0;

    for (int i = 0; i < moments->n && rc == 0; i++) {
        const char *name = moments->weight[i].name;
        size_t n = strlen(name), m = sizeof first - 1;
        char *key = tt_format("optimizer.%s", name);
        char *step = tt_format("optimizer.%.*s.step", (int)(n > m ? n - m : 0), name);

        file.dtype[i] = moments->weight[i].dtype;
        rc = tt_dcp_writer_weight(w, &file, i, key, "optimizer");
        if (rc == 0 && n > m && strcmp(name + n - m, first) == 0)
            rc = tt_dcp_writer_scalar(w, step, "optimizer", updates);
        tt_free(key);
        tt_free(step);
    }
    TT_TRY(rc);
    rc = tt_weights_check(moments);
out:
    tt_free(file.dtype);
    return rc;
}

static int write_state(const struct tt_dcp_export *e, struct tt_dcp_writer *w)
{
    struct tt_weights moments = {0};
    int rc = 0;

    tt_weights_stored(e->source, TT_CKPT_OPTIM, &moments);
    if (leave_averages_out(&moments))
        tt_note("'%s' has averages of the weights, for which torchtitan has no key: they are left out\n"
                "help: --ema writes them as the weights",
                e->source->path);
    if (moments.n == 0)
        goto out;
    TT_TRY(tt_dcp_writer_file(w));
    TT_TRY(write_moments(e, w, &moments));
    TT_TRY(write_counts(e, w));
    if (e->model && says_options(e))
        rc = write_options(e, w);
    else
        tt_note(
            "'%s' has no configuration of a run: the options of the optimizer, for which PyTorch asks when it resumes, "
            "are left out",
            e->source->path);
out:
    tt_weights_release(&moments);
    return rc;
}

int tt_dcp_export(const struct tt_dcp_export *export, int64_t *ret_bytes, int *ret_files)
{
    struct tt_dcp_writer writer = tt_dcp_writer_new(export->folder);
    struct tt_weights_file *file = export->file;
    int rc = 0;

    for (int i = 0; i < file->weights->n; i++) {
        if (i == 0 || file->of_file[i] != file->of_file[i - 1])
            TT_TRY(tt_dcp_writer_file(&writer));
        TT_TRY(tt_dcp_writer_weight(&writer, file, i, file->weights->weight[i].name, NULL));
    }
    if (export->model && export->model->dims.tied == 1) /* PyTorch has a tied weight under both names */
        tt_dcp_writer_alias(&writer, "output.weight", "tok_embeddings.weight");
    if (export->with_state)
        TT_TRY(write_state(export, &writer));
    TT_TRY(tt_dcp_writer_finish(&writer));
    *ret_bytes = writer.bytes;
    *ret_files = writer.metadata.n_files;
out:
    tt_dcp_writer_release(&writer);
    return rc;
}
