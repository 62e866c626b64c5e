/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_REPORT_ADVICE_H
#define TT_CLI_TRAIN_REPORT_ADVICE_H

#include "cli/train/report/reporter.h"
#include "core/base/text.h"
#include "trainer/job/setup.h"

/**
 * Appends where the time of a run went and, if communication, data or memory holds it up, what to change. From rank 0's
 * numbers; not collective. titan-parallel(7), CHOOSING POLICIES, explains the choices.
 */
void tt_advice(const struct tt_setup *setup, const struct tt_spent *spent, struct tt_text *out);

#endif
