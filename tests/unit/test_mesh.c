/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/layout/placement.h"
#include "tests/help/mesh.h"

static struct tt_mesh mesh_of(int replicate, int shard)
{
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DP_DEGREES(replicate, shard), replicate * shard, &mesh), 0);
    return mesh;
}

static void shard_degree_takes_what_is_left(void **state)
{
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DP_DEGREES(2, -1), 6, &mesh), 0);
    assert_int_equal(mesh.size[TT_MESH_DP_SHARD], 3);
    assert_int_equal(tt_mesh_size(&mesh, TT_GROUP_BATCH), 6);
}

static void expect_message(int rc, const char *part)
{
    assert_int_equal(rc, TT_EUSAGE);
    if (!strstr(tt_error_message(), part))
        fail_msg("'%s' is not in: %s", part, tt_error_message());
}

static void wrong_degrees_say_how_to_mend_them(void **state)
{
    struct tt_mesh mesh;

    expect_message(tt_mesh_init(DP_DEGREES(2, 3), 4, &mesh), "multiply to 6");
    expect_message(tt_mesh_init(DP_DEGREES(2, 3), 4, &mesh), "set parallelism.data_parallel_shard_degree to 2");
    expect_message(tt_mesh_init(DP_DEGREES(2, 3), 5, &mesh), "help: start 6 ranks");
    expect_message(tt_mesh_init(DP_DEGREES(3, -1), 4, &mesh), "3 does not divide 4");
    expect_message(tt_mesh_init(DP_DEGREES(8, -1), 4, &mesh), "start a multiple of 8 ranks");
    expect_message(tt_mesh_init(DP_DEGREES(0, -1), 4, &mesh), "0, wanted a positive number");
    assert_int_equal(tt_error_key(), TT_KEY(parallelism.data_parallel_replicate_degree));
    expect_message(tt_mesh_init(DP_DEGREES(1, -2), 4, &mesh), "-2, wanted a positive number, or -1");
    assert_int_equal(tt_error_key(), TT_KEY(parallelism.data_parallel_shard_degree));
    expect_message(tt_mesh_init(DEGREES(2000000, 2000000, -1, 1, 1, 1), 4, &mesh), "more than");
}

static void coordinates_are_outer_to_inner(void **state)
{
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DEGREES(2, 3, 4, 1, 2, 1), 48, &mesh), 0);
    assert_int_equal(tt_mesh_coordinate(&mesh, 1, TT_MESH_TP), 1);
    assert_int_equal(tt_mesh_coordinate(&mesh, 2, TT_MESH_DP_SHARD), 1);
    assert_int_equal(tt_mesh_coordinate(&mesh, 8, TT_MESH_DP_REPLICATE), 1);
    assert_int_equal(tt_mesh_coordinate(&mesh, 24, TT_MESH_PP), 1);
    for (int rank = 0; rank < 48; rank++) {
        int place = 0;

        for (int dim = 0; dim < TT_MESH_DIMS; dim++)
            place = place * mesh.size[dim] + tt_mesh_coordinate(&mesh, rank, dim);
        assert_int_equal(place, rank);
    }
}

static void groups_are_lines_through_a_rank(void **state)
{
    struct tt_mesh mesh = mesh_of(2, 4);
    struct tt_group shard = tt_mesh_group(&mesh, 6, TT_GROUP_FSDP);
    struct tt_group replicate = tt_mesh_group(&mesh, 6, TT_GROUP_REPLICATE);

    assert_int_equal(shard.n, 4);
    assert_int_equal(shard.index, 2);
    assert_memory_equal(shard.ranks, ((const int[]){4, 5, 6, 7}), 4 * sizeof(int));
    assert_int_equal(replicate.n, 2);
    assert_int_equal(replicate.index, 1);
    assert_memory_equal(replicate.ranks, ((const int[]){2, 6}), 2 * sizeof(int));
    tt_group_release(&shard);
    tt_group_release(&replicate);
}

static void expect_group(const struct tt_mesh *mesh, int rank, enum tt_group_id id, int n, const int *ranks)
{
    struct tt_group group = tt_mesh_group(mesh, rank, id);
    struct tt_place place = tt_mesh_place(mesh, rank, id);

    assert_int_equal(group.n, n);
    assert_memory_equal(group.ranks, ranks, (size_t)n * sizeof *ranks);
    assert_int_equal(group.ranks[group.index], rank);
    assert_int_equal(place.n, group.n);
    assert_int_equal(place.index, group.index);
    assert_int_equal(tt_mesh_size(mesh, id), n);
    tt_group_release(&group);
}

static void groups_span_sets_of_dimensions(void **state)
{
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DEGREES(1, 2, 2, 2, 2, 1), 16, &mesh), 0);
    /* Rank 13 is replica 1, shard 1, cp 0, tp 1. */
    expect_group(&mesh, 13, TT_GROUP_FSDP, 4, (const int[]){9, 11, 13, 15});
    expect_group(&mesh, 13, TT_GROUP_REPLICATE, 2, (const int[]){5, 13});
    expect_group(&mesh, 13, TT_GROUP_BATCH, 4, (const int[]){1, 5, 9, 13});
    expect_group(&mesh, 13, TT_GROUP_LOSS, 8, (const int[]){1, 3, 5, 7, 9, 11, 13, 15});
    expect_group(&mesh, 13, TT_GROUP_CP, 2, (const int[]){13, 15});
    expect_group(&mesh, 13, TT_GROUP_TP, 2, (const int[]){12, 13});
    expect_group(&mesh, 13, TT_GROUP_PP, 1, (const int[]){13});
    assert_int_equal(tt_mesh_size(&mesh, TT_GROUP_WORLD), 16);
}

static void experts_borrow_the_inner_ranks(void **state)
{
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DEGREES(1, 2, 4, 1, 2, 4), 16, &mesh), 0);
    expect_group(&mesh, 13, TT_GROUP_EP, 4, (const int[]){12, 13, 14, 15});
    expect_group(&mesh, 13, TT_GROUP_EFSDP, 2, (const int[]){9, 13});
    expect_group(&mesh, 13, TT_GROUP_FSDP, 4, (const int[]){9, 11, 13, 15});
    expect_group(&mesh, 13, TT_GROUP_MATRIX, 8, (const int[]){8, 9, 10, 11, 12, 13, 14, 15});
    expect_message(tt_mesh_init(DEGREES(1, 2, 4, 1, 2, 3), 16, &mesh), "3, wanted 1, or a multiple of");
    assert_int_equal(tt_error_key(), TT_KEY(parallelism.expert_parallel_degree));
    expect_message(tt_mesh_init(DEGREES(1, 2, 4, 1, 2, 16), 16, &mesh), "divides the 8 ranks");
    expect_message(tt_mesh_init(DEGREES(1, 2, 4, 1, 2, 16), 16, &mesh), "these work: 1, 2, 4, 8");
    expect_message(tt_mesh_init(DEGREES(1, 1, 4, 1, 1, 3), 4, &mesh), "3 does not divide the 4 ranks");
}

/* Exactly one of the ranks that hold a term of a group's sum adds it. */
static void sums_have_one_owner(void **state)
{
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DEGREES(2, 2, 2, 2, 2, 1), 32, &mesh), 0);
    for (int id = 0; id < TT_GROUPS; id++) {
        bool owned[32] = {false};
        int owners = 0;

        for (int rank = 0; rank < 32; rank++)
            if (tt_mesh_owns(&mesh, rank, (enum tt_group_id)id)) {
                struct tt_place place = tt_mesh_place(&mesh, rank, (enum tt_group_id)id);

                owners++;
                if (id != TT_GROUP_EP && id != TT_GROUP_EFSDP) {
                    assert_false(owned[place.index]);
                    owned[place.index] = true;
                }
            }
        if (id != TT_GROUP_EP && id != TT_GROUP_EFSDP)
            assert_int_equal(owners, tt_mesh_size(&mesh, (enum tt_group_id)id));
    }
    /* Both ranks of tp have the same tokens. */
    assert_true(tt_mesh_owns(&mesh, 2, TT_GROUP_LOSS));
    assert_false(tt_mesh_owns(&mesh, 3, TT_GROUP_LOSS));
}

/* Ranks that see different samples get different microbatches; ranks that share a sample get the same one. */
static void microbatches_are_numbered_in_the_order_of_the_sum(void **state)
{
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DEGREES(1, 2, 2, 2, 1, 1), 8, &mesh), 0);
    for (int block = 1; block <= 6; block++) {
        int seen[24] = {0};

        for (int rank = 0; 6 % block == 0 && rank < 8; rank++)
            for (int a = 0; a < 6; a++)
                seen[tt_mesh_microbatch(&mesh, rank, 6, block, a)]++;
        for (int m = 0; 6 % block == 0 && m < 24; m++)
            assert_int_equal(seen[m], 2); /* both ranks of cp */
    }
    assert_int_equal(tt_mesh_microbatch(&mesh, 6, 3, 1, 1), 9); /* replica 1, shard 1 */
    assert_int_equal(tt_mesh_microbatch(&mesh, 6, 3, 3, 1), 10);
    assert_int_equal(tt_mesh_microbatch(&mesh, 6, 6, 2, 3), 12 + 4 + 2 + 1); /* the second microbatch of block 1 */
}

static void bits_are_promised_for_subtrees(void **state)
{
    struct tt_mesh four = mesh_of(1, 4), three = mesh_of(1, 3), replicas = mesh_of(3, 2), mesh;

    assert_true(tt_mesh_is_exact(&four, 3, 1, false));
    assert_false(tt_mesh_is_exact(&four, 3, 3, true));
    assert_true(tt_mesh_is_exact(&four, 1, 1, true)); /* nothing is deferred */
    assert_false(tt_mesh_is_exact(&three, 4, 1, false));
    assert_true(tt_mesh_is_exact(&replicas, 2, 1, false));
    assert_false(tt_mesh_is_exact(&replicas, 3, 1, false));
    assert_true(tt_mesh_is_exact(&four, 12, 4, false)); /* three blocks of a power of two */
    assert_false(tt_mesh_is_exact(&four, 12, 3, false));
    assert_false(tt_mesh_is_exact(&four, 3, 3, false)); /* ((0+1)+2) and ((3+4)+5) are no subtrees of 12 */
    assert_int_equal(tt_mesh_init(DEGREES(1, 1, 2, 1, 4, 1), 8, &mesh), 0);
    assert_true(tt_mesh_is_exact(&mesh, 2, 1, false));
    assert_int_equal(tt_mesh_init(DEGREES(1, 1, 2, 1, 3, 1), 6, &mesh), 0);
    assert_false(tt_mesh_is_exact(&mesh, 2, 1, false)); /* no other degree has three grains */
}

/* A rank with a part of each sequence adds no whole microbatches. */
static void blocks_of_parts_of_sequences_are_not_promised(void **state)
{
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DEGREES(1, 1, 2, 2, 1, 1), 4, &mesh), 0);
    assert_true(tt_mesh_is_exact(&mesh, 4, 1, false));
    assert_false(tt_mesh_is_exact(&mesh, 4, 4, false));
    assert_int_equal(tt_mesh_init(DEGREES(1, 1, 2, 1, 1, 1), 2, &mesh), 0);
    mesh.cp_grains = 2; /* the grains are within a microbatch */
    assert_true(tt_mesh_is_exact(&mesh, 4, 4, false));
}

static void batch_errors_list_rank_counts_that_work(void **state)
{
    struct tt_mesh mesh = mesh_of(1, 5), replicated = mesh_of(2, 2);
    int64_t n = 0;

    assert_int_equal(tt_mesh_microbatches(&replicated, 2, 24, &n), 0);
    assert_int_equal(n, 3);
    assert_int_equal(tt_mesh_microbatches(&mesh, 2, -1, &n), 0);
    assert_int_equal(n, 1);
    expect_message(tt_mesh_microbatches(&mesh, 2, 48, &n), "start 2, 3, 4, 6 or 8 ranks");
    expect_message(tt_mesh_microbatches(&mesh, 2, 48, &n), "multiple of 10");
    expect_message(tt_mesh_microbatches(&mesh, 8, 4, &n), "not a multiple of training.local_batch_size 8");
    expect_message(tt_mesh_microbatches(&mesh, 0, 4, &n), "training.local_batch_size is 0");
    expect_message(tt_mesh_microbatches(&mesh, 1, 0, &n), "training.global_batch_size is 0");
    /* No divisor is near, and the search must still end soon. */
    mesh = mesh_of(1, 100);
    expect_message(tt_mesh_microbatches(&mesh, 1, 7, &n), "start 1 or 7 ranks");
    mesh = mesh_of(1, 2);
    expect_message(tt_mesh_microbatches(&mesh, 1, 7, &n), "start 1 or 7 ranks");
}

static int64_t begin_of(int64_t size, int n, int i)
{
    int64_t begin, count;

    tt_chunk(size, n, i, &begin, &count);
    return begin;
}

static int64_t count_of(int64_t size, int n, int i)
{
    int64_t begin, count;

    tt_chunk(size, n, i, &begin, &count);
    return count;
}

static void chunks_are_cut_as_torch_chunk_does(void **state)
{
    /* 10 rows over 4 ranks are 3 3 3 1. */
    assert_int_equal(count_of(10, 4, 2), 3);
    assert_int_equal(begin_of(10, 4, 3), 9);
    assert_int_equal(count_of(10, 4, 3), 1);
    /* 5 rows over 4 ranks are 2 2 1 0, and 3 rows over 8 are 1 1 1 0 0 0 0 0. */
    assert_int_equal(count_of(5, 4, 2), 1);
    assert_int_equal(count_of(5, 4, 3), 0);
    assert_int_equal(count_of(3, 8, 7), 0);
    assert_int_equal(begin_of(3, 8, 7), 3);
    for (int64_t size = 0; size < 40; size++)
        for (int n = 1; n < 12; n++) {
            int64_t sum = 0;

            for (int i = 0; i < n; i++) {
                assert_int_equal(begin_of(size, n, i), sum);
                assert_true(count_of(size, n, i) <= count_of(size, n, 0));
                sum += count_of(size, n, i);
            }
            assert_int_equal(sum, size);
        }
}

static void expect_box(const struct tt_box *box, const struct tt_box *wanted)
{
    char text[2][64];

    assert_string_equal(tt_box_text(text[0], sizeof text[0], box), tt_box_text(text[1], sizeof text[1], wanted));
}

/* A matrix is cut by rows over tp, then over the ranks that share a copy: rank (s, i) has part s of block i. */
static void a_placement_cuts_what_the_cut_before_left(void **state)
{
    const struct tt_placement columns = {2, {{TT_GROUP_TP, 0, 0, 0}, {TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0};
    const struct tt_placement rows = {2, {{TT_GROUP_TP, 1, 0, 0}, {TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0};
    const int64_t shape[] = {10, 6};
    struct tt_mesh mesh;
    struct tt_box box;

    assert_int_equal(tt_mesh_init(DEGREES(1, 2, 4, 1, 2, 1), 16, &mesh), 0);
    /* Rank 11 is replica 1, shard 1, tp 1. Block 1 of the rows is 5 to 9, cut into 2 2 1 0. */
    box = tt_placement_box(&mesh, &columns, 2, shape, tt_placement_part(&mesh, &columns, 11));
    expect_box(&box, &(struct tt_box){2, {7, 0}, {2, 6}});
    assert_int_equal(tt_placement_padded(&mesh, &columns, 2, shape), 12);
    box = tt_placement_gathered(&mesh, &columns, 2, shape, 7);
    expect_box(&box, &(struct tt_box){2, {5, 0}, {5, 6}});
    box = tt_placement_box(&mesh, &columns, 2, shape, 7);
    assert_int_equal(tt_box_volume(&box), 0);
    box = tt_placement_box(&mesh, &rows, 2, shape, tt_placement_part(&mesh, &rows, 11));
    expect_box(&box, &(struct tt_box){2, {3, 3}, {3, 3}});
}

/* GPT-2's vocabulary in 8 grains of 6283 rows, of which the last has 6276: two ranks of tp have four each. */
static void a_cut_is_on_the_borders_of_grains(void **state)
{
    const struct tt_placement vocabulary = {
        2, {{TT_GROUP_TP, 0, 8, 0}, {TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0};
    const int64_t shape[] = {50257, 768};
    struct tt_mesh mesh;
    struct tt_box box;

    for (int tp = 1; tp <= 8; tp *= 2) {
        assert_int_equal(tt_mesh_init(DEGREES(1, 1, 3, 1, tp, 1), 3 * tp, &mesh), 0);
        for (int i = 0; i < tp; i++) {
            int64_t begin = 6283 * 8 / tp * i, end = i == tp - 1 ? 50257 : begin + 6283 * 8 / tp;

            box = tt_placement_gathered(&mesh, &vocabulary, 2, shape, 3 * i);
            expect_box(&box, &(struct tt_box){2, {begin, 0}, {end - begin, 768}});
        }
        assert_int_equal(tt_placement_padded(&mesh, &vocabulary, 2, shape),
                         ((tp == 1 ? 50257 : 6283 * 8 / tp) + 2) / 3 * 768);
    }
}

/* 2062 rows in 8 grains of 258: block 0 has 1032 rows, block 1 only 1030. Both are cut at 516, so a rank of either
 * block sends 516 rows, and there is no gap in the gathered rows. */
static void a_smaller_block_is_cut_as_the_first_one(void **state)
{
    const struct tt_placement vocabulary = {
        2, {{TT_GROUP_TP, 0, 8, 0}, {TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0};
    const int64_t shape[] = {2062, 4}, begin[] = {0, 516, 1032, 1548}, rows[] = {516, 516, 516, 514};
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DEGREES(1, 1, 2, 1, 2, 1), 4, &mesh), 0);
    assert_int_equal(tt_placement_padded(&mesh, &vocabulary, 2, shape), 516 * 4);
    for (int part = 0; part < 4; part++) {
        struct tt_box box = tt_placement_box(&mesh, &vocabulary, 2, shape, part);

        expect_box(&box, &(struct tt_box){2, {begin[part], 0}, {rows[part], 4}});
    }
}

/* Every element is in one part. Every part is on as many ranks as there are copies, and each rank knows its part. */
static void check_placement(const struct tt_mesh *mesh, const struct tt_placement *placement, int ndim,
                            const int64_t *shape)
{
    int parts = tt_placement_parts(mesh, placement), copies = tt_placement_copies(mesh, placement), has = 0;
    struct tt_box whole = tt_box_whole(ndim, shape), boxes[16], a, b;

    assert_true(parts <= 16);
    for (int part = 0; part < parts; part++) {
        boxes[part] = tt_placement_box(mesh, placement, ndim, shape, part);
        assert_true(tt_box_volume(&boxes[part]) <= tt_placement_padded(mesh, placement, ndim, shape));
        for (int copy = 0; copy < copies; copy++) {
            int rank = tt_placement_rank(mesh, placement, part, copy);

            assert_int_equal(tt_placement_part(mesh, placement, rank), part);
            assert_int_equal(tt_placement_copy(mesh, placement, rank), copy);
            assert_true(tt_placement_has(mesh, placement, rank));
        }
        for (int64_t at = 0; at < tt_box_volume(&boxes[part]); at++) {
            int64_t index[TT_BOX_DIMS], position = tt_box_position(&boxes[part], at, &whole);

            for (int d = ndim - 1; d >= 0; position /= shape[d], d--)
                index[d] = position % shape[d];
            assert_int_equal(tt_placement_find(mesh, placement, ndim, shape, index), part);
        }
    }
    for (int rank = 0; rank < mesh->n_ranks; rank++) {
        int own = tt_placement_part(mesh, placement, rank), copy = tt_placement_copy(mesh, placement, rank);

        has += tt_placement_has(mesh, placement, rank);
        for (int part = 0; part < parts; part++) {
            int holder = tt_placement_holder(mesh, placement, rank, part);

            assert_true(tt_placement_has(mesh, placement, holder));
            assert_int_equal(tt_placement_part(mesh, placement, holder), part);
            assert_int_equal(tt_placement_copy(mesh, placement, holder), copy);
        }
        if (tt_placement_has(mesh, placement, rank))
            assert_int_equal(tt_placement_holder(mesh, placement, rank, own), rank);
    }
    assert_int_equal(has, mesh->n_ranks / mesh->size[TT_MESH_PP]);
    assert_int_equal(tt_box_cover(ndim, shape, boxes, parts, &a, &b), TT_COVER_EXACT);
}

static void parts_tile_the_tensor(void **state)
{
    const struct tt_placement placements[] = {
        {1, {{TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0},
        {2, {{TT_GROUP_TP, 0, 0, 0}, {TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0},
        {2, {{TT_GROUP_TP, 1, 0, 0}, {TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0},
        {2, {{TT_GROUP_EP, 0, 0, 0}, {TT_GROUP_EFSDP, 1, 0, 0}}, TT_GROUP_REPLICATE, 0},
        {2, {{TT_GROUP_TP, 0, 4, 0}, {TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0},
        {2, {{TT_GROUP_TP, 1, 2, 0}, {TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0},
        {1, {{TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_COPIES, 0},
        {1, {{TT_GROUP_FSDP, 0, 0, 3}}, TT_GROUP_COPIES, 0},
        {2, {{TT_GROUP_TP, 0, 4, 2}, {TT_GROUP_FSDP, 0, 0, 4}}, TT_GROUP_REPLICATE, 0},
    };
    struct tt_placement later;
    const int64_t shapes[][3] = {{10, 6, 3}, {3, 5, 2}, {8, 8, 1}, {1, 1, 1}};
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DEGREES(1, 2, 4, 1, 2, 4), 16, &mesh), 0);
    for (size_t i = 0; i < sizeof placements / sizeof *placements; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            check_placement(&mesh, &placements[i], 3, shapes[k]);
    assert_int_equal(tt_mesh_init(DEGREES(3, 2, 4, 1, 2, 4), 48, &mesh), 0);
    for (int pp = 0; pp < 3; pp++)
        for (size_t i = 0; i < sizeof placements / sizeof *placements; i++) {
            later = placements[i];
            later.pp = pp;
            check_placement(&mesh, &later, 3, shapes[i % (sizeof shapes / sizeof *shapes)]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shard_degree_takes_what_is_left),
        cmocka_unit_test(wrong_degrees_say_how_to_mend_them),
        cmocka_unit_test(coordinates_are_outer_to_inner),
        cmocka_unit_test(groups_are_lines_through_a_rank),
        cmocka_unit_test(groups_span_sets_of_dimensions),
        cmocka_unit_test(experts_borrow_the_inner_ranks),
        cmocka_unit_test(sums_have_one_owner),
        cmocka_unit_test(microbatches_are_numbered_in_the_order_of_the_sum),
        cmocka_unit_test(bits_are_promised_for_subtrees),
        cmocka_unit_test(blocks_of_parts_of_sequences_are_not_promised),
        cmocka_unit_test(batch_errors_list_rank_counts_that_work),
        cmocka_unit_test(chunks_are_cut_as_torch_chunk_does),
        cmocka_unit_test(a_placement_cuts_what_the_cut_before_left),
        cmocka_unit_test(a_cut_is_on_the_borders_of_grains),
        cmocka_unit_test(a_smaller_block_is_cut_as_the_first_one),
        cmocka_unit_test(parts_tile_the_tensor),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("mesh", tests, NULL, NULL);
}
