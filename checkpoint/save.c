/* SPDX-License-Identifier: MIT
 *
 * Saving a checkpoint. The phases, each ended by an agreement of all ranks:
 *   check    ranks list the same tensors and hence made the same plan
 *   prepare  rank 0: room on the disk, temporary folder
 *   write    every writer its shard files (no communication inside)
 *   collect  checksums and digests, summed over the ranks
 *   finish   rank 0: assets, manifest; all durable under the temporary name
 *   publish  rank 0: one rename
 * A failure in any phase ends the save on all ranks, and rank 0 removes the temporary folder.
 */
#include "checkpoint/save.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/commit.h"
#include "checkpoint/digest.h"
#include "checkpoint/fault.h"
#include "checkpoint/manifest.h"
#include "checkpoint/patience.h"
#include "checkpoint/plan.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/steps.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/mem.h"

/* Numbers that ranks put together: every word is set by one rank and zero elsewhere, or is a sum (digests). */
struct shared {
    int64_t *words;
    int64_t n;
    int64_t *crc;        /* of piece i, two to a word: the low half for even i */
    int64_t *digest;     /* of tensor i of the model, then of the optimizer */
    int64_t *file_bytes; /* of group * ranks + rank */
    int64_t *file_crc;
};

struct job {
    struct tt_ckpt_store *store;
    const struct tt_ckpt_save *save;
    int64_t step;
    int rank;
    struct tt_ckpt_plan plan;
    int *piece_of_file, *file_begin; /* pieces by file (group * ranks + rank): piece_of_file[file_begin[f] ..] */
    struct shared shared;
    char *name, *temporary, *aside; /* step-N and its names on the way in and out */
    char *folder;                   /* the temporary folder's path */
};

static const struct tt_ckpt_chunk *chunk_of(const struct job *job, const struct tt_ckpt_piece *piece)
{
    int n = 0;

    return &tt_ckpt_state_group(job->save->state, piece->group, &n)[piece->tensor];
}

static int check_chunks(const struct job *job)
{
    const struct tt_ckpt_layout *layout = &job->store->layout;

    for (int group = 0; group < TT_GROUPS; group++) {
        int n = 0;
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_group(job->save->state, (enum tt_ckpt_group)group, &n);

        for (int i = 0; i < n; i++) {
            const struct tt_ckpt_chunk *c = &tensor[i];
            int64_t begin, count, volume;

            if (c->ndim < 0 || c->ndim > TT_CKPT_DIMS || !tt_box_checked_volume(c->shape, c->ndim, &volume) ||
                !tt_dtype_size(c->dtype))
                return tt_fail(TT_EINTERNAL, "tensor '%s' cannot be saved: impossible shape or dtype", c->name);
            tt_ckpt_rows(tt_ckpt_row_number(c), layout->dp_shard, layout->shard, &begin, &count);
            if (count != c->row_count || (count && begin != c->row_begin) || (count && !c->data))
                return tt_fail(TT_EINTERNAL,
                               "tensor '%s': rank %d holds rows %" PRId64 "+%" PRId64 ", the layout says %" PRId64
                               "+%" PRId64,
                               c->name, job->rank, c->row_begin, c->row_count, begin, count);
        }
    }
    return 0;
}

/* What this rank can say alone; makes the plan. */
static int check_local(struct job *job)
{
    static const char *const reserved[] = {"titan_ckpt", "files", "tensors", "self_crc32c"};
    const struct tt_ckpt_policy *policy = NULL;
    int rc = 0;

    TT_TRY(tt_json_get_int(job->save->meta, "step", "checkpoint meta", &job->step));
    for (int i = 0; i < 4; i++)
        if (json_object_get(job->save->meta, reserved[i]))
            return tt_fail(TT_EINTERNAL, "checkpoint meta may not have the key '%s'", reserved[i]);
    TT_TRY(tt_ckpt_policy_find(job->save->policy, &policy));
    TT_TRY(check_chunks(job));
    tt_ckpt_plan_make(job->save->state, &job->store->layout, policy, &job->plan);
    rc = tt_fault("begin", job->rank);
out:
    return rc;
}

static int check(struct job *job)
{
    struct tt_comm *comm = job->store->comm;
    uint64_t mine, first;
    int rc = 0;

    TT_TRY(tt_comm_agree(comm, check_local(job)));
    first = mine = tt_mix64(tt_ckpt_plan_hash(job->save->state, &job->plan) ^ (uint64_t)job->step);
    TT_TRY(tt_comm_broadcast(comm, &first, sizeof first, 0));
    if (first != mine)
        rc = tt_fail(TT_EINTERNAL, "rank %d would save other tensors or another step than rank 0", job->rank);
    rc = tt_comm_agree(comm, rc);
out:
    return rc;
}

static int64_t file_slot(const struct job *job, enum tt_ckpt_group group, int writer)
{
    return (int64_t)group * job->store->comm->size + writer;
}

/* The pieces of each file (a counting sort, since a large job has millions of pieces and thousands of files). */
static void index_files(struct job *job)
{
    int64_t n_files = (int64_t)TT_GROUPS * job->store->comm->size;
    int *next = tt_calloc((size_t)n_files + 1, sizeof *next);

    job->file_begin = tt_calloc((size_t)n_files + 1, sizeof *job->file_begin);
    job->piece_of_file = tt_calloc((size_t)job->plan.n, sizeof *job->piece_of_file);
    for (int i = 0; i < job->plan.n; i++)
        job->file_begin[file_slot(job, job->plan.piece[i].group, job->plan.piece[i].writer) + 1]++;
    for (int64_t f = 0; f < n_files; f++)
        next[f + 1] = job->file_begin[f + 1] += job->file_begin[f];
    for (int i = 0; i < job->plan.n; i++)
        job->piece_of_file[next[file_slot(job, job->plan.piece[i].group, job->plan.piece[i].writer)]++] = i;
    tt_free(next);
}

static void share_space(struct job *job)
{
    int64_t n_crc = (job->plan.n + 1) / 2, n_digest = (int64_t)job->save->state->n_model + job->save->state->n_optim;
    int64_t n_file = (int64_t)TT_GROUPS * job->store->comm->size;
    struct shared *shared = &job->shared;

    shared->n = n_crc + n_digest + 2 * n_file;
    shared->words = tt_calloc((size_t)shared->n, sizeof *shared->words);
    shared->crc = shared->words;
    shared->digest = shared->crc + n_crc;
    shared->file_bytes = shared->digest + n_digest;
    shared->file_crc = shared->file_bytes + n_file;
}

static void set_crc(struct shared *shared, int piece, uint32_t crc)
{
    shared->crc[piece / 2] |= (int64_t)((uint64_t)crc << (piece % 2 * 32));
}

static uint32_t get_crc(const struct shared *shared, int piece)
{
    return (uint32_t)((uint64_t)shared->crc[piece / 2] >> (piece % 2 * 32));
}

/* Rank 0: room for everything and the folder to write into. */
static int make_folder(struct job *job)
{
    static const char *const below[] = {"model", "optim", "assets"};
    int64_t need = job->plan.bytes + job->plan.bytes / 50 + ((int64_t)1 << 20);
    int rc = 0;

    for (int i = 0; i < job->save->n_assets; i++)
        need += (int64_t)job->save->asset[i].size;
    TT_TRY(tt_commit_check_space(job->store->folder, need));
    TT_TRY(tt_folder_remove(job->folder)); /* an attempt of ours that failed and could not be removed then */
    for (int i = 0; i < 3; i++) {
        char *path = tt_format("%s/%s", job->folder, below[i]);
        bool wanted = i == 0   ? job->save->state->n_model > 0
                      : i == 1 ? job->save->state->n_optim > 0
                               : job->save->n_assets > 0;

        rc = wanted ? tt_folder_make(path) : 0;
        tt_free(path);
        if (rc < 0)
            goto out;
    }
    rc = tt_fault("mkdir", job->rank);
out:
    return rc;
}

/* The pieces of one file, with their checksums as far as known; ret_n 0: no file. */
static struct tt_st_tensor *file_entries(const struct job *job, enum tt_ckpt_group group, int writer, int *ret_n)
{
    int64_t slot = file_slot(job, group, writer);
    int begin = job->file_begin[slot], n = job->file_begin[slot + 1] - begin;
    struct tt_st_tensor *entry = tt_calloc((size_t)n, sizeof *entry);

    for (int i = 0; i < n; i++) {
        int index = job->piece_of_file[begin + i];
        const struct tt_ckpt_piece *piece = &job->plan.piece[index];
        const struct tt_ckpt_chunk *c = chunk_of(job, piece);

        entry[i] = (struct tt_st_tensor){
            .name = (char *)(uintptr_t)c->name,
            .dtype = c->dtype,
            .box = tt_box_rows(c->ndim, c->shape, piece->row_begin, piece->row_count),
            .crc = get_crc(&job->shared, index),
            .has_crc = true,
            .index = index,
        };
    }
    *ret_n = n;
    return entry;
}

static int file_layout(const struct job *job, int writer, struct tt_st_tensor *entry, int n, struct tt_text *header,
                       int64_t *ret_bytes)
{
    char step[32], rank[16];
    json_t *extra;
    int rc;

    (void)snprintf(step, sizeof step, "%" PRId64, job->step);
    (void)snprintf(rank, sizeof rank, "%d", writer);
    extra = json_pack("{s:s,s:s,s:s}", "titan.version", "1", "titan.step", step, "titan.rank", rank);
    rc = tt_safetensors_layout(entry, n, extra, true, header, ret_bytes);
    json_decref(extra);
    return rc;
}

static const char *piece_bytes(const struct job *job, int piece, int64_t *ret_size)
{
    const struct tt_ckpt_piece *p = &job->plan.piece[piece];
    const struct tt_ckpt_chunk *c = chunk_of(job, p);

    *ret_size = p->row_count * tt_ckpt_row_bytes(c);
    return (const char *)c->data + (p->row_begin - c->row_begin) * tt_ckpt_row_bytes(c);
}

/* Checksum and digest of this rank's pieces of a group, before its header is written. */
static void sum_pieces(struct job *job, enum tt_ckpt_group group)
{
    for (int i = 0; i < job->plan.n; i++) {
        const struct tt_ckpt_piece *p = &job->plan.piece[i];
        const struct tt_ckpt_chunk *c = chunk_of(job, p);
        int64_t size, item = (int64_t)tt_dtype_size(c->dtype), row = tt_ckpt_row_bytes(c);
        const char *bytes;
        int64_t *digest;

        if (p->group != group || p->writer != job->rank)
            continue;
        bytes = piece_bytes(job, i, &size);
        digest = &job->shared.digest[(group == TT_GROUP_OPTIM ? job->save->state->n_model : 0) + p->tensor];
        set_crc(&job->shared, i, tt_crc32c(0, bytes, (size_t)size));
        *digest =
            (int64_t)((uint64_t)*digest + tt_digest_part(c->dtype, bytes, p->row_begin * (row / item), size / item));
    }
}

/* This rank's file of one group, if it has one. */
static int write_file(struct job *job, enum tt_ckpt_group group)
{
    struct tt_durable file = {.fd = -1};
    struct tt_text header = {0};
    struct tt_st_tensor *entry;
    char *relative = tt_ckpt_shard_path(group, job->rank), *path = tt_format("%s/%s", job->folder, relative);
    char *folder = tt_format("%s/%s", job->folder, tt_ckpt_group_name(group));
    int64_t bytes = 0, slot = file_slot(job, group, job->rank);
    uint32_t crc;
    int n = 0, rc = 0;

    sum_pieces(job, group);
    entry = file_entries(job, group, job->rank, &n);
    if (n == 0)
        goto out;
    TT_TRY(file_layout(job, job->rank, entry, n, &header, &bytes));
    TT_TRY(tt_durable_begin(path, bytes, job->rank, &file));
    TT_TRY(tt_durable_write(&file, header.text, header.size, 0));
    crc = tt_crc32c(0, header.text, header.size);
    for (int i = 0; i < n; i++) {
        int64_t size;
        const char *data = piece_bytes(job, entry[i].index, &size);

        if (i == n / 2)
            TT_TRY(tt_fault("write", job->rank));
        TT_TRY(tt_durable_write(&file, data, (size_t)size, (int64_t)header.size + entry[i].begin));
        crc = tt_crc32c_combine(crc, entry[i].crc, (uint64_t)size);
    }
    TT_TRY(tt_durable_end(&file));
    TT_TRY(tt_folder_sync(folder));
    job->shared.file_bytes[slot] = bytes;
    job->shared.file_crc[slot] = crc;
out:
    if (file.fd >= 0)
        tt_durable_cancel(&file);
    tt_text_release(&header);
    tt_free(entry);
    tt_free(relative);
    tt_free(path);
    tt_free(folder);
    return rc;
}

static int write_files(struct job *job)
{
    int rc = 0;

    for (int group = 0; group < TT_GROUPS; group++)
        TT_TRY(write_file(job, (enum tt_ckpt_group)group));
    rc = tt_fault("written", job->rank);
out:
    return rc;
}

static int collect(struct job *job)
{
    enum { BATCH = 256 }; /* words that one small reduction carries */
    int rc = 0;

    for (int64_t at = 0; at < job->shared.n; at += BATCH) {
        int64_t n = job->shared.n - at < BATCH ? job->shared.n - at : BATCH;

        TT_TRY(tt_comm_sum_i64(job->store->comm, job->shared.words + at, (int)n));
    }
out:
    return rc;
}

/* Adds one file and where its chunks lie. The layout is computed again instead of sent: it is a function of the plan. */
static int describe_file(const struct job *job, enum tt_ckpt_group group, int writer, struct tt_manifest *manifest)
{
    int64_t slot = file_slot(job, group, writer), bytes = 0;
    struct tt_text header = {0};
    struct tt_manifest_file *file;
    struct tt_st_tensor *entry;
    char *path = tt_ckpt_shard_path(group, writer);
    int n = 0, rc = 0, first = group == TT_GROUP_OPTIM ? job->save->state->n_model : 0;

    entry = file_entries(job, group, writer, &n);
    if (n == 0)
        goto out;
    TT_TRY(file_layout(job, writer, entry, n, &header, &bytes));
    if (bytes != job->shared.file_bytes[slot]) {
        rc = tt_fail(TT_EINTERNAL, "rank %d wrote %" PRId64 " bytes, its plan says %" PRId64, writer,
                     job->shared.file_bytes[slot], bytes);
        goto out;
    }
    file = tt_manifest_add_file(manifest, path, bytes);
    file->crc = (uint32_t)job->shared.file_crc[slot];
    for (int i = 0; i < n; i++) {
        struct tt_manifest_tensor *t = &manifest->tensor[first + job->plan.piece[entry[i].index].tensor];

        TT_PUSH(t->chunk, t->n_chunks, t->cap_chunks) = (struct tt_manifest_chunk){
            .file = manifest->n_files - 1,
            .box = entry[i].box,
            .begin = (int64_t)header.size + entry[i].begin,
            .end = (int64_t)header.size + entry[i].end,
            .crc = entry[i].crc,
        };
    }
out:
    tt_text_release(&header);
    tt_free(entry);
    tt_free(path);
    return rc;
}

static json_t *manifest_meta(const struct job *job)
{
    json_t *meta = json_copy((json_t *)(uintptr_t)job->save->meta);

    (void)json_object_set_new(meta, "world", json_integer(job->store->comm->size));
    (void)json_object_set_new(meta, "policy", json_string(job->save->policy));
    (void)json_object_set_new(meta, "run_id", json_string(job->store->run_id));
    (void)json_object_set_new(meta, "time", json_real(tt_clock_wall_sec()));
    return meta;
}

static int describe(const struct job *job, struct tt_manifest *manifest)
{
    int rc = 0;

    manifest->meta = manifest_meta(job);
    for (int group = 0; group < TT_GROUPS; group++) {
        int n = 0;
        const struct tt_ckpt_chunk *c = tt_ckpt_state_group(job->save->state, (enum tt_ckpt_group)group, &n);

        for (int i = 0; i < n; i++) {
            int64_t number = manifest->n_tensors;

            tt_manifest_add_tensor(manifest, (enum tt_ckpt_group)group, c[i].name, c[i].dtype, c[i].ndim, c[i].shape)
                ->digest = (uint64_t)job->shared.digest[number];
        }
    }
    for (int group = 0; group < TT_GROUPS; group++)
        for (int writer = 0; writer < job->store->comm->size; writer++)
            TT_TRY(describe_file(job, (enum tt_ckpt_group)group, writer, manifest));
    rc = tt_manifest_check_cover(manifest);
out:
    return rc;
}

/* Rank 0: assets, then the manifest, the last file; everything durable before it and after it. */
static int finish(struct job *job)
{
    struct tt_manifest manifest = {0};
    char *text = NULL, *path = NULL;
    int rc = 0;

    TT_TRY(tt_fault("assets", job->rank));
    for (int i = 0; i < job->save->n_assets; i++) {
        path = tt_format("%s/assets/%s", job->folder, job->save->asset[i].name);
        TT_TRY(tt_durable_put(path, job->save->asset[i].bytes, job->save->asset[i].size));
        tt_free(path);
        path = NULL;
    }
    TT_TRY(tt_commit_sync_tree(job->folder));
    TT_TRY(describe(job, &manifest));
    tt_manifest_sort(&manifest);
    TT_TRY(tt_fault("manifest", job->rank));
    text = tt_manifest_text(&manifest);
    path = tt_format("%s/manifest.json", job->folder);
    TT_TRY(tt_durable_put(path, text, strlen(text)));
    TT_TRY(tt_folder_sync(job->folder));
out:
    tt_manifest_release(&manifest);
    tt_free(text);
    tt_free(path);
    return rc;
}

/* Every rank must get here after a failure, all writing ended. The message of the failure stays. */
static void abandon(const struct job *job)
{
    char *message = tt_strdup(tt_error_message());

    if (job->folder && tt_folder_remove(job->folder) < 0)
        tt_warn("the unfinished checkpoint could not be removed: %s", tt_error_message());
    (void)tt_fail(0, "%s", message);
    tt_free(message);
}

static void release(struct job *job)
{
    tt_ckpt_plan_release(&job->plan);
    tt_free(job->piece_of_file);
    tt_free(job->file_begin);
    tt_free(job->shared.words);
    tt_free(job->name);
    tt_free(job->temporary);
    tt_free(job->aside);
    tt_free(job->folder);
}

int tt_ckpt_save(struct tt_ckpt_store *store, const struct tt_ckpt_save *save, struct tt_ckpt_saved *ret_saved)
{
    struct tt_patience patience = tt_patience_begin(store->comm, "saving a checkpoint");
    struct job job = {.store = store, .save = save, .rank = store->comm->rank};
    struct tt_comm *comm = store->comm;
    struct tt_ckpt_saved saved = {0};
    double start = tt_clock_sec();
    bool first = comm->rank == 0;
    int rc = 0;

    TT_TRY(check(&job));
    index_files(&job);
    share_space(&job);
    job.name = tt_format("step-%" PRId64, job.step);
    job.temporary = tt_ckpt_store_aside(store, "tmp", job.step);
    job.aside = tt_ckpt_store_aside(store, "old", job.step);
    job.folder = tt_format("%s/%s", store->folder, job.temporary);
    TT_TRY(tt_comm_agree(comm, first ? make_folder(&job) : 0));
    TT_TRY(tt_comm_agree(comm, write_files(&job)));
    TT_TRY(collect(&job));
    TT_TRY(tt_comm_agree(comm, first ? finish(&job) : 0));
    TT_TRY(tt_comm_agree(
        comm, first ? tt_commit_publish(store->folder, job.temporary, job.name, job.aside, true, job.rank) : 0));
    if (first)
        tt_ckpt_store_retain(store, job.step, save->keep_latest_k);
    for (int64_t i = 0; i < (int64_t)TT_GROUPS * comm->size; i++) {
        saved.bytes += job.shared.file_bytes[i];
        saved.files += job.shared.file_bytes[i] > 0;
    }
    TT_TRY(tt_comm_agree(comm, tt_fault("end", job.rank)));
    saved.seconds = tt_clock_sec() - start;
    *ret_saved = saved;
out:
    if (rc < 0 && first)
        abandon(&job);
    release(&job);
    tt_patience_end(comm, &patience);
    return rc;
}
