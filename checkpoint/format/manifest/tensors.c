/* SPDX-License-Identifier: MIT
 *
 * The tensors of manifest.json and their chunks.
 */
#include "checkpoint/format/manifest/tensors.h"

#include <string.h>

#include "checkpoint/format/manifest/member.h"
#include "core/base/mem.h"

/* Later code computes the end of a box without checks for overflow. */
static bool ends_fit(const struct tt_box *box, int n)
{
    for (int d = 0; d < n; d++)
        if (box->offset[d] > INT64_MAX - box->shape[d])
            return false;
    return true;
}

struct chunk_entry {
    struct tt_box box;
    struct tt_member_int file, begin, end;
    int n_offset, n_shape;
    uint32_t crc;
    bool has_offset, has_shape, has_crc;
    unsigned seen;
};

enum { CHUNK_FILE, CHUNK_OFFSET, CHUNK_SHAPE, CHUNK_BEGIN, CHUNK_END, CHUNK_CRC, CHUNK_KEYS };

static int read_chunk_members(struct tt_json_reader *json, struct chunk_entry *c)
{
    static const char *const names[] = {[CHUNK_FILE] = "file",   [CHUNK_OFFSET] = "offset", [CHUNK_SHAPE] = "shape",
                                        [CHUNK_BEGIN] = "begin", [CHUNK_END] = "end",       [CHUNK_CRC] = "crc32c"};
    int which = 0, rc = 0;

    if (tt_json_peek(json) != '{')
        return tt_json_skip(json);
    TT_TRY(tt_json_open(json));
    while (which >= 0) {
        TT_TRY(tt_member_next(json, names, CHUNK_KEYS, &c->seen, &which));
        if (which == CHUNK_FILE)
            TT_TRY(tt_member_read_int(json, &c->file));
        else if (which == CHUNK_OFFSET)
            TT_TRY(tt_member_read_sizes(json, c->box.offset, &c->n_offset, &c->has_offset));
        else if (which == CHUNK_SHAPE)
            TT_TRY(tt_member_read_sizes(json, c->box.shape, &c->n_shape, &c->has_shape));
        else if (which == CHUNK_BEGIN)
            TT_TRY(tt_member_read_int(json, &c->begin));
        else if (which == CHUNK_END)
            TT_TRY(tt_member_read_int(json, &c->end));
        else if (which == CHUNK_CRC)
            TT_TRY(tt_member_read_crc(json, &c->crc, &c->has_crc));
    }
out:
    return rc;
}

static bool chunk_fits(const struct tt_manifest *manifest, const struct tt_manifest_tensor *tensor,
                       const struct chunk_entry *c)
{
    int64_t volume, bits;

    return c->has_offset && c->has_shape && c->has_crc && c->n_offset == tensor->ndim && c->n_shape == tensor->ndim &&
           c->file.value >= 0 && c->file.value < manifest->n_files && c->begin.value >= 0 &&
           c->end.value >= c->begin.value && c->end.value <= manifest->file[c->file.value].bytes &&
           tt_box_checked_volume(c->box.shape, c->n_shape, &volume) &&
           !__builtin_mul_overflow(volume, tt_dtype_bits(tensor->dtype), &bits) &&
           bits / 8 == c->end.value - c->begin.value && ends_fit(&c->box, c->n_shape);
}

static int read_chunk(struct tt_manifest_reading *r, const struct tt_manifest_tensor *tensor)
{
    struct chunk_entry c = {0};
    int rc = 0;

    TT_TRY(read_chunk_members(&r->json, &c));
    if (!c.file.good)
        return tt_member_fail(r->where, c.seen >> CHUNK_FILE & 1u, "file", "an integer");
    if (!c.begin.good)
        return tt_member_fail(r->where, c.seen >> CHUNK_BEGIN & 1u, "begin", "an integer");
    if (!c.end.good)
        return tt_member_fail(r->where, c.seen >> CHUNK_END & 1u, "end", "an integer");
    if (!chunk_fits(r->manifest, tensor, &c))
        return tt_fail(TT_EDATA, "'%s': tensor '%s': a chunk's numbers do not fit together", r->where, tensor->name);
    c.box.ndim = c.n_shape;
    TT_PUSH(r->chunk, r->n_chunks, r->cap_chunks) =
        (struct tt_manifest_chunk){(int)c.file.value, c.box, c.begin.value, c.end.value, c.crc, true, 0};
out:
    return rc;
}

static int read_chunks(struct tt_manifest_reading *r, struct tt_manifest_tensor *tensor)
{
    bool more;
    int rc = 0;

    r->n_chunks = 0;
    TT_TRY(tt_json_open(&r->json));
    for (;;) {
        TT_TRY(tt_json_next(&r->json, &more));
        if (!more)
            break;
        TT_TRY(read_chunk(r, tensor));
    }
    if (r->n_chunks == 0)
        goto out;
    tensor->chunk = tt_calloc_for((size_t)r->n_chunks, sizeof *tensor->chunk, r->where);
    if (!tensor->chunk)
        return TT_ENOMEM;
    memcpy(tensor->chunk, r->chunk, (size_t)r->n_chunks * sizeof *tensor->chunk);
    tensor->n_chunks = tensor->cap_chunks = r->n_chunks;
out:
    return rc;
}

/* What describes a tensor, but for its chunks: they are read when the rest is known. */
struct tensor_entry {
    char dtype[16]; /* longer than any name */
    int64_t shape[TT_BOX_DIMS];
    int ndim;
    uint64_t digest;
    bool has_shape, has_digest, bad_digest, has_chunks;
    const char *chunks;
    unsigned seen;
};

enum { TENSOR_DTYPE, TENSOR_SHAPE, TENSOR_DIGEST, TENSOR_CHUNKS, TENSOR_KEYS };

/* A missing digest is unknown, which verify reports; a text that is not a digest is damage. */
static int read_digest(struct tt_json_reader *json, struct tensor_entry *t)
{
    bool is_null = tt_json_peek(json) == 'n';
    struct tt_json_span text;
    int rc = 0;

    TT_TRY(tt_member_read_text(json, &text));
    t->has_digest =
        text.size == 22 && memcmp(text.text, "sum64:", 6) == 0 && tt_member_hex(text.text + 6, 16, &t->digest);
    t->bad_digest = !is_null && !t->has_digest;
out:
    return rc;
}

static int find_group(const char *key, const char *slash)
{
    int group = 0;

    while (group < TT_CKPT_GROUPS && slash &&
           (strlen(tt_ckpt_group_name((enum tt_ckpt_group)group)) != (size_t)(slash - key) ||
            strncmp(key, tt_ckpt_group_name((enum tt_ckpt_group)group), (size_t)(slash - key)) != 0))
        group++;
    return slash ? group : TT_CKPT_GROUPS;
}

/* Adds the tensor once type and shape are known. */
static int add_tensor(struct tt_manifest_reading *r, const char *key, const struct tensor_entry *t,
                      struct tt_manifest_tensor **ret_tensor)
{
    const char *slash = strchr(key, '/');
    int group = find_group(key, slash);
    enum tt_dtype dtype;
    int64_t volume;

    if (group == TT_CKPT_GROUPS || !tt_dtype_from_name(t->dtype, &dtype) || !tt_dtype_size(dtype) || !t->has_shape ||
        !tt_box_checked_volume(t->shape, t->ndim, &volume) || volume > INT64_MAX / 64 || !t->has_chunks)
        return tt_fail(TT_EDATA, "'%s': tensor '%s' is not described as it should be", r->where, key);
    if (t->bad_digest)
        return tt_fail(TT_EDATA, "'%s': the digest of tensor '%s' is not 'sum64:' and 16 digits", r->where, key);
    *ret_tensor = tt_manifest_add_tensor(r->manifest, (enum tt_ckpt_group)group, slash + 1, dtype, t->ndim, t->shape);
    (*ret_tensor)->digest = t->digest;
    (*ret_tensor)->has_digest = t->has_digest;
    return 0;
}

/* Reads the members. Chunks that come last, as titan writes them, are read at once: then ret_tensor is not NULL. */
static int read_tensor_members(struct tt_manifest_reading *r, const char *key, struct tensor_entry *t,
                               struct tt_manifest_tensor **ret_tensor)
{
    static const char *const names[] = {
        [TENSOR_DTYPE] = "dtype", [TENSOR_SHAPE] = "shape", [TENSOR_DIGEST] = "digest", [TENSOR_CHUNKS] = "chunks"};
    struct tt_json_span text;
    int which = 0, rc = 0;

    if (tt_json_peek(&r->json) != '{')
        return tt_json_skip(&r->json);
    TT_TRY(tt_json_open(&r->json));
    while (which >= 0) {
        TT_TRY(tt_member_next(&r->json, names, TENSOR_KEYS, &t->seen, &which));
        if (which == TENSOR_DTYPE) {
            TT_TRY(tt_member_read_text(&r->json, &text));
            if (text.size < sizeof t->dtype && text.size)
                memcpy(t->dtype, text.text, text.size);
        } else if (which == TENSOR_SHAPE) {
            TT_TRY(tt_member_read_sizes(&r->json, t->shape, &t->ndim, &t->has_shape));
        } else if (which == TENSOR_DIGEST) {
            TT_TRY(read_digest(&r->json, t));
        } else if (which == TENSOR_CHUNKS) {
            t->has_chunks = tt_json_peek(&r->json) == '[';
            t->chunks = tt_json_place(&r->json);
            if (t->has_chunks && t->seen == (1u << TENSOR_KEYS) - 1) {
                TT_TRY(add_tensor(r, key, t, ret_tensor));
                TT_TRY(read_chunks(r, *ret_tensor));
            } else {
                TT_TRY(tt_json_skip(&r->json));
            }
        }
    }
out:
    return rc;
}

static int read_tensor(struct tt_manifest_reading *r, const char *key)
{
    struct tt_manifest_tensor *tensor = NULL;
    struct tensor_entry t = {0};
    const char *after;
    int rc = 0;

    TT_TRY(read_tensor_members(r, key, &t, &tensor));
    if (tensor)
        goto out;
    TT_TRY(add_tensor(r, key, &t, &tensor));
    after = tt_json_place(&r->json);
    tt_json_go(&r->json, t.chunks);
    TT_TRY(read_chunks(r, tensor));
    tt_json_go(&r->json, after);
out:
    return rc;
}

int tt_manifest_read_tensors(struct tt_manifest_reading *r)
{
    struct tt_json_span span;
    struct tt_text key = {0};
    bool more;
    int rc = 0;

    if (tt_json_peek(&r->json) != '{')
        return tt_fail(TT_EDATA, "'%s': no tensors", r->where);
    TT_TRY(tt_json_open(&r->json));
    for (;;) {
        TT_TRY(tt_json_next(&r->json, &more));
        if (!more)
            break;
        TT_TRY(tt_json_key(&r->json, &span));
        key.size = 0;
        tt_text_add_bytes(&key, span.text, span.size);
        TT_TRY(read_tensor(r, key.text));
    }
out:
    tt_text_release(&key);
    return rc;
}
