/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_TRAINER_H
#define TT_CLI_TRAIN_TRAINER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "checkpoint/hf/folder.h"
#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"
#include "checkpoint/save/writer.h"
#include "checkpoint/steps/store.h"
#include "cli/job/job.h"
#include "cli/run/metrics.h"
#include "cli/train/data.h"
#include "core/comm/comm.h"
#include "core/config/config.h"
#include "core/os/lock.h"
#include "parallel/engine/engine.h"

/**
 * One rank of a training run. The order of the calls is the order of a run:
 *
 *     tt_trainer_plan      model, mesh, engine: what will happen, before anything is touched
 *     tt_trainer_open      run folder, data, memory, weights or checkpoint
 *     tt_trainer_run       the loop
 *     tt_trainer_close
 *
 * All are collective: every rank returns the same code, with the message of the lowest failing rank.
 */
struct tt_trainer_options {
    bool json;      /* records on stdout instead of console lines */
    bool overwrite; /* replace the run that the folder holds */
    int argc;       /* the command line, for run.yaml */
    char **argv;
};

/* Where a run stands; all of it is in the checkpoint. */
struct tt_progress_state {
    int64_t step;          /* steps done */
    int64_t sample_cursor; /* samples consumed: the loader's whole state */
    int64_t ntokens_seen;
    int64_t optimizer_step; /* updates that the moments have seen, for Adam's bias correction */
    int64_t lr_step;        /* steps of the schedule done */
};

/* Seconds of training steps since the start of this process, and what of them was waiting. */
struct tt_spent {
    double step_sec, data_sec, exposed_sec;
};

/* The engine's shards as a checkpoint sees them. */
struct tt_trainer_view {
    struct tt_ckpt_state state;
    struct tt_ckpt_layout layout;
    char **names; /* of optimizer tensors */
};

/* Files that go into every checkpoint; rank 0's are written. */
struct tt_trainer_assets {
    struct tt_ckpt_asset *asset;
    int n, cap;
    char *model_config;      /* the bytes of one of them; those of the others are the tokenizer's */
    struct tt_hf_file *file; /* and of model.hf_assets_path, for an export; rank 0 only */
    int n_files;
};

struct tt_trainer {
    struct tt_config *cfg;
    struct tt_comm *comm;
    struct tt_trainer_options options;
    struct tt_job job;
    const struct tt_model *model; /* the job's */
    struct tt_mesh mesh;
    struct tt_engine *engine;
    struct tt_machine machine; /* cost table */
    struct tt_engine_memory memory;
    int threads;
    int local_rank, local_size; /* on this host */
    int64_t microbatches;       /* per rank and step */
    int64_t global_batch;       /* sequences a step */
    int64_t memory_limit;       /* bytes this rank may use */
    struct tt_train_data data, validation;
    struct tt_trainer_view view;
    struct tt_trainer_assets assets;
    struct tt_ckpt_store *store;   /* NULL: nothing is saved */
    struct tt_ckpt_writer *writer; /* NULL: saves block */
    struct tt_ckpt_saving *saving; /* under way; only with a writer */
    int64_t saving_step;
    int64_t saved_step;                  /* the last one that this run published or resumed from, or -1 */
    struct tt_metrics metrics;           /* rank 0 */
    int peaks;                           /* times that the peak was measured */
    double predicted_step_sec, step_sec; /* the latter of the last step; at the start the prediction */
    bool long_steps; /* steps take so long that they are given up in the middle when a signal asks for a stop */
    struct tt_progress_state at;
    char *kernels_differ; /* which ranks compute with other kernels than rank 0, for the banner; NULL: none */
    char run_id[TT_RUN_ID_BYTES];
    char weights_from[512]; /* for the banner: "random init (seed 42)", "step-30", "PATH" */
    int64_t resumed_from;   /* step, or -1 */
    json_t *line;           /* of the steps that this process saves (checkpoint/steps/line.h) */
    int64_t batch_before;   /* sequences of a step when that step was saved; 0: not known */
    json_t *changed;        /* keys changed since that step: {path: [before, now]}; NULL: not resumed */
    struct tt_lock lock;    /* rank 0's, of the run folder */
    /* since the last report */
    double report_start, data_sec;
    struct tt_span load; /* when the last step loaded its batch */
    int64_t report_steps;
    struct tt_spent spent; /* at the last report */
    double started_sec;    /* when the first step of this process began (tt_clock_sec) */
};

int tt_trainer_plan(struct tt_config *cfg, struct tt_comm *comm, const struct tt_trainer_options *options,
                    struct tt_trainer **ret_trainer) TT_MUST_CHECK;
int tt_trainer_open(struct tt_trainer *trainer) TT_MUST_CHECK;

/** The step that training ends after: training.steps, or where data that does not repeat has no further batch. */
int64_t tt_trainer_last_step(const struct tt_trainer *trainer);

/** Trains to the last step. TT_ESTOPPED or TT_EINTERRUPTED after a signal, with everything saved. */
int tt_trainer_run(struct tt_trainer *trainer) TT_MUST_CHECK;

/* A step that was done, and the tokens whose label counts: of the global batch, of this rank. */
struct tt_trainer_step {
    struct tt_step step;
    int64_t valid, local_valid;
};

/** Loads the next batch and trains one step on it; the loop does this and reports, validates and saves. */
int tt_trainer_step(struct tt_trainer *trainer, struct tt_trainer_step *ret_step) TT_MUST_CHECK;

/**
 * Instead of tt_trainer_open, for a trial of a few steps with tt_trainer_step: data, memory and random weights, but no
 * run folder, no checkpoint, no records.
 */
int tt_trainer_open_trial(struct tt_trainer *trainer) TT_MUST_CHECK;

/** Writes the end record with the exit code and releases everything; NULL is allowed. */
void tt_trainer_close(struct tt_trainer *trainer, int code);

/**
 * Measures the matrix-multiply peak of this rank while all ranks compute, a few times in a run, and keeps the largest:
 * where the host was busy for a moment, steps would look better than they are. Nothing if metrics.peak_flops gives it.
 * Collective.
 */
int tt_trainer_measure_peak(struct tt_trainer *trainer) TT_MUST_CHECK;

/* trainer_checkpoint.c */

/** Opens the checkpoint folder and loads: own folder first, else initial_load_*, else random init. Collective. */
int tt_trainer_load(struct tt_trainer *trainer) TT_MUST_CHECK;

void tt_trainer_view_release(struct tt_trainer_view *view);

/* trainer_resume.c */

/** Whether the run's checkpoint folder holds a step, in use or set aside (rank 0's view; not collective). */
int tt_trainer_can_resume(const struct tt_trainer *trainer, bool *ret_can) TT_MUST_CHECK;

/** What the configuration asks of a resume; the parts that it leaves out. */
int tt_trainer_request(const struct tt_trainer *trainer, struct tt_ckpt_request *ret_request) TT_MUST_CHECK;
int tt_trainer_skip_flags(const struct tt_trainer *trainer, unsigned *ret_skip) TT_MUST_CHECK;

/**
 * Loads the step that the run goes on from, if its folder holds one, and settles the line that its steps belong to: what is
 * not of it is set aside once everything is loaded. Collective.
 */
int tt_trainer_resume(struct tt_trainer *trainer, const char *folder, bool *ret_resumed) TT_MUST_CHECK;

/** Takes step, samples and schedule from a manifest, but not what is skipped. */
int tt_trainer_restore_progress(struct tt_trainer *trainer, const json_t *meta, unsigned skip) TT_MUST_CHECK;

/* trainer_changed.c */

/**
 * TT_EDATA, with the values, when a checkpoint is of another model than this run: other shapes, or the same shapes with
 * another meaning (heads, rotary frequencies, epsilon). Local.
 */
int tt_trainer_check_model(const struct tt_trainer *trainer, const json_t *meta) TT_MUST_CHECK;

/** The keys whose values differ from those of an earlier configuration: {"training.steps": [60, 90], …}. */
json_t *tt_trainer_changed_keys(const struct tt_trainer *trainer, const json_t *before);

/** What changed since the step that the run goes on from, and whether its losses do; on stderr. Rank 0 only. */
void tt_trainer_print_changes(FILE *out, const struct tt_trainer *trainer);

/* trainer_save.c */

/** Opens the folder for saving, and with async_mode the writer and its memory. Collective. */
int tt_trainer_save_open(struct tt_trainer *trainer, const char *folder) TT_MUST_CHECK;

/** Gives up a save that is under way, and closes. Not collective. */
void tt_trainer_save_close(struct tt_trainer *trainer);

/**
 * Saves the state as it is now, after ending a save under way. `last` applies last_save_model_only; it and `stop` make the
 * save block. One that fails for want of space is a warning, unless it is the last or training stops. Collective.
 */
int tt_trainer_save(struct tt_trainer *trainer, bool last, bool stop) TT_MUST_CHECK;

/** Whether this rank has nothing left to write; local. */
bool tt_trainer_save_is_written(const struct tt_trainer *trainer);

/** Waits for the save under way, if any, and publishes it. Collective; at once when all ranks' files are written. */
int tt_trainer_save_end(struct tt_trainer *trainer) TT_MUST_CHECK;

/**
 * For a run that was complete when it started: does what its last save left undone because the process was killed or the disk
 * failed. Older steps go as keep_latest_k says, unless that key changed since the step was saved; then nothing is due. With
 * last_save_in_hf a missing export is made. Collective.
 */
int tt_trainer_save_complete(struct tt_trainer *trainer) TT_MUST_CHECK;

/** Compares the replicas' weights and moments, with several replicas (collective): what a save does, without saving. */
int tt_trainer_check_replicas(struct tt_trainer *trainer) TT_MUST_CHECK;

/**
 * tt_trainer_save_end when training ends with `code`, which it returns with its message unless it is 0 and the save failed. Does
 * nothing when ranks cannot be reached.
 */
int tt_trainer_save_drain(struct tt_trainer *trainer, int code) TT_MUST_CHECK;

/* trainer_space.c */

/**
 * Whether the checkpoints to come fit where they will be saved. TT_EIO, with need and have, when there is no room for one save
 * and the one that is kept meanwhile; a warning when there is none for checkpoint.keep_latest_k. Unknown room passes. Collective.
 */
int tt_trainer_check_space(struct tt_trainer *trainer) TT_MUST_CHECK;

/* trainer_export.c */

/**
 * Writes the step that was just saved as a Hugging Face folder too, step-N/hf: rank 0 streams it out of the committed step
 * and publishes it by a rename, the others wait. One that the step has already stays. Collective.
 */
int tt_trainer_export(struct tt_trainer *trainer) TT_MUST_CHECK;

/* trainer_sync.c */

/**
 * The gradient_sync to try: the configured one; for `auto` what the checkpoint that the run resumes from was trained
 * with, else last_microbatch if reduction_order is fast. Collective.
 */
int tt_trainer_sync_first_choice(const struct tt_trainer *trainer, enum tt_sync_choice *ret_sync) TT_MUST_CHECK;

/** Notes on rank 0 that a resumed run synchronises in another way than the one that wrote the manifest. */
void tt_trainer_sync_note_change(const struct tt_trainer *trainer, const json_t *meta);

/* trainer_trace.c */

/** Whether profiling asks for a trace of the step just done. */
bool tt_trainer_trace_is_due(const struct tt_trainer *trainer);

/** Writes the trace of the step just done, which ended at end_sec (tt_clock_sec); collective. */
int tt_trainer_trace(struct tt_trainer *trainer, double end_sec) TT_MUST_CHECK;

/* trainer_validate.c */

/** Loss over the validation data; reports it. Collective. */
int tt_trainer_validate(struct tt_trainer *trainer) TT_MUST_CHECK;

/* trainer_kernels.c */

/**
 * Ranks compare what their bits depend on: the kernels of the BLAS library and titan's own. Another choice on some rank is
 * no error, but the curve is then not layout-exact. Collective.
 */
int tt_trainer_kernels_compare(struct tt_trainer *trainer) TT_MUST_CHECK;

/** {"blas": "Haswell", "titan": "avx2"}, of this rank, with "differ" where ranks do; json_decref. */
json_t *tt_trainer_kernels_json(const struct tt_trainer *trainer);

/* banner.c */

/** What is about to happen, on stderr. Rank 0 only. */
void tt_trainer_banner(const struct tt_trainer *trainer);

/** What the run gave and what one might do next, on stderr. Rank 0 only. */
void tt_trainer_farewell(const struct tt_trainer *trainer);

/** Seconds of a step by the cost table; by the built-in one at the matrix-multiply rate that this rank was measured to have. */
double tt_trainer_predict_step_sec(const struct tt_trainer *trainer);

/** Whether the losses of this run do not depend on how it is laid out over ranks. */
bool tt_trainer_layout_exact(const struct tt_trainer *trainer);

#endif
