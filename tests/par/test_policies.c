/* SPDX-License-Identifier: MIT
 *
 * Every wrap, reshard and gradient-sync policy on thread ranks: they give the promised bits and the payload that a
 * formula computes from shapes alone, and their memory needs are in the expected order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/config/config.h"
#include "parallel/layout/units.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* --- models and data --- */

enum { MOST_PARAMS = 64 };

static struct fixture world;
static struct tt_model *deep;

static int set_up(void **state)
{
    fixture_open(&world, &(struct fixture_size){.odd_layers = 2, .odd_vocab = 23, .tied_layers = 3, .narrow = true});
    deep = fixture_model(&(struct tt_model_dims){
        .dim = 32, .n_layers = 9, .n_heads = 4, .n_kv_heads = 2, .ffn_dim = 96, .vocab_size = 64});
    return 0;
}

static int tear_down(void **state)
{
    fixture_close(&world);
    tt_model_free(deep);
    return 0;
}

/* --- the policies --- */

static char *attention[] = {"attention\\.w", "feed_forward"}, *weird[] = {"^layers\\.1\\..*norm", "w[12]\\.weight$"};

static const struct wrap {
    const char *name;
    struct tt_words patterns;
} wraps[] = {
    {"block", {0}},
    {"model", {0}},
    {"param", {0}},
    {"size:1k", {0}},
    {"size:3000", {0}},
    {"attention and feed forward", {2, true, attention}},
    {"second norms, then w1 and w2", {2, true, weird}},
};

static char *first_layer[] = {"^layers\\.0\\."}, *attention_only[] = {"attention\\.wq", "norm"};

static const struct reshard {
    const char *name;
    enum tt_reshard reshard;
    int part;
    struct tt_words keep;
} reshards[] = {
    {"always", TT_RESHARD_AFTER_FORWARD_ALWAYS, 0, {0}},
    {"never", TT_RESHARD_AFTER_FORWARD_NEVER, 0, {0}},
    {"default", TT_RESHARD_AFTER_FORWARD_DEFAULT, 0, {0}},
    {"last_layer", TT_RESHARD_AFTER_FORWARD_LAST_LAYER, 0, {0}},
    {"2", TT_RESHARD_AFTER_FORWARD_PART, 2, {0}},
    {"the shard ranks", TT_RESHARD_AFTER_FORWARD_PART, -1, {0}},
    {"first layer kept", TT_RESHARD_AFTER_FORWARD_PATTERNS, 0, {1, true, first_layer}},
    {"queries and norms kept", TT_RESHARD_AFTER_FORWARD_PATTERNS, 0, {2, true, attention_only}},
};

struct policies {
    const struct wrap *wrap;
    const struct reshard *reshard;
};

/* A job with one thread per rank. See train_job_make. */
static struct train_job job_of(const struct tt_model *model, int64_t global_batch, int ranks, int replicate,
                               struct policies p)
{
    struct train_job job = train_job_make(model, &world.data, global_batch, 1, 8);

    job.ranks = ranks;
    job.replicate = replicate;
    job.wrap = p.wrap->name;
    job.wrap_patterns = p.wrap->patterns;
    job.reshard = p.reshard->reshard;
    job.keep = p.reshard->keep;
    job.reshard_part = p.reshard->part < 0 ? ranks / replicate : p.reshard->part;
    job.steps = 2;
    job.validation_batches = 3;
    return job;
}

static const char *name_of(const struct train_job *job, struct policies p)
{
    static char text[200];

    (void)snprintf(text, sizeof text, "%d ranks, %d replicas, wrap %s, reshard %s, prefetch %d%s", job->ranks,
                   job->replicate, p.wrap->name, p.reshard->name, job->prefetch,
                   job->last_microbatch ? ", last_microbatch" : "");
    return text;
}

/* --- the formula --- */

/* The unit of a parameter, derived from its name alone. */
static int64_t unit_of(const struct train_job *job, struct policies p, int param)
{
    static const char *const size = "size:";
    const struct tt_model *model = job->model;
    const char *name = model->params[param].name;
    bool head = strcmp(name, "norm.weight") == 0 || strcmp(name, "output.weight") == 0 ||
                (model->dims.tied == 1 && strcmp(name, "tok_embeddings.weight") == 0);
    int64_t block = head ? 1000 : strncmp(name, "layers.", 7) == 0 ? 1 + name[7] - '0' : 0;

    if (p.wrap == &wraps[5])
        return strstr(name, "attention.w") ? 2000 : strstr(name, "feed_forward") ? 2001 : block;
    if (p.wrap == &wraps[6])
        return block == 2 && strstr(name, "norm")                       ? 2000
               : strstr(name, "w1.weight") || strstr(name, "w2.weight") ? 2001
                                                                        : block;
    if (strncmp(p.wrap->name, size, 5) == 0) {
        int64_t unit = 0, bytes = 0, limit = strcmp(p.wrap->name, "size:1k") == 0 ? 1024 : 3000;

        for (int q = 0; q < param; q++) {
            bytes += 4 * model->params[q].shape[0] * (model->params[q].ndim == 2 ? model->params[q].shape[1] : 1);
            if (bytes >= limit) {
                unit++;
                bytes = 0;
            }
        }
        return unit;
    }
    return strcmp(p.wrap->name, "block") == 0 ? block : strcmp(p.wrap->name, "model") == 0 ? 0 : param;
}

static bool kept_param(const struct train_job *job, struct policies p, int param)
{
    const char *name = job->model->params[param].name;
    bool head = strcmp(name, "norm.weight") == 0 || strcmp(name, "output.weight") == 0 ||
                (job->model->dims.tied == 1 && param == 0);
    bool last = strncmp(name, "layers.", 7) == 0 && name[7] - '0' == job->model->dims.n_layers - 1;

    switch (p.reshard->reshard) {
    case TT_RESHARD_AFTER_FORWARD_NEVER:
        return true;
    case TT_RESHARD_AFTER_FORWARD_DEFAULT:
        return head;
    case TT_RESHARD_AFTER_FORWARD_LAST_LAYER:
        return head || last;
    case TT_RESHARD_AFTER_FORWARD_PATTERNS:
        if (p.reshard->keep.word == first_layer)
            return strncmp(name, "layers.0.", 9) == 0;
        return strstr(name, "attention.wq") || strstr(name, "norm");
    default:
        return false;
    }
}

/* The payload of one rank in a step. A unit is kept if the policy keeps one of its parameters. */
static int64_t payload_formula(const struct train_job *job, struct policies p)
{
    int64_t S = job->ranks / job->replicate, n = p.reshard->part < 0 ? S : p.reshard->part, bytes = 0;
    bool done[MOST_PARAMS] = {false};

    for (int first = 0; first < job->model->n_params; first++) {
        int64_t unit = unit_of(job, p, first), shard = 0, grads = 0;
        bool kept = false;

        for (int q = first; q < job->model->n_params && !done[first]; q++) {
            const struct tt_param *param = &job->model->params[q];

            if (unit_of(job, p, q) != unit)
                continue;
            shard += (param->shape[0] + S - 1) / S * (param->ndim == 2 ? param->shape[1] : 1);
            if (param->tied) /* its gradient is the sum of two */
                grads += (param->shape[0] + S - 1) / S * param->shape[1];
            kept = kept || kept_param(job, p, q);
            done[q] = q > first;
        }
        bytes += train_job_payload(job, shard, shard + grads, kept ? 1 : n ? n : S);
    }
    return bytes;
}

static void run(const struct train_job *job, struct policies p, struct train_result *ret_result)
{
    int64_t wanted = payload_formula(job, p);

    if (fixture_check(train_job_run(job, ret_result)) < 0)
        fail_msg("%s", name_of(job, p));
    if (ret_result->payload != wanted)
        fail_msg("%s: %lld bytes of payload, the formula gives %lld", name_of(job, p), (long long)ret_result->payload,
                 (long long)wanted);
}

/* --- the matrix --- */

struct ranks {
    int ranks, replicate;
};

static const struct ranks meshes[] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 1}, {4, 2}, {8, 1}, {8, 2}, {8, 4}};

/* The reference is one rank with wrap block. Each wrap and reshard policy runs on one mesh and prefetch in turn, or
 * on all of them. */
static void sweep(const struct tt_model *model, int64_t global_batch, bool last_microbatch, int stride)
{
    const struct policies plain = {&wraps[0], &reshards[0]};
    struct train_job job = job_of(model, global_batch, 1, 1, plain);
    struct train_result reference, found;
    int turn = 0;

    if (sweep_stride() > 1)
        stride = 2 * stride + 1;
    run(&job, plain, &reference);
    for (int w = 0; w < COUNT(wraps); w++)
        for (int r = 0; r < COUNT(reshards); r++)
            for (int m = 0; m < COUNT(meshes); m++) {
                struct policies p = {&wraps[w], &reshards[r]};
                int S = meshes[m].ranks / meshes[m].replicate;
                const char *difference = NULL;
                double distance;

                if (global_batch % meshes[m].ranks || (p.reshard->part > 0 && S % p.reshard->part) || turn++ % stride)
                    continue;
                job = job_of(model, global_batch, meshes[m].ranks, meshes[m].replicate, p);
                job.prefetch = turn % 3;
                job.last_microbatch = last_microbatch;
                run(&job, p, &found);
                if (train_job_is_exact(&job))
                    difference = train_result_difference(&job, &reference, &found);
                if (difference)
                    fail_msg("%s: %s", name_of(&job, p), difference);
                distance = train_result_distance(&job, &reference, &found);
                if (!(distance <= 1e-5))
                    fail_msg("%s: off by %g", name_of(&job, p), distance);
                train_result_release(&found);
            }
    train_result_release(&reference);
}

static void every_policy_gives_the_same_bits(void **state)
{
    sweep(world.odd, 8, false, 5);
    sweep(world.tied, 8, false, 5);
}

static void three_ranks_are_close(void **state)
{
    sweep(world.odd, 12, false, 7);
    sweep(world.tied, 12, false, 7);
}

/* --- one reduction a step --- */

static void deferred_reduction_is_close_on_every_layout(void **state)
{
    sweep(world.odd, 16, true, 7);
    sweep(world.tied, 24, true, 7);
}

/* With one microbatch per rank nothing is deferred, so the bits are the same. */
static void one_microbatch_has_nothing_to_defer(void **state)
{
    static const struct ranks one_each[] = {{1, 1}, {2, 1}, {4, 2}, {8, 1}, {8, 4}};
    const struct policies p = {&wraps[0], &reshards[2]};

    for (int m = 0; m < COUNT(one_each); m++) {
        struct train_job job = job_of(world.tied, one_each[m].ranks, one_each[m].ranks, one_each[m].replicate, p);
        struct train_result every, last;
        const char *difference;

        run(&job, p, &every);
        job.last_microbatch = true;
        run(&job, p, &last);
        difference = train_result_difference(&job, &every, &last);
        if (difference)
            fail_msg("%s: %s", name_of(&job, p), difference);
        train_result_release(&every);
        train_result_release(&last);
    }
}

/* The additions are in another order than the tree's, but always in the same one. */
static void deferred_reduction_has_one_order(void **state)
{
    const struct policies p = {&wraps[0], &reshards[2]}, q = {&wraps[2], &reshards[0]};
    struct train_job job = job_of(world.odd, 16, 4, 1, p), other = job_of(world.odd, 16, 4, 1, q);
    struct train_job tree = job;
    struct train_result first, again, every;

    job.last_microbatch = other.last_microbatch = true;
    other.threads = 3;
    other.prefetch = 2;
    run(&job, p, &first);
    run(&other, q, &again);
    run(&tree, p, &every);
    assert_null(train_result_difference(&job, &first, &again));
    assert_non_null(train_result_difference(&job, &first, &every));
    train_result_release(&first);
    train_result_release(&again);
    train_result_release(&every);
}

/* m = (j S + i) A + a if deferred, else (j A + a) S + i. */
static void neighbours_in_the_sum_are_neighbours_in_the_data(void **state)
{
    const struct policies p = {&wraps[0], &reshards[0]};
    struct train_job job = job_of(world.odd, 24, 8, 2, p);
    struct tt_engine_options options;

    for (int deferred = 0; deferred <= 1; deferred++)
        for (int rank = 0; rank < 8; rank++) {
            struct tt_engine *engine = NULL;
            int j = rank / 4, i = rank % 4;

            job.last_microbatch = deferred;
            assert_int_equal(fixture_check(train_job_options(&job, &options)), 0);
            assert_int_equal(fixture_check(tt_engine_new(&options, NULL, rank, &engine)), 0);
            for (int a = 0; a < 3; a++)
                assert_int_equal(tt_engine_microbatch(engine, a), deferred ? (j * 4 + i) * 3 + a : (j * 3 + a) * 4 + i);
            tt_engine_free(engine);
        }
}

/* --- memory --- */

static int64_t memory_of(struct policies p, int ranks, int64_t global_batch, bool last_microbatch)
{
    struct train_job job = job_of(deep, global_batch, ranks, 1, p);
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;
    int64_t bytes;

    job.last_microbatch = last_microbatch;
    assert_int_equal(fixture_check(train_job_options(&job, &options)), 0);
    assert_int_equal(fixture_check(tt_engine_new(&options, NULL, 1, &engine)), 0);
    bytes = tt_engine_memory(engine).total;
    tt_engine_free(engine);
    return bytes;
}

static void policies_order_the_memory(void **state)
{
    const struct wrap *block = &wraps[0];
    int64_t always = memory_of((struct policies){block, &reshards[0]}, 4, 16, false);
    int64_t never = memory_of((struct policies){block, &reshards[1]}, 4, 16, false);
    int64_t defaults = memory_of((struct policies){block, &reshards[2]}, 4, 16, false);
    int64_t last_layer = memory_of((struct policies){block, &reshards[3]}, 4, 16, false);
    int64_t half = memory_of((struct policies){block, &reshards[4]}, 4, 16, false);
    int64_t model = memory_of((struct policies){&wraps[1], &reshards[0]}, 4, 16, false);
    int64_t deferred = memory_of((struct policies){block, &reshards[0]}, 4, 16, true);

    print_message("# never %lld, last_layer %lld, default %lld, always %lld, 2 %lld, model %lld, deferred %lld\n",
                  (long long)never, (long long)last_layer, (long long)defaults, (long long)always, (long long)half,
                  (long long)model, (long long)deferred);
    /* Backward needs at once what default keeps and, in so small a model, what last_layer keeps: the two differ only in
     * the placement of buffers. */
    assert_true(never > last_layer && last_layer + last_layer / 100 >= defaults && defaults + defaults / 100 >= always);
    assert_true(never > half && half > always);
    assert_true(model > never);
    assert_true(deferred > always);
}

/* --- what is refused --- */

static void must_fail(const struct train_job *job, enum tt_key key, const char *message)
{
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;

    assert_int_equal(fixture_check(train_job_options(job, &options)), 0);
    assert_int_equal(tt_engine_new(&options, NULL, 0, &engine), TT_EUSAGE);
    assert_string_equal(tt_error_message(), message);
    assert_int_equal(tt_error_key(), key);
}

static void bad_policies_are_refused(void **state)
{
    static char *shadowed[] = {"attention\\.w", "wq"}, *nothing[] = {"norm", "layers\\.7"}, *broken[] = {"w(q"};
    const struct policies p = {&wraps[0], &reshards[0]};
    struct train_job job = job_of(world.odd, 16, 4, 1, p);

    job.wrap = "blocks";
    must_fail(&job, TT_KEY(parallelism.fsdp_wrap_policy),
              "'blocks' is not a wrap policy\nhelp: use block, model, param, "
              "size:<bytes>, or a list of regular expressions");
    job.wrap = "size:many";
    must_fail(&job, TT_KEY(parallelism.fsdp_wrap_policy),
              "'size:many' is not a wrap policy\nhelp: use block, model, param, "
              "size:<bytes>, or a list of regular expressions");
    job.wrap_patterns = (struct tt_words){2, true, shadowed};
    must_fail(&job, TT_KEY(parallelism.fsdp_wrap_policy),
              "'wq' matches no parameter that an earlier expression has not taken\n"
              "help: names look like layers.0.attention.wq.weight");
    job.wrap_patterns = (struct tt_words){1, true, broken};
    must_fail(&job, TT_KEY(parallelism.fsdp_wrap_policy),
              "invalid regular expression 'w(q': missing closing parenthesis (at "
              "byte 3)");
    job = job_of(world.odd, 16, 4, 1, p);
    job.reshard = TT_RESHARD_AFTER_FORWARD_PATTERNS;
    job.keep = (struct tt_words){2, true, nothing};
    must_fail(&job, TT_KEY(parallelism.fsdp_reshard_after_forward),
              "'layers\\.7' matches no unit and none of its parameters\n"
              "help: names look like tok_embeddings");
    job.reshard = TT_RESHARD_AFTER_FORWARD_PART;
    job.reshard_part = 3;
    must_fail(&job, TT_KEY(parallelism.fsdp_reshard_after_forward),
              "3 does not divide the 4 shard ranks\nhelp: use 1, 2, 4");
    job.reshard_part = 8;
    must_fail(&job, TT_KEY(parallelism.fsdp_reshard_after_forward),
              "8 does not divide the 4 shard ranks\nhelp: use 1, 2, 4");
}

/* A row that no configuration can name, or a choice without a row, means that somebody forgot a line. */
static void wrap_policies_are_the_choices_of_their_key(void **state)
{
    const struct tt_choices *choices = tt_config_row(TT_KEY(parallelism.fsdp_wrap_policy))->choices;
    int named = 0;

    for (int i = 0; i < tt_wrap_n_rows; i++) {
        const char *name = tt_wrap_rows[i].name;
        bool found = strchr(name, ':') != NULL; /* the configuration parses "size:<bytes>" itself */

        named += !found;
        for (int k = 0; k < choices->n; k++)
            found = found || strcmp(choices->choice[k].word, name) == 0;
        if (!found)
            fail_msg("the configuration has no wrap policy %s", name);
        found = false;
        for (int w = 0; w < COUNT(wraps); w++)
            found = found || strncmp(wraps[w].name, name, strlen(name)) == 0;
        if (!found)
            fail_msg("no job here has the wrap policy %s", name);
    }
    assert_int_equal(named, choices->n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_gives_the_same_bits),
        cmocka_unit_test(three_ranks_are_close),
        cmocka_unit_test(deferred_reduction_is_close_on_every_layout),
        cmocka_unit_test(one_microbatch_has_nothing_to_defer),
        cmocka_unit_test(deferred_reduction_has_one_order),
        cmocka_unit_test(neighbours_in_the_sum_are_neighbours_in_the_data),
        cmocka_unit_test(policies_order_the_memory),
        cmocka_unit_test(bad_policies_are_refused),
        cmocka_unit_test(wrap_policies_are_the_choices_of_their_key),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
