/* SPDX-License-Identifier: MIT
 *
 * Writes pickles. Format: Lib/pickletools.py of CPython.
 */
#include "checkpoint/dcp/pickler.h"

#include <string.h>

#include "core/base/mem.h"

static void add_number(struct tt_pickler *p, uint64_t number, int bytes)
{
    uint8_t byte[8];

    for (int i = 0; i < bytes; i++)
        byte[i] = (uint8_t)(number >> 8 * i);
    tt_text_add_bytes(&p->text, byte, (size_t)bytes);
}

static void add_code(struct tt_pickler *p, uint8_t code)
{
    tt_text_add_bytes(&p->text, &code, 1);
}

void tt_pickler_begin(struct tt_pickler *pickler)
{
    tt_text_add_bytes(&pickler->text, "\x80\x02", 2);
}

void tt_pickler_release(struct tt_pickler *pickler)
{
    for (int i = 0; i < pickler->n_classes; i++)
        tt_free(pickler->class[i]);
    tt_text_release(&pickler->text);
    *pickler = (struct tt_pickler){0};
}

void tt_pickler_add(struct tt_pickler *pickler, enum tt_pickler_op op)
{
    add_code(pickler, (uint8_t)op);
}

void tt_pickler_class(struct tt_pickler *pickler, const char *module, const char *name)
{
    char *wanted = tt_format("%s\n%s\n", module, name);
    int i = 0;

    while (i < pickler->n_classes && strcmp(pickler->class[i], wanted) != 0)
        i++;
    if (i < pickler->n_classes) {
        add_code(pickler, 'h'); /* BINGET */
        tt_free(wanted);
    } else {
        add_code(pickler, 'c'); /* GLOBAL */
        tt_text_add(&pickler->text, "%s", wanted);
        add_code(pickler, 'q'); /* BINPUT */
        pickler->class[pickler->n_classes++] = wanted;
    }
    add_number(pickler, (uint64_t)i, 1);
}

void tt_pickler_int(struct tt_pickler *pickler, int64_t number)
{
    int bytes = 1;

    if (number >= 0 && number <= UINT8_MAX) {
        add_code(pickler, 'K'); /* BININT1 */
    } else if (number >= INT32_MIN && number <= INT32_MAX) {
        add_code(pickler, 'J'); /* BININT */
        bytes = 4;
    } else {
        add_code(pickler, 0x8a); /* LONG1 */
        add_code(pickler, 8);
        bytes = 8;
    }
    add_number(pickler, (uint64_t)number, bytes);
}

/* The only number that a pickle has with its highest byte first. */
void tt_pickler_real(struct tt_pickler *pickler, double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    add_code(pickler, 'G'); /* BINFLOAT */
    for (int shift = 56; shift >= 0; shift -= 8)
        add_number(pickler, bits >> shift & 0xff, 1);
}

void tt_pickler_bool(struct tt_pickler *pickler, bool value)
{
    add_code(pickler, value ? 0x88 : 0x89); /* NEWTRUE, NEWFALSE */
}

void tt_pickler_text(struct tt_pickler *pickler, const char *text)
{
    add_code(pickler, 'X'); /* BINUNICODE */
    add_number(pickler, strlen(text), 4);
    tt_text_add(&pickler->text, "%s", text);
}

void tt_pickler_tuple(struct tt_pickler *pickler, const int64_t *number, int n)
{
    tt_pickler_add(pickler, TT_PICKLER_MARK);
    for (int i = 0; i < n; i++)
        tt_pickler_int(pickler, number[i]);
    tt_pickler_add(pickler, TT_PICKLER_TUPLE);
}

void tt_pickler_sizes(struct tt_pickler *pickler, const int64_t *size, int n)
{
    tt_pickler_class(pickler, "torch", "Size");
    tt_pickler_add(pickler, TT_PICKLER_MARK);
    tt_pickler_tuple(pickler, size, n);
    tt_pickler_add(pickler, TT_PICKLER_TUPLE);
    tt_pickler_add(pickler, TT_PICKLER_CALL);
}
