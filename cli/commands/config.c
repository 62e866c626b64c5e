/* SPDX-License-Identifier: MIT
 *
 * `titan config`: shows what a run would use and where each value came from, checks files, compares configurations, and
 * writes a file to start from. Without a file it uses the built-in quick run, as `titan train` does.
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

const struct tt_option tt_config_options[] = {
    TT_OPTION_CONFIG,
    {"origin", NULL, NULL, "show where each value came from"},
    {"no_files", NULL, NULL, "check: do not look for the files that the configuration names"},
    {"out", NULL, "FILE", "import: the YAML file to write, instead of standard output"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {NULL, NULL, NULL, NULL},
};

/* Loads the files of --config and of words (from the first-th), or fallback if there are none, and the overrides. */
static int load(const struct tt_args *args, int first_word, const char *fallback, struct tt_config **ret_config)
{
    struct tt_config *cfg = NULL;
    const char **files = tt_calloc((size_t)args->n_options + (size_t)args->n_words + 1, sizeof *files);
    bool with_files = first_word && strcmp(args->word[0], "check") == 0 && !tt_args_has(args, "no_files");
    struct tt_config_input input = {.files = files,
                                    .n_args = args->n_overrides,
                                    .args = args->override,
                                    .n_errors = args->n_errors,
                                    .errors = args->errors,
                                    .check = with_files ? tt_job_check_files : tt_job_check};
    const char *file;
    int n = 0, rc;

    while ((file = tt_args_value(args, "config", n)))
        files[n++] = file;
    for (int i = first_word; i < args->n_words; i++)
        files[n++] = args->word[i];
    if (n == 0)
        files[n++] = fallback;
    TT_TRY(tt_config_new(&cfg));
    input.n_files = n;
    TT_TRY(tt_config_read(cfg, &input));
    *ret_config = cfg;
    cfg = NULL;
out:
    tt_config_free(cfg);
    tt_free((void *)files);
    return rc;
}

static int load_one(const char *file, struct tt_config **ret_config)
{
    struct tt_config *cfg = NULL;
    int rc;

    TT_TRY(tt_config_new(&cfg));
    TT_TRY(tt_config_load(cfg, 1, &file, 0, NULL));
    *ret_config = cfg;
    cfg = NULL;
out:
    tt_config_free(cfg);
    return rc;
}

static int print_text(struct tt_text *text)
{
    tt_print("%s", text->text);
    tt_text_release(text);
    return tt_cli_finish();
}

/* Fills in the sizes of the flavor. If they are in a config.json that cannot be read, they stay null, with a note. */
static int resolve_model(struct tt_config *cfg)
{
    struct tt_model_dims over;
    struct tt_model *model = NULL;
    int rc = tt_job_adopt_folder(cfg);

    if (rc == 0)
        rc = tt_job_adopt_vocabulary(cfg);
    over = tt_job_model_overrides(cfg);
    if (rc < 0 || tt_job_adopt_family(cfg) < 0 ||
        tt_model_new(cfg->model.name, cfg->model.flavor, &over, cfg->model.hf_assets_path, &model) < 0) {
        tt_note("the sizes of the model are not known: %s", tt_error_message());
        return 0;
    }
    rc = tt_job_resolve_model(cfg, model);
    tt_model_free(model);
    return rc;
}

static int show(const struct tt_args *args)
{
    struct tt_config *cfg = NULL;
    struct tt_text text = {0};
    int rc;

    tt_cli_install_log();
    rc = load(args, 1, "builtin:quick", &cfg);
    if (rc == 0)
        rc = resolve_model(cfg);
    if (rc < 0) {
        tt_config_free(cfg);
        return tt_cli_fail(rc);
    }
    if (tt_args_has(args, "json")) {
        rc = tt_cli_print_json(tt_config_to_json(cfg, tt_args_has(args, "origin")));
    } else {
        tt_config_to_yaml(cfg, tt_args_has(args, "origin") ? TT_CONFIG_ORIGINS : TT_CONFIG_PLAIN, &text);
        rc = print_text(&text);
    }
    tt_config_free(cfg);
    return rc;
}

static int check(const struct tt_args *args)
{
    struct tt_config *cfg = NULL;
    bool is_json = tt_args_has(args, "json");
    int rc;

    tt_cli_install_log(); /* for notes about keys that have no effect */
    rc = load(args, 1, "builtin:quick", &cfg);

    tt_config_free(cfg);
    if (rc < 0 && is_json) {
        (void)tt_cli_print_json(json_pack("{s:b, s:s}", "ok", 0, "errors", tt_error_message()));
        return tt_error_exit_code(rc);
    }
    if (rc < 0)
        return tt_cli_fail(rc);
    if (is_json)
        return tt_cli_print_json(json_pack("{s:b}", "ok", 1));
    tt_print("ok\n");
    return tt_cli_finish();
}

/* One line (or JSON object) per key whose values differ. */
static int print_differences(const struct tt_config *a, const struct tt_config *b, bool is_json, bool with_origins)
{
    json_t *list = json_array();
    int rc;

    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];
        struct tt_text from = {0}, to = {0};

        tt_config_value_text(a, row, &from);
        tt_config_value_text(b, row, &to);
        if (strcmp(from.text ? from.text : "", to.text ? to.text : "") != 0) {
            (void)json_array_append_new(
                list, json_pack("{s:s, s:o, s:o, s:s}", "key", row->path, "from", tt_config_value_json(a, row), "to",
                                tt_config_value_json(b, row), "origin", tt_config_origin(b, row->id)));
            if (!is_json) {
                tt_print("%s: %s -> %s%s%s\n", row->path, from.size ? from.text : "\"\"", to.size ? to.text : "\"\"",
                         with_origins ? "  # " : "", with_origins ? tt_config_origin(b, row->id) : "");
            }
        }
        tt_text_release(&from);
        tt_text_release(&to);
    }
    if (is_json)
        return tt_cli_print_json(list);
    rc = tt_cli_finish();
    json_decref(list);
    return rc;
}

/* diff A B: the files; diff [A]: the defaults and what a run would use. */
static int diff(const struct tt_args *args)
{
    struct tt_config *a = NULL, *b = NULL;
    bool has_two = args->n_words == 3;
    int rc;

    if (args->n_words > 3) {
        rc = tt_fail(TT_EUSAGE, "config diff takes one or two files, %d were given", args->n_words - 1);
        goto out;
    }
    if (has_two && (args->n_overrides || tt_args_has(args, "config"))) {
        rc = tt_fail(TT_EUSAGE, "config diff of two files takes no --config and no overrides");
        goto out;
    }
    TT_TRY(load_one(has_two ? args->word[1] : "builtin:defaults", &a));
    TT_TRY(load(args, has_two ? 2 : 1, "builtin:quick", &b));
    rc = print_differences(a, b, tt_args_has(args, "json"), tt_args_has(args, "origin"));
out:
    tt_config_free(a);
    tt_config_free(b);
    return rc < 0 ? tt_cli_fail(rc) : rc;
}

/* Says what `titan config check` will find in the imported text, which is in the file `name`. */
static int check_imported(const char *name, const struct tt_text *text)
{
    const struct tt_config_input input = {
        .text = text->text, .text_size = text->size, .text_name = name, .check = tt_job_check};
    struct tt_config *cfg = NULL;
    int rc;

    TT_TRY(tt_config_new(&cfg));
    if (tt_config_read(cfg, &input) < 0)
        tt_warn("`titan config check` will refuse the result: %s", tt_error_message());
out:
    tt_config_free(cfg);
    return rc;
}

/* Neither the model nor files are checked: if they are missing, `config check` says so. */
static int import(const struct tt_args *args)
{
    const char *file = args->n_words == 2 ? args->word[1] : NULL, *to = tt_args_last(args, "out");
    struct tt_text text = {0};
    char *toml = NULL;
    size_t size = 0;
    int rc = 0;

    if (!file || tt_args_has(args, "config")) {
        rc = tt_fail(TT_EUSAGE, "config import takes one file\nhelp: titan config import X.toml --out X.yaml");
        goto out;
    }
    tt_cli_install_log();
    rc = tt_file_read_any(file, TT_YAML_MAX_BYTES, &toml, &size);
    if (rc == TT_EDATA) /* no such file, as for --config */
        rc = tt_fail(TT_EUSAGE, "%s", tt_error_message());
    TT_TRY(rc);
    TT_TRY(tt_config_import(file, toml, size, args->n_overrides, args->override, &text));
    TT_TRY(check_imported(to ? to : "stdout", &text));
    if (to)
        TT_TRY(tt_file_replace(to, text.text, text.size));
    else
        rc = print_text(&text);
out:
    tt_text_release(&text);
    tt_free(toml);
    return rc < 0 ? tt_cli_fail(rc) : rc;
}

static int init(const struct tt_args *args)
{
    struct tt_config *cfg = NULL;
    struct tt_text text = {0};
    int rc = load(args, 1, "builtin:quick", &cfg); /* a run that shows something within a minute, to be changed */

    if (rc < 0)
        return tt_cli_fail(rc);
    tt_config_to_yaml(cfg, TT_CONFIG_TEMPLATE, &text);
    tt_config_free(cfg);
    return print_text(&text);
}

static const struct {
    const char *name;
    int (*run)(const struct tt_args *args);
    const char *doc;
} verbs[] = {
    {"show", show, "print the resolved configuration as YAML"},
    {"check", check, "print ok, or every error at once"},
    {"diff", diff, "compare two files, or a configuration with the defaults"},
    {"init", init, "print a documented file with every key"},
    {"import", import, "print a TOML or JSON file of torchtitan's as YAML"},
};

enum { N_VERBS = sizeof verbs / sizeof *verbs };

static int print_help(void)
{
    enum { LEFT_COLUMNS = 27 };
    struct tt_text text = {0};

    tt_cli_add_usage(&text, "usage: titan config show|check|diff|init|import [FILE...] [--section.key=value...]\n\n"
                            "  titan config show --config my.yaml --origin\n"
                            "  titan config init > my.yaml\n"
                            "  titan config import debug_model.toml --out my.yaml\n\n");
    for (int i = 0; i < N_VERBS; i++)
        tt_args_help_row(&text, LEFT_COLUMNS, verbs[i].name, verbs[i].doc);
    tt_text_add(&text, "\n");
    tt_args_help(tt_config_options, &text);
    tt_text_add(&text, "\nWithout a file: the built-in quick run. Keys: titan-config(5).\n");
    return print_text(&text);
}

static int fail_verb(const char *word)
{
    const char *names[N_VERBS];

    for (int i = 0; i < N_VERBS; i++)
        names[i] = verbs[i].name;
    return tt_cli_fail(tt_cli_fail_verb("config", word, names, N_VERBS, NULL, 0));
}

int tt_command_config(int argc, char **argv)
{
    struct tt_args *args = NULL;
    int rc = tt_args_parse(argc, argv, tt_config_options, &args);

    if (rc < 0) {
        struct tt_config *cfg = NULL;

        rc = load(args, args->n_words > 0, "builtin:quick", &cfg); /* says the faults of both */
        tt_config_free(cfg);
        tt_args_free(args);
        return tt_cli_fail(rc);
    }
    if (tt_args_has(args, "help")) {
        rc = print_help();
        goto out;
    }
    for (int i = 0; i < N_VERBS; i++) {
        if (args->n_words && strcmp(args->word[0], verbs[i].name) == 0) {
            rc = verbs[i].run(args);
            goto out;
        }
    }
    rc = fail_verb(args->n_words ? args->word[0] : NULL);
out:
    tt_args_free(args);
    return rc;
}
