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

static double grouped_sec(const struct tt_cluster_machine *machine, double groups, double m, double n, double k)
{
    const struct tt_cluster_number *v = machine->number;
    double peak = v[TT_M_PEAK_BF16].value * v[TT_M_GEMM_SHARE].value * v[TT_M_CLOCK].value, units = v[TT_M_UNITS].value,
           best = 0;
    double moved = 2 * groups * (m * k + k * n + m * n) / (v[TT_M_MEMORY_RATE].value * v[TT_M_MEMORY_SHARE].value);

    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        double blocks = groups * ceil(m / tiles[i].m) * ceil(n / tiles[i].n), waves = ceil(blocks / units);
        double work = waves * units * tiles[i].m * tiles[i].n * 2 * (k + tile_overhead);
        double sec = work / (peak * (1 + tile_overhead / 4096) * tiles[i].rate);

        if (best <= 0 || sec < best)
            best = sec;
    }
    return fmax(best, moved);
}

double tt_cluster_gemm_sec(const struct tt_cluster_machine *machine, double m, double n, double k)
{
    return grouped_sec(machine, 1, m, n, k);
}

double tt_cluster_linear_sec(const struct tt_cluster_machine *machine, double groups, double m, double n, double k,
                             bool backward)
{
    if (!backward)
        return grouped_sec(machine, groups, m, n, k);
    return grouped_sec(machine, groups, m, k, n) + grouped_sec(machine, groups, n, k, m);
}
