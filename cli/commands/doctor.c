/* SPDX-License-Identifier: MIT
 *
 * `titan doctor`: finds what is wrong with this machine, or with all hosts of a job, and says what to do.
 */
#include "cli/doctor/doctor.h"

#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "trainer/job/facts.h"
#include "trainer/job/job.h"

/* --- the report --- */

static const char *const level_names[TT_DOCTOR_LEVELS] = {"ok", "warning", "error"};

enum { NAME_COLUMNS = 13, LEVEL_COLUMNS = 7, TEXT_INDENT = LEVEL_COLUMNS + 2 + NAME_COLUMNS + 2 };

/* --- making the checks --- */

static bool reports(const struct tt_doctor *d, enum tt_check_scope scope)
{
    return scope == TT_CHECK_RANK || (scope == TT_CHECK_HOST ? d->local_rank == 0 : d->comm->rank == 0);
}

/* Runs the checks on this rank. The result has an item for each check, null if another rank reports it. Collective. */
static int look(const struct tt_doctor *d, json_t *mine)
{
    int rc = 0;

    for (int i = 0; i < tt_n_checks; i++) {
        const struct tt_check *check = &tt_checks[i];
        struct tt_finding finding = {.level = TT_DOCTOR_OK};
        bool told = reports(d, check->scope);

        if (told || check->scope == TT_CHECK_JOB)
            rc = check->look(d, &finding);
        (void)json_array_append_new(
            mine, told ? json_pack("{s:s, s:o, s:o, s:i}", "level", level_names[finding.level], "found",
                                   tt_json_string(finding.found.text ? finding.found.text : ""), "help",
                                   finding.help.text ? tt_json_string(finding.help.text) : json_null(), "exit",
                                   finding.level == TT_DOCTOR_ERROR ? tt_error_exit_code(finding.rc) : 0)
                       : json_null());
        tt_finding_release(&finding);
        TT_TRY(rc);
    }
out:
    return rc;
}

/* Gathers all findings: all[rank] is the list that `look` made on that rank. Collective. */
static int gather(const struct tt_doctor *d, const json_t *mine, json_t **all)
{
    char *text = tt_json_text(mine), *texts = NULL;
    double most = (double)strlen(text) + 1.0;
    size_t bytes;
    int rc = 0;

    TT_TRY(tt_comm_max_f64(d->comm, &most, 1));
    bytes = (size_t)most;
    text = tt_realloc(text, bytes, 1);
    texts = tt_calloc((size_t)d->comm->size, bytes);
    TT_TRY(tt_comm_gather_all(d->comm, text, bytes, texts));
    for (int r = 0; r < d->comm->size; r++) {
        const char *theirs = texts + (size_t)r * bytes;

        TT_TRY(tt_json_parse(theirs, strlen(theirs), "findings of a rank", &all[r]));
    }
out:
    tt_free(texts);
    tt_free(text);
    return rc;
}

/* --- printing --- */

/* The findings of a check on each rank, with their hashes (0: no finding). */
struct findings {
    const struct tt_doctor *doctor;
    json_t **all;
    uint64_t *hashes; /* [ranks] */
    int check;
};

static const json_t *finding_of(const struct findings *s, int rank)
{
    return json_array_get(s->all[rank], (size_t)s->check);
}

static void take_check(struct findings *s, int check)
{
    s->check = check;
    for (int r = 0; r < s->doctor->comm->size; r++) {
        char *text = tt_json_text(finding_of(s, r));

        s->hashes[r] = json_is_null(finding_of(s, r)) ? 0 : tt_hash64(text, strlen(text), 1) | 1;
        tt_free(text);
    }
}

/* Whether no lower rank has the same finding. */
static bool is_first(const struct findings *s, int rank)
{
    for (int r = 0; r < rank; r++)
        if (s->hashes[r] == s->hashes[rank])
            return false;
    return s->hashes[rank] != 0;
}

static const char *text_of(const json_t *finding, const char *key)
{
    return json_string_value(json_object_get(finding, key));
}

/* "warning huge pages transparent huge pages: never", and a line with the remedy. */
static void print_finding(const struct findings *s, int rank, bool with_ranks, struct tt_text *out)
{
    const json_t *finding = finding_of(s, rank);

    tt_text_add(out, "%-*s  %-*s  %s", LEVEL_COLUMNS, text_of(finding, "level"), NAME_COLUMNS, tt_checks[s->check].name,
                text_of(finding, "found"));
    if (with_ranks) {
        tt_text_add(out, ": ");
        tt_facts_add_ranks(s->doctor->comm, s->hashes, rank, out);
    }
    tt_text_add(out, "\n");
    if (text_of(finding, "help"))
        tt_text_add(out, "%*shelp: %s\n", TEXT_INDENT, "", text_of(finding, "help"));
}

static void print_text(struct findings *s)
{
    struct tt_text out = {0};

    for (int i = 0; i < tt_n_checks; i++) {
        int n = 0;

        take_check(s, i);
        for (int r = 0; r < s->doctor->comm->size; r++)
            n += is_first(s, r);
        for (int r = 0; r < s->doctor->comm->size; r++)
            if (is_first(s, r))
                print_finding(s, r, n > 1, &out);
    }
    tt_screen_put(stdout, out.text, tt_screen_columns(STDOUT_FILENO), TEXT_INDENT);
    tt_text_release(&out);
}

static json_t *line_json(const struct findings *s, int rank)
{
    const struct tt_comm *comm = s->doctor->comm;
    json_t *line = json_copy((json_t *)finding_of(s, rank)), *ranks = json_array(), *hosts = json_array();

    for (int r = rank; r < comm->size; r++) {
        bool known = false;

        if (s->hashes[r] != s->hashes[rank])
            continue;
        (void)json_array_append_new(ranks, json_integer(r));
        for (size_t i = 0; i < json_array_size(hosts); i++)
            known = known || strcmp(json_string_value(json_array_get(hosts, i)), tt_comm_host(comm, r)) == 0;
        if (!known)
            (void)json_array_append_new(hosts, tt_json_string(tt_comm_host(comm, r)));
    }
    (void)json_object_set_new(line, "check", json_string(tt_checks[s->check].name));
    (void)json_object_set_new(line, "ranks", ranks);
    (void)json_object_set_new(line, "hosts", hosts);
    return line;
}

static void print_json(struct findings *s, int exit_code, enum tt_doctor_level worst)
{
    json_t *lines = json_array();

    for (int i = 0; i < tt_n_checks; i++) {
        take_check(s, i);
        for (int r = 0; r < s->doctor->comm->size; r++)
            if (is_first(s, r))
                (void)json_array_append_new(lines, line_json(s, r));
    }
    (void)tt_cli_print_json(json_pack("{s:i, s:i, s:s, s:i, s:o}", "ranks", s->doctor->comm->size, "hosts",
                                      s->doctor->n_hosts, "worst", level_names[worst], "exit", exit_code, "checks",
                                      lines));
}

/* --- the result --- */

/* The exit code of the first error in the order of the report, or 0, and the worst level. */
static int judge(const struct tt_doctor *d, json_t **all, enum tt_doctor_level *ret_worst)
{
    int code = 0;

    *ret_worst = TT_DOCTOR_OK;
    for (int i = 0; i < tt_n_checks; i++) {
        for (int r = 0; r < d->comm->size; r++) {
            const json_t *finding = json_array_get(all[r], (size_t)i);
            const char *level = text_of(finding, "level");

            for (int l = TT_DOCTOR_OK; level && l < TT_DOCTOR_LEVELS; l++)
                if (strcmp(level, level_names[l]) == 0 && l > (int)*ret_worst)
                    *ret_worst = (enum tt_doctor_level)l;
            if (code == 0)
                code = (int)json_integer_value(json_object_get(finding, "exit"));
        }
    }
    return code;
}

/*
 * Makes all checks and prints the report on rank 0. Collective. Returns 0, TT_ECOMM, or the exit code of the first
 * error in the table, the same on every rank.
 */
static int report(const struct tt_doctor *d, bool json)
{
    struct findings s = {.doctor = d};
    json_t *mine = json_array(), **all = tt_calloc((size_t)d->comm->size, sizeof(json_t *));
    enum tt_doctor_level worst;
    int rc = 0;

    s.all = all;
    s.hashes = tt_calloc((size_t)d->comm->size, sizeof *s.hashes);
    TT_TRY(look(d, mine));
    TT_TRY(gather(d, mine, all));
    rc = judge(d, all, &worst);
    if (d->comm->rank == 0 && json)
        print_json(&s, rc, worst);
    else if (d->comm->rank == 0)
        print_text(&s);
out:
    for (int r = 0; r < d->comm->size; r++)
        json_decref(all[r]);
    json_decref(mine);
    tt_free(s.hashes);
    tt_free((void *)all);
    return rc;
}

/* --- the command --- */

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: [mpirun -n N] titan doctor [--json] [--config FILE]... [--section.key=value]...\n\n"
    "Checks what makes runs fail or slow: MPI, cores and binding, BLAS, memory, limits, the disk of\n"
    "job.dump_folder. Each line is ok, a warning or an error. Under mpirun it checks every host. It\n"
    "leaves no files.\n\n";

static int examine(struct tt_comm *comm, void *arg)
{
    const struct tt_args *args = arg;
    struct tt_doctor doctor = {.comm = comm, .root = ""};
    struct tt_config *cfg = NULL;
    int rc = tt_cli_load_config("doctor", args, &cfg), code;

    TT_TRY(tt_comm_agree(comm, rc));
    for (int r = 0; r < comm->size; r++)
        doctor.n_hosts += tt_comm_host_leader(comm, r) == r;
    doctor.cfg = cfg;
    tt_comm_node(comm, &doctor.local_rank, &doctor.local_size);
    doctor.threads = tt_job_threads(cfg, doctor.local_size);
    rc = report(&doctor, tt_args_has(args, "json"));
    if (comm->rank == 0 && rc >= 0 && (code = tt_cli_finish()) != 0)
        rc = code;
out:
    tt_config_free(cfg);
    return rc;
}

const struct tt_command tt_command_doctor = {
    .name = "doctor",
    .arguments = "[--json] [overrides]",
    .summary = "what is wrong with this machine, and what to do",
    .usage = usage,
    .options = options,
    .run_ranks = examine,
};
