/* SPDX-License-Identifier: MIT
 *
 * Makes collectives for instructions. A unit's flat shard is one segment. A member's part of the whole parameters or
 * gradients has one segment for each of them: its chunk of padded rows.
 */
#include "parallel/engine/transfer.h"

#include "core/base/mem.h"
#include "core/ops/step/step.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"

struct tt_transfers {
    struct tt_comm *comm;
    const struct tt_program *program;
    struct tt_state *state;
    struct tt_executor *executor;
    const struct tt_mesh *mesh;
    struct tt_group groups[TT_GROUPS];     /* n 0: not used yet */
    struct tt_group neighbours[TT_GROUPS]; /* neighbours of this rank within such a group; n 0: not used yet */
    struct tt_collective **of_instr;       /* [instruction] NULL if nothing is exchanged */
    struct tt_segment *segments;           /* while building: ranks * parameters and gradients of all units */
    struct tt_segment *flat;               /* while building: one per unit */
    struct tt_segment_list *lists;         /* while building: one per member */
    struct tt_collective *swap;            /* exchange of rows for experts that are spread over ranks; NULL: none */
    struct tt_segment_list *give, *take;   /* [rank] for the ranks that share experts */
    int64_t *room;                         /* receives the step sums of another rank */
    /* whether a call of the communicator is under way; such a call may run the team, and poll then does nothing */
    bool inside;
    int poll_rc; /* the error of a failed poll, with its message */
};

/* The ranks of a collective. The number of neighbours is the same for all units. */
static const struct tt_group *group_of(struct tt_transfers *t, const struct tt_instr *begin)
{
    const struct tt_collective_desc *desc = &begin->collective;
    struct tt_group *group = &t->groups[desc->group], *part = &t->neighbours[desc->group];

    if (!group->n)
        *group = tt_mesh_group(t->mesh, t->comm->rank, desc->group);
    if (desc->ranks == group->n)
        return group;
    *part = (struct tt_group){desc->ranks, group->index % desc->ranks,
                              group->ranks + (size_t)(group->index / desc->ranks) * (size_t)desc->ranks};
    return part;
}

static int tag_of(const struct tt_instr *begin)
{
    return TT_TAG_COLLECTIVE + begin->collective.tag;
}

/* Each member's part of the units' whole parameters or gradients. These are the first operands of the instruction. */
static const struct tt_segment_list *members(struct tt_transfers *t, int i)
{
    const struct tt_instr *instr = &t->program->instrs[i];
    struct tt_segment *part = t->segments;
    int n_members = instr->collective.ranks;
    const struct tt_bucket of = tt_instr_units(t->program->buckets, instr);
    size_t chunks = (size_t)(t->program->layout->groups[instr->collective.group].n / n_members);

    for (int m = 0; m < n_members; m++) {
        int operand = 0;

        t->lists[m].items = part;
        for (int u = 0; u < of.n; u++) {
            const struct tt_unit *unit = &t->program->layout->units[of.units[u]];

            for (int k = 0; k < tt_purpose_pieces(unit, instr->purpose); k++, operand++) {
                int64_t chunk = tt_purpose_chunk(unit, instr->purpose, k);
                size_t bytes = chunks * (size_t)chunk * tt_dtype_size(instr->collective.dtype);
                char *whole = tt_executor_operand(t->executor, i, operand);

                if (tt_purpose_row(instr->purpose)->carries == TT_CARRIES_GRADS && instr->collective.dtype == TT_BF16)
                    whole = tt_mixed_half(whole, tt_unit_whole(t->program->layout, of.units[u], chunk));
                *part++ = (struct tt_segment){whole + (size_t)m * bytes, bytes};
            }
        }
        t->lists[m].n = operand;
    }
    return t->lists;
}

/* A flat array of each unit, with `size` bytes for every element of its flat shard: the operands from `first` on or,
 * if that is TT_NONE, this rank's shards in the state. */
static struct tt_segment_list flat(struct tt_transfers *t, int i, int first, size_t size)
{
    const struct tt_instr *instr = &t->program->instrs[i];
    const struct tt_bucket of = tt_instr_units(t->program->buckets, instr);

    for (int u = 0; u < of.n; u++)
        t->flat[u] = (struct tt_segment){
            first == TT_NONE ? t->state->array[TT_STATE_PARAM][of.units[u]]
                             : tt_executor_operand(t->executor, i, first + u),
            size * (size_t)tt_purpose_elements(&t->program->layout->units[of.units[u]], instr->purpose)};
    return (struct tt_segment_list){t->flat, of.n};
}

/*
 * Sends shards, or the kept parts (after the whole parameters in the list of operands). A shard of float32 that
 * travels as bfloat16 is first rounded into its place in the whole, and sent from there.
 */
static int new_gather(struct tt_transfers *t, int i)
{
    const struct tt_instr *instr = &t->program->instrs[i];
    const struct tt_segment_list *receive = members(t, i);
    const struct tt_group *group = group_of(t, instr);
    bool rounds = instr->collective.dtype != t->program->shard_dtype && instr->collective.dtype != TT_U8;
    int first_kept = receive[0].n;
    size_t chunks = (size_t)(t->program->layout->groups[instr->collective.group].n / group->n);
    struct tt_segment_list send = instr->n_operands > first_kept
                                      ? flat(t, i, first_kept, chunks * tt_dtype_size(instr->collective.dtype))
                                  : rounds ? receive[group->index]
                                           : flat(t, i, TT_NONE, tt_dtype_size(instr->collective.dtype));

    return tt_all_gather_new(t->comm, group, tag_of(instr), send, receive, &t->of_instr[i]);
}

/* Gradients in bfloat16 arrive unchanged, member after member, and the executor adds them. */
static int new_scatter(struct tt_transfers *t, int i)
{
    const struct tt_instr *instr = &t->program->instrs[i];
    const struct tt_segment_list *blocks = members(t, i);
    int staging = instr->n_operands - 1;

    if (instr->collective.dtype == TT_BF16)
        return tt_all_to_all_new(t->comm, group_of(t, instr), tag_of(instr), blocks, instr->collective.bytes,
                                 tt_executor_operand(t->executor, i, staging), &t->of_instr[i]);
    return tt_reduce_scatter_new(t->comm, group_of(t, instr), tag_of(instr), blocks,
                                 flat(t, i, blocks[0].n, tt_dtype_size(tt_dtype_sums(t->program->param_dtype))),
                                 tt_executor_operand(t->executor, i, staging), &t->of_instr[i]);
}

/* A send to one member of the group, or a receive from it. */
static int new_transfer(struct tt_transfers *t, int i)
{
    const struct tt_instr *instr = &t->program->instrs[i];

    if (!t->groups[instr->collective.group].n)
        t->groups[instr->collective.group] = tt_mesh_group(t->mesh, t->comm->rank, instr->collective.group);
    for (int k = 0; k < instr->n_operands; k++)
        t->segments[k] =
            (struct tt_segment){tt_executor_operand(t->executor, i, k),
                                (size_t)t->program->buffers[t->program->operands[instr->operands + k]].bytes};
    return tt_transfer_new(t->comm, &t->groups[instr->collective.group], instr->collective.peer, tag_of(instr),
                           instr->collective.op == TT_SEND, (struct tt_segment_list){t->segments, instr->n_operands},
                           &t->of_instr[i]);
}

/*
 * An exchange within a layer (core/program/instr/collective.c). Both sides are blocks of whole rows of one matrix, so
 * the part of every member is one segment.
 */
static int new_exchange(struct tt_transfers *t, int i)
{
    const struct tt_instr *instr = &t->program->instrs[i];
    const struct tt_group *group = group_of(t, instr);
    int64_t bytes = instr->collective.bytes;
    int tag = tag_of(instr), last = instr->n_operands - 1, rc;
    char *in = tt_executor_operand(t->executor, i, 0), *out = tt_executor_operand(t->executor, i, last - 1);
    void *staging = tt_executor_operand(t->executor, i, last);
    struct tt_segment whole = {in, (size_t)bytes};
    struct tt_segment_list all = {&whole, 1}, *lists;

    lists = tt_segment_blocks(instr->collective.op == TT_ALL_GATHER ? out : in, group->n, bytes);
    switch (instr->collective.op) {
    case TT_ALL_GATHER:
        rc = tt_all_gather_new(t->comm, group, tag, all, lists, &t->of_instr[i]);
        break;
    case TT_REDUCE_SCATTER: /* a sum that will be rounded stays in the place of this rank's block */
        whole.data = tt_exchange_rounds(t->program, instr) ? in + group->index * bytes : out;
        rc = tt_reduce_scatter_new(t->comm, group, tag, lists, all, staging, &t->of_instr[i]);
        break;
    case TT_ALL_SUM:
        rc = tt_all_reduce_new(t->comm, group, tag, all, staging, &t->of_instr[i]);
        break;
    default:
        rc = tt_all_to_all_new(t->comm, group, tag, lists, bytes, out, &t->of_instr[i]);
    }
    tt_free(lists);
    return rc;
}

static int new_collective(struct tt_transfers *t, int i)
{
    const struct tt_instr *instr = &t->program->instrs[i];
    const struct tt_collective_desc *desc = &instr->collective;
    bool transfers = desc->op == TT_SEND || desc->op == TT_RECEIVE; /* these have tags of their own */

    if (!tt_collective_travels(desc))
        return 0;
    if (instr->unit != TT_NONE && !transfers && desc->tag > TT_TAG_COLLECTIVE_LAST - TT_TAG_COLLECTIVE)
        return tt_fail(TT_EINTERNAL,
                       "%d collectives are under way at once, but there are tags for only "
                       "%d",
                       desc->tag + 1, TT_TAG_COLLECTIVE_LAST - TT_TAG_COLLECTIVE + 1);
    if (instr->node != TT_NONE)
        return new_exchange(t, i);
    if (desc->op == TT_ALL_SUM)
        return tt_all_reduce_new(t->comm, group_of(t, instr), tag_of(instr),
                                 flat(t, i, 0, tt_dtype_size(tt_dtype_sums(t->program->param_dtype))),
                                 tt_executor_operand(t->executor, i, instr->n_operands - 1), &t->of_instr[i]);
    return transfers ? new_transfer(t, i) : desc->op == TT_ALL_GATHER ? new_gather(t, i) : new_scatter(t, i);
}

static int begin(void *ctx, int instr)
{
    struct tt_transfers *t = ctx;
    int rc = t->poll_rc;

    t->inside = true;
    if (rc == 0 && t->of_instr[instr])
        rc = tt_collective_begin(t->of_instr[instr]);
    t->inside = false;
    return rc;
}

static int wait(void *ctx, int instr)
{
    struct tt_transfers *t = ctx;
    const struct tt_instr *i = &t->program->instrs[instr];
    int rc = t->poll_rc;

    t->comm->waiting_for = tt_instr_name(i);
    t->inside = true;
    if (rc == 0 && t->of_instr[instr])
        rc = tt_collective_wait(t->of_instr[instr]);
    t->inside = false;
    if (rc < 0 && i->unit == TT_NONE)
        rc = tt_wrap(rc, "%s of microbatch %d", tt_instr_name(i), i->microbatch);
    else if (rc < 0)
        rc = tt_wrap(rc, "%s of %s", tt_instr_name(i), t->program->layout->units[i->unit].name);
    return rc;
}

static int progress(void *ctx)
{
    struct tt_transfers *t = ctx;
    int rc = t->poll_rc;

    t->inside = true;
    if (rc == 0)
        rc = tt_comm_progress(t->comm);
    t->inside = false;
    return rc;
}

static void poll(void *ctx)
{
    struct tt_transfers *t = ctx;

    if (!t->inside && t->poll_rc == 0)
        t->poll_rc = tt_comm_progress(t->comm);
}

/* The lists of all ranks, as arrays of segments. */
static void cut_list(const struct tt_swap_list *list, int ranks, struct tt_segment_list *lists)
{
    const struct tt_segment *items = list->segments;

    for (int q = 0; q < ranks; items += list->n[q++])
        lists[q] = (struct tt_segment_list){items, list->n[q]};
}

static int swap_begin(void *ctx, const struct tt_swap_list *give, const struct tt_swap_list *take)
{
    struct tt_transfers *t = ctx;
    const struct tt_group *group = &t->groups[TT_GROUP_EP];
    int rc = t->poll_rc;

    cut_list(give, group->n, t->give);
    cut_list(take, group->n, t->take);
    t->inside = true;
    if (rc == 0)
        rc = tt_swap_begin(t->swap, group, t->give, t->take);
    t->inside = false;
    return rc;
}

static int swap_wait(void *ctx)
{
    struct tt_transfers *t = ctx;
    int rc = t->poll_rc;

    t->comm->waiting_for = "rows of experts";
    t->inside = true;
    if (rc == 0)
        rc = tt_collective_wait(t->swap);
    t->inside = false;
    return rc < 0 ? tt_wrap(rc, "rows of experts") : 0;
}

/* Makes the exchange of expert rows, if experts are spread over ranks. */
static int new_swap(struct tt_transfers *t)
{
    struct tt_group *group = &t->groups[TT_GROUP_EP];
    int64_t most;

    if (tt_program_routed_bytes(t->program, &most) == 0)
        return 0;
    *group = tt_mesh_group(t->mesh, t->comm->rank, TT_GROUP_EP);
    t->give = tt_calloc((size_t)group->n, sizeof *t->give);
    t->take = tt_calloc((size_t)group->n, sizeof *t->take);
    return tt_swap_new(t->comm, group, TT_TAG_EXPERTS, &t->swap);
}

static int sum(void *ctx, int64_t *words, int n)
{
    struct tt_transfers *t = ctx;
    int rc;

    t->comm->waiting_for = "sum of loss and gradient norm";
    t->inside = true;
    rc = tt_comm_sum_at_once_i64(t->comm, words, t->room, n);
    t->inside = false;
    return rc;
}

static int most(void *ctx, double *value)
{
    struct tt_transfers *t = ctx;
    int rc;

    t->comm->waiting_for = "requests to stop";
    t->inside = true;
    rc = tt_comm_max_f64(t->comm, value, 1);
    t->inside = false;
    return rc;
}

static void release_building(struct tt_transfers *t)
{
    tt_free(t->segments);
    tt_free(t->flat);
    tt_free(t->lists);
    t->segments = t->flat = NULL;
    t->lists = NULL;
}

int tt_transfers_new(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_program *program,
                     struct tt_state *state, struct tt_executor *executor, struct tt_transfers **ret_transfers)
{
    struct tt_transfers *t = tt_calloc(1, sizeof *t);
    const struct tt_exchange exchange = {t, begin, wait, progress, poll, swap_begin, swap_wait, sum, most};
    /* pieces, ranks: the largest numbers in any collective; crossing: the largest number of values at a boundary */
    int pieces = 0, ranks = 1, crossing = 0, rc = 0;

    *t = (struct tt_transfers){.comm = comm, .program = program, .state = state, .executor = executor, .mesh = mesh};
    t->of_instr = tt_calloc((size_t)program->n_instrs, sizeof(struct tt_collective *));
    for (int u = 0; u < program->layout->n_units; u++)
        pieces += program->layout->units[u].n_params + program->layout->units[u].n_grads;
    for (int i = 0; i < program->n_instrs; i++)
        if (program->instrs[i].collective.ranks > ranks)
            ranks = program->instrs[i].collective.ranks;
    for (int s = 0; s < program->n_stages; s++) {
        const struct tt_stage *stage = &program->stages[s];
        int most = stage->n_in > stage->n_out ? stage->n_in : stage->n_out;

        crossing = most > crossing ? most : crossing;
    }
    t->segments = tt_calloc((size_t)ranks * (size_t)pieces + (size_t)crossing, sizeof *t->segments);
    t->flat = tt_calloc((size_t)program->layout->n_units, sizeof *t->flat);
    t->lists = tt_calloc((size_t)ranks, sizeof *t->lists);
    t->room = tt_calloc((size_t)tt_sums_shared_words(program->layout), sizeof *t->room);
    for (int i = 0; i < program->n_instrs; i++)
        TT_TRY(new_collective(t, i));
    TT_TRY(new_swap(t));
    tt_executor_set_exchange(executor, &exchange);
    release_building(t);
    *ret_transfers = t;
    t = NULL;
out:
    tt_transfers_free(t);
    return rc;
}

struct tt_span tt_transfers_span(const struct tt_transfers *t, int instr)
{
    return t->of_instr[instr] ? tt_collective_span(t->of_instr[instr]) : (struct tt_span){0.0, 0.0};
}

void tt_transfers_free(struct tt_transfers *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->program->n_instrs; i++)
        tt_collective_free(t->of_instr[i]);
    tt_free(t->of_instr);
    tt_collective_free(t->swap);
    tt_free(t->give);
    tt_free(t->take);
    tt_free(t->room);
    for (int g = 0; g < TT_GROUPS; g++)
        tt_group_release(&t->groups[g]);
    release_building(t);
    tt_free(t);
}
