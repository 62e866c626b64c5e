/* SPDX-License-Identifier: MIT */
#ifndef TT_DEVICE_DEVICE_H
#define TT_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "core/ops/op.h"
#include "core/ops/step/step.h"

/**
 * A device provides the memory of arenas and runs ops. Programs use both through this interface. One device is the host
 * (host.c), where a launch is a call and nothing needs to wait.
 *
 * A stream runs the work given to it in order, at some later time. An event is a point in a stream. The host waits for
 * an event before it reads what the stream writes, and before it writes what the stream may still read.
 *
 * The host must be able to address the memory of a device, since collectives and checkpoints read and write it. A
 * device without such memory would need copies wherever the host waits.
 *
 * To add a device:
 *   1. A file here with the functions of struct tt_device_ops, and the device's own function for every op and step op,
 *   found by id.
 *   2. `device` in the options of engine and generator.
 *   3. Run tests/par/test_late_device.c on the new device in place of the late device: it must give the same bits as
 *   the host, or there must be a reason why it cannot.
 */
struct tt_device {
    const struct tt_device_ops *ops;
};

struct tt_device_stream {
    struct tt_device *device;
};

struct tt_device_ops {
    /* Zeroed memory, aligned at least to TT_ARENA_ALIGN; NULL if there is not enough. */
    void *(*allocate)(struct tt_device *device, size_t bytes);
    void (*release)(struct tt_device *device, void *memory, size_t bytes);
    int (*stream_new)(struct tt_device *device, struct tt_device_stream **ret_stream);
    /* Waits for all work of the stream, then frees the stream. */
    void (*stream_free)(struct tt_device_stream *stream);
    /*
     * Give work to the stream. These functions cannot fail; if the work fails later, every wait from then on returns
     * its error.
     *   copy         between memory of the host and of the device, in any direction; host memory must stay valid until
     *                an event
     *   launch       call->node->op, by the device's own function for it; on the host the run of the op's row
     *   launch_step  call->op in the same way
     * These functions read a call and its scalars before they return, so both may change afterwards. Everything else
     * that a call points to must not change until an event.
     */
    void (*copy)(struct tt_device_stream *stream, void *to, const void *from, size_t bytes);
    void (*launch)(struct tt_device_stream *stream, const struct tt_call *call);
    void (*launch_step)(struct tt_device_stream *stream, const struct tt_step_call *call);
    /* The event after all work given to the stream so far. */
    int64_t (*record)(struct tt_device_stream *stream);
    /* Returns when the stream has reached the event: 0, or the error of failed work. */
    int (*wait)(struct tt_device_stream *stream, int64_t event);
};

/** The host: the cores of this process. */
struct tt_device *tt_device_host(void);

static inline void tt_device_copy(struct tt_device_stream *stream, void *to, const void *from, size_t bytes)
{
    stream->device->ops->copy(stream, to, from, bytes);
}

static inline void tt_device_launch(struct tt_device_stream *stream, const struct tt_call *call)
{
    stream->device->ops->launch(stream, call);
}

static inline void tt_device_launch_step(struct tt_device_stream *stream, const struct tt_step_call *call)
{
    stream->device->ops->launch_step(stream, call);
}

static inline int64_t tt_device_record(struct tt_device_stream *stream)
{
    return stream->device->ops->record(stream);
}

static inline int tt_device_wait(struct tt_device_stream *stream, int64_t event)
{
    return stream->device->ops->wait(stream, event);
}

/** Waits for all work given to the stream so far. */
static inline int tt_device_synchronize(struct tt_device_stream *stream)
{
    return tt_device_wait(stream, tt_device_record(stream));
}

#endif
