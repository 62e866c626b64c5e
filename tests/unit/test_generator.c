/* SPDX-License-Identifier: MIT
 *
 * Generation: feeding tokens through the cache gives the logits of one forward pass over all of them, on any number
 * of threads; in bfloat16 they differ by no more than rounding explains.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/math/rng.h"
#include "core/ops/op.h"
#include "parallel/engine/generator.h"
#include "parallel/layout/init.h"
#include "tests/help/sweep.h"

enum { CONTEXT = 600, VOCAB = 61, SEED = 5 };

static int check(int rc)
{
    if (rc < 0)
        print_message("# %s\n", tt_error_message());
    return rc;
}

/* The initial weights of the model that was made last, drawn at their first use. */
static struct {
    float **of;
    int n;
} weights;

static void forget_weights(void)
{
    for (int p = 0; p < weights.n; p++)
        tt_free(weights.of[p]);
    tt_free(weights.of);
    weights.of = NULL;
    weights.n = 0;
}

static const float *weights_of(const struct tt_model *model, int p, int64_t n)
{
    struct tt_box whole = tt_box_whole(model->params[p].ndim, model->params[p].shape);

    if (!weights.of) {
        weights.n = model->n_params;
        weights.of = tt_calloc((size_t)weights.n, sizeof *weights.of);
    }
    if (!weights.of[p]) {
        weights.of[p] = tt_calloc((size_t)n, sizeof **weights.of);
        tt_param_fill(&model->params[p], SEED, &whole, weights.of[p]);
    }
    return weights.of[p];
}

/* Whether one of the row's models has fewer key/value heads than query heads. */
static bool has_groups(const struct tt_model_row *row)
{
    for (int f = 0; f < row->n_flavors; f++)
        if (row->flavors[f].dims.n_kv_heads && row->flavors[f].dims.n_kv_heads < row->flavors[f].dims.n_heads)
            return true;
    return false;
}

static struct tt_model *make_model(const struct tt_model_row *row)
{
    /* Heads share keys and values if the architecture allows it. */
    bool latents = row->flavors[0].dims.mla.kv_rank > 0, groups = !latents && has_groups(row);
    const struct tt_model_dims dims = {.dim = 48,
                                       .n_layers = 3,
                                       .n_heads = 6,
                                       .n_kv_heads = groups ? 2 : 6,
                                       .head_dim = 8,
                                       .rotary_dim = row->flavors[0].dims.rotary_dim ? 4 : 0,
                                       .ffn_dim = 80,
                                       .vocab_size = VOCAB,
                                       .mla = {.q_rank = latents ? 20 : 0,
                                               .kv_rank = latents ? 14 : 0,
                                               .rope_dim = latents ? 4 : 0,
                                               .value_dim = latents ? 6 : 0},
                                       .tied = -1};
    struct tt_model *model = NULL;

    forget_weights();
    assert_int_equal(check(tt_model_new(row->name, row->flavors[0].name, &dims, NULL, &model)), 0);
    return model;
}

static struct tt_generator *generator_of(const struct tt_generator_options *options)
{
    struct tt_generator *g = NULL;

    assert_int_equal(check(tt_generator_new(options, &g)), 0);
    assert_int_equal(check(tt_generator_allocate(g)), 0);
    assert_int_equal(check(tt_init_params(NULL, tt_generator_layout(g), options->model, TT_INIT_META, SEED,
                                          options->dtype, tt_generator_state(g)->array[TT_STATE_PARAM])),
                     0);
    return g;
}

static struct tt_generator *make_generator_in(enum tt_dtype dtype, const struct tt_model *model, int64_t prompt_rows,
                                              int threads)
{
    return generator_of(&(struct tt_generator_options){
        .model = model, .dtype = dtype, .context = CONTEXT, .prompt_rows = prompt_rows, .threads = threads});
}

static struct tt_generator *make_generator(const struct tt_model *model, int64_t prompt_rows, int threads)
{
    return make_generator_in(TT_F32, model, prompt_rows, threads);
}

static void make_tokens(int32_t *tokens, int64_t n)
{
    struct tt_rng rng = tt_rng_make(1, "tokens");

    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(tt_rng_bits(&rng, (uint64_t)i) % VOCAB);
}

/* --- the same logits from the graph of validation, run node by node --- */

struct forward {
    bool rounded;        /* parameters are rounded to bfloat16 */
    double perturbation; /* relative error that the results of nodes get, up or down */
    struct tt_rng signs;
};

static void *storage_of(const struct tt_model *model, const struct tt_graph *graph, int id, const int32_t *tokens,
                        const int32_t *labels, const struct forward *how)
{
    const struct tt_value *value = &graph->values[id];
    void *data = tt_calloc((size_t)tt_value_elements(value) + 1, sizeof(float));

    if (value->kind == TT_VALUE_PARAM) {
        int64_t n = tt_value_elements(value);
        const float *from = weights_of(model, value->param, n);

        for (int64_t i = 0; i < n; i++)
            ((float *)data)[i] = how->rounded ? tt_bf16_to_float(tt_bf16_from_float(from[i])) : from[i];
    }
    if (value->kind == TT_VALUE_CONST)
        tt_rope_fill(tt_graph_rope_of(graph, id), value->shape[0], 2 * value->shape[1], TT_F32, data);
    for (int64_t i = 0; value->kind == TT_VALUE_INPUT && i < tt_value_elements(value); i++)
        ((int32_t *)data)[i] = id == graph->tokens ? tokens[i] : labels[i];
    return data;
}

static void perturb(const struct tt_graph *graph, const struct tt_node *node, void **data, struct forward *how,
                    uint64_t *drawn)
{
    for (int k = 0; k < node->n_out; k++) {
        float *values = data[node->out[k]];
        int64_t n =
            tt_op_row(node->op)->out[k] == TT_TYPE_COMPUTE ? tt_value_elements(&graph->values[node->out[k]]) : 0;
        uint64_t signs = 0;

        for (int64_t i = 0; i < n; i++) {
            signs = i % 64 == 0 ? tt_rng_bits(&how->signs, (*drawn)++) : signs >> 1U;
            values[i] *= (float)(1.0 + (signs & 1U ? how->perturbation : -how->perturbation));
        }
    }
}

/* The loss of every token of the sequence if its label followed it: -log of the label's probability. */
static void losses_of(const struct tt_model *model, struct forward how, const int32_t *tokens, const int32_t *labels,
                      int64_t n, float *losses)
{
    uint64_t drawn = 0;
    const struct tt_scalars scalars = {.inv_valid_tokens = 1.0F};
    struct tt_graph *graph = NULL;
    struct tt_team *team = NULL;
    void **data;

    assert_int_equal(tt_team_new(1, &team), 0);
    assert_int_equal(tt_model_graph(model, TT_GRAPH_VALIDATE, TT_F32, 1, n, false, &graph, NULL), 0);
    data = tt_calloc((size_t)graph->n_values, sizeof *data);
    for (int v = 0; v < graph->n_values; v++)
        data[v] = storage_of(model, graph, v, tokens, labels, &how);
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct tt_node *node = &graph->nodes[i];
        const struct tt_op_row *row = tt_op_row(node->op);
        struct tt_call call = {.graph = graph, .node = node, .scalars = &scalars, .team = team};

        for (int k = 0; k < node->n_in; k++)
            call.in[k] = node->in[k] == TT_NONE ? NULL : data[node->in[k]];
        for (int k = 0; k < node->n_out; k++)
            call.out[k] = data[node->out[k]];
        call.scratch = row->scratch_bytes ? tt_calloc(1, (size_t)row->scratch_bytes(graph, node, 1) + 1) : NULL;
        row->run(&call);
        if (how.perturbation > 0.0)
            perturb(graph, node, data, &how, &drawn);
        tt_free(call.scratch);
    }
    memcpy(losses, data[graph->token_loss], (size_t)n * sizeof *losses);
    for (int v = 0; v < graph->n_values; v++)
        tt_free(data[v]);
    tt_free(data);
    tt_graph_free(graph);
    tt_team_free(team);
}

static double loss_of(const float *logits, int label)
{
    double largest = -INFINITY, sum = 0.0;

    for (int v = 0; v < VOCAB; v++)
        largest = fmax(largest, (double)logits[v]);
    for (int v = 0; v < VOCAB; v++)
        sum += exp((double)logits[v] - largest);
    return largest + log(sum) - (double)logits[label];
}

/* Prompts of several lengths, then one token after another through the cache, the first until the context is full,
 * compared with a forward pass over all. */
static void cached_logits_are_those_of_the_forward_pass(void **state)
{
    enum { SOME = TT_ATTENTION_ROWS + 6 };
    static const int64_t prompts[] = {1, 2, TT_ATTENTION_ROWS - 1, TT_ATTENTION_ROWS, TT_ATTENTION_ROWS + 1, 170, 520};
    int32_t tokens[CONTEXT], labels[CONTEXT];
    float losses[2][CONTEXT];
    size_t stride = sweep_stride() > 1 ? 3 : 1;

    make_tokens(tokens, CONTEXT);
    for (int m = 0; m < tt_model_n_rows; m++) {
        struct tt_model *model = make_model(tt_model_rows[m]);

        for (int label = 0; label < 2; label++) {
            for (int t = 0; t < CONTEXT; t++)
                labels[t] = label;
            losses_of(model, (struct forward){0}, tokens, labels, CONTEXT, losses[label]);
        }
        for (size_t p = (size_t)m % stride; p < sizeof prompts / sizeof *prompts; p += stride) {
            struct tt_generator *g = make_generator(model, p % 2 ? TT_ATTENTION_ROWS : 130, 1);
            int64_t end = p == 0 || prompts[p] + SOME > CONTEXT ? CONTEXT : prompts[p] + SOME;
            const float *logits = NULL;

            assert_int_equal(check(tt_generator_feed(g, tokens, prompts[p], &logits)), 0);
            for (int64_t t = prompts[p];; t++) {
                for (int label = 0; label < 2; label++) {
                    double wanted = (double)losses[label][t - 1];

                    if (!(fabs(loss_of(logits, label) - wanted) < 1e-5))
                        fail_msg("%s, prompt of %d, after token %d: loss %.9g, in the forward pass %.9g",
                                 model->row->name, (int)prompts[p], (int)t, loss_of(logits, label), wanted);
                }
                if (t == end)
                    break;
                assert_int_equal(check(tt_generator_feed(g, tokens + t, 1, &logits)), 0);
            }
            tt_generator_free(g);
        }
        tt_model_free(model);
    }
}

/* Compares all logits, not only a loss, in every variant of the kernels. Pieces begin at any position, even where a
 * kernel's tile of keys ends. */
static void a_prompt_is_the_same_whole_and_in_pieces(void **state)
{
    static const int64_t pieces[] = {1, 7, 90};
    struct tt_model *model = make_model(tt_model_rows[0]);
    int32_t tokens[CONTEXT];
    const float *logits = NULL;
    float whole[VOCAB];

    make_tokens(tokens, CONTEXT);
    for (int variant = 0; tt_kernels_variant(variant); variant++) {
        if (sweep_leaves_out(tt_kernels_variant(variant)->name))
            continue;
        tt_kernels_use(tt_kernels_variant(variant));
        for (int64_t n = 540; n <= CONTEXT; n += 53) {
            struct tt_generator *g = make_generator(model, CONTEXT, 1);

            assert_int_equal(check(tt_generator_feed(g, tokens, n, &logits)), 0);
            memcpy(whole, logits, sizeof whole);
            for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
                tt_generator_rewind(g, 400);
                for (int64_t i = 400; i < n; i += pieces[p]) {
                    int64_t some = n - i < pieces[p] ? n - i : pieces[p];

                    assert_int_equal(check(tt_generator_feed(g, tokens + i, some, &logits)), 0);
                }
                for (int v = 0; v < VOCAB; v++)
                    assert_true(fabsf(whole[v] - logits[v]) < 1e-5F);
            }
            tt_generator_free(g);
        }
    }
    tt_kernels_use(NULL);
    tt_model_free(model);
}

/* --- bfloat16 --- */

enum { PROMPTS = 10, NEW = 20, LONGEST = 220, TRIALS = 8 };

/* A prompt and what follows it. */
struct text {
    int32_t tokens[LONGEST];
    int64_t prompt, n;
};

/* The most likely tokens after each prompt, in float. */
static void continue_greedily(const struct tt_model *model, struct text *texts)
{
    static const int64_t lengths[PROMPTS] = {1, 2, 5, 17, 40, TT_ATTENTION_ROWS - 1, TT_ATTENTION_ROWS, 97, 150, 200};

    for (int p = 0; p < PROMPTS; p++) {
        struct tt_generator *g = make_generator(model, TT_ATTENTION_ROWS, 1);
        int32_t from[CONTEXT], *tokens = texts[p].tokens;
        const float *logits = NULL;

        make_tokens(from, CONTEXT);
        texts[p].prompt = lengths[p];
        texts[p].n = lengths[p] + NEW;
        memcpy(tokens, from + p * NEW, (size_t)lengths[p] * sizeof *tokens);
        for (int64_t t = lengths[p]; t < texts[p].n; t++) {
            bool begins = t == lengths[p];

            assert_int_equal(
                check(tt_generator_feed(g, begins ? tokens : tokens + t - 1, begins ? lengths[p] : 1, &logits)), 0);
            tokens[t] = 0;
            for (int32_t v = 1; v < VOCAB; v++)
                tokens[t] = logits[v] > logits[tokens[t]] ? v : tokens[t];
        }
        tt_generator_free(g);
    }
}

/* The losses of the tokens after the prompt in a forward pass over the whole text. */
static void losses_in_float(const struct tt_model *model, struct forward how, const struct text *text, float *losses)
{
    float all[LONGEST];

    losses_of(model, how, text->tokens, text->tokens + 1, text->n - 1, all);
    memcpy(losses, all + text->prompt - 1, NEW * sizeof *losses);
}

/* As above in bfloat16, through the cache; the prompt is fed in pieces. */
static void losses_in_bf16(const struct tt_model *model, const struct text *text, int64_t piece, float *losses)
{
    struct tt_generator *g = make_generator_in(TT_BF16, model, TT_ATTENTION_ROWS, 1);
    const float *logits = NULL;

    for (int64_t t = 0, some; t < text->n - 1; t += some) {
        int64_t left = text->prompt - t;

        some = left <= 0 ? 1 : left < piece ? left : piece;
        assert_int_equal(check(tt_generator_feed(g, text->tokens + t, some, &logits)), 0);
        if (t + some >= text->prompt)
            losses[t + some - text->prompt] = (float)loss_of(logits, text->tokens[t + some]);
    }
    tt_generator_free(g);
}

/* The root mean square of the differences. */
static double deviation(float (*a)[NEW], float (*b)[NEW])
{
    double sum = 0.0;

    for (int p = 0; p < PROMPTS; p++)
        for (int i = 0; i < NEW; i++)
            sum += ((double)a[p][i] - (double)b[p][i]) * ((double)a[p][i] - (double)b[p][i]);
    return sqrt(sum / (PROMPTS * NEW));
}

/* The effect of rounding: 1.5 times the largest of TRIALS float runs of the same weights in which each element of each
 * activation gets a relative error of the root mean square of a rounding (tests/grad/bf16check.c), up or down at
 * random. */
static double effect_of_rounding(const struct tt_model *model, const struct text *texts, float (*exact)[NEW])
{
    struct forward how = {.rounded = true};
    float rounded[PROMPTS][NEW];
    double most = 0.0;

    for (int p = 0; p < PROMPTS; p++)
        losses_in_float(model, how, &texts[p], exact[p]);
    how.perturbation = 0x1p-8 / sqrt(3.0);
    for (uint64_t trial = 0; trial < TRIALS; trial++) {
        for (int p = 0; p < PROMPTS; p++) {
            how.signs = tt_rng_make(trial * PROMPTS + (uint64_t)p, "signs");
            losses_in_float(model, how, &texts[p], rounded[p]);
        }
        most = fmax(most, deviation(rounded, exact));
    }
    return 1.5 * most;
}

static void log_probabilities_in_bf16_are_as_near_as_rounding_explains(void **state)
{
    static struct text texts[PROMPTS];
    float exact[PROMPTS][NEW], found[PROMPTS][NEW];

    for (int m = 0; m < tt_model_n_rows; m++) {
        struct tt_model *model = make_model(tt_model_rows[m]);
        double allowed, off;

        continue_greedily(model, texts);
        allowed = effect_of_rounding(model, texts, exact);
        for (int variant = 0; tt_kernels_variant(variant); variant++) {
            if (sweep_leaves_out(tt_kernels_variant(variant)->name) ||
                (sweep_stride() > 1 && tt_kernels_variant(variant) != tt_kernels() && m % 4 != variant % 4))
                continue;
            tt_kernels_use(tt_kernels_variant(variant));
            for (int p = 0; p < PROMPTS; p++)
                losses_in_bf16(model, &texts[p], p % 2 ? 7 : LONGEST, found[p]);
            off = deviation(found, exact);
            print_message("# %s, %s: off by %.3g, allowed %.3g\n", model->row->name, tt_kernels_variant(variant)->name,
                          off, allowed);
            assert_true(off > 0.0 && off <= allowed);
        }
        tt_kernels_use(NULL);
        tt_model_free(model);
    }
}

static void compare_threads(enum tt_dtype dtype)
{
    struct tt_model *model = make_model(tt_model_rows[0]);
    struct tt_generator *alone = make_generator_in(dtype, model, 96, 1), *many = make_generator_in(dtype, model, 96, 3);
    int32_t tokens[CONTEXT];
    const float *a = NULL, *b = NULL;

    make_tokens(tokens, CONTEXT);
    assert_int_equal(check(tt_generator_feed(alone, tokens, 150, &a)), 0);
    assert_int_equal(check(tt_generator_feed(many, tokens, 150, &b)), 0);
    for (int64_t t = 150; t < CONTEXT; t++) {
        assert_memory_equal(a, b, VOCAB * sizeof *a);
        assert_int_equal(check(tt_generator_feed(alone, tokens + t, 1, &a)), 0);
        assert_int_equal(check(tt_generator_feed(many, tokens + t, 1, &b)), 0);
    }
    tt_generator_free(alone);
    tt_generator_free(many);
    tt_model_free(model);
}

static void logits_do_not_depend_on_threads(void **state)
{
    compare_threads(TT_F32);
    compare_threads(TT_BF16);
}

/* Prompts of several lengths, of which some end early and make room for others; in every family of models, packed or
 * not. Each logit has the bits that it has in a generator of one sequence. */
static void a_sequence_has_the_logits_that_it_has_alone(void **state)
{
    enum { SEQUENCES = 6, ROOM = 40, STEPS = 8 };
    static const enum tt_packing_choice packings[] = {TT_PACKING_NONE, TT_PACKING_BF16, TT_PACKING_INT8};

    for (int m = 0; m < tt_model_n_rows; m++) {
        struct tt_model *model = make_model(tt_model_rows[m]);
        struct tt_generator_options o = {.model = model,
                                         .dtype = m % 3 == 2 ? TT_BF16 : TT_F32,
                                         .context = ROOM,
                                         .prompt_rows = 16,
                                         .threads = 1 + m % 2};
        bool *packable = tt_calloc((size_t)model->n_params, sizeof *packable), feeds[SEQUENCES];
        struct tt_generator *alone, *many;
        int32_t all[CONTEXT], tokens[SEQUENCES];
        const float *a = NULL, *b = NULL;
        float *logits = tt_calloc(SEQUENCES, VOCAB * sizeof *logits);

        assert_int_equal(check(tt_model_packable(model, true, packable)), 0);
        for (int p = 0; p < model->n_params; p++)
            if (packable[p]) {
                model->params[p].packing = packings[m / 2 % 3];
                model->params[p].frozen = true;
            }
        make_tokens(all, CONTEXT);
        alone = generator_of(&o);
        o.sequences = SEQUENCES;
        many = generator_of(&o);
        for (int s = 0; s < SEQUENCES; s++) {
            tt_generator_select(many, s);
            assert_int_equal(check(tt_generator_feed(many, all + 30 * s, 1 + 5 * s, &b)), 0);
            if (s == 3) { /* another prompt in its place */
                tt_generator_rewind(many, 0);
                assert_int_equal(check(tt_generator_feed(many, all + 30 * s, 1 + 5 * s, &b)), 0);
            }
        }
        for (int t = 0; t < STEPS; t++) {
            for (int s = 0; s < SEQUENCES; s++) {
                feeds[s] = s != 2 || t < 3; /* its text ends */
                tokens[s] = all[30 * s + 1 + 5 * s + t];
            }
            assert_int_equal(check(tt_generator_step(many, tokens, feeds, &b)), 0);
        }
        memcpy(logits, b, SEQUENCES * VOCAB * sizeof *logits);
        for (int s = 0; s < SEQUENCES; s++) {
            tt_generator_select(many, s);
            assert_int_equal(tt_generator_position(many), 1 + 5 * s + (s == 2 ? 3 : STEPS));
            if (s == 2)
                continue;
            tt_generator_rewind(alone, 0);
            assert_int_equal(check(tt_generator_feed(alone, all + 30 * s, 1 + 5 * s, &a)), 0);
            for (int t = 0; t < STEPS; t++)
                assert_int_equal(check(tt_generator_feed(alone, all + 30 * s + 1 + 5 * s + t, 1, &a)), 0);
            if (memcmp(a, logits + s * VOCAB, VOCAB * sizeof *a) != 0)
                fail_msg("%s, sequence %d", model->row->name, s);
        }
        tt_generator_free(alone);
        tt_generator_free(many);
        tt_free(packable);
        tt_free(logits);
        tt_model_free(model);
    }
}

static void rewinding_forgets_what_came_after(void **state)
{
    struct tt_model *model = make_model(tt_model_rows[0]);
    struct tt_generator *g = make_generator(model, 64, 2);
    int32_t tokens[CONTEXT];
    const float *logits = NULL;
    float first[VOCAB];

    make_tokens(tokens, CONTEXT);
    assert_int_equal(check(tt_generator_feed(g, tokens, 40, &logits)), 0);
    assert_int_equal(check(tt_generator_feed(g, tokens + 40, 1, &logits)), 0);
    memcpy(first, logits, sizeof first);
    assert_int_equal(check(tt_generator_feed(g, tokens + 50, 100, &logits)), 0);
    tt_generator_rewind(g, 40);
    assert_int_equal(tt_generator_position(g), 40);
    assert_int_equal(check(tt_generator_feed(g, tokens + 40, 1, &logits)), 0);
    assert_memory_equal(first, logits, sizeof first);
    tt_generator_free(g);
    tt_model_free(model);
}

static void a_full_context_is_an_error(void **state)
{
    struct tt_model *model = make_model(tt_model_rows[0]);
    struct tt_generator *g = make_generator(model, 64, 1);
    int32_t tokens[CONTEXT + 1];
    const float *logits = NULL;

    make_tokens(tokens, CONTEXT + 1);
    assert_int_equal(tt_generator_feed(g, tokens, CONTEXT + 1, &logits), TT_EUSAGE);
    assert_int_equal(check(tt_generator_feed(g, tokens, CONTEXT, &logits)), 0);
    assert_int_equal(tt_generator_feed(g, tokens, 1, &logits), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "the context holds 600"));
    tt_generator_free(g);
    tt_model_free(model);
}

static void bad_weights_are_noticed(void **state)
{
    struct tt_model *model = make_model(tt_model_rows[0]);
    struct tt_generator *g = make_generator(model, 64, 1);
    const float *logits = NULL;
    int32_t token = 3;

    ((float *)tt_generator_state(g)->array[TT_STATE_PARAM][0])[token * 48] = NAN;
    assert_int_equal(tt_generator_feed(g, &token, 1, &logits), TT_ENONFINITE);
    tt_generator_free(g);
    tt_model_free(model);
}

static void feeding_allocates_nothing(void **state)
{
    struct tt_model *model = make_model(tt_model_rows[0]);
    struct tt_generator *g = make_generator(model, 64, 2);
    int32_t tokens[CONTEXT];
    const float *logits = NULL;
    uint64_t before;

    make_tokens(tokens, CONTEXT);
    before = tt_mem_allocations();
    assert_int_equal(check(tt_generator_feed(g, tokens, 100, &logits)), 0);
    assert_int_equal(check(tt_generator_feed(g, tokens + 100, 1, &logits)), 0);
    assert_true(tt_mem_allocations() == before);
    tt_generator_free(g);
    tt_model_free(model);
}

/* The arena holds the weights, two rows of cache per layer and token, and little else. In bfloat16 both are half as
 * large. */
static void memory_is_predicted(void **state)
{
    struct tt_model *model = make_model(tt_model_rows[0]);
    struct tt_generator_options options = {.model = model, .context = CONTEXT, .prompt_rows = 64, .threads = 1};

    for (int size = 4; size >= 2; size -= 2) {
        struct tt_generator *g = NULL;
        struct tt_generator_memory m;

        options.dtype = size == 4 ? TT_F32 : TT_BF16;
        assert_int_equal(check(tt_generator_new(&options, &g)), 0);
        m = tt_generator_memory(g);
        assert_int_equal(m.cache, 2 * 3 * CONTEXT * 2 * 8 * size);
        assert_true(m.weights >= tt_model_n_elements(model) * size &&
                    m.weights < tt_model_n_elements(model) * size + 64);
        assert_int_equal(m.constants, CONTEXT * 8 * 4);
        assert_true(m.step > 0 && m.total == m.weights + m.cache + m.constants + m.step);
        tt_generator_free(g);
    }
    tt_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_logits_are_those_of_the_forward_pass),
        cmocka_unit_test(a_prompt_is_the_same_whole_and_in_pieces),
        cmocka_unit_test(log_probabilities_in_bf16_are_as_near_as_rounding_explains),
        cmocka_unit_test(logits_do_not_depend_on_threads),
        cmocka_unit_test(a_sequence_has_the_logits_that_it_has_alone),
        cmocka_unit_test(rewinding_forgets_what_came_after),
        cmocka_unit_test(a_full_context_is_an_error),
        cmocka_unit_test(bad_weights_are_noticed),
        cmocka_unit_test(feeding_allocates_nothing),
        cmocka_unit_test(memory_is_predicted),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
