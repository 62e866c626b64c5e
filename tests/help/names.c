/* SPDX-License-Identifier: MIT
 *
 * Runs programs on names instead of numbers.
 */
#include "tests/help/names.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/ops/op.h"
#include "core/program/instr/instr.h"
#include "parallel/layout/units.h"
#include "tests/help/mesh.h"

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

/* The origin of a value: the other side of a boundary, or the first stage with the same input. */
static struct place origin(const struct tt_program *p, struct place at)
{
    const struct tt_stage *stage = &p->stages[at.stage];

    for (int s = 0; s < at.stage; s++) {
        const struct tt_graph *graph = p->stages[s].graph;

        if (at.value == stage->graph->tokens && graph->tokens != TT_NONE)
            return (struct place){s, graph->tokens};
        if (at.value == stage->graph->labels && graph->labels != TT_NONE)
            return (struct place){s, graph->labels};
        if (at.value == stage->graph->positions && graph->positions != TT_NONE)
            return (struct place){s, graph->positions};
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

/* The name of a microbatch's final gradient: that of the last node that writes it. The gradient is a parameter's, or
 * belongs to one of the two uses of a tied parameter. */
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
    put(m, scratch, "scratch"); /* before inputs are read, since scratch must not overlap them */
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

/* The parameters of the units of a collective, in the order of its operands. Valid until the next call. */
static const int *params_of(const struct machine *m, const struct tt_instr *instr, int *ret_n)
{
    static int params[64];
    int n = 0;
    const struct tt_bucket of = tt_instr_units(m->p->buckets, instr);

    for (int u = 0; u < of.n; u++)
        for (int i = 0; i < m->p->layout->units[of.units[u]].n_params; i++)
            params[n++] = m->p->layout->units[of.units[u]].params[i].param;
    *ret_n = n;
    return params;
}

/* Parameters arrive in place. Until the wait nothing may read or write them. */
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

    for (int i = 0; i < instr->n_operands; i++) { /* there are none if each was freed after its last read */
        char gathered[NAME_BYTES];

        (void)snprintf(gathered, sizeof gathered, "parameter %d", unit->params[i].param);
        must_hold(m, operand(m, i), gathered);
        put(m, operand(m, i), "resharded");
    }
}

/* The sum in operand `at`, a whole gradient: "1", or "(0+1)" if it adds several microbatches. */
static const char *whole_sum(const struct machine *m, int at, const struct tt_unit_grad *grad)
{
    static char text[NAME_BYTES];
    const char *found = get(m, operand(m, at));
    int mb = -1;

    if (!found || strncmp(found, "gradient", 8) != 0)
        return found && found[0] == '(' ? found : "nothing";
    (void)sscanf(found, "gradient %*d of %d", &mb);
    must_hold(m, operand(m, at), gradient_name(m->p, grad, mb));
    (void)snprintf(text, sizeof text, "%d", mb);
    return text;
}

static void reduce(struct machine *m, const struct tt_instr *instr)
{
    int at = 0, results = instr->n_operands - 1;
    const struct tt_bucket of = tt_instr_units(m->p->buckets, instr);
    char sums[16][NAME_BYTES];

    assert_true(of.n <= 16);
    for (int u = 0; u < of.n; u++)
        for (int k = 0; k < m->p->layout->units[of.units[u]].n_grads; k++, at++) {
            const char *sum = whole_sum(m, at, &m->p->layout->units[of.units[u]].grads[k]);

            if (k == 0)
                (void)snprintf(sums[u], sizeof sums[u], "%s", sum);
            else if (strcmp(sum, sums[u]) != 0)
                fault(m, "gradients of one sum", sums[u], sum);
        }
    for (int i = 0; i < instr->n_operands; i++)
        put(m, operand(m, i), "reducing");
    for (int u = 0; u < of.n; u++) {
        char name[2 * NAME_BYTES];

        (void)snprintf(name, sizeof name, "reducing %.*s", NAME_BYTES - 1, sums[u]);
        put(m, operand(m, results - of.n + u), name);
    }
    for (int i = 0; i < instr->n_operands; i++)
        if (operand(m, i) != TT_NONE && (i < results - of.n || i == results))
            must_hold(m, operand(m, i), "reducing");
}

static void wait_reduce(struct machine *m, const struct tt_instr *instr)
{
    int n = 0;
    const struct tt_bucket of = tt_instr_units(m->p->buckets, instr);

    for (int u = 0; u < of.n; u++)
        n += m->p->layout->units[of.units[u]].n_grads;
    assert_int_equal(instr->n_operands, n + of.n + 1);
    for (int i = 0; i < instr->n_operands; i++)
        if (operand(m, i) != TT_NONE && (i < n || i == n + of.n))
            must_hold(m, operand(m, i), "reducing");
    for (int u = 0; u < of.n; u++) {
        const char *found = get(m, operand(m, n + u));
        char leaf[NAME_BYTES];

        if (!found || strncmp(found, "reducing ", 9) != 0)
            fault(m, "what is reduced", "reducing", found);
        (void)snprintf(leaf, sizeof leaf, "%s", found + 9);
        put(m, operand(m, n + u), leaf);
    }
}

/* With one shard, a leaf is what the nodes wrote: all gradients of the unit, side by side. */
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

/* Adds a name to a sum; a + b is b + a. */
static void add_name(char sum[NAME_BYTES], const char *other)
{
    bool is_left = strcmp(other + strspn(other, "("), sum + strspn(sum, "(")) < 0;
    char next[NAME_BYTES];

    (void)snprintf(next, sizeof next, "(%.70s+%.70s)", is_left ? other : sum, is_left ? sum : other);
    memcpy(sum, next, sizeof next);
}

static void fold(struct machine *m, const struct tt_instr *instr)
{
    char sum[NAME_BYTES];

    if (m->p->buffers[operand(m, 0)].root != operand(m, 0)) {
        tie(m, instr);
        return;
    }
    (void)snprintf(sum, sizeof sum, "%s", sum_name(m, operand(m, 0), instr->unit));
    for (int s = 1; s < instr->n_operands; s++) {
        const char *found = sum_name(m, operand(m, s), instr->unit);

        add_name(sum, found ? found : "nothing");
    }
    put(m, operand(m, instr->n_operands - 1), sum);
}

/* Each whole gradient of the unit: the microbatch's, and its neighbours in the tree. */
static void add_whole(struct machine *m, const struct tt_instr *instr)
{
    const struct tt_unit *unit = &m->p->layout->units[instr->unit];
    int parts = instr->n_operands / unit->n_grads;

    assert_int_equal(instr->n_operands, parts * unit->n_grads);
    for (int k = 0; k < unit->n_grads; k++) {
        char sum[NAME_BYTES];

        must_hold(m, operand(m, k * parts), gradient_name(m->p, &unit->grads[k], instr->microbatch));
        (void)snprintf(sum, sizeof sum, "%s", whole_sum(m, k * parts, &unit->grads[k]));
        for (int s = 1; s < parts; s++)
            add_name(sum, whole_sum(m, k * parts + s, &unit->grads[k]));
        put(m, operand(m, (k + 1) * parts - 1), sum);
    }
}

static void all_reduce(struct machine *m, const struct tt_instr *instr, bool wait)
{
    char name[NAME_BYTES];
    int staging;
    const struct tt_bucket of = tt_instr_units(m->p->buckets, instr);

    staging = operand(m, of.n);
    if (wait && staging != TT_NONE)
        must_hold(m, staging, "staging");
    for (int u = 0; u < of.n; u++) {
        const char *found = sum_name(m, operand(m, u), of.units[u]);

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

/* --- Muon --- */

static const char *update_name(const struct tt_unit *unit, int k, const char *what)
{
    static char text[NAME_BYTES];

    (void)snprintf(text, sizeof text, "%s of parameter %d", what, unit->params[k].param);
    return text;
}

/* The gradient of each matrix turns into its update. */
static void make_updates(struct machine *m, const struct tt_instr *instr)
{
    const struct tt_unit *unit = &m->p->layout->units[instr->unit];

    for (int k = unit->first_matrix; k < unit->n_trained; k++)
        put_range(m, begin_of(m->p, operand(m, 0)) + unit->params[k].offset * (int64_t)sizeof(float),
                  unit->params[k].chunk * (int64_t)sizeof(float), update_name(unit, k, "update"));
}

static void gather_updates(struct machine *m, const struct tt_instr *instr, bool wait)
{
    const struct tt_unit *unit = &m->p->layout->units[instr->unit];
    int n = unit->n_trained - unit->first_matrix, own = operand(m, n);

    assert_int_equal(instr->n_operands, n + 1);
    for (int k = unit->first_matrix; k < unit->n_trained; k++) {
        int64_t at = begin_of(m->p, own) + (unit->params[k].offset - unit->matrices_begin) * (int64_t)sizeof(float);
        const char *found = name_at(m, at), *wanted = update_name(unit, k, "update");

        if (!found || strcmp(found, wanted) != 0)
            fault(m, "what is gathered", wanted, found);
    }
    for (int k = unit->first_matrix; k < unit->n_trained; k++) {
        if (wait)
            must_hold(m, operand(m, k - unit->first_matrix), update_name(unit, k, "on its way"));
        put(m, operand(m, k - unit->first_matrix), update_name(unit, k, wait ? "update" : "on its way"));
    }
}

static void muon(struct machine *m, const struct tt_instr *instr)
{
    const struct tt_unit *unit = &m->p->layout->units[instr->unit];
    int n = unit->n_trained - unit->first_matrix;

    assert_int_equal(instr->n_operands, n + 1);
    put(m, operand(m, n), "scratch"); /* before the updates are read, since scratch must not overlap them */
    for (int k = 0; k < n; k++) {
        int64_t rows = unit->params[unit->first_matrix + k].rows;

        must_hold(m, operand(m, k), update_name(unit, unit->first_matrix + k, "update"));
        assert_true(m->p->buffers[operand(m, k)].bytes >=
                    rows * tt_box_row_elements(&unit->params[unit->first_matrix + k].box) * (int64_t)sizeof(float));
    }
}

static void collective(struct machine *m, const struct tt_instr *instr, bool wait)
{
    if (instr->purpose == TT_UNSHARD)
        unshard(m, instr, wait);
    else if (instr->purpose == TT_ALL_REDUCE)
        all_reduce(m, instr, wait);
    else if (instr->purpose == TT_GATHER_UPDATES)
        gather_updates(m, instr, wait);
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
    case TT_EXPERTS:
        run_node(m, instr);
        break;
    case TT_LOSS:
        must_hold(m, operand(m, 0),
                  value_name(m->p, instr->stage, tt_instr_graph(m->p, instr)->token_loss, instr->microbatch));
        break;
    case TT_COUNT:
        must_hold(m, operand(m, 0),
                  value_name(m->p, instr->stage, m->p->buffers[operand(m, 0)].value, instr->microbatch));
        if (operand(m, 1) != TT_NONE)
            must_hold(m, operand(m, 1),
                      value_name(m->p, instr->stage, m->p->buffers[operand(m, 1)].value, instr->microbatch));
        break;
    case TT_BEGIN:
    case TT_WAIT:
        collective(m, instr, instr->kind == TT_WAIT);
        break;
    case TT_RESHARD:
        reshard(m, instr);
        break;
    case TT_ADD:
        if (tt_unit_shard(m->p->layout, instr->unit).n > 1)
            add_whole(m, instr);
        else
            fold(m, instr);
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
        if (instr->kind == TT_OPTIMIZER)
            make_updates(m, instr);
        break;
    }
    case TT_MUON:
        muon(m, instr);
        break;
    default:
        if (instr->n_operands)
            fault(m, "its operands", "a case in step of tests/help/names.c", NULL);
        break;
    }
}

/* Inputs are present before the first instruction. They stay until the clip, since a bad step is examined again. */
static void inputs(struct machine *m, bool check)
{
    for (int mb = 0; mb < m->p->microbatches; mb++)
        for (int s = 0; s < m->p->n_stages; s++) {
            const struct tt_graph *graph = m->p->stages[s].graph;
            const int buffers[] = {m->p->tokens[mb], m->p->labels[mb], m->p->positions[mb]};
            const int values[] = {graph->tokens, graph->labels, graph->positions};

            for (int i = 0; i < 3; i++) {
                if (values[i] == TT_NONE)
                    continue;
                if (check)
                    must_hold(m, buffers[i], value_name(m->p, s, values[i], mb));
                else
                    put(m, buffers[i], value_name(m->p, s, values[i], mb));
            }
        }
}

/* Collectives that are under way at the same time must have different tags. */
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

void names_run(const struct tt_program *p, const char *wanted_sum)
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

static struct planned make(const struct plan *plan, bool muon)
{
    const struct tt_model_dims dims = {
        .dim = 10, .n_layers = 2, .n_heads = 5, .n_kv_heads = 1, .ffn_dim = 11, .vocab_size = 17, .tied = plan->tied};
    struct tt_engine_options options = {.sharding = {.wrap = "block", .reshard = plan->reshard},
                                        .prefetch = plan->prefetch,
                                        .threads = 1,
                                        .muon_steps = 5,
                                        .local_batch = 1,
                                        .seq_len = 4,
                                        .microbatches = plan->microbatches};
    struct planned made = {0};

    assert_int_equal(tt_model_new("llama3", "debugmodel", &dims, NULL, &made.model), 0);
    if (muon)
        tt_param_groups_set_optim(made.model, TT_OPTIM_MUON);
    assert_int_equal(
        tt_mesh_init(DP_DEGREES(plan->replicas, plan->shards), plan->shards * plan->replicas, &options.mesh), 0);
    options.model = made.model;
    assert_int_equal(tt_engine_new(&options, NULL, plan->shards - 1, &made.engine), 0);
    made.program = tt_engine_program(made.engine);
    assert_int_equal(tt_program_check(made.program), 0);
    return made;
}

struct planned planned_make(const struct plan *plan)
{
    return make(plan, false);
}

struct planned planned_make_muon(const struct plan *plan)
{
    return make(plan, true);
}

void planned_release(struct planned *made)
{
    tt_engine_free(made->engine);
    tt_model_free(made->model);
}
