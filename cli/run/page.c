/* SPDX-License-Identifier: MIT
 *
 * Pages of HTML, each a file that needs no network.
 */
#include "cli/run/page.h"

#include <string.h>

const char *tt_page_up_to(struct tt_text *out, const char *text, const char *mark)
{
    const char *at = strstr(text, mark);
    size_t size = at ? (size_t)(at - text) : strlen(text);

    tt_text_add_bytes(out, text, size);
    return at ? at + strlen(mark) : text + size;
}

void tt_page_begin(struct tt_text *out, const char *title)
{
    const char *rest = tt_page_up_to(out, tt_page_head_text, "@TITLE@");

    tt_text_add_xml(out, title);
    tt_text_add(out, "%s", rest);
}
