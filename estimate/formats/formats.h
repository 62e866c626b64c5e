/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_FORMATS_FORMATS_H
#define TT_ESTIMATE_FORMATS_FORMATS_H

#include <stdbool.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/config/config.h"
#include "estimate/model/job.h"
#include "estimate/search/search.h"

/* What a command line says about a job that is written for another trainer. */
struct tt_cluster_given {
    const char **set; /* of a script: see tt_script_read */
    int n, cap;
    const char *args;
    const char *const *words; /* flags that follow the file and win */
    int n_words;
    const char **ignored; /* names of flags and keys that are left out */
    int n_ignored, cap_ignored;
};

/**
 * What a job of another trainer says and a prediction leaves out: each with its name, its value, and what the
 * prediction assumes instead. Zero-initialise; tt_cluster_notes_release.
 */
struct tt_cluster_note {
    char *key, *value; /* value "": it has none */
    const char *why;
};

struct tt_cluster_notes {
    struct tt_cluster_note *item;
    int n, cap;
};

/** Adds a note; why is static text. */
void tt_cluster_note(struct tt_cluster_notes *notes, const char *key, const char *value, const char *why);

/** A list of objects with key, value and assumes. */
json_t *tt_cluster_notes_json(const struct tt_cluster_notes *notes);
void tt_cluster_notes_release(struct tt_cluster_notes *notes);

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

enum tt_recipe_class tt_cluster_recipe_class(const char *name);

/** torchtitan's name and flavor of a model of shapes.def; false: it has none. */
bool tt_cluster_recipe_model(const char *shape, const char **ret_family, const char **ret_flavor);
void tt_cluster_recipe_release(struct tt_cluster_recipe *recipe);

/* What flags of Megatron-LM say about a job. Zero-initialise; tt_cluster_megatron_release. */
struct tt_cluster_megatron {
    struct tt_cluster_shape shape;
    char **override; /* batch and layout in titan's keys: "--training.seq_len=8192" */
    int n, cap;
    enum tt_cluster_again again;
    double again_layers;    /* of TT_AGAIN_LAYERS */
    unsigned again_modules; /* of TT_AGAIN_MODULES */
    double gradient_bytes;  /* see tt_cluster_job */
    bool float8, async_tp;
    bool sequence_parallel;
    bool balanced, expert_overlap; /* see tt_cluster_job */
    bool distributed_optimizer;    /* else every rank has the whole state of its parameters */
    double stages_of_a_rank;       /* of a pipeline; 0: there is none */
    double expert_tp;              /* see tt_cluster_job */
    double exposed;                /* share of data parallelism's traffic that no flag overlaps: 0, a half, or 1 */
    int kernel;                    /* of attention; -1: not said */
};

/**
 * Reads flags from a file (NULL: none), which may be a shell script, and then from given->words, which win. Flags that
 * have nothing to do with the cost are skipped; what changes it and is not counted is added to the notes.
 * TT_EUSAGE: a flag that is needed is missing, has a value that is not a number, depends on what the script does not
 * say, or might change the cost and is not modelled.
 */
int tt_cluster_megatron_read(const char *path, const struct tt_cluster_given *given, struct tt_cluster_notes *notes,
                             struct tt_cluster_megatron *ret_megatron) TT_MUST_CHECK;
void tt_cluster_megatron_release(struct tt_cluster_megatron *megatron);

/** Whether words after "--" are flags of Megatron-LM: none of them has a dot, as torchtitan's have. */
bool tt_cluster_is_megatron(int n_words, const char *const *words);

/**
 * Appends a layout as a configuration: form is titan (YAML), torchtitan (TOML) or megatron (flags). The model is that
 * of the configuration, or the one that `model` names if it is not NULL. TT_EUSAGE: no such form, one of a trainer that
 * does not work as the stack does, or a model that it does not have.
 */
int tt_cluster_emit(const char *form, const struct tt_config *cfg, const char *model,
                    const struct tt_cluster_layout *layout, struct tt_text *out) TT_MUST_CHECK;

#endif
