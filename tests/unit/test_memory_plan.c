/* SPDX-License-Identifier: MIT
 *
 * The memory plan on invented lifetimes: no two live buffers overlap, and the arena is close to the largest sum of live
 * buffers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/math/rng.h"
#include "core/program/program.h"

enum { MOST = 700 };

static struct tt_buffer buffer(int index, int64_t bytes, int first, int last)
{
    return (struct tt_buffer){
        .kind = TT_MEMORY_ACTIVATION, .bytes = bytes, .first = first, .last = last, .root = index, .offset = -1};
}

static int64_t rounded(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int64_t live_at(const struct tt_buffer *buffers, int n, int instr)
{
    int64_t bytes = 0;

    for (int b = 0; b < n; b++)
        if (buffers[b].root == b && buffers[b].first <= instr && instr <= buffers[b].last)
            bytes += rounded(buffers[b].bytes);
    return bytes;
}

static void must_be_sound(const struct tt_buffer *buffers, int n, int64_t high)
{
    for (int a = 0; a < n; a++) {
        const struct tt_buffer *x = &buffers[a];

        if (x->root != a)
            continue;
        assert_true(x->offset >= 0 && x->offset % 64 == 0 && x->offset + x->bytes <= high);
        for (int b = 0; b < a; b++) {
            const struct tt_buffer *y = &buffers[b];

            if (y->root != b || x->last < y->first || y->last < x->first)
                continue;
            if (x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes)
                fail_msg("buffers %d and %d overlap in time and place", a, b);
        }
    }
}

static int64_t plan(struct tt_buffer *buffers, int n, int n_instrs)
{
    int64_t live = -1, most = 0, high;
    int peak = -1;

    high = tt_memory_plan(buffers, n, n_instrs, &live, &peak);
    for (int i = 0; i < n_instrs; i++)
        most = live_at(buffers, n, i) > most ? live_at(buffers, n, i) : most;
    assert_int_equal(live, most);
    assert_int_equal(live_at(buffers, n, peak), most);
    assert_true(high >= live);
    must_be_sound(buffers, n, high);
    return high;
}

static int64_t draw(struct tt_rng *rng, uint64_t *at, int64_t below)
{
    double x = tt_rng_normal(rng, (*at)++, 0.0) * 1000.0;
    int64_t i = (int64_t)(x < 0.0 ? -x : x);

    return i % below;
}

/* Uniform lifetimes, or lifetimes that nest like those of a forward and a backward pass, with short ones in between. */
static int make_random(struct tt_buffer *buffers, struct tt_rng *rng, uint64_t *at, int n_instrs, bool nested)
{
    int n = 3 + (int)draw(rng, at, MOST - 3);

    for (int b = 0; b < n; b++) {
        int first = (int)draw(rng, at, n_instrs), last = first + (int)draw(rng, at, n_instrs - first);

        if (nested && b % 3)
            last = first + 2 < n_instrs ? first + 2 : first;
        else if (nested)
            last = n_instrs - 1 - first;
        if (last < first) {
            int swap = first;

            first = last;
            last = swap;
        }
        buffers[b] = buffer(b, draw(rng, at, b % 7 ? 900 : 9000), first, last);
    }
    return n;
}

static void live_buffers_never_overlap(void **state)
{
    static struct tt_buffer buffers[MOST];
    struct tt_rng rng = tt_rng_make(1, "lives");
    double worst = 1.0, sum = 0.0;
    uint64_t at = 0;
    enum { ROUNDS = 60 };

    for (int round = 0; round < ROUNDS; round++) {
        int n_instrs = 5 + (int)draw(&rng, &at, 300), n = make_random(buffers, &rng, &at, n_instrs, round % 2);
        int64_t high = plan(buffers, n, n_instrs), live = 0;
        double ratio;

        for (int i = 0; i < n_instrs; i++)
            live = live_at(buffers, n, i) > live ? live_at(buffers, n, i) : live;
        ratio = (double)high / (double)live;
        worst = ratio > worst ? ratio : worst;
        sum += ratio;
    }
    print_message("# arena to largest live sum: %.4f on average, %.4f at worst\n", sum / ROUNDS, worst);
    assert_true(sum / ROUNDS < 1.03);
    assert_true(worst < 1.12);
}

static void the_same_lifetimes_give_the_same_plan(void **state)
{
    static struct tt_buffer a[MOST], b[MOST];
    struct tt_rng rng = tt_rng_make(2, "lives");
    uint64_t at = 0;
    int n = make_random(a, &rng, &at, 100, true);

    memcpy(b, a, sizeof a);
    assert_int_equal(plan(a, n, 100), plan(b, n, 100));
    for (int i = 0; i < n; i++)
        assert_int_equal(a[i].offset, b[i].offset);
}

static void a_chain_needs_two_buffers(void **state)
{
    struct tt_buffer buffers[50];

    for (int b = 0; b < 50; b++)
        buffers[b] = buffer(b, 1000, b, b + 1);
    assert_int_equal(plan(buffers, 50, 51), 2 * 1024);
}

static void nested_lifetimes_are_a_stack(void **state)
{
    struct tt_buffer buffers[40];
    int64_t sum = 0;

    for (int b = 0; b < 40; b++) {
        buffers[b] = buffer(b, 64 * (b + 1), b, 79 - b);
        sum += buffers[b].bytes;
    }
    assert_int_equal(plan(buffers, 40, 80), sum);
}

/* Placed in the order of time, the small buffers leave a hole of 128, which the large buffer cannot use. */
static void a_late_large_buffer_is_placed_first(void **state)
{
    struct tt_buffer buffers[] = {
        buffer(0, 128, 0, 1), buffer(1, 64, 0, 3), buffer(2, 64, 1, 2), buffer(3, 192, 3, 4), buffer(4, 64, 4, 5),
    };

    assert_int_equal(plan(buffers, 5, 6), 256);
}

static void parts_and_empty_buffers_need_no_room(void **state)
{
    struct tt_buffer buffers[] = {buffer(0, 256, 0, 4), buffer(1, 0, 0, 4), buffer(2, 0, 1, 1), buffer(3, 64, 2, 2)};

    buffers[3].root = 0;
    buffers[3].offset = 128;
    assert_int_equal(plan(buffers, 4, 5), 256);
    assert_int_equal(buffers[3].offset, 128);
    assert_int_equal(plan(buffers, 0, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_buffers_never_overlap),          cmocka_unit_test(the_same_lifetimes_give_the_same_plan),
        cmocka_unit_test(a_chain_needs_two_buffers),           cmocka_unit_test(nested_lifetimes_are_a_stack),
        cmocka_unit_test(a_late_large_buffer_is_placed_first), cmocka_unit_test(parts_and_empty_buffers_need_no_room),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
