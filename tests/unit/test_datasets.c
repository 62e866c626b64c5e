/* SPDX-License-Identifier: MIT
 *
 * Keys that take a dataset or a list of datasets: from files and flags, written out again, and with faults.
 */
#include "config_help.h"

#define BOOKS "{name: books, dataset: text, dataset_path: b/c.txt, weight: 0.7}"
#define WEB   "{name: web, dataset: jsonl, dataset_path: web.jsonl.zst, text_field: content}"

static void expect_two(const struct tt_config *cfg)
{
    const struct tt_datasets *d = &cfg->training.dataset;
    struct tt_dataset_entry first, second;

    assert_true(d->is_list);
    assert_int_equal(d->n, 2);
    first = tt_config_dataset(cfg, d, 0);
    second = tt_config_dataset(cfg, d, 1);
    assert_string_equal(first.name, "books");
    assert_string_equal(first.dataset, "text");
    assert_string_equal(first.dataset_path, "b/c.txt");
    assert_string_equal(first.text_field, "text"); /* training.text_field */
    assert_true(first.weight == 0.7);
    assert_string_equal(second.text_field, "content");
    assert_true(second.weight == 1.0);
}

static void a_list_is_the_same_from_files_and_flags(void **state)
{
    static const char *const flags[] = {"--training.dataset", "[" BOOKS ", " WEB "]"};
    struct tt_config *cfg = good_text("training:\n  dataset:\n  - " BOOKS "\n  - name: web\n    dataset: c4\n"
                                      "    dataset-path: web.jsonl.zst\n    text_field: content\n    weight: 1.0\n");

    expect_two(cfg);
    assert_int_equal(tt_config_locate(cfg, tt_fail_key(TT_EUSAGE, TT_KEY(training.dataset), "x")), TT_EUSAGE);
    assert_string_equal(tt_error_message(), "t.yaml:3:3: training.dataset: x");
    assert_value(cfg, "training.dataset", "[" BOOKS ", " WEB "]");
    tt_config_free(cfg);
    cfg = good_flags(2, flags);
    expect_two(cfg);
    assert_string_equal(tt_config_origin(cfg, TT_KEY(training.dataset)), "flag --training.dataset");
    tt_config_free(cfg);
}

static void what_is_written_reads_back(void **state)
{
    struct tt_config *cfg = good_text("training: {dataset: [{name: 'a, \"b\": c', dataset: text, dataset_path: 'x y'}, "
                                      "{name: 'null', dataset: kjv, weight: 1e-3}]}\nvalidation: {dataset: [kjv]}"),
                     *again;
    struct tt_text text = {0};
    json_t *json = tt_config_value_json(cfg, tt_config_row(TT_KEY(training.dataset)));
    char *compact = tt_json_text(json);

    tt_config_to_yaml(cfg, TT_CONFIG_PLAIN, &text);
    again = good_text(text.text);
    assert_string_equal(again->training.dataset.entry[0].name, "a, \"b\": c");
    assert_string_equal(again->training.dataset.entry[1].name, "null");
    assert_true(again->training.dataset.entry[1].weight == 1e-3);
    assert_true(again->validation.dataset.is_list && again->validation.dataset.n == 1);
    assert_string_equal(compact,
                        "[{\"name\":\"a, \\\"b\\\": c\",\"dataset\":\"text\",\"dataset_path\":\"x y\"},{\"name\":"
                        "\"null\",\"dataset\":\"kjv\",\"weight\":0.001}]");
    assert_int_equal(tt_config_adopt(again, TT_KEY(training.dataset), compact, "a run"), 0);
    assert_string_equal(again->training.dataset.entry[0].dataset_path, "x y");
    tt_config_free(cfg);
    tt_config_free(again);
    tt_text_release(&text);
    tt_free(compact);
    json_decref(json);
}

static void entries_without_a_name_are_called_by_their_files(void **state)
{
    struct tt_config *cfg = good_text("training: {dataset: [kjv, {dataset: text, dataset_path: a/books.d/}, "
                                      "{dataset: jsonl, dataset_path: /x/.web.jsonl.gz}]}");

    assert_string_equal(cfg->training.dataset.entry[0].name, "kjv");
    assert_string_equal(cfg->training.dataset.entry[1].name, "books");
    assert_string_equal(cfg->training.dataset.entry[2].name, ".web");
    tt_config_free(cfg);
}

static void validation_follows_a_mixture_set_by_set(void **state)
{
    struct tt_config *cfg = good_text("training: {dataset: [{dataset: kjv, weight: 3}, " BOOKS "]}");

    assert_value(cfg, "validation.dataset",
                 "[{name: kjv_validation, dataset: kjv_validation}, {name: books, dataset: text, dataset_path: "
                 "b/c.txt}]");
    assert_string_equal(tt_config_origin(cfg, TT_KEY(validation.dataset)), "training.dataset");
    tt_config_free(cfg);
    cfg = good_text("training: {dataset: text, dataset_path: a}");
    assert_value(cfg, "validation.dataset", "text");
    assert_value(cfg, "validation.dataset_path", "a");
    tt_config_free(cfg);
}

/* What a run writes down, its own rules accept. */
static void derived_sets_have_distinct_names(void **state)
{
    static const char *const lists[] = {"[kjv, kjv_validation]", "[kjv_validation, kjv]",
                                        "[kjv, {dataset: text, dataset_path: b/kjv_validation.txt}]",
                                        "[{name: kjv_validation, dataset: text, dataset_path: b/c.txt}, kjv]"};

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char *text = tt_format("training: {dataset: %s}", lists[i]);
        struct tt_config *cfg = good_text(text);
        const struct tt_datasets *sets = &cfg->validation.dataset;
        struct tt_text written = {0};

        assert_string_not_equal(sets->entry[0].name, sets->entry[1].name);
        tt_config_value_text(cfg, tt_config_row(TT_KEY(validation.dataset)), &written);
        tt_config_free(cfg);
        tt_free(text);
        text = tt_format("training: {dataset: %s}\nvalidation: {enable: true, dataset: %s}", lists[i], written.text);
        tt_config_free(good_text(text));
        tt_text_release(&written);
        tt_free(text);
    }
}

static const struct {
    const char *text, *message;
} faults[] = {
    {"training:\n  dataset: []\n", "t.yaml:2:12: training.dataset: the list is empty"},
    {"training:\n  dataset: {dataset: kjv}\n",
     "t.yaml:2:12: training.dataset: expected one of kjv, kjv_validation, text, jsonl, parquet, arrow, jsonl_sft, "
     "tokens, tokens_u16, found a mapping"},
    {"training:\n  dataset:\n  - kjv\n  - {dataset: kjv, wieght: 2}\n",
     "t.yaml:4:20: training.dataset: entry 2: unknown key 'wieght'\nhelp: did you mean 'weight'? the keys of an entry "
     "are name, dataset, dataset_path, text_field, weight"},
    {"training:\n  dataset:\n  - {weight: 2}\n",
     "t.yaml:3:5: training.dataset: entry 1: the key 'dataset' is missing\nhelp: it says what the entry is: kjv, text, "
     "jsonl, tokens, ..."},
    {"training: {dataset: [{dataset: kjv, weight: 0}]}",
     "t.yaml:1:45: training.dataset: entry 1: weight: 0 is out of range: 1e-09 to 1e+12"},
    {"training: {dataset: [{dataset: kjv, dataset: kjv}]}",
     "t.yaml:1:37: training.dataset: entry 1: duplicate key 'dataset'"},
    {"training: {dataset: [[kjv]]}", "t.yaml:1:22: training.dataset: entry 1: expected a mapping such as {dataset: "
                                     "text, dataset_path: FILE, weight: 1}, found a list"},
    {"training: {dataset: [{dataset: kjv}, {dataset: text}, {dataset: kjv}, {name: a, dataset: kjv}]}",
     "2 errors in the configuration\n"
     "t.yaml:1:38: training.dataset: entry 2: dataset 'text' needs dataset_path\n  help: titan downloads nothing; name "
     "the file or folder, or use the built-in dataset 'kjv'\n"
     "t.yaml:1:55: training.dataset: entry 3: another entry is called 'kjv' too\n  help: give each its own name: "
     "{name: WORD, ...}"},
    {"training:\n  dataset: [kjv]\n  dataset_path: x\n",
     "t.yaml:3:17: training.dataset_path: the path of one dataset is set, although there is a list of datasets\nhelp: "
     "each entry of the list has its own dataset_path"},
    {"validation: {dataset: [{dataset: kjv, weight: 2}]}",
     "t.yaml:1:24: validation.dataset: entry 1: the weight 2 has no meaning: every set is validated by itself"},
};

static void faults_have_their_place(void **state)
{
    for (int i = 0; i < COUNT(faults); i++)
        assert_string_equal(bad_text(faults[i].text), faults[i].message);
}

static void faults_of_a_flag_name_it(void **state)
{
    static const char *const open[] = {"training.dataset=[{dataset: kjv}"};
    static const char *const early[] = {"--training.dataset=[kjv}]"};
    static const char *const later[] = {"--training.dataset=[kjv,\n {]"};
    static const char *const unknown[] = {"--training.dataset=[kjv, {dataset: kvj}]"};
    static const char *const missing[] = {"--training.dataset=[kjv, {dataset: tokens}]"};

    assert_contains(bad_flags(1, open), "flag --training.dataset: YAML syntax: ");
    assert_contains(tt_error_message(), "(while parsing a flow sequence) at its end\n");
    assert_contains(bad_flags(1, early), "(while parsing a flow sequence) at character 5\n");
    assert_contains(bad_flags(1, later), "(while parsing a flow node) at character 9\n");
    assert_contains(bad_flags(1, unknown), "flag --training.dataset: entry 2: dataset: 'kvj' is not one of kjv, ");
    assert_contains(bad_flags(1, missing), "flag --training.dataset: entry 2: dataset 'tokens' needs dataset_path");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_is_the_same_from_files_and_flags),
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(entries_without_a_name_are_called_by_their_files),
        cmocka_unit_test(validation_follows_a_mixture_set_by_set),
        cmocka_unit_test(derived_sets_have_distinct_names),
        cmocka_unit_test(faults_have_their_place),
        cmocka_unit_test(faults_of_a_flag_name_it),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
