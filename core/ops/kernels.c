/* SPDX-License-Identifier: MIT
 *
 * The tables of kernel variants and the choice among them.
 */
#include "core/ops/kernels.h"

#include <stddef.h>

static const struct tt_kernels reference = {
    .name = "ref",
#define TT_KERNEL(name, args) .name = tt_##name##_ref,
#include "core/ops/kernels.def"
#undef TT_KERNEL
};

static const struct tt_kernels generic = {
    .name = "generic",
#define TT_KERNEL(name, args) .name = tt_##name##_generic,
#include "core/ops/kernels.def"
#undef TT_KERNEL
};

/* From the slowest to the fastest. */
enum { N_VARIANTS = 2 };
static const struct tt_kernels *const variants[N_VARIANTS] = {&reference, &generic};

static const struct tt_kernels *in_use = &generic;

const struct tt_kernels *tt_kernels(void)
{
    return in_use;
}

const struct tt_kernels *tt_kernels_variant(int i)
{
    return i < N_VARIANTS ? variants[i] : NULL;
}

void tt_kernels_use(const struct tt_kernels *kernels)
{
    in_use = kernels ? kernels : variants[N_VARIANTS - 1];
}
