/* SPDX-License-Identifier: MIT
 *
 * The thread that writes checkpoints during training. One lock protects everything shared. The staging memory belongs
 * to the thread while it works, and otherwise to the caller.
 */
#include "checkpoint/save/writer.h"

#include <signal.h>
#include <string.h>

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/base/text.h"

struct tt_ckpt_writer {
    char *staging;
    int64_t bytes;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int (*work)(void *arg); /* NULL: idle */
    void *arg;
    bool leave;
    int rc; /* result of the last work */
    char *message;
};

static void *run(void *arg)
{
    struct tt_ckpt_writer *w = arg;

    /* Linux has a priority per thread. If this fails, the thread merely competes with training. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), 19);
    (void)pthread_mutex_lock(&w->lock);
    while (!w->leave) {
        if (!w->work) {
            (void)pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&w->lock);
        w->rc = w->work(w->arg);
        (void)pthread_mutex_lock(&w->lock);
        tt_free(w->message);
        w->message = w->rc < 0 ? tt_strdup(tt_error_message()) : NULL;
        w->work = NULL;
        (void)pthread_cond_broadcast(&w->changed);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* The main thread handles the signals; this thread blocks them. */
static int start_thread(struct tt_ckpt_writer *w)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&w->thread, NULL, run, w);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? tt_fail(TT_EINTERNAL, "cannot start the thread that writes checkpoints: %s", strerror(error)) : 0;
}

int tt_ckpt_writer_new(int64_t bytes, struct tt_ckpt_writer **ret_writer)
{
    struct tt_ckpt_writer *w = tt_calloc(1, sizeof *w);
    char text[32];
    int rc = 0;

    w->bytes = bytes;
    if (bytes > 0 && !(w->staging = tt_map((size_t)bytes)))
        TT_TRY(tt_fail(TT_EFIT, "no memory for the staging copy of a checkpoint, %s\nhelp: set %s=disabled",
                       tt_text_bytes(text, sizeof text, (double)bytes), TT_KEY_NAME(checkpoint.async_mode)));
    if (bytes > 0)
        memset(w->staging, 1, (size_t)bytes); /* any byte except 0, so that every page is really allocated */
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    TT_TRY(start_thread(w));
    *ret_writer = w;
    w = NULL;
out:
    if (w) {
        if (w->staging)
            tt_unmap(w->staging, (size_t)bytes);
        tt_free(w);
    }
    return rc;
}

void tt_ckpt_writer_free(struct tt_ckpt_writer *w)
{
    if (!w)
        return;
    (void)pthread_mutex_lock(&w->lock);
    while (w->work)
        (void)pthread_cond_wait(&w->changed, &w->lock);
    w->leave = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
    if (w->staging)
        tt_unmap(w->staging, (size_t)w->bytes);
    tt_free(w->message);
    tt_free(w);
}

char *tt_ckpt_writer_staging(const struct tt_ckpt_writer *w, int64_t *ret_bytes)
{
    *ret_bytes = w->bytes;
    return w->staging;
}

void tt_ckpt_writer_start(struct tt_ckpt_writer *w, int (*work)(void *arg), void *arg)
{
    (void)pthread_mutex_lock(&w->lock);
    w->work = work;
    w->arg = arg;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

bool tt_ckpt_writer_is_idle(struct tt_ckpt_writer *w)
{
    bool idle;

    (void)pthread_mutex_lock(&w->lock);
    idle = !w->work;
    (void)pthread_mutex_unlock(&w->lock);
    return idle;
}

int tt_ckpt_writer_wait(struct tt_ckpt_writer *w)
{
    int rc;

    (void)pthread_mutex_lock(&w->lock);
    while (w->work)
        (void)pthread_cond_wait(&w->changed, &w->lock);
    rc = w->rc;
    w->rc = 0;
    if (rc < 0)
        (void)tt_fail(rc, "%s", w->message);
    (void)pthread_mutex_unlock(&w->lock);
    return rc;
}
