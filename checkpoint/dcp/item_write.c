/* SPDX-License-Identifier: MIT
 *
 * The pickle of a tensor calls torch._utils._rebuild_tensor_v2 with a storage, which is an entry of the archive.
 */
#include "checkpoint/dcp/item_write.h"

#include <stddef.h>

#include "checkpoint/format/cast.h"
#include "core/math/box.h"

static const struct type {
    enum tt_dtype dtype;
    const char *name, *storage; /* NULL: PyTorch stores it as bytes */
} types[] = {
    {TT_F32, "float32", "FloatStorage"},
    {TT_BF16, "bfloat16", "BFloat16Storage"},
    {TT_F16, "float16", "HalfStorage"},
    {TT_F64, "float64", "DoubleStorage"},
    {TT_I64, "int64", "LongStorage"},
    {TT_I32, "int32", "IntStorage"},
    {TT_I16, "int16", "ShortStorage"},
    {TT_I8, "int8", "CharStorage"},
    {TT_U8, "uint8", "ByteStorage"},
    {TT_BOOL, "bool", "BoolStorage"},
    {TT_C64, "complex64", "ComplexFloatStorage"},
    {TT_C128, "complex128", "ComplexDoubleStorage"},
    {TT_U16, "uint16", NULL},
    {TT_U32, "uint32", NULL},
    {TT_U64, "uint64", NULL},
    {TT_F8_E4M3, "float8_e4m3fn", NULL},
    {TT_F8_E5M2, "float8_e5m2", NULL},
    {TT_F8_E8M0, "float8_e8m0fnu", NULL},
    {TT_F8_E4M3FNUZ, "float8_e4m3fnuz", NULL},
    {TT_F8_E5M2FNUZ, "float8_e5m2fnuz", NULL},
};

static const struct type *find_type(enum tt_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].dtype == dtype)
            return &types[i];
    return NULL;
}

const char *tt_dcp_dtype_name(enum tt_dtype dtype)
{
    const struct type *type = find_type(dtype);

    return type ? type->name : NULL;
}

/* ('storage', torch.FloatStorage, '0', 'cpu', number of elements) */
static void add_storage(struct tt_pickler *p, const struct type *type, int64_t volume)
{
    tt_pickler_add(p, TT_PICKLER_MARK);
    tt_pickler_text(p, "storage");
    tt_pickler_class(p, type->storage ? "torch" : "torch.storage", type->storage ? type->storage : "UntypedStorage");
    tt_pickler_text(p, "0");
    tt_pickler_text(p, "cpu");
    tt_pickler_int(p, volume * (type->storage ? 1 : (int64_t)tt_dtype_size(type->dtype)));
    tt_pickler_add(p, TT_PICKLER_TUPLE);
    tt_pickler_add(p, TT_PICKLER_PERSISTENT);
}

/* _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks); v3 also has the type */
static void add_tensor(struct tt_pickler *p, const struct type *type, int ndim, const int64_t *shape, int64_t volume)
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
    tt_pickler_add(p, TT_PICKLER_EMPTY_TUPLE);
    tt_pickler_add(p, TT_PICKLER_CALL);
    if (!type->storage)
        tt_pickler_class(p, "torch", type->name);
    tt_pickler_add(p, TT_PICKLER_TUPLE);
    tt_pickler_add(p, TT_PICKLER_CALL);
}

int tt_dcp_item_tensor(const char *name, enum tt_dtype dtype, int ndim, const int64_t *shape,
                       struct tt_archive *ret_archive)
{
    struct tt_box whole = tt_box_whole(ndim, shape);
    const struct type *type = find_type(dtype);
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

void tt_dcp_item_object(struct tt_pickler *pickler, struct tt_archive *ret_archive)
{
    tt_pickler_add(pickler, TT_PICKLER_STOP);
    tt_archive_begin(&pickler->text, 0, ret_archive);
    tt_pickler_release(pickler);
}
