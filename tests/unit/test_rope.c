/* SPDX-License-Identifier: MIT
 *
 * Tables of rotary angles, without scaling and with all kinds of it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/models/model.h"

struct cell {
    int64_t t, pair;
    double cosine, sine;
};

static void check_rope(const struct tt_rope *rope, int64_t seq_len, int64_t head_dim, const struct cell *cells, int n)
{
    float *table = tt_calloc((size_t)(seq_len * head_dim), sizeof *table);

    tt_rope_fill(rope, seq_len, head_dim, TT_F32, table);
    for (int i = 0; i < n; i++) {
        const float *got = table + 2 * (cells[i].t * (head_dim / 2) + cells[i].pair);

        if (fabs((double)got[0] - cells[i].cosine) > 1e-7 || fabs((double)got[1] - cells[i].sine) > 1e-7) {
            fail_msg("position %d pair %d: %.9f %.9f, wanted %.9f %.9f", (int)cells[i].t, (int)cells[i].pair,
                     (double)got[0], (double)got[1], cells[i].cosine, cells[i].sine);
        }
    }
    tt_free(table);
}

/* The wanted values were computed in Python from the published formula. They equal transformers' to float precision. */
static void rope_table_has_the_published_values(void **state)
{
    static const struct cell plain[] = {
        {0, 3, 1.0, 0.0},
        {1, 0, 0.540302306, 0.841470985},
        {33, 1, 0.993248804, 0.116003508},
        {33, 7, 0.999999942, 0.000340342},
        {63, 2, -0.716229013, 0.697865317},
        {63, 4, 0.996033625, 0.088977628},
    };
    static const struct cell llama31[] = {
        {1, 0, 0.540302306, 0.841470985},       {1, 27, 0.999992229, 0.003942266},     /* unscaled */
        {4097, 27, -0.903237473, -0.429141080}, {4097, 32, -0.547604294, 0.836737436}, /* mixed */
        {8191, 0, -0.646390470, -0.763006789},  {8191, 32, -0.401701488, -0.915770667},
        {8191, 63, 0.999996841, 0.002513755},   {4097, 63, 0.999999210, 0.001257339}, /* slowed by 8 */
    };
    static const struct cell slow[] = {
        {1, 0, 0.921060994, 0.389418342},
        {33, 1, -0.835468025, 0.549539060},
        {63, 0, 0.997738981, 0.067208073},
        {63, 4, 0.999365027, 0.035630638},
    };
    static const struct cell tiny[] = {
        {49, 0, 0.300592544, -0.953752653},
        {95, 1, 0.901933036, 0.431875907},
        {95, 3, 0.999999801, 0.000631548},
    };
    const struct tt_rope none = {.theta = 500000.0}, scaled = {.theta = 500000.0,
                                                               .factor = 8.0,
                                                               .low_freq_factor = 1.0,
                                                               .high_freq_factor = 4.0,
                                                               .original_max = 8192.0};
    const struct tt_rope small = {
        .theta = 500000.0, .factor = 8.0, .low_freq_factor = 1.0, .high_freq_factor = 4.0, .original_max = 32.0};

    const struct tt_rope dynamic = {.theta = 500000.0, .factor = 4.0, .original_max = 64.0, .dynamic = true};
    const struct tt_rope beyond = tt_rope_of_context(&dynamic, 16, 96);
    const struct tt_rope linear = {.theta = 500000.0, .factor = 2.5, .linear = true};

    check_rope(&none, 64, 16, plain, 6);
    check_rope(&scaled, 8192, 128, llama31, 8);
    check_rope(&small, 96, 8, tiny, 3);
    check_rope(&dynamic, 64, 16, plain, 6);
    /* 500000 (4 * 96 / 64 - 3)^(16/14) */
    assert_true(fabs(beyond.theta / 1754896.2191380302 - 1.0) < 1e-12);
    check_rope(&linear, 64, 16, slow, 4);
}

/* The rule of transformers in double (its own angles are off by 1e-6), for DeepSeek-V3, with different factors, and
 * with none. */
static void yarn_has_the_angles_of_transformers(void **state)
{
    static const struct cell v3[] = {
        {1, 0, 0.540302306, 0.841470985},     {100, 9, 0.347627440, 0.937632744}, /* unscaled up to pair 10 */
        {100, 10, 0.790131968, -0.612936761}, {100, 11, -0.725455744, -0.688268816},
        {100, 16, 0.852524522, 0.522687229},  {1000, 22, 0.984230234, 0.176892186},
        {1000, 23, 0.999444339, 0.033331861}, /* slowed by 40 from pair 23 on */
        {8000, 31, 0.999644365, 0.026667267},
    };
    static const struct cell tiny[] = {
        {3, 0, -1.043904030, 0.148804911}, {7, 1, -0.198296678, 1.035643256}, {7, 2, 0.984057556, 0.378826150},
        {11, 3, 1.052463554, 0.064799647}, {11, 5, 1.054424862, 0.008169310},
    };
    static const struct cell kimi[] = {
        {1, 0, 0.540302306, 0.841470985},     {100, 19, 0.986878271, 0.161466025},
        {1000, 20, 0.999347004, 0.036132601}, {1000, 19, -0.050941523, 0.998701638},
        {8000, 31, 0.999975419, 0.007011473},
    };
    static const struct cell plain[] = {{3, 0, -1.355188795, 0.193177478}, {100, 16, 1.167010541, 0.715500247}};
    static const struct cell crossed[] = {{3, 1, 1.272262744, 0.505174936}, {7, 2, 1.360445653, 0.151795366}};
    struct tt_rope rope = {.theta = 10000.0,
                           .factor = 40.0,
                           .original_max = 4096.0,
                           .beta_fast = 32.0,
                           .beta_slow = 1.0,
                           .mscale = 1.0,
                           .mscale_all_dim = 1.0};
    const struct tt_rope small = {.theta = 500.0,
                                  .factor = 8.0,
                                  .original_max = 5.0,
                                  .beta_fast = 2.0,
                                  .beta_slow = 0.1,
                                  .mscale = 1.0,
                                  .mscale_all_dim = 0.7};
    /* the last pair to scale comes before the first: none is scaled */
    const struct tt_rope backward = {
        .theta = 500.0, .factor = 40.0, .original_max = 5.0, .beta_fast = 32.0, .beta_slow = 1.0, .fractional = true};

    const struct tt_rope equal = {.theta = 50000.0, /* both betas, as in Kimi-K2 */
                                  .factor = 32.0,
                                  .original_max = 4096.0,
                                  .beta_fast = 1.0,
                                  .beta_slow = 1.0,
                                  .mscale = 1.0,
                                  .mscale_all_dim = 1.0};

    check_rope(&equal, 8192, 64, kimi, 5);
    check_rope(&rope, 8192, 64, v3, 8);
    assert_true(fabs(tt_rope_score_scale(&rope) - 1.87385) < 1e-5);
    assert_true(fabs(tt_rope_score_scale(&rope) / sqrt(192.0) - 0.135234) < 1e-6);
    check_rope(&small, 16, 12, tiny, 5);
    check_rope(&backward, 16, 6, crossed, 2);
    rope.mscale = rope.mscale_all_dim = 0.707;
    assert_true(fabs(tt_rope_score_scale(&rope) - 1.58963) < 1e-5);
    rope.mscale = rope.mscale_all_dim = 0.0;
    check_rope(&rope, 128, 64, plain, 2);
    assert_true(tt_rope_score_scale(&rope) == 1.0);
}

/* The context decides between the two lists, and the ratio of the lengths scales both, as in transformers' tables. */
static void longrope_has_the_angles_of_transformers(void **state)
{
    static const struct cell up_to_original[] = {
        {0, 2, 1.264911064, 0.0},          {1, 0, 0.733325490, 1.030647236},  {31, 1, 1.236699507, -0.265658292},
        {31, 3, 1.237994195, 0.259558036}, {31, 5, 1.264886311, 0.007913301},
    };
    static const struct cell beyond[] = {
        {1, 0, 0.683434365, 1.064385959},   {32, 1, 0.704624678, -1.050478016}, {200, 2, -1.209671800, -0.369721702},
        {255, 3, 1.219615674, 0.335466255}, {255, 5, 1.264908623, 0.002484903},
    };
    struct tt_rope rope = {.theta = 10000.0,
                           .factor = 8.0,
                           .original_max = 32.0,
                           .short_factor = {1.05F, 1.1F, 1.25F, 1.5F, 1.9F, 2.3F},
                           .long_factor = {1.0F, 1.3F, 2.7F, 9.5F, 24.0F, 60.25F}};
    struct tt_rope of = tt_rope_of_context(&rope, 8, 32);

    check_rope(&of, 32, 12, up_to_original, 5);
    of = tt_rope_of_context(&rope, 8, 33);
    check_rope(&of, 256, 12, beyond, 5);
    rope.attention_factor = 1.19;
    assert_true(tt_rope_table_scale(&rope) == 1.19 && tt_rope_score_scale(&rope) == 1.0);
    rope.attention_factor = 0.0;
    rope.factor = 1.0;
    assert_true(tt_rope_table_scale(&rope) == 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_table_has_the_published_values),
        cmocka_unit_test(yarn_has_the_angles_of_transformers),
        cmocka_unit_test(longrope_has_the_angles_of_transformers),
    };

    (void)cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
