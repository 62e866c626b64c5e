/* SPDX-License-Identifier: MIT
 *
 * Turns a PyTorch checkpoint into a manifest: translates its keys to titan's names and finds the bytes of its tensors.
 * PyTorch stores tensors packed and uncompressed, so a piece is a stretch of a file, as in safetensors files; later
 * code does not depend on PyTorch's format. The values stay as they are: torchtitan and torchtune order the rows of q
 * and k as titan does; only Hugging Face permutes them.
 */
#include "checkpoint/dcp/scan.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "checkpoint/dcp/item.h"
#include "checkpoint/dcp/metadata.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/optim/optim.h"
#include "core/os/file.h"

/* --- keys --- */

enum { WRAPPERS = 4, OPTIMIZERS_MOST = 64, NAMES_MOST = 64 };

/* Parts of names, between dots, as other programs write them. The first WRAPPERS are PyTorch's, and do not belong to
 * a parameter's name; the next four are torchtitan's after 0.2; the rest is torchtune's. */
static const struct {
    const char *from, *to;
} renamed[] = {
    {"_orig_mod.", ""},
    {"_checkpoint_wrapped_module.", ""},
    {"_fsdp_wrapped_module.", ""},
    {"module.", ""},
    {"lm_head.", "output."},
    {"attention.qkv_linear.wq.", "attention.wq."},
    {"attention.qkv_linear.wk.", "attention.wk."},
    {"attention.qkv_linear.wv.", "attention.wv."},
    {"attn.q_proj.", "attention.wq."},
    {"attn.k_proj.", "attention.wk."},
    {"attn.v_proj.", "attention.wv."},
    {"attn.output_proj.", "attention.wo."},
    {"attn.q_norm.scale", "attention.q_norm.weight"},
    {"attn.k_norm.scale", "attention.k_norm.weight"},
    {"mlp.w1.", "feed_forward.w1."},
    {"mlp.w2.", "feed_forward.w2."},
    {"mlp.w3.", "feed_forward.w3."},
    {"sa_norm.scale", "attention_norm.weight"},
    {"mlp_norm.scale", "ffn_norm.weight"},
    {"norm.scale", "norm.weight"},
};

/* The first n bytes of a key, up to a dot: the names that wrap the model or an optimizer. */
struct prefix {
    const char *key;
    size_t n;
};

struct naming {
    const struct tt_dcp_metadata *metadata;
    struct prefix optimizer[OPTIMIZERS_MOST]; /* "app.optim." */
    int n_optimizers;
    struct prefix model;  /* "app.model." */
    struct prefix around; /* "app." */
    bool has_model;       /* only keys that begin with `model` belong to the model */
    bool is_hf;           /* the names are Hugging Face's */
};

static bool has_prefix(const char *key, struct prefix prefix)
{
    return strncmp(key, prefix.key, prefix.n) == 0;
}

/* The last place in a dotted key where a name begins and the rest begins with `word`, or NULL. */
static const char *find_part(const char *key, const char *word)
{
    const char *found = NULL;

    for (const char *at = key; at; at = strchr(at, '.')) {
        at += at > key;
        if (tt_text_begins(at, word))
            found = at;
    }
    return found;
}

static char *rename_parts(const struct naming *naming, const char *name)
{
    size_t rows = naming->is_hf ? WRAPPERS : sizeof renamed / sizeof renamed[0];
    struct tt_text text = {0};

    for (const char *at = name; *at;) {
        const char *dot = strchr(at, '.');
        size_t n = dot ? (size_t)(dot + 1 - at) : strlen(at), row = 0;

        while (row < rows && strncmp(at, renamed[row].from, strlen(renamed[row].from)) != 0)
            row++;
        if (row < rows) {
            n = strlen(renamed[row].from);
            tt_text_add(&text, "%s", renamed[row].to);
        } else {
            tt_text_add_bytes(&text, at, n);
        }
        at += n;
    }
    return text.text ? text.text : tt_strdup("");
}

/* --- optimizers --- */

/* Moments of PyTorch's optimizers that titan does not have. */
static const char other_moments[] = "max_exp_avg_sq|square_avg|grad_avg|acc_delta|exp_inf";

static void add_optimizer(struct naming *naming, const char *key, size_t n)
{
    for (int i = 0; i < naming->n_optimizers; i++)
        if (naming->optimizer[i].n == n && has_prefix(key, naming->optimizer[i]))
            return;
    if (naming->n_optimizers < OPTIMIZERS_MOST)
        naming->optimizer[naming->n_optimizers++] = (struct prefix){key, n};
}

static void find_optimizers(struct naming *naming)
{
    for (int i = 0; i < naming->metadata->n; i++) {
        const char *key = naming->metadata->entry[i].key, *last = strrchr(key, '.');
        const char *groups = find_part(key, "param_groups."), *state = find_part(key, "state.");

        if (groups)
            add_optimizer(naming, key, (size_t)(groups - key));
        if (state && last && last > state + strlen("state") &&
            (tt_optim_has_moment(key) || tt_text_is_one_of(last + 1, other_moments)))
            add_optimizer(naming, key, (size_t)(state - key));
        if (tt_text_begins(key, "optimizer."))
            add_optimizer(naming, key, strlen("optimizer."));
    }
}

/* The key without the prefix of its optimizer, "state.norm.weight.exp_avg"; NULL: it belongs to no optimizer. A
 * model may have a part called state too, so the shortest prefix counts. */
static const char *in_optimizer(const struct naming *naming, const char *key)
{
    const struct prefix *best = NULL;

    for (int i = 0; i < naming->n_optimizers; i++) {
        const struct prefix *at = &naming->optimizer[i];

        if ((!best || at->n < best->n) && has_prefix(key, *at) &&
            (at->n || tt_text_begins(key, "state.") || tt_text_begins(key, "param_groups.")))
            best = at;
    }
    return best ? key + best->n : NULL;
}

/* --- the model --- */

/* The part of a tensor's key up to a word that stands for a model (model, state_dict); n is 0 if there is no such
 * word. */
static struct prefix model_dictionary(const struct tt_dcp_entry *entry)
{
    struct prefix found = {entry->key, 0};
    size_t at = 0;

    while (at < entry->leaf) {
        size_t n = strcspn(entry->key + at, ".");
        char *part = tt_strndup(entry->key + at, n);
        bool is_word = tt_text_is_one_of(part, "model|model_state|model_state_dict|state_dict");

        tt_free(part);
        if (found.n && !is_word)
            break;
        at += n + 1;
        found.n = is_word ? at : 0;
    }
    return found;
}

static bool is_of_model(const struct naming *naming, const struct tt_dcp_entry *entry)
{
    return entry->is_tensor && !in_optimizer(naming, entry->key);
}

/* Finds the only dictionary whose key contains a word for a model or, if !by_word, that holds all tensors. */
static bool find_one(struct naming *naming, bool by_word)
{
    struct prefix found = {"", 0};
    bool any = false;

    for (int i = 0; i < naming->metadata->n; i++) {
        const struct tt_dcp_entry *entry = &naming->metadata->entry[i];
        struct prefix at = by_word ? model_dictionary(entry) : (struct prefix){entry->key, entry->leaf};

        if (!is_of_model(naming, entry) || (by_word && at.n == 0))
            continue;
        if (any && (at.n != found.n || !has_prefix(at.key, found)))
            return false;
        found = at;
        any = true;
    }
    naming->model = found;
    return found.n > 0;
}

/* The parameter to which a tensor of an optimizer belongs, or NULL; the caller frees. */
static char *parameter_of(const struct naming *naming, const char *key)
{
    const char *name = in_optimizer(naming, key), *end;

    if (!name || !tt_text_begins(name, "state."))
        return NULL;
    name += strlen("state.");
    end = strrchr(name, '.');
    if (!end || strspn(name, "0123456789") == (size_t)(end - name))
        return NULL; /* the parameter's number instead of its name */
    return tt_strndup(name, (size_t)(end - name));
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names of parameters, and the keys of tensors in ascending order. */
struct known_names {
    char *name[NAMES_MOST];
    const char **key;
    int n_names, n_keys;
};

/* Whether every one of these parameters, with this prefix, has a tensor. */
static bool has_all(const struct known_names *known, struct prefix prefix)
{
    bool all = true;

    for (int i = 0; i < known->n_names && all; i++) {
        char *wanted = tt_format("%.*s%s", (int)prefix.n, prefix.key, known->name[i]);

        all = bsearch((void *)&wanted, (void *)known->key, (size_t)known->n_keys, sizeof *known->key, compare_keys);
        tt_free(wanted);
    }
    return all;
}

/* Finds the only dictionary below the top level whose tensors have the names of the optimizer's parameters. */
static bool find_by_optimizer(struct naming *naming)
{
    const struct tt_dcp_metadata *m = naming->metadata;
    struct known_names known = {.key = tt_calloc((size_t)m->n + 1, sizeof *known.key)};
    int places = 0;
    bool top = false;

    for (int i = 0; i < m->n; i++) {
        if (is_of_model(naming, &m->entry[i]))
            known.key[known.n_keys++] = m->entry[i].key;
        if (known.n_names < NAMES_MOST && (known.name[known.n_names] = parameter_of(naming, m->entry[i].key)))
            known.n_names++;
    }
    qsort((void *)known.key, (size_t)known.n_keys, sizeof *known.key, compare_keys);
    for (int i = 0; i < known.n_keys && known.n_names && !top; i++) {
        const char *key = known.key[i], *name = known.name[0];
        struct prefix at = {key, strlen(key) - (tt_text_ends(key, name) ? strlen(name) : 0)};

        if (!tt_text_ends(key, name) || (at.n && at.key[at.n - 1] != '.') || !has_all(&known, at))
            continue;
        naming->model = at;
        top = at.n == 0;
        places++;
    }
    for (int i = 0; i < known.n_names; i++)
        tt_free(known.name[i]);
    tt_free((void *)known.key);
    return places == 1 && !top;
}

static void find_model(struct naming *naming)
{
    naming->model = naming->around = (struct prefix){"", 0};
    naming->has_model = find_one(naming, true) || find_by_optimizer(naming) || find_one(naming, false);
    if (!naming->has_model)
        naming->model.n = 0;
    naming->around = naming->model;
    if (naming->around.n > 0) /* without the last name */
        naming->around.n--;
    while (naming->around.n > 0 && naming->around.key[naming->around.n - 1] != '.')
        naming->around.n--;
    for (int i = 0; i < naming->metadata->n && !naming->is_hf; i++)
        naming->is_hf = tt_text_ends(naming->metadata->entry[i].key, "model.embed_tokens.weight");
}

/* --- names --- */

/* The role of an entry; for a tensor, sets group and name. */
static enum tt_dcp_role role_of(const struct naming *naming, const struct tt_dcp_entry *entry, struct tt_dcp_name *ret)
{
    static const struct {
        const char *key;
        enum tt_dcp_role role;
    } known[] = {
        {"train_state.step", TT_DCP_STEP},
        {"steps_run", TT_DCP_STEP}, /* torchtune */
        {"train_state.ntokens_seen", TT_DCP_TOKENS},
        {"lr_scheduler.last_epoch", TT_DCP_LR_STEP},
        {"freqs_cis", TT_DCP_OTHER}, /* a buffer that older versions of torchtitan saved */
    };
    static const char *const others[] = {"train_state.", "lr_scheduler.", "dataloader."};
    const char *key = entry->key, *name = in_optimizer(naming, key);
    bool integer = entry->dtype == TT_I64 || entry->dtype == TT_I32;

    ret->group = name ? TT_CKPT_OPTIM : TT_CKPT_MODEL;
    if (name && tt_text_begins(name, "state.") && tt_text_ends(name, ".step") && entry->ndim == 0)
        return TT_DCP_OPTIMIZER_STEP;
    if (name && (!tt_text_begins(name, "state.") || !entry->is_tensor))
        return TT_DCP_OTHER;
    if (!name) {
        name = has_prefix(key, naming->around) ? key + naming->around.n : key;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            if (strcmp(name, known[i].key) == 0)
                return known[i].role;
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
            if (tt_text_begins(name, others[i]))
                return TT_DCP_OTHER;
        if (!entry->is_tensor || (entry->ndim == 0 && integer && !strchr(key, '.'))) /* or a counter such as "epoch" */
            return TT_DCP_OTHER;
        if (naming->has_model && !has_prefix(key, naming->model))
            return TT_DCP_BESIDE;
        for (name = key + naming->model.n; naming->has_model && name < key + entry->leaf; name = strchr(name, '.') + 1)
            if (name[strspn(name, "0123456789")] != '.') /* otherwise it is the number of a part in a list of parts */
                break;
    }
    ret->name = rename_parts(naming, name);
    return TT_DCP_TENSOR;
}

static int compare_names(const void *pa, const void *pb)
{
    const struct tt_dcp_name *a = *(const struct tt_dcp_name *const *)pa, *b = *(const struct tt_dcp_name *const *)pb;

    return a->group != b->group ? (a->group > b->group) - (a->group < b->group) : strcmp(a->name, b->name);
}

/* If two models, or two optimizers, contain the same names, names their tensors by the whole keys. */
static void separate(struct tt_dcp_name *name, int n)
{
    struct tt_dcp_name **order = tt_calloc((size_t)n + 1, sizeof *order);
    int tensors = 0;

    for (int i = 0; i < n; i++)
        if (name[i].role == TT_DCP_TENSOR)
            order[tensors++] = &name[i];
    qsort((void *)order, (size_t)tensors, sizeof *order, compare_names);
    for (int i = 0, end; i < tensors; i = end) {
        for (end = i + 1; end < tensors && compare_names((void *)&order[i], (void *)&order[end]) == 0;)
            end++;
        for (int k = i; k < end && end > i + 1; k++) {
            tt_free(order[k]->name);
            order[k]->name = tt_strdup(order[k]->key);
        }
    }
    tt_free((void *)order);
}

struct tt_dcp_name *tt_dcp_names_of(const struct tt_dcp_metadata *metadata)
{
    struct naming naming = {.metadata = metadata};
    struct tt_dcp_name *name = tt_calloc((size_t)metadata->n + 1, sizeof *name);

    find_optimizers(&naming);
    find_model(&naming);
    for (int i = 0; i < metadata->n; i++) {
        name[i].role = role_of(&naming, &metadata->entry[i], &name[i]);
        name[i].key = metadata->entry[i].key;
    }
    separate(name, metadata->n);
    return name;
}

void tt_dcp_names_free(struct tt_dcp_name *names, int n)
{
    for (int i = 0; names && i < n; i++)
        tt_free(names[i].name);
    tt_free(names);
}

/* --- the folder --- */

enum { OPEN_MOST = 64 };

struct scan {
    const char *folder;
    const char *kind; /* kind of the fault */
    struct tt_dcp_metadata metadata;
    char **path; /* of each file */
    int *fd;     /* -1: not open */
    int n_open;
    json_t *other, *beside, *unread;
    struct tt_manifest *manifest;
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
        s->path[i] = tt_format("%s/%s", s->folder, m->file[i].name);
        TT_TRY(tt_manifest_check_size(s->path[i], m->file[i].bytes, &s->kind));
        (void)tt_manifest_add_file(s->manifest, m->file[i].name, m->file[i].bytes);
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

/* Adds a chunk; ret_unread is why titan cannot read it, or NULL. */
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
    if (found.dtype != entry->dtype || !tt_box_equal(&box, &piece->box))
        TT_TRY(tt_fail(TT_EDATA, "'%s': the piece of '%s' is %s%s, but " TT_DCP_METADATA " says %s%s", archive.path,
                       entry->key, tt_dtype_name(found.dtype), tt_box_text(a, sizeof a, &box),
                       tt_dtype_name(entry->dtype), tt_box_text(b, sizeof b, &piece->box)));
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

    tensor = tt_manifest_add_tensor(s->manifest, name->group, name->name, entry->dtype, entry->ndim, entry->shape);
    for (int k = 0; k < entry->n && !unread; k++)
        TT_TRY(add_chunk(s, entry, &entry->piece[k], tensor, &unread));
    if (unread) {
        add_unread(s, entry, name, unread);
        tt_manifest_remove(s->manifest, tensor);
    }
out:
    return rc;
}

/* Adds a count, such as the number of steps. An optimizer keeps a count per parameter; the largest one is used. */
static int add_number(struct scan *s, const struct tt_dcp_entry *entry, enum tt_dcp_role role)
{
    static const char *const key[] = {[TT_DCP_STEP] = "step",
                                      [TT_DCP_TOKENS] = "ntokens_seen",
                                      [TT_DCP_OPTIMIZER_STEP] = "optimizer_step",
                                      [TT_DCP_LR_STEP] = "lr_step"};
    int64_t before = (int64_t)json_integer_value(json_object_get(s->manifest->meta, key[role]));
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
        (void)json_object_set_new(s->manifest->meta, key[role], json_integer((json_int_t)number));
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

/* Fills in missing counts. If the step is missing, the number of the optimizer's updates replaces it. Tokens, which
 * torchtitan 0.1 did not count, become 0. The other counts become the step. */
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

int tt_dcp_scan(const char *path, struct tt_manifest *ret_manifest, const char **ret_kind)
{
    struct scan s = {.folder = path,
                     .kind = "manifest",
                     .other = json_array(),
                     .beside = json_array(),
                     .unread = json_array(),
                     .manifest = ret_manifest};
    char *metadata = tt_format("%s/" TT_DCP_METADATA, path), *bytes = NULL;
    size_t size = 0;
    int rc = 0;

    *ret_manifest = (struct tt_manifest){.meta = json_object()};
    TT_TRY(tt_file_read(metadata, &bytes, &size));
    TT_TRY(tt_dcp_metadata_parse(metadata, bytes, size, &s.metadata));
    TT_TRY(add_files(&s));
    TT_TRY(add_entries(&s));
    tt_manifest_sort(ret_manifest);
    TT_TRY(tt_manifest_check_names(ret_manifest, path)); /* renamed keys may have become equal */
    TT_TRY(tt_manifest_check_totals(ret_manifest, path));
    complete(ret_manifest->meta);
    (void)json_object_set_new(ret_manifest->meta, "torch",
                              json_pack("{s:O, s:O, s:O}", "other", s.other, "beside", s.beside, "unread", s.unread));
out:
    if (rc < 0)
        tt_manifest_release(ret_manifest);
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
    tt_dcp_metadata_release(&s.metadata);
    tt_free(bytes);
    tt_free(metadata);
    return rc;
}
