/* SPDX-License-Identifier: MIT
 *
 * Lowering: programs of the eager schedule and of buckets, and schedules that are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/program/executor.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"
#include "tests/help/names.h"

#define DEFAULT TT_RESHARD_AFTER_FORWARD_DEFAULT
#define ALWAYS  TT_RESHARD_AFTER_FORWARD_ALWAYS
#define NEVER   TT_RESHARD_AFTER_FORWARD_NEVER

static void gradients_are_summed_as_a_balanced_tree(void **state)
{
    static const char *const trees[] = {"0",
                                        "(0+1)",
                                        "((0+1)+2)",
                                        "((0+1)+(2+3))",
                                        "(((0+1)+(2+3))+4)",
                                        "(((0+1)+(2+3))+(4+5))",
                                        "(((0+1)+(2+3))+((4+5)+6))",
                                        "(((0+1)+(2+3))+((4+5)+(6+7)))",
                                        "((((0+1)+(2+3))+((4+5)+(6+7)))+8)"};

    for (int a = 1; a <= 9; a++)
        for (int shards = 1; shards <= 2; shards++) {
            struct planned made = planned_make(&(struct plan){shards, 1, a, 1, DEFAULT, false});

            names_run(made.program, trees[a - 1]);
            planned_release(&made);
        }
}

static void every_read_finds_what_was_written(void **state)
{
    static const enum tt_reshard policies[] = {DEFAULT, ALWAYS, NEVER};

    for (int shards = 1; shards <= 4; shards++)
        for (int replicas = 1; replicas <= 2; replicas++)
            for (int policy = 0; policy < 3; policy++)
                for (int prefetch = 0; prefetch <= 5; prefetch++)
                    for (int tied = 0; tied <= 1; tied++) {
                        struct planned made =
                            planned_make(&(struct plan){shards, replicas, 3, prefetch, policies[policy], tied});

                        names_run(made.program, replicas == 2 ? "((0+1)+2) over replicas" : "((0+1)+2)");
                        planned_release(&made);
                    }
}

static void what_muon_needs_is_whole_and_lives_long_enough(void **state)
{
    for (int shards = 1; shards <= 4; shards++)
        for (int tied = 0; tied <= 1; tied++) {
            struct planned made = planned_make_muon(&(struct plan){shards, 1, 2, 1, DEFAULT, tied});
            int whole = 0, begun = 0;

            names_run(made.program, "(0+1)");
            for (int i = 0; i < made.program->n_instrs; i++) {
                const struct tt_instr *instr = &made.program->instrs[i];

                whole += instr->kind == TT_MUON;
                begun += instr->kind == TT_BEGIN && instr->purpose == TT_GATHER_UPDATES;
            }
            assert_int_equal(whole, 2); /* the blocks, of the four units */
            assert_int_equal(begun, shards > 1 ? 2 : 0);
            planned_release(&made);
        }
}

/*
 * Buckets, which the eager scheduler never uses: one collective gathers all units, one reduces them after the backward
 * of each microbatch, and one all-reduce follows.
 */
static void buckets_move_several_units_at_once(void **state)
{
    for (int shards = 1; shards <= 3; shards++) {
        struct planned made = planned_make(&(struct plan){shards, 2, 3, 1, DEFAULT, false});
        struct tt_lowering lowering = {.stages = made.program->stages,
                                       .n_stages = 1,
                                       .layout = made.program->layout,
                                       .microbatches = 3,
                                       .threads = 1,
                                       .staging = tt_collective_staging};
        static const int units[] = {2, 0, 3, 1};
        struct tt_schedule schedule = {0};
        struct tt_program *program = NULL;
        int all = tt_schedule_bucket(&schedule, units, 4);

        assert_int_equal(lowering.layout->n_units, 4);
        tt_schedule_collective(&schedule, TT_BEGIN, TT_UNSHARD, 0, TT_NONE, all);
        tt_schedule_collective(&schedule, TT_WAIT, TT_UNSHARD, 0, TT_NONE, all);
        for (int mb = 0; mb < 3; mb++) {
            for (int n = 0; n < lowering.stages[0].graph->n_nodes; n++)
                tt_schedule_run(&schedule, lowering.stages, mb, 0, n);
            tt_schedule_collective(&schedule, TT_BEGIN, TT_REDUCE, mb, TT_NONE, all);
            tt_schedule_collective(&schedule, TT_WAIT, TT_REDUCE, mb, TT_NONE, all);
        }
        tt_schedule_collective(&schedule, TT_BEGIN, TT_ALL_REDUCE, 0, TT_NONE, all);
        tt_schedule_collective(&schedule, TT_WAIT, TT_ALL_REDUCE, 0, TT_NONE, all);
        for (int u = 0; u < 4; u++)
            tt_schedule_add(&schedule, TT_NORM, 0, u);
        tt_schedule_add(&schedule, TT_CLIP, 0, TT_NONE);
        for (int u = 0; u < 4; u++)
            tt_schedule_add(&schedule, TT_OPTIMIZER, 0, u);
        assert_int_equal(tt_program_new(&lowering, &schedule, &program), 0);
        assert_int_equal(tt_program_check(program), 0);
        names_run(program, "((0+1)+2) over replicas");
        tt_program_free(program);
        tt_schedule_release(&schedule);
        planned_release(&made);
    }
}

static void one_rank_exchanges_nothing(void **state)
{
    struct planned made = planned_make(&(struct plan){1, 1, 2, 1, ALWAYS, false});

    for (int i = 0; i < made.program->n_instrs; i++) {
        const struct tt_instr_row *row = tt_instr_row(&made.program->instrs[i]);

        if (row->begins || row->waits || (row->part == TT_SPLIT_COMMUNICATION && !row->decides))
            fail_msg("instruction %d is '%s'", i, tt_instr_name(&made.program->instrs[i]));
    }
    for (int b = 0; b < made.program->n_buffers; b++)
        assert_true(made.program->buffers[b].kind != TT_MEMORY_UNSHARDED &&
                    made.program->buffers[b].kind != TT_MEMORY_STAGING);
    assert_int_equal(tt_program_payload(made.program), 0);
    planned_release(&made);
}

/* At any instruction the kinds add up to the live bytes. Their peak is live_bytes, up to alignment. */
static void memory_at_an_instruction_adds_up(void **state)
{
    struct planned made = planned_make(&(struct plan){2, 1, 2, 1, DEFAULT, false});
    const struct tt_program *p = made.program;
    int64_t most = 0, slack;

    for (int i = 0; i < p->n_instrs; i++) {
        int64_t kinds[TT_MEMORY_KINDS], sum = 0;

        tt_program_memory_at(p, i, kinds);
        for (int k = 0; k < TT_MEMORY_KINDS; k++)
            sum += k == TT_MEMORY_CONST ? 0 : kinds[k];
        assert_int_equal(kinds[TT_MEMORY_PARAM], 0);
        most = sum > most ? sum : most;
    }
    slack = 63 * (int64_t)p->n_buffers;
    assert_true(most <= p->live_bytes && p->live_bytes <= most + slack);
    assert_true(p->step_bytes >= p->live_bytes);
    planned_release(&made);
}

/* debug.check_plan relies on tt_program_check, so it must find each kind of damage. */
static void the_check_sees_damage(void **state)
{
    struct planned made = planned_make(&(struct plan){2, 1, 2, 1, DEFAULT, false});
    struct tt_program broken = *made.program;
    int victim = TT_NONE, other = TT_NONE;

    broken.buffers = tt_calloc((size_t)broken.n_buffers, sizeof *broken.buffers);
    memcpy(broken.buffers, made.program->buffers, (size_t)broken.n_buffers * sizeof *broken.buffers);
    for (int b = 0; b < broken.n_buffers; b++) {
        if (broken.buffers[b].kind == TT_MEMORY_ACTIVATION && broken.buffers[b].last > broken.buffers[b].first + 5)
            victim = b;
        if (broken.buffers[b].kind == TT_MEMORY_INPUT)
            other = b;
    }
    assert_true(victim != TT_NONE && other != TT_NONE);
    assert_int_equal(tt_program_check(&broken), 0);

    broken.buffers[victim].offset = broken.buffers[other].offset;
    assert_int_equal(tt_program_check(&broken), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "share memory"));

    broken.buffers[victim].offset = broken.step_bytes - broken.buffers[victim].bytes + 64;
    assert_int_equal(tt_program_check(&broken), TT_EINTERNAL);

    broken.buffers[victim] = made.program->buffers[victim];
    broken.buffers[victim].last = broken.buffers[victim].first;
    assert_int_equal(tt_program_check(&broken), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "outside of its life"));
    tt_free(broken.buffers);
    planned_release(&made);
}

/* A lowering of a schedule of one microbatch that the test writes itself. */
static struct tt_lowering lowering_of(const struct planned *made)
{
    return (struct tt_lowering){.stages = made->program->stages,
                                .n_stages = 1,
                                .layout = made->program->layout,
                                .microbatches = 1,
                                .threads = 1,
                                .staging = tt_collective_staging};
}

static void a_node_before_its_input_is_an_error(void **state)
{
    struct planned made = planned_make(&(struct plan){1, 1, 1, 1, DEFAULT, false});
    struct tt_lowering lowering = lowering_of(&made);
    struct tt_schedule schedule = {0};
    struct tt_program *program = NULL;

    tt_schedule_run(&schedule, lowering.stages, 0, 0, 1);
    assert_int_equal(tt_program_new(&lowering, &schedule, &program), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "runs rmsnorm on 'embeddings' before that value exists"));
    schedule.instrs[0].kind = TT_FOLD;
    assert_int_equal(tt_program_new(&lowering, &schedule, &program), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "a schedule cannot hold 'fold'"));
    assert_null(program);
    tt_schedule_release(&schedule);
    planned_release(&made);
}

/* A schedule that awaits what it did not begin, or begins what it does not await, is refused. */
static void a_collective_is_begun_before_it_is_awaited(void **state)
{
    struct planned made = planned_make(&(struct plan){2, 1, 1, 1, DEFAULT, false});
    struct tt_lowering lowering = lowering_of(&made);
    struct tt_schedule schedule = {0};
    struct tt_program *program = NULL;

    tt_schedule_collective(&schedule, TT_BEGIN, TT_UNSHARD, 0, 1, TT_NONE);
    tt_schedule_collective(&schedule, TT_WAIT, TT_UNSHARD, 0, 0, TT_NONE);
    assert_int_equal(tt_program_new(&lowering, &schedule, &program), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "'wait unshard' of tok_embeddings, which it has not begun"));
    schedule.instrs[0].purpose = TT_UNSHARD_KEPT;
    assert_int_equal(tt_program_new(&lowering, &schedule, &program), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "a schedule cannot hold 'unshard kept'"));
    tt_schedule_release(&schedule);
    planned_release(&made);
}

/* A user who stops a step of ten minutes waits for seconds only. */
static void a_long_step_asks_often_whether_to_stop(void **state)
{
    for (int n = 1000; n <= 1000000; n *= 10) {
        struct tt_program program = {.n_instrs = n};
        int since = 0, longest = 0;

        for (int i = 0; i < n; i++) {
            since = tt_program_asks(&program, i) ? 0 : since + 1;
            longest = since > longest ? since : longest;
        }
        assert_in_range(longest, 1, n / 250);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_summed_as_a_balanced_tree),
        cmocka_unit_test(every_read_finds_what_was_written),
        cmocka_unit_test(what_muon_needs_is_whole_and_lives_long_enough),
        cmocka_unit_test(buckets_move_several_units_at_once),
        cmocka_unit_test(one_rank_exchanges_nothing),
        cmocka_unit_test(memory_at_an_instruction_adds_up),
        cmocka_unit_test(the_check_sees_damage),
        cmocka_unit_test(a_node_before_its_input_is_an_error),
        cmocka_unit_test(a_collective_is_begun_before_it_is_awaited),
        cmocka_unit_test(a_long_step_asks_often_whether_to_stop),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
