/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_DEMAND_H
#define TT_CHECKPOINT_SAVE_DEMAND_H

#include <stdint.h>

/**
 * The checkpoints that a run will save, to compute the disk space that they need in addition to what the folder has
 * now. Bytes are reals, since a run that keeps everything may need more than an integer can hold.
 */
struct tt_ckpt_demand {
    double one;     /* bytes of a regular save */
    double last;    /* of the last save, at most `one` */
    double exports; /* of the Hugging Face folder in the last save, at most `one`; 0: none */
    int64_t saves;  /* still to come, including the last one */
    int64_t held;   /* steps that the folder has now, each assumed to have `one` bytes */
};

/**
 * The most space that they take at any time with this keep_latest_k (0: all stay). An old step is removed only when the
 * next one is complete. The result is never too small, and it is exact while the folder has at most `keep` steps.
 */
double tt_ckpt_demand_bytes(const struct tt_ckpt_demand *demand, int64_t keep);

#endif
