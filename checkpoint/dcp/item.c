/* SPDX-License-Identifier: MIT
 *
 * What torch.save writes: data.pkl, which says what the object is, and data/K, the bytes of storage number K. The
 * pickle of a tensor calls torch._utils._rebuild_tensor_v2 with a storage, which is an entry of the archive.
 */
#include "checkpoint/dcp/item.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "checkpoint/format/cast.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/math/box.h"
#include "core/os/file.h"

/* Zip archives as torch.save writes them: the end of the archive leads to its directory, the directory to each entry's
 * header, and the header to its data. Sizes and checksum of an entry that is written follow its data, so that data can
 * be streamed; the directory repeats them. Format: PKWARE's APPNOTE.TXT, 4.3 and 4.5. */

enum {
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    ENTRY_BYTES = 46,
    HEADER_BYTES = 30,
    WINDOW_BYTES = 2048,
    ENTRIES_MOST = 64,
    DIRECTORY_MOST = 1 << 20,
};

/* The most recently read bytes of an archive. A small archive takes two reads, one for each end. */
struct window {
    const struct tt_stretch *archive;
    int64_t at, n;
    uint8_t bytes[WINDOW_BYTES];
};

static int fail_archive(const struct tt_stretch *a, const char *what)
{
    return tt_fail(TT_EDATA, "'%s' is damaged: the archive at byte %" PRId64 " %s", a->path, a->begin, what);
}

/* Reads bytes of an archive; TT_EDATA when the archive is shorter. */
static int read_stretch(const struct tt_stretch *a, int64_t at, void *bytes, size_t size)
{
    if (at < 0 || at > a->bytes || size > (uint64_t)(a->bytes - at))
        return fail_archive(a, "is truncated");
    if (!a->memory)
        return tt_file_pread(a->fd, a->path, bytes, size, a->begin + at);
    memcpy(bytes, (const char *)a->memory + at, size);
    return 0;
}

/* Points to n bytes at `at`, which stay valid until the next call. from: where to begin reading if they are not in the
 * window. */
static int look(struct window *w, int64_t at, int64_t n, int64_t from, const uint8_t **ret_bytes)
{
    int rc = 0;

    if (at < 0 || at > w->archive->bytes || n > w->archive->bytes - at)
        return fail_archive(w->archive, "is truncated");
    if (at < w->at || at + n > w->at + w->n) {
        w->at = from < 0 ? 0 : from;
        w->n = w->archive->bytes - w->at < WINDOW_BYTES ? w->archive->bytes - w->at : WINDOW_BYTES;
        TT_TRY(read_stretch(w->archive, w->at, w->bytes, (size_t)w->n));
    }
    *ret_bytes = w->bytes + (at - w->at);
out:
    return rc;
}

/* Finds the directory by the last bytes of the archive; torch.save writes no comment after them. */
static int find_directory(struct window *w, int64_t *ret_at, int64_t *ret_bytes, int64_t *ret_n)
{
    int64_t total = w->archive->bytes, end64;
    const uint8_t *p = NULL;
    int rc = 0;

    TT_TRY(look(w, total - END_BYTES, END_BYTES, total - WINDOW_BYTES, &p));
    if (tt_text_little(p, 4) != 0x06054b50)
        return fail_archive(w->archive, "was not written by torch.save, or is truncated");
    *ret_n = (int64_t)tt_text_little(p + 10, 2);
    *ret_bytes = (int64_t)tt_text_little(p + 12, 4);
    *ret_at = (int64_t)tt_text_little(p + 16, 4);
    if (*ret_n != 0xffff && *ret_bytes != 0xffffffff && *ret_at != 0xffffffff)
        goto out;
    TT_TRY(look(w, total - END_BYTES - LOCATOR_BYTES, LOCATOR_BYTES, total - WINDOW_BYTES, &p));
    if (tt_text_little(p, 4) != 0x07064b50)
        return fail_archive(w->archive, "lacks the locator of its directory");
    end64 = (int64_t)tt_text_little(p + 8, 8);
    TT_TRY(look(w, end64, END64_BYTES, end64, &p));
    if (tt_text_little(p, 4) != 0x06064b50)
        return fail_archive(w->archive, "lacks the end of its directory");
    *ret_n = (int64_t)tt_text_little(p + 32, 8);
    *ret_bytes = (int64_t)tt_text_little(p + 40, 8);
    *ret_at = (int64_t)tt_text_little(p + 48, 8);
out:
    return rc;
}

/* Reads the 64-bit numbers of an entry: one for each field whose bits are all 1, in the order of the fields. */
static bool read_extra(const uint8_t *extra, int64_t size, int64_t *stored, int64_t *bytes, int64_t *header)
{
    int64_t *const field[] = {bytes, stored, header};

    for (int64_t at = 0; at + 4 <= size;) {
        int64_t n = (int64_t)tt_text_little(extra + at + 2, 2), used = 0;

        if (n > size - at - 4)
            return false;
        for (int i = 0; tt_text_little(extra + at, 2) == 1 && i < 3; i++) {
            if (*field[i] != 0xffffffff)
                continue;
            if (used + 8 > n)
                return false;
            *field[i] = (int64_t)tt_text_little(extra + at + 4 + used, 8);
            used += 8;
        }
        at += 4 + n;
    }
    return true;
}

static int read_entry(struct window *w, struct tt_zip *zip, const uint8_t *entry, int64_t left, int64_t *ret_used)
{
    int64_t names, extras, stored, bytes, header, data;
    const uint8_t *p = NULL;
    int rc = 0;

    if (left < ENTRY_BYTES || tt_text_little(entry, 4) != 0x02014b50)
        return fail_archive(w->archive, "has a damaged directory");
    names = (int64_t)tt_text_little(entry + 28, 2);
    extras = (int64_t)tt_text_little(entry + 30, 2);
    *ret_used = ENTRY_BYTES + names + extras + (int64_t)tt_text_little(entry + 32, 2);
    if (*ret_used > left || memchr(entry + ENTRY_BYTES, 0, (size_t)names))
        return fail_archive(w->archive, "has a damaged directory");
    if (tt_text_little(entry + 8, 2) & 1 || tt_text_little(entry + 10, 2) != 0)
        return fail_archive(w->archive,
                            "has an entry that is compressed or encrypted; torch.save stores entries as they are");
    stored = (int64_t)tt_text_little(entry + 20, 4);
    bytes = (int64_t)tt_text_little(entry + 24, 4);
    header = (int64_t)tt_text_little(entry + 42, 4);
    if (!read_extra(entry + ENTRY_BYTES + names, extras, &stored, &bytes, &header) || stored != bytes)
        return fail_archive(w->archive, "has a damaged directory");
    TT_TRY(look(w, header, HEADER_BYTES, header, &p));
    if (tt_text_little(p, 4) != 0x04034b50)
        return fail_archive(w->archive, "has an entry without a header");
    data = header + HEADER_BYTES + (int64_t)tt_text_little(p + 26, 2) + (int64_t)tt_text_little(p + 28, 2);
    if (bytes < 0 || data > w->archive->bytes || bytes > w->archive->bytes - data)
        return fail_archive(w->archive, "has an entry that does not end in it: it is truncated");
    TT_PUSH(zip->entry, zip->n, zip->cap) =
        (struct tt_zip_entry){tt_strndup((const char *)entry + ENTRY_BYTES, (size_t)names), data, bytes,
                              (uint32_t)tt_text_little(entry + 16, 4)};
out:
    return rc;
}

static void release_zip(struct tt_zip *zip)
{
    for (int i = 0; i < zip->n; i++)
        tt_free(zip->entry[i].name);
    tt_free(zip->entry);
    *zip = (struct tt_zip){0};
}

/* Reads the directory of an archive and checks that every entry lies in the archive. TT_EDATA says what is wrong:
 * truncated, compressed, encrypted, too many entries. */
static int open_zip(const struct tt_stretch *archive, struct tt_zip *ret_zip)
{
    struct window w = {.archive = archive};
    struct tt_zip zip = {0};
    int64_t at = 0, bytes = 0, n = 0, used = 0;
    uint8_t *directory = NULL;
    int rc = 0;

    TT_TRY(find_directory(&w, &at, &bytes, &n));
    if (n < 0 || n > ENTRIES_MOST || bytes < 0 || bytes > DIRECTORY_MOST)
        TT_TRY(fail_archive(archive, "has a larger directory than torch.save writes"));
    directory = tt_calloc((size_t)bytes + 1, 1);
    TT_TRY(read_stretch(archive, at, directory, (size_t)bytes));
    for (int64_t i = 0, done = 0; i < n; i++, done += used)
        TT_TRY(read_entry(&w, &zip, directory + done, bytes - done, &used));
    *ret_zip = zip;
    zip = (struct tt_zip){0};
out:
    release_zip(&zip);
    tt_free(directory);
    return rc;
}

/* --- writing --- */

enum { ALIGNMENT = 64, EXTRA_BYTES = 4, VERSION = 0, VERSION_64 = 45 };

/* Flags: sizes follow the data, and names are UTF-8. */
enum { FLAGS = 0x0808 };

/* Adds the header of an entry, padded so that its data begins at a multiple of 64. */
static void begin_entry(struct tt_archive *a, const char *name, int64_t bytes)
{
    static const char padding[ALIGNMENT] = {0};
    size_t used = a->head.size + HEADER_BYTES + strlen(name) + EXTRA_BYTES;
    size_t fill = (ALIGNMENT - used % ALIGNMENT) % ALIGNMENT;

    a->entry[a->n++] = (struct tt_archive_entry){.name = name, .at = (int64_t)a->head.size, .bytes = bytes};
    tt_text_add_little(&a->head, 0x04034b50, 4);
    tt_text_add_little(&a->head, VERSION, 2);
    tt_text_add_little(&a->head, FLAGS, 2);
    tt_text_add_little(&a->head, 0, 2); /* stored, not compressed */
    tt_text_add_little(&a->head, 0, 4); /* no date and time */
    tt_text_add_little(&a->head, 0, 8); /* checksum and sizes follow the data */
    tt_text_add_little(&a->head, 0, 4);
    tt_text_add_little(&a->head, strlen(name), 2);
    tt_text_add_little(&a->head, EXTRA_BYTES + fill, 2);
    tt_text_add(&a->head, "%s", name);
    tt_text_add_little(&a->head, 0x4246, 2); /* the tag of the padding, as in PyTorch */
    tt_text_add_little(&a->head, fill, 2);
    tt_text_add_bytes(&a->head, padding, fill);
}

static void end_entry(struct tt_archive *a, struct tt_text *text, uint32_t crc)
{
    int64_t bytes = a->entry[a->n - 1].bytes;

    a->entry[a->n - 1].crc = crc;
    tt_text_add_little(text, 0x08074b50, 4);
    tt_text_add_little(text, crc, 4);
    tt_text_add_little(text, (uint64_t)bytes, 4);
    tt_text_add_little(text, (uint64_t)bytes, 4);
}

static void add_entry(struct tt_archive *a, const char *name, const void *bytes, size_t size)
{
    begin_entry(a, name, (int64_t)size);
    tt_text_add_bytes(&a->head, bytes, size);
    end_entry(a, &a->head, tt_crc32(0, bytes, size));
}

void tt_archive_begin(const struct tt_text *pickle, int64_t data, struct tt_archive *ret_archive)
{
    ret_archive->data = data;
    add_entry(ret_archive, "archive/data.pkl", pickle->text, pickle->size);
    add_entry(ret_archive, "archive/byteorder", "little", 6);
    add_entry(ret_archive, "archive/version", "3\n", 2);
    if (data)
        begin_entry(ret_archive, "archive/data/0", data);
}

static void add_directory(struct tt_archive *a)
{
    for (int i = 0; i < a->n; i++) {
        tt_text_add_little(&a->tail, 0x02014b50, 4);
        tt_text_add_little(&a->tail, VERSION, 2);
        tt_text_add_little(&a->tail, VERSION, 2);
        tt_text_add_little(&a->tail, FLAGS, 2);
        tt_text_add_little(&a->tail, 0, 2); /* stored, not compressed */
        tt_text_add_little(&a->tail, 0, 4); /* no date and time */
        tt_text_add_little(&a->tail, a->entry[i].crc, 4);
        tt_text_add_little(&a->tail, (uint64_t)a->entry[i].bytes, 4);
        tt_text_add_little(&a->tail, (uint64_t)a->entry[i].bytes, 4);
        tt_text_add_little(&a->tail, strlen(a->entry[i].name), 2);
        tt_text_add_little(&a->tail, 0, 8); /* no extra, no comment, first disk, no attributes */
        tt_text_add_little(&a->tail, 0, 4);
        tt_text_add_little(&a->tail, (uint64_t)a->entry[i].at, 4);
        tt_text_add(&a->tail, "%s", a->entry[i].name);
    }
}

void tt_archive_end(struct tt_archive *archive, uint32_t crc)
{
    struct tt_text *tail = &archive->tail;
    uint64_t at, bytes, n = (uint64_t)archive->n;

    if (archive->data)
        end_entry(archive, tail, crc);
    at = archive->head.size + (uint64_t)archive->data + tail->size;
    bytes = tail->size;
    add_directory(archive);
    bytes = tail->size - bytes;
    tt_text_add_little(tail, 0x06064b50, 4); /* the end of the directory with 64 bits, as PyTorch always writes it */
    tt_text_add_little(tail, 44, 8);
    tt_text_add_little(tail, VERSION_64, 2);
    tt_text_add_little(tail, VERSION_64, 2);
    tt_text_add_little(tail, 0, 8); /* disk numbers */
    tt_text_add_little(tail, n, 8);
    tt_text_add_little(tail, n, 8);
    tt_text_add_little(tail, bytes, 8);
    tt_text_add_little(tail, at, 8);
    tt_text_add_little(tail, 0x07064b50, 4); /* the locator of that end */
    tt_text_add_little(tail, 0, 4);
    tt_text_add_little(tail, at + bytes, 8);
    tt_text_add_little(tail, 1, 4);
    tt_text_add_little(tail, 0x06054b50, 4); /* the end of the directory */
    tt_text_add_little(tail, 0, 4);
    tt_text_add_little(tail, n, 2);
    tt_text_add_little(tail, n, 2);
    tt_text_add_little(tail, bytes, 4);
    tt_text_add_little(tail, at, 4);
    tt_text_add_little(tail, 0, 2);
}

void tt_archive_release(struct tt_archive *archive)
{
    tt_text_release(&archive->head);
    tt_text_release(&archive->tail);
}

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
    release_zip(&item->zip);
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
        rc = read_stretch(item->archive, order->begin, text, sizeof text);
    *ret_little = !order || memcmp(text, "little", sizeof text) == 0; /* PyTorch before 2.1 has no such entry */
    return rc;
}

static int item_open(struct item *item)
{
    const struct tt_zip_entry *entry;
    int rc = 0;

    TT_TRY(open_zip(item->archive, &item->zip));
    if (!(entry = find_member(&item->zip, "data.pkl")))
        return fail(item, "was not written by torch.save: it has no data.pkl");
    if (entry->bytes > PICKLE_MOST)
        return fail(item, "has a data.pkl of more than 1 MiB");
    item->bytes = tt_calloc((size_t)entry->bytes + 1, 1);
    TT_TRY(read_stretch(item->archive, entry->begin, item->bytes, (size_t)entry->bytes));
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
    TT_TRY(read_stretch(archive, tensor.begin, &bytes, size));
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
