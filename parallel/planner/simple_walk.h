/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_SIMPLE_WALK_H
#define TT_PARALLEL_PLANNER_SIMPLE_WALK_H

#include "parallel/planner/ceiling.h"
#include "parallel/planner/simple_fsdp.h"

/**
 * The walk of the planned scheduler; only simple_fsdp.c, which writes the schedule, and simple_ahead.c, which looks
 * ahead, look inside.
 */

/* Units whose collectives are one, in the form in which schedules name them. */
struct tt_simple_handle {
    int unit;   /* the first */
    int bucket; /* TT_NONE: just the unit */
};

struct tt_simple_flight {
    struct tt_simple_handle units;
    bool all_reduce; /* else a reduce-scatter */
    int microbatch;
    int64_t bytes; /* free after its wait */
    double end;
};

struct tt_simple_bucket {
    struct tt_simple_handle units;
    int first, n; /* gathers */
    double end;
};

/* Units in order, and their sizes together: adding one to many must not cost as much as all of them. */
struct tt_simple_units {
    enum tt_purpose purpose; /* of their collective */
    int *unit;
    int n;
    int64_t whole;    /* bytes when gathered, or of the whole gradients */
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
    int waited;      /* buckets waited for */
    int next_gather; /* first that is not begun */
    int next_release;
    struct tt_simple_flight *flights; /* begun reduces, in order; [head, n_flights) are not waited for */
    int head, n_flights, cap_flights;
    struct tt_simple_units pending; /* whose gradients are complete and not yet being reduced */
    struct tt_simple_units joined;  /* of the bucket of gathers that is being put together */
    bool *in_joined;                /* [unit] */
    int *flying;                    /* [unit] its reduce-scatters among the flights */
    int *awaited;                   /* [unit] reduce-scatters until its sum is complete */
    int *summed;                    /* units whose sum has just become complete */
    int64_t *staging;               /* [unit] bytes that its reduce-scatter receives into, if it is alone */
    double *reduce_sec;             /* [unit] seconds of the same */
    int64_t *ahead;                 /* [n_units + 1] for looking ahead: what virtual reduces would free, and when */
    double *ahead_end;
    struct tt_ceiling *other; /* of facts->other_bytes */
    int64_t *grows; /* [positions + 1] whole gradients and staging of reduces that begin to live before a position */
    int64_t live;   /* exchanged bytes */
    double now, link_free;
};

/* simple_ahead.c */

/** Sizes and times by unit and position; in, u, facts and candidate are set. */
void tt_simple_begin(struct tt_simple_walk *b);
void tt_simple_end(struct tt_simple_walk *b);

/** Elements of the flat shards of units, as a purpose carries them. */
int64_t tt_simple_elements(const struct tt_simple_walk *b, enum tt_purpose purpose, const int *units, int n);

/** Bytes that a collective of units, of which `unit` is the first, receives before it adds them. */
int64_t tt_simple_staging_bytes(const struct tt_simple_walk *b, enum tt_purpose purpose, int unit, int64_t elements);

/** Seconds of a collective of units, of which `unit` is the first, alone on the link. */
double tt_simple_transfer_sec(const struct tt_simple_walk *b, enum tt_purpose purpose, int unit, int64_t elements);

/** Transient memory at a position beside what is exchanged. */
int64_t tt_simple_other_bytes(const struct tt_simple_walk *b, int pos);

/** Whether that many bytes of exchange keep the candidate's limits at a position. */
bool tt_simple_fits(const struct tt_simple_walk *b, int pos, int64_t exchanged);

/** Whether this many bytes more, by gathers up to (not with) `gathers`, fit from pos until just before `until`. */
bool tt_simple_fits_until(struct tt_simple_walk *b, int pos, int until, int64_t bytes, int gathers);

/** Empties a set, of units whose collective is for that purpose. */
void tt_simple_clear_units(struct tt_simple_units *units, enum tt_purpose purpose);

#endif
