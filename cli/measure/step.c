/* SPDX-License-Identifier: MIT
 *
 * Times a step of a model with the trainer's set-up and engine, on random tokens, so that no dataset is needed
 * for any vocabulary.
 */
#include "trainer/step/step.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/measure/bench.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/rng.h"
#include "core/math/stats.h"
#include "core/os/file.h"
#include "trainer/job/setup.h"
#include "trainer/step/peak.h"

static const double LEARNING_RATE = 1e-5; /* small enough for random tokens */

/* Every sequence is one document. */
static void fill_batch(struct tt_setup *setup, int64_t step)
{
    int64_t n = setup->job.microbatch_size * setup->cfg->training.seq_len;
    uint64_t vocab = (uint64_t)setup->job.model->dims.vocab_size;
    const struct tt_rng rng = tt_rng_make((uint64_t)setup->cfg->debug.seed, "bench tokens");

    for (int a = 0; a < setup->job.microbatches; a++) {
        uint64_t first = (uint64_t)((step * setup->job.microbatches + a) * (n + 1));
        int32_t *tokens = tt_engine_tokens(setup->engine, a), *labels = tt_engine_labels(setup->engine, a);
        int32_t *positions = tt_engine_positions(setup->engine, a);

        for (int64_t i = 0; i < n; i++) {
            tokens[i] = (int32_t)(tt_rng_bits(&rng, first + (uint64_t)i) % vocab);
            labels[i] = (int32_t)(tt_rng_bits(&rng, first + (uint64_t)i + 1) % vocab);
            if (positions)
                positions[i] = (int32_t)(i % setup->cfg->training.seq_len);
        }
    }
}

int tt_bench_time_step(struct tt_setup *setup, int64_t number, struct tt_split *split, double ret_sec[2])
{
    int64_t tokens = setup->job.global_batch * setup->cfg->training.seq_len;
    struct tt_step step = tt_train_step_of(setup->cfg, LEARNING_RATE, 1, tokens);
    struct tt_span span;
    int rc = 0;

    TT_TRY(tt_comm_barrier(setup->comm));
    setup->comm->wait_sec = 0.0;
    span.begin = tt_clock_sec();
    fill_batch(setup, number);
    TT_TRY(tt_engine_step(setup->engine, &step));
    span.end = tt_clock_sec();
    if (split)
        tt_split_add(split, tt_engine_program(setup->engine), tt_executor_spans(tt_engine_executor(setup->engine)),
                     span);
    ret_sec[0] = span.end - span.begin;
    ret_sec[1] = setup->comm->wait_sec;
    TT_TRY(tt_comm_max_f64(setup->comm, ret_sec, 2));
out:
    return rc;
}

/* Measures the peak again between the steps: if the machine was busy before, the first peak is too low and mfu too
 * high. */
static int measure_peak(const struct tt_setup *setup, double *peak_flops)
{
    double found = 0.0;
    int rc = 0;

    TT_TRY(tt_peak_measure_slowest(setup->comm, tt_engine_team(setup->engine), setup->job.engine.param_dtype, &found));
    *peak_flops = fmax(*peak_flops, found);
out:
    return rc;
}

static int time_steps(struct tt_setup *setup, double seconds, int fewest, struct tt_bench_step *s, double *peak_flops)
{
    enum { MOST = 200, PEAKS = 5 };
    double exposed[MOST], spent = 0.0, sec[2];
    int rc = 0;

    TT_TRY(tt_bench_time_step(setup, 0, NULL, sec)); /* touches the memory for the first time */
    while (s->n < fewest || (s->n < MOST && spent + sec[0] < seconds)) {
        TT_TRY(tt_bench_time_step(setup, s->n + 1, &s->split, sec));
        exposed[s->n] = sec[1];
        TT_PUSH(s->secs, s->n, s->cap) = sec[0];
        spent += sec[0];
        if (s->n <= PEAKS)
            TT_TRY(measure_peak(setup, peak_flops));
    }
    s->step_sec = tt_median(s->secs, s->n);
    s->exposed_sec = tt_median(exposed, s->n);
out:
    return rc;
}

static void conclude(const struct tt_setup *setup, struct tt_bench_step *s)
{
    int64_t seq_len = setup->cfg->training.seq_len;
    struct tt_text policies = {0};
    double tokens = (double)(setup->job.global_batch * seq_len),
           per_rank = tokens / setup->job.mesh.n_ranks / s->step_sec;

    s->microbatches = setup->job.microbatches;
    s->microbatch_size = setup->job.microbatch_size;
    s->tokens_per_sec = tokens / s->step_sec;
    s->flops_per_sec_rank = per_rank * tt_model_flops_per_token(setup->job.model, seq_len);
    s->causal_flops_per_sec_rank = per_rank * tt_model_flops_per_token_causal(setup->job.model, seq_len);
    s->peak_bytes = setup->memory.total;
    s->parameters = tt_model_n_elements(setup->job.model);
    (void)snprintf(s->model, sizeof s->model, "%s", setup->job.model->title);
    tt_job_policies_text(setup->cfg, &policies);
    (void)snprintf(s->policies, sizeof s->policies, "%s", policies.text);
    tt_text_release(&policies);
}

int tt_bench_step_run(struct tt_bench *b, struct tt_comm *comm, double seconds)
{
    struct tt_setup setup = {.cfg = NULL};
    int rc = 0;

    TT_TRY(tt_setup_init(b->cfg, comm, false, &setup));
    TT_TRY(tt_comm_agree(comm, tt_engine_allocate(setup.engine)));
    TT_TRY(tt_engine_init_params(setup.engine, (uint64_t)b->cfg->debug.seed));
    TT_TRY(time_steps(&setup, seconds, b->fewest, &b->step,
                      setup.job.engine.param_dtype == TT_BF16 ? &b->bgemm_flops : &b->sgemm_flops));
    conclude(&setup, &b->step);
out:
    tt_setup_release(&setup);
    return rc;
}
