/* SPDX-License-Identifier: MIT
 *
 * The values of a pickle, and the names of the classes that it may have.
 */
#include <stdio.h>
#include <string.h>

#include "checkpoint/dcp/pickle.h"
#include "core/base/mem.h"

enum { BLOCK_VALUES = 1024, NAME_SHOWN = 80, MEMBERS_MOST = 64 };

static bool same(const char *a, size_t a_size, const char *b)
{
    return a_size == strlen(b) && memcmp(a, b, a_size) == 0;
}

int tt_pickle_class(const char *where, const char *module, size_t module_size, const char *name, size_t name_size,
                    enum tt_py_class *ret_class)
{
    static const struct {
        enum tt_py_class class;
        const char *module, *name;
    } row[] = {
#define X(id, module, name) {id, module, name},
        TT_PY_CLASS_MAP(X)
#undef X
    };

    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        if (same(module, module_size, row[i].module) && same(name, name_size, row[i].name)) {
            *ret_class = row[i].class;
            return 0;
        }
    }
    return tt_fail(TT_EDATA,
                   "'%s': its pickle asks for '%.*s.%.*s', which is not part of a checkpoint of tensors; nothing was "
                   "executed\nhelp: if you trust the file, load it in PyTorch and save only tensors and numbers",
                   where, (int)(module_size < NAME_SHOWN ? module_size : NAME_SHOWN), module,
                   (int)(name_size < NAME_SHOWN ? name_size : NAME_SHOWN), name);
}

struct tt_pickle_value *tt_pickle_new(struct tt_pickle *p, enum tt_pickle_kind kind)
{
    struct tt_pickle_value *value;

    if (p->n_blocks == 0 || p->used == BLOCK_VALUES) {
        TT_PUSH(p->block, p->n_blocks, p->cap_blocks) = tt_calloc(BLOCK_VALUES, sizeof **p->block);
        p->used = 0;
    }
    value = &p->block[p->n_blocks - 1][p->used++];
    value->kind = kind;
    value->class = TT_PY_OTHER;
    return value;
}

void tt_pickle_release(struct tt_pickle *pickle)
{
    for (int b = 0; b < pickle->n_blocks; b++) {
        for (int i = 0; i < (b == pickle->n_blocks - 1 ? pickle->used : BLOCK_VALUES); i++)
            tt_free(pickle->block[b][i].item);
        tt_free(pickle->block[b]);
    }
    tt_free(pickle->block);
    *pickle = (struct tt_pickle){0};
}

bool tt_pickle_is(const struct tt_pickle_value *value, enum tt_py_class class)
{
    return value && value->kind == TT_PICKLE_OBJECT && value->class == class;
}

/* Objects may share one state, so a search in a large one would take long for all of them. */
const struct tt_pickle_value *tt_pickle_member(const struct tt_pickle_value *value, const char *name)
{
    if (value && value->kind == TT_PICKLE_OBJECT)
        value = value->state;
    if (value && value->n > 2 * MEMBERS_MOST)
        return NULL;
    for (int i = 0; value && value->kind == TT_PICKLE_DICT && i < value->n; i += 2)
        if (tt_pickle_text_is(value->item[i], name))
            return value->item[i + 1];
    return NULL;
}

const struct tt_pickle_value *tt_pickle_item(const struct tt_pickle_value *value, int i)
{
    return value && (value->kind == TT_PICKLE_TUPLE || value->kind == TT_PICKLE_LIST) && i < value->n ? value->item[i]
                                                                                                      : NULL;
}

bool tt_pickle_text_is(const struct tt_pickle_value *value, const char *text)
{
    return value && value->kind == TT_PICKLE_TEXT && same(value->text, value->size, text);
}

char *tt_pickle_text(const struct tt_pickle_value *value)
{
    if (!value || value->kind != TT_PICKLE_TEXT || memchr(value->text, 0, value->size))
        return NULL;
    return tt_strndup(value->text, value->size);
}

bool tt_pickle_sizes(const struct tt_pickle_value *value, int64_t *ret_sizes, int most, int *ret_n)
{
    if (tt_pickle_is(value, TT_PY_SIZE))
        value = value->args->n == 1 ? value->args->item[0] : NULL;
    if (!value || (value->kind != TT_PICKLE_TUPLE && value->kind != TT_PICKLE_LIST) || value->n > most)
        return false;
    for (int i = 0; i < value->n; i++) {
        if (value->item[i]->kind != TT_PICKLE_INT || value->item[i]->number < 0)
            return false;
        ret_sizes[i] = value->item[i]->number;
    }
    *ret_n = value->n;
    return true;
}
