/* SPDX-License-Identifier: MIT
 *
 * Comparing replicas.
 */
#include "checkpoint/save/replicas.h"

#include <stdbool.h>

#include "checkpoint/format/digest.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "parallel/layout/placement.h"

enum { SPAN_BYTES = 1 << 20, RANKS_NAMED = 8 };

/* --- sums --- */

struct span {
    const struct tt_ckpt_chunk *tensor;
    int number;    /* of the tensor */
    int64_t at, n; /* range of elements in the packed part */
    uint64_t digest;
};

struct spans {
    struct span *span;
    int n, cap;
};

static void add_elements(struct spans *spans, const struct tt_ckpt_chunk *c, int number, int64_t begin, int64_t end)
{
    int64_t most = SPAN_BYTES / (int64_t)tt_dtype_size(c->dtype);

    for (int64_t at = begin; at < end; at += most)
        TT_PUSH(spans->span, spans->n, spans->cap) =
            (struct span){.tensor = c, .number = number, .at = at, .n = end - at < most ? end - at : most};
}

static void sum_span(void *arg, int64_t tile, int worker)
{
    struct span *s = &((struct span *)arg)[tile];
    const struct tt_ckpt_chunk *c = s->tensor;

    (void)worker;
    s->digest = tt_digest_box(c->dtype, c->shape, &c->part, s->at, s->n,
                              (const char *)c->data + s->at * (int64_t)tt_dtype_size(c->dtype));
}

void tt_replicas_sum(const struct tt_mesh *mesh, const struct tt_ckpt_state *state, const struct tt_summed *without,
                     struct tt_team *team, uint64_t *digest)
{
    struct spans spans = {0};

    for (int i = 0; i < state->n_model + state->n_optim; i++) {
        const struct tt_ckpt_chunk *c = tt_ckpt_state_tensor(state, i);
        int64_t end = tt_box_volume(&c->part);
        bool copied = tt_placement_copies(mesh, &c->placement) > 1;
        struct tt_summed gap = without && without[i].end ? without[i] : (struct tt_summed){end, end};

        add_elements(&spans, c, i, 0, copied ? gap.begin : 0);
        add_elements(&spans, c, i, copied ? gap.end : end, end);
    }
    if (team && spans.n)
        tt_team_run(team, spans.n, sum_span, spans.span);
    for (int k = 0; k < spans.n; k++) {
        if (!team)
            sum_span(spans.span, k, 0);
        digest[spans.span[k].number] += spans.span[k].digest;
    }
    tt_free(spans.span);
}

/* --- comparing --- */

/* The tensors whose copies lie on the ranks of one group, and one word per rank that sums up its parts of all these
 * tensors. Below, `first` is the first rank of such a group. */
struct copies {
    const struct tt_mesh *mesh;
    enum tt_group_id group;
    const uint64_t *words; /* [rank] */
};

static bool is_first(const struct copies *copies, int rank)
{
    return tt_mesh_place(copies->mesh, rank, copies->group).index == 0;
}

static int copy_of(const struct copies *copies, int first, int r)
{
    return tt_mesh_member(copies->mesh, first, copies->group, r);
}

/* The word that more than half of the copies share; false if there is none. */
static bool most_common(const struct copies *copies, int first, uint64_t *ret_word)
{
    int n = tt_mesh_size(copies->mesh, copies->group);

    *ret_word = copies->words[first];
    for (int r = 0; r < n; r++) {
        int same = 0;

        *ret_word = copies->words[copy_of(copies, first, r)];
        for (int k = 0; k < n; k++)
            same += copies->words[copy_of(copies, first, k)] == *ret_word;
        if (2 * same > n)
            return true;
    }
    return false;
}

/* The first rank with that word or, if `has` is false, with a different one; -1 if there is none. */
static int rank_with(const struct copies *copies, int first, uint64_t word, bool has)
{
    for (int r = 0; r < tt_mesh_size(copies->mesh, copies->group); r++)
        if ((copies->words[copy_of(copies, first, r)] == word) == has)
            return copy_of(copies, first, r);
    return -1;
}

static bool agrees(const struct copies *copies, int first)
{
    return rank_with(copies, first, copies->words[first], false) == -1;
}

/* The first of these tensors whose bits differ on two ranks. Every rank receives the lists of both. */
static int find_tensor(struct tt_comm *comm, const struct copies *copies, const struct tt_ckpt_state *state,
                       const uint64_t *digest, int a, int b, const char **ret_name)
{
    size_t n = (size_t)(state->n_model + state->n_optim);
    uint64_t *lists = tt_calloc(2 * n + 1, sizeof *lists);
    int rc = 0;

    *ret_name = "?";
    for (size_t i = 0; i < n; i++)
        lists[comm->rank == b ? n + i : i] = digest[i];
    TT_TRY(tt_comm_broadcast(comm, lists, n * sizeof *lists, a));
    TT_TRY(tt_comm_broadcast(comm, lists + n, n * sizeof *lists, b));
    for (size_t i = n; i-- > 0;)
        if (lists[i] != lists[n + i] && tt_ckpt_state_tensor(state, (int)i)->placement.copies == copies->group)
            *ret_name = tt_ckpt_state_tensor(state, (int)i)->name;
out:
    tt_free(lists);
    return rc;
}

/* Names the ranks that differ from the majority; without a majority, all replicas. */
static int fail_differ(struct tt_comm *comm, const struct copies *copies, const struct tt_ckpt_state *state,
                       const uint64_t *digest)
{
    struct tt_text ranks = {0};
    const char *tensor = NULL;
    int n = 0, good = -1, bad = -1, rc = 0;
    bool sure = true;

    for (int first = 0; first < copies->mesh->n_ranks; first++) {
        uint64_t word;
        bool most;

        if (!is_first(copies, first) || agrees(copies, first))
            continue;
        most = most_common(copies, first, &word);
        sure = sure && most;
        if (bad == -1) {
            good = rank_with(copies, first, word, true);
            bad = rank_with(copies, first, word, false);
        }
        for (int r = 0; r < tt_mesh_size(copies->mesh, copies->group); r++) {
            int rank = copy_of(copies, first, r);

            if (most && copies->words[rank] == word)
                continue;
            if (n < RANKS_NAMED)
                tt_text_add(&ranks, "%s%d", n ? ", " : "", rank);
            else if (n == RANKS_NAMED)
                tt_text_add(&ranks, ", …");
            n++;
        }
    }
    TT_TRY(find_tensor(comm, copies, state, digest, good, bad, &tensor));
    if (sure)
        rc =
            tt_fail(TT_EINTERNAL,
                    "the replicas do not hold the same weights: rank%s %s differ%s from most replicas, first in tensor "
                    "'%s'\nhelp: memory or a link of that host may be faulty. The last checkpoint is older: start "
                    "again without that host",
                    n == 1 ? "" : "s", ranks.text, n == 1 ? "s" : "", tensor);
    else
        rc =
            tt_fail(TT_EINTERNAL,
                    "the replicas do not hold the same weights: ranks %s differ from each other, first in tensor '%s'\n"
                    "help: memory or a link of one of these hosts may be faulty. Three or more replicas would show "
                    "which. The last checkpoint is older",
                    ranks.text, tensor);
out:
    tt_text_release(&ranks);
    return rc;
}

static int compare_copies(struct tt_comm *comm, const struct tt_mesh *mesh, enum tt_group_id group,
                          const struct tt_ckpt_state *state, const uint64_t *digest)
{
    uint64_t *words = tt_calloc((size_t)comm->size, sizeof *words), mine = 0;
    const struct copies copies = {mesh, group, words};
    int rc = 0;

    for (int i = 0; i < state->n_model + state->n_optim; i++)
        if (tt_ckpt_state_tensor(state, i)->placement.copies == group)
            mine = tt_hash64(&digest[i], sizeof digest[i], mine);
    TT_TRY(tt_comm_gather_all(comm, &mine, sizeof mine, words));
    for (int first = 0; first < mesh->n_ranks && rc == 0; first++)
        if (is_first(&copies, first) && !agrees(&copies, first))
            rc = fail_differ(comm, &copies, state, digest);
out:
    tt_free(words);
    return rc;
}

/* The groups whose ranks hold copies: replicas; tensor-parallel ranks, for tensors that are not split; all ranks of a
 * stage, for buffers. */
static const enum tt_group_id groups[] = {TT_GROUP_COPIES, TT_GROUP_REPLICATE, TT_GROUP_STAGE};
enum { N_GROUPS = sizeof groups / sizeof *groups };

/* Whether several ranks hold the same parts of some tensor. */
static bool has_copies(const struct tt_mesh *mesh, const struct tt_ckpt_state *state, enum tt_group_id group)
{
    for (int i = 0; i < state->n_model + state->n_optim && tt_mesh_size(mesh, group) > 1; i++)
        if (tt_ckpt_state_tensor(state, i)->placement.copies == group)
            return true;
    return false;
}

bool tt_replicas_exist(const struct tt_mesh *mesh, const struct tt_ckpt_state *state)
{
    for (int i = 0; i < N_GROUPS; i++)
        if (has_copies(mesh, state, groups[i]))
            return true;
    return false;
}

int tt_replicas_compare(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_ckpt_state *state,
                        const uint64_t *digest)
{
    int rc = 0;

    for (int i = 0; i < N_GROUPS && rc == 0; i++)
        if (has_copies(mesh, state, groups[i]))
            rc = compare_copies(comm, mesh, groups[i], state, digest);
    return rc;
}

int tt_replicas_check(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_ckpt_state *state,
                      struct tt_team *team)
{
    size_t n = (size_t)(state->n_model + state->n_optim);
    uint64_t *digest;
    int rc;

    if (!tt_replicas_exist(mesh, state))
        return 0;
    digest = tt_calloc(n + 1, sizeof *digest);
    tt_replicas_sum(mesh, state, NULL, team, digest);
    rc = tt_replicas_compare(comm, mesh, state, digest);
    tt_free(digest);
    return rc;
}
