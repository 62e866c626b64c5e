/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_CONFIG_HELP_H
#define TT_TESTS_CONFIG_HELP_H

/** Loading configurations from literals, shared by the tests of core/config. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/config/config.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static inline int load_text(struct tt_config *cfg, const char *text, size_t size)
{
    return tt_config_read(cfg, &(struct tt_config_input){.text = text, .text_size = size, .text_name = "t.yaml"});
}

/* The configuration of one YAML text, which errors call t.yaml; NULL if it is refused, with the code in *rc. */
static inline struct tt_config *from_text(const char *text, int *rc)
{
    struct tt_config *cfg = NULL;

    assert_int_equal(tt_config_new(&cfg), 0);
    *rc = load_text(cfg, text, strlen(text));
    if (*rc == 0)
        return cfg;
    tt_config_free(cfg);
    return NULL;
}

/* As above, but from flags alone. */
static inline struct tt_config *from_flags(int n, const char *const *flags, int *rc)
{
    struct tt_config *cfg = NULL;

    assert_int_equal(tt_config_new(&cfg), 0);
    *rc = tt_config_load(cfg, 0, NULL, n, flags);
    if (*rc == 0)
        return cfg;
    tt_config_free(cfg);
    return NULL;
}

static inline struct tt_config *good_text(const char *text)
{
    int rc;
    struct tt_config *cfg = from_text(text, &rc);

    if (!cfg)
        fail_msg("refused: %s", tt_error_message());
    return cfg;
}

static inline struct tt_config *good_flags(int n, const char *const *flags)
{
    int rc;
    struct tt_config *cfg = from_flags(n, flags, &rc);

    if (!cfg)
        fail_msg("refused: %s", tt_error_message());
    return cfg;
}

/* The message of a text that must be refused. */
static inline const char *bad_text(const char *text)
{
    int rc;
    struct tt_config *cfg = from_text(text, &rc);

    if (cfg)
        fail_msg("accepted: %s", text);
    assert_int_equal(rc, TT_EUSAGE);
    return tt_error_message();
}

static inline const char *bad_flags(int n, const char *const *flags)
{
    int rc;
    struct tt_config *cfg = from_flags(n, flags, &rc);

    if (cfg)
        fail_msg("accepted: %s", flags[0]);
    assert_int_equal(rc, TT_EUSAGE);
    return tt_error_message();
}

/* Reads the base flags and then the given ones (up to a NULL), and checks the input. NULL if they are refused as
 * TT_EUSAGE. */
static inline struct tt_config *checked_flags(struct tt_config_input input, const char *const *more)
{
    enum { MOST_FLAGS = 24 };
    const char *flags[MOST_FLAGS];
    static struct tt_text unbuilt;
    struct tt_config *cfg = NULL;
    int rc;

    for (int i = 0; i < input.n_args; i++)
        flags[i] = input.args[i];
    for (; *more; more++) {
        assert_true(input.n_args < MOST_FLAGS);
        flags[input.n_args++] = *more;
    }
    input.args = flags;
    assert_int_equal(tt_config_new(&cfg), 0);
    tt_config_tolerate_unbuilt(cfg, &unbuilt);
    rc = tt_config_read(cfg, &input);
    tt_text_release(&unbuilt);
    if (rc == 0)
        return cfg;
    assert_int_equal(rc, TT_EUSAGE);
    tt_config_free(cfg);
    return NULL;
}

/* Checks that cfg was refused (NULL) and that the error's message contains this text. */
static inline void assert_refused(const struct tt_config *cfg, const char *message)
{
    if (cfg)
        fail_msg("accepted, wanted '%s'", message);
    if (!strstr(tt_error_message(), message))
        fail_msg("found '%s', wanted '%s'", tt_error_message(), message);
}

/* The value of a key as text. The caller frees it. */
static inline char *value_of(const struct tt_config *cfg, const char *path)
{
    struct tt_text text = {0};

    tt_config_value_text(cfg, tt_config_row_find(path), &text);
    return text.text ? text.text : tt_strdup("");
}

static inline void assert_value(const struct tt_config *cfg, const char *path, const char *expect)
{
    char *text = value_of(cfg, path);

    assert_string_equal(text, expect);
    tt_free(text);
}

static inline void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

#endif
