/* SPDX-License-Identifier: MIT
 *
 * Into how many grains layers and sequences can be divided, and among how many ranks experts; see divisions.h.
 */
#include "cli/job/divisions.h"

#include <inttypes.h>

#include "core/base/text.h"
#include "core/math/round.h"

enum { SIZES = 5 };

/* One of the two ways of dividing, each of which has a degree and an exact one. */
struct way {
    enum tt_key key, exact_key;
    int64_t degree, exact;
    const char *kind, *what;
};

/* What is divided into equal grains. */
struct sizes {
    struct {
        const char *name;
        int64_t size;
        bool by_both; /* the other way divides it too */
    } of[SIZES];
    int n;
    int64_t other;      /* the grains of the other way, */
    const char *others; /* and what it divides */
    int64_t vocabulary; /* the last grain of it may be smaller, and not empty; 0: it is not divided */
};

static int64_t grains_of(const struct way *way)
{
    return way->exact > way->degree ? way->exact : way->degree;
}

static void add(struct sizes *sizes, const char *name, int64_t size, bool by_both)
{
    sizes->of[sizes->n].name = name;
    sizes->of[sizes->n].by_both = by_both;
    sizes->of[sizes->n++].size = size;
}

static int64_t batch_of(const struct tt_config *cfg)
{
    return cfg->parallelism.pipeline_parallel_degree > 1 ? cfg->parallelism.pipeline_parallel_microbatch_size
                                                         : cfg->training.local_batch_size;
}

static struct sizes sizes_of_layer(const struct tt_config *cfg, const struct tt_model *model, int64_t other)
{
    const struct tt_model_dims *d = &model->dims;
    struct sizes sizes = {.other = other, .others = "sequence", .vocabulary = d->vocab_size};

    add(&sizes, "model.n_heads", d->n_heads, false);
    add(&sizes, "model.n_kv_heads", d->n_kv_heads, true);
    add(&sizes, "model.ffn_dim", d->ffn_dim, false);
    add(&sizes, "the tokens of a microbatch,", batch_of(cfg) * cfg->training.seq_len, true);
    if (cfg->validation.enable)
        add(&sizes, "the tokens of a batch of validation,", cfg->validation.local_batch_size * cfg->validation.seq_len,
            true);
    return sizes;
}

static struct sizes sizes_of_sequence(const struct tt_config *cfg, const struct tt_model *model, int64_t other)
{
    struct sizes sizes = {.other = other, .others = "layer"};

    add(&sizes, "model.n_kv_heads", model->dims.n_kv_heads, true);
    add(&sizes, "training.seq_len", cfg->training.seq_len, false);
    if (cfg->validation.enable)
        add(&sizes, "validation.seq_len", cfg->validation.seq_len, false);
    return sizes;
}

static bool has_rows(int64_t vocabulary, int64_t grains)
{
    return !vocabulary || tt_div_up(vocabulary, grains) * (grains - 1) < vocabulary;
}

static bool divides(const struct sizes *sizes, int i, int64_t grains)
{
    return sizes->of[i].size % (sizes->of[i].by_both ? grains * sizes->other : grains) == 0;
}

static bool divide(const struct sizes *sizes, int64_t grains)
{
    for (int i = 0; i < sizes->n; i++)
        if (!divides(sizes, i, grains))
            return false;
    return has_rows(sizes->vocabulary, grains) && grains * sizes->other <= TT_MOST_GRAINS;
}

static void add_faults(const struct sizes *sizes, int64_t grains, struct tt_text *out)
{
    for (int i = 0; i < sizes->n; i++) {
        if (divides(sizes, i, grains))
            continue;
        tt_text_add(out, "%s%s %" PRId64, out->size ? ", " : "", sizes->of[i].name, sizes->of[i].size);
        if (sizes->of[i].by_both && sizes->other > 1)
            tt_text_add(out, " and %" PRId64 " parts of a %s", sizes->other, sizes->others);
    }
    if (!has_rows(sizes->vocabulary, grains))
        tt_text_add(out, "%smodel.vocab_size %" PRId64, out->size ? ", " : "", sizes->vocabulary);
    if (!out->size)
        tt_text_add(out, "more than %d parts in all", TT_MOST_GRAINS);
}

/* The degrees that work. The exact one is a power of two, and the other divides it or is larger. */
static void add_degrees(const struct sizes *sizes, const struct way *way, bool of_exact, struct tt_text *out)
{
    for (int64_t degree = 1; degree <= TT_MOST_GRAINS; degree++) {
        bool fits = of_exact ? (degree & (degree - 1)) == 0 : degree >= way->exact || way->exact % degree == 0;

        if (fits && divide(sizes, of_exact || degree > way->exact ? degree : way->exact))
            tt_text_add(out, "%s%" PRId64, out->size ? ", " : "", degree);
    }
}

static int check(const struct tt_model *model, const struct sizes *sizes, const struct way *way)
{
    bool of_exact = way->exact >= way->degree;
    int64_t grains = grains_of(way);
    struct tt_text faults = {0}, degrees = {0};
    int rc;

    if (grains > 1 && model->dims.moe.experts > 0)
        return tt_fail_key(TT_EUSAGE, of_exact ? way->exact_key : way->key,
                           "%" PRId64 ", but %s parallelism does not divide layers of experts\nhelp: use "
                           "data_parallel_shard_degree or pipeline_parallel_degree",
                           grains, way->kind);
    if (divide(sizes, grains))
        return 0;
    add_faults(sizes, grains, &faults);
    add_degrees(sizes, way, of_exact, &degrees);
    if (!degrees.size)
        tt_text_add(&degrees, "nothing with that many parts of the other kind");
    rc = tt_fail_key(TT_EUSAGE, of_exact ? way->exact_key : way->key,
                     "%" PRId64 " parts of a %s are not possible with %s\nhelp: what works: %s", grains, way->what,
                     faults.text, degrees.text);
    tt_text_release(&faults);
    tt_text_release(&degrees);
    return rc;
}

/* --- experts --- */

static int check_experts(const struct tt_config *cfg, const struct tt_model *model)
{
    int64_t degree = cfg->parallelism.expert_parallel_degree, experts = model->dims.moe.experts;
    struct tt_text works = {0};
    int rc;

    if (degree == 1)
        return 0;
    if (experts == 0)
        return tt_fail_key(TT_EUSAGE, TT_KEY_EP_DEGREE,
                           "%" PRId64 ", but %s %s has no experts\nhelp: set it to 1, or choose a model with experts",
                           degree, model->row->name, model->flavor);
    if (experts % degree == 0)
        return 0;
    for (int64_t n = 1; n <= experts; n++)
        if (experts % n == 0)
            tt_text_add(&works, "%s%" PRId64, works.size ? ", " : "", n);
    rc = tt_fail_key(TT_EUSAGE, TT_KEY_EP_DEGREE,
                     "%" PRId64 " ranks cannot share %" PRId64 " experts\nhelp: what works: %s", degree, experts,
                     works.text);
    tt_text_release(&works);
    return rc;
}

int tt_job_check_divisions(const struct tt_config *cfg, const struct tt_model *model)
{
    struct way tp = {TT_KEY_TP_DEGREE,
                     TT_KEY_EXACT_TP_DEGREE,
                     cfg->parallelism.tensor_parallel_degree,
                     cfg->parallelism.exact_tensor_parallel_degree,
                     "tensor",
                     "layer"};
    struct way cp = {TT_KEY_CP_DEGREE,
                     TT_KEY_EXACT_CP_DEGREE,
                     cfg->parallelism.context_parallel_degree,
                     cfg->parallelism.exact_context_parallel_degree,
                     "context",
                     "sequence"};
    struct sizes layer = sizes_of_layer(cfg, model, 1), sequence = sizes_of_sequence(cfg, model, grains_of(&tp));
    int rc = 0;

    TT_TRY(check_experts(cfg, model));
    TT_TRY(check(model, &layer, &tp));
    if (grains_of(&cp) > 1) {
        TT_TRY(check(model, &sequence, &cp));
        layer.other = grains_of(&cp);
        TT_TRY(check(model, &layer, &tp));
    }
out:
    return rc;
}
