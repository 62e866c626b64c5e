/* SPDX-License-Identifier: MIT
 *
 * The trials of `titan tune`. A trial is the trainer itself without folder and checkpoints: what is timed is what trains.
 */
#include "cli/measure/tune.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/job/job.h"
#include "cli/run/peak.h"
#include "cli/train/facts.h"
#include "cli/train/trainer.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/stats.h"
#include "core/os/file.h"

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
    if (unbuilt.text && !*ret_absent) { /* what the command line itself asks for: the usual error */
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

static int time_step(struct tt_trainer *t, struct tt_tune_row *row, bool timed, bool keep_loss)
{
    struct tt_trainer_step did;
    double data_sec = t->data_sec, sec[2];
    int rc = 0;

    TT_TRY(tt_comm_barrier(t->comm));
    t->comm->wait_sec = 0.0;
    t->comm->payload_bytes = 0;
    sec[0] = tt_clock_sec();
    TT_TRY(tt_trainer_step(t, &did));
    sec[0] = tt_clock_sec() - sec[0] - (t->data_sec - data_sec);
    sec[1] = t->comm->wait_sec;
    row->payload_bytes = t->comm->payload_bytes;
    TT_TRY(tt_comm_max_f64(t->comm, sec, 2));
    if (keep_loss) {
        TT_PUSH(row->losses, row->n_losses, row->cap_losses) = did.step.loss;
        TT_PUSH(row->losses, row->n_losses, row->cap_losses) = did.step.grad_norm;
    }
    if (timed) {
        int n = row->n_steps;

        TT_PUSH(row->step_secs, row->n_steps, row->cap_steps) = sec[0];
        TT_PUSH(row->exposed_secs, n, row->cap_exposed) = sec[1];
    }
out:
    return rc;
}

/* The cost table of the prediction: the configured one, else the built-in one at this machine's matrix-multiply rate. */
static int find_machine(struct tt_tune *tune, struct tt_trainer *t, struct tt_machine *machine)
{
    double peak = 0.0;
    int rc = 0;

    *machine = t->machine;
    (void)snprintf(tune->machine, sizeof tune->machine, "%s", machine->name);
    if (t->cfg->parallelism.machine_file)
        return 0;
    TT_TRY(tt_comm_barrier(t->comm));
    peak = -tt_peak_measure(tt_engine_team(t->engine)); /* the largest of the negative: the slowest rank */
    TT_TRY(tt_comm_max_f64(t->comm, &peak, 1));
    machine->sgemm_flops = -peak / t->threads;
    (void)snprintf(tune->machine, sizeof tune->machine, "%s, at the measured %.0f GF/s a thread", machine->name,
                   machine->sgemm_flops / 1e9);
out:
    return rc;
}

static int predict(struct tt_tune *tune, struct tt_trainer *t, struct tt_machine *machine, struct tt_tune_row *row)
{
    struct tt_timeline time;
    int rc = 0;

    if (machine->sgemm_flops == 0.0)
        TT_TRY(find_machine(tune, t, machine));
    tt_cost_simulate(machine, tt_engine_program(t->engine), &time);
    row->predicted_step_sec = time.step_sec;
    row->predicted_exposed_sec = time.exposed_sec;
    tt_timeline_release(&time);
out:
    return rc;
}

/* What does not fit or cannot be combined is a row that says so; only what ends the job is an error. */
static int try_row(struct tt_tune *tune, struct tt_comm *comm, int round, struct tt_machine *machine,
                   struct tt_tune_row *row)
{
    struct tt_trainer_options options = {0};
    struct tt_trainer *t = NULL;
    struct tt_config *cfg = NULL;
    int rc = load(tune, row, &cfg, &row->is_absent);

    TT_TRY(tt_comm_agree(comm, rc));
    if (row->is_absent)
        goto out;
    TT_TRY(tt_facts_agree_on_config(comm, cfg, tune->args));
    rc = tt_trainer_plan(cfg, comm, &options, &t);
    if (rc == TT_EFIT) {
        row->problem = tt_strndup(tt_error_message(), strcspn(tt_error_message(), "\n"));
        rc = 0;
        goto out;
    }
    TT_TRY(rc);
    TT_TRY(tt_trainer_open_trial(t));
    row->peak_bytes = t->memory.total;
    row->sync = (int64_t)t->cfg->training.gradient_sync;
    row->fits = true;
    if (round == 0)
        TT_TRY(predict(tune, t, machine, row));
    for (int s = 0; s <= tune->steps; s++) /* the first one touches the memory for the first time */
        TT_TRY(time_step(t, row, s > 0, round == 0));
out:
    tt_trainer_close(t, -1);
    tt_config_free(cfg);
    return rc;
}

/* --- all of them --- */

/* Deferred gradients are added in another order, so each gradient sync has bits of its own. */
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
