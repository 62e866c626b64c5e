/* SPDX-License-Identifier: MIT
 *
 * Flags of Megatron-LM as text: which are read, left out, or free.
 */
#include "cli/cluster/inputs/megatron_flags.h"

#include <stdbool.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"

const char *const tt_megatron_flag_names[TT_MEGATRON_FLAGS] = {
#define X(id, name, kind) name,
#include "cli/cluster/inputs/megatron_flags.def"
#undef X
};

static const char *const harmless[] = {
#define FREE(name) name,
#include "cli/cluster/inputs/megatron_flags.def"
#undef FREE
};

static const struct {
    const char *name, *value, *why;
} left_out[] = {
#define NOTE(name, value, why) {name, value, why},
#include "cli/cluster/inputs/megatron_flags.def"
#undef NOTE
};

/* A flag that has one of these words and is not known might change the cost. */
static const char *const costly[] = {
    "activation-check",
    "adapter",
    "attention",
    "bf16",
    "checkpoint-act",
    "cuda-graph",
    "deepspeed",
    "dtype",
    "expert",
    "fp16",
    "fp32",
    "fp4",
    "fp8",
    "fsdp",
    "hidden",
    "hybrid",
    "int4",
    "int8",
    "layers",
    "lora",
    "mamba",
    "mixed",
    "moe",
    "mtp",
    "mxfp",
    "offload",
    "optimizer",
    "overlap",
    "parallel",
    "peft",
    "pipeline",
    "precision",
    "quant",
    "recompute",
    "sharding",
    "tensor-",
    "tp-comm",
    "zero",
};

static const enum kind {
    VALUE,
    FILE_NAME,
    SWITCH
} kind_of[] = {
#define FILE              FILE_NAME
#define X(id, name, kind) kind,
#include "cli/cluster/inputs/megatron_flags.def"
#undef X
#undef FILE
};

/* --- names --- */

/* Whether a flag as it is written, "tensor_model_parallel_size=8", has a name of the tables, or begins with it. */
static bool is_named(const char *written, const char *name, bool is_beginning)
{
    for (; *name; written++, name++)
        if (*written != *name && !(*written == '_' && *name == '-'))
            return false;
    return is_beginning || !*written || *written == '=';
}

/* The flag that is read, or -1. */
static int find(const char *written)
{
    for (int i = 0; i < TT_MEGATRON_FLAGS; i++)
        if (is_named(written, tt_megatron_flag_names[i], false))
            return i;
    return -1;
}

bool tt_megatron_flag_is_read(const char *name)
{
    return find(name) >= 0;
}

bool tt_megatron_flag_has_value(const char *name)
{
    int at = find(name);

    return at >= 0 && kind_of[at] == VALUE;
}

bool tt_megatron_flag_is_switch(const char *name)
{
    int at = find(name);

    return at >= 0 && kind_of[at] == SWITCH;
}

/* Whether a name has a word that might change the cost. */
static bool is_costly(const char *name)
{
    for (size_t i = 0; i < sizeof costly / sizeof *costly; i++)
        for (const char *at = name; *at && *at != '='; at++)
            if (is_named(at, costly[i], true))
                return true;
    return false;
}

/* A flag is free by its beginning only if the rest has no costly word: "data-" and not "data-parallel-size". */
static bool is_free(const char *name)
{
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (is_named(name, harmless[i], true) && !is_costly(name + strlen(harmless[i])))
            return true;
    return false;
}

bool tt_megatron_flag_may_matter(const char *name)
{
    return find(name) >= 0 || !is_free(name);
}

/* --- reading --- */

/* A flag that is left out, unless its value is the usual one. */
static bool take_note(struct tt_megatron_flags *f, const char *name, const char *value)
{
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (strcmp(name, left_out[i].name) == 0) {
            char *key = tt_format("--%s", name);

            if (!*left_out[i].value || strcmp(value, left_out[i].value) != 0)
                tt_cluster_note(f->notes, key, strcmp(left_out[i].value, "false") == 0 ? "" : value, left_out[i].why);
            tt_free(key);
            return true;
        }
    return false;
}

/* Flags that look like one that is read are misspelt, and those with a costly word cannot be left out; others are. */
static void take_unknown(struct tt_megatron_flags *f, const char *name, const char *value)
{
    const char *near = tt_text_nearest(name, tt_megatron_flag_names, TT_MEGATRON_FLAGS);
    bool is_misspelt = near && tt_text_distance(name, near) <= 2;
    char *key = tt_format("--%s", name);

    if (is_misspelt || (is_costly(name) && !is_free(name))) {
        tt_text_add(&f->unknown, "%s%s", f->unknown.size ? ", " : "", key);
        if (*value)
            tt_text_add(&f->unknown, " %s", value);
        if (near)
            tt_text_add(&f->unknown, " (did you mean --%s?)", near);
    } else if (!is_free(name))
        tt_cluster_note(f->notes, key, value, "it is not known here, and taken not to matter");
    tt_free(key);
}

int tt_megatron_flags_check(struct tt_megatron_flags *f)
{
    if (!f->unknown.size)
        return 0;
    tt_text_make_printable(&f->unknown);
    return tt_fail(
        TT_EUSAGE,
        "estimate: flags of Megatron that are not known here, and that might change the cost: %s\nhelp: take "
        "them out, or give --ignore-flag NAME for each one that the prediction shall leave out",
        f->unknown.text);
}

static bool is_ignored(struct tt_megatron_flags *f, const char *name, const char *value)
{
    for (int i = 0; i < f->given->n_ignored; i++) {
        const char *ignored = f->given->ignored[i] + (tt_text_begins(f->given->ignored[i], "--") ? 2 : 0);
        char *key;

        if (!is_named(ignored, name, false))
            continue;
        key = tt_format("--%s", name);
        tt_cluster_note(f->notes, key, value, "--ignore-flag leaves it out");
        tt_free(key);
        return true;
    }
    return false;
}

/* A switch may be given as on; "off" is no value of it. */
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
        rc = kind_of[at] == SWITCH ? check_switch(key, value) : 0;
        tt_free(f->value[at]);
        f->value[at] = tt_strdup(value);
    }
    tt_free(key);
    return rc;
}

/* The modules of --recompute-modules from words that follow it. */
static char *modules(int n, const char *const *words)
{
    static const char *const all[] = {"core_attn", "moe_act", "layernorm",     "mla_up_proj",
                                      "mlp",       "moe",     "shared_experts"};
    struct tt_text text = {0};

    for (int i = 0; i < n; i++) {
        bool is_one = false;

        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            is_one = is_one || strcmp(words[i], all[k]) == 0;
        if (!is_one)
            break;
        tt_text_add(&text, "%s%s", i ? " " : "", words[i]);
    }
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

void tt_megatron_flags_release(struct tt_megatron_flags *f)
{
    for (int i = 0; i < TT_MEGATRON_FLAGS; i++)
        tt_free(f->value[i]);
    tt_text_release(&f->unknown);
}
