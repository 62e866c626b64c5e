/* SPDX-License-Identifier: MIT
 *
 * Saves a checkpoint: runs the phases (described in internal.h) in the same order with and without a thread, compares
 * replicas, writes the manifest, and decides which older steps are removed.
 */
#include "checkpoint/save/save.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/durable/patience.h"
#include "checkpoint/format/cast.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/save/internal.h"
#include "checkpoint/steps/line.h"
#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/round.h"
#include "core/os/file.h"
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

/*
 * Adds the digests of this rank's parts to digest[i]: one per tensor, first the model's, then the optimizer's. Parts
 * without a copy on another rank are left out.
 *   without  [n_model + n_optim] elements to leave out; NULL: none
 *   team     helps; may be NULL
 */
static void sum_copies(const struct tt_mesh *mesh, const struct tt_ckpt_state *state, const struct tt_summed *without,
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

/* Whether several ranks hold the same parts of some tensor, so that there is something to compare. */
static bool copies_exist(const struct tt_mesh *mesh, const struct tt_ckpt_state *state)
{
    for (int i = 0; i < N_GROUPS; i++)
        if (has_copies(mesh, state, groups[i]))
            return true;
    return false;
}

/* Compares the replicas (collective). digest: as above, complete. Errors: TT_EINTERNAL on all ranks. The message names
 * the first tensor that differs, and the ranks that differ from the majority; without a majority, all ranks that hold
 * copies. */
static int compare_digests(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_ckpt_state *state,
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

    if (!copies_exist(mesh, state))
        return 0;
    digest = tt_calloc(n + 1, sizeof *digest);
    sum_copies(mesh, state, NULL, team, digest);
    rc = compare_digests(comm, mesh, state, digest);
    tt_free(digest);
    return rc;
}

/* --- replicas: the rows that a rank writes are summed for the manifest anyway; only the other rows are read again
 * --- */

/* The elements of a tensor that this rank holds and also writes without conversion: rows of its part, or the whole
 * part. */
static struct tt_summed summed(const struct tt_ckpt_saving *s, const struct tt_ckpt_piece *piece)
{
    const struct tt_ckpt_chunk *c = tt_ckpt_state_tensor(&s->live, piece->tensor);
    struct tt_box box = tt_ckpt_piece_box(piece, c, &s->store->mesh), common;
    int64_t begin;

    if (c->dtype != tt_ckpt_state_tensor(&s->stored, piece->tensor)->dtype || tt_box_volume(&c->part) == 0 ||
        !tt_placement_has(&s->store->mesh, &c->placement, s->rank) || !tt_box_intersect(&box, &c->part, &common))
        return (struct tt_summed){0};
    begin = tt_box_position(&common, 0, &c->part);
    return (struct tt_summed){begin, begin + tt_box_volume(&common)};
}

/* With several replicas: sums the rows that this rank holds but does not write, while training waits. */
static void sum_rest(struct tt_ckpt_saving *s)
{
    size_t n = (size_t)(s->live.n_model + s->live.n_optim);
    struct tt_summed *without;

    if (!copies_exist(&s->store->mesh, &s->live))
        return;
    without = tt_calloc(n + 1, sizeof *without);
    s->own_digest = tt_calloc(n + 1, sizeof *s->own_digest);
    for (int i = 0; i < s->plan.n; i++)
        if (s->plan.piece[i].writer == s->rank)
            without[s->plan.piece[i].tensor] = summed(s, &s->plan.piece[i]);
    sum_copies(&s->store->mesh, &s->live, without, s->team, s->own_digest);
    tt_free(without);
}

/* Compares replicas (collective), after the files are written: TT_EINTERNAL as compare_digests. */
static int check_replicas(struct tt_ckpt_saving *s)
{
    if (!s->own_digest)
        return 0;
    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        const struct tt_shard_file *file = &s->file[group];

        for (int i = 0; i < file->n_segments; i++) {
            int tensor = s->plan.piece[file->entry[file->segment[i].entry].index].tensor;

            if (file->segment[i].holder == s->rank &&
                tt_ckpt_state_tensor(&s->live, tensor)->dtype == tt_ckpt_state_tensor(&s->stored, tensor)->dtype)
                s->own_digest[tensor] += file->segment[i].digest;
        }
    }
    return compare_digests(s->store->comm, &s->store->mesh, &s->live, s->own_digest);
}

/* --- the manifest, which rank 0 writes from what the ranks have collected --- */

/* TT_ENONFINITE names the first tensor with values that are not finite. Call it after collect. */
static int check_finite(const struct tt_ckpt_saving *s)
{
    for (int i = 0; i < s->stored.n_model + s->stored.n_optim; i++)
        if (s->shared.nonfinite[i])
            return tt_fail(TT_ENONFINITE,
                           "tensor '%s' has %" PRId64
                           " values that are not finite: nothing was saved, and older checkpoints are unchanged",
                           tt_ckpt_state_tensor(&s->stored, i)->name, s->shared.nonfinite[i]);
    return 0;
}

/* Adds one file and the places of its chunks. The file's layout is computed from the plan, not sent. */
static int describe_file(const struct tt_ckpt_saving *s, enum tt_ckpt_group group, int writer,
                         struct tt_manifest *manifest)
{
    int64_t slot = tt_saving_slot(s, group, writer), wrote = s->shared.file_bytes[slot];
    int rc = 0;
    char *path = tt_ckpt_shard_path(group, writer);
    struct tt_shard_file layout = {0};
    struct tt_manifest_file *file;

    TT_TRY(tt_saving_file(s, group, writer, &layout));
    if (layout.n == 0)
        goto out;
    if (tt_shard_file_bytes(&layout) != wrote)
        TT_TRY(tt_fail(TT_EINTERNAL, "rank %d wrote %" PRId64 " bytes, but its plan says %" PRId64, writer, wrote,
                       tt_shard_file_bytes(&layout)));
    file = tt_manifest_add_file(manifest, path, wrote);
    file->crc = (uint32_t)s->shared.file_crc[slot];
    for (int i = 0; i < layout.n; i++) {
        const struct tt_st_tensor *entry = &layout.entry[i];
        struct tt_manifest_tensor *t = &manifest->tensor[s->plan.piece[entry->index].tensor];

        TT_PUSH(t->chunk, t->n_chunks, t->cap_chunks) = (struct tt_manifest_chunk){
            .file = manifest->n_files - 1,
            .box = entry->box,
            .begin = layout.data_start + entry->begin,
            .end = layout.data_start + entry->end,
            .crc = (uint32_t)((uint64_t)s->shared.crc[entry->index / 2] >> (entry->index % 2 * 32)),
        };
    }
out:
    tt_shard_file_release(&layout);
    tt_free(path);
    return rc;
}

static int describe(const struct tt_ckpt_saving *s, struct tt_manifest *manifest)
{
    int n = s->stored.n_model + s->stored.n_optim, rc = 0;

    manifest->meta = json_copy(s->meta);
    (void)json_object_update_new(manifest->meta,
                                 json_pack("{s:i, s:s, s:s*, s:o*, s:s, s:f}", "world", s->store->comm->size, "policy",
                                           s->policy->name, "filter", s->policy->filter, "assets",
                                           s->n_assets ? tt_assets_json(s->asset, s->n_assets) : NULL, "run_id",
                                           s->store->run_id, "time", tt_clock_wall_sec()));
    for (int i = 0; i < n; i++) {
        const struct tt_ckpt_chunk *c = tt_ckpt_state_tensor(&s->stored, i);
        enum tt_ckpt_group group = i < s->stored.n_model ? TT_CKPT_MODEL : TT_CKPT_OPTIM;

        tt_manifest_add_tensor(manifest, group, c->name, c->dtype, c->ndim, c->shape)->digest =
            (uint64_t)s->shared.digest[i];
    }
    for (int group = 0; group < TT_CKPT_GROUPS; group++)
        for (int writer = 0; writer < s->store->comm->size; writer++)
            TT_TRY(describe_file(s, (enum tt_ckpt_group)group, writer, manifest));
    rc = tt_manifest_check_cover(manifest);
out:
    return rc;
}

/* Rank 0: writes the manifest, the last file, when everything else is durable, and makes it durable. */
static int write_manifest(void *arg)
{
    const struct tt_ckpt_saving *s = arg;
    struct tt_manifest manifest = {0};
    char *text = NULL, *path = tt_format("%s/manifest.json", s->folder);
    int rc = 0;

    TT_TRY(tt_commit_sync_tree(s->folder));
    TT_TRY(describe(s, &manifest));
    tt_manifest_sort(&manifest);
    TT_TRY(tt_fault("manifest", s->rank));
    text = tt_manifest_text(&manifest);
    TT_TRY(tt_durable_put(s->folder, "manifest.json", text, strlen(text)));
    TT_TRY(tt_folder_sync(s->folder));
    tt_known_note(&s->store->known, s->step, path, &manifest);
out:
    tt_manifest_release(&manifest);
    tt_free(text);
    tt_free(path);
    return rc;
}

/* --- retention --- */

struct retention {
    struct tt_ckpt_store *store;
    int64_t just_saved;
    int keep;
};

static int remove_step(const struct tt_ckpt_store *store, int64_t step)
{
    char *name = tt_format("step-%" PRId64, step), *aside = tt_ckpt_store_aside(store, "trash", step);
    int rc = tt_commit_remove(store->folder, name, aside, store->comm->rank);

    tt_free(name);
    tt_free(aside);
    return rc;
}

static int remove_older(const struct retention *r)
{
    int64_t *steps = NULL;
    int n = 0, kept = 1, rc = 0;

    TT_TRY(tt_step_list(r->store->folder, &steps, &n));
    tt_known_keep(&r->store->known, steps, n);
    for (int i = n - 1; i >= 0; i--) {
        bool good = steps[i] < r->just_saved && tt_known_check(&r->store->known, r->store->folder, steps[i]) == 0;

        if (good && ++kept > r->keep)
            TT_TRY(remove_step(r->store, steps[i]));
    }
out:
    tt_free(steps);
    return rc;
}

/* The work of the writer's thread; frees arg. */
static int retire(void *arg)
{
    struct retention *r = arg;

    if (remove_older(r) < 0)
        tt_warn("old checkpoints could not be removed: %s", tt_error_message());
    tt_free(r);
    return 0;
}

void tt_ckpt_retain(struct tt_ckpt_store *store, int64_t just_saved, int keep, struct tt_ckpt_writer *writer)
{
    struct retention *r;

    if (keep <= 0)
        return;
    r = tt_calloc(1, sizeof *r);
    *r = (struct retention){store, just_saved, keep};
    store->retiring = writer;
    if (writer)
        tt_ckpt_writer_start(writer, retire, r);
    else
        (void)retire(r);
}

/* --- check --- */

static int check_chunks(const struct tt_ckpt_saving *s)
{
    for (int i = 0; i < s->live.n_model + s->live.n_optim; i++) {
        const struct tt_ckpt_chunk *c = tt_ckpt_state_tensor(&s->live, i);
        int part = tt_placement_part(&s->store->mesh, &c->placement, s->rank);
        char found[128], wanted[128];
        struct tt_box box;
        int64_t volume;

        if (c->ndim < 0 || c->ndim > TT_CKPT_DIMS || !tt_box_checked_volume(c->shape, c->ndim, &volume) ||
            !tt_dtype_size(c->dtype))
            return tt_fail(TT_EINTERNAL, "tensor '%s' cannot be saved: impossible shape or dtype", c->name);
        if (!tt_placement_has(&s->store->mesh, &c->placement, s->rank) && tt_box_volume(&c->part) == 0)
            continue; /* held by another pipeline stage */
        box = tt_placement_box(&s->store->mesh, &c->placement, c->ndim, c->shape, part);
        volume = tt_box_volume(&box);
        if (tt_box_volume(&c->part) != volume || (volume && (!tt_box_equal(&box, &c->part) || !c->data)))
            return tt_fail(TT_EINTERNAL, "tensor '%s': rank %d holds %s, but its placement says %s", c->name, s->rank,
                           tt_box_text(found, sizeof found, &c->part), tt_box_text(wanted, sizeof wanted, &box));
    }
    return 0;
}

/* The checks that need no communication; makes the plan. */
static int check_local(struct tt_ckpt_saving *s, const struct tt_ckpt_save *save)
{
    static const char *const reserved[] = {"titan_ckpt", "files", "tensors", "assets", "self_crc32c"};
    int rc = 0;

    TT_TRY(tt_json_get_int(s->meta, "step", "checkpoint meta", &s->step));
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (json_object_get(s->meta, reserved[i]))
            return tt_fail(TT_EINTERNAL, "checkpoint meta may not have the key '%s'", reserved[i]);
    TT_TRY(tt_ckpt_policy_find(save->policy, save->filter, &s->policy));
    TT_TRY(check_chunks(s));
    for (int i = 0; save->cast_model && i < s->stored.n_model; i++)
        if (tt_cast_known(save->model_dtype, s->stored.model[i].dtype))
            s->stored.model[i].dtype = save->model_dtype;
    tt_ckpt_plan_make(&s->stored, &s->store->mesh, s->policy, &s->plan);
    rc = tt_fault("begin", s->rank);
out:
    return rc;
}

static int check(struct tt_ckpt_saving *s, const struct tt_ckpt_save *save)
{
    struct tt_comm *comm = s->store->comm;
    uint64_t mine, first;
    int rc = 0;

    TT_TRY(tt_comm_agree(comm, check_local(s, save)));
    first = mine = tt_mix64(tt_ckpt_plan_hash(&s->stored, &s->plan) ^ (uint64_t)s->step);
    TT_TRY(tt_comm_broadcast(comm, &first, sizeof first, 0));
    if (first != mine)
        rc = tt_fail(TT_EINTERNAL, "rank %d would save different tensors or another step than rank 0", s->rank);
    rc = tt_comm_agree(comm, rc);
out:
    return rc;
}

/* --- what the phases share --- */

static void share_space(struct tt_ckpt_saving *s)
{
    int64_t n_crc = (s->plan.n + 1) / 2, n_tensors = (int64_t)s->stored.n_model + s->stored.n_optim;
    int64_t n_file = (int64_t)TT_CKPT_GROUPS * s->store->comm->size;
    struct tt_saving_shared *shared = &s->shared;

    shared->n = n_crc + 2 * n_tensors + 2 * n_file;
    shared->words = tt_calloc((size_t)shared->n, sizeof *shared->words);
    shared->crc = shared->words;
    shared->digest = shared->crc + n_crc;
    shared->nonfinite = shared->digest + n_tensors;
    shared->file_bytes = shared->nonfinite + n_tensors;
    shared->file_crc = shared->file_bytes + n_file;
}

/* The names of this rank's files, and of everything else. */
static int lay_out(struct tt_ckpt_saving *s)
{
    int rc = 0;

    tt_ckpt_plan_files(&s->plan, s->store->comm->size, &s->file_begin, &s->piece_of_file);
    share_space(s);
    s->name = tt_format("step-%" PRId64, s->step);
    s->temporary = tt_ckpt_store_aside(s->store, "tmp", s->step);
    s->aside = tt_ckpt_store_aside(s->store, "old", s->step);
    s->folder = tt_format("%s/%s", s->store->folder, s->temporary);
    for (int group = 0; group < TT_CKPT_GROUPS; group++)
        TT_TRY(tt_saving_file(s, (enum tt_ckpt_group)group, s->rank, &s->file[group]));
out:
    return rc;
}

/* --- prepare --- */

/* Counts the bytes of tensors, headers, manifest and assets, and the overhead of the file system. */
static int64_t room(const struct tt_ckpt_plan *plan, const struct tt_ckpt_asset *asset, int n_assets)
{
    int64_t bytes = plan->bytes + plan->bytes / 50 + ((int64_t)1 << 20);

    for (int i = 0; i < n_assets; i++)
        bytes += (int64_t)asset[i].size;
    return bytes;
}

int64_t tt_ckpt_save_room(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                          const struct tt_ckpt_policy *policy, const struct tt_ckpt_asset *asset, int n_assets)
{
    struct tt_ckpt_plan plan = {0};
    int64_t bytes;

    tt_ckpt_plan_make(state, mesh, policy, &plan);
    bytes = room(&plan, asset, n_assets);
    tt_ckpt_plan_release(&plan);
    return bytes;
}

/* Rank 0: checks that there is space for everything in addition to the older steps, and makes the folder to write
 * into. */
static int make_folder(void *arg)
{
    const struct tt_ckpt_saving *s = arg;
    static const char *const below[] = {"model", "optim", "assets"};
    const bool wanted[] = {s->stored.n_model > 0, s->stored.n_optim > 0, s->n_assets > 0};
    struct tt_ckpt_writer *retiring = s->store->retiring; /* its thread does the last retention, so it must exist */
    int64_t need = room(&s->plan, s->asset, s->n_assets);
    int rc = 0;

    s->store->retiring = NULL;
    TT_TRY(retiring ? tt_ckpt_writer_wait(retiring) : 0);
    TT_TRY(tt_lock_check(&s->store->lock)); /* a removed folder is not recreated: no lock would protect it */
    TT_TRY(tt_commit_check_space(s->store->folder, need));
    TT_TRY(tt_folder_remove(s->folder)); /* a failed attempt could not remove it */
    for (int i = 0; i < 3 && rc == 0; i++) {
        char *path = tt_format("%s/%s", s->folder, below[i]);

        rc = wanted[i] ? tt_folder_make(path) : 0;
        tt_free(path);
    }
    TT_TRY(rc);
    rc = tt_fault("mkdir", s->rank);
out:
    return rc;
}

/* --- collect --- */

static int collect(struct tt_ckpt_saving *s)
{
    enum { BATCH = 256 }; /* words per reduction; small, to bound memory */
    struct tt_comm *comm = s->store->comm;
    double sec[] = {s->stage_sec, s->write_sec};
    int rc = 0;

    for (int64_t at = 0; at < s->shared.n; at += BATCH) {
        int64_t n = s->shared.n - at < BATCH ? s->shared.n - at : BATCH;

        TT_TRY(tt_comm_sum_i64(comm, s->shared.words + at, (int)n));
    }
    TT_TRY(tt_comm_max_f64(comm, sec, 2));
    s->stage_sec = sec[0];
    s->write_sec = sec[1];
out:
    return rc;
}

/* --- the life of a save --- */

/* The chunks of both groups are one array, which begins with the model's. */
static struct tt_ckpt_state copy_state(const struct tt_ckpt_state *state)
{
    int n = state->n_model + state->n_optim;
    struct tt_ckpt_chunk *copy = tt_calloc((size_t)n + 1, sizeof *copy);

    for (int i = 0; i < n; i++)
        copy[i] = *tt_ckpt_state_tensor(state, i);
    return (struct tt_ckpt_state){state->n_model, copy, state->n_optim, copy + state->n_model};
}

static struct tt_ckpt_saving *new_saving(struct tt_ckpt_store *store, const struct tt_ckpt_save *save)
{
    struct tt_ckpt_saving *s = tt_calloc(1, sizeof *s);

    s->store = store;
    s->writer = save->writer;
    s->team = save->team;
    s->live = copy_state(save->state);
    s->stored = copy_state(save->state);
    s->meta = json_incref(save->meta);
    s->asset = save->asset;
    s->n_assets = save->n_assets;
    s->keep_latest_k = save->keep_latest_k;
    s->rank = store->comm->rank;
    s->begin_sec = tt_clock_sec();
    for (int group = 0; group < TT_CKPT_GROUPS; group++)
        s->out[group].fd = -1;
    return s;
}

static void free_saving(struct tt_ckpt_saving *s)
{
    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        tt_durable_cancel(&s->out[group]);
        tt_shard_file_release(&s->file[group]);
    }
    tt_free(s->live.model);
    tt_free(s->stored.model);
    json_decref(s->meta);
    tt_ckpt_plan_release(&s->plan);
    tt_free(s->piece_of_file);
    tt_free(s->file_begin);
    tt_free(s->shared.words);
    tt_free(s->name);
    tt_free(s->temporary);
    tt_free(s->aside);
    tt_free(s->folder);
    tt_free(s->message);
    tt_free(s->own_digest);
    tt_free(s);
}

/* Ends a failed save. Every rank calls this after all writing has ended. Keeps the message of the failure. */
static void abandon(struct tt_ckpt_saving *s)
{
    char *message = tt_strdup(tt_error_message());

    if (s->rank == 0 && s->folder && tt_folder_remove(s->folder) < 0)
        tt_warn("the unfinished checkpoint could not be removed: %s", tt_error_message());
    (void)tt_fail(0, "%s", message);
    tt_free(message);
}

int tt_ckpt_save_begin(struct tt_ckpt_store *store, const struct tt_ckpt_save *save, struct tt_ckpt_saving **ret_saving)
{
    struct tt_patience patience = tt_patience_begin(store->comm, "saving a checkpoint");
    struct tt_ckpt_saving *s = new_saving(store, save);
    struct tt_comm *comm = store->comm;
    double stage_begin;
    int rc = 0;

    TT_TRY(check(s, save));
    TT_TRY(tt_comm_agree(comm, lay_out(s)));
    TT_TRY(tt_patience_work(comm, comm->rank == 0, make_folder, s));
    TT_TRY(tt_patience_work(comm, true, tt_saving_open, s));
    stage_begin = tt_clock_sec();
    TT_TRY(tt_comm_agree(comm, tt_saving_gather(s)));
    if (s->writer)
        TT_TRY(tt_comm_agree(comm, tt_saving_stage(s)));
    sum_rest(s);
    s->stage_sec = tt_clock_sec() - stage_begin;
    /* Failures of the writing are reported at the end, when the ranks agree. */
    if (s->writer)
        tt_ckpt_writer_start(s->writer, tt_saving_write, s);
    else if ((s->rc = tt_comm_work(comm, tt_saving_write, s)) < 0)
        s->message = tt_strdup(tt_error_message());
    s->blocked_sec = tt_clock_sec() - s->begin_sec;
    *ret_saving = s;
out:
    if (rc < 0) {
        abandon(s);
        free_saving(s);
    }
    tt_patience_end(comm, &patience);
    return rc;
}

bool tt_ckpt_saving_is_written(const struct tt_ckpt_saving *s)
{
    return !s->writer || tt_ckpt_writer_is_idle(s->writer);
}

static int wait_for_files(void *arg)
{
    const struct tt_ckpt_saving *s = arg;

    if (s->writer)
        return tt_ckpt_writer_wait(s->writer);
    return s->rc < 0 ? tt_fail(s->rc, "%s", s->message) : 0;
}

static int retain(void *arg)
{
    const struct tt_ckpt_saving *s = arg;

    tt_ckpt_retain(s->store, s->step, s->keep_latest_k, s->writer);
    return 0;
}

static struct tt_ckpt_saved sum_up(const struct tt_ckpt_saving *s, double end_begin)
{
    struct tt_ckpt_saved saved = {.step = s->step, .stage_sec = s->stage_sec, .write_sec = s->write_sec};
    double now = tt_clock_sec();

    for (int64_t i = 0; i < (int64_t)TT_CKPT_GROUPS * s->store->comm->size; i++) {
        saved.bytes += s->shared.file_bytes[i];
        saved.files += s->shared.file_bytes[i] > 0;
    }
    saved.seconds = now - s->begin_sec;
    saved.blocked_sec = s->blocked_sec + (now - end_begin);
    return saved;
}

/* Whether another run has already saved a step with this number, which must be kept even if it is damaged. If the
 * step cannot be read at the moment, the save fails. */
static int is_another_runs(const struct tt_ckpt_saving *s, enum tt_aside_kind *ret_kind, bool *ret_is)
{
    char *path = tt_format("%s/%s", s->store->folder, s->name);
    struct tt_manifest manifest = {0};
    const char *run_id;
    int rc = 0;

    TT_TRY(tt_path_exists(path, ret_is));
    if (!*ret_is)
        goto out;
    if ((rc = tt_manifest_load(path, &manifest)) == TT_EDATA)
        rc = 0;
    run_id = json_string_value(json_object_get(manifest.meta, "run_id"));
    *ret_kind = manifest.meta ? TT_ASIDE_ABANDONED : TT_ASIDE_DAMAGED;
    *ret_is = !run_id || strcmp(run_id, s->store->run_id) != 0;
out:
    tt_manifest_release(&manifest);
    tt_free(path);
    return rc;
}

static int publish(void *arg)
{
    const struct tt_ckpt_saving *s = arg;
    enum tt_aside_kind kind = TT_ASIDE_ABANDONED;
    char *keep = NULL;
    bool another = false;
    int rc = 0;

    TT_TRY(tt_lock_check(&s->store->lock));
    TT_TRY(is_another_runs(s, &kind, &another));
    keep = tt_aside_name(s->step, kind, s->store->run_id);
    TT_TRY(tt_commit_publish(s->store->folder, s->temporary, s->name, another ? keep : s->aside, another, s->rank));
    tt_line_committed(s->store, s->step);
out:
    tt_free(keep);
    return rc;
}

int tt_ckpt_saving_end(struct tt_ckpt_saving *s, struct tt_ckpt_saved *ret_saved)
{
    struct tt_comm *comm = s->store->comm;
    struct tt_patience patience = tt_patience_begin(comm, "saving a checkpoint");
    double end_begin = tt_clock_sec();
    bool first = comm->rank == 0;
    int rc = 0;

    TT_TRY(tt_patience_work(comm, true, wait_for_files, s));
    TT_TRY(tt_comm_agree(comm, tt_fault("collect", s->rank)));
    TT_TRY(collect(s));
    TT_TRY(check_replicas(s));
    TT_TRY(check_finite(s));
    TT_TRY(tt_patience_work(comm, first, write_manifest, s));
    TT_TRY(tt_patience_work(comm, first, publish, s));
    TT_TRY(tt_patience_work(comm, first, retain, s));
    TT_TRY(tt_comm_agree(comm, tt_fault("end", s->rank)));
    *ret_saved = sum_up(s, end_begin);
out:
    if (rc < 0)
        abandon(s);
    free_saving(s);
    tt_patience_end(comm, &patience);
    return rc;
}

void tt_ckpt_saving_drop(struct tt_ckpt_saving *s)
{
    if (!s)
        return;
    atomic_store(&s->stop, true);
    if (s->writer && tt_ckpt_writer_wait(s->writer) < 0)
        tt_warn("the checkpoint of step %" PRId64 " is given up: %s", s->step, tt_error_message());
    free_saving(s);
}

int tt_ckpt_save(struct tt_ckpt_store *store, const struct tt_ckpt_save *save, struct tt_ckpt_saved *ret_saved)
{
    struct tt_ckpt_saving *saving = NULL;
    int rc = tt_ckpt_save_begin(store, save, &saving);

    return rc < 0 ? rc : tt_ckpt_saving_end(saving, ret_saved);
}

int64_t tt_ckpt_staging_bytes(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                              const struct tt_ckpt_policy *policy, int rank)
{
    int n_ranks = mesh->n_ranks;
    int64_t *bytes = tt_calloc((size_t)TT_CKPT_GROUPS * (size_t)n_ranks, sizeof *bytes), most = 0;
    bool *gathered = tt_calloc((size_t)TT_CKPT_GROUPS * (size_t)n_ranks, sizeof *gathered);
    struct tt_ckpt_plan plan = {0};

    tt_ckpt_plan_shard(state, mesh, policy, rank, &plan);
    for (int i = 0; i < plan.n; i++) {
        const struct tt_ckpt_piece *p = &plan.piece[i];
        int slot = (int)p->group * n_ranks + p->writer;
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_tensor(state, p->tensor);
        struct tt_box box = tt_ckpt_piece_box(p, tensor, mesh);

        bytes[slot] += tt_ckpt_box_bytes(tensor, &box);
        gathered[slot] = gathered[slot] || !tt_ckpt_piece_is_local(p, tensor, mesh);
    }
    for (int writer = 0; writer < n_ranks; writer++) {
        int64_t sum = 0;

        for (int group = 0; group < TT_CKPT_GROUPS; group++)
            if (!gathered[group * n_ranks + writer])
                sum += tt_round_up(bytes[group * n_ranks + writer], TT_SHARD_ALIGN);
        most = sum > most ? sum : most;
    }
    tt_ckpt_plan_release(&plan);
    tt_free(bytes);
    tt_free(gathered);
    return most;
}
