/* SPDX-License-Identifier: MIT
 *
 * The tensors of a checkpoint: described before they exist, and found in the memory of an engine.
 */
#include "trainer/job/tensors.h"

#include <string.h>

#include "core/base/mem.h"
#include "parallel/layout/placement.h"
#include "parallel/layout/units.h"

/* The last part of the name of a parameter's tensor in an array of the optimizer's state, as PyTorch's optimizers call
 * it: "exp_avg". NULL: this parameter has no tensor in the array. */
static const char *moment_name(const struct tt_param *param, enum tt_state_array array)
{
    const struct tt_optim_row *optim = tt_optim_row(param->optim);
    const char *const names[TT_STATE_ARRAYS] = {
        [TT_STATE_MOMENT] = optim->moments[0],        [TT_STATE_MOMENT_2] = optim->moments[1],
        [TT_STATE_CODES] = optim->codes[0],           [TT_STATE_CODES_2] = optim->codes[1],
        [TT_STATE_BLOCKS] = optim->largest[0],        [TT_STATE_BLOCKS_2] = optim->largest[1],
        [TT_STATE_EMA] = tt_state_name(TT_STATE_EMA),
    };

    return param->frozen ? NULL : names[array];
}

/* Sets the part of parameter p that this rank holds in an array, and its address. A rank holds no part of a parameter
 * of other stages. */
static void place(const struct tt_mesh *mesh, struct tt_engine *engine, int p, enum tt_state_array array,
                  struct tt_ckpt_chunk *chunk)
{
    const struct tt_layout *layout = tt_engine_layout(engine);
    const struct tt_unit_param *part;
    int number = 0;

    chunk->part = tt_box_empty(chunk->ndim);
    if (!tt_layout_has(layout, p))
        return;
    part = tt_layout_param(layout, p);
    for (int c = 0; c < chunk->placement.n_cuts; c++) {
        struct tt_place at = layout->groups[chunk->placement.cut[c].group];

        number = number * at.n + at.index;
    }
    chunk->part = tt_placement_box(mesh, &chunk->placement, chunk->ndim, chunk->shape, number);
    chunk->data = tt_state_at(tt_engine_state(engine), array, layout->unit_of[p], part);
}

void tt_job_tensors_init(const struct tt_engine_options *options, struct tt_engine *engine,
                         struct tt_job_tensors *ret_tensors)
{
    const struct tt_model *model = options->model;
    int n = model->n_params;
    struct tt_job_tensors t = {.whole = {.n_model = n}};

    t.whole.model = tt_calloc((size_t)n, sizeof *t.whole.model);
    t.state.model = tt_calloc((size_t)n, sizeof *t.state.model);
    t.state.optim = tt_calloc((TT_STATE_ARRAYS - 1) * (size_t)n, sizeof *t.state.optim);
    t.names = tt_calloc((TT_STATE_ARRAYS - 1) * (size_t)n, sizeof *t.names);
    for (int p = 0; p < n; p++) {
        const struct tt_param *param = &model->params[p];
        struct tt_ckpt_chunk chunk = {.name = param->name,
                                      .dtype =
                                          param->buffer ? tt_dtype_sums(options->shard_dtype) : options->shard_dtype,
                                      .ndim = param->ndim,
                                      .placement = tt_param_placement(&options->mesh, options->places, model, p),
                                      .optional = (param->adapter && !model->dims.lora.packing) || param->buffer,
                                      .packing = param->packing};

        memcpy(chunk.shape, param->shape, sizeof chunk.shape);
        if (engine)
            place(&options->mesh, engine, p, TT_STATE_PARAM, &chunk);
        t.whole.model[p] = chunk;
        if (!tt_job_base_is_apart(model) || !param->frozen || param->buffer)
            t.state.model[t.state.n_model++] = chunk;
        for (enum tt_state_array k = TT_STATE_MOMENT; k < TT_STATE_ARRAYS; k++) {
            struct tt_ckpt_chunk moment = chunk;

            if (!tt_engine_has(options, k) || !moment_name(param, k))
                continue;
            moment.dtype = tt_state_dtype(k, options->shard_dtype);
            moment.optional = k == TT_STATE_EMA;
            if (k == TT_STATE_BLOCKS || k == TT_STATE_BLOCKS_2)
                moment.placement =
                    tt_blocks_placement(&options->mesh, options->places, model, p, &moment.ndim, moment.shape);
            if (engine)
                place(&options->mesh, engine, p, k, &moment);
            moment.name = t.names[t.state.n_optim] = tt_format("state.%s.%s", param->name, moment_name(param, k));
            t.state.optim[t.state.n_optim++] = moment;
        }
    }
    *ret_tensors = t;
}

void tt_job_tensors_release(struct tt_job_tensors *t)
{
    for (int i = 0; i < t->state.n_optim; i++)
        tt_free(t->names[i]);
    tt_free(t->names);
    tt_free(t->whole.model);
    tt_free(t->state.model);
    tt_free(t->state.optim);
    *t = (struct tt_job_tensors){0};
}
