/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_UNITS_H
#define TT_PARALLEL_LAYOUT_UNITS_H

#include "core/config/config.h"
#include "core/models/model.h"
#include "core/passes/stage.h"
#include "core/program/layout.h"
#include "parallel/layout/mesh.h"

/**
 * The regular expressions of a policy, in the order of the configuration. They may match anywhere in a name, as with
 * Python's re.search; ^ and $ anchor them.
 */
struct tt_patterns {
    enum tt_key key; /* key of the policy; errors carry it */
    struct tt_words words;
    struct tt_regex **regex; /* one per word */
    bool *used;              /* [word] whether it has matched */
    struct tt_matcher *matcher;
};

/** Compiles the expressions. words must outlive the patterns, which the caller frees with tt_patterns_release.
 * TT_EUSAGE names a bad expression. */
int tt_patterns_init(enum tt_key key, struct tt_words words, struct tt_patterns *ret_patterns) TT_MUST_CHECK;
void tt_patterns_release(struct tt_patterns *patterns);

/** *ret_index is the first expression, from `first` on, that matches in name, or TT_NONE. */
int tt_patterns_find(struct tt_patterns *patterns, int first, const char *name, int *ret_index) TT_MUST_CHECK;

/**
 * TT_EUSAGE if an expression has matched nothing; `what` is the message's word for the things searched, and `example`
 * shows what their names look like.
 */
int tt_patterns_check_used(const struct tt_patterns *patterns, const char *what, const char *example) TT_MUST_CHECK;

/**
 * The same for rules "regex=value". read(arg, i, rule, value) reads the value of rule i; value is NULL if no '='
 * follows the rule's expression, which is an error.
 */
int tt_patterns_of_rules(enum tt_key key, struct tt_words rules, const struct tt_model *model, const char *what,
                         int (*read)(void *arg, int i, const char *rule, const char *value), void *arg,
                         int *ret_index) TT_MUST_CHECK;

/**
 * Sets the parameter groups of the optimizer, by the names of parameters.
 *
 *   no_decay     regular expressions: a parameter that one of them matches has no weight decay
 *   lr_factors   "regex=factor": the first one that matches a parameter sets the factor of its learning rate
 *
 * TT_EUSAGE, about optimizer.no_decay or optimizer.lr_factors, for a bad expression or factor, an expression of
 * no_decay that matches no parameter, or a factor that applies to no parameter.
 */
int tt_param_groups_apply(struct tt_model *model, struct tt_words no_decay, struct tt_words lr_factors) TT_MUST_CHECK;

/**
 * Sets which optimizer trains each parameter. An optimizer for matrices trains the matrices of the transformer blocks
 * and their adapters, except frozen ones, and AdamW trains the rest.
 */
void tt_param_groups_set_optim(struct tt_model *model, enum tt_optim_choice optim);

/**
 * Units: the parameters that are sharded and gathered together (the wrap policy), and the units that stay gathered
 * between forward and backward (the reshard policy). The layout is a pure function of model, mesh and rank.
 */

/* When the gathered parameters of a unit are freed after its forward. */
enum tt_reshard {
    TT_RESHARD_AFTER_FORWARD_DEFAULT, /* reshard all units except the one of norm and output, where backward begins */
    TT_RESHARD_AFTER_FORWARD_ALWAYS,
    TT_RESHARD_AFTER_FORWARD_NEVER,
    TT_RESHARD_AFTER_FORWARD_LAST_LAYER, /* reshard all units except those of the last block, and of norm and output */
    TT_RESHARD_AFTER_FORWARD_PATTERNS,   /* reshard all units except those that regular expressions select */
    TT_RESHARD_AFTER_FORWARD_PART,       /* reshard, but keep 1/n on each of n neighbouring ranks */
};

/* The wrap and reshard policies, with their arguments. */
struct tt_sharding {
    const char *wrap;              /* the name of a wrap policy, below; not read if there are wrap_patterns */
    struct tt_words wrap_patterns; /* searched for in names of parameters; n 0: none */
    enum tt_reshard reshard;
    struct tt_words keep; /* with ..._PATTERNS: searched for in the names of units and of their parameters */
    /* with ..._PART: n, a divisor of the number of shard ranks. As in FSDP2, 1 means never reshard, and all shard ranks
     * means always */
    int reshard_part;
};

/**
 * The policies from the configuration's fsdp_wrap_policy and fsdp_reshard_after_forward, into which the result points.
 * 'auto' gives TT_RESHARD_AFTER_FORWARD_DEFAULT; the planned scheduler chooses later.
 */
struct tt_sharding tt_sharding_of(struct tt_words wrap, struct tt_words reshard);

/**
 * The split of a model over a pipeline: the stage of each module, and the pipeline rank of each stage. It is the same
 * on all ranks. A pipeline rank is a place in TT_GROUP_PP.
 *
 * The modules of a model, in the order of the forward pass: 0 is the embeddings, 1 to L the blocks, L + 1 the last norm
 * and L + 2 the output.
 */
struct tt_stage_places {
    int n_stages;
    int *module_stage;        /* [L + 3], ascending */
    const int *rank_of_stage; /* [n_stages]; owned by the pipeline */
};

/** The number of a model's modules: L + 3. */
static inline int tt_model_modules(const struct tt_model *model)
{
    return (int)model->dims.n_layers + 3;
}

/** The stage of every node of the model's forward graph, for tt_graph_cut. ret_stage_of must have room for n_nodes
 * items. */
void tt_graph_stages_by_place(const struct tt_graph *graph, const struct tt_model *model,
                              const struct tt_stage_places *places, int *ret_stage_of);

void tt_stage_places_release(struct tt_stage_places *places);

/**
 * The sharding of a parameter: tensor parallelism splits the dimension of tt_param.tp over the ranks that share a
 * layer, then FSDP splits the first dimension over the ranks that share a copy of the stage. places: of the pipeline;
 * NULL: there is none.
 */
struct tt_placement tt_param_placement(const struct tt_mesh *mesh, const struct tt_stage_places *places,
                                       const struct tt_model *model, int param);

/**
 * The largest magnitudes of the blocks that a parameter's moments are kept in (tt_optim_row.largest): as a tensor, of
 * *ret_ndim dimensions and ret_shape, with a rank's part for its part of the parameter. Blocks begin with every row and
 * every grain of a row that ranks may share, or run through all rows; then the tensor has one dimension.
 */
struct tt_placement tt_blocks_placement(const struct tt_mesh *mesh, const struct tt_stage_places *places,
                                        const struct tt_model *model, int param, int *ret_ndim, int64_t *ret_shape);

/**
 * The layout of `rank` on the mesh. places: of the pipeline; NULL: there is none. The units contain the parameters of
 * the rank's own stages; a unit never spans two stages. TT_EUSAGE, with the key of the policy, for a policy that does
 * not exist or that the model or the mesh does not allow. The caller frees the layout with tt_layout_free.
 */
int tt_layout_new(const struct tt_model *model, const struct tt_mesh *mesh, int rank,
                  const struct tt_sharding *sharding, const struct tt_stage_places *places,
                  struct tt_layout **ret_layout) TT_MUST_CHECK;
void tt_layout_free(struct tt_layout *layout);

/**
 * Wrap policies. A policy gives every parameter a key, and parameters with the same key are a unit. Policies are pure
 * functions of the model.
 *
 *   block          embeddings; each block; norm and output together; a tied embedding is with norm and output
 *   model          everything
 *   param          each parameter alone
 *   size:<bytes>   consecutive parameters in forward order until the unit has at least that many bytes (of the whole
 *                  float32 parameters); a parameter is never split, so the last unit may be smaller
 *   [regex, ...]   one unit for each expression: the parameters for which it is the first match; all others by block
 */
struct tt_wrap_row {
    const char *name; /* "block"; a name that ends in ':' takes a number of bytes */
    void (*keys)(const struct tt_model *model, int64_t bytes, int64_t *ret_keys);
};

extern const struct tt_wrap_row tt_wrap_rows[];
extern const int tt_wrap_n_rows;

#endif
