/* SPDX-License-Identifier: MIT
 *
 * torchtitan's configurations as jobs: what their keys mean in titan's.
 */
#include "cli/cluster/inputs/recipe.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cluster/model/job.h"
#include "core/base/mem.h"
#include "core/base/text.h"

static const struct {
    const char *family, *flavor, *shape;
} flavors[] = {
#define FLAVOR(family, flavor, shape) {family, flavor, shape},
#define RECIPE(name, family, flavor, context, tokens, ac, tp, ep, steps, compiled, float8, async_tp)
#include "cli/cluster/inputs/recipes.def"
#undef FLAVOR
#undef RECIPE
};

static const struct {
    const char *name, *family, *flavor, *context, *tokens, *ac, *tp, *ep, *steps;
    bool compiled, float8, async_tp;
} recipes[] = {
#define FLAVOR(family, flavor, shape)
#define RECIPE(name, family, flavor, context, tokens, ac, tp, ep, steps, compiled, float8, async_tp) \
    {name, family, flavor, #context, #tokens, ac, #tp, #ep, #steps, compiled, float8, async_tp},
#include "cli/cluster/inputs/recipes.def"
#undef FLAVOR
#undef RECIPE
};

static bool is_true(const char *value)
{
    return value && strcasecmp(value, "true") == 0;
}

static void set(struct tt_cluster_recipe *r, const char *key, const char *value)
{
    TT_PUSH(r->override, r->n, r->cap) = tt_format("--%s=%s", key, value);
}

static void set_number(struct tt_cluster_recipe *r, const char *key, double value)
{
    TT_PUSH(r->override, r->n, r->cap) = tt_format("--%s=%.0f", key, value);
}

/* --- what it means --- */

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Whether a flavor is the one of the table: those that end in an attention ("8B_flex") have the same sizes. */
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

static int find_model(struct tt_cluster_recipe *r)
{
    const char *family = tt_pairs_get_any(&r->pairs, KEYS("model_spec.name", "model.name"));
    const char *flavor = tt_pairs_get_any(&r->pairs, KEYS("model_spec.flavor", "model.flavor"));
    struct tt_text known = {0};
    int rc;

    if (!family && !flavor)
        return 0;
    family = family ? family : "llama3"; /* torchtitan's defaults */
    flavor = flavor ? flavor : "debugmodel";
    for (size_t i = 0; i < sizeof flavors / sizeof *flavors; i++) {
        if (strcmp(family, flavors[i].family) == 0 && is_flavor(flavor, flavors[i].flavor))
            r->model = flavors[i].shape;
        tt_text_add(&known, "%s%s %s", i ? ", " : "", flavors[i].family, flavors[i].flavor);
    }
    rc = r->model ? 0
                  : tt_fail(TT_EUSAGE,
                            "estimate: titan has no sizes of torchtitan's model '%s %s'\nhelp: it has %s; or "
                            "give --model, a config.json of Hugging Face with its sizes",
                            family, flavor, known.text);
    tt_text_release(&known);
    return rc;
}

/* Puts what a recipe of 2026 sets before everything that is given. */
static int add_recipe(struct tt_cluster_recipe *r)
{
    const char *name = tt_pairs_get(&r->pairs, "config"), *where = "the recipe";
    struct tt_pairs with = {0};
    struct tt_text known = {0};
    int rc;

    if (!name)
        return 0;
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        tt_text_add(&known, " %s", recipes[i].name);
        if (strcmp(recipes[i].name, name) != 0)
            continue;
        tt_pairs_add(&with, where, tt_strdup("model_spec.name"), tt_strdup(recipes[i].family));
        tt_pairs_add(&with, where, tt_strdup("model_spec.flavor"), tt_strdup(recipes[i].flavor));
        tt_pairs_add(&with, where, tt_strdup("training.max_context_length"), tt_strdup(recipes[i].context));
        tt_pairs_add(&with, where, tt_strdup("training.num_tokens_per_microbatch_per_dp_rank"),
                     tt_strdup(recipes[i].tokens));
        tt_pairs_add(&with, where, tt_strdup("activation_checkpoint.mode"), tt_strdup(recipes[i].ac));
        tt_pairs_add(&with, where, tt_strdup("activation_checkpoint.selective_ac_option"), tt_strdup("op"));
        tt_pairs_add(&with, where, tt_strdup("parallelism.tensor_parallel_degree"), tt_strdup(recipes[i].tp));
        tt_pairs_add(&with, where, tt_strdup("parallelism.expert_parallel_degree"), tt_strdup(recipes[i].ep));
        tt_pairs_add(&with, where, tt_strdup("compile.enable"), tt_strdup(recipes[i].compiled ? "true" : "false"));
        tt_pairs_add(&with, where, tt_strdup("model.converters"), tt_strdup(recipes[i].float8 ? "float8" : ""));
        tt_pairs_add(&with, where, tt_strdup("compile.enable_async_tensor_parallel"),
                     tt_strdup(recipes[i].async_tp ? "true" : "false"));
        tt_pairs_add(&with, where, tt_strdup("training.steps"), tt_strdup(recipes[i].steps));
        tt_pairs_add(&with, where, tt_strdup("loss.num_chunks"), tt_strdup("8"));
    }
    if (with.n == 0) {
        rc = tt_fail(TT_EUSAGE,
                     "estimate: titan does not know torchtitan's recipe '%s'\nhelp: it knows%s; or give the "
                     "file that torchtitan saves with --debug.save_config_file",
                     name, known.text);
        tt_text_release(&known);
        return rc;
    }
    for (int i = 0; i < r->pairs.n; i++)
        TT_PUSH(with.item, with.n, with.cap) = r->pairs.item[i];
    tt_free(r->pairs.item);
    r->pairs = with;
    tt_text_release(&known);
    return 0;
}

/* Sequences: files of 2024 and 2025 have batches, recipes of 2026 have tokens. */
static void batches(struct tt_cluster_recipe *r)
{
    const char *tokens = tt_pairs_get(&r->pairs, "training.num_tokens_per_microbatch_per_dp_rank");
    const char *step = tt_pairs_get(&r->pairs, "training.num_tokens_per_train_step");
    const char *local = tt_pairs_get_any(&r->pairs, KEYS("training.local_batch_size", "training.batch_size"));
    const char *seq = tt_pairs_get_any(&r->pairs, KEYS("training.max_context_length", "training.seq_len"));
    const char *stages = tt_pairs_get(&r->pairs, "parallelism.pipeline_parallel_degree");
    const char *micro = tt_pairs_get_any(&r->pairs, KEYS("parallelism.num_pp_microbatches",
                                                         "parallelism.pipeline_parallel_microbatches",
                                                         "experimental.pipeline_parallel_microbatches"));
    bool of_2026 = tokens || tt_pairs_get(&r->pairs, "training.max_context_length");
    double length = seq ? strtod(seq, NULL) : 2048, each;
    bool pipeline = stages && strtod(stages, NULL) > 1;

    each = of_2026 ? fmax(1, floor(strtod(tokens ? tokens : "16384", NULL) / length)) : 0;
    local = local ? local : "8"; /* torchtitan's default, as that of tokens and of the length */
    set_number(r, "training.seq_len", length);
    if (!tt_pairs_get(&r->pairs, "training.steps"))
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
    else if (tt_pairs_get(&r->pairs, "parallelism.pipeline_parallel_microbatch_size"))
        set(r, "parallelism.pipeline_parallel_microbatch_size",
            tt_pairs_get(&r->pairs, "parallelism.pipeline_parallel_microbatch_size"));
    if (tt_pairs_get(&r->pairs, "training.global_batch_size") &&
        strtod(tt_pairs_get(&r->pairs, "training.global_batch_size"), NULL) > 0)
        set(r, "training.global_batch_size", tt_pairs_get(&r->pairs, "training.global_batch_size"));
}

/* The modules of stages of which each begins with one of these layers. */
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

/* Stages that are listed: by their modules, or in files of 2024 and 2025 by the layers that they begin with. */
static int stages(struct tt_cluster_recipe *r)
{
    static const char key[] = "parallelism.module_fqns_per_model_part";
    const char *modules = tt_pairs_get(&r->pairs, key), *head;
    const char *points = tt_pairs_get_any(
        &r->pairs, KEYS("parallelism.pipeline_parallel_split_points", "experimental.pipeline_parallel_split_points"));
    struct tt_cluster_shape shape;
    char *list;

    if (modules && *modules) {
        head = strstr(modules, "lm_head"); /* the output's name since 2026 */
        TT_PUSH(r->override, r->n, r->cap) = tt_format("--%s=%.*s%s%s", key, head ? (int)(head - modules) : INT_MAX,
                                                       modules, head ? "output" : "", head ? head + 7 : "");
    } else if (points && *points) {
        if (!r->model || !tt_cluster_shape_find(r->model, &shape))
            return tt_fail(TT_EUSAGE, "estimate: pipeline_parallel_split_points needs the number of layers\nhelp: name "
                                      "model.name and model.flavor in the configuration");
        list = modules_from(points, shape.layers);
        set(r, key, list);
        tt_free(list);
    }
    return 0;
}

static void recomputation(struct tt_cluster_recipe *r)
{
    const char *mode = tt_pairs_get(&r->pairs, "activation_checkpoint.mode"),
               *option = tt_pairs_get(&r->pairs, "activation_checkpoint.selective_ac_option");

    if (mode) {
        set(r, "activation_checkpoint.mode", strcmp(mode, "memory_budget") == 0 ? "selective" : mode);
        if (option)
            set(r, "activation_checkpoint.selective_ac_option", option);
    } else if (tt_pairs_get(&r->pairs, "activation_checkpoint.force_recompute_mm_shapes_by_fqns") ||
               tt_pairs_get(&r->pairs, "activation_checkpoint.memory_budget")) {
        set(r, "activation_checkpoint.mode", "selective"); /* a saved configuration has no name of the class */
        set(r, "activation_checkpoint.selective_ac_option", "op");
    } else if (tt_pairs_get(&r->pairs, "activation_checkpoint")) {
        set(r, "activation_checkpoint.mode", "full");
    } else if (tt_pairs_has(&r->pairs, "activation_checkpoint")) { /* null */
        set(r, "activation_checkpoint.mode", "none");
    } else { /* torchtitan's default */
        set(r, "activation_checkpoint.mode", "selective");
        set(r, "activation_checkpoint.selective_ac_option", option ? option : "2");
    }
}

static bool mentions_float8(const struct tt_cluster_recipe *r)
{
    const char *old = tt_pairs_get_any(
        &r->pairs, KEYS("float8.enable_float8_linear", "training.enable_fp8_linear", "training.enable_float8_linear"));
    const char *now = tt_pairs_get_any(&r->pairs, KEYS("model.converters"));

    return is_true(old) || (now && (strcasestr(now, "float8") || strcasestr(now, "mx")));
}

/* Keys with the same meaning here and there, by all of their names. */
static const struct {
    const char *names[4], *key;
} same[] = {
    {{"training.steps"}, "training.steps"},
    {{"parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree"},
     "parallelism.data_parallel_replicate_degree"},
    {{"parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree", "training.data_parallel_degree"},
     "parallelism.data_parallel_shard_degree"},
    {{"parallelism.fsdp_reshard_after_forward", "training.fsdp_reshard_after_forward"},
     "parallelism.fsdp_reshard_after_forward"},
    {{"parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"}, "parallelism.tensor_parallel_degree"},
    {{"parallelism.context_parallel_degree", "experimental.context_parallel_degree"},
     "parallelism.context_parallel_degree"},
    {{"parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree"},
     "parallelism.pipeline_parallel_degree"},
    {{"parallelism.expert_parallel_degree"}, "parallelism.expert_parallel_degree"},
    {{"parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule"},
     "parallelism.pipeline_parallel_schedule"},
    {{"parallelism.pipeline_parallel_layers_per_stage"}, "parallelism.pipeline_parallel_layers_per_stage"},
    {{"parallelism.pipeline_parallel_first_stage_less_layers"},
     "parallelism.pipeline_parallel_first_stage_less_layers"},
    {{"parallelism.pipeline_parallel_last_stage_less_layers"}, "parallelism.pipeline_parallel_last_stage_less_layers"},
};

/* Whether blocks are compiled; some files compile only the loss. */
static bool compiles_blocks(const struct tt_cluster_recipe *r)
{
    const char *components = tt_pairs_get(&r->pairs, "compile.components");

    return is_true(tt_pairs_get_any(&r->pairs, KEYS("compile.enable", "training.compile"))) &&
           (!components || strstr(components, "model"));
}

static int translate(struct tt_cluster_recipe *r, struct tt_cluster_notes *notes)
{
    const char *chunks, *sequences, *degree;
    int rc = 0;

    TT_TRY(add_recipe(r));
    TT_TRY(find_model(r));
    TT_TRY(tt_cluster_recipe_check(&r->pairs, mentions_float8(r), notes));
    batches(r);
    recomputation(r);
    TT_TRY(stages(r));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        degree = tt_pairs_get_any(&r->pairs, KEYS(same[i].names[0], same[i].names[1], same[i].names[2]));
        if (degree && *degree)
            set(r, same[i].key, degree);
    }
    r->compiled = compiles_blocks(r);
    r->float8 = mentions_float8(r);
    r->async_tp = is_true(tt_pairs_get_any(&r->pairs, KEYS("compile.enable_async_tensor_parallel",
                                                           "parallelism.enable_async_tensor_parallel",
                                                           "experimental.enable_async_tensor_parallel")));
    chunks = tt_pairs_get(&r->pairs, "loss.num_chunks");
    sequences = tt_pairs_get(&r->pairs, "parallelism.enable_sequence_parallel");
    r->loss_chunks = chunks ? strtod(chunks, NULL) : 0;
    r->whole_logits = is_true(tt_pairs_get(&r->pairs, "parallelism.disable_loss_parallel"));
    r->whole_rows = sequences && !is_true(sequences);
out:
    return rc;
}

/* Leaves out what the command line says. */
static void ignore(struct tt_pairs *pairs, const struct tt_cluster_given *given, struct tt_cluster_notes *notes)
{
    int n = 0;

    for (int i = 0; i < pairs->n; i++) {
        struct tt_pair pair = pairs->item[i];
        bool is_ignored = false;

        for (int k = 0; k < given->n_ignored; k++)
            is_ignored = is_ignored || strcmp(given->ignored[k], pair.key) == 0;
        if (!is_ignored) {
            pairs->item[n++] = pair;
            continue;
        }
        tt_cluster_note(notes, pair.key, pair.value, "--ignore-flag leaves it out");
        tt_free(pair.key);
        tt_free(pair.value);
    }
    pairs->n = n;
}

int tt_cluster_recipe_read(const char *path, const struct tt_cluster_given *given, struct tt_cluster_notes *notes,
                           struct tt_cluster_recipe *ret_recipe)
{
    struct tt_cluster_recipe *r = ret_recipe;
    int rc = 0;

    *r = (struct tt_cluster_recipe){0};
    if (path)
        TT_TRY(tt_pairs_read(&r->pairs, path));
    TT_TRY(tt_pairs_read_flags(&r->pairs, given->n_words, given->words));
    ignore(&r->pairs, given, notes);
    TT_TRY(translate(r, notes));
out:
    if (rc < 0)
        tt_cluster_recipe_release(r);
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

void tt_cluster_recipe_release(struct tt_cluster_recipe *r)
{
    for (int i = 0; i < r->n; i++)
        tt_free(r->override[i]);
    tt_pairs_release(&r->pairs);
    tt_free(r->override);
    *r = (struct tt_cluster_recipe){0};
}
