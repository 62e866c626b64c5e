/* SPDX-License-Identifier: MIT
 *
 * The executor: `new` binds addresses, `run` executes the list, and `explain` executes it again to find the first
 * bad value.
 */
#include "core/program/executor.h"

#include <math.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/math/bf16.h"
#include "core/math/round.h"
#include "core/ops/experts/experts.h"
#include "core/os/file.h"
#include "core/program/instr/instr.h"
#include "core/program/internal.h"

static char *buffer_address(const struct tt_executor *ex, int buffer)
{
    const struct tt_buffer *b = &ex->program->buffers[buffer];
    const struct tt_buffer *root = &ex->program->buffers[b->root];
    int64_t inside = b->root == buffer ? 0 : b->offset;

    switch (root->kind) {
    case TT_MEMORY_PARAM:
        return (char *)ex->state->array[TT_STATE_PARAM][root->unit] + inside;
    case TT_MEMORY_CONST:
        return ex->const_region + root->offset + inside;
    case TT_MEMORY_CACHE:
        return ex->state->cache + root->offset + inside;
    default:
        return ex->step_region + root->offset + inside;
    }
}

/* The parts of a gathered matrix, stored rank after rank: where each part begins, and its place in the matrix. NULL:
 * the matrix need not be assembled. */
static struct tt_rows *parts_of(const struct tt_layout *layout, const struct tt_unit_param *place)
{
    int tp = layout->groups[TT_GROUP_TP].n, n = layout->groups[TT_GROUP_MATRIX].n;
    struct tt_rows *parts;
    int64_t rows;

    if (!place->blocks)
        return NULL;
    parts = tt_calloc((size_t)n, sizeof *parts);
    rows = tt_div_up(place->blocks[0].shape[0], n / tp);
    for (int i = 0; i < n; i++) {
        const struct tt_box *block = &place->blocks[i % tp];
        int64_t first = i / tp * rows, left = block->shape[0] > first ? block->shape[0] - first : 0;

        parts[i] = (struct tt_rows){.begin = i * place->chunk,
                                    .rows = left < rows ? left : rows,
                                    .width = block->shape[1],
                                    .stride = place->width,
                                    .index = (block->offset[0] + first) * place->width + block->offset[1]};
    }
    return parts;
}

static void bind_rows(struct tt_executor *ex)
{
    const struct tt_layout *layout = ex->program->layout;

    ex->rows = tt_calloc((size_t)layout->n_units, sizeof(struct tt_rows *));
    ex->parts = tt_calloc((size_t)layout->n_units, sizeof(struct tt_rows **));
    for (int u = 0; u < layout->n_units; u++) {
        const struct tt_unit *unit = &layout->units[u];

        ex->rows[u] = tt_calloc((size_t)unit->n_trained + 1, sizeof **ex->rows);
        ex->parts[u] = tt_calloc((size_t)unit->n_trained + 1, sizeof(struct tt_rows *));
        for (int i = 0; i < unit->n_trained; i++) {
            const struct tt_unit_param *place = &unit->params[i];
            const struct tt_box *box = &place->box;

            ex->rows[u][i] =
                (struct tt_rows){.begin = place->offset,
                                 .rows = box->shape[0],
                                 .width = tt_box_row_elements(box),
                                 .stride = place->width,
                                 .grain = place->grain,
                                 .adds = place->adds_squares,
                                 .stream = place->stream,
                                 .index = box->offset[0] * place->width + (box->ndim == 2 ? box->offset[1] : 0),
                                 .lr_factor = place->lr_factor,
                                 .no_decay = place->no_decay,
                                 .code = place->offset - unit->codes_begin,
                                 .block = place->first_block,
                                 .run = place->run};
            ex->parts[u][i] = parts_of(layout, place);
        }
    }
}

/* Allocates the tables for the largest node whose experts are spread over ranks. */
static void make_routing(struct tt_executor *ex)
{
    const struct tt_program *p = ex->program;
    int ends = 0, ranks = 0;

    for (int s = 0; s < p->n_stages; s++)
        for (int n = 0; n < p->stages[s].graph->n_nodes; n++) {
            struct tt_routing_ranks of = tt_node_routing_ranks(&p->stages[s].graph->nodes[n]);

            if (!tt_node_routes(p->stages[s].graph, n, &(struct tt_routed){0}))
                continue;
            ends = tt_routing_ends(&of) > ends ? tt_routing_ends(&of) : ends;
            ranks = of.n > ranks ? of.n : ranks;
        }
    tt_routing_init(&ex->routing, ends, ranks);
}

static void fill_constants(struct tt_executor *ex)
{
    const struct tt_program *p = ex->program;

    for (int b = 0; b < p->n_buffers; b++) {
        const struct tt_graph *graph;
        const struct tt_value *value;

        if (p->buffers[b].kind != TT_MEMORY_CONST)
            continue;
        graph = p->stages[p->buffers[b].stage].graph;
        value = &graph->values[p->buffers[b].value]; /* RoPE's tables are the only constants */
        tt_running_step(ex, (struct tt_step_call){.op = TT_STEP_ROPE_TABLE,
                                                  .rope = tt_graph_rope_of(graph, p->buffers[b].value),
                                                  .n = value->shape[0],
                                                  .stride = 2 * value->shape[1],
                                                  .out = {buffer_address(ex, b)}});
    }
}

struct tt_executor *tt_executor_new(const struct tt_program *program, struct tt_state *state, void *const_region,
                                    void *step_region, struct tt_team *team, struct tt_device_stream *stream)
{
    struct tt_executor *ex = tt_calloc(1, sizeof *ex);

    ex->program = program;
    ex->state = state;
    ex->team = team;
    ex->stream = stream;
    ex->const_region = const_region;
    ex->step_region = step_region;
    ex->address = tt_calloc((size_t)program->n_operands + 1, sizeof *ex->address);
    for (int i = 0; i < program->n_operands; i++)
        if (program->operands[i] != TT_NONE)
            ex->address[i] = buffer_address(ex, program->operands[i]);
    ex->spans = tt_calloc((size_t)program->n_instrs + 1, sizeof *ex->spans);
    ex->sums = tt_calloc(1, tt_sums_bytes(program->layout));
    ex->none = tt_calloc(1, tt_sums_bytes(program->layout));
    ex->loads = tt_calloc((size_t)tt_layout_loads(program->layout) + 1, sizeof *ex->loads);
    bind_rows(ex);
    make_routing(ex);
    fill_constants(ex);
    return ex;
}

void tt_executor_free(struct tt_executor *ex)
{
    if (!ex)
        return;
    for (int u = 0; u < ex->program->layout->n_units; u++) {
        for (int i = 0; i < ex->program->layout->units[u].n_trained; i++)
            tt_free(ex->parts[u][i]);
        tt_free(ex->parts[u]);
        tt_free(ex->rows[u]);
    }
    tt_free(ex->parts);
    tt_free(ex->rows);
    tt_routing_release(&ex->routing);
    tt_free(ex->address);
    tt_free(ex->spans);
    tt_free(ex->sums);
    tt_free(ex->none);
    tt_free(ex->loads);
    tt_free(ex);
}

void tt_executor_set_exchange(struct tt_executor *ex, const struct tt_exchange *exchange)
{
    ex->exchange = *exchange;
}

void tt_executor_set_microbatches(struct tt_executor *ex, const int64_t *numbers)
{
    ex->microbatches = numbers;
}

void *tt_executor_operand(const struct tt_executor *ex, int instr, int operand)
{
    return ex->address[ex->program->instrs[instr].operands + operand];
}

static int32_t *input_of(const struct tt_executor *ex, int buffer)
{
    return buffer == TT_NONE ? NULL : (int32_t *)(void *)buffer_address(ex, buffer);
}

struct tt_inputs tt_executor_inputs(const struct tt_executor *ex, int mb)
{
    const struct tt_program *p = ex->program;

    tt_device_synchronize(ex->stream); /* if this fails, the next run fails too */
    return (struct tt_inputs){input_of(ex, p->tokens[mb]), input_of(ex, p->labels[mb]), input_of(ex, p->positions[mb])};
}

int tt_executor_logits(const struct tt_executor *ex, const float **ret_logits)
{
    *ret_logits = (const float *)(const void *)buffer_address(ex, ex->program->logits);
    return tt_device_wait(ex->stream, ex->done);
}

const struct tt_span *tt_executor_spans(const struct tt_executor *ex)
{
    return ex->spans;
}

/* --- the first value that is not finite --- */

bool tt_running_all_finite(enum tt_dtype dtype, const void *data, int64_t n)
{
    bool finite = true;

    for (int64_t i = 0; i < n && finite; i++) {
        if (dtype == TT_F32)
            finite = isfinite(((const float *)data)[i]);
        else if (dtype == TT_F64)
            finite = isfinite(((const double *)data)[i]);
        else if (dtype == TT_BF16)
            finite = isfinite(tt_bf16_to_float(((const tt_bf16 *)data)[i]));
    }
    return finite;
}

/* --- the walk --- */

void tt_running_step(struct tt_executor *ex, struct tt_step_call call)
{
    call.team = ex->team;
    if (ex->program->param_dtype == TT_F64)
        call.dtype = TT_F64;
    tt_device_launch_step(ex->stream, &call);
}

/*
 * At a few points of the step (tt_program_asks), asks the ranks whether to abandon it. All ranks have begun the same
 * exchanges before each of these points (parallel/engine/agree.h). Once the ranks have decided to update, the step
 * cannot be abandoned, since parameters change from then on.
 */
static int ask(struct tt_executor *ex, const struct tt_step *step, int i, bool *decided)
{
    const struct tt_program *p = ex->program;
    double most;
    int rc = 0;

    *decided |= tt_instr_row(&p->instrs[i])->decides;
    if (!step->asked_to_stop || ex->bad || *decided || !tt_program_asks(p, i))
        return 0;
    most = -(double)step->asked_to_stop();
    if (ex->exchange.most)
        TT_TRY(ex->exchange.most(ex->exchange.ctx, &most));
    if (most <= 0.0)
        return 0;
    for (int w = i; w < p->n_instrs; w++) /* no transfer may still write to the arena afterwards */
        if (tt_instr_row(&p->instrs[w])->waits && p->instrs[w].begin < i)
            TT_TRY(tt_running_wait(ex, p->instrs[w].begin));
    rc = -(int)most;
out:
    return rc;
}

static int walk(struct tt_executor *ex, struct tt_step *step, bool stop_at_decision)
{
    bool decided = false;
    const struct tt_program *p = ex->program;
    double last = tt_clock_sec();
    int rc = 0;

    tt_device_copy(ex->stream, ex->state->sums, ex->none, tt_sums_bytes(p->layout));
    tt_team_set_poll(ex->team, ex->exchange.poll, ex->exchange.ctx);
    for (int i = 0; i < p->n_instrs; i++) {
        const struct tt_instr_row *row = tt_instr_row(&p->instrs[i]);
        double now;

        if (stop_at_decision && row->decides)
            break;
        TT_TRY(ask(ex, step, i, &decided));
        ex->spans[i].begin = last;
        if (row->run)
            TT_TRY(row->run(ex, i, step));
        ex->spans[i].end = now = tt_clock_sec();
        if (step->tick.fn)
            step->tick.fn(step->tick.arg, now);
        if (ex->exchange.progress) {
            TT_TRY(ex->exchange.progress(ex->exchange.ctx));
            now = tt_clock_sec();
        }
        last = now;
    }
out:
    ex->done = tt_device_record(ex->stream);
    tt_team_set_poll(ex->team, NULL, NULL);
    return rc;
}

int tt_executor_run(struct tt_executor *ex, struct tt_step *step)
{
    int rc;

    step->scalars.loads = ex->loads;
    rc = walk(ex, step, false);
    if (rc == 0 && step->loads) /* all routers have run, since the stream was awaited for the sums */
        memcpy(ex->loads, step->loads, (size_t)tt_layout_loads(ex->program->layout) * sizeof *ex->loads);
    return rc;
}

void tt_executor_observe(struct tt_executor *ex, const struct tt_observer *observer)
{
    ex->observer = observer;
}

int64_t *tt_executor_loads(struct tt_executor *ex, int64_t *ret_n)
{
    *ret_n = tt_layout_loads(ex->program->layout);
    return ex->loads;
}

int tt_executor_explain(struct tt_executor *ex, struct tt_step *step, struct tt_bad_value *ret_bad)
{
    int rc;

    *ret_bad = (struct tt_bad_value){.order = INT64_MAX};
    ex->bad = ret_bad;
    rc = walk(ex, step, true);
    ex->bad = NULL;
    return rc;
}
