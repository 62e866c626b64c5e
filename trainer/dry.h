/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_DRY_H
#define TT_TRAINER_DRY_H

#include "checkpoint/save/plan.h"
#include "core/models/first_loss.h"
#include "trainer/save/saver.h"
#include "trainer/start/start.h"
#include "trainer/step/reporter.h"
#include "trainer/step/validation.h"
#include "trainer/tasks.h"
#include "trainer/text.h"

enum { TT_DRY_SAMPLES = 3, TT_DRY_TOKENS = 64 };

/* The beginning of one of the samples that the run reads first. */
struct tt_dry_sample {
    int64_t number; /* in the global order */
    int part;       /* of the mixture */
    int32_t *token;
    int64_t n;
    struct tt_text text; /* empty: the tokenizer that made the tokens is not known */
};

/* The lengths of a dataset's documents, in tokens. */
struct tt_dry_lengths {
    int64_t shortest, longest;
    int64_t documents, tokens; /* tokens: the sum over all documents */
    int64_t cut;               /* documents that are longer than a sequence */
};

/**
 * `titan train --dry-run`: all checks and decisions of a run before its first step, without the run itself. It creates,
 * locks and changes nothing in the run folder, allocates no memory for the model, and loads no weights. Text is
 * tokenized into the cache, where the run will find it.
 */
struct tt_dry {
    const struct tt_setup *setup;
    struct tt_train_data data;
    struct tt_validator validator;
    struct tt_train_text text;
    struct tt_train_tasks tasks;
    struct tt_train_progress at;
    struct tt_start start;
    struct tt_reporter reporter;
    /* the members below are for rank 0 */
    const struct tt_tokenizer *tokenizer; /* the data's or, if no part is text, the configuration's; NULL: none */
    struct tt_tokenizer *own;             /* the tokenizer of the configuration, if it was loaded here */
    struct tt_dry_lengths lengths;        /* all 0: no dataset records where documents begin */
    struct tt_dry_sample sample[TT_DRY_SAMPLES];
    int n_samples;                  /* 0: no step is left */
    struct tt_text_repeats repeats; /* repeated tokens in these samples */
    struct tt_saver_disk disk;
};

/** Whether the tokenizer of the run made the tokens of a part. */
bool tt_dry_knows_tokens(const struct tt_dry *dry, int part);

/**
 * Makes all the checks. Collective: every rank returns the same code. Release even after an error.
 *   overwrite      the run would replace the run in its folder
 *   asked_to_stop  as in struct tt_run_events
 * Errors: as a run.
 */
int tt_dry_look(const struct tt_setup *setup, bool overwrite, int (*asked_to_stop)(void),
                struct tt_dry *ret_dry) TT_MUST_CHECK;
void tt_dry_release(struct tt_dry *dry);

#endif
