/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_REFEREE_REFEREE_H
#define TT_CLI_REFEREE_REFEREE_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"

struct tt_referee_options {
    const char *reference; /* a dump that both are judged against, computed in float64; NULL: none */
    const char *dtype;     /* the type in which the judged dumps computed; NULL: as they state, or as their elements */
    int64_t step;          /* the only step to compare; -1: all that the dumps have in common */
};

/**
 * Compares the dumps of training steps (cli/referee/dump.h), and names what makes them differ.
 *
 * {"type": "compare_gradients", "schema": 1, "ok": bool, "a", "b", "reference": path | null, "looks": [one for each
 *  step and judged dump: {"dump", "truth": paths, "step": number | null, "ok", "dtype", "model": text on the tolerance,
 *  "tolerance", "measured": bool, "loss": null | {"truth", "dump"}, "patterns": [{"name", "title", "evidence": [text],
 *  "remedy"}], "first_forward", "first_backward": name | null, "only_truth", "only_dump": [name], "tensors":
 *  [{"section", "name", "layer": number | null, "role", "error", "cosine", "ratio", "tolerance", "judgement": "same" |
 *  "rounding" | "different" | "not finite" | "shape"}]}]}
 * "error" is the norm of the difference relative to the truth's, or to the usual size of tensors if the truth is tiny.
 *
 * TT_EDATA: a path leads to no dump, or the dumps have no tensor or no step in common. TT_EUSAGE: an unknown dtype.
 */
int tt_referee_judge(const char *a, const char *b, const struct tt_referee_options *options,
                     json_t **ret_json) TT_MUST_CHECK;

/** Prints the verdict, the patterns and the tensors that differ most (referee_text.c). */
void tt_referee_print(const json_t *json);

/** Appends a page with a picture of all tensors, layer by layer (referee_html.c). */
void tt_referee_draw_html(const json_t *json, struct tt_text *out);

/* The page without its head: page.html. */
extern const char tt_referee_page_text[];
extern const size_t tt_referee_page_text_size;

#endif
