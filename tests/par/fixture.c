/* SPDX-License-Identifier: MIT
 *
 * Tiny models and random tokens for the training tests.
 */
#include "tests/par/fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <sys/mman.h>

#include <cmocka.h>

#include "core/math/rng.h"
#include "core/os/file.h"

int fixture_check(int rc)
{
    if (rc < 0)
        print_message("# %s\n", tt_error_message());
    return rc;
}

struct tt_model *fixture_model(const struct tt_model_dims *dims)
{
    struct tt_model *model = NULL;

    assert_int_equal(fixture_check(tt_model_new("llama3", "debugmodel", dims, NULL, &model)), 0);
    return model;
}

struct tt_model *fixture_tied_model(int64_t n_layers)
{
    return fixture_model(&(struct tt_model_dims){.dim = 6,
                                                 .n_layers = n_layers,
                                                 .n_heads = 3,
                                                 .n_kv_heads = 1,
                                                 .head_dim = 2,
                                                 .ffn_dim = 7,
                                                 .vocab_size = 13,
                                                 .tied = 1});
}

void fixture_dataset(const uint16_t *tokens, int n, struct tt_dataset *data)
{
    data->fd = memfd_create("tokens", MFD_CLOEXEC);
    assert_true(data->fd >= 0);
    assert_int_equal(fixture_check(tt_file_pwrite(data->fd, "tokens", tokens, (size_t)n * sizeof *tokens, 0)), 0);
    data->ref.info = (struct tt_token_info){.item_size = 2, .n_tokens = n, .n_documents = 1, .max_id = UINT16_MAX};
}

void fixture_tokens(uint16_t *tokens, int n, struct tt_dataset *data)
{
    struct tt_rng rng = tt_rng_make(5, "tokens");

    for (int i = 0; i < n; i++)
        tokens[i] = (uint16_t)((int)(fabs(tt_rng_normal(&rng, (uint64_t)i, 0.0)) * 5.0) % 13);
    fixture_dataset(tokens, n, data);
}
