/* SPDX-License-Identifier: MIT
 *
 * The arrays of a rank's state; see state.def.
 */
#include "core/program/state.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/math/bf16.h"

enum type { TYPE_STATE, TYPE_F32, TYPE_U8 };

static const struct {
    const char *name;
    enum type type;
    enum tt_memory_kind kind;
} rows[TT_STATE_ARRAYS] = {
#define TT_STATE(id, name, elements, type, kind) {name, TYPE_##type, TT_MEMORY_##kind},
#include "core/program/state.def"
#undef TT_STATE
};

const char *tt_state_name(enum tt_state_array array)
{
    return rows[array].name;
}

enum tt_memory_kind tt_state_kind(enum tt_state_array array)
{
    return rows[array].kind;
}

enum tt_dtype tt_state_dtype(enum tt_state_array array, enum tt_dtype dtype)
{
    return rows[array].type == TYPE_F32 ? tt_dtype_sums(dtype) : rows[array].type == TYPE_U8 ? TT_U8 : dtype;
}

enum tt_dtype tt_state_unit_dtype(enum tt_state_array array, const struct tt_unit *unit, enum tt_dtype dtype)
{
    if (unit->packing)
        return TT_U8;
    return unit->buffers ? tt_dtype_sums(dtype) : tt_state_dtype(array, dtype);
}

static int64_t elements_of(enum tt_state_array array, const struct tt_unit *unit)
{
    const int64_t lengths[TT_STATE_ARRAYS] = {
#define TT_STATE(id, name, elements, type, kind) elements,
#include "core/program/state.def"
#undef TT_STATE
    };
    return lengths[array];
}

static int64_t unit_bytes(enum tt_state_array array, const struct tt_unit *unit, enum tt_dtype dtype)
{
    return tt_arena_bytes(elements_of(array, unit) * (int64_t)tt_dtype_size(tt_state_unit_dtype(array, unit, dtype)));
}

int64_t tt_state_bytes(enum tt_state_array array, const struct tt_layout *layout, enum tt_dtype dtype)
{
    int64_t bytes = 0;

    for (int u = 0; u < layout->n_units; u++)
        bytes += unit_bytes(array, &layout->units[u], dtype);
    return bytes;
}

char *tt_state_add(struct tt_state *state, enum tt_state_array array, const struct tt_layout *layout, char *at)
{
    state->layout = layout;
    state->n_units = layout->n_units;
    state->array[array] = tt_calloc((size_t)layout->n_units, sizeof(void *));
    for (int u = 0; u < layout->n_units; u++) {
        state->array[array][u] = at;
        at += unit_bytes(array, &layout->units[u], state->dtype);
    }
    return at;
}

void tt_state_release(struct tt_state *state)
{
    for (int k = 0; k < TT_STATE_ARRAYS; k++)
        tt_free(state->array[k]);
}

void tt_state_start_averages(const struct tt_state *state, const struct tt_layout *layout)
{
    for (int u = 0; u < layout->n_units && state->array[TT_STATE_EMA]; u++) {
        float *average = state->array[TT_STATE_EMA][u];
        const void *param = state->array[TT_STATE_PARAM][u];
        int64_t n = elements_of(TT_STATE_EMA, &layout->units[u]);

        if (state->dtype != TT_BF16)
            memcpy(average, param, (size_t)n * tt_dtype_size(state->dtype));
        for (int64_t i = 0; state->dtype == TT_BF16 && i < n; i++)
            average[i] = tt_bf16_to_float(((const tt_bf16 *)param)[i]);
    }
}

void tt_state_exchange_averages(const struct tt_state *state, const struct tt_layout *layout)
{
    for (int u = 0; u < layout->n_units; u++) {
        float *average = state->array[TT_STATE_EMA][u], *param = state->array[TT_STATE_PARAM][u];

        for (int64_t i = 0; i < elements_of(TT_STATE_EMA, &layout->units[u]); i++) {
            float other = param[i];

            param[i] = average[i];
            average[i] = other;
        }
    }
}
