/* SPDX-License-Identifier: MIT
 *
 * The communicator of a single rank. Collectives of one rank need no messages, so a transfer here is a
 * mistake of the caller.
 */
#include "parallel/comm/self.h"

#include <stdio.h>

#include <unistd.h>

#include "core/base/mem.h"

static int refuse(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                  struct tt_request *ret_request)
{
    (void)comm;
    (void)segments;
    (void)ret_request;
    return tt_fail(TT_EINTERNAL, "message of %d segments to rank %d (tag %d) in a job of one rank", n, peer, tag);
}

static int test(struct tt_comm *comm, struct tt_request *request, bool *ret_done)
{
    (void)comm;
    (void)request;
    *ret_done = true;
    return 0;
}

static void stop(struct tt_comm *comm, int exit_code, const char *message)
{
    (void)comm;
    (void)fprintf(stderr, "%s\n", message);
    (void)fflush(NULL);
    _exit(exit_code);
}

static void release(struct tt_comm *comm)
{
    tt_free(comm);
}

static const struct tt_comm_ops self_ops = {
    .name = "self",
    .send_begin = refuse,
    .recv_begin = refuse,
    .test = test,
    .abort = stop,
    .free = release,
};

struct tt_comm *tt_comm_self_new(void)
{
    struct tt_comm *comm = tt_calloc(1, sizeof *comm);

    comm->ops = &self_ops;
    comm->size = 1;
    return comm;
}
