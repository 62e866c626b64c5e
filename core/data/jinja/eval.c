/* SPDX-License-Identifier: MIT
 *
 * Runs a template: statements, expressions, names.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/data/jinja/internal.h"

enum { MOST_BYTES = 64 << 20, MOST_STEPS = 4 << 20 };

struct tt_jinja {
    struct tt_jwork work; /* its memory holds the tree */
    char *where;
    const struct tt_jnode *first;
    bool generates;
};

/* The names defined in a block: an iteration of a loop, a macro's call, or the template. */
struct tt_jscope {
    struct tt_jscope *outer;
    struct tt_jdict names;
};

struct run {
    struct tt_jwork w; /* first, so that a pointer to it is also a pointer to the run */
    struct tt_jtext *out;
    bool captures; /* `out` is a captured text, not the output */
    struct tt_passages *generated;
    size_t before; /* bytes of the caller's text before the output */
};

enum after { GOES_ON, BREAKS, CONTINUES };

static struct tt_jvalue evaluate(struct run *r, const struct tt_jnode *n, struct tt_jscope *s);
static enum after run_all(struct run *r, const struct tt_jnode *n, struct tt_jscope *s);

static void go_deeper(struct run *r, int line)
{
    r->w.line = line;
    tt_jstep(&r->w, 1);
    tt_jdeeper(&r->w, 4 * TT_J_DEEPEST);
}

/* --- names and members --- */

static struct tt_jvalue look_up(struct run *r, const char *name, const struct tt_jscope *s)
{
    static const char *const functions[] = {"namespace", "range", "dict", "raise_exception", "strftime_now"};

    for (; s; s = s->outer) {
        const struct tt_jvalue *found = tt_jdict_get(&r->w, &s->names, tt_jword(name));

        if (found)
            return *found;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(name, functions[i]) == 0)
            return (struct tt_jvalue){.kind = TT_J_FUNCTION, .text = functions[i]};
    return tt_jundefined(name);
}

static struct tt_jvalue loop_member(struct tt_jwork *w, const struct tt_jloop *loop, struct tt_jvalue name)
{
    size_t n = loop->list->n, at = loop->at;
    const struct {
        const char *name;
        struct tt_jvalue value;
    } members[] = {{"index", tt_jint((int64_t)at + 1)},
                   {"index0", tt_jint((int64_t)at)},
                   {"revindex", tt_jint((int64_t)(n - at))},
                   {"revindex0", tt_jint((int64_t)(n - at) - 1)},
                   {"first", tt_jbool(at == 0)},
                   {"last", tt_jbool(at + 1 == n)},
                   {"length", tt_jint((int64_t)n)},
                   {"depth", tt_jint(1)},
                   {"depth0", tt_jint(0)},
                   {"previtem", at ? loop->list->item[at - 1] : tt_jundefined("previtem")},
                   {"nextitem", at + 1 < n ? loop->list->item[at + 1] : tt_jundefined("nextitem")}};

    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (tt_jis(name, members[i].name))
            return members[i].value;
    tt_jfail(w, TT_EUSAGE, "loop.%.40s is not supported", tt_jcopy(w, name.text, name.size));
}

struct tt_jvalue tt_jmember(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue name, bool attribute)
{
    const struct tt_jvalue *found = NULL;
    const char *text;
    bool has_dict = v.kind == TT_J_DICT || v.kind == TT_J_NAMESPACE, is_method;

    if (v.kind == TT_J_UNDEFINED)
        tt_jfail(w, TT_EUSAGE, "'%.40s' is undefined", v.text);
    if (name.kind == TT_J_INT || name.kind == TT_J_BOOL) {
        if (v.kind == TT_J_LIST || v.kind == TT_J_TUPLE || v.kind == TT_J_STRING)
            return tt_jat(w, v, name.integer);
        found = v.kind == TT_J_DICT ? tt_jdict_get(w, v.dict, name) : NULL;
        return found ? *found : tt_jundefined("item");
    }
    if (name.kind != TT_J_STRING)
        tt_jfail(w, TT_EUSAGE, "%s cannot be the name of a member", tt_jkind_name(name));
    if (v.kind == TT_J_LOOP)
        return loop_member(w, v.loop, name);
    text = tt_jcopy(w, name.text, name.size);
    is_method = tt_jhas_method(v, text);
    if (has_dict && !(is_method && attribute))
        found = tt_jdict_get(w, v.dict, name);
    if (found)
        return *found;
    if (is_method) {
        struct tt_jmethod *method = tt_jalloc(w, sizeof *method);

        *method = (struct tt_jmethod){v, text};
        return (struct tt_jvalue){.kind = TT_J_METHOD, .method = method};
    }
    return tt_jundefined(text);
}

static void set_name(struct run *r, struct tt_jscope *s, const char *name, struct tt_jvalue value)
{
    tt_jdict_set(&r->w, &s->names, tt_jword(name), value);
}

static void assign(struct run *r, const struct tt_jnode *target, struct tt_jvalue value, struct tt_jscope *s)
{
    struct tt_jlist *items;
    size_t i = 0;

    if (target->kind == TT_JN_NAME) {
        set_name(r, s, target->name, value);
        return;
    }
    if (target->kind == TT_JN_MEMBER) {
        struct tt_jvalue of = look_up(r, target->a->name, s);

        if (of.kind != TT_J_NAMESPACE)
            tt_jfail(&r->w, TT_EUSAGE, "'%.40s' is not a namespace", target->a->name);
        tt_jdict_set(&r->w, of.dict, tt_jword(target->name), value);
        return;
    }
    items = tt_jitems(&r->w, value);
    for (const struct tt_jnode *t = target->a; t; t = t->next, i++) {
        if (i >= items->n)
            tt_jfail(&r->w, TT_EUSAGE, "%zu values for more names", items->n);
        set_name(r, s, t->name, items->item[i]);
    }
    if (i != items->n)
        tt_jfail(&r->w, TT_EUSAGE, "%zu values for %zu names", items->n, i);
}

/* --- calls --- */

static struct tt_jargs read_args(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    struct tt_jargs args = {0};

    for (; n; n = n->next) {
        struct tt_jvalue v = evaluate(r, n->a, s);

        if (n->name)
            tt_jdict_set(&r->w, &args.named, tt_jword(n->name), v);
        else if (args.named.n)
            tt_jfail(&r->w, TT_EUSAGE, "an argument without a name after one with a name");
        else
            tt_jlist_add(&r->w, &args.list, v);
    }
    return args;
}

/* The scope of a body; the names in it are not visible after it. */
static struct tt_jscope *scope_within(struct run *r, struct tt_jscope *outer)
{
    struct tt_jscope *s = tt_jalloc(&r->w, sizeof *s);

    s->outer = outer;
    return s;
}

/* Returns the output of statements as a string. */
static struct tt_jvalue capture(struct run *r, const struct tt_jnode *body, struct tt_jscope *s)
{
    struct tt_jtext text = {0}, *out = r->out;
    bool captures = r->captures;

    r->out = &text;
    r->captures = true;
    (void)run_all(r, body, scope_within(r, s));
    r->out = out;
    r->captures = captures;
    return tt_jtext_value(&text);
}

static struct tt_jvalue call_macro(struct run *r, const struct tt_jmacro *macro, const struct tt_jargs *args)
{
    struct tt_jscope *s = scope_within(r, macro->scope);
    size_t i = 0, used = 0;

    for (const struct tt_jnode *arg = macro->node->b; arg; arg = arg->next, i++) {
        const struct tt_jvalue *named = tt_jdict_get(&r->w, &args->named, tt_jword(arg->name));
        struct tt_jvalue v = tt_jundefined(arg->name);

        used += named != NULL;
        if (named && i < args->list.n)
            tt_jfail(&r->w, TT_EUSAGE, "macro '%.40s' got the argument '%.40s' twice", macro->node->name, arg->name);
        if (named)
            v = *named;
        else if (i < args->list.n)
            v = args->list.item[i];
        else if (arg->a)
            v = evaluate(r, arg->a, s);
        set_name(r, s, arg->name, v);
    }
    if (args->list.n > i || args->named.n > used)
        tt_jfail(&r->w, TT_EUSAGE, "macro '%.40s' got arguments that it does not take", macro->node->name);
    return capture(r, macro->node->body, s);
}

static struct tt_jvalue make_range(struct run *r, const struct tt_jargs *args)
{
    struct tt_jvalue list = tt_jlist_new(&r->w, TT_J_LIST);
    int64_t bound[3] = {0, 0, 1};

    for (size_t i = 0; i < args->list.n && i < 3; i++) {
        if (args->list.item[i].kind != TT_J_INT && args->list.item[i].kind != TT_J_BOOL)
            tt_jfail(&r->w, TT_EUSAGE, "range of %s", tt_jkind_name(args->list.item[i]));
        bound[i] = args->list.item[i].integer;
    }
    if (args->list.n < 1 || args->list.n > 3 || args->named.n || bound[2] == 0)
        tt_jfail(&r->w, TT_EUSAGE, "range takes one to three integers, the last of which is not 0");
    if (args->list.n == 1) {
        bound[1] = bound[0];
        bound[0] = 0;
    }
    for (int64_t i = bound[0]; bound[2] > 0 ? i < bound[1] : i > bound[1];) {
        tt_jstep(&r->w, 1);
        tt_jlist_add(&r->w, list.list, tt_jint(i));
        if (__builtin_add_overflow(i, bound[2], &i))
            break;
    }
    return list;
}

/* The default date of Llama's templates, so that training does not depend on the current date. */
static struct tt_jvalue write_date(struct run *r, const struct tt_jargs *args)
{
    struct tm date = {.tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_wday = 5, .tm_yday = 207};
    char buf[256], *form;

    if (args->list.n != 1 || args->named.n || args->list.item[0].kind != TT_J_STRING)
        tt_jfail(&r->w, TT_EUSAGE, "strftime_now takes one string");
    form = tt_jcopy(&r->w, args->list.item[0].text, args->list.item[0].size);
    for (const char *p = form; *p; p++)
        if (*p == '%' && (!p[1] || !strchr("dbBYmyAajHMSIpeF%-", *++p)))
            tt_jfail(&r->w, TT_EUSAGE, "'%%%c' of strftime_now is not supported", *p);
    if (!*form)
        return tt_jword("");
    if (strlen(form) > sizeof buf / 16 || !strftime(buf, sizeof buf, form, &date)) /* NOLINT: checked above */
        tt_jfail(&r->w, TT_EUSAGE, "the format of strftime_now is too long");
    return tt_jword(tt_jcopy(&r->w, buf, strlen(buf)));
}

static struct tt_jvalue make_dict(struct run *r, enum tt_jkind kind, const struct tt_jargs *args)
{
    struct tt_jvalue made = tt_jdict_new(&r->w, kind);

    if (args->list.n > 1 || (args->list.n && args->list.item[0].kind != TT_J_DICT))
        tt_jfail(&r->w, TT_EUSAGE, "namespace or dict of something other than one mapping is not supported");
    for (size_t i = 0; args->list.n && i < args->list.item[0].dict->n; i++)
        tt_jdict_set(&r->w, made.dict, args->list.item[0].dict->pair[i].key, args->list.item[0].dict->pair[i].value);
    for (size_t i = 0; i < args->named.n; i++)
        tt_jdict_set(&r->w, made.dict, args->named.pair[i].key, args->named.pair[i].value);
    return made;
}

static struct tt_jvalue call_function(struct run *r, const char *name, const struct tt_jargs *args)
{
    struct tt_jvalue message;

    if (strcmp(name, "range") == 0)
        return make_range(r, args);
    if (strcmp(name, "strftime_now") == 0)
        return write_date(r, args);
    if (strcmp(name, "raise_exception") != 0)
        return make_dict(r, strcmp(name, "dict") == 0 ? TT_J_DICT : TT_J_NAMESPACE, args);
    message = tt_jto_string(&r->w, tt_jarg(&r->w, args, 0, "message", tt_jstring("", 0)));
    tt_jfail(&r->w, TT_EDATA, "the template refuses the conversation: %.*s",
             (int)(message.size < 300 ? message.size : 300), message.text);
}

static struct tt_jvalue call(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    struct tt_jvalue callee = evaluate(r, n->a, s);
    struct tt_jargs args = read_args(r, n->b, s);

    r->w.line = n->line;
    if (callee.kind == TT_J_METHOD)
        return tt_jcall_method(&r->w, callee.method->self, callee.method->name, &args);
    if (callee.kind == TT_J_MACRO)
        return call_macro(r, callee.macro, &args);
    if (callee.kind == TT_J_FUNCTION)
        return call_function(r, callee.text, &args);
    if (callee.kind == TT_J_UNDEFINED)
        tt_jfail(&r->w, TT_EUSAGE, "the %s '%.40s' is not supported",
                 n->a->kind == TT_JN_MEMBER ? "method" : "function", callee.text);
    tt_jfail(&r->w, TT_EUSAGE, "%s cannot be called", tt_jkind_name(callee));
}

/* --- expressions --- */

static bool is_integer(struct tt_jvalue v)
{
    return v.kind == TT_J_INT || v.kind == TT_J_BOOL;
}

/* Division rounded towards minus infinity, and its remainder, as in Python. */
static bool divide(int64_t a, int64_t b, bool wants_remainder, int64_t *ret)
{
    int64_t q, m;

    if (b == 0 || (a == INT64_MIN && b == -1))
        return true;
    q = a / b;
    m = a % b;
    if (m && (m < 0) != (b < 0)) {
        q--;
        m += b;
    }
    *ret = wants_remainder ? m : q;
    return false;
}

static struct tt_jvalue compute(struct run *r, const char *op, struct tt_jvalue a, struct tt_jvalue b)
{
    int64_t result = 0;
    bool fails;

    if (!is_integer(a) || !is_integer(b) || strcmp(op, "/") == 0 || strcmp(op, "**") == 0)
        tt_jfail(&r->w, TT_EUSAGE, "'%s' of %s and %s is not supported", op, tt_jkind_name(a), tt_jkind_name(b));
    if (op[0] == '+')
        fails = __builtin_add_overflow(a.integer, b.integer, &result);
    else if (op[0] == '-')
        fails = __builtin_sub_overflow(a.integer, b.integer, &result);
    else if (op[0] == '*')
        fails = __builtin_mul_overflow(a.integer, b.integer, &result);
    else
        fails = divide(a.integer, b.integer, op[0] == '%', &result);
    if (fails)
        tt_jfail(&r->w, TT_EUSAGE, "'%s' leaves the range of 64 bits, or divides by 0", op);
    return tt_jint(result);
}

/* Text that '+' adds to a result of the filter `safe` is escaped for HTML; no other text is. */
static struct tt_jvalue escape(struct run *r, struct tt_jvalue v)
{
    static const char *const by[][2] = {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};

    for (int i = 0; i < 5 && !v.is_safe; i++)
        v = tt_jreplace(&r->w, v, tt_jword(by[i][0]), tt_jword(by[i][1]), -1);
    return v;
}

static struct tt_jvalue concatenate(struct run *r, struct tt_jvalue a, struct tt_jvalue b)
{
    bool is_safe = a.is_safe || b.is_safe;
    struct tt_jvalue made;
    char *text;

    a = is_safe ? escape(r, a) : a;
    b = is_safe ? escape(r, b) : b;
    made = a.size ? a : b;
    if (a.size && b.size) {
        text = tt_jalloc(&r->w, a.size + b.size);
        memcpy(text, a.text, a.size);
        memcpy(text + a.size, b.text, b.size);
        made = tt_jstring(text, a.size + b.size);
    }
    made.is_safe = is_safe;
    return made;
}

static struct tt_jvalue evaluate_binary(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    struct tt_jvalue a = evaluate(r, n->a, s), b = evaluate(r, n->b, s), made;

    r->w.line = n->line;
    if (n->op[0] == '~') {
        a = tt_jto_string(&r->w, a);
        b = tt_jto_string(&r->w, b);
        a.is_safe = b.is_safe = false; /* unlike '+' */
        return concatenate(r, a, b);
    }
    if (n->op[0] == '+' && a.kind == TT_J_STRING && b.kind == TT_J_STRING)
        return concatenate(r, a, b);
    if (n->op[0] == '+' && a.kind == b.kind && (a.kind == TT_J_LIST || a.kind == TT_J_TUPLE)) {
        tt_jcheck_made(&r->w, a);
        tt_jcheck_made(&r->w, b);
        made = tt_jlist_new(&r->w, a.kind);
        tt_jlist_extend(&r->w, made.list, a.list);
        tt_jlist_extend(&r->w, made.list, b.list);
        return made;
    }
    if (a.kind == TT_J_UNDEFINED || b.kind == TT_J_UNDEFINED)
        tt_jfail(&r->w, TT_EUSAGE, "'%.40s' is undefined", a.kind == TT_J_UNDEFINED ? a.text : b.text);
    return compute(r, n->op, a, b);
}

static struct tt_jvalue evaluate_comparison(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    struct tt_jvalue left = evaluate(r, n->a, s);

    for (const struct tt_jnode *o = n->b; o; o = o->next) {
        struct tt_jvalue right = evaluate(r, o->a, s);

        r->w.line = o->line;
        if (!tt_jholds(&r->w, o->op, left, right))
            return tt_jbool(false);
        left = right;
    }
    return tt_jbool(true);
}

static struct tt_jvalue evaluate_items(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    struct tt_jvalue made = n->kind == TT_JN_DICT ? tt_jdict_new(&r->w, TT_J_DICT)
                                                  : tt_jlist_new(&r->w, n->kind == TT_JN_LIST ? TT_J_LIST : TT_J_TUPLE);

    for (const struct tt_jnode *item = n->a; item; item = item->next) {
        if (n->kind == TT_JN_DICT) {
            struct tt_jvalue key = evaluate(r, item->a, s);

            tt_jdict_set(&r->w, made.dict, key, evaluate(r, item->b, s));
        } else {
            tt_jlist_add(&r->w, made.list, evaluate(r, item, s));
        }
    }
    return made;
}

/* Evaluates terms up to the first one that decides the result, and returns the value of that term, as in Python. */
static struct tt_jvalue evaluate_terms(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    struct tt_jvalue v = tt_jbool(false);

    for (const struct tt_jnode *term = n->a; term; term = term->next) {
        v = evaluate(r, term, s);
        if (tt_jis_true(v) == (n->kind == TT_JN_OR))
            break;
    }
    return v;
}

static struct tt_jvalue evaluate_filter(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    struct tt_jvalue v = evaluate(r, n->a, s);
    struct tt_jargs args = read_args(r, n->b, s);

    r->w.line = n->line;
    if (n->kind == TT_JN_TEST)
        return tt_jbool(tt_jtest(&r->w, n->name, v, &args));
    return tt_jfilter(&r->w, n->name, v, &args);
}

static struct tt_jvalue bound(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    return n ? evaluate(r, n, s) : tt_jnone;
}

static struct tt_jvalue negate(struct run *r, struct tt_jvalue v)
{
    if (v.kind == TT_J_REAL) {
        v.real = -v.real;
        return v;
    }
    return compute(r, "-", tt_jint(0), v);
}

static struct tt_jvalue evaluate_node(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    switch (n->kind) {
    case TT_JN_CONST:
        return n->value;
    case TT_JN_NAME:
        return look_up(r, n->name, s);
    case TT_JN_LIST:
    case TT_JN_TUPLE:
    case TT_JN_DICT:
        return evaluate_items(r, n, s);
    case TT_JN_COND:
        if (tt_jis_true(evaluate(r, n->b, s)))
            return evaluate(r, n->a, s);
        return n->c ? evaluate(r, n->c, s) : tt_jundefined("the value of an if without else");
    case TT_JN_OR:
    case TT_JN_AND:
        return evaluate_terms(r, n, s);
    case TT_JN_NOT:
        return tt_jbool(!tt_jis_true(evaluate(r, n->a, s)));
    case TT_JN_COMPARE:
        return evaluate_comparison(r, n, s);
    case TT_JN_BINARY:
        return evaluate_binary(r, n, s);
    case TT_JN_NEGATE:
        return negate(r, evaluate(r, n->a, s));
    case TT_JN_MEMBER:
        return tt_jmember(&r->w, evaluate(r, n->a, s), tt_jword(n->name), true);
    case TT_JN_ITEM: {
        struct tt_jvalue of = evaluate(r, n->a, s);

        return tt_jmember(&r->w, of, evaluate(r, n->b, s), false);
    }
    case TT_JN_SLICE: {
        struct tt_jvalue of = evaluate(r, n->a, s), first = bound(r, n->b, s), end = bound(r, n->c, s);

        return tt_jslice(&r->w, of, first, end, bound(r, n->d, s));
    }
    case TT_JN_CALL:
        return call(r, n, s);
    case TT_JN_FILTER:
    case TT_JN_TEST:
        return evaluate_filter(r, n, s);
    default:
        tt_jfail(&r->w, TT_EINTERNAL, "an expression of kind %d", (int)n->kind);
    }
}

static struct tt_jvalue evaluate(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    struct tt_jvalue v;

    go_deeper(r, n->line);
    v = evaluate_node(r, n, s);
    r->w.line = n->line;
    r->w.depth--;
    return v;
}

/* --- statements --- */

/* The items of a loop that pass its test. */
static struct tt_jlist *choose_items(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    struct tt_jlist *all = tt_jitems(&r->w, evaluate(r, n->b, s)), *chosen;
    struct tt_jscope *turn = scope_within(r, s);

    if (!n->c)
        return all;
    chosen = tt_jalloc(&r->w, sizeof *chosen);
    for (size_t i = 0; i < all->n; i++) {
        assign(r, n->a, all->item[i], turn);
        if (tt_jis_true(evaluate(r, n->c, turn)))
            tt_jlist_add(&r->w, chosen, all->item[i]);
    }
    return chosen;
}

static enum after run_for(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    const struct tt_jlist *items = choose_items(r, n, s);
    bool is_done = false;
    enum after after;

    for (size_t i = 0; i < items->n; i++) {
        struct tt_jscope *turn = scope_within(r, s);
        struct tt_jvalue loop = {.kind = TT_J_LOOP, .loop = tt_jalloc(&r->w, sizeof *loop.loop)};

        *loop.loop = (struct tt_jloop){items, i};
        set_name(r, turn, "loop", loop);
        assign(r, n->a, items->item[i], turn);
        after = run_all(r, n->body, turn);
        is_done = is_done || after == GOES_ON;
        if (after == BREAKS)
            break;
    }
    /* Jinja's else runs if no iteration of the loop was completed; a jump out of it belongs to the surrounding loop */
    return is_done ? GOES_ON : run_all(r, n->other, scope_within(r, s));
}

static enum after run_if(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    for (;; n = n->other) {
        if (tt_jis_true(evaluate(r, n->a, s)))
            return run_all(r, n->body, s);
        if (!n->other || n->other->kind != TT_JN_ELIF)
            return run_all(r, n->other, s);
    }
}

/* Applies filters to a body; the first filter has no value on its left. */
static struct tt_jvalue apply_filters(struct run *r, const struct tt_jnode *n, struct tt_jvalue v, struct tt_jscope *s)
{
    struct tt_jargs args;

    if (n->kind != TT_JN_FILTER)
        tt_jfail(&r->w, TT_EUSAGE, "a filter tag with something other than filters is not supported");
    if (n->a)
        v = apply_filters(r, n->a, v, s);
    args = read_args(r, n->b, s);
    return tt_jfilter(&r->w, n->name, v, &args);
}

static enum after run_generation(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    size_t begin = r->out->size;
    enum after after;

    if (r->captures)
        tt_jfail(&r->w, TT_EUSAGE, "{%% generation %%} within a macro, a set or a filter is not supported");
    after = run_all(r, n->body, scope_within(r, s)); /* transformers makes this a macro */
    if (r->generated)
        tt_passages_add(r->generated, r->before + begin, r->before + r->out->size);
    return after;
}

static enum after run_one(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    struct tt_jvalue v;

    switch (n->kind) {
    case TT_JN_TEXT:
        tt_jtext_add(&r->w, r->out, n->value.text, n->value.size);
        break;
    case TT_JN_PRINT:
        v = evaluate(r, n->a, s);
        tt_jtext_add_value(&r->w, r->out, v);
        break;
    case TT_JN_FOR:
        return run_for(r, n, s);
    case TT_JN_IF:
        return run_if(r, n, s);
    case TT_JN_SET:
        assign(r, n->a, n->b ? evaluate(r, n->b, s) : capture(r, n->body, s), s);
        break;
    case TT_JN_MACRO:
        v = (struct tt_jvalue){.kind = TT_J_MACRO, .macro = tt_jalloc(&r->w, sizeof *v.macro)};
        *v.macro = (struct tt_jmacro){n, s};
        set_name(r, s, n->name, v);
        break;
    case TT_JN_FILTERED:
        v = apply_filters(r, n->a, capture(r, n->body, s), s);
        tt_jtext_add_value(&r->w, r->out, v);
        break;
    case TT_JN_GENERATION:
        return run_generation(r, n, s);
    case TT_JN_BREAK:
        return BREAKS;
    case TT_JN_CONTINUE:
        return CONTINUES;
    default:
        tt_jfail(&r->w, TT_EINTERNAL, "a statement of kind %d", (int)n->kind);
    }
    return GOES_ON;
}

static enum after run_all(struct run *r, const struct tt_jnode *n, struct tt_jscope *s)
{
    enum after after = GOES_ON;

    for (; n && after == GOES_ON; n = n->next) {
        go_deeper(r, n->line);
        after = run_one(r, n, s);
        r->w.depth--;
    }
    return after;
}

/* --- the interface --- */

int tt_jinja_new(const char *text, size_t size, const char *where, struct tt_jinja **ret_jinja)
{
    struct tt_jinja *j = tt_calloc(1, sizeof *j);
    int64_t bad = tt_utf8_invalid(text, size);

    j->where = tt_strdup(where);
    j->work.where = j->where;
    j->work.most_bytes = MOST_BYTES;
    j->work.most_steps = UINT64_MAX;
    if (setjmp(j->work.end)) {
        int rc = j->work.rc;

        tt_jinja_free(j);
        return rc;
    }
    if (bad >= 0)
        tt_jfail(&j->work, TT_EUSAGE, "invalid UTF-8 at byte %lld of the template", (long long)bad);
    j->first = tt_jparse(&j->work, tt_jlex(&j->work, text, size), &j->generates);
    *ret_jinja = j;
    return 0;
}

void tt_jinja_free(struct tt_jinja *jinja)
{
    if (!jinja)
        return;
    tt_jwork_release(&jinja->work);
    tt_free(jinja->where);
    tt_free(jinja);
}

bool tt_jinja_generates(const struct tt_jinja *jinja)
{
    return jinja->generates;
}

int tt_jinja_render(const struct tt_jinja *jinja, const json_t *context, struct tt_text *text,
                    struct tt_passages *generated)
{
    struct run *r = tt_calloc(1, sizeof *r);
    struct tt_jscope *s;
    int rc;

    r->w.where = jinja->where;
    r->w.most_bytes = MOST_BYTES;
    r->w.most_steps = MOST_STEPS;
    r->w.line = 1;
    r->generated = generated;
    r->before = text->size;
    if (setjmp(r->w.end) == 0) {
        r->out = tt_jalloc(&r->w, sizeof *r->out);
        s = scope_within(r, NULL);
        s->names = *tt_jfrom_json(&r->w, context).dict;
        (void)run_all(r, jinja->first, scope_within(r, s));
        tt_text_add_bytes(text, r->out->text ? r->out->text : "", r->out->size);
    }
    rc = r->w.rc;
    tt_jwork_release(&r->w);
    tt_free(r);
    return rc;
}
