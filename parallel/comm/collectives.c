/* SPDX-License-Identifier: MIT
 *
 * Builds each collective from its stages (stages.h):
 *
 *   all-gather       every pair of members exchanges shards directly
 *   reduce-scatter   group of 2^k: k stages. In stage s partners differ in bit s of their index; each sends the blocks
 *                    that belong on the partner's side and adds what it receives to the ones it keeps. So neighbours
 *                      are added first, and in total (n - 1) / n of the data is sent.
 *                    other groups: one stage that exchanges blocks directly, then the same tree locally
 *   all-reduce       both of these, one after the other, over slices
 *   all-to-all       only the direct exchange
 *
 * The wire (stages.h) decides whether bytes are sent in messages or read from the other member's memory. The additions
 * and their order are the same.
 */
#include "parallel/comm/collectives.h"

#include "core/base/mem.h"
#include "core/math/round.h"
#include "core/math/tree.h"
#include "parallel/comm/stages.h"

/* Checks that the lists of all members have the bytes of a shard. */
static int check_lists(const struct tt_group *group, const struct tt_segment_list *lists, int64_t shard_bytes,
                       const char *what)
{
    for (int member = 0; member < group->n; member++)
        if (tt_segment_list_bytes(lists[member]) != shard_bytes)
            return tt_fail(TT_EINTERNAL, "%s: member %d of %d has %lld bytes, a shard %lld", what, member, group->n,
                           (long long)tt_segment_list_bytes(lists[member]), (long long)shard_bytes);
    return 0;
}

/* Sums need whole floats in every segment. */
static int check_floats(struct tt_segment_list list, const char *what)
{
    for (int i = 0; i < list.n; i++)
        if (list.items[i].bytes % sizeof(float) || (uintptr_t)list.items[i].data % sizeof(float))
            return tt_fail(TT_EINTERNAL, "%s: segment %d of %zu bytes is not whole, aligned floats", what, i,
                           list.items[i].bytes);
    return 0;
}

/*
 * Every pair of members exchanges directly. Receives are posted first, so that arriving data has a place; the order of
 * partners spreads the load. The lists are indexed by member; `cut` says where the data to or from a member is cut.
 */
static void build_exchange(struct tt_collective *c, const struct tt_group *group, const struct tt_segment_list *receive,
                           const struct tt_segment_list *receive_cut, const struct tt_segment_list *send,
                           const struct tt_segment_list *send_cut)
{
    int n = group->n, me = group->index;

    for (int step = 1; step < n; step++) {
        int member = (me - step + n) % n;
        struct tt_wire wire = tt_wire_make(c, false, member, tt_segment_list_bytes(receive[member]), n - 1);

        tt_wire_add(&wire, receive[member], receive_cut[member]);
    }
    for (int step = 1; step < n; step++) {
        int member = (me + step) % n;
        struct tt_wire wire = tt_wire_make(c, true, member, tt_segment_list_bytes(send[member]), n - 1);

        tt_wire_add(&wire, send[member], send_cut[member]);
    }
}

/* Repeats a list n times; the caller frees. */
static struct tt_segment_list *repeat_list(struct tt_segment_list list, int n)
{
    struct tt_segment_list *lists = tt_calloc((size_t)n, sizeof *lists);

    for (int i = 0; i < n; i++)
        lists[i] = list;
    return lists;
}

static void build_all_gather(struct tt_collective *c, const struct tt_group *group, struct tt_segment_list send,
                             const struct tt_segment_list *receive)
{
    int n = group->n, me = group->index;
    struct tt_segment_list *sends, *cuts;

    if (tt_segment_list_bytes(send) == 0)
        return;
    sends = repeat_list(send, n);
    cuts = repeat_list(receive[me], n);
    tt_stages_add(c);
    tt_stages_add_work(c, receive[me], send, NULL);
    tt_stages_add(c);
    build_exchange(c, group, receive, receive, sends, cuts);
    tt_free(sends);
    tt_free(cuts);
}

/* Recursive halving; n is a power of two, at least 2. */
static void build_halving(struct tt_collective *c, const struct tt_group *group, const struct tt_segment_list *blocks,
                          struct tt_segment_list out, char *scratch, int64_t shard_bytes)
{
    int n = group->n, me = group->index;

    for (int bit = 1; bit < n; bit <<= 1) {
        int partner = me ^ bit;
        int below = bit - 1; /* the blocks that this member still has agree with its index in these bits */
        bool last = bit == n / 2;
        int64_t bytes = n / (2 * bit) * shard_bytes;
        struct tt_wire receive = tt_wire_make(c, false, partner, bytes, 1);
        struct tt_wire send = tt_wire_make(c, true, partner, bytes, 1);
        char *received = scratch;

        tt_stages_add(c);
        for (int b = me & (below | bit); b < n; b += 2 * bit, received += shard_bytes)
            tt_wire_add_sum(&receive, last ? out : blocks[b], blocks[b], received);
        for (int b = partner & (below | bit); b < n; b += 2 * bit)
            tt_wire_add(&send, blocks[b], blocks[b]);
    }
}

/* Direct exchange, then the tree over the members' blocks; any n >= 2. */
static void build_direct(struct tt_collective *c, const struct tt_group *group, const struct tt_segment_list *blocks,
                         struct tt_segment_list out, char *scratch, int64_t shard_bytes)
{
    int n = group->n, me = group->index;
    struct tt_segment *leaves = tt_calloc((size_t)n, sizeof *leaves);
    struct tt_segment_list *receive = tt_calloc((size_t)n, sizeof *receive);
    struct tt_segment_list *cuts = repeat_list(blocks[me], n);
    struct tt_tree_walk walk = tt_tree_walk_make(n);
    int64_t into, from;

    /* This member's block is copied to the scratch too, so that every leaf is one array. */
    for (int member = 0; member < n; member++) {
        leaves[member] = (struct tt_segment){scratch + member * shard_bytes, (size_t)shard_bytes};
        receive[member] = (struct tt_segment_list){&leaves[member], 1};
    }
    tt_stages_add(c);
    build_exchange(c, group, receive, cuts, blocks, blocks);
    tt_stages_add_work(c, receive[me], blocks[me], NULL);
    while (tt_tree_walk_next(&walk, &into, &from))
        tt_stages_add_work(c, into == 0 && 2 * walk.stride >= n ? out : receive[into], receive[into],
                           leaves[from].data);
    tt_free(leaves);
    tt_free(receive);
    tt_free(cuts);
}

static void build_reduce_scatter(struct tt_collective *c, const struct tt_group *group,
                                 const struct tt_segment_list *blocks, struct tt_segment_list out, char *scratch,
                                 int64_t shard_bytes)
{
    int n = group->n;

    if (shard_bytes == 0)
        return;
    if (n == 1) {
        tt_stages_add(c);
        tt_stages_add_work(c, out, blocks[0], NULL);
    } else if ((n & (n - 1)) == 0) {
        build_halving(c, group, blocks, out, scratch, shard_bytes);
    } else {
        build_direct(c, group, blocks, out, scratch, shard_bytes);
    }
}

int tt_all_gather_new(struct tt_comm *comm, const struct tt_group *group, int tag, struct tt_segment_list send,
                      const struct tt_segment_list *receive, struct tt_collective **ret_collective)
{
    struct tt_collective *c;
    int rc = 0;

    TT_TRY(check_lists(group, receive, tt_segment_list_bytes(send), "all-gather"));
    c = tt_stages_new(comm, group, tag);
    build_all_gather(c, group, send, receive);
    *ret_collective = c;
out:
    return rc;
}

int tt_reduce_scatter_new(struct tt_comm *comm, const struct tt_group *group, int tag,
                          const struct tt_segment_list *blocks, struct tt_segment_list out, void *scratch,
                          struct tt_collective **ret_collective)
{
    int64_t shard_bytes = tt_segment_list_bytes(out);
    struct tt_collective *c;
    int rc = 0;

    TT_TRY(check_lists(group, blocks, shard_bytes, "reduce-scatter"));
    TT_TRY(check_floats(out, "reduce-scatter, out"));
    for (int member = 0; member < group->n; member++)
        TT_TRY(check_floats(blocks[member], "reduce-scatter, block"));
    c = tt_stages_new(comm, group, tag);
    build_reduce_scatter(c, group, blocks, out, scratch, shard_bytes);
    *ret_collective = c;
out:
    return rc;
}

int tt_all_to_all_new(struct tt_comm *comm, const struct tt_group *group, int tag, const struct tt_segment_list *blocks,
                      int64_t block_bytes, void *receive, struct tt_collective **ret_collective)
{
    int n = group->n, me = group->index, rc = 0;
    struct tt_segment *places = tt_calloc((size_t)n, sizeof *places);
    struct tt_segment_list *lists = tt_calloc((size_t)n, sizeof *lists);
    struct tt_segment_list *cuts = repeat_list(blocks[me], n);
    struct tt_collective *c;

    TT_TRY(check_lists(group, blocks, block_bytes, "all-to-all"));
    for (int member = 0; member < n; member++) {
        places[member] = (struct tt_segment){(char *)receive + member * block_bytes, (size_t)block_bytes};
        lists[member] = (struct tt_segment_list){&places[member], 1};
    }
    c = tt_stages_new(comm, group, tag);
    *ret_collective = c;
    if (block_bytes > 0) {
        tt_stages_add(c);
        build_exchange(c, group, lists, cuts, blocks, blocks);
        tt_stages_add_work(c, lists[me], blocks[me], NULL);
    }
out:
    tt_free(places);
    tt_free(lists);
    tt_free(cuts);
    return rc;
}

/* Cuts the values into n slices of slice_bytes; padding fills the last ones. The caller frees ret_items. */
static void cut_slices(const struct tt_group *group, struct tt_segment_list values, int64_t slice_bytes, char *padding,
                       struct tt_segment **ret_items, struct tt_segment_list *ret_slices)
{
    struct tt_cursor from = {.list = values};
    struct tt_segment *items = NULL;
    int n_items = 0, cap_items = 0;

    for (int slice = 0; slice < group->n; slice++) {
        int first = n_items;
        size_t room;

        for (int64_t left = slice_bytes; left > 0; left -= (int64_t)room) {
            room = tt_cursor_room(&from);
            if (room == 0) {
                TT_PUSH(items, n_items, cap_items) = (struct tt_segment){padding, (size_t)left};
                padding += left;
                break;
            }
            room = (int64_t)room < left ? room : (size_t)left;
            TT_PUSH(items, n_items, cap_items) = (struct tt_segment){tt_cursor_data(&from), room};
            from.offset += room;
        }
        ret_slices[slice].n = n_items - first;
    }
    for (int slice = 0, first = 0; slice < group->n; first += ret_slices[slice].n, slice++)
        ret_slices[slice].items = items + first;
    *ret_items = items;
}

/* Bytes of the slice that each of n members sums. */
static int64_t slice_bytes_of(int n, int64_t bytes)
{
    int64_t floats = bytes / (int64_t)sizeof(float);

    return tt_div_up(floats, n) * (int64_t)sizeof(float);
}

int tt_all_reduce_new(struct tt_comm *comm, const struct tt_group *group, int tag, struct tt_segment_list values,
                      void *scratch, struct tt_collective **ret_collective)
{
    int64_t bytes = tt_segment_list_bytes(values), slice_bytes = slice_bytes_of(group->n, bytes);
    struct tt_segment_list *slices;
    struct tt_segment *items;
    struct tt_collective *c;
    char *padding;
    int rc = 0;

    TT_TRY(check_floats(values, "all-reduce"));
    c = tt_stages_new(comm, group, tag);
    *ret_collective = c;
    if (group->n == 1 || bytes == 0)
        goto out;
    padding = tt_calloc((size_t)(slice_bytes * group->n - bytes), 1);
    tt_stages_own(c, padding);
    slices = tt_calloc((size_t)group->n, sizeof *slices);
    cut_slices(group, values, slice_bytes, padding, &items, slices);
    build_reduce_scatter(c, group, slices, slices[group->index], scratch, slice_bytes);
    build_all_gather(c, group, slices[group->index], slices);
    tt_free(items);
    tt_free(slices);
out:
    return rc;
}

int tt_transfer_new(struct tt_comm *comm, const struct tt_group *group, int member, int tag, bool send,
                    struct tt_segment_list values, struct tt_collective **ret_collective)
{
    struct tt_collective *c = tt_stages_new(comm, group, tag);
    struct tt_wire wire = tt_wire_make(c, send, member, tt_segment_list_bytes(values), 1);

    tt_stages_add(c);
    tt_wire_add(&wire, values, values);
    *ret_collective = c;
    return 0;
}

int tt_swap_new(struct tt_comm *comm, const struct tt_group *group, int tag, struct tt_collective **ret_collective)
{
    *ret_collective = tt_stages_new(comm, group, tag);
    tt_stages_count(*ret_collective, &comm->routed_bytes);
    return 0;
}

int tt_swap_begin(struct tt_collective *c, const struct tt_group *group, const struct tt_segment_list *give,
                  const struct tt_segment_list *take)
{
    tt_stages_clear(c);
    tt_stages_add(c);
    build_exchange(c, group, take, take, give, give);
    return tt_collective_begin(c);
}

int64_t tt_reduce_scatter_scratch(int n, int64_t shard_bytes)
{
    if (n == 1)
        return 0;
    return (n & (n - 1)) == 0 ? n / 2 * shard_bytes : n * shard_bytes;
}

int64_t tt_all_reduce_scratch(int n, int64_t bytes)
{
    return tt_reduce_scatter_scratch(n, slice_bytes_of(n, bytes));
}

int64_t tt_collective_payload(enum tt_collective_op op, int n, int64_t bytes)
{
    if (op == TT_SEND || op == TT_RECEIVE)
        return op == TT_SEND ? bytes : 0;
    return op == TT_ALL_SUM ? (int64_t)2 * (n - 1) * slice_bytes_of(n, bytes) : (n - 1) * bytes;
}

int64_t tt_instr_payload(const struct tt_instr *instr)
{
    const struct tt_collective_desc *desc = &instr->collective;

    return tt_collective_travels(desc) ? tt_collective_payload(desc->op, desc->ranks, desc->bytes) : 0;
}

int64_t tt_program_payload(const struct tt_program *program)
{
    int64_t bytes = 0;

    for (int i = 0; i < program->n_instrs; i++)
        bytes += tt_instr_payload(&program->instrs[i]);
    return bytes;
}

int64_t tt_collective_staging(const struct tt_collective_desc *desc)
{
    if (desc->op == TT_ALL_SUM)
        return tt_all_reduce_scratch(desc->ranks, desc->bytes);
    if (desc->op != TT_REDUCE_SCATTER || !tt_collective_travels(desc))
        return 0;
    return desc->dtype == TT_F32 ? tt_reduce_scatter_scratch(desc->ranks, desc->bytes)
                                 : desc->ranks * desc->bytes; /* every leaf */
}
