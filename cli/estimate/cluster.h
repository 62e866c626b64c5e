/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_CLUSTER_H
#define TT_ESTIMATE_CLUSTER_H

#include "cli/estimate/inputs.h"
#include "cli/estimate/screen.h"

/* A way to make a job fit, or to be in time. */
struct tt_cluster_remedy {
    char text[160]; /* completes "... it fits": "with TP 2", "on 16 x h100-sxm" */
    struct tt_cluster_layout layout;
};

enum { TT_CLUSTER_REMEDIES = 6 };

/* The answer to a question: a layout, its predictions, and remedies if it does not fit. */
struct tt_cluster_answer {
    struct tt_cluster_view view;
    const struct tt_cluster_inputs *in;
    bool is_pick;  /* the layout is the best of a search or, if nothing fits, the one that needs the least memory */
    bool is_found; /* the number of devices is the smallest that suffices */
    long n_tried;  /* layouts of that search that can run */
    struct tt_cluster_remedy remedy[TT_CLUSTER_REMEDIES];
    int n_remedies;
};

/* The common inputs of all answers of a command. */
struct tt_cluster_question {
    const struct tt_args *args;
    const struct tt_cluster_inputs *in;
    const struct tt_backtest *test;
    double usable; /* bytes of a device; 0: the machine's */
};

/** Searches the layouts that the question allows; see tt_cluster_search. */
void tt_cluster_answer_search(const struct tt_cluster_question *question, const struct tt_cluster_job *job,
                              double devices, int most, struct tt_cluster_found *ret_found);

/**
 * The best layouts on other numbers of devices, ascending; returns their number. Layouts that do not fit are left out.
 */
enum { TT_CLUSTER_SCALES = 8 };
int tt_cluster_answer_scale(const struct tt_cluster_question *question, int devices,
                            struct tt_cluster_layout ret_layout[TT_CLUSTER_SCALES]);

/** The screen of an answer. */
void tt_cluster_answer_print(const struct tt_cluster_answer *answer);

/** The words of the first line, without its end. */
void tt_cluster_answer_verdict(const struct tt_cluster_answer *answer, struct tt_text *out);

/* The rest of the page after its head, with the mark @BODY@: page.html. */
extern const char tt_cluster_page_text[];
extern const size_t tt_cluster_page_text_size;

/** Writes a page about an answer. TT_EIO. */
int tt_cluster_page_save(const struct tt_cluster_question *question, const struct tt_cluster_answer *answer,
                         const char *path) TT_MUST_CHECK;

/** The layout, its microbatches and recomputation in words: a line of the screen, and of the page. */
void tt_cluster_answer_layout(const struct tt_cluster_answer *answer, struct tt_text *out);

#endif
