/* SPDX-License-Identifier: MIT
 *
 * A pipeline's orders, made by the row of its schedule or read from a file.
 */
#include "parallel/pipeline/schedule.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/os/file.h"
#include "parallel/pipeline/csv.h"
#include "parallel/pipeline/simulate.h"

#define TT_PIPELINE_SCHEDULE(id, row) extern const struct tt_pipeline_row tt_pipeline_##row;
#include "parallel/pipeline/schedules.def"
#undef TT_PIPELINE_SCHEDULE

static const struct tt_pipeline_row *const rows[TT_PP_SCHEDULES] = {
#define TT_PIPELINE_SCHEDULE(id, row) [TT_PP_##id] = &tt_pipeline_##row,
#include "parallel/pipeline/schedules.def"
#undef TT_PIPELINE_SCHEDULE
};

const struct tt_pipeline_row *tt_pipeline_row(enum tt_pipeline_schedule schedule)
{
    return rows[schedule];
}

int tt_pipeline_find(const char *name, enum tt_pipeline_schedule *ret_schedule)
{
    struct tt_text names = {0};
    int rc;

    for (int i = 0; i < TT_PP_SCHEDULES; i++)
        if (strcmp(rows[i]->name, name) == 0) {
            *ret_schedule = (enum tt_pipeline_schedule)i;
            return 0;
        }
    for (int i = 0; i < TT_PP_SCHEDULES; i++)
        tt_text_add(&names, "%s%s", i ? ", " : "", rows[i]->name);
    rc = tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE, "there is no schedule '%s'\nhelp: use %s", name, names.text);
    tt_text_release(&names);
    return rc;
}

char tt_pipeline_letter(const struct tt_pipeline *pipeline, const struct tt_turn *turn)
{
    bool apart = pipeline->weights_apart[turn->stage * pipeline->microbatches + turn->microbatch];

    if (turn->pass == TT_PASS_FORWARD)
        return 'F';
    return turn->pass == TT_PASS_WEIGHTS ? 'W' : apart ? 'I' : 'B';
}

/* Schedules in files, by the number of stages on a rank. */
const struct tt_pipeline_row tt_pipeline_csv_single = {.name = "PipelineScheduleSingle", .splits = true};
const struct tt_pipeline_row tt_pipeline_csv = {.name = "PipelineScheduleMulti", .multi = true, .splits = true};

static int check_stages(const struct tt_pipeline_row *row, int ranks, int n_stages)
{
    if (row->v && n_stages != 2 * ranks)
        return tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE,
                           "schedule %s has 2 stages on each of %d ranks, found %d stages\nhelp: make %d stages "
                           "by %s or %s",
                           row->name, ranks, n_stages, 2 * ranks, tt_key_name(TT_KEY_PP_LAYERS_PER_STAGE),
                           tt_key_name(TT_KEY_PP_MODULES));
    if (!row->multi && n_stages != ranks)
        return tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE,
                           "schedule %s has one stage on each of %d ranks, found %d stages\n"
                           "help: make %d stages by %s or %s, or use schedule Interleaved1F1B",
                           row->name, ranks, n_stages, ranks, tt_key_name(TT_KEY_PP_LAYERS_PER_STAGE),
                           tt_key_name(TT_KEY_PP_MODULES));
    if (n_stages % ranks != 0)
        return tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE,
                           "%d stages cannot be shared equally by %d ranks\nhelp: make a multiple of %d by %s or %s",
                           n_stages, ranks, ranks, tt_key_name(TT_KEY_PP_LAYERS_PER_STAGE),
                           tt_key_name(TT_KEY_PP_MODULES));
    return 0;
}

/* The place of every stage, by the row; a file may change it. */
static void place_stages(struct tt_pipeline *p)
{
    for (int stage = 0; stage < p->n_stages; stage++)
        p->rank_of_stage[stage] = p->schedule->v && stage >= p->ranks ? 2 * p->ranks - 1 - stage : stage % p->ranks;
}

static void note_weight_parts(struct tt_pipeline *p)
{
    for (int rank = 0; rank < p->ranks; rank++)
        for (int t = 0; t < p->orders[rank].n; t++) {
            const struct tt_turn *turn = &p->orders[rank].turns[t];

            if (turn->pass == TT_PASS_WEIGHTS)
                p->weights_apart[turn->stage * p->microbatches + turn->microbatch] = true;
        }
}

static int generate(struct tt_pipeline *p)
{
    place_stages(p);
    for (int rank = 0; rank < p->ranks; rank++)
        p->schedule->generate(p, rank);
    note_weight_parts(p);
    return tt_pipeline_check(p, NULL);
}

static int check_file(const struct tt_pipeline_row *row, const char *csv_path)
{
    if (!row->generate && !csv_path)
        return tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE,
                           "schedule %s is in a file, and none is given\nhelp: set %s to its path", row->name,
                           tt_key_name(TT_KEY_PP_SCHEDULE_CSV));
    if (row->generate && csv_path)
        return tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV,
                           "schedule %s is in no file, and '%s' is given\n"
                           "help: use schedule %s or %s to read the file",
                           row->name, csv_path, tt_pipeline_csv_single.name, tt_pipeline_csv.name);
    return 0;
}

/* A schedule is part of the configuration, so a file that is missing or no file is a fault of that. */
static int read_file(struct tt_pipeline *p, const char *path)
{
    char *text = NULL;
    size_t size;
    int rc = 0;

    if ((rc = tt_file_read(path, &text, &size)) < 0)
        TT_TRY(tt_fail_key(rc == TT_EDATA ? TT_EUSAGE : rc, TT_KEY_PP_SCHEDULE_CSV, "%s", tt_error_message()));
    TT_TRY(tt_pipeline_csv_parse(text, size, path, p));
out:
    tt_free(text);
    return rc;
}

/* Appends the microbatches of a stage's turns of a pass to list, in their order. Returns their number. */
static int sequence(const struct tt_pipeline *p, int stage, enum tt_pass pass, int *list)
{
    const struct tt_order *order = &p->orders[p->rank_of_stage[stage]];
    int n = 0;

    for (int t = 0; t < order->n; t++)
        if (order->turns[t].stage == stage && order->turns[t].pass == pass)
            list[n++] = order->turns[t].microbatch;
    return n;
}

/*
 * Two neighbouring stages of a file may take the microbatches in different orders. What travels between them is told
 * apart by the microbatch's number modulo TT_PIPELINE_OVERTAKING, so with more microbatches the orders must agree.
 */
static int check_overtaking(const struct tt_pipeline *p)
{
    int *one = tt_calloc(2 * (size_t)p->microbatches, sizeof *one), *other = one + p->microbatches, rc = 0;

    for (int s = 0; p->microbatches > TT_PIPELINE_OVERTAKING && s + 1 < p->n_stages && rc == 0; s++)
        for (int pass = TT_PASS_FORWARD; pass <= TT_PASS_BACKWARD && rc == 0; pass++) {
            size_t n = (size_t)sequence(p, s, (enum tt_pass)pass, one);

            (void)sequence(p, s + 1, (enum tt_pass)pass, other);
            if (p->rank_of_stage[s] != p->rank_of_stage[s + 1] && memcmp(one, other, n * sizeof *one) != 0)
                rc = tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV,
                                 "stages %d and %d take the microbatches in different orders, and there are %d\n"
                                 "help: use the same order in both, or at most %d microbatches",
                                 s, s + 1, p->microbatches, TT_PIPELINE_OVERTAKING);
        }
    tt_free(one);
    return rc;
}

int tt_pipeline_new(enum tt_pipeline_schedule schedule, const char *csv_path, int ranks, int n_stages, int microbatches,
                    struct tt_pipeline **ret_pipeline)
{
    struct tt_pipeline *p = tt_calloc(1, sizeof *p);
    int rc = 0;

    *p = (struct tt_pipeline){
        .schedule = rows[schedule], .ranks = ranks, .n_stages = n_stages, .microbatches = microbatches};
    p->rank_of_stage = tt_calloc((size_t)n_stages, sizeof *p->rank_of_stage);
    p->orders = tt_calloc((size_t)ranks, sizeof *p->orders);
    p->weights_apart = tt_calloc((size_t)n_stages * (size_t)microbatches, sizeof *p->weights_apart);
    TT_TRY(check_stages(p->schedule, ranks, n_stages));
    TT_TRY(check_file(p->schedule, csv_path));
    if (p->schedule->check)
        TT_TRY(p->schedule->check(ranks, microbatches));
    if (csv_path)
        TT_TRY(read_file(p, csv_path));
    else
        TT_TRY(generate(p));
    TT_TRY(check_overtaking(p));
    *ret_pipeline = p;
    p = NULL;
out:
    tt_pipeline_free(p);
    return rc;
}

void tt_pipeline_free(struct tt_pipeline *pipeline)
{
    if (!pipeline)
        return;
    for (int rank = 0; rank < pipeline->ranks; rank++)
        tt_order_release(&pipeline->orders[rank]);
    tt_free(pipeline->orders);
    tt_free(pipeline->rank_of_stage);
    tt_free(pipeline->weights_apart);
    tt_free(pipeline);
}

struct tt_order tt_pipeline_forward_order(const struct tt_pipeline *pipeline, int rank, int microbatches)
{
    struct tt_order order = {0};

    for (int begin = 0; begin < microbatches; begin += pipeline->ranks)
        for (int stage = 0; stage < pipeline->n_stages; stage++)
            for (int mb = begin; mb < microbatches && mb < begin + pipeline->ranks; mb++)
                if (pipeline->rank_of_stage[stage] == rank)
                    tt_order_add(&order, mb, stage, TT_PASS_FORWARD);
    return order;
}

const char *tt_pipeline_row_name(const struct tt_pipeline *pipeline)
{
    return pipeline->schedule->name;
}

bool tt_pipeline_ascends(const struct tt_pipeline *pipeline)
{
    /* Of each stage, the next microbatch of three kinds of turns. Whatever writes gradients of parameters is of one:
     * the head in forward, and what is in the backward or in the weight part. */
    enum { FORWARD, INPUTS, WEIGHTS, KINDS };
    int *next = tt_calloc(KINDS * (size_t)pipeline->n_stages, sizeof *next);
    bool ascends = true;

    for (int r = 0; r < pipeline->ranks; r++)
        for (int t = 0; t < pipeline->orders[r].n; t++) {
            const struct tt_turn *turn = &pipeline->orders[r].turns[t];
            int *of = &next[(size_t)KINDS * (size_t)turn->stage];
            bool apart = pipeline->weights_apart[turn->stage * pipeline->microbatches + turn->microbatch];

            if (turn->pass == TT_PASS_FORWARD)
                ascends = turn->microbatch == of[FORWARD]++ && ascends;
            if (turn->pass == TT_PASS_BACKWARD)
                ascends = turn->microbatch == of[INPUTS]++ && ascends;
            if (turn->pass == TT_PASS_WEIGHTS || (turn->pass == TT_PASS_BACKWARD && !apart))
                ascends = turn->microbatch == of[WEIGHTS]++ && ascends;
        }
    tt_free(next);
    return ascends;
}
