/* SPDX-License-Identifier: MIT
 *
 * Sizes of models: parameters and flops, published models by name, and Hugging Face's config.json.
 */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "core/base/text.h"
#include "core/models/hf.h"
#include "estimate/model/internal.h"

/* --- parameters and flops --- */

double tt_cluster_devices(const struct tt_cluster_job *job)
{
    return job->replicate * job->shard * job->tp * job->pp * job->cp;
}

double tt_cluster_tokens(const struct tt_cluster_job *job)
{
    return job->micro_batch * job->n_micro * job->replicate * job->shard * job->seq_len;
}

double tt_cluster_shards(const struct tt_cluster_job *job)
{
    /* torchtitan also shards over context-parallel ranks; Megatron keeps copies on these */
    return job->shard > 1 || !tt_cluster_stack_is_megatron(job->stack) ? job->shard * job->cp : 1;
}

double tt_cluster_kept_gradient(const struct tt_cluster_job *job)
{
    double whole = job->stack->number[TT_S_STATE_WHOLE].value, shard = job->stack->number[TT_S_STATE_SHARD].value;

    if (job->state_gradient_bytes > 0)
        return job->state_gradient_bytes;
    /* 2 bytes are weights, 12 are the optimizer's */
    return whole > 0 ? whole - 2 - (shard > 0 ? 0 : 12) : shard - 12;
}

double tt_cluster_gradient_bytes(const struct tt_cluster_job *job)
{
    return job->gradient_bytes > 0 ? job->gradient_bytes : job->stack->number[TT_S_GRAD_WIRE].value;
}

double tt_cluster_copies(const struct tt_cluster_job *job)
{
    return job->replicate * job->shard * job->cp / tt_cluster_shards(job);
}

double tt_cluster_expert_tp(const struct tt_cluster_job *job)
{
    return job->expert_tp > 0 ? job->expert_tp : job->tp;
}

/* The number of ranks with the same experts. It includes tensor-parallel ranks if tensor parallelism does not divide
 * experts. */
static double expert_ranks(const struct tt_cluster_job *job, double ranks)
{
    return ranks * job->tp / tt_cluster_expert_tp(job) / job->ep;
}

double tt_cluster_expert_shards(const struct tt_cluster_job *job)
{
    double shards = tt_cluster_shards(job) > 1 ? expert_ranks(job, tt_cluster_shards(job)) : 1;

    return shards > 1 ? shards : 1;
}

double tt_cluster_expert_copies(const struct tt_cluster_job *job)
{
    double copies = expert_ranks(job, tt_cluster_shards(job) * tt_cluster_copies(job)) / tt_cluster_expert_shards(job);

    return copies > 1 ? copies : 1;
}

double tt_cluster_expert_params(const struct tt_cluster_shape *s)
{
    return s->experts > 0 ? (s->layers - s->dense_layers + s->mtp_layers) * 3 * s->dim * s->experts * s->moe_ffn : 0;
}

static double attention_params(const struct tt_cluster_shape *s)
{
    return s->dim * s->head_dim * (2 * s->heads + 2 * s->kv_heads);
}

static double dense_params(const struct tt_cluster_shape *s)
{
    return (s->gated ? 3 : 2) * s->dim * s->ffn;
}

/* The parameters of a layer with experts: all of them, or those that a token uses. */
static double expert_params(const struct tt_cluster_shape *s, bool met)
{
    return 3 * s->dim * ((met ? s->active : s->experts) * s->moe_ffn + s->shared_ffn) + s->dim * s->experts;
}

double tt_cluster_block_params(const struct tt_cluster_shape *s, bool experts)
{
    return attention_params(s) + (experts && s->experts > 0 ? expert_params(s, false) : dense_params(s));
}

double tt_cluster_params(const struct tt_cluster_shape *s)
{
    double moe = s->experts > 0 ? s->layers - s->dense_layers : 0;

    if (s->params > 0)
        return s->params;
    return moe * tt_cluster_block_params(s, true) + (s->layers - moe) * tt_cluster_block_params(s, false) +
           s->mtp_layers * (tt_cluster_block_params(s, true) + 2 * s->dim * s->dim) +
           ((s->tied ? 1 : 2) * s->vocab + s->positions) * s->dim;
}

/* --- what is trained --- */

unsigned tt_cluster_targets(const char *names)
{
    static const char *const words[] = {"q", "k", "v", "o", "gate", "up", "down"};
    static const char tail[] = "_proj";
    unsigned bits = 0;

    for (const char *at = names; *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " "), last = sizeof tail - 1;
        size_t stem = n > last && strncmp(at + n - last, tail, last) == 0 ? n - last : n;

        for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
            if (strlen(words[i]) == stem && strncmp(at, words[i], stem) == 0)
                bits |= 1U << i;
        at += n;
    }
    return bits;
}

bool tt_cluster_target_size(const struct tt_cluster_shape *s, enum tt_cluster_target target, bool expert,
                            double *ret_outputs, double *ret_inputs)
{
    bool of_keys = target == TT_TARGET_K || target == TT_TARGET_V;
    double heads = (of_keys ? s->kv_heads : s->heads) * s->head_dim, wide = expert ? s->moe_ffn : s->ffn;

    if (target == TT_TARGET_GATE && !s->gated)
        return false;
    if (target >= TT_TARGET_GATE) {
        *ret_outputs = target == TT_TARGET_DOWN ? s->dim : wide;
        *ret_inputs = target == TT_TARGET_DOWN ? wide : s->dim;
    } else {
        *ret_outputs = target == TT_TARGET_O ? s->dim : heads;
        *ret_inputs = target == TT_TARGET_O ? heads : s->dim;
    }
    return true;
}

double tt_cluster_trained(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;
    double moe = s->experts > 0 ? s->layers - s->dense_layers : 0, sum = 0;

    if (!(job->lora_rank > 0))
        return tt_cluster_params(s);
    for (int bit = TT_TARGET_Q; bit <= TT_TARGET_DOWN; bit *= 2)
        for (int expert = 0; expert < 2; expert++) {
            bool is_ffn = bit >= TT_TARGET_GATE;
            double m, n, count = !is_ffn ? (expert ? 0 : s->layers) : expert ? moe * s->experts : s->layers - moe;

            if (tt_cluster_adapts(job, (enum tt_cluster_target)bit) &&
                tt_cluster_target_size(s, (enum tt_cluster_target)bit, expert, &m, &n))
                sum += count * job->lora_rank * (m + n);
        }
    return sum;
}

/* Bits per weight of NF4 in blocks of 64 with 8-bit scales, which have a float32 scale per 256 (2305.14314). */
static const double nf4_bits = 4 + 8.0 / 64 + 32.0 / (64 * 256);

double tt_cluster_gathered_bytes(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;
    double bits = job->base_bits, ends = (s->tied ? 1 : 2) * s->vocab * s->dim / tt_cluster_params(s);

    if (!(job->lora_rank > 0))
        return job->float8 && !job->float8_rows ? 1 : job->float32 ? 4 : 2;
    if (!(bits > 0) || bits >= 16)
        return bits > 16 ? bits / 8 : 2;
    /* embeddings and output are not quantised */
    return (1 - ends) * (bits == 4 ? nf4_bits : bits) / 8 + 2 * ends;
}

void tt_cluster_shape_set_latent(struct tt_cluster_shape *s, const struct tt_cluster_latent *l)
{
    double params =
        s->dim * (l->key_rank + l->rope) + l->key_rank * s->heads * (l->nope + l->value) + s->heads * l->value * s->dim;

    params += l->query_rank > 0 ? l->query_rank * (s->dim + s->heads * (l->rope + l->nope))
                                : s->dim * s->heads * (l->rope + l->nope);
    s->latent = *l;
    s->kv_heads = s->heads;
    s->head_dim = params / (4 * s->dim * s->heads);
    s->score_dim = (l->rope + l->nope + l->value) / 2;
}

double tt_cluster_token_flops(const struct tt_cluster_shape *s, double seq_len)
{
    double moe = s->experts > 0 ? s->layers - s->dense_layers : 0;
    double met = s->layers * attention_params(s) + (s->layers - moe) * dense_params(s);

    if (moe > 0)
        met += moe * expert_params(s, true);
    met += s->mtp_layers * (attention_params(s) + (moe > 0 ? expert_params(s, true) : dense_params(s)) +
                            (2 * s->dim + s->vocab) * s->dim);
    return 6 * (met + s->vocab * s->dim) + 12 * (s->layers + s->mtp_layers) * tt_cluster_score_width(s) * seq_len;
}

/* --- published models, and parts of a layer, by name --- */

/* clang-format off */
#define D(id, d, l, h, kv, hd, f, v, g, t) \
    {(id), {.dim = (d), .layers = (l), .heads = (h), .kv_heads = (kv), .head_dim = (hd), .ffn = (f), .vocab = (v), \
            .gated = (g), .tied = (t)}},
#define E(id, d, l, h, kv, hd, sd, f, v, n, a, mf, sf, dl) \
    {(id), {.dim = (d), .layers = (l), .heads = (h), .kv_heads = (kv), .head_dim = (hd), .ffn = (f), .vocab = (v), \
            .gated = true, .score_dim = (sd), .experts = (n), \
            .active = (a), .moe_ffn = (mf), .shared_ffn = (sf), .dense_layers = (dl)}},
#define W(id, d, l, h, kv, hd, f, v, n, a, mf, w, wl) \
    {(id), {.dim = (d), .layers = (l), .heads = (h), .kv_heads = (kv), .head_dim = (hd), .ffn = (f), .vocab = (v), \
            .gated = true, .experts = (n), .active = (a), .moe_ffn = (mf), .window = (w), .window_layers = (wl), \
            .expert_bias = true}},
#define L(id, d, l, h, kv, hd, sd, f, v, n, a, mf, sf, dl, g, gm, q) \
    {(id), {.dim = (d), .layers = (l), .heads = (h), .kv_heads = (kv), .head_dim = (hd), .ffn = (f), .vocab = (v), \
            .gated = true, .score_dim = (sd), .experts = (n), \
            .active = (a), .moe_ffn = (mf), .shared_ffn = (sf), .dense_layers = (dl), \
            .groups = (g), .groups_met = (gm), .latent = {512, (q), 64, 128, 128}}},

static const struct {
    const char *name;
    struct tt_cluster_shape shape;
} shapes[] = {
#include "estimate/model/shapes.def"
};
#undef D
#undef E
#undef W
#undef L
/* clang-format on */

bool tt_cluster_shape_find(const char *name, struct tt_cluster_shape *ret_shape)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcasecmp(shapes[i].name, name) == 0) {
            *ret_shape = shapes[i].shape;
            return true;
        }
    return false;
}

/* Megatron's names for parts of a layer. */
static const struct {
    const char *name;
    enum tt_cluster_module bit;
} parts[] = {{"core_attn", TT_MODULE_CORE_ATTENTION},     {"layernorm", TT_MODULE_NORMS},
             {"mla_up_proj", TT_MODULE_LATENT_UP},        {"mlp", TT_MODULE_FFN},
             {"moe_act", TT_MODULE_EXPERT_ACT},           {"moe", TT_MODULE_EXPERTS},
             {"shared_experts", TT_MODULE_SHARED_EXPERTS}};

const char *const tt_cluster_again_words[] = {
    [TT_AGAIN_NONE] = "none",           [TT_AGAIN_OP] = "op",           [TT_AGAIN_LAYERS] = "layers",
    [TT_AGAIN_ATTENTION] = "attention", [TT_AGAIN_MODULES] = "modules", [TT_AGAIN_FULL] = "full"};

unsigned tt_cluster_modules(const char *names)
{
    unsigned bits = 0;

    for (const char *at = names; *at;) {
        size_t length = strcspn(at, " ");

        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (strlen(parts[i].name) == length && strncmp(at, parts[i].name, length) == 0)
                bits |= (unsigned)parts[i].bit;
        at += length;
        at += strspn(at, " ");
    }
    return bits;
}

void tt_cluster_module_names(unsigned modules, struct tt_text *out)
{
    const char *between = "";

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (modules & (unsigned)parts[i].bit) {
            tt_text_add(out, "%s%s", between, parts[i].name);
            between = " ";
        }
}

const char *tt_cluster_shape_names(const char *meant, struct tt_text *out)
{
    enum { N = sizeof shapes / sizeof *shapes };
    const char *names[N];

    for (int i = 0; i < N; i++) {
        names[i] = shapes[i].name;
        tt_text_add(out, "%s%s", i ? " " : "", names[i]);
    }
    return tt_text_meant(meant, names, N);
}

/* --- Hugging Face's config.json: the same size has several names, by architecture --- */

enum { NAMES = 4 };

/* The number above 0 under the first of these names in the file; 0: there is none. */
static double first_of(const json_t *config, const char *const names[NAMES])
{
    for (int i = 0; i < NAMES && names[i]; i++) {
        const json_t *value = json_object_get(config, names[i]);

        if (json_is_number(value) && json_number_value(value) > 0)
            return json_number_value(value);
    }
    return 0;
}

static double size_of(const json_t *config, const char *name)
{
    return first_of(config, (const char *const[NAMES]){name});
}

/* A class of Hugging Face's models, where a file says nothing. */
struct class
{
    const char *type;
    int matrices; /* of a feed-forward layer */
    bool tied;
    int windowed;   /* the layers with a window: n > 1: all but every n-th; 1: all; 0: none */
    bool needs_use; /* only if use_sliding_window is true */
    int64_t from;   /* not 0: the layers from max_window_layers on, which is this number if it is absent */
    int64_t window; /* sliding_window; 0: none */
    struct {
        const char *key; /* NULL ends the list */
        int64_t value;
    } defaults[16];
};

/* Classes that no family of titan reads. */
static const struct class others[] = {
#define C(type, matrices, tied, windowed, ...) {type, matrices, tied, windowed, .defaults = __VA_ARGS__},
#include "estimate/model/hf_classes.def"
#undef C
};

/* What the registry of families says of a class: the sizes of its dims that are not 0, under their keys. */
static void set_of_family(const struct tt_hf_class *known, const struct tt_model_row *row, struct class *ret_class)
{
    const struct tt_model_dims *d = &known->dims;
    const struct tt_hf_windows *window = &known->window;
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {
        {"intermediate_size", d->ffn_dim},
        {"num_key_value_heads", d->n_kv_heads},
        {"head_dim", d->mla.kv_rank ? 0 : d->head_dim},
        {"n_positions", row->learned_positions ? d->max_positions : 0},
        {"num_experts", d->moe.experts},
        {"num_experts_per_tok", d->moe.top_k},
        {"moe_intermediate_size", d->moe.ffn_dim},
        {"n_shared_experts", d->moe.shared},
        {"shared_expert_intermediate_size", d->moe.shared_dim},
        {"first_k_dense_replace", d->moe.dense_layers},
        {"n_group", d->moe.groups},
        {"topk_group", d->moe.kept_groups},
        {"q_lora_rank", d->mla.q_rank},
        {"kv_lora_rank", d->mla.kv_rank},
        {"qk_rope_head_dim", d->mla.rope_dim},
        {"qk_nope_head_dim", d->mla.kv_rank ? d->head_dim - d->mla.rope_dim : 0},
        {"v_head_dim", d->mla.value_dim},
    };
    int n = 0;

    *ret_class = (struct class){.type = known->type,
                                .matrices = tt_model_is_gated(row) ? 3 : 2,
                                .tied = d->tied == 1,
                                .needs_use = window->needs_use,
                                .from = window->layers,
                                .window = window->absent};
    if (window->any) /* without a period or a first layer: all layers, or, where dims have a window, every other */
        ret_class->windowed = window->every ? (int)window->every : d->sliding_window && !d->window_from ? 2 : 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value == 0)
            continue;
        ret_class->defaults[n].key = sizes[i].key;
        ret_class->defaults[n++].value = sizes[i].value;
    }
}

/* Lists the types of all classes. */
static void list_types(struct tt_text *known)
{
    for (int m = 0; m < tt_model_n_rows; m++)
        for (int i = 0; i < tt_model_rows[m]->n_classes; i++) {
            const struct tt_hf_class *class = &tt_model_rows[m]->classes[i];

            tt_text_add(known, " %s", class->type);
            if (class->copy)
                tt_text_add(known, " %s", class->copy);
        }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        tt_text_add(known, " %s", others[i].type);
}

/* The class of a file; a file without a type counts as Llama's. TT_EDATA: the sizes do not determine the model. */
static int find_class(const json_t *file, const json_t *config, const char *where, struct class *ret_class)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const char *name = json_string_value(json_array_get(json_object_get(file, "architectures"), 0));
    const struct tt_model_row *row = NULL;
    const struct tt_hf_class *known;
    struct tt_text types = {0};
    int rc = 0;

    if (!type && config != file)
        type = json_string_value(json_object_get(file, "model_type"));
    if (!type && !name)
        type = "llama";
    known = type ? tt_hf_find_class(type, &row) : NULL;
    if (known) {
        set_of_family(known, row, ret_class);
        return 0;
    }
    for (size_t i = 0; type && i < sizeof others / sizeof *others; i++)
        if (strcmp(type, others[i].type) == 0) {
            *ret_class = others[i];
            return 0;
        }
    list_types(&types);
    rc = tt_fail(TT_EDATA,
                 "%s is of the class %s (model_type %s), whose layers titan does not know\nhelp: it knows the "
                 "model types%s",
                 where, name ? name : "?", type ? type : "not given", types.text);
    tt_text_release(&types);
    return rc;
}

/* Whether a file contains a key, perhaps with null; the number of experts has several names. */
static bool has_key(const json_t *config, const char *key)
{
    static const char *const experts[] = {"n_routed_experts", "num_local_experts", "num_experts"};
    bool is_count = false, any = false;

    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++) {
        is_count = is_count || strcmp(key, experts[i]) == 0;
        any = any || json_object_get(config, experts[i]);
    }
    return is_count ? any : json_object_get(config, key) != NULL;
}

/* A copy of a file with the defaults of its class for keys that it lacks. */
static json_t *completed(const json_t *config, const struct class *class)
{
    json_t *copy = json_copy((json_t *)config);

    for (int i = 0; class->defaults[i].key; i++) {
        const char *key = class->defaults[i].key;
        int64_t value = class->defaults[i].value;

        if (!has_key(config, key))
            (void)json_object_set_new(copy, key, strcmp(key, "multi_query") == 0 ? json_true() : json_integer(value));
    }
    return copy;
}

/* The number of learned positions. */
static double positions(const json_t *config, const char *type)
{
    if (strcmp(type, "opt") == 0) /* the first two rows are unused */
        return size_of(config, "max_position_embeddings") + 2;
    return strcmp(type, "gpt2") == 0 || strcmp(type, "gpt_bigcode") == 0 ? size_of(config, "n_positions") : 0;
}

static void read_experts(const json_t *config, const char *type, struct tt_cluster_shape *s)
{
    static const char *const experts[NAMES] = {"n_routed_experts", "num_local_experts", "num_experts"};
    static const char *const active[NAMES] = {"num_experts_per_tok", "num_experts_per_token", "experts_per_token",
                                              "moe_topk"};
    static const char *const width[NAMES] = {"moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"};
    static const char *const dense[NAMES] = {"intermediate_size_mlp", "intermediate_size"};

    s->experts = first_of(config, experts);
    if (!(s->experts > 1)) {
        s->experts = 0;
        return;
    }
    s->active = first_of(config, active);
    s->moe_ffn = first_of(config, width);
    s->ffn = first_of(config, dense);
    s->shared_ffn = size_of(config, "shared_expert_intermediate_size");
    if (!(s->shared_ffn > 0))
        s->shared_ffn = size_of(config, "n_shared_experts") * s->moe_ffn;
    s->groups = size_of(config, "n_group");
    s->groups_met = size_of(config, "topk_group");
    s->expert_bias = strcmp(type, "gpt_oss") == 0;
    s->dense_layers = size_of(config, "first_k_dense_replace");
    if (size_of(config, "decoder_sparse_step") > 1)
        s->dense_layers = s->layers - floor(s->layers / size_of(config, "decoder_sparse_step"));
    s->dense_layers += (double)json_array_size(json_object_get(config, "mlp_only_layers"));
    if (size_of(config, "interleave_moe_layer_step") > 0) { /* Llama 4: each layer has a shared expert too */
        s->shared_ffn = s->moe_ffn;
        s->dense_layers = s->layers - s->layers / size_of(config, "interleave_moe_layer_step");
    }
}

/* The number of layers with a window, if the file does not list them. */
static double windowed_layers(const json_t *config, const struct class *class, double layers)
{
    const json_t *from = json_object_get(config, "max_window_layers");
    double every = size_of(config, "sliding_window_pattern");

    if (class->from > 0)
        return fmax(0, layers - (json_is_number(from) ? json_number_value(from) : (double)class->from));
    if (class->windowed <= 1)
        return class->windowed == 1 ? layers : 0;
    every = every > 0 ? every : class->windowed; /* a layer without a window follows that many others */
    return layers - floor(layers / every);
}

/* Reads the layers with a window, as gpt-oss, Gemma and others list them. */
static void read_windows(const json_t *config, const struct class *class, struct tt_cluster_shape *s)
{
    const json_t *types = json_object_get(config, "layer_types");
    const json_t *used = json_object_get(config, "use_sliding_window");
    double n = 0, window = json_object_get(config, "sliding_window") ? size_of(config, "sliding_window")
                                                                     : (double)class->window;

    if (json_is_false(used) || (class->needs_use && !json_is_true(used)))
        return;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));

        n += type && strcmp(type, "sliding_attention") == 0;
    }
    if (!json_is_array(types))
        n = windowed_layers(config, class, s->layers);
    if (n > 0 && n <= s->layers && window > 0) {
        s->window = window;
        s->window_layers = n;
    }
}

/* The number of key/value heads. Falcon and StarCoder may share a single one. */
static double kv_heads(const json_t *config, double heads)
{
    static const char *const names[NAMES] = {"num_key_value_heads", "num_kv_heads"};
    bool newer = json_is_true(json_object_get(config, "new_decoder_architecture"));

    if (json_is_true(json_object_get(config, "multi_query")) && !newer)
        return 1;
    if (json_object_get(config, "multi_query") && !newer)
        return heads;
    return first_of(config, names) > 0 ? first_of(config, names) : heads;
}

static int read_shape(const json_t *file, const json_t *config, const struct class *class, const char *where,
                      struct tt_cluster_shape *ret_shape)
{
    static const struct {
        const char *word;
        const char *names[NAMES];
        size_t offset;
    } wanted[] = {
        {"hidden_size", {"hidden_size", "n_embd", "d_model", "n_embed"}, offsetof(struct tt_cluster_shape, dim)},
        {"num_hidden_layers", {"num_hidden_layers", "n_layer", "n_layers"}, offsetof(struct tt_cluster_shape, layers)},
        {"num_attention_heads", {"num_attention_heads", "n_head", "n_heads"}, offsetof(struct tt_cluster_shape, heads)},
        {"vocab_size", {"vocab_size"}, offsetof(struct tt_cluster_shape, vocab)},
    };
    static const char *const ffn[NAMES] = {"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"};
    static const char *const sizes[] = {"head_dim",    "intermediate_size",   "moe_intermediate_size", "n_inner",
                                        "ffn_dim",     "num_key_value_heads", "num_experts_per_tok",   "n_embd",
                                        "hidden_size", "num_hidden_layers",   "num_attention_heads",   "vocab_size"};
    const struct tt_cluster_latent latent = {.key_rank = size_of(config, "kv_lora_rank"),
                                             .query_rank = size_of(config, "q_lora_rank"),
                                             .rope = size_of(config, "qk_rope_head_dim"),
                                             .nope = size_of(config, "qk_nope_head_dim"),
                                             .value = size_of(config, "v_head_dim")};
    const json_t *tied;
    struct tt_cluster_shape s = {.gated = class->matrices == 3};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const json_t *value = json_object_get(config, sizes[i]);
        double number = json_number_value(value);

        if (value && !json_is_null(value) && !(number > 0 && number < 1e9 && floor(number) == number))
            return tt_fail(TT_EDATA, "%s: %s is not a whole number above 0", where, sizes[i]);
    }
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        double value = first_of(config, wanted[i].names);

        if (!(value > 0))
            return tt_fail(TT_EDATA,
                           "%s: %s is missing, or is not a number above 0\nhelp: wanted config.json of a "
                           "model on Hugging Face",
                           where, wanted[i].word);
        memcpy((char *)&s + wanted[i].offset, &value, sizeof value);
    }
    s.kv_heads = kv_heads(config, s.heads);
    s.head_dim = size_of(config, "head_dim");
    s.head_dim = s.head_dim > 0 ? s.head_dim : s.dim / s.heads;
    s.ffn = first_of(config, ffn);
    s.ffn = s.ffn > 0 ? s.ffn : 4 * s.dim;
    tied = json_object_get(config, "tie_word_embeddings");
    if (!tied)
        tied = json_object_get(file, "tie_word_embeddings");
    s.tied = tied ? json_is_true(tied) : class->tied;
    if (latent.key_rank > 0 && latent.value > 0)
        tt_cluster_shape_set_latent(&s, &latent);
    s.positions = positions(config, class->type);
    read_windows(config, class, &s);
    read_experts(config, class->type, &s);
    if (s.active > s.experts)
        return tt_fail(TT_EDATA, "%s: a token uses %.0f experts, but there are only %.0f", where, s.active, s.experts);
    if (s.experts > 0 && !(s.active > 0 && s.moe_ffn > 0))
        return tt_fail(TT_EDATA,
                       "%s says that there are %.0f experts, but not how many of them a token uses, or how "
                       "wide they are",
                       where, s.experts);
    *ret_shape = s;
    return 0;
}

int tt_cluster_shape_of_hf(const json_t *file, const char *where, struct tt_cluster_shape *ret_shape)
{
    const json_t *text = json_object_get(file, "text_config"), *config = json_is_object(text) ? text : file;
    struct class class = {0};
    json_t *whole;
    int rc = find_class(file, config, where, &class);

    if (rc < 0)
        return rc;
    whole = completed(config, &class);
    rc = read_shape(file, whole, &class, where, ret_shape);
    json_decref(whole);
    return rc;
}
