/* SPDX-License-Identifier: MIT
 *
 * Exchanges inside a layer, on their own: small graphs made by hand, lowered and run on ranks that are threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/math/bf16.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"
#include "parallel/engine/agree.h"
#include "parallel/engine/transfer.h"
#include "parallel/layout/mesh.h"
#include "parallel/planner/cost.h"
#include "tests/help/mesh.h"
#include "tests/help/threads.h"
#include "tests/help/tree.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define EXPECT(condition)                                                                       \
    do {                                                                                        \
        if (!(condition))                                                                       \
            return tt_fail(TT_EINTERNAL, "%s:%d: %s is false", __FILE__, __LINE__, #condition); \
    } while (0)

enum { MOST_RANKS = 8 };

/* How the exchanged value is read again, if at all, while the exchange is under way. */
enum second { ALONE, ANOTHER_READER, OVERWRITER };

struct trial {
    enum tt_op_id op;
    enum tt_axis axis;
    int ranks, other; /* ranks of the axis, and of the other dimension of the mesh */
    int64_t rows, width;
    enum tt_dtype dtype; /* of the graph */
    bool acc;
    enum second second;
    int threads;
};

/* The arrays of one rank. */
struct rank {
    const struct trial *t;
    struct tt_mesh mesh;
    struct tt_layout layout;
    struct tt_unit unit;
    struct tt_unit_param param;
    int zero;
    struct tt_graph *graph;
    struct tt_stage stage;
    struct tt_program *program;
    int exchange, last; /* nodes */
};

/* --- values --- */

static float value_of(int rank, int64_t i)
{
    uint32_t x = (uint32_t)(rank * 7919 + i * 104729 + 1) * 2654435761U;

    return ((float)(x >> 8) / 8388608.0F - 1.0F) * (float)(1 << (x % 7)) + 1e-3F;
}

/* That value, rounded to bfloat16 if the exchange is in bfloat16. */
static float given(const struct trial *t, int rank, int64_t i)
{
    float value = value_of(rank, i);

    return t->dtype == TT_BF16 && t->op != TT_OP_SUM_ROWS ? tt_bf16_to_float(tt_bf16_from_float(value)) : value;
}

static float summed(const struct trial *t, int64_t i)
{
    float terms[MOST_RANKS], *leaves[MOST_RANKS];

    for (int r = 0; r < t->ranks; r++) {
        terms[r] = given(t, r, i);
        leaves[r] = &terms[r];
    }
    fold_tree(leaves, t->ranks, 1);
    return terms[0];
}

/* What element i of the result must be on a rank with this index. */
static float wanted(const struct trial *t, int index, int64_t i)
{
    int64_t all = t->rows * t->width, block = all / t->ranks;
    float sum;

    switch (t->op) {
    case TT_OP_GATHER_ROWS:
        return given(t, (int)(i / all), i % all);
    case TT_OP_SUM_ROWS:
        sum = summed(t, index * block + i);
        return t->dtype == TT_BF16 ? tt_bf16_to_float(tt_bf16_from_float(sum)) : sum;
    case TT_OP_SUM_ALL:
        sum = summed(t, i);
        return t->acc ? 3.0F * value_of(index, i) + sum : sum;
    default:
        return given(t, (int)(i / block), index * block + i % block);
    }
}

/* --- a graph and its program --- */

static int scale(struct tt_graph *graph, const char *name, int value, float by)
{
    int node = tt_graph_node(graph, TT_OP_SCALE, name, &value, 1, &(struct tt_attr){.scale = by});

    return node < 0 ? node : tt_graph_out(graph, node);
}

/* x = 1 p, y = exchange(x), z = 3 p (or 3 x, perhaps in x's memory), result = 1 y */
static void make_graph(struct rank *r, int index)
{
    const struct trial *t = r->t;
    bool sums = t->op == TT_OP_SUM_ROWS || t->op == TT_OP_SUM_ALL;
    enum tt_dtype dtype = sums ? TT_F32 : t->dtype;
    struct tt_attr attr = {.peers = {t->axis, t->ranks, index}};
    struct tt_graph *graph = r->graph = tt_graph_new();
    int p, in[2], n_in = t->op == TT_OP_SUM_ALL ? 2 : 1;

    graph->dtype = t->dtype;
    p = tt_graph_param(graph, 0, 0, dtype, "p", 2, (int64_t[]){t->rows, t->width});
    in[0] = scale(graph, "x", p, 1.0F);
    in[1] = t->acc ? scale(graph, "acc", p, 3.0F) : TT_NONE;
    r->exchange = tt_graph_node(graph, t->op, "y", in, n_in, &attr);
    (void)scale(graph, "z", t->second == ALONE ? p : in[0], 3.0F);
    if (t->second == ANOTHER_READER)
        (void)scale(graph, "z again", in[0], 3.0F);
    r->last = graph->values[scale(graph, "result", tt_graph_out(graph, r->exchange), 1.0F)].producer;
    r->stage = (struct tt_stage){.graph = graph};
}

static void make_layout(struct rank *r, int rank)
{
    const struct trial *t = r->t;

    for (int g = 0; g < TT_GROUPS; g++)
        r->layout.groups[g] = (struct tt_place){1, 0};
    r->layout.groups[TT_GROUP_TP] = tt_mesh_place(&r->mesh, rank, TT_GROUP_TP);
    r->layout.groups[TT_GROUP_CP] = tt_mesh_place(&r->mesh, rank, TT_GROUP_CP);
    r->param =
        (struct tt_unit_param){.chunk = t->rows * t->width, .box = {2, {0, 0}, {t->rows, t->width}}, .rows = t->rows};
    r->unit = (struct tt_unit){.name = "unit",
                               .params = &r->param,
                               .n_params = 1,
                               .shard_group = TT_GROUP_PP,
                               .replicate_group = TT_GROUP_PP,
                               .shard_elements = t->rows * t->width};
    r->layout.units = &r->unit;
    r->layout.n_units = r->layout.n_params = 1;
    r->layout.unit_of = r->layout.slot_of = &r->zero;
}

static int rank_make(const struct trial *t, int rank, struct rank *r)
{
    struct tt_schedule schedule = {0};
    struct tt_lowering lowering = {.n_stages = 1, .microbatches = 1, .threads = t->threads};
    bool tp = t->axis == TT_AXIS_TP;
    int rc = 0;

    *r = (struct rank){.t = t};
    TT_TRY(tt_mesh_init(DEGREES(1, 1, 1, tp ? t->other : t->ranks, tp ? t->ranks : t->other, 1), t->ranks * t->other,
                        &r->mesh));
    make_layout(r, rank);
    make_graph(r, r->layout.groups[tp ? TT_GROUP_TP : TT_GROUP_CP].index);
    lowering.stages = &r->stage;
    lowering.layout = &r->layout;
    lowering.staging = tt_collective_staging;
    lowering.shard_dtype = lowering.param_dtype = r->graph->values[0].dtype;
    for (int n = 0; n < r->graph->n_nodes; n++)
        tt_schedule_run(&schedule, &r->stage, 0, 0, n);
    TT_TRY(tt_program_new(&lowering, &schedule, &r->program));
    TT_TRY(tt_program_check(r->program));
out:
    tt_schedule_release(&schedule);
    return rc;
}

static void rank_release(struct rank *r)
{
    tt_program_free(r->program);
    tt_graph_free(r->graph);
}

/* --- the order of a program --- */

static int find(const struct tt_program *p, enum tt_instr_kind kind, int node)
{
    int i = 0;

    while (p->instrs[i].kind != kind || (node != TT_NONE && p->instrs[i].node != node))
        i++;
    return i;
}

/* The exchange begins where it stands and is awaited just before its reader, or before x is overwritten. */
static int check_order(const struct rank *r)
{
    const struct tt_program *p = r->program;
    int begin = find(p, TT_BEGIN, r->exchange), wait = find(p, TT_WAIT, TT_NONE), reader = find(p, TT_RUN, r->last);
    struct tt_text text = {0};

    EXPECT(p->instrs[wait].begin == begin);
    EXPECT(find(p, TT_RUN, r->exchange - 1) == begin - 1);
    if (r->t->second == OVERWRITER)
        EXPECT(wait == begin + 1);
    else if (r->t->second == ANOTHER_READER)
        EXPECT(wait == begin + 2);
    else
        EXPECT(wait == reader - 1 && wait == begin + 2);
    tt_instr_text(p, wait, &text);
    EXPECT(strncmp(text.text, "wait ", 5) == 0 && strstr(text.text, " of x"));
    tt_text_release(&text);
    return 0;
}

/* --- a run --- */

static void fill(const struct rank *r, int index, void *param)
{
    for (int64_t i = 0; i < r->t->rows * r->t->width; i++) {
        if (r->graph->values[0].dtype == TT_BF16)
            ((tt_bf16 *)param)[i] = tt_bf16_from_float(value_of(index, i));
        else
            ((float *)param)[i] = value_of(index, i);
    }
}

static int check_result(const struct rank *r, const struct tt_executor *ex, int index)
{
    const struct tt_value *value = &r->graph->values[r->graph->nodes[r->last].out[0]];
    const void *found = tt_executor_operand(ex, find(r->program, TT_RUN, r->last), 1);

    for (int64_t i = 0; i < tt_value_elements(value); i++) {
        float is = value->dtype == TT_BF16 ? tt_bf16_to_float(((const tt_bf16 *)found)[i]) : ((const float *)found)[i];
        float want = wanted(r->t, index, i);

        if (memcmp(&is, &want, sizeof is) != 0)
            return tt_fail(TT_EINTERNAL, "element %lld is %g, wanted %g", (long long)i, (double)is, (double)want);
    }
    return 0;
}

static int run_rank(struct tt_comm *comm, void *arg)
{
    const struct trial *t = arg;
    struct tt_device *device = tt_device_host();
    struct tt_device_stream *stream = NULL;
    struct tt_transfers *transfers = NULL;
    struct tt_executor *ex = NULL;
    struct tt_team *team = NULL;
    struct tt_state state = {0};
    struct tt_step step = {0};
    struct tt_exact sums[TT_SUMS];
    size_t param_bytes = (size_t)(t->rows * t->width) * sizeof(float) + TT_ARENA_ALIGN;
    char *region = NULL, *param = NULL;
    struct rank r = {0};
    int rc = 0, index;

    TT_TRY(rank_make(t, comm->rank, &r));
    index = r.layout.groups[t->axis == TT_AXIS_TP ? TT_GROUP_TP : TT_GROUP_CP].index;
    TT_TRY(check_order(&r));
    TT_TRY(tt_program_agree(comm, &r.mesh, r.program, "the step"));
    TT_TRY(tt_team_new(t->threads, &team));
    TT_TRY(device->ops->stream_new(device, &stream));
    region = device->ops->allocate(device, (size_t)r.program->step_bytes);
    param = device->ops->allocate(device, param_bytes);
    state.dtype = r.graph->values[0].dtype;
    (void)tt_state_add(&state, TT_STATE_PARAM, &r.layout, param);
    state.sums = sums;
    ex = tt_executor_new(r.program, &state, NULL, region, team, stream);
    TT_TRY(tt_transfers_new(comm, &r.mesh, r.program, &state, ex, &transfers));
    for (int again = 0; again < 2; again++) {
        fill(&r, index, state.array[TT_STATE_PARAM][0]);
        comm->payload_bytes = 0;
        TT_TRY(tt_executor_run(ex, &step));
        TT_TRY(check_result(&r, ex, index));
        EXPECT(comm->payload_bytes == tt_program_payload(r.program));
    }
    TT_TRY(tt_comm_check_messages(comm));
out:
    rc = tt_comm_agree(comm, rc);
    tt_transfers_free(transfers);
    tt_executor_free(ex);
    if (stream)
        device->ops->stream_free(stream);
    tt_team_free(team);
    tt_state_release(&state);
    if (region)
        device->ops->release(device, region, (size_t)r.program->step_bytes);
    if (param)
        device->ops->release(device, param, param_bytes);
    rank_release(&r);
    return rc;
}

/* --- tests --- */

static void must_run(const struct trial *t)
{
    if (tt_comm_threads_run(t->ranks * t->other, run_rank, (void *)t) < 0)
        fail_msg("op %d, axis %d, %d x %d ranks, %d x %d, type %d, acc %d, second %d: %s", (int)t->op, (int)t->axis,
                 t->ranks, t->other, (int)t->rows, (int)t->width, (int)t->dtype, t->acc, (int)t->second,
                 tt_error_message());
}

static void values_arrive(void **state)
{
    static const enum tt_op_id ops[] = {TT_OP_GATHER_ROWS, TT_OP_SUM_ROWS, TT_OP_SUM_ALL, TT_OP_SUM_ALL,
                                        TT_OP_SWAP_BLOCKS};
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {8, 301}};

    for (int i = 0; i < COUNT(ops) * COUNT(shapes) * 4 * 2 * 2; i++) {
        static const int degrees[] = {2, 3, 4, 8};
        int n = i, ranks = degrees[n % 4];
        enum tt_op_id op = ops[n / 4 % COUNT(ops)];
        const int64_t *shape = shapes[n / 4 / COUNT(ops) % COUNT(shapes)];
        bool bf16 = n / 4 / COUNT(ops) / COUNT(shapes) % 2, cp = n / 4 / COUNT(ops) / COUNT(shapes) / 2;
        bool in_blocks = op == TT_OP_SUM_ROWS || op == TT_OP_SWAP_BLOCKS;
        struct trial t = {.op = op,
                          .axis = cp ? TT_AXIS_CP : TT_AXIS_TP,
                          .ranks = ranks,
                          .other = ranks == 2 ? 2 : 1,
                          .rows = shape[0] * (in_blocks ? ranks : 1),
                          .width = shape[1],
                          .dtype = bf16 && op != TT_OP_SUM_ALL ? TT_BF16 : TT_F32,
                          .acc = op == TT_OP_SUM_ALL && n / 4 % COUNT(ops) == 2,
                          .threads = 1 + n % 2};

        must_run(&t);
    }
}

/* A reader of the value that is sent need not wait; a node that overwrites it must. */
static void what_is_sent_stays_until_it_is_there(void **state)
{
    static const enum tt_op_id ops[] = {TT_OP_GATHER_ROWS, TT_OP_SWAP_BLOCKS};

    for (int i = 0; i < 4; i++)
        must_run(&(struct trial){.op = ops[i % 2],
                                 .axis = TT_AXIS_TP,
                                 .ranks = 4,
                                 .other = 1,
                                 .rows = 40,
                                 .width = 300,
                                 .second = i / 2 ? OVERWRITER : ANOTHER_READER,
                                 .threads = 1});
}

/* A sum overwrites its terms. */
static void a_term_is_read_once(void **state)
{
    struct rank r;

    for (int i = 0; i < 2; i++) {
        struct trial t = {.op = i ? TT_OP_SUM_ROWS : TT_OP_SUM_ALL,
                          .axis = TT_AXIS_TP,
                          .ranks = 2,
                          .other = 1,
                          .rows = 2,
                          .width = 2,
                          .second = ANOTHER_READER,
                          .threads = 1};

        assert_int_equal(rank_make(&t, 0, &r), TT_EINTERNAL);
        assert_non_null(strstr(tt_error_message(), "uses up 'x', which is needed later"));
        rank_release(&r);
    }
}

/* The ranks of the graph must equal the ranks of the mesh. */
static void peers_are_the_ranks_of_the_mesh(void **state)
{
    struct trial t = {.op = TT_OP_GATHER_ROWS, .axis = TT_AXIS_TP, .ranks = 2, .other = 1, .rows = 2, .width = 2};
    struct rank r;

    t.threads = 1;
    assert_int_equal(rank_make(&t, 0, &r), 0);
    r.graph->nodes[r.exchange].attr.peers.index = 1;
    {
        struct tt_lowering lowering = {.stages = &r.stage,
                                       .n_stages = 1,
                                       .layout = &r.layout,
                                       .microbatches = 1,
                                       .threads = 1,
                                       .staging = tt_collective_staging};
        struct tt_schedule schedule = {0};
        struct tt_program *program = NULL;

        for (int n = 0; n < r.graph->n_nodes; n++)
            tt_schedule_run(&schedule, &r.stage, 0, 0, n);
        assert_int_equal(tt_program_new(&lowering, &schedule, &program), TT_EINTERNAL);
        assert_non_null(strstr(tt_error_message(), "rank 1 of 2, but this is rank 0 of 2 in tp"));
        tt_schedule_release(&schedule);
    }
    rank_release(&r);
}

/* Ranks that exchange different values notice it before the step. */
static int run_other_order(struct tt_comm *comm, void *arg)
{
    struct trial t = *(const struct trial *)arg;
    struct rank r;
    int rc = 0;

    if (comm->rank == 1)
        t.op = TT_OP_SWAP_BLOCKS;
    TT_TRY(rank_make(&t, comm->rank, &r));
    rc = tt_program_agree(comm, &r.mesh, r.program, "the step");
    rank_release(&r);
out:
    return rc;
}

static void ranks_that_differ_are_found(void **state)
{
    struct trial t = {
        .op = TT_OP_GATHER_ROWS, .axis = TT_AXIS_TP, .ranks = 2, .other = 1, .rows = 2, .width = 2, .threads = 1};

    assert_int_equal(tt_comm_threads_run(2, run_other_order, &t), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "in group tp its exchange 1 is 'swap blocks of x'"));
}

/* Every rank sends (n - 1) / n of the whole matrix, or twice that for a whole sum; the cost model predicts the same. */
static void payload_and_cost_are_those_of_the_formulas(void **state)
{
    static const struct {
        enum tt_op_id op;
        int64_t payload;
    } cases[] = {{TT_OP_GATHER_ROWS, 3 * 8 * 6 * 4},
                 {TT_OP_SUM_ROWS, 3 * 2 * 6 * 4},
                 {TT_OP_SUM_ALL, 2 * 3 * 2 * 6 * 4},
                 {TT_OP_SWAP_BLOCKS, 3 * 2 * 6 * 4}};
    struct tt_machine machine = tt_machine_builtin();

    for (int i = 0; i < COUNT(cases); i++) {
        struct trial t = {
            .op = cases[i].op, .axis = TT_AXIS_TP, .ranks = 4, .other = 1, .rows = 8, .width = 6, .threads = 1};
        struct tt_timeline time;
        struct rank r;

        assert_int_equal(rank_make(&t, 1, &r), 0);
        assert_int_equal(tt_program_payload(r.program), cases[i].payload);
        tt_cost_simulate(&machine, r.program, &time);
        assert_true(time.transfer_sec > 0.0);
        assert_true(tt_cost_node_sec(&machine, r.graph, r.exchange, 1) == time.transfer_sec);
        tt_timeline_release(&time);
        rank_release(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(what_is_sent_stays_until_it_is_there),
        cmocka_unit_test(a_term_is_read_once),
        cmocka_unit_test(peers_are_the_ranks_of_the_mesh),
        cmocka_unit_test(ranks_that_differ_are_found),
        cmocka_unit_test(payload_and_cost_are_those_of_the_formulas),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("exchange", tests, NULL, NULL);
}
