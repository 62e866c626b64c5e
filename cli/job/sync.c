/* SPDX-License-Identifier: MIT
 *
 * The choice of gradient_sync auto: two plans of the step are compared, and one line says what was found.
 */
#include "cli/job/sync.h"

#include "cli/job/predict.h"
#include "core/base/mem.h"

enum tt_reduce_when tt_job_reduce_when(enum tt_sync_choice sync)
{
    return sync == TT_SYNC_LAST_MICROBATCH ? TT_REDUCE_LAST
           : sync == TT_SYNC_EVERY_RUN     ? TT_REDUCE_RUNS
                                           : TT_REDUCE_EACH;
}

enum tt_sync_choice tt_job_sync_of(enum tt_reduce_when when)
{
    return when == TT_REDUCE_LAST   ? TT_SYNC_LAST_MICROBATCH
           : when == TT_REDUCE_RUNS ? TT_SYNC_EVERY_RUN
                                    : TT_SYNC_EVERY_MICROBATCH;
}

/* What may be chosen instead of a reduction after each microbatch. */
static enum tt_reduce_when alternative(const struct tt_job *job, bool is_fast)
{
    return is_fast && (!job->pipeline || tt_pipeline_ascends(job->pipeline)) ? TT_REDUCE_LAST : TT_REDUCE_RUNS;
}

/* Appends how often the alternative reduces: "once per run of 8 microbatches". */
static void add_how_often(const struct tt_engine_options *o, struct tt_text *out)
{
    int block = tt_engine_block(o);

    if (block == o->microbatches)
        tt_text_add(out, "once a step of %d microbatches", block);
    else
        tt_text_add(out, "once per run of %d microbatches", block);
}

static void add_needs(const struct tt_job_prediction *p, const struct tt_job *job, struct tt_text *out)
{
    char step[32], memory[32];

    tt_text_add(out, "%s a step with %s a rank", tt_text_duration(step, sizeof step, p->step_sec),
                tt_text_bytes(memory, sizeof memory, (double)(p->memory.total + job->staging_bytes)));
}

/* Why nothing else can be chosen, in words; NULL: something can. */
static const char *no_choice(const struct tt_engine_options *o, bool is_fast)
{
    if (tt_mesh_size(&o->mesh, TT_GROUP_FSDP) == 1)
        return "one shard reduces nothing";
    if (tt_engine_block(o) == 1)
        return "there is one microbatch";
    if (!is_fast && !tt_engine_is_exact(o))
        return "other sums would change the bits";
    return NULL;
}

static int compare(struct tt_job *job, const struct tt_job *other, struct tt_text *why)
{
    struct tt_job_prediction each = {0}, joined = {0};
    bool fits, faster;
    char limit[32];
    int rc = 0;

    TT_TRY(tt_job_predict(job, &job->engine.machine, NULL, 0, &each));
    TT_TRY(tt_job_predict(other, &job->engine.machine, NULL, 0, &joined));
    fits = joined.memory.total <= job->engine.memory_limit;
    faster = other->engine.reduce == TT_REDUCE_LAST || joined.step_sec < 0.999 * each.step_sec;
    if (fits && faster)
        job->engine.reduce = other->engine.reduce;
    if (fits && faster) {
        add_how_often(&other->engine, why);
        tt_text_add(why, ": ");
        add_needs(&joined, job, why);
        tt_text_add(why, " predicted; after each microbatch: ");
        add_needs(&each, job, why);
    } else {
        tt_text_add(why, "after each microbatch: ");
        add_needs(&each, job, why);
        tt_text_add(why, " predicted; ");
        add_how_often(&other->engine, why);
        tt_text_add(why, ": ");
        add_needs(&joined, job, why);
        if (!fits)
            tt_text_add(why, ", but only %s are allowed",
                        tt_text_bytes(limit, sizeof limit, (double)(job->engine.memory_limit + job->staging_bytes)));
    }
out:
    tt_job_prediction_release(&each);
    tt_job_prediction_release(&joined);
    return rc;
}

int tt_job_choose_sync(enum tt_sync_choice sync, bool is_fast, struct tt_job *job, char **ret_why)
{
    struct tt_job other = *job;
    struct tt_text why = {0};
    const char *reason;
    int rc = 0;

    *ret_why = NULL;
    job->engine.reduce = tt_job_reduce_when(sync);
    if (sync != TT_SYNC_AUTO)
        return 0;
    other.engine.reduce = alternative(job, is_fast);
    reason = no_choice(&other.engine, is_fast);
    if (reason)
        tt_text_add(&why, "after each microbatch: %s", reason);
    else
        TT_TRY(compare(job, &other, &why));
    *ret_why = why.text;
    why = (struct tt_text){0};
out:
    tt_text_release(&why);
    return rc;
}
