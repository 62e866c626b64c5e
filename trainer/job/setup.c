/* SPDX-License-Identifier: MIT
 *
 * From a configuration to an engine: everything that can be decided before anything is changed. Ranks agree on the
 * result of each part before they communicate about it.
 */
#include "trainer/job/setup.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/load/load.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/models/model_json.h"
#include "trainer/job/facts.h"
#include "trainer/job/predict.h"
#include "trainer/run/folder.h"

json_t *tt_setup_kernels_json(const struct tt_setup *setup)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s*}", "blas", tt_blas_is_needed() ? tt_blas_kernel() : "none", "titan",
                     tt_kernels()->name, "float32_products", tt_sgemm_is_blas() ? "blas" : "titan", "bfloat16_products",
                     tt_kernels_products(), "differ", setup->kernels_differ);
}

/* --- gradient_sync --- */

const char *tt_setup_sync_word(enum tt_sync_choice sync)
{
    return tt_config_choice_word(tt_config_row(TT_KEY(training.gradient_sync))->choices, (int)sync);
}

const char *tt_setup_recorded_sync(const json_t *meta)
{
    return json_string_value(
        json_object_get(json_object_get(json_object_get(meta, "config"), "training"), "gradient_sync"));
}

/* The choice for a new run. Planning takes time, so only rank 0 plans, and all ranks get the result. */
struct choosing {
    struct tt_setup *setup;
    struct {
        int when;
        char why[256];
    } chosen;
};

static int choose(void *arg)
{
    struct choosing *c = arg;
    const struct tt_config *cfg = c->setup->cfg;
    char *why = NULL;
    int rc = tt_job_choose_sync(cfg->training.gradient_sync, cfg->parallelism.reduction_order == TT_ORDER_FAST,
                                &c->setup->job, &why);

    c->chosen.when = (int)c->setup->job.engine.reduce;
    (void)snprintf(c->chosen.why, sizeof c->chosen.why, "%s", why ? why : "");
    tt_free(why);
    return rc;
}

static int choose_once(struct tt_setup *setup)
{
    struct choosing c = {.setup = setup};
    int rc = 0;

    TT_TRY(tt_comm_agree(setup->comm, setup->comm->rank == 0 ? tt_comm_work(setup->comm, choose, &c) : 0));
    TT_TRY(tt_comm_broadcast(setup->comm, &c.chosen, sizeof c.chosen, 0));
    setup->job.engine.reduce = (enum tt_reduce_when)c.chosen.when;
    setup->job.sync_why = tt_strdup(c.chosen.why);
out:
    return rc;
}

/* Whether the layout differs from the layout that saved the checkpoint. */
static bool is_divided_otherwise(const struct tt_setup *setup, const json_t *meta)
{
    const json_t *config = json_object_get(meta, "config"), *mesh = json_object_get(meta, "mesh");
    const json_t *parallelism = json_object_get(config, "parallelism"), *training = json_object_get(config, "training");
    bool differs =
        json_integer_value(json_object_get(parallelism, "expert_parallel_degree")) !=
            setup->job.mesh.size[TT_MESH_EP] ||
        json_integer_value(json_object_get(training, "local_batch_size")) != setup->cfg->training.local_batch_size;

    for (int dim = 0; dim < TT_MESH_DIMS; dim++)
        differs = differs || json_integer_value(json_object_get(mesh, tt_mesh_dim_name((enum tt_mesh_dim)dim))) !=
                                 setup->job.mesh.size[dim];
    return differs;
}

/* Sets the gradient_sync of the checkpoint. Gradients cannot be carried if backward goes through microbatches in
 * another order. If every_run would change the bits on another layout, every_microbatch replaces it. */
static void adopt(struct tt_setup *setup, const json_t *meta, const char *word)
{
    struct tt_engine_options runs = setup->job.engine, each = setup->job.engine;
    enum tt_sync_choice sync = strcmp(word, tt_setup_sync_word(TT_SYNC_LAST_MICROBATCH)) == 0 ? TT_SYNC_LAST_MICROBATCH
                               : strcmp(word, tt_setup_sync_word(TT_SYNC_EVERY_RUN)) == 0     ? TT_SYNC_EVERY_RUN
                                                                                          : TT_SYNC_EVERY_MICROBATCH;

    if (sync == TT_SYNC_LAST_MICROBATCH && setup->job.pipeline && !tt_pipeline_ascends(setup->job.pipeline))
        sync = TT_SYNC_EVERY_MICROBATCH;
    runs.reduce = TT_REDUCE_RUNS;
    each.reduce = TT_REDUCE_EACH;
    if (sync == TT_SYNC_EVERY_RUN && is_divided_otherwise(setup, meta) && !tt_engine_is_exact(&runs) &&
        tt_engine_is_exact(&each)) {
        setup->job.engine.reduce = TT_REDUCE_EACH;
        setup->job.sync_why = tt_strdup("after each microbatch: every_run, as in the checkpoint, would change the bits "
                                        "on this layout");
        return;
    }
    setup->job.engine.reduce = tt_job_reduce_when(sync);
    setup->job.sync_why = tt_format("%s, as in the checkpoint", tt_setup_sync_word(sync));
}

/* Sets in the job when gradients are reduced and, if gradient_sync is `auto`, why: as in the checkpoint from which the
 * run resumes, or else as rank 0 chooses (tt_job_choose_sync). Collective. */
static int first_sync(struct tt_setup *setup, bool starts_over)
{
    const struct tt_config *cfg = setup->cfg;
    char *folder = tt_run_folder_checkpoints(cfg);
    struct tt_ckpt_found found = {.step = -1};
    struct tt_ckpt_request request;
    const char *word = NULL;
    int rc = 0;

    if (cfg->training.gradient_sync != TT_SYNC_AUTO)
        goto out;
    if (cfg->checkpoint.enable && !starts_over) {
        TT_TRY(tt_job_resume_request(cfg, &request));
        TT_TRY(tt_ckpt_peek(setup->comm, folder, &request, &found));
        word = tt_setup_recorded_sync(found.meta);
    }
    if (word)
        adopt(setup, found.meta, word);
    else
        TT_TRY(choose_once(setup));
out:
    tt_ckpt_found_release(&found);
    tt_free(folder);
    return rc;
}

/* --- the set-up --- */

/* A plan must be the same on all ranks. So the smallest memory limit applies to all, and all must have the same number
 * of threads. */
static int agree_on_limits(struct tt_setup *s)
{
    double most[3] = {-(double)tt_job_memory_limit(s->cfg, s->local_size), s->threads, -s->threads};
    int rc = 0;

    TT_TRY(tt_comm_max_f64(s->comm, most, 3));
    s->memory_limit = (int64_t)-most[0];
    if (s->cfg->parallelism.fsdp_engine == TT_ENGINE_PLANNED && most[1] + most[2] > 0.0)
        rc = tt_fail(
            TT_EUSAGE,
            "the planned scheduler needs the same number of threads on every rank, found %.0f to %.0f\nhelp: set "
            "parallelism.threads_per_rank",
            -most[2], most[1]);
out:
    return rc;
}

/* Adds the remedies that apply here. More ranks help only if each of them gets the same memory as now. */
static void add_remedies(const struct tt_setup *s, struct tt_text *out)
{
    const struct tt_config *cfg = s->cfg;
    bool keeps =
        s->job.mesh.size[TT_MESH_DP_SHARD] > 1 && s->job.engine.sharding.reshard != TT_RESHARD_AFTER_FORWARD_ALWAYS;

    if (s->memory_limit < 1 << 20) {
        tt_text_add(out, "\nhelp: without a unit it is bytes: parallelism.memory_limit=80GiB");
        return;
    }
    tt_text_add(out, "\nhelp: use ");
    if (s->job.pipeline && s->job.microbatch_size > 1)
        tt_text_add(out, "a parallelism.pipeline_parallel_microbatch_size smaller than %" PRId64 ", ",
                    s->job.microbatch_size);
    else if (cfg->training.local_batch_size > 1)
        tt_text_add(out, "a training.local_batch_size smaller than %" PRId64 ", ", cfg->training.local_batch_size);
    if (cfg->activation_checkpoint.mode != TT_AC_FULL)
        tt_text_add(out, "activation_checkpoint.mode=full, ");
    if (cfg->training.mixed_precision_param != TT_DTYPE_BFLOAT16)
        tt_text_add(out, "training.mixed_precision_param=bfloat16, ");
    if (keeps)
        tt_text_add(out, "parallelism.fsdp_reshard_after_forward=always, ");
    tt_text_add(out,
                "a training.seq_len smaller than %" PRId64 ", or more ranks%s; `titan estimate` prints what each needs",
                cfg->training.seq_len, cfg->parallelism.memory_limit == TT_NULL_INT ? " on more hosts" : "");
}

static int check_memory(const struct tt_setup *s)
{
    int64_t total = s->memory.total + s->job.staging_bytes, start = tt_engine_init_bytes(s->engine, s->job.engine.init);
    struct tt_text limit = {0}, remedies = {0}, rank = {0};
    char need[32], less[32];
    int rc = 0;

    if (total <= s->memory_limit && start <= s->memory_limit)
        return 0;
    tt_text_bytes(less, sizeof less, (double)s->memory_limit);
    if (s->cfg->parallelism.memory_limit != TT_NULL_INT)
        tt_text_add(&limit, "parallelism.memory_limit allows %s", less);
    else
        tt_text_add(&limit, "this machine allows %s (0.9 of its memory or its container's, for %d rank%s)", less,
                    s->local_size, s->local_size == 1 ? "" : "s");
    add_remedies(s, &remedies);
    if (s->job.pipeline)
        tt_job_rank_text(&s->job, s->comm->rank, &rank);
    else
        tt_text_add(&rank, "a rank");
    tt_text_bytes(need, sizeof need, (double)total);
    if (total <= s->memory_limit)
        rc =
            tt_fail(TT_EFIT,
                    "%s needs %s to initialise the weights, but %s\nhelp: use training.init=meta, which gives the same "
                    "weights and needs %s",
                    rank.text, tt_text_bytes(need, sizeof need, (double)start), limit.text,
                    tt_text_bytes(less, sizeof less, (double)tt_engine_init_bytes(s->engine, TT_INIT_META)));
    else if (total - s->job.sampling_bytes <= s->memory_limit)
        rc = tt_fail(TT_EFIT, "%s needs %s with the whole model %s, but %s\nhelp: use %s, which needs %s", rank.text,
                     need,
                     !s->cfg->metrics.task_freq     ? "from which texts are sampled"
                     : !s->cfg->metrics.sample_freq ? "that is evaluated on tasks"
                                                    : "from which texts are sampled, and that is evaluated on tasks",
                     limit.text,
                     !s->cfg->metrics.task_freq     ? "metrics.sample_freq=0"
                     : !s->cfg->metrics.sample_freq ? "metrics.task_freq=0"
                                                    : "metrics.sample_freq=0 and metrics.task_freq=0",
                     tt_text_bytes(less, sizeof less, (double)(total - s->job.sampling_bytes)));
    else if (s->memory.total <= s->memory_limit)
        rc = tt_fail(
            TT_EFIT,
            "%s needs %s with the staging copy of checkpoints, but %s\nhelp: use checkpoint.async_mode=disabled, "
            "which needs %s",
            rank.text, need, limit.text, tt_text_bytes(less, sizeof less, (double)s->memory.total));
    else
        rc = tt_fail(TT_EFIT, "%s needs %s, but %s%s", rank.text, need, limit.text, remedies.text);
    tt_text_release(&limit);
    tt_text_release(&rank);
    tt_text_release(&remedies);
    return rc;
}

/* Dimensions may come from config.json, and each host may read its own copy of it. */
static int agree_on_model(const struct tt_setup *s)
{
    char *text = tt_model_json_text(s->job.model);
    const struct tt_fact fact = {"the model", text};
    struct tt_text difference = {0};
    int rc = 0;

    for (char *p = text; *p; p++)
        *p = *p == '\n' ? ' ' : *p;
    TT_TRY(tt_facts_compare(s->comm, &fact, 1, &difference));
    if (difference.text)
        rc = tt_fail(TT_EUSAGE,
                     "ranks have different models: %s\nhelp: the copies of config.json in model.hf_assets_path must be "
                     "the same on all hosts",
                     difference.text);
out:
    tt_text_release(&difference);
    tt_free(text);
    return rc;
}

static int make_engine(struct tt_setup *s)
{
    int rc = 0;

    tt_engine_free(s->engine);
    s->engine = NULL;
    TT_TRY(tt_engine_new(&s->job.engine, s->comm, s->comm->rank, &s->engine));
    if (s->cfg->debug.check_plan)
        TT_TRY(tt_program_check(tt_engine_program(s->engine)));
    s->memory = tt_engine_memory(s->engine);
out:
    return rc;
}

/* Makes the engine with the gradient sync that fits, and stores the choice in the configuration. Collective. */
static int choose_engine(struct tt_setup *s, bool starts_over)
{
    struct tt_engine_options *options = &s->job.engine;
    bool is_auto = s->cfg->training.gradient_sync == TT_SYNC_AUTO;
    double too_large;
    int rc = 0;

    TT_TRY(first_sync(s, starts_over));
    TT_TRY(tt_comm_agree(s->comm, make_engine(s)));
    too_large = s->memory.total + s->job.staging_bytes > s->memory_limit;
    TT_TRY(tt_comm_max_f64(s->comm, &too_large, 1));
    if (is_auto && options->reduce != TT_REDUCE_EACH && too_large > 0.0) {
        options->reduce = TT_REDUCE_EACH;
        tt_free(s->job.sync_why);
        s->job.sync_why = tt_strdup("after each microbatch: there is too little memory for anything else");
        TT_TRY(tt_comm_agree(s->comm, make_engine(s)));
    }
    s->cfg->training.gradient_sync = tt_job_sync_of(options->reduce);
    TT_TRY(tt_comm_agree(s->comm, check_memory(s)));
out:
    return rc;
}

/*
 * If the kernel variants of ranks differ only in how they multiply bfloat16 (their processors differ, or the measured
 * rates were about equal), all ranks take the variant that widens it to float32. Collective.
 */
static int agree_on_kernels(struct tt_comm *comm)
{
    const struct tt_fact name = {"the variant", tt_kernels()->name};
    const struct tt_fact fallback = {"the variant for all", tt_kernels_bits(tt_kernels_fallback(), true)};
    struct tt_text names = {0}, fallbacks = {0};
    int rc = 0;

    TT_TRY(tt_facts_compare(comm, &name, 1, &names));
    TT_TRY(tt_facts_compare(comm, &fallback, 1, &fallbacks));
    if (names.text && !fallbacks.text)
        tt_kernels_use(tt_kernels_fallback());
out:
    tt_text_release(&names);
    tt_text_release(&fallbacks);
    return rc;
}

/* Bits depend on the kernels. Different kernels are no error, but then the curve is not layout-exact. Collective. */
static int compare_kernels(struct tt_setup *s)
{
    bool blas = tt_blas_is_needed(), bf16 = s->cfg->training.mixed_precision_param == TT_DTYPE_BFLOAT16;
    const struct tt_fact facts[] = {{"titan's kernel variant", tt_kernels_bits(tt_kernels(), bf16)},
                                    {"the BLAS kernel", blas ? tt_blas_kernel() : "none"},
                                    {"the BLAS library", blas ? tt_blas_library() : "none"}};
    struct tt_text difference = {0};
    int rc = tt_facts_compare(s->comm, facts, sizeof facts / sizeof *facts, &difference);

    s->kernels_differ = difference.text;
    return rc;
}

int tt_setup_init(struct tt_config *cfg, struct tt_comm *comm, bool starts_over, struct tt_setup *ret_setup)
{
    struct tt_setup *s = ret_setup;
    int rc = 0;

    *s = (struct tt_setup){.cfg = cfg, .comm = comm};
    if (!cfg->kernels.portable_bits)
        tt_kernels_take_fastest();
    comm->timeout_sec = (double)cfg->comm.init_timeout_seconds;
    comm->waiting_for = "setup";
    tt_comm_node(comm, &s->local_rank, &s->local_size);
    s->threads = tt_job_threads(cfg, s->local_size);
    TT_TRY(agree_on_limits(s));
    TT_TRY(agree_on_kernels(comm));
    TT_TRY(compare_kernels(s));
    TT_TRY(tt_comm_agree(comm, tt_job_init(cfg, comm->size, s->threads, s->memory_limit, &s->job)));
    TT_TRY(agree_on_model(s));
    TT_TRY(choose_engine(s, starts_over));
out:
    return rc;
}

void tt_setup_release(struct tt_setup *s)
{
    tt_free(s->kernels_differ);
    tt_engine_free(s->engine);
    tt_job_release(&s->job);
    *s = (struct tt_setup){0};
}
