/* SPDX-License-Identifier: MIT
 *
 * Which pairs of rows a job rotates, seen from its gradients and weights.
 *
 * The scores of attention do not change if the same pair of rows of a query head and of its key head is turned by the
 * same angle, since rotary positions only turn pairs, too. So the derivative of the loss by this angle is zero: over
 * both matrices, the sum of gradient row i times weight row j minus gradient row j times weight row i, if i and j are
 * the rows of a pair. For rows that are no pair it is not zero. Norms of queries and keys undo this.
 */
#include <math.h>

#include "cli/referee/look.h"
#include "core/base/mem.h"
#include "core/base/text.h"

enum layout { HALVES, NEIGHBOURS, LAYOUTS };
static const char *const layout_names[LAYOUTS] = {"row i with row i + half", "row 2i with row 2i + 1"};

/* The gradient and the weight of the queries (0) and keys (1) of a layer. */
struct matrices {
    double *gradient[2], *weight[2];
    int64_t rows[2], columns;
};

static double turn(const struct matrices *m, int which, int64_t i, int64_t j)
{
    const double *g = m->gradient[which], *w = m->weight[which];
    double sum = 0.0;

    for (int64_t c = 0; c < m->columns; c++)
        sum += g[i * m->columns + c] * w[j * m->columns + c] - g[j * m->columns + c] * w[i * m->columns + c];
    return sum;
}

/* How far the derivatives of all pairs of a layout are from zero, between 0 and 1. */
static double violation(const struct matrices *m, int64_t head, enum layout layout)
{
    int64_t heads = m->rows[1] / head, group = m->rows[0] / m->rows[1];
    double sum = 0.0, size = 0.0;

    for (int64_t h = 0; h < heads; h++)
        for (int64_t p = 0; p < head / 2; p++) {
            int64_t i = layout == HALVES ? p : 2 * p, j = layout == HALVES ? p + head / 2 : 2 * p + 1;
            double key = turn(m, 1, h * head + i, h * head + j), query = 0.0;

            for (int64_t q = h * group; q < (h + 1) * group; q++)
                query += turn(m, 0, q * head + i, q * head + j);
            sum += (query + key) * (query + key);
            size += query * query + key * key;
        }
    return size > 0.0 ? sqrt(sum / size / 2.0) : 1.0;
}

/* The pair of the gradients of queries or keys of a layer; -1: there are none, or several. */
static int find(const struct tt_look *look, int layer, enum tt_role role)
{
    int found = -1;

    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];

        if (p->a->section != TT_SECTION_GRADIENTS || p->layer != layer || p->role != role || p->columns < 2)
            continue;
        if (found >= 0 || p->judgement == TT_SHAPE)
            return -1;
        found = i;
    }
    return found;
}

static int read_weight(const struct tt_look *look, const struct tt_pair *p, double **ret_weight)
{
    const struct tt_dump_tensor *t = tt_dump_find(look->truth, TT_SECTION_WEIGHTS, p->a->name);
    struct tt_box here, there = tt_box_whole(p->a->tensor->ndim, p->a->tensor->shape);
    int rc = 0;

    if (!t)
        t = tt_dump_find(look->dump, TT_SECTION_WEIGHTS, p->a->name);
    if (!t)
        return 0;
    here = tt_box_whole(t->tensor->ndim, t->tensor->shape);
    if (!tt_box_equal(&here, &there))
        return 0;
    *ret_weight = tt_calloc_for((size_t)(p->rows * p->columns) + 1, sizeof **ret_weight, p->a->name);
    TT_TRY(*ret_weight ? 0 : TT_ENOMEM);
    rc = tt_dump_read(t, 0, p->rows, *ret_weight);
out:
    return rc;
}

static void release(struct matrices *a, struct matrices *b)
{
    for (int k = 0; k < 2; k++) {
        tt_free(a->gradient[k]);
        tt_free(b->gradient[k]);
        tt_free(a->weight[k]); /* both have the same */
    }
    *a = *b = (struct matrices){.columns = 0};
}

/* Reads the matrices of a layer; without weights, weight[0] or weight[1] stays NULL. */
static int read_pair(const struct tt_look *look, const int pair[2], struct matrices *a, struct matrices *b)
{
    int rc = 0;

    for (int k = 0; k < 2; k++) {
        const struct tt_pair *p = &look->pair[pair[k]];

        TT_TRY(tt_pair_read(p, &a->gradient[k], &b->gradient[k]));
        TT_TRY(read_weight(look, p, &a->weight[k]));
        b->weight[k] = a->weight[k];
        a->rows[k] = b->rows[k] = p->rows;
        a->columns = b->columns = p->columns;
    }
out:
    return rc;
}

/* The head size, up to half the rows of keys or all of them, with which A's pairs fit one layout best; 0: none. */
static int64_t head_of(const struct matrices *a, enum layout *ret_layout)
{
    enum { HEAD_MOST = 512 };
    int64_t best = 0;
    double least = 0.1;

    for (int64_t head = 4; head <= a->rows[1] && head <= HEAD_MOST; head += 2)
        for (int layout = 0; layout < LAYOUTS && a->rows[1] % head == 0 && a->rows[0] % a->rows[1] == 0; layout++) {
            double found = violation(a, head, (enum layout)layout);

            if (found < 0.5 * least) {
                least = found;
                best = head;
                *ret_layout = (enum layout)layout;
            }
        }
    return best;
}

int tt_rotary_find(struct tt_look *look)
{
    struct matrices a = {.columns = 0}, b = {.columns = 0};
    double own = 0.0, other = 0.0, truth = 0.0;
    enum layout layout = HALVES;
    int layers = 0, rc = 0;
    int64_t head = 0;

    for (int layer = 0; layer < look->layers; layer++) {
        int pair[2] = {find(look, layer, TT_ROLE_QUERY), find(look, layer, TT_ROLE_KEY)};

        if (pair[0] < 0 || pair[1] < 0)
            continue;
        TT_TRY(read_pair(look, pair, &a, &b));
        if (a.weight[0] && a.weight[1] && a.rows[1] > 0) {
            head = head ? head : head_of(&a, &layout);
            if (head == 0)
                goto out;
            truth += violation(&a, head, layout);
            own += violation(&b, head, layout);
            other += violation(&b, head, (enum layout)(1 - (int)layout));
            layers++;
        }
        release(&a, &b);
    }
    if (layers && other < 0.25 * own && truth < 0.25 * own) {
        json_t *evidence = tt_look_add(
            look, "rotary-layout", "queries and keys are rotated in the other rotary layout",
            "weights and rotary code must use one layout, halves (Hugging Face) or pairs: convert the weights");

        tt_look_say(
            evidence,
            "B rotates %s, of heads of %d rows: to turn these rows of queries and keys together does not change "
            "its loss (%.2g; for the other pairs %.2g)",
            layout_names[1 - (int)layout], (int)head, other / layers, own / layers);
        tt_look_say(evidence, "A rotates %s (%.2g)", layout_names[layout], truth / layers);
        tt_look_explain(look);
    }
out:
    release(&a, &b);
    return rc;
}
