/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_CKPT_SUPPORT_H
#define TT_TESTS_CKPT_SUPPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/state.h"
#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"
#include "core/comm/comm.h"
#include "core/keys/choices.h"
#include "parallel/layout/mesh.h"

/**
 * A small model for checkpoint tests. Its tensors have shapes that do not divide, fewer rows than ranks, a single row,
 * a scalar, other dtypes, and one tensor that is large enough to be cut over replicas. The value of an element is a
 * function of name, index and step.
 */
struct test_state {
    struct tt_ckpt_state state;
    struct tt_mesh mesh;
};

/** A mesh of dp_shard x dp_replicate ranks. */
struct tt_mesh test_mesh(int dp_shard, int dp_replicate);

/** This rank's parts with the values of `step`; if step < 0, garbage that a load must overwrite. */
void test_state_init(struct test_state *t, int dp_shard, int dp_replicate, int rank, int64_t step);
void test_state_init_on(struct test_state *t, const struct tt_mesh *mesh, int rank, int64_t step);
void test_state_release(struct test_state *t);

/** Whether every element has its value of `step`; the optimizer's too, unless model_only. */
bool test_state_is(const struct test_state *t, int64_t step, bool model_only);

/** A job of dp_shard x dp_replicate (x tp x pp) thread ranks that saves or loads one step. */
struct test_job {
    const char *folder;
    const char *run_id;
    int dp_shard, dp_replicate;
    int64_t step; /* to save */
    int tp;       /* more than 1: ranks over which two of three tensors are cut first, by rows or columns */
    int pp;       /* more than 1: places of a pipeline, to which tensors go in turn */
    int keep;
    const char *policy, *filter; /* NULL: "all" */
    bool async;                  /* the state is overwritten as soon as the save has begun */
    int threads;                 /* threads of each rank; 0: no team */
    bool cast_model;
    enum tt_dtype model_dtype;
    bool nonfinite; /* one value is infinite */
    int flip_rank;  /* this rank (counted from 1) flips a bit in its part of tensor flip_tensor; 0: none */
    int flip_tensor;
    int64_t load_step;
    unsigned skip;
    enum tt_load_choice reading;
    const char *path; /* for test_load */
    int64_t found;    /* test_resume: the step */
    int wrong;        /* ranks whose state differed from `expect` after a load */
    int64_t expect;
    struct tt_ckpt_saved saved;
};

/** Whether a rank of the job holds elements of a tensor; tensors are counted through the model and then the
 * optimizer. */
bool test_rank_holds(const struct test_job *job, int rank, int tensor);

/** Collective over thread ranks; each returns the code of the call under test. */
int test_save(struct test_job *job);
int test_resume(struct test_job *job);
int test_load(struct test_job *job);

/** A fresh folder below the system's temporary folder; the caller frees and removes it. */
char *test_folder(void);

/** Damages a file: flips bit `bit`, or removes (delta < 0) or appends (delta > 0) bytes. */
void test_flip(const char *path, int64_t bit);
void test_resize(const char *path, int64_t delta);

#endif
