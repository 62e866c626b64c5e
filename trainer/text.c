/* SPDX-License-Identifier: MIT
 *
 * Texts sampled while training: the prompt, and a generator for each of them.
 */
#include "trainer/text.h"

#include <inttypes.h>
#include <string.h>

#include "checkpoint/durable/patience.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/data/chat.h"
#include "core/os/file.h"
#include "parallel/engine/generator.h"

/* The defaults of `titan generate`. */
static const struct tt_sampling sampling = {.temperature = 0.8, .top_p = 0.95};
enum { SEED = 42 };

/* --- the prompt --- */

static int ask(struct tt_train_text *t)
{
    const char *question = t->prompt ? t->prompt : "Hello!";
    json_t *messages = json_array();
    struct tt_chat_ids found = {0};
    struct tt_chat *chat = NULL;
    int rc = 0;

    TT_TRY(tt_chat_new(t->tokenizer, t->setup->cfg->training.chat_template, &chat));
    TT_TRY(tt_chat_add(messages, "user", question, strlen(question)));
    TT_TRY(tt_chat_ask(chat, messages, &found));
    TT_TRY(tt_chat_end(chat, &t->stop));
    t->prompt = question;
    t->ids = found.ids;
    found.ids = (struct tt_ids){0};
out:
    json_decref(messages);
    tt_chat_ids_release(&found);
    tt_chat_free(chat);
    return rc;
}

/* Begins a document as in training: with BOS or, if training adds none, with the EOS of the previous document. The
 * user's text follows. */
static int begin_document(struct tt_train_text *t, const struct tt_train_data *data)
{
    const struct tt_token_info *info = &data->part[0].dataset->ref.info;
    int32_t eos = t->stop = t->tokenizer ? tt_tokenizer_info(t->tokenizer)->eos : info->eos;
    struct tt_encoder *encoder = NULL;
    int rc = 0;

    if (t->tokenizer)
        tt_tokenizer_begin(t->tokenizer, &t->ids);
    else if (info->bos >= 0)
        tt_ids_add(&t->ids, info->bos);
    if (!t->ids.n && eos >= 0 && !t->prompt)
        tt_ids_add(&t->ids, eos);
    if (t->prompt && !t->tokenizer)
        return tt_fail_key(TT_EUSAGE, TT_KEY(metrics.sample_prompt),
                           "the tokenizer of the data is not known, so it cannot encode a prompt\n"
                           "help: set model.hf_assets_path to the tokenizer's folder, or leave the prompt out");
    if (t->prompt)
        TT_TRY(tt_encoder_new(t->tokenizer, &encoder));
    if (t->prompt)
        TT_TRY(tt_encoder_encode(encoder, t->prompt, strlen(t->prompt), &t->ids));
    if (t->ids.n == 0)
        tt_ids_add(&t->ids, 0); /* nothing is known about the tokens */
out:
    tt_encoder_free(encoder);
    return rc;
}

int tt_train_text_tokenizer(const struct tt_setup *setup, const struct tt_train_data *data,
                            struct tt_tokenizer **ret_own, const struct tt_tokenizer **ret_tokenizer)
{
    const char *folder = setup->cfg->model.hf_assets_path;
    uint64_t made_by = data->part[0].dataset->ref.info.tokenizer_hash;
    struct tt_tokenizer *own = NULL;
    int rc = 0;

    *ret_tokenizer = data->tokenizer;
    if (!data->tokenizer)
        TT_TRY(tt_train_data_tokenizer(folder, &own));
    if (own && (made_by ? made_by == tt_tokenizer_info(own)->hash : folder != NULL))
        *ret_tokenizer = own;
    *ret_own = own;
out:
    return rc;
}

static int make_prompt(struct tt_train_text *t, const struct tt_train_data *data)
{
    const struct tt_config *cfg = t->setup->cfg;
    const struct tt_generator_options room = tt_job_sampling(cfg, &t->setup->job.engine);
    int64_t vocab = t->setup->job.model->dims.vocab_size;
    bool has_chats = false;
    int rc = 0;

    t->prompt = cfg->metrics.sample_prompt;
    TT_TRY(tt_train_text_tokenizer(t->setup, data, &t->own, &t->tokenizer));
    for (int i = 0; i < data->n; i++)
        has_chats = has_chats || data->part[i].dataset->ref.info.mask_at;
    /* conversations are written by the template that the run names, or by the tokenizer's */
    if (t->tokenizer && has_chats &&
        (strcmp(cfg->training.chat_template, "auto") != 0 || tt_tokenizer_info(t->tokenizer)->chat_template))
        TT_TRY(ask(t));
    else
        TT_TRY(begin_document(t, data));
    for (size_t i = 0; i < t->ids.n; i++)
        if (t->ids.id[i] >= vocab)
            return tt_fail_key(TT_EUSAGE, TT_KEY(metrics.sample_prompt),
                               "the tokenizer encodes it with token %" PRId32
                               ", but the model's vocabulary has %" PRId64,
                               t->ids.id[i], vocab);
    if ((int64_t)t->ids.n >= room.context)
        rc = tt_fail_key(TT_EUSAGE, TT_KEY(metrics.sample_prompt),
                         "the prompt has %zu tokens, but there is room for fewer than %" PRId64
                         "\nhelp: shorten the prompt",
                         t->ids.n, room.context);
out:
    return rc;
}

int tt_train_text_open(const struct tt_setup *setup, const struct tt_train_data *data, struct tt_train_text *ret_text)
{
    int rc = 0;

    *ret_text = (struct tt_train_text){.setup = setup, .stop = -1};
    if (setup->cfg->metrics.sample_freq && setup->comm->rank == 0)
        rc = make_prompt(ret_text, data);
    return tt_comm_agree(setup->comm, rc);
}

void tt_train_text_release(struct tt_train_text *t)
{
    tt_tokenizer_free(t->own);
    tt_ids_release(&t->ids);
    *t = (struct tt_train_text){.setup = NULL};
}

/* --- a text --- */

/* The arguments and the result of rank 0's work. */
struct sampling_run {
    const struct tt_train_text *text;
    struct tt_generator *generator;
    struct tt_continuation found;
};

static int generate(void *arg)
{
    struct sampling_run *r = arg;
    const struct tt_train_text *t = r->text;
    int64_t vocab = t->setup->job.model->dims.vocab_size;
    float *after_prompt = tt_calloc((size_t)vocab, sizeof *after_prompt);
    struct tt_generation generation = {.generator = r->generator,
                                       .picker = tt_picker_new(&sampling, vocab),
                                       .tokenizer = t->tokenizer,
                                       .prompt_logits = after_prompt,
                                       .prompt = t->ids.id,
                                       .prompt_tokens = (int64_t)t->ids.n,
                                       .max_new_tokens = t->setup->cfg->metrics.sample_tokens,
                                       .seed = SEED,
                                       .stop = &t->stop,
                                       .n_stop = t->stop >= 0};
    const float *logits = NULL;
    int rc = 0;

    TT_TRY(tt_generator_feed(r->generator, t->ids.id, (int64_t)t->ids.n, &logits));
    memcpy(after_prompt, logits, (size_t)vocab * sizeof *after_prompt);
    TT_TRY(tt_generation_run(&generation, 0, &r->found));
out:
    tt_picker_free(generation.picker);
    tt_free(after_prompt);
    return rc;
}

int tt_train_text_generator(const struct tt_setup *s, const struct tt_generator_options *options,
                            struct tt_generator **ret_generator)
{
    struct tt_comm *comm = s->comm;
    int rc = 0;

    if (comm->rank == 0)
        rc = tt_generator_new(options, ret_generator);
    if (comm->rank == 0 && rc == 0)
        rc = tt_generator_allocate(*ret_generator);
    TT_TRY(tt_comm_agree(comm, rc));
    /* exchanges the weights with their averages, sends them, and exchanges them back */
    if (s->cfg->ema.validate)
        tt_state_exchange_averages(tt_engine_state(s->engine), tt_engine_layout(s->engine));
    rc = tt_collect_weights(&s->job.engine, s->engine, comm, *ret_generator);
    if (s->cfg->ema.validate)
        tt_state_exchange_averages(tt_engine_state(s->engine), tt_engine_layout(s->engine));
out:
    return rc;
}

int tt_train_text_sample(const struct tt_train_text *t, int64_t step, struct tt_reporter *reporter)
{
    const struct tt_setup *s = t->setup;
    struct tt_comm *comm = s->comm;
    struct tt_patience patience = tt_patience_begin(comm, "a sampled text");
    struct tt_generator_options o = tt_job_sampling(s->cfg, &s->job.engine);
    int64_t n = (int64_t)t->ids.n, context = n + s->cfg->metrics.sample_tokens - 1;
    struct sampling_run r = {.text = t};
    double begin = tt_clock_sec();
    int rc = 0;

    /* the same rows and context as `titan generate`, so that the bits are the same */
    o.context = context < o.context ? context : o.context;
    o.prompt_rows = n < o.prompt_rows ? n : o.prompt_rows;
    rc = tt_train_text_generator(s, &o, &r.generator);
    if (rc == 0)
        rc = tt_patience_work(comm, comm->rank == 0, generate, &r);
    tt_patience_end(comm, &patience);
    if (rc == 0 && comm->rank == 0)
        tt_reporter_sampled(
            reporter, &(struct tt_metrics_sample){.step = step,
                                                  .prompt = t->prompt,
                                                  .text = r.found.stream.text.text ? r.found.stream.text.text : "",
                                                  .tokens = (int64_t)r.found.tokens.n,
                                                  .finish = tt_finish_name(r.found.finish),
                                                  .seconds = tt_clock_sec() - begin});
    if (rc == TT_EFIT || rc == TT_ENONFINITE || rc == TT_ENOMEM) {
        tt_warn("no text was sampled after step %" PRId64 ", training continues: %s", step, tt_error_message());
        rc = 0;
    }
    tt_continuation_release(&r.found);
    tt_generator_free(r.generator);
    return rc;
}
