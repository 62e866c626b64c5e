/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include <cmocka.h>

#include "cli/cli.h"
#include "core/base/json.h"
#include "core/models/model.h"

/* Runs the command with one argument or none. Its output on `stream` goes to text. Returns its exit code. */
static int run(const char *arg, FILE *stream, char *text, size_t size)
{
    char *argv[] = {(char *)arg, NULL};
    FILE *file = tmpfile();
    int code, kept;
    size_t n;

    assert_non_null(file);
    (void)fflush(stream);
    kept = dup(fileno(stream));
    assert_true(kept >= 0 && dup2(fileno(file), fileno(stream)) >= 0);
    code = tt_command_run(&tt_command_models, arg ? 1 : 0, argv);
    (void)fflush(stream);
    (void)dup2(kept, fileno(stream));
    (void)close(kept);
    rewind(file);
    n = fread(text, 1, size - 1, file);
    text[n] = 0;
    (void)fclose(file);
    return code;
}

static void table_lists_every_flavor(void **state)
{
    char text[65536];

    assert_int_equal(run(NULL, stdout, text, sizeof text), 0);
    assert_non_null(strstr(text, "llama3      debugmodel           6,163,712    256       6     16/16"));
    assert_non_null(strstr(text, "71,585,280\n"));
    assert_non_null(strstr(text, "at seq_len 2048 "));
    assert_non_null(strstr(text, "llama3      405B           405,853,388,800"));
    assert_non_null(strstr(text, "qwen3       0.6B               596,049,920   1024      28      16/8       128"));
    assert_non_null(strstr(text, "gpt2        124M               124,439,808    768      12     12/12        64"));
}

static int n_flavors(void)
{
    int n = 0;

    for (int r = 0; r < tt_model_n_rows; r++)
        n += tt_model_rows[r]->n_flavors;
    return n;
}

static void json_has_the_same_numbers(void **state)
{
    char text[65536];
    json_t *all = NULL, *last;
    int64_t value = 0;

    assert_int_equal(run("--json", stdout, text, sizeof text), 0);
    assert_int_equal(tt_json_parse(text, strlen(text), "stdout", &all), 0);
    assert_int_equal(json_array_size(json_object_get(all, "models")), n_flavors());
    last = json_array_get(json_object_get(all, "models"), 0);
    assert_int_equal(tt_json_get_int(last, "parameters", "", &value), 0);
    assert_int_equal(value, 6163712);
    assert_int_equal(tt_json_get_int(last, "flops_per_token", "", &value), 0);
    assert_int_equal(value, 71585280);
    assert_true(json_is_false(json_object_get(last, "tie_embeddings")));
    json_decref(all);
}

static void seq_len_changes_the_flops(void **state)
{
    char text[65536];

    assert_int_equal(run("--seq-len=8192", stdout, text, sizeof text), 0);
    assert_non_null(strstr(text, "57,914,449,920\n"));
}

static void wrong_options_are_usage_errors(void **state)
{
    char text[1024];

    assert_int_equal(run("--jason", stderr, text, sizeof text), 2);
    assert_non_null(strstr(text, "'--jason'"));
    assert_non_null(strstr(text, "--json"));
    assert_int_equal(run("llama3", stderr, text, sizeof text), 2);
    assert_non_null(strstr(text, "unknown argument 'llama3'"));
    assert_int_equal(run("--seq_len=12k", stderr, text, sizeof text), 2);
    assert_non_null(strstr(text, "--seq_len '12k' is not a whole number from 1 to 2147483647"));
    assert_int_equal(run("--seq_len", stderr, text, sizeof text), 2);
    assert_non_null(strstr(text, "seq_len"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_lists_every_flavor),
        cmocka_unit_test(json_has_the_same_numbers),
        cmocka_unit_test(seq_len_changes_the_flops),
        cmocka_unit_test(wrong_options_are_usage_errors),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
