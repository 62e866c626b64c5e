/* SPDX-License-Identifier: MIT
 *
 * Which documents are held out of training, and the samples of both sides.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/data/sampler.h"
#include "core/os/file.h"

enum { N_DOCUMENTS = 60, LONGEST = 200000 };

static char folder[] = "/tmp/titan_holdout_XXXXXX";

/* Document 7 spans several blocks of the hash, document 0 is without tokens, and documents 20 to 22 consist of the same
 * tokens. */
static int length_of(int document)
{
    return document == 7 ? LONGEST : document > 20 && document <= 22 ? length_of(20) : document * 5 % 31;
}

static int32_t token_of(int document, int k)
{
    int from = document > 20 && document <= 22 ? 20 : document;

    return 31 * from + k % 1000;
}

/* A file with these documents, in this order, and with a mask if they are chats. */
static struct tt_dataset *make_dataset(const char *name, const int *document, int n, int64_t vocab_size, bool chats)
{
    char *path = tt_format("%s/%s", folder, name);
    struct tt_dataset_spec spec = {.name = "tokens", .path = path};
    struct tt_dataset_ref *ref = tt_calloc(1, sizeof *ref);
    struct tt_token_info about = {.bos = -1, .eos = -1}, info;
    int32_t *ids = tt_calloc(LONGEST, sizeof *ids), *counts = tt_calloc(LONGEST, sizeof *counts);
    struct tt_token_writer *writer = NULL;
    struct tt_dataset *d = NULL;

    assert_int_equal(tt_token_writer_new(path, vocab_size, &writer), 0);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < length_of(document[i]); k++) {
            ids[k] = token_of(document[i], k);
            counts[k] = k % 3 == 2;
        }
        assert_int_equal(tt_token_writer_add(writer, ids, chats ? counts : NULL, (size_t)length_of(document[i])), 0);
    }
    assert_int_equal(tt_token_writer_finish(writer, &about, &info), 0);
    tt_token_writer_free(writer);
    if (tt_dataset_prepare(&spec, ref) < 0 || tt_dataset_open(ref, &d) < 0)
        fail_msg("%s", tt_error_message());
    tt_free(ref);
    tt_free(path);
    tt_free(ids);
    tt_free(counts);
    return d;
}

static struct tt_dataset *make_all(const char *name, int64_t vocab_size, bool chats)
{
    int document[N_DOCUMENTS];

    for (int i = 0; i < N_DOCUMENTS; i++)
        document[i] = i;
    return make_dataset(name, document, N_DOCUMENTS, vocab_size, chats);
}

static struct tt_holdout hold_out(const struct tt_dataset *d, double part)
{
    struct tt_holdout h = {0};

    if (tt_holdout_init(&h, d, part) < 0)
        fail_msg("%s", tt_error_message());
    return h;
}

static bool is_held(const struct tt_holdout *h, int64_t i)
{
    return h->is_held[i / 8] >> i % 8 & 1;
}

/* The definition in titan-datasets(7). */
static bool definition(int document, double part)
{
    enum { BLOCK = 65536 };
    int32_t *ids = tt_calloc(BLOCK, sizeof *ids);
    int n = length_of(document);
    uint64_t hash = 0;

    for (int at = 0; at < n; at += BLOCK) {
        int size = n - at < BLOCK ? n - at : BLOCK;

        for (int k = 0; k < size; k++)
            ids[k] = token_of(document, at + k);
        hash = tt_hash64(ids, (size_t)size * sizeof *ids, hash);
    }
    tt_free(ids);
    return n > 0 && (double)hash / 0x1p64 < part;
}

static void the_tokens_of_a_document_decide(void **state)
{
    static const double parts[] = {0.1, 0.25, 0.5};

    for (int wide = 0; wide < 2; wide++) {
        struct tt_dataset *d = make_all("all", wide ? 70000 : 4000, false);

        for (int p = 0; p < 3; p++) {
            struct tt_holdout h = hold_out(d, parts[p]);
            int64_t held = 0, tokens = 0;

            for (int i = 0; i < N_DOCUMENTS; i++) {
                assert_int_equal(is_held(&h, i), definition(i, parts[p]));
                held += is_held(&h, i);
                tokens += is_held(&h, i) ? length_of(i) : 0;
            }
            assert_int_equal(h.n_documents, N_DOCUMENTS);
            assert_int_equal(h.held, held);
            assert_int_equal(h.held_tokens, tokens);
            assert_int_equal(h.held_learned, tokens);
            tt_holdout_release(&h);
        }
        tt_dataset_free(d);
    }
}

/* Runs that hold documents out continue with every later version, so these never change. */
static void the_documents_are_those_of_earlier_versions(void **state)
{
    static const int wanted[] = {15, 20, 21, 22, 28, 32, 38, 41, 42, 54}; /* as Python's xxhash has them */
    struct tt_dataset *d = make_all("all", 4000, false);
    struct tt_holdout h = hold_out(d, 0.1);
    size_t n = 0;

    for (int i = 0; i < N_DOCUMENTS; i++) {
        if (is_held(&h, i)) {
            assert_true(n < sizeof wanted / sizeof *wanted);
            assert_int_equal(i, wanted[n++]);
        }
    }
    assert_int_equal(n, sizeof wanted / sizeof *wanted);
    tt_holdout_release(&h);
    tt_dataset_free(d);
}

static void neither_order_nor_other_documents_matter(void **state)
{
    struct tt_dataset *all = make_all("all", 4000, false), *some;
    struct tt_holdout h = hold_out(all, 0.25), other;
    int document[N_DOCUMENTS], n = 0;

    for (int i = N_DOCUMENTS - 1; i > 0; i -= 2)
        document[n++] = i;
    some = make_dataset("some", document, n, 4000, false);
    other = hold_out(some, 0.25);
    for (int i = 0; i < n; i++)
        assert_int_equal(is_held(&other, i), is_held(&h, document[i]));
    assert_int_equal(is_held(&h, 20), is_held(&h, 21));
    assert_int_equal(is_held(&h, 20), is_held(&h, 22));
    tt_holdout_release(&other);
    other = hold_out(all, 0.4);
    for (int i = 0; i < N_DOCUMENTS; i++)
        assert_true(is_held(&other, i) || !is_held(&h, i));
    assert_true(other.held > h.held);
    tt_holdout_release(&other);
    tt_holdout_release(&h);
    tt_dataset_free(some);
    tt_dataset_free(all);
}

static struct tt_sampler *sample(const struct tt_dataset *d, const struct tt_holdout *h, bool held_out, bool shuffle)
{
    struct tt_sampler_options options = {.seq_len = 40,
                                         .shuffle = shuffle,
                                         .repeat = true,
                                         .documents = true,
                                         .seed = 42,
                                         .holdout = h,
                                         .held_out = held_out};
    struct tt_sampler *s = NULL;

    if (tt_sampler_new(d, &options, &s) < 0)
        fail_msg("%s", tt_error_message());
    return s;
}

static void expect_equal_samples(struct tt_sampler *a, struct tt_sampler *b)
{
    int32_t inputs[2][40], labels[2][40], positions[2][40];
    int64_t n = tt_sampler_epoch_samples(a);

    assert_int_equal(n, tt_sampler_epoch_samples(b));
    for (int64_t i = 0; i < 3 * n; i++) {
        assert_int_equal(tt_sampler_get(a, i, inputs[0], labels[0], positions[0]), 0);
        assert_int_equal(tt_sampler_get(b, i, inputs[1], labels[1], positions[1]), 0);
        assert_memory_equal(inputs[0], inputs[1], sizeof inputs[0]);
        assert_memory_equal(labels[0], labels[1], sizeof labels[0]);
        assert_memory_equal(positions[0], positions[1], sizeof positions[0]);
    }
}

/* Both for texts and for conversations. */
static void each_side_is_as_if_the_other_were_not_in_the_file(void **state)
{
    for (int chats = 0; chats < 2; chats++) {
        struct tt_dataset *all = make_all("all", 4000, chats);
        struct tt_holdout h = hold_out(all, 0.3);

        for (int side = 0; side < 2; side++) {
            int document[N_DOCUMENTS], n = 0;
            struct tt_dataset *alone;

            for (int i = 0; i < N_DOCUMENTS; i++)
                if (is_held(&h, i) == side)
                    document[n++] = i;
            alone = make_dataset("alone", document, n, 4000, chats);
            for (int shuffle = 0; shuffle < 2; shuffle++) {
                struct tt_sampler *of_side = sample(all, &h, side, shuffle), *of_file = sample(alone, NULL, 0, shuffle);
                const struct tt_documents *a = tt_sampler_documents(of_side), *b = tt_sampler_documents(of_file);

                assert_int_equal(a->n, n);
                assert_int_equal(b->n, n);
                assert_int_equal(a->tokens, b->tokens);
                assert_int_equal(a->learned, b->learned);
                expect_equal_samples(of_side, of_file);
                tt_sampler_free(of_side);
                tt_sampler_free(of_file);
            }
            tt_dataset_free(alone);
        }
        tt_holdout_release(&h);
        tt_dataset_free(all);
    }
}

static void expect_refusal(const struct tt_dataset *d, double part, const char *why, const char *help)
{
    struct tt_holdout h = {0};

    assert_int_equal(tt_holdout_init(&h, d, part), TT_EUSAGE);
    assert_int_equal(tt_error_key(), TT_KEY(validation.split));
    if (!strstr(tt_error_message(), why) || !strstr(tt_error_message(), help))
        fail_msg("%s", tt_error_message());
    tt_holdout_release(&h);
}

static void what_cannot_be_divided_is_an_error(void **state)
{
    const int one[] = {3}, same[] = {20, 21, 22};
    struct tt_dataset *d = make_dataset("one", one, 1, 4000, false);

    expect_refusal(d, 0.5, "dataset 'tokens' is a single document, and", "help: divide the text into documents");
    tt_free(d->offsets);
    d->offsets = NULL;
    expect_refusal(d, 0.5, "dataset 'tokens' does not say where its documents begin", "titan data pack makes them");
    tt_dataset_free(d);
    d = make_dataset("same", same, 3, 4000, false);
    expect_refusal(d, 1e-5, "0.001% holds out none of the 3 documents of dataset 'tokens'", "help: ");
    expect_refusal(d, 0.999999, "holds out all 3 documents of dataset 'tokens', and none is left", "help: set a");
    tt_dataset_free(d);
}

static void too_little_for_a_sample_is_an_error(void **state)
{
    struct tt_dataset *d = make_all("all", 4000, false);
    struct tt_holdout h = hold_out(d, 0.1);
    struct tt_sampler_options options = {.seq_len = h.held_tokens, .holdout = &h, .held_out = true};
    struct tt_sampler *s = NULL;

    assert_int_equal(tt_sampler_new(d, &options, &s), TT_EDATA);
    assert_int_equal(tt_error_key(), TT_KEY(validation.split));
    assert_non_null(strstr(tt_error_message(), "of 60 documents of dataset 'tokens' are held out, with"));
    assert_non_null(strstr(tt_error_message(), "help: set a larger"));
    options.seq_len--;
    assert_int_equal(tt_sampler_new(d, &options, &s), 0);
    tt_sampler_free(s);
    options.held_out = false;
    options.seq_len = d->ref.info.n_tokens - h.held_tokens;
    assert_int_equal(tt_sampler_new(d, &options, &s), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "tokens that are not held out, but one sample of seq_len"));
    tt_holdout_release(&h);
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
        cmocka_unit_test(the_tokens_of_a_document_decide),
        cmocka_unit_test(the_documents_are_those_of_earlier_versions),
        cmocka_unit_test(neither_order_nor_other_documents_matter),
        cmocka_unit_test(each_side_is_as_if_the_other_were_not_in_the_file),
        cmocka_unit_test(what_cannot_be_divided_is_an_error),
        cmocka_unit_test(too_little_for_a_sample_is_an_error),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
