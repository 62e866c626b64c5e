/* SPDX-License-Identifier: MIT
 *
 * Sends a manifest as bytes, and rows from replica to replica.
 */
#include "checkpoint/load/share.h"

#include <stdbool.h>
#include <string.h>

#include "checkpoint/durable/patience.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "parallel/layout/placement.h"

/* No collective is under way while a checkpoint is loaded, so one of their tags can be used. */
enum { MESSAGE_BYTES = 16 << 20 };

/* --- numbers in as few bytes as possible: seven bits per byte, the lowest first --- */

static void put_number(struct tt_text *to, uint64_t number)
{
    do {
        char byte = (char)((number & 127) | (number > 127 ? 128 : 0));

        tt_text_add_bytes(to, &byte, 1);
        number >>= 7;
    } while (number);
}

static void put_string(struct tt_text *to, const char *text)
{
    put_number(to, strlen(text));
    tt_text_add_bytes(to, text, strlen(text));
}

struct packed {
    const char *at, *end;
    bool short_of; /* bytes */
};

static uint64_t get_number(struct packed *from)
{
    uint64_t number = 0;

    for (int shift = 0; shift < 64 && from->at < from->end; shift += 7) {
        unsigned char byte = (unsigned char)*from->at++;

        number |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return number;
    }
    from->short_of = true;
    return 0;
}

/* A count of items of at least one byte each; a count that exceeds the received bytes is refused. */
static int get_count(struct packed *from)
{
    uint64_t n = get_number(from);

    from->short_of = from->short_of || n > (uint64_t)(from->end - from->at) || n > INT32_MAX;
    return from->short_of ? 0 : (int)n;
}

static char *get_string(struct packed *from)
{
    int n = get_count(from);
    char *text = tt_strndup(from->at, (size_t)n);

    from->at += n;
    return text;
}

/* --- a manifest --- */

static void pack_tensor(const struct tt_manifest_tensor *t, struct tt_text *to)
{
    put_string(to, t->name);
    put_number(to, (uint64_t)t->group);
    put_number(to, (uint64_t)t->dtype);
    put_number(to, (uint64_t)t->ndim);
    for (int d = 0; d < t->ndim; d++)
        put_number(to, (uint64_t)t->shape[d]);
    put_number(to, t->has_digest);
    put_number(to, t->digest);
    put_number(to, (uint64_t)t->n_chunks);
    for (int i = 0; i < t->n_chunks; i++) {
        const struct tt_manifest_chunk *c = &t->chunk[i];

        put_number(to, (uint64_t)c->file);
        for (int d = 0; d < t->ndim; d++) {
            put_number(to, (uint64_t)c->box.offset[d]);
            put_number(to, (uint64_t)c->box.shape[d]);
        }
        put_number(to, (uint64_t)c->begin);
        put_number(to, (uint64_t)(c->end - c->begin));
        put_number(to, c->has_crc);
        put_number(to, c->crc);
        put_number(to, c->order);
    }
}

char *tt_manifest_pack(const struct tt_manifest *manifest, size_t *ret_size)
{
    char *meta = manifest->meta ? tt_json_text(manifest->meta) : tt_strdup("");
    struct tt_text to = {0};

    put_string(&to, meta);
    put_number(&to, (uint64_t)manifest->n_files);
    for (int i = 0; i < manifest->n_files; i++) {
        put_string(&to, manifest->file[i].path);
        put_number(&to, (uint64_t)manifest->file[i].bytes);
        put_number(&to, manifest->file[i].has_crc);
        put_number(&to, manifest->file[i].crc);
    }
    put_number(&to, (uint64_t)manifest->n_tensors);
    for (int i = 0; i < manifest->n_tensors; i++)
        pack_tensor(&manifest->tensor[i], &to);
    tt_free(meta);
    *ret_size = to.size;
    return to.text;
}

static void unpack_tensor(struct packed *from, struct tt_manifest *manifest)
{
    char *name = get_string(from);
    enum tt_ckpt_group group = (enum tt_ckpt_group)get_number(from);
    enum tt_dtype dtype = (enum tt_dtype)get_number(from);
    int ndim = get_count(from), n_chunks;
    int64_t shape[TT_BOX_DIMS] = {0};
    struct tt_manifest_tensor *t;

    from->short_of = from->short_of || ndim > TT_BOX_DIMS;
    for (int d = 0; d < ndim && !from->short_of; d++)
        shape[d] = (int64_t)get_number(from);
    t = tt_manifest_add_tensor(manifest, group, name, dtype, from->short_of ? 0 : ndim, shape);
    tt_free(name);
    t->has_digest = get_number(from) != 0;
    t->digest = get_number(from);
    n_chunks = get_count(from);
    t->chunk = tt_calloc((size_t)n_chunks + 1, sizeof *t->chunk);
    t->n_chunks = t->cap_chunks = n_chunks;
    for (int i = 0; i < n_chunks && !from->short_of; i++) {
        struct tt_manifest_chunk *c = &t->chunk[i];

        c->file = (int)get_number(from);
        c->box.ndim = t->ndim;
        for (int d = 0; d < t->ndim; d++) {
            c->box.offset[d] = (int64_t)get_number(from);
            c->box.shape[d] = (int64_t)get_number(from);
        }
        c->begin = (int64_t)get_number(from);
        c->end = c->begin + (int64_t)get_number(from);
        c->has_crc = get_number(from) != 0;
        c->crc = (uint32_t)get_number(from);
        c->order = (uint32_t)get_number(from);
    }
}

int tt_manifest_unpack(const char *bytes, size_t size, struct tt_manifest *ret_manifest)
{
    struct packed from = {bytes, bytes + size, false};
    struct tt_manifest manifest = {0};
    char *meta = get_string(&from);
    int n, rc = 0;

    if (*meta)
        TT_TRY(tt_json_parse(meta, strlen(meta), "a manifest from rank 0", &manifest.meta));
    n = get_count(&from);
    for (int i = 0; i < n && !from.short_of; i++) {
        char *path = get_string(&from);
        struct tt_manifest_file *file = tt_manifest_add_file(&manifest, path, (int64_t)get_number(&from));

        tt_free(path);
        file->has_crc = get_number(&from) != 0;
        file->crc = (uint32_t)get_number(&from);
    }
    n = get_count(&from);
    for (int i = 0; i < n && !from.short_of; i++)
        unpack_tensor(&from, &manifest);
    if (from.short_of || from.at != from.end)
        TT_TRY(tt_fail(TT_EINTERNAL, "the manifest from rank 0 does not have the form that this rank expects"));
    *ret_manifest = manifest;
    manifest = (struct tt_manifest){0};
out:
    tt_free(meta);
    tt_manifest_release(&manifest);
    return rc;
}

int tt_manifest_share(struct tt_comm *comm, struct tt_manifest *manifest)
{
    size_t size = 0;
    int64_t bytes = 0;
    char *packed = NULL;
    int rc = 0;

    if (comm->size == 1)
        return 0;
    if (comm->rank == 0)
        packed = tt_manifest_pack(manifest, &size);
    bytes = (int64_t)size;
    TT_TRY(tt_comm_broadcast(comm, &bytes, sizeof bytes, 0));
    if (comm->rank != 0)
        packed = tt_calloc((size_t)bytes, 1);
    for (int64_t at = 0; at < bytes; at += MESSAGE_BYTES)
        TT_TRY(
            tt_comm_broadcast(comm, packed + at, (size_t)(bytes - at < MESSAGE_BYTES ? bytes - at : MESSAGE_BYTES), 0));
    if (comm->rank != 0)
        rc = tt_manifest_unpack(packed, (size_t)bytes, manifest);
    rc = tt_comm_agree(comm, rc);
out:
    tt_free(packed);
    return rc;
}

/* --- parts --- */

/* Broadcasts along a binomial tree over the copies of a part. */
static int pass_on(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_placement *placement, void *data,
                   size_t bytes)
{
    const struct tt_segment segment = {data, bytes};
    int copies = tt_placement_copies(mesh, placement), copy = tt_placement_copy(mesh, placement, comm->rank);
    int part = tt_placement_part(mesh, placement, comm->rank), distance = 1, rc = 0;

    for (; distance < copies && copy % (2 * distance) == 0; distance *= 2)
        ;
    if (copy > 0) {
        int from = tt_placement_rank(mesh, placement, part, copy - distance);
        struct tt_request request = {{0}};

        TT_TRY(comm->ops->recv_begin(comm, &segment, 1, from, TT_TAG_LOAD, &request));
        TT_TRY(tt_comm_wait(comm, &request, from));
    }
    for (distance /= 2; distance > 0; distance /= 2) {
        struct tt_request request = {{0}};
        int to;

        if (copy + distance >= copies)
            continue;
        to = tt_placement_rank(mesh, placement, part, copy + distance);
        TT_TRY(comm->ops->send_begin(comm, &segment, 1, to, TT_TAG_LOAD, &request));
        TT_TRY(tt_comm_wait(comm, &request, to));
    }
out:
    return rc;
}

int tt_parts_share(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_ckpt_state *state, bool model_only)
{
    int n = state->n_model + (model_only ? 0 : state->n_optim), rc = 0;

    for (int i = 0; i < n; i++) {
        const struct tt_ckpt_chunk *c = tt_ckpt_state_tensor(state, i);
        int64_t bytes = tt_placement_has(mesh, &c->placement, comm->rank) ? tt_ckpt_box_bytes(c, &c->part) : 0;

        for (int64_t at = 0; at < bytes && tt_placement_copies(mesh, &c->placement) > 1; at += MESSAGE_BYTES)
            TT_TRY(pass_on(comm, mesh, &c->placement, (char *)c->data + at,
                           (size_t)(bytes - at < MESSAGE_BYTES ? bytes - at : MESSAGE_BYTES)));
    }
    rc = tt_comm_barrier(comm);
out:
    return rc;
}

/* --- a source --- */

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

/* Receives the source that rank 0 has opened; this rank has no open files yet. */
static int share_source(struct tt_comm *comm, const char *path, enum tt_path_kind kind, struct tt_source **source)
{
    int64_t is_folder = 0;
    int rc = 0;

    if (comm->rank == 0) {
        is_folder = (*source)->is_folder;
    } else {
        *source = tt_calloc(1, sizeof **source);
        (*source)->path = tt_strdup(path);
        (*source)->kind = kind;
    }
    TT_TRY(tt_comm_broadcast(comm, &is_folder, sizeof is_folder, 0));
    TT_TRY(tt_manifest_share(comm, &(*source)->manifest));
    if (comm->rank != 0) {
        (*source)->is_folder = is_folder != 0;
        (*source)->open = tt_calloc((size_t)(*source)->manifest.n_files, sizeof *(*source)->open);
    }
out:
    return rc;
}

int tt_source_open_shared(struct tt_comm *comm, const char *path, enum tt_path_kind kind, struct tt_source **ret_source)
{
    struct tt_source *source = NULL;
    int rc = 0;

    TT_TRY(tt_patience_work(comm, comm->rank == 0, open_source, &(struct opening){path, kind, &source}));
    TT_TRY(share_source(comm, path, kind, &source));
    *ret_source = source;
    source = NULL;
out:
    tt_source_free(source);
    return rc;
}
