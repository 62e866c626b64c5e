/* SPDX-License-Identifier: MIT
 *
 * What the commands share: how an error ends a command.
 */
#include "cli/cli.h"

#include <stdio.h>

#include "core/base/error.h"

int tt_cli_fail(int rc)
{
    (void)fprintf(stderr, "titan: error: %s\n", tt_error_message());
    return tt_error_exit_code(rc);
}
