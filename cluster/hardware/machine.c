/* SPDX-License-Identifier: MIT
 *
 * The built-in machines and stacks, and how they are found by name.
 */
#include "cluster/hardware/machine.h"

#include <string.h>
#include <strings.h>

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

static int unknown(const char *what, const char *name, const char *others, const char *const *names, int n)
{
    const char *near = tt_text_meant(name, names, n);
    struct tt_text all = {0};
    int rc;

    for (int i = 0; i < n; i++)
        tt_text_add(&all, " %s", names[i]);
    rc = tt_fail(TT_EUSAGE, "%s '%s' is not built in\nhelp: %s%s%sone of%s%s", what, name, near ? "did you mean " : "",
                 near ? near : "", near ? "? " : "", all.text, others);
    tt_text_release(&all);
    return rc;
}

int tt_cluster_machine_find(const char *name, const struct tt_cluster_machine **ret_machine)
{
    const char *names[sizeof tt_cluster_machines / sizeof *tt_cluster_machines];

    for (int i = 0; i < tt_cluster_n_machines; i++) {
        names[i] = tt_cluster_machines[i].name;
        if (strcasecmp(names[i], name) == 0) {
            *ret_machine = &tt_cluster_machines[i];
            return 0;
        }
    }
    return unknown("--machine", name, ", or a machine file (a path)", names, tt_cluster_n_machines);
}

int tt_cluster_stack_find(const char *name, const struct tt_cluster_stack **ret_stack)
{
    const char *names[sizeof tt_cluster_stacks / sizeof *tt_cluster_stacks];

    for (int i = 0; i < tt_cluster_n_stacks; i++) {
        names[i] = tt_cluster_stacks[i].name;
        if (strcasecmp(names[i], name) == 0) {
            *ret_stack = &tt_cluster_stacks[i];
            return 0;
        }
    }
    return unknown("--stack", name, ", or a stack file (a path)", names, tt_cluster_n_stacks);
}
