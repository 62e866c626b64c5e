/* SPDX-License-Identifier: MIT
 *
 * A clock that ticks by signals. Ticks that are due while the process is stopped arrive as one.
 */
#include "parallel/comm/start_watch.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <sys/time.h>
#include <unistd.h>

#include "core/os/file.h"

enum { TICK_USEC = 250000, TICKS_A_SEC = 4, MESSAGE_BYTES = 1024, MOST_RANKS_APART = 5, SEC_APART = 10 };

static struct {
    volatile sig_atomic_t ticks_left;
    int exit_code;
    size_t bytes;
    char message[MESSAGE_BYTES];
    struct sigaction before;
} watch;

static void tick(int signal_number)
{
    (void)signal_number;
    if (--watch.ticks_left > 0)
        return;
    (void)tt_file_put(STDERR_FILENO, watch.message, watch.bytes);
    _exit(watch.exit_code);
}

void tt_start_watch_begin(double seconds, int rank, int exit_code, const char *message)
{
    const struct itimerval ticking = {{0, TICK_USEC}, {0, TICK_USEC}};
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    int apart = (rank < MOST_RANKS_APART ? rank : MOST_RANKS_APART) * SEC_APART;
    double ticks = (seconds + apart) * TICKS_A_SEC + 1.0;

    watch.ticks_left = ticks < 1e9 ? (sig_atomic_t)ticks : 1000000000;
    watch.exit_code = exit_code;
    (void)snprintf(watch.message, sizeof watch.message - 1, "%s", message);
    watch.bytes = strlen(watch.message);
    watch.message[watch.bytes++] = '\n';
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGALRM, &action, &watch.before);
    (void)setitimer(ITIMER_REAL, &ticking, NULL);
}

void tt_start_watch_end(void)
{
    const struct itimerval never = {{0, 0}, {0, 0}};

    (void)setitimer(ITIMER_REAL, &never, NULL);
    (void)sigaction(SIGALRM, &watch.before, NULL);
}
