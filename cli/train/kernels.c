/* SPDX-License-Identifier: MIT
 *
 * The kernels that a run computes with. Other kernels add in another order, so bits depend on them.
 */
#include "core/kernels/kernels.h"

#include "cli/facts.h"
#include "cli/train/setup.h"
#include "core/base/mem.h"
#include "core/kernels/blas.h"

int tt_setup_compare_kernels(struct tt_comm *comm, char **ret_differ)
{
    const struct tt_fact facts[] = {{"the BLAS kernel", tt_blas_kernel()},
                                    {"the BLAS library", tt_blas_library()},
                                    {"titan's kernel variant", tt_kernels()->name}};
    struct tt_text difference = {0};
    int rc = 0;

    *ret_differ = NULL;
    TT_TRY(tt_facts_compare(comm, facts, sizeof facts / sizeof *facts, &difference));
    if (difference.text)
        *ret_differ = tt_strdup(difference.text);
out:
    tt_text_release(&difference);
    return rc;
}

json_t *tt_setup_kernels_json(const struct tt_setup *setup)
{
    return json_pack("{s:s, s:s, s:s, s:s*}", "blas", tt_blas_kernel(), "titan", tt_kernels()->name, "float32_products",
                     tt_sgemm_is_blas() ? "blas" : "titan", "differ", setup->kernels_differ);
}
