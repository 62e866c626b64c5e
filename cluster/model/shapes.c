/* SPDX-License-Identifier: MIT
 *
 * The sizes of published models, and parts of a layer, by name.
 */
#include <string.h>
#include <strings.h>

#include "cluster/model/job.h"

/* clang-format off */
#define D(id, d, l, h, kv, hd, f, v, g, t) \
    {(id), {.dim = (d), .layers = (l), .heads = (h), .kv_heads = (kv), .head_dim = (hd), .ffn = (f), .vocab = (v), \
            .gated = (g), .tied = (t)}},
#define E(id, d, l, h, kv, hd, sd, f, v, n, a, mf, sf, dl) \
    {(id), {.dim = (d), .layers = (l), .heads = (h), .kv_heads = (kv), .head_dim = (hd), .ffn = (f), .vocab = (v), \
            .gated = true, .score_dim = (sd), .experts = (n), \
            .active = (a), .moe_ffn = (mf), .shared_ffn = (sf), .dense_layers = (dl)}},
#define W(id, d, l, h, kv, hd, f, v, n, a, mf, w, wl) \
    {(id), {.dim = (d), .layers = (l), .heads = (h), .kv_heads = (kv), .head_dim = (hd), .ffn = (f), .vocab = (v), \
            .gated = true, .experts = (n), .active = (a), .moe_ffn = (mf), .window = (w), .window_layers = (wl), \
            .expert_bias = true}},
#define L(id, d, l, h, kv, hd, sd, f, v, n, a, mf, sf, dl, g, gm, q) \
    {(id), {.dim = (d), .layers = (l), .heads = (h), .kv_heads = (kv), .head_dim = (hd), .ffn = (f), .vocab = (v), \
            .gated = true, .score_dim = (sd), .experts = (n), \
            .active = (a), .moe_ffn = (mf), .shared_ffn = (sf), .dense_layers = (dl), \
            .groups = (g), .groups_met = (gm), .latent = {512, (q), 64, 128, 128}}},

static const struct {
    const char *name;
    struct tt_cluster_shape shape;
} shapes[] = {
#include "cluster/model/shapes.def"
};
/* clang-format on */

bool tt_cluster_shape_find(const char *name, struct tt_cluster_shape *ret_shape)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcasecmp(shapes[i].name, name) == 0) {
            *ret_shape = shapes[i].shape;
            return true;
        }
    return false;
}

/* Megatron's names of parts of a layer. */
static const struct {
    const char *name;
    enum tt_cluster_module bit;
} parts[] = {{"core_attn", TT_MODULE_CORE_ATTENTION},     {"layernorm", TT_MODULE_NORMS},
             {"mla_up_proj", TT_MODULE_LATENT_UP},        {"mlp", TT_MODULE_FFN},
             {"moe_act", TT_MODULE_EXPERT_ACT},           {"moe", TT_MODULE_EXPERTS},
             {"shared_experts", TT_MODULE_SHARED_EXPERTS}};

unsigned tt_cluster_modules(const char *names)
{
    unsigned bits = 0;

    for (const char *at = names; *at;) {
        size_t length = strcspn(at, " ");

        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (strlen(parts[i].name) == length && strncmp(at, parts[i].name, length) == 0)
                bits |= (unsigned)parts[i].bit;
        at += length;
        at += strspn(at, " ");
    }
    return bits;
}

void tt_cluster_module_names(unsigned modules, struct tt_text *out)
{
    const char *between = "";

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (modules & (unsigned)parts[i].bit) {
            tt_text_add(out, "%s%s", between, parts[i].name);
            between = " ";
        }
}

const char *tt_cluster_shape_names(const char *meant, struct tt_text *out)
{
    enum { N = sizeof shapes / sizeof *shapes };
    const char *names[N];

    for (int i = 0; i < N; i++) {
        names[i] = shapes[i].name;
        tt_text_add(out, "%s%s", i ? " " : "", names[i]);
    }
    return tt_text_meant(meant, names, N);
}
