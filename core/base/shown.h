/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_SHOWN_H
#define TT_BASE_SHOWN_H

#include <stddef.h>

#include "core/base/text.h"

/**
 * How text that others have written (names in files, values, paths) is shown: it must not steer the terminal on which
 * it is printed, and an XML file has no control characters at all. Messages (core/base/error.h, log.h) and screens
 * (tt_print in cli/run/screen.h) show all their text this way, so callers need not think of it.
 *
 * Control characters (but not ends of lines), characters that change the direction of text, and bytes that are not
 * UTF-8 become \u001b, \u202e or \xff; the rest stays as it is. Shown text stays the same when it is shown again, and
 * JSON stays the same JSON.
 */

/** Writes text into out, cut at a whole character if it does not fit, with a final 0. */
void tt_shown(char *out, size_t out_size, const char *text, size_t size);

void tt_text_add_shown(struct tt_text *t, const char *text, size_t size);

/** The same for the content of an element or an attribute of XML or HTML. */
void tt_text_add_xml(struct tt_text *t, const char *text);

#endif
