/* SPDX-License-Identifier: MIT
 *
 * One step of a model, timed: the trainer's plan and the engine that trains, on random tokens, so that no data set is
 * needed for any vocabulary.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/measure/bench.h"
#include "cli/run/peak.h"
#include "cli/train/trainer.h"
#include "core/base/mem.h"
#include "core/base/rng.h"
#include "core/base/stats.h"
#include "core/base/text.h"
#include "core/os/file.h"

static void fill_batch(struct tt_trainer *t, int64_t step)
{
    int64_t n = t->cfg->training.local_batch_size * t->cfg->training.seq_len;
    uint64_t vocab = (uint64_t)t->model->dims.vocab_size;
    const struct tt_rng rng = tt_rng_make((uint64_t)t->cfg->debug.seed, "bench tokens");

    for (int a = 0; a < t->microbatches; a++) {
        uint64_t first = (uint64_t)((step * t->microbatches + a) * (n + 1));

        for (int64_t i = 0; i < n; i++) {
            tt_engine_tokens(t->engine, a)[i] = (int32_t)(tt_rng_bits(&rng, first + (uint64_t)i) % vocab);
            tt_engine_labels(t->engine, a)[i] = (int32_t)(tt_rng_bits(&rng, first + (uint64_t)i + 1) % vocab);
        }
    }
}

static struct tt_step step_of(const struct tt_trainer *t)
{
    const struct tt_config *cfg = t->cfg;
    double beta1 = cfg->optimizer.beta1, beta2 = cfg->optimizer.beta2;

    return (struct tt_step){
        .scalars = {.inv_valid_tokens = (float)(1.0 / (double)(t->global_batch * cfg->training.seq_len)),
                    .lr = 1e-5,
                    .beta1 = beta1,
                    .beta2 = beta2,
                    .eps = cfg->optimizer.eps,
                    .weight_decay = cfg->optimizer.weight_decay,
                    .bias_correction1 = 1.0 - beta1,
                    .bias_correction2 = 1.0 - beta2},
        .max_norm = cfg->training.max_norm,
        .decoupled = cfg->optimizer.name == TT_OPTIM_ADAMW};
}

/* One step; ret_sec is the slowest rank's. The split gets it only when it counts. */
static int time_step(struct tt_trainer *t, int64_t number, struct tt_split *split, double ret_sec[2])
{
    struct tt_step step = step_of(t);
    struct tt_span span;
    int rc = 0;

    TT_TRY(tt_comm_barrier(t->comm));
    t->comm->wait_sec = 0.0;
    span.begin = tt_clock_sec();
    fill_batch(t, number);
    TT_TRY(tt_engine_step(t->engine, &step));
    span.end = tt_clock_sec();
    if (split)
        tt_split_add(split, tt_engine_program(t->engine), tt_executor_spans(tt_engine_executor(t->engine)), span);
    ret_sec[0] = span.end - span.begin;
    ret_sec[1] = t->comm->wait_sec;
    TT_TRY(tt_comm_max_f64(t->comm, ret_sec, 2));
out:
    return rc;
}

/* The peak again, beside the steps: a machine that was busy a moment ago would make them look better than they are. */
static int measure_peak(struct tt_trainer *t, double *peak_flops)
{
    double least = 0.0;
    int rc = 0;

    least = -tt_peak_measure(tt_engine_team(t->engine)); /* the largest of the negative: the slowest rank */
    TT_TRY(tt_comm_max_f64(t->comm, &least, 1));
    *peak_flops = fmax(*peak_flops, -least);
out:
    return rc;
}

static int time_steps(struct tt_trainer *t, double seconds, int fewest, struct tt_bench_step *s, double *peak_flops)
{
    enum { MOST = 200, PEAKS = 5 };
    double exposed[MOST], spent = 0.0, sec[2];
    int rc = 0;

    TT_TRY(time_step(t, 0, NULL, sec)); /* touches the memory for the first time */
    while (s->n < fewest || (s->n < MOST && spent + sec[0] < seconds)) {
        TT_TRY(time_step(t, s->n + 1, &s->split, sec));
        exposed[s->n] = sec[1];
        TT_PUSH(s->secs, s->n, s->cap) = sec[0];
        spent += sec[0];
        if (s->n <= PEAKS)
            TT_TRY(measure_peak(t, peak_flops));
    }
    s->step_sec = tt_median(s->secs, s->n);
    s->exposed_sec = tt_median(exposed, s->n);
out:
    return rc;
}

static void conclude(const struct tt_trainer *t, struct tt_bench_step *s)
{
    int64_t seq_len = t->cfg->training.seq_len;
    struct tt_text policies = {0};
    double tokens = (double)(t->global_batch * seq_len), per_rank = tokens / tt_mesh_dp(&t->mesh) / s->step_sec;

    s->microbatches = t->microbatches;
    s->tokens_per_sec = tokens / s->step_sec;
    s->flops_per_sec_rank = per_rank * tt_model_flops_per_token(t->model, seq_len);
    s->causal_flops_per_sec_rank = per_rank * tt_model_flops_per_token_causal(t->model, seq_len);
    s->peak_bytes = t->memory.total;
    s->parameters = tt_model_n_elements(t->model);
    tt_job_policies_text(t->cfg, &policies);
    (void)snprintf(s->policies, sizeof s->policies, "%s", policies.text);
    tt_text_release(&policies);
}

int tt_bench_step_run(struct tt_bench *b, struct tt_comm *comm, double seconds)
{
    struct tt_trainer_options options = {0};
    struct tt_trainer *t = NULL;
    int rc = 0;

    TT_TRY(tt_trainer_plan(b->cfg, comm, &options, &t));
    TT_TRY(tt_comm_agree(comm, tt_engine_allocate(t->engine)));
    TT_TRY(tt_engine_init_params(t->engine, (uint64_t)b->cfg->debug.seed));
    TT_TRY(time_steps(t, seconds, b->fewest, &b->step, &b->sgemm_flops));
    conclude(t, &b->step);
out:
    tt_trainer_close(t, -1);
    return rc;
}
