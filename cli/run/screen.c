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
#include "core/base/text.h"
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

/* NULL if memory is exhausted; the caller then keeps using the C library's own stream. The buffer is static, since the
 * C library would otherwise allocate one at the first write, and drop the output if there is no memory then. */
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

/* The live line ends with a carriage return, and so does its erasure, because mpirun's remarks are recognized at the
 * beginning of a line. */
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
    atomic_store(&is_live, true); /* a handler may have printed an answer in between */
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

/* mpirun gives its ranks pipes, and a pseudo terminal without a size, and passes on their output. On other hosts, the
 * parent is a daemon without a terminal. */
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

/* --- the live line --- */

static int live_columns; /* 0: there is none */

bool tt_screen_live_begin(void)
{
    /* with these settings mpirun turns every piece of output into a line */
    static const char *const settings[] = {"OMPI_MCA_orte_tag_output", "OMPI_MCA_orte_timestamp_output",
                                           "OMPI_MCA_orte_xml_output"};
    const char *kind = getenv("TERM"); // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
    bool can = kind && strcmp(kind, "dumb") != 0;

    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        can = can && !getenv(settings[i]); // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
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
    /* the size may have changed */
    if (isatty(STDERR_FILENO) && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
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
        for (cut++; cut < length && ((unsigned char)line[cut] & 0xC0) == 0x80;) /* do not cut within a character */
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
        line++; /* skip the space at which the line is broken */
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

/* --- tables --- */

/* A cell of a column, or (REST) a text in place of the remaining columns. */
struct tt_columns_cell {
    size_t at; /* offset in the shared text of all cells */
    int row, column, gap;
};

enum { REST = -1 };

/* --- building --- */

/* gap: spaces before a REST */
static void add(struct tt_columns *t, int column, int gap, const char *text)
{
    TT_PUSH(t->cell, t->n_cells, t->cap) =
        (struct tt_columns_cell){.at = t->text.size, .row = t->rows, .column = column, .gap = gap};
    tt_text_add_shown(&t->text, text, strlen(text));
    tt_text_add_bytes(&t->text, "", 1);
}

void tt_columns_cell(struct tt_columns *t, const char *format, ...)
{
    char *text;
    va_list args;

    va_start(args, format);
    text = tt_vformat(format, args);
    va_end(args);
    add(t, t->next, 0, text);
    tt_free(text);
    if (++t->next == t->n)
        tt_columns_rest(t, 0, "");
}

void tt_columns_rest(struct tt_columns *t, int gap, const char *text)
{
    if (*text)
        add(t, REST, gap, text);
    t->rows++;
    t->next = 0;
}

/* --- widths --- */

/* The number of characters of a text, each of which counts as one column. */
static int width_of(const char *text, size_t size)
{
    int n = 0;

    for (size_t i = 0; i < size; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* How the columns are printed. */
struct fit {
    int columns; /* columns of the terminal; 0: a pipe or a file */
    int *width;  /* [n] width of each column; -1: left out */
    int needed;  /* how many columns a terminal needs to show everything */
};

/* The spaces before a column; the first one that is shown begins where the table does. */
static int gap_of(const struct tt_columns *t, const int *width, int column)
{
    int first = 0;

    while (width[first] < 0 && first < t->n - 1)
        first++;
    return t->column[column == first ? 0 : column].gap;
}

static int total(const struct tt_columns *t, const int *width)
{
    int sum = 0;

    for (int c = 0; c < t->n; c++)
        sum += width[c] < 0 ? 0 : gap_of(t, width, c) + width[c];
    return sum;
}

/* The width to which a folding column is narrowed; words are not split. */
static int folded(const struct tt_columns *t, int column)
{
    int width = t->column[column].fold;

    for (int i = 0; i < t->n_cells; i++) {
        const char *at = t->text.text + t->cell[i].at;

        for (size_t size; *at && t->cell[i].column == column; at += size + (at[size] == ' ')) {
            size = strcspn(at, " ");
            width = width_of(at, size) > width ? width_of(at, size) : width;
        }
    }
    return width;
}

/* Distributes the remaining space to columns that were narrowed more than necessary. */
static void widen(const struct tt_columns *t, const int *natural, struct fit *fit)
{
    int left = fit->columns - total(t, fit->width);

    for (int c = t->n - 1; c >= 0 && left > 0; c--) {
        int more = fit->width[c] < 0 ? 0 : natural[c] - fit->width[c];

        more = more < left ? more : left;
        fit->width[c] += more;
        left -= more;
    }
}

static void narrow(const struct tt_columns *t, const int *natural, struct fit *fit)
{
    memcpy(fit->width, natural, (size_t)t->n * sizeof *natural);
    fit->needed = total(t, natural);
    if (fit->needed <= fit->columns)
        return;
    for (int c = 0; c < t->n; c++)
        if (t->column[c].fold && folded(t, c) < natural[c])
            fit->width[c] = folded(t, c);
    while (total(t, fit->width) > fit->columns) {
        int drop = 0; /* the highest `drop` among the remaining columns */

        for (int c = 0; c < t->n; c++)
            if (fit->width[c] >= 0 && t->column[c].drop > drop)
                drop = t->column[c].drop;
        if (drop == 0)
            break;
        for (int c = 0; c < t->n; c++)
            if (t->column[c].drop == drop)
                fit->width[c] = -1;
    }
    widen(t, natural, fit);
}

static void find_fit(const struct tt_columns *t, int columns, struct fit *ret_fit)
{
    int *natural = tt_calloc((size_t)t->n, sizeof *natural);

    *ret_fit = (struct fit){.columns = columns, .width = tt_calloc((size_t)t->n, sizeof *natural)};
    for (int c = 0; c < t->n; c++) /* the title, or the longest cell */
        natural[c] = t->no_titles ? 0 : width_of(t->column[c].title, strlen(t->column[c].title));
    for (int i = 0; i < t->n_cells; i++) {
        const char *text = t->text.text + t->cell[i].at;
        int width = width_of(text, strlen(text)), column = t->cell[i].column;

        if (column != REST && width > natural[column])
            natural[column] = width;
    }
    for (int c = 0; c < t->n; c++) {
        bool grows = columns || (t->column[c].width == 0 && c < t->n - 1);

        ret_fit->width[c] = grows && natural[c] > t->column[c].width ? natural[c] : t->column[c].width;
    }
    if (columns && total(t, ret_fit->width) > columns)
        narrow(t, natural, ret_fit);
    tt_free(natural);
}

/* --- printing --- */

/* The bytes of a text that fit on one line of `width` columns (0: no limit). */
static size_t piece_of(const char *text, int width)
{
    size_t line = strcspn(text, "\n"), n = 0, space = 0;

    if (width < 1 || width_of(text, line) <= width)
        return line;
    for (int at = 0; at <= width; at++) {
        space = text[n] == ' ' ? n : space;
        if (at == width)
            break;
        for (n++; ((unsigned char)text[n] & 0xC0) == 0x80;) /* do not cut within a character */
            n++;
    }
    return space ? space : n;
}

/* Adds one line of the cells of a row. Each cell continues at rest[], which is advanced. */
static void add_line(const struct tt_columns *t, const struct fit *fit, const struct tt_columns_cell *cell, int n,
                     const char **rest, struct tt_text *out)
{
    int at = 0; /* the column where the next cell begins */

    for (int i = 0; i < n; i++) {
        bool is_rest = cell[i].column == REST;
        const struct tt_column *column = is_rest ? NULL : &t->column[cell[i].column];
        int width = is_rest ? 0 : fit->width[cell[i].column], most = 0, used, pad, gap;
        size_t piece;

        if (width < 0)
            continue;
        if (!is_rest && !width && !*rest[i]) /* an empty cell, such as a mark at the end of a row */
            continue;
        gap = is_rest ? cell[i].gap : gap_of(t, fit->width, cell[i].column);
        if (is_rest)
            most = (fit->columns ? fit->columns : t->limit) - at - gap;
        else if (fit->columns && column->fold)
            most = width;
        piece = piece_of(rest[i], most);
        used = width_of(rest[i], piece);
        pad = width > used ? width - used : 0;
        /* spaces at the end of a line are printed only in a pipe, whose format must not change */
        tt_text_add(out, "%*s%*s%.*s%*s", gap, "", !is_rest && column->right ? pad : 0, "", (int)piece, rest[i],
                    is_rest || column->right ? 0 : pad, "");
        at += gap + used + pad;
        rest[i] += piece + strspn(rest[i] + piece, " \n");
    }
}

static void print_cells(const struct tt_columns *t, const struct fit *fit, const struct tt_columns_cell *cell, int n)
{
    const char **rest = tt_calloc((size_t)n + 1, sizeof *rest);
    bool more = true;

    for (int i = 0; i < n; i++)
        rest[i] = t->text.text + cell[i].at;
    for (bool first = true; more; first = false) {
        struct tt_text line = {0};

        more = false;
        add_line(t, fit, cell, n, rest, &line);
        while (line.size && (fit->columns || !first) && line.text[line.size - 1] == ' ')
            line.text[--line.size] = 0;
        tt_print("%s\n", line.text ? line.text : "");
        tt_text_release(&line);
        for (int i = 0; i < n; i++)
            more = more || (*rest[i] && (cell[i].column == REST || fit->width[cell[i].column] >= 0));
    }
    tt_free(rest);
}

static void print_row(const struct tt_columns *t, const struct fit *fit, const struct tt_columns_cell *cell, int n)
{
    enum { LEAST = 24 };
    struct tt_columns_cell below;
    int at = LEAST;

    for (int i = 0; i < n - 1; i++)
        at += fit->width[cell[i].column] < 0 ? 0 : gap_of(t, fit->width, cell[i].column) + fit->width[cell[i].column];
    if (!fit->columns || n < 2 || cell[n - 1].column != REST || at + cell[n - 1].gap <= fit->columns) {
        print_cells(t, fit, cell, n);
        return;
    }
    below = cell[n - 1]; /* a text in place of columns, if there is too little space beside the cells before it */
    below.gap = 4;
    print_cells(t, fit, cell, n - 1);
    print_cells(t, fit, &below, 1);
}

/* "left out: optim, grads (...)" */
static void print_missing(const struct tt_columns *t, const struct fit *fit)
{
    struct tt_text text = {0};
    bool any = false;

    for (int c = 0; c < t->n; c++) {
        if (fit->width[c] >= 0)
            continue;
        any = true;
        if (t->column[c].title[0])
            tt_text_add(&text, "%s%s", text.size ? ", " : "left out: ", t->column[c].title);
    }
    if (any) {
        tt_text_add(&text, "%s (a terminal of %d columns shows all, or a pipe: | cat)\n",
                    text.size ? "" : "some columns are left out", fit->needed);
        tt_screen_put(stdout, text.text, fit->columns, 2);
    }
    tt_text_release(&text);
}

void tt_columns_release(struct tt_columns *t)
{
    tt_free(t->cell);
    tt_text_release(&t->text);
    t->cell = NULL;
    t->n_cells = t->cap = t->rows = t->next = 0;
}

void tt_columns_print(struct tt_columns *t)
{
    struct tt_columns titles = {.column = t->column, .n = t->n};
    struct fit fit;
    int at = 0;

    find_fit(t, tt_screen_columns(STDOUT_FILENO), &fit);
    for (int c = 0; c < t->n && !t->no_titles; c++)
        tt_columns_cell(&titles, "%s", t->column[c].title);
    if (!t->no_titles)
        print_row(&titles, &fit, titles.cell, titles.n_cells);
    tt_columns_release(&titles);
    for (int row = 0; row < t->rows; row++) {
        int first = at;

        while (at < t->n_cells && t->cell[at].row == row)
            at++;
        print_row(t, &fit, t->cell + first, at - first);
    }
    print_missing(t, &fit);
    tt_free(fit.width);
    tt_columns_release(t);
}
