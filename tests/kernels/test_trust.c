/* SPDX-License-Identifier: MIT
 *
 * The first use of kernels that few processors run. This program is linked with its own kernels.c, to which the
 * processor seems to have AMX: the kernel of AMX runs on emulated tiles, rightly or wrongly. A process chooses its
 * kernels once, so each case runs in its own process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/error.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/os/machine.h"

/* amx.c under another name */
extern const struct tt_kernels tt_kernels_amx_emulated;

static bool broken, attention_broken;

static void bgemm(const struct tt_matmul *gemm)
{
    tt_kernels_amx_emulated.bgemm(gemm);
    if (broken && !gemm->c_bf16)
        ((float *)gemm->c)[gemm->n - 1] += 1.0F;
}

static void attention_bwd(const struct tt_attention_bf16_grads *group, const struct tt_attention_shape *shape,
                          int64_t heads, int64_t first_key, int64_t keys, float *scratch)
{
    tt_kernels_amx_emulated.attention_bwd_bf16(group, shape, heads, first_key, keys, scratch);
    if (attention_broken)
        group->dk[keys - 1] += 0.5F;
}

/* The processor and the AMX table that kernels.c sees. */
struct tt_cpu test_cpu_read(void);
extern const struct tt_kernels test_kernels_amx;

struct tt_cpu test_cpu_read(void)
{
    return (struct tt_cpu){"", 0, 0, TT_CPU_AVX2 | TT_CPU_AVX512 | TT_CPU_AMX};
}

const struct tt_kernels test_kernels_amx = {.name = "amx", .attention_bwd_bf16 = attention_bwd, .bgemm = bgemm};

static char said[512];

static void hear(void *arg, enum tt_log_level level, const char *text)
{
    (void)arg;
    (void)snprintf(said, sizeof said, "%s: %s", level == TT_LOG_WARNING ? "warning" : "note", text);
}

static bool is_a_variant(const char *name)
{
    for (int v = 0; tt_kernels_variant(v); v++)
        if (strcmp(tt_kernels_variant(v)->name, name) == 0)
            return true;
    return false;
}

#define EXPECT(what)                         \
    do {                                     \
        if (!(what)) {                       \
            printf("# not so: %s\n", #what); \
            return false;                    \
        }                                    \
    } while (0)

static bool right_kernel(void)
{
    (void)setenv("TITAN_CPU", "amx", 1);
    EXPECT(tt_kernels_check() == 0);
    EXPECT(strcmp(tt_kernels()->name, "amx") == 0 && tt_kernels()->bgemm == bgemm);
    EXPECT(strcmp(tt_kernels_products(), "tiles") == 0);
    EXPECT(strcmp(tt_kernels_fallback()->name, "amx") == 0); /* TITAN_CPU names it */
    EXPECT(!*said);
    return true;
}

static bool leaves_it_out(void)
{
    (void)unsetenv("TITAN_CPU");
    EXPECT(tt_kernels_check() == 0);
    EXPECT(tt_kernels()->bgemm != bgemm && strcmp(tt_kernels_products(), "widened") == 0);
    EXPECT(!is_a_variant("amx"));
    EXPECT(strstr(said, "warning: products of bfloat16 by tdpbf16ps are wrong on this processor"));
    return true;
}

static bool wrong_kernel(void)
{
    broken = true;
    return leaves_it_out();
}

static bool wrong_attention(void)
{
    attention_broken = true;
    return leaves_it_out();
}

static bool wrong_kernel_by_name(void)
{
    broken = true;
    (void)setenv("TITAN_CPU", "amx", 1);
    EXPECT(tt_kernels_check() == TT_EUSAGE);
    EXPECT(strstr(tt_error_message(), "products of bfloat16 by tdpbf16ps are wrong on this processor"));
    return true;
}

static void in_a_process(bool (*run)(void))
{
    pid_t child;
    int status = 0;

    if (!__builtin_cpu_supports("avx2"))
        return; /* AVX2's kernels replace AVX-512's here */
    (void)fflush(stdout);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        tt_log_set_sink(hear, NULL);
        status = run() ? 0 : 1;
        (void)fflush(stdout);
        _exit(status);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void a_kernel_that_multiplies_right_is_used(void **state)
{
    in_a_process(right_kernel);
}

static void a_kernel_that_multiplies_wrong_is_left_out_with_a_warning(void **state)
{
    in_a_process(wrong_kernel);
    in_a_process(wrong_attention);
}

static void a_kernel_that_multiplies_wrong_cannot_be_forced(void **state)
{
    in_a_process(wrong_kernel_by_name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_that_multiplies_right_is_used),
        cmocka_unit_test(a_kernel_that_multiplies_wrong_is_left_out_with_a_warning),
        cmocka_unit_test(a_kernel_that_multiplies_wrong_cannot_be_forced),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("trust", tests, NULL, NULL);
}
