/* SPDX-License-Identifier: MIT
 *
 * TensorBoard event files. The few protocol buffer messages that contain scalars are encoded by hand.
 */
#include "trainer/run/tensorboard.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/os/file.h"

/* --- protocol buffers --- */

struct bytes {
    uint8_t *data;
    size_t n, room;
    bool full; /* some bytes did not fit */
};

static void put(struct bytes *b, const void *data, size_t n)
{
    if (b->full || n > b->room - b->n) {
        b->full = true;
        return;
    }
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

/* Little-endian on any machine. */
static void put_fixed(struct bytes *b, uint64_t value, int size)
{
    uint8_t byte[8];

    for (int i = 0; i < size; i++)
        byte[i] = (uint8_t)(value >> (8 * i));
    put(b, byte, (size_t)size);
}

static void put_varint(struct bytes *b, uint64_t value)
{
    uint8_t byte;

    for (; value >= 0x80; value >>= 7) {
        byte = (uint8_t)(value | 0x80);
        put(b, &byte, 1);
    }
    byte = (uint8_t)value;
    put(b, &byte, 1);
}

enum wire { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 };

static void put_key(struct bytes *b, unsigned field, enum wire wire)
{
    put_varint(b, field << 3 | (unsigned)wire);
}

static void put_field(struct bytes *b, unsigned field, const void *data, size_t n)
{
    put_key(b, field, LENGTH);
    put_varint(b, n);
    put(b, data, n);
}

/* --- events --- */

enum { VALUE_BYTES = 256, TEXT_BYTES = TT_BOARD_TEXT + 2 * VALUE_BYTES, EVENT_BYTES = 8192 + TEXT_BYTES };

/* Event { double wall_time = 1; int64 step = 2; string file_version = 3 | Summary summary = 5; } */
static void put_event(struct bytes *event, double wall_sec, int64_t step, const struct bytes *summary)
{
    static const char version[] = "brain.Event:2";
    uint64_t bits;

    memcpy(&bits, &wall_sec, sizeof bits);
    put_key(event, 1, FIXED64);
    put_fixed(event, bits, 8);
    if (!summary) {
        put_field(event, 3, version, sizeof version - 1);
        return;
    }
    put_key(event, 2, VARINT);
    put_varint(event, (uint64_t)step);
    event->full = event->full || summary->full;
    put_field(event, 5, summary->data, summary->n);
}

/* TFRecord's checksum: a CRC over data that itself contains CRCs is weak, so the CRC is rotated and shifted. */
static uint32_t masked_crc(const void *data, size_t n)
{
    uint32_t crc = tt_crc32c(0, data, n);

    return ((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8);
}

/* summary: NULL for the version record. */
static size_t put_record(double wall_sec, int64_t step, const struct bytes *summary, uint8_t *buf, size_t buf_size)
{
    uint8_t room[EVENT_BYTES];
    struct bytes event = {.data = room, .room = sizeof room}, record = {.data = buf, .room = buf_size};

    put_event(&event, wall_sec, step, summary);
    put_fixed(&record, event.n, 8);
    put_fixed(&record, record.full ? 0 : masked_crc(buf, 8), 4);
    put(&record, event.data, event.n);
    put_fixed(&record, masked_crc(event.data, event.n), 4);
    return event.full || record.full ? 0 : record.n;
}

/* Summary.Value { string tag = 1; float simple_value = 2; } as the repeated field 1 of a Summary. */
size_t tt_tensorboard_record(double wall_sec, int64_t step, const struct tt_scalar *scalars, int n, uint8_t *buf,
                             size_t buf_size)
{
    uint8_t room[EVENT_BYTES];
    struct bytes summary = {.data = room, .room = sizeof room};

    for (int i = 0; i < n; i++) {
        uint8_t value_room[VALUE_BYTES];
        struct bytes value = {.data = value_room, .room = sizeof value_room};
        float number = (float)scalars[i].value;
        uint32_t bits;

        memcpy(&bits, &number, sizeof bits);
        put_field(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        put_key(&value, 2, FIXED32);
        put_fixed(&value, bits, 4);
        summary.full = summary.full || value.full;
        put_field(&summary, 1, value.data, value.n);
    }
    return put_record(wall_sec, step, n ? &summary : NULL, buf, buf_size);
}

/*
 * Summary.Value { string tag = 1; TensorProto tensor = 8; SummaryMetadata metadata = 9 }
 * TensorProto { DataType dtype = 1; TensorShapeProto tensor_shape = 2; repeated bytes string_val = 8 }, a vector of one
 * TensorShapeProto { repeated Dim { int64 size = 1 } dim = 2 }
 * SummaryMetadata { PluginData { string plugin_name = 1 } plugin_data = 1 }
 */
size_t tt_tensorboard_text_record(double wall_sec, int64_t step, const char *tag, const char *text, uint8_t *buf,
                                  size_t buf_size)
{
    enum { DT_STRING = 7 };
    static const uint8_t shape[] = {2 << 3 | LENGTH, 2, 1 << 3 | VARINT, 1},
                         metadata[] = {1 << 3 | LENGTH, 6, 1 << 3 | LENGTH, 4, 't', 'e', 'x', 't'};
    uint8_t room[EVENT_BYTES], value_room[TEXT_BYTES], tensor_room[TEXT_BYTES];
    struct bytes summary = {.data = room, .room = sizeof room}, value = {.data = value_room, .room = sizeof value_room},
                 tensor = {.data = tensor_room, .room = sizeof tensor_room};
    size_t n = strlen(text);

    if (n > TT_BOARD_TEXT) /* cuts the text after a whole character */
        for (n = TT_BOARD_TEXT; n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80;)
            n--;
    put_key(&tensor, 1, VARINT);
    put_varint(&tensor, DT_STRING);
    put_field(&tensor, 2, shape, sizeof shape);
    put_field(&tensor, 8, text, n);
    put_field(&value, 1, tag, strlen(tag));
    put_field(&value, 8, tensor.data, tensor.n);
    put_field(&value, 9, metadata, sizeof metadata);
    summary.full = tensor.full || value.full;
    put_field(&summary, 1, value.data, value.n);
    return put_record(wall_sec, step, &summary, buf, buf_size);
}

/* --- the file --- */

struct tt_tensorboard {
    FILE *file;
    char *path;
    bool failed;
};

/* size: of the record; 0: making it failed. */
static void append(struct tt_tensorboard *board, const uint8_t *record, size_t size)
{
    bool written = size && fwrite(record, 1, size, board->file) == size && fflush(board->file) == 0;

    board->failed = board->failed || !written;
}

int tt_tensorboard_open(const char *folder, struct tt_tensorboard **ret_board)
{
    struct tt_tensorboard *board = tt_calloc(1, sizeof *board);
    time_t now = time(NULL);
    char host[256] = "", when[64] = "";
    char *inside = NULL;
    struct tm local;
    int rc = 0;

    (void)gethostname(host, sizeof host - 1);
    if (localtime_r(&now, &local))
        (void)strftime(when, sizeof when, "%Y%m%d-%H%M", &local);
    inside = tt_format("%s/%s", folder, when);
    TT_TRY(tt_folder_make(inside));
    board->path = tt_format("%s/events.out.tfevents.%" PRId64 ".%s.%ld.0", inside, (int64_t)now, host, (long)getpid());
    board->file = fopen(board->path, "we");
    if (!board->file) {
        rc = tt_fail(TT_EIO, "cannot create '%s': %s", board->path, strerror(errno));
        goto out;
    }
    tt_tensorboard_add(board, 0, NULL, 0);
    *ret_board = board;
    board = NULL;
out:
    if (board)
        tt_free(board->path);
    tt_free(board);
    tt_free(inside);
    return rc;
}

void tt_tensorboard_add(struct tt_tensorboard *board, int64_t step, const struct tt_scalar *scalars, int n)
{
    uint8_t record[EVENT_BYTES + 16];

    append(board, record, tt_tensorboard_record(tt_clock_wall_sec(), step, scalars, n, record, sizeof record));
}

void tt_tensorboard_add_text(struct tt_tensorboard *board, int64_t step, const char *tag, const char *text)
{
    uint8_t record[EVENT_BYTES + 16];

    append(board, record, tt_tensorboard_text_record(tt_clock_wall_sec(), step, tag, text, record, sizeof record));
}

void tt_tensorboard_close(struct tt_tensorboard *board)
{
    if (!board)
        return;
    if (fclose(board->file) != 0 || board->failed)
        tt_warn("could not write all of '%s': TensorBoard lacks some steps", board->path);
    tt_free(board->path);
    tt_free(board);
}
