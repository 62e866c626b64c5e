/* SPDX-License-Identifier: MIT
 *
 * An open dataset: reading its tokens, and checking that the file is still the one that was prepared.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/data/dataset.h"
#include "core/os/file.h"

/* Adds the host to the message: ranks on other hosts may see another file under the same path. */
static int say_host(int rc)
{
    char host[256] = "";

    (void)gethostname(host, sizeof host - 1);
    return tt_wrap(rc, "host '%s'", host);
}

static int fail_changed(const struct tt_dataset *d, const char *how)
{
    return say_host(tt_fail(TT_EDATA,
                            "'%s' does not hold the tokens that were prepared: %s\nhelp: the file was changed while it "
                            "was in use, or this host has another one under that name. The folder must be shared, or "
                            "every host must have the same file",
                            d->ref.path, how));
}

static int check_size(const struct tt_dataset *d, const struct stat *st)
{
    char *how;
    int rc = 0;

    if ((int64_t)st->st_size == d->ref.info.file_size)
        return 0;
    how = tt_format("it has %lld bytes here, %lld were prepared", (long long)st->st_size,
                    (long long)d->ref.info.file_size);
    rc = fail_changed(d, how);
    tt_free(how);
    return rc;
}

static int look(const struct tt_dataset *d, struct stat *ret_st)
{
    if (fstat(d->fd, ret_st) < 0)
        return say_host(tt_fail(TT_EIO, "cannot stat '%s': %s", d->ref.path, strerror(errno)));
    return check_size(d, ret_st);
}

static double modified_sec(const struct stat *st)
{
    return (double)st->st_mtim.tv_sec + 1e-9 * (double)st->st_mtim.tv_nsec;
}

int tt_dataset_open(const struct tt_dataset_ref *ref, struct tt_dataset **ret_dataset)
{
    struct tt_dataset *d = tt_calloc(1, sizeof *d);
    struct stat st;
    int64_t bytes = 0;
    int rc;

    d->ref = *ref;
    d->fd = -1;
    if ((rc = tt_file_open(ref->path, &d->fd, &bytes)) < 0) {
        rc = say_host(rc);
        goto out;
    }
    TT_TRY(look(d, &st));
    d->device = (uint64_t)st.st_dev;
    d->inode = (uint64_t)st.st_ino;
    d->modified_sec = modified_sec(&st);
    if (ref->info.offsets_at && (rc = tt_tokenfile_offsets(d->fd, ref->path, &ref->info, &d->offsets)) < 0) {
        rc = say_host(rc);
        goto out;
    }
    *ret_dataset = d;
    return 0;
out:
    tt_dataset_free(d);
    return rc;
}

void tt_dataset_free(struct tt_dataset *dataset)
{
    if (!dataset)
        return;
    if (dataset->fd >= 0)
        (void)close(dataset->fd);
    tt_free(dataset->offsets);
    tt_free(dataset);
}

int tt_dataset_verify(struct tt_dataset *dataset)
{
    const struct tt_dataset_ref *ref = &dataset->ref;
    uint64_t digest = 0;
    struct stat st;
    char how[96];
    int rc = 0;

    TT_TRY(look(dataset, &st));
    if ((rc = tt_tokenfile_digest(dataset->fd, ref->path, &ref->info, &digest)) < 0)
        return say_host(rc);
    if (digest != ref->info.digest) {
        (void)snprintf(how, sizeof how, "its digest is %016" PRIx64 ", wanted %016" PRIx64, digest, ref->info.digest);
        return fail_changed(dataset, how);
    }
    dataset->modified_sec = modified_sec(&st);
out:
    return rc;
}

int tt_dataset_recheck(struct tt_dataset *dataset)
{
    struct stat st;
    int rc = look(dataset, &st);

    return rc < 0 || modified_sec(&st) == dataset->modified_sec ? rc : tt_dataset_verify(dataset);
}

/* Converts the uint16 at the end of the array to int32 from its beginning on. */
static void widen(int32_t *ids, int64_t n)
{
    const char *from = (const char *)ids + (size_t)n * sizeof(uint16_t);

    for (int64_t i = 0; i < n; i++) {
        uint16_t id;

        memcpy(&id, from + (size_t)i * sizeof id, sizeof id);
        ids[i] = id;
    }
}

static int fail_id(const struct tt_dataset *d, int64_t begin, const int32_t *ids)
{
    int64_t i = 0;
    char how[128];

    while ((uint32_t)ids[i] <= d->ref.info.max_id)
        i++;
    (void)snprintf(how, sizeof how, "id %u at position %lld, the largest was %lld", (uint32_t)ids[i],
                   (long long)(begin + i), (long long)d->ref.info.max_id);
    return fail_changed(d, how);
}

int tt_dataset_copy(const struct tt_dataset *dataset, int64_t begin, int64_t n, int32_t *ids)
{
    const struct tt_token_info *info = &dataset->ref.info;
    size_t bytes = (size_t)n * (size_t)info->item_size;
    uint32_t largest = 0;
    struct stat st;
    int rc, changed;

    if (begin < 0 || n < 0 || n > info->n_tokens - begin)
        return tt_fail(TT_EINTERNAL, "tokens %lld to %lld of %lld", (long long)begin, (long long)(begin + n),
                       (long long)info->n_tokens);
    rc = tt_file_pread(dataset->fd, dataset->ref.path, (char *)(ids + n) - bytes, bytes,
                       info->tokens_at + begin * info->item_size);
    if (rc == TT_EDATA && (changed = look(dataset, &st)) < 0)
        return changed; /* what changed says more than where the file ends */
    if (rc < 0)
        return say_host(rc);
    if (info->item_size == 2)
        widen(ids, n);
    for (int64_t i = 0; i < n; i++)
        largest = (uint32_t)ids[i] > largest ? (uint32_t)ids[i] : largest;
    return largest > info->max_id ? fail_id(dataset, begin, ids) : 0;
}

/* The bytes with the bits of the tokens are read to the end of ret_counts, and spread from its beginning. */
int tt_dataset_counts(const struct tt_dataset *dataset, int64_t begin, int64_t n, uint8_t *ret_counts)
{
    const struct tt_token_info *info = &dataset->ref.info;
    int64_t shift = begin % 8, bytes = (shift + n + 7) / 8;
    uint8_t *from;
    int rc;

    if (!info->mask_at || begin < 0 || n < 0 || n > info->n_tokens - begin)
        return tt_fail(TT_EINTERNAL, "mask of tokens %lld to %lld of %lld", (long long)begin, (long long)(begin + n),
                       (long long)info->n_tokens);
    if (!n)
        return 0;
    from = ret_counts + n - bytes;
    rc = tt_file_pread(dataset->fd, dataset->ref.path, from, (size_t)bytes, info->mask_at + begin / 8);
    if (rc < 0)
        return say_host(rc);
    for (int64_t i = 0; i < n; i++)
        ret_counts[i] = from[(shift + i) / 8] >> (shift + i) % 8 & 1;
    return 0;
}
