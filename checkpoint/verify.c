/* SPDX-License-Identifier: MIT
 *
 * Verifying a checkpoint: everything that is wrong with it, in one pass over its bytes.
 */
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

#include "checkpoint/digest.h"
#include "checkpoint/inspect.h"
#include "checkpoint/source.h"
#include "checkpoint/steps.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/mem.h"

enum { BLOCK_BYTES = 4 << 20 };

struct report {
    json_t *problems;
    int64_t bytes, done; /* of all files */
    int64_t checksums;
};

static void add_problem(struct report *report, const char *kind)
{
    (void)json_array_append_new(report->problems, json_pack("{s:s,s:s}", "kind", kind, "text", tt_error_message()));
}

static int read_crc(struct report *report, const struct tt_safetensors *file, int64_t begin, int64_t end, char *block,
                    uint32_t *ret_crc)
{
    uint32_t crc = 0;
    int rc = 0;

    for (int64_t at = begin; at < end; at += BLOCK_BYTES) {
        int64_t n = end - at < BLOCK_BYTES ? end - at : BLOCK_BYTES;

        TT_TRY(tt_file_pread(file->fd, file->path, block, (size_t)n, at));
        crc = tt_crc32c(crc, block, (size_t)n);
        report->done += n;
        tt_progress("verifying", (double)report->done, (double)report->bytes);
    }
    *ret_crc = crc;
out:
    return rc;
}

/* The manifest's chunk that begins at that byte of a file. */
static const struct tt_manifest_chunk *find_chunk(const struct tt_source *source, int file, const char *name,
                                                  const struct tt_manifest_tensor **ret_tensor)
{
    for (int i = 0; i < source->manifest.n_tensors; i++) {
        const struct tt_manifest_tensor *t = &source->manifest.tensor[i];

        for (int k = 0; strcmp(t->name, name) == 0 && k < t->n_chunks; k++) {
            if (t->chunk[k].file != file)
                continue;
            *ret_tensor = t;
            return &t->chunk[k];
        }
    }
    return NULL;
}

/* One pass over a file: a checksum per chunk, and the file's own joined from them. */
static int verify_file(struct report *report, struct tt_source *source, int number, char *block)
{
    const struct tt_safetensors *file = &source->open[number];
    const struct tt_manifest_file *expected = &source->manifest.file[number];
    bool chunk_bad = false;
    uint32_t crc = 0, part = 0;
    int rc = 0;

    TT_TRY(read_crc(report, file, 0, file->data_start, block, &crc));
    for (int i = 0; i < file->n; i++) {
        const struct tt_st_tensor *t = &file->tensor[i];
        const struct tt_manifest_tensor *tensor = NULL;
        const struct tt_manifest_chunk *chunk = find_chunk(source, number, t->name, &tensor);

        TT_TRY(read_crc(report, file, file->data_start + t->begin, file->data_start + t->end, block, &part));
        crc = tt_crc32c_combine(crc, part, (uint64_t)(t->end - t->begin));
        if (!chunk || !chunk->has_crc)
            continue;
        report->checksums++;
        if (part == chunk->crc)
            continue;
        chunk_bad = true;
        (void)tt_source_fail_crc(source, tensor, chunk, part);
        add_problem(report, "crc");
    }
    if (expected->has_crc && crc != expected->crc && !chunk_bad) {
        (void)tt_fail(TT_EDATA, "'%s' is damaged in its header: the file has checksum %08x, %08x expected", file->path,
                      crc, expected->crc);
        add_problem(report, "header");
    }
out:
    return rc;
}

/* Shard files that the manifest does not know would be mixed in by readers that go by the folder. */
static int find_strangers(struct report *report, const struct tt_source *source)
{
    int rc = 0;

    for (int group = 0; group < TT_GROUPS && rc == 0; group++) {
        const char *name = tt_ckpt_group_name((enum tt_ckpt_group)group);
        char *folder = tt_format("%s/%s", source->path, name), **names = NULL;
        int n = 0;

        if (tt_path_is_folder(folder))
            rc = tt_folder_list(folder, &names, &n);
        for (int i = 0; i < n; i++) {
            char *relative = tt_format("%s/%s", name, names[i]);
            bool known = false;

            for (int f = 0; f < source->manifest.n_files && !known; f++)
                known = strcmp(source->manifest.file[f].path, relative) == 0;
            if (!known) {
                (void)tt_fail(TT_EDATA, "stale file '%s/%s': it is not part of the checkpoint", folder, names[i]);
                add_problem(report, "stale");
            }
            tt_free(relative);
        }
        tt_names_free(names, n);
        tt_free(folder);
    }
    return rc;
}

static int verify_source(struct report *report, struct tt_source *source)
{
    const struct tt_manifest *m = &source->manifest;
    char *block = tt_calloc(1, BLOCK_BYTES);
    int rc = 0;

    for (int i = 0; i < m->n_files; i++)
        report->bytes += m->file[i].bytes;
    for (int i = 0; i < m->n_tensors; i++) {
        const char *kind = "manifest";

        if (tt_manifest_check_tensor(m, &m->tensor[i], &kind) < 0)
            add_problem(report, kind);
    }
    if (source->kind == TT_PATH_STEP)
        TT_TRY(find_strangers(report, source));
    for (int i = 0; i < m->n_files; i++) {
        const char *kind = "header";

        if (tt_source_check_file(source, i, &kind) < 0) {
            add_problem(report, kind);
            report->done += m->file[i].bytes;
            continue;
        }
        TT_TRY(verify_file(report, source, i, block));
    }
out:
    tt_free(block);
    return rc;
}

/* The source without the checks of tt_source_open, which stop at the first problem. */
static int open_unchecked(struct tt_source *source)
{
    int rc = source->kind == TT_PATH_STEP ? tt_manifest_load(source->path, &source->manifest)
                                          : tt_manifest_scan(source->path, &source->manifest);

    if (rc == 0)
        source->open = tt_calloc((size_t)source->manifest.n_files, sizeof *source->open);
    return rc;
}

int tt_ckpt_verify(const char *path, json_t **ret_json)
{
    struct tt_source *source = tt_calloc(1, sizeof *source);
    struct report report = {.problems = json_array()};
    double start = tt_clock_sec();
    int rc = 0;

    TT_TRY(tt_path_resolve(path, false, &source->kind, &source->path));
    if (open_unchecked(source) < 0)
        add_problem(&report, source->kind == TT_PATH_STEP ? "manifest" : "header");
    else
        TT_TRY(verify_source(&report, source));
    *ret_json = json_pack("{s:s,s:b,s:i,s:i,s:I,s:I,s:f,s:O}", "path", source->path, "ok",
                          json_array_size(report.problems) == 0, "files", source->manifest.n_files, "tensors",
                          source->manifest.n_tensors, "bytes", (json_int_t)report.bytes, "checksums",
                          (json_int_t)report.checksums, "seconds", tt_clock_sec() - start, "problems", report.problems);
out:
    json_decref(report.problems);
    tt_source_free(source);
    return rc;
}
