/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/data/dataset.h"
#include "core/data/sampler.h"
#include "core/math/rng.h"
#include "core/os/file.h"

enum { N_DOCUMENTS = 40 };

static char folder[] = "/tmp/titan_sampler_XXXXXX";

static struct tt_dataset *open_dataset(const char *name, const char *path)
{
    struct tt_dataset_spec spec = {.name = name, .path = path};
    struct tt_dataset_ref *ref = tt_calloc(1, sizeof *ref);
    struct tt_dataset *d = NULL;

    if (tt_dataset_prepare(&spec, ref) < 0 || tt_dataset_open(ref, &d) < 0)
        fail_msg("%s", tt_error_message());
    tt_free(ref);
    return d;
}

/* Documents of 0 to 12 tokens. A token is 100 * document + position, so each says where it comes from. */
static struct tt_dataset *make_dataset(int64_t vocab_size)
{
    struct tt_token_writer *writer = NULL;
    struct tt_token_info about = {.bos = -1, .eos = -1}, info;
    char *path = tt_format("%s/documents", folder);
    struct tt_dataset *d;

    assert_int_equal(tt_token_writer_new(path, vocab_size, &writer), 0);
    for (int i = 0; i < N_DOCUMENTS; i++) {
        int32_t ids[12];
        int n = i * 7 % 13;

        for (int k = 0; k < n; k++)
            ids[k] = 100 * i + k;
        assert_int_equal(tt_token_writer_add(writer, ids, NULL, (size_t)n), 0);
    }
    assert_int_equal(tt_token_writer_finish(writer, &about, &info), 0);
    tt_token_writer_free(writer);
    d = open_dataset("tokens", path);
    assert_memory_equal(&d->ref.info, &info, sizeof info);
    tt_free(path);
    return d;
}

static struct tt_sampler *make_sampler(const struct tt_dataset *d, int64_t seq_len, bool shuffle, bool repeat)
{
    struct tt_sampler_options options = {.seq_len = seq_len, .shuffle = shuffle, .repeat = repeat, .seed = 42};
    struct tt_sampler *s = NULL;

    if (tt_sampler_new(d, &options, &s) < 0)
        fail_msg("%s", tt_error_message());
    return s;
}

static void golden_samples_are_in_file_order(void **state)
{
    struct tt_dataset *d = open_dataset("tokens", TT_SOURCE_DIR "/tests/golden/data/llama3/tokens.bin");
    struct tt_sampler *s = make_sampler(d, 64, false, true);
    static const int32_t first[8] = {242, 262, 17, 73, 243, 297, 131, 185};
    int32_t inputs[64], labels[64], again[64];

    assert_int_equal(d->ref.info.n_tokens, 10241);
    assert_int_equal(tt_sampler_epoch_samples(s), 160);
    assert_null(tt_sampler_order(s, 0));
    assert_int_equal(tt_sampler_get(s, 0, inputs, labels, NULL), 0);
    assert_memory_equal(inputs, first, sizeof first);
    assert_memory_equal(labels, first + 1, sizeof first - sizeof first[0]);
    for (int64_t i = 0; i < 160; i++) {
        assert_int_equal(tt_sampler_get(s, i, inputs, labels, NULL), 0);
        for (int64_t k = 0; k < 64; k++) {
            int32_t want[2];

            assert_int_equal(tt_dataset_copy(d, i * 64 + k, 2, want), 0);
            assert_int_equal(inputs[k], want[0]);
            assert_int_equal(labels[k], want[1]);
        }
    }
    assert_int_equal(tt_sampler_get(s, 160 + 3, inputs, labels, NULL), 0); /* the next epoch is the same */
    assert_int_equal(tt_sampler_get(s, 3, again, labels, NULL), 0);
    assert_memory_equal(inputs, again, sizeof again);
    tt_sampler_free(s);
    tt_dataset_free(d);
}

/* The token stream of an epoch, computed from its definition, token by token. */
static int64_t stream_of(const struct tt_dataset *d, uint64_t seed, int64_t epoch, int32_t *stream)
{
    int64_t order[N_DOCUMENTS], n = 0;
    char *name = tt_format("dataloader epoch %lld", (long long)epoch);
    struct tt_rng rng = tt_rng_make(seed, name);

    tt_rng_permutation(&rng, N_DOCUMENTS, order);
    for (int i = 0; i < N_DOCUMENTS; i++) {
        for (int64_t at = d->offsets[order[i]]; at < d->offsets[order[i] + 1]; at++)
            assert_int_equal(tt_dataset_copy(d, at, 1, &stream[n++]), 0);
    }
    tt_free(name);
    return n;
}

static void shuffled_samples_follow_the_definition(void **state)
{
    static const int64_t vocab_sizes[] = {4000, 70000}; /* uint16 and uint32 */
    static int32_t stream[4][1000];

    for (int v = 0; v < 2; v++) {
        struct tt_dataset *d = make_dataset(vocab_sizes[v]);

        assert_int_equal(d->ref.info.item_size, v ? 4 : 2);
        for (int64_t length = 1; length <= 50; length += 7) {
            struct tt_sampler *s = make_sampler(d, length, true, true),
                              *backwards = make_sampler(d, length, true, true);
            int64_t n = 0, samples = tt_sampler_epoch_samples(s);
            int32_t inputs[64], labels[64];

            for (int e = 0; e < 4; e++)
                n = stream_of(d, 42, e, stream[e]);
            assert_int_equal(samples, (n - 1) / length);
            for (int64_t i = 0; i < 4 * samples; i++) { /* ascending for one vocabulary, descending for the other */
                for (int b = 0; b < 2; b++) {
                    int64_t g = b ? 4 * samples - 1 - i : i;
                    const int32_t *want = stream[g / samples] + g % samples * length;

                    assert_int_equal(tt_sampler_get(b ? backwards : s, g, inputs, labels, NULL), 0);
                    assert_memory_equal(inputs, want, (size_t)length * sizeof *want);
                    assert_memory_equal(labels, want + 1, (size_t)length * sizeof *want);
                }
            }
            tt_sampler_free(s);
            tt_sampler_free(backwards);
        }
        tt_dataset_free(d);
    }
}

static void epochs_are_different_permutations(void **state)
{
    struct tt_dataset *d = make_dataset(4000);
    struct tt_sampler *s = make_sampler(d, 8, true, true);
    int64_t kept[N_DOCUMENTS];

    for (int e = 0; e < 5; e++) {
        const int64_t *order = tt_sampler_order(s, e);
        bool seen[N_DOCUMENTS] = {false};

        for (int i = 0; i < N_DOCUMENTS; i++) {
            assert_true(order[i] >= 0 && order[i] < N_DOCUMENTS && !seen[order[i]]);
            seen[order[i]] = true;
        }
        if (e > 0)
            assert_memory_not_equal(order, kept, sizeof kept);
        memcpy(kept, order, sizeof kept);
    }
    assert_memory_equal(tt_sampler_order(s, 4), kept, sizeof kept);
    tt_sampler_free(s);
    tt_dataset_free(d);
}

/* For stream token i: where its document begins, in an epoch's order of documents. */
static int64_t begin_of(const struct tt_dataset *d, const int64_t *order, int64_t i)
{
    int64_t begin = 0;

    for (int place = 0; place < N_DOCUMENTS; place++) {
        int64_t document = order ? order[place] : place, n = d->offsets[document + 1] - d->offsets[document];

        if (i < begin + n)
            return begin;
        begin += n;
    }
    return -1;
}

static void positions_count_from_the_beginning_of_documents(void **state)
{
    struct tt_dataset *d = make_dataset(4000);

    for (int64_t length = 1; length <= 50; length += 7) {
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            struct tt_sampler *s = make_sampler(d, length, shuffle, true);
            int64_t samples = tt_sampler_epoch_samples(s);
            int32_t inputs[64], labels[64], positions[64];

            for (int64_t g = 0; g < 3 * samples; g++) {
                int64_t at = g % samples * length;

                assert_int_equal(tt_sampler_get(s, g, inputs, labels, positions), 0);
                for (int64_t i = 0; i < length; i++) {
                    int64_t begin = begin_of(d, tt_sampler_order(s, g / samples), at + i);

                    assert_int_equal(positions[i], at + i - (begin > at ? begin : at));
                }
            }
            tt_sampler_free(s);
        }
    }
    tt_dataset_free(d);
}

static void positions_need_documents(void **state)
{
    struct tt_dataset *d = make_dataset(4000);
    struct tt_sampler_options options = {.seq_len = 8, .documents = true};
    struct tt_sampler *s = NULL;

    assert_int_equal(tt_sampler_new(d, &options, &s), 0);
    tt_sampler_free(s);
    s = NULL;
    tt_free(d->offsets);
    d->offsets = NULL;
    assert_int_equal(tt_sampler_new(d, &options, &s), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "does not say where its documents begin, which training.document_mask "
                                               "needs"));
    tt_dataset_free(d);
}

static void samples_cost_no_allocation(void **state)
{
    struct tt_dataset *d = make_dataset(4000);
    struct tt_sampler *s = make_sampler(d, 8, true, true);
    uint64_t before = tt_mem_allocations();
    int32_t inputs[8], labels[8];

    for (int64_t i = 0; i < 200; i++)
        assert_int_equal(tt_sampler_get(s, i * 3, inputs, labels, NULL), 0);
    assert_int_equal(tt_mem_allocations(), before);
    tt_sampler_free(s);
    tt_dataset_free(d);
}

static void the_end_of_the_data_and_too_little_of_it_are_errors(void **state)
{
    struct tt_dataset *d = make_dataset(4000);
    struct tt_sampler_options options = {.seq_len = d->ref.info.n_tokens - 1, .shuffle = true};
    int64_t n = d->ref.info.n_tokens;
    int32_t *inputs = tt_calloc((size_t)n, sizeof *inputs), *labels = tt_calloc((size_t)n, sizeof *labels);
    struct tt_sampler *s = NULL;
    char *want;

    assert_int_equal(tt_sampler_new(d, &options, &s), 0); /* exactly one sample */
    assert_int_equal(tt_sampler_epoch_samples(s), 1);
    assert_int_equal(tt_sampler_get(s, 0, inputs, labels, NULL), 0);
    assert_int_equal(tt_sampler_get(s, 1, inputs, labels, NULL), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "dataset 'tokens' has ended: it has 1 samples of seq_len"));
    assert_non_null(strstr(tt_error_message(), "help: set dataloader.repeat=true"));
    tt_sampler_free(s);
    s = NULL;
    options.seq_len++;
    assert_int_equal(tt_sampler_new(d, &options, &s), TT_EDATA);
    want = tt_format(
        "dataset 'tokens' has %lld tokens, but one sample of seq_len %lld needs %lld\nhelp: set a smaller seq_len "
        "(at most %lld), or use more data",
        (long long)n, (long long)n, (long long)n + 1, (long long)n - 1);
    assert_string_equal(tt_error_message(), want);
    options.seq_len = 0;
    assert_int_equal(tt_sampler_new(d, &options, &s), TT_EUSAGE);
    tt_free(want);
    tt_free(inputs);
    tt_free(labels);
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
        cmocka_unit_test(golden_samples_are_in_file_order),
        cmocka_unit_test(shuffled_samples_follow_the_definition),
        cmocka_unit_test(epochs_are_different_permutations),
        cmocka_unit_test(positions_count_from_the_beginning_of_documents),
        cmocka_unit_test(positions_need_documents),
        cmocka_unit_test(samples_cost_no_allocation),
        cmocka_unit_test(the_end_of_the_data_and_too_little_of_it_are_errors),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
