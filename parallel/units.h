/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_UNITS_H
#define TT_PARALLEL_UNITS_H

#include "core/models/model.h"
#include "core/program/layout.h"
#include "parallel/mesh.h"

/**
 * Units: which parameters are sharded and gathered together (the wrap policy), and which units stay gathered between
 * forward and backward (the reshard policy). Pure functions of the model and the mesh; the same on every rank.
 */

/* When a unit's gathered parameters are freed after its forward. */
enum tt_reshard {
    TT_RESHARD_AFTER_FORWARD_DEFAULT, /* reshard all but the unit of norm and output, where backward begins */
    TT_RESHARD_AFTER_FORWARD_ALWAYS,
    TT_RESHARD_AFTER_FORWARD_NEVER,
};

/* A wrap policy maps a parameter to a key; parameters of one key are one unit. */
struct tt_wrap_row {
    const char *name;
    int64_t (*key)(const struct tt_model *model, int param);
};

extern const struct tt_wrap_row tt_wrap_rows[];
extern const int tt_wrap_n_rows;

/**
 * The layout of `rank` on the mesh. wrap names a row of tt_wrap_rows (TT_EUSAGE with the choices otherwise).
 * The layout is the caller's (tt_layout_free).
 */
int tt_layout_new(const struct tt_model *model, const struct tt_mesh *mesh, int rank, const char *wrap,
                  enum tt_reshard reshard, struct tt_layout **ret_layout) TT_MUST_CHECK;
void tt_layout_free(struct tt_layout *layout);

#endif
