/* SPDX-License-Identifier: MIT
 *
 * Random segment lists and random leaves.
 */
#include "tests/par/layout.h"

#include <math.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/math/rng.h"

static const float guard = -1234.5F;

/* Puts the segments into memory one after the other, in a random order. With a gap of 0 neighbours touch. */
static void place_segments(struct layout *layout, uint64_t places)
{
    struct tt_rng rng = tt_rng_make(places, "places");
    int64_t *order = tt_calloc((size_t)layout->n, sizeof *order);
    float *place = layout->memory;

    tt_rng_permutation(&rng, layout->n, order);
    for (int i = 0; i < layout->n; i++) {
        struct tt_segment *segment = &layout->items[places % 2 ? i : order[i]];

        place += tt_rng_bits(&rng, 1000000 + (uint64_t)i) % 3;
        segment->data = place;
        place += segment->bytes / sizeof(float);
    }
    tt_free(order);
}

struct layout layout_make(uint64_t sizes, uint64_t places, int64_t floats)
{
    struct layout layout = {.floats = floats};
    struct tt_rng rng = tt_rng_make(sizes, "sizes");
    int64_t longest = floats / 5 + 1;
    uint64_t draw = 0;

    for (int64_t done = 0; done < floats;) {
        int64_t n = (int64_t)(tt_rng_bits(&rng, draw++) % (uint64_t)(longest + 1));

        n = n < floats - done ? n : floats - done;
        TT_PUSH(layout.items, layout.n, layout.cap) = (struct tt_segment){NULL, (size_t)n * sizeof(float)};
        done += n;
    }
    layout.memory_floats = floats + (int64_t)2 * layout.n + 8;
    layout.memory = tt_calloc((size_t)layout.memory_floats, sizeof(float));
    for (int64_t i = 0; i < layout.memory_floats; i++)
        layout.memory[i] = guard;
    place_segments(&layout, places);
    return layout;
}

void layout_release(struct layout *layout)
{
    tt_free(layout->memory);
    tt_free(layout->items);
    *layout = (struct layout){0};
}

struct tt_segment_list layout_list(const struct layout *layout)
{
    return (struct tt_segment_list){layout->items, layout->n};
}

void layout_put(const struct layout *layout, const float *values)
{
    for (int i = 0; i < layout->n; i++) {
        memcpy(layout->items[i].data, values, layout->items[i].bytes);
        values += layout->items[i].bytes / sizeof(float);
    }
}

void layout_get(const struct layout *layout, float *ret_values)
{
    for (int i = 0; i < layout->n; i++) {
        memcpy(ret_values, layout->items[i].data, layout->items[i].bytes);
        ret_values += layout->items[i].bytes / sizeof(float);
    }
}

bool layout_guarded(const struct layout *layout)
{
    bool *inside = tt_calloc((size_t)layout->memory_floats, sizeof *inside);
    bool good = true;

    for (int i = 0; i < layout->n; i++) {
        int64_t first = (float *)layout->items[i].data - layout->memory;

        for (int64_t j = 0; j < (int64_t)(layout->items[i].bytes / sizeof(float)); j++)
            inside[first + j] = true;
    }
    for (int64_t i = 0; i < layout->memory_floats; i++)
        good = good && (inside[i] || layout->memory[i] == guard);
    tt_free(inside);
    return good;
}

float leaf_value(uint64_t seed, int64_t leaf, int64_t i)
{
    struct tt_rng rng = {seed, (uint64_t)leaf};

    return (float)ldexp(tt_rng_uniform(&rng, 2 * (uint64_t)i) - 0.5,
                        (int)(tt_rng_bits(&rng, 2 * (uint64_t)i + 1) % 24));
}

void leaf_fill(uint64_t seed, int64_t leaf, int64_t first, int64_t n, float *ret_values)
{
    for (int64_t i = 0; i < n; i++)
        ret_values[i] = leaf_value(seed, leaf, first + i);
}
