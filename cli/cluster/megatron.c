/* SPDX-License-Identifier: MIT
 *
 * Flags of Megatron-LM as a job: its sizes become those of a config.json, its layout keys of titan.
 */
#include "cli/cluster/megatron.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/model/hf_shape.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

enum flag {
#define X(id, name) F_##id,
#include "cli/cluster/megatron_flags.def"
#undef X
    FLAGS
};

static const char *const names[FLAGS] = {
#define X(id, name) name,
#include "cli/cluster/megatron_flags.def"
#undef X
};

static const char *const harmless[] = {
#define FREE(name) name,
#include "cli/cluster/megatron_flags.def"
#undef FREE
};

/* A flag that has one of these words and is not known might change the cost. */
static const char *const costly[] = {"parallel", "recompute", "moe-",   "expert", "fsdp",  "offload", "fp8",    "fp4",
                                     "hidden",   "attention", "layers", "mtp-",   "mamba", "hybrid",  "tp-comm"};

struct flags {
    char *value[FLAGS]; /* NULL: not given; "": given without a value */
};

/* --- reading --- */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static int check_unknown(const char *name)
{
    const char *near;

    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (begins(name, harmless[i]))
            return 0;
    for (size_t i = 0; i < sizeof costly / sizeof *costly; i++) {
        if (!strstr(name, costly[i]))
            continue;
        near = tt_text_nearest(name, names, FLAGS);
        return tt_fail(TT_EUSAGE,
                       "estimate: Megatron's flag --%s is not known here, and it might change the cost\nhelp: "
                       "%s%s",
                       name, near ? "did you mean --" : "remove it", near ? near : "");
    }
    return 0;
}

/* Takes one flag, without its dashes, and its value. */
static int take(struct flags *f, const char *name, const char *value)
{
    char *key = tt_strdup(name);
    int rc = 0, at = 0;

    for (char *c = key; *c; c++)
        *c = *c == '_' ? '-' : *c;
    while (at < FLAGS && strcmp(names[at], key) != 0)
        at++;
    if (at == FLAGS)
        rc = check_unknown(key);
    else {
        tt_free(f->value[at]);
        f->value[at] = tt_strdup(value);
    }
    tt_free(key);
    return rc;
}

/* Takes words in order: a flag and, as its value, the first word that follows and is no flag. */
static int take_words(struct flags *f, int n, const char *const *words)
{
    int rc = 0;

    for (int i = 0; i < n && rc == 0; i++) {
        const char *equal = strchr(words[i], '=');
        bool has_next = i + 1 < n && !begins(words[i + 1], "--");
        char *name;

        if (!begins(words[i], "--"))
            continue;
        name = tt_format("%.*s", equal ? (int)(equal - words[i] - 2) : (int)strlen(words[i]) - 2, words[i] + 2);
        rc = take(f, name, equal ? equal + 1 : has_next ? words[i + 1] : "");
        tt_free(name);
    }
    return rc;
}

/* The words of a shell script, as far as flags need them: quotes, parentheses and ends of lines separate. */
static int take_script(struct flags *f, char *text)
{
    static const char separators[] = " \t\r\n\"'()\\;";
    const char **word = NULL;
    int n = 0, cap = 0, rc;

    for (char *at = text; *at;) {
        char *end;

        at += strspn(at, separators);
        end = at + strcspn(at, *at == '#' ? "\n" : separators);
        if (*at && *at != '#')
            TT_PUSH(word, n, cap) = at;
        at = end;
        if (*end) {
            *end = 0;
            at = end + 1;
        }
    }
    rc = take_words(f, n, word);
    tt_free((void *)word);
    return rc;
}

/* --- values --- */

static bool given(const struct flags *f, enum flag flag)
{
    return f->value[flag] != NULL;
}

/* The flag's number, or `otherwise` if it is not given; below 0: it has to be. */
static int number(const struct flags *f, enum flag flag, double otherwise, double *ret)
{
    const char *text = f->value[flag];
    char *end = NULL;

    *ret = text ? strtod(text, &end) : otherwise;
    if (!text && otherwise < 0)
        return tt_fail(TT_EUSAGE, "estimate: Megatron's flag --%s is missing", names[flag]);
    if (text && (end == text || *end || !(*ret >= 0) || *ret > 1e9 || floor(*ret) != *ret))
        return tt_fail(TT_EUSAGE,
                       "estimate: --%s '%s' is not a number\nhelp: titan does not run scripts; write the number in "
                       "place of a variable, or give the flag after --",
                       names[flag], text);
    return 0;
}

static int vocabulary(const struct flags *f, double *ret)
{
    double size, multiple, tp;
    int rc = 0;

    TT_TRY(number(f, F_VOCAB, 0, &size));
    TT_TRY(number(f, F_VOCAB_MULTIPLE, 128, &multiple));
    TT_TRY(number(f, F_TP, 1, &tp));
    if (!(size > 0) && given(f, F_TOKENIZER) && strcmp(f->value[F_TOKENIZER], "GPT2BPETokenizer") == 0)
        size = 50257;
    if (!(size > 0) || !(multiple > 0) || !(tp > 0))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: Megatron takes the size of the vocabulary from the tokenizer\nhelp: give "
                                  "--vocab-size too, such as --vocab-size 128256"));
    *ret = ceil(size / (multiple * tp)) * multiple * tp;
out:
    return rc;
}

/* Layers without experts: "2" is experts in every second layer, "[0]*3+[1]*58" has 3 without. */
static int dense_layers(const struct flags *f, double layers, double *ret)
{
    const char *at = f->value[F_MOE_LAYERS];
    double every, all = 0;
    int rc = 0;

    *ret = 0;
    if (!at)
        return 0;
    at += *at == '(';
    if (*at != '[') {
        TT_TRY(number(f, F_MOE_LAYERS, 1, &every));
        *ret = every > 0 ? layers - ceil(layers / every) : 0;
        return 0;
    }
    while (*at == '[') {
        char *end;
        double kind = strtod(at + 1, &end), count = 1;

        if (end[0] == ']' && end[1] == '*')
            count = strtod(end + 2, &end);
        else
            end += *end == ']';
        all += count;
        *ret += kind > 0 ? 0 : count;
        at = *end == '+' ? end + 1 : end;
    }
    at += *at == ')';
    if (*at || all != layers)
        rc = tt_fail(TT_EUSAGE,
                     "estimate: --%s '%s' is not understood, or not of %.0f layers\nhelp: for instance "
                     "[0]*3+[1]*58",
                     names[F_MOE_LAYERS], f->value[F_MOE_LAYERS], layers);
out:
    return rc;
}

/* --- the model --- */

static int put(json_t *config, const struct flags *f, enum flag flag, double otherwise, const char *name)
{
    double value;
    int rc = number(f, flag, otherwise, &value);

    if (rc == 0)
        (void)json_object_set_new(config, name, json_real(value));
    return rc;
}

static int put_experts(json_t *config, const struct flags *f, double layers, double ffn)
{
    double dense;
    int rc = 0;

    if (!given(f, F_SWIGLU))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: experts of two matrices are not modelled\nhelp: add --swiglu"));
    TT_TRY(dense_layers(f, layers, &dense));
    TT_TRY(put(config, f, F_EXPERTS, 0, "n_routed_experts"));
    TT_TRY(put(config, f, F_TOP_K, 2, "num_experts_per_tok"));
    TT_TRY(put(config, f, F_MOE_FFN, ffn, "moe_intermediate_size"));
    TT_TRY(put(config, f, F_SHARED_FFN, 0, "shared_expert_intermediate_size"));
    (void)json_object_set_new(config, "first_k_dense_replace", json_real(dense));
out:
    return rc;
}

static int put_latent(json_t *config, const struct flags *f)
{
    int rc = 0;

    TT_TRY(put(config, f, F_QUERY_RANK, 0, "q_lora_rank"));
    TT_TRY(put(config, f, F_KEY_RANK, 32, "kv_lora_rank"));
    TT_TRY(put(config, f, F_NOPE_DIM, 128, "qk_nope_head_dim"));
    TT_TRY(put(config, f, F_ROPE_DIM, 64, "qk_rope_head_dim"));
    TT_TRY(put(config, f, F_VALUE_DIM, 128, "v_head_dim"));
out:
    return rc;
}

static int model(const struct flags *f, struct tt_cluster_megatron *m)
{
    json_t *config = json_object();
    bool gated = given(f, F_SWIGLU);
    double dim, heads, layers, vocab, ffn;
    int rc = 0;

    TT_TRY(number(f, F_DIM, -1, &dim));
    TT_TRY(number(f, F_HEADS, -1, &heads));
    TT_TRY(number(f, F_LAYERS, -1, &layers));
    TT_TRY(number(f, F_FFN, gated ? floor(dim * 4 * 2 / 3 / 64) * 64 : 4 * dim, &ffn));
    TT_TRY(vocabulary(f, &vocab));
    (void)json_object_update_new(config, json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:b}", "model_type",
                                                   gated ? "llama" : "gpt2", "hidden_size", dim, "num_hidden_layers",
                                                   layers, "num_attention_heads", heads, "intermediate_size", ffn,
                                                   "vocab_size", vocab, "tie_word_embeddings", !given(f, F_UNTIED)));
    TT_TRY(put(config, f, F_HEAD_DIM, heads > 0 ? floor(dim / heads) : 0, "head_dim"));
    if (given(f, F_GROUPED))
        TT_TRY(put(config, f, F_GROUPS, 1, "num_key_value_heads"));
    if (given(f, F_LATENT))
        TT_TRY(put_latent(config, f));
    if (given(f, F_EXPERTS))
        TT_TRY(put_experts(config, f, layers, ffn));
    rc = tt_cluster_shape_of_hf(config, "Megatron's flags", &m->shape);
out:
    json_decref(config);
    return rc;
}

/* --- batch and layout --- */

static void set(struct tt_cluster_megatron *m, const char *key, double value)
{
    TT_PUSH(m->override, m->n, m->cap) = tt_format("--%s=%.0f", key, value);
}

static int stages(const struct flags *f, struct tt_cluster_megatron *m, double pp, double micro)
{
    double layers, each = m->shape.layers / pp;
    int rc = 0;

    if (given(f, F_VIRTUAL_LAYERS))
        TT_TRY(number(f, F_VIRTUAL_LAYERS, -1, &each));
    else if (given(f, F_VIRTUAL_STAGES)) {
        TT_TRY(number(f, F_VIRTUAL_STAGES, -1, &layers));
        each = layers > 0 ? ceil(each / layers) : each;
    }
    set(m, "parallelism.pipeline_parallel_microbatch_size", micro);
    set(m, "parallelism.pipeline_parallel_first_stage_less_layers", 0); /* Megatron counts layers only */
    set(m, "parallelism.pipeline_parallel_last_stage_less_layers", 0);
    set(m, "parallelism.pipeline_parallel_layers_per_stage", fmax(1, ceil(each)));
    TT_PUSH(m->override, m->n, m->cap) = tt_format("--parallelism.pipeline_parallel_schedule=%s",
                                                   each < m->shape.layers / pp ? "Interleaved1F1B" : "1F1B");
out:
    return rc;
}

static int layout(const struct flags *f, struct tt_cluster_megatron *m)
{
    static const struct {
        enum flag flag;
        const char *key;
    } degrees[] = {{F_TP, "parallelism.tensor_parallel_degree"},
                   {F_PP, "parallelism.pipeline_parallel_degree"},
                   {F_CP, "parallelism.context_parallel_degree"},
                   {F_EP, "parallelism.expert_parallel_degree"}};
    double value, micro, pp, tp, expert_tp;
    int rc = 0;

    TT_TRY(number(f, F_SEQ_LEN, -1, &value));
    set(m, "training.seq_len", value);
    TT_TRY(number(f, F_MICRO_BATCH, -1, &micro));
    set(m, "training.local_batch_size", micro);
    TT_TRY(number(f, F_GLOBAL_BATCH, -1, &value));
    set(m, "training.global_batch_size", value);
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        TT_TRY(number(f, degrees[i].flag, 1, &value));
        if (value != 1)
            set(m, degrees[i].key, value);
    }
    TT_TRY(number(f, F_TP, 1, &tp));
    TT_TRY(number(f, F_EXPERT_TP, tp, &expert_tp));
    if (given(f, F_EXPERTS) && expert_tp != tp)
        TT_TRY(
            tt_fail(TT_EUSAGE,
                    "estimate: --%s %.0f is not modelled: experts are cut as the other matrices, by %.0f\nhelp: leave "
                    "the flag out",
                    names[F_EXPERT_TP], expert_tp, tp));
    TT_TRY(number(f, F_PP, 1, &pp));
    if (pp > 1)
        TT_TRY(stages(f, m, pp, micro));
out:
    return rc;
}

static int recomputation(const struct flags *f, struct tt_cluster_megatron *m)
{
    const char *granularity = given(f, F_RECOMPUTE) ? f->value[F_RECOMPUTE] : NULL;
    const char *method = given(f, F_RECOMPUTE_METHOD) ? f->value[F_RECOMPUTE_METHOD] : "uniform";
    double layers, pp, ranks_layers;
    int rc = 0;

    m->again = given(f, F_RECOMPUTE_ATTENTION) ? TT_AGAIN_ATTENTION : TT_AGAIN_NONE;
    if (!granularity)
        return 0;
    if (strcmp(granularity, "selective") == 0) {
        m->again = TT_AGAIN_ATTENTION;
        return 0;
    }
    if (strcmp(granularity, "full") != 0)
        return tt_fail(TT_EUSAGE, "estimate: --%s '%s' is neither full nor selective", names[F_RECOMPUTE], granularity);
    TT_TRY(number(f, F_RECOMPUTE_LAYERS, 1, &layers));
    TT_TRY(number(f, F_PP, 1, &pp));
    ranks_layers = layers * pp; /* so many of each rank's */
    m->again = TT_AGAIN_FULL;
    if (strcmp(method, "block") == 0 && ranks_layers < m->shape.layers) {
        m->again = TT_AGAIN_LAYERS;
        m->again_layers = ranks_layers;
    }
out:
    return rc;
}

static int translate(const struct flags *f, struct tt_cluster_megatron *m)
{
    int rc = 0;

    if (!given(f, F_BF16) && !given(f, F_FP16))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: without --bf16 or --fp16 Megatron trains in float32, which is not "
                                  "modelled\nhelp: add --bf16"));
    TT_TRY(model(f, m));
    TT_TRY(layout(f, m));
    TT_TRY(recomputation(f, m));
    m->float8 = given(f, F_FP8) || given(f, F_FP8_HYBRID);
    m->async_tp = given(f, F_TP_OVERLAP);
    m->sequence_parallel = given(f, F_SEQUENCE_PARALLEL);
    m->distributed_optimizer = given(f, F_DISTRIBUTED_OPTIMIZER);
out:
    return rc;
}

int tt_cluster_megatron_read(const char *path, int n_words, const char *const *words,
                             struct tt_cluster_megatron *ret_megatron)
{
    struct tt_cluster_megatron m = {0};
    struct flags f = {{NULL}};
    char *text = NULL;
    size_t size;
    int rc = 0;

    if (path) {
        TT_TRY(tt_file_read(path, &text, &size));
        TT_TRY(take_script(&f, text));
    }
    TT_TRY(take_words(&f, n_words, words));
    TT_TRY(translate(&f, &m));
out:
    for (int i = 0; i < FLAGS; i++)
        tt_free(f.value[i]);
    tt_free(text);
    if (rc < 0)
        tt_cluster_megatron_release(&m);
    *ret_megatron = m;
    return rc;
}

void tt_cluster_megatron_release(struct tt_cluster_megatron *m)
{
    for (int i = 0; i < m->n; i++)
        tt_free(m->override[i]);
    tt_free(m->override);
    *m = (struct tt_cluster_megatron){0};
}

bool tt_cluster_is_megatron(int n_words, const char *const *words)
{
    bool any = false;

    for (int i = 0; i < n_words; i++) {
        if (!begins(words[i], "--"))
            continue;
        if (strchr(words[i], '.') || begins(words[i], "--module") || begins(words[i], "--config"))
            return false;
        any = true;
    }
    return any;
}
