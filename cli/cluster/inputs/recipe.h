/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_INPUTS_RECIPE_H
#define TT_CLI_CLUSTER_INPUTS_RECIPE_H

#include "cli/cluster/inputs/given.h"
#include "cli/cluster/inputs/notes.h"
#include "cli/cluster/inputs/pairs.h"

/**
 * What a configuration of torchtitan says about a job: a TOML file (v0.1, v0.2), the resolved configuration that it
 * saves as JSON, or the flags of a recipe (2026). Zero-initialise; tt_cluster_recipe_release.
 */
struct tt_cluster_recipe {
    char **override; /* the same in titan's keys: "--training.seq_len=8192" */
    int n, cap;
    const char *model; /* a name of shapes.def; NULL: the file names none */
    bool compiled, float8, async_tp;
    double loss_chunks; /* 0: not said */
    bool whole_logits;  /* every rank of tensor parallelism has the logits of the whole vocabulary */
    bool whole_rows;    /* no sequence parallelism beside tensor parallelism */
    struct tt_pairs pairs;
};

/**
 * Reads a file (NULL: none) and then flags, "--section.key value" or "--section.key=value", which win; without the keys
 * that given->ignored names. What changes the cost and is not counted is added to the notes. TT_EDATA: the file is
 * neither TOML nor JSON. TT_EUSAGE: a model or a recipe that has no table of sizes, or keys that are not known here and
 * might change the cost.
 */
int tt_cluster_recipe_read(const char *path, const struct tt_cluster_given *given, struct tt_cluster_notes *notes,
                           struct tt_cluster_recipe *ret_recipe) TT_MUST_CHECK;

/* What is known of a key of torchtitan: it is read or has a note of its own; the cost does not depend on it; it is not
 * known, and might change the cost; it is not known. */
enum tt_recipe_class { TT_RECIPE_KNOWN, TT_RECIPE_FREE, TT_RECIPE_COSTLY, TT_RECIPE_UNKNOWN };

enum tt_recipe_class tt_cluster_recipe_class(const char *key);

/** The part of it that checks keys: TT_EUSAGE for those that are not known, notes for those that are not counted. */
int tt_cluster_recipe_check(const struct tt_pairs *pairs, bool float8, struct tt_cluster_notes *notes) TT_MUST_CHECK;

/** torchtitan's name and flavor of a model of shapes.def; false: it has none. */
bool tt_cluster_recipe_model(const char *shape, const char **ret_family, const char **ret_flavor);
void tt_cluster_recipe_release(struct tt_cluster_recipe *recipe);

#endif
