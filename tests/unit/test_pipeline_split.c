/* SPDX-License-Identifier: MIT
 *
 * Stages of pipelines: torchtitan's rule, with the results of its code; lists of modules; and faults that are
 * refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/pipeline/split.h"

static void expect_message(int rc, const char *part)
{
    assert_int_equal(rc, TT_EUSAGE);
    if (!strstr(tt_error_message(), part))
        fail_msg("'%s' is not in: %s", part, tt_error_message());
}

static struct tt_pipeline_rule rule_of(int n_layers, int ranks, bool multi)
{
    return (struct tt_pipeline_rule){
        .n_layers = n_layers, .ranks = ranks, .first_less = 1, .last_less = 1, .multi = multi};
}

/* --- the rule --- */

/* layers[s] are the layers of stage s; the embeddings are in the first stage, norm and output in the last. */
static void expect_layers(struct tt_pipeline_rule rule, const int *layers, int n_stages)
{
    struct tt_stage_split split;
    int first = 0;

    if (tt_pipeline_split(&rule, &split) < 0)
        fail_msg("%d layers, %d ranks: %s", rule.n_layers, rule.ranks, tt_error_message());
    assert_int_equal(split.n_stages, n_stages);
    assert_int_equal(split.n_modules, rule.n_layers + 3);
    for (int s = 0; s < n_stages; s++) {
        struct tt_stage_range range = tt_stage_split_layers(&split, s);

        assert_int_equal(range.n_layers, layers[s]);
        assert_int_equal(range.first_layer, first);
        first += range.n_layers;
    }
    assert_int_equal(first, rule.n_layers);
    assert_int_equal(split.module_stage[0], 0);
    assert_int_equal(split.module_stage[split.n_modules - 2], n_stages - 1);
    assert_int_equal(split.module_stage[split.n_modules - 1], n_stages - 1);
    for (int m = 1; m < split.n_modules; m++)
        assert_true(split.module_stage[m] >= split.module_stage[m - 1]);
    tt_stage_split_release(&split);
    assert_null(split.module_stage);
}

#define LAYERS(rule, ...) expect_layers(rule, (const int[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int))

static void layers_are_split_as_torchtitan_does(void **state)
{
    LAYERS(rule_of(6, 2, false), 3, 3);
    LAYERS(rule_of(6, 4, false), 1, 2, 2, 1);
    LAYERS(rule_of(6, 2, true), 1, 2, 2, 1);
    LAYERS(rule_of(32, 4, false), 8, 9, 8, 7);
    LAYERS(rule_of(32, 8, false), 4, 5, 4, 4, 4, 4, 4, 3);
    LAYERS(rule_of(32, 4, true), 4, 5, 4, 4, 4, 4, 4, 3);
    LAYERS(rule_of(27, 4, false), 7, 7, 7, 6);
    LAYERS(rule_of(61, 16, false), 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2);
    LAYERS(rule_of(80, 8, false), 10, 11, 10, 10, 10, 10, 10, 9);
    LAYERS(rule_of(126, 16, false), 7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7);
}

static void one_stage_has_everything(void **state)
{
    struct tt_pipeline_rule r = rule_of(6, 1, false);

    LAYERS(r, 6);
    r.first_less = 20;
    LAYERS(r, 6);
}

/* With one rank per unit, the ends have no layer. */
static void a_stage_may_have_no_layer(void **state)
{
    struct tt_pipeline_rule r = rule_of(6, 8, false);

    LAYERS(r, 0, 1, 1, 1, 1, 1, 1, 0);
}

static void embeddings_and_output_may_count_as_other_numbers_of_layers(void **state)
{
    struct tt_pipeline_rule r = rule_of(32, 4, false);

    r.first_less = 0;
    r.last_less = 0;
    LAYERS(r, 8, 8, 8, 8);
    r.last_less = 4;
    LAYERS(r, 9, 9, 9, 5);
    r.first_less = 2;
    LAYERS(r, 8, 10, 9, 5);
}

static void layers_per_stage_gives_the_number_of_stages(void **state)
{
    struct tt_pipeline_rule r = rule_of(32, 4, true);

    r.layers_per_stage = 3;
    LAYERS(r, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 1);
    r.layers_per_stage = 4;
    expect_message(tt_pipeline_split(&r, &(struct tt_stage_split){0}), "4 makes 9 stages of 32 layers");
    r.layers_per_stage = 5;
    expect_message(tt_pipeline_split(&r, &(struct tt_stage_split){0}), "7 stages");
    r.multi = false;
    r.layers_per_stage = 11;
    LAYERS(r, 8, 9, 8, 7);
}

static void refused(struct tt_pipeline_rule rule, const char *what, const char *works)
{
    struct tt_stage_split split = {0};

    expect_message(tt_pipeline_split(&rule, &split), what);
    expect_message(TT_EUSAGE, works);
    assert_null(split.module_stage);
}

static void what_cannot_be_split_is_refused(void **state)
{
    struct tt_pipeline_rule r = rule_of(32, 4, false);

    r.layers_per_stage = 5;
    refused(
        r,
        "5 makes 7 stages of 32 layers (embeddings and output count as 1 and 1 more), which cannot be shared equally",
        "\nhelp: with parallelism.pipeline_parallel_degree 4, parallelism.pipeline_parallel_layers_per_stage can be 9 "
        "to 11");
    r.layers_per_stage = 17;
    refused(r, "which cannot be shared equally by 4 ranks", "can be 9 to 11");
    r.layers_per_stage = 3;
    refused(r, "3 makes 12 stages of 32 layers",
            "each of 4 ranks has one\nhelp: with parallelism.pipeline_parallel_degree 4, "
            "parallelism.pipeline_parallel_layers_per_stage can "
            "be 9 to 11");
    r.multi = true;
    r.layers_per_stage = 9;
    refused(r, "9 makes 4 stages",
            "each of 4 ranks has at least 2\nhelp: with parallelism.pipeline_parallel_degree 4, "
            "parallelism.pipeline_parallel_layers_per_stage can be 3");
}

static void more_ranks_than_layers_are_refused(void **state)
{
    struct tt_pipeline_rule r = rule_of(6, 9, false);

    refused(r,
            "parallelism.pipeline_parallel_degree 9 needs 9 stages, and 6 layers, with 1 and 1 more for embeddings and "
            "output, are too few",
            "help: with 6 layers, parallelism.pipeline_parallel_degree can be 1 to 8");
    r.multi = true;
    r.ranks = 8;
    refused(r, "parallelism.pipeline_parallel_degree 8 needs 16 stages",
            "parallelism.pipeline_parallel_degree can be 1 to 4");
}

static void heavy_ends_are_refused(void **state)
{
    struct tt_pipeline_rule r = rule_of(32, 8, false);

    r.first_less = 7;
    refused(r, "parallelism.pipeline_parallel_first_stage_less_layers 7 is more than the 5", "help: it can be 0 to 4");
    r.first_less = 1;
    r.last_less = 6;
    refused(r, "parallelism.pipeline_parallel_last_stage_less_layers 6 is more than the 4", "help: it can be 0 to 4");
}

/* Where the weight alone cannot help, the message names what can. */
static void other_keys_that_work_are_named(void **state)
{
    struct tt_pipeline_rule r = rule_of(2, 2, true);

    r.first_less = 0;
    r.last_less = 2;
    refused(r, "parallelism.pipeline_parallel_last_stage_less_layers 2 is more than the 1",
            "help: with 2 layers, parallelism.pipeline_parallel_degree can be 1; or set "
            "parallelism.pipeline_parallel_first_stage_less_layers and "
            "parallelism.pipeline_parallel_last_stage_less_layers to 1; "
            "or use a schedule with one stage on each rank, such as 1F1B");
    r.last_less = 0;
    refused(r, "are too few",
            "can be 1; or set parallelism.pipeline_parallel_first_stage_less_layers and "
            "parallelism.pipeline_parallel_last_stage_less_layers to 1; or use");
    r = rule_of(2, 4, true);
    refused(r, "parallelism.pipeline_parallel_degree 4 needs 8 stages",
            "can be 1 to 2; or use a schedule with one stage on each rank");
}

/* For all small numbers, a split contains every layer, and stages differ by at most one unit. */
static void every_split_is_complete_or_refused(void **state)
{
    int done = 0, not_done = 0;

    for (int layers = 1; layers <= 12; layers++)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int per_stage = 0; per_stage <= 6; per_stage++)
                for (int less = 0; less < 9; less++)
                    for (int multi = 0; multi < 2; multi++) {
                        struct tt_pipeline_rule r = {layers, ranks, per_stage, less % 3, less / 3, multi != 0};
                        struct tt_stage_split split;
                        int total = 0, least = 1000, most = 0;

                        if (tt_pipeline_split(&r, &split) < 0) {
                            assert_non_null(strstr(tt_error_message(), "\nhelp: "));
                            not_done++;
                            continue;
                        }
                        assert_int_equal(split.n_stages % ranks, 0);
                        assert_true(multi ? split.n_stages >= 2 * ranks : split.n_stages == ranks);
                        for (int s = 0; s < split.n_stages; s++) {
                            int n = tt_stage_split_layers(&split, s).n_layers;
                            int units = n + (s == 0) * r.first_less + (s == split.n_stages - 1) * r.last_less;

                            total += n;
                            least = units < least ? units : least;
                            most = units > most ? units : most;
                        }
                        assert_int_equal(total, layers);
                        assert_true(most - least <= 1);
                        assert_true(per_stage == 0 || most <= per_stage);
                        tt_stage_split_release(&split);
                        done++;
                    }
    assert_true(done > 1000 && not_done > 1000);
}

/* --- lists of modules --- */

#define NAMED(ranks, multi, split, ...)                                                                                \
    tt_pipeline_split_named(                                                                                           \
        &(struct tt_words){sizeof((char *[]){__VA_ARGS__}) / sizeof(char *), true, (char *[]){__VA_ARGS__}}, 3, ranks, \
        multi, split)

static void modules_go_where_they_are_listed(void **state)
{
    const int wanted[] = {0, 0, 1, 1, 1, 1};
    struct tt_stage_split split;

    assert_int_equal(NAMED(2, false, &split, "tok_embeddings layers.0", "layers.1 layers.2 norm output"), 0);
    assert_int_equal(split.n_stages, 2);
    assert_int_equal(split.n_modules, 6);
    assert_memory_equal(split.module_stage, wanted, sizeof wanted);
    tt_stage_split_release(&split);
    assert_int_equal(NAMED(2, true, &split, "tok_embeddings", "layers.0 layers.1 layers.2", "norm", "output"), 0);
    assert_int_equal(split.module_stage[4], 2);
    assert_int_equal(tt_stage_split_layers(&split, 1).n_layers, 3);
    assert_int_equal(tt_stage_split_layers(&split, 2).n_layers, 0);
    tt_stage_split_release(&split);
}

static void lists_must_be_complete_and_in_order(void **state)
{
    struct tt_stage_split s = {0};

    expect_message(NAMED(2, false, &s, "tok_embeddings layers.0", "layers.2 norm output"),
                   "no stage has module 'layers.1'\nhelp: list it before 'layers.2', in stage 1 or before it");
    expect_message(NAMED(2, false, &s, "tok_embeddings layers.1", "layers.0 layers.2 norm"),
                   "stage 0 has module 'layers.1' before 'layers.0'");
    expect_message(NAMED(2, false, &s, "tok_embeddings layers.0", "layers.0 layers.1"),
                   "module 'layers.0' is listed twice, for stages 0 and 1");
    expect_message(NAMED(2, false, &s, "tok_embeddings layers.0", "layers.1 layers.2 norm"),
                   "no stage has module 'output'\nhelp: add it to the last stage");
    expect_message(NAMED(2, false, &s, "tok_embeddings layers.00", "layers.1 layers.2 norm"),
                   "stage 0 has 'layers.00', which is not a module of a model with 3 layers\nhelp: the modules are "
                   "tok_embeddings, layers.0 to layers.2, norm and output");
    expect_message(NAMED(2, false, &s, "tok_embeddings layers.0 layers.1 layers.2", "layers.3"),
                   "'layers.3', which is not a module");
    expect_message(NAMED(2, false, &s, "tok_embeddings", " "), "stage 1 has no module");
    assert_null(s.module_stage);
}

static void ranks_need_their_number_of_lists(void **state)
{
    struct tt_stage_split s = {0};

    expect_message(NAMED(3, false, &s, "tok_embeddings", "norm"), "2 stages are listed for 3 ranks");
    expect_message(NAMED(1, false, &s, "tok_embeddings", "norm"), "use a schedule with several stages");
    expect_message(NAMED(2, true, &s, "tok_embeddings", "norm"), "help: list 4 stages, 6 or another");
    expect_message(NAMED(1, true, &s, "tok_embeddings"), "at least 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_split_as_torchtitan_does),
        cmocka_unit_test(one_stage_has_everything),
        cmocka_unit_test(a_stage_may_have_no_layer),
        cmocka_unit_test(embeddings_and_output_may_count_as_other_numbers_of_layers),
        cmocka_unit_test(layers_per_stage_gives_the_number_of_stages),
        cmocka_unit_test(what_cannot_be_split_is_refused),
        cmocka_unit_test(more_ranks_than_layers_are_refused),
        cmocka_unit_test(heavy_ends_are_refused),
        cmocka_unit_test(other_keys_that_work_are_named),
        cmocka_unit_test(every_split_is_complete_or_refused),
        cmocka_unit_test(modules_go_where_they_are_listed),
        cmocka_unit_test(lists_must_be_complete_and_in_order),
        cmocka_unit_test(ranks_need_their_number_of_lists),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
