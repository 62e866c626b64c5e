/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_TASKS_H
#define TT_TRAINER_TASKS_H

#include "trainer/task.h"
#include "trainer/text.h"

/**
 * Evaluations on tasks during training (metrics.task_freq). As for sampled texts, the ranks send their weights to rank
 * 0. The scores are those that `titan eval --task` computes from a checkpoint of the same step.
 *
 *     tt_train_tasks_open     reads and encodes the tasks, once the data is open
 *     tt_train_tasks_score    after a step that metrics.task_freq chooses
 *     tt_train_tasks_release
 */
struct tt_train_tasks {
    const struct tt_setup *setup;
    int n;
    struct tt_task *task; /* [n], on rank 0 */
    char **name;          /* [n], of their files, without folder and extension */
    struct tt_generator_options options;
};

/**
 * The set-up must outlive `tasks`. Does nothing if the run evaluates none. Errors: as tt_task_read and tt_task_encode;
 * TT_EUSAGE if the tokenizer is not known, or if two tasks have the same name. Collective.
 */
int tt_train_tasks_open(const struct tt_setup *setup, const struct tt_train_data *data,
                        struct tt_train_tasks *ret_tasks) TT_MUST_CHECK;
void tt_train_tasks_release(struct tt_train_tasks *tasks);

/**
 * Scores the current weights, or their averages if validation uses those, and reports the scores. Changes nothing. If
 * the system refuses the memory, or a value is not finite, reports that; training continues. TT_ESTOPPED or
 * TT_EINTERRUPTED if asked_to_stop says so on rank 0; tasks that are not complete then report nothing. Collective.
 */
int tt_train_tasks_score(const struct tt_train_tasks *tasks, int64_t step, int (*asked_to_stop)(void),
                         struct tt_reporter *reporter) TT_MUST_CHECK;

#endif
