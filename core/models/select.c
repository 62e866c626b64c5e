/* SPDX-License-Identifier: MIT
 *
 * Patterns of names of modules.
 */
#include "core/models/select.h"

#include <stdint.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/tokenizer/regex.h"

/* Whether a pattern is a name, and not a regular expression. */
static bool is_name(const char *pattern)
{
    return pattern[strspn(pattern, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")] == 0;
}

/* Whether a name is, or ends after a dot with, `end`. */
static bool ends_with(const char *name, const char *end)
{
    size_t size = strlen(name), n = strlen(end);

    return size >= n && strcmp(name + size - n, end) == 0 && (size == n || name[size - n - 1] == '.');
}

int tt_names_select(const char *pattern, const char *const *name, int n, bool *selected, bool *ret_any)
{
    char *whole = is_name(pattern) ? NULL : tt_format("^(?:%s)$", pattern);
    struct tt_matcher *matcher = NULL;
    struct tt_regex *regex = NULL;
    int rc = whole ? tt_regex_new(whole, strlen(whole), NULL, &regex) : 0;

    *ret_any = false;
    TT_TRY(rc == TT_EDATA ? tt_fail(TT_EUSAGE, "%s", tt_error_message()) : rc);
    TT_TRY(tt_matcher_new(&matcher));
    for (int i = 0; i < n; i++) {
        size_t begin, end;
        bool found = name[i] && !regex && ends_with(name[i], pattern);

        if (name[i] && regex)
            TT_TRY(tt_matcher_find(matcher, regex, name[i], strlen(name[i]), &found, &begin, &end));
        selected[i] = selected[i] || found;
        *ret_any = *ret_any || found;
    }
out:
    tt_matcher_free(matcher);
    tt_regex_free(regex);
    tt_free(whole);
    return rc;
}

/* The end of a name, with the same number of dots as `like`. */
static const char *end_of(const char *name, const char *like)
{
    const char *end = name + strlen(name);
    int dots = 0;

    for (; *like; like++)
        dots += *like == '.';
    while (end > name && (end[-1] != '.' || dots-- > 0))
        end--;
    return end;
}

char *tt_names_advise(const char *pattern, const char *const *name, int n, const char *const *more, int n_more)
{
    const char **ends = tt_calloc((size_t)(n + n_more) + 1, sizeof *ends), *near, *example[2] = {NULL, NULL};
    int n_ends = 0;
    char *text;

    for (int i = 0; i < n_more; i++)
        ends[n_ends++] = more[i];
    for (int i = 0; i < n; i++) {
        if (!name[i])
            continue;
        ends[n_ends++] = end_of(name[i], pattern);
        if (!example[0] || !example[1])
            example[example[0] != NULL] = name[i];
    }
    near = is_name(pattern) ? tt_text_nearest(pattern, ends, n_ends) : NULL;
    text = tt_format("%s%s%snames look like %s or %s; an expression must match such a name from its beginning to its "
                     "end",
                     near ? "did you mean '" : "", near ? near : "", near ? "'? " : "",
                     example[0] ? example[0] : "q_proj", example[1] ? example[1] : "self_attn.q_proj");
    tt_free(ends);
    return text;
}
