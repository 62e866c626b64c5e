/* SPDX-License-Identifier: MIT
 *
 * Checkpoints of PyTorch's torch.distributed.checkpoint: the unpickler, zip archives, names, and a folder that PyTorch
 * has written (tests/interop/torch_dcp, made by write_dcp_with_torch.py).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/dcp/item.h"
#include "checkpoint/dcp/metadata.h"
#include "checkpoint/dcp/pickle.h"
#include "checkpoint/dcp/scan.h"
#include "checkpoint/export/export.h"
#include "checkpoint/load/load.h"
#include "checkpoint/read/source.h"
#include "ckpt_support.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "parallel/layout/placement.h"
#include "tests/help/threads.h"

static char golden[] = TT_SOURCE_DIR "/tests/interop/torch_dcp";

/* --- the unpickler --- */

/* Reads a copy of the exact size, so that a sanitizer sees a read beyond it. */
static int read_pickle(const char *bytes, size_t size, struct tt_pickle *ret_pickle, char **ret_copy)
{
    *ret_copy = tt_calloc(size + !size, 1);
    memcpy(*ret_copy, bytes, size);
    return tt_pickle_read("x.pkl", *ret_copy, size, ret_pickle);
}

static void refuse_pickle(const char *bytes, size_t size, const char *message)
{
    struct tt_pickle pickle = {0};
    char *copy = NULL;

    if (read_pickle(bytes, size, &pickle, &copy) != TT_EDATA)
        fail_msg("a pickle that should be refused with '%s' was read", message);
    if (!strstr(tt_error_message(), message))
        fail_msg("'%s' does not say '%s'", tt_error_message(), message);
    tt_free(copy);
}

#define REFUSE(bytes, message) refuse_pickle((bytes), sizeof(bytes) - 1, (message))

static void what_is_not_part_of_a_checkpoint_is_refused_by_name(void **state)
{
    REFUSE("\x80\x02"
           "cos\nsystem\n(X\x02\0\0\0idtR.",
           "'os.system'");
    REFUSE("\x80\x02"
           "cposix\nsystem\n(X\x02\0\0\0idtR.",
           "'posix.system'");
    REFUSE("\x80\x04\x8c\x08"
           "builtins\x8c\x04"
           "eval\x93\x8c\x01"
           "1\x85R.",
           "'builtins.eval'");
    REFUSE("\x80\x04\x8c\x05torch\x8c\x04load\x93.", "'torch.load'");
    REFUSE("\x80\x04\x8c\x0dtorch.storage\x8c\x10_load_from_bytes\x93.", "'torch.storage._load_from_bytes'");
    REFUSE("ctorch\n\x1b[2Jfloat32\n.", "'torch.\\u001b[2Jfloat32'"); /* control characters do not reach a terminal */
    REFUSE("(S'id'\nios\nsystem\n.", "opcode STRING");
    REFUSE("(ios\nsystem\n.", "opcode INST");
    REFUSE("\x80\x02"
           "(cos\nsystem\no.",
           "'os.system'");
    REFUSE("\x82\x01.", "opcode EXT1");
    REFUSE("\xff", "opcode ? (0xff, at byte 0)");
}

static void broken_pickles_are_refused(void **state)
{
    REFUSE("", "is truncated");
    REFUSE("N", "is truncated");
    REFUSE(".", "empty stack");
    REFUSE("0.", "empty stack");
    REFUSE("(0.", "empty stack");
    REFUSE("t.", "mark that it has not set");
    REFUSE("N\x85\x86.", "empty stack");
    REFUSE("X\xff\xff\xff\xff"
           "a.",
           "is truncated");
    REFUSE("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
           "a.",
           "is truncated");
    REFUSE("h\x00.", "refers to a value that it has not stored");
    REFUSE("Nr\xff\xff\xff\xff.", "numbers its values out of order");
    REFUSE("NN\x86N\x85R.", "not a class");
    REFUSE("NNb.", "not an object");
    REFUSE("]NNs.", "takes none");
    REFUSE("}(NNNu.", "takes none");
    REFUSE("\x8a\x09"
           "123456789.",
           "more than 64 bits");
    REFUSE("ctorch\nfloat32", "is truncated");
}

static void numbers_and_containers_are_read(void **state)
{
    /* pickle.dumps([1, 300, -2, 70000, 2**40, -1, 1.5, None, True, ("a", b"b"), {"k": 3}], 4), as CPython writes it */
    static const char bytes[] =
        "\x80\x04\x95\x3a\0\0\0\0\0\0\0]\x94(K\x01M,\x01J\xfe\xff\xff\xffJp\x11\x01\0\x8a\x06\0\0\0\0\0"
        "\x01J\xff\xff\xff\xffG?\xf8\0\0\0\0\0\0N\x88\x8c\x01"
        "a\x94"
        "C\x01"
        "b\x94\x86\x94}\x94"
        "\x8c\x01k\x94K\x03se.";
    static const int64_t wanted[] = {1, 300, -2, 70000, (int64_t)1 << 40, -1};
    struct tt_pickle pickle = {0};
    char *copy = NULL, *text;

    if (read_pickle(bytes, sizeof bytes - 1, &pickle, &copy) < 0)
        fail_msg("%s", tt_error_message());
    assert_int_equal(pickle.root->n, 11);
    for (int i = 0; i < 6; i++)
        assert_int_equal(tt_pickle_item(pickle.root, i)->number, wanted[i]);
    assert_true(tt_pickle_item(pickle.root, 6)->real == 1.5);
    assert_int_equal(tt_pickle_item(pickle.root, 7)->kind, TT_PICKLE_NONE);
    assert_int_equal(tt_pickle_item(pickle.root, 8)->number, 1);
    text = tt_pickle_text(tt_pickle_item(tt_pickle_item(pickle.root, 9), 0));
    assert_string_equal(text, "a");
    assert_int_equal(tt_pickle_member(tt_pickle_item(pickle.root, 10), "k")->number, 3);
    assert_null(tt_pickle_member(tt_pickle_item(pickle.root, 10), "j"));
    tt_free(text);
    tt_pickle_release(&pickle);
    tt_free(copy);
}

/* --- what titan writes --- */

static struct tt_text whole_archive(struct tt_archive *archive, const void *data, size_t size)
{
    struct tt_text all = {0};

    tt_archive_end(archive, tt_crc32(0, data, size));
    tt_text_add_bytes(&all, archive->head.text, archive->head.size);
    tt_text_add_bytes(&all, data, size);
    tt_text_add_bytes(&all, archive->tail.text, archive->tail.size);
    tt_archive_release(archive);
    return all;
}

static void a_tensor_is_read_as_it_was_written(void **state)
{
    static const int64_t shape[] = {2, 300};
    enum { BYTES = 2 * 300 * 2 };
    struct tt_archive archive = {0};
    struct tt_dcp_tensor tensor = {0};
    char data[BYTES];
    struct tt_text all;
    struct tt_stretch stretch;

    memset(data, 7, sizeof data);
    assert_int_equal(tt_dcp_item_tensor("w", TT_BF16, 2, shape, &archive), 0);
    all = whole_archive(&archive, data, sizeof data);
    stretch = (struct tt_stretch){.path = "x", .fd = -1, .memory = all.text, .bytes = (int64_t)all.size};
    if (tt_dcp_tensor_find(&stretch, "w", &tensor) < 0)
        fail_msg("%s", tt_error_message());
    assert_int_equal(tensor.dtype, TT_BF16);
    assert_int_equal(tensor.ndim, 2);
    assert_int_equal(tensor.shape[1], 300);
    assert_int_equal(tensor.begin % 64, 0);
    assert_memory_equal(all.text + tensor.begin, data, BYTES);
    assert_true(tensor.has_crc);
    assert_int_equal(tensor.crc, tt_crc32(0, data, sizeof data));
    assert_int_equal(tt_dcp_item_tensor("w", TT_F4, 2, shape, &archive), TT_EDATA);
    tt_text_release(&all);
}

/* The number that a pickler has pushed. */
static double read_again(struct tt_pickler *pickler)
{
    struct tt_archive archive = {0};
    double number = 0.5;
    struct tt_text all;

    tt_pickler_add(pickler, TT_PICKLER_STOP);
    tt_archive_begin(&pickler->text, 0, &archive);
    tt_pickler_release(pickler);
    all = whole_archive(&archive, "", 0);
    if (tt_dcp_number_read(&(struct tt_stretch){.path = "x", .memory = all.text, .bytes = (int64_t)all.size}, "n",
                           &number) < 0)
        fail_msg("%s", tt_error_message());
    tt_text_release(&all);
    return number;
}

static void numbers_are_read_as_they_were_written(void **state)
{
    static const double reals[] = {0.0, -1.5, 8e-4, 1e300};
    static const int64_t numbers[] = {0, 7, 255, 256, -1, 70000, INT32_MIN, (int64_t)1 << 40};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct tt_pickler pickler = {0};

        tt_pickler_begin(&pickler);
        tt_pickler_int(&pickler, numbers[i]);
        assert_true(read_again(&pickler) == (double)numbers[i]);
    }
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        struct tt_pickler pickler = {0};

        tt_pickler_begin(&pickler);
        tt_pickler_real(&pickler, reals[i]);
        assert_true(read_again(&pickler) == reals[i]);
    }
    for (int i = 0; i < 2; i++) {
        struct tt_pickler pickler = {0};

        tt_pickler_begin(&pickler);
        tt_pickler_bool(&pickler, i);
        assert_true(read_again(&pickler) == (double)i);
    }
}

/* PyTorch loads exactly these bytes, as test_interop.sh shows. */
static void a_folder_for_pytorch_has_the_bytes_that_it_has_loaded(void **state)
{
    static const struct {
        const char *name;
        uint32_t crc;
    } row[] = {{TT_DCP_METADATA, 0xcfc98285}, {"__0_0.distcp", 0xb1424861}, {"__0_1.distcp", 0x16046c68}};
    char *folder = test_folder(), *made = tt_format("%s/made", folder);
    const struct tt_copy options = {.source = golden, .destination = made, .convert = true, .format = TT_FORMAT_DCP};
    struct tt_copied result;

    if (tt_ckpt_copy(&options, &result) < 0)
        fail_msg("%s", tt_error_message());
    assert_int_equal(result.files, 2);
    assert_int_equal(result.tensors, 12);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char *path = tt_format("%s/%s", made, row[i].name), *bytes = NULL;
        size_t size = 0;

        if (tt_file_read(path, &bytes, &size) < 0)
            fail_msg("%s", tt_error_message());
        if (tt_crc32(0, bytes, size) != row[i].crc)
            fail_msg("%s has checksum %08x, %08x expected", row[i].name, tt_crc32(0, bytes, size), row[i].crc);
        tt_free(bytes);
        tt_free(path);
    }
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(made);
    tt_free(folder);
}

/* --- folders that PyTorch wrote --- */

static char *read_file(const char *name, size_t *ret_size)
{
    char *path = tt_format("%s/%s", golden, name), *bytes = NULL;

    if (tt_file_read(path, &bytes, ret_size) < 0)
        fail_msg("%s", tt_error_message());
    tt_free(path);
    return bytes;
}

static void metadata_that_ends_early_or_is_changed_is_refused_or_read(void **state)
{
    size_t size = 0;
    char *bytes = read_file(TT_DCP_METADATA, &size), *copy;
    struct tt_dcp_metadata metadata = {0};

    for (size_t n = 0; n < size; n += 23) {
        copy = tt_calloc(n + !n, 1);
        memcpy(copy, bytes, n);
        if (tt_dcp_metadata_parse("x", copy, n, &metadata) != TT_EDATA)
            fail_msg("the first %zu bytes of %zu were accepted", n, size);
        tt_free(copy);
    }
    for (size_t at = 0; at < size; at += 23) {
        bytes[at] = (char)(bytes[at] ^ 1 << at % 8);
        if (tt_dcp_metadata_parse("x", bytes, size, &metadata) == 0)
            tt_dcp_metadata_release(&metadata);
        bytes[at] = (char)(bytes[at] ^ 1 << at % 8);
    }
    tt_free(bytes);
}

/* --- metadata of one tensor "w" of one row, in two pieces: the second is empty, and last in its file --- */

static void add_word(struct tt_text *pickle, const char *word)
{
    tt_text_add(pickle, "X%c", (char)strlen(word));
    tt_text_add_bytes(pickle, "\0\0\0", 3);
    tt_text_add(pickle, "%s", word);
}

static void begin_object(struct tt_text *pickle, const char *class)
{
    tt_text_add(pickle, "ctorch.distributed.checkpoint.%s\n)\x81}(", class);
}

/* "name": (value,) */
static void add_size(struct tt_text *pickle, const char *name, int value)
{
    add_word(pickle, name);
    tt_text_add_bytes(pickle, (char[]){'K', (char)value, '\x85'}, 3);
}

static void add_count(struct tt_text *pickle, const char *name, int value)
{
    add_word(pickle, name);
    tt_text_add_bytes(pickle, (char[]){'K', (char)value}, 2);
}

static void add_chunk(struct tt_text *pickle, int begin, int rows)
{
    begin_object(pickle, "metadata\nChunkStorageMetadata");
    add_size(pickle, "offsets", begin);
    add_size(pickle, "sizes", rows);
    tt_text_add(pickle, "ub");
}

static void add_stored(struct tt_text *pickle, int row, const char *file, int begin, int bytes)
{
    begin_object(pickle, "metadata\nMetadataIndex");
    add_word(pickle, "fqn");
    add_word(pickle, "w");
    add_size(pickle, "offset", row);
    tt_text_add(pickle, "ub");
    begin_object(pickle, "filesystem\n_StorageInfo");
    add_word(pickle, "relative_path");
    add_word(pickle, file);
    add_count(pickle, "offset", begin);
    add_count(pickle, "length", bytes);
    tt_text_add(pickle, "ub");
}

static int read_two_pieces(bool twice, struct tt_dcp_metadata *ret_metadata)
{
    struct tt_text pickle = {0};
    int rc;

    tt_text_add_bytes(&pickle, "\x80\x02", 2);
    begin_object(&pickle, "metadata\nMetadata");
    add_word(&pickle, "state_dict_metadata");
    tt_text_add(&pickle, "}(");
    add_word(&pickle, "w");
    begin_object(&pickle, "metadata\nTensorStorageMetadata");
    add_size(&pickle, "size", 1);
    add_word(&pickle, "properties");
    tt_text_add(&pickle, "ctorch.distributed.checkpoint.metadata\nTensorProperties\n)\x81(ctorch\nfloat32\ntb");
    add_word(&pickle, "chunks");
    tt_text_add(&pickle, "](");
    add_chunk(&pickle, 0, 1);
    if (twice)
        add_chunk(&pickle, 0, 1);
    add_chunk(&pickle, 1, 0);
    tt_text_add(&pickle, "eubu"); /* ends the chunks, the tensor and the dictionary */
    add_word(&pickle, "storage_data");
    tt_text_add(&pickle, "}(");
    add_stored(&pickle, 0, "__1_0.distcp", 0, 100);
    add_stored(&pickle, 1, "__0_0.distcp", 50, 70);
    tt_text_add(&pickle, "uub.");
    rc = tt_dcp_metadata_parse("x", pickle.text, pickle.size, ret_metadata);
    tt_text_release(&pickle);
    return rc;
}

/* PyTorch writes an archive even for a rank without rows, and the file may end with it. */
static void a_piece_without_rows_counts_for_its_file(void **state)
{
    struct tt_dcp_metadata metadata = {0};

    if (read_two_pieces(false, &metadata) < 0)
        fail_msg("%s", tt_error_message());
    assert_int_equal(metadata.n_files, 2);
    assert_string_equal(metadata.file[0].name, "__0_0.distcp");
    assert_int_equal(metadata.file[0].bytes, 120);
    assert_int_equal(metadata.file[1].bytes, 100);
    assert_int_equal(metadata.n, 1);
    assert_int_equal(metadata.entry[0].n, 1);
    assert_int_equal(metadata.entry[0].piece[0].file, 1);
    tt_dcp_metadata_release(&metadata);
}

static void a_piece_that_is_named_twice_is_refused(void **state)
{
    struct tt_dcp_metadata metadata = {0};

    assert_int_equal(read_two_pieces(true, &metadata), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "same piece twice for 'w'"));
}

/* PyTorch writes each list anew, so there are fewer pieces than bytes. */
static void tensors_that_share_a_long_list_of_pieces_are_refused(void **state)
{
    enum { CHUNKS = 2000, TENSORS = 2000 };
    struct tt_dcp_metadata metadata = {0};
    struct tt_text pickle = {0};
    char key[16];

    tt_text_add_bytes(&pickle, "\x80\x02", 2);
    begin_object(&pickle, "metadata\nMetadata");
    add_word(&pickle, "state_dict_metadata");
    tt_text_add(&pickle, "}(");
    for (int i = 0; i < TENSORS; i++) {
        (void)snprintf(key, sizeof key, "w%d", i);
        add_word(&pickle, key);
        if (i > 0) {
            tt_text_add_bytes(&pickle, "h\1", 2);
            continue;
        }
        begin_object(&pickle, "metadata\nTensorStorageMetadata");
        add_size(&pickle, "size", 1);
        add_word(&pickle, "properties");
        tt_text_add(&pickle, "ctorch.distributed.checkpoint.metadata\nTensorProperties\n)\x81(ctorch\nfloat32\ntb");
        add_word(&pickle, "chunks");
        tt_text_add(&pickle, "](");
        add_chunk(&pickle, 1, 0);
        tt_text_add_bytes(&pickle, "q\0", 2);
        for (int c = 1; c < CHUNKS; c++)
            tt_text_add_bytes(&pickle, "h\0", 2);
        tt_text_add_bytes(&pickle, "eubq\1", 5);
    }
    tt_text_add(&pickle, "u");
    add_word(&pickle, "storage_data");
    tt_text_add(&pickle, "}ub.");
    assert_int_equal(tt_dcp_metadata_parse("x", pickle.text, pickle.size, &metadata), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "more pieces than its bytes can describe"));
    tt_text_release(&pickle);
}

/* The first tensor of a file, in memory. */
static struct tt_stretch first_item(const char *file, const char *bytes, const char *tensor)
{
    struct tt_stretch item = {.path = file, .memory = bytes};
    size_t size = 0;
    char *metadata = read_file(TT_DCP_METADATA, &size);
    struct tt_dcp_metadata m = {0};

    assert_int_equal(tt_dcp_metadata_parse("x", metadata, size, &m), 0);
    for (int i = 0; i < m.n; i++)
        for (int k = 0; k < m.entry[i].n; k++)
            if (strcmp(m.entry[i].key, tensor) == 0 && strcmp(m.file[m.entry[i].piece[k].file].name, file) == 0) {
                item.memory = bytes + m.entry[i].piece[k].begin;
                item.bytes = m.entry[i].piece[k].bytes;
            }
    assert_true(item.bytes > 0);
    tt_dcp_metadata_release(&m);
    tt_free(metadata);
    return item;
}

static void archives_that_end_early_or_are_changed_are_refused_or_read(void **state)
{
    size_t size = 0;
    char *bytes = read_file("__0_0.distcp", &size), *copy;
    struct tt_stretch item = first_item("__0_0.distcp", bytes, "tok_embeddings.weight"), changed = item;
    struct tt_dcp_tensor tensor;

    assert_int_equal(tt_dcp_tensor_find(&item, "t", &tensor), 0);
    assert_int_equal(tensor.dtype, TT_F32);
    assert_true(tensor.has_crc);
    assert_int_equal(tt_crc32(0, (const char *)item.memory + tensor.begin, (size_t)(tensor.end - tensor.begin)),
                     tensor.crc);
    for (int64_t n = 0; n < item.bytes; n += 7) {
        copy = tt_calloc((size_t)n + !n, 1);
        memcpy(copy, item.memory, (size_t)n);
        changed.memory = copy;
        changed.bytes = n;
        assert_int_equal(tt_dcp_tensor_find(&changed, "t", &tensor), TT_EDATA);
        tt_free(copy);
    }
    copy = tt_calloc((size_t)item.bytes, 1);
    memcpy(copy, item.memory, (size_t)item.bytes);
    changed = (struct tt_stretch){.path = "x", .memory = copy, .bytes = item.bytes};
    for (int64_t at = 0; at < item.bytes; at++) {
        copy[at] = (char)(copy[at] ^ 0x80);
        (void)!tt_dcp_tensor_find(&changed, "t", &tensor);
        copy[at] = (char)(copy[at] ^ 0x80);
    }
    tt_free(copy);
    tt_free(bytes);
}

/* Keys, with | before the last name of a path of several names, and '#' before objects. */
struct named {
    const char *key, *name;
    enum tt_dcp_role role;
    enum tt_ckpt_group group;
};

static void check_names(const struct named *row, int n)
{
    struct tt_dcp_metadata m = {.n = n, .entry = tt_calloc((size_t)n, sizeof *m.entry)};
    struct tt_dcp_name *found;

    for (int i = 0; i < n; i++) {
        const char *key = row[i].key + (row[i].key[0] == '#'), *leaf = strchr(key, '|');

        m.entry[i] = (struct tt_dcp_entry){.key = tt_strdup(key),
                                           .leaf = leaf ? (size_t)(leaf + 1 - key) : 0,
                                           .is_tensor = row[i].key[0] != '#',
                                           .ndim = 1};
        if (leaf)
            m.entry[i].key[leaf - key] = '.';
        if (row[i].role == TT_DCP_OPTIMIZER_STEP)
            m.entry[i].ndim = 0;
    }
    found = tt_dcp_names_of(&m);
    for (int i = 0; i < n; i++)
        if (found[i].role != row[i].role || (row[i].name && strcmp(found[i].name, row[i].name) != 0) ||
            (row[i].name && found[i].group != row[i].group))
            fail_msg("%s is %s", row[i].key, found[i].name ? found[i].name : "no tensor");
    tt_dcp_names_free(found, n);
    tt_dcp_metadata_release(&m);
}

#define MODEL(key, name)                        \
    {                                           \
        key, name, TT_DCP_TENSOR, TT_CKPT_MODEL \
    }
#define OPTIM(key, name)                        \
    {                                           \
        key, name, TT_DCP_TENSOR, TT_CKPT_OPTIM \
    }
#define OTHER(key)                             \
    {                                          \
        key, NULL, TT_DCP_OTHER, TT_CKPT_MODEL \
    }
#define BESIDE(key)                             \
    {                                           \
        key, NULL, TT_DCP_BESIDE, TT_CKPT_MODEL \
    }
#define NUMBER(key, of)              \
    {                                \
        key, NULL, of, TT_CKPT_MODEL \
    }
#define CHECK(...) \
    check_names((const struct named[]){__VA_ARGS__}, (int)(sizeof(struct named[]){__VA_ARGS__} / sizeof(struct named)))

static void keys_get_the_names_of_titan(void **state)
{
    /* torchtitan's keys; a model may have parts called state and model */
    CHECK(MODEL("layers.0.attention.wq.weight", "layers.0.attention.wq.weight"),
          MODEL("layers.3.attention.qkv_linear.wk.weight", "layers.3.attention.wk.weight"),
          MODEL("lm_head.weight", "output.weight"), MODEL("model.norm.weight", "model.norm.weight"),
          MODEL("norm.weight", "norm.weight"), MODEL("state.proj.weight", "state.proj.weight"),
          MODEL("layers.0._checkpoint_wrapped_module.ffn_norm.weight", "layers.0.ffn_norm.weight"),
          OPTIM("optimizer|state.norm.weight.exp_avg", "state.norm.weight.exp_avg"),
          OPTIM("optimizer|state.state.proj.weight.exp_avg", "state.state.proj.weight.exp_avg"),
          OPTIM("optimizer|state.lm_head.weight.exp_avg_sq", "state.output.weight.exp_avg_sq"),
          NUMBER("optimizer|state.norm.weight.step", TT_DCP_OPTIMIZER_STEP), OTHER("#optimizer|param_groups.norm.lr"),
          NUMBER("#train_state|step", TT_DCP_STEP), NUMBER("#lr_scheduler|last_epoch", TT_DCP_LR_STEP),
          OTHER("freqs_cis"), OTHER("#dataloader|dp_rank_0"));
    /* torchtune's */
    CHECK(MODEL("model|layers.1.attn.output_proj.weight", "layers.1.attention.wo.weight"),
          MODEL("model|layers.1.mlp_norm.scale", "layers.1.ffn_norm.weight"),
          MODEL("model|layers.1.sa_norm.scale", "layers.1.attention_norm.weight"),
          MODEL("model|norm.scale", "norm.weight"), NUMBER("#steps_run", TT_DCP_STEP));
    /* what get_state_dict returns, in an object of the application */
    CHECK(MODEL("app.model|norm.weight", "norm.weight"),
          OPTIM("app.optim.state.norm.weight|max_exp_avg_sq", "state.norm.weight.max_exp_avg_sq"),
          NUMBER("app.optim.state.norm.weight|step", TT_DCP_OPTIMIZER_STEP), OTHER("#app.optim.param_groups.0|lr"),
          NUMBER("#app.train_state|step", TT_DCP_STEP), BESIDE("app|rng"));
    /* nothing in the names says which one is the model, and the optimizer's other tensors have names that occur nowhere
     * else */
    CHECK(MODEL("my.net|norm.weight", "norm.weight"), OPTIM("my.ada.state.norm.weight|sum", "state.norm.weight.sum"),
          OTHER("#my.ada.param_groups.0|lr"), BESIDE("my.copy|scale"));
    /* a user's flat dictionary, without paths */
    CHECK(MODEL("model.norm.weight", "norm.weight"),
          OPTIM("optim.state.norm.weight.momentum_buffer", "state.norm.weight.momentum_buffer"));
    CHECK(MODEL("norm.weight", "norm.weight"), OPTIM("state.norm.weight.exp_avg", "state.norm.weight.exp_avg"),
          OTHER("#param_groups.norm.weight.lr"));
    /* in a dictionary called state; a number in it is not a moment */
    CHECK(MODEL("state.model|norm.weight", "norm.weight"),
          OPTIM("state.optim.state.norm.weight|exp_avg", "state.norm.weight.exp_avg"), OTHER("#state.train|step"));
    /* parts of a pipeline; two models with one name inside; Hugging Face's names */
    CHECK(MODEL("model.0|tok_embeddings.weight", "tok_embeddings.weight"), MODEL("model.1|norm.weight", "norm.weight"));
    CHECK(MODEL("actor|norm.weight", "actor.norm.weight"), MODEL("critic|norm.weight", "critic.norm.weight"),
          OPTIM("opt_a.state.0|exp_avg", "opt_a.state.0.exp_avg"),
          OPTIM("opt_b.state.0|exp_avg", "opt_b.state.0.exp_avg"));
    CHECK(MODEL("app.model|model.embed_tokens.weight", "model.embed_tokens.weight"),
          MODEL("app.model|lm_head.weight", "lm_head.weight"));
}

/* The value that write_dcp_with_torch.py gave an element. */
static float value_of(enum tt_ckpt_group group, const char *name, int64_t index)
{
    const char *end = group == TT_CKPT_OPTIM ? strrchr(name, '.') : name + strlen(name);
    int64_t length = end - name - (group == TT_CKPT_OPTIM ? 6 : 0),
            what = group == TT_CKPT_OPTIM ? (int64_t)strlen(end) - 1 : 0;

    return (float)((index * 7 + length + 3 * what) % 59) / 64.0f - (what == 10 ? 0.0f : 0.5f);
}

/* Loads the model and the moments, divided over the ranks, as float32. */
static int load_golden(struct tt_comm *comm, void *arg)
{
    struct tt_mesh mesh = test_mesh(comm->size, 1);
    struct tt_manifest manifest = {0};
    struct tt_ckpt_chunk *chunk = NULL;
    struct tt_ckpt_state state = {0};
    json_t *meta = NULL;
    int64_t wrong = 0;
    int rc = 0;

    TT_TRY(tt_dcp_scan(arg, &manifest, NULL));
    chunk = tt_calloc((size_t)manifest.n_tensors, sizeof *chunk);
    for (int i = 0; i < manifest.n_tensors; i++) {
        const struct tt_manifest_tensor *t = &manifest.tensor[i];
        struct tt_ckpt_chunk *c = &chunk[i];

        *c = (struct tt_ckpt_chunk){.name = t->name,
                                    .dtype = TT_F32,
                                    .ndim = t->ndim,
                                    .placement = {1, {{TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE}};
        memcpy(c->shape, t->shape, sizeof c->shape);
        c->part = tt_placement_box(&mesh, &c->placement, c->ndim, c->shape, comm->rank);
        c->data = tt_calloc((size_t)tt_box_volume(&c->part) + 1, sizeof(float));
        state.n_model += t->group == TT_CKPT_MODEL;
    }
    state.model = chunk;
    state.optim = chunk + state.n_model;
    state.n_optim = manifest.n_tensors - state.n_model;
    TT_TRY(tt_ckpt_load(comm, &mesh, arg, TT_LOAD_ALL, &(unsigned){0}, &state, &meta));
    for (int i = 0; i < manifest.n_tensors; i++) {
        struct tt_box whole = tt_box_whole(chunk[i].ndim, chunk[i].shape);

        for (int64_t k = 0; k < tt_box_volume(&chunk[i].part); k++)
            wrong += ((float *)chunk[i].data)[k] !=
                     value_of(manifest.tensor[i].group, chunk[i].name, tt_box_position(&chunk[i].part, k, &whole));
    }
    TT_TRY(tt_comm_sum_i64(comm, &wrong, 1));
    if (wrong)
        rc = tt_fail(TT_EDATA, "%d values are wrong", (int)wrong);
    else if (manifest.n_tensors != 36 || json_integer_value(json_object_get(meta, "step")) != 7 ||
             json_integer_value(json_object_get(meta, "optimizer_step")) != 7 ||
             json_integer_value(json_object_get(meta, "lr_step")) != 7 ||
             json_integer_value(json_object_get(meta, "ntokens_seen")) != 896)
        rc = tt_fail(TT_EDATA, "the counters are wrong");
out:
    for (int i = 0; chunk && i < manifest.n_tensors; i++)
        tt_free(chunk[i].data);
    tt_free(chunk);
    tt_manifest_release(&manifest);
    json_decref(meta);
    return rc;
}

static void a_folder_of_pytorch_loads_on_any_number_of_ranks(void **state)
{
    for (int ranks = 1; ranks <= 5; ranks++)
        if (tt_comm_threads_run(ranks, load_golden, golden) != 0)
            fail_msg("on %d ranks: %s", ranks, tt_error_message());
}

static void crc32_is_that_of_zip(void **state)
{
    assert_int_equal(tt_crc32(0, "123456789", 9), 0xcbf43926u);
    assert_int_equal(tt_crc32(tt_crc32(0, "1234", 4), "56789", 5), 0xcbf43926u);
    assert_int_equal(tt_crc32(0, "The quick brown fox jumps over the lazy dog", 43), 0x414fa339u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_part_of_a_checkpoint_is_refused_by_name),
        cmocka_unit_test(broken_pickles_are_refused),
        cmocka_unit_test(numbers_and_containers_are_read),
        cmocka_unit_test(a_tensor_is_read_as_it_was_written),
        cmocka_unit_test(numbers_are_read_as_they_were_written),
        cmocka_unit_test(a_folder_for_pytorch_has_the_bytes_that_it_has_loaded),
        cmocka_unit_test(metadata_that_ends_early_or_is_changed_is_refused_or_read),
        cmocka_unit_test(a_piece_without_rows_counts_for_its_file),
        cmocka_unit_test(a_piece_that_is_named_twice_is_refused),
        cmocka_unit_test(tensors_that_share_a_long_list_of_pieces_are_refused),
        cmocka_unit_test(archives_that_end_early_or_are_changed_are_refused_or_read),
        cmocka_unit_test(keys_get_the_names_of_titan),
        cmocka_unit_test(a_folder_of_pytorch_loads_on_any_number_of_ranks),
        cmocka_unit_test(crc32_is_that_of_zip),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
