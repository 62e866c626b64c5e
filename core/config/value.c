/* SPDX-License-Identifier: MIT
 *
 * One value of one key: from a YAML node (flags are made into nodes first) into the member of struct tt_config. The
 * key's row determines the type, never the form of the text. Also converts values back to text.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/config/internal.h"

/* ---- the found value, in words ---- */

static void describe(const struct tt_yaml *node, struct tt_text *out)
{
    size_t n;

    if (node->kind != TT_YAML_SCALAR) {
        tt_text_add(out, node->kind == TT_YAML_LIST ? "a list" : "a mapping");
        return;
    }
    n = strlen(node->text);
    if (n == 0) {
        tt_text_add(out, node->is_quoted ? "an empty text" : "nothing");
        return;
    }
    if (n > 60) {
        for (n = 57; n && ((unsigned char)node->text[n] & 0xc0) == 0x80; n--)
            ;
        tt_text_add(out, "'%.*s...'", (int)n, node->text);
        return;
    }
    tt_text_add(out, node->is_quoted ? "the text \"%s\"" : "'%s'", node->text);
}

static bool expected(struct tt_text *why, const char *what, const struct tt_yaml *node)
{
    tt_text_add(why, "expected %s, found ", what);
    describe(node, why);
    return false;
}

/* ---- text to numbers ---- */

static const char time_units[] = "dhms";
static const int64_t unit_seconds[] = {86400, 3600, 60, 1};

/* Copies text without the '_' between digits. False if it does not fit or contains a character that is not allowed. */
static bool number_chars(const char *text, const char *allowed, char *buf, size_t buf_size)
{
    size_t n = 0;

    for (const char *c = text; *c; c++) {
        if (*c == '_' && c > text && isdigit((unsigned char)c[-1]) && isdigit((unsigned char)c[1]))
            continue;
        if (!strchr(allowed, *c) || n + 1 >= buf_size)
            return false;
        buf[n++] = *c;
    }
    buf[n] = 0;
    return n > 0;
}

static bool to_real(const char *text, double *ret_value)
{
    char buf[64], *end;

    if (!number_chars(text, "0123456789+-.eE", buf, sizeof buf))
        return false;
    *ret_value = strtod(buf, &end);
    return *end == 0 && end != buf;
}

/* A whole number, which may be written as 1e6. A number beyond int64_t saturates; the saturated value is outside every
 * key's range. */
static bool to_int(const char *text, int64_t *ret_value)
{
    char buf[64], *end;
    double real;

    if (!number_chars(text, "0123456789+-.eE", buf, sizeof buf))
        return false;
    errno = 0;
    *ret_value = strtoll(buf, &end, 10);
    if (*end == 0 && end != buf)
        return true;
    if (!to_real(buf, &real) || real != floor(real))
        return false;
    *ret_value = real >= 9.2e18 ? INT64_MAX : real <= -9.2e18 ? INT64_MIN + 1 : (int64_t)real;
    return true;
}

/* A number with a unit. Without a unit, it must be a whole number. */
static bool to_bytes(const char *text, int64_t *ret_value)
{
    return strpbrk(text, "kKmMgGtTpPbB") && tt_text_to_bytes(text, ret_value);
}

/* A time such as 2h30m: numbers with units, the largest unit first. */
static bool to_seconds(const char *text, int64_t *ret_value)
{
    const char *unit = time_units;
    int64_t sum = 0;

    if (!*text)
        return false;
    while (*text) {
        size_t digits = strspn(text, "0123456789");
        int64_t number = digits && digits < 10 ? strtoll(text, NULL, 10) : -1;

        unit = text[digits] ? strchr(unit, text[digits]) : NULL;
        if (number < 0 || !unit)
            return false;
        sum += number * unit_seconds[unit - time_units];
        unit++;
        text += digits + 1;
    }
    *ret_value = sum;
    return true;
}

static bool to_bool(const char *text, bool is_flag, bool *ret_value)
{
    static const char *const words[][2] = {{"false", "true"}, {"False", "True"}, {"FALSE", "TRUE"}, {"no", "yes"},
                                           {"off", "on"},     {"0", "1"},        {"n", "y"}};

    for (int i = 0; i < (is_flag ? 7 : 3); i++) {
        for (int value = 0; value < 2; value++) {
            if (is_flag ? strcasecmp(text, words[i][value]) == 0 : strcmp(text, words[i][value]) == 0) {
                *ret_value = value;
                return true;
            }
        }
    }
    return false;
}

/* ---- setting, one function per kind ---- */

static bool set_bool(const struct tt_config_row *row, void *member, const struct tt_yaml *node, bool is_flag,
                     struct tt_text *why)
{
    bool value = false;

    if (node->kind != TT_YAML_SCALAR || node->is_quoted || !to_bool(node->text, is_flag, &value)) {
        (void)expected(why, "true or false", node);
        if (node->kind == TT_YAML_SCALAR && to_bool(node->text, true, &value))
            tt_text_add(why, "\nhelp: write %s", value ? "true" : "false");
        return false;
    }
    if (row->kind == TT_KIND_BOOL) {
        *(bool *)member = value;
    } else {
        *(int *)member = value;
    }
    return true;
}

/* Suggests a remedy for a text that is nearly a number. */
static void help_with_number(const struct tt_yaml *node, struct tt_text *why)
{
    size_t digits, all;
    char before[64];
    double value;

    if (node->kind != TT_YAML_SCALAR)
        return;
    digits = strspn(node->text, "0123456789._");
    all = strlen(node->text);
    (void)snprintf(before, sizeof before, "%.*s", all ? (int)all - 1 : 0, node->text);
    if (node->is_quoted && to_real(node->text, &value))
        tt_text_add(why, "\nhelp: write it without quotes");
    else if (digits && node->text[digits] && strchr("kKmMgGbB", node->text[digits]))
        tt_text_add(why, "\nhelp: write all digits, or 1e3 for a thousand");
    else if (all && node->text[all - 1] == ',' && to_real(before, &value))
        tt_text_add(why, "\nhelp: write it without the comma");
}

static bool set_int(const struct tt_config_row *row, int64_t *member, const struct tt_yaml *node, struct tt_text *why)
{
    bool is_bytes = row->flags & TT_FLAG_BYTES;
    bool is_time = row->flags & TT_FLAG_SECONDS, has_unit = is_bytes || is_time;
    const char *what = is_bytes ? "a size such as 80GiB" : is_time ? "a time such as 8h, 2h30m or 720s" : "an integer";
    int64_t value = 0;

    if (node->kind == TT_YAML_SCALAR && row->zero_word && strcmp(node->text, row->zero_word) == 0) {
        *member = 0;
        return true;
    }
    if (node->kind != TT_YAML_SCALAR || (node->is_quoted && !row->zero_word && !has_unit) ||
        !(to_int(node->text, &value) || (is_bytes && to_bytes(node->text, &value)) ||
          (is_time && to_seconds(node->text, &value)))) {
        struct tt_text wanted = {0};

        tt_text_add(&wanted, row->zero_word ? "%s or '%s'" : "%s", what, row->zero_word);
        (void)expected(why, wanted.text, node);
        tt_text_release(&wanted);
        if (!is_time)
            help_with_number(node, why);
        return false;
    }
    if (value < row->low || value > row->high || (value == 0 && (row->flags & TT_FLAG_NOT_ZERO))) {
        tt_text_add(why, "%s is out of range: ", node->text);
        tt_config_range_text(row, why);
        return false;
    }
    *member = value;
    return true;
}

/* 1% is exactly 0.01. */
static bool to_percent(const char *text, double *ret_value)
{
    size_t n = strlen(text);
    char *number = n > 1 && text[n - 1] == '%' ? tt_format("%.*se-2", (int)(n - 1), text) : NULL;
    bool ok = number && to_real(number, ret_value);

    tt_free(number);
    return ok;
}

static bool set_real(const struct tt_config_row *row, double *member, const struct tt_yaml *node, struct tt_text *why)
{
    double value = 0.0;
    bool is_part = row->flags & TT_FLAG_PERCENT;

    if (node->kind != TT_YAML_SCALAR || (node->is_quoted && !is_part) ||
        !(to_real(node->text, &value) || (is_part && to_percent(node->text, &value)))) {
        (void)expected(why, is_part ? "a part such as 1% or 0.01" : "a number", node);
        help_with_number(node, why);
        return false;
    }
    if (!(value >= row->low_real && value <= row->high_real)) {
        tt_text_add(why, "%s is out of range: ", node->text);
        tt_config_range_text(row, why);
        return false;
    }
    *member = value;
    return true;
}

static bool set_text(const struct tt_config_row *row, const char **member, const struct tt_yaml *node,
                     struct tt_text *why)
{
    if (node->kind != TT_YAML_SCALAR || tt_yaml_is_null(node))
        return expected(why, "text", node);
    if (tt_utf8_invalid(node->text, strlen(node->text)) >= 0) {
        tt_text_add(why, "the text is not valid UTF-8");
        return false;
    }
    if (!*node->text && (row->flags & TT_FLAG_NOT_EMPTY)) {
        tt_text_add(why, "must not be empty%s", row->flags & TT_FLAG_NULLABLE ? "; null means none" : "");
        return false;
    }
    tt_free((void *)*member);
    *member = tt_strdup(node->text);
    return true;
}

/* Ignores case, so that True, Never and adamw are accepted. */
static const struct tt_choice *find_choice(const struct tt_choices *choices, const char *word)
{
    for (int i = 0; i < choices->n; i++) {
        if (strcasecmp(choices->choice[i].word, word) == 0)
            return &choices->choice[i];
    }
    return NULL;
}

static bool no_choice(const struct tt_config_row *row, const struct tt_yaml *node, struct tt_text *why)
{
    const char *words[32] = {0}, *near = NULL, *elsewhere;
    const struct tt_config_foreign *foreign;
    bool is_dataset = strcmp(row->key, "dataset") == 0;
    int n = row->choices->n < 32 ? row->choices->n : 32;

    if (node->kind != TT_YAML_SCALAR || !*node->text) {
        struct tt_text wanted = {0};

        tt_text_add(&wanted, "one of ");
        tt_config_choices_text(row, ", ", &wanted);
        (void)expected(why, wanted.text, node);
        tt_text_release(&wanted);
        return false;
    }
    elsewhere = tt_config_value_elsewhere(node->text);
    for (int i = 0; i < n; i++) {
        words[i] = row->choices->choice[i].word;
        near = elsewhere && strcasecmp(elsewhere, words[i]) == 0 ? words[i] : near;
    }
    if (!near)
        near = is_dataset ? tt_text_nearest(node->text, words, n) : tt_text_meant(node->text, words, n);
    foreign = tt_config_foreign_find(row->path, node->text);
    if (!foreign && elsewhere)
        foreign = tt_config_foreign_find(row->path, elsewhere);
    describe(node, why);
    if (foreign && foreign->is_refused) {
        tt_text_add(why, " is a torchtitan value that titan does not support: %s", foreign->text);
        return false;
    }
    tt_text_add(why, " is not one of ");
    tt_config_choices_text(row, ", ", why);
    tt_text_add(why, "%s%s%s%s", row->flags & TT_FLAG_NULLABLE ? ", null" : "",
                row->flags & TT_FLAG_INTEGER ? ", an integer" : "", row->flags & TT_FLAG_SIZED ? ", size:<bytes>" : "",
                row->flags & TT_FLAG_PATTERNS ? ", [regular expressions]" : "");
    if (foreign) {
        tt_text_add(why, "\nhelp: %s", foreign->text);
    } else if (near) {
        tt_text_add(why, "\nhelp: did you mean '%s'?", near);
    } else if (is_dataset) {
        tt_text_add(
            why,
            "\nhelp: titan downloads nothing; set %s to text, jsonl, parquet or tokens, and %s_path to the file or "
            "folder",
            row->path, row->path);
    } else if (row->flags & TT_FLAG_PATTERNS) {
        tt_text_add(why, "\nhelp: regular expressions go in a list: [\"%s\"]", node->text);
    }
    return false;
}

bool tt_config_choice_set(const struct tt_config_row *row, void *member, const struct tt_yaml *node,
                          struct tt_text *why)
{
    const struct tt_choice *choice = node->kind == TT_YAML_SCALAR ? find_choice(row->choices, node->text) : NULL;

    if (!choice)
        return no_choice(row, node, why);
    if (row->kind == TT_KIND_ENUM) {
        memcpy(member, &choice->value, sizeof choice->value);
    } else {
        tt_free(*(char **)member);
        *(char **)member = tt_strdup(tt_config_choice_word(row->choices, choice->value));
    }
    return true;
}

/* One word of a TT_KIND_WORDS value: a choice, or n, or size:<bytes>; the caller frees. NULL: none of these. */
static char *to_word(const struct tt_config_row *row, const char *text)
{
    const struct tt_choice *choice = find_choice(row->choices, text);
    int64_t number = 0;

    if (choice)
        return tt_strdup(tt_config_choice_word(row->choices, choice->value));
    if ((row->flags & TT_FLAG_INTEGER) && to_int(text, &number) && number >= 1 && number <= 1048576)
        return tt_format("%" PRId64, number);
    if ((row->flags & TT_FLAG_SIZED) && strncmp(text, "size:", 5) == 0 &&
        (to_int(text + 5, &number) || to_bytes(text + 5, &number)) && number > 0)
        return tt_strdup(text);
    return NULL;
}

static bool is_name(const struct tt_yaml *node)
{
    return node->kind == TT_YAML_SCALAR && *node->text && !strpbrk(node->text, " \t\n,[]\"'") &&
           tt_utf8_invalid(node->text, strlen(node->text)) < 0;
}

/* The names in a list, or in a text that separates them by blanks, commas, brackets or quotes, joined by blanks; the
 * caller frees. NULL: the value is neither. */
static char *to_part(const struct tt_yaml *node)
{
    struct tt_text part = {0};

    if (node->kind == TT_YAML_LIST) {
        for (int i = 0; i < node->n; i++) {
            if (!is_name(node->item[i])) {
                tt_text_release(&part);
                return NULL;
            }
            tt_text_add(&part, "%s%s", i ? " " : "", node->item[i]->text);
        }
    } else if (node->kind == TT_YAML_SCALAR && tt_utf8_invalid(node->text, strlen(node->text)) < 0) {
        const char *at = node->text;

        while (*(at += strspn(at, " \t\n,[]\"'"))) {
            size_t n = strcspn(at, " \t\n,[]\"'");

            tt_text_add(&part, "%s%.*s", part.size ? " " : "", (int)n, at);
            at += n;
        }
    }
    return part.text;
}

static void words_release(struct tt_words *words)
{
    for (int i = 0; i < words->n; i++)
        tt_free(words->word[i]);
    tt_free((void *)words->word);
    *words = (struct tt_words){0};
}

static bool set_words(const struct tt_config_row *row, struct tt_words *member, const struct tt_yaml *node,
                      struct tt_text *why, const struct tt_yaml **ret_fault)
{
    struct tt_words words = {.is_list = node->kind == TT_YAML_LIST};
    int n = words.is_list ? node->n : 1;

    if (node->kind == TT_YAML_MAP || (!words.is_list && (row->flags & TT_FLAG_LIST)))
        return expected(why, "a list", node);
    if (words.is_list && n == 0 && !(row->flags & TT_FLAG_LIST)) {
        tt_text_add(why, "the list is empty");
        return false;
    }
    words.word = tt_calloc((size_t)n, sizeof *words.word);
    for (int i = 0; i < n; i++) {
        const struct tt_yaml *item = words.is_list ? node->item[i] : node;
        bool is_file = row->flags & TT_FLAG_FILES;
        bool is_pattern = words.is_list && (row->flags & TT_FLAG_PATTERNS);
        bool is_rule = is_pattern && (row->flags & TT_FLAG_RULES);

        if (is_rule && (item->kind != TT_YAML_SCALAR || !strchr(item->text, '='))) {
            words_release(&words);
            if (ret_fault)
                *ret_fault = item;
            return expected(why, "regex=what in the list", item);
        }
        if (row->flags & TT_FLAG_PARTS)
            words.word[i] = tt_yaml_is_null(item) ? NULL : to_part(item);
        else if (item->kind == TT_YAML_SCALAR && *item->text && !tt_yaml_is_null(item) &&
                 tt_utf8_invalid(item->text, strlen(item->text)) < 0)
            words.word[i] = is_pattern || is_file ? tt_strdup(item->text) : to_word(row, item->text);
        if (!words.word[i]) {
            words_release(&words);
            if (ret_fault)
                *ret_fault = item;
            if (row->flags & TT_FLAG_PARTS)
                return expected(why, "a list of names in the list", item);
            if (is_file)
                return expected(why, "a file in the list", item);
            return is_pattern ? expected(why, "a regular expression in the list", item) : no_choice(row, item, why);
        }
        words.n++;
    }
    words_release(member);
    *member = words;
    return true;
}

static void set_null(const struct tt_config_row *row, void *member)
{
    if (row->flags & TT_FLAG_NULL_DEFAULT) {
        *(int64_t *)member = strtoll(row->preset, NULL, 10); /* only integer keys have this flag */
    } else if (row->kind == TT_KIND_INT) {
        *(int64_t *)member = TT_NULL_INT;
    } else if (row->kind == TT_KIND_REAL) {
        *(double *)member = (double)NAN;
    } else if (row->kind == TT_KIND_MAYBE) {
        *(int *)member = TT_NULL_BOOL;
    } else if (row->kind == TT_KIND_TEXT || row->kind == TT_KIND_WORD) {
        tt_free(*(char **)member);
        *(char **)member = NULL;
    } else if (row->kind == TT_KIND_WORDS) {
        words_release(member);
        ((struct tt_words *)member)->is_list = true;
    } else if (row->kind == TT_KIND_DATASETS) {
        tt_config_datasets_release(member);
    }
}

bool tt_config_member_set(const struct tt_config_row *row, void *member, const struct tt_yaml *node, bool is_flag,
                          struct tt_text *why, const struct tt_yaml **ret_fault)
{
    bool may_be_null = row->flags & (TT_FLAG_NULLABLE | TT_FLAG_NULL_DEFAULT);

    if (may_be_null && tt_yaml_is_null(node)) {
        set_null(row, member);
        return true;
    }
    if (may_be_null && node->kind == TT_YAML_SCALAR && !node->is_quoted && strcmp(node->text, "None") == 0) {
        tt_text_add(why, "expected ");
        tt_config_range_text(row, why);
        tt_text_add(why, ", found 'None'\nhelp: write null");
        return false;
    }
    switch (row->kind) {
    case TT_KIND_BOOL:
    case TT_KIND_MAYBE:
        return set_bool(row, member, node, is_flag, why);
    case TT_KIND_INT:
        return set_int(row, member, node, why);
    case TT_KIND_REAL:
        return set_real(row, member, node, why);
    case TT_KIND_TEXT:
        return set_text(row, member, node, why);
    case TT_KIND_ENUM:
    case TT_KIND_WORD:
        return tt_config_choice_set(row, member, node, why);
    case TT_KIND_WORDS:
        return set_words(row, member, node, why, ret_fault);
    case TT_KIND_DATASETS:
        return tt_config_datasets_set(row, member, node, is_flag, why, ret_fault);
    }
    return false;
}

void tt_config_member_release(const struct tt_config_row *row, void *member)
{
    if (row->kind == TT_KIND_TEXT || row->kind == TT_KIND_WORD) {
        tt_free(*(char **)member);
    } else if (row->kind == TT_KIND_WORDS) {
        words_release(member);
    } else if (row->kind == TT_KIND_DATASETS) {
        tt_config_datasets_release(member);
    }
}

/* ---- flags ---- */

static struct tt_yaml *scalar(struct tt_yaml_doc *doc, const char *text, size_t size)
{
    struct tt_yaml *node = tt_yaml_add(doc, TT_YAML_SCALAR, 0, 0);

    if (size >= 2 && (text[0] == '"' || text[0] == '\'') && text[size - 1] == text[0]) {
        node->is_quoted = true;
        text++;
        size -= 2;
    }
    node->text = tt_strndup(text, size);
    return node;
}

/* Splits at commas outside of brackets, quotes and escapes, so that a regular expression may contain {1,3}. */
static struct tt_yaml *split(struct tt_yaml_doc *doc, const char *text, size_t size)
{
    struct tt_yaml *list = tt_yaml_add(doc, TT_YAML_LIST, 0, 0);
    size_t start = 0;
    int depth = 0;
    char quote = 0;

    for (size_t i = 0; i <= size; i++) {
        char c = i < size ? text[i] : ',';

        if (c == '\\' && i + 1 < size) {
            i++;
        } else if (i < size && quote) {
            quote = c == quote ? 0 : quote;
        } else if (c == '"' || c == '\'') {
            quote = c;
        } else if (strchr("([{", c)) {
            depth++;
        } else if (strchr(")]}", c)) {
            depth--;
        } else if (c == ',' && (depth <= 0 || i == size)) {
            size_t end = i;

            while (start < end && text[start] == ' ')
                start++;
            while (end > start && text[end - 1] == ' ')
                end--;
            if (!(i == size && start == end && list->n == 0))
                TT_PUSH(list->item, list->n, list->cap) = scalar(doc, text + start, end - start);
            start = i + 1;
        }
    }
    return list;
}

struct tt_yaml *tt_config_flag_node(struct tt_yaml_doc *doc, const struct tt_config_row *row, const char *text)
{
    size_t size = strlen(text);
    struct tt_yaml *node;

    if (row->kind == TT_KIND_WORDS && !((row->flags & TT_FLAG_NULLABLE) && strcmp(text, "null") == 0)) {
        if (size >= 2 && text[0] == '[' && text[size - 1] == ']')
            return split(doc, text + 1, size - 2);
        node = split(doc, text, size);
        if ((row->flags & TT_FLAG_LIST) || node->n > 1)
            return node;
    }
    node = tt_yaml_add(doc, TT_YAML_SCALAR, 0, 0);
    node->text = tt_strdup(text);
    node->is_quoted = size == 0; /* --a.b= is an empty text, not null */
    return node;
}

bool tt_config_flag_set(const struct tt_config_row *row, void *member, const char *text, struct tt_text *why)
{
    struct tt_yaml_doc doc = {0};
    struct tt_text unused = {0};
    bool ok = tt_config_member_set(row, member, tt_config_flag_node(&doc, row, text), true, why ? why : &unused, NULL);

    tt_yaml_release(&doc);
    tt_text_release(&unused);
    return ok;
}

/* ---- a value as text that reads back to the same value, and what the key accepts, in words ---- */

enum { MANY_CHOICES = 9 }; /* a text without blanks must fit on a line */

const char *tt_config_choice_word(const struct tt_choices *choices, int value)
{
    for (int i = 0; i < choices->n; i++) {
        if (!choices->choice[i].is_alias && choices->choice[i].value == value)
            return choices->choice[i].word;
    }
    return "";
}

static void time_text(int64_t value, struct tt_text *out)
{
    for (int u = 0; value; u++) {
        if (value >= unit_seconds[u])
            tt_text_add(out, "%" PRId64 "%c", value / unit_seconds[u], time_units[u]);
        value %= unit_seconds[u];
    }
}

/* Writes a size as 80GiB if that is exact, otherwise as plain bytes. */
static void int_text(const struct tt_config_row *row, int64_t value, struct tt_text *out)
{
    static const char *const unit[] = {"", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;

    if (value == TT_NULL_INT) {
        tt_text_add(out, "null");
    } else if (value == 0 && row->zero_word) {
        tt_text_add(out, "%s", row->zero_word);
    } else if (row->flags & TT_FLAG_SECONDS) {
        time_text(value, out);
    } else {
        for (; row->flags & TT_FLAG_BYTES && u < 4 && value && value % 1024 == 0; u++)
            value /= 1024;
        tt_text_add(out, "%" PRId64 "%s", value, unit[u]);
    }
}

void tt_config_choices_text(const struct tt_config_row *row, const char *between, struct tt_text *out)
{
    const char *separator = "";

    for (int i = 0; i < row->choices->n; i++) {
        const struct tt_choice *choice = &row->choices->choice[i];

        if (choice->is_alias || (row->works && !tt_text_is_listed(choice->word, row->works)))
            continue;
        tt_text_add(out, "%s%s", separator, choice->word);
        separator = between;
    }
}

static void int_range_text(const struct tt_config_row *row, struct tt_text *out)
{
    if (row->zero_word)
        tt_text_add(out, "%s, or ", row->zero_word);
    if (row->flags & TT_FLAG_SECONDS) {
        tt_text_add(out, "a time such as 2h30m");
    } else if (row->flags & TT_FLAG_NOT_ZERO) {
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
