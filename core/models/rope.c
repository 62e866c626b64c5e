/* SPDX-License-Identifier: MIT
 *
 * ROPE_TABLE: fills a graph's table of angles.
 *   rope   the frequencies      out   (n, stride / 2, 2) floats, cos and sin: n positions, heads of `stride` elements
 *
 * The table of rotary position embeddings (Su et al. 2021): pair i of a head turns by t * theta^(-2i/E) at position t.
 * Llama 3.1 stretches the slow pairs for longer sequences: pairs whose wave is longer than original_max /
 * low_freq_factor turn slower by `factor`, pairs with a wave shorter than original_max / high_freq_factor stay
 * unchanged, and those between are interpolated. Angles are computed in double, since float loses whole digits of
 * them at large t.
 */
#include <math.h>

#include "core/models/model.h"
#include "core/ops/step/step.h"

static double scaled(const struct tt_rope *rope, double frequency)
{
    static const double pi = 3.14159265358979323846;
    double waves = rope->original_max * frequency / (2.0 * pi); /* turns within the first training's length */
    double kept;

    if (rope->factor == 0.0 || waves > rope->high_freq_factor)
        return frequency;
    if (waves < rope->low_freq_factor)
        return frequency / rope->factor;
    kept = (waves - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1.0 - kept) * frequency / rope->factor + kept * frequency;
}

void tt_rope_fill(const struct tt_rope *rope, int64_t seq_len, int64_t head_dim, float *data)
{
    int64_t pairs = head_dim / 2;

    for (int64_t i = 0; i < pairs; i++) {
        double frequency = scaled(rope, pow(rope->theta, -2.0 * (double)i / (double)head_dim));

        for (int64_t t = 0; t < seq_len; t++) {
            float *cell = data + 2 * (t * pairs + i);

            cell[0] = (float)cos((double)t * frequency);
            cell[1] = (float)sin((double)t * frequency);
        }
    }
}

static void run(const struct tt_step_call *call)
{
    tt_rope_fill(call->rope, call->n, call->stride, call->out[0]);
}

const struct tt_step_row tt_step_op_rope_table = {.name = "rope table", .run = run};
