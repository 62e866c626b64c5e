/* SPDX-License-Identifier: MIT
 *
 * Normal forms of Unicode, and plain changes of text.
 */
#include "core/tokenizer/normalizer.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/base/utf8.h"

enum { DEEPEST_SEQUENCE = 4 };

struct tt_normal_form {
    const char *type;
    enum tt_utf8_form form;
    unsigned char first; /* in UTF-8, the lowest byte of a character that the form may change or move */
};

static const struct tt_normal_form forms[] = {
    {"NFC", TT_UTF8_NFC, 0xcc},   /* U+0300, the first combining mark */
    {"NFD", TT_UTF8_NFD, 0xc3},   /* U+00C0 */
    {"NFKC", TT_UTF8_NFKC, 0xc2}, /* U+00A0 */
    {"NFKD", TT_UTF8_NFKD, 0xc2},
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
    const char *prepend = tt_json_plain_string(json_object_get(json, "prepend"));
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
    const char *from = tt_json_plain_string(json_object_get(json_object_get(json, "pattern"), "String"));
    const char *to = tt_json_plain_string(json_object_get(json, "content"));
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

/*
 * The `tokenizers` library has the normal forms of Unicode 9.0: characters that came later stay as they are, and do not
 * combine. Unicode never changes the normal forms of characters that it has.
 */
static void read_assigned(struct tt_normalizer *n)
{
    struct tt_charset sets[2] = {{0}, {0}};

    tt_charset_add(&sets[0], '\n', '\n');
    (void)tt_charset_add_property(&sets[1], "assigned9", 9);
    (void)tt_kinds_init(&n->assigned, sets, 2);
    tt_charset_release(&sets[0]);
    tt_charset_release(&sets[1]);
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
        if (!n->assigned.n)
            read_assigned(n);
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
    tt_kinds_release(&n->assigned);
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

static int put_normal(const struct tt_normal_form *form, const char *text, size_t size, struct tt_text *out)
{
    if (may_change(form, text, size))
        return tt_utf8_normalize(form->form, text, size, out);
    tt_text_add_bytes(out, text, size);
    return 0;
}

/* Converts what is between characters that are not assigned. text may be the scratch's. */
static int convert(const struct tt_normalizer *n, const struct tt_normal_form *form, struct tt_text *scratch,
                   const char *text, size_t size)
{
    uint8_t assigned = tt_kinds_of(&n->assigned, 'a');
    struct tt_text made = {0};
    size_t done = 0, length = 0;
    int rc = 0;

    tt_text_add_bytes(&made, "", 0);
    for (size_t i = 0; i < size; i += length) {
        uint32_t code = 0;

        length = (size_t)tt_utf8_decode(text + i, size - i, &code);
        if (!length)
            TT_TRY(tt_fail(TT_EDATA, "invalid UTF-8 at byte %zu of the text", i));
        if (code < 0x80 || tt_kinds_of(&n->assigned, code) == assigned)
            continue;
        TT_TRY(put_normal(form, text + done, i - done, &made));
        tt_text_add_bytes(&made, text + i, length);
        done = i + length;
    }
    TT_TRY(put_normal(form, text + done, size - done, &made));
    tt_text_release(scratch);
    *scratch = made;
    return 0;
out:
    tt_text_release(&made);
    return rc;
}

int tt_normalizer_apply(const struct tt_normalizer *n, struct tt_text *scratch, const char *text, size_t size,
                        const char **ret_text, size_t *ret_size)
{
    int rc = 0;

    for (int i = 0; i < n->n_steps; i++) {
        if (!n->step[i].form) {
            substitute(&n->step[i], scratch, text, size);
        } else if (may_change(n->step[i].form, text, size)) {
            TT_TRY(convert(n, n->step[i].form, scratch, text, size));
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
