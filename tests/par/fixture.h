/* SPDX-License-Identifier: MIT */
#ifndef TT_PAR_FIXTURE_H
#define TT_PAR_FIXTURE_H

#include "core/data/dataset.h"
#include "core/models/model.h"
#include "tests/help/sweep.h"

/* The set-up of training tests on thread ranks: tiny models and random tokens. cmocka asserts inside. */

/** Prints this thread's error message if rc is an error. Returns rc. */
int fixture_check(int rc);

/** A llama3 with these dims; the caller's. */
struct tt_model *fixture_model(const struct tt_model_dims *dims);

/** A llama3 with tied embeddings, most of whose tensors have fewer rows than there are ranks; the caller's. */
struct tt_model *fixture_tied_model(int64_t n_layers);

/** Makes *data a dataset of n tokens in one document. */
void fixture_dataset(const uint16_t *tokens, int n, struct tt_dataset *data);

/** Fills n tokens below 13, small ones more often, and makes *data their dataset, in one document. */
void fixture_tokens(uint16_t *tokens, int n, struct tt_dataset *data);

#endif
