/* SPDX-License-Identifier: MIT
 *
 * Matrix products by shape: tiles, waves, and the roofline.
 */
#include "cluster/model/gemm.h"

#include <math.h>

/* Tiles that libraries choose from, and the rate of each against the best one. */
static const struct {
    double m, n, rate;
} tiles[] = {{128, 256, 1.0}, {256, 128, 1.0}, {128, 128, 0.93}, {64, 128, 0.80}, {64, 64, 0.62}};

/* The fixed work of a tile, as a length of the summed dimension. */
static const double tile_overhead = 96;

static double product_sec(const struct tt_cluster_machine *machine, const struct tt_cluster_product *p, double m,
                          double n, double k, double out_bytes)
{
    const struct tt_cluster_number *v = machine->number;
    double peak = v[TT_M_PEAK_BF16].value * v[TT_M_GEMM_SHARE].value * v[TT_M_CLOCK].value, units = v[TT_M_UNITS].value,
           best = 0;
    double together = p->together > 0 ? fmin(p->together, p->groups) : p->groups;
    double moved = p->groups * (p->in_bytes * (m * k + k * n) + out_bytes * m * n) /
                   (v[TT_M_MEMORY_RATE].value * v[TT_M_MEMORY_SHARE].value);

    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        double blocks = together * ceil(m / tiles[i].m) * ceil(n / tiles[i].n);
        double waves = ceil(blocks / units) * ceil(p->groups / together);
        double work = waves * units * tiles[i].m * tiles[i].n * 2 * (k + tile_overhead);
        double sec = work / (peak * (1 + tile_overhead / 4096) * tiles[i].rate);

        if (best <= 0 || sec < best)
            best = sec;
    }
    return fmax(best / p->gain, moved);
}

double tt_cluster_gemm_sec(const struct tt_cluster_machine *machine, double m, double n, double k)
{
    const struct tt_cluster_product p = {.groups = 1, .gain = 1, .in_bytes = 2};

    return product_sec(machine, &p, m, n, k, 2);
}

double tt_cluster_linear_sec(const struct tt_cluster_machine *machine, const struct tt_cluster_product *p,
                             bool backward)
{
    if (!backward)
        return product_sec(machine, p, p->m, p->n, p->k, 2);
    return product_sec(machine, p, p->m, p->k, p->n, 2) + product_sec(machine, p, p->n, p->k, p->m, p->gradient_bytes);
}
