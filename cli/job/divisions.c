/* SPDX-License-Identifier: MIT
 *
 * Into how many grains a layer can be divided; see divisions.h.
 */
#include "cli/job/divisions.h"

#include <inttypes.h>

#include "core/base/text.h"
#include "core/math/round.h"

enum { SIZES = 5 };

/* What is divided into equal grains. */
struct sizes {
    struct {
        const char *name;
        int64_t size;
    } of[SIZES];
    int n;
    int64_t vocabulary; /* the last grain of it may be smaller, and not empty */
};

static struct sizes sizes_of(const struct tt_config *cfg, const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;
    bool pipeline = cfg->parallelism.pipeline_parallel_degree > 1;
    int64_t batch = pipeline ? cfg->parallelism.pipeline_parallel_microbatch_size : cfg->training.local_batch_size;
    struct sizes sizes = {.of = {{"model.n_heads", d->n_heads},
                                 {"model.n_kv_heads", d->n_kv_heads},
                                 {"model.ffn_dim", d->ffn_dim},
                                 {"the tokens of a microbatch,", batch * cfg->training.seq_len}},
                          .n = 4,
                          .vocabulary = d->vocab_size};

    if (cfg->validation.enable) {
        sizes.of[sizes.n].name = "the tokens of a batch of validation,";
        sizes.of[sizes.n++].size = cfg->validation.local_batch_size * cfg->validation.seq_len;
    }
    return sizes;
}

static bool has_rows(int64_t vocabulary, int64_t grains)
{
    return tt_div_up(vocabulary, grains) * (grains - 1) < vocabulary;
}

static bool divide(const struct sizes *sizes, int64_t grains)
{
    for (int i = 0; i < sizes->n; i++)
        if (sizes->of[i].size % grains != 0)
            return false;
    return has_rows(sizes->vocabulary, grains);
}

static void add_faults(const struct sizes *sizes, int64_t grains, struct tt_text *out)
{
    const char *comma = "";

    for (int i = 0; i < sizes->n; i++)
        if (sizes->of[i].size % grains != 0) {
            tt_text_add(out, "%s%s %" PRId64, comma, sizes->of[i].name, sizes->of[i].size);
            comma = ", ";
        }
    if (!has_rows(sizes->vocabulary, grains))
        tt_text_add(out, "%smodel.vocab_size %" PRId64, comma, sizes->vocabulary);
}

/* The degrees that work. The exact one is a power of two, and the other divides it or is larger. */
static void add_degrees(const struct sizes *sizes, enum tt_key key, int64_t exact, struct tt_text *out)
{
    for (int64_t degree = 1; degree <= TT_MOST_GRAINS; degree++) {
        bool fits =
            key == TT_KEY_EXACT_TP_DEGREE ? (degree & (degree - 1)) == 0 : degree >= exact || exact % degree == 0;

        if (fits && divide(sizes, key == TT_KEY_EXACT_TP_DEGREE || degree > exact ? degree : exact))
            tt_text_add(out, "%s%" PRId64, out->size ? ", " : "", degree);
    }
}

int tt_job_check_divisions(const struct tt_config *cfg, const struct tt_model *model)
{
    int64_t tp = cfg->parallelism.tensor_parallel_degree, exact = cfg->parallelism.exact_tensor_parallel_degree;
    enum tt_key key = exact >= tp ? TT_KEY_EXACT_TP_DEGREE : TT_KEY_TP_DEGREE;
    int64_t grains = exact >= tp ? exact : tp;
    struct sizes sizes = sizes_of(cfg, model);
    struct tt_text faults = {0}, degrees = {0};
    int rc;

    if (grains > 1 && model->dims.moe.experts > 0)
        return tt_fail_key(TT_EUSAGE, key,
                           "%" PRId64 ", but tensor parallelism does not divide layers of experts\nhelp: use "
                           "data_parallel_shard_degree or pipeline_parallel_degree",
                           grains);
    if (divide(&sizes, grains))
        return 0;
    add_faults(&sizes, grains, &faults);
    add_degrees(&sizes, key, exact, &degrees);
    rc = tt_fail_key(TT_EUSAGE, key, "%" PRId64 " parts of a layer are not possible with %s\nhelp: what works: %s",
                     grains, faults.text, degrees.text);
    tt_text_release(&faults);
    tt_text_release(&degrees);
    return rc;
}
