/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_RUN_RECORDS_H
#define TT_TRAINER_RUN_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/json.h"

/**
 * A file to which records are appended, one JSON object per line: metrics.jsonl. Every line in it is complete. If a
 * killed run or a full disk left an incomplete line, it is completed or removed when the file is opened. The remains of
 * a failed write are removed at once.
 */
struct tt_records;

/** Opens or creates the file and repairs the last line. Errors: TT_EIO; TT_EDATA: not a regular file. */
int tt_records_open(const char *path, struct tt_records **ret_records) TT_MUST_CHECK;

/** Appends a line. The first failure causes a warning. The record is lost, but later records are written if
 * possible. */
void tt_records_add(struct tt_records *records, const char *line);

/**
 * Reads a file of records from its end, since it grows without bound and only the newest records matter. Calls take for
 * each record until take returns true or no record is left. record is NULL if the line is not a record.
 */
int tt_records_backwards(const char *path, bool (*take)(void *arg, const json_t *record), void *arg) TT_MUST_CHECK;

/** NULL is allowed. */
void tt_records_close(struct tt_records *records);

#endif
