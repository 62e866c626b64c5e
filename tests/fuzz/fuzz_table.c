/* SPDX-License-Identifier: MIT
 *
 * A table in Parquet's or Arrow's format, read as texts and as objects. Objects are JSON, if their text is UTF-8; and a
 * page of HTML, of which any text may be one.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/data/html.h"
#include "core/data/table.h"
#include "fuzz.h"

/* A run of equal values may stand for billions of rows. */
enum { ROWS_MOST = 1000 };

static int take(void *arg, const struct tt_row *row)
{
    const struct tt_table *table = arg;
    struct tt_json_problem problem;
    json_type kind;

    if (row->number > ROWS_MOST)
        return tt_fail(TT_EDATA, "enough");
    for (size_t i = 0; i < row->size && row->text; i += 64) { /* lets a sanitizer see that the text is there */
        if (row->text[i] == 1 && row->number < 0)
            abort();
    }
    if (table->columns && tt_utf8_invalid(row->text, row->size) < 0 &&
        !tt_json_fields(row->text, row->size, NULL, 0, &kind, &problem))
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tt_table table = {.name = "fuzz", .bytes = data, .size = size, .fn = take};
    bool is_parquet = size >= 4 && memcmp(data, "PAR1", 4) == 0;
    struct tt_text text = {0};

    table.arg = &table;
    for (int i = 0; i < 2; i++) {
        table.column = i ? NULL : "text";
        table.columns = i ? "messages|tools|prompt|completion|response|instruction|input|output" : NULL;
        (void)!(is_parquet ? tt_parquet_each(&table) : tt_arrow_each(&table));
    }
    tt_html_add_text((const char *)data, size, &text);
    tt_text_release(&text);
    return 0;
}
