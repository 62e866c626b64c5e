/* SPDX-License-Identifier: MIT
 *
 * A team of threads. Tiles are handed out by an atomic counter (dynamic, since tiles of causal attention differ in
 * work); workers sleep on a condition variable between runs after a short spin, so that an oversubscribed test machine
 * does not burn its cores.
 */
#include "core/base/team.h"

#include <stdatomic.h>
#include <stdio.h>

#include <pthread.h>
#include <sched.h>

#include "core/base/file.h"
#include "core/base/mem.h"

enum { SPINS_BEFORE_SLEEP = 4000 };

/* Between two polls; short against the time a network needs to empty its buffers, long against a look at the clock. */
static const double poll_every_sec = 100e-6;

struct worker {
    struct tt_team *team;
    int index;
    pthread_t thread;
};

struct tt_team {
    int threads;
    struct worker *workers; /* threads - 1 */
    tt_tile_fn fn;
    void *arg;
    int64_t n_tiles;
    atomic_int_fast64_t next_tile;
    atomic_uint generation; /* one per run */
    atomic_int busy;        /* workers that have not finished this run */
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t start;
    /* the owning thread's */
    bool running;
    void (*poll)(void *arg);
    void *poll_arg;
    double polled_sec;
};

/* By the owning thread. */
static void poll_at_times(struct tt_team *team)
{
    double now;

    if (!team->poll || (now = tt_clock_sec()) - team->polled_sec < poll_every_sec)
        return;
    team->poll(team->poll_arg);
    team->polled_sec = now;
}

static void run_tiles(struct tt_team *team, int worker)
{
    int64_t tile;

    while ((tile = atomic_fetch_add_explicit(&team->next_tile, 1, memory_order_relaxed)) < team->n_tiles) {
        team->fn(team->arg, tile, worker);
        if (worker == 0)
            poll_at_times(team);
    }
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_for_run(struct tt_team *team, unsigned seen)
{
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        if (atomic_load_explicit(&team->generation, memory_order_acquire) != seen)
            return;
        relax();
    }
    (void)pthread_mutex_lock(&team->lock);
    while (atomic_load_explicit(&team->generation, memory_order_acquire) == seen)
        (void)pthread_cond_wait(&team->start, &team->lock);
    (void)pthread_mutex_unlock(&team->lock);
}

static void *worker_main(void *arg)
{
    struct worker *self = arg;
    struct tt_team *team = self->team;
    unsigned seen = 0;

    for (;;) {
        wait_for_run(team, seen);
        seen++;
        if (atomic_load(&team->stop))
            return NULL;
        run_tiles(team, self->index);
        (void)atomic_fetch_sub_explicit(&team->busy, 1, memory_order_release);
    }
}

static void wake(struct tt_team *team)
{
    (void)pthread_mutex_lock(&team->lock);
    (void)atomic_fetch_add_explicit(&team->generation, 1, memory_order_release);
    (void)pthread_cond_broadcast(&team->start);
    (void)pthread_mutex_unlock(&team->lock);
}

int tt_team_new(int threads, struct tt_team **ret_team)
{
    struct tt_team *team = tt_calloc(1, sizeof *team);

    team->threads = 1;
    team->workers = tt_calloc((size_t)threads, sizeof *team->workers);
    (void)pthread_mutex_init(&team->lock, NULL);
    (void)pthread_cond_init(&team->start, NULL);
    for (int i = 1; i < threads; i++) {
        struct worker *w = &team->workers[i - 1];

        w->team = team;
        w->index = i;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            tt_team_free(team);
            return tt_fail(TT_EINTERNAL, "cannot create thread %d of %d", i + 1, threads);
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
    wake(team);
    for (int i = 0; i < team->threads - 1; i++)
        (void)pthread_join(team->workers[i].thread, NULL);
    (void)pthread_cond_destroy(&team->start);
    (void)pthread_mutex_destroy(&team->lock);
    tt_free(team->workers);
    tt_free(team);
}

int tt_team_threads(const struct tt_team *team)
{
    return team->threads;
}

void tt_team_run(struct tt_team *team, int64_t n_tiles, tt_tile_fn fn, void *arg)
{
    int spins = 0;

    team->running = true;
    if (team->threads == 1 || n_tiles <= 1) {
        for (int64_t tile = 0; tile < n_tiles; tile++) {
            fn(arg, tile, 0);
            poll_at_times(team);
        }
        team->running = false;
        return;
    }
    team->fn = fn;
    team->arg = arg;
    team->n_tiles = n_tiles;
    atomic_store_explicit(&team->next_tile, 0, memory_order_relaxed);
    atomic_store_explicit(&team->busy, team->threads - 1, memory_order_relaxed);
    wake(team);
    run_tiles(team, 0);
    while (atomic_load_explicit(&team->busy, memory_order_acquire) > 0) {
        relax();
        if (++spins > SPINS_BEFORE_SLEEP)
            (void)sched_yield();
        if (spins % 64 == 0)
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

/* The CPU quota of the cgroup (version 2) that a container runs in, or 0 when there is none. */
static int quota_cores(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    double quota = 0.0, period = 0.0;
    int found;

    if (!f)
        return 0;
    found = fscanf(f, "%lf %lf", &quota, &period); // NOLINT(cert-err34-c): "max" leaves found at 0
    (void)fclose(f);
    return found == 2 && period > 0.0 ? (int)(quota / period + 0.5) : 0;
}

int tt_team_cores(void)
{
    cpu_set_t set;
    int cores = 1, quota = quota_cores();

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cores = CPU_COUNT(&set);
    if (quota > 0 && quota < cores)
        cores = quota;
    return cores < 1 ? 1 : cores;
}
