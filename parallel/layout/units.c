/* SPDX-License-Identifier: MIT
 *
 * Stages of a pipeline by module, wrap policies, units from the keys of the wrap policy, and the units that the reshard
 * policy keeps gathered.
 */
#include "parallel/layout/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/graph/graph.h"
#include "core/math/rng.h"
#include "core/math/round.h"
#include "core/optim/optim.h"
#include "core/tokenizer/regex.h"
#include "parallel/layout/placement.h"

/* --- regular expressions of policies --- */

int tt_patterns_init(enum tt_key key, struct tt_words words, struct tt_patterns *ret_patterns)
{
    struct tt_patterns p = {.key = key, .words = words};
    int rc = 0;

    p.regex = tt_calloc((size_t)words.n, sizeof(struct tt_regex *));
    p.used = tt_calloc((size_t)words.n + 1, sizeof *p.used);
    TT_TRY(tt_matcher_new(&p.matcher));
    for (int i = 0; i < words.n; i++)
        TT_TRY(tt_regex_new(words.word[i], strlen(words.word[i]), NULL, &p.regex[i]));
    *ret_patterns = p;
    return 0;
out:
    tt_patterns_release(&p);
    /* the user wrote the expression, so a bad one is a usage error */
    return rc == TT_EDATA ? tt_fail_key(TT_EUSAGE, key, "%s", tt_error_message()) : rc;
}

void tt_patterns_release(struct tt_patterns *p)
{
    for (int i = 0; p->regex && i < p->words.n; i++)
        tt_regex_free(p->regex[i]);
    tt_free(p->regex);
    tt_free(p->used);
    tt_matcher_free(p->matcher);
    *p = (struct tt_patterns){0};
}

int tt_patterns_find(struct tt_patterns *p, int first, const char *name, int *ret_index)
{
    size_t begin, end;
    bool found = false;
    int rc = 0;

    *ret_index = TT_NONE;
    for (int i = first; i < p->words.n && !found; i++) {
        TT_TRY(tt_matcher_find(p->matcher, p->regex[i], name, strlen(name), &found, &begin, &end));
        if (found)
            *ret_index = i;
        p->used[i] |= found;
    }
out:
    return rc;
}

/* Whether any expression matches in name. Tries all of them, to find the expressions that select nothing. */
static int match_all(struct tt_patterns *p, const char *name, bool *ret_any)
{
    int rc = 0;

    *ret_any = false;
    for (int i = TT_NONE;;) {
        TT_TRY(tt_patterns_find(p, i + 1, name, &i));
        if (i == TT_NONE)
            break;
        *ret_any = true;
    }
out:
    return rc;
}

/* ret_index [n_params] is for each parameter the first expression that matches its name, or TT_NONE. TT_EUSAGE names an
 * expression that is bad, or one that is the first match of no parameter; `what` is the message's word for an
 * expression. */
static int patterns_of_params(enum tt_key key, struct tt_words words, const struct tt_model *model, const char *what,
                              int *ret_index)
{
    struct tt_patterns patterns = {0};
    char wanted[80];
    int rc = 0;

    (void)snprintf(wanted, sizeof wanted, "parameter that an earlier %s has not taken", what);
    TT_TRY(tt_patterns_init(key, words, &patterns));
    for (int p = 0; p < model->n_params; p++)
        TT_TRY(tt_patterns_find(&patterns, 0, model->params[p].name, &ret_index[p]));
    rc = tt_patterns_check_used(&patterns, wanted, "layers.0.attention.wq.weight");
out:
    tt_patterns_release(&patterns);
    return rc;
}

int tt_patterns_check_used(const struct tt_patterns *p, const char *what, const char *example)
{
    for (int i = 0; i < p->words.n; i++)
        if (!p->used[i])
            return tt_fail_key(TT_EUSAGE, p->key, "'%s' matches no %s\nhelp: names look like %s", p->words.word[i],
                               what, example);
    return 0;
}

/* The expression of a rule may contain '=', so the last '=' separates it from its value. */
int tt_patterns_of_rules(enum tt_key key, struct tt_words rules, const struct tt_model *model, const char *what,
                         int (*read)(void *arg, int i, const char *rule, const char *value), void *arg, int *ret_index)
{
    struct tt_words regexes = {.is_list = true, .word = tt_calloc((size_t)rules.n + 1, sizeof(char *))};
    int rc = 0;

    for (int i = 0; i < rules.n; i++) {
        const char *rule = rules.word[i], *equals = strrchr(rule, '=');

        TT_TRY(read(arg, i, rule, equals && equals != rule ? equals + 1 : NULL));
        regexes.word[regexes.n++] = tt_strndup(rule, (size_t)(equals - rule));
    }
    rc = patterns_of_params(key, regexes, model, what, ret_index);
out:
    for (int i = 0; i < regexes.n; i++)
        tt_free(regexes.word[i]);
    tt_free((void *)regexes.word);
    return rc;
}

/* --- parameter groups of the optimizer --- */

static int apply_no_decay(struct tt_model *model, struct tt_words words)
{
    struct tt_patterns patterns = {0};
    bool any;
    int rc = 0;

    TT_TRY(tt_patterns_init(TT_KEY(optimizer.no_decay), words, &patterns));
    for (int p = 0; p < model->n_params; p++) {
        TT_TRY(match_all(&patterns, model->params[p].name, &any));
        model->params[p].no_decay |= any;
    }
    rc = tt_patterns_check_used(&patterns, "parameter", "layers.0.attention.wq.weight");
out:
    tt_patterns_release(&patterns);
    return rc;
}

static int read_factor(void *arg, int i, const char *rule, const char *value)
{
    char *end = NULL;
    double factor = value ? strtod(value, &end) : 0.0;

    if (!value || end == value || *end || !isfinite(factor) || factor < 0.0)
        return tt_fail_key(TT_EUSAGE, TT_KEY(optimizer.lr_factors),
                           "'%s' is not regex=factor, such as tok_embeddings=0.1\n"
                           "help: write regex=factor with a factor of at least 0",
                           rule);
    ((double *)arg)[i] = factor;
    return 0;
}

static int apply_factors(struct tt_model *model, struct tt_words words)
{
    double *factor = tt_calloc((size_t)words.n, sizeof *factor);
    int *index = tt_calloc((size_t)model->n_params, sizeof *index);
    int rc = tt_patterns_of_rules(TT_KEY(optimizer.lr_factors), words, model, "factor", read_factor, factor, index);

    for (int p = 0; p < model->n_params && rc == 0; p++)
        if (index[p] != TT_NONE)
            model->params[p].lr_factor = factor[index[p]];
    tt_free(factor);
    tt_free(index);
    return rc;
}

int tt_param_groups_apply(struct tt_model *model, struct tt_words no_decay, struct tt_words lr_factors)
{
    int rc = no_decay.n ? apply_no_decay(model, no_decay) : 0;

    return rc == 0 && lr_factors.n ? apply_factors(model, lr_factors) : rc;
}

void tt_param_groups_set_optim(struct tt_model *model, enum tt_optim_choice optim)
{
    const struct tt_optim_row *row = tt_optim_row(optim);

    for (int p = 0; p < model->n_params; p++) {
        struct tt_param *param = &model->params[p];
        bool matrix = param->block >= 0 && param->ndim == 2 && !param->of_experts && !param->vectors && !param->frozen;
        struct tt_box whole = tt_box_whole(param->ndim, param->shape);
        bool in_blocks =
            param->block != TT_BLOCK_EMBEDDINGS && !param->tied && tt_box_volume(&whole) >= TT_OPTIM_BLOCKS_FROM;

        param->optim = (row->of_matrices && !matrix) || (row->codes[0] && !in_blocks) ? TT_OPTIM_ADAMW : optim;
    }
}

/* --- the stages of a pipeline, by module --- */

static bool is_output(const struct tt_model *model, int param, int part)
{
    return part == 1 || strncmp(model->params[param].name, "output.", 7) == 0;
}

static int module_of(const struct tt_model *model, int param, int part)
{
    int block = model->params[param].block, last = tt_model_modules(model) - 1;

    if (is_output(model, param, part))
        return last;
    return block >= 0 ? 1 + block : block == TT_BLOCK_HEAD ? last - 1 : 0;
}

/*
 * The stage that uses a parameter. A tied weight is used twice: by the embeddings (part 0) and by the output (part 1).
 * places NULL: there is one stage, 0.
 */
static int param_stage(const struct tt_stage_places *places, const struct tt_model *model, int param, int part)
{
    return places ? places->module_stage[module_of(model, param, part)] : 0;
}

/* The pipeline rank whose copy of a parameter is saved: the one that uses part 0. places NULL: 0. */
static int param_pp(const struct tt_stage_places *places, const struct tt_model *model, int param)
{
    return places ? places->rank_of_stage[param_stage(places, model, param, 0)] : 0;
}

/* The module of a node that is in no block. The embeddings come before all blocks; norm and output come after them. */
static int module_outside(const struct tt_graph *graph, const struct tt_model *model, const struct tt_node *node,
                          bool after)
{
    int last = tt_model_modules(model) - 1;

    for (int i = 0; i < node->n_in; i++) {
        const struct tt_value *in = node->in[i] == TT_NONE ? NULL : &graph->values[node->in[i]];

        if (after && in && in->kind == TT_VALUE_PARAM && is_output(model, in->param, in->part))
            return last;
    }
    return after ? last - 1 : 0;
}

void tt_graph_stages_by_place(const struct tt_graph *graph, const struct tt_model *model,
                              const struct tt_stage_places *places, int *ret_stage_of)
{
    bool after = false;
    int most = 0;

    for (int n = 0; n < graph->n_nodes; n++) {
        const struct tt_node *node = &graph->nodes[n];
        /* a gather of rows belongs to the stage that reads them: the stage before sends only its ranks' own rows */
        const struct tt_node *reader = node->op == TT_OP_GATHER_ROWS && n + 1 < graph->n_nodes ? node + 1 : node;
        int module = node->block == TT_NONE ? module_outside(graph, model, reader, after) : 1 + node->block;

        after = after || node->block != TT_NONE;
        most = module > most ? module : most; /* modules after the output belong to the output's stage */
        ret_stage_of[n] = places->module_stage[most];
    }
}

void tt_stage_places_release(struct tt_stage_places *places)
{
    tt_free(places->module_stage);
    *places = (struct tt_stage_places){0};
}

/* --- wrap policies --- */

static int64_t block_key(const struct tt_model *model, int param)
{
    int block = model->params[param].block;

    return block == TT_BLOCK_EMBEDDINGS && model->dims.tied == 1 ? TT_BLOCK_HEAD : block;
}

static void by_block(const struct tt_model *model, int64_t bytes, int64_t *ret_keys)
{
    (void)bytes;
    for (int p = 0; p < model->n_params; p++)
        ret_keys[p] = block_key(model, p);
}

static void by_model(const struct tt_model *model, int64_t bytes, int64_t *ret_keys)
{
    (void)bytes;
    for (int p = 0; p < model->n_params; p++)
        ret_keys[p] = 0;
}

static void by_param(const struct tt_model *model, int64_t bytes, int64_t *ret_keys)
{
    (void)bytes;
    for (int p = 0; p < model->n_params; p++)
        ret_keys[p] = p;
}

static void by_size(const struct tt_model *model, int64_t bytes, int64_t *ret_keys)
{
    int64_t key = 0, have = 0;

    for (int p = 0; p < model->n_params; p++) {
        const struct tt_param *param = &model->params[p];
        int64_t size = (int64_t)sizeof(float);

        for (int d = 0; d < param->ndim; d++)
            size *= param->shape[d];
        ret_keys[p] = key;
        have += size;
        if (have >= bytes) {
            key++;
            have = 0;
        }
    }
}

/*
 * To add a wrap policy:
 *   1. A row here: a function that gives every parameter the key of its unit (outside of the blocks, `block_key`).
 *   2. Its word in TT_WRAP_CHOICES (core/keys/choices.h), in the key's help in schema.def, and in titan-parallel(7),
 *      CHOOSING POLICIES.
 *   3. tests/par/test_policies.c: a line at the end of `wraps`, and the same rule in other words in `unit_of`;
 *      test_matrix.c: a line before the expressions in `wraps`; a line in test_planned.c. test_policies.c and
 *      tests/unit/test_config_errors.c contain the messages that list all policies.
 */
const struct tt_wrap_row tt_wrap_rows[] = {
    {"block", by_block},
    {"model", by_model},
    {"param", by_param},
    {"size:", by_size},
};
const int tt_wrap_n_rows = sizeof tt_wrap_rows / sizeof tt_wrap_rows[0];

/* A row's name that ends in ':' is followed by a number of bytes. */
static bool row_matches(const struct tt_wrap_row *row, const char *name, int64_t *ret_bytes)
{
    size_t n = strlen(row->name);

    if (row->name[n - 1] != ':')
        return strcmp(row->name, name) == 0;
    return strncmp(row->name, name, n) == 0 && tt_text_to_bytes(name + n, ret_bytes) && *ret_bytes > 0;
}

/* Keys of expressions are larger than the keys of blocks. */
static int by_patterns(const struct tt_model *model, struct tt_words words, int64_t *ret_keys)
{
    const int64_t beyond = (int64_t)1 << 40;
    int *index = tt_calloc((size_t)model->n_params, sizeof *index);
    int rc = patterns_of_params(TT_KEY(parallelism.fsdp_wrap_policy), words, model, "expression", index);

    by_block(model, 0, ret_keys);
    for (int p = 0; p < model->n_params && rc == 0; p++)
        if (index[p] != TT_NONE)
            ret_keys[p] = beyond + index[p];
    tt_free(index);
    return rc;
}

/*
 * The key of every parameter; ret_keys has n_params items.
 *   name      of a row of the table, or "size:" followed by bytes; not read if there are patterns
 *   patterns  regular expressions, or n 0
 * Errors: TT_EUSAGE, which names the policy, or an expression that is the first match for no parameter.
 */
static int wrap_keys(const struct tt_model *model, const char *name, struct tt_words patterns, int64_t *ret_keys)
{
    struct tt_text choices = {0};
    int64_t bytes = 0;
    int rc;

    if (patterns.n)
        return by_patterns(model, patterns, ret_keys);
    for (int i = 0; i < tt_wrap_n_rows; i++)
        if (row_matches(&tt_wrap_rows[i], name, &bytes)) {
            tt_wrap_rows[i].keys(model, bytes, ret_keys);
            return 0;
        }
    for (int i = 0; i < tt_wrap_n_rows; i++)
        tt_text_add(&choices, "%s%s%s", i ? ", " : "", tt_wrap_rows[i].name,
                    strchr(tt_wrap_rows[i].name, ':') ? "<bytes>" : "");
    rc = tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.fsdp_wrap_policy),
                     "'%s' is not a wrap policy\nhelp: use %s, or a list of regular expressions", name, choices.text);
    tt_text_release(&choices);
    return rc;
}

/* --- names of units --- */

/* The parameter's name without ".weight". */
static void add_short_name(struct tt_text *name, const struct tt_model *model, int param)
{
    const char *full = model->params[param].name;
    size_t size = strlen(full);

    if (size > 7 && strcmp(full + size - 7, ".weight") == 0)
        size -= 7;
    tt_text_add(name, "%.*s", (int)size, full);
}

/* With expert parallelism the experts of a block are a separate unit, since their replicas are on other ranks. */
static bool is_shared(const struct tt_mesh *mesh, const struct tt_model *model, int param)
{
    return mesh->size[TT_MESH_EP] > 1 && tt_param_is_of_experts(&model->params[param]);
}

/* Whether the unit consists of all parameters of a block and no others. block_params: the number of parameters of each
 * block. */
static bool is_block(const struct tt_model *model, const struct tt_unit *unit, int block, int block_params)
{
    if (block < 0 || unit->n_params != block_params)
        return false;
    for (int i = 0; i < unit->n_params; i++)
        if (model->params[unit->params[i].param].block != block)
            return false;
    return true;
}

/* [block] the number of its parameters, without packed ones and expert-parallel experts, which are separate units. The
 * caller frees it. */
static int *count_block_params(const struct tt_mesh *mesh, const struct tt_model *model)
{
    int *count, n = 0;

    for (int p = 0; p < model->n_params; p++)
        n = model->params[p].block >= n ? model->params[p].block + 1 : n;
    count = tt_calloc((size_t)n + 1, sizeof *count);
    for (int p = 0; p < model->n_params; p++)
        if (model->params[p].block >= 0 && !model->params[p].buffer && !is_shared(mesh, model, p))
            count[model->params[p].block] += !model->params[p].packing;
    return count;
}

/* The name of a unit in messages and logs: "layers.3", "model", "norm+output",
 * "layers.0.attention.wq..layers.1.attention.wk". */
static char *unit_name(const struct tt_mesh *mesh, const struct tt_model *model, const struct tt_unit *unit,
                       const int *block_params)
{
    enum { MOST_NAMES = 3 };
    int block = model->params[unit->params[0].param].block, n_params = 0; /* the model's, without buffers */
    struct tt_text name = {0};

    for (int p = 0; p < model->n_params; p++)
        n_params += !model->params[p].buffer;
    if (unit->buffers)
        return tt_strdup("buffers");
    if (unit->packing && is_block(model, unit, block, unit->n_params))
        return tt_format("layers.%d.base", block);
    if (is_shared(mesh, model, unit->params[0].param) && is_block(model, unit, block, unit->n_params))
        return tt_format("layers.%d.experts", block);
    if (block >= 0 && is_block(model, unit, block, block_params[block]))
        return tt_format("layers.%d", block);
    if (unit->n_params == n_params)
        return tt_strdup("model");
    add_short_name(&name, model, unit->params[0].param);
    for (int i = 1; i < unit->n_params && unit->n_params <= MOST_NAMES; i++) {
        tt_text_add(&name, "+");
        add_short_name(&name, model, unit->params[i].param);
    }
    if (unit->n_params > MOST_NAMES) {
        tt_text_add(&name, "..");
        add_short_name(&name, model, unit->params[unit->n_params - 1].param);
    }
    return name.text;
}

/* --- the shards --- */

/* Whether the optimizer keeps the moments of a parameter in blocks. */
static bool has_blocks(const struct tt_param *param)
{
    return !param->frozen && tt_optim_row(param->optim)->codes[0];
}

static int64_t width_of(const struct tt_param *param)
{
    struct tt_box whole = tt_box_whole(param->ndim, param->shape);

    return tt_box_row_elements(&whole);
}

/*
 * tt_rows.run of a parameter with blocks: 0 if blocks run through all of it, as in bitsandbytes. Otherwise ranks could
 * divide a block: tensor parallelism cuts rows into grains, or between rows where no block ends, and so does expert
 * parallelism. Then each grain of a row, or each row, begins with a new block. It makes no difference if it is a
 * multiple of a block.
 */
static int64_t run_of(const struct tt_mesh *mesh, const struct tt_param *param)
{
    int64_t width = width_of(param);

    if (param->of_experts)
        return width;
    if (mesh->tp_grains > 1 && param->tp == TT_TP_COLUMNS)
        return tt_div_up(width, mesh->tp_grains);
    if (mesh->tp_grains > 1 && param->tp == TT_TP_ROWS &&
        tt_div_up(param->shape[0], mesh->tp_grains) * width % TT_DYNAMIC_BLOCK)
        return width;
    return 0;
}

/* The fewest rows that are whole blocks, if blocks run through all rows. */
static int64_t rows_of_blocks(int64_t width)
{
    int64_t rows = 1;

    while (rows * width % TT_DYNAMIC_BLOCK)
        rows *= 2;
    return rows;
}

struct tt_placement tt_param_placement(const struct tt_mesh *mesh, const struct tt_stage_places *places,
                                       const struct tt_model *model, int param)
{
    int pp = param_pp(places, model, param), dim = model->params[param].tp == TT_TP_COLUMNS ? 1 : 0;
    int64_t step = 0;

    if (model->params[param].buffer)
        return (struct tt_placement){1, {{TT_GROUP_SELF, 0, 0, 0}}, TT_GROUP_STAGE, pp};
    if (is_shared(mesh, model, param))
        return (struct tt_placement){2, {{TT_GROUP_EP, 0, 0, 0}, {TT_GROUP_EFSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, pp};
    if (has_blocks(&model->params[param]) && run_of(mesh, &model->params[param]) == 0)
        step = rows_of_blocks(width_of(&model->params[param]));
    if (model->params[param].tp == TT_TP_WHOLE)
        return (struct tt_placement){1, {{TT_GROUP_FSDP, 0, 0, step}}, TT_GROUP_COPIES, pp};
    return (struct tt_placement){
        2, {{TT_GROUP_TP, dim, mesh->tp_grains, 0}, {TT_GROUP_FSDP, 0, 0, step}}, TT_GROUP_REPLICATE, pp};
}

struct tt_placement tt_blocks_placement(const struct tt_mesh *mesh, const struct tt_stage_places *places,
                                        const struct tt_model *model, int param, int *ret_ndim, int64_t *ret_shape)
{
    const struct tt_param *p = &model->params[param];
    struct tt_placement placement = tt_param_placement(mesh, places, model, param);
    int64_t width = width_of(p), run = run_of(mesh, p), rows = p->shape[0];

    *ret_ndim = 2;
    ret_shape[0] = rows;
    ret_shape[1] = run ? tt_blocks_count(width, run) : width / TT_DYNAMIC_BLOCK;
    if (run || width % TT_DYNAMIC_BLOCK == 0)
        return placement;
    *ret_ndim = 1;
    ret_shape[0] = tt_blocks_count(rows * width, 0);
    for (int c = 0; c < placement.n_cuts; c++) {
        bool last = c + 1 == placement.n_cuts; /* FSDP's; ranks that share a layer cut whole blocks, or one has all */
        int64_t of_grain = last ? placement.cut[c].step : tt_div_up(rows, mesh->tp_grains);

        placement.cut[c].dim = 0;
        placement.cut[c].step = mesh->tp_grains == 1 && !last ? 0 : of_grain * width / TT_DYNAMIC_BLOCK;
    }
    return placement;
}

/* tt_unit_param.blocks */
static struct tt_box *blocks_of(const struct tt_mesh *mesh, const struct tt_placement *placement,
                                const struct tt_param *param)
{
    int tp = tt_mesh_size(mesh, TT_GROUP_TP), fsdp = tt_mesh_size(mesh, TT_GROUP_FSDP);
    struct tt_box *blocks;

    if (tp == 1 || !tt_optim_row(param->optim)->of_matrices || param->frozen)
        return NULL;
    blocks = tt_calloc((size_t)tp, sizeof *blocks);
    for (int i = 0; i < tp; i++) {
        bool repeats = param->tp == TT_TP_WHOLE && i > 0;

        blocks[i] = tt_placement_gathered(mesh, placement, param->ndim, param->shape, repeats ? 0 : i * fsdp);
        if (repeats)
            blocks[i].shape[0] = 0;
    }
    return blocks;
}

static void add_param(struct tt_layout *layout, int u, const struct tt_model *model, const struct tt_mesh *mesh,
                      int rank, int param)
{
    const struct tt_param *p = &model->params[param];
    const struct tt_optim_row *optim = tt_optim_row(p->optim);
    struct tt_unit *unit = &layout->units[u];
    const struct tt_placement placement = tt_param_placement(mesh, NULL, model, param); /* of any stage */
    int part = tt_placement_part(mesh, &placement, rank);
    struct tt_box whole = tt_box_whole(p->ndim, p->shape);
    int64_t width = tt_box_row_elements(&whole);

    layout->slot_of[param] = unit->n_params;
    unit->shard_group = placement.cut[placement.n_cuts - 1].group;
    /* ranks along tp compute the same gradient of a parameter that all of them hold */
    unit->replicate_group = TT_GROUP_REPLICATE;
    unit->params = tt_realloc(unit->params, (size_t)unit->n_params + 1, sizeof *unit->params);
    unit->params[unit->n_params++] = (struct tt_unit_param){
        .param = param,
        .offset = unit->shard_elements,
        .chunk = tt_placement_padded(mesh, &placement, p->ndim, p->shape),
        .box = tt_placement_box(mesh, &placement, p->ndim, p->shape, part),
        .rows = tt_placement_gathered(mesh, &placement, p->ndim, p->shape, part).shape[0],
        .width = width,
        .height = whole.shape[0],
        .blocks = blocks_of(mesh, &placement, p),
        .grain = p->tp == TT_TP_COLUMNS ? tt_div_up(width, mesh->tp_grains) : width,
        .adds_squares = tt_placement_copy(mesh, &placement, rank) == 0,
        .stream = tt_rng_make(0, p->name).stream,
        .optim = p->optim,
        .lr_factor = p->lr_factor,
        .no_decay = p->no_decay,
        .block = p->block,
    };
    if (p->packing) { /* a part consists of whole rows, or of parts of rows, each packed by itself */
        struct tt_unit_param *place = &unit->params[unit->n_params - 1];
        int64_t columns = tt_placement_gathered(mesh, &placement, p->ndim, p->shape, part).shape[1];

        place->chunk = place->chunk / columns * tt_packing_row_bytes(p->packing, columns);
    }
    unit->packing = p->packing;
    unit->buffers = p->buffer;
    unit->shard_elements += unit->params[unit->n_params - 1].chunk;
    if (p->frozen)
        return;
    unit->n_trained++;
    unit->trained_elements = unit->shard_elements;
    for (int k = 0; k < TT_OPTIM_MOMENTS; k++)
        if (optim->moments[k])
            unit->moment_elements[k] = unit->shard_elements;
    if (has_blocks(p)) {
        struct tt_unit_param *place = &unit->params[unit->n_params - 1];

        place->run = run_of(mesh, p);
        place->first_block = unit->n_blocks;
        unit->n_blocks += tt_blocks_count(place->chunk, place->run);
    } else {
        unit->codes_begin = unit->shard_elements;
    }
    if (optim->of_matrices)
        return;
    unit->first_matrix++;
    unit->matrices_begin = unit->shard_elements;
}

static void add_grad(struct tt_unit *unit, const struct tt_unit_param *place, int part)
{
    unit->grads[unit->n_grads++] = (struct tt_unit_grad){place->param, part, unit->grad_elements, place->chunk};
    unit->grad_elements += place->chunk;
}

/* The other pipeline rank that uses a tied weight, TT_NONE if there is none. */
static int other_pp(const struct tt_stage_places *places, const struct tt_model *model, int param, int pp)
{
    for (int part = 0; places && part < 2 && model->params[param].tied; part++) {
        int at = places->rank_of_stage[param_stage(places, model, param, part)];

        if (at != pp)
            return at;
    }
    return TT_NONE;
}

/* First sums are in the order of the parameters; the second sums of tied weights follow. */
static void add_grads(struct tt_unit *unit, const struct tt_model *model, const struct tt_stage_places *places, int pp)
{
    unit->grads = tt_calloc(2 * (size_t)unit->n_trained + 1, sizeof *unit->grads);
    unit->shared_grad = TT_NONE;
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < unit->n_trained; i++) {
            const struct tt_unit_param *place = &unit->params[i];
            int other = other_pp(places, model, place->param, pp);

            if (part == 0 && other != TT_NONE) {
                unit->shared_grad = i;
                unit->shared_pp = other;
                add_grad(unit, place, param_pp(places, model, place->param) != pp);
                unit->params[i].adds_squares &= unit->grads[i].part == 0;
            } else if (part == 0 || (model->params[place->param].tied && other == TT_NONE)) {
                add_grad(unit, place, part);
            }
        }
}

struct keyed {
    int64_t key;
    int stage;
    int param;
};

static int compare_keyed(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;

    return x->key != y->key       ? (x->key < y->key ? -1 : 1)
           : x->stage != y->stage ? x->stage - y->stage
                                  : x->param - y->param;
}

/* For every parameter, the first parameter with the same key in the same stage. The caller frees it. */
static int *find_leaders(const int64_t *keys, const int *stages, int n)
{
    struct keyed *sorted = tt_calloc((size_t)n + 1, sizeof *sorted);
    int *leader = tt_calloc((size_t)n + 1, sizeof *leader);

    for (int p = 0; p < n; p++)
        sorted[p] = (struct keyed){keys[p], stages[p], p};
    qsort(sorted, (size_t)n, sizeof *sorted, compare_keyed);
    for (int i = 0; i < n; i++)
        leader[sorted[i].param] = i > 0 && sorted[i].key == sorted[i - 1].key && sorted[i].stage == sorted[i - 1].stage
                                      ? leader[sorted[i - 1].param]
                                      : sorted[i].param;
    tt_free(sorted);
    return leader;
}

/* Ranks may share packed rows by columns only between blocks. */
static int check_packed(const struct tt_mesh *mesh, const struct tt_param *param)
{
    int ranks = tt_mesh_size(mesh, TT_GROUP_TP);
    int64_t block = tt_packing_block(param->packing), columns = param->shape[1] / ranks;

    if (!param->packing || param->tp != TT_TP_COLUMNS || ranks == 1)
        return 0;
    block = block > 1 ? block : 2; /* digests are of pairs of bytes */
    if (columns * ranks == param->shape[1] && columns % block == 0)
        return 0;
    return tt_fail_key(
        TT_EUSAGE, TT_KEY(lora.base_dtype),
        "%d ranks of tensor parallelism share the %lld columns of %s, and the part of a rank is not a multiple "
        "of the block size %lld that %s needs\n"
        "help: set %s to a smaller number, or %s to bfloat16 or int8",
        ranks, (long long)param->shape[1], param->name, (long long)block, tt_packing_name(param->packing),
        TT_KEY_NAME(parallelism.tensor_parallel_degree), TT_KEY_NAME(lora.base_dtype));
}

enum { TURNS = 4 };

/* The sort key of a parameter within its unit. In this order, the gradients of the unit, each of its moments, and its
 * Muon updates are contiguous arrays. */
static int turn_of(const struct tt_param *param)
{
    const struct tt_optim_row *optim = tt_optim_row(param->optim);

    return param->frozen ? TURNS - 1 : optim->of_matrices ? 2 : optim->moments[1] ? 0 : 1;
}

static const int64_t BEYOND_KEYS = (int64_t)1 << 50; /* larger than any key of a wrap policy */
static const int64_t PACKED_KEYS = (int64_t)1 << 51; /* larger than the keys of shared experts */

/* Units are numbered in the order of their first parameters. */
static int make_units(struct tt_layout *layout, const struct tt_model *model, const struct tt_mesh *mesh, int rank,
                      const struct tt_sharding *sharding, const struct tt_stage_places *places)
{
    int64_t *keys = tt_calloc((size_t)model->n_params, sizeof *keys);
    int *stages = tt_calloc((size_t)model->n_params, sizeof *stages);
    int *leader = NULL, *block_params = count_block_params(mesh, model),
        pp = tt_mesh_coordinate(mesh, rank, TT_MESH_PP);
    int rc = 0;

    for (int p = 0; p < model->n_params; p++)
        TT_TRY(check_packed(mesh, &model->params[p]));
    TT_TRY(wrap_keys(model, sharding->wrap, sharding->wrap_patterns, keys));
    for (int p = 0; p < model->n_params; p++) {
        stages[p] = TT_NONE; /* the first stage of this pipeline rank that uses the parameter */
        for (int part = 0; part <= (int)model->params[p].tied && stages[p] == TT_NONE; part++)
            if (!places || places->rank_of_stage[param_stage(places, model, p, part)] == pp)
                stages[p] = param_stage(places, model, p, part);
        if (model->params[p].buffer)
            keys[p] = INT64_MAX; /* buffers are a separate unit under every policy */
        keys[p] += is_shared(mesh, model, p) ? BEYOND_KEYS : 0;
        keys[p] += model->params[p].packing * PACKED_KEYS; /* packed weights form units of bytes, of one packing each */
    }
    leader = find_leaders(keys, stages, model->n_params);
    layout->units = tt_calloc((size_t)model->n_params, sizeof *layout->units);
    for (int p = 0; p < model->n_params; p++)
        layout->unit_of[p] = stages[p] == TT_NONE ? TT_NONE
                             : leader[p] == p     ? layout->n_units++
                                                  : layout->unit_of[leader[p]];
    for (int turn = 0; turn < TURNS; turn++)
        for (int p = 0; p < model->n_params; p++)
            if (tt_layout_has(layout, p) && turn_of(&model->params[p]) == turn)
                add_param(layout, layout->unit_of[p], model, mesh, rank, p);
    for (int u = 0; u < layout->n_units; u++) {
        layout->units[u].name = unit_name(mesh, model, &layout->units[u], block_params);
        add_grads(&layout->units[u], model, places, pp);
    }
out:
    tt_free(leader);
    tt_free(stages);
    tt_free(block_params);
    tt_free(keys);
    return rc;
}

/* --- the units that stay gathered --- */

/* Whether the unit contains a parameter of a block. Norm and output belong to TT_BLOCK_HEAD, where backward begins; so
 * does a tied embedding, since it is also the output's weight. */
static bool has_block(const struct tt_model *model, const struct tt_unit *unit, int64_t block)
{
    for (int i = 0; i < unit->n_params; i++)
        if (block_key(model, unit->params[i].param) == block)
            return true;
    return false;
}

static int keep_selected(struct tt_layout *layout, const struct tt_model *model, struct tt_words words, bool in_stages)
{
    struct tt_patterns patterns = {0};
    bool any;
    int rc = 0;

    TT_TRY(tt_patterns_init(TT_KEY(parallelism.fsdp_reshard_after_forward), words, &patterns));
    for (int u = 0; u < layout->n_units; u++) {
        struct tt_unit *unit = &layout->units[u];

        unit->reshard_after_forward = true;
        for (int k = -1; k < unit->n_params; k++) {
            TT_TRY(match_all(&patterns, k < 0 ? unit->name : model->params[unit->params[k].param].name, &any));
            unit->reshard_after_forward &= !any;
        }
    }
    if (!in_stages)
        rc = tt_patterns_check_used(&patterns, "unit and none of its parameters", layout->units[0].name);
out:
    tt_patterns_release(&patterns);
    return rc;
}

static int keep_part(struct tt_layout *layout, int n)
{
    int S = layout->groups[TT_GROUP_FSDP].n;
    struct tt_text divisors = {0};
    int rc;

    if (n >= 1 && S % n == 0) {
        for (int u = 0; u < layout->n_units; u++) {
            int ranks = tt_unit_shard(layout, u).n;

            layout->units[u].reshard_after_forward = n > 1;
            layout->units[u].keep_degree = n > 1 && n < ranks && ranks % n == 0 ? n : 0;
        }
        return 0;
    }
    for (int d = 1; d <= S; d++)
        if (S % d == 0)
            tt_text_add(&divisors, "%s%d", d > 1 ? ", " : "", d);
    rc = tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.fsdp_reshard_after_forward),
                     "%d does not divide the %d shard rank%s\nhelp: use %s", n, S, S == 1 ? "" : "s", divisors.text);
    tt_text_release(&divisors);
    return rc;
}

/* in_stages: the layout covers some stages of a pipeline; by default all its units stay gathered, as in torchtitan. */
static int choose_kept(struct tt_layout *layout, const struct tt_model *model, const struct tt_sharding *sharding,
                       bool in_stages)
{
    for (int u = 0; u < layout->n_units; u++) {
        struct tt_unit *unit = &layout->units[u];
        bool head = has_block(model, unit, TT_BLOCK_HEAD);

        unit->reshard_after_forward = sharding->reshard == TT_RESHARD_AFTER_FORWARD_ALWAYS ||
                                      (sharding->reshard == TT_RESHARD_AFTER_FORWARD_DEFAULT && !in_stages && !head) ||
                                      (sharding->reshard == TT_RESHARD_AFTER_FORWARD_LAST_LAYER && !head &&
                                       !has_block(model, unit, model->dims.n_layers - 1));
    }
    if (sharding->reshard == TT_RESHARD_AFTER_FORWARD_PATTERNS)
        return keep_selected(layout, model, sharding->keep, in_stages);
    if (sharding->reshard == TT_RESHARD_AFTER_FORWARD_PART)
        return keep_part(layout, sharding->reshard_part);
    return 0;
}

struct tt_sharding tt_sharding_of(struct tt_words wrap, struct tt_words reshard)
{
    static const struct {
        const char *word;
        enum tt_reshard reshard;
    } words[] = {
        {"always", TT_RESHARD_AFTER_FORWARD_ALWAYS},         {"true", TT_RESHARD_AFTER_FORWARD_ALWAYS},
        {"never", TT_RESHARD_AFTER_FORWARD_NEVER},           {"false", TT_RESHARD_AFTER_FORWARD_NEVER},
        {"last_layer", TT_RESHARD_AFTER_FORWARD_LAST_LAYER},
    };
    struct tt_sharding sharding = {.wrap = wrap.word[0]};

    if (wrap.is_list)
        sharding.wrap_patterns = wrap;
    if (reshard.is_list) {
        sharding.reshard = TT_RESHARD_AFTER_FORWARD_PATTERNS;
        sharding.keep = reshard;
    } else if (strspn(reshard.word[0], "0123456789") == strlen(reshard.word[0])) {
        sharding.reshard = TT_RESHARD_AFTER_FORWARD_PART;
        sharding.reshard_part = (int)strtol(reshard.word[0], NULL, 10);
    }
    for (size_t i = 0; !reshard.is_list && i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i].word, reshard.word[0]) == 0)
            sharding.reshard = words[i].reshard;
    return sharding;
}

int tt_layout_new(const struct tt_model *model, const struct tt_mesh *mesh, int rank,
                  const struct tt_sharding *sharding, const struct tt_stage_places *places,
                  struct tt_layout **ret_layout)
{
    struct tt_layout *layout = tt_calloc(1, sizeof *layout);
    int rc = 0;

    for (int id = 0; id < TT_GROUPS; id++)
        layout->groups[id] = tt_mesh_place(mesh, rank, (enum tt_group_id)id);
    layout->counts_tokens = tt_mesh_owns(mesh, rank, TT_GROUP_BATCH);
    layout->adds_losses = tt_mesh_coordinate(mesh, rank, TT_MESH_TP) == 0;
    layout->experts = (int)model->dims.moe.experts;
    layout->blocks = layout->experts ? (int)model->dims.n_layers : 0;
    layout->n_params = model->n_params;
    layout->unit_of = tt_calloc((size_t)model->n_params, sizeof *layout->unit_of);
    layout->slot_of = tt_calloc((size_t)model->n_params, sizeof *layout->slot_of);
    TT_TRY(make_units(layout, model, mesh, rank, sharding, places));
    TT_TRY(choose_kept(layout, model, sharding, places != NULL));
    *ret_layout = layout;
    layout = NULL;
out:
    tt_layout_free(layout);
    return rc;
}

void tt_layout_free(struct tt_layout *layout)
{
    if (!layout)
        return;
    for (int u = 0; u < layout->n_units; u++) {
        for (int i = 0; i < layout->units[u].n_params; i++)
            tt_free(layout->units[u].params[i].blocks);
        tt_free(layout->units[u].name);
        tt_free(layout->units[u].params);
        tt_free(layout->units[u].grads);
    }
    tt_free(layout->units);
    tt_free(layout->unit_of);
    tt_free(layout->slot_of);
    tt_free(layout);
}
