/* SPDX-License-Identifier: MIT
 *
 * Schedules that give rank r the stages r, r + ranks, r + 2 ranks and so on.
 */
#include "core/base/key.h"
#include "parallel/pipeline/lane.h"

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* --- GPipe: all forward, all backward --- */

static void generate_gpipe(struct tt_pipeline *pipeline, int rank)
{
    struct tt_lane lane = tt_lane_begin(pipeline, rank);

    tt_lane_forward(&lane, 0, pipeline->microbatches);
    tt_lane_backward(&lane, 0, pipeline->microbatches);
    tt_lane_end(&lane);
}

const struct tt_pipeline_row tt_pipeline_gpipe = {.name = "GPipe", .generate = generate_gpipe};

/* --- 1F1B: a backward as soon as there is one --- */

static int check_1f1b(int ranks, int microbatches)
{
    if (microbatches >= ranks)
        return 0;
    return tt_fail_key(TT_EUSAGE, TT_KEY_LOCAL_BATCH,
                       "schedule 1F1B on %d ranks needs at least %d microbatches, found %d\n"
                       "help: raise %s or lower %s, or use schedule GPipe",
                       ranks, ranks, microbatches, tt_key_name(TT_KEY_LOCAL_BATCH),
                       tt_key_name(TT_KEY_PP_MICROBATCH_SIZE));
}

static void generate_1f1b(struct tt_pipeline *pipeline, int rank)
{
    struct tt_lane lane = tt_lane_begin(pipeline, rank);
    int n = pipeline->microbatches, warm_up = least(n, pipeline->ranks - rank);

    tt_lane_forward(&lane, 0, warm_up);
    for (int i = warm_up; i < n; i++) {
        tt_lane_backward(&lane, 0, 1);
        tt_lane_forward(&lane, 0, 1);
    }
    tt_lane_backward(&lane, 0, warm_up);
    tt_lane_end(&lane);
}

const struct tt_pipeline_row tt_pipeline_1f1b = {.name = "1F1B", .check = check_1f1b, .generate = generate_1f1b};

/* --- LoopedBFS: GPipe over several stages, all microbatches in one stage before the next --- */

/* Backward takes the microbatches in descending order, as torch's does. */
static void generate_looped_bfs(struct tt_pipeline *pipeline, int rank)
{
    struct tt_lane lane = tt_lane_begin(pipeline, rank);

    for (int chunk = 0; chunk < lane.chunks; chunk++)
        tt_lane_forward(&lane, chunk, pipeline->microbatches);
    for (int chunk = lane.chunks - 1; chunk >= 0; chunk--)
        for (int mb = pipeline->microbatches - 1; mb >= 0; mb--)
            tt_order_add(lane.order, mb, rank + chunk * pipeline->ranks, TT_PASS_BACKWARD);
    tt_lane_end(&lane);
}

const struct tt_pipeline_row tt_pipeline_looped_bfs = {
    .name = "LoopedBFS", .multi = true, .generate = generate_looped_bfs};

/* --- Interleaved: a round of microbatches through all stages of the rank, then the next round --- */

static int rounds_of(int ranks, int microbatches)
{
    return microbatches < ranks ? 1 : microbatches / ranks;
}

static int check_rounds(const char *name, int ranks, int microbatches)
{
    int rounds = rounds_of(ranks, microbatches);

    if (microbatches % rounds == 0)
        return 0;
    return tt_fail_key(TT_EUSAGE, TT_KEY_LOCAL_BATCH,
                       "schedule %s on %d ranks takes %d microbatches in %d rounds, which do not divide them\n"
                       "help: %s / %s is the number of microbatches; what works is %d, %d or another multiple of %d",
                       name, ranks, microbatches, rounds, tt_key_name(TT_KEY_LOCAL_BATCH),
                       tt_key_name(TT_KEY_PP_MICROBATCH_SIZE), microbatches / ranks * ranks,
                       (microbatches / ranks + 1) * ranks, ranks);
}

/* In the first turns only forward: as many as a microbatch takes to come back, `hop` for each rank that follows. */
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

static int check_interleaved_1f1b(int ranks, int microbatches)
{
    return check_rounds("Interleaved1F1B", ranks, microbatches);
}

static void generate_interleaved_1f1b(struct tt_pipeline *pipeline, int rank)
{
    struct tt_lane lane = tt_lane_begin(pipeline, rank);
    int all = pipeline->microbatches * lane.chunks, warm_up = warm_up_of(&lane, 2);

    for (int i = 0; i < warm_up + all; i++) {
        if (i < all)
            tt_lane_forward(&lane, chunk_of(&lane, i, false), 1);
        if (i >= warm_up)
            tt_lane_backward(&lane, chunk_of(&lane, i - warm_up, true), 1);
    }
    tt_lane_end(&lane);
}

const struct tt_pipeline_row tt_pipeline_interleaved_1f1b = {
    .name = "Interleaved1F1B", .multi = true, .check = check_interleaved_1f1b, .generate = generate_interleaved_1f1b};

static int check_interleaved_zero_bubble(int ranks, int microbatches)
{
    return check_rounds("InterleavedZeroBubble", ranks, microbatches);
}

/* Rank r is always r weight parts behind. */
static void generate_interleaved_zero_bubble(struct tt_pipeline *pipeline, int rank)
{
    struct tt_lane lane = tt_lane_begin(pipeline, rank);
    int all = pipeline->microbatches * lane.chunks, warm_up = warm_up_of(&lane, 1);

    for (int i = 0; i < warm_up + all; i++) {
        if (i < all)
            tt_lane_forward(&lane, chunk_of(&lane, i, false), 1);
        if (i >= warm_up)
            tt_lane_input(&lane, chunk_of(&lane, i - warm_up, true));
        if (i >= warm_up + rank)
            tt_lane_weight(&lane, TT_NONE);
    }
    while (lane.n_pending > 0)
        tt_lane_weight(&lane, TT_NONE);
    tt_lane_end(&lane);
}

const struct tt_pipeline_row tt_pipeline_interleaved_zero_bubble = {.name = "InterleavedZeroBubble",
                                                                    .multi = true,
                                                                    .splits = true,
                                                                    .check = check_interleaved_zero_bubble,
                                                                    .generate = generate_interleaved_zero_bubble};
