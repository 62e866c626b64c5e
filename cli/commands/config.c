/* SPDX-License-Identifier: MIT
 *
 * `titan config`: shows what a run would use and where each value came from, checks files, compares configurations, and
 * writes a file to start from. Without a file, it uses the built-in quick run, like `titan train`.
 */
#include "core/config/config.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/config/args.h"
#include "core/config/yaml.h"
#include "core/os/file.h"
#include "trainer/job/job.h"

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"origin", NULL, NULL, "show where each value came from"},
    {"no_files", NULL, NULL, "check: do not look for the files that the configuration names"},
    {"out", NULL, "FILE", "import: the YAML file to write, instead of standard output"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

/* Loads the files that --config and the words from number `first` on name (or the quick run, if there are none), and
 * the overrides. */
static int load(const struct tt_args *args, int first_word, struct tt_config **ret_config)
{
    bool files = args->n_words && strcmp(args->word[0], "check") == 0 && !tt_args_has(args, "no_files");

    return tt_cli_load_variant("config", args, &(struct tt_cli_variant){.first_file = first_word, .files = files},
                               ret_config);
}

static int show(const struct tt_args *args)
{
    struct tt_config *cfg = NULL;
    struct tt_model *model = NULL;
    struct tt_model_dims over;
    struct tt_text text = {0};
    int rc;

    tt_cli_install_log();
    TT_TRY(load(args, 1, &cfg));
    rc = tt_job_adopt_folder(cfg);
    if (rc == 0)
        rc = tt_job_adopt_vocabulary(cfg);
    over = tt_job_model_overrides(cfg);
    /* if a config.json cannot be read, the sizes in it stay null */
    if (rc < 0 || tt_job_adopt_family(cfg) < 0 ||
        tt_model_new(cfg->model.name, cfg->model.flavor, &over, cfg->model.hf_assets_path, &model) < 0)
        tt_note("the sizes of the model are not known: %s", tt_error_message());
    else
        TT_TRY(tt_job_resolve_model(cfg, model));
    if (tt_args_has(args, "json")) {
        rc = tt_cli_print_json(tt_config_to_json(cfg, tt_args_has(args, "origin")));
        goto out;
    }
    rc = 0;
    tt_config_to_yaml(cfg, tt_args_has(args, "origin") ? TT_CONFIG_ORIGINS : TT_CONFIG_PLAIN, &text);
    tt_print("%s", text.text);
    tt_text_release(&text);
out:
    tt_model_free(model);
    tt_config_free(cfg);
    return rc;
}

static int check(const struct tt_args *args)
{
    struct tt_config *cfg = NULL;
    bool is_json = tt_args_has(args, "json");
    int rc;

    tt_cli_install_log(); /* shows notes about keys that have no effect */
    rc = load(args, 1, &cfg);
    tt_config_free(cfg);
    if (is_json) {
        (void)tt_cli_print_json(rc < 0 ? json_pack("{s:b, s:s}", "ok", 0, "errors", tt_error_message())
                                       : json_pack("{s:b}", "ok", 1));
        return tt_error_exit_code(rc);
    }
    if (rc == 0)
        tt_print("ok\n");
    return rc;
}

/* Prints a line (or JSON object) for every key whose values differ. */
static int print_differences(const struct tt_config *a, const struct tt_config *b, bool is_json, bool with_origins)
{
    json_t *list = json_array();
    int rc = 0;

    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];
        const char *origin = tt_config_origin(b, row->id);
        struct tt_text from = {0}, to = {0};

        tt_config_value_text(a, row, &from);
        tt_config_value_text(b, row, &to);
        if (strcmp(from.text ? from.text : "", to.text ? to.text : "") != 0) {
            if (is_json)
                (void)json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:s}", "key", row->path, "from",
                                                            tt_config_value_json(a, row), "to",
                                                            tt_config_value_json(b, row), "origin", origin));
            else
                tt_print("%s: %s -> %s%s%s\n", row->path, from.size ? from.text : "\"\"", to.size ? to.text : "\"\"",
                         with_origins ? "  # " : "", with_origins ? origin : "");
        }
        tt_text_release(&from);
        tt_text_release(&to);
    }
    if (is_json)
        rc = tt_cli_print_json(json_incref(list));
    json_decref(list);
    return rc;
}

/* diff A B compares the files; diff [A] compares the defaults with the values that a run would use. */
static int diff(const struct tt_args *args)
{
    struct tt_config *a = NULL, *b = NULL;
    bool has_two = args->n_words == 3;
    int rc;

    if (args->n_words > 3)
        return tt_fail(TT_EUSAGE, "config diff takes one or two files, %d were given", args->n_words - 1);
    if (has_two && (args->n_overrides || tt_args_has(args, "config")))
        return tt_fail(TT_EUSAGE, "config diff of two files takes no --config and no overrides");
    TT_TRY(tt_config_new(&a));
    TT_TRY(tt_config_load(a, 1, (const char *[]){has_two ? args->word[1] : "builtin:defaults"}, 0, NULL));
    TT_TRY(load(args, has_two ? 2 : 1, &b));
    rc = print_differences(a, b, tt_args_has(args, "json"), tt_args_has(args, "origin"));
out:
    tt_config_free(a);
    tt_config_free(b);
    return rc;
}

/* Checks neither the model nor files; `config check` reports what is missing. */
static int import(const struct tt_args *args)
{
    const char *file = args->n_words == 2 ? args->word[1] : NULL, *to = tt_args_last(args, "out");
    struct tt_config_input input = {.text_name = to ? to : "stdout", .check = tt_job_check};
    struct tt_config *cfg = NULL;
    struct tt_text text = {0};
    char *toml = NULL;
    size_t size = 0;
    int rc = 0;

    if (!file || tt_args_has(args, "config"))
        return tt_fail(TT_EUSAGE, "config import takes one file\nhelp: titan config import X.toml --out X.yaml");
    tt_cli_install_log();
    rc = tt_file_read_any(file, TT_YAML_MAX_BYTES, &toml, &size);
    if (rc == TT_EDATA) /* the file does not exist, as for --config */
        rc = tt_fail(TT_EUSAGE, "%s", tt_error_message());
    TT_TRY(rc);
    TT_TRY(tt_config_import(file, toml, size, args->n_overrides, args->override, &text));
    TT_TRY(tt_config_new(&cfg));
    input.text = text.text;
    input.text_size = text.size;
    if (tt_config_read(cfg, &input) < 0)
        tt_warn("`titan config check` will refuse the result: %s", tt_error_message());
    if (to)
        rc = tt_file_replace(to, text.text, text.size);
    else
        tt_print("%s", text.text);
out:
    tt_config_free(cfg);
    tt_text_release(&text);
    tt_free(toml);
    return rc;
}

static int init(const struct tt_args *args)
{
    struct tt_config *cfg = NULL;
    struct tt_text text = {0};
    int rc = load(args, 1, &cfg); /* shows a run that gives results within a minute, from which the user can start */

    if (rc < 0)
        return rc;
    tt_config_to_yaml(cfg, TT_CONFIG_TEMPLATE, &text);
    tt_config_free(cfg);
    tt_print("%s", text.text);
    tt_text_release(&text);
    return 0;
}

static int run(int argc, char **argv)
{
    struct tt_config *cfg = NULL;
    struct tt_args *args = NULL;
    int rc = tt_args_parse(argc, argv, options, &args);

    if (rc < 0) {
        rc = load(args, args->n_words > 0, &cfg); /* reports the faults of both */
        tt_config_free(cfg);
    } else {
        rc = tt_args_has(args, "help") ? tt_command_help(&tt_command_config)
                                       : tt_command_run_verb(&tt_command_config, args);
    }
    tt_args_free(args);
    return rc < 0 ? tt_cli_fail(rc) : rc > 0 ? rc : tt_cli_finish();
}

static const struct tt_cli_verb verbs[] = {
    {"show", show, .arguments = "", .doc = "print the resolved configuration as YAML"},
    {"check", check, .arguments = "", .doc = "print ok, or every error at once"},
    {"diff", diff, .arguments = "", .doc = "compare two files, or a configuration with the defaults"},
    {"init", init, .arguments = "", .doc = "print a documented file with every key"},
    {"import", import, .arguments = "", .doc = "print a TOML or JSON file of torchtitan as YAML"},
    {0},
};

const struct tt_command tt_command_config = {
    .name = "config",
    .arguments = "show|check|diff|init|import [--config FILE]... [overrides]",
    .summary = "show, check or write a configuration",
    .usage = "usage: titan config show|check|diff|init|import [FILE...] [--section.key=value...]\n\n"
             "  titan config show --config my.yaml --origin\n"
             "  titan config init > my.yaml\n"
             "  titan config import debug_model.toml --out my.yaml\n\n",
    .options = options,
    .more = "\nWithout a file: the built-in quick run. Keys: titan-config(5).\n",
    .verbs = verbs,
    .main = run,
};
