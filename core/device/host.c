/* SPDX-License-Identifier: MIT
 *
 * The host as a device. A launch is a call, so every event has passed by the time it is recorded. All streams are the
 * same object.
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/device/device.h"

static void *allocate(struct tt_device *device, size_t bytes)
{
    (void)device;
    return tt_map(bytes);
}

static void release(struct tt_device *device, void *memory, size_t bytes)
{
    (void)device;
    tt_unmap(memory, bytes);
}

static struct tt_device_stream only;

static int stream_new(struct tt_device *device, struct tt_device_stream **ret_stream)
{
    (void)device;
    *ret_stream = &only;
    return 0;
}

static void stream_free(struct tt_device_stream *stream)
{
    (void)stream;
}

static void copy(struct tt_device_stream *stream, void *to, const void *from, size_t bytes)
{
    (void)stream;
    memcpy(to, from, bytes);
}

static void launch(struct tt_device_stream *stream, const struct tt_call *call)
{
    (void)stream;
    tt_op_row_of(call->graph, call->node)->run(call);
}

static void launch_step(struct tt_device_stream *stream, const struct tt_step_call *call)
{
    (void)stream;
    tt_step_row_of(call)->run(call);
}

static int64_t record(struct tt_device_stream *stream)
{
    (void)stream;
    return 0;
}

static int wait(struct tt_device_stream *stream, int64_t event)
{
    (void)stream;
    (void)event;
    return 0;
}

static const struct tt_device_ops ops = {allocate, release,     stream_new, stream_free, copy,
                                         launch,   launch_step, record,     wait};
static struct tt_device host = {&ops};
static struct tt_device_stream only = {&host};

struct tt_device *tt_device_host(void)
{
    return &host;
}
