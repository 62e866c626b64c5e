/* SPDX-License-Identifier: MIT
 *
 * Verifies a checkpoint: finds everything that is wrong with it, in one pass over its bytes.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/cast.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/gguf.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/read/source.h"
#include "checkpoint/steps/steps.h"
#include "checkpoint/tools/tools.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/os/file.h"

enum { BLOCK_BYTES = 4 << 20 };

/* The findings about a tensor of the manifest. */
struct seen {
    uint64_t digest;
    int64_t nonfinite;
    bool whole; /* all chunks have been read, and all their checksums match */
};

struct report {
    enum tt_ckpt_depth depth;
    json_t *problems;
    int files, tensors;
    int64_t bytes, done; /* of all files */
    int64_t checksums, digests;
    char *block;
    struct seen *seen; /* per tensor of the current manifest */
};

static void add_problem(struct report *report, const char *kind)
{
    (void)json_array_append_new(report->problems,
                                json_pack("{s:s,s:o}", "kind", kind, "text", tt_json_string(tt_error_message())));
}

/* Records a failure as this kind of damage, or as "unreadable" if it does not prove damage. Running out of memory ends
 * the verification. */
static int note(struct report *report, int rc, const char *kind)
{
    if (rc == TT_EDATA || rc == TT_EIO)
        add_problem(report, rc == TT_EIO ? "unreadable" : kind);
    return rc == TT_EDATA || rc == TT_EIO ? 0 : rc;
}

/* The part of a file that holds a chunk, or its header (tensor is NULL). */
struct piece {
    int64_t begin, end;
    const struct tt_manifest_tensor *tensor;
    const struct tt_manifest_chunk *chunk;
    struct seen *seen;
};

/* The size of a block is a multiple of the size of any element. */
static void look_at_values(struct report *report, const struct piece *piece, int64_t at, int64_t bytes)
{
    enum tt_dtype dtype = piece->tensor->dtype;
    bool is_real = dtype == TT_F32 || dtype == TT_BF16 || dtype == TT_F16 || dtype == TT_F64;
    int64_t item = (int64_t)tt_dtype_size(dtype), n = item ? bytes / item : 0;

    if (n == 0)
        return;
    piece->seen->digest +=
        tt_digest_box(dtype, piece->tensor->shape, &piece->chunk->box, (at - piece->begin) / item, n, report->block);
    for (int64_t i = 0; is_real && i < n; i++)
        piece->seen->nonfinite += !isfinite(tt_cast_value(dtype, report->block, i));
}

static int read_piece(struct report *report, const struct tt_source *source, int number, const struct piece *piece,
                      uint32_t *ret_crc)
{
    const struct tt_safetensors *file = &source->open[number];
    uint32_t crc = 0;
    int rc = 0;

    for (int64_t at = piece->begin; at < piece->end; at += BLOCK_BYTES) {
        int64_t n = piece->end - at < BLOCK_BYTES ? piece->end - at : BLOCK_BYTES;

        TT_TRY(tt_file_pread(file->fd, file->path, report->block, (size_t)n, at));
        crc = tt_source_checksum(source, crc, report->block, (size_t)n);
        if (piece->seen && report->depth == TT_VERIFY_DEEP)
            look_at_values(report, piece, at, n);
        report->done += n;
        tt_progress("verifying", (double)report->done, (double)report->bytes);
    }
    *ret_crc = crc;
out:
    return rc;
}

static int compare_pieces(const void *pa, const void *pb)
{
    const struct piece *a = pa, *b = pb;

    return a->begin != b->begin ? (a->begin < b->begin ? -1 : 1) : (a->end > b->end) - (a->end < b->end);
}

/* The chunks in a file, in the order of their bytes; the caller frees. */
static struct piece *pieces_of(struct report *report, const struct tt_source *source, int file, int *ret_n)
{
    const struct tt_manifest *m = &source->manifest;
    struct piece *piece = NULL;
    int n = 0, cap = 0;

    for (int i = 0; i < m->n_tensors; i++)
        for (int k = 0; k < m->tensor[i].n_chunks; k++) {
            const struct tt_manifest_chunk *chunk = &m->tensor[i].chunk[k];

            if (chunk->file == file)
                TT_PUSH(piece, n, cap) =
                    (struct piece){chunk->begin, chunk->end, &m->tensor[i], chunk, &report->seen[i]};
        }
    if (n)
        qsort(piece, (size_t)n, sizeof *piece, compare_pieces);
    *ret_n = n;
    return piece;
}

/* Reads a chunk. If its checksum is wrong, reports that and sets ret_good to false. */
static int verify_piece(struct report *report, struct tt_source *source, int number, const struct piece *piece,
                        uint32_t *ret_crc, bool *ret_good)
{
    int rc = 0;

    TT_TRY(read_piece(report, source, number, piece, ret_crc));
    if (!piece->chunk->has_crc)
        goto out;
    report->checksums++;
    if (*ret_crc != piece->chunk->crc) {
        *ret_good = piece->seen->whole = false;
        rc = note(report, tt_source_fail_crc(source, piece->tensor, piece->chunk, *ret_crc), "crc");
    }
out:
    return rc;
}

/* Reads a file once, and checks the checksum of each chunk and the checksum of the file, which is combined from them. A
 * file with a checksum consists of a header and its chunks, without holes. */
static int verify_file(struct report *report, struct tt_source *source, int number)
{
    const struct tt_manifest_file *expected = &source->manifest.file[number];
    struct piece header = {.end = source->open[number].data_start}, *piece;
    uint32_t crc = 0, part = 0;
    bool good = true;
    int n = 0, rc = 0;

    piece = pieces_of(report, source, number, &n);
    TT_TRY(read_piece(report, source, number, &header, &crc));
    for (int i = 0; i < n; i++) {
        TT_TRY(verify_piece(report, source, number, &piece[i], &part, &good));
        crc = tt_crc32c_combine(crc, part, (uint64_t)(piece[i].end - piece[i].begin));
    }
    if (expected->has_crc && crc != expected->crc && good)
        rc = note(report,
                  tt_fail(TT_EDATA, "'%s' is damaged in its header: the file has checksum %08x, %08x expected",
                          source->open[number].path, crc, expected->crc),
                  "header");
out:
    tt_free(piece);
    return rc;
}

/* Finds shard files that are not in the manifest. Readers that use all files of a folder would use them too. */
static int find_strangers(struct report *report, const struct tt_source *source)
{
    int rc = 0;

    for (int group = 0; group < TT_CKPT_GROUPS && rc == 0; group++) {
        const char *name = tt_ckpt_group_name((enum tt_ckpt_group)group);
        char *folder = tt_format("%s/%s", source->path, name), **names = NULL;
        int n = 0;

        rc = tt_folder_list_found(folder, &names, &n);
        for (int i = 0; i < n; i++) {
            char *relative = tt_format("%s/%s", name, names[i]);
            bool known = false;

            for (int f = 0; f < source->manifest.n_files && !known; f++)
                known = strcmp(source->manifest.file[f].path, relative) == 0;
            if (!known)
                (void)note(report,
                           tt_fail(TT_EDATA, "stale file '%s/%s': it is not part of the checkpoint", folder, names[i]),
                           "stale");
            tt_free(relative);
        }
        tt_names_free(names, n);
        tt_free(folder);
    }
    return rc;
}

/* Checks the digest of every tensor after all files were read. */
static void check_values(struct report *report, const struct tt_source *source)
{
    for (int i = 0; i < source->manifest.n_tensors; i++) {
        const struct tt_manifest_tensor *t = &source->manifest.tensor[i];
        const struct seen *seen = &report->seen[i];

        report->digests += seen->whole && t->has_digest;
        if (!t->has_digest && source->kind == TT_PATH_STEP)
            (void)note(report,
                       tt_fail(TT_EDATA, "'%s': tensor '%s' has no digest in the manifest", source->path, t->name),
                       "digest");
        if (seen->whole && t->has_digest && seen->digest != t->digest)
            (void)note(report,
                       tt_fail(TT_EDATA, "'%s': tensor '%s' has digest %016" PRIx64 ", %016" PRIx64 " expected",
                               source->path, t->name, seen->digest, t->digest),
                       "digest");
        if (seen->nonfinite && source->kind == TT_PATH_STEP)
            (void)note(report,
                       tt_fail(TT_EDATA, "'%s': tensor '%s' has %" PRId64 " values that are not finite", source->path,
                               t->name, seen->nonfinite),
                       "nonfinite");
    }
}

/* Marks the tensors that lie partly in an unreadable file. */
static void forget_file(struct report *report, const struct tt_source *source, int file)
{
    for (int i = 0; i < source->manifest.n_tensors; i++)
        for (int k = 0; k < source->manifest.tensor[i].n_chunks; k++)
            if (source->manifest.tensor[i].chunk[k].file == file)
                report->seen[i].whole = false;
    report->done += source->manifest.file[file].bytes;
}

/* Tensors that titan does not read are not verified either; this is not damage. */
static void note_unread(struct report *report, const struct tt_source *source)
{
    const json_t *list = json_object_get(json_object_get(source->manifest.meta, "torch"), "unread");

    for (size_t i = 0; source->kind == TT_PATH_DCP && i < json_array_size(list); i++) {
        (void)tt_source_fail_form(source, json_array_get(list, i));
        add_problem(report, "unreadable");
    }
}

static int verify_source(struct report *report, struct tt_source *source)
{
    const struct tt_manifest *m = &source->manifest;
    const json_t *assets = json_object_get(m->meta, "assets");
    int rc = 0;

    report->files += m->n_files;
    report->tensors += m->n_tensors;
    report->bytes += tt_ckpt_file_bytes(m);
    source->open = tt_calloc_for((size_t)m->n_files, sizeof *source->open, source->path);
    report->seen = tt_calloc_for((size_t)m->n_tensors + 1, sizeof *report->seen, source->path);
    TT_TRY(source->open && report->seen ? 0 : TT_ENOMEM);
    for (int i = 0; i < m->n_tensors; i++) {
        const char *kind = "manifest";

        report->seen[i].whole = tt_manifest_check_tensor(m, &m->tensor[i], &kind) == 0;
        if (!report->seen[i].whole)
            add_problem(report, kind);
    }
    note_unread(report, source);
    if (source->kind == TT_PATH_STEP)
        TT_TRY(find_strangers(report, source));
    for (size_t i = 0; i < json_array_size(assets); i++) { /* small files, so every depth reads them completely */
        const char *kind = NULL;

        rc = tt_asset_check(source->path, json_array_get(assets, i), &kind);
        TT_TRY(rc < 0 ? note(report, rc, kind) : 0);
    }
    for (int i = 0; i < m->n_files; i++) {
        const char *kind = "header";

        if ((rc = tt_source_check_file(source, i, &kind)) == 0 && report->depth > TT_VERIFY_QUICK) {
            kind = "truncated";
            rc = verify_file(report, source, i);
        }
        if (rc < 0) {
            TT_TRY(note(report, rc, kind));
            forget_file(report, source, i);
        }
    }
    if (report->depth == TT_VERIFY_DEEP)
        check_values(report, source);
out:
    tt_free(report->seen);
    report->seen = NULL;
    return rc;
}

/* Verifies a source after opening it without the checks of tt_source_open, which stop at the first problem. */
static int verify_path(struct report *report, const char *path, enum tt_path_kind kind)
{
    struct tt_source *source = tt_calloc(1, sizeof *source);
    const char *fault = "header";
    int rc = 0;

    source->path = tt_strdup(path);
    source->kind = kind;
    TT_TRY(tt_path_is_folder(path, &source->is_folder));
    if ((rc = tt_source_describe(path, kind, &source->manifest, &fault)) < 0)
        TT_TRY(note(report, rc, fault));
    else
        TT_TRY(verify_source(report, source));
    if (source->manifest.n_files && tt_source_is_gguf(source))
        TT_TRY(note(report, tt_gguf_check_values(path), "crc"));
out:
    tt_source_free(source);
    return rc;
}

static int verify(const char *path, enum tt_ckpt_depth depth, json_t **ret_json)
{
    struct report report = {.depth = depth, .problems = json_array(), .block = tt_calloc(1, BLOCK_BYTES)};
    double start = tt_clock_sec();
    struct tt_step_place place = {0};
    enum tt_path_kind kind;
    char *resolved = NULL, *export = NULL;
    bool exported = false;
    int rc = 0;

    TT_TRY(tt_path_resolve(path, false, &kind, &resolved, NULL));
    TT_TRY(tt_step_place(resolved, &place));
    export = tt_format("%s/hf", resolved);
    TT_TRY(verify_path(&report, resolved, kind));
    if (kind == TT_PATH_STEP)
        TT_TRY(tt_path_is_folder(export, &exported));
    if (exported)
        TT_TRY(verify_path(&report, export, TT_PATH_PLAIN));
    if (json_array_size(report.problems) && tt_step_explain(TT_EDATA, resolved, &place) == TT_EREMOVED) {
        rc = TT_EREMOVED;
        goto out;
    }
    *ret_json = json_pack("{s:o,s:b,s:i,s:i,s:I,s:I,s:I,s:f,s:O}", "path", tt_json_string(resolved), "ok",
                          json_array_size(report.problems) == 0, "files", report.files, "tensors", report.tensors,
                          "bytes", (json_int_t)report.bytes, "checksums", (json_int_t)report.checksums, "digests",
                          (json_int_t)report.digests, "seconds", tt_clock_sec() - start, "problems", report.problems);
out:
    if (resolved)
        rc = tt_step_explain(rc, resolved, &place);
    json_decref(report.problems);
    tt_free(report.block);
    tt_free(resolved);
    tt_free(export);
    return rc;
}

int tt_ckpt_verify(const char *path, enum tt_ckpt_depth depth, json_t **ret_json)
{
    int tries = 0, rc;

    do
        rc = verify(path, depth, ret_json);
    while (tt_step_try_again(rc, path, &tries));
    return rc;
}
