/* SPDX-License-Identifier: MIT
 *
 * Keys of PyTorch checkpoints. Values need no change: torchtitan and torchtune keep the rows of q and k in the order
 * that titan uses; only Hugging Face permutes them.
 */
#include "checkpoint/dcp/names.h"

#include <stdbool.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"

/* Parts of names, between dots, as others write them. The first four are wrappers of PyTorch, which are not part of
 * a parameter's name; the next four are torchtitan's after 0.2; the rest is torchtune's. */
static const struct {
    const char *from, *to;
} renamed[] = {
    {"_orig_mod.", ""},
    {"_checkpoint_wrapped_module.", ""},
    {"_fsdp_wrapped_module.", ""},
    {"module.", ""},
    {"lm_head.", "output."},
    {"attention.qkv_linear.wq.", "attention.wq."},
    {"attention.qkv_linear.wk.", "attention.wk."},
    {"attention.qkv_linear.wv.", "attention.wv."},
    {"attn.q_proj.", "attention.wq."},
    {"attn.k_proj.", "attention.wk."},
    {"attn.v_proj.", "attention.wv."},
    {"attn.output_proj.", "attention.wo."},
    {"attn.q_norm.scale", "attention.q_norm.weight"},
    {"attn.k_norm.scale", "attention.k_norm.weight"},
    {"mlp.w1.", "feed_forward.w1."},
    {"mlp.w2.", "feed_forward.w2."},
    {"mlp.w3.", "feed_forward.w3."},
    {"sa_norm.scale", "attention_norm.weight"},
    {"mlp_norm.scale", "ffn_norm.weight"},
    {"norm.scale", "norm.weight"},
};

static char *rename_parts(const char *name)
{
    struct tt_text text = {0};
    char *copy;

    for (const char *at = name; *at;) {
        const char *dot = strchr(at, '.');
        size_t n = dot ? (size_t)(dot + 1 - at) : strlen(at), row = 0, rows = sizeof renamed / sizeof renamed[0];

        while (row < rows && strncmp(at, renamed[row].from, strlen(renamed[row].from)) != 0)
            row++;
        if (row < rows) {
            n = strlen(renamed[row].from);
            tt_text_add(&text, "%s", renamed[row].to);
        } else {
            tt_text_add_bytes(&text, at, n);
        }
        at += n;
    }
    copy = tt_strdup(text.text ? text.text : "");
    tt_text_release(&text);
    return copy;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

static struct tt_dcp_name tensor_name(enum tt_ckpt_group group, const char *name)
{
    return (struct tt_dcp_name){.role = TT_DCP_TENSOR, .group = group, .name = rename_parts(name)};
}

struct tt_dcp_name tt_dcp_name_of(const char *key, const char *root)
{
    static const struct {
        const char *key;
        enum tt_dcp_role role;
    } known[] = {
        {"train_state.step", TT_DCP_STEP},
        {"steps_run", TT_DCP_STEP}, /* torchtune */
        {"train_state.ntokens_seen", TT_DCP_TOKENS},
        {"lr_scheduler.last_epoch", TT_DCP_LR_STEP},
        {"freqs_cis", TT_DCP_OTHER}, /* a buffer that older versions of torchtitan saved */
    };
    static const char *const others[] = {"train_state.", "lr_scheduler.", "dataloader."};
    static const char state[] = "optimizer.state.";

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(key, known[i].key) == 0)
            return (struct tt_dcp_name){.role = known[i].role};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strncmp(key, others[i], strlen(others[i])) == 0)
            return (struct tt_dcp_name){.role = TT_DCP_OTHER};
    if (strncmp(key, state, sizeof state - 1) == 0)
        return ends_with(key, ".step") ? (struct tt_dcp_name){.role = TT_DCP_OPTIMIZER_STEP}
                                       : tensor_name(TT_CKPT_OPTIM, key + strlen("optimizer."));
    if (strncmp(key, "optimizer.", 10) == 0)
        return (struct tt_dcp_name){.role = TT_DCP_OTHER};
    if (root && strcmp(root, "model") == 0 && strncmp(key, "model.", 6) == 0)
        key += 6;
    return tensor_name(TT_CKPT_MODEL, key);
}
