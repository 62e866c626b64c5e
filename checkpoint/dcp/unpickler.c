/* SPDX-License-Identifier: MIT
 *
 * The state of the unpickler: the pickle and how far it is read, the stack with its marks, the values.
 */
#include "checkpoint/dcp/unpickler.h"

#include "core/base/mem.h"

void tt_unpickler_release(struct tt_unpickler *m)
{
    tt_free(m->stack);
    tt_free(m->mark);
    tt_free(m->memo);
}

int tt_unpickler_fail(const struct tt_unpickler *m, const char *what)
{
    return tt_fail(TT_EDATA, "'%s' is damaged: its pickle %s (at byte %zu)", m->where, what, m->at);
}

int tt_unpickler_take(struct tt_unpickler *m, size_t n, const uint8_t **ret_bytes)
{
    if (n > m->size - m->at)
        return tt_unpickler_fail(m, "is truncated");
    *ret_bytes = m->bytes + m->at;
    m->at += n;
    return 0;
}

int tt_unpickler_take_number(struct tt_unpickler *m, int n, uint64_t *ret_number)
{
    const uint8_t *p = NULL;
    int rc = tt_unpickler_take(m, (size_t)n, &p);

    *ret_number = 0;
    for (int i = n - 1; rc == 0 && i >= 0; i--)
        *ret_number = *ret_number << 8 | p[i];
    return rc;
}

void tt_unpickler_push(struct tt_unpickler *m, struct tt_pickle_value *value)
{
    TT_PUSH(m->stack, m->n, m->cap) = value;
}

/* The lowest place of the stack that may be taken. */
static int floor_of(const struct tt_unpickler *m)
{
    return m->n_marks ? m->mark[m->n_marks - 1] : 0;
}

int tt_unpickler_need(const struct tt_unpickler *m, int n)
{
    return m->n - n < floor_of(m) ? tt_unpickler_fail(m, "takes a value from an empty stack") : 0;
}

int tt_unpickler_pop(struct tt_unpickler *m, struct tt_pickle_value **ret_value)
{
    int rc = tt_unpickler_need(m, 1);

    if (rc == 0)
        *ret_value = m->stack[--m->n];
    return rc;
}

int tt_unpickler_top(const struct tt_unpickler *m, struct tt_pickle_value **ret_value)
{
    if (m->n <= floor_of(m))
        return tt_unpickler_fail(m, "needs a value on an empty stack");
    *ret_value = m->stack[m->n - 1];
    return 0;
}

int tt_unpickler_pop_mark(struct tt_unpickler *m, int *ret_from)
{
    if (m->n_marks == 0)
        return tt_unpickler_fail(m, "needs a mark that it has not set");
    *ret_from = m->mark[--m->n_marks];
    return 0;
}
