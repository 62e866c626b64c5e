/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_ESTIMATE_TYPED_H
#define TT_CLI_ESTIMATE_TYPED_H

#include "core/config/args.h"
#include "estimate/search/search.h"

/*
 * A question in the form that a person types: `titan estimate llama3.1-70b --gpus 64xh100 --price 2.50`.
 * Zero-initialise; tt_cluster_typed_release.
 */
struct tt_cluster_typed {
    bool any;      /* the command line has this form; otherwise only the members for machine and ranks are set */
    int n_words;   /* words at the beginning of args->word that name the model */
    char *model;   /* NULL: not named */
    char *machine; /* NULL: not named */
    int *ranks;    /* numbers of devices; none: titan finds the number */
    int n_ranks, cap;
    double nodes;   /* number of nodes, in place of devices; 0: not given */
    double days;    /* the longest time for the run, in days; 0: any */
    double tokens;  /* tokens of the whole run; 0: not given */
    double price;   /* dollars for an hour of a device; 0: not given */
    double network; /* bytes/s of a node's network, one way; 0: the machine's */
    double mfu;     /* measured MFU, in percent; 0: not given */
    double seq;     /* tokens per sequence; 0: not given */
    double batch;   /* sequences per step, or tokens if batch_is_tokens; 0: not given */
    bool batch_is_tokens;
    struct tt_cluster_fixed fixed; /* limits of the search */
    char *override[6];
    int n_overrides;
};

/** Whether the command line is of this form, or --machine names the machine. */
bool tt_cluster_typed_is(const struct tt_args *args);

/** Whether the command line limits a search to degrees of parallelism, or to a size of microbatches. */
bool tt_cluster_typed_limits(const struct tt_args *args);

/** Reads the command line. TT_EUSAGE. */
int tt_cluster_typed_read(const struct tt_args *args, struct tt_cluster_typed *ret_typed) TT_MUST_CHECK;
void tt_cluster_typed_release(struct tt_cluster_typed *typed);

/** Sets what --lora, --dtype and similar options say about the job. TT_EUSAGE: the machine cannot do it. */
int tt_cluster_typed_apply(const struct tt_args *args, struct tt_cluster_job *job) TT_MUST_CHECK;

#endif
