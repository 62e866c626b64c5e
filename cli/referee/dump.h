/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_REFEREE_DUMP_H
#define TT_CLI_REFEREE_DUMP_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/read/source.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * A dump: the tensors that a training step left behind, such as its gradients.
 *
 *   DIR/reference.json               optional: "dtype", the type in which the run computed; "mesh", its degrees, such
 *                                    as {"dp": 2, "tp": 2, "accumulation": 1}; "names", titan's name of each Hugging
 *                                    Face name; "layers", names in forward order; "steps" with "step", "loss",
 *                                    "tokens"; "config"
 *   DIR/step-N/SECTION/              safetensors files; see tt_sections
 *   DIR/step-N/loss.safetensors      optional: input_ids and labels, (batch, sequence) each
 *   DIR/rank-K/...                   optional: the same from each of several replicas
 *
 * DIR may also be a step folder, or a file or folder that `titan ckpt inspect` reads. The latter is a single section:
 * weights if it is a checkpoint of titan, otherwise gradients.
 */
enum tt_section {
    TT_SECTION_GRADIENTS,
    TT_SECTION_WEIGHTS,
    TT_SECTION_OPTIMIZER,
    TT_SECTION_ACTIVATIONS,
    TT_SECTION_ACTIVATION_GRADIENTS,
    TT_SECTIONS,
};

/** The name of a section, which is also its folder's: "activation_gradients". */
extern const char *const tt_sections[TT_SECTIONS];

struct tt_dump_tensor {
    char *name;     /* without the prefixes and suffixes that wrappers add; Hugging Face's if "names" knows it */
    bool was_titan; /* its name was titan's: queries and keys then have titan's rotary layout */
    enum tt_section section;
    struct tt_source *source; /* borrowed from the dump */
    const struct tt_manifest_tensor *tensor;
};

/** A matrix of token ids or labels, (rows, columns). */
struct tt_dump_ids {
    int64_t rows, columns;
    int64_t *id; /* NULL: the dump does not contain it */
};

/** One step of one replica. Zero-initialise; release when done. */
struct tt_dump {
    char *path;
    int64_t step;  /* -1: not known */
    json_t *about; /* reference.json; NULL: none */
    struct tt_source *source[TT_SECTIONS];
    int n, cap;
    struct tt_dump_tensor *tensor; /* sorted by section and name */
    struct tt_dump_ids inputs, labels;
};

/** The steps of a dump in ascending order, or -1 alone if it is not divided by steps. The caller frees ret_step. */
int tt_dump_steps(const char *path, int64_t **ret_step, int *ret_n) TT_MUST_CHECK;

/** The number of folders rank-0, rank-1, ... in a dump; 0: it is not divided by ranks. TT_EDATA: one is missing. */
int tt_dump_ranks(const char *path, int *ret_n) TT_MUST_CHECK;

/** The path of a replica's folder; rank -1: the dump itself. The caller frees it. */
char *tt_dump_rank_path(const char *path, int rank);

/**
 * Opens a step (one of tt_dump_steps) of a dump that is not divided by ranks, or of one rank's folder. The caller
 * releases *dump even after an error. TT_EDATA: there are no tensors, or two of them have the same name.
 *   names  Hugging Face's names with titan's, used besides the dump's own; may be NULL
 */
int tt_dump_open(const char *path, int64_t step, const json_t *names, struct tt_dump *dump) TT_MUST_CHECK;
void tt_dump_release(struct tt_dump *dump);

/** The tensor of that section and name, or NULL. */
const struct tt_dump_tensor *tt_dump_find(const struct tt_dump *dump, enum tt_section section, const char *name);

/** The record of the dump's step in reference.json, or NULL. */
const json_t *tt_dump_record(const struct tt_dump *dump);

/** A degree of "mesh" in reference.json; 0: not known. */
int64_t tt_dump_degree(const struct tt_dump *dump, const char *name);

/** Reads rows [row, row + n) of a tensor (F64, F32, BF16 or F16) as doubles, packed; a scalar has a single row. */
int tt_dump_read(const struct tt_dump_tensor *tensor, int64_t row, int64_t n, double *data) TT_MUST_CHECK;

#endif
