/* SPDX-License-Identifier: MIT
 *
 * What a command line says about a job on a cluster: machine, stack, model, and a configuration of titan,
 * torchtitan or Megatron.
 */
#include "cli/cluster/inputs/inputs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/cluster/inputs/own_keys.h"
#include "cluster/model/hf_shape.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static const char default_stack[] = "torchtitan-compile-2025", eager_stack[] = "torchtitan-eager-2025";

/* A name is a file's if it has a slash or ends in .json. */
static bool is_file(const char *name)
{
    size_t n = strlen(name);

    return strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".json") == 0);
}

/* --- hardware and software --- */

static int read_machine(struct tt_cluster_inputs *in, const struct tt_args *args)
{
    const char *name = tt_args_last(args, "machine"), *log;
    const struct tt_cluster_machine *built_in;
    char *text = NULL;
    size_t size;
    int rc = 0;

    if (is_file(name))
        TT_TRY(tt_cluster_machine_load(name, &in->machine));
    else {
        TT_TRY(tt_cluster_machine_find(name, &built_in));
        in->machine.machine = *built_in;
    }
    in->beyond.machine = &in->machine.machine;
    for (int i = 0; (log = tt_args_value(args, "nccl", i)); i++) {
        TT_TRY(tt_file_read(log, &text, &size));
        TT_TRY(tt_cluster_machine_take_nccl(&in->machine.machine, text, log, "measured: nccl-tests"));
        tt_free(text);
        text = NULL;
    }
out:
    tt_free(text);
    return rc;
}

static int read_stack(struct tt_cluster_inputs *in, const char *name)
{
    const struct tt_cluster_stack *built_in;
    int rc = 0;

    if (is_file(name))
        TT_TRY(tt_cluster_stack_load(name, &in->stack));
    else {
        TT_TRY(tt_cluster_stack_find(name, &built_in));
        in->stack.stack = *built_in;
    }
    in->beyond.stack = &in->stack.stack;
out:
    return rc;
}

int tt_cluster_inputs_hardware(struct tt_cluster_inputs *in, const struct tt_args *args)
{
    const char *stack = tt_args_last(args, "stack");
    int rc = read_machine(in, args);

    return rc < 0 ? rc : read_stack(in, stack ? stack : default_stack);
}

/* --- the job --- */

static void add_override(struct tt_cluster_inputs *in, const char *text)
{
    TT_PUSH(in->with.override, in->with.n_overrides, in->cap_override) = text;
}

static void add_own(struct tt_cluster_inputs *in, char *text)
{
    TT_PUSH(in->own, in->n_own, in->cap_own) = text;
    add_override(in, text);
}

static int find_model(struct tt_cluster_inputs *in, const char *name)
{
    struct tt_text names = {0};
    const char *near;
    json_t *json = NULL;
    int rc = 0;

    if (is_file(name)) {
        TT_TRY(tt_json_load(name, &json));
        TT_TRY(tt_cluster_shape_of_hf(json, name, &in->shape));
    } else if (!tt_cluster_shape_find(name, &in->shape)) {
        near = tt_cluster_shape_names(name, &names);
        rc = tt_fail(TT_EUSAGE,
                     "estimate: titan has no sizes of the model '%s'\nhelp: %s%s%sa config.json of Hugging Face (a "
                     "path), or one of %s",
                     name, near ? "did you mean " : "", near ? near : "", near ? "? " : "", names.text);
    }
    if (rc == 0) {
        in->beyond.shape = &in->shape;
        in->model = tt_strdup(name);
    }
out:
    tt_text_release(&names);
    json_decref(json);
    return rc;
}

/* The configuration checks what it is given against a model of titan, so it gets one with the same heads and widths. */
static void add_sizes(struct tt_cluster_inputs *in)
{
    const struct tt_cluster_shape *s = &in->shape;

    add_override(in, "--model.name=llama3");
    add_override(in, "--model.flavor=debugmodel");
    add_override(in, "--model.head_dim=128");
    add_own(in, tt_format("--model.dim=%.0f", s->dim));
    add_own(in, tt_format("--model.n_layers=%.0f", s->layers));
    add_own(in, tt_format("--model.n_heads=%.0f", s->heads));
    add_own(in, tt_format("--model.n_kv_heads=%.0f", s->kv_heads));
    add_own(in, tt_format("--model.ffn_dim=%.0f", s->ffn));
    add_own(in, tt_format("--model.vocab_size=%.0f", s->vocab));
}

/* The overrides of the command line; the experts of a model that titan does not train are not its business. */
static int take_overrides(struct tt_cluster_inputs *in, int n, const char *const *override)
{
    static const char ep[] = "--parallelism.expert_parallel_degree=", model[] = "--model.";

    for (int i = 0; i < n; i++) {
        if (in->beyond.shape && strncmp(override[i], ep, sizeof ep - 1) == 0) {
            in->beyond.ep = strtod(override[i] + sizeof ep - 1, NULL);
            if (!(in->beyond.ep >= 1) || floor(in->beyond.ep) != in->beyond.ep)
                return tt_fail(TT_EUSAGE, "estimate: %s is not a number of ranks", override[i] + 2);
            continue;
        }
        if (in->beyond.shape && strncmp(override[i], model, sizeof model - 1) == 0)
            return tt_fail(TT_EUSAGE,
                           "estimate: %s: the sizes are those of the model '%s'\nhelp: give a config.json "
                           "with other sizes, or leave --model out",
                           override[i] + 2, in->model);
        add_override(in, override[i]);
    }
    return 0;
}

/* The job of a command line that names none: Llama 3 8B as torchtitan's configuration has it. The built-in quick run is
 * for a laptop. */
static void add_default(struct tt_cluster_inputs *in)
{
    static const char *const keys[] = {"--model.name=llama3",
                                       "--model.flavor=8B",
                                       "--training.seq_len=8192",
                                       "--training.local_batch_size=1",
                                       "--training.global_batch_size=-1",
                                       "--training.steps=10000",
                                       "--activation_checkpoint.mode=selective",
                                       "--activation_checkpoint.selective_ac_option=op"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        add_override(in, keys[i]);
}

/* A recipe of torchtitan. */
static int read_recipe(struct tt_cluster_inputs *in, const struct tt_args *args, const struct tt_cluster_given *given,
                       const char *file)
{
    int rc = 0;

    TT_TRY(tt_cluster_recipe_read(file, given, &in->notes, &in->recipe));
    in->beyond.float8 = in->recipe.float8;
    in->beyond.async_tp = in->recipe.async_tp;
    in->beyond.whole_logits = in->recipe.whole_logits;
    in->beyond.loss_chunks = in->recipe.loss_chunks;
    in->beyond.whole_rows = in->recipe.whole_rows;
    if (!tt_args_has(args, "stack"))
        TT_TRY(read_stack(in, in->recipe.compiled ? default_stack : eager_stack));
out:
    return rc;
}

/* Flags of Megatron-LM. */
static int read_megatron(struct tt_cluster_inputs *in, const struct tt_args *args, const struct tt_cluster_given *given,
                         const char *file)
{
    struct tt_cluster_number *number = in->stack.stack.number;
    double exposed;
    int rc = 0;

    if (tt_args_has(args, "config") || tt_args_has(args, "model") || tt_args_has(args, "torchtitan"))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: flags of Megatron name the whole job\nhelp: leave --config, --model and "
                                  "--torchtitan out"));
    TT_TRY(tt_cluster_megatron_read(file, given, &in->notes, &in->megatron));
    in->shape = in->megatron.shape;
    in->beyond.shape = &in->shape;
    in->beyond.megatron = &in->megatron;
    in->beyond.float8 = in->megatron.float8;
    in->beyond.async_tp = in->megatron.async_tp;
    in->beyond.whole_rows = !in->megatron.sequence_parallel;
    in->beyond.stages_of_a_rank = in->megatron.stages_of_a_rank;
    in->model = tt_format("a model of %.3gB parameters", tt_cluster_params(&in->shape) / 1e9);
    if (!tt_args_has(args, "stack")) /* fused attention came after A100 */
        TT_TRY(read_stack(in, strncmp(in->beyond.machine->name, "a100", 4) == 0 ? "megatron-2023" : "megatron-bridge"));
    if (!in->megatron.distributed_optimizer) {
        number[TT_S_STATE_WHOLE].value += number[TT_S_STATE_SHARD].value;
        number[TT_S_STATE_SHARD].value = 0;
    }
    exposed = number[TT_S_GRAD_EXPOSED].value;
    number[TT_S_GRAD_EXPOSED].value = exposed + in->megatron.exposed * (1 - exposed);
out:
    return rc;
}

static void read_given(const struct tt_args *args, struct tt_cluster_given *given)
{
    const char *text;

    while ((text = tt_args_value(args, "set", given->n)))
        TT_PUSH(given->set, given->n, given->cap) = text;
    while ((text = tt_args_value(args, "ignore_flag", given->n_ignored)))
        TT_PUSH(given->ignored, given->n_ignored, given->cap_ignored) = text;
    given->args = tt_args_last(args, "script_args");
    given->words = (const char *const *)args->word;
    given->n_words = args->n_words;
}

/* The job as others write it; then *ret_model is its name, if it has one. */
static int read_foreign(struct tt_cluster_inputs *in, const struct tt_args *args, const char **ret_model)
{
    const char *torchtitan = tt_args_last(args, "torchtitan"), *megatron = tt_args_last(args, "megatron");
    struct tt_cluster_given given = {0};
    int rc = 0;

    read_given(args, &given);
    if (megatron || (!torchtitan && tt_cluster_is_megatron(args->n_words, (const char *const *)args->word)))
        TT_TRY(read_megatron(in, args, &given, megatron));
    else if (torchtitan || args->n_words) {
        TT_TRY(read_recipe(in, args, &given, torchtitan));
        *ret_model = *ret_model ? *ret_model : in->recipe.model;
    }
out:
    tt_free((void *)given.set);
    tt_free((void *)given.ignored);
    return rc;
}

int tt_cluster_inputs_job(struct tt_cluster_inputs *in, const struct tt_args *args)
{
    const char *model = tt_args_last(args, "model");
    struct tt_text unbuilt = {0};
    struct tt_cli_variant variant = {.unbuilt = &unbuilt};
    bool is_titan;
    int rc = 0;

    if (!tt_args_has(args, "megatron") && (tt_args_has(args, "set") || tt_args_has(args, "script_args")))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --set and --script-args are for the script of --megatron"));
    in->beyond.ep = 1;
    in->with = *args;
    in->with.override = NULL;
    in->with.n_overrides = in->with.n_words = 0;
    TT_TRY(read_foreign(in, args, &model));
    if (model)
        TT_TRY(find_model(in, model));
    if (in->beyond.shape && !tt_args_has(args, "config")) { /* the built-in run's batch is small, and its steps few */
        add_override(in, "--training.seq_len=8192");
        add_override(in, "--training.local_batch_size=1");
        add_override(in, "--training.global_batch_size=-1");
        add_override(in, "--training.steps=10000");
    } else if (!tt_args_has(args, "config"))
        add_default(in);
    TT_TRY(take_overrides(in, in->recipe.n, (const char *const *)in->recipe.override));
    TT_TRY(take_overrides(in, in->megatron.n, (const char *const *)in->megatron.override));
    TT_TRY(take_overrides(in, args->n_overrides, args->override));
    if (in->beyond.shape)
        add_sizes(in);
    TT_TRY(tt_cli_load_variant("estimate", &in->with, &variant, &in->cfg));
    is_titan = strcmp(in->beyond.stack->name, "titan") == 0;
    TT_TRY(tt_cluster_own_keys_check(in->cfg, args, is_titan, is_titan && !in->beyond.shape, &in->notes));
    TT_TRY(tt_config_locate(in->cfg, tt_cluster_stages_of(in->cfg, &in->beyond)));
    if (!in->model)
        in->model = tt_format("%s %s", in->cfg->model.name, in->cfg->model.flavor);
out:
    tt_text_release(&unbuilt);
    return rc;
}

void tt_cluster_inputs_release(struct tt_cluster_inputs *in)
{
    for (int i = 0; i < in->n_own; i++)
        tt_free(in->own[i]);
    tt_free(in->own);
    tt_free(in->beyond.stage_layers);
    tt_free((void *)in->with.override);
    tt_cluster_recipe_release(&in->recipe);
    tt_cluster_megatron_release(&in->megatron);
    tt_cluster_notes_release(&in->notes);
    tt_cluster_machine_release(&in->machine);
    tt_cluster_stack_release(&in->stack);
    tt_free(in->model);
    tt_config_free(in->cfg);
}
