/* SPDX-License-Identifier: MIT
 *
 * The table of metrics.
 */
#include "trainer/step/metrics.h"

const struct tt_metric_row tt_metric_rows[TT_METRICS] = {
/* torchtitan's colours */
#define GREEN     "\033[32m"
#define ORANGE    "\033[38;2;180;60;0m"
#define TURQUOISE "\033[38;2;54;234;195m"
#define BLUE      "\033[34m"
#define CYAN      "\033[36m"
#define MAGENTA   "\033[35m"
#define PLAIN     "\033[39m"
#define ALWAYS    .is_optional = false
#define INTEGER   .is_integer = true
#define SOMETIMES .is_optional = true
#define CHART     TT_WATCH_CHART
#define COMPARE   TT_WATCH_COMPARE
#define LINE(at, rank_, color_, how_, text_) \
    .place[TT_LIST_LINE] = (at), .rank = (rank_), .color = (color_), .how = TT_HOW_##how_, .text = (text_)
#define NO_LINE         .place[TT_LIST_LINE] = 0
#define BOARD(at, tag_) .place[TT_LIST_BOARD] = (at), .tag = (tag_)
#define NO_BOARD        .place[TT_LIST_BOARD] = 0
#define TT_METRIC(id, name_, presence, source, line, board, watch_, status) \
    [TT_METRIC_##id] = {.name = (name_), presence, line, board, .watch = (watch_), .place[TT_LIST_STATUS] = (status)},
#include "trainer/step/metrics.def"
};

#define SHOWN    true
#define RECORDED false
const struct tt_task_metric_row tt_task_metric_rows[TT_TASK_METRICS] = {
#define TT_TASK_METRIC(id, name_, place, source) [TT_TASK_METRIC_##id] = {name_, place},
#include "trainer/step/metrics.def"
};

enum tt_metric tt_metric_at(enum tt_metric_list list, int place)
{
    enum tt_metric k = 0;

    while (k < TT_METRICS && tt_metric_rows[k].place[list] != place)
        k++;
    return k;
}
