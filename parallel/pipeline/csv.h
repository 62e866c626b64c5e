/* SPDX-License-Identifier: MIT */
#ifndef TT_PIPELINE_CSV_H
#define TT_PIPELINE_CSV_H

#include "core/base/text.h"
#include "parallel/pipeline/schedule.h"

/**
 * Pipeline schedules as torch writes them with "compute_only": a line for each rank, whose cells are its turns,
 * separated by commas. A cell is stage, letter (F, B, I or W) and microbatch, as in 2F0; an empty cell is nothing.
 * (0F3;3B1)OVERLAP_F_B is two turns, one after the other. Blanks around cells, quotes around a cell and empty lines at
 * the end are allowed.
 */

/**
 * Fills the orders of a pipeline without any, weights_apart, and rank_of_stage, and checks them (tt_pipeline_check).
 *   text, size  of the file
 *   name        the file's, for messages
 * Errors: TT_EUSAGE, with line and cell.
 */
int tt_pipeline_csv_parse(const char *text, size_t size, const char *name, struct tt_pipeline *pipeline) TT_MUST_CHECK;

/** Adds a pipeline's orders as such a file. */
void tt_pipeline_csv_add(const struct tt_pipeline *pipeline, struct tt_text *text);

#endif
