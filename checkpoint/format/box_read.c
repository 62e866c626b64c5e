/* SPDX-License-Identifier: MIT
 *
 * Reads one packed box, which is in a file, into another.
 */
#include "checkpoint/format/box_read.h"

#include "core/os/file.h"

int tt_box_read(int fd, const char *path, int64_t begin, const struct tt_box *stored, const struct tt_box *want,
                size_t item, void *bytes)
{
    struct tt_box common;
    int64_t run, run_in_want, n;
    int rc = 0;

    if (!tt_box_intersect(stored, want, &common))
        return 0;
    run = tt_box_run(&common, stored);
    run_in_want = tt_box_run(&common, want);
    run = run_in_want < run ? run_in_want : run; /* each is a product of the last sizes: one divides the other */
    n = tt_box_volume(&common);
    for (int64_t at = 0; at < n; at += run) {
        char *to = (char *)bytes + (size_t)tt_box_position(&common, at, want) * item;

        TT_TRY(tt_file_pread(fd, path, to, (size_t)run * item,
                             begin + tt_box_position(&common, at, stored) * (int64_t)item));
    }
out:
    return rc;
}
