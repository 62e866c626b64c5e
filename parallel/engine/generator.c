/* SPDX-License-Identifier: MIT
 *
 * Generation in one process: decode graphs that share the weights and the cache.
 */
#include "parallel/engine/generator.h"

#include <math.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "parallel/comm/collectives.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/layout/placement.h"
#include "parallel/layout/units.h"

/* A program and everything that it needs to run. */
struct track {
    struct tt_stage stage; /* the whole model */
    struct tt_program *program;
    struct tt_executor *executor;
    struct tt_decode of;
};

struct tt_generator {
    struct tt_generator_options options;
    struct tt_layout *layout;
    struct track prompt, token, each; /* without a program if there is no use for it */
    struct tt_state state;
    struct tt_team *team;
    struct tt_device *device;
    struct tt_device_stream *stream;
    char *arena;
    size_t arena_bytes;
    int64_t *position; /* of each sequence */
    int64_t sequence;  /* the chosen one */
};

static int plan_track(struct tt_generator *g, int64_t rows, bool each, struct track *track)
{
    struct tt_schedule schedule = {0};
    struct tt_lowering lowering = {.stages = &track->stage,
                                   .n_stages = 1,
                                   .layout = g->layout,
                                   .microbatches = 1,
                                   .threads = g->options.threads,
                                   .shard_dtype = g->options.dtype,
                                   .param_dtype = g->options.dtype,
                                   .staging = tt_collective_staging};
    struct tt_order order = tt_order_accumulate(1, 1, false);
    struct tt_usage usage = {0};
    struct tt_fsdp fsdp = {.usage = &usage};
    int rc = 0;

    track->of = (struct tt_decode){
        .context = g->options.context, .sequences = g->options.sequences, .each = each, .rows = rows};
    TT_TRY(tt_model_decode_graph(g->options.model, g->options.dtype, &track->of, &track->stage.graph));
    TT_TRY(tt_usage_make(&order, &track->stage, 1, g->layout, 1, &usage));
    tt_fsdp_schedule(&fsdp, &schedule);
    TT_TRY(tt_program_new(&lowering, &schedule, &track->program));
out:
    tt_schedule_release(&schedule);
    tt_usage_release(&usage);
    tt_order_release(&order);
    return rc;
}

int tt_generator_new(const struct tt_generator_options *options, struct tt_generator **ret_generator)
{
    const struct tt_sharding sharding = {.wrap = "model"};
    struct tt_generator *g = tt_calloc(1, sizeof *g);
    struct tt_mesh mesh = tt_mesh_single();
    int rc = 0;

    g->options = *options;
    g->device = options->device ? options->device : tt_device_host();
    if (g->options.prompt_rows > options->context)
        g->options.prompt_rows = options->context;
    if (g->options.sequences < 1)
        g->options.sequences = 1;
    g->position = tt_calloc((size_t)g->options.sequences, sizeof *g->position);
    TT_TRY(tt_layout_new(options->model, &mesh, 0, &sharding, NULL, &g->layout));
    if (g->options.prompt_rows > 1)
        TT_TRY(plan_track(g, g->options.prompt_rows, false, &g->prompt));
    TT_TRY(plan_track(g, 1, false, &g->token));
    if (g->options.sequences > 1)
        TT_TRY(plan_track(g, 1, true, &g->each));
    *ret_generator = g;
    g = NULL;
out:
    tt_generator_free(g);
    return rc;
}

static void release_track(struct track *track)
{
    tt_executor_free(track->executor);
    tt_program_free(track->program);
    tt_stages_release(&track->stage, 1);
}

void tt_generator_free(struct tt_generator *g)
{
    if (!g)
        return;
    if (g->stream)
        g->device->ops->stream_free(g->stream); /* released first, because its work uses everything else */
    release_track(&g->prompt);
    release_track(&g->token);
    release_track(&g->each);
    tt_free(g->position);
    tt_team_free(g->team);
    tt_state_release(&g->state);
    if (g->arena)
        g->device->ops->release(g->device, g->arena, g->arena_bytes);
    tt_layout_free(g->layout);
    tt_free(g);
}

/* All programs have the same constants and cache, at the same addresses. */
struct tt_generator_memory tt_generator_memory(const struct tt_generator *g)
{
    const struct tt_program *token = g->token.program, *others[] = {g->prompt.program, g->each.program};
    struct tt_generator_memory m = {.weights = tt_state_bytes(TT_STATE_PARAM, g->layout, g->options.dtype),
                                    .cache = tt_arena_bytes(token->cache_bytes),
                                    .constants = tt_arena_bytes(token->const_bytes),
                                    .step = tt_arena_bytes(token->step_bytes)};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i] && tt_arena_bytes(others[i]->step_bytes) > m.step)
            m.step = tt_arena_bytes(others[i]->step_bytes);
    m.total = m.weights + m.cache + m.constants + m.step;
    return m;
}

int tt_generator_allocate(struct tt_generator *g)
{
    struct tt_generator_memory m = tt_generator_memory(g);
    char *at, *constants;
    int rc = 0;

    TT_TRY(tt_team_new(g->options.threads, &g->team));
    g->arena_bytes = (size_t)m.total + tt_sums_bytes(g->layout);
    g->arena = at = g->device->ops->allocate(g->device, g->arena_bytes);
    if (!at)
        return tt_fail(TT_EFIT, "the system refused %lld bytes for weights and cache\nhelp: use a shorter context",
                       (long long)m.total);
    TT_TRY(tt_blas_check_room(g->options.threads));
    TT_TRY(g->device->ops->stream_new(g->device, &g->stream));
    g->state.sums = (struct tt_exact *)(void *)(g->arena + m.total);
    g->state.dtype = g->options.dtype;
    g->state.cache = at = tt_state_add(&g->state, TT_STATE_PARAM, g->layout, at);
    constants = at + m.cache;
    at = constants + m.constants;
    if (g->prompt.program)
        g->prompt.executor = tt_executor_new(g->prompt.program, &g->state, constants, at, g->team, g->stream);
    if (g->each.program)
        g->each.executor = tt_executor_new(g->each.program, &g->state, constants, at, g->team, g->stream);
    g->token.executor = tt_executor_new(g->token.program, &g->state, constants, at, g->team, g->stream);
out:
    return rc;
}

struct tt_state *tt_generator_state(struct tt_generator *g)
{
    return &g->state;
}

const struct tt_layout *tt_generator_layout(const struct tt_generator *g)
{
    return g->layout;
}

void tt_generator_select(struct tt_generator *g, int64_t sequence)
{
    g->sequence = sequence;
}

int64_t tt_generator_position(const struct tt_generator *g)
{
    return g->position[g->sequence];
}

int64_t tt_generator_room(const struct tt_generator *g)
{
    return g->options.context - g->position[g->sequence];
}

void tt_generator_rewind(struct tt_generator *g, int64_t position)
{
    g->position[g->sequence] = position;
}

static int check_room(const struct tt_generator *g, int64_t sequence, int64_t n)
{
    if (n >= 1 && n <= g->options.context - g->position[sequence])
        return 0;
    return tt_fail(TT_EUSAGE, "no room for %lld tokens: the context holds %lld, and %lld are taken", (long long)n,
                   (long long)g->options.context, (long long)g->position[sequence]);
}

static int check_logits(const struct tt_generator *g, int64_t sequence, const float *logits)
{
    for (int64_t v = 0; v < g->options.model->dims.vocab_size; v++)
        if (!isfinite(logits[v]))
            return tt_fail(TT_ENONFINITE, "the logits after token %lld are not finite: are the weights?",
                           (long long)g->position[sequence]);
    return 0;
}

int tt_generator_feed(struct tt_generator *g, const int32_t *tokens, int64_t n, const float **ret_logits)
{
    const struct track *track = NULL;
    int64_t *position = &g->position[g->sequence];
    int rc = 0;

    TT_TRY(check_room(g, g->sequence, n));
    for (int64_t i = 0, some; i < n; i += some) {
        struct tt_step step = {.scalars = {.sequence = g->sequence, .position = *position}};
        int32_t *input;

        track = n - i > 1 && g->prompt.program ? &g->prompt : &g->token;
        step.scalars.rows = some = n - i < track->of.rows ? n - i : track->of.rows;
        input = tt_executor_inputs(track->executor, 0).tokens;
        memcpy(input, tokens + i, (size_t)some * sizeof *input);
        memset(input + some, 0, (size_t)(track->of.rows - some) * sizeof *input); /* rows without a token get token 0 */
        *position += some;
        TT_TRY(tt_executor_run(track->executor, &step));
    }
    TT_TRY(tt_executor_logits(track->executor, ret_logits));
    TT_TRY(check_logits(g, g->sequence, *ret_logits));
out:
    return rc;
}

/* A sequence that is not fed gets token 0 where its next token would be, or at the end of a full context; what that
 * leaves in the cache is written again before it is read, since another prompt begins at 0. */
int tt_generator_step(struct tt_generator *g, const int32_t *tokens, const bool *feeds, const float **ret_logits)
{
    int64_t sequences = g->options.sequences, last = g->options.context - 1;
    struct tt_step step = {.scalars = {.rows = sequences}};
    struct tt_inputs input;
    int rc = 0;

    if (!g->each.program)
        return tt_generator_feed(g, tokens, 1, ret_logits);
    input = tt_executor_inputs(g->each.executor, 0);
    for (int64_t s = 0; s < sequences; s++) {
        if (feeds[s])
            TT_TRY(check_room(g, s, 1));
        input.tokens[s] = feeds[s] ? tokens[s] : 0;
        input.positions[s] = (int32_t)(g->position[s] < last ? g->position[s] : last);
        g->position[s] += feeds[s];
    }
    TT_TRY(tt_executor_run(g->each.executor, &step));
    TT_TRY(tt_executor_logits(g->each.executor, ret_logits));
    for (int64_t s = 0; s < sequences; s++)
        if (feeds[s])
            TT_TRY(check_logits(g, s, *ret_logits + s * g->options.model->dims.vocab_size));
out:
    return rc;
}

/*
 * --- the weights of a training engine ---
 *
 * All ranks go through the same list of parts, parameter by parameter. The rank that holds a part sends it in blocks of
 * packed elements; rank 0 copies these to their places in the whole tensor.
 */

enum { BLOCK = 1 << 20 }; /* bytes of a message */

struct collecting {
    const struct tt_model *model;
    struct tt_comm *comm;
    const struct tt_layout *layout; /* this rank's layout */
    const struct tt_state *state;
    const struct tt_layout *whole_layout; /* layout and state of rank 0's generator */
    const struct tt_state *whole;
    char *block; /* on rank 0, for the block that arrives */
};

/* A part of a parameter. */
struct part {
    int param;
    struct tt_box box;
    int holder;
    enum tt_dtype dtype; /* the type in which the rank that holds it stores it */
};

static char *address(const struct tt_layout *layout, const struct tt_state *state, int p)
{
    return tt_state_at(state, TT_STATE_PARAM, layout->unit_of[p], tt_layout_param(layout, p));
}

/* Rank 0: copies or rounds n elements of a part, from its element `at` on, to their places in the whole tensor. */
static void place(const struct collecting *c, const struct part *part, int64_t at, const char *bytes, int64_t n)
{
    const struct tt_param *param = &c->model->params[part->param];
    const struct tt_box whole = tt_box_whole(param->ndim, param->shape);
    enum tt_dtype dtype = param->buffer ? tt_dtype_sums(c->whole->dtype) : c->whole->dtype;
    char *to = address(c->whole_layout, c->whole, part->param);
    int64_t run = tt_box_run(&part->box, &whole);

    for (int64_t i = 0, some; i < n; i += some) {
        int64_t left = run - (at + i) % run;
        char *there = to + tt_box_position(&part->box, at + i, &whole) * (int64_t)tt_dtype_size(dtype);
        const char *here = bytes + i * (int64_t)tt_dtype_size(part->dtype);

        some = left < n - i ? left : n - i;
        if (dtype == part->dtype)
            memcpy(there, here, (size_t)some * tt_dtype_size(dtype));
        else
            tt_kernels()->bf16_round((tt_bf16 *)(void *)there, (const float *)(const void *)here, some);
    }
}

static int move_block(const struct collecting *c, const struct part *part, int64_t at, int64_t n)
{
    struct tt_comm *comm = c->comm;
    size_t item = tt_dtype_size(part->dtype);
    bool holds = comm->rank == part->holder;
    char *own = holds ? address(c->layout, c->state, part->param) + at * (int64_t)item : NULL;
    struct tt_segment segment = {holds ? own : c->block, (size_t)n * item};
    struct tt_request request = {{0}};
    int rc = 0;

    if (comm->rank == 0 && holds) {
        place(c, part, at, own, n);
    } else if (comm->rank == 0) {
        TT_TRY(comm->ops->recv_begin(comm, &segment, 1, part->holder, TT_TAG_SAVE, &request));
        TT_TRY(tt_comm_wait(comm, &request, part->holder));
        place(c, part, at, c->block, n);
    } else if (holds) {
        TT_TRY(comm->ops->send_begin(comm, &segment, 1, 0, TT_TAG_SAVE, &request));
        TT_TRY(tt_comm_wait(comm, &request, 0));
    }
out:
    return rc;
}

int tt_collect_weights(const struct tt_engine_options *options, struct tt_engine *engine, struct tt_comm *comm,
                       struct tt_generator *generator)
{
    const struct tt_model *model = options->model;
    struct collecting c = {.model = model,
                           .comm = comm,
                           .layout = tt_engine_layout(engine),
                           .state = tt_engine_state(engine),
                           .whole_layout = generator ? tt_generator_layout(generator) : NULL,
                           .whole = generator ? tt_generator_state(generator) : NULL,
                           .block = generator ? tt_calloc(BLOCK, 1) : NULL};
    int rc = 0;

    for (int p = 0; p < model->n_params; p++) {
        const struct tt_placement placement = tt_param_placement(&options->mesh, options->places, model, p);

        for (int i = 0; i < tt_placement_parts(&options->mesh, &placement); i++) {
            const struct part part = {
                .param = p,
                .box = tt_placement_box(&options->mesh, &placement, model->params[p].ndim, model->params[p].shape, i),
                .holder = tt_placement_rank(&options->mesh, &placement, i, 0),
                .dtype = model->params[p].buffer ? tt_dtype_sums(options->shard_dtype) : options->shard_dtype};
            int64_t n = tt_box_volume(&part.box), most = BLOCK / (int64_t)tt_dtype_size(part.dtype);

            for (int64_t at = 0; at < n; at += most)
                TT_TRY(move_block(&c, &part, at, n - at < most ? n - at : most));
        }
    }
out:
    tt_free(c.block);
    return rc;
}
