/* SPDX-License-Identifier: MIT
 *
 * ROPE_TABLE: fills a graph's table of angles.
 *   rope   the frequencies      out   (n, stride / 2, 2) floats, cos and sin: n positions, heads of `stride` elements
 *
 * The table of rotary position embeddings (Su et al. 2021): pair i of a head turns by t * theta^(-2i/E) at position t.
 * Llama 3.1 stretches the slow pairs for longer sequences: pairs whose wave is longer than original_max /
 * low_freq_factor turn slower by `factor`, pairs with a wave shorter than original_max / high_freq_factor stay
 * unchanged, and pairs in between are interpolated. YaRN interpolates between two pairs, whose numbers are whole unless
 * the table is fractional. Linear scaling slows all pairs. LongRoPE slows each pair by a factor that its authors
 * searched for; the length of the context decides between two lists of factors. Dynamic scaling takes a larger base for
 * a context that is longer than the first training's. Angles are computed in double, since float loses whole digits of
 * them at large t.
 */
#include <math.h>
#include <string.h>

#include "core/math/elementary.h"
#include "core/models/model.h"
#include "core/ops/step/step.h"

static const double pi = 3.14159265358979323846;

/* The number of the pair, as a fraction, that turns this often within the original training length. */
static double pair_of_turns(const struct tt_rope *rope, int64_t dim, double turns)
{
    return (double)dim * tt_log(rope->original_max / (turns * 2.0 * pi)) / (2.0 * tt_log(rope->theta));
}

/* YaRN's frequency of pair i of a head of `dim` elements. */
static double yarn(const struct tt_rope *rope, int64_t dim, int64_t i, double frequency)
{
    double first = pair_of_turns(rope, dim, rope->beta_fast), last = pair_of_turns(rope, dim, rope->beta_slow);
    double low = fmax(rope->fractional ? first : floor(first), 0.0);
    double high = fmin(rope->fractional ? last : ceil(last), (double)dim - 1.0);
    /* as in transformers, even if high is below low, which happens with tiny original lengths */
    double ramp = ((double)i - low) / (high != low ? high - low : 0.001);

    ramp = ramp < 0.0 ? 0.0 : fmin(ramp, 1.0);
    return frequency * (1.0 - ramp) + frequency / rope->factor * ramp;
}

static double magnitude(double factor, double mscale)
{
    return factor > 1.0 ? 0.1 * mscale * tt_log(factor) + 1.0 : 1.0;
}

double tt_rope_table_scale(const struct tt_rope *rope)
{
    bool searched = tt_rope_is_long(rope);

    if (!(rope->beta_fast > 0.0) && !searched)
        return 1.0;
    if (rope->attention_factor != 0.0)
        return rope->attention_factor;
    if (searched)
        return rope->factor > 1.0 ? sqrt(1.0 + tt_log(rope->factor) / tt_log(rope->original_max)) : 1.0;
    if (rope->mscale != 0.0 && rope->mscale_all_dim != 0.0)
        return magnitude(rope->factor, rope->mscale) / magnitude(rope->factor, rope->mscale_all_dim);
    return magnitude(rope->factor, 1.0);
}

double tt_rope_score_scale(const struct tt_rope *rope)
{
    double m =
        rope->beta_fast > 0.0 && rope->mscale_all_dim != 0.0 ? magnitude(rope->factor, rope->mscale_all_dim) : 1.0;

    return m * m;
}

static double scaled(const struct tt_rope *rope, double frequency)
{
    double waves = rope->original_max * frequency / (2.0 * pi); /* turns within the original training length */
    double kept;

    if (rope->factor == 0.0 || rope->dynamic)
        return frequency;
    if (rope->linear || waves < rope->low_freq_factor)
        return frequency / rope->factor;
    if (waves > rope->high_freq_factor)
        return frequency;
    kept = (waves - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1.0 - kept) * frequency / rope->factor + kept * frequency;
}

double tt_rope_frequency(const struct tt_rope *rope, int64_t head_dim, int64_t i)
{
    double frequency = tt_pow(rope->theta, -2.0 * (double)i / (double)head_dim);

    if (tt_rope_is_long(rope))
        return frequency / (double)rope->short_factor[i];
    return rope->beta_fast > 0.0 ? yarn(rope, head_dim, i, frequency) : scaled(rope, frequency);
}

struct tt_rope tt_rope_of_context(const struct tt_rope *rope, int64_t head_dim, int64_t context)
{
    struct tt_rope of = *rope;

    if (!((double)context > rope->original_max))
        return of;
    memcpy(of.short_factor, rope->long_factor, sizeof of.short_factor);
    if (rope->dynamic)
        of.theta *= tt_pow(rope->factor * (double)context / rope->original_max - (rope->factor - 1.0),
                           (double)head_dim / (double)(head_dim - 2));
    return of;
}

void tt_rope_fill(const struct tt_rope *rope, int64_t seq_len, int64_t head_dim, enum tt_dtype dtype, void *data)
{
    int64_t pairs = head_dim / 2;
    double scale = tt_rope_table_scale(rope);

    for (int64_t i = 0; i < pairs; i++) {
        double frequency = tt_rope_frequency(rope, head_dim, i);

        for (int64_t t = 0; t < seq_len; t++) {
            const double cell[2] = {scale * tt_cos((double)t * frequency), scale * tt_sin((double)t * frequency)};

            for (int64_t k = 0, at = 2 * (t * pairs + i); k < 2; k++, at++)
                if (dtype == TT_F64)
                    ((double *)data)[at] = cell[k];
                else
                    ((float *)data)[at] = (float)cell[k];
        }
    }
}

static void run(const struct tt_step_call *call)
{
    tt_rope_fill(call->rope, call->n, call->stride, call->dtype, call->out[0]);
}

const struct tt_step_row tt_step_op_rope_table = {.name = "rope table", .run = run};
const struct tt_step_row tt_step_op_rope_table_f64 = {.name = "rope table", .run = run};
