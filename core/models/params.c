/* SPDX-License-Identifier: MIT
 *
 * Appends parameters to a model's list.
 */
#include "core/models/params.h"

#include "core/base/mem.h"

static struct tt_param *add(struct tt_model *model, int block, const char *name, const char *hf_name)
{
    struct tt_param *p = &TT_PUSH(model->params, model->n_params, model->cap_params);

    *p = (struct tt_param){.block = block, .lr_factor = 1.0};
    if (block < 0) {
        p->name = tt_strdup(name);
        p->hf_name = hf_name ? tt_strdup(hf_name) : NULL;
    } else {
        p->name = tt_format("layers.%d.%s", block, name);
        p->hf_name = hf_name ? tt_format("%s%d.%s", model->row->hf_blocks, block, hf_name) : NULL;
    }
    return p;
}

struct tt_param *tt_params_matrix(struct tt_model *model, int block, const char *name, const char *hf_name,
                                  int64_t rows, int64_t columns, struct tt_normal normal)
{
    struct tt_param *p = add(model, block, name, hf_name);

    p->ndim = 2;
    p->shape[0] = rows;
    p->shape[1] = columns;
    p->init = TT_PARAM_NORMAL;
    p->std = normal.depth > 0.0 ? TT_INIT_STD / normal.depth : normal.std;
    p->cut = normal.cut;
    p->depth = normal.depth;
    return p;
}

struct tt_param *tt_params_experts(struct tt_model *model, int block, const char *name, const char *hf_name,
                                   int64_t experts, int64_t rows, int64_t columns, struct tt_normal normal)
{
    struct tt_param *p = tt_params_matrix(model, block, name, hf_name, rows, columns, normal);

    p->ndim = 3;
    p->shape[0] = experts;
    p->shape[1] = rows;
    p->shape[2] = columns;
    p->hf_transform = TT_HF_EXPERTS;
    p->of_experts = true;
    return p;
}

struct tt_param *tt_params_vector(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n,
                                  enum tt_param_init init)
{
    struct tt_param *p = add(model, block, name, hf_name);

    p->ndim = 1;
    p->shape[0] = n;
    p->init = init;
    return p;
}

struct tt_param *tt_params_buffer(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n)
{
    struct tt_param *p = tt_params_vector(model, block, name, hf_name, n, TT_PARAM_ZEROS);

    p->frozen = p->buffer = true;
    return p;
}
