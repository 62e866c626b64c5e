/* SPDX-License-Identifier: MIT
 *
 * The steps of `titan reference`. An observer of the executor (core/program/executor.h) copies gradients and losses
 * while a step runs. Every rank then saves its parts of a tensor as the model of a temporary checkpoint, and rank 0
 * exports that to the folder of the step: gathering and Hugging Face's layout are what a checkpoint has anyway.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/export/export.h"
#include "checkpoint/format/cast.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/read/map.h"
#include "checkpoint/save/save.h"
#include "checkpoint/steps/steps.h"
#include "cli/reference/reference.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/math/dynamic.h"
#include "core/math/round.h"
#include "core/models/model_json.h"
#include "core/optim/optim.h"
#include "core/os/file.h"
#include "trainer/job/tensors.h"
#include "trainer/save/saver.h"
#include "trainer/start/start.h"
#include "trainer/step/step.h"

enum { MOST_MOMENTS = 2 * TT_OPTIM_MOMENTS /* of Muon and of AdamW, which trains the other parameters */ };

struct run {
    const struct tt_setup *s;
    const struct tt_reference_options *o;
    struct tt_train_data data;
    struct tt_fixed_batch fixed;
    struct tt_saver saver;
    struct tt_start start;
    struct tt_train_progress at;
    int64_t first_sample; /* of the step */
    struct tt_observer observer;
    struct tt_activations *activations; /* NULL: none are wanted */
    struct tt_ckpt_store *store;        /* the temporary checkpoints */
    int saves;                          /* so far: the number of the next one */
    char *work;                         /* their folder */
    void **gradient;                    /* [parameter] this rank's part; NULL: not trained, or another rank's */
    double *losses;                     /* [global batch, seq_len], -inf where another rank computes it */
    json_t *steps;
};

static enum tt_dtype sums_of(const struct run *r)
{
    return tt_dtype_sums(r->s->job.engine.param_dtype);
}

static int64_t tokens_of(const struct run *r)
{
    return r->s->job.global_batch * r->data.seq_len;
}

/* --- what the observer sees --- */

static void take_gradients(void *arg, int unit, const void *sums)
{
    struct run *r = arg;
    const struct tt_unit *of = &tt_engine_layout(r->s->engine)->units[unit];
    int64_t size = tt_dtype_sum_bytes(r->s->job.engine.param_dtype);

    for (int k = 0; k < of->n_trained; k++) {
        const struct tt_unit_param *place = &of->params[k];

        memcpy(r->gradient[place->param], (const char *)sums + place->offset * size,
               (size_t)(tt_box_volume(&place->box) * size));
    }
}

static void take_value(void *arg, const struct tt_graph *graph, int value, int microbatch, const void *data)
{
    struct run *r = arg;
    const struct tt_value *of = &graph->values[value];
    int64_t n = tt_value_width(of);

    if (r->activations)
        tt_activations_take(r->activations, graph, value, microbatch, data);
    for (int64_t i = 0; i < n && value == graph->token_loss; i++)
        r->losses[tt_reference_token(r->s, microbatch, n, i)] = tt_cast_value(of->dtype, data, i);
}

/* --- writing --- */

/* A tensor for each parameter, from which rank 0 writes a folder. */
struct group {
    struct run *run;
    const char *folder, *suffix;
    const bool *only; /* [parameter] which tensors it writes; NULL: all */
    char *source;     /* the temporary step */
};

static int export_group(void *arg)
{
    const struct group *g = arg;
    struct tt_copied copied;
    const struct tt_copy copy = {.source = g->source,
                                 .destination = g->folder,
                                 .format = g->run->o->titan_names ? TT_FORMAT_TITAN : TT_FORMAT_HF,
                                 .of = g->run->s->job.model,
                                 .only = g->only,
                                 .suffix = g->suffix};

    return tt_ckpt_copy(&copy, &copied);
}

/* Writes the chunks, one for each parameter, to a folder. Collective. */
static int write_group(struct group *g, struct tt_ckpt_chunk *chunk)
{
    struct run *r = g->run;
    const struct tt_setup *s = r->s;
    struct tt_ckpt_state state = {.n_model = s->job.model->n_params, .model = chunk};
    char *config = tt_model_json_text(s->job.model);
    const struct tt_ckpt_asset asset = {"model.json", config, strlen(config)};
    struct tt_ckpt_save save = {.state = &state, .asset = &asset, .n_assets = 1, .policy = "all"};
    struct tt_ckpt_saved saved;
    int step = ++r->saves, rc = 0;

    save.meta = json_pack("{s:i}", "step", step);
    g->source = tt_step_path(r->work, step);
    TT_TRY(tt_ckpt_save(r->store, &save, &saved));
    rc = tt_comm_agree(s->comm, s->comm->rank == 0 ? tt_comm_work(s->comm, export_group, g) : 0);
out:
    json_decref(save.meta);
    tt_free(g->source);
    tt_free(config);
    return rc;
}

/* The chunks of the parameters with other data; the caller frees them. */
static struct tt_ckpt_chunk *chunks_of(const struct run *r, enum tt_dtype dtype)
{
    int n = r->s->job.model->n_params;
    struct tt_ckpt_chunk *chunk = tt_calloc((size_t)n, sizeof *chunk);

    memcpy(chunk, r->saver.tensors.whole.model, (size_t)n * sizeof *chunk);
    for (int p = 0; p < n; p++)
        chunk[p].dtype = dtype;
    return chunk;
}

static int write_gradients(struct run *r, const char *folder)
{
    const struct tt_model *model = r->s->job.model;
    bool *trained = tt_calloc((size_t)model->n_params, sizeof *trained);
    struct group g = {.run = r, .folder = folder, .only = trained};
    struct tt_ckpt_chunk *chunk = chunks_of(r, sums_of(r));
    int rc;

    for (int p = 0; p < model->n_params; p++) {
        trained[p] = !model->params[p].frozen && !model->params[p].buffer;
        chunk[p].data = r->gradient[p];
    }
    rc = write_group(&g, chunk);
    tt_free(chunk);
    tt_free(trained);
    return rc;
}

static int write_weights(struct run *r, const char *folder)
{
    struct group g = {.run = r, .folder = folder};

    (void)tt_engine_state(r->s->engine); /* waits for the step */
    return write_group(&g, r->saver.tensors.whole.model);
}

/*
 * The array with a moment of a parameter, by the moment's name: that of its own optimizer or, for moments in blocks,
 * whose optimizer has other names for their parts, AdamW's. TT_STATE_ARRAYS: the parameter has no such moment.
 */
static enum tt_state_array array_of(const struct tt_param *param, const char *name)
{
    const struct tt_optim_row *own = tt_optim_row(param->optim), *plain = tt_optim_row(TT_OPTIM_ADAMW);

    for (int k = 0; k < TT_OPTIM_MOMENTS && !param->frozen; k++) {
        if (own->moments[k] && strcmp(own->moments[k], name) == 0)
            return (enum tt_state_array)(TT_STATE_MOMENT + k);
        if (own->codes[k] && strcmp(plain->moments[k], name) == 0)
            return (enum tt_state_array)(TT_STATE_CODES + k);
    }
    return TT_STATE_ARRAYS;
}

/* The numbers that this rank's codes of a parameter stand for, in the type of sums. The caller frees them. */
static void *decode(const struct run *r, enum tt_state_array codes, int param)
{
    const struct tt_layout *layout = tt_engine_layout(r->s->engine);
    const struct tt_state *state = tt_engine_state(r->s->engine);
    const struct tt_unit_param *place = tt_layout_param(layout, param);
    const struct tt_dynamic *map = tt_dynamic_map(codes == TT_STATE_CODES);
    enum tt_state_array blocks = codes == TT_STATE_CODES ? TT_STATE_BLOCKS : TT_STATE_BLOCKS_2;
    const uint8_t *code = tt_state_at(state, codes, layout->unit_of[param], place);
    const void *largest = tt_state_at(state, blocks, layout->unit_of[param], place);
    int64_t n = tt_box_volume(&place->box), run = tt_blocks_run(place->run, n);
    double *wide = tt_calloc((size_t)n + 1, sizeof *wide);
    float *narrow = tt_calloc((size_t)n + 1, sizeof *narrow);

    for (int64_t i = 0; i < n; i++) {
        int64_t block = i / run * tt_div_up(run, TT_DYNAMIC_BLOCK) + i % run / TT_DYNAMIC_BLOCK;

        wide[i] = map->number[code[i]] * tt_cast_value(sums_of(r), largest, block);
        narrow[i] = (float)wide[i];
    }
    tt_free(sums_of(r) == TT_F64 ? (void *)narrow : wide);
    return sums_of(r) == TT_F64 ? (void *)wide : narrow;
}

/* A moment of all parameters that have one of this name. */
static int write_moment(struct run *r, const char *name, const char *folder)
{
    const struct tt_setup *s = r->s;
    const struct tt_layout *layout = tt_engine_layout(s->engine);
    int n = s->job.model->n_params;
    bool *has = tt_calloc((size_t)n, sizeof *has);
    void **decoded = tt_calloc((size_t)n, sizeof *decoded);
    char *suffix = tt_format(".%s", name);
    struct group g = {.run = r, .folder = folder, .suffix = suffix, .only = has};
    struct tt_ckpt_chunk *chunk = chunks_of(r, sums_of(r));
    int rc;

    for (int p = 0; p < n; p++) {
        enum tt_state_array array = array_of(&s->job.model->params[p], name);
        bool coded = array == TT_STATE_CODES || array == TT_STATE_CODES_2;

        has[p] = array != TT_STATE_ARRAYS;
        chunk[p].data = r->gradient[p];
        if (has[p] && !coded)
            chunk[p].dtype = tt_state_dtype(array, s->job.engine.shard_dtype);
        if (!has[p] || !tt_layout_has(layout, p))
            continue;
        if (coded)
            chunk[p].data = decoded[p] = decode(r, array, p);
        else
            chunk[p].data =
                tt_state_at(tt_engine_state(s->engine), array, layout->unit_of[p], tt_layout_param(layout, p));
    }
    rc = write_group(&g, chunk);
    for (int p = 0; p < n; p++)
        tt_free(decoded[p]);
    tt_free(decoded);
    tt_free(has);
    tt_free(chunk);
    tt_free(suffix);
    return rc;
}

static int move(const char *from, const char *to)
{
    return rename(from, to) == 0 ? 0 : tt_file_fail("rename", from, errno, NULL);
}

/* Makes one sharded folder of the folders `folder`.0, `folder`.1 and so on, each of which has one or several files. */
static int join(const char *folder, int parts)
{
    json_t *map = json_object(), *index;
    char **names[MOST_MOMENTS] = {NULL}, *path = NULL, *to = NULL;
    int n[MOST_MOMENTS] = {0}, files = 0, file = 0, rc = 0;

    TT_TRY(tt_folder_make(folder));
    for (int k = 0; k < parts; k++) {
        path = tt_format("%s.%d", folder, k);
        TT_TRY(tt_folder_list(path, &names[k], &n[k]));
        tt_free(path);
        path = NULL;
        for (int i = 0; i < n[k]; i++)
            files += tt_text_ends(names[k][i], ".safetensors");
    }
    for (int k = 0; k < parts; k++) {
        for (int i = 0; i < n[k]; i++) {
            struct tt_safetensors opened = {.fd = -1};
            char *name;

            if (!tt_text_ends(names[k][i], ".safetensors"))
                continue;
            name = files == 1 ? tt_strdup("model.safetensors")
                              : tt_format("model-%05d-of-%05d.safetensors", ++file, files);
            path = tt_format("%s.%d/%s", folder, k, names[k][i]);
            to = tt_format("%s/%s", folder, name);
            rc = tt_safetensors_open(path, &opened);
            for (int t = 0; t < opened.n && rc == 0; t++)
                (void)json_object_set_new(map, opened.tensor[t].name, json_string(name));
            tt_safetensors_release(&opened);
            rc = rc < 0 ? rc : move(path, to);
            tt_free(name);
            tt_free(path);
            tt_free(to);
            path = to = NULL;
            TT_TRY(rc);
        }
        path = tt_format("%s.%d", folder, k);
        TT_TRY(tt_folder_remove(path));
        tt_free(path);
        path = NULL;
    }
    if (files > 1) {
        index = json_pack("{s:{},s:O}", "metadata", "weight_map", map);
        path = tt_format("%s/model.safetensors.index.json", folder);
        rc = tt_json_save(path, index);
        json_decref(index);
    }
out:
    for (int k = 0; k < parts; k++)
        tt_names_free(names[k], n[k]);
    json_decref(map);
    tt_free(path);
    tt_free(to);
    return rc;
}

static int write_optimizer(struct run *r, const char *folder)
{
    const struct tt_model *model = r->s->job.model;
    const char *names[MOST_MOMENTS] = {NULL}; /* of the moments that some parameter has */
    int n = 0, rc = 0;

    for (int p = 0; p < model->n_params; p++) {
        const struct tt_optim_row *own = tt_optim_row(model->params[p].optim);

        for (int k = 0; k < TT_OPTIM_MOMENTS && !model->params[p].frozen; k++) {
            const char *name = own->codes[k] ? tt_optim_row(TT_OPTIM_ADAMW)->moments[k] : own->moments[k];
            bool is_new = name != NULL;

            for (int i = 0; i < n && is_new; i++)
                is_new = strcmp(names[i], name) != 0;
            if (is_new)
                names[n++] = name;
        }
    }
    for (int k = 0; k < n && rc == 0; k++) {
        char *part = tt_format("%s.%d", folder, k);

        rc = write_moment(r, names[k], part);
        tt_free(part);
    }
    return rc == 0 ? tt_comm_agree(r->s->comm, r->s->comm->rank == 0 ? join(folder, n) : 0) : rc;
}

/* --- the losses --- */

/* A file of three tensors (batch, seq). */
static int put_losses(const struct run *r, const char *folder, const int64_t *ids, const int64_t *labels)
{
    int64_t shape[2] = {r->s->job.global_batch, r->data.seq_len}, bytes = 0, n = tokens_of(r);
    struct tt_box box = tt_box_whole(2, shape);
    enum tt_dtype dtype = sums_of(r);
    struct tt_st_tensor tensor[] = {{.name = "loss", .dtype = dtype, .box = box, .index = 0},
                                    {.name = "input_ids", .dtype = TT_I64, .box = box, .index = 1},
                                    {.name = "labels", .dtype = TT_I64, .box = box, .index = 2}};
    struct tt_text file = {0};
    float *narrow = tt_calloc((size_t)n, sizeof *narrow);
    int rc = 0;

    for (int64_t i = 0; i < n; i++)
        narrow[i] = (float)r->losses[i];
    TT_TRY(tt_safetensors_layout(tensor, 3, NULL, false, &file, &bytes));
    for (int t = 0; t < 3; t++) {
        const void *data[] = {dtype == TT_F64 ? (const void *)r->losses : narrow, ids, labels};

        tt_text_add_bytes(&file, data[tensor[t].index], (size_t)(tensor[t].end - tensor[t].begin));
    }
    rc = tt_durable_put(folder, "loss.safetensors", file.text, file.size);
out:
    tt_text_release(&file);
    tt_free(narrow);
    return rc;
}

/* Reads the samples again: the step may have used the memory of its inputs for other values. */
static int put_samples(struct run *r, const char *folder)
{
    int64_t n = tokens_of(r), valid = 0;
    int32_t *tokens = tt_calloc((size_t)n, sizeof *tokens), *labels = tt_calloc((size_t)n, sizeof *labels);
    int64_t *ids = tt_calloc((size_t)(2 * n), sizeof *ids);
    int rc = tt_train_data_batch(&r->data, r->first_sample, r->s->job.global_batch, tokens, labels, NULL, &valid);

    for (int64_t i = 0; i < n; i++) {
        ids[i] = tokens[i];
        ids[n + i] = labels[i];
    }
    rc = rc < 0 ? rc : put_losses(r, folder, ids, ids + n);
    tt_free(tokens);
    tt_free(labels);
    tt_free(ids);
    return rc;
}

/* Collective. */
static int write_losses(struct run *r, const char *folder)
{
    struct tt_comm *comm = r->s->comm;
    int rc = 0;

    TT_TRY(tt_comm_max_f64(comm, r->losses, (int)tokens_of(r)));
    rc = tt_comm_agree(comm, comm->rank == 0 ? put_samples(r, folder) : 0);
out:
    return rc;
}

/* --- reference.json --- */

static int add_norm(const struct tt_safetensors *file, const struct tt_st_tensor *t, json_t *norms)
{
    size_t bytes = (size_t)(t->end - t->begin);
    char *data = tt_calloc_for(bytes + 1, 1, t->name);
    double sum = 0.0;
    int rc = data ? tt_file_pread(file->fd, file->path, data, bytes, file->data_start + t->begin) : TT_ENOMEM;

    for (int64_t i = 0; i < tt_box_volume(&t->box) && rc == 0; i++)
        sum += tt_cast_value(t->dtype, data, i) * tt_cast_value(t->dtype, data, i);
    (void)json_object_set_new(norms, t->name, tt_json_number(sqrt(sum)));
    tt_free(data);
    return rc;
}

/* The norm of every tensor of a folder. */
static int add_norms(const char *folder, json_t *norms)
{
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list(folder, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);
        struct tt_safetensors file = {.fd = -1};

        if (tt_text_ends(names[i], ".safetensors"))
            rc = tt_safetensors_open(path, &file);
        for (int t = 0; t < file.n && rc == 0; t++)
            rc = add_norm(&file, &file.tensor[t], norms);
        tt_safetensors_release(&file);
        tt_free(path);
    }
out:
    tt_names_free(names, n);
    return rc;
}

/* Maps every name in the files to titan's name of the parameter, and lists them in forward order. */
static void add_names(const struct run *r, json_t *o)
{
    const struct tt_model *model = r->s->job.model;
    json_t *names = json_object(), *order = json_array();
    int n = 0;
    struct tt_hf_tensor *hf = tt_hf_tensors(model, false, &n);

    for (int p = 0; p < model->n_params; p++) {
        for (int i = 0; i < n && !r->o->titan_names; i++)
            for (int k = 0; k < hf[i].n_params; k++)
                if (hf[i].param[k] == p) {
                    (void)json_object_set_new(names, hf[i].name, json_string(model->params[p].name));
                    (void)json_array_append_new(order, json_string(hf[i].name));
                }
        if (r->o->titan_names) {
            (void)json_object_set_new(names, model->params[p].name, json_string(model->params[p].name));
            (void)json_array_append_new(order, json_string(model->params[p].name));
        }
    }
    tt_free(hf);
    (void)json_object_set_new(o, "names", names);
    (void)json_object_set_new(o, "layers", order);
}

static int put_summary(const struct run *r)
{
    static const char *const words[] = {[TT_F32] = "float32", [TT_BF16] = "bfloat16", [TT_F64] = "float64"};
    char *path = tt_format("%s/reference.json", r->o->out);
    json_t *o = json_pack("{s:i, s:s, s:s, s:o}", "schema", 1, "version", TITAN_VERSION, "dtype",
                          words[r->s->job.engine.param_dtype], "config", tt_config_to_json(r->s->cfg, false));
    int rc;

    add_names(r, o);
    if (r->activations) {
        json_t *modules = json_array();

        tt_activations_list(r->activations, modules);
        (void)json_object_set_new(o, "modules", modules);
    }
    (void)json_object_set(o, "steps", r->steps);
    rc = tt_json_save(path, o);
    json_decref(o);
    tt_free(path);
    return rc;
}

/* --- the steps --- */

static int run_step(struct run *r)
{
    const struct tt_setup *s = r->s;
    struct tt_train_step done;
    char *folder = NULL, *gradients = NULL, *weights = NULL, *optimizer = NULL;
    json_t *norms = json_object();
    int64_t valid = 0;
    int rc = 0;

    for (int64_t i = 0; i < tokens_of(r); i++)
        r->losses[i] = -INFINITY;
    r->first_sample = r->at.sample_cursor;
    TT_TRY(tt_train_step(s, &r->data, NULL, NULL, &r->at, &done));
    folder = tt_format("%s/step-%" PRId64, r->o->out, r->at.step);
    gradients = tt_format("%s/gradients", folder);
    weights = tt_format("%s/weights", folder);
    optimizer = tt_format("%s/optimizer", folder);
    TT_TRY(tt_comm_agree(s->comm, s->comm->rank == 0 ? tt_folder_make(folder) : 0));
    TT_TRY(write_losses(r, folder));
    if (r->activations)
        TT_TRY(tt_activations_write(r->activations, folder));
    TT_TRY(write_gradients(r, gradients));
    TT_TRY(write_weights(r, weights));
    TT_TRY(write_optimizer(r, optimizer));
    valid = (int64_t)(1.0 / done.step.scalars.inv_valid_tokens + 0.5);
    if (s->comm->rank == 0)
        rc = add_norms(gradients, norms);
    TT_TRY(tt_comm_agree(s->comm, rc));
    (void)json_array_append_new(r->steps, json_pack("{s:I, s:o, s:I, s:o, s:o, s:O}", "step", (json_int_t)r->at.step,
                                                    "loss", tt_json_number(done.step.loss), "tokens", (json_int_t)valid,
                                                    "grad_norm", tt_json_number(done.step.grad_norm), "lr",
                                                    tt_json_number(done.step.scalars.lr), "norms", norms));
out:
    json_decref(norms);
    tt_free(folder);
    tt_free(gradients);
    tt_free(weights);
    tt_free(optimizer);
    return rc;
}

/* --- opening --- */

static int make_folders(const struct run *r)
{
    char **names = NULL;
    bool exists = false;
    int n = 0, rc = 0;

    TT_TRY(tt_path_exists(r->o->out, &exists));
    if (exists)
        TT_TRY(tt_folder_list(r->o->out, &names, &n));
    if (n > 0)
        TT_TRY(tt_fail(TT_EUSAGE, "'%s' exists and is not empty\nhelp: name a new folder with --out", r->o->out));
    TT_TRY(tt_folder_make(r->o->out));
    TT_TRY(tt_folder_make(r->work));
out:
    tt_names_free(names, n);
    return rc;
}

static int open_data(struct run *r)
{
    const struct tt_reference_batch *b = r->o->batch;

    if (!b)
        return tt_datasets_open_training(r->s, &r->data);
    r->fixed = (struct tt_fixed_batch){b->n, b->tokens, b->labels, b->positions};
    r->data = (struct tt_train_data){.fixed = &r->fixed, .seq_len = b->seq_len};
    return 0;
}

static int open_run(struct run *r)
{
    const struct tt_setup *s = r->s;
    const struct tt_layout *layout = tt_engine_layout(s->engine);
    static const char id[] = "reference";
    int rc = 0;

    TT_TRY(tt_comm_agree(s->comm, tt_activations_new(s, r->o, &r->activations)));
    TT_TRY(tt_comm_agree(s->comm, s->comm->rank == 0 ? make_folders(r) : 0));
    TT_TRY(open_data(r));
    TT_TRY(tt_comm_agree(s->comm, tt_engine_allocate(s->engine)));
    tt_saver_init(s, NULL, &r->data, &r->saver);
    TT_TRY(tt_start_load(&r->saver, id, &r->at, &r->start));
    TT_TRY(tt_ckpt_store_open(s->comm, &s->job.mesh, r->work, id, &r->store));
    r->gradient = tt_calloc((size_t)s->job.model->n_params, sizeof *r->gradient);
    for (int p = 0; p < s->job.model->n_params; p++)
        if (tt_layout_has(layout, p))
            r->gradient[p] = tt_calloc((size_t)tt_box_volume(&tt_layout_param(layout, p)->box) + 1,
                                       (size_t)tt_dtype_sum_bytes(s->job.engine.param_dtype));
    r->losses = tt_calloc((size_t)tokens_of(r), sizeof *r->losses);
    r->steps = json_array();
    r->observer = (struct tt_observer){r, take_gradients, take_value};
    tt_executor_observe(tt_engine_executor(s->engine), &r->observer);
out:
    return rc;
}

static void close_run(struct run *r)
{
    for (int p = 0; p < r->s->job.model->n_params && r->gradient; p++)
        tt_free(r->gradient[p]);
    tt_free(r->gradient);
    tt_free(r->losses);
    tt_activations_free(r->activations);
    json_decref(r->steps);
    tt_ckpt_store_close(r->store);
    tt_saver_close(&r->saver);
    tt_start_release(&r->start);
    if (!r->data.fixed)
        tt_train_data_release(&r->data);
    tt_free(r->work);
}

static int finish(const struct run *r)
{
    int rc = put_summary(r);

    return rc < 0 ? rc : tt_folder_remove(r->work);
}

int tt_reference_run(const struct tt_setup *setup, const struct tt_reference_options *options, json_t **ret_steps)
{
    struct run r = {.s = setup, .o = options, .work = tt_format("%s/.work", options->out)};
    int rc = 0;

    TT_TRY(open_run(&r));
    setup->comm->timeout_sec = (double)setup->cfg->comm.train_timeout_seconds;
    for (int i = 0; i < options->steps; i++)
        TT_TRY(run_step(&r));
    tt_ckpt_store_close(r.store);
    r.store = NULL;
    TT_TRY(tt_comm_agree(setup->comm, setup->comm->rank == 0 ? finish(&r) : 0));
    *ret_steps = json_incref(r.steps);
out:
    close_run(&r);
    return rc;
}
