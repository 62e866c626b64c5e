/* SPDX-License-Identifier: MIT
 *
 * Bad configurations: each error with its place, all of them at once, and hostile files that must do no harm.
 */
#include <stdio.h>

#include "config_help.h"
#include "core/config/yaml.h"
#include "core/math/rng.h"
#include "core/os/file.h"
#include "tests/help/log.h"

/* A file with one fault, and the whole message. */
static const struct {
    const char *text, *message;
} faults[] = {
    {"training:\n  stepz: 10\n", "t.yaml:2:3: unknown key 'training.stepz'\nhelp: did you mean 'training.steps'?"},
    {"training:\n  tensor_parallel_degree: 2\n", "t.yaml:2:3: unknown key 'training.tensor_parallel_degree'\n"
                                                 "help: did you mean 'parallelism.tensor_parallel_degree'?"},
    {"training:\n  warmup_stepz: 2\n",
     "t.yaml:2:3: unknown key 'training.warmup_stepz'\nhelp: did you mean 'lr_scheduler.warmup_steps'?"},
    {"model:\n  zzzzzzzzzz: 2\n",
     "t.yaml:2:3: unknown key 'model.zzzzzzzzzz'\nhelp: `titan config init` lists the keys of 'model'"},
    {"trainin:\n  steps: 10\n", "t.yaml:1:1: unknown section 'trainin'\nhelp: did you mean 'training'?"},
    {"qqqqqqqqqqqq:\n  steps: 10\n",
     "t.yaml:1:1: unknown section 'qqqqqqqqqqqq'\nhelp: `titan config init` lists all sections and keys"},
    {"lr: 1\n", "t.yaml:1:1: unknown section 'lr'\nhelp: did you mean 'optimizer.lr'?"},
    {"training:\n  steps: ten\n", "t.yaml:2:10: training.steps: expected an integer, found 'ten'"},
    {"training:\n  steps: \"10\"\n",
     "t.yaml:2:10: training.steps: expected an integer, found the text \"10\"\nhelp: write it without "
     "quotes"},
    {"training:\n  steps: [1]\n", "t.yaml:2:10: training.steps: expected an integer, found a list"},
    {"training:\n  steps: {a: 1}\n", "t.yaml:2:10: training.steps: expected an integer, found a mapping"},
    {"training:\n  steps:\n", "t.yaml:2:3: training.steps: expected an integer, found nothing"},
    {"training:\n  steps: 1.5\n", "t.yaml:2:10: training.steps: expected an integer, found '1.5'"},
    {"training:\n  seq_len: 0\n", "t.yaml:2:12: training.seq_len: 0 is out of range: 1 to 16777216"},
    {"training:\n  global_batch_size: 0\n",
     "t.yaml:2:22: training.global_batch_size: 0 is out of range: -1, or at least 1"},
    {"optimizer: {lr: fast}\n", "t.yaml:1:17: optimizer.lr: expected a number, found 'fast'"},
    {"optimizer: {beta1: 1.0}\n", "t.yaml:1:20: optimizer.beta1: 1.0 is out of range: 0 to 0.9999999"},
    {"lr_scheduler: {decay_ratio: 1.01}\n",
     "t.yaml:1:29: lr_scheduler.decay_ratio: 1.01 is out of range: 0 to 1, or null"},
    {"lr_scheduler: {decay_type: cosin}\n",
     "t.yaml:1:28: lr_scheduler.decay_type: 'cosin' is not one of linear, sqrt, cosine\nhelp: did you mean 'cosine'?"},
    {"checkpoint:\n  enable: yes\n",
     "t.yaml:2:11: checkpoint.enable: expected true or false, found 'yes'\nhelp: write true"},
    {"checkpoint:\n  exclude_from_loading: [model]\n",
     "t.yaml:2:26: checkpoint.exclude_from_loading: 'model' is not one of "
     "optimizer, lr_scheduler, dataloader, train_state"},
    {"checkpoint:\n  exclude_from_loading: optimizer\n",
     "t.yaml:2:25: checkpoint.exclude_from_loading: expected a list, found 'optimizer'"},
    {"job: {dump_folder: \"\"}\n", "t.yaml:1:20: job.dump_folder: must not be empty"},
    {"job: {dump_folder: null}\n", "t.yaml:1:20: job.dump_folder: expected text, found 'null'"},
    {"parallelism:\n  fsdp_wrap_policy: layers.*\n",
     "t.yaml:2:21: parallelism.fsdp_wrap_policy: 'layers.*' is not one of block, model, param, size:<bytes>, [regular "
     "expressions]\nhelp: regular expressions go in a list: [\"layers.*\"]"},
    {"parallelism:\n  fsdp_wrap_policy: []\n", "t.yaml:2:21: parallelism.fsdp_wrap_policy: the list is empty"},
    {"parallelism:\n  fsdp_wrap_policy: [a, [b]]\n",
     "t.yaml:2:25: parallelism.fsdp_wrap_policy: expected a regular expression in the list, found a list"},
    {"training: 5\n", "t.yaml:1:11: training: expected a mapping of keys, found a value"},
    {"compile: true\n", "t.yaml:1:10: compile: expected a mapping of keys, found a value"},
    {"training:\n  steps: \"\\e[2J\"\n", "t.yaml:2:10: training.steps: expected an integer, found the text \"?[2J\""},
    {"- training\n", "t.yaml:1:1: expected a mapping of sections, such as 'training:'"},
    {"training:\n  steps: 1\n  seq_len: 2\n  steps: 3\n",
     "t.yaml:4:3: duplicate key 'training.steps' (first at line 2)"},
    {"training:\n  steps: 1\ntraining:\n  steps: 3\n", "t.yaml:3:1: duplicate key 'training' (first at line 1)"},
    {"debug: {seed: 1}\ntraining:\n  seed: 1\n", "t.yaml:3:3: duplicate key 'training.seed' (first at line 1)"},
    {"training:\n  seq-len: 1\n  seq_len: 1\n", "t.yaml:3:3: duplicate key 'training.seq_len' (first at line 2)"},
    {"training:\n\tsteps: 3\n", "t.yaml:2:1: a tab is used for indentation; YAML needs spaces"},
    {"training:\n  steps: 3\n \t seq_len: 3\n", "t.yaml:3:2: a tab is used for indentation; YAML needs spaces"},
    {"training:\n  dataset: [kjv", /* the last line has no end */
     "t.yaml:2:16: YAML syntax: did not find expected ',' or ']' (while parsing a flow sequence)"},
    {"training: {steps: 3\n",
     "t.yaml:2:1: YAML syntax: did not find expected ',' or '}' (while parsing a flow mapping that began at line 1)"},
    {"training:\n  steps: 3\n---\ntraining:\n", "t.yaml:3:1: a second document begins here; one is expected"},
    {"training:\n  steps: *x\n", "t.yaml:2:10: there is no anchor '&x' before this alias"},
    {"training: &a\n  steps: *a\n", "t.yaml:2:10: an alias inside its own anchor"},
    {"[1]: 2\n", "t.yaml:1:1: a key must be a word, not a list or a mapping"},
    {"job: {description: \"a\\0b\"}\n", "t.yaml:1:20: a value must not contain a 0 byte"},
    {"job:\n  description: \x01\n", "t.yaml:2:16: YAML syntax: control characters are not allowed"},
    {"job:\n  description: \xff\n", "t.yaml:2:16: YAML syntax: invalid leading UTF-8 octet"},
    /* rules between keys */
    {"training:\n  dataset: c4\n",
     "t.yaml:2:12: training.dataset: dataset 'jsonl' needs training.dataset_path\n"
     "help: titan downloads nothing; name the file or folder, or use the built-in dataset 'kjv'"},
    {"training:\n  dataset_path: x.txt\n",
     "t.yaml:2:17: training.dataset_path: dataset 'kjv' is built in and would not read training.dataset_path "
     "'x.txt'\nhelp: set training.dataset to text, jsonl or tokens"},
    {"validation:\n  enable: true\n  dataset: text\n",
     "t.yaml:3:12: validation.dataset: dataset 'text' needs validation.dataset_path\n"
     "help: titan downloads nothing; name the file or folder, or use the built-in dataset 'kjv'"},
    {"training: {dtype: bfloat16}", "t.yaml:1:19: training.dtype: weights in bfloat16 compute in bfloat16\nhelp: set "
                                    "training.mixed_precision_param=bfloat16"},
    {"training:\n  local_batch_size: 4\n  global_batch_size: 10\n",
     "t.yaml:3:22: training.global_batch_size: global_batch_size 10 is not a multiple of local_batch_size 4\nhelp: set "
     "training.global_batch_size=8, or training.local_batch_size=2, which divides 10"},
    {"training:\n  local_batch_size: 4096\n  global_batch_size: 8\n",
     "t.yaml:3:22: training.global_batch_size: global_batch_size 8 is not a multiple of local_batch_size 4096\nhelp: a "
     "step has 8 sequences: set training.local_batch_size=8, or a training.global_batch_size of at least 4096"},
    {"model: {flavor: hf}\n",
     "t.yaml:1:17: model.flavor: flavor 'hf' needs model.hf_assets_path, the folder that holds config.json"},
    {"checkpoint:\n  initial_load_in_hf: true\n",
     "t.yaml:2:23: checkpoint.initial_load_in_hf: initial_load_in_hf needs checkpoint.initial_load_path or "
     "model.hf_assets_path, the folder that holds the weights"},
    {"checkpoint:\n  initial_load_extend_vocabulary: true\n",
     "t.yaml:2:35: checkpoint.initial_load_extend_vocabulary: initial_load_extend_vocabulary has no effect without "
     "weights to start from\nhelp: set checkpoint.initial_load_path, or checkpoint.initial_load_in_hf for those of "
     "model.hf_assets_path"},
    {"checkpoint:\n  initial_load_leave_out: [rotary]\n",
     "t.yaml:2:27: checkpoint.initial_load_leave_out: initial_load_leave_out has no effect without weights to start "
     "from\nhelp: set checkpoint.initial_load_path, or checkpoint.initial_load_in_hf for those of "
     "model.hf_assets_path"},
    {"checkpoint:\n  load_step: 3\n",
     "t.yaml:2:14: checkpoint.load_step: load_step has no effect while checkpoint.enable is false\nhelp: set "
     "checkpoint.enable=true"},
    {"model:\n  n_heads: 6\n  n_kv_heads: 4\n",
     "t.yaml:2:12: model.n_heads: n_heads 6 is not a multiple of n_kv_heads 4\nhelp: set model.n_kv_heads to 1, 2, "
     "3 or 6"},
    {"model:\n  rope_scaling: {low_freq_factor: 4, high_freq_factor: 1}\n",
     "t.yaml:2:35: model.rope_scaling.low_freq_factor: "
     "rope_scaling.low_freq_factor 4 must be less than high_freq_factor 1"},
    /* torchtitan's keys */
    {"model:\n  converters: [float8]\n",
     "t.yaml:2:15: model.converters is a torchtitan key that titan does not have: titan does not convert models\nhelp: "
     "leave it empty; training.mixed_precision_param chooses the type of computation"},
    {"optimizer:\n  early_step_in_backward: true\n",
     "t.yaml:2:27: optimizer.early_step_in_backward is a torchtitan key that titan does not have: the gradient norm is "
     "clipped over all parameters before the update\nhelp: leave it out"},
    {"memory_estimation: {enable: true}\n",
     "t.yaml:1:29: memory_estimation.enable is a torchtitan key that titan does not have: estimating is a separate "
     "command\nhelp: `titan estimate --config FILE --ranks N`"},
};

static void every_fault_is_reported_with_its_place(void **state)
{
    int n_wrong = 0;

    for (int i = 0; i < COUNT(faults); i++) {
        const char *message = bad_text(faults[i].text);

        if (strcmp(message, faults[i].message) != 0) {
            print_error("found  %s\nwanted %s\n", message, faults[i].message);
            n_wrong++;
        }
    }
    assert_int_equal(n_wrong, 0);
}

static void all_errors_come_at_once(void **state)
{
    char folder[] = "/tmp/titan-test-XXXXXX", *path;
    const char *const text = "training:\n  stepz: 1\n  seq_len: -1\noptimizer: [\n";
    struct tt_config *cfg = NULL;
    struct tt_text expect = {0};

    assert_non_null(mkdtemp(folder));
    path = tt_format("%s/a.yaml", folder);
    assert_int_equal(tt_file_replace(path, text, strlen(text)), 0);
    assert_int_equal(tt_config_new(&cfg), 0);
    assert_int_equal(tt_config_load(cfg, 2, (const char *const[]){path, "/tmp/titan-test-no/such.yaml"}, 1,
                                    (const char *const[]){"--optimizer.lr=x"}),
                     TT_EUSAGE);
    tt_text_add(&expect,
                "5 errors in the configuration\n"
                "%s:5:1: YAML syntax: did not find expected node content (while parsing a flow node)\n"
                "%s:2:3: unknown key 'training.stepz'\n  help: did you mean 'training.steps'?\n"
                "%s:3:12: training.seq_len: -1 is out of range: 1 to 16777216\n"
                "--config: cannot open '/tmp/titan-test-no/such.yaml': no such file\n"
                "flag --optimizer.lr: expected a number, found 'x'",
                path, path, path);
    assert_string_equal(tt_error_message(), expect.text);
    tt_config_free(cfg);
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_text_release(&expect);
    tt_free(path);
}

static void missing_file_names_a_similar_one(void **state)
{
    const char *const files[] = {TT_SOURCE_DIR "/configs/debug.yml"};
    struct tt_config *cfg = NULL;

    assert_int_equal(tt_config_new(&cfg), 0);
    assert_int_equal(tt_config_load(cfg, 1, files, 0, NULL), TT_EUSAGE);
    assert_contains(tt_error_message(), "/debug.yml': no such file\nhelp: did you mean '");
    assert_contains(tt_error_message(), "/configs/debug.yaml'?");
    tt_config_free(cfg);
}

static void a_bad_value_silences_its_rules(void **state)
{
    assert_null(strstr(bad_text("training: {dataset: c4, dataset_path: []}"), "needs"));
}

static void hundreds_of_errors_fit(void **state)
{
    struct tt_text text = {0};
    const char *message;

    tt_text_add(&text, "training:\n");
    for (int i = 0; i < 1000; i++)
        tt_text_add(&text, "  unknown_key_number_%d: 1\n", i);
    message = bad_text(text.text);
    assert_contains(message, "1000 errors in the configuration\n");
    assert_contains(message, "\nand ");
    assert_string_equal(message + strlen(message) - 5, " more");
    tt_text_release(&text);
}

/* Every key with values that are not available yet. */
static void values_not_built_yet_say_so(void **state)
{
    static const char *const flags[] = {"checkpoint.filter=node_leader"};

    for (int i = 0; i < COUNT(flags); i++) {
        assert_contains(bad_flags(1, &flags[i]), "which is not built yet\nhelp: what works now: ");
        assert_null(strchr(strchr(tt_error_message(), '\n') + 1, '\n'));
    }
}

static void an_inactive_key_says_that_it_has_no_effect_unless_it_is_off(void **state)
{
    static const char neutral[] =
        "job: {custom_config_module: \"\"}\n"
        "model: {converters: [], print_after_conversion: false}\n"
        "training: {enable_cpu_offload: false, gc_freq: 50}\n"
        "parallelism: {enable_async_tensor_parallel: false, pipeline_parallel_schedule: 1F1B}\n"
        "optimizer: {early_step_in_backward: false, implementation: fused}\n"
        "dataloader: {num_prefetch_batches: 2, streaming_shuffle_buffer_size: 1000}\n"
        "compile: {enable: False, components: [model, loss]}\n"
        "quantize: {linear: {float8: {filter_fqns: [output]}}}\n"
        "metrics: {enable_wandb: false}\n"
        "float8:\n"
        "comm: {trace_buf_size: 20000}\n";

    log_catch();
    tt_config_free(good_text(neutral));
    assert_int_equal(caught.notes, 0);
    tt_config_free(good_text("compile: {enable: true}\noptimizer: {implementation: foreach}\n"));
    assert_int_equal(caught.notes, 2);
    assert_string_equal(caught.last,
                        "t.yaml:2:29: optimizer.implementation has no effect: there is one implementation, in "
                        "one pass over the shards");
    tt_config_free(good_flags(1, (const char *const[]){"--compile.enable"}));
    assert_int_equal(caught.notes, 3);
    tt_config_free(good_text("metrics: {enable_wandb: true}\n"));
    assert_int_equal(caught.notes, 4);
    tt_config_free(good_text("debug: {seed: null}\n"));
    assert_int_equal(caught.notes, 5);
    assert_string_equal(caught.last, "debug.seed: null means the default, 42: a run can always be repeated");
    tt_config_free(good_flags(1, (const char *const[]){"--training.seed=null"}));
    assert_int_equal(caught.notes, 6);
    (void)bad_text("compile: {enable: true}\njob: {x: 1}\n"); /* only its errors are reported */
    assert_int_equal(caught.notes, 6);
    assert_int_equal(caught.warnings, 0);
    log_release();
}

static void every_inactive_key_is_consistent(void **state)
{
    for (int i = 0; i < tt_config_n_inactives; i++) {
        assert_null(tt_config_row_find(tt_config_inactives[i].path));
        assert_true(strlen(tt_config_inactives[i].why) > 8);
        assert_true(tt_config_inactives[i].kind != TT_INACTIVE_IDLE || !tt_config_inactives[i].neutral ||
                    strchr(tt_config_inactives[i].neutral, 'f'));
    }
}

static void differences_from_torchtitan_are_differences(void **state)
{
    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];

        assert_int_equal(!row->theirs, !row->why);
        if (row->theirs)
            assert_string_not_equal(row->preset ? row->preset : "null", row->theirs);
    }
}

static void hostile_files_are_refused(void **state)
{
    struct tt_text text = {0};

    for (int i = 0; i < 3000; i++)
        tt_text_add(&text, "[");
    assert_string_equal(bad_text(text.text), "t.yaml:1:17: nested too deeply: 16 levels are the limit");
    tt_text_release(&text);

    tt_text_add(&text, "a0: &a0 [x,x,x,x,x,x,x,x]\n"); /* the "billion laughs" attack */
    for (int i = 1; i < 40; i++) {
        tt_text_add(&text, "a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i, i, i - 1, i - 1, i - 1, i - 1,
                    i - 1, i - 1, i - 1, i - 1);
    }
    assert_contains(bad_text(text.text), "too many aliases: 256 are the limit");
    tt_text_release(&text);

    for (int i = 0; i < 30000; i++)
        tt_text_add(&text, "k%d: 1\n", i);
    assert_contains(bad_text(text.text), "too many values: 20000 are the limit");
    tt_text_release(&text);

    while (text.size <= (1u << 20))
        tt_text_add(&text, "# a comment of some length that says nothing at all\n");
    assert_string_equal(bad_text(text.text), "t.yaml:1:1: the file is larger than 1 MiB; this is not a configuration");
    tt_text_release(&text);
}

static void endless_files_are_refused(void **state)
{
    const char *const files[] = {"/dev/zero"};
    struct tt_config *cfg = NULL;

    assert_int_equal(tt_config_new(&cfg), 0);
    assert_int_equal(tt_config_load(cfg, 1, files, 0, NULL), TT_EUSAGE);
    assert_contains(tt_error_message(), "is too large: it has more than 1.00 MiB");
    assert_int_equal(tt_config_load(cfg, 1, (const char *const[]){"/tmp"}, 0, NULL), TT_EUSAGE);
    assert_contains(tt_error_message(), "it is a folder");
    tt_config_free(cfg);
}

static void aliases_within_limits_work(void **state)
{
    struct tt_config *cfg = good_text("training: {seq_len: &len 128}\nvalidation: {seq_len: *len}\n");

    assert_int_equal(cfg->validation.seq_len, 128);
    tt_config_free(cfg);
}

static uint64_t below(const struct tt_rng *rng, uint64_t index, uint64_t limit)
{
    return tt_rng_bits(rng, index) % limit;
}

/* Any bytes give a configuration or a message, never a crash. Good files with a few changed bytes reach deeper into the
 * parser than random bytes do. */
static void random_bytes_do_no_harm(void **state)
{
    struct tt_rng rng = tt_rng_make(3, "config fuzz");
    struct tt_text text = {0};
    struct tt_config *cfg = good_text("");

    tt_config_to_yaml(cfg, TT_CONFIG_PLAIN, &text);
    tt_config_free(cfg);
    for (uint64_t round = 0; round < 1500; round++) {
        char *copy = tt_strndup(text.text, text.size);
        size_t size = round % 3 ? text.size : 1 + below(&rng, round * 64, 300);
        int rc = 0;

        for (uint64_t i = 1; i < 16; i++)
            copy[below(&rng, round * 64 + i, size)] = (char)below(&rng, round * 64 + 16 + i, 256);
        for (size_t i = 0; round % 3 == 0 && i < size; i++)
            copy[i] = (char)below(&rng, round * 1024 + i, round % 2 ? 256 : 128);
        assert_int_equal(tt_config_new(&cfg), 0);
        rc = load_text(cfg, copy, size);
        assert_true(rc == 0 || (rc == TT_EUSAGE && *tt_error_message()));
        tt_config_free(cfg);
        copy[size - 1] = 0;
        tt_config_free(from_flags(1, (const char *const[]){copy}, &rc));
        tt_free(copy);
    }
    tt_text_release(&text);
}

/* A file in torchtitan's format, damaged at random, gives a tree or a message, never a crash. */
static void damaged_toml_does_no_harm(void **state)
{
    static const char good[] =
        "# a file\n[job]\ndescription = \"a \\u00e9 \\n b\"\n[model]\nname = 'llama3'\nconverters = [\n  "
        "\"a\", # one\n  'b',\n]\n[a.b.\"c d\"]\nx = {y = 1, z = [1, [2, 3]], w.v = true}\n[training]\nsteps "
        "= 1_000\ntext = \"\"\"\nlong \\\n   line\"\"\"\n";
    struct tt_rng rng = tt_rng_make(5, "toml fuzz");

    for (uint64_t round = 0; round < 20000; round++) {
        size_t size = round % 4 || !round ? sizeof good - 1 : 1 + below(&rng, round * 32, sizeof good - 1);
        char *copy = tt_strndup(good, size);
        struct tt_yaml_doc doc = {0};
        struct tt_text why = {0};
        int line = 0, column = 0;

        for (uint64_t i = 1; round && i < 1 + round % 8; i++)
            copy[below(&rng, round * 32 + i, size)] = (char)below(&rng, round * 32 + 16 + i, round % 2 ? 256 : 128);
        if (tt_toml_parse(copy, size, &doc, &line, &column, &why))
            assert_true(doc.root && doc.root->kind == TT_YAML_MAP);
        else
            assert_true(round > 0 && why.size && line >= 1 && column >= 1);
        (void)tt_toml_is_likely(copy, size);
        tt_yaml_release(&doc);
        tt_text_release(&why);
        tt_free(copy);
    }
}

static void toml_escapes_are_characters(void **state)
{
    static const char text[] = "text = \"\\u0041\\u00e9\\u20ac\\U0001F600\"\n";
    struct tt_yaml_doc doc = {0};
    struct tt_text why = {0};
    int line = 0, column = 0;

    assert_true(tt_toml_parse(text, sizeof text - 1, &doc, &line, &column, &why));
    assert_string_equal(doc.root->item[0]->text, "A\u00e9\u20ac\U0001F600");
    tt_yaml_release(&doc);
    tt_text_release(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fault_is_reported_with_its_place),
        cmocka_unit_test(all_errors_come_at_once),
        cmocka_unit_test(missing_file_names_a_similar_one),
        cmocka_unit_test(a_bad_value_silences_its_rules),
        cmocka_unit_test(hundreds_of_errors_fit),
        cmocka_unit_test(values_not_built_yet_say_so),
        cmocka_unit_test(an_inactive_key_says_that_it_has_no_effect_unless_it_is_off),
        cmocka_unit_test(every_inactive_key_is_consistent),
        cmocka_unit_test(differences_from_torchtitan_are_differences),
        cmocka_unit_test(hostile_files_are_refused),
        cmocka_unit_test(endless_files_are_refused),
        cmocka_unit_test(aliases_within_limits_work),
        cmocka_unit_test(random_bytes_do_no_harm),
        cmocka_unit_test(damaged_toml_does_no_harm),
        cmocka_unit_test(toml_escapes_are_characters),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
