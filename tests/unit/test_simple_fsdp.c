/* SPDX-License-Identifier: MIT
 *
 * What the planned scheduler schedules, as text: a line per microbatch and direction, with the collectives between the
 * nodes of the units. The units are e for the embeddings, 0 to 3 for the blocks, and h for norm and output.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"
#include "parallel/engine/engine.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/planner/planner.h"
#include "parallel/planner/simple_fsdp.h"
#include "tests/help/machine.h"
#include "tests/help/mesh.h"

/* Compute takes long, bytes and messages take nothing, so all communication is hidden. */
static const struct tt_machine calm = TT_MACHINE("calm", 1e6, 1e6, 1e6, 1e-9, 1e-9, 1e12);
/* A message takes longer than all compute. */
static const struct tt_machine latent = TT_MACHINE("latent", 1e12, 1e12, 1e12, 1.0, 1.0, 1e12);

static struct tt_model *model;      /* two blocks, each as large as the embeddings */
static struct tt_model *head_heavy; /* four blocks; the embeddings are larger than a block and than any scratch */

static struct tt_engine *plan(struct tt_engine_options o)
{
    struct tt_engine *engine = NULL;

    o.model = o.model ? o.model : model;
    o.sharding.wrap = "block";
    o.prefetch = 1;
    o.threads = 1;
    o.local_batch = 1;
    if (!o.seq_len)
        o.seq_len = 8;
    if (!o.microbatches)
        o.microbatches = 1;
    if (tt_engine_new(&o, NULL, 0, &engine) < 0 || tt_program_check(tt_engine_program(engine)) < 0)
        fail_msg("%s", tt_error_message());
    return engine;
}

static struct tt_mesh mesh_of(int replicate, int shard)
{
    struct tt_mesh mesh;

    assert_int_equal(tt_mesh_init(DP_DEGREES(replicate, shard), replicate * shard, &mesh), 0);
    return mesh;
}

/* The unit whose parameter a node reads or whose gradient it writes; TT_NONE if none. */
static int unit_of(const struct tt_program *p, int node)
{
    const struct tt_node *n = &p->stages[0].graph->nodes[node];

    for (int k = 0; k < n->n_in + n->n_out; k++) {
        int value = k < n->n_in ? n->in[k] : n->out[k - n->n_in];

        if (value != TT_NONE && p->stages[0].graph->values[value].param != TT_NONE)
            return p->layout->unit_of[p->stages[0].graph->values[value].param];
    }
    return TT_NONE;
}

static char letter(const struct tt_program *p, int unit)
{
    return unit == 0 ? 'e' : unit == p->layout->n_units - 1 ? 'h' : (char)('0' + unit - 1);
}

static void add_units(struct tt_text *text, const struct tt_program *p, const struct tt_instr *instr)
{
    const struct tt_bucket of = tt_instr_units(p->buckets, instr);

    for (int i = 0; i < of.n; i++)
        tt_text_add(text, "%c", letter(p, of.units[i]));
}

/* "+x" begins a gather, "x?" waits for it, "x" are nodes of the unit, "-x" reshards, ">x" begins a reduction, "x!"
 * waits for it. */
static char *text_of(const struct tt_program *p)
{
    static const char *const begins[TT_PURPOSES] = {[TT_UNSHARD] = "+", [TT_REDUCE] = ">", [TT_ALL_REDUCE] = "all "};
    struct tt_text text = {0};
    int last = TT_NONE;

    for (int i = 0; i < p->n_instrs; i++) {
        const struct tt_instr *instr = &p->instrs[i];
        const char *before = "", *after = "";

        switch (instr->kind) {
        case TT_RUN:
            if (unit_of(p, instr->node) == TT_NONE || unit_of(p, instr->node) == last)
                continue;
            last = unit_of(p, instr->node);
            tt_text_add(&text, "%s%c", text.size ? " " : "", letter(p, last));
            continue;
        case TT_BEGIN:
            before = begins[instr->purpose];
            break;
        case TT_WAIT:
            if (instr->purpose == TT_ALL_REDUCE)
                continue;
            after = instr->purpose == TT_REDUCE ? "!" : "?";
            break;
        case TT_RESHARD:
            before = "-";
            break;
        case TT_ADD:
            after = "+";
            break;
        case TT_LOSS:
        case TT_FOLD:
        case TT_NORM:
        case TT_CLIP:
        case TT_OPTIMIZER:
            continue;
        default:
            fail_msg("text_of has no case for '%s'", tt_instr_name(instr));
        }
        if (text.size)
            tt_text_add(&text, " ");
        tt_text_add(&text, "%s", before);
        add_units(&text, p, instr);
        tt_text_add(&text, "%s", after);
    }
    return text.text;
}

static void schedules(struct tt_engine_options options, const char *wanted)
{
    struct tt_engine *engine;
    char *found;

    options.scheduler = TT_ENGINE_PLANNED;
    engine = plan(options);
    found = text_of(tt_engine_program(engine));
    if (strcmp(found, wanted) != 0)
        fail_msg("found  '%s'\nwanted '%s'", found, wanted);
    tt_free(found);
    tt_engine_free(engine);
}

static void gathers_come_one_bucket_ahead_and_only_for_readers(void **state)
{
    schedules((struct tt_engine_options){.mesh = mesh_of(1, 2), .machine = calm, .bucket_bytes = 1},
              "+e +0 e? e -e +1 0? 0 -0 +h 1? 1 +0 h? h -h >h 1 -1 >1 0? 0 h! -0 >0 e >e 1! 0! e!");
}

static void latency_makes_buckets(void **state)
{
    schedules(
        (struct tt_engine_options){.mesh = mesh_of(1, 2), .model = head_heavy, .machine = latent},
        "+e +012 e? e -e +3 012? 0 -0 1 -1 2 -2 +h 3? 3 -3 h? h +321 -h >h +0 321? 3 h! -3 2 -2 1 -1 >321 0? 0 -0 >0 "
        "e 321! >e 0! e!");
}

static void an_all_reduce_begins_when_its_sum_is_complete(void **state)
{
    schedules(
        (struct tt_engine_options){.mesh = mesh_of(2, 2), .machine = calm, .bucket_bytes = 1},
        "+e +0 e? e -e +1 0? 0 -0 +h 1? 1 +0 h? h -h >h 1 -1 >1 0? 0 h! all h -0 >0 e >e 1! all 1 0! all 0 e! all e");
}

/* The number of collectives of a kind depends on the buckets. */
static void both_schedulers_use_the_same_kinds_of_instructions(void **state)
{
    for (int shards = 1; shards <= 2; shards++) {
        bool used[TT_ENGINE_PLANNED + 1][TT_INSTR_KINDS] = {{false}};

        for (int s = TT_ENGINE_EAGER; s <= TT_ENGINE_PLANNED; s++) {
            struct tt_engine *engine = plan((struct tt_engine_options){
                .mesh = mesh_of(2, shards), .machine = calm, .bucket_bytes = 1, .microbatches = 2, .scheduler = s});
            const struct tt_program *p = tt_engine_program(engine);

            for (int i = 0; i < p->n_instrs; i++)
                used[s][p->instrs[i].kind] = true;
            tt_engine_free(engine);
        }
        for (int k = 0; k < TT_INSTR_KINDS; k++)
            if (used[TT_ENGINE_EAGER][k] != used[TT_ENGINE_PLANNED][k])
                fail_msg("%d shards: only the %s scheduler uses '%s'", shards,
                         used[TT_ENGINE_EAGER][k] ? "eager" : "planned", tt_instr_name(&(struct tt_instr){.kind = k}));
    }
}

/* --- reshard auto --- */

static int64_t planned_bytes(int64_t limit, int *ret_kept)
{
    struct tt_engine *engine = plan((struct tt_engine_options){.mesh = mesh_of(1, 4),
                                                               .machine = latent,
                                                               .bucket_bytes = 1,
                                                               .sharding.reshard = TT_RESHARD_AFTER_FORWARD_ALWAYS,
                                                               .scheduler = TT_ENGINE_PLANNED,
                                                               .choose_reshard_by_limit = true,
                                                               .memory_limit = limit});
    const struct tt_layout *layout = tt_engine_layout(engine);
    int64_t bytes = tt_engine_memory(engine).total;

    *ret_kept = 0;
    for (int u = 0; u < layout->n_units; u++)
        *ret_kept += !layout->units[u].reshard_after_forward;
    tt_engine_free(engine);
    return bytes;
}

static void auto_keeps_what_the_limit_allows(void **state)
{
    int all, some, none;
    int64_t most = planned_bytes(0, &all), least = planned_bytes(1, &none), between;

    assert_true(all > 0);
    assert_int_equal(none, 0);
    assert_true(least < most);
    assert_true(planned_bytes(most, &some) <= most);
    assert_true(some > 0);
    (void)planned_bytes(most + most / 50, &some); /* before the memory plan the count is a little higher */
    assert_int_equal(some, all);
    between = planned_bytes((most + least) / 2, &some);
    assert_true(between <= (most + least) / 2);
    assert_true(some < all);
}

static int make_model(int64_t n_layers, int64_t dim, int64_t vocab_size, struct tt_model **ret_model)
{
    const struct tt_model_dims dims = {
        .dim = dim, .n_layers = n_layers, .n_heads = 2, .n_kv_heads = 2, .ffn_dim = 2 * dim, .vocab_size = vocab_size};

    return tt_model_new("llama3", "debugmodel", &dims, NULL, ret_model);
}

static int set_up(void **state)
{
    return make_model(2, 16, 64, &model) < 0 || make_model(4, 32, 2048, &head_heavy) < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    tt_model_free(model);
    tt_model_free(head_heavy);
    return 0;
}

/* --- what the planner counts --- */

/* Bytes of the first operands, one per parameter, of the unit's first collective of a purpose; 0 if it has none. */
static int64_t whole_bytes(const struct tt_program *p, enum tt_purpose purpose, int unit)
{
    int64_t bytes = 0;

    for (int i = 0; i < p->n_instrs; i++) {
        const struct tt_instr *instr = &p->instrs[i];

        if (instr->kind != TT_BEGIN || instr->purpose != purpose || instr->unit != unit)
            continue;
        if (purpose == TT_REDUCE && !tt_collective_travels(&instr->collective))
            return 0;
        for (int k = 0; k < p->layout->units[unit].n_params; k++)
            bytes += (p->buffers[p->operands[instr->operands + k]].bytes + 63) / 64 * 64;
        return bytes;
    }
    return 0;
}

/* This holds even on one shard, where bfloat16 parameters are copies although nothing travels. */
static void the_planner_counts_what_lowering_makes(void **state)
{
    for (int c = 0; c < 14; c++) { /* from 8 on: shards have the type of parameters; from 12 on: all is float64 */
        const int shards = 1 + c % 2;
        const enum tt_dtype wide = c < 12 ? TT_F32 : TT_F64;
        struct tt_engine_options o = {.mesh = mesh_of(1, shards),
                                      .model = model,
                                      .sharding = {.wrap = "block", .reshard = TT_RESHARD_AFTER_FORWARD_ALWAYS},
                                      .prefetch = 1,
                                      .threads = 1,
                                      .local_batch = 1,
                                      .seq_len = 8,
                                      .microbatches = 2,
                                      .param_dtype = c & 2 ? TT_BF16 : wide,
                                      .reduce_dtype = c < 12 && c & 4 ? TT_BF16 : wide,
                                      .shard_dtype = c >= 8 && c & 2 ? TT_BF16 : wide};
        const struct tt_machine machine = tt_machine_builtin();
        struct tt_order order = tt_order_accumulate(2, 1, true);
        struct tt_engine *engine;
        struct tt_lowering lowering = {.microbatches = 2,
                                       .threads = 1,
                                       .shard_dtype = o.shard_dtype,
                                       .param_dtype = o.param_dtype,
                                       .reduce_dtype = o.reduce_dtype,
                                       .staging = tt_collective_staging};
        struct tt_usage usage;
        struct tt_step_facts facts;
        const struct tt_program *eager;

        assert_int_equal(tt_engine_new(&o, NULL, 0, &engine), 0);
        eager = tt_engine_program(engine);
        lowering.stages = eager->stages;
        lowering.n_stages = eager->n_stages;
        lowering.layout = eager->layout;
        assert_int_equal(tt_usage_make(&order, lowering.stages, lowering.n_stages, lowering.layout, 1, &usage), 0);
        tt_step_facts_make(&usage, &lowering, &machine, eager, &facts);
        for (int u = 0; u < eager->layout->n_units; u++) {
            assert_int_equal(facts.unit_bytes[u], whole_bytes(eager, TT_UNSHARD, u));
            assert_int_equal(facts.unit_grad_bytes[u], whole_bytes(eager, TT_REDUCE, u));
            assert_true((facts.unit_bytes[u] > 0) == (shards > 1 || o.param_dtype != o.shard_dtype));
        }
        tt_step_facts_release(&facts);
        tt_usage_release(&usage);
        tt_order_release(&order);
        tt_engine_free(engine);
    }
}

/* --- what planning takes --- */

/* The number of positions visited to look ahead, for a model of so many layers in which every parameter is a unit. */
static int64_t looked_ahead(int64_t layers, int64_t limit)
{
    struct tt_model *deep = NULL;
    struct tt_engine *engine = NULL;
    struct tt_order order = tt_order_accumulate(2, 1, true);
    struct tt_usage usage = {0};
    struct tt_step_facts facts = {0};
    struct tt_plan plan;
    const struct tt_machine machine = tt_machine_builtin();
    struct tt_candidate candidate = {
        .bucket_bytes = 1 << 20, .expects_waits = true, .limits = {.step_bytes = limit, .exchanged_bytes = limit}};
    struct tt_engine_options o = {.mesh = mesh_of(1, 2),
                                  .machine = machine,
                                  .sharding = {.wrap = "param", .reshard = TT_RESHARD_AFTER_FORWARD_ALWAYS},
                                  .prefetch = 1,
                                  .threads = 1,
                                  .local_batch = 1,
                                  .seq_len = 8,
                                  .microbatches = 2};
    struct tt_lowering lowering = {.microbatches = 2,
                                   .threads = 1,
                                   .param_dtype = TT_F32,
                                   .reduce_dtype = TT_F32,
                                   .staging = tt_collective_staging};
    struct tt_simple_fsdp fsdp = {.lowering = &lowering, .facts = &facts, .machine = &machine, .prefetch = 1};
    bool *reshard;

    assert_int_equal(make_model(layers, 16, 64, &deep), 0);
    o.model = deep;
    assert_int_equal(tt_engine_new(&o, NULL, 0, &engine), 0);
    lowering.stages = tt_engine_program(engine)->stages;
    lowering.n_stages = tt_engine_program(engine)->n_stages;
    lowering.layout = tt_engine_layout(engine);
    assert_int_equal(tt_usage_make(&order, lowering.stages, lowering.n_stages, lowering.layout, 1, &usage), 0);
    tt_step_facts_make(&usage, &lowering, &machine, tt_engine_program(engine), &facts);
    memset(facts.other_bytes, 0, (size_t)usage.n_positions * sizeof *facts.other_bytes);
    candidate.reshard = reshard = tt_calloc((size_t)lowering.layout->n_units, sizeof *reshard);
    memset(reshard, true, (size_t)lowering.layout->n_units * sizeof *reshard);
    plan = tt_simple_fsdp_plan(&fsdp, candidate);
    assert_true(plan.schedule.n > 0);
    tt_plan_release(&plan);
    tt_free(reshard);
    tt_step_facts_release(&facts);
    tt_usage_release(&usage);
    tt_order_release(&order);
    tt_engine_free(engine);
    tt_model_free(deep);
    return plan.looked;
}

static void four_times_the_layers_take_four_times_as_long_to_plan(void **state)
{
    int64_t few, many;

    /* Without a memory limit nothing looks ahead. A bucket has a hundred layers here. */
    assert_int_equal(looked_ahead(200, INT64_MAX), 0);
    /* With a limit, looking ahead ends where memory ends. */
    few = looked_ahead(50, 64 << 10);
    many = looked_ahead(200, 64 << 10);
    assert_true(few > 0);
    if (many > 5 * few)
        fail_msg("50 layers: %lld positions, 200 layers: %lld", (long long)few, (long long)many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathers_come_one_bucket_ahead_and_only_for_readers),
        cmocka_unit_test(latency_makes_buckets),
        cmocka_unit_test(an_all_reduce_begins_when_its_sum_is_complete),
        cmocka_unit_test(both_schedulers_use_the_same_kinds_of_instructions),
        cmocka_unit_test(auto_keeps_what_the_limit_allows),
        cmocka_unit_test(the_planner_counts_what_lowering_makes),
        cmocka_unit_test(four_times_the_layers_take_four_times_as_long_to_plan),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("simple_fsdp", tests, set_up, tear_down);
}
