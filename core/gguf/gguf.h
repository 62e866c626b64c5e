/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_GGUF_GGUF_H
#define TT_CORE_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/graph/dtype.h"
#include "core/os/file.h"

/**
 * GGUF, the file format of llama.cpp: one file with the weights, the sizes of the model and the tokenizer.
 *
 *     "GGUF" | u32 version 3 | u64 tensors | u64 values | values | names, shapes, types, offsets | padding | data
 *
 * All numbers are little-endian. A value has a key such as "llama.block_count". This header reads the container.
 * core/models/gguf.h interprets the values about the model, core/tokenizer/gguf.h those about the tokenizer, and
 * checkpoint/read/map.h the names of tensors.
 */
enum tt_gguf_kind {
    TT_GGUF_U8,
    TT_GGUF_I8,
    TT_GGUF_U16,
    TT_GGUF_I16,
    TT_GGUF_U32,
    TT_GGUF_I32,
    TT_GGUF_F32,
    TT_GGUF_BOOL,
    TT_GGUF_STRING,
    TT_GGUF_ARRAY,
    TT_GGUF_U64,
    TT_GGUF_I64,
    TT_GGUF_F64,
    TT_GGUF_KINDS
};

/* The types of tensors that titan reads and writes, by their numbers in files. */
enum tt_gguf_type { TT_GGML_F32 = 0, TT_GGML_F16 = 1, TT_GGML_Q4_0 = 2, TT_GGML_Q8_0 = 8, TT_GGML_BF16 = 30 };

enum { TT_GGUF_ALIGNMENT = 32, TT_GGUF_DIMS = 4 };

/** How a type stores elements: blocks of `elements`, which take `bytes`. */
struct tt_gguf_type_row {
    enum tt_gguf_type type;
    const char *name;   /* as tools of llama.cpp write it: "Q8_0" */
    const char *option; /* of --type: "q8_0" */
    int64_t elements, bytes;
    enum tt_dtype dtype; /* type for blocks of one element; else U8 */
    uint32_t file_type;  /* general.file_type of a file whose weights mostly are of this type */
};

/** The row of a type; NULL: titan does not read it. */
const struct tt_gguf_type_row *tt_gguf_type_of(uint32_t type);

/** The same by the name of an option; NULL: there is none. */
const struct tt_gguf_type_row *tt_gguf_type_named(const char *option);

struct tt_gguf_value {
    char *key;
    enum tt_gguf_kind kind, item; /* item: of an array */
    int64_t n;                    /* items of an array; else 1 */
    const uint8_t *data;          /* in the file's bytes */
    size_t size;
};

struct tt_gguf_tensor {
    char *name;
    const struct tt_gguf_type_row *type;
    int ndim;
    int64_t shape[TT_GGUF_DIMS]; /* the outermost dimension first, as in titan; files have it last */
    int64_t begin, end;          /* bytes of the file */
};

/** A file whose values and tensors were read and checked. */
struct tt_gguf {
    char *path;
    struct tt_mapping mapping; /* of tt_gguf_open */
    const uint8_t *bytes;
    int64_t file_bytes, data_start;
    int n_values, cap_values;
    struct tt_gguf_value *value;
    int n_tensors, cap_tensors;
    struct tt_gguf_tensor *tensor; /* in the order of the file */
};

/** Whether a path ends like the name of a GGUF file. A folder of weights may end in the same way. */
bool tt_gguf_is_path(const char *path);

/**
 * Opens a file and checks its whole header: counts, lengths, types and sizes; no key and no name occurs twice; the data
 * lies within the file and does not overlap. TT_EDATA names the expected and the actual value. The caller
 * zero-initialises and releases it in any case.
 */
int tt_gguf_open(const char *path, struct tt_gguf *ret_file) TT_MUST_CHECK;

/** The same for bytes in memory, which must outlive ret_file. path is for messages. */
int tt_gguf_parse(const char *path, const void *bytes, size_t size, struct tt_gguf *ret_file) TT_MUST_CHECK;
void tt_gguf_release(struct tt_gguf *file);

/** The value of a key; NULL: there is none. */
const struct tt_gguf_value *tt_gguf_find(const struct tt_gguf *file, const char *key);

const struct tt_gguf_tensor *tt_gguf_find_tensor(const struct tt_gguf *file, const char *name);

/**
 * Values as C types. TT_EDATA if a value is of another kind or, if `absent` is NULL, missing. Numbers of any kind are
 * accepted if the conversion is exact.
 */
int tt_gguf_int(const struct tt_gguf *file, const char *key, const int64_t *absent, int64_t *ret_value) TT_MUST_CHECK;
int tt_gguf_real(const struct tt_gguf *file, const char *key, const double *absent, double *ret_value) TT_MUST_CHECK;
int tt_gguf_bool(const struct tt_gguf *file, const char *key, const bool *absent, bool *ret_value) TT_MUST_CHECK;

/** A new string, which the caller frees; NULL if the key is missing. */
int tt_gguf_string(const struct tt_gguf *file, const char *key, char **ret_text) TT_MUST_CHECK;

/** The array of a key, whose items must be of the given kind; NULL if the key is missing. */
int tt_gguf_array(const struct tt_gguf *file, const char *key, enum tt_gguf_kind item,
                  const struct tt_gguf_value **ret_value) TT_MUST_CHECK;

/** Steps through an array of strings; set *at to 0 first. */
const char *tt_gguf_next_string(const struct tt_gguf_value *array, size_t *at, size_t *ret_size);

/** Item i of an array of I32 (or U32) or F32. */
int32_t tt_gguf_i32_at(const struct tt_gguf_value *array, int64_t i);
float tt_gguf_f32_at(const struct tt_gguf_value *array, int64_t i);

/**
 * A checksum of the description of a file's tensors: their names, types and shapes, in order. If it has changed, the
 * data has changed too, for example after llama-quantize, which copies a file's values.
 */
uint32_t tt_gguf_crc_of_tensors(const struct tt_gguf_tensor *tensor, int n);

/** Values to be written. Zero-initialise; release `text`. */
struct tt_gguf_values {
    struct tt_text text;
    int64_t n;
};
void tt_gguf_put_u32(struct tt_gguf_values *values, const char *key, int64_t value);
void tt_gguf_put_f32(struct tt_gguf_values *values, const char *key, double value);
void tt_gguf_put_bool(struct tt_gguf_values *values, const char *key, bool value);
void tt_gguf_put_string(struct tt_gguf_values *values, const char *key, const char *text, size_t size);

/** Begins an array of n items, which are added by the functions below. */
void tt_gguf_put_array(struct tt_gguf_values *values, const char *key, enum tt_gguf_kind item, int64_t n);
void tt_gguf_add_string(struct tt_gguf_values *values, const char *text, size_t size);
void tt_gguf_add_i32(struct tt_gguf_values *values, int32_t value);
void tt_gguf_add_f32(struct tt_gguf_values *values, float value);

/**
 * Lays a file out: sets begin and end of the tensors (name, type, shape are given), and writes everything before the
 * data into header.
 */
void tt_gguf_layout(const struct tt_gguf_values *values, struct tt_gguf_tensor *tensor, int n, struct tt_text *header,
                    int64_t *ret_file_bytes);

#endif
