/* SPDX-License-Identifier: MIT
 *
 * Compares the dumps of a training step: chooses which one is the truth, judges the other one or two, and reports.
 */
#include "cli/referee/referee.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cli/referee/dump.h"
#include "cli/referee/look.h"
#include "core/base/mem.h"

/* A dump as the user names it. */
struct side {
    const char *path;
    int64_t *step;
    int n_steps, ranks;
    json_t *names; /* of its reference.json */
    char *dtype;   /* NULL: not stated */
};

/* --- sides --- */

static int open_side(const char *path, struct side *side)
{
    char *first = NULL;
    struct tt_dump dump = {0};
    int rc = 0;

    side->path = path;
    TT_TRY(tt_dump_ranks(path, &side->ranks));
    first = tt_dump_rank_path(path, side->ranks ? 0 : -1);
    TT_TRY(tt_dump_steps(first, &side->step, &side->n_steps));
    TT_TRY(tt_dump_open(first, side->step[0], NULL, &dump));
    side->names = json_incref(json_object_get(dump.about, "names"));
    if (json_string_value(json_object_get(dump.about, "dtype")))
        side->dtype = tt_strdup(json_string_value(json_object_get(dump.about, "dtype")));
out:
    tt_dump_release(&dump);
    tt_free(first);
    return rc;
}

static void close_side(struct side *side)
{
    tt_free(side->step);
    tt_free(side->dtype);
    json_decref(side->names);
}

static bool has_step(const struct side *side, int64_t step)
{
    for (int i = 0; i < side->n_steps; i++)
        if (side->step[i] == step || side->step[i] < 0)
            return true;
    return false;
}

/* The number of the step to read on this side; -1 if its path already names a step's folder. */
static int64_t own_step(const struct side *side, int64_t step)
{
    return side->step[0] < 0 ? -1 : step;
}

/* --- one step --- */

struct judged {
    struct tt_dump *replica; /* [ranks], or a single one */
    int n;
    struct tt_look look;
    bool measured;
};

static int open_replicas(const struct side *side, int64_t step, const json_t *names, struct judged *j)
{
    int n = side->ranks ? side->ranks : 1, rc = 0;

    j->replica = tt_calloc((size_t)n, sizeof *j->replica);
    for (; j->n < n; j->n++) {
        char *path = tt_dump_rank_path(side->path, side->ranks ? j->n : -1);

        rc = tt_dump_open(path, own_step(side, step), names, &j->replica[j->n]);
        tt_free(path);
        if (rc < 0) {
            tt_dump_release(&j->replica[j->n]);
            return rc;
        }
    }
    return 0;
}

static void close_judged(struct judged *j)
{
    tt_look_release(&j->look);
    for (int k = 0; k < j->n; k++)
        tt_dump_release(&j->replica[k]);
    tt_free(j->replica);
}

static const char *judgement_name(enum tt_judgement judgement)
{
    static const char *const names[] = {"same", "rounding", "different", "not finite", "shape"};

    return names[judgement];
}

static json_t *tensor_json(const struct tt_pair *p)
{
    bool numbers = p->judgement != TT_SHAPE;
    double error = p->norm_diff == 0.0 ? 0.0 : p->norm_diff / p->scale;

    return json_pack("{s:s, s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:s}", "section", tt_sections[p->a->section], "name",
                     p->a->name, "layer", p->layer < 0 ? json_null() : json_integer(p->layer), "role",
                     tt_role_name(p->role), "error", numbers ? tt_json_number(error) : json_null(), "cosine",
                     numbers ? tt_json_number(tt_pair_cosine(p)) : json_null(), "ratio",
                     numbers ? tt_json_number(tt_pair_ratio(p)) : json_null(), "tolerance",
                     tt_json_number(p->tolerance), "judgement", judgement_name(p->judgement));
}

/* The first module that differs in the order of the forward or backward pass, or null. */
static json_t *first_json(const struct tt_look *look, bool forward)
{
    int first = tt_look_first(look, forward);

    return first < 0 ? json_null() : json_string(look->pair[first].a->name);
}

static json_t *loss_json(const struct tt_look *look)
{
    const json_t *record[2] = {tt_dump_record(look->truth), tt_dump_record(look->dump)};
    const json_t *loss[2];

    for (int k = 0; k < 2; k++)
        loss[k] = json_object_get(record[k], "loss");
    if (!json_is_number(loss[0]) || !json_is_number(loss[1]))
        return json_null();
    return json_pack("{s:f, s:f}", "truth", json_number_value(loss[0]), "dump", json_number_value(loss[1]));
}

/* How many gradients of a list of names are missing. */
static int count_gradients(const json_t *list)
{
    const json_t *name;
    size_t i;
    int n = 0;

    json_array_foreach((json_t *)list, i, name) n += tt_text_begins(json_string_value(name), "gradients/");
    return n;
}

static char *model_text(const struct tt_look *look, const char *dtype)
{
    return tt_format("%s in %d layer%s: 3 x %.1e x sqrt(16 x %d) + 4 x %.1e x sqrt(%.0f) = %.1e, twice that in vectors",
                     dtype, look->layers, look->layers == 1 ? "" : "s", look->unit, look->layers + 1, look->sum_unit,
                     look->terms, look->tolerance);
}

/* Activations may be saved as a rank's own part; these are not compared. */
static bool is_other_part(const struct tt_pair *p)
{
    return p->judgement == TT_SHAPE &&
           (p->a->section == TT_SECTION_ACTIVATIONS || p->a->section == TT_SECTION_ACTIVATION_GRADIENTS);
}

/* Names the patterns, and describes one judged dump. */
static int report(struct judged *j, const char *dtype, json_t **ret_json)
{
    struct tt_look *look = &j->look;
    json_t *tensors = json_array(), *forward = first_json(look, true), *backward = first_json(look, false),
           *none = json_null();
    bool ok = count_gradients(look->only_truth) == 0;
    char *model = model_text(look, dtype);
    int rc = 0;

    for (int i = 0; i < look->n; i++)
        (void)json_array_append_new(tensors, tensor_json(&look->pair[i])); /* before patterns change the numbers */
    if (j->n > 1)
        TT_TRY(tt_copies_compare(look, j->replica, j->n));
    TT_TRY(tt_faults_find(look));
    for (int i = 0; i < look->n; i++) {
        ok = ok && (look->pair[i].judgement < TT_DIFFERENT || is_other_part(&look->pair[i]));
        if (look->pair[i].judgement == TT_ROUNDING)
            (void)json_object_set_new(json_array_get(tensors, (size_t)i), "judgement", json_string("rounding"));
    }
    ok = ok && json_array_size(look->patterns) == 0;
    *ret_json = json_pack("{s:o, s:o, s:o, s:b, s:s, s:s, s:f, s:b, s:o, s:O, s:o, s:o, s:O, s:O, s:O}", "dump",
                          tt_json_string(look->dump->path), "truth", tt_json_string(look->truth->path), "step",
                          look->dump->step < 0 ? json_null() : json_integer(look->dump->step), "ok", (int)ok, "dtype",
                          dtype, "model", model, "tolerance", look->tolerance, "measured", (int)j->measured, "loss",
                          loss_json(look), "patterns", look->patterns, "first_forward",
                          json_incref(ok ? none : forward), "first_backward", json_incref(ok ? none : backward),
                          "only_truth", look->only_truth, "only_dump", look->only_dump, "tensors", tensors);
out:
    tt_free(model);
    json_decref(tensors);
    json_decref(forward);
    json_decref(backward);
    return rc;
}

static const char *dtype_of(const struct side *side, const struct tt_referee_options *options)
{
    return options->dtype ? options->dtype : side->dtype;
}

/* Judges one or two dumps against the truth at one step. */
static int judge_step(const struct side *truth, struct side *const *subject, int n, int64_t step,
                      const struct tt_referee_options *options, json_t *looks)
{
    struct judged t = {0}, j[2] = {{0}};
    int rc = 0;

    TT_TRY(open_replicas(truth, step, subject[0]->names, &t));
    for (int k = 0; k < n; k++) {
        const char *dtype = dtype_of(subject[k], options);
        double unit = 0.0, own = 0.0;

        if (dtype)
            TT_TRY(tt_unit_of(dtype, &unit));
        if (truth->dtype)
            TT_TRY(tt_unit_of(truth->dtype, &own));
        TT_TRY(open_replicas(subject[k], step, truth->names, &j[k]));
        TT_TRY(tt_look_open(&t.replica[0], &j[k].replica[0], fmax(unit, own), &j[k].look));
        tt_look_judge(&j[k].look);
    }
    if (n == 2) {
        bool by_other[2];

        /* both by the model's judgement of the other */
        by_other[1] = tt_look_measure(&j[1].look, &j[0].look);
        by_other[0] = tt_look_measure(&j[0].look, &j[1].look);
        j[0].measured = by_other[0];
        j[1].measured = by_other[1];
    }
    for (int k = 0; k < n; k++) {
        const char *dtype = dtype_of(subject[k], options);
        json_t *look = NULL;

        TT_TRY(report(&j[k], dtype ? dtype : "types of the elements", &look));
        (void)json_array_append_new(looks, look);
    }
out:
    close_judged(&j[0]);
    close_judged(&j[1]);
    close_judged(&t);
    return rc;
}

int tt_referee_judge(const char *a, const char *b, const struct tt_referee_options *options, json_t **ret_json)
{
    const char *path[3] = {a, b, options->reference};
    struct side side[3] = {{0}}, *subject[2] = {&side[1]}, *truth = &side[0];
    json_t *looks = json_array(), *look;
    int n = 1, compared = 0, rc = 0;
    bool ok = true;
    size_t i;

    for (int k = 0; k < 3 && path[k]; k++)
        TT_TRY(open_side(path[k], &side[k]));
    if (options->reference) {
        truth = &side[2];
        subject[0] = &side[0];
        subject[1] = &side[1];
        n = 2;
    } else if (side[1].dtype && strcmp(side[1].dtype, "float64") == 0 &&
               !(side[0].dtype && strcmp(side[0].dtype, "float64") == 0)) {
        truth = &side[1];
        subject[0] = &side[0];
    }
    for (int k = 0; k < subject[0]->n_steps; k++) {
        int64_t step = subject[0]->step[k];
        bool common = has_step(truth, step) || step < 0;

        if (step < 0 && truth->step[0] >= 0)
            step = options->step >= 0 ? options->step : truth->step[0];
        common = common && (n == 1 || has_step(subject[1], step)) && has_step(truth, step);
        if (!common || (options->step >= 0 && step >= 0 && step != options->step))
            continue;
        compared++;
        TT_TRY(judge_step(truth, subject, n, step, options, looks));
    }
    if (compared == 0)
        TT_TRY(tt_fail(TT_EDATA, "'%s' and '%s' have no step in common%s", truth->path, subject[0]->path,
                       options->step >= 0 ? "\nhelp: --step chooses among the folders step-N" : ""));
    json_array_foreach(looks, i, look) ok = ok && json_is_true(json_object_get(look, "ok"));
    *ret_json = json_pack("{s:s, s:i, s:b, s:o, s:o, s:o, s:O}", "type", "compare_gradients", "schema", 1, "ok",
                          (int)ok, "a", tt_json_string(a), "b", tt_json_string(b), "reference",
                          options->reference ? tt_json_string(options->reference) : json_null(), "looks", looks);
out:
    for (int k = 0; k < 3; k++)
        close_side(&side[k]);
    json_decref(looks);
    return rc;
}
