/* SPDX-License-Identifier: MIT
 *
 * Reads metrics.jsonl into tables.
 */
#include "cli/watch/history.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/os/file.h"

/* --- runs below a folder --- */

enum { LEVELS = 3 };

static int is_run(const char *folder, bool *ret_is)
{
    static const char *const names[] = {"metrics.jsonl", "run.yaml"};
    int rc = 0;

    *ret_is = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && rc == 0 && !*ret_is; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);

        rc = tt_path_exists(path, ret_is);
        tt_free(path);
    }
    return rc;
}

static int add_below(const char *folder, int levels, struct tt_runs *runs);

/* Adds the run at a path below the given folder, or otherwise the runs below that path. */
static int add_at(const char *path, int levels, struct tt_runs *runs)
{
    bool is_folder = false, is_one = false;
    int rc = 0;

    TT_TRY(tt_path_is_folder(path, &is_folder));
    if (is_folder)
        TT_TRY(is_run(path, &is_one));
    if (is_one)
        TT_PUSH(runs->folder, runs->n, runs->cap) = tt_strdup(path);
    else if (is_folder && levels > 1)
        rc = add_below(path, levels - 1, runs);
out:
    return rc;
}

/* Adds the runs up to `levels` below a folder. An unreadable folder, such as lost+found of a disk, does not hide the
 * others. */
static int add_below(const char *folder, int levels, struct tt_runs *runs)
{
    char **names = NULL, *path = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list_found(folder, &names, &n));
    for (int i = 0; i < n; i++) {
        if (names[i][0] == '.' || tt_step_number_aside(names[i]) >= 0)
            continue;
        tt_free(path);
        path = tt_format("%s/%s", folder, names[i]);
        if (add_at(path, levels, runs) < 0)
            tt_warn("runs below '%s' are not shown: %s", path, tt_error_message());
    }
out:
    tt_free(path);
    tt_names_free(names, n);
    return rc;
}

/* Whether runs[i] is a link to another run in the list, from number `first` on. */
static int is_listed(const struct tt_runs *runs, int first, int i, bool *ret_is)
{
    struct tt_path_info link = {0}, other = {0};
    int rc = 0;

    *ret_is = false;
    TT_TRY(tt_path_look(runs->folder[i], &link));
    for (int k = first; k < runs->n && link.is_link && !*ret_is; k++) {
        if (k == i)
            continue;
        TT_TRY(tt_path_look(runs->folder[k], &other));
        *ret_is = other.device == link.device && other.inode == link.inode && (!other.is_link || k < i);
    }
out:
    return rc;
}

/* Drops links, such as `latest`, to runs that the list contains under their own names. */
static int drop_links(struct tt_runs *runs, int first)
{
    bool drops = false;
    int rc = 0;

    for (int i = runs->n - 1; i >= first; i--) {
        TT_TRY(is_listed(runs, first, i, &drops));
        if (!drops)
            continue;
        tt_free(runs->folder[i]);
        runs->n--;
        memmove(&runs->folder[i], &runs->folder[i + 1], (size_t)(runs->n - i) * sizeof *runs->folder);
    }
out:
    return rc;
}

int tt_runs_add_below(const char *folder, struct tt_runs *runs)
{
    size_t size = strlen(folder);
    int before = runs->n;
    bool is_folder = false;
    char *path;
    int rc = tt_path_is_folder(folder, &is_folder);

    if (rc < 0 || !is_folder)
        return rc;
    while (size > 1 && folder[size - 1] == '/')
        size--;
    path = tt_strndup(folder, size);
    rc = add_below(path, LEVELS, runs);
    tt_free(path);
    return rc < 0 ? rc : drop_links(runs, before);
}

static int add_given(const char *given, struct tt_runs *runs)
{
    int before = runs->n, rc = 0;
    bool is_folder = false, is_one = false;

    TT_TRY(tt_path_is_folder(given, &is_folder));
    if (is_folder)
        TT_TRY(is_run(given, &is_one));
    if (is_folder && !is_one)
        TT_TRY(tt_runs_add_below(given, runs));
    if (runs->n == before)
        TT_PUSH(runs->folder, runs->n, runs->cap) = tt_strdup(given);
out:
    return rc;
}

int tt_runs_find(int n, const char *const *given, struct tt_runs *runs)
{
    int rc = n ? 0 : add_given("outputs", runs);

    for (int i = 0; i < n && rc == 0; i++)
        rc = add_given(given[i], runs);
    return rc;
}

void tt_runs_release(struct tt_runs *runs)
{
    for (int i = 0; i < runs->n; i++)
        tt_free(runs->folder[i]);
    tt_free(runs->folder);
    *runs = (struct tt_runs){0};
}

/* --- a history --- */

enum {
    BLOCK_BYTES = 1 << 20,
    LINE_MOST = 64 << 20,
    COLUMNS_MOST = 200, /* titan records some twenty columns; a file with more is not titan's */
};

/* --- tables --- */

/* The column of a name; n_columns: there is none. `guess` is tried first. */
static int find_column(const struct tt_table *t, const char *name, int guess)
{
    if (guess < t->n_columns && strcmp(t->name[guess], name) == 0)
        return guess;
    for (int c = 0; c < t->n_columns; c++)
        if (strcmp(t->name[c], name) == 0)
            return c;
    return t->n_columns;
}

const double *tt_table_column(const struct tt_table *t, const char *name)
{
    int c = find_column(t, name, 0);

    return c < t->n_columns ? t->column[c] : NULL;
}

const char *tt_table_set_name(const char *column)
{
    static const char prefix[] = "loss/";

    return strncmp(column, prefix, sizeof prefix - 1) == 0 ? column + sizeof prefix - 1 : NULL;
}

int64_t tt_table_find(const struct tt_table *t, int64_t step)
{
    int64_t low = 0, high = t->n;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (t->step[middle] < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds a column; false when there are too many. */
static bool add_column(struct tt_table *t, const char *name, bool has_numbers)
{
    int c = t->n_columns;

    if (c == COLUMNS_MOST)
        return false;
    t->name = tt_realloc((void *)t->name, (size_t)c + 1, sizeof *t->name);
    t->column = tt_realloc((void *)t->column, (size_t)c + 1, sizeof *t->column);
    t->name[c] = tt_strdup(name);
    t->column[c] = has_numbers ? tt_calloc((size_t)t->cap, sizeof(double)) : NULL;
    for (int64_t row = 0; row <= t->n && has_numbers; row++) /* including the row that is being added */
        t->column[c][row] = (double)NAN;
    t->n_columns++;
    return true;
}

static void grow(struct tt_table *t, bool only_places)
{
    t->cap = t->cap ? 2 * t->cap : 64;
    t->step = tt_realloc(t->step, (size_t)t->cap, sizeof *t->step);
    if (only_places)
        t->place = tt_realloc(t->place, (size_t)t->cap, sizeof *t->place);
    for (int c = 0; c < t->n_columns && !only_places; c++)
        t->column[c] = tt_realloc(t->column[c], (size_t)t->cap, sizeof(double));
}

/* Whether a field of a record is a column. */
static bool is_number(const char *name, const json_t *value)
{
    return strcmp(name, "step") != 0 && (json_is_number(value) || json_is_null(value));
}

static void add_row(struct tt_history *h, struct tt_table *t, int64_t step, const json_t *record)
{
    const char *name;
    json_t *value;
    int field = 0;

    if (t->n == t->cap)
        grow(t, h->only_places);
    t->step[t->n] = step;
    if (h->only_places)
        t->place[t->n] = h->line;
    for (int c = 0; c < t->n_columns && !h->only_places; c++)
        t->column[c][t->n] = (double)NAN;
    json_object_foreach((json_t *)(uintptr_t)record, name, value)
    {
        int c;

        if (!is_number(name, value))
            continue;
        c = find_column(t, name, field++);
        if (c == t->n_columns && !add_column(t, name, !h->only_places))
            continue;
        if (!h->only_places && json_is_number(value))
            t->column[c][t->n] = json_number_value(value);
    }
    t->n++;
}

int tt_history_row(const struct tt_history *h, int fd, const struct tt_table *t, int64_t row, double *ret_values)
{
    struct tt_line_place place = t->place[row];
    char *line = tt_calloc((size_t)place.bytes + 1, 1);
    json_t *record = NULL, *value;
    const char *name;
    int field = 0, rc = 0;

    for (int c = 0; c < t->n_columns; c++)
        ret_values[c] = (double)NAN;
    TT_TRY(tt_file_pread(fd, h->path, line, (size_t)place.bytes, place.at));
    TT_TRY(tt_json_parse(line, (size_t)place.bytes, h->path, &record));
    json_object_foreach(record, name, value)
    {
        int c = is_number(name, value) ? find_column(t, name, field++) : t->n_columns;

        if (c < t->n_columns && json_is_number(value))
            ret_values[c] = json_number_value(value);
    }
out:
    json_decref(record);
    tt_free(line);
    return rc;
}

static void release_table(struct tt_table *t)
{
    for (int c = 0; c < t->n_columns; c++) {
        tt_free(t->name[c]);
        tt_free(t->column[c]);
    }
    tt_free((void *)t->name);
    tt_free((void *)t->column);
    tt_free(t->place);
    tt_free(t->step);
    *t = (struct tt_table){.n = 0};
}

/* --- records --- */

static void keep_text(char **text, const json_t *record, const char *key)
{
    const char *found = json_string_value(json_object_get(record, key));

    tt_free(*text);
    *text = tt_strdup(found ? found : "");
}

/* Takes the record of a start. The steps that it replaces are dropped only at its first step, since it may fail before
 * that. */
static void take_run(struct tt_history *h, json_t *record)
{
    const json_t *from = json_object_get(record, "resumed_from");

    json_decref(h->run);
    json_decref(h->end);
    json_decref(h->moved);
    h->run = json_incref(record);
    h->end = h->moved = NULL;
    h->starts++;
    h->failed_saves = h->notes = 0;
    h->superseded_after = json_is_integer(from) ? (int64_t)json_integer_value(from) : 0;
    h->first_row = h->steps.n;
}

static void cut(struct tt_history *h, int64_t step)
{
    h->validations.n = tt_table_find(&h->validations, step);
    h->steps.n = tt_table_find(&h->steps, step);
    if (h->first_row > h->steps.n)
        h->first_row = h->steps.n;
}

static void take_numbers(struct tt_history *h, struct tt_table *table, const json_t *record)
{
    const json_t *step = json_object_get(record, "step");
    int64_t at = (int64_t)json_integer_value(step);

    if (!json_is_integer(step) || at < 0)
        return;
    if (h->superseded_after >= 0)
        cut(h, h->superseded_after + 1);
    h->superseded_after = -1;
    if (table->n && at <= table->step[table->n - 1])
        cut(h, at + (table == &h->validations)); /* the validation of a step follows the step's record */
    table->n = tt_table_find(table, at);
    add_row(h, table, at, record);
}

static void take_record(struct tt_history *h, json_t *record)
{
    const char *type = json_string_value(json_object_get(record, "type"));
    const json_t *time = json_object_get(record, "time");

    if (json_is_number(time))
        h->last_sec = json_number_value(time);
    if (!type)
        return;
    if (strcmp(type, "step") == 0) {
        take_numbers(h, &h->steps, record);
    } else if (strcmp(type, "validate") == 0) {
        take_numbers(h, &h->validations, record);
    } else if (strcmp(type, "run") == 0) {
        take_run(h, record);
    } else if (strcmp(type, "last_step") == 0) {
        json_decref(h->moved);
        h->moved = json_incref(record);
    } else if (strcmp(type, "end") == 0) {
        json_decref(h->end);
        h->end = json_incref(record);
    } else if (strcmp(type, "note") == 0) {
        h->notes++;
        keep_text(&h->last_note, record, "text");
    } else if (strcmp(type, "checkpoint") == 0 && json_object_get(record, "error")) {
        h->failed_saves++;
        keep_text(&h->last_failed_save, record, "error");
    }
}

/* --- lines --- */

/* Whether a line that is only skimmed is the record of a step or validation: titan writes the type first. */
static bool is_of_a_step(const char *line)
{
    return tt_text_begins(line, "{\"type\":\"step\"") || tt_text_begins(line, "{\"type\":\"validate\"");
}

/* whole: the line is complete, and not just being written. */
static void take_line(struct tt_history *h, const char *line, size_t size, bool whole)
{
    json_t *record = NULL;

    h->line.bytes = (int64_t)size;
    if (size && tt_json_parse(line, size, h->path, &record) == 0 && json_is_object(record)) {
        take_record(h, record);
    } else if (size && whole) {
        if (h->bad_lines++ == 0)
            h->first_bad = h->lines + 1;
    }
    h->lines += whole;
    json_decref(record);
}

/* Takes the complete lines of a block; returns their bytes. The first `skim` bytes of the block are far from the end of
 * the file. */
static size_t take_lines(struct tt_history *h, const char *block, size_t size, size_t skim)
{
    size_t at = 0;

    for (;;) {
        const char *end = memchr(block + at, '\n', size - at);
        size_t n;

        if (!end)
            return at;
        n = (size_t)(end - block) - at;
        h->line.at = h->offset + (int64_t)at;
        if (at < skim && is_of_a_step(block + at)) /* the line is complete */
            h->lines++;
        else
            take_line(h, block + at, n, true);
        at += n + 1;
    }
}

static void forget(struct tt_history *h)
{
    release_table(&h->steps);
    release_table(&h->validations);
    json_decref(h->run);
    json_decref(h->end);
    json_decref(h->moved);
    h->run = h->end = h->moved = NULL;
    h->starts = h->failed_saves = h->notes = h->first_row = 0;
    h->lines = h->bad_lines = h->offset = 0;
    h->superseded_after = -1;
    h->last_sec = 0.0;
}

static int read_from(struct tt_history *h, int fd, int64_t size)
{
    int64_t skim_to = h->tail_bytes && size > h->tail_bytes ? size - h->tail_bytes : 0;
    size_t cap = BLOCK_BYTES, n = 0;
    char *block = tt_calloc(cap, 1);
    int rc = 0;

    while (h->offset + (int64_t)n < size) {
        int64_t left = size - h->offset - (int64_t)n;
        size_t more = left < (int64_t)(cap - n) ? (size_t)left : cap - n, taken;

        TT_TRY(tt_file_pread(fd, h->path, block + n, more, h->offset + (int64_t)n));
        n += more;
        taken = take_lines(h, block, n, skim_to > h->offset ? (size_t)(skim_to - h->offset) : 0);
        memmove(block, block + taken, n - taken);
        h->offset += (int64_t)taken;
        n -= taken;
        if (n == cap && cap >= LINE_MOST) {
            rc = tt_fail(TT_EDATA, "'%s': line %" PRId64 " is longer than 64 MiB; this is not a run's metrics.jsonl",
                         h->path, h->lines + 1);
            goto out;
        }
        if (n == cap)
            block = tt_realloc(block, cap *= 2, 1);
    }
    h->line.at = h->offset;
    take_line(h, block, n, false); /* perhaps only the line end is missing */
out:
    tt_free(block);
    return rc;
}

int tt_history_read(struct tt_history *h)
{
    struct tt_path_info info;
    int64_t size = 0;
    int fd = -1, rc = 0;

    TT_TRY(tt_path_look(h->path, &info));
    if (info.inode != h->inode || info.bytes < h->offset)
        forget(h);
    TT_TRY(tt_file_open(h->path, &fd, &size));
    h->inode = info.inode;
    TT_TRY(read_from(h, fd, size));
    if (h->bad_lines && h->bad_lines == h->lines)
        rc = tt_fail(TT_EDATA, "'%s' is not a run's metrics.jsonl: its lines are not JSON objects", h->path);
out:
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

/* --- choosing a run --- */

/* The only run below a folder that is not itself a run; NULL: there is none. TT_EDATA: there are several. */
static int find_only_run(const char *given, char **ret_folder)
{
    enum { NAMED = 8 };
    struct tt_runs runs = {0};
    struct tt_text names = {0};
    int rc = 0;

    TT_TRY(tt_runs_add_below(given, &runs));
    for (int i = 0; i < runs.n && i < NAMED; i++)
        tt_text_add(&names, "%s%s", i ? ", " : "", runs.folder[i]);
    if (runs.n == 1)
        *ret_folder = tt_strdup(runs.folder[0]);
    else if (runs.n)
        rc = tt_fail(TT_EDATA, "'%s' is a folder of several runs\nhelp: name one of them: %s%s", given, names.text,
                     runs.n > NAMED ? ", ..." : "");
out:
    tt_text_release(&names);
    tt_runs_release(&runs);
    return rc;
}

int tt_history_open(const char *given, struct tt_history *ret_history)
{
    struct tt_history h = {.superseded_after = -1};
    size_t size = strlen(given);
    bool is_folder = false, exists = false;
    const char *slash;
    char *only = NULL, *seen = NULL;
    int rc = 0;

    TT_TRY(tt_path_is_folder(given, &is_folder));
    while (is_folder && size > 1 && given[size - 1] == '/')
        size--;
    slash = strrchr(given, '/');
    h.folder = is_folder ? tt_strndup(given, size)
               : slash   ? tt_strndup(given, (size_t)(slash - given))
                         : tt_strdup(".");
    h.path = is_folder ? tt_format("%s/metrics.jsonl", h.folder) : tt_strdup(given);
    TT_TRY(tt_path_exists(h.path, &exists));
    if (!exists && is_folder)
        TT_TRY(find_only_run(given, &only));
    if (only) {
        tt_free(h.folder);
        tt_free(h.path);
        h.folder = only;
        h.path = tt_format("%s/metrics.jsonl", only);
        TT_TRY(tt_path_exists(h.path, &exists));
    }
    seen = tt_path_seen(given);
    if (!exists && is_folder)
        rc = tt_fail(TT_EDATA,
                     "'%s' has no metrics.jsonl\nhelp: name the folder of a run (job.dump_folder); a run with "
                     "metrics.enable_jsonl=false leaves no records",
                     h.folder);
    else if (!exists)
        rc = tt_fail(TT_EDATA, "no run at '%s': there is no such folder or file%s", given, seen);
out:
    tt_free(seen);
    if (rc == 0)
        *ret_history = h;
    else
        tt_history_release(&h);
    return rc;
}

int tt_history_load(const char *given, bool only_places, struct tt_history *ret_history)
{
    struct tt_history h = {.path = NULL};
    int rc = 0;

    TT_TRY(tt_history_open(given, &h));
    h.only_places = only_places;
    TT_TRY(tt_history_read(&h));
    if (h.bad_lines == 1)
        tt_warn("1 line of '%s' is not a JSON object and is left out: line %" PRId64, h.path, h.first_bad);
    else if (h.bad_lines)
        tt_warn("%" PRId64 " lines of '%s' are not JSON objects and are left out; the first is line %" PRId64,
                h.bad_lines, h.path, h.first_bad);
    *ret_history = h;
    return 0;
out:
    tt_history_release(&h);
    return rc;
}

void tt_history_release(struct tt_history *h)
{
    forget(h);
    tt_free(h->last_failed_save);
    tt_free(h->last_note);
    tt_free(h->path);
    tt_free(h->folder);
    *h = (struct tt_history){.path = NULL};
}
