/* SPDX-License-Identifier: MIT */
#ifndef TT_PAR_LATE_DEVICE_H
#define TT_PAR_LATE_DEVICE_H

#include "core/device/device.h"

/**
 * A device that is the host's cores, but whose streams run late: what a stream is given waits in a queue until somebody
 * waits for an event after it. So whoever reads a result, or writes over an operand, without having waited changes the
 * bits. Ranks that are threads may share one device; a stream belongs to its thread.
 */
struct late_device {
    struct tt_device device;
    uint64_t seed; /* 0: as late as possible. Else some of the queue also runs at random calls of the stream */
};

struct late_device late_device_make(uint64_t seed);

#endif
