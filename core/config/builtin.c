/* SPDX-License-Identifier: MIT
 *
 * Configurations that are part of the program.
 */
#include "core/config/config.h"

/* What `titan train` runs when it is given no file: a run of a minute that learns something on any machine. */
static const char quick[] = "job:\n"
                            "  description: built-in quick run\n"
                            "model:\n"
                            "  name: llama3\n"
                            "  flavor: debugmodel\n"
                            "training:\n"
                            "  dataset: kjv\n"
                            "  seq_len: 256\n"
                            "  local_batch_size: 2\n"
                            "  global_batch_size: 8\n"
                            "  steps: 60\n"
                            "optimizer:\n"
                            "  lr: 8e-4\n"
                            "lr_scheduler:\n"
                            "  warmup_steps: 2\n"
                            "  decay_ratio: 0.8\n"
                            "  decay_type: linear\n"
                            "checkpoint:\n"
                            "  enable: true\n"
                            "  interval: 30\n"
                            "metrics:\n"
                            "  log_freq: 1\n"
                            "validation:\n"
                            "  local_batch_size: 4\n";

const struct tt_config_builtin tt_config_builtins[] = {
    {"builtin:quick", quick},
    {"builtin:defaults", ""},
};
const int tt_config_n_builtins = sizeof tt_config_builtins / sizeof *tt_config_builtins;
