/* SPDX-License-Identifier: MIT
 *
 * The registry: finds a model's row and flavor, completes and checks its sizes, and lists its parameters.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"
#include "core/models/lora.h"
#include "core/os/file.h"

/* --- sizes: overrides over a flavor's, sizes that follow from others, and checks; messages name the keys --- */

/* Bounds that keep every count within 63 bits; far above any existing model. */
enum { MAX_DIM = 1 << 22, MAX_EXPERTS = 1 << 14, MAX_GROUPS = 64 };

int64_t tt_model_dense_layers(const struct tt_model_dims *dims)
{
    int64_t n = 0;

    for (int64_t l = 0; l < dims->n_layers; l++)
        n += dims->moe.experts > 0 && !tt_model_has_experts(dims, l);
    return n;
}

/* --- faults in sizes --- */

/* Receives the faults, and notes whether there were any. */
struct check {
    tt_model_fault_fn fault;
    void *arg;
    bool failed;
};

/* The keys that a fault is about; TT_KEY_NONE ends the list. */
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
    fault(c, TT_KEY_LIST(key), "%s is %lld; it must lie in %lld..%lld", tt_key_name(key), (long long)value,
          (long long)low, (long long)high);
    return false;
}

static void check_positions(struct check *c, int64_t positions, int64_t least)
{
    if (positions < least || positions > INT32_MAX)
        fault(c, TT_KEY_LIST(TT_KEY(model.max_position_embeddings), TT_KEY(model.hf_assets_path), TT_KEY(model.flavor)),
              "max_position_embeddings is %lld; it must lie in %lld..%lld", (long long)positions, (long long)least,
              (long long)INT32_MAX);
}

static void check_not_llamas(struct check *c, const struct tt_rope *rope, const char *type)
{
    if (rope->low_freq_factor != 0.0 || rope->high_freq_factor != 0.0)
        fault(c, TT_KEY_LIST(TT_KEY(model.rope_scaling.low_freq_factor), TT_KEY(model.rope_scaling.high_freq_factor)),
              "%s and %s belong to Llama 3.1's scaling, but the model has %s",
              TT_KEY_NAME(model.rope_scaling.low_freq_factor), TT_KEY_NAME(model.rope_scaling.high_freq_factor), type);
}

/* YaRN's own numbers, which are not keys. (Kimi-K2 sets both betas to 1.) */
static void check_yarn(struct check *c, const struct tt_rope *rope)
{
    const enum tt_key *about = TT_KEY_LIST(TT_KEY(model.hf_assets_path), TT_KEY(model.flavor));

    check_not_llamas(c, rope, "YaRN's");
    if (!(rope->beta_slow > 0.0) || !(rope->beta_fast >= rope->beta_slow) || !isfinite(rope->beta_fast))
        fault(c, about, "YaRN's beta_fast %g and beta_slow %g must be positive, and beta_slow at most beta_fast",
              rope->beta_fast, rope->beta_slow);
    if (!isfinite(rope->mscale) || !isfinite(rope->mscale_all_dim) || rope->mscale < 0.0 || rope->mscale_all_dim < 0.0)
        fault(c, about, "YaRN's mscale %g and mscale_all_dim %g must not be negative", rope->mscale,
              rope->mscale_all_dim);
    if (!(rope->theta > 1.0))
        fault(c, TT_KEY_LIST(TT_KEY(model.rope_theta)), "%s is %g; YaRN needs more than 1",
              TT_KEY_NAME(model.rope_theta), rope->theta);
}

static int64_t rotated_pairs(const struct tt_model_dims *d)
{
    return (d->mla.kv_rank ? d->mla.rope_dim : d->rotary_dim ? d->rotary_dim : d->head_dim) / 2;
}

/* For `dynamic`, the original training length is max_position_embeddings itself. */
static void check_dynamic(struct check *c, const struct tt_model_dims *d)
{
    check_not_llamas(c, &d->rope, "rope_type dynamic");
    if (rotated_pairs(d) < 2)
        fault(c, TT_KEY_LIST(TT_KEY(model.head_dim), TT_KEY(model.hf_assets_path)),
              "one pair of each head is rotated; rope_type dynamic needs two");
    if (d->rope.original_max != (double)d->max_positions)
        fault(c, TT_KEY_LIST(TT_KEY(model.rope_scaling.original_max), TT_KEY(model.hf_assets_path)),
              "%s is %g; with rope_type dynamic it is max_position_embeddings, which is %lld",
              TT_KEY_NAME(model.rope_scaling.original_max), d->rope.original_max, (long long)d->max_positions);
}

/* LongRoPE's lists have a factor for each pair; zeros follow. */
static void check_long(struct check *c, const struct tt_model_dims *d)
{
    const enum tt_key *about = TT_KEY_LIST(TT_KEY(model.hf_assets_path), TT_KEY(model.flavor), TT_KEY(model.head_dim));
    int64_t shorts = 0, longs = 0, pairs = rotated_pairs(d);

    check_not_llamas(c, &d->rope, "LongRoPE's");
    while (shorts < TT_ROPE_PAIRS && d->rope.short_factor[shorts] != 0.0F)
        shorts++;
    while (longs < TT_ROPE_PAIRS && d->rope.long_factor[longs] != 0.0F)
        longs++;
    if (shorts != pairs || longs != pairs)
        fault(c, about, "LongRoPE has %lld short and %lld long factors; a head has %lld pairs to rotate (at most %d)",
              (long long)shorts, (long long)longs, (long long)pairs, TT_ROPE_PAIRS);
    if (d->rope.attention_factor == 0.0 && d->rope.factor > 1.0 && !(d->rope.original_max > 1.0))
        fault(c, about, "LongRoPE's original length is %g; it must be more than 1", d->rope.original_max);
}

/* Scaling by a factor of 1 changes nothing, except for some kinds. */
static bool is_scaled(const struct tt_rope *rope)
{
    return rope->factor != 0.0 && (rope->factor != 1.0 || rope->dynamic || tt_rope_is_long(rope));
}

static void check_scaling(struct check *c, const struct tt_model_dims *d)
{
    const struct tt_rope *rope = &d->rope;

    if (!is_scaled(rope))
        return;
    if (rope->dynamic)
        check_dynamic(c, d);
    else if (rope->linear)
        check_not_llamas(c, rope, "rope_type linear");
    else if (rope->beta_fast > 0.0)
        check_yarn(c, rope);
    else if (tt_rope_is_long(rope))
        check_long(c, d);
    else if (!(rope->low_freq_factor > 0.0) || !(rope->high_freq_factor > rope->low_freq_factor) ||
             !isfinite(rope->high_freq_factor))
        fault(c,
              TT_KEY_LIST(TT_KEY(model.rope_scaling.low_freq_factor), TT_KEY(model.rope_scaling.high_freq_factor),
                          TT_KEY(model.rope_scaling.factor)),
              "%s %g and %s %g must be positive, low below high\nhelp: Llama 3.1 has low_freq_factor 1, "
              "high_freq_factor 4",
              TT_KEY_NAME(model.rope_scaling.low_freq_factor), rope->low_freq_factor,
              TT_KEY_NAME(model.rope_scaling.high_freq_factor), rope->high_freq_factor);
    if (!(rope->factor >= 1.0) || !isfinite(rope->factor))
        fault(c, TT_KEY_LIST(TT_KEY(model.rope_scaling.factor)), "%s is %g; it must be at least 1 (1: no scaling)",
              TT_KEY_NAME(model.rope_scaling.factor), rope->factor);
    if ((!(rope->original_max >= 1.0) || !isfinite(rope->original_max)) && !rope->linear)
        fault(c, TT_KEY_LIST(TT_KEY(model.rope_scaling.original_max), TT_KEY(model.rope_scaling.factor)),
              "%s is %g; it must be the sequence length of the first training\nhelp: "
              "Llama 3.1 has 8192",
              TT_KEY_NAME(model.rope_scaling.original_max), rope->original_max);
}

/* GPT-2's and GPT-NeoX's attention: a key and a value head for each query head, which fill the width. */
static void check_full_heads(struct check *c, const struct tt_model_row *row, const struct tt_model_dims *d)
{
    if (d->n_kv_heads != d->n_heads)
        fault(c, TT_KEY_LIST(TT_KEY(model.n_kv_heads), TT_KEY(model.n_heads)),
              "%s is %lld; in %s it must equal the number of query heads (%lld)", TT_KEY_NAME(model.n_kv_heads),
              (long long)d->n_kv_heads, row->name, (long long)d->n_heads);
    if (d->head_dim > 0 && d->head_dim * d->n_heads != d->dim)
        fault(c, TT_KEY_LIST(TT_KEY(model.head_dim), TT_KEY(model.dim), TT_KEY(model.n_heads)),
              "%s is %lld; %s has %s %lld / %s %lld", TT_KEY_NAME(model.head_dim), (long long)d->head_dim, row->name,
              TT_KEY_NAME(model.dim), (long long)d->dim, TT_KEY_NAME(model.n_heads), (long long)d->n_heads);
}

static void check_learned(struct check *c, const struct tt_model_row *row, const struct tt_model_dims *d)
{
    if (d->rope.theta != 0.0 || d->rope.factor != 0.0)
        fault(c, TT_KEY_LIST(TT_KEY(model.rope_theta), TT_KEY(model.rope_scaling.factor)),
              "%s and %s have no meaning for %s: its positions are learned", TT_KEY_NAME(model.rope_theta),
              TT_KEY_NAME(model.rope_scaling.factor), row->name);
    check_full_heads(c, row, d);
    check_positions(c, d->max_positions, 1);
}

static void check_rotated(struct check *c, struct tt_model_dims *d)
{
    if (!d->mla.kv_rank && d->head_dim % 2 != 0)
        fault(c, TT_KEY_LIST(TT_KEY(model.head_dim), TT_KEY(model.dim), TT_KEY(model.n_heads)),
              "the head dimension %lld is odd; RoPE rotates pairs\nhelp: change %s, or %s %lld / %s %lld",
              (long long)d->head_dim, TT_KEY_NAME(model.head_dim), TT_KEY_NAME(model.dim), (long long)d->dim,
              TT_KEY_NAME(model.n_heads), (long long)d->n_heads);
    if (d->rotary_dim < 0 || d->rotary_dim % 2 != 0 || d->rotary_dim > d->head_dim)
        fault(c, TT_KEY_LIST(TT_KEY(model.head_dim), TT_KEY(model.hf_assets_path), TT_KEY(model.flavor)),
              "%lld of %lld elements of each head are rotated (%s); the number must be even, and at most all",
              (long long)d->rotary_dim, (long long)d->head_dim, TT_KEY_NAME(model.head_dim));
    check_positions(c, d->max_positions, 0);
    if (!(d->rope.theta > 0.0) || !isfinite(d->rope.theta))
        fault(c, TT_KEY_LIST(TT_KEY(model.rope_theta)), "%s is %g; it must be positive", TT_KEY_NAME(model.rope_theta),
              d->rope.theta);
    check_scaling(c, d);
    if (!is_scaled(&d->rope))
        d->rope = (struct tt_rope){.theta = d->rope.theta};
}

/* Checks that heads divide the sizes, and sets the sizes that follow from them. All divisors are known to be
 * positive. */
static void check_heads(struct check *c, struct tt_model_dims *d)
{
    if (d->n_kv_heads == 0)
        d->n_kv_heads = d->n_heads;
    if (check_range(c, TT_KEY(model.n_kv_heads), d->n_kv_heads, 1, d->n_heads) && d->n_heads % d->n_kv_heads != 0) {
        struct tt_text divisors = {0};

        tt_text_add_divisors(&divisors, d->n_heads);
        fault(c, TT_KEY_LIST(TT_KEY(model.n_heads), TT_KEY(model.n_kv_heads)),
              "%s %lld is not a multiple of %s %lld\nhelp: set %s to %s", TT_KEY_NAME(model.n_heads),
              (long long)d->n_heads, TT_KEY_NAME(model.n_kv_heads), (long long)d->n_kv_heads,
              TT_KEY_NAME(model.n_kv_heads), divisors.text);
        tt_text_release(&divisors);
    }
    if (d->head_dim == 0 && d->dim % d->n_heads != 0) {
        fault(c, TT_KEY_LIST(TT_KEY(model.n_heads), TT_KEY(model.dim)),
              "%s %lld is not a multiple of %s %lld\nhelp: set %s too, for instance to %lld", TT_KEY_NAME(model.dim),
              (long long)d->dim, TT_KEY_NAME(model.n_heads), (long long)d->n_heads, TT_KEY_NAME(model.head_dim),
              (long long)(d->dim / d->n_heads / 2 * 2 + 2));
        return;
    }
    if (d->head_dim == 0)
        d->head_dim = d->dim / d->n_heads;
    if (check_range(c, TT_KEY(model.head_dim), d->head_dim, 1, MAX_DIM) && d->n_heads * d->head_dim > MAX_DIM)
        fault(c, TT_KEY_LIST(TT_KEY(model.n_heads), TT_KEY(model.head_dim)),
              "%s * head_dim is %lld; it must lie in 1..%d", TT_KEY_NAME(model.n_heads),
              (long long)(d->n_heads * d->head_dim), MAX_DIM);
}

/* Checks groups of experts: each contains at least two, since two best experts may represent a group; together the kept
 * groups have room for a token's experts. */
static void check_groups(struct check *c, const struct tt_moe *moe)
{
    const enum tt_key *about = TT_KEY_LIST(TT_KEY(model.hf_assets_path), TT_KEY(model.flavor));
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
              "%lld experts for each token, but %lld groups of %lld experts have only %lld\n"
              "help: correct num_experts_per_tok or topk_group in the model's config.json",
              (long long)moe->top_k, kept, each, kept * each);
}

/* These are not keys of titan, except the last two: they come from a flavor or from the folder of the model. */
static void check_experts(struct check *c, const struct tt_model_row *row, struct tt_model_dims *d)
{
    const enum tt_key *about = TT_KEY_LIST(TT_KEY(model.hf_assets_path), TT_KEY(model.flavor));
    struct tt_moe *moe = &d->moe;

    if (moe->biased && !moe->experts)
        fault(c, TT_KEY_LIST(TT_KEY(training.load_balance_coeff), TT_KEY(model.name), TT_KEY(model.flavor)),
              "%s is for models with experts", TT_KEY_NAME(training.load_balance_coeff));
    if (moe->balanced && !moe->experts)
        fault(c, TT_KEY_LIST(TT_KEY(debug.moe_force_load_balance), TT_KEY(model.name), TT_KEY(model.flavor)),
              "%s is for models with experts", TT_KEY_NAME(debug.moe_force_load_balance));
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
              "%lld of %lld experts for each token; the number must lie in 1..%lld\n"
              "help: correct num_experts_per_tok or the number of experts in the model's config.json",
              (long long)moe->top_k, (long long)moe->experts, (long long)moe->experts);
    else
        check_groups(c, moe);
    if (!(moe->route_scale >= 0.0) || !isfinite(moe->route_scale))
        fault(c, about, "the gates of experts are multiplied by %g; it must be positive", moe->route_scale);
    if (moe->ffn_dim < 1 || moe->ffn_dim > MAX_DIM)
        fault(c, about, "experts are %lld wide; their width must lie in 1..%d", (long long)moe->ffn_dim, MAX_DIM);
    if (moe->shared_dim < 0 || moe->shared_dim > MAX_DIM)
        fault(c, about, "the expert that sees all tokens is %lld wide; it must be at most %d",
              (long long)moe->shared_dim, MAX_DIM);
    if (moe->shared < 0 || moe->shared * moe->ffn_dim > MAX_DIM)
        fault(c, about, "%lld shared experts of width %lld; they must have at most %d in all", (long long)moe->shared,
              (long long)moe->ffn_dim, MAX_DIM);
    if (moe->dense_layers < 0 || moe->dense_layers > d->n_layers)
        fault(c, about, "%lld layers without experts, of %lld layers", (long long)moe->dense_layers,
              (long long)d->n_layers);
    if (moe->dense_set < 0 || moe->dense_set >> TT_LAYER_BITS)
        fault(c, about, "a layer without experts is not among the first %d layers", TT_LAYER_BITS);
    if (row->adaptable && d->lora.rank &&
        d->lora.modules & (tt_lora_module("gate_proj") | tt_lora_module("up_proj") | tt_lora_module("down_proj")))
        fault(c, TT_KEY_LIST(TT_KEY(lora.target_modules), TT_KEY(lora.rank)),
              "%s contains gate_proj, up_proj or down_proj, but experts have no adapters\n"
              "help: choose among q_proj, k_proj, v_proj and o_proj",
              TT_KEY_NAME(lora.target_modules));
}

/* These are not keys of titan, except the heads: they come from a flavor or from the folder of the model. */
static void check_mla(struct check *c, const struct tt_model_dims *d)
{
    const enum tt_key *about = TT_KEY_LIST(TT_KEY(model.hf_assets_path), TT_KEY(model.flavor));
    const struct tt_mla *mla = &d->mla;

    if (!mla->kv_rank)
        return;
    if (mla->kv_rank < 1 || mla->kv_rank > MAX_DIM || mla->q_rank < 0 || mla->q_rank > MAX_DIM)
        fault(c, about, "the latents of attention have %lld (keys and values) and %lld (queries) elements; at most %d",
              (long long)mla->kv_rank, (long long)mla->q_rank, MAX_DIM);
    if (mla->rope_dim < 2 || mla->rope_dim % 2 != 0 || mla->rope_dim >= d->head_dim)
        fault(c, TT_KEY_LIST(TT_KEY(model.head_dim), TT_KEY(model.hf_assets_path), TT_KEY(model.flavor)),
              "%lld of %lld elements of each head are rotated (%s); the number must be even, and less than all",
              (long long)mla->rope_dim, (long long)d->head_dim, TT_KEY_NAME(model.head_dim));
    if (mla->value_dim < 1 || mla->value_dim > MAX_DIM || d->n_heads * mla->value_dim > MAX_DIM)
        fault(c, about, "%lld heads of values of %lld elements; they must have 1..%d in all", (long long)d->n_heads,
              (long long)mla->value_dim, MAX_DIM);
    if (d->n_kv_heads != d->n_heads)
        fault(c, TT_KEY_LIST(TT_KEY(model.n_kv_heads), TT_KEY(model.n_heads)),
              "%s is %lld; with latent attention it must equal %s (%lld)", TT_KEY_NAME(model.n_kv_heads),
              (long long)d->n_kv_heads, TT_KEY_NAME(model.n_heads), (long long)d->n_heads);
}

static void fail_adapters(struct check *c, const struct tt_model_row *row)
{
    struct tt_text names = {0};
    int left = 0;

    for (int i = 0; i < tt_model_n_rows; i++)
        left += tt_model_rows[i]->adaptable;
    for (int i = 0; i < tt_model_n_rows; i++)
        if (tt_model_rows[i]->adaptable)
            tt_text_add(&names, "%s%s", tt_model_rows[i]->name, --left > 1 ? ", " : left ? " and " : "");
    fault(c, TT_KEY_LIST(TT_KEY(lora.rank), TT_KEY(model.name)),
          "%s has no adapters\nhelp: the models with adapters are %s; %s 0 trains all weights", row->name, names.text,
          TT_KEY_NAME(lora.rank));
    tt_text_release(&names);
}

/* Fills in the sizes that follow from others (kv heads, head_dim), and reports all faults to fn. */
static int check_dims(const struct tt_model_row *row, struct tt_model_dims *d, tt_model_fault_fn fn, void *arg)
{
    struct check c = {fn, arg, false};
    bool has_dim = check_range(&c, TT_KEY(model.dim), d->dim, 1, MAX_DIM);
    bool has_heads = check_range(&c, TT_KEY(model.n_heads), d->n_heads, 1, MAX_DIM);

    (void)check_range(&c, TT_KEY(model.n_layers), d->n_layers, 1, TT_MOST_LAYERS);
    (void)check_range(&c, TT_KEY(model.ffn_dim), d->ffn_dim, 1, MAX_DIM);
    (void)check_range(&c, TT_KEY(model.vocab_size), d->vocab_size, 1, INT32_MAX);
    if (has_dim && has_heads)
        check_heads(&c, d);
    if (!(d->norm_eps > 0.0F) || !isfinite(d->norm_eps))
        fault(&c, TT_KEY_LIST(TT_KEY(model.norm_eps)), "%s is %g; it must be positive", TT_KEY_NAME(model.norm_eps),
              (double)d->norm_eps);
    check_experts(&c, row, d);
    if (d->sliding_window < 0)
        fault(&c, TT_KEY_LIST(TT_KEY(model.hf_assets_path), TT_KEY(model.flavor)),
              "attention sees a window of %lld keys; it must be positive", (long long)d->sliding_window);
    if (d->window_from < 0)
        fault(&c, TT_KEY_LIST(TT_KEY(model.hf_assets_path), TT_KEY(model.flavor)),
              "layers from %lld on have a window; it must be 0 or more", (long long)d->window_from - 1);
    if (has_dim && has_heads)
        check_mla(&c, d);
    if (has_dim && has_heads && row->decoder && row->decoder->heads_in_turn)
        check_full_heads(&c, row, d);
    if (d->lora.rank && !row->adaptable)
        fail_adapters(&c, row);
    if (has_dim && has_heads && row->learned_positions)
        check_learned(&c, row, d);
    else if (!row->learned_positions)
        check_rotated(&c, d);
    return c.failed ? TT_EUSAGE : 0;
}

/* The first fault, which sets the error message. A fault in a folder's sizes says where they are. */
struct first_fault {
    const char *folder; /* NULL: sizes are not a folder's */
    bool has_one;
};

static void keep_first(void *arg, const enum tt_key *keys, const char *message)
{
    struct first_fault *first = arg;

    if (!first->has_one && first->folder && *keys == TT_KEY(model.hf_assets_path))
        (void)tt_fail(TT_EUSAGE, "%s%s: %s", first->folder, tt_gguf_is_path(first->folder) ? "" : "/config.json",
                      message);
    else if (!first->has_one)
        (void)tt_fail(TT_EUSAGE, "%s", message);
    first->has_one = true;
}

/* --- the registry --- */

const struct tt_model_row *const tt_model_rows[] = {
#define X(file, name) &tt_model_##name,
#include "core/models/families/families.def"
#undef X
};
const int tt_model_n_rows = (int)(sizeof tt_model_rows / sizeof tt_model_rows[0]);

static int fail_unknown(const char *what, const char *word, const char *const *choices, int n)
{
    const char *near = tt_text_meant(word, choices, n);
    struct tt_text all = {0};

    for (int i = 0; i < n; i++)
        tt_text_add(&all, "%s%s", i ? ", " : "", choices[i]);
    (void)tt_fail(TT_EUSAGE, "unknown %s '%s'\nhelp: %s%s%sthe choices are %s", what, word, near ? "did you mean " : "",
                  near ? near : "", near ? "? " : "", all.text);
    tt_text_release(&all);
    return TT_EUSAGE;
}

static int find_row(const char *name, const struct tt_model_row **ret_row)
{
    const char **names = tt_calloc((size_t)tt_model_n_rows, sizeof *names);
    int rc = 0;

    for (int i = 0; i < tt_model_n_rows; i++) {
        names[i] = tt_model_rows[i]->name;
        if (strcmp(names[i], name) == 0) {
            *ret_row = tt_model_rows[i];
            goto out;
        }
    }
    rc = fail_unknown(TT_KEY_NAME(model.name), name, names, tt_model_n_rows);
out:
    tt_free(names);
    return rc;
}

static int find_flavor(const struct tt_model_row *row, const char *flavor, struct tt_model_dims *ret_dims)
{
    const char **names = tt_calloc((size_t)row->n_flavors + 1, sizeof *names);
    char *what = tt_format("%s of %s", TT_KEY_NAME(model.flavor), row->name);
    int rc = 0;

    for (int i = 0; i < row->n_flavors; i++) {
        names[i] = row->flavors[i].name;
        if (strcmp(names[i], flavor) == 0) {
            *ret_dims = row->flavors[i].dims;
            goto out;
        }
    }
    names[row->n_flavors] = "hf";
    rc = fail_unknown(what, flavor, names, row->n_flavors + 1);
out:
    tt_free(what);
    tt_free(names);
    return rc;
}

/* Says how the file differs from the nearest class, and lists the known types: "llama and mistral (model.name llama3),
 * ...". */
static int fail_type(const char *where, const char *type, const json_t *config)
{
    const char *class = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    const json_t *part = json_object_get(config, "text_config");
    const struct tt_model_row *near = NULL;
    struct tt_text text = {0}, differences = {0};
    const struct tt_hf_class *nearest = tt_hf_nearest(json_is_object(part) ? part : config, &near, &differences);

    for (int i = 0; i < tt_model_n_rows; i++) {
        const struct tt_model_row *row = tt_model_rows[i];

        for (int c = 0; c < row->n_classes; c++)
            tt_text_add(&text, "%s%s", c ? " and " : i ? ", " : "", row->classes[c].type);
        for (int c = 0; c < row->n_classes; c++)
            if (row->classes[c].copy)
                tt_text_add(&text, " and %s", row->classes[c].copy);
        tt_text_add(&text, " (%s %s)", TT_KEY_NAME(model.name), row->name);
    }
    (void)tt_fail(TT_EDATA,
                  "%s: model_type '%s'%s%s%s is not supported\nhelp: the nearest family%s is %s (%s, %s %s). %s%s\n"
                  "help: supported are %s",
                  where, type, class ? " (" : "", class ? class : "", class ? ")" : "",
                  json_is_object(part) ? " to its text_config" : "", nearest->type, nearest->architecture,
                  TT_KEY_NAME(model.name), near->name,
                  tt_hf_class(part)  ? "titan reads such a model from a folder of its own"
                  : differences.text ? "Settings of this file that it lacks: "
                                     : "It has all settings of this file, so only the code of both classes shows how "
                                       "they differ",
                  differences.text ? differences.text : "", text.text);
    tt_text_release(&text);
    tt_text_release(&differences);
    return TT_EDATA;
}

/*
 * A model of several parts, one of which reads images, has the configuration of its language model in text_config. Only
 * that part is read here; the keys that are outside of it for all parts are added to it. Takes over `file`.
 */
static json_t *language_model(json_t *file)
{
    static const char *const shared[] = {"quantization_config", "tie_word_embeddings"};
    const char *type = json_string_value(json_object_get(file, "model_type"));
    json_t *text = json_object_get(file, "text_config"), *config;

    for (int r = 0; type && json_is_object(text) && r < tt_model_n_rows; r++)
        for (int c = 0; c < tt_model_rows[r]->n_classes; c++) {
            const struct tt_hf_class *class = &tt_model_rows[r]->classes[c];

            if (!class->within || strcmp(class->within, type) != 0)
                continue;
            config = json_copy(text);
            if (!json_object_get(config, "model_type"))
                (void)json_object_set_new(config, "model_type", json_string(class->type));
            for (int i = 0; i < TT_COUNT(shared); i++)
                if (json_object_get(file, shared[i]))
                    (void)json_object_set(config, shared[i], json_object_get(file, shared[i]));
            json_decref(file);
            return config;
        }
    return file;
}

/* Loads the configuration of a folder's language model; the caller releases it. */
static int load_config(const char *path, json_t **ret_config, const char **ret_type)
{
    json_t *file = NULL;
    int rc = 0;

    TT_TRY(tt_json_load(path, &file));
    if (!json_is_object(file)) {
        json_decref(file);
        return tt_fail(TT_EDATA, "%s: not a JSON object", path);
    }
    *ret_config = language_model(file);
    rc = tt_json_get_string(*ret_config, "model_type", path, ret_type);
out:
    return rc;
}

/* The dims of a GGUF file, which stands in for a folder. */
static int read_gguf_dims(const struct tt_model_row *row, const char *path, struct tt_model_dims *ret_dims)
{
    struct tt_gguf file = {0};
    const char *name = NULL;
    int rc = 0;

    TT_TRY(tt_gguf_open(path, &file));
    TT_TRY(tt_gguf_model_name(&file, &name));
    if (strcmp(name, row->name) != 0)
        rc = tt_fail(TT_EDATA, "'%s' is not a %s\nhelp: set %s to %s", path, row->name, TT_KEY_NAME(model.name), name);
    else
        rc = tt_gguf_read_dims(&file, ret_dims);
out:
    tt_gguf_release(&file);
    return rc;
}

static int read_hf_dims(const struct tt_model_row *row, const char *folder, struct tt_model_dims *ret_dims)
{
    const struct tt_model_row *of;
    char *path = NULL;
    json_t *json = NULL;
    const char *type = NULL;
    int rc = 0;

    if (!folder || !folder[0]) {
        return tt_fail(TT_EUSAGE,
                       "%s hf takes the dims from a Hugging Face folder, but none is given\n"
                       "help: set %s to a folder that has config.json",
                       TT_KEY_NAME(model.flavor), TT_KEY_NAME(model.hf_assets_path));
    }
    if (tt_gguf_is_path(folder))
        return read_gguf_dims(row, folder, ret_dims);
    path = tt_format("%s/config.json", folder);
    TT_TRY(load_config(path, &json, &type));
    if (!tt_hf_find_class(type, &of))
        rc = fail_type(path, type, json);
    else if (of != row)
        rc = tt_fail(TT_EDATA, "%s: model_type '%s' is not a %s\nhelp: set %s to %s", path, type, row->name,
                     TT_KEY_NAME(model.name), of->name);
    else
        rc = tt_hf_read_dims(json, path, ret_dims);
out:
    json_decref(json);
    tt_free(path);
    return rc;
}

/* If nothing of a flavor remains except its name, the name is not part of the model's. */
static void name_without_flavor(struct tt_model *model, const struct tt_model_dims *over)
{
    const struct tt_model_row *row = model->row;

    for (int i = 0; i < row->n_flavors && over; i++) {
        const struct tt_model_dims *d = &row->flavors[i].dims;

        if (strcmp(row->flavors[i].name, model->flavor) == 0 && over->dim && over->n_layers && over->n_heads &&
            over->ffn_dim &&
            (over->dim != d->dim || over->n_layers != d->n_layers || over->n_heads != d->n_heads ||
             over->ffn_dim != d->ffn_dim))
            model->title[strlen(row->name)] = 0;
    }
}

/* Lists all parameters of a new model: the embeddings, the blocks by the row's add_block, the last norm, the head. */
static void add_param(struct tt_model *m)
{
    const struct tt_model_row *row = m->row;
    const struct tt_model_dims *d = &m->dims;
    double head_std = 1.0 / sqrt((double)d->dim);
    struct tt_normal plain = {.depth = 1.0}, positions = {.std = 0.01}, embeddings = {.std = 1.0};
    struct tt_normal head = {.std = head_std, .cut = 3.0 * head_std};
    struct tt_param *p;

    if (row->plain_embeddings)
        head = embeddings = plain;
    p = tt_params_matrix(m, TT_BLOCK_EMBEDDINGS, "tok_embeddings.weight", row->hf_embeddings, d->vocab_size, d->dim,
                         d->tied ? head : embeddings);
    p->tied = d->tied == 1;
    p->tp = TT_TP_ROWS;
    if (row->learned_positions)
        (void)tt_params_matrix(m, TT_BLOCK_EMBEDDINGS, "pos_embeddings.weight", "transformer.wpe.weight",
                               d->max_positions, d->dim, positions);
    for (int l = 0; l < d->n_layers; l++)
        row->parts->add_block(m, l);
    tt_params_norm(m, TT_BLOCK_HEAD, "norm", row->hf_norm, d->dim);
    if (!d->tied)
        tt_params_matrix(m, TT_BLOCK_HEAD, "output.weight", row->hf_head ? row->hf_head : "lm_head.weight",
                         d->vocab_size, d->dim, head)
            ->tp = TT_TP_ROWS;
}

/* A copy of targets, as one allocation; NULL if n is 0. */
static const char *const *copy_targets(const char *const *targets, int n)
{
    size_t size = (size_t)n * sizeof *targets, at = size;
    const char **copy;

    for (int i = 0; i < n; i++)
        size += strlen(targets[i]) + 1;
    copy = n ? tt_calloc(1, size) : NULL;
    for (int i = 0; i < n; i++) {
        copy[i] = memcpy((char *)copy + at, targets[i], strlen(targets[i]) + 1);
        at += strlen(targets[i]) + 1;
    }
    return copy;
}

/* Makes a model after completing and checking the dims. Takes ownership of nothing. */
static int make_model(const struct tt_model_row *row, const char *flavor, struct tt_model_dims dims,
                      struct tt_model **ret_model)
{
    struct first_fault first = {0};
    struct tt_model *model = NULL;
    int rc = 0;

    TT_TRY(check_dims(row, &dims, keep_first, &first));
    model = tt_calloc(1, sizeof *model);
    model->row = row;
    model->flavor = tt_strdup(flavor);
    model->title = tt_format("%s %s", row->name, flavor);
    model->dims = dims;
    model->dims.lora.targets = copy_targets(dims.lora.targets, dims.lora.n_targets);
    add_param(model);
    TT_TRY(tt_lora_add(model));
    *ret_model = model;
    model = NULL;
out:
    tt_model_free(model);
    return rc;
}

/* The dims from name, flavor and folder. Reports a fault to fn, with its keys and the error message. */
static int find_dims(const char *name, const char *flavor, const char *hf_folder, tt_model_fault_fn fn, void *arg,
                     const struct tt_model_row **ret_row, struct tt_model_dims *ret_dims)
{
    static const enum tt_key of_name[] = {TT_KEY(model.name), TT_KEY_NONE};
    static const enum tt_key of_flavor[] = {TT_KEY(model.flavor), TT_KEY(model.name), TT_KEY_NONE};
    static const enum tt_key of_folder[] = {TT_KEY(model.hf_assets_path), TT_KEY(model.flavor), TT_KEY_NONE};
    bool is_hf = strcmp(flavor, "hf") == 0;
    int rc = find_row(name, ret_row);

    if (rc < 0) {
        fn(arg, of_name, tt_error_message());
        return rc;
    }
    rc = is_hf ? read_hf_dims(*ret_row, hf_folder, ret_dims) : find_flavor(*ret_row, flavor, ret_dims);
    if (rc < 0)
        fn(arg, is_hf ? of_folder : of_flavor, tt_error_message());
    return rc;
}

int tt_model_check(const char *name, const char *flavor, const struct tt_model_dims *overrides, const char *hf_folder,
                   tt_model_fault_fn fn, void *arg, struct tt_model **ret_model)
{
    const struct tt_model_row *row = NULL;
    struct tt_model_dims dims = {0};
    int rc = 0;

    TT_TRY(find_dims(name, flavor, hf_folder, fn, arg, &row, &dims));
    if (overrides)
        tt_dims_override(&dims, overrides);
    TT_TRY(check_dims(row, &dims, fn, arg));
    if (!ret_model)
        goto out;
    TT_TRY(make_model(row, flavor, dims, ret_model));
    name_without_flavor(*ret_model, overrides);
out:
    return rc;
}

int tt_model_new(const char *name, const char *flavor, const struct tt_model_dims *overrides, const char *hf_folder,
                 struct tt_model **ret_model)
{
    struct first_fault first = {.has_one = true}; /* find_dims sets the message itself */
    const struct tt_model_row *row = NULL;
    struct tt_model_dims dims = {0};
    int rc = 0;

    TT_TRY(find_dims(name, flavor, hf_folder, keep_first, &first, &row, &dims));
    if (overrides)
        tt_dims_override(&dims, overrides);
    first = (struct first_fault){.folder = hf_folder};
    if (strcmp(flavor, "hf") == 0)
        TT_TRY(check_dims(row, &dims, keep_first, &first));
    TT_TRY(make_model(row, flavor, dims, ret_model));
    name_without_flavor(*ret_model, overrides);
out:
    return rc;
}

int tt_model_from_dims(const char *name, const char *flavor, const struct tt_model_dims *dims,
                       struct tt_model **ret_model)
{
    const struct tt_model_row *row = NULL;
    int rc = find_row(name, &row);

    return rc < 0 ? rc : make_model(row, flavor, *dims, ret_model);
}

static int gguf_name(const char *path, const char **ret_name)
{
    struct tt_gguf file = {0};
    int rc = tt_gguf_open(path, &file);

    if (rc == 0)
        rc = tt_gguf_model_name(&file, ret_name);
    tt_gguf_release(&file);
    return rc;
}

int tt_model_hf_name(const char *folder, const char **ret_name)
{
    const struct tt_model_row *row = NULL;
    const char *type = NULL;
    json_t *json = NULL;
    char *path;
    int rc = 0;

    *ret_name = NULL;
    if (tt_gguf_is_path(folder))
        return gguf_name(folder, ret_name);
    path = tt_format("%s/config.json", folder);
    TT_TRY(load_config(path, &json, &type));
    if (tt_hf_find_class(type, &row))
        *ret_name = row->name;
    else
        rc = fail_type(path, type, json);
out:
    json_decref(json);
    tt_free(path);
    return rc;
}

int tt_model_from_hf(const char *folder, struct tt_model **ret_model)
{
    const char *name = NULL;
    int rc = tt_model_hf_name(folder, &name);

    return rc < 0 ? rc : tt_model_new(name, "hf", NULL, folder, ret_model);
}
