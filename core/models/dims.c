/* SPDX-License-Identifier: MIT
 *
 * The sizes of a model: overrides over a flavor's, sizes that follow from others, and the checks that make every later
 * division and product safe. Messages name the configuration keys.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/base/text.h"
#include "core/models/parts/lora.h"
#include "core/models/rows.h"

/* Bounds that keep every count within 63 bits; far above any existing model. */
enum { MAX_DIM = 1 << 22, MAX_EXPERTS = 1 << 14, MAX_GROUPS = 64 };

static void override_int(int64_t *value, int64_t with)
{
    if (with != 0)
        *value = with;
}

static void override_real(double *value, double with)
{
    if (with != 0.0)
        *value = with;
}

void tt_model_dims_override(struct tt_model_dims *dims, const struct tt_model_dims *with)
{
    override_int(&dims->dim, with->dim);
    override_int(&dims->n_layers, with->n_layers);
    override_int(&dims->n_heads, with->n_heads);
    override_int(&dims->n_kv_heads, with->n_kv_heads);
    override_int(&dims->head_dim, with->head_dim);
    override_int(&dims->ffn_dim, with->ffn_dim);
    override_int(&dims->vocab_size, with->vocab_size);
    if (with->norm_eps != 0.0F)
        dims->norm_eps = with->norm_eps;
    override_int(&dims->max_positions, with->max_positions);
    override_real(&dims->rope.theta, with->rope.theta);
    override_real(&dims->rope.factor, with->rope.factor);
    override_real(&dims->rope.low_freq_factor, with->rope.low_freq_factor);
    override_real(&dims->rope.high_freq_factor, with->rope.high_freq_factor);
    override_real(&dims->rope.original_max, with->rope.original_max);
    override_real(&dims->rope.beta_fast, with->rope.beta_fast);
    override_real(&dims->rope.beta_slow, with->rope.beta_slow);
    override_real(&dims->rope.mscale, with->rope.mscale);
    override_real(&dims->rope.mscale_all_dim, with->rope.mscale_all_dim);
    dims->rope.linear = dims->rope.linear || with->rope.linear;
    dims->rope.dynamic = dims->rope.dynamic || with->rope.dynamic;
    dims->rope.fractional = dims->rope.fractional || with->rope.fractional;
    override_int(&dims->sliding_window, with->sliding_window);
    override_int(&dims->window_from, with->window_from);
    override_int(&dims->mla.kv_rank, with->mla.kv_rank);
    override_int(&dims->mla.q_rank, with->mla.q_rank);
    override_int(&dims->mla.rope_dim, with->mla.rope_dim);
    override_int(&dims->mla.value_dim, with->mla.value_dim);
    override_int(&dims->moe.shared, with->moe.shared);
    override_int(&dims->moe.experts, with->moe.experts);
    override_int(&dims->moe.top_k, with->moe.top_k);
    override_int(&dims->moe.ffn_dim, with->moe.ffn_dim);
    override_int(&dims->moe.dense_layers, with->moe.dense_layers);
    override_int(&dims->moe.dense_set, with->moe.dense_set);
    override_int(&dims->moe.groups, with->moe.groups);
    override_int(&dims->moe.kept_groups, with->moe.kept_groups);
    override_real(&dims->moe.route_scale, with->moe.route_scale);
    if (with->moe.score != TT_SCORE_SOFTMAX)
        dims->moe.score = with->moe.score;
    if (with->moe.group_rule != TT_GROUP_BEST)
        dims->moe.group_rule = with->moe.group_rule;
    dims->moe.gates_as_scored = dims->moe.gates_as_scored || with->moe.gates_as_scored;
    dims->moe.biased = dims->moe.biased || with->moe.biased;
    dims->moe.balanced = dims->moe.balanced || with->moe.balanced;
    if (with->tied >= 0)
        dims->tied = with->tied;
    if (with->lora.rank)
        dims->lora = with->lora;
}

int64_t tt_model_dense_layers(const struct tt_model_dims *dims)
{
    int64_t n = 0;

    for (int64_t l = 0; l < dims->n_layers; l++)
        n += dims->moe.experts > 0 && !tt_model_has_experts(dims, l);
    return n;
}

/* --- what is wrong with sizes --- */

/* Receives the faults, and notes whether there were any. */
struct check {
    tt_model_fault_fn fault;
    void *arg;
    bool failed;
};

/* The keys that a fault is about; TT_KEY_NONE ends the list. */
#define ABOUT(...) ((const enum tt_key[]){__VA_ARGS__, TT_KEY_NONE})

static void TT_PRINTF(3, 4) fault(struct check *c, const enum tt_key *keys, const char *fmt, ...)
{
    char message[512];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    c->failed = true;
    c->fault(c->arg, keys, message);
}

static bool check_range(struct check *c, enum tt_key key, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high)
        return true;
    fault(c, ABOUT(key), "%s is %lld; it must lie in %lld..%lld", tt_key_name(key), (long long)value, (long long)low,
          (long long)high);
    return false;
}

static void check_positions(struct check *c, int64_t positions, int64_t least)
{
    if (positions < least || positions > INT32_MAX)
        fault(c, ABOUT(TT_KEY_MAX_POSITIONS, TT_KEY_MODEL_FOLDER, TT_KEY_FLAVOR),
              "max_position_embeddings is %lld; it must lie in %lld..%lld", (long long)positions, (long long)least,
              (long long)INT32_MAX);
}

static void check_not_llamas(struct check *c, const struct tt_rope *rope, const char *type)
{
    if (rope->low_freq_factor != 0.0 || rope->high_freq_factor != 0.0)
        fault(c, ABOUT(TT_KEY_ROPE_LOW, TT_KEY_ROPE_HIGH),
              "%s: low_freq_factor and high_freq_factor are of Llama 3.1's scaling, and the model has %s",
              tt_key_name(TT_KEY_ROPE_SCALING), type);
}

/* YaRN's own numbers, which are not keys. Both betas of Kimi-K2 are 1. */
static void check_yarn(struct check *c, const struct tt_rope *rope)
{
    const enum tt_key *about = ABOUT(TT_KEY_MODEL_FOLDER, TT_KEY_FLAVOR);

    check_not_llamas(c, rope, "YaRN's");
    if (!(rope->beta_slow > 0.0) || !(rope->beta_fast >= rope->beta_slow) || !isfinite(rope->beta_fast))
        fault(c, about, "YaRN's beta_fast %g and beta_slow %g must be positive, the slow one not above the fast one",
              rope->beta_fast, rope->beta_slow);
    if (!isfinite(rope->mscale) || !isfinite(rope->mscale_all_dim) || rope->mscale < 0.0 || rope->mscale_all_dim < 0.0)
        fault(c, about, "YaRN's mscale %g and mscale_all_dim %g must not be negative", rope->mscale,
              rope->mscale_all_dim);
    if (!(rope->theta > 1.0))
        fault(c, ABOUT(TT_KEY_ROPE_THETA), "%s is %g; YaRN needs more than 1", tt_key_name(TT_KEY_ROPE_THETA),
              rope->theta);
}

/* The first training's length of `dynamic` is max_position_embeddings itself. */
static void check_dynamic(struct check *c, const struct tt_model_dims *d)
{
    check_not_llamas(c, &d->rope, "rope_type dynamic");
    if (d->rope.original_max != (double)d->max_positions)
        fault(c, ABOUT(TT_KEY_ROPE_ORIGINAL_MAX, TT_KEY_MODEL_FOLDER),
              "%s is %g; with rope_type dynamic it is max_position_embeddings, which is %lld",
              tt_key_name(TT_KEY_ROPE_ORIGINAL_MAX), d->rope.original_max, (long long)d->max_positions);
}

static void check_scaling(struct check *c, const struct tt_model_dims *d)
{
    const struct tt_rope *rope = &d->rope;

    if (rope->factor == 0.0 || (rope->factor == 1.0 && !rope->dynamic))
        return;
    if (rope->dynamic)
        check_dynamic(c, d);
    else if (rope->linear)
        check_not_llamas(c, rope, "rope_type linear");
    else if (rope->beta_fast > 0.0)
        check_yarn(c, rope);
    else if (!(rope->low_freq_factor > 0.0) || !(rope->high_freq_factor > rope->low_freq_factor) ||
             !isfinite(rope->high_freq_factor))
        fault(c, ABOUT(TT_KEY_ROPE_LOW, TT_KEY_ROPE_HIGH, TT_KEY_ROPE_FACTOR),
              "%s: low_freq_factor %g and high_freq_factor %g must be positive, low below high\nhelp: "
              "Llama 3.1 has low_freq_factor 1, high_freq_factor 4",
              tt_key_name(TT_KEY_ROPE_SCALING), rope->low_freq_factor, rope->high_freq_factor);
    if (!(rope->factor >= 1.0) || !isfinite(rope->factor))
        fault(c, ABOUT(TT_KEY_ROPE_FACTOR), "%s is %g; it must be at least 1 (1: no scaling)",
              tt_key_name(TT_KEY_ROPE_FACTOR), rope->factor);
    if ((!(rope->original_max >= 1.0) || !isfinite(rope->original_max)) && !rope->linear)
        fault(c, ABOUT(TT_KEY_ROPE_ORIGINAL_MAX, TT_KEY_ROPE_FACTOR),
              "%s is %g; it must be the sequence length of the first training\nhelp: "
              "Llama 3.1 has 8192",
              tt_key_name(TT_KEY_ROPE_ORIGINAL_MAX), rope->original_max);
}

/* GPT-2's attention: one key and value head for each query head, heads that fill the width, no RoPE. */
static void check_learned(struct check *c, const struct tt_model_row *row, const struct tt_model_dims *d)
{
    if (d->rope.theta != 0.0 || d->rope.factor != 0.0)
        fault(c, ABOUT(TT_KEY_ROPE_THETA, TT_KEY_ROPE_FACTOR),
              "%s and %s have no meaning for %s: its positions are learned", tt_key_name(TT_KEY_ROPE_THETA),
              tt_key_name(TT_KEY_ROPE_SCALING), row->name);
    if (d->n_kv_heads != d->n_heads)
        fault(c, ABOUT(TT_KEY_N_KV_HEADS, TT_KEY_N_HEADS), "%s is %lld; %s has as many as query heads (%lld)",
              tt_key_name(TT_KEY_N_KV_HEADS), (long long)d->n_kv_heads, row->name, (long long)d->n_heads);
    if (d->head_dim > 0 && d->head_dim * d->n_heads != d->dim)
        fault(c, ABOUT(TT_KEY_HEAD_DIM, TT_KEY_DIM, TT_KEY_N_HEADS), "%s is %lld; %s has %s %lld / %s %lld",
              tt_key_name(TT_KEY_HEAD_DIM), (long long)d->head_dim, row->name, tt_key_name(TT_KEY_DIM),
              (long long)d->dim, tt_key_name(TT_KEY_N_HEADS), (long long)d->n_heads);
    check_positions(c, d->max_positions, 1);
}

static void check_rotated(struct check *c, struct tt_model_dims *d)
{
    if (!d->mla.kv_rank && d->head_dim % 2 != 0)
        fault(c, ABOUT(TT_KEY_HEAD_DIM, TT_KEY_DIM, TT_KEY_N_HEADS),
              "the head dimension %lld is odd; RoPE rotates pairs\nhelp: change %s, or %s %lld / %s %lld",
              (long long)d->head_dim, tt_key_name(TT_KEY_HEAD_DIM), tt_key_name(TT_KEY_DIM), (long long)d->dim,
              tt_key_name(TT_KEY_N_HEADS), (long long)d->n_heads);
    check_positions(c, d->max_positions, 0);
    if (!(d->rope.theta > 0.0) || !isfinite(d->rope.theta))
        fault(c, ABOUT(TT_KEY_ROPE_THETA), "%s is %g; it must be positive", tt_key_name(TT_KEY_ROPE_THETA),
              d->rope.theta);
    check_scaling(c, d);
    if (d->rope.factor == 1.0 && !d->rope.dynamic)
        d->rope = (struct tt_rope){.theta = d->rope.theta};
}

/* Checks that heads divide the sizes, and sets the sizes that follow from them. All divisors are known to be
 * positive. */
static void check_heads(struct check *c, struct tt_model_dims *d)
{
    if (d->n_kv_heads == 0)
        d->n_kv_heads = d->n_heads;
    if (check_range(c, TT_KEY_N_KV_HEADS, d->n_kv_heads, 1, d->n_heads) && d->n_heads % d->n_kv_heads != 0) {
        struct tt_text divisors = {0};

        tt_text_add_divisors(&divisors, d->n_heads);
        fault(c, ABOUT(TT_KEY_N_HEADS, TT_KEY_N_KV_HEADS), "%s %lld is not a multiple of %s %lld\nhelp: set %s to %s",
              tt_key_name(TT_KEY_N_HEADS), (long long)d->n_heads, tt_key_name(TT_KEY_N_KV_HEADS),
              (long long)d->n_kv_heads, tt_key_name(TT_KEY_N_KV_HEADS), divisors.text);
        tt_text_release(&divisors);
    }
    if (d->head_dim == 0 && d->dim % d->n_heads != 0) {
        fault(c, ABOUT(TT_KEY_N_HEADS, TT_KEY_DIM),
              "%s %lld is not a multiple of %s %lld\nhelp: set %s too, for instance to %lld", tt_key_name(TT_KEY_DIM),
              (long long)d->dim, tt_key_name(TT_KEY_N_HEADS), (long long)d->n_heads, tt_key_name(TT_KEY_HEAD_DIM),
              (long long)(d->dim / d->n_heads / 2 * 2 + 2));
        return;
    }
    if (d->head_dim == 0)
        d->head_dim = d->dim / d->n_heads;
    if (check_range(c, TT_KEY_HEAD_DIM, d->head_dim, 1, MAX_DIM) && d->n_heads * d->head_dim > MAX_DIM)
        fault(c, ABOUT(TT_KEY_N_HEADS, TT_KEY_HEAD_DIM), "%s * head_dim is %lld; it must lie in 1..%d",
              tt_key_name(TT_KEY_N_HEADS), (long long)(d->n_heads * d->head_dim), MAX_DIM);
}

/* Groups of experts: of two at least, since two best experts may speak for a group; and room for a token's experts. */
static void check_groups(struct check *c, const struct tt_moe *moe)
{
    const enum tt_key *about = ABOUT(TT_KEY_MODEL_FOLDER, TT_KEY_FLAVOR);
    long long groups = moe->groups, kept = moe->kept_groups, experts = moe->experts, each;

    if (groups == 0 || groups == 1)
        return;
    if (groups < 0 || groups > MAX_GROUPS) {
        fault(c, about,
              "experts are in %lld groups; there must be 1..%d\nhelp: correct n_group in the model's config.json",
              groups, MAX_GROUPS);
        return;
    }
    if (experts % groups != 0 || experts / groups < 2) {
        fault(c, about,
              "%lld experts do not divide into %lld groups of two or more\nhelp: correct n_group or n_routed_experts "
              "in the model's config.json; n_group 1 means no groups",
              experts, groups);
        return;
    }
    each = experts / groups;
    if (kept < 1 || kept > groups)
        fault(c, about,
              "a token's experts are in %lld of %lld groups; there must be 1..%lld\nhelp: correct topk_group in "
              "the model's config.json",
              kept, groups, groups);
    else if (moe->top_k > kept * each)
        fault(c, about,
              "%lld experts for each token, and %lld groups of %lld experts have %lld\nhelp: correct "
              "num_experts_per_tok or topk_group in the model's config.json",
              (long long)moe->top_k, kept, each, kept * each);
}

/* Not keys of titan's, but for the last two: they come from a flavor or from the folder of the model. */
static void check_experts(struct check *c, const struct tt_model_row *row, struct tt_model_dims *d)
{
    const enum tt_key *about = ABOUT(TT_KEY_MODEL_FOLDER, TT_KEY_FLAVOR);
    struct tt_moe *moe = &d->moe;

    if (moe->biased && !moe->experts)
        fault(c, ABOUT(TT_KEY_BALANCE_COEFF, TT_KEY_MODEL, TT_KEY_FLAVOR), "%s is for models with experts",
              tt_key_name(TT_KEY_BALANCE_COEFF));
    if (moe->balanced && !moe->experts)
        fault(c, ABOUT(TT_KEY_BALANCED_EXPERTS, TT_KEY_MODEL, TT_KEY_FLAVOR), "%s is for models with experts",
              tt_key_name(TT_KEY_BALANCED_EXPERTS));
    if (!moe->experts)
        return;
    if (moe->ffn_dim == 0)
        moe->ffn_dim = d->ffn_dim;
    if (moe->experts < 1 || moe->experts > MAX_EXPERTS)
        fault(c, about,
              "the model has %lld experts; there must be 1..%d\nhelp: correct the number of experts in the "
              "model's config.json",
              (long long)moe->experts, MAX_EXPERTS);
    if (moe->top_k < 1 || moe->top_k > moe->experts)
        fault(c, about,
              "%lld experts for each token, of %lld; there must be 1..%lld\nhelp: correct num_experts_per_tok "
              "or the number of experts in the model's config.json",
              (long long)moe->top_k, (long long)moe->experts, (long long)moe->experts);
    else
        check_groups(c, moe);
    if (!(moe->route_scale >= 0.0) || !isfinite(moe->route_scale))
        fault(c, about, "the gates of experts are multiplied by %g; it must be positive", moe->route_scale);
    if (moe->ffn_dim < 1 || moe->ffn_dim > MAX_DIM)
        fault(c, about, "experts are %lld wide; their width must lie in 1..%d", (long long)moe->ffn_dim, MAX_DIM);
    if (moe->shared < 0 || moe->shared * moe->ffn_dim > MAX_DIM)
        fault(c, about, "%lld shared experts of width %lld; they must have at most %d in all", (long long)moe->shared,
              (long long)moe->ffn_dim, MAX_DIM);
    if (moe->dense_layers < 0 || moe->dense_layers > d->n_layers)
        fault(c, about, "%lld layers without experts, of %lld layers", (long long)moe->dense_layers,
              (long long)d->n_layers);
    if (moe->dense_set < 0 || moe->dense_set >> TT_DENSE_BITS)
        fault(c, about, "a layer without experts is not among the first %d layers", TT_DENSE_BITS);
    if (row->adaptable && d->lora.rank &&
        d->lora.modules & (tt_lora_module("gate_proj") | tt_lora_module("up_proj") | tt_lora_module("down_proj")))
        fault(
            c, ABOUT(TT_KEY_LORA_MODULES, TT_KEY_LORA_RANK),
            "%s has gate_proj, up_proj or down_proj, and experts have no adapters\nhelp: choose among q_proj, k_proj, "
            "v_proj and o_proj",
            tt_key_name(TT_KEY_LORA_MODULES));
}

/* Not keys of titan's, but for the heads: they come from a flavor or from the folder of the model. */
static void check_mla(struct check *c, const struct tt_model_dims *d)
{
    const enum tt_key *about = ABOUT(TT_KEY_MODEL_FOLDER, TT_KEY_FLAVOR);
    const struct tt_mla *mla = &d->mla;

    if (!mla->kv_rank)
        return;
    if (mla->kv_rank < 1 || mla->kv_rank > MAX_DIM || mla->q_rank < 0 || mla->q_rank > MAX_DIM)
        fault(c, about, "the latents of attention have %lld (keys and values) and %lld (queries) elements; at most %d",
              (long long)mla->kv_rank, (long long)mla->q_rank, MAX_DIM);
    if (mla->rope_dim < 2 || mla->rope_dim % 2 != 0 || mla->rope_dim >= d->head_dim)
        fault(c, ABOUT(TT_KEY_HEAD_DIM, TT_KEY_MODEL_FOLDER, TT_KEY_FLAVOR),
              "%lld elements of each head are rotated, of %lld (%s); they must be even, and fewer",
              (long long)mla->rope_dim, (long long)d->head_dim, tt_key_name(TT_KEY_HEAD_DIM));
    if (mla->value_dim < 1 || mla->value_dim > MAX_DIM || d->n_heads * mla->value_dim > MAX_DIM)
        fault(c, about, "%lld heads of values of %lld elements; they must have 1..%d in all", (long long)d->n_heads,
              (long long)mla->value_dim, MAX_DIM);
    if (d->n_kv_heads != d->n_heads)
        fault(c, ABOUT(TT_KEY_N_KV_HEADS, TT_KEY_N_HEADS),
              "%s is %lld; attention with a latent has as many as %s (%lld)", tt_key_name(TT_KEY_N_KV_HEADS),
              (long long)d->n_kv_heads, tt_key_name(TT_KEY_N_HEADS), (long long)d->n_heads);
}

int tt_model_dims_check(const struct tt_model_row *row, struct tt_model_dims *d, tt_model_fault_fn fn, void *arg)
{
    struct check c = {fn, arg, false};
    bool has_dim = check_range(&c, TT_KEY_DIM, d->dim, 1, MAX_DIM);
    bool has_heads = check_range(&c, TT_KEY_N_HEADS, d->n_heads, 1, MAX_DIM);

    (void)check_range(&c, TT_KEY_N_LAYERS, d->n_layers, 1, TT_MOST_LAYERS);
    (void)check_range(&c, TT_KEY_FFN_DIM, d->ffn_dim, 1, MAX_DIM);
    (void)check_range(&c, TT_KEY_VOCAB_SIZE, d->vocab_size, 1, INT32_MAX);
    if (has_dim && has_heads)
        check_heads(&c, d);
    if (!(d->norm_eps > 0.0F) || !isfinite(d->norm_eps))
        fault(&c, ABOUT(TT_KEY_NORM_EPS), "%s is %g; it must be positive", tt_key_name(TT_KEY_NORM_EPS),
              (double)d->norm_eps);
    check_experts(&c, row, d);
    if (d->sliding_window < 0)
        fault(&c, ABOUT(TT_KEY_MODEL_FOLDER, TT_KEY_FLAVOR),
              "attention sees a window of %lld keys; it must be positive", (long long)d->sliding_window);
    if (d->window_from < 0)
        fault(&c, ABOUT(TT_KEY_MODEL_FOLDER, TT_KEY_FLAVOR), "layers from %lld on have a window; it must be 0 or more",
              (long long)d->window_from - 1);
    if (has_dim && has_heads)
        check_mla(&c, d);
    if (d->lora.rank && !row->adaptable)
        fault(
            &c, ABOUT(TT_KEY_LORA_RANK, TT_KEY_MODEL),
            "%s has no adapters\nhelp: the models with adapters are llama3, qwen3 and mixtral; %s 0 trains all weights",
            row->name, tt_key_name(TT_KEY_LORA_RANK));
    if (has_dim && has_heads && row->learned_positions)
        check_learned(&c, row, d);
    else if (!row->learned_positions)
        check_rotated(&c, d);
    return c.failed ? TT_EUSAGE : 0;
}

void tt_model_first_fault(void *arg, const enum tt_key *keys, const char *message)
{
    bool *has_one = arg;

    (void)keys;
    if (!*has_one)
        (void)tt_fail(TT_EUSAGE, "%s", message);
    *has_one = true;
}

int tt_model_dims_settle(const struct tt_model_row *row, struct tt_model_dims *d)
{
    bool has_one = false;

    return tt_model_dims_check(row, d, tt_model_first_fault, &has_one);
}
