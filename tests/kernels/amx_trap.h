/* SPDX-License-Identifier: MIT */
#ifndef TT_KERNELS_AMX_TRAP_H
#define TT_KERNELS_AMX_TRAP_H

#include <stdbool.h>
#include <stdint.h>

/** How many instructions of each kind a thread ran between amx_trap_begin and amx_trap_end. */
struct amx_trap_counts {
    int64_t configured, released, loads, dots;
};

/** Whether the processor raises SIGILL at the instructions of AMX. */
bool amx_trap_works(void);

/** Instructions of AMX, which this processor lacks, are emulated from here on. x86-64 only; one thread. */
void amx_trap_begin(void);

struct amx_trap_counts amx_trap_end(void);

#endif
