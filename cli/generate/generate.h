/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_GENERATE_GENERATE_H
#define TT_CLI_GENERATE_GENERATE_H

#include <stdint.h>

#include "checkpoint/steps/steps.h"
#include "core/base/json.h"
#include "core/comm/comm.h"
#include "core/config/args.h"
#include "core/data/chat.h"
#include "core/models/model.h"
#include "core/models/sampling.h"
#include "core/program/executor.h"
#include "core/tokenizer/tokenizer.h"
#include "parallel/engine/generator.h"
#include "parallel/layout/mesh.h"

/**
 * Weights that the user names, with the model and the tokenizer that belong to them: a run or checkpoint folder (its
 * newest good step), a step, a consolidated titan folder, or a Hugging Face folder. Nothing else is needed to use them.
 *
 *     TT_TRY(tt_pretrained_open(comm, path, false, &weights));   what model it is
 *     TT_TRY(tt_pretrained_tokenizer(&weights, NULL, &tokenizer));
 *     TT_TRY(tt_pretrained_load(comm, &mesh, &weights, layout, state));
 *     tt_pretrained_release(&weights);
 *
 * A running job may remove its step meanwhile; all of it begins again then (tt_step_try_again).
 */
struct tt_pretrained {
    bool is_hf;
    bool averages; /* of the weights (ema.decay) are loaded instead of the weights */
    char *path;    /* the step or folder that was found, or the file */
    struct tt_step_place place;
    char *assets; /* the folder with model.json or config.json, and tokenizer.json */
    struct tt_model *model;
    int64_t trained_seq_len; /* of the run that made them; 0: not known */
    json_t *config;          /* of the run that made them, as tt_config_to_json; NULL: not known */
};

/**
 * Finds the weights and reads their model (collective; rank 0 decides which step). With `averages` the averages of the
 * weights are meant. TT_EDATA when the folder does not exist, is of an unknown kind, is damaged, or has no averages
 * although they are meant.
 */
int tt_pretrained_open(struct tt_comm *comm, const char *path, bool averages,
                       struct tt_pretrained *ret_weights) TT_MUST_CHECK;
void tt_pretrained_release(struct tt_pretrained *weights);

/**
 * After rc, which all ranks have: TT_EREMOVED if the reason is that the step was removed (collective). ret_again: the
 * path that the user gave still leads to a step; release all that was made of the first one, and begin again. Counts
 * in tries, at first 0.
 */
int tt_pretrained_explain(struct tt_comm *comm, int rc, const struct tt_pretrained *weights, const char *given,
                          int *tries, bool *ret_again);

/**
 * Loads the tokenizer from `folder`, or, if that is NULL, the one that belongs to the weights. Not collective. TT_EDATA
 * when there is none.
 */
int tt_pretrained_tokenizer(const struct tt_pretrained *weights, const char *folder,
                            struct tt_tokenizer **ret_tokenizer) TT_MUST_CHECK;

/**
 * Reads this rank's part of every parameter into state (collective); verifies checksums if there are any. Weights of
 * another type than the state's are converted.
 */
int tt_pretrained_load(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_pretrained *weights,
                       const struct tt_layout *layout, struct tt_state *state) TT_MUST_CHECK;

/* --- the prompt --- */

/**
 * The prompt: text or token ids, and the tokens that end a text.
 */
struct tt_prompt {
    char *text; /* NULL when it was given as tokens, and of a conversation */
    struct tt_ids ids;
    struct tt_ids stop;
    struct tt_tokenizer *tokenizer; /* NULL: tokens only */
    struct tt_chat *chat;           /* with --chat */
};

/** Whether the user's turns come from standard input, one by one: --chat without a prompt. */
bool tt_prompt_is_conversation(const struct tt_args *args);

/**
 * Reads --prompt, --prompt_file or --prompt_tokens, one of them, and --tokenizer. Text gets a BOS token if the model
 * was trained with one: always after training with titan (if the tokenizer has one), else as the tokenizer says. With
 * --chat the text is what a user says, written by the chat template, and the token that ends the answer ends the text.
 * A conversation has no text and no tokens yet.
 *   TT_EUSAGE  no prompt, an empty one, more than one, a token beyond the vocabulary, no or an unknown chat template
 *   TT_EDATA   no tokenizer for a text, a file that cannot be read, text that is not UTF-8
 */
int tt_prompt_read(const struct tt_args *args, const struct tt_pretrained *weights,
                   struct tt_prompt *ret_prompt) TT_MUST_CHECK;
void tt_prompt_release(struct tt_prompt *prompt);

/** TT_EDATA if the tokenizer makes a token of the prompt that the model does not have. */
int tt_prompt_check_ids(const struct tt_pretrained *weights, const struct tt_prompt *prompt,
                        const struct tt_ids *ids) TT_MUST_CHECK;

/* --- a conversation --- */

/**
 * A conversation: turns of a user from standard input, and the answers of the model on standard output. The model sees
 * all earlier turns; only tokens that differ from those already read are fed again. When the context is full, the model
 * no longer sees the oldest turns, and the user is told.
 *
 * On a terminal there is a prompt, and Ctrl-C stops an answer. An error of one turn is shown there and the conversation
 * goes on; elsewhere it ends it.
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

/** TT_EUSAGE if there is no turn at all, and for a turn that is too long or no command; TT_EDATA, TT_EIO. */
int tt_conversation_run(const struct tt_conversation *conversation) TT_MUST_CHECK;

#endif
