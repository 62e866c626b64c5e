/* SPDX-License-Identifier: MIT
 *
 * Errors about what a user sets carry its key. The configuration has a row for each key, and says where it was set.
 */
#include <stdio.h>
#include <string.h>

#include "config_help.h"
#include "core/base/error.h"
#include "core/comm/comm.h"
#include "tests/help/threads.h"

static void a_key_is_the_row_of_its_number(void **state)
{
    assert_int_equal(TT_KEYS, tt_config_n_rows + 1);
    for (int i = 0; i < tt_config_n_rows; i++) {
        assert_int_equal(tt_config_rows[i].id, i + 1);
        assert_ptr_equal(tt_config_row(tt_config_rows[i].id), &tt_config_rows[i]);
        assert_string_equal(tt_key_name(tt_config_rows[i].id), tt_config_rows[i].path);
    }
    assert_string_equal(tt_key_name(TT_KEY_NONE), "");
    assert_string_equal(tt_config_row(TT_KEY(model.rope_scaling.factor))->path, "model.rope_scaling.factor");
    assert_string_equal(TT_KEY_NAME(model.rope_scaling.factor), "model.rope_scaling.factor");
}

static void the_key_stays_until_the_next_error(void **state)
{
    assert_int_equal(tt_fail_key(TT_EUSAGE, TT_KEY(model.dim), "it is %d", 7), TT_EUSAGE);
    assert_int_equal(tt_error_key(), TT_KEY(model.dim));
    assert_int_equal(tt_wrap(TT_EUSAGE, "here"), TT_EUSAGE);
    assert_int_equal(tt_error_key(), TT_KEY(model.dim));
    assert_string_equal(tt_error_message(), "here: it is 7");
    (void)tt_fail(TT_EUSAGE, "another");
    assert_int_equal(tt_error_key(), TT_KEY_NONE);
}

static void an_error_is_located_once(void **state)
{
    const char *flags[] = {"--model.n_heads=8"};
    struct tt_config *cfg = good_flags(1, flags);

    assert_int_equal(tt_config_locate(cfg, tt_fail_key(TT_EUSAGE, TT_KEY(model.n_heads), "8 is too many")), TT_EUSAGE);
    assert_string_equal(tt_error_message(), "flag --model.n_heads: 8 is too many");
    assert_int_equal(tt_config_locate(cfg, TT_EUSAGE), TT_EUSAGE);
    assert_string_equal(tt_error_message(), "flag --model.n_heads: 8 is too many");
    assert_int_equal(tt_config_locate(cfg, tt_fail_key(TT_EUSAGE, TT_KEY(job.dump_folder), "it is full")), TT_EUSAGE);
    assert_string_equal(tt_error_message(), "job.dump_folder (./outputs by default): it is full");
    assert_int_equal(tt_config_locate(NULL, tt_fail_key(TT_EUSAGE, TT_KEY(model.dim), "plain")), TT_EUSAGE);
    assert_string_equal(tt_error_message(), "plain");
    tt_config_free(cfg);
}

static void a_hint_is_added_once_and_can_be_dropped(void **state)
{
    (void)tt_fail_key(TT_EDATA, TT_KEY(model.dim), "wrong");
    assert_int_equal(tt_error_add_hint(TT_EDATA, "set %d", 3), TT_EDATA);
    (void)tt_error_add_hint(TT_EDATA, "set 4");
    assert_string_equal(tt_error_message(), "wrong\nhelp: set 3");
    assert_int_equal(tt_error_key(), TT_KEY(model.dim));
    tt_error_drop_hint();
    assert_string_equal(tt_error_message(), "wrong");
}

/* --- to other ranks, and from another thread --- */

struct heard {
    int rc, key;
    char message[64];
};

static int fail_in_work(void *arg)
{
    (void)arg;
    return tt_fail_key(TT_EDATA, TT_KEY(training.dataset_path), "it is gone");
}

static int agree(struct tt_comm *comm, void *arg)
{
    struct heard *heard = (struct heard *)arg + comm->rank;

    heard->rc = tt_comm_agree(comm, comm->rank == 1 ? tt_comm_work(comm, fail_in_work, NULL) : 0);
    heard->key = (int)tt_error_key();
    (void)snprintf(heard->message, sizeof heard->message, "%s", tt_error_message());
    return 0;
}

static void the_key_travels_with_the_message(void **state)
{
    struct heard heard[3] = {{0}};

    assert_int_equal(tt_comm_threads_run(3, agree, heard), 0);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(heard[rank].rc, TT_EDATA);
        assert_int_equal(heard[rank].key, TT_KEY(training.dataset_path));
        assert_string_equal(heard[rank].message, "rank 1: it is gone");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_the_row_of_its_number),   cmocka_unit_test(the_key_stays_until_the_next_error),
        cmocka_unit_test(an_error_is_located_once),         cmocka_unit_test(a_hint_is_added_once_and_can_be_dropped),
        cmocka_unit_test(the_key_travels_with_the_message),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
