/* SPDX-License-Identifier: MIT
 *
 * The cases; see comm_cases.h. All ranks draw the same random numbers, so each knows what the others sent.
 */
#include "tests/par/comm_cases.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"
#include "parallel/comm/collectives.h"
#include "tests/help/mesh.h"
#include "tests/help/tree.h"
#include "tests/par/layout.h"

/* The scratch of a float32 collective, and the payload of one member. */
static size_t scratch_of(enum tt_collective_op op, int n, int64_t bytes)
{
    return (size_t)tt_collective_staging(&(struct tt_collective_desc){.op = op, .ranks = n, .bytes = bytes});
}

static int64_t payload_of(enum tt_collective_op op, int n, int64_t bytes)
{
    return tt_instr_payload(&(struct tt_instr){.collective = {.op = op, .ranks = n, .bytes = bytes}});
}

/* The group of all ranks. */
static struct tt_group world_group(const struct tt_comm *comm)
{
    struct tt_mesh mesh = tt_mesh_single();
    int rc = tt_mesh_init(DP_DEGREES(1, -1), comm->size, &mesh);

    (void)rc; /* dp_shard -1 fits any number of ranks */
    return tt_mesh_group(&mesh, comm->rank, TT_GROUP_FSDP);
}

/* The sum over leaves 0 to n_leaves - 1, in the order of the tree, of values first to first + n - 1. */
static float *expected_sum(uint64_t seed, int n_leaves, int64_t first, int64_t n)
{
    float **leaves = tt_calloc((size_t)n_leaves, sizeof *leaves);
    float *sum;

    for (int leaf = 0; leaf < n_leaves; leaf++) {
        leaves[leaf] = tt_calloc((size_t)n, sizeof(float));
        leaf_fill(seed, leaf, first, n, leaves[leaf]);
    }
    fold_tree(leaves, n_leaves, n);
    sum = leaves[0];
    for (int leaf = 1; leaf < n_leaves; leaf++)
        tt_free(leaves[leaf]);
    tt_free(leaves);
    return sum;
}

static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 1000, 50021};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static int gather_once(struct tt_comm *comm, const struct tt_group *group, int64_t floats, bool in_place)
{
    struct layout send = layout_make(100 + (uint64_t)comm->rank, 1, floats);
    struct layout *receive = tt_calloc((size_t)group->n, sizeof *receive);
    struct tt_segment_list *lists = tt_calloc((size_t)group->n, sizeof *lists);
    float *values = tt_calloc((size_t)floats, sizeof(float)), *wanted = tt_calloc((size_t)floats, sizeof(float));
    struct tt_collective *gather = NULL;
    int rc = 0;

    if (in_place) { /* this rank's entry is cut as the others see it */
        layout_release(&send);
        send = layout_make((uint64_t)group->index, 2, floats);
    }
    for (int member = 0; member < group->n; member++) {
        receive[member] = layout_make((uint64_t)member, 1000 * (uint64_t)comm->rank + (uint64_t)member, floats);
        lists[member] = layout_list(in_place && member == group->index ? &send : &receive[member]);
    }
    TT_TRY(tt_all_gather_new(comm, group, TT_TAG_COLLECTIVE, layout_list(&send), lists, &gather));
    for (uint64_t round = 0; round < 3; round++) {
        leaf_fill(round, group->index, 0, floats, values);
        layout_put(&send, values);
        comm->payload_bytes = 0;
        TT_TRY(tt_collective_begin(gather));
        TT_TRY(tt_collective_wait(gather));
        COMM_EXPECT(comm->payload_bytes == payload_of(TT_ALL_GATHER, group->n, floats * 4));
        COMM_EXPECT(comm->payload_bytes == (group->n - 1) * floats * 4);
        for (int member = 0; member < group->n; member++) {
            leaf_fill(round, member, 0, floats, wanted);
            layout_get(in_place && member == group->index ? &send : &receive[member], values);
            COMM_EXPECT(memcmp(values, wanted, (size_t)floats * 4) == 0);
            COMM_EXPECT(layout_guarded(&receive[member]));
        }
    }
out:
    tt_collective_free(gather);
    for (int member = 0; member < group->n; member++)
        layout_release(&receive[member]);
    layout_release(&send);
    tt_free(receive);
    tt_free(lists);
    tt_free(values);
    tt_free(wanted);
    return rc;
}

static int all_gather(struct tt_comm *comm)
{
    struct tt_group group = world_group(comm);
    int rc = 0;

    for (int i = 0; i < N_SIZES; i++) {
        TT_TRY(gather_once(comm, &group, sizes[i], false));
        TT_TRY(gather_once(comm, &group, sizes[i], true));
    }
out:
    tt_group_release(&group);
    return rc;
}

static int scatter_once(struct tt_comm *comm, const struct tt_group *group, int64_t floats, bool in_place)
{
    struct layout out = layout_make(200 + (uint64_t)comm->rank, 1, floats);
    struct layout *blocks = tt_calloc((size_t)group->n, sizeof *blocks);
    struct tt_segment_list *lists = tt_calloc((size_t)group->n, sizeof *lists);
    size_t scratch_bytes = scratch_of(TT_REDUCE_SCATTER, group->n, floats * 4);
    char *scratch = tt_calloc(scratch_bytes + 16, 1);
    float *values = tt_calloc((size_t)floats, sizeof(float)), *wanted = NULL;
    struct tt_collective *scatter = NULL;
    int rc = 0;

    memset(scratch + scratch_bytes, 0x5a, 16);
    for (int member = 0; member < group->n; member++) {
        blocks[member] = layout_make((uint64_t)member, 3000 * (uint64_t)comm->rank + (uint64_t)member, floats);
        lists[member] = layout_list(&blocks[member]);
    }
    TT_TRY(tt_reduce_scatter_new(comm, group, TT_TAG_COLLECTIVE, lists,
                                 in_place ? lists[group->index] : layout_list(&out), scratch, &scatter));
    for (uint64_t round = 0; round < 3; round++) {
        for (int member = 0; member < group->n; member++) {
            leaf_fill(round, group->index, member * floats, floats, values);
            layout_put(&blocks[member], values);
        }
        comm->payload_bytes = 0;
        TT_TRY(tt_collective_begin(scatter));
        TT_TRY(tt_collective_wait(scatter));
        COMM_EXPECT(comm->payload_bytes == payload_of(TT_REDUCE_SCATTER, group->n, floats * 4));
        COMM_EXPECT(comm->payload_bytes == (group->n - 1) * floats * 4);
        wanted = expected_sum(round, group->n, group->index * floats, floats);
        layout_get(in_place ? &blocks[group->index] : &out, values);
        COMM_EXPECT(memcmp(values, wanted, (size_t)floats * 4) == 0);
        COMM_EXPECT(layout_guarded(&out));
        COMM_EXPECT(scratch[scratch_bytes] == 0x5a && scratch[scratch_bytes + 15] == 0x5a);
        for (int member = 0; member < group->n; member++)
            COMM_EXPECT(layout_guarded(&blocks[member]));
        tt_free(wanted);
        wanted = NULL;
    }
out:
    tt_collective_free(scatter);
    for (int member = 0; member < group->n; member++)
        layout_release(&blocks[member]);
    layout_release(&out);
    tt_free(blocks);
    tt_free(lists);
    tt_free(scratch);
    tt_free(values);
    tt_free(wanted);
    return rc;
}

static int reduce_scatter(struct tt_comm *comm)
{
    struct tt_group group = world_group(comm);
    int rc = 0;

    for (int i = 0; i < N_SIZES; i++) {
        TT_TRY(scatter_once(comm, &group, sizes[i], false));
        TT_TRY(scatter_once(comm, &group, sizes[i], true));
    }
out:
    tt_group_release(&group);
    return rc;
}

static int all_reduce_once(struct tt_comm *comm, const struct tt_group *group, int64_t floats)
{
    struct layout layout = layout_make(4, 400 + (uint64_t)comm->rank, floats);
    void *scratch = tt_calloc(scratch_of(TT_ALL_SUM, group->n, floats * 4), 1);
    float *values = tt_calloc((size_t)floats, sizeof(float)), *wanted = NULL;
    int64_t slice = (floats + group->n - 1) / group->n;
    struct tt_collective *reduce = NULL;
    int rc = 0;

    TT_TRY(tt_all_reduce_new(comm, group, TT_TAG_COLLECTIVE, layout_list(&layout), scratch, &reduce));
    for (uint64_t round = 0; round < 3; round++) {
        leaf_fill(round, group->index, 0, floats, values);
        layout_put(&layout, values);
        comm->payload_bytes = 0;
        TT_TRY(tt_collective_begin(reduce));
        TT_TRY(tt_collective_wait(reduce));
        COMM_EXPECT(comm->payload_bytes == payload_of(TT_ALL_SUM, group->n, floats * 4));
        COMM_EXPECT(comm->payload_bytes == (int64_t)2 * (group->n - 1) * slice * 4);
        wanted = expected_sum(round, group->n, 0, floats);
        layout_get(&layout, values);
        COMM_EXPECT(memcmp(values, wanted, (size_t)floats * 4) == 0);
        COMM_EXPECT(layout_guarded(&layout));
        tt_free(wanted);
        wanted = NULL;
    }
out:
    tt_collective_free(reduce);
    layout_release(&layout);
    tt_free(scratch);
    tt_free(values);
    tt_free(wanted);
    return rc;
}

static int all_reduce(struct tt_comm *comm)
{
    struct tt_group group = world_group(comm);
    int rc = 0;

    for (int i = 0; i < N_SIZES; i++)
        TT_TRY(all_reduce_once(comm, &group, sizes[i]));
out:
    tt_group_release(&group);
    return rc;
}

/* Replicas of shard groups: a scatter within a replica, a reduction across replicas and a gather give the tree over all
 * ranks. */
static int hybrid_on_mesh(struct tt_comm *comm, const struct tt_mesh *mesh)
{
    const int64_t n_floats = 501;
    struct tt_group shard = tt_mesh_group(mesh, comm->rank, TT_GROUP_FSDP);
    struct tt_group replicate = tt_mesh_group(mesh, comm->rank, TT_GROUP_REPLICATE);
    float *whole = tt_calloc((size_t)(shard.n * n_floats), sizeof(float)), *wanted = NULL;
    void *scratch = tt_calloc(scratch_of(TT_REDUCE_SCATTER, shard.n, n_floats * 4), 1);
    void *scratch2 = tt_calloc(scratch_of(TT_ALL_SUM, replicate.n, n_floats * 4), 1);
    struct tt_segment *items = tt_calloc((size_t)shard.n, sizeof *items);
    struct tt_segment_list *lists = tt_calloc((size_t)shard.n, sizeof *lists);
    struct tt_collective *scatter = NULL, *reduce = NULL, *gather = NULL;
    int rc = 0;

    for (int member = 0; member < shard.n; member++) {
        items[member] = (struct tt_segment){whole + member * n_floats, (size_t)n_floats * 4};
        lists[member] = (struct tt_segment_list){&items[member], 1};
    }
    leaf_fill(5, comm->rank, 0, shard.n * n_floats, whole);
    TT_TRY(tt_reduce_scatter_new(comm, &shard, TT_TAG_COLLECTIVE, lists, lists[shard.index], scratch, &scatter));
    TT_TRY(tt_all_reduce_new(comm, &replicate, TT_TAG_COLLECTIVE, lists[shard.index], scratch2, &reduce));
    TT_TRY(tt_all_gather_new(comm, &shard, TT_TAG_COLLECTIVE + 1, lists[shard.index], lists, &gather));
    TT_TRY(tt_collective_begin(scatter));
    TT_TRY(tt_collective_wait(scatter));
    TT_TRY(tt_collective_begin(reduce));
    TT_TRY(tt_collective_wait(reduce));
    TT_TRY(tt_collective_begin(gather));
    TT_TRY(tt_collective_wait(gather));
    wanted = expected_sum(5, comm->size, 0, shard.n * n_floats);
    COMM_EXPECT(memcmp(whole, wanted, (size_t)(shard.n * n_floats) * 4) == 0);
out:
    tt_collective_free(scatter);
    tt_collective_free(reduce);
    tt_collective_free(gather);
    tt_group_release(&shard);
    tt_group_release(&replicate);
    tt_free(whole);
    tt_free(wanted);
    tt_free(scratch);
    tt_free(scratch2);
    tt_free(items);
    tt_free(lists);
    return rc;
}

static int hybrid(struct tt_comm *comm)
{
    int rc = 0;

    /* Shard groups of a power of two are subtrees, for any number of replicas. */
    for (int shard = 1; shard <= comm->size; shard *= 2) {
        struct tt_mesh mesh;

        if (comm->size % shard != 0)
            break;
        TT_TRY(tt_mesh_init(DP_DEGREES(comm->size / shard, shard), comm->size, &mesh));
        TT_TRY(hybrid_on_mesh(comm, &mesh));
    }
out:
    return rc;
}

/* Byte i of a rank's message to another rank. */
static char byte_of(int from, int to, int64_t i)
{
    return (char)(31 * from + 7 * to + i + (i >> 9));
}

static void fill_bytes(char *bytes, int64_t n, int from, int to)
{
    for (int64_t i = 0; i < n; i++)
        bytes[i] = byte_of(from, to, i);
}

static bool are_bytes(const char *bytes, int64_t n, int from, int to)
{
    int64_t i = 0;

    while (i < n && bytes[i] == byte_of(from, to, i))
        i++;
    return i == n;
}

/* Every rank sends to the next one in the ring of all ranks, all at once; the values are two segments, cut at `first`.
 * With two ranks, each sends to the other, so every sender has its own tag, like every boundary of a pipeline. */
static int transfer_once(struct tt_comm *comm, const struct tt_group *group, int64_t bytes, int64_t first)
{
    int after = (group->index + 1) % group->n, before = (group->index + group->n - 1) % group->n, rc = 0;
    char *out = tt_calloc((size_t)bytes, 1), *in = tt_calloc((size_t)bytes, 1);
    struct tt_segment from[2] = {{out, (size_t)first}, {out + first, (size_t)(bytes - first)}};
    struct tt_segment to[2] = {{in, (size_t)first}, {in + first, (size_t)(bytes - first)}};
    struct tt_collective *send = NULL, *receive = NULL;

    fill_bytes(out, bytes, group->index, after);
    TT_TRY(tt_transfer_new(comm, group, after, TT_TAG_BOUNDARY + group->index, true, (struct tt_segment_list){from, 2},
                           &send));
    TT_TRY(tt_transfer_new(comm, group, before, TT_TAG_BOUNDARY + before, false, (struct tt_segment_list){to, 2},
                           &receive));
    for (int round = 0; round < 2; round++) {
        memset(in, 0, (size_t)bytes);
        comm->payload_bytes = 0;
        TT_TRY(tt_collective_begin(send));
        TT_TRY(tt_collective_begin(receive));
        TT_TRY(tt_collective_wait(receive));
        TT_TRY(tt_collective_wait(send));
        COMM_EXPECT(comm->payload_bytes == payload_of(TT_SEND, 2, bytes));
        COMM_EXPECT(are_bytes(in, bytes, before, group->index));
    }
out:
    tt_collective_free(send);
    tt_collective_free(receive);
    tt_free(out);
    tt_free(in);
    return rc;
}

/* The sizes at which messages are cut differently: for one message, and for all messages that need no handshake. */
static int transfers(struct tt_comm *comm)
{
    struct tt_group group = world_group(comm);
    int64_t eager = comm->eager_bytes ? comm->eager_bytes : 20000, sizes_of[] = {1, eager, 16 * eager};
    int rc = 0;

    for (int i = 0; i < 3 * 2 && group.n > 1; i++)
        TT_TRY(transfer_once(comm, &group, sizes_of[i / 2] + 4 * (i % 2), i % 3 ? sizes_of[i / 2] / 3 : 0));
out:
    tt_group_release(&group);
    return rc;
}

/* Bytes that a rank sends to another: nothing, a little, or, for one pair, more than fits without a handshake. */
static int64_t given(const struct tt_comm *comm, int n, int from, int to)
{
    int64_t eager = comm->eager_bytes ? comm->eager_bytes : 20000;

    if (from == 0 && to == n - 1)
        return 16 * eager + 4;
    return from == to ? 0 : (from + 2 * to) % 3 * 700;
}

static int swaps(struct tt_comm *comm)
{
    struct tt_group group = world_group(comm);
    int n = group.n, me = group.index, rc = 0;
    struct tt_segment *out = tt_calloc((size_t)n, sizeof *out), *in = tt_calloc((size_t)n, sizeof *in);
    struct tt_segment_list *give = tt_calloc((size_t)n, sizeof *give), *take = tt_calloc((size_t)n, sizeof *take);
    struct tt_collective *swap = NULL;

    for (int member = 0; member < n; member++) {
        out[member].bytes = (size_t)given(comm, n, me, member);
        in[member].bytes = (size_t)given(comm, n, member, me);
        out[member].data = tt_calloc(out[member].bytes, 1);
        in[member].data = tt_calloc(in[member].bytes, 1);
        fill_bytes(out[member].data, (int64_t)out[member].bytes, me, member);
        give[member] = (struct tt_segment_list){&out[member], out[member].bytes > 0};
        take[member] = (struct tt_segment_list){&in[member], in[member].bytes > 0};
    }
    TT_TRY(tt_swap_new(comm, &group, TT_TAG_EXPERTS, &swap));
    for (int round = 0; round < 2; round++) {
        for (int member = 0; member < n; member++)
            memset(in[member].data, 0, in[member].bytes);
        TT_TRY(tt_swap_begin(swap, &group, give, take));
        TT_TRY(tt_collective_wait(swap));
        for (int member = 0; member < n; member++)
            COMM_EXPECT(member == me || are_bytes(in[member].data, (int64_t)in[member].bytes, member, me));
    }
out:
    tt_collective_free(swap);
    for (int member = 0; member < n; member++) {
        tt_free(out[member].data);
        tt_free(in[member].data);
    }
    tt_free(out);
    tt_free(in);
    tt_free(give);
    tt_free(take);
    tt_group_release(&group);
    return rc;
}

enum { LANES = 6 };
static const int64_t lane_floats = 3001;

/* Waits for the lanes in another order than that in which they began. Progress alone must complete the rest. */
static int wait_for_lanes(struct tt_comm *comm, struct tt_collective **lanes)
{
    bool done = false;
    int rc = 0;

    for (int i = LANES - 1; i >= LANES / 2; i--)
        TT_TRY(tt_collective_wait(lanes[i]));
    while (comm->active)
        TT_TRY(tt_comm_progress(comm));
    for (int i = 0; i < LANES; i++) {
        TT_TRY(tt_collective_test(lanes[i], &done));
        COMM_EXPECT(done);
    }
out:
    return rc;
}

static int many_under_way(struct tt_comm *comm)
{
    struct tt_group group = world_group(comm);
    struct tt_collective *lanes[LANES] = {0};
    struct layout layouts[LANES] = {0};
    void *scratch[LANES] = {0};
    float *values = tt_calloc((size_t)lane_floats, sizeof(float)), *wanted = NULL;
    uint64_t allocations = 0;
    int rc = 0;

    for (int i = 0; i < LANES; i++) {
        layouts[i] = layout_make((uint64_t)i, 10 * (uint64_t)comm->rank + (uint64_t)i, lane_floats);
        scratch[i] = tt_calloc(scratch_of(TT_ALL_SUM, group.n, lane_floats * 4), 1);
        TT_TRY(tt_all_reduce_new(comm, &group, TT_TAG_COLLECTIVE + i, layout_list(&layouts[i]), scratch[i], &lanes[i]));
    }
    for (uint64_t round = 0; round < 5; round++) {
        for (int i = 0; i < LANES; i++) {
            leaf_fill(100 * round + (uint64_t)i, group.index, 0, lane_floats, values);
            layout_put(&layouts[i], values);
        }
        allocations = tt_mem_allocations();
        for (int i = 0; i < LANES; i++)
            TT_TRY(tt_collective_begin(lanes[i]));
        if (comm->size > 1 && !comm->active)
            COMM_EXPECT(comm->size <= 2); /* two ranks may be ready at the same time */
        TT_TRY(wait_for_lanes(comm, lanes));
        /* Ranks that are threads share the counter, which other ranks increase between rounds. */
        COMM_EXPECT(strcmp(comm->ops->name, "threads") == 0 || tt_mem_allocations() == allocations);
        for (int i = 0; i < LANES; i++) {
            wanted = expected_sum(100 * round + (uint64_t)i, group.n, 0, lane_floats);
            layout_get(&layouts[i], values);
            COMM_EXPECT(memcmp(values, wanted, (size_t)lane_floats * 4) == 0);
            tt_free(wanted);
            wanted = NULL;
        }
    }
out:
    for (int i = 0; i < LANES; i++) {
        tt_collective_free(lanes[i]);
        layout_release(&layouts[i]);
        tt_free(scratch[i]);
    }
    tt_free(values);
    tt_free(wanted);
    tt_group_release(&group);
    return rc;
}

static int sums_and_maxima(struct tt_comm *comm)
{
    enum { N = 300 };
    int64_t sums[N], at_once[N], room[N];
    double maxima[N];
    int rc = 0;

    comm->control_bytes = 0;
    comm->payload_bytes = 0;
    for (int i = 0; i < N; i++) {
        sums[i] = at_once[i] = (int64_t)i * (comm->rank + 1) - 7;
        maxima[i] = i == 5 && comm->rank == comm->size / 2 ? NAN : -(double)((comm->rank + i) % comm->size);
    }
    TT_TRY(tt_comm_sum_i64(comm, sums, N));
    TT_TRY(tt_comm_sum_at_once_i64(comm, at_once, room, N));
    TT_TRY(tt_comm_max_f64(comm, maxima, N));
    for (int i = 0; i < N; i++) {
        COMM_EXPECT(sums[i] == (int64_t)i * comm->size * (comm->size + 1) / 2 - (int64_t)7 * comm->size);
        COMM_EXPECT(at_once[i] == sums[i]);
        COMM_EXPECT(i == 5 ? isnan(maxima[i]) : maxima[i] == 0.0);
    }
    COMM_EXPECT(comm->payload_bytes == 0 && (comm->control_bytes > 0) == (comm->size > 1));
    TT_TRY(tt_comm_barrier(comm));
out:
    return rc;
}

static int broadcasts_and_tables(struct tt_comm *comm)
{
    enum { BYTES = 777 };
    unsigned char bytes[BYTES];
    unsigned char *all = tt_calloc((size_t)comm->size, BYTES);
    int rc = 0, local_rank = -1, local_size = -1;

    for (int root = 0; root < comm->size; root++) {
        memset(bytes, comm->rank == root ? 40 + root : 0, sizeof bytes);
        TT_TRY(tt_comm_broadcast(comm, bytes, sizeof bytes, root));
        COMM_EXPECT(bytes[0] == 40 + root && bytes[BYTES - 1] == 40 + root);
    }
    memset(bytes, 10 + comm->rank, sizeof bytes);
    TT_TRY(tt_comm_gather_all(comm, bytes, sizeof bytes, all));
    for (int rank = 0; rank < comm->size; rank++)
        COMM_EXPECT(all[(size_t)rank * BYTES] == 10 + rank && all[(size_t)(rank + 1) * BYTES - 1] == 10 + rank);
    tt_comm_node(comm, &local_rank, &local_size);
    COMM_EXPECT(local_rank == comm->rank && local_size == comm->size);
out:
    tt_free(all);
    return rc;
}

static int agreement(struct tt_comm *comm)
{
    char message[64];
    uint64_t allocations = tt_mem_allocations();
    int rc = 0, code;

    TT_TRY(tt_comm_agree(comm, 0));
    COMM_EXPECT(strcmp(comm->ops->name, "threads") == 0 || tt_mem_allocations() == allocations);
    for (int first = 0; first < comm->size; first++) {
        /* Every rank from `first` on fails, with different errors. */
        code = comm->rank < first ? 0 : tt_fail(comm->rank % 2 ? TT_EDATA : TT_EUSAGE, "fault of rank %d", comm->rank);
        code = tt_comm_agree(comm, code);
        (void)snprintf(message, sizeof message, first ? "rank %d: fault of rank %d" : "fault of rank 0", first, first);
        COMM_EXPECT(code == (first % 2 ? TT_EDATA : TT_EUSAGE));
        COMM_EXPECT(strcmp(tt_error_message(), message) == 0);
    }
out:
    return rc;
}

const struct comm_case comm_cases[] = {
    {"all-gather", all_gather},
    {"reduce-scatter", reduce_scatter},
    {"all-reduce", all_reduce},
    {"hybrid", hybrid},
    {"transfers", transfers},
    {"swaps", swaps},
    {"many collectives under way", many_under_way},
    {"sums and maxima", sums_and_maxima},
    {"broadcasts and tables", broadcasts_and_tables},
    {"agreement on errors", agreement},
};
const int comm_n_cases = sizeof comm_cases / sizeof *comm_cases;

int comm_case_run(const struct comm_case *c, struct tt_comm *comm)
{
    int rc = c->run(comm);

    if (rc == 0)
        rc = tt_comm_check_messages(comm);
    return rc < 0 ? tt_wrap(rc, "%s", c->name) : 0;
}
