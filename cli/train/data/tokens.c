/* SPDX-License-Identifier: MIT
 *
 * One packed file that all hosts share, or one per host: found, compared, and made where it is missing.
 */
#include "cli/train/data/tokens.h"

#include <inttypes.h>
#include <string.h>

#include <unistd.h>

#include "core/base/mem.h"
#include "core/os/file.h"

enum { HOST_BYTES = 256 };

/* The file that a rank has open or, with inode 0, the host of a rank without one. Ranks with equal places have the same
 * file. */
struct place {
    uint64_t host, device, inode; /* host: its first rank; files of two hosts may have the same other numbers */
};

static struct place place_of(const struct tt_comm *comm, const struct tt_dataset *dataset)
{
    uint64_t host = (uint64_t)tt_comm_host_leader(comm, comm->rank);

    return dataset ? (struct place){host, dataset->device, dataset->inode} : (struct place){host, 0, 0};
}

/* The lowest rank with this rank's place. */
static int leader_of(const struct tt_comm *comm, const struct place *places)
{
    int rank = 0;

    while (memcmp(&places[rank], &places[comm->rank], sizeof *places) != 0)
        rank++;
    return rank;
}

/* Opens the file. That of a text may be missing or wrong on ranks other than 0, which leaves *dataset NULL. */
static int open_here(const struct tt_comm *comm, bool is_text, const struct tt_dataset_ref *ref,
                     struct tt_dataset **dataset)
{
    bool can_make = is_text && comm->rank > 0, exists = true;
    int rc = can_make ? tt_path_exists(ref->path, &exists) : 0;

    if (rc == 0 && exists)
        rc = tt_dataset_open(ref, dataset);
    if (rc < 0 && !is_text) /* no key names the path of a text's cache */
        rc = tt_path_blame_missing(rc, ref->path, TT_KEY_DATASET_PATH);
    return rc == TT_EDATA && can_make ? 0 : rc;
}

static int make_here(const struct tt_dataset_spec *spec, const struct tt_dataset_ref *ref)
{
    struct tt_dataset_ref *mine = tt_calloc(1, sizeof *mine);
    char host[HOST_BYTES] = "";
    int rc;

    (void)gethostname(host, sizeof host - 1);
    rc = tt_dataset_prepare(spec, mine);
    if (rc == 0 && mine->info.digest != ref->info.digest) {
        rc = tt_fail(TT_EDATA,
                     "'%s' holds other tokens than rank 0's file (digest %016" PRIx64 ", wanted %016" PRIx64
                     ")\nhelp: is training.dataset_path the same data on every host?",
                     mine->path, mine->info.digest, ref->info.digest);
    }
    tt_free(mine);
    return rc < 0 ? tt_wrap(rc, "host '%s'", host) : 0;
}

/* The arguments of all ranks, and the state of this one. */
struct sharing {
    const struct tt_dataset_spec *spec;
    bool is_text;
    const struct tt_dataset_ref *ref;
    struct tt_dataset *dataset; /* NULL: this rank has no file */
    int64_t made;               /* files, in this round */
};

/* The first rank of a place checks the file, or makes it. Rank 0 has prepared its own. */
static int check_or_make(void *arg)
{
    struct sharing *s = arg;
    int rc = s->dataset ? tt_dataset_verify(s->dataset) : TT_EDATA;

    if (rc == TT_EDATA && s->is_text) {
        rc = make_here(s->spec, s->ref);
        s->made = rc == 0;
    }
    return rc;
}

/* One round in which all ranks examine their files. s->made is the number of files that were made; the next round must
 * find them. */
static int examine_files(struct tt_comm *comm, struct sharing *s)
{
    struct place *places = tt_calloc((size_t)comm->size, sizeof *places), mine;
    int leader, rc;

    s->made = 0;
    rc = s->dataset ? 0 : open_here(comm, s->is_text, s->ref, &s->dataset);
    TT_TRY(tt_comm_agree(comm, rc));
    mine = place_of(comm, s->dataset);
    TT_TRY(tt_comm_gather_all(comm, &mine, sizeof mine, places));
    leader = leader_of(comm, places);
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

int tt_train_tokens_open(struct tt_comm *comm, const struct tt_dataset_spec *spec, bool is_text,
                         const struct tt_dataset_ref *ref, struct tt_dataset **ret_dataset)
{
    struct sharing s = {.spec = spec, .is_text = is_text, .ref = ref, .made = 1};
    int rc = 0;

    for (int round = 0; s.made && round <= comm->size; round++) /* every round but the last makes a missing file */
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
