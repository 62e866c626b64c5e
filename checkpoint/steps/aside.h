/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_ASIDE_H
#define TT_CHECKPOINT_STEPS_ASIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * Steps that were set aside by name: step-60 becomes step-60.abandoned-RUN when a run goes back to an older step, and
 * step-60.damaged-RUN when a resume passed over it; RUN is the run that did it. Nothing is removed. They no longer
 * count as steps of the run: resume, retention and "the newest step" ignore them. A command that is given their
 * path can read them.
 *
 * A run that counts its steps from 0 again (exclude_from_loading: [train_state]) needs the step that it began from
 * until it has saved one of its own, whose number is smaller. The empty file .parent-step-60-RUN says that step-60
 * gives way to RUN's first step. tt_step_list takes it into account, so that there are never two newest steps.
 */
enum tt_aside_kind { TT_ASIDE_ABANDONED, TT_ASIDE_DAMAGED };

/** The parts of such a name; run_id points into the name. */
struct tt_aside {
    enum tt_aside_kind kind;
    int64_t step;
    const char *run_id;
};

/** Whether name is that of a step that was set aside. */
bool tt_aside_parse(const char *name, struct tt_aside *ret_aside);

/** "abandoned" or "damaged"; static. */
const char *tt_aside_word(enum tt_aside_kind kind);

/** step-60.abandoned-RUN; the caller frees. */
char *tt_aside_name(int64_t step, enum tt_aside_kind kind, const char *run_id);

/** Sets folder/step-N aside durably, with a note. Local; the caller holds the folder's lock. */
int tt_aside_step(const char *folder, int64_t step, enum tt_aside_kind kind, const char *run_id) TT_MUST_CHECK;

/** Whether name is .parent-step-N-RUN; ret_run_id points into it. */
bool tt_parent_parse(const char *name, int64_t *ret_step, const char **ret_run_id);

/** Makes the file of that name durably, and removes it (a missing file is not an error). */
int tt_parent_mark(const char *folder, int64_t step, const char *run_id) TT_MUST_CHECK;
int tt_parent_unmark(const char *folder, int64_t step, const char *run_id) TT_MUST_CHECK;

#endif
