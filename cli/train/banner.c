/* SPDX-License-Identifier: MIT
 *
 * What a run says about itself before it starts and after it ends, on stderr.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "cli/run/screen.h"
#include "cli/train/advice.h"
#include "cli/train/trainer.h"
#include "core/os/file.h"
#include "parallel/planner/cost.h"

enum { LABEL_COLUMNS = 11 }; /* "  sharding " */

static bool is_power_of_two(int64_t n)
{
    return (n & (n - 1)) == 0;
}

bool tt_trainer_layout_exact(const struct tt_trainer *t)
{
    int64_t shards = t->mesh.size[TT_MESH_DP_SHARD], replicas = t->mesh.size[TT_MESH_DP_REPLICATE];

    return !t->kernels_differ && t->cfg->parallelism.reduction_order == TT_ORDER_TREE &&
           (t->cfg->training.gradient_sync == TT_SYNC_EVERY_MICROBATCH || t->microbatches == 1) &&
           is_power_of_two(shards) && (replicas == 1 || is_power_of_two(t->microbatches * shards));
}

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

double tt_trainer_predict_step_sec(const struct tt_trainer *t)
{
    struct tt_machine machine = t->machine;
    struct tt_timeline time;
    double sec;

    if (!t->cfg->parallelism.machine_file)
        machine.sgemm_flops = t->metrics.peak_flops / t->threads;
    tt_cost_simulate(&machine, tt_engine_program(t->engine), &time);
    sec = time.step_sec;
    tt_timeline_release(&time);
    return sec;
}

static void print_cores(FILE *out, const struct tt_trainer *t)
{
    int host = (int)sysconf(_SC_NPROCESSORS_ONLN), used = t->local_size * t->threads;

    (void)fprintf(out, "titan %s: %d rank%s x %d thread%s, %d core%s on this host", TITAN_VERSION, t->comm->size,
                  plural(t->comm->size), t->threads, plural(t->threads), host, plural(host));
    if (used < host)
        (void)fprintf(out, ", %d idle: mpirun -n %d --map-by slot:PE=%d --bind-to core titan train ... would use them",
                      host - used, t->local_size, host / t->local_size);
    else if (used > host)
        (void)fprintf(out, ", oversubscribed: results are the same, times are not");
    (void)fprintf(out, "\n");
}

/* "kjv: 1,130 documents, 1,068,459 tokens, 4,173 samples of 256" and the file that they come from, if any. */
static void print_dataset(FILE *out, const char *label, const struct tt_train_data *data, const char *path)
{
    const struct tt_dataset_ref *ref = &data->dataset->ref;
    int64_t n = tt_sampler_epoch_samples(data->sampler);
    char documents[32], tokens[32], samples[32];

    (void)fprintf(out, "  %-8s %s%s%s: %s document%s, %s token%s, %s sample%s of %" PRId64, label, ref->name,
                  path ? " " : "", path ? path : "", tt_text_count(documents, sizeof documents, ref->info.n_documents),
                  plural(ref->info.n_documents), tt_text_count(tokens, sizeof tokens, ref->info.n_tokens),
                  plural(ref->info.n_tokens), tt_text_count(samples, sizeof samples, n), plural(n), data->seq_len);
}

/* Whether the data ends before training.steps does. */
static bool data_ends(const struct tt_trainer *t)
{
    return tt_trainer_last_step(t) < t->cfg->training.steps;
}

static void print_data(FILE *out, const struct tt_trainer *t)
{
    const struct tt_config *cfg = t->cfg;

    print_dataset(out, "data", &t->data, cfg->training.dataset_path);
    (void)fprintf(out, " an epoch");
    if (data_ends(t))
        (void)fprintf(out, ", which end after step %" PRId64 " (dataloader.repeat is false)", tt_trainer_last_step(t));
    (void)fprintf(out, "\n");
    if (!cfg->validation.enable) {
        (void)fprintf(out, "  validate never (validation.enable is false)\n");
        return;
    }
    print_dataset(out, "validate", &t->validation, cfg->validation.dataset_path);
    if (t->validation.dataset->ref.info.digest == t->data.dataset->ref.info.digest)
        (void)fprintf(out, ", the training data itself");
    if (cfg->validation.steps > 0)
        (void)fprintf(out, ", at most %" PRId64 " batch%s a rank", cfg->validation.steps,
                      cfg->validation.steps == 1 ? "" : "es");
    (void)fprintf(out, ", at step 1, every %" PRId64 " step%s, and at the end\n", cfg->validation.freq,
                  plural(cfg->validation.freq));
}

/* The value of a key as a flag takes it. */
static void add_value(const struct tt_trainer *t, const char *label, const char *path, struct tt_text *out)
{
    tt_text_add(out, ", %s ", label);
    tt_config_value_text(t->cfg, tt_config_row_find(path), out);
}

static void print_policies(FILE *out, const struct tt_trainer *t)
{
    struct tt_text policies = {0};

    add_value(t, "wrap", "parallelism.fsdp_wrap_policy", &policies);
    add_value(t, "reshard", "parallelism.fsdp_reshard_after_forward", &policies);
    add_value(t, "prefetch", "parallelism.fsdp_prefetch", &policies);
    add_value(t, "engine", "parallelism.fsdp_engine", &policies);
    add_value(t, "sync", "training.gradient_sync", &policies);
    (void)fprintf(out,
                  "  batch    %" PRId64 " sequence%s a step = %d rank%s x %" PRId64 " microbatch%s of %" PRId64 "\n"
                  "  sharding dp_replicate %d x dp_shard %d%s\n",
                  t->global_batch, plural(t->global_batch), tt_mesh_dp(&t->mesh), plural(tt_mesh_dp(&t->mesh)),
                  t->microbatches, t->microbatches == 1 ? "" : "es", t->cfg->training.local_batch_size,
                  t->mesh.size[TT_MESH_DP_REPLICATE], t->mesh.size[TT_MESH_DP_SHARD], policies.text);
    tt_text_release(&policies);
}

static void print_recompute(FILE *out, const struct tt_trainer *t)
{
    const struct tt_config *cfg = t->cfg;
    int64_t every = cfg->activation_checkpoint.selective_ac_option;

    if (cfg->activation_checkpoint.mode == TT_AC_FULL)
        (void)fprintf(out, "  memory   every block is computed again in backward (activation_checkpoint full)\n");
    else if (cfg->activation_checkpoint.mode == TT_AC_SELECTIVE && every > 0)
        (void)fprintf(out, "  memory   1 of %" PRId64 " blocks is computed again in backward, except attention\n",
                      every);
    else if (cfg->activation_checkpoint.mode == TT_AC_SELECTIVE)
        (void)fprintf(out, "  memory   light operations are computed again in backward (selective_ac_option op)\n");
}

static void print_precision(FILE *out, const struct tt_trainer *t)
{
    bool params = t->cfg->training.mixed_precision_param == TT_DTYPE_BFLOAT16;
    bool gradients = t->cfg->training.mixed_precision_reduce == TT_DTYPE_BFLOAT16;

    if (params || gradients)
        (void)fprintf(out, "  numbers  parameters %s, gradients reduced in %s, arithmetic and shards in float32\n",
                      params ? "gathered and used as bfloat16" : "in float32", gradients ? "bfloat16" : "float32");
}

static void print_weights(FILE *out, const struct tt_trainer *t)
{
    const struct tt_config *cfg = t->cfg;
    bool is_random = strncmp(t->weights_from, "random init", strlen("random init")) == 0;
    int64_t rules = cfg->model.init_rules.n;

    (void)fprintf(out, "  weights  %s", t->weights_from);
    if (is_random && !isnan(cfg->model.init_std))
        (void)fprintf(out, ", init_std %g", cfg->model.init_std);
    if (is_random && rules)
        (void)fprintf(out, ", %" PRId64 " init rule%s", rules, plural(rules));
    (void)fprintf(out, "\n");
}

/* Longer than this is more often a mistake in the configuration than what somebody meant. */
static const double long_step_sec = 60.0, long_run_sec = 30.0 * 86400.0;

static void print_prediction(FILE *out, const struct tt_trainer *t)
{
    int64_t left = tt_trainer_last_step(t) - t->at.step;
    double step = t->predicted_step_sec, run = step * (double)left;
    char predicted[32], limit[32], one[32], all[32];

    (void)fprintf(out, "  predicts %s a rank at its peak (limit %s), about %s a step at %.0f GF/s a rank",
                  tt_text_bytes(predicted, sizeof predicted, (double)t->memory.total),
                  tt_text_bytes(limit, sizeof limit, (double)t->memory_limit), tt_text_duration(one, sizeof one, step),
                  t->metrics.peak_flops / 1e9);
    if (left > 0)
        (void)fprintf(out, ", %s for %" PRId64 " step%s", tt_text_duration(all, sizeof all, run), left, plural(left));
    (void)fprintf(out, "\n");
    if (left <= 0 || (step < long_step_sec && run < long_run_sec))
        return;
    (void)fprintf(out,
                  "titan: warning: a step of %s %s on %d rank%s is predicted to take %s, %" PRId64
                  " step%s %s\n  help: a step is %" PRId64 " sequence%s of %" PRId64
                  " tokens; set a smaller training.global_batch_size or training.seq_len, a smaller model.flavor, or "
                  "fewer training.steps, or use more ranks; `titan estimate --ranks N` predicts them\n",
                  t->model->row->name, t->model->flavor, t->comm->size, plural(t->comm->size), one, left, plural(left),
                  all, t->global_batch, plural(t->global_batch), t->cfg->training.seq_len);
}

/* The learning rate is still rising when the run ends. */
static void print_short_run(FILE *out, const struct tt_trainer *t)
{
    const struct tt_config *cfg = t->cfg;

    if (cfg->lr_scheduler.warmup_steps > cfg->training.steps)
        (void)fprintf(
            out,
            "titan: warning: the warm-up of %" PRId64 " steps is longer than the run of %" PRId64
            ", which ends before the learning rate is optimizer.lr\n  help: set lr_scheduler.warmup_steps, for "
            "instance to %" PRId64 "\n",
            cfg->lr_scheduler.warmup_steps, cfg->training.steps,
            cfg->training.steps < 20 ? 1 : cfg->training.steps / 10);
}

static void print_all(FILE *out, const struct tt_trainer *t)
{
    char count[32];

    print_cores(out, t);
    (void)fprintf(out, "  model    %s %s, %s parameters\n", t->model->row->name, t->model->flavor,
                  tt_text_count(count, sizeof count, tt_model_n_elements(t->model)));
    print_data(out, t);
    print_policies(out, t);
    print_recompute(out, t);
    print_precision(out, t);
    print_weights(out, t);
    tt_trainer_print_changes(out, t);
    if (t->kernels_differ)
        (void)fprintf(out, "  kernels  not the same on all ranks, which changes bits: %s\n", t->kernels_differ);
    (void)fprintf(out, "  mfu      share of %.0f GF/s a rank; masked positions of the attention do not count\n",
                  t->metrics.peak_flops / 1e9);
    (void)fprintf(out, "  curve    %s\n",
                  tt_trainer_layout_exact(t) ? "layout-exact: the same bits for every power-of-two split of this batch"
                                             : "deterministic, but equal to other layouts only up to rounding");
    print_prediction(out, t);
    print_short_run(out, t);
    if (t->cfg->job.print_config) {
        struct tt_text text = {0};

        tt_config_to_yaml(t->cfg, &text);
        (void)fputs(text.text, out);
        tt_text_release(&text);
    }
    if (t->at.step >= t->cfg->training.steps)
        (void)fprintf(out,
                      "titan: the run is complete: step %" PRId64 " of %" PRId64
                      "; --training.steps=N goes on, --overwrite starts again\n",
                      t->at.step, t->cfg->training.steps);
    else if (t->at.step > 0 && t->at.step >= tt_trainer_last_step(t))
        (void)fprintf(out,
                      "titan: the run is complete: its data ended after step %" PRId64
                      "; --dataloader.repeat=true goes on, --overwrite starts again\n",
                      t->at.step);
    else
        (void)fprintf(out, "titan: training starts at step %" PRId64 "\n", t->at.step + 1);
}

void tt_trainer_banner(const struct tt_trainer *t)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    print_all(out ? out : stderr, t);
    if (!out || fclose(out) != 0)
        return;
    tt_screen_put(stderr, text, tt_screen_columns(), LABEL_COLUMNS);
    free(text); // NOLINT: it is the C library's
}

void tt_trainer_farewell(const struct tt_trainer *t)
{
    struct tt_text advice = {0};
    char elapsed[32];

    tt_advice(t, &t->spent, &advice);
    if (advice.text)
        tt_screen_put(stderr, advice.text, tt_screen_columns(), LABEL_COLUMNS);
    tt_text_release(&advice);
    if (data_ends(t))
        (void)fprintf(
            stderr, "titan: the data has ended (dataloader.repeat is false): there is no batch for step %" PRId64 "\n",
            t->at.step + 1);
    (void)fprintf(stderr, "titan: training completed: step %" PRId64 ", %s, in %s\n", t->at.step,
                  tt_text_duration(elapsed, sizeof elapsed, tt_clock_sec() - t->started_sec), t->cfg->job.dump_folder);
}
