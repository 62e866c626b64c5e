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
static const char *const costly[] = {"parallel", "recompute", "moe-",   "expert", "fsdp",  "offload", "fp8",    "fp4",
                                     "hidden",   "attention", "layers", "mtp-",   "mamba", "hybrid",  "tp-comm"};

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

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

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

bool tt_megatron_flag_may_matter(const char *name)
{
    if (find(name) >= 0)
        return true;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (is_named(name, harmless[i], true))
            return false;
    return true;
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
static int check_unknown(struct tt_megatron_flags *f, const char *name, const char *value)
{
    const char *near = tt_text_nearest(name, tt_megatron_flag_names, TT_MEGATRON_FLAGS);
    bool matters = near && tt_text_distance(name, near) <= 2;
    char *key;

    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (begins(name, harmless[i]))
            return 0;
    for (size_t i = 0; i < sizeof costly / sizeof *costly; i++)
        matters = matters || strstr(name, costly[i]);
    if (matters)
        return tt_fail(TT_EUSAGE,
                       "estimate: Megatron's flag --%s is not known here, and it might change the cost\nhelp: "
                       "%s%s",
                       name, near ? "did you mean --" : "remove it", near ? near : "");
    key = tt_format("--%s", name);
    tt_cluster_note(f->notes, key, value, "it is not known here, and taken not to matter");
    tt_free(key);
    return 0;
}

/* Takes one flag, without its dashes, and its value. */
static int take(struct tt_megatron_flags *f, const char *name, const char *value)
{
    char *key = tt_strdup(name);
    int rc = 0, at = 0;

    for (char *c = key; *c; c++)
        *c = *c == '_' ? '-' : *c;
    while (at < TT_MEGATRON_FLAGS && strcmp(tt_megatron_flag_names[at], key) != 0)
        at++;
    if (at == TT_MEGATRON_FLAGS)
        rc = take_note(f, key, value) ? 0 : check_unknown(f, key, value);
    else {
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
        bool has_next = i + 1 < n && !begins(words[i + 1], "--");
        char *name, *several = NULL;

        if (!begins(words[i], "--"))
            continue;
        name = tt_format("%.*s", equal ? (int)(equal - words[i] - 2) : (int)strlen(words[i]) - 2, words[i] + 2);
        if (strcmp(name, tt_megatron_flag_names[TT_FLAG_RECOMPUTE_MODULES]) == 0 && has_next && !equal)
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
}
