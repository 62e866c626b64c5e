/* SPDX-License-Identifier: MIT
 *
 * An independent check of a program's memory, instruction by instruction.
 */
#include <stdlib.h>

#include "core/base/mem.h"
#include "core/program/instr/instr.h"

static bool in_step_region(const struct tt_buffer *b)
{
    return b->kind != TT_MEMORY_PARAM && b->kind != TT_MEMORY_CONST && b->kind != TT_MEMORY_CACHE;
}

static int check_operands(const struct tt_program *p)
{
    for (int i = 0; i < p->n_instrs; i++) {
        for (int k = 0; k < p->instrs[i].n_operands; k++) {
            int id = p->operands[p->instrs[i].operands + k];
            const struct tt_buffer *b = id == TT_NONE ? NULL : &p->buffers[id], *root = b ? &p->buffers[b->root] : NULL;

            if (root && in_step_region(root) && (i < root->first || i > root->last))
                return tt_fail(TT_EINTERNAL, "instruction %d (%s) uses buffer %d outside of its life [%d, %d]", i,
                               tt_instr_name(&p->instrs[i]), b->root, root->first, root->last);
            if (b && b->root != id && (b->offset < 0 || b->offset + b->bytes > root->bytes))
                return tt_fail(TT_EINTERNAL, "buffer %d reaches beyond buffer %d, of which it is a part", id, b->root);
        }
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct tt_buffer *x = a, *y = b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Two buffers whose memory overlaps must not live at the same time. */
static int check_overlap(const struct tt_program *p)
{
    struct tt_buffer *sorted = tt_calloc((size_t)p->n_buffers + 1, sizeof *sorted);
    int n = 0, rc = 0;

    for (int b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].root == b && in_step_region(&p->buffers[b]))
            sorted[n++] = p->buffers[b];
    qsort(sorted, (size_t)n, sizeof *sorted, by_offset);
    for (int i = 0; i < n && rc == 0; i++) {
        const struct tt_buffer *a = &sorted[i];

        if (a->offset < 0 || a->offset + a->bytes > p->step_bytes)
            rc = tt_fail(TT_EINTERNAL, "buffer %d reaches beyond the step region", a->root);
        for (int j = i + 1; j < n && rc == 0 && sorted[j].offset < a->offset + a->bytes; j++) {
            const struct tt_buffer *b = &sorted[j];

            if (a->first <= b->last && b->first <= a->last)
                rc = tt_fail(TT_EINTERNAL, "buffers %d and %d (%s and %s) share memory and live at the same time",
                             a->root, b->root, tt_memory_name(a->kind), tt_memory_name(b->kind));
        }
    }
    tt_free(sorted);
    return rc;
}

int tt_program_check(const struct tt_program *p)
{
    int rc = check_operands(p);

    return rc < 0 ? rc : check_overlap(p);
}
