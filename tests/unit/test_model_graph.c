/* SPDX-License-Identifier: MIT
 *
 * The graph of llama3, built and differentiated: its shape, and its numbers on the reference models. The graph is run
 * node by node, without a program or a memory plan, and every value has its own memory.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/models/model.h"
#include "core/ops/op.h"
#include "core/os/file.h"

static int count_nodes(const struct tt_graph *graph, enum tt_op_id op)
{
    int n = 0;

    for (int i = 0; i < graph->n_nodes; i++)
        n += graph->nodes[i].op == op;
    return n;
}

static const struct tt_value *find_value(const struct tt_graph *graph, const char *name)
{
    for (int i = 0; i < graph->n_values; i++) {
        if (strcmp(graph->values[i].name, name) == 0)
            return &graph->values[i];
    }
    return NULL;
}

static void forward_graph_has_the_layers(void **state)
{
    struct tt_model *model = NULL;
    struct tt_graph *graph = NULL;
    const struct tt_value *q, *k, *table;

    assert_int_equal(tt_model_new("llama3", "125M", NULL, NULL, &model), 0);
    assert_int_equal(tt_model_graph(model, TT_GRAPH_VALIDATE, TT_F32, 2, 128, false, &graph, NULL), 0);
    assert_int_equal(count_nodes(graph, TT_OP_LINEAR), 12 * 7);
    assert_int_equal(count_nodes(graph, TT_OP_RMSNORM), 12 * 2 + 1);
    assert_int_equal(count_nodes(graph, TT_OP_ROPE), 12 * 2);
    assert_int_equal(count_nodes(graph, TT_OP_ATTENTION), 12);
    assert_int_equal(count_nodes(graph, TT_OP_SWIGLU), 12);
    assert_int_equal(count_nodes(graph, TT_OP_ADD), 12 * 2);
    assert_int_equal(count_nodes(graph, TT_OP_HEAD_LOSS), 1);
    assert_int_equal(graph->n_nodes, 1 + 12 * (7 + 2 + 2 + 1 + 1 + 2) + 1 + 1);
    q = find_value(graph, "layers.11.attention.q");
    k = find_value(graph, "layers.0.attention.k");
    table = &graph->values[graph->rope_table];
    assert_true(q && tt_value_rows(q) == 256 && tt_value_width(q) == 768);
    assert_true(k && tt_value_rows(k) == 256 && tt_value_width(k) == 256);
    assert_true(table->shape[0] == 128 && table->shape[1] == 32 && table->shape[2] == 2);
    assert_int_equal(tt_value_elements(&graph->values[graph->token_loss]), 256);
    tt_graph_free(graph);
    tt_model_free(model);
}

static void largest_model_is_differentiated_without_storage(void **state)
{
    struct tt_model *model = NULL;
    struct tt_graph *graph = NULL;
    int *param_grad;

    assert_int_equal(tt_model_new("llama3", "405B", NULL, NULL, &model), 0);
    param_grad = tt_calloc((size_t)model->n_params, sizeof *param_grad);
    assert_int_equal(tt_model_graph(model, TT_GRAPH_TRAIN, TT_F32, 1, 8192, false, &graph, param_grad), 0);
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_value *grad;

        assert_true(param_grad[p] >= 0);
        grad = &graph->values[param_grad[p]];
        assert_true(grad->ndim == model->params[p].ndim && grad->shape[0] == model->params[p].shape[0]);
    }
    tt_graph_free(graph);
    tt_free(param_grad);
    tt_model_free(model);
}

/* A reference run of tests/golden: the model, weights in Hugging Face's layout, expected numbers, tokens. */
struct reference {
    struct tt_model *model;
    char *weights;
    json_t *index, *expect;
    char *tokens;
};

static int64_t member_int(const json_t *object, const char *key)
{
    int64_t value = 0;

    assert_int_equal(tt_json_get_int(object, key, "expect.json", &value), 0);
    return value;
}

static char *read_file(const char *folder, const char *name)
{
    char *path = tt_format("%s/%s", folder, name), *text = NULL;
    size_t size = 0;

    assert_int_equal(tt_file_read(path, &text, &size), 0);
    tt_free(path);
    return text;
}

static void open_reference(const char *name, struct reference *ref)
{
    char *folder = tt_format("%s/tests/golden/data/%s", TT_SOURCE_DIR, name), *text;
    uint64_t header = 0;

    assert_int_equal(tt_model_new("llama3", "hf", NULL, folder, &ref->model), 0);
    ref->weights = read_file(folder, "model.safetensors");
    memcpy(&header, ref->weights, sizeof header);
    assert_int_equal(tt_json_parse(ref->weights + 8, header, "model.safetensors", &ref->index), 0);
    text = read_file(folder, "expect.json");
    assert_int_equal(tt_json_parse(text, strlen(text), "expect.json", &ref->expect), 0);
    ref->tokens = read_file(folder, "tokens.bin");
    tt_free(text);
    tt_free(folder);
}

static void close_reference(struct reference *ref)
{
    json_decref(ref->index);
    json_decref(ref->expect);
    tt_free(ref->weights);
    tt_free(ref->tokens);
    tt_model_free(ref->model);
}

static void load_param(const struct reference *ref, const struct tt_param *p, float *data)
{
    const json_t *offsets = json_object_get(json_object_get(ref->index, p->hf_name), "data_offsets");
    int64_t rows = p->shape[0], width = p->ndim > 1 ? p->shape[1] : 1, head_rows = rows, half;
    const char *source;
    uint64_t header = 0;

    assert_non_null(offsets);
    memcpy(&header, ref->weights, sizeof header);
    source = ref->weights + 8 + header + json_integer_value(json_array_get(offsets, 0));
    if (p->hf_transform == TT_HF_ROPE_PAIRS)
        head_rows = rows / p->hf_heads;
    half = head_rows / 2;
    for (int64_t row = 0; row < rows; row++) {
        int64_t in_head = row % head_rows, from = row;

        if (p->hf_transform == TT_HF_ROPE_PAIRS)
            from = row - in_head + in_head % 2 * half + in_head / 2;
        memcpy(data + row * width, source + (size_t)(from * width) * 4, (size_t)width * 4);
    }
}

/* Runs the reference's first step as one microbatch. Every value has memory of its own. */
static void **run_first_step(const struct reference *ref, const struct tt_graph *graph, int64_t batch, int64_t seq_len)
{
    void **memory = tt_calloc((size_t)graph->n_values, sizeof *memory);
    const struct tt_scalars scalars = {.inv_valid_tokens = 1.0F / (float)(batch * seq_len)};
    struct tt_team *team = NULL;
    const uint16_t *stream = (const uint16_t *)(const void *)(ref->tokens + 1024);

    for (int v = 0; v < graph->n_values; v++) {
        memory[v] = tt_calloc((size_t)tt_value_elements(&graph->values[v]), 8);
        if (graph->values[v].kind == TT_VALUE_PARAM)
            load_param(ref, &ref->model->params[graph->values[v].param], memory[v]);
    }
    tt_rope_fill(&graph->rope, seq_len, ref->model->dims.head_dim, TT_F32, memory[graph->rope_table]);
    for (int64_t i = 0; i < batch * seq_len; i++) {
        ((int32_t *)memory[graph->tokens])[i] = stream[i];
        ((int32_t *)memory[graph->labels])[i] = stream[i + 1];
    }
    assert_int_equal(tt_team_new(2, &team), 0);
    for (int n = 0; n < graph->n_nodes; n++) {
        const struct tt_node *node = &graph->nodes[n];
        const struct tt_op_row *row = tt_op_row(node->op);
        struct tt_call call = {.graph = graph, .node = node, .scalars = &scalars, .team = team};
        int64_t bytes = row->scratch_bytes ? row->scratch_bytes(graph, node, 2) : 0;

        for (int i = 0; i < node->n_in; i++)
            call.in[i] = node->in[i] == TT_NONE ? NULL : memory[node->in[i]];
        for (int i = 0; i < node->n_out; i++)
            call.out[i] = memory[node->out[i]];
        call.scratch = tt_map((size_t)bytes + 64);
        row->run(&call);
        tt_unmap(call.scratch, (size_t)bytes + 64);
    }
    tt_team_free(team);
    return memory;
}

/* The gradient of the output's use of a tied weight, or NULL. */
static const float *output_part(const struct tt_graph *graph, void **memory, int param)
{
    for (int v = 0; v < graph->n_values; v++)
        if (graph->values[v].kind == TT_VALUE_PARAM_GRAD && graph->values[v].param == param &&
            graph->values[v].part == 1)
            return memory[v];
    return NULL;
}

static double norm_of_gradients(const struct tt_graph *graph, void **memory, const int *param_grad, int n_params)
{
    double squares = 0.0;

    for (int p = 0; p < n_params; p++) {
        const float *grad = memory[param_grad[p]], *other = output_part(graph, memory, p);

        for (int64_t i = 0; i < tt_value_elements(&graph->values[param_grad[p]]); i++) {
            double sum = (double)grad[i] + (other ? (double)other[i] : 0.0);

            squares += sum * sum;
        }
    }
    return sqrt(squares);
}

static void check_first_step(const char *name)
{
    struct reference ref;
    struct tt_graph *graph = NULL;
    int64_t seq_len, batch;
    double loss = 0.0, norm, wanted_loss, wanted_norm;
    int *param_grad;
    void **memory;

    open_reference(name, &ref);
    seq_len = member_int(json_object_get(ref.expect, "case"), "seq_len");
    batch = member_int(json_object_get(ref.expect, "case"), "global_batch_size");
    wanted_loss = json_number_value(json_array_get(json_object_get(ref.expect, "loss"), 0));
    wanted_norm = json_number_value(json_array_get(json_object_get(ref.expect, "grad_norm"), 0));
    param_grad = tt_calloc((size_t)ref.model->n_params, sizeof *param_grad);
    assert_int_equal(tt_model_graph(ref.model, TT_GRAPH_TRAIN, TT_F32, batch, seq_len, false, &graph, param_grad), 0);
    memory = run_first_step(&ref, graph, batch, seq_len);
    for (int64_t i = 0; i < batch * seq_len; i++)
        loss += (double)((float *)memory[graph->token_loss])[i] / (double)(batch * seq_len);
    norm = norm_of_gradients(graph, memory, param_grad, ref.model->n_params);
    if (fabs(loss / wanted_loss - 1.0) > 2e-6 || fabs(norm / wanted_norm - 1.0) > 2e-5)
        fail_msg("%s: loss %.9g, wanted %.9g; grad_norm %.9g, wanted %.9g", name, loss, wanted_loss, norm, wanted_norm);
    for (int v = 0; v < graph->n_values; v++)
        tt_free(memory[v]);
    tt_free(memory);
    tt_free(param_grad);
    tt_graph_free(graph);
    close_reference(&ref);
}

static void first_step_is_the_references(void **state)
{
    check_first_step("llama3");
}

static void first_step_of_a_tied_scaled_model(void **state)
{
    check_first_step("llama3_tied_scaled");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_graph_has_the_layers),
        cmocka_unit_test(largest_model_is_differentiated_without_storage),
        cmocka_unit_test(first_step_is_the_references),
        cmocka_unit_test(first_step_of_a_tied_scaled_model),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
