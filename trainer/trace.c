/* SPDX-License-Identifier: MIT
 *
 * The trace of a step. In Chrome's format, a rank is a process, and its lanes are threads: one for the main thread's
 * computation, one for its waits, and one per simultaneous collective, from its beginning to its completion.
 */
#include <string.h>

#include <unistd.h>

#include "core/base/mem.h"
#include "core/os/file.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"
#include "trainer/job/summary.h"
#include "trainer/loop.h"

enum lane { LANE_COMPUTE, LANE_WAITING, LANE_COMMUNICATION };

struct writer {
    const struct tt_engine *engine;
    const struct tt_program *program;
    const struct tt_trace_step *step;
    const struct tt_span *spans;
    json_t *events;
    double *lane_end; /* for each lane of collectives: when its last one was complete */
    int n_lanes, cap_lanes;
};

/* Microseconds since the trace began, rounded to nanoseconds. */
static double micros(const struct writer *w, double sec)
{
    return (double)(int64_t)((sec - w->step->load.end + w->step->lead) * 1e9 + 0.5) * 1e-3;
}

static void add_event(struct writer *w, const char *name, const char *category, int lane, struct tt_span span,
                      json_t *args)
{
    double begin = micros(w, span.begin), end = micros(w, span.end);

    (void)json_array_append_new(w->events, json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:o}", "name", name, "cat",
                                                     category, "ph", "X", "pid", w->step->rank, "tid", lane, "ts",
                                                     begin, "dur", end > begin ? end - begin : 0.0, "args", args));
}

static void add_metadata(struct writer *w, const char *what, int lane, const char *key, json_t *value)
{
    (void)json_array_append_new(w->events, json_pack("{s:s, s:s, s:i, s:i, s:{s:o}}", "name", what, "ph", "M", "pid",
                                                     w->step->rank, "tid", lane, "args", key, value));
}

static json_t *units_json(const struct writer *w, const struct tt_instr *instr)
{
    struct tt_text text = {0};
    json_t *json;
    const struct tt_bucket of = tt_instr_units(w->program->buckets, instr);

    tt_units_text(w->program, of.units, of.n, &text);
    json = json_string(text.text ? text.text : ""); /* a transfer between stages belongs to no unit */
    tt_text_release(&text);
    return json;
}

/* The activity of the main thread in an instruction. */
static void add_instruction(struct writer *w, int i)
{
    const struct tt_instr *instr = &w->program->instrs[i];
    const struct tt_instr_row *row = tt_instr_row(instr);
    const char *part = tt_split_name(tt_split_part_of(w->program, i));
    json_t *args = json_pack("{s:i, s:s}", "instruction", i, "part", part);
    struct tt_text name = {0};

    tt_instr_text(w->program, i, &name);
    if (row->waits) {
        const struct tt_instr *begun = &w->program->instrs[instr->begin];

        (void)json_object_set_new(args, "collective", json_string(tt_instr_name(begun)));
        (void)json_object_set_new(args, "units", units_json(w, begun));
    } else {
        (void)json_object_set_new(args, "op", json_string(tt_instr_op_name(w->program, instr)));
        if (row->of_microbatch)
            (void)json_object_set_new(args, "microbatch", json_integer(instr->microbatch));
    }
    add_event(w, name.text, row->waits ? "wait" : "compute", row->waits ? LANE_WAITING : LANE_COMPUTE, w->spans[i],
              args);
    tt_text_release(&name);
}

static void add_collective(struct writer *w, int i)
{
    const struct tt_instr *instr = &w->program->instrs[i];
    const struct tt_purpose_row *row = tt_purpose_row(instr->purpose);
    struct tt_span span = tt_engine_transfer_span(w->engine, i);
    struct tt_text name = {0};
    json_t *args;
    int lane = 0;

    if (span.end < w->spans[i].begin || span.end <= 0.0) /* no data was exchanged */
        return;
    args = json_pack("{s:i, s:s, s:o, s:i, s:I, s:o}", "instruction", i, "collective", row->name, "units",
                     units_json(w, instr), "bucket_units", tt_instr_units(w->program->buckets, instr).n, "bytes",
                     (json_int_t)tt_instr_payload(instr), "group",
                     json_sprintf("%s%s, %d ranks", row->part_of_group ? row->part_of_group : "",
                                  tt_group_name(instr->collective.group), instr->collective.ranks));
    if (row->of_microbatch)
        (void)json_object_set_new(args, "microbatch", json_integer(instr->microbatch));
    tt_instr_text(w->program, i, &name);
    while (lane < w->n_lanes && w->lane_end[lane] > span.begin)
        lane++;
    if (lane == w->n_lanes)
        TT_PUSH(w->lane_end, w->n_lanes, w->cap_lanes) = span.end;
    w->lane_end[lane] = span.end;
    add_event(w, name.text, "communication", LANE_COMMUNICATION + lane, span, args);
    tt_text_release(&name);
}

static void add_step(struct writer *w)
{
    const struct tt_program *p = w->program;

    add_event(w, "load the batch", "compute", LANE_COMPUTE, w->step->load,
              json_pack("{s:s, s:s}", "op", "load", "part", tt_split_name(TT_SPLIT_IDLE)));
    for (int i = 0; i < p->n_instrs; i++) {
        const struct tt_instr_row *row = tt_instr_row(&p->instrs[i]);
        static const double shown_sec = 1e-6;

        if (row->quiet)
            continue;
        add_instruction(w, i);
        if (row->begins)
            add_collective(w, i);
        if (i + 1 < p->n_instrs && w->spans[i + 1].begin - w->spans[i].end > shown_sec)
            add_event(w, "progress", "compute", LANE_COMPUTE, (struct tt_span){w->spans[i].end, w->spans[i + 1].begin},
                      json_pack("{s:s, s:s}", "op", "progress", "part", tt_split_name(TT_SPLIT_COMMUNICATION)));
    }
}

/* The head of the file, which `titan trace summary` reads. */
static json_t *about(const struct writer *w, const char *host)
{
    struct tt_span step = {w->step->load.begin, w->step->end};
    struct tt_split split = {0};
    json_t *parts = json_object();

    tt_split_add(&split, w->program, w->spans, step);
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        (void)json_object_set_new(parts, tt_split_name((enum tt_split_part)p), json_real(split.sec[p]));
    return json_pack("{s:s, s:i, s:s, s:I, s:i, s:i, s:i, s:s, s:f, s:o}", "type", "trace", "schema", 1, "version",
                     TITAN_VERSION, "step", (json_int_t)w->step->step, "rank", w->step->rank, "world", w->step->world,
                     "threads", w->step->threads, "host", host, "step_time_s", step.end - step.begin, "split_s", parts);
}

int tt_trace_write(const struct tt_engine *engine, const struct tt_trace_step *step, const char *folder)
{
    struct writer w = {.engine = engine,
                       .program = tt_engine_program(engine),
                       .step = step,
                       .spans = tt_executor_spans(tt_engine_executor(engine)),
                       .events = json_array()};
    char *iteration = tt_format("%s/iteration_%lld", folder, (long long)step->step);
    char *path = tt_format("%s/rank%d_trace.json", iteration, step->rank);
    char host[256] = "", *text = NULL;
    json_t *file = NULL;
    int rc = 0;

    (void)gethostname(host, sizeof host - 1);
    TT_TRY(tt_folder_make(iteration));
    add_step(&w);
    add_metadata(&w, "process_name", LANE_COMPUTE, "name", json_sprintf("rank %d (%s)", step->rank, host));
    add_metadata(&w, "process_sort_index", LANE_COMPUTE, "sort_index", json_integer(step->rank));
    for (int lane = 0; lane < LANE_COMMUNICATION + w.n_lanes; lane++) {
        int n = lane - LANE_COMMUNICATION + 1;

        add_metadata(&w, "thread_name", lane, "name",
                     lane == LANE_COMPUTE   ? json_string("compute")
                     : lane == LANE_WAITING ? json_string("waiting")
                     : n > 1                ? json_sprintf("communication %d", n)
                                            : json_string("communication"));
    }
    for (int lane = 0; lane < LANE_COMMUNICATION + w.n_lanes; lane++)
        add_metadata(&w, "thread_sort_index", lane, "sort_index", json_integer(lane));
    file = json_pack("{s:s, s:o, s:O}", "displayTimeUnit", "ms", "otherData", about(&w, host), "traceEvents", w.events);
    text = tt_json_text(file);
    rc = tt_file_replace(path, text, strlen(text));
out:
    tt_free(text);
    json_decref(file);
    json_decref(w.events);
    tt_free(w.lane_end);
    tt_free(iteration);
    tt_free(path);
    return rc;
}
