/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_HTML_H
#define TT_DATA_HTML_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/text.h"

/** Whether a file's name ends in .html, .htm or .xhtml. */
bool tt_html_is_name(const char *name);

/**
 * Appends the text that a reader of a page sees, as plain text: without tags, comments, and the contents of script,
 * style and the like; character references become characters. Blocks (div, li, tr, ...) begin on a new line, headings
 * and paragraphs after an empty one; other white space becomes one space, except in pre and textarea. Any text is
 * accepted: what is not a tag or a reference stays as it is. Nothing is added if there is no text.
 */
void tt_html_add_text(const char *html, size_t size, struct tt_text *out);

#endif
