/* SPDX-License-Identifier: MIT
 *
 * The memory of a job of titan itself: that of its plan, not of a formula.
 */
#include "cli/cluster/planned.h"

#include <string.h>

#include "cli/cli.h"
#include "cli/job/job.h"
#include "cli/job/predict.h"

bool tt_cluster_is_planned(const struct tt_cluster_inputs *in)
{
    return strcmp(in->beyond.stack->name, "titan") == 0 && !in->beyond.shape;
}

/* The arena by the kinds of the formulas. */
static struct tt_cluster_memory by_part(const struct tt_job_prediction *p, const struct tt_cluster_job *job,
                                        double staging)
{
    const int64_t *k = p->memory.by_kind;
    struct tt_cluster_memory m = {
        .state = (double)(k[TT_MEMORY_PARAM] + k[TT_MEMORY_OPTIMIZER] + k[TT_MEMORY_GRAD]),
        .buffers =
            (double)(k[TT_MEMORY_UNSHARDED] + k[TT_MEMORY_KEPT] + k[TT_MEMORY_PARAM_GRAD] + k[TT_MEMORY_STAGING]) +
            staging,
        .communicators = job->stack->number[TT_S_COMM_BASE].value,
        .context = job->machine->number[TT_M_RESERVED].value,
        .usable = job->machine->number[TT_M_MEMORY].value,
    };

    m.activations = (double)p->memory.total + staging - m.state - m.buffers;
    m.allocated = m.state + m.buffers + m.activations;
    m.total = m.allocated + m.communicators + m.context;
    return m;
}

static int predict(struct tt_config *cfg, const struct tt_cluster_job *cluster_job, struct tt_job *job,
                   struct tt_cluster_memory *ret_memory)
{
    const struct tt_cluster_number *v = cluster_job->machine->number;
    struct tt_job_prediction p = {0};
    struct tt_engine *engine = NULL;
    double devices = tt_cluster_devices(cluster_job);
    int rc = 0;

    TT_TRY(tt_job_init(cfg, (int)devices, (int)v[TT_M_UNITS].value, (int64_t)v[TT_M_MEMORY].value, job));
    TT_TRY(tt_job_engine_alone(cfg, job, 0, &engine));
    TT_TRY(tt_job_predict(job, &job->engine.machine, engine, 0, &p));
    *ret_memory = by_part(&p, cluster_job, (double)job->staging_bytes);
    ret_memory->stage = cluster_job->pp > 1 ? (int)(p.rank / (devices / cluster_job->pp)) : 0;
    tt_job_prediction_release(&p);
out:
    tt_engine_free(engine);
    return rc;
}

int tt_cluster_plan(const struct tt_cluster_inputs *in, const struct tt_cluster_job *cluster_job,
                    struct tt_cluster_memory *ret_memory)
{
    struct tt_text unbuilt = {0};
    struct tt_cli_variant variant = {.unbuilt = &unbuilt};
    struct tt_config *cfg = NULL; /* planning writes into it */
    struct tt_job job = {0};
    int rc = 0;

    TT_TRY(tt_cli_load_variant("estimate", &in->with, &variant, &cfg));
    if (unbuilt.text && strstr(unbuilt.text, "parallelism."))
        rc = tt_fail(TT_EUSAGE,
                     "estimate: titan does not train with %.*s yet\nhelp: set it to 1, or choose another --stack",
                     (int)strcspn(unbuilt.text, "\n"), unbuilt.text);
    else
        rc = tt_config_locate(cfg, predict(cfg, cluster_job, &job, ret_memory));
out:
    tt_job_release(&job);
    tt_config_free(cfg);
    tt_text_release(&unbuilt);
    return rc;
}
