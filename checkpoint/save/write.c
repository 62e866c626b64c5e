/* SPDX-License-Identifier: MIT
 *
 * Writes the shard files of one rank, from rows in memory to durable files, and computes checksums and digests on the
 * way. Every byte is read once: copied (or converted), summed while it is in the cache, and written. A writer thread
 * only writes. The header contains the checksums and is written last; its size is known in advance.
 *
 * Rows that their writer does not hold are sent to it. Both sides go through the same list, the segments of the
 * writer's file, so only rows are sent. The memory is bounded: the writer receives one block while it writes the
 * previous one, and a holder sends directly from its rows.
 */
#include <signal.h>
#include <string.h>

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/format/cast.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/save/internal.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/round.h"
#include "core/os/file.h"

/* The thread that writes checkpoints during training. One lock protects everything shared. The staging memory belongs
 * to the thread while it works, and otherwise to the caller. */

struct tt_ckpt_writer {
    char *staging;
    int64_t bytes;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int (*work)(void *arg); /* NULL: idle */
    void *arg;
    bool leave;
    int rc; /* result of the last work */
    char *message;
};

static void *run(void *arg)
{
    struct tt_ckpt_writer *w = arg;

    /* Linux has a priority per thread. If this fails, the thread merely competes with training. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), 19);
    (void)pthread_mutex_lock(&w->lock);
    while (!w->leave) {
        if (!w->work) {
            (void)pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&w->lock);
        w->rc = w->work(w->arg);
        (void)pthread_mutex_lock(&w->lock);
        tt_free(w->message);
        w->message = w->rc < 0 ? tt_strdup(tt_error_message()) : NULL;
        w->work = NULL;
        (void)pthread_cond_broadcast(&w->changed);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* The main thread handles the signals; this thread blocks them. */
static int start_thread(struct tt_ckpt_writer *w)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&w->thread, NULL, run, w);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? tt_fail(TT_EINTERNAL, "cannot start the thread that writes checkpoints: %s", strerror(error)) : 0;
}

int tt_ckpt_writer_new(int64_t bytes, struct tt_ckpt_writer **ret_writer)
{
    struct tt_ckpt_writer *w = tt_calloc(1, sizeof *w);
    char text[32];
    int rc = 0;

    w->bytes = bytes;
    if (bytes > 0 && !(w->staging = tt_map((size_t)bytes)))
        TT_TRY(tt_fail(TT_EFIT, "no memory for the staging copy of a checkpoint, %s\nhelp: set %s=disabled",
                       tt_text_bytes(text, sizeof text, (double)bytes), TT_KEY_NAME(checkpoint.async_mode)));
    if (bytes > 0)
        memset(w->staging, 1, (size_t)bytes); /* any byte except 0, so that every page is really allocated */
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    TT_TRY(start_thread(w));
    *ret_writer = w;
    w = NULL;
out:
    if (w) {
        if (w->staging)
            tt_unmap(w->staging, (size_t)bytes);
        tt_free(w);
    }
    return rc;
}

void tt_ckpt_writer_free(struct tt_ckpt_writer *w)
{
    if (!w)
        return;
    (void)pthread_mutex_lock(&w->lock);
    while (w->work)
        (void)pthread_cond_wait(&w->changed, &w->lock);
    w->leave = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
    if (w->staging)
        tt_unmap(w->staging, (size_t)w->bytes);
    tt_free(w->message);
    tt_free(w);
}

/* The staging memory, aligned to pages; the writer does not use it. */
static char *staging_of(const struct tt_ckpt_writer *w, int64_t *ret_bytes)
{
    *ret_bytes = w->bytes;
    return w->staging;
}

void tt_ckpt_writer_start(struct tt_ckpt_writer *w, int (*work)(void *arg), void *arg)
{
    (void)pthread_mutex_lock(&w->lock);
    w->work = work;
    w->arg = arg;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

bool tt_ckpt_writer_is_idle(struct tt_ckpt_writer *w)
{
    bool idle;

    (void)pthread_mutex_lock(&w->lock);
    idle = !w->work;
    (void)pthread_mutex_unlock(&w->lock);
    return idle;
}

int tt_ckpt_writer_wait(struct tt_ckpt_writer *w)
{
    int rc;

    (void)pthread_mutex_lock(&w->lock);
    while (w->work)
        (void)pthread_cond_wait(&w->changed, &w->lock);
    rc = w->rc;
    w->rc = 0;
    if (rc < 0)
        (void)tt_fail(rc, "%s", w->message);
    (void)pthread_mutex_unlock(&w->lock);
    return rc;
}

enum {
    SPAN = 256 << 10,    /* this many bytes stay in the cache between copy and checksum */
    WAITING_THREADS = 2, /* extra threads, so that some wait for the disk while others work */
};

int tt_saving_open(void *arg)
{
    struct tt_ckpt_saving *s = arg;
    int rc = 0;

    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        struct tt_shard_file *file = &s->file[group];
        char *relative = tt_ckpt_shard_path((enum tt_ckpt_group)group, s->rank);
        char *path = tt_format("%s/%s", s->folder, relative);

        if (file->n > 0)
            rc = tt_durable_begin(path, tt_shard_file_bytes(file), s->rank, &s->out[group]);
        /* Files gathered for a writer thread go through the system's cache: this is faster, and training waits for the
         * gathering. */
        if (file->n > 0 && rc == 0 && (file->local || !s->writer))
            tt_durable_direct(&s->out[group], true);
        tt_free(relative);
        tt_free(path);
        if (rc < 0)
            break;
    }
    return rc;
}

/* --- bytes --- */

/* Copies `size` bytes of a segment, from byte `at` on, out of this rank's rows, converted to the file's dtype. */
static void fetch(const struct tt_ckpt_saving *s, const struct tt_shard_file *file,
                  const struct tt_shard_segment *segment, int64_t at, int64_t size, void *to)
{
    const struct tt_ckpt_piece *piece = &s->plan.piece[file->entry[segment->entry].index];
    const struct tt_ckpt_chunk *live = tt_ckpt_state_tensor(&s->live, piece->tensor),
                               *stored = tt_ckpt_state_tensor(&s->stored, piece->tensor);
    int64_t item = (int64_t)tt_dtype_size(stored->dtype), first = (segment->offset + at) / item;
    const char *from =
        (const char *)live->data +
        tt_box_position(&file->entry[segment->entry].box, first, &live->part) * (int64_t)tt_dtype_size(live->dtype);

    if (live->dtype == stored->dtype)
        memcpy(to, from, (size_t)size);
    else
        tt_cast(stored->dtype, to, live->dtype, from, size / item);
}

static void sum_span(const struct tt_ckpt_saving *s, const struct tt_shard_file *file, struct tt_shard_segment *segment,
                     int64_t at, int64_t size, const char *bytes)
{
    const struct tt_ckpt_piece *piece = &s->plan.piece[file->entry[segment->entry].index];
    const struct tt_ckpt_chunk *stored = tt_ckpt_state_tensor(&s->stored, piece->tensor);
    int64_t item = (int64_t)tt_dtype_size(stored->dtype);

    segment->crc = tt_crc32c(segment->crc, bytes, (size_t)size);
    segment->digest += tt_digest_box(stored->dtype, stored->shape, &file->entry[segment->entry].box,
                                     (segment->offset + at) / item, size / item, bytes);
    segment->nonfinite += tt_digest_nonfinite(stored->dtype, bytes, size / item);
}

/* Sums a segment. With `fetches`, first copies the segment's bytes to memory; otherwise they are already there. */
static void sum_segment(const struct tt_ckpt_saving *s, const struct tt_shard_file *file,
                        struct tt_shard_segment *segment, bool fetches, char *bytes)
{
    for (int64_t at = 0; at < segment->size; at += SPAN) {
        int64_t size = segment->size - at < SPAN ? segment->size - at : SPAN;

        if (fetches)
            fetch(s, file, segment, at, size, bytes + at);
        sum_span(s, file, segment, at, size, bytes + at);
    }
}

/* --- blocks --- */

static void *new_blocks(int n, char **ret_blocks)
{
    char *memory = tt_calloc((size_t)n * TT_SHARD_BLOCK + TT_SHARD_ALIGN, 1);

    *ret_blocks = memory + (TT_SHARD_ALIGN - (uintptr_t)memory % TT_SHARD_ALIGN) % TT_SHARD_ALIGN;
    return memory;
}

/* Writes block b; its buffer extends to a multiple of TT_SHARD_ALIGN. */
static int put_bytes(struct tt_ckpt_saving *s, enum tt_ckpt_group group, int b, char *bytes)
{
    const struct tt_shard_file *file = &s->file[group];
    int64_t begin = (int64_t)b * TT_SHARD_BLOCK, left = file->data_bytes - begin;
    int64_t size = left < TT_SHARD_BLOCK ? left : TT_SHARD_BLOCK;
    int64_t padded = s->out[group].direct ? tt_round_up(size, TT_SHARD_ALIGN) : size;

    memset(bytes + size, 0, (size_t)(padded - size));
    return tt_durable_write(&s->out[group], bytes, (size_t)padded, file->data_start + begin);
}

static void fetch_block(const struct tt_ckpt_saving *s, struct tt_shard_file *file, int b, char *to)
{
    for (int i = file->block[b]; i < file->block[b + 1]; i++) {
        sum_segment(s, file, &file->segment[i], true, to);
        to += file->segment[i].size;
    }
}

/* The blocks of all local files are the tiles of a team. The first failure is kept with its message, because each
 * thread has its own message. */
struct tiles {
    struct tt_ckpt_saving *s;
    char *room; /* a block per thread */
    int first[TT_CKPT_GROUPS + 1];
    atomic_int rc;
    char *message;
};

static int count_tiles(struct tiles *t)
{
    for (int group = 0; group < TT_CKPT_GROUPS; group++)
        t->first[group + 1] = t->first[group] + (t->s->file[group].local ? t->s->file[group].n_blocks : 0);
    return t->first[TT_CKPT_GROUPS];
}

static enum tt_ckpt_group group_of(const struct tiles *t, int64_t tile)
{
    return tile < t->first[1] ? TT_CKPT_MODEL : TT_CKPT_OPTIM;
}

/* Writes a block from the staging memory, or from the live state through the thread's own buffer. */
static void write_tile(void *arg, int64_t tile, int worker)
{
    struct tiles *t = arg;
    enum tt_ckpt_group group = group_of(t, tile);
    struct tt_shard_file *file = &t->s->file[group];
    int b = (int)tile - t->first[group], expected = 0, rc;
    char *staged = t->s->staged[group];
    char *bytes = staged ? staged + (int64_t)b * TT_SHARD_BLOCK : t->room + (int64_t)worker * TT_SHARD_BLOCK;

    if (atomic_load(&t->rc) < 0 || atomic_load(&t->s->stop))
        return;
    rc = b == file->n_blocks / 2 ? tt_fault("write", t->s->rank) : 0;
    if (rc == 0 && !staged)
        fetch_block(t->s, file, b, bytes);
    rc = rc < 0 ? rc : put_bytes(t->s, group, b, bytes);
    if (rc < 0 && atomic_compare_exchange_strong(&t->rc, &expected, rc))
        t->message = tt_strdup(tt_error_message());
}

/*
 * While training waits, more threads than cores write: each thread mostly waits for the disk, and the others compute
 * sums meanwhile. An async save uses its one thread.
 */
static int write_blocks(struct tt_ckpt_saving *s)
{
    int threads = s->writer ? 1 : (s->team ? tt_team_threads(s->team) : 1) + WAITING_THREADS, n, rc = 0;
    struct tt_team *team = NULL;
    struct tiles t = {.s = s};
    void *memory = NULL;

    n = count_tiles(&t);
    threads = threads < n ? threads : n;
    if (!s->writer)
        memory = new_blocks(threads, &t.room);
    if (threads > 1)
        TT_TRY(tt_team_new(threads, &team));
    if (team)
        tt_team_run(team, n, write_tile, &t);
    else
        for (int tile = 0; tile < n; tile++)
            write_tile(&t, tile, 0);
    rc = atomic_load(&t.rc);
    if (rc < 0)
        (void)tt_fail(rc, "%s", t.message);
    else if (atomic_load(&s->stop))
        rc = tt_fail(TT_EIO, "the save was given up");
out:
    tt_team_free(team);
    tt_free(t.message);
    tt_free(memory);
    return rc;
}

static void stage_tile(void *arg, int64_t tile, int worker)
{
    const struct tiles *t = arg;
    enum tt_ckpt_group group = group_of(t, tile);
    int b = (int)tile - t->first[group];

    (void)worker;
    fetch_block(t->s, &t->s->file[group], b, t->s->staged[group] + (int64_t)b * TT_SHARD_BLOCK);
}

int tt_saving_stage(struct tt_ckpt_saving *s)
{
    int64_t bytes = 0;
    char *to = staging_of(s->writer, &bytes), *end = to + bytes;
    struct tiles t = {.s = s};
    int n = count_tiles(&t), rc = 0;

    TT_TRY(tt_fault("stage", s->rank));
    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        if (!s->file[group].local || s->file[group].n == 0)
            continue;
        s->staged[group] = to;
        to += tt_round_up(s->file[group].data_bytes, TT_SHARD_ALIGN);
    }
    if (to > end)
        TT_TRY(tt_fail(TT_EINTERNAL, "the staging memory is too small by %lld bytes", (long long)(to - end)));
    if (s->team)
        tt_team_run(s->team, n, stage_tile, &t);
    else
        for (int tile = 0; tile < n; tile++)
            stage_tile(&t, tile, 0);
    rc = tt_fault("staged", s->rank);
out:
    return rc;
}

/* --- whole files --- */

/* Adds the sums of the file's segments to the numbers that ranks share. */
static void report(struct tt_ckpt_saving *s, const struct tt_shard_file *file, uint32_t crc)
{
    int64_t slot = tt_saving_slot(s, file->group, s->rank);

    for (int i = 0; i < file->n; i++) {
        int piece = file->entry[i].index;

        s->shared.crc[piece / 2] |= (int64_t)((uint64_t)file->entry[i].crc << (piece % 2 * 32));
    }
    for (int i = 0; i < file->n_segments; i++) {
        const struct tt_shard_segment *segment = &file->segment[i];
        int tensor = s->plan.piece[file->entry[segment->entry].index].tensor;

        s->shared.digest[tensor] = (int64_t)((uint64_t)s->shared.digest[tensor] + segment->digest);
        s->shared.nonfinite[tensor] += segment->nonfinite;
    }
    s->shared.file_bytes[slot] = tt_shard_file_bytes(file);
    s->shared.file_crc[slot] = crc;
}

/* Computes the checksum of each entry from the checksums of its segments. Returns the checksum of all data. */
static uint32_t join_checksums(struct tt_shard_file *file)
{
    uint32_t all = 0;

    for (int i = 0; i < file->n; i++)
        file->entry[i].crc = 0;
    for (int i = 0; i < file->n_segments; i++) {
        const struct tt_shard_segment *s = &file->segment[i];
        struct tt_st_tensor *entry = &file->entry[s->entry];

        entry->crc = tt_crc32c_combine(entry->crc, s->crc, (uint64_t)s->size);
        all = tt_crc32c_combine(all, s->crc, (uint64_t)s->size);
    }
    return all;
}

static int end_file(struct tt_ckpt_saving *s, enum tt_ckpt_group group)
{
    struct tt_shard_file *file = &s->file[group];
    struct tt_durable *out = &s->out[group];
    char *folder = tt_format("%s/%s", s->folder, tt_ckpt_group_name(group));
    struct tt_text header = {0};
    uint32_t data_crc = join_checksums(file), crc;
    int rc = 0;

    TT_TRY(tt_shard_file_header(file, &header));
    tt_durable_direct(out, false);
    TT_TRY(tt_durable_write(out, header.text, header.size, 0));
    TT_TRY(tt_durable_cut(out, tt_shard_file_bytes(file)));
    TT_TRY(tt_durable_end(out));
    TT_TRY(tt_folder_sync(folder));
    crc = tt_crc32c_combine(tt_crc32c(0, header.text, header.size), data_crc, (uint64_t)file->data_bytes);
    report(s, file, crc);
out:
    tt_text_release(&header);
    tt_free(folder);
    return rc;
}

static int write_assets(const struct tt_ckpt_saving *s)
{
    char *folder = tt_format("%s/assets", s->folder);
    int rc = 0;

    TT_TRY(tt_fault("assets", s->rank));
    for (int i = 0; i < s->n_assets; i++)
        TT_TRY(tt_durable_put(folder, s->asset[i].name, s->asset[i].bytes, s->asset[i].size));
out:
    tt_free(folder);
    return rc;
}

int tt_saving_write(void *arg)
{
    struct tt_ckpt_saving *s = arg;
    double begin = tt_clock_sec();
    int rc = 0;

    TT_TRY(write_blocks(s));
    for (int group = 0; group < TT_CKPT_GROUPS; group++)
        if (s->file[group].n > 0)
            TT_TRY(end_file(s, (enum tt_ckpt_group)group));
    if (s->rank == 0)
        TT_TRY(write_assets(s));
    rc = tt_fault("written", s->rank);
out:
    s->write_sec = tt_clock_sec() - begin;
    return rc;
}

int tt_saving_file(const struct tt_ckpt_saving *s, enum tt_ckpt_group group, int writer, struct tt_shard_file *ret_file)
{
    int64_t slot = tt_saving_slot(s, group, writer);
    int begin = s->file_begin[slot];

    return tt_shard_file_init(&s->stored, &s->store->mesh, &s->plan, s->piece_of_file + begin,
                              s->file_begin[slot + 1] - begin, s->step, ret_file);
}

/* --- gathering: the writer's side. No collective is under way, so TT_TAG_SAVE may be used --- */

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
            fetch(s, file, segment, 0, segment->size, to.data);
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

    return put_bytes(put->s, put->file->group, put->block, put->bytes);
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
        sum_segment(s, file, segment, false, in->bytes + at);
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
    void *memory = new_blocks(2, &blocks);
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

/* --- gathering: a holder's side --- */

static int send_file(const struct tt_ckpt_saving *s, const struct tt_shard_file *file)
{
    struct tt_comm *comm = s->store->comm;
    struct tt_request request = {{0}};
    char *bytes = NULL;
    void *memory = new_blocks(1, &bytes);
    int rc = 0;

    for (int i = 0; i < file->n_segments; i++) {
        const struct tt_shard_segment *segment = &file->segment[i];
        struct tt_segment from = {bytes, (size_t)segment->size};

        if (segment->holder != s->rank)
            continue;
        TT_TRY(tt_comm_wait(comm, &request, file->writer));
        fetch(s, file, segment, 0, segment->size, bytes);
        TT_TRY(comm->ops->send_begin(comm, &from, 1, file->writer, TT_TAG_SAVE, &request));
    }
    rc = tt_comm_wait(comm, &request, file->writer);
out:
    tt_free(memory);
    return rc;
}

/* --- gathering: both sides --- */

/* One flag per slot: its file needs rows of other ranks. */
static bool *find_gathered(const struct tt_ckpt_saving *s)
{
    bool *gathered = tt_calloc((size_t)TT_CKPT_GROUPS * (size_t)s->store->comm->size, sizeof *gathered);

    for (int i = 0; i < s->plan.n; i++) {
        const struct tt_ckpt_piece *piece = &s->plan.piece[i];
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_tensor(&s->stored, piece->tensor);

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
