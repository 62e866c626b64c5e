/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_INPUTS_NOTES_H
#define TT_CLI_CLUSTER_INPUTS_NOTES_H

#include "core/base/json.h"

/**
 * What a job of another trainer says and a prediction leaves out: each with its name, its value, and what the
 * prediction assumes instead. Zero-initialise; tt_cluster_notes_release.
 */
struct tt_cluster_note {
    char *key, *value; /* value "": it has none */
    const char *why;
};

struct tt_cluster_notes {
    struct tt_cluster_note *item;
    int n, cap;
};

/** Adds a note; why is static text. */
void tt_cluster_note(struct tt_cluster_notes *notes, const char *key, const char *value, const char *why);

/** Prints the notes to standard output, each line after `head` ("" or a mark of comments). */
void tt_cluster_notes_print(const struct tt_cluster_notes *notes, const char *head);

/** A list of objects with key, value and assumes. */
json_t *tt_cluster_notes_json(const struct tt_cluster_notes *notes);
void tt_cluster_notes_release(struct tt_cluster_notes *notes);

#endif
