/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_FAULT_H
#define TT_CHECKPOINT_SAVE_FAULT_H

#include "core/base/error.h"

/**
 * Injected failures, to test the commit protocol: TITAN_FAULT=point:rank:action[,…] makes rank `rank` ('*': every rank)
 * fail at that point of a save, in the training thread or the writer's. Actions: kill (SIGKILL to itself), pause
 * (SIGSTOP, until somebody sends SIGCONT), enospc, eio (the call fails with that error). Always compiled in; it costs
 * one getenv per point, with a dozen points per save.
 */
#define TT_FAULT_MAP(X)                                                                                   \
    X(begin)            /* every rank, before anything is written */                                      \
    X(mkdir)            /* rank 0, after the temporary folder is made */                                  \
    X(open)             /* writer, its file exists and is empty */                                        \
    X(allocate)         /* writer, its blocks are reserved */                                             \
    X(gather)           /* writer, half of a file that it gathers is written */                           \
    X(stage)            /* every rank, before the copy (with a writer thread) */                          \
    X(staged)           /* every rank, the thread is about to write */                                    \
    X(write)            /* writer, about half of a file is written */                                     \
    X(fsync)            /* writer, all bytes are written but not yet durable */                           \
    X(file_rename)      /* writer, the file is durable under its temporary name */                        \
    X(assets)           /* rank 0, before the assets */                                                   \
    X(written)          /* every rank, all its files are durable */                                       \
    X(collect)          /* every rank, before checksums are exchanged */                                  \
    X(manifest)         /* rank 0, before the manifest */                                                 \
    X(publish)          /* rank 0, complete under its temporary name */                                   \
    X(exchange)         /* rank 0, before an existing step is exchanged; an error: two renames instead */ \
    X(aside)            /* rank 0, between the two renames */                                             \
    X(published)        /* rank 0, renamed, but the folder is not yet durable */                          \
    X(replaced)         /* rank 0, an older checkpoint of the step is about to be removed */              \
    X(retention)        /* rank 0, before an old step is renamed away */                                  \
    X(retention_remove) /* rank 0, an old step is renamed but not yet removed */                          \
    X(end)              /* every rank */

/** Does what TITAN_FAULT asks for at this point; returns 0 when it asks for nothing here. */
int tt_fault(const char *point, int rank) TT_MUST_CHECK;

#endif
