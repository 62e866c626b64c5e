/* SPDX-License-Identifier: MIT
 *
 * The handler prints an answer and sets a flag, which the loop reads at the points where all ranks agree. The handler
 * may interrupt any code, so it prints a line that was made beforehand, with write(2).
 */
#include "cli/run/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <unistd.h>

#include "cli/run/screen.h"
#include "core/base/error.h"
#include "core/os/file.h"
#include "trainer/run/console.h"

enum { ANSWER_BYTES = 256 };

static const int64_t same_request_ns = 1000000000;

/* Lines that answer a first signal, a first signal that is an interrupt, and the first interrupt after another
 * signal. */
struct answer {
    char stop[ANSWER_BYTES], interrupt[ANSWER_BYTES], late[ANSWER_BYTES];
};

/* Handlers may run on two threads at once. */
static atomic_int asked;
static atomic_int_fast64_t interrupted_ns; /* time of the first interrupt; 0: there was none */
static atomic_int_fast64_t warned_ns;      /* time of mpirun's SIGCONT; 0: there was none, or the warning was settled */
static bool under_mpirun;
static struct answer answers[2]; /* the handler uses one while the other is being written */
static _Atomic(const struct answer *) answer;

/* Ignores a failure, since nothing can be done about it. */
static void say(const char *text)
{
    tt_console_add_in_handler(text);
    tt_streams_erase_live();
    (void)tt_file_put(STDERR_FILENO, text, strlen(text));
}

/*
 * mpirun ends its ranks with SIGCONT, a second later SIGTERM, and another second later SIGKILL. The SIGCONT is a
 * warning: a save that begins at the warning has twice the time. It is not a request to stop, since a suspended job is
 * also continued by SIGCONT.
 */
static bool from_mpirun(const siginfo_t *info)
{
    return under_mpirun && info->si_code <= 0 && info->si_pid == getppid();
}

static int64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void handle_request(int signal_number, bool kills)
{
    bool interrupts = signal_number == SIGINT || signal_number == SIGUSR2;
    const struct answer *a = atomic_load(&answer);
    int_fast64_t before = 0, now = now_ns();
    int nothing = 0;
    bool first = atomic_compare_exchange_strong(&asked, &nothing, interrupts ? TT_EINTERRUPTED : TT_ESTOPPED);

    if (first && a && kills)
        say("titan: mpirun is ending the job and kills its ranks within a second\n");
    if (first && a)
        say(interrupts ? a->interrupt : a->stop);
    if (!interrupts)
        return;
    if (atomic_compare_exchange_strong(&interrupted_ns, &before, now)) {
        if (!first && a)
            say(a->late);
    } else if (now - before >= same_request_ns) {
        if (a)
            say("titan: stopped without saving\n");
        _exit(tt_error_exit_code(TT_EINTERRUPTED));
    }
}

static void handle(int signal_number, siginfo_t *info, void *context)
{
    int before = errno;

    (void)context;
    if (signal_number != SIGCONT)
        handle_request(signal_number, signal_number == SIGTERM && from_mpirun(info));
    else if (from_mpirun(info))
        atomic_store(&warned_ns, now_ns());
    errno = before;
}

void tt_signals_install(void)
{
    static const int signals[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGHUP, SIGINT};
    const char *forwards = getenv("OMPI_MCA_orte_forward_job_control"); // NOLINT(concurrency-mt-unsafe): at the start
    struct sigaction action;

    /* with that setting mpirun passes on the user's own SIGCONT */
    under_mpirun = getenv("OMPI_COMM_WORLD_SIZE") && !forwards; // NOLINT(concurrency-mt-unsafe): at the start
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handle;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        (void)sigaddset(&action.sa_mask, signals[i]); /* so that signals are handled in the order of their arrival */
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        /* ignored if the parent process ignored it */
        bool may_be_ignored = signals[i] == SIGHUP || signals[i] == SIGINT;
        struct sigaction before;

        if (!may_be_ignored || sigaction(signals[i], NULL, &before) < 0 || before.sa_handler != SIG_IGN)
            (void)sigaction(signals[i], &action, NULL);
    }
    (void)signal(SIGPIPE, SIG_IGN);
}

int tt_signals_asked(void)
{
    return atomic_load(&asked);
}

double tt_signals_warned_sec(void)
{
    int_fast64_t warned = atomic_load(&warned_ns);

    return warned ? (double)(now_ns() - warned) * 1e-9 : -1.0;
}

void tt_signals_settle_warning(void)
{
    atomic_store(&warned_ns, 0);
}

void tt_signals_answer(const char *text, const char *again)
{
    struct answer *next = atomic_load(&answer) == answers ? answers + 1 : answers;
    const char *mark = again ? "; again: " : "", *hint = again ? again : "";

    if (text) {
        (void)snprintf(next->stop, ANSWER_BYTES, "titan: %s\n", text);
        (void)snprintf(next->interrupt, ANSWER_BYTES, "titan: %s%s%s\n", text, mark, hint);
        (void)snprintf(next->late, ANSWER_BYTES, "titan: the run is already stopping%s%s\n", mark, hint);
    }
    atomic_store(&answer, text ? next : NULL);
}
