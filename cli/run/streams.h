/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_STREAMS_H
#define TT_CLI_RUN_STREAMS_H

/**
 * Makes stdout and stderr lose nothing. The C library drops what is in its buffer when a write is interrupted by a
 * signal, or when a terminal or pipe that does not block is full, as it may be if another program has set that. For the
 * start of the program, before anything is printed.
 */
void tt_streams_begin(void);

#endif
