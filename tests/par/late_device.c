/* SPDX-License-Identifier: MIT
 *
 * Streams as queues; see late_device.h.
 */
#include "tests/par/late_device.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/math/rng.h"

enum kind { COPY, OP, STEP_OP };

/* Work that a stream was given, with the operands that it must read at once. */
struct item {
    enum kind kind;
    void *to;
    const void *from;
    size_t bytes;
    struct tt_call call;
    struct tt_step_call step_call;
    struct tt_scalars scalars;
};

struct late_stream {
    struct tt_device_stream stream;
    struct tt_rng rng;
    uint64_t draws;
    struct item *queue;
    int n, cap;
    int64_t before; /* items that have run and left the queue */
    int next;       /* the first item in the queue that has not run */
};

static struct late_stream *late(struct tt_device_stream *stream)
{
    return (struct late_stream *)(void *)stream;
}

static void run_next(struct late_stream *s)
{
    struct item *item = &s->queue[s->next++];

    if (item->kind == COPY)
        memcpy(item->to, item->from, item->bytes);
    else if (item->kind == OP) {
        item->call.scalars = &item->scalars;
        tt_op_row(item->call.node->op)->run(&item->call);
    } else {
        item->step_call.scalars = &item->scalars;
        tt_step_row(item->step_call.op)->run(&item->step_call);
    }
    if (s->next == s->n) {
        s->before += s->n;
        s->n = s->next = 0;
    }
}

/* Runs some items, as a device does while the host continues. */
static void run_some(struct late_stream *s)
{
    enum { MOST = 4 };
    const struct late_device *device = (const struct late_device *)(void *)s->stream.device;

    if (!device->seed)
        return;
    for (uint64_t some = tt_rng_bits(&s->rng, s->draws++) % MOST; some > 0 && s->n > 0; some--)
        run_next(s);
}

static void give(struct tt_device_stream *stream, const struct item *item)
{
    struct late_stream *s = late(stream);

    TT_PUSH(s->queue, s->n, s->cap) = *item;
    run_some(s);
}

static void *allocate(struct tt_device *device, size_t bytes)
{
    return tt_map(bytes);
}

static void release(struct tt_device *device, void *memory, size_t bytes)
{
    tt_unmap(memory, bytes);
}

static int stream_new(struct tt_device *device, struct tt_device_stream **ret_stream)
{
    struct late_stream *s = tt_calloc(1, sizeof *s);

    s->stream.device = device;
    s->rng = tt_rng_make(((const struct late_device *)(void *)device)->seed, "late device");
    *ret_stream = &s->stream;
    return 0;
}

static void stream_free(struct tt_device_stream *stream)
{
    struct late_stream *s = late(stream);

    while (s->n > 0)
        run_next(s);
    tt_free(s->queue);
    tt_free(s);
}

static void copy(struct tt_device_stream *stream, void *to, const void *from, size_t bytes)
{
    give(stream, &(struct item){.kind = COPY, .to = to, .from = from, .bytes = bytes});
}

static void launch(struct tt_device_stream *stream, const struct tt_call *call)
{
    give(stream, &(struct item){.kind = OP, .call = *call, .scalars = *call->scalars});
}

static void launch_step(struct tt_device_stream *stream, const struct tt_step_call *call)
{
    struct item item = {.kind = STEP_OP, .step_call = *call};

    if (call->scalars)
        item.scalars = *call->scalars;
    give(stream, &item);
}

static int64_t record(struct tt_device_stream *stream)
{
    return late(stream)->before + late(stream)->n;
}

static int wait(struct tt_device_stream *stream, int64_t event)
{
    struct late_stream *s = late(stream);

    while (s->before + s->next < event)
        run_next(s);
    run_some(s);
    return 0;
}

struct late_device late_device_make(uint64_t seed)
{
    static const struct tt_device_ops ops = {allocate, release,     stream_new, stream_free, copy,
                                             launch,   launch_step, record,     wait};

    return (struct late_device){.device = {&ops}, .seed = seed};
}
