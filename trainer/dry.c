/* SPDX-License-Identifier: MIT
 *
 * A dry run: the parts of a start that change nothing, in the same order, plus an inspection of data and disk.
 */
#include "trainer/dry.h"

#include <string.h>

#include "checkpoint/durable/patience.h"
#include "checkpoint/steps/steps.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "trainer/data/data.h"
#include "trainer/run/folder.h"
#include "trainer/save/saver.h"

/* --- the data --- */

bool tt_dry_knows_tokens(const struct tt_dry *d, int part)
{
    return d->tokenizer && tt_tokenizer_info(d->tokenizer)->hash == d->data.part[part].dataset->ref.info.tokenizer_hash;
}

static struct tt_dry_lengths measure_documents(const struct tt_train_data *data)
{
    struct tt_dry_lengths lengths = {0};

    for (int p = 0; p < data->n; p++) {
        const int64_t *begin = data->part[p].dataset->offsets;
        const struct tt_documents *documents = tt_sampler_documents(data->part[p].sampler);

        for (int64_t i = 0; begin && i < documents->n; i++) {
            int64_t d = documents->index ? documents->index[i] : i, n = begin[d + 1] - begin[d];

            lengths.shortest = lengths.documents == 0 || n < lengths.shortest ? n : lengths.shortest;
            lengths.longest = n > lengths.longest ? n : lengths.longest;
            lengths.cut += n > data->seq_len;
            lengths.tokens += n;
            lengths.documents++;
        }
    }
    return lengths;
}

/* How often tokens repeat in a sample, as a sum over samples. */
static void count_repeats(const struct tt_dry *d, const int32_t *tokens, const int32_t *labels,
                          struct tt_text_repeats *sum)
{
    int64_t n = d->data.seq_len, *count = tt_calloc((size_t)d->setup->job.model->dims.vocab_size, sizeof *count);

    for (int64_t i = 0; i < n; i++) {
        sum->anywhere += n > 1 ? 2.0 * (double)count[tokens[i]]++ / ((double)n * (double)(n - 1)) : 0.0;
        sum->next += labels[i] == tokens[i] ? 1.0 / (double)n : 0.0;
    }
    tt_free(count);
}

/* Reads the first samples of the next step, as the ranks will, and decodes the beginning of each. */
static int read_samples(struct tt_dry *d)
{
    int64_t seq_len = d->data.seq_len, batch = d->setup->job.global_batch, valid = 0;
    int32_t *tokens = tt_calloc((size_t)seq_len, sizeof *tokens), *labels = tt_calloc((size_t)seq_len, sizeof *labels);
    int wanted = batch < TT_DRY_SAMPLES ? (int)batch : TT_DRY_SAMPLES, rc = 0;

    if (d->at.step >= tt_train_progress_last_step(&d->at, d->setup, &d->data))
        wanted = 0;
    for (int i = 0; i < wanted; i++) {
        struct tt_dry_sample *sample = &d->sample[i];

        sample->number = d->at.sample_cursor + i;
        sample->part = tt_mixture_get(&d->data.mixture, sample->number).part;
        sample->n = seq_len < TT_DRY_TOKENS ? seq_len : TT_DRY_TOKENS;
        TT_TRY(tt_train_data_batch(&d->data, sample->number, 1, tokens, labels, NULL, &valid));
        sample->token = tt_calloc((size_t)sample->n, sizeof *sample->token);
        memcpy(sample->token, tokens, (size_t)sample->n * sizeof *tokens);
        count_repeats(d, tokens, labels, &d->repeats);
        d->n_samples++;
        if (tt_dry_knows_tokens(d, sample->part))
            TT_TRY(tt_tokenizer_decode(d->tokenizer, sample->token, sample->n, &sample->text));
    }
out:
    d->repeats.anywhere /= d->n_samples ? d->n_samples : 1;
    d->repeats.next /= d->n_samples ? d->n_samples : 1;
    tt_free(tokens);
    tt_free(labels);
    return rc;
}

/* --- all of it --- */

struct looking {
    struct tt_dry *dry;
    bool overwrite;
};

/* What rank 0 does while the others wait. */
static int look(void *arg)
{
    const struct looking *l = arg;
    struct tt_dry *d = l->dry;
    int rc = 0;

    /* packed tokens can be read without a tokenizer, so failing to load it is no error */
    if (!d->data.tokenizer && tt_tokenizer_load(d->setup->cfg->model.hf_assets_path, &d->own) < 0)
        d->own = NULL;
    d->tokenizer = d->data.tokenizer ? d->data.tokenizer : d->own;
    d->lengths = measure_documents(&d->data);
    TT_TRY(read_samples(d));
    TT_TRY(tt_saver_look_at_disk(d->setup, &d->data, &d->at, l->overwrite, &d->disk));
out:
    return rc;
}

int tt_dry_look(const struct tt_setup *s, bool overwrite, int (*asked_to_stop)(void), struct tt_dry *ret_dry)
{
    struct tt_comm *comm = s->comm;
    struct tt_dry *d = ret_dry;
    struct looking looking = {d, overwrite};
    struct tt_patience patience;
    struct tt_team *team = NULL;
    bool resumes = false;
    int asked, rc = 0;

    *d = (struct tt_dry){.setup = s};
    tt_reporter_init(s, NULL, &d->reporter);
    TT_TRY(tt_engine_agree(s->engine, comm));
    if (comm->rank == 0 && (rc = tt_start_can_resume(s->cfg, &resumes)) == 0)
        rc = tt_run_folder_examine(s->cfg, resumes, overwrite);
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_datasets_open_training(s, &d->data));
    tt_train_progress_count_steps(&d->at, s, &d->data);
    TT_TRY(tt_validator_open(s, &d->validator));
    TT_TRY(tt_train_text_open(s, &d->data, &d->text));
    TT_TRY(tt_train_tasks_open(s, &d->data, &d->tasks));
    TT_TRY(tt_start_peek(s, &d->data, overwrite, &d->at, &d->start));
    tt_train_progress_count_steps(&d->at, s, &d->data);
    TT_TRY(tt_train_progress_check(&d->at, s, &d->data));
    patience = tt_patience_begin(comm, "look at the data and the disk");
    rc = tt_patience_work(comm, comm->rank == 0, look, &looking);
    tt_patience_end(comm, &patience);
    if (rc < 0)
        goto out;
    TT_TRY(tt_comm_agree(comm, tt_team_new(s->threads, &team)));
    tt_team_share(team, s->local_size);
    TT_TRY(tt_reporter_measure_peak(&d->reporter, team));
    TT_TRY(tt_reporter_predict(&d->reporter));
    /* a report after the signal would look like success, and a script that should stop would go on */
    asked = asked_to_stop();
    rc = tt_comm_agree(comm, asked ? tt_fail(asked, "stopped by a signal before the dry run was done") : 0);
out:
    tt_team_free(team);
    return rc;
}

void tt_dry_release(struct tt_dry *d)
{
    for (int i = 0; i < d->n_samples; i++) {
        tt_free(d->sample[i].token);
        tt_text_release(&d->sample[i].text);
    }
    tt_saver_disk_release(&d->disk);
    tt_tokenizer_free(d->own);
    tt_start_release(&d->start);
    tt_train_tasks_release(&d->tasks);
    tt_train_text_release(&d->text);
    tt_validator_release(&d->validator);
    tt_train_data_release(&d->data);
}
