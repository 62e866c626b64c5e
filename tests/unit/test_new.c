/* SPDX-License-Identifier: MIT
 *
 * The rules of `titan new`: their limits, and the law of the loss against the runs that it was fitted to.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/new/new.h"

static void depths_give_growing_models_of_good_shapes(void **state)
{
    struct tt_recipe before = {0};

    for (int64_t depth = 2; depth <= 32; depth++) {
        struct tt_recipe r = {0};

        tt_rule_shape(depth, &r);
        assert_int_equal(r.dim, r.heads * 64);
        assert_true(r.ffn_dim % 64 == 0 && llabs(3 * r.ffn_dim - 8 * r.dim) <= 3 * 64);
        assert_true(r.vocab >= before.vocab && r.vocab <= 32768 && (r.vocab & (r.vocab - 1)) == 0);
        assert_true(r.multiplying > before.multiplying);
        assert_int_equal(r.parameters, r.multiplying + r.vocab * r.dim);
        before = r;
    }
    assert_int_equal(before.vocab, 32768);
}

/* Lingle found 0.00195 for 46M parameters and 128M tokens; the ladder's sweep 0.0114 for 0.7M and 1M. */
static void batch_and_rate_are_those_of_the_sources(void **state)
{
    struct tt_recipe r = {.multiplying = 46006272, .seq_len = 1024};

    tt_rule_batch(127991808.0, 1, &r);
    assert_true(fabs(r.lr / 0.00195 - 1.0) < 0.1);
    assert_int_equal(r.batch, 32); /* 0.58 x 128M^0.571 = 24,700 tokens */
    assert_int_equal(r.local_batch, 8);
    tt_rule_batch(127991808.0, 3, &r);
    assert_int_equal(r.batch, 33);
    r = (struct tt_recipe){.multiplying = 688768, .seq_len = 512};
    tt_rule_batch(999424.0, 1, &r);
    assert_true(fabs(r.lr / 0.0114 - 1.0) < 0.1);
    assert_int_equal(r.batch, 4);
}

static void few_documents_are_not_split(void **state)
{
    struct tt_recipe r = {.multiplying = 1000000, .seq_len = 512, .batch = 8, .steps = 1000, .step_sec = 2.0};

    r.bytes_per_token = 3.0;
    tt_rule_rest(39, 100000000, &r);
    assert_true(r.split == 0.0);
    tt_rule_rest(100000, 100000000, &r);
    assert_true(fabs(r.split - 0.01) < 1e-9);
    assert_int_equal(r.warmup, 50);
    assert_int_equal(r.save_every, 300);
    assert_int_equal(r.validate_every, 50);
    assert_true(fabs(r.epochs - 1000.0 * 8 * 512 * 3.0 / 0.99e8) < 1e-9);
}

/* The expected loss of every run of the ladder, those of the fit and those that were held out. */
static void the_law_contains_the_runs_of_the_ladder(void **state)
{
    static const struct {
        const char *role, *text;
        int64_t n, d;
        double loss;
    } runs[] = {
#define TT_LADDER_RUN(role, text, depth, vocab, tokens, batch, lr, n, d, loss) {#role, #text, n, d, loss},
#include "cli/new/ladder.def"
    };
    int of[2] = {0};

    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct tt_recipe r = {.multiplying = runs[i].n, .epochs = 1.0};
        bool is_code = strcmp(runs[i].text, "code") == 0;

        if (strcmp(runs[i].role, "rate") == 0)
            continue;
        tt_rule_loss(is_code ? TT_NEW_CODE : TT_NEW_TEXT, (double)runs[i].d, &r);
        assert_true(r.low * 0.999 <= runs[i].loss && runs[i].loss <= r.high * 1.001);
        assert_true(r.low < r.loss && r.loss < r.high && r.high < 2.0 * r.low);
        assert_false(r.is_beyond);
        of[is_code]++;
    }
    assert_true(of[0] >= 6 && of[1] >= 1);
}

/* A pass more always helps, but less and less: in the end as much as 15.39 more texts. */
static void repeated_text_is_worth_less(void **state)
{
    struct tt_recipe once = {.multiplying = 3000000, .epochs = 1.0}, four = once, many = once, fresh = once;

    four.epochs = 4.0;
    many.epochs = 1e6;
    tt_rule_loss(TT_NEW_TEXT, 3e6, &once);
    tt_rule_loss(TT_NEW_TEXT, 3e6, &four);
    tt_rule_loss(TT_NEW_TEXT, 3e6, &many);
    tt_rule_loss(TT_NEW_TEXT, 12e6, &fresh);
    assert_true(once.loss > four.loss && four.loss > fresh.loss && four.loss > many.loss);
    tt_rule_loss(TT_NEW_TEXT, 3e6 * 16.39, &fresh);
    assert_true(fabs(many.loss - fresh.loss) < 1e-3 * fresh.loss);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(depths_give_growing_models_of_good_shapes),
        cmocka_unit_test(batch_and_rate_are_those_of_the_sources),
        cmocka_unit_test(few_documents_are_not_split),
        cmocka_unit_test(the_law_contains_the_runs_of_the_ladder),
        cmocka_unit_test(repeated_text_is_worth_less),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
