/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_RECORDS_RECORDS_H
#define TT_CLI_RUN_RECORDS_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * A file to which records are appended, one JSON object per line: metrics.jsonl. Every line in it is complete. If a
 * killed run or a full disk left an incomplete line, it is completed or removed when the file is opened. The remains of
 * a failed write are removed at once.
 */
struct tt_records;

/** Opens or creates the file and repairs the last line. Errors: TT_EIO; TT_EDATA: not a regular file. */
int tt_records_open(const char *path, struct tt_records **ret_records) TT_MUST_CHECK;

/** Appends a line. The first failure is a warning. The record is then lost, but later ones are tried again. */
void tt_records_add(struct tt_records *records, const char *line);

/** NULL is allowed. */
void tt_records_close(struct tt_records *records);

#endif
