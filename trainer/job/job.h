/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_JOB_JOB_H
#define TT_TRAINER_JOB_JOB_H

#include <stdint.h>

#include "checkpoint/load/load.h"
#include "checkpoint/save/plan.h"
#include "core/base/error.h"
#include "core/config/config.h"
#include "core/keys/choices.h"
#include "core/models/model.h"
#include "parallel/engine/engine.h"
#include "parallel/engine/generator.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/split.h"
#include "parallel/planner/cost.h"

/* --- the model that a configuration means --- */

/**
 * If the weights to start from are in a Hugging Face folder, takes what nobody set from it: that its format is Hugging
 * Face's, model.hf_assets_path and flavor hf. Sizes that are set stay. TT_EIO if the folder cannot be looked at.
 */
int tt_job_adopt_folder(struct tt_config *cfg) TT_MUST_CHECK;

/**
 * With flavor hf, sets model.name to the family in the folder's config.json, unless somebody set the key; then
 * tt_model_new checks that it is the same. TT_EDATA if config.json cannot be read or has no known model.
 */
int tt_job_adopt_family(struct tt_config *cfg) TT_MUST_CHECK;

/**
 * Sets model.vocab_size, if it is null, to the size of the tokenizer in model.hf_assets_path, padded to a multiple of
 * 64; the key's origin says so. The rows of the flavor stay if the tokenizer is that of its models, or fits and there
 * are weights to start from. A checkpoint that the run goes on with or begins from keeps its rows. Does nothing with
 * flavor hf, and if there is no tokenizer or no such model, which other code reports.
 */
int tt_job_adopt_vocabulary(struct tt_config *cfg) TT_MUST_CHECK;

/** The sizes that the configuration sets itself, in the form that tt_model_new takes. The flavor gives the others. */
struct tt_model_dims tt_job_model_overrides(const struct tt_config *cfg);

/**
 * Fills the model keys that the flavor decides, as tt_job_init does. Then the configuration has all sizes of the model.
 */
int tt_job_resolve_model(struct tt_config *cfg, const struct tt_model *model) TT_MUST_CHECK;

/**
 * The model, with the rules of its initial weights and the optimizer's groups of its parameters; the caller frees it
 * (tt_model_free). Errors: as tt_model_new; TT_EUSAGE for a rule that is wrong.
 */
int tt_job_make_model(const struct tt_config *cfg, struct tt_model **ret_model) TT_MUST_CHECK;

/* --- how models and sequences are divided --- */

/**
 * Whether layers of the model and sequences can be divided as the degrees of tensor and context parallelism, and the
 * exact ones, say. A layer, or a sequence, has as many grains as the larger of its two degrees. Heads, key/value heads,
 * the feed-forward width and the tokens of a microbatch must be multiples of a layer's grains; of the vocabulary each
 * grain must have a row. The length of a sequence must be a multiple of a sequence's grains, or of twice as many with
 * context_parallel_load_balancer headtail, and what is divided in both ways of their product. With
 * context_parallel_method ulysses key/value heads must be a multiple of the degree of context parallelism times a
 * layer's grains. Layers of experts cannot be divided in these ways. The degree of expert parallelism must divide the
 * experts of a layer. Needs no ranks.
 * Errors: TT_EUSAGE, about the key of the larger degree, with the degrees that work.
 */
int tt_job_check_divisions(const struct tt_config *cfg, const struct tt_model *model) TT_MUST_CHECK;

/*
 * --- the pipeline that a configuration asks for ---
 *
 * With pipeline_parallel_degree ranks; no function needs them. All errors are TT_EUSAGE with a key, unless a function
 * says otherwise.
 */

/** The microbatches of a run: local_batch_size / pipeline_parallel_microbatch_size. */
int tt_job_pipeline_microbatches(const struct tt_config *cfg, int *ret_microbatches) TT_MUST_CHECK;

/** The stages of a model, as listed or by torchtitan's rule. ret_split is the caller's (tt_stage_split_release). */
int tt_job_pipeline_split(const struct tt_config *cfg, int n_layers, struct tt_stage_split *ret_split) TT_MUST_CHECK;

/**
 * The orders of a run. *ret_pipeline is the caller's (tt_pipeline_free). It reads the file of schedules that have one;
 * then tt_pipeline_new's other errors may come too.
 */
int tt_job_pipeline_new(const struct tt_config *cfg, int n_stages, int microbatches,
                        struct tt_pipeline **ret_pipeline) TT_MUST_CHECK;

/* --- the job --- */

/**
 * What a configuration means on a number of ranks: model, mesh, batch, and the options of the engine. train, plan,
 * estimate and tune all use the same job, so what they predict is what runs.
 *
 *     struct tt_job job = {0};
 *     TT_TRY(tt_job_init(cfg, n_ranks, threads, limit, &job));
 *     TT_TRY(tt_engine_new(&job.engine, comm, rank, &engine));
 *     ...
 *     tt_job_release(&job);
 *
 * A job starts nothing and allocates nothing large. It reads no files but the machine file, and in model.hf_assets_path
 * the config.json from which the dimensions come, or the tokenizer, whose size the vocabulary may have.
 */
struct tt_job {
    struct tt_model *model;
    struct tt_mesh mesh;
    int64_t microbatches;    /* of a rank in a step */
    int64_t microbatch_size; /* sequences of each */
    int64_t global_batch;    /* sequences of a step */
    /* Of a rank, in addition to the engine's: memory into which async saves copy, and sampling_bytes; 0: none. */
    int64_t staging_bytes;
    int64_t sampling_bytes;         /* of the generator that rank 0 has while it samples a text; 0: none is sampled */
    struct tt_stage_places *places; /* of a pipeline, and the orders of a run through it; NULL: there is none */
    struct tt_pipeline *pipeline;
    int64_t told_positions; /* the model's limit, if sequences are longer and it follows them; else 0 */
    char *sync_why;         /* when gradients are reduced and why, if gradient_sync auto chose; else NULL */
    struct tt_engine_options engine;
};

/**
 * The job of n_ranks ranks with `threads` threads and at most memory_limit bytes each. Fills the model keys of cfg that
 * came from the flavor. Errors: TT_EUSAGE for an impossible mesh, batch or model; ret_job is then unchanged.
 */
int tt_job_init(struct tt_config *cfg, int n_ranks, int threads, int64_t memory_limit,
                struct tt_job *ret_job) TT_MUST_CHECK;
void tt_job_release(struct tt_job *job);

/**
 * Threads of a rank that shares its host with local_size - 1 others: parallelism.threads_per_rank if it is set, else
 * the cores to which the rank is bound, or a fair part of the host's cores if it is not bound.
 */
int tt_job_threads(const struct tt_config *cfg, int local_size);

/** The number of ranks of a job, not started here, that would share this host: one for `threads` cores each. */
int tt_job_ranks_on_host(int n_ranks, int threads);

/** The memory of the machine or container. */
double tt_job_machine_bytes(void);

/**
 * Bytes that each of local_size ranks on this host may use: parallelism.memory_limit, or else a fair part of 0.9 of the
 * host's memory.
 */
int64_t tt_job_memory_limit(const struct tt_config *cfg, int local_size);

/** The cost table: parallelism.machine_file, or the built-in one. Errors: as tt_machine_load, with the key. */
int tt_job_machine(const struct tt_config *cfg, struct tt_machine *ret_machine) TT_MUST_CHECK;

/** training.gradient_sync: when shard ranks reduce gradients. `auto` (tt_job_choose_sync) becomes TT_REDUCE_EACH. */
enum tt_reduce_when tt_job_reduce_when(enum tt_sync_choice sync);
enum tt_sync_choice tt_job_sync_of(enum tt_reduce_when when);

/** checkpoint.save_policy and checkpoint.filter, as words and as a row of the table in checkpoint/save/plan.c. */
const char *tt_job_policy_name(const struct tt_config *cfg);
const char *tt_job_filter_name(const struct tt_config *cfg);
int tt_job_policy(const struct tt_config *cfg, const struct tt_ckpt_policy **ret_policy) TT_MUST_CHECK;

/** What the configuration asks of a resume, and the parts that it excludes, as TT_SKIP_* flags. Errors: TT_EUSAGE for
 * an unknown part. */
int tt_job_resume_request(const struct tt_config *cfg, struct tt_ckpt_request *ret_request) TT_MUST_CHECK;
int tt_job_skip_flags(const struct tt_config *cfg, unsigned *ret_skip) TT_MUST_CHECK;

/** checkpoint.export_dtype. */
enum tt_dtype tt_job_export_dtype(const struct tt_config *cfg);

/** The generator that samples texts while training (metrics.sample_freq), with room for any prompt that is allowed. */
struct tt_generator_options tt_job_sampling(const struct tt_config *cfg, const struct tt_engine_options *engine);

/** Appends who gets samples of its own: "2 ranks", "1 pipeline", "2 groups of 4 ranks". */
void tt_job_readers_text(const struct tt_job *job, struct tt_text *out);

/** Appends the policies in words: "wrap block, reshard default, …". */
void tt_job_policies_text(const struct tt_config *cfg, struct tt_text *out);

/* --- checks --- */

/**
 * Reports what is wrong with a configuration for any number of ranks: a model that does not exist or whose sizes do not
 * fit together, sequences that are too long for it, policies that select nothing. This is a check for struct
 * tt_config_input, so its faults come in one message with those of files and flags, each with its place. Not
 * collective; arg is not used.
 */
void tt_job_check(struct tt_config *cfg, struct tt_config_report *report, void *arg);

/**
 * The same, and also checks the files that the configuration names on this machine: data, tokenizer, the model's
 * config.json, initial weights, machine file. It reads the tokenizer, config.json and the machine file. Of the others
 * it only checks that they exist.
 */
void tt_job_check_files(struct tt_config *cfg, struct tt_config_report *report, void *arg);

#endif
