/* SPDX-License-Identifier: MIT
 *
 * Command lines: every form of an override, and a command's own options.
 */
#include "config_help.h"
#include "core/config/args.h"

/* One or two tokens, and the value that the key must have after them. */
static const struct {
    const char *token[3], *path, *value;
} forms[] = {
    {{"--training.steps=5"}, "training.steps", "5"},
    {{"--training.steps", "5"}, "training.steps", "5"},
    {{"training.steps=5"}, "training.steps", "5"},
    {{"--training.seq-len=64"}, "training.seq_len", "64"},
    {{"training.seq-len=64"}, "training.seq_len", "64"},
    {{"--lr-scheduler.warmup-steps", "3"}, "lr_scheduler.warmup_steps", "3"},
    {{"--training.global_batch_size", "-1"}, "training.global_batch_size", "-1"},
    {{"--training.steps=2_000"}, "training.steps", "2000"},
    {{"--training.steps=1e3"}, "training.steps", "1000"},
    {{"--optimizer.lr=1e-4"}, "optimizer.lr", "0.0001"},
    {{"--optimizer.lr", "3E-5"}, "optimizer.lr", "3e-5"},
    {{"--optimizer.lr=.5"}, "optimizer.lr", "0.5"},
    {{"--optimizer.lr=1"}, "optimizer.lr", "1.0"},
    {{"--checkpoint.enable"}, "checkpoint.enable", "true"},
    {{"--checkpoint.enable", "true"}, "checkpoint.enable", "true"},
    {{"--checkpoint.enable=yes"}, "checkpoint.enable", "true"},
    {{"--checkpoint.enable=ON"}, "checkpoint.enable", "true"},
    {{"checkpoint.enable=1"}, "checkpoint.enable", "true"},
    {{"--dataloader.shuffle=false"}, "dataloader.shuffle", "false"},
    {{"--dataloader.shuffle", "false"}, "dataloader.shuffle", "false"},
    {{"--dataloader.shuffle", "0"}, "dataloader.shuffle", "false"},
    {{"--no-dataloader.shuffle"}, "dataloader.shuffle", "false"},
    {{"--no_dataloader.shuffle"}, "dataloader.shuffle", "false"},
    {{"--dataloader.no-shuffle"}, "dataloader.shuffle", "false"},
    {{"--dataloader.no_shuffle"}, "dataloader.shuffle", "false"},
    {{"--model.tie_embeddings"}, "model.tie_embeddings", "true"},
    {{"--model.no-tie-embeddings"}, "model.tie_embeddings", "false"},
    {{"--model.tie_embeddings=null"}, "model.tie_embeddings", "null"},
    {{"--lr_scheduler.decay_ratio=null"}, "lr_scheduler.decay_ratio", "null"},
    {{"--job.description="}, "job.description", ""},
    {{"--job.description=a=b c"}, "job.description", "a=b c"},
    {{"--checkpoint.exclude_from_loading=optimizer,lr_scheduler"},
     "checkpoint.exclude_from_loading",
     "[\"optimizer\",\"lr_scheduler\"]"},
    {{"--checkpoint.exclude_from_loading", "[optimizer, dataloader]"},
     "checkpoint.exclude_from_loading",
     "[\"optimizer\",\"dataloader\"]"},
    {{"--checkpoint.exclude_from_loading=[]"}, "checkpoint.exclude_from_loading", "[]"},
    {{"--checkpoint.exclude_from_loading=dataloader"}, "checkpoint.exclude_from_loading", "[\"dataloader\"]"},
    {{"--parallelism.fsdp_engine=fsdp2"}, "parallelism.fsdp_engine", "eager"},
    {{"--parallelism.reshard_after_forward_mode=never"}, "parallelism.fsdp_reshard_after_forward", "never"},
    {{"--parallelism.fsdp_reshard_after_forward=true"}, "parallelism.fsdp_reshard_after_forward", "always"},
    {{"--parallelism.fsdp_reshard_after_forward", "false"}, "parallelism.fsdp_reshard_after_forward", "never"},
    {{"--parallelism.memory_limit=80GiB"}, "parallelism.memory_limit", "80GiB"},
    {{"--parallelism.memory_limit=1.5k"}, "parallelism.memory_limit", "1536"},
    {{"--parallelism.memory_limit=1000"}, "parallelism.memory_limit", "1000"},
    {{"--parallelism.threads_per_rank=auto"}, "parallelism.threads_per_rank", "auto"},
    {{"--parallelism.threads_per_rank=0"}, "parallelism.threads_per_rank", "auto"},
    {{"--activation_checkpoint.selective_ac_option=op"}, "activation_checkpoint.selective_ac_option", "op"},
    {{"--model.rope_scaling.factor=8"}, "model.rope_scaling.factor", "8.0"},
    {{"--model.rope-scaling.original-max", "8192"}, "model.rope_scaling.original_max", "8192"},
    {{"--model.rope_scaling=null"}, "model.rope_scaling.factor", "null"},
    {{"--training.seed=7"}, "debug.seed", "7"},
};

static void every_form_of_an_override_works(void **state)
{
    for (int i = 0; i < COUNT(forms); i++) {
        const char *tokens[4] = {"--metrics.log_freq=9", forms[i].token[0], forms[i].token[1], NULL};
        int n = forms[i].token[1] ? 3 : 2;
        struct tt_config *cfg;

        tokens[n++] = "debug.check_plan=true"; /* the next option is still read */
        cfg = good_flags(n, tokens);
        assert_value(cfg, forms[i].path, forms[i].value);
        assert_value(cfg, "metrics.log_freq", "9");
        assert_true(cfg->debug.check_plan);
        tt_config_free(cfg);
    }
}

static void lists_split_outside_of_brackets(void **state)
{
    static const char *const flags[] = {"--parallelism.fsdp_wrap_policy=[layers\\.\\d{1,3}\\..*, 'a,b', x]"};

    struct tt_config *cfg;
    int rc;

    cfg = from_flags(1, flags, &rc);
    assert_non_null(cfg);
    assert_value(cfg, "parallelism.fsdp_wrap_policy", "[\"layers\\.\\d{1,3}\\..*\",\"a,b\",\"x\"]");
    tt_config_free(cfg);
}

static const struct {
    const char *token[2], *message;
} bad[] = {
    {{"--training.steps=x"}, "flag --training.steps: expected an integer, found 'x'"},
    {{"--training.steps"}, "flag --training.steps: needs a value"},
    {{"--training.steps", "--optimizer.lr=1"}, "flag --training.steps: needs a value"},
    {{"--training.steps=0"}, "flag --training.steps: 0 is out of range: at least 1"},
    {{"--training.stepz", "10"},
     "flag --training.stepz: unknown key 'training.stepz'\nhelp: did you mean 'training.steps'?"},
    {{"--training.tensor_parallel_degree=2"},
     "flag --training.tensor_parallel_degree: unknown key 'training.tensor_parallel_degree'\nhelp: did you mean "
     "'parallelism.tensor_parallel_degree'?"},
    {{"steps=3"}, "flag --steps: unknown key 'steps'\nhelp: did you mean 'training.steps' or 'validation.steps'?"},
    {{"--training=3"}, "flag --training: 'training' is a section; set its keys one by one"},
    {{"--no-training.steps"},
     "flag --no_training.steps: unknown key 'no_training.steps'\nhelp: did you mean 'training.steps'?"},
    {{"--checkpoint.enable=maybe"}, "flag --checkpoint.enable: expected true or false, found 'maybe'"},
    {{"--lr_scheduler.decay_type=cosin"},
     "flag --lr_scheduler.decay_type: 'cosin' is not one of linear, sqrt, cosine\nhelp: did you mean 'cosine'?"},
    {{"--activation_checkpoint.mode=memory_budget"},
     "flag --activation_checkpoint.mode: 'memory_budget' is a torchtitan value that titan does not support: "
     "torch.compile chooses what to keep there, and titan has no compiler\n"
     "help: use selective with selective_ac_option 'op', or full; `titan estimate` prints what each needs"},
    {{"--parallelism.reshard_after_forward_mode=nevr"},
     "flag --parallelism.reshard_after_forward_mode: 'nevr' is not one of default, always, never, last_layer, auto, an "
     "integer, [regular expressions]\nhelp: did you mean 'never'?"},
    {{"--parallelism.memory_limit=lots"},
     "flag --parallelism.memory_limit: expected a size such as 80GiB, found 'lots'"},
    {{"--job.description=\xff"}, "flag --job.description: the text is not valid UTF-8"},
    {{"--model.hf_assets_path="}, "flag --model.hf_assets_path: must not be empty; null means none"},
    {{"word"}, "command line: 'word' is not an override such as --training.steps=100"},
};

static void bad_overrides_say_what_is_wrong(void **state)
{
    for (int i = 0; i < COUNT(bad); i++)
        assert_string_equal(bad_flags(bad[i].token[1] ? 2 : 1, bad[i].token), bad[i].message);
}

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"origin", NULL, NULL, "show origins"},
    {"max_size", NULL, "BYTES", "a size"},
    TT_OPTION_HELP,
    {NULL, NULL, NULL, NULL},
};

static struct tt_args *parse(int n, const char *const *tokens, int *rc)
{
    struct tt_args *args = NULL;

    *rc = tt_args_parse(n, (char **)(uintptr_t)tokens, options, &args);
    if (*rc < 0) {
        assert_true(args && args->n_errors > 0);
        tt_args_free(args);
        return NULL;
    }
    return args;
}

static void options_words_and_overrides_are_told_apart(void **state)
{
    static const char *const tokens[] = {"show",
                                         "--config",
                                         "a.yaml",
                                         "--training.steps",
                                         "5",
                                         "--job.config_file=b.yaml",
                                         "optimizer.lr=1",
                                         "--origin",
                                         "x.yaml",
                                         "--max-size=3",
                                         "--checkpoint.enable",
                                         "y",
                                         "--",
                                         "--config",
                                         "a.b=c"};
    struct tt_args *args;
    int rc;

    args = parse(COUNT(tokens), tokens, &rc);
    assert_int_equal(rc, 0);
    assert_true(tt_args_has(args, "origin") && !tt_args_has(args, "help"));
    assert_string_equal(tt_args_value(args, "config", 0), "a.yaml");
    assert_string_equal(tt_args_value(args, "config", 1), "b.yaml");
    assert_null(tt_args_value(args, "config", 2));
    assert_string_equal(tt_args_last(args, "config"), "b.yaml");
    assert_string_equal(tt_args_last(args, "max_size"), "3");
    assert_int_equal(args->n_overrides, 5);
    assert_string_equal(args->override[0], "--training.steps");
    assert_string_equal(args->override[1], "5");
    assert_string_equal(args->override[2], "optimizer.lr=1");
    assert_string_equal(args->override[4], "y");
    assert_int_equal(args->n_words, 4);
    assert_string_equal(args->word[0], "show");
    assert_string_equal(args->word[1], "x.yaml");
    assert_string_equal(args->word[2], "--config");
    assert_string_equal(args->word[3], "a.b=c");
    tt_args_free(args);
}

static void bad_options_are_refused_together(void **state)
{
    static const char *const tokens[] = {"--confg", "--steps=3", "-x", "--origin=1", "--max_size"};
    int rc;

    assert_null(parse(COUNT(tokens), tokens, &rc));
    assert_int_equal(rc, TT_EUSAGE);
    assert_string_equal(tt_error_message(),
                        "5 errors in the command line\n"
                        "command line: unknown option '--confg'\n  help: did you mean '--config'?\n"
                        "command line: unknown option '--steps'\n"
                        "  help: did you mean 'training.steps' or 'validation.steps'?\n"
                        "command line: unknown option '-x'\n  help: options begin with two dashes; --help lists "
                        "them\n"
                        "command line: --origin takes no value\n"
                        "command line: --max_size needs a value: --max_size BYTES");
}

static void help_is_an_option_of_two_names(void **state)
{
    static const char *const tokens[] = {"-h"};
    struct tt_text help = {0};
    struct tt_args *args;
    int rc;

    args = parse(1, tokens, &rc);
    assert_int_equal(rc, 0);
    assert_true(tt_args_has(args, "help"));
    tt_args_help(options, &help);
    assert_contains(help.text, "--max-size BYTES");
    tt_text_release(&help);
    tt_args_free(args);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_of_an_override_works),
        cmocka_unit_test(lists_split_outside_of_brackets),
        cmocka_unit_test(bad_overrides_say_what_is_wrong),
        cmocka_unit_test(options_words_and_overrides_are_told_apart),
        cmocka_unit_test(bad_options_are_refused_together),
        cmocka_unit_test(help_is_an_option_of_two_names),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
