/* SPDX-License-Identifier: MIT
 *
 * Evaluations on tasks while training.
 */
#include "trainer/tasks.h"

#include <inttypes.h>
#include <string.h>

#include "checkpoint/durable/patience.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/os/file.h"

/* The name of a file without folder and extension; the caller frees. */
static char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash && slash[1] ? slash + 1 : path, *dot = strrchr(base, '.');

    return tt_strndup(base, dot && dot > base ? (size_t)(dot - base) : strlen(base));
}

static int read_tasks(struct tt_train_tasks *t, const struct tt_train_data *data)
{
    const struct tt_config *cfg = t->setup->cfg;
    const struct tt_words *files = &cfg->metrics.tasks;
    const struct tt_task_options options = {.format = NULL};
    const struct tt_tokenizer *tokenizer = NULL;
    struct tt_tokenizer *own = NULL;
    int64_t vocab = t->setup->job.model->dims.vocab_size, longest = 1, most = 1;
    int rc = 0;

    TT_TRY(tt_train_text_tokenizer(t->setup, data, &own, &tokenizer));
    if (!tokenizer)
        TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY(metrics.tasks),
                           "the tokenizer of the data is not known, so it cannot encode tasks\n"
                           "help: set model.hf_assets_path to the tokenizer's folder, or metrics.task_freq to 0"));
    t->task = tt_calloc((size_t)files->n, sizeof *t->task);
    t->name = tt_calloc((size_t)files->n, sizeof *t->name);
    for (; t->n < files->n; t->n++) {
        struct tt_task *task = &t->task[t->n];

        t->name[t->n] = name_of(files->word[t->n]);
        for (int i = 0; i < t->n; i++)
            if (strcmp(t->name[i], t->name[t->n]) == 0)
                TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY(metrics.tasks),
                                   "two files are called '%s', which is the name under which scores are recorded\n"
                                   "help: rename one of them",
                                   t->name[i]));
        TT_TRY(tt_task_read(files->word[t->n], &options, task));
        TT_TRY(tt_task_encode(task, tokenizer, true, vocab, cfg->training.seq_len));
        longest = longest > tt_task_longest(task) ? longest : tt_task_longest(task);
        most = most > task->most_choices ? most : task->most_choices;
    }
    t->options = tt_job_scoring(cfg, &t->setup->job.engine);
    t->options.context = longest;
    t->options.sequences = most < t->options.sequences ? most : t->options.sequences;
out:
    tt_tokenizer_free(own);
    return rc;
}

int tt_train_tasks_open(const struct tt_setup *setup, const struct tt_train_data *data,
                        struct tt_train_tasks *ret_tasks)
{
    int rc = 0;

    *ret_tasks = (struct tt_train_tasks){.setup = setup};
    if (setup->cfg->metrics.task_freq && setup->comm->rank == 0)
        rc = read_tasks(ret_tasks, data);
    return tt_comm_agree(setup->comm, rc);
}

void tt_train_tasks_release(struct tt_train_tasks *t)
{
    for (int i = 0; t->setup && i < t->setup->cfg->metrics.tasks.n; i++) {
        if (t->task)
            tt_task_release(&t->task[i]);
        if (t->name)
            tt_free(t->name[i]);
    }
    tt_free(t->task);
    tt_free(t->name);
    *t = (struct tt_train_tasks){.setup = NULL};
}

/* The arguments of rank 0's work. */
struct scoring {
    const struct tt_train_tasks *tasks;
    struct tt_generator *generator;
    int (*asked_to_stop)(void);
    int64_t step;
    int n_reports;
    struct tt_metrics_task *report; /* of the tasks that are complete */
};

static int score(void *arg)
{
    struct scoring *s = arg;
    const struct tt_train_tasks *t = s->tasks;
    int64_t vocab = t->setup->job.model->dims.vocab_size;
    int stop = 0, rc = 0;

    for (int k = 0; k < t->n; k++) {
        struct tt_task *task = &t->task[k];
        struct tt_metrics_task report = {.step = s->step,
                                         .path = task->path,
                                         .name = t->name[k],
                                         .format = task->format,
                                         .documents = task->n,
                                         .cut = task->cut};
        double begin = tt_clock_sec();

        for (int i = 0; i < task->n; i++) {
            if ((stop = s->asked_to_stop()))
                return tt_fail(stop, "stopped by a signal while tasks were evaluated");
            rc = tt_task_score(task, i, s->generator, t->options.sequences, vocab);
            if (rc < 0)
                TT_TRY(tt_wrap(rc, "%s:%" PRId64, task->path, task->item[i].line));
        }
        tt_task_numbers(task, report.value);
        report.seconds = tt_clock_sec() - begin;
        s->report[s->n_reports++] = report;
    }
out:
    return rc;
}

int tt_train_tasks_score(const struct tt_train_tasks *t, int64_t step, int (*asked_to_stop)(void),
                         struct tt_reporter *reporter)
{
    struct tt_comm *comm = t->setup->comm;
    struct tt_patience patience = tt_patience_begin(comm, "tasks");
    struct scoring s = {.tasks = t, .asked_to_stop = asked_to_stop, .step = step};
    int rc = tt_train_text_generator(t->setup, &t->options, &s.generator);

    s.report = tt_calloc((size_t)t->n, sizeof *s.report);
    if (rc == 0)
        rc = tt_patience_work(comm, comm->rank == 0, score, &s);
    tt_patience_end(comm, &patience);
    for (int i = 0; i < s.n_reports; i++)
        tt_reporter_scored(reporter, &s.report[i]);
    if (rc == TT_EFIT || rc == TT_ENONFINITE || rc == TT_ENOMEM) {
        tt_warn("tasks were not evaluated after step %" PRId64 ", training continues: %s", step, tt_error_message());
        rc = 0;
    }
    tt_generator_free(s.generator);
    tt_free(s.report);
    return rc;
}
