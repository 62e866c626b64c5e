/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_COMMANDS_DATA_H
#define TT_CLI_COMMANDS_DATA_H

#include "core/base/json.h"
#include "core/config/args.h"

/** What the verbs of `titan data` share. Prints json as text or as JSON, and releases it. */
int tt_data_print(json_t *json, bool as_json) TT_MUST_CHECK;

/** `titan data tokenizer`. */
int tt_data_tokenizer(const struct tt_args *args) TT_MUST_CHECK;

#endif
