/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_REFERENCE_REFERENCE_H
#define TT_CLI_REFERENCE_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "trainer/data/data.h"
#include "trainer/job/setup.h"

/** `titan reference`: one or several training steps, with everything that they compute written to files. */

/** The samples of a file; arrays of n rows of seq_len tokens. The caller releases them. */
struct tt_reference_batch {
    int64_t n, seq_len;
    int32_t *tokens, *labels;
    int32_t *positions; /* NULL: the file has none */
};

/**
 * Reads a safetensors file with input_ids (n, seq_len) and perhaps labels and positions of that shape, all of them
 * whole numbers, or a .npy file of input_ids. labels[t] is the token that position t predicts, and a negative one does
 * not count; without labels it is the next token of the row, and the last position does not count. Not collective.
 * TT_EDATA if the file is something else.
 */
int tt_reference_batch_read(const char *path, struct tt_reference_batch *ret_batch) TT_MUST_CHECK;
void tt_reference_batch_release(struct tt_reference_batch *batch);

/** TT_EDATA if a token or a label that counts is not in the vocabulary. */
int tt_reference_batch_check(const struct tt_reference_batch *batch, const char *path,
                             int64_t vocab_size) TT_MUST_CHECK;

struct tt_reference_options {
    const char *out;                        /* a new folder */
    const struct tt_reference_batch *batch; /* every step trains on all of it; NULL: the data of the configuration */
    int steps;
    bool titan_names;               /* of parameters; otherwise Hugging Face's */
    const char *const *activations; /* [n_activations] patterns of modules (core/models/select.h) */
    int n_activations;
};

/**
 * Loads the weights and trains the steps. Writes the files of titan-reference(1) into a new folder. Collective.
 *   ret_steps  what reference.json says of each step; the caller releases it
 * TT_EUSAGE if the folder exists and is not empty; otherwise the errors of a run.
 */
int tt_reference_run(const struct tt_setup *setup, const struct tt_reference_options *options,
                     json_t **ret_steps) TT_MUST_CHECK;

/* --- the outputs of modules (activations.c) --- */

/** The place of row i of a value among the tokens of the global batch, if the value has `rows` rows of one microbatch
 * on this rank. */
int64_t tt_reference_token(const struct tt_setup *setup, int microbatch, int64_t rows, int64_t i);

/** The outputs of modules and their gradients, as an observer of the executor collects them. */
struct tt_activations;

/**
 * Chooses the modules whose names a pattern of the options selects; *ret is NULL without patterns. The caller frees it.
 * Not collective. TT_EUSAGE, with the nearest names: a pattern selects nothing.
 */
int tt_activations_new(const struct tt_setup *setup, const struct tt_reference_options *options,
                       struct tt_activations **ret) TT_MUST_CHECK;
void tt_activations_free(struct tt_activations *activations);

/** Keeps the value, if it is of one of the modules; see tt_observer.value. */
void tt_activations_take(struct tt_activations *activations, const struct tt_graph *graph, int value, int microbatch,
                         const void *data);

/** Writes what the last step left to folder/activations and folder/activation_gradients. Collective. */
int tt_activations_write(struct tt_activations *activations, const char *folder) TT_MUST_CHECK;

/** Appends the names of the modules, in forward order. */
void tt_activations_list(const struct tt_activations *activations, json_t *list);

#endif
