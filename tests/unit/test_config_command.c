/* SPDX-License-Identifier: MIT
 *
 * `titan config` as a user meets it: what goes to stdout, what to stderr, and the exit code.
 */
#include <stdio.h>

#include <unistd.h>

#include "cli/cli.h"
#include "config_help.h"
#include "core/os/file.h"

struct run {
    int exit_code;
    char *out, *err;
};

/* Redirects stream to a new temporary file. Returns a duplicate of its old descriptor. */
static int redirect(FILE *stream, char *path)
{
    int saved = dup(fileno(stream)), fd = mkstemp(path);

    assert_true(saved >= 0 && fd >= 0);
    (void)fflush(stream);
    (void)dup2(fd, fileno(stream));
    (void)close(fd);
    return saved;
}

static char *restore(FILE *stream, int saved, const char *path)
{
    char *text = NULL;
    size_t size = 0;

    (void)fflush(stream);
    (void)dup2(saved, fileno(stream));
    (void)close(saved);
    assert_int_equal(tt_file_read(path, &text, &size), 0);
    (void)unlink(path);
    return text;
}

/* Runs `titan config WORDS`; words are separated by spaces. */
static struct run run(const char *words)
{
    char out[] = "/tmp/titan-test-out-XXXXXX", err[] = "/tmp/titan-test-err-XXXXXX";
    char *copy = tt_strdup(words), *argv[32], *rest = NULL;
    int argc = 0, saved_out, saved_err;
    struct run result = {0};

    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    saved_out = redirect(stdout, out);
    saved_err = redirect(stderr, err);
    result.exit_code = tt_command_run(&tt_command_config, argc, argv);
    result.out = restore(stdout, saved_out, out);
    result.err = restore(stderr, saved_err, err);
    tt_free(copy);
    return result;
}

static void release(struct run *r)
{
    tt_free(r->out);
    tt_free(r->err);
}

static void show_prints_what_a_run_would_use(void **state)
{
    struct run r = run("show --training.steps=5 --origin");

    assert_int_equal(r.exit_code, 0);
    assert_string_equal(r.err, "");
    assert_contains(r.out, "\n  steps: 5                                       # flag --training.steps\n");
    assert_contains(r.out, "\n  seq_len: 256                                   # builtin:quick\n");
    assert_contains(r.out, "\n  eps: 1e-8                                      # default\n");
    release(&r);
    r = run("show --config " TT_SOURCE_DIR "/configs/debug.yaml --origin");
    assert_contains(r.out, "# " TT_SOURCE_DIR "/configs/debug.yaml:9\n");
    release(&r);
}

static void show_without_origins_reads_back(void **state)
{
    struct run r = run("show optimizer.lr=1e-5");
    struct tt_config *cfg = good_text(r.out);

    assert_true(cfg->optimizer.lr == 1e-5);
    assert_int_equal(cfg->training.seq_len, 256);
    assert_null(strchr(r.out, '#'));
    tt_config_free(cfg);
    release(&r);
}

static void json_is_json(void **state)
{
    struct run r = run("show --json --origin training.steps=3");
    json_t *json = NULL, *steps;

    assert_int_equal(r.exit_code, 0);
    assert_int_equal(tt_json_parse(r.out, strlen(r.out), "stdout", &json), 0);
    steps = json_object_get(json_object_get(json, "training"), "steps");
    assert_int_equal(json_integer_value(json_object_get(steps, "value")), 3);
    assert_string_equal(json_string_value(json_object_get(steps, "origin")), "flag --training.steps");
    json_decref(json);
    release(&r);
    r = run("diff --json training.steps=3");
    assert_int_equal(tt_json_parse(r.out, strlen(r.out), "stdout", &json), 0);
    assert_true(json_array_size(json) > 5);
    json_decref(json);
    release(&r);
}

static void check_says_ok_or_why_not(void **state)
{
    struct run r = run("check --no-files " TT_SOURCE_DIR "/configs/hf_finetune.yaml");

    assert_int_equal(r.exit_code, 0);
    assert_string_equal(r.out, "ok\n");
    release(&r);
    r = run("check training.stepz=4 optimizer.lr=x");
    assert_int_equal(r.exit_code, 2);
    assert_string_equal(r.out, "");
    assert_string_equal(r.err, "titan: error: 2 errors in the configuration\n"
                               "flag --training.stepz: unknown key 'training.stepz'\n"
                               "  help: did you mean 'training.steps'?\n"
                               "flag --optimizer.lr: expected a number, found 'x'\n");
    release(&r);
    r = run("check --json optimizer.lr=x");
    assert_int_equal(r.exit_code, 2);
    assert_contains(r.out, "\"ok\": false");
    assert_contains(r.out, "expected a number");
    assert_string_equal(r.err, "");
    release(&r);
    r = run("check no-such.yaml");
    assert_int_equal(r.exit_code, 2);
    assert_contains(r.err, "cannot open 'no-such.yaml': no such file");
    release(&r);
}

static void diff_tells_what_changed(void **state)
{
    struct run r =
        run("diff " TT_SOURCE_DIR "/configs/debug.yaml " TT_SOURCE_DIR "/configs/debug.yaml optimizer.lr=1e-5");

    assert_int_equal(r.exit_code, 2); /* overrides belong to --config; two files are compared as they are */
    release(&r);
    r = run("diff " TT_SOURCE_DIR "/configs/llama3_8b.yaml " TT_SOURCE_DIR "/configs/llama3_70b.yaml");
    assert_int_equal(r.exit_code, 0);
    assert_contains(r.out, "model.flavor: 8B -> 70B\n");
    assert_contains(r.out, "optimizer.lr: 0.0003 -> 0.00015\n");
    assert_null(strstr(r.out, "training.seq_len"));
    release(&r);
    r = run("diff --config " TT_SOURCE_DIR "/configs/llama3_8b.yaml --origin");
    assert_contains(r.out, "training.seq_len: 2048 -> 8192  # " TT_SOURCE_DIR "/configs/llama3_8b.yaml:");
    release(&r);
    r = run("diff a b c");
    assert_int_equal(r.exit_code, 2);
    assert_contains(r.err, "takes one or two files, 3 were given");
    release(&r);
}

static void init_prints_every_key_of_the_quick_run(void **state)
{
    struct run r = run("init");
    struct tt_config *cfg = good_text(r.out);

    for (int i = 0; i < tt_config_n_rows; i++) {
        static const char *const quick[] = {"builtin:quick"};
        struct tt_config *fresh = NULL;
        char *expect;

        assert_int_equal(tt_config_new(&fresh), 0);
        assert_int_equal(tt_config_load(fresh, 1, quick, 0, NULL), 0);
        expect = value_of(fresh, tt_config_rows[i].path);
        assert_value(cfg, tt_config_rows[i].path, expect);
        assert_contains(r.out, tt_config_rows[i].key);
        tt_free(expect);
        tt_config_free(fresh);
    }
    assert_contains(r.out, "  # Optimizer steps to run. (at least 1; default 10000)\n  steps: 60\n");
    tt_config_free(cfg);
    release(&r);
}

static void wrong_words_are_usage_errors(void **state)
{
    struct run r = run("shw");

    assert_int_equal(r.exit_code, 2);
    assert_string_equal(r.err, "titan: error: unknown command 'config shw'\nhelp: did you mean 'config show'?\n");
    release(&r);
    r = run("");
    assert_int_equal(r.exit_code, 2);
    release(&r);
    r = run("show --orgin");
    assert_int_equal(r.exit_code, 2);
    assert_contains(r.err, "unknown option '--orgin'\nhelp: did you mean '--origin'?");
    release(&r);
    r = run("--help");
    assert_int_equal(r.exit_code, 0);
    assert_contains(r.out, "usage: titan config");
    release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(show_prints_what_a_run_would_use),
        cmocka_unit_test(show_without_origins_reads_back),
        cmocka_unit_test(json_is_json),
        cmocka_unit_test(check_says_ok_or_why_not),
        cmocka_unit_test(diff_tells_what_changed),
        cmocka_unit_test(init_prints_every_key_of_the_quick_run),
        cmocka_unit_test(wrong_words_are_usage_errors),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
