/* SPDX-License-Identifier: MIT */
/* The system's headers that most files include, read once per library where the build precompiles them (-Db_pch=true,
 * as ./quickstart does): math.h and immintrin.h alone cost a sixth of all compiling. Sources include what they use
 * themselves, and every other build compiles them without this file. */
#ifndef TT_SYSTEM_H
#define TT_SYSTEM_H
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sys/stat.h>
#include <unistd.h>

#include <ctype.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif
#endif
