/* SPDX-License-Identifier: MIT
 *
 * What torch.save writes: data.pkl, which says what the object is, and data/K, the bytes of storage number K. The
 * pickle of a tensor calls torch._utils._rebuild_tensor_v2 with a storage, which is an entry of the archive.
 */
#include "checkpoint/dcp/item.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "checkpoint/format/cast.h"
#include "core/base/mem.h"
#include "core/math/box.h"

enum { PICKLE_MOST = 1 << 20, KEY_MOST = 32, ORDER_BYTES = 6 };

struct item {
    const struct tt_stretch *archive;
    const char *name;
    struct tt_zip zip;
    char *bytes; /* of the pickle */
    struct tt_pickle pickle;
};

static int fail(const struct item *item, const char *what)
{
    return tt_fail(TT_EDATA, "'%s': '%s' (at byte %" PRId64 ") %s", item->archive->path, item->name,
                   item->archive->begin, what);
}

static void item_release(struct item *item)
{
    tt_pickle_release(&item->pickle);
    tt_free(item->bytes);
    tt_zip_release(&item->zip);
}

/* The entry called `name` in the only folder of the archive ("archive/data.pkl"), or NULL. */
static const struct tt_zip_entry *find_member(const struct tt_zip *zip, const char *name)
{
    for (int i = 0; i < zip->n; i++) {
        const char *slash = strchr(zip->entry[i].name, '/');

        if (slash && strcmp(slash + 1, name) == 0)
            return &zip->entry[i];
    }
    return NULL;
}

/* Whether the bytes of tensors are little-endian: the byte order of the machine that wrote them, which the archive
 * records. */
static int find_byte_order(const struct item *item, bool *ret_little)
{
    const struct tt_zip_entry *order = find_member(&item->zip, "byteorder");
    char text[ORDER_BYTES] = {0};
    int rc = 0;

    if (order && order->bytes == ORDER_BYTES)
        rc = tt_stretch_read(item->archive, order->begin, text, sizeof text);
    *ret_little = !order || memcmp(text, "little", sizeof text) == 0; /* PyTorch before 2.1 has no such entry */
    return rc;
}

static int item_open(struct item *item)
{
    const struct tt_zip_entry *entry;
    int rc = 0;

    TT_TRY(tt_zip_open(item->archive, &item->zip));
    if (!(entry = find_member(&item->zip, "data.pkl")))
        return fail(item, "was not written by torch.save: it has no data.pkl");
    if (entry->bytes > PICKLE_MOST)
        return fail(item, "has a data.pkl of more than 1 MiB");
    item->bytes = tt_calloc((size_t)entry->bytes + 1, 1);
    TT_TRY(tt_stretch_read(item->archive, entry->begin, item->bytes, (size_t)entry->bytes));
    TT_TRY(tt_pickle_read(item->archive->path, item->bytes, (size_t)entry->bytes, &item->pickle));
out:
    return rc;
}

/*
 * The order in which dimensions lie in memory, from their strides: 0 if rows follow each other, else the number of the
 * outermost dimension in the lowest four bits, the next one in the next four, and so on. False if there are gaps
 * between elements, or if elements overlap. The strides of dimensions of size 0 or 1 do not matter. volume: the product
 * of the sizes.
 */
static bool find_order(const int64_t *shape, const int64_t *stride, int ndim, int64_t volume, uint32_t *ret_order)
{
    int order[TT_BOX_DIMS];
    int64_t step = 1;
    bool rows = true;

    *ret_order = 0;
    if (volume == 0)
        return true;
    for (int d = 0; d < ndim; d++) {
        int k = d;

        for (; k > 0 && shape[d] != 1 && shape[order[k - 1]] != 1 && stride[order[k - 1]] < stride[d]; k--)
            order[k] = order[k - 1];
        order[k] = d;
    }
    for (int k = ndim - 1; k >= 0; k--) {
        if (shape[order[k]] != 1 && stride[order[k]] != step)
            return false;
        step *= shape[order[k]];
        rows = rows && order[k] == k;
    }
    for (int k = 0; k < ndim && !rows; k++)
        *ret_order |= (uint32_t)order[k] << (4 * k);
    return true;
}

/* ('storage', torch.FloatStorage, '0', 'cpu', number of elements); type: the class, which tells the dtype */
static int find_bytes(const struct item *item, const struct tt_pickle_value *storage,
                      const struct tt_pickle_value *type, int64_t offset, int64_t volume, struct tt_dcp_tensor *tensor)
{
    const struct tt_pickle_value *id = storage && storage->kind == TT_PICKLE_PERSISTENT ? storage->args : NULL;
    char *key = tt_pickle_text(tt_pickle_item(id, 2)), *name = NULL;
    const struct tt_zip_entry *entry;
    int64_t size, most;
    int rc = 0;

    type = type ? type : tt_pickle_item(id, 1);
    if (!tt_pickle_text_is(tt_pickle_item(id, 0), "storage") || !type || type->kind != TT_PICKLE_CLASS ||
        type->class != TT_PY_TYPE || !key || strlen(key) > KEY_MOST)
        TT_TRY(fail(item, "is not a tensor of a known type"));
    tensor->dtype = type->dtype;
    name = tt_format("data/%s", key);
    if (!(entry = find_member(&item->zip, name)))
        TT_TRY(fail(item, "has no bytes: they are missing from its archive"));
    size = (int64_t)tt_dtype_size(tensor->dtype);
    most = entry->bytes / size; /* the number of elements */
    if (offset > most || volume > most - offset)
        TT_TRY(fail(item, "is larger than its bytes"));
    tensor->begin = entry->begin + offset * size;
    tensor->end = tensor->begin + volume * size;
    tensor->has_crc = entry->crc != 0 && tensor->end - tensor->begin == entry->bytes;
    tensor->crc = entry->crc;
out:
    tt_free(key);
    tt_free(name);
    return rc;
}

/* Whether the elements of a tensor are the conjugates or negatives of the stored ones, as its last argument says:
 * {"conj": True}. */
static bool is_changed(const struct tt_pickle_value *flags)
{
    const struct tt_pickle_value *conj = tt_pickle_member(flags, "conj"), *neg = tt_pickle_member(flags, "neg");

    return (conj && conj->number) || (neg && neg->number);
}

/*
 * torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, flags]), perhaps in a
 * parameter; _rebuild_tensor_v3 takes the type before the flags.
 */
static int read_tensor(const struct item *item, const struct tt_pickle_value *value, struct tt_dcp_tensor *ret_tensor)
{
    int64_t stride[TT_BOX_DIMS] = {0}, volume;
    const struct tt_pickle_value *offset;
    bool typed, little = true, ordered;
    int n_strides = 0, rc = 0;

    if (tt_pickle_is(value, TT_PY_REBUILD_PARAMETER))
        value = tt_pickle_item(value->args, 0);
    typed = tt_pickle_is(value, TT_PY_REBUILD_TYPED);
    if (tt_pickle_is(value, TT_PY_REBUILD_STRANGE)) {
        ret_tensor->unread = "is quantized or sparse; save its values as a plain dense tensor";
        return 0;
    }
    if (!typed && !tt_pickle_is(value, TT_PY_REBUILD_TENSOR))
        return fail(item, "is not a tensor");
    offset = tt_pickle_item(value->args, 1);
    if (!offset || offset->kind != TT_PICKLE_INT || offset->number < 0 ||
        !tt_pickle_sizes(tt_pickle_item(value->args, 2), ret_tensor->shape, TT_BOX_DIMS, &ret_tensor->ndim) ||
        !tt_pickle_sizes(tt_pickle_item(value->args, 3), stride, TT_BOX_DIMS, &n_strides) ||
        n_strides != ret_tensor->ndim)
        return fail(item, "is a tensor without offset, sizes and strides");
    if (!tt_box_checked_volume(ret_tensor->shape, n_strides, &volume))
        return fail(item, "is larger than its bytes");
    TT_TRY(find_byte_order(item, &little));
    ordered = find_order(ret_tensor->shape, stride, n_strides, volume, &ret_tensor->order);
    ret_tensor->unread = !little ? "has its bytes in big-endian order; save it on a little-endian machine"
                         : is_changed(tt_pickle_item(value->args, typed ? 7 : 6))
                             ? "is stored as its conjugate or its negative; save it with .resolve_conj() or "
                               ".resolve_neg()"
                         : !ordered ? "has gaps between its elements, or elements that overlap; save it with "
                                      ".contiguous()"
                                    : NULL;
    if (!ret_tensor->unread)
        rc = find_bytes(item, tt_pickle_item(value->args, 0), typed ? tt_pickle_item(value->args, 6) : NULL,
                        offset->number, volume, ret_tensor);
out:
    return rc;
}

int tt_dcp_tensor_find(const struct tt_stretch *archive, const char *name, struct tt_dcp_tensor *ret_tensor)
{
    struct item item = {.archive = archive, .name = name};
    struct tt_dcp_tensor tensor = {0};
    int rc = 0;

    TT_TRY(item_open(&item));
    TT_TRY(read_tensor(&item, item.pickle.root, &tensor));
    *ret_tensor = tensor;
out:
    item_release(&item);
    return rc;
}

int tt_dcp_number_read(const struct tt_stretch *archive, const char *name, double *ret_number)
{
    struct item item = {.archive = archive, .name = name};
    const struct tt_pickle_value *root;
    struct tt_dcp_tensor tensor = {0};
    double bytes = 0.0; /* size of an element */
    size_t size;
    int rc = 0;

    TT_TRY(item_open(&item));
    root = item.pickle.root;
    if (root->kind == TT_PICKLE_INT || root->kind == TT_PICKLE_BOOL || root->kind == TT_PICKLE_REAL) {
        *ret_number = root->kind == TT_PICKLE_REAL ? root->real : (double)root->number;
        goto out;
    }
    TT_TRY(read_tensor(&item, root, &tensor));
    size = tt_dtype_size(tensor.dtype);
    if (tensor.unread || (size_t)(tensor.end - tensor.begin) != size || !tt_cast_has_value(tensor.dtype))
        TT_TRY(fail(&item, "is not a number"));
    TT_TRY(tt_stretch_read(archive, tensor.begin, &bytes, size));
    *ret_number = tt_cast_value(tensor.dtype, &bytes, 0);
out:
    item_release(&item);
    return rc;
}

/* --- writing --- */

/* ('storage', torch.FloatStorage, '0', 'cpu', number of elements) */
static void add_storage(struct tt_pickler *p, const struct tt_py_type *type, int64_t volume)
{
    tt_pickler_add(p, TT_PICKLER_MARK);
    tt_pickler_text(p, "storage");
    tt_pickler_class(p, type->storage ? "torch" : "torch.storage", type->storage ? type->storage : "UntypedStorage");
    tt_pickler_text(p, "0");
    tt_pickler_text(p, "cpu");
    tt_pickler_int(p, volume * (type->storage ? 1 : (int64_t)tt_dtype_size(type->dtype)));
    tt_pickler_add(p, TT_PICKLER_TUPLE TT_PICKLER_PERSISTENT);
}

/* _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks); v3 also takes the type */
static void add_tensor(struct tt_pickler *p, const struct tt_py_type *type, int ndim, const int64_t *shape,
                       int64_t volume)
{
    int64_t stride[TT_BOX_DIMS] = {0}, step = 1;

    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= shape[d];
    }
    tt_pickler_class(p, "torch._utils", type->storage ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    tt_pickler_add(p, TT_PICKLER_MARK);
    add_storage(p, type, volume);
    tt_pickler_int(p, 0);
    tt_pickler_tuple(p, shape, ndim);
    tt_pickler_tuple(p, stride, ndim);
    tt_pickler_bool(p, false);
    tt_pickler_class(p, "collections", "OrderedDict");
    tt_pickler_add(p, TT_PICKLER_EMPTY_TUPLE TT_PICKLER_CALL);
    if (!type->storage)
        tt_pickler_class(p, "torch", type->name);
    tt_pickler_add(p, TT_PICKLER_TUPLE TT_PICKLER_CALL);
}

int tt_dcp_item_tensor(const char *name, enum tt_dtype dtype, int ndim, const int64_t *shape,
                       struct tt_archive *ret_archive)
{
    struct tt_box whole = tt_box_whole(ndim, shape);
    const struct tt_py_type *type = tt_py_type_of(dtype);
    int64_t volume = tt_box_volume(&whole);
    struct tt_pickler p = {0};

    if (!type)
        return tt_cast_fail(name, "written for PyTorch", dtype);
    tt_pickler_begin(&p);
    add_tensor(&p, type, ndim, shape, volume);
    tt_pickler_add(&p, TT_PICKLER_STOP);
    tt_archive_begin(&p.text, volume * (int64_t)tt_dtype_size(dtype), ret_archive);
    tt_pickler_release(&p);
    return 0;
}
