/* SPDX-License-Identifier: MIT
 *
 * The words and operators of a script.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "estimate/script/internal.h"

/* --- the words and operators of a script --- */

static const char *skip_quoted(const char *at);

/* "$(" or "${" */
static bool is_bracket(const char *at)
{
    return *at == '$' && (at[1] == '(' || at[1] == '{');
}

static const char *skip_quotes(const char *at)
{
    char quote = *at++;

    for (; *at && *at != quote; at++)
        if (quote != '\'' && *at == '\\' && at[1])
            at++;
        else if (quote == '"' && (*at == '`' || is_bracket(at))) {
            const char *end = skip_quoted(at);

            if (!end)
                return NULL;
            at = end - 1;
        }
    return *at ? at + 1 : NULL;
}

/* The end of a quoted or bracketed part that begins at `at` ("'", "\"", "`", "$(", "${", "("); NULL: it does not
 * end. */
static const char *skip_quoted(const char *at)
{
    char close;

    if (*at == '\'' || *at == '"' || *at == '`')
        return skip_quotes(at);
    at += *at == '$';
    close = *at == '{' ? '}' : ')';
    for (at++; *at && *at != close;) {
        bool opens = strchr("'\"`(", *at) || is_bracket(at);

        if (*at == '#' && close == ')' && strchr(" \t\n(", at[-1]))
            at += strcspn(at, "\n");
        else if (*at == '\\' && at[1])
            at += 2;
        else if (opens && !(at = skip_quoted(at)))
            return NULL;
        else if (!opens)
            at++;
    }
    return *at ? at + 1 : NULL;
}

static void count_lines(struct tt_shell *sh, const char *from, const char *to)
{
    for (; from < to; from++)
        sh->line += *from == '\n';
}

/* Adds the token between two places, and returns the second place. */
static const char *add(struct tt_shell *sh, int kind, const char *from, const char *to)
{
    const char *text = tt_shell_keep(sh, tt_strndup(from, (size_t)(to - from)));

    TT_PUSH(sh->token, sh->n_tokens, sh->cap_tokens) =
        (struct tt_shell_token){.kind = kind, .text = text, .line = sh->line};
    count_lines(sh, from, to);
    return to;
}

static int fail(const struct tt_shell *sh, const char *what)
{
    return tt_fail(TT_EDATA,
                   "%s:%d: %s has no end\nhelp: --megatron takes a shell script, or flags of Megatron-LM alone",
                   sh->path, sh->line, what);
}

/* The end of a word; NULL: a quoted or bracketed part does not end. */
static const char *word_end(const char *at)
{
    while (*at && !strchr(" \t\r\n;&|<>()", *at)) {
        bool is_list = *at == '=' && at[1] == '(';

        at += is_list;
        if (*at == '\\' && at[1])
            at += 2;
        else if (is_list || strchr("'\"`", *at) || is_bracket(at)) {
            if (!(at = skip_quoted(at)))
                return NULL;
        } else
            at++;
    }
    return at;
}

/* Skips the lines of a text for standard input ("<<END"), up to a line that contains only the word. */
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

/* Takes an operator, a redirection, or arithmetic in two parentheses. */
static int take_operator(struct tt_shell *sh, const char **at, bool *is_text)
{
    static const char *const all[] = {"&>>", "<<<", "<<-", ";;", "&&", "||", "&>", ">>", "<<", ">&",
                                      "<&",  ">|",  ";",   "&",  "|",  "(",  ")",  "<",  ">"};
    const char *end;

    if ((*at)[0] == '(' && (*at)[1] == '(') {
        end = skip_quoted(*at);
        if (!end)
            return fail(sh, "'(('");
        if (end[-2] == ')') {
            *at = add(sh, TT_SHELL_ARITHMETIC, *at + 2, end - 2) + 2;
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        size_t n = strlen(all[i]);

        if (strncmp(*at, all[i], n) != 0)
            continue;
        *is_text = strcmp(all[i], "<<") == 0 || strcmp(all[i], "<<-") == 0;
        *at = add(sh, strpbrk(all[i], "<>") ? TT_SHELL_REDIRECT : TT_SHELL_OPERATOR, *at, *at + n);
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
    static const char newline[] = "\n";
    const char *at = text, *end;
    bool takes_text = false, is_text = false;
    int ends[8], n_ends = 0; /* tokens with the words that end input texts */
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
            at = add(sh, TT_SHELL_OPERATOR, at, at + 1);
            for (int i = 0; i < n_ends; i++) {
                end = skip_text(at, sh->token[ends[i]].text);
                count_lines(sh, at, end);
                at = end;
            }
            n_ends = 0;
        } else if ((*at == '<' || *at == '>') && at[1] == '(') { /* a program in the place of a file */
            end = skip_quoted(at + 1);
            if (!end)
                return fail(sh, "'<('");
            at = add(sh, TT_SHELL_WORD, at, end);
        } else if (strchr(";&|<>()", *at)) {
            if ((rc = take_operator(sh, &at, &is_text)) < 0)
                return rc;
            takes_text = is_text;
        } else {
            end = word_end(at);
            if (!end)
                return fail(sh, "a quoted or bracketed part");
            if ((*end == '<' || *end == '>') && is_number(at, end)) { /* "2>" */
                at = end;
                continue;
            }
            if (takes_text && n_ends < 8)
                ends[n_ends++] = sh->n_tokens;
            takes_text = false;
            at = add(sh, TT_SHELL_WORD, at, end);
        }
    }
    (void)add(sh, TT_SHELL_OPERATOR, newline, newline + 1);
    sh->line--; /* the script's text does not contain this line */
    (void)add(sh, TT_SHELL_END, at, at);
    return 0;
}

/* --- expanding words: variables, defaults, lists, and marks of unknown values --- */

struct builder {
    struct tt_shell *sh;
    struct tt_script_words *words; /* NULL: makes a single text */
    struct tt_text text;
    bool has; /* there is a word, which may be empty */
};

static void put(struct builder *b, const char *text, size_t n)
{
    tt_text_add_bytes(&b->text, text, n);
    b->has = b->has || n > 0;
}

static void put_text(struct builder *b, const char *text)
{
    put(b, text, strlen(text));
}

static void put_number(struct builder *b, long long number)
{
    tt_text_add(&b->text, "%lld", number);
    b->has = true;
}

/* Adds the mark of the last unknown value. */
static void put_mark(struct builder *b)
{
    tt_text_add(&b->text, "\1%d\2", b->sh->unknown);
    b->has = true;
}

static void end_word(struct builder *b)
{
    if (!b->words) {
        put(b, " ", 1);
        return;
    }
    if (b->has)
        tt_shell_add(b->sh, b->words, tt_shell_keep(b->sh, tt_strdup(b->text.text ? b->text.text : "")));
    tt_text_release(&b->text);
    b->text = (struct tt_text){0};
    b->has = false;
}

/* Adds text of an unquoted variable, which is split at blanks. */
static void put_split(struct builder *b, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, " \t\r\n"), blanks = strspn(text + n, " \t\r\n");

        put(b, text, n);
        if (blanks)
            end_word(b);
        text += n + blanks;
    }
}

static void put_words(struct builder *b, const struct tt_script_words *w, bool quoted, bool joined)
{
    for (int i = 0; i < w->n; i++) {
        if (i > 0 && joined)
            put(b, " ", 1);
        else if (i > 0)
            end_word(b);
        if (quoted)
            put_text(b, w->word[i]);
        else
            put_split(b, w->word[i]);
        b->has = b->has || (quoted && !joined);
    }
}

static void put_unknown(struct builder *b, enum tt_script_why why, const char *name)
{
    put_text(b, tt_shell_unknown(b->sh, why, name));
}

/* --- emptiness --- */

int tt_shell_is_empty(struct tt_shell *sh, const struct tt_script_words *value)
{
    const struct tt_script_unknown *u;
    int mark, all = -2;

    if (value->n == 0 || (value->n == 1 && !*value->word[0]))
        return 1;
    mark = tt_script_mark(value->word[0]);
    if (value->n > 1 || mark < 0 || !tt_script_is_mark(value->word[0]))
        return 0;
    u = &sh->script->unknown[mark];
    if (u->why == TT_WHY_ARGUMENT)
        return 1;
    if (u->why == TT_WHY_UNSET && !sh->script->source)
        return 1;
    for (int i = 0; i < u->n_values; i++) {
        int one = tt_shell_is_empty(sh, &u->value[i]);

        all = all == -2 || all == one ? one : -1;
    }
    if (all >= 0)
        return all;
    sh->unknown = mark;
    return -1;
}

/* --- parameters --- */

/* Gets the value of a parameter. False: it is not set, and *ret_value is the mark for that. */
static bool look_up(struct tt_shell *sh, const char *name, struct tt_script_words *ret_value)
{
    const struct tt_script_variable *v = tt_shell_find(sh, name);
    bool is_number = *name >= '0' && *name <= '9';
    int number = is_number ? (int)strtol(name, NULL, 10) : 0;

    *ret_value = (struct tt_script_words){0};
    if (v) {
        *ret_value = v->value;
        return true;
    }
    if (is_number && number == 0)
        tt_shell_add(sh, ret_value, sh->path);
    else if (is_number && number <= sh->state.args.n)
        tt_shell_add(sh, ret_value, sh->state.args.word[number - 1]);
    else if (is_number && (sh->has_args || sh->depth > 0))
        return true;
    else {
        tt_shell_add(sh, ret_value,
                     tt_shell_unknown(sh, is_number ? TT_WHY_ARGUMENT : TT_WHY_UNSET, is_number ? NULL : name));
        return false;
    }
    return true;
}

static void expand_part(struct builder *b, const char *raw, bool quoted);

/* "${#NAME}": the number of words in a list, or the length of a single word. */
static void put_count(struct builder *b, const struct tt_script_words *value, bool is_at)
{
    if (value->n && tt_script_mark(value->word[0]) >= 0)
        put_text(b, value->word[0]);
    else
        put_number(b, is_at ? value->n : value->n ? (int)strlen(value->word[0]) : 0);
}

/* Expands "-", "=", "+" or "?" with the word after it. Returns whether that replaces the value. */
static bool put_alternative(struct builder *b, const char *name, const struct tt_script_words *value, const char *form,
                            bool quoted)
{
    struct tt_shell *sh = b->sh;
    int empty = tt_shell_is_empty(sh, value);

    if (empty < 0) {
        put_mark(b);
        return true;
    }
    if (*form != '?' && (empty == 1) != (*form == '+')) {
        expand_part(b, form + 1, quoted);
        if (*form == '=')
            tt_shell_set_word(sh, name, tt_shell_expand_one(sh, form + 1));
        return true;
    }
    return *form == '+';
}

/* "${NAME...}" without its braces. */
static void put_parameter(struct builder *b, const char *inside, bool quoted)
{
    struct tt_shell *sh = b->sh;
    bool counts = *inside == '#' && inside[1], is_at = false, is_list = false, has_colon;
    char name[128];
    size_t n;
    struct tt_script_words value, one = {0};

    inside += counts;
    n = *inside == '@' || *inside == '*' ? 1 : strspn(inside, TT_SHELL_LETTERS);
    if (n == 0 || n >= sizeof name) { /* "${!NAME}" and others */
        put_unknown(b, TT_WHY_FORM, NULL);
        return;
    }
    memcpy(name, inside, n);
    name[n] = 0;
    inside += n;
    if (*name == '@' || *name == '*') {
        value = sh->state.args;
        is_at = true;
        is_list = *name == '@';
    } else
        (void)look_up(sh, name, &value);
    if (*inside == '[') {
        const char *close = strchr(inside, ']');
        long index = strtol(inside + 1, NULL, 10);

        is_at = inside[1] == '@' || inside[1] == '*';
        is_list = inside[1] == '@';
        if (!close || (!is_at && strspn(inside + 1, "0123456789") != (size_t)(close - inside - 1))) {
            put_unknown(b, TT_WHY_FORM, NULL);
            return;
        }
        if (!is_at) {
            if (index < value.n)
                tt_shell_add(sh, &one, value.word[index]);
            value = one;
        }
        inside = close + 1;
    } else if (!is_at && value.n > 1) { /* a list stands for its first word */
        tt_shell_add(sh, &one, value.word[0]);
        value = one;
    }
    if (counts) {
        put_count(b, &value, is_at);
        return;
    }
    has_colon = *inside == ':';
    if (*inside && strchr("-=+?", inside[has_colon]) && inside[has_colon]) {
        if (put_alternative(b, name, &value, inside + has_colon, quoted))
            return;
    } else if (*inside) { /* titan does not understand parts and replacements */
        put_unknown(b, TT_WHY_FORM, NULL);
        return;
    }
    put_words(b, &value, quoted, quoted && is_at && !is_list);
    b->has = b->has || (quoted && !is_at);
}

/* Expands something that begins with a dollar; returns its end. */
static const char *put_dollar(struct builder *b, const char *at, bool quoted)
{
    const char *end;
    char *name;
    size_t n;

    if (at[1] == '(' || at[1] == '{') {
        end = skip_quoted(at);
        if (!end) {
            put_unknown(b, TT_WHY_FORM, NULL);
            return at + strlen(at);
        }
        name = tt_strndup(at + 2, (size_t)(end - at) - 3);
        if (at[1] == '{')
            put_parameter(b, name, quoted);
        else if (at[2] == '(' && end[-2] == ')') {
            long long value;

            name[strlen(name) - 1] = 0;
            if (tt_shell_arithmetic(b->sh, name + 1, &value))
                put_number(b, value);
            else
                put_mark(b);
        } else
            put_unknown(b, TT_WHY_PROGRAM, NULL);
        tt_free(name);
        return end;
    }
    n = at[1] && strchr("0123456789@*", at[1]) ? 1 : strspn(at + 1, TT_SHELL_LETTERS);
    if (n > 0) {
        name = tt_strndup(at + 1, n);
        put_parameter(b, name, quoted);
        tt_free(name);
        return at + 1 + n;
    }
    if (at[1] == '#') {
        put_number(b, b->sh->state.args.n);
        return at + 2;
    }
    if (at[1] && strchr("?!$-", at[1])) {
        put_unknown(b, TT_WHY_PROGRAM, NULL);
        return at + 2;
    }
    put(b, at, 1);
    return at + 1;
}

/* --- words --- */

/* Expands "`program`", whose output is unknown. Returns its end. */
static const char *put_program(struct builder *b, const char *at)
{
    const char *end = skip_quoted(at);

    put_unknown(b, TT_WHY_PROGRAM, NULL);
    return end ? end : at + strlen(at);
}

static const char *expand_double(struct builder *b, const char *at)
{
    b->has = b->has || at[1] == '"';
    for (at++; *at && *at != '"';) {
        if (*at == '\\' && at[1] == '\n')
            at += 2;
        else if (*at == '\\' && at[1] && strchr("$`\"\\", at[1])) {
            put(b, at + 1, 1);
            at += 2;
        } else if (*at == '$')
            at = put_dollar(b, at, true);
        else if (*at == '`')
            at = put_program(b, at);
        else
            put(b, at++, 1);
    }
    return *at ? at + 1 : at;
}

static void expand_part(struct builder *b, const char *raw, bool quoted)
{
    for (const char *at = raw; *at;) {
        if (*at == '\'' && !quoted) {
            const char *end = strchr(at + 1, '\'');

            end = end ? end : at + strlen(at);
            put(b, at + 1, (size_t)(end - at - 1));
            b->has = true;
            at = *end ? end + 1 : end;
        } else if (*at == '"')
            at = expand_double(b, at);
        else if (*at == '\\' && at[1] == '\n')
            at += 2;
        else if (*at == '\\' && at[1]) {
            put(b, at + 1, 1);
            at += 2;
        } else if (*at == '$')
            at = put_dollar(b, at, quoted);
        else if (*at == '`')
            at = put_program(b, at);
        else
            put(b, at++, 1);
    }
}

void tt_shell_expand(struct tt_shell *sh, const char *raw, struct tt_script_words *words)
{
    struct builder b = {.sh = sh, .words = words};

    expand_part(&b, raw, false);
    end_word(&b);
    tt_text_release(&b.text);
}

const char *tt_shell_expand_one(struct tt_shell *sh, const char *raw)
{
    struct builder b = {.sh = sh};
    const char *text;

    expand_part(&b, raw, false);
    text = tt_shell_keep(sh, tt_strdup(b.text.text ? b.text.text : ""));
    tt_text_release(&b.text);
    return text;
}

void tt_shell_expand_list(struct tt_shell *sh, const char *raw, struct tt_script_words *words)
{
    char *inside = tt_strndup(raw + 1, strlen(raw) - 2);

    for (const char *at = inside; *at;) {
        const char *end;
        char *one;

        size_t skip = *at == '#' ? strcspn(at, "\n") : strspn(at, " \t\r\n");

        if (skip > 0 || (*at == '\\' && at[1] == '\n')) {
            at += skip > 0 ? skip : 2;
            continue;
        }
        end = word_end(at);
        end = end ? end : at + strlen(at);
        end = end == at ? at + 1 : end;
        one = tt_strndup(at, (size_t)(end - at));
        tt_shell_expand(sh, one, words);
        tt_free(one);
        at = end;
    }
    tt_free(inside);
}
