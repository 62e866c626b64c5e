/* SPDX-License-Identifier: MIT
 *
 * Stack files.
 */
#include "cluster/hardware/stack_file.h"

#include <string.h>

#include "cluster/hardware/machine_file.h"
#include "core/base/text.h"

static const char *const keys[] = {
#define X(id, key, doc) key,
#include "cluster/hardware/stack_keys.def"
#undef X
};

static int index_of(const char *name)
{
    for (int i = 0; i < TT_STACK_KEYS; i++)
        if (strcmp(keys[i], name) == 0)
            return i;
    return -1;
}

static int read_numbers(const char *path, json_t *json, struct tt_cluster_stack *stack, bool given[TT_STACK_KEYS])
{
    const json_t *origins = json_object_get(json, "origin");
    json_t *numbers = json_object_get(json, "numbers"), *value;
    const char *name, *near, *origin;

    if (numbers && !json_is_object(numbers))
        return tt_fail(TT_EDATA, "%s: numbers has to be an object", path);
    json_object_foreach(numbers, name, value)
    {
        int key = index_of(name);

        if (key < 0) {
            near = tt_text_nearest(name, keys, TT_STACK_KEYS);
            return tt_fail(TT_EDATA, "%s: %s is no number of a stack\nhelp: %s%s", path, name,
                           near ? "did you mean " : "the keys are in titan-estimate(1)", near ? near : "");
        }
        if (!json_is_number(value) || !(json_number_value(value) >= 0) || json_number_value(value) > 1e30)
            return tt_fail(TT_EDATA, "%s: %s has to be a number from 0 to 1e30", path, name);
        origin = json_string_value(json_object_get(origins, name));
        stack->number[key] = (struct tt_cluster_number){json_number_value(value), origin ? origin : "the stack file"};
        given[key] = true;
    }
    return 0;
}

/* Numbers by which predictions divide, and those that are missing. */
static int check(const char *path, const struct tt_cluster_stack *stack, const bool given[TT_STACK_KEYS], bool has_base)
{
    static const enum tt_stack_key above_0[] = {TT_S_GEMM, TT_S_ATTENTION, TT_S_LINK, TT_S_BUCKETS};

    for (int i = 0; i < TT_STACK_KEYS && !has_base; i++)
        if (!given[i])
            return tt_fail(TT_EDATA,
                           "%s: %s is missing\nhelp: give the number, or \"base\", the name of a built-in "
                           "stack that has the others",
                           path, keys[i]);
    for (size_t i = 0; i < sizeof above_0 / sizeof *above_0; i++)
        if (!(stack->number[above_0[i]].value > 0))
            return tt_fail(TT_EDATA, "%s: %s has to be above 0", path, keys[above_0[i]]);
    return 0;
}

int tt_cluster_stack_load(const char *path, struct tt_cluster_stack_file *ret_file)
{
    struct tt_cluster_stack_file file = {.json = NULL};
    const struct tt_cluster_stack *base = NULL;
    bool given[TT_STACK_KEYS] = {false};
    static const char *const parts[] = {"numbers", "type", "schema", "name", "title", "base", "origin"};
    const char *type, *base_name = NULL;
    int64_t schema;
    int rc = 0;

    TT_TRY(tt_json_load(path, &file.json));
    TT_TRY(tt_json_get_string(file.json, "type", path, &type));
    TT_TRY(tt_json_get_int(file.json, "schema", path, &schema));
    if (strcmp(type, "stack") != 0 || schema != 2)
        TT_TRY(tt_fail(TT_EDATA,
                       "%s is of type \"%s\", schema %lld; wanted a stack file of schema 2\nhelp: `titan estimate "
                       "--machine h100-sxm --stack torchtitan-compile --save-stack FILE` writes one",
                       path, type, (long long)schema));
    TT_TRY(tt_cluster_check_names(path, file.json, parts, sizeof parts / sizeof *parts, NULL, 0));
    if (json_object_get(file.json, "base"))
        TT_TRY(tt_json_get_string(file.json, "base", path, &base_name));
    if (base_name && (rc = tt_cluster_stack_find(base_name, &base)) < 0) {
        rc = tt_wrap(TT_EDATA, "%s: base", path);
        goto out;
    }
    if (base)
        file.stack = *base;
    TT_TRY(tt_json_get_string(file.json, "name", path, &file.stack.name));
    file.stack.title = file.stack.name;
    TT_TRY(read_numbers(path, file.json, &file.stack, given));
    TT_TRY(check(path, &file.stack, given, base != NULL));
    *ret_file = file;
    return 0;
out:
    json_decref(file.json);
    return rc;
}

void tt_cluster_stack_release(struct tt_cluster_stack_file *file)
{
    json_decref(file->json);
    *file = (struct tt_cluster_stack_file){.json = NULL};
}

json_t *tt_cluster_stack_json(const struct tt_cluster_stack *stack)
{
    json_t *numbers = json_object(), *origin = json_object();

    for (int i = 0; i < TT_STACK_KEYS; i++) {
        (void)json_object_set_new(numbers, keys[i], tt_json_number(stack->number[i].value));
        (void)json_object_set_new(origin, keys[i], tt_json_string(stack->number[i].origin));
    }
    return json_pack("{s:s, s:i, s:o, s:o, s:o}", "type", "stack", "schema", 2, "name", tt_json_string(stack->name),
                     "numbers", numbers, "origin", origin);
}
