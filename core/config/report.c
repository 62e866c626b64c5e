/* SPDX-License-Identifier: MIT
 *
 * Gathers errors, so that a configuration with five mistakes is corrected in one go.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/config/internal.h"

enum { REPORT_BYTES = 14000 }; /* tt_fail's message holds 16 KiB */

void tt_config_report_add(struct tt_config_report *report, const char *where, const char *fmt, ...)
{
    char message[2048];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    report->n++;
    if (report->text.size + strlen(where) + strlen(message) > REPORT_BYTES) {
        report->n_hidden++;
        return;
    }
    tt_text_add(&report->text, "%s%s: %s", report->text.size ? "\n" : "", where, message);
}

int tt_config_report_finish(struct tt_config_report *report)
{
    int rc = 0;
    char *line = report->notes.text, *end;

    if (report->n == 1) {
        rc = tt_fail(TT_EUSAGE, "%s", report->text.text);
    } else if (report->n > 1) {
        if (report->n_hidden)
            tt_text_add(&report->text, "\nand %d more", report->n_hidden);
        rc = tt_fail(TT_EUSAGE, "%d errors in the configuration\n%s", report->n, report->text.text);
    } else {
        for (; line && *line; line = end + 1) {
            end = strchr(line, '\n');
            *end = 0;
            tt_note("%s", line);
        }
    }
    tt_text_release(&report->text);
    tt_text_release(&report->notes);
    return rc;
}
