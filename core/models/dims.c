/* SPDX-License-Identifier: MIT
 *
 * The sizes of a model: overrides over a flavor's, sizes that follow from others, and the checks that make every later
 * division and product safe. Messages name the configuration keys.
 */
#include <math.h>

#include "core/models/rows.h"

/* Bounds that keep every count in 63 bits; far above any model there is. */
enum { MAX_DIM = 1 << 22, MAX_LAYERS = 1 << 14 };

static void override_int(int64_t *value, int64_t with)
{
    if (with != 0)
        *value = with;
}

static void override_real(double *value, double with)
{
    if (with != 0.0)
        *value = with;
}

void tt_model_dims_override(struct tt_model_dims *dims, const struct tt_model_dims *with)
{
    override_int(&dims->dim, with->dim);
    override_int(&dims->n_layers, with->n_layers);
    override_int(&dims->n_heads, with->n_heads);
    override_int(&dims->n_kv_heads, with->n_kv_heads);
    override_int(&dims->head_dim, with->head_dim);
    override_int(&dims->ffn_dim, with->ffn_dim);
    override_int(&dims->vocab_size, with->vocab_size);
    if (with->norm_eps != 0.0F)
        dims->norm_eps = with->norm_eps;
    override_int(&dims->max_positions, with->max_positions);
    override_real(&dims->rope.theta, with->rope.theta);
    override_real(&dims->rope.factor, with->rope.factor);
    override_real(&dims->rope.low_freq_factor, with->rope.low_freq_factor);
    override_real(&dims->rope.high_freq_factor, with->rope.high_freq_factor);
    override_real(&dims->rope.original_max, with->rope.original_max);
    if (with->tied >= 0)
        dims->tied = with->tied;
}

static int check_range(const char *key, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high)
        return 0;
    (void)tt_fail(TT_EUSAGE, "model.%s is %lld; it must lie in %lld..%lld", key, (long long)value, (long long)low,
                  (long long)high);
    return TT_EUSAGE;
}

static int check_rope(const struct tt_rope *rope)
{
    if (!(rope->theta > 0.0) || !isfinite(rope->theta))
        return tt_fail(TT_EUSAGE, "model.rope_theta is %g; it must be positive", rope->theta);
    if (rope->factor == 0.0 || rope->factor == 1.0)
        return 0;
    if (!(rope->factor >= 1.0) || !isfinite(rope->factor)) {
        return tt_fail(TT_EUSAGE, "model.rope_scaling.factor is %g; it must be at least 1 (1: no scaling)",
                       rope->factor);
    }
    if (!(rope->low_freq_factor > 0.0) || !(rope->high_freq_factor > rope->low_freq_factor) ||
        !isfinite(rope->high_freq_factor)) {
        return tt_fail(TT_EUSAGE,
                       "model.rope_scaling: low_freq_factor %g and high_freq_factor %g must be positive, low below "
                       "high\nhelp: Llama 3.1 has low_freq_factor 1, high_freq_factor 4",
                       rope->low_freq_factor, rope->high_freq_factor);
    }
    if (!(rope->original_max >= 1.0) || !isfinite(rope->original_max)) {
        return tt_fail(TT_EUSAGE,
                       "model.rope_scaling.original_max is %g; it must be the sequence length of the first training\n"
                       "help: Llama 3.1 has 8192",
                       rope->original_max);
    }
    return 0;
}

/* GPT-2's attention: one key and value head for each query head, heads that fill the width, no RoPE. */
static int check_learned(const struct tt_model_row *row, const struct tt_model_dims *d)
{
    if (d->rope.theta != 0.0 || d->rope.factor != 0.0)
        return tt_fail(TT_EUSAGE,
                       "model.rope_theta and model.rope_scaling have no meaning for %s: its positions are learned",
                       row->name);
    if (d->n_kv_heads != d->n_heads)
        return tt_fail(TT_EUSAGE, "model.n_kv_heads is %lld; %s has as many as query heads (%lld)",
                       (long long)d->n_kv_heads, row->name, (long long)d->n_heads);
    if (d->head_dim * d->n_heads != d->dim)
        return tt_fail(TT_EUSAGE, "model.head_dim is %lld; %s has model.dim %lld / model.n_heads %lld",
                       (long long)d->head_dim, row->name, (long long)d->dim, (long long)d->n_heads);
    return check_range("max_position_embeddings", d->max_positions, 1, INT32_MAX);
}

static int check_rotated(struct tt_model_dims *d)
{
    int rc = 0;

    if (d->head_dim % 2 != 0) {
        return tt_fail(TT_EUSAGE,
                       "the head dimension %lld is odd; RoPE rotates pairs\nhelp: change model.head_dim, "
                       "or model.dim %lld / model.n_heads %lld",
                       (long long)d->head_dim, (long long)d->dim, (long long)d->n_heads);
    }
    TT_TRY(check_range("max_position_embeddings", d->max_positions, 0, INT32_MAX));
    TT_TRY(check_rope(&d->rope));
    if (d->rope.factor == 1.0)
        d->rope = (struct tt_rope){.theta = d->rope.theta};
out:
    return rc;
}

int tt_model_dims_settle(const struct tt_model_row *row, struct tt_model_dims *d)
{
    int rc = 0;

    TT_TRY(check_range("dim", d->dim, 1, MAX_DIM));
    TT_TRY(check_range("n_layers", d->n_layers, 1, MAX_LAYERS));
    TT_TRY(check_range("n_heads", d->n_heads, 1, MAX_DIM));
    TT_TRY(check_range("ffn_dim", d->ffn_dim, 1, MAX_DIM));
    TT_TRY(check_range("vocab_size", d->vocab_size, 1, INT32_MAX));
    if (d->n_kv_heads == 0)
        d->n_kv_heads = d->n_heads;
    TT_TRY(check_range("n_kv_heads", d->n_kv_heads, 1, d->n_heads));
    if (d->n_heads % d->n_kv_heads != 0) {
        return tt_fail(TT_EUSAGE, "model.n_heads %lld is not a multiple of model.n_kv_heads %lld",
                       (long long)d->n_heads, (long long)d->n_kv_heads);
    }
    if (d->head_dim == 0 && d->dim % d->n_heads != 0) {
        return tt_fail(TT_EUSAGE, "model.dim %lld is not a multiple of model.n_heads %lld\nhelp: set model.head_dim",
                       (long long)d->dim, (long long)d->n_heads);
    }
    if (d->head_dim == 0)
        d->head_dim = d->dim / d->n_heads;
    TT_TRY(check_range("head_dim", d->head_dim, 1, MAX_DIM));
    TT_TRY(check_range("n_heads * head_dim", d->n_heads * d->head_dim, 1, MAX_DIM));
    if (!(d->norm_eps > 0.0F) || !isfinite(d->norm_eps))
        return tt_fail(TT_EUSAGE, "model.norm_eps is %g; it must be positive", (double)d->norm_eps);
    TT_TRY(row->learned_positions ? check_learned(row, d) : check_rotated(d));
out:
    return rc;
}
