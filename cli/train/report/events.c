/* SPDX-License-Identifier: MIT
 *
 * Notes, warnings and answers to signals: one function for each event of a training run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/run/screen.h"
#include "cli/run/signals.h"
#include "cli/train/report/reporter.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"

static bool is_silent(const struct tt_reporter *r)
{
    return r->setup->comm->rank != 0;
}

void tt_reporter_validated(struct tt_reporter *r, int64_t step, const struct tt_validation_result *result, int n,
                           const char *const *name)
{
    struct tt_metrics_set *set = tt_calloc((size_t)n, sizeof *set);
    struct tt_metrics_validation all = {
        .step = step, .set = set, .ranks = r->setup->job.mesh.n_ranks, .n = name[0] ? n : 0};
    double sum = 0.0;

    for (int i = 0; i < n; i++) {
        set[i] = (struct tt_metrics_set){name[i], result[i].loss, result[i].tokens};
        sum += result[i].loss * (double)result[i].tokens;
        all.tokens += result[i].tokens;
        all.seconds += result[i].seconds;
    }
    all.loss = n == 1 ? result[0].loss : all.tokens ? sum / (double)all.tokens : 0.0;
    r->results.validated = step;
    r->results.validation_loss = all.loss;
    if (!is_silent(r))
        tt_metrics_validate(&r->metrics, &all);
    tt_free(set);
}

void tt_reporter_sampled(struct tt_reporter *r, const struct tt_metrics_sample *sample)
{
    if (!is_silent(r))
        tt_metrics_sample(&r->metrics, sample);
}

void tt_reporter_sample_failed(const struct tt_reporter *r, int64_t step)
{
    if (!is_silent(r))
        tt_warn("no text was sampled after step %" PRId64 ", training continues: %s", step, tt_error_message());
}

/* --- checkpoints --- */

void tt_reporter_saved(struct tt_reporter *r, const struct tt_ckpt_saved *saved, bool async)
{
    double sec = async ? saved->write_sec : saved->seconds; /* the time that is printed with it */
    double rate = sec > 0.0 ? (double)saved->bytes / sec / 1e9 : 0.0;
    char size[32];

    if (is_silent(r))
        return;
    r->results.saved = saved->step;
    tt_metrics_checkpoint(&r->metrics, saved, async);
    tt_text_bytes(size, sizeof size, (double)saved->bytes);
    if (async)
        tt_note("checkpoint step-%" PRId64
                ": %s in %d file%s, training waited %.2f s (%.2f s for the copy), written in %.2f s (%.2f GB/s)",
                saved->step, size, saved->files, saved->files == 1 ? "" : "s", saved->blocked_sec, saved->stage_sec,
                saved->write_sec, rate);
    else
        tt_note("checkpoint step-%" PRId64 ": %s in %d file%s, %.2f s (%.2f GB/s)", saved->step, size, saved->files,
                saved->files == 1 ? "" : "s", saved->seconds, rate);
}

void tt_reporter_save_failed(struct tt_reporter *r, int64_t step)
{
    if (is_silent(r))
        return;
    tt_metrics_checkpoint_failed(&r->metrics, step, tt_error_message());
    tt_warn("checkpoint of step %" PRId64 " FAILED, training continues, older checkpoints are unchanged: %s", step,
            tt_error_message());
}

void tt_reporter_save_waits(const struct tt_reporter *r, int64_t due, int64_t writing)
{
    if (!is_silent(r))
        tt_note("checkpoint step-%" PRId64 " is due while step-%" PRId64 " is still being written: waiting for it", due,
                writing);
}

void tt_reporter_exported(const struct tt_reporter *r, const char *folder, const struct tt_consolidated *exported)
{
    char size[32];

    if (!is_silent(r))
        tt_note("Hugging Face weights %s: %s in %d file%s", folder,
                tt_text_bytes(size, sizeof size, (double)exported->bytes), exported->files,
                exported->files == 1 ? "" : "s");
}

void tt_reporter_space_is_scarce(const struct tt_reporter *r, const char *folder, const struct tt_saver_space *space)
{
    char need_text[32], have_text[32];

    if (!is_silent(r))
        tt_warn("not enough space in '%s' for all checkpoints that checkpoint.keep_latest_k=%" PRId64
                " keeps: need %s, have %s; saves that do not fit will fail\n"
                "help: free space there, or set checkpoint.keep_latest_k=%" PRId64,
                folder, r->setup->cfg->checkpoint.keep_latest_k,
                tt_text_bytes(need_text, sizeof need_text, space->most),
                tt_text_bytes(have_text, sizeof have_text, space->have), space->fits);
}

/* --- the start --- */

void tt_reporter_random_weights(const struct tt_reporter *r, const char *folder)
{
    if (!is_silent(r))
        tt_warn("training starts from random weights: those in '%s' are not used\n"
                "help: --checkpoint.initial_load_in_hf loads them",
                folder);
}

void tt_reporter_request_was_applied(const struct tt_reporter *r, int64_t step)
{
    if (!is_silent(r))
        tt_note(
            "checkpoint.load_step and exclude_from_loading were applied when this line of steps began; it continues "
            "from step-%" PRId64 " (titan ckpt rollback %s STEP goes back again)",
            step, r->setup->cfg->job.dump_folder);
}

void tt_reporter_sync_changed(const struct tt_reporter *r, const char *before)
{
    const char *now = tt_setup_sync_word(r->setup->cfg->training.gradient_sync);

    /* where the layout does not change the bits, neither do sums of runs */
    if (before && tt_setup_layout_exact(r->setup) && strcmp(before, tt_setup_sync_word(TT_SYNC_LAST_MICROBATCH)) != 0)
        return;
    if (!is_silent(r) && before && strcmp(before, now) != 0)
        tt_note(
            "the checkpoint was trained with gradient_sync %s, this run continues with %s: losses differ in rounding",
            before, now);
}

/* --- traces --- */

void tt_reporter_trace_failed(const struct tt_reporter *r, int64_t step)
{
    if (!is_silent(r))
        tt_warn("no trace of step %" PRId64 ", training continues: %s", step, tt_error_message());
}

/* --- signals --- */

void tt_reporter_validation_is_lost(const struct tt_reporter *r, int64_t step)
{
    if (!is_silent(r))
        tt_note("the validation of step %" PRId64 " was cut short and is not done again: step-%" PRId64
                " has no averages of the weights",
                step, step);
}

/* What a second interrupt does. */
static const char *without(bool saves)
{
    return saves ? "stop without saving" : "stop at once";
}

void tt_reporter_answer_in_step(const struct tt_reporter *r, int64_t steps_done, bool is_long, bool saves)
{
    char text[200];

    if (is_silent(r))
        return;
    if (is_long && steps_done > 0 && saves)
        (void)snprintf(text, sizeof text, "stopping within step %" PRId64 ", keeping step %" PRId64, steps_done + 1,
                       steps_done);
    else if (is_long)
        (void)snprintf(text, sizeof text, "stopping within step %" PRId64, steps_done + 1);
    else
        (void)snprintf(text, sizeof text, "stopping after step %" PRId64 "%s", steps_done + 1,
                       saves                                 ? " and saving"
                       : r->setup->cfg->checkpoint.load_only ? ", nothing is saved (checkpoint.load_only)"
                                                             : ", nothing is saved (checkpoint.enable is off)");
    tt_signals_answer(text, without(saves && !(is_long && steps_done == 0)));
}

void tt_reporter_answer_in_save(const struct tt_reporter *r, int64_t step)
{
    char text[200];

    if (is_silent(r))
        return;
    (void)snprintf(text, sizeof text, "stopping after the checkpoint of step %" PRId64, step);
    tt_signals_answer(text, "stop without it");
    if (r->live.on)
        tt_screen_live("titan: saving");
}

/* where: "after ..." or "within ...", of the step that is done. */
static void answer_in_pause(const struct tt_reporter *r, const char *where, int64_t step, bool saves)
{
    char text[200];

    if (is_silent(r))
        return;
    (void)snprintf(text, sizeof text, "stopping %s step %" PRId64 "%s", where, step, saves ? ", keeping the step" : "");
    tt_signals_answer(text, without(saves));
}

void tt_reporter_answer_in_sample(const struct tt_reporter *r, int64_t step, bool saves)
{
    answer_in_pause(r, "after the text that is sampled after", step, saves);
}

void tt_reporter_answer_in_validation(const struct tt_reporter *r, int64_t step, bool saves)
{
    answer_in_pause(r, "within the validation of", step, saves);
}

void tt_reporter_answer_at_end(const struct tt_reporter *r)
{
    if (!is_silent(r))
        tt_signals_answer("the run is ending", NULL);
}
