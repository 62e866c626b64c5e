/* SPDX-License-Identifier: MIT
 *
 * The tree of a template. Precedence is Jinja's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/data/jinja/internal.h"

struct parser {
    struct tt_jwork *w;
    const struct tt_jtoken *token;
    int loops; /* number of surrounding loops */
    bool generates;
};

static struct tt_jnode *parse_expression(struct parser *p);
static struct tt_jnode *parse_statements(struct parser *p, const char *ends);

static struct tt_jnode *new_node(struct parser *p, enum tt_jnode_kind kind)
{
    struct tt_jnode *node = tt_jalloc(p->w, sizeof *node);

    node->kind = kind;
    node->line = p->token->line;
    return node;
}

static bool is_op(const struct parser *p, const char *op)
{
    return p->token->kind == TT_JT_OP && strcmp(p->token->text, op) == 0;
}

static bool is_word(const struct parser *p, const char *word)
{
    return p->token->kind == TT_JT_NAME && strcmp(p->token->text, word) == 0;
}

/* Whether the next token is one of the words "a|b". */
static bool is_one_of(const struct parser *p, const char *words)
{
    size_t n = p->token->size;

    for (const char *at = words; at && p->token->kind == TT_JT_NAME; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, p->token->text, n) == 0 && (at[n] == 0 || at[n] == '|'))
            return true;
    return false;
}

static bool take_op(struct parser *p, const char *op)
{
    bool found = is_op(p, op);

    p->token += found;
    return found;
}

static bool take_word(struct parser *p, const char *word)
{
    bool found = is_word(p, word);

    p->token += found;
    return found;
}

static const char *shown(const struct tt_jtoken *t)
{
    static const char *const names[] = {
        [TT_JT_DATA] = "text", [TT_JT_PRINT] = "{{",     [TT_JT_PRINT_END] = "}}",     [TT_JT_BLOCK] = "{%",
        [TT_JT_INT] = NULL,    [TT_JT_BLOCK_END] = "%}", [TT_JT_END] = "the end of it"};

    return t->kind < sizeof names / sizeof *names && names[t->kind] ? names[t->kind] : t->text;
}

static void __attribute__((noreturn)) fail_token(struct parser *p, const char *wanted)
{
    p->w->line = p->token->line;
    tt_jfail(p->w, TT_EUSAGE, "found '%.40s' where %s was expected", shown(p->token), wanted);
}

static void expect_op(struct parser *p, const char *op)
{
    if (!take_op(p, op)) {
        char wanted[8] = {'\'', op[0], '\''};

        fail_token(p, wanted);
    }
}

static const char *take_name(struct parser *p, const char *what)
{
    if (p->token->kind != TT_JT_NAME)
        fail_token(p, what);
    return (p->token++)->text;
}

static void enter(struct parser *p)
{
    p->w->line = p->token->line;
    tt_jdeeper(p->w, TT_J_DEEPEST);
}

static void leave(struct parser *p)
{
    p->w->depth--;
}

/* --- expressions --- */

/* Whether another item of a list follows before `end`. Takes the comma, or the end; a trailing comma is allowed. */
static bool next_item(struct parser *p, bool is_first, const char *end)
{
    if (take_op(p, end))
        return false;
    if (!is_first)
        expect_op(p, ",");
    return !take_op(p, end);
}

/* Arguments after '(' up to ')': each is a node TT_JN_ARG, with or without a name. */
static struct tt_jnode *parse_args(struct parser *p)
{
    struct tt_jnode *first = NULL, **last = &first;

    while (next_item(p, !first, ")")) {
        struct tt_jnode *arg = new_node(p, TT_JN_ARG);

        if (is_op(p, "*") || is_op(p, "**"))
            tt_jfail(p->w, TT_EUSAGE, "'%s' before an argument is not supported", p->token->text);
        if (p->token->kind == TT_JT_NAME && p->token[1].kind == TT_JT_OP && strcmp(p->token[1].text, "=") == 0) {
            arg->name = p->token->text;
            p->token += 2;
        }
        arg->a = parse_expression(p);
        *last = arg;
        last = &arg->next;
    }
    return first;
}

/* Expressions separated by commas, up to `end`. */
static struct tt_jnode *parse_list(struct parser *p, enum tt_jnode_kind kind, const char *end)
{
    struct tt_jnode *list = new_node(p, kind), **last = &list->a;

    while (next_item(p, !list->a, end)) {
        *last = parse_expression(p);
        last = &(*last)->next;
    }
    return list;
}

static struct tt_jnode *parse_dict(struct parser *p)
{
    struct tt_jnode *dict = new_node(p, TT_JN_DICT), **last = &dict->a;

    while (next_item(p, !dict->a, "}")) {
        struct tt_jnode *pair = new_node(p, TT_JN_ARG);

        pair->a = parse_expression(p);
        expect_op(p, ":");
        pair->b = parse_expression(p);
        *last = pair;
        last = &pair->next;
    }
    return dict;
}

static struct tt_jnode *parse_parentheses(struct parser *p)
{
    struct tt_jnode *first, *tuple;

    if (is_op(p, ")"))
        return parse_list(p, TT_JN_TUPLE, ")");
    first = parse_expression(p);
    if (take_op(p, ")"))
        return first;
    expect_op(p, ",");
    tuple = parse_list(p, TT_JN_TUPLE, ")");
    first->next = tuple->a;
    tuple->a = first;
    return tuple;
}

static struct tt_jvalue number_of(struct parser *p)
{
    const struct tt_jtoken *t = p->token++;
    struct tt_jvalue v = {.kind = TT_J_REAL};

    errno = 0;
    if (t->kind == TT_JT_INT)
        v = tt_jint(strtoll(t->text, NULL, 10));
    else
        v.real = strtod(t->text, NULL);
    if (errno)
        tt_jfail(p->w, TT_EUSAGE, "the number %.40s is too large", t->text);
    return v;
}

static struct tt_jnode *parse_name(struct parser *p)
{
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    struct tt_jnode *node = new_node(p, TT_JN_NAME);

    node->name = take_name(p, "a name");
    for (int i = 0; i < 6; i++) {
        if (strcmp(node->name, words[i]) == 0) {
            node->kind = TT_JN_CONST;
            node->value = i < 4 ? tt_jbool(i < 2) : tt_jnone;
        }
    }
    return node;
}

static struct tt_jnode *parse_primary(struct parser *p)
{
    struct tt_jtext text = {0};
    struct tt_jnode *node;

    if (p->token->kind == TT_JT_NAME)
        return parse_name(p);
    if (take_op(p, "("))
        return parse_parentheses(p);
    if (take_op(p, "["))
        return parse_list(p, TT_JN_LIST, "]");
    if (take_op(p, "{"))
        return parse_dict(p);
    node = new_node(p, TT_JN_CONST);
    if (p->token->kind == TT_JT_INT || p->token->kind == TT_JT_REAL) {
        node->value = number_of(p);
        return node;
    }
    if (p->token->kind != TT_JT_STRING)
        fail_token(p, "a value");
    for (; p->token->kind == TT_JT_STRING; p->token++) /* adjacent strings are joined */
        tt_jtext_add(p->w, &text, p->token->text, p->token->size);
    node->value = tt_jtext_value(&text);
    return node;
}

/* An index or a bound of a slice, or NULL. */
static struct tt_jnode *parse_bound(struct parser *p)
{
    return is_op(p, ":") || is_op(p, "]") ? NULL : parse_expression(p);
}

/* What follows '[': an index, or a slice. */
static struct tt_jnode *parse_subscript(struct parser *p, struct tt_jnode *of)
{
    struct tt_jnode *node = new_node(p, TT_JN_ITEM);

    node->a = of;
    node->b = parse_bound(p);
    if (take_op(p, ":")) {
        node->kind = TT_JN_SLICE;
        node->c = parse_bound(p);
        node->d = take_op(p, ":") ? parse_bound(p) : NULL;
    } else if (!node->b) {
        fail_token(p, "an index");
    }
    if (is_op(p, ","))
        tt_jfail(p->w, TT_EUSAGE, "several indices in [ ] are not supported");
    expect_op(p, "]");
    return node;
}

static struct tt_jnode *parse_call(struct parser *p, struct tt_jnode *of)
{
    struct tt_jnode *node = new_node(p, TT_JN_CALL);

    node->a = of;
    node->b = parse_args(p);
    return node;
}

static struct tt_jnode *parse_postfix(struct parser *p, struct tt_jnode *node)
{
    int links = 0;

    for (;; links++) {
        if (links == TT_J_DEEPEST)
            tt_jfail(p->w, TT_EUSAGE, "it is nested more than %d deep", TT_J_DEEPEST);
        if (take_op(p, ".")) {
            struct tt_jnode *member = new_node(p, TT_JN_MEMBER);

            member->a = node;
            if (p->token->kind == TT_JT_INT) {
                member->kind = TT_JN_ITEM;
                member->b = parse_primary(p);
            } else {
                member->name = take_name(p, "the name of a member");
            }
            node = member;
        } else if (take_op(p, "[")) {
            node = parse_subscript(p, node);
        } else if (take_op(p, "(")) {
            node = parse_call(p, node);
        } else {
            return node;
        }
    }
}

static struct tt_jnode *parse_filter(struct parser *p, struct tt_jnode *of)
{
    struct tt_jnode *node = new_node(p, TT_JN_FILTER);

    node->a = of;
    node->name = take_name(p, "the name of a filter");
    if (take_op(p, "("))
        node->b = parse_args(p);
    return node;
}

/* Parses a test after 'is', whose argument may come without parentheses. */
static struct tt_jnode *parse_test(struct parser *p, struct tt_jnode *of)
{
    struct tt_jnode *node = new_node(p, TT_JN_TEST), *not = NULL;
    enum tt_jtoken_kind kind;

    node->a = of;
    if (is_word(p, "not")) {
        not = new_node(p, TT_JN_NOT);
        not ->a = node;
        p->token++;
    }
    node->name = take_name(p, "the name of a test");
    kind = p->token->kind;
    if (take_op(p, "(")) {
        node->b = parse_args(p);
    } else if ((kind == TT_JT_NAME && !is_one_of(p, "else|or|and|is|if|in|not")) || kind == TT_JT_STRING ||
               kind == TT_JT_INT || kind == TT_JT_REAL || is_op(p, "[") || is_op(p, "{")) {
        node->b = new_node(p, TT_JN_ARG);
        node->b->a = parse_postfix(p, parse_primary(p));
    }
    return not ? not : node;
}

static struct tt_jnode *parse_filters(struct parser *p, struct tt_jnode *node)
{
    for (int links = 0;; links++) {
        if (links == TT_J_DEEPEST)
            tt_jfail(p->w, TT_EUSAGE, "it is nested more than %d deep", TT_J_DEEPEST);
        if (take_op(p, "|"))
            node = parse_filter(p, node);
        else if (take_word(p, "is"))
            node = parse_test(p, node);
        else if (take_op(p, "("))
            node = parse_call(p, node);
        else
            return node;
    }
}

static struct tt_jnode *parse_unary(struct parser *p, bool takes_filters)
{
    struct tt_jnode *node;

    enter(p);
    if (take_op(p, "-")) {
        node = new_node(p, TT_JN_NEGATE);
        node->a = parse_unary(p, false);
    } else if (take_op(p, "+")) {
        node = parse_unary(p, false);
    } else {
        node = parse_postfix(p, parse_primary(p));
    }
    if (takes_filters)
        node = parse_filters(p, node);
    leave(p);
    return node;
}

/* Binary operators of one precedence after another, the loosest first; each is left-associative. */
static struct tt_jnode *parse_binary(struct parser *p, int level)
{
    static const char *const ops[][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    struct tt_jnode *left;

    if (level == 4)
        return parse_unary(p, true);
    left = parse_binary(p, level + 1);
    for (int i = 0, links = 0; i < 4 && ops[level][i]; i++) {
        struct tt_jnode *node;

        if (!is_op(p, ops[level][i]))
            continue;
        if (++links > TT_J_DEEPEST)
            tt_jfail(p->w, TT_EUSAGE, "it has more than %d operators in a row", TT_J_DEEPEST);
        node = new_node(p, TT_JN_BINARY);
        node->op = (p->token++)->text;
        node->a = left;
        node->b = parse_binary(p, level + 1);
        left = node;
        i = -1;
    }
    return left;
}

static const char *take_comparison(struct parser *p)
{
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">="};

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (take_op(p, ops[i]))
            return ops[i];
    if (take_word(p, "in"))
        return "in";
    if (is_word(p, "not") && p->token[1].kind == TT_JT_NAME && strcmp(p->token[1].text, "in") == 0) {
        p->token += 2;
        return "not in";
    }
    return NULL;
}

static struct tt_jnode *parse_comparison(struct parser *p)
{
    struct tt_jnode *left = parse_binary(p, 0), *node = NULL, **last = NULL;
    const char *op;

    while ((op = take_comparison(p))) {
        struct tt_jnode *operand = new_node(p, TT_JN_ARG);

        if (!node) {
            node = new_node(p, TT_JN_COMPARE);
            node->a = left;
            last = &node->b;
        }
        operand->op = op;
        operand->a = parse_binary(p, 0);
        *last = operand;
        last = &operand->next;
    }
    return node ? node : left;
}

static struct tt_jnode *parse_not(struct parser *p)
{
    struct tt_jnode *node;

    enter(p);
    if (is_word(p, "not")) {
        node = new_node(p, TT_JN_NOT);
        p->token++;
        node->a = parse_not(p);
    } else {
        node = parse_comparison(p);
    }
    leave(p);
    return node;
}

/* Terms joined by `word`; each consists of terms that bind more tightly. */
static struct tt_jnode *parse_terms(struct parser *p, bool is_or)
{
    struct tt_jnode *left = is_or ? parse_terms(p, false) : parse_not(p), *list, **last;

    if (!is_word(p, is_or ? "or" : "and"))
        return left;
    list = new_node(p, is_or ? TT_JN_OR : TT_JN_AND);
    list->a = left;
    last = &left->next;
    while (take_word(p, is_or ? "or" : "and")) {
        *last = is_or ? parse_terms(p, false) : parse_not(p);
        last = &(*last)->next;
    }
    return list;
}

static struct tt_jnode *parse_or(struct parser *p)
{
    return parse_terms(p, true);
}

static struct tt_jnode *parse_expression(struct parser *p)
{
    struct tt_jnode *node;

    enter(p);
    node = parse_or(p);
    while (is_word(p, "if")) {
        struct tt_jnode *cond = new_node(p, TT_JN_COND);

        enter(p);
        p->token++;
        cond->a = node;
        cond->b = parse_or(p);
        cond->c = take_word(p, "else") ? parse_expression(p) : NULL;
        node = cond;
        leave(p);
        if (!cond->c)
            break;
    }
    leave(p);
    return node;
}

/* --- statements --- */

/* An expression, or a tuple without parentheses; with condition false, `if` is not allowed. */
static struct tt_jnode *parse_values(struct parser *p, bool condition)
{
    struct tt_jnode *first = condition ? parse_expression(p) : parse_or(p), *tuple, **last;

    if (!is_op(p, ","))
        return first;
    tuple = new_node(p, TT_JN_TUPLE);
    tuple->a = first;
    last = &first->next;
    while (take_op(p, ",") && p->token->kind != TT_JT_BLOCK_END && p->token->kind != TT_JT_PRINT_END) {
        *last = condition ? parse_expression(p) : parse_or(p);
        last = &(*last)->next;
    }
    return tuple;
}

/* The target of an assignment: a name, ns.name, or a tuple of names. */
static struct tt_jnode *parse_target(struct parser *p, bool may_be_member)
{
    struct tt_jnode *target = new_node(p, TT_JN_NAME), *tuple = NULL, **last = NULL;

    target->name = take_name(p, "a name");
    if (may_be_member && take_op(p, ".")) {
        struct tt_jnode *member = new_node(p, TT_JN_MEMBER);

        member->a = target;
        member->name = take_name(p, "a name");
        return member;
    }
    while (take_op(p, ",")) {
        if (!tuple) {
            tuple = new_node(p, TT_JN_TUPLE);
            tuple->a = target;
            last = &target->next;
        }
        *last = new_node(p, TT_JN_NAME);
        (*last)->name = take_name(p, "a name");
        last = &(*last)->next;
    }
    return tuple ? tuple : target;
}

static void end_block(struct parser *p)
{
    if (p->token->kind != TT_JT_BLOCK_END)
        fail_token(p, "%}");
    p->token++;
}

/* Statements up to one of the tags in `ends`, "a|b"; the next token is then its name. */
static struct tt_jnode *parse_body(struct parser *p, const char *ends)
{
    end_block(p);
    return parse_statements(p, ends);
}

/* Statements up to the tag `end`. */
static struct tt_jnode *parse_whole_body(struct parser *p, const char *end)
{
    struct tt_jnode *body = parse_body(p, end);

    p->token++;
    return body;
}

static struct tt_jnode *parse_for(struct parser *p)
{
    struct tt_jnode *node = new_node(p, TT_JN_FOR);

    node->a = parse_target(p, false);
    if (!take_word(p, "in"))
        fail_token(p, "'in'");
    node->b = parse_values(p, false);
    if (take_word(p, "if"))
        node->c = parse_expression(p);
    if (is_word(p, "recursive"))
        tt_jfail(p->w, TT_EUSAGE, "a recursive loop is not supported");
    p->loops++;
    node->body = parse_body(p, "endfor|else");
    p->loops--;
    if (take_word(p, "else"))
        node->other = parse_body(p, "endfor");
    p->token++;
    return node;
}

static struct tt_jnode *parse_if(struct parser *p)
{
    struct tt_jnode *first = new_node(p, TT_JN_IF), *node = first;

    for (;;) {
        node->a = parse_values(p, true);
        node->body = parse_body(p, "elif|else|endif");
        if (!take_word(p, "elif"))
            break;
        node->other = new_node(p, TT_JN_ELIF);
        node = node->other;
    }
    if (take_word(p, "else"))
        node->other = parse_body(p, "endif");
    p->token++;
    return first;
}

static struct tt_jnode *parse_set(struct parser *p)
{
    struct tt_jnode *node = new_node(p, TT_JN_SET);

    node->a = parse_target(p, true);
    if (take_op(p, "=")) {
        node->b = parse_values(p, true);
        return node;
    }
    if (is_op(p, "|"))
        tt_jfail(p->w, TT_EUSAGE, "a set block with filters is not supported");
    node->body = parse_whole_body(p, "endset");
    return node;
}

static struct tt_jnode *parse_macro(struct parser *p)
{
    struct tt_jnode *node = new_node(p, TT_JN_MACRO), **last = &node->b;
    int loops = p->loops;

    node->name = take_name(p, "the name of a macro");
    expect_op(p, "(");
    while (next_item(p, !node->b, ")")) {
        struct tt_jnode *arg = new_node(p, TT_JN_ARG);

        arg->name = take_name(p, "the name of an argument");
        if (take_op(p, "="))
            arg->a = parse_expression(p);
        *last = arg;
        last = &arg->next;
    }
    p->loops = 0;
    node->body = parse_whole_body(p, "endmacro");
    p->loops = loops;
    if (p->token->kind == TT_JT_NAME) /* the macro's name may be repeated */
        p->token++;
    return node;
}

static struct tt_jnode *parse_filtered(struct parser *p)
{
    struct tt_jnode *node = new_node(p, TT_JN_FILTERED);

    node->a = parse_filters(p, parse_filter(p, NULL));
    node->body = parse_whole_body(p, "endfilter");
    return node;
}

static struct tt_jnode *parse_generation(struct parser *p)
{
    struct tt_jnode *node = new_node(p, TT_JN_GENERATION);

    p->generates = true;
    node->body = parse_whole_body(p, "endgeneration");
    return node;
}

static struct tt_jnode *parse_jump(struct parser *p)
{
    struct tt_jnode *node = new_node(p, strcmp(p->token[-1].text, "break") ? TT_JN_CONTINUE : TT_JN_BREAK);

    if (!p->loops)
        tt_jfail(p->w, TT_EUSAGE, "%s is not in a loop", p->token[-1].text);
    return node;
}

static struct tt_jnode *parse_tag(struct parser *p)
{
    static const struct {
        const char *name;
        struct tt_jnode *(*parse)(struct parser *p);
    } tags[] = {
        {"for", parse_for},    {"if", parse_if},         {"set", parse_set},         {"macro", parse_macro},
        {"break", parse_jump}, {"continue", parse_jump}, {"filter", parse_filtered}, {"generation", parse_generation}};
    struct tt_jnode *node = NULL;

    enter(p);
    for (size_t i = 0; i < sizeof tags / sizeof *tags && !node; i++)
        if (take_word(p, tags[i].name))
            node = tags[i].parse(p);
    if (!node && p->token->kind == TT_JT_NAME)
        tt_jfail(p->w, TT_EUSAGE, "the tag {%% %.40s %%} is not supported", p->token->text);
    if (!node)
        fail_token(p, "the name of a tag");
    end_block(p);
    leave(p);
    return node;
}

/* Statements up to one of the tags in `ends`; NULL: up to the end of the template. */
static struct tt_jnode *parse_statements(struct parser *p, const char *ends)
{
    struct tt_jnode *first = NULL, **last = &first;

    for (;;) {
        struct tt_jnode *node = NULL;

        p->w->line = p->token->line;
        if (p->token->kind == TT_JT_END) {
            if (ends)
                fail_token(p, tt_jcopy(p->w, ends, strcspn(ends, "|")));
            return first;
        }
        if (p->token->kind == TT_JT_DATA) {
            node = new_node(p, TT_JN_TEXT);
            node->value = tt_jstring(p->token->text, p->token->size);
            p->token++;
        } else if (p->token->kind == TT_JT_PRINT) {
            node = new_node(p, TT_JN_PRINT);
            p->token++;
            node->a = parse_values(p, true);
            if (p->token->kind != TT_JT_PRINT_END)
                fail_token(p, "}}");
            p->token++;
        } else {
            p->token++;
            if (is_one_of(p, ends))
                return first;
            node = parse_tag(p);
        }
        *last = node;
        last = &node->next;
    }
}

struct tt_jnode *tt_jparse(struct tt_jwork *w, const struct tt_jtoken *tokens, bool *ret_generates)
{
    struct parser p = {.w = w, .token = tokens};
    struct tt_jnode *first = parse_statements(&p, NULL);

    *ret_generates = p.generates;
    return first;
}
