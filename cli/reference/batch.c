/* SPDX-License-Identifier: MIT
 *
 * The samples of `titan reference`, from a file.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/cast.h"
#include "checkpoint/format/safetensors.h"
#include "cli/reference/reference.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/kernels/kernels.h"
#include "core/os/file.h"

/* Whole numbers of any type as int32; TT_EDATA if one does not fit. */
static int take(const char *path, const char *name, enum tt_dtype dtype, const void *bytes, int64_t n, int32_t **ret)
{
    int32_t *to = tt_calloc((size_t)n + 1, sizeof *to);

    *ret = to;
    if (!tt_text_is_one_of(tt_dtype_name(dtype), "I64|I32|U32|U16|I16|U8|I8"))
        return tt_fail(TT_EDATA, "'%s': %s is %s, wanted whole numbers of 64, 32, 16 or 8 bits", path, name,
                       tt_dtype_name(dtype));
    for (int64_t i = 0; i < n; i++) {
        double value = tt_cast_value(dtype, bytes, i);

        if (value < (double)INT32_MIN || value > (double)INT32_MAX)
            return tt_fail(TT_EDATA, "'%s': element %" PRId64 " of %s is %.0f, wanted a token", path, i, name, value);
        to[i] = (int32_t)value;
    }
    return 0;
}

/* --- safetensors --- */

static int read_tensor(const struct tt_safetensors *file, const char *name, bool must, struct tt_reference_batch *b,
                       int32_t **ret)
{
    const struct tt_st_tensor *t = tt_safetensors_find(file, name);
    int64_t rows, width;
    char *bytes;
    int rc = 0;

    if (!t && must)
        return tt_fail(TT_EDATA, "'%s' has no tensor %s\nhelp: save the batch as {\"input_ids\": ..., \"labels\": ...}",
                       file->path, name);
    if (!t)
        return 0;
    rows = t->box.ndim == 2 ? t->box.shape[0] : 1;
    width = t->box.ndim ? t->box.shape[t->box.ndim - 1] : 0;
    if (t->box.ndim < 1 || t->box.ndim > 2 || (b->n && (rows != b->n || width != b->seq_len)))
        return tt_fail(TT_EDATA, "'%s': %s has another shape than (batch, seq)%s", file->path, name,
                       b->n ? " of input_ids" : "");
    b->n = rows;
    b->seq_len = width;
    bytes = tt_calloc((size_t)(t->end - t->begin) + 1, 1);
    rc = tt_file_pread(file->fd, file->path, bytes, (size_t)(t->end - t->begin), file->data_start + t->begin);
    if (rc == 0)
        rc = take(file->path, name, t->dtype, bytes, rows * width, ret);
    tt_free(bytes);
    return rc;
}

static int read_safetensors(const char *path, struct tt_reference_batch *b)
{
    struct tt_safetensors file = {.fd = -1};
    int rc = 0;

    TT_TRY(tt_safetensors_open(path, &file));
    TT_TRY(read_tensor(&file, "input_ids", true, b, &b->tokens));
    TT_TRY(read_tensor(&file, "labels", false, b, &b->labels));
    TT_TRY(read_tensor(&file, "positions", false, b, &b->positions));
out:
    tt_safetensors_release(&file);
    return rc;
}

/* --- NumPy --- */

static const struct {
    const char *descr;
    enum tt_dtype dtype;
} numpy_types[] = {{"<i8", TT_I64}, {"<i4", TT_I32}, {"<u4", TT_U32}, {"<u2", TT_U16}, {"<i2", TT_I16}, {"|u1", TT_U8}};

/* The number of dimensions of a shape such as "2, 16)" or "16,)"; 0 unless it is 1 or 2. */
static int read_shape(const char *text, long long *rows, long long *width)
{
    char *end;

    *rows = strtoll(text, &end, 10);
    if (end == text || *end != ',')
        return 0;
    if (end[1] == ')')
        return 1;
    text = end + 1;
    *width = strtoll(text, &end, 10);
    return end != text && *end == ')' ? 2 : 0;
}

/* The header is the text of a Python dictionary: {'descr': '<i8', 'fortran_order': False, 'shape': (2, 16), }. */
static int read_npy(const char *path, struct tt_reference_batch *b)
{
    enum { START = 10 }; /* magic, version, and the 16 bits of the header's size in version 1 */
    char *bytes = NULL, *header = NULL, *shape;
    enum tt_dtype dtype = TT_DTYPES;
    long long rows = 0, width = 0;
    size_t size = 0, n_header;
    int rc = 0, fields;

    TT_TRY(tt_file_read_any(path, INT64_MAX, &bytes, &size));
    if (size < START || memcmp(bytes, "\x93NUMPY\x01", 7) != 0) {
        rc = tt_fail(TT_EDATA, "'%s' is not a .npy file of version 1", path);
        goto out;
    }
    n_header = (size_t)(unsigned char)bytes[8] | (size_t)(unsigned char)bytes[9] << 8;
    n_header = n_header < size - START ? n_header : size - START;
    header = tt_strndup(bytes + START, n_header);
    for (size_t i = 0; i < sizeof numpy_types / sizeof *numpy_types; i++)
        if (strstr(header, numpy_types[i].descr))
            dtype = numpy_types[i].dtype;
    shape = strstr(header, "'shape': (");
    fields = shape ? read_shape(shape + strlen("'shape': ("), &rows, &width) : 0;
    if (fields == 1) {
        width = rows;
        rows = 1;
    }
    if (dtype == TT_DTYPES || fields < 1 || rows < 1 || width < 1 || !strstr(header, "'fortran_order': False") ||
        size - START - n_header != (size_t)(rows * width) * tt_dtype_size(dtype)) {
        rc = tt_fail(TT_EDATA, "'%s' is not an array (batch, seq) of little-endian whole numbers in C order: %s", path,
                     header);
        goto out;
    }
    b->n = rows;
    b->seq_len = width;
    rc = take(path, "input_ids", dtype, bytes + START + n_header, rows * width, &b->tokens);
out:
    tt_free(bytes);
    tt_free(header);
    return rc;
}

/* --- all files --- */

static void shift(struct tt_reference_batch *b)
{
    b->labels = tt_calloc((size_t)(b->n * b->seq_len), sizeof *b->labels);
    for (int64_t i = 0; i < b->n * b->seq_len; i++)
        b->labels[i] = (i + 1) % b->seq_len ? b->tokens[i + 1] : TT_LABEL_IGNORED;
}

int tt_reference_batch_read(const char *path, struct tt_reference_batch *ret_batch)
{
    struct tt_reference_batch b = {0};
    int rc = tt_text_ends(path, ".npy") ? read_npy(path, &b) : read_safetensors(path, &b);

    if (rc == 0 && b.n * b.seq_len == 0)
        rc = tt_fail(TT_EDATA, "'%s' has no tokens", path);
    if (rc == 0 && !b.labels)
        shift(&b);
    if (rc == 0)
        *ret_batch = b;
    else
        tt_reference_batch_release(&b);
    return rc;
}

void tt_reference_batch_release(struct tt_reference_batch *b)
{
    tt_free(b->tokens);
    tt_free(b->labels);
    tt_free(b->positions);
    *b = (struct tt_reference_batch){0};
}

int tt_reference_batch_check(const struct tt_reference_batch *b, const char *path, int64_t vocab_size)
{
    for (int64_t i = 0; i < b->n * b->seq_len; i++) {
        bool wrong = b->tokens[i] < 0 || b->tokens[i] >= vocab_size;

        if (wrong || b->labels[i] >= vocab_size)
            return tt_fail(TT_EDATA,
                           "'%s': %s of row %" PRId64 ", position %" PRId64 " is %" PRId32
                           ", and the vocabulary has %" PRId64 " tokens",
                           path, wrong ? "the token" : "the label", i / b->seq_len, i % b->seq_len,
                           wrong ? b->tokens[i] : b->labels[i], vocab_size);
        if (b->labels[i] < 0)
            b->labels[i] = TT_LABEL_IGNORED;
    }
    return 0;
}
