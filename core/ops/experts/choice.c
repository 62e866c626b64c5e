/* SPDX-License-Identifier: MIT
 *
 * The choice of a token's experts; see choice.h.
 */
#include "core/ops/experts/choice.h"

/* Puts an expert among the n that are chosen already, in ascending order. */
static void insert(int32_t *ids, int n, int32_t expert)
{
    for (; n > 0 && ids[n - 1] > expert; n--)
        ids[n] = ids[n - 1];
    ids[n] = expert;
}

/* Is `expert` among the n chosen ones? */
static bool is_chosen(const int32_t *ids, int n, int64_t expert)
{
    for (int i = 0; i < n; i++)
        if (ids[i] == expert)
            return true;
    return false;
}

static float value_of(const struct tt_choice *c, int64_t expert)
{
    return c->bias ? c->scores[expert] + c->bias[expert] : c->scores[expert];
}

/* The best of the experts from `from` to `end` that are not among the n chosen ones; the first if none compares. */
static int64_t best_of(const struct tt_choice *c, const int32_t *chosen, int n, int64_t from, int64_t end)
{
    int64_t best = TT_NONE;

    for (int64_t i = from; i < end; i++)
        if ((best == TT_NONE || value_of(c, i) > value_of(c, best)) && !is_chosen(chosen, n, i))
            best = i;
    return best;
}

static float group_value(const struct tt_choice *c, enum tt_group_rule rule, int64_t from, int64_t end)
{
    int32_t first = (int32_t)best_of(c, NULL, 0, from, end);
    float best = value_of(c, first);

    return rule == TT_GROUP_TWO_BEST ? best + value_of(c, best_of(c, &first, 1, from, end)) : best;
}

/* Which groups a token's experts may be in, as bits. */
static uint64_t kept_groups(const struct tt_choice *c, const struct tt_router *r, int64_t experts)
{
    float value[TT_MOST_GROUPS];
    int64_t each = experts / r->groups;
    uint64_t kept = 0;

    for (int g = 0; g < r->groups; g++)
        value[g] = group_value(c, r->group_rule, g * each, (g + 1) * each);
    for (int n = 0; n < r->kept_groups; n++) {
        int best = TT_NONE;

        for (int g = 0; g < r->groups; g++)
            if ((best == TT_NONE || value[g] > value[best]) && !(kept & UINT64_C(1) << g))
                best = g;
        kept |= UINT64_C(1) << best;
    }
    return kept;
}

void tt_choose(int32_t *ids, const struct tt_choice *c, const struct tt_router *r, int k, int64_t experts)
{
    int groups = r->groups > 1 ? r->groups : 1;
    uint64_t kept = groups > 1 ? kept_groups(c, r, experts) : 1;
    int64_t each = experts / groups;

    for (int chosen = 0; chosen < k; chosen++) {
        int64_t best = TT_NONE;

        for (int g = 0; g < groups; g++) {
            int64_t of_group = kept & UINT64_C(1) << g ? best_of(c, ids, chosen, g * each, (g + 1) * each) : TT_NONE;

            if (of_group != TT_NONE && (best == TT_NONE || value_of(c, of_group) > value_of(c, best)))
                best = of_group;
        }
        insert(ids, chosen, (int32_t)best);
    }
}

void tt_choose_in_turn(int32_t *ids, int64_t row, int k, int64_t experts)
{
    for (int j = 0; j < k; j++)
        insert(ids, j, (int32_t)((row * k + j) % experts));
}
