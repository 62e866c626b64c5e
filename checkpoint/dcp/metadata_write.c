/* SPDX-License-Identifier: MIT
 *
 * PyTorch's Metadata object as a pickle. Source: torch/distributed/checkpoint/metadata.py. TensorProperties has five
 * members, as before PyTorch 2.6; newer versions read these too.
 */
#include "checkpoint/dcp/metadata_write.h"

#include <string.h>

#include "checkpoint/dcp/item_write.h"
#include "checkpoint/dcp/pickler.h"
#include "core/base/mem.h"

static const char module[] = "torch.distributed.checkpoint.metadata";

/* Begins an object whose state is a dict. */
static void begin_object(struct tt_pickler *p, const char *of, const char *class)
{
    tt_pickler_class(p, of, class);
    tt_pickler_add(p, TT_PICKLER_EMPTY_TUPLE);
    tt_pickler_add(p, TT_PICKLER_OBJECT);
    tt_pickler_add(p, TT_PICKLER_DICT);
    tt_pickler_add(p, TT_PICKLER_MARK);
}

static void end_object(struct tt_pickler *p)
{
    tt_pickler_add(p, TT_PICKLER_SETITEMS);
    tt_pickler_add(p, TT_PICKLER_BUILD);
}

static void begin_dict(struct tt_pickler *p, const char *name)
{
    tt_pickler_text(p, name);
    tt_pickler_add(p, TT_PICKLER_DICT);
    tt_pickler_add(p, TT_PICKLER_MARK);
}

/* TensorProperties: (dtype, layout, requires_grad, memory format, pin_memory) */
static void add_properties(struct tt_pickler *p, enum tt_dtype dtype)
{
    static const int64_t contiguous = 0;

    tt_pickler_class(p, module, "TensorProperties");
    tt_pickler_add(p, TT_PICKLER_EMPTY_TUPLE);
    tt_pickler_add(p, TT_PICKLER_OBJECT);
    tt_pickler_add(p, TT_PICKLER_MARK);
    tt_pickler_class(p, "torch", tt_dcp_dtype_name(dtype));
    tt_pickler_class(p, "torch.serialization", "_get_layout");
    tt_pickler_add(p, TT_PICKLER_MARK);
    tt_pickler_text(p, "torch.strided");
    tt_pickler_add(p, TT_PICKLER_TUPLE);
    tt_pickler_add(p, TT_PICKLER_CALL);
    tt_pickler_bool(p, false);
    tt_pickler_class(p, module, "_MEM_FORMAT_ENCODING");
    tt_pickler_tuple(p, &contiguous, 1);
    tt_pickler_add(p, TT_PICKLER_CALL);
    tt_pickler_bool(p, false);
    tt_pickler_add(p, TT_PICKLER_TUPLE);
    tt_pickler_add(p, TT_PICKLER_BUILD);
}

static void add_tensor(struct tt_pickler *p, const struct tt_dcp_entry *entry)
{
    begin_object(p, module, "TensorStorageMetadata");
    tt_pickler_text(p, "properties");
    add_properties(p, entry->dtype);
    tt_pickler_text(p, "size");
    tt_pickler_sizes(p, entry->shape, entry->ndim);
    tt_pickler_text(p, "chunks");
    tt_pickler_add(p, TT_PICKLER_LIST);
    tt_pickler_add(p, TT_PICKLER_MARK);
    for (int i = 0; i < entry->n; i++) {
        begin_object(p, module, "ChunkStorageMetadata");
        tt_pickler_text(p, "offsets");
        tt_pickler_sizes(p, entry->piece[i].box.offset, entry->ndim);
        tt_pickler_text(p, "sizes");
        tt_pickler_sizes(p, entry->piece[i].box.shape, entry->ndim);
        end_object(p);
    }
    tt_pickler_add(p, TT_PICKLER_APPENDS);
    end_object(p);
}

static void add_what(struct tt_pickler *p, const struct tt_dcp_entry *entry)
{
    tt_pickler_text(p, entry->key);
    if (entry->is_tensor) {
        add_tensor(p, entry);
    } else {
        tt_pickler_class(p, module, "BytesStorageMetadata");
        tt_pickler_add(p, TT_PICKLER_EMPTY_TUPLE);
        tt_pickler_add(p, TT_PICKLER_OBJECT);
    }
}

/* ("optimizer", "state.norm.weight.exp_avg"), or ("norm.weight",) */
static void add_path(struct tt_pickler *p, const struct tt_dcp_entry *entry)
{
    tt_pickler_text(p, entry->key);
    tt_pickler_add(p, TT_PICKLER_MARK);
    if (entry->leaf) {
        char *root = tt_strndup(entry->key, entry->leaf - 1);

        tt_pickler_text(p, root);
        tt_free(root);
    }
    tt_pickler_text(p, entry->key + entry->leaf);
    tt_pickler_add(p, TT_PICKLER_TUPLE);
}

/* MetadataIndex: _StorageInfo */
static void add_place(struct tt_pickler *p, const struct tt_dcp_metadata *m, const struct tt_dcp_entry *entry, int i)
{
    begin_object(p, module, "MetadataIndex");
    tt_pickler_text(p, "fqn");
    tt_pickler_text(p, entry->key);
    tt_pickler_text(p, "index");
    if (entry->is_tensor) {
        tt_pickler_int(p, i);
        tt_pickler_text(p, "offset");
        tt_pickler_sizes(p, entry->piece[i].box.offset, entry->ndim);
    } else {
        tt_pickler_add(p, TT_PICKLER_NONE);
    }
    end_object(p);
    begin_object(p, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
    tt_pickler_text(p, "relative_path");
    tt_pickler_text(p, m->file[entry->piece[i].file].name);
    tt_pickler_text(p, "offset");
    tt_pickler_int(p, entry->piece[i].begin);
    tt_pickler_text(p, "length");
    tt_pickler_int(p, entry->piece[i].bytes);
    end_object(p);
}

/* StorageMeta, in whose save_id PyTorch has a random word */
static void add_origin(struct tt_pickler *p)
{
    begin_object(p, module, "StorageMeta");
    tt_pickler_text(p, "checkpoint_id");
    tt_pickler_add(p, TT_PICKLER_NONE);
    tt_pickler_text(p, "save_id");
    tt_pickler_text(p, "titan");
    tt_pickler_text(p, "load_id");
    tt_pickler_add(p, TT_PICKLER_NONE);
    tt_pickler_text(p, "modules");
    tt_pickler_add(p, TT_PICKLER_LIST);
    end_object(p);
}

void tt_dcp_metadata_text(const struct tt_dcp_metadata *metadata, struct tt_text *text)
{
    struct tt_pickler p = {0};

    tt_pickler_begin(&p);
    begin_object(&p, module, "Metadata");
    begin_dict(&p, "state_dict_metadata");
    for (int i = 0; i < metadata->n; i++)
        add_what(&p, &metadata->entry[i]);
    tt_pickler_add(&p, TT_PICKLER_SETITEMS);
    begin_dict(&p, "planner_data");
    for (int i = 0; i < metadata->n; i++)
        add_path(&p, &metadata->entry[i]);
    tt_pickler_add(&p, TT_PICKLER_SETITEMS);
    begin_dict(&p, "storage_data");
    for (int i = 0; i < metadata->n; i++)
        for (int k = 0; k < metadata->entry[i].n; k++)
            add_place(&p, metadata, &metadata->entry[i], k);
    tt_pickler_add(&p, TT_PICKLER_SETITEMS);
    tt_pickler_text(&p, "storage_meta");
    add_origin(&p);
    tt_pickler_text(&p, "version");
    tt_pickler_text(&p, "1.0.0");
    end_object(&p);
    tt_pickler_add(&p, TT_PICKLER_STOP);
    tt_text_add_bytes(text, p.text.text, p.text.size);
    tt_pickler_release(&p);
}
