/* SPDX-License-Identifier: MIT
 *
 * A small machine over the bytes of the output. Outside of blocks it holds nothing back but what may become a remark.
 */
#include "cli/run/remarks.h"

#include <stdbool.h>
#include <string.h>

enum { LEAST_DASHES = 60, MOST_BYTES = 4096 }; /* mpirun draws 74; its remarks have some hundred bytes */

static const char forwarding[] = "mpirun: Forwarding signal ";

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
           strstr(held->text, "\nmpirun detected that one or more processes exited with non-zero status") ||
           strstr(held->text,
                  "\nprterun detected that one or more processes exited with non-zero status"); // Open MPI 5
}

static void release(struct tt_remarks *r, struct tt_text *out)
{
    if (r->held.size)
        tt_text_add_bytes(out, r->held.text, r->held.size);
    tt_text_release(&r->held);
}

/* Whether what is held, a line or the beginning of one, is mpirun's about a signal or the first of a block. */
static bool may_be_remark(const struct tt_text *held)
{
    size_t n = held->size < sizeof forwarding - 1 ? held->size : sizeof forwarding - 1;

    return strspn(held->text, "-") == held->size || memcmp(held->text, forwarding, n) == 0;
}

static void take_in_block(struct tt_remarks *r, char c, struct tt_text *out)
{
    bool ends = c == '\n' && ends_in_dashes(&r->held);

    if (!ends && r->held.size <= MOST_BYTES)
        return;
    if (ends && is_remark(&r->held))
        tt_text_release(&r->held);
    release(r, out);
    r->at = c == '\n' ? TT_REMARKS_LINE_START : TT_REMARKS_LINE;
}

static void take_at_line_start(struct tt_remarks *r, char c, struct tt_text *out)
{
    if (c == '\n' && ends_in_dashes(&r->held)) {
        r->at = TT_REMARKS_BLOCK;
    } else if (c == '\n') {
        if (strncmp(r->held.text, forwarding, sizeof forwarding - 1) == 0)
            tt_text_release(&r->held);
        release(r, out);
    } else if (!may_be_remark(&r->held) || r->held.size > MOST_BYTES) {
        release(r, out);
        r->at = TT_REMARKS_LINE;
    }
}

static void take(struct tt_remarks *r, char c, struct tt_text *out)
{
    if (r->at == TT_REMARKS_LINE) {
        tt_text_add_bytes(out, &c, 1);
        r->at = c == '\n' || c == '\r' ? TT_REMARKS_LINE_START : TT_REMARKS_LINE; /* a live line ends with a return */
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
