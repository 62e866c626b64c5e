/* SPDX-License-Identifier: MIT
 *
 * Finds the parts of a dump, gives its tensors the names under which they are compared, and reads them.
 */
#include "cli/referee/dump.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/cast.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

const char *const tt_sections[TT_SECTIONS] = {"gradients", "weights", "optimizer", "activations",
                                              "activation_gradients"};

static const char about_file[] = "reference.json";

/* --- names --- */

/* What wrappers of PyTorch put into names, anywhere. */
static const char *const wrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.",
                                       "_forward_module."};

/* The name without what wrappers add; the caller frees it. */
static char *clean(const char *name)
{
    char *text = tt_strdup(tt_text_begins(name, "module.") ? name + strlen("module.") : name), *at;

    for (size_t i = 0; i < sizeof wrappers / sizeof wrappers[0]; i++)
        while ((at = strstr(text, wrappers[i])))
            memmove(at, at + strlen(wrappers[i]), strlen(at + strlen(wrappers[i])) + 1);
    if (tt_text_ends(text, ".grad"))
        text[strlen(text) - strlen(".grad")] = 0;
    return text;
}

/* The longest suffix that names of the optimizer's arrays end with. */
static const char *suffix_of(const char *name)
{
    static const char *const suffixes[] = {".exp_avg", ".exp_avg_sq", ".momentum_buffer"};

    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
        if (tt_text_ends(name, suffixes[i]))
            return name + strlen(name) - strlen(suffixes[i]);
    return name + strlen(name);
}

/* Replaces titan's name of a parameter by Hugging Face's. */
static bool translate(const json_t *names, char **name)
{
    const char *suffix = suffix_of(*name), *hf;
    size_t size = (size_t)(suffix - *name);
    const json_t *ours;

    json_object_foreach((json_t *)names, hf, ours)
    {
        const char *text = json_string_value(ours);

        if (text && strlen(text) == size && strncmp(text, *name, size) == 0 && strcmp(text, hf) != 0) {
            char *made = tt_format("%s%s", hf, suffix);

            tt_free(*name);
            *name = made;
            return true;
        }
    }
    return false;
}

/* --- folders --- */

static int has(const char *folder, const char *name, bool *ret_has)
{
    char *path = tt_format("%s/%s", folder, name);
    int rc = tt_path_exists(path, ret_has);

    tt_free(path);
    return rc;
}

/* Whether a folder contains a section. */
static int is_step(const char *path, bool *ret_is_step)
{
    int rc = 0;

    *ret_is_step = false;
    for (int s = 0; s < TT_SECTIONS && !*ret_is_step && rc == 0; s++)
        rc = has(path, tt_sections[s], ret_is_step);
    return rc;
}

static int compare_steps(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

int tt_dump_steps(const char *path, int64_t **ret_step, int *ret_n)
{
    int64_t *step = NULL;
    char **names = NULL;
    bool is_folder = false;
    int n_names = 0, n = 0, cap = 0, rc = 0;

    TT_TRY(tt_path_is_folder(path, &is_folder));
    if (is_folder)
        TT_TRY(tt_folder_list(path, &names, &n_names));
    for (int i = 0; i < n_names; i++) {
        char *folder = tt_format("%s/%s", path, names[i]), *end = NULL;
        bool found = false;

        if (tt_text_begins(names[i], "step-"))
            rc = is_step(folder, &found);
        tt_free(folder);
        TT_TRY(rc);
        if (found) {
            int64_t number = strtoll(names[i] + strlen("step-"), &end, 10);

            if (*end == 0 && end != names[i] + strlen("step-"))
                TT_PUSH(step, n, cap) = number;
        }
    }
    if (n == 0)
        TT_PUSH(step, n, cap) = -1;
    qsort(step, (size_t)n, sizeof *step, compare_steps);
    *ret_step = step;
    *ret_n = n;
    step = NULL;
out:
    tt_free(step);
    tt_names_free(names, n_names);
    return rc;
}

int tt_dump_ranks(const char *path, int *ret_n)
{
    char **names = NULL;
    bool is_folder = false;
    int n_names = 0, n = 0, rc = 0;

    *ret_n = 0;
    TT_TRY(tt_path_is_folder(path, &is_folder));
    if (is_folder)
        TT_TRY(tt_folder_list(path, &names, &n_names));
    for (int i = 0; i < n_names; i++)
        n += tt_text_begins(names[i], "rank-") && strspn(names[i] + 5, "0123456789") == strlen(names[i] + 5);
    for (int k = 0; k < n; k++) {
        char *folder = tt_dump_rank_path(path, k);
        bool found = false;

        rc = tt_path_is_folder(folder, &found);
        if (rc == 0 && !found)
            rc = tt_fail(TT_EDATA,
                         "'%s' is missing: '%s' contains %d folders of ranks\nhelp: number them from rank-0 "
                         "on, without a gap",
                         folder, path, n);
        tt_free(folder);
        TT_TRY(rc);
    }
    *ret_n = n;
out:
    tt_names_free(names, n_names);
    return rc;
}

char *tt_dump_rank_path(const char *path, int rank)
{
    return rank < 0 ? tt_strdup(path) : tt_format("%s/rank-%d", path, rank);
}

/* Reads reference.json of the folder, or of the folder that contains it. */
static int read_about(const char *path, json_t **ret_about)
{
    char *folder = tt_strdup(path), *slash, *file = NULL;
    bool found = false;
    int rc = 0;

    for (int up = 0; up < 3 && !found; up++) {
        TT_TRY(tt_path_is_folder(folder, &found));
        if (found)
            TT_TRY(has(folder, about_file, &found));
        if (found) {
            file = tt_format("%s/%s", folder, about_file);
            TT_TRY(tt_json_load(file, ret_about));
            if (!json_is_object(*ret_about))
                TT_TRY(
                    tt_fail(TT_EDATA, "'%s': an object is expected\nhelp: titan-compare(1) describes the file", file));
        }
        slash = strrchr(folder, '/');
        /* only the folders of a step and of a rank belong to the folder above */
        if (found || !slash || !(tt_text_begins(slash, "/step-") || tt_text_begins(slash, "/rank-")))
            break;
        *slash = 0;
    }
out:
    tt_free(file);
    tt_free(folder);
    return rc;
}

/* --- tensors --- */

static int compare_tensors(const void *a, const void *b)
{
    const struct tt_dump_tensor *x = a, *y = b;

    return x->section != y->section ? (int)x->section - (int)y->section : strcmp(x->name, y->name);
}

static bool reads(enum tt_dtype dtype)
{
    return dtype == TT_F64 || dtype == TT_F32 || dtype == TT_BF16 || dtype == TT_F16;
}

/* Adds the tensors of an open source. Integers, such as a router's counts, are no part of a comparison. */
static int add_tensors(struct tt_dump *dump, enum tt_section section, const json_t *names)
{
    const struct tt_manifest *m = &dump->source[section]->manifest;
    const json_t *own = json_object_get(dump->about, "names");
    int rc = 0;

    for (int i = 0; i < m->n_tensors; i++) {
        const struct tt_manifest_tensor *t = &m->tensor[i];
        struct tt_dump_tensor *made;

        if (t->group != TT_CKPT_MODEL || t->packing)
            continue;
        if (!reads(t->dtype)) {
            tt_note("'%s': tensor '%s' is %s and is not compared", dump->source[section]->path, t->name,
                    tt_dtype_name(t->dtype));
            continue;
        }
        TT_PUSH(dump->tensor, dump->n, dump->cap) = (struct tt_dump_tensor){0};
        made = &dump->tensor[dump->n - 1];
        made->name = clean(t->name);
        made->section = section;
        made->source = dump->source[section];
        made->tensor = t;
        made->was_titan = translate(own, &made->name) || translate(names, &made->name);
    }
    return rc;
}

static int open_section(struct tt_dump *dump, const char *path, enum tt_section section, const json_t *names)
{
    int rc = 0;

    TT_TRY(tt_source_find(path, &dump->source[section]));
    TT_TRY(tt_source_check_forms(dump->source[section], false));
    rc = add_tensors(dump, section, names);
out:
    return rc;
}

/* Reads a matrix of integers, if the file has it. */
static int read_ids(struct tt_source *source, const char *name, struct tt_dump_ids *ret_ids)
{
    const struct tt_manifest_tensor *t = tt_manifest_find(&source->manifest, TT_CKPT_MODEL, name);
    struct tt_box whole;
    void *bytes = NULL;
    int64_t n;
    int rc = 0;

    if (!t)
        return 0;
    if (t->ndim < 1 || t->ndim > 2 || (t->dtype != TT_I64 && t->dtype != TT_I32))
        return tt_fail(TT_EDATA, "'%s': '%s' is not a matrix of I64 or I32\nhelp: save it as (batch, sequence)",
                       source->path, name);
    whole = tt_box_whole(t->ndim, t->shape);
    n = tt_box_volume(&whole);
    bytes = tt_calloc_for((size_t)n + 1, tt_dtype_size(t->dtype), name);
    ret_ids->id = tt_calloc_for((size_t)n + 1, sizeof *ret_ids->id, name);
    TT_TRY(bytes && ret_ids->id ? 0 : TT_ENOMEM);
    TT_TRY(tt_source_read(source, t, &whole, t->dtype, bytes));
    for (int64_t i = 0; i < n; i++)
        ret_ids->id[i] = t->dtype == TT_I64 ? ((const int64_t *)bytes)[i] : ((const int32_t *)bytes)[i];
    ret_ids->columns = t->shape[t->ndim - 1];
    ret_ids->rows = t->ndim == 2 ? t->shape[0] : 1;
out:
    tt_free(bytes);
    return rc;
}

static int read_tokens(struct tt_dump *dump, const char *folder)
{
    char *path = tt_format("%s/loss.safetensors", folder);
    struct tt_source *source = NULL;
    bool found = false;
    int rc = 0;

    TT_TRY(tt_path_exists(path, &found));
    if (!found)
        goto out;
    TT_TRY(tt_source_find(path, &source));
    TT_TRY(read_ids(source, "input_ids", &dump->inputs));
    rc = read_ids(source, "labels", &dump->labels);
out:
    tt_source_free(source);
    tt_free(path);
    return rc;
}

static int check_names(const struct tt_dump *dump)
{
    for (int i = 1; i < dump->n; i++)
        if (compare_tensors(&dump->tensor[i - 1], &dump->tensor[i]) == 0)
            return tt_fail(TT_EDATA, "'%s': two tensors of %s are called '%s': '%s' and '%s'\nhelp: save each once",
                           dump->path, tt_sections[dump->tensor[i].section], dump->tensor[i].name,
                           dump->tensor[i - 1].tensor->name, dump->tensor[i].tensor->name);
    return 0;
}

int tt_dump_open(const char *path, int64_t step, const json_t *names, struct tt_dump *dump)
{
    char *folder = step < 0 ? tt_strdup(path) : tt_format("%s/step-%" PRId64, path, step), *part = NULL;
    const char *slash = strrchr(folder, '/'), *last = slash ? slash + 1 : folder;
    bool divided = false, found = false;
    int rc = 0;

    dump->path = tt_strdup(folder);
    dump->step = step >= 0 ? step : tt_step_number(last);
    TT_TRY(read_about(folder, &dump->about));
    TT_TRY(tt_path_is_folder(folder, &divided));
    if (divided)
        TT_TRY(is_step(folder, &divided));
    for (int s = 0; s < TT_SECTIONS && divided; s++) {
        tt_free(part);
        part = tt_format("%s/%s", folder, tt_sections[s]);
        TT_TRY(tt_path_exists(part, &found));
        if (found)
            TT_TRY(open_section(dump, part, (enum tt_section)s, names));
    }
    if (divided) {
        TT_TRY(read_tokens(dump, folder));
    } else {
        TT_TRY(open_section(dump, folder, TT_SECTION_GRADIENTS, names));
        if (dump->source[TT_SECTION_GRADIENTS]->kind == TT_PATH_STEP) {
            dump->source[TT_SECTION_WEIGHTS] = dump->source[TT_SECTION_GRADIENTS];
            dump->source[TT_SECTION_GRADIENTS] = NULL;
            for (int i = 0; i < dump->n; i++)
                dump->tensor[i].section = TT_SECTION_WEIGHTS;
        }
    }
    if (dump->n == 0)
        TT_TRY(tt_fail(TT_EDATA,
                       "'%s' contains no tensor of floating-point numbers\nhelp: titan-compare(1) describes "
                       "what a dump contains",
                       folder));
    qsort(dump->tensor, (size_t)dump->n, sizeof *dump->tensor, compare_tensors);
    rc = check_names(dump);
out:
    tt_free(part);
    tt_free(folder);
    return rc;
}

void tt_dump_release(struct tt_dump *dump)
{
    for (int i = 0; i < dump->n; i++)
        tt_free(dump->tensor[i].name);
    for (int s = 0; s < TT_SECTIONS; s++)
        tt_source_free(dump->source[s]);
    tt_free(dump->tensor);
    tt_free(dump->inputs.id);
    tt_free(dump->labels.id);
    tt_free(dump->path);
    json_decref(dump->about);
    *dump = (struct tt_dump){0};
}

const struct tt_dump_tensor *tt_dump_find(const struct tt_dump *dump, enum tt_section section, const char *name)
{
    int low = 0, high = dump->n;

    while (low < high) {
        int middle = (low + high) / 2;
        const struct tt_dump_tensor *t = &dump->tensor[middle];
        int order = t->section != section ? (int)t->section - (int)section : strcmp(t->name, name);

        if (order == 0)
            return t;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const json_t *tt_dump_record(const struct tt_dump *dump)
{
    const json_t *steps = json_object_get(dump->about, "steps"), *record;
    size_t i;

    json_array_foreach((json_t *)steps, i,
                       record) if (dump->step < 0 ||
                                   json_integer_value(json_object_get(record, "step")) == dump->step) return record;
    return NULL;
}

int64_t tt_dump_degree(const struct tt_dump *dump, const char *name)
{
    return json_integer_value(json_object_get(json_object_get(dump->about, "mesh"), name));
}

int tt_dump_read(const struct tt_dump_tensor *tensor, int64_t row, int64_t n, double *data)
{
    const struct tt_manifest_tensor *t = tensor->tensor;
    struct tt_box box = tt_box_rows(t->ndim, t->shape, row, n);
    int64_t volume = tt_box_volume(&box);
    size_t item = tt_dtype_size(t->dtype);
    /* the elements go to the end of the array, and become doubles from its beginning on */
    char *bytes = (char *)data + (size_t)volume * (sizeof *data - item);
    int rc = tt_source_read(tensor->source, t, &box, t->dtype, bytes);

    for (int64_t i = 0; i < volume && rc == 0 && t->dtype != TT_F64; i++) {
        union {
            float f32;
            uint16_t half;
            char bytes[sizeof(float)];
        } element;

        memcpy(element.bytes, bytes + (size_t)i * item, item);
        data[i] = tt_cast_value(t->dtype, &element, 0);
    }
    return rc;
}
