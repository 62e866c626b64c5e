/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_RUN_REVISION_H
#define TT_TRAINER_RUN_REVISION_H

/**
 * The commit that titan was built from, with "-dirty" when files had changed; empty outside a git repository. Static.
 */
const char *tt_revision(void);

#endif
