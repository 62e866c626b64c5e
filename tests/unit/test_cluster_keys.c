/* SPDX-License-Identifier: MIT
 *
 * Every key and flag is priced in predictions for clusters, named as left out, refused, or known to cost nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/config/config.h"
#include "estimate/formats/formats.h"
#include "estimate/formats/internal.h"

static void every_key_of_torchtitan_has_a_class(void **state)
{
    FILE *f = fopen(TT_SOURCE_DIR "/tests/cli/torchtitan/all_keys.txt", "r");
    char key[128];
    int n = 0;

    assert_non_null(f);
    for (; fscanf(f, "%127s", key) == 1; n++) {
        if (tt_cluster_recipe_class(key) == TT_RECIPE_UNKNOWN)
            print_message("# torchtitan.c does not know %s\n", key);
        assert_int_not_equal(tt_cluster_recipe_class(key), TT_RECIPE_UNKNOWN);
    }
    (void)fclose(f);
    assert_true(n > 200);
}

static void keys_that_nobody_knows_are_told_apart(void **state)
{
    assert_int_equal(tt_cluster_recipe_class("training.seq_len"), TT_RECIPE_KNOWN);
    assert_int_equal(tt_cluster_recipe_class("optimizer.name"), TT_RECIPE_KNOWN);
    assert_int_equal(tt_cluster_recipe_class("checkpoint.export_dtype"), TT_RECIPE_FREE);
    assert_int_equal(tt_cluster_recipe_class("training.new_key"), TT_RECIPE_COSTLY);
    assert_int_equal(tt_cluster_recipe_class("optimizer.cpu_offload"), TT_RECIPE_COSTLY);
    assert_int_equal(tt_cluster_recipe_class("lora.rank"), TT_RECIPE_COSTLY);
    assert_int_equal(tt_cluster_recipe_class("mood.colour"), TT_RECIPE_UNKNOWN);
}

/* Every key, in order, and its class. tests/cli/test_cluster_inputs.sh changes the keys that are priced. */
static void every_key_of_titan_has_a_class(void **state)
{
    FILE *f = fopen(TT_SOURCE_DIR "/tests/unit/data/config_keys.txt", "r");
    char line[256], key[128], class[16];

    assert_non_null(f);
    for (int i = 0; i <= tt_config_n_rows; i++) {
        const char *path = i < tt_config_n_rows ? tt_config_rows[i].path : "none";
        bool is_named;

        if (!fgets(line, sizeof line, f) || sscanf(line, "%127s %15s", key, class) != 2)
            (void)snprintf(key, sizeof key, "none");
        if (strcmp(key, path) != 0)
            fail_msg(
                "key %d of schema.def is %s, of config_keys.txt %s\nhelp: a new key needs a line there: priced, with "
                "a value that changes the prediction; named, if it has .assumed; or free",
                i, path, key);
        if (i == tt_config_n_rows)
            break;
        is_named = strcmp(class, "named") == 0;
        if (is_named != (tt_config_rows[i].assumed != NULL))
            fail_msg("%s is %s in config_keys.txt, but %s .assumed in schema.def", key, class,
                     is_named ? "lacks" : "has");
        assert_true(is_named || strcmp(class, "priced") == 0 || strcmp(class, "free") == 0);
    }
    (void)fclose(f);
}

/* --- flags and keys of other trainers --- */

enum { MOST_WORDS = 96 };

/* A job in another trainer's format, and whether reading it failed. */
struct reading {
    struct tt_cluster_foreign foreign;
    struct tt_cluster_notes notes;
    int rc;
};

typedef int reader(const char *path, const struct tt_cluster_given *given, struct tt_cluster_notes *notes,
                   struct tt_cluster_foreign *ret_foreign);

static struct reading read_words(reader *read, const char *base, const char *flag, const char *value)
{
    const char *word[MOST_WORDS];
    char *text = tt_format("%s", base), *rest = text, *one;
    struct tt_cluster_given given = {.words = word};
    struct reading r = {.rc = 0};

    while ((one = strsep(&rest, " ")) && given.n_words < MOST_WORDS - 2)
        word[given.n_words++] = one;
    if (flag)
        word[given.n_words++] = flag;
    if (value)
        word[given.n_words++] = value;
    r.rc = read(NULL, &given, &r.notes, &r.foreign);
    tt_free(text);
    return r;
}

static bool same_jobs(const struct tt_cluster_foreign *a, const struct tt_cluster_foreign *b)
{
    bool same = a->n == b->n && a->exposed == b->exposed && a->compiled == b->compiled && a->model == b->model &&
                a->distributed_optimizer == b->distributed_optimizer && a->stages_of_a_rank == b->stages_of_a_rank &&
                memcmp(&a->job, &b->job, sizeof a->job) == 0;

    for (int i = 0; same && i < a->n; i++)
        same = strcmp(a->override[i], b->override[i]) == 0;
    return same;
}

/* Whether a flag with some of the values changes a job, is named, or is refused. */
static bool matters(reader *read, const char *base, const char *flag, const char *const *values)
{
    struct reading without = read_words(read, base, NULL, NULL);
    bool any = false;

    if (without.rc < 0)
        print_message("# %s\n", tt_error_message());
    assert_int_equal(without.rc, 0);
    for (int i = 0; values[i] && !any; i++) {
        struct reading with = read_words(read, base, flag, *values[i] ? values[i] : NULL);

        any = with.rc < 0 || with.notes.n > without.notes.n || !same_jobs(&with.foreign, &without.foreign);
        tt_cluster_notes_release(&with.notes);
        tt_cluster_foreign_release(&with.foreign);
    }
    tt_cluster_notes_release(&without.notes);
    tt_cluster_foreign_release(&without.foreign);
    return any;
}

static const char *const values[] = {"2",     "full",     "8",    "hybrid",  "sgd",           "bf16",    "fp16",
                                     "te",    "uniform",  "[0]",  "unfused", "fp8",           "mlp",     "true",
                                     "rope",  "bfloat16", "none", "SGD",     "memory_budget", "rowwise", "GPipe",
                                     "false", "layers.3", NULL};

static void every_flag_of_megatron_is_priced_named_or_refused(void **state)
{
    static const char plain[] = "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 4096 "
                                "--micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu "
                                "--tokenizer-type GPT2BPETokenizer --use-distributed-optimizer";
    static const char rich[] =
        "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 4096 --micro-batch-size 1 "
        "--global-batch-size 64 --bf16 --swiglu --vocab-size 50000 --group-query-attention --num-experts 8 "
        "--recompute-granularity full --recompute-method block --pipeline-model-parallel-size 2 --window-size 128,0 "
        "--fp8-format hybrid --cross-entropy-loss-fusion --use-precision-aware-optimizer "
        "--max-position-embeddings 4096 --tensor-model-parallel-size 2";
    static const char latent[] = "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 4096 "
                                 "--micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 50000 "
                                 "--multi-latent-attention --recompute-granularity selective";
    static const char *const flags[] = {
#define X(id, name, kind) "--" name,
#include "estimate/formats/megatron_flags.def"
#undef X
    };
    static const char *const none[] = {"", NULL};
    int n_idle = 0;

    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        const char *const *given = tt_megatron_flag_kind(flags[i] + 2) == TT_FLAG_IS_SWITCH ? none : values;
        bool any = matters(tt_cluster_megatron_read, plain, flags[i], given) ||
                   matters(tt_cluster_megatron_read, rich, flags[i], given) ||
                   matters(tt_cluster_megatron_read, latent, flags[i], given);

        /* the first is in all three, and without it nothing can be read; the second only stands for a tokenizer */
        if (!any && strcmp(flags[i], "--bf16") != 0 && strcmp(flags[i], "--merge-file") != 0) {
            print_message("# %s changes nothing, and is neither named nor refused\n", flags[i]);
            n_idle++;
        }
    }
    assert_int_equal(n_idle, 0);
}

static void every_key_of_torchtitan_that_is_read_is_priced_named_or_refused(void **state)
{
    static const char base[] = "--model.name llama3 --model.flavor 8B --training.local_batch_size 8 "
                               "--parallelism.pipeline_parallel_degree 2 --parallelism.tensor_parallel_degree 2 "
                               "--model.converters float8 --compile.enable";
    static const char old[] = "--training.batch_size 4";
    static const char recipe[] = "--config deepseek_v3_16b --parallelism.pipeline_parallel_degree 2";
    static const char *const keys[] = {
#define SAME(name) "--" name,
#define READ(name) "--" name,
#include "estimate/formats/torchtitan_keys.def"
    };
    int n_idle = 0;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!matters(tt_cluster_recipe_read, base, keys[i], values) &&
            !matters(tt_cluster_recipe_read, recipe, keys[i], values) &&
            !matters(tt_cluster_recipe_read, old, keys[i], values)) {
            print_message("# %s changes nothing, and is neither named nor refused\n", keys[i]);
            n_idle++;
        }
    assert_int_equal(n_idle, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_of_torchtitan_has_a_class),
        cmocka_unit_test(keys_that_nobody_knows_are_told_apart),
        cmocka_unit_test(every_key_of_titan_has_a_class),
        cmocka_unit_test(every_flag_of_megatron_is_priced_named_or_refused),
        cmocka_unit_test(every_key_of_torchtitan_that_is_read_is_priced_named_or_refused),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
