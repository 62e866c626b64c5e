/* SPDX-License-Identifier: MIT
 *
 * The keys of config.json that the class does not read. One that would change what the model computes is an error,
 * since titan would train another model than the one that the weights are of. Those that nobody knows are listed.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/hf/config.h"

#define LATENTS  "deepseek_v2 deepseek_v3"
#define SPARSE   "mixtral qwen3_moe gpt_oss " LATENTS
#define DECODERS "llama mistral qwen3 " SPARSE
#define ALL      "gpt2 " DECODERS
#define OFF      "false 0"
#define ONE      "1"

static const struct key {
    const char *name, *readers, *harmless, *owner;
} keys[] = {
#define K(name, readers, harmless, owner) {name, readers, harmless, owner},
#include "core/models/hf/keys.def"
#undef K
};

/* The members of a RoPE object, and the types that use them. */
static const struct {
    const char *name, *types;
} rope_members[] = {
    {"rope_type", "default llama3 yarn linear dynamic"},
    {"type", "default llama3 yarn linear dynamic"},
    {"rope_theta", "default llama3 yarn linear dynamic"},
    {"partial_rotary_factor", "default llama3 yarn linear dynamic"},
    {"finetuned", "default llama3 yarn linear dynamic"},
    {"factor", "llama3 yarn linear dynamic"},
    {"original_max_position_embeddings", "llama3 yarn"},
    {"low_freq_factor", "llama3"},
    {"high_freq_factor", "llama3"},
    {"attention_factor", "yarn"},
    {"beta_fast", "yarn"},
    {"beta_slow", "yarn"},
    {"mscale", "yarn"},
    {"mscale_all_dim", "yarn"},
    {"truncate", "yarn"},
};

static const struct key *find_key(const char *name)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i].name, name) == 0)
            return &keys[i];
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

/* Whether a value is what a word of keys.def says. */
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

static int fail_effect(const struct key *key, const json_t *value, const char *type, const char *where)
{
    enum { MOST = 60 };
    const char *owner = key->owner;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6));
    char *help = !*owner ? tt_strdup("")
                         : tt_format("It is a key of model_type %s%s. ", owner,
                                     tt_hf_class_of(owner) ? "" : ", which titan does not have");

    (void)tt_fail(TT_EDATA,
                  "%s: %s %.*s%s changes what a model computes, and models of model_type %s have no such thing\n"
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

/* The members of a RoPE object that its type does not use. */
static void list_rope(const json_t *config, const char *object, struct tt_text *list)
{
    const json_t *rope = json_object_get(config, object), *value, *type = json_object_get(rope, "rope_type");
    const char *name, *of;

    of = json_string_value(type ? type : json_object_get(rope, "type"));
    json_object_foreach((json_t *)(uintptr_t)rope, name, value)
    {
        bool used = json_is_null(value);

        for (size_t i = 0; i < sizeof rope_members / sizeof *rope_members && !used; i++)
            used = strcmp(rope_members[i].name, name) == 0 && has_word(rope_members[i].types, of ? of : "default");
        if (!used)
            list_key(list, object, name);
    }
}

int tt_hf_check_keys(const json_t *config, const char *where)
{
    const char *type = tt_hf_class(config)->type, *name;
    struct tt_text unused = {0};
    json_t *value;
    int rc = 0;

    json_object_foreach((json_t *)(uintptr_t)config, name, value)
    {
        const struct key *key = find_key(name);

        if (!key && *name != '_')
            list_key(&unused, "", name);
        if (key && !has_word(key->readers, type) && !is_harmless(value, key->harmless))
            TT_TRY(fail_effect(key, value, type, where));
    }
    list_rope(config, "rope_scaling", &unused);
    list_rope(config, "rope_parameters", &unused);
    if (unused.text)
        tt_note("%s: not used, since titan or the model does not know them: %s", where, unused.text);
out:
    tt_free(unused.text);
    return rc;
}
