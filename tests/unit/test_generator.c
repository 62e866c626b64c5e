/* SPDX-License-Identifier: MIT
 *
 * Generation: tokens that are fed through the cache give the logits of one forward pass over all of them, on any number
 * of threads.
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

enum { CONTEXT = 600, VOCAB = 61, SEED = 5 };

static int check(int rc)
{
    if (rc < 0)
        print_message("# %s\n", tt_error_message());
    return rc;
}

static struct tt_model *make_model(const struct tt_model_row *row)
{
    /* Heads share keys and values where the architecture allows it. */
    bool groups = strcmp(row->name, "gpt2") != 0;
    const struct tt_model_dims dims = {.dim = 48,
                                       .n_layers = 3,
                                       .n_heads = 6,
                                       .n_kv_heads = groups ? 2 : 6,
                                       .head_dim = 8,
                                       .ffn_dim = 80,
                                       .vocab_size = VOCAB,
                                       .tied = -1};
    struct tt_model *model = NULL;

    assert_int_equal(check(tt_model_new(row->name, row->flavors[0].name, &dims, NULL, &model)), 0);
    return model;
}

static struct tt_generator *make_generator(const struct tt_model *model, int64_t prompt_rows, int threads)
{
    const struct tt_generator_options options = {
        .model = model, .context = CONTEXT, .prompt_rows = prompt_rows, .threads = threads};
    struct tt_generator *g = NULL;

    assert_int_equal(check(tt_generator_new(&options, &g)), 0);
    if (tt_generator_prompt_program(g))
        assert_int_equal(check(tt_program_check(tt_generator_prompt_program(g))), 0);
    assert_int_equal(check(tt_program_check(tt_generator_token_program(g))), 0);
    assert_int_equal(check(tt_generator_allocate(g)), 0);
    assert_int_equal(
        check(tt_init_params(tt_generator_layout(g), model, TT_INIT_SHARDS, SEED, tt_generator_state(g)->param)), 0);
    return g;
}

static void make_tokens(int32_t *tokens, int64_t n)
{
    struct tt_rng rng = tt_rng_make(1, "tokens");

    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(tt_rng_bits(&rng, (uint64_t)i) % VOCAB);
}

/* --- the same logits from the graph of validation, run node by node --- */

static void *storage_of(const struct tt_model *model, const struct tt_graph *graph, int id, const int32_t *tokens,
                        int label)
{
    const struct tt_value *value = &graph->values[id];
    void *data = tt_calloc((size_t)tt_value_elements(value) + 1, sizeof(float));

    if (value->kind == TT_VALUE_PARAM) {
        struct tt_box whole = tt_box_whole(value->ndim, value->shape);

        tt_param_fill(&model->params[value->param], SEED, &whole, data);
    }
    if (value->kind == TT_VALUE_CONST)
        tt_rope_fill(&graph->rope, value->shape[0], 2 * value->shape[1], data);
    for (int64_t i = 0; value->kind == TT_VALUE_INPUT && i < tt_value_elements(value); i++)
        ((int32_t *)data)[i] = id == graph->tokens ? tokens[i] : label;
    return data;
}

/* The loss of every token of the sequence if each were followed by `label`: -log of its probability there. */
static void losses_of(const struct tt_model *model, const int32_t *tokens, int64_t n, int label, float *losses)
{
    const struct tt_scalars scalars = {.inv_valid_tokens = 1.0F};
    struct tt_graph *graph = NULL;
    struct tt_team *team = NULL;
    void **data;

    assert_int_equal(tt_team_new(1, &team), 0);
    assert_int_equal(tt_model_graph(model, TT_GRAPH_VALIDATE, TT_F32, 1, n, &graph, NULL), 0);
    data = tt_calloc((size_t)graph->n_values, sizeof *data);
    for (int v = 0; v < graph->n_values; v++)
        data[v] = storage_of(model, graph, v, tokens, label);
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

/* Prompts of several lengths, then one token after another through the cache, compared with a forward pass over all. */
static void cached_logits_are_those_of_the_forward_pass(void **state)
{
    static const int64_t prompts[] = {1, 2, TT_ATTENTION_ROWS - 1, TT_ATTENTION_ROWS, TT_ATTENTION_ROWS + 1, 170, 520};
    int32_t tokens[CONTEXT];
    float losses[2][CONTEXT];

    make_tokens(tokens, CONTEXT);
    for (int m = 0; m < tt_model_n_rows; m++) {
        struct tt_model *model = make_model(tt_model_rows[m]);

        for (int label = 0; label < 2; label++)
            losses_of(model, tokens, CONTEXT, label, losses[label]);
        for (size_t p = 0; p < sizeof prompts / sizeof *prompts; p++) {
            struct tt_generator *g = make_generator(model, p % 2 ? TT_ATTENTION_ROWS : 130, 1);
            const float *logits = NULL;

            assert_int_equal(check(tt_generator_feed(g, tokens, prompts[p], &logits)), 0);
            for (int64_t t = prompts[p];; t++) {
                for (int label = 0; label < 2; label++) {
                    double wanted = (double)losses[label][t - 1];

                    if (!(fabs(loss_of(logits, label) - wanted) < 1e-5))
                        fail_msg("%s, prompt of %d, after token %d: loss %.9g, in the forward pass %.9g",
                                 model->row->name, (int)prompts[p], (int)t, loss_of(logits, label), wanted);
                }
                if (t == CONTEXT)
                    break;
                assert_int_equal(check(tt_generator_feed(g, tokens + t, 1, &logits)), 0);
            }
            tt_generator_free(g);
        }
        tt_model_free(model);
    }
}

/* Compares all logits, not only a loss, in every variant of the kernels. Pieces begin at any position, also where a
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

static void logits_do_not_depend_on_threads(void **state)
{
    struct tt_model *model = make_model(tt_model_rows[0]);
    struct tt_generator *alone = make_generator(model, 96, 1), *many = make_generator(model, 96, 3);
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
    assert_non_null(strstr(tt_error_message(), "the context has 600"));
    tt_generator_free(g);
    tt_model_free(model);
}

static void bad_weights_are_noticed(void **state)
{
    struct tt_model *model = make_model(tt_model_rows[0]);
    struct tt_generator *g = make_generator(model, 64, 1);
    const float *logits = NULL;
    int32_t token = 3;

    tt_generator_state(g)->param[0][token * 48] = NAN;
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

/* The arena has the weights, two rows of cache per layer and token, and little else. */
static void memory_is_predicted(void **state)
{
    struct tt_model *model = make_model(tt_model_rows[0]);
    const struct tt_generator_options options = {.model = model, .context = CONTEXT, .prompt_rows = 64, .threads = 1};
    struct tt_generator *g = NULL;
    struct tt_generator_memory m;

    assert_int_equal(check(tt_generator_new(&options, &g)), 0);
    m = tt_generator_memory(g);
    assert_int_equal(m.cache, 2 * 3 * CONTEXT * 2 * 8 * 4);
    assert_true(m.weights >= tt_model_n_elements(model) * 4 && m.weights < tt_model_n_elements(model) * 4 + 64);
    assert_int_equal(m.constants, CONTEXT * 8 * 4);
    assert_true(m.step > 0 && m.total == m.weights + m.cache + m.constants + m.step);
    tt_generator_free(g);
    tt_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_logits_are_those_of_the_forward_pass),
        cmocka_unit_test(a_prompt_is_the_same_whole_and_in_pieces),
        cmocka_unit_test(logits_do_not_depend_on_threads),
        cmocka_unit_test(rewinding_forgets_what_came_after),
        cmocka_unit_test(a_full_context_is_an_error),
        cmocka_unit_test(bad_weights_are_noticed),
        cmocka_unit_test(feeding_allocates_nothing),
        cmocka_unit_test(memory_is_predicted),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
