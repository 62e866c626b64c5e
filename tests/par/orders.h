/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_ORDERS_H
#define TT_TESTS_ORDERS_H

#include "core/program/order.h"

/* Orders of compute over several stages, as in pipelines, for tests. */
enum orders_kind {
    ORDERS_IN_TURN,        /* one microbatch after another */
    ORDERS_FORWARD_FIRST,  /* all forward, then all backward */
    ORDERS_STAGE_BY_STAGE, /* the same, with all microbatches in one stage before the next stage */
    ORDERS_ONE_F_ONE_B,    /* forward of n_stages microbatches, then one forward and one backward in turn */
    ORDERS_WEIGHTS_LAST,   /* all forward, all backward, all weight parts */
    ORDERS_RANDOM,         /* any possible order, some with separate weight parts */
    ORDERS_KINDS
};

/**
 * Makes an order, which is the caller's (tt_order_release).
 *   seed       of ORDERS_RANDOM
 *   ascending  each pass of a stage takes the microbatches in order, as carried gradients need
 */
struct tt_order orders_make(enum orders_kind kind, int microbatches, int n_stages, uint64_t seed, bool ascending);

#endif
