/* SPDX-License-Identifier: MIT
 *
 * Datasets of a run: rank 0 prepares them, all ranks open them.
 */
#include "trainer/data/data.h"

#include <inttypes.h>
#include <string.h>

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/math/rng.h"
#include "core/os/file.h"
#include "trainer/run/folder.h"

/* --- one packed file on all hosts --- */

enum { HOST_BYTES = 256 };

/* Identifies the file that a rank has opened or, if inode is 0, only the host of a rank without a file. Ranks with
 * equal places have opened the same file. */
struct place {
    uint64_t host, device, inode; /* host: its first rank, since two hosts may have equal devices and inodes */
};

/* Opens the file. If it is the cache of a text, it may be missing or wrong on ranks other than 0; *dataset is then
 * NULL. */
static int open_here(const struct tt_comm *comm, bool is_text, const struct tt_dataset_ref *ref,
                     struct tt_dataset **dataset)
{
    bool can_make = is_text && comm->rank > 0, exists = true;
    int rc = can_make ? tt_path_exists(ref->path, &exists) : 0;

    if (rc == 0 && exists)
        rc = tt_dataset_open(ref, dataset);
    if (rc < 0 && !is_text) /* no key names the path of a text's cache, so the error must not carry a key */
        rc = tt_path_blame_missing(rc, ref->path, TT_KEY(training.dataset_path));
    return rc == TT_EDATA && can_make ? 0 : rc;
}

/* The arguments of all ranks, and the state of this one. */
struct sharing {
    const struct tt_dataset_spec *spec;
    bool is_text;
    const struct tt_dataset_ref *ref;
    struct tt_dataset *dataset; /* NULL: this rank has no file */
    int64_t made;               /* the number of files made in this round */
};

/* The first rank of a place checks the file, or makes it. Rank 0 has already prepared its own file. */
static int check_or_make(void *arg)
{
    struct sharing *s = arg;
    struct tt_dataset_ref *mine = tt_calloc(1, sizeof *mine);
    char host[HOST_BYTES] = "";
    int rc = s->dataset ? tt_dataset_verify(s->dataset) : TT_EDATA;

    if (rc != TT_EDATA || !s->is_text)
        goto out;
    (void)gethostname(host, sizeof host - 1);
    rc = tt_dataset_prepare(s->spec, mine);
    if (rc == 0 && mine->info.digest != s->ref->info.digest)
        rc = tt_fail(TT_EDATA,
                     "'%s' holds other tokens than rank 0's file (digest %016" PRIx64 ", wanted %016" PRIx64
                     ")\nhelp: is training.dataset_path the same data on every host?",
                     mine->path, mine->info.digest, s->ref->info.digest);
    s->made = rc == 0;
    rc = rc < 0 ? tt_wrap(rc, "host '%s'", host) : 0;
out:
    tt_free(mine);
    return rc;
}

/* One round in which all ranks examine their files. s->made is the number of files that were made; the next round must
 * find them. */
static int examine_files(struct tt_comm *comm, struct sharing *s)
{
    struct place *places = tt_calloc((size_t)comm->size, sizeof *places), mine;
    int leader = 0, rc;

    s->made = 0;
    rc = s->dataset ? 0 : open_here(comm, s->is_text, s->ref, &s->dataset);
    TT_TRY(tt_comm_agree(comm, rc));
    mine = (struct place){.host = (uint64_t)tt_comm_host_leader(comm, comm->rank)};
    if (s->dataset) {
        mine.device = s->dataset->device;
        mine.inode = s->dataset->inode;
    }
    TT_TRY(tt_comm_gather_all(comm, &mine, sizeof mine, places));
    while (memcmp(&places[leader], &mine, sizeof mine) != 0)
        leader++;
    if (leader == comm->rank && leader > 0)
        rc = tt_comm_work(comm, check_or_make, s); /* reading and tokenizing have no time limit */
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_comm_sum_i64(comm, &s->made, 1));
    if (s->made && leader > 0) { /* the file may have been replaced */
        tt_dataset_free(s->dataset);
        s->dataset = NULL;
    }
out:
    tt_free(places);
    return rc;
}

/*
 * Opens the packed file that rank 0 prepared, on every rank (collective). On another host, the same path may lead to
 * another file. So for each file (identified by host, device and inode) one rank compares the content with rank 0's. If
 * the cache of a text is missing or damaged on a host, the first rank of the host creates it, so hosts need not share a
 * cache folder.
 *   spec     the file that rank 0 prepared, as this rank sees it
 *   is_text  the dataset is tokenized text; spec->tokenizer is set
 *   ref      rank 0's, already on all ranks
 * TT_EDATA names the host and the file that is missing or differs.
 */
static int open_tokens(struct tt_comm *comm, const struct tt_dataset_spec *spec, bool is_text,
                       const struct tt_dataset_ref *ref, struct tt_dataset **ret_dataset)
{
    struct sharing s = {.spec = spec, .is_text = is_text, .ref = ref, .made = 1};
    int rc = 0;

    for (int round = 0; s.made && round <= comm->size; round++) /* the last round makes no file */
        TT_TRY(examine_files(comm, &s));
    if (s.made) {
        rc = tt_fail(TT_EDATA, "'%s' was made, but not all ranks see it\nhelp: use another dataloader.cache_dir",
                     ref->path);
        goto out;
    }
    *ret_dataset = s.dataset;
    s.dataset = NULL;
out:
    tt_dataset_free(s.dataset);
    return rc;
}

/* --- a dataset or a mixture --- */

/* Prints notes about the conversations that packing leaves out or joins. */
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
                part->name, TT_KEY_NAME(training.document_mask));
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

struct preparation {
    const struct tt_train_data_options *options;
    const struct tt_dataset_spec *spec;
    bool is_text;
    struct tt_dataset_ref *ref;
};

/* Rank 0: tokenizes a text or, if packed tokens record their tokenizer, compares that tokenizer with the run's. Other
 * packed tokens need no tokenizer, so it does not matter if titan cannot read the run's. */
static int prepare(void *arg)
{
    const struct preparation *p = arg;
    struct tt_tokenizer *tokenizer = NULL;
    struct tt_dataset_spec spec = *p->spec;
    struct tt_token_info info = {0};
    int rc = 0;

    if (!p->is_text && spec.path && tt_tokenfile_peek(spec.path, false, &info) == 0 && info.tokenizer_hash) {
        TT_TRY(tt_train_data_tokenizer(p->options->tokenizer_folder, &tokenizer));
        spec.tokenizer = tokenizer;
    }
    rc = tt_dataset_prepare(&spec, p->ref);
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
/* Finds the documents that are held out: rank 0 reads all documents and sends the result. */
static int hold_out(struct tt_comm *comm, double part, const struct tt_dataset *dataset, struct tt_holdout *holdout)
{
    uint8_t *is_held;
    int rc = 0;

    if (part <= 0.0)
        return 0;
    if (comm->rank == 0)
        rc = tt_comm_work(comm, divide, &(struct dividing){holdout, dataset, part});
    TT_TRY(tt_comm_agree(comm, rc));
    is_held = holdout->is_held; /* an address is meaningless on another rank */
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
    const struct tt_rng rng = tt_rng_make(o->seed, "dataloader parts");
    struct tt_sampler_options sampling = {.seq_len = o->seq_len,
                                          .shuffle = o->shuffle,
                                          .repeat = o->repeat,
                                          .documents = o->documents,
                                          .longs = o->longs,
                                          /* every part has its own order; the order of the first part is that of a
                                           * single dataset */
                                          .seed = i ? tt_rng_bits(&rng, (uint64_t)i) : o->seed,
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
        /* work without a time limit */
        rc = tt_comm_work(comm, prepare, &(struct preparation){o, &spec, kind->is_text, &ref});
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_comm_broadcast(comm, &ref, sizeof ref, 0));
    TT_TRY(open_tokens(comm, &spec, kind->is_text, &ref, &part->dataset));
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

int tt_train_data_batch(struct tt_train_data *data, int64_t first, int64_t n, int32_t *tokens, int32_t *labels,
                        int32_t *positions, int64_t *valid)
{
    int64_t T = data->seq_len;
    int rc = 0;

    for (int64_t i = 0; i < n && data->fixed; i++) {
        int64_t from = (first + i) % data->fixed->n * T;
        size_t bytes = (size_t)T * sizeof *tokens;

        memcpy(tokens + i * T, data->fixed->tokens + from, bytes);
        memcpy(labels + i * T, data->fixed->labels + from, bytes);
        for (int64_t t = 0; t < T && positions; t++)
            positions[i * T + t] = data->fixed->positions ? data->fixed->positions[from + t] : (int32_t)t;
    }
    for (int i = 0; i < data->n; i++)
        TT_TRY(tt_dataset_recheck(data->part[i].dataset));
    for (int64_t i = 0; i < n && !data->fixed; i++) {
        struct tt_mixture_sample found = tt_mixture_get(&data->mixture, first + i);

        TT_TRY(tt_sampler_get(data->part[found.part].sampler, found.number, tokens + i * T, labels + i * T,
                              positions ? positions + i * T : NULL));
    }
    for (int64_t i = 0; i < n * T; i++)
        *valid += labels[i] >= 0;
out:
    return rc;
}

/* --- the data that a configuration names --- */

/* Opens the data. Adds advice to an error about a missing file; an error about the path of an entry carries the key of
 * the list. The command adds where that key was set. */
static int open_data(const struct tt_setup *s, const struct tt_train_data_options *o,
                     const struct tt_datasets *datasets, bool names_entry, enum tt_key list, enum tt_key path,
                     struct tt_train_data *ret_data)
{
    int rc = tt_train_data_open(s->comm, o, ret_data);
    enum tt_key key = rc < 0 ? tt_error_key() : TT_KEY_NONE;

    if (key == TT_KEY(training.dataset_path))
        (void)tt_error_add_hint(rc, "titan downloads nothing; name the file or folder that holds the data");
    else if (key == TT_KEY(model.hf_assets_path))
        (void)tt_error_add_hint(rc, "name the folder that holds tokenizer.json, or leave the key out for the built-in "
                                    "tokenizer");
    if (rc < 0 && names_entry)
        rc = tt_wrap(rc, "entry '%s'", o->entry[0].name);
    if (key == TT_KEY(training.dataset_path))
        rc = tt_fail_key(rc, datasets->is_list ? list : path, "%s", tt_error_message());
    return rc;
}

int tt_datasets_open_training(const struct tt_setup *s, struct tt_train_data *ret_data)
{
    const struct tt_config *cfg = s->cfg;
    const struct tt_datasets *datasets = &cfg->training.dataset;
    struct tt_dataset_entry *entry = tt_calloc((size_t)datasets->n, sizeof *entry);
    char *cache = tt_run_folder_cache(cfg);
    const struct tt_train_data_options o = {.entry = entry,
                                            .n = datasets->n,
                                            .chat_template = cfg->training.chat_template,
                                            .tokenizer_folder = cfg->model.hf_assets_path,
                                            .cache_folder = cache,
                                            .vocab_size = s->job.model->dims.vocab_size,
                                            .seq_len = cfg->training.seq_len,
                                            .shuffle = cfg->dataloader.shuffle,
                                            .repeat = cfg->dataloader.repeat,
                                            .documents = cfg->training.document_mask,
                                            .longs = cfg->dataloader.long_conversations,
                                            .seed = (uint64_t)cfg->dataloader.seed,
                                            .split = cfg->validation.split};
    int rc;

    for (int i = 0; i < datasets->n; i++)
        entry[i] = tt_config_dataset(cfg, datasets, i);
    rc = open_data(s, &o, datasets, false, TT_KEY(training.dataset), TT_KEY(training.dataset_path), ret_data);
    tt_free(cache);
    tt_free(entry);
    return rc;
}

int tt_datasets_open_validation(const struct tt_setup *s, int set, struct tt_train_data *ret_data)
{
    const struct tt_config *cfg = s->cfg;
    const struct tt_dataset_entry entry = tt_config_dataset(cfg, &cfg->validation.dataset, set);
    char *cache = tt_run_folder_cache(cfg);
    const struct tt_train_data_options o = {.entry = &entry,
                                            .n = 1,
                                            .chat_template = cfg->training.chat_template,
                                            .tokenizer_folder = cfg->model.hf_assets_path,
                                            .cache_folder = cache,
                                            .vocab_size = s->job.model->dims.vocab_size,
                                            .seq_len = cfg->validation.seq_len,
                                            .documents = cfg->training.document_mask,
                                            .longs = cfg->dataloader.long_conversations,
                                            .seed = (uint64_t)cfg->dataloader.seed,
                                            .split = cfg->validation.split,
                                            .held_out = cfg->validation.split > 0.0};
    int rc = open_data(s, &o, &cfg->validation.dataset, cfg->validation.dataset.is_list, TT_KEY(validation.dataset),
                       TT_KEY(validation.dataset_path), ret_data);

    tt_free(cache);
    return rc;
}

const char *tt_datasets_longs(const struct tt_config *cfg, const struct tt_train_data *data)
{
    const struct tt_config_row *row = tt_config_row(TT_KEY(dataloader.long_conversations));
    bool has_long = false;

    for (int i = 0; i < data->n; i++) {
        const struct tt_packs *packs = tt_sampler_packs(data->part[i].sampler);

        has_long = has_long || (packs && packs->n_long);
    }
    return has_long ? tt_config_choice_word(row->choices, (int)cfg->dataloader.long_conversations) : NULL;
}
