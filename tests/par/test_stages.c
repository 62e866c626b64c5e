/* SPDX-License-Identifier: MIT
 *
 * A step with several stages on one rank: for any cut, order of compute, layout and policies, losses, norms and weights
 * have the bits of one graph on one rank. Ranks with different programs must agree about their exchanges, but not about
 * the rest.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/program/instr/instr.h"
#include "parallel/engine/agree.h"
#include "tests/help/threads.h"
#include "tests/par/fixture.h"
#include "tests/par/orders.h"
#include "tests/par/train_job.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

enum { GLOBAL_BATCH = 12 };

static struct fixture world;
static struct train_result references[2][2]; /* model (odd, tied), gradient_sync */

static struct train_job job_of(int model, bool last_microbatch)
{
    struct train_job job = train_job_make(model ? world.tied : world.odd, &world.data, GLOBAL_BATCH, 1, 8);

    job.steps = 2;
    job.validation_batches = 3;
    job.last_microbatch = last_microbatch;
    job.documents = model == 1; /* positions are an input of every stage */
    return job;
}

static int tear_down(void **state)
{
    for (int m = 0; m < 2; m++) {
        train_result_release(&references[m][0]);
        train_result_release(&references[m][1]);
    }
    fixture_close(&world);
    return 0;
}

static int set_up(void **state)
{
    fixture_open(&world, &(struct fixture_size){.odd_layers = 3, .odd_vocab = 23, .tied_layers = 4, .narrow = true});
    return 0;
}

/* --- the same bits --- */

struct pick {
    enum orders_kind kind;
    uint64_t seed;
};

static struct tt_order order_of(const struct tt_engine_options *options)
{
    const struct pick *pick = options->order_arg;

    return orders_make(pick->kind, options->microbatches, options->n_stages, pick->seed,
                       options->reduce == TT_REDUCE_LAST);
}

static const struct {
    int ranks, replicate;
} meshes[] = {{1, 1}, {2, 1}, {4, 1}, {4, 2}, {2, 2}};

static const enum tt_reshard reshards[] = {TT_RESHARD_AFTER_FORWARD_DEFAULT, TT_RESHARD_AFTER_FORWARD_ALWAYS,
                                           TT_RESHARD_AFTER_FORWARD_NEVER, TT_RESHARD_AFTER_FORWARD_PART,
                                           TT_RESHARD_AFTER_FORWARD_LAST_LAYER};
static const struct tt_recompute recomputes[] = {
    {TT_RECOMPUTE_NONE, 0}, {TT_RECOMPUTE_FULL, 0}, {TT_RECOMPUTE_SELECTIVE, 2}, {TT_RECOMPUTE_OP, 0}};
static const char *const wraps[] = {"block", "model", "param"};

/* The result of one rank with one graph and one microbatch after another, computed once per model and gradient_sync. */
static const struct train_result *reference(const struct train_job *like, int model)
{
    struct train_result *result = &references[model][like->last_microbatch];
    struct train_job job = job_of(model, like->last_microbatch);

    if (!result->param)
        assert_int_equal(fixture_check(train_job_run(&job, result)), 0);
    return result;
}

/* Takes the next digit from the number of a case, which has a digit for each axis. */
static int digit(int *number, int n)
{
    int d = *number % n;

    *number /= n;
    return d;
}

static void must_be_the_bits_of_one_graph(int number, int model, enum orders_kind kind, int n_stages, int mesh)
{
    struct pick pick = {kind, (uint64_t)number};
    struct train_job job = job_of(model, false);
    char name[160];

    job.ranks = meshes[mesh].ranks;
    job.replicate = meshes[mesh].replicate;
    job.n_stages = n_stages;
    job.order = order_of;
    job.order_arg = &pick;
    job.scheduler = digit(&number, 2) ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
    job.recompute = recomputes[digit(&number, COUNT(recomputes))];
    job.reshard = reshards[digit(&number, COUNT(reshards))];
    if (job.reshard == TT_RESHARD_AFTER_FORWARD_PART && job.ranks / job.replicate == 1)
        job.reshard = TT_RESHARD_AFTER_FORWARD_ALWAYS;
    job.reshard_part = job.reshard == TT_RESHARD_AFTER_FORWARD_PART ? 2 : 0;
    job.wrap = wraps[digit(&number, COUNT(wraps))];
    job.prefetch = digit(&number, 3);
    job.gives_up = number % 2;
    (void)snprintf(name, sizeof name,
                   "%d stages, order %d, %d ranks, %d replicas, %s, recompute %d, reshard %d, wrap %s", n_stages,
                   (int)kind, job.ranks, job.replicate, job.scheduler ? "planned" : "eager", (int)job.recompute.mode,
                   (int)job.reshard, job.wrap);
    for (int last = 0; last < 2; last++) {
        job.last_microbatch = last;
        if (!train_job_is_exact(&job))
            continue;
        fixture_must_be(&job, reference(&job, model), "%s%s", name, last ? ", last_microbatch" : "");
    }
}

/* Every number of stages with every order on every mesh; models and policies alternate. */
static void stages_give_the_bits_of_one_graph(void **state)
{
    int turn = 0;

    for (int n_stages = 1; n_stages <= 3; n_stages++)
        for (int kind = 0; kind < ORDERS_KINDS; kind++)
            for (int mesh = 0; mesh < COUNT(meshes); mesh++, turn++)
                if (turn % sweep_stride() == 0)
                    must_be_the_bits_of_one_graph(7 * turn, turn % 2, (enum orders_kind)kind, n_stages, mesh);
}

/* --- agreement of ranks --- */

static void more_bytes(struct tt_instr *gather)
{
    gather->collective.bytes += 4;
}

static void other_type(struct tt_instr *gather)
{
    gather->collective.dtype = TT_BF16;
}

static void more_ranks(struct tt_instr *gather)
{
    gather->collective.ranks++;
}

static void other_tag(struct tt_instr *gather)
{
    gather->collective.tag += 7;
}

static void other_operation(struct tt_instr *gather)
{
    gather->collective.op = TT_REDUCE_SCATTER;
}

static void other_purpose(struct tt_instr *gather)
{
    gather->purpose = TT_UNSHARD_KEPT;
}

static void other_group(struct tt_instr *gather)
{
    gather->collective.group = TT_GROUP_REPLICATE;
}

static void nothing_travels(struct tt_instr *gather)
{
    gather->collective.ranks = 1;
}

static void other_unit(struct tt_instr *gather)
{
    gather->unit = 0;
}

/*
 * A change in one rank's second gather, and the message that all ranks then print; NULL: they agree. Between exchanges
 * ranks ask each other whether to stop, so if a rank leaves out a gather, the next question is the first difference.
 */
static const struct change {
    void (*apply)(struct tt_instr *gather);
    int rank;
    const char *message;
} changes[] = {
    {more_bytes, 1,
     "rank 1 plans the step differently from rank 0: in group dp_shard its exchange 2 is 'unshard layers.0'"},
    {more_bytes, 0,
     "rank 1 plans the step differently from rank 0: in group dp_shard its exchange 2 is 'unshard layers.0'"},
    {other_type, 3,
     "rank 3 plans the step differently from rank 2: in group dp_shard its exchange 2 is 'unshard layers.0'"},
    {other_type, 3, " bytes of BF16 among 2 ranks, tag 0), on rank 2 it is 'unshard layers.0' ("},
    {more_ranks, 2, " among 2 ranks, tag 0), on rank 2 it is 'unshard layers.0' ("},
    {other_tag, 1, " among 2 ranks, tag 7), on rank 0 it is 'unshard layers.0' ("},
    {other_operation, 1, "rank 1 plans the step differently from rank 0: in group dp_shard its exchange 2 is"},
    {other_purpose, 1,
     "rank 1 plans the step differently from rank 0: in group dp_shard its exchange 2 is 'unshard kept"},
    {other_group, 1, "in group dp_shard its exchange 2 is the question whether to stop, on rank 0"},
    {other_group, 2, "rank 2 plans the step differently from rank 0: in group dp_replicate its exchange 1 is 'unshard"},
    {nothing_travels, 1, "in group dp_shard its exchange 2 is the question whether to stop, on rank 0"},
    {other_unit, 1, NULL},
};

static struct tt_instr *second_gather(const struct tt_program *program)
{
    int n = 0, i = 0;

    while (n < 2)
        n += program->instrs[i++].kind == TT_BEGIN;
    return &program->instrs[i - 1];
}

/* Runs on two replicas of two shards, with a change on one rank. */
static int ask_with_change(struct tt_comm *comm, void *arg)
{
    const struct change *change = arg;
    struct train_job job = job_of(0, false);
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;
    struct tt_instr *gather, before;
    int rc = 0;

    job.ranks = 4;
    job.replicate = 2;
    TT_TRY(train_job_options(&job, &options));
    TT_TRY(tt_engine_new(&options, NULL, comm->rank, &engine));
    gather = second_gather(tt_engine_program(engine));
    before = *gather;
    if (comm->rank == change->rank)
        change->apply(gather);
    rc = tt_program_agree(comm, &options.mesh, tt_engine_program(engine), "the step");
    *gather = before;
    if (change->message ? rc != TT_EUSAGE || !strstr(tt_error_message(), change->message) : rc != 0)
        rc = tt_fail(TT_EINTERNAL, "rank %d: wanted '%s', got %d, '%s'", comm->rank,
                     change->message ? change->message : "agreement", rc, rc < 0 ? tt_error_message() : "");
    else
        rc = 0;
out:
    tt_engine_free(engine);
    return rc;
}

static void what_is_exchanged_must_agree(void **state)
{
    for (int i = 0; i < COUNT(changes); i++) {
        struct change change = changes[i];

        if (tt_comm_threads_run(4, ask_with_change, &change) < 0)
            fail_msg("change %d: %s", i, tt_error_message());
    }
}

/* Rank 1 plans with another machine file, or recomputes activations. */
static int allocate_other(struct tt_comm *comm, void *arg)
{
    const bool *more_nodes = arg;
    struct train_job job = job_of(0, false);
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;
    int rc = 0;

    job.ranks = 2;
    job.machine = tt_machine_builtin();
    if (!*more_nodes)
        job.scheduler = TT_ENGINE_PLANNED;
    if (comm->rank == 1 && !*more_nodes)
        job.machine.call_sec = job.machine.message_sec = 1e-9;
    if (comm->rank == 1 && *more_nodes)
        job.recompute.mode = TT_RECOMPUTE_FULL;
    TT_TRY(train_job_options(&job, &options));
    TT_TRY(tt_engine_new(&options, comm, comm->rank, &engine));
    rc = tt_engine_allocate(engine);
out:
    tt_engine_free(engine);
    return rc;
}

static void another_machine_file_is_named(void **state)
{
    bool more_nodes = false;

    assert_int_equal(tt_comm_threads_run(2, allocate_other, &more_nodes), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "rank 1 plans the step differently from rank 0: in group dp_shard"));
    assert_non_null(strstr(tt_error_message(), "help: every rank must read the same parallelism.machine_file"));
}

/* The collectives are the same, but a rank that runs more nodes would ask between different ones. */
static void all_ask_between_the_same_exchanges(void **state)
{
    bool more_nodes = true;

    assert_int_equal(tt_comm_threads_run(2, allocate_other, &more_nodes), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "the question whether to stop"));
}

/* The first instruction that makes a gradient of a parameter in backward, and nothing else. */
static int first_weight_node(const struct tt_program *program)
{
    const struct tt_graph *graph = program->stages[0].graph;

    for (int i = 0; i < program->n_instrs; i++) {
        const struct tt_node *node = program->instrs[i].kind == TT_RUN ? &graph->nodes[program->instrs[i].node] : NULL;

        if (node && node->backward && node->n_out == 1 && graph->values[node->out[0]].kind == TT_VALUE_PARAM_GRAD)
            return i;
    }
    return TT_NONE;
}

/* Rank 1 has a separate weight part, so it runs the nodes in another order but exchanges the same values. */
static int other_instructions(struct tt_comm *comm, void *arg)
{
    struct train_job job = job_of(0, false);
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;
    struct tt_step step = {.scalars = {.inv_valid_tokens = 1.0F}};
    struct pick pick = {comm->rank == 1 ? ORDERS_WEIGHTS_LAST : ORDERS_FORWARD_FIRST, 0};
    int *first_of_weights = arg, rc = 0;

    job.ranks = 2;
    job.global_batch = 2;
    job.wrap = "model";
    job.reshard = TT_RESHARD_AFTER_FORWARD_NEVER;
    job.order = order_of;
    job.order_arg = &pick;
    TT_TRY(train_job_options(&job, &options));
    TT_TRY(tt_engine_new(&options, comm, comm->rank, &engine));
    first_of_weights[comm->rank] = first_weight_node(tt_engine_program(engine));
    TT_TRY(tt_engine_allocate(engine));
    TT_TRY(tt_engine_init_params(engine, 1));
    for (int a = 0; a < options.microbatches; a++) {
        memset(tt_engine_inputs(engine, a).tokens, 0, (size_t)options.seq_len * sizeof(int32_t));
        memset(tt_engine_inputs(engine, a).labels, 0, (size_t)options.seq_len * sizeof(int32_t));
    }
    TT_TRY(tt_engine_step(engine, &step));
out:
    tt_engine_free(engine);
    return rc;
}

static void instructions_that_exchange_nothing_may_differ(void **state)
{
    int first_of_weights[2] = {0, 0};

    assert_int_equal(fixture_check(tt_comm_threads_run(2, other_instructions, first_of_weights)), 0);
    assert_true(first_of_weights[0] < first_of_weights[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_exchanged_must_agree),
        cmocka_unit_test(another_machine_file_is_named),
        cmocka_unit_test(all_ask_between_the_same_exchanges),
        cmocka_unit_test(instructions_that_exchange_nothing_may_differ),
        cmocka_unit_test(stages_give_the_bits_of_one_graph),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("stages", tests, set_up, tear_down);
}
