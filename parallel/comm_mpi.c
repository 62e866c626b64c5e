/* SPDX-License-Identifier: MIT
 *
 * The communicator over MPI; the only file that includes mpi.h.
 *
 * A request of titan's is an index into a table of slots that is allocated once and grows only if more transfers are
 * under way than ever before. Segments become one MPI datatype of byte blocks at absolute addresses, which also lifts
 * the limit of 2^31-1 on MPI's counts. What MPI returns as an error becomes TT_ECOMM with MPI's own words.
 */
#include "parallel/comm_mpi.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include "core/base/mem.h"
#include "parallel/peer_memory.h"

/* READ_BYTES: below, the two messages that go with reading cost more than the copy through MPI's own buffers. */
enum { FIRST_SLOTS = 256, FIRST_BLOCKS = 256, READ_BYTES = 64 << 10, EAGER_BYTES = 1 << 20 };

/* Longest block of a datatype: block lengths are int. */
static const size_t MOST_BLOCK_BYTES = (size_t)1 << 30;

struct slot {
    MPI_Request request;
    size_t bytes;
    int peer, tag;
    bool send;
    int next_unused; /* index + 1; 0 ends the list */
};

struct mpi_comm {
    struct tt_comm base;
    MPI_Comm comm;
    struct slot *slots;
    int n_slots;
    int unused;   /* index + 1 of the first unused slot */
    int *lengths; /* scratch for building a datatype */
    MPI_Aint *addresses;
    int cap_blocks;
    struct tt_peer_memory *memory; /* of the ranks on this host */
};

static int fail_mpi(int error, const char *what)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;

    (void)MPI_Error_string(error, text, &length);
    return tt_fail(TT_ECOMM, "MPI: %s: %s", what, text);
}

static void slots_grow(struct mpi_comm *me, int n)
{
    me->slots = tt_realloc(me->slots, (size_t)n, sizeof *me->slots);
    for (int i = n - 1; i >= me->n_slots; i--) {
        me->slots[i] = (struct slot){.request = MPI_REQUEST_NULL, .next_unused = me->unused};
        me->unused = i + 1;
    }
    me->n_slots = n;
}

static void blocks_grow(struct mpi_comm *me, int n)
{
    me->lengths = tt_realloc(me->lengths, (size_t)n, sizeof *me->lengths);
    me->addresses = tt_realloc(me->addresses, (size_t)n, sizeof *me->addresses);
    me->cap_blocks = n;
}

/* The segments as one datatype at MPI_BOTTOM. */
static int make_type(struct mpi_comm *me, const struct tt_segment *segments, int n, MPI_Datatype *ret_type)
{
    MPI_Datatype type;
    int blocks = 0, error;

    for (int i = 0; i < n; i++) {
        char *data = segments[i].data;

        for (size_t left = segments[i].bytes, bytes; left > 0; left -= bytes, data += bytes, blocks++) {
            bytes = left < MOST_BLOCK_BYTES ? left : MOST_BLOCK_BYTES;
            if (blocks == me->cap_blocks)
                blocks_grow(me, 2 * me->cap_blocks);
            me->lengths[blocks] = (int)bytes;
            if ((error = MPI_Get_address(data, &me->addresses[blocks])) != MPI_SUCCESS)
                return fail_mpi(error, "MPI_Get_address");
        }
    }
    error = MPI_Type_create_hindexed(blocks, me->lengths, me->addresses, MPI_BYTE, &type);
    if (error != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Type_create_hindexed");
    if ((error = MPI_Type_commit(&type)) != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Type_commit");
    *ret_type = type;
    return 0;
}

static int start(struct mpi_comm *me, struct slot *slot, void *data, int count, MPI_Datatype type)
{
    int error = slot->send ? MPI_Isend(data, count, type, slot->peer, slot->tag, me->comm, &slot->request)
                           : MPI_Irecv(data, count, type, slot->peer, slot->tag, me->comm, &slot->request);

    return error == MPI_SUCCESS ? 0 : fail_mpi(error, slot->send ? "MPI_Isend" : "MPI_Irecv");
}

static int begin(struct mpi_comm *me, const struct tt_segment *segments, int n, struct slot wanted,
                 struct tt_request *ret_request)
{
    MPI_Datatype type = MPI_BYTE;
    struct slot *slot;
    int rc = 0, index;

    for (int i = 0; i < n; i++)
        wanted.bytes += segments[i].bytes;
    if (!me->unused)
        slots_grow(me, 2 * me->n_slots);
    index = me->unused;
    slot = &me->slots[index - 1];
    wanted.request = MPI_REQUEST_NULL;
    wanted.next_unused = slot->next_unused;
    *slot = wanted;
    if (n == 1 && wanted.bytes <= INT_MAX) {
        TT_TRY(start(me, slot, segments[0].data, (int)wanted.bytes, MPI_BYTE));
    } else {
        TT_TRY(make_type(me, segments, n, &type));
        rc = start(me, slot, MPI_BOTTOM, 1, type);
        (void)MPI_Type_free(&type); /* MPI keeps it until the transfer completes */
        if (rc < 0)
            goto out;
    }
    me->unused = slot->next_unused;
    ret_request->state[0] = (uintptr_t)index;
out:
    return rc;
}

static int send_begin(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                      struct tt_request *ret_request)
{
    return begin((struct mpi_comm *)comm, segments, n, (struct slot){.peer = peer, .tag = tag, .send = true},
                 ret_request);
}

static int recv_begin(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                      struct tt_request *ret_request)
{
    return begin((struct mpi_comm *)comm, segments, n, (struct slot){.peer = peer, .tag = tag, .send = false},
                 ret_request);
}

/* A message longer than its buffer is an error of MPI's; a shorter one is found here. */
static int check_received(const struct mpi_comm *me, const struct slot *slot, const MPI_Status *status)
{
    MPI_Count received = 0;
    int error;

    if (slot->send)
        return 0;
    if ((error = MPI_Get_elements_x(status, MPI_BYTE, &received)) != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Get_elements_x");
    if (received != (MPI_Count)slot->bytes)
        return tt_fail(TT_EINTERNAL, "rank %d: message from rank %d, tag %d: %lld bytes sent, %zu expected",
                       me->base.rank, slot->peer, slot->tag, (long long)received, slot->bytes);
    return 0;
}

static int test(struct tt_comm *comm, struct tt_request *request, bool *ret_done)
{
    struct mpi_comm *me = (struct mpi_comm *)comm;
    int index = (int)request->state[0];
    struct slot *slot;
    MPI_Status status;
    int rc = 0, done = 0, error;

    *ret_done = true;
    if (index == 0)
        return 0;
    slot = &me->slots[index - 1];
    error = MPI_Test(&slot->request, &done, &status);
    if (error == MPI_SUCCESS && !done) {
        *ret_done = false;
        return 0;
    }
    if (error == MPI_SUCCESS)
        rc = check_received(me, slot, &status);
    else
        rc = tt_wrap(fail_mpi(error, slot->send ? "sending" : "receiving"), "rank %d, rank %d, tag %d, %zu bytes",
                     comm->rank, slot->peer, slot->tag, slot->bytes);
    slot->next_unused = me->unused;
    me->unused = index;
    request->state[0] = 0;
    return rc;
}

static int read_peer(struct tt_comm *comm, int peer, uint64_t address, void *into, size_t bytes)
{
    return tt_peer_memory_read(((struct mpi_comm *)comm)->memory, peer, address, into, bytes);
}

static void stop(struct tt_comm *comm, int exit_code, const char *message)
{
    struct mpi_comm *me = (struct mpi_comm *)comm;

    (void)fprintf(stderr, "%s\n", message);
    (void)fflush(NULL);
    (void)MPI_Abort(me->comm, exit_code);
    abort(); /* MPI_Abort does not return from a working library */
}

static void release(struct tt_comm *comm)
{
    struct mpi_comm *me = (struct mpi_comm *)comm;

    (void)MPI_Comm_free(&me->comm);
    (void)MPI_Finalize();
    tt_peer_memory_free(me->memory);
    tt_free(me->slots);
    tt_free(me->lengths);
    tt_free(me->addresses);
    tt_free(me);
}

static const struct tt_comm_ops mpi_ops = {
    .name = "mpi",
    .send_begin = send_begin,
    .recv_begin = recv_begin,
    .test = test,
    .read = read_peer,
    .abort = stop,
    .free = release,
};

/* The launchers' ways to tell a process how many ranks there are. */
static const char *const size_variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};

/* Ranks that the launcher started, or 0 if it did not say; ret_variable is what said so. */
static int launched_ranks(const char **ret_variable)
{
    for (size_t i = 0; i < sizeof size_variables / sizeof *size_variables; i++) {
        const char *text = getenv(size_variables[i]);
        long n = text ? strtol(text, NULL, 10) : 0;

        /* Slurm sets its variable in interactive shells too, as a step of one task. */
        if (n > 1 || (n == 1 && i + 1 < sizeof size_variables / sizeof *size_variables)) {
            *ret_variable = size_variables[i];
            return n < INT_MAX ? (int)n : INT_MAX;
        }
    }
    return 0;
}

bool tt_comm_mpi_launched(void)
{
    const char *variable;

    return launched_ranks(&variable) > 0 || getenv("PMIX_RANK");
}

/* MPI is initialised; fills in the rest. */
static int connect_ranks(struct mpi_comm *me)
{
    const char *variable = NULL;
    int wanted = launched_ranks(&variable);
    int rc = 0, error;

    if ((error = MPI_Comm_dup(MPI_COMM_WORLD, &me->comm)) != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Comm_dup");
    (void)MPI_Comm_set_errhandler(me->comm, MPI_ERRORS_RETURN);
    (void)MPI_Comm_rank(me->comm, &me->base.rank);
    (void)MPI_Comm_size(me->comm, &me->base.size);
    if (wanted > 0 && wanted != me->base.size) {
        rc = tt_fail(TT_ECOMM,
                     "the launcher started %d ranks (%s) but MPI sees %d: the launcher belongs to another MPI library\n"
                     "help: start titan with the mpirun of the Open MPI it was built with (under Slurm: srun "
                     "--mpi=pmix, or mpirun inside the allocation)",
                     wanted, variable, me->base.size);
        (void)MPI_Comm_free(&me->comm);
    }
    return rc;
}

/*
 * Longer messages than Open MPI's TCP sends eagerly wait for the receiver's answer, and that answer queues behind whatever
 * goes the other way: links that are busy both ways, as they are in a backward pass, then carry half of what they could.
 * The receives of a collective are posted when it begins, so there is little to ask. What the user has set stays; the
 * room beyond EAGER_BYTES is for Open MPI's header.
 */
static void prefer_eager_messages(void)
{
    char limit[16];

    (void)snprintf(limit, sizeof limit, "%d", EAGER_BYTES + 512);
    (void)setenv("OMPI_MCA_btl_tcp_eager_limit", limit, 0);
}

int tt_comm_mpi_new(struct tt_comm **ret_comm)
{
    struct mpi_comm *me;
    int rc = 0, error, initialized = 0, level = 0;

    (void)MPI_Initialized(&initialized);
    if (initialized)
        return tt_fail(TT_EINTERNAL, "MPI is initialised twice");
    prefer_eager_messages();
    if ((error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level)) != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Init_thread");
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    me = tt_calloc(1, sizeof *me);
    me->base.ops = &mpi_ops;
    me->base.timeout_sec = 300.0;
    if (level < MPI_THREAD_FUNNELED) {
        rc = tt_fail(TT_ECOMM, "this MPI library does not allow threads beside the one that communicates\n"
                               "help: use an MPI library with MPI_THREAD_FUNNELED or better");
        goto out;
    }
    TT_TRY(connect_ranks(me));
    slots_grow(me, FIRST_SLOTS);
    blocks_grow(me, FIRST_BLOCKS);
    TT_TRY(tt_peer_memory_new(&me->base, &me->memory));
    me->base.reachable = tt_peer_memory_reachable(me->memory);
    me->base.read_bytes = READ_BYTES;
    me->base.eager_bytes = EAGER_BYTES;
    me->base.control_bytes = 0;
    *ret_comm = &me->base;
    me = NULL;
out:
    if (me) {
        (void)MPI_Finalize();
        tt_free(me);
    }
    return rc;
}

const char *tt_comm_mpi_library(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;

    (void)MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = 0;
    return text;
}
