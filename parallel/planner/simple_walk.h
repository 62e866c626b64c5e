/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_SIMPLE_WALK_H
#define TT_PARALLEL_PLANNER_SIMPLE_WALK_H

#include "parallel/planner/ceiling.h"
#include "parallel/planner/simple_fsdp.h"

/**
 * The walk of the planned scheduler. Only simple_fsdp.c, which writes the schedule, and simple_ahead.c, which looks
 * ahead, use its members.
 */

/* Units that share one collective, as schedules name them. */
struct tt_simple_handle {
    int unit;   /* the first */
    int bucket; /* TT_NONE: only that unit */
};

struct tt_simple_flight {
    struct tt_simple_handle units;
    bool all_reduce; /* else a reduce-scatter */
    int microbatch;
    int64_t bytes; /* freed after its wait */
    double end;
};

struct tt_simple_bucket {
    struct tt_simple_handle units;
    int first, n; /* gathers */
    double end;
};

/* A list of units and the sums of their sizes, so that adding a unit takes constant time. */
struct tt_simple_units {
    enum tt_purpose purpose; /* of their common collective */
    int *unit;
    int n;
    int64_t whole;    /* bytes of the gathered parameters or of the whole gradients */
    int64_t elements; /* of the flat shards */
};

struct tt_simple_walk {
    const struct tt_simple_fsdp *in;
    const struct tt_usage *u;
    const struct tt_step_facts *facts;
    struct tt_candidate candidate;
    struct tt_plan plan; /* so far */
    struct tt_gather_list gathers;
    struct tt_simple_bucket *buckets;
    int n_buckets, cap_buckets;
    int waited;      /* number of buckets already awaited */
    int next_gather; /* first gather that has not begun */
    int next_release;
    struct tt_simple_flight
        *flights; /* reductions in the order of their begin; [head, n_flights) are not awaited yet */
    int head, n_flights, cap_flights;
    struct tt_simple_units pending; /* units with complete gradients whose reduction has not begun */
    struct tt_simple_units joined;  /* units of the bucket that is being put together */
    bool *in_joined;                /* [unit] */
    int *flying;                    /* [unit] number of its reduce-scatters that are under way */
    int *awaited;                   /* [unit] number of reduce-scatters until its sum is complete */
    int *summed;                    /* units whose sum has just become complete */
    int64_t *staging;               /* [unit] bytes into which its reduce-scatter receives, if it has no other unit */
    double *reduce_sec;             /* [unit] seconds of that reduce-scatter */
    int64_t *ahead; /* [n_units + 1] for looking ahead: bytes that expected reductions will free, and when */
    double *ahead_end;
    struct tt_ceiling *other; /* of facts->other_bytes */
    int64_t *grows; /* [n_positions + 1] bytes of whole gradients and of staging that begin to live before a position */
    int64_t live;   /* live bytes of exchange */
    double now, link_free;
};

/* simple_ahead.c */

/** Computes sizes and times by unit and position. in, u, facts and candidate must be set. */
void tt_simple_begin(struct tt_simple_walk *b);
void tt_simple_end(struct tt_simple_walk *b);

/** The number of elements of the units' flat shards that a collective of this purpose carries. */
int64_t tt_simple_elements(const struct tt_simple_walk *b, enum tt_purpose purpose, const int *units, int n);

/** Bytes that a collective of units receives before it adds them; `unit` is the first of the units. */
int64_t tt_simple_staging_bytes(const struct tt_simple_walk *b, enum tt_purpose purpose, int unit, int64_t elements);

/** Seconds of a collective of units that is alone on the link; `unit` is the first of the units. */
double tt_simple_transfer_sec(const struct tt_simple_walk *b, enum tt_purpose purpose, int unit, int64_t elements);

/** Bytes of transient memory at a position, without those of exchange. */
int64_t tt_simple_other_bytes(const struct tt_simple_walk *b, int pos);

/** Whether so many bytes of exchange keep the candidate's limits at a position. */
bool tt_simple_fits(const struct tt_simple_walk *b, int pos, int64_t exchanged);

/** Whether so many more bytes fit from pos until just before `until`. They belong to the gathers before number
 * `gathers`. */
bool tt_simple_fits_until(struct tt_simple_walk *b, int pos, int until, int64_t bytes, int gathers);

/** Empties a list and sets its purpose. */
void tt_simple_clear_units(struct tt_simple_units *units, enum tt_purpose purpose);

#endif
