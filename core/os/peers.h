/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_PEERS_H
#define TT_CORE_OS_PEERS_H

#include <stdbool.h>

#include "core/base/text.h"

/**
 * Whether the kernel lets processes of this user read each other's memory (process_vm_readv), as ranks of one host do.
 *   root     put in front of /proc: "" outside of tests
 *   ret_why  gets what to change if it does not; may be NULL
 */
bool tt_peers_are_readable(const char *root, struct tt_text *ret_why);

#endif
