/* SPDX-License-Identifier: MIT
 *
 * Patterns in the places of elements: the numbers of B are A's, but shards, rows or whole tensors are elsewhere.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/referee/look.h"
#include "core/base/mem.h"

enum { MOST_ELEMENTS = 1 << 28, MOST_BLOCKS = 64 };

/* The kinds of change, in the order in which they are tried. */
enum change { ROTARY, SHARDS, MISSING, FOREIGN, TURNED, ROWS, PARTLY, CHANGES };

static const struct {
    const char *name, *title, *remedy;
} changes[CHANGES] = {
    {"rotary-layout", "rows of queries and keys are in the order of the other rotary layout",
     "convert the rows: Hugging Face pairs row i of a head with row i + half, others row 2i with row 2i + 1"},
    {"shard-order", "shards are in another order", "check which rank holds which shard, and the order of the gather"},
    {"shard-missing", "some shards are zero, the others are right",
     "check that the gradient of every shard is computed and gathered"},
    {"other-tensor", "a tensor holds the gradient of another one", "check the names under which tensors are saved"},
    {"transposed", "a matrix is transposed", "check the conversion of this tensor"},
    {"row-order", "rows are in another order", "check how rows are fused, split and gathered"},
    {"part-wrong", "some shards of a tensor are right, the others are not",
     "check the gradient on the ranks that hold the wrong shards, and the sums that they take part in"},
};

struct found {
    json_t *evidence; /* a text for each tensor */
};

/* --- blocks --- */

/* A cut of a matrix into n equal blocks of rows (dim 0) or columns (dim 1). */
struct cut {
    const struct tt_pair *p;
    int dim, n;
};

static int64_t extent(const struct cut *cut)
{
    return (cut->dim ? cut->p->columns : cut->p->rows) / cut->n;
}

/* Sum of a block over the sums of its rows or columns. */
static double block_sum(const struct cut *cut, int kind, int block)
{
    const double *sum = cut->dim ? cut->p->column[kind] : cut->p->row[kind];
    double total = 0.0;

    for (int64_t i = 0; i < extent(cut); i++)
        total += sum[block * extent(cut) + i];
    return total;
}

/* Relative distance of block i of A and block j of B. */
static double block_distance(const struct cut *cut, const double *a, const double *b, int i, int j)
{
    int64_t columns = cut->p->columns, size = extent(cut), rows = cut->dim ? cut->p->rows : size;
    int64_t width = cut->dim ? size : columns;
    double diff = 0.0, norm = 0.0;

    for (int64_t r = 0; r < rows; r++) {
        const double *x = cut->dim ? a + r * columns + i * size : a + (i * size + r) * columns;
        const double *y = cut->dim ? b + r * columns + j * size : b + (j * size + r) * columns;

        for (int64_t c = 0; c < width; c++) {
            diff += (y[c] - x[c]) * (y[c] - x[c]);
            norm += x[c] * x[c];
        }
    }
    return diff == 0.0 ? 0.0 : sqrt(diff / norm);
}

static bool block_is_right(const struct cut *cut, int block)
{
    double tolerance = cut->p->tolerance;

    return block_sum(cut, TT_SUM_DIFF, block) <= tolerance * tolerance * block_sum(cut, TT_SUM_AA, block);
}

static const char *dimension(const struct cut *cut)
{
    return cut->dim ? "columns" : "rows";
}

/* Which block of A each block of B is; false: some block is none of them, or all are in their places. */
static bool are_blocks_moved(const struct cut *cut, const double *a, const double *b, struct tt_text *order)
{
    bool moved = false;

    for (int j = 0; j < cut->n; j++) {
        double size = block_sum(cut, TT_SUM_BB, j);
        int found = -1;

        for (int i = 0; i < cut->n && found < 0; i++) {
            double other = block_sum(cut, TT_SUM_AA, i);

            if (size > 0.0 && fabs(sqrt(size / other) - 1.0) <= 2.0 * cut->p->tolerance &&
                block_distance(cut, a, b, i, j) <= 2.0 * cut->p->tolerance)
                found = i;
        }
        if (found < 0)
            return false;
        moved = moved || found != j;
        tt_text_add(order, "%s%d", j ? ", " : "", found);
    }
    return moved;
}

/* Whether every wrong block is zero, and some blocks are right. */
static bool are_blocks_missing(const struct cut *cut, int *ret_missing)
{
    int right = 0, missing = 0;

    for (int j = 0; j < cut->n; j++) {
        right += block_is_right(cut, j);
        missing += block_sum(cut, TT_SUM_BB, j) == 0.0 && block_sum(cut, TT_SUM_AA, j) > 0.0;
    }
    *ret_missing = missing;
    return right > 0 && missing > 0 && right + missing == cut->n;
}

/* --- one tensor --- */

static bool is_rotary(const struct tt_pair *p)
{
    return p->role == TT_ROLE_QUERY || p->role == TT_ROLE_KEY ||
           (p->role == TT_ROLE_BIAS && (strstr(p->a->name, "q_proj") || strstr(p->a->name, "k_proj") ||
                                        strstr(p->a->name, ".wq") || strstr(p->a->name, ".wk")));
}

/* The head size for which B is A with its rows in the other layout; 0: none. */
static int64_t other_layout(const struct tt_pair *p, const double *a, const double *b)
{
    enum { HEAD_MOST = 1024 };
    double *turned = tt_calloc_for((size_t)(p->rows * p->columns) + 1, sizeof *turned, p->a->name);

    for (int64_t head = 4; turned && head <= p->rows && head <= HEAD_MOST; head += 2) {
        for (int back = 0; back < 2 && p->rows % head == 0; back++) {
            for (int64_t r = 0; r < p->rows; r++) {
                int64_t in = r % head, half = head / 2;
                int64_t from = back ? in % half * 2 + in / half : in / 2 + in % 2 * half;

                memcpy(turned + r * p->columns, a + (r - in + from) * p->columns, (size_t)p->columns * sizeof *turned);
            }
            if (tt_distance(turned, b, p->rows * p->columns) <= 2.0 * p->tolerance) {
                tt_free(turned);
                return head;
            }
        }
    }
    tt_free(turned);
    return 0;
}

static bool is_transposed(const struct tt_pair *p, const double *a, const double *b)
{
    double diff = 0.0;

    if (p->rows != p->columns || p->a->tensor->ndim != 2)
        return false;
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t c = 0; c < p->columns; c++)
            diff += (a[r * p->columns + c] - b[c * p->rows + r]) * (a[r * p->columns + c] - b[c * p->rows + r]);
    return sqrt(diff) <= 2.0 * p->tolerance * p->norm_a;
}

/* Another tensor of A with B's numbers; NULL: none. */
static int find_other(const struct tt_look *look, const struct tt_pair *p, const struct tt_pair **ret_other)
{
    double *a = NULL, *b = NULL, *x = NULL, *y = NULL;
    int rc = 0;

    *ret_other = NULL;
    for (int i = 0; i < look->n && !*ret_other; i++) {
        const struct tt_pair *q = &look->pair[i];

        if (q == p || q->a->section != p->a->section || q->rows != p->rows || q->columns != p->columns ||
            !(fabs(p->norm_b / q->norm_a - 1.0) <= 2.0 * p->tolerance))
            continue;
        if (!b)
            TT_TRY(tt_pair_read(p, &a, &b));
        TT_TRY(tt_pair_read(q, &x, &y));
        if (tt_distance(x, b, p->rows * p->columns) <= 2.0 * p->tolerance)
            *ret_other = q;
        tt_free(x);
        tt_free(y);
        x = y = NULL;
    }
out:
    tt_free(a);
    tt_free(b);
    tt_free(x);
    tt_free(y);
    return rc;
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Whether A and B have the same norms of rows, in another order. */
static bool are_rows_moved(const struct tt_pair *p)
{
    double *norm[2], diff = 0.0;

    if (p->columns < 2 || p->rows < 4)
        return false;
    for (int k = 0; k < 2; k++) {
        norm[k] = tt_calloc((size_t)p->rows, sizeof(double));
        for (int64_t r = 0; r < p->rows; r++)
            norm[k][r] = sqrt(p->row[k ? TT_SUM_BB : TT_SUM_AA][r]);
        qsort(norm[k], (size_t)p->rows, sizeof(double), compare_numbers);
    }
    for (int64_t r = 0; r < p->rows; r++)
        diff += (norm[0][r] - norm[1][r]) * (norm[0][r] - norm[1][r]);
    tt_free(norm[0]);
    tt_free(norm[1]);
    /* with a coarse type, norms of any rows agree by chance */
    return p->tolerance < 1e-3 && sqrt(diff) <= p->tolerance * p->norm_a;
}

/* Whether a cut makes blocks of which some are right and the others far from it. */
static bool are_blocks_wrong(const struct cut *cut, struct tt_text *which)
{
    int right = 0, far = 0;

    for (int j = 0; j < cut->n; j++) {
        double aa = block_sum(cut, TT_SUM_AA, j), diff = block_sum(cut, TT_SUM_DIFF, j);

        right += block_is_right(cut, j);
        if (aa > 0.0 && diff > 0.01 * aa) {
            tt_text_add(which, "%s%d", far ? ", " : "", j);
            far++;
        }
    }
    return right > 0 && far > 0 && right + far == cut->n;
}

/* Tries the changes of blocks on one tensor. */
static bool find_blocks(const struct tt_pair *p, const double *a, const double *b, bool partly,
                        struct found found[CHANGES])
{
    for (int dim = 0; dim < (p->columns > 1 ? 2 : 1); dim++)
        for (int n = 2; n <= MOST_BLOCKS; n++) {
            struct cut cut = {p, dim, n};
            struct tt_text order = {0};
            bool is_found = false;
            int missing = 0;

            /* blocks of single elements agree by chance */
            if ((dim ? p->columns : p->rows) % n || p->rows * p->columns / n < 4)
                continue;
            if (!partly && are_blocks_missing(&cut, &missing)) {
                (void)json_array_append_new(
                    found[MISSING].evidence,
                    json_sprintf("%s: %d of %d blocks of %s are zero", p->a->name, missing, n, dimension(&cut)));
                is_found = true;
            } else if (!partly && are_blocks_moved(&cut, a, b, &order)) {
                (void)json_array_append_new(
                    found[SHARDS].evidence,
                    json_sprintf("%s: of %d blocks of %s, B's are A's %s", p->a->name, n, dimension(&cut), order.text));
                is_found = true;
            } else if (partly && are_blocks_wrong(&cut, &order)) {
                (void)json_array_append_new(found[PARTLY].evidence,
                                            json_sprintf("%s: of %d blocks of %s, only these are wrong: %s", p->a->name,
                                                         n, dimension(&cut), order.text));
                is_found = true;
            }
            tt_text_release(&order);
            if (is_found)
                return true;
        }
    return false;
}

static int examine(struct tt_look *look, int i, bool partly, struct found found[CHANGES])
{
    struct tt_pair *p = &look->pair[i];
    const struct tt_pair *other = NULL;
    double *a = NULL, *b = NULL;
    int64_t head = 0;
    int rc = 0;

    TT_TRY(tt_pair_read(p, &a, &b));
    if (partly) {
        look->explained[i] =
            p->role != TT_ROLE_EMBEDDING && p->role != TT_ROLE_HEAD && find_blocks(p, a, b, true, found);
        goto out;
    }
    if (is_rotary(p) && (head = other_layout(p, a, b)) > 0) {
        look->explained[i] = true;
        if (p->a->was_titan == p->b->was_titan)
            (void)json_array_append_new(
                found[ROTARY].evidence,
                json_sprintf("%s: B is A in the other layout, with heads of %d rows", p->a->name, (int)head));
        else /* the other name promises the other layout */
            p->judgement = TT_ROUNDING;
        goto out;
    }
    look->explained[i] = find_blocks(p, a, b, false, found);
    if (look->explained[i])
        goto out;
    TT_TRY(find_other(look, p, &other));
    if (other)
        (void)json_array_append_new(found[FOREIGN].evidence,
                                    json_sprintf("%s: B is A's %s", p->a->name, other->a->name));
    else if (is_transposed(p, a, b))
        (void)json_array_append_new(found[TURNED].evidence, json_string(p->a->name));
    else if (are_rows_moved(p))
        (void)json_array_append_new(
            found[ROWS].evidence,
            json_sprintf("%s: the %d rows have the same norms in another order", p->a->name, (int)p->rows));
    else
        goto out;
    look->explained[i] = true;
out:
    tt_free(a);
    tt_free(b);
    return rc;
}

int tt_moves_find(struct tt_look *look, bool partly)
{
    struct found found[CHANGES];
    bool *before = tt_calloc((size_t)look->n + 1, sizeof *before), all = true;
    int rc = 0;

    memcpy(before, look->explained, (size_t)look->n * sizeof *before);
    for (int c = 0; c < CHANGES; c++)
        found[c].evidence = json_array();
    for (int i = 0; i < look->n && rc == 0; i++) {
        const struct tt_pair *p = &look->pair[i];

        if (!tt_look_is_bad(look, i, false) || p->judgement != TT_DIFFERENT || p->norm_b == 0.0)
            continue;
        if (p->rows * p->columns > MOST_ELEMENTS)
            tt_note("%s is too large to look for moved shards in it", p->a->name);
        else
            rc = examine(look, i, partly, found);
    }
    /* of many tensors, some have parts that are right by chance, such as rows of tokens that do not occur */
    for (int i = 0; i < look->n && partly && rc == 0; i++)
        all = all && !tt_look_is_bad(look, i, false);
    for (int c = 0; c < CHANGES; c++) {
        if (json_array_size(found[c].evidence) && all)
            (void)json_array_extend(tt_look_add(look, changes[c].name, changes[c].title, changes[c].remedy),
                                    found[c].evidence);
        json_decref(found[c].evidence);
    }
    if (!all)
        memcpy(look->explained, before, (size_t)look->n * sizeof *before);
    tt_free(before);
    return rc;
}
