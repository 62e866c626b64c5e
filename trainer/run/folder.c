/* SPDX-License-Identifier: MIT
 *
 * The folder of a run. Two jobs must not share one, and a run must not overwrite another. The lock is released when the
 * process dies, no matter how.
 */
#include "trainer/run/folder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <unistd.h>

#include <fnmatch.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/steps/steps.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/os/file.h"
#include "trainer/run/console.h"
#include "trainer/run/revision.h"

static char *in_folder(const struct tt_config *cfg, const char *name)
{
    return tt_format("%s/%s", cfg->job.dump_folder, name);
}

char *tt_run_folder_checkpoints(const struct tt_config *cfg)
{
    return in_folder(cfg, cfg->checkpoint.folder);
}

char *tt_run_folder_cache(const struct tt_config *cfg)
{
    const char *xdg = getenv("XDG_CACHE_HOME"); // NOLINT(concurrency-mt-unsafe): before the team has work
    const char *home = getenv("HOME");          // NOLINT(concurrency-mt-unsafe)
    size_t size = strlen(cfg->job.dump_folder);
    char *path = NULL;

    if (cfg->dataloader.cache_dir)
        return tt_strdup(cfg->dataloader.cache_dir);
    if (xdg && xdg[0] == '/')
        path = tt_format("%s/titan", xdg);
    else if (home && home[0] == '/')
        path = tt_format("%s/.cache/titan", home);
    if (path && tt_folder_make(path) == 0)
        return path;
    tt_free(path);
    while (size > 1 && cfg->job.dump_folder[size - 1] == '/')
        size--;
    return tt_format("%.*s.cache", (int)size, cfg->job.dump_folder);
}

static int fail_taken(const struct tt_config *cfg)
{
    return tt_fail(TT_EUSAGE,
                   "another job is running in '%s'\nhelp: wait for it, or give this one its own folder "
                   "with --job.dump_folder",
                   cfg->job.dump_folder);
}

/*
 * Killed ranks may still hold the lock after their launcher has ended, while the kernel frees their memory. This takes
 * seconds, so titan keeps trying to get the lock for that long.
 */
enum { LOCK_TRIES = 50 };
static const struct timespec between_tries = {0, 100000000};

static int take_lock(const struct tt_config *cfg, struct tt_lock *lock)
{
    char *path = in_folder(cfg, ".lock");
    bool taken = false;
    int rc = tt_lock_take(path, lock, &taken);

    for (int i = 0; i < LOCK_TRIES && rc == 0 && taken; i++) {
        tt_lock_release(lock);
        (void)nanosleep(&between_tries, NULL);
        rc = tt_lock_take(path, lock, &taken);
    }
    if (rc == 0 && taken)
        rc = fail_taken(cfg);
    tt_free(path);
    return rc;
}

/* Whether the folder contains one of the files by which a run is recognized. */
static int holds_a_run(const struct tt_config *cfg, bool *ret_holds)
{
    static const char *const files[] = {"metrics.jsonl", "run.yaml"};
    int rc = 0;

    *ret_holds = false;
    for (size_t i = 0; i < 2 && rc == 0 && !*ret_holds; i++) {
        char *path = in_folder(cfg, files[i]);

        rc = tt_path_exists(path, ret_holds);
        tt_free(path);
    }
    return rc;
}

/* Whether a run's last record says that it ended well. */
static bool take_end(void *arg, const json_t *record)
{
    bool *ended = arg;
    const json_t *code = json_object_get(record, "exit");

    *ended = code && json_integer_value(code) == 0;
    return true; /* only the last record matters */
}

struct validation_search {
    int64_t step;
    bool found;
};

/* Records before this step, or before a start from an earlier step, describe other weights. */
static bool take_validation(void *arg, const json_t *record)
{
    struct validation_search *search = arg;
    const char *type = json_string_value(json_object_get(record, "type"));
    const json_t *from = json_object_get(record, "resumed_from");
    int64_t step = (int64_t)json_integer_value(json_object_get(record, "step"));

    if (!type)
        return false;
    if (strcmp(type, "run") == 0)
        return !json_is_integer(from) || (int64_t)json_integer_value(from) < search->step;
    if (strcmp(type, "validate") == 0 && step == search->step)
        return search->found = true;
    return strcmp(type, "step") == 0 && step <= search->step;
}

int tt_run_folder_has_validation(const struct tt_config *cfg, int64_t step, bool *ret_has)
{
    char *path = in_folder(cfg, "metrics.jsonl");
    struct validation_search search = {.step = step};
    bool exists = false;
    int rc = 0;

    TT_TRY(tt_path_exists(path, &exists));
    if (exists)
        TT_TRY(tt_records_backwards(path, take_validation, &search));
    *ret_has = search.found;
out:
    tt_free(path);
    return rc;
}

struct end_search {
    double started_sec;
    int64_t step;
    bool lacks_end;
};

static bool take_start(void *arg, const json_t *record)
{
    struct end_search *search = arg;
    const char *type = json_string_value(json_object_get(record, "type"));

    if (type && strcmp(type, "step") == 0 && !search->step)
        search->step = (int64_t)json_integer_value(json_object_get(record, "step"));
    if (type && strcmp(type, "run") == 0)
        search->lacks_end = json_number_value(json_object_get(record, "time")) >= search->started_sec;
    return type && (strcmp(type, "run") == 0 || strcmp(type, "end") == 0);
}

int tt_run_folder_end(const struct tt_config *cfg, double started_sec, int code, const char *why)
{
    char *path = in_folder(cfg, "metrics.jsonl"), *lock = in_folder(cfg, ".lock"), *text;
    struct end_search search = {.started_sec = started_sec};
    struct tt_records *records = NULL;
    bool exists = false, held = false;
    json_t *end;
    int rc = 0;

    TT_TRY(tt_path_exists(path, &exists));
    if (!exists)
        goto out;
    for (int i = 0; i == 0 || (i < LOCK_TRIES && held); i++) {
        if (held)
            (void)nanosleep(&between_tries, NULL);
        TT_TRY(tt_lock_is_held(lock, &held));
        search = (struct end_search){.started_sec = started_sec};
        TT_TRY(tt_records_backwards(path, take_start, &search));
        if (!search.lacks_end)
            goto out;
    }
    if (held) /* another run holds the lock */
        goto out;
    TT_TRY(tt_records_open(path, &records));
    end = json_pack("{s:s, s:I, s:i, s:o, s:o}", "type", "end", "step", (json_int_t)search.step, "exit", code, "error",
                    tt_json_string(why), "time", tt_json_number(tt_clock_wall_sec()));
    text = tt_json_text(end);
    tt_records_add(records, text);
    tt_free(text);
    json_decref(end);
out:
    tt_records_close(records);
    tt_free(path);
    tt_free(lock);
    return rc;
}

/* Whether this run may use the folder, and whether it replaces the run in it. */
static int decide(const struct tt_config *cfg, bool resumes, bool overwrite, bool *ret_replaces)
{
    const char *weights = cfg->checkpoint.initial_load_path;
    struct tt_path_info run_info = {0}, weights_info = {0};
    char *records = in_folder(cfg, "metrics.jsonl"), *checkpoints = tt_run_folder_checkpoints(cfg);
    bool holds = false, exists = false, ended = false;
    int rc = 0;

    if (!weights && cfg->checkpoint.initial_load_in_hf)
        weights = cfg->model.hf_assets_path;
    TT_TRY(holds_a_run(cfg, &holds));
    TT_TRY(tt_path_exists(records, &exists));
    if (!overwrite && !resumes && holds && cfg->checkpoint.enable && exists)
        TT_TRY(tt_records_backwards(records, take_end, &ended));
    *ret_replaces = overwrite && holds;
    if (*ret_replaces && weights) { /* the run that is replaced is removed before the weights to start from are read */
        TT_TRY(tt_path_look(cfg->job.dump_folder, &run_info));
        TT_TRY(tt_path_look(weights, &weights_info));
        rc = run_info.inode == weights_info.inode && run_info.device == weights_info.device
                 ? TT_EUSAGE
                 : tt_output_check_apart(checkpoints, weights);
        if (rc == TT_EUSAGE)
            rc = tt_fail(TT_EUSAGE,
                         "--overwrite would remove '%s', the weights from which this run starts\n"
                         "help: choose another --job.dump_folder",
                         weights);
        TT_TRY(rc);
    }
    if (overwrite && resumes && !holds) {
        rc = tt_fail(
            TT_EUSAGE,
            "'%s' holds checkpoints but neither metrics.jsonl nor run.yaml: --overwrite only removes what a run "
            "left\nhelp: remove the checkpoints by hand, or choose another --job.dump_folder",
            cfg->job.dump_folder);
    } else if (!overwrite && !resumes && holds && cfg->checkpoint.enable && !ended) {
        /* unless the last record says that the run ended well: a scheduler must be able to restart it with the same
         * command */
        tt_note("the run in '%s' ended before its first checkpoint; it begins again", cfg->job.dump_folder);
    } else if (!overwrite && !resumes && holds) {
        rc = tt_fail(TT_EUSAGE,
                     "'%s' holds another run\nhelp: resume it with --checkpoint.enable if it saved checkpoints, "
                     "replace it with --overwrite, or choose another --job.dump_folder",
                     cfg->job.dump_folder);
    }
out:
    tt_free(records);
    tt_free(checkpoints);
    return rc;
}

int tt_run_folder_examine(const struct tt_config *cfg, bool resumes, bool overwrite)
{
    char *path = in_folder(cfg, ".lock");
    bool taken = false, replaces = false;
    int rc = 0;

    TT_TRY(tt_lock_is_held(path, &taken));
    rc = taken ? fail_taken(cfg) : decide(cfg, resumes, overwrite, &replaces);
out:
    tt_free(path);
    return rc;
}

/*
 * --- what is removed ---
 *
 * --overwrite removes what a run left in its folder, and nothing else. A folder inside it may contain other files, or
 * be a link to a larger disk. So titan removes only files with the names that it uses, and folders that are then empty.
 */

static bool is_of_a_checkpoint_folder(const char *name)
{
    struct tt_leftover left;
    const char *run_id;
    int64_t step;

    return tt_step_number_aside(name) >= 0 || (tt_leftover_parse(name, &left) && left.is_step) ||
           tt_parent_parse(name, &step, &run_id);
}

/* Removes the names that `is_ours` accepts from a folder, the newest last. The folder may be missing. */
static int remove_names(const char *folder, bool (*is_ours)(const char *name))
{
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list_found(folder, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);

        if (is_ours(names[i]))
            rc = tt_folder_remove(path);
        tt_free(path);
    }
out:
    tt_names_free(names, n);
    return rc;
}

/* Removes empty folders, from path up to the run folder. */
static int remove_empty(const char *top, const char *path)
{
    char *at = tt_strdup(path), *slash;
    int rc = 0;

    while (strlen(at) > strlen(top) + 1) {
        if (rmdir(at) < 0) {
            if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT && errno != ENOTDIR)
                rc = tt_path_fail("remove", at, errno);
            break;
        }
        slash = strrchr(at, '/');
        *slash = 0;
    }
    tt_free(at);
    return rc;
}

/* Removes files below folder/INSIDE/, by patterns for the names of folders and files. */
static int remove_records(const char *top, const char *folder, const char *inside, const char *file)
{
    char **names = NULL, **files = NULL;
    int n = 0, n_files = 0, rc = 0;

    TT_TRY(tt_folder_list_found(folder, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);
        bool is_folder = false;

        if (fnmatch(inside, names[i], 0) == 0)
            rc = tt_path_is_folder(path, &is_folder);
        if (rc == 0 && is_folder)
            rc = tt_folder_list_found(path, &files, &n_files);
        for (int k = 0; k < n_files && rc == 0; k++) {
            char *victim = tt_format("%s/%s", path, files[k]);

            if (fnmatch(file, files[k], 0) == 0)
                rc = tt_folder_remove(victim);
            tt_free(victim);
        }
        if (rc == 0 && is_folder)
            rc = remove_empty(top, path);
        tt_names_free(files, n_files);
        files = NULL;
        n_files = 0;
        tt_free(path);
    }
out:
    tt_names_free(names, n);
    return rc;
}

static bool is_of_a_run_folder(const char *name)
{
    return strcmp(name, "metrics.jsonl") == 0 || strcmp(name, "run.yaml") == 0 || strcmp(name, "console.log") == 0 ||
           tt_file_is_temporary(name, "run.yaml");
}

static int remove_run(const struct tt_config *cfg)
{
    const char *top = cfg->job.dump_folder;
    char *checkpoints = tt_run_folder_checkpoints(cfg), *board = in_folder(cfg, cfg->metrics.save_tb_folder);
    char *traces = in_folder(cfg, cfg->profiling.save_traces_folder);
    struct tt_lock lock = TT_LOCK_NONE;
    bool exists = false;
    int rc = 0;

    TT_TRY(tt_path_exists(checkpoints, &exists));
    if (exists) {
        TT_TRY(tt_ckpt_folder_lock(checkpoints, &lock)); /* since a command may be working there */
        TT_TRY(remove_names(checkpoints, is_of_a_checkpoint_folder));
        tt_lock_release(&lock);
    }
    TT_TRY(remove_records(top, board, "[0-9]*-[0-9]*", "events.out.tfevents.*"));
    TT_TRY(remove_records(top, traces, "iteration_[0-9]*", "rank[0-9]*_trace.json*"));
    TT_TRY(remove_names(top, is_of_a_run_folder)); /* last, since these files mark the folder as a run's */
out:
    tt_lock_release(&lock);
    tt_free(checkpoints);
    tt_free(board);
    tt_free(traces);
    return rc;
}

/* --- starts that fail --- */

/* The files that a start makes in the folder of its run. The lock is removed last: without a lock, another job may
 * begin there. */
enum { METRICS, RECORD, CONSOLE, CHECKPOINTS, BOARD, LOCK, MADE };

static char *made_path(const struct tt_config *cfg, int what)
{
    static const char *const names[] = {
        [METRICS] = "metrics.jsonl", [RECORD] = "run.yaml", [CONSOLE] = "console.log", [LOCK] = ".lock"};
    const char *name = what == CHECKPOINTS ? cfg->checkpoint.folder
                       : what == BOARD     ? cfg->metrics.save_tb_folder
                                           : names[what];

    return in_folder(cfg, name);
}

/* Cuts off the last part of a path; false: the path has only one. */
static bool cut_last(char *path)
{
    char *slash = strrchr(path, '/');

    while (slash && slash > path && slash[-1] == '/')
        slash--;
    if (!slash || slash == path)
        return false;
    *slash = 0;
    return true;
}

static int look(const struct tt_config *cfg, struct tt_run_folder *folder)
{
    char *at = tt_strdup(cfg->job.dump_folder), *path = NULL;
    struct tt_path_info info = {0};
    bool exists = false;
    int rc = 0;

    for (int what = 0; what < MADE; what++) {
        tt_free(path);
        path = made_path(cfg, what);
        TT_TRY(tt_path_look(path, &info));
        exists = info.kind != TT_FILE_NONE || info.is_link; /* a link belongs to the user, wherever it leads */
        if (what != LOCK || !folder->lock.path)
            folder->had |= (unsigned)exists << what;
    }
    if (folder->kept)
        goto out;
    for (size_t n = strlen(at); n > 1 && at[n - 1] == '/'; n--)
        at[n - 1] = 0;
    TT_TRY(tt_path_exists(at, &exists));
    while (!exists && cut_last(at))
        TT_TRY(tt_path_exists(at, &exists));
    folder->kept = exists ? at : tt_strdup("");
    at = exists ? NULL : at;
out:
    tt_free(path);
    tt_free(at);
    return rc;
}

static void remove_made(const struct tt_config *cfg, int what)
{
    char *path = made_path(cfg, what), *lock = tt_format("%s/.lock", path);

    if (what == BOARD) {
        (void)!remove_records(cfg->job.dump_folder, path, "[0-9]*-[0-9]*", "events.out.tfevents.*");
        (void)!remove_empty(cfg->job.dump_folder, path);
    } else if (what == CHECKPOINTS) {
        (void)unlink(lock);
        (void)!remove_empty(cfg->job.dump_folder, path);
    } else {
        (void)unlink(path);
    }
    tt_free(lock);
    tt_free(path);
}

/* Leaves files that cannot be removed. Keeps the error message of the failed start. */
void tt_run_folder_undo(const struct tt_config *cfg, struct tt_run_folder *folder)
{
    char *message = tt_strdup(tt_error_message()), *at = tt_strdup(cfg->job.dump_folder);
    enum tt_key key = tt_error_key();
    bool is_ours = folder->lock.path && folder->kept && tt_lock_check(&folder->lock) == 0;

    if (is_ours && !(folder->had & 1U << CONSOLE)) /* if the log stays, write the message into it too */
        tt_console_close();
    for (int what = 0; what < MADE && is_ours; what++)
        if (!(folder->had & 1U << what))
            remove_made(cfg, what);
    tt_lock_release(&folder->lock); /* the lock file is removed while it is held, so that nobody else can take it */
    for (size_t n = strlen(at); n > 1 && at[n - 1] == '/'; n--)
        at[n - 1] = 0;
    while (is_ours && strlen(at) > strlen(folder->kept) && rmdir(at) == 0 && cut_last(at))
        ; /* removes the parent folders that this start created */
    (void)tt_fail_key(TT_EINTERNAL, key, "%s", message);
    tt_free(message);
    tt_free(at);
}

/* --- a folder that is taken --- */

int tt_run_folder_take(const struct tt_config *cfg, bool resumes, bool overwrite, struct tt_run_folder *ret_folder)
{
    enum { TRIES = 5 };
    struct tt_run_folder folder = TT_RUN_FOLDER_NONE;
    bool there;
    int rc = 0;

    TT_TRY(look(cfg, &folder));
    for (int i = 0; i < TRIES; i++) { /* meanwhile, a start that fails may remove the folder again */
        rc = tt_folder_make(cfg->job.dump_folder);
        if (rc == 0)
            rc = take_lock(cfg, &folder.lock);
        if (rc == 0 || tt_path_exists(cfg->job.dump_folder, &there) < 0 || there)
            break;
    }
    TT_TRY(rc);
    TT_TRY(look(cfg, &folder)); /* another job may have held the lock meanwhile */
    rc = decide(cfg, resumes, overwrite, &folder.replaces);
    if (rc < 0) {
        tt_run_folder_undo(cfg, &folder);
        goto out;
    }
    *ret_folder = folder;
    folder = TT_RUN_FOLDER_NONE;
out:
    tt_run_folder_release(&folder);
    return rc;
}

int tt_run_folder_replace(const struct tt_config *cfg, struct tt_run_folder *folder)
{
    int rc = folder->replaces ? remove_run(cfg) : 0;

    folder->replaces = false;
    return rc;
}

void tt_run_folder_release(struct tt_run_folder *folder)
{
    tt_lock_release(&folder->lock);
    tt_free(folder->kept);
    *folder = TT_RUN_FOLDER_NONE;
}

void tt_run_folder_console(const struct tt_config *cfg, int argc, char **argv)
{
    char *path = in_folder(cfg, "console.log");

    tt_console_open(path, argc, argv);
    tt_free(path);
}

int tt_run_folder_metrics(const struct tt_config *cfg, struct tt_records **ret_records)
{
    char *path = in_folder(cfg, "metrics.jsonl");
    int rc = tt_records_open(path, ret_records);

    tt_free(path);
    return rc;
}

int tt_run_folder_board(const struct tt_config *cfg, struct tt_tensorboard **ret_board)
{
    char *folder = in_folder(cfg, cfg->metrics.save_tb_folder);
    int rc = tt_tensorboard_open(folder, ret_board);

    tt_free(folder);
    return rc;
}

int tt_run_folder_record(const struct tt_config *cfg, int argc, char **argv, int ranks, int threads,
                         const struct tt_machine *machine)
{
    struct tt_text text = {0};
    char host[256] = "", when[64] = "";
    char *path = in_folder(cfg, "run.yaml");
    time_t now = time(NULL);
    struct tm utc;
    int rc;

    (void)gethostname(host, sizeof host - 1);
    if (gmtime_r(&now, &utc))
        (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    tt_text_add(&text, "# titan %s, %s, host %s, %d rank%s x %d thread%s%s%s\n# command: titan train", TITAN_VERSION,
                when, host, ranks, ranks == 1 ? "" : "s", threads, threads == 1 ? "" : "s",
                tt_revision()[0] ? ", git " : "", tt_revision());
    for (int i = 0; i < argc; i++) {
        tt_text_add(&text, " ");
        tt_text_add_word(&text, argv[i]);
    }
    tt_text_add(&text, "\n# computed by titan's kernels ");
    tt_kernels_text(&text);
    if (tt_blas_is_needed())
        tt_text_add(&text, " and the kernels %s of %s", tt_blas_kernel(), tt_blas_library());
    if (cfg->parallelism.fsdp_engine == TT_ENGINE_PLANNED)
        tt_text_add(&text, "\n# planned by the cost table '%s', hash %016" PRIx64, machine->name,
                    tt_machine_hash(machine));
    tt_text_add(&text, "\n# Run it again with: titan train --config run.yaml --job.dump_folder=ANOTHER\n");
    tt_config_to_yaml(cfg, TT_CONFIG_PLAIN, &text);
    rc = tt_file_replace(path, text.text, text.size);
    tt_text_release(&text);
    tt_free(path);
    return rc;
}
