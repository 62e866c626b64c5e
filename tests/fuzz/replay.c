/* SPDX-License-Identifier: MIT
 *
 * Runs a fuzz target on every file of a folder, as a test, so that a fault that a fuzzer found cannot come back.
 */
#include <stdio.h>

#include <dirent.h>

#include "core/base/mem.h"
#include "core/os/file.h"
#include "fuzz.h"

static int run_file(const char *path)
{
    char *bytes = NULL;
    size_t size = 0;

    if (tt_file_read(path, &bytes, &size) < 0)
        return -1;
    (void)LLVMFuzzerTestOneInput((const uint8_t *)bytes, size);
    tt_free(bytes);
    return 0;
}

int main(int argc, char **argv)
{
    const struct dirent *entry;
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    int n = 0, bad = 0;

    if (!folder)
        return 2;
    while ((entry = readdir(folder)) != NULL) { // NOLINT(concurrency-mt-unsafe): one thread
        char *path = tt_format("%s/%s", argv[1], entry->d_name);

        if (entry->d_name[0] != '.') {
            bool ok = run_file(path) == 0;

            bad += !ok;
            (void)printf("%sok %d - %s\n", ok ? "" : "not ", ++n, entry->d_name);
        }
        tt_free(path);
    }
    (void)closedir(folder);
    (void)printf("1..%d\n", n);
    return n == 0 || bad;
}
