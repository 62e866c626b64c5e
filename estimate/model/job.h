/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_MODEL_JOB_H
#define TT_ESTIMATE_MODEL_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "estimate/hardware/machine.h"
#include "parallel/pipeline/schedule.h"

/* Latent attention: the ranks of the latents of keys and values, and of queries (0: there is none), and the widths of
 * a head. */
struct tt_cluster_latent {
    double key_rank, query_rank, rope, nope, value;
};

/* The sizes of a decoder model, as far as time and memory depend on them. */
struct tt_cluster_shape {
    double dim, layers, heads, kv_heads, head_dim, ffn, vocab;
    bool gated;                      /* three matrices in the feed-forward layer, not two */
    bool tied;                       /* the output shares the embedding */
    double params;                   /* all parameters; 0: from the sizes */
    double experts, active, moe_ffn; /* experts of a layer, how many a token uses, their width; 0: dense */
    double shared_ffn, dense_layers; /* width of the shared experts; layers without experts */
    double score_dim; /* width of a head in the scores, if it is not head_dim; else 0: attention is latent */
    struct tt_cluster_latent latent; /* its sizes; key_rank 0: unknown */
    double window, window_layers;    /* tokens that such layers attend to; 0: all */
    double groups, groups_met;       /* of experts, and how many of them a token's experts may be in; 0: any */
    bool expert_bias;                /* experts add biases and clamp, as in gpt-oss */
    double mtp_layers;               /* that predict further tokens, behind the others */
    double positions;                /* with a learned row each; 0: none is learned */
};

enum tt_cluster_again {
    TT_AGAIN_NONE,
    TT_AGAIN_OP,        /* torchtitan's selective op: every second product, and all that is cheap */
    TT_AGAIN_LAYERS,    /* the whole of some layers (again_layers of them) */
    TT_AGAIN_ATTENTION, /* Korthikanti's selective: the core of attention */
    TT_AGAIN_MODULES,   /* Megatron's selective: again_modules of each layer */
    TT_AGAIN_FULL,
};
enum { TT_AGAIN_KINDS = TT_AGAIN_FULL + 1 };

/* Parts of a layer that Megatron can recompute alone, as bits. */
enum tt_cluster_module {
    TT_MODULE_CORE_ATTENTION = 1,
    TT_MODULE_NORMS = 2,
    TT_MODULE_LATENT_UP = 4,   /* the products that make queries, keys and values of latents, and the rotation */
    TT_MODULE_FFN = 8,         /* the feed-forward part of layers without experts */
    TT_MODULE_EXPERTS = 16,    /* routed and shared experts with the exchange of tokens */
    TT_MODULE_EXPERT_ACT = 32, /* between the two products of an expert */
    TT_MODULE_SHARED_EXPERTS = 64,
};

/* Orders of a pipeline. The last three compute gradients of weights in turns of their own, which fill gaps. */
enum tt_cluster_order {
    TT_ORDER_1F1B,        /* with several stages on a rank Interleaved1F1B */
    TT_ORDER_ALL_FORWARD, /* GPipe, LoopedBFS: all microbatches go forward first */
    TT_ORDER_INTERLEAVED_ZERO_BUBBLE,
    TT_ORDER_ZBV_ZERO_BUBBLE, /* these two with two stages on each rank, of which the first rank has both ends */
    TT_ORDER_DUAL_PIPE_V,
};

/* One training job: what is computed, on how many devices, and how it is divided. */
struct tt_cluster_job {
    const struct tt_cluster_machine *machine;
    const struct tt_cluster_stack *stack;
    struct tt_cluster_shape shape;
    double replicate, shard, tp, pp, cp, ep;
    double expert_tp;       /* ranks that divide the matrices of an expert; 0: tp */
    bool sequence_parallel; /* activations between the products are divided by tp too */
    double virtual_stages;  /* of a rank; 1: not interleaved */
    bool split_known;       /* the next two are; else layers are shared as evenly as tables of runs let one assume */
    double first_less, last_less; /* layers as which the embeddings and the output count when stages are cut */
    const double
        *stage_layers; /* [pp x virtual_stages] layers of each stage in order, with split_known; NULL: cut so */
    enum tt_cluster_order order;
    double micro_batch; /* sequences of a microbatch on a rank of data parallelism */
    double n_micro;     /* microbatches of a step on it */
    double seq_len;
    enum tt_cluster_again again;
    double again_layers;    /* of TT_AGAIN_LAYERS */
    unsigned again_modules; /* of TT_AGAIN_MODULES */
    double gradient_bytes;  /* of an element of a gradient on the wire; 0: the stack's */
    bool keep_gathered;     /* parameters stay whole from forward to backward */
    bool float8, async_tp;
    bool float32;        /* products and gathered parameters, as titan's without mixed precision */
    bool unfused_norm;   /* norms are chains of small kernels on whole rows */
    bool float_scores;   /* unfused attention in float32, without a fused softmax */
    bool whole_logits;   /* tensor parallelism gathers them; each rank computes the whole loss */
    double loss_chunks;  /* parts in which the loss is computed; 0: one */
    int kernel;          /* of attention; -1: the stack's */
    double node_net;     /* bytes/s of a node's network cards; 0: the machine's */
    bool balanced;       /* every expert gets equally many tokens, as benchmarks force it */
    bool expert_overlap; /* the exchange of tokens runs beside the work of another microbatch */
};

/* Seconds of a step, by what they are spent on; they add up to `total`. Also bytes of the rank that needs most. */
struct tt_cluster_time {
    double gemm, attention, memory, host, tensor, context, expert, data, pipeline, bubble, optimizer, noise;
    double total;
};

struct tt_cluster_memory {
    double state, buffers, activations, logits, communicators, context, allocator;
    double allocated; /* what the framework's allocator reserves: all but communicators and context */
    double total;
    double usable; /* what the device has */
    int stage;     /* of the pipeline, which needs most */
};

enum tt_cluster_fit { TT_FIT_YES, TT_FIT_TIGHT, TT_FIT_NO };

/* Words for JSON, tables and the screen: "full", "does not fit". */
extern const char *const tt_cluster_again_words[], *const tt_cluster_fit_words[];

/** The sizes of a published model by its name in tables of runs, whatever its case; false: unknown. */
bool tt_cluster_shape_find(const char *name, struct tt_cluster_shape *ret_shape);

/** Appends the names of all of them, with spaces between; returns the one that `meant` may mean, or NULL. */
const char *tt_cluster_shape_names(const char *meant, struct tt_text *out);

/** Parts of a layer by Megatron's names, "core_attn layernorm", as bits of tt_cluster_module. Names that are none of
 * Megatron's are skipped. */
unsigned tt_cluster_modules(const char *names);

/** The names of the bits, with spaces between, appended. */
void tt_cluster_module_names(unsigned modules, struct tt_text *out);

/** Width of all heads of a token in the scores: their keys and values, on average. */
double tt_cluster_score_width(const struct tt_cluster_shape *shape);

/** Makes the attention of a shape latent: its heads get as many parameters as the five matrices have. */
void tt_cluster_shape_set_latent(struct tt_cluster_shape *shape, const struct tt_cluster_latent *latent);

/** All devices of the job, and tokens of a step. */
double tt_cluster_devices(const struct tt_cluster_job *job);
double tt_cluster_tokens(const struct tt_cluster_job *job);

/** Parameters of the whole model, of one block, and of the embedding (the output has as many if it is not tied). */
double tt_cluster_params(const struct tt_cluster_shape *shape);
double tt_cluster_block_params(const struct tt_cluster_shape *shape, bool experts);

/** The device's peak for products in the job's type, in flop/s. */
double tt_cluster_peak_flops(const struct tt_cluster_job *job);

/** Model flops of a token: 6 per parameter of a product and 12 layers x dim x sequence of attention. */
double tt_cluster_token_flops(const struct tt_cluster_shape *shape, double seq_len);

/** Ranks over which parameters are sharded, and ranks that have copies of these shards, whose gradients are summed. */
double tt_cluster_shards(const struct tt_cluster_job *job);
double tt_cluster_copies(const struct tt_cluster_job *job);

/** Bytes of an element of a gradient on the wire: the job's, or the stack's. */
double tt_cluster_gradient_bytes(const struct tt_cluster_job *job);

/**
 * Parameters of all routed experts, the ranks that divide each matrix of them, and the ranks over which a rank's part
 * of them is sharded and copied: ranks of ep have different experts, so fewer share one.
 */
double tt_cluster_expert_params(const struct tt_cluster_shape *shape);
double tt_cluster_expert_tp(const struct tt_cluster_job *job);
double tt_cluster_expert_shards(const struct tt_cluster_job *job);
double tt_cluster_expert_copies(const struct tt_cluster_job *job);

/** Layers of the rank of a pipeline that has most, if layers are shared evenly. */
double tt_cluster_stage_layers(const struct tt_cluster_job *job);

/** Predicts the time of a step. Pure arithmetic: equal jobs give equal times. */
void tt_cluster_step(const struct tt_cluster_job *job, struct tt_cluster_time *ret_time);

/* A part of a step, in the order of struct tt_cluster_time; the title is longer. */
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

/** Predicts the memory of a rank of a stage of the pipeline, from 0; and of the rank that needs most. */
void tt_cluster_stage_peak(const struct tt_cluster_job *job, int stage, struct tt_cluster_memory *m);
void tt_cluster_peak(const struct tt_cluster_job *job, struct tt_cluster_memory *ret_memory);

/** Fits with a margin of max(2 GiB, 4 %): yes; within the margin: tight. */
enum tt_cluster_fit tt_cluster_fits(const struct tt_cluster_memory *memory);

/**
 * The sizes of a model from Hugging Face's config.json, whatever its architecture, as far as time and memory depend on
 * them: attention with fewer heads for keys and values, latent attention, experts with shared ones and first dense
 * layers. `where` names the file. TT_EDATA: a size is missing, or is not a number above 0.
 */
int tt_cluster_shape_of_hf(const json_t *file, const char *where, struct tt_cluster_shape *ret_shape) TT_MUST_CHECK;

/**
 * The schedules of pipelines: how long ranks wait and how much they hold. Everything is that of the orders that
 * parallel/pipeline makes, by formulas or by its simulator.
 */

/* Seconds that one microbatch takes in all stages of a rank together. */
struct tt_cluster_passes {
    double forward;
    double input;  /* the part of backward that other stages wait for, recomputation included */
    double weight; /* the weight part */
};

/** The schedule of the job by torchtitan's name. */
enum tt_pipeline_schedule tt_cluster_schedule(const struct tt_cluster_job *job);
const char *tt_cluster_schedule_name(const struct tt_cluster_job *job);

/** Whether backward is two turns, so that gradients of weights fill gaps. */
bool tt_cluster_splits(const struct tt_cluster_job *job);

/**
 * Whether the stages go down the ranks and come back, so that the first rank has both ends of the model. There is no
 * formula for the bubble of such a schedule: tt_cluster_bubble runs the simulator.
 */
bool tt_cluster_is_v(const struct tt_cluster_job *job);

/**
 * Whether a configuration of the job's trainer can say its stages. Those of Megatron's kind divide the layers, or these
 * and one for each end of the model; others have a number of layers of a stage, *ret_each, in which the ends of the
 * model count as *ret_ends layers: as many as the job says, else 2, 1 or 0.
 */
bool tt_cluster_layers_per_stage(const struct tt_cluster_job *job, double *ret_each, double *ret_ends);

/** Layers, and what embeddings and output count as: what the stages share. For jobs with split_known. */
double tt_cluster_split_units(const struct tt_cluster_job *job);

/** Layers of all stages of a rank; of the rank with most layers if the split is not known. */
double tt_cluster_rank_layers(const struct tt_cluster_job *job, int rank);

/** Whether a rank has the output: the last, or the first if stages come back to it. */
bool tt_cluster_has_output(const struct tt_cluster_job *job, int rank);

/** Seconds in which a rank waits in a step, if all ranks have equal work. */
double tt_cluster_bubble(const struct tt_cluster_job *job, const struct tt_cluster_passes *pass);

/* What a rank holds for backward, in microbatches of all of its layers. */
struct tt_cluster_held {
    double most;    /* at most */
    double now;     /* of them, between the two parts of its backward */
    double pending; /* when most weight parts are still to come: of so many, whose recomputation is done */
    double beside;  /* and at that time, of so many others */
};

struct tt_cluster_held tt_cluster_held(const struct tt_cluster_job *job, int rank);

/* The lanes of a step. */
struct tt_cluster_lanes {
    struct tt_pipeline *pipeline;
    struct tt_pipeline_run run;
    struct tt_cluster_passes pass; /* of the mean stage's rank */
    int microbatches;              /* that were simulated, so that there are at most so many turns as was asked for */
};

/**
 * Simulates the pipeline of a job with more than one stage. TT_EUSAGE: the schedule cannot have these numbers. The
 * caller releases the result.
 */
int tt_cluster_lanes_make(const struct tt_cluster_job *job, int most_turns,
                          struct tt_cluster_lanes *ret_lanes) TT_MUST_CHECK;
void tt_cluster_lanes_release(struct tt_cluster_lanes *lanes);

#endif
