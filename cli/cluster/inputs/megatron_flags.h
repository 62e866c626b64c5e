/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_INPUTS_MEGATRON_FLAGS_H
#define TT_CLI_CLUSTER_INPUTS_MEGATRON_FLAGS_H

#include "cli/cluster/inputs/notes.h"
#include "core/base/error.h"

/* The flags of Megatron-LM that are read, as text. */
enum tt_megatron_flag {
#define X(id, name) TT_FLAG_##id,
#include "cli/cluster/inputs/megatron_flags.def"
#undef X
    TT_MEGATRON_FLAGS
};

extern const char *const tt_megatron_flag_names[TT_MEGATRON_FLAGS];

/* Zero-initialise but for the notes; tt_megatron_flags_release. */
struct tt_megatron_flags {
    char *value[TT_MEGATRON_FLAGS]; /* NULL: not given; "": given without a value */
    struct tt_cluster_notes *notes;
};

/** Takes words in order: a flag and, as its value, the first word that follows and is no flag. TT_EUSAGE. */
int tt_megatron_flags_words(struct tt_megatron_flags *flags, int n, const char *const *words) TT_MUST_CHECK;

/** Takes the words of a shell script, which is not run, as far as flags need them; changes the text. TT_EUSAGE. */
int tt_megatron_flags_script(struct tt_megatron_flags *flags, char *text) TT_MUST_CHECK;
void tt_megatron_flags_release(struct tt_megatron_flags *flags);

#endif
