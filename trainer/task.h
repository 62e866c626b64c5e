/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_TASK_H
#define TT_TRAINER_TASK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"
#include "parallel/engine/generator.h"
#include "trainer/step/metrics.h"

/**
 * Tasks that show what a model knows: documents with several continuations of a context, of which one is right. The
 * model's answer is the continuation with the greatest log-likelihood. Contexts, continuations and scores are those of
 * lm-evaluation-harness.
 *
 *     TT_TRY(tt_task_read(path, &options, &task));
 *     TT_TRY(tt_task_encode(&task, tokenizer, begins, most));   texts become tokens
 *     tt_task_score(...)                                        for each document, on any rank
 *     tt_task_results(&task, &results);
 *     tt_task_release(&task);
 */
struct tt_task_choice {
    char *context, *continuation;
    struct tt_ids ids; /* of both */
    int64_t context_n; /* how many ids belong to the context, at least 1 */
    double length;     /* characters of the continuation, without the blank before it */
};

struct tt_task_item {
    int64_t line; /* in the file, from 1 */
    int n, gold;  /* number of continuations, the right one */
    struct tt_task_choice *choice;
};

/* What a document's score consists of: TT_TASK_SCORES numbers for each continuation. */
enum { TT_TASK_LOGPROB, TT_TASK_GREEDY, TT_TASK_SCORES };

struct tt_task {
    char *path;
    const char *format; /* the name of its format */
    int n, cap;
    struct tt_task_item *item;
    int most_choices; /* of an item */
    bool normed;      /* acc_norm says something: the continuations of a document differ, not only its contexts */
    bool single;      /* one continuation: acc counts documents in which it is the most likely text */
    double *score;    /* (n, most_choices, TT_TASK_SCORES), after tt_task_encode; -HUGE_VAL: not computed here */
    int64_t cut;      /* contexts of which the beginning did not fit */
};

struct tt_task_options {
    const char *format;       /* NULL: found by the members of the first document */
    int64_t limit;            /* most documents; 0: all */
    const char *fewshot_path; /* documents whose answers are shown; of the same format */
    int64_t fewshot;          /* how many of them, the first ones; 0: none */
};

/**
 * Reads a file of JSON lines. Not collective. The caller releases the task.
 *   TT_EUSAGE  an unknown format, or examples for a file that already contains them
 *   TT_EDATA   a line that is not such a document, with its number
 */
int tt_task_read(const char *path, const struct tt_task_options *options, struct tt_task *ret_task) TT_MUST_CHECK;
void tt_task_release(struct tt_task *task);

/**
 * Encodes all texts as lm-evaluation-harness does. A context that is too long loses its beginning.
 *   begins  a text begins with BOS
 *   most    longest sequence of tokens that the model is fed
 * TT_EDATA: a continuation has no token, or is longer than `most`; a token is not in the vocabulary.
 */
int tt_task_encode(struct tt_task *task, const struct tt_tokenizer *tokenizer, bool begins, int64_t vocab_size,
                   int64_t most) TT_MUST_CHECK;

/** The longest sequence that the model is fed. */
int64_t tt_task_longest(const struct tt_task *task);

/**
 * Computes the scores of item i. The generator holds the weights; its context is at least tt_task_longest, and it may
 * have one sequence or several, over which the continuations are distributed; the scores do not depend on the other
 * items. TT_ENONFINITE.
 */
int tt_task_score(struct tt_task *task, int i, struct tt_generator *generator, int64_t sequences,
                  int64_t vocab_size) TT_MUST_CHECK;

/* Means over the documents, with their standard errors. */
struct tt_task_results {
    double acc, acc_error;
    double norm, norm_error; /* by log-likelihood per character; only if task->normed */
    double perplexity;       /* of the continuations; only if task->single */
    double chance;           /* acc of a guess; 0 if task->single */
};

/** From the scores of all documents. */
struct tt_task_results tt_task_results(const struct tt_task *task);

/** The same as numbers by metrics.def, where NaN is a score that says nothing about this task. */
void tt_task_numbers(const struct tt_task *task, double values[TT_TASK_METRICS]);

/** The answer of the model to item i: the number of a continuation; by_length: per character. */
int tt_task_answer(const struct tt_task *task, int i, bool by_length);

#endif
