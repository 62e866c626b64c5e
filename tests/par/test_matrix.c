/* SPDX-License-Identifier: MIT
 *
 * The matrix of layouts and policies. Every value of every axis meets every value of every other axis in some run, and
 * each run is compared with one rank. A few hundred runs cover all pairs in millions of combinations, and nearly every
 * fault needs only a pair of features.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/math/rng.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/layout/units.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

enum { MOST_BATCH = 24, CANDIDATES = 64 };

/* --- the axes --- */

/* FSDP, HSDP, DDP */
static const struct {
    int ranks, replicate;
} meshes[] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {8, 1}, {4, 2}, {8, 2}, {8, 4}, {2, 2}, {3, 3}, {4, 4}, {8, 8}};

static char *some[] = {"attention\\.w", "feed_forward"}, *kept[] = {"\\.wq\\."};
static const char *const wraps[] = {"block", "model", "param", "size:1k", "[attention\\.w, feed_forward]"};
static const struct tt_words wrap_patterns = {2, true, some}, keep_patterns = {1, true, kept};

static const enum tt_reshard reshards[] = {TT_RESHARD_AFTER_FORWARD_ALWAYS,  TT_RESHARD_AFTER_FORWARD_NEVER,
                                           TT_RESHARD_AFTER_FORWARD_DEFAULT, TT_RESHARD_AFTER_FORWARD_LAST_LAYER,
                                           TT_RESHARD_AFTER_FORWARD_PART,    TT_RESHARD_AFTER_FORWARD_PATTERNS};
static const char *const reshard_names[] = {"always", "never", "default", "last_layer", "2", "[\\.wq\\.]"};

static const struct tt_recompute recomputes[] = {
    {TT_RECOMPUTE_NONE, 0}, {TT_RECOMPUTE_FULL, 0}, {TT_RECOMPUTE_SELECTIVE, 2}, {TT_RECOMPUTE_OP, 0}};

enum axis { MODEL, MESH, WRAP, RESHARD, ENGINE, SYNC, RECOMPUTE, ACCUMULATION, PREFETCH, OPTIMIZER, AXES };
enum { MOST_VALUES = 12 };
static const int n_values[AXES] = {2, COUNT(meshes), COUNT(wraps), COUNT(reshards), 2, 2, COUNT(recomputes), 3, 3, 2};

struct point {
    int value[AXES];
};

/* --- models, data, and the results of one rank --- */

static struct fixture world, muon_world;

static struct {
    struct train_result reference[2][2][MOST_BATCH + 1]; /* AdamW or Muon, model, batch */
    bool has_reference[2][2][MOST_BATCH + 1];
    bool met[AXES][MOST_VALUES][AXES][MOST_VALUES];
} seen;

static int set_up(void **state)
{
    const struct fixture_size size = {.odd_layers = 2, .odd_vocab = 23, .tied_layers = 3, .narrow = true};

    fixture_open(&world, &size);
    fixture_open(&muon_world, &size);
    tt_param_groups_set_optim(muon_world.odd, TT_OPTIM_MUON);
    tt_param_groups_set_optim(muon_world.tied, TT_OPTIM_MUON);
    return 0;
}

static int tear_down(void **state)
{
    for (int m = 0; m < 2; m++)
        for (int b = 0; b <= MOST_BATCH; b++) {
            train_result_release(&seen.reference[0][m][b]);
            train_result_release(&seen.reference[1][m][b]);
        }
    fixture_close(&muon_world);
    fixture_close(&world);
    return 0;
}

/* --- a run --- */

static struct train_job job_of(const struct point *p)
{
    const int *v = p->value;
    int64_t global_batch = (int64_t)meshes[v[MESH]].ranks * (v[ACCUMULATION] + 1);
    const struct fixture *of = v[OPTIMIZER] ? &muon_world : &world;
    struct train_job job = train_job_make(v[MODEL] ? of->tied : of->odd, &of->data, global_batch, 1, 8);

    job.ranks = meshes[v[MESH]].ranks;
    job.replicate = meshes[v[MESH]].replicate;
    job.wrap = wraps[v[WRAP]];
    job.reshard = reshards[v[RESHARD]];
    job.reshard_part = 2;
    job.scheduler = v[ENGINE] ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
    job.last_microbatch = v[SYNC];
    job.recompute = recomputes[v[RECOMPUTE]];
    job.prefetch = v[PREFETCH];
    job.steps = 2;
    job.validation_batches = 0;
    if (v[WRAP] == COUNT(wraps) - 1) {
        job.wrap = NULL;
        job.wrap_patterns = wrap_patterns;
    }
    if (job.reshard == TT_RESHARD_AFTER_FORWARD_PATTERNS)
        job.keep = keep_patterns;
    return job;
}

static const char *name_of(const struct point *p)
{
    static const char *const recompute_names[] = {"none", "full", "every second block", "op"};
    static char text[240];
    const int *v = p->value;

    (void)snprintf(
        text, sizeof text,
        "%s model, %d ranks, %d replicas, wrap %s, reshard %s, %s, %s, recompute %s, %d microbatches, prefetch "
        "%d, %s",
        v[MODEL] ? "tied" : "odd", meshes[v[MESH]].ranks, meshes[v[MESH]].replicate, wraps[v[WRAP]],
        reshard_names[v[RESHARD]], v[ENGINE] ? "planned" : "eager", v[SYNC] ? "last_microbatch" : "every_microbatch",
        recompute_names[v[RECOMPUTE]], v[ACCUMULATION] + 1, v[PREFETCH], v[OPTIMIZER] ? "Muon" : "AdamW");
    return text;
}

/* The payload by formula, from the engine's units. */
static int64_t payload_formula(const struct train_job *job)
{
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;
    const struct tt_layout *layout;
    int64_t S = job->ranks / job->replicate, bytes = 0;

    assert_int_equal(fixture_check(train_job_options(job, &options)), 0);
    options.scheduler = TT_ENGINE_EAGER;
    assert_int_equal(fixture_check(tt_engine_new(&options, NULL, 0, &engine)), 0);
    layout = tt_engine_layout(engine);
    for (int u = 0; u < layout->n_units; u++) {
        const struct tt_unit *unit = &layout->units[u];
        int64_t second_ranks = !unit->reshard_after_forward ? 1 : unit->keep_degree ? unit->keep_degree : S;

        bytes += train_job_payload(job, unit->shard_elements, unit->grad_elements, second_ranks);
        bytes += (S - 1) * (unit->trained_elements - unit->matrices_begin) * (int64_t)sizeof(float);
    }
    tt_engine_free(engine);
    return bytes;
}

static const struct train_result *reference_of(const struct point *p)
{
    static const struct point one = {{0}};
    struct train_job job = job_of(&one), same = job_of(p);
    int optimizer = p->value[OPTIMIZER], model = p->value[MODEL], batch = (int)same.global_batch;

    job.model = same.model;
    job.global_batch = same.global_batch;
    if (!seen.has_reference[optimizer][model][batch])
        assert_int_equal(fixture_check(train_job_run(&job, &seen.reference[optimizer][model][batch])), 0);
    seen.has_reference[optimizer][model][batch] = true;
    return &seen.reference[optimizer][model][batch];
}

static void run(const struct point *p)
{
    struct train_job job = job_of(p);
    const struct train_result *reference = reference_of(p);
    struct train_result found;
    const char *difference = NULL;
    int64_t formula = payload_formula(&job);
    double distance;

    if (fixture_check(train_job_run(&job, &found)) < 0)
        fail_msg("%s", name_of(p));
    if (job.scheduler == TT_ENGINE_EAGER ? found.payload != formula : found.payload > formula)
        fail_msg("%s: %lld bytes of payload, the formula gives %lld", name_of(p), (long long)found.payload,
                 (long long)formula);
    if (train_job_is_exact(&job))
        difference = train_result_difference(&job, reference, &found);
    if (difference)
        fail_msg("%s: %s", name_of(p), difference);
    distance = train_result_distance(&job, reference, &found);
    if (!(distance <= 1e-5))
        fail_msg("%s: off by %g", name_of(p), distance);
    train_result_release(&found);
}

/* --- all pairs --- */

/* To keep halves, the number of shards must be even. */
static bool can_be(const struct point *p)
{
    int mesh = p->value[MESH];

    return reshards[p->value[RESHARD]] != TT_RESHARD_AFTER_FORWARD_PART ||
           meshes[mesh].ranks / meshes[mesh].replicate % 2 == 0;
}

/* The number of pairs of values that occur at this point for the first time; records them if `remember`. */
static int new_pairs(const struct point *p, bool remember)
{
    int n = 0;

    for (int a = 0; a < AXES; a++)
        for (int b = a + 1; b < AXES; b++) {
            bool *met = &seen.met[a][p->value[a]][b][p->value[b]];

            n += !*met;
            *met = *met || remember;
        }
    return n;
}

/* Draws some points with this pair of values. Returns the one with the most new pairs. */
static struct point best_with(struct tt_rng *rng, uint64_t *draw, int a, int x, int b, int y)
{
    struct point best = {{0}};
    int most = -1;

    for (int c = 0; c < CANDIDATES; c++) {
        struct point p;
        int n;

        for (int axis = 0; axis < AXES; axis++)
            p.value[axis] = (int)(tt_rng_bits(rng, (*draw)++) % (uint64_t)n_values[axis]);
        p.value[a] = x;
        p.value[b] = y;
        n = can_be(&p) ? new_pairs(&p, false) : -1;
        if (n > most) {
            most = n;
            best = p;
        }
    }
    return best;
}

/* Returns the number of runs. */
static int meet_all(struct tt_rng *rng, uint64_t *draw)
{
    int runs = 0;

    memset(seen.met, 0, sizeof seen.met);
    for (int a = 0; a < AXES; a++)
        for (int b = a + 1; b < AXES; b++)
            for (int pair = 0; pair < n_values[a] * n_values[b]; pair++) {
                int x = pair / n_values[b], y = pair % n_values[b];
                struct point p;

                if (seen.met[a][x][b][y])
                    continue;
                p = best_with(rng, draw, a, x, b, y);
                if (!can_be(&p)) /* no point has this pair */
                    continue;
                (void)new_pairs(&p, true);
                run(&p);
                runs++;
            }
    return runs;
}

static void every_value_meets_every_other(void **state)
{
    struct tt_rng rng = tt_rng_make(11, "matrix");
    uint64_t draw = 0;
    int runs = 0, rounds = sweep_stride() == 1 ? 4 : 1;

    for (int round = 0; round < rounds; round++)
        runs += meet_all(&rng, &draw);
    print_message("# %d runs\n", runs);
    assert_true(runs >= rounds * (COUNT(meshes) * COUNT(reshards) - 6)); /* 6 meshes have an odd number of shards */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_meets_every_other),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("matrix", tests, set_up, tear_down);
}
