/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_NEW_NEW_H
#define TT_CLI_NEW_NEW_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/graph/dtype.h"
#include "core/tokenizer/train.h"
#include "parallel/planner/cost.h"

/**
 * `titan new`: from a text, a machine and a number of hours to a configuration. rules.c holds the rules, plan.c chooses
 * a model by them, config.c writes what was chosen.
 */

/* For what the model is meant: which texts of the ladder are like the user's. */
enum tt_new_use { TT_NEW_TEXT, TT_NEW_CODE, TT_NEW_USES };

/* What is chosen for a depth. Everything else follows from it. */
struct tt_recipe {
    int64_t depth, dim, heads, ffn_dim, vocab;
    int64_t parameters, multiplying; /* multiplying: the parameters without the embedding, which only looks up rows */
    double bytes_per_token;
    int64_t seq_len, batch, local_batch; /* batch, local_batch: sequences of a step, of a microbatch */
    int64_t steps, warmup;
    double lr;
    double split; /* share of the documents that validation gets; 0: there is one document */
    int64_t validate_every, validation_batches, save_every;
    double epochs;        /* passes through the text */
    double step_sec;      /* predicted */
    int64_t peak_bytes;   /* of a rank */
    double run_sec;       /* with validation and checkpoints */
    double loss;          /* expected at the end, in nats per byte */
    double low, high;     /* its range */
    bool is_beyond;       /* the run is larger than the runs of the ladder */
    bool is_repeated_out; /* more steps would be more passes than the rule allows */
};

/* --- the rules (rules.c): pure functions --- */

/** The most passes through a text. */
extern const double tt_rule_epochs;

/** The share of the time of a run that validation, checkpoints and the start may take; the rest goes to steps. */
extern const double tt_rule_overhead;

/** The widths of the model, its vocabulary and its parameters, from the depth; and the length of sequences. */
void tt_rule_shape(int64_t depth, struct tt_recipe *recipe);

/** The tokens that are best for a model, if compute is what limits a run. */
double tt_rule_tokens(const struct tt_recipe *recipe);

/** The most parameters (without the embedding) that a text of so many tokens can use. */
double tt_rule_parameters(double text_tokens);

/** Batch and learning rate of a run of so many tokens. ranks: the batch is a multiple of their number. */
void tt_rule_batch(double tokens, int ranks, struct tt_recipe *recipe);

/** Sets validation, checkpoints, warm-up and passes, from steps and step_sec.
 *   documents, bytes  of the text */
void tt_rule_rest(int64_t documents, int64_t bytes, struct tt_recipe *recipe);

/** The loss that the ladder expects for a run, and its range. bytes: of the text without the validation part. */
void tt_rule_loss(enum tt_new_use use, double bytes, struct tt_recipe *recipe);

/* --- the choice (plan.c) --- */

struct tt_new_text {
    const char *dataset, *field;
    char *path; /* as in the configuration; NULL for a built-in text */
    int64_t documents, bytes;
    struct tt_word_counts words;
};

/* The bytes at the beginning of a text in which words are counted. */
#define TT_NEW_WORDS_BYTES ((int64_t)1 << 30)

enum {
    TT_NEW_LEAST_DEPTH = 2,
    TT_NEW_MOST_DEPTH = 32,
    TT_NEW_VOCABULARIES = 5, /* each is twice the one before */
    TT_NEW_LEAST_VOCABULARY = 2048,
    TT_NEW_VALIDATION_BATCH = 8
};

struct tt_new_request {
    enum tt_new_use use;
    double hours;  /* 0: tokens decide */
    double tokens; /* 0: hours decide */
    int64_t depth; /* 0: the best one */
    int ranks, threads;
    enum tt_dtype dtype; /* of computation */
    struct tt_machine machine;
    struct tt_new_text text;
    const char *folder;       /* of the run, as in the configuration */
    const char *machine_file; /* as in the configuration; NULL: none */
    char *others;             /* who else used the machine while it was measured; NULL: nobody */
    struct tt_bpe_trained trained[TT_NEW_VOCABULARIES]; /* tokenizers that were tried; n_tokens 0: not yet */
};

/**
 * Chooses the deepest model for which the hours, the text and the memory suffice, and everything that follows.
 * TT_EFIT: not even the smallest model fits. TT_EDATA: the text is too small. TT_EUSAGE: the hours are too few.
 */
int tt_new_plan(struct tt_new_request *request, struct tt_recipe *ret_recipe) TT_MUST_CHECK;

/** The tokenizer of a recipe: the trained vocabulary of its size. */
const struct tt_bpe_trained *tt_new_tokenizer(const struct tt_new_request *request, const struct tt_recipe *recipe);

/** The special tokens of the tokenizer: the first begins a document, the second ends it. */
extern const char *const tt_new_special[2];

/* --- the file (config.c) --- */

/** Appends config.yaml, with a comment at every choice. */
void tt_new_config(const struct tt_new_request *request, const struct tt_recipe *recipe, struct tt_text *out);

#endif
