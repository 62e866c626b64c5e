/* SPDX-License-Identifier: MIT
 *
 * Prices of ops: the fit, and their form in machine files.
 */
#include "parallel/planner/op_prices.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"

enum { TERMS = 3 };

static void terms_of(const struct tt_cost *work, double ret_terms[TERMS])
{
    ret_terms[0] = work->flops;
    ret_terms[1] = work->bytes;
    ret_terms[2] = work->inner > 0.0 ? work->flops / work->inner : 0.0;
}

/* --- the fit --- */

/* The sum over samples of sec * (price . terms / sec - 1)^2 is price' m price - 2 price . v + sec. */
struct normal {
    double m[TERMS][TERMS], v[TERMS], sec;
};

static void add_sample(struct normal *n, const struct tt_op_sample *s)
{
    double terms[TERMS];

    terms_of(&s->work, terms);
    for (int i = 0; i < TERMS; i++) {
        for (int j = 0; j < TERMS; j++)
            n->m[i][j] += terms[i] * terms[j] / s->sec;
        n->v[i] += terms[i];
    }
    n->sec += s->sec;
}

/* Solves for the prices of the terms in `set`, a set of bits, by Cholesky's method. False: the terms cannot be told
 * apart, or a price would be negative. */
static bool solve(const struct normal *n, unsigned set, double ret_price[TERMS])
{
    double lower[TERMS][TERMS] = {{0}}, x[TERMS];
    int term[TERMS], k = 0;

    for (int i = 0; i < TERMS; i++)
        if (set & 1U << i)
            term[k++] = i;
    for (int i = 0; i < k; i++) {
        double diagonal = n->m[term[i]][term[i]];

        for (int j = 0; j <= i; j++) {
            double sum = n->m[term[i]][term[j]];

            for (int l = 0; l < j; l++)
                sum -= lower[i][l] * lower[j][l];
            if (i == j && !(sum > 1e-6 * diagonal))
                return false;
            lower[i][j] = i == j ? sqrt(sum) : sum / lower[j][j];
        }
    }
    for (int i = 0; i < k; i++) {
        x[i] = n->v[term[i]];
        for (int l = 0; l < i; l++)
            x[i] -= lower[i][l] * x[l];
        x[i] /= lower[i][i];
    }
    memset(ret_price, 0, TERMS * sizeof *ret_price);
    for (int i = k - 1; i >= 0; i--) {
        for (int l = i + 1; l < k; l++)
            x[i] -= lower[l][i] * x[l];
        x[i] /= lower[i][i];
        if (!(x[i] > 0.0))
            return false;
        ret_price[term[i]] = x[i];
    }
    return true;
}

static double error_of(const struct normal *n, const double price[TERMS])
{
    double error = n->sec;

    for (int i = 0; i < TERMS; i++) {
        error -= 2.0 * price[i] * n->v[i];
        for (int j = 0; j < TERMS; j++)
            error += price[i] * price[j] * n->m[i][j];
    }
    return error;
}

/* The best of all sets of terms. A larger set has to be clearly better than the smaller ones, since every further term
 * is a chance to fit noise and then to be wrong about other sizes. */
static bool fit_one(const struct normal *n, double ret_price[TERMS])
{
    static const unsigned sets[] = {1, 2, 4, 3, 5, 6, 7};
    const double clearly = 0.98;
    double price[TERMS], least = INFINITY;

    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
        if (!solve(n, sets[s], price) || error_of(n, price) >= clearly * least)
            continue;
        least = error_of(n, price);
        memcpy(ret_price, price, sizeof price);
    }
    return least < INFINITY;
}

static bool counts(const struct tt_op_sample *s)
{
    return s->sec > 0.0 && s->work.flops + s->work.bytes > 0.0;
}

void tt_op_prices_fit(const struct tt_op_sample *samples, int n, struct tt_op_prices *ret_prices)
{
    struct tt_op_prices *prices = ret_prices;

    prices->n = 0;
    for (int i = 0; i < n && prices->n < TT_MOST_OP_PRICES; i++) {
        struct tt_op_price price = {.dtype = samples[i].dtype};
        struct normal normal = {.sec = 0.0};
        double of_term[TERMS] = {0.0};

        if (!counts(&samples[i]) || tt_op_prices_find(prices, samples[i].op, samples[i].dtype))
            continue;
        for (int j = i; j < n; j++)
            if (counts(&samples[j]) && samples[j].dtype == samples[i].dtype &&
                strcmp(samples[j].op, samples[i].op) == 0)
                add_sample(&normal, &samples[j]);
        if (!fit_one(&normal, of_term))
            continue;
        (void)snprintf(price.op, sizeof price.op, "%s", samples[i].op);
        price.flop_sec = of_term[0];
        price.byte_sec = of_term[1];
        price.sum_sec = of_term[2];
        prices->of[prices->n++] = price;
    }
}

/* --- use --- */

const struct tt_op_price *tt_op_prices_find(const struct tt_op_prices *prices, const char *op, enum tt_dtype dtype)
{
    for (int i = 0; i < prices->n; i++)
        if (prices->of[i].dtype == dtype && strcmp(prices->of[i].op, op) == 0)
            return &prices->of[i];
    return NULL;
}

double tt_op_price_sec(const struct tt_op_price *price, const struct tt_cost *work)
{
    double terms[TERMS];

    terms_of(work, terms);
    return price->flop_sec * terms[0] + price->byte_sec * terms[1] + price->sum_sec * terms[2];
}

/* --- files --- */

const char *tt_op_price_dtype(enum tt_dtype dtype)
{
    return dtype == TT_BF16 ? "bfloat16" : "float32";
}

json_t *tt_op_prices_to_json(const struct tt_op_prices *prices)
{
    json_t *array = json_array();

    for (int i = 0; i < prices->n; i++) {
        const struct tt_op_price *p = &prices->of[i];

        (void)json_array_append_new(array, json_pack("{s:s, s:s, s:f, s:f, s:f}", "op", p->op, "dtype",
                                                     tt_op_price_dtype(p->dtype), "flop_s", p->flop_sec, "byte_s",
                                                     p->byte_sec, "sum_s", p->sum_sec));
    }
    return array;
}

static int read_price(const json_t *json, const char *path, struct tt_op_price *ret_price)
{
    struct tt_op_price price = {.op = ""};
    const char *op, *dtype;
    struct {
        const char *key;
        double *value;
    } numbers[] = {{"flop_s", &price.flop_sec}, {"byte_s", &price.byte_sec}, {"sum_s", &price.sum_sec}};
    int rc = 0;

    TT_TRY(tt_json_get_string(json, "op", path, &op));
    TT_TRY(tt_json_get_string(json, "dtype", path, &dtype));
    if (strlen(op) >= sizeof price.op)
        return tt_fail(TT_EDATA, "%s: the name of op \"%s\" is too long, wanted fewer than %zu bytes", path, op,
                       sizeof price.op);
    (void)snprintf(price.op, sizeof price.op, "%s", op);
    price.dtype = strcmp(dtype, tt_op_price_dtype(TT_BF16)) == 0 ? TT_BF16 : TT_F32;
    if (strcmp(dtype, tt_op_price_dtype(price.dtype)) != 0)
        return tt_fail(TT_EDATA, "%s: dtype of op \"%s\" is \"%s\", wanted \"%s\" or \"%s\"", path, op, dtype,
                       tt_op_price_dtype(TT_F32), tt_op_price_dtype(TT_BF16));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        TT_TRY(tt_json_get_real(json, numbers[i].key, path, numbers[i].value));
        if (!(*numbers[i].value >= 0.0) || !isfinite(*numbers[i].value))
            return tt_fail(TT_EDATA, "%s: %s of op \"%s\" is %g, wanted a number of seconds, 0 or more", path,
                           numbers[i].key, op, *numbers[i].value);
    }
    *ret_price = price;
out:
    return rc;
}

int tt_op_prices_read(const json_t *array, const char *path, struct tt_op_prices *ret_prices)
{
    size_t n = json_array_size(array);
    int rc = 0;

    ret_prices->n = 0;
    if (!json_is_array(array) || n > TT_MOST_OP_PRICES)
        return tt_fail(TT_EDATA, "%s: ops is not an array of at most %d prices", path, TT_MOST_OP_PRICES);
    for (size_t i = 0; i < n; i++) {
        TT_TRY(read_price(json_array_get(array, i), path, &ret_prices->of[i]));
        ret_prices->n++;
    }
out:
    return rc;
}
