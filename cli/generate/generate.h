/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_GENERATE_GENERATE_H
#define TT_CLI_GENERATE_GENERATE_H

#include <stdint.h>
#include <stdio.h>

#include "checkpoint/steps/steps.h"
#include "core/base/json.h"
#include "core/comm/comm.h"
#include "core/config/args.h"
#include "core/config/config.h"
#include "core/data/chat.h"
#include "core/models/model.h"
#include "core/models/sampling.h"
#include "core/program/executor.h"
#include "core/tokenizer/tokenizer.h"
#include "parallel/engine/generator.h"
#include "parallel/layout/mesh.h"

/**
 * The weights that the user names, with their model and tokenizer: a run or checkpoint folder (its newest good step), a
 * step, a consolidated titan folder, or a Hugging Face folder. Nothing else is needed to use them.
 *
 *     TT_TRY(tt_pretrained_open(comm, path, false, &weights));   finds the model
 *     TT_TRY(tt_pretrained_tokenizer(&weights, NULL, &tokenizer));
 *     TT_TRY(tt_pretrained_load(comm, &mesh, &weights, layout, state));
 *     tt_pretrained_release(&weights);
 *
 * A running job may remove its step meanwhile; then all of this begins again (tt_step_try_again).
 */
struct tt_pretrained {
    bool is_hf;
    bool averages; /* load the averages of the weights (ema.decay) instead of the weights */
    bool is_apart; /* a step without its frozen weights, which are packed (lora.base_dtype) */
    enum tt_path_kind kind;
    char *path; /* the step, folder or file that was found */
    struct tt_step_place place;
    char *assets; /* the folder with model.json or config.json, and tokenizer.json */
    struct tt_model *model;
    int64_t trained_seq_len; /* of the run that made them; 0: not known */
    json_t *config;          /* of the run that made them, as tt_config_to_json; NULL: not known */
    json_t *meta;            /* of the manifest; NULL: none */
    const char *base;        /* where the user says that the frozen weights of adapters are; borrowed; NULL: not said */
};

/**
 * Finds the weights and reads their model (collective; rank 0 decides which step). With `averages`, finds the averages
 * of the weights. TT_EDATA if the folder does not exist, is of an unknown kind or damaged, or if there are no averages
 * although `averages` is set.
 */
int tt_pretrained_open(struct tt_comm *comm, const char *path, bool averages,
                       struct tt_pretrained *ret_weights) TT_MUST_CHECK;
void tt_pretrained_release(struct tt_pretrained *weights);

/**
 * After the error rc, which all ranks have: returns TT_EREMOVED if the step was removed, otherwise rc (collective).
 * ret_again: the user's path still leads to a step, so release everything that came from the first one, and begin
 * again. Counts the attempts in `tries`, which begins at 0.
 */
int tt_pretrained_explain(struct tt_comm *comm, int rc, const struct tt_pretrained *weights, const char *given,
                          int *tries, bool *ret_again);

/**
 * Loads the tokenizer from `folder`, or, if that is NULL, the one that belongs to the weights. Not collective. TT_EDATA
 * if there is none.
 */
int tt_pretrained_tokenizer(const struct tt_pretrained *weights, const char *folder,
                            struct tt_tokenizer **ret_tokenizer) TT_MUST_CHECK;

/**
 * Chooses how the matrices of the model are kept in memory (core/math/packing.h); call it before the model is used. Not
 * collective: every rank reads the headers of the files.
 *   how         "stored", or NULL: as the files have them, if they have blocks or bfloat16; "unpacked": in dtype; or
 *               the name of a packing, to which matrices are converted while they are loaded. With q4_0 the output
 *               becomes q8_0, as in an exported GGUF file, and with int8 and nf4 embedding and output bfloat16
 *   generation  otherwise the model is used for validation, whose head reads no packed rows
 * TT_EUSAGE: an unknown word, or a packing that no matrix can have.
 */
int tt_pretrained_pack(struct tt_pretrained *weights, const char *how, enum tt_dtype dtype,
                       bool generation) TT_MUST_CHECK;

/** A new object of the number of matrices in each packing, and "unpacked". The caller releases it. */
json_t *tt_pretrained_packings(const struct tt_pretrained *weights);

/**
 * Reads this rank's part of every parameter into state (collective); verifies checksums if there are any. Converts
 * weights to the type of the state. If a step has only the adapters of a run with lora.base_dtype, reads the frozen
 * weights where the run found them, or from weights->base, and compares them with the digests in the manifest.
 */
int tt_pretrained_load(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_pretrained *weights,
                       const struct tt_layout *layout, struct tt_state *state) TT_MUST_CHECK;

/* --- the prompt --- */

/**
 * The prompt: text or token ids, and the tokens that end a text.
 */
struct tt_prompt {
    char *text; /* NULL if the prompt was given as tokens, and in a conversation */
    struct tt_ids ids;
    struct tt_ids stop;
    struct tt_tokenizer *tokenizer; /* NULL: tokens only */
    struct tt_chat *chat;           /* with --chat */
};

/** Whether this is a conversation, with turns of the user from standard input: --chat without a prompt. */
bool tt_prompt_is_conversation(const struct tt_args *args);

/**
 * Reads one of --prompt, --prompt_file and --prompt_tokens, and --tokenizer. Text gets a BOS token if the model was
 * trained with one: always after training with titan (if the tokenizer has one), else if the tokenizer adds one. With
 * --chat the text is what a user says, written by the chat template, and the token that ends the answer ends the text.
 * A conversation begins without text and tokens.
 *   TT_EUSAGE  no prompt, an empty one, more than one, a token beyond the vocabulary, no or an unknown chat template
 *   TT_EDATA   no tokenizer for a text, a file that cannot be read, text that is not UTF-8
 */
int tt_prompt_read(const struct tt_args *args, const struct tt_pretrained *weights,
                   struct tt_prompt *ret_prompt) TT_MUST_CHECK;
void tt_prompt_release(struct tt_prompt *prompt);

/** TT_EDATA if the tokenizer turns the prompt into a token beyond the model's vocabulary. */
int tt_prompt_check_ids(const struct tt_pretrained *weights, const struct tt_prompt *prompt,
                        const struct tt_ids *ids) TT_MUST_CHECK;

/* --- many prompts --- */

struct tt_prompts_line {
    char *text; /* NULL if the prompt was given as tokens */
    struct tt_ids ids;
    json_t *id;     /* of the caller, for the result; NULL: none */
    int64_t number; /* of the line in the file */
};

struct tt_prompts {
    struct tt_prompt common; /* the tokenizer, the template and the tokens that end a text */
    int n, cap;
    struct tt_prompts_line *line;
};

/**
 * Reads the prompts of --prompts. Each line of a file whose name ends in .jsonl is an object with "prompt" or
 * "prompt_tokens", and perhaps an "id"; each line of any other file is a text. Empty lines are skipped. With --chat
 * each text is what a user says. Errors: as tt_prompt_read, with the line; TT_EDATA for a line that is not such an
 * object.
 */
int tt_prompts_read(const struct tt_args *args, const struct tt_pretrained *weights,
                    struct tt_prompts *ret_prompts) TT_MUST_CHECK;
void tt_prompts_release(struct tt_prompts *prompts);

/* The continuations of many prompts, several at a time. */
struct tt_batch {
    struct tt_generator *generator; /* with the weights, for `sequences` sequences */
    int64_t sequences;
    const struct tt_prompts *prompts;
    struct tt_picker *picker;
    int64_t vocab_size, max_new_tokens, samples;
    uint64_t seed;
    bool ignore_eos;
    FILE *to;
    /* results */
    int64_t prompt_tokens, new_tokens;
    double prompt_sec, new_sec;
};

/**
 * Writes a line of JSON for each continuation, in the order of the prompts, as soon as it and those before it are
 * complete. Each text is the one that the prompt has alone. TT_ENONFINITE, or TT_EIO if a line cannot be written.
 */
int tt_batch_run(struct tt_batch *batch) TT_MUST_CHECK;

/* --- a conversation --- */

/**
 * A conversation: turns of a user from standard input, and the answers of the model on standard output. The model sees
 * all earlier turns; only tokens that differ from those already read are fed again. When the context is full, the model
 * no longer sees the oldest turns, and the user is told.
 *
 * On a terminal there is a prompt, and Ctrl-C stops an answer. There an error in a turn is shown and the conversation
 * continues; elsewhere an error ends it.
 */
struct tt_conversation {
    struct tt_generator *generator; /* with the weights */
    const struct tt_pretrained *weights;
    const struct tt_prompt *prompt; /* with chat template, tokenizer, and the tokens that end an answer */
    struct tt_sampling sampling;
    const char *system; /* the system message, before the first turn; NULL: none */
    int64_t context, prompt_rows, max_new_tokens;
    uint64_t seed;
    bool ignore_eos;
};

/** TT_EUSAGE if there is no turn at all, or if a turn is too long or an unknown command; TT_EDATA, TT_EIO. */
int tt_conversation_run(const struct tt_conversation *conversation) TT_MUST_CHECK;

/* --- tasks --- */

/**
 * `titan eval --task`: reads the tasks, scores their documents, which the ranks share, and prints the results
 * (collective). Every rank holds the whole model. Needs a path in args; comm's timeout is the one for setting up.
 *   TT_EUSAGE  options that tasks do not use
 *   TT_EDATA   weights, tokenizer or documents that cannot be read
 *   TT_EFIT    the model does not fit into the memory of a rank
 */
int tt_tasks_eval(struct tt_comm *comm, const struct tt_args *args, const struct tt_config *cfg,
                  enum tt_dtype dtype) TT_MUST_CHECK;

#endif
