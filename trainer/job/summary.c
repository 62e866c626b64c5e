/* SPDX-License-Identifier: MIT
 *
 * Sums over the instructions and buffers of a program, for plan, estimate and tune.
 */
#include "trainer/job/summary.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"

/* --- collectives --- */

/* The row of an instruction, found in the chain of rows with the same first unit; TT_NONE if there is none yet. Rows
 * without units are told apart by their stages and, for the same purpose, by their bytes. */
static int find_row(const struct tt_summary *s, const int *chain, int head, const struct tt_instr *instr)
{
    const struct tt_bucket of = tt_instr_units(s->program->buckets, instr);

    for (int r = head; r != TT_NONE; r = chain[r]) {
        const struct tt_summary_collective *row = &s->collectives[r];

        if (row->purpose == instr->purpose && row->n_units == of.n &&
            row->shard_bytes == instr->collective.shard_bytes && s->program->instrs[row->first].stage == instr->stage &&
            (of.n == 0 || memcmp(row->units, of.units, (size_t)of.n * sizeof *of.units) == 0))
            return r;
    }
    return TT_NONE;
}

static void add_collective(struct tt_summary *s, int *head, int **chain, int *cap_chain, int i)
{
    const struct tt_instr *instr = &s->program->instrs[i];
    struct tt_summary_total *total = &s->totals[instr->purpose];
    int row, n_chain = s->n_collectives;
    const struct tt_bucket of = tt_instr_units(s->program->buckets, instr);
    int *start = &head[of.n ? of.units[0] : s->program->layout->n_units];

    row = find_row(s, *chain, *start, instr);
    if (row == TT_NONE) {
        row = s->n_collectives;
        TT_PUSH(s->collectives, s->n_collectives, s->cap_collectives) =
            (struct tt_summary_collective){.purpose = instr->purpose,
                                           .units = of.units,
                                           .n_units = of.n,
                                           .first = i,
                                           .shard_bytes = instr->collective.shard_bytes,
                                           .payload_bytes = tt_instr_payload(instr)};
        TT_PUSH(*chain, n_chain, *cap_chain) = *start;
        *start = row;
    }
    s->collectives[row].count++;
    total->count++;
    total->shard_bytes += s->collectives[row].shard_bytes;
    total->payload_bytes += s->collectives[row].payload_bytes;
}

static void find_collectives(struct tt_summary *s)
{
    int n_units = s->program->layout->n_units, cap_chain = 0;
    /* chain: of rows with the same first unit; the last head is for rows without units (transfers of stages) */
    int *head = tt_calloc((size_t)n_units + 1, sizeof *head), *chain = NULL;

    for (int u = 0; u <= n_units; u++)
        head[u] = TT_NONE;
    for (int i = 0; i < s->program->n_instrs; i++)
        if (tt_instr_row(&s->program->instrs[i])->begins)
            add_collective(s, head, &chain, &cap_chain, i);
    tt_free(head);
    tt_free(chain);
}

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

static void find_live(struct tt_summary *s)
{
    const struct tt_program *p = s->program;

    s->live = tt_calloc((size_t)p->n_instrs + 1, sizeof *s->live);
    for (int b = 0; b < p->n_buffers; b++) {
        const struct tt_buffer *buffer = &p->buffers[b];

        if (buffer->root != b || buffer->kind == TT_MEMORY_PARAM || buffer->kind == TT_MEMORY_CONST)
            continue;
        s->live[buffer->first][buffer->kind] += buffer->bytes;
        s->live[buffer->last + 1][buffer->kind] -= buffer->bytes;
    }
    for (int i = 1; i < p->n_instrs; i++)
        for (int k = 0; k < TT_MEMORY_KINDS; k++)
            s->live[i][k] += s->live[i - 1][k];
    for (int i = 0; i < p->n_instrs; i++) {
        s->live[i][TT_MEMORY_PARAM] = s->memory.by_kind[TT_MEMORY_PARAM];
        s->live[i][TT_MEMORY_OPTIMIZER] = s->memory.by_kind[TT_MEMORY_OPTIMIZER];
        s->live[i][TT_MEMORY_CONST] = s->memory.by_kind[TT_MEMORY_CONST];
        s->live[i][TT_MEMORY_INPUT] += s->memory.samples;
    }
}

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

void tt_summary_init(const struct tt_engine *engine, struct tt_summary *ret_summary)
{
    *ret_summary = (struct tt_summary){.program = tt_engine_program(engine), .memory = tt_engine_memory(engine)};
    find_collectives(ret_summary);
    find_live(ret_summary);
}

void tt_summary_release(struct tt_summary *s)
{
    tt_free(s->collectives);
    tt_free(s->live);
    *s = (struct tt_summary){0};
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
