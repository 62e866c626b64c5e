/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_PAGE_H
#define TT_CLI_RUN_PAGE_H

#include "core/base/text.h"

/* The beginning of every page, up to the colors and styles that all pages share: page_head.html. */
extern const char tt_page_head_text[];
extern const size_t tt_page_head_text_size;

/** Begins a page, whose title is plain text. The caller adds its own styles next, then "</style>" and the rest. */
void tt_page_begin(struct tt_text *out, const char *title);

/** Appends a template up to a mark, and returns the text after the mark; without the mark, the whole text and "". */
const char *tt_page_up_to(struct tt_text *out, const char *text, const char *mark);

#endif
