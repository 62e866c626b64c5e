/* SPDX-License-Identifier: MIT
 *
 * The engine: graphs → layout → schedule → program → arena → executor and transfers, for training and for validation.
 */
#include "parallel/engine/engine.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/graph/pieces.h"
#include "core/kernels/matmul.h"
#include "core/passes/autodiff.h"
#include "core/passes/divide.h"
#include "core/passes/phases.h"
#include "core/program/executor.h"
#include "core/program/internal.h"
#include "core/program/program.h"
#include "parallel/comm/collectives.h"
#include "parallel/engine/agree.h"
#include "parallel/engine/transfer.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/fsdp/usage.h"
#include "parallel/pipeline/crossings.h"
#include "parallel/planner/planner.h"

/*
 * --- samples ---
 *
 * The samples of a program's microbatches, which the caller of the engine writes. With context parallelism
 * (core/graph/pieces.h) all ranks of TT_GROUP_CP get the same whole sequences here, and before a run each rank copies
 * its pieces into the inputs of the program. Otherwise the samples are the inputs themselves.
 */
struct samples {
    const struct tt_executor *executor;
    int64_t batch, seq_len;
    int microbatches;
    struct tt_pieces pieces;              /* of this rank */
    int32_t *tokens, *labels, *positions; /* [microbatches], each (batch, seq_len); NULL if not needed */
};

/* Bytes of the whole samples, a multiple of 64; 0 if the samples are the program's inputs. */
static int64_t bytes_of_samples(const struct tt_mesh *mesh, int64_t batch, int64_t seq_len, int microbatches,
                                bool documents)
{
    int arrays = mesh->cp_grains <= 1 ? 0 : documents ? 3 : 2;

    return tt_arena_bytes((int64_t)sizeof(int32_t) * arrays * microbatches * batch * seq_len);
}

/* The arrays of microbatch a, each (batch, seq_len). Waits until the device has done all earlier work. */
static struct tt_inputs inputs_of(const struct samples *s, int a)
{
    int64_t at = a * s->batch * s->seq_len;

    if (s->pieces.grains <= 1)
        return tt_executor_inputs(s->executor, a);
    return (struct tt_inputs){s->tokens + at, s->labels + at, s->positions ? s->positions + at : NULL};
}

/* The first token of the rank's i-th piece of every sequence. */
static int64_t begin_of(const struct samples *s, int64_t i)
{
    return tt_piece_at(&s->pieces, tt_pieces_first(&s->pieces) + i) * (s->seq_len / tt_pieces_count(&s->pieces));
}

/* Copies this rank's pieces of `whole`, (batch, seq_len). If `whole` is NULL, writes each token's position in its
 * sequence. */
static void take(const struct samples *s, const int32_t *whole, int32_t *part)
{
    int64_t length = s->seq_len / tt_pieces_count(&s->pieces);

    for (int64_t i = 0; i < tt_pieces_own(&s->pieces); i++)
        for (int64_t b = 0; b < s->batch; b++, part += length) {
            if (whole)
                memcpy(part, whole + b * s->seq_len + begin_of(s, i), (size_t)length * sizeof *part);
            for (int64_t t = 0; !whole && t < length; t++)
                part[t] = (int32_t)(begin_of(s, i) + t);
        }
}

/* Writes this rank's part of all microbatches to the inputs of the program. */
static void shard_samples(const struct samples *s)
{
    for (int a = 0; s->pieces.grains > 1 && a < s->microbatches; a++) {
        struct tt_inputs whole = inputs_of(s, a), part = tt_executor_inputs(s->executor, a);

        take(s, whole.tokens, part.tokens);
        take(s, whole.labels, part.labels);
        take(s, whole.positions, part.positions);
    }
}

/* --- graphs --- */

/* The split of a graph over ranks. */
struct parts {
    struct tt_divisions layers;
    struct tt_experts_division experts;
};

/* The split of a graph for a rank of the mesh; {0}: none. */
static struct parts parts_of(const struct tt_engine_options *o, int rank)
{
    const struct tt_mesh *mesh = &o->mesh;
    struct tt_place tp = tt_mesh_place(mesh, rank, TT_GROUP_TP), cp = tt_mesh_place(mesh, rank, TT_GROUP_CP);
    struct tt_place ep = tt_mesh_place(mesh, rank, TT_GROUP_EP);
    struct parts parts = {0};

    if (mesh->tp_grains > 1)
        parts.layers.tp = (struct tt_division){{TT_AXIS_TP, tp.n, tp.index}, mesh->tp_grains};
    if (mesh->cp_grains > 1)
        parts.layers.cp = (struct tt_division){{TT_AXIS_CP, cp.n, cp.index}, mesh->cp_grains};
    parts.layers.mirrored = mesh->cp_mirrored;
    parts.layers.gathers = mesh->cp_gathers;
    if (ep.n > 1)
        parts.experts = (struct tt_experts_division){.peers = {TT_AXIS_EP, ep.n, ep.index},
                                                     .window = o->moe_window > 0.0 ? o->moe_window : TT_MOE_WINDOW,
                                                     .round_leaves = o->reduce_dtype == TT_BF16};
    return parts;
}

static bool divides_layers(const struct parts *parts)
{
    return parts->layers.tp.grains > 1 || parts->layers.cp.grains > 1;
}

/* The part of the model's forward graph that this rank computes. */
static int divided_model(const struct tt_engine_options *o, const struct parts *parts, enum tt_graph_mode mode,
                         int64_t batch, int64_t seq_len, struct tt_graph **ret_graph)
{
    struct tt_graph *whole = NULL, *part = NULL;
    int rc = 0;

    if (parts->layers.tp.peers.n > 1 && o->model->dims.moe.experts && parts->experts.peers.n <= 1)
        return tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.tensor_parallel_degree),
                           "%d, but tensor parallelism does not divide experts\nhelp: set %s to a multiple of it",
                           parts->layers.tp.peers.n, TT_KEY_NAME(parallelism.expert_parallel_degree));
    TT_TRY(tt_model_graph(o->model, mode, o->param_dtype, batch, seq_len, o->documents, &whole, NULL));
    if (divides_layers(parts)) {
        TT_TRY(tt_graph_divide(whole, &parts->layers, &part));
        tt_graph_free(whole);
        whole = part;
    }
    TT_TRY(tt_graph_divide_experts(whole, &parts->experts));
    *ret_graph = whole;
    whole = NULL;
out:
    tt_graph_free(whole);
    return rc;
}

/* param_grad is NULL for the forward pass alone. */
static int cut_model(const struct tt_engine_options *o, const struct parts *parts, int n_stages, int64_t batch,
                     int64_t seq_len, struct tt_stage *stages, int *param_grad)
{
    struct tt_graph *graph = NULL;
    int *stage_of = NULL, rc = 0;

    TT_TRY(divided_model(o, parts, param_grad ? TT_GRAPH_FORWARD : TT_GRAPH_VALIDATE, batch, seq_len, &graph));
    stage_of = tt_calloc((size_t)graph->n_nodes, sizeof *stage_of);
    if (o->places)
        tt_graph_stages_by_place(graph, o->model, o->places, stage_of);
    else
        tt_graph_stages_by_block(graph, n_stages, stage_of);
    TT_TRY(tt_graph_cut(graph, stage_of, n_stages, stages));
    if (!param_grad)
        goto out;
    TT_TRY(tt_stages_differentiate(stages, n_stages));
    for (int p = 0; p < o->model->n_params; p++)
        param_grad[p] = TT_NONE;
    for (int s = 0; s < n_stages; s++)
        for (int v = 0; v < stages[s].graph->n_values; v++) {
            const struct tt_value *value = &stages[s].graph->values[v];

            if (value->kind == TT_VALUE_PARAM && value->part == 0) /* for a tied weight: its use as the embedding */
                param_grad[value->param] = stages[s].grad[v];
        }
out:
    tt_free(stage_of);
    tt_graph_free(graph);
    return rc;
}

/* Releases the stages of other ranks, and notes which neighbouring stages are on other ranks. Returns the number of
 * this rank's stages. */
static int keep_own(const struct tt_stage_places *places, int pp, struct tt_stage *stages)
{
    int own = 0;

    for (int s = 0; s < places->n_stages; s++) {
        int before = s > 0 ? places->rank_of_stage[s - 1] : pp;
        int after = s + 1 < places->n_stages ? places->rank_of_stage[s + 1] : pp;

        if (places->rank_of_stage[s] != pp) {
            tt_stages_release(&stages[s], 1);
            continue;
        }
        stages[s].before = (struct tt_stage_neighbour){before != pp, before};
        stages[s].after = (struct tt_stage_neighbour){after != pp, after};
        if (own != s) {
            stages[own] = stages[s];
            memset(&stages[s], 0, sizeof stages[s]);
        }
        own++;
    }
    return own;
}

/*
 * The graphs of one microbatch on a rank: the model's graph, or this rank's stages of it in ascending order. If the
 * mesh has grains, the forward graph is first split over the ranks that share a layer or a sequence. For training, the
 * graphs are differentiated, and then contain the auxiliary losses, the nodes that recompute activations and, with
 * TT_REDUCE_LAST, carried gradients.
 *   ret_stages  [*ret_n] the caller's (tt_stages_release, tt_free)
 */
static int make_graphs(const struct tt_engine_options *o, int rank, enum tt_graph_mode mode, int64_t batch,
                       int64_t seq_len, struct tt_stage **ret_stages, int *ret_n)
{
    struct parts parts = parts_of(o, rank);
    bool trains = mode == TT_GRAPH_TRAIN;
    int *param_grad = trains ? tt_calloc((size_t)o->model->n_params, sizeof *param_grad) : NULL, rc = 0;
    int n = o->places ? o->places->n_stages : o->n_stages;
    struct tt_stage *stages = tt_calloc((size_t)n, sizeof *stages);

    if (n == 1 && !divides_layers(&parts) && parts.experts.peers.n == 0)
        TT_TRY(
            tt_model_graph(o->model, mode, o->param_dtype, batch, seq_len, o->documents, &stages[0].graph, param_grad));
    else
        TT_TRY(cut_model(o, &parts, n, batch, seq_len, stages, param_grad));
    for (int p = 0; trains && p < o->model->n_params; p++)
        if (param_grad[p] == TT_NONE && !o->model->params[p].frozen)
            TT_TRY(tt_fail(TT_EINTERNAL, "parameter %s has no gradient", o->model->params[p].name));
    if (o->places)
        n = keep_own(o->places, tt_mesh_place(&o->mesh, rank, TT_GROUP_PP).index, stages);
    for (int s = 0; s < n; s++) {
        struct tt_graph *graph = stages[s].graph;

        if (trains) {
            TT_TRY(tt_graph_add_z_loss(graph, o->z_loss));
            TT_TRY(tt_graph_add_router_losses(graph, &o->router_losses));
            tt_graph_recompute(graph, &o->recompute);
            if (o->reduce == TT_REDUCE_LAST)
                TT_TRY(tt_graph_carry_gradients(graph));
        }
        TT_TRY(tt_graph_phase_head(graph)); /* last */
    }
    *ret_stages = stages;
    *ret_n = n;
    stages = NULL;
out:
    if (stages)
        tt_stages_release(stages, n);
    tt_free(stages);
    tt_free(param_grad);
    return rc;
}

/* --- orders of compute --- */

/* The microbatches of one run through the pipeline; 0: there is none. */
static int run_microbatches(const struct tt_engine_options *options, enum tt_graph_mode mode, int microbatches)
{
    if (!options->pipeline)
        return 0;
    return mode == TT_GRAPH_TRAIN ? options->pipeline->microbatches : microbatches;
}

/* The order of a pipeline rank, and its transfers. The caller releases both; the stages must outlive the crossings. */
static void order_of_stages(const struct tt_engine_options *options, int pp, enum tt_graph_mode mode,
                            const struct tt_stage *stages, int microbatches, struct tt_order *ret_order,
                            struct tt_crossings *ret_crossings)
{
    const struct tt_pipeline *pipeline = options->pipeline;
    struct tt_order *orders = tt_calloc((size_t)pipeline->ranks, sizeof *orders);
    struct tt_peers peers = {.orders = orders,
                             .ranks = pipeline->ranks,
                             .rank = pp,
                             .run_microbatches = run_microbatches(options, mode, microbatches),
                             .rank_of_stage = pipeline->rank_of_stage,
                             .n_stages = pipeline->n_stages};

    for (int rank = 0; rank < pipeline->ranks; rank++) { /* one run after another, or forward only */
        if (mode != TT_GRAPH_TRAIN)
            orders[rank] = tt_pipeline_forward_order(pipeline, rank, microbatches);
        for (int first = 0; mode == TT_GRAPH_TRAIN && first < microbatches; first += pipeline->microbatches)
            for (int t = 0; t < pipeline->orders[rank].n; t++) {
                const struct tt_turn *turn = &pipeline->orders[rank].turns[t];

                tt_order_add(&orders[rank], first + turn->microbatch, turn->stage, turn->pass);
            }
    }
    for (int t = 0; t < orders[pp].n; t++) {
        const struct tt_turn *turn = &orders[pp].turns[t];
        int own = 0; /* the stage's index among this rank's */

        while (stages[own].number != turn->stage)
            own++;
        tt_order_add(ret_order, turn->microbatch, own, turn->pass);
    }
    *ret_crossings = tt_crossings_make(ret_order, stages, &peers);
    for (int rank = 0; rank < pipeline->ranks; rank++)
        tt_order_release(&orders[rank]);
    tt_free(orders);
}

/* --- the cause of a value that is not finite --- */

/* All ranks take over the error message of the rank that found the first bad value (of the lowest rank, if several
 * found it). */
static int agree_on_culprit(struct tt_comm *comm, const char *first, const struct tt_bad_value *found)
{
    double own = found->name[0] ? -(double)found->order : -DBL_MAX, earliest = own;
    int rc = 0;

    TT_TRY(tt_comm_max_f64(comm, &earliest, 1));
    if (found->name[0] && own == earliest)
        rc = tt_fail(TT_ENONFINITE, "%s; the first value that is not finite is %s", first, found->name);
    rc = tt_comm_agree(comm, rc);
out:
    return rc;
}

/*
 * Replaces the eager program by the planned one of the same step, and sets which units of the layout are resharded.
 *   step_limit largest size of the step region in bytes; INT64_MAX: no limit
 * Errors: as tt_planner_run.
 */
static int plan_ahead(const struct tt_engine_options *options, struct tt_layout *layout,
                      const struct tt_lowering *lowering, const struct tt_usage *usage, int64_t step_limit,
                      struct tt_program **program)
{
    bool *reshard = tt_calloc((size_t)layout->n_units, sizeof *reshard);
    struct tt_program *planned;
    struct tt_planner planner = {.lowering = lowering,
                                 .usage = usage,
                                 .eager = *program,
                                 .machine = &options->machine,
                                 .prefetch = options->prefetch,
                                 .bucket_bytes = options->bucket_bytes,
                                 .step_limit = step_limit,
                                 .reshard = reshard,
                                 .choose_reshard = options->choose_reshard_by_limit};
    int rc = 0;

    for (int u = 0; u < layout->n_units; u++)
        reshard[u] = layout->units[u].reshard_after_forward;
    TT_TRY(tt_planner_run(&planner, &planned));
    tt_program_free(*program);
    *program = planned;
    for (int u = 0; u < layout->n_units; u++)
        layout->units[u].reshard_after_forward = reshard[u];
out:
    tt_free(reshard);
    return rc;
}

/* --- the engine --- */

/* A program and everything that it needs to run. */
struct track {
    struct tt_stage *stages; /* stages of this rank */
    int n_stages;
    struct tt_program *program;
    struct tt_executor *executor;
    struct tt_transfers *transfers;
    struct samples samples;
    int64_t *numbers; /* of its microbatches in a step, if it trains */
};

struct tt_engine {
    struct tt_engine_options options;
    struct tt_comm *comm;
    int rank;
    bool lends_schedule; /* the ranks that share its layers take over its schedule (plan_like_first) */
    struct tt_layout *layout;
    struct track train, validate;
    struct tt_state state;
    struct tt_team *team;
    struct tt_device *device;
    struct tt_device_stream *stream;
    char *arena;
    size_t arena_bytes;
};

/* Only training needs moments and averages. */
bool tt_engine_has(const struct tt_engine_options *options, enum tt_state_array array)
{
    if (array == TT_STATE_PARAM)
        return true;
    return options->local_batch && (array != TT_STATE_EMA || options->averages);
}

/* The bytes of an array, 0 if the state does not have it. */
static int64_t array_bytes(const struct tt_engine *e, enum tt_state_array array)
{
    return tt_engine_has(&e->options, array) ? tt_state_bytes(array, e->layout, e->options.shard_dtype) : 0;
}

static int64_t state_bytes(const struct tt_engine *e)
{
    int64_t bytes = 0;

    for (enum tt_state_array k = 0; k < TT_STATE_ARRAYS; k++)
        bytes += array_bytes(e, k);
    return bytes;
}

/* The bytes of the whole samples of training and of validation, from which each rank copies its pieces before a run. */
static int64_t samples_bytes(const struct tt_engine_options *o)
{
    int64_t train = bytes_of_samples(&o->mesh, o->local_batch, o->seq_len, o->microbatches, o->documents);

    return train + bytes_of_samples(&o->mesh, o->validation_batch, o->validation_seq_len, 1, o->documents);
}

int tt_engine_block(const struct tt_engine_options *o)
{
    if (o->reduce == TT_REDUCE_EACH || tt_mesh_size(&o->mesh, TT_GROUP_FSDP) == 1)
        return 1; /* without shard ranks nothing is reduced, and the order of the sum is the same */
    return o->reduce == TT_REDUCE_RUNS && o->pipeline ? o->pipeline->microbatches : o->microbatches;
}

/* How many microbatches' whole gradients a program adds; 1 with carried gradients, which need no addition. */
static int added_block(const struct tt_engine *e, enum tt_graph_mode mode)
{
    return mode == TT_GRAPH_TRAIN && e->options.reduce == TT_REDUCE_RUNS ? tt_engine_block(&e->options) : 1;
}

/* The track of training if the engine trains, else the track of validation. */
static const struct track *main_track(const struct tt_engine *e)
{
    return e->train.program ? &e->train : &e->validate;
}

/* The part of the memory limit that is left for the step region. */
static int64_t step_limit(const struct tt_engine *e, const struct tt_program *program)
{
    const struct tt_program *validate = e->validate.program;

    if (!e->options.memory_limit)
        return INT64_MAX;
    return e->options.memory_limit - state_bytes(e) - samples_bytes(&e->options) -
           tt_arena_bytes(program->const_bytes) - (validate ? tt_arena_bytes(validate->const_bytes) : 0);
}

/* The arguments of lowering for a track whose stages exist. */
static struct tt_lowering lowering_of(const struct tt_engine *e, enum tt_graph_mode mode, int microbatches,
                                      const struct track *track)
{
    return (struct tt_lowering){.stages = track->stages,
                                .n_stages = track->n_stages,
                                .layout = e->layout,
                                .microbatches = microbatches,
                                .run_microbatches = run_microbatches(&e->options, mode, microbatches),
                                .block = added_block(e, mode),
                                .threads = e->options.threads,
                                .muon_steps = e->options.muon_steps,
                                .shard_dtype = e->options.shard_dtype,
                                .averages = e->options.averages && mode == TT_GRAPH_TRAIN,
                                .param_dtype = e->options.param_dtype,
                                .reduce_dtype = e->options.reduce_dtype,
                                .keeps_schedule = e->lends_schedule,
                                .staging = tt_collective_staging};
}

static int plan_track(struct tt_engine *e, enum tt_graph_mode mode, int64_t batch, int64_t seq_len, int microbatches,
                      struct track *track)
{
    struct tt_schedule schedule = {0};
    struct tt_order order = {0};
    struct tt_crossings crossings = {0};
    struct tt_usage usage = {0};
    struct tt_fsdp fsdp = {.usage = &usage, .prefetch = e->options.prefetch};
    struct tt_lowering lowering;
    bool trains = mode == TT_GRAPH_TRAIN;
    int rc = 0;

    TT_TRY(make_graphs(&e->options, e->rank, mode, batch, seq_len, &track->stages, &track->n_stages));
    lowering = lowering_of(e, mode, microbatches, track);
    if (e->options.pipeline)
        order_of_stages(&e->options, e->layout->groups[TT_GROUP_PP].index, mode, track->stages, microbatches, &order,
                        &crossings);
    else if (e->options.order && trains)
        order = e->options.order(&e->options);
    else
        order = tt_order_accumulate(microbatches, track->n_stages, trains);
    if (order.microbatches != microbatches)
        TT_TRY(tt_fail(TT_EINTERNAL, "the order of compute has %d microbatches, but the step has %d",
                       order.microbatches, microbatches));
    TT_TRY(tt_usage_make(&order, track->stages, track->n_stages, e->layout, added_block(e, mode), &usage));
    usage.crossings = crossings;
    crossings = (struct tt_crossings){0};
    usage.run_microbatches = lowering.run_microbatches;
    tt_fsdp_schedule(&fsdp, &schedule);
    TT_TRY(tt_program_new(&lowering, &schedule, &track->program));
    if (trains && e->options.scheduler == TT_ENGINE_PLANNED)
        TT_TRY(plan_ahead(&e->options, e->layout, &lowering, &usage, step_limit(e, track->program), &track->program));
out:
    tt_schedule_release(&schedule);
    tt_usage_release(&usage);
    tt_crossings_release(&crossings);
    tt_order_release(&order);
    return rc;
}

/* --- ranks that share layers --- */

static int new_engine(const struct tt_engine_options *options, struct tt_comm *comm, int rank, bool lends_schedule,
                      struct tt_engine **ret_engine);

/* Only a rank's place along tp affects the cost of its layers: all parts of a sequence have the same size. */
static int first_that_shares(const struct tt_engine *e)
{
    return tt_mesh_member(&e->options.mesh, e->rank, TT_GROUP_TP, 0);
}

/*
 * Ranks that share layers exchange in the same order, so they need the same schedule. But the planner's choice depends
 * on costs, and the last rank may have fewer rows of the vocabulary than the others. So each rank plans as the first of
 * these ranks would, which has the largest part, and lowers that schedule with its own shapes.
 */
static int plan_like_first(struct tt_engine *e)
{
    const struct tt_engine_options *o = &e->options;
    struct track *track = &e->train;
    struct tt_engine *first = NULL;
    struct tt_lowering lowering;
    int rc = 0;

    TT_TRY(new_engine(o, e->comm, first_that_shares(e), true, &first));
    TT_TRY(make_graphs(o, e->rank, TT_GRAPH_TRAIN, o->local_batch, o->seq_len, &track->stages, &track->n_stages));
    for (int s = 0; s < track->n_stages; s++) /* a schedule names nodes by their numbers */
        if (track->n_stages != first->train.n_stages ||
            track->stages[s].graph->n_nodes != first->train.stages[s].graph->n_nodes)
            TT_TRY(tt_fail(TT_EINTERNAL, "the graphs of ranks that share layers differ in stage %d",
                           track->stages[s].number));
    for (int u = 0; u < e->layout->n_units; u++)
        e->layout->units[u].reshard_after_forward = first->layout->units[u].reshard_after_forward;
    lowering = lowering_of(e, TT_GRAPH_TRAIN, o->microbatches, track);
    lowering.free_early = first->train.program->frees_early;
    TT_TRY(tt_program_new(&lowering, first->train.program->schedule, &track->program));
out:
    tt_engine_free(first);
    return rc;
}

static int new_engine(const struct tt_engine_options *options, struct tt_comm *comm, int rank, bool lends_schedule,
                      struct tt_engine **ret_engine)
{
    struct tt_engine *e = tt_calloc(1, sizeof *e);
    int rc = 0;

    e->options = *options;
    e->lends_schedule = lends_schedule;
    if (e->options.machine.sgemm_flops == 0.0)
        e->options.machine = tt_machine_builtin();
    e->device = options->device ? options->device : tt_device_host();
    if (e->options.n_stages == 0)
        e->options.n_stages = 1;
    if (options->shard_dtype != TT_F32 && options->shard_dtype != options->param_dtype)
        TT_TRY(tt_fail(TT_EINTERNAL, "weights in %s do not compute in %s", tt_dtype_name(options->shard_dtype),
                       tt_dtype_name(options->param_dtype)));
    e->comm = comm;
    if (comm)
        comm->adds_doubles = options->param_dtype == TT_F64;
    e->rank = rank;
    TT_TRY(tt_layout_new(options->model, &options->mesh, rank, &options->sharding, options->places, &e->layout));
    if (options->validation_batch) /* before training, which gets the rest of the memory limit */
        TT_TRY(
            plan_track(e, TT_GRAPH_VALIDATE, options->validation_batch, options->validation_seq_len, 1, &e->validate));
    if (options->local_batch && options->scheduler == TT_ENGINE_PLANNED && first_that_shares(e) != rank)
        TT_TRY(plan_like_first(e));
    else if (options->local_batch)
        TT_TRY(plan_track(e, TT_GRAPH_TRAIN, options->local_batch, options->seq_len, options->microbatches, &e->train));
    *ret_engine = e;
    e = NULL;
out:
    tt_engine_free(e);
    return rc;
}

int tt_engine_new(const struct tt_engine_options *options, struct tt_comm *comm, int rank,
                  struct tt_engine **ret_engine)
{
    return new_engine(options, comm, rank, false, ret_engine);
}

static void release_track(struct track *track)
{
    tt_transfers_free(track->transfers);
    tt_executor_free(track->executor);
    tt_free(track->numbers);
    tt_program_free(track->program);
    if (track->stages)
        tt_stages_release(track->stages, track->n_stages);
    tt_free(track->stages);
}

void tt_engine_free(struct tt_engine *e)
{
    if (!e)
        return;
    if (e->stream)
        e->device->ops->stream_free(e->stream); /* released first, because its work uses everything else */
    release_track(&e->train);
    release_track(&e->validate);
    if (e->team)
        e->comm->team = NULL;
    tt_team_free(e->team);
    tt_state_release(&e->state);
    if (e->arena)
        e->device->ops->release(e->device, e->arena, e->arena_bytes);
    tt_layout_free(e->layout);
    tt_free(e);
}

struct tt_engine_memory tt_engine_memory(const struct tt_engine *e)
{
    const struct tt_program *programs[] = {e->train.program, e->validate.program}, *first = main_track(e)->program;
    struct tt_engine_memory m = {0};

    m.state = state_bytes(e);
    for (int i = 0; i < 2; i++) {
        m.constants += programs[i] ? tt_arena_bytes(programs[i]->const_bytes) : 0;
        if (programs[i] && programs[i]->step_bytes > m.step)
            m.step = programs[i]->step_bytes;
    }
    m.samples = samples_bytes(&e->options);
    m.total = m.state + m.constants + m.samples + tt_arena_bytes(m.step);
    tt_program_memory_at(first, first->peak_instr, m.by_kind);
    for (enum tt_state_array k = 0; k < TT_STATE_ARRAYS; k++)
        m.by_kind[tt_state_kind(k)] += array_bytes(e, k);
    m.by_kind[TT_MEMORY_CONST] = m.constants;
    m.by_kind[TT_MEMORY_INPUT] += m.samples;
    return m;
}

static int bind_track(struct tt_engine *e, struct track *track, int64_t batch, int64_t seq_len, char **at,
                      char *step_region)
{
    const struct tt_mesh *mesh = &e->options.mesh;
    struct tt_place cp = tt_mesh_place(mesh, e->rank, TT_GROUP_CP);
    struct samples *s = &track->samples;
    bool documents = e->options.documents;
    int rc = 0, microbatches;

    if (!track->program)
        return 0;
    microbatches = track->program->microbatches;
    track->executor = tt_executor_new(track->program, &e->state, *at, step_region, e->team, e->stream);
    *at += tt_arena_bytes(track->program->const_bytes);
    *s = (struct samples){.executor = track->executor,
                          .batch = batch,
                          .seq_len = seq_len,
                          .microbatches = microbatches,
                          .pieces = {mesh->cp_grains, mesh->cp_mirrored, 0, mesh->cp_grains / cp.n, 1}};
    s->pieces.first = cp.index * s->pieces.own;
    if (track == &e->train) {
        track->numbers = tt_calloc((size_t)microbatches, sizeof *track->numbers);
        for (int a = 0; a < microbatches; a++)
            track->numbers[a] = tt_engine_microbatch(e, a);
        tt_executor_set_microbatches(track->executor, track->numbers);
    }
    if (s->pieces.grains > 1) {
        s->tokens = (int32_t *)(void *)*at;
        s->labels = s->tokens + microbatches * batch * seq_len;
        s->positions = documents ? s->labels + microbatches * batch * seq_len : NULL;
    }
    *at += bytes_of_samples(mesh, batch, seq_len, microbatches, documents);
    if (e->comm->size > 1)
        TT_TRY(
            tt_transfers_new(e->comm, &e->options.mesh, track->program, &e->state, track->executor, &track->transfers));
out:
    return rc;
}

int tt_engine_agree(const struct tt_engine *e, struct tt_comm *comm)
{
    int rc = 0;

    if (e->train.program)
        TT_TRY(tt_program_agree(comm, &e->options.mesh, e->train.program, "the step"));
    if (e->validate.program)
        TT_TRY(tt_program_agree(comm, &e->options.mesh, e->validate.program, "validation"));
out:
    return rc;
}

int tt_engine_allocate(struct tt_engine *e)
{
    const struct tt_engine_options *o = &e->options;
    struct tt_engine_memory memory = tt_engine_memory(e);
    char *at, *step_region;
    int rc = 0, local_rank, local_size;

    TT_TRY(tt_engine_agree(e, e->comm));
    tt_comm_node(e->comm, &local_rank, &local_size);
    TT_TRY(tt_team_new(e->options.threads, &e->team));
    tt_team_share(e->team, local_size);
    e->comm->team = e->team;
    e->arena_bytes = (size_t)memory.total + tt_sums_bytes(e->layout);
    e->arena = at = e->device->ops->allocate(e->device, e->arena_bytes);
    if (!at) {
        rc = tt_fail(TT_EFIT,
                     "the system refused %lld bytes for this rank's arena\nhelp: use more ranks or a smaller %s",
                     (long long)memory.total, TT_KEY_NAME(training.local_batch_size));
        goto out;
    }
    TT_TRY(tt_blas_check_room(e->options.threads));
    TT_TRY(e->device->ops->stream_new(e->device, &e->stream));
    e->state.sums = (struct tt_exact *)(void *)(e->arena + memory.total);
    step_region = at + memory.state + memory.constants + memory.samples;
    /* the state comes first, then the constants and samples of each program, then the step region that they share */
    e->state.dtype = o->shard_dtype;
    for (enum tt_state_array k = 0; k < TT_STATE_ARRAYS; k++)
        if (tt_engine_has(o, k))
            at = tt_state_add(&e->state, k, e->layout, at);
    TT_TRY(bind_track(e, &e->train, o->local_batch, o->seq_len, &at, step_region));
    TT_TRY(bind_track(e, &e->validate, o->validation_batch, o->validation_seq_len, &at, step_region));
out:
    return rc;
}

int tt_engine_init_params(struct tt_engine *e, uint64_t seed)
{
    int rc = tt_engine_synchronize(e);

    return rc < 0 ? rc
                  : tt_init_params(e->team, e->layout, e->options.model, e->options.init, seed, e->state.dtype,
                                   e->state.array[TT_STATE_PARAM]);
}

int tt_engine_init_trained(struct tt_engine *e, uint64_t seed)
{
    int rc = tt_engine_synchronize(e);

    if (rc == 0)
        tt_init_trained(e->team, e->layout, e->options.model, seed, e->state.dtype, e->state.array[TT_STATE_PARAM]);
    return rc;
}

int64_t tt_engine_init_bytes(const struct tt_engine *e, enum tt_init_choice how)
{
    struct tt_engine_memory memory = tt_engine_memory(e);

    return memory.state + memory.constants + memory.samples + tt_init_buffer_bytes(e->layout, e->options.model, how);
}

int64_t tt_engine_microbatch(const struct tt_engine *e, int a)
{
    return tt_mesh_microbatch(&e->options.mesh, e->rank, e->options.microbatches, tt_engine_block(&e->options), a);
}

struct tt_inputs tt_engine_inputs(const struct tt_engine *e, int a)
{
    return inputs_of(&e->train.samples, a);
}

int64_t tt_engine_valid_labels(const struct tt_engine *e, int a)
{
    const struct samples *s = &e->train.samples;
    int64_t length = s->seq_len / tt_pieces_count(&s->pieces), valid = 0;
    const int32_t *labels = inputs_of(s, a).labels;

    for (int64_t i = 0; i < tt_pieces_own(&s->pieces); i++)
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t t = begin_of(s, i); t < begin_of(s, i) + length; t++)
                valid += labels[b * s->seq_len + t] >= 0;
    return valid;
}

struct tt_inputs tt_engine_validation_inputs(const struct tt_engine *e)
{
    return inputs_of(&e->validate.samples, 0);
}

/* A number rounded to float. gcc 12 drops both conversions when it makes a vector of two numbers. */
static double as_float(double number)
{
    volatile float rounded = (float)number;

    return (double)rounded;
}

int tt_engine_step(struct tt_engine *e, struct tt_step *step)
{
    const struct tt_engine_options *o = &e->options;
    double all = (double)o->local_batch * (double)o->seq_len * o->microbatches * tt_mesh_size(&o->mesh, TT_GROUP_BATCH);

    step->scalars.inv_tokens = 1.0 / (step->tokens ? (double)step->tokens : all);
    if (o->param_dtype != TT_F64) { /* reported losses are multiplied by what the kernels multiply by */
        step->scalars.inv_tokens = as_float(step->scalars.inv_tokens);
        step->scalars.inv_valid_tokens = as_float(step->scalars.inv_valid_tokens);
    }
    shard_samples(&e->train.samples);
    return tt_executor_run(e->train.executor, step);
}

int64_t *tt_engine_loads(struct tt_engine *e, int64_t *ret_n)
{
    return tt_executor_loads(e->train.executor, ret_n);
}

int tt_engine_validate(struct tt_engine *e, struct tt_step *step)
{
    shard_samples(&e->validate.samples);
    return tt_executor_run(e->validate.executor, step);
}

/* Finds the first parameter with a value on this rank that is not finite. Not collective. */
static void bad_parameter(const struct tt_executor *ex, struct tt_bad_value *ret_bad)
{
    const struct tt_layout *layout = ex->program->layout;

    *ret_bad = (struct tt_bad_value){0}; /* the failed run has already waited for the stream */
    for (int s = 0; s < ex->program->n_stages && !ret_bad->name[0]; s++) {
        const struct tt_graph *graph = ex->program->stages[s].graph;

        ret_bad->order = ex->program->stages[s].number;
        for (int v = 0; v < graph->n_values && !ret_bad->name[0]; v++) {
            const struct tt_value *value = &graph->values[v];
            const struct tt_unit_param *place;
            int unit;

            if (value->kind != TT_VALUE_PARAM)
                continue;
            unit = layout->unit_of[value->param];
            if (layout->units[unit].packing) /* packed weights are always finite */
                continue;
            place = tt_layout_param(layout, value->param);
            if (!tt_running_all_finite(tt_state_unit_dtype(TT_STATE_PARAM, &layout->units[unit], ex->state->dtype),
                                       tt_state_at(ex->state, TT_STATE_PARAM, unit, place), tt_box_volume(&place->box)))
                (void)snprintf(ret_bad->name, sizeof ret_bad->name, "parameter %s", value->name);
        }
    }
}

int tt_engine_explain(struct tt_engine *e, struct tt_step *step)
{
    struct tt_bad_value found;
    char first[512];
    int rc = 0;

    (void)snprintf(first, sizeof first, "%s", tt_error_message());
    /* looks at the parameters of all ranks first: a rank that gathers a bad one would otherwise name a value computed
     * from it */
    bad_parameter(e->train.executor, &found);
    TT_TRY(agree_on_culprit(e->comm, first, &found));
    TT_TRY(tt_executor_explain(e->train.executor, step, &found));
    TT_TRY(agree_on_culprit(e->comm, first, &found));
    rc = tt_fail(TT_ENONFINITE, "%s; every single value is finite, but their sum is not", first);
out:
    return rc;
}

int tt_engine_synchronize(const struct tt_engine *e)
{
    return tt_device_synchronize(e->stream);
}

struct tt_state *tt_engine_state(struct tt_engine *e)
{
    tt_device_synchronize(e->stream); /* if this fails, the next step fails too */
    return &e->state;
}

const struct tt_layout *tt_engine_layout(const struct tt_engine *e)
{
    return e->layout;
}

const struct tt_program *tt_engine_program(const struct tt_engine *e)
{
    return main_track(e)->program;
}

struct tt_executor *tt_engine_executor(const struct tt_engine *e)
{
    return main_track(e)->executor;
}

struct tt_span tt_engine_transfer_span(const struct tt_engine *e, int instr)
{
    return e->train.transfers ? tt_transfers_span(e->train.transfers, instr) : (struct tt_span){0.0, 0.0};
}

struct tt_team *tt_engine_team(const struct tt_engine *e)
{
    return e->team;
}
