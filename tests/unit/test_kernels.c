/* SPDX-License-Identifier: MIT
 *
 * The choice of a kernel variant, for invented processors.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/kernels/kernels.h"
#include "core/os/machine.h"

enum {
    AVX512 = TT_CPU_AVX2 | TT_CPU_AVX512,
    BF16 = AVX512 | TT_CPU_AVX512_BF16,
};

static double found;

static double measure(const char *variant)
{
    assert_string_equal(variant, "avx512_bf16");
    return found;
}

static double measure_amx(const char *variant)
{
    assert_string_equal(variant, "amx");
    return found;
}

static double must_not_measure(const char *variant)
{
    fail_msg("%s was measured", variant);
    return 0.0;
}

static const char *pick(const char *vendor, int family, int model, unsigned features)
{
    struct tt_cpu cpu = {.family = family, .model = model, .features = features};

    (void)snprintf(cpu.vendor, sizeof cpu.vendor, "%s", vendor);
    return tt_kernels_pick(&cpu, must_not_measure);
}

static void known_processors_have_the_variant_of_the_table(void **state)
{
    assert_string_equal(pick("", 0, 0, 0), "generic");
#if defined(__x86_64__)
    assert_string_equal(pick("GenuineIntel", 6, 44, 0), "generic");         /* Westmere */
    assert_string_equal(pick("GenuineIntel", 6, 60, TT_CPU_AVX2), "avx2");  /* Haswell */
    assert_string_equal(pick("GenuineIntel", 6, 85, AVX512), "avx512");     /* Skylake, Cascade Lake */
    assert_string_equal(pick("GenuineIntel", 6, 85, BF16), "avx512");       /* Cooper Lake */
    assert_string_equal(pick("GenuineIntel", 6, 143, BF16), "avx512");      /* Sapphire Rapids */
    assert_string_equal(pick("GenuineIntel", 6, 207, BF16), "avx512");      /* Emerald Rapids */
    assert_string_equal(pick("AuthenticAMD", 25, 1, TT_CPU_AVX2), "avx2");  /* Zen 3 */
    assert_string_equal(pick("AuthenticAMD", 25, 17, BF16), "avx512_bf16"); /* Zen 4 */
    assert_string_equal(pick("AuthenticAMD", 26, 2, BF16), "avx512_bf16");  /* Zen 5 */
    assert_string_equal(pick("AuthenticAMD", 26, 2, AVX512), "avx512");     /* under a hypervisor that hides it */
#elif defined(__aarch64__)
    assert_string_equal(pick("", 0, 0, TT_CPU_NEON), "neon");
#endif
}

static void an_unknown_processor_is_measured_and_must_win_clearly(void **state)
{
    struct tt_cpu next = {.vendor = "GenuineIntel", .family = 19, .model = 1, .features = BF16};
    struct tt_cpu other = {.vendor = "AuthenticAMD", .family = 27, .model = 0, .features = BF16};

#if defined(__x86_64__)
    found = 0.5;
    assert_string_equal(tt_kernels_pick(&next, measure), "avx512");
    found = 1.2; /* such a small difference can be chance, and must not give ranks different kernels */
    assert_string_equal(tt_kernels_pick(&next, measure), "avx512");
    assert_string_equal(tt_kernels_pick(&other, measure), "avx512");
    found = 1.9;
    assert_string_equal(tt_kernels_pick(&next, measure), "avx512_bf16");
    assert_string_equal(tt_kernels_pick(&other, measure), "avx512_bf16");
#else
    (void)next;
    (void)other;
    (void)measure;
#endif
}

static void tiles_are_measured_and_must_win_clearly(void **state)
{
    struct tt_cpu intel = {.vendor = "GenuineIntel", .family = 6, .model = 143, .features = BF16 | TT_CPU_AMX};

#if defined(__x86_64__)
    found = 4.0;
    assert_string_equal(tt_kernels_pick(&intel, measure_amx), "amx");
    found = 1.1;
    assert_string_equal(tt_kernels_pick(&intel, measure_amx), "avx512");
    found = 0.0; /* its products are wrong */
    assert_string_equal(tt_kernels_pick(&intel, measure_amx), "avx512");
#else
    (void)intel;
    (void)measure_amx;
#endif
}

static void this_processor_runs_what_the_rule_says(void **state)
{
    const struct tt_cpu cpu = tt_cpu_read();
    const char *name = tt_kernels_pick(&cpu, NULL);
    bool built = false;
    struct tt_text text = {0};

    for (int v = 0; tt_kernels_variant(v); v++)
        built = built || strcmp(tt_kernels_variant(v)->name, name) == 0;
    if (!built)
        return; /* meson's option `kernels` can leave it out */
    if (tt_kernels_check() != 0)
        return; /* TITAN_CPU */
    for (int v = 0; tt_kernels_variant(v); v++) {
        tt_kernels_use(tt_kernels_variant(v));
        tt_text_release(&text);
        tt_kernels_text(&text);
        assert_memory_equal(text.text, tt_kernels()->name, strlen(tt_kernels()->name));
        assert_true(tt_kernels_gain() > 0.0);
        assert_int_equal(strcmp(tt_kernels_products(), "widened") == 0,
                         strstr(text.text, "widened to float32") != NULL);
        if (strcmp(tt_kernels_products(), "widened") == 0)
            assert_ptr_equal(tt_kernels_fallback(), tt_kernels());
    }
    tt_kernels_use(NULL);
    tt_text_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_processors_have_the_variant_of_the_table),
        cmocka_unit_test(an_unknown_processor_is_measured_and_must_win_clearly),
        cmocka_unit_test(tiles_are_measured_and_must_win_clearly),
        cmocka_unit_test(this_processor_runs_what_the_rule_says),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
