/* SPDX-License-Identifier: MIT
 *
 * Segments are named vader_segment.HOST.UID.JOB.RANK, without a process number. A live rank maps its segment right
 * after it makes it; the minimum age covers the time before. At its end a rank first unmaps its segment and then
 * removes it; Open MPI complains if the file is already gone. So a segment is unused if no process maps it and no
 * process belongs to its job.
 */
#include "cli/run/segments.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>
#include <unistd.h>

#include <ctype.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

struct segments {
    char **names; /* files of the folder */
    bool *left;   /* [n] whether the file may be removed */
    int n;
    size_t job_at; /* offset of the job's number in these names */
};

static int list_leftovers(const char *folder, double min_age_sec, struct segments *s)
{
    char host[256] = "", *prefix;
    int found = 0;

    (void)gethostname(host, sizeof host - 1);
    if (tt_folder_list(folder, &s->names, &s->n) < 0)
        return 0;
    prefix = tt_format("vader_segment.%s.%u.", host, (unsigned)geteuid());
    s->job_at = strlen(prefix);
    s->left = tt_calloc((size_t)s->n + 1, sizeof *s->left);
    for (int i = 0; i < s->n; i++) {
        char *path = tt_format("%s/%s", folder, s->names[i]);
        struct stat st;

        s->left[i] = tt_text_begins(s->names[i], prefix) && lstat(path, &st) == 0 && S_ISREG(st.st_mode) &&
                     st.st_uid == geteuid() && tt_clock_wall_sec() - (double)st.st_mtime >= min_age_sec;
        found += s->left[i];
        tt_free(path);
    }
    tt_free(prefix);
    return found;
}

static bool has_ended(int error)
{
    return error == ENOENT || error == ESRCH;
}

/* Passes on the lines, or strings, of a file in /proc. False if it could not be read to the end, unless the process has
 * ended. */
static bool read_file(const char *path, int delimiter, void (*take)(const char *text, struct segments *s),
                      struct segments *s)
{
    FILE *f = fopen(path, "re");
    struct stat st;
    char *text = NULL;
    size_t cap = 0;
    bool read = false;

    if (!f)
        return has_ended(errno);
    errno = 0;
    if (fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode)) {
        while (getdelim(&text, &cap, delimiter, f) > 0)
            take(text, s);
        read = (feof(f) && !ferror(f)) || errno == ESRCH;
    }
    free(text); // NOLINT(cppcoreguidelines-no-malloc): getdelim allocated it
    (void)fclose(f);
    return read;
}

/* Excludes the segment that a line of a process's maps names. */
static void spare_mapped(const char *line, struct segments *s)
{
    const char *at = strstr(line, "/vader_segment.");

    for (int i = 0; at && i < s->n; i++)
        if (tt_text_begins(at + 1, s->names[i]) && isspace((unsigned char)at[1 + strlen(s->names[i])]))
            s->left[i] = false;
}

/* Excludes the segments of the job that a string in a process's environment names, since mpirun started the process for
 * that job. */
static void spare_job(const char *text, struct segments *s)
{
    static const char variable[] = "PMIX_NAMESPACE=";
    char *end;
    unsigned long job;

    if (!tt_text_begins(text, variable))
        return;
    job = strtoul(text + sizeof variable - 1, &end, 10);
    for (int i = 0; *end == '\0' && i < s->n; i++)
        if (s->left[i] && strtoul(s->names[i] + s->job_at, NULL, 16) == job)
            s->left[i] = false;
}

/* Excludes the segments that one process uses, if it belongs to this user. False if they could not be read. */
static bool spare_process(const char *proc, const char *name, struct segments *s)
{
    char *process = tt_format("%s/%s", proc, name), *maps = tt_format("%s/maps", process);
    char *environment = tt_format("%s/environ", process);
    struct stat st;
    bool read;

    if (stat(process, &st) < 0)
        read = has_ended(errno);
    else
        read = st.st_uid != geteuid() ||
               (read_file(maps, '\n', spare_mapped, s) && read_file(environment, '\0', spare_job, s));
    tt_free(process);
    tt_free(maps);
    tt_free(environment);
    return read;
}

/* Excludes the segments that any process of this user uses. False if they could not be read, or if this process itself
 * is missing from the folder, which then does not list all processes (/proc may not be mounted). */
static bool spare_used(const char *proc, struct segments *s)
{
    char **names = NULL, *own = tt_format("%ld", (long)getpid());
    bool all = true, has_own = false;
    int n = 0;

    all = tt_folder_list(proc, &names, &n) == 0;
    for (int i = 0; i < n && all; i++) {
        has_own = has_own || strcmp(names[i], own) == 0;
        /* even root may be unable to read init, which is no rank; but in a container the first process may be a rank */
        if (isdigit((unsigned char)names[i][0]))
            all = spare_process(proc, names[i], s) || strcmp(names[i], "1") == 0;
    }
    tt_names_free(names, n);
    tt_free(own);
    return all && has_own;
}

/* Finds the segments that no process uses; returns their number. */
static int find_unused(const char *shm, const char *proc, double min_age_sec, struct segments *s)
{
    int n = 0;

    if (list_leftovers(shm, min_age_sec, s) > 0 && spare_used(proc, s))
        for (int i = 0; i < s->n; i++)
            n += s->left[i];
    return n;
}

static void release(struct segments *s)
{
    tt_names_free(s->names, s->n);
    tt_free(s->left);
}

int tt_segments_left(const char *shm, const char *proc, double min_age_sec)
{
    struct segments s = {0};
    int n = find_unused(shm, proc, min_age_sec, &s);

    release(&s);
    return n;
}

int tt_segments_sweep(const char *shm, const char *proc, double min_age_sec)
{
    struct segments s = {0};
    int removed = 0, failed = 0;

    if (find_unused(shm, proc, min_age_sec, &s) > 0)
        for (int i = 0; i < s.n; i++) {
            char *path = tt_format("%s/%s", shm, s.names[i]);

            if (!s.left[i] || unlink(path) == 0)
                removed += s.left[i];
            else if (errno != ENOENT && failed++ == 0)
                tt_warn("cannot remove '%s', which a killed MPI process left: %s", path, strerror(errno));
            tt_free(path);
        }
    release(&s);
    return removed;
}
