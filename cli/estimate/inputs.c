/* SPDX-License-Identifier: MIT
 *
 * A command line as a job on a cluster: machine, stack, model, and a configuration of titan, torchtitan or Megatron.
 */
#include "cli/estimate/inputs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/estimate/names.h"
#include "cli/estimate/screen.h"
#include "core/base/mem.h"
#include "core/models/lora.h"
#include "core/models/model.h"
#include "core/os/file.h"
#include "estimate/formats/formats.h"
#include "estimate/model/job.h"
#include "parallel/pipeline/schedule.h"
#include "trainer/job/job.h"

/* titan's own keys as a job on a cluster: the trained parameters, and the types. */

/* Takes the adapters of lora.*. */
static void take_adapters(const struct tt_config *cfg, struct tt_cluster_job *job)
{
    static const enum tt_cluster_target targets[] = {TT_TARGET_Q,    TT_TARGET_K,  TT_TARGET_V,   TT_TARGET_O,
                                                     TT_TARGET_GATE, TT_TARGET_UP, TT_TARGET_DOWN};
    static const double bits[TT_PACKINGS] = {[TT_PACKING_BF16] = 16,
                                             [TT_PACKING_INT8] = 8,
                                             [TT_PACKING_NF4] = 4,
                                             [TT_PACKING_Q4_0] = 4.5,
                                             [TT_PACKING_Q8_0] = 8.5};

    job->lora_rank = (double)cfg->lora.rank;
    job->base_bits = bits[cfg->lora.base_dtype];
    job->lora_targets = 0;
    for (int i = 0; i < cfg->lora.target_modules.n; i++) {
        unsigned modules = tt_lora_module(cfg->lora.target_modules.word[i]);

        if (!modules) {
            tt_note(
                "predictions for GPU clusters count adapters of all layers, instead of those that '%s' in %s selects",
                cfg->lora.target_modules.word[i], TT_KEY_NAME(lora.target_modules));
            job->lora_targets = 0;
            break;
        }
        for (int k = 0; k < tt_lora_n_modules; k++)
            job->lora_targets |= modules & 1U << k ? (unsigned)targets[k] : 0;
    }
}

/* The optimizer whose memory and time are predicted. A switch, so that the compiler asks for new optimizers. */
static enum tt_cluster_optimizer predicted(enum tt_optim_choice optim)
{
    switch (optim) {
    case TT_OPTIM_ADAMW:
    case TT_OPTIM_ADAM:
        break;
    case TT_OPTIM_ADAMW_8BIT:
        return TT_OPT_ADAMW_8BIT;
    case TT_OPTIM_MUON:
        return TT_OPT_MUON;
    case TT_OPTIM_LION:
        return TT_OPT_LION;
    }
    return TT_OPT_ADAMW;
}

/* Takes the trained parameters and the types from titan's keys, if they are set: lora, training.dtype and
 * mixed_precision_*, optimizer.name. The job has its stack. */
static void own_keys(const struct tt_config *cfg, struct tt_cluster_job *job)
{
    bool is_titan = strcmp(job->stack->name, "titan") == 0;

    if (is_titan || tt_config_is_set(cfg, TT_KEY(training.mixed_precision_param)))
        job->float32 = cfg->training.mixed_precision_param == TT_DTYPE_FLOAT32;
    if (tt_config_is_set(cfg, TT_KEY(training.mixed_precision_reduce)))
        job->gradient_bytes = cfg->training.mixed_precision_reduce == TT_DTYPE_FLOAT32 ? 4 : 2;
    if (cfg->training.dtype == TT_DTYPE_BFLOAT16)
        job->weight_bytes = job->state_gradient_bytes = job->moment_bytes = 2;
    if (tt_config_is_set(cfg, TT_KEY(optimizer.name)))
        job->optimizer = predicted(cfg->optimizer.name);
    if (cfg->debug.moe_force_load_balance)
        job->balanced = job->adjacent = true;
    if (!cfg->parallelism.context_parallel_load_balancer)
        job->contiguous = true;
    if (cfg->lora.rank > 0)
        take_adapters(cfg, job);
    if (cfg->checkpoint.enable && !cfg->checkpoint.load_only) {
        job->save_steps = (double)cfg->checkpoint.interval;
        job->save_waits = cfg->checkpoint.async_mode == TT_ASYNC_DISABLED;
    }
}

/* --- a configuration as a job --- */

static struct tt_cluster_shape shape_of(const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;
    double expert = (double)(d->moe.ffn_dim ? d->moe.ffn_dim : d->ffn_dim);
    struct tt_cluster_latent latent = {.key_rank = (double)d->mla.kv_rank,
                                       .query_rank = (double)d->mla.q_rank,
                                       .rope = (double)d->mla.rope_dim,
                                       .nope = (double)(d->head_dim - d->mla.rope_dim),
                                       .value = (double)d->mla.value_dim};
    struct tt_cluster_shape s = {.dim = (double)d->dim,
                                 .layers = (double)d->n_layers,
                                 .heads = (double)d->n_heads,
                                 .kv_heads = (double)d->n_kv_heads,
                                 .head_dim = (double)d->head_dim,
                                 .ffn = (double)d->ffn_dim,
                                 .vocab = (double)d->vocab_size,
                                 .gated = tt_model_is_gated(model->row),
                                 .tied = d->tied == 1,
                                 .params = (double)tt_model_n_elements(model),
                                 .experts = (double)d->moe.experts,
                                 .active = (double)d->moe.top_k,
                                 .moe_ffn = expert,
                                 .shared_ffn = (double)tt_moe_shared_width(&d->moe),
                                 .dense_layers = (double)tt_model_dense_layers(d),
                                 .window = (double)d->sliding_window,
                                 .positions = model->row->learned_positions ? (double)d->max_positions : 0};

    for (int64_t l = 0; l < d->n_layers; l++)
        s.window_layers += tt_model_is_windowed(d, l);
    if (d->mla.kv_rank > 0)
        tt_cluster_shape_set_latent(&s, &latent);
    return s;
}

static int find_shape(const struct tt_cluster_inputs *in, struct tt_cluster_shape *ret_shape)
{
    const struct tt_config *cfg = in->cfg;
    struct tt_model_dims over = tt_job_model_overrides(cfg);
    struct tt_model *model = NULL;
    int rc = 0;

    *ret_shape = in->foreign.job.shape;
    if (in->foreign.has_shape)
        return 0;
    TT_TRY(tt_model_new(cfg->model.name, cfg->model.flavor, &over, cfg->model.hf_assets_path, &model));
    *ret_shape = shape_of(model);
out:
    tt_model_free(model);
    return rc;
}

static void recomputation(const struct tt_config *cfg, struct tt_cluster_job *job)
{
    enum tt_ac_choice mode = cfg->activation_checkpoint.mode;
    double option = (double)cfg->activation_checkpoint.selective_ac_option; /* 0 means "op" */

    job->again = mode == TT_AC_NONE                 ? TT_AGAIN_NONE
                 : mode == TT_AC_FULL               ? TT_AGAIN_FULL
                 : mode == TT_AC_AUTO || option < 1 ? TT_AGAIN_OP
                                                    : TT_AGAIN_LAYERS;
    if (job->again == TT_AGAIN_LAYERS)
        job->again_layers = floor(job->shape.layers / option);
}

void tt_cluster_own_recomputation(const struct tt_cluster_inputs *in, struct tt_cluster_job *job)
{
    recomputation(in->cfg, job);
}

static int batches(const struct tt_config *cfg, struct tt_cluster_job *job)
{
    double ranks = job->shard * job->replicate, local = (double)cfg->training.local_batch_size, sequences;

    sequences = cfg->training.global_batch_size > 0 ? (double)cfg->training.global_batch_size : local * ranks;
    job->micro_batch = job->pp > 1 ? (double)cfg->parallelism.pipeline_parallel_microbatch_size : local;
    job->n_micro = sequences / ranks / job->micro_batch;
    if (job->n_micro < 1 || floor(job->n_micro) != job->n_micro)
        return tt_fail(TT_EUSAGE,
                       "estimate: a step of %.0f sequences is not a multiple of %.0f data-parallel ranks x %.0f "
                       "sequences\nhelp: change training.global_batch_size or training.local_batch_size",
                       sequences, ranks, job->micro_batch);
    return 0;
}

static int degrees(const struct tt_cluster_inputs *in, int ranks, struct tt_cluster_job *job)
{
    const struct tt_config *cfg = in->cfg;
    double inner;

    job->tp = (double)cfg->parallelism.tensor_parallel_degree;
    job->pp = (double)cfg->parallelism.pipeline_parallel_degree;
    job->cp = (double)cfg->parallelism.context_parallel_degree;
    job->ep = in->foreign.has_shape ? in->ep : (double)cfg->parallelism.expert_parallel_degree;
    job->replicate = (double)cfg->parallelism.data_parallel_replicate_degree;
    job->shard = (double)cfg->parallelism.data_parallel_shard_degree;
    inner = job->tp * job->pp * job->cp * job->replicate;
    if (job->shard < 1)
        job->shard = floor(ranks / inner);
    if (inner * job->shard != ranks)
        return tt_fail(TT_EUSAGE,
                       "estimate: the degrees of parallelism multiply to %.0f, not to %d ranks\nhelp: let "
                       "parallelism.data_parallel_shard_degree be -1, or choose another --ranks",
                       inner * fmax(job->shard, 1), ranks);
    if (tt_cluster_stack_is_megatron(job->stack) && cfg->parallelism.data_parallel_shard_degree < 1) {
        /* the ranks of such a stack replicate the parameters, and at most the state is sharded */
        job->replicate *= job->shard;
        job->shard = 1;
    }
    job->sequence_parallel = job->sequence_parallel && job->tp > 1;
    return 0;
}

static enum tt_cluster_order order_of(const struct tt_config *cfg, const struct tt_cluster_job *job)
{
    const char *name = cfg->parallelism.pipeline_parallel_schedule;

    if (job->pp <= 1)
        return TT_ORDER_1F1B;
    if (strcmp(name, "GPipe") == 0 || strcmp(name, "LoopedBFS") == 0)
        return TT_ORDER_ALL_FORWARD;
    if (strcmp(name, "InterleavedZeroBubble") == 0)
        return TT_ORDER_INTERLEAVED_ZERO_BUBBLE;
    if (strcmp(name, "ZBVZeroBubble") == 0)
        return TT_ORDER_ZBV_ZERO_BUBBLE;
    return strcmp(name, "DualPipeV") == 0 ? TT_ORDER_DUAL_PIPE_V : TT_ORDER_1F1B;
}

/* The number of stages by torchtitan's rule, in which the embeddings and the output count as layers. Older files do
 * not count them; so if the number of ranks does not divide the result, this computes it without them. */
static double n_stages(const struct tt_config *cfg, struct tt_cluster_job *job, double each)
{
    double ends = (double)(cfg->parallelism.pipeline_parallel_first_stage_less_layers +
                           cfg->parallelism.pipeline_parallel_last_stage_less_layers);
    double all = ceil((job->shape.layers + ends) / each);

    if (fmod(all, job->pp) == 0)
        return all;
    job->first_less = job->last_less = 0;
    return ceil(job->shape.layers / each);
}

/* Sets the layers of each stage if the configuration lists modules. The caller frees them. */
static int stages_of(struct tt_cluster_inputs *in)
{
    const struct tt_config *cfg = in->cfg;
    struct tt_cluster_shape shape;
    struct tt_stage_split split;
    int rc = 0;

    if (cfg->parallelism.module_fqns_per_model_part.n == 0 || cfg->parallelism.pipeline_parallel_degree <= 1)
        return 0;
    TT_TRY(find_shape(in, &shape));
    TT_TRY(tt_job_pipeline_split(cfg, (int)shape.layers, &split));
    in->n_stages = split.n_stages;
    in->stage_layers = tt_calloc((size_t)split.n_stages, sizeof *in->stage_layers);
    for (int i = 0; i < split.n_stages; i++)
        in->stage_layers[i] = tt_stage_split_layers(&split, i).n_layers;
    tt_stage_split_release(&split);
out:
    return rc;
}

static int stages_of_a_rank(const struct tt_cluster_inputs *in, struct tt_cluster_job *job)
{
    const struct tt_config *cfg = in->cfg;
    const char *name = cfg->parallelism.pipeline_parallel_schedule;
    bool several =
        strstr(name, "Interleaved") || strstr(name, "Looped") || strstr(name, "ZBV") || strstr(name, "DualPipe");
    double each = (double)cfg->parallelism.pipeline_parallel_layers_per_stage, given = in->foreign.stages_of_a_rank,
           all;

    job->virtual_stages = 1;
    if (job->pp <= 1)
        return 0;
    if (in->stage_layers) {
        job->virtual_stages = in->n_stages / job->pp;
        job->stage_layers = in->stage_layers;
        job->split_known = true;
        return 0;
    }
    job->virtual_stages = given > 0 ? given : several ? 2 : 1;
    if (given > 0 || cfg->parallelism.pipeline_parallel_layers_per_stage == TT_NULL_INT)
        return 0;
    all = n_stages(cfg, job, each);
    job->virtual_stages = all / job->pp;
    if (fmod(all, job->pp) != 0 || (job->virtual_stages > 1) != several)
        return tt_fail(TT_EUSAGE,
                       "estimate: %.0f layers make %.0f stages of parallelism.pipeline_parallel_layers_per_stage %.0f, "
                       "and %s needs %s on each of %.0f ranks\nhelp: leave the key out, or change it",
                       job->shape.layers, all, each, name, several ? "two or more, equally many," : "one", job->pp);
    return 0;
}

/* The sequences per step if the user gives none: one per device or, for a run with a given number of tokens (a training
 * from scratch), about 4 million tokens. */
static double usual_sequences(const struct tt_cluster_inputs *in, int ranks)
{
    static const double tokens = 4194304;

    return ranks * (in->typed.tokens > 0 ? fmax(1, round(tokens / (double)in->cfg->training.seq_len / ranks)) : 1);
}

/* If only local_batch_size is set, the sequences of a step depend on the data-parallel ranks of the layout. */
int tt_cluster_batch_of(const struct tt_cluster_inputs *in, int ranks, struct tt_cluster_job *ret_job)
{
    const struct tt_config *cfg = in->cfg;
    struct tt_cluster_job job = in->foreign.job;
    int rc = 0;

    job.machine = &in->machine;
    job.stack = &in->stack;
    if (job.kernel == 2 && job.stack->number[TT_S_KERNEL].value >= 2)
        job.kernel = -1; /* the stack's own fused kernel is as fast as FlashAttention 2 */
    TT_TRY(find_shape(in, &job.shape));
    TT_TRY(degrees(in, ranks, &job));
    job.seq_len = (double)cfg->training.seq_len;
    job.virtual_stages = 1;
    job.micro_batch = 1;
    job.n_micro = cfg->training.global_batch_size > 0
                      ? (double)cfg->training.global_batch_size / (job.shard * job.replicate)
                      : (double)cfg->training.local_batch_size;
    if (in->typed.any && !in->is_laid_out && cfg->training.global_batch_size < 1)
        job.n_micro = usual_sequences(in, ranks) / (job.shard * job.replicate);
    own_keys(cfg, &job);
    job.whole_logits = job.whole_logits && job.tp > 1;
    job.split_known = !tt_cluster_stack_is_megatron(job.stack);
    job.first_less = (double)cfg->parallelism.pipeline_parallel_first_stage_less_layers;
    job.last_less = (double)cfg->parallelism.pipeline_parallel_last_stage_less_layers;
    TT_TRY(tt_cluster_typed_apply(&in->with, &job));
    *ret_job = job;
out:
    return rc;
}

int tt_cluster_job_of(const struct tt_cluster_inputs *in, int ranks, struct tt_cluster_job *ret_job)
{
    const struct tt_config *cfg = in->cfg;
    const struct tt_words *reshard = &cfg->parallelism.fsdp_reshard_after_forward;
    struct tt_cluster_job job;
    const char *fault;
    char text[200];
    int rc = 0;

    TT_TRY(tt_cluster_batch_of(in, ranks, &job));
    TT_TRY(stages_of_a_rank(in, &job));
    job.order = order_of(cfg, &job);
    if (!in->foreign.is_megatron)
        recomputation(cfg, &job);
    job.keep_gathered =
        reshard->n == 1 && (strcmp(reshard->word[0], "never") == 0 || strcmp(reshard->word[0], "false") == 0);
    TT_TRY(batches(cfg, &job));
    fault = tt_cluster_fault(&job);
    if (fault)
        rc = tt_fail(TT_EUSAGE, "estimate: the layout cannot run on %d ranks: %s (%s)", ranks, fault,
                     tt_cluster_layout_text(text, sizeof text, &job));
    *ret_job = job;
out:
    return rc;
}

/* --- the effect of titan's own keys on predictions --- */

static int check(const struct tt_config_row *key, const char *value, const struct tt_args *args, bool is_planned,
                 struct tt_cluster_notes *notes)
{
    const char *why = key->planned && is_planned ? "the memory counts it, the time does not" : key->assumed;
    const char *usual = key->usual ? key->usual : key->preset, *name;
    bool is_ignored = false;

    if (!*value || tt_text_is_listed(value, "null|\"\"") || (usual && tt_text_is_listed(value, usual)))
        return 0;
    for (int i = 0; (name = tt_args_value(args, "ignore_flag", i)); i++)
        is_ignored = is_ignored || strcmp(name, key->path) == 0;
    if (is_ignored)
        why = "--ignore-flag leaves it out";
    tt_cluster_note(notes, key->path, value, why);
    return 0;
}

/* Notes the keys that the configuration sets but the prediction or --ignore-flag leaves out. is_planned: titan plans
 * the memory. TT_EUSAGE: without such a key, the prediction would be for another job. */
static int check_own_keys(const struct tt_config *cfg, const struct tt_args *args, bool is_titan, bool is_planned,
                          struct tt_cluster_notes *notes)
{
    int rc = 0;

    for (int i = 0; i < tt_config_n_rows && rc == 0; i++) {
        const struct tt_config_row *key = &tt_config_rows[i];
        struct tt_text value = {0};

        if (!key->assumed || !tt_config_is_set(cfg, key->id) ||
            tt_text_begins(tt_config_origin(cfg, key->id), "builtin:") ||
            key->id == TT_KEY(debug.moe_force_load_balance) ||
            (is_titan && key->id == TT_KEY(training.mixed_precision_param))) /* these are counted */
            continue;
        tt_config_value_text(cfg, key, &value);
        rc = check(key, value.text ? value.text : "", args, is_planned, notes);
        tt_text_release(&value);
    }
    if (cfg->metrics.peak_flops > 0)
        tt_cluster_note(notes, TT_KEY_NAME(metrics.peak_flops), "", "MFU is relative to the peak of the machine");
    return rc;
}

struct idle_keys {
    struct tt_cluster_inputs *in;
    const struct tt_args *args;
};

/* Flags that stand for other trainers' settings say more than their job needs, so only the user's count. */
static void note_idle_key(void *arg, const struct tt_config_row *key, const char *value, const char *why)
{
    const struct idle_keys *keys = arg;
    bool is_users = !tt_text_begins(tt_config_origin(keys->in->cfg, key->id), "flag ");

    for (int i = 0; i < keys->args->n_overrides; i++)
        is_users = is_users || strstr(keys->args->override[i], key->path);
    if (is_users && !key->assumed)
        tt_cluster_note(&keys->in->notes, key->path, value, why);
}

/* Notes the keys that have no effect on training either. If the model is not known, later code says so. */
static void note_idle(struct tt_cluster_inputs *in, const struct tt_args *args)
{
    struct idle_keys keys = {in, args};
    struct tt_cluster_shape shape;

    if (find_shape(in, &shape) == 0)
        tt_job_idle_each(in->cfg, shape.experts > 0.0, note_idle_key, &keys);
}

/* Whether two names of a flag or key are the same: "--zero-stage" and "zero_stage" are. */
static bool is_same_name(const char *a, const char *b)
{
    a += strspn(a, "-");
    b += strspn(b, "-");
    while (*a && (*a == *b || (strchr("-_", *a) && *b && strchr("-_", *b)))) {
        a++;
        b++;
    }
    return !*a && !*b;
}

/* Refuses names of --ignore-flag that left nothing out. */
static int check_ignored(const struct tt_args *args, const struct tt_cluster_notes *notes)
{
    const char *name;

    for (int i = 0; (name = tt_args_value(args, "ignore_flag", i)); i++) {
        bool any = false;

        for (int k = 0; k < notes->n; k++)
            any = any || is_same_name(notes->item[k].key, name);
        if (!any)
            return tt_fail(TT_EUSAGE,
                           "estimate: --ignore-flag '%s' leaves nothing out: the job does not set it, or predictions "
                           "count it\nhelp: take it out",
                           name);
    }
    return 0;
}

/* --- a command line --- */

static const char default_stack[] = "torchtitan-compile-2025", eager_stack[] = "torchtitan-eager-2025";

/* A name is a file if it has a slash or ends in .json. */
static bool is_file(const char *name)
{
    size_t n = strlen(name);

    return strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".json") == 0);
}

/* --- hardware and software --- */

static int read_stack(struct tt_cluster_inputs *in, const char *name)
{
    const struct tt_cluster_stack *built_in;
    int rc = 0;

    if (is_file(name))
        TT_TRY(tt_cluster_stack_load(name, &in->stack));
    else {
        TT_TRY(tt_cluster_stack_find(name, &built_in));
        in->stack = *built_in;
    }
out:
    return rc;
}

bool tt_cluster_is_cpu(const struct tt_cluster_machine *machine)
{
    static const double least_context = 0.1 * 1024 * 1024 * 1024; /* drivers of GPUs take more */

    return machine->number[TT_M_RESERVED].value < least_context;
}

/* The user's machine files and the built-in machines. */
struct machines {
    char *folder;
    char **file; /* names of files, without their extensions */
    int n_files, cap;
    const char **name, **title; /* [n] the files first */
    int n, cap_names, cap_titles;
};

/* Lists ~/.config/titan/machines; if the folder does not exist, the list is empty. */
static void list_files(struct machines *m)
{
    // NOLINTBEGIN(concurrency-mt-unsafe): titan never calls setenv, and one thread reads the folder
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    struct dirent *entry;
    DIR *folder;

    m->folder = config && *config ? tt_format("%s/titan/machines", config)
                                  : tt_format("%s/.config/titan/machines", home ? home : "");
    folder = opendir(m->folder);
    while (folder && (entry = readdir(folder)))
        if (tt_text_ends(entry->d_name, ".json"))
            TT_PUSH(m->file, m->n_files, m->cap) = tt_strndup(entry->d_name, strlen(entry->d_name) - strlen(".json"));
    // NOLINTEND(concurrency-mt-unsafe)
    if (folder)
        (void)closedir(folder);
}

static void list_machines(struct machines *m)
{
    const struct tt_cluster_machine *machine;
    int n_titles = 0;

    list_files(m);
    for (int i = 0; i < m->n_files; i++) {
        TT_PUSH(m->name, m->n, m->cap_names) = m->file[i];
        TT_PUSH(m->title, n_titles, m->cap_titles) = NULL;
    }
    for (int i = 0; (machine = tt_cluster_machine_at(i)); i++) {
        TT_PUSH(m->name, m->n, m->cap_names) = machine->name;
        TT_PUSH(m->title, n_titles, m->cap_titles) = machine->title;
    }
}

static int find_machine(struct tt_cluster_inputs *in, const char *name)
{
    struct machines m = {0};
    struct tt_names names = {.what = "the machine",
                             .more = "nvidia|amd|intel|instinct|geforce|tesla|gpu|sxm|oam|gb",
                             .help = "A machine file (a path) works too; --help lists all."};
    char *path = NULL;
    int at, rc = 0;

    list_machines(&m);
    names.name = m.name;
    names.title = m.title;
    names.n = m.n;
    TT_TRY(tt_names_find(&names, name, &at));
    if (at < m.n_files) {
        path = tt_format("%s/%s.json", m.folder, m.file[at]);
        TT_TRY(tt_cluster_machine_load(path, &in->machine));
    } else
        in->machine = *tt_cluster_machine_at(at - m.n_files);
out:
    for (int i = 0; i < m.n_files; i++)
        tt_free(m.file[i]);
    tt_free(m.file);
    tt_free((void *)m.name);
    tt_free((void *)m.title);
    tt_free(m.folder);
    tt_free(path);
    return rc;
}

static bool names_stack(const struct tt_args *args)
{
    return tt_args_has(args, "stack") || tt_args_has(args, "zero");
}

/* The stack of --stack or --zero; NULL: the default. */
static int stack_of(const struct tt_args *args, const char **ret_stack)
{
    static const char *const zero[] = {"deepspeed-zero1", "deepspeed-zero2", "deepspeed-zero3"};
    int64_t stage = 0;
    int rc = tt_cli_count("estimate", args, "zero", 1, 3, &stage);

    *ret_stack = tt_args_last(args, "stack");
    if (rc < 0 || stage == 0)
        return rc;
    if (*ret_stack)
        return tt_fail(TT_EUSAGE, "estimate: --zero and --stack both name the software\nhelp: leave one of them out");
    *ret_stack = zero[stage - 1];
    return 0;
}

/* DeepSpeed and Hugging Face's Trainer divide models of transformers over data-parallel ranks alone. */
static void fix_degrees(struct tt_cluster_inputs *in)
{
    struct tt_cluster_fixed *f = &in->typed.fixed;
    double *degree[] = {&f->tp, &f->pp, &f->cp, &f->ep};

    if (!tt_text_begins(in->stack.name, "deepspeed-zero") && strcmp(in->stack.name, "hf-trainer") != 0)
        return;
    for (size_t i = 0; i < sizeof degree / sizeof *degree; i++)
        if (*degree[i] == 0)
            *degree[i] = 1;
}

int tt_cluster_inputs_hardware(struct tt_cluster_inputs *in, const struct tt_args *args)
{
    const char *machine = tt_args_last(args, "machine"), *stack, *log;
    const char *name = in->typed.machine ? in->typed.machine : machine ? machine : "h100-sxm";
    char *text = NULL;
    size_t size;
    int rc = 0;

    if (is_file(name))
        TT_TRY(tt_cluster_machine_load(name, &in->machine));
    else
        TT_TRY(find_machine(in, name));
    for (int i = 0; (log = tt_args_value(args, "nccl", i)); i++) {
        TT_TRY(tt_file_read(log, &text, &size));
        TT_TRY(tt_cluster_machine_take_nccl(&in->machine, text, log, "measured: nccl-tests"));
        tt_free(text);
        text = NULL;
    }
    if (in->typed.network > 0)
        in->machine.number[TT_M_NODE_NET] = (struct tt_cluster_number){in->typed.network, "--network"};
    TT_TRY(stack_of(args, &stack));
    TT_TRY(read_stack(in, stack ? stack : tt_cluster_is_cpu(&in->machine) ? "titan" : default_stack));
    fix_degrees(in);
out:
    tt_free(text);
    return rc;
}

/* --- the job --- */

static void add_override(struct tt_cluster_inputs *in, const char *text)
{
    TT_PUSH(in->with.override, in->with.n_overrides, in->cap_override) = text;
}

static void add_own(struct tt_cluster_inputs *in, char *text)
{
    TT_PUSH(in->own, in->n_own, in->cap_own) = text;
    add_override(in, text);
}

/* Whether the name of a model is a path; names from Hugging Face contain slashes too. */
static bool is_model_file(const char *name)
{
    return tt_text_ends(name, ".json") || strchr("./~", *name) || access(name, F_OK) == 0;
}

/* The names of all models whose sizes titan knows. The caller frees *ret_text and the list. */
static const char **model_names(char **ret_text, int *ret_n)
{
    struct tt_text text = {0};
    const char **name = NULL;
    char *rest = NULL;
    int cap = 0;

    (void)tt_cluster_shape_names("", &text);
    *ret_n = 0;
    for (char *at = strtok_r(text.text, " ", &rest); at; at = strtok_r(NULL, " ", &rest))
        TT_PUSH(name, *ret_n, cap) = at;
    *ret_text = text.text;
    return name;
}

/* Whether two models are about the same size, as Llama 3, 3.1 and 3.3 are. */
static bool same(const char *a, const char *b)
{
    struct tt_cluster_shape one, other;

    return tt_cluster_shape_find(a, &one) && tt_cluster_shape_find(b, &other) &&
           fabs(tt_cluster_params(&one) / tt_cluster_params(&other) - 1) < 0.05;
}

static int find_model(struct tt_cluster_inputs *in, const char *name)
{
    const char *slash = strrchr(name, '/'); /* the name of its owner comes before it */
    struct tt_names names = {.what = "the model",
                             .same = same,
                             .more = "meta|instruct|chat|base|it|hf|text|thinking|preview|v|k|b|e",
                             .help = "A config.json of Hugging Face (a path) works too; --help lists all."};
    const char **list = NULL;
    char *text = NULL;
    json_t *json = NULL;
    int at, rc = 0;

    if (is_model_file(name)) {
        TT_TRY(tt_json_load(name, &json));
        TT_TRY(tt_cluster_shape_of_hf(json, name, &in->foreign.job.shape));
        in->model = tt_strdup(name);
    } else {
        names.name = list = model_names(&text, &names.n);
        TT_TRY(tt_names_find(&names, slash ? slash + 1 : name, &at));
        (void)tt_cluster_shape_find(names.name[at], &in->foreign.job.shape);
        in->model = tt_strdup(names.name[at]);
    }
    in->foreign.has_shape = true;
out:
    tt_free((void *)list);
    tt_free(text);
    json_decref(json);
    return rc;
}

/* Configurations are checked against one of titan's models, so this adds a model with the same heads and widths. */
static void add_sizes(struct tt_cluster_inputs *in)
{
    const struct tt_cluster_shape *s = &in->foreign.job.shape;

    add_override(in, "--model.name=llama3");
    add_override(in, "--model.flavor=debugmodel");
    add_override(in, "--model.head_dim=128");
    add_own(in, tt_format("--model.dim=%.0f", s->dim));
    add_own(in, tt_format("--model.n_layers=%.0f", s->layers));
    add_own(in, tt_format("--model.n_heads=%.0f", s->heads));
    add_own(in, tt_format("--model.n_kv_heads=%.0f", s->kv_heads));
    add_own(in, tt_format("--model.ffn_dim=%.0f", s->ffn));
    add_own(in, tt_format("--model.vocab_size=%.0f", s->vocab));
}

/* Whether an override sets torchtitan's key `name`, which titan itself lacks; if so, *i then points past the override,
 * and *ret_on is the value. */
static bool takes(const char *name, int n, const char *const *override, int *i, bool *ret_on)
{
    const char *word = override[*i] + strspn(override[*i], "-"), *value = word + strlen(name);

    if (!tt_text_begins(word, name) || (*value && *value != '='))
        return false;
    if (!*value && *i + 1 < n && tt_text_is_listed(override[*i + 1], "true|false"))
        value = override[++*i];
    else
        value += *value == '=';
    *ret_on = strcmp(value, "false") != 0;
    return true;
}

/* Takes an override that sets one of torchtitan's keys that other stacks than titan have. 1: it does, and *i points
 * past it; 0: it is another key. */
static int take_torchtitans(struct tt_cluster_inputs *in, int n, const char *const *override, int *i)
{
    struct tt_cluster_job *job = &in->foreign.job;
    bool is_cpu = tt_cluster_is_cpu(&in->machine), on;
    int rc = 0;

    if (takes("training.enable_cpu_offload", n, override, i, &on)) {
        job->offload = on && !is_cpu ? TT_OFFLOAD_ALL : TT_OFFLOAD_NONE;
        return 1;
    }
    if (is_cpu)
        return 0;
    if (takes("parallelism.enable_async_tensor_parallel", n, override, i, &on) ||
        takes("compile.enable_async_tensor_parallel", n, override, i, &on))
        job->async_tp = on;
    else if (takes("parallelism.disable_loss_parallel", n, override, i, &on))
        job->whole_logits = on;
    else if (takes("parallelism.context_parallel_rotate_method", n, override, i, &on))
        tt_cluster_note(&in->notes, "parallelism.context_parallel_rotate_method", "", "keys and values are gathered");
    else if (takes("compile.enable", n, override, i, &on))
        rc = on || names_stack(&in->with) ? 0 : read_stack(in, eager_stack);
    else
        return 0;
    return rc < 0 ? rc : 1;
}

/* Adds the overrides of the command line. If titan does not train the model, leaves out its experts. */
static int take_overrides(struct tt_cluster_inputs *in, int n, const char *const *override)
{
    static const char ep[] = "--parallelism.expert_parallel_degree=";

    for (int i = 0; i < n; i++) {
        int taken = take_torchtitans(in, n, override, &i);

        if (taken < 0)
            return taken;
        if (taken > 0)
            continue;
        if (in->foreign.has_shape && tt_text_begins(override[i], ep)) {
            in->ep = strtod(override[i] + strlen(ep), NULL);
            if (!(in->ep >= 1) || floor(in->ep) != in->ep)
                return tt_fail(TT_EUSAGE, "estimate: %s is not a number of ranks", override[i] + 2);
            continue;
        }
        if (in->foreign.has_shape && tt_text_begins(override[i], "--model."))
            return tt_fail(TT_EUSAGE,
                           "estimate: %s cannot change the sizes of the model '%s'\n"
                           "help: give a config.json with other sizes, or leave --model out",
                           override[i] + 2, in->model);
        add_override(in, override[i]);
    }
    return 0;
}

/* Adds the default job: Llama 3 8B, or the named model, as in torchtitan's configuration. The built-in quick run is for
 * a laptop. */
static void add_default(struct tt_cluster_inputs *in)
{
    static const char *const keys[] = {"--training.seq_len=8192",
                                       "--training.local_batch_size=1",
                                       "--training.global_batch_size=-1",
                                       "--training.steps=10000",
                                       "--model.name=llama3", /* the following overrides are for Llama 3 8B */
                                       "--model.flavor=8B",
                                       "--activation_checkpoint.mode=selective",
                                       "--activation_checkpoint.selective_ac_option=op"};

    for (size_t i = 0; i < (in->foreign.has_shape ? 4 : sizeof keys / sizeof *keys); i++)
        add_override(in, keys[i]);
}

/* Reads flags of Megatron-LM. */
static int read_megatron(struct tt_cluster_inputs *in, const struct tt_args *args, const struct tt_cluster_given *given,
                         const char *file)
{
    struct tt_cluster_number *number = in->stack.number;
    double exposed;
    int rc = 0;

    if (tt_args_has(args, "config") || tt_args_has(args, "model") || tt_args_has(args, "torchtitan") || in->typed.model)
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: Megatron's flags already describe the whole job\n"
                                  "help: leave --config, --model and --torchtitan out"));
    TT_TRY(tt_cluster_megatron_read(file, given, &in->notes, &in->foreign));
    in->model = tt_format("a model of %.3gB parameters", tt_cluster_params(&in->foreign.job.shape) / 1e9);
    if (!names_stack(args)) /* fused attention is newer than the A100 */
        TT_TRY(read_stack(in, tt_text_begins(in->machine.name, "a100") ? "megatron-2023" : "megatron-lm"));
    if (!in->foreign.distributed_optimizer) {
        number[TT_S_STATE_WHOLE].value += number[TT_S_STATE_SHARD].value;
        number[TT_S_STATE_SHARD].value = 0;
    }
    exposed = number[TT_S_GRAD_EXPOSED].value;
    number[TT_S_GRAD_EXPOSED].value = exposed + in->foreign.exposed * (1 - exposed);
out:
    return rc;
}

/* Whether the words after "--" are flags of Megatron-LM, which unlike torchtitan's contain no dots. */
static bool is_megatron(int n_words, const char *const *words)
{
    bool any = false;

    for (int i = 0; i < n_words; i++) {
        if (!tt_text_begins(words[i], "--"))
            continue;
        if (strchr(words[i], '.') || tt_text_begins(words[i], "--module") || tt_text_begins(words[i], "--config"))
            return false;
        any = true;
    }
    return any;
}

/* Reads a job from another trainer's configuration. *ret_model is the name of its model, or NULL. */
static int read_foreign(struct tt_cluster_inputs *in, const struct tt_args *args, const char **ret_model)
{
    const char *torchtitan = tt_args_last(args, "torchtitan"), *megatron = tt_args_last(args, "megatron");
    struct tt_cluster_given given = {.args = tt_args_last(args, "script_args"),
                                     .words = (const char *const *)args->word + in->typed.n_words,
                                     .n_words = args->n_words - in->typed.n_words};
    const char *text;
    int rc = 0;

    while ((text = tt_args_value(args, "set", given.n)))
        TT_PUSH(given.set, given.n, given.cap) = text;
    while ((text = tt_args_value(args, "ignore_flag", given.n_ignored)))
        TT_PUSH(given.ignored, given.n_ignored, given.cap_ignored) = text;
    if (megatron || (!torchtitan && is_megatron(given.n_words, given.words)))
        TT_TRY(read_megatron(in, args, &given, megatron));
    else if (torchtitan || given.n_words) {
        TT_TRY(tt_cluster_recipe_read(torchtitan, &given, &in->notes, &in->foreign));
        if (!names_stack(args))
            TT_TRY(read_stack(in, in->foreign.compiled ? default_stack : eager_stack));
        *ret_model = *ret_model ? *ret_model : in->foreign.model;
    }
out:
    tt_free((void *)given.set);
    tt_free((void *)given.ignored);
    return rc;
}

/* Whether the command line defines the layout of the job: in a file, by flags of another trainer, or by keys. */
static bool is_laid_out(const struct tt_cluster_inputs *in, const struct tt_args *args)
{
    if (tt_args_has(args, "config") || tt_args_has(args, "torchtitan") || tt_args_has(args, "megatron") ||
        args->n_words > in->typed.n_words)
        return true;
    for (int i = 0; i < args->n_overrides; i++)
        if (strstr(args->override[i], "parallelism.") || strstr(args->override[i], "local_batch_size"))
            return true;
    return false;
}

int tt_cluster_inputs_job(struct tt_cluster_inputs *in, const struct tt_args *args)
{
    const char *model = in->typed.model ? in->typed.model : tt_args_last(args, "model");
    struct tt_text unbuilt = {0};
    struct tt_cli_variant variant = {.unbuilt = &unbuilt};
    bool is_titan;
    int rc = 0;

    if (!tt_args_has(args, "megatron") && (tt_args_has(args, "set") || tt_args_has(args, "script_args")))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --set and --script-args are for the script of --megatron"));
    in->foreign.job = (struct tt_cluster_job){.kernel = -1, .sequence_parallel = true};
    in->ep = 1;
    in->with = *args;
    in->with.override = NULL;
    in->with.n_overrides = in->with.n_words = 0;
    TT_TRY(read_foreign(in, args, &model));
    if (model)
        TT_TRY(find_model(in, model));
    if (!tt_args_has(args, "config"))
        add_default(in);
    in->is_laid_out = is_laid_out(in, args);
    if (in->is_laid_out && tt_cluster_typed_limits(args))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --tp, --pp, --cp, --ep and --micro-batch limit a search, but a file or a "
                                  "key already sets the layout\nhelp: change it there, or leave it out"));
    TT_TRY(take_overrides(in, in->foreign.n, (const char *const *)in->foreign.override));
    TT_TRY(take_overrides(in, in->typed.n_overrides, (const char *const *)in->typed.override));
    TT_TRY(take_overrides(in, args->n_overrides, args->override));
    if (in->foreign.has_shape)
        add_sizes(in);
    tt_cli_install_log(); /* shows notes about keys that have no effect, once */
    rc = tt_cli_load_variant("estimate", &in->with, &variant, &in->cfg);
    tt_log_set_sink(NULL, NULL);
    TT_TRY(rc);
    if (in->typed.batch > 0)
        in->cfg->training.global_batch_size =
            (int64_t)fmax(1, round(in->typed.batch_is_tokens ? in->typed.batch / (double)in->cfg->training.seq_len
                                                             : in->typed.batch));
    is_titan = strcmp(in->stack.name, "titan") == 0;
    TT_TRY(check_own_keys(in->cfg, args, is_titan, is_titan && !in->foreign.has_shape, &in->notes));
    TT_TRY(check_ignored(args, &in->notes));
    note_idle(in, args);
    TT_TRY(tt_config_locate(in->cfg, stages_of(in)));
    if (!in->model)
        in->model = tt_format("%s %s", in->cfg->model.name, in->cfg->model.flavor);
out:
    tt_text_release(&unbuilt);
    return rc;
}

void tt_cluster_inputs_release(struct tt_cluster_inputs *in)
{
    for (int i = 0; i < in->n_own; i++)
        tt_free(in->own[i]);
    tt_free(in->own);
    tt_free(in->stage_layers);
    tt_free((void *)in->with.override);
    tt_cluster_foreign_release(&in->foreign);
    tt_cluster_typed_release(&in->typed);
    tt_cluster_notes_release(&in->notes);
    json_decref(in->machine.file);
    json_decref(in->stack.file);
    tt_free(in->model);
    tt_config_free(in->cfg);
}
