/* SPDX-License-Identifier: MIT
 *
 * What `titan bench` measures of the machine: matrix products, memory, collectives, storage, the step of a model, ops.
 */
#include "cli/measure/bench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <unistd.h>

#include "cli/cli.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/comm/comm.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/math/rng.h"
#include "core/math/stats.h"
#include "core/os/file.h"
#include "core/os/machine.h"
#include "core/program/instr/instr.h"
#include "trainer/job/facts.h"
#include "trainer/job/job.h"
#include "trainer/job/setup.h"
#include "trainer/step/peak.h"
#include "trainer/step/step.h"

/* --- repetitions --- */

/* The times of all repetitions of a measurement, each on the slowest rank. */
struct repeats {
    double secs[200];
    int n;
};

/* Calls fn for about `seconds`, on all ranks at once. Collective. */
static int repeat(const struct tt_bench *b, struct tt_comm *comm, double seconds, void (*fn)(void *), void *arg,
                  struct repeats *ret_repeats)
{
    enum { MOST = 200 };
    struct repeats r = {.n = 0};
    double spent = 0.0;
    int rc = 0;

    if (b->fewest > 1)
        fn(arg); /* faults in pages and wakes threads */
    while (r.n < b->fewest || (r.n < MOST && spent < seconds)) {
        double sec;

        TT_TRY(tt_comm_barrier(comm));
        sec = tt_clock_sec();
        fn(arg);
        sec = tt_clock_sec() - sec;
        TT_TRY(tt_comm_max_f64(comm, &sec, 1)); /* so that all ranks stop together */
        r.secs[r.n++] = sec;
        spent += sec;
    }
    *ret_repeats = r;
out:
    return rc;
}

static double best(const struct repeats *r)
{
    double least = INFINITY;

    for (int i = 0; i < r->n; i++)
        least = fmin(least, r->secs[i]);
    return least;
}

/* --- matrix products --- */

struct product {
    struct tt_team *team;
    struct tt_matmul matmul;
};

static void run_product(void *arg)
{
    struct product *p = arg;

    tt_matmul(p->team, &p->matmul);
}

static float *some_numbers(int64_t n)
{
    float *x = tt_calloc((size_t)n, sizeof *x);

    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i % 7) * 0.25F - 0.75F;
    return x;
}

/* The same product in bfloat16, as a layer computes it; the result goes to the memory of c. */
static struct tt_matmul bf16_product(const struct tt_matmul *p, int threads)
{
    tt_bf16 *a = tt_calloc((size_t)(p->m * p->k), sizeof *a), *b = tt_calloc((size_t)(p->n * p->k), sizeof *b);
    struct tt_matmul bf16 = *p;

    tt_kernels()->bf16_round(a, p->a, p->m * p->k);
    tt_kernels()->bf16_round(b, p->b, p->n * p->k);
    bf16.bf16 = bf16.c_bf16 = true;
    bf16.a = a;
    bf16.b = b;
    bf16.scratch = tt_calloc((size_t)(threads * tt_matmul_scratch_floats(&bf16)), sizeof(float));
    return bf16;
}

static int time_product(struct tt_bench *b, struct tt_comm *comm, const int64_t shape[3], int threads, double seconds)
{
    int64_t m = shape[0], n = shape[1], k = shape[2];
    float *a = some_numbers(m * k), *w = some_numbers(k * n), *c = some_numbers(m * n);
    struct product p = {
        .matmul = {.trans_b = true, .m = m, .n = n, .k = k, .a = a, .b = w, .c = c, .lda = k, .ldb = k, .ldc = n}};
    struct product bf16 = {.matmul = bf16_product(&p.matmul, threads)};
    struct tt_bench_sgemm row = {.m = m, .n = n, .k = k, .threads = threads};
    struct repeats r;
    int rc = 0;

    p.matmul.scratch = tt_calloc((size_t)(threads * tt_matmul_scratch_floats(&p.matmul)), sizeof(float));
    TT_TRY(tt_comm_agree(comm, tt_team_new(threads, &p.team)));
    TT_TRY(tt_comm_agree(comm, tt_blas_check_room(threads)));
    bf16.team = p.team;
    TT_TRY(repeat(b, comm, seconds / 2.0, run_product, &p, &r));
    row.flops_per_sec = 2.0 * (double)m * (double)n * (double)k / best(&r);
    TT_TRY(repeat(b, comm, seconds / 2.0, run_product, &bf16, &r));
    row.bf16_flops_per_sec = 2.0 * (double)m * (double)n * (double)k / best(&r);
    TT_PUSH(b->sgemm, b->n_sgemm, b->cap_sgemm) = row;
    if (threads == b->threads) {
        b->sgemm_flops = fmax(b->sgemm_flops, row.flops_per_sec);
        b->bgemm_flops = fmax(b->bgemm_flops, row.bf16_flops_per_sec);
    }
out:
    tt_team_free(p.team);
    tt_free((void *)bf16.matmul.a);
    tt_free((void *)bf16.matmul.b);
    tt_free(bf16.matmul.scratch);
    tt_free(p.matmul.scratch);
    tt_free(a);
    tt_free(w);
    tt_free(c);
    return rc;
}

/* Square products, as in other BLAS benchmarks, and the layers of a small and of a medium model. */
static int measure_sgemm(struct tt_bench *b, struct tt_comm *comm, double seconds)
{
    static const int64_t shapes[][3] = {{512, 512, 512},  {1024, 1024, 1024}, {2048, 256, 256}, {2048, 768, 256},
                                        {2048, 768, 768}, {2048, 2048, 768},  {2048, 768, 2048}};
    enum { N = sizeof shapes / sizeof *shapes };
    int counts = (int)ceil(log2(b->threads)) + 1, rc = 0; /* 1, 2, 4, ... and all threads */

    for (int c = 0; c < counts; c++)
        for (int s = 0; s < N; s++)
            TT_TRY(time_product(b, comm, shapes[s], 1 << c < b->threads ? 1 << c : b->threads, seconds / counts / N));
out:
    return rc;
}

/* --- memory --- */

struct stream {
    struct tt_team *team;
    void (*tile)(void *arg, int64_t tile, int worker);
    float *y, *a, *b;
    int64_t n; /* of a tile */
};

static void copy_tile(void *arg, int64_t tile, int worker)
{
    const struct stream *s = arg;

    (void)worker;
    memcpy(s->y + tile * s->n, s->a + tile * s->n, (size_t)s->n * sizeof(float));
}

static void add_tile(void *arg, int64_t tile, int worker)
{
    const struct stream *s = arg;

    (void)worker;
    tt_kernels()->add(s->y + tile * s->n, s->a + tile * s->n, s->b + tile * s->n, s->n);
}

enum { STREAM_TILES = 64, STREAM_TILE = 1 << 18 }; /* 64 MiB per array */

static void run_stream(void *arg)
{
    struct stream *s = arg;

    tt_team_run(s->team, STREAM_TILES, s->tile, s);
}

static int time_streams(const struct tt_bench *b, struct tt_comm *comm, int threads, double seconds,
                        struct tt_bench_memory *ret_memory)
{
    static const int64_t n = (int64_t)STREAM_TILES * STREAM_TILE;
    struct stream s = {.y = some_numbers(n), .a = some_numbers(n), .b = some_numbers(n), .n = STREAM_TILE};
    struct repeats r;
    int rc = 0;

    ret_memory->threads = threads;
    TT_TRY(tt_comm_agree(comm, tt_team_new(threads, &s.team)));
    s.tile = copy_tile;
    TT_TRY(repeat(b, comm, seconds / 2.0, run_stream, &s, &r));
    ret_memory->copy = 2.0 * sizeof(float) * (double)n / tt_median(r.secs, r.n);
    s.tile = add_tile;
    TT_TRY(repeat(b, comm, seconds / 2.0, run_stream, &s, &r));
    ret_memory->add = 3.0 * sizeof(float) * (double)n / tt_median(r.secs, r.n);
out:
    tt_team_free(s.team);
    tt_free(s.y);
    tt_free(s.a);
    tt_free(s.b);
    return rc;
}

static int measure_memory(struct tt_bench *b, struct tt_comm *comm, double seconds)
{
    int rc = 0;

    TT_TRY(time_streams(b, comm, 1, seconds / 2.0, &b->memory[0]));
    b->memory[1] = b->memory[0];
    if (b->threads > 1)
        TT_TRY(time_streams(b, comm, b->threads, seconds / 2.0, &b->memory[1]));
out:
    return rc;
}

/* --- collectives --- */

static int time_message(struct tt_bench *b, struct tt_comm *comm)
{
    enum { ROUNDS = 101 };
    double secs[ROUNDS];
    int rc = 0;

    for (int i = 0; i < ROUNDS; i++) {
        secs[i] = tt_clock_sec();
        TT_TRY(tt_comm_barrier(comm));
        secs[i] = tt_clock_sec() - secs[i];
    }
    b->message_sec = tt_median(secs, ROUNDS) / (2.0 * ceil(log2(comm->size))); /* a barrier goes up and down a tree */
    TT_TRY(tt_comm_max_f64(comm, &b->message_sec, 1));
out:
    return rc;
}

static int measure_collectives(struct tt_bench *b, struct tt_comm *comm, double seconds)
{
    static const int64_t sizes[] = {16 << 10, 256 << 10, 4 << 20, 64 << 20};
    enum { N_SIZES = sizeof sizes / sizeof *sizes };
    int rc = 0;

    if (comm->size == 1)
        return 0;
    TT_TRY(time_message(b, comm));
    for (int s = 0; s < N_SIZES; s++)
        for (int kind = 0; kind < TT_MEASURED_KINDS; kind++) {
            struct tt_bench_collective row = {.kind = (enum tt_measured)kind, .bytes = sizes[s]};
            /* estimates the time of a round with its cache flush, the same on all ranks */
            double round_sec = 0.03 + (double)sizes[s] * 1e-9;
            int rounds = (int)(seconds / (N_SIZES * TT_MEASURED_KINDS) / round_sec);

            TT_TRY(tt_measure(comm, row.kind, row.bytes,
                              rounds < b->fewest ? b->fewest
                              : rounds > 30      ? 30
                                                 : rounds,
                              &row.sec));
            TT_PUSH(b->collectives, b->n_collectives, b->cap_collectives) = row;
        }
    TT_TRY(tt_measure_meeting(comm, b->threads, sizes[2], seconds / 4.0, &b->transfer_share, &b->transfer_stretch));
out:
    return rc;
}

/* --- storage --- */

/* The dump folder, or the nearest existing folder above it, which is on the same file system. */
static int storage_folder(const char *dump_folder, char **ret_folder)
{
    char *folder = tt_strdup(dump_folder), *slash;
    bool is_folder = false;
    int rc = 0;

    for (;;) {
        TT_TRY(tt_path_is_folder(folder, &is_folder));
        slash = strrchr(folder, '/');
        if (is_folder || !slash || slash == folder)
            break;
        *slash = 0;
    }
    *ret_folder = tt_strdup(is_folder ? folder : slash ? "/" : ".");
out:
    tt_free(folder);
    return rc;
}

static int time_file(int fd, const char *path, double seconds, double *ret_rate)
{
    enum { PIECE = 8 << 20, MOST_PIECES = 128, ROUNDS = 3 };
    char *piece = tt_calloc(PIECE, 1);
    double rates[ROUNDS];
    int rc = 0;

    memset(piece, 0x5a, PIECE);
    for (int r = 0; r < ROUNDS; r++) {
        double start = tt_clock_sec();
        int64_t written = 0;

        while (written < (int64_t)MOST_PIECES * PIECE && tt_clock_sec() - start < seconds / ROUNDS) {
            TT_TRY(tt_file_pwrite(fd, path, piece, PIECE, written, NULL));
            written += PIECE;
        }
        if (fsync(fd) != 0) {
            rc = tt_fail(TT_EIO, "cannot sync '%s': %s", path, strerror(errno));
            goto out;
        }
        rates[r] = (double)written / (tt_clock_sec() - start);
    }
    *ret_rate = tt_median(rates, ROUNDS);
out:
    tt_free(piece);
    return rc;
}

static int write_storage(struct tt_bench *b, double seconds)
{
    char *path = NULL;
    int fd, rc = 0;

    TT_TRY(storage_folder(b->cfg->job.dump_folder, &b->storage_folder));
    path = tt_format("%s/.titan-bench-XXXXXX", b->storage_folder);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        rc = tt_fail(TT_EIO, "cannot create a file in '%s': %s", b->storage_folder, strerror(errno));
        goto out;
    }
    (void)unlink(path); /* so that no file remains, whatever happens */
    rc = time_file(fd, path, seconds, &b->storage_bytes_per_sec);
    (void)close(fd);
out:
    tt_free(path);
    return rc;
}

static int measure_storage(struct tt_bench *b, struct tt_comm *comm, double seconds)
{
    return tt_comm_agree(comm, comm->rank == 0 ? write_storage(b, seconds) : 0);
}

/* --- the machine --- */

/* Computes the numbers of the cost table (parallel/planner/cost.h): two all-gathers of different sizes give latency and
 * rate. */
static void conclude_machine(struct tt_bench *b)
{
    struct tt_machine *m = &b->machine;
    int n = b->ranks;

    *m = tt_machine_builtin();
    if (b->sgemm_flops > 0.0) /* all threads busy, as in training */
        m->sgemm_flops = b->sgemm_flops / b->threads;
    if (b->bgemm_flops > 0.0)
        m->bgemm_flops = b->bgemm_flops / b->threads;
    if (b->memory[1].add > 0.0)
        m->memory_bytes_per_sec = b->memory[1].add;
    if (b->n_collectives) {
        const struct tt_bench_collective *small = &b->collectives[TT_MEASURE_ALL_GATHER];
        const struct tt_bench_collective *large = small + b->n_collectives - TT_MEASURED_KINDS;

        m->message_sec = b->message_sec;
        m->call_sec = fmax(1e-7, small->sec - (n - 1) * b->message_sec);
        m->transfer_share = b->transfer_share;
        m->transfer_stretch = b->transfer_stretch;
        m->link_bytes_per_sec =
            (double)(large->bytes - small->bytes) * (n - 1) / n / fmax(large->sec - small->sec, 1e-9);
    }
    m->ops = b->ops;
    (void)snprintf(m->name, sizeof m->name, "%.40s, %d x %d threads", tt_cores()->model, b->ranks, b->threads);
}

/*
 * --- a step ---
 *
 * Times a step of a model with the trainer's set-up and engine, on random tokens, so that no vocabulary needs a
 * dataset.
 */

static const double LEARNING_RATE = 1e-5; /* small enough for random tokens */

/* Makes every sequence one document. */
static void fill_batch(struct tt_setup *setup, int64_t step)
{
    int64_t n = setup->job.microbatch_size * setup->cfg->training.seq_len;
    uint64_t vocab = (uint64_t)setup->job.model->dims.vocab_size;
    const struct tt_rng rng = tt_rng_make((uint64_t)setup->cfg->debug.seed, "bench tokens");

    for (int a = 0; a < setup->job.microbatches; a++) {
        uint64_t first = (uint64_t)((step * setup->job.microbatches + a) * (n + 1));
        const struct tt_inputs in = tt_engine_inputs(setup->engine, a);

        for (int64_t i = 0; i < n; i++) {
            in.tokens[i] = (int32_t)(tt_rng_bits(&rng, first + (uint64_t)i) % vocab);
            in.labels[i] = (int32_t)(tt_rng_bits(&rng, first + (uint64_t)i + 1) % vocab);
            if (in.positions)
                in.positions[i] = (int32_t)(i % setup->cfg->training.seq_len);
        }
    }
}

/*
 * One step on random tokens; ret_sec[0] is the slowest rank's time, ret_sec[1] the longest wait. split (may be NULL)
 * gets the parts of this step. Collective over the ranks of the set-up.
 */
static int time_step(struct tt_setup *setup, int64_t number, struct tt_split *split, double ret_sec[2])
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

static int time_steps(struct tt_setup *setup, double seconds, int fewest, struct tt_bench_step *s, double *peak_flops)
{
    enum { MOST = 200, PEAKS = 5 };
    double exposed[MOST], spent = 0.0, sec[2], found = 0.0;
    int rc = 0;

    TT_TRY(time_step(setup, 0, NULL, sec)); /* touches the memory for the first time */
    while (s->n < fewest || (s->n < MOST && spent + sec[0] < seconds)) {
        TT_TRY(time_step(setup, s->n + 1, &s->split, sec));
        exposed[s->n] = sec[1];
        TT_PUSH(s->secs, s->n, s->cap) = sec[0];
        spent += sec[0];
        if (s->n > PEAKS)
            continue;
        /* if the machine was busy during the GEMMs, the measured peak is too low and the mfu too high */
        TT_TRY(
            tt_peak_measure_slowest(setup->comm, tt_engine_team(setup->engine), setup->job.engine.param_dtype, &found));
        *peak_flops = fmax(*peak_flops, found);
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

/* Trains steps of the configured model on random tokens for about `seconds` (collective). Writes nothing. */
static int run_step(struct tt_bench *b, struct tt_comm *comm, double seconds)
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

/*
 * --- ops ---
 *
 * Times the ops of small models, one step after another, and fits what they cost (parallel/planner/cost.h). The first
 * models differ in their widths, in the length of their sequences and in the size of their heads, so that the fit can
 * tell the prices per flop, per byte and per sum apart. The other models contain ops that these lack: layer norms,
 * GELU, experts. Every model has two layers, so a few seconds suffice for all of them.
 */

/* Settings of each model, in addition to the default configuration and two layers. */
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

/* keys: settings of a model, separated by blanks. */
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

/* Runs steps for about `seconds`. *ret_secs gets the median time of each instruction; the caller frees it. */
static int time_instrs(struct tt_setup *setup, double seconds, int fewest, double **ret_secs)
{
    enum { MOST = 100 };
    const struct tt_program *program = tt_engine_program(setup->engine);
    double *all = tt_calloc((size_t)program->n_instrs * MOST, sizeof *all), spent = 0.0, sec[2];
    int steps = 0, rc = 0;

    TT_TRY(time_step(setup, 0, NULL, sec)); /* touches memory for the first time */
    while (steps < fewest || (steps < MOST && spent + sec[0] < seconds)) {
        const struct tt_span *spans = tt_executor_spans(tt_engine_executor(setup->engine));

        TT_TRY(time_step(setup, steps + 1, NULL, sec));
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
    int of_first; /* samples of the first models */
};

static bool first_have(const struct samples *samples, const char *op)
{
    for (int i = 0; i < samples->of_first; i++)
        if (strcmp(samples->of[i].op, op) == 0)
            return true;
    return false;
}

/* Times one model on this rank alone. */
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
            (struct tt_op_sample){.op = tt_instr_op_name(program, instr), /* a static text */
                                  .dtype = program->param_dtype,
                                  .work = tt_instr_cost(program, instr).work,
                                  .sec = secs[i] * b->threads};
    }
out:
    tt_free(secs);
    tt_setup_release(&setup);
    return rc;
}

/*
 * Times the ops of small models for about `seconds` and fits their prices into bench->ops. Every rank trains alone, at
 * the same time as the others (collective).
 */
static int run_ops(struct tt_bench *b, struct tt_comm *comm, double seconds)
{
    static const enum tt_dtype dtypes[] = {TT_F32, TT_BF16};
    enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };
    struct tt_comm *self = tt_comm_self_new();
    struct samples samples = {.n = 0};
    double *secs = NULL;
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
    secs = tt_calloc((size_t)samples.n + 1, sizeof *secs);
    for (int i = 0; i < samples.n; i++)
        secs[i] = samples.of[i].sec;
    /* all ranks have the same samples; the time of each is the slowest rank's */
    TT_TRY(tt_comm_max_f64(comm, secs, samples.n));
    for (int i = 0; i < samples.n; i++)
        samples.of[i].sec = secs[i];
    tt_op_prices_fit(samples.of, samples.n, &b->ops);
out:
    tt_free(secs);
    tt_free(samples.of);
    tt_comm_free(self);
    return rc;
}

/* --- the whole benchmark --- */

static int prepare(struct tt_bench *b, struct tt_comm *comm)
{
    struct tt_config *cfg = NULL;
    struct tt_setup setup = {.cfg = NULL};
    int local_rank, rc = 0;

    TT_TRY(tt_comm_agree(comm, tt_cli_load_config("bench", b->args, &b->cfg)));
    TT_TRY(tt_facts_agree_on_config(comm, b->cfg, b->args));
    comm->timeout_sec = (double)b->cfg->comm.init_timeout_seconds;
    comm->waiting_for = "benchmark";
    tt_comm_node(comm, &local_rank, &b->local_size);
    b->ranks = comm->size;
    b->threads = tt_job_threads(b->cfg, b->local_size);
    if (b->wanted[TT_BENCH_STEP]) { /* checks its model, mesh and memory before minutes go into the rest */
        TT_TRY(tt_comm_agree(comm, tt_cli_load_config("bench", b->args, &cfg))); /* making the job fills in keys */
        TT_TRY(tt_setup_init(cfg, comm, false, &setup));
    }
    if (b->wanted[TT_BENCH_COLLECTIVES] && comm->size == 1 && tt_args_has(b->args, "only"))
        tt_note("bench: one rank has no collectives to measure; mpirun -n 2 titan bench starts two");
out:
    tt_setup_release(&setup);
    tt_config_free(cfg);
    return rc;
}

/* The load at the start, or since then. */
static void note_others(struct tt_bench *b, const struct tt_load *before)
{
    const struct tt_load now = tt_load_read(NULL);
    struct tt_text text = {0};

    tt_load_text(before, before, 0, &text);
    if (!text.size)
        tt_load_text(before, &now, b->local_size * b->threads, &text);
    b->others = text.text;
}

int tt_bench_run(struct tt_bench *b, struct tt_comm *comm)
{
    static const struct {
        double share; /* share of the time */
        int (*measure)(struct tt_bench *b, struct tt_comm *comm, double seconds);
    } section[TT_BENCH_SECTIONS] = {[TT_BENCH_SGEMM] = {0.12, measure_sgemm},
                                    [TT_BENCH_MEMORY] = {0.05, measure_memory},
                                    [TT_BENCH_STEP] = {0.28, run_step},
                                    [TT_BENCH_OPS] = {0.15, run_ops},
                                    [TT_BENCH_COLLECTIVES] = {0.05, measure_collectives},
                                    [TT_BENCH_STORAGE] = {0.05, measure_storage}};
    const struct tt_load before = tt_load_read(NULL);
    double sum = 0.0;
    int rc = 0;

    TT_TRY(prepare(b, comm));
    for (int s = 0; s < TT_BENCH_SECTIONS; s++)
        sum += b->wanted[s] ? section[s].share : 0.0;
    for (int s = 0; s < TT_BENCH_SECTIONS; s++)
        if (b->wanted[s] || (s == TT_BENCH_SGEMM && b->wanted[TT_BENCH_STEP])) /* the mfu of a step needs the peak */
            TT_TRY(section[s].measure(b, comm, b->seconds / sum * section[s].share));
    note_others(b, &before);
    conclude_machine(b);
out:
    return rc;
}

void tt_bench_release(struct tt_bench *b)
{
    tt_config_free(b->cfg);
    tt_free(b->sgemm);
    tt_free(b->step.secs);
    tt_free(b->collectives);
    tt_free(b->storage_folder);
    tt_free(b->others);
}
