/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_MODEL_HELP_H
#define TT_TESTS_MODEL_HELP_H

/** Parameters of a model and their initial values, for the tests of core/models. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/models/model.h"

/* The parameter of that name, which must exist. */
static inline struct tt_param *find_param(const struct tt_model *model, const char *name)
{
    for (int p = 0; p < model->n_params; p++)
        if (strcmp(model->params[p].name, name) == 0)
            return &model->params[p];
    fail_msg("no parameter %s", name);
    return NULL;
}

/* Initial values of the rows from `begin` on. */
static inline void fill_rows(const struct tt_param *p, uint64_t seed, int64_t begin, int64_t rows, float *data)
{
    struct tt_box part = tt_box_rows(p->ndim, p->shape, begin, rows);

    tt_param_fill(p, seed, &part, data);
}

#endif
