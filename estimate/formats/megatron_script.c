/* SPDX-License-Identifier: MIT
 *
 * The flags that a script gives Megatron-LM. They are in the command that starts Megatron-LM, or in the variables of a
 * file that starts nothing.
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "estimate/formats/internal.h"
#include "estimate/script/script.h"

/* Words of a script; those in `own` were allocated here. */
struct words {
    const char **item;
    int n, cap;
};

/* What the user must choose first: an unknown value, and a flag that depends on it. */
struct need {
    int unknown;
    struct words depends;
};

struct gather {
    const struct tt_script *script;
    const char *path;
    const struct tt_cluster_given *given;
    struct need *need;
    int n_needs, cap_needs;
    struct words own; /* texts that were allocated here */
};

static const char *keep(struct gather *g, char *text)
{
    TT_PUSH(g->own.item, g->own.n, g->own.cap) = text;
    return text;
}

/* --- unknown values --- */

/* The unknown value that determines another one: its root, or itself if the user cannot give the root. */
static int decider(const struct gather *g, int unknown)
{
    int root = unknown;

    for (int i = 0; i < g->script->n_unknown && g->script->unknown[root].of >= 0; i++)
        root = g->script->unknown[root].of;
    return g->script->unknown[root].name ? root : unknown;
}

static void need(struct gather *g, int unknown, const char *what)
{
    int by = decider(g, unknown), at = 0;
    const char *depends = g->script->unknown[unknown].name && unknown != by ? g->script->unknown[unknown].name : what;
    struct words *d;

    while (at < g->n_needs && g->need[at].unknown != by &&
           !(g->script->unknown[by].name && g->script->unknown[g->need[at].unknown].name &&
             strcmp(g->script->unknown[by].name, g->script->unknown[g->need[at].unknown].name) == 0))
        at++;
    if (at == g->n_needs)
        TT_PUSH(g->need, g->n_needs, g->cap_needs) = (struct need){.unknown = by};
    d = &g->need[at].depends;
    for (int i = 0; i < d->n; i++)
        if (strcmp(d->item[i], depends) == 0)
            return;
    TT_PUSH(d->item, d->n, d->cap) = depends;
}

/* "7B, 13B or 70B" */
static void add_values(struct tt_text *text, const struct tt_script_unknown *u)
{
    int n = u->compared.n;

    for (int i = 0; i < n; i++)
        tt_text_add(text, "%s%s",
                    i == 0       ? " ("
                    : i + 1 == n ? " or "
                                 : ", ",
                    *u->compared.word[i] ? u->compared.word[i] : "''");
    for (int i = 0; n == 0 && i < u->n_values; i++) {
        tt_text_add(text, "%s'", i == 0 ? " (" : i + 1 == u->n_values ? " or " : ", ");
        for (int k = 0; k < u->value[i].n && k < 4; k++)
            tt_text_add(text, "%s%.40s", k ? " " : "",
                        tt_script_mark(u->value[i].word[k]) < 0 ? u->value[i].word[k] : "...");
        tt_text_add(text, "'");
    }
    if (n > 0 || u->n_values > 0)
        tt_text_add(text, ")");
}

static int fail_needs(const struct gather *g)
{
    struct tt_text all = {0};
    const char *first = NULL, *value = NULL;
    int rc;

    for (int i = 0; i < g->n_needs; i++) {
        const struct tt_script_unknown *u = &g->script->unknown[g->need[i].unknown];
        const struct words *d = &g->need[i].depends;

        tt_text_add(&all, "%s", i ? "; " : "");
        if (u->name)
            tt_text_add(&all, "%s", u->name);
        else
            tt_text_add(&all, "%s in line %d",
                        u->why == TT_WHY_PROGRAM    ? "the output of a program"
                        : u->why == TT_WHY_ARGUMENT ? "an argument"
                        : u->why == TT_WHY_TEST     ? "a test"
                                                    : "an expansion",
                        u->line);
        add_values(&all, u);
        for (int k = 0; k < d->n; k++)
            tt_text_add(&all, "%s%s", k == 0 ? " decides " : k + 1 == d->n ? " and " : ", ", d->item[k]);
        if (u->name && !first) {
            first = u->name;
            value = u->compared.n ? u->compared.word[0] : "VALUE";
        }
    }
    tt_text_make_printable(&all);
    rc = tt_fail(
        TT_EUSAGE,
        "estimate: %s: Megatron's flags depend on values that the script does not contain: %s\nhelp: choose with "
        "--set, such as --set %s=%s, or give all arguments of the script with --script-args 'WORD WORD...'",
        g->path, all.text, first ? first : "NAME", value && *value ? value : "VALUE");
    tt_text_release(&all);
    return rc;
}

/* --- words --- */

static void append(struct words *to, const struct words *from)
{
    for (int i = 0; i < from->n; i++)
        TT_PUSH(to->item, to->n, to->cap) = from->item[i];
}

/* The word after flag i, as its value; "" if nothing follows. */
static const char *value_at(const struct words *w, int i)
{
    return i + 1 < w->n && !tt_text_begins(w->item[i + 1], "--") ? w->item[i + 1] : "";
}

/* Adds a word; a word that contains a whole command, or a flag with its value, is cut into words. Quotes within quotes
 * are for eval, and are removed. */
static void add_cut(struct gather *g, struct words *out, const char *word)
{
    size_t length = strlen(word);

    if (length > 1 && strchr("'\"", *word) && word[length - 1] == *word)
        word = keep(g, tt_strndup(word + 1, length - 2));
    if (!strpbrk(word, " \t\r\n") ||
        !(tt_text_begins(word, "--") || strstr(word, " --") || strstr(word, "\n--") || strstr(word, "\t--"))) {
        TT_PUSH(out->item, out->n, out->cap) = word;
        return;
    }
    for (const char *at = word + strspn(word, " \t\r\n"); *at;) {
        size_t n = strcspn(at, " \t\r\n");
        char *one = tt_strndup(at, n), *to = one;

        for (const char *from = one; *from; from++)
            if (!strchr("'\"", *from))
                *to++ = *from;
        *to = 0;
        TT_PUSH(out->item, out->n, out->cap) = keep(g, one);
        at += n;
        at += strspn(at, " \t\r\n");
    }
}

static struct words cut(struct gather *g, const struct tt_script_words *words)
{
    struct words out = {0};

    for (int i = 0; i < words->n; i++)
        add_cut(g, &out, words->word[i]);
    return out;
}

/* Whether the words, or the values of marks in them, contain flags on which the cost may depend. */
static bool matters(struct gather *g, const struct tt_script_words *words, int depth)
{
    struct words w = cut(g, words);
    bool any = false;

    for (int i = 0; i < w.n; i++) {
        int mark = tt_script_mark(w.item[i]);
        const struct tt_script_unknown *u = mark < 0 ? NULL : &g->script->unknown[mark];

        if (tt_text_begins(w.item[i], "--"))
            any = any || tt_megatron_flag_kind(w.item[i] + 2) != TT_FLAG_IS_FREE;
        else if (u && tt_script_is_mark(w.item[i])) {
            any = any || u->why == TT_WHY_PROGRAM || u->why == TT_WHY_FORM || depth > 20;
            for (int k = 0; k < u->n_values && depth <= 20; k++)
                any = any || matters(g, &u->value[k], depth + 1);
        }
    }
    tt_free((void *)w.item);
    return any;
}

/* Whether a mark may stand for flags, so that it is not the value of the flag before it. */
static bool is_flags(const struct gather *g, const char *word)
{
    const struct tt_script_unknown *u = &g->script->unknown[tt_script_mark(word)];

    for (int i = 0; i < u->n_values; i++)
        if (u->value[i].n > 0 && tt_text_begins(u->value[i].word[0] + strspn(u->value[i].word[0], " \t\r\n"), "--"))
            return true;
    return false;
}

/* A word with its marks replaced by the names of the unknown values: "$NAME". */
static const char *readable(struct gather *g, const char *word)
{
    struct tt_text text = {0};

    for (const char *at = word; *at;) {
        const char *name;

        if (*at != '\1') {
            tt_text_add(&text, "%c", *at++);
            continue;
        }
        name = g->script->unknown[tt_script_mark(at)].name;
        tt_text_add(&text, "$%s", name ? name : "(...)");
        at = strchr(at, '\2') + 1;
    }
    return keep(g, text.text ? text.text : tt_strdup(""));
}

/* Takes a word of the command that is a mark and not the value of a flag. */
static void take_mark(struct gather *g, const char *word, struct tt_cluster_notes *notes)
{
    int mark = tt_script_mark(word);
    const struct tt_script_unknown *u = &g->script->unknown[mark];
    struct tt_script_words one = {.word = &word, .n = 1};

    if (u->why == TT_WHY_UNSET || u->why == TT_WHY_ARGUMENT)
        tt_cluster_note(notes, readable(g, word), "", "nothing sets it, so titan treats it as empty");
    else if (matters(g, &one, 0))
        need(g, mark, u->name ? u->name : "flags");
}

/* Records that a flag has an unknown value, unless a flag after the script overrides it. */
static void need_of_flag(struct gather *g, const char *flag, int unknown)
{
    enum tt_megatron_kind kind = tt_megatron_flag_kind(flag);
    bool is_needed = kind >= TT_FLAG_IS_SIZE && kind <= TT_FLAG_IS_VALUE;
    size_t n = strlen(flag);

    for (int i = 0; i < g->given->n_words; i++) {
        const char *word = g->given->words[i];

        if (tt_text_begins(word, "--") && strncmp(word + 2, flag, n) == 0 && (!word[2 + n] || word[2 + n] == '='))
            is_needed = false;
    }
    if (is_needed)
        need(g, unknown, keep(g, tt_format("--%s", flag)));
}

/* Takes the words of a command: `out` gets them without marks, and `needs` gets the unknown values on which they
 * depend. */
static void take(struct gather *g, const struct words *in, struct words *out, struct tt_cluster_notes *notes)
{
    bool takes_value = false, is_begun = false; /* words before the program are for its launcher */
    const char *flag = "";

    for (int i = 0; i < in->n; i++) {
        const char *word = in->item[i], *equal;
        int mark = tt_script_mark(word);
        size_t length = strlen(word);

        is_begun = is_begun || tt_text_begins(word, "--") || (length > 3 && strcmp(word + length - 3, ".py") == 0);
        if (!is_begun)
            continue;
        if (tt_text_begins(word, "--")) {
            equal = strchr(word, '=');
            flag = equal ? keep(g, tt_strndup(word + 2, (size_t)(equal - word - 2))) : word + 2;
            if (mark >= 0)
                need_of_flag(g, flag, mark);
            takes_value = !equal && tt_megatron_flag_kind(flag) != TT_FLAG_IS_SWITCH;
        } else if (mark >= 0 && tt_script_is_mark(word) && (!takes_value || is_flags(g, word))) {
            take_mark(g, word, notes);
            takes_value = false;
            continue;
        } else if (mark >= 0) {
            if (takes_value)
                need_of_flag(g, flag, mark);
            takes_value = false;
        } else if (*word == '-' && word[1] && strcspn(word + 1, "0123456789") > 0) {
            takes_value = true; /* such as "-np 8" */
            flag = "";
        } else
            takes_value = false;
        TT_PUSH(out->item, out->n, out->cap) = mark >= 0 ? readable(g, word) : word;
    }
}

/* --- choosing a command --- */

static bool is_read(const char *word)
{
    return tt_text_begins(word, "--") && tt_megatron_flag_kind(word + 2) >= TT_FLAG_IS_SIZE;
}

/* The flags that are read, with their values; if these are equal, two commands start the same job. */
static char *job_of(const struct words *w)
{
    struct tt_text text = {0};

    for (int i = 0; i < w->n; i++)
        if (is_read(w->item[i]))
            tt_text_add(&text, "%s %s\n", w->item[i], value_at(w, i));
    return text.text;
}

static int fail_several(struct gather *g, const struct tt_script_command *a, const struct tt_script_command *b)
{
    const char *name = a->loop ? a->loop : b->loop;
    int under = a->under >= 0 ? a->under : b->under;

    if (!name && under >= 0)
        name = g->script->unknown[decider(g, under)].name;
    return tt_fail(TT_EUSAGE,
                   "estimate: %s starts Megatron more than once, with different flags, in lines %d and %d\n"
                   "help: %s%s%s",
                   g->path, a->line, b->line, name ? "choose one with --set " : "leave one of them in the script",
                   name ? name : "", name ? "=VALUE" : "");
}

/* Finds the words of the command that starts the training; none if there is no such command. */
static int find_command(struct gather *g, struct words *ret_words)
{
    const struct tt_script_command *chosen = NULL;
    char *job = NULL;
    int rc = 0;

    for (int i = 0; i < g->script->n_commands && rc == 0; i++) {
        const struct tt_script_command *c = &g->script->command[i];
        struct words w = cut(g, &c->words);
        char *own = job_of(&w);
        bool goes_on = own && chosen && tt_text_begins(w.item[0], "--") && tt_text_begins(chosen->words.word[0], "--");

        if (goes_on) /* in a file of flags alone, each line counts as a command */
            append(ret_words, &w);
        else if (own && !chosen) {
            chosen = c;
            job = tt_strdup(own);
            append(ret_words, &w);
        } else if (own && strcmp(own, job) != 0)
            rc = fail_several(g, chosen, c);
        tt_free(own);
        tt_free((void *)w.item);
    }
    tt_free(job);
    return rc;
}

/* The value of a flag among words; NULL: the flag is not among them. */
static const char *value_in(const struct words *w, int n, const char *flag)
{
    for (int i = n - 1; i >= 0; i--)
        if (strcmp(w->item[i], flag) == 0)
            return value_at(w, i);
    return NULL;
}

/* If there is no command: takes the words of all variables that contain flags. */
static int find_variables(struct gather *g, struct words *ret_words)
{
    int rc = 0;

    for (int i = 0; i < g->script->n_variables && rc == 0; i++) {
        const struct tt_script_variable *v = &g->script->variable[i];
        struct words w = cut(g, &v->value);
        char *job = job_of(&w);
        bool has_flags = v->is_set && job;
        int before = ret_words->n;

        for (int k = 0; has_flags && k < w.n && rc == 0; k++) {
            const char *other = is_read(w.item[k]) ? value_in(ret_words, before, w.item[k]) : NULL;
            const char *own = value_at(&w, k);

            if (other && strcmp(other, own) != 0)
                rc = tt_fail(TT_EUSAGE,
                             "estimate: %s starts no training, and its variables give %s both as '%s' and as '%s' (in "
                             "%s)\nhelp: give the script that has the command, or the flag after --",
                             g->path, w.item[k], readable(g, other), readable(g, own), v->name);
        }
        if (has_flags)
            append(ret_words, &w);
        tt_free(job);
        tt_free((void *)w.item);
    }
    return rc;
}

int tt_megatron_flags_script(struct tt_megatron_flags *f, const char *path, const char *text,
                             const struct tt_cluster_given *given)
{
    struct tt_script script = {0};
    struct gather g = {.script = &script, .path = path, .given = given};
    struct words found = {0}, words = {0};
    int rc = 0;

    TT_TRY(tt_script_read(&script, path, text, given->set, given->n, given->args));
    TT_TRY(find_command(&g, &found));
    if (found.n == 0)
        TT_TRY(find_variables(&g, &found));
    if (found.n == 0)
        TT_TRY(tt_fail(TT_EUSAGE,
                       "estimate: %s passes Megatron-LM none of the flags that titan reads\n"
                       "help: give the script that has the command with --num-layers, --hidden-size and so on",
                       path));
    take(&g, &found, &words, f->notes);
    if (g.n_needs > 0)
        TT_TRY(fail_needs(&g));
    for (int i = 0; i < script.assumed.n; i++)
        tt_cluster_note(f->notes, keep(&g, tt_format("$%s", script.assumed.word[i])), "",
                        "the script tests it, but nothing sets it, so titan treats it as not set");
    if (script.source)
        tt_cluster_note(f->notes, "source", readable(&g, script.source), "the file is not read");
    rc = tt_megatron_flags_words(f, words.n, words.item);
out:
    for (int i = 0; i < g.n_needs; i++)
        tt_free((void *)g.need[i].depends.item);
    tt_free(g.need);
    for (int i = 0; i < g.own.n; i++)
        tt_free((void *)g.own.item[i]);
    tt_free((void *)g.own.item);
    tt_free((void *)found.item);
    tt_free((void *)words.item);
    tt_script_release(&script);
    return rc;
}
