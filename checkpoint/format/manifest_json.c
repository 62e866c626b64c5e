/* SPDX-License-Identifier: MIT
 *
 * Reads manifest.json strictly, and writes it for people to read and diff (one line per file and tensor). The text ends
 * with its own checksum, which detects a flipped bit anywhere.
 *
 * The checksum only shows that the text is complete, not that it makes sense. So every value must be one that a save
 * can have written; code that uses the values need not check them again.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/manifest.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/box.h"
#include "core/os/file.h"

enum { VERSION = 1 };

/*
 * Reads the members of an object of manifest.json. A value of the wrong kind is skipped and marked as not good; the
 * caller decides what to do about it. Errors come from the reader: TT_EDATA.
 */
struct member_int {
    int64_t value;
    bool good;
};

struct reading {
    struct tt_manifest *manifest;
    struct tt_json_reader json;
    const char *where;
    /* scratch: the chunks of the tensor being read, before they move to an array of the right size */
    struct tt_manifest_chunk *chunk;
    int n_chunks, cap_chunks;
};

/* --- members, one value after the other --- */

static int read_int(struct tt_json_reader *json, struct member_int *ret_number)
{
    struct tt_json_value value;
    char first = tt_json_peek(json);
    int rc = 0;

    ret_number->good = false;
    if (first != '-' && (first < '0' || first > '9'))
        return tt_json_skip(json);
    TT_TRY(tt_json_read_number(json, &value));
    *ret_number = (struct member_int){value.integer, value.is_integer};
out:
    return rc;
}

/* Reads at most TT_BOX_DIMS integers, none of them negative. sizes: [TT_BOX_DIMS]. */
static int read_sizes(struct tt_json_reader *json, int64_t *sizes, int *ret_n, bool *ret_good)
{
    bool more;
    int n = 0, rc = 0;

    *ret_good = tt_json_peek(json) == '[';
    if (!*ret_good)
        return tt_json_skip(json);
    TT_TRY(tt_json_open(json));
    while ((rc = tt_json_next(json, &more)) == 0 && more) {
        struct member_int number;

        TT_TRY(read_int(json, &number));
        if (!number.good || number.value < 0 || n == TT_BOX_DIMS)
            *ret_good = false;
        else
            sizes[n++] = number.value;
    }
    *ret_n = n;
out:
    return rc;
}

/* A string; text is NULL if the value is something else. */
static int read_text(struct tt_json_reader *json, struct tt_json_span *ret_text)
{
    *ret_text = (struct tt_json_span){0};
    return tt_json_peek(json) == '"' ? tt_json_read_string(json, ret_text) : tt_json_skip(json);
}

/* The value of the given number of lower-case hexadecimal digits; false if there are other characters. */
static bool read_digits(const char *text, size_t digits, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (size_t i = 0; i < digits; i++) {
        char c = text[i];

        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f'))
            return false;
        value = value << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *ret_value = value;
    return true;
}

/* Eight hexadecimal digits in a string. */
static int read_crc(struct tt_json_reader *json, uint32_t *ret_crc, bool *ret_good)
{
    struct tt_json_span text;
    uint64_t value = 0;
    int rc = 0;

    TT_TRY(read_text(json, &text));
    *ret_good = text.size == 8 && read_digits(text.text, 8, &value);
    *ret_crc = (uint32_t)value;
out:
    return rc;
}

static bool is_named(const struct tt_json_span *key, const char *name)
{
    return strlen(name) == key->size && memcmp(key->text, name, key->size) == 0;
}

/* Goes to the next member that is one of `names`, and skips all others. ret_which is the member's index in `names`,
 * or -1 at the end of the object. TT_EDATA if the member is already in `seen`. */
static int next_member(struct tt_json_reader *json, const char *const *names, int n, unsigned *seen, int *ret_which)
{
    struct tt_json_span key;
    const char *place;
    bool more;
    int which, rc = 0;

    *ret_which = -1;
    while ((rc = tt_json_next(json, &more)) == 0 && more) {
        (void)tt_json_peek(json);
        place = json->at;
        TT_TRY(tt_json_key(json, &key));
        for (which = 0; which < n && !is_named(&key, names[which]);)
            which++;
        if (which < n) {
            if (*seen >> which & 1u)
                return tt_json_fail_at(json, place, "duplicate key");
            *seen |= 1u << which;
            *ret_which = which;
            break;
        }
        TT_TRY(tt_json_skip(json));
    }
out:
    return rc;
}

/* TT_EDATA: a member is missing, or of another type if `present`. */
static int fail_member(const char *where, bool present, const char *key, const char *wanted)
{
    return tt_fail(TT_EDATA, "%s: %s '%s', wanted %s", where, present ? "wrong type of" : "missing key", key, wanted);
}

/* The group in "group/name"; TT_CKPT_GROUPS: none. */
static int group_of(const char *path, const char **ret_name)
{
    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        const char *word = tt_ckpt_group_name((enum tt_ckpt_group)group);

        if (tt_text_begins(path, word) && path[strlen(word)] == '/') {
            *ret_name = path + strlen(word) + 1;
            return group;
        }
    }
    return TT_CKPT_GROUPS;
}

/* --- tensors and their chunks --- */

/* Later code computes the end of a box without checks for overflow. */
static bool ends_fit(const struct tt_box *box, int n)
{
    for (int d = 0; d < n; d++)
        if (box->offset[d] > INT64_MAX - box->shape[d])
            return false;
    return true;
}

enum {
    CHUNK_FILE,
    CHUNK_BEGIN,
    CHUNK_END,
    CHUNK_NUMBERS,
    CHUNK_OFFSET = CHUNK_NUMBERS,
    CHUNK_SHAPE,
    CHUNK_CRC,
    CHUNK_KEYS
};

struct chunk_entry {
    struct tt_box box;
    struct member_int number[CHUNK_NUMBERS];
    int n_offset, n_shape;
    uint32_t crc;
    bool has_offset, has_shape, has_crc;
    unsigned seen;
};

static bool chunk_fits(const struct tt_manifest *manifest, const struct tt_manifest_tensor *tensor,
                       const struct chunk_entry *c)
{
    int64_t file = c->number[CHUNK_FILE].value, begin = c->number[CHUNK_BEGIN].value, end = c->number[CHUNK_END].value;
    int64_t volume, bits;

    return c->has_offset && c->has_shape && c->has_crc && c->n_offset == tensor->ndim && c->n_shape == tensor->ndim &&
           file >= 0 && file < manifest->n_files && begin >= 0 && end >= begin && end <= manifest->file[file].bytes &&
           tt_box_checked_volume(c->box.shape, c->n_shape, &volume) &&
           !__builtin_mul_overflow(volume, tt_dtype_bits(tensor->dtype), &bits) && bits / 8 == end - begin &&
           ends_fit(&c->box, c->n_shape);
}

static int read_chunk(struct reading *r, const struct tt_manifest_tensor *tensor)
{
    static const char *const names[] = {[CHUNK_FILE] = "file",     [CHUNK_BEGIN] = "begin", [CHUNK_END] = "end",
                                        [CHUNK_OFFSET] = "offset", [CHUNK_SHAPE] = "shape", [CHUNK_CRC] = "crc32c"};
    struct tt_json_reader *json = &r->json;
    bool is_object = tt_json_peek(json) == '{';
    struct chunk_entry c = {0};
    int which = is_object ? 0 : -1, rc = 0;

    TT_TRY(is_object ? tt_json_open(json) : tt_json_skip(json));
    while (which >= 0) {
        TT_TRY(next_member(json, names, CHUNK_KEYS, &c.seen, &which));
        if (which == CHUNK_OFFSET)
            TT_TRY(read_sizes(json, c.box.offset, &c.n_offset, &c.has_offset));
        else if (which == CHUNK_SHAPE)
            TT_TRY(read_sizes(json, c.box.shape, &c.n_shape, &c.has_shape));
        else if (which == CHUNK_CRC)
            TT_TRY(read_crc(json, &c.crc, &c.has_crc));
        else if (which >= 0)
            TT_TRY(read_int(json, &c.number[which]));
    }
    for (int k = 0; k < CHUNK_NUMBERS; k++)
        if (!c.number[k].good)
            return fail_member(r->where, c.seen >> k & 1u, names[k], "an integer");
    if (!chunk_fits(r->manifest, tensor, &c))
        return tt_fail(TT_EDATA, "'%s': tensor '%s': the numbers of a chunk contradict each other", r->where,
                       tensor->name);
    c.box.ndim = c.n_shape;
    TT_PUSH(r->chunk, r->n_chunks, r->cap_chunks) = (struct tt_manifest_chunk){.file = (int)c.number[CHUNK_FILE].value,
                                                                               .box = c.box,
                                                                               .begin = c.number[CHUNK_BEGIN].value,
                                                                               .end = c.number[CHUNK_END].value,
                                                                               .crc = c.crc,
                                                                               .has_crc = true};
out:
    return rc;
}

static int read_chunks(struct reading *r, struct tt_manifest_tensor *tensor)
{
    bool more;
    int rc = 0;

    r->n_chunks = 0;
    TT_TRY(tt_json_open(&r->json));
    while ((rc = tt_json_next(&r->json, &more)) == 0 && more)
        TT_TRY(read_chunk(r, tensor));
    if (rc < 0 || r->n_chunks == 0)
        goto out;
    tensor->chunk = tt_calloc_for((size_t)r->n_chunks, sizeof *tensor->chunk, r->where);
    if (!tensor->chunk)
        return TT_ENOMEM;
    memcpy(tensor->chunk, r->chunk, (size_t)r->n_chunks * sizeof *tensor->chunk);
    tensor->n_chunks = tensor->cap_chunks = r->n_chunks;
out:
    return rc;
}

/* The description of a tensor without its chunks; these can be read only when the rest is known. */
struct tensor_entry {
    char dtype[16]; /* longer than the name of any dtype */
    int64_t shape[TT_BOX_DIMS];
    int ndim;
    uint64_t digest;
    bool has_shape, has_digest, bad_digest, has_chunks;
    const char *chunks;
    unsigned seen;
};

enum { TENSOR_DTYPE, TENSOR_SHAPE, TENSOR_DIGEST, TENSOR_CHUNKS, TENSOR_KEYS };

/* A missing digest is unknown, and verify reports it. A text that is not a digest is damage. */
static int read_digest(struct tt_json_reader *json, struct tensor_entry *t)
{
    bool is_null = tt_json_peek(json) == 'n';
    struct tt_json_span text;
    int rc = 0;

    TT_TRY(read_text(json, &text));
    t->has_digest =
        text.size == 22 && memcmp(text.text, "sum64:", 6) == 0 && read_digits(text.text + 6, 16, &t->digest);
    t->bad_digest = !is_null && !t->has_digest;
out:
    return rc;
}

/* Adds the tensor once type and shape are known. */
static int add_tensor(struct reading *r, const char *key, const struct tensor_entry *t,
                      struct tt_manifest_tensor **ret_tensor)
{
    enum tt_dtype dtype;
    const char *name;
    int group = group_of(key, &name);
    int64_t volume;

    if (group == TT_CKPT_GROUPS || !tt_dtype_from_name(t->dtype, &dtype) || !tt_dtype_size(dtype) || !t->has_shape ||
        !tt_box_checked_volume(t->shape, t->ndim, &volume) || volume > INT64_MAX / 64 || !t->has_chunks)
        return tt_fail(TT_EDATA, "'%s': the description of tensor '%s' is not valid", r->where, key);
    if (t->bad_digest)
        return tt_fail(TT_EDATA, "'%s': the digest of tensor '%s' is not 'sum64:' and 16 digits", r->where, key);
    *ret_tensor = tt_manifest_add_tensor(r->manifest, (enum tt_ckpt_group)group, name, dtype, t->ndim, t->shape);
    (*ret_tensor)->digest = t->digest;
    (*ret_tensor)->has_digest = t->has_digest;
    return 0;
}

/* Reads the members. If the chunks come last, as titan writes them, they are read at once, and ret_tensor is not
 * NULL. */
static int read_tensor_members(struct reading *r, const char *key, struct tensor_entry *t,
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
        TT_TRY(next_member(&r->json, names, TENSOR_KEYS, &t->seen, &which));
        if (which == TENSOR_DTYPE) {
            TT_TRY(read_text(&r->json, &text));
            if (text.size < sizeof t->dtype && text.size)
                memcpy(t->dtype, text.text, text.size);
        } else if (which == TENSOR_SHAPE) {
            TT_TRY(read_sizes(&r->json, t->shape, &t->ndim, &t->has_shape));
        } else if (which == TENSOR_DIGEST) {
            TT_TRY(read_digest(&r->json, t));
        } else if (which == TENSOR_CHUNKS) {
            t->has_chunks = tt_json_peek(&r->json) == '[';
            t->chunks = r->json.at;
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

static int read_tensor(struct reading *r, const char *key)
{
    struct tt_manifest_tensor *tensor = NULL;
    struct tensor_entry t = {0};
    const char *after;
    int rc = 0;

    TT_TRY(read_tensor_members(r, key, &t, &tensor));
    if (tensor)
        goto out;
    TT_TRY(add_tensor(r, key, &t, &tensor));
    after = r->json.at;
    tt_json_go(&r->json, t.chunks);
    TT_TRY(read_chunks(r, tensor));
    tt_json_go(&r->json, after);
out:
    return rc;
}

/* Reads the object of all tensors; the files of the manifest must be known. TT_EDATA names the tensor that is wrong. */
static int read_tensors(struct reading *r)
{
    struct tt_json_span span;
    struct tt_text key = {0};
    bool more;
    int rc = 0;

    if (tt_json_peek(&r->json) != '{')
        return tt_fail(TT_EDATA, "'%s': no tensors", r->where);
    TT_TRY(tt_json_open(&r->json));
    while ((rc = tt_json_next(&r->json, &more)) == 0 && more) {
        TT_TRY(tt_json_key(&r->json, &span));
        key.size = 0;
        tt_text_add_bytes(&key, span.text, span.size);
        TT_TRY(read_tensor(r, key.text));
    }
out:
    tt_text_release(&key);
    return rc;
}

/* --- files --- */

enum { FILE_PATH, FILE_BYTES, FILE_CRC, FILE_KEYS };

static int read_file(struct reading *r)
{
    static const char *const names[] = {[FILE_PATH] = "path", [FILE_BYTES] = "bytes", [FILE_CRC] = "crc32c"};
    struct tt_json_reader *json = &r->json;
    struct member_int bytes = {0};
    struct tt_json_span text;
    struct tt_manifest_file *file;
    const char *name;
    char *path = NULL;
    uint32_t crc = 0;
    unsigned seen = 0;
    bool is_object = tt_json_peek(json) == '{', has_crc = false;
    int which = is_object ? 0 : -1, rc = 0;

    TT_TRY(is_object ? tt_json_open(json) : tt_json_skip(json));
    while (which >= 0) {
        TT_TRY(next_member(json, names, FILE_KEYS, &seen, &which));
        if (which == FILE_PATH) {
            TT_TRY(read_text(json, &text));
            path = text.text ? tt_strndup(text.text, text.size) : NULL;
        } else if (which == FILE_BYTES) {
            TT_TRY(read_int(json, &bytes));
        } else if (which == FILE_CRC) {
            TT_TRY(read_crc(json, &crc, &has_crc));
        }
    }
    if (!path)
        TT_TRY(fail_member(r->where, seen >> FILE_PATH & 1u, "path", "a string"));
    if (!bytes.good)
        TT_TRY(fail_member(r->where, seen >> FILE_BYTES & 1u, "bytes", "an integer"));
    /* so that the path stays inside the folder */
    if (group_of(path, &name) == TT_CKPT_GROUPS || !name[0] || name[0] == '.' || strchr(name, '/'))
        TT_TRY(tt_fail(TT_EDATA, "'%s': a checkpoint cannot contain the file path '%s'", r->where, path));
    if (!has_crc || bytes.value < 0)
        TT_TRY(tt_fail(TT_EDATA, "'%s': file '%s' has no valid size or checksum", r->where, path));
    file = tt_manifest_add_file(r->manifest, path, bytes.value);
    file->crc = crc;
    file->has_crc = true;
out:
    tt_free(path);
    return rc;
}

static int read_files(struct reading *r)
{
    bool more;
    int rc = 0;

    if (tt_json_peek(&r->json) != '[')
        return tt_fail(TT_EDATA, "'%s': no list of files", r->where);
    TT_TRY(tt_json_open(&r->json));
    while ((rc = tt_json_next(&r->json, &more)) == 0 && more)
        TT_TRY(read_file(r));
out:
    return rc;
}

/* --- values --- */

/* Far beyond any run, with room for sums and products: 4.4e12 steps or samples; samples times seq_len fit in 63
 * bits. */
#define COUNT_MOST  ((int64_t)1 << 42)
#define TOKENS_MOST ((int64_t)1 << 61)
#define SIZE_MOST   ((int64_t)1 << 20)

static int fail_value(const char *where, const char *key, const json_t *value, const char *wanted)
{
    char *found = value ? tt_json_text(value) : tt_strdup("nothing");
    int rc = tt_fail(TT_EDATA, "'%s': '%s' is %.60s, wanted %s", where, key, found, wanted);

    tt_free(found);
    return rc;
}

/* A missing value is not an error here; the code that needs it reports it. */
static int check_int(const json_t *object, const char *key, const char *name, int64_t least, int64_t most,
                     const char *where)
{
    const json_t *value = json_object_get(object, key);
    int64_t number = (int64_t)json_integer_value(value);
    char wanted[64];

    if (!value || (json_is_integer(value) && number >= least && number <= most))
        return 0;
    (void)snprintf(wanted, sizeof wanted, "an integer from %" PRId64 " to %" PRId64, least, most);
    return fail_value(where, name, value, wanted);
}

/* A training state is saved after at least one step; weights alone may be saved before the first step. */
static int check_counters(const struct tt_manifest *manifest, const char *where)
{
    static const struct {
        const char *key;
        int64_t most;
    } counter[] = {{"step", COUNT_MOST},           {"sample_cursor", COUNT_MOST}, {"ntokens_seen", TOKENS_MOST},
                   {"optimizer_step", COUNT_MOST}, {"lr_step", COUNT_MOST},       {"tokens", TOKENS_MOST}};
    bool trained = tt_manifest_group_size(manifest, TT_CKPT_OPTIM, NULL) > 0;
    int rc = 0;

    for (size_t i = 0; i < sizeof counter / sizeof counter[0]; i++)
        TT_TRY(check_int(manifest->meta, counter[i].key, counter[i].key, trained, counter[i].most, where));
out:
    return rc;
}

/* The types of members; a missing member is accepted. */
static int check_types(const json_t *meta, const char *where)
{
    static const struct {
        const char *key, *wanted;
        json_type type;
    } typed[] = {{"mesh", "an object of sizes", JSON_OBJECT}, {"policy", "a word", JSON_STRING},
                 {"run_id", "a word", JSON_STRING},           {"config", "an object", JSON_OBJECT},
                 {"data", "an object", JSON_OBJECT},          {"assets", "a list of files", JSON_ARRAY}};
    const json_t *time = json_object_get(meta, "time");

    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
        const json_t *value = json_object_get(meta, typed[i].key);

        if (value && json_typeof(value) != typed[i].type)
            return fail_value(where, typed[i].key, value, typed[i].wanted);
    }
    return time && !json_is_number(time) ? fail_value(where, "time", time, "a number") : 0;
}

static int check_assets(const json_t *assets, const char *where)
{
    int rc = 0;

    for (size_t i = 0; i < json_array_size(assets); i++) {
        const json_t *entry = json_array_get(assets, i);
        const char *hex = json_string_value(json_object_get(entry, "crc32c"));

        if (!json_is_string(json_object_get(entry, "path")) || !json_is_integer(json_object_get(entry, "bytes")) ||
            !hex || strlen(hex) != 8 || strspn(hex, "0123456789abcdef") != 8)
            return fail_value(where, "assets", entry, "a path, its bytes and its crc32c");
        TT_TRY(check_int(entry, "bytes", "assets.bytes", 0, TT_MANIFEST_BYTES_MOST, where));
    }
out:
    return rc;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Checks that no file is listed twice and that the sum of all sizes does not overflow. */
static int check_files(const struct tt_manifest *manifest, const char *where)
{
    const char **path = tt_calloc_for((size_t)manifest->n_files + 1, sizeof *path, where);
    int64_t bytes = 0;
    int rc = 0;

    if (!path)
        return TT_ENOMEM;
    for (int i = 0; i < manifest->n_files && rc == 0; i++) {
        path[i] = manifest->file[i].path;
        if (__builtin_add_overflow(bytes, manifest->file[i].bytes, &bytes) || bytes > TT_MANIFEST_BYTES_MOST)
            rc = tt_fail(TT_EDATA, "'%s': the sizes of its files add up to more than any checkpoint has", where);
    }
    TT_TRY(rc);
    qsort(path, (size_t)manifest->n_files, sizeof *path, compare_texts);
    for (int i = 1; i < manifest->n_files; i++)
        if (strcmp(path[i - 1], path[i]) == 0)
            TT_TRY(tt_fail(TT_EDATA, "'%s': file '%s' is listed twice", where, path[i]));
out:
    tt_free(path);
    return rc;
}

/* --- the file beside consolidated weights --- */

int tt_run_file_read(const char *folder, json_t **ret_meta)
{
    char *path = tt_format("%s/" TT_RUN_FILE, folder);
    json_t *meta = NULL;
    bool exists = false;
    int rc = 0;

    *ret_meta = NULL;
    TT_TRY(tt_path_exists(path, &exists));
    if (!exists)
        goto out;
    TT_TRY(tt_json_load(path, &meta));
    if (!json_is_object(json_object_get(meta, "config")))
        TT_TRY(tt_fail(TT_EDATA,
                       "'%s' is not what titan writes there: it has no object 'config'\n"
                       "help: remove it, and titan reads the weights without the settings of their run",
                       path));
    TT_TRY(check_types(meta, path));
    TT_TRY(check_int(json_object_get(meta, "data"), "seq_len", "data.seq_len", 1, SIZE_MOST * 16, path));
    *ret_meta = json_incref(meta);
out:
    json_decref(meta);
    tt_free(path);
    return rc;
}

/* Checks every other value: counters, sizes, types, files listed twice. */
static int check_values(const struct tt_manifest *manifest, const char *where)
{
    const json_t *meta = manifest->meta;
    const char *key;
    json_t *value;
    int rc = 0;

    TT_TRY(check_files(manifest, where));
    TT_TRY(tt_manifest_check_totals(manifest, where));
    TT_TRY(check_counters(manifest, where));
    TT_TRY(check_types(meta, where));
    TT_TRY(check_int(meta, "world", "world", 1, SIZE_MOST * 16, where));
    TT_TRY(check_int(json_object_get(meta, "data"), "seq_len", "data.seq_len", 1, SIZE_MOST * 16, where));
    json_object_foreach(json_object_get(meta, "mesh"), key, value)
        TT_TRY(check_int(json_object_get(meta, "mesh"), key, "mesh", 1, SIZE_MOST, where));
    TT_TRY(check_assets(json_object_get(meta, "assets"), where));
out:
    return rc;
}

/* --- the whole --- */

/* The large members. Chunks can be checked only when the files are known, and both only when the version is known. */
enum { FILES, TENSORS, LARGE };

struct large {
    const char *place[LARGE]; /* NULL: not found yet */
    bool done[LARGE];
};

static int read_large(struct reading *r, struct large *large, int which)
{
    int64_t version = 0, step = 0;
    int rc = 0;

    if (which == FILES) {
        TT_TRY(tt_json_get_int(r->manifest->meta, "titan_ckpt", r->where, &version));
        if (version != VERSION)
            return tt_fail(TT_EDATA, "'%s' has format version %" PRId64 ", but this titan reads version %d", r->where,
                           version, VERSION);
        TT_TRY(tt_json_get_int(r->manifest->meta, "step", r->where, &step));
    }
    rc = which == FILES ? read_files(r) : read_tensors(r);
    large->done[which] = true;
out:
    return rc;
}

static int read_member(struct reading *r, struct large *large)
{
    const json_t *meta = r->manifest->meta;
    struct tt_json_span span;
    char *key = NULL;
    const char *place;
    json_t *value = NULL;
    int which, rc = 0;

    (void)tt_json_peek(&r->json);
    place = r->json.at;
    TT_TRY(tt_json_key(&r->json, &span));
    which = is_named(&span, "files") ? FILES : is_named(&span, "tensors") ? TENSORS : LARGE;
    key = tt_strndup(span.text, span.size);
    if (which < LARGE ? large->place[which] != NULL : json_object_get(meta, key) != NULL) {
        rc = tt_json_fail_at(&r->json, place, "duplicate key");
        goto out;
    }
    if (which == LARGE) {
        TT_TRY(tt_json_read_tree(&r->json, &value));
        (void)json_object_set_new_nocheck(r->manifest->meta, key, value);
        goto out;
    }
    large->place[which] = r->json.at;
    if (which == FILES ? json_object_get(meta, "titan_ckpt") && json_object_get(meta, "step") : large->done[FILES])
        TT_TRY(read_large(r, large, which));
    else
        TT_TRY(tt_json_skip(&r->json));
out:
    tt_free(key);
    return rc;
}

static int read_members(struct reading *r)
{
    struct large large = {0};
    bool more;
    int rc = 0;

    if (tt_json_peek(&r->json) != '{')
        return tt_json_fail_at(&r->json, r->json.at, "'{' was expected");
    TT_TRY(tt_json_open(&r->json));
    while ((rc = tt_json_next(&r->json, &more)) == 0 && more)
        TT_TRY(read_member(r, &large));
    TT_TRY(rc);
    TT_TRY(tt_json_finish(&r->json));
    for (int which = 0; which < LARGE; which++) {
        if (large.done[which])
            continue;
        tt_json_go(&r->json, large.place[which] ? large.place[which] : r->json.end);
        TT_TRY(read_large(r, &large, which));
    }
out:
    return rc;
}

/* --- the text --- */

static const char self_key[] = ",\n\"self_crc32c\": \"";
enum { HEX_DIGITS = 8, TAIL_BYTES = sizeof self_key - 1 + HEX_DIGITS + 4 /* "\n}\n */ };

static json_t *tensor_json(const struct tt_manifest_tensor *tensor)
{
    json_t *chunks = json_array();

    for (int i = 0; i < tensor->n_chunks; i++) {
        const struct tt_manifest_chunk *c = &tensor->chunk[i];

        (void)json_array_append_new(chunks, json_pack("{s:i,s:o,s:o,s:I,s:I,s:o}", "file", c->file, "offset",
                                                      tt_json_from_sizes(c->box.offset, c->box.ndim), "shape",
                                                      tt_json_from_sizes(c->box.shape, c->box.ndim), "begin",
                                                      (json_int_t)c->begin, "end", (json_int_t)c->end, "crc32c",
                                                      json_sprintf("%08x", c->crc)));
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "dtype", tt_dtype_name(tensor->dtype), "shape",
                     tt_json_from_sizes(tensor->shape, tensor->ndim), "digest",
                     json_sprintf("sum64:%016" PRIx64, tensor->digest), "chunks", chunks);
}

/* Adds "key": compact value; takes ownership of the value. */
static void add_member(struct tt_text *text, const char *key, json_t *value)
{
    json_t *name = json_string(key);
    char *key_text = tt_json_text(name), *value_text = tt_json_text(value);

    tt_text_add(text, "%s: %s", key_text, value_text);
    tt_free(key_text);
    tt_free(value_text);
    json_decref(name);
    json_decref(value);
}

char *tt_manifest_text(const struct tt_manifest *manifest)
{
    struct tt_text text = {0};
    const char *key;
    json_t *value;

    tt_text_add(&text, "{\n\"titan_ckpt\": %d", VERSION);
    json_object_foreach(manifest->meta, key, value)
    {
        tt_text_add(&text, ",\n");
        add_member(&text, key, json_incref(value));
    }
    tt_text_add(&text, ",\n\"files\": [");
    for (int i = 0; i < manifest->n_files; i++) {
        const struct tt_manifest_file *f = &manifest->file[i];
        json_t *json = json_pack("{s:s,s:I,s:o}", "path", f->path, "bytes", (json_int_t)f->bytes, "crc32c",
                                 json_sprintf("%08x", f->crc));
        char *line = tt_json_text(json);

        tt_text_add(&text, "%s\n %s", i ? "," : "", line);
        tt_free(line);
        json_decref(json);
    }
    tt_text_add(&text, "],\n\"tensors\": {");
    for (int i = 0; i < manifest->n_tensors; i++) {
        const struct tt_manifest_tensor *t = &manifest->tensor[i];
        char *name = tt_format("%s/%s", tt_ckpt_group_name(t->group), t->name);

        tt_text_add(&text, "%s\n ", i ? "," : "");
        add_member(&text, name, tensor_json(t));
        tt_free(name);
    }
    tt_text_add(&text, "}");
    tt_text_add(&text, "%s%08x\"\n}\n", self_key, tt_crc32c(0, text.text, text.size));
    return text.text;
}

/* The manifest of a large job takes a hundred megabytes; as one JSON value it would need more than a gigabyte. So
 * files and tensors are read into their structs directly, and only the other members become values. Members may come
 * in any order; titan's own order needs only one pass. Unknown members of files, tensors and chunks are ignored. */
int tt_manifest_parse(const char *text, size_t size, const char *where, struct tt_manifest *ret_manifest)
{
    struct reading r = {.manifest = ret_manifest, .where = where};
    char tail[TAIL_BYTES + 1];
    int rc = 0;

    *ret_manifest = (struct tt_manifest){.meta = json_object()};
    tt_json_reader_init(&r.json, text, size, where);
    if (size > TAIL_BYTES)
        (void)snprintf(tail, sizeof tail, "%s%08x\"\n}\n", self_key, tt_crc32c(0, text, size - TAIL_BYTES));
    if (size <= TAIL_BYTES || memcmp(text + size - TAIL_BYTES, tail, TAIL_BYTES) != 0)
        TT_TRY(tt_fail(TT_EDATA, "'%s' is damaged: its own checksum does not match", where));
    TT_TRY(read_members(&r));
    (void)json_object_del(ret_manifest->meta, "titan_ckpt");
    (void)json_object_del(ret_manifest->meta, "self_crc32c");
    tt_manifest_sort(ret_manifest);
    TT_TRY(tt_manifest_check_names(ret_manifest, where));
    TT_TRY(check_values(ret_manifest, where));
out:
    if (rc < 0)
        tt_manifest_release(ret_manifest);
    tt_json_reader_release(&r.json);
    tt_free(r.chunk);
    return rc;
}

int tt_manifest_load(const char *folder, struct tt_manifest *ret_manifest)
{
    char *path = tt_format("%s/manifest.json", folder), *text = NULL;
    size_t size = 0;
    bool exists = false;
    int rc = 0;

    TT_TRY(tt_path_exists(path, &exists));
    if (!exists)
        TT_TRY(tt_fail(TT_EDATA, "'%s' has no manifest.json: it is not a complete checkpoint", folder));
    TT_TRY(tt_file_read(path, &text, &size));
    TT_TRY(tt_manifest_parse(text, size, path, ret_manifest));
out:
    tt_free(text);
    tt_free(path);
    return rc;
}
