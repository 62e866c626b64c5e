/* SPDX-License-Identifier: MIT
 *
 * Pictures of pipelines: every turn is at its place, with its microbatch, and where a rank waits there is only the
 * bubble.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/plan/svg.h"

enum { MAX_STAGES = 8, MAX_RECTS = 256 };

struct rect {
    double x, width;
    int y;
    char title[32]; /* "" if it is no turn */
};

static struct rect rects[MAX_RECTS];
static int n_rects;

/* Takes the rectangles out of a picture. */
static void read_rects(const char *svg)
{
    n_rects = 0;
    for (const char *at = svg; (at = strstr(at, "<rect x=")); at++) {
        struct rect *r = &rects[n_rects++];
        const char *end = strchr(at, '\n'), *title = strstr(at, "<title>");

        assert_true(n_rects < MAX_RECTS);
        assert_int_equal(sscanf(at, "<rect x=\"%lf\" y=\"%d\" width=\"%lf\"", &r->x, &r->y, &r->width), 3);
        r->title[0] = 0;
        if (title && title < end)
            (void)snprintf(r->title, sizeof r->title, "%.*s", (int)strcspn(title + 7, ":"), title + 7);
    }
}

static int count(const char *text, const char *part)
{
    int n = 0;

    for (; (text = strstr(text, part)); text++)
        n++;
    return n;
}

/* Draws a run whose stages take `forward` for a forward and for each part of a backward. */
static void draw(enum tt_pipeline_schedule schedule, int ranks, int n_stages, int n, double forward,
                 struct tt_pipeline **ret_pipeline, struct tt_pipeline_run *ret_run, struct tt_text *out)
{
    struct tt_stage_times stages[MAX_STAGES];
    struct tt_pipeline_times times = {.stages = stages};

    for (int s = 0; s < n_stages; s++)
        stages[s] = (struct tt_stage_times){forward, forward, forward, 2 * forward};
    assert_int_equal(tt_pipeline_new(schedule, NULL, ranks, n_stages, n, ret_pipeline), 0);
    assert_int_equal(tt_pipeline_simulate(*ret_pipeline, &times, ret_run), 0);
    tt_plan_pipeline_svg(*ret_pipeline, ret_run, "for <this & that>", out);
    read_rects(out->text);
}

/* The one rectangle of a turn. */
static const struct rect *rect_of(const char *title)
{
    const struct rect *found = NULL;

    for (int i = 0; i < n_rects; i++)
        if (strcmp(rects[i].title, title) == 0) {
            assert_null(found);
            found = &rects[i];
        }
    assert_non_null(found);
    return found;
}

static void every_turn_is_drawn_when_it_runs(void **state)
{
    struct tt_pipeline *p = NULL;
    struct tt_pipeline_run run;
    struct tt_text svg = {0};
    double left = 1e9, scale = 0;

    draw(TT_PP_ZBV_ZERO_BUBBLE, 4, 8, 8, 0.001, &p, &run, &svg);
    for (int rank = 0; rank < 4; rank++)
        for (int t = 0; t < p->orders[rank].n; t++) {
            const struct tt_turn *turn = &p->orders[rank].turns[t];
            struct tt_span span = run.spans[rank][t];
            const struct rect *r;
            char title[32];

            (void)snprintf(title, sizeof title, "%d%c%d", turn->stage, tt_pipeline_letter(p, turn), turn->microbatch);
            r = rect_of(title);
            if (rank == 0 && t == 0) {
                left = r->x;
                scale = r->width / span.end;
            }
            assert_true(fabs(r->x - (left + span.begin * scale)) < 1.5);
            assert_true(fabs(r->width - (span.end - span.begin) * scale) < 0.02);
            assert_int_equal(r->y, rect_of("0F0")->y + rank * (rect_of("1F0")->y - rect_of("0F0")->y));
        }
    assert_int_equal(count(svg.text, ">7</text>"), 8 * 3);
    assert_int_equal(count(svg.text, "weight part of backward"), 1);
    assert_int_equal(count(svg.text, ">backward</text>"), 0);
    assert_int_equal(count(svg.text, "for &lt;this &amp; that&gt;"), 1);
    assert_int_equal(count(svg.text, "% idle</text>"), 4 + 1);
    assert_int_equal(count(svg.text, "4 ranks, 8 stages, 8 microbatches"), 1);
    tt_pipeline_run_release(&run);
    tt_pipeline_free(p);
    tt_text_release(&svg);
}

/* In each lane the turns and the bubble together are the whole lane. */
static void what_is_not_covered_is_the_bubble(void **state)
{
    struct tt_pipeline *p = NULL;
    struct tt_pipeline_run run;
    struct tt_text svg = {0};

    draw(TT_PP_1F1B, 4, 4, 6, 2.0, &p, &run, &svg);
    for (int rank = 0; rank < 4; rank++) {
        double covered = 0, whole = 0;

        for (int i = 0; i < n_rects; i++) {
            if (rects[i].y != rect_of("0F0")->y + rank * (rect_of("1F0")->y - rect_of("0F0")->y))
                continue;
            if (rects[i].title[0])
                covered += rects[i].width;
            else
                whole += rects[i].width;
        }
        assert_true(fabs(1 - covered / whole - run.bubble[rank] / run.makespan) < 1e-3);
    }
    assert_int_equal(count(svg.text, "33.3 % idle"), 4 + 1);
    assert_int_equal(count(svg.text, ">weight part of backward</text>"), 0);
    assert_int_equal(count(svg.text, ">bubble</text>"), 1);
    assert_int_equal(count(svg.text, "paler"), 0);
    tt_pipeline_run_release(&run);
    tt_pipeline_free(p);
    tt_text_release(&svg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_turn_is_drawn_when_it_runs),
        cmocka_unit_test(what_is_not_covered_is_the_bubble),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
