/* SPDX-License-Identifier: MIT
 *
 * Pipelines: for every schedule, number of stages and microbatches, layout and policy, losses, norms, weights and
 * validation have the bits of one rank.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "tests/help/threads.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static struct fixture world;

static int tear_down(void **state)
{
    fixture_close(&world);
    return 0;
}

static int set_up(void **state)
{
    fixture_open(&world, &(struct fixture_size){.odd_layers = 6, .odd_vocab = 23, .tied_layers = 4, .narrow = true});
    return 0;
}

static struct train_job job_of(bool tied, int64_t global_batch)
{
    struct train_job job = train_job_make(tied ? world.tied : world.odd, &world.data, global_batch, 1, 8);

    job.steps = 2;
    job.validation_batches = 3;
    return job;
}

static const struct {
    struct fixture_layout layout;
    bool tied;
} cases[] = {
    {.layout = {.microbatches = 4, PIPE(2, 1, 1F1B)}},
    {.layout = {.microbatches = 2, .runs = 2, PIPE(2, 1, 1F1B)}},
    {.layout = {.microbatches = 4, PIPE(2, 1, GPIPE)}},
    {.layout = {.microbatches = 8, PIPE(4, 1, 1F1B)}},
    {.layout = {.microbatches = 4, .shards = 2, PIPE(2, 1, 1F1B)}},
    {.layout = {.microbatches = 4, .shards = 2, .replicate = 2, PIPE(2, 1, 1F1B)}},
    {.layout = {.microbatches = 4, PIPE(2, 2, LOOPED_BFS)}},
    {.layout = {.microbatches = 4, PIPE(2, 2, INTERLEAVED_1F1B)}},
    {.layout = {.microbatches = 4, .shards = 2, PIPE(2, 4, INTERLEAVED_1F1B)}},
    {.layout = {.microbatches = 4, PIPE(2, 2, INTERLEAVED_ZERO_BUBBLE)}},
    {.layout = {.microbatches = 4, PIPE(2, 2, ZBV_ZERO_BUBBLE)}},
    {.layout = {.microbatches = 8, PIPE(4, 2, ZBV_ZERO_BUBBLE)}},
    {.layout = {.microbatches = 4, .shards = 2, PIPE(2, 2, DUAL_PIPE_V)}},
    {.layout = {.microbatches = 2, .runs = 2, .shards = 2, PIPE(2, 2, INTERLEAVED_1F1B)}},
    {.layout = {.microbatches = 2, .runs = 4, PIPE(2, 2, ZBV_ZERO_BUBBLE)}, .tied = true},
    {.layout = {.microbatches = 4, .runs = 2, PIPE(4, 1, 1F1B)}, .tied = true},
    {.layout = {.microbatches = 5, PIPE(2, 1, 1F1B)}},
    {.layout = {.microbatches = 7, PIPE(4, 1, GPIPE)}},
    {.layout = {.microbatches = 3, PIPE(2, 2, LOOPED_BFS)}},
    {.layout = {.microbatches = 5, .runs = 2, PIPE(2, 3, LOOPED_BFS)}},
    {.layout = {.microbatches = 3, PIPE(2, 2, INTERLEAVED_1F1B)}},
    {.layout = {.microbatches = 5, PIPE(4, 2, INTERLEAVED_ZERO_BUBBLE)}},
    {.layout = {.microbatches = 3, PIPE(2, 2, ZBV_ZERO_BUBBLE)}, .tied = true},
    {.layout = {.microbatches = 5, PIPE(2, 2, DUAL_PIPE_V)}},
    {.layout = {.microbatches = 4, PIPE(2, 1, 1F1B)}, .tied = true},
    {.layout = {.microbatches = 4, .shards = 2, PIPE(4, 1, 1F1B)}, .tied = true},
    {.layout = {.microbatches = 4, .shards = 2, .replicate = 2, PIPE(2, 2, INTERLEAVED_ZERO_BUBBLE)}, .tied = true},
    {.layout = {.microbatches = 4, PIPE(2, 2, ZBV_ZERO_BUBBLE)}, .tied = true},
};

/* Policies that vary from case to case. Those that change the result, such as bf16, are in the reference too. */
static void vary(int i, bool bf16, struct train_job *one, struct train_job *job)
{
    if (bf16)
        one->param_dtype = job->param_dtype = TT_BF16;
    one->documents = job->documents = i % 2;
    one->z_loss = job->z_loss = i % 3 == 2 ? 0.1 : 0.0;
    one->average_decay = job->average_decay = i % 4 == 1 ? 0.5 : 0.0;
    fixture_vary(i, job);
}

static void any_schedule_has_the_bits_of_one_rank(void **state)
{
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        const struct fixture_layout *layout = &cases[i % COUNT(cases)].layout;
        struct train_job one = job_of(cases[i % COUNT(cases)].tied, fixture_microbatches(layout)), job = one;
        struct train_result wanted;

        fixture_lay_out(&job, layout);
        vary(i, i >= COUNT(cases), &one, &job);
        assert_int_equal(fixture_check(train_job_run(&one, &wanted)), 0);
        fixture_both_must_be(job, &wanted, "case %d", i);
        train_result_release(&wanted);
    }
}

/* --- agreement of ranks --- */

static void more_bytes(struct tt_instr *transfer)
{
    transfer->collective.bytes += 4;
}

static void other_tag(struct tt_instr *transfer)
{
    transfer->collective.tag += 2;
}

static void is_left_out(struct tt_instr *transfer)
{
    transfer->collective.ranks = 1;
}

static void other_unit(struct tt_instr *transfer)
{
    transfer->microbatch++;
}

/* A change in the second send of rank 0 of a pipeline, and the message that all ranks then print; NULL: they agree. */
static const struct change {
    void (*apply)(struct tt_instr *transfer);
    bool validation;
    const char *message;
} changes[] = {
    {more_bytes, false,
     "rank 1 plans the step differently from rank 0: of its receives from there, in the order of tags, number 2 is "
     "'receive"},
    {other_tag, false, ", and rank 0 sends 'send"},
    {is_left_out, false,
     "rank 1 plans the step differently from rank 0: of its receives from there, in the order of tags, number 2 is"},
    {more_bytes, true,
     "rank 1 plans validation differently from rank 0: of its receives from there, in the order of tags, number 1 is"},
    {other_unit, false, NULL},
};

static struct tt_instr *send_of(const struct tt_program *program, int number)
{
    int i = 0;

    for (int n = 0; n < number; i++)
        n += program->instrs[i].kind == TT_BEGIN && program->instrs[i].purpose == TT_SEND_VALUES;
    return &program->instrs[i - 1];
}

static int ask_with_change(struct tt_comm *comm, void *arg)
{
    const struct change *change = arg;
    struct train_job job = job_of(false, 4);
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;
    struct tt_instr *send = NULL, before;
    int rc = 0;

    job.ranks = job.pipe = 2;
    TT_TRY(train_job_options(&job, &options));
    if (change->validation)
        options.local_batch = 0; /* then the engine runs the program of validation */
    TT_TRY(tt_engine_new(&options, NULL, comm->rank, &engine));
    if (comm->rank == 0) {
        send = send_of(tt_engine_program(engine), change->validation ? 1 : 2);
        before = *send;
        change->apply(send);
    }
    rc = tt_engine_agree(engine, comm);
    if (send)
        *send = before;
    if (change->message ? rc != TT_EUSAGE || !strstr(tt_error_message(), change->message) : rc != 0)
        rc = tt_fail(TT_EINTERNAL, "rank %d: wanted '%s', got %d, '%s'", comm->rank,
                     change->message ? change->message : "agreement", rc, rc < 0 ? tt_error_message() : "");
    else
        rc = 0;
out:
    tt_engine_free(engine);
    train_job_options_release(&options);
    return rc;
}

static void what_is_sent_must_be_received(void **state)
{
    for (int i = 0; i < COUNT(changes); i++) {
        struct change change = changes[i];

        if (tt_comm_threads_run(2, ask_with_change, &change) < 0)
            fail_msg("change %d: %s", i, tt_error_message());
    }
}

/* --- the first value that is not finite --- */

struct overflow {
    const struct train_job *job;
    const char *param; /* its first element becomes so large that later values overflow */
    const char *found; /* part of the name that the error gives */
};

static int overflowing_rank(struct tt_comm *comm, void *arg)
{
    const struct overflow *o = arg;
    struct tt_step step = {
        .scalars = {.inv_valid_tokens = 0.01F, .lr = 1.0, .bias_correction1 = 0.1, .bias_correction2 = 0.1},
        .max_norm = 1.0};
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;
    const struct tt_layout *layout;
    int rc = 0;

    TT_TRY(train_job_options(o->job, &options));
    TT_TRY(tt_engine_new(&options, comm, comm->rank, &engine));
    TT_TRY(tt_engine_allocate(engine));
    TT_TRY(tt_engine_init_params(engine, 1));
    layout = tt_engine_layout(engine);
    for (int p = 0; p < options.model->n_params; p++)
        if (strcmp(options.model->params[p].name, o->param) == 0 && tt_layout_has(layout, p))
            *(float *)tt_state_at(tt_engine_state(engine), TT_STATE_PARAM, layout->unit_of[p],
                                  tt_layout_param(layout, p)) = 1e38F;
    for (int a = 0; a < options.microbatches; a++)
        for (int64_t i = 0; i < options.local_batch * options.seq_len; i++)
            tt_engine_inputs(engine, a).tokens[i] = tt_engine_inputs(engine, a).labels[i] = (int32_t)(i % 13);
    rc = tt_engine_step(engine, &step);
    if (rc == TT_ENONFINITE)
        rc = tt_engine_explain(engine, &step);
    if (rc == TT_ENONFINITE && strstr(tt_error_message(), o->found))
        rc = 0;
    else
        rc = tt_fail(TT_EINTERNAL, "rank %d: '%s' does not name '%s'", comm->rank, tt_error_message(), o->found);
    rc = tt_comm_agree(comm, rc);
out:
    train_job_options_release(&options);
    tt_engine_free(engine);
    return rc;
}

/* The cause is in a stage of the second rank. The first rank, which has an earlier and a later stage, only sees its
 * effects. */
static void the_cause_of_an_overflow_is_named_and_not_a_result(void **state)
{
    static const struct {
        enum tt_pipeline_schedule schedule;
        int stages_per_rank;
    } schedules[] = {{TT_PP_ZBV_ZERO_BUBBLE, 2}, {TT_PP_INTERLEAVED_1F1B, 2}, {TT_PP_1F1B, 1}};
    const char *const params[] = {"layers.1.attention_norm.weight", "layers.2.ffn_norm.weight"};

    for (int s = 0; s < COUNT(schedules); s++)
        for (int p = 0; p < COUNT(params); p++) {
            struct train_job job = job_of(true, 4);
            char layer[] = "is layers.1.";
            struct overflow overflow = {&job, params[p], layer};

            layer[strlen(layer) - 2] = (char)('1' + p);
            job.ranks = job.pipe = 2;
            job.schedule_of_pipe = schedules[s].schedule;
            job.stages_per_rank = schedules[s].stages_per_rank;
            assert_int_equal(fixture_check(tt_comm_threads_run(job.ranks, overflowing_rank, &overflow)), 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sent_must_be_received),
        cmocka_unit_test(the_cause_of_an_overflow_is_named_and_not_a_result),
        cmocka_unit_test(any_schedule_has_the_bits_of_one_rank),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("pipeline", tests, set_up, tear_down);
}
