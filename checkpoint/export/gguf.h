/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_EXPORT_GGUF_H
#define TT_CHECKPOINT_EXPORT_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/read/source.h"
#include "checkpoint/read/weights.h"
#include "core/base/error.h"
#include "core/gguf/gguf.h"
#include "core/models/model.h"

/**
 * Writes a GGUF file: the weights, one block of rows at a time, and the sizes, the tokenizer and the chat template of
 * the checkpoint's assets. The file appears complete or not at all. Its checksums are in it ("titan.crc32c").
 */
struct tt_gguf_export {
    const char *path;
    const struct tt_source *source; /* whose assets are used */
    const struct tt_model *model;
    struct tt_weights *weights;          /* TT_WEIGHTS_TO_GGUF, or the mean of several */
    const struct tt_gguf_type_row *type; /* of the matrices; NULL: as they are stored */
};

/**
 * Checks that the file may be made: its name ends in .gguf, and nothing is there, or with force a file that titan
 * wrote. TT_EUSAGE.
 */
int tt_gguf_check_output(const char *path, bool force) TT_MUST_CHECK;

/** TT_EDATA says what llama.cpp does not run (tt_gguf_put_model, tt_gguf_put_tokenizer). */
int tt_gguf_write(const struct tt_gguf_export *export, int64_t *ret_bytes) TT_MUST_CHECK;

#endif
