/* SPDX-License-Identifier: MIT
 *
 * Times the ops of small models, one step after another, and fits what they cost (parallel/planner/op_prices.h).
 *
 * The models differ in their widths, in the length of their sequences and in the size of their heads, so that what an
 * op takes per flop, per byte and per sum can be told apart. They are small: a few seconds are enough for all.
 */
#include <stdio.h>

#include "cli/measure/bench.h"
#include "cli/train/setup.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/stats.h"
#include "core/os/file.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/self.h"

static const struct model {
    int dim, heads, kv_heads, ffn_dim, seq_len, sequences;
} models[] = {
    {256, 8, 4, 768, 256, 4},
    {512, 8, 8, 1536, 1024, 1},
    {256, 16, 8, 768, 1024, 1},
};
enum { N_MODELS = sizeof models / sizeof *models };

static int load_config(const struct tt_bench *b, const struct model *m, enum tt_dtype dtype, struct tt_config **ret_cfg)
{
    enum { MOST = 16 };
    const char *args[MOST];
    int n = 0, rc = 0;
    struct tt_text text[MOST] = {{0}};
    struct tt_config *cfg = NULL;

    tt_text_add(&text[n++], "model.name=llama3");
    tt_text_add(&text[n++], "model.n_layers=2");
    tt_text_add(&text[n++], "model.dim=%d", m->dim);
    tt_text_add(&text[n++], "model.n_heads=%d", m->heads);
    tt_text_add(&text[n++], "model.n_kv_heads=%d", m->kv_heads);
    tt_text_add(&text[n++], "model.ffn_dim=%d", m->ffn_dim);
    tt_text_add(&text[n++], "training.seq_len=%d", m->seq_len);
    tt_text_add(&text[n++], "training.local_batch_size=%d", m->sequences);
    tt_text_add(&text[n++], "training.global_batch_size=%d", m->sequences);
    tt_text_add(&text[n++], "training.mixed_precision_param=%s", tt_op_price_dtype(dtype));
    tt_text_add(&text[n++], "parallelism.threads_per_rank=%d", b->threads);
    for (int i = 0; i < n; i++)
        args[i] = text[i].text;
    TT_TRY(tt_config_new(&cfg));
    TT_TRY(tt_config_load(cfg, 0, NULL, n, args));
    *ret_cfg = cfg;
    cfg = NULL;
out:
    tt_config_free(cfg);
    for (int i = 0; i < n; i++)
        tt_text_release(&text[i]);
    return rc;
}

/* Runs steps for about `seconds`. *ret_secs, the caller's: the median time of each instruction. */
static int time_instrs(struct tt_setup *setup, double seconds, int fewest, double **ret_secs)
{
    enum { MOST = 100 };
    const struct tt_program *program = tt_engine_program(setup->engine);
    double *all = tt_calloc((size_t)program->n_instrs * MOST, sizeof *all), spent = 0.0, sec[2];
    int steps = 0, rc = 0;

    TT_TRY(tt_bench_time_step(setup, 0, NULL, sec)); /* touches the memory for the first time */
    while (steps < fewest || (steps < MOST && spent + sec[0] < seconds)) {
        const struct tt_span *spans = tt_executor_spans(tt_engine_executor(setup->engine));

        TT_TRY(tt_bench_time_step(setup, steps + 1, NULL, sec));
        for (int i = 0; i < program->n_instrs; i++)
            all[i * MOST + steps] = spans[i].end - spans[i].begin;
        steps++;
        spent += sec[0];
    }
    *ret_secs = tt_calloc((size_t)program->n_instrs, sizeof **ret_secs);
    for (int i = 0; i < program->n_instrs; i++)
        (*ret_secs)[i] = tt_median(&all[(size_t)i * MOST], steps);
out:
    tt_free(all);
    return rc;
}

struct samples {
    struct tt_op_sample *of;
    int n, cap;
};

/* One model on this rank alone. */
static int time_model(const struct tt_bench *b, struct tt_comm *self, struct tt_config *cfg, double seconds,
                      struct samples *samples)
{
    struct tt_setup setup = {.cfg = NULL};
    double *secs = NULL;
    int rc = 0;

    TT_TRY(tt_setup_init(cfg, self, false, &setup));
    TT_TRY(tt_engine_allocate(setup.engine));
    TT_TRY(tt_engine_init_params(setup.engine, 0));
    TT_TRY(time_instrs(&setup, seconds, b->fewest, &secs));
    for (int i = 0; i < tt_engine_program(setup.engine)->n_instrs; i++) {
        const struct tt_program *program = tt_engine_program(setup.engine);
        const struct tt_instr *instr = &program->instrs[i];

        TT_PUSH(samples->of, samples->n, samples->cap) =
            (struct tt_op_sample){.op = tt_instr_op_name(program, instr), /* static text */
                                  .dtype = program->param_dtype,
                                  .work = tt_instr_cost(program, instr).work,
                                  .sec = secs[i] * b->threads};
    }
out:
    tt_free(secs);
    tt_setup_release(&setup);
    return rc;
}

/* The slowest rank's, since the others wait for it. All ranks have the same samples. */
static int slowest(struct tt_comm *comm, struct samples *samples)
{
    double *secs = tt_calloc((size_t)samples->n + 1, sizeof *secs);
    int rc = 0;

    for (int i = 0; i < samples->n; i++)
        secs[i] = samples->of[i].sec;
    TT_TRY(tt_comm_max_f64(comm, secs, samples->n));
    for (int i = 0; i < samples->n; i++)
        samples->of[i].sec = secs[i];
out:
    tt_free(secs);
    return rc;
}

int tt_bench_ops_run(struct tt_bench *b, struct tt_comm *comm, double seconds)
{
    static const enum tt_dtype dtypes[] = {TT_F32, TT_BF16};
    enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };
    struct tt_comm *self = tt_comm_self_new();
    struct samples samples = {.n = 0};
    int rc = 0;

    for (int m = 0; m < N_MODELS; m++)
        for (int d = 0; d < N_DTYPES; d++) {
            struct tt_config *cfg = NULL;
            int failed = load_config(b, &models[m], dtypes[d], &cfg);

            TT_TRY(tt_comm_barrier(comm)); /* all ranks are busy at once, as in training */
            if (failed == 0)
                failed = time_model(b, self, cfg, seconds / (N_MODELS * N_DTYPES), &samples);
            tt_config_free(cfg);
            TT_TRY(tt_comm_agree(comm, failed));
            tt_progress("ops", m * N_DTYPES + d + 1, N_MODELS * N_DTYPES);
        }
    TT_TRY(slowest(comm, &samples));
    tt_op_prices_fit(samples.of, samples.n, &b->ops);
out:
    tt_free(samples.of);
    tt_comm_free(self);
    return rc;
}
