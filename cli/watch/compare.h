/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_WATCH_COMPARE_H
#define TT_CLI_WATCH_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/json.h"

/** The numbers to compare: the named fields, or those that should not depend on machine and layout. */
struct tt_compare_options {
    const char *const *field; /* fields of step records */
    int n_fields;             /* 0: loss, grad_norm, lr, ntokens_seen */
    int64_t from, to;         /* range of steps */
    double tolerance;         /* numbers are equal if |a - b| <= tolerance * max(|a|, |b|); 0: the same bits */
};

/**
 * Compares the records of two runs, and the losses of their validations. {"type": "compare", "schema": 1, "a", "b",
 * "equal", "steps": the number of common steps, "tolerance", "first": null | {"step", "field", "a", "b"}, "fields":
 * [{"field", "compared", "different", "first_step", "max_abs", "max_rel", "max_step"}], "only_a", "only_b": [{"from",
 * "to", "count"}], "config": [{"key", "a", "b"}], "notes": [{"key", "a", "b"}]} Runs are equal if both have the same
 * steps, at least one, and no number differs. "config" lists the configuration keys that differ, "notes" other facts
 * that differ. TT_EDATA: a path leads to no run. TT_EUSAGE: no record has such a field.
 */
int tt_compare_runs(const char *a, const char *b, const struct tt_compare_options *options,
                    json_t **ret_json) TT_MUST_CHECK;

/**
 * The keys in which n configurations differ, and the value in each (null: none), as a list of {"key", "values"}. The
 * folder of a run is ignored. A key that only some contain comes from another version of titan.
 */
json_t *tt_compare_configs(int n, const json_t *const *config);

#endif
