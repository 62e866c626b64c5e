/* SPDX-License-Identifier: MIT
 *
 * Values that neither files nor flags set: from another key, from the flavor, or from the run whose weights are loaded.
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/config/internal.h"

/* ---- keys that follow others ---- */

/* Whether the key was not set, or was set to null. */
static bool is_open(const struct tt_config *cfg, const char *path)
{
    struct tt_text value = {0};
    bool open;

    tt_config_value_text(cfg, tt_config_row_find(path), &value);
    open = strcmp(value.text, "null") == 0;
    tt_text_release(&value);
    return open;
}

static void follow(struct tt_config *cfg, const char *path, const char *leader)
{
    tt_config_set_origin(cfg, tt_config_row_find(path), tt_strdup(leader), tt_strdup(leader));
    tt_config_origin_of(cfg, tt_config_row_find(path))->is_derived = true;
}

void tt_config_follow(struct tt_config *cfg)
{
    struct tt_datasets *training = &cfg->training.dataset, *validation = &cfg->validation.dataset;

    tt_config_datasets_name(training);
    if (is_open(cfg, "validation.seq_len")) {
        cfg->validation.seq_len = cfg->training.seq_len;
        follow(cfg, "validation.seq_len", "training.seq_len");
    }
    if (is_open(cfg, "validation.dataset")) {
        *validation = tt_config_datasets_held_back(training, cfg->validation.split > 0.0);
        follow(cfg, "validation.dataset", "training.dataset");
    }
    tt_config_datasets_name(validation);
    if (!cfg->validation.dataset_path && cfg->training.dataset_path && !validation->is_list && !training->is_list &&
        strcmp(validation->entry->dataset, training->entry->dataset) == 0) {
        cfg->validation.dataset_path = tt_strdup(cfg->training.dataset_path);
        follow(cfg, "validation.dataset_path", "training.dataset_path");
    }
}

/* ---- the flavor ---- */

/* The row of a model dimension; NULL if a flavor cannot set it (another kind or section). */
static const struct tt_config_row *flavor_row(const char *path, enum tt_config_kind kind, enum tt_config_kind other)
{
    const struct tt_config_row *row = tt_config_row_find(path);

    if (!row || strncmp(row->path, "model.", 6) != 0 || (row->kind != kind && row->kind != other)) {
        (void)tt_fail(TT_EINTERNAL, "'%s' is not a key that a flavor can set to such a value", path);
        return NULL;
    }
    return row;
}

/* `dim: null` in a file means the same as no line: the value comes from the flavor. */
static bool is_left_to_flavor(const struct tt_config *cfg, const struct tt_config_row *row)
{
    struct tt_text value = {0};
    bool is_open;

    tt_config_value_text(cfg, row, &value);
    is_open = strcmp(value.text, "null") == 0 || strcmp(tt_config_origin_of(cfg, row)->origin, "flavor") == 0;
    tt_text_release(&value);
    return is_open;
}

int tt_config_set_flavor_int(struct tt_config *cfg, const char *path, int64_t value)
{
    const struct tt_config_row *row = flavor_row(path, TT_KIND_INT, TT_KIND_MAYBE);

    if (!row)
        return TT_EINTERNAL;
    if (!is_left_to_flavor(cfg, row))
        return 0;
    if (row->kind == TT_KIND_INT) {
        *(int64_t *)tt_config_member(cfg, row) = value;
    } else {
        *(int *)tt_config_member(cfg, row) = value != 0;
    }
    tt_config_set_origin(cfg, row, tt_strdup("flavor"), tt_strdup("flavor"));
    tt_config_origin_of(cfg, row)->is_derived = true;
    return 0;
}

int tt_config_set_flavor_real(struct tt_config *cfg, const char *path, double value)
{
    const struct tt_config_row *row = flavor_row(path, TT_KIND_REAL, TT_KIND_REAL);

    if (!row)
        return TT_EINTERNAL;
    if (!is_left_to_flavor(cfg, row))
        return 0;
    *(double *)tt_config_member(cfg, row) = value;
    tt_config_set_origin(cfg, row, tt_strdup("flavor"), tt_strdup("flavor"));
    tt_config_origin_of(cfg, row)->is_derived = true;
    return 0;
}

/* ---- another run ---- */

bool tt_config_is_set(const struct tt_config *cfg, const char *path)
{
    const struct tt_config_origin *o = tt_config_origin_of(cfg, tt_config_row_find(path));

    return !o->is_derived && strcmp(o->origin, "default") != 0;
}

int tt_config_adopt(struct tt_config *cfg, const char *path, const char *value, const char *origin)
{
    const struct tt_config_row *row = tt_config_row_find(path);
    struct tt_yaml_doc doc = {0};
    struct tt_text why = {0};
    int rc = 0;

    if (!row)
        return tt_fail(TT_EINTERNAL, "'%s' is not a key", path);
    if (tt_config_value_set(cfg, row, tt_config_flag_node(&doc, row, value), true, &why, NULL))
        tt_config_set_origin(cfg, row, tt_strdup(origin), tt_strdup(origin));
    else
        rc = tt_fail(TT_EDATA, "%s: %s: %s", origin, path, why.text);
    tt_yaml_release(&doc);
    tt_text_release(&why);
    return rc;
}
