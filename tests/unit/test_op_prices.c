/* SPDX-License-Identifier: MIT
 *
 * Prices of ops: fits to samples of known prices, the users of prices, and their format in machine files.
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

static void near(double found, double wanted)
{
    assert_float_equal(found, wanted, 1e-9 * (1.0 + wanted));
}

static struct tt_op_sample sample(const char *op, enum tt_dtype dtype, double flops, double bytes, double inner,
                                  double sec)
{
    return (struct tt_op_sample){op, dtype, {.flops = flops, .bytes = bytes, .inner = inner}, sec};
}

static void known_prices_are_found(void **state)
{
    struct tt_op_sample samples[8];
    static struct tt_op_prices prices;
    const struct tt_op_price *p;

    for (int i = 0; i < 8; i++) { /* 2 s a flop, 3 s a byte, 5 s a sum */
        double flops = 100.0 * (1 + i), bytes = 10.0 * (1 + i * i % 5), inner = 4.0 * (1 + i % 3);

        samples[i] = sample("linear", TT_F32, flops, bytes, inner, 2 * flops + 3 * bytes + 5 * flops / inner);
    }
    tt_op_prices_fit(samples, 8, &prices);
    assert_int_equal(prices.n, 1);
    p = &prices.of[0];
    near(p->flop_sec, 2);
    near(p->byte_sec, 3);
    near(p->sum_sec, 5);
    near(tt_op_prices_sec(&prices, "linear", TT_F32, &(struct tt_cost){.flops = 60, .bytes = 7, .inner = 3}),
         2 * 60 + 3 * 7 + 5 * 20);
    near(tt_op_prices_sec(&prices, "linear", TT_F32, &(struct tt_cost){.flops = 60, .bytes = 7}),
         2 * 60 + 3 * 7); /* it has no sums */
}

static void types_and_ops_have_prices_of_their_own(void **state)
{
    const struct tt_op_sample samples[] = {sample("add", TT_F32, 1, 12, 0, 24), sample("add", TT_BF16, 1, 6, 0, 6),
                                           sample("norm", TT_F32, 0, 4, 0, 4),  sample("add", TT_F32, 2, 24, 0, 48),
                                           sample("wait", TT_F32, 0, 0, 0, 9),  sample("idle", TT_F32, 1, 1, 0, 0)};
    static struct tt_op_prices prices;
    const struct tt_cost work = {.flops = 10, .bytes = 120};

    tt_op_prices_fit(samples, 6, &prices);
    assert_int_equal(prices.n, 3);
    near(tt_op_prices_sec(&prices, "add", TT_F32, &work), 240);
    near(tt_op_prices_sec(&prices, "norm", TT_F32, &work), 120);
    assert_true(tt_op_prices_sec(&prices, "norm", TT_BF16, &work) < 0.0);
    assert_true(tt_op_prices_sec(&prices, "wait", TT_F32, &work) < 0.0); /* no work */
    assert_true(tt_op_prices_sec(&prices, "idle", TT_F32, &work) < 0.0); /* no time */
}

/* The time falls with the bytes: only a negative price could explain it. */
static void no_price_is_negative(void **state)
{
    const struct tt_op_sample samples[] = {sample("x", TT_F32, 10, 1, 0, 10), sample("x", TT_F32, 10, 5, 0, 8),
                                           sample("x", TT_F32, 20, 5, 0, 18), sample("x", TT_F32, 20, 9, 0, 16)};
    static struct tt_op_prices prices;

    tt_op_prices_fit(samples, 4, &prices);
    assert_int_equal(prices.n, 1);
    assert_true(prices.of[0].flop_sec > 0.0);
    assert_true(prices.of[0].byte_sec == 0.0 && prices.of[0].sum_sec == 0.0);
}

/* --- in machine files --- */

static char path[] = "/tmp/titan_op_prices_XXXXXX";

static struct tt_machine priced(void)
{
    struct tt_machine machine = tt_machine_builtin();

    machine.transfer_share = 0.25;
    machine.transfer_stretch = 2.0;
    machine.ops.n = 2;
    machine.ops.of[0] = (struct tt_op_price){"add", TT_F32, 0.0, 2.0, 0.0};
    machine.ops.of[1] = (struct tt_op_price){"linear", TT_BF16, 3.0, 0.0, 0.5};
    return machine;
}

static int load_with(const char *key, json_t *value, struct tt_machine *ret_machine)
{
    static struct tt_machine machine;
    json_t *json;
    char *text;
    int rc;

    machine = priced();
    json = tt_machine_to_json(&machine);
    if (key)
        (void)json_object_set_new(json, key, value);
    text = tt_json_text(json);
    assert_int_equal(tt_file_replace(path, text, strlen(text)), 0);
    rc = tt_machine_load(path, ret_machine);
    tt_free(text);
    json_decref(json);
    return rc;
}

static void prices_are_read_as_written(void **state)
{
    static struct tt_machine machine, read;

    machine = priced();
    assert_int_equal(load_with(NULL, NULL, &read), 0);
    assert_int_equal(tt_machine_hash(&read), tt_machine_hash(&machine));
    assert_int_equal(read.ops.n, 2);
    assert_int_equal(read.ops.of[1].dtype, TT_BF16);
    near(read.ops.of[1].sum_sec, 0.5);
    near(read.transfer_stretch, 2.0);
    read.ops.of[1].sum_sec = 0.25;
    assert_int_not_equal(tt_machine_hash(&read), tt_machine_hash(&machine));
    read = machine;
    read.transfer_share = 0.5;
    assert_int_not_equal(tt_machine_hash(&read), tt_machine_hash(&machine));
}

static void bad_prices_are_refused(void **state)
{
    static const struct {
        const char *key, *value, *says;
    } cases[] = {
        {"transfer_share", "1", "transfer_share is 1, wanted a number from 0 to below 1"},
        {"transfer_stretch", "0.5", "transfer_stretch is 0.5, wanted a number of at least 1"},
        {"ops", "{}", "ops is not an array"},
        {"ops", "[{\"op\":\"add\"}]", "dtype"},
        {"ops", "[{\"op\":\"add\",\"dtype\":\"int8\"}]", "dtype of op \"add\" is \"int8\", wanted \"float32\""},
        {"ops", "[{\"op\":\"add\",\"dtype\":\"float32\",\"flop_s\":-1,\"byte_s\":0,\"sum_s\":0}]",
         "flop_s of op \"add\" is -1, wanted a number of seconds"},
        {"ops", "[{\"op\":\"a_name_that_is_longer_than_any\",\"dtype\":\"float32\"}]", "too long"},
    };
    static struct tt_machine machine;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *value = json_loads(cases[i].value, JSON_DECODE_ANY, NULL);

        assert_int_equal(load_with(cases[i].key, value, &machine), TT_EDATA);
        if (!strstr(tt_error_message(), cases[i].says) || !strstr(tt_error_message(), path))
            fail_msg("'%s' does not say '%s' and the file", tt_error_message(), cases[i].says);
    }
}

/* --- in predictions --- */

static void a_node_takes_what_its_op_is_priced(void **state)
{
    struct tt_graph *graph = tt_graph_new();
    int x = tt_graph_value(graph, TT_VALUE_ACTIVATION, TT_F32, "x", 2, (const int64_t[]){2, 3});
    int y = tt_graph_value(graph, TT_VALUE_ACTIVATION, TT_F32, "y", 2, (const int64_t[]){2, 3});
    int node = tt_graph_node(graph, TT_OP_ADD, "z", (const int[]){x, y}, 2, NULL);
    static struct tt_machine machine;

    machine = priced();
    near(tt_cost_node_sec(&machine, graph, node, 1), 2.0 * 3 * 24); /* two arrays read, one written */
    near(tt_cost_node_sec(&machine, graph, node, 4), 2.0 * 3 * 24 / 4);
    tt_graph_free(graph);
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
        cmocka_unit_test(known_prices_are_found), cmocka_unit_test(types_and_ops_have_prices_of_their_own),
        cmocka_unit_test(no_price_is_negative),   cmocka_unit_test(prices_are_read_as_written),
        cmocka_unit_test(bad_prices_are_refused), cmocka_unit_test(a_node_takes_what_its_op_is_priced),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("op_prices", tests, set_up, tear_down);
}
