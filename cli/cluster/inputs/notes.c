/* SPDX-License-Identifier: MIT
 *
 * What a prediction leaves out of a job of another trainer; see notes.h.
 */
#include "cli/cluster/inputs/notes.h"

#include <stdio.h>

#include "cli/run/screen.h"
#include "core/base/mem.h"

void tt_cluster_note(struct tt_cluster_notes *notes, const char *key, const char *value, const char *why)
{
    TT_PUSH(notes->item, notes->n, notes->cap) =
        (struct tt_cluster_note){.key = tt_strdup(key), .value = tt_strdup(value ? value : ""), .why = why};
}

void tt_cluster_notes_print(const struct tt_cluster_notes *notes, const char *head)
{
    for (int i = 0; i < notes->n; i++) {
        const struct tt_cluster_note *note = &notes->item[i];

        tt_print("%s%-13s %s%s%s: %s\n", head, i ? "" : "not counted", note->key, *note->value ? " " : "", note->value,
                 note->why);
    }
}

json_t *tt_cluster_notes_json(const struct tt_cluster_notes *notes)
{
    json_t *list = json_array();

    for (int i = 0; i < notes->n; i++)
        (void)json_array_append_new(list,
                                    json_pack("{s:o, s:o, s:s}", "key", tt_json_string(notes->item[i].key), "value",
                                              tt_json_string(notes->item[i].value), "assumes", notes->item[i].why));
    return list;
}

void tt_cluster_notes_release(struct tt_cluster_notes *notes)
{
    for (int i = 0; i < notes->n; i++) {
        tt_free(notes->item[i].key);
        tt_free(notes->item[i].value);
    }
    tt_free(notes->item);
    *notes = (struct tt_cluster_notes){0};
}
