/* SPDX-License-Identifier: MIT
 *
 * A run that is saved on one mesh and continues on another has the bits of an uninterrupted run, and its checkpoints
 * have the same digests. Meshes have pipelines, shards and replicas.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"
#include "checkpoint/steps/steps.h"
#include "checkpoint/tools/tools.h"
#include "core/base/mem.h"
#include "core/math/rng.h"
#include "core/os/file.h"
#include "parallel/comm/collectives.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"
#include "trainer/job/tensors.h"

enum { GLOBAL_BATCH = 16, HALF = 2, STEPS = 4, PAIRS = 60 };

static struct fixture world;

/* The uninterrupted run on one rank, for one model and for one whose first and last stage share a weight. */
static struct {
    struct train_result result;
    char *folder;
} whole[2];

/* How one part of a run saves and loads. */
struct part {
    struct train_job job;
    const char *folder;
    const struct tt_ckpt_policy *policy;
    bool async;
    enum tt_load_choice reading;
    int saves_at[2]; /* steps */
};

/* --- saving and loading on a rank --- */

static int save_async(struct tt_ckpt_store *store, struct tt_ckpt_save *save, const struct tt_ckpt_policy *policy)
{
    struct tt_ckpt_saving *saving = NULL;
    struct tt_ckpt_saved saved;
    int rc = 0;

    TT_TRY(
        tt_ckpt_writer_new(tt_ckpt_staging_bytes(save->state, &store->mesh, policy, store->comm->rank), &save->writer));
    TT_TRY(tt_ckpt_save_begin(store, save, &saving));
    TT_TRY(tt_ckpt_saving_end(saving, &saved));
out:
    tt_ckpt_writer_free(save->writer);
    return rc;
}

static int save(struct tt_comm *comm, const struct part *part, const struct tt_mesh *mesh, int step,
                const struct tt_ckpt_state *state)
{
    struct tt_ckpt_store *store = NULL;
    struct tt_ckpt_saved saved;
    struct tt_ckpt_save request = {.state = state,
                                   .meta = json_pack("{s:i}", "step", step),
                                   .policy = part->policy->name,
                                   .filter = part->policy->filter};
    int rc = 0;

    TT_TRY(tt_ckpt_store_open(comm, mesh, part->folder, "run", &store));
    rc = part->async ? save_async(store, &request, part->policy) : tt_ckpt_save(store, &request, &saved);
out:
    tt_ckpt_store_close(store);
    json_decref(request.meta);
    return rc;
}

static int load(struct tt_comm *comm, const struct part *part, const struct tt_mesh *mesh,
                const struct tt_ckpt_state *state)
{
    struct tt_ckpt_request request = {.line = {.load_step = -1}, .reading = part->reading};
    struct tt_ckpt_found found = {.step = -1};
    int rc = tt_ckpt_resume(comm, mesh, part->folder, &request, state, &found);

    if (rc == 0 && found.step != part->job.first_step)
        rc = tt_fail(TT_EINTERNAL, "found step %d, wanted %d", (int)found.step, part->job.first_step);
    tt_ckpt_found_release(&found);
    return rc;
}

/* Saves or loads, with the engine's state. */
static int at_step(struct tt_comm *comm, struct tt_engine *engine, int step, void *arg)
{
    const struct part *part = arg;
    struct tt_engine_options options = {0};
    struct tt_job_tensors tensors = {0};
    int rc = 0;

    TT_TRY(train_job_options(&part->job, &options));
    tt_job_tensors_init(&options, engine, &tensors);
    if (step == part->job.first_step)
        rc = load(comm, part, &options.mesh, &tensors.state);
    else if (step == part->saves_at[0] || step == part->saves_at[1])
        rc = save(comm, part, &options.mesh, step, &tensors.state);
    tt_job_tensors_release(&tensors);
out:
    train_job_options_release(&options);
    return rc;
}

static int load_first(struct tt_comm *comm, struct tt_engine *engine, void *arg)
{
    const struct part *part = arg;

    return at_step(comm, engine, part->job.first_step, arg);
}

static int run(struct part *part, struct train_result *ret_result)
{
    part->job.after_step = at_step;
    part->job.after_arg = part;
    if (part->job.first_step) {
        part->job.load = load_first;
        part->job.load_arg = part;
    }
    return train_job_run(&part->job, ret_result);
}

/* --- the uninterrupted run --- */

static char *new_folder(void)
{
    char *folder = tt_format("%s/titan-resume-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");

    assert_non_null(mkdtemp(folder));
    return folder;
}

static void remove_folder(char *folder)
{
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

static struct train_job plain_job(bool tied)
{
    struct train_job job = train_job_make(tied ? world.tied : world.odd, &world.data, GLOBAL_BATCH, 1, 8);

    job.steps = STEPS;
    job.validation_batches = 3;
    job.average_decay = 0.9;
    return job;
}

static int tear_down(void **state)
{
    for (int tied = 0; tied < 2; tied++) {
        remove_folder(whole[tied].folder);
        train_result_release(&whole[tied].result);
    }
    fixture_close(&world);
    return 0;
}

static int set_up(void **state)
{
    fixture_open(&world, &(struct fixture_size){.odd_layers = 6, .odd_vocab = 23, .tied_layers = 6, .narrow = true});
    for (int tied = 0; tied < 2; tied++) {
        struct part part = {.policy = tt_ckpt_policy_row(0), .saves_at = {HALF, STEPS}, .job = plain_job(tied)};

        part.folder = whole[tied].folder = new_folder();
        if (fixture_check(run(&part, &whole[tied].result)) < 0)
            return -1;
    }
    return 0;
}

static struct tt_manifest manifest_of(const char *folder, int step)
{
    struct tt_manifest manifest = {0};
    char *path = tt_step_path(folder, step);

    if (tt_step_check(path, &manifest) != 0)
        fail_msg("%s", tt_error_message());
    tt_free(path);
    return manifest;
}

/* NULL if all tensors have the digests of the whole run. */
static const char *other_digest(bool tied, const char *folder, int step)
{
    struct tt_manifest a = manifest_of(whole[tied].folder, step), b = manifest_of(folder, step);
    static char text[160];
    bool differs = a.n_tensors != b.n_tensors;

    (void)snprintf(text, sizeof text, "step %d: %d tensors and %d", step, a.n_tensors, b.n_tensors);
    for (int i = 0; i < a.n_tensors && !differs; i++) {
        differs = strcmp(a.tensor[i].name, b.tensor[i].name) != 0 || !b.tensor[i].has_digest ||
                  a.tensor[i].digest != b.tensor[i].digest;
        (void)snprintf(text, sizeof text, "step %d: the digest of '%s'", step, a.tensor[i].name);
    }
    tt_manifest_release(&a);
    tt_manifest_release(&b);
    return differs ? text : NULL;
}

/* What commands report about the last step: it is intact, and equal to the whole run's. */
static const char *other_verdict(bool tied, const char *folder)
{
    char *a = tt_step_path(whole[tied].folder, STEPS), *b = tt_step_path(folder, STEPS);
    json_t *verified = NULL, *compared = NULL;
    const char *text = NULL;

    if (fixture_check(tt_ckpt_verify(b, TT_VERIFY_DEEP, &verified)) < 0 ||
        !json_is_true(json_object_get(verified, "ok")))
        text = "a checkpoint is not intact";
    else if (fixture_check(tt_ckpt_diff(a, b, 0.0, &compared)) < 0 || !json_is_true(json_object_get(compared, "equal")))
        text = "checkpoints are not equal";
    json_decref(verified);
    json_decref(compared);
    tt_free(a);
    tt_free(b);
    return text;
}

/* --- pairs of meshes --- */

static uint64_t drawn; /* random numbers used so far */

static int draw(int n)
{
    const struct tt_rng rng = tt_rng_make(11, "pairs");

    return (int)(tt_rng_bits(&rng, drawn++) % (uint64_t)n);
}

static void draw_layout(struct train_job *job)
{
    static const enum tt_pipeline_schedule schedules[] = {TT_PP_1F1B,
                                                          TT_PP_GPIPE,
                                                          TT_PP_LOOPED_BFS,
                                                          TT_PP_INTERLEAVED_1F1B,
                                                          TT_PP_INTERLEAVED_ZERO_BUBBLE,
                                                          TT_PP_ZBV_ZERO_BUBBLE,
                                                          TT_PP_DUAL_PIPE_V};
    int shards = 1 << draw(2), n;

    job->pipe = 1 << draw(3);
    job->replicate = 1 << draw(2);
    job->ranks = job->pipe * shards * job->replicate;
    n = GLOBAL_BATCH / (shards * job->replicate);
    job->scheduler = draw(2) ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
    job->schedule_of_pipe = schedules[draw(sizeof schedules / sizeof *schedules)];
    if (job->schedule_of_pipe == TT_PP_DUAL_PIPE_V && n < 2 * job->pipe)
        job->schedule_of_pipe = TT_PP_ZBV_ZERO_BUBBLE;
    job->stages_per_rank = tt_pipeline_row(job->schedule_of_pipe)->multi ? 2 : 1;
}

static struct part draw_part(bool tied, const char *folder)
{
    struct part part = {.folder = folder, .job = plain_job(tied)};

    draw_layout(&part.job);
    part.policy = tt_ckpt_policy_row(draw(3));
    part.async = draw(2);
    part.reading = draw(2) ? TT_LOAD_ALL : TT_LOAD_ONCE;
    return part;
}

static const char *words(char *buf, size_t size, const struct part *p)
{
    (void)snprintf(buf, size, "pp %d (%s), %d ranks, %d replicas, policy %s %s%s", p->job.pipe,
                   tt_pipeline_row(p->job.schedule_of_pipe)->name, p->job.ranks, p->job.replicate, p->policy->name,
                   p->policy->filter ? p->policy->filter : "", p->async ? ", async" : "");
    return buf;
}

static void check_pair(int number, bool tied, struct part *first, struct part *second)
{
    struct train_result a, b;
    char one[160], other[160];
    const char *difference;

    first->job.steps = first->saves_at[0] = HALF;
    second->job.first_step = HALF;
    second->saves_at[0] = STEPS;
    (void)words(one, sizeof one, first);
    (void)words(other, sizeof other, second);
    if (fixture_check(run(first, &a)) < 0)
        fail_msg("pair %d: %s", number, one);
    if (fixture_check(run(second, &b)) < 0)
        fail_msg("pair %d: %s, after %s", number, other, one);
    for (int s = 0; s < HALF; s++) {
        b.loss[s] = a.loss[s];
        b.norm[s] = a.norm[s];
        b.z_loss[s] = a.z_loss[s];
    }
    difference = train_result_difference(&second->job, &whole[tied].result, &b);
    if (!difference)
        difference = other_digest(tied, first->folder, HALF);
    if (!difference)
        difference = other_digest(tied, first->folder, STEPS);
    if (!difference)
        difference = other_verdict(tied, first->folder);
    if (difference)
        fail_msg("pair %d: %s, then %s: %s", number, one, other, difference);
    train_result_release(&a);
    train_result_release(&b);
}

static void a_run_continues_on_any_mesh(void **state)
{
    drawn = 0;
    for (int i = 0; i < PAIRS / sweep_stride(); i++) {
        char *folder = new_folder();
        bool tied = draw(3) == 0;
        struct part first = draw_part(tied, folder), second = draw_part(tied, folder);

        check_pair(i, tied, &first, &second);
        remove_folder(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_continues_on_any_mesh),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("resume", tests, set_up, tear_down);
}
