/* SPDX-License-Identifier: MIT
 *
 * Parameters: gathered from shards or from kept parts, freed, or kept in part.
 *
 * To gather float32 in bfloat16, a shard is rounded into its place in the whole and sent from there. Nodes use the
 * whole as it arrives.
 */
#include "core/math/bf16.h"
#include "core/program/instr/instr.h"
#include "core/program/instr/running.h"
#include "core/program/lower/lowering.h"

/* --- gathers --- */

static void whole_of_unit(struct tt_walk *w, int u)
{
    const struct tt_unit *unit = &w->in.layout->units[u];

    for (int i = 0; i < unit->n_params; i++) {
        int buffer = tt_lower_made(w, TT_MEMORY_UNSHARDED,
                                   tt_unit_whole(w->in.layout, u, unit->params[i].chunk) *
                                       (int64_t)tt_dtype_size(w->in.param_dtype));

        w->program->buffers[buffer].unit = u;
        w->unsharded[unit->params[i].param] = buffer;
        tt_lower_operand(w, buffer);
    }
}

/* Gathers from kept parts if there are any, so the schedule need not know. */
static int lower_unshard(struct tt_walk *w, const struct tt_instr *from)
{
    int n, kept = 0;
    const int *units = tt_instr_units(w->program->buckets, from, &n);

    for (int i = 0; i < n; i++)
        kept += w->kept[units[i]] != TT_NONE;
    if (kept && kept < n)
        return tt_fail(TT_EINTERNAL, "a bucket gathers %d units from kept parts and %d from shards", kept, n - kept);
    tt_lower_collective(w, from, kept ? TT_UNSHARD_KEPT : TT_UNSHARD);
    for (int i = 0; i < n; i++)
        whole_of_unit(w, units[i]);
    for (int i = 0; i < kept; i++) {
        tt_lower_operand(w, w->kept[units[i]]);
        w->kept[units[i]] = TT_NONE;
    }
    return 0;
}

static void round_shards(struct tt_executor *ex, const struct tt_instr *begin)
{
    const struct tt_layout *layout = ex->program->layout;
    void *const *address = tt_running_address(ex, begin);
    int n, operand = 0;
    const int *units = tt_instr_units(ex->program->buckets, begin, &n);

    if (begin->collective.dtype == ex->program->shard_dtype)
        return;
    for (int u = 0; u < n; u++) {
        const struct tt_unit *unit = &layout->units[units[u]];
        struct tt_place shard = tt_unit_shard(layout, units[u]);

        for (int k = 0; k < unit->n_params; k++, operand++) {
            int64_t chunk = unit->params[k].chunk;
            tt_bf16 *own = (tt_bf16 *)address[operand] + shard.index * chunk;
            void *shards = tt_state_at(ex->state, TT_STATE_PARAM, units[u], unit->params[k].offset);

            tt_running_step(ex, (struct tt_step_call){.op = TT_STEP_ROUND, .in = shards, .n = chunk, .out = {own}});
        }
    }
}

static void cost_of_rounding(const struct tt_program *program, const struct tt_instr *begin, struct tt_instr_cost *cost)
{
    int n;
    const int *units = tt_instr_units(program->buckets, begin, &n);
    struct tt_step_call round = {.op = TT_STEP_ROUND};

    if (begin->collective.dtype == program->shard_dtype)
        return;
    for (int u = 0; u < n; u++)
        round.n += program->layout->units[units[u]].shard_elements;
    tt_step_row(round.op)->cost(&round, &cost->work);
}

const struct tt_purpose_row tt_purpose_unshard = {
    .name = "unshard",
    .wait_name = "wait unshard",
    .op = TT_ALL_GATHER,
    .among = TT_AMONG_SHARDS,
    .carries = TT_CARRIES_PARAMS,
    .lower = lower_unshard,
    .before = round_shards,
    .cost = cost_of_rounding,
};

const struct tt_purpose_row tt_purpose_unshard_kept = {
    .name = "unshard kept",
    .wait_name = "wait unshard",
    .part_of_group = "neighbours in ",
    .op = TT_ALL_GATHER,
    .among = TT_AMONG_NEIGHBOURS,
    .carries = TT_CARRIES_PARAMS,
    .rare = true,
};

/* --- TT_RESHARD --- */

/* With operands, the buffers live until here. Otherwise each was freed after its last read. */
static void free_whole(struct tt_walk *w, const struct tt_instr *from, bool operands)
{
    const struct tt_unit *unit = &w->in.layout->units[from->unit];

    tt_lower_begin(w, from);
    for (int i = 0; i < unit->n_params; i++) {
        if (operands)
            tt_lower_operand(w, w->unsharded[unit->params[i].param]);
        w->unsharded[unit->params[i].param] = TT_NONE;
    }
}

/* If nothing travels, a parameter was only rounded, and need not live longer than it is read. */
static int lower_reshard(struct tt_walk *w, const struct tt_instr *from)
{
    struct tt_collective_desc desc = tt_lower_describe(w, TT_UNSHARD, &from->unit, 1);

    if (tt_lowering_gathers(&w->in, from->unit))
        free_whole(w, from, !w->in.free_early && tt_collective_travels(&desc));
    return 0;
}

const struct tt_instr_row tt_instr_reshard = {
    .name = "reshard",
    .part = TT_SPLIT_COMMUNICATION,
    .phase = TT_PHASE_SUMS,
    .of_units = true,
    .quiet = true,
    .lower = lower_reshard,
};

/* --- TT_KEEP --- */

static int lower_keep(struct tt_walk *w, const struct tt_instr *from)
{
    struct tt_collective_desc desc = tt_lower_describe(w, TT_UNSHARD_KEPT, &from->unit, 1);

    free_whole(w, from, true);
    w->kept[from->unit] = tt_lower_made(w, TT_MEMORY_KEPT, desc.bytes); /* as it travels */
    w->program->buffers[w->kept[from->unit]].unit = from->unit;
    tt_lower_operand(w, w->kept[from->unit]);
    return 0;
}

/* Copies this rank's part of the gathered parameters: the S / n chunks of its place among n neighbours. */
static int run_keep(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_program *p = ex->program;
    const struct tt_instr *instr = &p->instrs[i];
    const struct tt_unit *unit = &p->layout->units[instr->unit];
    struct tt_place shard = tt_unit_shard(p->layout, instr->unit);
    int64_t chunks = shard.n / unit->keep_degree, part = shard.index % unit->keep_degree;
    void *const *address = tt_running_address(ex, instr);
    char *kept = address[unit->n_params];

    (void)step;
    for (int k = 0; k < unit->n_params; k++) {
        int64_t bytes = chunks * unit->params[k].chunk * (int64_t)tt_dtype_size(p->param_dtype);

        tt_device_copy(ex->stream, kept, (const char *)address[k] + part * bytes, (size_t)bytes);
        kept += bytes;
    }
    return 0;
}

const struct tt_instr_row tt_instr_keep = {
    .name = "keep part",
    .part = TT_SPLIT_COMMUNICATION,
    .phase = TT_PHASE_SUMS,
    .of_units = true,
    .lower = lower_keep,
    .run = run_keep,
};
