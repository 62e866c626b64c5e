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

/** Whether a path is a folder of adapters in PEFT's format: it has an adapter_config.json. */
bool tt_job_is_adapter(const char *path);

/* --- the model that a configuration describes --- */

/**
 * If the weights to start from are in a Hugging Face folder, sets the keys that the user did not set: the format of the
 * weights, model.hf_assets_path, and flavor hf; for adapters of PEFT, see tt_job_adopt_adapter. Keeps the sizes that
 * the user set. TT_EIO if the folder cannot be examined; TT_EUSAGE if lora.base_dtype is set, but neither the user nor
 * the folder sets lora.rank.
 */
int tt_job_adopt_folder(struct tt_config *cfg) TT_MUST_CHECK;

/**
 * With flavor hf, sets model.name to the family in the folder's config.json, unless the user set the key; then
 * tt_model_new checks that they agree. TT_EDATA if config.json cannot be read or describes no known model.
 */
int tt_job_adopt_family(struct tt_config *cfg) TT_MUST_CHECK;

/**
 * Sets model.vocab_size, if it is null, to the size of the tokenizer in model.hf_assets_path, padded to a multiple of
 * 64; the key's origin says so. Keeps the flavor's number of rows if the tokenizer is the one that the flavor's models
 * use, or if it fits and the run starts from weights. If the run resumes or begins from a titan checkpoint, keeps the
 * number of rows in that checkpoint. Does nothing with flavor hf, or if the tokenizer or the model does not exist,
 * which other code reports.
 */
int tt_job_adopt_vocabulary(struct tt_config *cfg) TT_MUST_CHECK;

/** The sizes that the configuration sets, in the form that tt_model_new takes. The flavor provides the others. */
struct tt_model_dims tt_job_model_overrides(const struct tt_config *cfg);

/**
 * Fills in the model keys that the flavor determines, as tt_job_init does. Then the configuration contains all sizes of
 * the model.
 */
int tt_job_resolve_model(struct tt_config *cfg, const struct tt_model *model) TT_MUST_CHECK;

/* --- how models and sequences are divided --- */

/**
 * Whether the layers of the model, and sequences, can be split by the degrees of tensor and context parallelism and
 * their exact degrees. The number of grains of a layer, or of a sequence, is the larger of its two degrees. Heads,
 * key/value heads, the feed-forward width and the tokens of a microbatch must be multiples of a layer's grains; each
 * grain must contain a row of the vocabulary. The length of a sequence must be a multiple of a sequence's grains, or of
 * twice that number with context_parallel_load_balancer headtail. A size that is split in both ways must be a multiple
 * of the product of both numbers of grains. With context_parallel_method ulysses, the key/value heads must be a
 * multiple of the degree of context parallelism times a layer's grains. Layers of experts are not split in these ways.
 * The degree of expert parallelism must divide the experts of a layer. Needs no ranks. Errors: TT_EUSAGE, about the key
 * of the larger degree, with the degrees that work.
 */
int tt_job_check_divisions(const struct tt_config *cfg, const struct tt_model *model) TT_MUST_CHECK;

/*
 * --- the pipeline that a configuration asks for ---
 *
 * The pipeline has pipeline_parallel_degree ranks; these functions need not run on them. All errors are TT_EUSAGE with
 * a key, unless a function says otherwise.
 */

/** The microbatches of a run: local_batch_size / pipeline_parallel_microbatch_size. */
int tt_job_pipeline_microbatches(const struct tt_config *cfg, int *ret_microbatches) TT_MUST_CHECK;

/** The stages of a model, as the configuration lists them or by torchtitan's rule. The caller frees ret_split with
 * tt_stage_split_release. */
int tt_job_pipeline_split(const struct tt_config *cfg, int n_layers, struct tt_stage_split *ret_split) TT_MUST_CHECK;

/**
 * The orders of a run. The caller frees *ret_pipeline with tt_pipeline_free. If the schedule is in a file, reads the
 * file, with the errors of tt_pipeline_new.
 */
int tt_job_pipeline_new(const struct tt_config *cfg, int n_stages, int microbatches,
                        struct tt_pipeline **ret_pipeline) TT_MUST_CHECK;

/* --- the job --- */

/**
 * The job of a configuration on a given number of ranks: model, mesh, batch, and the options of the engine. train,
 * plan, estimate and tune all use the same job, so they predict the run that train makes.
 *
 *     struct tt_job job = {0};
 *     TT_TRY(tt_job_init(cfg, n_ranks, threads, limit, &job));
 *     TT_TRY(tt_engine_new(&job.engine, comm, rank, &engine));
 *     ...
 *     tt_job_release(&job);
 *
 * A job starts nothing and allocates nothing large. It reads only the machine file and, in model.hf_assets_path,
 * config.json for the dimensions or the tokenizer for the size of the vocabulary.
 */
struct tt_job {
    struct tt_model *model;
    struct tt_mesh mesh;
    int64_t microbatches;    /* microbatches of one rank in a step */
    int64_t microbatch_size; /* sequences in each microbatch */
    int64_t global_batch;    /* sequences in a step */
    /* Memory that a rank needs in addition to the engine: the copies of async saves, and sampling_bytes. 0: none. */
    int64_t staging_bytes;
    /* memory of the largest generator that rank 0 holds, to sample a text or to score tasks; 0: none */
    int64_t sampling_bytes;
    struct tt_stage_places *places; /* places of the pipeline, with the orders of one run; NULL: no pipeline */
    struct tt_pipeline *pipeline;
    /* the longest sequence of the published model, if this run raises that limit; else 0 */
    int64_t told_positions;
    char *sync_why; /* if gradient_sync auto chose: when gradients are reduced, and why; else NULL */
    struct tt_engine_options engine;
};

/**
 * The job of n_ranks ranks with `threads` threads and at most memory_limit bytes each. Fills in the model keys of cfg
 * that come from the flavor. Errors: TT_EUSAGE for an impossible mesh, batch or model; ret_job is then unchanged.
 */
int tt_job_init(struct tt_config *cfg, int n_ranks, int threads, int64_t memory_limit,
                struct tt_job *ret_job) TT_MUST_CHECK;
void tt_job_release(struct tt_job *job);

/**
 * Threads of a rank that shares its host with local_size - 1 others: parallelism.threads_per_rank if it is set, else
 * the number of cores to which the rank is bound or, if it is not bound, an equal share of the host's cores.
 */
int tt_job_threads(const struct tt_config *cfg, int local_size);

/** How many ranks would share this host if the job were started here: one per `threads` cores. */
int tt_job_ranks_on_host(int n_ranks, int threads);

/** The memory of the machine or of its container, in bytes. */
double tt_job_machine_bytes(void);

/**
 * The bytes that each of local_size ranks on this host may use: parallelism.memory_limit, or otherwise an equal share
 * of 0.9 of the host's memory.
 */
int64_t tt_job_memory_limit(const struct tt_config *cfg, int local_size);

/** The cost table: parallelism.machine_file, or the built-in one. Errors: as tt_machine_load, with the key. */
int tt_job_machine(const struct tt_config *cfg, struct tt_machine *ret_machine) TT_MUST_CHECK;

/** training.gradient_sync: when shard ranks reduce gradients. `auto`, which tt_job_choose_sync resolves, becomes
 * TT_REDUCE_EACH here. */
enum tt_reduce_when tt_job_reduce_when(enum tt_sync_choice sync);
enum tt_sync_choice tt_job_sync_of(enum tt_reduce_when when);

/** checkpoint.save_policy and checkpoint.filter, as words and as a row of the table in checkpoint/save/plan.c. */
const char *tt_job_policy_name(const struct tt_config *cfg);
const char *tt_job_filter_name(const struct tt_config *cfg);
int tt_job_policy(const struct tt_config *cfg, const struct tt_ckpt_policy **ret_policy) TT_MUST_CHECK;

/** The configuration's request for a resume, with the parts that it excludes as TT_SKIP_* flags. Errors: TT_EUSAGE for
 * an unknown part. */
int tt_job_resume_request(const struct tt_config *cfg, struct tt_ckpt_request *ret_request) TT_MUST_CHECK;
int tt_job_skip_flags(const struct tt_config *cfg, unsigned *ret_skip) TT_MUST_CHECK;

/** checkpoint.export_dtype. */
enum tt_dtype tt_job_export_dtype(const struct tt_config *cfg);

/** The generator that samples texts while training (metrics.sample_freq), with room for any prompt that is allowed. */
struct tt_generator_options tt_job_sampling(const struct tt_config *cfg, const struct tt_engine_options *engine);

/** The generator that scores tasks while training (metrics.task_freq), with room for any task that is allowed. */
struct tt_generator_options tt_job_scoring(const struct tt_config *cfg, const struct tt_engine_options *engine);

/** Appends the ranks or groups that get different samples: "2 ranks", "1 pipeline", "2 groups of 4 ranks". */
void tt_job_readers_text(const struct tt_job *job, struct tt_text *out);

/** Appends the policies in words: "wrap block, reshard default, …". */
void tt_job_policies_text(const struct tt_config *cfg, struct tt_text *out);

/* --- checks --- */

/**
 * Reports the faults that a configuration has for any number of ranks: a model that does not exist or whose sizes do
 * not fit together, sequences that are too long for it, policies that select nothing. It is a check for struct
 * tt_config_input, so one message lists its faults together with the faults of files and flags, each with its place.
 * Not collective; arg is not used.
 */
void tt_job_check(struct tt_config *cfg, struct tt_config_report *report, void *arg);

/**
 * The same, and also checks the files that the configuration names on this machine: data, tokenizer, the model's
 * config.json, initial weights, machine file. It reads the tokenizer, config.json and the machine file, and only checks
 * that the others exist.
 */
void tt_job_check_files(struct tt_config *cfg, struct tt_config_report *report, void *arg);

/**
 * Calls take for each key that a file or a flag sets to another value than its default, although another key, or a
 * model without experts, leaves it without effect. why: "checkpoint.enable is false". In the order of schema.def.
 */
void tt_job_idle_each(const struct tt_config *cfg, bool has_experts,
                      void (*take)(void *arg, const struct tt_config_row *key, const char *value, const char *why),
                      void *arg);

#endif
