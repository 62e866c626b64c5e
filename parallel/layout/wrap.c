/* SPDX-License-Identifier: MIT
 *
 * Wrap policies; see wrap.h.
 */
#include "parallel/layout/wrap.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "parallel/layout/patterns.h"

static int64_t block_key(const struct tt_model *model, int param)
{
    int block = model->params[param].block;

    return block == TT_BLOCK_EMBEDDINGS && model->dims.tied == 1 ? TT_BLOCK_HEAD : block;
}

bool tt_wrap_is_head(const struct tt_model *model, int param)
{
    return block_key(model, param) == TT_BLOCK_HEAD;
}

static void by_block(const struct tt_model *model, int64_t bytes, int64_t *ret_keys)
{
    (void)bytes;
    for (int p = 0; p < model->n_params; p++)
        ret_keys[p] = block_key(model, p);
}

static void by_model(const struct tt_model *model, int64_t bytes, int64_t *ret_keys)
{
    (void)bytes;
    for (int p = 0; p < model->n_params; p++)
        ret_keys[p] = 0;
}

static void by_param(const struct tt_model *model, int64_t bytes, int64_t *ret_keys)
{
    (void)bytes;
    for (int p = 0; p < model->n_params; p++)
        ret_keys[p] = p;
}

static void by_size(const struct tt_model *model, int64_t bytes, int64_t *ret_keys)
{
    int64_t key = 0, have = 0;

    for (int p = 0; p < model->n_params; p++) {
        const struct tt_param *param = &model->params[p];
        int64_t size = (int64_t)sizeof(float);

        for (int d = 0; d < param->ndim; d++)
            size *= param->shape[d];
        ret_keys[p] = key;
        have += size;
        if (have >= bytes) {
            key++;
            have = 0;
        }
    }
}

const struct tt_wrap_row tt_wrap_rows[] = {
    {"block", by_block},
    {"model", by_model},
    {"param", by_param},
    {"size:", by_size},
};
const int tt_wrap_n_rows = sizeof tt_wrap_rows / sizeof tt_wrap_rows[0];

/* After a row's name that ends in ':' comes a number of bytes. */
static bool row_matches(const struct tt_wrap_row *row, const char *name, int64_t *ret_bytes)
{
    size_t n = strlen(row->name);

    if (row->name[n - 1] != ':')
        return strcmp(row->name, name) == 0;
    return strncmp(row->name, name, n) == 0 && tt_text_to_bytes(name + n, ret_bytes) && *ret_bytes > 0;
}

static int fail_unknown(const char *name)
{
    struct tt_text choices = {0};
    int rc;

    for (int i = 0; i < tt_wrap_n_rows; i++)
        tt_text_add(&choices, "%s%s%s", i ? ", " : "", tt_wrap_rows[i].name,
                    strchr(tt_wrap_rows[i].name, ':') ? "<bytes>" : "");
    rc = tt_fail_key(TT_EUSAGE, TT_KEY_WRAP_POLICY,
                     "'%s' is not a wrap policy\nhelp: use %s, or a list of regular expressions", name, choices.text);
    tt_text_release(&choices);
    return rc;
}

/* The keys of expressions are larger than those of all blocks. */
static int by_patterns(const struct tt_model *model, struct tt_words words, int64_t *ret_keys)
{
    const int64_t beyond = (int64_t)1 << 40;
    int *index = tt_calloc((size_t)model->n_params, sizeof *index);
    int rc = tt_patterns_of_params(TT_KEY_WRAP_POLICY, words, model, "expression", index);

    by_block(model, 0, ret_keys);
    for (int p = 0; p < model->n_params && rc == 0; p++)
        if (index[p] != TT_NONE)
            ret_keys[p] = beyond + index[p];
    tt_free(index);
    return rc;
}

int tt_wrap_keys(const struct tt_model *model, const char *name, struct tt_words patterns, int64_t *ret_keys)
{
    int64_t bytes = 0;

    if (patterns.n)
        return by_patterns(model, patterns, ret_keys);
    for (int i = 0; i < tt_wrap_n_rows; i++)
        if (row_matches(&tt_wrap_rows[i], name, &bytes)) {
            tt_wrap_rows[i].keys(model, bytes, ret_keys);
            return 0;
        }
    return fail_unknown(name);
}
