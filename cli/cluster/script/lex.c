/* SPDX-License-Identifier: MIT
 *
 * The words and operators of a script.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cluster/script/shell.h"
#include "core/base/mem.h"

static const char *skip_quotes(const char *at)
{
    char quote = *at++;

    for (; *at && *at != quote; at++)
        if (quote != '\'' && *at == '\\' && at[1])
            at++;
        else if (quote == '"' && *at == '$' && (at[1] == '(' || at[1] == '{')) {
            const char *end = tt_shell_skip(at);

            if (!end)
                return NULL;
            at = end - 1;
        } else if (quote == '"' && *at == '`') {
            const char *end = tt_shell_skip(at);

            if (!end)
                return NULL;
            at = end - 1;
        }
    return *at ? at + 1 : NULL;
}

const char *tt_shell_skip(const char *at)
{
    char close;

    if (*at == '\'' || *at == '"' || *at == '`')
        return skip_quotes(at);
    at += *at == '$';
    close = *at == '{' ? '}' : ')';
    for (at++; *at && *at != close;) {
        bool opens = strchr("'\"`(", *at) || (*at == '$' && (at[1] == '(' || at[1] == '{'));

        if (*at == '#' && close == ')' && strchr(" \t\n(", at[-1]))
            at += strcspn(at, "\n");
        else if (*at == '\\' && at[1])
            at += 2;
        else if (opens && !(at = tt_shell_skip(at)))
            return NULL;
        else if (!opens)
            at++;
    }
    return *at ? at + 1 : NULL;
}

static void add(struct tt_shell *sh, int kind, const char *text, size_t n)
{
    TT_PUSH(sh->token, sh->n_tokens, sh->cap_tokens) =
        (struct tt_shell_token){.kind = kind, .text = tt_shell_keep(sh, tt_strndup(text, n)), .line = sh->line};
}

static void count_lines(struct tt_shell *sh, const char *from, const char *to)
{
    for (; from < to; from++)
        sh->line += *from == '\n';
}

static int fail(const struct tt_shell *sh, const char *what)
{
    return tt_fail(TT_EDATA,
                   "%s:%d: %s has no end\nhelp: --megatron takes a shell script, or flags of Megatron-LM alone",
                   sh->path, sh->line, what);
}

const char *tt_shell_word_end(const char *at)
{
    while (*at && !strchr(" \t\r\n;&|<>()", *at)) {
        bool is_list = *at == '=' && at[1] == '(';

        at += is_list;
        if (*at == '\\' && at[1])
            at += 2;
        else if (is_list || strchr("'\"`", *at) || (*at == '$' && (at[1] == '(' || at[1] == '{'))) {
            if (!(at = tt_shell_skip(at)))
                return NULL;
        } else
            at++;
    }
    return at;
}

/* Skips the lines of a text for standard input ("<<END"), up to a line with the word alone. */
static const char *skip_text(const char *at, const char *word)
{
    char plain[128];
    size_t n = 0;

    for (; *word && n + 1 < sizeof plain; word++)
        if (!strchr("'\"\\", *word))
            plain[n++] = *word;
    plain[n] = 0;
    while (*at) {
        size_t length = strcspn(at, "\n"), blanks = strspn(at, "\t");

        if (length == blanks + n && strncmp(at + blanks, plain, n) == 0)
            return at + length;
        at += length + (at[length] != 0);
    }
    return at;
}

/* An operator, a redirection, or arithmetic in two parentheses. */
static int take_operator(struct tt_shell *sh, const char **at, bool *is_text)
{
    static const char *const all[] = {"&>>", "<<<", "<<-", ";;", "&&", "||", "&>", ">>", "<<", ">&",
                                      "<&",  ">|",  ";",   "&",  "|",  "(",  ")",  "<",  ">"};
    const char *end;

    if ((*at)[0] == '(' && (*at)[1] == '(') {
        end = tt_shell_skip(*at);
        if (!end)
            return fail(sh, "'(('");
        if (end[-2] == ')') {
            add(sh, TT_SHELL_ARITHMETIC, *at + 2, (size_t)(end - *at - 4));
            count_lines(sh, *at, end);
            *at = end;
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        size_t n = strlen(all[i]);

        if (strncmp(*at, all[i], n) != 0)
            continue;
        *is_text = strcmp(all[i], "<<") == 0 || strcmp(all[i], "<<-") == 0;
        add(sh, strpbrk(all[i], "<>") ? TT_SHELL_REDIRECT : TT_SHELL_OPERATOR, all[i], n);
        *at += n;
        break;
    }
    return 0;
}

static bool is_number(const char *text, const char *end)
{
    return end > text && strspn(text, "0123456789") >= (size_t)(end - text);
}

int tt_shell_lex(struct tt_shell *sh, const char *text)
{
    const char *at = text, *end;
    bool takes_text = false, is_text = false;
    int ends[8], n_ends = 0; /* tokens with the words that end texts */
    int rc;

    sh->line = 1;
    if (strpbrk(text, "\1\2"))
        return tt_fail(TT_EDATA, "%s has control characters\nhelp: --megatron takes a shell script", sh->path);
    while (*at) {
        if (*at == ' ' || *at == '\t' || *at == '\r')
            at++;
        else if (*at == '\\' && (at[1] == '\n' || (at[1] == '\r' && at[2] == '\n'))) {
            at += at[1] == '\n' ? 2 : 3;
            sh->line++;
        } else if (*at == '#')
            at += strcspn(at, "\n");
        else if (*at == '\n') {
            add(sh, TT_SHELL_OPERATOR, "\n", 1);
            sh->line++;
            at++;
            for (int i = 0; i < n_ends; i++) {
                end = skip_text(at, sh->token[ends[i]].text);
                count_lines(sh, at, end);
                at = end;
            }
            n_ends = 0;
        } else if ((*at == '<' || *at == '>') && at[1] == '(') { /* a program as a file */
            end = tt_shell_skip(at + 1);
            if (!end)
                return fail(sh, "'<('");
            add(sh, TT_SHELL_WORD, at, (size_t)(end - at));
            count_lines(sh, at, end);
            at = end;
        } else if (strchr(";&|<>()", *at)) {
            if ((rc = take_operator(sh, &at, &is_text)) < 0)
                return rc;
            takes_text = is_text;
        } else {
            end = tt_shell_word_end(at);
            if (!end)
                return fail(sh, "a quoted or bracketed part");
            if ((*end == '<' || *end == '>') && is_number(at, end)) { /* "2>" */
                at = end;
                continue;
            }
            if (takes_text && n_ends < 8)
                ends[n_ends++] = sh->n_tokens;
            takes_text = false;
            add(sh, TT_SHELL_WORD, at, (size_t)(end - at));
            count_lines(sh, at, end);
            at = end;
        }
    }
    add(sh, TT_SHELL_OPERATOR, "\n", 1);
    add(sh, TT_SHELL_END, "", 0);
    return 0;
}
