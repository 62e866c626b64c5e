/* SPDX-License-Identifier: MIT
 *
 * Differences from torchtitan: its words, its defaults, and the keys that titan does not have. These are found by path,
 * accepted with their neutral value, and otherwise noted or refused.
 */
#include <string.h>
#include <strings.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/config/internal.h"

#define REFUSED TT_INACTIVE_REFUSED
#define NOTE    TT_INACTIVE_NOTE
#define IDLE    TT_INACTIVE_IDLE

const struct tt_config_inactive tt_config_inactives[] = {
#define TT_INACTIVE(kind, path, neutral, why) {path, kind, neutral, why},
#include "core/config/inactive.def"
};

static const struct {
    const char *path, *word, *why;
} refused_words[] = {
#define TT_REFUSED_WORD(path, word, why) {path, word, why},
#include "core/config/inactive.def"
};

static const struct {
    const char *path, *word, *why;
} left_out_words[] = {
#define TT_LEFT_OUT_WORD(path, word, why) {path, word, why},
#include "core/config/inactive.def"
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

bool tt_config_inactive_is_bool(const struct tt_config_inactive *row)
{
    return row->neutral && (strcmp(row->neutral, "false") == 0 || strcmp(row->neutral, "true") == 0);
}

const struct tt_config_difference tt_config_differences[] = {
#define TT_DIFFERS(path, theirs, why) {path, theirs, why},
#include "core/config/differs.def"
};
const int tt_config_n_differences = sizeof tt_config_differences / sizeof *tt_config_differences;

const char *tt_config_refused_word(const char *path, const char *word)
{
    for (size_t i = 0; i < sizeof refused_words / sizeof *refused_words; i++) {
        if (strcmp(refused_words[i].path, path) == 0 && strcasecmp(refused_words[i].word, word) == 0)
            return refused_words[i].why;
    }
    return NULL;
}

const char *tt_config_left_out(const char *path, const struct tt_yaml *value)
{
    if (value->kind == TT_YAML_LIST && value->n == 1)
        value = value->item[0];
    if (value->kind != TT_YAML_SCALAR)
        return NULL;
    for (size_t i = 0; i < sizeof left_out_words / sizeof *left_out_words; i++)
        if (strcmp(left_out_words[i].path, path) == 0 && strcmp(left_out_words[i].word, value->text) == 0)
            return left_out_words[i].why;
    return NULL;
}

bool tt_config_inactive_is_neutral(const struct tt_config_inactive *row, const struct tt_yaml *node)
{
    if (tt_yaml_is_null(node))
        return true;
    if (!row->neutral)
        return false;
    if (node->kind == TT_YAML_LIST)
        return node->n == 0 && tt_text_is_listed("[]", row->neutral);
    if (node->kind == TT_YAML_MAP)
        return node->n == 0 && tt_text_is_listed("{}", row->neutral);
    return tt_text_is_listed(node->text, row->neutral);
}

void tt_config_inactive_use(const struct tt_config_inactive *row, const char *where, const char *path,
                            const struct tt_yaml *node, struct tt_config_report *report)
{
    const char *help = strchr(row->why, '\n');

    if (row->kind == TT_INACTIVE_IDLE || tt_config_inactive_is_neutral(row, node))
        return;
    if (row->kind == TT_INACTIVE_REFUSED) {
        tt_config_report_add(report, where, "%s is a torchtitan key that titan does not have: %s%s", path, row->why,
                             help ? "" : "\nhelp: leave it out");
    } else {
        tt_text_add(&report->notes, "%s: %s has no effect: %.*s\n", where, path,
                    help ? (int)(help - row->why) : (int)strlen(row->why), row->why);
    }
}
