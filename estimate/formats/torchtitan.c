/* SPDX-License-Identifier: MIT
 *
 * torchtitan's configurations as jobs: reads files and flags as keys and values, decides which keys count, and
 * translates them to titan's keys.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/config/yaml.h"
#include "core/os/file.h"
#include "estimate/formats/internal.h"
#include "estimate/model/job.h"

/* --- keys and values, from TOML, JSON and flags --- */

/* The names of keys before v0.2.2, and some newer ones; torchtitan_keys.def explains them. */
static const struct {
    const char *was, *path;
} renamed[] = {
#define TT_RENAMED(was, path) {was, path},
#include "core/config/foreign.def"
};

/* The name of a key in torchtitan_keys.def. The recomputation keys of 2026 are different keys, not only new names. */
static const char *newest(const char *name)
{
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        if (strcmp(renamed[i].was, name) == 0 && !tt_text_begins(name, "activation_checkpoint."))
            return renamed[i].path;
    return name;
}

/* A configuration as a list of keys and values. Keys of nested sections have dots; of two equal keys the last one
 * counts. */
struct pair {
    const char *key;
    char *was, *value; /* the key as written, and its value */
    const char *where; /* the file, or a word that stands for flags */
};

struct pairs {
    struct pair *item;
    int n, cap;
};

/* The list then owns both texts. */
static void add_pair(struct pairs *pairs, const char *where, char *was, char *value)
{
    TT_PUSH(pairs->item, pairs->n, pairs->cap) =
        (struct pair){.key = newest(was), .was = was, .value = value, .where = where};
}

/* Adds words with commas between them; a list within the list becomes one word with spaces. */
static void add_list(struct tt_text *out, const struct tt_yaml *list, char between)
{
    for (int i = 0; i < list->n; i++) {
        const struct tt_yaml *item = list->item[i];

        if (i > 0)
            tt_text_add(out, "%c", between);
        if (item->kind == TT_YAML_SCALAR)
            tt_text_add(out, "%s", item->text);
        else if (item->kind == TT_YAML_LIST && between == ',')
            add_list(out, item, ' ');
    }
}

static void add_toml(struct pairs *pairs, const char *where, const char *prefix, const struct tt_yaml *map)
{
    for (int i = 0; i < map->n; i++) {
        char *key = tt_format("%s%s%s", prefix, *prefix ? "." : "", map->key[i]->text);
        const struct tt_yaml *item = map->item[i];
        struct tt_text list = {0};

        if (item->kind == TT_YAML_MAP) {
            add_toml(pairs, where, key, item);
            tt_free(key);
            continue;
        }
        if (item->kind == TT_YAML_SCALAR)
            tt_text_add(&list, "%s", item->text);
        if (item->kind == TT_YAML_LIST)
            add_list(&list, item, ',');
        add_pair(pairs, where, key, list.text ? list.text : tt_strdup(""));
    }
}

/* The same for JSON. */
static void add_json_list(struct tt_text *out, const json_t *list, char between)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);

        if (i > 0)
            tt_text_add(out, "%c", between);
        if (json_is_array(item) && between == ',')
            add_json_list(out, item, ' ');
        else
            tt_text_add(out, "%s", json_is_string(item) ? json_string_value(item) : "?");
    }
}

static void add_json(struct pairs *pairs, const char *where, const char *prefix, json_t *object)
{
    const char *name;
    json_t *value;

    json_object_foreach(object, name, value)
    {
        char *key = tt_format("%s%s%s", prefix, *prefix ? "." : "", name);
        struct tt_text text = {0};
        char *json;

        if (json_is_object(value)) {
            add_json(pairs, where, key, value);
            add_pair(pairs, where, key, tt_strdup("{}"));
            continue;
        }
        if (json_is_string(value))
            tt_text_add(&text, "%s", json_string_value(value));
        else if (json_is_array(value))
            add_json_list(&text, value, ',');
        else {
            json = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
            tt_text_add(&text, "%s", json ? json : "");
            free(json);
        }
        add_pair(pairs, where, key, text.text ? text.text : tt_strdup(""));
    }
}

/* Adds flags: "--section.key value", "--section.key=value", "--section.key", "--section.no-key". TT_EUSAGE. */
static int read_flags(struct pairs *pairs, int n, const char *const *flags)
{
    for (int i = 0; i < n; i++) {
        const char *name = flags[i], *equal = strchr(name, '=');
        bool has_next = i + 1 < n && strncmp(flags[i + 1], "--", 2) != 0, off;
        char *key, *dot;

        if (strncmp(name, "--", 2) != 0)
            return tt_fail(TT_EUSAGE, "estimate: '%s' after -- is not a flag of torchtitan such as --module llama3",
                           name);
        key = tt_format("%.*s", equal ? (int)(equal - name - 2) : (int)strlen(name) - 2, name + 2);
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        dot = strrchr(key, '.');
        off = dot && strncmp(dot, ".no_", 4) == 0 && !equal; /* "--compile.no-enable" */
        if (off)
            memmove(dot + 1, dot + 4, strlen(dot + 4) + 1);
        add_pair(pairs, "the flags after --", key,
                 tt_strdup(equal      ? equal + 1
                           : has_next ? flags[++i]
                           : off      ? "false"
                                      : "true"));
    }
    return 0;
}

/* The last pair with the key, or NULL. */
static const struct pair *find(const struct pairs *pairs, const char *key)
{
    for (int i = pairs->n - 1; i >= 0; i--)
        if (strcmp(pairs->item[i].key, key) == 0)
            return &pairs->item[i];
    return NULL;
}

/* The value of a key; NULL: there is none, or it is null. */
static const char *value_of(const struct pairs *pairs, const char *key)
{
    const struct pair *pair = find(pairs, key);

    return !pair || strcmp(pair->value, "null") == 0 || strcmp(pair->value, "None") == 0 ? NULL : pair->value;
}

/* The same for the first of several keys that has a value; NULL ends the keys. */
static const char *any_of(const struct pairs *pairs, const char *const *keys)
{
    const char *value = NULL;

    for (int i = 0; keys[i] && !value; i++)
        value = value_of(pairs, keys[i]);
    return value;
}

/* Adds the keys of a TOML or JSON file; path must outlive the list. TT_EDATA: the file is neither. */
static int read_pairs(struct pairs *pairs, const char *path)
{
    struct tt_yaml_doc doc = {0};
    struct tt_text why = {0};
    char *text = NULL;
    json_t *json = NULL;
    size_t size = 0;
    int line = 0, column = 0, rc = 0;

    TT_TRY(tt_file_read(path, &text, &size));
    if (size && text[strspn(text, " \t\r\n")] == '{') {
        TT_TRY(tt_json_parse(text, size, path, &json));
        add_json(pairs, path, "", json);
    } else if (!tt_toml_parse(text, size, &doc, &line, &column, &why))
        rc = tt_fail(TT_EDATA, "%s:%d:%d: %s\nhelp: wanted a configuration of torchtitan, TOML or JSON", path, line,
                     column, why.text);
    else if (doc.root)
        add_toml(pairs, path, "", doc.root);
out:
    tt_yaml_release(&doc);
    tt_text_release(&why);
    json_decref(json);
    tt_free(text);
    return rc;
}

/* --- the keys that count --- */

/* The known keys: those that titan itself has, with torchtitan's meaning; others; and beginnings of keys that do not
 * matter. */
static const char *const known_keys[] = {
#define SAME(name)              name,
#define READ(name)              name,
#define NOTE(name, values, why) name,
#include "estimate/formats/torchtitan_keys.def"
};
static const char *const same_keys[] = {
#define SAME(name) name,
#include "estimate/formats/torchtitan_keys.def"
};
static const char *const harmless[] = {
#define FREE(name) name,
#include "estimate/formats/torchtitan_keys.def"
};
static const struct {
    const char *key, *values, *why;
} left_out[] = {
#define NOTE(name, values, why) {name, values, why},
#include "estimate/formats/torchtitan_keys.def"
};

/* A key that contains one of these words or of tt_costly_words, or is in one of these sections, might change the
 * cost. */
static const char *const costly[] = {"activation_checkpoint.",
                                     "compile.",
                                     "experimental.",
                                     "parallelism.",
                                     "training.",
                                     "bfloat16",
                                     "float4",
                                     "graph",
                                     "qat",
                                     "shard",
                                     "sparse"};

/* Whether a key is an option of low precision; such keys matter only if low precision is on. */
static bool is_of_float8(const char *key)
{
    return strncmp(key, "float8.", 7) == 0 || strncmp(key, "mx.", 3) == 0 || strncmp(key, "quantize.", 9) == 0;
}

static bool is_costly(const char *key)
{
    for (size_t i = 0; i < sizeof costly / sizeof *costly; i++)
        if (strstr(key, costly[i]))
            return true;
    for (int i = 0; tt_costly_words[i]; i++)
        if (strstr(key, tt_costly_words[i]))
            return true;
    return false;
}

enum tt_recipe_class tt_cluster_recipe_class(const char *name)
{
    const char *key = newest(name);

    for (size_t i = 0; i < sizeof known_keys / sizeof *known_keys; i++)
        if (strcmp(known_keys[i], key) == 0)
            return TT_RECIPE_KNOWN;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strncmp(key, harmless[i], strlen(harmless[i])) == 0 &&
            (harmless[i][strlen(harmless[i]) - 1] == '.' || !is_costly(key + strlen(harmless[i]))))
            return TT_RECIPE_FREE;
    return is_costly(key) ? TT_RECIPE_COSTLY : TT_RECIPE_UNKNOWN;
}

/* Names all unknown keys: those that might change the cost in an error, the others in notes. */
static int check_unknown(const struct pairs *pairs, struct tt_cluster_notes *notes)
{
    struct tt_text all = {0};
    const char *where = "";
    int rc;

    for (int i = 0; i < pairs->n; i++) {
        const struct pair *pair = &pairs->item[i];
        enum tt_recipe_class class = tt_cluster_recipe_class(pair->key);
        bool is_section = strcmp(pair->value, "{}") == 0;
        const char *near;

        if (class == TT_RECIPE_KNOWN || class == TT_RECIPE_FREE || is_section)
            continue;
        if (class == TT_RECIPE_UNKNOWN) {
            if (*pair->value && !tt_text_is_listed(pair->value, "false|null|none|0")) /* it is not switched off */
                tt_cluster_note(notes, pair->was, pair->value,
                                "titan does not know it, and assumes that it does not "
                                "matter");
            continue;
        }
        near = tt_text_nearest(pair->key, known_keys, (int)(sizeof known_keys / sizeof *known_keys));
        tt_text_add(&all, "%s'%s'", all.size ? ", " : "", pair->was);
        if (near)
            tt_text_add(&all, " (did you mean %s?)", near);
        where = pair->where;
    }
    if (!all.size)
        return 0;
    tt_text_make_printable(&all);
    rc = tt_fail(TT_EUSAGE,
                 "estimate: %s: titan does not know these keys, which might change the cost: %s\n"
                 "help: take them out, or give --ignore-flag KEY for each one that the prediction should leave out",
                 where, all.text);
    tt_text_release(&all);
    return rc;
}

/* For ranks that share experts, these keys may divide experts differently from the other matrices. */
static void check_experts(const struct pairs *pairs, struct tt_cluster_notes *notes)
{
    const char *overlap = value_of(pairs, "parallelism.pipeline_parallel_expert_parallel_overlap");
    const char *stages = value_of(pairs, "parallelism.pipeline_parallel_degree");
    const char *cut = value_of(pairs, "parallelism.expert_tensor_parallel_degree");
    const char *shared = value_of(pairs, "parallelism.expert_parallel_degree");
    const char *tp = value_of(pairs, "parallelism.tensor_parallel_degree");

    if (cut && shared && strcmp(shared, "1") != 0 && strcmp(cut, tp ? tp : "1") != 0)
        tt_cluster_note(notes, "parallelism.expert_tensor_parallel_degree", cut,
                        "tensor parallelism divides experts like other matrices");
    if (overlap && strcasecmp(overlap, "true") == 0 && shared && strcmp(shared, "1") != 0 && stages &&
        strcmp(stages, "1") != 0)
        tt_cluster_note(notes, "parallelism.pipeline_parallel_expert_parallel_overlap", overlap,
                        "the pipeline does not hide the exchange of tokens");
}

/* Checks the keys: TT_EUSAGE for unknown keys, notes for keys that are not counted. */
static int check_keys(const struct pairs *pairs, bool float8, struct tt_cluster_notes *notes)
{
    int rc = check_unknown(pairs, notes);

    if (rc < 0)
        return rc;
    check_experts(pairs, notes);
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++) {
        const char *value = value_of(pairs, left_out[i].key);

        if (value && *value && !tt_text_is_listed(value, left_out[i].values) &&
            (float8 || !is_of_float8(left_out[i].key)))
            tt_cluster_note(notes, find(pairs, left_out[i].key)->was, value, left_out[i].why);
    }
    return 0;
}

/* --- models and recipes --- */

static const struct {
    const char *family, *flavor, *shape;
} flavors[] = {
#define FLAVOR(family, flavor, shape) {family, flavor, shape},
#define RECIPE(name, family, flavor, context, tokens, ac, tp, ep, steps, compiled, float8, async_tp)
#include "estimate/formats/torchtitan.def"
#undef FLAVOR
#undef RECIPE
};

static const struct recipe {
    const char *name, *family, *flavor, *context, *tokens, *ac, *tp, *ep, *steps;
    bool compiled, float8, async_tp;
} recipes[] = {
#define FLAVOR(family, flavor, shape)
#define RECIPE(name, family, flavor, context, tokens, ac, tp, ep, steps, compiled, float8, async_tp) \
    {name, family, flavor, #context, #tokens, ac, #tp, #ep, #steps, compiled, float8, async_tp},
#include "estimate/formats/torchtitan.def"
#undef FLAVOR
#undef RECIPE
};

struct reader {
    struct tt_cluster_foreign foreign;
    struct pairs pairs;
};

static bool is_true(const char *value)
{
    return value && strcasecmp(value, "true") == 0;
}

static void set(struct reader *r, const char *key, const char *value)
{
    TT_PUSH(r->foreign.override, r->foreign.n, r->foreign.cap) = tt_format("--%s=%s", key, value);
}

static void set_number(struct reader *r, const char *key, double value)
{
    TT_PUSH(r->foreign.override, r->foreign.n, r->foreign.cap) = tt_format("--%s=%.0f", key, value);
}

/* --- the meaning of the keys --- */

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Whether a flavor is the one in the table. Flavors that end in a kind of attention ("8B_flex") have the same sizes. */
static bool is_flavor(const char *flavor, const char *row)
{
    static const char *const ends[] = {"", "_flex", "_flex_attn", "_varlen", "_varlen_attn", "_irope"};
    size_t n = strlen(row);

    if (strncasecmp(flavor, row, n) != 0)
        return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(flavor + n, ends[i]) == 0)
            return true;
    return false;
}

static int find_model(struct reader *r)
{
    const char *family = value_of(&r->pairs, "model.name");
    const char *flavor = value_of(&r->pairs, "model.flavor");
    struct tt_text known = {0};
    int rc;

    if (!family && !flavor)
        return 0;
    family = family ? family : "llama3"; /* torchtitan's defaults */
    flavor = flavor ? flavor : "debugmodel";
    for (size_t i = 0; i < sizeof flavors / sizeof *flavors; i++) {
        if (strcmp(family, flavors[i].family) == 0 && is_flavor(flavor, flavors[i].flavor))
            r->foreign.model = flavors[i].shape;
        tt_text_add(&known, "%s%s %s", i ? ", " : "", flavors[i].family, flavors[i].flavor);
    }
    rc = r->foreign.model ? 0
                          : tt_fail(TT_EUSAGE,
                                    "estimate: titan has no sizes of torchtitan's model '%s %s'\nhelp: it has %s; or "
                                    "give --model, a config.json of Hugging Face with its sizes",
                                    family, flavor, known.text);
    tt_text_release(&known);
    return rc;
}

static void add_settings(struct pairs *pairs, const struct recipe *r)
{
    const char *const settings[][2] = {
        {"model_spec.name", r->family},
        {"model_spec.flavor", r->flavor},
        {"training.max_context_length", r->context},
        {"training.num_tokens_per_microbatch_per_dp_rank", r->tokens},
        {"activation_checkpoint.mode", r->ac},
        {"activation_checkpoint.selective_ac_option", "op"},
        {"parallelism.tensor_parallel_degree", r->tp},
        {"parallelism.expert_parallel_degree", r->ep},
        {"compile.enable", r->compiled ? "true" : "false"},
        {"model.converters", r->float8 ? "float8" : ""},
        {"compile.enable_async_tensor_parallel", r->async_tp ? "true" : "false"},
        {"training.steps", r->steps},
        {"loss.num_chunks", "8"},
    };

    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        add_pair(pairs, "the recipe", tt_strdup(settings[i][0]), tt_strdup(settings[i][1]));
}

/* Puts the settings of a recipe of 2026 before the given ones. */
static int add_recipe(struct reader *r)
{
    const char *name = value_of(&r->pairs, "config");
    struct pairs with = {0};
    struct tt_text known = {0};
    int rc = 0;

    if (!name)
        return 0;
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        tt_text_add(&known, " %s", recipes[i].name);
        if (strcmp(recipes[i].name, name) == 0)
            add_settings(&with, &recipes[i]);
    }
    if (with.n == 0)
        TT_TRY(tt_fail(TT_EUSAGE,
                       "estimate: titan does not know torchtitan's recipe '%s'\nhelp: it knows%s; or give the "
                       "file that torchtitan saves with --debug.save_config_file",
                       name, known.text));
    for (int i = 0; i < r->pairs.n; i++)
        TT_PUSH(with.item, with.n, with.cap) = r->pairs.item[i];
    tt_free(r->pairs.item);
    r->pairs = with;
out:
    tt_text_release(&known);
    return rc;
}

/* Reads the batch: files of 2024 and 2025 give sequences, recipes of 2026 give tokens. */
static void batches(struct reader *r)
{
    const char *tokens = value_of(&r->pairs, "training.num_tokens_per_microbatch_per_dp_rank");
    const char *step = value_of(&r->pairs, "training.num_tokens_per_train_step");
    const char *local = any_of(&r->pairs, KEYS("training.local_batch_size", "training.batch_size"));
    const char *seq = any_of(&r->pairs, KEYS("training.max_context_length", "training.seq_len"));
    const char *global = value_of(&r->pairs, "training.global_batch_size");
    const char *stages = value_of(&r->pairs, "parallelism.pipeline_parallel_degree");
    const char *size = value_of(&r->pairs, "parallelism.pipeline_parallel_microbatch_size");
    const char *micro =
        any_of(&r->pairs, KEYS("parallelism.num_pp_microbatches", "parallelism.pipeline_parallel_microbatches"));
    bool of_2026 = tokens || value_of(&r->pairs, "training.max_context_length");
    double length = seq ? strtod(seq, NULL) : 2048, each;
    bool pipeline = stages && strtod(stages, NULL) > 1;

    each = of_2026 ? fmax(1, floor(strtod(tokens ? tokens : "16384", NULL) / length)) : 0;
    local = local ? local : "8"; /* torchtitan's default, as for tokens and the length */
    set_number(r, "training.seq_len", length);
    if (!value_of(&r->pairs, "training.steps"))
        set(r, "training.steps", "10000");
    if (each > 0) {
        set_number(r, "training.local_batch_size", pipeline && micro ? each * strtod(micro, NULL) : each);
        if (pipeline)
            set_number(r, "parallelism.pipeline_parallel_microbatch_size", each);
        if (step && strtod(step, NULL) > 0)
            set_number(r, "training.global_batch_size", floor(strtod(step, NULL) / length));
        return;
    }
    set(r, "training.local_batch_size", local);
    if (pipeline && micro)
        set_number(r, "parallelism.pipeline_parallel_microbatch_size",
                   fmax(1, strtod(local, NULL) / strtod(micro, NULL)));
    else if (size)
        set(r, "parallelism.pipeline_parallel_microbatch_size", size);
    if (global && strtod(global, NULL) > 0)
        set(r, "training.global_batch_size", global);
}

/* The modules of the stages, each of which begins with one of these layers. */
static char *modules_from(const char *points, double layers)
{
    struct tt_text text = {0};

    tt_text_add(&text, "tok_embeddings");
    for (int l = 0; l < (int)layers; l++) {
        char name[24];
        const char *at;
        size_t n;

        n = (size_t)snprintf(name, sizeof name, "layers.%d", l);
        at = strstr(points, name);
        while (at && at[n] >= '0' && at[n] <= '9')
            at = strstr(at + 1, name);
        tt_text_add(&text, "%c%s", at ? ',' : ' ', name);
    }
    tt_text_add(&text, " norm output");
    return text.text;
}

/* Reads listed stages: lists of modules or, in files of 2024 and 2025, the first layer of each stage. */
static int stages(struct reader *r)
{
    static const char key[] = "parallelism.module_fqns_per_model_part";
    const char *modules = value_of(&r->pairs, key), *head;
    const char *points = value_of(&r->pairs, "parallelism.pipeline_parallel_split_points");
    struct tt_cluster_shape shape;
    char *list;

    if (modules && *modules) {
        head = strstr(modules, "lm_head"); /* the name of the output since 2026 */
        TT_PUSH(r->foreign.override, r->foreign.n, r->foreign.cap) =
            tt_format("--%s=%.*s%s%s", key, head ? (int)(head - modules) : INT_MAX, modules, head ? "output" : "",
                      head ? head + 7 : "");
    } else if (points && *points) {
        if (!r->foreign.model || !tt_cluster_shape_find(r->foreign.model, &shape))
            return tt_fail(TT_EUSAGE, "estimate: pipeline_parallel_split_points needs the number of layers\nhelp: name "
                                      "model.name and model.flavor in the configuration");
        list = modules_from(points, shape.layers);
        set(r, key, list);
        tt_free(list);
    }
    return 0;
}

static void recomputation(struct reader *r)
{
    const char *mode = value_of(&r->pairs, "activation_checkpoint.mode"),
               *option = value_of(&r->pairs, "activation_checkpoint.selective_ac_option");

    if (mode) {
        set(r, "activation_checkpoint.mode", strcmp(mode, "memory_budget") == 0 ? "selective" : mode);
        if (option)
            set(r, "activation_checkpoint.selective_ac_option", option);
    } else if (value_of(&r->pairs, "activation_checkpoint.force_recompute_mm_shapes_by_fqns") ||
               value_of(&r->pairs, "activation_checkpoint.memory_budget")) {
        /* a saved configuration does not contain the name of the class */
        set(r, "activation_checkpoint.mode", "selective");
        set(r, "activation_checkpoint.selective_ac_option", "op");
    } else if (value_of(&r->pairs, "activation_checkpoint")) {
        set(r, "activation_checkpoint.mode", "full");
    } else if (find(&r->pairs, "activation_checkpoint")) { /* null */
        set(r, "activation_checkpoint.mode", "none");
    } else { /* the default of torchtitan */
        set(r, "activation_checkpoint.mode", "selective");
        set(r, "activation_checkpoint.selective_ac_option", option ? option : "2");
    }
}

/* Whether a key with a type is bfloat16; TT_EUSAGE: it is neither that nor float32. */
static int is_half(const struct reader *r, const char *key, const char *otherwise, bool *ret)
{
    const char *type = value_of(&r->pairs, key);

    type = type && *type ? type : otherwise;
    *ret = strcmp(type, "bfloat16") == 0;
    return *ret || strcmp(type, "float32") == 0
               ? 0
               : tt_fail(TT_EUSAGE, "estimate: %s '%s' is neither bfloat16 nor float32", key, type);
}

/* Types and places of the state. */
static int precision(struct reader *r)
{
    struct tt_cluster_job *job = &r->foreign.job;
    const char *optimizer = value_of(&r->pairs, "optimizer.name");
    bool half = false, computes = false, reduces = false;
    int rc = 0;

    TT_TRY(is_half(r, "training.dtype", "float32", &half));
    TT_TRY(is_half(r, "training.mixed_precision_param", "bfloat16", &computes));
    TT_TRY(is_half(r, "training.mixed_precision_reduce", "float32", &reduces));
    if (half)
        job->weight_bytes = job->state_gradient_bytes = job->moment_bytes = 2;
    job->float32 = !computes;
    job->gradient_bytes = reduces ? 2 : 0;
    if (optimizer && !tt_cluster_optimizer_find(optimizer, &job->optimizer))
        TT_TRY(
            tt_fail(TT_EUSAGE, "estimate: optimizer.name '%s' is none of AdamW, Adam, Muon, Lion and SGD", optimizer));
    if (is_true(value_of(&r->pairs, "training.enable_cpu_offload")))
        job->offload = TT_OFFLOAD_ALL;
out:
    return rc;
}

static bool mentions_float8(const struct reader *r)
{
    const char *old = any_of(
        &r->pairs, KEYS("float8.enable_float8_linear", "training.enable_fp8_linear", "training.enable_float8_linear"));
    const char *now = value_of(&r->pairs, "model.converters");
    const char *first = value_of(&r->pairs, "training.fp8_linear"); /* "dynamic", in early 2024 */

    return is_true(old) || (first && *first && strcasecmp(first, "false") != 0) ||
           (now && (strcasestr(now, "float8") || strcasestr(now, "mx")));
}

/* Whether float8 has a scale for each row, as it has by default since 2026. */
static bool scales_rows(const struct reader *r)
{
    const char *recipe = any_of(&r->pairs, KEYS("float8.recipe_name", "quantize.linear.float8.recipe_name",
                                                "quantize.dense.float8.recipe_name"));

    return recipe && strcasestr(recipe, "rowwise");
}

static int translate(struct reader *r, struct tt_cluster_notes *notes)
{
    const char *chunks, *sequences, *components, *value;
    int rc = 0;

    TT_TRY(add_recipe(r));
    TT_TRY(find_model(r));
    TT_TRY(check_keys(&r->pairs, mentions_float8(r), notes));
    TT_TRY(precision(r));
    batches(r);
    recomputation(r);
    TT_TRY(stages(r));
    for (size_t i = 0; i < sizeof same_keys / sizeof *same_keys; i++) {
        value = value_of(&r->pairs, same_keys[i]);
        if (value && *value)
            set(r, same_keys[i], value);
    }
    components = value_of(&r->pairs, "compile.components"); /* some files compile only the loss */
    r->foreign.compiled = is_true(any_of(&r->pairs, KEYS("compile.enable", "training.compile"))) &&
                          (!components || strstr(components, "model"));
    r->foreign.job.float8 = mentions_float8(r);
    r->foreign.job.float8_rows = scales_rows(r);
    r->foreign.job.async_tp = is_true(
        any_of(&r->pairs, KEYS("compile.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel")));
    r->foreign.job.balanced = r->foreign.job.adjacent = is_true(value_of(&r->pairs, "debug.moe_force_load_balance"));
    value = value_of(&r->pairs, "parallelism.context_parallel_load_balancer");
    r->foreign.job.contiguous = value && strcmp(value, "headtail") != 0;
    chunks = value_of(&r->pairs, "loss.num_chunks");
    sequences = value_of(&r->pairs, "parallelism.enable_sequence_parallel");
    r->foreign.job.loss_chunks = chunks ? strtod(chunks, NULL) : 0;
    r->foreign.job.whole_logits = is_true(value_of(&r->pairs, "parallelism.disable_loss_parallel"));
    r->foreign.job.sequence_parallel = !sequences || is_true(sequences);
out:
    return rc;
}

/* Leaves out the keys that the command line names. */
static void ignore(struct pairs *pairs, const struct tt_cluster_given *given, struct tt_cluster_notes *notes)
{
    int n = 0;

    for (int i = 0; i < pairs->n; i++) {
        struct pair pair = pairs->item[i];
        bool is_ignored = false;

        for (int k = 0; k < given->n_ignored; k++)
            is_ignored = is_ignored || strcmp(given->ignored[k], pair.was) == 0;
        if (!is_ignored) {
            pairs->item[n++] = pair;
            continue;
        }
        tt_cluster_note(notes, pair.was, pair.value, "--ignore-flag leaves it out");
        tt_free(pair.was);
        tt_free(pair.value);
    }
    pairs->n = n;
}

int tt_cluster_recipe_read(const char *path, const struct tt_cluster_given *given, struct tt_cluster_notes *notes,
                           struct tt_cluster_foreign *ret_foreign)
{
    struct reader r = {.foreign = {.job = {.kernel = -1}}};
    int rc = 0;

    if (path)
        TT_TRY(read_pairs(&r.pairs, path));
    TT_TRY(read_flags(&r.pairs, given->n_words, given->words));
    ignore(&r.pairs, given, notes);
    TT_TRY(translate(&r, notes));
out:
    for (int i = 0; i < r.pairs.n; i++) {
        tt_free(r.pairs.item[i].was);
        tt_free(r.pairs.item[i].value);
    }
    tt_free(r.pairs.item);
    if (rc < 0)
        tt_cluster_foreign_release(&r.foreign);
    *ret_foreign = r.foreign;
    return rc;
}

bool tt_cluster_recipe_model(const char *shape, const char **ret_family, const char **ret_flavor)
{
    for (size_t i = 0; i < sizeof flavors / sizeof *flavors; i++)
        if (strcasecmp(flavors[i].shape, shape) == 0) {
            *ret_family = flavors[i].family;
            *ret_flavor = flavors[i].flavor;
            return true;
        }
    return false;
}
