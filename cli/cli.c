/* SPDX-License-Identifier: MIT
 *
 * How commands end and print: messages to stderr, data to stdout, and a failed write of data is a failure.
 */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int tt_cli_fail(int rc)
{
    (void)fflush(stdout);
    (void)fprintf(stderr, "titan: error: %s\n", tt_error_message());
    return tt_error_exit_code(rc);
}

int tt_cli_finish(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    if (errno == EPIPE)
        return 0; /* `titan ... | head`: the reader has what it wanted */
    return tt_cli_fail(tt_fail(TT_EIO, "cannot write to standard output: %s", strerror(errno)));
}

int tt_cli_print_json(json_t *json)
{
    (void)json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    (void)fputc('\n', stdout);
    json_decref(json);
    return tt_cli_finish();
}
