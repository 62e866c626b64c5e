/* SPDX-License-Identifier: MIT
 *
 * Pipeline schedules in CSV files: read as they were written, placed as they say, and refused with line and cell.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include <cmocka.h>

#include "parallel/pipeline/schedule.h"
#include "tests/help/pipeline.h"

static char path[] = "/tmp/titan-test-csv-XXXXXX";

static int read_from(const char *text, int ranks, int n_stages, int n, struct tt_pipeline **ret_pipeline)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
    return tt_pipeline_new(n_stages == ranks ? TT_PP_CSV_SINGLE : TT_PP_CSV, path, ranks, n_stages, n, ret_pipeline);
}

static struct tt_pipeline *pipeline_of(const char *text, int ranks, int n_stages, int n)
{
    struct tt_pipeline *pipeline = NULL;

    if (read_from(text, ranks, n_stages, n, &pipeline) < 0)
        fail_msg("%s", tt_error_message());
    return pipeline;
}

static void expect_file(const struct tt_pipeline *pipeline, const char *wanted)
{
    struct tt_text text = {0};

    pipeline_write(pipeline, &text);
    assert_string_equal(text.text, wanted);
    tt_text_release(&text);
}

static void what_is_written_is_read(void **state)
{
    const struct {
        enum tt_pipeline_schedule schedule;
        int ranks, chunks;
    } cases[] = {{TT_PP_1F1B, 4, 1},
                 {TT_PP_GPIPE, 3, 1},
                 {TT_PP_LOOPED_BFS, 2, 3},
                 {TT_PP_INTERLEAVED_1F1B, 4, 2},
                 {TT_PP_INTERLEAVED_ZERO_BUBBLE, 4, 3},
                 {TT_PP_ZBV_ZERO_BUBBLE, 4, 2},
                 {TT_PP_DUAL_PIPE_V, 4, 2}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tt_pipeline *made = NULL, *again;
        struct tt_text text = {0};
        int ranks = cases[i].ranks, n_stages = ranks * cases[i].chunks;

        assert_int_equal(tt_pipeline_new(cases[i].schedule, NULL, ranks, n_stages, 8, &made), 0);
        pipeline_write(made, &text);
        again = pipeline_of(text.text, ranks, n_stages, 8);
        expect_file(again, text.text);
        assert_memory_equal(again->rank_of_stage, made->rank_of_stage, (size_t)n_stages * sizeof(int));
        assert_memory_equal(again->weights_apart, made->weights_apart, (size_t)n_stages * 8 * sizeof(bool));
        for (int rank = 0; rank < ranks; rank++) {
            assert_int_equal(again->orders[rank].microbatches, 8);
            assert_int_equal(again->orders[rank].trains, true);
        }
        tt_text_release(&text);
        tt_pipeline_free(made);
        tt_pipeline_free(again);
    }
}

static void idle_and_overlapped_cells_quotes_and_line_ends_are_read(void **state)
{
    struct tt_pipeline *p =
        pipeline_of("0F0, ,\"0F1\",,\t0B0 ,0B1,\r\n,1F0,(1F1;1B0)OVERLAP_F_B,1B1\r\n\r\n\n", 2, 2, 2);

    expect_file(p, "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
    tt_pipeline_free(p);
}

/* Rank 1 has the first stage and the last. */
static void the_file_places_the_stages(void **state)
{
    const int wanted[] = {1, 0, 0, 1};
    struct tt_pipeline *p = pipeline_of("1F0,2F0,2I0,1I0,2W0,1W0\n0F0,3F0,3B0,0B0", 2, 4, 1);

    assert_memory_equal(p->rank_of_stage, wanted, sizeof wanted);
    assert_true(p->weights_apart[1] && p->weights_apart[2] && !p->weights_apart[0] && !p->weights_apart[3]);
    tt_pipeline_free(p);
}

static void must_refuse(const char *text, int ranks, int n_stages, int n, const char *message)
{
    struct tt_pipeline *p = NULL;

    assert_int_equal(read_from(text, ranks, n_stages, n, &p), TT_EUSAGE);
    assert_null(p);
    if (!strstr(tt_error_message(), message) || !strstr(tt_error_message(), path))
        fail_msg("found '%s', wanted '%s'", tt_error_message(), message);
}

static void wrong_cells_are_named(void **state)
{
    const char *const wrong[] = {"F0",
                                 "0F",
                                 "0X0",
                                 "0F0 0B0",
                                 "0FF0",
                                 "-1F0",
                                 "0f0",
                                 "0F+1",
                                 "0.0F",
                                 "1SEND_F0",
                                 "0UNSHARD",
                                 "(0F0;0B0)",
                                 "()OVERLAP_F_B",
                                 "(0F0;)OVERLAP_F_B;",
                                 "(1F0;;1B0)OVERLAP_F_B",
                                 "9999999F0",
                                 "0F99999999999",
                                 "\xff\x01"};

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[128];

        (void)snprintf(text, sizeof text, "0F0,0B0\n1F0,%s,1B0\n", wrong[i]);
        must_refuse(text, 2, 2, 1, "line 2, cell 2: ");
        assert_non_null(strstr(tt_error_message(), "is not a turn\nhelp: write stage, F, B, I or W, and microbatch"));
    }
    must_refuse("0F0,0B0\n1F0,1B0,2F0\n", 2, 2, 1, "line 2, cell 3: stage 2, but the model is cut into 2 stages");
    must_refuse("0F0,0B0\n,1F0,1B0,1F1\n", 2, 2, 1, "line 2, cell 4: microbatch 1, but a run has only 1 microbatches");
    must_refuse("0F0,1F0\n1F0,1B0\n", 2, 2, 1,
                "line 2, cell 1: stage 1 is on line 1 too\nhelp: put all turns of a stage");
}

static void lines_are_ranks(void **state)
{
    must_refuse("0F0,0B0\n", 2, 2, 1, "1 lines, but the pipeline has 2 ranks\nhelp: write a line for each rank");
    must_refuse("", 2, 2, 1, "0 lines, but the pipeline has 2 ranks");
    must_refuse("0F0,0B0\n1F0,1B0\n2F0\n", 2, 2, 1, "line 3: the pipeline has 2 ranks");
    must_refuse("0F0,0B0,1F0,1B0\n,,\n", 2, 2, 1, "line 2 has no turn");
    must_refuse("0F0,0B0\n1F0,1B0\n", 2, 4, 1, "no line has stage 2, but the model is cut into 4 stages");
}

static void what_is_no_program_is_refused(void **state)
{
    must_refuse("0F0,0B0\n1F0,,1F0,1B0\n", 2, 2, 1, "line 2, cell 3: 1F0 comes twice");
    must_refuse("0F0,0F1,0B0,0B1\n1F0,1F1,1B0\n", 2, 2, 2, "line 2: 1B1 is missing on rank 1");
    must_refuse("0F0,0B0\n1B0,1F0\n", 2, 2, 1, "waits for 1F0, which comes after it");
    must_refuse(
        "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", 2, 2, 2,
        "line 1, cell 2: ranks wait for each other forever: 0B0 of rank 0 waits for 1B0 of rank 1; 1F1 of rank 1 "
        "waits for 0F1 of rank 0");
    must_refuse("0F0,0I0\n1F0,1B0\n", 2, 2, 1, "line 1, cell 2: 0I0 and no 0W0\nhelp: write a whole backward as B");
    must_refuse("0F0,0B0\n1F0,1B0,1W0\n", 2, 2, 1, "line 2, cell 2: 1B0 and also 1W0");
    must_refuse("0F0,0B0\n1F0,1W0,1I0\n", 2, 2, 1, "line 1, cell 2: ranks wait for each other forever: 0B0 of rank 0");
}

static void files_belong_to_the_schedules_that_read_them(void **state)
{
    struct tt_pipeline *p = NULL;

    assert_int_equal(tt_pipeline_new(TT_PP_CSV, NULL, 2, 4, 4, &p), TT_EUSAGE);
    assert_non_null(
        strstr(tt_error_message(), "schedule PipelineScheduleMulti is read from a file, but none is given"));
    assert_int_equal(tt_pipeline_new(TT_PP_1F1B, path, 2, 2, 4, &p), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "help: use schedule PipelineScheduleSingle or PipelineScheduleMulti"));
    assert_int_equal(tt_pipeline_new(TT_PP_CSV, "/nonexistent/file.csv", 2, 4, 4, &p), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "/nonexistent/file.csv"));
    assert_null(p);
}

static int set_up(void **state)
{
    int fd = mkstemp(path);

    return fd < 0 ? -1 : close(fd);
}

static int tear_down(void **state)
{
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(idle_and_overlapped_cells_quotes_and_line_ends_are_read),
        cmocka_unit_test(the_file_places_the_stages),
        cmocka_unit_test(wrong_cells_are_named),
        cmocka_unit_test(lines_are_ranks),
        cmocka_unit_test(what_is_no_program_is_refused),
        cmocka_unit_test(files_belong_to_the_schedules_that_read_them),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
