/* SPDX-License-Identifier: MIT
 *
 * The eager schedule of a model of two blocks, as text. The units are E for the embeddings, 0 and 1 for the blocks, H
 * for the norm and the output, and O for the output where it is a unit of its own. A line names the unit that is
 * computed, after the actions before it:
 *     gather, await   start an unshard, wait for it         free, keep   reshard: all of it, all but a part
 *     reduce, sum     start a reduce-scatter, wait for it
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/passes/autodiff.h"
#include "core/program/instr/instr.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/layout/units.h"
#include "tests/help/mesh.h"

#define DEFAULT TT_RESHARD_AFTER_FORWARD_DEFAULT
#define ALWAYS  TT_RESHARD_AFTER_FORWARD_ALWAYS
#define NEVER   TT_RESHARD_AFTER_FORWARD_NEVER

struct scene {
    struct tt_model *model;
    struct tt_stage stage; /* the whole model */
    struct tt_layout *layout;
    struct tt_order order;
    struct tt_usage usage;
    struct tt_schedule schedule;
};

/* What is scheduled. If all members are 0: an untied model is trained on four ranks, every microbatch is reduced and
 * nothing is prefetched. */
struct script {
    bool tied, alone, muon;      /* alone: on one rank; muon: it trains the matrices of the blocks */
    struct tt_sharding sharding; /* wrap NULL: block, unless there are patterns */
    enum tt_graph_mode mode;
    int prefetch, microbatches;
    bool reduce_last;
};

static void scene_make(struct scene *s, const struct script *script)
{
    const struct tt_model_dims dims = {
        .dim = 8, .n_layers = 2, .n_heads = 2, .n_kv_heads = 1, .ffn_dim = 8, .vocab_size = 16, .tied = script->tied};
    struct tt_sharding sharding = script->sharding;
    bool trains = script->mode == TT_GRAPH_TRAIN;
    struct tt_fsdp fsdp = {.usage = &s->usage, .prefetch = script->prefetch};
    struct tt_mesh mesh;
    int gradients[64];

    memset(s, 0, sizeof *s);
    if (!sharding.wrap && !sharding.wrap_patterns.n)
        sharding.wrap = "block";
    assert_int_equal(tt_mesh_init(DP_DEGREES(1, script->alone ? 1 : 4), script->alone ? 1 : 4, &mesh), 0);
    assert_int_equal(tt_model_new("llama3", "debugmodel", &dims, NULL, &s->model), 0);
    if (script->muon)
        tt_param_groups_set_optim(s->model, TT_OPTIM_MUON);
    assert_int_equal(
        tt_model_graph(s->model, script->mode, TT_F32, 1, 4, false, &s->stage.graph, trains ? gradients : NULL), 0);
    if (script->reduce_last)
        assert_int_equal(tt_graph_carry_gradients(s->stage.graph), 0);
    assert_int_equal(tt_layout_new(s->model, &mesh, 0, &sharding, NULL, &s->layout), 0);
    s->order = tt_order_accumulate(script->microbatches, 1, trains);
    assert_int_equal(tt_usage_make(&s->order, &s->stage, 1, s->layout, 1, &s->usage), 0);
    tt_fsdp_schedule(&fsdp, &s->schedule);
}

static void scene_release(struct scene *s)
{
    tt_schedule_release(&s->schedule);
    tt_usage_release(&s->usage);
    tt_order_release(&s->order);
    tt_layout_free(s->layout);
    tt_stages_release(&s->stage, 1);
    tt_model_free(s->model);
}

static char letter(const struct scene *s, int unit)
{
    int n = s->layout->units[unit].n_params;
    int block = s->model->params[s->layout->units[unit].params[s->layout->units[unit].n_params - 1].param].block;

    if (n == 1 && strcmp(s->layout->units[unit].name, "output") == 0)
        return 'O';
    return block == TT_BLOCK_EMBEDDINGS ? 'E' : block == TT_BLOCK_HEAD ? 'H' : (char)('0' + block);
}

/* The unit whose parameters a node reads or, in backward, whose gradients it writes; 0 if there is none. */
static char computes(const struct scene *s, int node)
{
    const struct tt_node *n = &s->stage.graph->nodes[node];

    for (int i = 0; i < n->n_in + n->n_out; i++) {
        int value = i < n->n_in ? n->in[i] : n->out[i - n->n_in];
        const struct tt_value *v = value == TT_NONE ? NULL : &s->stage.graph->values[value];

        if (v && (v->kind == TT_VALUE_PARAM || (n->backward && v->kind == TT_VALUE_PARAM_GRAD)))
            return letter(s, s->layout->unit_of[v->param]);
    }
    return 0;
}

static char *schedule_text(const struct scene *s)
{
    static const char *const begins[TT_PURPOSES] = {[TT_UNSHARD] = "gather",
                                                    [TT_REDUCE] = "reduce",
                                                    [TT_ALL_REDUCE] = "all-reduce",
                                                    [TT_GATHER_UPDATES] = "gather-updates"};
    static const char *const waits[TT_PURPOSES] = {[TT_UNSHARD] = "await",
                                                   [TT_REDUCE] = "sum",
                                                   [TT_ALL_REDUCE] = "all-sum",
                                                   [TT_GATHER_UPDATES] = "await-updates"};
    static const char *const words[TT_INSTR_KINDS] = {
        [TT_RESHARD] = "free", [TT_KEEP] = "keep", [TT_OPTIMIZER] = "update"};
    struct tt_text text = {0};
    char unit = 0, phase = 0;

    for (int i = 0; i < s->schedule.n; i++) {
        const struct tt_instr *instr = &s->schedule.instrs[i];

        if (instr->kind == TT_RUN) {
            char now = computes(s, instr->node), then = s->stage.graph->nodes[instr->node].backward ? 'b' : 'f';

            if (now && (now != unit || then != phase))
                tt_text_add(&text, "%s %c%s\n", then == 'b' ? "backward" : "forward", now,
                            instr->microbatch ? " of the next" : "");
            unit = now ? now : unit;
            phase = now ? then : phase;
        } else if (instr->kind == TT_LOSS) {
            tt_text_add(&text, "loss, ");
        } else if (instr->kind == TT_CLIP) {
            tt_text_add(&text, "clip\n");
        } else {
            const char *word = instr->kind == TT_BEGIN  ? begins[instr->purpose]
                               : instr->kind == TT_WAIT ? waits[instr->purpose]
                               : words[instr->kind]     ? words[instr->kind]
                                                        : tt_instr_name(instr);

            tt_text_add(&text, "%s %c, ", word, letter(s, instr->unit));
        }
    }
    return text.text;
}

static void must_read_script(const struct script *script, const char *wanted)
{
    struct scene s;
    char *text, *end;

    scene_make(&s, script);
    text = schedule_text(&s);
    end = strstr(text, "all-reduce"); /* the update follows; it has its own test */
    if (end)
        *end = 0;
    assert_string_equal(text, wanted);
    tt_free(text);
    scene_release(&s);
}

static void must_read_with(bool tied, const struct tt_sharding *sharding, enum tt_graph_mode mode, int prefetch,
                           int microbatches, const char *wanted)
{
    must_read_script(
        &(struct script){
            .tied = tied, .sharding = *sharding, .mode = mode, .prefetch = prefetch, .microbatches = microbatches},
        wanted);
}

static void must_read(bool tied, enum tt_reshard reshard, enum tt_graph_mode mode, int prefetch, int microbatches,
                      const char *wanted)
{
    must_read_with(tied, &(struct tt_sharding){.reshard = reshard}, mode, prefetch, microbatches, wanted);
}

static void default_keeps_the_head(void **state)
{
    must_read(false, DEFAULT, TT_GRAPH_TRAIN, 1, 1,
              "gather E, await E, gather 0, forward E\n"
              "free E, await 0, gather 1, forward 0\n"
              "free 0, await 1, gather H, forward 1\n"
              "free 1, await H, gather 1, forward H\n"
              "loss, backward H\n"
              "free H, reduce H, await 1, gather 0, backward 1\n"
              "sum H, free 1, reduce 1, await 0, gather E, backward 0\n"
              "sum 1, free 0, reduce 0, await E, backward E\n"
              "sum 0, free E, reduce E, sum E, ");
}

static void always_gathers_every_unit_twice(void **state)
{
    must_read(false, ALWAYS, TT_GRAPH_TRAIN, 1, 1,
              "gather E, await E, gather 0, forward E\n"
              "free E, await 0, gather 1, forward 0\n"
              "free 0, await 1, gather H, forward 1\n"
              "free 1, await H, gather 1, forward H\n"
              "loss, free H, gather H, await H, backward H\n"
              "free H, reduce H, await 1, gather 0, backward 1\n"
              "sum H, free 1, reduce 1, await 0, gather E, backward 0\n"
              "sum 1, free 0, reduce 0, await E, backward E\n"
              "sum 0, free E, reduce E, sum E, ");
}

static void never_gathers_every_unit_once(void **state)
{
    must_read(false, NEVER, TT_GRAPH_TRAIN, 1, 1,
              "gather E, await E, gather 0, forward E\n"
              "await 0, gather 1, forward 0\n"
              "await 1, gather H, forward 1\n"
              "await H, forward H\n"
              "loss, backward H\n"
              "free H, reduce H, backward 1\n"
              "sum H, free 1, reduce 1, backward 0\n"
              "sum 1, free 0, reduce 0, backward E\n"
              "sum 0, free E, reduce E, sum E, ");
}

static void without_prefetch_every_gather_waits(void **state)
{
    must_read(false, DEFAULT, TT_GRAPH_TRAIN, 0, 1,
              "gather E, await E, forward E\n"
              "free E, gather 0, await 0, forward 0\n"
              "free 0, gather 1, await 1, forward 1\n"
              "free 1, gather H, await H, forward H\n"
              "loss, backward H\n"
              "free H, reduce H, gather 1, await 1, backward 1\n"
              "sum H, free 1, reduce 1, gather 0, await 0, backward 0\n"
              "sum 1, free 0, reduce 0, gather E, await E, backward E\n"
              "sum 0, free E, reduce E, sum E, ");
}

static void prefetch_two_looks_two_units_ahead(void **state)
{
    must_read(false, DEFAULT, TT_GRAPH_TRAIN, 2, 1,
              "gather E, await E, gather 0, gather 1, forward E\n"
              "free E, await 0, gather H, forward 0\n"
              "free 0, await 1, forward 1\n"
              "free 1, await H, gather 1, gather 0, forward H\n"
              "loss, backward H\n"
              "free H, reduce H, await 1, gather E, backward 1\n"
              "sum H, free 1, reduce 1, await 0, backward 0\n"
              "sum 1, free 0, reduce 0, await E, backward E\n"
              "sum 0, free E, reduce E, sum E, ");
}

/* A gather is then at most a rounding: nothing travels that compute could hide, and parameters that are not read need
 * not be rounded. */
static void one_rank_gathers_only_what_is_read_and_not_ahead(void **state)
{
    must_read_script(&(struct script){.alone = true, .prefetch = 2, .microbatches = 1},
                     "gather E, await E, forward E\n"
                     "free E, gather 0, await 0, forward 0\n"
                     "free 0, gather 1, await 1, forward 1\n"
                     "free 1, gather H, await H, forward H\n"
                     "loss, backward H\n"
                     "free H, reduce H, gather 1, await 1, backward 1\n"
                     "sum H, free 1, reduce 1, gather 0, await 0, backward 0\n"
                     "sum 1, free 0, reduce 0, backward E\n"
                     "sum 0, reduce E, sum E, ");
    must_read_script(&(struct script){.alone = true, .sharding.reshard = NEVER, .prefetch = 1, .microbatches = 1},
                     "gather E, await E, forward E\n"
                     "gather 0, await 0, forward 0\n"
                     "gather 1, await 1, forward 1\n"
                     "gather H, await H, forward H\n"
                     "loss, backward H\n"
                     "free H, reduce H, backward 1\n"
                     "sum H, free 1, reduce 1, backward 0\n"
                     "sum 1, free 0, reduce 0, backward E\n"
                     "sum 0, free E, reduce E, sum E, ");
}

/* Embeddings, norm and output form one unit, which is needed from the first node to the last. */
static void tied_embeddings_stay_gathered_for_the_whole_step(void **state)
{
    must_read(true, DEFAULT, TT_GRAPH_TRAIN, 1, 1,
              "gather H, await H, gather 0, forward H\n"
              "await 0, gather 1, forward 0\n"
              "free 0, await 1, forward 1\n"
              "free 1, forward H\n"
              "loss, gather 1, backward H\n"
              "await 1, gather 0, backward 1\n"
              "free 1, reduce 1, await 0, backward 0\n"
              "sum 1, free 0, reduce 0, backward H\n"
              "sum 0, free H, reduce H, sum H, ");
}

/* In the last backward of the first microbatch, the first units of the next one are gathered. */
static void prefetch_crosses_into_the_next_microbatch(void **state)
{
    must_read(false, DEFAULT, TT_GRAPH_TRAIN, 2, 2,
              "gather E, await E, gather 0, gather 1, forward E\n"
              "free E, await 0, gather H, forward 0\n"
              "free 0, await 1, forward 1\n"
              "free 1, await H, gather 1, gather 0, forward H\n"
              "loss, backward H\n"
              "free H, reduce H, await 1, gather E, backward 1\n"
              "sum H, free 1, reduce 1, await 0, backward 0\n"
              "sum 1, free 0, reduce 0, await E, gather 0, backward E\n"
              "sum 0, free E, reduce E, gather E, await E, gather 1, forward E of the next\n"
              "free E, await 0, gather H, forward 0 of the next\n"
              "free 0, await 1, forward 1 of the next\n"
              "free 1, await H, gather 1, gather 0, forward H of the next\n"
              "loss, backward H of the next\n"
              "sum E, free H, reduce H, await 1, gather E, backward 1 of the next\n"
              "sum H, free 1, reduce 1, await 0, backward 0 of the next\n"
              "sum 1, free 0, reduce 0, await E, backward E of the next\n"
              "sum 0, free E, reduce E, sum E, ");
}

static void validation_frees_every_unit(void **state)
{
    static const char wanted[] = "gather E, await E, gather 0, forward E\n"
                                 "free E, await 0, gather 1, forward 0\n"
                                 "free 0, await 1, gather H, forward 1\n"
                                 "free 1, await H, forward H\n"
                                 "loss, free H, clip\n";

    must_read(false, DEFAULT, TT_GRAPH_VALIDATE, 1, 1, wanted);
    must_read(false, NEVER, TT_GRAPH_VALIDATE, 1, 1, wanted);
}

static void last_layer_keeps_the_last_block_too(void **state)
{
    must_read(false, TT_RESHARD_AFTER_FORWARD_LAST_LAYER, TT_GRAPH_TRAIN, 1, 1,
              "gather E, await E, gather 0, forward E\n"
              "free E, await 0, gather 1, forward 0\n"
              "free 0, await 1, gather H, forward 1\n"
              "await H, forward H\n"
              "loss, backward H\n"
              "free H, reduce H, gather 0, backward 1\n"
              "sum H, free 1, reduce 1, await 0, gather E, backward 0\n"
              "sum 1, free 0, reduce 0, await E, backward E\n"
              "sum 0, free E, reduce E, sum E, ");
}

static void expressions_keep_what_they_match(void **state)
{
    static char *words[] = {"^layers\\.0$"};
    const struct tt_sharding sharding = {
        .wrap = "block", .reshard = TT_RESHARD_AFTER_FORWARD_PATTERNS, .keep = {1, true, words}};

    must_read_with(false, &sharding, TT_GRAPH_TRAIN, 1, 1,
                   "gather E, await E, gather 0, forward E\n"
                   "free E, await 0, gather 1, forward 0\n"
                   "await 1, gather H, forward 1\n"
                   "free 1, await H, gather 1, forward H\n"
                   "loss, free H, gather H, await H, backward H\n"
                   "free H, reduce H, await 1, backward 1\n"
                   "sum H, free 1, reduce 1, gather E, backward 0\n"
                   "sum 1, free 0, reduce 0, await E, backward E\n"
                   "sum 0, free E, reduce E, sum E, ");
}

/* From forward to backward a part of each unit is kept; after backward nothing is kept. */
static void a_number_keeps_a_part(void **state)
{
    const struct tt_sharding sharding = {.wrap = "block", .reshard = TT_RESHARD_AFTER_FORWARD_PART, .reshard_part = 2};

    must_read_with(false, &sharding, TT_GRAPH_TRAIN, 1, 1,
                   "gather E, await E, gather 0, forward E\n"
                   "keep E, await 0, gather 1, forward 0\n"
                   "keep 0, await 1, gather H, forward 1\n"
                   "keep 1, await H, gather 1, forward H\n"
                   "loss, keep H, gather H, await H, backward H\n"
                   "free H, reduce H, await 1, gather 0, backward 1\n"
                   "sum H, free 1, reduce 1, await 0, gather E, backward 0\n"
                   "sum 1, free 0, reduce 0, await E, backward E\n"
                   "sum 0, free E, reduce E, sum E, ");
    must_read_with(false, &sharding, TT_GRAPH_VALIDATE, 1, 1,
                   "gather E, await E, gather 0, forward E\n"
                   "free E, await 0, gather 1, forward 0\n"
                   "free 0, await 1, gather H, forward 1\n"
                   "free 1, await H, forward H\n"
                   "loss, free H, clip\n");
}

/* The output's gradient is complete before backward begins. With `always` the unit is still gathered again, as in
 * FSDP2. */
static void the_output_alone_has_a_backward_too(void **state)
{
    static char *words[] = {"output"};
    struct tt_sharding sharding = {.wrap_patterns = {1, true, words}, .reshard = ALWAYS};

    must_read_with(false, &sharding, TT_GRAPH_TRAIN, 1, 1,
                   "gather E, await E, gather 0, forward E\n"
                   "free E, await 0, gather 1, forward 0\n"
                   "free 0, await 1, gather H, forward 1\n"
                   "free 1, await H, gather O, forward H\n"
                   "free H, await O, gather H, forward O\n"
                   "loss, free O, gather O, await O, free O, reduce O, await H, gather 1, backward H\n"
                   "sum O, free H, reduce H, await 1, gather 0, backward 1\n"
                   "sum H, free 1, reduce 1, await 0, gather E, backward 0\n"
                   "sum 1, free 0, reduce 0, await E, backward E\n"
                   "sum 0, free E, reduce E, sum E, ");
    sharding.reshard = DEFAULT;
    must_read_with(false, &sharding, TT_GRAPH_TRAIN, 1, 1,
                   "gather E, await E, gather 0, forward E\n"
                   "free E, await 0, gather 1, forward 0\n"
                   "free 0, await 1, gather H, forward 1\n"
                   "free 1, await H, gather O, forward H\n"
                   "await O, forward O\n"
                   "loss, free O, reduce O, gather 1, backward H\n"
                   "sum O, free H, reduce H, await 1, gather 0, backward 1\n"
                   "sum H, free 1, reduce 1, await 0, gather E, backward 0\n"
                   "sum 1, free 0, reduce 0, await E, backward E\n"
                   "sum 0, free E, reduce E, sum E, ");
}

static void a_model_in_one_unit_is_gathered_twice(void **state)
{
    const struct tt_sharding sharding = {.wrap = "model", .reshard = ALWAYS};

    must_read_with(false, &sharding, TT_GRAPH_TRAIN, 1, 1,
                   "gather H, await H, forward H\n"
                   "loss, free H, gather H, await H, backward H\n"
                   "free H, reduce H, sum H, ");
}

/* The first microbatch reduces nothing, but its units are freed. */
static void deferred_reductions_come_with_the_last_microbatch(void **state)
{
    must_read_script(&(struct script){.sharding = {.reshard = DEFAULT},
                                      .mode = TT_GRAPH_TRAIN,
                                      .prefetch = 1,
                                      .microbatches = 2,
                                      .reduce_last = true},
                     "gather E, await E, gather 0, forward E\n"
                     "free E, await 0, gather 1, forward 0\n"
                     "free 0, await 1, gather H, forward 1\n"
                     "free 1, await H, gather 1, forward H\n"
                     "loss, backward H\n"
                     "free H, await 1, gather 0, backward 1\n"
                     "free 1, await 0, gather E, backward 0\n"
                     "free 0, await E, backward E\n"
                     "free E, gather E, await E, gather 0, forward E of the next\n"
                     "free E, await 0, gather 1, forward 0 of the next\n"
                     "free 0, await 1, gather H, forward 1 of the next\n"
                     "free 1, await H, gather 1, forward H of the next\n"
                     "loss, backward H of the next\n"
                     "free H, reduce H, await 1, gather 0, backward 1 of the next\n"
                     "sum H, free 1, reduce 1, await 0, gather E, backward 0 of the next\n"
                     "sum 1, free 0, reduce 0, await E, backward E of the next\n"
                     "sum 0, free E, reduce E, sum E, ");
}

static void the_update_overlaps_all_reduces_with_norms(void **state)
{
    struct scene s;
    char *text;

    scene_make(&s, &(struct script){.mode = TT_GRAPH_TRAIN, .prefetch = 1, .microbatches = 3});
    text = schedule_text(&s);
    assert_string_equal(strstr(text, "all-reduce"),
                        "all-reduce E, all-reduce 0, all-sum E, norm E, all-reduce 1, all-sum 0, norm 0, all-reduce H, "
                        "all-sum 1, norm 1, all-sum H, norm H, clip\nupdate E, update 0, update 1, update H, ");
    tt_free(text);
    scene_release(&s);
}

static void the_gather_of_updates_overlaps_the_work_on_the_previous_ones(void **state)
{
    struct scene s;
    char *text;

    scene_make(&s, &(struct script){.muon = true, .mode = TT_GRAPH_TRAIN, .prefetch = 1, .microbatches = 1});
    text = schedule_text(&s);
    assert_string_equal(strstr(text, "clip"),
                        "clip\nupdate E, update 0, gather-updates 0, update 1, gather-updates 1, await-updates 0, "
                        "muon 0, update H, await-updates 1, muon 1, ");
    tt_free(text);
    scene_release(&s);
}

/* Nothing computes with this unit, so its gradient would never be complete. */
static void a_unit_without_backward_is_an_error(void **state)
{
    struct scene s;
    struct tt_order order = tt_order_accumulate(1, 1, true);
    struct tt_usage usage;

    scene_make(&s, &(struct script){.mode = TT_GRAPH_VALIDATE, .prefetch = 1, .microbatches = 1});
    assert_int_equal(tt_usage_make(&order, &s.stage, 1, s.layout, 1, &usage), TT_EINTERNAL);
    assert_non_null(strstr(tt_error_message(), "nothing in the graph uses unit tok_embeddings"));
    tt_order_release(&order);
    scene_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_keeps_the_head),
        cmocka_unit_test(always_gathers_every_unit_twice),
        cmocka_unit_test(never_gathers_every_unit_once),
        cmocka_unit_test(without_prefetch_every_gather_waits),
        cmocka_unit_test(prefetch_two_looks_two_units_ahead),
        cmocka_unit_test(one_rank_gathers_only_what_is_read_and_not_ahead),
        cmocka_unit_test(tied_embeddings_stay_gathered_for_the_whole_step),
        cmocka_unit_test(prefetch_crosses_into_the_next_microbatch),
        cmocka_unit_test(validation_frees_every_unit),
        cmocka_unit_test(last_layer_keeps_the_last_block_too),
        cmocka_unit_test(expressions_keep_what_they_match),
        cmocka_unit_test(a_number_keeps_a_part),
        cmocka_unit_test(the_output_alone_has_a_backward_too),
        cmocka_unit_test(a_model_in_one_unit_is_gathered_twice),
        cmocka_unit_test(deferred_reductions_come_with_the_last_microbatch),
        cmocka_unit_test(the_update_overlaps_all_reduces_with_norms),
        cmocka_unit_test(the_gather_of_updates_overlaps_the_work_on_the_previous_ones),
        cmocka_unit_test(a_unit_without_backward_is_an_error),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
