/* SPDX-License-Identifier: MIT
 *
 * Tables that fit the terminal.
 */
#include "cli/run/columns.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/base/shown.h"

/* A cell of a column, or a text in place of the remaining columns (REST). */
struct tt_columns_cell {
    size_t at; /* in the text of all cells */
    int row, column, gap;
};

enum { REST = -1 };

/* --- building --- */

/* gap: of a REST */
static void add(struct tt_columns *t, int column, int gap, const char *text)
{
    TT_PUSH(t->cell, t->n_cells, t->cap) =
        (struct tt_columns_cell){.at = t->text.size, .row = t->rows, .column = column, .gap = gap};
    tt_text_add_shown(&t->text, text, strlen(text));
    tt_text_add_bytes(&t->text, "", 1);
}

static void end_row(struct tt_columns *t)
{
    t->rows++;
    t->next = 0;
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
        end_row(t);
}

void tt_columns_rest(struct tt_columns *t, int gap, const char *text)
{
    if (*text)
        add(t, REST, gap, text);
    end_row(t);
}

void tt_columns_space(struct tt_columns *t)
{
    end_row(t);
}

/* --- widths --- */

/* Characters of a text, each of which is taken for one column. */
static int width_of(const char *text, size_t size)
{
    int n = 0;

    for (size_t i = 0; i < size; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* How the columns are printed. */
struct fit {
    int columns; /* of the terminal; 0: a pipe or a file */
    int *width;  /* of each; -1: left out */
    int needed;  /* columns of a terminal that shows all */
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

/* The longest word of the cells of a column. */
static int longest_word(const struct tt_columns *t, int column)
{
    int longest = 0;

    for (int i = 0; i < t->n_cells; i++) {
        const char *at = t->text.text + t->cell[i].at;

        for (size_t size; *at && t->cell[i].column == column; at += size + (at[size] == ' ')) {
            size = strcspn(at, " ");
            longest = width_of(at, size) > longest ? width_of(at, size) : longest;
        }
    }
    return longest;
}

/* The width to which a column that folds is narrowed: words stay whole. */
static int folded(const struct tt_columns *t, int column)
{
    int word = longest_word(t, column);

    return word > t->column[column].fold ? word : t->column[column].fold;
}

/* The longest cell, or the title, of each column. */
static void find_natural(const struct tt_columns *t, int *natural)
{
    for (int c = 0; c < t->n; c++)
        natural[c] = t->no_titles ? 0 : width_of(t->column[c].title, strlen(t->column[c].title));
    for (int i = 0; i < t->n_cells; i++) {
        const struct tt_columns_cell *cell = &t->cell[i];
        const char *text = t->text.text + cell->at;
        int width = width_of(text, strlen(text));

        if (cell->column != REST && width > natural[cell->column])
            natural[cell->column] = width;
    }
}

/* The highest number of the columns that are still there and may be left out; 0: none may. */
static int next_drop(const struct tt_columns *t, const int *width)
{
    int most = 0;

    for (int c = 0; c < t->n; c++)
        if (width[c] >= 0 && t->column[c].drop > most)
            most = t->column[c].drop;
    return most;
}

/* Gives the space that is left to the columns that were narrowed more than they needed to be. */
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
    int drop;

    memcpy(fit->width, natural, (size_t)t->n * sizeof *natural);
    fit->needed = total(t, natural);
    if (fit->needed <= fit->columns)
        return;
    for (int c = 0; c < t->n; c++)
        if (t->column[c].fold && folded(t, c) < natural[c])
            fit->width[c] = folded(t, c);
    while (total(t, fit->width) > fit->columns && (drop = next_drop(t, fit->width)) > 0)
        for (int c = 0; c < t->n; c++)
            if (t->column[c].drop == drop)
                fit->width[c] = -1;
    widen(t, natural, fit);
}

static void find_fit(const struct tt_columns *t, int columns, struct fit *ret_fit)
{
    int *natural = tt_calloc((size_t)t->n, sizeof *natural);

    *ret_fit = (struct fit){.columns = columns, .width = tt_calloc((size_t)t->n, sizeof *natural)};
    find_natural(t, natural);
    for (int c = 0; c < t->n; c++) {
        bool grows = columns || (t->column[c].width == 0 && c < t->n - 1);

        ret_fit->width[c] = grows && natural[c] > t->column[c].width ? natural[c] : t->column[c].width;
    }
    if (columns && total(t, ret_fit->width) > columns)
        narrow(t, natural, ret_fit);
    tt_free(natural);
}

/* --- printing --- */

/* The bytes of a text that come on one line of `width` columns (0: no limit). */
static size_t piece_of(const char *text, int width)
{
    size_t line = strcspn(text, "\n"), n = 0, space = 0;

    if (width < 1 || width_of(text, line) <= width)
        return line;
    for (int at = 0; at <= width; at++) {
        space = text[n] == ' ' ? n : space;
        if (at == width)
            break;
        for (n++; ((unsigned char)text[n] & 0xC0) == 0x80;) /* within a character */
            n++;
    }
    return space ? space : n;
}

/* One line of the cells of a row, each of which goes on at rest[]; advances that. */
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
        if (!is_rest && !width && !*rest[i]) /* nothing, as marks at the end of a row often are */
            continue;
        gap = is_rest ? cell[i].gap : gap_of(t, fit->width, cell[i].column);
        if (is_rest)
            most = (fit->columns ? fit->columns : t->limit) - at - gap;
        else if (fit->columns && column->fold)
            most = width;
        piece = piece_of(rest[i], most);
        used = width_of(rest[i], piece);
        pad = width > used ? width - used : 0;
        /* spaces at the end are only printed where they always were: in a pipe */
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

/* Whether a text in place of columns has too little space beside the cells before it, and so comes below them. */
static bool comes_below(const struct tt_columns *t, const struct fit *fit, const struct tt_columns_cell *cell, int n)
{
    enum { LEAST = 24 };
    int at = LEAST;

    for (int i = 0; i < n - 1; i++)
        at += fit->width[cell[i].column] < 0 ? 0 : gap_of(t, fit->width, cell[i].column) + fit->width[cell[i].column];
    return fit->columns && n > 1 && cell[n - 1].column == REST && at + cell[n - 1].gap > fit->columns;
}

static void print_row(const struct tt_columns *t, const struct fit *fit, const struct tt_columns_cell *cell, int n)
{
    struct tt_columns_cell below;

    if (!comes_below(t, fit, cell, n)) {
        print_cells(t, fit, cell, n);
        return;
    }
    below = cell[n - 1];
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

static void print_titles(const struct tt_columns *t, const struct fit *fit)
{
    struct tt_columns titles = {.column = t->column, .n = t->n};

    for (int c = 0; c < t->n; c++)
        tt_columns_cell(&titles, "%s", t->column[c].title);
    print_row(&titles, fit, titles.cell, titles.n_cells);
    tt_columns_release(&titles);
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
    struct fit fit;
    int at = 0;

    find_fit(t, tt_screen_columns(STDOUT_FILENO), &fit);
    if (!t->no_titles)
        print_titles(t, &fit);
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
