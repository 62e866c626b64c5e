/* SPDX-License-Identifier: MIT
 *
 * The parameters of adapters. They are initialised as PEFT does it, and have its names in its files.
 */
#include "core/models/lora.h"

#include <math.h>
#include <string.h>

#include "core/base/mem.h"

const char *const tt_lora_modules[] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
const int tt_lora_n_modules = (int)(sizeof tt_lora_modules / sizeof tt_lora_modules[0]);

static const char weight[] = ".weight";

unsigned tt_lora_module(const char *name)
{
    for (int i = 0; i < tt_lora_n_modules; i++)
        if (strcmp(tt_lora_modules[i], name) == 0)
            return 1U << i;
    return 0;
}

/* Whether a parameter is the weight of one of the modules: "model.layers.0.self_attn.q_proj.weight". */
static bool is_target(const struct tt_param *param, unsigned modules)
{
    size_t size = param->hf_name ? strlen(param->hf_name) : 0, end = sizeof weight - 1;

    if (param->block < 0 || param->ndim != 2 || size <= end || strcmp(param->hf_name + size - end, weight) != 0)
        return false;
    for (int i = 0; i < tt_lora_n_modules; i++) {
        size_t n = strlen(tt_lora_modules[i]);

        if ((modules & 1U << i) && size > end + n &&
            strncmp(param->hf_name + size - end - n, tt_lora_modules[i], n) == 0 &&
            param->hf_name[size - end - n - 1] == '.')
            return true;
    }
    return false;
}

bool tt_lora_is_name(const char *name)
{
    static const char *const ends[] = {".lora_a.weight", ".lora_b.weight", ".lora_A.weight", ".lora_B.weight"};
    size_t size = strlen(name), n = strlen(ends[0]);

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (size > n && strcmp(name + size - n, ends[i]) == 0)
            return true;
    return false;
}

/* "<prefix><name without .weight>.<which>.weight" */
static char *name_of(const char *prefix, const char *name, const char *which)
{
    return tt_format("%s%.*s.%s%s", prefix, (int)(strlen(name) - (sizeof weight - 1)), name, which, weight);
}

static struct tt_param *add(struct tt_model *model, const struct tt_param *of, const char *ours, const char *theirs)
{
    struct tt_param *p = &TT_PUSH(model->params, model->n_params, model->cap_params);

    *p = (struct tt_param){.name = name_of("", of->name, ours),
                           .hf_name = name_of("base_model.model.", of->hf_name, theirs),
                           .ndim = 2,
                           .block = of->block,
                           .lr_factor = 1.0,
                           .adapter = true};
    return p;
}

/* A as torch.nn.Linear does it: Kaiming's uniform numbers with a = sqrt(5). */
static void add_adapter(struct tt_model *model, struct tt_param of)
{
    double bound = 1.0 / sqrt((double)of.shape[1]);
    struct tt_param *p = add(model, &of, "lora_a", "lora_A");

    p->shape[0] = model->dims.lora.rank;
    p->shape[1] = of.shape[1];
    p->init = TT_PARAM_UNIFORM;
    p->low = -bound;
    p->high = bound;
    p->tp = of.tp == TT_TP_COLUMNS ? TT_TP_COLUMNS : TT_TP_WHOLE; /* the columns of A are those of the weight, */
    p = add(model, &of, "lora_b", "lora_B");
    p->shape[0] = of.shape[0];
    p->shape[1] = model->dims.lora.rank;
    p->init = TT_PARAM_ZEROS;
    p->tp = of.tp == TT_TP_ROWS ? TT_TP_ROWS : TT_TP_WHOLE; /* and so are the rows of B */
    p->hf_transform = of.hf_transform;
    p->hf_heads = of.hf_heads;
}

void tt_lora_add(struct tt_model *model)
{
    struct tt_param *base = model->params;
    int n = model->n_params;

    if (model->dims.lora.rank == 0)
        return;
    model->params = NULL;
    model->n_params = model->cap_params = 0;
    for (int p = 0; p < n; p++) {
        base[p].frozen = true;
        base[p].adapted = is_target(&base[p], model->dims.lora.modules);
        TT_PUSH(model->params, model->n_params, model->cap_params) = base[p];
        if (base[p].adapted)
            add_adapter(model, base[p]);
    }
    tt_free(base);
}
