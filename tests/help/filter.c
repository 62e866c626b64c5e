/* SPDX-License-Identifier: MIT
 *
 * Linked into every cmocka program: TITAN_CASE in the environment selects cases by name, with the wildcards * and ?.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((constructor)) static void select_cases(void)
{
    const char *pattern = getenv("TITAN_CASE");

    if (pattern)
        cmocka_set_test_filter(pattern);
}
