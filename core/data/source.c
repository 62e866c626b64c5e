/* SPDX-License-Identifier: MIT
 *
 * The files of a corpus and their documents: texts, lines of JSON lines, rows of tables.
 */
#include "core/data/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <sys/stat.h>

#include <glob.h>

#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/data/chat.h"
#include "core/data/html.h"
#include "core/data/reader.h"
#include "core/data/table.h"
#include "core/os/file.h"

/* ---- the files ---- */

enum { DEEPEST_FOLDER = 16, HASH_BLOCK = 1 << 20, PROGRESS_BYTES = 1 << 17 };

/* Whether such a name belongs only to files of JSON lines. */
static bool is_lines_name(const char *name)
{
    static const char *const suffix[] = {".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst"};
    bool found = false;

    for (size_t i = 0; i < sizeof suffix / sizeof suffix[0]; i++)
        found = found || tt_text_ends(name, suffix[i]);
    return found;
}

static bool is_jsonl_name(const char *name)
{
    return is_lines_name(name) || tt_text_ends(name, ".json") || tt_text_ends(name, ".json.gz") ||
           tt_text_ends(name, ".json.zst");
}

/* Whether the file contains JSON lines, compressed in a way that titan does not read. */
static bool is_other_lines_name(const char *name)
{
    static const char *const packed[] = {".xz", ".bz2", ".lz4", ".lzma", ".br", ".zip", ".7z", ".Z"};
    bool found = false;

    for (size_t i = 0; i < sizeof packed / sizeof *packed && !found; i++) {
        char *plain = tt_strndup(name, strlen(name) - (tt_text_ends(name, packed[i]) ? strlen(packed[i]) : 0));

        found = tt_text_ends(name, packed[i]) && is_jsonl_name(plain);
        tt_free(plain);
    }
    return found;
}

static bool is_table_name(const char *name)
{
    return tt_text_ends(name, ".parquet") || tt_text_ends(name, ".arrow") || tt_text_ends(name, ".feather");
}

/* Files that datasets of Hugging Face put beside their data. */
static bool is_about_data(const char *name)
{
    return tt_text_is_one_of(name, "dataset_info.json|dataset_infos.json|dataset_dict.json|state.json");
}

/* Fails for a file that dataset 'text' would misread, by its name. */
static int refuse_text(const char *path)
{
    static const struct {
        const char *ending, *what, *help;
    } other[] = {
        {".parquet", "a table", "dataset 'parquet' reads it"},
        {".arrow", "a table", "dataset 'arrow' reads it"},
        {".feather", "a table", "dataset 'arrow' reads it"},
        {".pdf", "a PDF file, which titan does not read", "make text of it: pdftotext FILE.pdf"},
        {".epub", "a book in a zip archive, which titan does not read",
         "make text of it: pandoc -t plain -o FILE.txt FILE.epub"},
        {".docx", "a document of a word processor, which titan does not read",
         "make text of it: pandoc -t plain -o FILE.txt FILE.docx"},
        {".odt", "a document of a word processor, which titan does not read",
         "make text of it: pandoc -t plain -o FILE.txt FILE.odt"},
        {".rtf", "a document of a word processor, which titan does not read",
         "make text of it: pandoc -t plain -o FILE.txt FILE.rtf"},
    };

    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        size_t size = strlen(other[i].ending), n = strlen(path);

        if (n > size && strcasecmp(path + n - size, other[i].ending) == 0)
            return tt_fail(TT_EDATA, "'%s' is %s\nhelp: %s", path, other[i].what, other[i].help);
    }
    if (is_lines_name(path))
        return tt_fail(TT_EDATA,
                       "'%s' holds JSON lines, and dataset 'text' would take their braces and quotes for text\n"
                       "help: dataset 'jsonl' reads them",
                       path);
    return 0;
}

/* A folder, and the folder through which it was reached. */
struct nested {
    const struct nested *parent;
    const char *path;
    dev_t device;
    ino_t node;
    int depth;
};

/* Identifies a folder, and fails if the folder contains itself through a link. */
static int enter(struct nested *here)
{
    struct stat st;

    if (stat(here->path, &st) < 0)
        return tt_fail(TT_EIO, "cannot examine '%s': %s", here->path, strerror(errno));
    here->device = st.st_dev;
    here->node = st.st_ino;
    here->depth = here->parent ? here->parent->depth + 1 : 0;
    for (const struct nested *up = here->parent; up; up = up->parent)
        if (up->device == here->device && up->node == here->node)
            return tt_fail(
                TT_EDATA, "'%s' is a link to '%s', the folder that contains it: a loop of links\nhelp: remove the link",
                here->path, up->path);
    if (here->depth > DEEPEST_FOLDER)
        return tt_fail(TT_EDATA, "'%s': folders are nested deeper than %d", here->path, DEEPEST_FOLDER);
    return 0;
}

/* Adds the files that state.json lists: the folder may contain others, such as caches. */
static int add_listed(struct tt_source *s, const char *folder, int *n_cap)
{
    char *path = tt_format("%s/state.json", folder);
    json_t *json = NULL, *list, *item;
    size_t i;
    int rc = 0;

    TT_TRY(tt_json_load(path, &json));
    list = json_object_get(json, "_data_files");
    if (!json_is_array(list))
        return tt_fail(TT_EDATA, "%s: no list '_data_files', wanted the files of a dataset\nhelp: name the files: %s/*",
                       path, folder);
    json_array_foreach(list, i, item)
    {
        const char *name = tt_json_plain_string(json_object_get(item, "filename"));

        if (!name || strchr(name, '/'))
            TT_TRY(tt_fail(TT_EDATA, "%s: item %zu of '_data_files' does not name a file of the folder", path, i + 1));
        TT_PUSH(s->path, s->n_paths, *n_cap) = tt_format("%s/%s", folder, name);
    }
out:
    json_decref(json);
    tt_free(path);
    return rc;
}

struct left_out {
    int n;
    char *name; /* of one of them */
};

/* What is done with a file in a folder. */
static int add_file(struct tt_source *s, const char *path, const char *name, int *n_cap, struct left_out *left)
{
    bool wanted =
        s->kind == TT_SOURCE_TEXT ||
        (s->only ? tt_text_ends(name, s->only) : !is_about_data(name) && (is_jsonl_name(name) || is_table_name(name)));

    if (is_other_lines_name(path)) /* otherwise it would be left out, or misread as text */
        return tt_fail(
            TT_EDATA, "'%s' is packed in a way that titan does not read\nhelp: unpack it, or pack it with gzip or zstd",
            path);
    if (wanted) {
        TT_PUSH(s->path, s->n_paths, *n_cap) = tt_strdup(path);
    } else if (!is_about_data(name)) {
        left->n++;
        tt_free(left->name);
        left->name = tt_strdup(path);
    }
    return 0;
}

static const char *endings(const struct tt_source *s)
{
    return s->only ? s->only : ".jsonl, .json or .ndjson (plain, .gz or .zst), .parquet or .arrow";
}

/* Adds the files below a folder, in the order of their names. */
static int add_folder(struct tt_source *s, const char *folder, const struct nested *parent, int *n_cap)
{
    struct nested here = {.parent = parent, .path = folder};
    struct left_out left = {0};
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(enter(&here));
    TT_TRY(tt_folder_list(folder, &names, &n));
    for (int i = 0; i < n; i++) {
        if (s->kind != TT_SOURCE_TEXT && strcmp(names[i], "state.json") == 0) {
            rc = add_listed(s, folder, n_cap);
            goto out;
        }
    }
    for (int i = 0; i < n; i++) {
        bool is_folder = false;
        char *path;

        if (names[i][0] == '.')
            continue;
        path = tt_format("%s/%s", folder, names[i]);
        rc = tt_path_is_folder(path, &is_folder);
        if (rc == 0)
            rc = is_folder ? add_folder(s, path, &here, n_cap) : add_file(s, path, names[i], n_cap, &left);
        tt_free(path);
        if (rc < 0)
            goto out;
    }
    if (left.n)
        tt_note("%d %s left out, since only files named %s are read: '%s'%s", left.n,
                left.n > 1 ? "files were" : "file was", endings(s), left.name, left.n > 1 ? " is one" : "");
out:
    tt_free(left.name);
    tt_names_free(names, n);
    return rc;
}

/* The name of a split at the end of a word of n letters, as in train-00000-of-00002; NULL if there is none. */
static const char *split_in(const char *word, size_t n)
{
    static const char *const splits[] = {"train", "validation", "valid", "val", "dev", "test", "eval"};
    size_t begin;

    while (n && (strchr("0123456789-", word[n - 1]) || (n > 3 && strncmp(word + n - 3, "-of", 3) == 0)))
        n -= strchr("0123456789-", word[n - 1]) ? 1 : 3;
    for (begin = n; begin && !strchr("-_./", word[begin - 1]);)
        begin--;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        if (strlen(splits[i]) == n - begin && strncmp(word + begin, splits[i], n - begin) == 0)
            return splits[i];
    return NULL;
}

/* The split to which a table belongs, by its name or by its folder's. */
static const char *split_of(const char *path, size_t root)
{
    const char *name = strrchr(path + root, '/'), *dot, *split;

    name = name ? name + 1 : path + root;
    dot = strrchr(name, '.');
    split = is_table_name(name) ? split_in(name, dot ? (size_t)(dot - name) : strlen(name)) : NULL;
    return split || name <= path + root + 1 || !is_table_name(name)
               ? split
               : split_in(path + root, (size_t)(name - 1 - path - root));
}

/* Tables of several splits in one folder would be trained on together. */
static int check_splits(const struct tt_source *s, const char *folder)
{
    const char *first = NULL;

    for (int i = 0; i < s->n_paths; i++) {
        const char *split = split_of(s->path[i], strlen(folder));

        if (first && split && strcmp(first, split) != 0)
            return tt_fail(
                TT_EDATA,
                "'%s' holds the splits '%s' and '%s' of a dataset\nhelp: name the files or the folder of one: "
                "'%s/*%s*'",
                folder, first, split, folder, strcmp(split, "train") == 0 ? split : first);
        first = first ? first : split;
    }
    return 0;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Adds what matches a pattern, in the order of names. */
static int add_matches(struct tt_source *s, const char *pattern, int *n_cap)
{
    glob_t found = {0};
    bool is_folder = false;
    int status = glob(pattern, GLOB_NOSORT, NULL, &found), rc = 0;

    if (status == GLOB_NOSPACE)
        return tt_fail(TT_ENOMEM, "no memory for the files that match '%s'", pattern);
    if (status != 0 || !found.gl_pathc)
        TT_TRY(tt_fail(TT_EDATA, "no file matches '%s'", pattern));
    qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, compare_paths);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        TT_TRY(tt_path_is_folder(found.gl_pathv[i], &is_folder));
        if (is_folder)
            TT_TRY(add_folder(s, found.gl_pathv[i], NULL, n_cap));
        else
            TT_PUSH(s->path, s->n_paths, *n_cap) = tt_strdup(found.gl_pathv[i]);
    }
out:
    globfree(&found);
    return rc;
}

static bool is_pattern(const char *path)
{
    struct stat st;

    return strpbrk(path, "*?[") != NULL && stat(path, &st) < 0 && errno == ENOENT;
}

bool tt_source_is_there(const char *path)
{
    glob_t found = {0};
    struct stat st;
    bool is_there = stat(path, &st) == 0;

    if (!is_there && is_pattern(path)) {
        is_there = glob(path, GLOB_NOSORT, NULL, &found) == 0;
        globfree(&found);
    }
    return is_there;
}

/* Lists the files at a path. */
static int list_files(struct tt_source *source, const char *path)
{
    bool is_folder = false;
    int cap = 0, rc = 0;

    if (is_pattern(path)) {
        TT_TRY(add_matches(source, path, &cap));
    } else {
        TT_TRY(tt_path_is_folder(path, &is_folder));
        if (is_folder) {
            TT_TRY(add_folder(source, path, NULL, &cap));
            TT_TRY(check_splits(source, path));
        } else {
            TT_PUSH(source->path, source->n_paths, cap) = tt_strdup(path);
        }
    }
    if (!source->n_paths)
        return tt_fail(TT_EDATA, "'%s' holds no files%s%s", path, source->kind == TT_SOURCE_TEXT ? "" : " named ",
                       source->kind == TT_SOURCE_TEXT ? "" : endings(source));
out:
    return rc;
}

int tt_source_guess(const char *path, const char **ret_dataset)
{
    struct tt_source all = {.kind = TT_SOURCE_TEXT};
    int rc = 0;

    TT_TRY(list_files(&all, path));
    *ret_dataset = "text";
    for (int i = 0; i < all.n_paths && strcmp(*ret_dataset, "text") == 0; i++) {
        const char *name = all.path[i];

        if (is_lines_name(name) || tt_text_ends(name, ".json.gz") || tt_text_ends(name, ".json.zst"))
            *ret_dataset = "jsonl";
        else if (is_table_name(name))
            *ret_dataset = tt_text_ends(name, ".parquet") ? "parquet" : "arrow";
    }
out:
    tt_source_release(&all);
    return rc;
}

int tt_source_init(struct tt_source *source, enum tt_source_kind kind, const char *path, const char *text_field,
                   const char *only)
{
    int rc = 0;

    source->kind = kind;
    source->only = only;
    source->text_field = tt_strdup(text_field && *text_field ? text_field : "text");
    TT_TRY(list_files(source, path));
    for (int i = 0; i < source->n_paths; i++) {
        struct tt_path_info info;

        if (kind == TT_SOURCE_TEXT)
            TT_TRY(refuse_text(source->path[i]));
        TT_TRY(tt_path_look(source->path[i], &info));
        source->bytes += info.bytes;
    }
out:
    return rc;
}

void tt_source_release(struct tt_source *source)
{
    tt_names_free(source->path, source->n_paths);
    tt_free(source->text_field);
    *source = (struct tt_source){0};
}

int tt_source_hash(const struct tt_source *source, uint64_t *ret_hash)
{
    uint64_t hash = 0;
    int64_t before = 0;
    int rc = 0;

    for (int i = 0; i < source->n_paths; i++) {
        struct tt_reader *reader = NULL;
        struct tt_mapping file;
        size_t size;

        TT_TRY(tt_reader_open(source->path[i], source->builtin, &reader));
        file = tt_reader_stored(reader);
        size = file.size;
        hash = tt_hash64(&size, sizeof size, hash);
        for (size_t at = 0; at < size; at += HASH_BLOCK) {
            hash = tt_hash64(file.data + at, size - at < HASH_BLOCK ? size - at : HASH_BLOCK, hash);
            if (source->bytes > 64 * (int64_t)HASH_BLOCK)
                tt_progress("reading", (double)before + (double)at, (double)source->bytes);
        }
        before += (int64_t)size;
        tt_reader_free(reader);
    }
    *ret_hash = hash;
out:
    return rc;
}

struct walk {
    const struct tt_source *source;
    const char *what;
    tt_document_fn fn;
    void *arg;
    const char *file; /* the file that is being read */
    struct tt_reader *reader;
    bool is_table;
    int64_t line;       /* or row of a table */
    int64_t nulls;      /* documents that are null */
    int64_t done_bytes; /* bytes of the previous files */
    int64_t shown_bytes;
    int64_t text_bytes; /* bytes of all documents */
    int64_t documents;
    struct tt_text text; /* text of a line, or of a page of HTML */
};

static void show_progress(struct walk *w)
{
    int64_t now = w->done_bytes + (int64_t)tt_reader_used(w->reader);

    if (now - w->shown_bytes < PROGRESS_BYTES && now < w->source->bytes)
        return;
    w->shown_bytes = now;
    tt_progress(w->what, (double)now, (double)w->source->bytes);
}

/* Checks text that begins at the present line. */
static int check_utf8(const struct walk *w, const struct tt_piece *piece)
{
    int64_t bad = tt_utf8_invalid(piece->text, piece->size), line = w->line;

    if (bad < 0)
        return 0;
    for (int64_t i = 0; i < bad; i++)
        line += piece->text[i] == '\n';
    return tt_fail(TT_EDATA,
                   "%s:%lld: invalid UTF-8 at byte %lld of the file (0x%02x)\nhelp: is it text? If so, convert "
                   "it: iconv -f ISO-8859-1 -t UTF-8",
                   w->file, (long long)line, (long long)(piece->offset + bad), (unsigned char)piece->text[bad]);
}

static int take_document(struct walk *w, const char *text, size_t size)
{
    int rc = w->fn(w->arg, text, size);

    /* not a fault of the document: writing it failed, or the configuration is wrong */
    if (rc == TT_EIO || rc == TT_EUSAGE)
        return rc;
    if (rc < 0)
        return tt_wrap(rc, w->is_table ? "%s: row %lld" : "%s:%lld", w->file, (long long)w->line);
    w->documents++;
    w->text_bytes += (int64_t)size;
    return 0;
}

static int read_text(struct walk *w)
{
    struct tt_piece all = {0};
    int rc = 0;

    TT_TRY(tt_reader_rest(w->reader, &all));
    w->line = 1;
    TT_TRY(check_utf8(w, &all));
    if (tt_html_is_name(w->file)) {
        w->text.size = 0;
        tt_html_add_text(all.text, all.size, &w->text);
        all = (struct tt_piece){w->text.text, w->text.size, 0};
    }
    if (all.size) /* an empty file is not a document */
        TT_TRY(take_document(w, all.text, all.size));
    show_progress(w);
out:
    return rc;
}

/* Fails because the text field is missing; names the fields of the line, and the one that the user probably meant. */
static int fail_field(const struct walk *w, const struct tt_json_field *f, const char *line, size_t size)
{
    json_t *tree = f->value ? NULL : tt_json_value_tree(line, size), *value;
    const char *key, *first = NULL;
    struct tt_text names = {0};
    bool is_chat = false;
    int rc;

    if (f->value)
        return tt_fail(TT_EDATA, "%s:%lld: field '%s' is %s, wanted a string", w->file, (long long)w->line, f->name,
                       tt_json_kind_name(f->kind));
    json_object_foreach(tree, key, value)
    {
        is_chat = is_chat || tt_text_is_one_of(key, TT_CHAT_NAMES);
        first = !first && json_is_string(value) ? key : first;
        if (names.size < 400)
            tt_text_add(&names, "%s%.100s", names.size ? ", " : "", key);
    }
    rc = tt_fail(TT_EDATA, "%s:%lld: no string field '%s' (fields: %s)", w->file, (long long)w->line, f->name,
                 names.size ? names.text : "none");
    if (is_chat)
        rc = tt_error_add_hint(rc, "dataset 'jsonl_sft' reads chat data");
    else if (first)
        rc = tt_error_add_hint(rc, "set %s=%.100s", TT_KEY_NAME(training.text_field), first);
    tt_text_release(&names);
    json_decref(tree);
    return rc;
}

static int take_line(struct walk *w, const char *line, size_t size)
{
    struct tt_json_field f = {.name = w->source->text_field};
    struct tt_json_problem problem;
    json_type kind;

    if (!tt_json_fields(line, size, &f, 1, &kind, &problem))
        return tt_fail(TT_EDATA, "%s:%lld:%zu: invalid JSON: %s", w->file, (long long)w->line, problem.column,
                       problem.what);
    if (kind != JSON_OBJECT)
        return tt_fail(TT_EDATA, "%s:%lld: the line is %s, wanted an object with a field '%s'", w->file,
                       (long long)w->line, tt_json_kind_name(kind), f.name);
    if (f.value && f.kind == JSON_NULL) {
        w->nulls++;
        return 0;
    }
    if (!f.value || f.kind != JSON_STRING)
        return fail_field(w, &f, line, size);
    w->text.size = 0;
    tt_text_add_bytes(&w->text, "", 0);
    tt_json_add_string(f.value, f.size, &w->text);
    return take_document(w, w->text.text, w->text.size);
}

static bool is_blank(const char *line, size_t size)
{
    while (size && strchr(" \t\r", *line) && *line) {
        line++;
        size--;
    }
    return size == 0;
}

static int read_jsonl(struct walk *w)
{
    int rc = 0;

    for (w->line = 1;; w->line++) {
        struct tt_piece line = {0};

        TT_TRY(tt_reader_line(w->reader, &line));
        if (!line.text)
            break;
        show_progress(w);
        if (is_blank(line.text, line.size))
            continue;
        if (w->line == 1 && line.size == 1 && (line.text[0] == '[' || line.text[0] == '{'))
            return tt_fail(TT_EDATA,
                           "%s:1: the file is one JSON document over many lines, wanted one object a line\n"
                           "help: jq -c '.[]' makes lines of an array",
                           w->file);
        TT_TRY(check_utf8(w, &line));
        TT_TRY(w->source->kind == TT_SOURCE_LINES ? take_document(w, line.text, line.size)
                                                  : take_line(w, line.text, line.size));
    }
out:
    return rc;
}

static int take_row(void *arg, const struct tt_row *row)
{
    struct walk *w = arg;
    int64_t bad;

    w->line = row->number;
    tt_reader_use(w->reader, row->used);
    show_progress(w);
    if (!row->text) {
        w->nulls++;
        return 0;
    }
    bad = tt_utf8_invalid(row->text, row->size);
    if (bad >= 0)
        return tt_fail(TT_EDATA,
                       "%s: row %lld: invalid UTF-8 at byte %lld of the text (0x%02x)\nhelp: is the column text?",
                       w->file, (long long)w->line, (long long)bad, (unsigned char)row->text[bad]);
    return take_document(w, row->text, row->size);
}

static int read_table(struct walk *w)
{
    struct tt_mapping file = tt_reader_stored(w->reader);
    struct tt_table table = {.name = w->file,
                             .bytes = file.data,
                             .size = file.size,
                             .column = w->source->kind == TT_SOURCE_LINES ? NULL : w->source->text_field,
                             .columns = TT_CHAT_MEMBERS,
                             .fn = take_row,
                             .arg = w};

    return tt_reader_form(w->reader) == TT_FORM_PARQUET ? tt_parquet_each(&table) : tt_arrow_each(&table);
}

static int read_file(struct walk *w)
{
    enum tt_file_form form = tt_reader_form(w->reader);

    w->is_table = form != TT_FORM_TEXT;
    if (w->is_table && w->source->kind == TT_SOURCE_TEXT)
        return tt_fail(TT_EDATA, "'%s' is a table\nhelp: dataset '%s' reads it", w->file,
                       form == TT_FORM_PARQUET ? "parquet" : "arrow");
    if (w->is_table)
        return read_table(w);
    if (is_table_name(w->file) || w->source->only)
        return tt_fail(TT_EDATA, "'%s' does not begin as a file of Parquet or Arrow\nhelp: is the download complete?",
                       w->file);
    return w->source->kind == TT_SOURCE_TEXT ? read_text(w) : read_jsonl(w);
}

int tt_source_each(const struct tt_source *source, const char *what, tt_document_fn fn, void *arg)
{
    struct walk w = {.source = source, .what = what, .fn = fn, .arg = arg};
    int rc = 0;

    for (int i = 0; i < source->n_paths; i++) {
        w.file = source->path[i];
        TT_TRY(tt_reader_open(source->path[i], source->builtin, &w.reader));
        TT_TRY(read_file(&w));
        w.done_bytes += (int64_t)tt_reader_stored(w.reader).size;
        tt_reader_free(w.reader);
        w.reader = NULL;
    }
    if (w.nulls)
        tt_note("%lld of %lld documents were left out, since their '%s' is null", (long long)w.nulls,
                (long long)(w.nulls + w.documents), source->text_field);
    if (!w.text_bytes)
        rc = tt_fail(TT_EDATA, "'%s' holds no text (%d file%s, %lld documents, all empty)", w.file, source->n_paths,
                     source->n_paths == 1 ? "" : "s", (long long)w.documents);
out:
    tt_text_release(&w.text);
    tt_reader_free(w.reader);
    return rc;
}
