/* SPDX-License-Identifier: MIT
 *
 * Configurations that come with titan: those that are part of the program, and the files that are installed with it.
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/config/config.h"
#include "core/config/internal.h"
#include "core/os/path.h"

/* What `titan train` runs when it is given no file: a run of a minute that learns something on any machine. */
static const char quick[] = "job:\n"
                            "  dump_folder: ./outputs/quick\n"
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

static bool is_file(const char *path)
{
    struct tt_path_info info = {0};

    return tt_path_look(path, &info) == 0 && info.kind == TT_FILE_REGULAR;
}

char *tt_config_shipped(const char *path)
{
    static const char folder[] = "configs/";
    struct tt_path_info info = {0};
    char *program, *slash, *found = NULL;

    if (strncmp(path, folder, strlen(folder)) != 0 || strchr(path + strlen(folder), '/') ||
        tt_path_look(path, &info) < 0 || info.is_link || info.kind != TT_FILE_NONE)
        return NULL;
    program = tt_path_of_program();
    for (int i = 0; i < 2 && program; i++) { /* PREFIX/bin/titan */
        slash = strrchr(program, '/');
        if (slash)
            *slash = 0;
    }
    if (program)
        found = tt_format("%s/share/titan/%s", program, path);
    tt_free(program);
    if (found && !is_file(found)) {
        tt_free(found);
        found = NULL;
    }
    return found;
}
