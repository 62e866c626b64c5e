/* SPDX-License-Identifier: MIT
 *
 * Schedules of pipelines: turn by turn for small numbers, compared with torch; and for all numbers up to 8 ranks, 4
 * stages per rank and 4 microbatches per rank, schedules are complete, no rank waits forever, and bubbles and
 * activations match formulas.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "parallel/pipeline/schedule.h"
#include "tests/help/peaks.h"

enum { MAX_RANKS = 8, MAX_CHUNKS = 4 };

static struct tt_pipeline *pipeline_of(enum tt_pipeline_schedule schedule, int ranks, int chunks, int microbatches)
{
    struct tt_pipeline *pipeline = NULL;

    if (tt_pipeline_new(schedule, NULL, ranks, ranks * chunks, microbatches, &pipeline) < 0)
        fail_msg("%s, %d ranks, %d chunks, %d microbatches: %s", tt_pipeline_row(schedule)->name, ranks, chunks,
                 microbatches, tt_error_message());
    return pipeline;
}

/* --- turn by turn --- */

static void expect_turns(const struct tt_pipeline *pipeline, int rank, const char *wanted)
{
    const struct tt_order *order = &pipeline->orders[rank];
    struct tt_text text = {0};

    for (int t = 0; t < order->n; t++)
        tt_text_add(&text, "%s%d%c%d", t ? " " : "", order->turns[t].stage,
                    tt_pipeline_letter(pipeline, &order->turns[t]), order->turns[t].microbatch);
    assert_string_equal(text.text, wanted);
    tt_text_release(&text);
}

static void expect_two(enum tt_pipeline_schedule schedule, int chunks, int microbatches, const char *rank0,
                       const char *rank1)
{
    struct tt_pipeline *pipeline = pipeline_of(schedule, 2, chunks, microbatches);

    expect_turns(pipeline, 0, rank0);
    if (rank1)
        expect_turns(pipeline, 1, rank1);
    tt_pipeline_free(pipeline);
}

/* The orders of torch 2.15's classes for two ranks; where torch overlaps two turns, one follows the other here. */
static void orders_are_those_of_torch(void **state)
{
    expect_two(TT_PP_GPIPE, 1, 3, "0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2");
    expect_two(TT_PP_1F1B, 1, 4, "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3", "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3");
    expect_two(TT_PP_LOOPED_BFS, 2, 2, "0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0", "1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0");
    expect_two(TT_PP_INTERLEAVED_1F1B, 2, 4, "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
               "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3");
    expect_two(TT_PP_INTERLEAVED_ZERO_BUBBLE, 2, 4,
               "0F0 0F1 2F0 2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 0I3 0W3",
               "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 1W2 1W3");
    expect_two(TT_PP_ZBV_ZERO_BUBBLE, 2, 4,
               "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3",
               "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3");
    expect_two(TT_PP_ZBV_ZERO_BUBBLE, 2, 3, "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2",
               NULL);
    expect_two(TT_PP_DUAL_PIPE_V, 2, 4, "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3",
               "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3");
}

static void stages_are_placed_in_loops_or_as_a_v(void **state)
{
    struct tt_pipeline *loop = pipeline_of(TT_PP_INTERLEAVED_1F1B, 3, 2, 3);
    struct tt_pipeline *v = pipeline_of(TT_PP_ZBV_ZERO_BUBBLE, 3, 2, 3);
    const int of_loop[] = {0, 1, 2, 0, 1, 2}, of_v[] = {0, 1, 2, 2, 1, 0};

    assert_memory_equal(loop->rank_of_stage, of_loop, sizeof of_loop);
    assert_memory_equal(v->rank_of_stage, of_v, sizeof of_v);
    tt_pipeline_free(loop);
    tt_pipeline_free(v);
}

/* --- all numbers --- */

typedef void (*each_fn)(struct tt_pipeline *pipeline, int chunks, void *arg);

/* Whether the schedule exists for these numbers, by another formula than in its row. */
static bool is_legal(enum tt_pipeline_schedule schedule, int ranks, int chunks, int n)
{
    switch (schedule) {
    case TT_PP_1F1B:
        return chunks == 1 && n >= ranks;
    case TT_PP_GPIPE:
        return chunks == 1;
    case TT_PP_INTERLEAVED_1F1B:
    case TT_PP_INTERLEAVED_ZERO_BUBBLE:
        return n < ranks || n % (n / ranks) == 0;
    case TT_PP_ZBV_ZERO_BUBBLE:
        return chunks == 2;
    case TT_PP_DUAL_PIPE_V:
        return chunks == 2 && n >= 2 * ranks;
    default:
        return true;
    }
}

static int for_all(enum tt_pipeline_schedule schedule, each_fn fn, void *arg)
{
    int n_legal = 0;

    for (int ranks = 1; ranks <= MAX_RANKS; ranks++)
        for (int chunks = 1; chunks <= MAX_CHUNKS; chunks++)
            for (int n = 1; n <= 4 * ranks; n++) {
                struct tt_pipeline *pipeline = NULL;

                if (!is_legal(schedule, ranks, chunks, n)) {
                    assert_int_equal(tt_pipeline_new(schedule, NULL, ranks, ranks * chunks, n, &pipeline), TT_EUSAGE);
                    assert_non_null(strstr(tt_error_message(), "\nhelp: "));
                    continue;
                }
                pipeline = pipeline_of(schedule, ranks, chunks, n);
                fn(pipeline, chunks, arg);
                tt_pipeline_free(pipeline);
                n_legal++;
            }
    return n_legal;
}

static void expect_all_turns(struct tt_pipeline *p, int chunks, void *arg)
{
    const struct tt_pipeline_row *row = p->schedule;
    int n[TT_PASS_WEIGHTS + 1] = {0}, all = p->n_stages * p->microbatches, apart = 0;

    for (int rank = 0; rank < p->ranks; rank++) {
        assert_int_equal(p->orders[rank].microbatches, p->microbatches);
        assert_true(p->orders[rank].trains);
        for (int t = 0; t < p->orders[rank].n; t++)
            n[p->orders[rank].turns[t].pass]++;
    }
    for (int i = 0; i < all; i++)
        apart += p->weights_apart[i];
    assert_int_equal(n[TT_PASS_FORWARD], all);
    assert_int_equal(n[TT_PASS_BACKWARD], all);
    assert_int_equal(n[TT_PASS_WEIGHTS], apart);
    assert_true(row->splits || apart == 0);
    assert_true(row->multi || chunks == 1);
    if (row->splits)
        assert_true(apart > 0);
}

/* In every stage, every pass takes the microbatches in ascending order; only the backward of LoopedBFS descends. */
static void expect_ascending(struct tt_pipeline *p, int chunks, void *arg)
{
    int last[MAX_RANKS * MAX_CHUNKS][TT_PASS_WEIGHTS + 1];

    memset(last, -1, sizeof last);
    for (int rank = 0; rank < p->ranks; rank++)
        for (int t = 0; t < p->orders[rank].n; t++) {
            const struct tt_turn *turn = &p->orders[rank].turns[t];
            int *before = &last[turn->stage][turn->pass];

            if (turn->pass == TT_PASS_BACKWARD && arg)
                assert_int_equal(turn->microbatch, *before < 0 ? p->microbatches - 1 : *before - 1);
            else if (turn->pass == TT_PASS_WEIGHTS)
                assert_true(turn->microbatch > *before);
            else
                assert_int_equal(turn->microbatch, *before + 1);
            *before = turn->microbatch;
        }
}

static void every_schedule_is_complete_for_all_numbers(void **state)
{
    int least[] = {100, 144, 500, 200, 200, 144, 72};

    for (int s = 0; s < TT_PP_CSV_SINGLE; s++) {
        bool descends = s == TT_PP_LOOPED_BFS;

        assert_true(for_all((enum tt_pipeline_schedule)s, expect_all_turns, NULL) >= least[s]);
        (void)for_all((enum tt_pipeline_schedule)s, expect_ascending, descends ? &descends : NULL);
    }
}

/* --- the clock --- */

/* Simulates equal stages: the forward, input part and weight part of a rank and microbatch are spread over the rank's
 * stages. */
static struct tt_pipeline_run run_of(const struct tt_pipeline *p, int chunks, double forward, double input,
                                     double weight)
{
    struct tt_stage_times stages[MAX_RANKS * MAX_CHUNKS];
    struct tt_pipeline_times times = {.stages = stages};
    struct tt_pipeline_run run;

    for (int s = 0; s < p->n_stages; s++)
        stages[s] =
            (struct tt_stage_times){forward / chunks, input / chunks, weight / chunks, (input + weight) / chunks};
    if (tt_pipeline_simulate(p, &times, &run) < 0)
        fail_msg("%s", tt_error_message());
    return run;
}

static void expect_near(const struct tt_pipeline *p, const char *what, double found, double wanted)
{
    if (fabs(found - wanted) > 1e-9)
        fail_msg("%s on %d ranks, %d stages, %d microbatches: %s is %g, not %g", p->schedule->name, p->ranks,
                 p->n_stages, p->microbatches, what, found, wanted);
}

/* The seconds of each pass: forward, input part, weight part. */
static const double passes[][3] = {{1, 1, 1}, {1, 1.2, 0.8}, {1, 0.8, 1.2}};

/* The bubble of every rank by formula, in the time of a rank's forward; -1: no formula for these numbers. */
static double bubble_of(enum tt_pipeline_schedule schedule, const struct tt_pipeline *p, int chunks, const double *t)
{
    int n = p->microbatches, after = p->ranks - 1;
    bool equal = t[0] == t[1] && t[0] == t[2];

    switch (schedule) {
    case TT_PP_1F1B:
    case TT_PP_GPIPE:
        return after * (t[0] + t[1] + t[2]);
    case TT_PP_LOOPED_BFS:
    case TT_PP_INTERLEAVED_1F1B:
        return n < p->ranks ? -1 : after * (t[0] + t[1] + t[2]) / chunks;
    case TT_PP_INTERLEAVED_ZERO_BUBBLE:
        return n < p->ranks ? -1 : after * (t[0] + fmax(0, t[1] - t[2])) / chunks;
    case TT_PP_ZBV_ZERO_BUBBLE:
        return n < 2 * p->ranks - 1 || !equal ? -1 : after * t[0] / 2;
    default:
        return equal ? after * t[0] / 2 : -1;
    }
}

static void expect_bubble(struct tt_pipeline *p, int chunks, void *arg)
{
    enum tt_pipeline_schedule schedule = *(const enum tt_pipeline_schedule *)arg;

    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
        const double *t = passes[i], work = p->microbatches * (t[0] + t[1] + t[2]);
        double wanted = bubble_of(schedule, p, chunks, t), idle = 0;
        struct tt_pipeline_run run = run_of(p, chunks, t[0], t[1], t[2]);

        for (int rank = 0; rank < p->ranks; rank++) {
            expect_near(p, "the work of a rank", run.busy[rank], work);
            expect_near(p, "makespan", run.makespan, run.busy[rank] + run.bubble[rank]);
            idle += run.bubble[rank];
            if (wanted >= 0)
                expect_near(p, "the bubble", run.bubble[rank], wanted);
        }
        expect_near(p, "the bubble's share", run.bubble_share * run.makespan * p->ranks, idle);
        tt_pipeline_run_release(&run);
    }
}

static void bubbles_are_what_formulas_say(void **state)
{
    for (int s = 0; s < TT_PP_CSV_SINGLE; s++) {
        enum tt_pipeline_schedule schedule = (enum tt_pipeline_schedule)s;

        (void)for_all(schedule, expect_bubble, &schedule);
    }
}

/* Where there is no formula, numbers from another simulation of torch's orders. */
static void bubbles_without_a_formula_are_as_simulated_elsewhere(void **state)
{
    const struct {
        enum tt_pipeline_schedule schedule;
        int n, passes;
        double bubble;
    } cases[] = {{TT_PP_ZBV_ZERO_BUBBLE, 8, 1, 1.8},  {TT_PP_ZBV_ZERO_BUBBLE, 8, 2, 1.7},
                 {TT_PP_DUAL_PIPE_V, 8, 1, 2.1},      {TT_PP_INTERLEAVED_ZERO_BUBBLE, 8, 1, 2.1},
                 {TT_PP_INTERLEAVED_1F1B, 8, 1, 4.5}, {TT_PP_INTERLEAVED_1F1B, 3, 0, 6.0}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const double *t = passes[cases[i].passes];
        struct tt_pipeline *p = pipeline_of(cases[i].schedule, 4, 2, cases[i].n);
        struct tt_pipeline_run run = run_of(p, 2, t[0], t[1], t[2]);

        expect_near(p, "the bubble", run.bubble[0], cases[i].bubble);
        tt_pipeline_run_release(&run);
        tt_pipeline_free(p);
    }
}

static void expect_peaks(struct tt_pipeline *p, int chunks, void *arg)
{
    enum tt_pipeline_schedule schedule = *(const enum tt_pipeline_schedule *)arg;
    struct tt_pipeline_run run = run_of(p, chunks, 1, 1, 1);

    for (int rank = 0; rank < p->ranks; rank++) {
        int input = peaks_of(schedule, p, chunks, rank, false), weight = peaks_of(schedule, p, chunks, rank, true);

        if (input >= 0)
            expect_near(p, "the peak until the input part", run.peak_input[rank], input);
        if (weight >= 0)
            expect_near(p, "the peak until the weight part", run.peak_weight[rank], weight);
        assert_true(run.peak_input[rank] >= 1 && run.peak_weight[rank] >= run.peak_input[rank]);
    }
    tt_pipeline_run_release(&run);
}

static void activations_are_what_formulas_say(void **state)
{
    for (int s = 0; s < TT_PP_CSV_SINGLE; s++) {
        enum tt_pipeline_schedule schedule = (enum tt_pipeline_schedule)s;

        (void)for_all(schedule, expect_peaks, &schedule);
    }
}

/* --- turns in time --- */

/* Two ranks, two microbatches: 0F0 0F1 0B0 0B1 and 1F0 1B0 1F1 1B1. */
static void a_turn_begins_when_what_it_needs_is_there(void **state)
{
    const struct tt_stage_times stages[] = {{1, 0, 0, 2}, {3, 0, 0, 4}};
    const struct tt_span wanted[2][4] = {{{0, 1}, {1, 2}, {9, 11}, {16, 18}},
                                         {{1.5, 4.5}, {4.5, 8.5}, {8.5, 11.5}, {11.5, 15.5}}};
    const struct tt_turn_at by_begin[] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 2}, {0, 2}, {1, 3}, {0, 3}};
    struct tt_pipeline_times times = {stages, 0.5};
    struct tt_pipeline *p = pipeline_of(TT_PP_1F1B, 2, 1, 2);
    struct tt_pipeline_run run;

    assert_int_equal(tt_pipeline_simulate(p, &times, &run), 0);
    for (int rank = 0; rank < 2; rank++)
        for (int t = 0; t < 4; t++) {
            expect_near(p, "a begin", run.spans[rank][t].begin, wanted[rank][t].begin);
            expect_near(p, "an end", run.spans[rank][t].end, wanted[rank][t].end);
        }
    expect_near(p, "makespan", run.makespan, 18);
    expect_near(p, "the bubble of rank 0", run.bubble[0], 18 - 6);
    expect_near(p, "the bubble of rank 1", run.bubble[1], 18 - 14);
    assert_int_equal(run.n_turns, 8);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(run.turns[i].rank, by_begin[i].rank);
        assert_int_equal(run.turns[i].turn, by_begin[i].turn);
    }
    tt_pipeline_run_release(&run);
    tt_pipeline_free(p);
}

/* In a V the last rank passes a microbatch to itself, which takes no time. */
static void what_stays_on_a_rank_is_not_sent(void **state)
{
    const struct tt_stage_times stages[] = {{1, 1, 1, 2}, {1, 1, 1, 2}};
    struct tt_pipeline_times times = {stages, 100};
    struct tt_pipeline *p = pipeline_of(TT_PP_ZBV_ZERO_BUBBLE, 1, 2, 2);
    struct tt_pipeline_run run;

    assert_int_equal(tt_pipeline_simulate(p, &times, &run), 0);
    expect_near(p, "makespan", run.makespan, 12);
    tt_pipeline_run_release(&run);
    tt_pipeline_free(p);
}

/* --- what is refused --- */

static void must_refuse(struct tt_pipeline *p, int rank, int turn, const char *message)
{
    struct tt_turn_at where = {-1, -1};

    assert_int_equal(tt_pipeline_check(p, &where), TT_EINTERNAL);
    if (!strstr(tt_error_message(), message))
        fail_msg("found '%s', wanted '%s'", tt_error_message(), message);
    assert_int_equal(where.rank, rank);
    assert_int_equal(where.turn, turn);
    tt_pipeline_free(p);
}

static void swap(struct tt_pipeline *p, int rank, int a, int b)
{
    struct tt_turn *turns = p->orders[rank].turns, turn = turns[a];

    turns[a] = turns[b];
    turns[b] = turn;
}

static void wrong_orders_are_refused(void **state)
{
    struct tt_pipeline *p;

    p = pipeline_of(TT_PP_1F1B, 2, 1, 2);
    p->orders[1].n--;
    must_refuse(p, 1, TT_NONE, "1B1 is missing on rank 1");

    p = pipeline_of(TT_PP_1F1B, 2, 1, 2);
    p->orders[1].turns[2].microbatch = 0;
    must_refuse(p, 1, 2, "1F0 comes twice");

    p = pipeline_of(TT_PP_1F1B, 2, 1, 2);
    p->orders[1].turns[3].stage = 0;
    must_refuse(p, 1, 3, "0B1 is on rank 1, and stage 0 is on rank 0");

    p = pipeline_of(TT_PP_1F1B, 2, 1, 2);
    p->orders[0].turns[1].stage = 2;
    must_refuse(p, 0, 1, "rank 0 has a turn of stage 2, but there are only 2");

    p = pipeline_of(TT_PP_1F1B, 2, 1, 2);
    p->orders[0].turns[1].microbatch = 2;
    must_refuse(p, 0, 1, "rank 0 has a turn of microbatch 2, but there are only 2");

    p = pipeline_of(TT_PP_1F1B, 2, 1, 2);
    swap(p, 1, 0, 1);
    must_refuse(p, 0, 2, "0B0 of rank 0 waits for 1B0 of rank 1; 1B0 of rank 1 waits for 1F0, which comes after it");

    p = pipeline_of(TT_PP_1F1B, 2, 1, 2);
    swap(p, 0, 1, 2); /* rank 0 waits for 1B0, which is before 1F1 and does not need 0F1: this order is a good one */
    assert_int_equal(tt_pipeline_check(p, NULL), 0);
    swap(p, 1, 1, 2); /* now rank 1 wants 0F1 first */
    must_refuse(p, 0, 1, "0B0 of rank 0 waits for 1B0 of rank 1; 1F1 of rank 1 waits for 0F1 of rank 0");

    p = pipeline_of(TT_PP_ZBV_ZERO_BUBBLE, 2, 2, 4);
    swap(p, 0, 4, 5);
    must_refuse(p, 0, 4, "3W0 of rank 0 waits for 3I0, which comes after it");
}

static void numbers_that_a_schedule_cannot_have_are_refused(void **state)
{
    const struct {
        enum tt_pipeline_schedule schedule;
        int ranks, n_stages, n;
        const char *message;
    } cases[] = {
        {TT_PP_1F1B, 4, 4, 3, "schedule 1F1B on 4 ranks needs at least 4 microbatches, found 3"},
        {TT_PP_1F1B, 4, 8, 8, "schedule 1F1B has one stage on each of 4 ranks, found 8 stages\nhelp: make 4 stages"},
        {TT_PP_GPIPE, 2, 3, 8, "schedule GPipe has one stage on each of 2 ranks, found 3 stages"},
        {TT_PP_LOOPED_BFS, 2, 3, 8, "3 stages cannot be shared equally by 2 ranks\nhelp: make a multiple of 2"},
        {TT_PP_INTERLEAVED_1F1B, 4, 8, 9,
         "9 microbatches in 2 rounds, but the rounds do not divide the microbatches\n"
         "help: training.local_batch_size / parallelism.pipeline_parallel_microbatch_size is the number of "
         "microbatches; what works is 8, 12 or another multiple "
         "of 4"},
        {TT_PP_INTERLEAVED_ZERO_BUBBLE, 4, 8, 9, "schedule InterleavedZeroBubble on 4 ranks takes 9"},
        {TT_PP_ZBV_ZERO_BUBBLE, 4, 4, 8, "schedule ZBVZeroBubble has 2 stages on each of 4 ranks, found 4 stages"},
        {TT_PP_DUAL_PIPE_V, 4, 12, 8, "schedule DualPipeV has 2 stages on each of 4 ranks, found 12 stages"},
        {TT_PP_DUAL_PIPE_V, 4, 8, 7, "schedule DualPipeV on 4 ranks needs at least 8 microbatches, found 7"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tt_pipeline *p = NULL;

        assert_int_equal(tt_pipeline_new(cases[i].schedule, NULL, cases[i].ranks, cases[i].n_stages, cases[i].n, &p),
                         TT_EUSAGE);
        assert_null(p);
        if (!strstr(tt_error_message(), cases[i].message))
            fail_msg("found '%s', wanted '%s'", tt_error_message(), cases[i].message);
    }
}

/* --- without backward --- */

static void a_run_without_backward_goes_through_all_stages(void **state)
{
    for (int n = 1; n <= 9; n++)
        for (int schedule = 0; schedule < TT_PP_CSV_SINGLE; schedule++) {
            const struct tt_pipeline_row *row = tt_pipeline_row((enum tt_pipeline_schedule)schedule);
            struct tt_pipeline *p = pipeline_of((enum tt_pipeline_schedule)schedule, 3, row->multi ? 2 : 1, 6);
            int done[6][9] = {{0}}, next[3] = {0}, left = 1;
            struct tt_order orders[3];

            for (int rank = 0; rank < 3; rank++) {
                orders[rank] = tt_pipeline_forward_order(p, rank, n);
                assert_int_equal(orders[rank].n, n * (row->multi ? 2 : 1));
                assert_false(orders[rank].trains);
            }
            for (int round = 0; left && round < 100; round++) {
                left = 0;
                for (int rank = 0; rank < 3; rank++) {
                    const struct tt_turn *turn = &orders[rank].turns[next[rank]];

                    if (next[rank] == orders[rank].n)
                        continue;
                    assert_int_equal(p->rank_of_stage[turn->stage], rank);
                    if (turn->stage == 0 || done[turn->stage - 1][turn->microbatch]) {
                        assert_int_equal(done[turn->stage][turn->microbatch]++, 0);
                        next[rank]++;
                    }
                    left = 1;
                }
            }
            assert_int_equal(left, 0);
            for (int rank = 0; rank < 3; rank++)
                tt_order_release(&orders[rank]);
            tt_pipeline_free(p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_are_those_of_torch),
        cmocka_unit_test(stages_are_placed_in_loops_or_as_a_v),
        cmocka_unit_test(every_schedule_is_complete_for_all_numbers),
        cmocka_unit_test(bubbles_are_what_formulas_say),
        cmocka_unit_test(bubbles_without_a_formula_are_as_simulated_elsewhere),
        cmocka_unit_test(activations_are_what_formulas_say),
        cmocka_unit_test(a_turn_begins_when_what_it_needs_is_there),
        cmocka_unit_test(what_stays_on_a_rank_is_not_sent),
        cmocka_unit_test(wrong_orders_are_refused),
        cmocka_unit_test(numbers_that_a_schedule_cannot_have_are_refused),
        cmocka_unit_test(a_run_without_backward_goes_through_all_stages),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
