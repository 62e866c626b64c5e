/* SPDX-License-Identifier: MIT
 *
 * What a run prints at its end.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include <unistd.h>

#include "cli/run/screen.h"
#include "cli/train/report/advice.h"
#include "cli/train/report/reporter.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "trainer/run/folder.h"

enum { LABEL_COLUMNS = 11 }; /* as in the banner */

static void add_loss(const struct tt_reporter *r, struct tt_text *out)
{
    const struct tt_results *results = &r->results;

    tt_text_add(out, "  loss     %.5f at step %" PRId64, results->loss, results->step);
    if (isfinite(results->z_loss))
        tt_text_add(out, ", z-loss %.5f", results->z_loss);
    if (results->validated)
        tt_text_add(out, ", validation %.5f at step %" PRId64, results->validation_loss, results->validated);
    tt_text_add(out, "\n");
}

static void add_tokens(const struct tt_reporter *r, const struct tt_run_about *about, double sec, struct tt_text *out)
{
    int64_t seen = about->at->ntokens_seen, epoch = tt_train_data_samples(about->data, 1);
    char count[32], rate[32];

    tt_text_add(out, "  tokens   %s seen", tt_text_count(count, sizeof count, seen));
    if (epoch > 0 && about->data->n == 1) /* the datasets of a mixture have epochs of their own */
        tt_text_add(out, " (%.2f epochs)", (double)about->at->sample_cursor / (double)epoch);
    if (sec > 0.0)
        tt_text_add(out, ", %s a second",
                    tt_text_count(rate, sizeof rate, (int64_t)((double)(seen - r->results.tokens_before) / sec)));
    tt_text_add(out, "\n");
}

static void add_saved(const struct tt_reporter *r, struct tt_text *out)
{
    char *folder = tt_run_folder_checkpoints(r->setup->cfg);

    if (r->results.saved)
        tt_text_add(out, "  saved    step-%" PRId64 " in %s\n", r->results.saved, folder);
    else
        tt_text_add(out, "  saved    nothing (checkpoint.%s)\n",
                    r->setup->cfg->checkpoint.enable ? "load_only is true" : "enable is false");
    tt_free(folder);
}

void tt_reporter_farewell(const struct tt_reporter *r, const struct tt_run_about *about)
{
    const struct tt_setup *s = r->setup;
    double sec = tt_clock_sec() - r->started_sec;
    struct tt_text text = {0};
    char elapsed[32];

    if (s->comm->rank != 0)
        return;
    add_loss(r, &text);
    add_tokens(r, about, sec, &text);
    tt_advice(s, &r->spent, &text);
    add_saved(r, &text);
    tt_screen_put(stderr, text.text, tt_screen_columns(STDERR_FILENO), LABEL_COLUMNS);
    tt_text_release(&text);
    if (tt_train_progress_last_step(about->at, s, about->data) < s->cfg->training.steps)
        tt_screen_say("titan: the data has ended (dataloader.repeat is false): there is no batch for step %" PRId64
                      "\n",
                      about->at->step + 1);
    tt_screen_say("titan: training completed: step %" PRId64 ", %s, in %s\n", about->at->step,
                  tt_text_duration(elapsed, sizeof elapsed, sec), s->cfg->job.dump_folder);
}
