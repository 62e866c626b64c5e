/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_MODEL_JOB_H
#define TT_ESTIMATE_MODEL_JOB_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "estimate/hardware/machine.h"
#include "parallel/pipeline/schedule.h"

/* Multi-head latent attention: the ranks of the latents of keys and values, and of queries (0: none), and the widths of
 * a head. */
struct tt_cluster_latent {
    double key_rank, query_rank, rope, nope, value;
};

/* The sizes of a decoder model, as far as time and memory depend on them. */
struct tt_cluster_shape {
    double dim, layers, heads, kv_heads, head_dim, ffn, vocab;
    bool gated;                      /* the feed-forward layer has three matrices, not two */
    bool tied;                       /* the output shares the embedding */
    double params;                   /* all parameters; 0: computed from the sizes */
    double experts, active, moe_ffn; /* experts of a layer, experts that a token uses, width of an expert; 0: dense */
    double shared_ffn, dense_layers; /* width of the shared experts; layers without experts */
    double score_dim;                /* with latent attention, the width of a head in the scores; otherwise 0 */
    struct tt_cluster_latent latent; /* sizes of latent attention; key_rank 0: unknown */
    double window, window_layers;    /* sliding window in tokens, and layers with it; 0: none */
    double groups, groups_met;       /* groups of experts, and the number of groups that a token may use; 0: all */
    bool expert_bias;                /* experts add biases and clamp, as in gpt-oss */
    double mtp_layers;               /* further layers at the end, for multi-token prediction */
    double positions;                /* learned positions; 0: none */
};

enum tt_cluster_again {
    TT_AGAIN_NONE,
    TT_AGAIN_OP,        /* torchtitan's selective op: every second GEMM, and all cheap ops */
    TT_AGAIN_LAYERS,    /* the whole of some layers (again_layers of them) */
    TT_AGAIN_ATTENTION, /* Korthikanti's selective: the core of attention */
    TT_AGAIN_MODULES,   /* Megatron's selective: the modules again_modules of each layer */
    TT_AGAIN_FULL,
};
enum { TT_AGAIN_KINDS = TT_AGAIN_FULL + 1 };

/* Modules that Megatron can recompute alone, as bits. */
enum tt_cluster_module {
    TT_MODULE_CORE_ATTENTION = 1,
    TT_MODULE_NORMS = 2,
    TT_MODULE_LATENT_UP = 4,   /* the GEMMs from latents to queries, keys and values, and RoPE */
    TT_MODULE_FFN = 8,         /* the feed-forward part of layers without experts */
    TT_MODULE_EXPERTS = 16,    /* routed and shared experts with the all-to-all */
    TT_MODULE_EXPERT_ACT = 32, /* the activation between the two GEMMs of an expert */
    TT_MODULE_SHARED_EXPERTS = 64,
};

/* The linear layers that get a low-rank adapter, as bits. */
enum tt_cluster_target {
    TT_TARGET_Q = 1,
    TT_TARGET_K = 2,
    TT_TARGET_V = 4,
    TT_TARGET_O = 8,
    TT_TARGET_GATE = 16,
    TT_TARGET_UP = 32,
    TT_TARGET_DOWN = 64,
    TT_TARGETS_ALL = 127
};

/* Optimizers, as far as their state and traffic differ. Adam counts as AdamW. */
enum tt_cluster_optimizer {
    TT_OPT_ADAMW,
    TT_OPT_ADAMW_8BIT, /* moments in blocks of 256 8-bit numbers with a float32 scale */
    TT_OPT_MUON,       /* one moment for the matrices of the layers; AdamW's two for the rest */
    TT_OPT_LION,       /* one moment */
    TT_OPT_SGD_MOMENTUM,
    TT_OPT_SGD
};
enum { TT_CLUSTER_OPTIMIZERS = TT_OPT_SGD + 1 };

/* State that is in the host's memory instead of the device's. */
enum tt_cluster_offload {
    TT_OFFLOAD_NONE,
    TT_OFFLOAD_OPTIMIZER, /* as ZeRO-Offload: master weights and moments; the host updates them */
    TT_OFFLOAD_ALL        /* as FSDP's CPU offload: weights and gradients too */
};

/* Schedules of a pipeline. The last three split backward: gradients of weights fill gaps. */
enum tt_cluster_order {
    TT_ORDER_1F1B,        /* or Interleaved1F1B, with several stages per rank */
    TT_ORDER_ALL_FORWARD, /* GPipe, LoopedBFS: all microbatches go forward first */
    TT_ORDER_INTERLEAVED_ZERO_BUBBLE,
    TT_ORDER_ZBV_ZERO_BUBBLE, /* these two have two stages per rank, and both ends of the model on the first rank */
    TT_ORDER_DUAL_PIPE_V,
};

/* A training job: the model, the batch and the layout. Degrees and sizes are doubles, because formulas use them. */
struct tt_cluster_job {
    const struct tt_cluster_machine *machine;
    const struct tt_cluster_stack *stack;
    struct tt_cluster_shape shape;
    double replicate, shard, tp, pp, cp, ep;
    double expert_tp;             /* number of ranks that divide the matrices of an expert; 0: tp */
    bool sequence_parallel;       /* tp also splits the activations outside the GEMMs */
    double virtual_stages;        /* stages per rank; 1: not interleaved */
    bool split_known;             /* the next three members are known; otherwise layers are split evenly */
    double first_less, last_less; /* the number of layers for which embeddings and output count in the split */
    const double *stage_layers;   /* [pp x virtual_stages] layers of each stage; NULL: by the rule of torchtitan */
    enum tt_cluster_order order;
    double micro_batch; /* sequences in a microbatch of a data-parallel rank */
    double n_micro;     /* microbatches of that rank in a step */
    double seq_len;
    enum tt_cluster_again again;
    double again_layers;    /* of TT_AGAIN_LAYERS */
    unsigned again_modules; /* of TT_AGAIN_MODULES */
    double gradient_bytes;  /* bytes per gradient in transfers; 0: the stack's number */
    bool keep_gathered;     /* parameters stay gathered from forward to backward */
    bool float8, async_tp;
    bool float8_rows;   /* float8 with a scale for each row: slower, and parameters are gathered in bfloat16 */
    bool float32;       /* GEMMs and gathered parameters are float32, as in titan without mixed precision */
    bool unfused_norm;  /* norms are chains of small kernels on whole rows */
    bool float_scores;  /* unfused attention in float32, without a fused softmax */
    bool whole_logits;  /* tensor-parallel ranks gather the logits, and each computes the whole loss */
    double loss_chunks; /* number of chunks of the loss; 0: one */
    int kernel;         /* of attention; -1: the stack's kernel */
    double node_net;    /* bytes/s of a node's network cards; 0: the machine's number */
    double document; /* mean tokens of the documents in a sequence, if they do not attend to each other; 0: they do */
    bool balanced;   /* every expert gets the same number of tokens, as benchmarks may force */
    bool adjacent;   /* the experts of a token are neighbours, as with counters in place of a router */
    bool contiguous; /* a rank of context parallelism holds one piece of a sequence, and the last one has most work */
    bool expert_overlap; /* the all-to-all overlaps another microbatch */

    /* The trained parameters, and the types. */
    double lora_rank;      /* rank of trained adapters of frozen weights; 0: all weights are trained */
    unsigned lora_targets; /* bits of tt_cluster_target; 0: all */
    double base_bits;      /* bits of a frozen weight; 0: 16; 4 means NF4 with double quantisation, 4.127 bits */
    enum tt_cluster_optimizer optimizer;
    enum tt_cluster_offload offload;
    /* bytes of the weight that the optimizer updates, of its gradient in memory, and of a moment; 0: the stack's */
    double weight_bytes, state_gradient_bytes, moment_bytes;
    double state_copies;   /* copies of the optimizer's state, in a stack of Megatron's kind that divides it; 0: one */
    double offload_layers; /* layers whose activations wait for backward in the host's memory */
    double weight_copies;  /* bytes of further copies of a weight, such as TransformerEngine's in float8 */
    double logit_bytes;    /* live bytes of the loss, per token and vocabulary entry; 0: the stack's number */
    double save_steps;     /* steps between checkpoints; 0: the number that loses the least time */
    bool save_waits;       /* the step waits until a checkpoint is durable */
};

/* Seconds of a step by kind of work, with their sum; bytes of the rank that needs the most. */
struct tt_cluster_time {
    double gemm, attention, memory, host, tensor, context, expert, data, pipeline, bubble, optimizer, noise;
    double total;
};

struct tt_cluster_memory {
    double state, buffers, activations, logits, communicators, context, allocator;
    double allocated; /* memory from the framework's allocator: everything except communicators and context */
    double host;      /* offloaded state, in the host's memory; not part of the total */
    double total;
    double usable; /* memory of the device that a job can use */
    int stage;     /* the pipeline stage that needs the most */
};

/* A part of that memory, by its name in text and JSON. A short text adds up the parts that are `other`. */
struct tt_cluster_memory_part {
    const char *name;
    size_t offset; /* in struct tt_cluster_memory */
    bool is_other;
};

enum { TT_CLUSTER_MEMORY_PARTS = 7 };
extern const struct tt_cluster_memory_part tt_cluster_memory_parts[TT_CLUSTER_MEMORY_PARTS];
double tt_cluster_memory_part_bytes(const struct tt_cluster_memory *memory, const struct tt_cluster_memory_part *part);

enum tt_cluster_fit { TT_FIT_YES, TT_FIT_TIGHT, TT_FIT_NO };

/* Words for JSON, tables and the screen: "full", "does not fit". */
extern const char *const tt_cluster_again_words[], *const tt_cluster_fit_words[];
extern const char *const tt_cluster_optimizer_words[], *const tt_cluster_offload_words[];

/** The sizes of a published model by its name, ignoring case; false: unknown. */
bool tt_cluster_shape_find(const char *name, struct tt_cluster_shape *ret_shape);

/**
 * Appends all of these names, separated by blanks; returns the name that the user probably meant by `meant`, or NULL.
 */
const char *tt_cluster_shape_names(const char *meant, struct tt_text *out);

/** Modules by Megatron's names, "core_attn layernorm", as bits of tt_cluster_module; skips other names. */
unsigned tt_cluster_modules(const char *names);

/** Appends the names of the bits, separated by blanks. */
void tt_cluster_module_names(unsigned modules, struct tt_text *out);

/** The optimizer of a name, ignoring case: "AdamW", "Adam", "adamw8bit", "Muon"; false: unknown. */
bool tt_cluster_optimizer_find(const char *name, enum tt_cluster_optimizer *ret_optimizer);

/** Makes weights, gradients, moments and transfers of a job bfloat16. */
void tt_cluster_pure_bf16(struct tt_cluster_job *job);

/** The width of all heads together in the scores: the mean of keys and values. */
static inline double tt_cluster_score_width(const struct tt_cluster_shape *s)
{
    return s->heads * (s->score_dim > 0 ? s->score_dim : s->head_dim);
}

/** Makes the attention of a shape latent: chooses its heads so that they have as many parameters as the five matrices
 * of latent attention. */
void tt_cluster_shape_set_latent(struct tt_cluster_shape *shape, const struct tt_cluster_latent *latent);

/** The number of devices of the job; the tokens of a step. */
double tt_cluster_devices(const struct tt_cluster_job *job);
double tt_cluster_tokens(const struct tt_cluster_job *job);

/** The number of parameters of the whole model; of one block. */
double tt_cluster_params(const struct tt_cluster_shape *shape);
double tt_cluster_block_params(const struct tt_cluster_shape *shape, bool experts);

/** The number of trained parameters of the model: the adapters' with LoRA, otherwise all. And the average bytes of a
 * gathered parameter over the model: less than 2 with a quantised base.
 */
double tt_cluster_trained(const struct tt_cluster_job *job);
double tt_cluster_gathered_bytes(const struct tt_cluster_job *job);

/** Bits of the targets in a text such as "q_proj v_proj" or "q v"; skips other words. */
unsigned tt_cluster_targets(const char *names);

/** The rows and columns of the weight that a target names, in a layer without experts or in one expert; false: there is
 * no such weight in such a layer. */
bool tt_cluster_target_size(const struct tt_cluster_shape *shape, enum tt_cluster_target target, bool expert,
                            double *ret_outputs, double *ret_inputs);

/** Whether a job trains an adapter of the target. */
static inline bool tt_cluster_adapts(const struct tt_cluster_job *job, enum tt_cluster_target target)
{
    return job->lora_rank > 0 && ((job->lora_targets ? job->lora_targets : TT_TARGETS_ALL) & (unsigned)target) != 0;
}

/** The device's peak for GEMMs in the job's type, in flop/s. */
static inline double tt_cluster_peak_flops(const struct tt_cluster_job *job)
{
    return job->machine->number[job->float32 ? TT_M_PEAK_F32 : TT_M_PEAK_BF16].value;
}

/** Model flops of a token: 6 per parameter of a GEMM, and 12 x layers x dim x sequence for attention. */
double tt_cluster_token_flops(const struct tt_cluster_shape *shape, double seq_len);

/** The number of ranks that shard the parameters; the number that replicate the shards and all-reduce their
 * gradients. */
double tt_cluster_shards(const struct tt_cluster_job *job);
double tt_cluster_copies(const struct tt_cluster_job *job);

/** Bytes per gradient in transfers, and in memory: the job's number, or the stack's. */
double tt_cluster_gradient_bytes(const struct tt_cluster_job *job);
double tt_cluster_kept_gradient(const struct tt_cluster_job *job);

/**
 * Parameters of all routed experts; the ranks that split each of their matrices; and the ranks that shard and replicate
 * the experts of a rank. Ranks along ep hold different experts, so fewer ranks share an expert.
 */
double tt_cluster_expert_params(const struct tt_cluster_shape *shape);
double tt_cluster_expert_tp(const struct tt_cluster_job *job);
double tt_cluster_expert_shards(const struct tt_cluster_job *job);
double tt_cluster_expert_copies(const struct tt_cluster_job *job);

/** The number of layers on the rank with the most layers, if they are split evenly. */
static inline double tt_cluster_stage_layers(const struct tt_cluster_job *job)
{
    return ceil(job->shape.layers / (job->pp * job->virtual_stages)) * job->virtual_stages;
}

/** Predicts the time of a step. Pure arithmetic: equal jobs give equal times. */
void tt_cluster_step(const struct tt_cluster_job *job, struct tt_cluster_time *ret_time);

/* A part of a step, in the order of struct tt_cluster_time, with its name and a longer title. */
struct tt_cluster_part {
    const char *name, *title;
    bool is_traffic;
    size_t offset; /* in struct tt_cluster_time */
};

enum { TT_CLUSTER_PARTS = 12 };
extern const struct tt_cluster_part tt_cluster_parts[TT_CLUSTER_PARTS];
double tt_cluster_part_sec(const struct tt_cluster_time *time, const struct tt_cluster_part *part);

/** The part of the step that takes longest. */
const struct tt_cluster_part *tt_cluster_dominant(const struct tt_cluster_time *time);

/** Predicts the memory of a rank: in one pipeline stage, and of the rank that needs the most. */
void tt_cluster_stage_peak(const struct tt_cluster_job *job, int stage, struct tt_cluster_memory *m);
void tt_cluster_peak(const struct tt_cluster_job *job, struct tt_cluster_memory *ret_memory);

/* Memory of a rank that only generates: the weights, and the keys and values of micro_batch sequences of seq_len
 * tokens. */
struct tt_cluster_inference {
    double weights, cache;
    double total; /* with the context and a communicator */
    double usable;
};

/** The memory of inference with the job's tp x pp ranks, in the type of its frozen weights (base_bits; 0: 16). */
void tt_cluster_inference(const struct tt_cluster_job *job, struct tt_cluster_inference *ret);

/** Whether a job fits: yes, with a margin of max(2 GiB, 4 %); tight, within the margin; or no. */
enum tt_cluster_fit tt_cluster_fits(const struct tt_cluster_memory *memory);

/**
 * The sizes of a model from Hugging Face's config.json, of a class that a family reads or of one in hf_classes.def.
 * `where` names the file. TT_EDATA: an unknown architecture, or a size that is missing or not above 0.
 */
int tt_cluster_shape_of_hf(const json_t *file, const char *where, struct tt_cluster_shape *ret_shape) TT_MUST_CHECK;

/**
 * The schedules of pipelines: how long ranks wait and how much memory they hold, by formulas for the orders in
 * parallel/pipeline, or by its simulator.
 */

/* Seconds of a microbatch in all stages of a rank. */
struct tt_cluster_passes {
    double forward;
    double input;  /* the part of backward, with recomputation, for which other stages wait */
    double weight; /* the part of backward for the gradients of weights */
};

/** The schedule of the job, and torchtitan's name for it. */
enum tt_pipeline_schedule tt_cluster_schedule(const struct tt_cluster_job *job);
const char *tt_cluster_schedule_name(const struct tt_cluster_job *job);

/** Whether the schedule splits backward, so that gradients of weights fill gaps. */
static inline bool tt_cluster_splits(const struct tt_cluster_job *job)
{
    return tt_pipeline_row(tt_cluster_schedule(job))->splits;
}

/**
 * Whether the stages go down the ranks and come back, so that the first rank holds both the embeddings and the output.
 * There is no formula for the bubble of such a schedule: tt_cluster_bubble runs the simulator.
 */
static inline bool tt_cluster_is_v(const struct tt_cluster_job *job)
{
    return job->pp > 1 && (job->order == TT_ORDER_ZBV_ZERO_BUBBLE || job->order == TT_ORDER_DUAL_PIPE_V);
}

/**
 * Whether a configuration of the job's trainer can express its stages as *ret_each layers per stage. Embeddings and
 * output together count as *ret_ends layers: 0 or 2 with Megatron; otherwise the job's number, or if that does not work
 * the first of 2, 1 and 0 that does.
 */
bool tt_cluster_layers_per_stage(const struct tt_cluster_job *job, double *ret_each, double *ret_ends);

/** The layers in all stages of a rank (the rank with most layers, if the split is not known). */
double tt_cluster_rank_layers(const struct tt_cluster_job *job, int rank);

/** Whether a rank holds the output layer: it is the last rank, or the first if the stages come back to it. */
static inline bool tt_cluster_has_output(const struct tt_cluster_job *job, int rank)
{
    return rank == (tt_cluster_is_v(job) ? 0 : (int)job->pp - 1);
}

/** Seconds for which a rank waits in a step, if all ranks have equal work. */
double tt_cluster_bubble(const struct tt_cluster_job *job, const struct tt_cluster_passes *pass);

/* Activations that a rank keeps for backward, in units of one microbatch in all layers of the rank. */
struct tt_cluster_held {
    double most;    /* the most at any time */
    double now;     /* of these, the microbatches between the two parts of their backward */
    double pending; /* when most weight parts are still to come: microbatches that were recomputed */
    double beside;  /* the number of other microbatches at that time */
};

struct tt_cluster_held tt_cluster_held(const struct tt_cluster_job *job, int rank);

/* The simulated lanes of a step. */
struct tt_cluster_lanes {
    struct tt_pipeline *pipeline;
    struct tt_pipeline_run run;
    struct tt_cluster_passes pass; /* seconds of a rank whose work is the mean */
    /* microbatches that are simulated; fewer than the job's if these would make too many turns */
    int microbatches;
};

/**
 * Simulates the pipeline of a job with more than one stage. TT_EUSAGE: the schedule does not work with these numbers.
 * The caller releases the result.
 */
int tt_cluster_lanes_make(const struct tt_cluster_job *job, int most_turns,
                          struct tt_cluster_lanes *ret_lanes) TT_MUST_CHECK;
void tt_cluster_lanes_release(struct tt_cluster_lanes *lanes);

#endif
