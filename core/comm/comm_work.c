/* SPDX-License-Identifier: MIT
 *
 * Work that does not communicate, in a thread of its own, while the caller answers the other ranks. Each call makes a
 * thread: the work is reading and writing files, with a few calls per save.
 */
#include <signal.h>
#include <string.h>
#include <time.h>

#include <pthread.h>

#include "core/base/mem.h"
#include "core/comm/comm.h"

struct job {
    int (*work)(void *arg);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    int rc;
    char *message;
    enum tt_key key;
};

static void *run(void *arg)
{
    struct job *job = arg;
    int rc = job->work(job->arg);

    (void)pthread_mutex_lock(&job->lock);
    job->rc = rc;
    job->message = rc < 0 ? tt_strdup(tt_error_message()) : NULL;
    job->key = tt_error_key();
    job->done = true;
    (void)pthread_cond_signal(&job->changed);
    (void)pthread_mutex_unlock(&job->lock);
    return NULL;
}

/* The main thread handles the signals; this thread blocks them. */
static int start(struct job *job, pthread_t *thread)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread, NULL, run, job);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Waits a moment for the work to end. Call it with the lock held. */
static void doze(struct job *job)
{
    enum { NAP_NSEC = 10 * 1000 * 1000, SEC_NSEC = 1000 * 1000 * 1000 };
    struct timespec until = {0, 0};

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += NAP_NSEC;
    if (until.tv_nsec >= SEC_NSEC) {
        until.tv_nsec -= SEC_NSEC;
        until.tv_sec++;
    }
    (void)pthread_cond_timedwait(&job->changed, &job->lock, &until);
}

int tt_comm_work(struct tt_comm *comm, int (*work)(void *arg), void *arg)
{
    struct job job = {.work = work, .arg = arg};
    bool reachable = !comm->failure;
    pthread_t thread;

    if (comm->size == 1 || comm->failure)
        return work(arg);
    (void)pthread_mutex_init(&job.lock, NULL);
    (void)pthread_cond_init(&job.changed, NULL);
    if (start(&job, &thread) != 0) {
        job.rc = work(arg); /* the other ranks then get no signs of life */
        goto out;
    }
    comm->works = true;
    (void)pthread_mutex_lock(&job.lock);
    while (!job.done) {
        doze(&job);
        (void)pthread_mutex_unlock(&job.lock);
        /* The work must end first. A failure here appears again in the next wait. */
        reachable = reachable && tt_comm_progress(comm) == 0;
        (void)pthread_mutex_lock(&job.lock);
    }
    (void)pthread_mutex_unlock(&job.lock);
    comm->works = false;
    (void)pthread_join(thread, NULL);
    if (job.rc < 0)
        (void)tt_fail_key(job.rc, job.key, "%s", job.message);
out:
    (void)pthread_cond_destroy(&job.changed);
    (void)pthread_mutex_destroy(&job.lock);
    tt_free(job.message);
    return job.rc;
}
