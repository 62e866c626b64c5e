/* SPDX-License-Identifier: MIT
 *
 * Consolidation and export: streams whole tensors from the shards, one block of rows at a time, into files that are
 * assigned beforehand.
 */
#include "checkpoint/export/consolidate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "checkpoint/dcp/metadata.h"
#include "checkpoint/dcp/scan.h"
#include "checkpoint/durable/durable.h"
#include "checkpoint/export/dcp.h"
#include "checkpoint/export/gguf.h"
#include "checkpoint/export/hf.h"
#include "checkpoint/export/weights_file.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/read/source.h"
#include "checkpoint/read/weights.h"
#include "checkpoint/steps/steps.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/parts/lora.h"
#include "core/os/file.h"

/* --- the place --- */

/* Whether an object in JSON has a member of that name. A manifest may be large, so no tree is made of it. */
static int find_member(struct tt_json_reader *reader, const char *name, bool *ret_found)
{
    struct tt_json_span key;
    bool more = tt_json_peek(reader) == '{';
    int rc = 0;

    if (!more)
        goto out;
    TT_TRY(tt_json_open(reader));
    for (;;) {
        TT_TRY(tt_json_next(reader, &more));
        if (!more)
            break;
        TT_TRY(tt_json_key(reader, &key));
        *ret_found = *ret_found || (key.size == strlen(name) && memcmp(key.text, name, key.size) == 0);
        TT_TRY(tt_json_skip(reader));
    }
    rc = tt_json_finish(reader);
out:
    return rc;
}

/* Whether a step was made by a conversion, as its manifest says. A step from training is never replaced. */
static int is_converted(const char *path, bool *ret_own)
{
    char *manifest = tt_format("%s/manifest.json", path), *text = NULL;
    struct tt_json_reader reader = {0};
    bool exists = false, found = false;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_path_exists(manifest, &exists));
    rc = exists ? tt_file_read(manifest, &text, &size) : 0;
    if (exists && rc == 0) {
        tt_json_reader_init(&reader, text, size, manifest);
        rc = find_member(&reader, "converted_from", &found);
    }
    *ret_own = rc == 0 && found;
    rc = rc == TT_EDATA ? 0 : rc; /* a damaged step is not known to be titan's */
out:
    tt_json_reader_release(&reader);
    tt_free(text);
    tt_free(manifest);
    return rc;
}

/* Whether titan wrote the file: its metadata then has the tensors' checksums. */
static int is_own_file(const char *path, bool *ret_own)
{
    struct tt_safetensors file = {0};
    int rc = tt_safetensors_open(path, &file);

    *ret_own = rc == 0 && tt_safetensors_metadata(&file, "titan.crc") != NULL;
    if (rc == 0)
        tt_safetensors_release(&file);
    return rc == TT_EDATA ? 0 : rc;
}

/* A file that an export writes with the weights. The user put any other file there. */
static bool is_companion(const char *name)
{
    return tt_text_ends(name, ".json") || tt_text_ends(name, ".jinja") || strcmp(name, "merges.txt") == 0 ||
           strcmp(name, "tokenizer.model") == 0;
}

static int is_weights(const char *path, char *const *names, int n, bool *ret_own)
{
    bool any = false, fine = true;
    int rc = 0;

    for (int i = 0; i < n && fine && rc == 0; i++) {
        bool weights = tt_text_ends(names[i], ".safetensors");
        char *child = tt_format("%s/%s", path, names[i]);
        struct tt_path_info info = {0};

        rc = tt_path_look(child, &info);
        fine = info.kind != TT_FILE_FOLDER && (weights || is_companion(names[i]));
        if (rc == 0 && fine && weights)
            rc = is_own_file(child, &fine);
        tt_free(child);
        any = any || weights;
    }
    *ret_own = any && fine;
    return rc;
}

/* Whether titan wrote the folder for PyTorch, as its metadata says. */
static int is_torch(const char *path, char *const *names, int n, bool *ret_own)
{
    char *metadata = tt_format("%s/" TT_DCP_METADATA, path), *bytes = NULL;
    struct tt_dcp_metadata found = {0};
    bool exists = false, fine = true;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_path_exists(metadata, &exists));
    for (int i = 0; i < n && exists && fine; i++)
        fine = strcmp(names[i], TT_DCP_METADATA) == 0 || is_companion(names[i]) || tt_text_ends(names[i], ".distcp");
    if (!exists || !fine)
        goto out;
    TT_TRY(tt_file_read(metadata, &bytes, &size));
    rc = tt_dcp_metadata_parse(metadata, bytes, size, &found);
    *ret_own = rc == 0 && found.by_titan;
    rc = rc == TT_EDATA ? 0 : rc; /* a damaged folder is not known to be titan's */
out:
    tt_dcp_metadata_release(&found);
    tt_free(bytes);
    tt_free(metadata);
    return rc;
}

int tt_output_check(const char *path, bool force)
{
    struct tt_path_info info;
    char **names = NULL;
    bool own = false;
    int n = 0, rc = 0;

    TT_TRY(tt_path_look(path, &info));
    if (info.kind == TT_FILE_NONE)
        return 0;
    if (info.kind != TT_FILE_FOLDER)
        return tt_fail(TT_EUSAGE, "'%s' exists and is not a folder", path);
    TT_TRY(tt_folder_list(path, &names, &n));
    TT_TRY(is_weights(path, names, n, &own));
    if (!own)
        TT_TRY(is_converted(path, &own));
    if (!own)
        TT_TRY(is_torch(path, names, n, &own));
    if (n && !force)
        rc = tt_fail(TT_EUSAGE, "'%s' exists and is not empty\nhelp: %s", path,
                     own ? "--force replaces it" : "choose another folder");
    else if (n && !own)
        rc = tt_fail(TT_EUSAGE, "'%s' is not the output of an earlier run: --force will not replace it", path);
out:
    tt_names_free(names, n);
    return rc;
}

static const int64_t shard_bytes_default = 5000000000;

struct job {
    const struct tt_consolidate *options;
    int n; /* sources: one, or those of a mean */
    struct tt_source **source;
    struct tt_weights *of;   /* the weights of each */
    double *share;           /* of each in the mean */
    struct tt_model **model; /* of each; NULL for titan's format */
    struct tt_weights mean;  /* of several sources */
    struct tt_weights *weights;
    struct tt_weights_file file;
    int n_files;
    struct tt_output output;
    int64_t bytes; /* of the files */
};

/* Assigns the tensors, in order, to files of at most the given size (or with one larger tensor). */
static void assign_files(struct job *job)
{
    int64_t most = job->options->max_shard_bytes > 0 ? job->options->max_shard_bytes : shard_bytes_default, used = 0;
    bool one_file = job->options->format == TT_FORMAT_PEFT; /* PEFT reads no others */
    int n = job->weights->n;

    job->file = (struct tt_weights_file){.weights = job->weights,
                                         .dtype = tt_calloc((size_t)n, sizeof(enum tt_dtype)),
                                         .of_file = tt_calloc((size_t)n, sizeof(int)),
                                         .what = job->n > 1      ? "averaging"
                                                 : job->model[0] ? "exporting"
                                                                 : "consolidating"};
    for (int i = 0; i < n; i++) {
        const struct tt_weight *w = &job->weights->weight[i];
        int64_t bytes;

        job->file.dtype[i] = tt_weight_dtype(w, job->options->has_dtype, job->options->dtype);
        bytes = tt_weight_bytes(w, job->file.dtype[i]);
        if (job->n_files == 0 || (!one_file && used > 0 && used + bytes > most)) {
            job->n_files++;
            used = 0;
        }
        job->file.of_file[i] = job->n_files - 1;
        used += bytes;
        job->file.total += bytes;
    }
}

static char *file_name(const struct job *job, int file)
{
    if (job->options->format == TT_FORMAT_PEFT)
        return tt_strdup("adapter_model.safetensors");
    return job->n_files == 1 ? tt_strdup("model.safetensors")
                             : tt_format("model-%05d-of-%05d.safetensors", file + 1, job->n_files);
}

static int write_file(struct job *job, int number)
{
    char *name = file_name(job, number), *path = tt_format("%s/%s", job->output.folder, name);
    struct tt_weights_written written = {0};
    int rc = tt_weights_write(&job->file, number, path, NULL, false, &written);

    job->bytes += written.bytes;
    tt_weights_written_release(&written);
    tt_free(name);
    tt_free(path);
    return rc;
}

/* model.safetensors.index.json, which says where each tensor is when there are several files. */
static int write_index(const struct job *job)
{
    json_t *map = json_object(), *index;
    char *text;
    int rc;

    for (int i = 0; i < job->weights->n; i++) {
        char *name = file_name(job, job->file.of_file[i]);

        (void)json_object_set_new(map, job->weights->weight[i].name, json_string(name));
        tt_free(name);
    }
    index = json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)job->file.total, "weight_map", map);
    text = json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS);
    rc = tt_output_put(&job->output, "model.safetensors.index.json", text, strlen(text));
    free(text);
    json_decref(index);
    return rc;
}

/* All names, for the assets of a step. Other folders may have any content, so there only known files are copied. */
static bool any_name(const char *name)
{
    (void)name;
    return true;
}

static int write_around(struct job *job)
{
    char *assets = tt_source_assets(job->source[0]);
    int rc = 0;

    if (job->options->format == TT_FORMAT_PEFT)
        rc = tt_hf_adapter_config(&job->output, job->source[0], job->model[0]);
    else if (job->options->format == TT_FORMAT_HF)
        rc = tt_hf_folder_finish(&job->output, job->source[0], job->model[0], job->file.dtype[0]);
    else if (job->source[0]->kind == TT_PATH_STEP)
        rc = tt_output_copy(&job->output, assets, "", any_name);
    else if (job->options->format == TT_FORMAT_DCP && job->model[0])
        rc = tt_hf_folder_keep(&job->output, job->source[0], job->model[0], "");
    tt_free(assets);
    return rc;
}

static int write_safetensors(struct job *job)
{
    int rc = 0;

    for (int i = 0; i < job->n_files; i++)
        TT_TRY(write_file(job, i));
    if (job->n_files > 1)
        rc = write_index(job);
out:
    return rc;
}

static int write_dcp(struct job *job)
{
    const struct tt_dcp_export export = {.folder = job->output.folder,
                                         .source = job->source[0],
                                         .model = job->model[0],
                                         .file = &job->file,
                                         .with_state = job->options->with_state};

    return tt_dcp_export(&export, &job->bytes, &job->n_files);
}

static int write_all(struct job *job)
{
    int rc = 0;

    TT_TRY(job->options->format == TT_FORMAT_DCP ? write_dcp(job) : write_safetensors(job));
    TT_TRY(tt_weights_check(job->weights));
    TT_TRY(write_around(job));
    TT_TRY(tt_output_publish(&job->output));
out:
    return rc;
}

/* One file, which is not a folder that appears, but is written in the same careful way. */
static int write_gguf(struct job *job)
{
    const struct tt_gguf_export export = {.path = job->options->destination,
                                          .source = job->source[0],
                                          .model = job->model[0],
                                          .weights = job->weights,
                                          .type = job->options->type};

    job->n_files = 1;
    return tt_gguf_write(&export, &job->bytes);
}

static int write_folder(struct job *job)
{
    int64_t state_bytes = 0;
    int rc = 0;

    assign_files(job);
    if (job->options->with_state) {
        (void)tt_manifest_group_size(&job->source[0]->manifest, TT_CKPT_OPTIM, &state_bytes);
        job->file.total += state_bytes;
    }
    TT_TRY(tt_output_begin(job->options->destination, job->file.total, &job->output));
    rc = write_all(job);
out:
    return rc;
}

/* Opens source k. The destination must not replace it. */
static int open_source(struct job *job, int k, const char *path)
{
    int rc = tt_source_find(path, &job->source[k]);

    if (rc == 0)
        job->source[k]->leave_out = &job->options->leave_out;
    return rc < 0 ? rc : tt_output_check_apart(job->options->destination, job->source[k]->path);
}

static int open_weights(struct job *job, int k)
{
    const struct tt_told *told = &job->options->told;
    struct tt_source *source = job->source[k];
    int rc = 0;

    if (tt_source_is_gguf(source)) /* its tensors may be blocks, which no other format has */
        return tt_fail(TT_EUSAGE,
                       "'%s' is already a GGUF file\nhelp: titan ckpt convert makes a titan checkpoint of it",
                       source->path);
    TT_TRY(tt_assets_check(source->path, &source->manifest)); /* they are copied too */
    tt_source_note_beside(source);
    TT_TRY(tt_source_check_forms(source, job->options->with_state));
    if (job->options->averages)
        TT_TRY(tt_manifest_use_averages(&source->manifest, source->path));
    if (job->options->format == TT_FORMAT_HF) {
        TT_TRY(tt_source_model(source, told, &job->model[k]));
        TT_TRY(tt_weights_to_hf(source, job->model[k], &job->of[k]));
    } else if (job->options->format == TT_FORMAT_GGUF) {
        TT_TRY(tt_source_model(source, told, &job->model[k]));
        TT_TRY(tt_weights_to_gguf(source, job->model[k], &job->of[k]));
    } else if (job->options->format == TT_FORMAT_PEFT) {
        TT_TRY(tt_source_model(source, told, &job->model[k]));
        TT_TRY(tt_weights_of_adapters(source, job->model[k], &job->of[k]));
    } else if (told->model || told->assets) {
        rc = tt_fail(TT_EUSAGE, "--%s names the model of an export\nhelp: add --format hf, or use titan ckpt convert",
                     told->assets ? "assets" : "model");
        goto out;
    } else if (job->options->format == TT_FORMAT_DCP) {
        TT_TRY(tt_dcp_export_open(source, &job->model[k], &job->of[k]));
    } else {
        tt_weights_stored(source, TT_CKPT_MODEL, &job->of[k]);
    }
    if (job->of[k].n == 0)
        rc = tt_fail(TT_EDATA, "'%s' has no model tensors", source->path);
out:
    return rc;
}

/* Merged weights have a mean, as with --format hf and gguf. */
static int check_adapters(const struct job *job)
{
    for (int k = 0; k < job->n && job->options->format != TT_FORMAT_HF && job->options->format != TT_FORMAT_GGUF; k++) {
        const struct tt_weights *of = &job->of[k];

        for (int i = 0; i < of->n; i++)
            if (tt_lora_is_name(of->weight[i].name))
                return tt_fail(TT_EDATA,
                               "'%s' has low-rank adapters, for instance '%s': the means of the two matrices of an "
                               "adapter are not an adapter whose product is the mean\n"
                               "help: add --format hf, which merges the adapters into the weights first",
                               job->source[k]->path, of->weight[i].name);
    }
    return 0;
}

static int open_all(struct job *job)
{
    int rc = 0;

    for (int k = 0; k < job->n; k++) {
        TT_TRY(open_source(job, k, k ? job->options->more[k - 1] : job->options->source));
        TT_TRY(open_weights(job, k));
        job->share[k] = job->options->share ? job->options->share[k] : 1.0;
    }
    job->weights = &job->of[0];
    if (job->n > 1) {
        TT_TRY(check_adapters(job));
        TT_TRY(tt_weights_mean(job->of, job->share, job->n, &job->mean));
        job->weights = &job->mean;
    }
out:
    return rc;
}

static void release(struct job *job)
{
    tt_output_abandon(&job->output); /* does nothing once it is published */
    tt_weights_release(&job->mean);
    for (int k = 0; k < job->n; k++) {
        tt_weights_release(&job->of[k]);
        tt_model_free(job->model[k]);
        tt_source_free(job->source[k]);
    }
    tt_free(job->of);
    tt_free(job->model);
    tt_free(job->source);
    tt_free(job->share);
    tt_free(job->file.dtype);
    tt_free(job->file.of_file);
}

static int average(const struct tt_consolidate *options, struct tt_consolidated *ret_result)
{
    size_t n = 1 + (size_t)options->n_more;
    struct job job = {.options = options,
                      .output.lock_fd = -1,
                      .n = (int)n,
                      .source = tt_calloc(n, sizeof(struct tt_source *)),
                      .of = tt_calloc(n, sizeof(struct tt_weights)),
                      .share = tt_calloc(n, sizeof(double)),
                      .model = tt_calloc(n, sizeof(struct tt_model *))};
    bool gguf = options->format == TT_FORMAT_GGUF;
    int rc = 0;

    TT_TRY(gguf ? tt_gguf_check_output(options->destination, options->force)
                : tt_output_check(options->destination, options->force));
    TT_TRY(open_all(&job));
    TT_TRY(gguf ? write_gguf(&job) : write_folder(&job));
    *ret_result = (struct tt_consolidated){.bytes = job.bytes, .files = job.n_files, .tensors = job.weights->n};
    (void)snprintf(ret_result->source, sizeof ret_result->source, "%s", job.source[0]->path);
out:
    for (int k = 0; k < job.n; k++)
        rc = tt_source_explain(rc, job.source[k]);
    release(&job);
    return rc;
}

int tt_ckpt_average(const struct tt_consolidate *options, struct tt_consolidated *ret_result)
{
    int tries = 0, rc;
    bool again;

    do {
        rc = average(options, ret_result);
        again = tt_step_try_again(rc, options->source, &tries);
        for (int k = 0; k < options->n_more && again; k++)
            again = tt_step_try_again(rc, options->more[k], &tries);
    } while (again);
    return rc;
}

int tt_ckpt_consolidate(const struct tt_consolidate *options, struct tt_consolidated *ret_result)
{
    return tt_ckpt_average(options, ret_result); /* of one */
}
