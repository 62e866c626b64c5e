/* SPDX-License-Identifier: MIT
 *
 * Completion in bash and zsh. The tables are functions that both understand; a driver in the shell's own language finds
 * the command and the word, and asks them.
 */
#include <string.h>

#include "cli/completion/completion.h"
#include "core/base/text.h"

/* Prints the words that can come after a command. */
static void write_words(const struct tt_command *commands, int n, struct tt_text *out)
{
    tt_text_add(out, "_titan_commands='");
    for (int i = 0; i < n; i++)
        tt_text_add(out, "%s%s", i ? " " : "", commands[i].name);
    tt_text_add(out, "'\n_titan_verbs() {\n    case $1 in\n");
    for (int i = 0; i < n; i++) {
        struct tt_text verbs = {0};

        tt_completion_add_verbs(&commands[i], &verbs);
        if (strcmp(commands[i].arguments, "[COMMAND]") == 0)
            tt_text_add(out, "    %s) echo $_titan_commands | tr ' ' '\\n' ;;\n", commands[i].name);
        else if (verbs.size)
            tt_text_add(out, "    %s) echo %s ;;\n", commands[i].name, verbs.text);
        tt_text_release(&verbs);
    }
    tt_text_add(out, "    esac\n}\n_titan_options() {\n    case $1 in\n");
    for (int i = 0; i < n; i++) {
        tt_text_add(out, "    %s) echo", commands[i].name);
        for (const struct tt_option *o = commands[i].options; o && o->name; o++) {
            tt_text_add(out, " ");
            tt_completion_add_flag(o, out);
        }
        tt_text_add(out, " ;;\n");
    }
    tt_text_add(out, "    esac\n}\n");
}

static void write_keys(const struct tt_command *commands, int n, struct tt_text *out)
{
    const char *separator = "";

    tt_text_add(out, "_titan_keys() {\n    case $1 in\n    ");
    for (int i = 0; i < n; i++) {
        if (!tt_completion_takes_keys(&commands[i]))
            continue;
        tt_text_add(out, "%s%s", separator, commands[i].name);
        separator = "|";
    }
    tt_text_add(out, ") ;;\n    *) return ;;\n    esac\n    echo");
    for (int i = 0; i < tt_config_n_rows; i++)
        tt_text_add(out, " %s%s", tt_config_rows[i].path, tt_completion_is_switch(&tt_config_rows[i]) ? "" : "=");
    tt_text_add(out, "\n}\n");
}

static void write_answer(const char *command, const char *name, const struct tt_text *values, bool is_path,
                         struct tt_text *out)
{
    tt_text_add(out, "    %s:%s) echo %s%s ;;\n", command, name, values->size ? values->text : "",
                is_path ? " FILES" : "");
}

/* Prints the words that a key or an option accepts, FILES for the names of files. Fails if it takes no value. */
static void write_values(const struct tt_command *commands, int n, struct tt_text *out)
{
    tt_text_add(out, "_titan_values() {\n    case $1:$2 in\n");
    for (int i = 0; i < tt_config_n_rows; i++) {
        struct tt_text values = {0};

        tt_completion_add_key_values(&tt_config_rows[i], &values);
        write_answer("*", tt_config_rows[i].path, &values, tt_completion_key_is_path(&tt_config_rows[i]), out);
        tt_text_release(&values);
    }
    for (int i = 0; i < n; i++) {
        for (const struct tt_option *o = commands[i].options; o && o->name; o++) {
            struct tt_text values = {0};

            if (!o->value)
                continue;
            tt_completion_add_option_values(o, &values);
            write_answer(commands[i].name, o->name, &values, tt_completion_option_is_path(o), out);
            tt_text_release(&values);
        }
    }
    tt_text_add(out, "    *) return 1 ;;\n    esac\n}\n");
}

static void write_tables(const struct tt_command *commands, int n, struct tt_text *out)
{
    write_words(commands, n, out);
    write_keys(commands, n, out);
    write_values(commands, n, out);
    /* the command among words; in `launch ... train` it is train */
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
                     /* what can stand at a word that is not a value: COMMAND WORD */
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

void tt_completion_write_bash(const struct tt_command *commands, int n, struct tt_text *out)
{
    static const char driver[] =
        "_titan_add_files() {\n" /* a name may have spaces and stars */
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
    write_tables(commands, n, out);
    tt_text_add(out, "%s", driver);
}

void tt_completion_write_zsh(const struct tt_command *commands, int n, struct tt_text *out)
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
    write_tables(commands, n, out);
    tt_text_add(out, "%s", driver);
}
