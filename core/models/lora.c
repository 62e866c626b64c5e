/* SPDX-License-Identifier: MIT
 *
 * The parameters of adapters. They are initialised as in PEFT, and have PEFT's names in its files.
 */
#include "core/models/lora.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/select.h"

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
static const char weight[] = ".weight";

unsigned tt_lora_module(const char *name)
{
    if (strcmp(name, "all-linear") == 0)
        return (1U << tt_lora_n_modules) - 1;
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

/* "<prefix><name without .weight>.<which>" */
static char *name_of(const char *prefix, const char *name, const char *which)
{
    return tt_format("%s%.*s.%s", prefix, (int)(strlen(name) - (sizeof weight - 1)), name, which);
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
    struct tt_param *p = add(model, of, "lora_a.weight", "lora_A.weight");

    p->shape[0] = model->dims.lora.rank;
    p->shape[1] = of->shape[1];
    p->init = TT_PARAM_UNIFORM;
    p->low = -bound;
    p->high = bound;
    p->tp = of->tp == TT_TP_COLUMNS ? TT_TP_COLUMNS : TT_TP_WHOLE; /* A is cut like the weight's columns */
}

/* A parameter whose rows are the weight's rows. */
static struct tt_param *add_rows(struct tt_model *model, const struct tt_param *of, const char *ours,
                                 const char *theirs)
{
    struct tt_param *p = add(model, of, ours, theirs);

    p->shape[0] = of->shape[0];
    p->init = TT_PARAM_ZEROS;
    p->tp = of->tp == TT_TP_ROWS ? TT_TP_ROWS : TT_TP_WHOLE;
    p->hf_transform = of->hf_transform;
    p->hf_heads = of->hf_heads;
    p->hf_part = of->hf_part;
    p->hf_parts = of->hf_parts;
    p->hf_row = of->hf_row;
    p->hf_rows = of->hf_rows;
    return p;
}

static void add_b(struct tt_model *model, const struct tt_param *of)
{
    add_rows(model, of, "lora_b.weight", "lora_B.weight")->shape[1] = model->dims.lora.rank;
}

/* Magnitudes, one for each row. */
static void add_m(struct tt_model *model, const struct tt_param *of)
{
    struct tt_param *p = add_rows(model, of, "lora_m.weight", "lora_magnitude_vector");

    p->ndim = 1;
    p->init = TT_PARAM_CONSTANT;
    p->low = (double)TT_LORA_NO_MAGNITUDE;
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
    p->lora_m = model->dims.lora.dora ? model->n_params + 1 : 0;
    add_b(model, of);
    if (model->dims.lora.dora)
        add_m(model, of);
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

/* --- which layers --- */

void tt_lora_set_targets(struct tt_lora *lora, const char *const *words, int n)
{
    lora->modules = 0;
    lora->targets = words;
    lora->n_targets = n;
    for (int i = 0; i < n; i++)
        lora->modules |= tt_lora_module(words[i]);
}

/* The name of the layer of a weight, without ".weight"; the caller frees it. */
static char *layer_name(const char *name)
{
    return tt_strndup(name, strlen(name) - (sizeof weight - 1));
}

/* Adds the layers of one target to `wanted`. */
static int apply_target(const struct tt_model *model, const struct tt_param *params, int n, const char *target,
                        bool *wanted)
{
    const char **names = tt_calloc(2 * (size_t)n, sizeof *names); /* titan's and Hugging Face's, or NULL */
    bool *selected = tt_calloc(2 * (size_t)n, sizeof *selected), any = false;
    char *help = NULL;
    int rc = 0;

    for (int i = 0; i < 2 * n; i++)
        names[i] = layer_of(&params[i / 2]) ? layer_name(i % 2 ? params[i / 2].hf_name : params[i / 2].name) : NULL;
    rc = tt_names_select(target, names, 2 * n, selected, &any);
    if (rc == TT_EUSAGE)
        rc = tt_fail_key(TT_EUSAGE, TT_KEY(lora.target_modules), "%s", tt_error_message());
    for (int i = 0; i < 2 * n && rc == 0; i++)
        wanted[i / 2] = wanted[i / 2] || selected[i];
    if (rc == 0 && !any) {
        help = tt_names_advise(target, names, 2 * n, tt_lora_modules, tt_lora_n_modules);
        rc = tt_fail_key(TT_EUSAGE, TT_KEY(lora.target_modules),
                         "'%s' selects no layer of %s that can have an adapter\nhelp: %s", target, model->title, help);
    }
    for (int i = 0; i < 2 * n; i++)
        tt_free((char *)(uintptr_t)names[i]);
    tt_free(names);
    tt_free(selected);
    tt_free(help);
    return rc;
}

/* Whether two neighbouring parameters are parts of one tensor. */
static bool is_same_tensor(const struct tt_param *a, const struct tt_param *b)
{
    return a->hf_name && b->hf_name && strcmp(a->hf_name, b->hf_name) == 0;
}

/* Finds the weights that get an adapter, among the n parameters of the model. */
static int select_layers(const struct tt_model *model, const struct tt_param *params, int n, bool *wanted)
{
    const struct tt_lora *lora = &model->dims.lora;
    int n_wanted = 0, rc = 0;

    for (int p = 0; p < n; p++) {
        const struct layer *layer = layer_of(&params[p]);
        unsigned of = layer ? layer->modules & lora->modules : 0;

        wanted[p] = of && of == layer->modules;
        if (of && !wanted[p])
            TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY(lora.target_modules),
                               "%s has only some parts of %s, which is one layer of %s\n"
                               "help: name %s, or all its parts",
                               TT_KEY_NAME(lora.target_modules), layer->name, model->row->name, layer->name));
    }
    for (int i = 0; i < lora->n_targets; i++)
        if (!tt_lora_module(lora->targets[i]))
            TT_TRY(apply_target(model, params, n, lora->targets[i], wanted));
    for (int p = 0; p < n; p++) {
        n_wanted += wanted[p];
        if (p > 0 && is_same_tensor(&params[p - 1], &params[p]) && wanted[p - 1] != wanted[p])
            TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY(lora.target_modules),
                               "%s has only some parts of %.*s, which is one layer of %s\nhelp: select all its parts",
                               TT_KEY_NAME(lora.target_modules), (int)(strlen(params[p].hf_name) - (sizeof weight - 1)),
                               params[p].hf_name, model->row->name));
    }
    if (n_wanted == 0)
        rc = tt_fail_key(TT_EUSAGE, TT_KEY(lora.target_modules), "%s names no layer that a %s has",
                         TT_KEY_NAME(lora.target_modules), model->row->name);
out:
    return rc;
}

void tt_lora_peft_targets(const struct tt_model *model, void *array)
{
    bool has[N_LAYERS] = {false}, lacks[N_LAYERS] = {false};

    for (int p = 0; p < model->n_params; p++) {
        const struct layer *layer = layer_of(&model->params[p]);

        if (layer && model->params[p].adapted)
            has[layer - layers] = true;
        else if (layer)
            lacks[layer - layers] = true;
    }
    for (int i = 0; i < N_LAYERS; i++)
        if (has[i] && !lacks[i])
            (void)json_array_append_new(array, json_string(layers[i].name));
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_param *param = &model->params[p];
        char *name;

        if (!param->adapted || param->hf_part > 0 || !lacks[layer_of(param) - layers])
            continue;
        name = layer_name(param->hf_name);
        (void)json_array_append_new(array, json_string(name));
        tt_free(name);
    }
}

int tt_lora_add(struct tt_model *model)
{
    struct tt_param *base = model->params;
    bool *wanted = NULL;
    int n = model->n_params, rc = 0;

    if (model->dims.lora.rank == 0)
        return 0;
    wanted = tt_calloc((size_t)n, sizeof *wanted);
    TT_TRY(select_layers(model, base, n, wanted));
    for (int p = 0; p < n; p++) {
        base[p].frozen = true;
        if (layer_of(&base[p]))
            TT_TRY(pack(&base[p], model->dims.lora.packing));
    }
    model->params = NULL;
    model->n_params = model->cap_params = 0;
    for (int p = 0; p < n; p++) {
        if (wanted[p])
            add_adapted(model, &base[p]);
        else
            TT_PUSH(model->params, model->n_params, model->cap_params) = base[p];
    }
    tt_free(base);
out:
    tt_free(wanted);
    return rc;
}
