/* SPDX-License-Identifier: MIT
 *
 * All ranks go through the same list of parts, parameter by parameter. A part is sent by its holder in blocks of its
 * packed elements; rank 0 copies them to their places in the whole tensor.
 */
#include "parallel/engine/collect.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "parallel/layout/placement.h"
#include "parallel/layout/units.h"

enum { BLOCK = 1 << 20 }; /* bytes of a message */

struct collecting {
    const struct tt_model *model;
    struct tt_comm *comm;
    const struct tt_layout *layout; /* of this rank's part */
    const struct tt_state *state;
    const struct tt_layout *whole_layout; /* of rank 0's generator */
    const struct tt_state *whole;
    char *block; /* rank 0's, for what arrives */
};

/* A part of a parameter. */
struct part {
    int param;
    struct tt_box box;
    int holder;
    enum tt_dtype dtype; /* as its holder has it */
};

static char *address(const struct tt_layout *layout, const struct tt_state *state, int p)
{
    return tt_state_at(state, TT_STATE_PARAM, layout->unit_of[p], tt_layout_param(layout, p)->offset);
}

/* Copies n elements, or rounds them. */
static void copy(char *to, enum tt_dtype to_dtype, const char *from, enum tt_dtype from_dtype, int64_t n)
{
    if (to_dtype == from_dtype)
        memcpy(to, from, (size_t)n * tt_dtype_size(to_dtype));
    else
        tt_kernels()->bf16_round((tt_bf16 *)(void *)to, (const float *)(const void *)from, n);
}

/* Rank 0: puts n elements of a part, from its element `at` on, where they are in the whole tensor. */
static void place(const struct collecting *c, const struct part *part, int64_t at, const char *bytes, int64_t n)
{
    const struct tt_param *param = &c->model->params[part->param];
    const struct tt_box whole = tt_box_whole(param->ndim, param->shape);
    enum tt_dtype dtype = param->buffer ? TT_F32 : c->whole->dtype;
    char *to = address(c->whole_layout, c->whole, part->param);
    int64_t run = tt_box_run(&part->box, &whole);

    for (int64_t i = 0, some; i < n; i += some) {
        int64_t left = run - (at + i) % run, place = tt_box_position(&part->box, at + i, &whole);

        some = left < n - i ? left : n - i;
        copy(to + place * (int64_t)tt_dtype_size(dtype), dtype, bytes + i * (int64_t)tt_dtype_size(part->dtype),
             part->dtype, some);
    }
}

static int move_block(const struct collecting *c, const struct part *part, int64_t at, int64_t n)
{
    struct tt_comm *comm = c->comm;
    size_t item = tt_dtype_size(part->dtype);
    bool holds = comm->rank == part->holder;
    char *own = holds ? address(c->layout, c->state, part->param) + at * (int64_t)item : NULL;
    struct tt_segment segment = {holds ? own : c->block, (size_t)n * item};
    struct tt_request request = {{0}};
    int rc = 0;

    if (comm->rank == 0 && holds) {
        place(c, part, at, own, n);
    } else if (comm->rank == 0) {
        TT_TRY(comm->ops->recv_begin(comm, &segment, 1, part->holder, TT_TAG_SAVE, &request));
        TT_TRY(tt_comm_wait(comm, &request, part->holder));
        place(c, part, at, c->block, n);
    } else if (holds) {
        TT_TRY(comm->ops->send_begin(comm, &segment, 1, 0, TT_TAG_SAVE, &request));
        TT_TRY(tt_comm_wait(comm, &request, 0));
    }
out:
    return rc;
}

static int move_part(const struct collecting *c, const struct part *part)
{
    int64_t n = tt_box_volume(&part->box), most = BLOCK / (int64_t)tt_dtype_size(part->dtype);
    int rc = 0;

    for (int64_t at = 0; at < n; at += most)
        TT_TRY(move_block(c, part, at, n - at < most ? n - at : most));
out:
    return rc;
}

int tt_collect_weights(const struct tt_engine_options *options, struct tt_engine *engine, struct tt_comm *comm,
                       struct tt_generator *generator)
{
    const struct tt_model *model = options->model;
    struct collecting c = {.model = model,
                           .comm = comm,
                           .layout = tt_engine_layout(engine),
                           .state = tt_engine_state(engine),
                           .whole_layout = generator ? tt_generator_layout(generator) : NULL,
                           .whole = generator ? tt_generator_state(generator) : NULL,
                           .block = generator ? tt_calloc(BLOCK, 1) : NULL};
    int rc = 0;

    for (int p = 0; p < model->n_params; p++) {
        const struct tt_placement placement = tt_param_placement(&options->mesh, options->places, model, p);

        for (int i = 0; i < tt_placement_parts(&options->mesh, &placement); i++) {
            const struct part part = {
                .param = p,
                .box = tt_placement_box(&options->mesh, &placement, model->params[p].ndim, model->params[p].shape, i),
                .holder = tt_placement_rank(&options->mesh, &placement, i, 0),
                .dtype = model->params[p].buffer ? TT_F32 : options->shard_dtype};

            TT_TRY(move_part(&c, &part));
        }
    }
out:
    tt_free(c.block);
    return rc;
}
