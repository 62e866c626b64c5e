/* SPDX-License-Identifier: MIT
 *
 * Sends rows to their writer. Both sides go through the same list, the segments of the writer's file, so only rows are
 * sent. The memory is bounded: the writer receives one block while it writes the previous one, and a holder sends
 * directly from its rows.
 */
#include <string.h>

#include "checkpoint/save/fault.h"
#include "checkpoint/save/saving.h"
#include "core/base/mem.h"

/* No collective is under way while rows are gathered, so one of their tags can be used. */
int tt_saving_file(const struct tt_ckpt_saving *s, enum tt_ckpt_group group, int writer, struct tt_shard_file *ret_file)
{
    int64_t slot = tt_saving_slot(s, group, writer);
    int begin = s->file_begin[slot];

    return tt_shard_file_init(&s->stored, &s->store->mesh, &s->plan, s->piece_of_file + begin,
                              s->file_begin[slot + 1] - begin, s->step, ret_file);
}

/* --- the writer's side --- */

/* A block that is being received: where its bytes go, and the transfers under way. */
struct inbox {
    char *bytes;
    struct tt_request *request; /* one per segment; enough for the block with the most segments */
};

static int begin_block(struct tt_ckpt_saving *s, struct tt_shard_file *file, int b, struct inbox *in)
{
    struct tt_comm *comm = s->store->comm;
    int64_t at = 0;
    int rc = 0;

    for (int i = file->block[b]; i < file->block[b + 1]; i++) {
        struct tt_shard_segment *segment = &file->segment[i];
        struct tt_segment to = {in->bytes + at, (size_t)segment->size};

        if (segment->holder == s->rank)
            tt_saving_fetch(s, file, segment, 0, segment->size, to.data);
        else
            TT_TRY(comm->ops->recv_begin(comm, &to, 1, segment->holder, TT_TAG_SAVE, &in->request[i - file->block[b]]));
        at += segment->size;
    }
out:
    return rc;
}

struct put {
    struct tt_ckpt_saving *s;
    const struct tt_shard_file *file;
    int block;
    char *bytes;
};

static int put_block(void *arg)
{
    const struct put *put = arg;

    return tt_saving_put(put->s, put->file->group, put->block, put->bytes);
}

/* Called when block b has arrived: sums its rows and writes them, unless the disk has already failed. */
static int end_block(struct tt_ckpt_saving *s, struct tt_shard_file *file, int b, struct inbox *in, int *disk)
{
    int64_t at = 0;
    int rc = 0;

    for (int i = file->block[b]; i < file->block[b + 1]; i++) {
        struct tt_shard_segment *segment = &file->segment[i];

        if (segment->holder != s->rank)
            TT_TRY(tt_comm_wait(s->store->comm, &in->request[i - file->block[b]], segment->holder));
        tt_saving_sum(s, file, segment, in->bytes + at);
        at += segment->size;
    }
    if (*disk == 0 && b == file->n_blocks / 2)
        *disk = tt_fault("gather", s->rank);
    if (*disk == 0)
        *disk = tt_comm_work(s->store->comm, put_block, &(struct put){s, file, b, in->bytes});
out:
    return rc;
}

static int most_segments(const struct tt_shard_file *file)
{
    int most = 0;

    for (int b = 0; b < file->n_blocks; b++)
        most = file->block[b + 1] - file->block[b] > most ? file->block[b + 1] - file->block[b] : most;
    return most;
}

static int receive_file(struct tt_ckpt_saving *s, struct tt_shard_file *file, int *disk)
{
    size_t most = (size_t)most_segments(file);
    struct tt_request *requests = tt_calloc(2 * most, sizeof *requests);
    struct inbox in[2];
    char *blocks = NULL;
    void *memory = tt_saving_blocks(2, &blocks);
    int rc = 0;

    for (int i = 0; i < 2; i++)
        in[i] = (struct inbox){blocks + (int64_t)i * TT_SHARD_BLOCK, requests + (size_t)i * most};
    for (int b = 0; b <= file->n_blocks; b++) {
        if (b < file->n_blocks)
            TT_TRY(begin_block(s, file, b, &in[b % 2]));
        if (b > 0)
            TT_TRY(end_block(s, file, b - 1, &in[(b - 1) % 2], disk));
    }
out:
    tt_free(memory);
    tt_free(requests);
    return rc;
}

/* --- a holder's side --- */

static int send_file(const struct tt_ckpt_saving *s, const struct tt_shard_file *file)
{
    struct tt_comm *comm = s->store->comm;
    struct tt_request request = {{0}};
    char *bytes = NULL;
    void *memory = tt_saving_blocks(1, &bytes);
    int rc = 0;

    for (int i = 0; i < file->n_segments; i++) {
        const struct tt_shard_segment *segment = &file->segment[i];
        struct tt_segment from = {bytes, (size_t)segment->size};

        if (segment->holder != s->rank)
            continue;
        TT_TRY(tt_comm_wait(comm, &request, file->writer));
        tt_saving_fetch(s, file, segment, 0, segment->size, bytes);
        TT_TRY(comm->ops->send_begin(comm, &from, 1, file->writer, TT_TAG_SAVE, &request));
    }
    rc = tt_comm_wait(comm, &request, file->writer);
out:
    tt_free(memory);
    return rc;
}

/* --- both --- */

/* A flag per slot: whether its file needs rows of other ranks. */
static bool *find_gathered(const struct tt_ckpt_saving *s)
{
    bool *gathered = tt_calloc((size_t)TT_CKPT_GROUPS * (size_t)s->store->comm->size, sizeof *gathered);

    for (int i = 0; i < s->plan.n; i++) {
        const struct tt_ckpt_piece *piece = &s->plan.piece[i];
        int n = 0;
        const struct tt_ckpt_chunk *tensor = &tt_ckpt_state_group(&s->stored, piece->group, &n)[piece->tensor];

        if (!tt_ckpt_piece_is_local(piece, tensor, &s->store->mesh))
            gathered[tt_saving_slot(s, piece->group, piece->writer)] = true;
    }
    return gathered;
}

int tt_saving_gather(struct tt_ckpt_saving *s)
{
    bool *gathered = find_gathered(s);
    int disk = 0, rc = 0;

    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        for (int writer = 0; writer < s->store->comm->size; writer++) {
            struct tt_shard_file file = {0};

            if (!gathered[tt_saving_slot(s, (enum tt_ckpt_group)group, writer)])
                continue;
            if (writer == s->rank) {
                TT_TRY(receive_file(s, &s->file[group], &disk));
                continue;
            }
            TT_TRY(tt_saving_file(s, (enum tt_ckpt_group)group, writer, &file));
            rc = send_file(s, &file);
            tt_shard_file_release(&file);
            TT_TRY(rc);
        }
    }
out:
    tt_free(gathered);
    return rc < 0 ? rc : disk;
}
