/* SPDX-License-Identifier: MIT
 *
 * The loop of generation: picks a token, writes it, feeds it.
 */
#include "trainer/generation.h"

#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/math/rng.h"
#include "core/os/file.h"

/* --- the stream --- */

static void put(struct tt_stream *s, size_t size)
{
    size_t before = s->text.size;

    tt_utf8_repair(s->held.text, size, &s->text);
    if (s->to && s->text.size > before) {
        (void)fwrite(s->text.text + before, 1, s->text.size - before, s->to);
        (void)fflush(s->to);
    }
}

/* Adds bytes and writes the complete characters; bytes that are not UTF-8 become U+FFFD. */
static void stream_add(struct tt_stream *s, const char *bytes, size_t size)
{
    struct tt_text rest = {0};
    size_t unfinished;

    if (!size)
        return;
    tt_text_add_bytes(&s->held, bytes, size);
    unfinished = tt_utf8_unfinished(s->held.text, s->held.size);
    put(s, s->held.size - unfinished);
    tt_text_add_bytes(&rest, s->held.text + s->held.size - unfinished, unfinished);
    tt_text_release(&s->held);
    s->held = rest;
}

/* --- the loop --- */

const char *tt_finish_name(enum tt_finish finish)
{
    static const char *const names[] = {
        [TT_FINISH_LENGTH] = "length",
        [TT_FINISH_EOS] = "eos",
        [TT_FINISH_CONTEXT] = "context",
        [TT_FINISH_INTERRUPTED] = "interrupted",
    };

    return names[finish];
}

/* A model may have more rows than its tokenizer has tokens. These rows have no text; neither do special tokens. */
static int decode(const struct tt_generation *g, struct tt_decoding *decoding, int32_t token, struct tt_text *text)
{
    if (!tt_tokenizer_has(g->tokenizer, token) || tt_tokenizer_is_special(g->tokenizer, token))
        return 0;
    return tt_tokenizer_decode_part(g->tokenizer, decoding, &token, 1, text);
}

/* A model may have more rows than the tokenizer has tokens; the extra rows mean nothing. */
static bool is_token(const void *tokenizer, int32_t token)
{
    return tt_tokenizer_has(tokenizer, token);
}

/* A decoder strips the beginning of a text; a continuation is such a beginning only if the prompt is without text. */
int tt_continuation_begin(const struct tt_generation *g, struct tt_continuation *c)
{
    struct tt_text text = {0};
    int rc = 0;

    c->finish = TT_FINISH_LENGTH;
    for (int64_t i = 0; g->tokenizer && i < g->prompt_tokens; i++)
        TT_TRY(decode(g, &c->decoding, g->prompt[i], &text));
    if (g->tokenizer)
        tt_tokenizer_decode_end(g->tokenizer, &c->decoding, &text);
    tt_picker_allow(g->picker, g->tokenizer ? is_token : NULL, g->tokenizer);
out:
    tt_text_release(&text);
    return rc;
}

int tt_continuation_take(const struct tt_generation *g, int64_t s, const float *logits, struct tt_continuation *c,
                         int32_t *ret_token)
{
    const struct tt_rng rng = tt_rng_make(g->seed, "generate");
    double uniform = tt_rng_uniform(&rng, ((uint64_t)s << 40) + (uint64_t)c->tokens.n);
    int32_t token = tt_picker_pick(g->picker, logits, uniform);
    struct tt_text text = {0};
    int stop = 0, rc = 0;

    *ret_token = -1;
    if (g->interrupted && *g->interrupted) {
        c->finish = TT_FINISH_INTERRUPTED;
        return 0;
    }
    while (stop < g->n_stop && g->stop[stop] != token)
        stop++;
    if (stop < g->n_stop) {
        c->finish = TT_FINISH_EOS;
        return 0;
    }
    tt_ids_add(&c->tokens, token);
    if (!g->tokenizer)
        tt_text_add(&text, "%s%d", c->tokens.n > 1 ? " " : "", token);
    else
        TT_TRY(decode(g, &c->decoding, token, &text));
    stream_add(&c->stream, text.text, text.size);
    if ((int64_t)c->tokens.n == g->max_new_tokens)
        goto out;
    if (tt_generator_room(g->generator) == 0)
        c->finish = TT_FINISH_CONTEXT;
    else
        *ret_token = token;
out:
    tt_text_release(&text);
    return rc;
}

void tt_continuation_end(const struct tt_generation *g, struct tt_continuation *c)
{
    struct tt_text text = {0};

    if (g->tokenizer)
        tt_tokenizer_decode_end(g->tokenizer, &c->decoding, &text);
    stream_add(&c->stream, text.text, text.size);
    if (c->stream.held.size) /* an incomplete last character becomes U+FFFD */
        put(&c->stream, c->stream.held.size);
    tt_text_release(&c->stream.held);
    tt_text_release(&text);
}

int tt_generation_run(const struct tt_generation *g, int64_t s, struct tt_continuation *c)
{
    const float *logits = g->prompt_logits;
    double start = tt_clock_sec();
    int32_t token = -1;
    int rc = 0;

    tt_generator_rewind(g->generator, g->prompt_tokens);
    TT_TRY(tt_continuation_begin(g, c));
    TT_TRY(tt_continuation_take(g, s, logits, c, &token));
    while (token >= 0) {
        TT_TRY(tt_generator_feed(g->generator, &token, 1, &logits));
        TT_TRY(tt_continuation_take(g, s, logits, c, &token));
    }
    tt_continuation_end(g, c);
    c->seconds = tt_clock_sec() - start;
out:
    return rc;
}

void tt_continuation_release(struct tt_continuation *c)
{
    tt_ids_release(&c->tokens);
    tt_decoding_release(&c->decoding);
    tt_text_release(&c->stream.held);
    tt_text_release(&c->stream.text);
}
