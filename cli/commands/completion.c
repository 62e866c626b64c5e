/* SPDX-License-Identifier: MIT
 *
 * `titan completion`: a script that completes titan's command lines.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/text.h"
#include "core/models/model.h"

/* --- the words of the scripts --- */

static void add_word(struct tt_text *out, const char *word, size_t size)
{
    tt_text_add(out, "%s%.*s", out->size && out->text[out->size - 1] != ' ' ? " " : "", (int)size, word);
}

/* Adds the words of "a|b|c". */
static void add_choices(struct tt_text *out, const char *list, size_t size)
{
    for (const char *end; size; list = end + (size ? 1 : 0)) {
        size_t n = strcspn(list, "|");

        n = n < size ? n : size;
        add_word(out, list, n);
        end = list + n;
        size -= n < size ? n + 1 : n;
    }
}

/* Appends the possible first words after a command: "show check diff" for "show|check|diff [--config FILE]". */
static void add_verbs(const struct tt_command *command, struct tt_text *out)
{
    size_t n = strcspn(command->arguments, " ");

    if (strspn(command->arguments, "abcdefghijklmnopqrstuvwxyz_|") == n)
        add_choices(out, command->arguments, n);
}

/* Whether a key is a flag that needs no value. */
static bool is_switch(const struct tt_config_row *row)
{
    return row->kind == TT_KIND_BOOL || row->kind == TT_KIND_MAYBE;
}

/* Adds every flavor of every model once. */
static void add_flavors(struct tt_text *out)
{
    for (int i = 0; i < tt_model_n_rows; i++) {
        for (int f = 0; f < tt_model_rows[i]->n_flavors; f++) {
            const char *name = tt_model_rows[i]->flavors[f].name;
            bool known = false;

            for (int j = 0; j < i && !known; j++)
                for (int g = 0; g < tt_model_rows[j]->n_flavors; g++)
                    known = known || strcmp(tt_model_rows[j]->flavors[g].name, name) == 0;
            if (!known)
                add_word(out, name, strlen(name));
        }
    }
    add_word(out, "hf", 2);
}

/* Appends the words that a key accepts, with spaces between them; nothing for numbers, free text, and lists of names or
 * of "regex=what". */
static void add_key_values(const struct tt_config_row *row, struct tt_text *out)
{
    bool has_rules = (row->flags & TT_FLAG_LIST) && (row->flags & (TT_FLAG_PATTERNS | TT_FLAG_PARTS));

    if (strcmp(row->path, TT_KEY_NAME(model.name)) == 0)
        for (int i = 0; i < tt_model_n_rows; i++)
            add_word(out, tt_model_rows[i]->name, strlen(tt_model_rows[i]->name));
    else if (strcmp(row->path, TT_KEY_NAME(model.flavor)) == 0)
        add_flavors(out);
    else if (is_switch(row))
        add_choices(out, "true|false", strlen("true|false"));
    else if (row->choices && !has_rules)
        tt_config_choices_text(row, " ", out);
    else if (row->zero_word)
        add_word(out, row->zero_word, strlen(row->zero_word));
    if (row->flags & TT_FLAG_NULLABLE)
        add_word(out, "null", strlen("null"));
}

/* The same for an option of a command, which may abbreviate a key. */
static void add_option_values(const struct tt_option *option, struct tt_text *out)
{
    const struct tt_config_row *row =
        option->alias && strchr(option->alias, '.') ? tt_config_row_find(option->alias) : NULL;

    if (row)
        add_key_values(row, out);
    else if (option->value && strchr(option->value, '|'))
        add_choices(out, option->value, strlen(option->value));
}

/* Whether a value may be the name of a file. */
static bool key_is_path(const struct tt_config_row *row)
{
    return row->kind == TT_KIND_TEXT && strncmp(row->path, "model.", 6) != 0 ? true : strstr(row->key, "path") != NULL;
}

static bool option_is_path(const struct tt_option *option)
{
    return option->value && tt_text_is_listed(option->value, "FILE|DIR|PATH");
}

/* Appends "--max-new-tokens". */
static void add_flag(const struct tt_option *option, struct tt_text *out)
{
    tt_text_add(out, "--");
    for (const char *c = option->name; *c; c++)
        tt_text_add(out, "%c", *c == '_' ? '-' : *c);
}

/*
 * --- bash and zsh ---
 *
 * Completion in bash and zsh. The tables are functions that both shells understand; a driver in the language of each
 * shell finds the command and the word, and calls them.
 */

static void add_names(struct tt_text *out)
{
    for (int i = 0; tt_commands[i]; i++)
        tt_text_add(out, "%s%s", i ? " " : "", tt_commands[i]->name);
}

static void add_names_with_keys(const char *between, struct tt_text *out)
{
    const char *separator = "";

    for (int i = 0; tt_commands[i]; i++) {
        if (!tt_command_takes_keys(tt_commands[i]))
            continue;
        tt_text_add(out, "%s%s", separator, tt_commands[i]->name);
        separator = between;
    }
}

static void write_answer(const char *command, const char *name, const struct tt_text *values, bool is_path,
                         struct tt_text *out)
{
    tt_text_add(out, "    %s:%s) echo %s%s ;;\n", command, name, values->size ? values->text : "",
                is_path ? " FILES" : "");
}

/* Prints the words that a key or an option accepts, or FILES if it accepts names of files. Fails if it takes no
 * value. */
static void write_values(struct tt_text *out)
{
    tt_text_add(out, "_titan_values() {\n    case $1:$2 in\n");
    for (int i = 0; i < tt_config_n_rows; i++) {
        struct tt_text values = {0};

        add_key_values(&tt_config_rows[i], &values);
        write_answer("*", tt_config_rows[i].path, &values, key_is_path(&tt_config_rows[i]), out);
        tt_text_release(&values);
    }
    for (int i = 0; tt_commands[i]; i++) {
        for (const struct tt_option *o = tt_commands[i]->options; o && o->name; o++) {
            struct tt_text values = {0};

            if (!o->value)
                continue;
            add_option_values(o, &values);
            write_answer(tt_commands[i]->name, o->name, &values, option_is_path(o), out);
            tt_text_release(&values);
        }
    }
    tt_text_add(out, "    *) return 1 ;;\n    esac\n}\n");
}

static void write_tables(struct tt_text *out)
{
    tt_text_add(out, "_titan_commands='");
    add_names(out);
    tt_text_add(out, "'\n_titan_verbs() {\n    case $1 in\n"); /* the words that can come after a command */
    for (int i = 0; tt_commands[i]; i++) {
        struct tt_text verbs = {0};

        add_verbs(tt_commands[i], &verbs);
        if (strcmp(tt_commands[i]->arguments, "[COMMAND]") == 0)
            tt_text_add(out, "    %s) echo $_titan_commands | tr ' ' '\\n' ;;\n", tt_commands[i]->name);
        else if (verbs.size)
            tt_text_add(out, "    %s) echo %s ;;\n", tt_commands[i]->name, verbs.text);
        tt_text_release(&verbs);
    }
    tt_text_add(out, "    esac\n}\n_titan_options() {\n    case $1 in\n");
    for (int i = 0; tt_commands[i]; i++) {
        tt_text_add(out, "    %s) echo", tt_commands[i]->name);
        for (const struct tt_option *o = tt_commands[i]->options; o && o->name; o++) {
            tt_text_add(out, " ");
            add_flag(o, out);
        }
        tt_text_add(out, " ;;\n");
    }
    tt_text_add(out, "    esac\n}\n_titan_keys() {\n    case $1 in\n    ");
    add_names_with_keys("|", out);
    tt_text_add(out, ") ;;\n    *) return ;;\n    esac\n    echo");
    for (int i = 0; i < tt_config_n_rows; i++)
        tt_text_add(out, " %s%s", tt_config_rows[i].path, is_switch(&tt_config_rows[i]) ? "" : "=");
    tt_text_add(out, "\n}\n");
    write_values(out);
    /* finds the command among the words; in `launch ... train`, the command is train */
    tt_text_add(out, "_titan_find() {\n"
                     "    local found= word\n"
                     "    for word in \"$@\"; do\n"
                     "        case \" $_titan_commands \" in\n"
                     "        *\" $word \"*) found=$word; [ \"$word\" = launch ] || break ;;\n"
                     "        esac\n"
                     "    done\n"
                     "    echo \"$found\"\n"
                     "}\n"
                     "_titan_name() {\n"
                     "    local name=${1#--}\n"
                     "    name=${name%%=*}\n"
                     "    echo \"$name\" | tr - _\n"
                     "}\n"
                     /* COMMAND WORD: prints the candidates for a word that is not a value */
                     "_titan_candidates() {\n"
                     "    case $1:$2 in\n"
                     "    :-*) echo --help --version ;;\n"
                     "    :*) echo $_titan_commands | tr ' ' '\\n' ;;\n"
                     "    *:--no-*) _titan_keys \"$1\" | tr ' ' '\\n' | grep -v = | sed 's/^/--no-/' ;;\n"
                     "    *:-*) _titan_options \"$1\"; _titan_keys \"$1\" | tr ' ' '\\n' | sed 's/^/--/' ;;\n"
                     "    launch:*) echo $_titan_commands | tr ' ' '\\n' ;;\n"
                     "    *) _titan_verbs \"$1\"; _titan_keys \"$1\" ;;\n"
                     "    esac\n"
                     "}\n");
}

static void write_bash(struct tt_text *out)
{
    static const char driver[] =
        "_titan_add_files() {\n" /* names of files may contain spaces and stars */
        "    local name\n"
        "    while IFS= read -r name; do\n"
        "        COMPREPLY+=(\"$name\")\n"
        "    done < <(compgen -P \"$2\" -f -- \"$1\")\n"
        "}\n"
        "_titan() {\n"
        "    local line=${COMP_LINE:0:COMP_POINT} cur= prev= command values value before=\n"
        "    local -a words\n"
        "    read -ra words <<<\"$line\"\n"
        "    [[ $line == *[[:space:]] ]] && words+=('')\n"
        "    cur=${words[${#words[@]} - 1]}\n"
        "    prev=${words[${#words[@]} - 2]}\n"
        "    command=$(_titan_find \"${words[@]:1:${#words[@]}-2}\")\n"
        "    COMPREPLY=()\n"
        "    if [[ $cur == *=* ]]; then\n"
        "        values=$(_titan_values \"$command\" \"$(_titan_name \"$cur\")\") || return\n"
        "        value=${cur#*=}\n"
        "        [[ $COMP_WORDBREAKS == *=* ]] || before=${cur%%=*}=\n"
        "    elif [[ $prev == --* && $prev != *=* && $cur != -* ]] &&\n"
        "        values=$(_titan_values \"$command\" \"$(_titan_name \"$prev\")\"); then\n"
        "        value=$cur\n"
        "    else\n"
        "        COMPREPLY=($(compgen -W \"$(_titan_candidates \"$command\" \"$cur\")\" -- \"$cur\"))\n"
        "        [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null\n"
        "        [[ $cur == -* || -z $command ]] || _titan_add_files \"$cur\"\n"
        "        return\n"
        "    fi\n"
        "    COMPREPLY=($(compgen -P \"$before\" -W \"${values%FILES}\" -- \"$value\"))\n"
        "    [[ $values != *FILES ]] || _titan_add_files \"$value\" \"$before\"\n"
        "}\n"
        "complete -o filenames -F _titan titan\n";

    tt_text_add(out, "# Completion of titan in bash: eval \"$(titan completion bash)\"\n");
    write_tables(out);
    tt_text_add(out, "%s", driver);
}

static void write_zsh(struct tt_text *out)
{
    static const char driver[] =
        "_titan() {\n"
        "    local cur=$words[CURRENT] prev=$words[CURRENT-1] command values word\n"
        "    local -a plain keys\n"
        "    command=$(_titan_find \"${(@)words[2,CURRENT-1]}\")\n"
        "    if [[ $cur == *=* ]]; then\n"
        "        values=$(_titan_values \"$command\" \"$(_titan_name \"$cur\")\") || return 1\n"
        "        compset -P '*='\n"
        "    elif [[ $prev == --* && $prev != *=* && $cur != -* ]] &&\n"
        "        values=$(_titan_values \"$command\" \"$(_titan_name \"$prev\")\"); then\n"
        "        :\n"
        "    else\n"
        "        for word in $(_titan_candidates \"$command\" \"$cur\"); do\n"
        "            if [[ $word == *= ]]; then keys+=($word); else plain+=($word); fi\n"
        "        done\n"
        "        compadd -a plain\n"
        "        compadd -S '' -a keys\n"
        "        [[ $cur == -* || -z $command ]] || _files\n"
        "        return\n"
        "    fi\n"
        "    compadd -- ${=values%FILES}\n"
        "    [[ $values != *FILES ]] || _files\n"
        "}\n"
        "if [[ $funcstack[1] == _titan ]]; then _titan \"$@\"; else compdef _titan titan; fi\n";

    tt_text_add(out, "#compdef titan\n"
                     "# Completion of titan in zsh: a file _titan in a folder of fpath, or, after compinit,\n"
                     "# eval \"$(titan completion zsh)\"\n");
    write_tables(out);
    tt_text_add(out, "%s", driver);
}

/* --- fish --- */

/* Adds a text in single quotes. */
static void add_quoted(const char *text, struct tt_text *out)
{
    tt_text_add(out, "'");
    for (; *text; text++)
        tt_text_add(out, strchr("'\\", *text) ? "\\%c" : "%c", *text);
    tt_text_add(out, "'");
}

/* Begins a line, "complete -c titan -n '__titan_in train plan'", for completion after these commands. */
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

static void write_functions(struct tt_text *out)
{
    tt_text_add(out, "set -g __titan_commands ");
    add_names(out);
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
    add_verbs(command, &verbs);
    if (verbs.size) {
        begin(command->name, out);
        tt_text_add(out, " -a '%s'\n", verbs.text);
    }
    tt_text_release(&verbs);
    for (const struct tt_option *o = command->options; o && o->name; o++) {
        struct tt_text values = {0}, flag = {0};

        begin(command->name, out);
        add_flag(o, &flag);
        tt_text_add(out, " -l %s", flag.text + 2);
        add_option_values(o, &values);
        if (o->value)
            add_values(&values, option_is_path(o), out);
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

    add_key_values(row, &values);
    begin(commands, out);
    tt_text_add(out, " -l %s", row->path);
    if (!is_switch(row))
        add_values(&values, key_is_path(row), out);
    tt_text_add(out, " -d ");
    add_quoted(row->doc, out);
    tt_text_add(out, "\n");
    tt_text_release(&values);
}

static void write_fish(struct tt_text *out)
{
    struct tt_text with_keys = {0};

    tt_text_add(out, "# Completion of titan in fish: titan completion fish >~/.config/fish/completions/titan.fish\n");
    write_functions(out);
    for (int i = 0; tt_commands[i]; i++)
        write_command(tt_commands[i], out);
    add_names_with_keys(" ", &with_keys);
    for (int i = 0; i < tt_config_n_rows; i++)
        write_key(&tt_config_rows[i], with_keys.text, out);
    tt_text_release(&with_keys);
}

/* --- the command --- */

static const struct tt_option options[] = {TT_OPTION_HELP, {0}};

static const char usage[] =
    "usage: titan completion bash|zsh|fish\n\n"
    "Prints a script for the shell, which then completes commands, options, configuration keys and\n"
    "their values. Run it at the start of the shell:\n\n"
    "  eval \"$(titan completion bash)\"     in ~/.bashrc\n"
    "  eval \"$(titan completion zsh)\"      in ~/.zshrc, after compinit\n"
    "  titan completion fish >~/.config/fish/completions/titan.fish\n\n";

static int print(const struct tt_args *args)
{
    static const struct {
        const char *name;
        void (*write)(struct tt_text *out);
    } shells[] = {{"bash", write_bash}, {"zsh", write_zsh}, {"fish", write_fish}};
    struct tt_text script = {0};

    if (args->n_words != 1)
        return tt_fail(TT_EUSAGE, "completion: which shell?\nhelp: titan completion bash|zsh|fish");
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(args->word[0], shells[i].name) != 0)
            continue;
        shells[i].write(&script);
        tt_print("%s", script.text);
        tt_text_release(&script);
        return 0;
    }
    return tt_fail(TT_EUSAGE, "completion: no script for the shell '%s'\nhelp: titan completion bash|zsh|fish",
                   args->word[0]);
}

const struct tt_command tt_command_completion = {
    .name = "completion",
    .arguments = "bash|zsh|fish",
    .summary = "a script that completes command lines in a shell",
    .usage = usage,
    .options = options,
    .run = print,
};
