/* SPDX-License-Identifier: MIT
 *
 * The choice of a model: for every depth, the rules give a run, and the plan and the predictor of `titan train` its
 * memory and its time. The deepest model wins for which the hours and the text suffice. The law of the ladder does not
 * choose: its runs are too short to tell how much a larger model gains.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cli/new/new.h"
#include "core/base/mem.h"
#include "core/config/config.h"
#include "trainer/job/predict.h"

enum { LEAST_STEPS = 100 };

const char *const tt_new_special[2] = {"<|begin_of_text|>", "<|end_of_text|>"};

/* --- the tokenizer --- */

static int vocabulary_index(int64_t vocab)
{
    int i = 0;

    while (TT_NEW_LEAST_VOCABULARY << i < vocab)
        i++;
    return i;
}

const struct tt_bpe_trained *tt_new_tokenizer(const struct tt_new_request *request, const struct tt_recipe *recipe)
{
    return &request->trained[vocabulary_index(recipe->vocab)];
}

/* Trains the tokenizer of a recipe, unless an earlier depth did. A small text has fewer words than the vocabulary has
 * room for; its model then has rows that nothing uses. */
static int find_tokenizer(struct tt_new_request *request, struct tt_recipe *r)
{
    struct tt_bpe_trained *trained = &request->trained[vocabulary_index(r->vocab)];
    int rc = 0;

    if (!trained->n_tokens)
        TT_TRY(tt_bpe_train(&request->text.words, r->vocab, 2, tt_new_special, trained));
    /* two more for each document: its beginning and its end */
    r->bytes_per_token = (double)request->text.bytes /
                         ((double)trained->text_tokens * (double)request->text.bytes / (double)trained->text_bytes +
                          2.0 * (double)request->text.documents);
out:
    return rc;
}

/* --- a recipe's plan --- */

/* Reads the recipe as the configuration of a run, and predicts the run. *ret_fits: whether a rank has the memory. */
static int predict(const struct tt_new_request *request, struct tt_recipe *r, bool *ret_fits)
{
    static const char *const planned[] = {"model.hf_assets_path=null", "parallelism.machine_file=null"};
    struct tt_config_input input = {.text_name = "config.yaml", .args = planned, .n_args = 2};
    struct tt_job job = {0};
    struct tt_job_prediction p = {0};
    struct tt_config *cfg = NULL;
    struct tt_engine *engine = NULL;
    struct tt_text text = {0};
    int64_t limit;
    int rc = 0;

    tt_new_config(request, r, &text);
    input.text = text.text;
    input.text_size = text.size;
    TT_TRY(tt_config_new(&cfg));
    TT_TRY(tt_config_read(cfg, &input));
    limit = tt_job_memory_limit(cfg, request->ranks);
    TT_TRY(tt_job_init(cfg, request->ranks, request->threads, limit, &job));
    job.engine.machine = request->machine;
    TT_TRY(tt_job_engine_alone(cfg, &job, 0, &engine));
    TT_TRY(tt_job_predict(&job, &request->machine, engine, 0, &p));
    r->step_sec = p.step_sec;
    r->peak_bytes = p.memory.total + job.staging_bytes;
    *ret_fits = r->peak_bytes <= limit;
out:
    tt_job_prediction_release(&p);
    tt_engine_free(engine);
    tt_job_release(&job);
    tt_config_free(cfg);
    tt_text_release(&text);
    return rc;
}

/* Predicts the run, with smaller microbatches if it does not fit. */
static int make_fit(const struct tt_new_request *request, struct tt_recipe *r, bool *ret_fits)
{
    int rc = 0;

    TT_TRY(predict(request, r, ret_fits));
    while (!*ret_fits && r->local_batch % 2 == 0) {
        r->local_batch /= 2;
        TT_TRY(predict(request, r, ret_fits));
    }
out:
    return rc;
}

/* --- a depth --- */

static double tokens_of(const struct tt_recipe *r)
{
    return (double)r->steps * (double)(r->batch * r->seq_len);
}

/* The tokens that the user asked for; or what the hours or the rule give, in at most tt_rule_epochs passes. */
static double wanted_tokens(const struct tt_new_request *request, struct tt_recipe *r)
{
    double most = tt_rule_epochs * (1.0 - r->split) * (double)request->text.bytes / r->bytes_per_token, wanted;

    if (request->tokens > 0.0)
        return request->tokens;
    wanted = request->hours > 0.0
                 ? request->hours * 3600.0 * (1.0 - tt_rule_overhead) / r->step_sec * (double)(r->batch * r->seq_len)
                 : tt_rule_tokens(r);
    r->is_repeated_out = wanted > most;
    return fmin(wanted, most);
}

/* The whole recipe of a depth. Batch and tokens depend on each other, so a few rounds settle them. */
static int make_recipe(struct tt_new_request *request, int64_t depth, struct tt_recipe *ret_recipe, bool *ret_fits)
{
    enum { ROUNDS = 4 };
    struct tt_recipe r = {.step_sec = 1.0, .steps = 1};
    double tokens;
    int rc = 0;

    tt_rule_shape(depth, &r);
    TT_TRY(find_tokenizer(request, &r));
    tokens = request->tokens > 0.0 ? request->tokens : tt_rule_tokens(&r);
    for (int round = 0; round < ROUNDS; round++) {
        int64_t batch = r.batch;

        tt_rule_batch(tokens, request->ranks, &r);
        tt_rule_rest(request->text.documents, request->text.bytes, &r);
        if (r.batch != batch) /* the time of a step is that of its batch */
            TT_TRY(make_fit(request, &r, ret_fits));
        if (!*ret_fits)
            break;
        tokens = wanted_tokens(request, &r);
        r.steps = (int64_t)fmax(1.0, tokens / (double)(r.batch * r.seq_len));
    }
    tt_rule_batch(tokens_of(&r), request->ranks, &r);
    r.steps = (int64_t)fmax(1.0, tokens / (double)(r.batch * r.seq_len));
    if (*ret_fits)
        TT_TRY(make_fit(request, &r, ret_fits));
    tt_rule_rest(request->text.documents, request->text.bytes, &r);
    r.run_sec = (double)r.steps * r.step_sec / (1.0 - tt_rule_overhead);
    tt_rule_loss(request->use, (1.0 - r.split) * (double)request->text.bytes, &r);
    *ret_recipe = r;
out:
    return rc;
}

/* --- the search --- */

/* Whether a run reads enough for its depth: the tokens that the rule wants for its parameters, or all passes through
 * the text; and whether the text is large enough. */
static bool is_fed(const struct tt_new_request *request, const struct tt_recipe *r)
{
    return (tokens_of(r) >= tt_rule_tokens(r) || r->is_repeated_out) && r->steps >= LEAST_STEPS &&
           (double)r->multiplying <= tt_rule_parameters((double)request->text.bytes / r->bytes_per_token);
}

/* The deepest model that is fed and fits; the smallest one even if it is not fed. */
static int search(struct tt_new_request *request, struct tt_recipe *ret_recipe, bool *ret_fits)
{
    int rc = 0;

    TT_TRY(make_recipe(request, TT_NEW_LEAST_DEPTH, ret_recipe, ret_fits));
    for (int64_t depth = TT_NEW_LEAST_DEPTH + 1; *ret_fits && depth <= TT_NEW_MOST_DEPTH; depth++) {
        struct tt_recipe r;
        bool fits = false;

        tt_progress("trying depths", (double)depth, 0.0);
        TT_TRY(make_recipe(request, depth, &r, &fits));
        if (!fits || !is_fed(request, &r))
            break;
        *ret_recipe = r;
    }
out:
    return rc;
}

int tt_new_plan(struct tt_new_request *request, struct tt_recipe *ret_recipe)
{
    struct tt_recipe r = {.depth = request->depth};
    char need[32];
    bool fits = false;
    int rc = 0;

    TT_TRY(request->depth ? make_recipe(request, request->depth, &r, &fits) : search(request, &r, &fits));
    if (!fits)
        return tt_fail(TT_EFIT,
                       "a model of depth %" PRId64 " needs %s for each of %d ranks, more than this machine has\n"
                       "help: a smaller --depth, fewer --ranks",
                       r.depth, tt_text_bytes(need, sizeof need, (double)r.peak_bytes), request->ranks);
    if (r.steps < LEAST_STEPS)
        return request->hours > 0.0 && !r.is_repeated_out
                   ? tt_fail(TT_EUSAGE,
                             "--hours %g is time for %" PRId64 " steps of a model of depth %" PRId64
                             ", too few to learn from\nhelp: at least --hours %.2g%s",
                             request->hours, r.steps, r.depth, 1.1 * LEAST_STEPS * request->hours / (double)r.steps,
                             request->depth > TT_NEW_LEAST_DEPTH ? ", or a smaller --depth" : "")
                   : tt_fail(TT_EDATA,
                             "the text has %" PRId64 " bytes, and the run would make %" PRId64
                             " steps, too few to learn from\nhelp: more text%s",
                             request->text.bytes, r.steps, request->tokens > 0.0 ? ", or more --tokens" : "");
    *ret_recipe = r;
out:
    return rc;
}
