/* SPDX-License-Identifier: MIT
 *
 * Loads one checkpoint. The ranks agree after each phase: open and check (a failure may mean damage), accept and fit (a
 * failure means the wrong model), read and verify (a failure may mean damage).
 *
 * A resume chooses the checkpoint. Only rank 0 looks into the folder, so that ranks never act on different views of it.
 * If a step is damaged, the resume tries the next older one. If a step cannot be read at the moment, the resume fails.
 */
#include "checkpoint/load/load.h"

#include <inttypes.h>
#include <string.h>

#include "checkpoint/durable/patience.h"
#include "checkpoint/format/cast.h"
#include "checkpoint/format/state.h"
#include "checkpoint/load/share.h"
#include "checkpoint/read/source.h"
#include "checkpoint/steps/line.h"
#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/optim/optim.h"
#include "core/os/file.h"
#include "parallel/layout/placement.h"

/* An attempt to load one checkpoint. */
struct attempt {
    const struct tt_mesh *mesh;
    const struct tt_ckpt_state *state; /* NULL: examine the checkpoint without loading */
    unsigned skip;
    enum tt_load_choice reading;
    const struct tt_ckpt_request *request; /* the request's `accept` is called; may be NULL */
};

enum { PATH_BYTES = 4096, NAMES_SHOWN = 4 };

/* The number of names and a few of them, for a message: ": 'the', 'first', 'few'". */
struct name_list {
    struct tt_text text;
    int n;
};

static void add_name(struct name_list *list, const char *name)
{
    if (list->n < NAMES_SHOWN)
        tt_text_add(&list->text, "%s'%s'", list->n ? ", " : ": ", name);
    else if (list->n == NAMES_SHOWN)
        tt_text_add(&list->text, ", …");
    list->n++;
}

/* Adds a tensor with a different shape or dtype to the list. */
static void fit_tensor(const struct tt_ckpt_chunk *c, const struct tt_manifest_tensor *t, struct name_list *other)
{
    char wanted[128], found[128], text[512];
    struct tt_box a = tt_box_whole(c->ndim, c->shape), b = tt_box_whole(t->ndim, t->shape);

    if (tt_box_equal(&a, &b) && tt_cast_known(c->dtype, t->dtype))
        return;
    (void)snprintf(text, sizeof text, "%s %s%s, wanted %s%s", c->name, tt_dtype_name(t->dtype),
                   tt_box_text(found, sizeof found, &b), tt_dtype_name(c->dtype),
                   tt_box_text(wanted, sizeof wanted, &a));
    add_name(other, text);
}

/* --- which optimizer --- */

static bool ends_alike(const char *a, const char *b)
{
    return strcmp(strrchr(a, '.'), strrchr(b, '.')) == 0;
}

static bool wants_kind(const struct tt_ckpt_state *state, const char *moment)
{
    for (int i = 0; i < state->n_optim; i++)
        if (ends_alike(state->optim[i].name, moment))
            return true;
    return false;
}

static bool has_kind(const struct tt_manifest *manifest, const char *moment)
{
    for (int i = 0; i < manifest->n_tensors; i++)
        if (manifest->tensor[i].group == TT_CKPT_OPTIM && strrchr(manifest->tensor[i].name, '.') &&
            ends_alike(manifest->tensor[i].name, moment))
            return true;
    return false;
}

/*
 * Finds another moment of the parameter to which `wanted` belongs, if the checkpoint has no moments of that kind for
 * any parameter, or the run does not use the kind of the found moment; otherwise NULL.
 */
static const char *other_moment(const struct tt_manifest *manifest, const struct tt_ckpt_state *state,
                                const char *wanted)
{
    size_t n = (size_t)(strrchr(wanted, '.') - wanted) + 1;

    for (int i = 0; i < manifest->n_tensors; i++) {
        const char *name = manifest->tensor[i].name;

        if (manifest->tensor[i].group == TT_CKPT_OPTIM && strncmp(name, wanted, n) == 0 && !strchr(name + n, '.') &&
            tt_optim_has_moment(name) && (!wants_kind(state, name) || !has_kind(manifest, wanted)))
            return name;
    }
    return NULL;
}

static const char *listed(const struct name_list *list)
{
    return list->n ? list->text.text : "";
}

static int check_optimizer(const struct tt_source *source, const struct tt_ckpt_state *state)
{
    for (int i = 0; i < state->n_optim; i++) {
        const char *wanted = state->optim[i].name;
        const char *found = tt_optim_has_moment(wanted) ? other_moment(&source->manifest, state, wanted) : NULL;

        if (found)
            return tt_fail(TT_EDATA,
                           "checkpoint '%s' was saved with another optimizer: it contains '%s', not '%s'\n"
                           "help: set %s to its old value, or %s: [optimizer] to begin with empty moments",
                           source->path, found, wanted, TT_KEY_NAME(optimizer.name),
                           TT_KEY_NAME(checkpoint.exclude_from_loading));
    }
    return 0;
}

/* The chunks of a group, and their number. */
static struct tt_ckpt_chunk *group_of(const struct tt_ckpt_state *state, enum tt_ckpt_group group, int *ret_n)
{
    *ret_n = group == TT_CKPT_MODEL ? state->n_model : state->n_optim;
    return group == TT_CKPT_MODEL ? state->model : state->optim;
}

/* Whether a checkpoint lacks all optional tensors of a group. */
static bool lacks_optional(const struct tt_source *source, const struct tt_ckpt_state *state, enum tt_ckpt_group group)
{
    int n = 0;
    const struct tt_ckpt_chunk *c = group_of(state, group, &n);

    for (int i = 0; i < n; i++)
        if (c[i].optional && tt_manifest_find(&source->manifest, group, c[i].name))
            return false;
    return true;
}

static bool has_averages(const struct tt_ckpt_state *state)
{
    for (int i = 0; i < state->n_optim; i++)
        if (tt_ckpt_is_average(state->optim[i].name))
            return true;
    return false;
}

/* Whether the names are numbers, as in PyTorch's own optimizer.state_dict(). */
static bool has_numbers(const struct tt_source *source)
{
    for (int i = 0; i < source->manifest.n_tensors; i++) {
        const char *name = source->manifest.tensor[i].name;

        if (source->manifest.tensor[i].group == TT_CKPT_OPTIM && tt_text_begins(name, "state."))
            return name[6 + strspn(name + 6, "0123456789")] == '.';
    }
    return false;
}

/* The numbers of experts in a layer of the model and of the checkpoint; false if they are equal. */
static bool experts_differ(const struct tt_source *source, const struct tt_ckpt_state *state, int64_t *ret_wanted,
                           int64_t *ret_found)
{
    for (int i = 0; i < state->n_model; i++) {
        const struct tt_ckpt_chunk *c = &state->model[i];
        const struct tt_manifest_tensor *t =
            strstr(c->name, ".moe.experts.") ? tt_manifest_find(&source->manifest, TT_CKPT_MODEL, c->name) : NULL;

        if (!t || t->ndim != 3 || t->shape[0] == c->shape[0])
            continue;
        *ret_wanted = c->shape[0];
        *ret_found = t->shape[0];
        return true;
    }
    return false;
}

/*
 * Checks that the checkpoint has the tensors of the model: all of them, no others, with the same shapes. A checkpoint
 * that a user names may lack the optional tensors of the model's group. Averages may be missing; averages that the
 * model does not need are ignored.
 */
static int check_fit(const struct tt_source *source, const struct tt_ckpt_state *state, unsigned skip, bool of_user)
{
    const bool without_optional[TT_CKPT_GROUPS] = {[TT_CKPT_MODEL] =
                                                       of_user && lacks_optional(source, state, TT_CKPT_MODEL),
                                                   [TT_CKPT_OPTIM] = lacks_optional(source, state, TT_CKPT_OPTIM)};
    struct name_list missing = {{0}, 0}, extra = {{0}, 0}, other = {{0}, 0};
    int64_t wanted, found;
    int rc = skip & TT_SKIP_OPTIMIZER ? 0 : check_optimizer(source, state);

    if (rc < 0)
        return rc;
    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        int n = 0, matched = 0;
        const struct tt_ckpt_chunk *c = group_of(state, (enum tt_ckpt_group)group, &n);

        if (group == TT_CKPT_OPTIM && (skip & TT_SKIP_OPTIMIZER))
            continue;
        for (int i = 0; i < n; i++) {
            struct tt_manifest_tensor *t = tt_manifest_find(&source->manifest, (enum tt_ckpt_group)group, c[i].name);

            if (t)
                fit_tensor(&c[i], t, &other);
            else if (!c[i].optional || !without_optional[group])
                add_name(&missing, c[i].name);
            matched += t != NULL;
        }
        if (matched == tt_manifest_group_size(&source->manifest, (enum tt_ckpt_group)group, NULL))
            continue;
        for (int i = 0; i < source->manifest.n_tensors; i++) {
            const struct tt_manifest_tensor *t = &source->manifest.tensor[i];
            bool known = (int)t->group != group || (group == TT_CKPT_OPTIM && tt_ckpt_is_average(t->name));

            for (int k = 0; k < n && !known; k++)
                known = strcmp(c[k].name, t->name) == 0;
            if (!known)
                add_name(&extra, t->name);
        }
    }
    if (missing.n || extra.n || other.n)
        rc = tt_fail(TT_EDATA,
                     "checkpoint '%s' does not fit this model: %d tensors missing%s, %d too many%s, %d of another "
                     "shape or dtype%s",
                     source->path, missing.n, listed(&missing), extra.n, listed(&extra), other.n, listed(&other));
    if (rc < 0 && tt_manifest_find(&source->manifest, TT_CKPT_MODEL, "model.embed_tokens.weight"))
        rc = tt_error_add_hint(rc, "its tensors have Hugging Face names; set %s=true",
                               TT_KEY_NAME(checkpoint.initial_load_in_hf));
    else if (rc < 0 && experts_differ(source, state, &wanted, &found))
        rc = tt_error_add_hint(rc,
                               "its layers have %lld experts, but the model's have %lld; set %s and %s to their "
                               "old values",
                               (long long)found, (long long)wanted, TT_KEY_NAME(model.flavor),
                               TT_KEY_NAME(model.hf_assets_path));
    else if (rc < 0 && (strstr(listed(&missing), ".moe.expert_bias") || strstr(listed(&extra), ".moe.expert_bias")))
        rc = tt_error_add_hint(rc, "set %s to its old value: a run keeps the biases of its experts",
                               TT_KEY_NAME(training.load_balance_coeff));
    else if (rc < 0 && missing.n && !(skip & TT_SKIP_OPTIMIZER) &&
             tt_manifest_group_size(&source->manifest, TT_CKPT_OPTIM, NULL) == 0)
        rc = tt_error_add_hint(rc, "it has no optimizer state; set %s: [optimizer]",
                               TT_KEY_NAME(checkpoint.exclude_from_loading));
    else if (rc < 0 && strstr(listed(&other), ".absmax"))
        rc = tt_error_add_hint(
            rc,
            "the blocks of its 8-bit moments begin elsewhere, because other ranks shared the layers; "
            "set %s to the degree of its run, or %s: [optimizer]",
            TT_KEY_NAME(parallelism.exact_tensor_parallel_degree), TT_KEY_NAME(checkpoint.exclude_from_loading));
    else if (rc < 0 && !(skip & TT_SKIP_OPTIMIZER) && has_numbers(source))
        rc = tt_error_add_hint(rc,
                               "its optimizer numbers the parameters, so nothing says which is which; save what "
                               "torch.distributed.checkpoint.state_dict.get_state_dict returns, or set %s: [optimizer]",
                               TT_KEY_NAME(checkpoint.exclude_from_loading));
    tt_text_release(&missing.text);
    tt_text_release(&extra.text);
    tt_text_release(&other.text);
    return rc;
}

struct copy {
    struct tt_source *source;
    struct tt_manifest_tensor *head, *embedding;
};

static int compare_copy(void *arg)
{
    const struct copy *c = arg;
    struct tt_box a = tt_box_whole(c->head->ndim, c->head->shape);
    struct tt_box b = tt_box_whole(c->embedding->ndim, c->embedding->shape);
    bool equal = false;
    int rc = 0;

    if (tt_box_equal(&a, &b) && tt_cast_known(TT_F32, c->head->dtype) && tt_cast_known(TT_F32, c->embedding->dtype))
        TT_TRY(tt_source_equal(c->source, c->head, c->embedding, &equal));
    if (!equal)
        rc = tt_fail(TT_EDATA,
                     "'%s': the output of the model is tied to its embedding, but the checkpoint has another matrix as "
                     "'%s'\nhelp: to use both, set %s: false",
                     c->source->path, c->head->name, TT_KEY_NAME(model.tie_embeddings));
out:
    return rc;
}

/* Drops the copy of the embedding that PyTorch saves for a tied weight; titan stores it once. Collective; local if comm
 * is NULL. TT_EDATA if the tensor is not a copy. */
static int drop_copy(struct tt_comm *comm, struct tt_source *source, const struct tt_ckpt_state *state)
{
    struct copy copy = {source, tt_manifest_find(&source->manifest, TT_CKPT_MODEL, "output.weight"),
                        tt_manifest_find(&source->manifest, TT_CKPT_MODEL, "tok_embeddings.weight")};
    int rc = 0;

    for (int i = 0; i < state->n_model; i++)
        if (strcmp(state->model[i].name, "output.weight") == 0)
            return 0;
    if (source->kind != TT_PATH_DCP || !copy.head || !copy.embedding)
        return 0;
    TT_TRY(comm ? tt_patience_work(comm, comm->rank == 0, compare_copy, &copy) : compare_copy(&copy));
    tt_manifest_remove(&source->manifest, copy.head);
out:
    return rc;
}

/* The part that contains the first or the last element of a box, which must not be empty. */
static int part_at(const struct tt_mesh *mesh, const struct tt_ckpt_chunk *c, const struct tt_box *box, bool last)
{
    int64_t index[TT_BOX_DIMS];

    for (int d = 0; d < box->ndim; d++)
        index[d] = box->offset[d] + (last ? box->shape[d] - 1 : 0);
    return tt_placement_find(mesh, &c->placement, c->ndim, c->shape, index);
}

/* The rank that verifies a chunk: the ranks of the first `copies` that hold its elements take turns. */
static int owner_of(const struct tt_mesh *mesh, const struct tt_ckpt_chunk *c, const struct tt_manifest_chunk *chunk,
                    int copies, int turn)
{
    bool empty = tt_box_volume(&chunk->box) == 0;
    int from = empty ? 0 : part_at(mesh, c, &chunk->box, false), to = empty ? 0 : part_at(mesh, c, &chunk->box, true);

    return tt_placement_rank(mesh, &c->placement, from + turn / copies % (to - from + 1), turn % copies);
}

/* Whether memory holds a tensor as it is stored. */
static bool is_plain(const struct tt_ckpt_chunk *c, const struct tt_manifest_tensor *t)
{
    return c->dtype == t->dtype && !c->packing;
}

/* Reads the overlap of a chunk with this rank's part. If this is the whole chunk, its checksum is computed from the
 * same bytes. Otherwise the chunk's owner reads the whole chunk once more. */
static int load_chunk(struct tt_source *source, const struct tt_manifest_tensor *t,
                      const struct tt_manifest_chunk *chunk, const struct tt_ckpt_chunk *c, bool owner)
{
    struct tt_box common;
    bool touches = tt_box_volume(&c->part) > 0 && tt_box_intersect(&c->part, &chunk->box, &common);
    int64_t size = chunk->end - chunk->begin, item = (int64_t)tt_dtype_size(t->dtype);
    int rc = 0;

    if (touches && is_plain(c, t))
        TT_TRY(tt_source_read_chunk(source, chunk, &c->part, (size_t)item, c->data));
    if (!owner || !chunk->has_crc)
        goto out;
    if (touches && !chunk->order && is_plain(c, t) && tt_box_equal(&common, &chunk->box) &&
        tt_box_run(&common, &c->part) == tt_box_volume(&common)) {
        int64_t at = tt_box_position(&common, 0, &c->part) * item;
        uint32_t crc = tt_source_checksum(source, 0, (const char *)c->data + at, (size_t)size);

        if (crc != chunk->crc)
            rc = tt_source_fail_crc(source, t, chunk, crc);
    } else {
        rc = tt_source_verify_chunk(source, t, chunk);
    }
out:
    return rc;
}

/* Whether a rank reads its part of a tensor and takes part in verifying it. If the ranks of the first copy read for
 * all, the others do not. A rank of another pipeline stage with a copy of the tensor reads it, because no other rank
 * sends it. */
static bool reads_tensor(const struct attempt *attempt, const struct tt_ckpt_chunk *c, int rank)
{
    if (!tt_placement_has(attempt->mesh, &c->placement, rank))
        return tt_box_volume(&c->part) > 0;
    return attempt->reading == TT_LOAD_ALL || tt_placement_copy(attempt->mesh, &c->placement, rank) == 0;
}

/* Reads this rank's part of one tensor. */
static int read_tensor(struct tt_source *source, const struct attempt *attempt, int rank,
                       const struct tt_manifest_tensor *t, const struct tt_ckpt_chunk *c, int turn)
{
    const struct tt_mesh *mesh = attempt->mesh;
    int copies = attempt->reading == TT_LOAD_ONCE ? 1 : tt_placement_copies(mesh, &c->placement), rc = 0;

    if (!reads_tensor(attempt, c, rank))
        return 0;
    for (int k = 0; k < t->n_chunks; k++)
        TT_TRY(load_chunk(source, t, &t->chunk[k], c, owner_of(mesh, c, &t->chunk[k], copies, turn + k) == rank));
    if (is_plain(c, t) || tt_box_volume(&c->part) == 0)
        return 0;
    rc = c->packing ? tt_source_read_packed(source, t, c->packing, &c->part, c->data)
                    : tt_source_read(source, t, &c->part, c->dtype, c->data);
out:
    return rc;
}

/* The functions that read files, for tt_patience_work. */

struct reading {
    struct tt_source *source;
    const struct attempt *attempt;
    int rank;
};

static int read_all(void *arg)
{
    const struct reading *r = arg;
    int rc = 0;

    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        int n = 0;
        const struct tt_ckpt_chunk *c = group_of(r->attempt->state, (enum tt_ckpt_group)group, &n);

        if (group == TT_CKPT_OPTIM && (r->attempt->skip & TT_SKIP_OPTIMIZER))
            continue;
        for (int i = 0; i < n; i++) {
            const struct tt_manifest_tensor *t =
                tt_manifest_find(&r->source->manifest, (enum tt_ckpt_group)group, c[i].name);

            if (t) /* otherwise the tensor is optional */
                TT_TRY(read_tensor(r->source, r->attempt, r->rank, t, &c[i], i));
        }
    }
out:
    return rc;
}

struct opening {
    const char *path;
    enum tt_path_kind kind;
    struct tt_source **source;
};

static int open_source(void *arg)
{
    const struct opening *o = arg;

    return tt_source_open(o->path, o->kind, o->source);
}

/* tt_source_open on all ranks (collective): rank 0 reads the manifest or the headers and checks the files; the other
 * ranks receive the manifest. */
static int open_shared(struct tt_comm *comm, const char *path, enum tt_path_kind kind, struct tt_source **ret_source)
{
    struct tt_source *source = NULL;
    int64_t is_folder = 0;
    int rc = 0;

    TT_TRY(tt_patience_work(comm, comm->rank == 0, open_source, &(struct opening){path, kind, &source}));
    if (comm->rank == 0) {
        is_folder = source->is_folder;
    } else {
        source = tt_calloc(1, sizeof *source);
        source->path = tt_strdup(path);
        source->kind = kind;
    }
    TT_TRY(tt_comm_broadcast(comm, &is_folder, sizeof is_folder, 0));
    TT_TRY(tt_manifest_share(comm, &source->manifest));
    if (comm->rank != 0) { /* only rank 0 has open files so far */
        source->is_folder = is_folder != 0;
        source->open = tt_calloc((size_t)source->manifest.n_files, sizeof *source->open);
    }
    *ret_source = source;
    source = NULL;
out:
    tt_source_free(source);
    return rc;
}

/* Loads one checkpoint (collective). After a failure, ret_damaged says whether the checkpoint is damaged, so that an
 * older one may be tried. Sets attempt->skip to what was left out. */
static int load_one(struct tt_comm *comm, const char *path, enum tt_path_kind kind, struct attempt *attempt,
                    json_t **ret_meta, bool *ret_damaged)
{
    const struct tt_ckpt_request *request = attempt->request;
    struct tt_source *source = NULL;
    bool reads = false; /* otherwise this rank waits for rows that others pass on */
    int rc = 0;

    *ret_damaged = true;
    TT_TRY(open_shared(comm, path, kind, &source));
    if (kind == TT_PATH_PLAIN)
        attempt->skip |= TT_SKIP_OPTIMIZER;
    *ret_damaged = false;
    if (attempt->skip & TT_SKIP_AVERAGED)
        TT_TRY(tt_comm_agree(comm, tt_manifest_use_averages(&source->manifest, source->path)));
    TT_TRY(drop_copy(comm, source, attempt->state));
    if (request && request->accept)
        rc = request->accept(request->arg, &source->manifest, &attempt->skip);
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_comm_agree(comm, tt_source_check_forms(source, !(attempt->skip & TT_SKIP_OPTIMIZER))));
    TT_TRY(tt_comm_agree(comm, check_fit(source, attempt->state, attempt->skip, !request)));
    if (has_averages(attempt->state) && lacks_optional(source, attempt->state, TT_CKPT_OPTIM))
        attempt->skip |= TT_SKIP_AVERAGES;
    *ret_damaged = true;
    for (int i = 0; i < attempt->state->n_model; i++)
        reads = reads || reads_tensor(attempt, &attempt->state->model[i], comm->rank);
    TT_TRY(tt_patience_work(comm, reads, read_all, &(struct reading){source, attempt, comm->rank}));
    *ret_damaged = false;
    if (attempt->reading == TT_LOAD_ONCE)
        TT_TRY(tt_parts_share(comm, attempt->mesh, attempt->state, (attempt->skip & TT_SKIP_OPTIMIZER) != 0));
    *ret_meta = json_incref(source->manifest.meta);
out:
    tt_source_free(source);
    *ret_damaged = *ret_damaged && rc == TT_EDATA;
    return rc;
}

/* Loads the checkpoint to which the path leads now. */
static int find_and_load(struct tt_comm *comm, const struct tt_mesh *mesh, const char *path,
                         enum tt_load_choice reading, unsigned *skip, const struct tt_ckpt_state *state,
                         json_t **ret_meta)
{
    struct tt_step_place place = {0};
    enum tt_path_kind kind = TT_PATH_PLAIN;
    char *found = NULL, shared[PATH_BYTES] = {0};
    struct attempt attempt = {.mesh = mesh, .state = state, .skip = *skip, .reading = reading};
    int64_t decision = 0;
    bool damaged;
    int rc = 0;

    *ret_meta = NULL;
    if (comm->rank == 0 && (rc = tt_path_resolve(path, true, &kind, &found, NULL)) == 0) {
        if (strlen(found) >= sizeof shared)
            rc = tt_fail(TT_EUSAGE, "the path '%s' is too long", found);
        else
            memcpy(shared, found, strlen(found));
        decision = (int64_t)kind;
        rc = rc == 0 ? tt_step_place(found, &place) : rc;
    }
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_comm_broadcast(comm, shared, sizeof shared, 0));
    TT_TRY(tt_comm_broadcast(comm, &decision, sizeof decision, 0));
    rc = load_one(comm, shared, (enum tt_path_kind)decision, &attempt, ret_meta, &damaged);
    TT_TRY(tt_comm_agree(comm, comm->rank == 0 ? tt_step_explain(rc, found, &place) : rc));
    *skip = attempt.skip;
out:
    tt_free(found);
    return rc;
}

int tt_ckpt_load(struct tt_comm *comm, const struct tt_mesh *mesh, const char *path, enum tt_load_choice reading,
                 unsigned *skip, const struct tt_ckpt_state *state, json_t **ret_meta)
{
    struct tt_patience patience = tt_patience_begin(comm, "loading a checkpoint");
    int64_t again;
    int tries = 0, rc, more;

    do {
        rc = find_and_load(comm, mesh, path, reading, skip, state, ret_meta);
        again = comm->rank == 0 && tt_step_try_again(rc, path, &tries);
        more = rc == TT_EREMOVED ? tt_comm_broadcast(comm, &again, sizeof again, 0) : 0;
    } while (rc == TT_EREMOVED && more == 0 && again);
    tt_patience_end(comm, &patience);
    return more < 0 ? more : rc;
}

static int examine(const char *path, const struct tt_ckpt_state *state, unsigned skip, json_t **ret_meta)
{
    struct tt_source *source = NULL;
    int rc = 0;

    *ret_meta = NULL;
    TT_TRY(tt_source_find(path, &source));
    if (source->kind == TT_PATH_PLAIN)
        skip |= TT_SKIP_OPTIMIZER;
    TT_TRY(drop_copy(NULL, source, state));
    TT_TRY(tt_source_check_forms(source, !(skip & TT_SKIP_OPTIMIZER)));
    TT_TRY(check_fit(source, state, skip, true));
    *ret_meta = json_incref(source->manifest.meta);
out:
    rc = tt_source_explain(rc, source);
    tt_source_free(source);
    return rc;
}

int tt_ckpt_examine(const char *path, const struct tt_ckpt_state *state, unsigned skip, json_t **ret_meta)
{
    int tries = 0, rc;

    do
        rc = examine(path, state, skip, ret_meta);
    while (tt_step_try_again(rc, path, &tries));
    return rc;
}

/* --- which step a run continues from --- */

/* What rank 0 sees in the folder. */
struct view {
    const char *folder;
    int64_t *steps; /* newest first */
    int n;
    bool aside; /* the folder contains steps that were set aside */
};

/* Replaces the help in the error message. */
static int fail_unreadable(int code, const char *folder, int64_t step)
{
    tt_error_drop_hint();
    return tt_fail(code,
                   "checkpoint step-%" PRId64 " in '%s' cannot be read at the moment; nothing was changed: %s\n"
                   "help: start the run again when it can be read, or give up the step "
                   "with titan ckpt rollback",
                   step, folder, tt_error_message());
}

/* If one folder held titan's steps and PyTorch's, other programs would confuse them, and torchtitan's run would resume
 * from a step of another run. */
static int check_origin(const struct view *view)
{
    enum tt_path_kind kind;
    int rc = 0;

    for (int i = 0; i < view->n && rc == 0; i++) {
        char *path = tt_step_path(view->folder, view->steps[i]);

        rc = tt_step_look(path, false, &kind, NULL);
        if (rc == TT_EIO)
            rc = fail_unreadable(rc, view->folder, view->steps[i]);
        else if (rc == 0 && kind == TT_PATH_DCP)
            rc = tt_fail(TT_EUSAGE,
                         "'%s' is a PyTorch checkpoint, and no titan run continues in its folder\nhelp: choose "
                         "another --%s; a new run can begin from a PyTorch checkpoint",
                         path, TT_KEY_NAME(job.dump_folder));
        tt_free(path);
    }
    return rc;
}

static int look_around(void *arg)
{
    struct view *view = arg;
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_step_list(view->folder, &view->steps, &view->n));
    TT_TRY(check_origin(view));
    TT_TRY(tt_folder_list_found(view->folder, &names, &n));
    for (int i = 0; i < n; i++)
        view->aside = view->aside || (tt_step_number(names[i]) < 0 && tt_step_number_aside(names[i]) >= 0);
    for (int i = 0; i < view->n / 2; i++) {
        int64_t step = view->steps[i];

        view->steps[i] = view->steps[view->n - 1 - i];
        view->steps[view->n - 1 - i] = step;
    }
out:
    tt_names_free(names, n);
    return rc;
}

static int share_view(struct tt_comm *comm, struct view *view)
{
    int64_t words[2] = {0};
    int rc = 0;

    TT_TRY(tt_patience_work(comm, comm->rank == 0, look_around, view));
    words[0] = view->n;
    words[1] = view->aside;
    TT_TRY(tt_comm_broadcast(comm, words, sizeof words, 0));
    view->n = (int)words[0];
    view->aside = words[1] != 0;
    if (comm->rank != 0)
        view->steps = tt_calloc((size_t)view->n, sizeof *view->steps);
    if (view->n)
        TT_TRY(tt_comm_broadcast(comm, view->steps, (size_t)view->n * sizeof *view->steps, 0));
out:
    return rc;
}

static int fail_no_step(int64_t load_step, const struct view *view)
{
    struct tt_text text = {0};
    int rc;

    for (int i = 0; i < view->n && i < 10; i++)
        tt_text_add(&text, "%s%" PRId64, i ? ", " : "", view->steps[i]);
    rc =
        tt_fail(TT_EDATA, "no checkpoint of step %" PRId64 " in '%s'\nhelp: it holds %s%s%s", load_step, view->folder,
                view->n ? "steps " : "no checkpoint; a new run begins without a step to load", view->n ? text.text : "",
                view->aside ? "; titan ckpt list shows the steps that were set aside, which can be renamed back" : "");
    tt_text_release(&text);
    return rc;
}

/* A folder without steps has nothing to resume from. But if its steps were set aside, the run must not start from
 * random weights. */
static int check_empty(int64_t load_step, const struct view *view)
{
    if (load_step >= 0)
        return fail_no_step(load_step, view);
    if (view->aside)
        return tt_fail(
            TT_EDATA,
            "all checkpoints in '%s' were set aside, so the run cannot continue\nhelp: titan ckpt list shows them; "
            "rename the one to continue from to step-N, or choose another --%s",
            view->folder, TT_KEY_NAME(job.dump_folder));
    return 0;
}

struct checking {
    const char *path;
    struct tt_manifest *manifest;
};

static int check_step(void *arg)
{
    const struct checking *c = arg;

    return tt_step_check(c->path, c->manifest);
}

/* Loads a step or, without a state, checks it on rank 0, which then has its manifest. */
static int try_step(struct tt_comm *comm, const char *folder, int64_t step, struct attempt *attempt,
                    struct tt_manifest *manifest, json_t **ret_meta, bool *ret_damaged)
{
    char *path = tt_step_path(folder, step);
    int rc = 0;

    if (attempt->state) {
        rc = load_one(comm, path, TT_PATH_STEP, attempt, ret_meta, ret_damaged);
    } else {
        rc = tt_patience_work(comm, comm->rank == 0, check_step, &(struct checking){path, manifest});
        *ret_damaged = rc == TT_EDATA;
    }
    if (rc == TT_EIO)
        rc = fail_unreadable(rc, folder, step);
    tt_free(path);
    return rc;
}

/* Whether the line of the step began with this request, as rank 0 sees it. ret_damaged: whether the step has become
 * unreadable. */
static int is_applied(struct tt_comm *comm, const char *folder, int64_t step, const struct tt_ckpt_request *request,
                      bool *ret_applied, bool *ret_damaged)
{
    struct tt_manifest manifest = {0};
    int64_t applied = 0;
    int rc = 0;

    TT_TRY(try_step(comm, folder, step, &(struct attempt){0}, &manifest, NULL, ret_damaged));
    applied = comm->rank == 0 && tt_line_is_begun_with(manifest.meta, &request->line);
    TT_TRY(tt_comm_broadcast(comm, &applied, sizeof applied, 0));
    *ret_applied = applied != 0;
out:
    tt_manifest_release(&manifest);
    return rc;
}

/* Tries `step`: the newest step that is not known to be damaged, or the step that the request names. */
static int try_request(struct tt_comm *comm, const struct view *view, int64_t step,
                       const struct tt_ckpt_request *request, struct attempt *attempt, struct tt_ckpt_found *found,
                       bool *ret_damaged)
{
    bool asks = request->line.load_step >= 0 || request->line.skip, is_there = false;
    struct tt_manifest manifest = {0};
    int rc = 0;

    *ret_damaged = false;
    found->applied = false;
    if (asks && !request->as_asked)
        TT_TRY(is_applied(comm, view->folder, step, request, &found->applied, ret_damaged));
    found->step = !found->applied && request->line.load_step >= 0 ? request->line.load_step : step;
    attempt->skip = found->applied ? 0 : request->line.skip;
    for (int i = 0; i < view->n; i++)
        is_there = is_there || view->steps[i] == found->step;
    TT_TRY(is_there ? 0 : fail_no_step(found->step, view));
    rc = try_step(comm, view->folder, found->step, attempt, &manifest, &found->meta, ret_damaged);
    if (rc == 0 && !attempt->state && (rc = tt_manifest_share(comm, &manifest)) == 0)
        found->meta = json_incref(manifest.meta);
    *ret_damaged = *ret_damaged && found->step == step && (found->applied || request->line.load_step < 0);
    found->skip = attempt->skip;
out:
    tt_manifest_release(&manifest);
    return rc;
}

static int find_and_try(struct tt_comm *comm, const char *folder, const struct tt_ckpt_request *request,
                        struct attempt *attempt, struct tt_ckpt_found *ret_found)
{
    struct tt_patience patience = tt_patience_begin(comm, "loading a checkpoint");
    struct tt_ckpt_found found = {.step = -1};
    struct view view = {.folder = folder};
    bool damaged = false;
    int cap = 0, rc = 0;

    TT_TRY(share_view(comm, &view));
    if (view.n == 0)
        rc = check_empty(request->line.load_step, &view);
    for (int i = 0; i < view.n; i++) {
        rc = try_request(comm, &view, view.steps[i], request, attempt, &found, &damaged);
        if (rc == 0 || !damaged)
            break;
        if (comm->rank == 0)
            tt_warn("checkpoint step-%" PRId64 " is damaged, so it is skipped: %s", view.steps[i], tt_error_message());
        TT_PUSH(found.damaged, found.n_damaged, cap) = view.steps[i];
    }
    if (rc < 0 && damaged)
        rc = tt_fail(rc,
                     "none of the %d checkpoints in '%s' is intact; the oldest: %s\nhelp: bring the files back from a "
                     "copy, or begin again in another folder",
                     view.n, folder, tt_error_message());
    TT_TRY(rc);
    *ret_found = found;
    found = (struct tt_ckpt_found){0};
out:
    tt_ckpt_found_release(&found);
    tt_free(view.steps);
    tt_patience_end(comm, &patience);
    return rc;
}

void tt_ckpt_found_release(struct tt_ckpt_found *found)
{
    json_decref(found->meta);
    tt_free(found->damaged);
    *found = (struct tt_ckpt_found){0};
}

int tt_ckpt_peek(struct tt_comm *comm, const char *folder, const struct tt_ckpt_request *request,
                 struct tt_ckpt_found *ret_found)
{
    struct attempt look = {0};

    return find_and_try(comm, folder, request, &look, ret_found);
}

int tt_ckpt_resume(struct tt_comm *comm, const struct tt_mesh *mesh, const char *folder,
                   const struct tt_ckpt_request *request, const struct tt_ckpt_state *state,
                   struct tt_ckpt_found *ret_found)
{
    struct attempt load = {.mesh = mesh, .state = state, .reading = request->reading, .request = request};

    return find_and_try(comm, folder, request, &load, ret_found);
}
