/* SPDX-License-Identifier: MIT
 *
 * A PyTorch checkpoint as a manifest. Tensors are stored packed and uncompressed, so the bytes of a piece are a stretch
 * of a file, as in safetensors files; after this, nothing depends on PyTorch's format.
 */
#include "checkpoint/dcp/scan.h"

#include <inttypes.h>
#include <string.h>

#include <unistd.h>

#include "checkpoint/dcp/item.h"
#include "checkpoint/dcp/metadata.h"
#include "checkpoint/dcp/names.h"
#include "core/base/mem.h"
#include "core/os/file.h"

enum { OPEN_MOST = 64 };

struct scan {
    const char *folder;
    const char *kind; /* of a fault */
    struct tt_dcp_metadata metadata;
    char **path; /* of each file */
    int *fd;     /* -1: not open */
    int n_open;
    json_t *other, *beside, *unread;
    struct tt_manifest manifest;
};

static void close_files(struct scan *s)
{
    for (int i = 0; i < s->metadata.n_files; i++) {
        if (s->fd[i] >= 0)
            (void)close(s->fd[i]);
        s->fd[i] = -1;
    }
    s->n_open = 0;
}

static int add_files(struct scan *s)
{
    const struct tt_dcp_metadata *m = &s->metadata;
    int rc = 0;

    s->path = tt_calloc((size_t)m->n_files + 1, sizeof *s->path);
    s->fd = tt_calloc((size_t)m->n_files + 1, sizeof *s->fd);
    for (int i = 0; i < m->n_files; i++)
        s->fd[i] = -1;
    for (int i = 0; i < m->n_files; i++) {
        int64_t wanted = m->file[i].bytes;
        struct tt_path_info info;

        s->path[i] = tt_format("%s/%s", s->folder, m->file[i].name);
        TT_TRY(tt_path_look(s->path[i], &info));
        s->kind = info.kind == TT_FILE_NONE ? "missing" : info.bytes < wanted ? "truncated" : "trailing";
        if (info.kind == TT_FILE_NONE)
            return tt_fail(TT_EDATA, "missing file '%s'", s->path[i]);
        if (info.bytes != wanted)
            return tt_fail(TT_EDATA, "'%s' %s: it has %" PRId64 " bytes, %" PRId64 " expected", s->path[i],
                           info.bytes < wanted ? "is truncated" : "has bytes too many", info.bytes, wanted);
        (void)tt_manifest_add_file(&s->manifest, m->file[i].name, info.bytes);
    }
    s->kind = "header";
out:
    return rc;
}

static int open_piece(struct scan *s, const struct tt_dcp_piece *piece, struct tt_stretch *ret_archive)
{
    int64_t unused = 0;
    int rc = 0;

    if (s->fd[piece->file] < 0) {
        if (s->n_open >= OPEN_MOST)
            close_files(s);
        TT_TRY(tt_file_open(s->path[piece->file], &s->fd[piece->file], &unused));
        s->n_open++;
    }
    *ret_archive = (struct tt_stretch){
        .path = s->path[piece->file], .fd = s->fd[piece->file], .begin = piece->begin, .bytes = piece->bytes};
out:
    return rc;
}

static void add_unread(struct scan *s, const struct tt_dcp_entry *entry, const struct tt_dcp_name *name,
                       const char *why)
{
    const char *group = name->role == TT_DCP_TENSOR ? tt_ckpt_group_name(name->group) : "other";

    (void)json_array_append_new(s->unread, json_pack("{s:o, s:s, s:o}", "key", tt_json_string(entry->key), "group",
                                                     group, "why", tt_json_string(why)));
}

/* ret_unread: why it cannot be read, or NULL. */
static int add_chunk(struct scan *s, const struct tt_dcp_entry *entry, const struct tt_dcp_piece *piece,
                     struct tt_manifest_tensor *tensor, const char **ret_unread)
{
    struct tt_dcp_tensor found = {0};
    struct tt_stretch archive;
    struct tt_box box;
    char a[128], b[128];
    int rc = 0;

    TT_TRY(open_piece(s, piece, &archive));
    TT_TRY(tt_dcp_tensor_find(&archive, entry->key, &found));
    if ((*ret_unread = found.unread))
        goto out;
    box = tt_box_whole(found.ndim, found.shape);
    memcpy(box.offset, piece->box.offset, sizeof box.offset);
    if (found.dtype != entry->dtype || !tt_box_equal(&box, &piece->box)) {
        rc = tt_fail(TT_EDATA, "'%s': the piece of '%s' is %s%s, but " TT_DCP_METADATA " says %s%s", archive.path,
                     entry->key, tt_dtype_name(found.dtype), tt_box_text(a, sizeof a, &box),
                     tt_dtype_name(entry->dtype), tt_box_text(b, sizeof b, &piece->box));
        goto out;
    }
    TT_PUSH(tensor->chunk, tensor->n_chunks, tensor->cap_chunks) = (struct tt_manifest_chunk){
        piece->file,   piece->box, piece->begin + found.begin, piece->begin + found.end, found.crc,
        found.has_crc, found.order};
out:
    return rc;
}

static int add_tensor(struct scan *s, const struct tt_dcp_entry *entry, const struct tt_dcp_name *name)
{
    struct tt_manifest_tensor *tensor;
    const char *unread = NULL;
    int rc = 0;

    tensor = tt_manifest_add_tensor(&s->manifest, name->group, name->name, entry->dtype, entry->ndim, entry->shape);
    for (int k = 0; k < entry->n && !unread; k++)
        TT_TRY(add_chunk(s, entry, &entry->piece[k], tensor, &unread));
    if (unread) {
        add_unread(s, entry, name, unread);
        tt_manifest_remove(&s->manifest, tensor);
    }
out:
    return rc;
}

/* A count, such as that of steps; the optimizer has one for every parameter, of which the largest counts. */
static int add_number(struct scan *s, const struct tt_dcp_entry *entry, enum tt_dcp_role role)
{
    static const char *const key[] = {[TT_DCP_STEP] = "step",
                                      [TT_DCP_TOKENS] = "ntokens_seen",
                                      [TT_DCP_OPTIMIZER_STEP] = "optimizer_step",
                                      [TT_DCP_LR_STEP] = "lr_step"};
    int64_t before = (int64_t)json_integer_value(json_object_get(s->manifest.meta, key[role]));
    struct tt_stretch archive;
    double number = 0.0;
    int rc = 0;

    if (entry->n != 1)
        return tt_fail(TT_EDATA, "'%s/" TT_DCP_METADATA "': '%s' should be one number", s->folder, entry->key);
    TT_TRY(open_piece(s, &entry->piece[0], &archive));
    TT_TRY(tt_dcp_number_read(&archive, entry->key, &number));
    if (!(number >= 0.0 && number < 0x1p61) || number != (double)(int64_t)number)
        return tt_fail(TT_EDATA, "'%s': '%s' is %g, wanted a number of steps or tokens", archive.path, entry->key,
                       number);
    if ((int64_t)number >= before)
        (void)json_object_set_new(s->manifest.meta, key[role], json_integer((json_int_t)number));
out:
    return rc;
}

static int add_entries(struct scan *s)
{
    struct tt_dcp_name *name = tt_dcp_names_of(&s->metadata);
    int rc = 0;

    for (int i = 0; i < s->metadata.n; i++) {
        const struct tt_dcp_entry *entry = &s->metadata.entry[i];

        if (entry->unread)
            add_unread(s, entry, &name[i], entry->unread);
        else if (name[i].role == TT_DCP_TENSOR)
            TT_TRY(add_tensor(s, entry, &name[i]));
        else if (name[i].role == TT_DCP_OTHER || name[i].role == TT_DCP_BESIDE)
            (void)json_array_append_new(s->other, tt_json_string(entry->key));
        else
            TT_TRY(add_number(s, entry, name[i].role));
        if (name[i].role == TT_DCP_BESIDE)
            (void)json_array_append_new(s->beside, tt_json_string(entry->key));
    }
out:
    tt_dcp_names_free(name, s->metadata.n);
    return rc;
}

/* What the checkpoint does not say follows from its steps: torchtitan 0.1 did not count tokens, and optimizers without
 * a step of their own have made one update a step. Where model and optimizer are all that was saved, the steps are the
 * updates. */
static void complete(json_t *meta)
{
    json_t *step = json_object_get(meta, "step"), *updates = json_object_get(meta, "optimizer_step");
    json_t *tokens = json_object_get(meta, "ntokens_seen");

    if (!step && json_integer_value(updates) > 0)
        (void)json_object_set(meta, "step", step = updates);
    if (!step)
        return;
    if (!tokens)
        (void)json_object_set_new(meta, "ntokens_seen", json_integer(0));
    else
        (void)json_object_set(meta, "tokens", tokens);
    if (!json_object_get(meta, "optimizer_step"))
        (void)json_object_set(meta, "optimizer_step", step);
    if (!json_object_get(meta, "lr_step"))
        (void)json_object_set(meta, "lr_step", step);
}

/* Other names may become the same one, and then a reader would not know which is meant. */
static int check_names(const struct scan *s)
{
    const struct tt_manifest *m = &s->manifest;

    for (int i = 1; i < m->n_tensors; i++)
        if (m->tensor[i].group == m->tensor[i - 1].group && strcmp(m->tensor[i].name, m->tensor[i - 1].name) == 0)
            return tt_fail(TT_EDATA, "'%s' has two tensors for '%s'", s->folder, m->tensor[i].name);
    return 0;
}

int tt_dcp_scan(const char *path, struct tt_manifest *ret_manifest, const char **ret_kind)
{
    struct scan s = {.folder = path,
                     .kind = "manifest",
                     .other = json_array(),
                     .beside = json_array(),
                     .unread = json_array(),
                     .manifest.meta = json_object()};
    char *metadata = tt_format("%s/" TT_DCP_METADATA, path), *bytes = NULL;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_file_read(metadata, &bytes, &size));
    TT_TRY(tt_dcp_metadata_parse(metadata, bytes, size, &s.metadata));
    TT_TRY(add_files(&s));
    TT_TRY(add_entries(&s));
    tt_manifest_sort(&s.manifest);
    TT_TRY(check_names(&s));
    TT_TRY(tt_manifest_check_totals(&s.manifest, path));
    complete(s.manifest.meta);
    (void)json_object_set_new(s.manifest.meta, "torch",
                              json_pack("{s:O, s:O, s:O}", "other", s.other, "beside", s.beside, "unread", s.unread));
    *ret_manifest = s.manifest;
    s.manifest = (struct tt_manifest){0};
out:
    if (rc < 0 && ret_kind)
        *ret_kind = s.kind;
    if (s.fd)
        close_files(&s);
    for (int i = 0; s.path && i < s.metadata.n_files; i++)
        tt_free(s.path[i]);
    tt_free(s.path);
    tt_free(s.fd);
    json_decref(s.other);
    json_decref(s.beside);
    json_decref(s.unread);
    tt_manifest_release(&s.manifest);
    tt_dcp_metadata_release(&s.metadata);
    tt_free(bytes);
    tt_free(metadata);
    return rc;
}
