/* SPDX-License-Identifier: MIT
 *
 * Continues many prompts, several at a time. When a text ends, the next prompt takes over its sequence, so that each
 * read of the weights serves as many texts as possible. Lines are written in the order of the prompts.
 */
#include <errno.h>
#include <string.h>

#include "cli/generate/generate.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "trainer/generation.h"

/* A text of a prompt, from 0 on: the samples of a prompt are one after the other. */
struct item {
    struct tt_continuation text;
    bool is_done;
};

struct run {
    struct tt_batch *batch;
    struct item *item;
    int64_t n, begun, written;
    int64_t *at; /* of each sequence: its item; -1: none */
    int32_t *token;
    bool *feeds;
};

static const struct tt_prompts_line *line_of(const struct run *r, int64_t item)
{
    return &r->batch->prompts->line[item / r->batch->samples];
}

static struct tt_generation generation_of(const struct run *r, int64_t item)
{
    const struct tt_batch *b = r->batch;
    const struct tt_prompts_line *line = line_of(r, item);

    return (struct tt_generation){.generator = b->generator,
                                  .picker = b->picker,
                                  .tokenizer = b->prompts->common.tokenizer,
                                  .prompt = line->ids.id,
                                  .prompt_tokens = (int64_t)line->ids.n,
                                  .max_new_tokens = b->max_new_tokens,
                                  .seed = b->seed,
                                  .stop = b->prompts->common.stop.id,
                                  .n_stop = b->ignore_eos ? 0 : (int)b->prompts->common.stop.n};
}

/* --- the lines --- */

static json_t *line_json(const struct run *r, int64_t i)
{
    const struct tt_prompts_line *line = line_of(r, i);
    const struct tt_continuation *c = &r->item[i].text;
    json_t *tokens = json_array();

    for (size_t k = 0; k < c->tokens.n; k++)
        (void)json_array_append_new(tokens, json_integer(c->tokens.id[k]));
    return json_pack("{s:O*, s:o, s:o*, s:o, s:o, s:I, s:s}", "id", line->id, "prompt",
                     line->text ? tt_json_string(line->text) : json_null(), "sample",
                     r->batch->samples > 1 ? json_integer((json_int_t)(i % r->batch->samples)) : NULL, "text",
                     r->batch->prompts->common.tokenizer
                         ? json_stringn(c->stream.text.text ? c->stream.text.text : "", c->stream.text.size)
                         : json_null(),
                     "tokens", tokens, "prompt_tokens", (json_int_t)line->ids.n, "finish", tt_finish_name(c->finish));
}

/* Writes the lines that are complete, up to the first that is not. */
static int write_lines(struct run *r)
{
    FILE *to = r->batch->to;

    for (; r->written < r->n && r->item[r->written].is_done; r->written++) {
        json_t *json = line_json(r, r->written);
        char *text = tt_json_text(json);

        (void)fputs(text, to);
        (void)fputc('\n', to);
        tt_free(text);
        json_decref(json);
        tt_continuation_release(&r->item[r->written].text);
    }
    (void)fflush(to);
    return ferror(to) ? tt_fail(TT_EIO, "cannot write the texts: %s", strerror(errno)) : 0;
}

/* --- the loop --- */

/* Takes the next token of a sequence, or ends its text. */
static int take(struct run *r, int64_t sequence, const float *logits)
{
    int64_t i = r->at[sequence];
    const struct tt_generation generation = generation_of(r, i);
    struct item *item = &r->item[i];
    int rc = 0;

    tt_generator_select(r->batch->generator, sequence);
    TT_TRY(tt_continuation_take(&generation, i % r->batch->samples, logits, &item->text, &r->token[sequence]));
    r->feeds[sequence] = r->token[sequence] >= 0;
    if (r->feeds[sequence])
        goto out;
    tt_continuation_end(&generation, &item->text);
    r->batch->new_tokens += (int64_t)item->text.tokens.n;
    item->is_done = true;
    r->at[sequence] = -1;
out:
    return rc;
}

/* Gives a free sequence prompts until one of them needs another token. */
static int refill(struct run *r, int64_t sequence)
{
    struct tt_batch *b = r->batch;
    int rc = 0;

    while (r->at[sequence] < 0 && r->begun < r->n) {
        const struct tt_generation generation = generation_of(r, r->begun);
        double start = tt_clock_sec();
        const float *logits;

        r->at[sequence] = r->begun++;
        tt_generator_select(b->generator, sequence);
        tt_generator_rewind(b->generator, 0);
        TT_TRY(tt_continuation_begin(&generation, &r->item[r->at[sequence]].text));
        TT_TRY(tt_generator_feed(b->generator, generation.prompt, generation.prompt_tokens, &logits));
        b->prompt_tokens += generation.prompt_tokens;
        b->prompt_sec += tt_clock_sec() - start;
        TT_TRY(take(r, sequence, logits));
    }
out:
    return rc;
}

static bool is_busy(const struct run *r)
{
    for (int64_t s = 0; s < r->batch->sequences; s++)
        if (r->feeds[s])
            return true;
    return false;
}

static int run_all(struct run *r)
{
    struct tt_batch *b = r->batch;
    int rc = 0;

    for (;;) {
        double start;
        const float *logits;

        for (int64_t s = 0; s < b->sequences; s++)
            TT_TRY(refill(r, s));
        TT_TRY(write_lines(r));
        if (!is_busy(r))
            break;
        tt_generator_select(b->generator, 0);
        start = tt_clock_sec();
        TT_TRY(tt_generator_step(b->generator, r->token, r->feeds, &logits));
        b->new_sec += tt_clock_sec() - start;
        for (int64_t s = 0; s < b->sequences; s++)
            if (r->feeds[s])
                TT_TRY(take(r, s, logits + s * b->vocab_size));
    }
out:
    return rc;
}

int tt_batch_run(struct tt_batch *batch)
{
    struct run r = {.batch = batch, .n = batch->prompts->n * batch->samples};
    size_t sequences = (size_t)batch->sequences;
    int rc;

    r.item = tt_calloc((size_t)r.n + 1, sizeof *r.item);
    r.at = tt_calloc(sequences, sizeof *r.at);
    r.token = tt_calloc(sequences, sizeof *r.token);
    r.feeds = tt_calloc(sequences, sizeof *r.feeds);
    for (size_t s = 0; s < sequences; s++)
        r.at[s] = -1;
    rc = run_all(&r);
    for (int64_t i = r.written; i < r.n; i++)
        tt_continuation_release(&r.item[i].text);
    tt_free(r.item);
    tt_free(r.at);
    tt_free(r.token);
    tt_free(r.feeds);
    return rc;
}
