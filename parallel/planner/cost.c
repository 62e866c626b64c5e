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
#include "core/os/file.h"
#include "core/program/instr/instr.h"

enum { TERMS = 3 };

static void terms_of(const struct tt_cost *work, double ret_terms[TERMS])
{
    ret_terms[0] = work->flops;
    ret_terms[1] = work->bytes;
    ret_terms[2] = work->inner > 0.0 ? work->flops / work->inner : 0.0;
}

/* --- prices of ops --- */

/* The sum over samples of sec * (price . terms / sec - 1)^2 equals price' m price - 2 price . v + sec. */
struct normal {
    double m[TERMS][TERMS], v[TERMS], sec;
};

static void add_sample(struct normal *n, const struct tt_op_sample *s)
{
    double terms[TERMS];

    terms_of(&s->work, terms);
    for (int i = 0; i < TERMS; i++) {
        for (int j = 0; j < TERMS; j++)
            n->m[i][j] += terms[i] * terms[j] / s->sec;
        n->v[i] += terms[i];
    }
    n->sec += s->sec;
}

/* Solves for the prices of the terms in `set`, a set of bits, by Cholesky's method. False: the samples cannot
 * separate the terms, or a price would be negative. */
static bool solve(const struct normal *n, unsigned set, double ret_price[TERMS])
{
    double lower[TERMS][TERMS] = {{0}}, x[TERMS];
    int term[TERMS], k = 0;

    for (int i = 0; i < TERMS; i++)
        if (set & 1U << i)
            term[k++] = i;
    for (int i = 0; i < k; i++) {
        double diagonal = n->m[term[i]][term[i]];

        for (int j = 0; j <= i; j++) {
            double sum = n->m[term[i]][term[j]];

            for (int l = 0; l < j; l++)
                sum -= lower[i][l] * lower[j][l];
            if (i == j && !(sum > 1e-6 * diagonal))
                return false;
            lower[i][j] = i == j ? sqrt(sum) : sum / lower[j][j];
        }
    }
    for (int i = 0; i < k; i++) {
        x[i] = n->v[term[i]];
        for (int l = 0; l < i; l++)
            x[i] -= lower[i][l] * x[l];
        x[i] /= lower[i][i];
    }
    memset(ret_price, 0, TERMS * sizeof *ret_price);
    for (int i = k - 1; i >= 0; i--) {
        for (int l = i + 1; l < k; l++)
            x[i] -= lower[l][i] * x[l];
        x[i] /= lower[i][i];
        if (!(x[i] > 0.0))
            return false;
        ret_price[term[i]] = x[i];
    }
    return true;
}

static double error_of(const struct normal *n, const double price[TERMS])
{
    double error = n->sec;

    for (int i = 0; i < TERMS; i++) {
        error -= 2.0 * price[i] * n->v[i];
        for (int j = 0; j < TERMS; j++)
            error += price[i] * price[j] * n->m[i][j];
    }
    return error;
}

/* The best of all sets of terms. A larger set must be clearly better than the smaller ones: an extra term may only fit
 * noise, and would then be wrong for other sizes. */
static bool fit_one(const struct normal *n, double ret_price[TERMS])
{
    static const unsigned sets[] = {1, 2, 4, 3, 5, 6, 7};
    const double clearly = 0.98;
    double price[TERMS], least = INFINITY;

    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
        if (!solve(n, sets[s], price) || error_of(n, price) >= clearly * least)
            continue;
        least = error_of(n, price);
        memcpy(ret_price, price, sizeof price);
    }
    return least < INFINITY;
}

static bool counts(const struct tt_op_sample *s)
{
    return s->sec > 0.0 && s->work.flops + s->work.bytes > 0.0;
}

void tt_op_prices_fit(const struct tt_op_sample *samples, int n, struct tt_op_prices *ret_prices)
{
    struct tt_op_prices *prices = ret_prices;

    prices->n = 0;
    for (int i = 0; i < n && prices->n < TT_MOST_OP_PRICES; i++) {
        struct tt_op_price price = {.dtype = samples[i].dtype};
        struct normal normal = {.sec = 0.0};
        double of_term[TERMS] = {0.0};

        if (!counts(&samples[i]) || tt_op_prices_sec(prices, samples[i].op, samples[i].dtype, &samples[i].work) >= 0.0)
            continue;
        for (int j = i; j < n; j++)
            if (counts(&samples[j]) && samples[j].dtype == samples[i].dtype &&
                strcmp(samples[j].op, samples[i].op) == 0)
                add_sample(&normal, &samples[j]);
        if (!fit_one(&normal, of_term))
            continue;
        (void)snprintf(price.op, sizeof price.op, "%s", samples[i].op);
        price.flop_sec = of_term[0];
        price.byte_sec = of_term[1];
        price.sum_sec = of_term[2];
        prices->of[prices->n++] = price;
    }
}

double tt_op_prices_sec(const struct tt_op_prices *prices, const char *op, enum tt_dtype dtype,
                        const struct tt_cost *work)
{
    double terms[TERMS];

    terms_of(work, terms);
    for (int i = 0; i < prices->n; i++) {
        const struct tt_op_price *p = &prices->of[i];

        if (p->dtype == dtype && strcmp(p->op, op) == 0)
            return p->flop_sec * terms[0] + p->byte_sec * terms[1] + p->sum_sec * terms[2];
    }
    return -1.0;
}

/* A price in a machine file: {"op", "dtype", "flop_s", "byte_s", "sum_s"}. */
static int read_price(const json_t *json, const char *path, struct tt_op_price *ret_price)
{
    struct tt_op_price price = {.op = ""};
    const char *op, *dtype;
    struct {
        const char *key;
        double *value;
    } numbers[] = {{"flop_s", &price.flop_sec}, {"byte_s", &price.byte_sec}, {"sum_s", &price.sum_sec}};
    int rc = 0;

    TT_TRY(tt_json_get_string(json, "op", path, &op));
    TT_TRY(tt_json_get_string(json, "dtype", path, &dtype));
    if (strlen(op) >= sizeof price.op)
        return tt_fail(TT_EDATA, "%s: the name of op \"%s\" is too long, wanted fewer than %zu bytes", path, op,
                       sizeof price.op);
    (void)snprintf(price.op, sizeof price.op, "%s", op);
    price.dtype = strcmp(dtype, tt_op_price_dtype(TT_BF16)) == 0 ? TT_BF16 : TT_F32;
    if (strcmp(dtype, tt_op_price_dtype(price.dtype)) != 0)
        return tt_fail(TT_EDATA, "%s: dtype of op \"%s\" is \"%s\", wanted \"%s\" or \"%s\"", path, op, dtype,
                       tt_op_price_dtype(TT_F32), tt_op_price_dtype(TT_BF16));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        TT_TRY(tt_json_get_real(json, numbers[i].key, path, numbers[i].value));
        if (!(*numbers[i].value >= 0.0) || !isfinite(*numbers[i].value))
            return tt_fail(TT_EDATA, "%s: %s of op \"%s\" is %g, wanted a number of seconds, 0 or more", path,
                           numbers[i].key, op, *numbers[i].value);
    }
    *ret_price = price;
out:
    return rc;
}

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

static const struct number *const bgemm = &numbers[1]; /* after sgemm_flops, which replaces it in older files */

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
            machine->bgemm_flops = machine->sgemm_flops; /* the file is an older one */
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

/* The members that older files lack. */
static int read_measured(const json_t *json, const char *path, struct tt_machine *machine)
{
    const json_t *ops = json_object_get(json, "ops");
    int rc = 0;

    if (json_object_get(json, "transfer_share") || json_object_get(json, "transfer_stretch")) {
        TT_TRY(tt_json_get_real(json, "transfer_share", path, &machine->transfer_share));
        TT_TRY(tt_json_get_real(json, "transfer_stretch", path, &machine->transfer_stretch));
        if (!(machine->transfer_share >= 0.0 && machine->transfer_share < 1.0))
            return tt_fail(TT_EDATA, "%s: transfer_share is %g, wanted a number from 0 to below 1", path,
                           machine->transfer_share);
        if (!(machine->transfer_stretch >= 1.0) || !isfinite(machine->transfer_stretch))
            return tt_fail(TT_EDATA, "%s: transfer_stretch is %g, wanted a number of at least 1", path,
                           machine->transfer_stretch);
    }
    if (ops && (!json_is_array(ops) || json_array_size(ops) > TT_MOST_OP_PRICES))
        return tt_fail(TT_EDATA, "%s: ops is not an array of at most %d prices", path, TT_MOST_OP_PRICES);
    for (size_t i = 0; i < json_array_size(ops); i++)
        TT_TRY(read_price(json_array_get(ops, i), path, &machine->ops.of[machine->ops.n++]));
out:
    return rc;
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
    TT_TRY(read_measured(json, path, &machine));
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

/* Whether transfers and computation slow each other down, according to the machine's numbers. */
static bool meets(const struct tt_machine *machine)
{
    return machine->transfer_share > 0.0 || machine->transfer_stretch > 1.0;
}

json_t *tt_machine_to_json(const struct tt_machine *machine)
{
    json_t *json = json_pack("{s:s, s:i, s:o*}", "type", "machine", "schema", 1, "name", json_string(machine->name));
    json_t *ops = machine->ops.n ? json_array() : NULL;

    for (int i = 0; i < N_NUMBERS; i++)
        (void)json_object_set_new(json, numbers[i].key, json_real(number_of(machine, i)));
    if (meets(machine)) {
        (void)json_object_set_new(json, "transfer_share", json_real(machine->transfer_share));
        (void)json_object_set_new(json, "transfer_stretch", json_real(machine->transfer_stretch));
    }
    for (int i = 0; i < machine->ops.n; i++) {
        const struct tt_op_price *p = &machine->ops.of[i];

        (void)json_array_append_new(ops, json_pack("{s:s, s:s, s:f, s:f, s:f}", "op", p->op, "dtype",
                                                   tt_op_price_dtype(p->dtype), "flop_s", p->flop_sec, "byte_s",
                                                   p->byte_sec, "sum_s", p->sum_sec));
    }
    if (ops)
        (void)json_object_set_new(json, "ops", ops);
    return json;
}

uint64_t tt_machine_hash(const struct tt_machine *machine)
{
    uint64_t hash = 1;

    for (int i = 0; i < N_NUMBERS; i++) {
        double value = number_of(machine, i);

        hash = tt_hash64(&value, sizeof value, hash);
    }
    if (meets(machine)) {
        hash = tt_hash64(&machine->transfer_share, sizeof machine->transfer_share, hash);
        hash = tt_hash64(&machine->transfer_stretch, sizeof machine->transfer_stretch, hash);
    }
    for (int i = 0; i < machine->ops.n; i++) {
        const struct tt_op_price *p = &machine->ops.of[i];
        const double price[] = {p->dtype == TT_BF16, p->flop_sec, p->byte_sec, p->sum_sec};

        hash = tt_hash64(p->op, strlen(p->op), hash);
        hash = tt_hash64(price, sizeof price, hash);
    }
    return hash;
}

/* --- formulas --- */

static double work_sec(const struct tt_machine *machine, const char *op, enum tt_dtype dtype,
                       const struct tt_cost *work, int threads)
{
    double measured = tt_op_prices_sec(&machine->ops, op, dtype, work);
    double compute = work->flops / ((work->bf16 ? machine->bgemm_flops : machine->sgemm_flops) * threads),
           memory = work->bytes / machine->memory_bytes_per_sec;

    if (measured >= 0.0)
        return measured / threads;
    return compute > memory ? compute : memory;
}

double tt_cost_node_sec(const struct tt_machine *machine, const struct tt_graph *graph, int node, int threads)
{
    int64_t routed = tt_node_routed_bytes(graph, node);
    struct tt_cost cost = {0};
    double sec;

    if (tt_op_row(graph->nodes[node].op)->exchange != TT_EXCHANGE_NONE) {
        struct tt_collective_desc desc = tt_node_collective(graph, node);

        return tt_cost_collective_sec(machine, desc.op, desc.ranks, desc.bytes);
    }
    tt_op_cost(graph, &graph->nodes[node], &cost);
    sec = work_sec(machine, tt_op_row(graph->nodes[node].op)->name, graph->dtype, &cost, threads);
    if (routed) /* nothing overlaps the exchange of a node whose experts are spread over ranks */
        sec += TT_ROUTED_CALLS * (machine->call_sec + (graph->nodes[node].attr.peers.n - 1) * machine->message_sec) +
               (double)routed / machine->link_bytes_per_sec;
    return sec;
}

double tt_cost_node_most_sec(const struct tt_machine *machine, const struct tt_graph *graph, int node, int threads)
{
    struct tt_routed_most most = tt_node_routed_most(graph, node);
    struct tt_cost cost = {0};
    double sec = tt_cost_node_sec(machine, graph, node, threads), worst;

    if (most.bytes == 0)
        return sec;
    tt_op_cost(graph, &graph->nodes[node], &cost);
    worst = most.rows * work_sec(machine, tt_op_row(graph->nodes[node].op)->name, graph->dtype, &cost, threads) +
            most.calls * machine->call_sec + most.messages * machine->message_sec +
            most.link_bytes / machine->link_bytes_per_sec;
    return fmax(sec, worst);
}

static double gather_sec(const struct tt_machine *m, int n, double shard)
{
    return (n - 1) * (m->message_sec + shard / m->link_bytes_per_sec);
}

static double reduce_sec(const struct tt_machine *m, int n, double shard)
{
    int messages = n - 1; /* sent one after another */

    if ((n & (n - 1)) == 0)
        for (messages = 0; 1 << messages < n; messages++)
            ;
    return messages * m->message_sec + (n - 1) * shard * (1.0 / m->link_bytes_per_sec + 3.0 / m->memory_bytes_per_sec);
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

/* Seconds of one instruction on the computing thread, without waiting for a collective. */
static double instr_sec(const struct tt_machine *machine, const struct tt_program *program, int i)
{
    const struct tt_instr *instr = &program->instrs[i];
    struct tt_instr_cost cost = tt_instr_cost(program, instr);

    return work_sec(machine, tt_instr_op_name(program, instr), program->param_dtype, &cost.work, program->threads) +
           cost.calls * machine->call_sec + cost.messages * machine->message_sec +
           cost.link_bytes / machine->link_bytes_per_sec;
}

double tt_cost_transfer_sec(const struct tt_machine *machine, const struct tt_program *program, int i)
{
    const struct tt_collective_desc *desc = &program->instrs[i].collective;

    return tt_collective_travels(desc) ? tt_cost_collective_sec(machine, desc->op, desc->ranks, desc->bytes) : 0.0;
}

/* --- the simulator --- */

/* The two lanes. Collectives that have begun wait in a queue; the first one transfers. */
struct lanes {
    const struct tt_machine *machine;
    const struct tt_program *program;
    struct tt_timeline *t;
    double now;           /* time on the computing lane */
    int *queue, n, first; /* instructions; those before `first` are complete */
    int *place;           /* place of an instruction in the queue */
};

static struct tt_span *first_of(struct lanes *l)
{
    return &l->t->transfer[l->queue[l->first]];
}

/* Sets the end of the first transfer, as if the computing thread were idle. `after`: the end of the one before it. */
static void start_first(struct lanes *l, double after)
{
    struct tt_span *first = first_of(l);

    first->begin = fmax(first->begin, after);
    first->end = first->begin + tt_cost_transfer_sec(l->machine, l->program, l->queue[l->first]);
}

static void finish_first(struct lanes *l)
{
    double end = first_of(l)->end;

    if (++l->first < l->n)
        start_first(l, end);
}

static void begin_transfer(struct lanes *l, int i)
{
    l->t->transfer[i] = (struct tt_span){l->now, l->now};
    l->t->transfer_sec += tt_cost_transfer_sec(l->machine, l->program, i);
    while (l->first < l->n && first_of(l)->end <= l->now)
        finish_first(l);
    l->place[i] = l->n;
    l->queue[l->n++] = i;
    if (l->first == l->n - 1)
        start_first(l, l->n > 1 ? l->t->transfer[l->queue[l->n - 2]].end : 0.0);
}

/* Lets the computing lane work for `sec` seconds, or longer if a transfer slows it down. */
static void compute(struct lanes *l, double sec)
{
    double share = l->machine->transfer_share, stretch = fmax(1.0, l->machine->transfer_stretch);

    while (meets(l->machine) && sec > 0.0 && l->first < l->n) {
        struct tt_span *first = first_of(l);
        double left = (first->end - l->now) * stretch; /* seconds until it is complete, if this lane computes */

        if (left <= 0.0) {
            finish_first(l);
            continue;
        }
        if (sec < left * (1.0 - share)) {
            double passed = sec / (1.0 - share);

            first->end += passed * (1.0 - 1.0 / stretch);
            l->now += passed;
            return;
        }
        sec -= left * (1.0 - share);
        l->now += left;
        first->end = l->now;
        finish_first(l);
    }
    l->now += sec;
}

void tt_cost_simulate(const struct tt_machine *machine, const struct tt_program *program,
                      struct tt_timeline *ret_timeline)
{
    size_t n = (size_t)program->n_instrs;
    struct tt_timeline t = {.n = program->n_instrs};
    struct lanes lanes = {.machine = machine,
                          .program = program,
                          .t = &t,
                          .queue = tt_calloc(n + 1, sizeof(int)),
                          .place = tt_calloc(n + 1, sizeof(int))};

    t.compute = tt_calloc(n + 1, sizeof *t.compute);
    t.transfer = tt_calloc(n + 1, sizeof *t.transfer);
    t.exposed = tt_calloc(n + 1, sizeof *t.exposed);
    for (int i = 0; i < t.n; i++) {
        const struct tt_instr *instr = &program->instrs[i];
        const struct tt_instr_row *row = tt_instr_row(instr);
        double begin = lanes.now, ready;

        if (row->waits) {
            double *waited = &t.exposed[instr->begin];

            while (lanes.first < lanes.place[instr->begin]) /* until the transfer is complete */
                finish_first(&lanes);
            *waited = fmax(0.0, t.transfer[instr->begin].end - lanes.now);
            t.exposed_sec += *waited;
            lanes.now += *waited;
        }
        ready = lanes.now;
        compute(&lanes, instr_sec(machine, program, i));
        if (row->begins)
            begin_transfer(&lanes, i);
        t.compute_sec += lanes.now - ready;
        t.compute[i] = (struct tt_span){begin, lanes.now};
    }
    while (lanes.first < lanes.n) /* transfers without a wait */
        finish_first(&lanes);
    t.step_sec = lanes.now;
    tt_free(lanes.queue);
    tt_free(lanes.place);
    *ret_timeline = t;
}

void tt_timeline_release(struct tt_timeline *timeline)
{
    tt_free(timeline->compute);
    tt_free(timeline->transfer);
    tt_free(timeline->exposed);
    *timeline = (struct tt_timeline){0};
}

/* --- the stages of a pipeline --- */

struct tt_pipeline_times tt_cost_pipeline(const struct tt_machine *machine, const struct tt_stage *stages, int n_stages,
                                          int threads, struct tt_stage_times *ret_times)
{
    int64_t most = 0;

    for (int s = 0; s < n_stages; s++) {
        const struct tt_graph *graph = stages[s].graph;
        struct tt_stage_times times = {0};
        /* sent to the next stage for each microbatch; the gradients that come back have the same size */
        int64_t bytes = 0;

        for (int i = 0; i < stages[s].n_out; i++)
            bytes += tt_value_bytes(&graph->values[stages[s].out[i].value]);
        for (int n = 0; n < graph->n_nodes; n++) {
            const struct tt_node *node = &graph->nodes[n];
            bool weight = node->backward && tt_order_is_weight_part(graph, node);

            *(weight           ? &times.weight
              : node->backward ? &times.input
                               : &times.forward) += tt_cost_node_sec(machine, graph, n, threads);
        }
        times.full = times.input + times.weight;
        ret_times[s] = times;
        most = bytes > most ? bytes : most;
    }
    return (struct tt_pipeline_times){ret_times, most > 0 ? tt_cost_collective_sec(machine, TT_SEND, 2, most) : 0.0};
}
