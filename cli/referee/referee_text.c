/* SPDX-License-Identifier: MIT
 *
 * The referee's verdict on the screen: first the verdict, then the patterns with their evidence, then the tensors that
 * differ most.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/referee/referee.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"

enum { TENSORS_SHOWN = 12 };

static double number(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);

    return json_is_number(value) ? json_number_value(value) : (double)INFINITY;
}

/* How often a tensor's error exceeds what rounding explains. */
static double excess(const json_t *tensor)
{
    return number(tensor, "error") / number(tensor, "tolerance");
}

static bool is_different(const json_t *tensor)
{
    return !tt_text_is_one_of(tt_cli_text(tensor, "judgement"), "same|rounding");
}

static int compare_excess(const void *a, const void *b)
{
    double x = excess(*(const json_t *const *)a), y = excess(*(const json_t *const *)b);

    return (x < y) - (x > y);
}

static void print_tensors(const json_t *look)
{
    static const struct tt_column columns[] = {
        {"tensor", 44, false, 2, 0, 20}, {"error", 9, true, 1, 0, 0}, {"of", 9, true, 1, 3, 0},
        {"cosine", 8, true, 1, 2, 0},    {"ratio", 8, true, 1, 1, 0},
    };
    const json_t *list = json_object_get(look, "tensors"), *tensor;
    const json_t **sorted = tt_calloc(json_array_size(list) + 1, sizeof *sorted);
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof columns[0]};
    bool ok = json_is_true(json_object_get(look, "ok"));
    size_t i, n = 0;

    json_array_foreach((json_t *)list, i, tensor) if (ok || is_different(tensor)) sorted[n++] = tensor;
    qsort((void *)sorted, n, sizeof *sorted, compare_excess);
    for (i = 0; i < n && i < (ok ? 3 : TENSORS_SHOWN); i++) {
        const char *section = tt_cli_text(sorted[i], "section");
        bool plain = strcmp(section, "gradients") == 0;

        tt_columns_cell(&table, "%s%s%s", plain ? "" : section, plain ? "" : "/", tt_cli_text(sorted[i], "name"));
        if (strcmp(tt_cli_text(sorted[i], "judgement"), "shape") == 0) {
            tt_columns_rest(&table, 1, "other shape");
            continue;
        }
        tt_columns_cell(&table, "%.2e", number(sorted[i], "error"));
        tt_columns_cell(&table, "%.1e", number(sorted[i], "tolerance"));
        tt_columns_cell(&table, "%.4f", number(sorted[i], "cosine"));
        tt_columns_cell(&table, "%.4g", number(sorted[i], "ratio"));
    }
    tt_columns_print(&table);
    if (n > i)
        tt_print("  and %zu more; --json lists them all\n", n - i);
    tt_free((void *)sorted);
}

static void print_only(const char *where, const json_t *list)
{
    size_t n = json_array_size(list);

    if (n)
        tt_print_broken(4, "  only in %s: %s%s\n", where, json_string_value(json_array_get(list, 0)),
                        n > 1 ? " and more" : "");
}

static void print_patterns(const json_t *look)
{
    const json_t *pattern, *line;
    size_t i, k;

    json_array_foreach(json_object_get(look, "patterns"), i, pattern)
    {
        tt_print_broken(2, "pattern %s: %s\n", tt_cli_text(pattern, "name"), tt_cli_text(pattern, "title"));
        json_array_foreach(json_object_get(pattern, "evidence"), k, line)
        {
            enum { LINES = 6 };

            if (k < LINES)
                tt_print_broken(4, "  - %s\n", json_string_value(line));
            else if (k == LINES)
                tt_print("  - and %zu more like this\n", json_array_size(json_object_get(pattern, "evidence")) - k);
        }
        tt_print_broken(4, "  help: %s\n", tt_cli_text(pattern, "remedy"));
    }
}

static void print_look(const json_t *look)
{
    bool ok = json_is_true(json_object_get(look, "ok"));
    const json_t *tensors = json_object_get(look, "tensors"), *loss = json_object_get(look, "loss"), *tensor;
    const char *forward = json_string_value(json_object_get(look, "first_forward"));
    const char *backward = json_string_value(json_object_get(look, "first_backward"));
    size_t different = 0, i;

    json_array_foreach((json_t *)tensors, i, tensor) different += is_different(tensor);
    tt_print_broken(2, "%s: %s against %s: %zu of %zu tensors differ by more than rounding\n", ok ? "OK" : "DIFFERENT",
                    tt_cli_text(look, "dump"), tt_cli_text(look, "truth"), different, json_array_size(tensors));
    print_patterns(look);
    if (!ok && json_array_size(json_object_get(look, "patterns")) == 0)
        tt_print_broken(2, "no known pattern explains this\n");
    if (forward)
        tt_print_broken(4, "  first in forward order: %s\n", forward);
    if (backward)
        tt_print_broken(4, "  first in backward order: %s\n", backward);
    if (json_is_object(loss))
        tt_print_broken(4, "  loss: %.9g in the truth, %.9g here\n", number(loss, "truth"), number(loss, "dump"));
    print_only("the truth", json_object_get(look, "only_truth"));
    print_only("the dump", json_object_get(look, "only_dump"));
    tt_print_broken(4, "  rounding explains %s%s\n", tt_cli_text(look, "model"),
                    json_is_true(json_object_get(look, "measured"))
                        ? ", or less where the other dump of this type is nearer to the reference"
                        : "");
    print_tensors(look);
}

void tt_referee_print(const json_t *json)
{
    const json_t *looks = json_object_get(json, "looks"), *look;
    size_t i;

    json_array_foreach((json_t *)looks, i, look)
    {
        if (i)
            tt_print("\n");
        print_look(look);
    }
}
