/* SPDX-License-Identifier: MIT
 *
 * Makes system calls fail on demand. Preloaded into the program as it is shipped:
 *
 *     TITAN_SHIM=CALL:N:ACTION[:RANK] TITAN_SHIM_PATHS=TEXT LD_PRELOAD=libshim.so titan train ...
 *
 * The N-th CALL (from 1) on a path that contains TEXT (default: "/checkpoint/") fails as ACTION says, and only on rank
 * RANK if that is given. CALL is a name of the table below, or "change" for every one that changes a file or folder.
 * Actions:
 *     kill        the process dies before the call, as if by power loss
 *     after       the process dies after the call
 *     short       half of the bytes are read or written, and that is what the call returns
 *     EIO ...     the call fails with that error, once
 *     EIO+ ...    the call fails with that error, and so does every later one of its kind
 * With TITAN_SHIM_LOG=FILE each failure is a line "RANK fired CALL PATH" of FILE. Without TITAN_SHIM nothing fails, and
 * each call is a line "RANK CALL PATH" of it.
 *
 * The kernel itself reports the calls: a seccomp filter turns them into SIGSYS, whose handler decides. So no call is
 * missed, whether titan makes it or a library on its behalf (stdio, readdir). The handler's own calls go through the
 * libc's syscall(), which the filter allows. The handler does only what a signal handler may do.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <dlfcn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <ucontext.h>

/* For functions that replace the libc's; the dynamic linker finds the libc's after these. */
#define EXPORT __attribute__((visibility("default")))

enum { N_ARGS = 6, SYSCALL_BYTES = 64 /* at least the length of the libc's syscall() */ };

/* Which argument of a call names the file. */
enum target { FD, PATH, FOLDER_AND_PATH, MAPPED_FD, NOTHING };

static const struct call {
    int number;
    const char *name;
    enum target target;
    bool changes;
} calls[] = {
    {SYS_open, "open", PATH, false},
    {SYS_openat, "open", FOLDER_AND_PATH, false},
    {SYS_read, "read", FD, false},
    {SYS_readv, "read", FD, false},
    {SYS_pread64, "pread", FD, false},
    {SYS_write, "write", FD, true},
    {SYS_writev, "write", FD, true},
    {SYS_pwrite64, "pwrite", FD, true},
    {SYS_fsync, "fsync", FD, true},
    {SYS_fdatasync, "fsync", FD, true},
    {SYS_close, "close", FD, false},
    {SYS_rename, "rename", PATH, true},
    {SYS_renameat, "rename", FOLDER_AND_PATH, true},
    {SYS_renameat2, "rename", FOLDER_AND_PATH, true},
    {SYS_unlink, "unlink", PATH, true},
    {SYS_unlinkat, "unlink", FOLDER_AND_PATH, true},
    {SYS_rmdir, "rmdir", PATH, true},
    {SYS_mkdir, "mkdir", PATH, true},
    {SYS_mkdirat, "mkdir", FOLDER_AND_PATH, true},
    {SYS_stat, "stat", PATH, false},
    {SYS_lstat, "stat", PATH, false},
    {SYS_fstat, "stat", FD, false},
    {SYS_newfstatat, "stat", FOLDER_AND_PATH, false},
    {SYS_statx, "stat", FOLDER_AND_PATH, false},
    {SYS_access, "access", PATH, false},
    {SYS_faccessat, "access", FOLDER_AND_PATH, false},
    {SYS_faccessat2, "access", FOLDER_AND_PATH, false},
    {SYS_readlink, "readlink", PATH, false},
    {SYS_readlinkat, "readlink", FOLDER_AND_PATH, false},
    {SYS_getdents64, "getdents", FD, false},
    {SYS_mmap, "mmap", MAPPED_FD, false},
    {SYS_ftruncate, "ftruncate", FD, true},
    {SYS_truncate, "ftruncate", PATH, true},
    {SYS_fallocate, "fallocate", FD, true},
    {SYS_statfs, "statvfs", PATH, false},
    {SYS_fstatfs, "statvfs", FD, false},
    {SYS_flock, "flock", FD, false},
    {SYS_fcntl, "setlk", FD, false}, /* record locks only */
    {SYS_process_vm_readv, "process_vm_readv", NOTHING, false},
};

enum { N_CALLS = sizeof calls / sizeof calls[0] };

static const struct {
    const char *name;
    int value;
} errors[] = {
    {"EACCES", EACCES}, {"EAGAIN", EAGAIN}, {"EBUSY", EBUSY},   {"EDQUOT", EDQUOT},         {"EFAULT", EFAULT},
    {"EINTR", EINTR},   {"EINVAL", EINVAL}, {"EIO", EIO},       {"ELOOP", ELOOP},           {"EMFILE", EMFILE},
    {"ENFILE", ENFILE}, {"ENODEV", ENODEV}, {"ENOENT", ENOENT}, {"ENOLCK", ENOLCK},         {"ENOMEM", ENOMEM},
    {"ENOSPC", ENOSPC}, {"ENOSYS", ENOSYS}, {"EPERM", EPERM},   {"EOPNOTSUPP", EOPNOTSUPP}, {"EROFS", EROFS},
    {"ESRCH", ESRCH},   {"ESTALE", ESTALE}, {"EXDEV", EXDEV},
};

enum { N_ERRORS = sizeof errors / sizeof errors[0] };

enum action { NONE, KILL, AFTER, SHORT, FAIL };

static struct {
    char call[32];
    long n; /* 0: nothing fails */
    enum action action;
    int error;
    bool forever;
    long rank;        /* this process's */
    const char *text; /* what a path contains */
    int log;          /* -1: none */
} plan = {.log = -1};

static atomic_long seen;

/* Makes a system call that the filter allows. Returns its result or a negative errno. */
static long pass(int number, const long *a)
{
    long n = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);

    return n == -1 ? -errno : n;
}

static void write_line(const char *what, const char *call, const char *path)
{
    char line[PATH_MAX + 128];
    int n = snprintf(line, sizeof line, "%ld %s%s %s\n", plan.rank, what, call, path); /* uses no heap */

    if (plan.log >= 0 && n > 0)
        (void)!syscall(SYS_write, plan.log, line, (size_t)n);
}

/* The path of a descriptor, or of the current folder for AT_FDCWD. */
static void path_of_fd(int fd, char *path, size_t size)
{
    char link[64] = "/proc/self/cwd";
    long n;

    if (fd != AT_FDCWD)
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = syscall(SYS_readlink, link, path, size - 1);
    path[n > 0 ? n : 0] = 0;
}

static void path_of_name(int folder, const char *name, char *path, size_t size)
{
    size_t n = 0;

    if (name && name[0] == '/') {
        (void)snprintf(path, size, "%s", name);
        return;
    }
    path_of_fd(folder, path, size);
    n = strlen(path);
    if (name && name[0] && n < size)
        (void)snprintf(path + n, size - n, "/%s", name);
}

static void find_path(const struct call *call, const long *a, char *path, size_t size)
{
    path[0] = 0;
    switch (call->target) {
    case FD:
        path_of_fd((int)a[0], path, size);
        break;
    case MAPPED_FD:
        path_of_fd((int)a[4], path, size);
        break;
    case PATH:
        path_of_name(AT_FDCWD, (const char *)a[0], path, size);
        break;
    case FOLDER_AND_PATH:
        path_of_name((int)a[0], (const char *)a[1], path, size);
        break;
    case NOTHING:
        break;
    }
}

static enum action decide(const struct call *made, const char *path)
{
    const char *call = made->name;
    long n;

    if (!plan.n) {
        write_line("", call, path);
        return NONE;
    }
    if (strcmp(plan.call, "change") == 0 ? !made->changes : strcmp(plan.call, call) != 0)
        return NONE;
    n = atomic_fetch_add(&seen, 1) + 1;
    if (n != plan.n && !(plan.forever && n > plan.n))
        return NONE;
    write_line("fired ", call, path);
    return plan.action;
}

/* Makes the call with half of the bytes, if it takes a number of bytes. */
static long cut_short(const struct call *call, const long *a)
{
    long b[N_ARGS];
    struct iovec here, there;

    memcpy(b, a, sizeof b);
    if (call->target == FD && a[2] > 1) {
        b[2] = a[2] / 2;
    } else if (call->number == SYS_process_vm_readv && a[2] == 1 && a[4] == 1) {
        here = *(const struct iovec *)a[1];
        there = *(const struct iovec *)a[3];
        here.iov_len = (here.iov_len + 1) / 2;
        there.iov_len = (there.iov_len + 1) / 2;
        b[1] = (long)&here;
        b[3] = (long)&there;
    }
    return pass(call->number, b);
}

static long answer(const struct call *call, const long *a)
{
    char path[PATH_MAX];
    enum action action;
    long result;

    if (call->number == SYS_fcntl && a[1] != F_SETLK && a[1] != F_OFD_SETLK)
        return pass(call->number, a);
    find_path(call, a, path, sizeof path);
    action = call->target == NOTHING || strstr(path, plan.text) ? decide(call, path) : NONE;
    if (action == KILL)
        (void)syscall(SYS_kill, getpid(), SIGKILL);
    if (action == SHORT)
        return cut_short(call, a);
    if (action == FAIL && call->number == SYS_close) /* a failed close releases the descriptor too */
        (void)pass(call->number, a);
    result = action == FAIL ? -plan.error : pass(call->number, a);
    if (action == AFTER)
        (void)syscall(SYS_kill, getpid(), SIGKILL);
    return result;
}

static void on_sigsys(int signal, siginfo_t *info, void *context)
{
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    long a[N_ARGS] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]};
    int kept = errno;

    (void)signal;
    for (size_t i = 0; i < N_CALLS; i++) {
        if (calls[i].number == info->si_syscall) {
            r[REG_RAX] = answer(&calls[i], a);
            break;
        }
    }
    errno = kept;
}

/* A thread that blocks SIGSYS would be killed at its first call. */
typedef int (*mask_fn)(int, const sigset_t *, sigset_t *);

static int mask_without_sigsys(const char *name, int how, const sigset_t *set, sigset_t *old)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    mask_fn next;
    sigset_t kept;

    memcpy(&next, &symbol, sizeof next); /* dlsym gives an object pointer; POSIX says that it may be a function */
    if (set && how != SIG_UNBLOCK) {
        kept = *set;
        (void)sigdelset(&kept, SIGSYS);
        set = &kept;
    }
    return next(how, set, old);
}

EXPORT int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    return mask_without_sigsys("pthread_sigmask", how, set, old);
}

EXPORT int sigprocmask(int how, const sigset_t *set, sigset_t *old)
{
    return mask_without_sigsys("sigprocmask", how, set, old);
}

static void read_plan(void)
{
    const char *text = getenv("TITAN_SHIM"), *log = getenv("TITAN_SHIM_LOG"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char action[16] = "";
    long only = -1;
    size_t length;

    plan.rank = rank ? strtol(rank, NULL, 10) : 0;
    plan.text = getenv("TITAN_SHIM_PATHS");
    plan.text = plan.text ? plan.text : "/checkpoint/";
    if (log)
        plan.log = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (!text)
        return;
    if (sscanf(text, "%31[^:]:%ld:%15[^:]:%ld", plan.call, &plan.n, action, &only) < 3 || plan.n < 1)
        abort();
    length = strlen(action);
    plan.forever = length && action[length - 1] == '+';
    action[length - plan.forever] = 0;
    plan.action = strcmp(action, "kill") == 0    ? KILL
                  : strcmp(action, "after") == 0 ? AFTER
                  : strcmp(action, "short") == 0 ? SHORT
                                                 : FAIL;
    for (size_t i = 0; i < N_ERRORS; i++)
        plan.error = strcmp(action, errors[i].name) == 0 ? errors[i].value : plan.error;
    if (plan.action == FAIL && !plan.error)
        abort();
    if (only >= 0 && only != plan.rank)
        plan.n = LONG_MAX;
}

#define LOAD(field)      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define LOAD_HIGH(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field) + 4)
#define RETURN(what)     BPF_STMT(BPF_RET | BPF_K, what)

/* Every call of the table becomes SIGSYS, unless the libc's syscall() makes it or it is an mmap without a file. */
static void install_filter(void)
{
    uintptr_t own = (uintptr_t)&syscall;
    struct sock_filter filter[2 * N_CALLS + 16];
    struct sock_fprog program = {.filter = filter};
    struct sigaction action = {.sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    unsigned short n = 0;

#define ADD(...) filter[n++] = (struct sock_filter)__VA_ARGS__
    ADD(LOAD(arch));
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
    ADD(RETURN(SECCOMP_RET_ALLOW));
    ADD(LOAD_HIGH(instruction_pointer));
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(own >> 32), 0, 4));
    ADD(LOAD(instruction_pointer));
    ADD(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)own, 0, 2));
    ADD(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)own + SYSCALL_BYTES, 1, 0));
    ADD(RETURN(SECCOMP_RET_ALLOW));
    ADD(LOAD(nr));
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3));
    ADD(LOAD(args[3]));
    ADD(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_ANONYMOUS, 0, 2));
    ADD(RETURN(SECCOMP_RET_ALLOW));
    ADD(BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0)); /* not mmap: go to the table */
    ADD(RETURN(SECCOMP_RET_TRAP));
    for (size_t i = 0; i < N_CALLS; i++) {
        if (calls[i].number == SYS_mmap)
            continue;
        ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i].number, 0, 1));
        ADD(RETURN(SECCOMP_RET_TRAP));
    }
    ADD(RETURN(SECCOMP_RET_ALLOW));
    program.len = n;
    if (sigaction(SIGSYS, &action, NULL) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0) {
        (void)fprintf(stderr, "libshim: this system has no seccomp filters\n");
        abort();
    }
}

__attribute__((constructor)) static void start(void)
{
    if (!getenv("TITAN_SHIM") && !getenv("TITAN_SHIM_LOG"))
        return;
    read_plan();
    install_filter();
}
