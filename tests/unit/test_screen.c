/* SPDX-License-Identifier: MIT
 *
 * Text that fits a terminal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <pty.h>

#include "cli/run/screen.h"

static void put(const char *text, int columns, int indent, const char *expect)
{
    char *found = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&found, &size);

    assert_non_null(file);
    tt_screen_put(file, text, columns, indent);
    assert_int_equal(fclose(file), 0);
    assert_string_equal(found, expect);
    free(found);
}

static void long_lines_are_broken_at_spaces(void **state)
{
    put("  data     one two three\nshort\n", 0, 11, "  data     one two three\nshort\n");
    put("  data     one two three four\nshort\n", 20, 11,
        "  data     one two\n           three\n           four\nshort\n");
    put("exactly eight\n", 13, 2, "exactly eight\n");
    put("exactly eight\n", 12, 2, "exactly\n  eight\n");
    put("öäüöäüö äüöäü\n", 13, 2, "öäüöäüö äüöäü\n"); /* columns, not bytes */
    put("öäüöäüö äüöäü\n", 12, 2, "öäüöäüö\n  äüöäü\n");
}

static void long_words_stay_whole(void **state)
{
    put("abcdefghijklmnopqrstuvwxyz0123456789abcdefghij\n", 40, 2, "abcdefghijklmnopqrstuvwxyz0123456789abcdefghij\n");
    put("no newline at the end", 40, 2, "no newline at the end\n");
    put("", 40, 2, "");
}

static void the_environment_says_how_wide_it_is(void **state)
{
    static const struct {
        const char *told;
        int out, err;
    } cases[] = {{"97", 97, 97}, {"97,61", 97, 61}, {"0,61", 0, 61}, {"97,0", 97, 0}, {"7", 0, 0}, {"x", 0, 0}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(setenv("TITAN_COLUMNS", cases[i].told, 1), 0);
        assert_int_equal(tt_screen_columns(STDOUT_FILENO), cases[i].out);
        assert_int_equal(tt_screen_columns(STDERR_FILENO), cases[i].err);
    }
    assert_int_equal(unsetenv("TITAN_COLUMNS"), 0);
}

/* A pseudo terminal with that many columns; the caller closes both ends. */
static int open_terminal(int columns, int *ret_other)
{
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    int fd = -1;

    assert_int_equal(openpty(ret_other, &fd, NULL, NULL, &size), 0);
    return fd;
}

static void each_descriptor_has_its_own_width(void **state)
{
    int other = -1, terminal = open_terminal(72, &other), pipes[2];

    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(tt_screen_columns(terminal), 72);
    assert_int_equal(tt_screen_columns(pipes[1]), 0); /* with `titan train >log` nothing is missing from the log */
    (void)close(pipes[0]);
    (void)close(pipes[1]);
    (void)close(terminal);
    (void)close(other);
}

/* Under mpirun a rank writes into a pipe, and mpirun to the terminal. */
static void under_mpirun_the_launcher_counts(void **state)
{
    int other = -1, terminal = open_terminal(72, &other), status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        (void)setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
        (void)close(terminal);
        _exit(tt_screen_columns(terminal));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 72);
    (void)close(terminal);
    (void)close(other);
}

/* Runs in a child whose standard error is a terminal of 40 columns; its exit code says which check failed. */
static void live_lines(int terminal)
{
    const struct winsize narrow = {.ws_row = 24, .ws_col = 20};

    (void)dup2(terminal, STDERR_FILENO);
    (void)unsetenv("OMPI_COMM_WORLD_SIZE");
    tt_streams_begin();
    (void)setenv("TERM", "dumb", 1);
    if (tt_screen_live_begin())
        _exit(1);
    tt_screen_live("nothing");
    (void)setenv("TERM", "xterm", 1);
    (void)setenv("OMPI_MCA_orte_tag_output", "1", 1);
    if (tt_screen_live_begin())
        _exit(2);
    (void)unsetenv("OMPI_MCA_orte_tag_output");
    if (!tt_screen_live_begin())
        _exit(3);
    tt_screen_live("step: 1/9");
    tt_screen_live("step: 2/9");
    (void)fprintf(stderr, "a note\n");
    (void)fprintf(stderr, "another\n");
    tt_screen_live("step: 3/9 0123456789 0123456789 0123456789");
    (void)printf("# a line of standard output erases it too\n");
    (void)fflush(stdout);
    (void)ioctl(terminal, TIOCSWINSZ, &narrow);
    tt_screen_live("step: 4/9 0123456789 0123456789");
    _exit(0);
}

static void a_live_line_disappears_before_anything_else(void **state)
{
    static const char expect[] = "\rstep: 1/9\033[K\r"
                                 "\rstep: 2/9\033[K\r"
                                 "\r\033[2K\r"
                                 "a note\r\nanother\r\n"
                                 "\rstep: 3/9 0123456789 0123456789 0123456\033[K\r"
                                 "\r\033[2K\r"
                                 "\rstep: 4/9 012345678\033[K\r";
    int other = -1, terminal = open_terminal(40, &other), status = 0;
    char found[1024] = "";
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        live_lines(terminal);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(read(other, found, sizeof found - 1) > 0);
    assert_string_equal(found, expect);
    (void)close(terminal);
    (void)close(other);
}

/* Nobody reads from the terminal, so it accepts no more bytes. */
static void a_live_line_never_waits(void **state)
{
    int other = -1, terminal = open_terminal(40, &other), status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(terminal, STDERR_FILENO);
        (void)setenv("TERM", "xterm", 1);
        (void)fcntl(terminal, F_SETFL, O_NONBLOCK);
        while (write(terminal, "0123456789012345", 16) > 0)
            ;
        (void)fcntl(terminal, F_SETFL, 0);
        if (!tt_screen_live_begin())
            _exit(1);
        (void)alarm(60);
        tt_screen_live("step: 1/9");
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    (void)close(terminal);
    (void)close(other);
}

/* --- tables --- */

static const struct tt_column some_columns[] = {
    {"run", 10, false, 0, 0, 0}, {"loss", 8, true, 1, 0, 0}, {"speed", 8, true, 1, 1, 0}, {"note", 0, false, 2, 2, 8}};

/* The table as it is printed at `told` columns ("0": in a pipe). */
static void printed(struct tt_columns *t, const char *told, const char *expect)
{
    int pipes[2], out = dup(STDOUT_FILENO);
    char found[1024] = "";
    ssize_t n;

    assert_int_equal(setenv("TITAN_COLUMNS", told, 1), 0);
    assert_int_equal(pipe(pipes), 0);
    (void)fflush(stdout);
    assert_true(dup2(pipes[1], STDOUT_FILENO) >= 0);
    tt_columns_print(t);
    (void)fflush(stdout);
    assert_true(dup2(out, STDOUT_FILENO) >= 0);
    (void)close(out);
    (void)close(pipes[1]);
    n = read(pipes[0], found, sizeof found - 1);
    (void)close(pipes[0]);
    assert_true(n >= 0);
    found[n] = 0;
    assert_int_equal(unsetenv("TITAN_COLUMNS"), 0);
    assert_string_equal(found, expect);
}

static void table(const char *told, const char *expect)
{
    struct tt_columns t = {.column = some_columns, .n = sizeof some_columns / sizeof *some_columns};

    tt_columns_cell(&t, "outputs/first/with/a/long/name");
    tt_columns_cell(&t, "%.2f", 1.5);
    tt_columns_cell(&t, "%d", 1200);
    tt_columns_cell(&t, "all is well here and nothing is missing");
    tt_columns_rest(&t, 0, "");
    tt_columns_cell(&t, "second");
    tt_columns_rest(&t, 2, "it could not be read: one two three four five");
    printed(&t, told, expect);
}

static void a_table_in_a_pipe_has_its_declared_widths(void **state)
{
    table("0", "run            loss    speed  note\n"
               "outputs/first/with/a/long/name     1.50     1200  all is well here and nothing is missing\n"
               "\n"
               "second      it could not be read: one two three four five\n");
}

static void a_wide_terminal_has_at_least_these_widths(void **state)
{
    table("89", "run                                loss    speed  note\n"
                "outputs/first/with/a/long/name     1.50     1200  all is well here and nothing is missing\n"
                "\n"
                "second                          it could not be read: one two three four five\n");
    table("88", "run                            loss speed  note\n"
                "outputs/first/with/a/long/name 1.50  1200  all is well here and nothing is missing\n"
                "\n"
                "second                          it could not be read: one two three four five\n");
}

static void columns_fold_before_any_is_left_out(void **state)
{
    table("62", "run                            loss speed  note\n"
                "outputs/first/with/a/long/name 1.50  1200  all is well here\n"
                "                                           and nothing is\n"
                "                                           missing\n"
                "\n"
                "second                          it could not be read: one two\n"
                "                                three four five\n");
}

static void the_last_line_says_what_is_left_out(void **state)
{
    table("50", "run                            loss speed\n"
                "outputs/first/with/a/long/name 1.50  1200\n"
                "\n"
                "second\n"
                "    it could not be read: one two three four five\n"
                "left out: note (a terminal of 82 columns shows\n"
                "  all, or a pipe: | cat)\n");
    table("40", "run                            loss\n"
                "outputs/first/with/a/long/name 1.50\n"
                "\n"
                "second\n"
                "    it could not be read: one two three\n"
                "    four five\n"
                "left out: speed, note (a terminal of 82\n"
                "  columns shows all, or a pipe: | cat)\n");
}

/* A letter may have two bytes, and is one column. */
static void words_are_broken_by_their_columns(void **state)
{
    static const struct tt_column column[] = {{"run", 0, false, 0, 0, 0}, {"note", 0, false, 2, 0, 9}};

    for (int wide = 0; wide < 2; wide++) {
        struct tt_columns t = {.column = column, .n = 2};

        tt_columns_cell(&t, "a");
        tt_columns_cell(&t, "äöüäöüäöü ääööüü äöüäöüäöü äöü äöü äöü");
        printed(&t, wide ? "80" : "40",
                wide ? "run  note\na    äöüäöüäöü ääööüü äöüäöüäöü äöü äöü äöü\n"
                     : "run  note\na    äöüäöüäöü ääööüü äöüäöüäöü äöü äöü\n     äöü\n");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_lines_are_broken_at_spaces),
        cmocka_unit_test(long_words_stay_whole),
        cmocka_unit_test(the_environment_says_how_wide_it_is),
        cmocka_unit_test(each_descriptor_has_its_own_width),
        cmocka_unit_test(under_mpirun_the_launcher_counts),
        cmocka_unit_test(a_live_line_disappears_before_anything_else),
        cmocka_unit_test(a_live_line_never_waits),
        cmocka_unit_test(a_table_in_a_pipe_has_its_declared_widths),
        cmocka_unit_test(a_wide_terminal_has_at_least_these_widths),
        cmocka_unit_test(columns_fold_before_any_is_left_out),
        cmocka_unit_test(the_last_line_says_what_is_left_out),
        cmocka_unit_test(words_are_broken_by_their_columns),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
