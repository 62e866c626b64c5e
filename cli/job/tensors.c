/* SPDX-License-Identifier: MIT
 *
 * The tensors of a checkpoint, described before they exist.
 */
#include "cli/job/tensors.h"

#include <string.h>

#include "core/base/mem.h"
#include "parallel/layout/units.h"

const char *tt_job_moment_name(const struct tt_param *param, enum tt_state_array array)
{
    if (param->frozen || (param->muon && array == TT_STATE_EXP_AVG_SQ))
        return NULL;
    return param->muon && array == TT_STATE_EXP_AVG ? "momentum_buffer" : tt_state_name(array);
}

void tt_job_tensors_init(const struct tt_engine_options *options, struct tt_job_tensors *ret_tensors)
{
    const struct tt_model *model = options->model;
    int n = model->n_params;
    struct tt_job_tensors t = {.state = {.n_model = n}};

    t.state.model = tt_calloc((size_t)n, sizeof *t.state.model);
    t.state.optim = tt_calloc((TT_STATE_ARRAYS - 1) * (size_t)n, sizeof *t.state.optim);
    t.names = tt_calloc((TT_STATE_ARRAYS - 1) * (size_t)n, sizeof *t.names);
    for (int p = 0; p < n; p++) {
        const struct tt_param *param = &model->params[p];
        struct tt_ckpt_chunk chunk = {.name = param->name,
                                      .dtype = param->buffer ? TT_F32 : options->shard_dtype,
                                      .ndim = param->ndim,
                                      .placement = tt_param_placement(&options->mesh, options->places, model, p),
                                      .optional = param->adapter || param->buffer};

        memcpy(chunk.shape, param->shape, sizeof chunk.shape);
        t.state.model[p] = chunk;
        for (enum tt_state_array k = TT_STATE_EXP_AVG; k < TT_STATE_ARRAYS; k++) {
            if (!tt_engine_has(options, k) || !tt_job_moment_name(param, k))
                continue;
            chunk.dtype = tt_state_dtype(k, options->shard_dtype);
            chunk.optional = k == TT_STATE_EMA;
            chunk.name = t.names[t.state.n_optim] = tt_format("state.%s.%s", param->name, tt_job_moment_name(param, k));
            t.state.optim[t.state.n_optim++] = chunk;
        }
    }
    *ret_tensors = t;
}

void tt_job_tensors_release(struct tt_job_tensors *t)
{
    for (int i = 0; i < t->state.n_optim; i++)
        tt_free(t->names[i]);
    tt_free(t->names);
    tt_free(t->state.model);
    tt_free(t->state.optim);
    *t = (struct tt_job_tensors){0};
}
