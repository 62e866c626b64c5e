/* SPDX-License-Identifier: MIT
 *
 * `titan reference`: what a training step computes, in files, for comparison with another trainer.
 */
#include "cli/reference/reference.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "trainer/job/facts.h"
#include "trainer/job/setup.h"

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"weights", NULL, "PATH",
     "the weights before the first step: a folder from Hugging Face, a PyTorch (DCP) folder, or "
     "a titan checkpoint (default: checkpoint.initial_load_path, else random)"},
    {"batch", NULL, "FILE",
     "the samples: safetensors with input_ids (batch, seq) and perhaps labels and positions, or "
     ".npy with input_ids (default: the data of the configuration)"},
    {"out", NULL, "DIR", "the new folder for the results"},
    {"dtype", NULL, "TYPE",
     "float32, bfloat16 as in a run, or float64: everything in double (default: the "
     "configuration's types)"},
    {"steps", NULL, "N", "training steps; with --batch, each on all of its samples (default: 1)"},
    {"names", NULL, "WHOSE", "hf or titan: the names and the layout of parameters in the files (default: hf)"},
    {"activations", NULL, "PATTERN",
     "also write the outputs of these modules and their gradients: a name or its end, such as q_proj, or an expression "
     "for whole names; may repeat"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan reference --config FILE --weights PATH --batch FILE --out DIR [options] [--section.key=value]...\n"
    "\n"
    "Trains one step, or several, and writes what other trainers can be compared with: the loss of every token, the "
    "gradient of every parameter before clipping, and weights and optimizer after the step. With --dtype float64 these "
    "are exact for float32 and bfloat16. Under mpirun the ranks share the work; the bits are the same.\n"
    "\n";

struct run {
    const struct tt_args *args;
    struct tt_config *cfg;
    struct tt_setup setup;
    struct tt_reference_batch batch;
    int64_t steps;
    const char **activations;
    int n_activations;
};

static void add(struct tt_cli_variant *variant, char *flag)
{
    variant->flag[variant->n++] = flag;
}

static const char *const types[] = {"float32", "bfloat16", "float64"};

/* The keys that the options set, after the user's. */
static int load_config(struct run *r)
{
    struct tt_cli_variant variant = {.n = 0};
    const char *weights = tt_args_last(r->args, "weights"), *dtype = tt_args_last(r->args, "dtype");
    bool wide = dtype && strcmp(dtype, "float64") == 0;
    const char *stored = dtype && !wide ? dtype : "float32";
    int rc;

    add(&variant, tt_strdup("--checkpoint.enable=false"));
    add(&variant, tt_format("--training.steps=%" PRId64, r->steps));
    if (weights)
        add(&variant, tt_format("--checkpoint.initial_load_path=%s", weights));
    if (r->batch.n) {
        add(&variant, tt_format("--training.seq_len=%" PRId64, r->batch.seq_len));
        add(&variant, tt_format("--training.global_batch_size=%" PRId64, r->batch.n));
        add(&variant, tt_format("--training.local_batch_size=%" PRId64, r->batch.n)); /* see set_local_batch */
        add(&variant, tt_strdup("--parallelism.pipeline_parallel_microbatch_size=1"));
        add(&variant, tt_format("--training.document_mask=%s", r->batch.positions ? "true" : "false"));
    }
    if (dtype) {
        add(&variant, tt_format("--training.mixed_precision_param=%s", stored));
        if (wide)
            add(&variant, tt_strdup("--training.dtype=float32"));
    }
    rc = tt_cli_load_variant("reference", r->args, &variant, &r->cfg);
    for (int i = 0; i < variant.n; i++)
        tt_free((void *)(uintptr_t)variant.flag[i]);
    if (rc == 0)
        r->cfg->float64 = wide;
    return rc;
}

/* Microbatches are single samples. Several of them make a run of a pipeline: all of each copy of the model. */
static void set_local_batch(struct run *r, int ranks)
{
    int64_t stages = r->cfg->parallelism.pipeline_parallel_degree;
    int64_t one = stages * r->cfg->parallelism.tensor_parallel_degree * r->cfg->parallelism.context_parallel_degree;
    int64_t copies = ranks > one ? ranks / one : 1;

    if (r->batch.n)
        r->cfg->training.local_batch_size = stages > 1 && r->batch.n % copies == 0 ? r->batch.n / copies : 1;
}

static int fail_needed(const char *option)
{
    return tt_fail(TT_EUSAGE, "reference: --%s is missing\nhelp: titan reference --help", option);
}

static int read_options(struct run *r)
{
    static const char *const whose[] = {"hf", "titan"};
    const char *dtype = tt_args_last(r->args, "dtype"), *names = tt_args_last(r->args, "names");
    const char *file = tt_args_last(r->args, "batch");
    int rc = 0;

    if (!tt_args_has(r->args, "config"))
        return fail_needed("config");
    if (!tt_args_last(r->args, "out"))
        return fail_needed("out");
    if (dtype && strcmp(dtype, types[0]) != 0 && strcmp(dtype, types[1]) != 0 && strcmp(dtype, types[2]) != 0)
        return tt_cli_fail_choice("dtype", dtype, types, 3);
    if (names && strcmp(names, whose[0]) != 0 && strcmp(names, whose[1]) != 0)
        return tt_cli_fail_choice("names", names, whose, 2);
    r->activations = tt_calloc((size_t)r->args->n_options, sizeof *r->activations);
    for (const char *value; (value = tt_args_value(r->args, "activations", r->n_activations));)
        r->activations[r->n_activations++] = value;
    r->steps = 1;
    TT_TRY(tt_cli_count("reference", r->args, "steps", 1, 1000000, &r->steps));
    if (file)
        TT_TRY(tt_reference_batch_read(file, &r->batch));
    TT_TRY(load_config(r));
    if (r->cfg->lora.rank)
        TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY(lora.rank), "titan reference does not support LoRA\nhelp: leave it out"));
out:
    return rc;
}

static void print_steps(const struct tt_args *args, const char *out, const json_t *steps)
{
    const json_t *step;
    size_t i;

    if (tt_args_has(args, "json")) {
        tt_cli_print_line(json_pack("{s:s, s:I}", "out", out, "steps", (json_int_t)json_array_size(steps)));
        return;
    }
    json_array_foreach((json_t *)(uintptr_t)steps, i, step)
        tt_print("%s/step-%" PRId64 ": loss %.9g, grad_norm %.9g, %" PRId64 " tokens\n", out, tt_cli_int(step, "step"),
                 json_number_value(json_object_get(step, "loss")),
                 json_number_value(json_object_get(step, "grad_norm")), tt_cli_int(step, "tokens"));
}

static int reference(struct tt_comm *comm, void *args)
{
    struct run r = {.args = args};
    struct tt_reference_options o = {.out = tt_args_last(args, "out")};
    const char *names = tt_args_last(args, "names");
    json_t *steps = NULL;
    int rc = 0;

    TT_TRY(tt_comm_agree(comm, read_options(&r)));
    set_local_batch(&r, comm->size);
    TT_TRY(tt_facts_agree_on_config(comm, r.cfg, args));
    TT_TRY(tt_setup_init(r.cfg, comm, true, &r.setup));
    if (r.batch.n) {
        o.batch = &r.batch;
        TT_TRY(tt_comm_agree(
            comm, tt_reference_batch_check(&r.batch, tt_args_last(args, "batch"), r.setup.job.model->dims.vocab_size)));
    }
    o.steps = (int)r.steps;
    o.activations = r.activations;
    o.n_activations = r.n_activations;
    o.titan_names = names && strcmp(names, "titan") == 0;
    TT_TRY(tt_reference_run(&r.setup, &o, &steps));
    if (comm->rank == 0) {
        print_steps(args, o.out, steps);
        rc = tt_cli_finish();
    }
out:
    json_decref(steps);
    rc = r.cfg ? tt_config_locate(r.cfg, rc) : rc;
    tt_setup_release(&r.setup);
    tt_reference_batch_release(&r.batch);
    tt_free(r.activations);
    tt_config_free(r.cfg);
    return rc;
}

const struct tt_command tt_command_reference = {
    .name = "reference",
    .arguments = "--config FILE --weights PATH --out DIR",
    .summary = "gradients of a step, to compare other trainers with",
    .usage = usage,
    .options = options,
    .run_ranks = reference,
};
