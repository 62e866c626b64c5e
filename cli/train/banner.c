/* SPDX-License-Identifier: MIT
 *
 * The whole banner: everything that is decided before the first step.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cli/train/screen.h"
#include "core/kernels/kernels.h"
#include "core/os/machine.h"
#include "trainer/job/predict.h"
#include "trainer/job/setup.h"
#include "trainer/start/start.h"
#include "trainer/step/validation.h"

const char *tt_plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

int64_t tt_last_step_of(const struct tt_run_about *about)
{
    return tt_train_progress_last_step(about->at, about->reporter->setup, about->data);
}

int64_t tt_most_steps_of(const struct tt_run_about *about)
{
    return tt_train_progress_most_steps(about->at, about->reporter->setup, about->data);
}

int64_t tt_steps_left_of(const struct tt_run_about *about)
{
    return tt_deadline_steps(about->reporter->setup->cfg, about->at, about->reporter->predicted_step_sec,
                             tt_last_step_of(about) - about->at->step);
}

static void print_cores(struct tt_text *out, const struct tt_setup *s)
{
    int host = tt_cores()->cores;

    tt_text_add(out, "titan %s: %d rank%s x %d thread%s, %d core%s", TITAN_VERSION, s->comm->size,
                tt_plural(s->comm->size), s->threads, tt_plural(s->threads), host, tt_plural(host));
    if (tt_cores()->packages > 1)
        tt_text_add(out, " in %d packages", tt_cores()->packages);
    tt_text_add(out, " on this host%s\n",
                s->local_size * s->threads > host ? ", oversubscribed: results are the same, times are not" : "");
}

/* "kjv: 1,130 documents, 1,068,459 tokens, 4,173 samples of 256", with the path of the data, if any. If there are
 * several datasets, the name comes first. */
static void print_dataset(struct tt_text *out, const char *label, const struct tt_train_part *part,
                          const struct tt_dataset_entry *entry, bool is_listed, int64_t seq_len)
{
    const struct tt_dataset_ref *ref = &part->dataset->ref;
    const char *path = entry->dataset_path;
    const struct tt_documents *of = tt_sampler_documents(part->sampler);
    int64_t n = tt_sampler_epoch_samples(part->sampler), all = ref->info.n_documents;
    char documents[32], whole[40] = "", tokens[32], learned[32], samples[32], count[32];

    if (of->n < all)
        (void)snprintf(whole, sizeof whole, " of %s", tt_text_count(count, sizeof count, all));

    tt_text_add(out, "  %-8s ", label);
    if (is_listed && strcmp(part->name, ref->name) != 0)
        tt_text_add(out, "%s = ", part->name);
    tt_text_add(out, "%s%s%s: %s%s document%s, %s token%s, ", ref->name, path ? " " : "", path ? path : "",
                tt_text_count(documents, sizeof documents, of->n), whole, tt_plural(all),
                tt_text_count(tokens, sizeof tokens, of->tokens), tt_plural(of->tokens));
    if (ref->info.mask_at)
        tt_text_add(out, "%s of them learned, ", tt_text_count(learned, sizeof learned, of->learned));
    tt_text_add(out, "%s sample%s of %" PRId64, tt_text_count(samples, sizeof samples, n), tt_plural(n), seq_len);
}

static void print_validation(struct tt_text *out, const struct tt_config *cfg, const struct tt_run_about *about)
{
    const struct tt_validator *v = about->validator;

    if (!cfg->validation.enable) {
        tt_text_add(out, "  validate never (validation.enable is false)");
        if (cfg->validation.split > 0.0)
            tt_text_add(out, "; validation.split holds out %.4g%% of the documents all the same",
                        100.0 * cfg->validation.split);
        tt_text_add(out, "\n");
        return;
    }
    for (int i = 0; i < v->n; i++) {
        const struct tt_dataset_entry entry = tt_config_dataset(cfg, &cfg->validation.dataset, i);
        uint64_t digest = v->set[i].part[0].dataset->ref.info.digest;
        bool is_trained_on = false;

        for (int k = 0; k < about->data->n; k++)
            is_trained_on = is_trained_on || about->data->part[k].dataset->ref.info.digest == digest;
        print_dataset(out, i ? "" : "validate", &v->set[i].part[0], &entry, cfg->validation.dataset.is_list,
                      v->set[i].seq_len);
        tt_text_add(out, "%s%s",
                    cfg->validation.split > 0.0 ? ", held out of training"
                    : is_trained_on             ? ", the training data itself"
                                                : "",
                    i + 1 < v->n ? "\n" : "");
    }
    if (cfg->validation.steps > 0)
        tt_text_add(out, ", at most %" PRId64 " batch%s", cfg->validation.steps,
                    cfg->validation.steps == 1 ? "" : "es");
    tt_text_add(out, ", at step 1, every %" PRId64 " step%s, and at the end%s\n", cfg->validation.freq,
                tt_plural(cfg->validation.freq), cfg->ema.validate ? ", with the averages of the weights" : "");
}

static void print_parts(struct tt_text *out, const struct tt_config *cfg, const struct tt_train_data *data)
{
    for (int i = 0; i < data->n; i++) {
        const struct tt_dataset_entry entry = tt_config_dataset(cfg, &cfg->training.dataset, i);

        print_dataset(out, i ? "" : "data", &data->part[i], &entry, cfg->training.dataset.is_list, data->seq_len);
        /* documents are shuffled, or the samples of conversations */
        tt_text_add(out, " an epoch%s",
                    cfg->dataloader.shuffle && !tt_sampler_packs(data->part[i].sampler) &&
                            data->part[i].dataset->ref.info.n_documents == 1
                        ? ", not shuffled: it is one document"
                        : "");
        if (data->n > 1)
            tt_text_add(out, ", %.4g%% of the run%s",
                        100.0 * (double)data->mixture.share[i] / (double)data->mixture.period,
                        i + 1 < data->n ? "\n" : "");
    }
}

static void print_data(struct tt_text *out, const struct tt_setup *s, const struct tt_run_about *about)
{
    const struct tt_config *cfg = s->cfg;
    int64_t last_step = tt_most_steps_of(about), freq = cfg->metrics.sample_freq, most = cfg->metrics.sample_tokens;
    char memory[32];

    print_parts(out, cfg, about->data);
    if (cfg->training.epochs != TT_NULL_INT)
        tt_text_add(out, "; training.epochs %" PRId64 " ends after step %" PRId64, cfg->training.epochs, last_step);
    else if (last_step < s->cfg->training.steps)
        tt_text_add(out, "%s after step %" PRId64 " (dataloader.repeat is false)",
                    about->data->n > 1 ? "; the data ends" : ", which end", last_step);
    tt_text_add(out, "\n");
    print_validation(out, cfg, about);
    if (freq)
        tt_text_add(out,
                    "  texts    at most %" PRId64 " token%s, sampled every %" PRId64
                    " step%s and at the end; rank 0 needs %s for the model then\n",
                    most, tt_plural(most), freq, tt_plural(freq),
                    tt_text_bytes(memory, sizeof memory, (double)s->job.sampling_bytes));
    if (cfg->metrics.task_freq)
        tt_text_add(out,
                    "  tasks    %d, evaluated every %" PRId64
                    " step%s and at the end; rank 0 needs %s for the model then\n",
                    cfg->metrics.tasks.n, cfg->metrics.task_freq, tt_plural(cfg->metrics.task_freq),
                    tt_text_bytes(memory, sizeof memory, (double)s->job.sampling_bytes));
}

/* Appends the value of a key as a flag would give it. */
static void add_value(const struct tt_setup *s, const char *label, enum tt_key key, struct tt_text *out)
{
    tt_text_add(out, ", %s ", label);
    tt_config_value_text(s->cfg, tt_config_row(key), out);
}

static void print_policies(struct tt_text *out, const struct tt_setup *s)
{
    struct tt_text policies = {0}, sizes = {0}, readers = {0};

    tt_job_readers_text(&s->job, &readers);
    tt_mesh_stage_text(&s->job.mesh, &sizes);
    add_value(s, "wrap", TT_KEY(parallelism.fsdp_wrap_policy), &policies);
    add_value(s, "reshard", TT_KEY(parallelism.fsdp_reshard_after_forward), &policies);
    add_value(s, "prefetch", TT_KEY(parallelism.fsdp_prefetch), &policies);
    add_value(s, "engine", TT_KEY(parallelism.fsdp_engine), &policies);
    add_value(s, "sync", TT_KEY(training.gradient_sync), &policies);
    tt_text_add(out,
                "  batch    %" PRId64 " sequence%s a step = %s x %" PRId64 " microbatch%s of %" PRId64 "\n"
                "  sharding %s%s\n",
                s->job.global_batch, tt_plural(s->job.global_batch), readers.text, s->job.microbatches,
                s->job.microbatches == 1 ? "" : "es", s->job.microbatch_size, sizes.text, policies.text);
    if (s->job.sync_why)
        tt_text_add(out, "  reduces  gradients %s (gradient_sync auto)\n", s->job.sync_why);
    tt_text_release(&readers);
    tt_text_release(&sizes);
    tt_text_release(&policies);
}

static void print_pipeline(struct tt_text *out, const struct tt_setup *s)
{
    const struct tt_pipeline *pipeline = s->job.pipeline;
    const struct tt_stage_places *places = s->job.places;
    int last = tt_model_modules(s->job.model) - 1;

    if (!pipeline)
        return;
    tt_text_add(out, "  pipeline %s on %d ranks, %d stages with ", pipeline->schedule->name, pipeline->ranks,
                pipeline->n_stages);
    for (int stage = 0; stage < places->n_stages; stage++) {
        int layers = 0;

        for (int m = 1; m < last - 1; m++)
            layers += places->module_stage[m] == stage;
        tt_text_add(out, "%s%d", stage ? ", " : "", layers);
    }
    tt_text_add(out, " layers, runs of %d microbatch%s\n", pipeline->microbatches,
                pipeline->microbatches == 1 ? "" : "es");
}

static void print_recompute(struct tt_text *out, const struct tt_setup *s)
{
    const struct tt_recompute *recompute = &s->job.engine.recompute;
    bool is_auto = s->cfg->activation_checkpoint.mode == TT_AC_AUTO;

    if (recompute->mode == TT_RECOMPUTE_FULL)
        tt_text_add(out, "  memory   every block is recomputed in backward (activation_checkpoint full)\n");
    else if (recompute->mode == TT_RECOMPUTE_SELECTIVE)
        tt_text_add(out, "  memory   1 of %d blocks is recomputed in backward, except attention\n", recompute->every);
    else if (recompute->mode == TT_RECOMPUTE_OP)
        tt_text_add(out, "  memory   light operations are recomputed in backward (%s)\n",
                    is_auto ? "activation_checkpoint auto, in bfloat16" : "selective_ac_option op");
}

/* Prints how many of the trained parameters have their moments in blocks. */
static void print_blocks(struct tt_text *out, const struct tt_setup *s)
{
    const struct tt_model *model = s->job.model;
    int64_t trained = 0, in_blocks = 0;
    char some[32], all[32];

    for (int p = 0; p < model->n_params; p++) {
        struct tt_box whole = tt_box_whole(model->params[p].ndim, model->params[p].shape);

        trained += model->params[p].frozen ? 0 : tt_box_volume(&whole);
        if (!model->params[p].frozen && tt_optim_row(model->params[p].optim)->codes[0])
            in_blocks += tt_box_volume(&whole);
    }
    tt_text_add(out, "  moments  of 8 bits for %s of %s trained parameters; AdamW's for the others\n",
                tt_text_count(some, sizeof some, in_blocks), tt_text_count(all, sizeof all, trained));
}

static void print_precision(struct tt_text *out, const struct tt_setup *s, const struct tt_run_about *about)
{
    bool params = s->cfg->training.mixed_precision_param == TT_DTYPE_BFLOAT16;
    bool gradients = s->cfg->training.mixed_precision_reduce == TT_DTYPE_BFLOAT16;

    if (tt_optim_row(s->cfg->optimizer.name)->codes[0])
        print_blocks(out, s);
    if (params || gradients)
        tt_text_add(out, "  numbers  computation in %s, gradients reduced in %s, %s in float32\n",
                    params ? "bfloat16" : "float32", gradients ? "bfloat16" : "float32",
                    s->job.engine.shard_dtype == TT_BF16 ? "weights and moments in bfloat16, sums"
                                                         : "master weights and sums");
    else if (about->at->step == 0 && tt_kernels_gain() > 1.0 &&
             strcmp(tt_config_origin(s->cfg, TT_KEY(training.mixed_precision_param)), "default") == 0)
        tt_text_add(out,
                    "  numbers  float32; this CPU multiplies bfloat16 %.2g times as fast "
                    "(training.mixed_precision_param=bfloat16)\n",
                    tt_kernels_gain());
}

/* Prints the model, and the keys that were not set because they follow from the folder of the weights. */
static void print_model(struct tt_text *out, const struct tt_setup *s)
{
    const char *key = TT_KEY_NAME(checkpoint.initial_load_path);
    bool assets = strcmp(tt_config_origin(s->cfg, TT_KEY(model.hf_assets_path)), key) == 0;
    bool sizes = strcmp(tt_config_origin(s->cfg, TT_KEY(model.flavor)), key) == 0;
    const char *vocabulary = tt_config_origin(s->cfg, TT_KEY(model.vocab_size));
    const struct tt_moe *moe = &s->job.model->dims.moe;
    char count[32];

    tt_text_add(out, "  model    %s, %s parameters", s->job.model->title,
                tt_text_count(count, sizeof count, tt_model_n_elements(s->job.model)));
    if (moe->experts)
        tt_text_add(out, ", of which a token uses %s (%" PRId64 " of %" PRId64 " experts)",
                    tt_text_count(count, sizeof count, tt_model_n_active(s->job.model)), moe->top_k, moe->experts);
    if (strstr(vocabulary, "tokenizer.json: "))
        tt_text_add(out, ", %s rows of vocabulary (%s)",
                    tt_text_count(count, sizeof count, s->job.model->dims.vocab_size), vocabulary);
    if (assets || sizes)
        tt_text_add(out, "; %s from %s", !sizes ? "tokenizer" : assets ? "model and tokenizer" : "model", key);
    tt_text_add(out, "\n");
    if (s->job.told_positions)
        tt_text_add(out,
                    "  length   sequences of %" PRId64 ", and the model is for %" PRId64
                    " (max_position_embeddings): exports will say %" PRId64 "\n",
                    s->cfg->training.seq_len, s->job.told_positions, s->job.model->dims.max_positions);
}

static void print_groups(struct tt_text *out, const struct tt_setup *s)
{
    const struct tt_model *model = s->job.model;
    int no_decay = 0, factors = 0;

    for (int p = 0; p < model->n_params; p++) {
        no_decay += model->params[p].no_decay;
        factors += s->cfg->optimizer.lr_factors.n && model->params[p].lr_factor != 1.0;
    }
    if (no_decay || factors)
        tt_text_add(out, "  groups   of %d parameters %d have no weight decay, %d a factor of the learning rate\n",
                    model->n_params, no_decay, factors);
}

static void print_adapters(struct tt_text *out, const struct tt_model *model)
{
    const struct tt_lora *lora = &model->dims.lora;
    char trained[32], all[32], dropout[32] = "";
    int n = 0;

    for (int p = 0; p < model->n_params; p++)
        n += model->params[p].adapted && model->params[p].hf_part == 0;
    if (lora->dropout > 0.0)
        (void)snprintf(dropout, sizeof dropout, ", dropout %g", lora->dropout);
    if (lora->rank)
        tt_text_add(out,
                    "  lora     rank %" PRId64 ", alpha %g%s%s%s on %d layers%s%s; %s of %s parameters are trained\n",
                    lora->rank, lora->alpha, lora->rslora ? " / sqrt(rank)" : "", lora->dora ? ", DoRA" : "", dropout,
                    n, lora->packing ? ", frozen weights in " : "", lora->packing ? tt_packing_name(lora->packing) : "",
                    tt_text_count(trained, sizeof trained, tt_model_n_trained(model)),
                    tt_text_count(all, sizeof all, tt_model_n_elements(model)));
}

static void print_prediction(struct tt_text *out, const struct tt_reporter *r, int64_t left)
{
    const struct tt_setup *s = r->setup;
    double step = r->predicted_step_sec;
    char predicted[32], limit[32], one[32], all[32];
    struct tt_text where = {0};

    if (s->job.pipeline) {
        tt_text_add(&where, "on ");
        tt_job_rank_text(&s->job, r->largest_rank, &where);
    }
    tt_text_add(out, "  predicts %s %s at its peak (limit %s), about %s a step at %.0f GF/s a rank",
                tt_text_bytes(predicted, sizeof predicted, (double)(r->largest_bytes + s->job.staging_bytes)),
                where.text ? where.text : "a rank", tt_text_bytes(limit, sizeof limit, (double)s->memory_limit),
                tt_text_duration(one, sizeof one, step), r->metrics.peak_flops / 1e9);
    if (left > 0)
        tt_text_add(out, ", %s for %" PRId64 " step%s", tt_text_duration(all, sizeof all, step * (double)left), left,
                    tt_plural(left));
    if (s->job.pipeline)
        tt_text_add(out, ", pipeline idle %.0f %%", 100.0 * r->predicted_idle);
    tt_text_add(out, "\n");
    tt_text_release(&where);
}

/* When the run is to end, if not with a given step. */
static void print_finish(struct tt_text *out, const struct tt_config *cfg, const struct tt_run_about *about)
{
    char all[32], used[32];

    if (cfg->lr_scheduler.ends)
        tt_text_add(out, "  finishes as %s says (lr_scheduler.ends)\n", cfg->lr_scheduler.ends);
    if (cfg->lr_scheduler.finish_by == TT_NULL_INT)
        return;
    tt_text_add(out, "  finishes within %s of training (lr_scheduler.finish_by)",
                tt_text_duration(all, sizeof all, (double)cfg->lr_scheduler.finish_by));
    if (about->at->trained_sec > 0.0)
        tt_text_add(out, ", of which %s are used", tt_text_duration(used, sizeof used, about->at->trained_sec));
    tt_text_add(out, ", or with step %" PRId64 "; the last %.4g%% of the steps decay\n", tt_most_steps_of(about),
                100.0 * cfg->lr_scheduler.decay_ratio);
}

static void print_others(struct tt_text *out, const struct tt_reporter *r)
{
    if (r->others[0])
        tt_text_add(out, "  machine  %s; peak and mfu too low\n", r->others);
}

/* The degrees of one kind of parallelism that give the same bits. */
static void print_degrees(struct tt_text *out, const char *kind, int grains, int64_t exact)
{
    tt_text_add(out, ",\n           and for %s_parallel_degree 1", kind);
    for (int degree = 2; degree <= grains; degree *= 2)
        tt_text_add(out, ", %d", degree);
    if (exact < grains)
        tt_text_add(out, " with exact_%s_parallel_degree=%d", kind, grains);
}

/* Adds the line about the other layouts that give the same bits. A layer or a sequence has several grains only if a
 * degree is above 1. */
static void print_curve(struct tt_text *out, const struct tt_setup *s)
{
    const struct tt_mesh *mesh = &s->job.mesh;

    if (!tt_setup_layout_exact(s)) {
        tt_text_add(out, "  curve    deterministic, but equal to other layouts only up to rounding\n");
        return;
    }
    tt_text_add(
        out,
        "  curve    layout-exact: losses and validation losses have the same bits for every power-of-two split of this "
        "batch");
    if (mesh->tp_grains > 1)
        print_degrees(out, "tensor", mesh->tp_grains, s->cfg->parallelism.exact_tensor_parallel_degree);
    /* a gradient in bfloat16 is rounded before it is added to the gradients of the sequence's other ranks */
    if (mesh->cp_grains > 1 && s->job.engine.reduce_dtype == TT_F32) {
        print_degrees(out, "context", mesh->cp_grains, s->cfg->parallelism.exact_context_parallel_degree);
        if (s->job.engine.reduce == TT_REDUCE_RUNS) /* ranks that share a sequence would add in a different order */
            tt_text_add(out, " with gradient_sync=every_microbatch");
    }
    tt_text_add(out, "\n");
}

void tt_banner_all(const struct tt_run_about *about, struct tt_text *out)
{
    const struct tt_reporter *r = about->reporter;
    const struct tt_setup *s = r->setup;
    int64_t rules = s->cfg->model.init_rules.n;

    print_cores(out, s);
    print_model(out, s);
    print_data(out, s, about);
    print_policies(out, s);
    print_pipeline(out, s);
    print_recompute(out, s);
    print_precision(out, s, about);
    tt_text_add(out, "  weights  %s", about->start->weights_from);
    if (about->start->is_random && !isnan(s->cfg->model.init_std))
        tt_text_add(out, ", init_std %g", s->cfg->model.init_std);
    if (about->start->is_random && rules)
        tt_text_add(out, ", %" PRId64 " init rule%s", rules, tt_plural(rules));
    tt_text_add(out, "\n");
    print_adapters(out, s->job.model);
    print_groups(out, s);
    tt_changed_text(s, &about->start->since, out);
    tt_text_add(out, "  kernels  ");
    tt_kernels_text(out);
    tt_text_add(out, "\n");
    if (s->kernels_differ)
        tt_text_add(out, "  kernels  not the same on all ranks, which changes bits: %s\n", s->kernels_differ);
    tt_text_add(out, "  mfu      share of %.0f GF/s a rank; masked positions of the attention do not count\n",
                r->metrics.peak_flops / 1e9);
    print_curve(out, s);
    print_finish(out, s->cfg, about);
    print_prediction(out, r, tt_steps_left_of(about));
    print_others(out, r);
    if (s->cfg->job.print_config)
        tt_config_to_yaml(s->cfg, TT_CONFIG_PLAIN, out);
}

/* --- the six lines that every user needs --- */

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

/* "kjv: 1,068,459 tokens in 4,173 sequences; validation every 50 steps" */
static void add_data(const struct tt_setup *s, const struct tt_run_about *about, int64_t last_step, struct tt_text *out)
{
    const struct tt_config *cfg = s->cfg;
    const struct tt_train_data *data = about->data;
    const struct tt_dataset_entry entry = tt_config_dataset(cfg, &cfg->training.dataset, 0);
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
        tt_text_add(out, " in %s sequence%s", tt_text_count(count, sizeof count, epoch), tt_plural(epoch));
    if (last_step < cfg->training.steps || cfg->training.epochs != TT_NULL_INT)
        tt_text_add(out, ", to step %" PRId64, last_step);
    if (cfg->validation.enable)
        tt_text_add(out, "; validation every %" PRId64 " step%s", cfg->validation.freq,
                    tt_plural(cfg->validation.freq));
    else
        tt_text_add(out, "; no validation");
    if (cfg->validation.split > 0.0)
        tt_text_add(out, ", %.4g%% held out", 100.0 * cfg->validation.split);
    tt_text_add(out, "\n");
}

/* "16 sequences of 256 a step = 2 ranks x 4 microbatches of 2, dp_shard 2" */
static void add_batch(const struct tt_setup *s, struct tt_text *out)
{
    const struct tt_job *job = &s->job;

    tt_text_add(out, "  batch    %" PRId64 " sequence%s of %" PRId64 " a step = ", job->global_batch,
                tt_plural(job->global_batch), s->cfg->training.seq_len);
    tt_job_readers_text(job, out);
    tt_text_add(out, " x %" PRId64 " microbatch%s of %" PRId64, job->microbatches, job->microbatches == 1 ? "" : "es",
                job->microbatch_size);
    for (int dim = 0; dim < TT_MESH_DEGREES; dim++)
        if (job->mesh.size[dim] > 1)
            tt_text_add(out, ", %s %d", tt_mesh_dim_name(dim), job->mesh.size[dim]);
    tt_text_add(out, "%s%s\n", job->pipeline ? " " : "", job->pipeline ? job->pipeline->schedule->name : "");
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

/* Appends the lines of a text, each cut to at most `columns`; 0: uncut. */
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
        while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80) /* do not cut within a character */
            at--;
        tt_text_add(out, "%.*s%s\n", at, text, mark);
    }
}

/* Whether the kernels of all ranks give the same bits on every processor (tt_kernels_bits). */
static bool has_portable_bits(const struct tt_setup *s)
{
    return !s->kernels_differ &&
           strcmp(tt_kernels_bits(tt_kernels(), s->job.engine.param_dtype == TT_BF16), "portable") == 0;
}

void tt_banner_brief(const struct tt_run_about *about, int columns, struct tt_text *out)
{
    const struct tt_reporter *r = about->reporter;
    const struct tt_setup *s = r->setup;
    int host = tt_cores()->cores;
    struct tt_text lines = {0};

    tt_text_add(&lines, "titan %s: %d rank%s x %d thread%s, %d core%s on this host, %s%s\n", TITAN_VERSION,
                s->comm->size, tt_plural(s->comm->size), s->threads, tt_plural(s->threads), host, tt_plural(host),
                s->job.engine.param_dtype == TT_BF16 ? "bfloat16" : "float32",
                s->local_size * s->threads > host ? ", oversubscribed" : "");
    add_model(s->job.model, about->start, &lines);
    add_data(s, about, tt_most_steps_of(about), &lines);
    add_batch(s, &lines);
    if (tt_setup_layout_exact(s))
        tt_text_add(&lines, "  curve    same bits on %s1, 2, 4, ... ranks, validation too\n",
                    has_portable_bits(s) ? "every processor, on " : "");
    else
        tt_text_add(&lines, "  curve    deterministic; other layouts up to rounding%s\n",
                    s->kernels_differ ? ", since the kernels of the ranks differ" : "");
    print_finish(&lines, s->cfg, about);
    add_prediction(r, tt_steps_left_of(about), &lines);
    print_others(&lines, r);
    add_cut(lines.text, columns, out);
    tt_changed_text(s, &about->start->since, out);
    if (s->cfg->job.print_config)
        tt_config_to_yaml(s->cfg, TT_CONFIG_PLAIN, out);
    tt_text_release(&lines);
}
