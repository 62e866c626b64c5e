/* SPDX-License-Identifier: MIT
 *
 * From configuration to a trainer that is ready to run: first everything that can be known without touching anything
 * (plan), then folder, data, memory and weights (open). Ranks agree after each stage, before they communicate about it.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "cli/run/folder.h"
#include "cli/run/peak.h"
#include "cli/run/screen.h"
#include "cli/train/facts.h"
#include "cli/train/trainer.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/models/model_json.h"
#include "core/os/file.h"

enum { PEAKS = 3 }; /* at the start, and beside the first two steps */

/* --- plan --- */

/* What a plan depends on must be the same on all ranks: the smallest limit counts, the threads must agree. */
static int agree_on_limits(struct tt_trainer *t)
{
    double most[3] = {-(double)tt_job_memory_limit(t->cfg, t->local_size), t->threads, -t->threads};
    int rc = 0;

    TT_TRY(tt_comm_max_f64(t->comm, most, 3));
    t->memory_limit = (int64_t)-most[0];
    if (t->cfg->parallelism.fsdp_engine == TT_ENGINE_PLANNED && most[1] + most[2] > 0.0)
        rc = tt_fail(TT_EUSAGE,
                     "the planned engine needs the same number of threads on every rank, found %.0f to %.0f\nhelp: set "
                     "parallelism.threads_per_rank",
                     -most[2], most[1]);
out:
    return rc;
}

/* "parallelism.memory_limit allows 1 GiB", or what the machine has, where nobody set a limit. */
static void say_limit(const struct tt_trainer *t, struct tt_text *out)
{
    char limit[32];

    tt_text_bytes(limit, sizeof limit, (double)t->memory_limit);
    if (t->cfg->parallelism.memory_limit != TT_NULL_INT)
        tt_text_add(out, "parallelism.memory_limit allows %s", limit);
    else
        tt_text_add(out, "this machine allows %s (0.9 of the memory that it or its container has, for %d rank%s)",
                    limit, t->local_size, t->local_size == 1 ? "" : "s");
}

/* What would need less here; more ranks only where each of them would have as much as now. */
static void say_remedies(const struct tt_trainer *t, struct tt_text *out)
{
    const struct tt_config *cfg = t->cfg;
    bool keeps =
        t->mesh.size[TT_MESH_DP_SHARD] > 1 && t->job.engine.sharding.reshard != TT_RESHARD_AFTER_FORWARD_ALWAYS;

    tt_text_add(out, "\nhelp: use ");
    if (cfg->training.local_batch_size > 1)
        tt_text_add(out, "a training.local_batch_size smaller than %" PRId64 ", ", cfg->training.local_batch_size);
    if (cfg->activation_checkpoint.mode != TT_AC_FULL)
        tt_text_add(out, "activation_checkpoint.mode=full, ");
    if (keeps)
        tt_text_add(out, "parallelism.fsdp_reshard_after_forward=always, ");
    tt_text_add(out,
                "a training.seq_len smaller than %" PRId64 ", or more ranks%s; `titan estimate` prints what each needs",
                cfg->training.seq_len, cfg->parallelism.memory_limit == TT_NULL_INT ? " on more hosts" : "");
}

static int check_memory(const struct tt_trainer *t)
{
    int64_t total = t->memory.total + t->job.staging_bytes, start = tt_engine_init_bytes(t->engine, t->job.engine.init);
    struct tt_text limit = {0}, remedies = {0};
    char need[32], less[32];
    int rc = 0;

    if (total <= t->memory_limit && start <= t->memory_limit)
        return 0;
    say_limit(t, &limit);
    say_remedies(t, &remedies);
    tt_text_bytes(need, sizeof need, (double)total);
    if (total <= t->memory_limit)
        rc =
            tt_fail(TT_EFIT,
                    "a rank needs %s to initialise the weights, %s\nhelp: use training.init=meta, which gives the same "
                    "weights and needs %s",
                    tt_text_bytes(need, sizeof need, (double)start), limit.text,
                    tt_text_bytes(less, sizeof less, (double)tt_engine_init_bytes(t->engine, TT_INIT_SHARDS)));
    else if (t->memory.total <= t->memory_limit)
        rc = tt_fail(
            TT_EFIT,
            "a rank needs %s with the staging copy of checkpoints, %s\nhelp: use checkpoint.async_mode=disabled, "
            "which needs %s",
            need, limit.text, tt_text_bytes(less, sizeof less, (double)t->memory.total));
    else
        rc = tt_fail(TT_EFIT, "a rank needs %s, %s%s", need, limit.text, remedies.text);
    tt_text_release(&limit);
    tt_text_release(&remedies);
    return rc;
}

/* What the configuration means on these ranks. */
static int prepare(struct tt_trainer *t)
{
    int rc = 0;

    TT_TRY(tt_job_init(t->cfg, t->comm->size, t->threads, t->memory_limit, &t->job));
    t->model = t->job.model;
    t->mesh = t->job.mesh;
    t->microbatches = t->job.microbatches;
    t->global_batch = t->job.global_batch;
    t->machine = t->job.engine.machine;
out:
    return rc;
}

/* Dimensions may come from config.json of a folder that each host has a copy of. */
static int agree_on_model(const struct tt_trainer *t)
{
    char *text = tt_model_json_text(t->model);
    const struct tt_fact fact = {"the model", text};
    struct tt_text difference = {0};
    int rc = 0;

    for (char *p = text; *p; p++)
        *p = *p == '\n' ? ' ' : *p;
    TT_TRY(tt_facts_compare(t->comm, &fact, 1, &difference));
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

static int make_engine(struct tt_trainer *t)
{
    int rc = 0;

    tt_engine_free(t->engine);
    t->engine = NULL;
    TT_TRY(tt_job_engine(t->cfg, &t->job, t->comm, t->comm->rank, &t->engine));
    if (t->cfg->debug.check_plan)
        TT_TRY(tt_program_check(tt_engine_program(t->engine)));
    t->memory = tt_engine_memory(t->engine);
out:
    return rc;
}

/* The engine with the gradient sync that fits; afterwards the configuration says which it is. Collective. */
static int plan(struct tt_trainer *t)
{
    struct tt_engine_options *options = &t->job.engine;
    bool is_auto = t->cfg->training.gradient_sync == TT_SYNC_AUTO;
    enum tt_sync_choice sync = TT_SYNC_EVERY_MICROBATCH;
    double too_large;
    int rc = 0;

    TT_TRY(tt_trainer_sync_first_choice(t, &sync));
    options->reduce_last = sync == TT_SYNC_LAST_MICROBATCH;
    TT_TRY(tt_comm_agree(t->comm, make_engine(t)));
    too_large = t->memory.total + t->job.staging_bytes > t->memory_limit;
    TT_TRY(tt_comm_max_f64(t->comm, &too_large, 1));
    if (is_auto && options->reduce_last && too_large > 0.0) {
        options->reduce_last = false;
        TT_TRY(tt_comm_agree(t->comm, make_engine(t)));
    }
    t->cfg->training.gradient_sync = options->reduce_last ? TT_SYNC_LAST_MICROBATCH : TT_SYNC_EVERY_MICROBATCH;
    TT_TRY(tt_comm_agree(t->comm, check_memory(t)));
out:
    return rc;
}

int tt_trainer_plan(struct tt_config *cfg, struct tt_comm *comm, const struct tt_trainer_options *options,
                    struct tt_trainer **ret_trainer)
{
    struct tt_trainer *t = tt_calloc(1, sizeof *t);
    int rc = 0;

    *t = (struct tt_trainer){
        .cfg = cfg, .comm = comm, .options = *options, .resumed_from = -1, .saved_step = -1, .lock = TT_LOCK_NONE};
    comm->timeout_sec = (double)cfg->comm.init_timeout_seconds;
    comm->waiting_for = "setup";
    TT_TRY(tt_comm_node(comm, &t->local_rank, &t->local_size));
    t->threads = tt_job_threads(cfg, t->local_size);
    TT_TRY(agree_on_limits(t));
    TT_TRY(tt_trainer_kernels_compare(t));
    TT_TRY(tt_comm_agree(comm, prepare(t)));
    TT_TRY(agree_on_model(t));
    TT_TRY(plan(t));
    *ret_trainer = t;
    t = NULL;
out:
    if (t)
        tt_trainer_close(t, -1);
    return rc;
}

/* --- open --- */

/*
 * A data file or tokenizer that is not there: the message names the file, this adds the key, where it was set, and what to
 * do. Other faults of data lie in the data.
 */
static int say_key(const struct tt_config *cfg, int rc, const char *key, const char *path, const char *remedy)
{
    const char *where = tt_config_where(cfg, key);
    char *message;

    if (rc >= 0 || !path || !strstr(tt_error_message(), path) || strstr(tt_error_message(), key) ||
        !strstr(tt_error_message(), "no such file"))
        return rc;
    message = tt_strdup(tt_error_message());
    rc = tt_fail(rc, "%s%s%s: %s%s%s", strstr(where, key) ? "" : where, strstr(where, key) ? "" : ": ",
                 strstr(where, key) ? where : key, message,
                 strstr(message, "\nhelp: ") ? "" : "\nhelp: ", strstr(message, "\nhelp: ") ? "" : remedy);
    tt_free(message);
    return rc;
}

static int open_one(struct tt_trainer *t, const struct tt_train_data_options *o, const char *key,
                    struct tt_train_data *ret_data)
{
    int rc = tt_train_data_open(t->comm, o, ret_data);

    rc = say_key(t->cfg, rc, key, o->path, "titan downloads nothing; name the file or folder that holds the data");
    return say_key(t->cfg, rc, "model.hf_assets_path", o->tokenizer_folder,
                   "name the folder that holds tokenizer.json, or leave the key out for the built-in tokenizer");
}

static int open_data(struct tt_trainer *t)
{
    const struct tt_config *cfg = t->cfg;
    char *cache = tt_run_folder_cache(cfg);
    struct tt_train_data_options o = {.dataset = cfg->training.dataset,
                                      .path = cfg->training.dataset_path,
                                      .text_field = cfg->training.text_field,
                                      .tokenizer_folder = cfg->model.hf_assets_path,
                                      .cache_folder = cache,
                                      .vocab_size = t->model->dims.vocab_size,
                                      .seq_len = cfg->training.seq_len,
                                      .shuffle = cfg->dataloader.shuffle,
                                      .repeat = cfg->dataloader.repeat,
                                      .seed = (uint64_t)cfg->dataloader.seed};
    int rc = 0;

    TT_TRY(open_one(t, &o, "training.dataset_path", &t->data));
    if (cfg->validation.enable) {
        o.dataset = cfg->validation.dataset;
        o.path = cfg->validation.dataset_path;
        o.seq_len = cfg->validation.seq_len;
        o.shuffle = false;
        o.repeat = false;
        TT_TRY(open_one(t, &o, "validation.dataset_path", &t->validation));
    }
out:
    tt_free(cache);
    return rc;
}

/* A name for this process's run that no other has, the same on all ranks. */
static int make_run_id(struct tt_trainer *t)
{
    char host[256] = "";
    double now = tt_clock_wall_sec();
    uint64_t hash;

    (void)gethostname(host, sizeof host - 1);
    hash = tt_hash64(host, strlen(host), (uint64_t)getpid());
    hash = tt_hash64(&now, sizeof now, hash);
    (void)snprintf(t->run_id, sizeof t->run_id, "%016" PRIx64, hash);
    return tt_comm_broadcast(t->comm, t->run_id, sizeof t->run_id, 0);
}

/* The cost table decided what a planned step looks like. */
static void add_machine(const struct tt_trainer *t, json_t *o)
{
    char hash[20];

    if (t->cfg->parallelism.fsdp_engine != TT_ENGINE_PLANNED)
        return;
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, tt_machine_hash(&t->machine));
    (void)json_object_set_new(o, "machine", json_string(t->machine.name));
    (void)json_object_set_new(o, "machine_hash", json_string(hash));
}

static json_t *run_record(const struct tt_trainer *t)
{
    json_t *o = json_object(), *argv = json_array();

    for (int i = 0; i < t->options.argc; i++)
        (void)json_array_append_new(argv, json_string(t->options.argv[i]));
    (void)json_object_set_new(o, "type", json_string("run"));
    (void)json_object_set_new(o, "schema", json_integer(1));
    (void)json_object_set_new(o, "version", json_string(TITAN_VERSION));
    (void)json_object_set_new(o, "run_id", json_string(t->run_id));
    (void)json_object_set_new(o, "world", json_integer(t->comm->size));
    (void)json_object_set_new(o, "threads_per_rank", json_integer(t->threads));
    (void)json_object_set_new(o, "argv", argv);
    (void)json_object_set_new(o, "parameters", json_integer(tt_model_n_elements(t->model)));
    (void)json_object_set_new(o, "weights", json_string(t->weights_from));
    (void)json_object_set_new(o, "layout_exact", json_boolean(tt_trainer_layout_exact(t)));
    (void)json_object_set_new(o, "kernels", tt_trainer_kernels_json(t));
    (void)json_object_set_new(o, "peak_flops", tt_json_number(t->metrics.peak_flops));
    (void)json_object_set_new(o, "memory_predicted_bytes", json_integer(t->memory.total + t->job.staging_bytes));
    (void)json_object_set_new(o, "staging_bytes", json_integer(t->job.staging_bytes));
    add_machine(t, o);
    if (t->resumed_from >= 0)
        (void)json_object_set_new(o, "resumed_from", json_integer(t->resumed_from));
    if (t->changed)
        (void)json_object_set(o, "changed", t->changed);
    (void)json_object_set_new(o, "config", tt_config_to_json(t->cfg, false));
    return o;
}

int tt_trainer_measure_peak(struct tt_trainer *t)
{
    const char *before = t->comm->waiting_for;
    int rc = 0;

    if (!isnan(t->cfg->metrics.peak_flops)) {
        t->metrics.peak_flops = t->cfg->metrics.peak_flops;
        return 0;
    }
    if (t->peaks == PEAKS)
        return 0;
    t->comm->waiting_for = "measurement of the peak";
    TT_TRY(tt_comm_barrier(t->comm));
    t->comm->waiting_for = before;
    t->metrics.peak_flops = fmax(t->metrics.peak_flops, tt_peak_measure(tt_engine_team(t->engine)));
    t->peaks++;
out:
    return rc;
}

static int open_metrics(struct tt_trainer *t)
{
    const char *no_color = getenv("NO_COLOR"); // NOLINT(concurrency-mt-unsafe): before the team has work
    struct tt_metrics *m = &t->metrics;
    int rc = 0;

    if (t->comm->rank != 0)
        return 0;
    m->json_stdout = t->options.json;
    /* mpirun gives its ranks a pseudo terminal as stdout, whatever it writes to itself; stderr tells the truth */
    m->color = isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1 && !(no_color && no_color[0]) &&
               !t->cfg->metrics.disable_color_printing;
    m->columns = tt_screen_columns();
    m->flops_per_token = tt_model_flops_per_token(t->model, t->cfg->training.seq_len);
    m->flops_per_token_causal = tt_model_flops_per_token_causal(t->model, t->cfg->training.seq_len);
    m->memory_total_bytes = tt_metrics_machine_bytes();
    if (t->cfg->metrics.enable_jsonl)
        TT_TRY(tt_run_folder_metrics(t->cfg, &m->records));
    if (t->cfg->metrics.enable_tensorboard && tt_run_folder_board(t->cfg, &m->board) < 0)
        tt_warn("training goes on without TensorBoard: %s", tt_error_message());
    if (t->at.step < t->cfg->training.steps) /* run.yaml is of the run that did the steps */
        TT_TRY(tt_run_folder_record(t->cfg, t->options.argc, t->options.argv, t->comm->size, t->threads, &t->machine));
    tt_metrics_record(m, run_record(t));
    tt_trainer_banner(t);
out:
    return rc;
}

int tt_trainer_open(struct tt_trainer *t)
{
    bool resumes = false;
    int rc = 0;

    if (t->comm->rank == 0 && (rc = tt_trainer_can_resume(t, &resumes)) == 0)
        rc = tt_run_folder_take(t->cfg, resumes, t->options.overwrite, &t->lock);
    TT_TRY(tt_comm_agree(t->comm, rc));
    TT_TRY(make_run_id(t));
    TT_TRY(open_data(t));
    rc = tt_engine_allocate(t->engine);
    TT_TRY(tt_comm_agree(t->comm, rc));
    TT_TRY(tt_trainer_load(t));
    TT_TRY(tt_trainer_check_space(t));
    TT_TRY(tt_trainer_measure_peak(t));
    t->saved_step = t->resumed_from;
    t->predicted_step_sec = tt_trainer_predict_step_sec(t);
    rc = open_metrics(t);
    TT_TRY(tt_comm_agree(t->comm, rc));
    t->comm->timeout_sec = (double)t->cfg->comm.train_timeout_seconds;
out:
    return rc;
}

int tt_trainer_open_trial(struct tt_trainer *t)
{
    int rc = 0;

    TT_TRY(open_data(t));
    rc = tt_engine_allocate(t->engine);
    TT_TRY(tt_comm_agree(t->comm, rc));
    TT_TRY(tt_engine_init_params(t->engine, (uint64_t)t->cfg->debug.seed));
    t->comm->timeout_sec = (double)t->cfg->comm.train_timeout_seconds;
out:
    return rc;
}

void tt_trainer_close(struct tt_trainer *t, int code)
{
    if (!t)
        return;
    if (t->metrics.records) {
        json_t *end = json_object();

        (void)json_object_set_new(end, "type", json_string("end"));
        (void)json_object_set_new(end, "step", json_integer(t->at.step));
        (void)json_object_set_new(end, "exit", json_integer(code));
        tt_metrics_record(&t->metrics, end);
        tt_records_close(t->metrics.records);
    }
    tt_tensorboard_close(t->metrics.board);
    json_decref(t->changed);
    json_decref(t->line);
    tt_trainer_save_close(t);
    tt_free(t->kernels_differ);
    tt_trainer_view_release(&t->view);
    tt_train_data_release(&t->data);
    tt_train_data_release(&t->validation);
    tt_engine_free(t->engine);
    tt_job_release(&t->job);
    tt_lock_release(&t->lock);
    tt_free(t);
}
