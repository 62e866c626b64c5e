/* SPDX-License-Identifier: MIT
 *
 * Opens weights of any kind. A titan step keeps the model and the tokenizer in assets/, the other kinds beside the
 * weights. If there is a config.json, names and layout are Hugging Face's; if there is only a model.json, they are
 * titan's.
 */
#include <string.h>

#include "checkpoint/format/base.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/load/hf.h"
#include "checkpoint/load/load.h"
#include "checkpoint/read/source.h"
#include "checkpoint/read/weights.h"
#include "checkpoint/steps/steps.h"
#include "cli/cli.h"
#include "cli/generate/generate.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/math/packing.h"
#include "core/models/lora.h"
#include "core/models/model_json.h"
#include "core/os/file.h"
#include "core/tokenizer/gguf.h"
#include "core/tokenizer/tokenizer.h"
#include "parallel/layout/placement.h"
#include "parallel/layout/units.h"
#include "trainer/start/base.h"

enum { PATH_BYTES = 4096 };

/* The findings of rank 0, as plain data that can be sent. */
struct found {
    char path[PATH_BYTES];
    int kind; /* enum tt_path_kind */
};

static int has(const char *folder, const char *name, bool *ret_has)
{
    char *path = tt_format("%s/%s", folder, name);
    int rc = tt_path_exists(path, ret_has);

    tt_free(path);
    return rc;
}

static int read_titan_model(struct tt_pretrained *w)
{
    char *path = tt_format("%s/model.json", w->assets);
    int rc = tt_model_json_load(path, &w->model);

    tt_free(path);
    return rc;
}

static void keep_run(struct tt_pretrained *w, const json_t *meta)
{
    struct tt_ckpt_base base;

    w->trained_seq_len = (int64_t)json_integer_value(json_object_get(json_object_get(meta, "data"), "seq_len"));
    w->config = json_incref(json_object_get(meta, "config"));
    w->meta = json_incref((json_t *)(uintptr_t)meta);
    w->is_apart = tt_ckpt_base_of(meta, &base);
}

/* A manifest records the settings of training. */
static int open_step(struct tt_pretrained *w)
{
    struct tt_manifest manifest = {0};
    int rc = 0;

    w->assets = tt_format("%s/assets", w->path);
    TT_TRY(tt_step_check(w->path, &manifest));
    TT_TRY(tt_assets_check(w->path, &manifest));
    if (w->averages)
        TT_TRY(tt_manifest_use_averages(&manifest, w->path));
    keep_run(w, manifest.meta);
    TT_TRY(read_titan_model(w));
out:
    tt_manifest_release(&manifest);
    return rc;
}

static int open_plain(struct tt_pretrained *w)
{
    bool is_folder = false, is_titan = false;
    const char *slash;
    int rc = 0;

    if (w->averages)
        return tt_manifest_use_averages(&(struct tt_manifest){0}, w->path); /* only steps have averages */
    TT_TRY(tt_path_is_folder(w->path, &is_folder));
    w->is_hf = tt_gguf_is_path(w->path); /* a GGUF file contains the small files */
    slash = strrchr(w->path, '/');
    w->assets = is_folder || w->is_hf ? tt_strdup(w->path)
                : slash               ? tt_strndup(w->path, slash == w->path ? 1 : (size_t)(slash - w->path))
                                      : tt_strdup(".");
    if (w->is_hf)
        return tt_model_from_hf(w->assets, &w->model);
    TT_TRY(has(w->assets, "config.json", &w->is_hf));
    TT_TRY(has(w->assets, "model.json", &is_titan));
    if (w->is_hf)
        return tt_model_from_hf(w->assets, &w->model);
    if (is_titan) {
        json_t *meta = NULL;

        TT_TRY(read_titan_model(w));
        TT_TRY(tt_run_file_read(w->assets, &meta));
        keep_run(w, meta);
        json_decref(meta);
        goto out;
    }
    rc = tt_fail(TT_EDATA,
                 "'%s' has weights but does not say of which model: neither config.json (Hugging Face) nor model.json "
                 "(titan)\nhelp: name a run, a checkpoint, the output of titan ckpt consolidate, or a folder from "
                 "Hugging Face",
                 w->assets);
out:
    return rc;
}

int tt_pretrained_open(struct tt_comm *comm, const char *path, bool averages, struct tt_pretrained *ret_weights)
{
    struct tt_pretrained w = {.averages = averages};
    struct found *found = tt_calloc(1, sizeof *found);
    enum tt_path_kind kind = TT_PATH_PLAIN;
    char *resolved = NULL;
    int rc = 0;

    if (comm->rank == 0 && (rc = tt_path_resolve(path, true, &kind, &resolved, NULL)) == 0) {
        if (strlen(resolved) >= sizeof found->path)
            rc = tt_fail(TT_EUSAGE, "the path '%s' is too long", resolved);
        else
            memcpy(found->path, resolved, strlen(resolved));
        found->kind = (int)kind;
    }
    tt_free(resolved);
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_comm_broadcast(comm, found, sizeof *found, 0));
    w.path = tt_strdup(found->path);
    w.kind = (enum tt_path_kind)found->kind;
    rc = tt_step_place(w.path, &w.place);
    if (rc == 0)
        rc = w.kind == TT_PATH_STEP ? open_step(&w) : open_plain(&w);
    TT_TRY(tt_comm_agree(comm, tt_step_explain(rc, w.path, &w.place)));
    *ret_weights = w;
    w = (struct tt_pretrained){0};
out:
    tt_free(found);
    tt_pretrained_release(&w);
    return rc;
}

void tt_pretrained_release(struct tt_pretrained *w)
{
    tt_free(w->path);
    tt_free(w->assets);
    tt_model_free(w->model);
    json_decref(w->config);
    json_decref(w->meta);
    *w = (struct tt_pretrained){0};
}

int tt_pretrained_explain(struct tt_comm *comm, int rc, const struct tt_pretrained *w, const char *given, int *tries,
                          bool *ret_again)
{
    int64_t again = 0;

    if (rc < 0 && rc != TT_ECOMM && w->path) /* otherwise opening failed with its own message */
        rc = tt_comm_agree(comm, tt_step_explain(rc, w->path, &w->place));
    if (rc == TT_EREMOVED) {
        again = comm->rank == 0 && tt_step_try_again(rc, given, tries);
        again = tt_comm_broadcast(comm, &again, sizeof again, 0) < 0 ? 0 : again;
    }
    *ret_again = again != 0;
    return rc;
}

int tt_pretrained_tokenizer(const struct tt_pretrained *w, const char *folder, struct tt_tokenizer **ret_tokenizer)
{
    bool found = true;
    int rc = folder                       ? 0
             : tt_gguf_is_path(w->assets) ? tt_gguf_has_tokenizer(w->assets, &found)
                                          : has(w->assets, "tokenizer.json", &found);

    if (rc < 0)
        return rc;
    if (!found)
        return tt_fail(TT_EDATA, "'%s' has no tokenizer.json\nhelp: name a folder that has one with --tokenizer",
                       w->assets);
    return tt_tokenizer_load(folder ? folder : w->assets, ret_tokenizer);
}

/* --- packed weights --- */

static enum tt_packing_choice plain_packing(enum tt_dtype stored, enum tt_dtype dtype)
{
    return stored == TT_BF16 && dtype == TT_F32 ? TT_PACKING_BF16 : TT_PACKING_NONE;
}

/* The packing in which the files store a weight, if memory can hold it so; NONE: another one. */
static enum tt_packing_choice stored_packing(const struct tt_weights *weights, const struct tt_weight *weight,
                                             enum tt_dtype dtype)
{
    enum tt_packing_choice packing = TT_PACKINGS;

    while (--packing > TT_PACKING_BF16)
        if (tt_weights_keep_packing(weights, weight, packing))
            return packing;
    return plain_packing(weight->dtype, dtype);
}

/* Keeps the matrices of files in their packings. */
static int pack_as_in_files(struct tt_pretrained *w, struct tt_source *source, enum tt_dtype dtype,
                            const bool *packable)
{
    struct tt_weights weights = {0};
    const char *unpacked = NULL;
    int rc = 0;

    TT_TRY(tt_weights_import(source, w->model, TT_EXTRA_IGNORED, &weights));
    for (int i = 0; i < weights.n; i++) {
        struct tt_param *param = &w->model->params[weights.weight[i].number];
        enum tt_packing_choice packing = stored_packing(&weights, &weights.weight[i], dtype);

        if (packable[weights.weight[i].number])
            param->packing = packing;
        else if (packing > TT_PACKING_BF16 && !unpacked)
            unpacked = param->name;
    }
    if (unpacked)
        tt_note("%s and others of its kind are blocks in '%s', but %s in memory", unpacked, w->path,
                tt_dtype_name(dtype));
out:
    tt_weights_release(&weights);
    return rc;
}

/* The same for the matrices of a checkpoint of titan's. */
static int pack_as_in_checkpoint(struct tt_pretrained *w, struct tt_source *source, enum tt_dtype dtype,
                                 const bool *packable)
{
    int rc = w->averages ? tt_manifest_use_averages(&source->manifest, source->path) : 0;

    for (int p = 0; p < w->model->n_params && rc == 0; p++) {
        const struct tt_manifest_tensor *t =
            tt_manifest_find(&source->manifest, TT_CKPT_MODEL, w->model->params[p].name);

        if (t && packable[p])
            w->model->params[p].packing = plain_packing(t->dtype, dtype);
    }
    return rc;
}

static int pack_as_stored(struct tt_pretrained *w, enum tt_dtype dtype, const bool *packable)
{
    struct tt_source *source = NULL;
    int rc = 0;

    TT_TRY(tt_source_open(w->path, w->kind, &source));
    rc = (w->is_hf ? pack_as_in_files : pack_as_in_checkpoint)(w, source, dtype, packable);
out:
    tt_source_free(source);
    return rc;
}

/* The packing of a matrix when all are to be converted to one. */
static enum tt_packing_choice packing_of(const struct tt_pretrained *w, int p, enum tt_packing_choice wanted)
{
    const struct tt_param *param = &w->model->params[p];
    bool is_outside = param->block < 0; /* embedding, or output */
    bool is_output = is_outside && (param->tied || strcmp(param->name, "output.weight") == 0);

    if (is_outside && (wanted == TT_PACKING_INT8 || wanted == TT_PACKING_NF4))
        return TT_PACKING_BF16;
    return is_output && wanted == TT_PACKING_Q4_0 ? TT_PACKING_Q8_0 : wanted;
}

static int pack_all(struct tt_pretrained *w, enum tt_packing_choice wanted, const bool *packable)
{
    const struct tt_param *narrow = NULL;
    int n = 0;

    for (int p = 0; p < w->model->n_params; p++) {
        struct tt_param *param = &w->model->params[p];
        enum tt_packing_choice packing = packing_of(w, p, wanted);

        if (!packable[p])
            continue;
        if (param->shape[1] % tt_packing_block(packing)) {
            narrow = narrow ? narrow : param;
            continue;
        }
        param->packing = packing;
        n++;
    }
    if (n == 0)
        return tt_fail(TT_EUSAGE, "no matrix of '%s' can be %s%s", w->path, tt_packing_name(wanted),
                       narrow ? ": no row is a multiple of its block" : "");
    if (narrow)
        tt_note("%s and other matrices with rows of %lld elements stay as they are: %s has blocks of %lld",
                narrow->name, (long long)narrow->shape[1], tt_packing_name(wanted),
                (long long)tt_packing_block(wanted));
    return 0;
}

int tt_pretrained_pack(struct tt_pretrained *w, const char *how, enum tt_dtype dtype, bool generation)
{
    static const char *const words[] = {"stored", "unpacked",
#define X(packing, name, block) name,
                                        TT_PACKING_MAP(X)
#undef X
    };
    enum { WORDS = sizeof words / sizeof *words };
    bool *packable = tt_calloc((size_t)w->model->n_params + 1, sizeof *packable);
    struct tt_ckpt_base base;
    int word = 0, rc = 0;

    while (how && word < WORDS && strcmp(how, words[word]) != 0)
        word++;
    if (word == WORDS)
        TT_TRY(tt_cli_fail_choice("weights", how, words, WORDS));
    if (w->base && !w->is_apart)
        TT_TRY(tt_fail(TT_EUSAGE, "'%s' contains its weights\nhelp: leave out --base", w->path));
    if (word > 0 && w->is_apart)
        TT_TRY(tt_fail(TT_EUSAGE,
                       "--weights %s is not for '%s', which has adapters of weights that are packed already\n"
                       "help: leave out --weights",
                       how, w->path));
    TT_TRY(tt_model_packable(w->model, generation, packable));
    for (int p = 0; p < w->model->n_params; p++)
        packable[p] = packable[p] && !w->model->params[p].adapter;
    if (word > 1)
        TT_TRY(pack_all(w, (enum tt_packing_choice)(TT_PACKING_BF16 + word - 2), packable));
    else if (word == 0 && !w->is_apart)
        TT_TRY(pack_as_stored(w, dtype, packable));
    (void)tt_ckpt_base_of(w->meta, &base);
    for (int p = 0; p < w->model->n_params && w->is_apart; p++)
        if (tt_lora_is_layer(&w->model->params[p]))
            w->model->params[p].packing = base.packing;
    for (int p = 0; p < w->model->n_params; p++)
        w->model->params[p].frozen = w->model->params[p].frozen || w->model->params[p].packing;
out:
    tt_free(packable);
    return rc;
}

json_t *tt_pretrained_packings(const struct tt_pretrained *w)
{
    int64_t n[TT_PACKINGS] = {0};
    json_t *found = json_object();

    for (int p = 0; p < w->model->n_params; p++)
        if (w->model->params[p].ndim > 1)
            n[w->model->params[p].packing]++;
    for (enum tt_packing_choice k = TT_PACKING_NONE; k < TT_PACKINGS; k++)
        if (n[k])
            (void)json_object_set_new(found, k ? tt_packing_name(k) : "unpacked", json_integer((json_int_t)n[k]));
    return found;
}

/* --- frozen weights that a step leaves out --- */

/* Compares the loaded weights with the run's. Unpacked weights are compared only if they were loaded in its type. */
static int check_base(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_pretrained *w,
                      const struct tt_ckpt_base *base, const struct tt_ckpt_chunk *chunk)
{
    int n = w->model->n_params, rc = 0;
    int64_t *digest = tt_calloc((size_t)n, sizeof *digest);

    for (int p = 0; p < n; p++)
        digest[p] = (int64_t)tt_base_part_digest(mesh, comm->rank, &chunk[p]);
    TT_TRY(tt_comm_sum_i64(comm, digest, n));
    for (int p = 0; p < n && rc == 0; p++) {
        const struct tt_param *param = &w->model->params[p];
        json_t *found;

        if (param->adapter || param->buffer || (param->packing ? !base->compares : chunk[p].dtype != base->dtype))
            continue;
        found = tt_base_digest_json((uint64_t)digest[p]);
        rc = tt_base_compare(base, param->name, found, TT_BASE_HELP);
        json_decref(found);
    }
out:
    tt_free(digest);
    return rc;
}

/* Reads the frozen weights from their files, and the adapters from the step. */
static int load_apart(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_pretrained *w,
                      const struct tt_ckpt_base *base, struct tt_ckpt_chunk *chunk, unsigned *skip)
{
    const char *path = NULL;
    struct tt_ckpt_state all = {.n_model = w->model->n_params, .model = chunk}, adapters = {0};
    json_t *meta = NULL;
    int rc = 0;

    TT_TRY(tt_comm_agree(comm, tt_ckpt_base_find(base, w->path, w->base, &path)));
    TT_TRY(tt_hf_load(comm, path, NULL, w->model, &all));
    TT_TRY(check_base(comm, mesh, w, base, chunk));
    adapters.model = tt_calloc((size_t)all.n_model, sizeof *adapters.model);
    for (int p = 0; p < all.n_model; p++)
        if (w->model->params[p].adapter || w->model->params[p].buffer)
            adapters.model[adapters.n_model++] = chunk[p];
    rc = tt_ckpt_load(comm, mesh, w->path, TT_LOAD_ONCE, skip, &adapters, &meta);
    json_decref(meta);
out:
    tt_free(adapters.model);
    return rc;
}

int tt_pretrained_load(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_pretrained *w,
                       const struct tt_layout *layout, struct tt_state *state)
{
    int n = w->model->n_params, rc = 0;
    struct tt_ckpt_chunk *chunk = tt_calloc((size_t)n, sizeof *chunk);
    struct tt_ckpt_state model = {.n_model = n, .model = chunk};
    unsigned skip = TT_SKIP_OPTIMIZER | (w->averages ? TT_SKIP_AVERAGED : 0);
    struct tt_ckpt_base base;
    json_t *meta = NULL;

    for (int p = 0; p < n; p++) {
        const struct tt_param *param = &w->model->params[p];
        const struct tt_unit_param *place = tt_layout_param(layout, p);

        chunk[p] = (struct tt_ckpt_chunk){.name = param->name,
                                          .dtype = param->buffer ? TT_F32 : state->dtype,
                                          .ndim = param->ndim,
                                          .packing = param->packing,
                                          .placement = tt_param_placement(mesh, NULL, w->model, p),
                                          .part = place->box,
                                          .data = tt_state_at(state, TT_STATE_PARAM, layout->unit_of[p], place)};
        memcpy(chunk[p].shape, param->shape, sizeof chunk[p].shape);
    }
    if (w->is_hf)
        rc = tt_hf_load(comm, w->path, NULL, w->model, &model);
    else if (tt_ckpt_base_of(w->meta, &base))
        rc = load_apart(comm, mesh, w, &base, chunk, &skip);
    else
        rc = tt_ckpt_load(comm, mesh, w->path, TT_LOAD_ONCE, &skip, &model, &meta);
    json_decref(meta);
    tt_free(chunk);
    return rc;
}
