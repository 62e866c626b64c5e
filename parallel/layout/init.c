/* SPDX-License-Identifier: MIT
 *
 * Initial values of the parameters; see init.h.
 */
#include "parallel/layout/init.h"

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/math/round.h"

static struct tt_box whole_of(const struct tt_param *param)
{
    return tt_box_whole(param->ndim, param->shape);
}

static int64_t elements(const struct tt_model *model, const struct tt_unit_param *place)
{
    struct tt_box whole = whole_of(&model->params[place->param]);

    return tt_box_volume(&whole);
}

static int64_t unit_bytes(const struct tt_model *model, const struct tt_unit *unit)
{
    int64_t n = 0;

    for (int i = 0; i < unit->n_params; i++)
        n += elements(model, &unit->params[i]);
    return n * (int64_t)sizeof(float);
}

int64_t tt_init_buffer_bytes(const struct tt_layout *layout, const struct tt_model *model, enum tt_init how)
{
    int64_t bytes = 0;

    for (int u = 0; u < layout->n_units && how != TT_INIT_SHARDS; u++) {
        int64_t unit = unit_bytes(model, &layout->units[u]);

        if (how == TT_INIT_WHOLE)
            bytes += unit;
        else if (unit > bytes)
            bytes = unit;
    }
    return bytes;
}

/* Rows [row, row + rows) of a box. */
static struct tt_box rows_of(const struct tt_box *box, int64_t row, int64_t rows)
{
    struct tt_box part = *box;

    part.offset[0] += row;
    part.shape[0] = rows;
    return part;
}

/* --- filling a part of a parameter --- */

/* The rows of a part are filled by all threads of the rank, a tile of at least TILE elements each. */
enum { TILE = 1 << 16, BLOCK = 512 };

struct filling {
    const struct tt_param *param;
    uint64_t seed;
    struct tt_box part;
    int64_t width, rows; /* elements of a row; rows of a tile */
    enum tt_dtype dtype;
    void *data;
};

/* Rounds blocks of rows, of at least BLOCK elements. */
static void fill_rounded(const struct filling *f, const struct tt_box *part, tt_bf16 *data)
{
    int64_t step = tt_div_up(BLOCK, f->width), n;
    float *block = tt_calloc((size_t)(step * f->width), sizeof *block);

    for (int64_t row = 0; row < part->shape[0]; row += n) {
        struct tt_box rows;

        n = part->shape[0] - row < step ? part->shape[0] - row : step;
        rows = rows_of(part, row, n);
        tt_param_fill(f->param, f->seed, &rows, block);
        tt_kernels()->bf16_round(data + row * f->width, block, n * f->width);
    }
    tt_free(block);
}

static void fill_tile(void *arg, int64_t tile, int worker)
{
    const struct filling *f = arg;
    int64_t row = tile * f->rows, left = f->part.shape[0] - row;
    struct tt_box part = rows_of(&f->part, row, left < f->rows ? left : f->rows);

    (void)worker;
    if (f->dtype == TT_BF16)
        fill_rounded(f, &part, (tt_bf16 *)f->data + row * f->width);
    else
        tt_param_fill(f->param, f->seed, &part, (float *)f->data + row * f->width);
}

static void fill(struct tt_team *team, const struct tt_param *param, uint64_t seed, const struct tt_box *part,
                 enum tt_dtype dtype, void *data)
{
    struct filling f = {
        .param = param, .seed = seed, .part = *part, .width = tt_box_row_elements(part), .dtype = dtype, .data = data};
    int64_t tiles;

    if (tt_box_volume(part) == 0)
        return;
    f.rows = tt_div_up(TILE, f.width);
    tiles = tt_div_up(part->shape[0], f.rows);
    if (team)
        tt_team_run(team, tiles, fill_tile, &f);
    for (int64_t tile = 0; !team && tile < tiles; tile++)
        fill_tile(&f, tile, 0);
}

/* Writes the whole of a unit, one parameter after another. */
static void fill_unit(struct tt_team *team, const struct tt_model *model, const struct tt_unit *unit, uint64_t seed,
                      float *whole)
{
    for (int i = 0; i < unit->n_params; i++) {
        const struct tt_param *param = &model->params[unit->params[i].param];
        struct tt_box box = whole_of(param);

        fill(team, param, seed, &box, TT_F32, whole);
        whole += elements(model, &unit->params[i]);
    }
}

/* --- a rank's part of it --- */

/* Rounds the elements of the packed box `to` out of the packed box `from` that contains it. */
static void round_box(const struct tt_box *to, tt_bf16 *rounded, const struct tt_box *from, const float *whole)
{
    int64_t run = tt_box_run(to, from), n = tt_box_volume(to);

    for (int64_t at = 0; at < n; at += run)
        tt_kernels()->bf16_round(rounded + at, whole + tt_box_position(to, at, from), run);
}

/* Copies a rank's parts from the whole of a unit. */
static void copy_own_parts(const struct tt_model *model, const struct tt_unit *unit, const float *whole,
                           enum tt_dtype dtype, void *shard)
{
    for (int i = 0; i < unit->n_params; i++) {
        const struct tt_unit_param *place = &unit->params[i];
        struct tt_box box = whole_of(&model->params[place->param]);

        if (dtype == TT_BF16 && !unit->buffers)
            round_box(&place->box, (tt_bf16 *)shard + place->offset, &box, whole);
        else
            tt_box_copy(&place->box, (float *)shard + place->offset, &box, whole, sizeof *whole);
        whole += elements(model, place);
    }
}

static void fill_shards(struct tt_team *team, const struct tt_layout *layout, const struct tt_model *model,
                        uint64_t seed, enum tt_dtype dtype, void *const *param)
{
    for (int p = 0; p < layout->n_params; p++) {
        const struct tt_unit_param *place;
        void *shard;

        if (!tt_layout_has(layout, p))
            continue;
        place = tt_layout_param(layout, p);
        shard = param[layout->unit_of[p]];
        if (dtype == TT_BF16 && !model->params[p].buffer)
            fill(team, &model->params[p], seed, &place->box, TT_BF16, (tt_bf16 *)shard + place->offset);
        else
            fill(team, &model->params[p], seed, &place->box, TT_F32, (float *)shard + place->offset);
    }
}

static void fill_units(struct tt_team *team, const struct tt_layout *layout, const struct tt_model *model,
                       uint64_t seed, float *buffer, enum tt_dtype dtype, void *const *param)
{
    for (int u = 0; u < layout->n_units; u++) {
        fill_unit(team, model, &layout->units[u], seed, buffer);
        copy_own_parts(model, &layout->units[u], buffer, dtype, param[u]);
    }
}

/* Writes all units before the first is copied, so the buffer holds the whole model. */
static void fill_whole(struct tt_team *team, const struct tt_layout *layout, const struct tt_model *model,
                       uint64_t seed, float *buffer, enum tt_dtype dtype, void *const *param)
{
    float *whole = buffer;

    for (int u = 0; u < layout->n_units; u++) {
        fill_unit(team, model, &layout->units[u], seed, whole);
        whole += unit_bytes(model, &layout->units[u]) / (int64_t)sizeof *whole;
    }
    whole = buffer;
    for (int u = 0; u < layout->n_units; u++) {
        copy_own_parts(model, &layout->units[u], whole, dtype, param[u]);
        whole += unit_bytes(model, &layout->units[u]) / (int64_t)sizeof *whole;
    }
}

static int check_rules(const struct tt_model *model)
{
    for (int p = 0; p < model->n_params; p++)
        if (model->params[p].init == TT_PARAM_NONE)
            return tt_fail(TT_EINTERNAL,
                           "parameter %s of %s has no rule for its first value\nhelp: give it one in the model's "
                           "add_params, or load the weights from a checkpoint",
                           model->params[p].name, model->row->name);
    return 0;
}

int tt_init_params(struct tt_team *team, const struct tt_layout *layout, const struct tt_model *model, enum tt_init how,
                   uint64_t seed, enum tt_dtype dtype, void *const *param)
{
    size_t bytes = (size_t)tt_init_buffer_bytes(layout, model, how);
    float *buffer = NULL;
    int rc = 0;

    TT_TRY(check_rules(model));
    if (how == TT_INIT_SHARDS) {
        fill_shards(team, layout, model, seed, dtype, param);
        goto out;
    }
    buffer = tt_map(bytes);
    if (!buffer) {
        rc = tt_fail(TT_EFIT, "the system refused %zu bytes for the initial weights\nhelp: use %s=meta", bytes,
                     tt_key_name(TT_KEY_INIT));
        goto out;
    }
    if (how == TT_INIT_WHOLE)
        fill_whole(team, layout, model, seed, buffer, dtype, param);
    else
        fill_units(team, layout, model, seed, buffer, dtype, param);
out:
    tt_unmap(buffer, bytes);
    return rc;
}
