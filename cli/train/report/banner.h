/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_REPORT_BANNER_H
#define TT_CLI_TRAIN_REPORT_BANNER_H

#include "cli/train/report/reporter.h"
#include "core/base/text.h"

/** What a run prints at its start: what it will do, from the first core to the last byte. */

enum { TT_BANNER_INDENT = 11 }; /* columns of a label, "  sharding " */

/** Appends all of it: for console.log, --verbose and a dry run. */
void tt_banner_all(const struct tt_reporter *reporter, const struct tt_run_about *about, struct tt_text *out);

/**
 * brief.c: appends six lines of it, each cut where a terminal of so many columns ends (0: nowhere). What changed since
 * the step from which the run continues comes after these, and so does the configuration with job.print_config.
 */
void tt_banner_brief(const struct tt_reporter *reporter, const struct tt_run_about *about, int columns,
                     struct tt_text *out);

#endif
