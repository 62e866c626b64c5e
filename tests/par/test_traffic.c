/* SPDX-License-Identifier: MIT
 *
 * What every rank sends: for each dimension of the mesh and pairs of them, the bytes of each kind of collective equal
 * the plan and formulas written by hand, and their sum equals the communicator's count.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Letters are those of core/graph/graph.h. Every degree divides all of them. */
enum { L = 3, D = 16, H = 8, K = 4, E = 4, F = 24, V = 32, T = 16, X = 4, TOP = 2, FLOAT = 4 };

static struct fixture world;
static struct tt_model *model, *with_experts;

static int tear_down(void **state)
{
    tt_model_free(model);
    tt_model_free(with_experts);
    fixture_close(&world);
    return 0;
}

static int set_up(void **state)
{
    struct tt_model_dims dims = {
        .n_layers = L, .dim = D, .n_heads = H, .n_kv_heads = K, .head_dim = E, .ffn_dim = F, .vocab_size = V};

    fixture_open(&world, &(struct fixture_size){.odd_layers = 1, .odd_vocab = 23, .tied_layers = 1, .narrow = true});
    model = fixture_model(&dims);
    dims.moe = (struct tt_moe){.experts = X, .top_k = TOP};
    assert_int_equal(fixture_check(tt_model_new("mixtral", "debugmodel", &dims, NULL, &with_experts)), 0);
    return 0;
}

static const struct mesh {
    int pipe, replicate, shard, context, tensor, grains;
    bool gathers;
    int experts; /* ranks that share experts; 0: the model has none */
} meshes[] = {
    {1, 1, 1, 1, 2, 2, false, 0}, {1, 1, 1, 1, 4, 4, false, 0}, {1, 1, 1, 1, 2, 4, false, 0},
    {1, 1, 1, 2, 1, 1, false, 0}, {1, 1, 1, 4, 1, 1, false, 0}, {2, 1, 1, 1, 1, 1, false, 0},
    {1, 1, 4, 1, 1, 1, false, 0}, {1, 2, 2, 1, 1, 1, false, 0}, {1, 1, 2, 1, 2, 2, false, 0},
    {1, 2, 1, 1, 2, 2, false, 0}, {1, 1, 2, 2, 1, 1, false, 0}, {1, 1, 1, 2, 2, 2, false, 0},
    {2, 1, 1, 1, 2, 2, false, 0}, {2, 1, 1, 2, 1, 1, false, 0}, {2, 1, 2, 1, 2, 2, false, 0},
    {1, 1, 1, 2, 1, 1, true, 0},  {1, 1, 1, 4, 1, 1, true, 0},  {1, 1, 2, 2, 2, 2, true, 0},
    {2, 1, 1, 2, 1, 1, true, 0},  {1, 1, 1, 1, 2, 2, false, 2}, {1, 1, 2, 1, 2, 2, false, 4},
    {1, 2, 2, 1, 2, 2, false, 2}, {1, 1, 1, 2, 1, 1, false, 1}, {1, 1, 2, 2, 1, 1, true, 2},
    {2, 1, 1, 2, 2, 2, false, 4},
};

/* What a rank computes: in a pipeline some of the layers, and perhaps one end of the model. */
struct part {
    int layers;
    bool first, last;
};

/* Modules are cut as train_job_options cuts them. */
static struct part part_of(const struct mesh *m, int rank)
{
    int pp = rank / (m->replicate * m->shard * m->context * m->tensor), modules = L + 3;
    struct part part = {0, pp == 0, pp == m->pipe - 1};

    for (int layer = 1; layer <= L; layer++)
        part.layers += layer * m->pipe / modules == pp;
    return part;
}

/* Bytes of float32 that a rank sends in a step of A microbatches of T tokens, by purpose, if gradients are reduced
 * `reductions` times. k is (n - 1) / n. */
static void formulas(const struct mesh *m, const struct part *part, int A, int reductions, int64_t bytes[TT_PURPOSES])
{
    int64_t c = m->context, t = m->tensor, S = m->shard * c, R = m->replicate, N = T / c;
    int64_t attention = 2 * H * E * D + 2 * K * E * D, ffn = 3 * F * D;
    int64_t layer = attention / t + 2 * D + (m->experts ? X * D + (m->experts == 1) * X * ffn : ffn / t);
    int64_t P = part->layers * layer + part->first * V * D / t + part->last * (V * D / t + D);
    int64_t rows = (t - 1) * N * D * FLOAT / t; /* of a leaf, gathered or summed */
    int64_t times = m->experts ? 2 : 4;         /* forward and backward: around attention, and around the FFN */
    int64_t softmax = (t - 1) * N * (2 * m->grains / t + 1) * FLOAT;

    memset(bytes, 0, TT_PURPOSES * sizeof *bytes);
    /* FSDP: parameters are gathered once in a microbatch, or in a run of a pipeline, which here is the step, and its
     * gradients are reduced; HSDP sums once in a step */
    bytes[TT_UNSHARD] = (m->pipe > 1 ? 1 : A) * (S - 1) * P * FLOAT / S;
    bytes[TT_REDUCE] = reductions * (S - 1) * P * FLOAT / S;
    bytes[TT_ALL_REDUCE] = 2 * (R - 1) * (P / S) * FLOAT / R;
    /* EP: the ranks with the same experts gather and reduce them */
    if (m->experts > 1) {
        int64_t Q = part->layers * X * ffn / m->experts, same = S * t / m->experts;

        bytes[TT_UNSHARD] += (m->pipe > 1 ? 1 : A) * (same - 1) * Q * FLOAT / same;
        bytes[TT_REDUCE] += reductions * (same - 1) * Q * FLOAT / same;
        bytes[TT_ALL_REDUCE] += 2 * (R - 1) * (Q / same) * FLOAT / R;
    }
    /* TP: in a layer the rows 4 times forward and 4 times backward, half as often if its feed-forward is experts; for
     * the head the rows twice, and of each row two numbers per grain and the logit of the label; the gradients of norms
     * and routers. Losses of loads: the experts of all tokens */
    bytes[TT_GATHER_VALUES] = A * (part->layers * times * rows + part->last * (rows + softmax));
    bytes[TT_SUM_VALUES] = A * (part->layers * times * rows + part->last * rows);
    bytes[TT_SUM_ALL_VALUES] =
        A * 2 * (t - 1) * (part->layers * (2 + (m->experts ? X : 0)) + part->last) * D * FLOAT / t;
    if (m->experts)
        bytes[TT_GATHER_VALUES] += A * part->layers * ((t - 1) * N / t + (c - 1) * N) * TOP * FLOAT;
    /* CP: parts of sequences for heads, before and after attention; or keys and values of all parts, forward and
     * again backward, and the sums of their gradients. With TP the embeddings go to the ranks of their rows, and their
     * gradients back */
    if (m->gathers) {
        bytes[TT_GATHER_VALUES] += A * part->layers * 4 * (c - 1) * N * K * E * FLOAT / t;
        bytes[TT_SUM_VALUES] += A * part->layers * 2 * (c - 1) * N * K * E * FLOAT / t;
    } else {
        bytes[TT_SWAP_VALUES] = A * part->layers * 2 * (c - 1) * N * (2 * H + 2 * K) * E * FLOAT / t / c;
    }
    bytes[TT_SWAP_VALUES] += A * part->first * 2 * rows;
    /* PP */
    bytes[TT_SEND_VALUES] = part->last ? 0 : A * N / t * D * FLOAT;
    bytes[TT_SEND_GRADS] = part->first ? 0 : A * N / t * D * FLOAT;
}

struct wanted {
    const struct mesh *mesh;
    int microbatches, reductions;
    bool planned;
};

/* A plan may keep parameters from one microbatch to the next, but gathers them at least once. */
static bool is_right(const struct wanted *wanted, enum tt_purpose purpose, int64_t found, int64_t by_hand)
{
    if (wanted->planned && purpose == TT_UNSHARD)
        return by_hand / (wanted->mesh->pipe > 1 ? 1 : wanted->microbatches) <= found && found <= by_hand;
    return found == by_hand;
}

/* train_job_run compares the program's sum with the communicator's count. */
static int check_rank(struct tt_comm *comm, struct tt_engine *engine, int step, void *arg)
{
    const struct wanted *wanted = arg;
    const struct tt_program *program = tt_engine_program(engine);
    struct part part = part_of(wanted->mesh, comm->rank);
    int64_t planned[TT_PURPOSES] = {0}, by_hand[TT_PURPOSES];

    formulas(wanted->mesh, &part, wanted->microbatches, wanted->reductions, by_hand);
    for (int i = 0; i < program->n_instrs; i++)
        if (program->instrs[i].kind == TT_BEGIN)
            planned[program->instrs[i].purpose] += tt_instr_payload(&program->instrs[i]);
    for (int p = 0; p < TT_PURPOSES; p++)
        if (!is_right(wanted, (enum tt_purpose)p, planned[p], by_hand[p]))
            return tt_fail(TT_EINTERNAL, "rank %d: '%s' sends %lld bytes, the formula gives %lld", comm->rank,
                           tt_purpose_row((enum tt_purpose)p)->name, (long long)planned[p], (long long)by_hand[p]);
    return 0;
}

static void every_collective_sends_what_its_formula_says(void **state)
{
    for (int i = 0; i < 4 * COUNT(meshes); i++) {
        const struct mesh *m = &meshes[i / 4];
        bool planned = i % 2, every_run = i / 2 % 2; /* a step is one run */
        int microbatches = m->pipe > 1 ? 4 : 2;
        struct wanted wanted = {m, microbatches, every_run ? 1 : microbatches, planned};
        int data = m->replicate * m->shard;
        const struct tt_model *of = m->experts ? with_experts : model;
        struct train_job job = train_job_make(of, &world.data, (int64_t)wanted.microbatches * data, 1, T);
        struct train_result result;

        job.pipe = m->pipe;
        job.replicate = m->replicate;
        job.context = m->context;
        job.gathers = m->gathers;
        job.tensor = m->tensor;
        job.grains = m->grains;
        job.experts = m->experts;
        if (m->experts)
            job.router_losses.microbatch = 0.1F;
        job.ranks = m->pipe * data * m->context * m->tensor;
        job.reshard = TT_RESHARD_AFTER_FORWARD_NEVER;
        job.every_run = every_run;
        job.scheduler = planned ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
        job.steps = 1;
        job.validation_batches = 0;
        job.after_step = check_rank;
        job.after_arg = &wanted;
        if (fixture_check(train_job_run(&job, &result)) < 0)
            fail_msg("pp %d x dp_replicate %d x dp_shard %d x cp %d x tp %d x ep %d, engine %d", m->pipe, m->replicate,
                     m->shard, m->context, m->tensor, m->experts, (int)job.scheduler);
        train_result_release(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_sends_what_its_formula_says),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("traffic", tests, set_up, tear_down);
}
