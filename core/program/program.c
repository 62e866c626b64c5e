/* SPDX-License-Identifier: MIT
 *
 * Schedules, names and sizes of programs. lower.c lowers schedules, memory_plan.c assigns offsets, and executor.c runs
 * programs.
 */
#include "core/program/program.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/ops/experts/router.h"

const char *tt_memory_name(enum tt_memory_kind kind)
{
    static const char *const names[TT_MEMORY_KINDS] = {
        [TT_MEMORY_PARAM] = "parameters",
        [TT_MEMORY_OPTIMIZER] = "optimizer",
        [TT_MEMORY_CONST] = "constants",
        [TT_MEMORY_CACHE] = "key/value cache",
        [TT_MEMORY_INPUT] = "inputs",
        [TT_MEMORY_UNSHARDED] = "unsharded parameters",
        [TT_MEMORY_KEPT] = "kept parameters",
        [TT_MEMORY_ACTIVATION] = "activations",
        [TT_MEMORY_ACTIVATION_GRAD] = "activation gradients",
        [TT_MEMORY_PARAM_GRAD] = "unsharded gradients",
        [TT_MEMORY_GRAD] = "gradients",
        [TT_MEMORY_STAGING] = "reduce staging",
        [TT_MEMORY_SCRATCH] = "scratch",
    };

    return names[kind];
}

const char *tt_group_name(enum tt_group_id id)
{
    static const char *const names[TT_GROUPS] = {
#define TT_GROUP(id, name, dims, part) [TT_GROUP_##id] = name,
#include "core/program/groups.def"
#undef TT_GROUP
    };

    return names[id];
}

static void add(struct tt_schedule *schedule, struct tt_instr instr)
{
    instr.begin = TT_NONE;
    TT_PUSH(schedule->instrs, schedule->n, schedule->cap) = instr;
}

void tt_schedule_run(struct tt_schedule *schedule, const struct tt_stage *stages, int microbatch, int stage, int node)
{
    const struct tt_graph *graph = stages[stage].graph;
    struct tt_instr instr = {
        .kind = TT_RUN, .microbatch = microbatch, .stage = stage, .node = node, .unit = TT_NONE, .bucket = TT_NONE};

    add(schedule, instr);
    if (tt_node_counted(graph, node, &(struct tt_router_counted){0}) && !graph->cache_len) {
        instr.kind = TT_COUNT;
        add(schedule, instr);
    }
    if (graph->nodes[node].out[0] != graph->token_loss)
        return;
    instr.kind = TT_LOSS;
    instr.node = TT_NONE;
    add(schedule, instr);
}

void tt_schedule_add(struct tt_schedule *schedule, enum tt_instr_kind kind, int microbatch, int unit)
{
    add(schedule,
        (struct tt_instr){.kind = kind, .microbatch = microbatch, .node = TT_NONE, .unit = unit, .bucket = TT_NONE});
}

void tt_schedule_collective(struct tt_schedule *schedule, enum tt_instr_kind kind, enum tt_purpose purpose,
                            int microbatch, int unit, int bucket)
{
    add(schedule, (struct tt_instr){.kind = kind,
                                    .purpose = purpose,
                                    .microbatch = microbatch,
                                    .node = TT_NONE,
                                    .unit = bucket == TT_NONE ? unit : schedule->buckets[bucket].units[0],
                                    .bucket = bucket});
}

void tt_schedule_transfer(struct tt_schedule *schedule, enum tt_instr_kind kind, enum tt_purpose purpose,
                          int microbatch, int stage)
{
    add(schedule, (struct tt_instr){.kind = kind,
                                    .purpose = purpose,
                                    .microbatch = microbatch,
                                    .stage = stage,
                                    .node = TT_NONE,
                                    .unit = TT_NONE,
                                    .bucket = TT_NONE});
}

struct tt_bucket tt_bucket_copy(const struct tt_bucket *bucket)
{
    int *units = tt_calloc((size_t)bucket->n, sizeof *units);

    memcpy(units, bucket->units, (size_t)bucket->n * sizeof *units);
    return (struct tt_bucket){units, bucket->n};
}

int tt_schedule_bucket(struct tt_schedule *schedule, const int *units, int n)
{
    TT_PUSH(schedule->buckets, schedule->n_buckets, schedule->cap_buckets) =
        tt_bucket_copy(&(struct tt_bucket){units, n});
    return schedule->n_buckets - 1;
}

static void release_buckets(struct tt_bucket *buckets, int n)
{
    for (int b = 0; b < n; b++)
        tt_free((void *)buckets[b].units);
    tt_free(buckets);
}

void tt_schedule_release(struct tt_schedule *schedule)
{
    release_buckets(schedule->buckets, schedule->n_buckets);
    tt_free(schedule->instrs);
    *schedule = (struct tt_schedule){0};
}

struct tt_bucket tt_instr_units(const struct tt_bucket *buckets, const struct tt_instr *instr)
{
    return instr->bucket != TT_NONE ? buckets[instr->bucket] : (struct tt_bucket){&instr->unit, instr->unit != TT_NONE};
}

void tt_program_free(struct tt_program *program)
{
    if (!program)
        return;
    if (program->schedule)
        tt_schedule_release(program->schedule);
    tt_free(program->schedule);
    release_buckets(program->buckets, program->n_buckets);
    tt_free(program->instrs);
    tt_free(program->operands);
    tt_free(program->buffers);
    tt_free(program->tokens);
    tt_free(program->labels);
    tt_free(program->positions);
    tt_free(program);
}

void tt_program_memory_at(const struct tt_program *program, int instr, int64_t bytes[TT_MEMORY_KINDS])
{
    memset(bytes, 0, TT_MEMORY_KINDS * sizeof *bytes);
    for (int b = 0; b < program->n_buffers; b++) {
        const struct tt_buffer *buffer = &program->buffers[b];

        if (buffer->root == b && buffer->kind != TT_MEMORY_PARAM && buffer->first <= instr && instr <= buffer->last)
            bytes[buffer->kind] += buffer->bytes;
    }
}
