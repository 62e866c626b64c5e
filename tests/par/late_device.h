/* SPDX-License-Identifier: MIT */
#ifndef TT_PAR_LATE_DEVICE_H
#define TT_PAR_LATE_DEVICE_H

#include "core/device/device.h"

/**
 * A device whose streams run late on the host's cores: work waits in a queue until somebody waits for an event after
 * it. So code that reads a result or overwrites an operand without waiting gets wrong bits. Ranks that are threads may
 * share a device; a stream belongs to its thread.
 */
struct late_device {
    struct tt_device device;
    uint64_t seed; /* 0: work runs as late as possible; else parts of the queue also run at random calls */
};

struct late_device late_device_make(uint64_t seed);

#endif
