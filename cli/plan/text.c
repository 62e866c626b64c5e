/* SPDX-License-Identifier: MIT
 *
 * A planned rank as text, to be read before a job is started.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "cli/plan/view.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"
#include "parallel/pipeline/split.h"

/* Adds names to a table: the first and the last of a run of similar neighbours. */
static void add_run(struct tt_text *out, const char *first, const char *last, int n)
{
    if (n > 1)
        tt_text_add(out, "%s .. %s (%d alike)", first, last, n);
    else
        tt_text_add(out, "%s", first);
}

/* Adds the layers of a stage, which are modules 1 to n_layers (parallel/pipeline/split.h). */
static void add_stage(const struct tt_job *job, int stage, struct tt_text *out)
{
    struct tt_stage_split split = {job->places->n_stages, (int)job->model->dims.n_layers + 3,
                                   job->places->module_stage};
    struct tt_stage_range range = tt_stage_split_layers(&split, stage);

    tt_text_add(out, "stage %d on pipeline rank %d:%s", stage, job->places->rank_of_stage[stage],
                split.module_stage[0] == stage ? " embeddings" : "");
    if (range.n_layers == 1)
        tt_text_add(out, " layer %d", range.first_layer);
    else if (range.n_layers > 1)
        tt_text_add(out, " layers %d to %d", range.first_layer, range.first_layer + range.n_layers - 1);
    if (split.module_stage[split.n_modules - 2] == stage)
        tt_text_add(out, " norm");
    if (split.module_stage[split.n_modules - 1] == stage)
        tt_text_add(out, " output");
}

static void print_pipeline(const struct tt_plan_view *v)
{
    const struct tt_pipeline *pipeline = v->job.pipeline;
    int64_t runs = v->job.microbatches / pipeline->microbatches;
    struct tt_text shown = {0};

    tt_job_rank_text(&v->job, v->rank, &shown);
    tt_print_broken(
        10, "pipeline  %s, %" PRId64 " run%s a step, each of %d microbatches through %d stages; shown: %s\n",
        pipeline->schedule->name, runs, runs == 1 ? "" : "s", pipeline->microbatches, pipeline->n_stages, shown.text);
    tt_text_release(&shown);
    for (int s = 0; s < pipeline->n_stages; s++) {
        struct tt_text stage = {0};

        add_stage(&v->job, s, &stage);
        tt_print_broken(12, "          %s\n", stage.text);
        tt_text_release(&stage);
    }
}

/* "rank 5 is at dp_shard 2, cp 1": along the dimensions that have several ranks. */
static void print_mesh(const struct tt_plan_view *v)
{
    const struct tt_mesh *mesh = &v->job.mesh;
    struct tt_text sizes = {0}, place = {0};

    tt_mesh_text(mesh, &sizes);
    for (enum tt_mesh_dim dim = 0; dim < TT_MESH_DIMS; dim++)
        if (mesh->size[dim] > 1)
            tt_text_add(&place, "%s%s %d", place.size ? ", " : " is at ", tt_mesh_dim_name(dim),
                        tt_mesh_coordinate(mesh, v->rank, dim));
    tt_print_broken(10, "mesh      %d rank%s = %s; rank %d%s, %d thread%s\n", mesh->n_ranks,
                    mesh->n_ranks == 1 ? "" : "s", sizes.text, v->rank, place.text ? place.text : "",
                    v->job.engine.threads, v->job.engine.threads == 1 ? "" : "s");
    tt_text_release(&sizes);
    tt_text_release(&place);
}

static void print_head(const struct tt_plan_view *v)
{
    const struct tt_config *cfg = v->cfg;
    struct tt_text words = {0}, readers = {0};
    char count[32];

    tt_print("model     %s, %s parameters", v->job.model->title,
             tt_text_count(count, sizeof count, tt_model_n_elements(v->job.model)));
    if (v->job.model->dims.moe.experts)
        tt_print(", of which a token uses %s", tt_text_count(count, sizeof count, tt_model_n_active(v->job.model)));
    tt_print("\n");
    print_mesh(v);
    tt_job_readers_text(&v->job, &readers);
    tt_print_broken(
        10,
        "batch     %" PRId64 " sequences a step = %s x %" PRId64 " microbatches of %" PRId64 " x %" PRId64 " tokens\n",
        v->job.global_batch, readers.text, v->job.microbatches, v->job.microbatch_size, cfg->training.seq_len);
    tt_text_release(&readers);
    tt_job_policies_text(cfg, &words);
    tt_print_broken(10, "policies  %s\n", words.text);
    tt_text_release(&words);
    if (v->job.sync_why)
        tt_print_broken(10, "reduces   gradients %s (gradient_sync auto)\n", v->job.sync_why);
    if (v->job.pipeline)
        print_pipeline(v);
}

/* --- the memory timeline --- */

#define BIT(kind) (1U << (kind))

/* The colours can be told apart in grey, and by readers who cannot tell red from green. */
const struct tt_plan_layer tt_plan_layers[] = {
    {"parameters", "#4477aa", 'P', BIT(TT_MEMORY_PARAM) | BIT(TT_MEMORY_CONST)},
    {"optimizer", "#88a6c8", 'O', BIT(TT_MEMORY_OPTIMIZER)},
    {"gradients", "#aa3377", 'g', BIT(TT_MEMORY_GRAD)},
    {"activations", "#ccbb44", 'a', BIT(TT_MEMORY_ACTIVATION) | BIT(TT_MEMORY_INPUT)},
    {"activation gradients", "#ee9944", 'd', BIT(TT_MEMORY_ACTIVATION_GRAD)},
    {"unsharded parameters", "#66ccee", 'U', BIT(TT_MEMORY_UNSHARDED) | BIT(TT_MEMORY_KEPT)},
    {"unsharded gradients", "#ee6677", 'G', BIT(TT_MEMORY_PARAM_GRAD)},
    {"reduce staging", "#228833", 'r', BIT(TT_MEMORY_STAGING)},
    {"scratch", "#bbbbbb", 's', BIT(TT_MEMORY_SCRATCH)},
};
enum { N_LAYERS = sizeof tt_plan_layers / sizeof tt_plan_layers[0] };
const int tt_plan_n_layers = N_LAYERS;

int64_t tt_plan_layer_bytes(const struct tt_summary *summary, int layer, int instr)
{
    int64_t bytes = 0;

    for (int k = 0; k < TT_MEMORY_KINDS; k++)
        if (tt_plan_layers[layer].kinds & BIT(k))
            bytes += summary->live[instr][k];
    return bytes;
}

int tt_plan_largest(const struct tt_summary *s, int from, int to)
{
    int most = from;

    for (int i = from; i < to; i++)
        if (tt_summary_live_bytes(s, i) > tt_summary_live_bytes(s, most))
            most = i;
    return most;
}

/* The phase of the instructions in a column of the plot. */
static char phase_of(const struct tt_program *program, int from, int to)
{
    static const char marks[TT_PHASES] = {[TT_PHASE_FORWARD] = '>', [TT_PHASE_BACKWARD] = '<', [TT_PHASE_UPDATE] = '*'};

    for (int i = from; i < to; i++) {
        char mark = marks[tt_instr_phase(program, &program->instrs[i])];

        if (mark)
            return mark;
    }
    return ' ';
}

enum { COLUMNS = 72, ROWS = 12, LABEL = 14 }; /* LABEL: columns before the plot */

/* Writes the letters of a column from the bottom up, for the instruction in the column that uses the most memory. */
static void fill_column(const struct tt_summary *s, int from, int to, int64_t top, char letters[ROWS])
{
    int most = tt_plan_largest(s, from, to), row = 0;
    int64_t sum = 0;

    for (int l = 0; l < N_LAYERS; l++) {
        sum += tt_plan_layer_bytes(s, l, most);
        for (int64_t end = (sum * ROWS * 2 / top + 1) / 2; row < end && row < ROWS; row++)
            letters[row] = tt_plan_layers[l].letter;
    }
    for (; row < ROWS; row++)
        letters[row] = ' ';
}

/* The memory timeline as lines of text, on stdout. */
static void print_timeline(const struct tt_summary *s)
{
    const struct tt_program *p = s->program;
    int terminal = tt_screen_columns(STDOUT_FILENO), most = terminal ? terminal - LABEL : COLUMNS;
    int columns = most < COLUMNS ? most : COLUMNS;
    char plot[COLUMNS][ROWS], phase[COLUMNS + 1] = "", label[32];
    int64_t top = p->n_instrs ? tt_summary_live_bytes(s, tt_plan_largest(s, 0, p->n_instrs)) : 0;
    struct tt_text legend = {0};

    top = top > 1 ? top : 1;
    columns = p->n_instrs < columns ? p->n_instrs : columns;
    for (int c = 0; c < columns; c++) {
        int from = (int)((int64_t)c * p->n_instrs / columns), to = (int)((int64_t)(c + 1) * p->n_instrs / columns);

        fill_column(s, from, to, top, plot[c]);
        phase[c] = phase_of(p, from, to);
    }
    phase[columns] = 0;
    for (int row = ROWS - 1; row >= 0; row--) {
        tt_print("%12s |", row == ROWS - 1 || row == ROWS / 2 - 1
                               ? tt_text_bytes(label, sizeof label, (double)top * (row + 1) / ROWS)
                               : "");
        for (int c = 0; c < columns; c++)
            tt_print("%c", plot[c][row]);
        tt_print("\n");
    }
    tt_print("%12s +%.*s\n", "0", columns, "------------------------------------------------------------------------");
    tt_print("%12s  %s\n", "", phase);
    /* lines are broken at the width of the terminal; in a pipe, after the fifth layer */
    tt_text_add(&legend, "%*s%d instructions: > forward, < backward, * norm and update\n%*s", LABEL, "", p->n_instrs,
                LABEL, "");
    for (int l = 0; l < N_LAYERS; l++)
        tt_text_add(&legend, "%s%c %s",
                    l == 0                ? ""
                    : l == 5 && !terminal ? "\n               "
                                          : ", ",
                    tt_plan_layers[l].letter, tt_plan_layers[l].name);
    tt_print_broken(LABEL, "%s\n", legend.text);
    tt_text_release(&legend);
}

/* --- runs of rows that are alike --- */

/* Whether rows a and b of a list are alike. */
typedef bool (*alike_fn)(const void *list, int a, int b);

/*
 * Finds rows that repeat from `first` on: a single row, or two alternating rows, such as those of layers and their
 * experts. Returns the number of rows that repeat; *ret_n is how often they occur.
 */
static int period_of(const void *list, alike_fn alike, int first, int end, int *ret_n)
{
    for (int period = 1; period <= 2; period++) {
        int at = first + period;

        while (at < end && alike(list, at - period, at))
            at++;
        *ret_n = (at - first) / period;
        if (*ret_n > 1)
            return period;
    }
    *ret_n = 1;
    return 1;
}

/* --- units --- */

static bool units_alike(const void *list, int i, int j)
{
    const struct tt_plan_view *v = list;
    const struct tt_unit *units = tt_engine_layout(v->engine)->units, *a = &units[i], *b = &units[j];
    const struct tt_model *model = v->job.model;

    return a->shard_elements == b->shard_elements && a->n_params == b->n_params &&
           a->reshard_after_forward == b->reshard_after_forward &&
           tt_summary_unit_elements(model, a) == tt_summary_unit_elements(model, b);
}

const char *tt_plan_unit_fate(const struct tt_layout *layout, const struct tt_unit *unit)
{
    return layout->groups[unit->shard_group].n == 1 ? "whole"
           : unit->keep_degree > 1                  ? "kept in part"
           : unit->reshard_after_forward            ? "resharded"
                                                    : "kept";
}

/* Adds a row for n units, given by the first and the last. */
static void add_unit(const struct tt_plan_view *v, int first, int last, int n, struct tt_columns *table)
{
    const struct tt_layout *l = tt_engine_layout(v->engine);
    const struct tt_unit *unit = &l->units[first];
    int64_t shard = unit->shard_elements *
                    (int64_t)tt_dtype_size(tt_state_unit_dtype(TT_STATE_PARAM, unit, v->job.engine.shard_dtype));
    char count[32], whole[32], part[32];
    struct tt_text name = {0};

    add_run(&name, unit->name, l->units[last].name, n);
    tt_columns_cell(table, "  %s", name.text);
    tt_columns_cell(table, "%s", tt_text_count(count, sizeof count, tt_summary_unit_elements(v->job.model, unit)));
    tt_columns_cell(table, "%s", tt_text_bytes(whole, sizeof whole, (double)shard * tt_unit_shard(l, first).n));
    tt_columns_cell(table, "%s", tt_text_bytes(part, sizeof part, (double)shard));
    tt_columns_cell(table, "%s", tt_plan_unit_fate(l, unit));
    tt_text_release(&name);
}

static void print_units(const struct tt_plan_view *v)
{
    /* titan-plan(1) lists the order in which columns are left out on a narrow terminal */
    static const struct tt_column columns[] = {{"units", 50, false, 0, 0, 0},
                                               {"parameters", 16, true, 1, 2, 0},
                                               {"gathered", 12, true, 1, 1, 0},
                                               {"shard", 12, true, 1, 0, 0},
                                               {"after forward", 0, false, 2, 0, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    int n_units = tt_engine_layout(v->engine)->n_units, n;

    for (int u = 0, period; u < n_units; u += period * n) {
        period = period_of(v, units_alike, u, n_units, &n);
        for (int i = 0; i < period; i++)
            add_unit(v, u + i, u + i + (n - 1) * period, n, &table);
    }
    tt_print("\n");
    tt_columns_print(&table);
}

/* --- collectives --- */

static bool same_cost(const void *list, int i, int j)
{
    const struct tt_summary_collective *const *rows = list, *a = rows[i], *b = rows[j];

    return a->count == b->count && a->n_units == 1 && b->n_units == 1 && a->shard_bytes == b->shard_bytes;
}

static void add_collectives(const struct tt_plan_view *v, const struct tt_summary_collective *first,
                            const struct tt_summary_collective *last, int n, struct tt_columns *table)
{
    const struct tt_program *p = v->summary.program;
    struct tt_text from = {0}, to = {0}, name = {0};
    char shard[32], sent[32];

    if (tt_purpose_row(first->purpose)->among == TT_AMONG_PEERS) {
        const struct tt_instr *instr = &p->instrs[first->first];

        tt_text_add(&name, "stage %d, among %d ranks of %s", p->stages[instr->stage].number, instr->collective.ranks,
                    tt_group_name(instr->collective.group));
    } else if (first->n_units == 0) {
        tt_text_add(&name, "stage %d", p->stages[p->instrs[first->first].stage].number);
        tt_transfer_text(p, &p->instrs[first->first], &name);
    } else {
        tt_units_text(p, first->units, first->n_units, &from);
        tt_units_text(p, last->units, last->n_units, &to);
        add_run(&name, from.text, to.text, n);
    }
    tt_columns_cell(table, "  %-16s %s", tt_purpose_row(first->purpose)->name, name.text);
    tt_columns_cell(table, "%d", first->count * n);
    tt_columns_cell(table, "%s", tt_text_bytes(shard, sizeof shard, (double)first->shard_bytes));
    tt_columns_cell(table, "%s", tt_text_bytes(sent, sizeof sent, (double)first->payload_bytes));
    tt_columns_cell(table, "%.3f ms", 1e3 * tt_cost_transfer_sec(&v->machine, v->summary.program, first->first));
    tt_text_release(&from);
    tt_text_release(&to);
    tt_text_release(&name);
}

static void add_purpose(const struct tt_plan_view *v, enum tt_purpose purpose, struct tt_columns *table)
{
    const struct tt_summary *s = &v->summary;
    const struct tt_summary_collective **rows = tt_calloc((size_t)s->n_collectives + 1, sizeof *rows);
    int n_rows = 0, n;

    for (int i = 0; i < s->n_collectives; i++)
        if (s->collectives[i].purpose == purpose)
            rows[n_rows++] = &s->collectives[i];
    for (int at = 0, period; at < n_rows; at += period * n) {
        period = period_of(rows, same_cost, at, n_rows, &n);
        for (int i = 0; i < period; i++)
            add_collectives(v, rows[at + i], rows[at + i + (n - 1) * period], n, table);
    }
    tt_free(rows);
}

/* Explains how the payload follows from the shards. */
static void print_formula(const struct tt_plan_view *v)
{
    const struct tt_layout *l = tt_engine_layout(v->engine);
    const struct tt_summary_total *t = v->summary.totals;

    tt_print_broken(2,
                    "\npayload of a step and rank = unshards (S-1) x shard + reduce-scatters (S-1) x shard + "
                    "all-reduces 2 (R-1) x ceil(shard / R), S = %d, R = %d\n",
                    l->groups[TT_GROUP_FSDP].n, l->groups[TT_GROUP_REPLICATE].n);
    if (l->groups[TT_GROUP_EFSDP].n > 1 && l->groups[TT_GROUP_EP].n > 1)
        tt_print("for units of experts S = %d\n", l->groups[TT_GROUP_EFSDP].n);
    if (t[TT_UNSHARD_KEPT].count)
        tt_print("an unshard from the parts that n neighbours kept sends (n-1) x S / n x shard\n");
    if (tt_summary_exchanges(&v->summary))
        tt_print_broken(
            2, "inside a layer, each of n ranks sends (n-1) x shard, or for a sum 2 (n-1) x ceil(shard / n)\n");
}

/* Adds "71,866,368 bytes sent", aligned with the numbers in the table of the payload. */
static void add_sent(int64_t bytes, struct tt_text *out)
{
    int columns = tt_screen_columns(STDOUT_FILENO);
    char sent[32];

    tt_text_add(out, "%*s bytes sent", columns && columns < 120 ? 0 : 64, tt_text_count(sent, sizeof sent, bytes));
}

/* Prints the payload as a sum that readers can check. */
static void print_payload(const struct tt_plan_view *v)
{
    static const struct tt_column columns[] = {{"purpose", 16, false, 2, 0, 0}, {"times", 6, true, 1, 0, 0},
                                               {"", 0, false, 1, 0, 0},         {"", 0, false, 1, 1, 0},
                                               {"shards", 20, true, 1, 1, 0},   {"", 0, false, 1, 1, 0},
                                               {"bytes", 20, true, 1, 0, 0},    {"", 0, false, 1, 0, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns, .no_titles = true};
    const struct tt_summary_total *t = v->summary.totals;
    int64_t routed_most, routed = tt_program_routed_bytes(v->summary.program, &routed_most);
    struct tt_text sum = {0}, most = {0};
    char bytes[32], limit[32];
    print_formula(v);
    for (int p = 0; p < TT_PURPOSES; p++) {
        const struct tt_purpose_row *row = tt_purpose_row((enum tt_purpose)p);

        if (!t[p].count && row->rare)
            continue;
        tt_columns_cell(&table, "%s", row->name);
        tt_columns_cell(&table, "%" PRId64, t[p].count);
        tt_columns_cell(&table, "times,");
        tt_columns_cell(&table, "shards of");
        tt_columns_cell(&table, "%s", tt_text_count(bytes, sizeof bytes, t[p].shard_bytes));
        tt_columns_cell(&table, "bytes in all:");
        tt_columns_cell(&table, "%s", tt_text_count(bytes, sizeof bytes, t[p].payload_bytes));
        tt_columns_cell(&table, "bytes sent");
    }
    add_sent(tt_program_payload(v->summary.program), &sum);
    tt_columns_cell(&table, "together");
    tt_columns_rest(&table, 1, sum.text);
    tt_columns_print(&table);
    tt_text_release(&sum);
    if (routed_most) /* the share of expert rows depends on the data */
        tt_print_broken(
            4,
            "  rows of experts, on top of that, if all experts get the same number: about %s bytes sent, at most "
            "%s\n",
            tt_text_count(bytes, sizeof bytes, routed), tt_text_count(limit, sizeof limit, routed_most));
    if (!v->job.pipeline)
        return;
    add_sent(v->all.payload_sum, &sum);
    tt_job_rank_text(&v->job, v->all.sender, &most);
    tt_print_broken(4, "  %-16s %s, most by %s: %s\n", "all ranks", sum.text, most.text,
                    tt_text_count(bytes, sizeof bytes, v->all.payload_bytes));
    tt_text_release(&sum);
    tt_text_release(&most);
}

static void print_collectives(const struct tt_plan_view *v)
{
    static const struct tt_column columns[] = {{"collectives of a step", 66, false, 0, 0, 0},
                                               {"times", 6, true, 1, 0, 0},
                                               {"shard", 12, true, 1, 2, 0},
                                               {"sent each", 12, true, 1, 1, 0},
                                               {"predicted", 12, true, 1, 0, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};

    if (v->summary.n_collectives == 0) {
        tt_print("\ncollectives: none, nothing is exchanged\n");
        return;
    }
    for (int p = 0; p < TT_PURPOSES; p++)
        add_purpose(v, (enum tt_purpose)p, &table);
    tt_print("\n");
    tt_columns_print(&table);
    print_payload(v);
}

/* --- memory and time --- */

static void print_memory(const struct tt_plan_view *v)
{
    const struct tt_engine_memory *m = &v->summary.memory;
    struct tt_text where = {0}, rank = {0};
    char bytes[32];

    tt_plan_peak_text(v, &where);
    tt_print_broken(2, "\nmemory of the rank at its peak, %s\n", where.text);
    for (int k = 0; k < TT_MEMORY_KINDS; k++)
        if (m->by_kind[k])
            tt_print("  %-22s %12s\n", tt_memory_name((enum tt_memory_kind)k),
                     tt_text_bytes(bytes, sizeof bytes, (double)m->by_kind[k]));
    tt_print("  %-22s %12s\n", "between buffers", tt_text_bytes(bytes, sizeof bytes, (double)tt_summary_padding(m)));
    tt_print("  %-22s %12s\n", "the arena", tt_text_bytes(bytes, sizeof bytes, (double)m->total));
    tt_job_rank_text(&v->job, v->all.rank, &rank);
    if (v->job.pipeline)
        tt_print("  %-22s %12s, on %s\n", "the largest of a rank",
                 tt_text_bytes(bytes, sizeof bytes, (double)v->all.memory.total), rank.text);
    tt_print("\n");
    print_timeline(&v->summary);
    tt_text_release(&where);
    tt_text_release(&rank);
}

static void print_time(const struct tt_plan_view *v)
{
    const struct tt_timeline *t = &v->time;
    int n = v->summary.n_collectives ? 1 : 0;

    tt_print("\npredicted for %s\n", v->machine.name);
    tt_print("  step           %10.3f s\n", v->all.step_sec);
    if (v->all.routed_most)
        tt_print_broken(17, "                 %10.3f s at most, if all tokens choose the experts of one rank\n",
                        v->all.step_most_sec);
    if (v->job.pipeline)
        tt_print_broken(17,
                        "  run            %10.3f s through the pipeline, whose ranks are idle for %.0f %% of it\n"
                        "this rank, if it never waits for another stage\n  step           %10.3f s\n",
                        v->all.run.makespan, 100.0 * v->all.run.bubble_share, t->step_sec);
    tt_print("  compute        %10.3f s\n", t->compute_sec);
    if (n)
        tt_print("  communication  %10.3f s, of which %.3f s exposed (%.0f %%)\n", t->transfer_sec, t->exposed_sec,
                 t->transfer_sec > 0.0 ? 100.0 * t->exposed_sec / t->transfer_sec : 0.0);
}

static void print_instructions(const struct tt_plan_view *v)
{
    const struct tt_program *p = v->summary.program;
    int columns = tt_screen_columns(STDOUT_FILENO);

    tt_print("\n%6s %12s %12s  %s\n", "", "begins", "memory", "instruction");
    for (int i = 0; i < p->n_instrs; i++) {
        struct tt_text text = {0};
        int64_t sent = tt_instr_payload(&p->instrs[i]);
        char bytes[32];

        tt_text_add(&text, "%6d %9.3f ms %12s  ", i, 1e3 * v->time.compute[i].begin,
                    tt_text_bytes(bytes, sizeof bytes, (double)tt_summary_live_bytes(&v->summary, i)));
        tt_instr_text(p, i, &text);
        if (sent)
            tt_text_add(&text, ", sends %s", tt_text_bytes(bytes, sizeof bytes, (double)sent));
        tt_text_add(&text, "\n");
        tt_screen_put(stdout, text.text, columns, 36);
        tt_text_release(&text);
    }
}

void tt_plan_peak_text(const struct tt_plan_view *v, struct tt_text *out)
{
    const struct tt_program *p = v->summary.program;

    if (v->summary.memory.step > p->step_bytes) {
        tt_text_add(out, "validation");
        return;
    }
    tt_instr_text(p, p->peak_instr, out);
}

static void policy_text(const struct tt_ckpt_policy *policy, char *buf, size_t size)
{
    (void)snprintf(buf, size, "%s%s%s", policy->name, policy->filter ? ", filter " : "",
                   policy->filter ? policy->filter : "");
}

static void print_policies(const struct tt_plan_save *save)
{
    static const struct tt_column columns[] = {{"save policy", 28, false, 2, 0, 0},
                                               {"writers", 8, true, 1, 1, 0},
                                               {"files", 8, true, 1, 0, 0},
                                               {"together", 14, true, 1, 0, 0},
                                               {"most of one writer", 20, true, 1, 0, 0},
                                               {"", 0, false, 2, 0, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    char text[64];

    for (int i = 0; i < save->n; i++) {
        const struct tt_ckpt_preview *p = &save->policies[i].preview;

        policy_text(save->policies[i].policy, text, sizeof text);
        tt_columns_cell(&table, "%s", text);
        tt_columns_cell(&table, "%d", p->writers);
        tt_columns_cell(&table, "%d", p->n);
        tt_columns_cell(&table, "%s", tt_text_bytes(text, sizeof text, (double)p->bytes));
        tt_columns_cell(&table, "%s", tt_text_bytes(text, sizeof text, (double)p->most_bytes));
        tt_columns_cell(&table, "%s", save->policies[i].policy == save->configured ? "(configured)" : "");
    }
    tt_columns_print(&table);
}

static void print_files(const struct tt_ckpt_policy *policy, const struct tt_ckpt_preview *p)
{
    static const struct tt_column columns[] = {{"rank", 11, false, 2, 2, 0},
                                               {"file", 50, false, 2, 0, 0},
                                               {"tensors", 14, true, 1, 1, 0},
                                               {"bytes", 26, true, 1, 0, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns, .no_titles = true};
    char text[64];

    policy_text(policy, text, sizeof text);
    tt_print("\n  %s\n", text);
    for (int i = 0; i < p->n; i++) {
        char *path = tt_ckpt_shard_path(p->file[i].group, p->file[i].writer);

        tt_columns_cell(&table, "rank %6d", p->file[i].writer);
        tt_columns_cell(&table, "%s", path);
        tt_columns_cell(&table, "%d tensors", p->file[i].tensors);
        tt_columns_cell(&table, "%s bytes", tt_text_count(text, sizeof text, p->file[i].bytes));
        tt_free(path);
    }
    tt_columns_print(&table);
}

static void print_save(const struct tt_plan_save *save)
{
    if (save->is_open)
        tt_print_broken(2, "\nthe last checkpoint (after training.epochs; the model only), besides manifest.json and "
                           "assets\n");
    else
        tt_print_broken(2, "\na checkpoint of step %" PRId64 "%s, besides manifest.json and assets\n", save->step,
                        save->model_only ? " (the last one, the model only)" : "");
    print_policies(save);
    for (int i = 0; i < save->n; i++)
        print_files(save->policies[i].policy, &save->policies[i].preview);
}

static void print_checkpoint(const struct tt_plan_view *v)
{
    print_save(&v->save);
    if (v->last_save.n)
        print_save(&v->last_save);
}

void tt_plan_print(const struct tt_plan_view *v)
{
    print_head(v);
    print_units(v);
    print_collectives(v);
    print_memory(v);
    print_time(v);
    if (v->checkpoint)
        print_checkpoint(v);
    if (v->instructions)
        print_instructions(v);
}
