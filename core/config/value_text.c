/* SPDX-License-Identifier: MIT
 *
 * One value of one key as text that reads back to the same value, and what the key accepts, in words.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/internal.h"

enum { MANY_CHOICES = 9 }; /* a text without blanks must fit on a line */

const char *tt_config_choice_word(const struct tt_choices *choices, int value)
{
    for (int i = 0; i < choices->n; i++) {
        if (!choices->choice[i].is_alias && choices->choice[i].value == value)
            return choices->choice[i].word;
    }
    return "";
}

/* 80GiB when that is exact, otherwise plain bytes. */
static void bytes_text(int64_t bytes, struct tt_text *out)
{
    static const char *const unit[] = {"", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;

    while (u < 4 && bytes && bytes % 1024 == 0) {
        bytes /= 1024;
        u++;
    }
    tt_text_add(out, "%" PRId64 "%s", bytes, unit[u]);
}

static void int_text(const struct tt_config_row *row, int64_t value, struct tt_text *out)
{
    if (value == TT_NULL_INT) {
        tt_text_add(out, "null");
    } else if (value == 0 && row->zero_word) {
        tt_text_add(out, "%s", row->zero_word);
    } else if (row->flags & TT_FLAG_BYTES) {
        bytes_text(value, out);
    } else {
        tt_text_add(out, "%" PRId64, value);
    }
}

void tt_config_choices_text(const struct tt_config_row *row, const char *between, struct tt_text *out)
{
    const char *separator = "", *built = tt_config_built_values(row, NULL);

    for (int i = 0; i < row->choices->n; i++) {
        const struct tt_choice *choice = &row->choices->choice[i];

        if (choice->is_alias || (built && !tt_config_is_among(choice->word, built)))
            continue;
        tt_text_add(out, "%s%s", separator, choice->word);
        separator = between;
    }
}

static void int_range_text(const struct tt_config_row *row, struct tt_text *out)
{
    const char *needs = NULL, *built = tt_config_built_values(row, &needs);

    if (built) {
        tt_text_add(out, "%s; %s is not built yet", built, needs);
        return;
    }
    if (row->zero_word)
        tt_text_add(out, "%s, or ", row->zero_word);
    if (row->flags & TT_FLAG_NOT_ZERO) {
        tt_text_add(out, "-1, or at least 1");
    } else if (row->high == TT_NO_LIMIT) {
        tt_text_add(out, "at least %" PRId64, row->low);
    } else {
        tt_text_add(out, "%" PRId64 " to %" PRId64, row->low, row->high);
    }
}

void tt_config_range_text(const struct tt_config_row *row, struct tt_text *out)
{
    switch (row->kind) {
    case TT_KIND_BOOL:
    case TT_KIND_MAYBE:
        tt_text_add(out, "true|false");
        break;
    case TT_KIND_INT:
        int_range_text(row, out);
        break;
    case TT_KIND_REAL:
        if (row->flags & TT_FLAG_PERCENT)
            tt_text_add(out, "%.9g%% to %.9g%%", 100.0 * row->low_real, 100.0 * row->high_real);
        else
            tt_text_add(out, "%.9g to %.9g", row->low_real, row->high_real);
        break;
    case TT_KIND_TEXT:
        tt_text_add(out, "text");
        break;
    case TT_KIND_ENUM:
    case TT_KIND_WORD:
        tt_config_choices_text(row, row->choices->n > MANY_CHOICES ? " | " : "|", out);
        break;
    case TT_KIND_WORDS:
        tt_text_add(out, row->flags & TT_FLAG_LIST ? "list of " : "");
        if ((row->flags & TT_FLAG_LIST) && (row->flags & TT_FLAG_PATTERNS)) {
            tt_text_add(out, row->flags & TT_FLAG_RULES ? "regex=what" : "regex");
            break;
        }
        tt_config_choices_text(row, "|", out);
        tt_text_add(out, "%s%s%s", row->flags & TT_FLAG_INTEGER ? "|integer" : "",
                    row->flags & TT_FLAG_SIZED ? "|size:<bytes>" : "",
                    row->flags & TT_FLAG_PATTERNS ? "|[regex, ...]" : "");
        break;
    case TT_KIND_DATASETS:
        tt_config_choices_text(row, "|", out);
        tt_text_add(out, "|[{");
        for (int i = 0; i < tt_config_n_entry_rows; i++)
            tt_text_add(out, "%s%s", i ? ", " : "", tt_config_entry_rows[i].key);
        tt_text_add(out, "}, ...]");
        break;
    }
    if (row->flags & (TT_FLAG_NULLABLE | TT_FLAG_NULL_DEFAULT))
        tt_text_add(out, ", or null");
}

void tt_config_value_text(const struct tt_config *cfg, const struct tt_config_row *row, struct tt_text *out)
{
    tt_config_member_text(row, tt_config_member(cfg, row), out);
}

void tt_config_member_text(const struct tt_config_row *row, const void *member, struct tt_text *out)
{
    const struct tt_words *words = member;
    char real[32];
    int value = 0;

    switch (row->kind) {
    case TT_KIND_BOOL:
        tt_text_add(out, *(const bool *)member ? "true" : "false");
        break;
    case TT_KIND_MAYBE:
        value = *(const int *)member;
        tt_text_add(out, value == TT_NULL_BOOL ? "null" : value ? "true" : "false");
        break;
    case TT_KIND_INT:
        int_text(row, *(const int64_t *)member, out);
        break;
    case TT_KIND_REAL:
        if (isnan(*(const double *)member)) {
            tt_text_add(out, "null");
        } else {
            tt_text_add(out, "%s", tt_text_real(real, sizeof real, *(const double *)member));
        }
        break;
    case TT_KIND_TEXT:
    case TT_KIND_WORD:
        tt_text_add(out, "%s", *(char *const *)member ? *(char *const *)member : "null");
        break;
    case TT_KIND_ENUM:
        memcpy(&value, member, sizeof value);
        tt_text_add(out, "%s", tt_config_choice_word(row->choices, value));
        break;
    case TT_KIND_WORDS:
        tt_text_add(out, words->is_list ? "[" : "");
        for (int i = 0; i < words->n; i++)
            tt_text_add(out, words->is_list ? "%s\"%s\"" : "%s%s", i ? "," : "", words->word[i]);
        tt_text_add(out, words->is_list ? "]" : "");
        break;
    case TT_KIND_DATASETS:
        tt_config_datasets_text(member, out);
        break;
    }
}
