/* SPDX-License-Identifier: MIT
 *
 * Completion in fish: a line for each command, option and key, with what --help says about it.
 */
#include <string.h>

#include "cli/completion/completion.h"

/* A text in single quotes. */
static void add_quoted(const char *text, struct tt_text *out)
{
    tt_text_add(out, "'");
    for (; *text; text++)
        tt_text_add(out, strchr("'\\", *text) ? "\\%c" : "%c", *text);
    tt_text_add(out, "'");
}

/* "complete -c titan -n '__titan_in train plan'": what follows is completed after these commands. */
static void begin(const char *commands, struct tt_text *out)
{
    tt_text_add(out, "complete -c titan -n '__titan_in %s'", commands);
}

static void add_values(const struct tt_text *values, bool is_path, struct tt_text *out)
{
    tt_text_add(out, is_path ? " -r" : " -x");
    if (values->size)
        tt_text_add(out, " -a '%s'", values->text);
}

static void write_functions(const struct tt_command *commands, int n, struct tt_text *out)
{
    tt_text_add(out, "set -g __titan_commands");
    for (int i = 0; i < n; i++)
        tt_text_add(out, " %s", commands[i].name);
    tt_text_add(out, "\nfunction __titan_find\n"
                     "    set -l words (commandline -opc)\n"
                     "    set -l found\n"
                     "    for word in $words[2..-1]\n"
                     "        if contains -- $word $__titan_commands\n"
                     "            set found $word\n"
                     "            test $word = launch; or break\n"
                     "        end\n"
                     "    end\n"
                     "    echo -n $found\n"
                     "end\n"
                     "function __titan_in\n"
                     "    contains -- (__titan_find) $argv\n"
                     "end\n"
                     "function __titan_begins\n"
                     "    test -z (__titan_find)\n"
                     "end\n");
}

static void write_command(const struct tt_command *command, struct tt_text *out)
{
    struct tt_text verbs = {0};

    tt_text_add(out, "complete -c titan -n '__titan_begins; or __titan_in launch%s' -f -a %s -d ",
                strcmp(command->name, "help") == 0 ? "" : " help", command->name);
    add_quoted(command->summary, out);
    tt_text_add(out, "\n");
    tt_completion_add_verbs(command, &verbs);
    if (verbs.size) {
        begin(command->name, out);
        tt_text_add(out, " -a '%s'\n", verbs.text);
    }
    tt_text_release(&verbs);
    for (const struct tt_option *o = command->options; o && o->name; o++) {
        struct tt_text values = {0}, flag = {0};

        begin(command->name, out);
        tt_completion_add_flag(o, &flag);
        tt_text_add(out, " -l %s", flag.text + 2);
        tt_completion_add_option_values(o, &values);
        if (o->value)
            add_values(&values, tt_completion_option_is_path(o), out);
        tt_text_add(out, " -d ");
        add_quoted(o->doc, out);
        tt_text_add(out, "\n");
        tt_text_release(&values);
        tt_text_release(&flag);
    }
}

static void write_key(const struct tt_config_row *row, const char *commands, struct tt_text *out)
{
    struct tt_text values = {0};

    tt_completion_add_key_values(row, &values);
    begin(commands, out);
    tt_text_add(out, " -l %s", row->path);
    if (!tt_completion_is_switch(row))
        add_values(&values, tt_completion_key_is_path(row), out);
    tt_text_add(out, " -d ");
    add_quoted(row->doc, out);
    tt_text_add(out, "\n");
    tt_text_release(&values);
}

void tt_completion_write_fish(const struct tt_command *commands, int n, struct tt_text *out)
{
    struct tt_text with_keys = {0};

    tt_text_add(out, "# Completion of titan in fish: titan completion fish >~/.config/fish/completions/titan.fish\n");
    write_functions(commands, n, out);
    for (int i = 0; i < n; i++) {
        write_command(&commands[i], out);
        if (tt_completion_takes_keys(&commands[i]))
            tt_text_add(&with_keys, "%s%s", with_keys.size ? " " : "", commands[i].name);
    }
    for (int i = 0; i < tt_config_n_rows; i++)
        write_key(&tt_config_rows[i], with_keys.text, out);
    tt_text_release(&with_keys);
}
