/* SPDX-License-Identifier: MIT
 *
 * The rows of the schedules: each generates the order of every rank, turn by turn as torch does.
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/keys/key.h"
#include "parallel/pipeline/schedule.h"

struct pending {
    int chunk;
    struct tt_turn turn;
};

/*
 * A rank's order under construction. Chunk i is the rank's i-th stage in the order of the model. Every pass of a chunk
 * takes the microbatches in ascending order, so chunk and pass identify the next turn.
 */
struct tt_lane {
    struct tt_pipeline *pipeline;
    struct tt_order *order;
    int rank;
    int chunks;
    int (*next)[TT_PASS_WEIGHTS + 1]; /* [chunks]: the next microbatch of each pass */
    struct pending *pending;          /* weight parts still to come, oldest first */
    int n_pending, cap_pending;
};

void tt_pipeline_generate(struct tt_pipeline *pipeline, int rank)
{
    struct tt_lane lane = {.pipeline = pipeline,
                           .order = &pipeline->orders[rank],
                           .rank = rank,
                           .chunks = pipeline->n_stages / pipeline->ranks};

    lane.next = tt_calloc((size_t)lane.chunks, sizeof *lane.next);
    pipeline->schedule->generate(&lane);
    tt_free(lane.next);
    tt_free(lane.pending);
}

static int stage_of(const struct tt_lane *lane, int chunk)
{
    const struct tt_pipeline *p = lane->pipeline;

    return p->schedule->v && chunk == 1 ? 2 * p->ranks - 1 - lane->rank : lane->rank + chunk * p->ranks;
}

static struct tt_turn add(struct tt_lane *lane, int chunk, enum tt_pass pass)
{
    struct tt_turn turn = {lane->next[chunk][pass]++, stage_of(lane, chunk), pass};

    /* a schedule may be generated for more microbatches than exist; their turns are left out */
    if (turn.microbatch < lane->pipeline->microbatches)
        tt_order_add(lane->order, turn.microbatch, turn.stage, pass);
    return turn;
}

/* Adds the next n turns of one pass. */
static void lane_forward(struct tt_lane *lane, int chunk, int n)
{
    for (int i = 0; i < n; i++)
        (void)add(lane, chunk, TT_PASS_FORWARD);
}

static void lane_backward(struct tt_lane *lane, int chunk, int n)
{
    for (int i = 0; i < n; i++)
        (void)add(lane, chunk, TT_PASS_BACKWARD);
}

/* Adds the input part of a backward, whose weight part comes later. */
static void lane_input(struct tt_lane *lane, int chunk)
{
    struct tt_turn turn = add(lane, chunk, TT_PASS_BACKWARD);

    TT_PUSH(lane->pending, lane->n_pending, lane->cap_pending) = (struct pending){chunk, turn};
}

/* Adds the oldest pending weight part of a chunk, or of all chunks with TT_NONE. Adds nothing if none is pending. */
static void lane_weight(struct tt_lane *lane, int chunk)
{
    int i = 0;

    while (i < lane->n_pending && chunk != TT_NONE && lane->pending[i].chunk != chunk)
        i++;
    if (i == lane->n_pending)
        return;
    if (lane->pending[i].turn.microbatch < lane->pipeline->microbatches)
        tt_order_add(lane->order, lane->pending[i].turn.microbatch, lane->pending[i].turn.stage, TT_PASS_WEIGHTS);
    lane->n_pending--;
    memmove(&lane->pending[i], &lane->pending[i + 1], (size_t)(lane->n_pending - i) * sizeof *lane->pending);
}

/* --- loops: rank r has the stages r, r + ranks, r + 2 ranks and so on --- */

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Checks a schedule that needs `wanted` microbatches; the message suggests the schedule `other`, which works with
 * fewer. */
static int check_least(const struct tt_pipeline_row *row, int ranks, int microbatches, int wanted, const char *other)
{
    if (microbatches >= wanted)
        return 0;
    return tt_fail_key(TT_EUSAGE, TT_KEY(training.local_batch_size),
                       "schedule %s on %d ranks needs at least %d microbatches, found %d\n"
                       "help: raise %s or lower %s, or use schedule %s",
                       row->name, ranks, wanted, microbatches, TT_KEY_NAME(training.local_batch_size),
                       TT_KEY_NAME(parallelism.pipeline_parallel_microbatch_size), other);
}

/* --- GPipe: all forward, all backward --- */

static void generate_gpipe(struct tt_lane *lane)
{
    lane_forward(lane, 0, lane->pipeline->microbatches);
    lane_backward(lane, 0, lane->pipeline->microbatches);
}

const struct tt_pipeline_row tt_pipeline_gpipe = {.name = "GPipe", .generate = generate_gpipe};

/* --- 1F1B: a backward as soon as there is one --- */

static int check_1f1b(const struct tt_pipeline_row *row, int ranks, int microbatches)
{
    return check_least(row, ranks, microbatches, ranks, "GPipe");
}

static void generate_1f1b(struct tt_lane *lane)
{
    int n = lane->pipeline->microbatches, warm_up = least(n, lane->pipeline->ranks - lane->rank);

    lane_forward(lane, 0, warm_up);
    for (int i = warm_up; i < n; i++) {
        lane_backward(lane, 0, 1);
        lane_forward(lane, 0, 1);
    }
    lane_backward(lane, 0, warm_up);
}

const struct tt_pipeline_row tt_pipeline_1f1b = {.name = "1F1B", .check = check_1f1b, .generate = generate_1f1b};

/* --- LoopedBFS: GPipe over several stages, all microbatches in one stage before the next --- */

/* Backward takes the microbatches in descending order, as torch does. */
static void generate_looped_bfs(struct tt_lane *lane)
{
    int n = lane->pipeline->microbatches;

    for (int chunk = 0; chunk < lane->chunks; chunk++)
        lane_forward(lane, chunk, n);
    for (int chunk = lane->chunks - 1; chunk >= 0; chunk--)
        for (int mb = n - 1; mb >= 0; mb--)
            tt_order_add(lane->order, mb, stage_of(lane, chunk), TT_PASS_BACKWARD);
}

const struct tt_pipeline_row tt_pipeline_looped_bfs = {
    .name = "LoopedBFS", .multi = true, .generate = generate_looped_bfs};

/* --- Interleaved: a round of microbatches through all stages of the rank, then the next round --- */

static int rounds_of(int ranks, int microbatches)
{
    return microbatches < ranks ? 1 : microbatches / ranks;
}

static int check_rounds(const struct tt_pipeline_row *row, int ranks, int microbatches)
{
    int rounds = rounds_of(ranks, microbatches);

    if (microbatches % rounds == 0)
        return 0;
    return tt_fail_key(TT_EUSAGE, TT_KEY(training.local_batch_size),
                       "schedule %s on %d ranks takes %d microbatches in %d rounds, but the rounds do not divide the "
                       "microbatches\n"
                       "help: %s / %s is the number of microbatches; what works is %d, %d or another multiple of %d",
                       row->name, ranks, microbatches, rounds, TT_KEY_NAME(training.local_batch_size),
                       TT_KEY_NAME(parallelism.pipeline_parallel_microbatch_size), microbatches / ranks * ranks,
                       (microbatches / ranks + 1) * ranks, ranks);
}

/* The number of forward turns before the first microbatch comes back: `hop` for each later rank. */
static int warm_up_of(const struct tt_lane *lane, int hop)
{
    const struct tt_pipeline *p = lane->pipeline;
    int each = p->microbatches / rounds_of(p->ranks, p->microbatches);

    return least(p->microbatches * lane->chunks, (lane->chunks - 1) * each + hop * (p->ranks - 1 - lane->rank));
}

/* The chunk of the i-th turn of a pass; backward goes through the chunks from the last to the first. */
static int chunk_of(const struct tt_lane *lane, int i, bool backward)
{
    const struct tt_pipeline *p = lane->pipeline;
    int each = p->microbatches / rounds_of(p->ranks, p->microbatches), chunk = i / each % lane->chunks;

    return backward ? lane->chunks - 1 - chunk : chunk;
}

static void generate_interleaved_1f1b(struct tt_lane *lane)
{
    int all = lane->pipeline->microbatches * lane->chunks, warm_up = warm_up_of(lane, 2);

    for (int i = 0; i < warm_up + all; i++) {
        if (i < all)
            lane_forward(lane, chunk_of(lane, i, false), 1);
        if (i >= warm_up)
            lane_backward(lane, chunk_of(lane, i - warm_up, true), 1);
    }
}

const struct tt_pipeline_row tt_pipeline_interleaved_1f1b = {
    .name = "Interleaved1F1B", .multi = true, .check = check_rounds, .generate = generate_interleaved_1f1b};

/* Rank r always has r weight parts pending. */
static void generate_interleaved_zero_bubble(struct tt_lane *lane)
{
    int all = lane->pipeline->microbatches * lane->chunks, warm_up = warm_up_of(lane, 1);

    for (int i = 0; i < warm_up + all; i++) {
        if (i < all)
            lane_forward(lane, chunk_of(lane, i, false), 1);
        if (i >= warm_up)
            lane_input(lane, chunk_of(lane, i - warm_up, true));
        if (i >= warm_up + lane->rank)
            lane_weight(lane, TT_NONE);
    }
    while (lane->n_pending > 0)
        lane_weight(lane, TT_NONE);
}

const struct tt_pipeline_row tt_pipeline_interleaved_zero_bubble = {.name = "InterleavedZeroBubble",
                                                                    .multi = true,
                                                                    .splits = true,
                                                                    .check = check_rounds,
                                                                    .generate = generate_interleaved_zero_bubble};

/*
 * --- vees: rank r has the stages r and 2 ranks - 1 - r ---
 *
 * The stages go through the ranks in ascending order and then back, so rank 0 holds both ends of the model.
 */

/* The input part of a backward, directly followed by its weight part. */
static void both_parts(struct tt_lane *lane, int chunk)
{
    lane_input(lane, chunk);
    lane_weight(lane, chunk);
}

/* Made for at least 2 ranks - 1 microbatches; turns of microbatches that do not exist are left out. */
static void generate_zbv_zero_bubble(struct tt_lane *lane)
{
    const struct tt_pipeline *p = lane->pipeline;
    int after = p->ranks - lane->rank;
    int n = p->microbatches > 2 * p->ranks - 1 ? p->microbatches : 2 * p->ranks - 1;

    lane_forward(lane, 0, 2 * after - 1);
    for (int i = 0; i < lane->rank; i++) {
        lane_forward(lane, 1, 1);
        lane_forward(lane, 0, 1);
    }
    for (int i = 0; i < after; i++) {
        lane_forward(lane, 1, 1);
        both_parts(lane, 1);
    }
    while (lane->next[1][TT_PASS_FORWARD] < n) {
        if (lane->next[0][TT_PASS_FORWARD] < n)
            lane_forward(lane, 0, 1);
        both_parts(lane, 0);
        lane_forward(lane, 1, 1);
        both_parts(lane, 1);
    }
    for (int i = 0; i < lane->rank; i++) {
        lane_input(lane, 0);
        lane_input(lane, 1);
    }
    for (int i = 0; i < after; i++)
        both_parts(lane, 0);
    for (int i = 0; i < 2 * n; i++)
        lane_weight(lane, i < n);
}

const struct tt_pipeline_row tt_pipeline_zbv_zero_bubble = {
    .name = "ZBVZeroBubble", .multi = true, .v = true, .splits = true, .generate = generate_zbv_zero_bubble};

/* --- DualPipeV --- */

static int check_dual_pipe_v(const struct tt_pipeline_row *row, int ranks, int microbatches)
{
    return check_least(row, ranks, microbatches, 2 * ranks, "ZBVZeroBubble");
}

/* Where torch overlaps a forward with a backward, the forward comes first here. */
static void generate_dual_pipe_v(struct tt_lane *lane)
{
    int after = lane->pipeline->ranks - lane->rank - 1;

    lane_forward(lane, 0, 2 * after);
    for (int i = 0; i <= lane->rank; i++) {
        lane_forward(lane, 0, 1);
        lane_forward(lane, 1, 1);
    }
    for (int i = 0; i < after; i++) {
        lane_input(lane, 1);
        lane_weight(lane, TT_NONE);
        lane_forward(lane, 1, 1);
    }
    while (lane->next[0][TT_PASS_FORWARD] < lane->pipeline->microbatches) {
        lane_forward(lane, 0, 1);
        lane_backward(lane, 1, 1);
        lane_forward(lane, 1, 1);
        lane_backward(lane, 0, 1);
    }
    for (int i = 0; i < after; i++) {
        lane_backward(lane, 1, 1);
        lane_forward(lane, 1, 1);
        lane_backward(lane, 0, 1);
    }
    /* the first half of these backwards are single turns; they begin with chunk 1 */
    for (int i = 0; i < 2 * (lane->rank + 1); i++)
        if (i < lane->rank + 1)
            lane_backward(lane, i % 2 == 0, 1);
        else
            lane_input(lane, i % 2 == 0);
    for (int i = 0; i < after; i++) { /* weight parts fill the time until backwards arrive */
        lane_weight(lane, TT_NONE);
        lane_input(lane, 0);
    }
    while (lane->n_pending > 0)
        lane_weight(lane, TT_NONE);
}

const struct tt_pipeline_row tt_pipeline_dual_pipe_v = {.name = "DualPipeV",
                                                        .multi = true,
                                                        .v = true,
                                                        .splits = true,
                                                        .check = check_dual_pipe_v,
                                                        .generate = generate_dual_pipe_v};
