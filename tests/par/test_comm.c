/* SPDX-License-Identifier: MIT
 *
 * Communicators and collectives with threads as ranks, also under the thread sanitizer.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <sched.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/comm/comm.h"
#include "core/os/file.h"
#include "core/os/team.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/peer_memory.h"
#include "tests/help/mesh.h"
#include "tests/help/sweep.h"
#include "tests/help/threads.h"
#include "tests/par/comm_cases.h"

struct transport {
    int ranks;
    int64_t read_bytes, eager_bytes; /* as in tt_comm */
};

static int run_cases(struct tt_comm *comm, void *arg)
{
    const struct transport *transport = arg;
    int rc = 0;

    comm->read_bytes = transport->read_bytes;
    comm->eager_bytes = transport->eager_bytes;
    for (int i = 0; i < comm_n_cases; i++)
        TT_TRY(comm_case_run(&comm_cases[i], comm));
out:
    return rc;
}

static void cases_hold_for_any_number_of_ranks(void **state)
{
    /* Everything is sent; everything is read; some collectives send and others read; everything is sent in short
     * messages; small pieces are sent together. */
    static const struct transport runs[] = {{1, 0, 0},     {2, 0, 0},     {3, 0, 0},    {4, 0, 0}, {5, 0, 0},
                                            {8, 0, 0},     {2, 1, 0},     {3, 1, 0},    {8, 1, 0}, {4, 3000, 0},
                                            {2, 0, 20000}, {3, 0, 20000}, {8, 0, 20000}};

    for (int i = sweep_stride() / 2; i < (int)(sizeof runs / sizeof *runs); i += sweep_stride()) {
        struct transport transport = runs[i];

        if (tt_comm_threads_run(runs[i].ranks, run_cases, &transport) < 0)
            fail_msg("%d ranks, read from %lld bytes on, %lld bytes a message: %s", runs[i].ranks,
                     (long long)runs[i].read_bytes, (long long)runs[i].eager_bytes, tt_error_message());
    }
}

static void cases_hold_for_a_rank_alone(void **state)
{
    struct tt_comm *comm = tt_comm_self_new();
    struct transport transport = {.ranks = 1};

    if (run_cases(comm, &transport) < 0)
        fail_msg("%s", tt_error_message());
    tt_comm_free(comm);
}

/* --- reads that fail now and then --- */

static const int read_errors[] = {EINTR, EAGAIN, EFAULT, EPERM, ESRCH};

/* Reads like `real`, but about one in `period` calls of the process fails after half of its bytes. */
static struct {
    struct tt_comm_ops ops;
    const struct tt_comm_ops *real;
    unsigned period;
    atomic_int calls, failures;
} flaky;

static int flaky_read(struct tt_comm *comm, int peer, uint64_t address, void *into, size_t bytes)
{
    unsigned call = (unsigned)atomic_fetch_add(&flaky.calls, 1);

    if ((call * 2654435761u >> 16) % flaky.period)
        return flaky.real->read(comm, peer, address, into, bytes);
    (void)flaky.real->read(comm, peer, address, into, bytes / 2);
    return read_errors[atomic_fetch_add(&flaky.failures, 1) % (int)(sizeof read_errors / sizeof *read_errors)];
}

static int run_cases_flaky(struct tt_comm *comm, void *arg)
{
    struct tt_team *team = NULL;
    int rc = 0;

    (void)arg;
    comm->ops = &flaky.ops;
    comm->read_bytes = 1;
    for (int i = 0; i < comm_n_cases; i++)
        TT_TRY(comm_case_run(&comm_cases[i], comm));
    TT_TRY(tt_team_new(2, &team)); /* pieces of a batch fail separately */
    comm->team = team;
    for (int i = 0; i < comm_n_cases; i++)
        TT_TRY(comm_case_run(&comm_cases[i], comm));
out:
    comm->team = NULL;
    tt_team_free(team);
    return rc;
}

static int take_ops(struct tt_comm *comm, void *arg)
{
    (void)arg;
    flaky.real = comm->ops;
    return 0;
}

static void a_failed_reading_is_repeated_and_nothing_is_added_twice(void **state)
{
    static const unsigned periods[] = {7, 2};

    assert_int_equal(tt_comm_threads_run(1, take_ops, NULL), 0);
    flaky.ops = *flaky.real;
    flaky.ops.read = flaky_read;
    for (size_t i = 0; i < sizeof periods / sizeof *periods; i++) {
        flaky.period = periods[i];
        atomic_store(&flaky.failures, 0);
        for (int ranks = 2; ranks <= 3; ranks++)
            if (tt_comm_threads_run(ranks, run_cases_flaky, NULL) < 0)
                fail_msg("%d ranks, one in %u readings fails: %s", ranks, periods[i], tt_error_message());
        assert_true(atomic_load(&flaky.failures) > 100);
    }
}

static void expect_run(int size, int (*fn)(struct tt_comm *comm, void *arg), int code, const char *part)
{
    assert_int_equal(tt_comm_threads_run(size, fn, NULL), code);
    if (!strstr(tt_error_message(), part))
        fail_msg("'%s' is not in: %s", part, tt_error_message());
}

static int gather_from(struct tt_comm *comm, int silent_rank)
{
    struct tt_collective *gather = NULL;
    struct tt_mesh mesh;
    struct tt_group group = {0};
    float shards[8] = {0};
    struct tt_segment items[8];
    struct tt_segment_list lists[8];
    double start;
    int rc = 0;

    TT_TRY(tt_mesh_init(DP_DEGREES(1, -1), comm->size, &mesh));
    group = tt_mesh_group(&mesh, comm->rank, TT_GROUP_FSDP);
    for (int i = 0; i < comm->size; i++) {
        items[i] = (struct tt_segment){&shards[i], sizeof(float)};
        lists[i] = (struct tt_segment_list){&items[i], 1};
    }
    TT_TRY(tt_all_gather_new(comm, &group, TT_TAG_COLLECTIVE, lists[comm->rank], lists, &gather));
    comm->timeout_sec = 0.3;
    comm->waiting_for = "unshard layers.3";
    if (comm->rank == silent_rank) {
        for (start = tt_clock_sec(); tt_clock_sec() < start + 2.0;)
            (void)sched_yield();
        goto out;
    }
    TT_TRY(tt_collective_begin(gather));
    rc = tt_collective_wait(gather);
out:
    tt_collective_free(gather);
    tt_group_release(&group);
    return rc;
}

static int gather_with_silent_rank_2(struct tt_comm *comm, void *arg)
{
    (void)arg;
    return gather_from(comm, 2);
}

static int read_from_silent_rank_2(struct tt_comm *comm, void *arg)
{
    (void)arg;
    comm->read_bytes = 1;
    return gather_from(comm, 2);
}

static void a_silent_rank_is_named_after_the_timeout(void **state)
{
    expect_run(4, gather_with_silent_rank_2, TT_ECOMM, "for rank 2 on this host in 'unshard layers.3'");
    expect_run(4, read_from_silent_rank_2, TT_ECOMM, "for rank 2 on this host in 'unshard layers.3'");
}

/* Rank 1 reads what rank 0 offers, offers its own shard and leaves. Only then does rank 0 read. */
static int read_from_one_that_left(struct tt_comm *comm, void *arg)
{
    static float values[2][2]; /* static, to outlive rank 1 */
    atomic_bool *rank_0_began = arg;
    int ranks[2] = {0, 1};
    struct tt_group group = {2, comm->rank, ranks};
    struct tt_segment items[2] = {{&values[comm->rank][0], 4}, {&values[comm->rank][1], 4}};
    struct tt_segment_list lists[2] = {{&items[0], 1}, {&items[1], 1}};
    struct tt_collective *gather = NULL;
    char byte;
    int rc = 0;

    comm->read_bytes = 1;
    comm->timeout_sec = 0.3;
    TT_TRY(tt_all_gather_new(comm, &group, TT_TAG_COLLECTIVE, lists[comm->rank], lists, &gather));
    while (comm->rank == 1 && !atomic_load(rank_0_began))
        (void)sched_yield();
    TT_TRY(tt_collective_begin(gather));
    if (comm->rank == 1)
        goto out;
    atomic_store(rank_0_began, true);
    while (comm->ops->read(comm, 1, (uint64_t)(uintptr_t)&values[1][1], &byte, 1) == 0)
        (void)sched_yield();
    rc = tt_collective_wait(gather);
out:
    tt_collective_free(gather);
    return rc;
}

static void the_memory_of_one_that_left_is_not_read(void **state)
{
    atomic_bool rank_0_began = false;

    assert_int_equal(tt_comm_threads_run(2, read_from_one_that_left, &rank_0_began), TT_ECOMM);
    if (!strstr(tt_error_message(), "rank 0 cannot read the memory of rank 1"))
        fail_msg("%s", tt_error_message());
}

/* In the tree of a barrier of 4, rank 0 waits for 2, rank 1 for 0, and only rank 2 for 3. */
static int barrier_with_silent_rank_3(struct tt_comm *comm, void *arg)
{
    double start = tt_clock_sec();

    (void)arg;
    comm->timeout_sec = 0.5;
    if (comm->rank == 3)
        while (tt_clock_sec() < start + 2.0)
            (void)sched_yield();
    else if (tt_comm_barrier(comm) != TT_ECOMM || !strstr(tt_error_message(), "for rank 3 on this host in 'start'"))
        return tt_fail(TT_EINTERNAL, "rank %d: %s", comm->rank, tt_error_message());
    return 0;
}

static void ranks_that_are_held_up_are_not_blamed(void **state)
{
    if (tt_comm_threads_run(4, barrier_with_silent_rank_3, NULL) < 0)
        fail_msg("%s", tt_error_message());
}

/* Ranks 1 and 2 exchange messages, with pauses, for much longer than rank 0 may wait if the job makes no progress. */
static int wait_while_others_make_progress(struct tt_comm *comm, void *arg)
{
    enum { ROUNDS = 60 };
    char in = 0, out = 0;
    struct tt_segment to = {&in, 1}, from = {&out, 1};
    int other = 3 - comm->rank, rc = 0;

    (void)arg;
    comm->timeout_sec = 2.0;
    for (int round = 0; comm->rank > 0 && round < ROUNDS; round++) {
        struct tt_request send = {{0}}, receive = {{0}};

        (void)usleep(100000);
        TT_TRY(comm->ops->send_begin(comm, &from, 1, other, 20, &send));
        TT_TRY(comm->ops->recv_begin(comm, &to, 1, other, 20, &receive));
        TT_TRY(tt_comm_wait(comm, &receive, other));
        TT_TRY(tt_comm_wait(comm, &send, other));
    }
    rc = tt_comm_barrier(comm);
out:
    return rc;
}

static atomic_int long_works;

static int sleep_long(void *arg)
{
    (void)arg;
    (void)sleep(4);
    return tt_fail(TT_EDATA, "work %d failed", atomic_fetch_add(&long_works, 1));
}

/* Rank 1 works for longer than the others may wait. Then rank 2 does the same, and its work fails. */
static int wait_for_work(struct tt_comm *comm, void *arg)
{
    int rc = 0;

    (void)arg;
    comm->timeout_sec = 1.0;
    if (comm->rank == 1)
        rc = tt_comm_work(comm, sleep_long, NULL) == TT_EDATA ? 0 : TT_EINTERNAL;
    TT_TRY(tt_comm_agree(comm, rc));
    if (comm->rank == 2)
        rc = tt_comm_work(comm, sleep_long, NULL);
    rc = tt_comm_agree(comm, rc);
out:
    return rc;
}

static void a_wait_lasts_while_the_job_makes_progress(void **state)
{
    if (tt_comm_threads_run(3, wait_while_others_make_progress, NULL) < 0)
        fail_msg("%s", tt_error_message());
    expect_run(3, wait_for_work, TT_EDATA, "rank 2: work 1 failed");
}

/* --- a long wait is reported, by one rank --- */

static atomic_int said;
static atomic_bool heard;
static char report_text[256];

static void note_report(const char *text)
{
    if (atomic_fetch_add(&said, 1) == 0)
        (void)snprintf(report_text, sizeof report_text, "%s", text);
    atomic_store(&heard, true);
}

/* The last rank does not answer until another rank has reported that. */
static int barrier_with_reports(struct tt_comm *comm, void *arg)
{
    (void)arg;
    comm->timeout_sec = 100.0;
    comm->report_sec = 6.0; /* a rank that does not answer is noticed after 5 s */
    comm->say = note_report;
    comm->waiting_for = "saving a checkpoint";
    while (comm->rank == comm->size - 1 && !atomic_load(&heard))
        (void)usleep(1000);
    return tt_comm_barrier(comm);
}

static void a_long_wait_is_reported_by_one_rank(void **state)
{
    if (tt_comm_threads_run(4, barrier_with_reports, NULL) < 0)
        fail_msg("%s", tt_error_message());
    if (!strstr(report_text,
                "rank 0 has waited 6 s for rank 3 on this host in 'saving a checkpoint': it does not answer"))
        fail_msg("%s", report_text);
    assert_int_equal(atomic_load(&said), 1);
}

/* Rank 1 cannot reach rank 0. It reports that instead of waiting for rank 0 again. */
static int agree_on_a_timeout(struct tt_comm *comm, void *arg)
{
    atomic_bool *ended = arg;
    int64_t sent;
    int rc = 0;

    comm->timeout_sec = 0.5;
    if (comm->rank == 0) {
        while (!atomic_load(ended))
            (void)usleep(1000);
        return 0;
    }
    rc = tt_comm_barrier(comm);
    sent = comm->control_bytes;
    rc = tt_comm_agree(comm, rc);
    if (rc == TT_ECOMM && strstr(tt_error_message(), "for rank 0 on this host in 'start'"))
        rc = tt_comm_barrier(comm);
    atomic_store(ended, true);
    if (rc != TT_ECOMM || comm->control_bytes - sent > (int64_t)sizeof(int64_t))
        return tt_fail(TT_EINTERNAL, "%lld bytes sent, code %d: %s", (long long)(comm->control_bytes - sent), rc,
                       tt_error_message());
    return 0;
}

static void a_failure_to_reach_others_is_waited_for_once(void **state)
{
    atomic_bool ended = false;

    if (tt_comm_threads_run(2, agree_on_a_timeout, &ended) < 0)
        fail_msg("%s", tt_error_message());
}

static int advances;

static int break_down(struct tt_comm *comm)
{
    (void)comm;
    return tt_fail(TT_ECOMM, "expected: failure %d of the transport", ++advances);
}

/* Also outside of a wait: the first message is kept, and transfers no longer advance. */
static void a_transport_that_fails_is_not_used_again(void **state)
{
    const struct tt_comm_ops ops = {.advance = break_down};
    struct tt_comm comm = {.ops = &ops, .size = 2};

    advances = 0;
    for (int again = 0; again < 2; again++) {
        assert_int_equal(tt_comm_progress(&comm), TT_ECOMM);
        assert_string_equal(tt_error_message(), "expected: failure 1 of the transport");
    }
    assert_int_equal(advances, 1);
    tt_free(comm.failure);
}

static int abort_while_others_wait(struct tt_comm *comm, void *arg)
{
    (void)arg;
    if (comm->rank == 1)
        tt_comm_abort(comm, 3, "expected: rank 1 ends the job");
    return tt_comm_barrier(comm);
}

static int leave_early(struct tt_comm *comm, void *arg)
{
    (void)arg;
    return comm->rank == 1 ? 0 : tt_comm_barrier(comm);
}

static void abort_ends_all_ranks_with_its_code(void **state)
{
    expect_run(4, abort_while_others_wait, TT_EDATA, "rank 1 ends the job");
}

static int survive_abort(struct tt_comm *comm, void *arg)
{
    int *codes = arg;

    if (comm->rank == 0)
        tt_comm_abort(comm, 4, "expected: rank 0 ends the job");
    codes[comm->rank] = tt_comm_barrier(comm);
    return strstr(tt_error_message(), "rank 0 ended the job") ? 0 : TT_EINTERNAL;
}

static void abort_is_seen_by_waiting_ranks(void **state)
{
    int codes[3] = {0};

    assert_int_equal(tt_comm_threads_run(3, survive_abort, codes), TT_ECOMM);
    assert_int_equal(codes[1], TT_ECOMM);
    assert_int_equal(codes[2], TT_ECOMM);
}

static void a_rank_that_left_is_an_error_at_once(void **state)
{
    expect_run(3, leave_early, TT_ECOMM, "rank 1 has left the job");
}

static int send_other_size(struct tt_comm *comm, void *arg)
{
    char bytes[8] = {0};
    struct tt_segment segment = {bytes, comm->rank == 0 ? 8 : 7};
    struct tt_request request = {{0}};
    int rc = 0;

    (void)arg;
    if (comm->rank == 0)
        TT_TRY(comm->ops->send_begin(comm, &segment, 1, 1, 20, &request));
    else
        TT_TRY(comm->ops->recv_begin(comm, &segment, 1, 0, 20, &request));
    rc = tt_comm_wait(comm, &request, 1 - comm->rank);
out:
    return rc;
}

static void sides_must_agree_on_the_bytes(void **state)
{
    expect_run(2, send_other_size, TT_EINTERNAL, "8 bytes sent, 7 expected");
}

/* Four ranks on two hosts, alternating. */
static int count_the_ranks_of_a_host(struct tt_comm *comm, void *arg)
{
    static const int leader[4] = {0, 1, 0, 1};
    int rc = 0, local_rank, local_size;

    (void)arg;
    COMM_EXPECT(tt_comm_same_host(comm, 0, 3) && tt_comm_host_leader(comm, 3) == 0);
    comm->host_leader = leader;
    COMM_EXPECT(tt_comm_same_host(comm, 1, 3) && !tt_comm_same_host(comm, 0, 3));
    COMM_EXPECT(tt_comm_host_leader(comm, comm->rank) == comm->rank % 2);
    tt_comm_node(comm, &local_rank, &local_size);
    COMM_EXPECT(local_rank == comm->rank / 2 && local_size == 2);
out:
    return rc;
}

static void the_transport_says_who_shares_a_host(void **state)
{
    assert_int_equal(tt_comm_threads_run(4, count_the_ranks_of_a_host, NULL), 0);
}

/* --- a large job: a communicator whose other ranks are all on another host and accept all messages --- */

static int64_t sent_bytes;

static int count_send(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                      struct tt_request *ret_request)
{
    (void)comm;
    (void)peer;
    (void)tag;
    (void)ret_request;
    for (int i = 0; i < n; i++)
        sent_bytes += (int64_t)segments[i].bytes;
    return 0;
}

static int receive_nothing(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                           struct tt_request *ret_request)
{
    (void)comm;
    (void)segments;
    (void)n;
    (void)peer;
    (void)tag;
    (void)ret_request;
    return 0;
}

static int done_at_once(struct tt_comm *comm, struct tt_request *request, bool *ret_done)
{
    (void)comm;
    (void)request;
    *ret_done = true;
    return 0;
}

static void the_bytes_to_exchange_addresses_grow_linearly_with_the_ranks(void **state)
{
    static const struct tt_comm_ops ops = {
        .name = "large", .send_begin = count_send, .recv_begin = receive_nothing, .test = done_at_once};
    enum { RANKS = 20000, MOST_EACH = 8192 }; /* 15 messages of some hundred bytes each for the table of all ranks */
    static int leader[RANKS];
    struct tt_comm comm = {.ops = &ops, .rank = 0, .size = RANKS, .host_leader = leader};
    struct tt_peer_memory *memory = NULL;

    for (int rank = 0; rank < RANKS; rank++)
        leader[rank] = rank; /* each rank is on its own host */
    sent_bytes = 0;
    assert_int_equal(tt_peer_memory_new(&comm, &memory), 0);
    if (sent_bytes > (int64_t)RANKS * MOST_EACH)
        fail_msg("rank 0 of %d sent %lld bytes", RANKS, (long long)sent_bytes);
    assert_false(memory->reachable[RANKS - 1]);
    tt_peer_memory_free(memory);
}

static int unequal_lists(struct tt_comm *comm, void *arg)
{
    int ranks[2] = {0, 1};
    struct tt_group group = {2, comm->rank, ranks};
    float values[4] = {0};
    struct tt_segment four = {values, 16}, two = {values, 8};
    struct tt_segment_list lists[2] = {{&four, 1}, {&two, 1}};
    struct tt_collective *gather;

    (void)arg;
    return tt_all_gather_new(comm, &group, TT_TAG_COLLECTIVE, lists[0], lists, &gather);
}

static int odd_floats(struct tt_comm *comm, void *arg)
{
    int ranks[2] = {0, 1};
    struct tt_group group = {2, comm->rank, ranks};
    float values[4] = {0};
    struct tt_segment segment = {values, 6};
    struct tt_collective *reduce;

    (void)arg;
    return tt_all_reduce_new(comm, &group, TT_TAG_COLLECTIVE, (struct tt_segment_list){&segment, 1}, NULL, &reduce);
}

static int begin_twice(struct tt_comm *comm, void *arg)
{
    int ranks[2] = {0, 1};
    struct tt_group group = {2, comm->rank, ranks};
    float values[2] = {0};
    struct tt_segment segments[2] = {{&values[0], 4}, {&values[1], 4}};
    struct tt_segment_list lists[2] = {{&segments[0], 1}, {&segments[1], 1}};
    struct tt_collective *gather;
    int rc = 0;

    (void)arg;
    if (comm->rank == 1)
        return tt_comm_barrier(comm); /* waits until rank 0 has failed */
    TT_TRY(tt_all_gather_new(comm, &group, TT_TAG_COLLECTIVE, lists[0], lists, &gather));
    if ((rc = tt_collective_begin(gather)) == 0)
        rc = tt_collective_begin(gather);
    tt_collective_free(gather);
out:
    return rc;
}

static void wrong_use_is_an_internal_error(void **state)
{
    expect_run(2, unequal_lists, TT_EINTERNAL, "member 1 of 2 has 8 bytes, a shard 16");
    expect_run(2, odd_floats, TT_EINTERNAL, "not whole, aligned numbers");
    expect_run(2, begin_twice, TT_EINTERNAL, "begun twice");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases_hold_for_a_rank_alone),
        cmocka_unit_test(cases_hold_for_any_number_of_ranks),
        cmocka_unit_test(a_failed_reading_is_repeated_and_nothing_is_added_twice),
        cmocka_unit_test(a_silent_rank_is_named_after_the_timeout),
        cmocka_unit_test(the_memory_of_one_that_left_is_not_read),
        cmocka_unit_test(ranks_that_are_held_up_are_not_blamed),
        cmocka_unit_test(a_wait_lasts_while_the_job_makes_progress),
        cmocka_unit_test(a_long_wait_is_reported_by_one_rank),
        cmocka_unit_test(a_failure_to_reach_others_is_waited_for_once),
        cmocka_unit_test(a_transport_that_fails_is_not_used_again),
        cmocka_unit_test(abort_ends_all_ranks_with_its_code),
        cmocka_unit_test(abort_is_seen_by_waiting_ranks),
        cmocka_unit_test(a_rank_that_left_is_an_error_at_once),
        cmocka_unit_test(sides_must_agree_on_the_bytes),
        cmocka_unit_test(the_transport_says_who_shares_a_host),
        cmocka_unit_test(the_bytes_to_exchange_addresses_grow_linearly_with_the_ranks),
        cmocka_unit_test(wrong_use_is_an_internal_error),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
