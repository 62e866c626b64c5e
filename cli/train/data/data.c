/* SPDX-License-Identifier: MIT
 *
 * Datasets of a run: rank 0 prepares them, all ranks open them.
 */
#include "cli/train/data/data.h"

#include <string.h>

#include "cli/train/data/tokens.h"

struct preparation {
    const struct tt_dataset_spec *spec;
    struct tt_dataset_ref *ref;
};

static int prepare(void *arg)
{
    const struct preparation *p = arg;

    return tt_dataset_prepare(p->spec, p->ref);
}

int tt_train_data_open(struct tt_comm *comm, const struct tt_train_data_options *o, struct tt_train_data *ret_data)
{
    struct tt_train_data data = {.seq_len = o->seq_len};
    struct tt_sampler_options sampling = {
        .seq_len = o->seq_len, .shuffle = o->shuffle, .repeat = o->repeat, .documents = o->documents, .seed = o->seed};
    const struct tt_dataset_kind *kind = NULL;
    struct tt_dataset_spec spec = {.name = o->dataset,
                                   .path = o->path,
                                   .text_field = o->text_field,
                                   .vocab_size = o->vocab_size,
                                   .cache_dir = o->cache_folder};
    struct tt_dataset_ref ref;
    int rc = 0;

    memset(&ref, 0, sizeof ref);
    rc = tt_dataset_find(o->dataset, &kind);
    if (rc == 0 && kind->is_text)
        rc = tt_tokenizer_load(o->tokenizer_folder, &data.tokenizer);
    TT_TRY(tt_comm_agree(comm, rc));
    spec.tokenizer = data.tokenizer;
    if (comm->rank == 0) /* tokenizing has no time limit */
        rc = tt_comm_work(comm, prepare, &(struct preparation){&spec, &ref});
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_comm_broadcast(comm, &ref, sizeof ref, 0));
    TT_TRY(tt_train_tokens_open(comm, &spec, kind->is_text, &ref, &data.dataset));
    rc = tt_sampler_new(data.dataset, &sampling, &data.sampler);
    TT_TRY(tt_comm_agree(comm, rc));
    *ret_data = data;
    memset(&data, 0, sizeof data);
out:
    tt_train_data_release(&data);
    return rc;
}

void tt_train_data_release(struct tt_train_data *data)
{
    tt_sampler_free(data->sampler);
    tt_dataset_free(data->dataset);
    tt_tokenizer_free(data->tokenizer);
    memset(data, 0, sizeof *data);
}

int tt_train_data_batch(struct tt_train_data *data, int64_t first, int64_t n, int32_t *tokens, int32_t *labels,
                        int32_t *positions, int64_t *valid)
{
    int64_t T = data->seq_len;
    int rc = 0;

    TT_TRY(tt_dataset_recheck(data->dataset));
    for (int64_t i = 0; i < n; i++)
        TT_TRY(tt_sampler_get(data->sampler, first + i, tokens + i * T, labels + i * T,
                              positions ? positions + i * T : NULL));
    for (int64_t i = 0; i < n * T; i++)
        *valid += labels[i] >= 0;
out:
    return rc;
}
