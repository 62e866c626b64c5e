/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_INPUTS_GIVEN_H
#define TT_CLI_CLUSTER_INPUTS_GIVEN_H

/* What a command line says about a job that is written for another trainer. */
struct tt_cluster_given {
    const char **set; /* of a script: see tt_script_read */
    int n, cap;
    const char *args;
    const char *const *words; /* flags that follow the file and win */
    int n_words;
    const char **ignored; /* names of flags and keys that are left out */
    int n_ignored, cap_ignored;
};

#endif
