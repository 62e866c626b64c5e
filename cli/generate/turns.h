/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_GENERATE_TURNS_H
#define TT_CLI_GENERATE_TURNS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"

/**
 * What a user says in a conversation: the lines of standard input, one for each turn. A line that ends with a backslash
 * goes on in the next one. Where they are typed, Ctrl-C no longer ends the process: it ends the turns while one is
 * waited for, and at other times whoever makes an answer asks tt_turns_interrupted.
 */
struct tt_turns {
    bool typed;           /* standard input is a terminal */
    int64_t lines;        /* that were taken */
    bool ended;           /* there is nothing more to read */
    bool cut;             /* a line of the turn, by the terminal */
    struct tt_text bytes; /* that were read; those from `at` on were not taken */
    size_t at;
    struct tt_text text; /* of the turn */
    struct sigaction before;
};

int tt_turns_open(struct tt_turns *ret_turns) TT_MUST_CHECK;
void tt_turns_close(struct tt_turns *turns);

/**
 * Waits for the next turn. ret_text is valid until the next call; NULL: there is none. TT_EUSAGE for a typed line that
 * is longer than terminals pass on; TT_EIO.
 */
int tt_turns_next(struct tt_turns *turns, const char **ret_text, size_t *ret_size) TT_MUST_CHECK;

/** Drops what was read: there are no more turns. */
void tt_turns_end(struct tt_turns *turns);

/** Not 0 after Ctrl-C, until tt_turns_go_on. */
const volatile sig_atomic_t *tt_turns_interrupted(void);
void tt_turns_go_on(void);

#endif
