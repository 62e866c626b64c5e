/* SPDX-License-Identifier: MIT */
#ifndef TT_CONFIG_CONFIG_H
#define TT_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/keys/choices.h"

/**
 * The configuration: the value of every key, the origin of each value, and the table of keys.
 *
 *     struct tt_config *cfg = NULL;
 *     TT_TRY(tt_config_new(&cfg));
 *     TT_TRY(tt_config_load(cfg, n_files, files, n_args, args));
 *     for (int64_t step = 1; step <= cfg->training.steps; step++) ...
 *     tt_config_free(cfg);
 *
 * Later sources take precedence: default < flavor < files in order < flags in order. Nothing here is collective or
 * prints; notes (keys that have no effect) go to tt_note.
 */

/** Null for the nullable kinds: int64_t, double (isnan), const char * (NULL), MAYBE. */
#define TT_NULL_INT  INT64_MIN
#define TT_NULL_BOOL (-1)

/** The value of a key that takes one word, or a list of words or regular expressions. */
struct tt_words {
    int n;
    bool is_list; /* false: n is 1 */
    char **word;
};

/** One dataset. Texts that are null in the configuration are NULL here. */
struct tt_dataset_entry {
#define TT_TEXT(section, key, def, flags, ...)            const char *key;
#define TT_WORD(section, key, def, set, flags, ...)       const char *key;
#define TT_REAL(section, key, def, low, high, flags, ...) double key;
#include "core/keys/entry.def"
    int line, column; /* where the entry begins in its file; 0: not in a file */
};

/**
 * The value of a key that takes the name of a dataset, or a list of entries. A name becomes an entry with only
 * `dataset` set.
 */
struct tt_datasets {
    int n; /* 0: null */
    bool is_list;
    struct tt_dataset_entry *entry;
};

struct tt_config_origins;
struct tt_config_report;

/** One member struct per section: cfg->training.seq_len. Strings and lists belong to the config. */
struct tt_config {
#define TT_SECTION(section, doc) struct {
#define TT_SECTION_END(section) \
    }                           \
    section;
#define TT_MAP(section, key, doc) struct {
#define TT_MAP_END(key) \
    }                   \
    key;
#define TT_BOOL(section, key, def, flags, ...)                  bool key;
#define TT_MAYBE(section, key, flags, ...)                      int key;
#define TT_INT(section, key, def, low, high, flags, ...)        int64_t key;
#define TT_AUTO(section, key, def, word, low, high, flags, ...) int64_t key;
#define TT_REAL(section, key, def, low, high, flags, ...)       double key;
#define TT_TEXT(section, key, def, flags, ...)                  const char *key;
#define TT_ENUM(section, key, def, set, flags, ...)             enum tt_##set##_choice key;
#define TT_WORD(section, key, def, set, flags, ...)             const char *key;
#define TT_WORDS(section, key, def, set, flags, ...)            struct tt_words key;
#define TT_DATA(section, key, def, flags, ...)                  struct tt_datasets key;
#include "core/keys/schema.def"

    struct tt_config_origins *origins;
    bool float64; /* everything is computed in float64, whatever the types above are; `titan reference` sets it */
};

/** A configuration with every key at its default. Caller: tt_config_free. */
int tt_config_new(struct tt_config **ret_config) TT_MUST_CHECK;
void tt_config_free(struct tt_config *cfg);

/**
 * Reads files in order, then overrides in order (--a.b=c, --a.b c, a.b=c, --a.b, --no-a.b, --a.no-b), then checks the
 * rules between keys. A file named builtin:<name> is one of tt_config_builtins. All errors are reported in one message:
 * TT_EUSAGE. After an error the config may only be freed.
 */
int tt_config_load(struct tt_config *cfg, int n_files, const char *const *files, int n_args,
                   const char *const *args) TT_MUST_CHECK;

/** The sources of a configuration. */
struct tt_config_input {
    int n_files;
    const char *const *files; /* in order */
    const char *text;         /* read before the files, under the name text_name; NULL: none */
    size_t text_size;
    const char *text_name;
    int n_args;
    const char *const *args; /* overrides, in order, after the files */
    /* number of errors already found on the command line, to be reported together with these */
    int n_errors;
    const char *errors; /* their text; NULL: none */
    /* Checks the values for faults that core/config itself cannot find, and reports them (tt_config_fault). May be
     * NULL. */
    void (*check)(struct tt_config *cfg, struct tt_config_report *report, void *arg);
    void *check_arg;
};

/** As tt_config_load, with earlier errors and an additional check of the values, all reported in one message. */
int tt_config_read(struct tt_config *cfg, const struct tt_config_input *input) TT_MUST_CHECK;

/**
 * For a check: adds an error about the values of some keys (a list that ends with TT_KEY_NONE). The error is reported
 * where the user set the first of these keys. Does nothing if one of the keys already has an error. The message may end
 * in a line "\nhelp: ...".
 */
void tt_config_fault(struct tt_config *cfg, struct tt_config_report *report, const enum tt_key *keys, const char *fmt,
                     ...) TT_PRINTF(4, 5);

/**
 * As tt_config_fault, but about one entry of a key's list, at the place of that entry ("my.yaml:14:5"). Other entries
 * may have errors of their own.
 */
void tt_config_fault_entry(struct tt_config *cfg, struct tt_config_report *report, enum tt_key key, int entry,
                           const char *fmt, ...) TT_PRINTF(5, 6);

/** For a check: whether an error about the key has been reported. */
bool tt_config_is_bad(const struct tt_config *cfg, enum tt_key key);

/**
 * For commands that calculate and do not train, before loading: a value whose feature is not built yet is no error; it
 * is appended to `unbuilt` as a line "key=value". `unbuilt` must outlive the loading.
 */
void tt_config_tolerate_unbuilt(struct tt_config *cfg, struct tt_text *unbuilt);

/**
 * Fills a model.* key, a number or a boolean, from the flavor, unless a file or a flag has set it; origin "flavor".
 * TT_EINTERNAL for any other key.
 */
int tt_config_set_flavor(struct tt_config *cfg, enum tt_key key, double value) TT_MUST_CHECK;

/**
 * Whether a file or a flag set the key; false for defaults, values from the flavor, and keys that follow other keys.
 */
bool tt_config_is_set(const struct tt_config *cfg, enum tt_key key);

/**
 * Sets a key from a source other than files and flags. `value` is written as for a flag; `origin` names the source.
 * TT_EDATA when the key does not accept the value.
 */
int tt_config_adopt(struct tt_config *cfg, enum tt_key key, const char *value, const char *origin) TT_MUST_CHECK;

/**
 * Where a value came from: "default", "flavor", "training.seq_len" (the key that it follows), "builtin:quick",
 * "my.yaml:14", "flag --optimizer.lr". Valid until the key is set again.
 */
const char *tt_config_origin(const struct tt_config *cfg, enum tt_key key);

/**
 * A remedy for a relative path that does not exist, but would exist relative to the folder of the configuration file
 * that sets the key; otherwise NULL. The caller frees it (tt_free).
 */
char *tt_config_beside(const struct tt_config *cfg, enum tt_key key);

/** The choice that the user probably meant by a word: another trainer's word for it, or a similar word; NULL: none. */
const char *tt_config_meant(const char *word, const char *const *choices, int n);

/** If the error has a key and cfg is not NULL: puts the key, and where the user set it, before the message. Returns
 * rc. */
int tt_config_locate(const struct tt_config *cfg, int rc);

/**
 * Writes a torchtitan configuration as YAML for titan. The text is TOML (all versions up to v0.2.2), or the JSON that
 * torchtitan saves (later versions too). Every key is accounted for:
 *
 * - a key that titan has, perhaps under another name (foreign.def), is written with its value;
 * - a key that titan does not have and that changes nothing becomes a comment that says why;
 * - a value that titan refuses, or the name of a dataset or optimizer that titan lacks, is written unchanged after a
 * comment with the reason, so that the file does not run until the user has decided about it.
 *
 * Where torchtitan's default differs from titan's and the file does not set the key, a comment says so. `args` are
 * overrides, which take precedence over the file. TT_EUSAGE: the text is neither TOML nor JSON, or contains keys or
 * values that torchtitan does not know either; one message names all of them with their places.
 */
int tt_config_import(const char *name, const char *text, size_t size, int n_args, const char *const *args,
                     struct tt_text *out) TT_MUST_CHECK;

/* ---- the table of keys ---- */

enum tt_config_kind {
    TT_KIND_BOOL,
    TT_KIND_MAYBE,
    TT_KIND_INT,
    TT_KIND_REAL,
    TT_KIND_TEXT,
    TT_KIND_ENUM,
    TT_KIND_WORD,
    TT_KIND_WORDS,
    TT_KIND_DATASETS,
};

/** See core/keys/schema.def. */
enum tt_config_flag {
    TT_FLAG_OWN = 1,
    TT_FLAG_NULLABLE = 2,
    TT_FLAG_BYTES = 4,
    TT_FLAG_NOT_ZERO = 8,
    TT_FLAG_NOT_EMPTY = 16,
    TT_FLAG_PATTERNS = 32,
    TT_FLAG_LIST = 64,
    TT_FLAG_INTEGER = 128,
    TT_FLAG_SIZED = 256,
    TT_FLAG_NULL_DEFAULT = 512,
    TT_FLAG_RULES = 1024,
    TT_FLAG_PARTS = 2048,
    TT_FLAG_PERCENT = 4096,
    TT_FLAG_CURVE = 8192,
    TT_FLAG_SHAPES = 16384,
    TT_FLAG_WEIGHTS = 32768,
    TT_FLAG_QUIET = 65536,
    TT_FLAG_SECONDS = 131072,
    TT_FLAG_FILES = 262144,
};

/** The largest integer that a key accepts: one less than the value to which larger numbers saturate. */
#define TT_NO_LIMIT (INT64_MAX - 1)

struct tt_choice {
    const char *word;
    int value;
    bool is_alias;
};

struct tt_choices {
    const struct tt_choice *choice;
    int n;
};

struct tt_config_row {
    enum tt_key id;
    const char *section; /* "training", "model.rope_scaling" */
    const char *key;     /* "seq_len" */
    const char *path;    /* "training.seq_len" */
    enum tt_config_kind kind;
    int flags;          /* enum tt_config_flag */
    size_t offset;      /* offset of the member in struct tt_config */
    const char *preset; /* the default in the form of a flag's value; NULL for null */
    int64_t low, high;  /* for TT_KIND_INT */
    double low_real, high_real;
    const char *zero_word; /* the word that means 0: "auto", "op"; NULL: none */
    const struct tt_choices *choices;
    const char *doc;
    /* torchtitan's default if it differs, in the form of a flag's value, and the reason; or NULL */
    const char *theirs, *why;
    /* the values that work today, "a|b", and the feature that the other values need; NULL: all work */
    const char *works, *needs;
    /* `assumed`: what predictions for GPU clusters assume instead of the value; NULL: they use the value, or do not
     * depend on it. `usual`: the values that agree with the assumption, "a|b"; NULL: the default. A plan of titan's own
     * memory uses `planned` keys. */
    const char *assumed, *usual;
    bool planned;
};

struct tt_config_section {
    const char *name;
    const char *doc;
};

/**
 * Entry i of training.dataset or validation.dataset, completed from other keys: the path of a single dataset, and the
 * text field. The config owns the texts.
 */
struct tt_dataset_entry tt_config_dataset(const struct tt_config *cfg, const struct tt_datasets *datasets, int i);

/** The keys of an entry; offsets are those in struct tt_dataset_entry. */
extern const struct tt_config_row tt_config_entry_rows[];
extern const int tt_config_n_entry_rows;

extern const struct tt_config_row tt_config_rows[];
extern const int tt_config_n_rows;
extern const struct tt_config_section tt_config_sections[];
extern const int tt_config_n_sections;

const struct tt_config_row *tt_config_row(enum tt_key key);

/** The row of a path or an alias, in which '-' counts as '_'; NULL if there is none. */
const struct tt_config_row *tt_config_row_find(const char *path);

/** Appends the value as a flag would give it ("null", "8e-4", "[a,b]"). */
void tt_config_value_text(const struct tt_config *cfg, const struct tt_config_row *row, struct tt_text *out);

/** The word of a constant; an alias resolves to it. */
const char *tt_config_choice_word(const struct tt_choices *choices, int value);

/** Appends the choices of a key, except aliases and choices that are not built yet. */
void tt_config_choices_text(const struct tt_config_row *row, const char *between, struct tt_text *out);

/**
 * Appends the accepted values of a key, except those that are not built yet: "at least 1", "0 to 1",
 * "linear|sqrt|cosine".
 */
void tt_config_range_text(const struct tt_config_row *row, struct tt_text *out);

/* ---- output ---- */

enum tt_config_comments {
    TT_CONFIG_PLAIN,
    TT_CONFIG_ORIGINS,  /* the origin of every value at the end of its line */
    TT_CONFIG_TEMPLATE, /* with the documentation of every key: a file to start from */
};

/** Appends the resolved configuration as YAML that tt_config_load reads back to the same values. */
void tt_config_to_yaml(const struct tt_config *cfg, enum tt_config_comments comments, struct tt_text *out);

/** {"training": {"seq_len": 2048, ...}, ...}; with origins every value is {"value": v, "origin": text}. json_decref. */
json_t *tt_config_to_json(const struct tt_config *cfg, bool with_origins);

/** One value in JSON; json_decref. */
json_t *tt_config_value_json(const struct tt_config *cfg, const struct tt_config_row *row);

/** Appends all keys as flags with default, meaning and range, in lines of at most 100 columns. */
void tt_config_help(struct tt_text *out);

/** Appends the sections with the names of their keys, for --help. */
void tt_config_help_sections(struct tt_text *out);

/* ---- built-in configurations ---- */

struct tt_config_builtin {
    const char *name; /* "builtin:quick" */
    const char *text;
};

extern const struct tt_config_builtin tt_config_builtins[];
extern const int tt_config_n_builtins;

/** What happens if an inactive torchtitan key does not have its neutral value; see foreign.def. */
enum tt_inactive_kind { TT_INACTIVE_REFUSED, TT_INACTIVE_NOTE, TT_INACTIVE_IDLE };

/** torchtitan keys that titan does not have. */
struct tt_config_inactive {
    const char *path; /* or "section.*" */
    enum tt_inactive_kind kind;
    const char *neutral; /* values accepted without a note: "a|b"; NULL: none */
    const char *why;
};

extern const struct tt_config_inactive tt_config_inactives[];
extern const int tt_config_n_inactives;

#endif
