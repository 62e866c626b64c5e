/* SPDX-License-Identifier: MIT
 *
 * `titan eval --task`: what a model knows, by tasks whose answers are known. Every rank holds the whole model; the
 * ranks share the documents.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/generate/generate.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "trainer/job/job.h"
#include "trainer/task.h"

/* Rows of a context that are computed at a time, and the most continuations. */
enum { ROWS = 256, TOGETHER = 8 };

struct run {
    const struct tt_args *args;
    const struct tt_config *cfg;
    enum tt_dtype dtype;
    struct tt_pretrained weights;
    struct tt_generator *generator;
    struct tt_tokenizer *tokenizer;
    int n;
    struct tt_task *task; /* [n] */
    int64_t sequences;
    double seconds;
};

static int refuse_others(const struct tt_args *args)
{
    static const char *const others[] = {"dataset", "dataset_path", "batch", "steps", "chat_template"};
    static const char *const shown[] = {"--dataset", "--dataset-path", "--batch", "--steps", "--chat-template"};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (tt_args_has(args, others[i]))
            return tt_fail(TT_EUSAGE, "eval: --task FILE names its own documents and does not use %s", shown[i]);
    return 0;
}

static int read_tasks(struct run *r)
{
    struct tt_task_options o = {.format = tt_args_last(r->args, "task_format"),
                                .fewshot_path = tt_args_last(r->args, "fewshot_file")};
    const char *path;
    int rc = 0;

    TT_TRY(tt_cli_count("eval", r->args, "limit", 1, INT32_MAX, &o.limit));
    TT_TRY(tt_cli_count("eval", r->args, "fewshot", 1, 1000, &o.fewshot));
    if ((o.fewshot > 0) != (o.fewshot_path != NULL))
        return tt_fail(TT_EUSAGE, "eval: --fewshot N shows the first N documents of --fewshot-file FILE; give both");
    for (int i = 0; (path = tt_args_value(r->args, "task", i)); i++)
        r->n++;
    r->task = tt_calloc((size_t)r->n, sizeof *r->task);
    for (int i = 0; i < r->n; i++)
        TT_TRY(tt_task_read(tt_args_value(r->args, "task", i), &o, &r->task[i]));
out:
    return rc;
}

/* The longest sequence of the model: what the user says, else its length in training, else its positions. */
static int longest(const struct run *r, int64_t *ret_most)
{
    int64_t positions = r->weights.model->dims.max_positions;

    *ret_most = r->weights.trained_seq_len ? r->weights.trained_seq_len : positions ? positions : 2048;
    return tt_cli_count("eval", r->args, "seq_len", 1, INT32_MAX, ret_most);
}

static int make_generator(struct run *r, int local_size)
{
    struct tt_generator_options o = {.model = r->weights.model, .dtype = r->dtype, .prompt_rows = ROWS};
    const char *folder = tt_args_last(r->args, "tokenizer");
    int64_t most = 0, limit = tt_job_memory_limit(r->cfg, local_size);
    bool begins;
    char need[32], allowed[32];
    int rc = 0;

    TT_TRY(tt_pretrained_pack(&r->weights, tt_args_last(r->args, "weights"), r->dtype, true));
    TT_TRY(tt_pretrained_tokenizer(&r->weights, folder, &r->tokenizer));
    begins = r->weights.is_hf ? tt_tokenizer_info(r->tokenizer)->adds_bos : true;
    TT_TRY(longest(r, &most));
    for (int i = 0; i < r->n; i++) {
        TT_TRY(tt_task_encode(&r->task[i], r->tokenizer, begins, r->weights.model->dims.vocab_size, most));
        o.context = o.context > tt_task_longest(&r->task[i]) ? o.context : tt_task_longest(&r->task[i]);
        o.sequences = o.sequences > r->task[i].most_choices ? o.sequences : r->task[i].most_choices;
    }
    r->sequences = o.sequences = o.sequences < TOGETHER ? o.sequences : TOGETHER;
    o.threads = tt_job_threads(r->cfg, local_size);
    TT_TRY(tt_generator_new(&o, &r->generator));
    if (tt_generator_memory(r->generator).total > limit)
        TT_TRY(tt_fail(TT_EFIT,
                       "a rank needs %s for the whole model, but parallelism.memory_limit allows %s\nhelp: use fewer "
                       "ranks on this host, --weights q8_0, or --dtype bfloat16",
                       tt_text_bytes(need, sizeof need, (double)tt_generator_memory(r->generator).total),
                       tt_text_bytes(allowed, sizeof allowed, (double)limit)));
    TT_TRY(tt_generator_allocate(r->generator));
out:
    return rc;
}

static int set_up(struct run *r, struct tt_comm *comm)
{
    const struct tt_mesh mesh = tt_mesh_single();
    int local_rank = 0, local_size = 1, rc = 0;

    tt_comm_node(comm, &local_rank, &local_size);
    TT_TRY(tt_pretrained_open(comm, r->args->word[0], tt_args_has(r->args, "ema"), &r->weights));
    r->weights.base = tt_args_last(r->args, "base");
    TT_TRY(tt_comm_agree(comm, read_tasks(r)));
    TT_TRY(tt_comm_agree(comm, make_generator(r, local_size)));
    TT_TRY(tt_pretrained_load(comm, &mesh, &r->weights, tt_generator_layout(r->generator),
                              tt_generator_state(r->generator)));
out:
    return rc;
}

static void take_down(struct run *r)
{
    for (int i = 0; r->task && i < r->n; i++)
        tt_task_release(&r->task[i]);
    tt_free(r->task);
    r->task = NULL;
    r->n = 0;
    tt_generator_free(r->generator);
    r->generator = NULL;
    tt_tokenizer_free(r->tokenizer);
    r->tokenizer = NULL;
    tt_pretrained_release(&r->weights);
}

/* Every rank scores its share of the documents; then all ranks know all scores. */
static int score_all(struct run *r, struct tt_comm *comm)
{
    double begin = tt_clock_sec();
    int rc = 0;

    for (int t = 0; t < r->n && rc == 0; t++) {
        struct tt_task *task = &r->task[t];

        for (int i = comm->rank; i < task->n && rc == 0; i += comm->size) {
            rc = tt_task_score(task, i, r->generator, r->sequences, r->weights.model->dims.vocab_size);
            if (rc < 0)
                rc = tt_wrap(rc, "%s:%" PRId64, task->path, task->item[i].line);
            if (comm->rank == 0)
                tt_progress("evaluating", (double)t + (double)(i + 1) / task->n, (double)r->n);
        }
    }
    TT_TRY(tt_comm_agree(comm, rc));
    for (int t = 0; t < r->n; t++)
        TT_TRY(tt_comm_max_f64(comm, r->task[t].score, r->task[t].n * r->task[t].most_choices * TT_TASK_SCORES));
    r->seconds = tt_clock_sec() - begin;
out:
    return rc;
}

/* --- results --- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && slash[1] ? slash + 1 : path;
}

static void print_results(const struct run *r)
{
    enum { TASK, FORMAT, DOCUMENTS, ACC, NORM, PERPLEXITY, CHANCE, COLUMNS };
    static const struct tt_column all[COLUMNS] = {{"task", 24, false, 0, 0, 0},     {"format", 10, false, 2, 1, 0},
                                                  {"documents", 9, true, 2, 0, 0},  {"acc", 15, false, 2, 0, 0},
                                                  {"acc_norm", 15, false, 2, 0, 0}, {"perplexity", 10, true, 2, 0, 0},
                                                  {"chance", 6, true, 2, 2, 0}};
    struct tt_column columns[COLUMNS];
    struct tt_columns table = {.column = columns};
    bool shows[COLUMNS] = {[TASK] = true, [FORMAT] = true, [DOCUMENTS] = true, [ACC] = true};
    int64_t cut = 0;
    char count[32];

    for (int t = 0; t < r->n; t++) {
        shows[NORM] = shows[NORM] || r->task[t].normed;
        shows[PERPLEXITY] = shows[PERPLEXITY] || r->task[t].single;
        shows[CHANCE] = shows[CHANCE] || !r->task[t].single;
    }
    for (int i = 0; i < COLUMNS; i++)
        if (shows[i])
            columns[table.n++] = all[i];
    tt_print("%s%s\n", r->weights.path, r->weights.averages ? " (averages of the weights)" : "");
    for (int t = 0; t < r->n; t++) {
        const struct tt_task *task = &r->task[t];
        struct tt_task_results x = tt_task_results(task);

        tt_columns_cell(&table, "%s", base_name(task->path));
        tt_columns_cell(&table, "%s", task->format);
        tt_columns_cell(&table, "%s", tt_text_count(count, sizeof count, task->n));
        tt_columns_cell(&table, "%.4f ± %.4f", x.acc, x.acc_error);
        if (shows[NORM])
            tt_columns_cell(&table, task->normed ? "%.4f ± %.4f" : "-", x.norm, x.norm_error);
        if (shows[PERPLEXITY])
            tt_columns_cell(&table, task->single ? "%.4f" : "-", x.perplexity);
        if (shows[CHANCE])
            tt_columns_cell(&table, task->single ? "-" : "%.4f", x.chance);
        cut += task->cut;
    }
    tt_columns_print(&table);
    if (cut)
        tt_print("%" PRId64 " contexts were too long for the model; their beginning was left out\n", cut);
    tt_print("time %.2f s\n", r->seconds);
}

static json_t *task_json(const struct tt_task *task)
{
    json_t *o = json_pack("{s:o, s:s, s:i, s:I}", "task", tt_json_string(task->path), "format", task->format,
                          "documents", task->n, "contexts_cut", (json_int_t)task->cut);
    double values[TT_TASK_METRICS];

    tt_task_numbers(task, values);
    for (int k = 0; k < TT_TASK_METRICS; k++)
        if (!isnan(values[k]))
            (void)json_object_set_new(o, tt_task_metric_rows[k].name, tt_json_number(values[k]));
    return o;
}

static json_t *all_json(const struct run *r, const struct tt_comm *comm)
{
    json_t *tasks = json_array();

    for (int t = 0; t < r->n; t++)
        (void)json_array_append_new(tasks, task_json(&r->task[t]));
    return json_pack("{s:o, s:b, s:o, s:s, s:o, s:o, s:i, s:f}", "path", tt_json_string(r->weights.path), "ema",
                     (int)r->weights.averages, "model",
                     json_sprintf("%s/%s", r->weights.model->row->name, r->weights.model->flavor), "dtype",
                     tt_cli_dtype_name(r->dtype), "weights", tt_pretrained_packings(&r->weights), "tasks", tasks,
                     "ranks", comm->size, "seconds", r->seconds);
}

static json_t *item_json(const struct tt_task *task, int i)
{
    const struct tt_task_item *item = &task->item[i];
    const double *score = task->score + (int64_t)i * task->most_choices * TT_TASK_SCORES;
    json_t *logprobs = json_array(), *greedy = json_array();

    for (int k = 0; k < item->n; k++) {
        (void)json_array_append_new(logprobs, json_real(score[k * TT_TASK_SCORES + TT_TASK_LOGPROB]));
        (void)json_array_append_new(greedy, json_boolean(score[k * TT_TASK_SCORES + TT_TASK_GREEDY] > 0.0));
    }
    return json_pack("{s:o, s:I, s:o, s:o, s:i, s:i, s:i}", "task", tt_json_string(task->path), "line",
                     (json_int_t)item->line, "logprobs", logprobs, "greedy", greedy, "gold", item->gold, "answer",
                     tt_task_answer(task, i, false), "answer_norm", tt_task_answer(task, i, true));
}

/* Writes a line for each document. */
static int write_items(const struct run *r)
{
    const char *path = tt_args_last(r->args, "output");
    FILE *to = path ? fopen(path, "w") : NULL;
    bool ok = true;

    if (!path)
        return 0;
    for (int t = 0; to && t < r->n; t++)
        for (int i = 0; i < r->task[t].n && ok; i++) {
            json_t *item = item_json(&r->task[t], i);
            char *text = tt_json_text(item);

            ok = fprintf(to, "%s\n", text) > 0;
            tt_free(text);
            json_decref(item);
        }
    if (!to || fclose(to) != 0 || !ok)
        return tt_fail(TT_EIO, "cannot write '%s': %s", path, strerror(errno));
    return 0;
}

int tt_tasks_eval(struct tt_comm *comm, const struct tt_args *args, const struct tt_config *cfg, enum tt_dtype dtype)
{
    struct run r = {.args = args, .cfg = cfg, .dtype = dtype};
    bool again = false;
    int tries = 0, rc = 0;

    TT_TRY(tt_comm_agree(comm, refuse_others(args)));
    do {
        if (again)
            take_down(&r);
        rc = tt_pretrained_explain(comm, set_up(&r, comm), &r.weights, args->word[0], &tries, &again);
    } while (again);
    TT_TRY(rc);
    comm->timeout_sec = (double)cfg->comm.train_timeout_seconds;
    comm->waiting_for = "evaluation";
    TT_TRY(score_all(&r, comm));
    if (comm->rank != 0)
        goto out;
    TT_TRY(write_items(&r));
    if (tt_args_has(args, "json"))
        rc = tt_cli_print_json(all_json(&r, comm));
    else
        print_results(&r);
    rc = rc ? rc : tt_cli_finish();
out:
    take_down(&r);
    return rc;
}
