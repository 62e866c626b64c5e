/* SPDX-License-Identifier: MIT */
#ifndef TT_KERNELS_AMX_TRAP_H
#define TT_KERNELS_AMX_TRAP_H

#include <stdbool.h>
#include <stdint.h>

/** The number of instructions of each kind that a thread ran between amx_trap_begin and amx_trap_end. */
struct amx_trap_counts {
    int64_t configured, released, loads, dots;
};

/** Whether the processor raises SIGILL at AMX instructions. */
bool amx_trap_works(void);

/** From here on, AMX instructions, which this processor lacks, are emulated. x86-64 only; one thread. */
void amx_trap_begin(void);

struct amx_trap_counts amx_trap_end(void);

#endif
