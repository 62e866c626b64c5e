/* SPDX-License-Identifier: MIT
 *
 * A pipeline schedule in a CSV file, for 2 ranks, 4 stages and 4 microbatches. A schedule that is accepted is written,
 * and must then be accepted again.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "fuzz.h"
#include "parallel/pipeline/schedule.h"
#include "tests/help/pipeline.h"

enum { RANKS = 2, STAGES = 4, MICROBATCHES = 4 };

/* The lines, or NULL. */
static char *read_and_write(const char *text, size_t size)
{
    struct tt_order orders[RANKS] = {{0}};
    int rank_of_stage[STAGES] = {0};
    bool weights_apart[STAGES * MICROBATCHES] = {false};
    struct tt_pipeline pipeline = {
        tt_pipeline_row(TT_PP_CSV), RANKS, STAGES, MICROBATCHES, rank_of_stage, orders, weights_apart};
    struct tt_text out = {0};

    if (tt_pipeline_csv_parse(text, size, "fuzz.csv", &pipeline) == 0)
        pipeline_write(&pipeline, &out);
    for (int rank = 0; rank < RANKS; rank++)
        tt_order_release(&orders[rank]);
    return out.text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *once = read_and_write((const char *)data, size), *twice = NULL;

    if (once && (!(twice = read_and_write(once, strlen(once))) || strcmp(once, twice) != 0))
        abort();
    tt_free(once);
    tt_free(twice);
    return 0;
}
