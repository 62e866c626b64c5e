/* SPDX-License-Identifier: MIT */
#ifndef TT_DEVICE_DEVICE_H
#define TT_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "core/ops/op.h"
#include "core/ops/step/step.h"

/**
 * A device: where arenas lie and where ops run. Programs reach both through this table, whose rows are devices. The
 * host is one (host.c): there a launch is a call, and nothing is ever waited for.
 *
 * A stream runs what it is given in that order, at some time after it was given. An event is a point of a stream. The
 * host waits for an event before it reads what the stream writes, and before it writes what the stream may still read.
 *
 * The host can address the memory of a device, since collectives and checkpoints read it and write to it. A device
 * without such memory needs copies at the places that wait.
 */
struct tt_device {
    const struct tt_device_ops *ops;
};

struct tt_device_stream {
    struct tt_device *device;
};

struct tt_device_ops {
    /* Zeroed memory, aligned to TT_ARENA_ALIGN at least; NULL when there is not enough. */
    void *(*allocate)(struct tt_device *device, size_t bytes);
    void (*release)(struct tt_device *device, void *memory, size_t bytes);
    int (*stream_new)(struct tt_device *device, struct tt_device_stream **ret_stream);
    /* Waits for what the stream was given, then frees it. */
    void (*stream_free)(struct tt_device_stream *stream);
    /*
     * Give the stream something to do. They cannot fail; what fails later is the result of every wait from then on.
     *   copy         between memory of the host and of the device in any direction; the host's stays until an event
     *   launch       call->node->op, by the device's own function for it; on the host the run of the op's row
     *   launch_step  call->op in the same way
     * A call and its scalars are read at once and may change afterwards. What else a call points to stays as it is.
     */
    void (*copy)(struct tt_device_stream *stream, void *to, const void *from, size_t bytes);
    void (*launch)(struct tt_device_stream *stream, const struct tt_call *call);
    void (*launch_step)(struct tt_device_stream *stream, const struct tt_step_call *call);
    /* The event after everything that the stream has been given so far. */
    int64_t (*record)(struct tt_device_stream *stream);
    /* Returns when the stream has reached the event; 0, or what failed. */
    int (*wait)(struct tt_device_stream *stream, int64_t event);
};

/** The device that is this process's cores. */
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

/** Waits for everything that the stream has been given so far. */
static inline int tt_device_synchronize(struct tt_device_stream *stream)
{
    return tt_device_wait(stream, tt_device_record(stream));
}

#endif
