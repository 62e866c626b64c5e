/* SPDX-License-Identifier: MIT
 *
 * The parameters of adapters. They are initialised as in PEFT, and have PEFT's names in its files.
 */
#include "core/models/lora.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "core/base/mem.h"

const char *const tt_lora_modules[] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
const int tt_lora_n_modules = (int)(sizeof tt_lora_modules / sizeof tt_lora_modules[0]);

/* The layers in Hugging Face's classes, and their modules. Some classes combine several modules in one layer. */
#define BIT(module) (1U << TT_MODULE_##module)
static const struct layer {
    const char *name;
    unsigned modules;
} layers[] = {
    {"q_proj", BIT(Q)},
    {"k_proj", BIT(K)},
    {"v_proj", BIT(V)},
    {"qkv_proj", BIT(Q) | BIT(K) | BIT(V)},
    {"o_proj", BIT(O)},
    {"gate_proj", BIT(GATE)},
    {"up_proj", BIT(UP)},
    {"gate_up_proj", BIT(GATE) | BIT(UP)},
    {"c_fc", BIT(UP)},
    {"down_proj", BIT(DOWN)},
    {"c_proj", BIT(DOWN)},
    {"query_key_value", BIT(Q) | BIT(K) | BIT(V)},
    {"dense", BIT(O)},
    {"dense_h_to_4h", BIT(UP)},
    {"dense_4h_to_h", BIT(DOWN)},
};
#undef BIT

enum { N_LAYERS = sizeof layers / sizeof *layers };
static_assert((int)N_LAYERS <= (int)TT_LORA_LAYERS, "room for all names");

static const char weight[] = ".weight";

unsigned tt_lora_module(const char *name)
{
    for (int i = 0; i < N_LAYERS; i++)
        if (strcmp(layers[i].name, name) == 0)
            return layers[i].modules;
    return 0;
}

/* The layer to which a weight belongs: "model.layers.0.self_attn.q_proj.weight"; NULL: no layer that has adapters. */
static const struct layer *layer_of(const struct tt_param *param)
{
    size_t size = param->hf_name ? strlen(param->hf_name) : 0, end = sizeof weight - 1;

    if (param->block < 0 || param->ndim != 2 || size <= end || strcmp(param->hf_name + size - end, weight) != 0)
        return NULL;
    for (int i = 0; i < N_LAYERS; i++) {
        size_t n = strlen(layers[i].name);

        if (size > end + n && strncmp(param->hf_name + size - end - n, layers[i].name, n) == 0 &&
            param->hf_name[size - end - n - 1] == '.')
            return &layers[i];
    }
    return NULL;
}

bool tt_lora_is_layer(const struct tt_param *param)
{
    return layer_of(param) != NULL;
}

int tt_lora_layers(const struct tt_model *model, const char **ret_names)
{
    bool has[N_LAYERS] = {false};
    int n = 0;

    for (int p = 0; p < model->n_params; p++)
        if (model->params[p].adapted)
            has[layer_of(&model->params[p]) - layers] = true;
    for (int i = 0; i < N_LAYERS; i++)
        if (has[i])
            ret_names[n++] = layers[i].name;
    return n;
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

/* A, initialised as torch.nn.Linear does it: Kaiming's uniform numbers with a = sqrt(5). */
static void add_a(struct tt_model *model, const struct tt_param *of)
{
    double bound = 1.0 / sqrt((double)of->shape[1]);
    struct tt_param *p = add(model, of, "lora_a", "lora_A");

    p->shape[0] = model->dims.lora.rank;
    p->shape[1] = of->shape[1];
    p->init = TT_PARAM_UNIFORM;
    p->low = -bound;
    p->high = bound;
    p->tp = of->tp == TT_TP_COLUMNS ? TT_TP_COLUMNS : TT_TP_WHOLE; /* A is cut like the weight's columns */
}

/* The rows of B are the weight's rows. */
static void add_b(struct tt_model *model, const struct tt_param *of)
{
    struct tt_param *p = add(model, of, "lora_b", "lora_B");

    p->shape[0] = of->shape[0];
    p->shape[1] = model->dims.lora.rank;
    p->init = TT_PARAM_ZEROS;
    p->tp = of->tp == TT_TP_ROWS ? TT_TP_ROWS : TT_TP_WHOLE;
    p->hf_transform = of->hf_transform;
    p->hf_heads = of->hf_heads;
    p->hf_part = of->hf_part;
    p->hf_parts = of->hf_parts;
    p->hf_row = of->hf_row;
    p->hf_rows = of->hf_rows;
}

/* Adds a weight and its adapter. Weights that are parts of one tensor must come one after the other; they share A. */
static void add_adapted(struct tt_model *model, const struct tt_param *of)
{
    struct tt_param *p = &TT_PUSH(model->params, model->n_params, model->cap_params);
    int at = model->n_params - 1, before = at - 1;

    *p = *of;
    p->adapted = true;
    if (of->hf_part == 0)
        add_a(model, of);
    while (of->hf_part > 0 && !model->params[before].adapted)
        before--;
    p = &model->params[at];
    p->lora_a = of->hf_part == 0 ? at + 1 : model->params[before].lora_a;
    p->lora_b = model->n_params;
    add_b(model, of);
}

/* Packs the weight of a layer. */
static int pack(struct tt_param *param, enum tt_packing_choice packing)
{
    param->packing = packing;
    if (param->shape[1] % tt_packing_block(packing) == 0)
        return 0;
    return tt_fail_key(TT_EUSAGE, TT_KEY(lora.base_dtype),
                       "rows of %s have %lld elements, not a multiple of the block size %lld that %s needs\n"
                       "help: use %s=int8 or bfloat16",
                       param->name, (long long)param->shape[1], (long long)tt_packing_block(packing),
                       tt_packing_name(packing), TT_KEY_NAME(lora.base_dtype));
}

int tt_lora_add(struct tt_model *model)
{
    struct tt_param *base = model->params;
    unsigned modules = model->dims.lora.modules;
    int n = model->n_params, n_adapted = 0, rc = 0;

    if (model->dims.lora.rank == 0)
        return 0;
    model->params = NULL;
    model->n_params = model->cap_params = 0;
    for (int p = 0; p < n; p++) {
        const struct layer *layer = layer_of(&base[p]);
        unsigned wanted = layer ? layer->modules & modules : 0;

        if (wanted && wanted != layer->modules)
            rc = tt_fail_key(TT_EUSAGE, TT_KEY(lora.target_modules),
                             "%s has only some parts of %s, which is one layer of %s\nhelp: name %s, or all its parts",
                             TT_KEY_NAME(lora.target_modules), layer->name, model->row->name, layer->name);
        base[p].frozen = true;
        if (layer && rc == 0)
            rc = pack(&base[p], model->dims.lora.packing);
        n_adapted += wanted != 0;
        if (wanted)
            add_adapted(model, &base[p]);
        else
            TT_PUSH(model->params, model->n_params, model->cap_params) = base[p];
    }
    tt_free(base);
    if (rc == 0 && n_adapted == 0)
        rc = tt_fail_key(TT_EUSAGE, TT_KEY(lora.target_modules), "%s names no layer that a %s has",
                         TT_KEY_NAME(lora.target_modules), model->row->name);
    return rc;
}
