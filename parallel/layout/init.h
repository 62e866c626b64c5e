/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_INIT_H
#define TT_PARALLEL_LAYOUT_INIT_H

#include "core/models/model.h"
#include "core/program/layout.h"

/**
 * First values of the parameters. Every element is a function of the seed, the parameter's name and its index, so all
 * ways give the same bits; what differs is the memory that a rank needs beside its shards.
 */
enum tt_init {
    TT_INIT_SHARDS, /* straight into the shards: nothing (training.init meta) */
    TT_INIT_WHOLE,  /* the whole model, then this rank's rows of it are copied: 4 bytes a parameter */
    TT_INIT_UNITS,  /* the same for one unit at a time: 4 bytes a parameter of the largest unit */
    TT_INIT_MODES
};

/** Bytes of the buffer beside the shards. */
int64_t tt_init_buffer_bytes(const struct tt_layout *layout, const struct tt_model *model, enum tt_init how);

/**
 * Fills this rank's rows of every parameter; param[unit] is its flat shard. Not collective. TT_EINTERNAL names a
 * parameter that has no rule, before anything is written; TT_EFIT when the system has not got the buffer.
 */
int tt_init_params(const struct tt_layout *layout, const struct tt_model *model, enum tt_init how, uint64_t seed,
                   float *const *param) TT_MUST_CHECK;

#endif
