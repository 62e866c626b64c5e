/* SPDX-License-Identifier: MIT */
#ifndef TT_CONFIG_IMPORT_ITEMS_H
#define TT_CONFIG_IMPORT_ITEMS_H

#include "core/config/internal.h"

/** What reading a torchtitan file gives and writing takes: one item per key, in the order of the file. */
enum tt_import_fate { TT_IMPORT_KEPT, TT_IMPORT_REFUSED, TT_IMPORT_LEFT_OUT };

struct tt_import_item {
    char *was;                       /* the key in the file: "checkpoint.enable_checkpoint" */
    const char *path;                /* titan's name of it, or `was` if titan has no such key */
    const struct tt_config_row *row; /* NULL: titan has no such key */
    const struct tt_yaml *value;     /* in the file; NULL: it is in cfg alone */
    enum tt_import_fate fate;
    char *why; /* of what is refused or left out, perhaps with "\nhelp: ..."; for what is kept, a remark or NULL */
};

struct tt_import {
    const char *name;
    struct tt_config *cfg; /* the values of the items that are kept */
    struct tt_import_item *item;
    int n, cap;
};

/** The item of a key, by titan's name; NULL: the file does not have it. */
const struct tt_import_item *tt_import_find(const struct tt_import *import, const char *path);

/** Appends the items as YAML with comments. */
void tt_import_write(const struct tt_import *import, struct tt_text *out);

#endif
