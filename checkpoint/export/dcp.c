/* SPDX-License-Identifier: MIT
 *
 * Writes a checkpoint folder in PyTorch's format: a sequence of archives, each with a piece of a tensor or with an
 * object, under the keys that torchtitan uses. The options of the optimizer and the learning rates come from the
 * configuration in the manifest.
 */
#include <math.h>
#include <string.h>

#include "checkpoint/dcp/item.h"
#include "checkpoint/dcp/metadata.h"
#include "checkpoint/dcp/scan.h"
#include "checkpoint/export/internal.h"
#include "checkpoint/format/cast.h"
#include "checkpoint/format/state.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/optim/lr.h"
#include "core/optim/optim.h"
#include "core/os/file.h"
#include "parallel/layout/units.h"

/*
 * Writes a folder of PyTorch's torch.distributed.checkpoint, as one rank would: archives in files __0_N.distcp, and
 * .metadata last. Tensors are streamed, cut by rows into pieces of at most 1 GiB. Local. The same input gives the same
 * bytes.
 */
struct writer {
    const char *folder;   /* borrowed */
    struct tt_durable to; /* the file that is being written */
    int64_t at;           /* its bytes so far */
    int64_t bytes;        /* bytes of all complete files */
    struct tt_dcp_metadata metadata;
};

static int end_file(struct writer *w)
{
    int rc = 0;

    if (w->to.fd < 0)
        return 0;
    TT_TRY(tt_durable_end(&w->to));
    w->bytes += w->at;
    w->metadata.file[w->metadata.n_files - 1].bytes = w->at;
out:
    return rc;
}

/* Completes the current file and begins another. */
static int begin_file(struct writer *writer)
{
    struct tt_dcp_metadata *m = &writer->metadata;
    char *name = tt_format("__0_%d.distcp", m->n_files), *path = tt_format("%s/%s", writer->folder, name);
    int rc = end_file(writer);

    TT_PUSH(m->file, m->n_files, m->cap_files) = (struct tt_dcp_file){.name = name};
    TT_TRY(rc);
    TT_TRY(tt_durable_begin(path, 0, -1, &writer->to));
    writer->at = 0;
out:
    tt_free(path);
    return rc;
}

static int put(struct writer *w, const void *bytes, size_t size)
{
    int rc = tt_durable_write(&w->to, bytes, size, w->at);

    w->at += (int64_t)size;
    return rc;
}

static struct tt_dcp_entry *add_entry(struct writer *w, const char *key, const char *root)
{
    struct tt_dcp_metadata *m = &w->metadata;

    TT_PUSH(m->entry, m->n, m->cap) = (struct tt_dcp_entry){.key = tt_strdup(key), .leaf = root ? strlen(root) + 1 : 0};
    return &m->entry[m->n - 1];
}

static void add_piece(struct writer *w, const struct tt_box *box, int64_t begin)
{
    struct tt_dcp_entry *entry = &w->metadata.entry[w->metadata.n - 1];

    TT_PUSH(entry->piece, entry->n, entry->cap) =
        (struct tt_dcp_piece){*box, w->metadata.n_files - 1, begin, w->at - begin};
}

/* A weight that is being written, and the checksum of its rows. */
struct writing {
    struct tt_copying *c;
    struct writer *w;
    int64_t row_bytes;
    uint32_t crc;
};

static int put_rows(void *arg, const void *rows, int64_t first, int64_t n)
{
    struct writing *writing = arg;
    int rc = 0;

    (void)first;
    writing->crc = tt_crc32(writing->crc, rows, (size_t)(n * writing->row_bytes));
    TT_TRY(put(writing->w, rows, (size_t)(n * writing->row_bytes)));
    tt_copying_advance(writing->c, n * writing->row_bytes);
out:
    return rc;
}

static int add_rows(struct tt_copying *c, struct writer *w, struct tt_weights *weights, const struct tt_weight *weight,
                    enum tt_dtype dtype, int64_t row, int64_t rows)
{
    struct tt_box box = tt_box_rows(weight->ndim, weight->shape, row, rows);
    struct writing writing = {.c = c, .w = w, .row_bytes = tt_box_row_elements(&box) * (int64_t)tt_dtype_size(dtype)};
    struct tt_archive archive = {0};
    int64_t begin = w->at;
    int rc = 0;

    TT_TRY(tt_dcp_item_tensor(weight->name, dtype, box.ndim, box.shape, &archive));
    TT_TRY(put(w, archive.head.text, archive.head.size));
    TT_TRY(tt_weights_stream(weights, weight, row, rows, dtype, put_rows, &writing));
    tt_archive_end(&archive, writing.crc);
    TT_TRY(put(w, archive.tail.text, archive.tail.size));
    add_piece(w, &box, begin);
out:
    tt_archive_release(&archive);
    return rc;
}

/* Adds a weight under a key, in the given dtype. root: the first name of the key's path in the state dictionary, such
 * as "optimizer"; NULL: the path is the key alone. TT_EDATA: PyTorch has no such type. */
static int add_weight(struct tt_copying *c, struct writer *w, struct tt_weights *weights,
                      const struct tt_weight *weight, enum tt_dtype dtype, const char *key, const char *root)
{
    struct tt_dcp_entry *entry;
    int64_t row_bytes = tt_row_width(weight->ndim, weight->shape) * (int64_t)tt_dtype_size(dtype);
    int64_t rows = weight->ndim ? weight->shape[0] : 1;
    int64_t step = row_bytes > 0 && row_bytes < TT_ARCHIVE_DATA_MOST ? TT_ARCHIVE_DATA_MOST / row_bytes : 1;
    int rc = 0;

    if (!tt_py_type_of(dtype))
        return tt_cast_fail(weight->name, "written for PyTorch", dtype);
    entry = add_entry(w, key, root);
    entry->is_tensor = true;
    entry->dtype = dtype;
    entry->ndim = weight->ndim;
    memcpy(entry->shape, weight->shape, sizeof weight->shape);
    /* PyTorch never asks for a piece without elements */
    for (int64_t row = 0; row < rows && row_bytes > 0; row += step)
        TT_TRY(add_rows(c, w, weights, weight, dtype, row, rows - row < step ? rows - row : step));
out:
    return rc;
}

/* Adds an archive that fits in memory, as the only piece of the last entry. */
static int add_small(struct writer *w, struct tt_archive *archive, const void *data, size_t size)
{
    int64_t begin = w->at;
    int rc = 0;

    tt_archive_end(archive, tt_crc32(0, data, size));
    TT_TRY(put(w, archive->head.text, archive->head.size));
    if (size)
        TT_TRY(put(w, data, size));
    TT_TRY(put(w, archive->tail.text, archive->tail.size));
    add_piece(w, &(struct tt_box){0}, begin);
out:
    return rc;
}

/* Adds an object that the pickler has already pushed. Releases the pickler. */
static int add_object(struct writer *writer, const char *key, const char *root, struct tt_pickler *pickler)
{
    struct tt_archive archive = {0};
    int rc;

    (void)add_entry(writer, key, root);
    tt_pickler_add(pickler, TT_PICKLER_STOP);
    tt_archive_begin(&pickler->text, 0, &archive);
    rc = add_small(writer, &archive, "", 0);
    tt_archive_release(&archive);
    tt_pickler_release(pickler);
    return rc;
}

/* Adds a float32 tensor without dimensions. */
static int add_scalar(struct writer *writer, const char *key, const char *root, float number)
{
    struct tt_dcp_entry *entry = add_entry(writer, key, root);
    struct tt_archive archive = {0};
    int rc = 0;

    entry->is_tensor = true;
    entry->dtype = TT_F32;
    TT_TRY(tt_dcp_item_tensor(key, TT_F32, 0, NULL, &archive));
    TT_TRY(add_small(writer, &archive, &number, sizeof number));
out:
    tt_archive_release(&archive);
    return rc;
}

/* The number of an entry, or TT_NONE. */
static int find_entry(const struct tt_dcp_metadata *m, const char *key)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->entry[i].key, key) == 0)
            return i;
    return TT_NONE;
}

/* Adds a second key for the weight that was added as `of`, unless the key exists; the bytes are stored once. */
static void add_alias(struct writer *writer, const char *key, const char *of)
{
    int known = find_entry(&writer->metadata, of);
    const struct tt_dcp_entry *first;
    struct tt_dcp_entry *entry;

    if (known == TT_NONE || find_entry(&writer->metadata, key) != TT_NONE)
        return;
    entry = add_entry(writer, key, NULL);
    first = &writer->metadata.entry[known];
    entry->is_tensor = true;
    entry->dtype = first->dtype;
    entry->ndim = first->ndim;
    memcpy(entry->shape, first->shape, sizeof first->shape);
    for (int i = 0; i < first->n; i++)
        TT_PUSH(entry->piece, entry->n, entry->cap) = first->piece[i];
}

/* --- what the manifest says --- */

static const json_t *setting(const struct tt_copying *c, const char *section, const char *key)
{
    return json_object_get(json_object_get(json_object_get(c->source[0]->manifest.meta, "config"), section), key);
}

static double real(const struct tt_copying *c, const char *section, const char *key, double absent)
{
    const json_t *value = setting(c, section, key);

    return json_is_number(value) ? json_number_value(value) : absent;
}

static int64_t count(const struct tt_copying *c, const char *section, const char *key, int64_t absent)
{
    const json_t *value = setting(c, section, key);

    return json_is_integer(value) ? (int64_t)json_integer_value(value) : absent;
}

static int64_t done(const struct tt_copying *c, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(c->source[0]->manifest.meta, key));
}

/* The choice that the configuration made for a key of kind ENUM; the first one if it made none. */
static int choice(const struct tt_copying *c, enum tt_key key)
{
    const struct tt_config_row *row = tt_config_row(key);
    const char *word = json_string_value(setting(c, row->section, row->key));

    for (int i = 0; word && i < row->choices->n; i++)
        if (strcmp(row->choices->choice[i].word, word) == 0)
            return row->choices->choice[i].value;
    return row->choices->choice[0].value;
}

/* The learning rate of the next step: torchtitan has already set it when it saves. */
static double next_rate(const struct tt_copying *c)
{
    const char *text = json_string_value(json_object_get(c->source[0]->manifest.meta, "ends"));
    struct tt_lr_ends ends = {.n = 0};
    const struct tt_lr_schedule schedule = {
        .base = real(c, "optimizer", "lr", 0.0),
        .warmup_steps = count(c, "lr_scheduler", "warmup_steps", 0),
        .total_steps = count(c, "lr_scheduler", "total_steps", count(c, "training", "steps", 1)),
        .ends = text && tt_lr_ends_read(text, &ends) ? &ends : NULL,
        .ends_shift = done(c, "lr_step") - done(c, "step"),
        .decay_ratio = real(c, "lr_scheduler", "decay_ratio", NAN),
        .decay = (enum tt_decay_choice)choice(c, TT_KEY(lr_scheduler.decay_type)),
        .min_factor = real(c, "lr_scheduler", "min_lr_factor", 0.0),
    };

    return tt_lr_at(&schedule, done(c, "lr_step") + 1);
}

static enum tt_optim_choice optimizer_of(const struct tt_copying *c)
{
    return (enum tt_optim_choice)choice(c, TT_KEY(optimizer.name));
}

static struct tt_words words_of(const json_t *list)
{
    struct tt_words words = {.is_list = true, .word = tt_calloc(json_array_size(list) + 1, sizeof(char *))};

    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_string(json_array_get(list, i)))
            words.word[words.n++] = tt_strdup(json_string_value(json_array_get(list, i)));
    return words;
}

static void words_release(struct tt_words *words)
{
    for (int i = 0; i < words->n; i++)
        tt_free(words->word[i]);
    tt_free((void *)words->word);
}

/* Records the optimizer and the options of each parameter of the model, as the checkpoint states them. */
static int apply_groups(const struct tt_copying *c)
{
    struct tt_words no_decay = words_of(setting(c, "optimizer", "no_decay"));
    struct tt_words factors = words_of(setting(c, "optimizer", "lr_factors"));
    int rc = tt_param_groups_apply(c->model[0], no_decay, factors);

    tt_param_groups_set_optim(c->model[0], optimizer_of(c));
    words_release(&no_decay);
    words_release(&factors);
    return rc;
}

/* --- the keys --- */

/* A value in PyTorch: a number, a list of one, two or three numbers, true or false, or a word. */
struct option {
    const char *name;
    enum tt_torch_kind kind;
    double number[3];
    const char *word;
    int64_t count;
};

static int put_value(struct writer *w, const char *key, const char *root, const struct option *value)
{
    int numbers = value->kind == TT_TORCH_TRIPLE ? 3 : value->kind == TT_TORCH_PAIR ? 2 : 1;
    struct tt_pickler p = {0};

    tt_pickler_begin(&p);
    if (value->kind == TT_TORCH_LIST)
        tt_pickler_add(&p, TT_PICKLER_LIST);
    if (value->kind == TT_TORCH_LIST || numbers > 1)
        tt_pickler_add(&p, TT_PICKLER_MARK);
    if (value->kind == TT_TORCH_FLAG)
        tt_pickler_bool(&p, value->number[0] != 0.0);
    else if (value->kind == TT_TORCH_COUNT)
        tt_pickler_int(&p, value->count);
    else if (value->kind == TT_TORCH_WORD)
        tt_pickler_text(&p, value->word);
    else
        for (int i = 0; i < numbers; i++)
            tt_pickler_real(&p, value->number[i]);
    if (value->kind == TT_TORCH_LIST || numbers > 1)
        tt_pickler_add(&p, value->kind == TT_TORCH_LIST ? TT_PICKLER_APPENDS : TT_PICKLER_TUPLE);
    return add_object(w, key, root, &p);
}

/* Puts values under the keys "PREFIX.NAME", whose paths begin with root. */
static int put_values(struct writer *w, const char *prefix, const char *root, const struct option *value, size_t n)
{
    int rc = 0;

    for (size_t i = 0; i < n && rc == 0; i++) {
        char *key = tt_format("%s.%s", prefix, value[i].name);

        rc = put_value(w, key, root, &value[i]);
        tt_free(key);
    }
    return rc;
}

/* Adds the options in the optimizer's row: values of keys, their defaults, or constants. */
static int put_own_options(const struct tt_copying *c, struct writer *w, const char *prefix,
                           const struct tt_optim_option *own)
{
    struct option option[TT_OPTIM_OPTIONS];
    size_t n = 0;

    for (; n < TT_OPTIM_OPTIONS && own[n].name; n++) {
        const json_t *set = own[n].key[0] ? setting(c, "optimizer", own[n].key[0]) : NULL;
        double first = json_is_number(set) ? json_number_value(set) : own[n].number[0];

        if (json_is_boolean(set))
            first = json_is_true(set);
        option[n] = (struct option){
            .name = own[n].name,
            .kind = own[n].kind,
            .number = {first, own[n].key[1] ? real(c, "optimizer", own[n].key[1], own[n].number[1]) : own[n].number[1],
                       own[n].number[2]},
            .count = (int64_t)first,
            .word = json_is_string(set) ? json_string_value(set) : own[n].word};
    }
    return put_values(w, prefix, "optimizer", option, n);
}

static int write_options(const struct tt_copying *c, struct writer *w)
{
    double rate = next_rate(c), base = real(c, "optimizer", "lr", 0.0);
    const struct option rates[] = {{"base_lrs", TT_TORCH_LIST, .number = {base}},
                                   {"_last_lr", TT_TORCH_LIST, .number = {rate}}};
    int rc = 0;

    TT_TRY(apply_groups(c));
    for (int p = 0; p < c->model[0]->n_params && rc == 0; p++) {
        const struct tt_param *param = &c->model[0]->params[p];
        const struct option option[] = {
            {"lr", TT_TORCH_REAL, .number = {rate * param->lr_factor}},
            {"initial_lr", TT_TORCH_REAL, .number = {base * param->lr_factor}},
            {"weight_decay", TT_TORCH_REAL,
             .number = {param->no_decay ? 0.0 : real(c, "optimizer", "weight_decay", 0.1)}},
        };
        char *prefix = tt_format("optimizer.param_groups.%s", param->name);

        rc = put_values(w, prefix, "optimizer", option, sizeof option / sizeof option[0]);
        if (rc == 0)
            rc = put_own_options(c, w, prefix, tt_optim_row(param->optim)->options);
        tt_free(prefix);
    }
    TT_TRY(rc);
    rc = put_values(w, "lr_scheduler", "lr_scheduler", rates, sizeof rates / sizeof rates[0]);
out:
    return rc;
}

static int write_counts(const struct tt_copying *c, struct writer *w)
{
    const struct option train_state[] = {
        {"step", TT_TORCH_COUNT, .count = done(c, "step")},
        {"ntokens_seen", TT_TORCH_COUNT, .count = done(c, "ntokens_seen")},
    };
    const struct option lr_scheduler[] = {
        {"last_epoch", TT_TORCH_COUNT, .count = done(c, "lr_step")},
        {"_step_count", TT_TORCH_COUNT, .count = done(c, "lr_step") + 1},
        {"_is_initial", TT_TORCH_FLAG, .number = {0.0}},
        {"_get_lr_called_within_step", TT_TORCH_FLAG, .number = {0.0}},
    };
    int rc = put_values(w, "train_state", "train_state", train_state, sizeof train_state / sizeof train_state[0]);

    return rc < 0 ? rc
                  : put_values(w, "lr_scheduler", "lr_scheduler", lr_scheduler,
                               sizeof lr_scheduler / sizeof lr_scheduler[0]);
}

/* torchtitan has no keys for averages of weights, so no program would read these bytes. */
static bool leave_averages_out(struct tt_weights *moments)
{
    int n = 0;
    bool any;

    for (int i = 0; i < moments->n; i++)
        if (!tt_ckpt_is_average(moments->weight[i].name))
            moments->weight[n++] = moments->weight[i];
    any = n < moments->n;
    moments->n = n;
    return any;
}

/* Whether it is the moment beside which PyTorch keeps a parameter's number of updates: the first one, of the optimizer
 * or of AdamW, which may train some of the parameters. */
static bool is_counted(const struct tt_copying *c, const char *moment)
{
    const struct tt_optim_row *row = tt_optim_row(optimizer_of(c)), *other = tt_optim_row(TT_OPTIM_ADAMW);
    bool shares = row->of_matrices || row->codes[0];

    return (row->counts_steps && strcmp(moment, row->codes[0] ? row->codes[0] : row->moments[0]) == 0) ||
           (shares && strcmp(moment, other->moments[0]) == 0);
}

/* Writes the moments of each parameter and, beside the first moment, how often the parameter was updated. */
static int write_moments(struct tt_copying *c, struct writer *w, struct tt_weights *moments)
{
    float updates = (float)done(c, "optimizer_step");
    int rc = 0;

    for (int i = 0; i < moments->n && rc == 0; i++) {
        const struct tt_weight *weight = &moments->weight[i];
        const char *end = strrchr(weight->name, '.');
        char *key = tt_format("optimizer.%s", weight->name);
        char *step = tt_format("optimizer.%.*s.step", (int)(end ? end - weight->name : 0), weight->name);

        rc = add_weight(c, w, moments, weight, weight->dtype, key, "optimizer");
        if (rc == 0 && end && is_counted(c, end + 1))
            rc = add_scalar(w, step, "optimizer", updates);
        tt_free(key);
        tt_free(step);
    }
    return rc < 0 ? rc : tt_weights_check(moments);
}

static int write_state(struct tt_copying *c, struct writer *w)
{
    struct tt_weights moments = {0};
    int rc = 0;

    tt_weights_stored(c->source[0], TT_CKPT_OPTIM, &moments);
    if (leave_averages_out(&moments))
        tt_note("the averages of the weights in '%s' are left out, since torchtitan has no key for them\n"
                "help: --ema writes them as the weights",
                c->source[0]->path);
    if (moments.n == 0)
        goto out;
    TT_TRY(begin_file(w));
    TT_TRY(write_moments(c, w, &moments));
    TT_TRY(write_counts(c, w));
    if (c->model[0] && json_is_number(setting(c, "optimizer", "lr")) && setting(c, "optimizer", "name"))
        rc = write_options(c, w);
    else
        tt_note("'%s' lacks the configuration of its run, so the options of the optimizer, which PyTorch needs to "
                "resume, are left out",
                c->source[0]->path);
out:
    tt_weights_release(&moments);
    return rc;
}

int tt_copying_to_dcp(struct tt_copying *c)
{
    struct writer writer = {.folder = c->output.folder, .to.fd = -1};
    const struct tt_weights *weights = c->weights;
    struct tt_text text = {0};
    int rc = 0;

    for (int i = 0; i < weights->n; i++) {
        if (i == 0 || c->of_file[i] != c->of_file[i - 1])
            TT_TRY(begin_file(&writer));
        TT_TRY(add_weight(c, &writer, c->weights, &weights->weight[i], c->dtype[i], weights->weight[i].name, NULL));
    }
    if (c->model[0] && c->model[0]->dims.tied == 1) /* PyTorch saves a tied weight under both names */
        add_alias(&writer, "output.weight", "tok_embeddings.weight");
    if (c->copy->with_state)
        TT_TRY(write_state(c, &writer));
    TT_TRY(end_file(&writer));
    tt_dcp_metadata_text(&writer.metadata, &text);
    TT_TRY(tt_durable_put(writer.folder, TT_DCP_METADATA, text.text, text.size));
    c->bytes = writer.bytes + (int64_t)text.size;
    c->n_files = writer.metadata.n_files;
out:
    tt_text_release(&text);
    tt_durable_cancel(&writer.to);
    tt_dcp_metadata_release(&writer.metadata);
    return rc;
}
