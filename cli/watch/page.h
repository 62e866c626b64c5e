/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_WATCH_PAGE_H
#define TT_CLI_WATCH_PAGE_H

#include <stddef.h>

/** page.html, with @TITLE@ where the title belongs, and @DATA@ where the JSON does that its script draws. */
extern const char tt_chart_page_text[];
extern const size_t tt_chart_page_text_size;

#endif
