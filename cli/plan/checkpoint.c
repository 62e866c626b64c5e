/* SPDX-License-Identifier: MIT
 *
 * The checkpoints of a planned job, as text and as JSON: the files and bytes of each writer, for the
 * configured save policy or for all of them.
 */
#include <string.h>

/* --- JSON --- */

/* --- text --- */
