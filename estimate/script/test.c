/* SPDX-License-Identifier: MIT
 *
 * Arithmetic and tests of a script. The result of each may be unknown.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fnmatch.h>

#include "core/base/mem.h"
#include "estimate/script/internal.h"

/* --- arithmetic --- */

struct sum {
    struct tt_shell *sh;
    const char *at;
    int unknown; /* -1: everything is known */
    int depth;
};

static void skip_blanks(struct sum *s)
{
    s->at += strspn(s->at, " \t\r\n");
}

static bool take(struct sum *s, const char *operator, const char * not_before)
{
    size_t n = strlen(operator);

    skip_blanks(s);
    if (strncmp(s->at, operator, n) != 0 || (s->at[n] && strchr(not_before, s->at[n])))
        return false;
    s->at += n;
    return true;
}

static void make_unknown(struct sum *s, enum tt_script_why why, const char *name)
{
    if (s->unknown < 0)
        s->unknown = tt_script_mark(tt_shell_unknown(s->sh, why, name));
}

static long long ternary(struct sum *s);

static long long number_of(struct sum *s, const char *text)
{
    char *end;
    long long value = strtoll(text, &end, 0);
    int mark = tt_script_mark(text);

    if (mark >= 0) {
        s->unknown = s->unknown < 0 ? mark : s->unknown;
        return 1;
    }
    if (end == text || end[strspn(end, " \t\r\n")])
        make_unknown(s, TT_WHY_FORM, NULL);
    return value;
}

static long long name(struct sum *s)
{
    size_t n = strspn(s->at, TT_SHELL_LETTERS);
    const char *word = tt_shell_keep(s->sh, tt_strndup(s->at, n));
    const struct tt_script_variable *v = tt_shell_find(s->sh, word);
    long long value = 0, by;
    const char *digits;

    s->at += n;
    skip_blanks(s);
    if (v && v->value.n)
        value = number_of(s, v->value.word[0]);
    else
        make_unknown(s, TT_WHY_UNSET, word);
    if (s->at[0] == '=' && s->at[1] != '=') {
        s->at++;
        s->unknown = -1;
        by = ternary(s);
    } else if (s->at[0] && strchr("+-", s->at[0]) && s->at[1] == s->at[0]) {
        by = value + (s->at[0] == '+' ? 1 : -1);
        s->at += 2;
    } else if (s->at[0] && strchr("+-*", s->at[0]) && s->at[1] == '=') {
        char op = s->at[0];

        s->at += 2;
        by = ternary(s);
        by = op == '+' ? value + by : op == '-' ? value - by : value * by;
    } else
        return value;
    digits = tt_shell_keep(s->sh, s->unknown < 0 ? tt_format("%lld", by) : tt_format("\1%d\2", s->unknown));
    tt_shell_set_word(s->sh, word, digits);
    return by;
}

static long long primary(struct sum *s)
{
    long long value;
    char *end;

    skip_blanks(s);
    if (++s->depth > 64) {
        make_unknown(s, TT_WHY_FORM, NULL);
        s->at += strlen(s->at);
        return 1;
    }
    if (take(s, "(", "")) {
        value = ternary(s);
        if (!take(s, ")", ""))
            make_unknown(s, TT_WHY_FORM, NULL);
    } else if (take(s, "!", "="))
        value = !primary(s);
    else if (take(s, "-", "-="))
        value = -primary(s);
    else if (take(s, "+", "+="))
        value = primary(s);
    else if (*s->at == '\1') {
        value = number_of(s, s->at);
        s->at = strchr(s->at, '\2') + 1;
    } else if (*s->at >= '0' && *s->at <= '9') {
        value = strtoll(s->at, &end, 0);
        s->at = end;
    } else if (strspn(s->at, TT_SHELL_LETTERS))
        value = name(s);
    else {
        make_unknown(s, TT_WHY_FORM, NULL);
        s->at += strlen(s->at);
        value = 1;
    }
    s->depth--;
    return value;
}

/* Operators between two numbers, and characters that must not follow them. Operators of a higher level bind more
 * tightly. */
static const struct op {
    const char *text, *not_before;
    int level;
} ops[] = {{"||", "", 1}, {"&&", "", 2},  {"<=", "", 3},  {">=", "", 3}, {"<", "<", 3}, {">", ">", 3},  {"==", "", 3},
           {"!=", "", 3}, {"+", "+=", 4}, {"-", "-=", 4}, {"**", "", 6}, {"/", "=", 5}, {"*", "*=", 5}, {"%", "=", 5}};
enum { POWER = 6 };

static long long apply(struct sum *s, const char *operator, long long a, long long b)
{
    long long value = 1;
    bool fails = false;

    switch (*operator) {
    case '|':
        return a || b;
    case '&':
        return a && b;
    case '=':
        return a == b;
    case '!':
        return a != b;
    case '<':
        return operator[1] ? a <= b : a<b;
    case '>':
        return operator[1] ? a >= b : a> b;
    case '+':
        fails = __builtin_add_overflow(a, b, &value);
        break;
    case '-':
        fails = __builtin_sub_overflow(a, b, &value);
        break;
    case '*':
        if (!operator[1])
            fails = __builtin_mul_overflow(a, b, &value);
        for (; operator[1] && b> 0 && b<64; b--)
            fails = __builtin_mul_overflow(value, a, &value) || fails;
        break;
    default:
        fails = b == 0 || (a == LLONG_MIN && b == -1);
        value = fails ? 1 : *operator== '/' ? a / b : a % b;
    }
    if (fails)
        make_unknown(s, TT_WHY_FORM, NULL);
    return value;
}

/* Evaluates an expression with operators of this level and of higher ones. */
static long long binary_of(struct sum *s, int level)
{
    long long value = primary(s);

    for (size_t i = 0; i < sizeof ops / sizeof *ops;) {
        const struct op *o = &ops[i++];

        if (o->level < level || !take(s, o->text, o->not_before))
            continue;
        value = apply(s, o->text, value, binary_of(s, o->level == POWER ? POWER : o->level + 1));
        i = 0;
    }
    return value;
}

static long long ternary(struct sum *s)
{
    long long value = binary_of(s, 1), yes, no;

    if (!take(s, "?", ""))
        return value;
    yes = ternary(s);
    if (!take(s, ":", ""))
        make_unknown(s, TT_WHY_FORM, NULL);
    no = ternary(s);
    return value ? yes : no;
}

bool tt_shell_arithmetic(struct tt_shell *sh, const char *text, long long *ret_value)
{
    struct sum s = {.sh = sh, .at = tt_shell_expand_one(sh, text), .unknown = -1};

    *ret_value = ternary(&s);
    skip_blanks(&s);
    if (*s.at)
        make_unknown(&s, TT_WHY_FORM, NULL);
    if (s.unknown < 0)
        return true;
    sh->unknown = s.unknown;
    return false;
}

/* --- tests --- */

static void add_new(struct tt_shell *sh, struct tt_script_words *words, const char *word)
{
    for (int i = 0; i < words->n; i++)
        if (strcmp(words->word[i], word) == 0)
            return;
    tt_shell_add(sh, words, word);
}

/* Keeps the words with which an unknown value is compared: a user may choose one of them. */
static void compare_with(struct tt_shell *sh, int unknown, const char *text)
{
    if (tt_script_mark(text) < 0)
        add_new(sh, &sh->script->unknown[unknown].compared, text);
}

/* Returns -1, and records the unknown value on which the answer depends. */
static int depends(struct tt_shell *sh, int unknown)
{
    sh->unknown = unknown;
    return -1;
}

static int is_empty(struct tt_shell *sh, const char *text)
{
    struct tt_script_words one = {.word = &text, .n = 1};
    int mark = tt_script_mark(text), is = tt_shell_is_empty(sh, &one);

    if (is == 1 && mark >= 0 && sh->script->unknown[mark].why == TT_WHY_UNSET)
        add_new(sh, &sh->script->assumed, sh->script->unknown[mark].name); /* the test treats the variable as not set */
    return is;
}

static int decide(struct tt_shell *sh, const char *left, const char *right, bool is_pattern)
{
    int mark = tt_script_mark(left), all = -2;
    const struct tt_script_unknown *u = mark < 0 ? NULL : &sh->script->unknown[mark];

    if (!*right && u && tt_script_is_mark(left))
        return is_empty(sh, left);
    for (int i = 0; u && tt_script_is_mark(left) && tt_script_mark(right) < 0 && i < u->n_values; i++) {
        const struct tt_script_words *v = &u->value[i];
        int same = v->n > 1 || (v->n == 1 && tt_script_mark(v->word[0]) >= 0)
                       ? -1
                       : decide(sh, v->n ? v->word[0] : "", right, is_pattern);

        all = all == -2 || all == same ? same : -1;
    }
    if (all >= 0)
        return all;
    if (u) {
        compare_with(sh, mark, right);
        return depends(sh, mark);
    }
    if (tt_script_mark(right) >= 0)
        return depends(sh, tt_script_mark(right));
    return is_pattern ? fnmatch(right, left, 0) == 0 : strcmp(left, right) == 0;
}

int tt_shell_match(struct tt_shell *sh, const char *word, const char *pattern)
{
    bool quoted = strpbrk(pattern, "'\"");

    if (strcmp(pattern, "*") == 0)
        return 1;
    return decide(sh, word, tt_shell_expand_one(sh, pattern), !quoted);
}

static int unknown_test(struct tt_shell *sh)
{
    return depends(sh, tt_script_mark(tt_shell_unknown(sh, TT_WHY_TEST, NULL)));
}

static int of_numbers(struct tt_shell *sh, const char *left, const char *operator, const char * right)
{
    static const char *const names[] = {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"};
    int mark = tt_script_mark(left) >= 0 ? tt_script_mark(left) : tt_script_mark(right);
    char *end_left, *end_right;
    long long a = strtoll(left, &end_left, 10), b = strtoll(right, &end_right, 10);
    bool is[6] = {a == b, a != b, a<b, a <= b, a> b, a >= b};

    if (mark >= 0) {
        if (tt_script_mark(left) >= 0 && strcmp(operator, "-eq") == 0)
            compare_with(sh, mark, right);
        return depends(sh, mark);
    }
    if (end_left == left || *end_left || end_right == right || *end_right)
        return unknown_test(sh);
    for (int i = 0; i < 6; i++)
        if (strcmp(operator, names[i]) == 0)
            return is[i];
    return unknown_test(sh);
}

struct test {
    struct tt_shell *sh;
    const char *const *raw;
    int n, at;
    bool is_double;
};

static bool has(const struct test *t, int ahead, const char *word)
{
    return t->at + ahead < t->n && strcmp(t->raw[t->at + ahead], word) == 0;
}

static int joined(struct test *t, int decides);

static bool is_binary(const struct test *t)
{
    static const char *const all[] = {"=",   "==", "!=", "-eq", "-ne", "-lt", "-le", "-gt",
                                      "-ge", "=~", "<",  ">",   "-nt", "-ot", "-ef"};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (has(t, 1, all[i]) && t->at + 2 < t->n)
            return true;
    return false;
}

static int binary(struct test *t)
{
    const char *left = tt_shell_expand_one(t->sh, t->raw[t->at]), *operator= t->raw[t->at + 1];
    const char *raw = t->raw[t->at + 2], *right = tt_shell_expand_one(t->sh, raw);
    bool equal = strcmp(operator, "=") == 0 || strcmp(operator, "==") == 0;
    int is;

    t->at += 3;
    if (equal || strcmp(operator, "!=") == 0) {
        is = decide(t->sh, left, right, t->is_double && !strpbrk(raw, "'\""));
        return is < 0 || equal ? is : !is;
    }
    return operator[0] == '-' ? of_numbers(t->sh, left, operator, right) : unknown_test(t->sh);
}

static int unary(struct test *t, const char *operator)
{
    const char *raw = t->raw[t->at + 1];
    int empty;

    t->at += 2;
    if (strcmp(operator, "-z") != 0 && strcmp(operator, "-n") != 0)
        return unknown_test(t->sh);
    empty = is_empty(t->sh, tt_shell_expand_one(t->sh, raw));
    return empty < 0 ? -1 : (empty == 1) == (operator[1] == 'z');
}

static int single(struct test *t)
{
    int is;

    if (t->at >= t->n)
        return unknown_test(t->sh);
    if (has(t, 0, "!") && t->at + 1 < t->n) {
        t->at++;
        is = single(t);
        return is < 0 ? is : !is;
    }
    if (has(t, 0, "(") || has(t, 0, "\\(")) {
        t->at++;
        is = joined(t, 1);
        t->at++;
        return is;
    }
    if (is_binary(t))
        return binary(t);
    if (t->raw[t->at][0] == '-' && t->raw[t->at][1] && !t->raw[t->at][2] && t->at + 1 < t->n)
        return unary(t, t->raw[t->at]);
    is = is_empty(t->sh, tt_shell_expand_one(t->sh, t->raw[t->at++]));
    return is < 0 ? is : !is;
}

/* Evaluates tests joined by "and", where a 0 decides, or such groups joined by "or", where a 1 decides. */
static int joined(struct test *t, int decides)
{
    static const char *const words[][2] = {{"-a", "&&"}, {"-o", "||"}};
    int is = decides ? joined(t, 0) : single(t);

    while (has(t, 0, words[decides][0]) || has(t, 0, words[decides][1])) {
        int kept = t->sh->unknown, other;

        t->at++;
        other = decides ? joined(t, 0) : single(t);
        if (is == decides || other == decides)
            is = decides;
        else if (is < 0)
            t->sh->unknown = kept;
        else
            is = other;
    }
    return is;
}

int tt_shell_test(struct tt_shell *sh, const char *const *raw, int n, bool is_double)
{
    struct test t = {.sh = sh, .raw = raw, .n = n, .is_double = is_double};
    int is;

    if (n == 0)
        return 0;
    is = joined(&t, 1);
    return t.at == n ? is : unknown_test(sh);
}
