/* SPDX-License-Identifier: MIT
 *
 * Tables of comma-separated values.
 */
#include "cluster/backtest/csv.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"

struct fields {
    char **item;
    int n, cap;
};

/* Takes one field from *at into *out, and moves both; the character that ended it is returned, 0 at the end. */
static char take(const char **at, const char *end, char **out, int *line)
{
    bool quoted = *at < end && **at == '"';

    if (quoted)
        (*at)++;
    while (*at < end) {
        char c = *(*at)++;

        if (quoted && c == '"') {
            if (*at < end && **at == '"')
                (*at)++;
            else {
                quoted = false;
                continue;
            }
        } else if (!quoted && (c == ',' || c == '\n')) {
            *(*out)++ = 0;
            *line += c == '\n';
            return c;
        } else if (!quoted && c == '\r')
            continue;
        *line += c == '\n';
        *(*out)++ = c;
    }
    *(*out)++ = 0;
    return 0;
}

int tt_csv_parse(const char *text, size_t size, const char *where, struct tt_csv *csv)
{
    struct fields fields = {0};
    const char *at = text, *end = text + size;
    int line = 1, columns = 0, in_row = 0;
    char *out;

    if (size >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0) /* a mark of UTF-8, as spreadsheets write it */
        at += 3;
    *csv = (struct tt_csv){.text = tt_calloc(size + 2, 1)};
    out = csv->text;
    while (at < end) {
        char *field = out, last = take(&at, end, &out, &line);

        TT_PUSH(fields.item, fields.n, fields.cap) = field;
        in_row++;
        if (last == ',')
            continue;
        if (in_row == 1 && !*field) { /* an empty line */
            fields.n--;
            in_row = 0;
            continue;
        }
        columns = columns ? columns : in_row;
        if (in_row != columns) {
            tt_free(fields.item);
            tt_csv_release(csv);
            return tt_fail(TT_EDATA, "%s: the row that ends before line %d has %d fields, the first row has %d", where,
                           line, in_row, columns);
        }
        in_row = 0;
    }
    if (columns == 0) {
        tt_free(fields.item);
        tt_csv_release(csv);
        return tt_fail(TT_EDATA, "%s: no row with the names of columns", where);
    }
    for (int i = 0; i < columns; i++)
        for (int k = 0; k < i; k++)
            if (*fields.item[i] && strcmp(fields.item[i], fields.item[k]) == 0) {
                int rc = tt_fail(TT_EDATA, "%s: columns %d and %d are both named '%.60s'", where, k + 1, i + 1,
                                 fields.item[i]);

                tt_free(fields.item);
                tt_csv_release(csv);
                return rc;
            }
    csv->name = fields.item;
    csv->field = fields.item + columns;
    csv->n_columns = columns;
    csv->n_rows = fields.n / columns - 1;
    return 0;
}

void tt_csv_release(struct tt_csv *csv)
{
    tt_free(csv->text);
    tt_free(csv->name);
    *csv = (struct tt_csv){0};
}

int tt_csv_column(const struct tt_csv *csv, const char *name)
{
    for (int i = 0; i < csv->n_columns; i++)
        if (strcmp(csv->name[i], name) == 0)
            return i;
    return -1;
}

const char *tt_csv_get(const struct tt_csv *csv, int row, const char *column)
{
    int i = tt_csv_column(csv, column);

    return i < 0 ? "" : csv->field[(size_t)row * (size_t)csv->n_columns + (size_t)i];
}

double tt_csv_number(const struct tt_csv *csv, int row, const char *column, double otherwise)
{
    const char *text = tt_csv_get(csv, row, column);
    char *end = NULL;
    double value = strtod(text, &end);

    return end == text ? otherwise : value;
}
