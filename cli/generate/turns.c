/* SPDX-License-Identifier: MIT
 *
 * The turns of a user: lines of standard input, and Ctrl-C.
 */
#include "cli/generate/turns.h"

#include <errno.h>
#include <string.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "core/base/mem.h"

/* A terminal that edits lines drops what is beyond so many bytes of one, without a word. */
enum { BLOCK = 65536, TYPED_MOST = 4095 };

/* A byte in this pipe wakes who waits for a line, whichever thread has handled the signal. */
static volatile sig_atomic_t interrupted;
static int wake[2] = {-1, -1};

static void handle(int signal_number)
{
    int before = errno;

    (void)signal_number;
    interrupted = 1;
    (void)!write(wake[1], "", 1);
    errno = before;
}

const volatile sig_atomic_t *tt_turns_interrupted(void)
{
    return &interrupted;
}

void tt_turns_go_on(void)
{
    char bytes[16];

    while (read(wake[0], bytes, sizeof bytes) > 0)
        continue;
    interrupted = 0;
}

int tt_turns_open(struct tt_turns *ret_turns)
{
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};

    *ret_turns = (struct tt_turns){.typed = isatty(STDIN_FILENO) == 1};
    if (!ret_turns->typed)
        return 0;
    if (pipe2(wake, O_NONBLOCK | O_CLOEXEC) < 0)
        return tt_fail(TT_EIO, "cannot make a pipe: %s", strerror(errno));
    interrupted = 0;
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, &ret_turns->before);
    return 0;
}

void tt_turns_close(struct tt_turns *t)
{
    if (wake[0] >= 0) {
        (void)sigaction(SIGINT, &t->before, NULL);
        (void)close(wake[0]);
        (void)close(wake[1]);
        wake[0] = wake[1] = -1;
    }
    tt_text_release(&t->bytes);
    tt_text_release(&t->text);
}

void tt_turns_end(struct tt_turns *t)
{
    t->ended = true;
    t->at = t->bytes.size;
    t->text.size = 0;
}

static int read_more(struct tt_turns *t)
{
    struct pollfd wait[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = wake[0], .events = POLLIN}};
    struct tt_text rest = {0};
    char *block;
    ssize_t n;

    if (poll(wait, t->typed ? 2 : 1, -1) < 0)
        return errno == EINTR ? 0 : tt_fail(TT_EIO, "cannot wait for standard input: %s", strerror(errno));
    if (t->typed && wait[1].revents) {
        tt_turns_end(t);
        return 0;
    }
    block = tt_calloc(1, BLOCK);
    n = read(STDIN_FILENO, block, BLOCK);
    if (n > 0) {
        tt_text_add_bytes(&rest, t->bytes.text + t->at, t->bytes.size - t->at);
        tt_text_add_bytes(&rest, block, (size_t)n);
        tt_text_release(&t->bytes);
        t->bytes = rest;
        t->at = 0;
    }
    tt_free(block);
    t->ended = n == 0;
    if (n < 0 && errno != EINTR && errno != EAGAIN)
        return tt_fail(TT_EIO, "cannot read standard input: %s", strerror(errno));
    return 0;
}

/* Appends the next line to the turn; false: more must be read first. The last line may lack its end. */
static bool take_line(struct tt_turns *t)
{
    size_t size = t->bytes.size - t->at;
    const char *line = size ? t->bytes.text + t->at : "", *newline = memchr(line, '\n', size);
    size_t n = newline ? (size_t)(newline - line) : size;

    if (!newline && !(t->ended && n))
        return false;
    t->at += n + (newline ? 1 : 0);
    t->lines++;
    t->cut = t->cut || (t->typed && n >= TYPED_MOST);
    if (n && line[n - 1] == '\r')
        n--;
    tt_text_add_bytes(&t->text, line, n);
    return true;
}

int tt_turns_next(struct tt_turns *t, const char **ret_text, size_t *ret_size)
{
    bool goes_on = true;
    int rc = 0;

    *ret_text = NULL;
    t->cut = false;
    t->text.size = 0;
    tt_text_add_bytes(&t->text, "", 0);
    while (goes_on) {
        if (take_line(t)) {
            goes_on = t->text.size && t->text.text[t->text.size - 1] == '\\';
            if (goes_on)
                t->text.text[t->text.size - 1] = '\n';
        } else if (t->ended) {
            if (!t->text.size)
                return 0;
            goes_on = false;
        } else {
            TT_TRY(read_more(t));
        }
    }
    *ret_text = t->text.text;
    *ret_size = t->text.size;
    if (t->cut)
        return tt_fail(
            TT_EUSAGE,
            "the line is longer than %d bytes, and the terminal has dropped the rest\n"
            "help: break it with \\ at the end of a line, or give the turns as a file: titan generate ... <FILE",
            TYPED_MOST - 1);
out:
    return rc;
}
