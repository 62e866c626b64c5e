/* SPDX-License-Identifier: MIT
 *
 * Turns flags of Megatron-LM into a job: its sizes become the sizes of a config.json, its layout becomes keys of
 * titan.
 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "estimate/formats/formats.h"
#include "estimate/formats/internal.h"
#include "estimate/model/job.h"

/* --- names of flags: which are read, which are left out, which do not affect the cost --- */

static const char *const names[TT_MEGATRON_FLAGS] = {
#define X(id, name, kind) name,
#include "estimate/formats/megatron_flags.def"
#undef X
};

static const char *const harmless[] = {
#define FREE(name) name,
#include "estimate/formats/megatron_flags.def"
#undef FREE
};

static const struct {
    const char *flags, *value, *why;
} left_out[] = {
#define NOTE(flags, value, why) {flags, value, why},
#include "estimate/formats/megatron_flags.def"
#undef NOTE
};

/* If the name of an unknown flag contains one of these words or of tt_costly_words, it might change the cost. */
static const char *const costly[] = {
    "activation-check", "attention", "checkpoint-act", "cuda-graph", "deepspeed", "fp16",  "fp32", "hidden",
    "hybrid",           "int4",      "int8",           "layers",     "mamba",     "mixed", "mxfp", "optimizer",
    "overlap",          "pipeline",  "sharding",       "tensor-",    "tp-comm"};

const char *const tt_costly_words[] = {"adapter", "bf16",      "dtype", "expert",    "fp4",     "fp8",
                                       "fsdp",    "lora",      "moe",   "mtp",       "offload", "parallel",
                                       "peft",    "precision", "quant", "recompute", "zero",    NULL};

static const enum tt_megatron_kind kind_of[] = {
#define X(id, name, kind) TT_FLAG_IS_##kind,
#include "estimate/formats/megatron_flags.def"
#undef X
};

/* --- names --- */

/* Whether a flag as written, "tensor_model_parallel_size=8", has a name from the tables, or begins with one. */
static bool is_named(const char *written, const char *name, bool is_beginning)
{
    for (; *name; written++, name++)
        if (*written != *name && !(*written == '_' && *name == '-'))
            return false;
    return is_beginning || !*written || *written == '=';
}

/* The number of a flag that is read, or -1. */
static int find(const char *written)
{
    for (int i = 0; i < TT_MEGATRON_FLAGS; i++)
        if (is_named(written, names[i], false))
            return i;
    return -1;
}

/* Whether a name contains one of the words that might change the cost. */
static bool is_costly(const char *name)
{
    for (const char *at = name; *at && *at != '='; at++) {
        for (size_t i = 0; i < sizeof costly / sizeof *costly; i++)
            if (is_named(at, costly[i], true))
                return true;
        for (int i = 0; tt_costly_words[i]; i++)
            if (tt_text_begins(at, tt_costly_words[i]))
                return true;
    }
    return false;
}

/* A flag that begins with "data-", for instance, does not affect the cost only if the rest of its name contains no
 * costly word, such as "parallel". */
static bool is_free(const char *name)
{
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (is_named(name, harmless[i], true) && !is_costly(name + strlen(harmless[i])))
            return true;
    return false;
}

enum tt_megatron_kind tt_megatron_flag_kind(const char *name)
{
    int at = find(name);

    return at >= 0 ? kind_of[at] : is_free(name) ? TT_FLAG_IS_FREE : TT_FLAG_IS_UNKNOWN;
}

/* --- reading --- */

static void note(struct tt_megatron_flags *f, const char *name, const char *value, const char *why)
{
    char *key = tt_format("--%s", name);

    tt_cluster_note(f->notes, key, value, why);
    tt_free(key);
}

/* Notes a flag that is left out, unless it has its usual value. */
static bool take_note(struct tt_megatron_flags *f, const char *name, const char *value)
{
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (tt_text_is_listed(name, left_out[i].flags)) {
            if (!*left_out[i].value || strcmp(value, left_out[i].value) != 0)
                note(f, name, strcmp(left_out[i].value, "false") == 0 ? "" : value, left_out[i].why);
            return true;
        }
    return false;
}

/* Takes an unknown flag. If it resembles a known flag, it is misspelt; if it contains a costly word, it cannot be left
 * out; all others are left out. */
static void take_unknown(struct tt_megatron_flags *f, const char *name, const char *value)
{
    const char *near = tt_text_nearest(name, names, TT_MEGATRON_FLAGS);
    bool is_misspelt = near && tt_text_distance(name, near) <= 2;

    if (is_misspelt || (is_costly(name) && !is_free(name))) {
        tt_text_add(&f->unknown, "%s--%s", f->unknown.size ? ", " : "", name);
        if (*value)
            tt_text_add(&f->unknown, " %s", value);
        if (near)
            tt_text_add(&f->unknown, " (did you mean --%s?)", near);
    } else if (!is_free(name))
        note(f, name, value, "titan does not know it, and assumes that it does not matter");
}

static bool is_ignored(struct tt_megatron_flags *f, const char *name, const char *value)
{
    for (int i = 0; i < f->given->n_ignored; i++) {
        const char *ignored = f->given->ignored[i] + (tt_text_begins(f->given->ignored[i], "--") ? 2 : 0);

        if (!is_named(ignored, name, false))
            continue;
        note(f, name, value, "--ignore-flag leaves it out");
        return true;
    }
    return false;
}

/* A switch may have a value that means "on", but not one that means "off". */
static int check_switch(const char *name, const char *value)
{
    static const char *const off[] = {"false", "False", "0", "no", "off"};

    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (strcmp(value, off[i]) == 0)
            return tt_fail(TT_EUSAGE,
                           "estimate: Megatron's flag --%s takes no value, found '%s'\nhelp: leave the flag out to "
                           "turn it off",
                           name, value);
    return 0;
}

/* Takes one flag, without its dashes, and its value. */
static int take(struct tt_megatron_flags *f, const char *name, const char *value)
{
    char *key = tt_strdup(name);
    int rc = 0, at = find(name);

    for (char *c = key; *c; c++)
        *c = *c == '_' ? '-' : *c;
    if (is_ignored(f, key, value))
        at = -1;
    else if (at < 0 && !take_note(f, key, value))
        take_unknown(f, key, value);
    else if (at >= 0) {
        rc = kind_of[at] == TT_FLAG_IS_SWITCH ? check_switch(key, value) : 0;
        tt_free(f->value[at]);
        f->value[at] = tt_strdup(value);
    }
    tt_free(key);
    return rc;
}

/* The modules of --recompute-modules, from the words that follow the flag. */
static char *modules(int n, const char *const *words)
{
    struct tt_text text = {0};

    for (int i = 0; i < n && tt_cluster_modules(words[i]) != 0; i++)
        tt_text_add(&text, "%s%s", i ? " " : "", words[i]);
    return text.text ? text.text : tt_strdup("");
}

int tt_megatron_flags_words(struct tt_megatron_flags *f, int n, const char *const *words)
{
    int rc = 0;

    for (int i = 0; i < n && rc == 0; i++) {
        const char *equal = strchr(words[i], '=');
        bool has_next = i + 1 < n && !tt_text_begins(words[i + 1], "--");
        char *name, *several = NULL;

        if (!tt_text_begins(words[i], "--"))
            continue;
        name = tt_format("%.*s", equal ? (int)(equal - words[i] - 2) : (int)strlen(words[i]) - 2, words[i] + 2);
        if (find(name) == TT_FLAG_RECOMPUTE_MODULES && has_next && !equal)
            several = modules(n - i - 1, words + i + 1);
        rc = take(f, name, several && *several ? several : equal ? equal + 1 : has_next ? words[i + 1] : "");
        tt_free(several);
        tt_free(name);
    }
    return rc;
}

/* --- values --- */

static bool given(const struct tt_megatron_flags *f, enum tt_megatron_flag flag)
{
    return f->value[flag] != NULL;
}

static const char *text_of(const struct tt_megatron_flags *f, enum tt_megatron_flag flag, const char *otherwise)
{
    return f->value[flag] ? f->value[flag] : otherwise;
}

static bool is_gated(const struct tt_megatron_flags *f)
{
    return given(f, TT_FLAG_SWIGLU) || given(f, TT_FLAG_GEGLU);
}

/* The number that a flag gives (already checked), or `otherwise` if the flag is not given. */
static double number(const struct tt_megatron_flags *f, enum tt_megatron_flag flag, double otherwise)
{
    return f->value[flag] ? strtod(f->value[flag], NULL) : otherwise;
}

static int check_number(const struct tt_megatron_flags *f, enum tt_megatron_flag flag, bool is_positive)
{
    const char *text = f->value[flag] ? f->value[flag] : "1";
    char *end = NULL;
    double value = strtod(text, &end);

    if (end == text || *end || !(value >= 0) || value > 1e15 || floor(value) != value)
        return tt_fail(TT_EUSAGE, "estimate: --%s '%s' is not a whole number of at least 0", names[flag], text);
    if (is_positive && !(value > 0))
        return tt_fail(TT_EUSAGE, "estimate: Megatron's flag --%s has to be above 0", names[flag]);
    return 0;
}

static int check_numbers(const struct tt_megatron_flags *f)
{
    int rc = 0;

    for (int i = 0; i < TT_MEGATRON_FLAGS; i++)
        if (kind_of[i] == TT_FLAG_IS_SIZE || kind_of[i] == TT_FLAG_IS_COUNT)
            TT_TRY(check_number(f, (enum tt_megatron_flag)i, kind_of[i] == TT_FLAG_IS_SIZE));
out:
    return rc;
}

static int check_required(const struct tt_megatron_flags *f)
{
    static const enum tt_megatron_flag required[] = {TT_FLAG_DIM,     TT_FLAG_HEADS,       TT_FLAG_LAYERS,
                                                     TT_FLAG_SEQ_LEN, TT_FLAG_MICRO_BATCH, TT_FLAG_GLOBAL_BATCH};

    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!given(f, required[i]))
            return tt_fail(TT_EUSAGE, "estimate: Megatron's flag --%s is missing", names[required[i]]);
    return 0;
}

static int vocabulary(const struct tt_megatron_flags *f, double *ret)
{
    const char *tokenizer = text_of(f, TT_FLAG_TOKENIZER, "");
    double size = number(f, TT_FLAG_VOCAB, 0),
           multiple = number(f, TT_FLAG_VOCAB_MULTIPLE, 128) * number(f, TT_FLAG_TP, 1);

    if (size <= 0 && strcmp(tokenizer, "Llama2Tokenizer") == 0)
        size = 32000;
    else if (size <= 0 && (strcmp(tokenizer, "GPT2BPETokenizer") == 0 || (!*tokenizer && given(f, TT_FLAG_MERGES))))
        size = 50257; /* only GPT-2's tokenizer has a file of merges */
    *ret = number(f, TT_FLAG_PADDED_VOCAB, ceil(size / multiple) * multiple);
    if (!(size > 0) && !given(f, TT_FLAG_PADDED_VOCAB))
        return tt_fail(TT_EUSAGE, "estimate: Megatron takes the size of the vocabulary from the tokenizer\nhelp: give "
                                  "--vocab-size too, such as --vocab-size 128256");
    return 0;
}

/* The number of zeros in a list with one number per layer: 3 in "[0]*3+[1]*58". */
static int pattern(const struct tt_megatron_flags *f, enum tt_megatron_flag flag, double layers, double *ret_zeros)
{
    const char *at = f->value[flag];
    double all = 0;

    *ret_zeros = 0;
    at += *at == '(';
    while (*at == '[') {
        char *end;
        double kind = strtod(at + 1, &end), count = 1;

        if (end[0] == ']' && end[1] == '*')
            count = strtod(end + 2, &end);
        else
            end += *end == ']';
        all += count;
        *ret_zeros += kind > 0 ? 0 : count;
        at = *end == '+' ? end + 1 : end;
    }
    at += *at == ')';
    if (*at || all != layers)
        return tt_fail(TT_EUSAGE,
                       "estimate: --%s '%s' cannot be parsed, or does not describe %.0f layers\n"
                       "help: for instance [0]*3+[1]*%.0f",
                       names[flag], f->value[flag], layers, fmax(1, layers - 3));
    return 0;
}

/* The number of layers without experts; "2" means experts in every second layer. */
static int dense_layers(const struct tt_megatron_flags *f, double layers, double *ret)
{
    const char *text = text_of(f, TT_FLAG_MOE_LAYERS, "1");
    int rc = 0;

    if (strchr(text, '['))
        return pattern(f, TT_FLAG_MOE_LAYERS, layers, ret);
    TT_TRY(check_number(f, TT_FLAG_MOE_LAYERS, true));
    *ret = layers - ceil(layers / number(f, TT_FLAG_MOE_LAYERS, 1));
out:
    return rc;
}

/* --- the model --- */

static void put(json_t *config, const struct tt_megatron_flags *f, enum tt_megatron_flag flag, double otherwise,
                const char *name)
{
    (void)json_object_set_new(config, name, json_real(number(f, flag, otherwise)));
}

static int put_experts(json_t *config, const struct tt_megatron_flags *f, double layers, double ffn)
{
    double dense;
    int rc = 0;

    if (!is_gated(f))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: experts of two matrices are not modelled\nhelp: add --swiglu"));
    TT_TRY(dense_layers(f, layers, &dense));
    put(config, f, TT_FLAG_EXPERTS, 0, "n_routed_experts");
    put(config, f, TT_FLAG_TOP_K, 2, "num_experts_per_tok");
    put(config, f, TT_FLAG_MOE_FFN, ffn, "moe_intermediate_size");
    put(config, f, TT_FLAG_SHARED_FFN, 0, "shared_expert_intermediate_size");
    put(config, f, TT_FLAG_EXPERT_GROUPS, 0, "n_group");
    put(config, f, TT_FLAG_GROUPS_MET, 0, "topk_group");
    (void)json_object_set_new(config, "first_k_dense_replace", json_real(dense));
out:
    return rc;
}

/* Reads a window, "128,0" or "(128, 0)": 128 tokens before each token, and none after it. If "--window-attn-skip-freq"
 * is a number n, every n-th layer has no window; if it is a list, it has a 1 for each layer with a window. */
static int windows(const struct tt_megatron_flags *f, struct tt_cluster_shape *s)
{
    const char *text = f->value[TT_FLAG_WINDOW], *skip = f->value[TT_FLAG_WINDOW_SKIP];
    double every = 0;
    char *end;
    int rc = 0;

    if (!text)
        return 0;
    text += *text == '(';
    s->window = strtod(text, &end);
    if (end == text || (*end && *end != ',') || !(s->window > 0) || !(s->window < 1e9))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --%s '%s' cannot be parsed\nhelp: for instance 128,0",
                       names[TT_FLAG_WINDOW], f->value[TT_FLAG_WINDOW]));
    s->window_layers = s->layers;
    if (skip && strchr(skip, '['))
        TT_TRY(pattern(f, TT_FLAG_WINDOW_SKIP, s->layers, &every));
    if (skip && strchr(skip, '['))
        s->window_layers = s->layers - every;
    else if (skip) {
        TT_TRY(check_number(f, TT_FLAG_WINDOW_SKIP, false));
        every = number(f, TT_FLAG_WINDOW_SKIP, 0);
        s->window_layers = every > 0 ? s->layers - floor(s->layers / every) : s->layers;
    }
out:
    return rc;
}

static int model(const struct tt_megatron_flags *f, struct tt_cluster_foreign *m)
{
    double dim = number(f, TT_FLAG_DIM, 0), heads = number(f, TT_FLAG_HEADS, 0), layers = number(f, TT_FLAG_LAYERS, 0);
    bool gated = is_gated(f);
    double ffn = number(f, TT_FLAG_FFN, gated ? floor(dim * 4 * 2 / 3 / 64) * 64 : 4 * dim), vocab;
    struct tt_cluster_shape *s = &m->job.shape;
    json_t *config = json_object();
    int rc = 0;

    TT_TRY(vocabulary(f, &vocab));
    (void)json_object_update_new(
        config, json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:b}", "model_type", gated ? "llama" : "gpt2", "hidden_size",
                          dim, "num_hidden_layers", layers, "num_attention_heads", heads, "intermediate_size", ffn,
                          "vocab_size", vocab, "tie_word_embeddings", !given(f, TT_FLAG_UNTIED)));
    put(config, f, TT_FLAG_HEAD_DIM, floor(dim / heads), "head_dim");
    if (given(f, TT_FLAG_GROUPED))
        put(config, f, TT_FLAG_GROUPS, 1, "num_key_value_heads");
    if (given(f, TT_FLAG_LATENT)) {
        put(config, f, TT_FLAG_QUERY_RANK, 0, "q_lora_rank");
        put(config, f, TT_FLAG_KEY_RANK, 32, "kv_lora_rank");
        put(config, f, TT_FLAG_NOPE_DIM, 128, "qk_nope_head_dim");
        put(config, f, TT_FLAG_ROPE_DIM, 64, "qk_rope_head_dim");
        put(config, f, TT_FLAG_VALUE_DIM, 128, "v_head_dim");
    }
    if (given(f, TT_FLAG_EXPERTS))
        TT_TRY(put_experts(config, f, layers, ffn));
    TT_TRY(tt_cluster_shape_of_hf(config, "Megatron's flags", s));
    s->mtp_layers = number(f, TT_FLAG_MTP_LAYERS, 0);
    if (s->mtp_layers > layers)
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --%s %.0f is more than --%s %.0f", names[TT_FLAG_MTP_LAYERS],
                       s->mtp_layers, names[TT_FLAG_LAYERS], layers));
    s->positions = 0; /* learned, unless a flag says otherwise */
    if (!given(f, TT_FLAG_ROTARY) && !given(f, TT_FLAG_NO_POSITIONS) &&
        strcmp(text_of(f, TT_FLAG_POSITION_TYPE, "learned_absolute"), "learned_absolute") == 0)
        s->positions = number(f, TT_FLAG_POSITIONS, number(f, TT_FLAG_SEQ_LEN, 0));
    TT_TRY(windows(f, s));
    s->expert_bias = s->experts > 0 && given(f, TT_FLAG_CLAMP); /* as in gpt-oss */
out:
    json_decref(config);
    return rc;
}

/* --- batch and layout --- */

static void set(struct tt_cluster_foreign *m, const char *key, double value)
{
    TT_PUSH(m->override, m->n, m->cap) = tt_format("--%s=%.0f", key, value);
}

static int stages(const struct tt_megatron_flags *f, struct tt_cluster_foreign *m, double pp, double micro)
{
    double ends = given(f, TT_FLAG_FIRST_COUNTS) + given(f, TT_FLAG_LAST_COUNTS);
    double each = number(f, TT_FLAG_VIRTUAL_LAYERS, 0), own = (m->job.shape.layers + ends) / pp;

    m->stages_of_a_rank = each > 0 ? own / each : number(f, TT_FLAG_VIRTUAL_STAGES, 1);
    if (ends > 0 && floor(own) != own)
        return tt_fail(
            TT_EUSAGE,
            "estimate: %.0f layers and %.0f ends of the model that count as layers do not divide over --%s %.0f",
            m->job.shape.layers, ends, names[TT_FLAG_PP], pp);
    if (each > 0 && fmod(own, each) != 0)
        return tt_fail(TT_EUSAGE, "estimate: --%s %.0f does not divide the %g layers of a rank",
                       names[TT_FLAG_VIRTUAL_LAYERS], each, own);
    set(m, "parallelism.pipeline_parallel_microbatch_size", micro);
    set(m, "training.local_batch_size",
        micro * pp); /* at least one microbatch per stage; the real number follows from the batch of a step */
    TT_PUSH(m->override, m->n, m->cap) =
        tt_format("--parallelism.pipeline_parallel_schedule=%s", m->stages_of_a_rank > 1 ? "Interleaved1F1B" : "1F1B");
    return 0;
}

static int layout(const struct tt_megatron_flags *f, struct tt_cluster_foreign *m)
{
    static const struct {
        enum tt_megatron_flag flag;
        const char *key;
    } degrees[] = {{TT_FLAG_TP, "parallelism.tensor_parallel_degree"},
                   {TT_FLAG_PP, "parallelism.pipeline_parallel_degree"},
                   {TT_FLAG_CP, "parallelism.context_parallel_degree"},
                   {TT_FLAG_EP, "parallelism.expert_parallel_degree"}};
    double micro = number(f, TT_FLAG_MICRO_BATCH, 0), global = number(f, TT_FLAG_GLOBAL_BATCH, 0);
    double steps = number(f, TT_FLAG_TRAIN_ITERS, ceil(number(f, TT_FLAG_TRAIN_SAMPLES, 0) / global));
    double tp = number(f, TT_FLAG_TP, 1), pp = number(f, TT_FLAG_PP, 1), expert_tp = number(f, TT_FLAG_EXPERT_TP, tp);

    set(m, "training.seq_len", number(f, TT_FLAG_SEQ_LEN, 0));
    set(m, "training.local_batch_size", micro);
    set(m, "training.global_batch_size", global);
    if (steps > 0)
        set(m, "training.steps", steps);
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++)
        if (number(f, degrees[i].flag, 1) != 1)
            set(m, degrees[i].key, number(f, degrees[i].flag, 1));
    m->job.expert_tp = given(f, TT_FLAG_EXPERTS) ? expert_tp : tp;
    if (given(f, TT_FLAG_EXPERTS) && expert_tp != tp && expert_tp != 1)
        return tt_fail(TT_EUSAGE,
                       "estimate: --%s %.0f is not modelled: experts are cut like the other matrices, by %.0f, or not "
                       "at all\n"
                       "help: leave the flag out, or give 1",
                       names[TT_FLAG_EXPERT_TP], expert_tp, tp);
    return pp > 1 ? stages(f, m, pp, micro) : 0;
}

/* Megatron's default is the core of attention alone. */
static int selective(const struct tt_megatron_flags *f, struct tt_cluster_foreign *m)
{
    const char *parts = text_of(f, TT_FLAG_RECOMPUTE_MODULES, "core_attn");

    m->job.again_modules = tt_cluster_modules(parts);
    m->job.again = m->job.again_modules == TT_MODULE_CORE_ATTENTION ? TT_AGAIN_ATTENTION : TT_AGAIN_MODULES;
    if (m->job.again_modules == 0)
        return tt_fail(TT_EUSAGE,
                       "estimate: --%s '%s' is none of core_attn, layernorm, mla_up_proj, mlp, moe, moe_act and "
                       "shared_experts",
                       names[TT_FLAG_RECOMPUTE_MODULES], parts);
    return 0;
}

static int kernel(const struct tt_megatron_flags *f, struct tt_cluster_foreign *m)
{
    const char *name = text_of(f, TT_FLAG_BACKEND, "");

    if (strcmp(name, "unfused") == 0 || strcmp(name, "local") == 0)
        m->job.kernel = 0;
    else if (given(f, TT_FLAG_FLASH) || strcmp(name, "flash") == 0)
        m->job.kernel = 2;
    else if (strcmp(name, "fused") == 0)
        m->job.kernel = 3;
    else if (*name && strcmp(name, "auto") != 0)
        return tt_fail(TT_EUSAGE, "estimate: --%s '%s' is none of flash, fused, unfused, local and auto",
                       names[TT_FLAG_BACKEND], name);
    return 0;
}

static int recomputation(const struct tt_megatron_flags *f, struct tt_cluster_foreign *m)
{
    const char *granularity = f->value[TT_FLAG_RECOMPUTE];
    const char *method = text_of(f, TT_FLAG_RECOMPUTE_METHOD, "uniform");
    /* all virtual stages of a rank together */
    double ranks_layers = number(f, TT_FLAG_RECOMPUTE_LAYERS, 1) * number(f, TT_FLAG_PP, 1);

    m->job.again = given(f, TT_FLAG_CHECKPOINT)            ? TT_AGAIN_FULL
                   : given(f, TT_FLAG_RECOMPUTE_ATTENTION) ? TT_AGAIN_ATTENTION
                                                           : TT_AGAIN_NONE;
    if (!granularity && m->job.again == TT_AGAIN_NONE && given(f, TT_FLAG_RECOMPUTE_EXPERTS)) {
        m->job.again = TT_AGAIN_MODULES;
        m->job.again_modules = TT_MODULE_EXPERTS;
    }
    if (!granularity)
        return 0;
    if (strcmp(granularity, "selective") == 0)
        return selective(f, m);
    if (strcmp(granularity, "full") != 0)
        return tt_fail(TT_EUSAGE, "estimate: --%s '%s' is neither full nor selective", names[TT_FLAG_RECOMPUTE],
                       granularity);
    m->job.again = TT_AGAIN_FULL;
    if (strcmp(method, "block") == 0 && ranks_layers < m->job.shape.layers) {
        m->job.again = TT_AGAIN_LAYERS;
        m->job.again_layers = ranks_layers;
    }
    return 0;
}

static int precision(const struct tt_megatron_flags *f)
{
    const char *format = text_of(f, TT_FLAG_FP8, "hybrid");

    if (given(f, TT_FLAG_BF16) && given(f, TT_FLAG_FP16))
        return tt_fail(TT_EUSAGE, "estimate: --bf16 and --fp16 are both given\nhelp: give one of them");
    if (strcmp(format, "hybrid") != 0 && strcmp(format, "e4m3") != 0)
        return tt_fail(TT_EUSAGE, "estimate: --%s '%s' is neither hybrid nor e4m3", names[TT_FLAG_FP8], format);
    return 0;
}

/* Bytes of a type by Megatron's name; 0: the flag is not given, or the type is float32. */
static int bytes_of(const struct tt_megatron_flags *f, enum tt_megatron_flag flag, double *ret)
{
    static const struct {
        const char *name;
        double bytes;
    } types[] = {{"fp32", 4}, {"bf16", 2}, {"fp16", 2}, {"fp8", 1}};
    const char *name = text_of(f, flag, "fp32");

    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) {
            *ret = types[i].bytes;
            return 0;
        }
    return tt_fail(TT_EUSAGE, "estimate: --%s '%s' is none of fp32, bf16, fp16 and fp8", names[flag], name);
}

/* What the optimizer keeps. The given types of the state count only with --use-precision-aware-optimizer. */
static int optimizer(const struct tt_megatron_flags *f, struct tt_cluster_foreign *m)
{
    const char *name = text_of(f, TT_FLAG_OPTIMIZER, "adam");
    double moment, square;
    int rc = 0;

    name = strcmp(name, "sgd") == 0 ? "sgd_momentum" : name;
    if (!tt_cluster_optimizer_find(tt_text_begins(name, "dist_") ? name + 5 : name, &m->job.optimizer))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --%s '%s' is none of adam, sgd, muon and lion", names[TT_FLAG_OPTIMIZER],
                       name));
    m->job.offload = given(f, TT_FLAG_OFFLOAD) ? TT_OFFLOAD_OPTIMIZER : TT_OFFLOAD_NONE;
    m->job.state_copies = number(f, TT_FLAG_STATE_COPIES, 1);
    if (given(f, TT_FLAG_BF16_GRADS)) /* they are summed and sent in one buffer */
        m->job.state_gradient_bytes = m->job.gradient_bytes = 2;
    m->job.offload_layers = number(f, TT_FLAG_OFFLOAD_LAYERS, 0);
    TT_TRY(bytes_of(f, TT_FLAG_MOMENT_TYPE, &moment));
    TT_TRY(bytes_of(f, TT_FLAG_SQUARE_TYPE, &square));
    if (!given(f, TT_FLAG_SMALL_STATE))
        return 0;
    m->job.moment_bytes = (moment + square) / 2;
    TT_TRY(bytes_of(f, TT_FLAG_WEIGHTS_TYPE, &m->job.weight_bytes));
    TT_TRY(bytes_of(f, TT_FLAG_GRADS_TYPE, &square));
    if (square < 4)
        m->job.state_gradient_bytes = square;
out:
    return rc;
}

/* Live bytes of the loss, per token and vocabulary entry; 0: the stack's. fused_cross_entropy.py keeps logits, float32
 * exponentials and the gradient; TransformerEngine's kernel keeps logits and the gradient. */
static double loss_bytes(const struct tt_megatron_flags *f)
{
    if (!given(f, TT_FLAG_LOSS_FUSION))
        return 0;
    return strcmp(text_of(f, TT_FLAG_LOSS_KERNEL, "native"), "te") == 0 ? 4 : 8;
}

static int translate(const struct tt_megatron_flags *f, struct tt_cluster_foreign *m)
{
    bool overlaps; /* overlap for parameters, or for the gradients that are sent in their place */
    int rc = 0;

    if (!given(f, TT_FLAG_BF16) && !given(f, TT_FLAG_FP16))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: without --bf16 or --fp16 Megatron trains in float32, which is not "
                                  "modelled\nhelp: add --bf16"));
    TT_TRY(check_numbers(f));
    TT_TRY(precision(f));
    TT_TRY(check_required(f));
    TT_TRY(model(f, m));
    TT_TRY(layout(f, m));
    TT_TRY(recomputation(f, m));
    TT_TRY(kernel(f, m));
    /* half of the data-parallel traffic is for gradients, half for parameters; a half without overlap is exposed */
    overlaps =
        given(f, TT_FLAG_DISTRIBUTED_OPTIMIZER) ? given(f, TT_FLAG_OVERLAP_PARAMS) : given(f, TT_FLAG_OVERLAP_GRADS);
    m->exposed = 0.5 * !given(f, TT_FLAG_OVERLAP_GRADS) + 0.5 * !overlaps;
    TT_TRY(optimizer(f, m));
    m->job.logit_bytes = loss_bytes(f);
    m->job.float8 = given(f, TT_FLAG_FP8) || given(f, TT_FLAG_FP8_HYBRID) || given(f, TT_FLAG_FP8_E4M3);
    if (m->job.float8 && !given(f, TT_FLAG_FP8_PARAMS)) /* a copy for forward, and a transposed one for backward */
        m->job.weight_copies = 2;
    m->job.async_tp = given(f, TT_FLAG_TP_OVERLAP);
    m->job.sequence_parallel = given(f, TT_FLAG_SEQUENCE_PARALLEL);
    m->job.balanced = given(f, TT_FLAG_BALANCED);
    m->job.expert_overlap = given(f, TT_FLAG_EXPERT_OVERLAP);
    m->distributed_optimizer = given(f, TT_FLAG_DISTRIBUTED_OPTIMIZER);
out:
    return rc;
}

int tt_cluster_megatron_read(const char *path, const struct tt_cluster_given *given, struct tt_cluster_notes *notes,
                             struct tt_cluster_foreign *ret_foreign)
{
    struct tt_cluster_foreign m = {.is_megatron = true, .has_shape = true, .job = {.kernel = -1}};
    struct tt_megatron_flags f = {.notes = notes, .given = given};
    char *text = NULL;
    size_t size;
    int rc = 0;

    if (path) {
        TT_TRY(tt_file_read(path, &text, &size));
        if (strlen(text) != size)
            TT_TRY(tt_fail(TT_EDATA, "%s is not text: it contains a zero byte\nhelp: --megatron takes a shell script",
                           path));
        TT_TRY(tt_megatron_flags_script(&f, path, text, given));
    }
    TT_TRY(tt_megatron_flags_words(&f, given->n_words, given->words));
    tt_text_make_printable(&f.unknown);
    if (f.unknown.size)
        TT_TRY(tt_fail(TT_EUSAGE,
                       "estimate: titan does not know these flags of Megatron, which might change the cost: %s\n"
                       "help: take them out, or give --ignore-flag NAME for each one that the prediction should leave "
                       "out",
                       f.unknown.text));
    TT_TRY(translate(&f, &m));
out:
    for (int i = 0; i < TT_MEGATRON_FLAGS; i++)
        tt_free(f.value[i]);
    tt_text_release(&f.unknown);
    tt_free(text);
    if (rc < 0)
        tt_cluster_foreign_release(&m);
    *ret_foreign = m;
    return rc;
}
