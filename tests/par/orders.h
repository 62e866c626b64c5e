/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_ORDERS_H
#define TT_TESTS_ORDERS_H

#include "core/program/order.h"

/* Orders of compute over several stages, as pipelines have them, for tests. */
enum orders_kind {
    ORDERS_IN_TURN,        /* one microbatch after another */
    ORDERS_FORWARD_FIRST,  /* all forward, then all backward */
    ORDERS_STAGE_BY_STAGE, /* the same, all microbatches in a stage before the next stage */
    ORDERS_ONE_F_ONE_B,    /* forward ahead by as many microbatches as there are stages, then one and one */
    ORDERS_WEIGHTS_LAST,   /* all forward, all backward, all weight parts */
    ORDERS_RANDOM,         /* any that can be, some weight parts apart */
    ORDERS_KINDS
};

/**
 * The order; the caller's (tt_order_release).
 *   seed       of ORDERS_RANDOM
 *   ascending  the microbatches of a stage are in order in each pass, as carried gradients need
 */
struct tt_order orders_make(enum orders_kind kind, int microbatches, int n_stages, uint64_t seed, bool ascending);

#endif
