/* SPDX-License-Identifier: MIT */
#ifndef TT_PAR_FIXTURE_H
#define TT_PAR_FIXTURE_H

#include "core/data/dataset.h"
#include "core/models/model.h"
#include "parallel/pipeline/schedule.h"
#include "tests/help/sweep.h"
#include "tests/par/train_job.h"

/* The set-up of training tests on thread ranks: tiny models and random tokens. cmocka asserts inside. */

/** Prints this thread's error message if rc is an error. Returns rc. */
int fixture_check(int rc);

/** A llama3 with these dims, and a model of any name and flavor. The caller owns them. */
struct tt_model *fixture_model(const struct tt_model_dims *dims);
struct tt_model *fixture_model_of(const char *name, const char *flavor, const struct tt_model_dims *dims);

/** A deepseek_v3 of these dims with latent attention and YaRN, without experts. The caller owns it. */
struct tt_model *fixture_latents(const struct tt_model_dims *dims);

enum { FIXTURE_DOCUMENTS = 200 };

/** What a test program trains. */
struct fixture {
    struct tt_model *odd;          /* prime widths, which no number of ranks divides */
    struct tt_model *tied;         /* tied embeddings; most tensors have fewer rows than there are ranks */
    struct tt_dataset data, chats; /* the same tokens; chats has a mask of learned ones */
    uint16_t tokens[4096];         /* tokens of data: below 13, small ones more often */
    int64_t offsets[FIXTURE_DOCUMENTS + 1];
};

struct fixture_size {
    int64_t odd_layers, odd_vocab, tied_layers;
    bool narrow; /* odd gets smaller widths */
};

/** Makes both models and the data; fixture_close releases them. */
void fixture_open(struct fixture *fixture, const struct fixture_size *size);
void fixture_close(struct fixture *fixture);

/** Two steps and three batches of validation; each microbatch has two sequences of 16 tokens. */
struct train_job fixture_sequences(const struct fixture *fixture, const struct tt_model *model, int64_t microbatches,
                                   int sequence_grains, int grains);

/* The layout of a case. 0 stands for 1. */
struct fixture_layout {
    int shards, replicate;
    int context, sequence_grains, tensor, grains;
    int experts;
    double window; /* tt_engine_options.moe_window */
    int pipe, stages_per_rank;
    enum tt_pipeline_schedule schedule; /* if pipe > 1 */
    int runs;                           /* through the pipeline in a step */
    int microbatches;                   /* microbatches of a rank in a run */
};

#define PIPE(ranks, stages, name) .pipe = (ranks), .stages_per_rank = (stages), .schedule = TT_PP_##name

/** The microbatches of all ranks in a step. */
int64_t fixture_microbatches(const struct fixture_layout *layout);

/** Gives the job the layout, except for grains and batch, which its reference on one rank shares. */
void fixture_lay_out(struct train_job *job, const struct fixture_layout *layout);

/** Gives the job policies that change no bit and that vary from case to case. The layout must be set. */
void fixture_vary(int i, struct train_job *job);

/** Runs the job, whose result must equal the wanted one; `what` and its values name the job in the message. */
void fixture_must_be(const struct train_job *job, const struct train_result *wanted, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

/** As above, with the eager and with the planned scheduler. */
void fixture_both_must_be(struct train_job job, const struct train_result *wanted, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

/** Every schedule of pipelines, with the number of chunks per rank. */
enum { FIXTURE_SCHEDULES = 8 };

extern const struct fixture_schedule {
    enum tt_pipeline_schedule schedule;
    int chunks;
} fixture_schedules[FIXTURE_SCHEDULES];

#endif
