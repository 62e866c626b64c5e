/* SPDX-License-Identifier: MIT
 *
 * The table of checks, and how a check says what it has found.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor/doctor.h"
#include "core/base/mem.h"
#include "core/os/file.h"

#define TT_CHECK(name, scope, function) {name, TT_CHECK_##scope, tt_check_##function},
const struct tt_check tt_checks[] = {
#include "cli/doctor/checks.def"
};
const int tt_n_checks = sizeof tt_checks / sizeof *tt_checks;

static void add(struct tt_text *to, const char *separator, const char *fmt, va_list args)
{
    char *text = tt_vformat(fmt, args);

    tt_text_add(to, "%s%s", to->size ? separator : "", text);
    tt_free(text);
}

void tt_finding_add(struct tt_finding *f, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    add(&f->found, ", ", fmt, args);
    va_end(args);
}

void tt_finding_warn(struct tt_finding *f, const char *fmt, ...)
{
    va_list args;

    if (f->level < TT_DOCTOR_WARNING)
        f->level = TT_DOCTOR_WARNING;
    va_start(args, fmt);
    add(&f->help, "; ", fmt, args);
    va_end(args);
}

void tt_finding_fail(struct tt_finding *f, int rc)
{
    static const char mark[] = "\nhelp: ";
    const char *message = tt_error_message(), *help = strstr(message, mark);
    int n = help ? (int)(help - message) : (int)strlen(message);

    f->level = TT_DOCTOR_ERROR;
    f->rc = rc;
    tt_finding_add(f, "%.*s", n, message);
    if (help)
        tt_text_add(&f->help, "%s%s", f->help.size ? "; " : "", help + strlen(mark));
}

void tt_finding_release(struct tt_finding *f)
{
    tt_text_release(&f->found);
    tt_text_release(&f->help);
    *f = (struct tt_finding){0};
}

char *tt_doctor_read(const struct tt_doctor *doctor, const char *path)
{
    char *full = tt_format("%s%s", doctor->root, path), *text = NULL;
    size_t size = 0;

    if (tt_file_read(full, &text, &size) < 0)
        text = NULL;
    else if (size && text[size - 1] == '\n')
        text[size - 1] = 0;
    tt_free(full);
    return text;
}
