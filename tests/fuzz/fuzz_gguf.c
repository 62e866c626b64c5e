/* SPDX-License-Identifier: MIT
 *
 * A GGUF file from an unknown source: values, tensor table, the sizes of a model, a tokenizer; and if it describes a
 * small model, its weights.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "checkpoint/read/weights.h"
#include "core/base/mem.h"
#include "core/models/gguf.h"
#include "core/os/file.h"
#include "core/tokenizer/gguf.h"
#include "fuzz.h"

enum { LAYERS_MOST = 8, ELEMENTS_MOST = 1 << 20 };

static char folder[] = "/tmp/titan-fuzz-XXXXXX";

static void remove_folder(void)
{
    (void)!tt_folder_remove(folder);
}

/* A file with these bytes, since weights are read from files; NULL if it cannot be written. */
static const char *file_of(const uint8_t *data, size_t size)
{
    static char *path;
    bool ok;
    FILE *file;

    if (!path && mkdtemp(folder)) {
        static char name[sizeof folder + sizeof "/x.gguf"];

        (void)snprintf(name, sizeof name, "%s/x.gguf", folder);
        path = name;
        (void)atexit(remove_folder);
    }
    file = path ? fopen(path, "wb") : NULL;
    ok = file && fwrite(data, 1, size, file) == size;
    return file && fclose(file) == 0 && ok ? path : NULL;
}

/* Reads a weight, as elements and as it is stored. */
static void read_weight(struct tt_weights *w, const struct tt_weight *weight)
{
    struct tt_box whole = tt_box_whole(weight->ndim, weight->shape);
    int64_t elements = tt_box_volume(&whole), rows = weight->ndim ? weight->shape[0] : 1;
    float *data;

    if (elements < 1 || elements > ELEMENTS_MOST)
        return;
    data = tt_calloc((size_t)elements, sizeof *data);
    (void)!tt_weights_read(w, weight, 0, rows, TT_F32, data);
    for (enum tt_packing_choice packing = TT_PACKING_BF16; packing < TT_PACKINGS && weight->ndim == 2; packing++)
        if (tt_weights_keep_packing(w, weight, packing))
            (void)!tt_weights_read_packed(w, weight, packing, &whole, data);
    tt_free(data);
}

static void read_weights(const char *path)
{
    struct tt_model *model = NULL;
    struct tt_source *source = NULL;
    struct tt_weights w = {0};

    if (path && tt_model_from_hf(path, &model) == 0 && tt_source_open(path, TT_PATH_PLAIN, &source) == 0 &&
        tt_weights_import(source, model, TT_EXTRA_REFUSED, &w) == 0)
        for (int i = 0; i < w.n; i++)
            read_weight(&w, &w.weight[i]);
    tt_weights_release(&w);
    tt_source_free(source);
    tt_model_free(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    struct tt_model_dims dims;
    struct tt_gguf file = {0};

    if (tt_gguf_parse("fuzz", data, size, &file) == 0) {
        bool is_small = tt_gguf_read_dims(&file, &dims) == 0 && dims.n_layers <= LAYERS_MOST;

        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            char *text = NULL;
            size_t length = 0;

            (void)!tt_gguf_tokenizer_file(&file, names[i], &text, &length);
            tt_free(text);
        }
        if (is_small)
            read_weights(file_of(data, size));
    }
    tt_gguf_release(&file);
    return 0;
}
