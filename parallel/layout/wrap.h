/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_WRAP_H
#define TT_PARALLEL_LAYOUT_WRAP_H

#include "core/config/config.h"
#include "core/models/model.h"

/**
 * Wrap policies: which parameters are sharded and gathered together. A policy gives every parameter a key, and
 * parameters with the same key are a unit. Policies are pure functions of the model.
 *
 *   block          embeddings; each block; norm and output together; a tied embedding is with norm and output
 *   model          everything
 *   param          each parameter alone
 *   size:<bytes>   consecutive parameters in forward order until the unit has at least that many bytes (of the whole
 *                  float32 parameters); a parameter is never split, so the last unit may be smaller
 *   [regex, ...]   the parameters that an expression is the first to match; all others by block
 */
struct tt_wrap_row {
    const char *name; /* "block"; a name that ends in ':' takes a number of bytes */
    void (*keys)(const struct tt_model *model, int64_t bytes, int64_t *ret_keys);
};

extern const struct tt_wrap_row tt_wrap_rows[];
extern const int tt_wrap_n_rows;

/**
 * The key of every parameter; ret_keys has n_params items.
 *   name      that of a row of the table, "size:" followed by bytes; not read if there are patterns
 *   patterns  regular expressions, or n 0
 * Errors: TT_EUSAGE, which names the policy, or the expression that no parameter is left for.
 */
int tt_wrap_keys(const struct tt_model *model, const char *name, struct tt_words patterns,
                 int64_t *ret_keys) TT_MUST_CHECK;

/** Whether the parameter is one of norm and output, where backward begins. A tied embedding is, since it is the
 * output's weight. */
bool tt_wrap_is_head(const struct tt_model *model, int param);

#endif
