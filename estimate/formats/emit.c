/* SPDX-License-Identifier: MIT
 *
 * A layout as the configuration of a trainer: titan's YAML, torchtitan's TOML, Megatron's flags.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/models/model.h"
#include "estimate/formats/formats.h"

/* The writer of the two similar formats, with the differences between them. */
struct writer {
    struct tt_text *out;
    bool toml;
};

static void section(const struct writer *w, const char *name)
{
    tt_text_add(w->out, w->toml ? "\n[%s]\n" : "%s:\n", name);
}

static void number(const struct writer *w, const char *key, double value)
{
    tt_text_add(w->out, w->toml ? "%s = %.0f\n" : "  %s: %.0f\n", key, value);
}

static void word(const struct writer *w, const char *key, const char *value)
{
    tt_text_add(w->out, w->toml ? "%s = \"%s\"\n" : "  %s: %s\n", key, value);
}

static void truth(const struct writer *w, const char *key, bool value)
{
    tt_text_add(w->out, w->toml ? "%s = %s\n" : "  %s: %s\n", key, value ? "true" : "false");
}

/* Writes the modules of every stage. */
static void modules(const struct writer *w, const struct tt_cluster_job *job)
{
    const char *quote = w->toml ? "\"" : "";
    int n = (int)(job->pp * job->virtual_stages), layer = 0;

    tt_text_add(w->out, "%smodule_fqns_per_model_part%s[", w->toml ? "" : "  ", w->toml ? " = " : ": ");
    for (int i = 0; i < n; i++) {
        const char *between = "";

        tt_text_add(w->out, i ? ", [" : "[");
        if (i == 0) {
            tt_text_add(w->out, "%stok_embeddings%s", quote, quote);
            between = ", ";
        }
        for (int k = 0; k < (int)job->stage_layers[i]; k++, between = ", ")
            tt_text_add(w->out, "%s%slayers.%d%s", between, quote, layer++, quote);
        if (i == n - 1)
            tt_text_add(w->out, "%s%snorm%s, %soutput%s", between, quote, quote, quote, quote);
        tt_text_add(w->out, "]");
    }
    tt_text_add(w->out, "]\n");
}

/* Writes the pipeline. If the trainer would choose the same stages, their layers are left out. */
static void pipeline(const struct writer *w, const struct tt_cluster_job *job)
{
    bool several = tt_pipeline_row(tt_cluster_schedule(job))->multi;
    double each, ends, first = job->first_less, last = job->last_less;

    word(w, "pipeline_parallel_schedule", tt_cluster_schedule_name(job));
    number(w, "pipeline_parallel_microbatch_size", job->micro_batch);
    if (job->stage_layers) {
        modules(w, job);
        return;
    }
    if (job->virtual_stages != (several ? 2 : 1) && tt_cluster_layers_per_stage(job, &each, &ends)) {
        number(w, "pipeline_parallel_layers_per_stage", each);
        if (!job->split_known || ends != first + last) {
            first = ends == 2 ? 1 : 0;
            last = ends - first;
        }
    } else if (!job->split_known)
        first = last = 1;
    if (first == 1 && last == 1) /* the default */
        return;
    number(w, "pipeline_parallel_first_stage_less_layers", first);
    number(w, "pipeline_parallel_last_stage_less_layers", last);
}

static void parallelism(const struct writer *w, const struct tt_cluster_job *job)
{
    section(w, "parallelism");
    number(w, "data_parallel_replicate_degree", job->replicate);
    number(w, "data_parallel_shard_degree", job->shard);
    word(w, "fsdp_reshard_after_forward", job->keep_gathered ? "never" : "default");
    number(w, "tensor_parallel_degree", job->tp);
    number(w, "context_parallel_degree", job->cp);
    number(w, "pipeline_parallel_degree", job->pp);
    if (job->ep > 1)
        number(w, "expert_parallel_degree", job->ep);
    if (job->async_tp && w->toml)
        truth(w, "enable_async_tensor_parallel", true);
    if (job->whole_logits && w->toml)
        truth(w, "disable_loss_parallel", true);
    if (job->pp > 1)
        pipeline(w, job);
}

static void recomputation(const struct writer *w, const struct tt_cluster_job *job)
{
    char every[24];

    section(w, "activation_checkpoint");
    word(w, "mode", job->again == TT_AGAIN_NONE ? "none" : job->again == TT_AGAIN_FULL ? "full" : "selective");
    (void)snprintf(every, sizeof every, "%.0f", round(job->shape.layers / fmax(job->again_layers, 1)));
    if (job->again == TT_AGAIN_OP)
        word(w, "selective_ac_option", "op");
    else if (job->again == TT_AGAIN_LAYERS)
        word(w, "selective_ac_option", every);
}

/* Writes the sizes that the configuration sets; torchtitan's files have no such keys. */
static int sizes(const struct writer *w, const struct tt_config *cfg)
{
    const struct {
        const char *key;
        int64_t value;
    } size[] = {{"dim", cfg->model.dim},
                {"n_layers", cfg->model.n_layers},
                {"n_heads", cfg->model.n_heads},
                {"n_kv_heads", cfg->model.n_kv_heads},
                {"head_dim", cfg->model.head_dim},
                {"ffn_dim", cfg->model.ffn_dim},
                {"vocab_size", cfg->model.vocab_size}};
    int n = 0;

    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        if (size[i].value != TT_NULL_INT) {
            n++;
            if (w)
                number(w, size[i].key, (double)size[i].value);
        }
    return n;
}

static void keys(const struct writer *w, const struct tt_config *cfg, const char *model,
                 const struct tt_cluster_job *job)
{
    double ranks = job->replicate * job->shard;
    const char *family = cfg->model.name, *flavor = cfg->model.flavor;
    bool by_name = model && tt_cluster_recipe_model(model, &family, &flavor);

    section(w, "model");
    word(w, "name", family);
    word(w, "flavor", flavor);
    if (!by_name)
        (void)sizes(w, cfg);
    if (job->float8 && w->toml)
        tt_text_add(w->out, "converters = [\"float8\"]\n");
    section(w, "training");
    number(w, "seq_len", job->seq_len);
    number(w, "local_batch_size", job->pp > 1 ? job->micro_batch * job->n_micro : job->micro_batch);
    number(w, "global_batch_size", job->micro_batch * job->n_micro * ranks);
    number(w, "steps", (double)cfg->training.steps);
    if (!w->toml || job->float32)
        word(w, "mixed_precision_param", job->float32 ? "float32" : "bfloat16");
    if (job->weight_bytes == 2)
        word(w, "dtype", "bfloat16");
    if (job->gradient_bytes == 2)
        word(w, "mixed_precision_reduce", "bfloat16");
    if (job->offload == TT_OFFLOAD_ALL && w->toml)
        truth(w, "enable_cpu_offload", true);
    if (job->optimizer != TT_OPT_ADAMW) {
        section(w, "optimizer");
        word(w, "name", tt_cluster_optimizer_words[job->optimizer]);
    }
    if (job->lora_rank > 0) {
        section(w, "lora");
        number(w, "rank", job->lora_rank);
    }
    parallelism(w, job);
    recomputation(w, job);
    if (!w->toml)
        return;
    section(w, "compile");
    truth(w, "enable", !strstr(job->stack->name, "eager"));
    if (job->loss_chunks > 1)
        tt_text_add(w->out, "# the loss is computed in %.0f chunks: --loss.num_chunks in 2026, nothing before\n",
                    job->loss_chunks);
}

static void megatron_experts(struct tt_text *out, const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;

    if (!(s->experts > 0))
        return;
    tt_text_add(out, "--num-experts %.0f --moe-router-topk %.0f --moe-ffn-hidden-size %.0f --moe-grouped-gemm \\\n",
                s->experts, s->active, s->moe_ffn);
    if (s->shared_ffn > 0)
        tt_text_add(out, "--moe-shared-expert-intermediate-size %.0f \\\n", s->shared_ffn);
    if (s->expert_bias)
        tt_text_add(out, "--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7.0 "
                         "--softmax-type learnable \\\n");
    if (s->groups > 1)
        tt_text_add(out, "--moe-router-num-groups %.0f --moe-router-group-topk %.0f \\\n", s->groups, s->groups_met);
    if (job->balanced)
        tt_text_add(out, "--moe-router-force-load-balancing \\\n");
    if (job->expert_overlap)
        tt_text_add(out, "--overlap-moe-expert-parallel-comm \\\n");
    if (s->dense_layers > 0)
        tt_text_add(out, "--moe-layer-freq '([0]*%.0f+[1]*%.0f)' \\\n", s->dense_layers, s->layers - s->dense_layers);
    tt_text_add(out, "--expert-model-parallel-size %.0f \\\n", job->ep);
    if (tt_cluster_expert_tp(job) != job->tp)
        tt_text_add(out, "--expert-tensor-parallel-size %.0f \\\n", tt_cluster_expert_tp(job));
}

static void megatron_stages(struct tt_text *out, const struct tt_cluster_job *job)
{
    double layers = job->shape.layers, each, ends;

    if (job->pp <= 1)
        return;
    if (!tt_cluster_layers_per_stage(job, &each, &ends)) {
        tt_text_add(out, "--decoder-last-pipeline-num-layers %.0f \\\n",
                    layers - (job->pp - 1) * ceil(layers / job->pp));
        return;
    }
    if (ends > 0)
        tt_text_add(out, "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split \\\n");
    if (job->virtual_stages > 1)
        tt_text_add(out, "--num-layers-per-virtual-pipeline-stage %.0f \\\n", each);
}

static void megatron_recomputation(struct tt_text *out, const struct tt_cluster_job *job)
{
    if (job->again == TT_AGAIN_FULL)
        tt_text_add(out, "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\\n");
    else if (job->again == TT_AGAIN_LAYERS)
        tt_text_add(out, "--recompute-granularity full --recompute-method block --recompute-num-layers %.0f \\\n",
                    round(job->again_layers / job->pp));
    else if (job->again == TT_AGAIN_ATTENTION)
        tt_text_add(out, "--recompute-granularity selective \\\n");
    else if (job->again == TT_AGAIN_MODULES) {
        tt_text_add(out, "--recompute-granularity selective --recompute-modules ");
        tt_cluster_module_names(job->again_modules, out);
        tt_text_add(out, " \\\n");
    }
}

/* Writes the flags without which Megatron would not overlap what the stack overlaps. */
static void megatron_overlap(struct tt_text *out, const struct tt_cluster_job *job)
{
    static const char *const kernels[] = {"unfused", NULL, "flash", "fused"};

    if (job->stack->number[TT_S_GRAD_EXPOSED].value < 1)
        tt_text_add(out, "--overlap-grad-reduce %s\\\n",
                    job->stack->number[TT_S_STATE_SHARD].value > 0 ? "--overlap-param-gather " : "");
    if (job->state_gradient_bytes == 2)
        tt_text_add(out, "--grad-reduce-in-bf16 \\\n");
    if (job->async_tp)
        tt_text_add(out, "--tp-comm-overlap \\\n");
    if (job->kernel >= 0 && kernels[job->kernel])
        tt_text_add(out, "--attention-backend %s \\\n", kernels[job->kernel]);
}

/* Writes how the loss is computed, and which optimizer state and activations are kept. */
static void megatron_state(struct tt_text *out, const struct tt_cluster_job *job)
{
    double loss = job->logit_bytes;

    if (loss > 0)
        tt_text_add(out, "--cross-entropy-loss-fusion --cross-entropy-fusion-impl %s \\\n",
                    loss <= 4 ? "te" : "native");
    if (job->optimizer != TT_OPT_ADAMW)
        tt_text_add(out, "--optimizer %s \\\n",
                    job->optimizer == TT_OPT_MUON   ? "muon"
                    : job->optimizer == TT_OPT_LION ? "lion"
                                                    : "sgd");
    if (job->offload == TT_OFFLOAD_OPTIMIZER)
        tt_text_add(out, "--optimizer-cpu-offload \\\n");
    if (job->state_copies > 1)
        tt_text_add(out, "--num-distributed-optimizer-instances %.0f \\\n", job->state_copies);
    if (job->offload_layers > 0)
        tt_text_add(out, "--cpu-offloading-num-layers %.0f \\\n", job->offload_layers);
}

static void megatron_attention(struct tt_text *out, const struct tt_cluster_shape *s)
{
    const struct tt_cluster_latent *l = &s->latent;
    double whole = s->layers - s->window_layers, every = round(s->layers / fmax(whole, 1));

    if (l->key_rank > 0) {
        tt_text_add(out, "--multi-latent-attention --kv-lora-rank %.0f --qk-head-dim %.0f --qk-pos-emb-head-dim %.0f",
                    l->key_rank, l->nope, l->rope);
        tt_text_add(out, " --v-head-dim %.0f \\\n", l->value);
        if (l->query_rank > 0)
            tt_text_add(out, "--q-lora-rank %.0f \\\n", l->query_rank);
    } else if (s->head_dim * s->heads != s->dim)
        tt_text_add(out, "--kv-channels %.0f \\\n", s->head_dim);
    if (s->kv_heads < s->heads)
        tt_text_add(out, "--group-query-attention --num-query-groups %.0f \\\n", s->kv_heads);
    if (!(s->window > 0))
        return;
    tt_text_add(out, "--window-size %.0f,0", s->window);
    if (whole > 0 && s->layers - floor(s->layers / every) == s->window_layers)
        tt_text_add(out, " --window-attn-skip-freq %.0f", every);
    else if (whole > 0)
        tt_text_add(out, " --window-attn-skip-freq '([1]*%.0f+[0]*%.0f)'", s->window_layers, whole);
    tt_text_add(out, " \\\n");
}

static void megatron(struct tt_text *out, const struct tt_config *cfg, const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;

    tt_text_add(out, "--num-layers %.0f --hidden-size %.0f --ffn-hidden-size %.0f --num-attention-heads %.0f \\\n",
                s->layers, s->dim, s->ffn, s->heads);
    megatron_attention(out, s);
    if (s->mtp_layers > 0)
        tt_text_add(out, "--mtp-num-layers %.0f \\\n", s->mtp_layers);
    tt_text_add(out, "--vocab-size %.0f %s%s--seq-length %.0f --max-position-embeddings %.0f --bf16 \\\n", s->vocab,
                s->gated && !s->expert_bias ? "--swiglu " : "", s->tied ? "" : "--untie-embeddings-and-output-weights ",
                job->seq_len, s->positions > 0 ? s->positions : job->seq_len);
    tt_text_add(out, "--position-embedding-type %s \\\n", s->positions > 0 ? "learned_absolute" : "rope");
    if (fmod(s->vocab, 128 * job->tp) != 0)
        tt_text_add(out, "--make-vocab-size-divisible-by 1 \\\n");
    tt_text_add(out, "--tensor-model-parallel-size %.0f --pipeline-model-parallel-size %.0f", job->tp, job->pp);
    tt_text_add(out, " --context-parallel-size %.0f%s \\\n", job->cp,
                job->sequence_parallel ? " --sequence-parallel" : "");
    megatron_experts(out, job);
    megatron_stages(out, job);
    megatron_recomputation(out, job);
    megatron_overlap(out, job);
    megatron_state(out, job);
    if (job->float8)
        tt_text_add(out, "--fp8-format hybrid%s \\\n", job->weight_copies > 0 ? "" : " --fp8-param-gather");
    tt_text_add(out, "--train-iters %.0f \\\n", (double)cfg->training.steps);
    tt_text_add(out, "--micro-batch-size %.0f --global-batch-size %.0f%s\n", job->micro_batch,
                job->micro_batch * job->n_micro * job->replicate * job->shard,
                job->stack->number[TT_S_STATE_SHARD].value > 0 ? " --use-distributed-optimizer" : "");
}

/* Checks that the trainer knows the model by name, since no configuration contains the sizes of a --model. */
static int check_model(const struct tt_config *cfg, const char *model, bool toml)
{
    const char *family, *flavor;
    bool by_name = model && tt_cluster_recipe_model(model, &family, &flavor), titan_has = false;

    for (int i = 0; by_name && i < tt_model_n_rows; i++)
        for (int k = 0; k < tt_model_rows[i]->n_flavors; k++)
            titan_has = titan_has || (strcmp(tt_model_rows[i]->name, family) == 0 &&
                                      strcmp(tt_model_rows[i]->flavors[k].name, flavor) == 0);
    if (toml && !by_name && (model || sizes(NULL, cfg) > 0))
        return tt_fail(TT_EUSAGE, "estimate: the model's sizes differ from every flavor's, and torchtitan's files "
                                  "cannot express them\n"
                                  "help: use a flavor, or --emit titan");
    if (!toml && model && !titan_has)
        return tt_fail(TT_EUSAGE,
                       "estimate: titan has no flavor '%s'\nhelp: leave --model out and name one of "
                       "titan's models in the configuration",
                       model);
    return 0;
}

int tt_cluster_emit(const char *form, const struct tt_config *cfg, const char *model,
                    const struct tt_cluster_layout *layout, struct tt_text *out)
{
    const struct tt_cluster_job *job = &layout->job;
    bool whole = tt_cluster_stack_is_megatron(job->stack);
    struct writer w = {.out = out, .toml = strcmp(form, "torchtitan") == 0};
    char text[200];
    int rc;

    if (strcmp(form, "titan") != 0 && strcmp(form, "torchtitan") != 0 && strcmp(form, "megatron") != 0)
        return tt_fail(TT_EUSAGE,
                       "estimate: --emit '%s' is not a known format\n"
                       "help: use titan, torchtitan or megatron",
                       form);
    if (whole != (strcmp(form, "megatron") == 0))
        return tt_fail(TT_EUSAGE,
                       "estimate: a layout of the stack %s cannot be written as a configuration of %s: they divide "
                       "weights and optimizer in different ways\n"
                       "help: choose a --stack of that trainer",
                       job->stack->name, form);
    if (whole &&
        (job->again == TT_AGAIN_OP || (job->again == TT_AGAIN_LAYERS && fmod(job->again_layers, job->pp) != 0)))
        return tt_fail(TT_EUSAGE, "estimate: Megatron has no flag for what activation_checkpoint.mode=selective "
                                  "recomputes\nhelp: set the mode to none or full, or add --search");
    if (whole && job->shape.score_dim > 0 && !(job->shape.latent.key_rank > 0))
        return tt_fail(TT_EUSAGE, "estimate: titan cannot write the sizes of latent attention as Megatron's flags\n"
                                  "help: print the layout, without --emit");
    if (!whole && job->again == TT_AGAIN_MODULES)
        return tt_fail(TT_EUSAGE, "estimate: only Megatron recomputes parts of a layer by name\nhelp: add --search, or "
                                  "leave --recompute-modules out");
    if (!whole && (rc = check_model(cfg, model, w.toml)) < 0)
        return rc;
    if (strcmp(form, "titan") == 0 && job->float8)
        return tt_fail(TT_EUSAGE, "estimate: titan does not train in float8");
    if (strcmp(form, "titan") != 0 && job->lora_rank > 0)
        return tt_fail(TT_EUSAGE,
                       "estimate: titan cannot write low-rank adapters in the format of %s\n"
                       "help: use --emit titan, or print the layout without --emit",
                       form);
    tt_text_add(out, "# titan estimate: %.0f x %s, stack %s; %s\n", tt_cluster_devices(job), job->machine->name,
                job->stack->name, tt_cluster_layout_text(text, sizeof text, job));
    tt_text_add(out, "# predicted: %.3f s a step, %.0f tokens/s a device, %.1f GiB of %.1f\n", layout->time.total,
                layout->tokens_per_sec, layout->memory.total / 1073741824.0, layout->memory.usable / 1073741824.0);
    if (whole)
        megatron(out, cfg, job);
    else
        keys(&w, cfg, model, job);
    return 0;
}

/* --- settings of another trainer's job that a prediction leaves out --- */

void tt_cluster_note(struct tt_cluster_notes *notes, const char *key, const char *value, const char *why)
{
    TT_PUSH(notes->item, notes->n, notes->cap) =
        (struct tt_cluster_note){.key = tt_strdup(key), .value = tt_strdup(value ? value : ""), .why = why};
}

void tt_cluster_notes_release(struct tt_cluster_notes *notes)
{
    for (int i = 0; i < notes->n; i++) {
        tt_free(notes->item[i].key);
        tt_free(notes->item[i].value);
    }
    tt_free(notes->item);
    *notes = (struct tt_cluster_notes){0};
}

void tt_cluster_foreign_release(struct tt_cluster_foreign *f)
{
    for (int i = 0; i < f->n; i++)
        tt_free(f->override[i]);
    tt_free(f->override);
    *f = (struct tt_cluster_foreign){0};
}
