/* SPDX-License-Identifier: MIT
 *
 * The rules of `titan new`. Each one names its source, and the range in which that measured it; outside of this range
 * it is a guess. The ladder (ladder.def, tests/bench/ladder.py) tests the rules for small models on this program.
 *
 *   Kaplan et al. 2020      Scaling laws for neural language models
 *   Hoffmann et al. 2022    Training compute-optimal large language models
 *   Muennighoff et al. 2023 Scaling data-constrained language models
 *   DeepSeek-AI 2024        DeepSeek LLM: scaling open-source language models with longtermism
 *   Tao et al. 2024         Scaling laws with vocabulary: larger models deserve larger vocabularies
 *   Li et al. 2025          Predictable scale, part I: step law
 *   Lingle                  Scaling laws for optimal LR and batch size, a series on the web
 *   Bergsma et al. 2025     Straight to zero: why linearly decaying the learning rate to zero works best for LLMs
 */
#include <math.h>

#include "cli/new/new.h"
#include "core/math/round.h"

/* --- the model --- */

/* The vocabulary grows more slowly than the rest of the model: 3.3M (blocks / 33M)^0.83 parameters, with `blocks` the
 * parameters of the blocks (Tao et al. 2024; 33M to 3B parameters). It is rounded to a power of two, so that a few
 * tokenizers suffice for all depths. */
static int64_t vocabulary(double blocks, int64_t dim)
{
    double rows = 3.3e6 * pow(blocks / 33e6, 0.83) / (double)dim;
    int64_t vocab = TT_NEW_LEAST_VOCABULARY;

    while ((double)vocab * sqrt(2.0) < rows && vocab < TT_NEW_LEAST_VOCABULARY << (TT_NEW_VOCABULARIES - 1))
        vocab *= 2;
    return vocab;
}

/*
 * Llama's block, with 64 of width for each layer. At a given number of parameters the loss hardly depends on this ratio
 * (Kaplan et al. 2020: 3 % over a factor of 40, at 50M and 1.5B). Heads have a width of 64. The feed-forward layer has
 * 8/3 of the width, so that its three matrices are as large as GPT-2's two (Shazeer 2020). Longer sequences cost more
 * attention, and a small model makes little use of them: 512 tokens up to 7 layers, then 1024.
 */
void tt_rule_shape(int64_t depth, struct tt_recipe *r)
{
    enum { HEAD = 64, DEEP = 8 };
    int64_t block;

    r->depth = r->heads = depth;
    r->dim = HEAD * depth;
    r->ffn_dim = tt_round_up(tt_div_up(8 * r->dim, 3), HEAD);
    block = 4 * r->dim * r->dim + 3 * r->dim * r->ffn_dim + 2 * r->dim;
    r->vocab = vocabulary((double)(depth * block), r->dim);
    r->multiplying = depth * block + r->dim + r->vocab * r->dim;
    r->parameters = r->multiplying + r->vocab * r->dim;
    r->seq_len = depth < DEEP ? 512 : 1024;
}

/* --- the data --- */

/* With a limited text, parameters beyond the number that suits one pass through it count less and less. At 16 times
 * this number they have 95 % of the effect that any number has (Muennighoff et al. 2023, R*_N = 5.31). */
double tt_rule_parameters(double text_tokens)
{
    return 16.0 * text_tokens / 20.0;
}

/* 20 tokens for each parameter are best if compute is the limit (Hoffmann et al. 2022; 70M to 16B parameters). */
double tt_rule_tokens(const struct tt_recipe *r)
{
    return 20.0 * (double)r->multiplying;
}

/* Four passes through a text teach almost as much as four times the text (Muennighoff et al. 2023; up to 9B parameters
 * and 1,500 passes). */
const double tt_rule_epochs = 4.0;

/* The value of several passes through a text, in bytes of fresh text: later passes count less and less
 * (Muennighoff et al. 2023, equation 5 with R* = 15.39). */
static double worth(double bytes, double epochs)
{
    static const double half_life = 15.39;
    double again = epochs - 1.0;

    return again <= 0.0 ? bytes * epochs : bytes * (1.0 + half_life * (1.0 - exp(-again / half_life)));
}

/* --- the optimizer --- */

/*
 * The best batch grows with the tokens: 0.58 D^0.571 tokens (Li et al. 2025; 2B to 100B tokens). DeepSeek-AI 2024 use
 * 0.2920 C^0.3271, which is more for small models: it cost one of 3.7M parameters 0.18 nats per byte (BENCHMARKS.md).
 *
 * The best learning rate falls with the parameters. Published laws differ by a factor of 2 and more for small models:
 * at 0.7M to 4M parameters the ladder's sweep found rates 1.2 to 2 times those of Li et al. (60M parameters and more),
 * and others than DeepSeek-AI's too. This power law goes near the three rates of the sweep and the 0.00195 that Lingle
 * found for 46M parameters and 128M tokens.
 *
 * Batches are powers of two, so that all layouts of a power of two give the same bits. A microbatch has at most 8,192
 * tokens: more need memory and are hardly faster.
 */
void tt_rule_batch(double tokens, int ranks, struct tt_recipe *r)
{
    enum { MICROBATCH = 8192 };
    r->batch = (int64_t)exp2(fmax(0.0, round(log2(0.58 * pow(tokens, 0.571) / (double)r->seq_len))));
    r->batch = tt_round_up(r->batch, ranks);
    r->local_batch = r->batch / ranks;
    while (r->local_batch % 2 == 0 && r->local_batch * r->seq_len > MICROBATCH)
        r->local_batch /= 2;
    r->lr = 3.7 * pow((double)r->multiplying, -0.52) * pow(tokens, 0.085);
}

/* --- the run --- */

const double tt_rule_overhead = 0.05;

/*
 * The learning rate rises in the first 5 % of the steps, as in the ladder, then falls to 0 in a line (Bergsma et al.
 * 2025; 111M to 1.7B parameters). Validation gets about a megabyte of text, between 0.5 % and 10 % of it: as much as
 * 20 validations can read in 2 % of the time, since a token takes a third of the time that it takes in training. A hash
 * chooses the documents, so the share is large enough for 8 on average; a text of fewer than 40 has no validation. A
 * checkpoint every ten minutes: so much is lost if the machine goes down.
 */
void tt_rule_rest(int64_t documents, int64_t bytes, struct tt_recipe *r)
{
    enum { VALIDATIONS = 20, SAVE_SEC = 600, DOCUMENTS = 8 };
    double tokens = (double)(r->steps * r->batch * r->seq_len), read = 0.02 * 3.0 * tokens / VALIDATIONS;
    double share = fmax(fmin(0.1, fmax(0.005, 1e6 / (double)bytes)), DOCUMENTS / (double)documents);

    r->warmup = r->steps / 20;
    r->split = share <= 0.2 ? share : 0.0;
    r->validation_batches = (int64_t)fmax(1.0, read / (double)(TT_NEW_VALIDATION_BATCH * r->seq_len));
    r->validate_every = r->steps < VALIDATIONS ? r->steps : r->steps / VALIDATIONS;
    r->save_every = (int64_t)fmax(1.0, fmin((double)r->steps, SAVE_SEC / r->step_sec));
    r->epochs = tokens * r->bytes_per_token / ((1.0 - r->split) * (double)bytes);
}

/* --- the loss --- */

static const struct law {
    double e, a, alpha, b, beta;                /* e + (a / N)^alpha + (b / D)^beta */
    double low[TT_NEW_USES], high[TT_NEW_USES]; /* factors of the texts of the ladder */
} laws[] = {
#define TT_LADDER_LAW(...) {__VA_ARGS__},
#include "cli/new/ladder.def"
};

static const struct rung {
    int64_t n, d;
} rungs[] = {
#define TT_LADDER_RUN(role, text, depth, vocab, tokens, batch, lr, n, d, loss) {n, d},
#include "cli/new/ladder.def"
};

static double loss_of(const struct law *law, const struct tt_recipe *r, double bytes)
{
    return law->e + pow(law->a / (double)r->multiplying, law->alpha) + pow(law->b / bytes, law->beta);
}

/* The first law is fitted to all runs; each of the others leaves one of them out. So their range shows how little the
 * runs say about larger ones. */
void tt_rule_loss(enum tt_new_use use, double bytes, struct tt_recipe *r)
{
    double fresh = worth(bytes, r->epochs), most_n = 0.0, most_d = 0.0;

    r->low = (double)INFINITY;
    r->high = 0.0;
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++) {
        double loss = loss_of(&laws[i], r, fresh);

        r->low = fmin(r->low, loss * laws[i].low[use]);
        r->high = fmax(r->high, loss * laws[i].high[use]);
    }
    r->loss = loss_of(&laws[0], r, fresh) * sqrt(laws[0].low[use] * laws[0].high[use]);
    for (size_t i = 0; i < sizeof rungs / sizeof *rungs; i++) {
        most_n = fmax(most_n, (double)rungs[i].n);
        most_d = fmax(most_d, (double)rungs[i].d);
    }
    r->is_beyond = (double)r->multiplying > most_n || fresh > most_d;
}
