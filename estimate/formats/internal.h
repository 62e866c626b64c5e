/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_FORMATS_INTERNAL_H
#define TT_ESTIMATE_FORMATS_INTERNAL_H

#include "core/base/error.h"
#include "core/base/text.h"
#include "estimate/formats/formats.h"

/* If the name of an unknown key or flag of any trainer contains one of these words, it might change the cost. NULL ends
 * the list. */
extern const char *const tt_costly_words[];

/* The flags of Megatron-LM that are read. */
enum tt_megatron_flag {
#define X(id, name, kind) TT_FLAG_##id,
#include "estimate/formats/megatron_flags.def"
#undef X
    TT_MEGATRON_FLAGS
};

/* Zero-initialise everything except `notes` and `given`. */
struct tt_megatron_flags {
    char *value[TT_MEGATRON_FLAGS]; /* NULL: not given; "": given without a value */
    struct tt_cluster_notes *notes;
    const struct tt_cluster_given *given; /* whose `ignored` names the flags to skip */
    struct tt_text unknown;               /* flags that might change the cost */
};

/** Takes words in order. The value of a flag is the next word, unless that is a flag. Errors: TT_EUSAGE. */
int tt_megatron_flags_words(struct tt_megatron_flags *flags, int n, const char *const *words) TT_MUST_CHECK;

/**
 * Takes the flags that a shell script passes to Megatron-LM, without running the script. TT_EUSAGE: a flag depends on
 * something that the script does not define.
 */
int tt_megatron_flags_script(struct tt_megatron_flags *flags, const char *path, const char *text,
                             const struct tt_cluster_given *given) TT_MUST_CHECK;

/* The kinds of flags. Flags of the last five kinds are read (megatron_flags.def). */
enum tt_megatron_kind {
    TT_FLAG_IS_FREE,
    TT_FLAG_IS_UNKNOWN, /* it is unknown, and may change the cost */
    TT_FLAG_IS_SIZE,
    TT_FLAG_IS_COUNT,
    TT_FLAG_IS_VALUE,
    TT_FLAG_IS_FILE,
    TT_FLAG_IS_SWITCH
};

/** The kind of a flag, given without its dashes and perhaps with "=value". */
enum tt_megatron_kind tt_megatron_flag_kind(const char *name);

#endif
