/* SPDX-License-Identifier: MIT
 *
 * The rows of `titan estimate`. A policy is a set of flags that is added to the command line, so the estimate describes
 * exactly the run that `titan train` would do with these flags. A policy that is not built yet gives no row.
 */
#include "cli/plan/estimate.h"

#include <math.h>
#include <string.h>

#include "cli/cli.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "trainer/job/predict.h"

/*
 * Resident bytes of a rank in addition to its arena: program, OpenBLAS, MPI and its buffers, the loader. Measured on
 * x86-64 with Open MPI 4.1 and OpenBLAS 0.3.21, on one host, with two models (6M and 15M parameters), as the largest
 * resident size of a rank minus its arena: 18.5 and 18.6 MiB for a single rank with 2 threads, 28.0 to 29.0 MiB on 2
 * and 4 ranks of one thread. More threads, more hosts and longer runs were not measured.
 */
static const int64_t libraries_alone = 19LL << 20, libraries_with_mpi = 29LL << 20;

static const char *const reshard_key = TT_KEY_NAME(parallelism.fsdp_reshard_after_forward),
                         *const sync_key = TT_KEY_NAME(training.gradient_sync);

/* --- what cannot be modelled --- */

/* Those of a list of "key=value" lines that change memory, traffic or time; NULL if none does. */
static char *relevant(const char *lines)
{
    static const char *const matter[] = {"parallelism.",
                                         TT_KEY_NAME(training.gradient_sync),
                                         TT_KEY_NAME(training.dtype),
                                         "training.mixed_precision",
                                         TT_KEY_NAME(training.init),
                                         "activation_checkpoint."};
    struct tt_text found = {0};

    for (const char *line = lines; line && *line; line = strchr(line, '\n') + 1) {
        for (size_t i = 0; i < sizeof matter / sizeof matter[0]; i++)
            if (strncmp(line, matter[i], strlen(matter[i])) == 0)
                tt_text_add(&found, "%s%.*s", found.size ? ", " : "", (int)strcspn(line, "\n"), line);
    }
    return found.text;
}

static char *value_of(const struct tt_config *cfg, enum tt_key key)
{
    struct tt_text text = {0};

    tt_config_value_text(cfg, tt_config_row(key), &text);
    return text.text;
}

static const char *const reshard_words[] = {"always", "default", "never"};
enum { N_RESHARD = sizeof reshard_words / sizeof reshard_words[0] };

int tt_estimate_begin(struct tt_estimate *e)
{
    struct tt_text unbuilt = {0};
    struct tt_cli_variant variant = {.unbuilt = &unbuilt};
    struct tt_machine machine;
    struct tt_config *cfg = NULL;
    bool has_row = false;
    int rc = 0;

    TT_TRY(tt_cli_load_variant("estimate", e->args, &variant, &cfg));
    TT_TRY(tt_config_locate(cfg, tt_job_machine(cfg, &machine)));
    memcpy(e->machine, machine.name, sizeof e->machine);
    tt_job_policies_text(cfg, &e->policies);
    e->not_modelled = relevant(unbuilt.text);
    e->sync = value_of(cfg, TT_KEY(training.gradient_sync));
    e->configured = value_of(cfg, TT_KEY(parallelism.fsdp_reshard_after_forward));
    for (int i = 0; i < N_RESHARD; i++)
        has_row = has_row || strcmp(e->configured, reshard_words[i]) == 0;
    if (has_row || strcmp(e->configured, "true") == 0 || strcmp(e->configured, "false") == 0) {
        tt_free(e->configured);
        e->configured = NULL;
    }
out:
    tt_text_release(&unbuilt);
    tt_config_free(cfg);
    return rc;
}

/* --- one row --- */

static int fill(struct tt_estimate_row *row, const struct tt_config *cfg, const struct tt_job *job,
                const struct tt_engine *engine)
{
    struct tt_text largest = {0};
    double makespan, bubble_share;
    int rc = tt_job_predict(job, &job->engine.machine, engine, 0, &row->p);

    if (rc < 0)
        return rc;
    makespan = row->p.run.makespan;
    bubble_share = row->p.run.bubble_share;
    tt_pipeline_run_release(&row->p.run);
    row->p.run = (struct tt_pipeline_run){.makespan = makespan, .bubble_share = bubble_share};
    row->libraries = row->ranks > 1 ? libraries_with_mpi : libraries_alone;
    row->staging = job->staging_bytes;
    row->resident = row->p.memory.total + row->libraries + row->staging;
    if (job->pipeline)
        tt_job_rank_text(job, row->p.rank, &largest);
    row->largest = largest.text;
    row->reshard = value_of(cfg, TT_KEY(parallelism.fsdp_reshard_after_forward));
    row->sync = value_of(cfg, TT_KEY(training.gradient_sync));
    row->sync_why = tt_strdup(job->sync_why);
    row->engine = value_of(cfg, TT_KEY(parallelism.fsdp_engine));
    return 0;
}

static char *policy_of(const struct tt_estimate *e, const char *reshard, const char *sync)
{
    return strcmp(sync, e->sync) == 0 ? tt_strdup(reshard) : tt_format("%s, %s", reshard, sync);
}

/* In a pipeline, `default` keeps everything gathered, as `never` does, so the row of `default` is copied. False: there
 * is no such row. */
static bool is_as_default(const struct tt_estimate *e, const char *reshard, const char *sync, const struct tt_job *job,
                          struct tt_estimate_row *row)
{
    char *policy = policy_of(e, "default", sync), *own = row->policy;
    bool found = false;

    for (int i = 0; i < e->n && job->pipeline && strcmp(reshard, "never") == 0 && !found; i++) {
        const struct tt_estimate_row *same = &e->rows[i];

        found = same->ranks == row->ranks && !same->problem && strcmp(same->policy, policy) == 0;
        if (!found)
            continue;
        *row = *same;
        row->policy = own;
        row->reshard = tt_strdup(reshard);
        row->sync = tt_strdup(same->sync);
        row->sync_why = tt_strdup(same->sync_why);
        row->engine = tt_strdup(same->engine);
        row->largest = tt_strdup(same->largest);
    }
    tt_free(policy);
    return found;
}

/* If a number of ranks is impossible, its row says so. Only a fault that applies to every number is an error. */
static int add_row(struct tt_estimate *e, int n_ranks, const char *reshard, const char *sync, bool *ret_stop)
{
    struct tt_estimate_row row = {.ranks = n_ranks, .p = {.step_sec = (double)NAN, .exposed_sec = (double)NAN}};
    char *reshard_flag = tt_format("--%s=%s", reshard_key, reshard), *sync_flag = tt_format("--%s=%s", sync_key, sync);
    struct tt_text unbuilt = {0};
    struct tt_cli_variant variant = {.flag = {reshard_flag, sync_flag}, .n = 2, .unbuilt = &unbuilt};
    struct tt_config *cfg = NULL;
    struct tt_job job = {0};
    struct tt_engine *engine = NULL;
    char count[32], active[32], used[64] = "";
    int threads, rc = 0;

    TT_TRY(tt_cli_load_variant("estimate", e->args, &variant, &cfg));
    if (unbuilt.text && (strstr(unbuilt.text, reshard_key) || strstr(unbuilt.text, sync_key)))
        goto out; /* a flag needs a feature that is not built */
    threads = tt_job_threads(cfg, n_ranks);
    row.policy = policy_of(e, reshard, sync);
    row.limit = e->memory ? e->memory : tt_job_memory_limit(cfg, tt_job_ranks_on_host(n_ranks, threads));
    rc = tt_job_init(cfg, n_ranks, threads, row.limit, &job);
    if (rc == 0 && is_as_default(e, reshard, sync, &job, &row)) {
        TT_PUSH(e->rows, e->n, e->cap) = row;
        row = (struct tt_estimate_row){0};
        goto out;
    }
    if (rc == 0 && !e->head) {
        if (job.model->dims.moe.experts)
            (void)snprintf(used, sizeof used, " (a token uses %s)",
                           tt_text_count(active, sizeof active, tt_model_n_active(job.model)));
        e->head = tt_format("model     %s, %s parameters%s, local batch %lld x %lld tokens\n", job.model->title,
                            tt_text_count(count, sizeof count, tt_model_n_elements(job.model)), used,
                            (long long)cfg->training.local_batch_size, (long long)cfg->training.seq_len);
    }
    if (rc == 0) {
        row.microbatches = job.microbatches;
        rc = tt_job_engine_alone(cfg, &job, 0, &engine);
    }
    /* leave the row out if the order cannot carry gradients */
    *ret_stop = rc == TT_EUSAGE && tt_error_key() != TT_KEY(training.gradient_sync);
    rc = tt_config_locate(cfg, rc);
    if (rc == TT_EUSAGE) {
        tt_error_drop_hint();
        row.problem = tt_strdup(tt_error_message());
        rc = 0;
    }
    TT_TRY(rc);
    if (!row.problem)
        TT_TRY(fill(&row, cfg, &job, engine));
    row.fits = !row.problem && row.resident <= row.limit &&
               row.p.init_bytes[job.engine.init] + row.libraries + row.staging <= row.limit;
    TT_PUSH(e->rows, e->n, e->cap) = row;
    row = (struct tt_estimate_row){0};
out:
    tt_text_release(&unbuilt);
    tt_free(reshard_flag);
    tt_free(sync_flag);
    tt_free(row.policy);
    tt_engine_free(engine);
    tt_job_release(&job);
    tt_config_free(cfg);
    return rc;
}

/* --- all rows of a number of ranks --- */

static void mark_best(struct tt_estimate_row *rows, int n)
{
    int least = TT_NONE, fastest = TT_NONE;

    for (int i = 0; i < n; i++) {
        if (rows[i].problem)
            continue;
        if (least == TT_NONE || rows[i].p.memory.total < rows[least].p.memory.total)
            least = i;
        if (rows[i].fits && (fastest == TT_NONE || rows[i].p.step_sec < rows[fastest].p.step_sec))
            fastest = i;
    }
    if (least != TT_NONE)
        rows[least].least_memory = true;
    if (fastest != TT_NONE)
        rows[fastest].fastest = true;
}

int tt_estimate_ranks(struct tt_estimate *e, int n_ranks)
{
    static const char *const sync_words[] = {"every_microbatch", "every_run", "last_microbatch"};
    enum { N_SYNC = sizeof sync_words / sizeof sync_words[0] };
    int first = e->n, at, rc = 0;
    bool stop = false;

    if (e->not_modelled) {
        TT_PUSH(e->rows, e->n, e->cap) = (struct tt_estimate_row){
            .ranks = n_ranks, .policy = tt_strdup("-"), .problem = tt_format("not modelled: %s", e->not_modelled)};
        return 0;
    }
    for (int r = 0; r <= N_RESHARD && !stop; r++) {
        const char *reshard = r < N_RESHARD ? reshard_words[r] : e->configured;

        if (!reshard)
            continue;
        TT_TRY(add_row(e, n_ranks, reshard, e->sync, &stop));
        at = e->n - 1;                            /* the row of the configured sync, or of the one that `auto` became */
        for (int s = 0; s < N_SYNC && !stop; s++) /* with one microbatch, no reduction can be deferred */
            if (at >= first && e->rows[at].microbatches > 1 && strcmp(sync_words[s], e->rows[at].sync) != 0)
                TT_TRY(add_row(e, n_ranks, reshard, sync_words[s], &stop));
    }
    mark_best(&e->rows[first], e->n - first);
out:
    return rc;
}

void tt_estimate_release(struct tt_estimate *e)
{
    for (int i = 0; i < e->n; i++) {
        tt_free(e->rows[i].policy);
        tt_free(e->rows[i].problem);
        tt_free(e->rows[i].largest);
        tt_free(e->rows[i].reshard);
        tt_free(e->rows[i].sync);
        tt_free(e->rows[i].sync_why);
        tt_free(e->rows[i].engine);
    }
    tt_free(e->rows);
    tt_free(e->head);
    tt_text_release(&e->policies);
    tt_free(e->configured);
    tt_free(e->sync);
    tt_free(e->not_modelled);
}
