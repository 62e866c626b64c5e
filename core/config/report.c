/* SPDX-License-Identifier: MIT
 *
 * Collects errors, so that all mistakes of a configuration are reported at once.
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
    for (char *c = message; *c; c++) {
        if (((unsigned char)*c < 0x20 && *c != '\n') || *c == 0x7f)
            *c = '?'; /* an escape sequence quoted from a file must not reach the terminal */
    }
    report->n++;
    if (report->text.size + strlen(where) + strlen(message) > REPORT_BYTES) {
        report->n_hidden++;
        return;
    }
    tt_text_add(&report->text, "%s%s: %s", report->text.size ? "\n" : "", where, message);
}

void tt_config_report_key(struct tt_config_report *report, const char *where, const char *path, const char *message)
{
    if (strncmp(where, "flag --", 7) == 0 && strcmp(where + 7, path) == 0) {
        tt_config_report_add(report, where, "%s", message);
    } else {
        tt_config_report_add(report, where, "%s: %s", path, message);
    }
}

void tt_config_report_value(struct tt_config_report *report, const struct tt_config *cfg,
                            const struct tt_config_row *row, const char *message)
{
    struct tt_text place = {0};

    tt_config_place(cfg, row, &place);
    tt_config_report_add(report, place.text, "%s", message);
    tt_text_release(&place);
}

/* If there are several errors, each help line is indented below its error. */
static void add_indented(struct tt_text *out, const char *text)
{
    const char *help;

    while ((help = strstr(text, "\nhelp: "))) {
        tt_text_add_bytes(out, text, (size_t)(help - text));
        tt_text_add(out, "\n  help: ");
        text = help + strlen("\nhelp: ");
    }
    tt_text_add(out, "%s", text);
}

int tt_config_report_finish(struct tt_config_report *report)
{
    int rc = 0;
    char *line = report->notes.text, *end;

    if (report->n == 1) {
        rc = tt_fail(TT_EUSAGE, "%s", report->text.text);
    } else if (report->n > 1) {
        struct tt_text all = {0};

        add_indented(&all, report->text.text);
        if (report->n_hidden)
            tt_text_add(&all, "\nand %d more", report->n_hidden);
        rc = tt_fail(TT_EUSAGE, "%d errors in the %s\n%s", report->n,
                     report->subject ? report->subject : "configuration", all.text);
        tt_text_release(&all);
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
