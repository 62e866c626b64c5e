/* SPDX-License-Identifier: MIT
 *
 * Ranks as a grid: degrees to sizes, coordinates, groups, and the rank counts that fit a batch.
 */
#include "parallel/layout/mesh.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "core/base/mem.h"

static const struct {
    const char *name;
    enum tt_key key;
} dims[TT_MESH_DEGREES] = {
    [TT_MESH_PP] = {"pp", TT_KEY(parallelism.pipeline_parallel_degree)},
    [TT_MESH_DP_REPLICATE] = {"dp_replicate", TT_KEY(parallelism.data_parallel_replicate_degree)},
    [TT_MESH_DP_SHARD] = {"dp_shard", TT_KEY(parallelism.data_parallel_shard_degree)},
    [TT_MESH_CP] = {"cp", TT_KEY(parallelism.context_parallel_degree)},
    [TT_MESH_TP] = {"tp", TT_KEY(parallelism.tensor_parallel_degree)},
    [TT_MESH_EP] = {"ep", TT_KEY(parallelism.expert_parallel_degree)},
};

/* --- the grid --- */

const char *tt_mesh_dim_name(enum tt_mesh_dim dim)
{
    return dims[dim].name;
}

static int fail_product(const int degrees[TT_MESH_DEGREES], int64_t others, int n_ranks)
{
    struct tt_text text = {0}, change = {0};
    int shard = degrees[TT_MESH_DP_SHARD];
    bool one = n_ranks == 1;
    int rc;

    for (int dim = 0; dim < TT_MESH_DIMS; dim++) /* such as "dp_replicate 2 x dp_shard 3" */
        if (degrees[dim] != 1)
            tt_text_add(&text, "%s%s %d", text.size ? " x " : "", dims[dim].name, degrees[dim]);
    if (!text.size)
        tt_text_add(&text, "all degrees 1");
    if (n_ranks % others == 0)
        tt_text_add(&change, ", or set %s to %" PRId64 " (-1: whatever the other degrees leave)",
                    tt_key_name(dims[TT_MESH_DP_SHARD].key), n_ranks / others);
    if (shard == -1)
        rc = tt_fail(TT_EUSAGE,
                     "parallelism: %d rank%s cannot be divided over %s: %" PRId64 " does not divide %d\n"
                     "help: start a multiple of %" PRId64 " ranks, or change the other degrees",
                     n_ranks, one ? "" : "s", text.text, others, n_ranks, others);
    else
        rc = tt_fail(TT_EUSAGE,
                     "parallelism: the degrees multiply to %" PRId64 " (%s) but there %s %d rank%s\n"
                     "help: start %" PRId64 " ranks%s",
                     others * shard, text.text, one ? "is" : "are", n_ranks, one ? "" : "s", others * shard,
                     change.text ? change.text : "");
    tt_text_release(&text);
    tt_text_release(&change);
    return rc;
}

/* The number of inner ranks must be a multiple of ep, and ep a multiple of tp, so that no tp group is split. */
static bool shares_experts(int ep, int tp, int inner)
{
    return ep == 1 || (inner % ep == 0 && ep % tp == 0);
}

static int check_experts(const struct tt_mesh *mesh)
{
    int ep = mesh->size[TT_MESH_EP], tp = mesh->size[TT_MESH_TP];
    int inner = mesh->size[TT_MESH_DP_SHARD] * mesh->size[TT_MESH_CP] * tp;
    struct tt_text works = {0};
    int rc;

    if (shares_experts(ep, tp, inner))
        return 0;
    for (int n = 1; n <= inner; n++)
        if (shares_experts(n, tp, inner))
            tt_text_add(&works, "%s%d", works.size ? ", " : "", n);
    if (tp == 1)
        rc = tt_fail_key(TT_EUSAGE, dims[TT_MESH_EP].key,
                         "%d does not divide the %d rank%s of dp_shard x cp x tp\nhelp: on %s, these work: %s", ep,
                         inner, inner == 1 ? "" : "s", inner == 1 ? "it" : "them", works.text);
    else
        rc = tt_fail_key(TT_EUSAGE, dims[TT_MESH_EP].key,
                         "%d, wanted 1, or a multiple of the %d tensor-parallel ranks that divides the %d ranks of "
                         "dp_shard x cp x tp\n"
                         "help: these work: %s",
                         ep, tp, inner, works.text);
    tt_text_release(&works);
    return rc;
}

int tt_mesh_init(const int degrees[TT_MESH_DEGREES], int n_ranks, struct tt_mesh *ret_mesh)
{
    struct tt_mesh mesh = {.n_ranks = n_ranks};
    int64_t others = 1; /* the product of all degrees except dp_shard's */

    for (int dim = 0; dim < TT_MESH_DEGREES; dim++) {
        if (degrees[dim] < 1 && !(dim == TT_MESH_DP_SHARD && degrees[dim] == -1))
            return tt_fail_key(
                TT_EUSAGE, dims[dim].key, "%d, wanted %s\nhelp: 1 turns this dimension off", degrees[dim],
                dim == TT_MESH_DP_SHARD ? "a positive number, or -1 for all ranks that remain" : "a positive number");
        mesh.size[dim] = degrees[dim];
        if (dim == TT_MESH_DP_SHARD || dim == TT_MESH_EP)
            continue;
        others *= degrees[dim];
        if (others > INT_MAX)
            return tt_fail(TT_EUSAGE, "parallelism: the degrees multiply to more than %d ranks", INT_MAX);
    }
    if (mesh.size[TT_MESH_DP_SHARD] == -1 && n_ranks % others == 0)
        mesh.size[TT_MESH_DP_SHARD] = (int)(n_ranks / others);
    if (others * mesh.size[TT_MESH_DP_SHARD] != n_ranks)
        return fail_product(degrees, others, n_ranks);
    mesh.tp_grains = mesh.size[TT_MESH_TP];
    mesh.cp_grains = mesh.size[TT_MESH_CP];
    *ret_mesh = mesh;
    return check_experts(&mesh);
}

int tt_mesh_configure(const struct tt_config *cfg, int n_ranks, struct tt_mesh *ret_mesh)
{
    const int degrees[TT_MESH_DEGREES] = {
        [TT_MESH_PP] = (int)cfg->parallelism.pipeline_parallel_degree,
        [TT_MESH_DP_REPLICATE] = (int)cfg->parallelism.data_parallel_replicate_degree,
        [TT_MESH_DP_SHARD] = (int)cfg->parallelism.data_parallel_shard_degree,
        [TT_MESH_CP] = (int)cfg->parallelism.context_parallel_degree,
        [TT_MESH_TP] = (int)cfg->parallelism.tensor_parallel_degree,
        [TT_MESH_EP] = (int)cfg->parallelism.expert_parallel_degree,
    };

    int tp_grains = (int)cfg->parallelism.exact_tensor_parallel_degree;
    int cp_grains = (int)cfg->parallelism.exact_context_parallel_degree;
    int rc = 0;

    TT_TRY(tt_mesh_init(degrees, n_ranks, ret_mesh));
    ret_mesh->tp_grains = tp_grains > ret_mesh->tp_grains ? tp_grains : ret_mesh->tp_grains;
    ret_mesh->cp_grains = cp_grains > ret_mesh->cp_grains ? cp_grains : ret_mesh->cp_grains;
    ret_mesh->cp_mirrored = cfg->parallelism.context_parallel_load_balancer != NULL;
    ret_mesh->cp_gathers = cfg->parallelism.context_parallel_method == TT_CONTEXT_GATHER;
out:
    return rc;
}

struct tt_mesh tt_mesh_single(void)
{
    struct tt_mesh mesh = {.n_ranks = 1, .tp_grains = 1, .cp_grains = 1};

    for (int dim = 0; dim < TT_MESH_DEGREES; dim++)
        mesh.size[dim] = 1;
    return mesh;
}

void tt_mesh_text(const struct tt_mesh *mesh, struct tt_text *out)
{
    if (mesh->size[TT_MESH_PP] > 1)
        tt_text_add(out, "pipeline %d x ", mesh->size[TT_MESH_PP]);
    tt_mesh_stage_text(mesh, out);
}

void tt_mesh_stage_text(const struct tt_mesh *mesh, struct tt_text *out)
{
    tt_text_add(out, "%s %d x %s %d", dims[TT_MESH_DP_REPLICATE].name, mesh->size[TT_MESH_DP_REPLICATE],
                dims[TT_MESH_DP_SHARD].name, mesh->size[TT_MESH_DP_SHARD]);
    for (int dim = TT_MESH_CP; dim <= TT_MESH_TP; dim++)
        if (mesh->size[dim] > 1)
            tt_text_add(out, " x %s %d%s", dims[dim].name, mesh->size[dim],
                        dim == TT_MESH_CP && mesh->cp_gathers ? " (gather)" : "");
    if (mesh->size[TT_MESH_EP] > 1)
        tt_text_add(out, " (%s %d)", dims[TT_MESH_EP].name, mesh->size[TT_MESH_EP]);
}

int tt_mesh_coordinate(const struct tt_mesh *mesh, int rank, enum tt_mesh_dim dim)
{
    for (int inner = TT_MESH_DIMS - 1; inner > (int)dim; inner--)
        rank /= mesh->size[inner];
    return rank % mesh->size[dim];
}

/* --- groups --- */

enum part { ALL, INNER, OUTER };

/* A bit for each dimension, with the name that the table uses. */
enum {
    PP = 1 << TT_MESH_PP,
    DP_REPLICATE = 1 << TT_MESH_DP_REPLICATE,
    DP_SHARD = 1 << TT_MESH_DP_SHARD,
    CP = 1 << TT_MESH_CP,
    TP = 1 << TT_MESH_TP,
};

static const struct {
    unsigned dims;
    enum part part;
} groups[TT_GROUPS] = {
#define TT_GROUP(id, name, dims, part) [TT_GROUP_##id] = {dims, part},
#include "core/program/groups.def"
#undef TT_GROUP
};

static bool spans(enum tt_group_id id, int dim)
{
    return groups[id].dims & 1U << dim;
}

/* The place of a rank among the ranks that differ from it only in the dimensions of the group. */
static struct tt_place place_in_dims(const struct tt_mesh *mesh, int rank, enum tt_group_id id)
{
    struct tt_place place = {1, 0};

    for (int dim = TT_MESH_DIMS - 1, stride = 1; dim >= 0; stride *= mesh->size[dim--])
        if (spans(id, dim)) {
            place.index += rank / stride % mesh->size[dim] * place.n;
            place.n *= mesh->size[dim];
        }
    return place;
}

/* The rank at place `index` among these ranks. */
static int rank_in_dims(const struct tt_mesh *mesh, int rank, enum tt_group_id id, int index)
{
    int there = rank;

    for (int dim = TT_MESH_DIMS - 1, stride = 1; dim >= 0; stride *= mesh->size[dim--])
        if (spans(id, dim)) {
            there += (index % mesh->size[dim] - rank / stride % mesh->size[dim]) * stride;
            index /= mesh->size[dim];
        }
    return there;
}

struct tt_place tt_mesh_place(const struct tt_mesh *mesh, int rank, enum tt_group_id id)
{
    struct tt_place all = place_in_dims(mesh, rank, id);
    int ep = mesh->size[TT_MESH_EP];

    switch (groups[id].part) {
    case INNER:
        return (struct tt_place){ep, all.index % ep};
    case OUTER:
        return (struct tt_place){all.n / ep, all.index / ep};
    case ALL:
    default:
        return all;
    }
}

int tt_mesh_size(const struct tt_mesh *mesh, enum tt_group_id id)
{
    int n = 1, ep = mesh->size[TT_MESH_EP];

    for (int dim = 0; dim < TT_MESH_DIMS; dim++)
        n *= spans(id, dim) ? mesh->size[dim] : 1;
    return groups[id].part == ALL ? n : groups[id].part == INNER ? ep : n / ep;
}

bool tt_mesh_owns(const struct tt_mesh *mesh, int rank, enum tt_group_id id)
{
    for (int dim = 0; dim < TT_MESH_DIMS; dim++)
        if (!spans(id, dim) && tt_mesh_coordinate(mesh, rank, (enum tt_mesh_dim)dim) != 0)
            return false;
    return true;
}

int tt_mesh_member(const struct tt_mesh *mesh, int rank, enum tt_group_id id, int index)
{
    int own = place_in_dims(mesh, rank, id).index, step = groups[id].part == OUTER ? mesh->size[TT_MESH_EP] : 1;

    return rank_in_dims(mesh, rank, id, own + (index - tt_mesh_place(mesh, rank, id).index) * step);
}

struct tt_group tt_mesh_group(const struct tt_mesh *mesh, int rank, enum tt_group_id id)
{
    struct tt_place place = tt_mesh_place(mesh, rank, id);
    struct tt_group group = {.n = place.n, .index = place.index};

    group.ranks = tt_calloc((size_t)group.n, sizeof *group.ranks);
    for (int i = 0; i < group.n; i++)
        group.ranks[i] = tt_mesh_member(mesh, rank, id, i);
    return group;
}

void tt_group_release(struct tt_group *group)
{
    tt_free(group->ranks);
    *group = (struct tt_group){0};
}

/* --- batches --- */

static int by_value(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;

    return (x > y) - (x < y);
}

/* Numbers of data-parallel ranks that split global_batch into whole microbatches of local_batch: the ones nearest to
 * `near`, at most `most` of them, in increasing order. Returns their number, 0 if global_batch is not a multiple of
 * local_batch. */
static int rank_counts(int64_t local_batch, int64_t global_batch, int near, int most, int *ret_counts)
{
    int64_t microbatches = local_batch > 0 ? global_batch / local_batch : 0;
    int n = 0;

    if (microbatches < 1 || global_batch % local_batch != 0)
        return 0;
    /* Searches outwards from `near`, so the nearest are found first. */
    for (int64_t distance = 0; n < most && (near - distance > 0 || near + distance <= microbatches); distance++) {
        int64_t below = near - distance, above = near + distance;

        if (below > 0 && microbatches % below == 0)
            ret_counts[n++] = (int)below;
        if (distance > 0 && n < most && above <= microbatches && above <= INT_MAX && microbatches % above == 0)
            ret_counts[n++] = (int)above;
    }
    qsort(ret_counts, (size_t)n, sizeof *ret_counts, by_value);
    return n;
}

static int fail_batch(const struct tt_mesh *mesh, int64_t local_batch, int64_t global_batch)
{
    enum { MOST_COUNTS = 5 };
    struct tt_text text = {0};
    int counts[MOST_COUNTS];
    int dp = tt_mesh_size(mesh, TT_GROUP_BATCH);
    int n = rank_counts(local_batch, global_batch, dp, MOST_COUNTS, counts);
    int64_t share = global_batch % dp ? 0 : global_batch / dp; /* samples for each data-parallel rank */
    int64_t smaller = share < local_batch ? share : local_batch;
    int rc;

    while (smaller > 0 && share % smaller)
        smaller--;
    for (int i = 0; i < n; i++)
        tt_text_add(&text, "%s%d", i == 0 ? "start " : i == n - 1 ? " or " : ", ", counts[i] * (mesh->n_ranks / dp));
    tt_text_add(&text, "%s", n ? " ranks, or " : "");
    if (smaller)
        tt_text_add(&text, "set %s to %" PRId64 ", or ", TT_KEY_NAME(training.local_batch_size), smaller);
    rc = tt_fail(TT_EUSAGE,
                 "%s %" PRId64 " is not a multiple of %s %" PRId64 " x %d data-parallel rank%s\nhelp: %sset %s to a "
                 "multiple of %" PRId64,
                 TT_KEY_NAME(training.global_batch_size), global_batch, TT_KEY_NAME(training.local_batch_size),
                 local_batch, dp, dp == 1 ? "" : "s", text.text ? text.text : "",
                 TT_KEY_NAME(training.global_batch_size), local_batch * dp);
    tt_text_release(&text);
    return rc;
}

int tt_mesh_microbatches(const struct tt_mesh *mesh, int64_t local_batch, int64_t global_batch,
                         int64_t *ret_microbatches)
{
    int dp = tt_mesh_size(mesh, TT_GROUP_BATCH);

    if (local_batch < 1)
        return tt_fail(TT_EUSAGE, "%s is %" PRId64 ", wanted at least 1", TT_KEY_NAME(training.local_batch_size),
                       local_batch);
    if (global_batch < 1 && global_batch != -1)
        return tt_fail(TT_EUSAGE, "%s is %" PRId64 ", wanted at least 1, or -1 for local batch x ranks",
                       TT_KEY_NAME(training.global_batch_size), global_batch);
    if (global_batch == -1)
        global_batch = local_batch * dp;
    if (global_batch % local_batch != 0 || global_batch / local_batch % dp != 0)
        return fail_batch(mesh, local_batch, global_batch);
    *ret_microbatches = global_batch / local_batch / dp;
    return 0;
}

int64_t tt_mesh_microbatch(const struct tt_mesh *mesh, int rank, int64_t microbatches, int64_t block, int64_t a)
{
    int shards = mesh->size[TT_MESH_DP_SHARD], shard = tt_mesh_coordinate(mesh, rank, TT_MESH_DP_SHARD);
    int replica = tt_mesh_coordinate(mesh, rank, TT_MESH_DP_REPLICATE);

    return ((replica * (microbatches / block) + a / block) * shards + shard) * block + a % block;
}

static bool is_power_of_two(int64_t n)
{
    return (n & (n - 1)) == 0;
}

bool tt_mesh_is_exact(const struct tt_mesh *mesh, int64_t microbatches, int64_t block, bool carries)
{
    int64_t shards = mesh->size[TT_MESH_DP_SHARD], ranks = shards * mesh->size[TT_MESH_DP_REPLICATE];
    bool whole = mesh->size[TT_MESH_CP] == 1 && mesh->size[TT_MESH_EP] == 1;
    bool subtrees = is_power_of_two(block) || (block == microbatches && ranks == 1);

    return is_power_of_two(mesh->tp_grains) && is_power_of_two(mesh->cp_grains) && (!carries || microbatches == 1) &&
           (block == 1 || (whole && subtrees)) && is_power_of_two(shards) &&
           (mesh->size[TT_MESH_DP_REPLICATE] == 1 || is_power_of_two(microbatches * shards));
}
