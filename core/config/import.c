/* SPDX-License-Identifier: MIT
 *
 * Reads a torchtitan configuration. Every key of the file becomes an item, and schema.def and foreign.def decide its
 * fate.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/config/internal.h"

enum fate { KEPT, REFUSED, LEFT_OUT };

/* A key of the file. */
struct item {
    char *was;                       /* the key in the file: "checkpoint.enable_checkpoint" */
    const char *path;                /* titan's name for it, or `was` if titan has no such key */
    const struct tt_config_row *row; /* NULL: titan has no such key */
    const struct tt_yaml *value;     /* in the file; NULL: the value is only in cfg */
    enum fate fate;
    bool is_written;
    /* why it is refused or left out, perhaps with "\nhelp: ..."; for a key that is kept, a remark or NULL */
    char *why;
};

struct import {
    struct tt_config *cfg; /* the values of the items that are kept */
    struct item *item;     /* in the order of the file */
    int n, cap;
    bool is_resolved; /* JSON that torchtitan has saved, with the defaults */
    struct tt_config_report report;
};

static const struct {
    const char *was, *path;
} renamed[] = {
#define TT_RENAMED(was, path) {was, path},
#include "core/config/foreign.def"
};

/* The paths of torchtitan's own datasets. titan needs them because it downloads nothing. */
static const struct {
    const char *word, *path, *remark;
} places[] = {
    {"c4_test", "tests/assets/c4_test", "torchtitan's c4_test is this folder of its repository"},
    {"c4", "allenai/c4",
     "torchtitan streams this dataset from Hugging Face, but titan downloads nothing: name a folder with its files"},
    {"c4_validation", "allenai/c4",
     "torchtitan streams the validation part from Hugging Face, but titan downloads nothing: name a folder with its "
     "files"},
};

/* The item of a key, by titan's name; NULL: the file does not contain it. */
static struct item *find_item(const struct import *import, const char *path)
{
    for (int i = 0; i < import->n; i++)
        if (strcmp(import->item[i].path, path) == 0)
            return &import->item[i];
    return NULL;
}

/* Adds an item for a key that the file does not contain. */
static struct item *add_item(struct import *import, const struct tt_config_row *row)
{
    TT_PUSH(import->item, import->n, import->cap) =
        (struct item){.was = tt_strdup(row->path), .path = row->path, .row = row};
    return &import->item[import->n - 1];
}

/* Makes the item one of titan's key, whose value is in cfg. Takes ownership of why. */
static void translate(struct item *item, const struct tt_config_row *row, char *why)
{
    tt_free(item->why);
    *item = (struct item){.was = item->was, .path = row->path, .row = row, .why = why};
}

/* Sets a key from the text of a flag's value. */
static bool set_key(struct import *import, const struct tt_config_row *row, const char *text)
{
    return tt_config_flag_set(row, tt_config_member(import->cfg, row), text, NULL);
}

/* The name that titan's tables use for a key in a renamed section; NULL if they do not contain it. */
static const char *in_renamed_section(const char *was, const char *section, const char *path)
{
    size_t n = strlen(section) - 1; /* without the * */
    const struct tt_config_row *row;
    const struct tt_config_inactive *inactive;
    char *name;

    if (section[n] != '*' || strncmp(was, section, n) != 0)
        return NULL;
    name = tt_format("%.*s%s", (int)strlen(path) - 1, path, was + n);
    row = tt_config_row_find(name);
    inactive = row ? NULL : tt_config_inactive_find(name);
    tt_free(name);
    return row ? row->path : inactive && !strchr(inactive->path, '*') ? inactive->path : NULL;
}

static const char *current_name(const char *was)
{
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        const char *path = strcmp(renamed[i].was, was) == 0 ? renamed[i].path
                                                            : in_renamed_section(was, renamed[i].was, renamed[i].path);

        if (path)
            return path;
    }
    return was;
}

/* The reason for refusing an unknown word that a project may have added to torchtitan (a dataset, model or optimizer);
 * the file is then not wrong. NULL: the value is no such word. */
static const char *unknown_word(const struct item *item, struct tt_text *why)
{
    bool is_dataset = item->row->kind == TT_KIND_DATASETS;

    if (item->value->kind != TT_YAML_SCALAR || !item->value->is_quoted || !why->text ||
        !(is_dataset || item->row->kind == TT_KIND_WORD || item->row->kind == TT_KIND_ENUM))
        return NULL;
    if (is_dataset)
        why->text[strcspn(why->text, "\n")] = '\0';
    why->size = strlen(why->text);
    if (is_dataset)
        tt_text_add(why,
                    "; torchtitan makes it in Python code\nhelp: write its text to files, and set %s to jsonl or "
                    "text and %s_path to them",
                    item->row->path, item->row->path);
    return why->text;
}

/* Reads a key that titan has too. Keeps its value, or refuses it because titan does not support it, yet or on
 * purpose. */
static bool read_row(struct import *import, struct item *item)
{
    struct tt_text why = {0}, value = {0};
    const struct tt_yaml *at = item->value;
    bool is_scalar = item->value->kind == TT_YAML_SCALAR;
    const struct tt_config_foreign *word =
        is_scalar ? tt_config_foreign_find(item->row->path, item->value->text) : NULL;
    const char *refused = word && word->is_refused ? word->text : NULL;
    bool ok = tt_config_member_set(item->row, tt_config_member(import->cfg, item->row), item->value, false, &why, &at);

    if (!ok && is_scalar && item->row->kind == TT_KIND_WORDS) { /* earlier versions wrote lists as text with commas */
        ok = set_key(import, item->row, item->value->text);
        item->value = ok ? NULL : item->value;
    }
    if (!ok && !refused)
        refused = unknown_word(item, &why);
    if (ok) {
        tt_config_value_text(import->cfg, item->row, &value);
        if (item->row->works && !tt_text_is_listed(value.text, item->row->works)) {
            item->fate = REFUSED;
            item->why = tt_format("it needs %s, which titan does not have yet", item->row->needs);
        }
    } else if (refused) {
        item->fate = REFUSED;
        item->why = tt_strdup(refused);
    } else {
        tt_config_report_at(&import->report, at, item->was, "%s", why.text);
    }
    tt_text_release(&why);
    tt_text_release(&value);
    return ok || refused;
}

/* Whether the value, or the only value in a list, requests float8 GEMMs; titan trains the same model without float8. */
static bool asks_for_float8(const char *path, const struct tt_yaml *value)
{
    static const char keys[] = "model.converters|float8.enable_float8_linear|training.enable_float8_linear|"
                               "training.enable_fp8_linear";

    if (value->kind == TT_YAML_LIST && value->n == 1)
        value = value->item[0];
    return value->kind == TT_YAML_SCALAR && tt_text_is_listed(path, keys) &&
           tt_text_is_listed(value->text, "float8|quantize.linear.float8|true");
}

static void read_inactive(struct import *import, struct item *item, const struct tt_config_inactive *row)
{
    const struct tt_config_row *mask = tt_config_row(TT_KEY(training.document_mask));
    /* a resolved file already contains the values of the files that it was made from */
    bool is_refused = row->kind == TT_INACTIVE_REFUSED && !tt_config_inactive_is_neutral(row, item->value) &&
                      !(import->is_resolved && strcmp(item->path, "job.config_file") == 0);

    if (strcmp(item->path, "model.attn_mask_type") == 0 && item->value->kind == TT_YAML_SCALAR &&
        strcasecmp(item->value->text, "block_causal") == 0) {
        translate(item, mask, tt_format("%s = block_causal in the file", item->was));
        (void)set_key(import, mask, "true");
    } else if (asks_for_float8(item->path, item->value)) {
        item->fate = LEFT_OUT;
        item->why = tt_strdup("titan computes these products in training.mixed_precision_param, which is more exact");
    } else {
        item->fate = is_refused ? REFUSED : LEFT_OUT;
        item->why = tt_strdup(row->why);
    }
}

static void read_map(struct import *import, const char *prefix, const struct tt_yaml *map);

static void read_pair(struct import *import, char *was, const struct tt_yaml *key, const struct tt_yaml *value);

/* Reads a single group that contains all parameters, as in versions of 2026, as the keys of section optimizer. */
static bool read_only_group(struct import *import, const struct tt_yaml *key, const struct tt_yaml *groups)
{
    const struct tt_yaml *group = groups->kind == TT_YAML_LIST && groups->n == 1 ? groups->item[0] : NULL;
    const struct tt_yaml *pattern = tt_yaml_get(group, "pattern"), *name = tt_yaml_get(group, "optimizer_name"),
                         *arguments = tt_yaml_get(group, "optimizer_kwargs");

    if (!pattern || pattern->kind != TT_YAML_SCALAR || strcmp(pattern->text, ".*") != 0 || !name || !arguments ||
        arguments->kind != TT_YAML_MAP)
        return false;
    read_pair(import, tt_strdup(TT_KEY_NAME(optimizer.name)), key, name);
    for (int i = 0; i < arguments->n; i++) {
        const struct tt_yaml *value = arguments->item[i];

        if (strcmp(arguments->key[i]->text, "betas") == 0 && value->kind == TT_YAML_LIST && value->n == 2) {
            read_pair(import, tt_strdup(TT_KEY_NAME(optimizer.beta1)), arguments->key[i], value->item[0]);
            read_pair(import, tt_strdup(TT_KEY_NAME(optimizer.beta2)), arguments->key[i], value->item[1]);
        } else {
            read_pair(import, tt_format("optimizer.%s", arguments->key[i]->text), arguments->key[i], value);
        }
    }
    return true;
}

static void read_pair(struct import *import, char *was, const struct tt_yaml *key, const struct tt_yaml *value)
{
    struct item item = {.was = was, .path = current_name(was), .value = value};
    const struct tt_config_inactive *inactive;
    const struct item *other;
    bool is_good = false;

    item.row = tt_config_row_find(item.path);
    if (item.row)
        item.path = item.row->path; /* an alias */
    inactive = item.row ? NULL : tt_config_inactive_find(item.path);
    other = find_item(import, item.path);
    if (import->is_resolved && tt_yaml_is_null(value) &&
        !(item.row && item.row->flags & (TT_FLAG_NULLABLE | TT_FLAG_NULL_DEFAULT))) {
        tt_free(was); /* a resolved file contains all keys; this one is not set */
        return;
    }
    if (strcmp(was, "optimizer.param_groups") == 0 && read_only_group(import, key, value)) {
        tt_free(was);
        return;
    }
    if (!item.row && value->kind == TT_YAML_MAP && (!inactive || (value->n && strchr(inactive->path, '*')))) {
        read_map(import, was, value);
    } else if (other) {
        tt_config_report_at(&import->report, key, was, "'%s' is set already, by '%s'", item.path, other->was);
    } else if (item.row) {
        is_good = read_row(import, &item);
    } else if (inactive) {
        read_inactive(import, &item, inactive);
        is_good = true;
    } else {
        tt_config_report_unknown(&import->report, key, was);
    }
    if (is_good)
        TT_PUSH(import->item, import->n, import->cap) = item;
    else
        tt_free(was);
}

static void read_map(struct import *import, const char *prefix, const struct tt_yaml *map)
{
    for (int i = 0; i < map->n; i++) {
        char *was = tt_format("%s%s%s", prefix, *prefix ? "." : "", map->key[i]->text);

        read_pair(import, was, map->key[i], map->item[i]);
    }
}

/* Reads an override, which replaces the value in the file. */
static void read_override(void *arg, const struct tt_override *override, const char *where)
{
    struct import *import = arg;
    const struct tt_config_row *row = tt_config_row_find(override->path);
    struct item *item = row ? find_item(import, row->path) : NULL;
    struct tt_text why = {0};

    if (!row)
        tt_config_report_unknown_flag(&import->report, where, override->path);
    else if (!override->value)
        tt_config_report_add(&import->report, where, "needs a value");
    else if (!tt_config_flag_set(row, tt_config_member(import->cfg, row), override->value, &why))
        tt_config_report_add(&import->report, where, "%s", why.text);
    else
        translate(item ? item : add_item(import, row), row, NULL);
    tt_text_release(&why);
}

/* Adds the place of a torchtitan dataset if the file does not give one. */
static void add_place(struct import *import, enum tt_key dataset, enum tt_key dataset_path)
{
    const struct item *item = find_item(import, tt_key_name(dataset));
    const struct tt_config_row *row = tt_config_row(dataset_path);
    const char *word = item && item->value ? item->value->text : NULL;

    for (size_t i = 0; word && !find_item(import, row->path) && i < sizeof places / sizeof *places; i++)
        if (strcmp(word, places[i].word) == 0 && set_key(import, row, places[i].path))
            add_item(import, row)->why = tt_strdup(places[i].remark);
}

/* The code of an escape \uXXXX, or -1. */
static int64_t escape_at(const char *text, const char *end)
{
    return end - text >= 6 && text[0] == '\\' && text[1] == 'u' ? tt_text_hex(text + 2, 4, 4) : -1;
}

/* Joins pairs of escapes: JSON writes a character beyond 16 bits as two escapes, which YAML does not allow. Half a pair
 * becomes U+FFFD. */
static void join_escapes(const char *text, size_t size, struct tt_text *out)
{
    const char *end = text + size, *at = text;

    while (at < end) {
        int64_t code = escape_at(at, end), low = code >= 0xd800 && code < 0xdc00 ? escape_at(at + 6, end) : -1;
        bool is_pair = low >= 0xdc00 && low < 0xe000;
        char bytes[4];

        if (code >= 0xd800 && code < 0xe000) {
            uint32_t whole = is_pair ? (uint32_t)(0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00)) : 0xfffd;

            tt_text_add_bytes(out, bytes, (size_t)tt_utf8_encode(whole, bytes));
            at += is_pair ? 12 : 6;
        } else if (*at == '\\' && at + 1 < end) {
            tt_text_add_bytes(out, at, 2);
            at += 2;
        } else {
            tt_text_add_bytes(out, at++, 1);
        }
    }
}

static bool parse(struct import *import, const char *text, size_t size, struct tt_yaml_doc *doc, int *line, int *column,
                  struct tt_text *why)
{
    size_t begin = strspn(text, " \t\r\n");
    struct tt_text joined = {0};
    bool ok;

    import->is_resolved = begin < size && text[begin] == '{';
    if (!import->is_resolved)
        return tt_toml_parse(text, size, doc, line, column, why);
    join_escapes(text, size, &joined);
    ok = tt_yaml_parse(joined.text, joined.size, doc, line, column, why);
    tt_text_release(&joined);
    return ok;
}

/* The value of a key that titan has under another name and in another unit; 0 if it is not set, or if titan's own key
 * is set. */
static int64_t number_of(const struct import *import, const char *was, enum tt_key key)
{
    const struct item *item = find_item(import, was);

    return item && item->value && item->value->kind == TT_YAML_SCALAR && !find_item(import, tt_key_name(key))
               ? strtoll(item->value->text, NULL, 10)
               : 0;
}

static void translate_number(struct import *import, const char *was, int64_t n, enum tt_key key, int64_t value)
{
    const struct tt_config_row *row = tt_config_row(key);
    struct item *item = find_item(import, was);

    translate(item, row, tt_format("%s = %" PRId64 " in the file", item->was, n));
    *(int64_t *)tt_config_member(import->cfg, row) = value;
}

/* Translates tokens, the unit of versions of 2026, to samples, titan's unit. */
static void translate_tokens(struct import *import)
{
    static const struct {
        const char *was;
        enum tt_key key;
    } counts[] = {{"training.max_context_length", TT_KEY(training.seq_len)},
                  {"training.num_tokens_per_microbatch_per_dp_rank", TT_KEY(training.local_batch_size)},
                  {"training.num_tokens_per_train_step", TT_KEY(training.global_batch_size)}};

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t n = number_of(import, counts[i].was, counts[i].key), each = i ? import->cfg->training.seq_len : 1;

        if (n >= 1 && n <= INT64_C(1) << 40 && n % each == 0)
            translate_number(import, counts[i].was, n, counts[i].key, n / each);
    }
}

/* Translates a number of microbatches to the samples in one microbatch. In earlier files, the local batch is split into
 * microbatches. In later files, each microbatch has the size of the local batch, so titan's local batch covers all
 * microbatches. */
static void translate_microbatches(struct import *import, const char *was, bool each_has_batch)
{
    const struct tt_config_row *batch = tt_config_row(TT_KEY(training.local_batch_size));
    enum tt_key size = TT_KEY(parallelism.pipeline_parallel_microbatch_size);
    int64_t n = number_of(import, was, size), local = import->cfg->training.local_batch_size;
    struct item *other;

    if (n < 1 || n > INT32_MAX || local > INT32_MAX || (!each_has_batch && local % n != 0))
        return;
    translate_number(import, was, n, size, each_has_batch ? local : local / n);
    if (!each_has_batch || n == 1)
        return;
    import->cfg->training.local_batch_size = n * local;
    other = find_item(import, batch->path);
    other = other ? other : add_item(import, batch);
    tt_free(other->why);
    other->why = tt_format("%" PRId64 " microbatches of %" PRId64 " samples", n, local);
}

/* ---- writing, as YAML with comments: titan's sections in their order, then the sections that titan lacks ---- */

/* Adds a comment of one or more lines; a help line begins a new line. */
static void comment(struct tt_text *out, int indent, const char *text)
{
    char *copy = tt_strdup(text), *rest = NULL;

    for (char *c = copy; *c; c++) /* YAML guarantees no other characters in comments */
        *c = *c == '\n' || (*c >= 0x20 && *c < 0x7f) ? *c : '?';
    for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        tt_config_wrap(out, indent, "# ", line);
    tt_free(copy);
}

/* Whether the value in the file is a word or a number that YAML writes in the same way. */
static bool is_bare(const struct tt_yaml *node)
{
    for (const char *c = node->text; *c; c++)
        if (!isalnum((unsigned char)*c) && (c == node->text || (*c != '.' && *c != '_')))
            return false;
    return !node->is_quoted;
}

static void write_node(const struct tt_yaml *node, struct tt_text *out)
{
    if (node->kind == TT_YAML_SCALAR) {
        if (is_bare(node))
            tt_text_add(out, "%s", node->text);
        else
            tt_yaml_write_text(out, node->text);
        return;
    }
    tt_text_add(out, node->kind == TT_YAML_LIST ? "[" : "{");
    for (int i = 0; i < node->n; i++) {
        tt_text_add(out, i ? ", " : "");
        if (node->kind == TT_YAML_MAP) {
            tt_yaml_write_text(out, node->key[i]->text);
            tt_text_add(out, ": ");
        }
        write_node(node->item[i], out);
    }
    tt_text_add(out, node->kind == TT_YAML_LIST ? "]" : "}");
}

/* Whether path is a key of the section itself. */
static bool is_in(const char *path, const char *section)
{
    size_t n = strlen(section);

    return strncmp(path, section, n) == 0 && path[n] == '.' && !strchr(path + n + 1, '.');
}

static void write_item(const struct import *import, const struct item *item, int indent, struct tt_text *out)
{
    struct tt_text note = {0};

    if (item->fate == LEFT_OUT) {
        tt_text_add(&note, "left out: %s = ", item->was);
        if (item->value->kind == TT_YAML_MAP && item->value->n)
            tt_text_add(&note, "{...}");
        else
            write_node(item->value, &note);
        tt_text_add(&note, " (%.*s)", (int)strcspn(item->why, "\n"), item->why);
    } else if (item->fate == REFUSED) {
        tt_text_add(&note, "refused: %s", item->why);
    } else if (item->why) {
        tt_text_add(&note, "%s", item->why);
    } else if (strcmp(item->was, item->path) != 0) {
        tt_text_add(&note, "%s in the file", item->was);
    }
    if (note.size)
        comment(out, indent, note.text);
    tt_text_release(&note);
    if (item->fate == LEFT_OUT)
        return;
    tt_text_add(out, "%*s%s: ", indent, "", strrchr(item->path, '.') + 1);
    if (item->value && (!item->row || item->fate == REFUSED))
        write_node(item->value, out);
    else
        tt_config_yaml_value(import->cfg, item->row, out);
    tt_text_add(out, "\n");
}

/* Adds a comment about a key that the file does not set and whose defaults differ. Defaults for validation matter only
 * if validation is on. */
static void write_difference(const struct import *import, const struct tt_config_row *row, int indent,
                             struct tt_text *out)
{
    struct tt_text value = {0}, note = {0};

    if (find_item(import, row->path) || (is_in(row->path, "validation") && !import->cfg->validation.enable))
        return;
    tt_config_value_text(import->cfg, row, &value);
    tt_text_add(&note, "not set: %s; torchtitan's default is %s, titan's is %s: %s", row->path, row->theirs,
                value.size ? value.text : "empty", row->why);
    comment(out, indent, note.text);
    tt_text_release(&value);
    tt_text_release(&note);
}

static int count_written(const struct import *import, const char *section)
{
    int n = 0;

    for (int i = 0; i < import->n; i++)
        n += is_in(import->item[i].path, section) && import->item[i].fate != LEFT_OUT;
    return n;
}

/* Writes the items of a section with their comments. A section without keys consists only of comments. */
static void write_section(struct import *import, const char *section, struct tt_text *out)
{
    const char *dot = strchr(section, '.');
    char *outer = tt_strndup(section, strcspn(section, "."));
    bool is_open = count_written(import, section) > 0;
    int indent = is_open ? dot ? 4 : 2 : 0;

    if (is_open && dot && !count_written(import, outer))
        tt_text_add(out, "%s:\n", outer);
    tt_free(outer);
    if (is_open)
        tt_text_add(out, "%s%s:\n", dot ? "  " : "", dot ? dot + 1 : section);
    for (int i = 0; i < import->n; i++)
        if (is_in(import->item[i].path, section)) {
            write_item(import, &import->item[i], indent, out);
            import->item[i].is_written = true;
        }
    for (int i = 0; i < tt_config_n_rows; i++)
        if (tt_config_rows[i].theirs && is_in(tt_config_rows[i].path, section))
            write_difference(import, &tt_config_rows[i], indent, out);
}

static void write_items(struct import *import, struct tt_text *out)
{
    struct tt_text note = {0};

    tt_text_add(&note,
                "Made from %s by `titan config import`. Comments name what was left out, what titan refuses, and where "
                "titan's default differs from that of torchtitan v0.2.2.",
                import->report.name);
    comment(out, 0, note.text);
    tt_text_release(&note);
    for (int s = 0; s < tt_config_n_sections; s++)
        write_section(import, tt_config_sections[s].name, out);
    for (int i = 0; i < import->n; i++) {
        const char *path = import->item[i].path;
        char *section = tt_strndup(path, (size_t)(tt_config_leaf(path) - path - 1));

        if (!import->item[i].is_written) /* titan has no such section */
            write_section(import, section, out);
        tt_free(section);
    }
}

int tt_config_import(const char *name, const char *text, size_t size, int n_args, const char *const *args,
                     struct tt_text *out)
{
    struct import import = {.report = {.name = name}};
    struct tt_yaml_doc doc = {0};
    struct tt_text why = {0};
    int line = 0, column = 0, rc;

    TT_TRY(tt_config_new(&import.cfg));
    if (tt_text_ends(name, ".py")) {
        tt_config_report_add(&import.report, name, "%s", tt_config_python);
    } else if (!parse(&import, text, size, &doc, &line, &column, &why)) {
        tt_config_report_at(&import.report, &(struct tt_yaml){.line = line, .column = column}, NULL, "%s", why.text);
    } else {
        read_map(&import, "", doc.root);
        tt_override_each(n_args, args, &import.report, read_override, &import);
    }
    TT_TRY(tt_config_report_finish(&import.report));
    translate_tokens(&import);
    translate_microbatches(&import, "parallelism.pipeline_parallel_microbatches", false);
    translate_microbatches(&import, "parallelism.num_pp_microbatches", true);
    add_place(&import, TT_KEY(training.dataset), TT_KEY(training.dataset_path));
    add_place(&import, TT_KEY(validation.dataset), TT_KEY(validation.dataset_path));
    write_items(&import, out);
out:
    for (int i = 0; i < import.n; i++) {
        tt_free(import.item[i].was);
        tt_free(import.item[i].why);
    }
    tt_free(import.item);
    tt_config_free(import.cfg);
    tt_yaml_release(&doc);
    tt_text_release(&why);
    return rc;
}
