/* SPDX-License-Identifier: MIT
 *
 * What the readers of Parquet and Arrow share: messages, the choice of columns, JSON.
 */
#include "core/data/table.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/data/chat.h"

int tt_table_fail(const struct tt_table *table, const uint8_t *at, const char *fmt, ...)
{
    va_list args;
    char *what;
    int rc;

    va_start(args, fmt);
    what = tt_vformat(fmt, args);
    va_end(args);
    rc = tt_fail(TT_EDATA,
                 "%s: byte %zu of %zu: %s\nhelp: the file is damaged or incomplete; download or write it again",
                 table->name, (size_t)(at - table->bytes), table->size, what);
    tt_free(what);
    return rc;
}

int tt_table_refuse(const struct tt_table *table, const char *column, const char *what)
{
    return tt_fail(TT_EDATA,
                   "%s: column '%s': titan does not read %s\nhelp: write the column with another type or "
                   "encoding, or convert the file to JSON lines; titan-data(1), PARQUET AND ARROW, says how",
                   table->name, column, what);
}

bool tt_table_wants(const struct tt_table *table, const char *name)
{
    return table->column ? strcmp(name, table->column) == 0 : tt_text_is_one_of(name, table->columns);
}

int tt_table_check(const struct tt_table *table, const struct tt_table_column *column, int n)
{
    const char *first = NULL, *found = NULL;
    struct tt_text names = {0};
    bool is_chat = false;
    int rc = 0, n_wanted = 0;

    for (int i = 0; i < n; i++) {
        if (names.size < 400)
            tt_text_add(&names, "%s%.100s", i ? ", " : "", column[i].name);
        is_chat = is_chat || tt_text_is_one_of(column[i].name, TT_CHAT_NAMES);
        first = !first && column[i].is_text ? column[i].name : first;
        n_wanted += tt_table_wants(table, column[i].name);
        if (table->column && tt_table_wants(table, column[i].name) && !column[i].is_text)
            found = column[i].type;
    }
    if (!table->column && !n_wanted)
        rc = tt_fail(TT_EDATA,
                     "%s: no column is a member of chat data (columns: %s)\nhelp: dataset 'jsonl_sft' reads "
                     "messages, or prompt and completion, or instruction and output",
                     table->name, names.size ? names.text : "none");
    else if (table->column && n_wanted > 1)
        rc = tt_fail(TT_EDATA, "%s: %d columns are called '%s'", table->name, n_wanted, table->column);
    else if (found)
        rc = tt_fail(TT_EDATA, "%s: column '%s' is %s, wanted text", table->name, table->column, found);
    else if (table->column && !n_wanted)
        rc = tt_fail(TT_EDATA, "%s: no column '%s' (columns: %s)", table->name, table->column,
                     names.size ? names.text : "none");
    if (rc < 0 && is_chat)
        rc = tt_error_add_hint(rc, "dataset 'jsonl_sft' reads chat data");
    else if (rc < 0 && first)
        rc = tt_error_add_hint(rc, "set %s=%.100s", TT_KEY_NAME(training.text_field), first);
    tt_text_release(&names);
    return rc;
}

int tt_table_reserve(const struct tt_table *table, const uint8_t *at, struct tt_table_buffer *buffer, uint64_t size)
{
    uint8_t *bytes;

    if (size > TT_TABLE_UNPACK_MOST)
        return tt_table_fail(table, at, "%llu bytes are to be unpacked at once, more than %d", (unsigned long long)size,
                             TT_TABLE_UNPACK_MOST);
    if (buffer->bytes && size <= buffer->cap)
        return 0;
    bytes = tt_try_realloc(buffer->bytes, (size_t)size + 1, 1); /* never NULL, which memcpy does not take */
    if (!bytes)
        return tt_fail(TT_ENOMEM, "%s: no memory to unpack %llu bytes", table->name, (unsigned long long)size);
    *buffer = (struct tt_table_buffer){bytes, (size_t)size};
    return 0;
}

void tt_table_add_string(struct tt_text *row, const char *text, size_t size)
{
    size_t done = 0;

    tt_text_add_bytes(row, "\"", 1);
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        tt_text_add_bytes(row, text + done, i - done);
        if (c < 0x20)
            tt_text_add(row, "\\u%04x", c);
        else
            tt_text_add(row, "\\%c", c);
        done = i + 1;
    }
    if (size > done)
        tt_text_add_bytes(row, text + done, size - done);
    tt_text_add_bytes(row, "\"", 1);
}

void tt_table_add_integer(struct tt_text *row, int64_t value)
{
    tt_text_add(row, "%lld", (long long)value);
}

void tt_table_add_real(struct tt_text *row, double value)
{
    char text[32];

    if (isfinite(value))
        tt_text_add(row, "%s", tt_text_real(text, sizeof text, value));
    else
        tt_text_add(row, "%s", isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}
