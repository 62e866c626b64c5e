/* SPDX-License-Identifier: MIT
 *
 * Machines and stacks: the built-in ones, and files of both.
 */
#include "estimate/hardware/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/text.h"
#include "core/os/file.h"

#define GIB  (1024.0 * 1024.0 * 1024.0)
#define GBIT (1e9 / 8.0)

/* clang-format off */
#define MACHINE(id, text, other) {.like = (other), .machine = {.name = (id), .title = (text), .number = {
#define STACK(id, text, other)   {.like = (other), .stack = {.name = (id), .title = (text), .number = {
#define M(key, amount, from)     [TT_M_##key] = {(amount), (from)},
#define S(key, amount, from)     [TT_S_##key] = {(amount), (from)},
#define END                      }}},

/* `like` names the entry that supplies the numbers without a row; NULL: every number has a row. */
static struct {
    const char *like;
    struct tt_cluster_machine machine;
} machines[] = {
#include "estimate/hardware/machines.def"
};
static struct {
    const char *like;
    struct tt_cluster_stack stack;
} stacks[] = {
#include "estimate/hardware/stacks.def"
};
/* clang-format on */

enum { N_MACHINES = sizeof machines / sizeof *machines, N_STACKS = sizeof stacks / sizeof *stacks };

bool tt_cluster_stack_is_megatron(const struct tt_cluster_stack *stack)
{
    return stack->number[TT_S_STATE_WHOLE].value > 0;
}

static void complete(struct tt_cluster_number *number, const struct tt_cluster_number *other, int n)
{
    for (int i = 0; i < n; i++)
        if (!number[i].origin)
            number[i] = other[i];
}

const struct tt_cluster_machine *tt_cluster_machine_at(int i)
{
    if (i >= N_MACHINES)
        return NULL;
    for (int k = 0; machines[i].like && k < N_MACHINES; k++)
        if (strcmp(machines[k].machine.name, machines[i].like) == 0) {
            complete(machines[i].machine.number, tt_cluster_machine_at(k)->number, TT_MACHINE_KEYS);
            machines[i].like = NULL;
        }
    return &machines[i].machine;
}

const struct tt_cluster_stack *tt_cluster_stack_at(int i)
{
    if (i >= N_STACKS)
        return NULL;
    for (int k = 0; stacks[i].like && k < N_STACKS; k++)
        if (strcmp(stacks[k].stack.name, stacks[i].like) == 0) {
            complete(stacks[i].stack.number, tt_cluster_stack_at(k)->number, TT_STACK_KEYS);
            stacks[i].like = NULL;
        }
    return &stacks[i].stack;
}

/* The index of a built-in table, ignoring case; TT_EUSAGE. */
static int find(const char *what, const char *name, const char *const *names, int n)
{
    const char *near = tt_text_meant(name, names, n);
    struct tt_text all = {0};
    int rc;

    for (int i = 0; i < n; i++)
        if (strcasecmp(names[i], name) == 0)
            return i;
    for (int i = 0; i < n; i++)
        tt_text_add(&all, " %s", names[i]);
    rc = tt_fail(TT_EUSAGE, "--%s '%s' is not built in\nhelp: %s%s%sone of%s, or a %s file (a path)", what, name,
                 near ? "did you mean " : "", near ? near : "", near ? "? " : "", all.text, what);
    tt_text_release(&all);
    return rc;
}

int tt_cluster_machine_find(const char *name, const struct tt_cluster_machine **ret_machine)
{
    const char *names[N_MACHINES];
    int at;

    for (int i = 0; i < N_MACHINES; i++)
        names[i] = machines[i].machine.name;
    at = find("machine", name, names, N_MACHINES);
    if (at >= 0)
        *ret_machine = tt_cluster_machine_at(at);
    return at < 0 ? at : 0;
}

int tt_cluster_stack_find(const char *name, const struct tt_cluster_stack **ret_stack)
{
    const char *names[N_STACKS];
    int at;

    for (int i = 0; i < N_STACKS; i++)
        names[i] = stacks[i].stack.name;
    at = find("stack", name, names, N_STACKS);
    if (at >= 0)
        *ret_stack = tt_cluster_stack_at(at);
    return at < 0 ? at : 0;
}

/* --- files --- */

struct key {
    const char *path;
    bool is_positive; /* predictions divide by it */
    bool is_new;      /* older files lack it */
};
#define X(id, key, doc) {key, false, false},
#define P(id, key, doc) {key, true, false},
static const struct key machine_keys[] = {
#include "estimate/hardware/machine_keys.def"
};
#define P(id, key, doc) {key, true, false},
#define N(id, key, doc) {key, false, true},
static const struct key stack_keys[] = {
#include "estimate/hardware/stack_keys.def"
};
#undef X

/* A kind of file: its type and schemas, the options that write such a file, and its numbers. */
struct kind {
    const char *type, *schemas, *options, *origin;
    int64_t least_schema;
    const struct key *keys;
    int n;
};

static const struct kind machine_kind = {"machine", "1 or 2",     "--save FILE",  "the machine file",
                                         1,         machine_keys, TT_MACHINE_KEYS};
static const struct kind stack_kind = {
    "stack", "2", "--stack torchtitan-compile --save-stack FILE", "the stack file", 2, stack_keys, TT_STACK_KEYS};

/* The head of a file: its schema, its name, and the built-in entry for missing numbers (NULL: none). */
static int read_head(const struct kind *kind, const char *path, json_t *json, int64_t *ret_schema,
                     const char **ret_name, const char **ret_base)
{
    const char *type;
    int rc = 0;

    *ret_base = NULL;
    TT_TRY(tt_json_get_string(json, "type", path, &type));
    TT_TRY(tt_json_get_int(json, "schema", path, ret_schema));
    if (strcmp(type, kind->type) != 0 || *ret_schema < kind->least_schema || *ret_schema > 2)
        TT_TRY(tt_fail(TT_EDATA,
                       "%s is of type \"%s\", schema %lld; wanted a %s file of schema %s\nhelp: `titan estimate "
                       "--machine h100-sxm %s` writes one",
                       path, type, (long long)*ret_schema, kind->type, kind->schemas, kind->options));
    TT_TRY(tt_json_get_string(json, "name", path, ret_name));
    if (json_object_get(json, "base") || json_object_get(json, "like"))
        TT_TRY(tt_json_get_string(json, json_object_get(json, "base") ? "base" : "like", path, ret_base));
out:
    return rc;
}

/* Takes a number, and its origin from `origins`. */
static int take(const struct kind *kind, const char *path, const char *key, const json_t *value, const json_t *origins,
                struct tt_cluster_number *number, bool *given)
{
    const char *origin = json_string_value(json_object_get(origins, key)), *near,
               *names[TT_MACHINE_KEYS + TT_STACK_KEYS];
    bool is_share = tt_text_ends(key, "share") || tt_text_ends(key, "probability");
    double most = kind == &machine_kind && is_share ? 1 : 1e30; /* beyond this limit, sums might overflow */
    int i = 0;

    while (i < kind->n && strcmp(kind->keys[i].path, key) != 0)
        i++;
    if (i == kind->n) {
        for (int k = 0; k < kind->n; k++)
            names[k] = kind->keys[k].path;
        near = tt_text_nearest(key, names, kind->n);
        return tt_fail(TT_EDATA, "%s: %s is not a number of a %s\nhelp: %s%s", path, key, kind->type,
                       near ? "did you mean " : "the keys are in titan-estimate(1)", near ? near : "");
    }
    if (!json_is_number(value) || !(json_number_value(value) >= 0) || json_number_value(value) > most)
        return tt_fail(TT_EDATA, "%s: %s has to be a number from 0 to %g", path, key, most);
    number[i] = (struct tt_cluster_number){json_number_value(value), origin ? origin : kind->origin};
    given[i] = true;
    return 0;
}

/* Refuses missing numbers, and zeros by which predictions would divide. */
static int check_numbers(const struct kind *kind, const char *path, const struct tt_cluster_number *number,
                         const bool *given, bool has_base)
{
    for (int i = 0; i < kind->n && !has_base; i++)
        if (!given[i] && !kind->keys[i].is_new)
            return tt_fail(TT_EDATA,
                           "%s: %s is missing\nhelp: give the number, or \"base\", the name of a built-in %s that has "
                           "the others",
                           path, kind->keys[i].path, kind->type);
    for (int i = 0; i < kind->n; i++)
        if (kind->keys[i].is_positive && !(number[i].value > 0))
            return tt_fail(TT_EDATA, "%s: %s has to be above 0", path, kind->keys[i].path);
    return 0;
}

enum { PATH_BYTES = 128 };

/* --- reading --- */

struct reader {
    const char *file;
    struct tt_cluster_machine *machine;
    const json_t *origin;
    bool given[TT_MACHINE_KEYS];
};

/* Takes "levels.0.ramp", pairs of bytes and a share, and "levels.0.ramp_devices", the number of devices of that
 * measurement. */
static int take_ramp(const struct reader *r, const char *path, const json_t *value, struct tt_cluster_ramp *ramp)
{
    ramp->n = 0;
    if (!json_is_array(value))
        return tt_fail(TT_EDATA, "%s: %s has to be a list of pairs [bytes, share]", r->file, path);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *pair = json_array_get(value, i);
        double bytes = json_number_value(json_array_get(pair, 0)), share = json_number_value(json_array_get(pair, 1));

        if (i == TT_RAMP_POINTS || json_array_size(pair) != 2 || !(bytes > 0) || !(share > 0) || bytes > 1e30 ||
            share > 1 || (i > 0 && bytes <= ramp->point[i - 1].bytes))
            return tt_fail(
                TT_EDATA,
                "%s: %s has to be a list of at most %d pairs [bytes, share], sorted by bytes, with both above 0 and "
                "shares of at most 1",
                r->file, path, TT_RAMP_POINTS);
        ramp->point[ramp->n].bytes = bytes;
        ramp->point[ramp->n++].share = share;
    }
    return 0;
}

/* Takes all numbers below a value, each by its path. */
static int walk(struct reader *r, const char *path, json_t *value)
{
    bool is_level = tt_text_begins(path, "levels.0.") || tt_text_begins(path, "levels.1.");
    const char *part = is_level ? path + strlen("levels.0.") : "", *name;
    int level = is_level && path[strlen("levels.")] == '1';
    double number = json_number_value(value);
    char below[PATH_BYTES];
    json_t *item;
    int rc = 0;

    if (strcmp(part, "ramp") == 0)
        return take_ramp(r, path, value, &r->machine->ramp[level]);
    if (strcmp(part, "ramp_devices") == 0 && number > 1 && number <= 1e9) {
        r->machine->ramp[level].devices = number;
        return 0;
    }
    if (strcmp(part, "exchange_share") == 0 && number > 0 && number <= 1) {
        r->machine->exchange_share[level] = number;
        return 0;
    }
    if (json_is_object(value)) {
        json_object_foreach(value, name, item)
        {
            if (strlen(path) + strlen(name) + 2 > sizeof below)
                TT_TRY(tt_fail(TT_EDATA, "%s: %s.%.40s... is not a number of a machine", r->file, path, name));
            (void)snprintf(below, sizeof below, "%s.%s", path, name);
            TT_TRY(walk(r, below, item));
        }
    } else if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            (void)snprintf(below, sizeof below, "%s.%zu", path, i);
            TT_TRY(walk(r, below, json_array_get(value, i)));
        }
    } else if (!json_is_string(value) ||
               !(tt_text_ends(path, ".name") || tt_text_ends(path, ".kind"))) /* these members contain no number */
        rc = take(&machine_kind, r->file, path, value, r->origin, r->machine->number, r->given);
out:
    return rc;
}

/* TT_EDATA names a member of a file that is neither in `names` nor in `others`. */
static int check_names(const char *file, json_t *json, const char *const *names, size_t n, const char *const *others,
                       size_t n_others)
{
    const char *name, *near;
    json_t *value;

    json_object_foreach(json, name, value)
    {
        bool is_known = false;

        for (size_t i = 0; i < n; i++)
            is_known = is_known || strcmp(name, names[i]) == 0;
        for (size_t i = 0; i < n_others; i++)
            is_known = is_known || strcmp(name, others[i]) == 0;
        if (is_known)
            continue;
        near = tt_text_nearest(name, names, (int)n);
        return tt_fail(TT_EDATA, "%s: '%.60s' does not belong in such a file\nhelp: %s%s", file, name,
                       near ? "did you mean " : "the parts are in titan-estimate(1)", near ? near : "");
    }
    return 0;
}

/* Other members that a file may have: numbers of schema 1, and measurements of `titan bench`. */
static const char *const others[] = {"type",
                                     "schema",
                                     "name",
                                     "title",
                                     "base",
                                     "like",
                                     "origin",
                                     "sgemm_flops",
                                     "bgemm_flops",
                                     "call_sec",
                                     "message_sec",
                                     "cpu",
                                     "memory_bytes_per_sec",
                                     "ranks",
                                     "collectives",
                                     "ops",
                                     "link_bytes_per_sec",
                                     "transfer_share",
                                     "transfer_stretch",
                                     "threads_per_rank",
                                     "storage_bytes_per_sec"};

/* A file of schema 1 contains six numbers of a thread, which is then the device; the other numbers are those of a
 * built-in processor. */
static int take_schema_1(struct reader *r, const json_t *json)
{
    static const struct {
        const char *name;
        enum tt_machine_key key;
    } wanted[] = {{"sgemm_flops", TT_M_PEAK_F32},
                  {"memory_bytes_per_sec", TT_M_MEMORY_RATE},
                  {"call_sec", TT_M_CALL},
                  {"message_sec", TT_M_UP_STEP},
                  {"message_sec", TT_M_NET_STEP},
                  {"link_bytes_per_sec", TT_M_UP_RATE},
                  {"link_bytes_per_sec", TT_M_NODE_NET}};
    static const enum tt_machine_key whole[] = {TT_M_GEMM_SHARE, TT_M_GEMM_F32_SHARE, TT_M_CLOCK,  TT_M_MEMORY_SHARE,
                                                TT_M_UP_SHARE,   TT_M_NET_SHARE,      TT_M_DEVICES};
    struct tt_cluster_number *v = r->machine->number;
    const struct tt_cluster_machine *base;
    double bf16, cores;
    int rc = tt_cluster_machine_find("genoa-9654", &base);

    if (rc < 0)
        return rc;
    cores = base->number[TT_M_UNITS].value;
    memcpy(v, base->number, sizeof base->number);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        double value;

        if ((rc = tt_json_get_real(json, wanted[i].name, r->file, &value)) < 0)
            return rc;
        v[wanted[i].key] = (struct tt_cluster_number){value, "the machine file"};
    }
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        v[whole[i]] = (struct tt_cluster_number){1, "schema 1: rates are measured ones, of one device"};
    bf16 = json_number_value(json_object_get(json, "bgemm_flops")); /* older files have none */
    v[TT_M_PEAK_BF16] = (struct tt_cluster_number){bf16 > 0 ? bf16 : v[TT_M_PEAK_F32].value, "the machine file"};
    v[TT_M_UNITS] = (struct tt_cluster_number){1, "schema 1: a thread"};
    v[TT_M_MEMORY] = (struct tt_cluster_number){base->number[TT_M_MEMORY].value / cores, "as genoa-9654, for a core"};
    return 0;
}

int tt_cluster_machine_load(const char *path, struct tt_cluster_machine *ret_machine)
{
    static const char *const parts[] = {"device", "node", "levels", "noise", "storage", "reliability"};
    struct tt_cluster_machine m = {.file = NULL};
    const struct tt_cluster_machine *base = NULL;
    struct reader r = {.file = path, .machine = &m};
    const char *name, *base_name;
    json_t *file = NULL;
    int64_t schema;
    int rc = 0;

    TT_TRY(tt_json_load(path, &file));
    TT_TRY(read_head(&machine_kind, path, file, &schema, &name, &base_name));
    if (base_name && tt_cluster_machine_find(base_name, &base) < 0)
        TT_TRY(tt_wrap(TT_EDATA, "%s: base", path));
    if (base)
        m = *base;
    m.name = name;
    if (schema == 1)
        TT_TRY(take_schema_1(&r, file));
    r.origin = json_object_get(file, "origin");
    TT_TRY(check_names(path, file, parts, sizeof parts / sizeof *parts, others, sizeof others / sizeof *others));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (json_object_get(file, parts[i]))
            TT_TRY(walk(&r, parts[i], json_object_get(file, parts[i])));
    TT_TRY(check_numbers(&machine_kind, path, m.number, r.given, base || schema == 1));
    for (int i = 0; i < 2; i++)
        if (m.ramp[i].n > 0 && !(m.ramp[i].devices > 1))
            TT_TRY(tt_fail(TT_EDATA,
                           "%s: levels.%d.ramp_devices is missing\nhelp: give the devices that measured the ramp", path,
                           i));
    if (m.number[TT_M_DEVICES].value < 1)
        TT_TRY(tt_fail(TT_EDATA, "%s: %s has to be at least 1", path, machine_keys[TT_M_DEVICES].path));
    m.file = file;
    *ret_machine = m;
    return 0;
out:
    json_decref(file);
    return rc;
}

/* --- writing --- */

static bool is_index(const char *text)
{
    return *text >= '0' && *text <= '9';
}

/* The container of a path, which is created if it does not exist; *ret_name is the last part of the path. */
static json_t *container(json_t *root, char *path, char **ret_name)
{
    json_t *at = root;
    char *part = path, *dot;

    while ((dot = strchr(part, '.'))) {
        json_t *next;

        *dot = 0;
        next = is_index(part) ? json_array_get(at, (size_t)(*part - '0')) : json_object_get(at, part);
        if (!next) {
            next = is_index(dot + 1) ? json_array() : json_object();
            if (is_index(part))
                (void)json_array_append_new(at, next);
            else
                (void)json_object_set_new(at, part, next);
        }
        at = next;
        part = dot + 1;
    }
    *ret_name = part;
    return at;
}

json_t *tt_cluster_machine_json(const struct tt_cluster_machine *machine)
{
    json_t *json = json_pack("{s:s, s:i, s:o}", "type", "machine", "schema", 2, "name", tt_json_string(machine->name));
    json_t *origin = json_object();
    char path[PATH_BYTES], *name;

    for (int i = 0; i < TT_MACHINE_KEYS; i++) {
        json_t *in;

        (void)snprintf(path, sizeof path, "%s", machine_keys[i].path);
        in = container(json, path, &name);
        (void)json_object_set_new(in, name, tt_json_number(machine->number[i].value));
        (void)json_object_set_new(origin, machine_keys[i].path, tt_json_string(machine->number[i].origin));
    }
    for (size_t i = 0; i < 2; i++) {
        const struct tt_cluster_ramp *ramp = &machine->ramp[i];
        json_t *level = json_array_get(json_object_get(json, "levels"), i), *list = json_array();

        if (machine->exchange_share[i] > 0)
            (void)json_object_set_new(level, "exchange_share", json_real(machine->exchange_share[i]));
        for (int k = 0; k < ramp->n; k++)
            (void)json_array_append_new(list, json_pack("[ff]", ramp->point[k].bytes, ramp->point[k].share));
        if (ramp->n > 0) {
            (void)json_object_set(level, "ramp", list);
            (void)json_object_set_new(level, "ramp_devices", json_real(ramp->devices));
        }
        json_decref(list);
    }
    (void)json_object_set_new(json, "origin", origin);
    return json;
}

/* --- stack files --- */

int tt_cluster_stack_load(const char *path, struct tt_cluster_stack *ret_stack)
{
    static const char *const parts[] = {"numbers", "type", "schema", "name", "title", "base", "like", "origin"};
    struct tt_cluster_stack stack = {.file = NULL};
    const struct tt_cluster_stack *base = NULL;
    bool given[TT_STACK_KEYS] = {false};
    const char *name, *base_name, *key;
    json_t *file = NULL, *numbers, *value;
    int64_t schema;
    int rc = 0;

    TT_TRY(tt_json_load(path, &file));
    TT_TRY(read_head(&stack_kind, path, file, &schema, &name, &base_name));
    TT_TRY(check_names(path, file, parts, sizeof parts / sizeof *parts, NULL, 0));
    if (base_name && tt_cluster_stack_find(base_name, &base) < 0)
        TT_TRY(tt_wrap(TT_EDATA, "%s: base", path));
    if (base)
        stack = *base;
    stack.name = stack.title = name;
    numbers = json_object_get(file, "numbers");
    if (numbers && !json_is_object(numbers))
        TT_TRY(tt_fail(TT_EDATA, "%s: numbers has to be an object", path));
    json_object_foreach(numbers, key, value)
        TT_TRY(take(&stack_kind, path, key, value, json_object_get(file, "origin"), stack.number, given));
    TT_TRY(check_numbers(&stack_kind, path, stack.number, given, base != NULL));
    stack.file = file;
    *ret_stack = stack;
    return 0;
out:
    json_decref(file);
    return rc;
}

json_t *tt_cluster_stack_json(const struct tt_cluster_stack *stack)
{
    json_t *numbers = json_object(), *origin = json_object();

    for (int i = 0; i < TT_STACK_KEYS; i++) {
        (void)json_object_set_new(numbers, stack_keys[i].path, tt_json_number(stack->number[i].value));
        (void)json_object_set_new(origin, stack_keys[i].path, tt_json_string(stack->number[i].origin));
    }
    return json_pack("{s:s, s:i, s:o, s:o, s:o}", "type", "stack", "schema", 2, "name", tt_json_string(stack->name),
                     "numbers", numbers, "origin", origin);
}
