/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_REFEREE_LOOK_H
#define TT_CLI_REFEREE_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/referee/dump.h"
#include "cli/referee/pair.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * One step of a dump beside the truth: the pairs, the rounding that explains differences, and what was found.
 */
struct tt_look {
    const struct tt_dump *truth, *dump; /* borrowed */
    struct tt_pair *pair;               /* [n] by section, then name */
    int n;
    json_t *only_truth, *only_dump; /* names of tensors without a partner, as "gradients/NAME" */
    int layers;                     /* number of the last layer, plus 1 */
    double unit;                    /* largest relative error of rounding to the coarser stated type */
    double stored;                  /* the same for the types of the elements, if the stated one is finer */
    double sum_unit;                /* the same for the type of the sums */
    double terms;                   /* length of the longest sum */
    double tolerance;               /* of a gradient; see tt_look_tolerance */
    bool *explained;                /* [n] a pattern explains why the pair differs */
    json_t *patterns;               /* a list of {"name", "title", "evidence": [...], "remedy"} */
};

/**
 * The rounding of a type: TT_EUSAGE if `name` is none of float64, float32, tfloat32, bfloat16, float16.
 */
int tt_unit_of(const char *name, double *ret_unit) TT_MUST_CHECK;

/**
 * The relative error that rounding explains in a gradient, if products are rounded to `unit` and sums of `terms` terms
 * to `sum_unit`, in a model of `layers` layers.
 */
double tt_look_tolerance(double unit, double sum_unit, double terms, int layers);

/**
 * Pairs all tensors that both dumps have in one of the same sections. The caller releases *look even after an error.
 * TT_EDATA: they have none in common.
 *   unit  see tt_unit_of; 0: the type is not stated, and is that of the elements
 */
int tt_look_open(const struct tt_dump *truth, const struct tt_dump *dump, double unit,
                 struct tt_look *look) TT_MUST_CHECK;
void tt_look_release(struct tt_look *look);

/** Sets the tolerance and the judgement of all pairs. */
void tt_look_judge(struct tt_look *look);

/**
 * Judges again by another dump of the same stated type, if that dump differs from the truth by no more than the model
 * of rounding explains: its errors show what rounding does. Returns whether it is such a dump.
 */
bool tt_look_measure(struct tt_look *look, const struct tt_look *other);

/** Whether pair i differs by more than rounding and no pattern explains it. Only gradients, or with `any` all. */
bool tt_look_is_bad(const struct tt_look *look, int i, bool any);

/**
 * Compares the gradients of n replicas of the judged dump, of which the first is the look's, and adds a pattern if they
 * differ. (copies.c)
 */
int tt_copies_compare(struct tt_look *look, const struct tt_dump *replica, int n) TT_MUST_CHECK;

/**
 * The first pair that differs (not in its shape) in the order of a pass: an activation in forward order, or a gradient
 * in backward order. Of a module and the last of its parts, it is the part; of an output and a weight, whose gradient
 * follows from the output's, it is the output. -1: none differs, or the dumps have no such section.
 */
int tt_look_first(const struct tt_look *look, bool forward);

/** Adds a pattern; the caller appends its evidence, texts, to the list that is returned. */
json_t *tt_look_add(struct tt_look *look, const char *name, const char *title, const char *remedy);

/** Appends a text to the evidence of a pattern. */
void tt_look_say(json_t *evidence, const char *format, ...) TT_PRINTF(2, 3);

/** Marks all bad gradients as explained. */
void tt_look_explain(struct tt_look *look);

/**
 * The factor by which B is nearest to A, over all bad gradients: 1 if B is a sum that lacks terms of A's, and these are
 * independent of the others.
 */
double tt_look_part(const struct tt_look *look);

/**
 * Names what explains the differences of the gradients, as patterns of *look. tt_faults_find tries all patterns;
 * tt_moves_find those in which B's numbers are A's in other places or, with `partly`, in which some shards are right;
 * tt_tokens_find those in the rows of tokens; tt_rotary_find the other layout of rotary positions, if one of the dumps
 * contains weights.
 */
int tt_faults_find(struct tt_look *look) TT_MUST_CHECK;
int tt_moves_find(struct tt_look *look, bool partly) TT_MUST_CHECK;
int tt_tokens_find(struct tt_look *look) TT_MUST_CHECK;
int tt_rotary_find(struct tt_look *look) TT_MUST_CHECK;

#endif
