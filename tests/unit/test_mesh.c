/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/layout/mesh.h"
#include "parallel/layout/shard.h"

static struct tt_mesh mesh_of(int replicate, int shard)
{
    const int degrees[TT_MESH_DEGREES] = {1, replicate, shard, 1, 1, 1};
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(degrees, replicate * shard, &mesh), 0);
    return mesh;
}

static void shard_degree_takes_what_is_left(void **state)
{
    const int degrees[TT_MESH_DEGREES] = {1, 2, -1, 1, 1, 1};
    struct tt_mesh mesh;

    (void)state;
    assert_int_equal(tt_mesh_init(degrees, 6, &mesh), 0);
    assert_int_equal(mesh.size[TT_MESH_DP_SHARD], 3);
    assert_int_equal(tt_mesh_dp(&mesh), 6);
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

    (void)state;
    expect_message(tt_mesh_init((const int[]){1, 2, 3, 1, 1, 1}, 4, &mesh), "multiply to 6");
    expect_message(tt_mesh_init((const int[]){1, 2, 3, 1, 1, 1}, 4, &mesh), "set data_parallel_shard_degree to 2");
    expect_message(tt_mesh_init((const int[]){1, 2, 3, 1, 1, 1}, 5, &mesh), "help: start 6 ranks");
    expect_message(tt_mesh_init((const int[]){1, 3, -1, 1, 1, 1}, 4, &mesh), "3 does not divide 4");
    expect_message(tt_mesh_init((const int[]){1, 8, -1, 1, 1, 1}, 4, &mesh), "start a multiple of 8 ranks");
    expect_message(tt_mesh_init((const int[]){1, 0, -1, 1, 1, 1}, 4, &mesh), "data_parallel_replicate_degree is 0");
    expect_message(tt_mesh_init((const int[]){1, 1, -2, 1, 1, 1}, 4, &mesh), "data_parallel_shard_degree is -2");
    expect_message(tt_mesh_init((const int[]){2000000, 2000000, -1, 1, 1, 1}, 4, &mesh), "more than");
}

static void coordinates_are_outer_to_inner(void **state)
{
    const int degrees[TT_MESH_DEGREES] = {2, 3, 4, 1, 2, 1};
    struct tt_mesh mesh;

    (void)state;
    assert_int_equal(tt_mesh_init(degrees, 48, &mesh), 0);
    assert_int_equal(tt_mesh_coordinate(&mesh, 1, TT_MESH_TP), 1);
    assert_int_equal(tt_mesh_coordinate(&mesh, 2, TT_MESH_DP_SHARD), 1);
    assert_int_equal(tt_mesh_coordinate(&mesh, 8, TT_MESH_DP_REPLICATE), 1);
    assert_int_equal(tt_mesh_coordinate(&mesh, 24, TT_MESH_PP), 1);
    for (int rank = 0; rank < 48; rank++) {
        int coordinates[TT_MESH_DIMS];

        for (int dim = 0; dim < TT_MESH_DIMS; dim++)
            coordinates[dim] = tt_mesh_coordinate(&mesh, rank, dim);
        assert_int_equal(tt_mesh_rank(&mesh, coordinates), rank);
    }
}

static void groups_are_lines_through_a_rank(void **state)
{
    struct tt_mesh mesh = mesh_of(2, 4);
    struct tt_group shard = tt_mesh_group(&mesh, 6, TT_GROUP_FSDP);
    struct tt_group replicate = tt_mesh_group(&mesh, 6, TT_GROUP_REPLICATE);

    (void)state;
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
    const int degrees[TT_MESH_DEGREES] = {1, 2, 2, 2, 2, 1};
    struct tt_mesh mesh;

    (void)state;
    assert_int_equal(tt_mesh_init(degrees, 16, &mesh), 0);
    /* rank 13 is replica 1, shard 1, cp 0, tp 1 */
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
    const int degrees[TT_MESH_DEGREES] = {1, 2, 4, 1, 2, 4};
    struct tt_mesh mesh;

    (void)state;
    assert_int_equal(tt_mesh_init(degrees, 16, &mesh), 0);
    expect_group(&mesh, 13, TT_GROUP_EP, 4, (const int[]){12, 13, 14, 15});
    expect_group(&mesh, 13, TT_GROUP_EFSDP, 2, (const int[]){9, 13});
    expect_group(&mesh, 13, TT_GROUP_FSDP, 4, (const int[]){9, 11, 13, 15});
    expect_message(tt_mesh_init((const int[]){1, 2, 4, 1, 2, 3}, 16, &mesh), "expert_parallel_degree is 3");
    expect_message(tt_mesh_init((const int[]){1, 2, 4, 1, 2, 16}, 16, &mesh), "divides the 8 ranks");
}

static void batch_errors_list_rank_counts_that_work(void **state)
{
    struct tt_mesh mesh = mesh_of(1, 5), replicated = mesh_of(2, 2);
    int64_t n = 0;

    (void)state;
    assert_int_equal(tt_mesh_microbatches(&replicated, 2, 24, &n), 0);
    assert_int_equal(n, 3);
    assert_int_equal(tt_mesh_microbatches(&mesh, 2, -1, &n), 0);
    assert_int_equal(n, 1);
    expect_message(tt_mesh_microbatches(&mesh, 2, 48, &n), "start 2, 3, 4, 6 or 8 ranks");
    expect_message(tt_mesh_microbatches(&mesh, 2, 48, &n), "multiple of 10");
    expect_message(tt_mesh_microbatches(&mesh, 8, 4, &n), "not a multiple of training.local_batch_size 8");
    expect_message(tt_mesh_microbatches(&mesh, 0, 4, &n), "local_batch_size is 0");
    expect_message(tt_mesh_microbatches(&mesh, 1, 0, &n), "global_batch_size is 0");
    /* far from any divisor, in a bounded number of steps */
    mesh = mesh_of(1, 100);
    expect_message(tt_mesh_microbatches(&mesh, 1, 7, &n), "start 1 or 7 ranks");
    mesh = mesh_of(1, 2);
    expect_message(tt_mesh_microbatches(&mesh, 1, 7, &n), "start 1 or 7 ranks");
}

static void shards_are_cut_as_torch_chunk_does(void **state)
{
    (void)state;
    /* 10 rows over 4 ranks: 3 3 3 1 */
    assert_int_equal(tt_shard_chunk_rows(10, 4), 3);
    assert_int_equal(tt_shard_rows(10, 4, 2), 3);
    assert_int_equal(tt_shard_row_begin(10, 4, 3), 9);
    assert_int_equal(tt_shard_rows(10, 4, 3), 1);
    assert_int_equal(tt_shard_padded_elements(10, 7, 4), 21);
    /* 5 rows over 4: 2 2 1 0; 3 rows over 8: 1 1 1 0... */
    assert_int_equal(tt_shard_rows(5, 4, 2), 1);
    assert_int_equal(tt_shard_rows(5, 4, 3), 0);
    assert_int_equal(tt_shard_rows(3, 8, 7), 0);
    assert_int_equal(tt_shard_row_begin(3, 8, 7), 3);
    for (int64_t rows = 0; rows < 40; rows++)
        for (int n = 1; n < 12; n++) {
            int64_t sum = 0;

            for (int i = 0; i < n; i++) {
                assert_int_equal(tt_shard_row_begin(rows, n, i), sum);
                assert_true(tt_shard_rows(rows, n, i) <= tt_shard_chunk_rows(rows, n));
                sum += tt_shard_rows(rows, n, i);
            }
            assert_int_equal(sum, rows);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shard_degree_takes_what_is_left),         cmocka_unit_test(wrong_degrees_say_how_to_mend_them),
        cmocka_unit_test(coordinates_are_outer_to_inner),          cmocka_unit_test(groups_are_lines_through_a_rank),
        cmocka_unit_test(groups_span_sets_of_dimensions),          cmocka_unit_test(experts_borrow_the_inner_ranks),
        cmocka_unit_test(batch_errors_list_rank_counts_that_work), cmocka_unit_test(shards_are_cut_as_torch_chunk_does),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("mesh", tests, NULL, NULL);
}
