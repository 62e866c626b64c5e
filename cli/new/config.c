/* SPDX-License-Identifier: MIT
 *
 * The configuration that `titan new` writes. The same text is what it plans, so the plan is the run's.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/new/new.h"
#include "core/base/mem.h"

/* A double-quoted scalar: all that YAML and a path have in common is safe in it. */
static void add_quoted(struct tt_text *out, const char *text)
{
    tt_text_add(out, "\"");
    for (; *text; text++)
        tt_text_add(out, strchr("\"\\", *text) ? "\\%c" : "%c", *text);
    tt_text_add(out, "\"");
}

static void add_path(struct tt_text *out, const char *key, const char *folder, const char *name, const char *why)
{
    char *path = name ? tt_format("%s/%s", folder, name) : tt_strdup(folder);

    tt_text_add(out, "  %s: ", key);
    add_quoted(out, path);
    tt_text_add(out, "%s%s\n", *why ? "  # " : "", why);
    tt_free(path);
}

static void add_model(const struct tt_new_request *q, const struct tt_recipe *r, struct tt_text *out)
{
    char count[32];

    tt_text_add(out, "model:\n  name: llama3\n  flavor: debugmodel               # all sizes follow here\n");
    tt_text_add(out, "  n_layers: %-23" PRId64 "# the dial: all widths follow from it; %s parameters\n", r->depth,
                tt_text_count(count, sizeof count, r->parameters));
    tt_text_add(out, "  dim: %-28" PRId64 "# 64 for each layer\n", r->dim);
    tt_text_add(out, "  n_heads: %-24" PRId64 "# heads of 64\n  n_kv_heads: %" PRId64 "\n  head_dim: 64\n", r->heads,
                r->heads);
    tt_text_add(out, "  ffn_dim: %-24" PRId64 "# 8/3 of dim\n", r->ffn_dim);
    tt_text_add(out, "  vocab_size: %-21" PRId64 "# grows more slowly than the model (Tao et al. 2024)\n", r->vocab);
    tt_text_add(out, "  rope_theta: 10000                # sequences are short\n  rope_scaling: {factor: 1}\n"
                     "  tie_embeddings: false\n");
    add_path(out, "hf_assets_path", q->folder, "tokenizer", "");
}

static void add_training(const struct tt_new_request *q, const struct tt_recipe *r, struct tt_text *out)
{
    char tokens[32];

    tt_text_add(out, "\ntraining:\n  dataset: %s\n", q->text.dataset);
    if (q->text.path)
        add_path(out, "dataset_path", q->text.path, NULL, "");
    if (q->text.field) {
        tt_text_add(out, "  text_field: ");
        add_quoted(out, q->text.field);
        tt_text_add(out, "\n");
    }
    tt_text_add(out,
                "  seq_len: %" PRId64 "\n  local_batch_size: %-15" PRId64 "# sequences that a rank computes at once\n",
                r->seq_len, r->local_batch);
    tt_text_add(out, "  global_batch_size: %-14" PRId64 "# grows with the tokens (Li et al. 2025)\n", r->batch);
    tt_text_add(out, "  steps: %-26" PRId64 "# %s tokens: %.1f for each parameter, %.2f passes through the text\n",
                r->steps, tt_text_count(tokens, sizeof tokens, r->steps * r->batch * r->seq_len),
                (double)(r->steps * r->batch * r->seq_len) / (double)r->multiplying, r->epochs);
    tt_text_add(out, "  mixed_precision_param: %-10s# %s\n", q->dtype == TT_BF16 ? "bfloat16" : "float32",
                q->dtype == TT_BF16 ? "faster on this processor" : "as fast as bfloat16 on this processor");
}

static void add_optimizer(const struct tt_new_request *q, const struct tt_recipe *r, struct tt_text *out)
{
    char time[32];

    tt_text_add(out,
                "\noptimizer:\n  lr: %-29.3g# falls with the parameters\n  weight_decay: 0.1\n"
                "  no_decay: [norm]\n",
                r->lr);
    tt_text_add(out,
                "\nlr_scheduler:\n  warmup_steps: %-19" PRId64 "# 5 %% of the steps\n"
                "  decay_type: linear               # from there to 0 (Bergsma et al. 2025)\n",
                r->warmup);
    if (q->hours > 0.0) {
        (void)snprintf(time, sizeof time, "%.0fs", 3600.0 * q->hours);
        tt_text_add(out,
                    "  decay_ratio: 0.8                 # until then titan measures whether the hours suffice\n"
                    "  finish_by: %-22s# fewer steps if they are slower than predicted\n",
                    time);
    }
}

static void add_run(const struct tt_new_request *q, const struct tt_recipe *r, struct tt_text *out)
{
    char sec[32], share[32];

    if (r->split > 0.0) {
        (void)snprintf(share, sizeof share, "%.2g%%", 100.0 * r->split);
        tt_text_add(out,
                    "\nvalidation:\n  enable: true\n  split: %-26s# of the documents, which training leaves out\n"
                    "  freq: %-27" PRId64 "# 20 times\n  local_batch_size: %d\n  steps: %" PRId64 "\n",
                    share, r->validate_every, TT_NEW_VALIDATION_BATCH, r->validation_batches);
    } else {
        tt_text_add(out, "\n# no validation: the text has too few documents to leave some out\n");
    }
    tt_text_add(out,
                "\ncheckpoint:\n  enable: true                     # the same command continues the run\n"
                "  interval: %-23" PRId64 "# about every %s\n  keep_latest_k: 2\n",
                r->save_every, tt_text_duration(sec, sizeof sec, (double)r->save_every * r->step_sec));
    tt_text_add(out, "\nmetrics:\n  log_freq: 10\n  sample_freq: %-20" PRId64 "# the model writes a text\n",
                r->validate_every);
    if (q->machine_file) {
        tt_text_add(out, "\nparallelism:\n");
        add_path(out, "machine_file", q->machine_file, NULL, "measured when this file was written");
    }
}

void tt_new_config(const struct tt_new_request *request, const struct tt_recipe *r, struct tt_text *out)
{
    tt_text_add(out, "# Written by `titan new`. titan-new(1) explains the rules and their sources.\n\njob:\n");
    add_path(out, "dump_folder", request->folder, "run", "checkpoints, metrics and logs");
    tt_text_add(out, "\n");
    add_model(request, r, out);
    add_training(request, r, out);
    add_optimizer(request, r, out);
    add_run(request, r, out);
}
