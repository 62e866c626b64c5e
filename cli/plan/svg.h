/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_PLAN_SVG_H
#define TT_CLI_PLAN_SVG_H

#include "core/base/text.h"
#include "parallel/pipeline/schedule.h"

/**
 * Parts of SVG pictures. Lengths are in pixels, times in seconds.
 */

/** Adds the head of a picture with a white background; the caller ends it with "</svg>". */
void tt_svg_begin(int width, int height, struct tt_text *out);

/**
 * Adds a line of text, with the special characters of SVG replaced.
 *   anchor "start", "middle" or "end": which part of the text is at x
 *   attributes  further attributes of the element; may be ""
 */
void tt_svg_text(struct tt_text *out, double x, double y, const char *anchor, const char *attributes, const char *text);

/** Adds vertical lines from top to bottom at round times, with the times below them; `width` pixels represent
 * `seconds`. */
void tt_svg_time_axis(int left, int width, int top, int bottom, double seconds, struct tt_text *out);

/**
 * Adds a run of a pipeline as a picture in SVG: a lane for each rank, with its turns over predicted time and the number
 * of the microbatch on each. The gaps between the turns are the bubble.
 *   run    of this pipeline
 *   about  a line about the run, such as the machine of the times
 */
void tt_plan_pipeline_svg(const struct tt_pipeline *pipeline, const struct tt_pipeline_run *run, const char *about,
                          struct tt_text *out);

/** The height of that picture. */
int tt_plan_pipeline_svg_height(const struct tt_pipeline *pipeline);

#endif
