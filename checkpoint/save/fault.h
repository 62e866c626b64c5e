/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_FAULT_H
#define TT_CHECKPOINT_SAVE_FAULT_H

#include "core/base/error.h"

/**
 * Failures on demand, to prove the commit protocol: TITAN_FAULT=point:rank:action[,…] makes rank `rank` ('*': every rank)
 * fail at that point of a save, in the training thread or the writer's. Actions: kill (SIGKILL to itself), enospc, eio (the
 * call fails with that error). Always compiled in; costs one getenv per point, a dozen points a save.
 */
#define TT_FAULT_MAP(X)                                                                                                  \
    X(begin)       /* every rank, before anything was written */                                                         \
    X(mkdir)       /* rank 0, the temporary folder exists */                                                             \
    X(open)        /* writer, its file exists, empty */                                                                  \
    X(allocate)    /* writer, its blocks are reserved */                                                                 \
    X(gather)      /* writer, half of a file that it gathers is written */                                               \
    X(stage)       /* every rank, before the copy (with a writer thread) */                                              \
    X(staged)      /* every rank, the thread is about to write */                                                        \
    X(write)       /* writer, about half of a file is written */                                                         \
    X(fsync)       /* writer, all bytes are written, not yet durable */                                                  \
    X(file_rename) /* writer, file durable under its temporary name */                                                   \
    X(assets)      /* rank 0, before the assets */                                                                       \
    X(written)     /* every rank, all its files are durable */                                                           \
    X(collect)     /* every rank, before checksums are exchanged */                                                      \
    X(manifest)    /* rank 0, before the manifest */                                                                     \
    X(publish)     /* rank 0, complete under its temporary name */                                                       \
    X(exchange) /* rank 0, before an existing step is exchanged; an error: the file system cannot, two renames follow */ \
    X(aside)    /* rank 0, between these: the older one has left its place */                                            \
    X(published)        /* rank 0, renamed, the folder not yet durable */                                                \
    X(replaced)         /* rank 0, an older checkpoint of the step is about to be removed */                             \
    X(retention)        /* rank 0, before an old step is renamed away */                                                 \
    X(retention_remove) /* rank 0, an old step was renamed, not yet removed */                                           \
    X(end)              /* every rank */

/** Does what TITAN_FAULT asks for at this point; 0 when it asks for nothing here. */
int tt_fault(const char *point, int rank) TT_MUST_CHECK;

#endif
