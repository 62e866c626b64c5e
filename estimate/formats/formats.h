/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_FORMATS_FORMATS_H
#define TT_ESTIMATE_FORMATS_FORMATS_H

#include <stdbool.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/config/config.h"
#include "estimate/model/job.h"
#include "estimate/search/search.h"

/* The part of a command line that describes a job of another trainer. */
struct tt_cluster_given {
    const char **set; /* "NAME=VALUE" of a script; see tt_script_read */
    int n, cap;
    const char *args;
    const char *const *words; /* flags, which override the file */
    int n_words;
    const char **ignored; /* names of flags and keys to leave out */
    int n_ignored, cap_ignored;
};

/**
 * Settings of a job that a prediction leaves out: name, value, and what the prediction assumes instead.
 * Zero-initialise; tt_cluster_notes_release.
 */
struct tt_cluster_note {
    char *key, *value; /* value is "" if the key has none */
    const char *why;
};

struct tt_cluster_notes {
    struct tt_cluster_note *item;
    int n, cap;
};

/** Adds a note; `why` must be a static text. */
void tt_cluster_note(struct tt_cluster_notes *notes, const char *key, const char *value, const char *why);
void tt_cluster_notes_release(struct tt_cluster_notes *notes);

/* A job in the form of another trainer. Zero-initialise; tt_cluster_foreign_release. */
struct tt_cluster_foreign {
    char **override; /* batch and layout as titan's keys: "--training.seq_len=8192" */
    int n, cap;
    const char *model; /* of a torchtitan job: a name in shapes.def; NULL: the file names no model */
    bool compiled;     /* torchtitan compiles the blocks */
    bool is_megatron;
    bool has_shape;             /* the model is job.shape, not that of titan's keys */
    bool distributed_optimizer; /* for Megatron: ranks shard the optimizer's state */
    double stages_of_a_rank;    /* stages per rank in Megatron's pipeline; 0: there is no pipeline */
    double exposed;             /* share of Megatron's data-parallel traffic that no flag overlaps: 0, 0.5 or 1 */
    /* settings that titan's keys cannot express and, for Megatron, the model and recomputation */
    struct tt_cluster_job job;
};

void tt_cluster_foreign_release(struct tt_cluster_foreign *foreign);

/**
 * Reads a job as torchtitan writes it: a TOML file (v0.1, v0.2), or the resolved configuration that it saves as JSON
 * (path NULL: none); then flags (2026), "--section.key value" or "--section.key=value", which override the file. Skips
 * the keys in given->ignored, and notes settings that change the cost but are not counted. TT_EDATA: the file is
 * neither TOML nor JSON. TT_EUSAGE: an unknown model or recipe, or an unknown key that might change the cost.
 */
int tt_cluster_recipe_read(const char *path, const struct tt_cluster_given *given, struct tt_cluster_notes *notes,
                           struct tt_cluster_foreign *ret_foreign) TT_MUST_CHECK;

/* The classes of torchtitan's keys: read or noted; no effect on the cost; unknown, but may change the cost; unknown. */
enum tt_recipe_class { TT_RECIPE_KNOWN, TT_RECIPE_FREE, TT_RECIPE_COSTLY, TT_RECIPE_UNKNOWN };

enum tt_recipe_class tt_cluster_recipe_class(const char *name);

/** torchtitan's name and flavor for a model in shapes.def; false: torchtitan has no such model. */
bool tt_cluster_recipe_model(const char *shape, const char **ret_family, const char **ret_flavor);

/**
 * Reads flags of Megatron-LM from a file (path NULL: none), which may be a shell script, and then from given->words,
 * which override it. Skips flags that do not change the cost, and notes flags that do but are not counted. TT_EUSAGE: a
 * needed flag is missing, is not a number, or depends on something that the script does not define; or a flag might
 * change the cost and is not modelled.
 */
int tt_cluster_megatron_read(const char *path, const struct tt_cluster_given *given, struct tt_cluster_notes *notes,
                             struct tt_cluster_foreign *ret_foreign) TT_MUST_CHECK;

/**
 * Appends a layout as a configuration: form is titan (YAML), torchtitan (TOML) or megatron (flags). The model is the
 * one that `model` names or, if that is NULL, the configuration's. TT_EUSAGE: there is no such form, its trainer does
 * not work like the stack or lacks the model.
 */
int tt_cluster_emit(const char *form, const struct tt_config *cfg, const char *model,
                    const struct tt_cluster_layout *layout, struct tt_text *out) TT_MUST_CHECK;

#endif
