/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_GENERATION_H
#define TT_TRAINER_GENERATION_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/base/text.h"
#include "core/models/sampling.h"
#include "core/tokenizer/tokenizer.h"
#include "parallel/engine/generator.h"

/** Text that is produced token by token: bytes go in, whole characters come out. Zero-initialise and set `to`. */
struct tt_stream {
    FILE *to;            /* NULL: the text is only collected */
    struct tt_text text; /* all text so far */
    struct tt_text held; /* the bytes of an incomplete character */
};

/* Why a continuation ended. */
enum tt_finish { TT_FINISH_LENGTH, TT_FINISH_EOS, TT_FINISH_CONTEXT, TT_FINISH_INTERRUPTED };

/** "length", "eos", "context", "interrupted". */
const char *tt_finish_name(enum tt_finish finish);

/**
 * Continuations of one prompt. The generator has been fed the prompt, and every continuation begins after it.
 * Continuation s of a seed is always the same text.
 */
struct tt_generation {
    struct tt_generator *generator;
    struct tt_picker *picker;
    const struct tt_tokenizer *tokenizer; /* NULL: tokens are written as numbers */
    const float *prompt_logits;           /* (V) logits after the prompt; a copy that the caller owns */
    const int32_t *prompt;                /* the tokens that the generator was fed */
    int64_t prompt_tokens;
    int64_t max_new_tokens;
    uint64_t seed;
    const int32_t *stop; /* tokens that end a text */
    int n_stop;
    const volatile sig_atomic_t *interrupted; /* if this becomes nonzero, the text ends; may be NULL */
};

struct tt_continuation {
    struct tt_ids tokens; /* without the token that ended the text */
    struct tt_decoding decoding;
    struct tt_stream stream;
    enum tt_finish finish;
    double seconds;
};

/** Produces continuation number s, and writes it to stream.to at the same time. The caller releases it. */
int tt_generation_run(const struct tt_generation *generation, int64_t s,
                      struct tt_continuation *continuation) TT_MUST_CHECK;

/**
 * The same token by token, for a caller that feeds them: begin, take until it says that the text is over, end. Does
 * not read prompt_logits. The chosen sequence of the generator says how much room there is.
 *   logits     (V) after the prompt, or after the last token
 *   ret_token  the next token of the text; -1: the text is over
 */
int tt_continuation_begin(const struct tt_generation *generation, struct tt_continuation *continuation) TT_MUST_CHECK;
int tt_continuation_take(const struct tt_generation *generation, int64_t s, const float *logits,
                         struct tt_continuation *continuation, int32_t *ret_token) TT_MUST_CHECK;
void tt_continuation_end(const struct tt_generation *generation, struct tt_continuation *continuation);
void tt_continuation_release(struct tt_continuation *continuation);

#endif
