/* SPDX-License-Identifier: MIT
 *
 * What the values of an architecture say besides its sizes: rows of keys, with the values that have no effect.
 */
#include "core/models/gguf_keys.h"

#include <string.h>

#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"

/* The first row of a key counts that is of the architecture, or of all (NULL). */
static const struct row {
    const char *key, *arch;
    enum { ANY, OFF, UNIT, TRUTH } harmless; /* ANY: it is read elsewhere, or changes nothing; UNIT: 0 or 1 */
} rows[] = {
    {"context_length", NULL, ANY},
    {"vocab_size", NULL, ANY},
    {"tensor_data_layout", NULL, ANY},
    {"pooling_type", NULL, ANY},
    {"rope.scale_linear", NULL, ANY},
    {"rope.scaling.type", NULL, ANY},
    {"rope.scaling.factor", NULL, ANY},
    {"rope.scaling.finetuned", NULL, ANY},
    {"rope.scaling.original_context_length", NULL, ANY},
    {"rope.scaling.attn_factor", NULL, ANY},
    {"rope.scaling.yarn_log_multiplier", "deepseek2", ANY},
    {"rope.scaling.yarn_ext_factor", NULL, ANY},
    {"rope.scaling.yarn_attn_factor", NULL, ANY},
    {"rope.scaling.yarn_beta_fast", NULL, ANY},
    {"rope.scaling.yarn_beta_slow", NULL, ANY},
    {"rope.scaling.alpha", NULL, OFF},
    {"attention.head_count_kv", NULL, ANY},
    {"attention.key_length", NULL, ANY},
    {"attention.value_length", NULL, ANY},
    {"attention.causal", NULL, TRUTH},
    {"attention.scale", NULL, OFF},
    {"attention.clamp_kqv", NULL, OFF},
    {"attention.max_alibi_bias", NULL, OFF},
    {"attention.sliding_window", NULL, OFF},
    {"attention.temperature_scale", NULL, OFF},
    {"attn_logit_softcapping", NULL, OFF},
    {"final_logit_softcapping", NULL, OFF},
    {"expert_gating_func", NULL, ANY},
    {"expert_weights_norm", NULL, ANY},
    {"expert_group_count", "deepseek2", ANY},
    {"expert_group_count", NULL, UNIT},
    {"expert_group_used_count", "deepseek2", ANY},
    {"expert_group_used_count", NULL, UNIT},
    {"expert_count", NULL, OFF}, /* of a model without experts */
    {"expert_used_count", NULL, OFF},
    {"expert_shared_count", NULL, OFF},
    {"expert_weights_scale", NULL, UNIT},
    {"leading_dense_block_count", NULL, OFF},
    {"nextn_predict_layers", NULL, OFF},
    {"logit_scale", NULL, UNIT},
    {"residual_scale", NULL, UNIT},
    {"embedding_scale", NULL, UNIT},
    {"use_parallel_residual", NULL, OFF},
};

static const struct row *find_row(const char *arch, const char *rest)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].key, rest) == 0 && (!rows[i].arch || strcmp(rows[i].arch, arch) == 0))
            return &rows[i];
    return NULL;
}

static int check_value(const struct tt_gguf *file, const struct tt_gguf_value *value, const struct row *row)
{
    const double none = 0.0;
    double real = 0.0;
    bool flag = false;
    int rc = 0;

    if (row->harmless == ANY)
        return 0;
    if (value->kind == TT_GGUF_BOOL) {
        TT_TRY(tt_gguf_bool(file, value->key, false, &flag));
        real = flag;
    } else {
        TT_TRY(tt_gguf_real(file, value->key, &none, &real));
    }
    if (real == (row->harmless == TRUTH ? 1.0 : 0.0) || (real == 1.0 && row->harmless == UNIT))
        return 0;
    rc = tt_fail(TT_EDATA, "'%s': '%s' is %g; titan has this model only with %s", file->path, value->key, real,
                 row->harmless == TRUTH  ? "true"
                 : row->harmless == UNIT ? "1"
                                         : "0");
out:
    return rc;
}

int tt_gguf_check_keys(const struct tt_gguf *file, const char *arch, bool (*is_size)(const void *arg, const char *rest),
                       const void *arg)
{
    char *prefix = tt_format("%s.", arch);
    struct tt_text unused = {0};
    int rc = 0;

    for (int i = 0; i < file->n_values; i++) {
        const struct tt_gguf_value *value = &file->value[i];
        const char *rest = value->key + strlen(prefix);
        const struct row *row;

        if (!tt_text_begins(value->key, prefix) || is_size(arg, rest))
            continue;
        row = find_row(arch, rest);
        if (row)
            TT_TRY(check_value(file, value, row));
        else
            tt_text_add(&unused, "%s%s", unused.size ? ", " : "", value->key);
    }
    if (unused.size)
        tt_note("%s: not used, since titan does not know them: %s", file->path, unused.text);
out:
    tt_text_release(&unused);
    tt_free(prefix);
    return rc;
}
