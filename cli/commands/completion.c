/* SPDX-License-Identifier: MIT
 *
 * `titan completion`: a script that completes titan's command lines.
 */
#include "cli/completion/completion.h"

#include <stdio.h>
#include <string.h>

#include "cli/run/screen.h"

const struct tt_option tt_completion_options[] = {
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan completion bash|zsh|fish\n\n"
    "Prints a script for the shell, which then completes commands, options, configuration keys and\n"
    "their values. Run it at the start of the shell:\n\n"
    "  eval \"$(titan completion bash)\"     in ~/.bashrc\n"
    "  eval \"$(titan completion zsh)\"      in ~/.zshrc, after compinit\n"
    "  titan completion fish >~/.config/fish/completions/titan.fish\n\n";

static int print(const char *shell, const struct tt_command *commands, int n)
{
    struct tt_text script = {0};

    for (int i = 0; i < tt_completion_n_shells; i++) {
        if (strcmp(shell, tt_completion_shells[i].name) != 0)
            continue;
        tt_completion_shells[i].write(commands, n, &script);
        tt_print("%s", script.text);
        tt_text_release(&script);
        return 0;
    }
    return tt_fail(TT_EUSAGE, "completion: no script for the shell '%s'\nhelp: titan completion bash|zsh|fish", shell);
}

int tt_cli_completion(int argc, char **argv, const struct tt_command *commands, int n)
{
    struct tt_args *args = NULL;
    int rc = 0;

    TT_TRY(tt_args_parse(argc, argv, tt_completion_options, &args));
    if (tt_args_has(args, "help"))
        rc = tt_cli_print_help(usage, tt_completion_options);
    else if (args->n_words != 1 || args->n_overrides)
        rc = tt_fail(TT_EUSAGE, "completion: which shell?\nhelp: titan completion bash|zsh|fish");
    else
        rc = print(args->word[0], commands, n);
out:
    tt_args_free(args);
    return rc < 0 ? tt_cli_fail(rc) : rc > 0 ? rc : tt_cli_finish();
}
