/* SPDX-License-Identifier: MIT
 *
 * Replicas of one gradient must have the same bits, because all of them received the same sum.
 */
#include <math.h>

#include "cli/referee/look.h"
#include "core/base/mem.h"

enum { BLOCK_ELEMENTS = 1 << 20 };

struct sums {
    double *truth, *sum, *other; /* a block of rows: A, the sum of the replicas, one replica */
    double *first;               /* the first replica */
    int different;               /* tensors of which not all replicas have the same bits */
    double worst;                /* the largest relative distance of a replica from the first one */
    const char *worst_name;
    int worst_rank;
    double aa, from_sum, from_mean; /* over all tensors: A * A; squared distances of the sum and of the mean from A */
};

static int compare_tensor(const struct tt_pair *p, const struct tt_dump *replica, int n, struct sums *s)
{
    int64_t step = p->columns > 0 && p->columns < BLOCK_ELEMENTS ? BLOCK_ELEMENTS / p->columns : 1;
    double *distance = tt_calloc((size_t)n, sizeof *distance), bb = 0.0;
    bool differs = false;
    int rc = 0;

    for (int64_t row = 0; row < p->rows; row += step) {
        int64_t rows = p->rows - row < step ? p->rows - row : step, elements = rows * p->columns;

        TT_TRY(tt_dump_read(p->a, row, rows, s->truth));
        for (int k = 0; k < n; k++) {
            const struct tt_dump_tensor *t = tt_dump_find(&replica[k], p->a->section, p->a->name);
            double *data = k ? s->other : s->first;
            struct tt_box here, there;

            if (!t)
                TT_TRY(
                    tt_fail(TT_EDATA, "'%s' has no gradient of '%s', which rank 0 has", replica[k].path, p->a->name));
            here = tt_box_whole(p->b->tensor->ndim, p->b->tensor->shape);
            there = tt_box_whole(t->tensor->ndim, t->tensor->shape);
            if (!tt_box_equal(&here, &there))
                TT_TRY(tt_fail(TT_EDATA,
                               "'%s': the gradient of '%s' has another shape than rank 0's\nhelp: save whole "
                               "tensors, as DTensor.full_tensor() makes them",
                               replica[k].path, p->a->name));
            TT_TRY(tt_dump_read(t, row, rows, data));
            for (int64_t i = 0; i < elements; i++) {
                double delta = data[i] - s->first[i];

                differs = differs || delta != 0.0;
                distance[k] += delta * delta;
                bb += k ? 0.0 : data[i] * data[i];
                s->sum[i] = (k ? s->sum[i] : 0.0) + data[i];
            }
        }
        for (int64_t i = 0; i < elements; i++) {
            double a = s->truth[i], by_sum = s->sum[i] - a, by_mean = s->sum[i] / n - a;

            s->aa += a * a;
            s->from_sum += by_sum * by_sum;
            s->from_mean += by_mean * by_mean;
        }
    }
    s->different += differs;
    for (int k = 1; k < n && differs; k++)
        if (sqrt(distance[k] / bb) > s->worst) {
            s->worst = sqrt(distance[k] / bb);
            s->worst_name = p->a->name;
            s->worst_rank = k;
        }
out:
    tt_free(distance);
    return rc;
}

static void name(struct tt_look *look, int n, const struct sums *s, int total)
{
    double by_sum = sqrt(s->from_sum / s->aa), by_mean = sqrt(s->from_mean / s->aa);
    bool is_sum = by_sum <= 2.0 * look->tolerance, is_mean = by_mean <= 2.0 * look->tolerance;
    json_t *evidence = tt_look_add(
        look, "replicas",
        is_sum || is_mean ? "replicas keep their own gradients: they are not reduced over the ranks"
                          : "replicas differ",
        is_sum || is_mean ? "reduce the gradients over the data-parallel ranks before the optimizer uses them"
                          : "check that all replicas get every sum, and start from the same weights");

    (void)json_array_append_new(evidence, json_sprintf("%d of %d gradients are not the same on all %d ranks, most in "
                                                       "%s: rank %d differs from rank 0 by %.2g",
                                                       s->different, total, n,
                                                       s->worst_name ? s->worst_name : "numbers that are not finite",
                                                       s->worst_rank, s->worst));
    if (is_sum || is_mean)
        (void)json_array_append_new(evidence, json_sprintf("the %s of all %d is A, up to %.2g", is_sum ? "sum" : "mean",
                                                           n, is_sum ? by_sum : by_mean));
    for (int i = 0; i < look->n && (is_sum || is_mean); i++)
        look->explained[i] = look->explained[i] || tt_look_is_bad(look, i, false);
}

int tt_copies_compare(struct tt_look *look, const struct tt_dump *replica, int n)
{
    struct sums s = {0};
    int64_t most = BLOCK_ELEMENTS;
    int total = 0, rc = 0;

    for (int i = 0; i < look->n; i++)
        most = look->pair[i].columns > most ? look->pair[i].columns : most;
    s.truth = tt_calloc_for((size_t)most, sizeof *s.truth, "replicas");
    s.first = tt_calloc_for((size_t)most, sizeof *s.first, "replicas");
    s.other = tt_calloc_for((size_t)most, sizeof *s.other, "replicas");
    s.sum = tt_calloc_for((size_t)most, sizeof *s.sum, "replicas");
    TT_TRY(s.truth && s.first && s.other && s.sum ? 0 : TT_ENOMEM);
    for (int i = 0; i < look->n; i++) {
        if (look->pair[i].a->section != TT_SECTION_GRADIENTS || look->pair[i].judgement == TT_SHAPE)
            continue;
        total++;
        TT_TRY(compare_tensor(&look->pair[i], replica, n, &s));
    }
    if (s.different)
        name(look, n, &s, total);
out:
    tt_free(s.truth);
    tt_free(s.first);
    tt_free(s.other);
    tt_free(s.sum);
    return rc;
}
