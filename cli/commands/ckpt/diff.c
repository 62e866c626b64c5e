/* SPDX-License-Identifier: MIT
 *
 * `titan ckpt diff`: what differs between two checkpoints. Like diff(1), 0 means equal and 1 different.
 */
#include "checkpoint/tools/diff.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands/ckpt/ckpt.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/base/text.h"

enum { EXIT_DIFFERENT = 1 };

static void print_index(const json_t *index)
{
    for (size_t i = 0; i < json_array_size(index); i++)
        tt_print("%s%" JSON_INTEGER_FORMAT, i ? ", " : "[", json_integer_value(json_array_get(index, i)));
    tt_print("]");
}

static void print_tensor(const json_t *t)
{
    char count[32], of[32];
    const json_t *most = json_object_get(t, "max_abs");

    tt_print("%s/%s: ", tt_ckpt_text(t, "group"), tt_ckpt_text(t, "name"));
    if (!json_is_integer(json_object_get(t, "count"))) {
        tt_print("another %s\n", tt_ckpt_text(t, "why"));
        return;
    }
    tt_print("%s of %s values, ", tt_ckpt_count(count, sizeof count, t, "count"),
             tt_ckpt_count(of, sizeof of, t, "elements"));
    if (json_is_number(most))
        tt_print("at most %.9g", json_number_value(most));
    else
        tt_print("not finite");
    tt_print(", the first at ");
    print_index(json_object_get(t, "first"));
    tt_print("\n");
}

static void print_only(const char *where, const json_t *names)
{
    for (size_t i = 0; i < json_array_size(names); i++)
        tt_print("only in %s: %s\n", where, json_string_value(json_array_get(names, i)));
}

/* end: what follows the two values. */
static void print_note(const json_t *note, const char *end)
{
    char *a = tt_json_text(json_object_get(note, "a")), *b = tt_json_text(json_object_get(note, "b"));

    tt_print("  %s: %s, %s%s\n", tt_ckpt_text(note, "key"), a, b, end);
    tt_free(a);
    tt_free(b);
}

static void print_diff(const json_t *json)
{
    const json_t *different = json_object_get(json, "different"), *notes = json_object_get(json, "notes");
    const json_t *config = json_object_get(json, "config");

    for (size_t i = 0; i < json_array_size(different); i++)
        print_tensor(json_array_get(different, i));
    print_only(tt_ckpt_text(json, "a"), json_object_get(json, "only_a"));
    print_only(tt_ckpt_text(json, "b"), json_object_get(json, "only_b"));
    tt_print("%s: %s and %s, %" PRId64 " tensors compared, %" PRId64 " by their digests\n",
             json_is_true(json_object_get(json, "equal")) ? "EQUAL" : "DIFFERENT", tt_ckpt_text(json, "a"),
             tt_ckpt_text(json, "b"), tt_ckpt_int(json, "tensors"), tt_ckpt_int(json, "by_digest"));
    for (size_t i = 0; i < json_array_size(notes); i++)
        print_note(json_array_get(notes, i), " (not a difference)");
    if (json_array_size(config))
        tt_print("  in the configurations:\n");
    for (size_t i = 0; i < json_array_size(config); i++)
        print_note(json_array_get(config, i), "");
}

static int read_atol(const struct tt_args *args, double *ret_atol)
{
    const char *text = tt_args_last(args, "atol");
    char *end = NULL;

    *ret_atol = -1.0;
    if (!text)
        return 0;
    *ret_atol = strtod(text, &end);
    if (end == text || *end || !(*ret_atol >= 0.0) || !isfinite(*ret_atol))
        return tt_fail(TT_EUSAGE, "--atol '%s' is not a number of 0 or more", text);
    return 0;
}

int tt_ckpt_verb_diff(const struct tt_args *args)
{
    json_t *json = NULL;
    double atol = 0.0;
    bool equal;
    int rc = 0;

    TT_TRY(read_atol(args, &atol));
    TT_TRY(tt_ckpt_diff(args->word[1], args->word[2], atol, &json));
    equal = json_is_true(json_object_get(json, "equal"));
    if (tt_args_has(args, "json")) {
        rc = tt_cli_print_json(json);
    } else {
        print_diff(json);
        json_decref(json);
        rc = tt_cli_finish();
    }
    return rc == 0 && !equal ? EXIT_DIFFERENT : rc;
out:
    return tt_cli_fail(rc);
}
