/* SPDX-License-Identifier: MIT
 *
 * PyTorch's Metadata object: its dictionaries state_dict_metadata (what there is), storage_data (where it is) and
 * planner_data (the path of each key in the state dictionary). titan writes TensorProperties with five members, as
 * PyTorch did before 2.6; newer versions read them too. Source: torch/distributed/checkpoint/metadata.py.
 */
#include "checkpoint/dcp/metadata.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/dcp/item.h"
#include "checkpoint/dcp/pickle.h"
#include "core/base/mem.h"

enum { TEXT_MOST = 4096 };

/* A row of storage_data: MetadataIndex(fqn, offset) → _StorageInfo(relative_path, offset, length). */
struct stored {
    const struct tt_pickle_value *key; /* the text in it */
    int ndim;                          /* -1: not a tensor */
    int64_t offset[TT_BOX_DIMS];
    const struct tt_pickle_value *path;
    int file; /* its number */
    int64_t begin, bytes;
    const struct tt_pickle_value *transform; /* how the piece's bytes were changed, such as "stream.zstd/1" */
    bool taken;                              /* whether a piece refers to this row */
};

/* A row of planner_data. */
struct path {
    const struct tt_pickle_value *key, *path;
};

struct parse {
    const char *where;
    struct stored *stored;
    int n_stored;
    struct path *path;
    int n_paths;
    size_t chunks_left; /* how many more chunks a pickle of this size can describe */
    struct tt_dcp_metadata metadata;
};

static int fail(const struct parse *p, const char *what, const struct tt_pickle_value *key)
{
    char *name = tt_pickle_text(key);
    int rc = tt_fail(TT_EDATA, "'%s' is damaged: %s%s%s%s", p->where, what, name ? " '" : "", name ? name : "",
                     name ? "'" : "");

    tt_free(name);
    return rc;
}

static int compare_texts(const struct tt_pickle_value *a, const struct tt_pickle_value *b)
{
    size_t n = a->size < b->size ? a->size : b->size;
    int order = n ? memcmp(a->text, b->text, n) : 0;

    return order ? order : (a->size > b->size) - (a->size < b->size);
}

static int compare_files(const void *pa, const void *pb)
{
    const struct stored *a = pa, *b = pb;

    return compare_texts(a->path, b->path);
}

static int compare_paths(const void *pa, const void *pb)
{
    const struct path *a = pa, *b = pb;

    return compare_texts(a->key, b->key);
}

static int compare_stored(const void *pa, const void *pb)
{
    const struct stored *a = pa, *b = pb;
    int order = compare_texts(a->key, b->key);

    if (order)
        return order;
    if (a->ndim != b->ndim)
        return a->ndim - b->ndim;
    for (int d = 0; d < a->ndim; d++)
        if (a->offset[d] != b->offset[d])
            return a->offset[d] < b->offset[d] ? -1 : 1;
    return 0;
}

static bool is_dict(const struct tt_pickle_value *value)
{
    return value && value->kind == TT_PICKLE_DICT;
}

/* Reads a key, a file or a part of a path. Many values of a pickle may share one text, so long texts are refused. */
static bool is_text(const struct tt_pickle_value *value)
{
    return value && value->kind == TT_PICKLE_TEXT && value->size <= TEXT_MOST;
}

static bool is_none(const struct tt_pickle_value *value)
{
    return !value || value->kind == TT_PICKLE_NONE;
}

/* More dimensions than a box can have; no code asks for such a row. */
static bool has_many_dims(const struct tt_pickle_value *size)
{
    const struct tt_pickle_value *sizes = tt_pickle_is(size, TT_PY_SIZE) ? tt_pickle_item(size->args, 0) : size;

    return sizes && sizes->kind == TT_PICKLE_TUPLE && sizes->n > TT_BOX_DIMS;
}

static int read_stored(struct parse *p, const struct tt_pickle_value *index, const struct tt_pickle_value *info,
                       struct stored *stored)
{
    const struct tt_pickle_value *offset = tt_pickle_member(index, "offset"), *begin, *bytes;

    stored->key = tt_pickle_member(index, "fqn");
    stored->ndim = -1;
    if (!tt_pickle_is(index, TT_PY_INDEX) || !is_text(stored->key))
        return fail(p, "storage_data has a key that is not a MetadataIndex", NULL);
    if (!is_none(offset) && !has_many_dims(offset) &&
        !tt_pickle_sizes(offset, stored->offset, TT_BOX_DIMS, &stored->ndim))
        return fail(p, "storage_data has no offset of", stored->key);
    stored->path = tt_pickle_member(info, "relative_path");
    begin = tt_pickle_member(info, "offset");
    bytes = tt_pickle_member(info, "length");
    if (!tt_pickle_is(info, TT_PY_STORAGE_INFO) || !is_text(stored->path) || !begin || !bytes ||
        begin->kind != TT_PICKLE_INT || bytes->kind != TT_PICKLE_INT || begin->number < 0 || bytes->number < 0 ||
        begin->number > INT64_MAX / 4 || bytes->number > INT64_MAX / 4)
        return fail(p, "storage_data does not say where it stores", stored->key);
    stored->transform = tt_pickle_member(info, "transform_descriptors");
    stored->begin = begin->number;
    stored->bytes = bytes->number;
    return 0;
}

/* Sorts the rows by their files, and numbers these. A file's name must not contain folders, so that nothing outside the
 * checkpoint is read. */
static int add_files(struct parse *p)
{
    struct tt_dcp_metadata *m = &p->metadata;

    qsort(p->stored, (size_t)p->n_stored, sizeof *p->stored, compare_files);
    for (int i = 0; i < p->n_stored; i++) {
        struct stored *stored = &p->stored[i];

        if (i == 0 || compare_files(stored, stored - 1) != 0) {
            char *name = tt_pickle_text(stored->path);

            TT_PUSH(m->file, m->n_files, m->cap_files) = (struct tt_dcp_file){.name = name};
            if (!name || !name[0] || name[0] == '.' || strchr(name, '/'))
                return fail(p, "a piece is in a file that does not belong to the folder:", stored->path);
        }
        stored->file = m->n_files - 1;
        if (stored->begin + stored->bytes > m->file[stored->file].bytes)
            m->file[stored->file].bytes = stored->begin + stored->bytes;
    }
    return 0;
}

static int read_storage(struct parse *p, const struct tt_pickle_value *data)
{
    int rc = 0;

    if (!is_dict(data))
        return fail(p, "it has no storage_data", NULL);
    p->stored = tt_calloc((size_t)data->n / 2 + 1, sizeof *p->stored);
    for (int i = 0; i < data->n; i += 2, p->n_stored++)
        TT_TRY(read_stored(p, data->item[i], data->item[i + 1], &p->stored[p->n_stored]));
    TT_TRY(add_files(p));
    qsort(p->stored, (size_t)p->n_stored, sizeof *p->stored, compare_stored);
out:
    return rc;
}

static char *unread_text(const char *what, const struct tt_pickle_value *value, const char *help)
{
    bool named = value && (value->kind == TT_PICKLE_TEXT || value->kind == TT_PICKLE_CLASS) && value->size < 64;

    return tt_format("%s %.*s; %s", what, named ? (int)value->size : 1, named ? value->text : "?", help);
}

/* Each row of storage_data describes at most one piece, so a pickle cannot make more pieces than it has rows. */
static int add_piece(struct parse *p, struct tt_dcp_entry *entry, const struct tt_pickle_value *key,
                     const struct tt_box *box)
{
    struct stored wanted = {.key = key, .ndim = entry->is_tensor ? box->ndim : -1}, *found;

    memcpy(wanted.offset, box->offset, sizeof wanted.offset);
    found = p->n_stored ? bsearch(&wanted, p->stored, (size_t)p->n_stored, sizeof wanted, compare_stored) : NULL;
    if (!found)
        return fail(p, "storage_data lacks a piece of", key);
    if (found->taken)
        return fail(p, "it lists the same piece twice for", key);
    found->taken = true;
    if (!is_none(found->transform) && !entry->unread)
        entry->unread = unread_text("was saved with an extension", tt_pickle_item(found->transform, 0),
                                    "load it in PyTorch and save it without");
    TT_PUSH(entry->piece, entry->n, entry->cap) = (struct tt_dcp_piece){*box, found->file, found->begin, found->bytes};
    return 0;
}

static int add_pieces(struct parse *p, struct tt_dcp_entry *entry, const struct tt_pickle_value *key,
                      const struct tt_pickle_value *value)
{
    const struct tt_pickle_value *chunks = tt_pickle_member(value, "chunks"), *chunk;
    const struct tt_pickle_value *type =
        tt_pickle_item(tt_pickle_is(tt_pickle_member(value, "properties"), TT_PY_PROPERTIES)
                           ? tt_pickle_member(value, "properties")->state
                           : NULL,
                       0);
    int rc = 0;

    if (!type || type->kind != TT_PICKLE_CLASS || (type->class != TT_PY_STRANGE_TYPE && type->class != TT_PY_TYPE))
        return fail(p, "it does not give the type of tensor", key);
    entry->dtype = type->dtype;
    if (type->class == TT_PY_STRANGE_TYPE)
        entry->unread = unread_text("has the type", type, "save it as another");
    if (has_many_dims(tt_pickle_member(value, "size")))
        entry->unread = tt_strdup("has more than 8 dimensions; save it as rows");
    if (entry->unread)
        return 0;
    if (!tt_pickle_sizes(tt_pickle_member(value, "size"), entry->shape, TT_BOX_DIMS, &entry->ndim))
        return fail(p, "it does not give the size (of at most 8 dimensions) of tensor", key);
    if (!chunks || chunks->kind != TT_PICKLE_LIST)
        return fail(p, "it does not describe the pieces of tensor", key);
    for (int i = 0; (chunk = tt_pickle_item(chunks, i)); i++) {
        struct tt_box box = {.ndim = entry->ndim};
        int n_offsets = 0, n_sizes = 0;
        int64_t volume;

        /* Chunks without elements need no row, so many tensors could share one long list of such chunks, which would be
         * read again for each tensor. */
        if (p->chunks_left-- == 0)
            return fail(p, "it lists more pieces than its bytes can describe, at", key);
        if (!tt_pickle_is(chunk, TT_PY_CHUNK) ||
            !tt_pickle_sizes(tt_pickle_member(chunk, "offsets"), box.offset, TT_BOX_DIMS, &n_offsets) ||
            !tt_pickle_sizes(tt_pickle_member(chunk, "sizes"), box.shape, TT_BOX_DIMS, &n_sizes) ||
            n_offsets != box.ndim || n_sizes != box.ndim || !tt_box_checked_volume(box.shape, box.ndim, &volume))
            return fail(p, "a piece has no offset and size in tensor", key);
        for (int d = 0; d < box.ndim; d++)
            if (box.offset[d] > INT64_MAX - box.shape[d])
                return fail(p, "a piece lies outside of tensor", key);
        if (volume > 0)
            TT_TRY(add_piece(p, entry, key, &box));
    }
out:
    return rc;
}

/* planner_data: {"optimizer.state.x.exp_avg": ("optimizer", "state.x.exp_avg"), …} */
static void read_paths(struct parse *p, const struct tt_pickle_value *paths)
{
    if (!is_dict(paths))
        return;
    p->path = tt_calloc((size_t)paths->n / 2 + 1, sizeof *p->path);
    for (int i = 0; i < paths->n; i += 2)
        if (is_text(paths->item[i]))
            p->path[p->n_paths++] = (struct path){paths->item[i], paths->item[i + 1]};
    qsort(p->path, (size_t)p->n_paths, sizeof *p->path, compare_paths);
}

/* Where the last name of the key's path begins. Dots join the names of a key, but the last name of a model's tensor
 * contains dots too. */
static size_t leaf_of(const struct parse *p, const struct tt_pickle_value *key)
{
    const struct path wanted = {.key = key}, *found;
    const struct tt_pickle_value *last = NULL;

    found = p->n_paths ? bsearch(&wanted, p->path, (size_t)p->n_paths, sizeof wanted, compare_paths) : NULL;
    if (found && tt_pickle_item(found->path, 1))
        last = tt_pickle_item(found->path, found->path->n - 1);
    if (!is_text(last) || last->size >= key->size || key->text[key->size - last->size - 1] != '.' ||
        memcmp(key->text + key->size - last->size, last->text, last->size) != 0)
        return 0;
    return key->size - last->size;
}

static int read_entries(struct parse *p, const struct tt_pickle_value *entries)
{
    int rc = 0;

    if (!is_dict(entries))
        return fail(p, "it has no state_dict_metadata", NULL);
    for (int i = 0; i < entries->n; i += 2) {
        const struct tt_pickle_value *key = entries->item[i], *value = entries->item[i + 1];
        struct tt_dcp_entry *entry;

        if (!is_text(key))
            return fail(p, "a key is not a text of at most 4096 bytes", NULL);
        TT_PUSH(p->metadata.entry, p->metadata.n, p->metadata.cap) = (struct tt_dcp_entry){.key = tt_pickle_text(key)};
        entry = &p->metadata.entry[p->metadata.n - 1];
        if (!entry->key)
            return fail(p, "a key has a zero byte", NULL);
        entry->leaf = leaf_of(p, key);
        entry->is_tensor = tt_pickle_is(value, TT_PY_TENSOR_METADATA);
        if (entry->is_tensor)
            TT_TRY(add_pieces(p, entry, key, value));
        else if (tt_pickle_is(value, TT_PY_BYTES_METADATA))
            TT_TRY(add_piece(p, entry, key, &(struct tt_box){0}));
        else
            return fail(p, "it describes neither a tensor nor an object for", key);
    }
out:
    return rc;
}

int tt_dcp_metadata_parse(const char *where, const void *bytes, size_t size, struct tt_dcp_metadata *ret_metadata)
{
    struct parse p = {.where = where, .chunks_left = size};
    struct tt_pickle pickle = {0};
    int rc = 0;

    TT_TRY(tt_pickle_read(where, bytes, size, &pickle));
    if (!tt_pickle_is(pickle.root, TT_PY_METADATA))
        TT_TRY(tt_fail(TT_EDATA, "'%s' is not the metadata of a PyTorch checkpoint: its pickle holds something else",
                       where));
    TT_TRY(read_storage(&p, tt_pickle_member(pickle.root, "storage_data")));
    read_paths(&p, tt_pickle_member(pickle.root, "planner_data"));
    TT_TRY(read_entries(&p, tt_pickle_member(pickle.root, "state_dict_metadata")));
    p.metadata.by_titan =
        tt_pickle_text_is(tt_pickle_member(tt_pickle_member(pickle.root, "storage_meta"), "save_id"), "titan");
    *ret_metadata = p.metadata;
    p.metadata = (struct tt_dcp_metadata){0};
out:
    tt_dcp_metadata_release(&p.metadata);
    tt_free(p.stored);
    tt_free(p.path);
    tt_pickle_release(&pickle);
    return rc;
}

void tt_dcp_metadata_release(struct tt_dcp_metadata *metadata)
{
    for (int i = 0; i < metadata->n_files; i++)
        tt_free(metadata->file[i].name);
    for (int i = 0; i < metadata->n; i++) {
        tt_free(metadata->entry[i].key);
        tt_free(metadata->entry[i].piece);
        tt_free(metadata->entry[i].unread);
    }
    tt_free(metadata->file);
    tt_free(metadata->entry);
    *metadata = (struct tt_dcp_metadata){0};
}

/* --- writing --- */

static const char module[] = "torch.distributed.checkpoint.metadata";

/* Begins an object whose state is a dict. */
static void begin_object(struct tt_pickler *p, const char *of, const char *class)
{
    tt_pickler_class(p, of, class);
    tt_pickler_add(p, TT_PICKLER_EMPTY_TUPLE TT_PICKLER_OBJECT TT_PICKLER_DICT TT_PICKLER_MARK);
}

static void end_object(struct tt_pickler *p)
{
    tt_pickler_add(p, TT_PICKLER_SETITEMS TT_PICKLER_BUILD);
}

static void begin_dict(struct tt_pickler *p, const char *name)
{
    tt_pickler_text(p, name);
    tt_pickler_add(p, TT_PICKLER_DICT TT_PICKLER_MARK);
}

/* TensorProperties: (dtype, layout, requires_grad, memory format, pin_memory) */
static void add_properties(struct tt_pickler *p, enum tt_dtype dtype)
{
    static const int64_t contiguous = 0;

    tt_pickler_class(p, module, "TensorProperties");
    tt_pickler_add(p, TT_PICKLER_EMPTY_TUPLE TT_PICKLER_OBJECT TT_PICKLER_MARK);
    tt_pickler_class(p, "torch", tt_py_type_of(dtype)->name);
    tt_pickler_class(p, "torch.serialization", "_get_layout");
    tt_pickler_add(p, TT_PICKLER_MARK);
    tt_pickler_text(p, "torch.strided");
    tt_pickler_add(p, TT_PICKLER_TUPLE TT_PICKLER_CALL);
    tt_pickler_bool(p, false);
    tt_pickler_class(p, module, "_MEM_FORMAT_ENCODING");
    tt_pickler_tuple(p, &contiguous, 1);
    tt_pickler_add(p, TT_PICKLER_CALL);
    tt_pickler_bool(p, false);
    tt_pickler_add(p, TT_PICKLER_TUPLE TT_PICKLER_BUILD);
}

/* Pushes a key and a torch.Size. */
static void put_sizes(struct tt_pickler *pickler, const char *key, const int64_t *size, int n)
{
    tt_pickler_text(pickler, key);
    tt_pickler_class(pickler, "torch", "Size");
    tt_pickler_add(pickler, TT_PICKLER_MARK);
    tt_pickler_tuple(pickler, size, n);
    tt_pickler_add(pickler, TT_PICKLER_TUPLE TT_PICKLER_CALL);
}

static void add_tensor(struct tt_pickler *p, const struct tt_dcp_entry *entry)
{
    begin_object(p, module, "TensorStorageMetadata");
    tt_pickler_text(p, "properties");
    add_properties(p, entry->dtype);
    put_sizes(p, "size", entry->shape, entry->ndim);
    tt_pickler_text(p, "chunks");
    tt_pickler_add(p, TT_PICKLER_LIST TT_PICKLER_MARK);
    for (int i = 0; i < entry->n; i++) {
        begin_object(p, module, "ChunkStorageMetadata");
        put_sizes(p, "offsets", entry->piece[i].box.offset, entry->ndim);
        put_sizes(p, "sizes", entry->piece[i].box.shape, entry->ndim);
        end_object(p);
    }
    tt_pickler_add(p, TT_PICKLER_APPENDS);
    end_object(p);
}

/* ("optimizer", "state.norm.weight.exp_avg"), or ("norm.weight",) */
static void add_path(struct tt_pickler *p, const struct tt_dcp_entry *entry)
{
    tt_pickler_text(p, entry->key);
    tt_pickler_add(p, TT_PICKLER_MARK);
    if (entry->leaf) {
        char *root = tt_strndup(entry->key, entry->leaf - 1);

        tt_pickler_text(p, root);
        tt_free(root);
    }
    tt_pickler_text(p, entry->key + entry->leaf);
    tt_pickler_add(p, TT_PICKLER_TUPLE);
}

/* MetadataIndex: _StorageInfo */
static void add_place(struct tt_pickler *p, const struct tt_dcp_metadata *m, const struct tt_dcp_entry *entry, int i)
{
    begin_object(p, module, "MetadataIndex");
    tt_pickler_text(p, "fqn");
    tt_pickler_text(p, entry->key);
    tt_pickler_text(p, "index");
    if (entry->is_tensor) {
        tt_pickler_int(p, i);
        put_sizes(p, "offset", entry->piece[i].box.offset, entry->ndim);
    } else {
        tt_pickler_add(p, TT_PICKLER_NONE);
    }
    end_object(p);
    begin_object(p, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
    tt_pickler_text(p, "relative_path");
    tt_pickler_text(p, m->file[entry->piece[i].file].name);
    tt_pickler_text(p, "offset");
    tt_pickler_int(p, entry->piece[i].begin);
    tt_pickler_text(p, "length");
    tt_pickler_int(p, entry->piece[i].bytes);
    end_object(p);
}

void tt_dcp_metadata_text(const struct tt_dcp_metadata *metadata, struct tt_text *text)
{
    struct tt_pickler p = {0};

    tt_pickler_begin(&p);
    begin_object(&p, module, "Metadata");
    begin_dict(&p, "state_dict_metadata");
    for (int i = 0; i < metadata->n; i++) {
        tt_pickler_text(&p, metadata->entry[i].key);
        if (metadata->entry[i].is_tensor) {
            add_tensor(&p, &metadata->entry[i]);
        } else {
            tt_pickler_class(&p, module, "BytesStorageMetadata");
            tt_pickler_add(&p, TT_PICKLER_EMPTY_TUPLE TT_PICKLER_OBJECT);
        }
    }
    tt_pickler_add(&p, TT_PICKLER_SETITEMS);
    begin_dict(&p, "planner_data");
    for (int i = 0; i < metadata->n; i++)
        add_path(&p, &metadata->entry[i]);
    tt_pickler_add(&p, TT_PICKLER_SETITEMS);
    begin_dict(&p, "storage_data");
    for (int i = 0; i < metadata->n; i++)
        for (int k = 0; k < metadata->entry[i].n; k++)
            add_place(&p, metadata, &metadata->entry[i], k);
    tt_pickler_add(&p, TT_PICKLER_SETITEMS);
    tt_pickler_text(&p, "storage_meta");
    begin_object(&p, module, "StorageMeta");
    tt_pickler_text(&p, "checkpoint_id");
    tt_pickler_add(&p, TT_PICKLER_NONE);
    tt_pickler_text(&p, "save_id"); /* PyTorch writes a random word */
    tt_pickler_text(&p, "titan");
    tt_pickler_text(&p, "load_id");
    tt_pickler_add(&p, TT_PICKLER_NONE);
    tt_pickler_text(&p, "modules");
    tt_pickler_add(&p, TT_PICKLER_LIST);
    end_object(&p);
    tt_pickler_text(&p, "version");
    tt_pickler_text(&p, "1.0.0");
    end_object(&p);
    tt_pickler_add(&p, TT_PICKLER_STOP);
    tt_text_add_bytes(text, p.text.text, p.text.size);
    tt_pickler_release(&p);
}
