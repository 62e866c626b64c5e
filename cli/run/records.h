/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_RECORDS_H
#define TT_CLI_RUN_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * A file of records, one JSON object a line, appended: metrics.jsonl. Every line in it is whole, whatever happened: what a
 * killed run or a full disk left of one is finished or cut when the file is opened, and what is left of a write that failed
 * is cut at once.
 */
struct tt_records;

/** Opens for appending, creates if need be, and mends the last line. Errors: TT_EIO; TT_EDATA: not a regular file. */
int tt_records_open(const char *path, struct tt_records **ret_records) TT_MUST_CHECK;

/** Appends a line. The first failure is a warning; the record is lost, later ones are tried again. */
void tt_records_add(struct tt_records *records, const char *line);

/** NULL is allowed. */
void tt_records_close(struct tt_records *records);

#endif
