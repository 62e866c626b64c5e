/* SPDX-License-Identifier: MIT
 *
 * Programs for any order of compute, of one graph and of several stages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/models/internal.h"
#include "parallel/comm/collectives.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/planner/simple_fsdp.h"
#include "tests/help/names.h"
#include "tests/par/orders.h"

#define DEFAULT TT_RESHARD_AFTER_FORWARD_DEFAULT
#define ALWAYS  TT_RESHARD_AFTER_FORWARD_ALWAYS
#define NEVER   TT_RESHARD_AFTER_FORWARD_NEVER

/* --- orders of compute --- */

/* An order from words that consist of a pass and a microbatch, such as "F0 B0 W0". */
static struct tt_order order_of(const char *text)
{
    struct tt_order order = {0};

    for (const char *word = text; *word; word += word[2] ? 3 : 2)
        tt_order_add(&order, word[1] - '0', 0,
                     word[0] == 'F'   ? TT_PASS_FORWARD
                     : word[0] == 'B' ? TT_PASS_BACKWARD
                                      : TT_PASS_WEIGHTS);
    return order;
}

/* Gradients of `block` microbatches are added before they are reduced. */
static void schedule_blocks(const struct planned *made, const struct tt_stage *stages, int n_stages,
                            const struct tt_order *order, const char *name, int prefetch, int block,
                            const char *wanted_sum)
{
    const struct tt_machine machine = tt_machine_builtin();
    bool reshard[16];
    const struct tt_candidate candidate = {
        .reshard = reshard,
        .bucket_bytes = 4000,
        .limits = {.step_bytes = INT64_MAX, .exchanged_bytes = INT64_MAX},
    };
    struct tt_lowering lowering = {.stages = stages,
                                   .n_stages = n_stages,
                                   .layout = made->program->layout,
                                   .microbatches = made->program->microbatches,
                                   .block = block,
                                   .threads = 1,
                                   .staging = tt_collective_staging};
    struct tt_usage usage;
    struct tt_step_facts facts;
    struct tt_program *programs[2] = {0};

    if (tt_usage_make(order, stages, n_stages, lowering.layout, block, &usage) < 0)
        fail_msg("%s: %s", name, tt_error_message());
    for (int planned = 0; planned < 2; planned++) {
        struct tt_schedule schedule = {0};

        if (!planned) {
            tt_fsdp_schedule(&(struct tt_fsdp){.usage = &usage, .prefetch = prefetch}, &schedule);
        } else {
            tt_step_facts_make(&usage, &lowering, &machine, programs[0], &facts);
            for (int u = 0; u < lowering.layout->n_units; u++)
                reshard[u] = lowering.layout->units[u].reshard_after_forward;
            schedule = tt_simple_fsdp_plan(&(struct tt_simple_fsdp){&lowering, &facts, &machine, prefetch}, candidate)
                           .schedule;
            tt_step_facts_release(&facts);
        }
        lowering.free_early = planned;
        if (tt_program_new(&lowering, &schedule, &programs[planned]) < 0 || tt_program_check(programs[planned]) < 0)
            fail_msg("%s: %s", name, tt_error_message());
        names_run(programs[planned], wanted_sum);
        tt_schedule_release(&schedule);
    }
    tt_program_free(programs[0]);
    tt_program_free(programs[1]);
    tt_usage_release(&usage);
}

/* Schedules the order with both engines on the layout of `made`, and runs the programs that reduce each microbatch and
 * those that reduce all at once. `name` goes into failures. */
static void schedule_order(const struct planned *made, const struct tt_stage *stages, int n_stages,
                           const struct tt_order *order, const char *name, int prefetch, const char *wanted_sum)
{
    schedule_blocks(made, stages, n_stages, order, name, prefetch, 1, wanted_sum);
    schedule_blocks(made, stages, n_stages, order, name, prefetch, made->program->microbatches, wanted_sum);
}

/* Schedulers take any order of compute, and the sum of the gradients is the same tree. */
static void any_order_of_compute_can_be_scheduled(void **state)
{
    static const char *const orders[] = {
        "F0 B0 F1 B1 F2 B2",          "F0 F1 F2 B0 B1 B2",          "F0 F1 B0 F2 B1 B2", "F0 B0 W0 F1 B1 W1 F2 B2 W2",
        "F0 F1 B0 F2 W0 B1 B2 W1 W2", "F0 F1 F2 B0 B1 B2 W0 W1 W2", "F0 F1 F2 B2 B1 B0", "F2 B2 F0 B0 F1 B1",
        "F0 F1 F2 B0 B1 B2 W2 W1 W0", "F1 B1 F2 F0 B0 B2 W1 W0 W2"};
    static const enum tt_reshard policies[] = {DEFAULT, ALWAYS, NEVER};

    for (int shards = 1; shards <= 2; shards++)
        for (int policy = 0; policy < 3; policy++)
            for (int tied = 0; tied <= 1; tied++) {
                struct planned made = planned_make(&(struct plan){shards, 2, 3, 1, policies[policy], tied});

                for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
                    struct tt_order order = order_of(orders[i]);

                    schedule_order(&made, made.program->stages, 1, &order, orders[i], 1 + (int)i % 2,
                                   "((0+1)+2) over replicas");
                    tt_order_release(&order);
                }
                planned_release(&made);
            }
}

/* --- stages --- */

enum { MOST_STAGES = 4 };

/* Cuts the model of `made` after some of its nodes, which need not be between blocks. */
static void cut(const struct planned *made, int n_stages, const int *after, struct tt_recompute recompute,
                struct tt_stage *ret_stages)
{
    struct tt_graph *forward = NULL;
    int *stage_of;

    assert_int_equal(tt_model_graph(made->model, TT_GRAPH_VALIDATE, TT_F32, 1, 4, false, &forward, NULL), 0);
    stage_of = tt_calloc((size_t)forward->n_nodes, sizeof *stage_of);
    for (int n = 0; n < forward->n_nodes; n++)
        for (int s = 0; s + 1 < n_stages; s++)
            stage_of[n] += n > after[s];
    assert_int_equal(tt_graph_cut(forward, stage_of, n_stages, ret_stages), 0);
    assert_int_equal(tt_stages_differentiate(ret_stages, n_stages), 0);
    for (int s = 0; s < n_stages; s++)
        tt_graph_recompute(ret_stages[s].graph, &recompute);
    tt_free(stage_of);
    tt_graph_free(forward);
}

/* Every read finds what was written, wherever the model is cut, and in any order of its parts. */
static void stages_share_what_crosses_their_boundaries(void **state)
{
    static const struct tt_recompute recomputes[] = {
        {TT_RECOMPUTE_NONE, 0}, {TT_RECOMPUTE_FULL, 0}, {TT_RECOMPUTE_OP, 0}};
    static const enum tt_reshard policies[] = {DEFAULT, ALWAYS, NEVER};
    int turn = 0;

    for (int tied = 0; tied <= 1; tied++)
        for (int shards = 1; shards <= 2; shards++) {
            struct planned made = planned_make(&(struct plan){shards, 2, 3, 1, policies[(tied + shards) % 3], tied});
            int n_nodes = made.program->stages[0].graph->n_nodes, n_forward = 0;

            while (n_forward < n_nodes && !made.program->stages[0].graph->nodes[n_forward].backward)
                n_forward++;
            for (int first = 0; first + 1 < n_forward; first++)
                for (int n_stages = 2; n_stages <= MOST_STAGES; n_stages++, turn++) {
                    struct tt_stage stages[MOST_STAGES] = {{0}};
                    int after[MOST_STAGES] = {first, first + 1, (first + n_forward) / 2 + 1};
                    enum orders_kind kind = (enum orders_kind)(turn % ORDERS_KINDS);
                    struct tt_order order = orders_make(kind, 3, n_stages, (uint64_t)turn, turn % 2);
                    char name[80];

                    (void)snprintf(name, sizeof name, "%d stages, the first ends at node %d, order %d", n_stages, first,
                                   (int)kind);
                    cut(&made, n_stages, after, recomputes[turn % 3], stages);
                    schedule_order(&made, stages, n_stages, &order, name, 1 + turn % 2, "((0+1)+2) over replicas");
                    tt_order_release(&order);
                    tt_stages_release(stages, n_stages);
                }
            planned_release(&made);
        }
}

/*
 * x and y = norm(x) leave a stage and are added in the next, so both gradients are one value. The backward node of the
 * norm reads that value twice, as the gradient of y and as the array to add to: it must not overwrite it.
 */
static void gradients_that_are_one_value_are_not_overwritten(void **state)
{
    struct planned made = planned_make(&(struct plan){1, 1, 1, 1, DEFAULT, false});
    struct tt_lowering lowering = {.n_stages = 2,
                                   .layout = made.program->layout,
                                   .microbatches = 1,
                                   .threads = 1,
                                   .staging = tt_collective_staging};
    struct tt_order order = tt_order_accumulate(1, 2, true);
    struct tt_stage stages[2] = {{0}};
    struct tt_graph *forward = tt_graph_new();
    struct tt_schedule schedule = {0};
    struct tt_program *program = NULL;
    struct tt_position *positions;
    struct tt_build build;
    int n, x, y;

    tt_build_begin(&build, made.model, 1, 4, forward);
    tt_build_block(&build, TT_NONE);
    x = tt_build_embedding(&build, "embeddings", "tok_embeddings");
    tt_build_block(&build, 0);
    y = tt_build_norm(&build, "attention_norm", x);
    tt_build_block(&build, TT_NONE);
    tt_build_head_loss(&build, "output", tt_build_add(&build, "sum", x, y));
    assert_int_equal(tt_graph_cut(forward, (const int[]){0, 0, 1, 1}, 2, stages), 0);
    assert_int_equal(tt_stages_differentiate(stages, 2), 0);
    assert_int_equal(stages[1].in[0].grad, stages[1].in[1].grad);
    assert_int_equal(tt_order_positions(&order, stages, 2, &positions, &n), 0);
    for (int i = 0; i < n; i++)
        tt_schedule_run(&schedule, stages, positions[i].microbatch, positions[i].stage, positions[i].node);
    lowering.stages = stages;
    assert_int_equal(tt_program_new(&lowering, &schedule, &program), 0);
    assert_int_equal(tt_program_check(program), 0);
    names_run(program, NULL);
    tt_program_free(program);
    tt_schedule_release(&schedule);
    tt_free(positions);
    tt_order_release(&order);
    tt_stages_release(stages, 2);
    tt_graph_free(forward);
    planned_release(&made);
}

static struct tt_program *lower_stages(const struct planned *made, const struct tt_stage *stages, int n_stages)
{
    struct tt_lowering lowering = {.stages = stages,
                                   .n_stages = n_stages,
                                   .layout = made->program->layout,
                                   .microbatches = made->program->microbatches,
                                   .threads = 1,
                                   .staging = tt_collective_staging};
    struct tt_order order = tt_order_accumulate(lowering.microbatches, n_stages, true);
    struct tt_usage usage;
    struct tt_schedule schedule = {0};
    struct tt_program *program = NULL;

    assert_int_equal(tt_usage_make(&order, stages, n_stages, lowering.layout, 1, &usage), 0);
    tt_fsdp_schedule(&(struct tt_fsdp){.usage = &usage, .prefetch = 1}, &schedule);
    if (tt_program_new(&lowering, &schedule, &program) < 0)
        fail_msg("%s", tt_error_message());
    tt_schedule_release(&schedule);
    tt_usage_release(&usage);
    tt_order_release(&order);
    return program;
}

/* In the order of the whole graph, stages copy nothing and keep nothing longer, so a rank needs the same memory. */
static void stages_in_turn_take_the_memory_of_one_graph(void **state)
{
    struct planned made = planned_make(&(struct plan){1, 1, 2, 1, DEFAULT, false});
    struct tt_stage stages[MOST_STAGES] = {{0}};

    for (int first = 0; first < 20; first += 3) {
        struct tt_program *program;

        cut(&made, 3, (const int[]){first, first + 4}, (struct tt_recompute){TT_RECOMPUTE_NONE, 0}, stages);
        program = lower_stages(&made, stages, 3);
        assert_int_equal(tt_program_check(program), 0);
        assert_int_equal(program->live_bytes, made.program->live_bytes);
        assert_int_equal(program->const_bytes, made.program->const_bytes);
        tt_program_free(program);
        tt_stages_release(stages, 3);
    }
    planned_release(&made);
}

static void must_not_lower(const struct planned *made, const struct tt_stage *stages, int n_stages, const char *message)
{
    struct tt_lowering lowering = {.stages = stages,
                                   .n_stages = n_stages,
                                   .layout = made->program->layout,
                                   .microbatches = 1,
                                   .threads = 1,
                                   .staging = tt_collective_staging};
    struct tt_schedule schedule = {0};
    struct tt_program *program = NULL;

    assert_int_equal(tt_program_new(&lowering, &schedule, &program), TT_EINTERNAL);
    if (!strstr(tt_error_message(), message))
        fail_msg("found '%s', wanted '%s'", tt_error_message(), message);
}

static void a_stage_needs_its_neighbours(void **state)
{
    struct planned made = planned_make(&(struct plan){1, 1, 1, 1, DEFAULT, false});
    struct tt_stage stages[MOST_STAGES] = {{0}};

    cut(&made, 3, (const int[]){5, 9}, (struct tt_recompute){TT_RECOMPUTE_NONE, 0}, stages);
    must_not_lower(&made, stages, 2, "stage 1 exchanges values with a stage that no rank has");
    must_not_lower(&made, stages + 1, 2, "stage 1 exchanges values with a stage that no rank has");
    tt_stages_release(stages, 3);
    planned_release(&made);
}

/* Each of the two stages is a whole model, so every gradient is computed twice. */
static void one_stage_makes_a_gradient(void **state)
{
    struct planned made = planned_make(&(struct plan){1, 1, 1, 1, DEFAULT, false});
    const struct tt_stage twice[2] = {made.program->stages[0], made.program->stages[0]};

    must_not_lower(&made, twice, 2, "stages 0 and 1 both make '");
    planned_release(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_of_compute_can_be_scheduled),
        cmocka_unit_test(stages_share_what_crosses_their_boundaries),
        cmocka_unit_test(gradients_that_are_one_value_are_not_overwritten),
        cmocka_unit_test(stages_in_turn_take_the_memory_of_one_graph),
        cmocka_unit_test(a_stage_needs_its_neighbours),
        cmocka_unit_test(one_stage_makes_a_gradient),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("program_orders", tests, NULL, NULL);
}
