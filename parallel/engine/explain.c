/* SPDX-License-Identifier: MIT
 *
 * Which value of a step was the first that is not finite, on all ranks.
 */
#include "parallel/engine/explain.h"

#include <float.h>
#include <stdio.h>

/* All ranks take the message of the one that found the first value; of several, the lowest. */
static int agree_on_culprit(struct tt_comm *comm, const char *first, const struct tt_bad_value *found)
{
    double own = found->name[0] ? -(double)found->order : -DBL_MAX, earliest = own;
    int rc = 0;

    TT_TRY(tt_comm_max_f64(comm, &earliest, 1));
    if (found->name[0] && own == earliest)
        rc = tt_fail(TT_ENONFINITE, "%s; the first value that is not finite is %s", first, found->name);
    rc = tt_comm_agree(comm, rc);
out:
    return rc;
}

int tt_explain(struct tt_comm *comm, struct tt_executor *executor, struct tt_step *step)
{
    struct tt_bad_value found;
    char first[512];
    int rc = 0;

    (void)snprintf(first, sizeof first, "%s", tt_error_message());
    /* parameters of all ranks first: a rank that gathers a bad one would name a result of it */
    tt_executor_bad_parameter(executor, &found);
    TT_TRY(agree_on_culprit(comm, first, &found));
    TT_TRY(tt_executor_explain(executor, step, &found));
    TT_TRY(agree_on_culprit(comm, first, &found));
    rc = tt_fail(TT_ENONFINITE, "%s; every single value is finite, their sum is not", first);
out:
    return rc;
}
