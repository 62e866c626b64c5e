/* SPDX-License-Identifier: MIT
 *
 * The owner of utf8proc: normal forms of Unicode (UAX #15), and plain changes of text. Code points that its tables do
 * not assign stay as they are.
 */
#include "core/tokenizer/normalizer.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "core/base/mem.h"

enum { DEEPEST_SEQUENCE = 4 };

struct tt_normal_form {
    const char *type;
    utf8proc_option_t options;
    unsigned char first; /* in UTF-8, the lowest byte of a character that the form may change or move */
};

static const struct tt_normal_form forms[] = {
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE, 0xcc},                    /* U+0300, the first combining mark */
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, 0xc3},                  /* U+00C0 */
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT, 0xc2}, /* U+00A0 */
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, 0xc2},
};

static int new_step(struct tt_normalizer *n, const char *where, struct tt_normalizer_step **ret_step)
{
    if (n->n_steps == TT_NORMALIZER_STEPS)
        return tt_fail(TT_EDATA, "%s: normalizer has more than %d steps", where, TT_NORMALIZER_STEPS);
    *ret_step = &n->step[n->n_steps++];
    return 0;
}

static int add_prepend(struct tt_normalizer *n, const json_t *json, const char *where)
{
    const char *prepend = json_string_value(json_object_get(json, "prepend"));
    struct tt_normalizer_step *step = NULL;
    int rc = 0;

    if (!prepend)
        return tt_fail(TT_EDATA, "%s: normalizer Prepend has no string prepend", where);
    TT_TRY(new_step(n, where, &step));
    step->to = tt_strdup(prepend);
out:
    return rc;
}

static int add_replace(struct tt_normalizer *n, const json_t *json, const char *where)
{
    const char *from = json_string_value(json_object_get(json_object_get(json, "pattern"), "String"));
    const char *to = json_string_value(json_object_get(json, "content"));
    struct tt_normalizer_step *step = NULL;
    int rc = 0;

    if (!from || !*from || !to) {
        return tt_fail(TT_EDATA, "%s: normalizer Replace is supported with a string as pattern.String and as content",
                       where);
    }
    TT_TRY(new_step(n, where, &step));
    step->from = tt_strdup(from);
    step->to = tt_strdup(to);
out:
    return rc;
}

static int add_steps(struct tt_normalizer *n, const json_t *json, const char *where, int depth)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    const json_t *list = json_object_get(json, "normalizers");
    struct tt_normalizer_step *step = NULL;
    int rc = 0;

    for (size_t i = 0; type && i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(type, forms[i].type) != 0)
            continue;
        TT_TRY(new_step(n, where, &step));
        step->form = &forms[i];
        return 0;
    }
    if (type && strcmp(type, "Prepend") == 0)
        return add_prepend(n, json, where);
    if (type && strcmp(type, "Replace") == 0)
        return add_replace(n, json, where);
    if (!type || strcmp(type, "Sequence") != 0 || depth > DEEPEST_SEQUENCE) {
        return tt_fail(TT_EDATA,
                       "%s: normalizer '%s' is not supported (null, NFC, NFD, NFKC, NFKD, Prepend and Replace are)",
                       where, type ? type : "(no type)");
    }
    for (size_t i = 0; i < json_array_size(list); i++)
        TT_TRY(add_steps(n, json_array_get(list, i), where, depth + 1));
out:
    return rc;
}

int tt_normalizer_init(struct tt_normalizer *n, const json_t *json, const char *where)
{
    *n = (struct tt_normalizer){0};
    return !json || json_is_null(json) ? 0 : add_steps(n, json, where, 0);
}

void tt_normalizer_release(struct tt_normalizer *n)
{
    for (int i = 0; i < n->n_steps; i++) {
        tt_free(n->step[i].from);
        tt_free(n->step[i].to);
    }
    *n = (struct tt_normalizer){0};
}

static bool may_change(const struct tt_normal_form *form, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)text[i] >= form->first)
            return true;
    return false;
}

/* text may be the scratch's. */
static int apply(const struct tt_normal_form *form, struct tt_text *scratch, const char *text, size_t size)
{
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, &made, form->options);

    if (n < 0)
        return tt_fail(TT_EDATA, "cannot convert %zu bytes of text to normal form %s: %s", size, form->type,
                       utf8proc_errmsg(n));
    scratch->size = 0;
    tt_text_add_bytes(scratch, made, (size_t)n);
    free(made);
    return 0;
}

/* text may be the scratch's. */
static void substitute(const struct tt_normalizer_step *step, struct tt_text *scratch, const char *text, size_t size)
{
    struct tt_text made = {0};

    tt_text_add_bytes(&made, "", 0); /* so that made.text is not NULL even if it stays empty */
    if (step->from) {
        tt_text_add_replaced(&made, text, size, step->from, step->to);
    } else if (size) { /* nothing is put before an empty text */
        tt_text_add_bytes(&made, step->to, strlen(step->to));
        tt_text_add_bytes(&made, text, size);
    }
    tt_text_release(scratch);
    *scratch = made;
}

int tt_normalizer_apply(const struct tt_normalizer *n, struct tt_text *scratch, const char *text, size_t size,
                        const char **ret_text, size_t *ret_size)
{
    int rc = 0;

    for (int i = 0; i < n->n_steps; i++) {
        if (!n->step[i].form) {
            substitute(&n->step[i], scratch, text, size);
        } else if (may_change(n->step[i].form, text, size)) {
            TT_TRY(apply(n->step[i].form, scratch, text, size));
        } else {
            continue;
        }
        text = scratch->text;
        size = scratch->size;
    }
    *ret_text = text;
    *ret_size = size;
out:
    return rc;
}
