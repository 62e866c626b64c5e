/* SPDX-License-Identifier: MIT
 *
 * The tables that schema.def and choices.h describe (sets of choices, rows, sections, aliases), the lookup of keys, and
 * suggestions for misspelt keys and other trainers' words (foreign.def).
 */
#include <string.h>
#include <strings.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/config/internal.h"

/* clang-format off */
#define CHOICE(constant, word) {word, constant, false},
#define ALIAS(constant, word) {word, constant, true},
#define S(set, list) \
    static const struct tt_choice set##_choice[] = {list(CHOICE, ALIAS)}; \
    static const struct tt_choices set##_choices = {set##_choice, sizeof set##_choice / sizeof *set##_choice};
TT_CHOICE_SETS(S)
#undef S

/* The flags as the rows write them. */
enum {
    OWN = TT_FLAG_OWN, NULLABLE = TT_FLAG_NULLABLE, BYTES = TT_FLAG_BYTES, NOT_ZERO = TT_FLAG_NOT_ZERO,
    NOT_EMPTY = TT_FLAG_NOT_EMPTY, PATTERNS = TT_FLAG_PATTERNS, LIST = TT_FLAG_LIST, RULES = TT_FLAG_RULES,
    PARTS = TT_FLAG_PARTS, INTEGER = TT_FLAG_INTEGER, SIZED = TT_FLAG_SIZED, PERCENT = TT_FLAG_PERCENT,
    NULL_DEFAULT = TT_FLAG_NULL_DEFAULT, CURVE = TT_FLAG_CURVE, SHAPES = TT_FLAG_SHAPES, WEIGHTS = TT_FLAG_WEIGHTS,
    QUIET = TT_FLAG_QUIET, SECONDS = TT_FLAG_SECONDS, FILES = TT_FLAG_FILES,
};

#define ENTRY(key_, kind_, flags_, ...) \
    {.section = "", .key = #key_, .path = #key_, .kind = (kind_), .flags = (flags_), \
     .offset = offsetof(struct tt_dataset_entry, key_), __VA_ARGS__},
#define TT_TEXT(section, key, def, flags, ...) ENTRY(key, TT_KIND_TEXT, flags, .preset = (def), .doc = __VA_ARGS__)
#define TT_WORD(section, key, def, set, flags, ...) \
    ENTRY(key, TT_KIND_WORD, flags, .preset = #def, .choices = &set##_choices, .doc = __VA_ARGS__)
#define TT_REAL(section, key, def, low_, high_, flags, ...) \
    ENTRY(key, TT_KIND_REAL, flags, .preset = #def, .low_real = (low_), .high_real = (high_), .doc = __VA_ARGS__)
const struct tt_config_row tt_config_entry_rows[] = {
#include "core/keys/entry.def"
};

#define ROW(section_, key_, kind_, flags_, ...) \
    {.id = TT_KEY(section_.key_), .section = #section_, .key = #key_, .path = #section_ "." #key_, .kind = (kind_), \
     .flags = (flags_), .offset = offsetof(struct tt_config, section_.key_), __VA_ARGS__},
#define TT_BOOL(section, key, def, flags, ...) \
    ROW(section, key, TT_KIND_BOOL, flags, .preset = #def, .doc = __VA_ARGS__)
#define TT_MAYBE(section, key, flags, ...) \
    ROW(section, key, TT_KIND_MAYBE, (flags) | NULLABLE, .preset = NULL, .doc = __VA_ARGS__)
#define TT_INT(section, key, def, low_, high_, flags, ...) \
    ROW(section, key, TT_KIND_INT, flags, .preset = #def, .low = (low_), .high = (high_), .doc = __VA_ARGS__)
#define TT_AUTO(section, key, def, word, low_, high_, flags, ...) \
    ROW(section, key, TT_KIND_INT, flags, .preset = #def, .low = (low_), .high = (high_), .zero_word = (word), \
        .doc = __VA_ARGS__)
#define TT_REAL(section, key, def, low_, high_, flags, ...) \
    ROW(section, key, TT_KIND_REAL, flags, .preset = #def, .low_real = (low_), .high_real = (high_), .doc = __VA_ARGS__)
#define TT_TEXT(section, key, def, flags, ...) \
    ROW(section, key, TT_KIND_TEXT, flags, .preset = (def), .doc = __VA_ARGS__)
#define TT_ENUM(section, key, def, set, flags, ...) \
    ROW(section, key, TT_KIND_ENUM, flags, .preset = #def, .choices = &set##_choices, .doc = __VA_ARGS__)
#define TT_WORD(section, key, def, set, flags, ...) \
    ROW(section, key, TT_KIND_WORD, flags, .preset = #def, .choices = &set##_choices, .doc = __VA_ARGS__)
#define TT_WORDS(section, key, def, set, flags, ...) \
    ROW(section, key, TT_KIND_WORDS, flags, .preset = (def), .choices = &set##_choices, .doc = __VA_ARGS__)
#define TT_DATA(section, key, def, flags, ...) \
    ROW(section, key, TT_KIND_DATASETS, flags, .preset = #def, .choices = &dataset_choices, .doc = __VA_ARGS__)
const struct tt_config_row tt_config_rows[] = {
#include "core/keys/schema.def"
};

#define TT_SECTION(section, doc) {#section, doc},
#define TT_SECTION_END(section)
#define TT_MAP(section, key, doc) {#section "." #key, doc},
#define TT_MAP_END(key)
const struct tt_config_section tt_config_sections[] = {
#include "core/keys/schema.def"
};

static const struct {
    const char *path, *target;
} aliases[] = {
#define TT_ALIAS(section, key, target) {#section "." #key, target},
#include "core/keys/schema.def"
};
/* clang-format on */

enum {
    N_ROWS = sizeof tt_config_rows / sizeof *tt_config_rows,
    N_SECTIONS = sizeof tt_config_sections / sizeof *tt_config_sections,
    N_ALIASES = sizeof aliases / sizeof *aliases,
};
const int tt_config_n_rows = N_ROWS;
const int tt_config_n_entry_rows = sizeof tt_config_entry_rows / sizeof *tt_config_entry_rows;
const int tt_config_n_sections = N_SECTIONS;

/* Whether a equals b, where '-' counts as '_'. */
static bool is_same_key(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b))
            return false;
    }
    return *a == *b;
}

const struct tt_config_row *tt_config_row(enum tt_key key)
{
    return &tt_config_rows[key - 1]; /* both are in the order of schema.def */
}

const struct tt_config_row *tt_config_row_find(const char *path)
{
    for (int i = 0; i < N_ROWS; i++) {
        if (is_same_key(path, tt_config_rows[i].path))
            return &tt_config_rows[i];
    }
    for (int i = 0; i < N_ALIASES; i++) {
        if (is_same_key(path, aliases[i].path))
            return tt_config_row_find(aliases[i].target);
    }
    return NULL;
}

bool tt_config_is_section(const char *path)
{
    for (int i = 0; i < N_SECTIONS; i++) {
        if (is_same_key(path, tt_config_sections[i].name))
            return true;
    }
    return false;
}

/* Suggests up to three keys whose last word is leaf, in any section. */
static bool suggest_leaf(const char *leaf, struct tt_text *out)
{
    int n = 0;

    for (int i = 0; i < N_ROWS; i++) {
        if (strcmp(tt_config_leaf(tt_config_rows[i].path), leaf) == 0 && ++n <= 3)
            tt_text_add(out, "%s'%s'", n == 1 ? "\nhelp: did you mean " : " or ", tt_config_rows[i].path);
    }
    tt_text_add(out, n ? "?" : "");
    return n > 0;
}

/* The key of section (of all sections, if NULL) whose last word is nearest to word. */
static const char *nearest_leaf(const char *word, const char *section)
{
    const char *leaf[N_ROWS];
    int n = 0;

    for (int i = 0; i < N_ROWS; i++) {
        if (!section || strcmp(tt_config_rows[i].section, section) == 0)
            leaf[n++] = tt_config_rows[i].key;
    }
    return tt_text_nearest(word, leaf, n);
}

/* Suggests titan's equivalent of another trainer's word. */
static bool suggest_instead(const char *word, struct tt_text *out)
{
    static const struct {
        const char *words, *help;
    } foreign[] = {
#define TT_FOREIGN(words, help) {words, help},
#include "core/config/foreign.def"
    };

    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        if (tt_text_is_listed(word, foreign[i].words)) {
            tt_text_add(out, "\nhelp: %s", foreign[i].help);
            return true;
        }
    }
    return false;
}

const char *tt_config_value_elsewhere(const char *word)
{
    static const struct {
        const char *words, *value;
    } foreign[] = {
#define TT_FOREIGN_VALUE(words, value) {words, value},
#include "core/config/foreign.def"
    };

    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (tt_text_is_listed(word, foreign[i].words))
            return foreign[i].value;
    return NULL;
}

const char *tt_config_meant(const char *word, const char *const *choices, int n)
{
    const char *known = tt_config_value_elsewhere(word);

    for (int i = 0; i < n && known; i++)
        if (strcasecmp(known, choices[i]) == 0)
            return choices[i];
    return tt_text_meant(word, choices, n);
}

const struct tt_config_foreign *tt_config_foreign_find(const char *path, const char *word)
{
    static const struct tt_config_foreign foreign[] = {
#define TT_REFUSED_CHOICE(paths, words, why)  {true, paths, words, why},
#define TT_FOREIGN_CHOICE(paths, words, help) {false, paths, words, help},
#include "core/config/foreign.def"
    };

    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (tt_text_is_listed(path, foreign[i].paths) && tt_text_is_listed(word, foreign[i].words))
            return &foreign[i];
    return NULL;
}

/* Suggests the same key in the section that the user probably meant: validation.enable for validator.enable. */
static bool suggest_in_section(const char *path, const char *leaf, const char *const *sections, struct tt_text *out)
{
    char *section = leaf > path ? tt_strndup(path, (size_t)(leaf - path) - 1) : NULL;
    const char *meant =
        section && !tt_config_is_section(section) ? tt_config_meant(section, sections, N_SECTIONS) : NULL;
    char *key = meant ? tt_format("%s.%s", meant, leaf) : NULL;
    bool found = key && tt_config_row_find(key);

    if (found)
        tt_text_add(out, "\nhelp: did you mean '%s'?", key);
    tt_free(section);
    tt_free(key);
    return found;
}

void tt_config_suggest(const char *path, struct tt_text *out)
{
    char *copy = tt_strdup(path), *dot, *section = copy;
    const char *leaf, *near, *here, *anywhere;
    const char *paths[N_ROWS], *sections[N_SECTIONS];

    for (char *c = copy; *c; c++)
        *c = *c == '-' ? '_' : *c;
    leaf = tt_config_leaf(copy);
    for (int i = 0; i < N_SECTIONS; i++)
        sections[i] = tt_config_sections[i].name;
    if (suggest_in_section(copy, leaf, sections, out) || suggest_leaf(leaf, out) || suggest_instead(leaf, out))
        goto out;
    for (int i = 0; i < N_ROWS; i++)
        paths[i] = tt_config_rows[i].path;
    dot = strrchr(copy, '.');
    if (dot)
        *dot = 0;
    near = dot ? NULL : tt_config_meant(copy, sections, N_SECTIONS);
    here = dot ? nearest_leaf(leaf, section) : NULL;
    anywhere = near || here ? NULL : nearest_leaf(leaf, NULL);
    if (!near && !here && !anywhere)
        near = tt_text_nearest(path, paths, N_ROWS);
    if (near)
        tt_text_add(out, "\nhelp: did you mean '%s'?", near);
    else if (here)
        tt_text_add(out, "\nhelp: did you mean '%s.%s'?", section, here);
    else if (anywhere)
        (void)suggest_leaf(anywhere, out);
    else if (dot && tt_config_is_section(section))
        tt_text_add(out, "\nhelp: `titan config init` lists the keys of '%s'", section);
    else if ((near = tt_config_meant(section, sections, N_SECTIONS)))
        tt_text_add(out, "\nhelp: did you mean section '%s'?", near);
    else
        tt_text_add(out, "\nhelp: `titan config init` lists all sections and keys");
out:
    tt_free(copy);
}

/* ---- torchtitan's keys that titan does not have ---- */

#define REFUSED TT_INACTIVE_REFUSED
#define NOTE    TT_INACTIVE_NOTE
#define IDLE    TT_INACTIVE_IDLE
#define EARLIER "this name is from an earlier torchtitan\nhelp: set "
#define LATER   "this name is from a later torchtitan\nhelp: set "

const struct tt_config_inactive tt_config_inactives[] = {
#define TT_INACTIVE(kind, path, neutral, why) {path, kind, neutral, why},
#include "core/config/foreign.def"
};

const char tt_config_python[] =
    "this is Python: torchtitan after v0.2.2 makes its configurations by functions, and titan runs no Python\n"
    "help: `titan config init` prints a YAML file to start from; `titan config import` converts TOML files of earlier "
    "versions, and the JSON that torchtitan saves with --debug.save_config_file";

const int tt_config_n_inactives = sizeof tt_config_inactives / sizeof *tt_config_inactives;

static bool fits(const char *pattern, const char *path)
{
    size_t n = strlen(pattern);

    if (n > 2 && strcmp(pattern + n - 2, ".*") == 0)
        return strncmp(pattern, path, n - 1) == 0 && path[n - 1];
    return strcmp(pattern, path) == 0;
}

const struct tt_config_inactive *tt_config_inactive_find(const char *path)
{
    for (int i = 0; i < tt_config_n_inactives; i++) {
        if (fits(tt_config_inactives[i].path, path))
            return &tt_config_inactives[i];
    }
    return NULL;
}

bool tt_config_inactive_is_neutral(const struct tt_config_inactive *row, const struct tt_yaml *node)
{
    const char *text = node->kind == TT_YAML_LIST ? "[]" : node->kind == TT_YAML_MAP ? "{}" : node->text;

    return tt_yaml_is_null(node) || (row->neutral && node->n == 0 && tt_text_is_listed(text, row->neutral));
}
