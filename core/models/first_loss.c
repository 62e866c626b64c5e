/* SPDX-License-Identifier: MIT
 *
 * The expected first loss; see first_loss.h. For a tied head, it walks the forward graph at a few positions that grow
 * geometrically, since attention averages over earlier positions. It keeps three moments of every value. It assumes the
 * same moments at earlier positions, since the inputs of attention are normalised.
 */
#include "core/models/first_loss.h"

#include <math.h>

#include "core/base/mem.h"

enum { CELLS = 12, POINTS = 41 };

/* Mean products of an element of a value: with itself, with the same element at another position nearby, and with the
 * embedding of the position's token. */
struct moments {
    double own, between, token;
};

struct walk {
    const struct tt_model *model;
    const struct tt_graph *graph;
    double anywhere;    /* the probability that two tokens are equal */
    double position;    /* position, counted from 1 */
    struct moments *of; /* moments of each value */
};

/* --- distributions --- */

static double point(int i)
{
    return 16.0 * ((double)i / (POINTS - 1) - 0.5);
}

static double density(double z)
{
    return exp(-0.5 * z * z) / sqrt(2.0 * M_PI);
}

/* The weights of all points add up to 1. */
static double weight(int i)
{
    return density(point(i)) * 16.0 / (POINTS - 1);
}

/* The share of a normal variance that remains if values beyond `cut` standard deviations are drawn again. */
static double part_within(double cut)
{
    return cut > 0.0 && cut < 8.0 ? 1.0 - 2.0 * cut * density(cut) / erf(cut / sqrt(2.0)) : 1.0;
}

static double variance_of(const struct tt_param *p)
{
    if (p->init == TT_PARAM_NORMAL)
        return p->std * p->std * part_within(p->std > 0.0 ? p->cut / p->std : 0.0);
    return p->init == TT_PARAM_UNIFORM ? (p->high - p->low) * (p->high - p->low) / 12.0 : 0.0;
}

static double square_of(const struct tt_param *p)
{
    double mean = p->init == TT_PARAM_ONES       ? 1.0
                  : p->init == TT_PARAM_CONSTANT ? p->low
                  : p->init == TT_PARAM_UNIFORM  ? (p->low + p->high) / 2.0
                                                 : 0.0;

    return variance_of(p) + mean * mean;
}

/* A soft cap; 0: none. */
static double capped(double x, double cap)
{
    return cap > 0.0 ? cap * tanh(x / cap) : x;
}

/* The mean of exp(x) over capped values, normal with this variance before the cap and within `most` deviations. */
static double mean_exp(double variance, double cap, double most)
{
    double sum = 0.0;

    for (int i = 0; i < POINTS; i++)
        if (fabs(point(i)) <= most)
            sum += weight(i) * exp(capped(sqrt(variance) * point(i), cap));
    return sum;
}

/* The mean square of such values. */
static double variance_under(double variance, double cap)
{
    double sum = 0.0;

    for (int i = 0; i < POINTS && cap > 0.0; i++)
        sum += weight(i) * pow(capped(sqrt(variance) * point(i), cap), 2.0);
    return cap > 0.0 ? sum : variance;
}

/* ln of the mean of exp(x) over n values of this variance, as estimated from a sum of n terms. */
static double spread_of(double variance, double cap, double ln_n)
{
    if (cap > 0.0)
        return log(mean_exp(variance, cap, sqrt(2.0 * ln_n)));
    return variance <= 2.0 * ln_n ? variance / 2.0 : sqrt(2.0 * ln_n * variance) - ln_n;
}

static bool has_bias(const struct tt_node *norm)
{
    return norm->op == TT_OP_LAYERNORM && norm->in[2] != TT_NONE;
}

/* The mean square of a norm's weights. */
static double square_of_norm(const struct tt_node *norm, const struct tt_param *p)
{
    return square_of(p) + (norm->attr.unit_offset ? 1.0 : 0.0); /* the mean of these is 0 */
}

/* --- ops --- */

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static double gelu(double x)
{
    return x / (1.0 + exp(-2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_erf(double x)
{
    return x * erfc(-x / sqrt(2.0)) / 2.0;
}

/* The mean of f(x) f(y), where x and y are normal with the variance `own` and the covariance `between`. */
static double product_of(double (*f)(double), double own, double between)
{
    double shared = sqrt(fmax(between, 0.0)), apart = sqrt(fmax(own - between, 0.0)), sum = 0.0;

    for (int i = 0; i < POINTS; i++) {
        double mean = 0.0;

        for (int k = 0; k < POINTS; k++)
            mean += weight(k) * f(shared * point(i) + apart * point(k));
        sum += weight(i) * mean * mean;
    }
    return sum;
}

static struct moments apply(double (*f)(double), struct moments x)
{
    return (struct moments){product_of(f, x.own, x.own), product_of(f, x.own, x.between), 0.0};
}

static struct moments scale(struct moments x, double by)
{
    return (struct moments){by * by * x.own, by * by * x.between, by * x.token};
}

/* Adds a constant to every element. */
static struct moments shift(struct moments x, double square)
{
    return (struct moments){x.own + square, x.between + square, x.token};
}

/* The factor by which the mean square of a softmax's weights exceeds that of equal weights, for normal scores. */
static double unevenness(double variance, double cap)
{
    double mean;

    if (cap <= 0.0)
        return exp(variance);
    mean = mean_exp(variance, cap, HUGE_VAL);
    return mean_exp(4.0 * variance, 2.0 * cap, HUGE_VAL) / (mean * mean);
}

static struct moments attend(const struct walk *w, const struct tt_node *node)
{
    const struct tt_attr *attr = &node->attr;
    struct moments q = w->of[node->in[0]], k = w->of[node->in[1]], v = w->of[node->in[2]];
    double n = attr->sliding_window > 0 ? fmin((double)attr->sliding_window, w->position) : w->position;
    double part = node->in[4] != TT_NONE ? n / (n + 1.0) : 1.0; /* of a sink */
    double by = attr->scale != 0.0F ? (double)attr->scale : 1.0 / sqrt((double)attr->head_dim);
    double scores = by * by * attr->head_dim * q.own * (k.own - k.between);
    double more = unevenness(fmax(scores, 0.0), (double)attr->soft_cap);

    return scale((struct moments){v.between + (v.own - v.between) * fmin(1.0, more / n),
                                  v.between + (v.own - v.between) / n, 0.0},
                 part);
}

/* False: an op that the estimate does not cover. */
static bool carry(const struct walk *w, const struct tt_node *node)
{
    struct moments x = w->of[node->in[0]], y = {0}, *out = &w->of[node->out[0]];
    const struct tt_value *in = node->n_in > 1 ? &w->graph->values[node->in[1]] : NULL;
    const struct tt_param *param = in && in->kind == TT_VALUE_PARAM ? &w->model->params[in->param] : NULL;
    double square = param ? square_of(param) : 0.0;

    if (in && !param)
        y = w->of[node->in[1]];
    switch ((int)node->op) {
    case TT_OP_EMBEDDING:
        *out = (struct moments){square, w->anywhere * square, square};
        return true;
    case TT_OP_POSITION: /* other positions have other vectors */
        *out = (struct moments){x.own + square, x.between, x.token};
        return true;
    case TT_OP_LINEAR:
        *out = scale(x, sqrt((double)param->shape[1] * square));
        out->token = 0.0;
        return true;
    case TT_OP_BIAS:
        *out = shift(x, square);
        return true;
    case TT_OP_RMSNORM:
    case TT_OP_LAYERNORM:
        *out = scale(x, sqrt(square_of_norm(node, param) / (x.own + (double)node->attr.eps)));
        if (has_bias(node))
            *out = shift(*out, square_of(&w->model->params[w->graph->values[node->in[2]].param]));
        return true;
    case TT_OP_ROPE:
    case TT_OP_DORA: /* at first, m is the norm */
        *out = x;
        return true;
    case TT_OP_ROW_SQUARES: /* only DORA reads it */
        *out = (struct moments){0};
        return true;
    case TT_OP_SCALE:
        *out = scale(x, (double)node->attr.scale);
        return true;
    case TT_OP_ADD:
        *out = (struct moments){x.own + y.own, x.between + y.between, x.token + y.token};
        return true;
    case TT_OP_ATTENTION:
        *out = attend(w, node);
        return true;
    case TT_OP_SWIGLU:
    case TT_OP_GEGLU:
        *out = apply(node->op == TT_OP_SWIGLU ? silu : gelu, x);
        *out = (struct moments){out->own * y.own, out->between * y.between, 0.0};
        return true;
    case TT_OP_GELU:
        *out = apply(gelu, x);
        return true;
    case TT_OP_GELU_ERF:
        *out = apply(gelu_erf, x);
        return true;
    default:
        return false;
    }
}

/* --- the head --- */

static const struct tt_node *head_of(const struct tt_graph *graph)
{
    return &graph->nodes[graph->values[graph->token_loss].producer];
}

/*
 * The amount that the token's own logit adds to ln of the sum of exp over the others, whose variance is that of logits;
 * *mean becomes the mean of the capped logit. With x the normalised state, e the embedding and a e the share of it in
 * x, the logit is e x = a e e + e (x - a e). Its mean is D times their product `token`; `part` is the part of x's
 * square that is a e's.
 */
static double add_own(double others, double cap, double variance, double part, double *mean)
{
    double deviation = sqrt(variance * (1.0 - part + part * (2.0 - 1.5 * part))), sum = 0.0, logits = 0.0;

    for (int i = 0; i < POINTS; i++) {
        double logit = capped(*mean + deviation * point(i), cap), above = logit - others;

        sum += weight(i) * (above > 30.0 ? above : log1p(exp(above)));
        logits += weight(i) * logit;
    }
    *mean = cap > 0.0 ? logits : *mean;
    return sum;
}

/* The positions up to an edge form a cell, which is represented by its middle. */
static bool add_tied(struct walk *w, int64_t seq_len, const struct tt_text_repeats *repeats, struct tt_first_loss *loss)
{
    const struct tt_node *head = head_of(w->graph);
    double square = square_of(&w->model->params[w->graph->values[head->in[1]].param]), begin = 0.0;
    int cells = seq_len < CELLS ? (int)seq_len : CELLS;

    for (int k = 1; k <= cells; k++) {
        double end = k == cells ? (double)seq_len : fmax(begin + 1.0, round(pow((double)seq_len, (double)k / cells)));
        double share = (end - begin) / (double)seq_len, mean, part, own;
        struct moments x;

        w->position = (begin + 1.0 + end) / 2.0;
        for (const struct tt_node *node = w->graph->nodes; node < head; node++)
            if (!carry(w, node))
                return false;
        x = w->of[head->in[0]];
        mean = (double)w->model->dims.dim * x.token;
        part = fmin(1.0, x.token * x.token / (square * x.own));
        own = add_own(loss->blind + loss->spread, w->model->dims.logit_cap, loss->variance, part, &mean);
        loss->own_logit += share * mean;
        loss->own += share * (own - repeats->next * mean);
        begin = end;
    }
    return true;
}

/* After the last norm, which may be scaled, the mean square is that of the norm's weights, whatever the norm's
 * input. */
static double square_before_head(const struct walk *w)
{
    const struct tt_node *norm = &w->graph->nodes[w->graph->values[head_of(w->graph)->in[0]].producer];
    const struct tt_param *params = w->model->params;
    const struct tt_value *values = w->graph->values;
    double scale = 1.0;

    if (norm->op == TT_OP_SCALE) {
        scale = (double)norm->attr.scale;
        norm = &w->graph->nodes[values[norm->in[0]].producer];
    }
    return scale * scale *
           (square_of_norm(norm, &params[values[norm->in[1]].param]) +
            (has_bias(norm) ? square_of(&params[values[norm->in[2]].param]) : 0.0));
}

bool tt_model_first_loss(const struct tt_model *model, int64_t seq_len, const struct tt_text_repeats *repeats,
                         struct tt_first_loss *ret_loss)
{
    struct tt_first_loss loss = {.blind = log((double)model->dims.vocab_size)};
    struct walk w = {.model = model, .anywhere = repeats->anywhere};
    struct tt_graph *graph = NULL;
    bool known = true;

    if (tt_model_graph(model, TT_GRAPH_VALIDATE, TT_F32, 1, seq_len, false, &graph, NULL) < 0)
        return false;
    w.graph = graph;
    loss.variance = (double)model->dims.dim * variance_of(&model->params[graph->values[head_of(graph)->in[1]].param]) *
                    square_before_head(&w);
    loss.spread = spread_of(loss.variance, model->dims.logit_cap, loss.blind);
    w.of = tt_calloc((size_t)graph->n_values, sizeof *w.of);
    if (model->dims.tied == 1)
        known = add_tied(&w, seq_len, repeats, &loss);
    loss.loss = loss.blind + loss.spread + loss.own;
    loss.variance = variance_under(loss.variance, model->dims.logit_cap);
    *ret_loss = loss;
    tt_free(w.of);
    tt_graph_free(graph);
    return known;
}
