/* SPDX-License-Identifier: MIT
 *
 * Makes the parts of a loop, each before those that need it, and releases them.
 */
#include "cli/train/loop.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "trainer/data/data.h"

/* A unique name for the part of the run from this start on, the same on all ranks. */
static int make_run_id(struct tt_comm *comm, char ret_id[TT_RUN_ID_BYTES])
{
    tt_random_word(ret_id);
    return tt_comm_broadcast(comm, ret_id, TT_RUN_ID_BYTES, 0);
}

static int take_folder(struct tt_loop *l)
{
    const struct tt_config *cfg = l->setup->cfg;
    bool resumes = false;
    int rc = 0;

    if (l->setup->comm->rank == 0 && (rc = tt_start_can_resume(cfg, &resumes)) == 0)
        rc = tt_run_folder_take(cfg, resumes, l->options.overwrite, &l->folder);
    if (l->setup->comm->rank == 0 && rc == 0 && !l->folder.replaces)
        tt_run_folder_console(cfg, l->options.argc, l->options.argv);
    return tt_comm_agree(l->setup->comm, rc);
}

/* Whether the weights to start from are there and fit, so that the old run is not removed for nothing. */
static int look_at_weights(struct tt_loop *l)
{
    const struct tt_config *cfg = l->setup->cfg;
    struct tt_train_progress at = l->at;
    struct tt_start start = {.resumed_from = -1};
    int rc = 0;

    if (l->options.overwrite && (cfg->checkpoint.initial_load_path || cfg->checkpoint.initial_load_in_hf))
        rc = tt_start_peek(l->setup, &l->data, &l->reporter, true, &at, &start);
    tt_start_release(&start);
    return rc;
}

/* Removes the run that this one replaces, when its data and weights are known to be there. */
static int replace_run(struct tt_loop *l)
{
    const struct tt_config *cfg = l->setup->cfg;
    int rc = look_at_weights(l);

    if (rc < 0)
        return rc;
    if (l->folder.replaces && (rc = tt_run_folder_replace(cfg, &l->folder)) == 0)
        tt_run_folder_console(cfg, l->options.argc, l->options.argv);
    return tt_comm_agree(l->setup->comm, rc);
}

static int open_data(struct tt_loop *l)
{
    int rc = 0;

    TT_TRY(tt_datasets_open_training(l->setup, &l->data));
    tt_train_progress_count_steps(&l->at, l->setup, &l->data);
    TT_TRY(tt_validator_open(l->setup, &l->validator));
    TT_TRY(tt_train_text_open(l->setup, &l->data, &l->text));
out:
    return rc;
}

static int open_saver(struct tt_loop *l)
{
    const struct tt_config *cfg = l->setup->cfg;
    char *folder;
    int rc;

    tt_saver_init(l->setup, &l->reporter, &l->data, &l->saver);
    if (!cfg->checkpoint.enable || cfg->checkpoint.load_only)
        return 0;
    folder = tt_run_folder_checkpoints(cfg);
    rc = tt_saver_open(&l->saver, folder, l->run_id);
    tt_free(folder);
    return rc;
}

/* Not collective. */
static int open_records(struct tt_loop *l)
{
    const struct tt_setup *s = l->setup;
    const struct tt_loop_options *o = &l->options;
    int rc = 0;

    TT_TRY(tt_reporter_open(&l->reporter, o->json));
    /* run.yaml describes the start that trained last */
    if (s->comm->rank == 0 && l->at.step < tt_train_progress_last_step(&l->at, s, &l->data))
        rc = tt_run_folder_record(s->cfg, o->argc, o->argv, s->comm->size, s->threads, &s->job.engine.machine);
out:
    return rc;
}

int tt_loop_open(const struct tt_setup *s, const struct tt_loop_options *options, struct tt_loop *ret_loop)
{
    struct tt_loop *l = ret_loop;
    struct tt_run_about about;
    int rc = 0;

    *l = (struct tt_loop){.setup = s, .options = *options, .folder = TT_RUN_FOLDER_NONE};
    tt_reporter_init(s, &l->reporter);
    TT_TRY(take_folder(l));
    TT_TRY(make_run_id(s->comm, l->run_id));
    TT_TRY(open_data(l));
    TT_TRY(tt_comm_agree(s->comm, tt_engine_allocate(s->engine)));
    TT_TRY(replace_run(l));
    TT_TRY(open_saver(l));
    TT_TRY(tt_start_load(&l->saver, l->run_id, &l->at, &l->start));
    tt_train_progress_count_steps(&l->at, s, &l->data); /* earlier steps may have had another batch */
    TT_TRY(tt_train_progress_check(&l->at, s, &l->data));
    TT_TRY(tt_saver_check_space(&l->saver, &l->at));
    TT_TRY(tt_reporter_measure_peak(&l->reporter, tt_engine_team(s->engine)));
    TT_TRY(tt_reporter_predict(&l->reporter));
    TT_TRY(tt_comm_agree(s->comm, open_records(l)));
    about = tt_loop_about(l);
    tt_reporter_begin(&l->reporter, &about);
    s->comm->timeout_sec = (double)s->cfg->comm.train_timeout_seconds;
    l->has_begun = true;
out:
    return rc;
}

struct tt_run_about tt_loop_about(const struct tt_loop *l)
{
    return (struct tt_run_about){.start = &l->start,
                                 .at = &l->at,
                                 .data = &l->data,
                                 .validator = &l->validator,
                                 .run_id = l->run_id,
                                 .verbose = l->options.verbose,
                                 .argc = l->options.argc,
                                 .argv = l->options.argv};
}

void tt_loop_close(struct tt_loop *l, int exit_code)
{
    if (!l->setup)
        return;
    tt_reporter_close(&l->reporter, l->at.step, exit_code);
    tt_saver_close(&l->saver);
    tt_start_release(&l->start);
    tt_train_text_release(&l->text);
    tt_validator_release(&l->validator);
    tt_train_data_release(&l->data);
    if (!l->has_begun) /* nothing stays of a run that never was */
        tt_run_folder_undo(l->setup->cfg, &l->folder);
    tt_run_folder_release(&l->folder);
    *l = (struct tt_loop){.setup = NULL};
}
