/* SPDX-License-Identifier: MIT
 *
 * From configuration to the planned engine's options.
 */
#include "cli/engine_options.h"

#include <string.h>

int tt_engine_options_of(const struct tt_config *cfg, int64_t memory_limit, struct tt_engine_options *options)
{
    const struct tt_words *reshard = &cfg->parallelism.fsdp_reshard_after_forward;
    int rc = 0;

    options->scheduler = cfg->parallelism.fsdp_engine == TT_ENGINE_PLANNED ? TT_SCHEDULER_PLANNED : TT_SCHEDULER_EAGER;
    options->bucket_bytes = cfg->parallelism.fsdp_bucket_bytes;
    options->memory_limit = memory_limit;
    options->choose_reshard_by_limit = strcmp(reshard->word[0], "auto") == 0;
    options->machine = tt_machine_builtin();
    if (cfg->parallelism.machine_file && (rc = tt_machine_load(cfg->parallelism.machine_file, &options->machine)) < 0)
        return tt_wrap(rc, "parallelism.machine_file");
    return 0;
}
