/* SPDX-License-Identifier: MIT
 *
 * The imbalance of experts, in records and for TensorBoard.
 */
#include "cli/run/records/loads.h"

#include <stdio.h>

#include "core/base/mem.h"
#include "core/base/text.h"

static const int64_t *of_block(const struct tt_loads *loads, int block)
{
    return loads->slots + (int64_t)block * loads->experts;
}

static int64_t sum_of(const struct tt_loads *loads, int block)
{
    int64_t sum = 0;

    for (int x = 0; loads->slots && x < loads->experts; x++)
        sum += of_block(loads, block)[x];
    return sum;
}

static bool has(const struct tt_loads *loads, int block)
{
    return sum_of(loads, block) > 0;
}

double tt_loads_imbalance(const struct tt_loads *loads, int block)
{
    const int64_t *slots = of_block(loads, block);
    int64_t most = 0;

    for (int x = 0; x < loads->experts; x++)
        most = slots[x] > most ? slots[x] : most;
    return (double)most * (double)loads->experts / (double)sum_of(loads, block);
}

int tt_loads_worst(const struct tt_loads *loads)
{
    double most = 0.0;
    int worst = -1;

    for (int block = 0; block < loads->blocks; block++) {
        double imbalance = has(loads, block) ? tt_loads_imbalance(loads, block) : 0.0;

        if (imbalance > most) {
            most = imbalance;
            worst = block;
        }
    }
    return worst;
}

static json_t *list_of(const struct tt_loads *loads, int block)
{
    json_t *list = json_array();

    for (int x = 0; x < loads->experts; x++)
        (void)json_array_append_new(list, json_integer((json_int_t)of_block(loads, block)[x]));
    return list;
}

void tt_loads_record(const struct tt_loads *loads, json_t *record)
{
    int worst = tt_loads_worst(loads);
    json_t *imbalances, *all;

    if (worst < 0)
        return;
    imbalances = json_object();
    all = json_object();
    for (int block = 0; block < loads->blocks; block++) {
        char layer[16];

        if (!has(loads, block))
            continue;
        (void)snprintf(layer, sizeof layer, "%d", block);
        (void)json_object_set_new(imbalances, layer, tt_json_number(tt_loads_imbalance(loads, block)));
        (void)json_object_set_new(all, layer, list_of(loads, block));
    }
    (void)json_object_set_new(record, "imbalance", tt_json_number(tt_loads_imbalance(loads, worst)));
    (void)json_object_set_new(record, "imbalance_layer", json_integer(worst));
    (void)json_object_set_new(record, "imbalances", imbalances);
    if (loads->all)
        (void)json_object_set(record, "expert_loads", all);
    json_decref(all);
}

void tt_loads_board(const struct tt_loads *loads, struct tt_tensorboard *board, int64_t step)
{
    int worst = tt_loads_worst(loads);

    if (worst < 0 || !board)
        return;
    tt_tensorboard_add(board, step, &(struct tt_scalar){"experts/imbalance", tt_loads_imbalance(loads, worst)}, 1);
    for (int block = 0; block < loads->blocks; block++) {
        char *tag = tt_format("experts/imbalance/layers.%d", block);

        if (has(loads, block))
            tt_tensorboard_add(board, step, &(struct tt_scalar){tag, tt_loads_imbalance(loads, block)}, 1);
        tt_free(tag);
    }
}
