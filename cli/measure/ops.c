/* SPDX-License-Identifier: MIT
 *
 * Times the ops of small models, one step after another, and fits what they cost (parallel/planner/op_prices.h).
 *
 * The first models differ in their widths, in the length of their sequences and in the size of their heads, so that
 * what an op takes per flop, per byte and per sum can be told apart. The others have what these lack: layer norms,
 * GELU, experts. All have two layers: a few seconds are enough for all.
 */
#include <string.h>

#include "cli/measure/bench.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/math/stats.h"
#include "core/os/file.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/self.h"
#include "trainer/job/setup.h"

/* What the models add to the default configuration, besides two layers. */
static const char *const models[] = {
    "model.name=llama3 model.dim=256 model.n_heads=8 model.n_kv_heads=4 model.ffn_dim=768 training.seq_len=256 "
    "training.local_batch_size=4 training.global_batch_size=4",
    "model.name=llama3 model.dim=512 model.n_heads=8 model.n_kv_heads=8 model.ffn_dim=1536 training.seq_len=1024 "
    "training.local_batch_size=1 training.global_batch_size=1",
    "model.name=llama3 model.dim=256 model.n_heads=16 model.n_kv_heads=8 model.ffn_dim=768 training.seq_len=1024 "
    "training.local_batch_size=1 training.global_batch_size=1",
    "model.name=gpt2 model.flavor=debugmodel training.seq_len=512 training.local_batch_size=2 "
    "training.global_batch_size=2",
    "model.name=mixtral model.flavor=debugmodel training.seq_len=512 training.local_batch_size=2 "
    "training.global_batch_size=2",
    "model.name=mixtral model.flavor=debugmodel training.seq_len=128 training.local_batch_size=2 "
    "training.global_batch_size=2",
};
enum { N_MODELS = sizeof models / sizeof *models, N_FIRST = 3 };

/* keys: of a model, with blanks between them. */
static int load_config(const struct tt_bench *b, const char *keys, enum tt_dtype dtype, struct tt_config **ret_cfg)
{
    enum { MOST = 16 };
    char *all = tt_format("%s model.n_layers=2 training.mixed_precision_param=%s parallelism.threads_per_rank=%d", keys,
                          tt_op_price_dtype(dtype), b->threads),
         *rest = NULL;
    const char *args[MOST];
    struct tt_config *cfg = NULL;
    int n = 0, rc = 0;

    for (char *key = strtok_r(all, " ", &rest); key && n < MOST; key = strtok_r(NULL, " ", &rest))
        args[n++] = key;
    TT_TRY(tt_config_new(&cfg));
    TT_TRY(tt_config_load(cfg, 0, NULL, n, args));
    *ret_cfg = cfg;
    cfg = NULL;
out:
    tt_config_free(cfg);
    tt_free(all);
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
    int of_first; /* of the first models */
};

static bool first_have(const struct samples *samples, const char *op)
{
    for (int i = 0; i < samples->of_first; i++)
        if (strcmp(samples->of[i].op, op) == 0)
            return true;
    return false;
}

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

        if (first_have(samples, tt_instr_op_name(program, instr)))
            continue;
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

    for (int m = 0; m < N_MODELS; m++) {
        if (m == N_FIRST)
            samples.of_first = samples.n;
        for (int d = 0; d < N_DTYPES; d++) {
            struct tt_config *cfg = NULL;
            int failed = load_config(b, models[m], dtypes[d], &cfg);

            TT_TRY(tt_comm_barrier(comm)); /* all ranks are busy at once, as in training */
            if (failed == 0)
                failed = time_model(b, self, cfg, seconds / (N_MODELS * N_DTYPES), &samples);
            tt_config_free(cfg);
            TT_TRY(tt_comm_agree(comm, failed));
            tt_progress("ops", m * N_DTYPES + d + 1, N_MODELS * N_DTYPES);
        }
    }
    TT_TRY(slowest(comm, &samples));
    tt_op_prices_fit(samples.of, samples.n, &b->ops);
out:
    tt_free(samples.of);
    tt_comm_free(self);
    return rc;
}
