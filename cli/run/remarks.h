/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_REMARKS_H
#define TT_CLI_RUN_REMARKS_H

#include "core/base/text.h"

/**
 * mpirun's remarks, taken out of its standard error. When ranks end with an exit code other than 0, mpirun says so in
 * one or two blocks between lines of dashes, and when it forwards a signal, in a line. The ranks say what they were
 * asked and why they end, so these remarks only hide that. Other blocks, such as those about a crash or about missing
 * slots, are passed on.
 */
struct tt_remarks {
    struct tt_text held;                                                  /* what may belong to a remark */
    enum { TT_REMARKS_LINE_START, TT_REMARKS_LINE, TT_REMARKS_BLOCK } at; /* a held line is still at its start */
};

/** Appends to out what of the next bytes is no remark, as soon as that is known. */
void tt_remarks_pass(struct tt_remarks *r, const char *bytes, size_t n, struct tt_text *out);

/** Appends what is still held: the output has ended. */
void tt_remarks_end(struct tt_remarks *r, struct tt_text *out);

#endif
