/* SPDX-License-Identifier: MIT
 *
 * Lowering, checked by running programs on names instead of numbers: memory holds, for every range of bytes, the name
 * of what was last written there, and whoever reads must find the name that the graph says. Writing a range forgets all
 * that it overlaps, so a buffer whose memory is given away too early, a collective whose memory is touched while it is
 * under way, or a sum in the wrong order shows as a wrong name, whatever lowering thinks of lifetimes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/ops/op.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"
#include "parallel/engine/engine.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/planner/simple_fsdp.h"
#include "tests/par/orders.h"

#define DEFAULT TT_RESHARD_AFTER_FORWARD_DEFAULT
#define ALWAYS  TT_RESHARD_AFTER_FORWARD_ALWAYS
#define NEVER   TT_RESHARD_AFTER_FORWARD_NEVER

enum { NAME_BYTES = 160 };

/* --- memory --- */

struct range {
    int64_t begin, bytes;
    char name[NAME_BYTES];
};

struct machine {
    const struct tt_program *p;
    struct range *memory;
    int n, cap;
    int at; /* instruction */
};

static void fault(const struct machine *m, const char *what, const char *wanted, const char *found)
{
    fail_msg("instruction %d (%s): %s: wanted %s, found %s", m->at, tt_instr_name(&m->p->instrs[m->at]), what, wanted,
             found ? found : "nothing");
}

static int64_t begin_of(const struct tt_program *p, int buffer)
{
    const struct tt_buffer *b = &p->buffers[buffer];

    return b->root == buffer ? b->offset : p->buffers[b->root].offset + b->offset;
}

static bool in_arena(const struct tt_program *p, int buffer)
{
    enum tt_memory_kind kind = p->buffers[p->buffers[buffer].root].kind;

    return kind != TT_MEMORY_PARAM && kind != TT_MEMORY_CONST;
}

static void put_range(struct machine *m, int64_t begin, int64_t bytes, const char *name)
{
    int kept = 0;

    for (int i = 0; i < m->n; i++)
        if (m->memory[i].begin >= begin + bytes || m->memory[i].begin + m->memory[i].bytes <= begin)
            m->memory[kept++] = m->memory[i];
    m->n = kept;
    {
        struct range *range = &TT_PUSH(m->memory, m->n, m->cap);

        range->begin = begin;
        range->bytes = bytes;
        (void)snprintf(range->name, sizeof range->name, "%s", name);
    }
}

static void put(struct machine *m, int buffer, const char *name)
{
    if (buffer != TT_NONE)
        put_range(m, begin_of(m->p, buffer), m->p->buffers[buffer].bytes, name);
}

static const char *name_at(const struct machine *m, int64_t begin)
{
    for (int i = 0; i < m->n; i++)
        if (m->memory[i].begin == begin)
            return m->memory[i].name;
    return NULL;
}

static const char *get(const struct machine *m, int buffer)
{
    return name_at(m, begin_of(m->p, buffer));
}

static void must_hold(const struct machine *m, int buffer, const char *name)
{
    const char *found = get(m, buffer);

    if (!found || strcmp(found, name) != 0)
        fault(m, "memory", name, found);
}

/* --- names --- */

struct place {
    int stage, value;
};

/* Where a value comes from: the other side of a boundary, or the first stage with the same input. */
static struct place origin(const struct tt_program *p, struct place at)
{
    const struct tt_stage *stage = &p->stages[at.stage];

    for (int s = 0; s < at.stage; s++) {
        const struct tt_graph *graph = p->stages[s].graph;

        if (at.value == stage->graph->tokens && graph->tokens != TT_NONE)
            return (struct place){s, graph->tokens};
        if (at.value == stage->graph->labels && graph->labels != TT_NONE)
            return (struct place){s, graph->labels};
    }
    for (int i = 0; i < stage->n_in; i++)
        if (stage->in[i].value == at.value)
            return origin(p, (struct place){at.stage - 1, stage[-1].out[i].value});
    for (int i = 0; i < stage->n_out; i++)
        if (stage->out[i].grad == at.value)
            return origin(p, (struct place){at.stage + 1, stage[1].in[i].grad});
    return at;
}

static const char *value_name(const struct tt_program *p, int stage, int value, int mb)
{
    static char text[NAME_BYTES];
    const struct tt_value *v = &p->stages[stage].graph->values[value];
    struct place from = origin(p, (struct place){stage, value});

    if (v->kind == TT_VALUE_PARAM)
        (void)snprintf(text, sizeof text, "parameter %d", v->param);
    else if (v->kind == TT_VALUE_PARAM_GRAD)
        (void)snprintf(text, sizeof text, "gradient %d of %d, value %d.%d", v->param, mb, stage, value);
    else
        (void)snprintf(text, sizeof text, "value %d.%d of %d", from.stage, from.value, mb);
    return text;
}

/* A microbatch's final gradient, of a parameter or of one of the two uses of a tied one: that of the last
 * node that writes it. */
static const char *gradient_name(const struct tt_program *p, const struct tt_unit_grad *grad, int mb)
{
    struct place last = {0, TT_NONE};

    for (int s = 0; s < p->n_stages; s++)
        for (int n = 0; n < p->stages[s].graph->n_nodes; n++)
            for (int k = 0; k < p->stages[s].graph->nodes[n].n_out; k++) {
                int value = p->stages[s].graph->nodes[n].out[k];
                const struct tt_value *v = &p->stages[s].graph->values[value];

                if (v->kind == TT_VALUE_PARAM_GRAD && v->param == grad->param && v->part == grad->part)
                    last = (struct place){s, value};
            }
    return value_name(p, last.stage, last.value, mb);
}

/* --- instructions --- */

static int operand(const struct machine *m, int k)
{
    return m->p->operands[m->p->instrs[m->at].operands + k];
}

static void run_node(struct machine *m, const struct tt_instr *instr)
{
    const struct tt_graph *graph = tt_instr_graph(m->p, instr);
    const struct tt_node *node = &graph->nodes[instr->node];
    int scratch = operand(m, node->n_in + node->n_out);

    assert_int_equal(instr->n_operands, node->n_in + node->n_out + 1);
    put(m, scratch, "scratch"); /* before inputs are looked at: it must not lie on them */
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i] != TT_NONE && in_arena(m->p, operand(m, i)))
            must_hold(m, operand(m, i), value_name(m->p, instr->stage, node->in[i], instr->microbatch));
    for (int k = 0; k < node->n_out; k++) {
        int out = operand(m, node->n_in + k), alias = tt_op_row(node->op)->alias[k] - 1;

        for (int i = 0; i < node->n_in; i++) {
            int in = operand(m, i);

            if (in != TT_NONE && in_arena(m->p, in) && i != alias &&
                begin_of(m->p, in) < begin_of(m->p, out) + m->p->buffers[out].bytes &&
                begin_of(m->p, out) < begin_of(m->p, in) + m->p->buffers[in].bytes)
                fault(m, "an output lies on an input that its op still reads", "other memory",
                      graph->values[node->in[i]].name);
        }
    }
    for (int k = 0; k < node->n_out; k++)
        put(m, operand(m, node->n_in + k), value_name(m->p, instr->stage, node->out[k], instr->microbatch));
    for (int k = 0; k < node->n_out; k++)
        must_hold(m, operand(m, node->n_in + k), value_name(m->p, instr->stage, node->out[k], instr->microbatch));
    if (scratch != TT_NONE)
        must_hold(m, scratch, "scratch");
}

/* The parameters of the units of a collective, in the order of its operands; ret_n of them, valid until the next
 * call. */
static const int *params_of(const struct machine *m, const struct tt_instr *instr, int *ret_n)
{
    static int params[64];
    int n_units, n = 0;
    const int *units = tt_instr_units(m->p->buckets, instr, &n_units);

    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < m->p->layout->units[units[u]].n_params; i++)
            params[n++] = m->p->layout->units[units[u]].params[i].param;
    *ret_n = n;
    return params;
}

/* Parameters arrive in place; until the wait nobody may read or write them. */
static void unshard(struct machine *m, const struct tt_instr *instr, bool wait)
{
    int n;
    const int *params = params_of(m, instr, &n);

    assert_int_equal(instr->n_operands, n);
    for (int i = 0; i < n; i++) {
        char gathered[NAME_BYTES], under_way[NAME_BYTES];

        (void)snprintf(gathered, sizeof gathered, "parameter %d", params[i]);
        (void)snprintf(under_way, sizeof under_way, "parameter %d on its way", params[i]);
        if (wait)
            must_hold(m, operand(m, i), under_way);
        put(m, operand(m, i), wait ? gathered : under_way);
    }
}

static void reshard(struct machine *m, const struct tt_instr *instr)
{
    const struct tt_unit *unit = &m->p->layout->units[instr->unit];

    for (int i = 0; i < instr->n_operands; i++) { /* none where each was freed after its last read */
        char gathered[NAME_BYTES];

        (void)snprintf(gathered, sizeof gathered, "parameter %d", unit->params[i].param);
        must_hold(m, operand(m, i), gathered);
        put(m, operand(m, i), "resharded");
    }
}

static void reduce(struct machine *m, const struct tt_instr *instr)
{
    int n, at = 0;
    const int *units = tt_instr_units(m->p->buckets, instr, &n);

    for (int u = 0; u < n; u++)
        for (int k = 0; k < m->p->layout->units[units[u]].n_grads; k++)
            must_hold(m, operand(m, at++),
                      gradient_name(m->p, &m->p->layout->units[units[u]].grads[k], instr->microbatch));
    for (int i = 0; i < instr->n_operands; i++)
        put(m, operand(m, i), "reducing");
    for (int i = 0; i < instr->n_operands; i++)
        if (operand(m, i) != TT_NONE)
            must_hold(m, operand(m, i), "reducing");
}

static void wait_reduce(struct machine *m, const struct tt_instr *instr)
{
    char leaf[NAME_BYTES];
    int n = 0, n_units;
    const int *units = tt_instr_units(m->p->buckets, instr, &n_units);

    for (int u = 0; u < n_units; u++)
        n += m->p->layout->units[units[u]].n_grads;
    assert_int_equal(instr->n_operands, n + n_units + 1);
    for (int i = 0; i < instr->n_operands; i++)
        if (operand(m, i) != TT_NONE)
            must_hold(m, operand(m, i), "reducing");
    (void)snprintf(leaf, sizeof leaf, "%d", instr->microbatch);
    for (int u = 0; u < n_units; u++)
        put(m, operand(m, n + u), leaf);
}

/* With one shard a leaf is what the nodes wrote: all gradients of the unit, side by side. */
static const char *sum_name(struct machine *m, int buffer, int unit_index)
{
    static char text[NAME_BYTES];
    const struct tt_unit *unit = &m->p->layout->units[unit_index];
    const char *found = get(m, buffer);
    int mb = -1;

    if (!found || strncmp(found, "gradient", 8) != 0)
        return found;
    (void)sscanf(found, "gradient %*d of %d", &mb);
    for (int k = 0; k < unit->n_grads; k++) {
        const char *wanted = gradient_name(m->p, &unit->grads[k], mb);

        found = name_at(m, begin_of(m->p, buffer) + unit->grads[k].offset * (int64_t)sizeof(float));
        if (!found || strcmp(found, wanted) != 0)
            fault(m, "a gradient", wanted, found);
    }
    (void)snprintf(text, sizeof text, "%d", mb);
    return text;
}

static int64_t offset_in_sum(const struct machine *m, int k)
{
    return m->p->buffers[operand(m, k)].offset / (int64_t)sizeof(float);
}

/* The second sum of a tied weight is added to the first, in the finished sum of its unit. */
static void tie(struct machine *m, const struct tt_instr *instr)
{
    const struct tt_unit *unit = &m->p->layout->units[instr->unit];
    int root = m->p->buffers[operand(m, 0)].root;
    char sum[NAME_BYTES];

    assert_true(instr->n_operands == 2 && m->p->buffers[operand(m, 1)].root == root);
    assert_true(unit->n_grads == unit->n_params + 1 && unit->grads[unit->n_params].part == 1);
    assert_int_equal(offset_in_sum(m, 0), unit->grads[unit->n_params].offset);
    assert_int_equal(offset_in_sum(m, 1), tt_layout_param(m->p->layout, unit->grads[unit->n_params].param)->offset);
    (void)snprintf(sum, sizeof sum, "%.140s, tied", sum_name(m, root, instr->unit));
    put(m, root, sum);
}

static void fold(struct machine *m, const struct tt_instr *instr)
{
    char sum[NAME_BYTES], next[NAME_BYTES];

    if (m->p->buffers[operand(m, 0)].root != operand(m, 0)) {
        tie(m, instr);
        return;
    }
    (void)snprintf(sum, sizeof sum, "%s", sum_name(m, operand(m, 0), instr->unit));
    for (int s = 1; s < instr->n_operands; s++) {
        const char *found = sum_name(m, operand(m, s), instr->unit), *other = found ? found : "nothing";
        bool is_left = strcmp(other + strspn(other, "("), sum + strspn(sum, "(")) < 0; /* a + b is b + a */

        (void)snprintf(next, sizeof next, "(%.70s+%.70s)", is_left ? other : sum, is_left ? sum : other);
        memcpy(sum, next, sizeof sum);
    }
    put(m, operand(m, instr->n_operands - 1), sum);
}

static void all_reduce(struct machine *m, const struct tt_instr *instr, bool wait)
{
    char name[NAME_BYTES];
    int n, staging;
    const int *units = tt_instr_units(m->p->buckets, instr, &n);

    staging = operand(m, n);
    if (wait && staging != TT_NONE)
        must_hold(m, staging, "staging");
    for (int u = 0; u < n; u++) {
        const char *found = sum_name(m, operand(m, u), units[u]);

        if (!wait) {
            (void)snprintf(name, sizeof name, "on its way %.100s", found ? found : "nothing");
        } else {
            if (!found || strncmp(found, "on its way ", 11) != 0)
                fault(m, "a sum over replicas", "on its way", found);
            (void)snprintf(name, sizeof name, "%.100s over replicas", found + 11);
        }
        put(m, operand(m, u), name);
    }
    if (!wait)
        put(m, staging, "staging");
}

static void collective(struct machine *m, const struct tt_instr *instr, bool wait)
{
    if (instr->purpose == TT_UNSHARD)
        unshard(m, instr, wait);
    else if (instr->purpose == TT_ALL_REDUCE)
        all_reduce(m, instr, wait);
    else if (wait)
        wait_reduce(m, instr);
    else
        reduce(m, instr);
}

static void step(struct machine *m, const char *wanted_sum)
{
    const struct tt_instr *instr = &m->p->instrs[m->at];

    switch (instr->kind) {
    case TT_RUN:
        run_node(m, instr);
        break;
    case TT_LOSS:
        must_hold(m, operand(m, 0),
                  value_name(m->p, instr->stage, tt_instr_graph(m->p, instr)->token_loss, instr->microbatch));
        break;
    case TT_BEGIN:
    case TT_WAIT:
        collective(m, instr, instr->kind == TT_WAIT);
        break;
    case TT_RESHARD:
        reshard(m, instr);
        break;
    case TT_FOLD:
        fold(m, instr);
        break;
    case TT_NORM:
    case TT_OPTIMIZER: {
        const struct tt_unit *unit = &m->p->layout->units[instr->unit];
        const char *found = sum_name(m, operand(m, 0), instr->unit);
        char wanted[NAME_BYTES];

        (void)snprintf(wanted, sizeof wanted, "%.140s%s", wanted_sum, unit->n_grads > unit->n_params ? ", tied" : "");
        if (!found || strcmp(found, wanted) != 0)
            fault(m, "the gradient sum", wanted, found);
        break;
    }
    default:
        break;
    }
}

/* Inputs are there before the first instruction and, for a second look at a bad step, until the clip. */
static void inputs(struct machine *m, bool check)
{
    for (int mb = 0; mb < m->p->microbatches; mb++)
        for (int s = 0; s < m->p->n_stages; s++) {
            const int buffers[] = {m->p->tokens[mb], m->p->labels[mb]};
            const int values[] = {m->p->stages[s].graph->tokens, m->p->stages[s].graph->labels};

            for (int i = 0; i < 2; i++) {
                if (values[i] == TT_NONE)
                    continue;
                if (check)
                    must_hold(m, buffers[i], value_name(m->p, s, values[i], mb));
                else
                    put(m, buffers[i], value_name(m->p, s, values[i], mb));
            }
        }
}

/* Messages of two collectives that are under way at once must not be taken for each other. */
static void tags_tell_collectives_apart(const struct tt_program *p)
{
    enum { TAGS = 256 };
    bool under_way[TAGS] = {false};

    for (int i = 0; i < p->n_instrs; i++) {
        const struct tt_instr *instr = &p->instrs[i];
        const struct tt_instr *begin = instr->kind == TT_WAIT ? &p->instrs[instr->begin] : instr;

        if ((instr->kind != TT_BEGIN && instr->kind != TT_WAIT) || !tt_collective_travels(&begin->collective))
            continue;
        assert_in_range(begin->collective.tag, 0, TAGS - 1);
        assert_int_equal(under_way[begin->collective.tag], instr->kind == TT_WAIT);
        under_way[begin->collective.tag] = instr->kind == TT_BEGIN;
    }
}

static void execute(const struct tt_program *p, const char *wanted_sum)
{
    struct machine m = {.p = p};

    tags_tell_collectives_apart(p);
    inputs(&m, false);
    for (m.at = 0; m.at < p->n_instrs; m.at++) {
        step(&m, wanted_sum);
        if (p->instrs[m.at].kind == TT_CLIP)
            inputs(&m, true);
    }
    tt_free(m.memory);
}

/* --- programs --- */

struct plan {
    int shards, replicas, microbatches, prefetch;
    enum tt_reshard reshard;
    bool tied;
};

struct planned {
    struct tt_model *model;
    struct tt_engine *engine;
    const struct tt_program *program;
};

static struct planned make(const struct plan *plan)
{
    const struct tt_model_dims dims = {
        .dim = 10, .n_layers = 2, .n_heads = 5, .n_kv_heads = 1, .ffn_dim = 11, .vocab_size = 17, .tied = plan->tied};
    const int degrees[TT_MESH_DEGREES] = {1, plan->replicas, plan->shards, 1, 1, 1};
    struct tt_engine_options options = {.sharding = {.wrap = "block", .reshard = plan->reshard},
                                        .prefetch = plan->prefetch,
                                        .threads = 1,
                                        .local_batch = 1,
                                        .seq_len = 4,
                                        .microbatches = plan->microbatches};
    struct planned made = {0};

    assert_int_equal(tt_model_new("llama3", "debugmodel", &dims, NULL, &made.model), 0);
    assert_int_equal(tt_mesh_init(degrees, plan->shards * plan->replicas, &options.mesh), 0);
    options.model = made.model;
    assert_int_equal(tt_engine_new(&options, NULL, plan->shards - 1, &made.engine), 0);
    made.program = tt_engine_program(made.engine);
    assert_int_equal(tt_program_check(made.program), 0);
    return made;
}

static void release(struct planned *made)
{
    tt_engine_free(made->engine);
    tt_model_free(made->model);
}

static void gradients_are_summed_as_a_balanced_tree(void **state)
{
    static const char *const trees[] = {"0",
                                        "(0+1)",
                                        "((0+1)+2)",
                                        "((0+1)+(2+3))",
                                        "(((0+1)+(2+3))+4)",
                                        "(((0+1)+(2+3))+(4+5))",
                                        "(((0+1)+(2+3))+((4+5)+6))",
                                        "(((0+1)+(2+3))+((4+5)+(6+7)))",
                                        "((((0+1)+(2+3))+((4+5)+(6+7)))+8)"};

    for (int a = 1; a <= 9; a++)
        for (int shards = 1; shards <= 2; shards++) {
            struct planned made = make(&(struct plan){shards, 1, a, 1, DEFAULT, false});

            execute(made.program, trees[a - 1]);
            release(&made);
        }
}

static void every_read_finds_what_was_written(void **state)
{
    static const enum tt_reshard policies[] = {DEFAULT, ALWAYS, NEVER};

    for (int shards = 1; shards <= 4; shards++)
        for (int replicas = 1; replicas <= 2; replicas++)
            for (int policy = 0; policy < 3; policy++)
                for (int prefetch = 0; prefetch <= 5; prefetch++)
                    for (int tied = 0; tied <= 1; tied++) {
                        struct planned made =
                            make(&(struct plan){shards, replicas, 3, prefetch, policies[policy], tied});

                        execute(made.program, replicas == 2 ? "((0+1)+2) over replicas" : "((0+1)+2)");
                        release(&made);
                    }
}

/*
 * Buckets, as no eager schedule has them: all units gathered by one collective, and, after the backward of each
 * microbatch, reduced by one; then one all-reduce.
 */
static void buckets_move_several_units_at_once(void **state)
{
    for (int shards = 1; shards <= 3; shards++) {
        struct planned made = make(&(struct plan){shards, 2, 3, 1, DEFAULT, false});
        struct tt_lowering lowering = {.stages = made.program->stages,
                                       .n_stages = 1,
                                       .layout = made.program->layout,
                                       .microbatches = 3,
                                       .threads = 1,
                                       .staging = tt_collective_staging};
        static const int units[] = {2, 0, 3, 1};
        struct tt_schedule schedule = {0};
        struct tt_program *program = NULL;
        int all = tt_schedule_bucket(&schedule, units, 4);

        assert_int_equal(lowering.layout->n_units, 4);
        tt_schedule_begin(&schedule, TT_UNSHARD, 0, TT_NONE, all);
        tt_schedule_wait(&schedule, TT_UNSHARD, 0, TT_NONE, all);
        for (int mb = 0; mb < 3; mb++) {
            for (int n = 0; n < lowering.stages[0].graph->n_nodes; n++)
                tt_schedule_run(&schedule, lowering.stages, mb, 0, n);
            tt_schedule_begin(&schedule, TT_REDUCE, mb, TT_NONE, all);
            tt_schedule_wait(&schedule, TT_REDUCE, mb, TT_NONE, all);
        }
        tt_schedule_begin(&schedule, TT_ALL_REDUCE, 0, TT_NONE, all);
        tt_schedule_wait(&schedule, TT_ALL_REDUCE, 0, TT_NONE, all);
        for (int u = 0; u < 4; u++)
            tt_schedule_add(&schedule, TT_NORM, u);
        tt_schedule_add(&schedule, TT_CLIP, TT_NONE);
        for (int u = 0; u < 4; u++)
            tt_schedule_add(&schedule, TT_OPTIMIZER, u);
        assert_int_equal(tt_program_new(&lowering, &schedule, &program), 0);
        assert_int_equal(tt_program_check(program), 0);
        execute(program, "((0+1)+2) over replicas");
        tt_program_free(program);
        tt_schedule_release(&schedule);
        release(&made);
    }
}

/* --- orders of compute --- */

/* Words are a pass and a microbatch: F0 B0 W0. */
static struct tt_order order_of(const char *text)
{
    struct tt_order order = {0};

    for (const char *word = text; *word; word += word[2] ? 3 : 2)
        tt_order_add(&order, word[1] - '0', 0,
                     word[0] == 'F'   ? TT_PASS_FORWARD
                     : word[0] == 'B' ? TT_PASS_BACKWARD
                                      : TT_PASS_WEIGHTS);
    return order;
}

/* Schedules the order with both engines on the layout of `made`, and runs what comes of it. Name: for failures. */
static void schedule_order(const struct planned *made, const struct tt_stage *stages, int n_stages,
                           const struct tt_order *order, const char *name, int prefetch, const char *wanted_sum)
{
    const struct tt_machine machine = tt_machine_builtin();
    bool reshard[16];
    const struct tt_candidate candidate = {
        .reshard = reshard,
        .bucket_bytes = 4000,
        .limits = {.step_bytes = INT64_MAX, .exchanged_bytes = INT64_MAX},
    };
    struct tt_lowering lowering = {.stages = stages,
                                   .n_stages = n_stages,
                                   .layout = made->program->layout,
                                   .microbatches = made->program->microbatches,
                                   .threads = 1,
                                   .staging = tt_collective_staging};
    struct tt_usage usage;
    struct tt_step_facts facts;
    struct tt_program *programs[2] = {0};

    if (tt_usage_make(order, stages, n_stages, lowering.layout, &usage) < 0)
        fail_msg("%s: %s", name, tt_error_message());
    for (int planned = 0; planned < 2; planned++) {
        struct tt_schedule schedule = {0};

        if (!planned) {
            tt_fsdp_schedule(&(struct tt_fsdp){.usage = &usage, .prefetch = prefetch}, &schedule);
        } else {
            tt_step_facts_make(&usage, &lowering, &machine, programs[0], &facts);
            for (int u = 0; u < lowering.layout->n_units; u++)
                reshard[u] = lowering.layout->units[u].reshard_after_forward;
            schedule = tt_simple_fsdp_plan(&(struct tt_simple_fsdp){&lowering, &facts, &machine, prefetch}, candidate)
                           .schedule;
            tt_step_facts_release(&facts);
        }
        lowering.free_early = planned;
        if (tt_program_new(&lowering, &schedule, &programs[planned]) < 0 || tt_program_check(programs[planned]) < 0)
            fail_msg("%s: %s", name, tt_error_message());
        execute(programs[planned], wanted_sum);
        tt_schedule_release(&schedule);
    }
    tt_program_free(programs[0]);
    tt_program_free(programs[1]);
    tt_usage_release(&usage);
}

/* Schedulers take any order of compute; the sum of the gradients is the same tree. */
static void any_order_of_compute_can_be_scheduled(void **state)
{
    static const char *const orders[] = {
        "F0 B0 F1 B1 F2 B2",          "F0 F1 F2 B0 B1 B2",          "F0 F1 B0 F2 B1 B2", "F0 B0 W0 F1 B1 W1 F2 B2 W2",
        "F0 F1 B0 F2 W0 B1 B2 W1 W2", "F0 F1 F2 B0 B1 B2 W0 W1 W2", "F0 F1 F2 B2 B1 B0", "F2 B2 F0 B0 F1 B1",
        "F0 F1 F2 B0 B1 B2 W2 W1 W0", "F1 B1 F2 F0 B0 B2 W1 W0 W2"};
    static const enum tt_reshard policies[] = {DEFAULT, ALWAYS, NEVER};

    for (int shards = 1; shards <= 2; shards++)
        for (int policy = 0; policy < 3; policy++)
            for (int tied = 0; tied <= 1; tied++) {
                struct planned made = make(&(struct plan){shards, 2, 3, 1, policies[policy], tied});

                for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
                    struct tt_order order = order_of(orders[i]);

                    schedule_order(&made, made.program->stages, 1, &order, orders[i], 1 + (int)i % 2,
                                   "((0+1)+2) over replicas");
                    tt_order_release(&order);
                }
                release(&made);
            }
}

/* --- stages --- */

enum { MOST_STAGES = 4 };

/* The model of `made`, cut after some of its nodes, which need not lie between blocks. */
static void cut(const struct planned *made, int n_stages, const int *after, struct tt_recompute recompute,
                struct tt_stage *ret_stages)
{
    struct tt_graph *forward = NULL;
    int *stage_of;

    assert_int_equal(tt_model_graph(made->model, TT_GRAPH_VALIDATE, 1, 4, &forward, NULL), 0);
    stage_of = tt_calloc((size_t)forward->n_nodes, sizeof *stage_of);
    for (int n = 0; n < forward->n_nodes; n++)
        for (int s = 0; s + 1 < n_stages; s++)
            stage_of[n] += n > after[s];
    assert_int_equal(tt_graph_cut(forward, stage_of, n_stages, ret_stages), 0);
    assert_int_equal(tt_stages_differentiate(ret_stages, n_stages), 0);
    for (int s = 0; s < n_stages; s++)
        tt_graph_recompute(ret_stages[s].graph, &recompute);
    tt_free(stage_of);
    tt_graph_free(forward);
}

/* Every read finds what was written, wherever the model is cut and in whichever order its parts come. */
static void stages_share_what_crosses_their_boundaries(void **state)
{
    static const struct tt_recompute recomputes[] = {
        {TT_RECOMPUTE_NONE, 0}, {TT_RECOMPUTE_FULL, 0}, {TT_RECOMPUTE_OP, 0}};
    static const enum tt_reshard policies[] = {DEFAULT, ALWAYS, NEVER};
    int turn = 0;

    for (int tied = 0; tied <= 1; tied++)
        for (int shards = 1; shards <= 2; shards++) {
            struct planned made = make(&(struct plan){shards, 2, 3, 1, policies[(tied + shards) % 3], tied});
            int n_nodes = made.program->stages[0].graph->n_nodes, n_forward = 0;

            while (n_forward < n_nodes && !made.program->stages[0].graph->nodes[n_forward].backward)
                n_forward++;
            for (int first = 0; first + 1 < n_forward; first++)
                for (int n_stages = 2; n_stages <= MOST_STAGES; n_stages++, turn++) {
                    struct tt_stage stages[MOST_STAGES] = {{0}};
                    int after[MOST_STAGES] = {first, first + 1, (first + n_forward) / 2 + 1};
                    enum orders_kind kind = (enum orders_kind)(turn % ORDERS_KINDS);
                    struct tt_order order = orders_make(kind, 3, n_stages, (uint64_t)turn, turn % 2);
                    char name[80];

                    (void)snprintf(name, sizeof name, "%d stages, the first ends at node %d, order %d", n_stages, first,
                                   (int)kind);
                    cut(&made, n_stages, after, recomputes[turn % 3], stages);
                    schedule_order(&made, stages, n_stages, &order, name, 1 + turn % 2, "((0+1)+2) over replicas");
                    tt_order_release(&order);
                    tt_stages_release(stages, n_stages);
                }
            release(&made);
        }
}

static struct tt_program *lower_stages(const struct planned *made, const struct tt_stage *stages, int n_stages)
{
    struct tt_lowering lowering = {.stages = stages,
                                   .n_stages = n_stages,
                                   .layout = made->program->layout,
                                   .microbatches = made->program->microbatches,
                                   .threads = 1,
                                   .staging = tt_collective_staging};
    struct tt_order order = tt_order_accumulate(lowering.microbatches, n_stages, true);
    struct tt_usage usage;
    struct tt_schedule schedule = {0};
    struct tt_program *program = NULL;

    assert_int_equal(tt_usage_make(&order, stages, n_stages, lowering.layout, &usage), 0);
    tt_fsdp_schedule(&(struct tt_fsdp){.usage = &usage, .prefetch = 1}, &schedule);
    if (tt_program_new(&lowering, &schedule, &program) < 0)
        fail_msg("%s", tt_error_message());
    tt_schedule_release(&schedule);
    tt_usage_release(&usage);
    tt_order_release(&order);
    return program;
}

/* In the order of the whole graph stages copy nothing and keep nothing longer: one rank needs the same memory. */
static void stages_in_turn_take_the_memory_of_one_graph(void **state)
{
    struct planned made = make(&(struct plan){1, 1, 2, 1, DEFAULT, false});
    struct tt_stage stages[MOST_STAGES] = {{0}};

    for (int first = 0; first < 20; first += 3) {
        struct tt_program *program;

        cut(&made, 3, (const int[]){first, first + 4}, (struct tt_recompute){TT_RECOMPUTE_NONE, 0}, stages);
        program = lower_stages(&made, stages, 3);
        assert_int_equal(tt_program_check(program), 0);
        assert_int_equal(program->live_bytes, made.program->live_bytes);
        assert_int_equal(program->const_bytes, made.program->const_bytes);
        tt_program_free(program);
        tt_stages_release(stages, 3);
    }
    release(&made);
}

static void must_not_lower(const struct planned *made, const struct tt_stage *stages, int n_stages, const char *message)
{
    struct tt_lowering lowering = {.stages = stages,
                                   .n_stages = n_stages,
                                   .layout = made->program->layout,
                                   .microbatches = 1,
                                   .threads = 1,
                                   .staging = tt_collective_staging};
    struct tt_schedule schedule = {0};
    struct tt_program *program = NULL;

    assert_int_equal(tt_program_new(&lowering, &schedule, &program), TT_EINTERNAL);
    if (!strstr(tt_error_message(), message))
        fail_msg("found '%s', wanted '%s'", tt_error_message(), message);
}

static void a_stage_needs_its_neighbours(void **state)
{
    struct planned made = make(&(struct plan){1, 1, 1, 1, DEFAULT, false});
    struct tt_stage stages[MOST_STAGES] = {{0}};

    cut(&made, 3, (const int[]){5, 9}, (struct tt_recompute){TT_RECOMPUTE_NONE, 0}, stages);
    must_not_lower(&made, stages, 2, "stage 1 exchanges values with a stage that the program does not hold");
    must_not_lower(&made, stages + 1, 2, "stage 0 exchanges values with a stage that the program does not hold");
    tt_stages_release(stages, 3);
    release(&made);
}

/* Two stages that are both a whole model make every gradient twice. */
static void one_stage_makes_a_gradient(void **state)
{
    struct planned made = make(&(struct plan){1, 1, 1, 1, DEFAULT, false});
    const struct tt_stage twice[2] = {made.program->stages[0], made.program->stages[0]};

    must_not_lower(&made, twice, 2, "stages 0 and 1 both make '");
    release(&made);
}

static void one_rank_exchanges_nothing(void **state)
{
    struct planned made = make(&(struct plan){1, 1, 2, 1, ALWAYS, false});

    for (int i = 0; i < made.program->n_instrs; i++)
        switch (made.program->instrs[i].kind) {
        case TT_RUN:
        case TT_LOSS:
        case TT_FOLD:
        case TT_NORM:
        case TT_CLIP:
        case TT_OPTIMIZER:
            break;
        default:
            fail_msg("instruction %d is '%s'", i, tt_instr_name(&made.program->instrs[i]));
        }
    for (int b = 0; b < made.program->n_buffers; b++)
        assert_true(made.program->buffers[b].kind != TT_MEMORY_UNSHARDED &&
                    made.program->buffers[b].kind != TT_MEMORY_STAGING);
    assert_int_equal(tt_program_payload(made.program), 0);
    release(&made);
}

/* The sum by kind at any instruction is what lives there, and its largest is live_bytes up to alignment. */
static void memory_at_an_instruction_adds_up(void **state)
{
    struct planned made = make(&(struct plan){2, 1, 2, 1, DEFAULT, false});
    const struct tt_program *p = made.program;
    int64_t most = 0, slack;

    for (int i = 0; i < p->n_instrs; i++) {
        int64_t kinds[TT_MEMORY_KINDS], sum = 0;

        tt_program_memory_at(p, i, kinds);
        for (int k = 0; k < TT_MEMORY_KINDS; k++)
            sum += k == TT_MEMORY_CONST ? 0 : kinds[k];
        assert_int_equal(kinds[TT_MEMORY_PARAM], 0);
        most = sum > most ? sum : most;
    }
    slack = 63 * (int64_t)p->n_buffers;
    assert_true(most <= p->live_bytes && p->live_bytes <= most + slack);
    assert_true(p->step_bytes >= p->live_bytes);
    release(&made);
}

/* tt_program_check is what debug.check_plan trusts: it must see each kind of damage. */
static void the_check_sees_damage(void **state)
{
    struct planned made = make(&(struct plan){2, 1, 2, 1, DEFAULT, false});
    struct tt_program broken = *made.program;
    int victim = TT_NONE, other = TT_NONE;

    broken.buffers = tt_calloc((size_t)broken.n_buffers, sizeof *broken.buffers);
    memcpy(broken.buffers, made.program->buffers, (size_t)broken.n_buffers * sizeof *broken.buffers);
    for (int b = 0; b < broken.n_buffers; b++) {
        if (broken.buffers[b].kind == TT_MEMORY_ACTIVATION && broken.buffers[b].last > broken.buffers[b].first + 5)
            victim = b;
        if (broken.buffers[b].kind == TT_MEMORY_INPUT)
            other = b;
    }
    assert_true(victim != TT_NONE && other != TT_NONE);
    assert_int_equal(tt_program_check(&broken), 0);

    broken.buffers[victim].offset = broken.buffers[other].offset;
    assert_int_equal(tt_program_check(&broken), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "share memory"));

    broken.buffers[victim].offset = broken.step_bytes - broken.buffers[victim].bytes + 64;
    assert_int_equal(tt_program_check(&broken), TT_EINTERNAL);

    broken.buffers[victim] = made.program->buffers[victim];
    broken.buffers[victim].last = broken.buffers[victim].first;
    assert_int_equal(tt_program_check(&broken), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "outside of its life"));
    tt_free(broken.buffers);
    release(&made);
}

/* For schedules of one microbatch that a test writes itself. */
static struct tt_lowering lowering_of(const struct planned *made)
{
    return (struct tt_lowering){.stages = made->program->stages,
                                .n_stages = 1,
                                .layout = made->program->layout,
                                .microbatches = 1,
                                .threads = 1,
                                .staging = tt_collective_staging};
}

static void a_node_before_its_input_is_an_error(void **state)
{
    struct planned made = make(&(struct plan){1, 1, 1, 1, DEFAULT, false});
    struct tt_lowering lowering = lowering_of(&made);
    struct tt_schedule schedule = {0};
    struct tt_program *program = NULL;

    tt_schedule_run(&schedule, lowering.stages, 0, 0, 1);
    assert_int_equal(tt_program_new(&lowering, &schedule, &program), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "runs rmsnorm on 'embeddings' before it is there"));
    schedule.instrs[0].kind = TT_FOLD;
    assert_int_equal(tt_program_new(&lowering, &schedule, &program), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "a schedule cannot hold 'fold'"));
    assert_null(program);
    tt_schedule_release(&schedule);
    release(&made);
}

/* What a schedule cannot say of collectives is refused, not run. */
static void a_collective_is_begun_before_it_is_awaited(void **state)
{
    struct planned made = make(&(struct plan){2, 1, 1, 1, DEFAULT, false});
    struct tt_lowering lowering = lowering_of(&made);
    struct tt_schedule schedule = {0};
    struct tt_program *program = NULL;

    tt_schedule_begin(&schedule, TT_UNSHARD, 0, 1, TT_NONE);
    tt_schedule_wait(&schedule, TT_UNSHARD, 0, 0, TT_NONE);
    assert_int_equal(tt_program_new(&lowering, &schedule, &program), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "'wait unshard' of tok_embeddings, which it has not begun"));
    schedule.instrs[0].purpose = TT_UNSHARD_KEPT;
    assert_int_equal(tt_program_new(&lowering, &schedule, &program), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "a schedule cannot hold 'unshard kept'"));
    tt_schedule_release(&schedule);
    release(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_summed_as_a_balanced_tree),
        cmocka_unit_test(every_read_finds_what_was_written),
        cmocka_unit_test(buckets_move_several_units_at_once),
        cmocka_unit_test(one_rank_exchanges_nothing),
        cmocka_unit_test(memory_at_an_instruction_adds_up),
        cmocka_unit_test(the_check_sees_damage),
        cmocka_unit_test(a_node_before_its_input_is_an_error),
        cmocka_unit_test(a_collective_is_begun_before_it_is_awaited),
        cmocka_unit_test(any_order_of_compute_can_be_scheduled),
        cmocka_unit_test(stages_share_what_crosses_their_boundaries),
        cmocka_unit_test(stages_in_turn_take_the_memory_of_one_graph),
        cmocka_unit_test(a_stage_needs_its_neighbours),
        cmocka_unit_test(one_stage_makes_a_gradient),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
