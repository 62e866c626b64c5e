/* SPDX-License-Identifier: MIT
 *
 * The table of keys, and configurations without faults: defaults, every row at its limits, precedence, origins, writing
 * and reading.
 */
#include <math.h>

#include "config_help.h"
#include "core/os/file.h"

static void defaults_are_torchtitans(void **state)
{
    struct tt_config *cfg = good_text("");

    assert_string_equal(cfg->job.dump_folder, "./outputs");
    assert_string_equal(cfg->model.flavor, "debugmodel");
    assert_null(cfg->model.hf_assets_path);
    assert_true(cfg->model.dim == TT_NULL_INT);
    assert_true(isnan(cfg->model.rope_scaling.factor));
    assert_int_equal(cfg->model.tie_embeddings, TT_NULL_BOOL);
    assert_int_equal(cfg->training.steps, 10000);
    assert_int_equal(cfg->training.gradient_sync, TT_SYNC_EVERY_MICROBATCH);
    assert_true(cfg->optimizer.lr == 8e-4);
    assert_true(cfg->optimizer.eps == 1e-8);
    assert_int_equal(cfg->optimizer.name, TT_OPTIM_ADAMW);
    assert_int_equal(cfg->parallelism.threads_per_rank, 0);
    assert_string_equal(cfg->parallelism.fsdp_wrap_policy.word[0], "block");
    assert_false(cfg->parallelism.fsdp_wrap_policy.is_list);
    assert_true(cfg->checkpoint.exclude_from_loading.is_list);
    assert_int_equal(cfg->checkpoint.exclude_from_loading.n, 0);
    assert_int_equal(cfg->debug.seed, 42);
    for (int i = 0; i < tt_config_n_rows; i++) {
        if (tt_config_row(TT_KEY(validation.dataset)) != &tt_config_rows[i] &&
            tt_config_row(TT_KEY(validation.seq_len)) != &tt_config_rows[i])
            assert_string_equal(tt_config_origin(cfg, tt_config_rows[i].id), "default");
    }
    tt_config_free(cfg);
}

/* A validation key that nobody set has the value of its training key, and the template leaves it out. */
static void validation_follows_training(void **state)
{
    struct tt_config *cfg = good_text("training: {dataset: text, dataset_path: a.txt, seq_len: 128}\n");
    struct tt_text template = {0};

    assert_value(cfg, "validation.dataset", "text");
    assert_string_equal(cfg->validation.dataset_path, "a.txt");
    assert_int_equal(cfg->validation.seq_len, 128);
    assert_string_equal(tt_config_origin(cfg, TT_KEY(validation.seq_len)), "training.seq_len");
    assert_string_equal(tt_config_origin(cfg, TT_KEY(validation.dataset_path)), "training.dataset_path");
    tt_config_to_yaml(cfg, TT_CONFIG_TEMPLATE, &template);
    assert_non_null(strstr(template.text, "  seq_len: null\n"));
    tt_text_release(&template);
    tt_config_free(cfg);

    cfg = good_text("training: {seq_len: 64}\nvalidation: {seq_len: null}\n");
    assert_value(cfg, "validation.dataset", "kjv_validation");
    assert_null(cfg->validation.dataset_path);
    assert_int_equal(cfg->validation.seq_len, 64);
    tt_config_free(cfg);

    cfg = good_text(
        "training: {dataset: jsonl, dataset_path: a}\nvalidation: {dataset: text, dataset_path: b, seq_len: 7}\n");
    assert_value(cfg, "validation.dataset", "text");
    assert_string_equal(cfg->validation.dataset_path, "b");
    assert_int_equal(cfg->validation.seq_len, 7);
    tt_config_free(cfg);
}

static void words_may_be_written_in_capitals(void **state)
{
    static const char *const words[][2] = {
        {"Always", "always"}, {"NEVER", "never"}, {"True", "always"}, {"FALSE", "never"}};
    struct tt_config *cfg;

    for (int i = 0; i < COUNT(words); i++) {
        char *text = tt_format("parallelism: {fsdp_reshard_after_forward: %s}\n", words[i][0]);

        cfg = good_text(text);
        assert_string_equal(cfg->parallelism.fsdp_reshard_after_forward.word[0], words[i][1]);
        tt_config_free(cfg);
        tt_free(text);
    }
    cfg = good_flags(1, (const char *const[]){"--optimizer.name=adamw"});
    assert_int_equal(cfg->optimizer.name, TT_OPTIM_ADAMW);
    tt_config_free(cfg);
}

/* "Accepts" lists only what works, not what is planned. */
static void ranges_offer_only_what_is_built(void **state)
{
    static const char *const wanted[][2] = {
        {"training.dataset",
         "kjv|kjv_validation|text|jsonl|parquet|arrow|jsonl_sft|tokens|tokens_u16|[{name, dataset, dataset_path, "
         "text_field, weight}, ...]"},
        {"validation.dataset",
         "kjv|kjv_validation|text|jsonl|parquet|arrow|jsonl_sft|tokens|tokens_u16|[{name, dataset, dataset_path, "
         "text_field, weight}, ...], or null"},
        {"training.dtype", "float32|bfloat16"},
        {"checkpoint.filter", "replica0|rank0"},
        {"training.mixed_precision_param", "float32|bfloat16"},
    };

    for (int i = 0; i < COUNT(wanted); i++) {
        struct tt_text range = {0};

        tt_config_range_text(tt_config_row_find(wanted[i][0]), &range);
        assert_string_equal(range.text, wanted[i][1]);
        tt_text_release(&range);
    }
}

static void rows_are_well_formed(void **state)
{
    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];
        char *path = tt_format("%s.%s", row->section, row->key);

        assert_string_equal(path, row->path);
        assert_ptr_equal(tt_config_row_find(path), row);
        assert_null(tt_config_row_find(row->key));
        assert_true(row->low <= row->high);
        assert_true(row->low_real <= row->high_real);
        assert_true(strlen(row->doc) > 10 && row->doc[strlen(row->doc) - 1] == '.');
        tt_free(path);
    }
}

/* Whether the row of the key accepts a value. Rules between keys, and values that are not available yet, are left
 * out. */
static bool takes(const struct tt_config_row *row, const char *value)
{
    static const char *const refusals[] = {"expected ", "out of range", "is not one of", "must not be empty"};
    char *flag = tt_format("--%s=%s", row->path, value);
    const char *const flags[] = {flag};
    int rc;
    struct tt_config *cfg = from_flags(1, flags, &rc);
    bool is_refused = false;

    for (int i = 0; !cfg && i < COUNT(refusals); i++)
        is_refused = is_refused || strstr(tt_error_message(), refusals[i]);
    tt_free(flag);
    tt_config_free(cfg);
    return !is_refused;
}

static void expect_int(const struct tt_config_row *row, int64_t value, bool is_good)
{
    char *text = tt_format("%lld", (long long)value);

    if (takes(row, text) != is_good)
        fail_msg("%s=%s: %s", row->path, text, is_good ? "refused" : "accepted");
    tt_free(text);
}

static void integers_hold_their_range(const struct tt_config_row *row)
{
    expect_int(row, row->low, true);
    expect_int(row, row->high, true);
    expect_int(row, row->low - 1, false);
    expect_int(row, row->high + 1, false);
    expect_int(row, 0, row->low <= 0 && !(row->flags & TT_FLAG_NOT_ZERO));
    assert_false(takes(row, "1.5"));
    assert_false(takes(row, "99999999999999999999999"));
    assert_false(takes(row, "-99999999999999999999999"));
    assert_false(takes(row, "true"));
    if (row->zero_word)
        assert_true(takes(row, row->zero_word));
}

static void reals_hold_their_range(const struct tt_config_row *row)
{
    const double values[] = {row->low_real, row->high_real, row->low_real - 1e-3, row->high_real * 1.001};

    for (int i = 0; i < 4; i++) {
        char *text = tt_format("%.17g", values[i]);

        if (takes(row, text) != (i < 2))
            fail_msg("%s=%s", row->path, text);
        tt_free(text);
    }
    assert_false(takes(row, "nan"));
    assert_false(takes(row, "inf"));
    assert_false(takes(row, "1e-4x"));
    assert_false(takes(row, "0x10"));
    assert_false(takes(row, ""));
}

static void every_row_takes_its_limits_and_nothing_outside(void **state)
{
    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];

        if (row->preset && *row->preset)
            assert_true(takes(row, row->preset));
        if (takes(row, "null") != ((row->flags & (TT_FLAG_NULLABLE | TT_FLAG_NULL_DEFAULT)) != 0))
            fail_msg("%s=null", row->path);
        if (row->kind == TT_KIND_INT)
            integers_hold_their_range(row);
        if (row->kind == TT_KIND_REAL)
            reals_hold_their_range(row);
        if (row->kind == TT_KIND_BOOL || row->kind == TT_KIND_MAYBE) {
            assert_true(takes(row, "true") && takes(row, "false") && takes(row, "off") && takes(row, "1"));
            assert_false(takes(row, "maybe") || takes(row, "2") || takes(row, ""));
        }
        if (row->kind == TT_KIND_TEXT && takes(row, "") == ((row->flags & TT_FLAG_NOT_EMPTY) != 0))
            fail_msg("%s=<empty>", row->path);
        for (int c = 0;
             row->choices &&
             !(row->flags & TT_FLAG_LIST && row->flags & (TT_FLAG_PATTERNS | TT_FLAG_PARTS | TT_FLAG_FILES)) &&
             c < row->choices->n;
             c++) {
            if (!takes(row, row->choices->choice[c].word))
                fail_msg("%s=%s", row->path, row->choices->choice[c].word);
        }
        if (row->choices &&
            !(row->flags & TT_FLAG_LIST && row->flags & (TT_FLAG_PATTERNS | TT_FLAG_PARTS | TT_FLAG_FILES)))
            assert_false(takes(row, "no-such-choice") || (takes(row, "") && !(row->flags & TT_FLAG_LIST)));
    }
}

static void the_last_setting_wins_and_its_origin_is_kept(void **state)
{
    char folder[] = "/tmp/titan-test-XXXXXX", *a, *b;
    const char *const flags[] = {"--optimizer.lr=3e-4", "training.steps=7", "--optimizer.lr", "1e-4"};
    struct tt_config *cfg = NULL;

    assert_non_null(mkdtemp(folder));
    a = tt_format("%s/a.yaml", folder);
    b = tt_format("%s/b.yaml", folder);
    assert_int_equal(tt_file_replace(a, "training:\n  seq_len: 64\n  steps: 5\noptimizer: {lr: 1e-2}\n", 57), 0);
    assert_int_equal(tt_file_replace(b, "\ntraining:\n  seq_len:\n    128\n", 30), 0);
    assert_int_equal(tt_config_new(&cfg), 0);
    assert_int_equal(tt_config_load(cfg, 3, (const char *const[]){"builtin:quick", a, b}, COUNT(flags), flags), 0);
    assert_int_equal(cfg->training.seq_len, 128);
    assert_int_equal(cfg->training.steps, 7);
    assert_true(cfg->optimizer.lr == 1e-4);
    assert_contains(tt_config_origin(cfg, TT_KEY(training.seq_len)), "/b.yaml:3");
    assert_int_equal(tt_config_locate(cfg, tt_fail_key(TT_EUSAGE, TT_KEY(training.seq_len), "x")), TT_EUSAGE);
    assert_contains(tt_error_message(), "/b.yaml:4:5: training.seq_len: x");
    assert_string_equal(tt_config_origin(cfg, TT_KEY(training.steps)), "flag --training.steps");
    assert_string_equal(tt_config_origin(cfg, TT_KEY(optimizer.lr)), "flag --optimizer.lr");
    assert_string_equal(tt_config_origin(cfg, TT_KEY(metrics.log_freq)), "builtin:quick");
    assert_string_equal(tt_config_origin(cfg, TT_KEY(debug.seed)), "default");
    tt_config_free(cfg);
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(a);
    tt_free(b);
}

static void flavor_fills_what_nobody_set(void **state)
{
    struct tt_config *cfg = good_text("model: {dim: 96, n_layers: null}\n");

    assert_int_equal(tt_config_set_flavor(cfg, TT_KEY(model.dim), 256), 0);
    assert_int_equal(tt_config_set_flavor(cfg, TT_KEY(model.n_layers), 6), 0);
    assert_int_equal(tt_config_set_flavor(cfg, TT_KEY(model.n_layers), 8), 0);
    assert_int_equal(tt_config_set_flavor(cfg, TT_KEY(model.tie_embeddings), 1), 0);
    assert_int_equal(tt_config_set_flavor(cfg, TT_KEY(model.rope_scaling.factor), 8.0), 0);
    assert_int_equal(cfg->model.dim, 96);
    assert_int_equal(cfg->model.n_layers, 8);
    assert_int_equal(cfg->model.tie_embeddings, 1);
    assert_true(cfg->model.rope_scaling.factor == 8.0);
    assert_string_equal(tt_config_origin(cfg, TT_KEY(model.dim)), "t.yaml:1");
    assert_string_equal(tt_config_origin(cfg, TT_KEY(model.n_layers)), "flavor");
    assert_int_equal(tt_config_set_flavor(cfg, TT_KEY(training.steps), 1), TT_EINTERNAL);
    assert_int_equal(tt_config_set_flavor(cfg, TT_KEY(model.name), 1), TT_EINTERNAL);
    tt_config_free(cfg);
}

/* Both ways of writing, with and without origins, give the same values when they are read back. */
static void assert_reads_back(const struct tt_config *cfg)
{
    for (int comments = TT_CONFIG_PLAIN; comments <= TT_CONFIG_TEMPLATE; comments++) {
        struct tt_text text = {0};
        struct tt_config *again;

        tt_config_to_yaml(cfg, (enum tt_config_comments)comments, &text);
        again = good_text(text.text);
        for (int i = 0; i < tt_config_n_rows; i++) {
            char *expect = value_of(cfg, tt_config_rows[i].path);

            assert_value(again, tt_config_rows[i].path, expect);
            tt_free(expect);
        }
        assert_memory_equal(&again->optimizer.lr, &cfg->optimizer.lr, sizeof cfg->optimizer.lr);
        tt_config_free(again);
        tt_text_release(&text);
    }
}

static void written_yaml_reads_back(void **state)
{
    static const char *const texts[] = {
        "no",    "null",   "12",   "a: b", "# x", "-",  "a\tb\\c\"d'", "\xc2\x85", "line\nline", "\xf0\x9f\x99\x82",
        " lead", "*alias", "1e-4", "~",    "[x]", "{}", "@at",         "%d",       "x\x01",      "a #b",
        "trail "};
    struct tt_config *cfg;

    cfg = good_text("");
    assert_reads_back(cfg);
    tt_config_free(cfg);
    for (int i = 0; i < COUNT(texts); i++) {
        char *flag = tt_format("--job.description=%s", texts[i]);
        const char *const flags[] = {flag,
                                     "--model.rope_scaling.factor=8",
                                     "--parallelism.memory_limit=80GiB",
                                     "--parallelism.fsdp_bucket_bytes=100001",
                                     "--checkpoint.exclude_from_loading=optimizer,lr_scheduler",
                                     "--training.seed=9223372036854775806",
                                     "--optimizer.lr=0.1234567890123456789",
                                     "--model.tie-embeddings=false"};

        cfg = strcmp(texts[i], "null") != 0 && strcmp(texts[i], "~") != 0 ? good_flags(COUNT(flags), flags)
                                                                          : good_text("job: {description: \"null\"}");
        assert_reads_back(cfg);
        tt_config_free(cfg);
        tt_free(flag);
    }
}

static void json_has_types_and_origins(void **state)
{
    struct tt_config *cfg = good_text("optimizer: {lr: 1e-4}\nmodel: {rope_scaling: {factor: 8}}\n");
    json_t *json = tt_config_to_json(cfg, false), *origins = tt_config_to_json(cfg, true);
    json_t *lr = json_object_get(json_object_get(origins, "optimizer"), "lr");

    assert_true(json_real_value(json_object_get(json_object_get(json, "optimizer"), "lr")) == 1e-4);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json, "training"), "steps")), 10000);
    assert_true(json_is_null(json_object_get(json_object_get(json, "model"), "dim")));
    assert_true(json_is_false(json_object_get(json_object_get(json, "checkpoint"), "enable")));
    assert_true(json_real_value(
                    json_object_get(json_object_get(json_object_get(json, "model"), "rope_scaling"), "factor")) == 8.0);
    assert_string_equal(json_string_value(json_object_get(json_object_get(json, "parallelism"), "threads_per_rank")),
                        "auto");
    assert_string_equal(json_string_value(json_object_get(lr, "origin")), "t.yaml:1");
    json_decref(json);
    json_decref(origins);
    tt_config_free(cfg);
}

static void builtin_quick_is_the_documented_run(void **state)
{
    struct tt_config *cfg = NULL;

    assert_int_equal(tt_config_new(&cfg), 0);
    assert_int_equal(tt_config_load(cfg, 1, (const char *const[]){"builtin:quick"}, 0, NULL), 0);
    assert_string_equal(cfg->model.flavor, "debugmodel");
    assert_value(cfg, "training.dataset", "kjv");
    assert_int_equal(cfg->training.seq_len, 256);
    assert_int_equal(cfg->training.steps, 60);
    assert_int_equal(cfg->metrics.log_freq, 1);
    assert_true(cfg->checkpoint.enable);
    assert_string_equal(tt_config_origin(cfg, TT_KEY(training.steps)), "builtin:quick");
    tt_config_free(cfg);
}

static void shipped_files_load(void **state)
{
    char **names = NULL;
    int n = 0;

    assert_int_equal(tt_folder_list(TT_SOURCE_DIR "/configs", &names, &n), 0);
    assert_true(n >= 6);
    for (int i = 0; i < n; i++) {
        char *path = tt_format(TT_SOURCE_DIR "/configs/%s", names[i]);
        const char *const files[] = {path};
        struct tt_config *cfg = NULL;

        assert_int_equal(tt_config_new(&cfg), 0);
        if (tt_config_load(cfg, 1, files, 0, NULL) < 0)
            fail_msg("%s", tt_error_message());
        tt_config_free(cfg);
        tt_free(path);
    }
    tt_names_free(names, n);
}

/* The text with each run of white space as one space. */
static char *unwrapped(const char *text)
{
    struct tt_text out = {0};

    for (const char *c = text; *c; c++) {
        if (*c != ' ' && *c != '\n')
            tt_text_add_bytes(&out, c, 1);
        else if (out.size && out.text[out.size - 1] != ' ')
            tt_text_add(&out, " ");
    }
    return out.text;
}

static void help_names_every_key(void **state)
{
    struct tt_text help = {0}, sections = {0};
    char *flat;

    tt_config_help(&help);
    tt_config_help_sections(&sections);
    flat = unwrapped(help.text);
    for (int i = 0; i < tt_config_n_rows; i++) {
        char *flag = tt_format("--%s [", tt_config_rows[i].path);

        assert_contains(flat, flag);
        assert_contains(flat, tt_config_rows[i].doc);
        assert_contains(sections.text, tt_config_rows[i].key);
        tt_free(flag);
    }
    for (const char *line = help.text, *end; (end = strchr(line, '\n')); line = end + 1)
        if (end - line > 80)
            fail_msg("longer than 80 columns: %.*s", (int)(end - line), line);
    tt_free(flat);
    tt_text_release(&help);
    tt_text_release(&sections);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_torchtitans),
        cmocka_unit_test(validation_follows_training),
        cmocka_unit_test(words_may_be_written_in_capitals),
        cmocka_unit_test(ranges_offer_only_what_is_built),
        cmocka_unit_test(rows_are_well_formed),
        cmocka_unit_test(every_row_takes_its_limits_and_nothing_outside),
        cmocka_unit_test(the_last_setting_wins_and_its_origin_is_kept),
        cmocka_unit_test(flavor_fills_what_nobody_set),
        cmocka_unit_test(written_yaml_reads_back),
        cmocka_unit_test(json_has_types_and_origins),
        cmocka_unit_test(builtin_quick_is_the_documented_run),
        cmocka_unit_test(shipped_files_load),
        cmocka_unit_test(help_names_every_key),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
