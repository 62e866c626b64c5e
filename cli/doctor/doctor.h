/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_DOCTOR_DOCTOR_H
#define TT_CLI_DOCTOR_DOCTOR_H

#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/comm/comm.h"
#include "core/config/config.h"

/**
 * `titan doctor`: a table of checks (doctor.def), their findings on every rank, and the report. A check
 * looks at one thing of this machine that makes runs fail or slow, and says what to do.
 */

enum tt_doctor_level { TT_DOCTOR_OK, TT_DOCTOR_WARNING, TT_DOCTOR_ERROR, TT_DOCTOR_LEVELS };

/** The result of a check; all zero: no complaint, no description yet. */
struct tt_finding {
    enum tt_doctor_level level;
    int rc;               /* of an error: the code that `titan train` would end with */
    struct tt_text found; /* "2 cores, 4 hardware threads" */
    struct tt_text help;  /* what to do about a warning or an error */
};

/** What checks look at. */
struct tt_doctor {
    struct tt_comm *comm;
    const struct tt_config *cfg;
    const char *root; /* in front of /proc, /sys and /dev: "" outside of tests */
    int local_rank, local_size;
    int n_hosts;
    int threads; /* of this rank */
};

/** Who looks: every rank, one rank of each host, or all ranks together, with rank 0 reporting. */
enum tt_check_scope { TT_CHECK_RANK, TT_CHECK_HOST, TT_CHECK_JOB };

/** One row of the table. `look` fails (TT_ECOMM) only if it communicates, as checks of the job do. */
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

/** Appends to what was found, with ", " between two parts. */
void tt_finding_add(struct tt_finding *finding, const char *fmt, ...) TT_PRINTF(2, 3);

/** Makes the finding a warning, unless it is an error already; fmt says what to do. */
void tt_finding_warn(struct tt_finding *finding, const char *fmt, ...) TT_PRINTF(2, 3);

/** Makes the finding an error with this thread's error message, whose help says what to do. */
void tt_finding_fail(struct tt_finding *finding, int rc);

void tt_finding_release(struct tt_finding *finding);

#endif
