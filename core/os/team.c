/* SPDX-License-Identifier: MIT
 *
 * A team of threads. Threads take tiles one by one, since tiles of causal attention differ in work. A run ends when its
 * tiles are done; it does not wait for a worker that wakes up late.
 *
 * `ticket` holds the number of the run and the next tile; taking a tile is a compare-and-swap on it. The owner closes
 * the ticket before it writes fn, arg and n_tiles of a new run. So if the compare-and-swap succeeds, the values that
 * the worker has read belong to this run. A waiting thread spins for a while, since runs follow each other within
 * microseconds, and then sleeps on a futex. If there are more threads than cores, no thread spins.
 */
#include "core/os/team.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/futex.h>

#include "core/base/mem.h"
#include "core/os/file.h"
#include "core/os/machine.h"

/* How long a thread spins: longer than the time between two runs, and too short to matter otherwise. Spins between two
 * polls. */
static const double spin_sec = 300e-6;
enum { POLLS_IN_SPINS = 10 };

static const uint64_t closed = UINT64_C(0xffffffff); /* in place of the next tile */

/* The time between two polls: shorter than the time in which a network empties its buffers, much longer than reading
 * the clock. */
static const double poll_every_sec = 100e-6;
static const struct timespec poll_every = {0, 100000};

struct worker {
    struct tt_team *team;
    int index;
    pthread_t thread;
};

/* A number; threads wait for it to change. */
struct signal {
    atomic_uint value;
    atomic_uint sleepers;
};

struct tt_team {
    int threads;
    atomic_int spins;       /* spins before a thread sleeps */
    struct worker *workers; /* threads - 1 */
    _Atomic(tt_tile_fn) fn;
    void *_Atomic arg;
    atomic_int_fast64_t n_tiles;
    atomic_uint_fast64_t ticket; /* run << 32 | next tile, or closed */
    struct signal runs;          /* the number of runs so far */
    struct signal done;          /* finished tiles of this run */
    atomic_bool stop;
    /* the members below are used only by the owning thread */
    bool running;
    void (*poll)(void *arg);
    void *poll_arg;
    double polled_sec;
};

/* Polls if a poll is due; for the owning thread. */
static void poll_at_times(struct tt_team *team)
{
    double now;

    if (!team->poll || (now = tt_clock_sec()) - team->polled_sec < poll_every_sec)
        return;
    team->poll(team->poll_arg);
    team->polled_sec = now;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* `yield` does nothing on most processors */
#endif
}

/* The spins that last spin_sec: a pause takes 40 cycles on one processor and 140 on another. */
static int count_spins(void)
{
    enum { TRIALS = 3, SPINS = 200 };
    double least = spin_sec; /* the duration of a trial that nothing interrupted */

    for (int i = 0; i < TRIALS; i++) {
        double start = tt_clock_sec(), sec;

        for (int spin = 0; spin < SPINS; spin++)
            relax();
        sec = tt_clock_sec() - start;
        least = sec > 0.0 && sec < least ? sec : least;
    }
    return (int)(SPINS * spin_sec / least);
}

/* Returns when the value is no longer `old`, or earlier. longest: the longest sleep, NULL for no limit. */
static void wait_for_change(struct signal *signal, unsigned old, int spins, const struct timespec *longest)
{
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&signal->value, memory_order_acquire) != old)
            return;
        relax();
    }
    (void)atomic_fetch_add(&signal->sleepers, 1);
    (void)syscall(SYS_futex, &signal->value, FUTEX_WAIT_PRIVATE, old, longest, NULL, 0);
    (void)atomic_fetch_sub(&signal->sleepers, 1);
}

/* Call it after changing the value. A sleeper counts itself before the kernel reads the value, so either the sleeper
 * sees the change, or this function sees the sleeper. */
static void wake(struct signal *signal)
{
    if (atomic_load(&signal->sleepers) > 0)
        (void)syscall(SYS_futex, &signal->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Takes tiles of the current run, if any, until none are left. */
static void run_tiles(struct tt_team *team, int worker)
{
    uint64_t ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);

    for (;;) {
        int64_t tile = (int64_t)(ticket & closed), n;
        tt_tile_fn fn = atomic_load_explicit(&team->fn, memory_order_acquire);
        void *arg = atomic_load_explicit(&team->arg, memory_order_acquire);

        n = atomic_load_explicit(&team->n_tiles, memory_order_acquire);
        if (tile >= n)
            return;
        if (!atomic_compare_exchange_weak(&team->ticket, &ticket, ticket + 1))
            continue;
        fn(arg, tile, worker);
        if ((int64_t)atomic_fetch_add(&team->done.value, 1) + 1 == n)
            wake(&team->done);
        if (worker == 0)
            poll_at_times(team);
        ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
    }
}

static void *worker_main(void *arg)
{
    struct worker *self = arg;
    struct tt_team *team = self->team;
    unsigned seen = 0;

    for (;;) {
        wait_for_change(&team->runs, seen, team->spins, NULL);
        seen = atomic_load_explicit(&team->runs.value, memory_order_acquire);
        if (atomic_load(&team->stop))
            return NULL;
        run_tiles(team, self->index);
    }
}

int tt_team_new(int threads, struct tt_team **ret_team)
{
    struct tt_team *team = tt_calloc(1, sizeof *team);

    team->threads = 1;
    team->workers = tt_calloc((size_t)threads, sizeof *team->workers);
    team->spins = count_spins();
    tt_team_share(team, 1);
    atomic_store(&team->ticket, closed);
    for (int i = 1; i < threads; i++) {
        struct worker *w = &team->workers[i - 1];

        w->team = team;
        w->index = i;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            tt_team_free(team);
            return tt_fail(TT_EINTERNAL,
                           "cannot create thread %d of %d\n"
                           "help: raise the limits on processes and virtual memory (ulimit -u, -v; of a job or a "
                           "container), or use fewer threads",
                           i + 1, threads);
        }
        team->threads++;
    }
    *ret_team = team;
    return 0;
}

void tt_team_free(struct tt_team *team)
{
    if (!team)
        return;
    atomic_store(&team->stop, true);
    (void)atomic_fetch_add(&team->runs.value, 1);
    wake(&team->runs);
    for (int i = 0; i < team->threads - 1; i++)
        (void)pthread_join(team->workers[i].thread, NULL);
    tt_free(team->workers);
    tt_free(team);
}

int tt_team_threads(const struct tt_team *team)
{
    return team->threads;
}

/* Whether this process is bound to a part of the hardware threads that the ranks of this host divide among them. */
static bool is_bound(const struct tt_limits *limits)
{
    int all = tt_cores()->hardware_threads;

    all = limits->cpuset > 0 && limits->cpuset < all ? limits->cpuset : all;
    return tt_cores()->bound_hardware_threads < all;
}

/* An equal share of the cores; 0: there are more ranks than cores. */
static int fair_cores(int ranks)
{
    struct tt_limits limits = tt_limits_read("");
    int cores = tt_cores()->bound_cores;

    if (!is_bound(&limits))
        cores /= ranks;
    return limits.cpus / ranks < cores ? (int)(limits.cpus / ranks) : cores;
}

void tt_team_share(struct tt_team *team, int ranks)
{
    if (team->threads > fair_cores(ranks))
        team->spins = 0;
}

void tt_team_run(struct tt_team *team, int64_t n_tiles, tt_tile_fn fn, void *arg)
{
    uint64_t run;
    unsigned done;

    team->running = true;
    if (team->threads == 1 || n_tiles <= 1) {
        for (int64_t tile = 0; tile < n_tiles; tile++) {
            fn(arg, tile, 0);
            poll_at_times(team);
        }
        team->running = false;
        return;
    }
    run = (atomic_load_explicit(&team->ticket, memory_order_relaxed) | closed) + 1; /* the next run's first tile */
    atomic_store(&team->ticket, run | closed);
    atomic_store_explicit(&team->done.value, 0, memory_order_relaxed);
    atomic_store_explicit(&team->fn, fn, memory_order_release);
    atomic_store_explicit(&team->arg, arg, memory_order_release);
    atomic_store_explicit(&team->n_tiles, n_tiles, memory_order_release);
    atomic_store(&team->ticket, run);
    (void)atomic_fetch_add(&team->runs.value, 1);
    wake(&team->runs);
    run_tiles(team, 0);
    while (done = atomic_load_explicit(&team->done.value, memory_order_acquire), (int64_t)done < n_tiles) {
        bool polls = team->poll != NULL;
        int spins = team->spins;

        wait_for_change(&team->done, done, polls ? spins / POLLS_IN_SPINS : spins, polls ? &poll_every : NULL);
        poll_at_times(team);
    }
    team->running = false;
}

bool tt_team_busy(const struct tt_team *team)
{
    return team->running;
}

void tt_team_set_poll(struct tt_team *team, void (*poll)(void *arg), void *arg)
{
    team->poll = poll;
    team->poll_arg = arg;
}

int tt_team_fair_cores(int ranks)
{
    int cores = fair_cores(ranks);

    return cores < 1 ? 1 : cores;
}

int tt_team_cores(void)
{
    return tt_team_fair_cores(1);
}
