/* SPDX-License-Identifier: MIT
 *
 * The executor: new binds addresses, run walks the list, explain walks it again looking for the first bad value.
 */
#include "core/program/executor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/models/model.h"
#include "core/optim/optim.h"
#include "core/os/file.h"
#include "core/program/mixed.h"

struct tt_executor {
    const struct tt_program *program;
    struct tt_state *state;
    struct tt_team *team;
    struct tt_exchange exchange;
    void **address; /* per operand of the program */
    char *const_region, *step_region;
    struct tt_rows **rows; /* [unit] this rank's rows, for norm and optimizer */
    int *n_rows;
    struct tt_exact loss, norm;
    struct tt_times times;
    struct tt_span *spans; /* per instruction, of the last run */
    char *bad;             /* explain: where to write the first bad value, else NULL */
    size_t bad_size;
};

static char *buffer_address(const struct tt_executor *ex, int buffer)
{
    const struct tt_buffer *b = &ex->program->buffers[buffer];
    const struct tt_buffer *root = &ex->program->buffers[b->root];
    int64_t inside = b->root == buffer ? 0 : b->offset;

    switch (root->kind) {
    case TT_MEMORY_PARAM:
        return (char *)ex->state->param[root->unit] + inside;
    case TT_MEMORY_CONST:
        return ex->const_region + root->offset + inside;
    case TT_MEMORY_CACHE:
        return ex->state->cache + root->offset + inside;
    default:
        return ex->step_region + root->offset + inside;
    }
}

static void bind_rows(struct tt_executor *ex)
{
    const struct tt_layout *layout = ex->program->layout;

    ex->rows = tt_calloc((size_t)layout->n_units, sizeof(struct tt_rows *));
    ex->n_rows = tt_calloc((size_t)layout->n_units, sizeof *ex->n_rows);
    for (int u = 0; u < layout->n_units; u++) {
        const struct tt_unit *unit = &layout->units[u];

        ex->rows[u] = tt_calloc((size_t)unit->n_params, sizeof **ex->rows);
        ex->n_rows[u] = unit->n_params;
        for (int i = 0; i < unit->n_params; i++)
            ex->rows[u][i] = (struct tt_rows){unit->params[i].offset, unit->params[i].box.shape[0],
                                              tt_box_row_elements(&unit->params[i].box)};
    }
}

static void fill_constants(struct tt_executor *ex)
{
    const struct tt_program *p = ex->program;

    for (int b = 0; b < p->n_buffers; b++) {
        const struct tt_value *value;

        if (p->buffers[b].kind != TT_MEMORY_CONST)
            continue;
        value = &p->graph->values[p->buffers[b].value]; /* the RoPE table is the one constant there is */
        tt_rope_fill(&p->graph->rope, value->shape[0], 2 * value->shape[1], (float *)(void *)buffer_address(ex, b));
    }
}

int tt_executor_new(const struct tt_program *program, struct tt_state *state, void *const_region, void *step_region,
                    struct tt_team *team, struct tt_executor **ret_executor)
{
    struct tt_executor *ex = tt_calloc(1, sizeof *ex);

    ex->program = program;
    ex->state = state;
    ex->team = team;
    ex->const_region = const_region;
    ex->step_region = step_region;
    ex->address = tt_calloc((size_t)program->n_operands + 1, sizeof *ex->address);
    for (int i = 0; i < program->n_operands; i++)
        if (program->operands[i] != TT_NONE)
            ex->address[i] = buffer_address(ex, program->operands[i]);
    ex->spans = tt_calloc((size_t)program->n_instrs + 1, sizeof *ex->spans);
    bind_rows(ex);
    fill_constants(ex);
    *ret_executor = ex;
    return 0;
}

void tt_executor_free(struct tt_executor *ex)
{
    if (!ex)
        return;
    for (int u = 0; u < ex->program->layout->n_units; u++)
        tt_free(ex->rows[u]);
    tt_free(ex->rows);
    tt_free(ex->n_rows);
    tt_free(ex->address);
    tt_free(ex->spans);
    tt_free(ex);
}

void tt_executor_set_exchange(struct tt_executor *ex, const struct tt_exchange *exchange)
{
    ex->exchange = *exchange;
}

void *tt_executor_operand(const struct tt_executor *ex, int instr, int operand)
{
    return ex->address[ex->program->instrs[instr].operands + operand];
}

int32_t *tt_executor_tokens(const struct tt_executor *ex, int mb)
{
    return (int32_t *)(void *)buffer_address(ex, ex->program->tokens[mb]);
}

int32_t *tt_executor_labels(const struct tt_executor *ex, int mb)
{
    return (int32_t *)(void *)buffer_address(ex, ex->program->labels[mb]);
}

const float *tt_executor_logits(const struct tt_executor *ex)
{
    return (const float *)(const void *)buffer_address(ex, ex->program->logits);
}

const struct tt_times *tt_executor_times(const struct tt_executor *ex)
{
    return &ex->times;
}

const struct tt_span *tt_executor_spans(const struct tt_executor *ex)
{
    return ex->spans;
}

void tt_executor_reset_times(struct tt_executor *ex)
{
    ex->times = (struct tt_times){0};
}

/* --- looking for the first value that is not finite --- */

static bool all_finite(const float *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(data[i]))
            return false;
    return true;
}

void tt_executor_bad_parameter(const struct tt_executor *ex, char *name, size_t name_size)
{
    const struct tt_program *p = ex->program;

    name[0] = 0;
    for (int v = 0; v < p->graph->n_values && !name[0]; v++) {
        const struct tt_value *value = &p->graph->values[v];
        const struct tt_unit_param *place;

        if (value->kind != TT_VALUE_PARAM)
            continue;
        place = tt_layout_param(p->layout, value->param);
        if (!all_finite(ex->state->param[p->layout->unit_of[value->param]] + place->offset, tt_box_volume(&place->box)))
            (void)snprintf(name, name_size, "parameter %s", value->name);
    }
}

static void look_at_outputs(struct tt_executor *ex, const struct tt_instr *instr, const struct tt_call *call)
{
    for (int k = 0; k < call->node->n_out && !ex->bad[0]; k++) {
        const struct tt_value *value = tt_call_out(call, k);

        if (value->dtype == TT_F32 && !all_finite(call->out[k], tt_value_elements(value)))
            (void)snprintf(ex->bad, ex->bad_size, "%s of microbatch %d", value->name, instr->microbatch);
    }
}

/* --- instructions --- */

static void run_node(struct tt_executor *ex, const struct tt_instr *instr, const struct tt_step *step)
{
    const struct tt_node *node = &ex->program->graph->nodes[instr->node];
    void **address = &ex->address[instr->operands];
    struct tt_call call = {.graph = ex->program->graph, .node = node, .scalars = &step->scalars, .team = ex->team};

    for (int i = 0; i < node->n_in; i++)
        call.in[i] = address[i];
    for (int k = 0; k < node->n_out; k++)
        call.out[k] = address[node->n_in + k];
    call.scratch = address[node->n_in + node->n_out];
    tt_op_row(node->op)->run(&call);
    if (ex->bad)
        look_at_outputs(ex, instr, &call);
}

struct fold {
    void **source; /* the leaf, then levels; the last is also written */
    int n;
    int64_t elements;
};

enum { FOLD_TILE = 4096 };

static void fold_tile(void *arg, int64_t tile, int worker)
{
    const struct fold *fold = arg;
    int64_t begin = tile * FOLD_TILE;
    int64_t n = fold->elements - begin < FOLD_TILE ? fold->elements - begin : FOLD_TILE;
    const float *sum = (const float *)fold->source[0] + begin;
    float between[FOLD_TILE];

    (void)worker;
    for (int s = 1; s < fold->n; s++) {
        float *level = (float *)fold->source[s] + begin, *into = s == fold->n - 1 ? level : between;

        tt_kernels()->add(into, level, sum, n);
        sum = into;
    }
}

static void run_fold(struct tt_executor *ex, const struct tt_instr *instr)
{
    struct fold fold = {&ex->address[instr->operands], instr->n_operands,
                        ex->program->layout->units[instr->unit].shard_elements};

    tt_team_run(ex->team, (fold.elements + FOLD_TILE - 1) / FOLD_TILE, fold_tile, &fold);
}

/* Copies this rank's part of the gathered parameters: of S chunks those of its place among n neighbours, as it travels. */
static void run_keep(struct tt_executor *ex, const struct tt_instr *instr)
{
    const struct tt_layout *layout = ex->program->layout;
    const struct tt_unit *unit = &layout->units[instr->unit];
    int part = layout->shard_index % unit->keep_degree;
    char *kept = ex->address[instr->operands + unit->n_params];

    for (int i = 0; i < unit->n_params; i++) {
        int64_t bytes = ex->program->buffers[ex->program->operands[instr->operands + i]].bytes / unit->keep_degree;

        kept += tt_mixed_keep(ex->program, (const char *)ex->address[instr->operands + i] + part * bytes, bytes, kept,
                              ex->team);
    }
}

/* Sums loss and norm over the ranks; the one place where a step can stop. */
static int run_clip(struct tt_executor *ex, struct tt_step *step)
{
    struct tt_exact sums[2];
    int rc;

    tt_exact_normalize(&ex->loss);
    tt_exact_normalize(&ex->norm);
    step->local_loss_sum = tt_exact_value(&ex->loss);
    sums[0] = ex->loss;
    sums[1] = step->adds_norm ? ex->norm : (struct tt_exact){{0}, 0};
    if (ex->exchange.sum && (rc = ex->exchange.sum(ex->exchange.ctx, sums, 2)) < 0)
        return rc;
    step->loss_sum = sums[0];
    step->loss = tt_exact_value(&sums[0]) * (double)step->scalars.inv_valid_tokens;
    step->grad_norm = sqrt(tt_exact_value(&sums[1]));
    step->scalars.clip = 1.0f;
    if (step->max_norm > 0.0 && step->max_norm / (step->grad_norm + 1e-6) < 1.0)
        step->scalars.clip = (float)(step->max_norm / (step->grad_norm + 1e-6));
    if (!isfinite(step->loss) || !isfinite(step->grad_norm))
        return tt_fail(TT_ENONFINITE, "%s is not finite", isfinite(step->loss) ? "the gradient norm" : "the loss");
    return 0;
}

static int begin_exchange(struct tt_executor *ex, int i)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    void *const *address = &ex->address[instr->operands];

    if (instr->kind == TT_UNSHARD)
        tt_mixed_unshard_begin(ex->program, instr, address, ex->state, ex->team);
    if (instr->kind == TT_REDUCE)
        tt_mixed_reduce_begin(ex->program, instr, address, ex->team);
    return ex->exchange.begin ? ex->exchange.begin(ex->exchange.ctx, i) : 0;
}

/* i is the instruction that began it. */
static int wait_for_exchange(struct tt_executor *ex, int i)
{
    const struct tt_instr *instr = &ex->program->instrs[i];
    void *const *address = &ex->address[instr->operands];
    int rc = ex->exchange.wait ? ex->exchange.wait(ex->exchange.ctx, i) : 0;

    if (rc == 0 && (instr->kind == TT_UNSHARD || instr->kind == TT_UNSHARD_KEPT))
        tt_mixed_unshard_end(ex->program, instr, address, ex->team);
    if (rc == 0 && instr->kind == TT_REDUCE)
        tt_mixed_reduce_end(ex->program, instr, address, ex->team);
    return rc;
}

static int run_instr(struct tt_executor *ex, int i, struct tt_step *step)
{
    const struct tt_program *p = ex->program;
    const struct tt_instr *instr = &p->instrs[i];
    int u = instr->unit;

    switch (instr->kind) {
    case TT_RUN:
        run_node(ex, instr, step);
        return 0;
    case TT_LOSS:
        tt_sum_floats(ex->address[instr->operands], tt_value_elements(&p->graph->values[p->graph->token_loss]),
                      &ex->loss);
        return 0;
    case TT_UNSHARD:
    case TT_UNSHARD_KEPT:
    case TT_REDUCE:
    case TT_ALL_REDUCE:
        return begin_exchange(ex, i);
    case TT_WAIT_UNSHARD:
    case TT_WAIT_REDUCE:
    case TT_WAIT_ALL_REDUCE:
        return wait_for_exchange(ex, instr->begin);
    case TT_KEEP:
        run_keep(ex, instr);
        return 0;
    case TT_FOLD:
        run_fold(ex, instr);
        return 0;
    case TT_NORM:
        tt_sum_squares(ex->team, ex->rows[u], ex->n_rows[u], ex->address[instr->operands], &ex->norm);
        return 0;
    case TT_CLIP:
        return run_clip(ex, step);
    case TT_OPTIMIZER:
        tt_adamw(ex->team, &step->scalars, step->decoupled, ex->rows[u], ex->n_rows[u], ex->state->param[u],
                 ex->address[instr->operands], ex->state->exp_avg[u], ex->state->exp_avg_sq[u]);
        return 0;
    default:
        return 0; /* TT_RESHARD: an end of lifetimes, nothing to do */
    }
}

/* Ends what is under way at instruction i, so that nothing is written to memory any more. */
static int finish_exchanges(struct tt_executor *ex, int i)
{
    const struct tt_program *p = ex->program;
    int rc = 0;

    for (int w = i; w < p->n_instrs && rc == 0; w++) {
        enum tt_instr_kind kind = p->instrs[w].kind;

        if ((kind == TT_WAIT_UNSHARD || kind == TT_WAIT_REDUCE || kind == TT_WAIT_ALL_REDUCE) && p->instrs[w].begin < i)
            rc = wait_for_exchange(ex, p->instrs[w].begin);
    }
    return rc;
}

/*
 * Asks whether the step is to be given up, at ASKED places of it. Ranks that run the same list ask at the same ones. After
 * the clip parameters change, so there is no way back.
 */
static int ask(struct tt_executor *ex, const struct tt_step *step, int i, bool *clipped)
{
    enum { ASKED = 16 };
    const struct tt_program *p = ex->program;
    int every = p->n_instrs / ASKED, rc = 0;
    double most;

    *clipped |= p->instrs[i].kind == TT_CLIP;
    if (!step->asked_to_stop || ex->bad || *clipped || i == 0 || (every > 1 && i % every != 0))
        return 0;
    most = -(double)step->asked_to_stop();
    if (ex->exchange.most)
        TT_TRY(ex->exchange.most(ex->exchange.ctx, &most));
    if (most > 0.0) {
        TT_TRY(finish_exchanges(ex, i));
        rc = -(int)most;
    }
out:
    return rc;
}

static int walk(struct tt_executor *ex, struct tt_step *step, bool stop_at_clip)
{
    bool clipped = false;
    const struct tt_program *p = ex->program;
    double last = tt_clock_sec();
    int rc = 0;

    ex->loss = ex->norm = (struct tt_exact){{0}, 0};
    tt_team_set_poll(ex->team, ex->exchange.poll, ex->exchange.ctx);
    for (int i = 0; i < p->n_instrs; i++) {
        double now;

        if (stop_at_clip && p->instrs[i].kind == TT_CLIP)
            break;
        TT_TRY(ask(ex, step, i, &clipped));
        ex->spans[i].begin = last;
        TT_TRY(run_instr(ex, i, step));
        ex->spans[i].end = now = tt_clock_sec();
        if (ex->exchange.progress) {
            TT_TRY(ex->exchange.progress(ex->exchange.ctx));
            now = tt_clock_sec();
        }
        ex->times.sec[p->instrs[i].kind] += now - last;
        last = now;
    }
out:
    tt_team_set_poll(ex->team, NULL, NULL);
    return rc;
}

int tt_executor_run(struct tt_executor *ex, struct tt_step *step)
{
    return walk(ex, step, false);
}

int tt_executor_explain(struct tt_executor *ex, struct tt_step *step, char *name, size_t name_size)
{
    int rc;

    name[0] = 0;
    ex->bad = name;
    ex->bad_size = name_size;
    rc = walk(ex, step, true);
    ex->bad = NULL;
    return rc;
}
