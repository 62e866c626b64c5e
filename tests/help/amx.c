/* SPDX-License-Identifier: MIT
 *
 * Linked into programs: with TITAN_EMULATE_AMX in the environment, products of bfloat16 run on emulated tiles of AMX.
 */
#include <stdlib.h>

#include "core/kernels/kernels.h"
#include "tests/kernels/references.h"

__attribute__((constructor)) static void emulate_amx(void)
{
    if (getenv("TITAN_EMULATE_AMX"))
        tt_kernels_use(kernels_amx_emulated());
}
