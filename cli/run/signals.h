/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_SIGNALS_H
#define TT_CLI_RUN_SIGNALS_H

/**
 * Graceful stops. The first signal asks the loop to save and end; an answer is printed at once. Later signals do not
 * change that request, since schedulers send several. Only a second interrupt at least a second after the first ends
 * the process without saving (a checkpoint under way is then not committed): the user has pressed Ctrl-C twice. A
 * terminal and a launcher may both pass on one Ctrl-C, so interrupts within that second count as one.
 *
 *     SIGTERM, SIGHUP, SIGUSR1   stop: TT_ESTOPPED
 *     SIGINT, SIGUSR2            interrupt: TT_EINTERRUPTED (launchers forward SIGUSR2, but not SIGINT)
 *     SIGCONT from mpirun a warning: mpirun sends it to ranks that it is about to kill, a second before SIGTERM, but
 *                                also when it is continued after a pause
 *     SIGPIPE                    ignored: training continues when its output is closed
 *
 * SIGHUP and SIGINT stay ignored where the parent process ignored them (nohup, background jobs of scripts).
 */
void tt_signals_install(void);

/** 0, or the error code that the run should end with: TT_ESTOPPED or TT_EINTERRUPTED. */
int tt_signals_asked(void);

/** Seconds since mpirun's last warning that is not settled; negative: there is no such warning. */
double tt_signals_warned_sec(void);
void tt_signals_settle_warning(void);

/**
 * Sets the answer to the first signal, a line on standard error: "titan: TEXT". If the signal is an interrupt, ";
 * again: AGAIN" follows: the effect of a second interrupt. An interrupt after another signal is answered too. The texts
 * are copied.
 *   again  NULL: a second interrupt has no further effect
 *   text NULL: no answer; for all ranks except one
 * For one thread only.
 */
void tt_signals_answer(const char *text, const char *again);

#endif
