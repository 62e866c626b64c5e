/* SPDX-License-Identifier: MIT
 *
 * The six lines of the banner that everybody needs.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/train/report/banner.h"
#include "cli/train/start/changed.h"
#include "core/os/cores.h"

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* "titan 0.1.0: 2 ranks x 1 thread, 2 cores on this host, float32" */
static void add_ranks(const struct tt_setup *s, struct tt_text *out)
{
    int host = tt_cores()->cores;

    tt_text_add(out, "titan %s: %d rank%s x %d thread%s, %d core%s on this host, %s%s\n", TITAN_VERSION, s->comm->size,
                plural(s->comm->size), s->threads, plural(s->threads), host, plural(host),
                s->job.engine.param_dtype == TT_BF16 ? "bfloat16" : "float32",
                s->local_size * s->threads > host ? ", oversubscribed" : "");
}

static void add_model(const struct tt_model *model, const struct tt_start *start, struct tt_text *out)
{
    int64_t all = tt_model_n_elements(model), trained = tt_model_n_trained(model);
    char count[32];

    tt_text_add(out, "  model    %s, %s parameters", model->title, tt_text_count(count, sizeof count, all));
    if (model->dims.moe.experts)
        tt_text_add(out, ", %s a token", tt_text_count(count, sizeof count, tt_model_n_active(model)));
    if (model->dims.lora.rank)
        tt_text_add(out, ", %s trained", tt_text_count(count, sizeof count, trained));
    tt_text_add(out, ", %s\n", start->weights_from);
}

static void add_validation(const struct tt_config *cfg, struct tt_text *out)
{
    if (cfg->validation.enable)
        tt_text_add(out, "; validation every %" PRId64 " step%s", cfg->validation.freq, plural(cfg->validation.freq));
    else
        tt_text_add(out, "; no validation");
    if (cfg->validation.split > 0.0)
        tt_text_add(out, ", %.4g%% held out", 100.0 * cfg->validation.split);
    tt_text_add(out, "\n");
}

/* "kjv: 1,068,459 tokens in 4,173 sequences; validation every 50 steps" */
static void add_data(const struct tt_setup *s, const struct tt_run_about *about, int64_t last_step, struct tt_text *out)
{
    const struct tt_train_data *data = about->data;
    const struct tt_dataset_entry entry = tt_config_dataset(s->cfg, &s->cfg->training.dataset, 0);
    int64_t tokens = 0, learned = 0, epoch = tt_train_data_samples(data, 1);
    char count[32];

    for (int i = 0; i < data->n; i++)
        tokens += tt_sampler_documents(data->part[i].sampler)->tokens;
    if (data->part[0].dataset->ref.info.mask_at)
        learned = tt_sampler_documents(data->part[0].sampler)->learned;
    if (data->n == 1)
        tt_text_add(out, "  data     %s%s%s", data->part[0].dataset->ref.name, entry.dataset_path ? " " : "",
                    entry.dataset_path ? entry.dataset_path : "");
    else
        tt_text_add(out, "  data     %d datasets", data->n);
    tt_text_add(out, ": %s tokens", tt_text_count(count, sizeof count, tokens));
    if (data->n == 1 && learned)
        tt_text_add(out, " (%s learned)", tt_text_count(count, sizeof count, learned));
    if (data->n == 1)
        tt_text_add(out, " in %s sequence%s", tt_text_count(count, sizeof count, epoch), plural(epoch));
    if (last_step < s->cfg->training.steps || s->cfg->training.epochs != TT_NULL_INT)
        tt_text_add(out, ", to step %" PRId64, last_step);
    add_validation(s->cfg, out);
}

/* "16 sequences of 256 a step = 2 ranks x 4 microbatches of 2, dp_shard 2" */
static void add_batch(const struct tt_setup *s, struct tt_text *out)
{
    const struct tt_job *job = &s->job;

    tt_text_add(out, "  batch    %" PRId64 " sequence%s of %" PRId64 " a step = ", job->global_batch,
                plural(job->global_batch), s->cfg->training.seq_len);
    tt_job_readers_text(job, out);
    tt_text_add(out, " x %" PRId64 " microbatch%s of %" PRId64, job->microbatches, job->microbatches == 1 ? "" : "es",
                job->microbatch_size);
    for (int dim = 0; dim < TT_MESH_DEGREES; dim++)
        if (job->mesh.size[dim] > 1)
            tt_text_add(out, ", %s %d", tt_mesh_dim_name(dim), job->mesh.size[dim]);
    tt_text_add(out, "%s%s\n", job->pipeline ? " " : "", job->pipeline ? tt_pipeline_row_name(job->pipeline) : "");
}

static void add_curve(const struct tt_setup *s, struct tt_text *out)
{
    if (tt_setup_layout_exact(s))
        tt_text_add(out, "  curve    same bits, validation too, on every power-of-two split of this batch\n");
    else
        tt_text_add(out, "  curve    deterministic; other layouts up to rounding%s\n",
                    s->kernels_differ ? ", since the kernels of the ranks differ" : "");
}

/* "271 ms a step, 16.3 s in all, 32.09 MiB a rank; in outputs/quick" */
static void add_prediction(const struct tt_reporter *r, int64_t left, struct tt_text *out)
{
    const struct tt_config *cfg = r->setup->cfg;
    char text[32];

    tt_text_add(out, "  predicts %s a step", tt_text_duration(text, sizeof text, r->predicted_step_sec));
    if (left > 0)
        tt_text_add(out, ", %s in all", tt_text_duration(text, sizeof text, r->predicted_step_sec * (double)left));
    tt_text_add(out, ", %s a rank; in %s%s\n",
                tt_text_bytes(text, sizeof text, (double)(r->largest_bytes + r->setup->job.staging_bytes)),
                cfg->job.dump_folder, cfg->checkpoint.enable ? "" : ", not saved");
}

/* Appends the lines of a text, each of at most so many columns; 0: as they are. */
static void add_cut(const char *text, int columns, struct tt_text *out)
{
    static const char mark[] = "...";

    for (const char *end; *text; text = end + 1) {
        int at = columns - (int)(sizeof mark - 1);

        end = strchr(text, '\n');
        if (columns == 0 || end - text <= columns) {
            tt_text_add_bytes(out, text, (size_t)(end + 1 - text));
            continue;
        }
        while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80) /* within a character */
            at--;
        tt_text_add(out, "%.*s%s\n", at, text, mark);
    }
}

void tt_banner_brief(const struct tt_reporter *r, const struct tt_run_about *about, int columns, struct tt_text *out)
{
    const struct tt_setup *s = r->setup;
    int64_t last_step = tt_train_progress_last_step(about->at, s, about->data);
    struct tt_text lines = {0};

    add_ranks(s, &lines);
    add_model(s->job.model, about->start, &lines);
    add_data(s, about, last_step, &lines);
    add_batch(s, &lines);
    add_curve(s, &lines);
    add_prediction(r, last_step - about->at->step, &lines);
    add_cut(lines.text, columns, out);
    tt_changed_text(s, about->start, out);
    if (s->cfg->job.print_config)
        tt_config_to_yaml(s->cfg, out);
    tt_text_release(&lines);
}
