/* SPDX-License-Identifier: MIT */
#ifndef TT_PASSES_STAGE_H
#define TT_PASSES_STAGE_H

#include "core/graph/graph.h"

/**
 * Stages: a forward graph, cut into graphs that run one after the other. Their backward passes run in the opposite
 * order. Each stage has its own values; every stage that reads a parameter, an input or a constant contains it.
 *
 * A value that stage s produces and a later stage t reads is a boundary value of all stages from s to t: it leaves each
 * of them except the last and enters each except the first, so only neighbours exchange values. Its gradient returns
 * the same way, and every stage on the way adds its contributions. So all sums keep the order of the whole graph, with
 * the same bits.
 */

/* A value that enters or leaves a stage; the ids are those in the stage's graph. */
struct tt_boundary {
    int value;
    int grad; /* its gradient, which is sent the other way; TT_NONE: there is none */
};

/* The previous or next stage, if it is on another rank of the pipeline. */
struct tt_stage_neighbour {
    bool apart;
    int pp; /* the place of its rank in TT_GROUP_PP */
};

struct tt_stage {
    int number;                              /* number among the stages of the model */
    struct tt_stage_neighbour before, after; /* zero: the neighbour is on this rank, or there is none */
    /* its token_loss, tokens, labels and rope_table are TT_NONE if the stage does not contain them */
    struct tt_graph *graph;
    struct tt_boundary *in; /* in[i] of a stage is out[i] of the previous stage */
    struct tt_boundary *out;
    int n_in, cap_in, n_out, cap_out;
    int *grad; /* value -> its whole gradient, for the values that existed before differentiation; NULL until then */
};

/**
 * Cuts a forward graph: node n goes to stage stage_of[n], 0 <= stage_of[n] < n_stages, which must not come after the
 * stage of a node that reads n's output (TT_EINTERNAL otherwise). ret_stages: n_stages stages, to be released by the
 * caller.
 */
int tt_graph_cut(const struct tt_graph *graph, const int *stage_of, int n_stages,
                 struct tt_stage *ret_stages) TT_MUST_CHECK;

/**
 * A cut between the transformer blocks of a forward graph: consecutive blocks form stages, whose numbers of blocks
 * differ by at most one. Nodes before the blocks are in the first stage, nodes after them in the last.
 *   ret_stage_of  [n_nodes]
 */
void tt_graph_stages_by_block(const struct tt_graph *graph, int n_stages, int *ret_stage_of);

/**
 * Differentiates all stages, from the last to the first. The seeds of a stage are the gradients of the values that
 * leave it, which the next stage computes, and the loss if the stage contains it. A gradient that enters a stage is a
 * TT_VALUE_GRAD without a producer, as a value that enters is a TT_VALUE_ACTIVATION without one.
 */
int tt_stages_differentiate(struct tt_stage *stages, int n_stages) TT_MUST_CHECK;

/** Frees the memory of the stages. */
void tt_stages_release(struct tt_stage *stages, int n_stages);

#endif
