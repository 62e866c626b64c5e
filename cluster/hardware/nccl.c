/* SPDX-License-Identifier: MIT
 *
 * Output of nccl-tests and rccl-tests: the rates of links.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/hardware/machine_file.h"

struct measured {
    double bytes, bus;           /* of the largest message: GB/s */
    struct tt_cluster_ramp ramp; /* of all messages; its shares are GB/s here */
    int devices;
    bool sums; /* an all-reduce */
};

/* A line of results: size, count, type, operation, root, and then microseconds, algorithm and bus bandwidth. */
static void read_line(const char *line, struct measured *m)
{
    char operation[32];
    double number[5]; /* size, count; microseconds, algorithm and bus bandwidth */
    int words;
    char *end = (char *)line;

    for (int i = 0; i < 5; i++) {
        const char *begin = end;

        if (i == 2) {
            if (sscanf(begin, " %*31s %31s %*31s%n", operation, &words) != 1)
                return;
            begin += words;
        }
        number[i] = strtod(begin, &end);
        if (end == begin)
            return;
    }
    if (!(number[4] > 0))
        return;
    if (m->ramp.n < TT_RAMP_POINTS && (m->ramp.n == 0 || number[0] > m->ramp.point[m->ramp.n - 1].bytes)) {
        m->ramp.point[m->ramp.n].bytes = number[0];
        m->ramp.point[m->ramp.n++].share = number[4];
    }
    if (number[0] < m->bytes)
        return;
    m->bytes = number[0];
    m->bus = number[4];
    m->sums = strcmp(operation, "sum") == 0 && fabs(m->bus / number[3] - 2.0 * (m->devices - 1) / m->devices) < 0.02;
}

int tt_cluster_machine_take_nccl(struct tt_cluster_machine *machine, const char *text, const char *where,
                                 const char *origin)
{
    struct tt_cluster_number *v = machine->number, *number;
    struct measured m = {.devices = 0};
    double rate;

    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, "#  Rank", 7) == 0 || strncmp(line, "# Rank", 6) == 0)
            m.devices++;
        else
            read_line(line, &m);
    }
    if (m.devices < 2 || !(m.bus > 0))
        return tt_fail(TT_EDATA,
                       "%s has no results of nccl-tests: wanted a line '#  Rank' for each of two or more devices, and "
                       "lines with a size and its bus bandwidth",
                       where);
    if (m.devices > v[TT_M_DEVICES].value) {
        number = &v[TT_M_NET_SHARE];
        rate = v[TT_M_NODE_NET].value;
    } else if (m.sums && v[TT_M_SWITCH_RATE].value > 0) {
        number = &v[TT_M_SWITCH_RATE];
        rate = 1;
    } else {
        number = &v[TT_M_UP_SHARE];
        rate = v[TT_M_UP_RATE].value;
    }
    number->value = m.bus * 1e9 / rate;
    number->origin = origin;
    if (number != &v[TT_M_SWITCH_RATE]) {
        m.ramp.devices = m.devices;
        for (int i = 0; i < m.ramp.n; i++)
            m.ramp.point[i].share *= 1e9 / rate;
        machine->ramp[number == &v[TT_M_NET_SHARE]] = m.ramp;
    }
    return 0;
}
