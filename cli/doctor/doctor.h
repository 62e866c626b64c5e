/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_DOCTOR_DOCTOR_H
#define TT_CLI_DOCTOR_DOCTOR_H

#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/comm/comm.h"
#include "core/config/config.h"

/**
 * `titan doctor`: a table of checks (doctor.def), their findings on every rank, and the report. A check examines one
 * property of this machine that can make runs fail or slow them down, and gives a remedy.
 */

enum tt_doctor_level { TT_DOCTOR_OK, TT_DOCTOR_WARNING, TT_DOCTOR_ERROR, TT_DOCTOR_LEVELS };

/** The result of a check; all zero: no complaint, no description yet. */
struct tt_finding {
    enum tt_doctor_level level;
    int rc;               /* for an error: the code with which `titan train` would end */
    struct tt_text found; /* "2 cores, 4 hardware threads" */
    struct tt_text help;  /* the remedy for a warning or an error */
};

/** The input of checks. */
struct tt_doctor {
    struct tt_comm *comm;
    const struct tt_config *cfg;
    const char *root; /* prefix of /proc, /sys and /dev; "" except in tests */
    int local_rank, local_size;
    int n_hosts;
    int threads; /* of this rank */
};

/** The ranks that make a check: every rank, one rank of each host, or all ranks together, for which rank 0 reports. */
enum tt_check_scope { TT_CHECK_RANK, TT_CHECK_HOST, TT_CHECK_JOB };

/** A row of the table. `look` fails (TT_ECOMM) only in checks of the job, which communicate. */
struct tt_check {
    const char *name;
    enum tt_check_scope scope;
    int (*look)(const struct tt_doctor *doctor, struct tt_finding *ret_finding);
};

extern const struct tt_check tt_checks[];
extern const int tt_n_checks;

#define TT_CHECK(name, scope, function) \
    int tt_check_##function(const struct tt_doctor *doctor, struct tt_finding *ret_finding);
#include "cli/doctor/doctor.def"

/** Appends to the finding's text, with ", " between two parts. */
void tt_finding_add(struct tt_finding *finding, const char *fmt, ...) TT_PRINTF(2, 3);

/** Makes the finding a warning, unless it is already an error; fmt gives the remedy. */
void tt_finding_warn(struct tt_finding *finding, const char *fmt, ...) TT_PRINTF(2, 3);

/** Makes the finding an error with this thread's error message, whose help gives the remedy. */
void tt_finding_fail(struct tt_finding *finding, int rc);

void tt_finding_release(struct tt_finding *finding);

#endif
