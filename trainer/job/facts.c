/* SPDX-License-Identifier: MIT
 *
 * The facts that all ranks must share, and the ranks that deviate.
 */
#include "trainer/job/facts.h"

#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"

enum {
    FACTS_SHOWN = 8,
    VALUES_SHOWN = 4, /* at most this many values of one fact */
    HOSTS_SHOWN = 4,  /* at most this many hosts of one value */
    TEXT_SHOWN = 400, /* at most this many bytes of one value */
};

/* --- the ranks that share a value --- */

void tt_facts_add_ranks(const struct tt_comm *comm, const uint64_t *hashes, int first, struct tt_text *out)
{
    const char *host[HOSTS_SHOWN] = {0};
    struct tt_text ranks = {0};
    int n = 0, hosts = 0;

    for (int rank = first, end; rank < comm->size; rank = end) {
        end = rank + 1;
        if (hashes[rank] != hashes[first])
            continue;
        while (end < comm->size && hashes[end] == hashes[first])
            end++;
        tt_text_add(&ranks, end - rank > 1 ? "%s%d-%d" : "%s%d", n ? ", " : "", rank, end - 1);
        n += end - rank;
        for (int r = rank; r < end; r++) {
            int i = 0;

            while (i < hosts && i < HOSTS_SHOWN && strcmp(host[i], tt_comm_host(comm, r)) != 0)
                i++;
            if (i == hosts && i < HOSTS_SHOWN)
                host[hosts++] = tt_comm_host(comm, r);
        }
    }
    tt_text_add(out, "rank%s %s (", n == 1 ? "" : "s", ranks.text);
    for (int i = 0; i < hosts; i++)
        tt_text_add(out, "%s%s", i ? ", " : "", host[i]);
    tt_text_add(out, "%s)", hosts == HOSTS_SHOWN ? ", …" : "");
    tt_text_release(&ranks);
}

/* A fact, and every rank's hash of its value. */
struct question {
    struct tt_comm *comm;
    const struct tt_fact *fact;
    uint64_t *hashes; /* [ranks] */
};

/* Appends the values of a fact that differs, each sent by the first rank that holds it. Collective. */
static int add_values(const struct question *q, struct tt_text *out)
{
    int shown = 0, rc = 0;

    tt_text_add(out, "%s is ", q->fact->name);
    for (int rank = 0; rank < q->comm->size && shown < VALUES_SHOWN; rank++) {
        char text[TEXT_SHOWN + 1] = "";

        int first = 0;

        while (q->hashes[first] != q->hashes[rank])
            first++;
        if (first != rank)
            continue;
        strncpy(text, q->fact->text, sizeof text - 1);
        TT_TRY(tt_comm_broadcast(q->comm, text, sizeof text, rank));
        tt_text_add(out, "%s%s on ", shown++ ? ", " : "", text[0] ? text : "empty");
        tt_facts_add_ranks(q->comm, q->hashes, rank, out);
    }
out:
    return rc;
}

/* --- what differs --- */

static uint64_t hash_of(const char *text)
{
    return tt_hash64(text, strlen(text), 0);
}

/* Counts for each fact the ranks whose hash differs from rank 0's. Collective. */
static int count_differing(struct tt_comm *comm, const uint64_t *mine, int n, int64_t *differing)
{
    uint64_t *first = tt_calloc((size_t)n, sizeof *first);
    int rc = 0;

    memcpy(first, mine, (size_t)n * sizeof *first);
    TT_TRY(tt_comm_broadcast(comm, first, (size_t)n * sizeof *first, 0));
    for (int i = 0; i < n; i++)
        differing[i] = mine[i] != first[i];
    rc = tt_comm_sum_i64(comm, differing, n);
out:
    tt_free(first);
    return rc;
}

static int add_facts(struct tt_comm *comm, const struct tt_fact *facts, const uint64_t *hashes,
                     const int64_t *differing, int n, struct tt_text *out)
{
    struct question q = {.comm = comm, .hashes = tt_calloc((size_t)comm->size, sizeof *q.hashes)};
    int shown = 0, rc = 0;

    for (int i = 0; i < n; i++) {
        if (differing[i] == 0)
            continue;
        if (shown++ == FACTS_SHOWN) {
            tt_text_add(out, "; and more");
            break;
        }
        tt_text_add(out, "%s", shown > 1 ? "; " : "");
        q.fact = &facts[i];
        TT_TRY(tt_comm_gather_all(comm, &hashes[i], sizeof hashes[i], q.hashes));
        TT_TRY(add_values(&q, out));
    }
out:
    tt_free(q.hashes);
    return rc;
}

/* Different builds may have different keys, so their lists cannot be compared one by one. */
static int check_names(struct tt_comm *comm, const struct tt_fact *facts, int n)
{
    const struct tt_fact build = {"the build of titan", TITAN_VERSION};
    uint64_t names = hash_of(TITAN_VERSION);
    struct tt_text who = {0};
    int64_t differing = 0;
    int rc = 0;

    for (int i = 0; i < n; i++)
        names = tt_hash64(facts[i].name, strlen(facts[i].name), names);
    TT_TRY(count_differing(comm, &names, 1, &differing));
    if (differing == 0)
        goto out;
    TT_TRY(add_facts(comm, &build, &names, &differing, 1, &who));
    rc = tt_fail(
        TT_EUSAGE,
        "ranks run different builds of titan: %s\nhelp: install the same titan on all hosts, or start it from a "
        "folder that they share",
        who.text);
out:
    tt_text_release(&who);
    return rc;
}

int tt_facts_compare(struct tt_comm *comm, const struct tt_fact *facts, int n, struct tt_text *ret_difference)
{
    uint64_t *hashes = tt_calloc((size_t)n, sizeof *hashes);
    int64_t *differing = tt_calloc((size_t)n, sizeof *differing);
    int rc = 0;

    if (comm->size == 1)
        goto out;
    TT_TRY(check_names(comm, facts, n));
    for (int i = 0; i < n; i++)
        hashes[i] = hash_of(facts[i].text);
    TT_TRY(count_differing(comm, hashes, n, differing));
    rc = add_facts(comm, facts, hashes, differing, n, ret_difference);
out:
    tt_free(hashes);
    tt_free(differing);
    return rc;
}

/* --- the configuration --- */

int tt_facts_agree_on_config(struct tt_comm *comm, const struct tt_config *cfg, const struct tt_args *args)
{
    struct tt_text *texts = tt_calloc((size_t)tt_config_n_rows + 1, sizeof *texts), difference = {0};
    struct tt_fact *facts = tt_calloc((size_t)tt_config_n_rows + 1, sizeof *facts);
    /* keys that belong to a rank or a host may differ; other code compares their effect on the run where it matters */
    static const char *const local[] = {TT_KEY_NAME(parallelism.threads_per_rank),
                                        TT_KEY_NAME(parallelism.memory_limit), TT_KEY_NAME(parallelism.machine_file),
                                        TT_KEY_NAME(dataloader.cache_dir)};
    int n = 1, rc = 0;

    /* the command's own options and words; of configuration files, only the values are compared */
    for (int i = 0; i < args->n_options; i++) {
        const struct tt_option_use *use = &args->option[i];

        if (strcmp(use->option->name, "config") != 0)
            tt_text_add(&texts[0], "%s--%s%s%s", texts[0].size ? " " : "", use->option->name, use->value ? "=" : "",
                        use->value ? use->value : "");
    }
    for (int i = 0; i < args->n_words; i++)
        tt_text_add(&texts[0], "%s%s", texts[0].size ? " " : "", args->word[i]);
    facts[0] = (struct tt_fact){"the list of options", texts[0].text ? texts[0].text : ""};
    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];
        bool is_local = false;

        for (size_t k = 0; k < sizeof local / sizeof *local; k++)
            is_local = is_local || strcmp(row->path, local[k]) == 0;
        if (is_local)
            continue;
        tt_config_value_text(cfg, row, &texts[n]);
        facts[n] = (struct tt_fact){row->path, texts[n].text ? texts[n].text : ""};
        n++;
    }
    TT_TRY(tt_facts_compare(comm, facts, n, &difference));
    if (difference.text)
        rc =
            tt_fail(TT_EUSAGE,
                    "ranks have different configurations: %s\nhelp: give all ranks the same files and flags; a file on "
                    "a host's own disk may be another version",
                    difference.text);
out:
    for (int i = 0; i <= tt_config_n_rows; i++)
        tt_text_release(&texts[i]);
    tt_text_release(&difference);
    tt_free(texts);
    tt_free(facts);
    return rc;
}
