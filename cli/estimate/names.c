/* SPDX-License-Identifier: MIT
 *
 * Names of models and machines as people write them.
 */
#include "cli/estimate/names.h"

#include <string.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/base/text.h"

/* The letters and the numbers of a name, in order and in lower case: llama, 3.1, 70, b. */
enum { MOST_PARTS = 24, PART_BYTES = 24 };
struct parts {
    char part[MOST_PARTS][PART_BYTES];
    int n;
};

static bool is_digit(char c)
{
    return isdigit((unsigned char)c) != 0;
}

/* Takes the letters or the number at the beginning of a text; returns what follows. */
static const char *take(const char *at, char part[PART_BYTES])
{
    bool digits = is_digit(*at);
    size_t n = 0;

    for (; isalnum((unsigned char)*at) || (digits && *at == '.' && is_digit(at[1])); at++) {
        if (*at != '.' && is_digit(*at) != digits)
            break;
        if (n + 1 < PART_BYTES)
            part[n++] = (char)tolower((unsigned char)*at);
    }
    part[n] = 0;
    return at;
}

static void split(const char *text, struct parts *p)
{
    p->n = 0;
    while (*text && p->n < MOST_PARTS)
        if (isalnum((unsigned char)*text))
            text = take(text, p->part[p->n++]);
        else
            text++;
}

/* Whether all parts of a are parts of b, in the same order. */
static bool within(const struct parts *a, const struct parts *b)
{
    int i = 0;

    for (int k = 0; k < b->n && i < a->n; k++)
        i += strcmp(a->part[i], b->part[k]) == 0;
    return a->n > 0 && i == a->n;
}

/* Whether the rest of a word, beside the name in it, consists of numbers and the listed words. */
static bool may_add(const struct parts *word, const struct parts *own, const char *more)
{
    int at = 0;

    for (int i = 0; i < word->n; i++)
        if (at < own->n && strcmp(word->part[i], own->part[at]) == 0)
            at++;
        else if (!is_digit(word->part[i][0]) && !tt_text_is_listed(word->part[i], more))
            return false;
    return true;
}

/* The part of a name that marks the usual variant. */
static bool is_usual(const char *name)
{
    return strstr(name, "-sxm") || tt_text_ends(name, "-80") || tt_text_ends(name, "-32");
}

/* How well a word matches a name; 0: not at all. */
static int likeness(const struct parts *word, const char *name, const char *title, const char *more)
{
    enum { EQUAL = 4000, PART_OF = 3000, WHOLE = 2000, TITLE = 1000 };
    struct parts own, of_title;
    int much;

    split(name, &own);
    if (within(word, &own) && own.n == word->n)
        return EQUAL;
    if (within(word, &own))
        return PART_OF + (is_usual(name) ? 50 : 0) - (strstr(name, "debug") ? 100 : 0);
    if (within(&own, word) && may_add(word, &own, more)) {
        much = 0;
        for (int i = 0; i < own.n; i++)
            much += (int)strlen(own.part[i]);
        return WHOLE + 10 * much;
    }
    if (!title)
        return 0;
    split(title, &of_title);
    return within(word, &of_title) ? TITLE + (is_usual(name) ? 50 : 0) : 0;
}

/* How close a name is to a word, for a message: by the parts that they share, their beginning, and the edits between
 * them. */
static int nearness(const struct parts *word, const char *text, const char *name)
{
    struct parts own;
    int near = 0, begin = 0;

    split(name, &own);
    for (int i = 0; i < word->n; i++)
        for (int k = 0; k < own.n; k++)
            if (strcmp(word->part[i], own.part[k]) == 0) {
                near += 6 + 2 * (int)strlen(own.part[k]);
                own.part[k][0] = 0;
                break;
            }
    while (text[begin] && name[begin] && tolower((unsigned char)text[begin]) == tolower((unsigned char)name[begin]))
        begin++;
    return near + begin - tt_text_distance(text, name) - (strstr(name, "debug") ? 20 : 0);
}

static int refuse(const struct tt_names *names, const char *word, const struct parts *parts, const int *like, int most)
{
    enum { NEAR = 3 };
    int near[NEAR], n = 0;
    struct tt_text text = {0};
    int rc;

    for (int i = 0; i < names->n; i++) {
        int at = n;

        if ((most > 0 && like[i] == 0) || (strstr(names->name[i], "debug") && !strstr(word, "debug")))
            continue;
        while (at > 0 && nearness(parts, word, names->name[i]) > nearness(parts, word, names->name[near[at - 1]]))
            at--;
        if (at == NEAR)
            continue;
        n += n < NEAR;
        for (int k = n - 1; k > at; k--)
            near[k] = near[k - 1];
        near[at] = i;
    }
    for (int i = 0; i < n; i++)
        tt_text_add(&text, "%s%s", i == 0 ? "" : i + 1 == n ? " or " : ", ", names->name[near[i]]);
    rc = tt_fail(TT_EUSAGE, "estimate: %s '%s' %s\nhelp: did you mean %s? %s", names->what, word,
                 most > 0 ? "could be several" : "is not known", text.text ? text.text : "", names->help);
    tt_text_release(&text);
    return rc;
}

/* "70b" means the first model of that size. */
static bool is_size(const struct parts *p)
{
    return p->n == 2 && is_digit(p->part[0][0]) && strcmp(p->part[1], "b") == 0;
}

int tt_names_find(const struct tt_names *names, const char *word, int *ret_index)
{
    int *like = tt_calloc((size_t)names->n, sizeof *like), best = -1, rc = 0;
    struct parts parts;

    split(word, &parts);
    for (int i = 0; i < names->n; i++) {
        like[i] = likeness(&parts, names->name[i], names->title ? names->title[i] : NULL, names->more);
        if (like[i] > 0 && (best < 0 || like[i] > like[best]))
            best = i;
    }
    for (int i = 0; i < names->n && best >= 0 && !is_size(&parts); i++) {
        bool is_as_good = i != best && like[i] == like[best];

        if (is_as_good && !(names->same && names->same(names->name[i], names->name[best]))) {
            rc = refuse(names, word, &parts, like, like[best]);
            goto out;
        }
    }
    if (best < 0)
        rc = refuse(names, word, &parts, like, 0);
    *ret_index = best;
out:
    tt_free(like);
    return rc;
}

bool tt_names_is_number_of(const char *word, const char *name)
{
    struct parts own, given;

    split(name, &own);
    split(word, &given);
    return own.n == 2 && given.n == 1 && is_digit(given.part[0][0]) && strcmp(own.part[1], given.part[0]) == 0 &&
           strcmp(own.part[0], "rtx") == 0;
}
