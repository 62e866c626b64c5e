/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_RUN_TENSORBOARD_H
#define TT_TRAINER_RUN_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * A TensorBoard event file: scalars and texts, one record each, flushed at every step, so that a crash loses nothing. A
 * file is records of u64 length | u32 masked CRC32C of the length | bytes | u32 masked CRC32C of the bytes,
 * little-endian (TensorFlow's TFRecord); the bytes are a protocol buffer message Event.
 *
 * Source: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto, framework/summary.proto and
 * framework/tensor.proto; for texts tensorboard/plugins/text/metadata.py and the add_text of PyTorch's SummaryWriter.
 */
struct tt_tensorboard;

/**
 * Makes FOLDER/<local time>/events.out.tfevents.<seconds>.<host>.<pid>.0; a run that resumes makes another file.
 * Errors: TT_EIO.
 */
int tt_tensorboard_open(const char *folder, struct tt_tensorboard **ret_board) TT_MUST_CHECK;

struct tt_scalar {
    const char *tag;
    double value; /* stored as float32 */
};

/** Appends scalars of a step, with the wall clock as their time. tt_tensorboard_close reports failed writes. */
void tt_tensorboard_add(struct tt_tensorboard *board, int64_t step, const struct tt_scalar *scalars, int n);

/** Appends at most TT_BOARD_TEXT bytes of a step's text. */
enum { TT_BOARD_TEXT = 20000 };
void tt_tensorboard_add_text(struct tt_tensorboard *board, int64_t step, const char *tag, const char *text);

/** Closes the file, and warns (tt_warn) if something could not be written; NULL is allowed. */
void tt_tensorboard_close(struct tt_tensorboard *board);

/**
 * Writes a record of scalars with a given time to buf; returns its size, or 0 if buf_size is too small. The file begins
 * with the version record (n = 0), and such records follow. For the writer and its test.
 */
size_t tt_tensorboard_record(double wall_sec, int64_t step, const struct tt_scalar *scalars, int n, uint8_t *buf,
                             size_t buf_size);

/** The same for a text. */
size_t tt_tensorboard_text_record(double wall_sec, int64_t step, const char *tag, const char *text, uint8_t *buf,
                                  size_t buf_size);

#endif
