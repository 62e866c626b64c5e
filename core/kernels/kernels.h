/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_KERNELS_H
#define TT_CORE_KERNELS_KERNELS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/math/bf16.h"
#include "core/math/dynamic.h"
#include "core/math/packing.h"
#include "core/math/real.h"
#include "core/os/machine.h"

/**
 * The kernels under the ops: functions on plain arrays, one thread, no allocation, no failure. There are variants:
 *
 *     _loops           plain loops that compilers can vectorise, with OpenBLAS's products: variant `blas`
 *     _generic         vectors in portable C (core/kernels/vector): variant `generic`
 *     _avx2, _avx512   the same sources for instruction sets; for kernels that these variants lack, the loops are used
 *
 * All but `blas` and, for bfloat16, avx512_bf16 and amx compute the same bits (docs/design/exactness.md). The fastest
 * variant that the processor supports is used, unless TITAN_CPU names another.
 * tests/kernels/kernelcheck compares them all with references in double (tests/kernels/references.h).
 *
 *   add                 y = a + b; y may be a or b
 *   adamw               one step of AdamW or Adam (core/optim/adamw.c); all but the reference have the same bits,
 *                       wherever an element lies
 *   adamw_bf16          the same of weights and moments in bfloat16, which are rounded at random
 *   adamw_8bit          one step of AdamW with moments of 8 bits in blocks (core/optim/adamw.c)
 *   adamw_8bit_bf16     the same of weights in bfloat16, which are rounded at random
 *   attention_fwd       rows [first_row, first_row + rows) of one head of one sequence, from any row, rows <=
 *                       TT_ATTENTION_ROWS:
 *                       o = softmax(scale q k^T) v with the mask of tt_attention_shape, lse = log of the
 *                       row's sum of exp. Pointers to the first row that is there and the head's first column; row
 *                       strides: q heads * E, o heads * value_dim, lse heads, k E, v value_stride, that is, the rows
 *                       of the key/value head are contiguous
 *   attention_row       one row of all query heads of one key/value head, which sees keys 0..keys-1: o as above,
 *                       without mask and lse. q and o: E and value_dim floats per head, heads one after the other; k
 *                       and v gathered as above; seq_len is not read
 *   attention_bwd       keys [first_key, first_key + keys) of one key/value head of one sequence and `heads`
 *                       query heads that share it: the terms of dk and dv of these keys from the given rows, and the
 *                       keys' part of dq for the rows from first_key on (earlier rows see none of these keys).
 *                       first_key is a multiple of TT_ATTENTION_PANEL; keys is one, or reaches the end of the sequence
 *   bf16_round          to the nearest bfloat16, ties to even; NaN stays NaN
 *   bf16_widen          the float of the same value
 *   bgemm               a product of bfloat16 as in matmul.h, with the scratch of one worker; grains and partial are
 *                       not read
 *   cross_entropy       with l = logsumexp(logits[r]): loss[r] = l - logits[r][labels[r]], z[r] = z_loss * l^2, both 0
 *                       where the label is negative; z NULL: none, and z_loss is not read
 *   cross_entropy_grad  also turns the logits into scale * the gradient of loss + z, which is
 *                       (1 + 2 z_loss l) * softmax - one_hot, or softmax - one_hot without z; rows of ignored labels
 *                       into 0
 *   dora_fwd            y = x m / sqrt(squares), element by element of every row; y may be x. squares below the
 *                       smallest normal float count as that: a row of zeros of the weight yields 0
 *   dora_bwd            dx = [acc +] dy m / sqrt(squares), dm = the sum over the rows of dy x / sqrt(squares); acc may
 *                       be NULL, dx or other memory
 *   dropout             y = [acc +] x times 0 or dropout->scale, whichever the random number of the element says; y may
 *                       be x or acc. Elements have the numbers first, first + 1, ...
 *   exp                 y = e^x as in the variant's other kernels; 0 where that is denormal; y may be x
 *   geglu_fwd           h = gelu(g) * u with the gelu of gelu_fwd; h may be g or u
 *   geglu_bwd           its gradients; dg and du may each take the memory of one of dh, g, u
 *   gelu_fwd            y = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3); y may be x. |x| below 1e19
 *   gelu_bwd            its gradient; dx may be dy or x
 *   gelu_erf_fwd        y = x (1 + erf(x / sqrt(2))) / 2; y may be x
 *   gelu_erf_bwd        its gradient; dx may be dy or x
 *   gemv                y[r] = the dot product of row r of w (rows, width) with x
 *   gemv_packed         the same for rows of a packed matrix (core/math/packing.h), and for one or several vectors,
 *                       whose number does not change the bits. The elements of bfloat16, q4_0 and q8_0 are exact, so
 *                       the bits are gemv's of the unpacked rows; int8 adds whole numbers times x and scales the sum;
 *                       nf4 adds elements 2 l and 2 l + 1 of 32 to lane l
 *   layernorm_fwd       mean and rstd = 1 / sqrt(var(x) + eps) of each row, y = (x - mean) rstd w [+ b];
 *                       b NULL: none; y may be x. |x| below 1e18 / width
 *   layernorm_bwd       dx = [acc +] gradient, dw and db = the sums over these rows; db NULL: none; acc NULL, dx
 *                       or other memory
 *   mix_rows            y[r] = [acc[r] +] the sum of gates[i] * x[places[i]] over the k slots i = r k.. of row r, in
 *                       order; gates NULL: 1; acc NULL, y or other memory
 *   mix_rows_bwd        of slot i of row r: dx[places[i]] = gates[i] * dy[r], dgates[i] = the dot product of dy[r] and
 *                       x[places[i]]; places differ; dx may be x
 *   rmsnorm_fwd         rstd = 1 / sqrt(mean(x^2) + eps) of each row, y = x rstd (w + offset); y may be x. |x| below
 *                       1e18 / width
 *   rmsnorm_bwd         dx = [acc +] gradient, dw = the sum over these rows of dy x rstd; acc NULL, dx or other memory
 *   rope                rotates the pairs of every head by the angle of the row's position; the table has rows of
 *                       tt_rope_rotated floats; y may be x
 *   row_squares         the sum of (w[i] + b[0] a[i] + b[1] a[stride + i] + ...)^2, with `rank` numbers b
 *   scale               y = factor x; y may be x
 *   scatter_add         dw[tokens[i]] += dx[i] for i = 0..n-1 in order, `columns` columns of rows of `width`; a token
 *                       is in the range of dw's rows (the loader checks)
 *   sgemm               a product of floats as in matmul.h, with the scratch of one worker; grains and partial are not
 *                       read
 *   sinks_bwd           dsinks[h] = the sum over rows of -exp(sinks[h] - lse[r][h]) dot(do, o) of head h; do and o have
 *                       rows of heads * dim elements
 *   soft_cap            y = cap * tanh(x / cap); y may be x
 *   softmax_grad        y = factor * exp(x - largest), and if cap is not 0 times 1 - (x / cap)^2, the slope of the cap
 *                       that gave x; y may be x
 *   softmax_sum         of a part of a row: the largest x that is not NaN, -inf for none, and the sum of
 *                       exp(x - largest), or of exp(x) if the largest is -inf
 *   squares             the sum of x[i]^2 in double; all but the reference add in one order
 *   sum_rows            y[c] = [acc[c] +] the sum over rows of x[r * width + c], c < columns; acc NULL, y or other
 *                       memory
 *   swiglu_fwd          h = g / (1 + exp(-g)) * u; h may be g or u
 *   swiglu_bwd          its gradients; dg and du may each take the memory of one of dh, g, u
 *   swiglu_clamped_fwd  h = (u + 1) g / (1 + exp(-1.702 g)) where x has pairs g, u, of which g is at most 7 and u is in
 *                       -7..7 after clamping; n elements of h, 2 n of x
 *   swiglu_clamped_bwd  its gradient, 0 where x was clamped; dx may be x
 *   unpack              elements [begin, begin + n) of a packed row of `width`: the floats of tt_unpack
 *
 * A kernel `name_bf16` computes as `name` does, in float, and its results are rounded to bfloat16 once, where it stores
 * bfloat16: activations, weights and the gradients of activations. Statistics, losses, tables and the gradients of
 * weights are floats, and what attention_bwd_bf16 computes. Products in attention may round the weights and the
 * gradients of the scores too. cross_entropy_grad_bf16 leaves the gradient in the first half of each row's memory,
 * and the y of softmax_grad_bf16 may be the first half of x.
 *
 * Non-finite inputs make the outputs that depend on them non-finite.
 */
enum {
    TT_LABEL_IGNORED = -100, /* label of a token from which nothing is learned */
    TT_LABEL_PADDING = -101, /* the same for padding, which is no token: routers do not count it */
};

enum {
    TT_ATTENTION_ROWS = 96,      /* rows of a forward tile */
    TT_ATTENTION_PANEL = 48,     /* ranges of keys are multiples of this */
    TT_ATTENTION_KEYS = 512,     /* keys of a tile of the portable kernel */
    TT_ATTENTION_BLOCK = 64,     /* vector kernels: keys (forward) or rows (backward) between two changes of operands */
    TT_ATTENTION_STRIP = 480,    /* vector kernels: rows whose q, do and dq are packed */
    TT_ATTENTION_TILE_KEYS = 128 /* AMX: keys of a forward block */
};

enum {
    TT_BGEMM_ROWS = 512, /* rows and columns of a block of c */
    TT_BGEMM_COLUMNS = 768,
    TT_BGEMM_PANEL = 48, /* columns that are packed side by side */
    TT_BGEMM_DEPTH = 768 /* depth of the blocks of A and B */
};

enum {
    TT_SGEMM_ROWS = 512, /* rows of a block of A */
    TT_SGEMM_PANEL = 48, /* columns of B that are packed at a time */
    TT_SGEMM_DEPTH = 384 /* depth of both */
};

struct tt_matmul; /* matmul.h */

/* Rows of a packed matrix, for products with vectors. */
struct tt_packed_rows {
    enum tt_packing_choice packing; /* not NONE */
    const void *data;
    int64_t rows, width;
    int64_t vectors; /* x (vectors, width) */
    int64_t y_row;   /* y[v * y_row + r] is the product of vector v and row r */
};

/*
 * A row sees the keys of its own document up to itself, or the last `window` of them. A sink is a score that takes its
 * share of the softmax but has no value: lse includes it. positions: each row's position in its document, so that the
 * document of row i begins at key i - position; a position is 0, or one more than the previous row's. NULL: the
 * sequence is one document. begin and end: the range of query rows that are present, a part of the sequence; all keys
 * are present. q, o, lse, do, dq and positions point to row `begin`. end 0: the rows end with the sequence.
 */
struct tt_attention_shape {
    int64_t seq_len;
    int64_t heads, kv_heads;
    int64_t head_dim; /* E: width of a head of q and k */
    const int32_t *positions;
    int64_t value_dim;    /* width of a head of v and o; 0: E */
    int64_t value_stride; /* stride of the rows of v in attention_fwd and attention_row; 0: value_dim */
    tt_real scale;        /* factor of the scores; 0: 1 / sqrt(E) */
    tt_real soft_cap;     /* scores s become soft_cap tanh(s / soft_cap) before the mask; 0: unchanged */
    int64_t begin, end;
    int64_t window;       /* the most keys that a row sees, its own being the last; 0: all keys of its document */
    const tt_real *sinks; /* sink of attention_fwd's head, or sinks of attention_row's heads; NULL: none */
};

/** The width of a head of v and o. */
static inline int64_t tt_attention_value_dim(const struct tt_attention_shape *shape)
{
    return shape->value_dim ? shape->value_dim : shape->head_dim;
}

/** The stride of a head's gathered rows of v. */
static inline int64_t tt_attention_value_stride(const struct tt_attention_shape *shape)
{
    return shape->value_stride ? shape->value_stride : tt_attention_value_dim(shape);
}

/** The factor of the scores. */
static inline tt_real tt_attention_scale(const struct tt_attention_shape *shape)
{
    return shape->scale > 0.0F ? shape->scale : 1.0F / tt_sqrt((tt_real)shape->head_dim);
}

/** The end of the rows that are present. */
static inline int64_t tt_attention_end(const struct tt_attention_shape *shape)
{
    return shape->end ? shape->end : shape->seq_len;
}

/**
 * The first key that row i sees. It never falls from one row to the next. Rows before `begin` get the value of `begin`.
 */
static inline int64_t tt_attention_start(const struct tt_attention_shape *shape, int64_t i)
{
    int64_t row = i < shape->begin ? shape->begin : i, start = 0;

    if (shape->positions)
        start = row - shape->positions[row - shape->begin];
    return shape->window > 0 && row - shape->window >= start ? row - shape->window + 1 : start;
}

/* Pointers to the first row that is present and the first column of the first query head. k and v point to the
 * sequence's first key of the key/value head, dk and dv to the call's first key. */
struct tt_attention_grads {
    tt_real *dq, *dk, *dv;
    const tt_real *dout, *q, *k, *v, *o, *lse;
};

/* Operands of attention_bwd_bf16. The gradients are floats: an op may add several parts before it rounds them. */
struct tt_attention_bf16_grads {
    tt_real *dq, *dk, *dv;
    const tt_bf16 *dout, *q, *k, *v, *o;
    const tt_real *lse;
};

/*
 * What layernorm_bwd reads and writes, as named above. w, dw and db are vectors, or `groups` of them. dx, acc, dy, x
 * and w are arrays of floats, or of bfloat16 for layernorm_bwd_bf16.
 */
struct tt_layernorm_grads {
    void *dx;
    tt_real *dw, *db;
    const void *acc, *dy, *x, *w;
    const tt_real *mean, *rstd;
    int64_t groups; /* 0 is 1 */
};

/** The vectors of w, dw and db. */
static inline int64_t tt_layernorm_groups(const struct tt_layernorm_grads *of)
{
    return of->groups > 1 ? of->groups : 1;
}

struct tt_rope_shape {
    int64_t seq_len, heads, head_dim;
    bool inverse;             /* rotate by the negative angle */
    bool rotate_half;         /* pairs are (i, i + half of the rotated elements), else (2i, 2i+1) */
    const int32_t *positions; /* positions of all rows; NULL: row % seq_len */
    int64_t unrotated;        /* the number of first elements of a head that stay unchanged */
    int64_t rotated; /* the number of elements after these that are rotated; the rest stay. 0: all the others */
};

/** The number of elements of a head that are rotated. */
static inline int64_t tt_rope_rotated(const struct tt_rope_shape *shape)
{
    return shape->rotated ? shape->rotated : shape->head_dim - shape->unrotated;
}

/** The table's row for row r. */
static inline int64_t tt_rope_position(const struct tt_rope_shape *shape, int64_t r)
{
    return shape->positions ? shape->positions[r] : r % shape->seq_len;
}

/* The numbers of an optimizer step. */
struct tt_adamw_numbers {
    bool decoupled;            /* AdamW; else Adam, which adds weight decay to the gradient */
    tt_real clip;              /* factor that gradients are multiplied by first */
    tt_real decay;             /* 1 - lr * weight_decay */
    tt_real weight_decay;      /* weight decay of Adam */
    tt_real mix1, beta2, mix2; /* mix: 1 - beta */
    tt_real step_size;         /* lr / (1 - beta1^step) */
    tt_real root_correction2;  /* sqrt(1 - beta2^step) */
    tt_real eps;
};

/* The random bits of an optimizer step: element i has number first + i of a stream (core/math/rng.h). */
struct tt_adamw_rounding {
    uint64_t seed, stream;
    uint64_t first;
};

/* What dropout does with an element: the 32-bit half `number % 2` (0: the lower one) of the random bits number / 2 of a
 * stream (core/math/rng.h) decides. If it is below `drop`, the factor is 0, otherwise `scale`. */
struct tt_dropout {
    uint64_t seed, stream;
    uint32_t drop;
    float scale;
};

/* Both moments of an optimizer step in blocks of TT_DYNAMIC_BLOCK elements, of which the last may be shorter. */
struct tt_moment_blocks {
    uint8_t *code[2];                /* of every element; of the first moment, of the second */
    tt_real *largest[2];             /* the largest magnitude of every block */
    const struct tt_dynamic *map[2]; /* the signed one, the unsigned one */
};

/** Floats of scratch that attention_fwd and attention_bwd (for at most `keys` keys) need in any variant. */
int64_t tt_attention_fwd_scratch(const struct tt_attention_shape *shape, bool bf16);
int64_t tt_attention_bwd_scratch(const struct tt_attention_shape *shape, int64_t keys, bool bf16);

/** Floats of scratch of attention_row with up to `keys` keys. */
int64_t tt_attention_row_scratch(const struct tt_attention_shape *shape, int64_t keys, bool bf16);

/**
 * Floats of scratch of bgemm, whole cache lines: packed blocks of A and B, and a block of c in float32. It is the same
 * for all variants and below 4 MiB. Reads sizes and c_bf16 only.
 */
int64_t tt_bgemm_scratch(const struct tt_matmul *gemm);

/** The same of sgemm: a packed block of A and a panel of B, below 1 MiB; for every variant, so that plans agree. */
int64_t tt_sgemm_scratch(const struct tt_matmul *gemm);

/**
 * Whether a bgemm multiplies small matrices of whole numbers correctly; their sums are exact in any order. For kernels
 * that few processors run.
 */
bool tt_bgemm_is_right(void (*bgemm)(const struct tt_matmul *gemm)) TT_MUST_CHECK;

struct tt_kernels;

/** Whether attention of bfloat16 gives about the same results in two tables, for a small sequence of two heads. */
bool tt_attention_is_right(const struct tt_kernels *kernels, const struct tt_kernels *like) TT_MUST_CHECK;

/**
 * The rate of products of bfloat16, as a multiple of float32's, in about a millisecond. The operands are 0, which takes
 * as long as any other number.
 */
double tt_bgemm_gain(const struct tt_kernels *kernels);

/**
 * Whether the variant in use leaves products of floats, or of bfloat16, to the BLAS library. The library's bits depend
 * on the shape of a product; with titan's own kernels, an element's bits depend on k only.
 */
bool tt_sgemm_is_blas(void);
bool tt_bgemm_is_blas(void);

/* The name of a portable kernel: tt_add_loops, or for double tt_add_f64_loops. */
#ifdef TT_WIDE
#define TT_LOOPS(name) tt_##name##_f64_loops
#else
#define TT_LOOPS(name) tt_##name##_loops
#endif

struct tt_kernels {
    const char *name;
#define TT_KERNEL(name, args) void(*name) args;
#include "core/kernels/kernels.def"
#undef TT_KERNEL
};

#define TT_KERNEL(name, args) void TT_LOOPS(name) args;
#include "core/kernels/kernels.def"
#undef TT_KERNEL

#if defined(TT_KERNEL_SET)
/* The names of a vector variant, by the set of instructions that a file is compiled for (vector/meson.build). */
#define TT_ISA(name)             TT_ISA_PASTE(name, TT_KERNEL_SET)
#define TT_ISA_PASTE(name, set)  TT_ISA_PASTED(name, set)
#define TT_ISA_PASTED(name, set) name##_##set

#define TT_KERNEL(name, args) void TT_ISA(tt_##name) args;
#include "core/kernels/kernels.def"
#undef TT_KERNEL
extern const struct tt_kernels TT_ISA(tt_kernels);
#endif

/*
 * The vector variants. If a table leaves a slot NULL, the loops are used (kernels.c). To add a
 * variant of a kernel, write it over vector/simd.h in a file of that folder, as TT_ISA(tt_name), and name its slot in
 * vector/table.c; kernels.def says how to add a kernel.
 */
extern const struct tt_kernels tt_kernels_generic;
extern const struct tt_kernels tt_kernels_avx2;
extern const struct tt_kernels tt_kernels_avx512;
extern const struct tt_kernels tt_kernels_neon;
extern const struct tt_kernels tt_kernels_avx512_bf16; /* where a slot is NULL, avx512's is used */
extern const struct tt_kernels tt_kernels_amx;         /* the same */

/**
 * The kernels in use: the variant that TITAN_CPU names, otherwise the fastest one for this processor. Instructions for
 * bfloat16 are not always faster than instructions for float32, so kernels.c contains a table of their rates.
 */
const struct tt_kernels *tt_kernels(void);

/**
 * The word for the bits of a variant: "portable" if they are the same on every processor, else the variant's name.
 * bf16: for a job that computes in bfloat16.
 */
const char *tt_kernels_bits(const struct tt_kernels *kernels, bool bf16);

/**
 * Selects the fastest kernels whatever their bits are: `blas` instead of `generic`, unless TITAN_CPU names a variant.
 * For the start of a command; no team may be running.
 */
void tt_kernels_take_fastest(void);

/** 0, or TT_EUSAGE when TITAN_CPU names no variant, or one that is not supported here; for the start of a command. */
int tt_kernels_check(void) TT_MUST_CHECK;

/** The i-th variant that this processor supports, `blas` first, with all slots; NULL after the last. */
const struct tt_kernels *tt_kernels_variant(int i);

/** Makes ops use another table (NULL: the default). No team may be running. */
void tt_kernels_use(const struct tt_kernels *kernels);

/**
 * The name of the variant for a processor, whether or not it was built. measure gives the gain (tt_kernels_gain) of a
 * variant if the table does not contain it for this processor; NULL: uses measurements of the processor that runs this.
 */
const char *tt_kernels_pick(const struct tt_cpu *cpu, double (*measure)(const char *variant));

/** How the variant in use multiplies bfloat16, as a word for records: "widened" to float32, or by "dot" products. */
const char *tt_kernels_products(void);

/**
 * The rate of products of bfloat16 in the variant in use, divided by the rate of float32 products; 1 if bfloat16 is
 * widened.
 */
double tt_kernels_gain(void);

/**
 * The variant that all processors with this float32 code can run: it widens bfloat16. It is the one in use, if that
 * widens bfloat16 itself or TITAN_CPU names it.
 */
const struct tt_kernels *tt_kernels_fallback(void);

/** Appends the name of the variant in use, how it multiplies bfloat16, and why. */
void tt_kernels_text(struct tt_text *out);

#endif
