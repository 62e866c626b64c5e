/* SPDX-License-Identifier: MIT
 *
 * The head: the output projection and the loss. For each chunk of rows, one product gives the logits; their gradient
 * replaces them, and two more products turn it into dx and dw.
 *
 * The product for dx has few elements and a long sum over the vocabulary: it is cut into slices of the vocabulary,
 * which are added in order. So both products of the gradient keep a whole team busy, and dx can take over the memory of
 * x although the product for dw reads x at the same time. In bfloat16 the gradient fills half of each row of logits,
 * and the other half holds the row's slices, if it is long enough. If V has grains, each grain has its own slices, and
 * dx is a tree over the grains.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/math/elementary.h"
#include "core/math/tree.h"
#include "core/ops/rule.h"

enum {
    CHUNK = 512, /* rows */
    TILE_ROWS = 8,
    DX_TILES_WANTED = 16,
    SLICE_MIN = 2048, /* columns of a slice of the vocabulary */
    LINE = 16         /* floats of a cache line */
};

/* How the work is cut. It depends on the grains of N and V, not on the local part. */
struct head {
    bool bf16;
    int64_t rows; /* rows of a chunk, at most */
    int64_t width, vocab;
    int64_t vocab_grain;
    int64_t slices;               /* slices of a grain of the vocabulary, over which dx is summed */
    int64_t grad_stride;          /* elements from one row of the gradient of the logits to the next */
    bool in_rows;                 /* the slices use the half of each row of logits that the gradient leaves free */
    int64_t slice_step, row_step; /* floats from one slice of dx to the next, and from a row to the next */
    tt_real cap;                  /* soft cap of the logits; 0: none */
};

/* A chunk of at most head.rows rows. */
struct chunk {
    const struct head *head;
    struct tt_team *team;
    int64_t n;
    const void *x, *w; /* the rows of x in this chunk */
    tt_real *logits;   /* (n, V); then their gradient, in the type of x */
    tt_real *slices;   /* slice_floats */
    tt_real *workers;  /* worker_floats for each */
    void *dx;          /* may be equal to x */
    bool dx_bf16;
    const tt_real *acc; /* the earlier dw, or NULL */
    tt_real *dw;        /* [acc +] the gradient; NULL: none */
};

/* --- how the products are cut --- */

/* The products of a chunk of `rows` rows, without addresses: logits, dw, and dx of a part of the vocabulary. */
static struct tt_matmul logits_product(const struct head *head, int64_t rows)
{
    return (struct tt_matmul){.bf16 = head->bf16,
                              .trans_b = true,
                              .m = rows,
                              .n = head->vocab,
                              .k = head->width,
                              .lda = head->width,
                              .ldb = head->width,
                              .ldc = head->vocab,
                              .n_grain = head->vocab_grain};
}

static struct tt_matmul dw_product(const struct head *head, int64_t rows)
{
    return (struct tt_matmul){.bf16 = head->bf16,
                              .trans_a = true,
                              .m = head->vocab,
                              .n = head->width,
                              .k = rows,
                              .lda = head->grad_stride,
                              .ldb = head->width,
                              .ldc = head->width,
                              .m_grain = head->vocab_grain};
}

static struct tt_matmul dx_product(const struct head *head, int64_t rows, int64_t vocab)
{
    return (struct tt_matmul){.bf16 = head->bf16,
                              .m = rows,
                              .n = head->width,
                              .k = vocab,
                              .lda = head->grad_stride,
                              .ldb = head->width,
                              .ldc = head->row_step};
}

static int64_t vocab_grains(const struct head *head)
{
    return tt_tiles(head->vocab, head->vocab_grain);
}

/* How many floats of a row of logits its gradient occupies in bfloat16. */
static int64_t half_row(const struct head *head)
{
    return tt_round_up(tt_div_up(head->vocab, 2), LINE);
}

static struct head head_of(const struct tt_graph *graph, const struct tt_node *node, int x, int w, int64_t rows,
                           bool grad)
{
    struct head head = {.bf16 = tt_op_is_bf16(graph, node),
                        .rows = rows,
                        .width = tt_value_width(&graph->values[x]),
                        .vocab = tt_value_rows(&graph->values[w]),
                        .slices = 1,
                        .cap = (tt_real)node->attr.soft_cap};
    struct tt_matmul slice;

    head.vocab_grain = tt_grain_or(&node->attr.out, head.vocab);
    head.grad_stride = head.bf16 ? 2 * head.vocab : head.vocab;
    if (!grad)
        return head;
    head.slice_step = rows * head.width;
    head.row_step = head.width;
    slice = dx_product(&head, rows, head.vocab_grain);
    while (head.slices * tt_matmul_tiles(&slice) < DX_TILES_WANTED &&
           head.vocab_grain / (2 * head.slices) >= SLICE_MIN) {
        head.slices *= 2;
        slice.k = head.vocab_grain / head.slices;
    }
    head.in_rows = head.bf16 && half_row(&head) + vocab_grains(&head) * head.slices * head.width <= head.vocab;
    if (head.in_rows) {
        head.slice_step = head.width;
        head.row_step = head.vocab;
    }
    return head;
}

static int64_t slice_floats(const struct head *head)
{
    return head->in_rows ? 0 : vocab_grains(head) * head->slices * head->slice_step;
}

static int64_t worker_floats(const struct head *head)
{
    struct tt_matmul products[3] = {logits_product(head, head->rows), dw_product(head, head->rows),
                                    dx_product(head, head->rows, head->vocab_grain)};
    int64_t most = 0;

    for (int i = 0; i < 3; i++) {
        int64_t floats = tt_matmul_scratch_floats(&products[i]);

        most = floats > most ? floats : most;
    }
    return most;
}

/* --- the products of a chunk --- */

static void cap_tile(void *arg, int64_t tile, int worker)
{
    const struct chunk *chunk = arg;
    struct tt_range part = tt_tile_range(chunk->n, TILE_ROWS, tile);
    tt_real *logits = chunk->logits + part.begin * chunk->head->vocab;

    (void)worker;
    tt_kernels()->soft_cap(logits, logits, part.n * chunk->head->vocab, chunk->head->cap);
}

/* Computes the logits, capped. */
static void multiply_logits(const struct chunk *chunk)
{
    struct tt_matmul product = logits_product(chunk->head, chunk->n);

    product.a = chunk->x;
    product.b = chunk->w;
    product.c = chunk->logits;
    product.scratch = chunk->workers;
    tt_matmul(chunk->team, &product);
    if (chunk->head->cap > 0.0F)
        tt_team_run(chunk->team, tt_tiles(chunk->n, TILE_ROWS), cap_tile, (void *)chunk);
}

static struct tt_matmul chunk_dw(const struct chunk *chunk)
{
    struct tt_matmul product = dw_product(chunk->head, chunk->n);

    product.a = chunk->logits;
    product.b = chunk->x;
    product.acc = chunk->acc;
    product.c = chunk->dw;
    return product;
}

/* Row `row` of slice i of dx. Slices are numbered through all grains of the vocabulary. */
static tt_real *dx_slice(const struct chunk *chunk, int64_t i, int64_t row)
{
    const struct head *head = chunk->head;
    tt_real *first = head->in_rows ? chunk->logits + half_row(head) : chunk->slices;

    return first + i * head->slice_step + row * head->row_step;
}

static struct tt_matmul chunk_dx(const struct chunk *chunk, int64_t i)
{
    const struct head *head = chunk->head;
    int64_t size = head->bf16 ? (int64_t)sizeof(tt_bf16) : (int64_t)sizeof(tt_real);
    struct tt_range grain = tt_tile_range(head->vocab, head->vocab_grain, i / head->slices);
    int64_t begin = grain.begin + grain.n * (i % head->slices) / head->slices;
    int64_t end = grain.begin + grain.n * (i % head->slices + 1) / head->slices;
    struct tt_matmul product = dx_product(head, chunk->n, end - begin);

    product.a = (const char *)chunk->logits + begin * size;
    product.b = (const char *)chunk->w + begin * head->width * size;
    product.c = dx_slice(chunk, i, 0);
    return product;
}

static int64_t dx_slices(const struct chunk *chunk)
{
    return vocab_grains(chunk->head) * chunk->head->slices;
}

/* The number of tiles in all slices. A slice of the last grain may have fewer than the others. */
static int64_t dx_tiles(const struct chunk *chunk)
{
    int64_t tiles = 0;

    for (int64_t i = 0; i < dx_slices(chunk); i++) {
        struct tt_matmul slice = chunk_dx(chunk, i);

        tiles += tt_matmul_tiles(&slice);
    }
    return tiles;
}

/* The product to which this tile belongs, and the tile's number in it. The tiles of dx come first, since they take
 * longer. */
static struct tt_matmul product_of(const struct chunk *chunk, int64_t *tile)
{
    for (int64_t i = 0; i < dx_slices(chunk); i++) {
        struct tt_matmul slice = chunk_dx(chunk, i);
        int64_t tiles = tt_matmul_tiles(&slice);

        if (*tile < tiles)
            return slice;
        *tile -= tiles;
    }
    return chunk_dw(chunk);
}

static void grad_tile(void *arg, int64_t tile, int worker)
{
    const struct chunk *chunk = arg;
    struct tt_matmul product = product_of(chunk, &tile);

    /* workers that run different products at the same time use different parts of the scratch */
    product.scratch = chunk->workers + worker * (worker_floats(chunk->head) - tt_matmul_scratch_floats(&product));
    tt_matmul_tile(&product, tile, worker);
}

/* Adds the slices of a grain in order, then the grains as a tree. */
static void dx_sum_row(const struct chunk *chunk, int64_t row)
{
    int64_t n = chunk->head->width, slices = chunk->head->slices;
    struct tt_tree_walk walk = tt_tree_walk_make(vocab_grains(chunk->head));
    int64_t into, from;

    for (int64_t i = 0; i < dx_slices(chunk); i++) {
        tt_real *grain = dx_slice(chunk, i / slices * slices, row);

        if (i % slices)
            tt_kernels()->add(grain, grain, dx_slice(chunk, i, row), n);
    }
    while (tt_tree_walk_next(&walk, &into, &from))
        tt_kernels()->add(dx_slice(chunk, into * slices, row), dx_slice(chunk, into * slices, row),
                          dx_slice(chunk, from * slices, row), n);
    if (chunk->dx_bf16)
        tt_kernels()->bf16_round((tt_bf16 *)chunk->dx + row * n, dx_slice(chunk, 0, row), n);
    else
        memcpy((tt_real *)chunk->dx + row * n, dx_slice(chunk, 0, row), (size_t)n * sizeof(tt_real));
}

static void dx_sum_tile(void *arg, int64_t tile, int worker)
{
    const struct chunk *chunk = arg;
    struct tt_range part = tt_tile_range(chunk->n, TILE_ROWS, tile);

    (void)worker;
    for (int64_t row = part.begin; row < part.begin + part.n; row++)
        dx_sum_row(chunk, row);
}

static void multiply_grads(const struct chunk *chunk)
{
    struct tt_matmul dw = chunk_dw(chunk);
    int64_t dw_tiles = chunk->dw ? tt_matmul_tiles(&dw) : 0;

    tt_team_run(chunk->team, dx_tiles(chunk) + dw_tiles, grad_tile, (void *)chunk);
    tt_team_run(chunk->team, tt_tiles(chunk->n, TILE_ROWS), dx_sum_tile, (void *)chunk);
}

/*
 * HEAD_LOSS: the output projection and the cross-entropy of every token in one op.
 *   in   x (N, D), w (V, D), labels (B, T) I32 in [0, V) or TT_LABEL_IGNORED
 *   out  token_loss (N), or with a z-loss (2, N): the losses, then the z-losses
 *
 * HEAD_LOSS_GRAD: the same, and the gradients of sum(token_loss) * inv_valid_tokens in the same pass.
 *   in   the same, acc (V, D) or none
 *   out  token_loss, dx (N, D), may take x's memory, dw (V, D) = [acc +] the gradient, may take acc's memory; not
 *        if w is constant
 *
 * Logits exist for CHUNK tokens at a time, in scratch, as floats in any case. They become their gradient in place, in
 * the type of the node, and are never computed twice. The chunks depend only on N, and dw adds them in order. If N has
 * grains, each grain has its own chunks, and dw is a tree over the grains. If V has grains, tt_graph_phase_head
 * replaces the node (core/passes/phases.h): here the softmax is over the local rows of w.
 *   attr rows (N), out (V), z_loss, soft_cap (0: none): logits l become soft_cap tanh(l / soft_cap) (Gemma 2)
 */

/* Output 0: the losses and, with a z-loss, the z-losses. */
static int infer_losses(struct tt_graph *graph, struct tt_node *node, const char *name, int64_t tokens)
{
    bool z = node->attr.z_loss > 0.0F;
    const int64_t shape[2] = {2, tokens};

    return tt_op_output(graph, node, 0, name, NULL, z ? 2 : 1, z ? shape : shape + 1);
}

static int loss_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *x = &graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    int64_t rows = tt_value_rows(x);

    if (tt_value_width(x) != tt_value_width(w) || !tt_grain_fits(&node->attr.rows, rows) ||
        !tt_grain_fits(&node->attr.out, tt_value_rows(w)) || tt_value_elements(&graph->values[node->in[2]]) != rows ||
        !tt_op_acc_fits(graph, node, 3, tt_value_rows(w), tt_value_width(w)))
        return tt_op_mismatch(graph, node, "x (N, D), w (V, D), labels (B, T) I32[, acc (V, D)]");
    return infer_losses(graph, node, name, rows);
}

static int infer_grad(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]], w = graph->values[node->in[1]];
    int rc = 0;

    TT_TRY(loss_infer(graph, node, name));
    TT_TRY(tt_op_output(graph, node, 1, name, "dx", x.ndim, x.shape));
    if (tt_rule_wanted(graph, node->in[1]))
        TT_TRY(tt_op_output(graph, node, 2, name, "dw", w.ndim, w.shape));
out:
    return rc;
}

/* Replaces the evaluating op by the training op, which gives the gradients of x and w too. */
static int backward_of_loss(struct tt_graph *graph, int node, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    struct tt_node with_grads = forward;
    int n_out = tt_rule_wanted(graph, forward.in[1]) ? 3 : 2, rc = 0;

    with_grads.op = TT_OP_HEAD_LOSS_GRAD;
    with_grads.in[with_grads.n_in++] = TT_NONE; /* no earlier gradient of w to add to */
    for (int k = 1; k < n_out; k++) {
        with_grads.out[with_grads.n_out++] = tt_graph_grad_value(graph, forward.in[k - 1]);
        graph->values[with_grads.out[k]].producer = node;
        with_grads.attr.partial = with_grads.attr.partial || graph->values[with_grads.out[k]].partial;
    }
    TT_TRY(tt_op_infer(graph, &with_grads, ""));
    graph->nodes[node] = with_grads;
    for (int k = 1; k < n_out; k++)
        TT_TRY(tt_rule_add(graph, &forward, k - 1, with_grads.out[k], grad_in));
out:
    return rc;
}

int64_t tt_head_chunk_rows(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t grain = tt_grain_or(&node->attr.rows, tt_value_rows(&graph->values[node->in[0]]));

    return grain < CHUNK ? grain : CHUNK;
}

/* The grains of rows, and the number of chunks in each. */
struct cuts {
    const struct tt_call *call; /* the call that runs the head */
    struct head head;
    int64_t rows, row_grain;
};

static struct cuts cuts_of(const struct tt_graph *graph, const struct tt_node *node)
{
    struct cuts cuts = {.rows = tt_value_rows(&graph->values[node->in[0]])};

    cuts.row_grain = tt_grain_or(&node->attr.rows, cuts.rows);
    cuts.head = head_of(graph, node, node->in[0], node->in[1], tt_head_chunk_rows(graph, node),
                        node->op == TT_OP_HEAD_LOSS_GRAD);
    return cuts;
}

/* Scratch: the logits of a chunk, and the slices of its dx. */
static int64_t chunk_floats(const struct cuts *cuts)
{
    return cuts->head.rows * cuts->head.vocab + slice_floats(&cuts->head);
}

/* Entries of the stack for the sums of dw over grains of rows; none without dw. */
static int64_t stack_floats(const struct tt_node *node, const struct cuts *cuts)
{
    if (node->op != TT_OP_HEAD_LOSS_GRAD || node->n_out < 3 || !tt_grain_size(&node->attr.rows))
        return 0;
    return tt_tree_stack_depth(tt_tiles(cuts->rows, cuts->row_grain)) * cuts->head.vocab * cuts->head.width;
}

struct softmax {
    tt_real largest;
    double sum; /* sum of exp(logit - the largest) over the whole vocabulary */
    tt_real target;
};

/* The losses of a row; z may be NULL. */
static void write_losses(tt_real *loss, tt_real *z, tt_real z_loss, const struct softmax *s)
{
    double log_sum = tt_log(s->sum), l = log_sum + (double)s->largest;

    *loss = (tt_real)(log_sum + ((double)s->largest - (double)s->target));
    if (z)
        *z = (tt_real)((double)z_loss * l * l);
}

/*
 * Turns n logits of a row into `scale` times the gradient of the losses, in the type of the node; `grad` may be
 * `logits`. label: index among these logits, or TT_NONE. In bfloat16 the second half of the row is undefined.
 */
static void write_gradient(const struct head *head, tt_real *grad, const tt_real *logits, int64_t n, int64_t label,
                           const struct softmax *s, tt_real scale, tt_real z_loss)
{
    double z_share = z_loss > 0.0F ? 1.0 + 2.0 * (double)z_loss * (tt_log(s->sum) + (double)s->largest) : 1.0;
    tt_real factor = (tt_real)((double)scale / s->sum * z_share), target = 0.0F, part;
    tt_bf16 *half = (tt_bf16 *)(void *)grad;

    if (label != TT_NONE) {
        part = head->cap > 0.0F ? logits[label] / head->cap : 0.0F;
        tt_kernels()->softmax_grad(&target, logits + label, 1, s->largest, factor, head->cap);
        target -= scale * (1.0F - part * part);
    }
    if (head->bf16) {
        tt_kernels()->softmax_grad_bf16(half, logits, n, s->largest, factor, head->cap);
        if (label != TT_NONE)
            half[label] = tt_bf16_from_float(target);
    } else {
        tt_kernels()->softmax_grad(grad, logits, n, s->largest, factor, head->cap);
        if (label != TT_NONE)
            grad[label] = target;
    }
}

/* Like the kernel cross_entropy_grad, for one row, with the gradient of the logits before they were capped. */
static void capped_gradient(const struct head *head, tt_real *loss, tt_real *z, tt_real *logits, int32_t label,
                            tt_real scale, tt_real z_loss)
{
    struct softmax s;
    tt_real sum;

    if (label < 0) {
        memset(logits, 0, (size_t)head->vocab * sizeof *logits);
        *loss = 0.0F;
        if (z)
            *z = 0.0F;
        return;
    }
    tt_kernels()->softmax_sum(&s.largest, &sum, logits, head->vocab);
    s.sum = (double)sum;
    s.target = logits[label];
    write_losses(loss, z, z_loss, &s);
    write_gradient(head, logits, logits, head->vocab, label, &s, scale, z_loss);
}

/* Runs the rows [begin, begin + chunk.n). */
struct part {
    const struct cuts *cuts;
    struct chunk chunk;
    int64_t begin;
};

static void loss_tile(void *arg, int64_t tile, int worker)
{
    const struct part *p = arg;
    const struct tt_call *call = p->cuts->call;
    struct tt_range part = tt_tile_range(p->chunk.n, TILE_ROWS, tile);
    int64_t vocab = p->cuts->head.vocab;
    tt_real *logits = p->chunk.logits + part.begin * vocab;
    tt_real *loss = (tt_real *)call->out[0] + p->begin + part.begin;
    tt_real z_loss = (tt_real)call->node->attr.z_loss, *z = z_loss > 0.0F ? loss + p->cuts->rows : NULL;
    const int32_t *labels = (const int32_t *)call->in[2] + p->begin + part.begin;

    (void)worker;
    if (call->node->op == TT_OP_HEAD_LOSS_GRAD && call->node->attr.soft_cap > 0.0F) {
        for (int64_t r = 0; r < part.n; r++)
            capped_gradient(&p->cuts->head, loss + r, z ? z + r : NULL, logits + r * vocab, labels[r],
                            (tt_real)call->scalars->inv_valid_tokens, z_loss);
    } else if (call->node->op == TT_OP_HEAD_LOSS_GRAD) {
        TT_RUN_KERNEL(call, cross_entropy_grad, loss, z, logits, labels, part.n, vocab,
                      (tt_real)call->scalars->inv_valid_tokens, z_loss);
    } else {
        tt_kernels()->cross_entropy(loss, z, logits, labels, part.n, vocab, z_loss);
    }
}

static void run_part(struct part *p)
{
    const struct tt_call *call = p->cuts->call;
    struct chunk *chunk = &p->chunk;
    int64_t first = p->begin * p->cuts->head.width;

    chunk->x = tt_call_in_at(call, 0, first);
    multiply_logits(chunk);
    tt_team_run(call->team, tt_tiles(chunk->n, TILE_ROWS), loss_tile, p);
    if (call->node->op != TT_OP_HEAD_LOSS_GRAD)
        return;
    chunk->dx = tt_call_out_at(call, 1, first);
    multiply_grads(chunk);
}

/* Runs the chunks of a grain of rows; dw = [acc +] the gradient of the grain. */
static void run_grain(const struct cuts *cuts, int64_t grain, const tt_real *acc, tt_real *dw)
{
    const struct tt_call *call = cuts->call;
    struct tt_range rows = tt_tile_range(cuts->rows, cuts->row_grain, grain);
    tt_real *scratch = call->scratch;
    struct part p = {.cuts = cuts};

    p.chunk =
        (struct chunk){.head = &cuts->head,
                       .team = call->team,
                       .w = call->in[1],
                       .logits = scratch,
                       .slices = scratch + cuts->head.rows * cuts->head.vocab,
                       .workers = scratch + tt_round_up(chunk_floats(cuts) + stack_floats(call->node, cuts), LINE),
                       .dx_bf16 = call->node->n_out > 1 && tt_call_out(call, 1)->dtype == TT_BF16,
                       .dw = dw};
    for (int64_t i = 0; i < tt_tiles(rows.n, cuts->head.rows); i++) {
        struct tt_range part = tt_tile_range(rows.n, cuts->head.rows, i);

        p.begin = rows.begin + part.begin;
        p.chunk.n = part.n;
        p.chunk.acc = i ? dw : acc;
        run_part(&p);
    }
}

static void grain_dw(void *arg, int64_t grain, tt_real *to)
{
    run_grain(arg, grain, NULL, to);
}

static void loss_run(const struct tt_call *call)
{
    struct cuts cuts = cuts_of(call->graph, call->node);
    bool grad = call->node->op == TT_OP_HEAD_LOSS_GRAD;
    int64_t grains = tt_tiles(cuts.rows, cuts.row_grain);

    cuts.call = call;
    if (grad && call->out[2] && tt_grain_size(&call->node->attr.rows)) {
        tt_op_sum_grains(call->team, grains, cuts.head.vocab * cuts.head.width,
                         (tt_real *)call->scratch + chunk_floats(&cuts), call->in[3], call->out[2], grain_dw, &cuts);
        return;
    }
    for (int64_t g = 0; g < grains; g++)
        run_grain(&cuts, g, grad ? call->in[3] : NULL, grad ? call->out[2] : NULL);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct cuts cuts = cuts_of(graph, node);
    int64_t floats = tt_round_up(chunk_floats(&cuts) + stack_floats(node, &cuts), LINE);

    return (floats + threads * worker_floats(&cuts.head)) * (int64_t)sizeof(tt_real);
}

static void loss_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *x = &graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    double products = node->n_out; /* the logits, dx and dw */

    ret_cost->flops = products * 2.0 * (double)tt_value_rows(x) * (double)tt_value_elements(w);
    ret_cost->inner = (double)tt_value_width(w);
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

const struct tt_op_row TT_OF_TYPE(tt_op_head_loss) = {
    .name = "head_loss",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .part = TT_PART_HEAD,
    .infer = loss_infer,
    .backward_of_loss = backward_of_loss,
    .run = loss_run,
    .cost = loss_cost,
    .scratch_bytes = scratch,
};

const struct tt_op_row TT_OF_TYPE(tt_op_head_loss_grad) = {
    .name = "head_loss_grad",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32},
    .out = {TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .part = TT_PART_HEAD,
    .infer = infer_grad,
    .run = loss_run,
    .cost = loss_cost,
    .scratch_bytes = scratch,
    .alias = {0, 1, 4},
};

/*
 * The head in phases, for a vocabulary in grains (attr out), of which each peer holds an equal share. A chunk consists
 * of R rows, starting at attr.first_row. core/passes/phases.c makes these nodes from HEAD_LOSS and HEAD_LOSS_GRAD.
 *
 * HEAD_LOGITS: the logits of this rank's part of the vocabulary, and the sums that the loss needs.
 *   in   x (N, D), w (V of this rank, D), labels (B, T) I32
 *   out  logits (R, V of this rank), sums (R, S): for each grain of this rank the largest logit and the sum of
 *        exp(logit - the largest), then the logit of the label, 0 if it is not of this rank
 *   attr chunk_rows (R)
 *
 * HEAD_CHUNK: the losses of a chunk.
 *   in   sums of all peers (peers R, S), labels, token_loss of the chunks before or none
 *   out  token_loss (N), or with a z-loss (2, N), which may take the earlier one's memory
 *
 * HEAD_CHUNK_GRAD: the same, and the gradients.
 *   in   logits, sums of all peers, x or none, w, labels, token_loss, dx of the chunks before or none, dw of the chunks
 *        before or none. Without x, dx holds the rows of x for this and later chunks.
 *   out  token_loss; dx (N, D), which may take the earlier one's memory; the gradient of the logits, which may take the
 *        logits' memory, in the type of x: in bfloat16 it fills half of each row; dw = [dw +] the gradient, not if w is
 *        constant
 *
 * Rows of token_loss and dx that no chunk has written yet are 0, or x. The sums of all grains are added as a tree.
 *   attr out (V), peers, first_row, z_loss, soft_cap
 */

/* --- the vocabulary --- */

/* The vocabulary in grains: `each` grains for every peer; the last peer may have fewer. */
struct vocabulary {
    int64_t whole, grain, grains, each, peers;
    int64_t begin, n; /* the part of this rank */
};

static struct vocabulary vocabulary_of(const struct tt_attr *attr)
{
    struct vocabulary v = {.whole = attr->out.whole, .peers = attr->peers.n > 1 ? attr->peers.n : 1};

    if (attr->out.grains < 1 || attr->out.grains % v.peers != 0)
        return v;
    v.grain = tt_div_up(v.whole, attr->out.grains);
    v.grains = tt_div_up(v.whole, v.grain);
    v.each = attr->out.grains / v.peers;
    v.begin = (v.peers > 1 ? attr->peers.index : 0) * v.each * v.grain;
    v.n = v.whole - v.begin < v.each * v.grain ? v.whole - v.begin : v.each * v.grain;
    return v;
}

/* The width of the sums. */
static int64_t sums_width(const struct vocabulary *v)
{
    return 2 * v->each + 1;
}

/* --- HEAD_LOGITS --- */

static int infer_logits(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *x = &graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    struct vocabulary v = vocabulary_of(&node->attr);
    int64_t rows = node->attr.chunk_rows, logits[2] = {rows, v.n}, sums[2] = {rows, sums_width(&v)};
    int rc = 0;

    if (!v.grain || tt_value_rows(w) != v.n || tt_value_width(x) != tt_value_width(w) || rows < 1 ||
        node->attr.first_row + rows > tt_value_rows(x) ||
        tt_value_elements(&graph->values[node->in[2]]) != tt_value_rows(x))
        return tt_op_mismatch(graph, node, "x (N, D), w (grains of V, D), labels (B, T) I32");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, 2, logits));
    TT_TRY(tt_op_output(graph, node, 1, name, "sums", 2, sums));
out:
    return rc;
}

static struct head head_of_logits(const struct tt_graph *graph, const struct tt_node *node)
{
    return head_of(graph, node, node->in[0], node->in[1], node->attr.chunk_rows, false);
}

static void sums_of_row(const struct tt_call *call, const struct vocabulary *v, int64_t row)
{
    const tt_real *logits = (const tt_real *)call->out[0] + row * v->n;
    tt_real *sums = (tt_real *)call->out[1] + row * sums_width(v);
    int64_t label = ((const int32_t *)call->in[2])[call->node->attr.first_row + row] - v->begin;

    for (int64_t g = 0; g < v->each; g++) {
        int64_t begin = g * v->grain, n = v->n - begin < v->grain ? v->n - begin : v->grain;

        sums[2 * g] = -INFINITY;
        sums[2 * g + 1] = 0.0F;
        if (n > 0)
            tt_kernels()->softmax_sum(&sums[2 * g], &sums[2 * g + 1], logits + begin, n);
    }
    sums[2 * v->each] = label >= 0 && label < v->n ? logits[label] : 0.0F;
}

static void sums_tile(const struct tt_call *call, struct tt_range part)
{
    struct vocabulary v = vocabulary_of(&call->node->attr);

    for (int64_t row = part.begin; row < part.begin + part.n; row++)
        sums_of_row(call, &v, row);
}

static void run_logits(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;
    struct head head = head_of_logits(call->graph, call->node);

    multiply_logits(&(struct chunk){.head = &head,
                                    .team = call->team,
                                    .n = attr->chunk_rows,
                                    .x = tt_call_in_at(call, 0, attr->first_row * head.width),
                                    .w = call->in[1],
                                    .logits = call->out[0],
                                    .workers = call->scratch});
    tt_op_run_tiles(call, attr->chunk_rows, TILE_ROWS, sums_tile);
}

static int64_t scratch_logits(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct head head = head_of_logits(graph, node);

    return threads * worker_floats(&head) * (int64_t)sizeof(tt_real);
}

static void cost_logits(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 2.0 * tt_op_elements(graph, node) * (double)tt_value_width(&graph->values[node->in[1]]);
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

/* --- the softmax of a row --- */

/* The factor of a grain's sum of exponentials when the sums of two grains are added. */
static double share(double largest, double of_both)
{
    return largest == of_both ? 1.0 : tt_exp(largest - of_both); /* both may be -inf */
}

/* Computes row r of a chunk of `rows`, from the sums of all peers. */
static struct softmax softmax_of(const struct vocabulary *v, const tt_real *sums, int64_t rows, int64_t r,
                                 int64_t label)
{
    double largest[TT_MOST_GRAINS], sum[TT_MOST_GRAINS];
    struct tt_tree_walk walk = tt_tree_walk_make(v->grains);
    int64_t owner = label / v->grain / v->each, into, from;

    for (int64_t g = 0; g < v->grains; g++) {
        const tt_real *of_peer = sums + (g / v->each * rows + r) * sums_width(v);

        largest[g] = (double)of_peer[2 * (g % v->each)];
        sum[g] = (double)of_peer[2 * (g % v->each) + 1];
    }
    while (tt_tree_walk_next(&walk, &into, &from)) {
        double of_both = fmax(largest[into], largest[from]);

        sum[into] = sum[into] * share(largest[into], of_both) + sum[from] * share(largest[from], of_both);
        largest[into] = of_both;
    }
    return (struct softmax){(tt_real)largest[0], sum[0], sums[(owner * rows + r) * sums_width(v) + 2 * v->each]};
}

/* --- HEAD_CHUNK, HEAD_CHUNK_GRAD --- */

/* A run of either op. */
struct run {
    const struct tt_call *call;
    struct vocabulary vocabulary;
    int64_t rows; /* rows of the chunk */
    const tt_real *sums;
    const int32_t *labels; /* of the chunk */
    tt_real *loss, *z;     /* of the chunk; z may be NULL */
    struct chunk chunk;
};

/* Turns a row of logits into scale * the gradient of the losses, in the type of the node. */
static void grad_of_row(const struct run *run, int64_t r, const struct softmax *s)
{
    const struct vocabulary *v = &run->vocabulary;
    const tt_real *logits = (const tt_real *)run->call->in[0] + r * v->n;
    tt_real *grad = run->chunk.logits + r * v->n;
    int64_t label = run->labels[r] - v->begin;

    write_gradient(run->chunk.head, grad, logits, v->n, label >= 0 && label < v->n ? label : TT_NONE, s,
                   (tt_real)run->call->scalars->inv_valid_tokens, (tt_real)run->call->node->attr.z_loss);
    if (run->chunk.head->bf16)
        memset((tt_bf16 *)(void *)grad + v->n, 0, (size_t)v->n * sizeof(tt_bf16));
}

static void ignore_row(const struct run *run, int64_t r)
{
    run->loss[r] = 0.0F;
    if (run->z)
        run->z[r] = 0.0F;
    if (run->chunk.logits)
        memset(run->chunk.logits + r * run->vocabulary.n, 0, (size_t)run->vocabulary.n * sizeof(tt_real));
}

static void row_tile(void *arg, int64_t tile, int worker)
{
    const struct run *run = arg;
    struct tt_range part = tt_tile_range(run->rows, TILE_ROWS, tile);

    (void)worker;
    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        struct softmax s;

        if (run->labels[r] < 0) {
            ignore_row(run, r);
            continue;
        }
        s = softmax_of(&run->vocabulary, run->sums, run->rows, r, run->labels[r]);
        write_losses(&run->loss[r], run->z ? &run->z[r] : NULL, (tt_real)run->call->node->attr.z_loss, &s);
        if (run->chunk.logits)
            grad_of_row(run, r, &s);
    }
}

/* The content of output k before this chunk: the results of earlier chunks, from input i or already in place; zeros if
 * there are none. */
static void continue_from(const struct tt_call *call, int i, int k)
{
    size_t bytes = (size_t)tt_value_bytes(tt_call_out(call, k));

    if (!call->in[i])
        memset(call->out[k], 0, bytes);
    else if (call->in[i] != call->out[k])
        memcpy(call->out[k], call->in[i], bytes);
}

/* sums, labels, loss: indices of the inputs. */
static struct run run_of(const struct tt_call *call, int sums, int labels, int loss)
{
    const struct tt_attr *attr = &call->node->attr;
    struct run run = {.call = call, .vocabulary = vocabulary_of(attr), .sums = call->in[sums]};

    run.rows = tt_value_rows(tt_call_in(call, sums)) / run.vocabulary.peers;
    run.labels = (const int32_t *)call->in[labels] + attr->first_row;
    run.loss = (tt_real *)call->out[0] + attr->first_row;
    if (attr->z_loss > 0.0F)
        run.z = run.loss + tt_value_width(tt_call_out(call, 0));
    continue_from(call, loss, 0);
    return run;
}

static void run_chunk(const struct tt_call *call)
{
    struct run run = run_of(call, 0, 1, 2);

    tt_team_run(call->team, tt_tiles(run.rows, TILE_ROWS), row_tile, &run);
}

enum { LOGITS, SUMS, X, W, LABELS, LOSS, DX, DW }; /* inputs of HEAD_CHUNK_GRAD */

static struct head head_of_grad(const struct tt_graph *graph, const struct tt_node *node)
{
    return head_of(graph, node, node->in[DX] == TT_NONE ? node->in[X] : node->in[DX], node->in[W],
                   tt_value_rows(&graph->values[node->in[LOGITS]]), true);
}

static void run_chunk_grad(const struct tt_call *call)
{
    struct head head = head_of_grad(call->graph, call->node);
    struct run run = run_of(call, SUMS, LABELS, LOSS);
    int64_t first = call->node->attr.first_row * head.width;

    run.chunk = (struct chunk){.head = &head,
                               .team = call->team,
                               .n = run.rows,
                               .x = tt_call_in_at(call, call->in[X] ? X : DX, first),
                               .w = call->in[W],
                               .logits = call->out[2],
                               .slices = call->scratch,
                               .workers = (tt_real *)call->scratch + tt_round_up(slice_floats(&head), LINE),
                               .dx = tt_call_out_at(call, 1, first),
                               .dx_bf16 = tt_call_out(call, 1)->dtype == TT_BF16,
                               .acc = call->in[DW],
                               .dw = call->node->n_out > 3 ? call->out[3] : NULL};
    continue_from(call, DX, 1);
    tt_team_run(call->team, tt_tiles(run.rows, TILE_ROWS), row_tile, &run);
    multiply_grads(&run.chunk);
}

static int64_t scratch_chunk_grad(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct head head = head_of_grad(graph, node);

    return (tt_round_up(slice_floats(&head), LINE) + threads * worker_floats(&head)) * (int64_t)sizeof(tt_real);
}

static bool is_loss(const struct tt_graph *graph, const struct tt_node *node, int i, int64_t tokens)
{
    return node->in[i] == TT_NONE ||
           tt_value_elements(&graph->values[node->in[i]]) == (node->attr.z_loss > 0.0F ? 2 : 1) * tokens;
}

static int infer_chunk(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *sums = &graph->values[node->in[0]];
    struct vocabulary v = vocabulary_of(&node->attr);
    int64_t tokens = tt_value_elements(&graph->values[node->in[1]]);

    if (!v.grain || tt_value_width(sums) != sums_width(&v) || tt_value_rows(sums) % v.peers != 0 ||
        node->attr.first_row + tt_value_rows(sums) / v.peers > tokens || !is_loss(graph, node, 2, tokens))
        return tt_op_mismatch(graph, node, "sums (peers R, S), labels (B, T) I32[, token_loss]");
    return infer_losses(graph, node, name, tokens);
}

static int infer_chunk_grad(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value logits = graph->values[node->in[LOGITS]], w = graph->values[node->in[W]];
    const struct tt_value sums = graph->values[node->in[SUMS]];
    int x = node->in[X] == TT_NONE ? node->in[DX] : node->in[X];
    struct vocabulary v = vocabulary_of(&node->attr);
    int64_t tokens = tt_value_elements(&graph->values[node->in[LABELS]]), rows = tt_value_rows(&logits);
    int rc = 0;

    if (x == TT_NONE || !v.grain || tt_value_width(&logits) != v.n || tt_value_rows(&w) != v.n ||
        tt_value_width(&sums) != sums_width(&v) || tt_value_rows(&sums) != rows * v.peers ||
        node->attr.first_row + rows > tokens || tt_value_rows(&graph->values[x]) != tokens ||
        tt_value_width(&graph->values[x]) != tt_value_width(&w) || !is_loss(graph, node, LOSS, tokens) ||
        !tt_op_acc_fits(graph, node, DX, tokens, tt_value_width(&w)) ||
        !tt_op_acc_fits(graph, node, DW, tt_value_rows(&w), tt_value_width(&w)))
        return tt_op_mismatch(graph, node,
                              "logits (R, V), sums (peers R, S)[, x (N, D)], w (V, D), labels (B, T) I32[, token_loss]"
                              "[, dx (N, D)][, dw (V, D)]");
    TT_TRY(infer_losses(graph, node, name, tokens));
    TT_TRY(tt_op_output(graph, node, 1, name, "dx", graph->values[x].ndim, graph->values[x].shape));
    TT_TRY(tt_op_output(graph, node, 2, name, "dlogits", 2, logits.shape));
    if (tt_rule_wanted(graph, node->in[W]))
        TT_TRY(tt_op_output(graph, node, 3, name, "dw", w.ndim, w.shape));
out:
    return rc;
}

/* The products of dx and dw. Of x and dx, only the rows of the chunk count as traffic. */
static void cost_chunk_grad(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *logits = &graph->values[node->in[LOGITS]], *w = &graph->values[node->in[W]];

    ret_cost->flops =
        (node->n_out > 3 ? 2.0 : 1.0) * 2.0 * (double)tt_value_elements(logits) * (double)tt_value_width(w);
    ret_cost->bytes = 2.0 * (double)tt_value_bytes(logits) + (double)tt_value_bytes(w) +
                      (node->n_out > 3 ? 2.0 * (double)tt_value_bytes(&graph->values[node->out[3]]) : 0.0);
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

const struct tt_op_row TT_OF_TYPE(tt_op_head_logits) = {
    .name = "head_logits",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_OUT,
    .part = TT_PART_HEAD,
    .infer = infer_logits,
    .run = run_logits,
    .cost = cost_logits,
    .scratch_bytes = scratch_logits,
};

const struct tt_op_row TT_OF_TYPE(tt_op_head_chunk) = {
    .name = "head_chunk",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_OUT,
    .computes = TT_COMPUTES(TT_F32),
    .part = TT_PART_HEAD,
    .infer = infer_chunk,
    .run = run_chunk,
    .alias = {3},
};

const struct tt_op_row TT_OF_TYPE(tt_op_head_chunk_grad) = {
    .name = "head_chunk_grad",
    .in = {TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32, TT_TYPE_COMPUTE,
           TT_TYPE_F32},
    .out = {TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_OUT,
    .part = TT_PART_HEAD,
    .infer = infer_chunk_grad,
    .run = run_chunk_grad,
    .cost = cost_chunk_grad,
    .scratch_bytes = scratch_chunk_grad,
    .alias = {LOSS + 1, DX + 1, LOGITS + 1, DW + 1},
};
