/* SPDX-License-Identifier: MIT */
#ifndef TT_PAR_FIXTURE_H
#define TT_PAR_FIXTURE_H

#include "core/data/dataset.h"
#include "core/models/model.h"
#include "tests/help/sweep.h"

/* What the training tests on thread ranks begin with: tiny models and random tokens. cmocka asserts inside. */

/** Shows this thread's error message when rc is one; returns rc. */
int fixture_check(int rc);

/** A llama3 of these dims; the caller's. */
struct tt_model *fixture_model(const struct tt_model_dims *dims);

/** A llama3 with tied embeddings, and with fewer rows than ranks in most tensors; the caller's. */
struct tt_model *fixture_tied_model(int64_t n_layers);

/** Makes data the dataset of n tokens, one document. */
void fixture_dataset(const uint16_t *tokens, int n, struct tt_dataset *data);

/** Fills n tokens below 13, small ones more often, and makes data the dataset of them, one document. */
void fixture_tokens(uint16_t *tokens, int n, struct tt_dataset *data);

#endif
