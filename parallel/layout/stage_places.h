/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_STAGE_PLACES_H
#define TT_PARALLEL_LAYOUT_STAGE_PLACES_H

#include <stdbool.h>

#include "core/graph/stage.h"
#include "core/models/model.h"

/**
 * Where the parts of a model are in a pipeline: the stage of each module, and the pipeline rank of each stage. All
 * ranks have the same one. A pipeline rank is a place in TT_GROUP_PP.
 *
 * The modules of a model, in the order of the forward pass: 0 is the embeddings, 1 to L the blocks, L + 1 the last norm
 * and L + 2 the output.
 */
struct tt_stage_places {
    int n_stages;
    int *module_stage;        /* [L + 3], ascending */
    const int *rank_of_stage; /* [n_stages]; the pipeline's, not owned */
};

/** The number of a model's modules: L + 3. */
int tt_model_modules(const struct tt_model *model);

/**
 * The stage that uses a parameter. A tied weight has two uses: the embeddings' (part 0) and the output's (part 1).
 * places NULL: there is one stage, 0.
 */
int tt_param_stage(const struct tt_stage_places *places, const struct tt_model *model, int param, int part);

/** The pipeline rank whose copy of a parameter is saved: that of part 0. places NULL: 0. */
int tt_param_pp(const struct tt_stage_places *places, const struct tt_model *model, int param);

/** The stage of every node of the model's forward graph, for tt_graph_cut. ret_stage_of has n_nodes items. */
void tt_graph_stages_by_place(const struct tt_graph *graph, const struct tt_model *model,
                              const struct tt_stage_places *places, int *ret_stage_of);

void tt_stage_places_release(struct tt_stage_places *places);

#endif
