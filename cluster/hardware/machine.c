/* SPDX-License-Identifier: MIT
 *
 * The built-in machines and stacks, and how they are found by name.
 */
#include "cluster/hardware/machine.h"

#include <string.h>

#include "core/base/text.h"

#define GIB  (1024.0 * 1024.0 * 1024.0)
#define MIB  (1024.0 * 1024.0)
#define GBIT (1e9 / 8.0)

/* clang-format off */
#define MACHINE(id, text)       {.name = (id), .title = (text), .number = {
#define STACK(id, text)         {.name = (id), .title = (text), .number = {
#define M(key, amount, from)    [TT_M_##key] = {(amount), (from)},
#define S(key, amount, from)    [TT_S_##key] = {(amount), (from)},
#define END                     }},

const struct tt_cluster_machine tt_cluster_machines[] = {
#include "cluster/hardware/machines.def"
};
const struct tt_cluster_stack tt_cluster_stacks[] = {
#include "cluster/hardware/stacks.def"
#include "cluster/hardware/stacks_megatron.def"
};
/* clang-format on */

const int tt_cluster_n_machines = (int)(sizeof tt_cluster_machines / sizeof *tt_cluster_machines);
const int tt_cluster_n_stacks = (int)(sizeof tt_cluster_stacks / sizeof *tt_cluster_stacks);

static int unknown(const char *option, const char *name, struct tt_text *names)
{
    int rc = tt_fail(TT_EUSAGE, "--%s '%s' is not built in\nhelp: one of%s", option, name, names->text);

    tt_text_release(names);
    return rc;
}

int tt_cluster_machine_find(const char *name, const struct tt_cluster_machine **ret_machine)
{
    struct tt_text names = {0};

    for (int i = 0; i < tt_cluster_n_machines; i++) {
        if (strcmp(tt_cluster_machines[i].name, name) == 0) {
            *ret_machine = &tt_cluster_machines[i];
            tt_text_release(&names);
            return 0;
        }
        tt_text_add(&names, " %s", tt_cluster_machines[i].name);
    }
    return unknown("machine", name, &names);
}

int tt_cluster_stack_find(const char *name, const struct tt_cluster_stack **ret_stack)
{
    struct tt_text names = {0};

    for (int i = 0; i < tt_cluster_n_stacks; i++) {
        if (strcmp(tt_cluster_stacks[i].name, name) == 0) {
            *ret_stack = &tt_cluster_stacks[i];
            tt_text_release(&names);
            return 0;
        }
        tt_text_add(&names, " %s", tt_cluster_stacks[i].name);
    }
    return unknown("stack", name, &names);
}
