/* SPDX-License-Identifier: MIT
 *
 * Output that fits the terminal.
 */
#include "cli/run/screen.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/base/shown.h"
#include "core/os/file.h"
#include "trainer/run/console.h"

/* --- streams --- */

static atomic_bool is_live; /* the live line is on the screen */

static ssize_t put(void *fd, const char *bytes, size_t size)
{
    int error;

    tt_streams_erase_live();
    error = tt_file_put((int)(intptr_t)fd, bytes, size);

    errno = error ? error : errno;
    return error ? 0 : (ssize_t)size;
}

/* NULL if there is no memory for it; the C library's own stream then stays. The buffer is given, since the C library
 * would allocate one when the stream is first written to, and drop the output if there is no memory then. */
static FILE *open_stream(intptr_t fd, int mode, char *buffer, size_t size)
{
    FILE *f = fopencookie((void *)fd, "w", (cookie_io_functions_t){.write = put}); // NOLINT(performance-no-int-to-ptr)

    if (f)
        (void)setvbuf(f, buffer, mode, size);
    return f;
}

void tt_streams_begin(void)
{
    static char buffer[BUFSIZ];
    FILE *out = open_stream(STDOUT_FILENO, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, buffer, sizeof buffer);
    FILE *err = open_stream(STDERR_FILENO, _IONBF, NULL, 0);

    stdout = out ? out : stdout;
    stderr = err ? err : stderr;
}

/* A line ends with a return, and so does its erasure: mpirun's remarks are looked for at the beginning of a line. */
static void put_live(const char *text)
{
    struct pollfd terminal = {.fd = STDERR_FILENO, .events = POLLOUT};
    char line[256];
    int n = snprintf(line, sizeof line, "\r%s\033[K\r", text);

    if (n < 0 || n >= (int)sizeof line || poll(&terminal, 1, 0) != 1 || !(terminal.revents & POLLOUT))
        return;
    atomic_store(&is_live, true);
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return;
    atomic_store(&is_live, true); /* a handler may have answered in between */
}

void tt_streams_erase_live(void)
{
    static const char erase[] = "\r\033[2K\r";

    if (atomic_exchange(&is_live, false))
        (void)tt_file_put(STDERR_FILENO, erase, sizeof erase - 1);
}

/* --- the terminal --- */

enum { LEAST_COLUMNS = 40 }; /* a narrower terminal breaks the lines itself */

static int usable(long columns)
{
    return columns < LEAST_COLUMNS || columns > 10000 ? 0 : (int)columns;
}

static int columns_of_terminal(int fd)
{
    struct winsize size = {0};

    return isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 ? usable(size.ws_col) : 0;
}

/* mpirun gives its ranks pipes and a pseudo terminal without a size, and passes on what they write. On other hosts than
 * its own the parent is a daemon without a terminal. */
static int columns_of_parent(int fd)
{
    char path[64];
    struct stat about;
    int columns = 0, theirs;

    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getppid(), fd);
    if (stat(path, &about) < 0 || !S_ISCHR(about.st_mode))
        return 0;
    theirs = open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (theirs >= 0) {
        columns = columns_of_terminal(theirs);
        (void)close(theirs);
    }
    return columns;
}

int tt_screen_columns(int fd)
{
    const char *told = getenv("TITAN_COLUMNS"); // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
    char *end = NULL;
    long columns = told ? strtol(told, &end, 10) : 0;

    if (told && fd == STDERR_FILENO && *end == ',')
        columns = strtol(end + 1, NULL, 10);
    if (told)
        return usable(columns);
    return getenv("OMPI_COMM_WORLD_SIZE") ? columns_of_parent(fd) // NOLINT(concurrency-mt-unsafe)
                                          : columns_of_terminal(fd);
}

/* A variable's number or, without one, the terminal's; *value when both are too small. */
static void take_size(const char *variable, int terminal, int least, int *value)
{
    const char *text = getenv(variable); // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
    long told = text ? strtol(text, NULL, 10) : 0;

    if (told >= least && told <= 10000)
        *value = (int)told;
    else if (terminal >= least)
        *value = terminal;
}

void tt_screen_size(int fd, int *columns, int *lines)
{
    enum { LEAST = 20, LEAST_LINES = 5 };
    struct winsize size = {0};

    if (isatty(fd) != 1 || ioctl(fd, TIOCGWINSZ, &size) < 0)
        size = (struct winsize){0};
    take_size("COLUMNS", size.ws_col, LEAST, columns);
    take_size("LINES", size.ws_row, LEAST_LINES, lines);
}

void tt_screen_pass_on(void)
{
    char columns[32];

    (void)snprintf(columns, sizeof columns, "%d,%d", tt_screen_columns(STDOUT_FILENO),
                   tt_screen_columns(STDERR_FILENO));
    (void)setenv("TITAN_COLUMNS", columns, 1); // NOLINT(concurrency-mt-unsafe): one thread
}

/* --- the live line --- */

static int live_columns; /* 0: there is none */

/* mpirun then makes a line of its own of every piece. */
static bool is_marked_by_mpirun(void)
{
    static const char *const settings[] = {"OMPI_MCA_orte_tag_output", "OMPI_MCA_orte_timestamp_output",
                                           "OMPI_MCA_orte_xml_output"};
    bool found = false;

    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        found = found || getenv(settings[i]); // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
    return found;
}

bool tt_screen_live_begin(void)
{
    const char *kind = getenv("TERM"); // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
    bool can = kind && strcmp(kind, "dumb") != 0 && !is_marked_by_mpirun();

    live_columns = can ? tt_screen_columns(STDERR_FILENO) : 0;
    return live_columns > 0;
}

void tt_screen_live(const char *text)
{
    struct winsize size = {0};
    int columns = live_columns;
    pid_t foreground = tcgetpgrp(STDERR_FILENO);
    char shown[160];

    if (!live_columns || (foreground >= 0 && foreground != getpgrp()))
        return;
    if (isatty(STDERR_FILENO) && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col) /* it may have changed */
        columns = size.ws_col;
    tt_shown(shown, (int)sizeof shown < columns ? sizeof shown : (size_t)columns, text, strlen(text));
    put_live(shown);
}

/* --- lines --- */

/* The number of bytes of line that fit into columns: all of them, or up to the last space that fits. */
static int fitting(const char *line, int length, int columns, int indent)
{
    int cut = 0;

    for (int at = 0; at < columns && cut < length; at++)
        for (cut++; cut < length && ((unsigned char)line[cut] & 0xC0) == 0x80;) /* within a character */
            cut++;
    if (cut == length)
        return length;
    while (cut > indent && line[cut] != ' ')
        cut--;
    return cut > indent ? cut : length; /* a single long word stays whole */
}

static void put_line(FILE *file, const char *line, int length, int columns, int indent)
{
    int n = fitting(line, length, columns, indent);

    (void)fprintf(file, "%.*s\n", n, line);
    for (line += n, length -= n; length > 0; line += n, length -= n) {
        line++; /* skip the space at the break */
        length--;
        n = fitting(line, length, columns - indent, 0);
        (void)fprintf(file, "%*s%.*s\n", indent, "", n, line);
    }
}

void tt_screen_show(FILE *file, const char *text, int columns, int indent)
{
    struct tt_text shown = {0};

    tt_text_add_shown(&shown, text, strlen(text));
    text = shown.text;
    for (const char *end; *text; text = end + (*end == '\n')) {
        end = text + strcspn(text, "\n");
        put_line(file, text, (int)(end - text), columns ? columns : (int)(end - text), indent);
    }
    tt_text_release(&shown);
}

void tt_screen_log(const char *text)
{
    struct tt_text shown = {0};

    tt_text_add_shown(&shown, text, strlen(text));
    tt_console_add(shown.text);
    tt_text_release(&shown);
}

void tt_screen_put(FILE *file, const char *text, int columns, int indent)
{
    tt_screen_log(text);
    tt_screen_show(file, text, columns, indent);
}

void tt_print(const char *format, ...)
{
    struct tt_text shown = {0};
    char *text;
    va_list args;

    va_start(args, format);
    text = tt_vformat(format, args);
    va_end(args);
    tt_text_add_shown(&shown, text, strlen(text));
    (void)fwrite(shown.text, 1, shown.size, stdout);
    tt_text_release(&shown);
    tt_free(text);
}

static void put_broken(FILE *file, int fd, int indent, const char *format, va_list args)
{
    char *text = tt_vformat(format, args);

    tt_screen_put(file, text, tt_screen_columns(fd), indent);
    tt_free(text);
}

void tt_print_broken(int indent, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    put_broken(stdout, STDOUT_FILENO, indent, format, args);
    va_end(args);
}

void tt_screen_say(const char *format, ...)
{
    enum { INDENT = 2 };
    va_list args;

    va_start(args, format);
    put_broken(stderr, STDERR_FILENO, INDENT, format, args);
    va_end(args);
}
