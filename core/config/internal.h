/* SPDX-License-Identifier: MIT */
#ifndef TT_CONFIG_INTERNAL_H
#define TT_CONFIG_INTERNAL_H

/** Declarations for the files of core/config only. */

#include <string.h>

#include "core/config/config.h"
#include "core/config/yaml.h"

/** The origin of a value. */
struct tt_config_origin {
    char *origin;    /* "my.yaml:14" */
    char *where;     /* "my.yaml:14:7" */
    int line;        /* position of the key in the file being read; 0: not in this file */
    bool is_bad;     /* an error has been reported: rules that read the key report nothing further */
    bool is_derived; /* the user did not set it: it follows another key or the flavor */
};

struct tt_config_origins {
    struct tt_config_origin *of; /* one per row */
    struct tt_text *unbuilt;     /* the list for values of features that are not built; NULL: they are errors */
};

/** The errors in files, flags and rules, collected. */
struct tt_config_report {
    const char *name; /* name of the file being read: "my.yaml", "builtin:quick" */
    bool is_builtin;  /* its line numbers are meaningless to the user */
    int n;
    int n_hidden; /* number of errors that did not fit into the message */
    struct tt_text text;
    const char *subject;  /* the object with the errors; NULL: the configuration */
    struct tt_text notes; /* lines for tt_note, shown if there is no error */
    bool is_partial;      /* a file could not be read to its end, so rules between keys are not checked */
};

/** Adds one error, "where: message", message may contain a line "\nhelp: ...". */
void tt_config_report_add(struct tt_config_report *report, const char *where, const char *fmt, ...) TT_PRINTF(3, 4);

/** The same with "where: path: message"; the name of a flag is not repeated. If path is NULL, "where: message". */
void tt_config_report_key(struct tt_config_report *report, const char *where, const char *path, const char *message);

/** Adds an error about a node of the file and, unless path is NULL, about a key. */
void tt_config_report_at(struct tt_config_report *report, const struct tt_yaml *node, const char *path, const char *fmt,
                         ...) TT_PRINTF(4, 5);

/** Add an error about a key or section that does not exist, with a suggestion: in the file; by a flag. */
void tt_config_report_unknown(struct tt_config_report *report, const struct tt_yaml *key, const char *path);
void tt_config_report_unknown_flag(struct tt_config_report *report, const char *where, const char *path);

/** The same about the value of `row` in cfg. If the user did not set it, the message says where it comes from. */
void tt_config_report_value(struct tt_config_report *report, const struct tt_config *cfg,
                            const struct tt_config_row *row, const char *message);

/** Whether a file, a flag or a folder that one of them names set the value. */
bool tt_config_is_users(const struct tt_config *cfg, const struct tt_config_row *row);

/** Makes one message of all errors. Returns 0, or TT_EUSAGE if there are errors; releases the report in either case. */
int tt_config_report_finish(struct tt_config_report *report);

static inline struct tt_config_origin *tt_config_origin_of(const struct tt_config *cfg, const struct tt_config_row *row)
{
    return &cfg->origins->of[row - tt_config_rows];
}

/** The member of cfg that row describes. */
static inline void *tt_config_member(const struct tt_config *cfg, const struct tt_config_row *row)
{
    return (char *)cfg + row->offset;
}

/**
 * Converts node to row's kind and stores it in the member of a struct. False: `why` says what was expected and found
 * (and perhaps "\nhelp: ..."), the old value stays, and *ret_fault (if not NULL) is the item of a list that is wrong.
 * is_flag: accept words such as yes and 0 as booleans.
 */
bool tt_config_member_set(const struct tt_config_row *row, void *member, const struct tt_yaml *node, bool is_flag,
                          struct tt_text *why, const struct tt_yaml **ret_fault);

/** The same for the value of a flag. why may be NULL. */
bool tt_config_flag_set(const struct tt_config_row *row, void *member, const char *text, struct tt_text *why);

/** Stores the choice of row that node names: the constant (TT_KIND_ENUM) or the word. */
bool tt_config_choice_set(const struct tt_config_row *row, void *member, const struct tt_yaml *node,
                          struct tt_text *why);

/** Stores a word or a list of entries. For a flag, a list is YAML text. */
bool tt_config_datasets_set(const struct tt_config_row *row, struct tt_datasets *member, const struct tt_yaml *node,
                            bool is_flag, struct tt_text *why, const struct tt_yaml **ret_fault);
void tt_config_datasets_release(struct tt_datasets *datasets);

/** A copy for validation: without weights and, if `same` is false, with kjv_validation in place of kjv. */
struct tt_datasets tt_config_datasets_held_back(const struct tt_datasets *datasets, bool same);

/**
 * Appends the value as YAML on one line, which a flag accepts too, without keys of entries that have their default
 * value.
 */
void tt_config_datasets_text(const struct tt_datasets *datasets, struct tt_text *out);
json_t *tt_config_datasets_json(const struct tt_datasets *datasets);

/** A node for the value of a flag: a list ([a,b] or a,b) if the row takes a list, otherwise the text as it is. */
struct tt_yaml *tt_config_flag_node(struct tt_yaml_doc *doc, const struct tt_config_row *row, const char *text);

/** Appends text in lines that begin with `indent` spaces and lead, and have at most TT_HELP_COLUMNS columns. */
void tt_config_wrap(struct tt_text *out, int indent, const char *lead, const char *text);

/** Appends the value as YAML: texts are quoted where necessary; other values are written as for a flag. */
void tt_config_yaml_value(const struct tt_config *cfg, const struct tt_config_row *row, struct tt_text *out);

/** Releases the memory that the member of row owns. */
void tt_config_member_release(const struct tt_config_row *row, void *member);

/** Appends the value of a member in the form of a flag's value. */
void tt_config_member_text(const struct tt_config_row *row, const void *member, struct tt_text *out);

/** Whether path is a section or a mapping inside one ("model", "model.rope_scaling"). */
bool tt_config_is_section(const char *path);

/** Appends "\nhelp: did you mean ..." for a path that does not exist, if a similar path exists. */
void tt_config_suggest(const char *path, struct tt_text *out);

/** One override, taken from one or two tokens. */
struct tt_override {
    char *path;        /* "optimizer.lr", with '_' for '-' */
    const char *value; /* "true", "false" for bare booleans; NULL when it is missing */
};

/** Calls take for each override in args, in order, with its place, "flag --optimizer.lr". Reports other tokens. */
void tt_override_each(int n, const char *const *args, struct tt_config_report *report,
                      void (*take)(void *arg, const struct tt_override *override, const char *where), void *arg);

/** The row of an inactive torchtitan key; NULL if path is not one. */
const struct tt_config_inactive *tt_config_inactive_find(const char *path);

/** Whether titan accepts the value without a note, because it changes nothing. */
bool tt_config_inactive_is_neutral(const struct tt_config_inactive *row, const struct tt_yaml *node);

/** Why a Python file is refused. */
extern const char tt_config_python[];

/** titan's name for a value that other trainers call `word` (bfloat16 for bf16); NULL: not known. */
const char *tt_config_value_elsewhere(const char *word);

/**
 * Another trainer's word for a value of a key, if titan does not know the word itself; see foreign.def. NULL:
 * foreign.def does not list it either.
 */
struct tt_config_foreign {
    bool is_refused; /* text says why; otherwise text is a remedy */
    const char *paths, *words, *text;
};
const struct tt_config_foreign *tt_config_foreign_find(const char *path, const char *word);

/** The text after the last dot. */
static inline const char *tt_config_leaf(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot ? dot + 1 : path;
}

/** Checks the rules between keys, and reports values whose feature is not built yet. */
void tt_config_check_rules(struct tt_config *cfg, struct tt_config_report *report);

#endif
