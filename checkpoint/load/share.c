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

/* No collective is under way while a checkpoint is loaded, so the tags of collectives are free. */
enum { MESSAGE_BYTES = 16 << 20 };

/* --- numbers in as few bytes as possible: seven bits per byte, the lowest first --- */

/* The same functions pack and unpack a manifest: each one packs its argument, or returns the value that it unpacks. So
 * every line below reads `member = code(p, member)`. */
struct packing {
    struct tt_text *to; /* NULL: unpacks the bytes from `at` on */
    const char *at, *end;
    bool short_of; /* there were too few bytes */
};

static uint64_t code(struct packing *p, uint64_t number)
{
    uint64_t found = 0;

    for (uint64_t left = number; p->to; left >>= 7) {
        char byte = (char)((left & 127) | (left > 127 ? 128 : 0));

        tt_text_add_bytes(p->to, &byte, 1);
        if (left < 128)
            return number;
    }
    for (int shift = 0; shift < 64 && p->at < p->end; shift += 7) {
        unsigned char byte = (unsigned char)*p->at++;

        found |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return found;
    }
    p->short_of = true;
    return 0;
}

/* A count of items of at least one byte each; a count that exceeds the received bytes is refused. */
static int code_count(struct packing *p, int n)
{
    uint64_t found = code(p, (uint64_t)n);

    if (!p->to)
        p->short_of = p->short_of || found > (uint64_t)(p->end - p->at) || found > INT32_MAX;
    return p->short_of ? 0 : (int)found;
}

/* A text; unpacking allocates it. */
static char *code_text(struct packing *p, char *text)
{
    int n = code_count(p, p->to ? (int)strlen(text) : 0);

    if (p->to)
        tt_text_add_bytes(p->to, text, (size_t)n);
    else
        text = tt_strndup(p->at, (size_t)n);
    p->at += p->to ? 0 : n;
    return text;
}

/* --- a manifest --- */

static void code_chunk(struct packing *p, struct tt_manifest_chunk *c, int ndim)
{
    c->file = (int)code(p, (uint64_t)c->file);
    c->box.ndim = ndim;
    for (int d = 0; d < ndim; d++) {
        c->box.offset[d] = (int64_t)code(p, (uint64_t)c->box.offset[d]);
        c->box.shape[d] = (int64_t)code(p, (uint64_t)c->box.shape[d]);
    }
    c->begin = (int64_t)code(p, (uint64_t)c->begin);
    c->end = c->begin + (int64_t)code(p, (uint64_t)(c->end - c->begin));
    c->has_crc = code(p, c->has_crc) != 0;
    c->crc = (uint32_t)code(p, c->crc);
    c->order = (uint32_t)code(p, c->order);
}

static void code_tensor(struct packing *p, struct tt_manifest_tensor *t)
{
    t->name = code_text(p, t->name);
    t->group = (enum tt_ckpt_group)code(p, (uint64_t)t->group);
    t->dtype = (enum tt_dtype)code(p, (uint64_t)t->dtype);
    t->ndim = code_count(p, t->ndim);
    p->short_of = p->short_of || t->ndim > TT_BOX_DIMS;
    for (int d = 0; d < t->ndim && !p->short_of; d++)
        t->shape[d] = (int64_t)code(p, (uint64_t)t->shape[d]);
    t->has_digest = code(p, t->has_digest) != 0;
    t->digest = code(p, t->digest);
    t->n_chunks = code_count(p, t->n_chunks);
    if (!p->to) {
        t->chunk = tt_calloc((size_t)t->n_chunks + 1, sizeof *t->chunk);
        t->cap_chunks = t->n_chunks;
    }
    for (int i = 0; i < t->n_chunks && !p->short_of; i++)
        code_chunk(p, &t->chunk[i], t->ndim);
}

static void code_manifest(struct packing *p, struct tt_manifest *m)
{
    m->n_files = code_count(p, m->n_files);
    if (!p->to) {
        m->file = tt_calloc((size_t)m->n_files + 1, sizeof *m->file);
        m->cap_files = m->n_files;
    }
    for (int i = 0; i < m->n_files && !p->short_of; i++) {
        m->file[i].path = code_text(p, m->file[i].path);
        m->file[i].bytes = (int64_t)code(p, (uint64_t)m->file[i].bytes);
        m->file[i].has_crc = code(p, m->file[i].has_crc) != 0;
        m->file[i].crc = (uint32_t)code(p, m->file[i].crc);
    }
    m->n_tensors = code_count(p, m->n_tensors);
    if (!p->to) {
        m->tensor = tt_calloc((size_t)m->n_tensors + 1, sizeof *m->tensor);
        m->cap_tensors = m->n_tensors;
    }
    for (int i = 0; i < m->n_tensors && !p->short_of; i++)
        code_tensor(p, &m->tensor[i]);
}

char *tt_manifest_pack(struct tt_manifest *manifest, size_t *ret_size)
{
    char *meta = manifest->meta ? tt_json_text(manifest->meta) : tt_strdup("");
    struct tt_text to = {0};
    struct packing p = {.to = &to};

    (void)code_text(&p, meta);
    code_manifest(&p, manifest);
    tt_free(meta);
    *ret_size = to.size;
    return to.text;
}

int tt_manifest_unpack(const char *bytes, size_t size, struct tt_manifest *ret_manifest)
{
    struct packing p = {.at = bytes, .end = bytes + size};
    char *meta = code_text(&p, NULL);
    int rc = 0;

    *ret_manifest = (struct tt_manifest){0};
    if (*meta)
        TT_TRY(tt_json_parse(meta, strlen(meta), "a manifest from rank 0", &ret_manifest->meta));
    code_manifest(&p, ret_manifest);
    if (p.short_of || p.at != p.end)
        rc = tt_fail(TT_EINTERNAL, "the manifest from rank 0 does not have the form that this rank expects");
out:
    if (rc < 0)
        tt_manifest_release(ret_manifest);
    tt_free(meta);
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
