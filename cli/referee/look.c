/* SPDX-License-Identifier: MIT
 *
 * Pairs the tensors of two dumps, and judges by a model of rounding whether they differ.
 */
#include "cli/referee/look.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cli/cli.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/stats.h"

static const struct {
    const char *name;
    double unit;
} units[] = {
    {"float64", 0x1p-53}, {"float32", 0x1p-24}, {"tfloat32", 0x1p-11}, {"bfloat16", 0x1p-8}, {"float16", 0x1p-11},
};

int tt_unit_of(const char *name, double *ret_unit)
{
    const char *names[sizeof units / sizeof units[0]];

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        names[i] = units[i].name;
        if (strcmp(name, units[i].name) == 0) {
            *ret_unit = units[i].unit;
            return 0;
        }
    }
    return tt_cli_fail_choice("dtype", name, names, (int)(sizeof units / sizeof units[0]));
}

/*
 * A gradient of the first layer is the result of about sixteen roundings per layer, eight forward and eight backward,
 * whose errors are independent, so that they grow with the root of their number. Sums add theirs. The factors cover
 * what the parts of a model amplify.
 */
double tt_look_tolerance(double unit, double sum_unit, double terms, int layers)
{
    return 3.0 * unit * sqrt(16.0 * (layers + 1.0)) + 4.0 * sum_unit * sqrt(terms);
}

static double element_unit(enum tt_dtype dtype)
{
    return dtype == TT_F64 ? 0x1p-53 : dtype == TT_F32 ? 0x1p-24 : dtype == TT_BF16 ? 0x1p-8 : 0x1p-11;
}

/* --- pairs --- */

static json_t *full_name(const struct tt_dump_tensor *t)
{
    return json_sprintf("%s/%s", tt_sections[t->section], t->name);
}

/* Lists the tensors of `from` that have no partner in `other`, in the sections that both have. */
static void list_missing(const struct tt_dump *from, const struct tt_dump *other, json_t *list)
{
    for (int i = 0; i < from->n; i++) {
        const struct tt_dump_tensor *t = &from->tensor[i];

        if (other->source[t->section] && !tt_dump_find(other, t->section, t->name))
            (void)json_array_append_new(list, full_name(t));
    }
}

int tt_look_open(const struct tt_dump *truth, const struct tt_dump *dump, double unit, struct tt_look *look)
{
    const json_t *record = tt_dump_record(truth) ? tt_dump_record(truth) : tt_dump_record(dump);
    double tokens = json_number_value(json_object_get(record, "tokens")), done = 0.0;
    int gradients = 0, rc = 0;

    *look = (struct tt_look){.truth = truth,
                             .dump = dump,
                             .unit = unit,
                             .terms = tokens,
                             .only_truth = json_array(),
                             .only_dump = json_array(),
                             .patterns = json_array()};
    list_missing(truth, dump, look->only_truth);
    list_missing(dump, truth, look->only_dump);
    look->pair = tt_calloc((size_t)truth->n + 1, sizeof *look->pair);
    look->explained = tt_calloc((size_t)truth->n + 1, sizeof *look->explained);
    for (int i = 0; i < truth->n; i++) {
        const struct tt_dump_tensor *a = &truth->tensor[i], *b = tt_dump_find(dump, a->section, a->name);
        struct tt_pair *pair = &look->pair[look->n];

        if (!b)
            continue;
        look->n++;
        gradients += a->section == TT_SECTION_GRADIENTS;
        TT_TRY(tt_pair_measure(a, b, pair));
        look->layers = pair->layer + 1 > look->layers ? pair->layer + 1 : look->layers;
        for (int d = 0; d < a->tensor->ndim && tokens <= 0.0; d++)
            look->terms = fmax(look->terms, (double)a->tensor->shape[d]);
        if (a->section == TT_SECTION_GRADIENTS)
            look->stored = fmax(look->stored, fmax(element_unit(a->tensor->dtype), element_unit(b->tensor->dtype)));
        tt_progress("comparing", done += 1.0, truth->n);
    }
    tt_progress("comparing", truth->n, truth->n);
    if (look->n == 0 || (gradients == 0 && truth->source[TT_SECTION_GRADIENTS] && dump->source[TT_SECTION_GRADIENTS]))
        rc = tt_fail(TT_EDATA,
                     "'%s' and '%s' have no %s in common; there is '%s' in the first and '%s' in the second\n"
                     "help: save both under Hugging Face's names, or list them as \"names\" in reference.json",
                     truth->path, dump->path, look->n ? "gradient" : "tensor", truth->tensor[0].name,
                     dump->tensor[0].name);
    if (look->unit == 0.0)
        look->unit = look->stored;
    /* sums of narrow types are float32's */
    look->sum_unit = fmin(look->unit, 0x1p-24);
out:
    return rc;
}

void tt_look_release(struct tt_look *look)
{
    for (int i = 0; i < look->n; i++)
        tt_pair_release(&look->pair[i]);
    tt_free(look->pair);
    tt_free(look->explained);
    json_decref(look->only_truth);
    json_decref(look->only_dump);
    json_decref(look->patterns);
    *look = (struct tt_look){0};
}

/* --- judging --- */

/* Root mean square of the elements of A. */
static double size_of(const struct tt_pair *p)
{
    double n = (double)(p->rows * p->columns);

    return n > 0.0 ? p->norm_a / sqrt(n) : 0.0;
}

/*
 * The median of size_of over the matrices in the pair's section and layer. Where terms cancel, as in the gradient of a
 * key's bias, whose true value is zero, the result consists of the rounding of its terms, and these are about as
 * large as the elements of the matrices.
 */
static double usual_size(const struct tt_look *look, const struct tt_pair *pair)
{
    double *size = tt_calloc((size_t)look->n, sizeof *size), median = 0.0;
    int n = 0;

    for (int i = 0; i < look->n; i++)
        if (look->pair[i].a->section == pair->a->section && look->pair[i].layer == pair->layer &&
            look->pair[i].columns > 1)
            size[n++] = size_of(&look->pair[i]);
    if (n > 1)
        median = tt_median(size, n);
    tt_free(size);
    return median;
}

static double tolerance_of(const struct tt_look *look, const struct tt_pair *p)
{
    /* the elements of a vector are sums over all tokens, of which much cancels */
    double tolerance = look->tolerance * (p->columns == 1 ? 2.0 : 1.0);

    switch (p->a->section) {
    case TT_SECTION_WEIGHTS:
        /* Where rounding changes the sign of a gradient, Adam's step goes the other way: in a fraction of the elements
         * that is about the gradient's error, or in all elements of a key's bias, whose gradient is zero. A step may be
         * a fifth of such a weight. */
        return look->unit + 0.4 * sqrt(tolerance);
    case TT_SECTION_OPTIMIZER: /* second moments are squares */
        return 2.0 * tolerance;
    default:
        return tolerance;
    }
}

static void decide(struct tt_pair *p)
{
    if (p->judgement == TT_SHAPE)
        return;
    if (p->not_finite)
        p->judgement = TT_NOT_FINITE;
    else if (p->norm_diff == 0.0)
        p->judgement = TT_SAME;
    else
        p->judgement = p->norm_diff <= p->tolerance * p->scale ? TT_ROUNDING : TT_DIFFERENT;
}

void tt_look_judge(struct tt_look *look)
{
    enum { PART = 10 }; /* a tensor is tiny if its elements are this many times smaller than usual */

    look->tolerance = tt_look_tolerance(look->unit, look->sum_unit, look->terms, look->layers) +
                      (look->stored > look->unit ? look->stored : 0.0);
    for (int i = 0; i < look->n; i++) {
        struct tt_pair *p = &look->pair[i];

        p->tolerance = tolerance_of(look, p);
        p->scale = fmax(p->norm_a, usual_size(look, p) / PART * sqrt((double)(p->rows * p->columns)));
        decide(p);
    }
}

bool tt_look_measure(struct tt_look *look, const struct tt_look *other)
{
    double *error = tt_calloc((size_t)other->n + 1, sizeof *error), median = 0.0;
    bool right = look->unit == other->unit && look->n == other->n;
    int n = 0;

    for (int i = 0; i < other->n; i++) {
        right = right && other->pair[i].judgement < TT_DIFFERENT;
        if (other->pair[i].a->section == TT_SECTION_GRADIENTS && other->pair[i].scale > 0.0)
            error[n++] = other->pair[i].norm_diff / other->pair[i].scale;
    }
    right = right && n > 0;
    median = right ? tt_median(error, n) : 0.0;
    for (int i = 0; i < look->n && right; i++) {
        struct tt_pair *p = &look->pair[i];
        const struct tt_pair *q = &other->pair[i]; /* both pair the tensors of the same truth */
        double most;

        if (p->a->section != TT_SECTION_GRADIENTS || p->judgement == TT_SHAPE || !(q->scale > 0.0))
            continue;
        /* the errors of two programs differ by a few times, and more in small tensors */
        most = fmax(fmax(8.0 * q->norm_diff / q->scale, 4.0 * median), p->tolerance / 16.0);
        p->tolerance = fmin(p->tolerance, most);
        decide(p);
    }
    tt_free(error);
    return right;
}

bool tt_look_is_bad(const struct tt_look *look, int i, bool any)
{
    const struct tt_pair *p = &look->pair[i];

    return p->judgement >= TT_DIFFERENT && !look->explained[i] && (any || p->a->section == TT_SECTION_GRADIENTS);
}

/* Whether p comes before q. */
static bool is_before(const struct tt_pair *p, const struct tt_pair *q, bool forward)
{
    if (p->order != q->order)
        return forward == (p->order < q->order);
    if (p->a->section != q->a->section)
        return p->a->section == TT_SECTION_ACTIVATION_GRADIENTS;
    return strlen(p->a->name) > strlen(q->a->name);
}

int tt_look_first(const struct tt_look *look, bool forward)
{
    int first = -1;

    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];
        enum tt_section section = p->a->section;
        bool counts = forward ? section == TT_SECTION_ACTIVATIONS
                              : section == TT_SECTION_GRADIENTS || section == TT_SECTION_ACTIVATION_GRADIENTS;

        if (counts && p->judgement >= TT_DIFFERENT && p->judgement != TT_SHAPE &&
            (first < 0 || is_before(p, &look->pair[first], forward)))
            first = i;
    }
    return first;
}

json_t *tt_look_add(struct tt_look *look, const char *name, const char *title, const char *remedy)
{
    json_t *evidence = json_array();

    (void)json_array_append_new(look->patterns, json_pack("{s:s, s:s, s:O, s:s}", "name", name, "title", title,
                                                          "evidence", evidence, "remedy", remedy));
    json_decref(evidence); /* the pattern keeps it */
    return evidence;
}

void tt_look_say(json_t *evidence, const char *format, ...)
{
    va_list args;
    char *text;

    va_start(args, format);
    text = tt_vformat(format, args);
    va_end(args);
    (void)json_array_append_new(evidence, tt_json_string(text));
    tt_free(text);
}

void tt_look_explain(struct tt_look *look)
{
    for (int i = 0; i < look->n; i++)
        look->explained[i] = look->explained[i] || tt_look_is_bad(look, i, false);
}

double tt_look_part(const struct tt_look *look)
{
    double dot = 0.0, bb = 0.0;

    for (int i = 0; i < look->n; i++)
        if (tt_look_is_bad(look, i, false) && look->pair[i].judgement == TT_DIFFERENT) {
            dot += look->pair[i].dot;
            bb += look->pair[i].norm_b * look->pair[i].norm_b;
        }
    return dot / bb;
}
