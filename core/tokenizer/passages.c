/* SPDX-License-Identifier: MIT
 *
 * Marked passages of a text.
 */
#include "core/tokenizer/passages.h"

#include "core/base/mem.h"

void tt_passages_add(struct tt_passages *passages, size_t begin, size_t end)
{
    if (begin < end)
        TT_PUSH(passages->item, passages->n, passages->cap) = (struct tt_passage){begin, end};
}

void tt_passages_release(struct tt_passages *passages)
{
    tt_free(passages->item);
    *passages = (struct tt_passages){0};
}

void tt_passages_cut(const struct tt_passages *passages, size_t at, size_t size, struct tt_passages *ret_passages)
{
    for (size_t i = 0; passages && i < passages->n; i++) {
        size_t begin = passages->item[i].begin < at ? at : passages->item[i].begin;
        size_t end = passages->item[i].end > at + size ? at + size : passages->item[i].end;

        if (begin < end)
            tt_passages_add(ret_passages, begin - at, end - at);
    }
}

bool tt_passages_touch(const struct tt_passages *passages, size_t begin, size_t end)
{
    end = end > begin ? end : begin + 1;
    for (size_t i = 0; i < passages->n; i++)
        if (passages->item[i].begin < end && begin < passages->item[i].end)
            return true;
    return false;
}
