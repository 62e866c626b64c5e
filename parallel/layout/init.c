/* SPDX-License-Identifier: MIT
 *
 * Initial values of the parameters, and the rules that change them.
 */
#include "parallel/layout/init.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/graph/graph.h"
#include "core/kernels/kernels.h"
#include "core/math/packing.h"
#include "core/math/round.h"
#include "parallel/layout/units.h"

/* --- rules that replace the family's --- */

/* A rule and its arguments; arguments that the rule does not take are 0. */
struct rule {
    enum tt_param_init init;
    double arg[2];
};

static const struct {
    const char *name;
    enum tt_param_init init;
    int fewest, most; /* smallest and largest number of arguments */
} kinds[] = {
    {"normal", TT_PARAM_NORMAL, 1, 2}, {"uniform", TT_PARAM_UNIFORM, 2, 2}, {"constant", TT_PARAM_CONSTANT, 1, 1},
    {"zeros", TT_PARAM_ZEROS, 0, 0},   {"ones", TT_PARAM_ONES, 0, 0},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* Reads "(1,2)" or nothing. Returns the number of arguments, or -1 for an error. */
static int read_arguments(const char *text, double *arg)
{
    int n = 0;

    if (!*text)
        return 0;
    if (*text++ != '(')
        return -1;
    while (n < 2) {
        char *end = NULL;

        arg[n] = strtod(text, &end);
        if (end == text || !isfinite(arg[n]))
            return -1;
        n++;
        text = end + strspn(end, " ");
        if (*text != ',')
            break;
        text++;
    }
    return strcmp(text, ")") == 0 ? n : -1;
}

static int read_rule(void *arg, int i, const char *text, const char *what)
{
    size_t n = what ? strcspn(what, "(") : 0;

    for (int k = 0; k < N_KINDS && what; k++) {
        struct rule rule = {.init = kinds[k].init};
        bool possible;
        int args;

        if (strlen(kinds[k].name) != n || strncmp(kinds[k].name, what, n) != 0)
            continue;
        args = read_arguments(what + n, rule.arg);
        possible = rule.init == TT_PARAM_NORMAL ? rule.arg[0] > 0.0 && rule.arg[1] >= 0.0
                                                : rule.init != TT_PARAM_UNIFORM || rule.arg[0] < rule.arg[1];
        if (args < kinds[k].fewest || args > kinds[k].most || !possible)
            break;
        ((struct rule *)arg)[i] = rule;
        return 0;
    }
    return tt_fail_key(TT_EUSAGE, TT_KEY(model.init_rules),
                       "'%s' is not a rule such as attention.wo=normal(0.01)\n"
                       "help: write regex=RULE, where RULE is one of normal(STD), normal(STD,CUT) with STD above 0, "
                       "uniform(LOW,HIGH) with LOW below HIGH, constant(VALUE), zeros, ones",
                       text);
}

int tt_init_rules_apply(struct tt_model *model, double init_std, struct tt_words words)
{
    struct rule *rules = tt_calloc((size_t)words.n + 1, sizeof *rules);
    int *index = tt_calloc((size_t)model->n_params, sizeof *index);
    int rc = 0;

    for (int p = 0; p < model->n_params && !isnan(init_std); p++)
        if (model->params[p].depth > 0.0)
            model->params[p].std = init_std / model->params[p].depth;
    if (words.n)
        TT_TRY(tt_patterns_of_rules(TT_KEY(model.init_rules), words, model, "rule", read_rule, rules, index));
    for (int p = 0; p < model->n_params && words.n; p++) {
        struct tt_param *param = &model->params[p];
        bool normal = index[p] != TT_NONE && rules[index[p]].init == TT_PARAM_NORMAL;

        if (index[p] == TT_NONE)
            continue;
        param->init = rules[index[p]].init;
        param->depth = param->std = param->cut = param->low = param->high = 0.0;
        *(normal ? &param->std : &param->low) = rules[index[p]].arg[0];
        *(normal ? &param->cut : &param->high) = rules[index[p]].arg[1];
    }
out:
    tt_free(rules);
    tt_free(index);
    return rc;
}

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

/* What tt_pack needs of a packed parameter: all of it, or the whole rows of which this rank has a part. */
static struct tt_box box_to_pack(const struct tt_param *param, const struct tt_unit_param *place)
{
    struct tt_box box = whole_of(param);

    if (tt_packing_needs_whole(param->packing))
        return box;
    return tt_box_rows(param->ndim, param->shape, place->box.offset[0],
                       tt_box_volume(&place->box) ? place->box.shape[0] : 0);
}

int64_t tt_init_buffer_bytes(const struct tt_layout *layout, const struct tt_model *model, enum tt_init_choice how)
{
    int64_t bytes = 0;

    for (int p = 0; p < layout->n_params && how == TT_INIT_META; p++) {
        int64_t part = 0;

        if (tt_layout_has(layout, p) && model->params[p].packing) {
            struct tt_box box = box_to_pack(&model->params[p], tt_layout_param(layout, p));

            part = tt_box_volume(&box) * (int64_t)sizeof(float);
        }
        bytes = part > bytes ? part : bytes;
    }
    for (int u = 0; u < layout->n_units && how != TT_INIT_META; u++) {
        int64_t unit = unit_bytes(model, &layout->units[u]);

        if (how == TT_INIT_FULL)
            bytes += unit;
        else if (unit > bytes)
            bytes = unit;
    }
    return bytes;
}

/* Rows [row, row + rows) of a box, as a box. */
static struct tt_box rows_of(const struct tt_box *box, int64_t row, int64_t rows)
{
    struct tt_box part = *box;

    part.offset[0] += row;
    part.shape[0] = rows;
    return part;
}

/* --- filling a part of a parameter --- */

/* All threads of the rank fill the rows of a part, in tiles of at least TILE elements. */
enum { TILE = 1 << 16, BLOCK = 512 };

struct filling {
    const struct tt_param *param;
    uint64_t seed;
    struct tt_box part;
    int64_t width, rows; /* elements in a row; rows in a tile */
    enum tt_dtype dtype;
    void *data;
};

/* Elements of type dtype, from floats. */
static void convert(enum tt_dtype dtype, void *to, int64_t at, const float *from, int64_t n)
{
    if (dtype == TT_BF16)
        tt_kernels()->bf16_round((tt_bf16 *)to + at, from, n);
    for (int64_t i = 0; dtype == TT_F64 && i < n; i++)
        ((double *)to)[at + i] = (double)from[i];
}

/* Converts blocks of rows, of at least BLOCK elements. */
static void fill_converted(const struct filling *f, const struct tt_box *part, int64_t at)
{
    int64_t step = tt_div_up(BLOCK, f->width), n;
    float *block = tt_calloc((size_t)(step * f->width), sizeof *block);

    for (int64_t row = 0; row < part->shape[0]; row += n) {
        struct tt_box rows;

        n = part->shape[0] - row < step ? part->shape[0] - row : step;
        rows = rows_of(part, row, n);
        tt_param_fill(f->param, f->seed, &rows, block);
        convert(f->dtype, f->data, at + row * f->width, block, n * f->width);
    }
    tt_free(block);
}

static void fill_tile(void *arg, int64_t tile, int worker)
{
    const struct filling *f = arg;
    int64_t row = tile * f->rows, left = f->part.shape[0] - row;
    struct tt_box part = rows_of(&f->part, row, left < f->rows ? left : f->rows);

    (void)worker;
    if (f->dtype != TT_F32)
        fill_converted(f, &part, row * f->width);
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

/* Writes a whole unit, one parameter after another. */
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

/* Packs this rank's part of a parameter. x: rows from `row` on, whole. */
static void pack_part(const struct tt_param *param, const struct tt_box *part, const float *x, int64_t row,
                      int64_t rows, void *to)
{
    int64_t width = param->shape[1], columns = part->shape[1], bytes = tt_packing_row_bytes(param->packing, width);
    int64_t n = part->shape[0];
    char *whole = to;

    if (columns < width)
        whole = tt_calloc((size_t)n, (size_t)bytes);
    tt_pack(param->packing, x, rows, width, part->offset[0] - row, n, whole);
    for (int64_t r = 0; r < n && whole != to; r++)
        tt_packing_cut(param->packing, whole + r * bytes, width, part->offset[1], columns,
                       (char *)to + r * tt_packing_row_bytes(param->packing, columns));
    if (whole != to)
        tt_free(whole);
}

/* Fills and packs this rank's part. */
static void fill_packed(struct tt_team *team, const struct tt_param *param, uint64_t seed,
                        const struct tt_unit_param *place, float *buffer, void *part)
{
    struct tt_box box = box_to_pack(param, place);

    fill(team, param, seed, &box, TT_F32, buffer);
    if (tt_box_volume(&place->box) > 0)
        pack_part(param, &place->box, buffer, box.offset[0], box.shape[0], part);
}

/* Copies a rank's parts from a whole unit. */
static void copy_own_parts(const struct tt_model *model, const struct tt_unit *unit, const float *whole,
                           enum tt_dtype dtype, void *shard)
{
    for (int i = 0; i < unit->n_params; i++) {
        const struct tt_unit_param *place = &unit->params[i];
        struct tt_box box = whole_of(&model->params[place->param]);
        int64_t run = tt_box_run(&place->box, &box), n = tt_box_volume(&place->box);
        enum tt_dtype stored = unit->buffers ? tt_dtype_sums(dtype) : dtype;
        bool converts = stored != TT_F32 && !unit->packing;

        if (unit->packing && n > 0)
            pack_part(&model->params[place->param], &place->box, whole, 0, box.shape[0], (char *)shard + place->offset);
        for (int64_t at = 0; converts && at < n; at += run)
            convert(stored, shard, place->offset + at, whole + tt_box_position(&place->box, at, &box), run);
        if (!converts && !unit->packing)
            tt_box_copy(&place->box, (float *)shard + place->offset, &box, whole, sizeof *whole);
        whole += elements(model, place);
    }
}

/* Fills this rank's part of parameter p, if there is one. buffer: tt_init_buffer_bytes bytes, for a packed
 * parameter. */
static void fill_own(struct tt_team *team, const struct tt_layout *layout, const struct tt_model *model, int p,
                     uint64_t seed, enum tt_dtype dtype, float *buffer, void *const *param)
{
    const struct tt_param *of = &model->params[p];
    enum tt_dtype stored = of->packing ? TT_U8 : of->buffer ? tt_dtype_sums(dtype) : dtype;
    const struct tt_unit_param *place;
    void *data;

    if (!tt_layout_has(layout, p))
        return;
    place = tt_layout_param(layout, p);
    data = (char *)param[layout->unit_of[p]] + place->offset * (int64_t)tt_dtype_size(stored);
    if (of->packing)
        fill_packed(team, of, seed, place, buffer, data);
    else
        fill(team, of, seed, &place->box, stored, data);
}

void tt_init_trained(struct tt_team *team, const struct tt_layout *layout, const struct tt_model *model, uint64_t seed,
                     enum tt_dtype dtype, void *const *param)
{
    for (int p = 0; p < layout->n_params; p++)
        if (!model->params[p].frozen || model->params[p].buffer)
            fill_own(team, layout, model, p, seed, dtype, NULL, param);
}

int tt_init_params(struct tt_team *team, const struct tt_layout *layout, const struct tt_model *model,
                   enum tt_init_choice how, uint64_t seed, enum tt_dtype dtype, void *const *param)
{
    size_t bytes = (size_t)tt_init_buffer_bytes(layout, model, how);
    float *buffer = NULL;
    int rc = 0;

    for (int p = 0; p < model->n_params; p++)
        if (model->params[p].init == TT_PARAM_NONE)
            TT_TRY(tt_fail(TT_EINTERNAL,
                           "parameter %s of %s has no rule for its first value\nhelp: give it one in the model's "
                           "add_params, or load the weights from a checkpoint",
                           model->params[p].name, model->row->name));
    buffer = bytes ? tt_map(bytes) : NULL;
    if (bytes && !buffer) {
        rc = tt_fail(TT_EFIT,
                     "the system refused %zu bytes for the initial weights\nhelp: use %s=meta, or fewer processes",
                     bytes, TT_KEY_NAME(training.init));
        goto out;
    }
    for (int p = 0; p < layout->n_params && how == TT_INIT_META; p++)
        fill_own(team, layout, model, p, seed, dtype, buffer, param);
    if (how == TT_INIT_META)
        goto out;
    for (int pass = 0; pass < (how == TT_INIT_FULL ? 2 : 1); pass++) { /* full: fill the whole model first */
        float *whole = buffer;

        for (int u = 0; u < layout->n_units; u++) {
            if (pass == 0)
                fill_unit(team, model, &layout->units[u], seed, whole);
            if (pass == 1 || how == TT_INIT_LAYERWISE)
                copy_own_parts(model, &layout->units[u], whole, dtype, param[u]);
            if (how == TT_INIT_FULL)
                whole += unit_bytes(model, &layout->units[u]) / (int64_t)sizeof *whole;
        }
    }
out:
    tt_unmap(buffer, bytes);
    return rc;
}
