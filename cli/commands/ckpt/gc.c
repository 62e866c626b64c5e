/* SPDX-License-Identifier: MIT
 *
 * `titan ckpt gc, rollback`: prints what was removed or set aside, or would be.
 */
#include "checkpoint/steps/gc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/steps/rollback.h"
#include "checkpoint/steps/steps.h"
#include "cli/commands/ckpt/ckpt.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"

static void print_gc(const json_t *json)
{
    const json_t *removed = json_object_get(json, "removed");
    bool dry = json_is_true(json_object_get(json, "dry_run"));
    char bytes[32];

    for (size_t i = 0; i < json_array_size(removed); i++) {
        const json_t *r = json_array_get(removed, i);
        bool restored = strcmp(tt_ckpt_text(r, "kind"), "restored") == 0;

        tt_print("%s%s %s, %s\n", dry ? "would be " : "", restored ? "put back:" : "removed:", tt_ckpt_text(r, "name"),
                 tt_ckpt_bytes(bytes, sizeof bytes, r, "bytes"));
    }
    tt_print("%s: %s %s; %zu good step%s kept", tt_ckpt_text(json, "folder"),
             tt_ckpt_bytes(bytes, sizeof bytes, json, "bytes"), dry ? "would be freed" : "freed",
             json_array_size(json_object_get(json, "kept")),
             json_array_size(json_object_get(json, "kept")) == 1 ? "" : "s");
    if (json_array_size(json_object_get(json, "damaged")))
        tt_print(", %zu damaged left alone", json_array_size(json_object_get(json, "damaged")));
    if (json_array_size(json_object_get(json, "pytorch")))
        tt_print(", %zu of PyTorch left alone", json_array_size(json_object_get(json, "pytorch")));
    tt_print("\n");
}

int tt_ckpt_verb_gc(const struct tt_args *args)
{
    bool is_json = tt_args_has(args, "json");
    json_t *all = json_array();
    int64_t keep = -1;
    int rc = 0;

    TT_TRY(tt_cli_count("ckpt gc", args, "keep", 0, 1 << 20, &keep));
    for (int i = 1; i < args->n_words; i++) {
        json_t *json = NULL;

        TT_TRY(tt_ckpt_gc(args->word[i], keep, tt_args_has(args, "abandoned"), tt_args_has(args, "dry_run"), &json));
        (void)json_array_append_new(all, json);
        if (!is_json)
            print_gc(json);
    }
    rc = is_json ? tt_cli_print_json(args->n_words == 2 ? json_incref(json_array_get(all, 0)) : json_incref(all))
                 : tt_cli_finish();
out:
    json_decref(all);
    return rc < 0 ? tt_cli_fail(rc) : rc;
}

/* "20" or "step-20". */
static int read_step(const char *word, int64_t *ret_step)
{
    char *name = strncmp(word, "step-", 5) == 0 ? tt_strdup(word) : tt_format("step-%s", word);

    *ret_step = tt_step_number(name);
    tt_free(name);
    return *ret_step >= 0
               ? 0
               : tt_fail(TT_EUSAGE, "'%s' is not a step\nhelp: titan ckpt rollback RUN STEP, such as 'outputs 20'",
                         word);
}

static void print_rollback(const json_t *json)
{
    const json_t *aside = json_object_get(json, "set_aside");
    bool dry = json_is_true(json_object_get(json, "dry_run"));

    for (size_t i = 0; i < json_array_size(aside); i++)
        tt_print("%sset aside: step-%" PRId64 " as %s\n", dry ? "would be " : "",
                 tt_ckpt_int(json_array_get(aside, i), "step"), tt_ckpt_text(json_array_get(aside, i), "name"));
    tt_print("%s: the next start %s from step-%" PRId64 "\n", tt_ckpt_text(json, "folder"),
             dry ? "would resume" : "resumes", tt_ckpt_int(json, "step"));
}

int tt_ckpt_verb_rollback(const struct tt_args *args)
{
    json_t *json = NULL;
    int64_t step = -1;
    int rc = 0;

    TT_TRY(read_step(args->word[2], &step));
    TT_TRY(tt_ckpt_rollback(args->word[1], step, tt_args_has(args, "dry_run"), &json));
    if (tt_args_has(args, "json"))
        return tt_cli_print_json(json);
    print_rollback(json);
    rc = tt_cli_finish();
out:
    json_decref(json);
    return rc < 0 ? tt_cli_fail(rc) : rc;
}
