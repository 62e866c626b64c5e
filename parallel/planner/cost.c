/* SPDX-License-Identifier: MIT
 *
 * The cost table, the formulas that use it, and a simulator that runs a program on two lanes.
 */
#include "parallel/planner/cost.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/ops/op.h"
#include "core/program/instr/instr.h"

/* --- the table --- */

static const struct number {
    const char *key;
    size_t offset;
} numbers[] = {
    {"sgemm_flops", offsetof(struct tt_machine, sgemm_flops)},
    {"bgemm_flops", offsetof(struct tt_machine, bgemm_flops)},
    {"memory_bytes_per_sec", offsetof(struct tt_machine, memory_bytes_per_sec)},
    {"call_sec", offsetof(struct tt_machine, call_sec)},
    {"message_sec", offsetof(struct tt_machine, message_sec)},
    {"link_bytes_per_sec", offsetof(struct tt_machine, link_bytes_per_sec)},
};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

static const struct number *const bgemm = &numbers[1]; /* follows the number that stands for it where it is missing */

static double number_of(const struct tt_machine *machine, int i)
{
    double value;

    memcpy(&value, (const char *)machine + numbers[i].offset, sizeof value);
    return value;
}

struct tt_machine tt_machine_builtin(void)
{
    return (struct tt_machine){.name = "built-in: a plain server core",
                               .sgemm_flops = 80e9,
                               .bgemm_flops = 160e9,
                               .memory_bytes_per_sec = 10e9,
                               .call_sec = 20e-6,
                               .message_sec = 10e-6,
                               .link_bytes_per_sec = 2.5e9};
}

static int read_numbers(const json_t *json, const char *path, struct tt_machine *machine)
{
    for (int i = 0; i < N_NUMBERS; i++) {
        double value;
        int rc;

        if (&numbers[i] == bgemm && !json_object_get(json, bgemm->key)) {
            machine->bgemm_flops = machine->sgemm_flops; /* an older file */
            continue;
        }
        if ((rc = tt_json_get_real(json, numbers[i].key, path, &value)) < 0)
            return rc;
        if (!(value > 0.0) || !isfinite(value))
            return tt_fail(TT_EDATA, "%s: %s is %g, wanted a number above 0", path, numbers[i].key, value);
        memcpy((char *)machine + numbers[i].offset, &value, sizeof value);
    }
    return 0;
}

int tt_machine_load(const char *path, struct tt_machine *ret_machine)
{
    struct tt_machine machine = {.name = ""};
    const char *type, *name;
    json_t *json = NULL;
    int64_t schema;
    int rc = 0;

    TT_TRY(tt_json_load(path, &json));
    TT_TRY(tt_json_get_string(json, "type", path, &type));
    TT_TRY(tt_json_get_int(json, "schema", path, &schema));
    if (strcmp(type, "machine") != 0 || (schema != 1 && schema != 2)) {
        rc = tt_fail(TT_EDATA,
                     "%s is of type \"%s\", schema %lld; wanted a machine file of schema 1 or 2\nhelp: `titan bench "
                     "--save FILE` writes one",
                     path, type, (long long)schema);
        goto out;
    }
    TT_TRY(tt_json_get_string(json, "name", path, &name));
    (void)snprintf(machine.name, sizeof machine.name, "%s", name);
    TT_TRY(read_numbers(json, path, &machine));
    *ret_machine = machine;
out:
    json_decref(json);
    return rc;
}

void tt_machine_take_peaks(struct tt_machine *machine, enum tt_dtype dtype, double flops, double float_flops)
{
    double ratio = machine->sgemm_flops / machine->bgemm_flops;

    if (dtype == TT_BF16) {
        machine->bgemm_flops = flops;
        machine->sgemm_flops = float_flops > 0.0 ? float_flops : ratio * flops;
    } else {
        machine->sgemm_flops = flops;
    }
}

json_t *tt_machine_to_json(const struct tt_machine *machine)
{
    json_t *json = json_pack("{s:s, s:i, s:o*}", "type", "machine", "schema", 1, "name", json_string(machine->name));

    for (int i = 0; i < N_NUMBERS; i++)
        (void)json_object_set_new(json, numbers[i].key, json_real(number_of(machine, i)));
    return json;
}

uint64_t tt_machine_hash(const struct tt_machine *machine)
{
    uint64_t hash = 1;

    for (int i = 0; i < N_NUMBERS; i++) {
        double value = number_of(machine, i);

        hash = tt_hash64(&value, sizeof value, hash);
    }
    return hash;
}

/* --- formulas --- */

static double work_sec(const struct tt_machine *machine, const struct tt_cost *work, int threads)
{
    double compute = work->flops / ((work->bf16 ? machine->bgemm_flops : machine->sgemm_flops) * threads),
           memory = work->bytes / machine->memory_bytes_per_sec;

    return compute > memory ? compute : memory;
}

/* Of a node whose experts ranks share: nothing else runs while rows travel. */
static double routed_sec(const struct tt_machine *machine, const struct tt_graph *graph, int node)
{
    int64_t bytes = tt_node_routed_bytes(graph, node);

    return bytes == 0
               ? 0.0
               : TT_ROUTED_CALLS * (machine->call_sec + (graph->nodes[node].attr.peers.n - 1) * machine->message_sec) +
                     (double)bytes / machine->link_bytes_per_sec;
}

double tt_cost_node_sec(const struct tt_machine *machine, const struct tt_graph *graph, int node, int threads)
{
    struct tt_cost cost = {0};

    if (tt_node_exchanges(graph, node)) {
        struct tt_collective_desc desc = tt_node_collective(graph, node);

        return tt_cost_collective_sec(machine, desc.op, desc.ranks, desc.bytes);
    }
    tt_op_row(graph->nodes[node].op)->cost(graph, &graph->nodes[node], &cost);
    return work_sec(machine, &cost, threads) + routed_sec(machine, graph, node);
}

double tt_cost_node_most_sec(const struct tt_machine *machine, const struct tt_graph *graph, int node, int threads)
{
    struct tt_routed_most most = tt_node_routed_most(graph, node);
    struct tt_cost cost = {0};
    double sec = tt_cost_node_sec(machine, graph, node, threads), worst;

    if (most.bytes == 0)
        return sec;
    tt_op_row(graph->nodes[node].op)->cost(graph, &graph->nodes[node], &cost);
    worst = most.rows * work_sec(machine, &cost, threads) + most.calls * machine->call_sec +
            most.messages * machine->message_sec + most.link_bytes / machine->link_bytes_per_sec;
    return fmax(sec, worst);
}

/* The number of messages of a reduce-scatter that wait for each other. */
static int reduce_messages(int n)
{
    int log2 = 0;

    if (n & (n - 1))
        return n - 1;
    while (1 << log2 < n)
        log2++;
    return log2;
}

static double gather_sec(const struct tt_machine *m, int n, double shard)
{
    return (n - 1) * (m->message_sec + shard / m->link_bytes_per_sec);
}

static double reduce_sec(const struct tt_machine *m, int n, double shard)
{
    return reduce_messages(n) * m->message_sec +
           (n - 1) * shard * (1.0 / m->link_bytes_per_sec + 3.0 / m->memory_bytes_per_sec);
}

double tt_cost_collective_sec(const struct tt_machine *machine, enum tt_collective_op op, int n, int64_t bytes)
{
    double slice = ceil((double)bytes / n);

    if (n == 1)
        return 0.0;
    if (op == TT_SEND || op == TT_RECEIVE)
        return machine->call_sec + machine->message_sec + (double)bytes / machine->link_bytes_per_sec;
    if (op == TT_ALL_GATHER || op == TT_ALL_TO_ALL)
        return machine->call_sec + gather_sec(machine, n, (double)bytes);
    if (op == TT_REDUCE_SCATTER)
        return machine->call_sec + reduce_sec(machine, n, (double)bytes);
    return machine->call_sec + reduce_sec(machine, n, slice) + gather_sec(machine, n, slice);
}

int64_t tt_cost_saturating_bytes(const struct tt_machine *machine, int n)
{
    double latency = machine->call_sec + (n - 1) * machine->message_sec;

    if (n == 1)
        return 0;
    return (int64_t)(9.0 * latency * machine->link_bytes_per_sec * n / (n - 1));
}

/* Seconds of one instruction on the computing thread. They are 0 if it begins or awaits a collective. */
static double instr_sec(const struct tt_machine *machine, const struct tt_program *program, int i)
{
    struct tt_instr_cost cost = tt_instr_cost(program, &program->instrs[i]);

    return work_sec(machine, &cost.work, program->threads) + cost.calls * machine->call_sec +
           cost.messages * machine->message_sec + cost.link_bytes / machine->link_bytes_per_sec;
}

double tt_cost_transfer_sec(const struct tt_machine *machine, const struct tt_program *program, int i)
{
    const struct tt_collective_desc *desc = &program->instrs[i].collective;

    return tt_collective_travels(desc) ? tt_cost_collective_sec(machine, desc->op, desc->ranks, desc->bytes) : 0.0;
}

/* --- the simulator --- */

static void simulate_transfer(const struct tt_machine *machine, const struct tt_program *program, int i, double now,
                              double *free_at, struct tt_timeline *t)
{
    double sec = tt_cost_transfer_sec(machine, program, i);

    t->transfer[i].begin = now > *free_at ? now : *free_at;
    t->transfer[i].end = *free_at = t->transfer[i].begin + sec;
    t->transfer_sec += sec;
}

void tt_cost_simulate(const struct tt_machine *machine, const struct tt_program *program,
                      struct tt_timeline *ret_timeline)
{
    size_t n = (size_t)program->n_instrs;
    struct tt_timeline t = {.n = program->n_instrs};
    double now = 0.0, free_at = 0.0; /* the times of the two lanes */

    t.compute = tt_calloc(n + 1, sizeof *t.compute);
    t.transfer = tt_calloc(n + 1, sizeof *t.transfer);
    t.exposed = tt_calloc(n + 1, sizeof *t.exposed);
    for (int i = 0; i < t.n; i++) {
        const struct tt_instr *instr = &program->instrs[i];
        const struct tt_instr_row *row = tt_instr_row(instr);
        double sec = instr_sec(machine, program, i);

        t.compute[i].begin = now;
        if (row->begins)
            simulate_transfer(machine, program, i, now, &free_at, &t);
        if (row->waits && t.transfer[instr->begin].end > now) {
            t.exposed[instr->begin] = t.transfer[instr->begin].end - now;
            t.exposed_sec += t.exposed[instr->begin];
            now = t.transfer[instr->begin].end;
        }
        now += sec;
        t.compute_sec += sec;
        t.compute[i].end = now;
    }
    t.step_sec = now;
    *ret_timeline = t;
}

void tt_timeline_release(struct tt_timeline *timeline)
{
    tt_free(timeline->compute);
    tt_free(timeline->transfer);
    tt_free(timeline->exposed);
    *timeline = (struct tt_timeline){0};
}
