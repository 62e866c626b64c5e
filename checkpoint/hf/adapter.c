/* SPDX-License-Identifier: MIT
 *
 * The file that describes adapters to PEFT. It has the members that PEFT itself writes for plain LoRA.
 */
#include "checkpoint/hf/adapter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/models/parts/lora.h"

/* The weights that the run began from; null: it did not say. */
static json_t *base_of(const json_t *meta)
{
    const json_t *config = json_object_get(meta, "config");
    json_t *path = json_object_get(json_object_get(config, "checkpoint"), "initial_load_path");

    if (!json_is_string(path))
        path = json_object_get(json_object_get(config, "model"), "hf_assets_path");
    return json_is_string(path) ? json_incref(path) : json_null();
}

static json_t *number(double value)
{
    return value == floor(value) && fabs(value) < 1e15 ? json_integer((json_int_t)value) : json_real(value);
}

static json_t *modules_of(const struct tt_lora *lora)
{
    json_t *modules = json_array();

    for (int i = 0; i < tt_lora_n_modules; i++)
        if (lora->modules & 1U << i)
            (void)json_array_append_new(modules, json_string(tt_lora_modules[i]));
    return modules;
}

int tt_hf_adapter_config(const struct tt_output *output, const struct tt_source *source, const struct tt_model *model)
{
    const struct tt_lora *lora = &model->dims.lora;
    json_t *config =
        json_pack("{s:s, s:s, s:o, s:I, s:o, s:f, s:s, s:b, s:b, s:b, s:b, s:b, s:o, s:n, s:o, s:o, s:n, s:n, s:n}",
                  "peft_type", "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path",
                  base_of(source->manifest.meta), "r", (json_int_t)lora->rank, "lora_alpha", number(lora->alpha),
                  "lora_dropout", 0.0, "bias", "none", "fan_in_fan_out", 0, "inference_mode", 1, "init_lora_weights", 1,
                  "use_dora", 0, "use_rslora", 0, "target_modules", modules_of(lora), "modules_to_save", "rank_pattern",
                  json_object(), "alpha_pattern", json_object(), "layers_to_transform", "layers_pattern", "revision");
    char *text = json_dumps(config, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
    int rc = tt_output_put(output, "adapter_config.json", text, strlen(text));

    free(text);
    json_decref(config);
    return rc;
}
