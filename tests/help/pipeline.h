/* SPDX-License-Identifier: MIT */
#ifndef TT_HELP_PIPELINE_H
#define TT_HELP_PIPELINE_H

#include "core/base/text.h"
#include "parallel/pipeline/schedule.h"

/** Adds a pipeline's orders as a CSV file that tt_pipeline_csv_parse reads. */
static inline void pipeline_write(const struct tt_pipeline *pipeline, struct tt_text *text)
{
    for (int rank = 0; rank < pipeline->ranks; rank++)
        for (int t = 0; t < pipeline->orders[rank].n; t++) {
            const struct tt_turn *turn = &pipeline->orders[rank].turns[t];

            tt_text_add(text, "%d%c%d%s", turn->stage, tt_pipeline_letter(pipeline, turn), turn->microbatch,
                        t + 1 < pipeline->orders[rank].n ? "," : "\n");
        }
}

#endif
