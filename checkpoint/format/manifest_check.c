/* SPDX-License-Identifier: MIT
 *
 * Checks that each value of a manifest is one that a save can have written, so that code that uses them need not check
 * again. The checksum only shows that the text is complete, not that it makes sense.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/manifest.h"
#include "core/base/mem.h"

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

/* A training state is saved after at least one step; weights alone may be from before the first. */
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

static int check_mesh(const json_t *mesh, const char *where)
{
    const char *key;
    json_t *value;
    int rc = 0;

    if (mesh && !json_is_object(mesh))
        return fail_value(where, "mesh", mesh, "an object of sizes");
    json_object_foreach((json_t *)(uintptr_t)mesh, key, value)
        TT_TRY(check_int(mesh, key, "mesh", 1, SIZE_MOST, where));
out:
    return rc;
}

static int check_type(const json_t *meta, const char *key, bool good, const char *wanted, const char *where)
{
    const json_t *value = json_object_get(meta, key);

    return !value || good ? 0 : fail_value(where, key, value, wanted);
}

static int check_assets(const json_t *assets, const char *where)
{
    uint32_t crc;
    int rc = 0;

    if (assets && !json_is_array(assets))
        return fail_value(where, "assets", assets, "a list of files");
    for (size_t i = 0; i < json_array_size(assets); i++) {
        const json_t *entry = json_array_get(assets, i);

        if (!json_is_string(json_object_get(entry, "path")) || !json_is_integer(json_object_get(entry, "bytes")) ||
            !tt_manifest_read_hex(entry, "crc32c", &crc))
            return fail_value(where, "assets", entry, "a path, its bytes and its crc32c");
        TT_TRY(check_int(entry, "bytes", "assets.bytes", 0, TT_MANIFEST_BYTES_MOST, where));
    }
out:
    return rc;
}

static int check_data(const json_t *data, const char *where)
{
    int rc = 0;

    if (data && !json_is_object(data))
        return fail_value(where, "data", data, "an object");
    TT_TRY(check_int(data, "seq_len", "data.seq_len", 1, SIZE_MOST * 16, where));
out:
    return rc;
}

static int compare_paths(const void *pa, const void *pb)
{
    return strcmp(*(const char *const *)pa, *(const char *const *)pb);
}

/* No file is listed twice, and the sum of all sizes does not overflow. */
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
            rc = tt_fail(TT_EDATA, "'%s': its files have more bytes together than any checkpoint", where);
    }
    TT_TRY(rc);
    qsort(path, (size_t)manifest->n_files, sizeof *path, compare_paths);
    for (int i = 1; i < manifest->n_files; i++) {
        if (strcmp(path[i - 1], path[i]) != 0)
            continue;
        rc = tt_fail(TT_EDATA, "'%s': file '%s' is listed twice", where, path[i]);
        goto out;
    }
out:
    tt_free(path);
    return rc;
}

int tt_manifest_check_totals(const struct tt_manifest *manifest, const char *where)
{
    int64_t bytes = 0, volume = 0, more = 0;

    for (int i = 0; i < manifest->n_tensors; i++) {
        const struct tt_manifest_tensor *t = &manifest->tensor[i];

        if (!tt_box_checked_volume(t->shape, t->ndim, &volume) || volume > TT_MANIFEST_BYTES_MOST ||
            __builtin_mul_overflow(volume, (int64_t)tt_dtype_bits(t->dtype), &more) ||
            __builtin_add_overflow(bytes, more / 8, &bytes) || bytes > TT_MANIFEST_BYTES_MOST)
            return tt_fail(TT_EDATA, "'%s': its tensors, up to '%s', have more bytes than any checkpoint", where,
                           t->name);
    }
    return 0;
}

int tt_manifest_check_values(const struct tt_manifest *manifest, const char *where)
{
    const json_t *meta = manifest->meta;
    int rc = 0;

    TT_TRY(check_files(manifest, where));
    TT_TRY(tt_manifest_check_totals(manifest, where));
    TT_TRY(check_counters(manifest, where));
    TT_TRY(check_int(meta, "world", "world", 1, SIZE_MOST * 16, where));
    TT_TRY(check_mesh(json_object_get(meta, "mesh"), where));
    TT_TRY(check_type(meta, "policy", json_is_string(json_object_get(meta, "policy")), "a word", where));
    TT_TRY(check_type(meta, "run_id", json_is_string(json_object_get(meta, "run_id")), "a word", where));
    TT_TRY(check_type(meta, "time", json_is_number(json_object_get(meta, "time")), "a number", where));
    TT_TRY(check_type(meta, "config", json_is_object(json_object_get(meta, "config")), "an object", where));
    TT_TRY(check_data(json_object_get(meta, "data"), where));
    TT_TRY(check_assets(json_object_get(meta, "assets"), where));
out:
    return rc;
}
