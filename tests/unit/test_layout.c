/* SPDX-License-Identifier: MIT
 *
 * The parts of all ranks of a mesh together: they cover every element of every parameter, all ranks give an element the
 * same value, and the norm counts it once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/math/bf16.h"
#include "parallel/layout/init.h"
#include "parallel/layout/placement.h"
#include "parallel/layout/units.h"
#include "tests/help/mesh.h"

enum { SEED = 7 };

static struct tt_layout *layout_on(const struct tt_model *model, const struct tt_mesh *mesh, int rank)
{
    const struct tt_sharding sharding = {.wrap = "block"};
    struct tt_layout *layout = NULL;

    assert_int_equal(tt_layout_new(model, mesh, rank, &sharding, NULL, &layout), 0);
    return layout;
}

/* The first values of a rank's parts, as floats: one flat shard after the other. The caller's. */
static void **init_shards(const struct tt_layout *layout, const struct tt_model *model, enum tt_init_choice how,
                          enum tt_dtype dtype)
{
    void **shards = (void **)tt_calloc((size_t)layout->n_units, sizeof *shards);

    for (int u = 0; u < layout->n_units; u++)
        shards[u] = tt_calloc((size_t)layout->units[u].shard_elements + 1, tt_dtype_size(dtype));
    assert_int_equal(tt_init_params(NULL, layout, model, how, SEED, dtype, shards), 0);
    return shards;
}

static void free_shards(const struct tt_layout *layout, void **shards)
{
    for (int u = 0; u < layout->n_units; u++)
        tt_free(shards[u]);
    tt_free((void *)shards);
}

/* Compares a rank's part with the whole parameter. Notes the part's elements in `seen` and, if the rank adds them to
 * the norm, in `added`. */
static void check_part(const struct tt_param *param, const struct tt_unit_param *place, enum tt_dtype dtype,
                       const void *shard, uint8_t *seen, uint8_t *added)
{
    struct tt_box whole = tt_box_whole(param->ndim, param->shape);
    float *wanted = tt_calloc((size_t)tt_box_volume(&whole) + 1, sizeof *wanted);

    assert_int_equal(tt_box_row_elements(&whole), place->width);
    tt_param_fill(param, SEED, &whole, wanted);
    for (int64_t i = 0; i < tt_box_volume(&place->box); i++) {
        int64_t at = tt_box_position(&place->box, i, &whole);

        seen[at]++;
        added[at] = (uint8_t)(added[at] + place->adds_squares);
        if (dtype == TT_BF16)
            assert_int_equal(((const tt_bf16 *)shard)[place->offset + i], tt_bf16_from_float(wanted[at]));
        else
            assert_memory_equal((const float *)shard + place->offset + i, wanted + at, sizeof *wanted);
    }
    tt_free(wanted);
}

static void check_param(const struct tt_model *model, const struct tt_mesh *mesh, struct tt_layout *const *layout,
                        void **const *shards, enum tt_dtype dtype, int p)
{
    const struct tt_param *param = &model->params[p];
    struct tt_box whole = tt_box_whole(param->ndim, param->shape);
    int64_t n = tt_box_volume(&whole);
    uint8_t *seen = tt_calloc((size_t)n, 1), *added = tt_calloc((size_t)n, 1);
    int copies = mesh->size[TT_MESH_DP_REPLICATE] * (param->tp == TT_TP_WHOLE ? mesh->size[TT_MESH_TP] : 1);

    for (int rank = 0; rank < mesh->n_ranks; rank++) {
        const struct tt_unit_param *place = tt_layout_param(layout[rank], p);

        check_part(param, place, dtype, shards[rank][layout[rank]->unit_of[p]], seen, added);
        assert_int_equal(place->chunk, tt_layout_param(layout[0], p)->chunk);
        assert_true(place->rows * tt_box_row_elements(&place->box) <=
                    tt_unit_whole(layout[rank], layout[rank]->unit_of[p], place->chunk));
    }
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(seen[i], copies);
        assert_int_equal(added[i], 1);
    }
    tt_free(seen);
    tt_free(added);
}

static void check_mesh(const struct tt_model *model, const struct tt_mesh *mesh, enum tt_init_choice how,
                       enum tt_dtype dtype)
{
    struct tt_layout **layout = (struct tt_layout **)tt_calloc((size_t)mesh->n_ranks, sizeof *layout);
    void ***shards = (void ***)tt_calloc((size_t)mesh->n_ranks, sizeof *shards);

    for (int rank = 0; rank < mesh->n_ranks; rank++) {
        layout[rank] = layout_on(model, mesh, rank);
        shards[rank] = init_shards(layout[rank], model, how, dtype);
    }
    for (int p = 0; p < model->n_params; p++)
        check_param(model, mesh, layout, shards, dtype, p);
    for (int rank = 0; rank < mesh->n_ranks; rank++) {
        free_shards(layout[rank], shards[rank]);
        tt_layout_free(layout[rank]);
    }
    tt_free((void *)layout);
    tt_free((void *)shards);
}

static struct tt_model *new_model(const char *name, int64_t vocabulary)
{
    const struct tt_model_dims dims = {.dim = 16,
                                       .n_layers = 1,
                                       .n_heads = 4,
                                       .n_kv_heads = 4,
                                       .ffn_dim = 24,
                                       .vocab_size = vocabulary,
                                       .max_positions = strcmp(name, "gpt2") == 0 ? 10 : 0,
                                       .tied = -1};
    struct tt_model *model = NULL;

    assert_int_equal(tt_model_new(name, strcmp(name, "gpt2") == 0 ? "124M" : "debugmodel", &dims, NULL, &model), 0);
    return model;
}

/* 61 rows of the vocabulary are 4 grains of 16, 16, 16 and 13. */
static void every_element_is_somewhere(void **state)
{
    static const char *const names[] = {"llama3", "qwen3", "gpt2"};
    static const int degrees[][3] = {{1, 1, 1}, {1, 3, 2}, {2, 1, 2}, {1, 2, 4}, {2, 2, 2}, {1, 1, 4}, {1, 5, 4}};

    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        struct tt_model *model = new_model(names[m], 61);

        for (size_t d = 0; d < sizeof degrees / sizeof *degrees; d++) {
            int n_ranks = degrees[d][0] * degrees[d][1] * degrees[d][2];
            struct tt_mesh mesh;

            assert_int_equal(
                tt_mesh_init(DEGREES(1, degrees[d][0], degrees[d][1], 1, degrees[d][2], 1), n_ranks, &mesh), 0);
            mesh.tp_grains = 4;
            check_mesh(model, &mesh, (enum tt_init_choice)(d % TT_INIT_MODES), d % 2 ? TT_BF16 : TT_F32);
            check_mesh(model, &mesh, (enum tt_init_choice)((d + 1) % TT_INIT_MODES), d % 2 ? TT_F32 : TT_BF16);
        }
        tt_model_free(model);
    }
}

static struct tt_unit_param part_of(const struct tt_model *model, const struct tt_layout *layout, const char *name)
{
    for (int p = 0; p < model->n_params; p++)
        if (strcmp(model->params[p].name, name) == 0)
            return *tt_layout_param(layout, p);
    fail_msg("no parameter %s", name);
    return (struct tt_unit_param){0};
}

/* Rank 5 of 2 x 4 is shard 1, tp 1. The number of grains is as configured, on any number of ranks. */
static void tensor_parallelism_cuts_first(void **state)
{
    struct tt_model *model = new_model("llama3", 61);
    struct tt_unit_param part;
    struct tt_layout *layout;
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DEGREES(1, 1, 2, 1, 4, 1), 8, &mesh), 0);
    layout = layout_on(model, &mesh, 5);
    part = part_of(model, layout, "layers.0.attention.wq.weight"); /* (16, 16) */
    assert_int_equal(part.box.offset[0], 6);
    assert_int_equal(part.box.shape[0], 2);
    assert_int_equal(part.rows, 4);
    assert_int_equal(part.grain, 16);
    part = part_of(model, layout, "layers.0.feed_forward.w2.weight"); /* (16, 24) */
    assert_int_equal(part.box.offset[0], 8);
    assert_int_equal(part.box.offset[1], 6);
    assert_int_equal(part.box.shape[1], 6);
    assert_int_equal(part.rows, 16);
    assert_int_equal(part.width, 24);
    assert_int_equal(part.grain, 6);
    part = part_of(model, layout, "layers.0.ffn_norm.weight");
    assert_int_equal(part.box.offset[0], 8);
    assert_false(part.adds_squares); /* tp 0 adds it */
    tt_layout_free(layout);

    assert_int_equal(tt_mesh_init(DEGREES(1, 1, 1, 1, 2, 1), 2, &mesh), 0);
    mesh.tp_grains = 4;
    layout = layout_on(model, &mesh, 1);
    part = part_of(model, layout, "layers.0.feed_forward.w2.weight");
    assert_int_equal(part.box.shape[1], 12);
    assert_int_equal(part.grain, 6);
    part = part_of(model, layout, "output.weight");
    assert_int_equal(part.box.offset[0], 32);
    assert_int_equal(part.rows, 29);
    assert_int_equal(part.chunk, 32 * 16); /* as on the rank with two whole grains */
    tt_layout_free(layout);
    tt_model_free(model);
}

static void check_blocks(const struct tt_model *model, const struct tt_mesh *mesh, int rank)
{
    struct tt_layout *layout = layout_on(model, mesh, rank);
    int in_blocks = 0;

    for (int p = 0; p < model->n_params; p++) {
        const struct tt_unit_param *place = tt_layout_param(layout, p);
        const struct tt_unit *unit = &layout->units[layout->unit_of[p]];
        struct tt_placement placement;
        int64_t shape[TT_MAX_DIMS], first, n = tt_box_volume(&place->box);
        struct tt_box box;
        int ndim = 0, part;

        if (!tt_optim_row(place->optim)->codes[0]) {
            assert_true(place->offset < unit->codes_begin);
            continue;
        }
        in_blocks++;
        assert_true(place->offset >= unit->codes_begin);
        assert_true(model->params[p].block != TT_BLOCK_EMBEDDINGS && !model->params[p].tied);
        placement = tt_blocks_placement(mesh, NULL, model, p, &ndim, shape);
        part = tt_placement_part(mesh, &placement, rank);
        box = tt_placement_box(mesh, &placement, ndim, shape, part);
        assert_int_equal(tt_box_volume(&box), tt_blocks_count(n, place->run));
        assert_true(place->first_block + tt_blocks_count(place->chunk, place->run) <= unit->n_blocks);
        assert_true(tt_box_volume(&box) <= tt_placement_padded(mesh, &placement, ndim, shape));
        if (n == 0 || place->run) { /* a part of rows of runs: whole runs */
            assert_true(n == 0 || tt_box_row_elements(&place->box) % place->run == 0);
            continue;
        }
        first = place->box.offset[0] * place->width; /* where blocks run through all rows */
        assert_int_equal(first % TT_DYNAMIC_BLOCK, 0);
        assert_int_equal(box.offset[0] * (ndim == 2 ? shape[1] : 1) * TT_DYNAMIC_BLOCK, first);
    }
    assert_true(in_blocks > 0);
    tt_layout_free(layout);
}

/* The blocks of moments on every rank are those of the whole parameter: each rank has as many as its elements fill, and
 * where it says. */
static void no_rank_divides_a_block(void **state)
{
    static const int degrees[][3] = {{1, 1, 1}, {1, 3, 1}, {1, 4, 1}, {2, 2, 2}, {1, 2, 4}, {1, 1, 4}};
    static const int64_t widths[] = {18, 72, 256, 320};

    for (size_t k = 0; k < 2 * sizeof widths / sizeof *widths; k++) {
        struct tt_model_dims dims = {.n_layers = 1,
                                     .dim = widths[k / 2],
                                     .n_heads = 4,
                                     .n_kv_heads = 4,
                                     .head_dim = 4,
                                     .ffn_dim = 512,
                                     .vocab_size = 320,
                                     .tied = (int)(k % 2)};
        struct tt_model *model = NULL;

        assert_int_equal(tt_model_new("llama3", "debugmodel", &dims, NULL, &model), 0);
        tt_param_groups_set_optim(model, TT_OPTIM_ADAMW_8BIT);
        for (size_t d = 0; d < sizeof degrees / sizeof *degrees; d++) {
            int n_ranks = degrees[d][0] * degrees[d][1] * degrees[d][2];
            struct tt_mesh mesh;

            assert_int_equal(
                tt_mesh_init(DEGREES(1, degrees[d][0], degrees[d][1], 1, degrees[d][2], 1), n_ranks, &mesh), 0);
            mesh.tp_grains = degrees[d][2] > 1 ? 4 : 1;
            for (int rank = 0; rank < n_ranks; rank++)
                check_blocks(model, &mesh, rank);
        }
        tt_model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_somewhere),
        cmocka_unit_test(tensor_parallelism_cuts_first),
        cmocka_unit_test(no_rank_divides_a_block),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
