/* SPDX-License-Identifier: MIT
 *
 * `titan eval`: loss and perplexity of weights on a dataset, computed by the same program as validation during
 * training; on any number of ranks, which share the batches and the parameters.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/generate/generate.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "trainer/job/facts.h"
#include "trainer/job/job.h"
#include "trainer/run/folder.h"
#include "trainer/step/validation.h"

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"dataset", NULL, "NAME",
     "validation.dataset: the data, or a list of entries (default: the run's validation data)"},
    {"dataset_path", NULL, "PATH", "validation.dataset_path: its file or folder"},
    {"seq_len", NULL, "N", "validation.seq_len: tokens of a sequence (default: the run's)"},
    {"batch", NULL, "N", "validation.local_batch_size: sequences of a batch (default: 8)"},
    {"steps", NULL, "N", "validation.steps: batches to read (default: all)"},
    {"chat_template", NULL, "NAME", "training.chat_template: how jsonl_sft writes messages (default: the run's)"},
    {"tokenizer", NULL, "DIR", "tokenizer.json to use instead of the weights' own"},
    {"ema", NULL, NULL, "use the averages of the weights that the run keeps (ema.decay) instead of the weights"},
    {"dtype", NULL, "TYPE", "float32 or bfloat16, in which the model computes (default: float32)"},
    {"base", NULL, "PATH",
     "where the frozen weights of a run with lora.base_dtype are now (default: where the run found them)"},
    {"weights", NULL, "TYPE",
     "how matrices are kept in memory: stored, as in files with bfloat16 or blocks of q4_0, q8_0, nf4 or int8; "
     "unpacked; or the type to which loading converts them: bfloat16, int8, nf4, q4_0 or q8_0 (default: stored)"},
    {"task", NULL, "FILE",
     "a task with answers to choose from, in place of a dataset: ARC, HellaSwag, MMLU and others as JSON lines, or "
     "samples of lm-evaluation-harness; may repeat"},
    {"task_format", NULL, "NAME", "the format of the tasks (default: found by the members of their documents)"},
    {"fewshot", NULL, "N", "examples with their answers before each document: the first N of --fewshot-file"},
    {"fewshot_file", NULL, "FILE", "the documents that are shown as examples"},
    {"limit", NULL, "N", "read the first N documents of each task (default: all)"},
    {"output", NULL, "FILE", "write the scores of each document of the tasks as JSON lines"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

/* Options that abbreviate keys. */
static const char *const keys[][2] = {
    {"dataset", TT_KEY_NAME(validation.dataset)}, {"dataset_path", TT_KEY_NAME(validation.dataset_path)},
    {"seq_len", TT_KEY_NAME(validation.seq_len)}, {"batch", TT_KEY_NAME(validation.local_batch_size)},
    {"steps", TT_KEY_NAME(validation.steps)},     {"chat_template", TT_KEY_NAME(training.chat_template)},
};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

static const char usage[] =
    "usage: titan eval PATH [--dataset NAME] [options] [--section.key=value]...\n"
    "\n"
    "Prints loss and perplexity of PATH on one or several datasets; by default, on the run's\n"
    "validation data. PATH is a run, a checkpoint folder (newest good step), a step, a consolidated folder,\n"
    "a folder from Hugging Face or a GGUF file. Under mpirun the ranks share the work.\n"
    "With --task prints how many questions it answers rightly instead.\n"
    "\n";

struct run {
    const struct tt_args *args;
    struct tt_config *cfg;
    struct tt_pretrained weights;
    struct tt_mesh mesh;
    struct tt_engine *engine;
    int n; /* number of datasets */
    struct tt_train_data *data;
    struct tt_validation_result *found;
    enum tt_dtype dtype;
    int64_t seq_len;
};

/* Loads the configuration: files, then overrides, then this command's own options for keys. */
static int load_config(struct run *r)
{
    struct tt_cli_variant variant = {.unchecked = true, .first_file = 1, .fallback = "builtin:defaults"};
    char *own[N_KEYS] = {NULL};
    int rc;

    for (int k = 0; k < N_KEYS; k++) {
        const char *value = tt_args_last(r->args, keys[k][0]);

        if (value)
            variant.flag[variant.n++] = own[k] = tt_format("--%s=%s", keys[k][1], value);
    }
    rc = tt_cli_load_variant("eval", r->args, &variant, &r->cfg);
    for (int k = 0; k < N_KEYS; k++)
        tt_free(own[k]);
    return rc;
}

/* --- the data: the user's choice, else the data on which the run validates --- */

static const json_t *run_value(const struct run *r, const char *section, const char *key)
{
    return json_object_get(json_object_get(r->weights.config, section), key);
}

/* Takes the value of a key from the run, if the run sets it and the command line does not. */
static int adopt(struct run *r, enum tt_key key, const json_t *value)
{
    char *text = json_is_string(value) ? tt_strdup(json_string_value(value)) : value ? tt_json_text(value) : NULL;
    int rc = 0;

    if (value && !tt_config_is_set(r->cfg, key))
        rc = tt_config_adopt(r->cfg, key, text, r->weights.path);
    tt_free(text);
    return rc;
}

/* A training dataset as an evaluation dataset: without weight, and for kjv the held-back chapters. */
static json_t *held_back(const json_t *dataset)
{
    json_t *copy, *entry;
    size_t i;

    if (json_is_string(dataset) && strcmp(json_string_value(dataset), "kjv") == 0)
        return json_string("kjv_validation");
    copy = json_deep_copy(dataset);
    json_array_foreach(copy, i, entry)
    {
        const char *word = json_string_value(json_object_get(entry, "dataset"));

        (void)json_object_del(entry, "weight");
        if (word && strcmp(word, "kjv") == 0)
            (void)json_object_set_new(entry, "dataset", json_string("kjv_validation"));
    }
    return copy;
}

/* Whether the run names validation data or holds out documents, even if it never validates. */
static bool has_validation_data(const struct run *r)
{
    return json_is_true(run_value(r, "validation", "enable")) ||
           json_number_value(run_value(r, "validation", "split")) > 0.0;
}

/* Uses the data of the run: its validation set, or, if it has none, its training data (for kjv the held-back part). */
static int adopt_data(struct run *r)
{
    bool validates = has_validation_data(r);
    const char *section = validates ? "validation" : "training";
    const json_t *dataset = run_value(r, section, "dataset");
    json_t *others = validates ? NULL : held_back(dataset);
    int rc = 0;

    TT_TRY(adopt(r, TT_KEY(validation.dataset), others ? others : dataset));
    TT_TRY(adopt(r, TT_KEY(validation.dataset_path), run_value(r, section, "dataset_path")));
    TT_TRY(adopt(r, TT_KEY(validation.split), run_value(r, "validation", "split")));
    TT_TRY(adopt(r, TT_KEY(training.text_field), run_value(r, "training", "text_field")));
out:
    json_decref(others);
    return rc;
}

static int choose_data(struct run *r)
{
    int64_t positions = r->weights.model->dims.max_positions;
    const char *section = has_validation_data(r) ? "validation" : "training";
    int rc = 0;

    if (r->weights.config && !tt_config_is_set(r->cfg, TT_KEY(validation.dataset)) &&
        !tt_config_is_set(r->cfg, TT_KEY(validation.dataset_path)))
        TT_TRY(adopt_data(r));
    TT_TRY(adopt(r, TT_KEY(training.document_mask), run_value(r, "training", "document_mask")));
    TT_TRY(adopt(r, TT_KEY(training.chat_template), run_value(r, "training", "chat_template")));
    TT_TRY(adopt(r, TT_KEY(dataloader.long_conversations), run_value(r, "dataloader", "long_conversations")));
    TT_TRY(adopt(r, TT_KEY(validation.seq_len), run_value(r, section, "seq_len")));
    r->seq_len = r->cfg->validation.seq_len;
    if (!r->weights.config && !tt_config_is_set(r->cfg, TT_KEY(validation.seq_len)) && positions &&
        positions < r->seq_len)
        r->seq_len = positions;
out:
    return rc;
}

static struct tt_dataset_entry entry_of(const struct run *r, int i)
{
    return tt_config_dataset(r->cfg, &r->cfg->validation.dataset, i);
}

static bool is_same(const struct tt_dataset_entry *entry, const json_t *dataset, const json_t *path)
{
    const char *word = json_string_value(dataset), *trained = json_string_value(path);

    return word && strcmp(word, entry->dataset) == 0 &&
           (entry->dataset_path && trained ? strcmp(entry->dataset_path, trained) == 0
                                           : !entry->dataset_path && !trained);
}

/* Whether the weights were trained on this data, as far as the run's configuration shows. */
static bool is_training_data(const struct run *r, int i)
{
    const struct tt_dataset_entry entry = entry_of(r, i);
    const json_t *dataset = run_value(r, "training", "dataset"), *part;
    bool found = is_same(&entry, dataset, run_value(r, "training", "dataset_path"));
    size_t k;

    json_array_foreach(dataset, k, part) found =
        found || is_same(&entry, json_object_get(part, "dataset"), json_object_get(part, "dataset_path"));
    return found && r->cfg->validation.split <= 0.0;
}

/* ", which it was trained on", or how many documents were held out of training; "" for other data. */
static const char *about_data(const struct run *r, int i, char *text, size_t size)
{
    const struct tt_train_part *part = &r->data[i].part[0];
    char held[32], all[32];

    *text = 0;
    if (r->cfg->validation.split > 0.0)
        (void)snprintf(text, size, ", %s of %s documents that were held out",
                       tt_text_count(held, sizeof held, tt_sampler_documents(part->sampler)->n),
                       tt_text_count(all, sizeof all, part->dataset->ref.info.n_documents));
    else if (is_training_data(r, i))
        (void)snprintf(text, size, ", %strained on", r->n == 1 ? "which it was " : "");
    return text;
}

static int make_engine(struct run *r, struct tt_comm *comm, int threads)
{
    const struct tt_config *cfg = r->cfg;
    struct tt_engine_options o = {
        .model = r->weights.model,
        .sharding = tt_sharding_of(cfg->parallelism.fsdp_wrap_policy, cfg->parallelism.fsdp_reshard_after_forward),
        .prefetch = (int)cfg->parallelism.fsdp_prefetch,
        .param_dtype = r->dtype,
        .shard_dtype = r->dtype,
        .threads = threads,
        .documents = cfg->training.document_mask,
        .validation_batch = cfg->validation.local_batch_size,
        .validation_seq_len = r->seq_len,
    };
    int rc = 0;

    TT_TRY(tt_mesh_configure(cfg, comm->size, &r->mesh));
    o.mesh = r->mesh;
    TT_TRY(tt_config_locate(cfg, tt_engine_new(&o, comm, comm->rank, &r->engine)));
out:
    return rc;
}

static int open_dataset(struct run *r, struct tt_comm *comm, int i)
{
    const struct tt_config *cfg = r->cfg;
    const struct tt_dataset_entry entry = entry_of(r, i);
    const char *tokenizer = tt_args_last(r->args, "tokenizer");
    char *cache = tt_run_folder_cache(cfg);
    struct tt_train_data_options o = {.entry = &entry,
                                      .n = 1,
                                      .chat_template = cfg->training.chat_template,
                                      .tokenizer_folder = tokenizer ? tokenizer : r->weights.assets,
                                      .cache_folder = cache,
                                      .vocab_size = r->weights.model->dims.vocab_size,
                                      .seq_len = r->seq_len,
                                      .documents = cfg->training.document_mask,
                                      .longs = cfg->dataloader.long_conversations,
                                      .split = cfg->validation.split,
                                      .held_out = cfg->validation.split > 0.0};
    int rc = tt_train_data_open(comm, &o, &r->data[i]);

    if (rc < 0 && cfg->validation.dataset.is_list)
        rc = tt_wrap(rc, "entry '%s'", entry.name);
    tt_free(cache);
    return rc;
}

static int evaluate_dataset(struct run *r, struct tt_comm *comm, int i)
{
    const struct tt_validation v = {.engine = r->engine,
                                    .data = &r->data[i],
                                    .batch = r->cfg->validation.local_batch_size,
                                    .samples = tt_validation_samples(r->cfg, &r->data[i]),
                                    .progress = "evaluating"};
    int rc = tt_validation_run(comm, &v, &r->found[i]);

    if (rc == 0 && r->found[i].tokens == 0)
        rc = tt_fail(TT_EDATA, "%s has no token whose label counts", entry_of(r, i).name);
    return rc;
}

/* Ranks of tensor parallelism cut matrices inside their rows, where a packing may have no edge. */
static int choose_packings(struct run *r)
{
    const char *how = tt_args_last(r->args, "weights");
    bool cuts = !r->weights.is_apart && r->cfg->parallelism.tensor_parallel_degree > 1;

    if (cuts && how && strcmp(how, "unpacked") != 0)
        return tt_fail(TT_EUSAGE,
                       "eval: --weights %s needs whole rows, which tensor parallelism cuts\nhelp: leave out "
                       "%s; ranks then share the rows",
                       how, TT_KEY_NAME(parallelism.tensor_parallel_degree));
    return tt_pretrained_pack(&r->weights, cuts ? "unpacked" : how, r->dtype, false);
}

static int set_up(struct run *r, struct tt_comm *comm)
{
    int local_rank = 0, local_size = 1, n, rc = 0;
    int64_t need, limit;
    char a[32], b[32];

    tt_comm_node(comm, &local_rank, &local_size);
    TT_TRY(tt_pretrained_open(comm, r->args->word[0], tt_args_has(r->args, "ema"), &r->weights));
    r->weights.base = tt_args_last(r->args, "base");
    TT_TRY(tt_comm_agree(comm, choose_packings(r)));
    TT_TRY(tt_comm_agree(comm, choose_data(r)));
    TT_TRY(tt_comm_agree(comm, make_engine(r, comm, tt_job_threads(r->cfg, local_size))));
    need = tt_engine_memory(r->engine).total;
    limit = tt_job_memory_limit(r->cfg, local_size);
    if (need > limit)
        rc = tt_fail(
            TT_EFIT,
            "a rank needs %s, but parallelism.memory_limit allows %s\nhelp: use more ranks, or a smaller --batch "
            "or --seq-len%s",
            tt_text_bytes(a, sizeof a, (double)need), tt_text_bytes(b, sizeof b, (double)limit),
            r->dtype == TT_F32 ? ", or --dtype bfloat16" : "");
    TT_TRY(tt_comm_agree(comm, rc));
    n = r->cfg->validation.dataset.n;
    r->data = tt_calloc((size_t)n, sizeof *r->data);
    r->found = tt_calloc((size_t)n, sizeof *r->found);
    for (; r->n < n && rc == 0; r->n++)
        rc = open_dataset(r, comm, r->n);
    TT_TRY(rc);
    TT_TRY(tt_comm_agree(comm, tt_engine_allocate(r->engine)));
    TT_TRY(tt_pretrained_load(comm, &r->mesh, &r->weights, tt_engine_layout(r->engine), tt_engine_state(r->engine)));
out:
    return rc;
}

static void release_data(struct run *r)
{
    for (int i = 0; r->data && i < r->n; i++)
        tt_train_data_release(&r->data[i]);
    tt_free(r->data);
    tt_free(r->found);
    r->data = NULL;
    r->found = NULL;
    r->n = 0;
    tt_pretrained_release(&r->weights);
}

static int evaluate(struct run *r, struct tt_comm *comm)
{
    bool again = false;
    int tries = 0, rc = 0;

    do {
        if (again) {
            tt_engine_free(r->engine);
            r->engine = NULL;
            release_data(r);
        }
        rc = tt_pretrained_explain(comm, set_up(r, comm), &r->weights, r->args->word[0], &tries, &again);
    } while (again);
    TT_TRY(rc);
    comm->timeout_sec = (double)r->cfg->comm.train_timeout_seconds;
    comm->waiting_for = "evaluation";
    for (int i = 0; i < r->n; i++)
        TT_TRY(evaluate_dataset(r, comm, i));
out:
    return rc;
}

static double speed_of(const struct tt_validation_result *f)
{
    return f->seconds > 0.0 ? (double)f->tokens / f->seconds : 0.0;
}

static const char *averages(const struct run *r)
{
    return r->weights.averages ? " (averages of the weights)" : "";
}

static void print_one(const struct run *r)
{
    const struct tt_validation_result *f = r->found;
    const struct tt_dataset_entry entry = entry_of(r, 0);
    char count[32], samples[32], about[120];

    tt_print("%s%s on %s%s%s%s\n  loss        %.6f\n  perplexity  %.4f\n  tokens      %s in %s sequences of %" PRId64
             "\n  time        %.2f s, %.0f tokens/s\n",
             r->weights.path, averages(r), entry.dataset, entry.dataset_path ? " " : "",
             entry.dataset_path ? entry.dataset_path : "", about_data(r, 0, about, sizeof about), f->loss, exp(f->loss),
             tt_text_count(count, sizeof count, f->tokens), tt_text_count(samples, sizeof samples, f->samples),
             r->seq_len, f->seconds, speed_of(f));
}

/* Prints a line for each dataset of a list. */
static void print_list(const struct run *r)
{
    int width = 0;
    char count[32], samples[32], about[120];

    for (int i = 0; i < r->n; i++) {
        int n = (int)strlen(entry_of(r, i).name);

        width = n > width ? n : width;
    }
    tt_print("%s%s\n", r->weights.path, averages(r));
    for (int i = 0; i < r->n; i++) {
        const struct tt_validation_result *f = &r->found[i];

        tt_print("  %-*s  loss %.6f  perplexity %.4f  tokens %s in %s sequences of %" PRId64 "%s\n", width,
                 entry_of(r, i).name, f->loss, exp(f->loss), tt_text_count(count, sizeof count, f->tokens),
                 tt_text_count(samples, sizeof samples, f->samples), r->seq_len, about_data(r, i, about, sizeof about));
    }
}

/* The result on one dataset, as JSON. */
static json_t *found_json(const struct run *r, int i)
{
    const struct tt_validation_result *f = &r->found[i];
    const struct tt_dataset_entry entry = entry_of(r, i);

    return json_pack("{s:s, s:s?, s:b, s:f, s:o, s:o, s:I, s:I, s:f, s:f}", "dataset", entry.dataset, "dataset_path",
                     entry.dataset_path, "trained_on", (int)is_training_data(r, i), "split", r->cfg->validation.split,
                     "loss", tt_json_number(f->loss), "perplexity", tt_json_number(exp(f->loss)), "tokens",
                     (json_int_t)f->tokens, "samples", (json_int_t)f->samples, "seconds", f->seconds,
                     "tokens_per_second", speed_of(f));
}

static json_t *all_json(const struct run *r, const struct tt_comm *comm)
{
    json_t *o = json_pack("{s:o, s:b, s:o, s:s, s:o, s:I, s:i}", "path", tt_json_string(r->weights.path), "ema",
                          (int)r->weights.averages, "model",
                          json_sprintf("%s/%s", r->weights.model->row->name, r->weights.model->flavor), "dtype",
                          tt_cli_dtype_name(r->dtype), "weights", tt_pretrained_packings(&r->weights), "seq_len",
                          (json_int_t)r->seq_len, "ranks", comm->size);
    json_t *sets = r->cfg->validation.dataset.is_list ? json_array() : NULL;

    for (int i = 0; i < r->n && sets; i++) {
        json_t *set = found_json(r, i);

        (void)json_object_set_new(set, "name", tt_json_string(entry_of(r, i).name));
        (void)json_array_append_new(sets, set);
    }
    if (sets)
        (void)json_object_set_new(o, "sets", sets);
    else
        (void)json_object_update_new(o, found_json(r, 0));
    return o;
}

/* Options that only tasks use. */
static int check_task_options(const struct tt_args *args)
{
    static const char *const only[] = {"task_format", "fewshot", "fewshot_file", "limit", "output"};
    static const char *const shown[] = {"--task-format", "--fewshot", "--fewshot-file", "--limit", "--output"};

    for (size_t i = 0; i < sizeof only / sizeof *only; i++)
        if (tt_args_has(args, only[i]) && !tt_args_has(args, "task"))
            return tt_fail(TT_EUSAGE, "eval: %s needs --task FILE", shown[i]);
    return 0;
}

static int eval(struct tt_comm *comm, void *args)
{
    struct run r = {.args = args};
    int rc = 0;

    if (r.args->n_words != 1)
        rc = tt_fail(TT_EUSAGE, "eval takes one checkpoint or folder\nhelp: titan eval PATH [--dataset NAME]");
    if (rc == 0)
        rc = tt_cli_dtype(args, &r.dtype);
    if (rc == 0)
        rc = check_task_options(args);
    if (rc == 0)
        rc = load_config(&r);
    TT_TRY(tt_comm_agree(comm, rc));
    comm->timeout_sec = (double)r.cfg->comm.init_timeout_seconds;
    comm->waiting_for = "setup";
    TT_TRY(tt_facts_agree_on_config(comm, r.cfg, r.args));
    if (tt_args_has(args, "task")) {
        rc = tt_tasks_eval(comm, args, r.cfg, r.dtype);
        goto out;
    }
    TT_TRY(evaluate(&r, comm));
    if (comm->rank != 0)
        goto out;
    if (tt_args_has(args, "json"))
        rc = tt_cli_print_json(all_json(&r, comm));
    else
        (r.cfg->validation.dataset.is_list ? print_list : print_one)(&r);
    rc = rc ? rc : tt_cli_finish();
out:
    tt_engine_free(r.engine);
    release_data(&r);
    tt_config_free(r.cfg);
    return rc;
}

const struct tt_command tt_command_eval = {
    .name = "eval",
    .arguments = "PATH [--dataset NAME]",
    .summary = "loss of a model on data, or its score on tasks",
    .usage = usage,
    .options = options,
    .run_ranks = eval,
};
