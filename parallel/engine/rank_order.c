/* SPDX-License-Identifier: MIT
 *
 * The order in which a rank computes the stages that it has.
 */
#include "parallel/engine/rank_order.h"

#include "core/base/mem.h"

/* The order of a rank of the pipeline: one run after another, or forward alone. Its turns have the numbers of stages in
 * the model. */
static struct tt_order order_in_pipeline(const struct tt_pipeline *pipeline, int pp, enum tt_graph_mode mode,
                                         int microbatches)
{
    struct tt_order order = {0};

    if (mode != TT_GRAPH_TRAIN)
        return tt_pipeline_forward_order(pipeline, pp, microbatches);
    for (int first = 0; first < microbatches; first += pipeline->microbatches)
        for (int t = 0; t < pipeline->orders[pp].n; t++) {
            const struct tt_turn *turn = &pipeline->orders[pp].turns[t];

            tt_order_add(&order, first + turn->microbatch, turn->stage, turn->pass);
        }
    return order;
}

/* The index among a rank's stages of stage `number` of the model. */
static int own_index(const struct tt_stage *stages, int number)
{
    int s = 0;

    while (stages[s].number != number)
        s++;
    return s;
}

int tt_rank_order_run(const struct tt_engine_options *options, enum tt_graph_mode mode, int microbatches)
{
    if (!options->pipeline)
        return 0;
    return mode == TT_GRAPH_TRAIN ? options->pipeline->microbatches : microbatches;
}

/* The order of a rank of a pipeline, and what it exchanges with the others. */
static void order_of_stages(const struct tt_engine_options *options, int pp, enum tt_graph_mode mode,
                            const struct tt_stage *stages, int microbatches, struct tt_order *ret_order,
                            struct tt_crossings *ret_crossings)
{
    const struct tt_pipeline *pipeline = options->pipeline;
    struct tt_order *orders = tt_calloc((size_t)pipeline->ranks, sizeof *orders);
    struct tt_peers peers = {.orders = orders,
                             .ranks = pipeline->ranks,
                             .rank = pp,
                             .run_microbatches = tt_rank_order_run(options, mode, microbatches),
                             .rank_of_stage = pipeline->rank_of_stage,
                             .n_stages = pipeline->n_stages};

    for (int rank = 0; rank < pipeline->ranks; rank++)
        orders[rank] = order_in_pipeline(pipeline, rank, mode, microbatches);
    for (int t = 0; t < orders[pp].n; t++) {
        const struct tt_turn *turn = &orders[pp].turns[t];

        tt_order_add(ret_order, turn->microbatch, own_index(stages, turn->stage), turn->pass);
    }
    *ret_crossings = tt_crossings_make(ret_order, stages, &peers);
    for (int rank = 0; rank < pipeline->ranks; rank++)
        tt_order_release(&orders[rank]);
    tt_free(orders);
}

void tt_rank_order(const struct tt_engine_options *options, int pp, enum tt_graph_mode mode,
                   const struct tt_stage *stages, int n_stages, int microbatches, struct tt_order *ret_order,
                   struct tt_crossings *ret_crossings)
{
    bool trains = mode == TT_GRAPH_TRAIN;

    if (options->pipeline)
        order_of_stages(options, pp, mode, stages, microbatches, ret_order, ret_crossings);
    else if (options->order && trains)
        *ret_order = options->order(options);
    else
        *ret_order = tt_order_accumulate(microbatches, n_stages, trains);
}
