/* SPDX-License-Identifier: MIT
 *
 * The handler only sets a flag; the loop looks at it between steps, when all ranks agree.
 */
#include "cli/signals.h"

#include <signal.h>
#include <string.h>

#include <unistd.h>

#include "core/base/error.h"

static volatile sig_atomic_t asked;

static void handle(int signal_number)
{
    int code = signal_number == SIGINT ? TT_EINTERRUPTED : TT_ESTOPPED;

    if (asked)
        _exit(tt_error_exit_code(code));
    asked = code;
}

void tt_signals_install(void)
{
    static const int signals[] = {SIGTERM, SIGUSR1, SIGINT};
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    (void)sigemptyset(&action.sa_mask);
    for (int i = 0; i < 3; i++)
        (void)sigaction(signals[i], &action, NULL);
}

int tt_signals_asked(void)
{
    return asked;
}
