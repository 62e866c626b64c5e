/* SPDX-License-Identifier: MIT
 *
 * The sizes of published models by name.
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
#define L(id, d, l, h, kv, hd, sd, f, v, n, a, mf, sf, dl, g, gm) \
    {(id), {.dim = (d), .layers = (l), .heads = (h), .kv_heads = (kv), .head_dim = (hd), .ffn = (f), .vocab = (v), \
            .gated = true, .score_dim = (sd), .experts = (n), \
            .active = (a), .moe_ffn = (mf), .shared_ffn = (sf), .dense_layers = (dl), \
            .groups = (g), .groups_met = (gm)}},

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

void tt_cluster_shape_names(struct tt_text *out)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        tt_text_add(out, "%s%s", i ? " " : "", shapes[i].name);
}
