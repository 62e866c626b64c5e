/* SPDX-License-Identifier: MIT
 *
 * Filters and tests of templates.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/data/jinja/internal.h"

/* --- arguments --- */

struct tt_jvalue tt_jarg(struct tt_jwork *w, const struct tt_jargs *args, size_t i, const char *name,
                         struct tt_jvalue missing)
{
    const struct tt_jvalue *found;

    if (i < args->list.n)
        return args->list.item[i];
    found = *name ? tt_jdict_get(w, &args->named, tt_jword(name)) : NULL;
    return found ? *found : missing;
}

void tt_jcheck_args(struct tt_jwork *w, const char *what, const struct tt_jargs *args, size_t most,
                    const char *const *names)
{
    if (args->list.n > most)
        tt_jfail(w, TT_EUSAGE, "%.40s with %zu arguments is not supported", what, args->list.n);
    for (size_t i = 0; i < args->named.n; i++) {
        const char *const *name = names;

        while (*name && !tt_jis(args->named.pair[i].key, *name))
            name++;
        if (!*name)
            tt_jfail(w, TT_EUSAGE, "%.40s with the argument %.40s is not supported", what,
                     args->named.pair[i].key.text);
    }
}

static struct tt_jvalue arg(struct tt_jwork *w, const struct tt_jargs *args, size_t i, const char *name)
{
    return tt_jarg(w, args, i, name, tt_jnone);
}

/* The arguments after the first `n`. */
static struct tt_jargs rest(const struct tt_jargs *args, size_t n)
{
    struct tt_jargs left = *args;

    n = n < left.list.n ? n : left.list.n;
    left.list.item = n ? left.list.item + n : left.list.item;
    left.list.n -= n;
    return left;
}

static const char *name_of(struct tt_jwork *w, struct tt_jvalue v)
{
    if (v.kind != TT_J_STRING)
        tt_jfail(w, TT_EUSAGE, "found %s where a name was expected", tt_jkind_name(v));
    return tt_jcopy(w, v.text, v.size);
}

/* A part of the name of a member; digits form an index. */
static struct tt_jvalue part_of(struct tt_jwork *w, const char *text, size_t size)
{
    struct tt_jvalue part = tt_jstring(text, size);
    size_t n = 0;

    while (n < size && text[n] >= '0' && text[n] <= '9')
        n++;
    return n == size && n > 0 && n < 18 ? tt_jint(strtoll(name_of(w, part), NULL, 10)) : part;
}

/* The member of an item, given as a.b or by an index. */
static struct tt_jvalue member_of(struct tt_jwork *w, struct tt_jvalue item, struct tt_jvalue name)
{
    size_t at;

    if (name.kind != TT_J_STRING)
        return tt_jmember(w, item, name, false);
    while ((at = tt_jfind(w, name, 0, tt_jword("."))) != SIZE_MAX) {
        item = tt_jmember(w, item, part_of(w, name.text, at), false);
        name = tt_jstring(name.text + at + 1, name.size - at - 1);
    }
    return tt_jmember(w, item, part_of(w, name.text, name.size), false);
}

/* --- tests --- */

static bool divides(struct tt_jwork *w, struct tt_jvalue by, struct tt_jvalue v)
{
    if (v.kind != TT_J_INT || by.kind != TT_J_INT || by.integer == 0 || by.integer == -1)
        tt_jfail(w, TT_EUSAGE, "a test of divisibility needs integers");
    return v.integer % by.integer == 0;
}

/* strftime_now counts as undefined, so that templates write their default date, and training does not depend on the
 * current date. */
static bool is_defined(struct tt_jvalue v)
{
    return v.kind != TT_J_UNDEFINED && !(v.kind == TT_J_FUNCTION && strcmp(v.text, "strftime_now") == 0);
}

static bool test_kind(struct tt_jvalue v, const char *name, bool *ret_known)
{
    bool can_be_walked = v.kind == TT_J_LIST || v.kind == TT_J_TUPLE || v.kind == TT_J_DICT || v.kind == TT_J_STRING ||
                         v.kind == TT_J_UNDEFINED;
    const struct {
        const char *name;
        bool holds;
    } tests[] = {{"defined", is_defined(v)},
                 {"undefined", !is_defined(v)},
                 {"none", v.kind == TT_J_NONE},
                 {"string", v.kind == TT_J_STRING},
                 {"boolean", v.kind == TT_J_BOOL},
                 {"true", v.kind == TT_J_BOOL && v.integer},
                 {"false", v.kind == TT_J_BOOL && !v.integer},
                 {"integer", v.kind == TT_J_INT},
                 {"float", v.kind == TT_J_REAL},
                 {"number", v.kind == TT_J_INT || v.kind == TT_J_REAL || v.kind == TT_J_BOOL},
                 {"mapping", v.kind == TT_J_DICT},
                 {"iterable", can_be_walked || v.kind == TT_J_LOOP},
                 {"sequence", can_be_walked && !v.is_lazy},
                 {"callable", v.kind == TT_J_MACRO || v.kind == TT_J_FUNCTION || v.kind == TT_J_METHOD ||
                                  v.kind == TT_J_UNDEFINED || v.kind == TT_J_LOOP}};

    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(name, tests[i].name) == 0)
            return tests[i].holds;
    *ret_known = false;
    return false;
}

bool tt_jtest(struct tt_jwork *w, const char *name, struct tt_jvalue v, const struct tt_jargs *args)
{
    static const struct {
        const char *name, *op;
    } comparisons[] = {{"eq", "=="}, {"equalto", "=="}, {"ne", "!="},         {"lt", "<"},  {"lessthan", "<"},
                       {"le", "<="}, {"gt", ">"},       {"greaterthan", ">"}, {"ge", ">="}, {"in", "in"}};
    static const char *const no_names[] = {NULL};
    struct tt_jvalue other = arg(w, args, 0, "");
    bool is_kind = true, holds = test_kind(v, name, &is_kind);

    tt_jcheck_args(w, name, args, is_kind ? 0 : 1, no_names);
    if (is_kind)
        return holds;
    for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++)
        if (strcmp(name, comparisons[i].name) == 0 || strcmp(name, comparisons[i].op) == 0)
            return tt_jholds(w, comparisons[i].op, v, other);
    if (strcmp(name, "even") == 0 || strcmp(name, "odd") == 0)
        return divides(w, tt_jint(2), v) == (strcmp(name, "even") == 0);
    if (strcmp(name, "divisibleby") == 0)
        return divides(w, other, v);
    tt_jfail(w, TT_EUSAGE, "the test '%.40s' is not supported", name);
}

/* --- filters over lists --- */

static struct tt_jvalue map(struct tt_jwork *w, struct tt_jvalue v, const struct tt_jargs *args)
{
    struct tt_jvalue made = tt_jlist_new(w, TT_J_LIST), attribute = arg(w, args, SIZE_MAX, "attribute");
    struct tt_jlist *items = tt_jitems(w, v);
    struct tt_jargs left = rest(args, 1);
    const char *name = args->list.n || attribute.kind == TT_J_NONE ? name_of(w, arg(w, args, 0, "")) : NULL;

    for (size_t i = 0; i < items->n; i++) {
        struct tt_jvalue item =
            name ? tt_jfilter(w, name, items->item[i], &left) : member_of(w, items->item[i], attribute);

        if (!name && item.kind == TT_J_UNDEFINED)
            item = tt_jarg(w, args, SIZE_MAX, "default", item);
        tt_jlist_add(w, made.list, item);
    }
    made.is_lazy = true;
    return made;
}

/* The filters select, reject, selectattr and rejectattr. */
static struct tt_jvalue choose(struct tt_jwork *w, struct tt_jvalue v, const struct tt_jargs *args, bool wanted,
                               bool by_member)
{
    struct tt_jvalue made = tt_jlist_new(w, TT_J_LIST), key = arg(w, args, 0, "");
    struct tt_jargs of_test = rest(args, by_member ? 2 : 1);
    struct tt_jlist *items = tt_jitems(w, v);
    const char *test = args->list.n > by_member ? name_of(w, args->list.item[by_member]) : NULL;

    for (size_t i = 0; i < items->n; i++) {
        struct tt_jvalue item = by_member ? member_of(w, items->item[i], key) : items->item[i];
        bool holds = test ? tt_jtest(w, test, item, &of_test) : tt_jis_true(item);

        if (holds == wanted)
            tt_jlist_add(w, made.list, items->item[i]);
    }
    made.is_lazy = true;
    return made;
}

static struct tt_jvalue join(struct tt_jwork *w, struct tt_jvalue v, const struct tt_jargs *args)
{
    struct tt_jvalue by = tt_jto_string(w, tt_jarg(w, args, 0, "d", tt_jword("")));
    struct tt_jvalue attribute = arg(w, args, 1, "attribute");
    struct tt_jlist *items = tt_jitems(w, v);
    struct tt_jtext text = {0};

    for (size_t i = 0; i < items->n; i++) {
        if (i)
            tt_jtext_add(w, &text, by.text, by.size);
        tt_jtext_add_value(w, &text,
                           attribute.kind == TT_J_NONE ? items->item[i] : member_of(w, items->item[i], attribute));
    }
    return tt_jtext_value(&text);
}

static struct tt_jvalue fold_case(struct tt_jwork *w, struct tt_jvalue v, bool is_exact)
{
    return is_exact || v.kind != TT_J_STRING ? v : tt_jcase(w, v, "lower");
}

struct order {
    struct tt_jvalue attribute;
    bool is_exact, reverses;
};

static struct tt_jvalue sort_key(struct tt_jwork *w, struct tt_jvalue item, const struct order *order)
{
    if (order->attribute.kind != TT_J_NONE)
        item = member_of(w, item, order->attribute);
    return fold_case(w, item, order->is_exact);
}

/* Merges the sorted halves of items; equal items keep their order. */
static void sort_items(struct tt_jwork *w, struct tt_jvalue *items, struct tt_jvalue *scratch, size_t n,
                       const struct order *order)
{
    size_t half = n / 2, i = 0, k = half, to = 0;

    if (n < 2)
        return;
    sort_items(w, items, scratch, half, order);
    sort_items(w, items + half, scratch, n - half, order);
    while (i < half || k < n) {
        bool first = k == n;

        tt_jstep(w, 1);
        if (i < half && k < n)
            first =
                tt_jholds(w, order->reverses ? ">=" : "<=", sort_key(w, items[i], order), sort_key(w, items[k], order));
        scratch[to++] = first ? items[i++] : items[k++];
    }
    memcpy(items, scratch, n * sizeof *items);
}

static struct tt_jvalue sort(struct tt_jwork *w, struct tt_jvalue v, const struct order *order)
{
    struct tt_jvalue made = tt_jlist_new(w, TT_J_LIST);
    struct tt_jlist *items = tt_jitems(w, v);

    tt_jlist_extend(w, made.list, items);
    sort_items(w, made.list->item, tt_jalloc(w, items->n * sizeof *items->item), items->n, order);
    return made;
}

static struct tt_jvalue unique(struct tt_jwork *w, struct tt_jvalue v, bool is_exact)
{
    struct tt_jvalue made = tt_jlist_new(w, TT_J_LIST), seen = tt_jlist_new(w, TT_J_LIST);
    struct tt_jlist *items = tt_jitems(w, v);

    for (size_t i = 0; i < items->n; i++) {
        struct tt_jvalue key = fold_case(w, items->item[i], is_exact);

        if (tt_jholds(w, "in", key, seen))
            continue;
        tt_jlist_add(w, seen.list, key);
        tt_jlist_add(w, made.list, items->item[i]);
    }
    made.is_lazy = true;
    return made;
}

static struct tt_jvalue list_of(struct tt_jwork *w, struct tt_jvalue v)
{
    struct tt_jvalue made = tt_jlist_new(w, TT_J_LIST);

    *made.list = *tt_jitems(w, v);
    made.list->cap = made.list->n; /* full, so that an addition copies the list first */
    made.list->is_walked = false;
    return made;
}

static struct tt_jvalue reverse(struct tt_jwork *w, struct tt_jvalue v)
{
    struct tt_jvalue back = tt_jslice(w, v.kind == TT_J_LIST ? list_of(w, v) : v, tt_jnone, tt_jnone, tt_jint(-1));

    back.kind = back.kind == TT_J_TUPLE ? TT_J_LIST : back.kind;
    back.is_lazy = back.kind == TT_J_LIST && !v.is_lazy; /* in Python, reversing these would need a list */
    return back;
}

/* --- other filters --- */

static struct tt_jvalue indent(struct tt_jwork *w, struct tt_jvalue v, const struct tt_jargs *args)
{
    struct tt_jvalue width = tt_jarg(w, args, 0, "width", tt_jint(4));
    bool first = tt_jis_true(arg(w, args, 1, "first")), blank = tt_jis_true(arg(w, args, 2, "blank"));
    struct tt_jtext text = {0}, space = {0}, whole = {0};
    const struct tt_jlist *lines;

    if (width.kind == TT_J_STRING)
        tt_jtext_add(w, &space, width.text, width.size);
    else if (width.kind != TT_J_INT || width.integer > 1000)
        tt_jfail(w, TT_EUSAGE, "indent by %s is not supported", tt_jkind_name(width));
    for (int64_t i = 0; width.kind == TT_J_INT && i < width.integer; i++)
        tt_jtext_add(w, &space, " ", 1);
    tt_jtext_add_value(w, &whole, v);
    tt_jtext_add(w, &whole, "\n", 1); /* as in Jinja, so that an empty line at the end counts as a line */
    lines = tt_jlines(w, tt_jtext_value(&whole)).list;
    for (size_t i = 0; i < lines->n; i++) {
        struct tt_jvalue line = lines->item[i];

        if (i)
            tt_jtext_add(w, &text, "\n", 1);
        if (i ? line.size || blank : first)
            tt_jtext_add(w, &text, space.text, space.size);
        tt_jtext_add(w, &text, line.text, line.size);
    }
    return tt_jtext_value(&text);
}

/* The integer part of a text that represents a real number; `missing` for other texts. */
static struct tt_jvalue part_of_real(struct tt_jwork *w, const char *text, struct tt_jvalue missing)
{
    char *end = NULL;
    double real;

    if (strpbrk(text, "0123456789") && strchr(text, '_'))
        tt_jfail(w, TT_EUSAGE, "int of '%.40s' is not supported", text);
    real = strspn(text, "0123456789.eE+-") == strlen(text) ? strtod(text, &end) : 0.0;
    if (!end || end == text || *end)
        return missing;
    if (!(real > -1e18 && real < 1e18))
        tt_jfail(w, TT_EUSAGE, "an integer beyond 64 bits");
    return tt_jint((int64_t)real);
}

static struct tt_jvalue to_int(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue missing)
{
    struct tt_jvalue text;
    char *end = NULL;
    long long n;

    if (v.kind == TT_J_INT || v.kind == TT_J_BOOL)
        return tt_jint(v.integer);
    if (v.kind != TT_J_STRING)
        return v.kind == TT_J_REAL && v.real > -1e18 && v.real < 1e18 ? tt_jint((int64_t)v.real) : missing;
    text = tt_jstrip(w, v, NULL, 3);
    errno = 0;
    n = strtoll(name_of(w, text), &end, 10);
    if (errno)
        tt_jfail(w, TT_EUSAGE, "an integer beyond 64 bits");
    return text.size && !*end ? tt_jint(n) : part_of_real(w, name_of(w, text), missing);
}

static struct tt_jvalue or_default(struct tt_jwork *w, struct tt_jvalue v, const struct tt_jargs *args)
{
    bool also_false = tt_jis_true(arg(w, args, 1, "boolean"));

    return v.kind == TT_J_UNDEFINED || (also_false && !tt_jis_true(v))
               ? tt_jarg(w, args, 0, "default_value", tt_jword(""))
               : v;
}

static struct tt_jvalue pairs_of(struct tt_jwork *w, struct tt_jvalue v)
{
    struct tt_jargs nothing = {0};

    if (v.kind != TT_J_DICT && v.kind != TT_J_UNDEFINED)
        tt_jfail(w, TT_EUSAGE, "%s has no pairs of keys and values", tt_jkind_name(v));
    v = v.kind == TT_J_DICT ? tt_jcall_method(w, v, "items", &nothing) : tt_jlist_new(w, TT_J_LIST);
    v.is_lazy = true;
    v.is_view = false;
    return v;
}

/* The number of arguments that each filter takes, and their names. */
static const struct filter {
    const char *name;
    size_t most_args;
    const char *named[5];
} filters[] = {{"length", 0, {0}},
               {"count", 0, {0}},
               {"trim", 1, {"chars"}},
               {"string", 0, {0}},
               {"safe", 0, {0}},
               {"tojson", 4, {"ensure_ascii", "indent", "separators", "sort_keys"}},
               {"default", 2, {"default_value", "boolean"}},
               {"d", 2, {"default_value", "boolean"}},
               {"join", 2, {"d", "attribute"}},
               {"items", 0, {0}},
               {"list", 0, {0}},
               {"map", 9, {"attribute", "default"}},
               {"select", 9, {0}},
               {"reject", 9, {0}},
               {"selectattr", 9, {0}},
               {"rejectattr", 9, {0}},
               {"upper", 0, {0}},
               {"lower", 0, {0}},
               {"title", 0, {0}},
               {"capitalize", 0, {0}},
               {"replace", 3, {"old", "new", "count"}},
               {"first", 0, {0}},
               {"last", 0, {0}},
               {"reverse", 0, {0}},
               {"sort", 0, {"reverse", "case_sensitive", "attribute"}},
               {"dictsort", 0, {"case_sensitive"}},
               {"unique", 0, {"case_sensitive"}},
               {"indent", 3, {"width", "first", "blank"}},
               {"int", 1, {"default"}},
               {"abs", 0, {0}}};

static void check_filter(struct tt_jwork *w, const char *name, const struct tt_jargs *args)
{
    size_t i = 0, n = sizeof filters / sizeof *filters;

    while (i < n && strcmp(name, filters[i].name) != 0)
        i++;
    if (i == n)
        tt_jfail(w, TT_EUSAGE, "the filter '%.40s' is not supported", name);
    tt_jcheck_args(w, name, args, filters[i].most_args, filters[i].named);
}

/* Filters that change the order of things or choose among them. */
static struct tt_jvalue filter_list(struct tt_jwork *w, const char *name, struct tt_jvalue v,
                                    const struct tt_jargs *args)
{
    struct order order = {.attribute = arg(w, args, SIZE_MAX, "attribute"),
                          .is_exact = tt_jis_true(arg(w, args, SIZE_MAX, "case_sensitive")),
                          .reverses = tt_jis_true(arg(w, args, SIZE_MAX, "reverse"))};

    if (strcmp(name, "dictsort") == 0) {
        v = pairs_of(w, v);
        order.attribute = tt_jint(0);
    }
    if (strcmp(name, "sort") == 0 || strcmp(name, "dictsort") == 0)
        return sort(w, v, &order);
    if (strcmp(name, "unique") == 0)
        return unique(w, v, order.is_exact);
    if (strcmp(name, "reverse") == 0)
        return reverse(w, v);
    if (strcmp(name, "map") == 0)
        return map(w, v, args);
    return choose(w, v, args, strncmp(name, "select", 6) == 0, strlen(name) > 6);
}

struct tt_jvalue tt_jfilter(struct tt_jwork *w, const char *name, struct tt_jvalue v, const struct tt_jargs *args)
{
    struct tt_jtext text = {0};
    struct tt_jvalue chars = arg(w, args, 0, "chars");
#define IS(a, b) (strcmp(name, a) == 0 || strcmp(name, b) == 0)

    tt_jstep(w, 1);
    check_filter(w, name, args);
    if (IS("length", "count"))
        return tt_jint(tt_jlength(w, v));
    if (IS("trim", "trim"))
        return tt_jstrip(w, tt_jto_string(w, v), &chars, 3);
    if (IS("string", "safe")) {
        v = tt_jto_string(w, v);
        v.is_safe = v.is_safe || IS("safe", "safe");
        return v;
    }
    if (IS("tojson", "tojson")) {
        tt_jtext_add_json(w, &text, v, args);
        return tt_jtext_value(&text);
    }
    if (IS("default", "d"))
        return or_default(w, v, args);
    if (IS("join", "join"))
        return join(w, v, args);
    if (IS("items", "items"))
        return pairs_of(w, v);
    if (IS("list", "list"))
        return list_of(w, v);
    if (IS("upper", "lower") || IS("capitalize", "title"))
        return tt_jcase(w, tt_jto_string(w, v), strcmp(name, "title") ? name : "words");
    if (IS("replace", "replace")) {
        struct tt_jvalue most = arg(w, args, 2, "count");

        return tt_jreplace(w, tt_jto_string(w, v), tt_jto_string(w, arg(w, args, 0, "old")),
                           tt_jto_string(w, arg(w, args, 1, "new")), most.kind == TT_J_INT ? most.integer : -1);
    }
    if (IS("first", "last")) {
        const struct tt_jlist *items = tt_jitems(w, v);

        return items->n ? items->item[IS("last", "last") ? items->n - 1 : 0] : tt_jundefined("item");
    }
    if (IS("indent", "indent"))
        return indent(w, v, args);
    if (IS("int", "int"))
        return to_int(w, v, tt_jarg(w, args, 0, "default", tt_jint(0)));
    if (!IS("abs", "abs"))
        return filter_list(w, name, v, args);
    if (v.kind != TT_J_INT || v.integer == INT64_MIN)
        tt_jfail(w, TT_EUSAGE, "abs of %s is not supported", tt_jkind_name(v));
    return tt_jint(v.integer < 0 ? -v.integer : v.integer);
#undef IS
}
