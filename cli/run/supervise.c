/* SPDX-License-Identifier: MIT
 *
 * Supervises a launcher: passes on its output, and requests to stop. Signals are blocked and read from a descriptor, so
 * no code here runs in a handler.
 */
#include "cli/run/supervise.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static const double same_request_sec = 1.0;

/* The signals that ranks get for a stop and for an interrupt. */
static const int forwarded[] = {SIGUSR1, SIGUSR2};

/* Most bytes that are passed on at once; a pipe that is ready for writing takes them without blocking. */
enum { COPIED_BYTES = 4096 };

struct copy {
    int from, to; /* from is -1 after its end */
    bool lost;    /* `to` can no longer be written, so output is dropped */
    struct tt_remarks remarks;
    struct tt_text line;  /* the line of standard error that is being read */
    struct tt_text *why;  /* see tt_supervise */
    struct tt_text bytes; /* bytes to write, of which `written` are written */
    size_t written;
};

struct supervised {
    pid_t pid;
    struct copy copy[2]; /* standard output and error */
    int interrupts;      /* the number of interrupts so far */
    double interrupted_sec;
    bool forward[2]; /* for each of forwarded[]: whether it is still to be sent */
    int code;        /* the exit code of the requested stop; 0: no stop was requested */
};

/* --- the child --- */

/* Becomes the launcher. An error is sent to the parent through the pipe. */
static void become(char *const *argv, const sigset_t *mask, const int *output, int to_parent)
{
    int error;

    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM); /* otherwise the ranks would train on if this process were killed */
    (void)signal(SIGPIPE, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    if (dup2(output[0], STDOUT_FILENO) >= 0 && dup2(output[1], STDERR_FILENO) >= 0)
        (void)execvp(argv[0], argv);
    error = errno;
    if (write(to_parent, &error, sizeof error) < 0)
        _exit(126);
    _exit(127);
}

static int start(struct supervised *s, char *const *argv, const sigset_t *mask)
{
    int pipes[3][2], output[2], error = 0;
    ssize_t n;

    for (int i = 0; i < 3; i++)
        if (pipe2(pipes[i], O_CLOEXEC) < 0)
            return tt_fail(TT_EIO, "launch: cannot make a pipe: %s", strerror(errno));
    (void)fflush(NULL);
    for (int i = 0; i < 2; i++) {
        s->copy[i] = (struct copy){.from = pipes[i][0], .to = i == 0 ? STDOUT_FILENO : STDERR_FILENO};
        output[i] = pipes[i][1];
    }
    s->pid = fork();
    if (s->pid == 0)
        become(argv, mask, output, pipes[2][1]);
    for (int i = 0; i < 3; i++)
        (void)close(pipes[i][1]);
    if (s->pid < 0) {
        error = errno;
    } else {
        while ((n = read(pipes[2][0], &error, sizeof error)) < 0 && errno == EINTR)
            ;
        if (n < (ssize_t)sizeof error)
            error = 0;
    }
    (void)close(pipes[2][0]);
    if (error == 0)
        return 0;
    while (s->pid > 0 && waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return tt_fail(TT_EUSAGE, "launch: cannot run %s: %s\nhelp: %s; `titan launch --print` shows the line", argv[0],
                   strerror(error),
                   strcmp(argv[0], "srun") == 0 ? "Slurm's srun must be in PATH"
                                                : "install Open MPI (openmpi-bin), or put mpirun in PATH");
}

/* --- output --- */

/* Looks in the output of mpirun and srun for the reason why a rank ended: "rank 1 on node vm was ended by signal 9
 * (Killed)". */
static void take_lines(struct copy *c, const char *bytes, size_t n)
{
    static const char ompi[] = "noticed that process rank ", ended[] = " exited on signal ", slurm[] = "srun: error: ";
    enum { MOST = 4096 };

    for (size_t i = 0; i < n; i++) {
        const char *line, *at, *node, *sign;

        /* the line follows a live line */
        if (bytes[i] != '\n' && c->line.size && c->line.text[c->line.size - 1] == '\r')
            tt_text_release(&c->line);
        if (bytes[i] != '\n' && c->line.size < MOST)
            tt_text_add_bytes(&c->line, &bytes[i], 1);
        if (bytes[i] != '\n')
            continue;
        line = c->line.size && !c->why->size ? c->line.text : "";
        at = strstr(line, ompi);
        node = strstr(line, " on node ");
        sign = strstr(line, ended);
        if (at && node && sign && at < node && node < sign)
            tt_text_add(c->why, "rank %d%.*s was ended by signal %.*s, as mpirun says",
                        (int)strtol(at + sizeof ompi - 1, NULL, 10), (int)(sign - node), node,
                        (int)strcspn(sign + sizeof ended - 1, "."), sign + sizeof ended - 1);
        else if (tt_text_begins(line, slurm) && strstr(line, ": task "))
            tt_text_add(c->why, "%s", line);
        tt_text_release(&c->line);
    }
}

/* The events for which poll should wait. */
static struct pollfd wants(const struct copy *c)
{
    if (c->written < c->bytes.size)
        return (struct pollfd){.fd = c->to, .events = POLLOUT};
    return (struct pollfd){.fd = c->from, .events = POLLIN};
}

static void move(struct copy *c)
{
    size_t left = c->bytes.size - c->written;
    char bytes[COPIED_BYTES];
    ssize_t n;

    if (left == 0) {
        c->bytes.size = c->written = 0;
        n = read(c->from, bytes, sizeof bytes);
        if (n > 0 && c->to == STDERR_FILENO) {
            take_lines(c, bytes, (size_t)n);
            tt_remarks_pass(&c->remarks, bytes, (size_t)n, &c->bytes);
        } else if (n > 0) {
            tt_text_add_bytes(&c->bytes, bytes, (size_t)n);
        } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
            (void)close(c->from);
            c->from = -1;
        }
    } else {
        n = write(c->to, c->bytes.text + c->written, left < COPIED_BYTES ? left : COPIED_BYTES);
        c->lost |= n < 0 && errno != EINTR && errno != EAGAIN;
        c->written += n > 0 ? (size_t)n : 0;
    }
    if (c->lost) /* keep reading, since mpirun ends the job if its output is closed */
        c->written = c->bytes.size;
}

/* After the end of the launcher, passes on the rest of the pipe, which other processes may hold open. */
static void drain(struct copy *c)
{
    bool ended = false;

    while (!ended || c->written < c->bytes.size) {
        bool writes = c->written < c->bytes.size;
        struct pollfd poll_for = wants(c);

        int ready = writes || c->from >= 0 ? poll(&poll_for, 1, writes ? -1 : 0) : 0;

        if (ready < 0 && errno == EINTR)
            continue;
        if (ready > 0) {
            move(c);
        } else if (writes) {
            break;
        } else {
            c->bytes.size = c->written = 0;
            tt_remarks_end(&c->remarks, &c->bytes);
            ended = true;
        }
    }
    tt_text_release(&c->bytes);
    tt_text_release(&c->line);
}

/* --- requests to stop --- */

/* Whether the launcher has started a process; before that, it would lose a signal and not forward it. */
static bool has_children(pid_t pid)
{
    char *path = tt_format("/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "re");
    bool found = !f || fgetc(f) != EOF; /* assume so if the kernel does not say */

    if (f)
        (void)fclose(f);
    tt_free(path);
    return found;
}

/* Applies the rule of cli/run/signals.h: only interrupts count more than once. The ranks get the first two. */
static void request(struct supervised *s, int signal_number)
{
    bool interrupt = signal_number == SIGINT || signal_number == SIGUSR2, first = s->code == 0;
    double now = tt_clock_sec();

    if (first)
        s->code = tt_error_exit_code(interrupt ? TT_EINTERRUPTED : TT_ESTOPPED);
    if (!interrupt) {
        s->forward[0] |= first;
        return;
    }
    if (s->interrupts > 0 && now - s->interrupted_sec < same_request_sec)
        return;
    s->interrupts++;
    s->interrupted_sec = now;
    if (s->interrupts <= 2)
        s->forward[1] = true;
    else
        (void)kill(s->pid, s->interrupts == 3 ? SIGTERM : SIGKILL);
}

static bool has_to_forward(const struct supervised *s)
{
    return s->forward[0] || s->forward[1];
}

static void forward(struct supervised *s)
{
    if (!has_to_forward(s) || !has_children(s->pid))
        return;
    for (int i = 0; i < 2; i++) {
        if (s->forward[i])
            (void)kill(s->pid, forwarded[i]);
        s->forward[i] = false;
    }
}

/* --- both --- */

static void watch(struct supervised *s, int signals)
{
    struct pollfd poll_for[] = {{.fd = signals, .events = POLLIN}, wants(&s->copy[0]), wants(&s->copy[1])};
    struct signalfd_siginfo info;

    if (poll(poll_for, 3, has_to_forward(s) ? 50 : -1) < 0)
        return;
    if (poll_for[0].revents && read(signals, &info, sizeof info) == (ssize_t)sizeof info && info.ssi_signo != SIGCHLD)
        request(s, (int)info.ssi_signo);
    for (int i = 0; i < 2; i++)
        if (poll_for[i + 1].revents)
            move(&s->copy[i]);
    forward(s);
}

/* Sets TITAN_COLUMNS to the result of tt_screen_columns, for processes that are started from now on. */
static void pass_on(void)
{
    char columns[32];

    (void)snprintf(columns, sizeof columns, "%d,%d", tt_screen_columns(STDOUT_FILENO),
                   tt_screen_columns(STDERR_FILENO));
    (void)setenv("TITAN_COLUMNS", columns, 1); // NOLINT(concurrency-mt-unsafe): one thread
}

int tt_supervise(char *const *argv, struct tt_text *ret_why)
{
    static const int taken[] = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGINT, SIGCHLD};
    struct supervised *s = tt_calloc(1, sizeof *s);
    int rc = 0, status = 0, signals = -1;
    sigset_t set, before;

    (void)sigemptyset(&set);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        (void)sigaddset(&set, taken[i]);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    (void)signal(SIGPIPE, SIG_IGN);
    signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (signals < 0) {
        rc = tt_fail(TT_EIO, "launch: cannot wait for signals: %s", strerror(errno));
        goto out;
    }
    pass_on();
    TT_TRY(start(s, argv, &before));
    for (int i = 0; i < 2; i++)
        s->copy[i].why = ret_why;
    while (waitpid(s->pid, &status, WNOHANG) != s->pid)
        watch(s, signals);
    for (int i = 0; i < 2; i++)
        drain(&s->copy[i]);
    rc = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    /* the signal came before the ranks handled signals */
    if (s->code && (rc == 128 + SIGUSR1 || rc == 128 + SIGUSR2)) {
        (void)fprintf(stderr, "titan: stopped before training began; there is nothing to save\n");
        rc = s->code;
    }
out:
    if (signals >= 0)
        (void)close(signals);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    tt_free(s);
    return rc;
}

/*
 * --- mpirun's remarks ---
 *
 * A small state machine reads the output byte by byte. Outside blocks, it holds back only bytes that may turn out to be
 * a remark.
 */

enum { LEAST_DASHES = 60, MOST_BYTES = 4096 }; /* mpirun draws 74 dashes; its remarks have a few hundred bytes */

static const char forwarding[] = "mpirun: Forwarding signal ";

/* Whether the last held line, which has just ended, consists of dashes. */
static bool ends_in_dashes(const struct tt_text *held)
{
    size_t n = 0, end = held->size - 1;

    while (n < end && held->text[end - 1 - n] == '-')
        n++;
    return n >= LEAST_DASHES && (n == end || held->text[end - 1 - n] == '\n');
}

static void release(struct tt_remarks *r, struct tt_text *out)
{
    if (r->held.size)
        tt_text_add_bytes(out, r->held.text, r->held.size);
    tt_text_release(&r->held);
}

static void take_in_block(struct tt_remarks *r, char c, struct tt_text *out)
{
    static const char *const remarks[] = {
        "\nPrimary job  terminated normally, but ",
        "\nmpirun detected that one or more processes exited with non-zero status",
        "\nprterun detected that one or more processes exited with non-zero status"}; // Open MPI 5
    bool ends = c == '\n' && ends_in_dashes(&r->held), is_remark = false;

    if (!ends && r->held.size <= MOST_BYTES)
        return;
    for (size_t i = 0; ends && i < sizeof remarks / sizeof *remarks; i++)
        is_remark = is_remark || strstr(r->held.text, remarks[i]);
    if (is_remark)
        tt_text_release(&r->held);
    release(r, out);
    r->at = c == '\n' ? TT_REMARKS_LINE_START : TT_REMARKS_LINE;
}

/* Holds a line, or its beginning, that may be mpirun's remark about a signal or the first line of a block. */
static void take_at_line_start(struct tt_remarks *r, char c, struct tt_text *out)
{
    size_t n = r->held.size < sizeof forwarding - 1 ? r->held.size : sizeof forwarding - 1;
    bool may_be_remark = strspn(r->held.text, "-") == r->held.size || memcmp(r->held.text, forwarding, n) == 0;

    if (c == '\n' && ends_in_dashes(&r->held)) {
        r->at = TT_REMARKS_BLOCK;
    } else if (c == '\n') {
        if (tt_text_begins(r->held.text, forwarding))
            tt_text_release(&r->held);
        release(r, out);
    } else if (!may_be_remark || r->held.size > MOST_BYTES) {
        release(r, out);
        r->at = TT_REMARKS_LINE;
    }
}

static void take(struct tt_remarks *r, char c, struct tt_text *out)
{
    if (r->at == TT_REMARKS_LINE) {
        tt_text_add_bytes(out, &c, 1);
        /* a live line ends with a carriage return */
        r->at = c == '\n' || c == '\r' ? TT_REMARKS_LINE_START : TT_REMARKS_LINE;
        return;
    }
    tt_text_add_bytes(&r->held, &c, 1);
    if (r->at == TT_REMARKS_BLOCK)
        take_in_block(r, c, out);
    else
        take_at_line_start(r, c, out);
}

void tt_remarks_pass(struct tt_remarks *r, const char *bytes, size_t n, struct tt_text *out)
{
    for (size_t i = 0; i < n; i++)
        take(r, bytes[i], out);
}

void tt_remarks_end(struct tt_remarks *r, struct tt_text *out)
{
    release(r, out);
    r->at = TT_REMARKS_LINE_START;
}
