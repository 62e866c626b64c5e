/* SPDX-License-Identifier: MIT */
#ifndef TT_OPTIM_OPTIM_H
#define TT_OPTIM_OPTIM_H

#include "core/keys/choices.h"
#include "core/math/dynamic.h"
#include "core/math/round.h"
#include "core/ops/step/step.h"

/**
 * The table of optimizers: a row contains everything that titan knows about an optimizer, and state, memory, plans,
 * checkpoints and their exports follow from it.
 *
 * To add an optimizer:
 *   1. A line in TT_OPTIMIZERS (core/keys/choices.h): constant, row, word of optimizer.name, and its help.
 *   2. A line in core/ops/step/step.def for its step op.
 *   3. core/optim/<name>.c, and its line in meson.build: the step op, whose `update` works on elements of a shard
 *      (tt_update_next, tt_update_random; gradient in `in`, parameter in out[0], moments in out[1] and out[2]), and the
 *      row tt_optim_<name>: step op, names of its moments in checkpoints, options that PyTorch reads (param_groups, but
 *      lr, initial_lr and weight_decay, which are always written). adamw.c and lion.c are examples.
 *   4. Numbers that no other optimizer has: keys of section optimizer (schema.def has a checklist), and members of
 *      tt_scalars (core/ops/op.h), which tt_train_step_of (trainer/step/step.c) and step_of of
 *      tests/par/train_job.c fill.
 *   5. What predictions for GPU clusters count for it: `predicted` in cli/estimate/inputs.c.
 *   6. tests/unit/test_optim.c: a case against plain formulas. A paragraph in titan-methods(7).
 * Memory, plans, checkpoints, PyTorch's format, and the word and help of the key follow; so do
 * every_optimizer_gives_the_same_bits (tests/par) and every_optimizer_continues (tests/cli/test_resume.sh).
 */

enum { TT_OPTIM_MOMENTS = 2, TT_OPTIM_OPTIONS = 10, TT_OPTIM_BLOCKS_FROM = 4096 };

/* The kind of a value in PyTorch: a number, a list of one, two or three numbers, true or false, or a word. */
enum tt_torch_kind {
    TT_TORCH_REAL,
    TT_TORCH_COUNT,
    TT_TORCH_LIST,
    TT_TORCH_PAIR,
    TT_TORCH_TRIPLE,
    TT_TORCH_FLAG,
    TT_TORCH_WORD
};

/* An option of a parameter in PyTorch's optimizer (param_groups), for checkpoints that PyTorch reads. */
struct tt_optim_option {
    const char *name;
    enum tt_torch_kind kind;
    /* keys of section optimizer that give its values; NULL: the values are always those in `number` */
    const char *key[2];
    double number[3]; /* the defaults of the keys */
    const char *word; /* the default of a word */
};

struct tt_optim_row {
    enum tt_step_op_id update; /* the step op for neighbouring elements of a shard; the op's row gives the cost */
    /* The arrays that the optimizer keeps for a parameter, under PyTorch's names; checkpoints use the same names. There
     * is a second one only if there is a first one. */
    const char *moments[TT_OPTIM_MOMENTS];
    /* Instead of `moments`, for moments of 8 bits in blocks (core/math/dynamic.h): their numbers, and the largest
     * magnitudes of the blocks, under bitsandbytes' names. AdamW then trains embeddings, and parameters of fewer than
     * TT_OPTIM_BLOCKS_FROM elements. Such an optimizer has two moments. */
    const char *codes[TT_OPTIM_MOMENTS], *largest[TT_OPTIM_MOMENTS];
    bool counts_steps; /* PyTorch keeps the number of a parameter's updates beside its moments */
    /*
     * The optimizer trains only the matrices of transformer blocks, and AdamW trains the rest. `update` replaces
     * gradients by updates, which are then gathered, orthogonalized as whole matrices and applied (TT_MUON). Such an
     * optimizer has one moment.
     */
    bool of_matrices;
    struct tt_optim_option options[TT_OPTIM_OPTIONS]; /* ended by the first option without a name */
};

#define TT_OPTIM_COUNT(unused, constant, row, word, doc) +1
enum { TT_OPTIMS = TT_OPTIMIZERS(TT_OPTIM_COUNT, ) };

#define TT_OPTIM_DECLARE(unused, constant, row, word, doc) extern const struct tt_optim_row TT_OF_TYPE(tt_optim_##row);
TT_OPTIMIZERS(TT_OPTIM_DECLARE, )
#undef TT_OPTIM_DECLARE

/** The row of an optimizer. */
const struct tt_optim_row *tt_optim_row(enum tt_optim_choice optim);

/** Whether the name of a tensor in the optimizer's state ends in the name of a moment of any optimizer, or of a part of
 * one. */
bool tt_optim_has_moment(const char *name);

/** The elements of a part of `n` elements that lie in a row of blocks without a gap: run, or if that is 0, all. */
static inline int64_t tt_blocks_run(int64_t run, int64_t n)
{
    return run ? run : n;
}

/** The number of blocks of n elements, where a block ends after TT_DYNAMIC_BLOCK elements and at each multiple of `run`
 * (0: nowhere else). */
static inline int64_t tt_blocks_count(int64_t n, int64_t run)
{
    return n == 0 ? 0 : n / tt_blocks_run(run, n) * tt_div_up(tt_blocks_run(run, n), TT_DYNAMIC_BLOCK);
}

/* --- for the step ops of optimizers --- */

/** The `run` of a row with `update`: the team calls `update` for all parts of the rows of a call. */
void tt_update_run(const struct tt_step_call *call);

/** Returns the next elements of a part that are contiguous in the whole parameter too; false: none are left. */
bool tt_update_next(struct tt_update_part *left, struct tt_update_part *ret_run);

/** The random bits of element i of a run: 16 for each array with stochastic rounding, the lowest bits first. */
uint64_t tt_update_random(const struct tt_step_call *call, const struct tt_update_part *run, int64_t i);

/** The scratch memory that TT_STEP_ORTHOGONALIZE needs for a matrix, with a team of `threads` threads. */
int64_t tt_orthogonalize_scratch_bytes(int64_t rows, int64_t columns, int threads);

#endif
