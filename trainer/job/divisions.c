/* SPDX-License-Identifier: MIT
 *
 * The degrees by which layers, sequences and experts can be split; see job.h.
 */
#include <inttypes.h>

#include "core/base/text.h"
#include "core/math/round.h"
#include "trainer/job/job.h"

enum { SIZES = 6 };

/* One of the two ways to split a model (tensor or context parallelism), each with a degree and an exact degree. */
struct way {
    enum tt_key key, exact_key;
    int64_t degree, exact;
    const char *what;
};

/* A size that is split into equal parts. */
struct size {
    const char *name;
    int64_t size;
    int64_t other;      /* the number of pieces into which each part is split again, or 1 */
    const char *others; /* what messages call these pieces */
    bool among_ranks;   /* split over ranks, not into grains */
    const char *remedy; /* another key that may help, or NULL */
};

struct sizes {
    struct size of[SIZES];
    int n;
    int64_t other; /* the grains of the other way */
    /* a size that need not be a multiple of the grains: the last grain may be smaller, but no grain may be empty; 0:
     * none */
    int64_t vocabulary;
};

static int64_t grains_of(const struct way *way)
{
    return way->exact > way->degree ? way->exact : way->degree;
}

static void add(struct sizes *sizes, struct size size)
{
    sizes->of[sizes->n++] = size;
}

/* Whether the ranks that share a sequence must exchange heads. */
static bool exchanges_heads(const struct tt_config *cfg)
{
    return cfg->parallelism.context_parallel_method == TT_CONTEXT_ULYSSES;
}

/* With latent attention every head has its own keys and values, so configurations set only n_heads. */
static const char *name_of_kv_heads(const struct tt_model *model)
{
    return model->dims.mla.kv_rank ? TT_KEY_NAME(model.n_heads) : TT_KEY_NAME(model.n_kv_heads);
}

/* other: the number of grains of a sequence. */
static struct sizes sizes_of_layer(const struct tt_config *cfg, const struct tt_model *model, int64_t other)
{
    static const char *const others = "parts of a sequence";
    const struct tt_model_dims *d = &model->dims;
    struct sizes sizes = {.other = other, .vocabulary = d->vocab_size};
    int64_t heads = other > 1 && exchanges_heads(cfg) ? cfg->parallelism.context_parallel_degree : 1;

    if (!d->mla.kv_rank)
        add(&sizes, (struct size){.name = TT_KEY_NAME(model.n_heads), .size = d->n_heads, .other = 1});
    add(&sizes,
        (struct size){.name = name_of_kv_heads(model), .size = d->n_kv_heads, .other = heads, .others = others});
    /* routed experts are not split; shared experts and layers without experts are */
    if (d->moe.experts == 0 || tt_model_dense_layers(d) > 0)
        add(&sizes, (struct size){.name = TT_KEY_NAME(model.ffn_dim), .size = d->ffn_dim, .other = 1});
    if (tt_moe_shared_width(&d->moe) > 0)
        add(&sizes,
            (struct size){.name = "the width of shared experts,", .size = tt_moe_shared_width(&d->moe), .other = 1});
    add(&sizes, (struct size){.name = "the tokens of a microbatch,",
                              .size = (cfg->parallelism.pipeline_parallel_degree > 1
                                           ? cfg->parallelism.pipeline_parallel_microbatch_size
                                           : cfg->training.local_batch_size) *
                                      cfg->training.seq_len,
                              .other = other,
                              .others = others});
    if (cfg->validation.enable)
        add(&sizes, (struct size){.name = "the tokens of a batch of validation,",
                                  .size = cfg->validation.local_batch_size * cfg->validation.seq_len,
                                  .other = other,
                                  .others = others});
    return sizes;
}

/* other: the number of grains of a layer. */
static struct sizes sizes_of_sequence(const struct tt_config *cfg, const struct tt_model *model, int64_t other)
{
    struct sizes sizes = {.other = other};
    struct size length = {.name = TT_KEY_NAME(training.seq_len), .size = cfg->training.seq_len, .other = 1};

    if (cfg->parallelism.context_parallel_load_balancer) {
        length.other = 2;
        length.others = "pieces of each part";
        length.remedy = "context_parallel_load_balancer=null";
    }
    if (exchanges_heads(cfg))
        add(&sizes, (struct size){.name = name_of_kv_heads(model),
                                  .size = model->dims.n_kv_heads,
                                  .other = other,
                                  .others = "parts of a layer",
                                  .among_ranks = true,
                                  .remedy = "context_parallel_method=gather"});
    add(&sizes, length);
    length.name = TT_KEY_NAME(validation.seq_len);
    length.size = cfg->validation.seq_len;
    if (cfg->validation.enable)
        add(&sizes, length);
    return sizes;
}

static bool has_rows(int64_t vocabulary, int64_t grains)
{
    return !vocabulary || tt_div_up(vocabulary, grains) * (grains - 1) < vocabulary;
}

static bool divides(const struct size *size, int64_t grains, int64_t degree)
{
    return size->size % ((size->among_ranks ? degree : grains) * size->other) == 0;
}

static bool divide(const struct sizes *sizes, int64_t grains, int64_t degree)
{
    for (int i = 0; i < sizes->n; i++)
        if (!divides(&sizes->of[i], grains, degree))
            return false;
    return has_rows(sizes->vocabulary, grains) && grains * sizes->other <= TT_MOST_GRAINS;
}

static void add_faults(const struct sizes *sizes, int64_t grains, int64_t degree, struct tt_text *out,
                       struct tt_text *remedies)
{
    for (int i = 0; i < sizes->n; i++) {
        const struct size *size = &sizes->of[i];

        if (divides(size, grains, degree))
            continue;
        tt_text_add(out, "%s%s %" PRId64, out->size ? ", " : "", size->name, size->size);
        if (size->other > 1)
            tt_text_add(out, " and %" PRId64 " %s", size->other, size->others);
        if (size->remedy && !remedies->size)
            tt_text_add(remedies, "; or set %s", size->remedy);
    }
    if (!has_rows(sizes->vocabulary, grains))
        tt_text_add(out, "%smodel.vocab_size %" PRId64, out->size ? ", " : "", sizes->vocabulary);
    if (!out->size)
        tt_text_add(out, "more than %d parts in all", TT_MOST_GRAINS);
}

/* Appends the degrees that work. The exact degree is a power of two; the degree divides it or is larger. */
static void add_degrees(const struct sizes *sizes, const struct way *way, bool of_exact, struct tt_text *out)
{
    for (int64_t degree = 1; degree <= TT_MOST_GRAINS; degree++) {
        bool fits = of_exact ? (degree & (degree - 1)) == 0 : degree >= way->exact || way->exact % degree == 0;

        if (fits &&
            divide(sizes, of_exact || degree > way->exact ? degree : way->exact, of_exact ? way->degree : degree))
            tt_text_add(out, "%s%" PRId64, out->size ? ", " : "", degree);
    }
}

static int check(const struct sizes *sizes, const struct way *way)
{
    bool of_exact =
        /* the exact degree is at fault, unless the number of ranks alone does not divide something */
        way->exact >= way->degree;
    int64_t grains = grains_of(way);
    struct tt_text faults = {0}, degrees = {0}, remedies = {0};
    int rc;

    if (divide(sizes, grains, way->degree))
        return 0;
    for (int i = 0; i < sizes->n; i++)
        of_exact = of_exact && !(sizes->of[i].among_ranks && !divides(&sizes->of[i], 1, way->degree));
    add_faults(sizes, grains, way->degree, &faults, &remedies);
    add_degrees(sizes, way, of_exact, &degrees);
    if (!degrees.size)
        tt_text_add(&degrees, "nothing with that many parts of the other kind");
    rc = tt_fail_key(TT_EUSAGE, of_exact ? way->exact_key : way->key,
                     "%" PRId64 " parts of a %s are not possible with %s\nhelp: these work: %s%s",
                     of_exact ? grains : way->degree, way->what, faults.text, degrees.text,
                     remedies.size ? remedies.text : "");
    tt_text_release(&faults);
    tt_text_release(&degrees);
    tt_text_release(&remedies);
    return rc;
}

/* --- experts --- */

/* Appends the degrees of expert parallelism that work with `tp` tensor-parallel ranks. */
static void add_expert_degrees(int64_t experts, int64_t tp, struct tt_text *out)
{
    for (int64_t n = tp; n <= experts; n += tp)
        if (experts % n == 0)
            tt_text_add(out, "%s%" PRId64, out->size ? ", " : "", n);
}

static int check_experts(const struct tt_config *cfg, const struct tt_model *model)
{
    int64_t degree = cfg->parallelism.expert_parallel_degree, tp = cfg->parallelism.tensor_parallel_degree;
    int64_t experts = model->dims.moe.experts;
    struct tt_text works = {0};
    int rc = 0;

    if (experts == 0)
        return degree == 1 ? 0
                           : tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.expert_parallel_degree),
                                         "%" PRId64 ", but %s has no experts\nhelp: set it to 1, or choose a model "
                                         "with experts",
                                         degree, model->title);
    /* ranks that share a layer hold whole experts, and exchange rows of tokens */
    if (degree % tp != 0) {
        add_expert_degrees(experts, tp, &works);
        if (works.size)
            rc = tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.expert_parallel_degree),
                             "%" PRId64 ", wanted a multiple of tensor_parallel_degree %" PRId64
                             ", which does not divide experts\nhelp: these work: %s",
                             degree, tp, works.text);
        else
            rc = tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.tensor_parallel_degree),
                             "%" PRId64 " ranks cannot share %" PRId64
                             " experts, and titan never splits a single expert\nhelp: set it to a divisor of %" PRId64
                             ", and expert_parallel_degree to a multiple of it",
                             tp, experts, experts);
    } else if (experts % degree != 0) {
        add_expert_degrees(experts, 1, &works);
        rc = tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.expert_parallel_degree),
                         "%" PRId64 " ranks cannot share %" PRId64 " experts\nhelp: these work: %s", degree, experts,
                         works.text);
    }
    tt_text_release(&works);
    return rc;
}

int tt_job_check_divisions(const struct tt_config *cfg, const struct tt_model *model)
{
    struct way tp = {TT_KEY(parallelism.tensor_parallel_degree), TT_KEY(parallelism.exact_tensor_parallel_degree),
                     cfg->parallelism.tensor_parallel_degree, cfg->parallelism.exact_tensor_parallel_degree, "layer"};
    struct way cp = {TT_KEY(parallelism.context_parallel_degree), TT_KEY(parallelism.exact_context_parallel_degree),
                     cfg->parallelism.context_parallel_degree, cfg->parallelism.exact_context_parallel_degree,
                     "sequence"};
    const struct {
        enum tt_key key;
        int64_t degree;
    } degrees[] = {{tp.key, tp.degree},
                   {tp.exact_key, tp.exact},
                   {cp.key, cp.degree},
                   {cp.exact_key, cp.exact},
                   {TT_KEY(parallelism.expert_parallel_degree), cfg->parallelism.expert_parallel_degree}};
    struct sizes layer = sizes_of_layer(cfg, model, 1), sequence = sizes_of_sequence(cfg, model, grains_of(&tp));
    int rc = 0;

    for (size_t i = 0; model->row->undivided && i < sizeof degrees / sizeof *degrees; i++)
        if (degrees[i].degree > 1)
            return tt_fail_key(TT_EUSAGE, degrees[i].key,
                               "%" PRId64 ", but ranks cannot divide the layers, sequences or experts of %s\nhelp: set "
                               "it to 1, and use data_parallel_shard_degree or pipeline_parallel_degree",
                               degrees[i].degree, model->row->name);
    TT_TRY(check_experts(cfg, model));
    TT_TRY(check(&layer, &tp));
    if (grains_of(&cp) > 1) {
        TT_TRY(check(&sequence, &cp));
        layer = sizes_of_layer(cfg, model, grains_of(&cp));
        TT_TRY(check(&layer, &tp));
    }
out:
    return rc;
}

/* --- stages and orders of a pipeline --- */

int tt_job_pipeline_microbatches(const struct tt_config *cfg, int *ret_microbatches)
{
    int64_t local = cfg->training.local_batch_size, size = cfg->parallelism.pipeline_parallel_microbatch_size;
    int64_t best = 1;

    if (local % size == 0 && local / size <= INT32_MAX) {
        *ret_microbatches = (int)(local / size);
        return 0;
    }
    for (int64_t n = 1; n <= size && n <= local; n++)
        best = local % n == 0 ? n : best;
    return tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.pipeline_parallel_microbatch_size),
                       "%" PRId64 " does not divide %s, which is %" PRId64 "\nhelp: set %s to %" PRId64, size,
                       TT_KEY_NAME(training.local_batch_size), local,
                       TT_KEY_NAME(parallelism.pipeline_parallel_microbatch_size), best);
}

int tt_job_pipeline_split(const struct tt_config *cfg, int n_layers, struct tt_stage_split *ret_split)
{
    struct tt_pipeline_rule rule = {.n_layers = n_layers, .ranks = (int)cfg->parallelism.pipeline_parallel_degree};
    int64_t per_stage = cfg->parallelism.pipeline_parallel_layers_per_stage;
    enum tt_pipeline_schedule schedule;
    int rc = 0;

    TT_TRY(tt_pipeline_find(cfg->parallelism.pipeline_parallel_schedule, &schedule));
    rule.multi = tt_pipeline_row(schedule)->multi;
    rule.layers_per_stage = per_stage == TT_NULL_INT ? 0 : (int)per_stage;
    rule.first_less = (int)cfg->parallelism.pipeline_parallel_first_stage_less_layers;
    rule.last_less = (int)cfg->parallelism.pipeline_parallel_last_stage_less_layers;
    if (cfg->parallelism.module_fqns_per_model_part.n)
        rc = tt_pipeline_split_named(&cfg->parallelism.module_fqns_per_model_part, n_layers, rule.ranks, rule.multi,
                                     ret_split);
    else
        rc = tt_pipeline_split(&rule, ret_split);
out:
    return rc;
}

int tt_job_pipeline_new(const struct tt_config *cfg, int n_stages, int microbatches, struct tt_pipeline **ret_pipeline)
{
    const char *path = cfg->parallelism.pipeline_parallel_schedule_csv;
    int ranks = (int)cfg->parallelism.pipeline_parallel_degree;
    enum tt_pipeline_schedule schedule;
    int rc = 0;

    TT_TRY(tt_pipeline_find(cfg->parallelism.pipeline_parallel_schedule, &schedule));
    TT_TRY(tt_pipeline_new(schedule, *path ? path : NULL, ranks, n_stages, microbatches, ret_pipeline));
out:
    return rc;
}
