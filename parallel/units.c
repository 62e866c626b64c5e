/* SPDX-License-Identifier: MIT
 *
 * Wrap policies and the layout they give.
 */
#include "parallel/units.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "parallel/shard.h"

/* `block`: embeddings; each block; norm and output together. A tied embedding belongs to norm and output. */
static int64_t block_key(const struct tt_model *model, int param)
{
    int block = model->params[param].block;

    return block == TT_BLOCK_EMBEDDINGS && model->dims.tied == 1 ? TT_BLOCK_HEAD : block;
}

const struct tt_wrap_row tt_wrap_rows[] = {
    {"block", block_key},
};
const int tt_wrap_n_rows = sizeof tt_wrap_rows / sizeof tt_wrap_rows[0];

static const struct tt_wrap_row *find_wrap(const char *name)
{
    for (int i = 0; i < tt_wrap_n_rows; i++)
        if (strcmp(tt_wrap_rows[i].name, name) == 0)
            return &tt_wrap_rows[i];
    return NULL;
}

/* "layers.3" for a block, else the parameters' names without ".weight", joined by "+". */
static char *unit_name(const struct tt_model *model, const struct tt_unit *unit)
{
    int block = model->params[unit->params[0].param].block;
    struct tt_text name = {0};

    if (block >= 0)
        return tt_format("layers.%d", block);
    for (int i = 0; i < unit->n_params; i++) {
        const char *full = model->params[unit->params[i].param].name;
        size_t size = strlen(full);

        if (size > 7 && strcmp(full + size - 7, ".weight") == 0)
            size -= 7;
        tt_text_add(&name, "%s%.*s", i ? "+" : "", (int)size, full);
    }
    return name.text;
}

static bool holds_head(const struct tt_model *model, const struct tt_unit *unit)
{
    for (int i = 0; i < unit->n_params; i++)
        if (model->params[unit->params[i].param].block == TT_BLOCK_HEAD)
            return true;
    return false;
}

static void add_param(struct tt_layout *layout, struct tt_unit *unit, const struct tt_model *model, int param)
{
    const struct tt_param *p = &model->params[param];
    int S = layout->shard_degree, i = layout->shard_index;
    int64_t width = 1;

    for (int d = 1; d < p->ndim; d++)
        width *= p->shape[d];
    layout->slot_of[param] = unit->n_params;
    unit->params = tt_realloc(unit->params, (size_t)unit->n_params + 1, sizeof *unit->params);
    unit->params[unit->n_params++] = (struct tt_unit_param){
        .param = param,
        .offset = unit->shard_elements,
        .chunk = tt_shard_padded_elements(p->shape[0], width, S),
        .row_begin = tt_shard_row_begin(p->shape[0], S, i),
        .valid_rows = tt_shard_rows(p->shape[0], S, i),
        .width = width,
    };
    unit->shard_elements += unit->params[unit->n_params - 1].chunk;
}

static void make_units(struct tt_layout *layout, const struct tt_model *model, const struct tt_wrap_row *wrap)
{
    int64_t *keys = tt_calloc((size_t)model->n_params, sizeof *keys); /* of the units so far */

    layout->units = tt_calloc((size_t)model->n_params, sizeof *layout->units);
    for (int p = 0; p < model->n_params; p++) {
        int64_t key = wrap->key(model, p);
        int u = 0;

        while (u < layout->n_units && keys[u] != key)
            u++;
        if (u == layout->n_units)
            keys[layout->n_units++] = key;
        layout->unit_of[p] = u;
        add_param(layout, &layout->units[u], model, p);
    }
    tt_free(keys);
}

int tt_layout_new(const struct tt_model *model, const struct tt_mesh *mesh, int rank, const char *wrap_name,
                  enum tt_reshard reshard, struct tt_layout **ret_layout)
{
    const struct tt_wrap_row *wrap = find_wrap(wrap_name);
    struct tt_layout *layout;

    if (!wrap)
        return tt_fail(TT_EUSAGE, "parallelism.fsdp_wrap_policy: '%s' is not a wrap policy\nhelp: use block",
                       wrap_name);
    layout = tt_calloc(1, sizeof *layout);
    layout->shard_degree = mesh->size[TT_MESH_DP_SHARD];
    layout->shard_index = tt_mesh_coordinate(mesh, rank, TT_MESH_DP_SHARD);
    layout->replicate_degree = mesh->size[TT_MESH_DP_REPLICATE];
    layout->replicate_index = tt_mesh_coordinate(mesh, rank, TT_MESH_DP_REPLICATE);
    layout->n_params = model->n_params;
    layout->unit_of = tt_calloc((size_t)model->n_params, sizeof *layout->unit_of);
    layout->slot_of = tt_calloc((size_t)model->n_params, sizeof *layout->slot_of);
    make_units(layout, model, wrap);
    for (int u = 0; u < layout->n_units; u++) {
        struct tt_unit *unit = &layout->units[u];

        unit->name = unit_name(model, unit);
        unit->reshard_after_forward = reshard == TT_RESHARD_AFTER_FORWARD_ALWAYS ||
                                      (reshard == TT_RESHARD_AFTER_FORWARD_DEFAULT && !holds_head(model, unit));
    }
    *ret_layout = layout;
    return 0;
}

void tt_layout_free(struct tt_layout *layout)
{
    if (!layout)
        return;
    for (int u = 0; u < layout->n_units; u++) {
        tt_free(layout->units[u].name);
        tt_free(layout->units[u].params);
    }
    tt_free(layout->units);
    tt_free(layout->unit_of);
    tt_free(layout->slot_of);
    tt_free(layout);
}
