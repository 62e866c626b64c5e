/* SPDX-License-Identifier: MIT
 *
 * Patterns in the rows of the embedding and of the output matrix, each of which belongs to a token: labels that are not
 * the truth's, and tokens that the job did not see.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cli/referee/look.h"
#include "core/base/mem.h"

static bool has_role(const struct tt_look *look, enum tt_role role)
{
    for (int i = 0; i < look->n; i++)
        if (look->pair[i].a->section == TT_SECTION_GRADIENTS && look->pair[i].role == role)
            return true;
    return false;
}

/* The pair of the output matrix, or of the tied embedding; -1: none. */
static int output_of(const struct tt_look *look)
{
    int found = -1;

    for (int i = 0; i < look->n; i++)
        if (look->pair[i].a->section == TT_SECTION_GRADIENTS && look->pair[i].judgement == TT_DIFFERENT &&
            look->pair[i].columns > 1 &&
            (look->pair[i].role == TT_ROLE_HEAD ||
             (look->pair[i].role == TT_ROLE_EMBEDDING && !has_role(look, TT_ROLE_HEAD))))
            found = i;
    return found;
}

/* The relative error of the rows of a set, or outside it. NaN: there are none. */
static double error_of_rows(const struct tt_pair *p, const bool *set, bool inside)
{
    double aa = 0.0, diff = 0.0;

    for (int64_t r = 0; r < p->rows; r++)
        if (set[r] == inside) {
            aa += p->row[TT_SUM_AA][r];
            diff += p->row[TT_SUM_DIFF][r];
        }
    return sqrt(diff / aa);
}

static const struct tt_dump_ids *ids_of(const struct tt_look *look, bool labels)
{
    const struct tt_dump_ids *ids = labels ? &look->truth->labels : &look->truth->inputs;

    if (!ids->id)
        ids = labels ? &look->dump->labels : &look->dump->inputs;
    return ids->id ? ids : NULL;
}

/* Marks the tokens of a matrix. */
static void mark(const struct tt_dump_ids *ids, int64_t rows, bool *set)
{
    for (int64_t i = 0; ids && i < ids->rows * ids->columns; i++)
        if (ids->id[i] >= 0 && ids->id[i] < rows)
            set[ids->id[i]] = true;
}

/* The label at a place, if all labels were shifted. */
static int64_t shifted(const struct tt_dump_ids *labels, const struct tt_dump_ids *inputs, int shift, int64_t row,
                       int64_t column)
{
    int64_t at = column + shift;

    if (at >= labels->columns)
        return -1;
    if (at < 0)
        return inputs ? inputs->id[row * inputs->columns + column] : -1;
    return labels->id[row * labels->columns + at];
}

/* Adds the sums of the rows of a set, or of those outside it. */
static void add_rows(const struct tt_pair *p, const bool *set, bool inside, double sum[TT_SUM_DIFF])
{
    for (int64_t r = 0; r < p->rows; r++)
        for (int k = 0; k < TT_SUM_DIFF && set[r] == inside; k++)
            sum[k] += p->row[k][r];
}

/* The error of rows after B was divided by a factor. */
static double error_by(const double sum[TT_SUM_DIFF], double factor)
{
    double diff = sum[TT_SUM_BB] / factor / factor - 2.0 * sum[TT_SUM_AB] / factor + sum[TT_SUM_AA];

    return sqrt(fmax(diff, 0.0) / sum[TT_SUM_AA]);
}

/*
 * Labels that are ignored were counted. Then B divides by more labels, which scales all rows, and differs otherwise
 * only in the rows of the tokens that it takes for these labels: one token, or the tokens that follow in the input.
 */
static int find_ignored(struct tt_look *look)
{
    const struct tt_dump_ids *labels = ids_of(look, true), *inputs = ids_of(look, false);
    int output = output_of(look);
    const struct tt_pair *p = output < 0 ? NULL : &look->pair[output];
    double in[TT_SUM_DIFF] = {0.0}, out[TT_SUM_DIFF] = {0.0}, factor, most = 0.0, diff = 0.0;
    int64_t ignored = 0, row = -1;
    json_t *evidence = NULL;
    bool *next;

    if (!p || !labels || !tt_look_is_bad(look, output, false))
        return 0;
    next = tt_calloc((size_t)p->rows + 1, sizeof *next);
    for (int64_t i = 0; i < labels->rows * labels->columns; i++) {
        int64_t id = inputs && (i + 1) % labels->columns ? inputs->id[i + 1] : -1;

        ignored += labels->id[i] < 0;
        if (labels->id[i] < 0 && id >= 0 && id < p->rows)
            next[id] = true;
    }
    for (int64_t r = 0; r < p->rows; r++) {
        diff += p->row[TT_SUM_DIFF][r];
        if (p->row[TT_SUM_DIFF][r] > most) {
            most = p->row[TT_SUM_DIFF][r];
            row = r;
        }
    }
    add_rows(p, next, true, in);
    add_rows(p, next, false, out);
    factor = out[TT_SUM_AB] / out[TT_SUM_AA];
    if (ignored && most > 0.5 * diff) {
        evidence = tt_look_add(look, "ignored-labels", "tokens whose labels are ignored count in the loss",
                               "pass the ignored label, often -100, to the loss, and divide by the others");
        tt_look_say(evidence,
                    "%.0f %% of the difference in %s is in one row, %" PRId64 ": ignored labels count as this token",
                    100.0 * most / diff, p->a->name, row);
    } else if (ignored && error_by(out, factor) < 0.5 && error_by(in, factor) > 1.8 * error_by(out, factor)) {
        evidence = tt_look_add(look, "ignored-labels", "tokens whose labels are ignored count in the loss",
                               "pass the ignored label, often -100, to the loss, and divide by the others");
        tt_look_say(evidence,
                    "in %s, the rows of tokens that follow ignored labels differ by %.2g, the others by %.2g, after a "
                    "common factor of %.3g",
                    p->a->name, error_by(in, factor), error_by(out, factor), factor);
    }
    if (evidence) {
        tt_look_say(evidence, "%" PRId64 " of %" PRId64 " labels are ignored", ignored, labels->rows * labels->columns);
        tt_look_explain(look);
    }
    tt_free(next);
    return 0;
}

/* The error of the rows whose labels stay the same if all labels are shifted. */
static double error_if_shifted(const struct tt_look *look, const struct tt_pair *p, int shift)
{
    const struct tt_dump_ids *labels = ids_of(look, true), *inputs = ids_of(look, false);
    bool *moved = tt_calloc((size_t)p->rows + 1, sizeof *moved);
    double error;

    for (int64_t i = 0; i < labels->rows * labels->columns; i++) {
        int64_t old = labels->id[i], new = shifted(labels, inputs, shift, i / labels->columns, i % labels->columns);

        if (old == new)
            continue;
        if (old >= 0 && old < p->rows)
            moved[old] = true;
        if (new >= 0 && new < p->rows)
            moved[new] = true;
    }
    error = error_of_rows(p, moved, false);
    tt_free(moved);
    return error;
}

/*
 * The forward pass is right, but the labels are not. The gradient of the output matrix is (probability - label) times
 * the hidden state, so in rows of tokens that are no label, in A or B, only the probabilities count.
 */
static int find_labels(struct tt_look *look)
{
    const struct tt_dump_ids *labels = ids_of(look, true), *inputs = ids_of(look, false);
    int output = output_of(look), best = 0;
    const struct tt_pair *p = output < 0 ? NULL : &look->pair[output];
    double in, out, error, lowest = INFINITY;
    bool *used;

    if (!p || !labels || !tt_look_is_bad(look, output, false))
        return 0;
    used = tt_calloc((size_t)p->rows + 1, sizeof *used);
    mark(labels, p->rows, used);
    mark(inputs, p->rows, used); /* the tied embedding, and labels before the first */
    in = error_of_rows(p, used, true);
    out = error_of_rows(p, used, false);
    if (in > 4.0 * out && out < 0.5) {
        json_t *evidence;

        for (int shift = -1; shift <= 1; shift += 2) {
            error = error_if_shifted(look, p, shift);
            if (error < lowest && error <= 2.0 * out) {
                lowest = error;
                best = shift;
            }
        }
        evidence = tt_look_add(look, "labels", best ? "labels are shifted by one token" : "labels are other tokens",
                               "the label of a token is the next token: shift once, in the data or in the model");
        tt_look_say(
            evidence,
            "in %s, rows of tokens that are no label differ by %.2g only, the others by %.2g: the probabilities are "
            "right, the labels are not",
            p->a->name, out, in);
        if (best)
            tt_look_say(evidence, "the rows that differ are those whose labels change if %s",
                        best < 0 ? "the label of each token is the token itself" : "labels are shifted twice");
        tt_look_explain(look);
    }
    tt_free(used);
    return 0;
}

/*
 * The rows of the embedding that are zero only in B belong to tokens that B did not see. If these are the tokens of
 * some sequences, the sum over data-parallel ranks or microbatches is missing; if they stand at some places of all
 * sequences, that over context-parallel ranks.
 */
static bool are_seen(const struct tt_dump_ids *inputs, const struct tt_pair *p, bool by_row, int64_t *ret_whole)
{
    int64_t lines = by_row ? inputs->rows : inputs->columns, whole = 0;
    bool *seen = tt_calloc((size_t)p->rows + 1, sizeof *seen), all = true;

    for (int64_t line = 0; line < lines; line++) {
        bool full = true;

        for (int pass = 0; pass < 2 && full; pass++) {
            for (int64_t k = 0; k < (by_row ? inputs->columns : inputs->rows); k++) {
                int64_t id = inputs->id[by_row ? line * inputs->columns + k : k * inputs->columns + line];

                if (id < 0 || id >= p->rows)
                    continue;
                full = full && p->row[TT_SUM_BB][id] > 0.0;
                seen[id] = seen[id] || pass;
            }
        }
        whole += full;
    }
    for (int64_t r = 0; r < p->rows; r++)
        all = all && (seen[r] || p->row[TT_SUM_BB][r] == 0.0);
    tt_free(seen);
    *ret_whole = whole;
    return whole > 0 && whole < lines && all;
}

/* Rows of tokens that only B saw. */
static int64_t count_foreign(const struct tt_pair *p)
{
    int64_t n = 0;

    for (int64_t r = 0; r < p->rows; r++)
        n += p->row[TT_SUM_AA][r] == 0.0 && p->row[TT_SUM_BB][r] > 0.0;
    return n;
}

static int find_unseen(struct tt_look *look)
{
    const struct tt_dump_ids *inputs = ids_of(look, false);

    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];
        int64_t used = 0, zero = 0, whole = 0;
        bool by_row, by_column;
        json_t *evidence;

        if (!tt_look_is_bad(look, i, false) || p->role != TT_ROLE_EMBEDDING || p->judgement != TT_DIFFERENT)
            continue;
        used = count_foreign(p);
        if (used > 0) {
            evidence = tt_look_add(look, "other-tokens", "the job was given other tokens than the reference",
                                   "compare the batches: order of the data, seeds, and which rank reads which part");
            tt_look_say(evidence, "%" PRId64 " rows of %s are zero in A and not in B: A did not see these tokens", used,
                        p->a->name);
            tt_look_explain(look);
            return 0;
        }
        used = 0;
        for (int64_t r = 0; r < p->rows; r++) {
            used += p->row[TT_SUM_AA][r] > 0.0;
            zero += p->row[TT_SUM_AA][r] > 0.0 && p->row[TT_SUM_BB][r] == 0.0;
        }
        if (zero == 0)
            continue;
        by_row = inputs && are_seen(inputs, p, true, &whole);
        by_column = inputs && !by_row && are_seen(inputs, p, false, &whole) && 4 * whole <= 3 * inputs->columns;
        if (by_column)
            evidence = tt_look_add(look, "cp-sum", "the sum of gradients over context-parallel ranks is missing",
                                   "reduce gradients over the context-parallel ranks, too");
        else
            evidence = tt_look_add(look, "dp-sum",
                                   "gradients come from a part of the batch: the sum over data-parallel ranks or "
                                   "microbatches is missing",
                                   "check the reduction over ranks, and that later microbatches add their gradients");
        tt_look_say(evidence,
                    "%" PRId64 " of the %" PRId64 " rows of %s that A has are zero in B: B did not see these tokens",
                    zero, used, p->a->name);
        if (by_row)
            tt_look_say(evidence, "B's tokens are exactly those of %" PRId64 " of the %" PRId64 " sequences", whole,
                        inputs->rows);
        if (by_column)
            tt_look_say(evidence, "B's tokens are exactly those of %" PRId64 " of the %" PRId64 " places in sequences",
                        whole, inputs->columns);
        tt_look_say(evidence, "A is nearest to %.2f times B (1 for a sum that lacks terms)", tt_look_part(look));
        tt_look_explain(look);
        return 0;
    }
    return 0;
}

int tt_tokens_find(struct tt_look *look)
{
    int rc = find_ignored(look);

    if (rc == 0)
        rc = find_labels(look);
    return rc < 0 ? rc : find_unseen(look);
}
