/* SPDX-License-Identifier: MIT
 *
 * Documents of text files and JSON lines. Errors name the file, the line and the byte.
 */
#include "core/data/source.h"

#include <errno.h>
#include <string.h>

#include <sys/stat.h>

#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/data/jsonline.h"
#include "core/data/reader.h"
#include "core/os/file.h"

enum { DEEPEST_FOLDER = 16, HASH_BLOCK = 1 << 20, PROGRESS_BYTES = 1 << 17 };

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);

    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* A name that only files of JSON lines have. */
static bool is_lines_name(const char *name)
{
    static const char *const suffix[] = {".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst"};
    bool found = false;

    for (size_t i = 0; i < sizeof suffix / sizeof suffix[0]; i++)
        found = found || has_suffix(name, suffix[i]);
    return found;
}

static bool is_jsonl_name(const char *name)
{
    return is_lines_name(name) || has_suffix(name, ".json") || has_suffix(name, ".json.gz") ||
           has_suffix(name, ".json.zst");
}

static bool is_parquet_name(const char *name)
{
    return has_suffix(name, ".parquet");
}

/* JSON lines, packed in a way that titan does not read. */
static bool is_other_lines_name(const char *name)
{
    static const char *const packed[] = {".xz", ".bz2", ".lz4", ".lzma", ".br", ".zip", ".7z", ".Z"};
    bool found = false;

    for (size_t i = 0; i < sizeof packed / sizeof *packed && !found; i++) {
        char *plain = tt_strndup(name, strlen(name) - (has_suffix(name, packed[i]) ? strlen(packed[i]) : 0));

        found = has_suffix(name, packed[i]) && is_jsonl_name(plain);
        tt_free(plain);
    }
    return found;
}

int tt_source_fail_parquet(const char *path)
{
    return tt_fail(TT_EDATA,
                   "'%s' is a Parquet file, which titan does not read: Debian has no library for that format\nhelp: "
                   "convert it to JSON lines: duckdb -c \"COPY (FROM '%s') TO 'data.jsonl' (FORMAT JSON)\"; then use "
                   "dataset jsonl with data.jsonl. titan-data(1) has the line for pyarrow",
                   path, path);
}

/* A folder, and the one through which it was reached. */
struct nested {
    const struct nested *parent;
    const char *path;
    dev_t device;
    ino_t node;
    int depth;
};

/* Identifies a folder, and fails if it is one of those that it is in. */
static int enter(struct nested *here)
{
    struct stat st;

    if (stat(here->path, &st) < 0)
        return tt_fail(TT_EIO, "cannot look at '%s': %s", here->path, strerror(errno));
    here->device = st.st_dev;
    here->node = st.st_ino;
    here->depth = here->parent ? here->parent->depth + 1 : 0;
    for (const struct nested *up = here->parent; up; up = up->parent)
        if (up->device == here->device && up->node == here->node)
            return tt_fail(TT_EDATA, "'%s' is a link to '%s', in which it is: a loop of links\nhelp: remove the link",
                           here->path, up->path);
    if (here->depth > DEEPEST_FOLDER)
        return tt_fail(TT_EDATA, "'%s': folders are nested deeper than %d", here->path, DEEPEST_FOLDER);
    return 0;
}

/* Adds the files below a folder, in the order of their names. */
static int add_folder(struct tt_source *s, const char *folder, const struct nested *parent, int *n_cap)
{
    struct nested here = {.parent = parent, .path = folder};
    char **names = NULL, *left_name = NULL;
    int n = 0, left_out = 0, rc = 0;

    TT_TRY(enter(&here));
    TT_TRY(tt_folder_list(folder, &names, &n));
    for (int i = 0; i < n; i++) {
        bool is_folder = false;
        char *path;

        if (names[i][0] == '.')
            continue;
        path = tt_format("%s/%s", folder, names[i]);
        rc = tt_path_is_folder(path, &is_folder);
        if (rc < 0 || is_folder) {
            rc = rc < 0 ? rc : add_folder(s, path, &here, n_cap);
            tt_free(path);
            if (rc < 0)
                goto out;
        } else if (is_parquet_name(names[i])) { /* data that would be left out, or taken for text */
            rc = tt_source_fail_parquet(path);
            tt_free(path);
            goto out;
        } else if (is_other_lines_name(names[i])) {
            rc = tt_fail(TT_EDATA,
                         "'%s' is packed in a way that titan does not read\nhelp: unpack it, or pack it with gzip "
                         "or zstd",
                         path);
            tt_free(path);
            goto out;
        } else if (s->kind == TT_SOURCE_TEXT || is_jsonl_name(names[i])) {
            TT_PUSH(s->path, s->n_paths, *n_cap) = path;
        } else {
            left_out++;
            tt_free(left_name);
            left_name = path;
        }
    }
    if (left_out)
        tt_note("%d %s left out, since only files named .jsonl, .json or .ndjson (plain, .gz or .zst) are read: '%s'%s",
                left_out, left_out > 1 ? "files were" : "file was", left_name, left_out > 1 ? " is one" : "");
out:
    tt_free(left_name);
    tt_names_free(names, n);
    return rc;
}

int tt_source_init(struct tt_source *source, enum tt_source_kind kind, const char *path, const char *text_field)
{
    bool is_folder = false;
    int cap = 0, rc = 0;

    source->kind = kind;
    source->text_field = tt_strdup(text_field && *text_field ? text_field : "text");
    TT_TRY(tt_path_is_folder(path, &is_folder));
    if (!is_folder && is_parquet_name(path))
        return tt_source_fail_parquet(path);
    if (is_folder) {
        TT_TRY(add_folder(source, path, NULL, &cap));
    } else {
        TT_PUSH(source->path, source->n_paths, cap) = tt_strdup(path);
    }
    if (!source->n_paths) {
        return tt_fail(TT_EDATA, "'%s' holds no %s", path,
                       kind == TT_SOURCE_TEXT ? "files" : "files named .jsonl, .json or .ndjson (plain, .gz or .zst)");
    }
    for (int i = 0; i < source->n_paths; i++) {
        struct tt_path_info info;

        if (kind == TT_SOURCE_TEXT && is_lines_name(source->path[i]))
            return tt_fail(TT_EDATA,
                           "'%s' holds JSON lines, and dataset 'text' would take their braces and quotes for text\n"
                           "help: dataset 'jsonl' reads them",
                           source->path[i]);
        TT_TRY(tt_path_look(source->path[i], &info));
        source->bytes += info.bytes;
    }
out:
    return rc;
}

void tt_source_init_builtin(struct tt_source *source, struct tt_builtin builtin)
{
    *source = (struct tt_source){
        .kind = TT_SOURCE_JSONL, .text_field = tt_strdup("text"), .builtin = builtin, .bytes = (int64_t)builtin.size};
}

void tt_source_release(struct tt_source *source)
{
    tt_names_free(source->path, source->n_paths);
    tt_free(source->text_field);
    *source = (struct tt_source){0};
}

static int n_files(const struct tt_source *s)
{
    return s->builtin.size ? 1 : s->n_paths;
}

static int open_file(const struct tt_source *s, int i, struct tt_reader **ret_reader)
{
    if (s->builtin.size)
        return tt_reader_open_bytes(s->builtin.name, s->builtin.bytes, s->builtin.size, ret_reader);
    return tt_reader_open(s->path[i], ret_reader);
}

int tt_source_hash(const struct tt_source *source, uint64_t *ret_hash)
{
    uint64_t hash = 0;
    int64_t before = 0;
    int rc = 0;

    for (int i = 0; i < n_files(source); i++) {
        struct tt_reader *reader = NULL;
        const uint8_t *raw;
        size_t size;

        TT_TRY(open_file(source, i, &reader));
        raw = tt_reader_raw(reader, &size);
        hash = tt_hash64(&size, sizeof size, hash);
        for (size_t at = 0; at < size; at += HASH_BLOCK) {
            size_t n = size - at < HASH_BLOCK ? size - at : HASH_BLOCK;

            hash = tt_hash64(raw + at, n, hash);
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
    const char *file; /* being read */
    struct tt_reader *reader;
    int64_t line;
    int64_t done_bytes; /* of the previous files */
    int64_t shown_bytes;
    int64_t text_bytes; /* of all documents */
    int64_t documents;
    struct tt_text text; /* of a line */
};

static void show_progress(struct walk *w)
{
    int64_t now = w->done_bytes + tt_reader_position(w->reader);

    if (now - w->shown_bytes < PROGRESS_BYTES && now < w->source->bytes)
        return;
    w->shown_bytes = now;
    tt_progress(w->what, (double)now, (double)w->source->bytes);
}

/* first_line: of text; offset: of text in the file. */
static int check_utf8(const struct walk *w, const char *text, size_t size, int64_t first_line, int64_t offset)
{
    int64_t bad = tt_utf8_invalid(text, size), place = offset + bad;
    int64_t line = first_line;

    if (bad < 0)
        return 0;
    for (int64_t i = 0; i < bad; i++)
        line += text[i] == '\n';
    return tt_fail(TT_EDATA,
                   "%s:%lld: invalid UTF-8 at byte %lld of the file (0x%02x)\nhelp: is it text? If so, convert "
                   "it: iconv -f ISO-8859-1 -t UTF-8",
                   w->file, (long long)line, (long long)place, (unsigned char)text[bad]);
}

static int take_document(struct walk *w, const char *text, size_t size)
{
    int rc = w->fn(w->arg, text, size);

    if (rc == TT_EIO || rc == TT_EUSAGE) /* not the document's fault: it is not written, or not as the user set it */
        return rc;
    if (rc < 0)
        return tt_wrap(rc, "%s:%lld", w->file, (long long)w->line);
    w->documents++;
    w->text_bytes += (int64_t)size;
    return 0;
}

static int read_text(struct walk *w)
{
    const char *text = NULL;
    size_t size = 0;
    int64_t offset = 0;
    int rc = 0;

    TT_TRY(tt_reader_rest(w->reader, &text, &size, &offset));
    w->line = 1;
    TT_TRY(check_utf8(w, text, size, 1, offset));
    if (size) /* an empty file is not a document */
        TT_TRY(take_document(w, text, size));
    show_progress(w);
out:
    return rc;
}

/* The text field of a line; if it is repeated, the last one counts, as in Python's dictionaries. */
struct field {
    const char *name;
    size_t name_size;
    const char *value;
    size_t value_size;
    enum tt_json_kind kind;
};

static void take_member(void *arg, const struct tt_json_member *member)
{
    struct field *f = arg;

    if (member->key_size != f->name_size || memcmp(member->key, f->name, f->name_size) != 0)
        return;
    f->value = member->value;
    f->value_size = member->value_size;
    f->kind = member->kind;
}

struct names {
    struct tt_text text, first; /* the names of all fields, and the name of the first that is a string */
    bool is_chat;               /* one is a name that chat data has */
};

static bool names_chat(const struct tt_json_member *member)
{
    static const char *const of_chats[] = {"messages", "conversation", "conversations", "prompt",  "instruction",
                                           "response", "completion",   "chosen",        "rejected"};
    bool found = false;

    for (size_t i = 0; i < sizeof of_chats / sizeof *of_chats; i++)
        found = found || strcmp(member->key, of_chats[i]) == 0;
    return found;
}

static void list_member(void *arg, const struct tt_json_member *member)
{
    struct names *n = arg;

    n->is_chat = n->is_chat || names_chat(member);
    if (n->text.size < 400)
        tt_text_add(&n->text, "%s%.100s", n->text.size ? ", " : "", member->key);
    if (!n->first.size && member->kind == TT_JSON_STRING)
        tt_text_add(&n->first, "%.100s", member->key);
}

/* Fails because the text field is missing; names the fields of the line, and the one that may be meant. */
static int fail_field(const struct walk *w, const struct field *f, const char *line, size_t size)
{
    struct tt_json_problem problem;
    enum tt_json_kind kind;
    struct names names = {0};
    int rc;

    if (f->value)
        return tt_fail(TT_EDATA, "%s:%lld: field '%s' is %s, wanted a string", w->file, (long long)w->line, f->name,
                       tt_json_kind_name(f->kind));
    (void)tt_jsonline_members(line, size, list_member, &names, &kind, &problem);
    rc = tt_fail(TT_EDATA, "%s:%lld: no string field '%s' (fields: %s)", w->file, (long long)w->line, f->name,
                 names.text.size ? names.text.text : "none");
    if (names.is_chat)
        rc = tt_error_add_hint(rc, "dataset 'jsonl_sft' reads chat data");
    else if (names.first.size)
        rc = tt_error_add_hint(rc, "set %s=%s", tt_key_name(TT_KEY_TEXT_FIELD), names.first.text);
    tt_text_release(&names.text);
    tt_text_release(&names.first);
    return rc;
}

static int take_line(struct walk *w, const char *line, size_t size)
{
    struct field f = {.name = w->source->text_field, .name_size = strlen(w->source->text_field)};
    struct tt_json_problem problem;
    enum tt_json_kind kind;

    if (!tt_jsonline_members(line, size, take_member, &f, &kind, &problem))
        return tt_fail(TT_EDATA, "%s:%lld:%zu: invalid JSON: %s", w->file, (long long)w->line, problem.column,
                       problem.what);
    if (kind != TT_JSON_OBJECT)
        return tt_fail(TT_EDATA, "%s:%lld: the line is %s, wanted an object with a field '%s'", w->file,
                       (long long)w->line, tt_json_kind_name(kind), f.name);
    if (!f.value || f.kind != TT_JSON_STRING)
        return fail_field(w, &f, line, size);
    w->text.size = 0;
    tt_text_add_bytes(&w->text, "", 0);
    tt_jsonline_text(f.value, f.value_size, &w->text);
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
        const char *line = NULL;
        size_t size = 0;
        int64_t offset = 0;

        TT_TRY(tt_reader_line(w->reader, &line, &size, &offset));
        if (!line)
            break;
        show_progress(w);
        if (is_blank(line, size))
            continue;
        if (w->line == 1 && size == 1 && (line[0] == '[' || line[0] == '{')) {
            rc = tt_fail(TT_EDATA,
                         "%s:1: the file is one JSON document over many lines, wanted one object a line\n"
                         "help: jq -c '.[]' makes lines of an array",
                         w->file);
            goto out;
        }
        TT_TRY(check_utf8(w, line, size, w->line, offset));
        TT_TRY(w->source->kind == TT_SOURCE_LINES ? take_document(w, line, size) : take_line(w, line, size));
    }
out:
    return rc;
}

int tt_source_each(const struct tt_source *source, const char *what, tt_document_fn fn, void *arg)
{
    struct walk w = {.source = source, .what = what, .fn = fn, .arg = arg};
    int rc = 0;

    for (int i = 0; i < n_files(source); i++) {
        size_t size = 0;

        w.file = source->builtin.size ? source->builtin.name : source->path[i];
        TT_TRY(open_file(source, i, &w.reader));
        TT_TRY(source->kind == TT_SOURCE_TEXT ? read_text(&w) : read_jsonl(&w));
        (void)tt_reader_raw(w.reader, &size);
        w.done_bytes += (int64_t)size;
        tt_reader_free(w.reader);
        w.reader = NULL;
    }
    if (!w.text_bytes) {
        rc = tt_fail(TT_EDATA, "'%s' holds no text (%d file%s, %lld documents, all empty)", w.file, n_files(source),
                     n_files(source) == 1 ? "" : "s", (long long)w.documents);
    }
out:
    tt_text_release(&w.text);
    tt_reader_free(w.reader);
    return rc;
}
