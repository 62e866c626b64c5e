/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_TEAM_H
#define TT_CORE_OS_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * The threads of one rank. A kernel cuts its work into tiles, whose number depends on the shapes only, and the team
 * runs them. The result does not depend on which thread ran a tile. Threads are created once and wait between runs.
 */
struct tt_team;

/**
 * Computes one tile of a run; `worker` in [0, threads) selects per-thread scratch. It must not fail or call the team.
 */
typedef void (*tt_tile_fn)(void *arg, int64_t tile, int worker);

/** threads >= 1, including the calling thread. */
int tt_team_new(int threads, struct tt_team **ret_team) TT_MUST_CHECK;
void tt_team_free(struct tt_team *team);
int tt_team_threads(const struct tt_team *team);

/**
 * Tells the team that `ranks` ranks of this host have teams of this size. If together they have more threads than there
 * are cores, and the ranks are not bound to their own cores, waiting threads sleep at once instead of spinning first.
 */
void tt_team_share(struct tt_team *team, int ranks);

/**
 * Runs fn for tiles 0..n-1, n < 2^32 - 1, and returns when all are done. For the owning thread only; allocates nothing.
 */
void tt_team_run(struct tt_team *team, int64_t n_tiles, tt_tile_fn fn, void *arg);

/** True during a run; so the poll function below can tell that it was called between tiles. */
bool tt_team_busy(const struct tt_team *team);

/**
 * From now on the owning thread calls poll(arg) between tiles, at most every 100 us or so, and while it waits for the
 * other threads. NULL ends this. poll must not run the team.
 */
void tt_team_set_poll(struct tt_team *team, void (*poll)(void *arg), void *arg);

/**
 * The first function gives the number of cores that this process may use (binding, quota of the control groups). The
 * second one gives the number for a rank that shares its host with ranks - 1 others: the cores to which it is bound, or
 * else an equal share; but no more than an equal share of a quota.
 */
int tt_team_cores(void);
int tt_team_fair_cores(int ranks);

#endif
