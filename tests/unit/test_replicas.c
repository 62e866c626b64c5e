/* SPDX-License-Identifier: MIT
 *
 * The comparison of state that several ranks hold whole: the biases of experts. Ranks are threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/save/save.h"
#include "core/math/box.h"
#include "parallel/layout/placement.h"
#include "tests/help/mesh.h"
#include "tests/help/threads.h"

enum { EXPERTS = 6, TENSORS = 2 };

/* The rank whose bias of one expert differs in its last bit; TT_NONE for none. */
struct fault {
    int pipe, rank;
};

static int compare(struct tt_comm *comm, void *arg)
{
    const struct fault *fault = arg;
    float bias[EXPERTS] = {0.5F, -0.25F, 0.0F, 1.0F, 2.0F, -1.0F}, shard[EXPERTS] = {(float)comm->rank};
    /* a matrix that is divided over ranks, and biases on the last place of the pipeline */
    struct tt_ckpt_chunk chunks[TENSORS] = {{"layers.0.w",
                                             TT_F32,
                                             1,
                                             {EXPERTS},
                                             {1, {{TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_COPIES, 0},
                                             {0},
                                             false,
                                             TT_PACKING_NONE,
                                             shard},
                                            {"layers.0.moe.expert_bias",
                                             TT_F32,
                                             1,
                                             {EXPERTS},
                                             {1, {{TT_GROUP_SELF, 0, 0, 0}}, TT_GROUP_STAGE, fault->pipe - 1},
                                             {0},
                                             false,
                                             TT_PACKING_NONE,
                                             bias}};
    const struct tt_ckpt_state state = {TENSORS, chunks, 0, NULL};
    struct tt_mesh mesh;
    int rc = 0;

    TT_TRY(tt_mesh_init(DEGREES(fault->pipe, 1, -1, 1, 1, 1), comm->size, &mesh));
    for (int i = 0; i < TENSORS; i++) {
        bool has = tt_placement_has(&mesh, &chunks[i].placement, comm->rank);
        int part = tt_placement_part(&mesh, &chunks[i].placement, comm->rank);

        chunks[i].part =
            has ? tt_placement_box(&mesh, &chunks[i].placement, 1, chunks[i].shape, part) : tt_box_empty(1);
    }
    if (comm->rank == fault->rank)
        bias[3] = 1.0000001F;
    rc = tt_replicas_check(comm, &mesh, &state, NULL);
out:
    return rc;
}

static void equal_biases_are_the_same(void **state)
{
    struct fault none = {1, -1}, piped = {2, -1};

    assert_int_equal(tt_comm_threads_run(4, compare, &none), 0);
    assert_int_equal(tt_comm_threads_run(6, compare, &piped), 0);
    assert_int_equal(tt_comm_threads_run(1, compare, &none), 0);
}

static void a_differing_bias_is_found(void **state)
{
    struct fault fault = {1, 2}, piped = {2, 4};
    const char *wanted = "first in tensor 'layers.0.moe.expert_bias'";

    assert_int_equal(tt_comm_threads_run(4, compare, &fault), TT_EINTERNAL);
    if (!strstr(tt_error_message(), "rank 2 differs from most replicas") || !strstr(tt_error_message(), wanted))
        fail_msg("%s", tt_error_message());
    assert_int_equal(tt_comm_threads_run(6, compare, &piped), TT_EINTERNAL);
    if (!strstr(tt_error_message(), "rank 4 differs from most replicas") || !strstr(tt_error_message(), wanted))
        fail_msg("%s", tt_error_message());
}

/* A rank at another place of the pipeline holds no such state: it is not compared. */
static void places_without_the_stage_do_not_matter(void **state)
{
    struct fault elsewhere = {2, 1};

    assert_int_equal(tt_comm_threads_run(6, compare, &elsewhere), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_biases_are_the_same),
        cmocka_unit_test(a_differing_bias_is_found),
        cmocka_unit_test(places_without_the_stage_do_not_matter),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
