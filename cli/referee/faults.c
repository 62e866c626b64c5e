/* SPDX-License-Identifier: MIT
 *
 * The faults of parallel training that gradients show. Each function looks for one of them in the pairs that no earlier
 * one has explained, and names it only with its evidence.
 *
 * To add a pattern:
 *   1. A function find_NAME, here, in moves.c or in tokens.c, and its place in tt_faults_find: special patterns come
 *      before general ones.
 *   2. A fault in tests/interop/train_with_faults.py, and its name in the list there.
 *   3. Its line in docs/reference.md.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/referee/look.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/config/config.h"

/* GEMMs in double may be wrong by this relative error where large terms cancel. */
static const double least = 3e-8;

/* --- sets of pairs --- */

static bool is_gradient(const struct tt_look *look, int i)
{
    return look->pair[i].a->section == TT_SECTION_GRADIENTS;
}

static bool is_bad(const struct tt_look *look, int i)
{
    return tt_look_is_bad(look, i, false);
}

static int count_bad(const struct tt_look *look)
{
    int n = 0;

    for (int i = 0; i < look->n; i++)
        n += is_bad(look, i);
    return n;
}

/* Whether A's gradient is large enough to say something about B's. */
static bool is_large(const struct tt_pair *p)
{
    return p->judgement != TT_SHAPE && p->norm_a > 0.0 && p->scale <= p->norm_a * (1.0 + least);
}

/* The first names of a set, for a text: "a, b, c and 9 more". */
static void add_names(const struct tt_look *look, const bool *set, struct tt_text *text)
{
    enum { SHOWN = 3 };
    int n = 0;

    for (int i = 0; i < look->n; i++)
        if (set[i] && n++ < SHOWN)
            tt_text_add(text, "%s%s", n > 1 ? ", " : "", look->pair[i].a->name);
    if (n > SHOWN)
        tt_text_add(text, " and %d more", n - SHOWN);
}

/* A known degree of the judged job, or else of the truth's record; 0: not known. */
static int64_t degree(const struct tt_look *look, const char *name)
{
    int64_t own = tt_dump_degree(look->dump, name);

    return own ? own : tt_dump_degree(look->truth, name);
}

/* --- not finite, no gradient --- */

static int find_not_finite(struct tt_look *look)
{
    int n = 0, last = -1, total = 0;
    json_t *evidence;

    for (int i = 0; i < look->n; i++) {
        total += is_gradient(look, i);
        if (!is_gradient(look, i) || look->pair[i].judgement != TT_NOT_FINITE)
            continue;
        n++;
        look->explained[i] = true;
        if (last < 0 || look->pair[i].order > look->pair[last].order)
            last = i;
    }
    if (n == 0)
        return 0;
    evidence = tt_look_add(look, "not-finite", "gradients are not finite",
                           "look for the first module, in backward order, that makes them; check the loss scale");
    tt_look_say(evidence, "NaN or infinity in %d of %d gradients; the first in backward order is %s", n, total,
                look->pair[last].a->name);
    if (n > total / 2)
        tt_look_explain(look);
    return 0;
}

static int find_none(struct tt_look *look)
{
    bool *set = tt_calloc((size_t)look->n + 1, sizeof *set);
    struct tt_text names = {0};
    bool any = false;

    for (int i = 0; i < look->n; i++) {
        set[i] = is_bad(look, i) && look->pair[i].norm_b == 0.0 && look->pair[i].judgement == TT_DIFFERENT;
        any = any || set[i];
        look->explained[i] = look->explained[i] || set[i];
    }
    if (any) {
        add_names(look, set, &names);
        tt_look_say(tt_look_add(look, "no-gradient", "parameters get no gradient",
                                "check that they are used, not frozen, and that the dump is made after backward"),
                    "B is zero, and A is not, in %s", names.text);
    }
    tt_text_release(&names);
    tt_free(set);
    return 0;
}

/* --- a common factor --- */

struct cause {
    const char *name, *title, *remedy;
};

static const struct cause causes[] = {
    {"factor-dp", "not divided by the data-parallel degree",
     "divide by the number of data-parallel ranks once: in the loss, in the reduction, or in FSDP's divide factor"},
    {"factor-dp", "divided by the data-parallel degree once too often",
     "divide by the number of data-parallel ranks once: in the loss, in the reduction, or in FSDP's divide factor"},
    {"factor-accumulation", "not divided by the number of microbatches",
     "divide the loss of each microbatch by their number, or by the tokens of the whole step"},
    {"factor-accumulation", "divided by the number of microbatches once too often",
     "divide the loss of each microbatch by their number, or by the tokens of the whole step, but not by both"},
    {"factor-tp", "multiplied by the tensor-parallel degree",
     "a loss or gradient that is the same on all tensor-parallel ranks must not be added over them"},
    {"factor-tp", "divided by the tensor-parallel degree",
     "a gradient that each tensor-parallel rank computes in full must not be averaged over them"},
    {"factor-cp", "multiplied by the context-parallel degree",
     "count context-parallel ranks as parts of one sequence in the divisor of the loss"},
    {"factor-cp", "divided by the context-parallel degree",
     "count context-parallel ranks as parts of one sequence in the divisor of the loss"},
    {"factor-experts", "multiplied by the expert-parallel degree",
     "experts are reduced over fewer ranks than the rest; their divisor must be the same"},
    {"factor-experts", "divided by the expert-parallel degree",
     "experts are reduced over fewer ranks than the rest; their divisor must be the same"},
    {"factor-tokens", "a sum over tokens, not their mean", "divide the loss by the number of valid tokens"},
    {"factor-tokens", "divided by the number of tokens twice", "divide the loss by the number of valid tokens once"},
};

static const char *const degrees[] = {"dp", "accumulation", "tp", "cp", "ep"};

static bool is_near(double factor, double wanted, double tolerance)
{
    return fabs(factor / wanted - 1.0) <= tolerance;
}

/* The numbers of valid and of all labels; false: not known. */
static bool labels_of(const struct tt_look *look, int64_t *ret_valid, int64_t *ret_all)
{
    const struct tt_dump_ids *ids = look->truth->labels.id ? &look->truth->labels : &look->dump->labels;

    *ret_valid = 0;
    *ret_all = ids->id ? ids->rows * ids->columns : 0;
    for (int64_t i = 0; i < *ret_all; i++)
        *ret_valid += ids->id[i] >= 0;
    return *ret_all > 0;
}

/* The norm of B's gradients. */
static double total_norm(const struct tt_look *look, int sum)
{
    double total = 0.0;

    for (int i = 0; i < look->n; i++)
        if (is_gradient(look, i) && look->pair[i].row[sum])
            for (int64_t r = 0; r < look->pair[i].rows; r++)
                total += look->pair[i].row[sum][r];
    return sqrt(total);
}

/* Whether B's total norm is that of clipped gradients; *ret_limit gets max_norm. */
static bool is_clipped(const struct tt_look *look, double factor, double *ret_limit)
{
    static const double usual[] = {1.0, 0.5, 0.1, 0.25, 2.0, 5.0, 10.0};
    const json_t *config = json_object_get(look->dump->about, "config");
    double norm = total_norm(look, TT_SUM_BB);
    double stated = json_number_value(json_object_get(json_object_get(config, "training"), "max_norm"));

    if (factor >= 1.0)
        return false;
    for (int i = -1; i < (int)(sizeof usual / sizeof usual[0]); i++) {
        *ret_limit = i < 0 ? stated : usual[i];
        if (*ret_limit > 0.0 && is_near(norm, *ret_limit, 2e-4))
            return true;
    }
    return false;
}

/* Which gradients have a factor in common. */
enum scope { ALL, SOME, VECTORS, EXPERTS };

/* Appends the evidence for a factor that some degrees explain, and returns their row; NULL: none does. */
static const struct cause *cause_of(const struct tt_look *look, double factor, enum scope scope, double tolerance,
                                    struct tt_text *evidence)
{
    /* the degree that is tried first: experts depend on ep; norms and biases are copies on the ranks of tp */
    static const int first[] = {[ALL] = 0, [SOME] = 0, [VECTORS] = 2, [EXPERTS] = 4};
    const json_t *record = tt_dump_record(look->truth) ? tt_dump_record(look->truth) : tt_dump_record(look->dump);
    double tokens = json_number_value(json_object_get(record, "tokens"));
    int64_t valid = 0, all = 0;

    if (labels_of(look, &valid, &all) && tokens <= 0.0)
        tokens = (double)valid;
    for (int k = first[scope], tried = 0; tried < 5; k = (k + 1) % 5, tried++) {
        double d = (double)degree(look, degrees[k]);

        if (k == 4 && scope != EXPERTS)
            continue;
        if (d > 1.0 && (is_near(factor, d, tolerance) || is_near(factor, 1.0 / d, tolerance))) {
            tt_text_add(evidence, "the degree %s is %.0f", degrees[k], d);
            return &causes[2 * k + (factor < 1.0)];
        }
    }
    if (tokens > 1.0 && (is_near(factor, tokens, tolerance) || is_near(factor, 1.0 / tokens, tolerance))) {
        tt_text_add(evidence, "the step has %.0f tokens", tokens);
        return &causes[10 + (factor < 1.0)];
    }
    return NULL;
}

/* Adds the pattern of a factor that gradients have in common; `where` says which ones, for the text. */
static void name_factor(struct tt_look *look, double factor, double tolerance, enum scope scope, const char *where)
{
    struct tt_text text = {0}, title = {0};
    int64_t valid = 0, labels = 0;
    double whole = factor < 1.0 ? 1.0 / factor : factor, limit = 0.0;
    const struct cause *cause = NULL;
    json_t *evidence;

    if (scope == ALL && is_clipped(look, factor, &limit)) {
        evidence = tt_look_add(look, "clipping", "gradients were clipped before they were saved",
                               "save gradients before clipping, or compare with a clipped reference");
        tt_look_say(evidence, "all gradients of B are A's times %.6g, and their total norm is %.6g", factor,
                    total_norm(look, TT_SUM_BB));
        goto out;
    }
    if (scope == ALL && labels_of(look, &valid, &labels) && valid < labels &&
        is_near(factor, (double)valid / (double)labels, fmin(tolerance, 0.25 * (1.0 - factor)))) {
        evidence = tt_look_add(look, "ignored-labels", "the mean counts tokens whose labels are ignored",
                               "divide the loss by the number of labels that are not ignored");
        tt_look_say(evidence, "all gradients of B are A's times %.6g; %" PRId64 " of %" PRId64 " labels are valid",
                    factor, valid, labels);
        goto out;
    }
    if (factor < 0.0) {
        evidence = tt_look_add(look, "factor-sign", "the sign of gradients is reversed", "check the sign of the loss");
        tt_look_say(evidence, "B is A times %.6g in %s", factor, where);
        goto out;
    }
    cause = cause_of(look, factor, scope, tolerance, &text);
    if (cause) {
        tt_text_add(&title, "%s: %s", where, cause->title);
        evidence = tt_look_add(look, cause->name, title.text, cause->remedy);
        tt_look_say(evidence, "B is A times %.6g in %s; %s", factor, where, text.text);
    } else if (factor > 200.0 && is_near(factor, exp2(nearbyint(log2(factor))), fmin(tolerance, 0.01))) {
        evidence = tt_look_add(look, "loss-scale", "gradients still contain the loss scale",
                               "unscale gradients before saving them");
        tt_look_say(evidence, "B is A times %.6g, a power of two, in %s", factor, where);
    } else {
        tt_text_add(&title, "%s: a common factor", where);
        evidence =
            tt_look_add(look, scope == EXPERTS ? "factor-experts" : "factor", title.text,
                        scope == EXPERTS
                            ? "experts are reduced over fewer ranks than the rest; their divisor must be the same"
                            : "state the job's degrees as \"mesh\" in reference.json, so that the factor can be named");
        tt_look_say(evidence, "B is A times %.6g in %s", factor, where);
        if (whole < 4096.0 && is_near(whole, nearbyint(whole), fmin(tolerance, 0.02)))
            tt_look_say(evidence, "%.0f may be the data-parallel degree, the number of microbatches, or another degree",
                        nearbyint(whole));
    }
out:
    tt_text_release(&text);
    tt_text_release(&title);
}

/* "gradients", or the roles of those in a set: "gradients (norm, bias)". */
static void add_scope(const struct tt_look *look, const bool *set, bool all, struct tt_text *text)
{
    bool used[TT_ROLE_DOWN + 1] = {false};
    int n = 0;

    tt_text_add(text, "%s", all ? "all gradients" : "gradients");
    for (int i = 0; i < look->n && !all; i++)
        if (set[i] && !used[look->pair[i].role]) {
            used[look->pair[i].role] = true;
            tt_text_add(text, "%s%s", n++ ? ", " : " (", tt_role_name(look->pair[i].role));
        }
    if (n)
        tt_text_add(text, ")");
}

/* Marks the bad gradients that are A's times one factor, that of the one which is largest, weighted by size. */
static int mark_collinear(const struct tt_look *look, bool *set, double *ret_factor)
{
    double dot = 0.0, aa = 0.0, largest = 0.0, rest = 0.0, factor = 0.0;
    int n = 0;

    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];

        set[i] = is_bad(look, i) && p->judgement == TT_DIFFERENT && is_large(p) && p->dot != 0.0;
        if (!set[i])
            continue;
        (void)tt_pair_factor(p, &rest);
        set[i] = rest <= fmax(2.0 * p->tolerance, least);
        if (set[i] && p->norm_a > largest) {
            largest = p->norm_a;
            factor = tt_pair_factor(p, &rest);
        }
    }
    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];

        set[i] = set[i] && is_near(tt_pair_factor(p, &rest), factor, fmax(2.0 * p->tolerance, least));
        if (!set[i])
            continue;
        n++;
        dot += p->dot;
        aa += p->norm_a * p->norm_a;
    }
    *ret_factor = n ? dot / aa : 1.0;
    return n;
}

static int find_factor(struct tt_look *look)
{
    bool *set = tt_calloc((size_t)look->n + 1, sizeof *set), experts = true, vectors = true;
    int bad = count_bad(look), large = 0, right = 0, n;
    double factor = 1.0, tolerance = fmax(look->tolerance, least);
    struct tt_text scope = {0};

    n = mark_collinear(look, set, &factor);
    for (int i = 0; i < look->n; i++) {
        large += is_gradient(look, i) && is_large(&look->pair[i]);
        right += is_gradient(look, i) && is_large(&look->pair[i]) && look->pair[i].judgement < TT_DIFFERENT;
        experts = experts && (!set[i] || look->pair[i].role == TT_ROLE_EXPERT);
        vectors = vectors && (!set[i] || look->pair[i].columns == 1);
    }
    /* a factor of some tensors counts if all others are right; otherwise most tensors must have it */
    if (n > 0 && fabs(factor - 1.0) > tolerance && (n >= bad || (2 * n > large && right == 0))) {
        bool all = 2 * n > large && right == 0;

        add_scope(look, set, all, &scope);
        name_factor(look, factor, tolerance,
                    all && n == large ? ALL
                    : all             ? SOME
                    : experts         ? EXPERTS
                    : vectors         ? VECTORS
                                      : SOME,
                    scope.text);
        for (int i = 0; i < look->n; i++) {
            if (!all)
                look->explained[i] = look->explained[i] || set[i];
            else if (is_gradient(look, i) && look->pair[i].judgement == TT_DIFFERENT)
                tt_pair_divide(&look->pair[i], factor);
        }
        for (int i = 0; i < look->n && all; i++) {
            struct tt_pair *p = &look->pair[i];

            /* what is right after the division is explained; the other patterns see the rest */
            if (is_bad(look, i) && p->judgement == TT_DIFFERENT &&
                p->norm_diff <= fmax(2.0 * p->tolerance, least) * p->scale)
                look->explained[i] = true;
        }
    }
    tt_text_release(&scope);
    tt_free(set);
    return 0;
}

/* A second factor, such as that of experts, after the common one was divided out. */
static int find_second_factor(struct tt_look *look)
{
    return json_array_size(look->patterns) && count_bad(look) ? find_factor(look) : 0;
}

static int find_layout(struct tt_look *look)
{
    return tt_moves_find(look, false);
}

static int find_part(struct tt_look *look)
{
    return tt_moves_find(look, true);
}

/* --- rounding of a coarser type --- */

static int find_precision(struct tt_look *look)
{
    static const char *const names[] = {"tfloat32", "bfloat16"};
    double unit = 0.0, worst = 0.0, tolerance = 0.0;
    int bad = 0, total = 0;

    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];

        total += is_gradient(look, i);
        if (!is_bad(look, i))
            continue;
        bad++;
        worst = fmax(worst, p->judgement == TT_DIFFERENT ? p->norm_diff / p->scale : (double)INFINITY);
    }
    for (int k = 0; k < 2 && bad > 0 && 5 * bad >= 4 * total; k++) {
        if (tt_unit_of(names[k], &unit) < 0 || unit <= look->unit)
            continue;
        tolerance = tt_look_tolerance(unit, look->sum_unit, look->terms, look->layers);
        /* a smaller difference is too small for rounding in this type */
        if (worst <= tolerance && worst > tolerance / 30.0) {
            json_t *evidence = tt_look_add(look, "precision", "B was computed in a coarser type than stated",
                                           "if that is intended, state it: --dtype bfloat16, or \"dtype\" in "
                                           "reference.json; otherwise check autocast and matmul precision");

            tt_look_say(evidence, "%d of %d gradients differ, all of them, and at most by %.2g: %s explains %.2g", bad,
                        total, worst, names[k], tolerance);
            tt_look_explain(look);
            return 0;
        }
    }
    return 0;
}

/* --- single kinds of parameters --- */

/* Counts the bad gradients, and the ones among them whose role is in the set. */
static int count_roles(const struct tt_look *look, unsigned roles, int *ret_bad)
{
    int n = 0;

    *ret_bad = 0;
    for (int i = 0; i < look->n; i++)
        if (is_bad(look, i)) {
            (*ret_bad)++;
            n += (roles >> look->pair[i].role & 1U) != 0;
        }
    return n;
}

/* Only the embedding differs: it is also the output matrix, and gets a gradient from each use. */
static int find_tied(struct tt_look *look)
{
    int bad = 0, n = count_roles(look, 1U << TT_ROLE_EMBEDDING | 1U << TT_ROLE_HEAD, &bad);

    if (n != 1 || bad != 1)
        return 0;
    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];
        int64_t zero = 0, right = 0, used = 0;
        json_t *evidence;

        if (!is_bad(look, i) || p->judgement != TT_DIFFERENT)
            continue;
        for (int64_t r = 0; r < p->rows; r++) {
            used += p->row[TT_SUM_AA][r] > 0.0;
            zero += p->row[TT_SUM_AA][r] > 0.0 && p->row[TT_SUM_BB][r] == 0.0;
            right += p->row[TT_SUM_AA][r] > 0.0 &&
                     p->row[TT_SUM_DIFF][r] <= 4.0 * p->tolerance * p->tolerance * p->row[TT_SUM_AA][r];
        }
        if (zero == 0 && right == 0)
            continue;
        evidence = tt_look_add(look, "tied",
                               zero ? "the tied embedding lacks the gradient of the output matrix"
                                    : "the tied embedding lacks the gradient of its lookup",
                               "add both gradients of the shared weight; with pipelines, reduce it between the first "
                               "and the last stage");
        tt_look_say(evidence, "all other gradients are right");
        if (zero)
            tt_look_say(evidence,
                        "B is zero in %" PRId64 " of %" PRId64 " rows of %s: those of tokens that are not in the "
                        "input, whose gradient comes from the output alone",
                        zero, used, p->a->name);
        else
            tt_look_say(evidence,
                        "%" PRId64 " of %" PRId64 " rows of %s are right: those of tokens that are not in the "
                        "input; the others lack what the lookup adds",
                        right, used, p->a->name);
        look->explained[i] = true;
    }
    return 0;
}

/* Only vectors differ, or small matrices that all ranks have: each rank has added its own part of the tokens. */
static int find_vectors(struct tt_look *look)
{
    unsigned roles = 1U << TT_ROLE_NORM | 1U << TT_ROLE_BIAS;
    int bad = 0, n = count_roles(look, roles, &bad);
    struct tt_text names = {0};
    bool *set;

    if (bad == 0 || n < bad)
        return 0;
    set = tt_calloc((size_t)look->n + 1, sizeof *set);
    for (int i = 0; i < look->n; i++)
        set[i] = is_bad(look, i);
    add_names(look, set, &names);
    {
        json_t *evidence =
            tt_look_add(look, "norm-one-rank", "gradients of norms or biases come from one rank only",
                        "add them over the tensor-parallel ranks: with sequence parallelism, each has other tokens");

        tt_look_say(evidence, "all matrices are right; %d gradients of norms or biases are not: %s", bad, names.text);
        tt_look_say(evidence,
                    "the part of A that B contains: A is nearest to %.2f times B (1 for a sum that lacks terms)",
                    tt_look_part(look));
    }
    tt_look_explain(look);
    tt_text_release(&names);
    tt_free(set);
    return 0;
}

/* Routers are wrong, the last one most; what comes after it is right, and what comes before it differs less. */
static int find_router(struct tt_look *look)
{
    double others = 0.0, error;
    int last = -1, n = 0, total = 0, m = 0;
    json_t *evidence;

    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];

        if (!is_gradient(look, i) || p->role != TT_ROLE_ROUTER)
            continue;
        total++;
        n += is_bad(look, i) && p->judgement == TT_DIFFERENT;
        last = last < 0 || p->order > look->pair[last].order ? i : last;
    }
    if (n == 0 || n < total)
        return 0;
    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];

        if (!is_bad(look, i) || p->judgement != TT_DIFFERENT || p->role == TT_ROLE_ROUTER)
            continue;
        if (p->order > look->pair[last].order)
            return 0;
        others += log(tt_pair_error(p));
        m++;
    }
    error = tt_pair_error(&look->pair[last]);
    others = m ? exp(others / m) : 0.0;
    if (error < 3.0 * others)
        return 0;
    evidence = tt_look_add(look, "router-loss", "the balance loss of the routers is missing or weighs otherwise",
                           "compare the coefficients of the auxiliary losses, and what they are divided by");
    tt_look_say(evidence, "all %d routers differ, the last one by %.2g; everything behind it is right", n, error);
    if (m)
        tt_look_say(evidence, "what comes before it differs by %.2g in the mean: the loss reaches it through routers",
                    others);
    tt_look_explain(look);
    return 0;
}

/* --- the order of the backward pass --- */

/* Whether everything behind the last layer is right, so that the forward pass and the labels are too. */
static bool is_end_right(const struct tt_look *look)
{
    bool found = false;

    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];

        if (!is_gradient(look, i) || p->layer >= 0 || p->role == TT_ROLE_EMBEDDING || p->rank == 0)
            continue;
        if (is_bad(look, i))
            return false;
        found = true;
    }
    return found;
}

/* Whether the embedding is wrong: every wrong gradient of an activation reaches it. */
static bool is_start_wrong(const struct tt_look *look)
{
    for (int i = 0; i < look->n; i++)
        if (is_gradient(look, i) && look->pair[i].role == TT_ROLE_EMBEDDING)
            return is_bad(look, i);
    return true;
}

/* The state of the roles of one layer: bit 0, one of them is bad; bit 1, one of them is right. */
static int state_of(const struct tt_look *look, int layer, unsigned roles, int rank)
{
    int state = 0;

    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];

        if (is_gradient(look, i) && p->layer == layer && (roles >> p->role & 1U) && (rank < 0 || p->rank == rank))
            state |= is_bad(look, i) ? 1 : 2;
    }
    return state;
}

static int find_backward(struct tt_look *look)
{
    unsigned mlp = 1U << TT_ROLE_MLP | 1U << TT_ROLE_DOWN | 1U << TT_ROLE_EXPERT;
    unsigned attention = 1U << TT_ROLE_QUERY | 1U << TT_ROLE_KEY | 1U << TT_ROLE_VALUE | 1U << TT_ROLE_QKV;
    int layer = -1, below = 0, below_bad = 0;
    const char *place = NULL;
    json_t *evidence;

    if (!is_end_right(look) || look->layers == 0)
        return 0;
    for (int i = 0; i < look->n; i++)
        if (is_bad(look, i) && look->pair[i].layer > layer)
            layer = look->pair[i].layer;
    for (int i = 0; i < look->n; i++)
        if (is_gradient(look, i) && look->pair[i].layer >= 0 && look->pair[i].layer < layer) {
            below++;
            below_bad += is_bad(look, i);
        }
    if (layer < 0 || 2 * below_bad < below || !is_start_wrong(look))
        return 0;
    if (state_of(look, layer, mlp, -1) == 2 && state_of(look, layer, attention | 1U << TT_ROLE_OUTPUT, -1) == 1)
        place = "MLP";
    else if (state_of(look, layer, mlp | attention | 1U << TT_ROLE_OUTPUT, -1) == 2)
        place = "attention";
    if (place) {
        evidence = tt_look_add(look, "tp-sum", "a sum over tensor-parallel ranks is missing in the backward pass",
                               "the gradient of the input of column-parallel matrices must be added over the "
                               "tensor-parallel ranks");
        tt_look_say(
            evidence,
            "the output, the final norm and, in layer %d, the matrices of the %s are right; what comes before the %s "
            "is not",
            layer, place, place);
        tt_look_say(evidence,
                    "in the gradients that differ, A is nearest to %.2f times B (1 for a sum that lacks terms)",
                    tt_look_part(look));
    } else if (state_of(look, layer, mlp | 1U << TT_ROLE_OUTPUT | 1U << TT_ROLE_QUERY, -1) == 2 &&
               state_of(look, layer, 1U << TT_ROLE_KEY, -1) & state_of(look, layer, 1U << TT_ROLE_VALUE, -1) & 1) {
        evidence = tt_look_add(look, "cp-sum", "gradients of keys and values lack parts of the sequence",
                               "add the gradients of keys and values over the context-parallel ranks that used them");
        tt_look_say(evidence,
                    "in layer %d the MLP, the attention output and the queries are right, the keys and values are not",
                    layer);
    } else if (state_of(look, layer, mlp, -1) & 1) {
        evidence =
            tt_look_add(look, "recompute", "a layer is computed otherwise in the backward pass",
                        "check the activation checkpointing of the layer: random state, precision, autocast, and "
                        "inputs that were changed in place");
        tt_look_say(evidence,
                    "the output and the final norm are right, so the forward pass is; the first wrong gradients, in "
                    "backward order, are those of layer %d%s",
                    layer, layer + 1 == look->layers ? ", the last one" : "");
        if (layer + 1 < look->layers)
            tt_look_say(evidence, "layers %d to %d are right: only layer %d is at fault", layer + 1, look->layers - 1,
                        layer);
    } else {
        return 0;
    }
    tt_look_explain(look);
    return 0;
}

/* --- the forward pass --- */

/* Elements that are 0 in B only, in rows of the embedding that are not 0: dropout behind the lookup. */
static int64_t dropped_in_rows(const struct tt_pair *p, int64_t *ret_n)
{
    int64_t empty_a = 0, empty_b = 0;

    for (int64_t r = 0; r < p->rows; r++) {
        empty_a += p->row[TT_SUM_AA][r] == 0.0;
        empty_b += p->row[TT_SUM_BB][r] == 0.0;
    }
    *ret_n = (p->rows - empty_b) * p->columns;
    return empty_a != empty_b || p->zeros_a > empty_a * p->columns ? 0 : p->zeros_b - empty_b * p->columns;
}

/* Dropout makes elements 0: in the first wrong activation, or in the embedding's rows of rare tokens. */
static int find_masks(struct tt_look *look)
{
    int first = tt_look_first(look, true);
    int64_t n = 0, zeros = 0;
    json_t *evidence;

    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];
        bool rows = is_bad(look, i) && p->role == TT_ROLE_EMBEDDING && p->judgement == TT_DIFFERENT;

        if (i == first) {
            n = p->rows * p->columns;
            zeros = 100 * p->zeros_a < p->zeros_b ? p->zeros_b - p->zeros_a : 0;
        } else if (rows && first < 0) {
            zeros = dropped_in_rows(p, &n);
        } else {
            continue;
        }
        if (200 * zeros < n || zeros < 4 || zeros > n - n / 20)
            continue;
        evidence = tt_look_add(look, "dropout", "dropout is on", "turn dropout off, or compare without it");
        if (rows)
            tt_look_say(evidence,
                        "%.1f %% of the elements in rows of %s that B's tokens use are exactly 0, and none in A",
                        100.0 * (double)zeros / (double)n, p->a->name);
        else
            tt_look_say(evidence,
                        "the first module that differs is %s: %.1f %% of B's elements are exactly 0, but not A's",
                        p->a->name, 100.0 * (double)zeros / (double)n);
        tt_look_explain(look);
        return 0;
    }
    return 0;
}

/* The first wrong activation is the output of attention or an MLP, and is a sum that lacks terms. */
static int find_forward_sum(struct tt_look *look)
{
    int first = tt_look_first(look, true);
    const struct tt_pair *p = first < 0 ? NULL : &look->pair[first];
    double part;

    if (!p || p->judgement != TT_DIFFERENT || count_bad(look) == 0 || degree(look, "tp") == 1 ||
        !(p->role == TT_ROLE_OUTPUT || p->role == TT_ROLE_DOWN || p->role == TT_ROLE_EMBEDDING ||
          p->role == TT_ROLE_OTHER))
        return 0;
    part = p->dot / (p->norm_b * p->norm_b);
    if (!(fabs(part - 1.0) < 0.25) || tt_pair_cosine(p) > 0.95 || tt_pair_cosine(p) < 0.3)
        return 0;
    tt_look_say(
        tt_look_add(look, "tp-sum", "a sum over tensor-parallel ranks is missing in the forward pass",
                    "the output of row-parallel matrices must be added over the tensor-parallel ranks"),
        "the first module that differs is %s: A is nearest to %.2f times B, and the rest is independent of B (cosine "
        "%.2f), as in a sum that lacks terms",
        p->a->name, part, tt_pair_cosine(p));
    tt_look_explain(look);
    return 0;
}

/* The error of an activation (batch, sequence, width) at the first place of its sequences, and at all. */
static bool is_first_place_right(const struct tt_pair *p)
{
    const struct tt_manifest_tensor *t = p->a->tensor;
    double diff = 0.0, aa = 0.0;

    if (t->ndim != 3 || t->shape[1] < 2)
        return false;
    for (int64_t c = 0; c < t->shape[2]; c++) {
        diff += p->column[TT_SUM_DIFF][c];
        aa += p->column[TT_SUM_AA][c];
    }
    return aa > 0.0 && sqrt(diff / aa) <= p->tolerance;
}

/*
 * The scores of attention are other ones. Then the first module that differs is attention, and the first token of each
 * sequence, which sees only itself, is right. Or queries and keys differ much more than the rest.
 */
static int find_attention(struct tt_look *look)
{
    double scores = 0.0, others = 0.0, cosine = 0.0, other_cosine = 0.0;
    int n = 0, m = 0, first = tt_look_first(look, true);
    bool seen = first >= 0 && look->pair[first].judgement == TT_DIFFERENT &&
                look->pair[first].rank == TT_RANK_ATTENTION && is_first_place_right(&look->pair[first]);
    json_t *evidence;

    for (int i = 0; i < look->n; i++) {
        const struct tt_pair *p = &look->pair[i];

        if (!is_gradient(look, i) || !is_large(p) || p->columns < 2)
            continue;
        if (p->role == TT_ROLE_QUERY || p->role == TT_ROLE_KEY) {
            scores += log(fmax(tt_pair_error(p), least));
            cosine += tt_pair_cosine(p);
            n++;
        } else if (p->role != TT_ROLE_OTHER) {
            others += log(fmax(tt_pair_error(p), least));
            other_cosine += tt_pair_cosine(p);
            m++;
        }
    }
    if (n == 0 || m == 0)
        return 0;
    scores = exp(scores / n);
    others = exp(others / m);
    cosine /= n;
    other_cosine /= m;
    if (!seen && (scores < 0.1 || (scores < 3.0 * others && !(fabs(cosine) < 0.08 && other_cosine > 0.5))))
        return 0;
    if (cosine > 0.95)
        evidence = tt_look_add(look, "attention-scale", "the scores of attention are scaled otherwise",
                               "compare the softmax scale, and norms and soft caps of queries and keys");
    else
        evidence = tt_look_add(look, "attention-scores", "the scores of attention are computed otherwise",
                               "compare positions, theta, mask and scale; if a dump contains weights, titan also sees "
                               "which rows the rotary positions pair");
    if (seen)
        tt_look_say(evidence,
                    "the first module that differs is %s, and there the first token of each sequence is right: it "
                    "sees only itself, so only the scores of attention differ",
                    look->pair[first].a->name);
    tt_look_say(evidence,
                "the gradients of queries and keys differ by %.2g in the mean (cosine %.2f), other matrices by %.2g "
                "(cosine %.2f)",
                scores, cosine, others, other_cosine);
    tt_look_explain(look);
    return 0;
}

int tt_faults_find(struct tt_look *look)
{
    /* in this order */
    static int (*const find[])(struct tt_look *) = {
        find_not_finite, find_none,        find_factor,    find_second_factor, find_layout,    find_precision,
        find_tied,       find_vectors,     find_router,    find_backward,      tt_rotary_find, find_masks,
        tt_tokens_find,  find_forward_sum, find_attention, find_part,
    };
    int rc = 0;

    for (size_t i = 0; i < sizeof find / sizeof find[0]; i++)
        if (count_bad(look))
            TT_TRY(find[i](look));
out:
    return rc;
}
