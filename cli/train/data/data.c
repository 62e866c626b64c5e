/* SPDX-License-Identifier: MIT
 *
 * Datasets of a run: rank 0 prepares them, all ranks open them.
 */
#include "cli/train/data/data.h"

#include <string.h>

#include "cli/train/data/tokens.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/math/rng.h"

struct preparation {
    const struct tt_dataset_spec *spec;
    struct tt_dataset_ref *ref;
};

static int prepare(void *arg)
{
    const struct preparation *p = arg;

    return tt_dataset_prepare(p->spec, p->ref);
}

/* Every part has an order of its own. The first part has that of a single dataset. */
static uint64_t seed_of(uint64_t seed, int part)
{
    const struct tt_rng rng = tt_rng_make(seed, "dataloader parts");

    return part ? tt_rng_bits(&rng, (uint64_t)part) : seed;
}

/* What packing conversations leaves out, and what it joins. */
static void note_packs(const struct tt_train_part *part, bool documents)
{
    const struct tt_packs *p = tt_sampler_packs(part->sampler);
    char n[4][32];

    if (p && p->n_long)
        tt_note("%s: %s of %s conversations have more than %lld tokens; %s truncated, %s left out", part->name,
                tt_text_count(n[0], sizeof n[0], p->n_long), tt_text_count(n[1], sizeof n[1], p->n_given),
                (long long)p->seq_len, tt_text_count(n[2], sizeof n[2], p->n_truncated),
                tt_text_count(n[3], sizeof n[3], p->n_long - p->n_truncated));
    if (p && p->n_documents > p->n && !documents)
        tt_note("%s: a sample holds several conversations, and each sees those before it; %s=true keeps them apart",
                part->name, tt_key_name(TT_KEY_DOCUMENT_MASK));
}

int tt_train_data_tokenizer(const char *folder, struct tt_tokenizer **ret_tokenizer)
{
    char *path = folder ? tt_format("%s/tokenizer.json", folder) : NULL;
    bool is_folder = false, exists = true;
    int rc = 0;

    *ret_tokenizer = NULL;
    if (folder)
        TT_TRY(tt_path_is_folder(folder, &is_folder));
    if (is_folder)
        TT_TRY(tt_path_exists(path, &exists));
    if (exists)
        rc = tt_tokenizer_load(folder, ret_tokenizer);
out:
    tt_free(path);
    return rc;
}

/* Whether the file says which tokenizer it is of. What is wrong with one that cannot be read, its preparation says. */
static bool names_tokenizer(const struct tt_dataset_spec *spec)
{
    struct tt_token_info info = {0};

    return spec->path && tt_tokenfile_peek(spec->path, false, &info) == 0 && info.tokenizer_hash;
}

/* Rank 0 tokenizes a text, or compares packed tokens with the tokenizer that the run has. Others need none, so one that
 * titan cannot read is no fault there. */
static int prepare_part(struct tt_comm *comm, const struct tt_train_data_options *o, struct tt_dataset_spec *spec,
                        bool is_text, struct tt_dataset_ref *ref)
{
    struct tt_tokenizer *tokenizer = NULL;
    struct tt_dataset_spec compared = *spec;
    int rc = 0;

    if (!is_text && names_tokenizer(spec)) {
        TT_TRY(tt_train_data_tokenizer(o->tokenizer_folder, &tokenizer)); /* to compare with */
        compared.tokenizer = tokenizer;
    }
    rc = tt_comm_work(comm, prepare, &(struct preparation){&compared, ref}); /* tokenizing has no time limit */
out:
    tt_tokenizer_free(tokenizer);
    return rc;
}

struct dividing {
    struct tt_holdout *holdout;
    const struct tt_dataset *dataset;
    double part;
};

static int divide(void *arg)
{
    const struct dividing *d = arg;

    return tt_holdout_init(d->holdout, d->dataset, d->part);
}

/* Which documents are held out: rank 0 reads them all and tells the others. */
static int hold_out(struct tt_comm *comm, double part, const struct tt_dataset *dataset, struct tt_holdout *holdout)
{
    uint8_t *is_held;
    int rc = 0;

    if (part <= 0.0)
        return 0;
    if (comm->rank == 0)
        rc = tt_comm_work(comm, divide, &(struct dividing){holdout, dataset, part});
    TT_TRY(tt_comm_agree(comm, rc));
    is_held = holdout->is_held; /* an address means nothing on another rank */
    holdout->is_held = NULL;
    rc = tt_comm_broadcast(comm, holdout, sizeof *holdout, 0);
    holdout->is_held = is_held;
    if (rc == 0 && !is_held)
        holdout->is_held = tt_calloc((size_t)tt_holdout_bytes(holdout->n_documents), 1);
    TT_TRY(rc);
    TT_TRY(tt_comm_broadcast(comm, holdout->is_held, (size_t)tt_holdout_bytes(holdout->n_documents), 0));
out:
    return rc;
}

static int open_part(struct tt_comm *comm, const struct tt_train_data_options *o, struct tt_train_data *data, int i)
{
    const struct tt_dataset_entry *entry = &o->entry[i];
    struct tt_train_part *part = &data->part[i];
    struct tt_sampler_options sampling = {.seq_len = o->seq_len,
                                          .shuffle = o->shuffle,
                                          .repeat = o->repeat,
                                          .documents = o->documents,
                                          .longs = o->longs,
                                          .seed = seed_of(o->seed, i),
                                          .held_out = o->held_out};
    struct tt_holdout holdout = {.is_held = NULL};
    const struct tt_dataset_kind *kind = NULL;
    struct tt_dataset_spec spec = {.name = entry->dataset,
                                   .path = entry->dataset_path,
                                   .text_field = entry->text_field,
                                   .chat_template = o->chat_template,
                                   .vocab_size = o->vocab_size,
                                   .cache_dir = o->cache_folder};
    struct tt_dataset_ref ref;
    int rc = 0;

    memset(&ref, 0, sizeof ref);
    part->name = tt_strdup(entry->name);
    rc = tt_dataset_find(entry->dataset, &kind);
    if (rc == 0 && kind->is_text && !data->tokenizer)
        rc = tt_tokenizer_load(o->tokenizer_folder, &data->tokenizer);
    TT_TRY(tt_comm_agree(comm, rc));
    spec.tokenizer = kind->is_text ? data->tokenizer : NULL;
    if (comm->rank == 0)
        rc = prepare_part(comm, o, &spec, kind->is_text, &ref);
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_comm_broadcast(comm, &ref, sizeof ref, 0));
    TT_TRY(tt_train_tokens_open(comm, &spec, kind->is_text, &ref, &part->dataset));
    TT_TRY(hold_out(comm, o->split, part->dataset, &holdout));
    sampling.holdout = holdout.is_held ? &holdout : NULL;
    rc = tt_sampler_new(part->dataset, &sampling, &part->sampler);
    TT_TRY(tt_comm_agree(comm, rc));
    if (comm->rank == 0)
        note_packs(part, o->documents);
out:
    tt_holdout_release(&holdout);
    return rc;
}

int tt_train_data_open(struct tt_comm *comm, const struct tt_train_data_options *o, struct tt_train_data *ret_data)
{
    struct tt_train_data data = {.seq_len = o->seq_len, .n = o->n, .part = tt_calloc((size_t)o->n, sizeof *data.part)};
    double weight[TT_MIXTURE_MOST] = {0.0};
    int rc = 0;

    for (int i = 0; i < o->n && i < TT_MIXTURE_MOST; i++)
        weight[i] = o->entry[i].weight;
    TT_TRY(tt_mixture_init(&data.mixture, weight, o->n));
    for (int i = 0; i < o->n && rc == 0; i++) {
        rc = open_part(comm, o, &data, i);
        if (rc < 0 && o->n > 1)
            rc = tt_wrap(rc, "entry '%s'", o->entry[i].name);
    }
    if (rc < 0)
        goto out;
    *ret_data = data;
    memset(&data, 0, sizeof data);
out:
    tt_train_data_release(&data);
    return rc;
}

void tt_train_data_release(struct tt_train_data *data)
{
    for (int i = 0; i < data->n; i++) {
        tt_sampler_free(data->part[i].sampler);
        tt_dataset_free(data->part[i].dataset);
        tt_free(data->part[i].name);
    }
    tt_free(data->part);
    tt_mixture_release(&data->mixture);
    tt_tokenizer_free(data->tokenizer);
    memset(data, 0, sizeof *data);
}

int64_t tt_train_data_samples(const struct tt_train_data *data, int64_t epochs)
{
    int64_t least = INT64_MAX;

    for (int i = 0; i < data->n; i++) {
        int64_t end = tt_mixture_find(&data->mixture, i, epochs * tt_sampler_epoch_samples(data->part[i].sampler));

        least = end < least ? end : least;
    }
    return least;
}

uint64_t tt_train_data_digest(const struct tt_train_data *data)
{
    uint64_t digest = data->part[0].dataset->ref.info.digest;

    for (int i = 0; i < data->n && data->n > 1; i++) {
        const uint64_t part[] = {data->part[i].dataset->ref.info.digest, (uint64_t)data->mixture.share[i]};

        digest = tt_hash64(part, sizeof part, i ? digest : 0);
    }
    return digest;
}

static int read_sample(struct tt_train_data *data, int64_t sample, int32_t *tokens, int32_t *labels, int32_t *positions)
{
    struct tt_mixture_sample found = tt_mixture_get(&data->mixture, sample);

    return tt_sampler_get(data->part[found.part].sampler, found.number, tokens, labels, positions);
}

int tt_train_data_batch(struct tt_train_data *data, int64_t first, int64_t n, int32_t *tokens, int32_t *labels,
                        int32_t *positions, int64_t *valid)
{
    int64_t T = data->seq_len;
    int rc = 0;

    for (int i = 0; i < data->n; i++)
        TT_TRY(tt_dataset_recheck(data->part[i].dataset));
    for (int64_t i = 0; i < n; i++)
        TT_TRY(read_sample(data, first + i, tokens + i * T, labels + i * T, positions ? positions + i * T : NULL));
    for (int64_t i = 0; i < n * T; i++)
        *valid += labels[i] >= 0;
out:
    return rc;
}
