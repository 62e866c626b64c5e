/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_MODEL_HELP_H
#define TT_TESTS_MODEL_HELP_H

/** Parameters of a model and their initial values, for the tests of core/models. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/models/model.h"
#include "core/os/file.h"

/* The parameter of that name, which must exist. */
static inline struct tt_param *find_param(const struct tt_model *model, const char *name)
{
    for (int p = 0; p < model->n_params; p++)
        if (strcmp(model->params[p].name, name) == 0)
            return &model->params[p];
    fail_msg("no parameter %s", name);
    return NULL;
}

/* Initial values of the rows from `begin` on. */
static inline void fill_rows(const struct tt_param *p, uint64_t seed, int64_t begin, int64_t rows, float *data)
{
    struct tt_box part = tt_box_rows(p->ndim, p->shape, begin, rows);

    tt_param_fill(p, seed, &part, data);
}

/* A flavor with some sizes replaced; overrides may be NULL. */
static inline struct tt_model *make_of(const char *name, const char *flavor, const struct tt_model_dims *overrides)
{
    struct tt_model *model = NULL;

    if (tt_model_new(name, flavor, overrides, NULL, &model) < 0)
        fail_msg("%s", tt_error_message());
    return model;
}

/* Checks that the call failed with that code and with a message that contains `part`. */
static inline void assert_fails(int rc, int code, const char *part)
{
    if (rc != code || !strstr(tt_error_message(), part))
        fail_msg("wanted %d with '%s', got %d: %s", code, part, rc, tt_error_message());
}

/*
 * Adds to a config.json what its class needs: DeepSeek-V2's has no default for the number of experts of a token, and
 * the default heads of GLM-4.5's would rotate an odd number of elements. sizes: what transformers says of the class;
 * may be NULL.
 */
static inline void add_needed(const char *type, json_t *config, json_t *sizes)
{
    static const struct {
        const char *type, *key, *size;
        int value;
    } needed[] = {{"deepseek_v2", "num_experts_per_tok", "top_k", 6}, {"glm4_moe", "head_dim", "head_dim", 128}};

    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (strcmp(needed[i].type, type) != 0)
            continue;
        (void)json_object_set_new(config, needed[i].key, json_integer(needed[i].value));
        if (sizes)
            (void)json_object_set_new(sizes, needed[i].size, json_integer(needed[i].value));
    }
}

/* The model of a folder with this config.json. */
static inline int model_of_json(const char *name, const char *json, struct tt_model **ret_model)
{
    char folder[] = "/tmp/titan-test-XXXXXX", *path;
    int rc;

    assert_non_null(mkdtemp(folder));
    path = tt_format("%s/config.json", folder);
    assert_int_equal(tt_file_replace(path, json, strlen(json)), 0);
    rc = tt_model_new(name, "hf", NULL, folder, ret_model);
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(path);
    return rc;
}

#endif
