/* SPDX-License-Identifier: MIT
 *
 * The frozen weights that checkpoints leave out: their names in a manifest, and their digests.
 */
#include "checkpoint/format/base.h"

#include <inttypes.h>
#include <string.h>

#include "checkpoint/format/digest.h"
#include "core/os/file.h"

static bool packing_of(const char *name, enum tt_packing_choice *ret_packing)
{
    for (enum tt_packing_choice packing = TT_PACKING_NONE + 1; name && packing < TT_PACKINGS; packing++)
        if (strcmp(name, tt_packing_name(packing)) == 0) {
            *ret_packing = packing;
            return true;
        }
    return false;
}

bool tt_ckpt_base_of(const json_t *meta, struct tt_ckpt_base *ret_base)
{
    const json_t *base = json_object_get(meta, "base"), *config = json_object_get(meta, "config");
    const char *of_run = json_string_value(json_object_get(json_object_get(config, "lora"), "base_dtype"));
    const char *dtype = json_string_value(json_object_get(json_object_get(config, "training"), "dtype"));

    *ret_base = (struct tt_ckpt_base){.path = json_string_value(json_object_get(base, "path")),
                                      .dtype = dtype && strcmp(dtype, "bfloat16") == 0 ? TT_BF16 : TT_F32,
                                      .digests = json_object_get(base, "digests")};
    ret_base->compares = packing_of(json_string_value(json_object_get(base, "dtype")), &ret_base->packing);
    if (base && !ret_base->compares && packing_of(of_run, &ret_base->packing))
        ret_base->compares = ret_base->packing != TT_PACKING_NF4;
    return json_is_object(base);
}

int tt_ckpt_base_find(const struct tt_ckpt_base *base, const char *checkpoint, const char *given, const char **ret_path)
{
    bool exists = false;
    int rc = 0;

    *ret_path = given ? given : base->path;
    if (!*ret_path)
        return tt_fail(TT_EDATA,
                       "'%s' has only the adapters of a run with packed weights, which began from random weights\n"
                       "help: titan ckpt consolidate %s FOLDER --adapter exports the adapters",
                       checkpoint, checkpoint);
    TT_TRY(tt_path_exists(*ret_path, &exists));
    if (!exists)
        rc = tt_fail(TT_EDATA,
                     "'%s' has only the adapters of a run with packed weights, and the weights from which it began, "
                     "'%s', do not exist\nhelp: " TT_BASE_HELP,
                     checkpoint, *ret_path);
out:
    return rc;
}

/* Bytes are digested by pairs, at their places in the whole row. With nf4, some columns of a row are not a part of its
 * bytes, so the digest is that of what each block depends on. */
static uint64_t digest_row(enum tt_packing_choice packing, int64_t width, int64_t row, int64_t begin, int64_t n,
                           const void *data)
{
    int64_t halves = tt_packing_row_bytes(packing, width) / 2, at = row * halves;
    uint16_t block[TT_NF4_HALVES];
    const char *bytes = data;
    uint64_t digest = 0;

    switch (packing) {
    case TT_PACKING_INT8: /* the scale, then the elements */
        if (begin == 0)
            digest = tt_digest_part(TT_U16, bytes, at, 2);
        return digest + tt_digest_part(TT_U16, bytes + sizeof(float), at + 2 + begin / 2, (n + 1) / 2);
    case TT_PACKING_NF4:
        for (int64_t b = 0; b < n / TT_NF4_BLOCK; b++) {
            tt_nf4_halves(data, n, b, block);
            at = (row * (width / TT_NF4_BLOCK) + begin / TT_NF4_BLOCK + b) * TT_NF4_HALVES;
            digest += tt_digest_part(TT_U16, block, at, TT_NF4_HALVES);
        }
        return digest;
    default:
        return tt_digest_part(TT_U16, bytes, at + tt_packing_row_bytes(packing, begin) / 2,
                              tt_packing_row_bytes(packing, n) / 2);
    }
}

uint64_t tt_base_digest(enum tt_packing_choice packing, enum tt_dtype dtype, const int64_t *shape,
                        const struct tt_box *part, const void *data)
{
    int64_t bytes = packing ? tt_packing_row_bytes(packing, part->shape[1]) : 0;
    uint64_t digest = 0;

    if (!packing)
        return tt_digest_box(dtype, shape, part, 0, tt_box_volume(part), data);
    for (int64_t r = 0; r < part->shape[0] && part->shape[1] > 0; r++)
        digest += digest_row(packing, shape[1], part->offset[0] + r, part->offset[1], part->shape[1],
                             (const char *)data + r * bytes);
    return digest;
}

json_t *tt_base_digest_json(uint64_t digest)
{
    return json_sprintf("%016" PRIx64, digest);
}

int tt_base_compare(const struct tt_ckpt_base *base, const char *name, const json_t *digest, const char *help)
{
    const json_t *was = json_object_get(base->digests, name);

    if (was && json_equal(was, digest))
        return 0;
    return tt_fail(TT_EDATA,
                   "the adapters were trained on other weights%s%s: '%s' has digest %s, this run's has %s\nhelp: %s",
                   base->path ? " from " : "", base->path ? base->path : "", name,
                   json_is_string(was) ? json_string_value(was) : "none", json_string_value(digest), help);
}
