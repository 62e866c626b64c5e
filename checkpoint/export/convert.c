/* SPDX-License-Identifier: MIT
 *
 * Converts weights of Hugging Face and PyTorch to a titan checkpoint: one file, whose checksums and digests are
 * computed on the way.
 */
#include "checkpoint/export/convert.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/export/hf.h"
#include "checkpoint/export/weights_file.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/read/source.h"
#include "checkpoint/read/weights.h"
#include "checkpoint/save/plan.h"
#include "checkpoint/steps/steps.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/os/file.h"

struct job {
    const struct tt_consolidate *options;
    struct tt_source *source;
    struct tt_model *model;
    struct tt_weights weights;
    struct tt_weights_file file;
    struct tt_output output;
    struct tt_weights_written written;
};

static json_t *describe(const struct job *job)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:f, s:i, s:{s:i, s:i, s:i, s:i, s:i}, s:o, s:s, s:{}}",
                     "step", 0, "tokens", 0, "ntokens_seen", 0, "sample_cursor", 0, "world", 1, "policy", "all",
                     "run_id", "convert", "time", tt_clock_wall_sec(), "optimizer_step", 0, "mesh", "pp", 1,
                     "dp_replicate", 1, "dp_shard", 1, "cp", 1, "tp", 1, "model",
                     json_sprintf("%s/%s", job->model->row->name, job->model->flavor), "converted_from",
                     job->source->path, "config");
}

static int write_manifest(const struct job *job, const char *shard)
{
    const struct tt_weights_written *w = &job->written;
    struct tt_manifest manifest = {.meta = describe(job)};
    struct tt_manifest_file *file = tt_manifest_add_file(&manifest, shard, w->bytes);
    json_t *assets = NULL;
    char *text = NULL;
    int rc = 0;

    TT_TRY(tt_assets_scan(job->output.folder, &assets));
    (void)json_object_set(manifest.meta, "assets", assets);
    file->has_crc = true;
    file->crc = w->crc;
    for (int i = 0; i < w->n; i++) {
        const struct tt_st_tensor *s = &w->tensor[i];
        struct tt_manifest_tensor *t =
            tt_manifest_add_tensor(&manifest, TT_CKPT_MODEL, s->name, s->dtype, s->box.ndim, s->box.shape);

        t->digest = w->digest[i];
        t->has_digest = true;
        TT_PUSH(t->chunk, t->n_chunks, t->cap_chunks) =
            (struct tt_manifest_chunk){0, s->box, w->data_start + s->begin, w->data_start + s->end, s->crc, true, 0};
    }
    tt_manifest_sort(&manifest);
    text = tt_manifest_text(&manifest);
    rc = tt_output_put(&job->output, "manifest.json", text, strlen(text));
out:
    json_decref(assets);
    tt_free(text);
    tt_manifest_release(&manifest);
    return rc;
}

static int make_folders(const struct job *job)
{
    static const char *const names[] = {"model", "assets"};
    int rc = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names && rc == 0; i++) {
        char *path = tt_format("%s/%s", job->output.folder, names[i]);

        rc = tt_folder_make(path);
        tt_free(path);
    }
    return rc;
}

static int write_step(struct job *job)
{
    char *shard = tt_ckpt_shard_path(TT_CKPT_MODEL, 0), *path = tt_format("%s/%s", job->output.folder, shard);
    json_t *extra = json_pack("{s:s, s:s, s:s}", "titan.version", "1", "titan.step", "0", "titan.rank", "0");
    int rc = 0;

    TT_TRY(make_folders(job));
    TT_TRY(tt_weights_write(&job->file, 0, path, extra, true, &job->written));
    TT_TRY(tt_hf_folder_keep(&job->output, job->source, job->model, "assets/"));
    TT_TRY(write_manifest(job, shard));
    TT_TRY(tt_output_publish(&job->output));
out:
    json_decref(extra);
    tt_free(shard);
    tt_free(path);
    return rc;
}

static void choose_dtypes(struct job *job)
{
    int n = job->weights.n;

    job->file = (struct tt_weights_file){.weights = &job->weights,
                                         .dtype = tt_calloc((size_t)n, sizeof(enum tt_dtype)),
                                         .of_file = tt_calloc((size_t)n, sizeof(int)),
                                         .what = "converting"};
    for (int i = 0; i < n; i++) {
        const struct tt_weight *w = &job->weights.weight[i];

        job->file.dtype[i] = tt_weight_dtype(w, job->options->has_dtype, job->options->dtype);
        job->file.total += tt_weight_bytes(w, job->file.dtype[i]);
    }
}

/* The weights of a source in titan's names: a Hugging Face folder, a GGUF file, or a folder of PyTorch's. */
static int open_weights(struct job *job)
{
    const struct tt_told *told = &job->options->told;
    char *assets = tt_source_assets(job->source);
    int rc = 0;

    if (job->source->kind == TT_PATH_DCP) {
        tt_source_note_beside(job->source);
        TT_TRY(tt_source_check_forms(job->source, false));
        TT_TRY(tt_source_model(job->source, told, &job->model));
        TT_TRY(tt_weights_of_model(job->source, job->model, &job->weights));
    } else if (told->model || told->assets) {
        rc = tt_fail(TT_EUSAGE, "'%s' says itself which model it is\nhelp: leave out --%s", job->source->path,
                     told->assets ? "assets" : "model");
    } else {
        TT_TRY(tt_model_from_hf(assets, &job->model));
        TT_TRY(tt_source_is_gguf(job->source)
                   ? tt_weights_from_gguf(job->source, job->model, &job->weights)
                   : tt_weights_from_hf(job->source, job->model, TT_EXTRA_REFUSED, &job->weights));
    }
out:
    tt_free(assets);
    return rc;
}

static int import(const struct tt_consolidate *options, struct tt_source *source, struct tt_consolidated *ret_result)
{
    struct job job = {.options = options, .source = source, .output.lock_fd = -1};
    int rc = 0;

    TT_TRY(tt_output_check(options->destination, options->force));
    TT_TRY(tt_output_check_apart(options->destination, source->path));
    TT_TRY(open_weights(&job));
    choose_dtypes(&job);
    TT_TRY(tt_output_begin(options->destination, job.file.total, &job.output));
    TT_TRY(write_step(&job));
    *ret_result = (struct tt_consolidated){.bytes = job.written.bytes, .files = 1, .tensors = job.weights.n};
    (void)snprintf(ret_result->source, sizeof ret_result->source, "%s", job.source->path);
out:
    tt_output_abandon(&job.output); /* does nothing once it is published */
    tt_weights_written_release(&job.written);
    tt_weights_release(&job.weights);
    tt_free(job.file.dtype);
    tt_free(job.file.of_file);
    tt_model_free(job.model);
    return rc;
}

static int convert(const struct tt_consolidate *options, struct tt_consolidated *ret_result)
{
    struct tt_consolidate export = *options;
    struct tt_source *source = NULL;
    bool is_hf = false;
    int rc = 0;

    TT_TRY(tt_source_find(options->source, &source));
    TT_TRY(tt_source_is_hf(source, &is_hf));
    if (options->leave_out.n && !is_hf) {
        rc = tt_fail(TT_EUSAGE, "--leave-out is for Hugging Face folders, and '%s' is none", source->path);
        goto out;
    }
    source->leave_out = &options->leave_out;
    if (options->format == TT_FORMAT_DCP) {
        export.with_state = true;
        rc = tt_ckpt_consolidate(&export, ret_result);
    } else if (is_hf || tt_source_is_gguf(source) || source->kind == TT_PATH_DCP) {
        if (options->averages)
            TT_TRY(tt_manifest_use_averages(&source->manifest, source->path));
        rc = import(options, source, ret_result);
    } else {
        export.format = TT_FORMAT_HF;
        rc = tt_ckpt_consolidate(&export, ret_result);
    }
out:
    rc = tt_source_explain(rc, source);
    tt_source_free(source);
    return rc;
}

int tt_ckpt_convert(const struct tt_consolidate *options, struct tt_consolidated *ret_result)
{
    int tries = 0, rc;

    do
        rc = convert(options, ret_result);
    while (tt_step_try_again(rc, options->source, &tries));
    return rc;
}
