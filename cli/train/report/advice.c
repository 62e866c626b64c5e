/* SPDX-License-Identifier: MIT
 *
 * Where the time of a finished run went, and one change that would help most. A policy is planned before it is advised,
 * so the memory that it needs and the bytes that it sends are known.
 */
#include "cli/train/report/advice.h"

#include <math.h>

#include "core/base/mem.h"
#include "trainer/job/predict.h"

enum { WORTH_SAYING_PERCENT = 5 };

static double percent(double part, double whole)
{
    return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

/* A policy that sends less than the present one. */
struct remedy {
    const char *flag;
    const char *price; /* its cost other than memory, or "" */
    bool (*apply)(const struct tt_setup *s, struct tt_engine_options *options);
};

static bool keep_gathered(const struct tt_setup *s, struct tt_engine_options *options)
{
    options->sharding.reshard = TT_RESHARD_AFTER_FORWARD_NEVER;
    options->choose_reshard_by_limit = false;
    return s->job.mesh.size[TT_MESH_DP_SHARD] > 1;
}

static bool defers(struct tt_engine_options *options, enum tt_reduce_when when)
{
    bool already = options->reduce != TT_REDUCE_EACH;

    options->reduce = when;
    return !already && tt_engine_block(options) > 1;
}

static bool reduce_runs(const struct tt_setup *s, struct tt_engine_options *options)
{
    (void)s;
    return defers(options, TT_REDUCE_RUNS) && tt_engine_is_exact(options);
}

static bool defer_gradients(const struct tt_setup *s, struct tt_engine_options *options)
{
    return defers(options, TT_REDUCE_LAST) && (!s->job.pipeline || tt_pipeline_ascends(s->job.pipeline));
}

static const struct remedy remedies[] = {
    {"--parallelism.fsdp_reshard_after_forward=never", "", keep_gathered},
    {"--training.gradient_sync=every_run", "", reduce_runs},
    {"--training.gradient_sync=last_microbatch", " (gradients are then added in another order)", defer_gradients},
};

/* The most that a rank sends in a step, and the most memory that a rank needs. */
static int find_needs(const struct tt_job *job, int64_t *ret_sent, int64_t *ret_memory)
{
    struct tt_job_prediction p = {0};
    int rc = tt_job_predict(job, &job->engine.machine, NULL, 0, &p);

    if (rc < 0)
        return rc;
    *ret_sent = p.payload_bytes;
    *ret_memory = p.memory.total;
    tt_job_prediction_release(&p);
    return 0;
}

/* Appends the first remedy that fits into memory and sends less. */
static bool advise_less_traffic(const struct tt_setup *s, struct tt_text *out)
{
    int64_t sent = 0, memory = 0;
    char before[32], after[32], need[32], limit[32];

    if (find_needs(&s->job, &sent, &memory) < 0)
        return false;
    for (size_t i = 0; i < sizeof remedies / sizeof remedies[0]; i++) {
        struct tt_job job = s->job;
        int64_t bytes = 0;

        if (!remedies[i].apply(s, &job.engine) || find_needs(&job, &bytes, &memory) < 0)
            continue;
        if (bytes >= sent || memory > s->memory_limit)
            continue;
        tt_text_add(out, "%s sends %s a step instead of %s and needs %s a rank of %s%s", remedies[i].flag,
                    tt_text_bytes(after, sizeof after, (double)bytes),
                    tt_text_bytes(before, sizeof before, (double)sent),
                    tt_text_bytes(need, sizeof need, (double)memory),
                    tt_text_bytes(limit, sizeof limit, (double)s->memory_limit), remedies[i].price);
        return true;
    }
    return false;
}

/* Whether ranks that share layers wait longer for each other than the ranks of the pipeline do. */
static bool layers_wait_most(const struct tt_setup *s, const struct tt_spent *spent)
{
    return tt_mesh_size(&s->job.mesh, TT_GROUP_TP) > 1 &&
           (!s->job.pipeline || spent->group_sec[TT_GROUP_TP] > spent->group_sec[TT_GROUP_PP]);
}

void tt_advice(const struct tt_setup *s, const struct tt_spent *spent, struct tt_text *out)
{
    double exposed = percent(spent->exposed_sec, spent->step_sec), data = percent(spent->data_sec, spent->step_sec);

    if (spent->step_sec <= 0.0)
        return;
    exposed = exposed > 100.0 - data ? 100.0 - data : exposed; /* a wait may lie in both */
    tt_text_add(out, "  time     compute %.0f %%, exposed communication %.0f %%, data %.0f %%\n",
                fmax(100.0 - exposed - data, 0.0), exposed, data);
    if (data > WORTH_SAYING_PERCENT && !(s->job.pipeline && exposed > data)) {
        tt_text_add(out, "  hint     loading data takes time: put dataloader.cache_dir on a local disk\n");
    } else if (exposed > WORTH_SAYING_PERCENT && layers_wait_most(s, spent)) {
        tt_text_add(out,
                    "  hint     ranks that share layers wait for each other in every layer: keep them on one host, "
                    "or lower parallelism.tensor_parallel_degree\n");
    } else if (exposed > WORTH_SAYING_PERCENT && s->job.pipeline) {
        tt_text_add(out, "  hint     a pipeline waits less with more microbatches a run (training.local_batch_size / "
                         "parallelism.pipeline_parallel_microbatch_size), or with another "
                         "parallelism.pipeline_parallel_schedule\n");
    } else if (exposed > WORTH_SAYING_PERCENT) {
        tt_text_add(out, "  hint     ");
        if (!advise_less_traffic(s, out))
            tt_text_add(out, "try --parallelism.fsdp_prefetch=2, or over several hosts replicas that shard within one "
                             "(data_parallel_replicate_degree)");
        tt_text_add(out, "; `titan tune` measures the choices\n");
    } else if (s->memory.total > s->memory_limit / 10 * 9) {
        tt_text_add(out, "  hint     memory is nearly full: fsdp_reshard_after_forward=always, or "
                         "activation_checkpoint.mode=full, makes room\n");
    }
}
