/* SPDX-License-Identifier: MIT
 *
 * Muon (Jordan 2024, torch.optim.Muon) for the matrices of transformer blocks. A step has three parts: MUON turns
 * gradients into updates; these are gathered, assembled into whole matrices (ASSEMBLE) and orthogonalized
 * (ORTHOGONALIZE); MUON_APPLY updates this rank's part of the parameter.
 *
 * MUON: the update before it is orthogonalized.
 *   in    the gradient, floats
 *   out   [1] the momentum, of type dtype, [3] the update, floats, may be `in`: flat arrays of n elements; rows says
 *         which elements count
 *   The gradient is multiplied by scalars->clip. momentum += (1 - scalars->momentum) (gradient - momentum); the update
 *   is the momentum, or with scalars->nesterov gradient + scalars->momentum (momentum - gradient).
 *
 * MUON_APPLY: updates this rank's part of one matrix.
 *   in    the whole matrix of the orthogonalized update, floats
 *   n     its rows; rows (below) have its columns as stride
 *   out   param, a flat array of type dtype; rows (one) says which elements are updated
 *   param = param (1 - lr weight_decay) - lr factor update, where scalars->muon_lr says how the factor depends on the
 *   shape (rows, columns):
 *     ORIGINAL            sqrt(max(1, rows / columns))
 *     MATCH_RMS_ADAMW     0.2 sqrt(max(rows, columns)): elements change about as much as AdamW changes them, so AdamW's
 *                         learning rate and weight decay can be used (Liu et al. 2025)
 *     SPECTRAL_UNCLAMPED  sqrt(rows / columns)
 *
 * Both do the same float operations for each element and fuse none, so an element gets the same bits on every shard.
 * Weights and momentum in bfloat16 are rounded at random, as in adamw.c, with bits of the same generator; the update
 * uses the momentum before it is rounded.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/matmul.h"
#include "core/math/bf16.h"
#include "core/math/rng.h"
#include "core/math/round.h"
#include "core/optim/optim.h"

/* --- MUON --- */

struct momentum_numbers {
    tt_real clip, mix; /* mix: 1 - momentum */
    bool nesterov;
};

/* Returns the update of one element, and its momentum in *m. */
static inline tt_real moved(const struct momentum_numbers *k, tt_real grad, tt_real *m)
{
    tt_real g = grad * k->clip;

    *m = *m + k->mix * (g - *m);
    return k->nesterov ? *m - k->mix * (*m - g) : *m;
}

static void move(const struct tt_step_call *call, struct tt_update_part part)
{
    const struct momentum_numbers k = {(tt_real)call->scalars->clip, (tt_real)(1.0 - call->scalars->momentum),
                                       call->scalars->nesterov};
    struct tt_update_part run;

    while (tt_update_next(&part, &run)) {
        tt_real *restrict grad = (tt_real *)call->out[3] + run.begin;

        if (call->dtype == TT_BF16) {
            tt_bf16 *momentum = (tt_bf16 *)call->out[1] + run.begin;

            for (int64_t i = 0; i < run.n; i++) {
                tt_real m = tt_bf16_to_float(momentum[i]);

                grad[i] = moved(&k, grad[i], &m);
                momentum[i] = tt_bf16_from_float_random(m, (uint16_t)(tt_update_random(call, &run, i) >> 16));
            }
        } else {
            tt_real *restrict momentum = (tt_real *)call->out[1] + run.begin;

            for (int64_t i = 0; i < run.n; i++)
                grad[i] = moved(&k, grad[i], &momentum[i]);
        }
    }
}

/* Reads and writes gradient and momentum. */
const struct tt_step_row TT_OF_TYPE(tt_step_op_muon) = {
    .name = "muon", .run = tt_update_run, .update = move, .cost = tt_step_cost, .numbers = 2.0, .floats = 2.0};

/* --- MUON_APPLY --- */

static double lr_factor(enum tt_adjust_choice how, double rows, double columns)
{
    switch (how) {
    case TT_ADJUST_MATCH_RMS_ADAMW:
        return 0.2 * sqrt(fmax(rows, columns));
    case TT_ADJUST_SPECTRAL_UNCLAMPED:
        return sqrt(rows / columns);
    default:
        return sqrt(fmax(1.0, rows / columns));
    }
}

static void apply(const struct tt_step_call *call, struct tt_update_part part)
{
    const struct tt_scalars *s = call->scalars;
    const struct tt_rows *rows = part.rows;
    double lr = s->lr * rows->lr_factor, weight_decay = rows->no_decay ? 0.0 : s->weight_decay;
    const tt_real keep = (tt_real)(1.0 - lr * weight_decay);
    const tt_real step = (tt_real)(lr * lr_factor(s->muon_lr, (double)call->n, (double)rows->stride));
    struct tt_update_part run;

    while (tt_update_next(&part, &run)) {
        const tt_real *restrict update = (const tt_real *)call->in + run.index;

        if (call->dtype == TT_BF16) {
            tt_bf16 *param = (tt_bf16 *)call->out[0] + run.begin;

            for (int64_t i = 0; i < run.n; i++) {
                tt_real p = tt_bf16_to_float(param[i]) * keep - step * update[i];

                param[i] = tt_bf16_from_float_random(p, (uint16_t)tt_update_random(call, &run, i));
            }
        } else {
            tt_real *restrict param = (tt_real *)call->out[0] + run.begin;

            for (int64_t i = 0; i < run.n; i++)
                param[i] = param[i] * keep - step * update[i];
        }
    }
}

static void cost_of_apply(const struct tt_step_call *call, struct tt_cost *ret_cost)
{
    const struct tt_rows *rows = call->rows;

    /* reads the update, reads and writes the parameter */
    ret_cost->bytes =
        (double)(2 * tt_dtype_size(call->dtype) + sizeof(tt_real)) * (double)rows->rows * (double)rows->width;
}

const struct tt_step_row TT_OF_TYPE(tt_step_op_muon_apply) = {
    .name = "muon_apply", .run = tt_update_run, .update = apply, .cost = cost_of_apply};

/*
 * ORTHOGONALIZE: replaces a matrix by one with about the same singular vectors and singular values near 1.
 *   out[0]  the matrix, floats without padding
 *   out[1]  scratch, tt_orthogonalize_scratch_bytes; 64-byte aligned
 *   n       its rows
 *   stride  its columns
 *   parts   iterations
 *
 * Muon's Newton-Schulz iteration with the coefficients of Jordan 2024 and PyTorch: after a division by max(norm, 1e-7)
 * every iteration is X = (a + b G + c G G) X with G = X X^T, or X (a + b G + c G G) with G = X^T X if there are more
 * rows than columns. PyTorch computes it in bfloat16; here everything is float32, since CPUs gain less from bfloat16
 * than the iteration loses. The GEMMs have the shape of the whole matrix, and the order of the norm's sum depends only
 * on that shape. So the result depends neither on the layout nor on threads.
 */

enum { CHUNK = 1 << 14, LINE = 16 }; /* elements per tile; floats of a cache line */

static const tt_real A = (tt_real)3.4445, B = (tt_real)-4.7750, C = (tt_real)2.0315;
static const double LEAST_NORM = 1e-7;

/* The matrix, and the layout of its scratch memory. */
struct work {
    int64_t rows, columns, side; /* side: the smaller of rows and columns, and the size of G */
    tt_real *x;                  /* the matrix, rows x columns */
    tt_real *other;              /* the same size: every iteration moves X from one to the other */
    tt_real *first;              /* the one of the two in which the iteration begins, so that it ends in x */
    tt_real *gram;               /* G */
    tt_real *poly;               /* G G, and then the polynomial */
    double *sums;                /* sum of squares of every tile */
    tt_real *scratch;            /* scratch of the GEMMs */
    tt_real norm;
};

/* --- the products --- */

/* G = X X^T or X^T X */
static struct tt_matmul gram_of(const struct work *w, const tt_real *x)
{
    bool wide = w->rows <= w->columns;

    return (struct tt_matmul){.trans_a = !wide,
                              .trans_b = wide,
                              .m = w->side,
                              .n = w->side,
                              .k = wide ? w->columns : w->rows,
                              .a = x,
                              .b = x,
                              .c = w->gram,
                              .lda = w->columns,
                              .ldb = w->columns,
                              .ldc = w->side,
                              .scratch = w->scratch};
}

static struct tt_matmul square_of(const struct work *w)
{
    return (struct tt_matmul){.m = w->side,
                              .n = w->side,
                              .k = w->side,
                              .a = w->gram,
                              .b = w->gram,
                              .c = w->poly,
                              .lda = w->side,
                              .ldb = w->side,
                              .ldc = w->side,
                              .scratch = w->scratch};
}

/* to = poly X, or X poly */
static struct tt_matmul next_of(const struct work *w, const tt_real *x, tt_real *to)
{
    bool wide = w->rows <= w->columns;

    return (struct tt_matmul){.m = w->rows,
                              .n = w->columns,
                              .k = w->side,
                              .a = wide ? w->poly : x,
                              .b = wide ? x : w->poly,
                              .c = to,
                              .lda = wide ? w->side : w->columns,
                              .ldb = w->columns,
                              .ldc = w->columns,
                              .scratch = w->scratch};
}

/* --- memory --- */

static int64_t scratch_floats(const struct work *w)
{
    const struct tt_matmul products[] = {gram_of(w, NULL), square_of(w), next_of(w, NULL, NULL)};
    int64_t most = 0;

    for (int i = 0; i < 3; i++) {
        int64_t floats = tt_matmul_scratch_floats(&products[i]);

        most = floats > most ? floats : most;
    }
    return most;
}

static int64_t n_chunks(int64_t elements)
{
    return tt_div_up(elements, CHUNK);
}

/* Divides the memory at `at`. Returns its size in floats, which does not depend on `at`. */
static int64_t lay_out(struct work *w, tt_real *at, int threads)
{
    int64_t elements = w->rows * w->columns;
    const int64_t sizes[] = {elements, w->side * w->side, w->side * w->side, 2 * n_chunks(elements),
                             threads * scratch_floats(w)};
    tt_real *parts[5];
    int64_t floats = 0;

    for (int i = 0; i < 5; i++) {
        parts[i] = at ? at + floats : NULL;
        floats += tt_round_up(sizes[i], LINE);
    }
    w->other = parts[0];
    w->gram = parts[1];
    w->poly = parts[2];
    w->sums = (double *)(void *)parts[3];
    w->scratch = parts[4];
    return floats;
}

static struct work work_of(int64_t rows, int64_t columns)
{
    return (struct work){.rows = rows, .columns = columns, .side = rows < columns ? rows : columns};
}

int64_t tt_orthogonalize_scratch_bytes(int64_t rows, int64_t columns, int threads)
{
    struct work w = work_of(rows, columns);

    return lay_out(&w, NULL, threads) * (int64_t)sizeof(tt_real);
}

/* --- the iteration --- */

static void sum_tile(void *arg, int64_t tile, int worker)
{
    const struct work *w = arg;
    struct tt_range part = tt_tile_range(w->rows * w->columns, CHUNK, tile);
    double sum = 0.0;

    (void)worker;
    for (int64_t i = part.begin; i < part.begin + part.n; i++)
        sum += (double)w->x[i] * (double)w->x[i];
    w->sums[tile] = sum;
}

static void divide_tile(void *arg, int64_t tile, int worker)
{
    const struct work *w = arg;
    struct tt_range part = tt_tile_range(w->rows * w->columns, CHUNK, tile);

    (void)worker;
    for (int64_t i = part.begin; i < part.begin + part.n; i++)
        w->first[i] = w->x[i] / w->norm;
}

static void polynomial_tile(void *arg, int64_t tile, int worker)
{
    const struct work *w = arg;
    struct tt_range part = tt_tile_range(w->side * w->side, CHUNK, tile);
    int64_t end = part.begin + part.n;

    (void)worker;
    for (int64_t i = part.begin; i < end; i++)
        w->poly[i] = B * w->gram[i] + C * w->poly[i];
    for (int64_t i = tt_round_up(part.begin, w->side + 1); i < end; i += w->side + 1)
        w->poly[i] += A;
}

static void orthogonalize_run(const struct tt_step_call *call)
{
    struct work w = work_of(call->n, call->stride);
    int64_t elements = w.rows * w.columns;
    double sum = 0.0;
    tt_real *x, *to;

    w.x = call->out[0];
    (void)lay_out(&w, call->out[1], tt_team_threads(call->team));
    tt_team_run(call->team, n_chunks(elements), sum_tile, &w);
    for (int64_t i = 0; i < n_chunks(elements); i++)
        sum += w.sums[i];
    w.norm = (tt_real)fmax(sqrt(sum), LEAST_NORM);
    w.first = x = call->parts % 2 ? w.other : w.x;
    to = call->parts % 2 ? w.x : w.other;
    tt_team_run(call->team, n_chunks(elements), divide_tile, &w);
    for (int64_t i = 0; i < call->parts; i++) {
        const struct tt_matmul gram = gram_of(&w, x), square = square_of(&w), next = next_of(&w, x, to);
        tt_real *swapped = x;

        tt_matmul(call->team, &gram);
        tt_matmul(call->team, &square);
        tt_team_run(call->team, n_chunks(w.side * w.side), polynomial_tile, &w);
        tt_matmul(call->team, &next);
        x = to;
        to = swapped;
    }
}

static void cost(const struct tt_step_call *call, struct tt_cost *ret_cost)
{
    const struct work w = work_of(call->n, call->stride);
    double side = (double)w.side, elements = (double)w.rows * (double)w.columns, steps = (double)call->parts;

    ret_cost->flops = steps * 2.0 * side * (2.0 * elements + side * side);
    ret_cost->bytes = (double)sizeof(tt_real) * (3.0 * elements + steps * (3.0 * elements + 6.0 * side * side));
}

const struct tt_step_row TT_OF_TYPE(tt_step_op_orthogonalize) = {
    .name = "orthogonalize", .run = orthogonalize_run, .cost = cost};

/*
 * ASSEMBLE: makes a matrix from the parts that ranks hold.
 *   in      the parts, packed, one after another
 *   rows    (n_rows) of each: where it begins in `in`, its size, and the index of its first element in the matrix,
 *           whose columns are the stride
 *   out[0]  the matrix, floats
 */

enum { ROWS = 64 }; /* rows of a part per tile */

static int64_t n_tiles(const struct tt_rows *part)
{
    return tt_div_up(part->rows, ROWS);
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    const struct tt_rows *part = call->rows;
    struct tt_range rows;

    (void)worker;
    for (; tile >= n_tiles(part); part++)
        tile -= n_tiles(part);
    rows = tt_tile_range(part->rows, ROWS, tile);
    for (int64_t row = rows.begin; row < rows.begin + rows.n; row++)
        memcpy((tt_real *)call->out[0] + part->index + row * part->stride,
               (const tt_real *)call->in + part->begin + row * part->width, (size_t)part->width * sizeof(tt_real));
}

static void assemble_run(const struct tt_step_call *call)
{
    int64_t tiles = 0;

    for (int i = 0; i < call->n_rows; i++)
        tiles += n_tiles(&call->rows[i]);
    tt_team_run(call->team, tiles, run_tile, (void *)call);
}

const struct tt_step_row TT_OF_TYPE(tt_step_op_assemble) = {.name = "assemble", .run = assemble_run};

/* --- the optimizer --- */

const struct tt_optim_row TT_OF_TYPE(tt_optim_muon) = {
    .update = TT_STEP_MUON,
    .moments = {"momentum_buffer"},
    .of_matrices = true,
    .options = {{"momentum", TT_TORCH_REAL, .key = {"muon_momentum"}, .number = {0.95}},
                {"nesterov", TT_TORCH_FLAG, .key = {"muon_nesterov"}, .number = {1.0}},
                {"ns_coefficients", TT_TORCH_TRIPLE, .number = {3.4445, -4.7750, 2.0315}},
                {"eps", TT_TORCH_REAL, .number = {1e-7}},
                {"ns_steps", TT_TORCH_COUNT, .key = {"muon_ns_steps"}, .number = {5.0}},
                {"adjust_lr_fn", TT_TORCH_WORD, .key = {"muon_adjust_lr"}, .word = "match_rms_adamw"}},
};
