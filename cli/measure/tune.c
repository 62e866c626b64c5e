/* SPDX-License-Identifier: MIT
 *
 * The trials of `titan tune`. A trial is the trainer itself without folder and checkpoints, so that the timed code is
 * the code that trains.
 */
#include "cli/measure/tune.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/math/stats.h"
#include "core/os/file.h"
#include "trainer/data/data.h"
#include "trainer/job/facts.h"
#include "trainer/job/predict.h"
#include "trainer/job/setup.h"
#include "trainer/step/peak.h"
#include "trainer/step/step.h"

/* --- one trial --- */

static int load(const struct tt_tune *tune, const struct tt_tune_row *row, struct tt_config **ret_cfg, bool *ret_absent)
{
    struct tt_text unbuilt = {0};
    struct tt_cli_variant variant = {.n = row->n_flags, .unbuilt = &unbuilt};
    struct tt_config *cfg = NULL;
    int rc = 0;

    for (int f = 0; f < row->n_flags; f++)
        variant.flag[f] = row->flag[f];
    TT_TRY(tt_cli_load_variant("tune", tune->args, &variant, &cfg));
    for (int f = 0; f < row->n_flags && unbuilt.text; f++)
        if (strstr(unbuilt.text, row->flag[f] + 2)) /* without the dashes */
            *ret_absent = true;
    if (unbuilt.text && !*ret_absent) { /* the command line itself asks for it: the usual error */
        tt_config_free(cfg);
        cfg = NULL;
        TT_TRY(tt_cli_load_config("tune", tune->args, &cfg));
    }
    *ret_cfg = cfg;
    cfg = NULL;
out:
    tt_text_release(&unbuilt);
    tt_config_free(cfg);
    return rc;
}

/* The trainer without folder, checkpoints and reports. */
struct trial {
    struct tt_setup setup;
    struct tt_train_data data;
    struct tt_train_progress at;
};

static int open_trial(struct trial *t)
{
    struct tt_setup *s = &t->setup;
    int rc = 0;

    TT_TRY(tt_datasets_open_training(s, &t->data));
    TT_TRY(tt_comm_agree(s->comm, tt_engine_allocate(s->engine)));
    TT_TRY(tt_engine_init_params(s->engine, (uint64_t)s->cfg->debug.seed));
    s->comm->timeout_sec = (double)s->cfg->comm.train_timeout_seconds;
out:
    return rc;
}

static int time_step(struct trial *t, struct tt_tune_row *row, bool timed, bool keep_loss)
{
    struct tt_comm *comm = t->setup.comm;
    struct tt_train_step done;
    double sec[2];
    int rc = 0;

    TT_TRY(tt_comm_barrier(comm));
    comm->wait_sec = 0.0;
    comm->payload_bytes = comm->routed_bytes = 0;
    sec[0] = tt_clock_sec();
    TT_TRY(tt_train_step(&t->setup, &t->data, NULL, NULL, &t->at, &done));
    sec[0] = tt_clock_sec() - sec[0] - done.data_sec;
    sec[1] = comm->wait_sec;
    row->payload_bytes = comm->payload_bytes + comm->routed_bytes;
    TT_TRY(tt_comm_max_f64(comm, sec, 2));
    if (keep_loss) {
        TT_PUSH(row->losses, row->n_losses, row->cap_losses) = done.step.loss;
        TT_PUSH(row->losses, row->n_losses, row->cap_losses) = done.step.grad_norm;
    }
    if (timed) {
        int n = row->n_steps;

        TT_PUSH(row->step_secs, row->n_steps, row->cap_steps) = sec[0];
        TT_PUSH(row->exposed_secs, n, row->cap_exposed) = sec[1];
    }
out:
    return rc;
}

/* The cost table of the prediction: the configured one, else the built-in one at this machine's
 * matrix-multiply rate. */
static int find_machine(struct tt_tune *tune, const struct tt_setup *s, struct tt_machine *machine)
{
    enum tt_dtype dtype = s->job.engine.param_dtype;
    double peak = 0.0, float_peak = 0.0;
    int rc = 0;

    *machine = s->job.engine.machine;
    (void)snprintf(tune->machine, sizeof tune->machine, "%s", machine->name);
    if (s->cfg->parallelism.machine_file)
        return 0;
    TT_TRY(tt_comm_barrier(s->comm));
    TT_TRY(tt_peak_measure_slowest(s->comm, tt_engine_team(s->engine), dtype, &peak));
    if (dtype != TT_F32)
        TT_TRY(tt_peak_measure_slowest(s->comm, tt_engine_team(s->engine), TT_F32, &float_peak));
    tt_machine_take_peaks(machine, dtype, peak / s->threads, float_peak / s->threads);
    (void)snprintf(tune->machine, sizeof tune->machine, "%s, at the measured %.0f GF/s a thread", machine->name,
                   peak / s->threads / 1e9);
out:
    return rc;
}

static int predict(struct tt_tune *tune, const struct tt_setup *s, struct tt_machine *machine, struct tt_tune_row *row)
{
    struct tt_job_prediction p = {0};
    int rc = 0;

    if (machine->sgemm_flops == 0.0)
        TT_TRY(find_machine(tune, s, machine));
    TT_TRY(tt_job_predict_once(&s->job, s->comm, machine, s->engine, &p));
    row->predicted_step_sec = p.step_sec;
    row->predicted_exposed_sec = p.exposed_sec;
    row->peak_bytes = p.memory.total; /* of the rank that needs most */
out:
    tt_job_prediction_release(&p);
    return rc;
}

/* Whether a failure is that of the combination, and not of the job: what does not fit or is impossible. */
static bool is_of_row(const struct tt_tune_row *row, int code)
{
    return code == TT_EFIT || (code == TT_EUSAGE && (row->may_fail || tt_error_key() == TT_KEY_GRADIENT_SYNC));
}

/* The first line of the message. */
static void note_problem(struct tt_tune_row *row)
{
    tt_error_drop_hint();
    row->problem = tt_format("%.*s", (int)strcspn(tt_error_message(), "\n"), tt_error_message());
}

/* A combination that does not fit or is impossible gives a row that says so. Only a failure of the job is an error. */
static int try_row(struct tt_tune *tune, struct tt_comm *comm, int round, struct tt_machine *machine,
                   struct tt_tune_row *row)
{
    struct trial t = {.setup = {.cfg = NULL}};
    struct tt_config *cfg = NULL;
    int rc = load(tune, row, &cfg, &row->is_absent);

    rc = tt_comm_agree(comm, rc);
    if (rc < 0 && is_of_row(row, rc)) {
        note_problem(row);
        return 0;
    }
    TT_TRY(rc);
    if (row->is_absent)
        goto out;
    TT_TRY(tt_facts_agree_on_config(comm, cfg, tune->args));
    rc = tt_setup_init(cfg, comm, false, &t.setup);
    if (rc < 0 && is_of_row(row, rc)) {
        note_problem(row);
        rc = 0;
        goto out;
    }
    TT_TRY(rc);
    TT_TRY(open_trial(&t));
    row->peak_bytes = t.setup.memory.total;
    row->sync = (int64_t)cfg->training.gradient_sync;
    row->fits = true;
    if (round == 0)
        TT_TRY(predict(tune, &t.setup, machine, row));
    for (int s = 0; s <= tune->steps; s++) /* the first one touches the memory for the first time */
        TT_TRY(time_step(&t, row, s > 0, round == 0));
out:
    rc = tt_config_locate(cfg, rc);
    tt_train_data_release(&t.data);
    tt_setup_release(&t.setup);
    tt_config_free(cfg);
    return rc;
}

/* --- all of them --- */

/* Deferred gradients are added in another order, so the bits of each gradient_sync differ. */
static const struct tt_tune_row *first_like(const struct tt_tune *tune, const struct tt_tune_row *row)
{
    const struct tt_tune_row *first = tune->rows;

    while (!first->fits || first->sync != row->sync)
        first++;
    return first;
}

static void conclude(struct tt_tune *tune)
{
    tune->best = TT_NONE;
    for (int i = 0; i < tune->n; i++) {
        struct tt_tune_row *row = &tune->rows[i];
        const struct tt_tune_row *first;

        if (!row->fits)
            continue;
        first = first_like(tune, row);
        row->step_sec = tt_median(row->step_secs, row->n_steps);
        row->exposed_sec = tt_median(row->exposed_secs, row->n_steps);
        row->same_bits = row->n_losses == first->n_losses &&
                         memcmp(row->losses, first->losses, (size_t)row->n_losses * sizeof *row->losses) == 0;
        if (tune->best == TT_NONE || row->step_sec < tune->rows[tune->best].step_sec)
            tune->best = i;
    }
}

static void release_row(struct tt_tune_row *row)
{
    for (int f = 0; f < row->n_flags; f++)
        tt_free(row->flag[f]);
    tt_free(row->label);
    tt_free(row->problem);
    tt_free(row->step_secs);
    tt_free(row->exposed_secs);
    tt_free(row->losses);
}

static void drop_absent(struct tt_tune *tune)
{
    int n = 0;

    for (int i = 0; i < tune->n; i++) {
        if (tune->rows[i].is_absent)
            release_row(&tune->rows[i]);
        else
            tune->rows[n++] = tune->rows[i];
    }
    tune->n = n;
}

int tt_tune_run(struct tt_tune *tune, struct tt_comm *comm)
{
    struct tt_machine machine = {.sgemm_flops = 0.0};
    int rc = 0;

    for (int round = 0; round < tune->rounds; round++) {
        for (int i = 0; i < tune->n; i++) {
            if (tune->rows[i].problem)
                continue;
            TT_TRY(try_row(tune, comm, round, &machine, &tune->rows[i]));
            tt_progress("trials", (double)(round * tune->n + i + 1), (double)(tune->rounds * tune->n));
        }
        drop_absent(tune);
    }
    conclude(tune);
out:
    return rc;
}

void tt_tune_release(struct tt_tune *tune)
{
    for (int i = 0; i < tune->n; i++)
        release_row(&tune->rows[i]);
    tt_free(tune->rows);
}
