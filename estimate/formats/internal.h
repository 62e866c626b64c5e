/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_FORMATS_INTERNAL_H
#define TT_ESTIMATE_FORMATS_INTERNAL_H

#include "core/base/error.h"
#include "core/base/text.h"
#include "estimate/formats/formats.h"

/* An unknown key or flag of any trainer that has one of these words might change the cost. NULL ends them. */
extern const char *const tt_costly_words[];

/* The flags of Megatron-LM that are read. */
enum tt_megatron_flag {
#define X(id, name, kind) TT_FLAG_##id,
#include "estimate/formats/megatron_flags.def"
#undef X
    TT_MEGATRON_FLAGS
};

/* Zero-initialise but for the notes and what is given. */
struct tt_megatron_flags {
    char *value[TT_MEGATRON_FLAGS]; /* NULL: not given; "": given without a value */
    struct tt_cluster_notes *notes;
    const struct tt_cluster_given *given; /* names the flags to skip */
    struct tt_text unknown;               /* flags that might change the cost */
};

/** Takes words in order. The value of a flag is the next word, if that is no flag. TT_EUSAGE. */
int tt_megatron_flags_words(struct tt_megatron_flags *flags, int n, const char *const *words) TT_MUST_CHECK;

/**
 * Takes the flags that a shell script passes to Megatron-LM, without running it. TT_EUSAGE: a flag depends on something
 * that the script does not say.
 */
int tt_megatron_flags_script(struct tt_megatron_flags *flags, const char *path, const char *text,
                             const struct tt_cluster_given *given) TT_MUST_CHECK;

/* Kinds of flags, of which the last five are read (megatron_flags.def). */
enum tt_megatron_kind {
    TT_FLAG_IS_FREE,
    TT_FLAG_IS_UNKNOWN, /* it may matter */
    TT_FLAG_IS_SIZE,
    TT_FLAG_IS_COUNT,
    TT_FLAG_IS_VALUE,
    TT_FLAG_IS_FILE,
    TT_FLAG_IS_SWITCH
};

/** The kind of a flag without its dashes, which may end in "=value". */
enum tt_megatron_kind tt_megatron_flag_kind(const char *name);

#endif
