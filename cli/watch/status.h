/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_WATCH_STATUS_H
#define TT_CLI_WATCH_STATUS_H

#include "cli/watch/history.h"

/**
 * The state and progress of a run, from the lock of its folder, its records and its checkpoints. Writes nothing.
 * {"type": "status", "schema": 1, "folder",
 *  "state": "starting" (its lock is held, but it has written no record yet) | "running" | "completed" | "stopped" (by a
 *    signal) | "failed" (an error ended it) | "killed" (by a signal, or it left no record of its end) |
 *    "unknown" (there is no record at all),
 *  "alive", "host", "pid", "ranks", "started", "starts", "step", "total_steps", "loss", "grad_norm", "lr",
 *  "ntokens_seen", "tps", "step_time_s", "median_step_time_s", "eta_s", "last_record_s": its age, "memory_gib",
 *  "memory_predicted_gib", "validation": null | {"step", "loss", ["sets": {NAME: loss, ...}]},
 *  "checkpoint": null | {"step", "bytes", "age_s"}: the newest good one,
 *  "exit", "error": why it ended; null: unknown, or it has not ended, "last_words": titan's last lines in console.log,
 *  if the run was killed and did not record why, or null, "warnings": [text, ...],
 *  "command": the command that continues it, or null}
 * Unknown numbers are null. The caller has opened the history; newly appended records are read here. TT_EDATA, TT_EIO.
 */
int tt_status_make(struct tt_history *history, json_t **ret_json) TT_MUST_CHECK;

/** A status needs only this last part of metrics.jsonl: see tail_bytes of struct tt_history. */
enum { TT_STATUS_TAIL_BYTES = 4 << 20 };

#endif
