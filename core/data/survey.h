/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_SURVEY_H
#define TT_DATA_SURVEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * What a corpus contains: its documents, their lengths, the scripts of their letters, equal documents, odd characters.
 * Memory: about 40 bytes for a document. Two documents count as equal if their hashes of 128 bits are.
 */
enum { TT_SURVEY_SCRIPTS = 18 };

struct tt_survey {
    int64_t documents, empty, bytes;
    int64_t duplicates, duplicate_bytes; /* documents that are equal to an earlier one */
    int64_t odd_bytes;                   /* of control characters, U+FFFD, private characters and the like */
    int64_t letters, letters_of[TT_SURVEY_SCRIPTS];
    int64_t *length; /* in bytes, of every document; sorted by tt_survey_length */
    int64_t cap;
    bool is_sorted;
    struct tt_survey_hash {
        uint64_t part[2];
    } * hash; /* a table of hashes by their first part; 0, 0: free */
    size_t n_hashes, hash_cap;
};

/** Takes a document of valid UTF-8; returns whether an equal one came before. Zero-initialise the survey. */
bool tt_survey_add(struct tt_survey *survey, const char *text, size_t size);
void tt_survey_release(struct tt_survey *survey);

/** The length that the given share (0 to 1) of the documents does not exceed; 0 without documents. */
int64_t tt_survey_length(struct tt_survey *survey, double share);

/** The name of a script, such as "Latin"; the last one is "other". */
const char *tt_survey_script(int number);

#endif
