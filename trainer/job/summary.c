/* SPDX-License-Identifier: MIT
 *
 * Sums over the instructions and buffers of a program, for plan, estimate and tune.
 */
#include "trainer/job/summary.h"

#include "core/program/instr/instr.h"

/* --- collectives --- */

int64_t tt_summary_count(const struct tt_summary *s, enum tt_collective_op op)
{
    int64_t count = 0;

    for (int p = 0; p < TT_PURPOSES; p++)
        if (tt_purpose_row((enum tt_purpose)p)->op == op && tt_purpose_row((enum tt_purpose)p)->among != TT_AMONG_PEERS)
            count += s->totals[p].count;
    return count;
}

int64_t tt_summary_exchanges(const struct tt_summary *s)
{
    int64_t count = 0;

    for (int p = 0; p < TT_PURPOSES; p++)
        if (tt_purpose_row((enum tt_purpose)p)->among == TT_AMONG_PEERS)
            count += s->totals[p].count;
    return count;
}

/* --- memory --- */

int64_t tt_summary_live_bytes(const struct tt_summary *s, int instr)
{
    int64_t bytes = 0;

    for (int k = 0; k < TT_MEMORY_KINDS; k++)
        bytes += s->live[instr][k];
    return bytes;
}

int64_t tt_summary_padding(const struct tt_engine_memory *memory)
{
    int64_t bytes = memory->total;

    for (int k = 0; k < TT_MEMORY_KINDS; k++)
        bytes -= memory->by_kind[k];
    return bytes;
}

/* --- words --- */

int64_t tt_summary_unit_elements(const struct tt_model *model, const struct tt_unit *unit)
{
    int64_t sum = 0;

    for (int i = 0; i < unit->n_params; i++) {
        const struct tt_param *param = &model->params[unit->params[i].param];
        int64_t elements = 1;

        for (int d = 0; d < param->ndim; d++)
            elements *= param->shape[d];
        sum += elements;
    }
    return sum;
}

/* The key of a kind in --json. */
static const char *kind_key(enum tt_memory_kind kind)
{
    static const char *const keys[TT_MEMORY_KINDS] = {
        [TT_MEMORY_PARAM] = "params",
        [TT_MEMORY_OPTIMIZER] = "optimizer",
        [TT_MEMORY_CONST] = "constants",
        [TT_MEMORY_CACHE] = "cache",
        [TT_MEMORY_INPUT] = "inputs",
        [TT_MEMORY_UNSHARDED] = "unsharded",
        [TT_MEMORY_KEPT] = "kept",
        [TT_MEMORY_ACTIVATION] = "activations",
        [TT_MEMORY_ACTIVATION_GRAD] = "activation_grads",
        [TT_MEMORY_PARAM_GRAD] = "unsharded_grads",
        [TT_MEMORY_GRAD] = "grads",
        [TT_MEMORY_STAGING] = "reduce",
        [TT_MEMORY_SCRATCH] = "scratch",
    };

    return keys[kind] ? keys[kind] : tt_memory_name(kind);
}

json_t *tt_summary_by_kind(const struct tt_engine_memory *memory)
{
    json_t *o = json_object();

    for (int k = 0; k < TT_MEMORY_KINDS; k++)
        (void)json_object_set_new(o, kind_key((enum tt_memory_kind)k), json_integer(memory->by_kind[k]));
    (void)json_object_set_new(o, "padding", json_integer(tt_summary_padding(memory)));
    return o;
}
