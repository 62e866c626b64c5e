/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_EMIT_EMIT_H
#define TT_CLI_CLUSTER_EMIT_EMIT_H

#include "cli/cluster/inputs/inputs.h"
#include "cluster/search/search.h"

/**
 * Appends a layout as a configuration: form is titan (YAML), torchtitan (TOML) or megatron (flags). The model is that
 * of the inputs. TT_EUSAGE: no such form, one of a trainer that does not work as the stack does, or a model that it
 * does not have.
 */
int tt_cluster_emit(const char *form, const struct tt_cluster_inputs *in, const struct tt_cluster_layout *layout,
                    struct tt_text *out) TT_MUST_CHECK;

#endif
