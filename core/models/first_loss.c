/* SPDX-License-Identifier: MIT
 *
 * The expected first loss; see first_loss.h. Of every value of the forward graph it keeps the second moment of an
 * element at a position, the product of elements at two positions, and that with the embedding of the position's token.
 * Positions are grouped into cells that grow geometrically, since attention averages over the positions before.
 */
#include "core/models/first_loss.h"

#include <math.h>

#include "core/base/mem.h"

enum { CELLS = 12, TERMS = 10, POINTS = 161 };

struct moments {
    double own[CELLS], between[CELLS][CELLS], token[CELLS];
};

/* Cell k has the positions after edge[k] up to edge[k + 1]; positions count from 1. */
struct cells {
    int n;
    double edge[CELLS + 1], at[CELLS]; /* at: in its middle */
};

struct walk {
    const struct tt_model *model;
    const struct tt_graph *graph;
    struct cells cells;
    double anywhere;    /* the probability that two tokens are equal */
    struct moments *of; /* of each value */
};

/* --- distributions --- */

static double density(double z)
{
    return exp(-0.5 * z * z) / sqrt(2.0 * M_PI);
}

static double point(int i)
{
    return 16.0 * ((double)i / (POINTS - 1) - 0.5);
}

/* The part of a normal variance that is left if values beyond `cut` standard deviations are drawn again. */
static double part_within(double cut)
{
    return cut > 0.0 && cut < 8.0 ? 1.0 - 2.0 * cut * density(cut) / erf(cut / sqrt(2.0)) : 1.0;
}

static double variance_of(const struct tt_param *p)
{
    switch (p->init) {
    case TT_PARAM_NORMAL:
        return p->std * p->std * part_within(p->std > 0.0 ? p->cut / p->std : 0.0);
    case TT_PARAM_UNIFORM:
        return (p->high - p->low) * (p->high - p->low) / 12.0;
    case TT_PARAM_NONE:
    case TT_PARAM_ONES:
    case TT_PARAM_ZEROS:
    case TT_PARAM_CONSTANT:
        break;
    }
    return 0.0;
}

static double square_of(const struct tt_param *p)
{
    double mean = p->init == TT_PARAM_ONES       ? 1.0
                  : p->init == TT_PARAM_CONSTANT ? p->low
                  : p->init == TT_PARAM_UNIFORM  ? (p->low + p->high) / 2.0
                                                 : 0.0;

    return variance_of(p) + mean * mean;
}

/* ln of the mean of exp(x) over n values of this variance, as a sum of n sees it. */
static double spread_of(double variance, double ln_n)
{
    return variance <= 2.0 * ln_n ? variance / 2.0 : sqrt(2.0 * ln_n * variance) - ln_n;
}

/* --- functions of one element --- */

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static double gelu(double x)
{
    return x / (1.0 + exp(-2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

/* The mean square of f(x) for a normal x, and its coefficients in normalised Hermite polynomials. */
static double expand(double (*f)(double), double variance, double *ret_terms)
{
    double square = 0.0;

    for (int n = 0; n < TERMS; n++)
        ret_terms[n] = 0.0;
    for (int i = 0; i < POINTS; i++) {
        double z = point(i), weight = density(z) * 16.0 / (POINTS - 1), y = f(sqrt(variance) * z);
        double before = 0.0, now = 1.0;

        square += weight * y * y;
        for (int n = 0; n < TERMS; n++) {
            double next = (z * now - sqrt((double)n) * before) / sqrt(n + 1.0);

            ret_terms[n] += weight * y * now;
            before = now;
            now = next;
        }
    }
    return square;
}

static void apply(const struct cells *cells, double (*f)(double), const struct moments *x, struct moments *out)
{
    double terms[CELLS][TERMS];

    for (int k = 0; k < cells->n; k++)
        out->own[k] = expand(f, x->own[k], terms[k]);
    for (int k = 0; k < cells->n; k++) {
        for (int l = 0; l < cells->n; l++) {
            double both = sqrt(x->own[k] * x->own[l]), likeness = both > 0.0 ? x->between[k][l] / both : 0.0;
            double power = 1.0;

            out->between[k][l] = 0.0;
            for (int n = 0; n < TERMS; n++) {
                out->between[k][l] += terms[k][n] * terms[l][n] * power;
                power *= likeness;
            }
        }
        out->token[k] = 0.0;
    }
}

/* --- cells --- */

static struct cells cells_of(int64_t seq_len)
{
    struct cells c = {.n = seq_len < CELLS ? (int)seq_len : CELLS};

    for (int k = 0; k < c.n; k++) {
        c.edge[k + 1] = fmax(c.edge[k] + 1.0, round(pow((double)seq_len, (k + 1.0) / c.n)));
        if (k == c.n - 1)
            c.edge[k + 1] = (double)seq_len;
        c.at[k] = (c.edge[k] + 1.0 + c.edge[k + 1]) / 2.0;
    }
    return c;
}

/* What two intervals and a cell have in common. */
static double common(const struct cells *c, int cell, double begin, double end)
{
    return fmax(0.0, fmin(end, c->edge[cell + 1]) - fmax(begin, c->edge[cell]));
}

/* --- ops --- */

/* out = a x + b y, which are independent; y may be NULL. */
static void add(const struct cells *cells, double a, const struct moments *x, double b, const struct moments *y,
                struct moments *out)
{
    for (int k = 0; k < cells->n; k++) {
        out->own[k] = a * a * x->own[k] + (y ? b * b * y->own[k] : 0.0);
        out->token[k] = a * x->token[k] + (y ? b * y->token[k] : 0.0);
        for (int l = 0; l < cells->n; l++)
            out->between[k][l] = a * a * x->between[k][l] + (y ? b * b * y->between[k][l] : 0.0);
    }
}

/* Adds a constant of every element. */
static void shift(const struct cells *cells, double square, struct moments *x)
{
    for (int k = 0; k < cells->n; k++) {
        x->own[k] += square;
        for (int l = 0; l < cells->n; l++)
            x->between[k][l] += square;
    }
}

static void normalise(const struct cells *cells, double eps, double weight, const struct moments *x,
                      struct moments *out)
{
    for (int k = 0; k < cells->n; k++) {
        double scale = sqrt(weight / (x->own[k] + eps));

        out->own[k] = scale * scale * x->own[k];
        out->token[k] = scale * x->token[k];
        for (int l = 0; l < cells->n; l++)
            out->between[k][l] = scale * sqrt(weight / (x->own[l] + eps)) * x->between[k][l];
    }
}

static void embed(const struct walk *w, double square, struct moments *out)
{
    for (int k = 0; k < w->cells.n; k++) {
        out->own[k] = out->token[k] = square;
        for (int l = 0; l < w->cells.n; l++)
            out->between[k][l] = w->anywhere * square;
    }
}

static void multiply_gate(const struct cells *cells, const struct moments *gate, const struct moments *up,
                          struct moments *out)
{
    apply(cells, silu, gate, out);
    for (int k = 0; k < cells->n; k++) {
        out->own[k] *= up->own[k];
        for (int l = 0; l < cells->n; l++)
            out->between[k][l] *= up->between[k][l];
    }
}

/* The positions that a query in the middle of a cell sees. */
static double seen(const struct cells *c, const struct tt_attr *attr, int cell)
{
    double window = (double)attr->sliding_window;

    return window > 0.0 ? fmin(window, c->at[cell]) : c->at[cell];
}

/* The mean of v's products over the positions that the queries of two cells see. */
static double mean_product(const struct cells *c, const struct tt_attr *attr, const struct moments *v, int k, int l)
{
    double n[2] = {seen(c, attr, k), seen(c, attr, l)}, sum = 0.0;

    for (int i = 0; i <= k; i++)
        for (int j = 0; j <= l; j++)
            sum += common(c, i, c->at[k] - n[0], c->at[k]) * common(c, j, c->at[l] - n[1], c->at[l]) * v->between[i][j];
    return sum / (n[0] * n[1]);
}

/* What is left of v's own squares: a position that both queries see is a product with itself. */
static double mean_rest(const struct cells *c, const struct tt_attr *attr, const struct moments *v, int k, int l)
{
    double n[2] = {seen(c, attr, k), seen(c, attr, l)}, sum = 0.0;

    for (int i = 0; i <= k && i <= l; i++)
        sum += common(c, i, fmax(c->at[k] - n[0], c->at[l] - n[1]), fmin(c->at[k], c->at[l])) *
               (v->own[i] - v->between[i][i]);
    return sum / (n[0] * n[1]);
}

/* Scores are random, so weights are those of a softmax of normal numbers: the mean of their squares is larger by
 * exp(variance of the scores) than if they were equal. */
static void attend(const struct walk *w, const struct tt_node *node, struct moments *out)
{
    const struct tt_attr *attr = &node->attr;
    const struct moments *q = &w->of[node->in[0]], *k = &w->of[node->in[1]], *v = &w->of[node->in[2]];
    const struct cells *c = &w->cells;
    bool sinks = node->in[4] != TT_NONE;
    double scale = attr->scale != 0.0F ? (double)attr->scale : 1.0 / sqrt((double)attr->head_dim);

    for (int a = 0; a < c->n; a++) {
        double n = seen(c, attr, a), part = sinks ? n / (n + 1.0) : 1.0;
        double scores = scale * scale * attr->head_dim * q->own[a] * (k->own[a] - k->between[a][a]);

        out->own[a] = part * part *
                      (mean_product(c, attr, v, a, a) + mean_rest(c, attr, v, a, a) * fmin(n, exp(fmax(scores, 0.0))));
        out->token[a] = 0.0;
        for (int b = 0; b < c->n; b++)
            out->between[a][b] = mean_product(c, attr, v, a, b) + mean_rest(c, attr, v, a, b);
    }
    for (int a = 0; a < c->n && sinks; a++)
        for (int b = 0; b < c->n; b++)
            out->between[a][b] *=
                seen(c, attr, a) / (seen(c, attr, a) + 1.0) * seen(c, attr, b) / (seen(c, attr, b) + 1.0);
}

static const struct tt_param *param_of(const struct walk *w, int value)
{
    return &w->model->params[w->graph->values[value].param];
}

static bool carry(const struct walk *w, const struct tt_node *node)
{
    const struct cells *c = &w->cells;
    const struct moments *x = &w->of[node->in[0]], *y = node->n_in > 1 ? &w->of[node->in[1]] : NULL;
    struct moments *out = &w->of[node->out[0]];

    switch ((int)node->op) {
    case TT_OP_EMBEDDING:
        embed(w, square_of(param_of(w, node->in[1])), out);
        return true;
    case TT_OP_POSITION: /* other positions have other vectors */
        add(c, 1.0, x, 0.0, NULL, out);
        for (int k = 0; k < c->n; k++)
            out->own[k] += square_of(param_of(w, node->in[1]));
        return true;
    case TT_OP_LINEAR: {
        const struct tt_param *weight = param_of(w, node->in[1]);

        add(c, sqrt((double)weight->shape[1] * square_of(weight)), x, 0.0, NULL, out);
        for (int k = 0; k < c->n; k++)
            out->token[k] = 0.0;
        return true;
    }
    case TT_OP_BIAS:
        add(c, 1.0, x, 0.0, NULL, out);
        shift(c, square_of(param_of(w, node->in[1])), out);
        return true;
    case TT_OP_RMSNORM:
    case TT_OP_LAYERNORM:
        normalise(c, (double)node->attr.eps, square_of(param_of(w, node->in[1])), x, out);
        if (node->op == TT_OP_LAYERNORM)
            shift(c, square_of(param_of(w, node->in[2])), out);
        return true;
    case TT_OP_ROPE:
        add(c, 1.0, x, 0.0, NULL, out);
        return true;
    case TT_OP_SCALE:
        add(c, (double)node->attr.scale, x, 0.0, NULL, out);
        return true;
    case TT_OP_ADD:
        add(c, 1.0, x, 1.0, y, out);
        return true;
    case TT_OP_ATTENTION:
        attend(w, node, out);
        return true;
    case TT_OP_SWIGLU:
        multiply_gate(c, x, y, out);
        return true;
    case TT_OP_GELU:
        apply(c, gelu, x, out);
        return true;
    default:
        return false;
    }
}

/* --- the head --- */

/*
 * What the token's own logit adds to ln of the sum of exp over the others, whose variance is that of logits. With x the
 * normalised state, e the embedding and a e what x contains of it, the logit is e x = a e e + e (x - a e). Its mean
 * is D times their product `token`; `part` is the part of x's square that is a e's.
 */
static double add_own(double others, double mean, double variance, double part)
{
    double deviation = sqrt(variance * (1.0 - part + part * (2.0 - 1.5 * part))), sum = 0.0;

    for (int i = 0; i < POINTS; i++) {
        double above = mean + deviation * point(i) - others;

        sum += density(point(i)) * 16.0 / (POINTS - 1) * (above > 30.0 ? above : log1p(exp(above)));
    }
    return sum;
}

static const struct tt_node *head_of(const struct tt_graph *graph)
{
    return &graph->nodes[graph->values[graph->token_loss].producer];
}

static bool add_tied(const struct tt_model *model, const struct tt_graph *graph, int64_t seq_len,
                     const struct tt_text_repeats *repeats, struct tt_first_loss *loss)
{
    struct walk w = {.model = model, .graph = graph, .cells = cells_of(seq_len), .anywhere = repeats->anywhere};
    const struct tt_node *head = head_of(graph);
    const struct moments *x;
    double square = square_of(param_of(&w, head->in[1]));
    bool known = true;

    w.of = tt_calloc((size_t)graph->n_values, sizeof *w.of);
    for (const struct tt_node *node = graph->nodes; node < head && known; node++)
        known = carry(&w, node);
    x = &w.of[head->in[0]];
    for (int k = 0; k < w.cells.n && known; k++) {
        double share = (w.cells.edge[k + 1] - w.cells.edge[k]) / (double)seq_len;
        double mean = (double)model->dims.dim * x->token[k];
        double part = fmin(1.0, x->token[k] * x->token[k] / (square * x->own[k]));

        loss->own_logit += share * mean;
        loss->own += share * (add_own(loss->blind + loss->spread, mean, loss->variance, part) - repeats->next * mean);
    }
    tt_free(w.of);
    return known;
}

/* The last norm makes the mean square of its weights of whatever comes. */
static double square_before_head(const struct walk *w)
{
    const struct tt_node *norm = &w->graph->nodes[w->graph->values[head_of(w->graph)->in[0]].producer];
    double bias = norm->op == TT_OP_LAYERNORM ? square_of(param_of(w, norm->in[2])) : 0.0;

    return square_of(param_of(w, norm->in[1])) + bias;
}

bool tt_model_first_loss(const struct tt_model *model, int64_t seq_len, const struct tt_text_repeats *repeats,
                         struct tt_first_loss *ret_loss)
{
    struct tt_first_loss loss = {.blind = log((double)model->dims.vocab_size)};
    struct tt_graph *graph = NULL;
    bool known = true;

    if (tt_model_graph(model, TT_GRAPH_VALIDATE, TT_F32, 1, seq_len, false, &graph, NULL) < 0)
        return false;
    loss.variance = (double)model->dims.dim * variance_of(&model->params[graph->values[head_of(graph)->in[1]].param]) *
                    square_before_head(&(struct walk){.model = model, .graph = graph});
    loss.spread = spread_of(loss.variance, loss.blind);
    if (model->dims.tied == 1)
        known = add_tied(model, graph, seq_len, repeats, &loss);
    loss.loss = loss.blind + loss.spread + loss.own;
    *ret_loss = loss;
    tt_graph_free(graph);
    return known;
}
