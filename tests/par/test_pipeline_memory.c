/* SPDX-License-Identifier: MIT
 *
 * Memory of pipelines: programs keep the activations of exactly the number of chunks that the formulas of their
 * schedules give.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/program/order.h"
#include "tests/help/peaks.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

static struct fixture world;

static int tear_down(void **state)
{
    fixture_close(&world);
    return 0;
}

static int set_up(void **state)
{
    fixture_open(&world, &(struct fixture_size){.odd_layers = 6, .odd_vocab = 23, .tied_layers = 2, .narrow = true});
    return 0;
}

/* Three modules in each stage, so that every stage contains a block. */
static struct tt_model *model_of(int n_stages)
{
    struct tt_model_dims dims = {.n_layers = 3 * n_stages - 3,
                                 .dim = 14,
                                 .n_heads = 3,
                                 .n_kv_heads = 1,
                                 .head_dim = 6,
                                 .ffn_dim = 17,
                                 .vocab_size = 23};

    return fixture_model(&dims);
}

static struct train_job job_of(const struct tt_model *model, enum tt_pipeline_schedule schedule, int pipe, int chunks,
                               int n)
{
    struct train_job job = train_job_make(model, &world.data, n, 1, 8);

    job.ranks = job.pipe = pipe;
    job.schedule_of_pipe = schedule;
    job.stages_per_rank = chunks;
    job.validation_batches = 0;
    return job;
}

/* --- activations --- */

/* The instructions between which a chunk's activations are in memory. */
struct kept {
    int first, until_input, until_weight; /* first TT_NONE: there are none */
};

static bool crosses(const struct tt_boundary *items, int n, int value)
{
    for (int i = 0; i < n; i++)
        if (items[i].value == value)
            return true;
    return false;
}

/* Whether a buffer holds an activation that only one stage makes and reads. */
static bool is_activation(const struct tt_program *program, const struct tt_buffer *buffer)
{
    const struct tt_stage *stage = &program->stages[buffer->stage];

    return buffer->kind == TT_MEMORY_ACTIVATION && buffer->microbatch != TT_NONE && buffer->value != TT_NONE &&
           !crosses(stage->in, stage->n_in, buffer->value) && !crosses(stage->out, stage->n_out, buffer->value);
}

/* Records an operand of a backward node, and for how long the operand keeps its memory. */
static void note(const struct tt_program *program, int at, struct kept *chunks)
{
    const struct tt_instr *instr = &program->instrs[at];
    const struct tt_graph *graph = tt_instr_graph(program, instr);
    bool is_weights = tt_order_is_weight_part(graph, &graph->nodes[instr->node]);

    for (int i = 0; i < instr->n_operands; i++) {
        int id = program->operands[instr->operands + i];
        const struct tt_buffer *buffer = id == TT_NONE ? NULL : &program->buffers[id];
        struct kept *chunk;

        if (!buffer || !is_activation(program, buffer))
            continue;
        chunk = &chunks[buffer->microbatch * program->n_stages + buffer->stage];
        if (chunk->first == TT_NONE || buffer->first < chunk->first)
            chunk->first = buffer->first;
        if (!is_weights && at > chunk->until_input)
            chunk->until_input = at;
        if (buffer->last > chunk->until_weight)
            chunk->until_weight = buffer->last;
    }
}

static int most_at_once(const struct tt_program *program, const struct kept *chunks, bool until_weight)
{
    int most = 0;

    for (int at = 0; at < program->n_instrs; at++) {
        int n = 0;

        for (int c = 0; c < program->microbatches * program->n_stages; c++)
            n += chunks[c].first != TT_NONE && chunks[c].first <= at &&
                 at <= (until_weight ? chunks[c].until_weight : chunks[c].until_input);
        most = n > most ? n : most;
    }
    return most;
}

static void expect_peaks(const struct tt_engine_options *options, int rank, int chunks)
{
    const struct tt_pipeline *p = options->pipeline;
    enum tt_pipeline_schedule schedule = TT_PP_1F1B;
    struct tt_engine *engine = NULL;
    const struct tt_program *program;
    struct kept *kept;
    int n;

    while (tt_pipeline_row(schedule) != p->schedule)
        schedule++;
    assert_int_equal(fixture_check(tt_engine_new(options, NULL, rank, &engine)), 0);
    program = tt_engine_program(engine);
    n = program->microbatches * program->n_stages;
    kept = tt_calloc((size_t)n, sizeof *kept);
    for (int c = 0; c < n; c++)
        kept[c] = (struct kept){TT_NONE, TT_NONE, TT_NONE};
    for (int at = 0; at < program->n_instrs; at++)
        if (program->instrs[at].kind == TT_RUN &&
            tt_instr_graph(program, &program->instrs[at])->nodes[program->instrs[at].node].backward)
            note(program, at, kept);
    for (int until_weight = 0; until_weight < 2; until_weight++) {
        int wanted = peaks_of(schedule, p, chunks, rank, until_weight);
        int found = most_at_once(program, kept, until_weight);

        if (wanted >= 0 && found != wanted)
            fail_msg("%s, rank %d of %d, %d microbatches: activations of %d chunks until the %s part, wanted %d",
                     p->schedule->name, rank, p->ranks, p->microbatches, found, until_weight ? "weight" : "input",
                     wanted);
    }
    tt_free(kept);
    tt_engine_free(engine);
}

static void activations_are_those_of_the_formulas(void **state)
{
    for (int pipe = 2; pipe <= 4; pipe += 2)
        for (int s = 0; s < FIXTURE_SCHEDULES; s++) {
            const struct fixture_schedule *of = &fixture_schedules[s];
            struct tt_model *model = model_of(pipe * of->chunks);

            for (int i = 0; i < 4; i++) {
                int n = i == 3 ? 2 * pipe + 1 : (i + 1) * pipe;
                struct train_job job = job_of(model, of->schedule, pipe, of->chunks, n);
                struct tt_engine_options options;

                if (train_job_options(&job, &options) < 0) /* the schedule does not allow this number */
                    continue;
                options.scheduler = i == 0 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
                for (int rank = 0; rank < pipe; rank++)
                    expect_peaks(&options, rank, of->chunks);
                train_job_options_release(&options);
            }
            tt_model_free(model);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_are_those_of_the_formulas),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("pipeline memory", tests, set_up, tear_down);
}
