/* SPDX-License-Identifier: MIT
 *
 * Token files with a mask, and the samples that are packed from their conversations.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/data/sampler.h"
#include "core/os/file.h"

enum { N_DOCUMENTS = 40, LONGEST = 23 };

static char folder[] = "/tmp/titan_packs_XXXXXX";

static int length_of(int document)
{
    return document * 7 % (LONGEST + 1);
}

/* A token is 100 * document + position + 1. In document 13 only the end is learned, in others about every third
 * token. */
static bool is_learned(int document, int k)
{
    return document == 13 ? k >= 16 : (document * 5 + k * 3) % 7 < 3;
}

static struct tt_dataset *make_dataset(char *ret_path, size_t path_size)
{
    struct tt_token_writer *writer = NULL;
    struct tt_token_info about = {.bos = -1, .eos = -1}, info;
    struct tt_dataset_spec spec = {.name = "tokens", .path = ret_path};
    struct tt_dataset_ref *ref = tt_calloc(1, sizeof *ref);
    struct tt_dataset *d = NULL;

    (void)snprintf(ret_path, path_size, "%s/chat.tokens", folder);
    assert_int_equal(tt_token_writer_new(ret_path, 100000, &writer), 0);
    for (int i = 0; i < N_DOCUMENTS; i++) {
        int32_t ids[LONGEST], counts[LONGEST];

        for (int k = 0; k < length_of(i); k++) {
            ids[k] = 100 * i + k + 1;
            counts[k] = is_learned(i, k);
        }
        assert_int_equal(tt_token_writer_add(writer, ids, counts, (size_t)length_of(i)), 0);
    }
    assert_int_equal(tt_token_writer_finish(writer, &about, &info), 0);
    tt_token_writer_free(writer);
    if (tt_dataset_prepare(&spec, ref) < 0 || tt_dataset_open(ref, &d) < 0)
        fail_msg("%s", tt_error_message());
    assert_memory_equal(&d->ref.info, &info, sizeof info);
    tt_free(ref);
    return d;
}

static void the_mask_is_read_as_it_was_written(void **state)
{
    char path[256];
    struct tt_dataset *d = make_dataset(path, sizeof path);
    int64_t n = d->ref.info.n_tokens, n_learned = 0, at = 0;
    uint8_t *want = tt_calloc((size_t)n, 1), *found = tt_calloc((size_t)n + 1, 1);

    for (int i = 0; i < N_DOCUMENTS; i++)
        for (int k = 0; k < length_of(i); k++)
            n_learned += want[at++] = is_learned(i, k);
    assert_int_equal(d->ref.info.n_learned, n_learned);
    for (int64_t begin = 0; begin < n; begin++) {
        for (int64_t size = 0; size <= n - begin && size < 40; size++) {
            found[size] = 99;
            assert_int_equal(tt_dataset_counts(d, begin, size, found), 0);
            assert_memory_equal(found, want + begin, (size_t)size);
            assert_int_equal(found[size], 99);
        }
    }
    assert_int_equal(tt_dataset_counts(d, 0, n, found), 0);
    assert_memory_equal(found, want, (size_t)n);
    assert_int_equal(tt_dataset_counts(d, 1, n, found), TT_EINTERNAL);
    tt_free(want);
    tt_free(found);
    tt_dataset_free(d);
}

static void a_damaged_mask_is_found(void **state)
{
    char path[256], *bytes = NULL;
    struct tt_dataset *d = make_dataset(path, sizeof path);
    struct tt_token_info info;
    size_t size = 0;

    assert_int_equal(tt_file_read(path, &bytes, &size), 0);
    assert_int_equal(bytes[8], 2); /* the version */
    bytes[d->ref.info.mask_at] ^= 1;
    assert_int_equal(tt_file_replace(path, bytes, size), 0);
    assert_int_equal(tt_tokenfile_check(path, false, &info), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "does not match the checksum"));
    assert_int_equal(tt_file_replace(path, bytes, size - 1), 0);
    assert_int_equal(tt_tokenfile_check(path, false, &info), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "is truncated"));
    tt_free(bytes);
    tt_dataset_free(d);
}

/* The wanted contents of a sample: documents in order of arrival, as long as they fit. */
struct want {
    int32_t inputs[64], labels[64], positions[64];
};

static int make_wanted(int T, enum tt_long_choice longs, struct want *want)
{
    int n = -1, at = T;

    for (int d = 0; d < N_DOCUMENTS; d++) {
        int size = length_of(d) < T ? length_of(d) : T;
        bool has_answer = false;

        for (int k = 1; k < size; k++)
            has_answer = has_answer || is_learned(d, k);
        if (!size || (length_of(d) > T && (longs == TT_LONG_DROP || !has_answer)))
            continue;
        if (at + size > T) {
            at = 0;
            n++;
            for (int k = 0; k < T; k++) {
                want[n].inputs[k] = 0;
                want[n].labels[k] = -101; /* padding */
            }
        }
        for (int k = 0; k < size; k++) {
            want[n].inputs[at + k] = 100 * d + k + 1;
            want[n].positions[at + k] = k;
            want[n].labels[at + k] = k + 1 < size && is_learned(d, k + 1) ? 100 * d + k + 2 : -100;
        }
        at += size;
        for (int k = at; k < T; k++)
            want[n].positions[k] = k - at;
    }
    return n + 1;
}

static void expect_sample(struct tt_sampler *s, int64_t g, const struct want *want, int T)
{
    int32_t inputs[64], labels[64], positions[64];
    size_t bytes = (size_t)T * sizeof *inputs;

    assert_int_equal(tt_sampler_get(s, g, inputs, labels, g % 2 ? positions : NULL), 0);
    assert_memory_equal(inputs, want->inputs, bytes);
    assert_memory_equal(labels, want->labels, bytes);
    if (g % 2)
        assert_memory_equal(positions, want->positions, bytes);
}

static void samples_hold_whole_conversations(void **state)
{
    char path[256];
    struct tt_dataset *d = make_dataset(path, sizeof path);
    static struct want want[N_DOCUMENTS];

    for (int T = 2; T <= 50; T += 3) {
        for (int longs = 0; longs < 2; longs++) {
            struct tt_sampler_options o = {.seq_len = T, .repeat = true, .longs = (enum tt_long_choice)longs};
            struct tt_sampler *s = NULL;
            int n = make_wanted(T, o.longs, want);

            assert_int_equal(tt_sampler_new(d, &o, &s), 0);
            assert_int_equal(tt_sampler_epoch_samples(s), n);
            for (int g = 0; g < 2 * n + 1; g++)
                expect_sample(s, g, &want[g % n], T);
            tt_sampler_free(s);
        }
    }
    tt_dataset_free(d);
}

static void shuffled_samples_are_the_same_ones(void **state)
{
    enum { T = 29 };
    char path[256];
    struct tt_dataset *d = make_dataset(path, sizeof path);
    struct tt_sampler_options o = {.seq_len = T, .shuffle = true, .repeat = true, .seed = 42};
    static struct want want[N_DOCUMENTS];
    int n = make_wanted(T, o.longs, want), moved = 0;
    struct tt_sampler *s = NULL;
    uint64_t before;

    assert_int_equal(tt_sampler_new(d, &o, &s), 0);
    before = tt_mem_allocations();
    for (int epoch = 0; epoch < 3; epoch++) {
        bool seen[N_DOCUMENTS] = {false};

        for (int i = 0; i < n; i++) {
            int64_t at = tt_sampler_order(s, epoch)[i];

            assert_false(seen[at]);
            seen[at] = true;
            moved += at != i;
            expect_sample(s, (int64_t)epoch * n + i, &want[at], T);
        }
    }
    assert_true(moved > n);
    assert_int_equal(tt_mem_allocations(), before);
    tt_sampler_free(s);
    tt_dataset_free(d);
}

static void long_conversations_are_counted_or_refused(void **state)
{
    char path[256];
    struct tt_dataset *d = make_dataset(path, sizeof path);
    struct tt_sampler_options o = {.seq_len = 16};
    struct tt_sampler *s = NULL;
    int n_long = 0;

    for (int i = 0; i < N_DOCUMENTS; i++)
        n_long += length_of(i) > 16;
    assert_int_equal(length_of(13), 19); /* nothing before its 17th token is learned */
    assert_int_equal(tt_sampler_new(d, &o, &s), 0);
    assert_int_equal(tt_sampler_packs(s)->n_long, n_long);
    assert_int_equal(tt_sampler_packs(s)->n_truncated, n_long - 1);
    tt_sampler_free(s);
    s = NULL;
    o.longs = TT_LONG_ERROR;
    assert_int_equal(tt_sampler_new(d, &o, &s), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "conversation 4 of dataset 'tokens' has 21 tokens, more than "
                                               "training.seq_len 16"
                                               "\nhelp: set a larger training.seq_len, or "));
    o.seq_len = LONGEST;
    assert_int_equal(tt_sampler_new(d, &o, &s), 0);
    tt_sampler_free(s);
    s = NULL;
    o = (struct tt_sampler_options){.seq_len = 1, .longs = TT_LONG_DROP};
    assert_int_equal(tt_sampler_new(d, &o, &s), 0);
    tt_sampler_free(s);
    tt_dataset_free(d);
}

static int make_folder(void **state)
{
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    return tt_folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mask_is_read_as_it_was_written),
        cmocka_unit_test(a_damaged_mask_is_found),
        cmocka_unit_test(samples_hold_whole_conversations),
        cmocka_unit_test(shuffled_samples_are_the_same_ones),
        cmocka_unit_test(long_conversations_are_counted_or_refused),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("packs", tests, make_folder, remove_folder);
}
