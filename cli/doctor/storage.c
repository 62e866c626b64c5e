/* SPDX-License-Identifier: MIT
 *
 * Checks of the file systems that runs write to. What is written here is removed at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "cli/run/segments.h"
#include "core/base/mem.h"
#include "core/os/file.h"

struct file_system {
    uint32_t magic; /* statfs(2) */
    const char *name;
    bool is_shared; /* several hosts can see it */
};

static const struct file_system file_systems[] = {
    {0xEF53, "ext4", false},      {0x58465342, "XFS", false},     {0x9123683E, "Btrfs", false},
    {0x2FC12FC1, "ZFS", false},   {0x794C7630, "overlay", false}, {0x01021994, "tmpfs", false},
    {0x6969, "NFS", true},        {0x0BD00BD0, "Lustre", true},   {0x47504653, "GPFS", true},
    {0x19830326, "BeeGFS", true}, {0x00C36400, "Ceph", true},     {0xFF534D42, "CIFS", true},
    {0xFE534D42, "SMB", true},    {0xAAD7AAEA, "PanFS", true},    {0x65735546, "FUSE", true},
    {0x01021997, "9p", true},
};

/* The nearest folder above a path that exists; the caller frees. */
static char *existing(const char *path)
{
    char *found = tt_strdup(path[0] ? path : ".");
    bool there = false;

    while (tt_path_exists(found, &there) < 0 || !there) {
        char *slash = strrchr(found, '/');

        if (!slash) {
            tt_free(found);
            return tt_strdup(".");
        }
        slash[slash == found] = 0; /* "/" stays */
    }
    return found;
}

static const struct file_system *file_system_of(const char *path)
{
    struct statfs about;

    if (statfs(path, &about) < 0)
        return NULL;
    for (size_t i = 0; i < sizeof file_systems / sizeof *file_systems; i++)
        if (file_systems[i].magic == (uint32_t)about.f_type)
            return &file_systems[i];
    return NULL;
}

static void look_at_type(const struct tt_doctor *d, const char *folder, struct tt_finding *f)
{
    const struct file_system *fs = file_system_of(folder);

    if (!fs) {
        tt_finding_add(f, "file system of an unknown type");
        return;
    }
    tt_finding_add(f, "%s", fs->name);
    if (strcmp(fs->name, "tmpfs") == 0)
        tt_finding_warn(f, "this folder takes up memory, and is lost when the machine stops: set job.dump_folder to a "
                           "folder on a disk");
    else if (d->n_hosts > 1 && !fs->is_shared)
        tt_finding_warn(f,
                        "all hosts must see the same folder, and %s is a host's own: set job.dump_folder to one on "
                        "NFS, Lustre or the like",
                        fs->name);
}

/* A temporary file in the folder, removed already; it lives until ret_fd is closed. */
static int open_scratch(const char *folder, int *ret_fd)
{
    char *path = tt_format("%s/.titan-doctor", folder), *name = NULL;
    int rc = 0;

    TT_TRY(tt_file_temporary(path, &name, ret_fd));
    (void)unlink(name);
out:
    tt_free(name);
    tt_free(path);
    return rc;
}

int tt_check_dump_folder(const struct tt_doctor *d, struct tt_finding *f)
{
    static const double little = 0x1p30;
    char *folder = existing(d->cfg->job.dump_folder), text[32];
    int64_t room = tt_folder_free_bytes(folder);
    int fd = -1, rc;

    tt_finding_add(f, "%s", d->cfg->job.dump_folder);
    rc = open_scratch(folder, &fd);
    if (rc < 0) {
        tt_finding_fail(f, rc);
        tt_text_add(&f->help, "%sset job.dump_folder to a folder that can be written", f->help.size ? "; " : "");
        goto out;
    }
    (void)close(fd);
    look_at_type(d, folder, f);
    if (room >= 0)
        tt_finding_add(f, "%s free", tt_text_bytes(text, sizeof text, (double)room));
    if (room >= 0 && (double)room < little)
        tt_finding_warn(f, "make room there, or set job.dump_folder to another disk; `titan plan --checkpoint` prints "
                           "what a checkpoint needs");
out:
    tt_free(folder);
    return 0;
}

/* Bytes per second of writing and syncing for about half a second; negative: it failed, with errno. */
static double write_speed(int fd)
{
    enum { BLOCK = 4 << 20, BLOCKS = 16 };
    char *block = tt_calloc(1, BLOCK);
    double start = tt_clock_sec(), sec = 0.0;
    ssize_t done = 0;
    int n = 0;

    memset(block, 0x5A, BLOCK); /* zeros might not be written at all */
    while (n < BLOCKS && sec < 0.5 && (done = write(fd, block, BLOCK)) == BLOCK && fdatasync(fd) == 0) {
        n++;
        sec = tt_clock_sec() - start;
    }
    tt_free(block);
    return n > 0 && sec > 0.0 ? (double)n * BLOCK / sec : -1.0;
}

int tt_check_disk_speed(const struct tt_doctor *d, struct tt_finding *f)
{
    static const double slow = 50e6;
    char *folder = existing(d->cfg->job.dump_folder);
    double rate = -1.0;
    int fd = -1;

    if (open_scratch(folder, &fd) == 0) {
        rate = write_speed(fd);
        (void)close(fd);
    }
    if (rate < 0.0)
        tt_finding_add(f, "not measured: the dump folder cannot be written");
    else
        tt_finding_add(f, "writes %.2g GB/s, synced", rate / 1e9);
    if (rate >= 0.0 && rate < slow)
        tt_finding_warn(f, "checkpoints take long here: use checkpoint.async_mode=async, a larger checkpoint.interval, "
                           "or a faster disk");
    tt_free(folder);
    return 0;
}

int tt_check_shm(const struct tt_doctor *d, struct tt_finding *f)
{
    enum { AGE_SEC = 60 };
    static const double a_rank = 0x1p23; /* Open MPI takes half of it */
    char *shm = tt_format("%s/dev/shm", d->root), *proc = tt_format("%s/proc", d->root), text[32];
    int64_t room = tt_folder_free_bytes(shm);
    int left = tt_segments_left(shm, proc, AGE_SEC);

    if (room < 0) {
        tt_finding_add(f, "missing");
        tt_finding_warn(f, "ranks on one host exchange messages through it: mount a tmpfs at /dev/shm");
    } else {
        tt_finding_add(f, "%s free", tt_text_bytes(text, sizeof text, (double)room));
        if ((double)room < a_rank * d->local_size)
            tt_finding_warn(f,
                            "too little for %d rank%s: remove what is not used there, or give the container more "
                            "(docker run --shm-size=1g)",
                            d->local_size, d->local_size == 1 ? "" : "s");
    }
    if (left > 0) {
        tt_finding_add(f, "%d segment%s of killed MPI processes", left, left == 1 ? "" : "s");
        tt_finding_warn(f, "the next `titan train` removes what killed processes left");
    }
    tt_free(shm);
    tt_free(proc);
    return 0;
}
