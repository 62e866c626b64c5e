/* SPDX-License-Identifier: MIT
 *
 * The engine: graphs → layout → schedule → program → arena → executor and transfers, for training and for validation.
 */
#include "parallel/engine/engine.h"

#include "core/base/mem.h"
#include "core/kernels/blas.h"
#include "parallel/comm/collectives.h"
#include "parallel/engine/agree.h"
#include "parallel/engine/explain.h"
#include "parallel/engine/graphs.h"
#include "parallel/engine/rank_order.h"
#include "parallel/engine/samples.h"
#include "parallel/engine/transfer/ahead.h"
#include "parallel/engine/transfer/transfer.h"
#include "parallel/fsdp/fsdp.h"

/* A program with what it needs to run. */
struct track {
    struct tt_stage *stages; /* of this rank */
    int n_stages;
    struct tt_program *program;
    struct tt_executor *executor;
    struct tt_transfers *transfers;
    struct tt_samples samples;
};

struct tt_engine {
    struct tt_engine_options options;
    struct tt_comm *comm;
    int rank;
    bool lends_schedule; /* to ranks that share its layers (plan_like_first) */
    struct tt_layout *layout;
    struct track train, validate;
    struct tt_state state;
    struct tt_team *team;
    struct tt_device *device;
    struct tt_device_stream *stream;
    char *arena;
    size_t arena_bytes;
};

/* Only training has moments and averages. */
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

/* The bytes of the samples that are whole before a run, of training and of validation. */
static int64_t samples_bytes(const struct tt_engine_options *o)
{
    int64_t train = tt_samples_bytes(&o->mesh, o->local_batch, o->seq_len, o->microbatches, o->documents);

    return train + tt_samples_bytes(&o->mesh, o->validation_batch, o->validation_seq_len, 1, o->documents);
}

int tt_engine_block(const struct tt_engine_options *o)
{
    if (o->reduce == TT_REDUCE_EACH || tt_mesh_size(&o->mesh, TT_GROUP_FSDP) == 1)
        return 1; /* without shard ranks nothing is reduced, and the order is the same */
    return o->reduce == TT_REDUCE_RUNS && o->pipeline ? o->pipeline->microbatches : o->microbatches;
}

bool tt_engine_is_exact(const struct tt_engine_options *o)
{
    return tt_mesh_is_exact(&o->mesh, o->microbatches, tt_engine_block(o), o->reduce == TT_REDUCE_LAST);
}

/* The microbatches whose gradients a program adds as whole ones; carried gradients need no addition. */
static int added_block(const struct tt_engine *e, enum tt_graph_mode mode)
{
    return mode == TT_GRAPH_TRAIN && e->options.reduce == TT_REDUCE_RUNS ? tt_engine_block(&e->options) : 1;
}

/* The track for training if the engine trains, else that for validation. */
static const struct track *main_track(const struct tt_engine *e)
{
    return e->train.program ? &e->train : &e->validate;
}

/* What all else leaves of the memory limit for the step region. */
static int64_t step_limit(const struct tt_engine *e, const struct tt_program *program)
{
    const struct tt_program *validate = e->validate.program;

    if (!e->options.memory_limit)
        return INT64_MAX;
    return e->options.memory_limit - state_bytes(e) - samples_bytes(&e->options) -
           tt_arena_bytes(program->const_bytes) - (validate ? tt_arena_bytes(validate->const_bytes) : 0);
}

/* --- programs --- */

/* What lowering needs for a track, whose stages are there. */
static struct tt_lowering lowering_of(const struct tt_engine *e, enum tt_graph_mode mode, int microbatches,
                                      const struct track *track)
{
    return (struct tt_lowering){.stages = track->stages,
                                .n_stages = track->n_stages,
                                .layout = e->layout,
                                .microbatches = microbatches,
                                .run_microbatches = tt_rank_order_run(&e->options, mode, microbatches),
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
    int rc = 0;

    TT_TRY(tt_engine_graphs(&e->options, e->rank, mode, batch, seq_len, &track->stages, &track->n_stages));
    lowering = lowering_of(e, mode, microbatches, track);
    tt_rank_order(&e->options, e->layout->groups[TT_GROUP_PP].index, mode, track->stages, track->n_stages, microbatches,
                  &order, &crossings);
    if (order.microbatches != microbatches)
        TT_TRY(tt_fail(TT_EINTERNAL, "the order of compute has %d microbatches, the step has %d", order.microbatches,
                       microbatches));
    TT_TRY(tt_usage_make(&order, track->stages, track->n_stages, e->layout, added_block(e, mode), &usage));
    usage.crossings = crossings;
    crossings = (struct tt_crossings){0};
    usage.run_microbatches = lowering.run_microbatches;
    tt_fsdp_schedule(&fsdp, &schedule);
    TT_TRY(tt_program_new(&lowering, &schedule, &track->program));
    if (mode == TT_GRAPH_TRAIN && e->options.scheduler == TT_SCHEDULER_PLANNED)
        TT_TRY(
            tt_plan_ahead(&e->options, e->layout, &lowering, &usage, step_limit(e, track->program), &track->program));
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

/* Parts of sequences all have the same size, so only the place along tp changes what a layer costs. */
static int first_that_shares(const struct tt_engine *e)
{
    return tt_mesh_member(&e->options.mesh, e->rank, TT_GROUP_TP, 0);
}

/* A schedule names nodes by their numbers, so graphs must have the same ones. */
static int check_nodes(const struct track *track, const struct track *first)
{
    for (int s = 0; s < track->n_stages; s++)
        if (track->n_stages != first->n_stages || track->stages[s].graph->n_nodes != first->stages[s].graph->n_nodes)
            return tt_fail(TT_EINTERNAL, "the graphs of ranks that share layers differ in stage %d",
                           track->stages[s].number);
    return 0;
}

/*
 * Ranks that share layers exchange in the same order, so they need the same schedule. A planner's choice depends on
 * costs, and the last rank may have fewer rows of the vocabulary than the others. So each rank plans as the first of
 * them, which has the largest part, and lowers that schedule with its own shapes.
 */
static int plan_like_first(struct tt_engine *e)
{
    const struct tt_engine_options *o = &e->options;
    struct track *track = &e->train;
    struct tt_engine *first = NULL;
    struct tt_lowering lowering;
    int rc = 0;

    TT_TRY(new_engine(o, e->comm, first_that_shares(e), true, &first));
    TT_TRY(tt_engine_graphs(o, e->rank, TT_GRAPH_TRAIN, o->local_batch, o->seq_len, &track->stages, &track->n_stages));
    TT_TRY(check_nodes(track, &first->train));
    for (int u = 0; u < e->layout->n_units; u++)
        e->layout->units[u].reshard_after_forward = first->layout->units[u].reshard_after_forward;
    lowering = lowering_of(e, TT_GRAPH_TRAIN, o->microbatches, track);
    lowering.free_early = first->train.program->frees_early;
    TT_TRY(tt_program_new(&lowering, first->train.program->schedule, &track->program));
out:
    tt_engine_free(first);
    return rc;
}

static int plan_training(struct tt_engine *e)
{
    const struct tt_engine_options *o = &e->options;

    if (o->scheduler == TT_SCHEDULER_PLANNED && first_that_shares(e) != e->rank)
        return plan_like_first(e);
    return plan_track(e, TT_GRAPH_TRAIN, o->local_batch, o->seq_len, o->microbatches, &e->train);
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
    e->rank = rank;
    TT_TRY(tt_layout_new(options->model, &options->mesh, rank, &options->sharding, options->places, &e->layout));
    if (options->validation_batch) /* first, since training gets what it leaves of the memory limit */
        TT_TRY(
            plan_track(e, TT_GRAPH_VALIDATE, options->validation_batch, options->validation_seq_len, 1, &e->validate));
    if (options->local_batch)
        TT_TRY(plan_training(e));
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
        e->device->ops->stream_free(e->stream); /* first, since its work uses all the rest */
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

/* The state comes first, then the constants and samples of each program, then the step region that they share. */
static void lay_out_state(struct tt_engine *e, char **at)
{
    e->state.dtype = e->options.shard_dtype;
    for (enum tt_state_array k = 0; k < TT_STATE_ARRAYS; k++)
        if (tt_engine_has(&e->options, k))
            *at = tt_state_add(&e->state, k, e->layout, *at);
}

static int bind_track(struct tt_engine *e, struct track *track, int64_t batch, int64_t seq_len, char **at,
                      char *step_region)
{
    const struct tt_mesh *mesh = &e->options.mesh;
    bool documents = e->options.documents;
    int rc = 0, microbatches;

    if (!track->program)
        return 0;
    microbatches = track->program->microbatches;
    TT_TRY(tt_executor_new(track->program, &e->state, *at, step_region, e->team, e->stream, &track->executor));
    *at += tt_arena_bytes(track->program->const_bytes);
    track->samples = tt_samples_make(mesh, e->rank, batch, seq_len, microbatches, documents, track->executor, *at);
    *at += tt_samples_bytes(mesh, batch, seq_len, microbatches, documents);
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
                     (long long)memory.total, tt_key_name(TT_KEY_LOCAL_BATCH));
        goto out;
    }
    TT_TRY(tt_blas_check_room(e->options.threads));
    TT_TRY(e->device->ops->stream_new(e->device, &e->stream));
    e->state.sums = (struct tt_exact *)(void *)(e->arena + memory.total);
    step_region = at + memory.state + memory.constants + memory.samples;
    lay_out_state(e, &at);
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

int64_t tt_engine_init_bytes(const struct tt_engine *e, enum tt_init how)
{
    struct tt_engine_memory memory = tt_engine_memory(e);

    return memory.state + memory.constants + memory.samples + tt_init_buffer_bytes(e->layout, e->options.model, how);
}

int64_t tt_engine_microbatch(const struct tt_engine *e, int a)
{
    return tt_mesh_microbatch(&e->options.mesh, e->rank, e->options.microbatches, tt_engine_block(&e->options), a);
}

int32_t *tt_engine_tokens(const struct tt_engine *e, int a)
{
    return tt_samples_tokens(&e->train.samples, a);
}

int32_t *tt_engine_labels(const struct tt_engine *e, int a)
{
    return tt_samples_labels(&e->train.samples, a);
}

int32_t *tt_engine_positions(const struct tt_engine *e, int a)
{
    return tt_samples_positions(&e->train.samples, a);
}

int64_t tt_engine_valid_labels(const struct tt_engine *e, int a)
{
    return tt_samples_valid(&e->train.samples, a);
}

int32_t *tt_engine_validation_tokens(const struct tt_engine *e)
{
    return tt_samples_tokens(&e->validate.samples, 0);
}

int32_t *tt_engine_validation_labels(const struct tt_engine *e)
{
    return tt_samples_labels(&e->validate.samples, 0);
}

int32_t *tt_engine_validation_positions(const struct tt_engine *e)
{
    return tt_samples_positions(&e->validate.samples, 0);
}

/* Of the global batch. */
static double tokens_of(const struct tt_engine_options *o)
{
    return (double)o->local_batch * (double)o->seq_len * o->microbatches * tt_mesh_size(&o->mesh, TT_GROUP_BATCH);
}

int tt_engine_step(struct tt_engine *e, struct tt_step *step)
{
    step->scalars.inv_tokens = (float)(1.0 / (step->tokens ? (double)step->tokens : tokens_of(&e->options)));
    tt_samples_divide(&e->train.samples);
    return tt_executor_run(e->train.executor, step);
}

int64_t *tt_engine_loads(struct tt_engine *e, int64_t *ret_n)
{
    return tt_executor_loads(e->train.executor, ret_n);
}

int tt_engine_validate(struct tt_engine *e, struct tt_step *step)
{
    tt_samples_divide(&e->validate.samples);
    return tt_executor_run(e->validate.executor, step);
}

int tt_engine_explain(struct tt_engine *e, struct tt_step *step)
{
    return tt_explain(e->comm, e->train.executor, step);
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
