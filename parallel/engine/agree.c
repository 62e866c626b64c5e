/* SPDX-License-Identifier: MIT
 *
 * For each of its groups, every rank hashes its exchanges in the group and compares the hash with the hash of the
 * group's first rank. If two differ, the first rank sends its list to all, and the other rank finds the difference. In
 * a pipeline, a rank's receives from another rank are compared with that rank's sends to it.
 */
#include "parallel/engine/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/keys/key.h"
#include "core/program/executor.h"
#include "core/program/instr/instr.h"

/* A collective, or a question to all ranks. */
struct exchange {
    struct {
        int64_t op, dtype, bytes, ranks, tag, purpose;
    } same;        /* on all ranks of its group */
    char text[80]; /* for the message */
    int instr;
};

/* Ops for a question to all ranks, and for the exchange of expert rows, whose size is known only during the step. */
enum { QUESTION = TT_COLLECTIVE_OPS, ROUTED };

struct exchanges {
    struct exchange *items;
    int n, cap;
    int collectives; /* number of collectives among the items */
};

static struct exchange collective(const struct tt_program *program, int instr)
{
    const struct tt_collective_desc *desc = &program->instrs[instr].collective;
    struct exchange one = {
        {desc->op, desc->dtype, desc->bytes, desc->ranks, desc->tag, program->instrs[instr].purpose}, "", instr};
    struct tt_text text = {0};

    tt_instr_text(program, instr, &text);
    (void)snprintf(one.text, sizeof one.text, "%s", text.text);
    tt_free(text.text);
    return one;
}

/* The exchange of expert rows, if the experts of the instruction's node are spread over ranks. */
static bool routes(const struct tt_program *program, int instr, struct exchange *ret_one)
{
    const struct tt_instr *of = &program->instrs[instr];
    int64_t bytes = of->node == TT_NONE ? 0 : tt_node_routed_bytes(tt_instr_graph(program, of), of->node);

    if (bytes == 0)
        return false;
    *ret_one = collective(program, instr);
    ret_one->same.op = ROUTED;
    ret_one->same.bytes = bytes;
    ret_one->same.ranks = tt_instr_graph(program, of)->nodes[of->node].attr.peers.n;
    return true;
}

/*
 * The exchanges of a program in a group, in the order in which they begin, without the transfers between stages. If
 * there are any, or if the group contains all ranks, the list also contains the points at which the program asks all
 * ranks whether to stop.
 */
static struct exchanges exchanges_in(const struct tt_program *program, enum tt_group_id group)
{
    struct exchanges list = {0};
    bool decided = false;

    for (int i = 0; i < program->n_instrs; i++) {
        const struct tt_instr *instr = &program->instrs[i];
        struct exchange routed;

        decided = decided || tt_instr_row(instr)->decides;
        if (!decided && tt_program_asks(program, i))
            TT_PUSH(list.items, list.n, list.cap) = (struct exchange){{.op = QUESTION}, "", i};
        if (tt_instr_row(instr)->begins && tt_collective_travels(&instr->collective) &&
            instr->collective.op != TT_SEND && instr->collective.op != TT_RECEIVE && instr->collective.group == group) {
            TT_PUSH(list.items, list.n, list.cap) = collective(program, i);
            list.collectives++;
        }
        if (group == TT_GROUP_EP && routes(program, i, &routed)) {
            TT_PUSH(list.items, list.n, list.cap) = routed;
            list.collectives++;
        }
    }
    if (list.collectives == 0 && group != TT_GROUP_WORLD)
        list.n = 0;
    return list;
}

/* Two transfers that are under way at once have different tags; transfers with the same tag stay in order. */
static int compare_tags(const void *a, const void *b)
{
    const struct exchange *x = a, *y = b;

    return x->same.tag != y->same.tag ? (x->same.tag < y->same.tag ? -1 : 1) : x->instr - y->instr;
}

/* The sends to, or the receives from, the rank at a place of the pipeline, by tag. A receive is listed as its matching
 * send; `purpose` counts how often the ranks ask, before this receive, whether to stop. */
static struct exchanges transfers_with(const struct tt_program *program, int place, enum tt_collective_op op)
{
    struct exchanges list = {0};
    int questions = 0;

    for (int i = 0; i < program->n_instrs; i++) {
        const struct tt_instr *instr = &program->instrs[i];
        struct exchange one;

        questions += tt_program_asks(program, i);
        if (!tt_instr_row(instr)->begins || !tt_collective_travels(&instr->collective) || instr->collective.op != op ||
            instr->collective.group != TT_GROUP_PP || instr->collective.peer != place)
            continue;
        one = collective(program, i);
        one.same.op = TT_SEND;
        one.same.purpose = questions;
        TT_PUSH(list.items, list.n, list.cap) = one;
    }
    if (list.n)
        qsort(list.items, (size_t)list.n, sizeof *list.items, compare_tags);
    return list;
}

/* Releases the list. */
static uint64_t hash_of(struct exchanges list)
{
    uint64_t hash = 0;

    for (int i = 0; i < list.n; i++)
        hash = tt_hash64(&list.items[i].same, sizeof list.items[i].same, hash);
    tt_free(list.items);
    return hash;
}

/* "'unshard layers.0' (128 bytes of F32 among 4 ranks, tag 0)", or "nothing more". */
static const char *describe(const struct exchanges *list, int i, char text[200])
{
    const struct exchange *one = &list->items[i];

    if (i >= list->n)
        return "nothing more";
    if (one->same.op == QUESTION)
        return "the question whether to stop";
    (void)snprintf(text, 200, "'%s' (%lld bytes of %s among %d ranks, tag %d)", one->text, (long long)one->same.bytes,
                   tt_dtype_name((enum tt_dtype)one->same.dtype), (int)one->same.ranks, (int)one->same.tag);
    return text;
}

struct comparison {
    struct tt_comm *comm;
    const struct tt_mesh *mesh;
    const struct tt_program *program;
    const char *what; /* the program's name in messages: "the step" */
};

/*
 * Names the first difference between the lists of `rank` and `first`. All ranks know that the lists differ, but only
 * these two have them. Frees its list.
 *   where  "in group dp_shard its exchange"
 *   there  "on rank 0 it is"
 */
static int explain(const struct comparison *c, struct exchanges own, int first, int rank, const char *where,
                   const char *there)
{
    struct exchanges others = {.n = own.n};
    struct tt_comm *comm = c->comm;
    char mine[200], theirs[200];
    int i = 0, number = 1, rc = 0;

    TT_TRY(tt_comm_broadcast(comm, &others.n, sizeof others.n, first));
    others.items = tt_calloc((size_t)others.n + 1, sizeof *others.items);
    if (comm->rank == first && own.n)
        memcpy(others.items, own.items, (size_t)own.n * sizeof *own.items);
    if (others.n)
        TT_TRY(tt_comm_broadcast(comm, others.items, (size_t)others.n * sizeof *others.items, first));
    while (i < own.n && i < others.n &&
           memcmp(&own.items[i].same, &others.items[i].same, sizeof own.items[i].same) == 0)
        number += own.items[i++].same.op != QUESTION;
    if (comm->rank == rank)
        rc = tt_fail(TT_EUSAGE,
                     "rank %d plans %s differently from rank %d: %s %d is %s, %s %s\n"
                     "help: every rank must read the same %s and be the same titan",
                     rank, c->what, first, where, number, describe(&own, i, mine), there, describe(&others, i, theirs),
                     TT_KEY_NAME(parallelism.machine_file));
    rc = tt_comm_agree(comm, rc);
out:
    tt_free(own.items);
    tt_free(others.items);
    return rc;
}

static int compare_groups(const struct comparison *c)
{
    struct tt_comm *comm = c->comm;
    uint64_t own[TT_GROUPS], *all = tt_calloc((size_t)comm->size * TT_GROUPS, sizeof *all);
    char where[80], there[40];
    int rc = 0;

    for (int g = 0; g < TT_GROUPS; g++)
        own[g] = hash_of(exchanges_in(c->program, (enum tt_group_id)g));
    TT_TRY(tt_comm_gather_all(comm, own, sizeof own, all));
    for (int rank = 0; rank < comm->size; rank++)
        for (int k = 1; k <= TT_GROUPS; k++) {
            /* the group of all ranks comes last, since its list says least about the cause */
            enum tt_group_id g = (enum tt_group_id)(k % TT_GROUPS);
            int first = tt_mesh_member(c->mesh, rank, g, 0);

            if (all[rank * TT_GROUPS + (int)g] == all[first * TT_GROUPS + (int)g])
                continue;
            (void)snprintf(where, sizeof where, "in group %s its exchange", tt_group_name(g));
            (void)snprintf(there, sizeof there, "on rank %d it is", first);
            rc = explain(c, exchanges_in(c->program, g), first, rank, where, there);
            goto out;
        }
out:
    tt_free(all);
    return rc;
}

/* The hashes of a rank's sends to each place of its pipeline, then of its receives from each place. */
static int compare_transfers(const struct comparison *c)
{
    struct tt_comm *comm = c->comm;
    int places = tt_mesh_size(c->mesh, TT_GROUP_PP), rc = 0;
    uint64_t *own = tt_calloc(2 * (size_t)places, sizeof *own);
    uint64_t *all = tt_calloc(2 * (size_t)places * (size_t)comm->size, sizeof *all);
    char there[40];

    for (int place = 0; place < places; place++) {
        own[place] = hash_of(transfers_with(c->program, place, TT_SEND));
        own[places + place] = hash_of(transfers_with(c->program, place, TT_RECEIVE));
    }
    TT_TRY(tt_comm_gather_all(comm, own, 2 * (size_t)places * sizeof *own, all));
    for (int rank = 0; rank < comm->size; rank++)
        for (int place = 0; place < places; place++) {
            int sender = tt_mesh_member(c->mesh, rank, TT_GROUP_PP, place);
            int receiver = tt_mesh_place(c->mesh, rank, TT_GROUP_PP).index;

            if (all[(2 * rank + 1) * places + place] == all[2 * sender * places + receiver])
                continue;
            (void)snprintf(there, sizeof there, "and rank %d sends", sender);
            rc = explain(c,
                         comm->rank == sender ? transfers_with(c->program, receiver, TT_SEND)
                                              : transfers_with(c->program, place, TT_RECEIVE),
                         sender, rank, "of its receives from there, in the order of tags, number", there);
            goto out;
        }
out:
    tt_free(own);
    tt_free(all);
    return rc;
}

int tt_program_agree(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_program *program,
                     const char *what)
{
    struct comparison c = {comm, mesh, program, what};
    int rc = 0;

    TT_TRY(compare_groups(&c));
    TT_TRY(compare_transfers(&c));
out:
    return rc;
}
