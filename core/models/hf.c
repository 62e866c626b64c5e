/* SPDX-License-Identifier: MIT
 *
 * config.json: the members that all classes share, read and written. A member that would change the result in a way
 * that titan does not compute is refused by name. Members that only describe the file (dtype, cache, token ids) are
 * ignored. Keys that nobody knows are listed.
 */
#include "core/models/hf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/internal.h"

const struct tt_hf_class *tt_hf_find_class(const char *model_type, const struct tt_model_row **ret_row)
{
    for (int r = 0; r < tt_model_n_rows; r++) {
        for (int c = 0; c < tt_model_rows[r]->n_classes; c++) {
            const struct tt_hf_class *class = &tt_model_rows[r]->classes[c];

            *ret_row = tt_model_rows[r];
            if (strcmp(class->type, model_type) == 0 || (class->copy && strcmp(class->copy, model_type) == 0))
                return class;
        }
    }
    *ret_row = NULL;
    return NULL;
}

const struct tt_hf_class *tt_hf_class(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const struct tt_model_row *row;

    return type ? tt_hf_find_class(type, &row) : NULL;
}

/* --- keys that the class does not read --- */

#define OFF "false 0"
#define ONE "1"

static const struct known_key {
    const char *name, *word, *harmless, *owner;
} known_keys[] = {
#define K(name, word, harmless, owner) {name, word, harmless, owner},
#include "core/models/hf_keys.def"
#undef K
#undef OFF
#undef ONE
};

/* The members of a RoPE object, and the types that use them. */
static const struct {
    const char *name, *types;
} rope_members[] = {
    {"rope_type", "default llama3 yarn longrope su linear dynamic"},
    {"type", "default llama3 yarn longrope su linear dynamic"},
    {"rope_theta", "default llama3 yarn longrope su linear dynamic"},
    {"partial_rotary_factor", "default llama3 yarn longrope su linear dynamic"},
    {"finetuned", "default llama3 yarn longrope su linear dynamic"},
    {"factor", "llama3 yarn longrope su linear dynamic"},
    {"original_max_position_embeddings", "llama3 yarn longrope su"},
    {"low_freq_factor", "llama3"},
    {"high_freq_factor", "llama3"},
    {"attention_factor", "yarn longrope su"},
    {"short_factor", "yarn longrope su"},
    {"long_factor", "yarn longrope su"},
    {"beta_fast", "yarn"},
    {"beta_slow", "yarn"},
    {"mscale", "yarn"},
    {"mscale_all_dim", "yarn"},
    {"truncate", "yarn"},
};

static const struct known_key *find_key(const char *name)
{
    for (size_t i = 0; i < sizeof known_keys / sizeof *known_keys; i++)
        if (strcmp(known_keys[i].name, name) == 0)
            return &known_keys[i];
    return NULL;
}

/* The next word of *text, of n bytes; NULL: no more. */
static const char *next_word(const char **text, size_t *ret_n)
{
    const char *word = *text + strspn(*text, " ");

    *ret_n = strcspn(word, " ");
    *text = word + *ret_n;
    return *ret_n > 0 ? word : NULL;
}

static bool has_word(const char *text, const char *wanted)
{
    const char *word;
    size_t n;

    while ((word = next_word(&text, &n)))
        if (n == strlen(wanted) && strncmp(word, wanted, n) == 0)
            return true;
    return false;
}

/* Whether a value equals the one that a word of hf_keys.def stands for. */
static bool is_value(const json_t *value, const char *word, size_t n)
{
    char *end = NULL;
    double number;

    if (n == 1 && *word == '*')
        return true;
    if (json_is_boolean(value))
        return n == strlen(json_is_true(value) ? "true" : "false") && *word == (json_is_true(value) ? 't' : 'f');
    if (json_is_object(value))
        return *word == '{' && json_object_size(value) == 0;
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++)
            if (*word != '[' || !is_value(json_array_get(value, i), word + 1, n - 2))
                return false;
        return *word == '[';
    }
    if (json_is_string(value))
        return n == json_string_length(value) && strncmp(word, json_string_value(value), n) == 0;
    number = strtod(word, &end);
    return json_is_number(value) && end == word + n && number == json_number_value(value);
}

static bool is_harmless(const json_t *value, const char *harmless)
{
    const char *word;
    size_t n;

    while ((word = next_word(&harmless, &n)))
        if (is_value(value, word, n))
            return true;
    return json_is_null(value);
}

static int fail_effect(const struct known_key *key, const json_t *value, const char *type, const char *where)
{
    enum { MOST = 60 };
    const struct tt_model_row *row;
    const char *owner = key->owner;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6));
    char *help = !*owner ? tt_strdup("")
                         : tt_format("It is a key of model_type %s%s. ", owner,
                                     tt_hf_find_class(owner, &row) ? "" : ", which titan does not support");

    (void)tt_fail(TT_EDATA,
                  "%s: %s %.*s%s changes what a model computes, but titan does not support it for model_type %s\n"
                  "help: is model_type right? %sIf the weights were trained without it, remove the key",
                  where, key->name, MOST, text, strlen(text) > MOST ? "..." : "", type, help);
    free(text);
    tt_free(help);
    return TT_EDATA;
}

/* Adds a key to a list. A key may have any characters. */
static void list_key(struct tt_text *list, const char *object, const char *key)
{
    json_t *name = json_string(key);
    char *text = json_dumps(name, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);

    tt_text_add(list, "%s%s%s%s", list->text ? ", " : "", object, *object ? "." : "", text);
    free(text);
    json_decref(name);
}

/* Adds the members of a RoPE object that its type does not use to a list, which may be NULL; returns their number. */
static int list_rope(const json_t *config, const char *object, struct tt_text *list)
{
    const json_t *rope = json_object_get(config, object), *value, *type = json_object_get(rope, "rope_type");
    const char *name, *of;
    int n = 0;

    of = json_string_value(type ? type : json_object_get(rope, "type"));
    json_object_foreach((json_t *)(uintptr_t)rope, name, value)
    {
        bool used = json_is_null(value) || json_is_object(value); /* one for each kind of layer */

        for (size_t i = 0; i < sizeof rope_members / sizeof *rope_members && !used; i++)
            used = strcmp(rope_members[i].name, name) == 0 && has_word(rope_members[i].types, of ? of : "default");
        n += !used;
        if (!used && list)
            list_key(list, object, name);
    }
    return n;
}

/* Whether a class reads a key, or the key's value has no effect on it. */
static bool is_read(const struct tt_hf_class *class, const struct known_key *key, const char *name, const json_t *value)
{
    return strcmp(key->word, "all") == 0 || has_word(class->reads, key->word) || has_word(class->reads, name) ||
           is_harmless(value, key->harmless);
}

static int check_keys(const json_t *config, const char *where)
{
    const struct tt_hf_class *class = tt_hf_class(config);
    struct tt_text unused = {0};
    const char *name;
    json_t *value;
    int rc = 0;

    json_object_foreach((json_t *)(uintptr_t)config, name, value)
    {
        const struct known_key *key = find_key(name);

        if (!key && *name != '_' && !has_word(class->reads, name))
            list_key(&unused, "", name);
        if (key && !is_read(class, key, name, value))
            TT_TRY(fail_effect(key, value, class->type, where));
    }
    (void)list_rope(config, "rope_scaling", &unused);
    (void)list_rope(config, "rope_parameters", &unused);
    if (unused.text)
        tt_note("%s: not used, since titan or the model does not know them: %s", where, unused.text);
out:
    tt_free(unused.text);
    return rc;
}

/* --- reading --- */

static int fail_type(const char *key, const char *wanted, const char *where)
{
    return tt_fail(TT_EDATA, "%s: %s must be %s", where, key, wanted);
}

/* A key that has two names in a class: *ret_key is the name in the file. */
static int find_name(const json_t *config, const char *key, const char *other, const char *where, const char **ret_key)
{
    const json_t *a = tt_hf_member(config, key), *b = tt_hf_member(config, other);

    *ret_key = b ? other : key;
    if (!a || !b || json_equal(a, b))
        return 0;
    return tt_fail(TT_EDATA,
                   "%s: %s and %s are two names of one size, but their values differ\n"
                   "help: remove the wrong one; transformers takes %s",
                   where, key, other, other);
}

/* absent: as in tt_hf_int. */
static int read_int(const json_t *config, const char *key, int64_t least, int64_t absent, const char *where,
                    int64_t *ret_value)
{
    const json_t *value = json_object_get(config, key);

    if (json_is_null(value) && absent > 0)
        return tt_fail(TT_EDATA, "%s: %s is null, which is not a size\nhelp: give a number; without the key it is %lld",
                       where, key, (long long)absent);
    if ((!value || json_is_null(value)) && absent < 0)
        return tt_fail(TT_EDATA, "%s: missing key '%s'", where, key);
    if (!value || json_is_null(value)) {
        *ret_value = absent;
        return 0;
    }
    if (!json_is_integer(value) || json_integer_value(value) < least)
        return fail_type(key, least > 0 ? "a positive integer" : "an integer that is not negative", where);
    *ret_value = (int64_t)json_integer_value(value);
    return 0;
}

int tt_hf_int(const json_t *config, const char *key, int64_t absent, const char *where, int64_t *ret_value)
{
    return read_int(config, key, 1, absent, where, ret_value);
}

int tt_hf_real(const json_t *config, const char *key, double absent, const char *where, double *ret_value)
{
    const json_t *value = tt_hf_member(config, key);

    if (value && !json_is_number(value))
        return fail_type(key, "a number", where);
    *ret_value = value ? json_number_value(value) : absent;
    return 0;
}

int tt_hf_either(const json_t *config, const char *key, const char *other, double absent, const char *where,
                 double *ret_value)
{
    int rc = other ? find_name(config, key, other, where, &key) : 0;

    return rc < 0 ? rc : tt_hf_real(config, key, absent, where, ret_value);
}

int tt_hf_bool(const json_t *config, const char *key, bool absent, const char *where, bool *ret_value)
{
    const json_t *value = json_object_get(config, key);

    if (value && !json_is_boolean(value) && !json_is_null(value))
        return fail_type(key, "true or false", where);
    *ret_value = value ? json_is_true(value) : absent;
    return 0;
}

static int read_key(const json_t *config, const struct tt_hf_key *row, const char *where, struct tt_model_dims *dims)
{
    char *at = (char *)dims + row->at;
    int64_t *n = (int64_t *)(void *)at;
    const char *key = row->key;
    double real = 0.0;
    bool flag = false;
    int rc = 0;

    if (row->other)
        TT_TRY(find_name(config, row->key, row->other, where, &key));
    switch (row->kind) {
    case TT_HF_SIZE:
    case TT_HF_COUNT:
        rc = read_int(config, key, row->kind == TT_HF_SIZE, *n, where, n);
        break;
    case TT_HF_NULLABLE:
        rc = json_object_get(config, key) ? tt_hf_int(config, key, 0, where, n) : 0;
        break;
    case TT_HF_REAL:
        rc = tt_hf_real(config, key, *(double *)(void *)at, where, (double *)(void *)at);
        break;
    case TT_HF_FLOAT:
        rc = tt_hf_real(config, key, (double)*(float *)(void *)at, where, &real);
        *(float *)(void *)at = (float)real;
        break;
    case TT_HF_TIED:
        rc = tt_hf_bool(config, key, dims->tied == 1, where, &flag);
        dims->tied = flag;
        break;
    }
out:
    return rc;
}

int tt_hf_read(const json_t *config, const struct tt_hf_key *keys, size_t n, const char *where,
               struct tt_model_dims *dims)
{
    int rc = 0;

    for (size_t i = 0; i < n && rc == 0; i++)
        rc = read_key(config, &keys[i], where, dims);
    return rc;
}

int tt_hf_must_be(const json_t *config, const char *key, const char *wanted, const char *where)
{
    const json_t *value = tt_hf_member(config, key);

    if (!value)
        return 0;
    if (!json_is_string(value))
        return fail_type(key, "a string", where);
    if (strcmp(json_string_value(value), wanted) == 0)
        return 0;
    return tt_fail(TT_EDATA, "%s: %s '%s' is not supported; only '%s' is", where, key, json_string_value(value),
                   wanted);
}

int tt_hf_must_be_flag(const json_t *config, const char *key, bool wanted, const char *where)
{
    bool on = wanted;
    int rc = tt_hf_bool(config, key, wanted, where, &on);

    if (rc == 0 && on != wanted)
        return tt_fail(TT_EDATA, "%s: %s %s is not supported", where, key,
                       on                                           ? "true"
                       : json_is_null(json_object_get(config, key)) ? "null"
                                                                    : "false");
    return rc;
}

int tt_hf_must_equal(const json_t *config, const char *key, double wanted, const char *where)
{
    double value = wanted;
    int rc = tt_hf_real(config, key, wanted, where, &value);

    if (rc == 0 && value != wanted)
        return tt_fail(TT_EDATA, "%s: %s %g is not supported; only %g is", where, key, value, wanted);
    return rc;
}

/* Mistral's and Mixtral's classes do not read use_sliding_window: a window that the file switches off would still
 * count. */
static int check_use(const json_t *config, const char *where, int64_t window)
{
    if (!window || !json_object_get(config, "use_sliding_window") ||
        json_is_true(json_object_get(config, "use_sliding_window")))
        return 0;
    return tt_fail(TT_EDATA,
                   "%s: use_sliding_window turns the window off, but model_type %s ignores this key and has "
                   "sliding_window %lld\n"
                   "help: set sliding_window to null if the model has no window, else remove use_sliding_window",
                   where, tt_hf_class(config)->type, (long long)window);
}

/* The window that config.json switches on; 0: none. */
static int read_window(const json_t *config, const struct tt_hf_windows *of, const char *where, int64_t *ret_window)
{
    const json_t *value = json_object_get(config, "sliding_window");
    bool used = !of->needs_use;
    int64_t window = of->absent;
    int rc = 0;

    if (!of->any || of->needs_use)
        TT_TRY(tt_hf_bool(config, "use_sliding_window", used, where, &used));
    if (value && (used || json_integer_value(value) != 0)) /* Qwen2-MoE's class writes 0 if there is none */
        TT_TRY(tt_hf_int(config, "sliding_window", 0, where, &window));
    *ret_window = used ? window : 0;
    if (of->any && !of->needs_use)
        rc = check_use(config, where, window);
out:
    return rc;
}

int tt_hf_layers(const json_t *list, int64_t n, bool (*is_in)(const json_t *member), const char *key, const char *where,
                 struct tt_layers *ret_layers)
{
    struct tt_layers every = {0}, bits = {0};
    bool is_period = true;

    for (int64_t l = 0; l < n && every.every == 0; l++)
        every.every = is_in(json_array_get(list, (size_t)l)) ? l + 1 : 0;
    for (int64_t l = 0; l < n; l++) {
        bool in = is_in(json_array_get(list, (size_t)l));

        is_period = is_period && in == tt_layers_have(&every, l);
        if (in && l < TT_LAYER_BITS)
            bits.bits |= INT64_C(1) << l;
    }
    *ret_layers = is_period ? every : bits;
    for (int64_t l = TT_LAYER_BITS; l < n && !is_period; l++)
        if (is_in(json_array_get(list, (size_t)l)))
            return tt_fail(TT_EDATA,
                           "%s: %s is not supported: from layer %d on, titan can only treat every n-th layer "
                           "differently",
                           where, key, TT_LAYER_BITS);
    return 0;
}

static int check_layer_types(const json_t *config, const char *where)
{
    const json_t *types = tt_hf_member(config, "layer_types");
    const char *type;

    for (size_t i = 0; i < json_array_size(types); i++) {
        type = json_string_value(json_array_get(types, i));
        if (!type || strcmp(type, "full_attention") != 0) {
            return tt_fail(TT_EDATA, "%s: layer_types[%zu] '%s' is not supported; only 'full_attention' is", where, i,
                           type ? type : "(not a string)");
        }
    }
    return 0;
}

/* The command that writes unquantized files, for methods that have one. */
static const char *conversion_of(const char *method)
{
    static const struct {
        const char *method, *help;
    } known[] = {
        {"gptq", "python3 -c \"from gptqmodel import GPTQModel; GPTQModel.export('IN', 'OUT', 'hf')\""},
        {"compressed-tensors", "python3 -c \"from compressed_tensors.entrypoints.convert import *; "
                               "convert_checkpoint('IN', 'OUT', CompressedTensorsDequantizer('IN'))\""},
        {"awq", "python3 -c \"from compressed_tensors.entrypoints.convert import *; "
                "convert_checkpoint('IN', 'MID', AutoAWQConverter.from_pretrained('IN')); "
                "convert_checkpoint('MID', 'OUT', CompressedTensorsDequantizer('MID'))\""},
    };

    for (size_t i = 0; method && i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].method, method) == 0)
            return known[i].help;
    return "use the model's float32, bfloat16 or float16 files";
}

/* Older files of bitsandbytes do not name it. */
static bool is_bitsandbytes(const json_t *quantization, const char *method)
{
    return method ? strcmp(method, "bitsandbytes") == 0
                  : json_is_true(json_object_get(quantization, "load_in_4bit")) ||
                        json_is_true(json_object_get(quantization, "load_in_8bit"));
}

/* Weights in FP8, MXFP4 and bitsandbytes' forms are dequantized as they are read (checkpoint/read/rows.c). */
static int check_quantization(const json_t *config, const char *where)
{
    const json_t *quantization = tt_hf_member(config, "quantization_config");
    const char *method = json_string_value(tt_hf_member(quantization, "quant_method"));

    if (!quantization)
        return 0;
    if (method && strcmp(method, "fp8") == 0)
        return tt_hf_must_be(quantization, "fmt", "e4m3", where);
    if ((method && strcmp(method, "mxfp4") == 0) || is_bitsandbytes(quantization, method))
        return 0;
    return tt_fail(TT_EDATA,
                   "%s: quantization_config: quant_method '%s' is not supported; fp8, mxfp4 and bitsandbytes are\n"
                   "help: %s",
                   where, method ? method : "(none)", conversion_of(method));
}

static bool is_full(const json_t *type)
{
    return !json_is_string(type) || strcmp(json_string_value(type), "full_attention") == 0;
}

static bool is_windowed(const json_t *types, int64_t layer)
{
    const char *type = json_string_value(json_array_get(types, (size_t)layer));

    return type && strcmp(type, "sliding_attention") == 0;
}

/* Which layers of layer_types have a window, as tt_model_dims says it. */
static int read_windowed_layers(const json_t *types, const char *where, int64_t layers, struct tt_model_dims *dims)
{
    int64_t first = 0;

    for (int64_t l = 0; l < layers; l++)
        if (!is_windowed(types, l) && (!json_array_get(types, (size_t)l) || !is_full(json_array_get(types, (size_t)l))))
            return tt_fail(TT_EDATA,
                           "%s: layer_types are not supported: each of %lld layers must be 'sliding_attention' or "
                           "'full_attention'",
                           where, (long long)layers);
    while (first < layers && !is_windowed(types, first))
        first++;
    for (int way = 0; way < 2; way++) {
        struct tt_model_dims d = {.sliding_window = dims->sliding_window, .window_from = way == 0 ? first + 1 : 0};
        int64_t l = 0;

        while (l < layers && is_windowed(types, l) == tt_model_is_windowed(&d, l))
            l++;
        if (l == layers) {
            dims->window_from = d.window_from;
            dims->full = (struct tt_layers){0};
            return 0;
        }
    }
    dims->window_from = 0;
    return tt_hf_layers(types, layers, is_full, "layer_types", where, &dims->full);
}

static int read_windows(const json_t *config, const char *where, struct tt_model_dims *dims)
{
    const struct tt_hf_windows *of = &tt_hf_class(config)->window;
    const json_t *types = tt_hf_member(config, "layer_types");
    int64_t window = 0, first = 0;
    int rc = 0;

    TT_TRY(read_window(config, of, where, &window));
    if (!window)
        return check_layer_types(config, where);
    if (!of->any)
        return tt_fail(TT_EDATA, "%s: sliding_window attention is not supported", where);
    if (has_word(tt_hf_class(config)->reads, "max_window_layers"))
        TT_TRY(read_int(config, "max_window_layers", 0, of->layers, where, &first));
    dims->sliding_window = window;
    dims->window_from = of->every ? 0 : first + 1;
    dims->full.every = of->every;
    if (types)
        TT_TRY(read_windowed_layers(types, where, dims->n_layers, dims));
    if (types && !of->by_layers && (dims->window_from != 1 || dims->full.every || dims->full.bits))
        return tt_fail(TT_EDATA, "%s: layer_types are not supported: the layers of a %s all have the window", where,
                       tt_hf_class(config)->type);
    if (!dims->full.every && !dims->full.bits && dims->window_from > dims->n_layers)
        dims->sliding_window = dims->window_from = 0;
out:
    return rc;
}

int tt_hf_sizes(const json_t *config, const char *where, struct tt_model_dims *d)
{
    static const struct tt_hf_key keys[] = {
        TT_HF_KEY("hidden_size", NULL, SIZE, dim),
        TT_HF_KEY("num_hidden_layers", NULL, SIZE, n_layers),
        TT_HF_KEY("num_attention_heads", NULL, SIZE, n_heads),
        TT_HF_KEY("num_key_value_heads", NULL, NULLABLE, n_kv_heads), /* null: the same number as heads */
        TT_HF_KEY("intermediate_size", NULL, SIZE, ffn_dim),
        TT_HF_KEY("vocab_size", NULL, SIZE, vocab_size),
        TT_HF_KEY("max_position_embeddings", NULL, SIZE, max_positions),
        TT_HF_KEY("tie_word_embeddings", NULL, TIED, tied),
    };
    const struct tt_hf_class *class = tt_hf_class(config);
    const struct tt_hf_key eps = TT_HF_KEY(class->eps ? class->eps : "rms_norm_eps", NULL, FLOAT, norm_eps);
    int rc = 0;

    TT_TRY(tt_hf_read(config, keys, sizeof keys / sizeof *keys, where, d));
    TT_TRY(tt_hf_read(config, &eps, 1, where, d));
    if (d->n_layers > TT_MOST_LAYERS) /* the others may be examined one by one */
        return tt_fail(TT_EDATA, "%s: num_hidden_layers is %lld; at most %d is supported", where,
                       (long long)d->n_layers, TT_MOST_LAYERS);
    TT_TRY(tt_hf_read_rope(config, where, d));
out:
    return rc;
}

/* Whether mlp_only_layers names a layer. */
static bool is_listed(const json_t *layers, int64_t layer)
{
    for (size_t i = 0; i < json_array_size(layers); i++)
        if (json_integer_value(json_array_get(layers, i)) == layer)
            return true;
    return false;
}

/* A layer is dense if mlp_only_layers contains it, or if its number, from 1 on, is not a multiple of
 * decoder_sparse_step. */
static int read_dense_layers(const json_t *config, const char *where, int64_t layers, struct tt_moe *moe)
{
    const json_t *listed = tt_hf_member(config, "mlp_only_layers");
    int64_t step = 1;
    int rc = 0;

    TT_TRY(tt_hf_int(config, "decoder_sparse_step", 1, where, &step));
    if (listed && !json_is_array(listed))
        return fail_type("mlp_only_layers", "a list of layers", where);
    for (size_t i = 0; i < json_array_size(listed); i++)
        if (!json_is_integer(json_array_get(listed, i)))
            return fail_type("mlp_only_layers", "a list of layers", where);
    for (int64_t l = 0; l < layers; l++) {
        if (!is_listed(listed, l) && (l + 1) % step == 0)
            continue;
        if (l == moe->dense_layers)
            moe->dense_layers++;
        else if (l < TT_LAYER_BITS)
            moe->dense_set |= INT64_C(1) << l;
        else
            return tt_fail(TT_EDATA,
                           "%s: layer %lld has no experts (decoder_sparse_step %lld or mlp_only_layers), but an "
                           "earlier layer has; titan supports this only in the first %d layers",
                           where, (long long)l, (long long)step, TT_LAYER_BITS);
    }
out:
    return rc;
}

int tt_hf_router_logits(const json_t *config, const char *where)
{
    bool on = false;
    int rc = tt_hf_bool(config, "output_router_logits", false, where, &on);

    if (rc == 0 && on)
        tt_note(
            "%s: output_router_logits: the balance loss that transformers adds in training (router_aux_loss_coef) is "
            "not added; %s adds one like it",
            where, TT_KEY_NAME(training.microbatch_balance_loss));
    return rc;
}

/* For Qwen3's class, or for Mixtral's and OLMoE's, whose experts are as wide as the feed-forward. */
static int read_experts(const json_t *config, const char *where, struct tt_model_dims *d)
{
    static const struct tt_hf_key keys[] = {
        TT_HF_KEY("num_experts", "num_local_experts", SIZE, moe.experts),
        TT_HF_KEY("num_experts_per_tok", NULL, SIZE, moe.top_k),
        TT_HF_KEY("moe_intermediate_size", NULL, SIZE, moe.ffn_dim),
    };
    const char *reads = tt_hf_class(config)->reads;
    bool normalized = !d->moe.gates_as_scored, have_width = d->moe.ffn_dim > 0;
    int rc = 0;

    TT_TRY(tt_hf_read(config, keys, have_width ? 3 : 2, where, d));
    TT_TRY(tt_hf_router_logits(config, where));
    TT_TRY(tt_hf_must_equal(config, "router_jitter_noise", 0.0, where));
    if (has_word(reads, "norm_topk_prob"))
        TT_TRY(tt_hf_bool(config, "norm_topk_prob", normalized, where, &normalized));
    if (has_word(reads, "decoder_sparse_step"))
        TT_TRY(read_dense_layers(config, where, d->n_layers, &d->moe));
    d->moe.gates_as_scored = !normalized;
out:
    return rc;
}

static int read_biases(const json_t *config, const struct tt_decoder *decoder, const char *where,
                       struct tt_model_dims *d)
{
    const struct tt_hf_class *class = tt_hf_class(config);
    bool attention = d->qkv_bias;
    int rc = 0;

    if (class->mlp_bias)
        TT_TRY(tt_hf_bool(config, "mlp_bias", d->mlp_bias, where, &d->mlp_bias));
    else
        TT_TRY(tt_hf_must_be_flag(config, "mlp_bias", false, where));
    if (class->attention_bias == TT_HF_BIAS_NONE)
        return tt_hf_must_be_flag(config, "attention_bias", decoder->qkv_bias, where);
    TT_TRY(tt_hf_bool(config, "attention_bias", attention, where, &attention));
    if (class->attention_bias == TT_HF_BIAS_IGNORED) {
        if (json_is_false(json_object_get(config, "attention_bias")))
            tt_note("%s: attention_bias false has no effect: q, k and v of a %s have biases", where, class->type);
        return 0;
    }
    d->qkv_bias = attention;
    if (class->attention_bias == TT_HF_BIAS_ALL)
        d->out_bias = attention;
out:
    return rc;
}

int tt_hf_note_dropout(const json_t *config, const char *const *keys, const char *where)
{
    double most = 0.0, value = 0.0;
    int rc = 0;

    for (; *keys; keys++) {
        TT_TRY(tt_hf_real(config, *keys, 0.0, where, &value));
        most = fmax(most, value);
    }
    if (most > 0.0)
        tt_note("%s: dropout of %g is not applied", where, most);
out:
    return rc;
}

/* Weights trained with dropout and weights trained without it are equally usable without it. */
static int read_dropout(const json_t *config, const struct tt_hf_class *class, const char *where)
{
    static const char *const keys[] = {"attention_dropout",
                                       "residual_dropout",
                                       "embedding_dropout",
                                       "resid_pdrop",
                                       "embd_pdrop",
                                       "hidden_dropout",
                                       NULL};

    if (has_word(class->reads, "dropout"))
        return tt_hf_note_dropout(config, keys, where);
    return tt_hf_must_equal(config, "attention_dropout", 0.0, where);
}

/* The names that transformers has for a function, of which files get the first. */
static const char *const activations[] = {[TT_ACTIVATION_SILU] = "silu swish",
                                          [TT_ACTIVATION_GELU_TANH] =
                                              "gelu_pytorch_tanh gelu_new gelu_fast gelu_accurate gelu_python_tanh",
                                          [TT_ACTIVATION_GELU] = "gelu gelu_python"};

static bool is_activation(enum tt_activation activation, const json_t *name)
{
    return json_is_string(name) && has_word(activations[activation], json_string_value(name));
}

json_t *tt_hf_activation(enum tt_activation activation)
{
    return json_stringn(activations[activation], strcspn(activations[activation], " "));
}

int tt_hf_must_be_activation(const json_t *config, const char *key, enum tt_activation activation, const char *where)
{
    const json_t *name = tt_hf_member(config, key);

    if (name && !json_is_string(name))
        return fail_type(key, "a string", where);
    if (!name || is_activation(activation, name))
        return 0;
    return tt_fail(TT_EDATA, "%s: %s '%s' is not supported; only '%.*s' is", where, key, json_string_value(name),
                   (int)strcspn(activations[activation], " "), activations[activation]);
}

/* Whether a hidden_act is GELU's tanh form, for a decoder that has the exact form too. */
static bool is_tanh_gelu(const struct tt_decoder *decoder, const json_t *name)
{
    return decoder->activation == TT_ACTIVATION_GELU && is_activation(TT_ACTIVATION_GELU_TANH, name);
}

/* Gemma's first files say gelu and mean its tanh form. */
static bool is_called_gelu(const struct tt_hf_class *class, const json_t *name)
{
    return class->gelu_is_tanh && is_activation(TT_ACTIVATION_GELU, name);
}

static int read_activation(const json_t *config, const struct tt_decoder *decoder, const char *where,
                           struct tt_model_dims *d)
{
    const json_t *name = json_object_get(config, "hidden_act");

    d->tanh_gelu = is_tanh_gelu(decoder, name);
    if (d->tanh_gelu || is_called_gelu(tt_hf_class(config), name))
        return 0;
    return tt_hf_must_be_activation(config, "hidden_act", decoder->activation, where);
}

/* Refuses features that Llama's blocks lack. Windows are refused if the class has none. */
static int read_decoder(const json_t *config, const struct tt_decoder *decoder, const char *where,
                        struct tt_model_dims *d)
{
    int rc = 0;

    TT_TRY(read_activation(config, decoder, where, d));
    TT_TRY(read_biases(config, decoder, where, d));
    if (!d->mla.kv_rank) /* otherwise it is the size of the rotated part */
        TT_TRY(tt_hf_int(config, "head_dim", d->head_dim, where, &d->head_dim));
    TT_TRY(tt_hf_sizes(config, where, d));
    TT_TRY(read_windows(config, where, d));
    if (d->moe.experts && !has_word(tt_hf_class(config)->reads, "routed")) /* DeepSeek's experts have other keys */
        TT_TRY(read_experts(config, where, d));
out:
    return rc;
}

/* Whether a class refuses the value of a key that it reads. */
static bool is_refused(const struct tt_decoder *decoder, const struct tt_hf_class *class, const char *name,
                       const json_t *value)
{
    if (strcmp(name, "hidden_act") == 0) /* gpt_oss has no decoder */
        return json_is_string(value) && !is_activation(decoder ? decoder->activation : TT_ACTIVATION_SILU, value) &&
               !(decoder && is_tanh_gelu(decoder, value)) && !is_called_gelu(class, value);
    if (strcmp(name, "rms_norm_eps") == 0)
        return class->eps != NULL;
    if (decoder && strcmp(name, "attention_bias") == 0)
        return json_is_true(value) && class->attention_bias == TT_HF_BIAS_NONE && !decoder->qkv_bias;
    return strcmp(name, "partial_rotary_factor") == 0 && class->rotated == 0.0 && json_is_number(value) &&
           json_number_value(value) != 1.0;
}

/* The number of keys of a file that would not have their effect with a class of `row`; list may be NULL. */
static int list_differences(const json_t *config, const struct tt_model_row *row, const struct tt_hf_class *class,
                            struct tt_text *list)
{
    enum { MOST = 40 };
    const char *name;
    json_t *value;
    int n = 0;

    json_object_foreach((json_t *)(uintptr_t)config, name, value)
    {
        const struct known_key *key = find_key(name);
        char *text;

        if (*name == '_' || (key && is_read(class, key, name, value) && !is_refused(row->decoder, class, name, value)))
            continue;
        n++;
        if (!list)
            continue;
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6));
        list_key(list, "", name);
        tt_text_add(list, " %.*s%s", MOST, text, strlen(text) > MOST ? "..." : "");
        free(text);
    }
    if (has_word(class->reads, "decoder"))
        n += list_rope(config, "rope_scaling", list) + list_rope(config, "rope_parameters", list) > 0;
    return n;
}

/* Whether a file is of a model with experts, or with latent attention, but the class has none; or the reverse. */
static int count_kinds(const json_t *config, const struct tt_hf_class *class)
{
    static const char *const counts[] = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"};
    bool experts = false, latent = json_is_integer(json_object_get(config, "kv_lora_rank"));

    for (int i = 0; i < TT_COUNT(counts); i++)
        experts = experts || json_integer_value(json_object_get(config, counts[i])) > 1;
    return (experts != (class->dims.moe.experts > 0)) + (latent != (class->dims.mla.kv_rank > 0));
}

const struct tt_hf_class *tt_hf_nearest(const json_t *config, const struct tt_model_row **ret_row,
                                        struct tt_text *differences)
{
    const struct tt_hf_class *nearest = NULL;
    int fewest = 0;

    if (tt_hf_class(config)) /* a part of a file, which titan reads by itself */
        return tt_hf_find_class(json_string_value(json_object_get(config, "model_type")), ret_row);
    for (int r = 0; r < tt_model_n_rows; r++)
        for (int c = 0; c < tt_model_rows[r]->n_classes; c++) {
            const struct tt_hf_class *class = &tt_model_rows[r]->classes[c];
            int n = list_differences(config, tt_model_rows[r], class, NULL) + count_kinds(config, class);

            if (nearest && n >= fewest)
                continue;
            nearest = &tt_model_rows[r]->classes[c];
            *ret_row = tt_model_rows[r];
            fewest = n;
        }
    (void)list_differences(config, *ret_row, nearest, differences);
    return nearest;
}

int tt_hf_read_dims(const json_t *config, const char *where, struct tt_model_dims *ret_dims)
{
    const struct tt_model_row *row;
    const struct tt_hf_class *class = tt_hf_find_class(json_string_value(json_object_get(config, "model_type")), &row);
    struct tt_model_dims d = class->dims;
    int rc = 0;

    TT_TRY(check_keys(config, where));
    TT_TRY(read_dropout(config, class, where));
    TT_TRY(check_quantization(config, where));
    if (row->decoder)
        TT_TRY(read_decoder(config, row->decoder, where, &d));
    if (row->read_hf_config)
        TT_TRY(row->read_hf_config(config, where, &d));
    *ret_dims = d;
out:
    return rc;
}

/* --- writing --- */

double tt_hf_decimal(float value)
{
    enum { FLOAT_DIGITS = 9 };
    char text[32];

    for (int digits = 1; digits <= FLOAT_DIGITS; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    return strtod(text, NULL);
}

json_t *tt_hf_float(float value)
{
    return tt_json_number(tt_hf_decimal(value));
}

/* Writes the sizes that have Llama's keys, and RoPE in the spelling of transformers 4, which 5 converts. */
static void write_decoder(json_t *config, const struct tt_hf_class *class, const struct tt_model *model)
{
    static const struct tt_decoder plain = {0};
    const struct tt_model_dims *d = &model->dims;
    const struct tt_decoder *decoder = model->row->decoder ? model->row->decoder : &plain;

    (void)json_object_update_new(
        config, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o*}", "hidden_size", (json_int_t)d->dim,
                          "num_hidden_layers", (json_int_t)d->n_layers, "num_attention_heads", (json_int_t)d->n_heads,
                          "num_key_value_heads", (json_int_t)d->n_kv_heads, "head_dim", (json_int_t)d->head_dim,
                          "intermediate_size", (json_int_t)d->ffn_dim, "max_position_embeddings",
                          d->max_positions > 0 ? json_integer(d->max_positions) : NULL));
    (void)json_object_update_new(
        config,
        json_pack("{s:o, s:o, s:o, s:o, s:b, s:f}", class->eps ? class->eps : "rms_norm_eps", tt_hf_float(d->norm_eps),
                  "rope_theta", tt_json_number(d->rope.theta), "rope_scaling", tt_hf_rope_scaling(d), "hidden_act",
                  tt_hf_activation(d->tanh_gelu ? TT_ACTIVATION_GELU_TANH : decoder->activation), "attention_bias",
                  decoder->qkv_bias || d->qkv_bias, "attention_dropout", 0.0));
    if (class->mlp_bias)
        (void)json_object_set_new(config, "mlp_bias", json_boolean(d->mlp_bias));
    if (class->rotated != 0.0)
        (void)json_object_set_new(config, "partial_rotary_factor", tt_json_number(tt_hf_rotated(d)));
}

static void write_windows(json_t *config, const struct tt_hf_class *class, const struct tt_model_dims *d)
{
    const struct tt_hf_windows *of = &class->window;
    json_t *types;

    if (of->needs_use)
        (void)json_object_set_new(config, "use_sliding_window", json_boolean(d->sliding_window > 0));
    if (of->any)
        (void)json_object_set_new(config, "sliding_window",
                                  d->sliding_window > 0 ? json_integer(d->sliding_window) : json_null());
    if (!of->by_layers || !d->sliding_window)
        return;
    types = json_array();
    for (int64_t l = 0; l < d->n_layers; l++)
        (void)json_array_append_new(types,
                                    json_string(tt_model_is_windowed(d, l) ? "sliding_attention" : "full_attention"));
    (void)json_object_set_new(config, "layer_types", types);
    if (has_word(class->reads, "max_window_layers"))
        (void)json_object_set_new(config, "max_window_layers",
                                  json_integer(d->window_from > 0 ? d->window_from - 1 : 0));
}

/*
 * Token ids are null, since absent ones would get the defaults of transformers, which belong to another tokenizer; and
 * the row of a class's own id of padding would get no gradient there, or lie outside of the vocabulary. Keys
 * that transformers 5 renamed are written with their names in 4, which both versions read.
 */
void *tt_model_hf_config(const struct tt_model *model)
{
    const struct tt_model_row *row = model->row;
    const struct tt_hf_class *class = &row->classes[row->class_of ? row->class_of(&model->dims) : 0];
    json_t *config =
        json_pack("{s:[s], s:s, s:s, s:I, s:b, s:n, s:n, s:n}", "architectures", class->architecture, "model_type",
                  class->type, "torch_dtype", "float32", "vocab_size", (json_int_t)model->dims.vocab_size,
                  "tie_word_embeddings", model->dims.tied == 1, "bos_token_id", "eos_token_id", "pad_token_id");

    if (has_word(class->reads, "decoder"))
        write_decoder(config, class, model);
    if (class->dims.local_theta != 0.0)
        tt_hf_write_ropes(config, &model->dims);
    write_windows(config, class, &model->dims);
    if (row->write_hf_config)
        row->write_hf_config(model, config);
    return config;
}
