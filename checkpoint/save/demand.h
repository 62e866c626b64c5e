/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_DEMAND_H
#define TT_CHECKPOINT_SAVE_DEMAND_H

#include <stdint.h>

/**
 * The checkpoints that a run will save, for the room that they take beside what its folder holds now. Bytes are reals: those of a
 * run that keeps everything may be more than an integer holds.
 */
struct tt_ckpt_demand {
    double one;     /* bytes of a regular save */
    double last;    /* of the last one, at most `one` */
    double exports; /* of the Hugging Face folder in the last one, at most `one`; 0: none */
    int64_t saves;  /* yet to come, the last one among them */
    int64_t held;   /* steps that the folder holds now, taken to be of `one` each */
};

/**
 * The most room that they take at any time with this keep_latest_k (0: all stay). A step that must give way is removed only when
 * the one that follows is complete. Never too little; exact while the folder holds no more than `keep` steps.
 */
double tt_ckpt_demand_bytes(const struct tt_ckpt_demand *demand, int64_t keep);

#endif
