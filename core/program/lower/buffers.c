/* SPDX-License-Identifier: MIT
 *
 * Lowering: the program as it grows, and the buffers of values. Reading a buffer extends its life to the reader.
 */
#include "core/base/mem.h"
#include "core/ops/op.h"
#include "core/program/lower/lowering.h"
#include "core/program/state.h"

/* --- the program as it grows --- */

int tt_lower_buffer(struct tt_walk *w, enum tt_memory_kind kind, int64_t bytes)
{
    struct tt_program *p = w->program;
    int id = p->n_buffers;

    TT_PUSH(p->buffers, p->n_buffers, p->cap_buffers) = (struct tt_buffer){.kind = kind,
                                                                           .bytes = bytes,
                                                                           .first = p->n_instrs,
                                                                           .last = p->n_instrs,
                                                                           .root = id,
                                                                           .value = TT_NONE,
                                                                           .microbatch = TT_NONE,
                                                                           .unit = TT_NONE};
    return id;
}

int tt_lower_part(struct tt_walk *w, int root, int64_t offset, int64_t bytes)
{
    int id = tt_lower_buffer(w, w->program->buffers[root].kind, bytes);

    w->program->buffers[id].root = root;
    w->program->buffers[id].offset = offset;
    return id;
}

void tt_lower_begin(struct tt_walk *w, const struct tt_instr *from)
{
    struct tt_program *p = w->program;
    struct tt_instr *instr = &TT_PUSH(p->instrs, p->n_instrs, p->cap_instrs);

    *instr = *from;
    instr->operands = p->n_operands;
    instr->n_operands = 0;
}

void tt_lower_operand(struct tt_walk *w, int buffer)
{
    struct tt_program *p = w->program;

    TT_PUSH(p->operands, p->n_operands, p->cap_operands) = buffer;
    p->instrs[p->n_instrs - 1].n_operands++;
    if (buffer != TT_NONE)
        p->buffers[p->buffers[buffer].root].last = p->n_instrs - 1;
}

int tt_lower_made(struct tt_walk *w, enum tt_memory_kind kind, int64_t bytes)
{
    int id = tt_lower_buffer(w, kind, bytes);

    w->program->buffers[id].first = w->program->buffers[id].last = w->program->n_instrs - 1;
    return id;
}

/* --- values --- */

static int param_buffer(struct tt_walk *w, int param)
{
    const struct tt_layout *layout = w->in.layout;
    const struct tt_unit_param *place = tt_layout_param(layout, param);
    const struct tt_unit *unit = &layout->units[layout->unit_of[param]];
    int64_t size = (int64_t)tt_dtype_size(tt_state_unit_dtype(TT_STATE_PARAM, unit, w->in.shard_dtype));

    if (tt_lowering_gathers(&w->in, layout->unit_of[param]))
        return w->unsharded[param];
    if (w->unsharded[param] == TT_NONE)
        w->unsharded[param] =
            tt_lower_part(w, w->param_shard[layout->unit_of[param]], place->offset * size, place->chunk * size);
    return w->unsharded[param];
}

int64_t tt_lower_grad_owner(const struct tt_walk *w, int mb)
{
    return w->carries ? 0 : mb;
}

int tt_lower_grad(struct tt_walk *w, int mb, int unit, int k)
{
    const struct tt_layout *layout = w->in.layout;
    const struct tt_unit_grad *place = &layout->units[unit].grads[k];
    int64_t owned = tt_lower_grad_owner(w, mb) * layout->n_units + unit;
    int *slot = &w->grad_buffer[owned][k], *flat = &w->unit_grad[owned];

    if (*slot != TT_NONE)
        return *slot;
    if (tt_lowering_reduces(&w->in, unit)) {
        *slot = tt_lower_made(w, TT_MEMORY_PARAM_GRAD,
                              place->chunk * tt_unit_shard(layout, unit).n * (int64_t)sizeof(float));
    } else {
        if (*flat == TT_NONE) {
            *flat = tt_lower_made(w, TT_MEMORY_GRAD, layout->units[unit].grad_elements * (int64_t)sizeof(float));
            w->program->buffers[*flat].unit = unit;
        }
        *slot = tt_lower_part(w, *flat, place->offset * (int64_t)sizeof(float), place->chunk * (int64_t)sizeof(float));
    }
    w->program->buffers[*slot].unit = unit;
    return *slot;
}

/* The buffer in which a value that is a gradient of a parameter is written. */
static int grad_of(struct tt_walk *w, int mb, const struct tt_value *value)
{
    int unit = w->in.layout->unit_of[value->param];

    return tt_lower_grad(w, mb, unit, tt_layout_grad(w->in.layout, value->param, value->part));
}

int tt_lower_input(struct tt_walk *w, const struct tt_instr *from, int value)
{
    const struct tt_value *v = &tt_lower_graph(w, from)->values[value];

    switch (v->kind) {
    case TT_VALUE_PARAM:
        return param_buffer(w, v->param);
    case TT_VALUE_PARAM_GRAD:
        return grad_of(w, from->microbatch, v);
    case TT_VALUE_CONST:
    case TT_VALUE_CACHE:
        return w->value_buffer[tt_lower_slot(w, 0, from->stage, value)]; /* shared by all microbatches */
    default:
        return w->value_buffer[tt_lower_slot(w, from->microbatch, from->stage, value)];
    }
}

/* The slot of the input whose memory output k of a node may take, or TT_NONE. */
static int64_t overwritable_input(const struct tt_walk *w, const struct tt_instr *from, int k)
{
    const struct tt_graph *graph = tt_lower_graph(w, from);
    const struct tt_node *node = &graph->nodes[from->node];
    int i = tt_op_row(node->op)->alias[k] - 1, uses = 0;
    const struct tt_value *in, *out = &graph->values[node->out[k]];
    int64_t slot;

    if (i < 0 || node->in[i] == TT_NONE)
        return TT_NONE;
    in = &graph->values[node->in[i]];
    slot = tt_lower_slot(w, from->microbatch, from->stage, node->in[i]);
    for (int j = 0; j < node->n_in; j++)
        uses += node->in[j] != TT_NONE && tt_lower_slot(w, from->microbatch, from->stage, node->in[j]) == slot;
    if (w->last_reader[slot] != w->at || uses != 1 || (in->kind != TT_VALUE_ACTIVATION && in->kind != TT_VALUE_GRAD) ||
        tt_value_bytes(in) != tt_value_bytes(out))
        return TT_NONE;
    return slot;
}

int tt_lower_value(struct tt_walk *w, const struct tt_instr *from, int value)
{
    const struct tt_value *v = &tt_lower_graph(w, from)->values[value];
    int *buffer = &w->value_buffer[tt_lower_slot(w, from->microbatch, from->stage, value)];

    *buffer = tt_lower_made(w, v->kind == TT_VALUE_GRAD ? TT_MEMORY_ACTIVATION_GRAD : TT_MEMORY_ACTIVATION,
                            tt_value_bytes(v));
    w->program->buffers[*buffer].value = value;
    w->program->buffers[*buffer].stage = from->stage;
    w->program->buffers[*buffer].microbatch = from->microbatch;
    return *buffer;
}

int tt_lower_output(struct tt_walk *w, const struct tt_instr *from, int k)
{
    const struct tt_graph *graph = tt_lower_graph(w, from);
    int value = graph->nodes[from->node].out[k];
    const struct tt_value *v = &graph->values[value];
    int *buffer = &w->value_buffer[tt_lower_slot(w, from->microbatch, from->stage, value)];
    int64_t over;

    if (v->kind == TT_VALUE_PARAM_GRAD)
        return grad_of(w, from->microbatch, v);
    over = overwritable_input(w, from, k);
    return over == TT_NONE ? tt_lower_value(w, from, value) : (*buffer = w->value_buffer[over]);
}
