/* SPDX-License-Identifier: MIT */
#ifndef TT_PAR_FIXTURE_H
#define TT_PAR_FIXTURE_H

#include "core/data/dataset.h"
#include "core/models/model.h"

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

/**
 * A sanitizer looks for mistakes that do not depend on every number, at ten times the cost: where a sweep turns through
 * values it takes one in FIXTURE_STRIDE, starting at another each time.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FIXTURE_STRIDE 3
#else
#define FIXTURE_STRIDE 1
#endif

#endif
