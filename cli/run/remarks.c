/* SPDX-License-Identifier: MIT
 *
 * A small machine over the bytes of the output. Outside of blocks it holds nothing back but dashes at the beginning of
 * a line.
 */
#include "cli/run/remarks.h"

#include <stdbool.h>
#include <string.h>

enum { LEAST_DASHES = 60, MOST_BYTES = 4096 }; /* mpirun draws 74; its remarks have some hundred bytes */

/* Whether the last line of what is held, which has just ended, is one of dashes. */
static bool ends_in_dashes(const struct tt_text *held)
{
    size_t n = 0, end = held->size - 1;

    while (n < end && held->text[end - 1 - n] == '-')
        n++;
    return n >= LEAST_DASHES && (n == end || held->text[end - 1 - n] == '\n');
}

static bool is_remark(const struct tt_text *held)
{
    return strstr(held->text, "\nPrimary job  terminated normally, but ") ||
           strstr(held->text, "\nmpirun detected that one or more processes exited with non-zero status");
}

static void release(struct tt_remarks *r, struct tt_text *out)
{
    if (r->held.size)
        tt_text_add_bytes(out, r->held.text, r->held.size);
    tt_text_release(&r->held);
}

static void take(struct tt_remarks *r, char c, struct tt_text *out)
{
    bool line_ends = c == '\n', begins = r->at == TT_REMARKS_LINE_START && c == '-';

    if (!begins && (r->at == TT_REMARKS_LINE_START || r->at == TT_REMARKS_LINE)) {
        tt_text_add_bytes(out, &c, 1);
        r->at = line_ends ? TT_REMARKS_LINE_START : TT_REMARKS_LINE;
        return;
    }
    tt_text_add_bytes(&r->held, &c, 1);
    if (begins)
        r->at = TT_REMARKS_DASHES;
    if (r->at == TT_REMARKS_DASHES && line_ends && ends_in_dashes(&r->held)) {
        r->at = TT_REMARKS_BLOCK;
    } else if (r->at == TT_REMARKS_BLOCK && line_ends && ends_in_dashes(&r->held)) {
        if (is_remark(&r->held))
            tt_text_release(&r->held);
        release(r, out);
        r->at = TT_REMARKS_LINE_START;
    } else if ((r->at == TT_REMARKS_DASHES && c != '-') || r->held.size > MOST_BYTES) {
        release(r, out);
        r->at = line_ends ? TT_REMARKS_LINE_START : TT_REMARKS_LINE;
    }
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
