/* SPDX-License-Identifier: MIT
 *
 * The state of a run, from its lock, its records and its checkpoints.
 */
#include "cli/watch/status.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "checkpoint/steps/steps.h"
#include "checkpoint/tools/tools.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/stats.h"
#include "core/os/file.h"
#include "core/os/lock.h"
#include "trainer/step/metrics.h"

enum {
    MEDIAN_ROWS = 1000, /* the median is over this many of the newest reports */
    BY_SIGNAL = 128,    /* larger exit codes mean that a signal ended the process */
    CONSOLE_BYTES = 4096
};

struct status {
    const struct tt_history *history;
    json_t *json, *warnings;
    bool alive;
    const char *state;
    int exit; /* -1: unknown */
    int64_t step, total;
    int64_t saved; /* the step of the newest good checkpoint; -1: none */
};

static void set(struct status *s, const char *key, json_t *value)
{
    (void)json_object_set_new(s->json, key, value);
}

static void warn(struct status *s, char *text)
{
    (void)json_array_append_new(s->warnings, tt_json_string(text));
    tt_free(text);
}

static json_t *setting(const struct status *s, const char *section, const char *key)
{
    return json_object_get(json_object_get(json_object_get(s->history->run, "config"), section), key);
}

/* A number in the newest step record; NaN: unknown. */
static double newest(const struct tt_history *h, const char *name)
{
    const double *column = tt_table_column(&h->steps, name);

    return column && h->steps.n ? column[h->steps.n - 1] : (double)NAN;
}

/* --- is it alive --- */

static int find_state(struct status *s)
{
    const json_t *run = s->history->run, *end = s->history->end;
    const char *there = json_string_value(json_object_get(run, "host"));
    pid_t pid = (pid_t)json_integer_value(json_object_get(run, "pid"));
    char *lock = tt_format("%s/.lock", s->history->folder), here[256] = "";
    bool is_ending;
    int rc = 0;

    /* a process that has recorded its end may still hold the lock while it frees memory; titan cannot see a process
     * on another host */
    (void)gethostname(here, sizeof here - 1);
    is_ending = there && strcmp(there, here) == 0 && pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
    TT_TRY(tt_lock_is_held(lock, &s->alive));
    s->exit = !s->alive && end ? (int)json_integer_value(json_object_get(end, "exit")) : -1;
    if (s->alive)
        s->state = run && (!end || is_ending) ? "running" : "starting";
    else if (!end)
        s->state = run || s->history->steps.n ? "killed" : "unknown";
    else
        s->state = s->exit == 0 ? "completed"
                   : s->exit == tt_error_exit_code(TT_ESTOPPED) || s->exit == tt_error_exit_code(TT_EINTERRUPTED)
                       ? "stopped" /* also after Ctrl-C, which ends a process with such an exit code */
                   : s->exit >= BY_SIGNAL ? "killed"
                                          : "failed";
    set(s, "state", json_string(s->state));
    set(s, "alive", json_boolean(s->alive));
    set(s, "exit", s->exit >= 0 ? json_integer(s->exit) : json_null());
    set(s, "error",
        end && !s->alive && json_object_get(end, "error") ? json_incref(json_object_get(end, "error")) : json_null());
out:
    tt_free(lock);
    return rc;
}

/* Cuts the last line off a text and returns it; NULL: the text is empty. */
static char *cut_line(char *text)
{
    size_t size = strlen(text);
    char *line;

    while (size > 0 && text[size - 1] == '\n')
        text[--size] = 0;
    if (size == 0)
        return NULL;
    line = strrchr(text, '\n');
    if (!line)
        return text;
    *line = 0;
    return line + 1;
}

/* Finds titan's last two lines in console.log, which may tell why the run ended. */
static void set_last_words(struct status *s)
{
    static const char mark[] = "titan: ";
    enum { MARK = sizeof mark - 1 };
    char *path = tt_format("%s/console.log", s->history->folder), text[CONSOLE_BYTES + 1] = "";
    char *last, *before;
    struct tt_text words = {0};
    int64_t size = 0, bytes = 0;
    int fd = -1;

    set(s, "last_words", json_null());
    if (strcmp(s->state, "killed") == 0 && s->exit < 0 && tt_file_open(path, &fd, &size) == 0) {
        bytes = size < CONSOLE_BYTES ? size : CONSOLE_BYTES;
        bytes = tt_file_pread(fd, path, text, (size_t)bytes, size - bytes) < 0 ? 0 : bytes;
    }
    text[bytes] = 0;
    last = cut_line(text);
    if (last && strncmp(last, mark, MARK) == 0) {
        before = last == text ? NULL : cut_line(text);
        if (before && strncmp(before, mark, MARK) == 0)
            tt_text_add(&words, "%s; ", before + MARK);
        tt_text_add(&words, "%s", last + MARK);
        set(s, "last_words", tt_json_string(words.text));
    }
    tt_text_release(&words);
    if (fd >= 0)
        (void)close(fd);
    tt_free(path);
}

/* --- progress and speed --- */

/* The median time of a step since the newest start. The first report, whose steps are slower, counts only if there are
 * no others. */
static double median_step_sec(const struct tt_history *h)
{
    const double *column = tt_table_column(&h->steps, "step_time_s");
    int64_t first = h->first_row + (h->first_row + 1 < h->steps.n);
    double values[MEDIAN_ROWS];
    int n = 0;

    for (int64_t row = h->steps.n - 1; column && row >= first && n < MEDIAN_ROWS; row--)
        if (isfinite(column[row]))
            values[n++] = column[row];
    return n ? tt_median(values, n) : (double)NAN;
}

/* The newest loss on all validation sets together, and on each. */
static json_t *validation_json(const struct tt_table *v)
{
    const double *loss = tt_table_column(v, "loss");
    json_t *validation, *sets = json_object();

    if (!v->n || !loss) {
        json_decref(sets);
        return json_null();
    }
    validation = json_pack("{s:I, s:o}", "step", (json_int_t)v->step[v->n - 1], "loss", tt_json_number(loss[v->n - 1]));
    for (int c = 0; c < v->n_columns; c++)
        if (tt_table_set_name(v->name[c]) && isfinite(v->column[c][v->n - 1]))
            (void)json_object_set_new(sets, tt_table_set_name(v->name[c]), tt_json_number(v->column[c][v->n - 1]));
    if (json_object_size(sets))
        (void)json_object_set(validation, "sets", sets);
    json_decref(sets);
    return validation;
}

static void set_progress(struct status *s)
{
    const struct tt_history *h = s->history;
    double eta = newest(h, "eta_s"), one = newest(h, "step_time_s");
    const json_t *steps = setting(s, "training", "steps");
    double median = median_step_sec(h), age = h->last_sec > 0.0 ? tt_clock_wall_sec() - h->last_sec : (double)NAN;
    const json_t *predicted = json_object_get(h->run, "memory_predicted_bytes");
    enum tt_metric k;
    double left;

    s->step = h->steps.n ? h->steps.step[h->steps.n - 1] : 0;
    /* the newest report knows where the data ends, unless the last step moved after it; otherwise training.steps */
    if (h->moved && json_integer_value(json_object_get(h->moved, "step")) >= s->step)
        s->total = (int64_t)json_integer_value(json_object_get(h->moved, "last_step"));
    else if (h->steps.n > h->first_row && one > 0.0 && fabs(eta / one) < 1e15)
        s->total = s->step + llround(eta / one);
    else
        s->total = json_is_integer(steps) ? (int64_t)json_integer_value(steps) : -1;
    left = (double)(s->total - s->step) * median - age; /* NaN means unknown; fmax would turn it into 0 */
    set(s, "step", json_integer(s->step));
    set(s, "total_steps", s->total >= 0 ? json_integer(s->total) : json_null());
    for (int place = 1; (k = tt_metric_at(TT_LIST_STATUS, place)) < TT_METRICS; place++) {
        const struct tt_metric_row *row = &tt_metric_rows[k];
        double x = newest(h, row->name);

        set(s, row->name, row->is_integer && isfinite(x) ? json_integer((json_int_t)x) : tt_json_number(x));
    }
    set(s, "median_step_time_s", tt_json_number(median));
    set(s, "last_record_s", tt_json_number(age < 0.0 ? 0.0 : age));
    set(s, "eta_s", s->alive && s->total >= 0 ? tt_json_number(left < 0.0 ? 0.0 : left) : json_null());
    set(s, "memory_predicted_gib",
        json_is_number(predicted) ? tt_json_number(json_number_value(predicted) / 0x1p30) : json_null());
    set(s, "validation", validation_json(&h->validations));
}

/* --- checkpoints --- */

static int set_checkpoint(struct status *s)
{
    const char *name = json_string_value(setting(s, "checkpoint", "folder"));
    char *folder = tt_format("%s/%s", s->history->folder, name ? name : "checkpoint");
    json_t *found = NULL;
    int64_t *steps = NULL;
    int n = 0, rc = 0;

    s->saved = -1;
    TT_TRY(tt_step_list(folder, &steps, &n));
    for (int i = n - 1; i >= 0 && s->saved < 0; i--) {
        char *path = tt_step_path(folder, steps[i]);
        struct tt_manifest manifest = {0};
        const json_t *time;

        if (tt_step_check(path, &manifest) == 0) {
            s->saved = steps[i];
            time = json_object_get(manifest.meta, "time");
            found = json_pack(
                "{s:I, s:I, s:o}", "step", (json_int_t)steps[i], "bytes", (json_int_t)tt_ckpt_file_bytes(&manifest),
                "age_s",
                tt_json_number(json_is_number(time) ? tt_clock_wall_sec() - json_number_value(time) : (double)NAN));
        } else {
            warn(s, tt_format("step-%" PRId64 " cannot be used: %s", steps[i], tt_error_message()));
        }
        tt_manifest_release(&manifest);
        tt_free(path);
    }
    set(s, "checkpoint", found ? found : json_null());
out:
    tt_free(steps);
    tt_free(folder);
    return rc;
}

/* --- warnings --- */

/* A report is late if it takes late_factor times the usual time, and at least late_sec. */
static const double late_factor = 5.0, late_sec = 60.0, slow_factor = 1.25;

static void set_warnings(struct status *s)
{
    const struct tt_history *h = s->history;
    const json_t *enabled = setting(s, "checkpoint", "enable");
    double median = median_step_sec(h), last = newest(h, "step_time_s");
    double age = json_number_value(json_object_get(s->json, "last_record_s"));
    double usual = median * (double)json_integer_value(setting(s, "metrics", "log_freq"));
    char a[32], b[32];

    if (s->alive && age > late_sec && age > late_factor * usual)
        warn(s, tt_format("nothing was recorded for %s; a report takes %s", tt_text_duration(a, sizeof a, age),
                          tt_text_duration(b, sizeof b, usual)));
    if (s->alive && last > slow_factor * median)
        warn(s, tt_format("the last steps took %s each, the median is %s", tt_text_duration(a, sizeof a, last),
                          tt_text_duration(b, sizeof b, median)));
    if (h->steps.n && !isfinite(newest(h, "loss")))
        warn(s, tt_format("the loss of step %" PRId64 " is not finite", s->step));
    if (h->failed_saves)
        warn(s, tt_format("%" PRId64 " checkpoint%s FAILED, the last because: %s", h->failed_saves,
                          h->failed_saves == 1 ? "" : "s", h->last_failed_save));
    if (h->notes)
        warn(s, tt_strdup(h->last_note));
    if (h->bad_lines == 1)
        warn(s, tt_format("1 line of metrics.jsonl is not a JSON object: line %" PRId64, h->first_bad));
    else if (h->bad_lines)
        warn(s, tt_format("%" PRId64 " lines of metrics.jsonl are not JSON objects; the first is line %" PRId64,
                          h->bad_lines, h->first_bad));
    if (s->alive && json_is_false(enabled))
        warn(s, tt_strdup("this run saves no checkpoints (checkpoint.enable is false)"));
}

/* --- the command that continues the run --- */

/* Whether a word of a command line sets a key or an option: NAME or --NAME, with or without =VALUE. */
static bool sets(const char *word, const char *name)
{
    size_t n = strlen(name);

    word += strspn(word, "-");
    return strncmp(word, name, n) == 0 && (word[n] == 0 || word[n] == '=');
}

/* Sets the command that continues the run: the command line of the newest start, with its number of ranks and its
 * folder. A run that saves nothing can only begin anew. */
static void set_command(struct status *s)
{
    const json_t *argv = json_object_get(s->history->run, "argv"), *ranks = json_object_get(s->history->run, "world");
    const char *cwd = json_string_value(json_object_get(s->history->run, "cwd"));
    const char *folder = json_string_value(setting(s, "job", "dump_folder"));
    bool saves = json_is_true(setting(s, "checkpoint", "enable"));
    /* earlier versions of titan ran the built-in configuration in another folder, which the command does not name */
    bool is_named = !folder || strcmp(folder, "./outputs/quick") == 0;
    char here[4096];
    struct tt_text text = {0};

    set(s, "command", json_null());
    if (s->alive || s->exit == 0 || !json_is_array(argv))
        return;
    if (cwd && !(getcwd(here, sizeof here) && strcmp(here, cwd) == 0)) {
        tt_text_add(&text, "cd ");
        tt_text_add_word(&text, cwd);
        tt_text_add(&text, " && ");
    }
    if (json_integer_value(ranks) > 1)
        tt_text_add(&text, "titan launch -n %" JSON_INTEGER_FORMAT " -- train", json_integer_value(ranks));
    else
        tt_text_add(&text, "titan train");
    for (size_t i = 0; i < json_array_size(argv); i++) {
        const char *word = json_string_value(json_array_get(argv, i));

        is_named = is_named || (word && (sets(word, "config") || sets(word, TT_KEY_NAME(job.dump_folder)) ||
                                         sets(word, "job.dump-folder")));
        if (!word || strcmp(word, "--overwrite") == 0 || strcmp(word, "overwrite") == 0)
            continue;
        tt_text_add(&text, " ");
        tt_text_add_word(&text, word);
    }
    if (!is_named) {
        tt_text_add(&text, " --job.dump_folder=");
        tt_text_add_word(&text, folder);
    }
    if (!saves)
        tt_text_add(&text, s->saved >= 0 ? " --checkpoint.enable" : " --overwrite");
    set(s, "command", tt_json_string(text.text));
    tt_text_release(&text);
}

int tt_status_make(struct tt_history *history, json_t **ret_json)
{
    static const char *const keys[][2] = {{"host", "host"}, {"pid", "pid"}, {"ranks", "world"}, {"started", "time"}};
    struct status s = {.history = history, .json = json_object(), .warnings = json_array()};
    int rc = 0;

    TT_TRY(tt_history_read(history));
    set(&s, "type", json_string("status"));
    set(&s, "schema", json_integer(1));
    set(&s, "folder", tt_json_string(history->folder));
    TT_TRY(find_state(&s));
    set_last_words(&s);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *value = json_object_get(history->run, keys[i][1]);

        set(&s, keys[i][0], value ? json_incref(value) : json_null());
    }
    set(&s, "starts", json_integer(history->starts));
    set_progress(&s);
    TT_TRY(set_checkpoint(&s));
    set_warnings(&s);
    set_command(&s);
    set(&s, "warnings", json_incref(s.warnings));
    *ret_json = json_incref(s.json);
out:
    json_decref(s.json);
    json_decref(s.warnings);
    return rc;
}
