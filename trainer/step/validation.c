/* SPDX-License-Identifier: MIT
 *
 * Validation runs in whole rounds of one batch per rank. The missing samples of the last round are masked, so that
 * every rank runs the same program.
 */
#include "trainer/step/validation.h"

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/math/round.h"
#include "core/os/file.h"
#include "trainer/data/data.h"

int64_t tt_validation_samples(const struct tt_config *cfg, const struct tt_train_data *data)
{
    int64_t all = tt_train_data_samples(data, 1), steps = cfg->validation.steps;
    int64_t batch = cfg->validation.local_batch_size;

    return steps < 0 || steps > all / batch ? all : steps * batch;
}

static int load_batch(const struct tt_validation *v, int64_t first, int64_t *valid)
{
    int64_t left = v->samples - first, T = v->data->seq_len;
    int64_t there = left < 0 ? 0 : left < v->batch ? left : v->batch;
    const struct tt_inputs in = tt_engine_validation_inputs(v->engine);

    for (int64_t i = there * T; i < v->batch * T; i++) {
        in.tokens[i] = 0;
        in.labels[i] = -100;
        if (in.positions)
            in.positions[i] = (int32_t)(i % T);
    }
    return tt_train_data_batch(v->data, first, there, in.tokens, in.labels, in.positions, valid);
}

int tt_validation_run(struct tt_comm *comm, const struct tt_validation *v, struct tt_validation_result *ret_result)
{
    const struct tt_layout *layout = tt_engine_layout(v->engine);
    const struct tt_place place = layout->groups[TT_GROUP_BATCH];
    int64_t rounds = tt_div_up(v->samples, v->batch * place.n), valid = 0;
    struct tt_step step = {.scalars = {.inv_valid_tokens = 1.0}, .asked_to_stop = v->is_long ? v->asked_to_stop : NULL};
    struct tt_exact sum = {{0}, 0};
    double start = tt_clock_sec(), is_long;
    int stop, rc = 0;

    for (int64_t round = 0; round < rounds; round++) {
        double begin = tt_clock_sec();

        rc = load_batch(v, (round * place.n + place.index) * v->batch, &valid);
        stop = rc == 0 && v->asked_to_stop ? v->asked_to_stop() : 0;
        if (stop)
            rc = tt_fail(stop, "stopped by a signal within a validation");
        TT_TRY(tt_comm_agree(comm, rc));
        TT_TRY(tt_engine_validate(v->engine, &step));
        is_long = tt_clock_sec() - begin > v->long_sec;
        if (round == 0 && v->asked_to_stop && !step.asked_to_stop) { /* during a long round, the program asks too */
            TT_TRY(tt_comm_max_f64(comm, &is_long, 1));
            step.asked_to_stop = is_long > 0.0 ? v->asked_to_stop : NULL;
        }
        tt_exact_merge(&sum, &step.loss_sum); /* exact, so that the sum is the same on any number of ranks */
        if (v->progress && comm->rank == 0)
            tt_progress(v->progress, (double)round + 1.0, (double)rounds);
    }
    if (!layout->counts_tokens)
        valid = 0;
    TT_TRY(tt_comm_sum_i64(comm, &valid, 1));
    *ret_result = (struct tt_validation_result){.loss = valid ? tt_exact_value(&sum) / (double)valid : 0.0,
                                                .tokens = valid,
                                                .samples = v->samples,
                                                .seconds = tt_clock_sec() - start};
out:
    return rc;
}

/* --- during training --- */

int tt_validator_open(const struct tt_setup *setup, struct tt_validator *ret_validator)
{
    const struct tt_datasets *datasets = &setup->cfg->validation.dataset;
    struct tt_validator *v = ret_validator;
    int n = setup->cfg->validation.enable ? datasets->n : 0, rc = 0;

    *v = (struct tt_validator){.setup = setup,
                               .set = tt_calloc((size_t)n, sizeof *v->set),
                               .found = tt_calloc((size_t)n, sizeof *v->found),
                               .name = tt_calloc((size_t)n, sizeof *v->name)};
    for (; v->n < n && rc == 0; v->n++) {
        rc = tt_datasets_open_validation(setup, v->n, &v->set[v->n]);
        v->name[v->n] = datasets->entry[v->n].name;
    }
    return rc;
}

void tt_validator_release(struct tt_validator *v)
{
    for (int i = 0; i < v->n; i++)
        tt_train_data_release(&v->set[i]);
    tt_free(v->set);
    tt_free(v->found);
    tt_free((void *)v->name);
    *v = (struct tt_validator){.n = 0};
}

/* A second call exchanges them back. */
static void exchange_averages(const struct tt_validator *v)
{
    if (v->setup->cfg->ema.validate)
        tt_state_exchange_averages(tt_engine_state(v->setup->engine), tt_engine_layout(v->setup->engine));
}

int tt_validator_run(struct tt_validator *v, int (*asked_to_stop)(void), double long_sec, bool is_long,
                     const char *progress)
{
    int rc = 0;

    exchange_averages(v);
    for (int i = 0; i < v->n; i++) {
        const struct tt_validation validation = {.engine = v->setup->engine,
                                                 .data = &v->set[i],
                                                 .batch = v->setup->cfg->validation.local_batch_size,
                                                 .samples = tt_validation_samples(v->setup->cfg, &v->set[i]),
                                                 .progress = progress,
                                                 .asked_to_stop = asked_to_stop,
                                                 .long_sec = long_sec,
                                                 .is_long = is_long};

        TT_TRY(tt_validation_run(v->setup->comm, &validation, &v->found[i]));
    }
out:
    exchange_averages(v);
    return rc;
}
