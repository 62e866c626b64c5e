/* SPDX-License-Identifier: MIT
 *
 * What predictions about clusters make of titan's own keys.
 */
#include "cli/cluster/inputs/own_keys.h"

#include <string.h>

#include "core/base/mem.h"

enum counted { NOTHING, MEMORY, TITAN };

static const struct row {
    const char *path;
    enum tt_own_key_class class;
    const char *usual;
    enum counted counted; /* what counts it nevertheless */
    const char *why;
} rows[] = {
#define PRICED(path)                    {path, TT_OWN_PRICED, "", NOTHING, ""},
#define FREE(path)                      {path, TT_OWN_FREE, "", NOTHING, ""},
#define LEFT(path, usual, counted, why) {path, TT_OWN_LEFT, usual, counted, why},
#define REFUSED(path, usual, why)       {path, TT_OWN_REFUSED, usual, NOTHING, why},
#include "cli/cluster/inputs/own_keys.def"
};

static const int n_rows = (int)(sizeof rows / sizeof *rows);

enum tt_own_key_class tt_cluster_own_key(const char *path)
{
    for (int i = 0; i < n_rows; i++)
        if (strcmp(rows[i].path, path) == 0)
            return rows[i].class;
    return TT_OWN_UNKNOWN;
}

int tt_cluster_own_key_path(int row, const char **ret_path)
{
    *ret_path = row < n_rows ? rows[row].path : NULL;
    return n_rows;
}

/* Whether a value is one of the usual ones, which are separated by blanks. */
static bool is_usual(const char *usual, const char *value)
{
    size_t n = strlen(value);

    for (const char *at = usual; *at;) {
        size_t length = strcspn(at, " ");

        if (length == n && strncmp(at, value, n) == 0)
            return true;
        at += length;
        at += strspn(at, " ");
    }
    return n == 0 || strcmp(value, "null") == 0 || strcmp(value, "\"\"") == 0;
}

static bool is_ignored(const struct tt_args *args, const char *path)
{
    const char *name;

    for (int i = 0; (name = tt_args_value(args, "ignore_flag", i)); i++)
        if (strcmp(name, path) == 0)
            return true;
    return false;
}

static int check(const struct row *row, const char *value, const struct tt_args *args, bool is_titan, bool is_planned,
                 struct tt_cluster_notes *notes)
{
    const char *why = row->why;

    if (is_usual(row->usual, value) || (row->counted == TITAN && is_titan))
        return 0;
    if (row->counted == MEMORY && is_planned)
        why = "the memory counts it, the time does not";
    if (is_ignored(args, row->path))
        why = "--ignore-flag leaves it out";
    else if (row->class == TT_OWN_REFUSED)
        return tt_fail(TT_EUSAGE,
                       "estimate: %s %s is not counted with --machine: %s\nhelp: set it to %s, or give --ignore-flag "
                       "%s; without --machine titan plans the memory",
                       row->path, value, row->why, row->usual, row->path);
    tt_cluster_note(notes, row->path, value, why);
    return 0;
}

int tt_cluster_own_keys_check(const struct tt_config *cfg, const struct tt_args *args, bool is_titan, bool is_planned,
                              struct tt_cluster_notes *notes)
{
    int rc = 0;

    for (int i = 0; i < n_rows && rc == 0; i++) {
        const struct tt_config_row *key = tt_config_row_find(rows[i].path);
        struct tt_text value = {0};

        if (!key || (rows[i].class != TT_OWN_LEFT && rows[i].class != TT_OWN_REFUSED) ||
            !tt_config_is_set(cfg, rows[i].path))
            continue;
        tt_config_value_text(cfg, key, &value);
        rc = check(&rows[i], value.text ? value.text : "", args, is_titan, is_planned, notes);
        tt_text_release(&value);
    }
    return rc;
}
