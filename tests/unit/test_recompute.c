/* SPDX-License-Identifier: MIT
 *
 * Activation checkpointing as a pass over the graph: which nodes run again, where, and which values stay.
 * tests/par/test_train_modes.c checks that it does not change the numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/model.h"
#include "core/ops/op.h"
#include "core/passes/recompute.h"

static struct tt_graph *make_graph(int64_t n_layers, int tied, struct tt_recompute how)
{
    const struct tt_model_dims dims = {.dim = 8,
                                       .n_layers = n_layers,
                                       .n_heads = 2,
                                       .n_kv_heads = 1,
                                       .head_dim = 4,
                                       .ffn_dim = 12,
                                       .vocab_size = 16,
                                       .tied = tied};
    struct tt_model *model = NULL;
    struct tt_graph *graph = NULL;
    int *param_grad;

    assert_int_equal(tt_model_new("llama3", "debugmodel", &dims, NULL, &model), 0);
    param_grad = tt_calloc((size_t)model->n_params, sizeof *param_grad);
    assert_int_equal(tt_model_graph(model, TT_GRAPH_TRAIN, TT_F32, 1, 4, false, &graph, param_grad), 0);
    tt_graph_recompute(graph, &how);
    tt_free(param_grad);
    tt_model_free(model);
    return graph;
}

/* " attention.q", or " attention.q'" of a copy. */
static void add_name(struct tt_text *text, const char *name)
{
    const char *suffix = strstr(name, ".recomputed");

    if (strncmp(name, "layers.", 7) == 0)
        name = strchr(name + 7, '.') + 1;
    tt_text_add(text, " %.*s%s", suffix ? (int)(suffix - name) : 99, name, suffix ? "'" : "");
}

/* The nodes of a block's backward part, one per line: the name, and the inputs other than gradients and parameters. */
static char *text_of_block(const struct tt_graph *graph, int block)
{
    struct tt_text text = {0};

    for (int n = 0; n < graph->n_nodes; n++) {
        const struct tt_node *node = &graph->nodes[n];

        if (!node->backward || node->block != block)
            continue;
        tt_text_add(&text, "%s", tt_op_row(node->op)->name);
        for (int i = 0; i < node->n_in; i++)
            if (node->in[i] != TT_NONE && graph->values[node->in[i]].kind == TT_VALUE_ACTIVATION)
                add_name(&text, graph->values[node->in[i]].name);
        tt_text_add(&text, "\n");
    }
    return text.text;
}

static void must_read(struct tt_recompute how, int block, const char *wanted)
{
    struct tt_graph *graph = make_graph(2, 0, how);
    char *found = text_of_block(graph, block);

    assert_string_equal(found, wanted);
    tt_free(found);
    tt_graph_free(graph);
}

static void without_it_backward_reads_the_originals(void **state)
{
    must_read((struct tt_recompute){TT_RECOMPUTE_NONE, 0}, 0,
              "linear_bwd_x\n"
              "linear_bwd_w feed_forward.hidden\n"
              "swiglu_bwd feed_forward.gate feed_forward.up\n"
              "linear_bwd_x\n"
              "linear_bwd_w ffn_norm\n"
              "linear_bwd_x\n"
              "linear_bwd_w ffn_norm\n"
              "rmsnorm_bwd attention_residual ffn_norm.rstd\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention.heads\n"
              "attention_bwd attention.q_rope attention.k_rope attention.v attention.heads attention.heads.lse\n"
              "rope\n"
              "rope\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention_norm\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention_norm\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention_norm\n"
              "rmsnorm_bwd embeddings attention_norm.rstd\n");
}

static void full_keeps_the_input_of_the_block(void **state)
{
    must_read((struct tt_recompute){TT_RECOMPUTE_FULL, 0}, 0,
              "linear_bwd_x\n"
              "rmsnorm embeddings\n"
              "linear attention_norm'\n"
              "linear attention_norm'\n"
              "linear attention_norm'\n"
              "rope attention.q'\n"
              "rope attention.k'\n"
              "attention attention.q_rope' attention.k_rope' attention.v'\n"
              "linear attention.heads'\n"
              "add embeddings attention.out'\n"
              "rmsnorm attention_residual'\n"
              "linear ffn_norm'\n"
              "linear ffn_norm'\n"
              "swiglu feed_forward.gate' feed_forward.up'\n"
              "linear_bwd_w feed_forward.hidden'\n"
              "swiglu_bwd feed_forward.gate' feed_forward.up'\n"
              "linear_bwd_x\n"
              "linear_bwd_w ffn_norm'\n"
              "linear_bwd_x\n"
              "linear_bwd_w ffn_norm'\n"
              "rmsnorm_bwd attention_residual' ffn_norm.rstd'\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention.heads'\n"
              "attention_bwd attention.q_rope' attention.k_rope' attention.v' attention.heads' attention.heads.lse'\n"
              "rope\n"
              "rope\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention_norm'\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention_norm'\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention_norm'\n"
              "rmsnorm_bwd embeddings attention_norm.rstd'\n");
}

static void selective_keeps_the_output_of_attention(void **state)
{
    must_read((struct tt_recompute){TT_RECOMPUTE_SELECTIVE, 1}, 0,
              "linear_bwd_x\n"
              "linear attention.heads\n"
              "add embeddings attention.out'\n"
              "rmsnorm attention_residual'\n"
              "linear ffn_norm'\n"
              "linear ffn_norm'\n"
              "swiglu feed_forward.gate' feed_forward.up'\n"
              "linear_bwd_w feed_forward.hidden'\n"
              "swiglu_bwd feed_forward.gate' feed_forward.up'\n"
              "linear_bwd_x\n"
              "linear_bwd_w ffn_norm'\n"
              "linear_bwd_x\n"
              "linear_bwd_w ffn_norm'\n"
              "rmsnorm_bwd attention_residual' ffn_norm.rstd'\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention.heads\n"
              "rmsnorm embeddings\n"
              "linear attention_norm'\n"
              "linear attention_norm'\n"
              "linear attention_norm'\n"
              "rope attention.q'\n"
              "rope attention.k'\n"
              "attention_bwd attention.q_rope' attention.k_rope' attention.v' attention.heads attention.heads.lse\n"
              "rope\n"
              "rope\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention_norm'\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention_norm'\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention_norm'\n"
              "rmsnorm_bwd embeddings attention_norm.rstd'\n");
}

static void op_recomputes_light_ops_whose_inputs_are_available(void **state)
{
    must_read((struct tt_recompute){TT_RECOMPUTE_OP, 0}, 0,
              "linear_bwd_x\n"
              "swiglu feed_forward.gate feed_forward.up\n"
              "linear_bwd_w feed_forward.hidden'\n"
              "swiglu_bwd feed_forward.gate feed_forward.up\n"
              "linear_bwd_x\n"
              "rmsnorm attention_residual\n"
              "linear_bwd_w ffn_norm'\n"
              "linear_bwd_x\n"
              "linear_bwd_w ffn_norm'\n"
              "rmsnorm_bwd attention_residual ffn_norm.rstd'\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention.heads\n"
              "attention_bwd attention.q_rope attention.k_rope attention.v attention.heads attention.heads.lse\n"
              "rope\n"
              "rope\n"
              "linear_bwd_x\n"
              "rmsnorm embeddings\n"
              "linear_bwd_w attention_norm'\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention_norm'\n"
              "linear_bwd_x\n"
              "linear_bwd_w attention_norm'\n"
              "rmsnorm_bwd embeddings attention_norm.rstd'\n");
}

static int count_copies(const struct tt_graph *graph, enum tt_op_id op, int block)
{
    int n = 0;

    for (int i = 0; i < graph->n_nodes; i++)
        n += graph->nodes[i].backward && graph->nodes[i].op == op && (block < 0 || graph->nodes[i].block == block);
    return n;
}

static void full_recomputes_every_block_but_not_its_output(void **state)
{
    struct tt_graph *graph = make_graph(5, 1, (struct tt_recompute){TT_RECOMPUTE_FULL, 0});

    for (int block = 0; block < 5; block++) {
        assert_int_equal(count_copies(graph, TT_OP_ATTENTION, block), 1);
        assert_int_equal(count_copies(graph, TT_OP_LINEAR, block), 6); /* all but w2, whose result nothing reads */
        assert_int_equal(count_copies(graph, TT_OP_RMSNORM, block), 2);
    }
    assert_int_equal(count_copies(graph, TT_OP_RMSNORM, -1), 2 * 5); /* not the norm before the head */
    assert_int_equal(count_copies(graph, TT_OP_EMBEDDING, -1), 0);
    assert_int_equal(count_copies(graph, TT_OP_HEAD_LOSS_GRAD, -1), 0);
    tt_graph_free(graph);
}

static void selective_takes_every_nth_block_and_no_attention(void **state)
{
    for (int every = 1; every <= 6; every++) {
        struct tt_graph *graph = make_graph(5, 0, (struct tt_recompute){TT_RECOMPUTE_SELECTIVE, every});

        for (int block = 0; block < 5; block++)
            assert_int_equal(count_copies(graph, TT_OP_LINEAR, block), block % every == every - 1 ? 6 : 0);
        assert_int_equal(count_copies(graph, TT_OP_ATTENTION, -1), 0);
        tt_graph_free(graph);
    }
}

static void op_runs_neither_attention_nor_products_again(void **state)
{
    struct tt_graph *graph = make_graph(5, 0, (struct tt_recompute){TT_RECOMPUTE_OP, 0});

    assert_int_equal(count_copies(graph, TT_OP_LINEAR, -1), 0);
    assert_int_equal(count_copies(graph, TT_OP_ATTENTION, -1), 0);
    assert_int_equal(count_copies(graph, TT_OP_RMSNORM, -1), 2 * 5);
    assert_int_equal(count_copies(graph, TT_OP_SWIGLU, -1), 5);
    tt_graph_free(graph);
}

/* Every input is the result of an earlier node, and a forward node never reads a result of the backward part. */
static void nodes_are_in_an_order_in_which_they_can_run(void **state)
{
    for (int mode = TT_RECOMPUTE_NONE; mode <= TT_RECOMPUTE_OP; mode++) {
        struct tt_graph *graph = make_graph(3, 1, (struct tt_recompute){(enum tt_recompute_mode)mode, 2});
        bool backward = false;

        for (int n = 0; n < graph->n_nodes; n++) {
            const struct tt_node *node = &graph->nodes[n];

            assert_true(node->backward || !backward);
            backward = node->backward;
            for (int i = 0; i < node->n_in; i++)
                if (node->in[i] != TT_NONE)
                    assert_true(graph->values[node->in[i]].producer < n);
            for (int k = 0; k < node->n_out; k++)
                assert_int_equal(graph->values[node->out[k]].producer, n);
        }
        tt_graph_free(graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_it_backward_reads_the_originals),
        cmocka_unit_test(full_keeps_the_input_of_the_block),
        cmocka_unit_test(selective_keeps_the_output_of_attention),
        cmocka_unit_test(op_recomputes_light_ops_whose_inputs_are_available),
        cmocka_unit_test(full_recomputes_every_block_but_not_its_output),
        cmocka_unit_test(selective_takes_every_nth_block_and_no_attention),
        cmocka_unit_test(op_runs_neither_attention_nor_products_again),
        cmocka_unit_test(nodes_are_in_an_order_in_which_they_can_run),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
