/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_SIGNALS_H
#define TT_CLI_SIGNALS_H

/**
 * Graceful stops. The first SIGTERM, SIGUSR1 or SIGINT asks the loop to end after the step and save; a second one ends
 * the process at once (a checkpoint under way is then simply not committed).
 */
void tt_signals_install(void);

/** 0, or the error code that the run should end with: TT_ESTOPPED or TT_EINTERRUPTED. */
int tt_signals_asked(void);

#endif
