/* SPDX-License-Identifier: MIT
 *
 * Names the frozen weights that checkpoints leave out.
 */
#include "trainer/start/base.h"

#include <inttypes.h>

#include "checkpoint/format/digest.h"
#include "core/base/mem.h"
#include "core/math/packing.h"
#include "parallel/layout/placement.h"

static bool is_of_base(const struct tt_param *param)
{
    return param->frozen && !param->buffer;
}

/* The digest of this rank's part; 0 if an earlier rank has the same. Packed rows count as numbers of 16 bits. */
static uint64_t digest_of(const struct tt_setup *s, const struct tt_ckpt_chunk *chunk)
{
    const struct tt_mesh *mesh = &s->job.mesh;
    int64_t halves;
    struct tt_box part;

    if (tt_box_volume(&chunk->part) == 0 || !tt_placement_has(mesh, &chunk->placement, s->comm->rank) ||
        tt_placement_copy(mesh, &chunk->placement, s->comm->rank) > 0)
        return 0;
    if (!chunk->packing)
        return tt_digest_box(chunk->dtype, chunk->shape, &chunk->part, 0, tt_box_volume(&chunk->part), chunk->data);
    halves = tt_packing_row_bytes(chunk->packing, chunk->shape[1]) / 2;
    part = tt_box_rows(2, (int64_t[2]){chunk->shape[0], halves}, chunk->part.offset[0], chunk->part.shape[0]);
    return tt_digest_box(TT_U16, (int64_t[2]){chunk->shape[0], halves}, &part, 0, tt_box_volume(&part), chunk->data);
}

int tt_base_describe(const struct tt_setup *s, const struct tt_job_tensors *tensors, const char *path,
                     json_t **ret_base)
{
    const struct tt_model *model = s->job.model;
    int64_t *digest = tt_calloc((size_t)model->n_params, sizeof *digest);
    json_t *digests = NULL;
    int rc = 0;

    for (int p = 0; p < model->n_params; p++)
        if (is_of_base(&model->params[p]))
            digest[p] = (int64_t)digest_of(s, &tensors->whole.model[p]);
    TT_TRY(tt_comm_sum_i64(s->comm, digest, model->n_params));
    digests = json_object();
    for (int p = 0; p < model->n_params; p++)
        if (is_of_base(&model->params[p]))
            (void)json_object_set_new(digests, model->params[p].name, json_sprintf("%016" PRIx64, (uint64_t)digest[p]));
    *ret_base = json_pack("{s:o*, s:o}", "path", path ? tt_json_string(path) : NULL, "digests", digests);
out:
    tt_free(digest);
    return rc;
}

int tt_base_check(const json_t *base, const json_t *meta)
{
    const json_t *was = json_object_get(meta, "base"), *now;
    const char *path = json_string_value(json_object_get(was, "path")), *name;

    json_object_foreach((json_t *)(uintptr_t)json_object_get(base, "digests"), name, now)
    {
        const json_t *digest = json_object_get(json_object_get(was, "digests"), name);

        if (!digest || !json_equal(digest, now))
            return tt_fail(TT_EDATA,
                           "the adapters were trained on other weights%s%s: '%s' has digest %s, this run's has %s\n"
                           "help: begin from the same weights, or choose another --job.dump_folder",
                           path ? " from " : "", path ? path : "", name,
                           json_is_string(digest) ? json_string_value(digest) : "none", json_string_value(now));
    }
    return 0;
}
