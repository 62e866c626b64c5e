/* SPDX-License-Identifier: MIT */
#ifndef TT_PIPELINE_SPLIT_H
#define TT_PIPELINE_SPLIT_H

#include "core/config/config.h"

/**
 * The split of a model's modules over the stages of a pipeline, by torchtitan's rule or by name. The modules of a model
 * with L layers, in its order: 0 the embeddings, 1 to L the layers, L + 1 the final norm, L + 2 the output.
 */

struct tt_pipeline_rule {
    int n_layers, ranks;
    int layers_per_stage;      /* 0: not given */
    int first_less, last_less; /* the weights of the embeddings, and of norm with output, in layers */
    bool multi;                /* the schedule has several stages on a rank */
};

struct tt_stage_split {
    int n_stages;
    int n_modules;
    int *module_stage; /* [n_modules] -> stage, never decreasing */
};

/* The layers of a stage; n_layers may be 0. */
struct tt_stage_range {
    int first_layer, n_layers;
};

/**
 * Cuts a model by torchtitan's rule. Layers are units; the embeddings count as first_less units, norm and output as
 * last_less. Each rank has one stage, or two with `multi`; if layers_per_stage is given, the number of stages follows
 * from it and the units. Units are spread evenly over stages; if there is a remainder, the first stages get one more.
 * The caller frees ret_split with tt_stage_split_release. Errors: TT_EUSAGE, which names the key, what was found and
 * what works.
 */
int tt_pipeline_split(const struct tt_pipeline_rule *rule, struct tt_stage_split *ret_split) TT_MUST_CHECK;

/**
 * Cuts a model as listed: stages->word[s] are the modules of stage s, separated by blanks: tok_embeddings, which stands
 * for all embeddings, layers.0 to layers.<n_layers - 1>, norm and output. Each of them must occur once, in this order.
 * There is one stage per rank or, with `multi`, the same number of stages per rank, at least two. The caller releases
 * ret_split. Errors: TT_EUSAGE, which names the module.
 */
int tt_pipeline_split_named(const struct tt_words *stages, int n_layers, int ranks, bool multi,
                            struct tt_stage_split *ret_split) TT_MUST_CHECK;

struct tt_stage_range tt_stage_split_layers(const struct tt_stage_split *split, int stage);

void tt_stage_split_release(struct tt_stage_split *split);

#endif
