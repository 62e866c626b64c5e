/* SPDX-License-Identifier: MIT
 *
 * Sums over the positions of a step.
 */
#include "parallel/planner/step_facts.h"

#include "core/base/mem.h"

/* Whether memory is for exchange: gathered parameters, whole gradients, staging. */
static bool is_exchanged(enum tt_memory_kind kind)
{
    return kind == TT_MEMORY_UNSHARDED || kind == TT_MEMORY_PARAM_GRAD || kind == TT_MEMORY_STAGING;
}

/* Live bytes at each instruction, of buffers for exchange or of all others. State is in neither. */
static int64_t *live_bytes(const struct tt_program *p, bool exchanged)
{
    int64_t *live = tt_calloc((size_t)p->n_instrs + 1, sizeof *live);

    for (int i = 0; i < p->n_buffers; i++) {
        const struct tt_buffer *b = &p->buffers[i];
        int64_t bytes = tt_arena_bytes(b->bytes);

        if (b->root != i || b->kind == TT_MEMORY_PARAM || b->kind == TT_MEMORY_CONST ||
            is_exchanged(b->kind) != exchanged)
            continue;
        live[b->first] += bytes;
        live[b->last + 1] -= bytes;
    }
    for (int i = 1; i <= p->n_instrs; i++)
        live[i] += live[i - 1];
    return live;
}

int64_t tt_program_exchanged_bytes(const struct tt_program *program)
{
    int64_t *live = live_bytes(program, true), bytes = live[program->peak_instr];

    tt_free(live);
    return bytes;
}

/* The TT_RUN instructions of a program are the positions of its order, one after another. */
static void measure_others(const struct tt_program *eager, int64_t *other_bytes)
{
    int64_t *live = live_bytes(eager, false);

    for (int i = 0, pos = 0; i < eager->n_instrs; i++)
        if (eager->instrs[i].node != TT_NONE)
            other_bytes[pos++] = live[i];
    tt_free(live);
}

/* Bytes of a whole gradient or parameter of a unit, with parts of `chunk` elements, as the memory plan counts them. */
static int64_t whole_bytes(const struct tt_layout *layout, int unit, int64_t chunk, enum tt_dtype dtype)
{
    return tt_arena_bytes(tt_unit_whole(layout, unit, chunk) * (int64_t)tt_dtype_size(dtype));
}

static void measure_units(const struct tt_lowering *lowering, struct tt_step_facts *f)
{
    const struct tt_layout *layout = lowering->layout;

    f->param_bytes = tt_calloc((size_t)layout->n_params + 1, sizeof *f->param_bytes);
    f->unit_bytes = tt_calloc((size_t)layout->n_units + 1, sizeof *f->unit_bytes);
    f->unit_grad_bytes = tt_calloc((size_t)layout->n_units + 1, sizeof *f->unit_grad_bytes);
    for (int unit = 0; unit < layout->n_units; unit++) {
        bool gathers = tt_lowering_gathers(lowering, unit), reduces = tt_lowering_reduces(lowering, unit);
        const struct tt_unit *of = &layout->units[unit];

        for (int k = 0; gathers && k < of->n_params; k++) {
            int64_t bytes = whole_bytes(layout, unit, of->params[k].chunk, lowering->param_dtype);

            f->param_bytes[of->params[k].param] = bytes;
            f->unit_bytes[unit] += bytes;
        }
        for (int k = 0; reduces && k < of->n_grads; k++)
            f->unit_grad_bytes[unit] += whole_bytes(layout, unit, of->grads[k].chunk, TT_F32);
    }
}

void tt_step_facts_make(const struct tt_usage *usage, const struct tt_lowering *lowering,
                        const struct tt_machine *machine, const struct tt_program *eager,
                        struct tt_step_facts *ret_facts)
{
    const struct tt_layout *layout = usage->layout;
    size_t n = (size_t)usage->n_positions;
    struct tt_step_facts f = {.usage = usage};

    f.node_sec = tt_calloc(n + 1, sizeof *f.node_sec);
    f.begin_sec = tt_calloc(n + 1, sizeof *f.begin_sec);
    f.grad_bytes = tt_calloc(n + 1, sizeof *f.grad_bytes);
    f.other_bytes = tt_calloc(n + 1, sizeof *f.other_bytes);
    for (int pos = 0; pos < usage->n_positions; pos++) {
        const struct tt_graph *graph = tt_usage_graph(usage, pos);

        f.node_sec[pos] = tt_cost_node_sec(machine, graph, usage->positions[pos].node, eager->threads);
        f.begin_sec[pos + 1] = f.begin_sec[pos] + f.node_sec[pos];
        for (int i = usage->begins_grad[pos]; i < usage->begins_grad[pos + 1]; i++) {
            const struct tt_value *grad = &graph->values[usage->begun_grads[i]];
            int unit = layout->unit_of[grad->param];
            int64_t chunk = layout->units[unit].grads[tt_layout_grad(layout, grad->param, grad->part)].chunk;

            if (tt_lowering_reduces(lowering, unit))
                f.grad_bytes[pos] += whole_bytes(layout, unit, chunk, TT_F32);
        }
    }
    measure_units(lowering, &f);
    measure_others(eager, f.other_bytes);
    *ret_facts = f;
}

void tt_step_facts_release(struct tt_step_facts *f)
{
    tt_free(f->node_sec);
    tt_free(f->begin_sec);
    tt_free(f->grad_bytes);
    tt_free(f->other_bytes);
    tt_free(f->param_bytes);
    tt_free(f->unit_bytes);
    tt_free(f->unit_grad_bytes);
    *f = (struct tt_step_facts){0};
}
