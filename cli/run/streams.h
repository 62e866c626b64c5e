/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_STREAMS_H
#define TT_CLI_RUN_STREAMS_H

/**
 * Makes stdout and stderr lose nothing. The C library drops what is in its buffer when a write is interrupted by a
 * signal, or when a terminal or pipe that does not block is full, as it may be if another program has set that. For the
 * start of the program, before anything is printed.
 */
void tt_streams_begin(void);

/**
 * Writes a line on standard error, which is a terminal, over the line that was written so before. It stays until
 * anything else is written on one of the two streams, and disappears before that. The cursor is left at its beginning,
 * so what others write (MPI, the shell after a kill) covers it. If the terminal takes no more bytes at the moment,
 * nothing is written: this never waits. For one thread only.
 */
void tt_streams_put_live(const char *text);

/** Erases that line, if it is there. A signal handler may call it. */
void tt_streams_erase_live(void);

#endif
