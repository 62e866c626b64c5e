/* SPDX-License-Identifier: MIT
 *
 * Pipeline schedules in CSV files.
 */
#include "parallel/pipeline/csv.h"

#include <string.h>

#include "core/base/mem.h"
#include "parallel/pipeline/simulate.h"

enum { SHOWN_BYTES = 40 };

/* Bytes of the file, not ended by 0. */
struct piece {
    const char *at;
    size_t size;
};

/* Where a turn is in its line, and its letter there. */
struct origin {
    int cell;
    char letter;
};

/* A file on the way to orders. */
struct reader {
    const char *name;
    struct tt_pipeline *p;
    int line, cell;          /* from 1 */
    struct origin **origins; /* [ranks][turn] */
    int *n_origins, *cap;    /* [ranks] */
    int *first_line;         /* [n_stages]: that has the stage; 0: none yet */
};

/* --- pieces --- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static struct piece trim(struct piece p)
{
    while (p.size > 0 && is_blank(p.at[0]))
        p = (struct piece){p.at + 1, p.size - 1};
    while (p.size > 0 && is_blank(p.at[p.size - 1]))
        p.size--;
    return p;
}

static struct piece unquote(struct piece p)
{
    p = trim(p);
    if (p.size >= 2 && p.at[0] == '"' && p.at[p.size - 1] == '"')
        p = trim((struct piece){p.at + 1, p.size - 2});
    return p;
}

/* Takes what is before the next `end` off the rest, or all of it. */
static struct piece take_until(struct piece *rest, char end)
{
    const char *found = rest->size ? memchr(rest->at, end, rest->size) : NULL;
    struct piece taken = {rest->at, found ? (size_t)(found - rest->at) : rest->size};
    size_t skip = taken.size + (found != NULL);

    *rest = (struct piece){rest->at + skip, rest->size - skip};
    return taken;
}

static bool ends_with(struct piece p, const char *word)
{
    size_t n = strlen(word);

    return p.size >= n && memcmp(p.at + p.size - n, word, n) == 0;
}

/* Takes a number of at most 6 digits off the rest; -1: there is none. */
static int take_number(struct piece *rest)
{
    int number = 0, digits = 0;

    while (rest->size > 0 && rest->at[0] >= '0' && rest->at[0] <= '9' && digits < 7) {
        number = 10 * number + (rest->at[0] - '0');
        *rest = (struct piece){rest->at + 1, rest->size - 1};
        digits++;
    }
    return digits == 0 || digits > 6 ? -1 : number;
}

/* --- turns --- */

static int fail_cell(const struct reader *r, struct piece found, const char *what)
{
    struct tt_text shown = {0};
    int rc;

    tt_text_add_bytes(&shown, found.at, found.size < SHOWN_BYTES ? found.size : SHOWN_BYTES);
    tt_text_make_printable(&shown);
    rc = tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV, "%s: line %d, cell %d: '%s' %s", r->name, r->line, r->cell,
                     shown.text, what);
    tt_text_release(&shown);
    return rc;
}

/* A stage is on the rank whose line is the first to have it. */
static int place_stage(struct reader *r, int stage)
{
    if (r->first_line[stage] == 0) {
        r->first_line[stage] = r->line;
        r->p->rank_of_stage[stage] = r->line - 1;
    }
    if (r->first_line[stage] == r->line)
        return 0;
    return tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV,
                       "%s: line %d, cell %d: stage %d is on line %d too\nhelp: put all turns of a stage on one line",
                       r->name, r->line, r->cell, stage, r->first_line[stage]);
}

static int add_turn(struct reader *r, struct piece text)
{
    static const char letters[] = "FBIW";
    static const enum tt_pass passes[] = {TT_PASS_FORWARD, TT_PASS_BACKWARD, TT_PASS_BACKWARD, TT_PASS_WEIGHTS};
    struct piece rest = text;
    int stage = take_number(&rest), microbatch, rank = r->line - 1;
    const char *letter = rest.size > 0 ? memchr(letters, rest.at[0], sizeof letters - 1) : NULL;
    int rc = 0;

    if (rest.size > 0)
        rest = (struct piece){rest.at + 1, rest.size - 1};
    microbatch = take_number(&rest);
    if (stage < 0 || !letter || microbatch < 0 || rest.size > 0)
        return fail_cell(r, text,
                         "is not a turn\nhelp: write stage, F, B, I or W, and microbatch, as in 2F0, and leave "
                         "communication out");
    if (stage >= r->p->n_stages)
        return tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV,
                           "%s: line %d, cell %d: stage %d, and the model is cut into %d stages", r->name, r->line,
                           r->cell, stage, r->p->n_stages);
    if (microbatch >= r->p->microbatches)
        return tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV,
                           "%s: line %d, cell %d: microbatch %d, and a run has %d microbatches", r->name, r->line,
                           r->cell, microbatch, r->p->microbatches);
    TT_TRY(place_stage(r, stage));
    if (*letter == 'W')
        r->p->weights_apart[stage * r->p->microbatches + microbatch] = true;
    TT_PUSH(r->origins[rank], r->n_origins[rank], r->cap[rank]) = (struct origin){r->cell, *letter};
    tt_order_add(&r->p->orders[rank], microbatch, stage, passes[letter - letters]);
out:
    return rc;
}

static int add_cell(struct reader *r, struct piece cell)
{
    static const char overlap[] = ")OVERLAP_F_B";
    struct piece parts;
    int rc = 0;

    if (cell.size == 0)
        return 0;
    if (cell.at[0] != '(' || !ends_with(cell, overlap))
        return add_turn(r, cell);
    parts = (struct piece){cell.at + 1, cell.size - sizeof overlap};
    do
        TT_TRY(add_turn(r, trim(take_until(&parts, ';'))));
    while (parts.size > 0);
out:
    return rc;
}

/* --- the file --- */

static int read_lines(struct reader *r, struct piece file)
{
    int rc = 0;

    while (file.size > 0) {
        struct piece line = take_until(&file, '\n');

        r->line++;
        r->cell = 0;
        if (r->line > r->p->ranks) {
            if (trim(line).size > 0)
                TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV,
                                   "%s: line %d: the pipeline has %d ranks\nhelp: write a line for each rank", r->name,
                                   r->line, r->p->ranks));
            continue;
        }
        while (line.size > 0) {
            r->cell++;
            TT_TRY(add_cell(r, unquote(take_until(&line, ','))));
        }
        if (r->p->orders[r->line - 1].n == 0)
            TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV,
                               "%s: line %d has no turn, and the pipeline has %d ranks", r->name, r->line,
                               r->p->ranks));
    }
    if (r->line < r->p->ranks)
        TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV,
                           "%s: %d lines, and the pipeline has %d ranks\nhelp: write a line for each rank", r->name,
                           r->line, r->p->ranks));
    for (int stage = 0; stage < r->p->n_stages; stage++)
        if (r->first_line[stage] == 0)
            TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV,
                               "%s: no line has stage %d, and the model is cut into %d stages", r->name, stage,
                               r->p->n_stages));
out:
    return rc;
}

/* A whole backward has no weight part beside it, and an input part must have one. */
static int check_parts(const struct reader *r)
{
    for (int rank = 0; rank < r->p->ranks; rank++)
        for (int t = 0; t < r->p->orders[rank].n; t++) {
            const struct tt_turn *turn = &r->p->orders[rank].turns[t];
            bool apart = r->p->weights_apart[turn->stage * r->p->microbatches + turn->microbatch];
            const struct origin *origin = &r->origins[rank][t];

            if (apart ? origin->letter == 'B' : origin->letter == 'I')
                return tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV,
                                   "%s: line %d, cell %d: %d%c%d and %s %dW%d\n"
                                   "help: write a whole backward as B, or its parts as I and W",
                                   r->name, rank + 1, origin->cell, turn->stage, origin->letter, turn->microbatch,
                                   apart ? "also" : "no", turn->stage, turn->microbatch);
        }
    return 0;
}

/* What is wrong with the turns as a program, with its place in the file. */
static int check_orders(const struct reader *r)
{
    struct tt_turn_at at;

    if (tt_pipeline_check(r->p, &at) == 0)
        return 0;
    if (at.turn == TT_NONE)
        return tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV, "%s: line %d: %s", r->name, at.rank + 1,
                           tt_error_message());
    return tt_fail_key(TT_EUSAGE, TT_KEY_PP_SCHEDULE_CSV, "%s: line %d, cell %d: %s", r->name, at.rank + 1,
                       r->origins[at.rank][at.turn].cell, tt_error_message());
}

int tt_pipeline_csv_parse(const char *text, size_t size, const char *name, struct tt_pipeline *pipeline)
{
    struct reader r = {.name = name, .p = pipeline};
    size_t ranks = (size_t)pipeline->ranks;
    int rc = 0;

    r.origins = tt_calloc(ranks, sizeof *r.origins);
    r.n_origins = tt_calloc(ranks, sizeof *r.n_origins);
    r.cap = tt_calloc(ranks, sizeof *r.cap);
    r.first_line = tt_calloc((size_t)pipeline->n_stages, sizeof *r.first_line);
    TT_TRY(read_lines(&r, (struct piece){text, size}));
    TT_TRY(check_parts(&r));
    TT_TRY(check_orders(&r));
out:
    for (size_t rank = 0; rank < ranks; rank++)
        tt_free(r.origins[rank]);
    tt_free(r.origins);
    tt_free(r.n_origins);
    tt_free(r.cap);
    tt_free(r.first_line);
    return rc;
}

void tt_pipeline_csv_add(const struct tt_pipeline *pipeline, struct tt_text *text)
{
    for (int rank = 0; rank < pipeline->ranks; rank++)
        for (int t = 0; t < pipeline->orders[rank].n; t++) {
            const struct tt_turn *turn = &pipeline->orders[rank].turns[t];

            tt_text_add(text, "%d%c%d%s", turn->stage, tt_pipeline_letter(pipeline, turn), turn->microbatch,
                        t + 1 < pipeline->orders[rank].n ? "," : "\n");
        }
}
