/* SPDX-License-Identifier: MIT
 *
 * The cost model: its formulas, with numbers that are easy to check by hand; machine files, and the simulator on
 * programs of a few instructions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/os/file.h"
#include "parallel/planner/cost.h"
#include "tests/help/machine.h"

/* A call takes 10 s, a message 1 s, a byte on the link 1 s, the addition of a byte 3/12 s. */
static const struct tt_machine toy = TT_MACHINE("", 2.0, 2.0, 12.0, 10.0, 1.0, 1.0);

static void near(double found, double wanted)
{
    assert_float_equal(found, wanted, 1e-9);
}

static void collectives_take_what_the_formulas_say(void **state)
{
    near(tt_cost_collective_sec(&toy, TT_ALL_GATHER, 4, 5), 10 + 3 * (1 + 5));
    near(tt_cost_collective_sec(&toy, TT_REDUCE_SCATTER, 4, 5), 10 + 2 * 1 + 3 * 5 * 1.25);
    near(tt_cost_collective_sec(&toy, TT_REDUCE_SCATTER, 3, 5), 10 + 2 * 1 + 2 * 5 * 1.25);
    near(tt_cost_collective_sec(&toy, TT_REDUCE_SCATTER, 6, 5), 10 + 5 * 1 + 5 * 5 * 1.25);
    near(tt_cost_collective_sec(&toy, TT_ALL_SUM, 4, 18), 10 + (2 * 1 + 3 * 5 * 1.25) + 3 * (1 + 5));
    near(tt_cost_collective_sec(&toy, TT_ALL_GATHER, 1, 5), 0.0);
    near(tt_cost_collective_sec(&toy, TT_REDUCE_SCATTER, 1, 5), 0.0);
    near(tt_cost_collective_sec(&toy, TT_ALL_SUM, 1, 5), 0.0);
}

static void a_saturating_bucket_spends_nine_tenths_on_bytes(void **state)
{
    int64_t bytes = tt_cost_saturating_bytes(&toy, 4);

    assert_int_equal(bytes, 9 * 13 * 4 / 3);
    near(3.0 * (double)(bytes / 4) / tt_cost_collective_sec(&toy, TT_ALL_GATHER, 4, bytes / 4), 0.9);
    assert_int_equal(tt_cost_saturating_bytes(&toy, 1), 0);
}

static void nodes_run_at_the_rate_of_arithmetic_or_of_memory(void **state)
{
    struct tt_graph *graph = tt_graph_new();
    int x = tt_graph_value(graph, TT_VALUE_ACTIVATION, TT_F32, "x", 2, (const int64_t[]){2, 3});
    int y = tt_graph_value(graph, TT_VALUE_ACTIVATION, TT_F32, "y", 2, (const int64_t[]){2, 3});
    int node = tt_graph_node(graph, TT_OP_ADD, "z", (const int[]){x, y}, 2, NULL);
    struct tt_machine slow_memory = TT_MACHINE("", 1e9, 1e9, 36.0, 1, 1, 1),
                      slow_core = TT_MACHINE("", 0.5, 0.5, 1e9, 1, 1, 1);

    near(tt_cost_node_sec(&slow_memory, graph, node, 1), 3 * 24 / 36.0); /* it reads two arrays and writes one */
    near(tt_cost_node_sec(&slow_core, graph, node, 1), 6 / 0.5);
    near(tt_cost_node_sec(&slow_core, graph, node, 4), 6 / 2.0);
    tt_graph_free(graph);
}

/* One sequence of 3 tokens, one head of 4. */
static double attention_sec(const struct tt_machine *machine, enum tt_dtype dtype)
{
    struct tt_graph *graph = tt_graph_new();
    const struct tt_attr attr = {.seq_len = 3, .heads = 1, .kv_heads = 1, .head_dim = 4};
    double sec;
    int in[4] = {TT_NONE, TT_NONE, TT_NONE, TT_NONE}, node;

    for (int i = 0; i < 3; i++)
        in[i] = tt_graph_value(graph, TT_VALUE_ACTIVATION, dtype, "x", 2, (const int64_t[]){3, 4});
    node = tt_graph_node(graph, TT_OP_ATTENTION, "o", in, 4, &attr);
    sec = tt_cost_node_sec(machine, graph, node, 1);
    tt_graph_free(graph);
    return sec;
}

/* A product of m rows with a weight of 5 m x 4 m. */
static double product_sec(const struct tt_machine *machine, enum tt_dtype dtype, int64_t m)
{
    struct tt_graph *graph = tt_graph_new();
    int x = tt_graph_value(graph, TT_VALUE_ACTIVATION, dtype, "x", 2, (const int64_t[]){m, 4 * m});
    int w = tt_graph_value(graph, TT_VALUE_PARAM, dtype, "w", 2, (const int64_t[]){5 * m, 4 * m});
    int node = tt_graph_node(graph, TT_OP_LINEAR, "y", (const int[]){x, w}, 2, NULL);
    double sec = tt_cost_node_sec(machine, graph, node, 1);

    tt_graph_free(graph);
    return sec;
}

static void products_and_attention_run_at_the_rate_of_their_type(void **state)
{
    const struct tt_machine machine = TT_MACHINE("", 2.0, 5.0, 1e9, 1, 1, 1);

    near(product_sec(&machine, TT_F32, 1), 2 * 4 * 5 / 2.0);
    near(product_sec(&machine, TT_BF16, 1), 2 * 4 * 5 / 5.0);
    near(attention_sec(&machine, TT_F32), 2 * 2 * 6 * 4 / 2.0); /* two products of the 6 pairs that the mask leaves */
    near(attention_sec(&machine, TT_BF16), 2 * 2 * 6 * 4 / 5.0);
}

static void without_a_file_products_of_bfloat16_take_half_the_time(void **state)
{
    const struct tt_machine machine = tt_machine_builtin();

    near(product_sec(&machine, TT_BF16, 1000), product_sec(&machine, TT_F32, 1000) / 2);
}

static void measured_peaks_price_what_runs_in_their_type(void **state)
{
    const struct tt_machine before = TT_MACHINE("", 2.0, 5.0, 1, 1, 1, 1);
    struct tt_machine machine = before;

    tt_machine_take_peaks(&machine, TT_F32, 3.0, 0.0);
    near(machine.sgemm_flops, 3.0);
    near(machine.bgemm_flops, 5.0);
    machine = before;
    tt_machine_take_peaks(&machine, TT_BF16, 7.0, 4.0);
    near(machine.sgemm_flops, 4.0);
    near(machine.bgemm_flops, 7.0);
    machine = before;
    tt_machine_take_peaks(&machine, TT_BF16, 10.0, 0.0);
    near(machine.sgemm_flops, 4.0);
    near(machine.bgemm_flops, 10.0);
}

/* --- machine files --- */

static char path[] = "/tmp/titan_machine_XXXXXX";

static int load_text(const char *text, struct tt_machine *machine)
{
    assert_int_equal(tt_file_replace(path, text, strlen(text)), 0);
    return tt_machine_load(path, machine);
}

static void refuses(const char *text, int code, const char *says)
{
    struct tt_machine machine;

    assert_int_equal(load_text(text, &machine), code);
    if (!strstr(tt_error_message(), says) || !strstr(tt_error_message(), path))
        fail_msg("'%s' does not say '%s' and the file", tt_error_message(), says);
}

#define HEAD \
    "{\"type\":\"machine\",\"schema\":1,\"name\":\"m\",\"memory_bytes_per_sec\":1,\"call_sec\":1,\"message_sec\":1,"

static void machine_files_are_read_as_written(void **state)
{
    struct tt_machine builtin = tt_machine_builtin(), read;
    json_t *json = tt_machine_to_json(&builtin);
    char *text = tt_json_text(json);

    assert_int_equal(load_text(text, &read), 0);
    assert_string_equal(read.name, builtin.name);
    assert_int_equal(tt_machine_hash(&read), tt_machine_hash(&builtin));
    read.link_bytes_per_sec *= 2;
    assert_int_not_equal(tt_machine_hash(&read), tt_machine_hash(&builtin));
    tt_free(text);
    json_decref(json);
}

static void an_older_file_has_one_rate_of_products(void **state)
{
    struct tt_machine machine;

    assert_int_equal(load_text(HEAD "\"sgemm_flops\":3,\"link_bytes_per_sec\":1}", &machine), 0);
    assert_true(machine.bgemm_flops == 3.0);
    assert_int_equal(load_text(HEAD "\"sgemm_flops\":3,\"bgemm_flops\":7,\"link_bytes_per_sec\":1}", &machine), 0);
    assert_true(machine.bgemm_flops == 7.0);
}

static void bad_machine_files_are_refused(void **state)
{
    struct tt_machine machine;

    refuses("{\"type\":\"model\",\"schema\":1}", TT_EDATA, "wanted a machine file of schema 1");
    refuses("{\"type\":\"machine\",\"schema\":3}", TT_EDATA, "schema 3");
    refuses("{\"type\":\"machine\",\"schema\":2,\"name\":\"h100\"}", TT_EDATA, "sgemm_flops");
    refuses("{\"schema\":1}", TT_EDATA, "type");
    refuses(HEAD "\"sgemm_flops\":1}", TT_EDATA, "link_bytes_per_sec");
    refuses(HEAD "\"sgemm_flops\":0,\"link_bytes_per_sec\":1}", TT_EDATA, "sgemm_flops is 0, wanted a number above 0");
    refuses(HEAD "\"sgemm_flops\":\"fast\",\"link_bytes_per_sec\":1}", TT_EDATA, "sgemm_flops");
    refuses("{", TT_EDATA, "");
    assert_int_equal(tt_machine_load("/nonexistent/machine.json", &machine), TT_EDATA);
}

/* --- the simulator --- */

enum { U0 = 0, U1 = 1 };

static struct tt_unit_param whole_unit = {.param = 0}; /* of AdamW */
static struct tt_unit units[] = {
    {.name = "u0", .params = &whole_unit, .n_trained = 1, .shard_elements = 1, .trained_elements = 1},
    {.name = "u1", .params = &whole_unit, .n_trained = 1, .shard_elements = 2, .trained_elements = 2}};
static const struct tt_layout layout = {
    .groups = {[TT_GROUP_FSDP] = {2, 0}, [TT_GROUP_REPLICATE] = {1, 0}}, .units = units, .n_units = 2};

/* For one element an update takes 7 * 4 / 4 = 7 s and a gather 10 + 1 + 4 = 15 s; for two elements, 14 s and 19 s. */
static const struct tt_machine slow = TT_MACHINE("", 1.0, 1.0, 4.0, 10.0, 1.0, 1.0);

static struct tt_timeline simulate_on(const struct tt_machine *machine, struct tt_instr *instrs, int n)
{
    struct tt_program program = {.layout = &layout, .threads = 1, .instrs = instrs, .n_instrs = n};
    struct tt_timeline t;

    for (int i = 0; i < n; i++)
        instrs[i].bucket = TT_NONE;
    tt_cost_simulate(machine, &program, &t);
    return t;
}

static struct tt_timeline simulate(struct tt_instr *instrs, int n)
{
    return simulate_on(&slow, instrs, n);
}

static void waits_expose_what_compute_did_not_hide(void **state)
{
    struct tt_instr instrs[] = {
        {.kind = TT_BEGIN, .unit = U0, .collective = {.op = TT_ALL_GATHER, .ranks = 2, .bytes = 4}},
        {.kind = TT_OPTIMIZER, .unit = U0},
        {.kind = TT_WAIT, .unit = U0, .begin = 0},
        {.kind = TT_OPTIMIZER, .unit = U1}};
    struct tt_timeline t = simulate(instrs, 4);

    near(t.step_sec, 15 + 14);
    near(t.compute_sec, 7 + 14);
    near(t.transfer_sec, 15);
    near(t.exposed_sec, 8);
    near(t.exposed[0], 8);
    near(t.transfer[0].end, 15);
    near(t.compute[2].begin, 7);
    near(t.compute[2].end, 15);
    near(t.compute[3].begin, 15);
    tt_timeline_release(&t);
}

static void transfers_follow_each_other(void **state)
{
    struct tt_instr instrs[] = {
        {.kind = TT_BEGIN, .unit = U0, .collective = {.op = TT_ALL_GATHER, .ranks = 2, .bytes = 4}},
        {.kind = TT_BEGIN, .unit = U1, .collective = {.op = TT_ALL_GATHER, .ranks = 2, .bytes = 8}},
        {.kind = TT_WAIT, .unit = U0, .begin = 0},
        {.kind = TT_OPTIMIZER, .unit = U1},
        {.kind = TT_OPTIMIZER, .unit = U1},
        {.kind = TT_WAIT, .unit = U1, .begin = 1}};
    struct tt_timeline t = simulate(instrs, 6);

    near(t.transfer[1].begin, 15);
    near(t.transfer[1].end, 15 + 19);
    near(t.exposed[0], 15);
    near(t.exposed[1], 0);
    near(t.step_sec, 15 + 2 * 14);
    near(t.exposed_sec, t.step_sec - t.compute_sec);
    tt_timeline_release(&t);
}

static void a_wait_includes_the_transfers_before(void **state)
{
    struct tt_instr instrs[] = {
        {.kind = TT_BEGIN, .unit = U0, .collective = {.op = TT_ALL_GATHER, .ranks = 2, .bytes = 4}},
        {.kind = TT_BEGIN, .unit = U1, .collective = {.op = TT_ALL_GATHER, .ranks = 2, .bytes = 8}},
        {.kind = TT_WAIT, .unit = U1, .begin = 1},
        {.kind = TT_WAIT, .unit = U0, .begin = 0}};
    struct tt_timeline t = simulate(instrs, 4);

    near(t.exposed[1], 15 + 19);
    near(t.exposed[0], 0);
    near(t.step_sec, 15 + 19);
    tt_timeline_release(&t);
}

static void a_transfer_and_computing_slow_each_other(void **state)
{
    struct tt_instr instrs[] = {
        {.kind = TT_BEGIN, .unit = U0, .collective = {.op = TT_ALL_GATHER, .ranks = 2, .bytes = 4}},
        {.kind = TT_OPTIMIZER, .unit = U0},
        {.kind = TT_WAIT, .unit = U0, .begin = 0}};
    struct tt_machine meets = slow;
    struct tt_timeline t;

    meets.transfer_share = 0.5;
    meets.transfer_stretch = 2.0;
    t = simulate_on(&meets, instrs, 3);

    near(t.compute[1].end, 14);      /* with half of the thread's time for each, 7 s of work are left */
    near(t.transfer[0].end, 14 + 8); /* by then the transfer has done 7 of its 15 s */
    near(t.exposed[0], 8);
    near(t.step_sec, 22);
    near(t.compute_sec, 14);
    tt_timeline_release(&t);
}

/* The second gather begins when the first ends and meets the rest of the work. */
static void every_transfer_under_way_meets_the_work(void **state)
{
    struct tt_instr instrs[] = {
        {.kind = TT_BEGIN, .unit = U0, .collective = {.op = TT_ALL_GATHER, .ranks = 2, .bytes = 4}},
        {.kind = TT_BEGIN, .unit = U0, .collective = {.op = TT_ALL_GATHER, .ranks = 2, .bytes = 4}},
        {.kind = TT_OPTIMIZER, .unit = U1},
        {.kind = TT_OPTIMIZER, .unit = U1},
        {.kind = TT_OPTIMIZER, .unit = U1},
        {.kind = TT_WAIT, .unit = U0, .begin = 0},
        {.kind = TT_WAIT, .unit = U0, .begin = 1}};
    struct tt_machine meets = slow;
    struct tt_timeline t;

    meets.transfer_share = 0.5;
    meets.transfer_stretch = 1.0;
    t = simulate_on(&meets, instrs, 7);

    near(t.transfer[0].end, 15);
    near(t.transfer[1].begin, 15);
    near(t.transfer[1].end, 30);
    near(t.step_sec, 30 + (3 * 14 - 15)); /* 15 of 42 s of work are done by then */
    near(t.exposed_sec, 0);
    near(t.compute_sec, t.step_sec);
    tt_timeline_release(&t);
}

static int set_up(void **state)
{
    int fd = mkstemp(path);

    return fd < 0 ? -1 : close(fd);
}

static int tear_down(void **state)
{
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_take_what_the_formulas_say),
        cmocka_unit_test(a_saturating_bucket_spends_nine_tenths_on_bytes),
        cmocka_unit_test(nodes_run_at_the_rate_of_arithmetic_or_of_memory),
        cmocka_unit_test(products_and_attention_run_at_the_rate_of_their_type),
        cmocka_unit_test(without_a_file_products_of_bfloat16_take_half_the_time),
        cmocka_unit_test(measured_peaks_price_what_runs_in_their_type),
        cmocka_unit_test(machine_files_are_read_as_written),
        cmocka_unit_test(an_older_file_has_one_rate_of_products),
        cmocka_unit_test(bad_machine_files_are_refused),
        cmocka_unit_test(waits_expose_what_compute_did_not_hide),
        cmocka_unit_test(transfers_follow_each_other),
        cmocka_unit_test(a_wait_includes_the_transfers_before),
        cmocka_unit_test(a_transfer_and_computing_slow_each_other),
        cmocka_unit_test(every_transfer_under_way_meets_the_work),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("cost", tests, set_up, tear_down);
}
