/* SPDX-License-Identifier: MIT
 *
 * The outputs of modules, and their gradients, as forward hooks and hooks of tensors see them in PyTorch.
 *
 * A module is a layer that has a weight, whose name without ".weight" is the module's; or the attention, the
 * feed-forward or all of a block. The whole graph says which value is a module's output, and how wide it is. On a rank,
 * the value of the same name is a part of it: some tokens, or some columns. Names of Hugging Face's modules that
 * combine several parameters stand for several values, side by side.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/format/cast.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/read/map.h"
#include "cli/reference/reference.h"
#include "core/base/mem.h"
#include "core/graph/pieces.h"
#include "core/models/select.h"
#include "core/os/file.h"

/* A value that is the output of a module, or of one of the parameters that it combines. */
struct part {
    char *value;   /* its name in every graph */
    int grad;      /* its gradient in the whole graph */
    int param;     /* whose rows are its columns; TT_NONE: they are in Hugging Face's order already */
    int64_t width; /* of all ranks together */
};

struct module {
    char *name;
    int n_parts;
    struct part part[TT_HF_PARTS_MOST];
    int64_t width; /* of all parts */
    int64_t head;  /* the elements that it treats as one row, such as a head's; 0: all */
};

/* A value of a graph of this rank that belongs to a part, and its data in the last step. */
struct watched {
    const struct tt_graph *graph;
    int value;
    int module, part;
    bool is_grad;
    void **data; /* [microbatches] of this rank */
};

struct tt_activations {
    const struct tt_setup *s;
    bool titan_names;
    int n, cap;
    struct module *module; /* in forward order */
    int n_watched, cap_watched;
    struct watched *watched;
};

int64_t tt_reference_token(const struct tt_setup *s, int microbatch, int64_t rows, int64_t i)
{
    const struct tt_mesh *mesh = &s->job.mesh;
    struct tt_place cp = tt_mesh_place(mesh, s->comm->rank, TT_GROUP_CP);
    struct tt_place tp = tt_mesh_place(mesh, s->comm->rank, TT_GROUP_TP);
    struct tt_pieces pieces = {.grains = mesh->cp_grains, .mirrored = mesh->cp_mirrored};
    int64_t batch = s->job.microbatch_size, seq_len = s->job.engine.seq_len, length, all, at, piece;

    pieces.own = pieces.grains > 1 ? pieces.grains / cp.n : 0;
    pieces.first = pieces.own * cp.index;
    length = seq_len / tt_pieces_count(&pieces);
    all = tt_pieces_own(&pieces) * batch * length; /* of the ranks that share the layer */
    at = (rows < all ? tp.index * rows : 0) + i;
    piece = tt_piece_at(&pieces, tt_pieces_first(&pieces) + at / (batch * length));
    return (tt_engine_microbatch(s->engine, microbatch) * batch + at / length % batch) * seq_len + piece * length +
           at % length;
}

/* --- the modules of a model --- */

/* The place of a part in a new or a known module. A later value replaces an earlier one: with its bias, or with the sum
 * of shared experts. */
static struct module *add(struct tt_activations *a, const char *name, const struct tt_graph *graph, int value,
                          int param, int part)
{
    struct module *module = NULL;

    for (int m = 0; m < a->n && !module; m++)
        module = strcmp(a->module[m].name, name) == 0 ? &a->module[m] : NULL;
    if (!module) {
        TT_PUSH(a->module, a->n, a->cap) = (struct module){.name = tt_strdup(name), .n_parts = 1};
        module = &a->module[a->n - 1];
    }
    tt_free(module->part[part].value);
    module->part[part] = (struct part){.value = tt_strdup(graph->values[value].name),
                                       .grad = graph->values[value].grad,
                                       .param = param,
                                       .width = tt_value_width(&graph->values[value])};
    return module;
}

/* The name without its last component; the caller frees it. */
static char *parent(const char *name)
{
    const char *dot = strrchr(name, '.');

    return tt_strndup(name, dot ? (size_t)(dot - name) : 0);
}

/* Adds the layer whose weight or bias a node reads. */
static void add_layer(struct tt_activations *a, const struct tt_graph *graph, const struct tt_node *node)
{
    bool makes_rows = node->op == TT_OP_LINEAR || node->op == TT_OP_BIAS; /* an output for each row of the parameter */
    int number = graph->values[node->in[1]].param;
    const struct tt_param *param = &a->s->job.model->params[number];
    const char *name = a->titan_names ? param->name : param->hf_name;
    bool parts = !a->titan_names && makes_rows && param->hf_parts > 1;
    int64_t last = param->shape[param->ndim - 1];
    struct module *module;
    char *of;

    if (!name || !(tt_text_ends(name, ".weight") || tt_text_ends(name, ".bias")))
        return;
    of = parent(name);
    module =
        add(a, of, graph, node->out[0], makes_rows && !a->titan_names ? number : TT_NONE, parts ? param->hf_part : 0);
    module->n_parts = parts ? param->hf_parts : 1;
    if ((node->op == TT_OP_RMSNORM || node->op == TT_OP_LAYERNORM) && last < module->part[0].width)
        module->head = last;
    tt_free(of);
}

/* Adds a part of a block, whose own parameter titan calls `own`. */
static void add_container(struct tt_activations *a, const struct tt_graph *graph, int value, const char *own)
{
    const struct tt_model *model = a->s->job.model;
    char *name = a->titan_names ? parent(graph->values[value].name) : NULL;

    for (int p = 0; p < model->n_params && !name; p++)
        if (model->params[p].hf_name && strcmp(model->params[p].name, own) == 0) {
            char *layer = parent(model->params[p].hf_name);

            name = parent(layer);
            tt_free(layer);
        }
    if (name)
        (void)add(a, name, graph, value, TT_NONE, 0);
    tt_free(name);
}

/* Adds the attention, the feed-forward or the whole of a block, if the value is its output. */
static void add_block(struct tt_activations *a, const struct tt_graph *graph, int value, int block)
{
    static const char *const outputs[][2] = {
        /* a value, and a parameter of the module */
        {"attention.out", "attention.wo.weight"},
        {"feed_forward.out", "feed_forward.w2.weight"},
        {"moe.out", "moe.router.gate.weight"},
        {"moe.all", "moe.router.gate.weight"},
        {"out", NULL},
    };
    const char *hf_blocks = a->s->job.model->row->hf_blocks;
    char *prefix = tt_format("layers.%d.", block);
    const char *name = graph->values[value].name;

    for (size_t k = 0; k < sizeof outputs / sizeof outputs[0] && tt_text_begins(name, prefix); k++) {
        char *own;

        if (strcmp(name + strlen(prefix), outputs[k][0]) != 0)
            continue;
        own = outputs[k][1] ? tt_format("%s%s", prefix, outputs[k][1])
                            : tt_format("%s%d", a->titan_names ? "layers." : hf_blocks, block);
        if (outputs[k][1])
            add_container(a, graph, value, own);
        else
            (void)add(a, own, graph, value, TT_NONE, 0);
        tt_free(own);
    }
    tt_free(prefix);
}

/* Gemma's module of embeddings scales its output, by the root of the width; a multiplier is applied outside of it. */
static void add_scaled(struct tt_activations *a, const struct tt_graph *graph, const struct tt_node *node)
{
    if (a->s->job.model->dims.multipliers.embedding == 0.0 &&
        strcmp(graph->values[node->out[0]].name, "embeddings_scaled") == 0)
        (void)add(a, a->titan_names ? "tok_embeddings" : "model.embed_tokens", graph, node->out[0], TT_NONE, 0);
}

static void find_modules(struct tt_activations *a, const struct tt_graph *graph)
{
    for (int n = 0; n < graph->n_nodes && !graph->nodes[n].backward; n++) {
        const struct tt_node *node = &graph->nodes[n];

        if (node->op == TT_OP_LINEAR || node->op == TT_OP_BIAS || node->op == TT_OP_RMSNORM ||
            node->op == TT_OP_LAYERNORM || node->op == TT_OP_EMBEDDING)
            add_layer(a, graph, node);
        if (node->op == TT_OP_SCALE)
            add_scaled(a, graph, node);
        if (node->block != TT_NONE)
            add_block(a, graph, node->out[0], node->block);
    }
    for (int m = 0; m < a->n; m++)
        for (int k = 0; k < a->module[m].n_parts; k++)
            a->module[m].width += a->module[m].part[k].width;
}

static void release_module(struct module *module)
{
    for (int k = 0; k < TT_HF_PARTS_MOST; k++)
        tt_free(module->part[k].value);
    tt_free(module->name);
}

/* Keeps the modules that a pattern selects. */
static int select_modules(struct tt_activations *a, const struct tt_reference_options *o)
{
    const char **names = tt_calloc((size_t)a->n + 1, sizeof *names);
    bool *selected = tt_calloc((size_t)a->n + 1, sizeof *selected), any = false;
    char *help = NULL;
    int n = a->n, rc = 0;

    for (int m = 0; m < n; m++)
        names[m] = a->module[m].name;
    for (int i = 0; i < o->n_activations; i++) {
        TT_TRY(tt_names_select(o->activations[i], names, n, selected, &any));
        if (any)
            continue;
        help = tt_names_advise(o->activations[i], names, n, NULL, 0);
        TT_TRY(
            tt_fail(TT_EUSAGE,
                    "--activations '%s' selects no module of %s whose output titan keeps; it keeps no logits, and no "
                    "results of routers and single experts\nhelp: %s",
                    o->activations[i], a->s->job.model->title, help));
    }
    a->n = 0;
    for (int m = 0; m < n; m++) {
        if (selected[m])
            a->module[a->n++] = a->module[m];
        else
            release_module(&a->module[m]);
    }
out:
    tt_free(names);
    tt_free(selected);
    tt_free(help);
    return rc;
}

/* --- their values on this rank --- */

static void watch(struct tt_activations *a, const struct tt_graph *graph, int value, int m, int part, bool is_grad)
{
    TT_PUSH(a->watched, a->n_watched, a->cap_watched) =
        (struct watched){.graph = graph,
                         .value = value,
                         .module = m,
                         .part = part,
                         .is_grad = is_grad,
                         .data = tt_calloc((size_t)a->s->job.microbatches, sizeof(void *))};
}

/* The output of the last forward node that makes a value of this name, or TT_NONE. */
static int find_value(const struct tt_graph *graph, const char *name)
{
    for (int n = graph->n_nodes - 1; n >= 0; n--)
        if (!graph->nodes[n].backward && strcmp(graph->values[graph->nodes[n].out[0]].name, name) == 0)
            return graph->nodes[n].out[0];
    return TT_NONE;
}

/*
 * Watches the values of a stage. A gradient that comes from the next stage is watched there, where it leaves the stage:
 * it is that of the value at the boundary, and of all modules whose output has the same gradient, as the terms of a
 * residual have.
 */
static void watch_stage(struct tt_activations *a, const struct tt_stage *stage, const struct tt_graph *whole)
{
    const struct tt_graph *graph = stage->graph;

    for (int m = 0; m < a->n; m++)
        for (int k = 0; k < a->module[m].n_parts; k++) {
            const struct part *part = &a->module[m].part[k];
            int value = find_value(graph, part->value), grad = value == TT_NONE ? TT_NONE : graph->values[value].grad;

            if (value != TT_NONE)
                watch(a, graph, value, m, k, false);
            if (grad != TT_NONE && graph->values[grad].producer != TT_NONE)
                watch(a, graph, grad, m, k, true);
            for (int i = 0; i < stage->n_in; i++) {
                int entered = find_value(whole, graph->values[stage->in[i].value].name);

                if (stage->in[i].grad != TT_NONE && graph->values[stage->in[i].grad].producer != TT_NONE &&
                    whole->values[entered].grad == part->grad)
                    watch(a, graph, stage->in[i].grad, m, k, true);
            }
        }
}

int tt_activations_new(const struct tt_setup *s, const struct tt_reference_options *o, struct tt_activations **ret)
{
    const struct tt_engine_options *engine = &s->job.engine;
    const struct tt_program *program = tt_engine_program(s->engine);
    struct tt_activations *a = NULL;
    struct tt_graph *whole = NULL;
    int *grads = NULL, rc = 0;

    *ret = NULL;
    if (o->n_activations == 0)
        return 0;
    grads = tt_calloc((size_t)s->job.model->n_params, sizeof *grads);
    a = tt_calloc(1, sizeof *a);
    a->s = s;
    a->titan_names = o->titan_names;
    TT_TRY(tt_model_graph(s->job.model, TT_GRAPH_TRAIN, engine->param_dtype, s->job.microbatch_size, engine->seq_len,
                          engine->documents, &whole, grads));
    find_modules(a, whole);
    TT_TRY(select_modules(a, o));
    for (int i = 0; i < program->n_stages; i++)
        watch_stage(a, &program->stages[i], whole);
    *ret = a;
    a = NULL;
out:
    tt_activations_free(a);
    tt_graph_free(whole);
    tt_free(grads);
    return rc;
}

void tt_activations_free(struct tt_activations *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->n_watched; i++) {
        for (int b = 0; b < a->s->job.microbatches; b++)
            tt_free(a->watched[i].data[b]);
        tt_free(a->watched[i].data);
    }
    for (int m = 0; m < a->n; m++)
        release_module(&a->module[m]);
    tt_free(a->watched);
    tt_free(a->module);
    tt_free(a);
}

void tt_activations_take(struct tt_activations *a, const struct tt_graph *graph, int value, int microbatch,
                         const void *data)
{
    size_t bytes = (size_t)tt_value_bytes(&graph->values[value]);

    for (int i = 0; i < a->n_watched; i++) {
        struct watched *w = &a->watched[i];

        if (w->graph != graph || w->value != value)
            continue;
        if (!w->data[microbatch])
            w->data[microbatch] = tt_calloc(bytes, 1);
        memcpy(w->data[microbatch], data, bytes);
    }
}

/* --- writing --- */

/* Where column `c` of a part is in the module's output. */
static int64_t column_of(const struct tt_activations *a, const struct module *module, int part, int64_t c)
{
    int param = module->part[part].param;

    return param == TT_NONE ? c : tt_hf_output(&a->s->job.model->params[param], c);
}

/* Puts this rank's elements of a microbatch into the output for all tokens. */
static void put_part(const struct tt_activations *a, const struct watched *w, int microbatch, double *output)
{
    const struct module *module = &a->module[w->module];
    const struct tt_value *value = &w->graph->values[w->value];
    struct tt_place tp = tt_mesh_place(&a->s->job.mesh, a->s->comm->rank, TT_GROUP_TP);
    int64_t rows = tt_value_rows(value), width = tt_value_width(value), whole = module->part[w->part].width;
    int64_t first = width == whole ? 0 : tp.index == tp.n - 1 ? whole - width : tp.index * width;

    for (int64_t i = 0; i < rows; i++) {
        double *to = output + tt_reference_token(a->s, microbatch, rows, i) * module->width;

        for (int64_t c = 0; c < width; c++)
            to[column_of(a, module, w->part, first + c)] =
                tt_cast_value(value->dtype, w->data[microbatch], i * width + c);
    }
}

/* The output of a module, or its gradient, for all tokens of the step: on rank 0 complete. Collective. */
static int gather(const struct tt_activations *a, int m, bool grads, double *output, int64_t n)
{
    enum { MOST = 1 << 24 };
    int rc = 0;

    for (int64_t i = 0; i < n; i++)
        output[i] = -INFINITY;
    for (int i = 0; i < a->n_watched; i++)
        for (int b = 0; b < a->s->job.microbatches; b++)
            if (a->watched[i].module == m && a->watched[i].is_grad == grads && a->watched[i].data[b])
                put_part(a, &a->watched[i], b, output);
    for (int64_t i = 0; i < n && rc == 0; i += MOST)
        rc = tt_comm_max_f64(a->s->comm, output + i, (int)(n - i < MOST ? n - i : MOST));
    return rc;
}

/* A file that rank 0 writes, and the tensor that comes next. */
struct writing {
    struct tt_durable file;
    const char *section;
    const struct module *module;
    const struct tt_st_tensor *tensor;
    int64_t data_start, n;
    double *output;
};

static int put_output(void *arg)
{
    const struct writing *w = arg;
    float *narrow = (float *)w->output; /* element i ends before element i of `output`, if i > 0, begins */

    for (int64_t i = 0; i < w->n; i++)
        if (w->output[i] == -(double)INFINITY)
            return tt_fail(TT_EINTERNAL, "no rank has element %" PRId64 " of %s of %s", i, w->section, w->module->name);
    for (int64_t i = 0; i < w->n && w->tensor->dtype == TT_F32; i++) {
        float value = (float)w->output[i];

        memcpy(&narrow[i], &value, sizeof value);
    }
    return tt_durable_write(&w->file, w->output, (size_t)(w->tensor->end - w->tensor->begin),
                            w->data_start + w->tensor->begin);
}

static void lay_out(const struct tt_activations *a, struct tt_st_tensor *tensor)
{
    for (int m = 0; m < a->n; m++) {
        const struct module *module = &a->module[m];
        int64_t head = module->head ? module->head : module->width;
        int64_t shape[] = {a->s->job.global_batch, a->s->job.engine.seq_len, module->width / head, head};

        if (!module->head)
            shape[2] = module->width;
        tensor[m] = (struct tt_st_tensor){.name = module->name,
                                          .dtype = tt_dtype_sums(a->s->job.engine.param_dtype),
                                          .box = tt_box_whole(module->head ? 4 : 3, shape),
                                          .index = m};
    }
}

static int begin_file(const char *folder, const struct tt_text *header, int64_t bytes, struct writing *w)
{
    char *path = tt_format("%s/model.safetensors", folder);
    int rc = 0;

    TT_TRY(tt_folder_make(folder));
    TT_TRY(tt_durable_begin(path, bytes, -1, &w->file));
    rc = tt_durable_write(&w->file, header->text, header->size, 0);
out:
    tt_free(path);
    return rc;
}

/* Writes a file of all modules. Collective. */
static int write_section(struct tt_activations *a, const char *folder, bool grads)
{
    struct tt_comm *comm = a->s->comm;
    struct tt_st_tensor *tensor = tt_calloc((size_t)a->n, sizeof *tensor);
    struct writing w = {.file = {.fd = -1}, .section = grads ? "activation_gradients" : "activations"};
    char *path = tt_format("%s/%s", folder, w.section);
    int64_t tokens = a->s->job.global_batch * a->s->job.engine.seq_len, widest = 0, bytes = 0;
    struct tt_text header = {0};
    int rc = 0;

    for (int m = 0; m < a->n; m++)
        widest = a->module[m].width > widest ? a->module[m].width : widest;
    lay_out(a, tensor);
    TT_TRY(tt_safetensors_layout(tensor, a->n, NULL, false, &header, &bytes));
    w.data_start = (int64_t)header.size;
    w.output = tt_calloc_for((size_t)(tokens * widest), sizeof *w.output, "the output of a module");
    TT_TRY(tt_comm_agree(comm, !w.output ? TT_ENOMEM : comm->rank == 0 ? begin_file(path, &header, bytes, &w) : 0));
    for (int t = 0; t < a->n; t++) {
        w.tensor = &tensor[t];
        w.module = &a->module[tensor[t].index];
        w.n = tokens * w.module->width;
        TT_TRY(gather(a, tensor[t].index, grads, w.output, w.n));
        TT_TRY(tt_comm_agree(comm, comm->rank == 0 ? tt_comm_work(comm, put_output, &w) : 0));
    }
    rc = tt_comm_agree(comm, comm->rank == 0 ? tt_durable_end(&w.file) : 0);
out:
    tt_durable_cancel(&w.file);
    tt_text_release(&header);
    tt_free(w.output);
    tt_free(tensor);
    tt_free(path);
    return rc;
}

int tt_activations_write(struct tt_activations *a, const char *folder)
{
    int rc = write_section(a, folder, false);

    return rc < 0 ? rc : write_section(a, folder, true);
}

void tt_activations_list(const struct tt_activations *a, json_t *list)
{
    for (int m = 0; m < a->n; m++)
        (void)json_array_append_new(list, json_string(a->module[m].name));
}
