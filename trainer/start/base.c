/* SPDX-License-Identifier: MIT
 *
 * Names the frozen weights that checkpoints leave out.
 */
#include "trainer/start/base.h"

#include "checkpoint/format/base.h"
#include "core/base/mem.h"
#include "core/math/packing.h"
#include "parallel/layout/placement.h"

static bool is_of_base(const struct tt_param *param)
{
    return param->frozen && !param->buffer;
}

uint64_t tt_base_part_digest(const struct tt_mesh *mesh, int rank, const struct tt_ckpt_chunk *chunk)
{
    if (tt_box_volume(&chunk->part) == 0 || !tt_placement_has(mesh, &chunk->placement, rank) ||
        tt_placement_copy(mesh, &chunk->placement, rank) > 0)
        return 0;
    return tt_base_digest(chunk->packing, chunk->dtype, chunk->shape, &chunk->part, chunk->data);
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
            digest[p] = (int64_t)tt_base_part_digest(&s->job.mesh, s->comm->rank, &tensors->whole.model[p]);
    TT_TRY(tt_comm_sum_i64(s->comm, digest, model->n_params));
    digests = json_object();
    for (int p = 0; p < model->n_params; p++)
        if (is_of_base(&model->params[p]))
            (void)json_object_set_new(digests, model->params[p].name, tt_base_digest_json((uint64_t)digest[p]));
    *ret_base = json_pack("{s:o*, s:s, s:o}", "path", path ? tt_json_string(path) : NULL, "dtype",
                          tt_packing_name(model->dims.lora.packing), "digests", digests);
out:
    tt_free(digest);
    return rc;
}

int tt_base_check(const struct tt_model *model, const json_t *now, const json_t *meta)
{
    const json_t *digests = json_object_get(now, "digests");
    struct tt_ckpt_base base;
    int rc = 0;

    (void)tt_ckpt_base_of(meta, &base);
    if (!base.compares)
        tt_note("the checkpoint was written by an older titan, whose digests of nf4 cannot be compared: only the other "
                "frozen weights are checked");
    for (int p = 0; p < model->n_params; p++) {
        const char *name = model->params[p].name;

        if (is_of_base(&model->params[p]) && (base.compares || !model->params[p].packing))
            TT_TRY(tt_base_compare(&base, name, json_object_get(digests, name),
                                   "begin from the same weights, or choose another --job.dump_folder"));
    }
out:
    return rc;
}
