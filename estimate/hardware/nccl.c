/* SPDX-License-Identifier: MIT
 *
 * Output of nccl-tests and rccl-tests as rates of links. The header of a table gives its columns, since versions
 * differ. A log may contain several tables, marks of the launcher at the beginning of lines, and no list of ranks.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "estimate/hardware/machine.h"

/* The collective of a table. For gathers and reduce-scatters, the bus bandwidth is the rate of the links. */
enum operation { GATHER, SUM, EXCHANGE, OTHER };

enum { TOKENS = 24 };

/* The first message of a curve must be as small as this. */
static const double most_first_bytes = 16 << 20;

struct table {
    enum operation operation;
    int bus, algorithm;          /* numbers of the columns */
    double bytes, factor;        /* bytes of the largest message; its bus bandwidth / its algorithm bandwidth */
    double rate;                 /* bus bandwidth of the largest message, GB/s */
    struct tt_cluster_ramp ramp; /* curve of all messages; its shares are in GB/s here */
};

struct reader {
    const char *where;
    int line;
    struct table *table;
    int n, cap;
    enum operation named; /* program that the log named last; OTHER: none yet */
    bool is_named;
    int ranks;
    char **host;
    int n_hosts, cap_hosts;
};

/* --- reading --- */

/* Splits a line into words, without the marks of a launcher ("[1,0]<stdout>:", "worker-0:") and "#". */
static int split(const char *line, size_t length, char *buf, size_t size, const char *token[TOKENS])
{
    char *rest = NULL;
    int n = 0;

    (void)snprintf(buf, size, "%.*s", (int)(length < size ? length : size - 1), line);
    for (char *at = strtok_r(buf, " \t\r#", &rest); at && n < TOKENS; at = strtok_r(NULL, " \t\r#", &rest)) {
        size_t end = strlen(at);

        if (n == 0 && at[end - 1] == ':')
            continue;
        if (n == 0 && strstr(at, ">:")) /* the mark may be joined to the first word */
            at = strstr(at, ">:") + 2;
        if (*at)
            token[n++] = at;
    }
    return n;
}

static int find(const char *const *token, int n, const char *word)
{
    for (int i = 0; i < n; i++)
        if (strcmp(token[i], word) == 0)
            return i;
    return -1;
}

/* Finds the name of a program, in its command or, in newer versions, in the log itself. */
static void find_name(struct reader *r, const char *line, size_t length)
{
    static const struct {
        const char *name;
        enum operation operation;
    } programs[] = {{"all_gather_perf", GATHER}, {"reduce_scatter_perf", GATHER}, {"all_reduce_perf", SUM},
                    {"alltoall_perf", EXCHANGE}, {"alltoallv_perf", OTHER},       {"sendrecv_perf", OTHER},
                    {"broadcast_perf", OTHER},   {"reduce_perf", OTHER},          {"gather_perf", OTHER},
                    {"scatter_perf", OTHER},     {"hypercube_perf", OTHER}};
    char text[512];

    (void)snprintf(text, sizeof text, "%.*s", (int)(length < sizeof text ? length : sizeof text - 1), line);
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        const char *at = strstr(text, programs[i].name);

        if (at && (at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_'))) {
            r->named = programs[i].operation;
            r->is_named = true;
            return;
        }
    }
}

/* The number of a column, if it is above 0; 0: the row has no such column, or no such number in it. */
static double positive(const char *const *token, int n, int column)
{
    double value = column < n ? strtod(token[column], NULL) : 0;

    return value > 0 && isfinite(value) ? value : 0;
}

static void read_results(struct table *t, const char *const *token, int n)
{
    double bytes = positive(token, n, 0), bus = positive(token, n, t->bus),
           algorithm = positive(token, n, t->algorithm);

    if (strspn(token[0], "0123456789") != strlen(token[0]) || !(bytes > 0) || !(bus > 0) || !(algorithm > 0))
        return;
    if (t->ramp.n < TT_RAMP_POINTS && (t->ramp.n == 0 || bytes > t->ramp.point[t->ramp.n - 1].bytes)) {
        t->ramp.point[t->ramp.n].bytes = bytes;
        t->ramp.point[t->ramp.n++].share = bus;
    }
    if (bytes < t->bytes)
        return;
    t->bytes = bytes;
    t->rate = bus;
    t->factor = bus / algorithm;
    if (t->operation == OTHER && n > 3) /* no program is named: a sum has a factor above 1 on more than two ranks */
        t->operation = strcmp(token[3], "sum") == 0 && t->factor > 0.99 ? SUM : GATHER;
}

static int read_line(struct reader *r, const char *line, size_t length)
{
    const char *token[TOKENS];
    char buf[512];
    int n = split(line, length, buf, sizeof buf, token), bus, algorithm, on;

    r->line++;
    find_name(r, line, length);
    if (n == 0)
        return 0;
    if (strcmp(token[0], "Rank") == 0) {
        r->ranks++;
        on = find(token, n, "on");
        if (on >= 0 && on + 1 < n && find((const char *const *)r->host, r->n_hosts, token[on + 1]) < 0)
            TT_PUSH(r->host, r->n_hosts, r->cap_hosts) = tt_strdup(token[on + 1]);
        return 0;
    }
    bus = find(token, n, "busbw");
    algorithm = find(token, n, "algbw");
    if (strcmp(token[0], "size") == 0 && (bus >= 0 || algorithm >= 0)) { /* the head of a table */
        if (bus < 0 || algorithm < 0)
            return tt_fail(TT_EDATA,
                           "%s:%d: the header of a table has no column %s\nhelp: wanted the columns size, algbw and "
                           "busbw, as nccl-tests print them",
                           r->where, r->line, bus < 0 ? "busbw" : "algbw");
        if (r->is_named && r->named == OTHER) /* a program whose collective is no ring */
            bus = TOKENS;
        TT_PUSH(r->table, r->n, r->cap) = (struct table){.operation = r->named, .bus = bus, .algorithm = algorithm};
    } else if (r->n > 0)
        read_results(&r->table[r->n - 1], token, n);
    return 0;
}

/* --- using the tables --- */

/* Takes the rate of a level from a table, and the factor between the table's bus bandwidth and that rate. */
static int take_table(struct tt_cluster_machine *m, const struct reader *r, struct table *t, const char *where,
                      const char *origin)
{
    struct tt_cluster_number *v = m->number;
    double node = v[TT_M_DEVICES].value, near, rate, scale = 1;
    /* listed, or computed from the factor between the two bandwidths */
    double devices = r->ranks > 1 ? r->ranks : round(t->operation == SUM ? 2 / (2 - t->factor) : 1 / (1 - t->factor));
    bool far = devices > node || r->n_hosts > 1;

    if (!(devices >= 2) || devices > 1e6)
        return tt_fail(TT_EDATA, "%s: a table does not show how many devices took part\nhelp: keep the lines '#  Rank'",
                       where);
    near = far && r->n_hosts > 1 ? fmin(node, devices / r->n_hosts) : fmin(node, devices);
    rate = far ? v[TT_M_NODE_NET].value * near / node : v[TT_M_UP_RATE].value;
    if (t->operation == SUM && !far && v[TT_M_SWITCH_RATE].value > 0) {
        v[TT_M_SWITCH_RATE] = (struct tt_cluster_number){t->rate * 1e9, origin};
        return 0;
    }
    /* part of the data of a device leaves the node, through the device's share of the cards */
    if (t->operation == EXCHANGE && far)
        scale = (devices - near) / (devices - 1) * near;
    if (t->operation != SUM && t->rate * scale * 1e9 > 1.05 * rate)
        return tt_fail(TT_EDATA,
                       "%s: %.0f GB/s are more than the %.0f GB/s that %s of %s can carry\nhelp: give a machine file "
                       "with the right %s",
                       where, t->rate * scale, rate / 1e9, far ? "the network of a node" : "the links of a device",
                       m->name, far ? "node.network_bytes_per_sec" : "levels.0.bytes_per_sec");
    if (t->operation == EXCHANGE) {
        m->exchange_share[far] = fmin(1, t->rate * scale * 1e9 / rate);
        return 0;
    }
    /* if the network itself adds, an all-reduce transfers less than its bus bandwidth suggests */
    v[far ? TT_M_NET_SHARE : TT_M_UP_SHARE] = (struct tt_cluster_number){fmin(1, t->rate * 1e9 / rate), origin};
    t->ramp.devices = devices;
    if (t->ramp.point[0].bytes > most_first_bytes) /* the curve says nothing about small messages */
        t->ramp.n = 0;
    for (int i = 0; i < t->ramp.n; i++)
        t->ramp.point[i].share = fmin(1, t->ramp.point[i].share * 1e9 / rate);
    m->ramp[far] = t->ramp;
    return 0;
}

int tt_cluster_machine_take_nccl(struct tt_cluster_machine *machine, const char *text, const char *where,
                                 const char *origin)
{
    /* in this order, since gathers say more about links than sums do */
    static const enum operation order[] = {SUM, GATHER, EXCHANGE};
    struct reader r = {.where = where, .named = OTHER};
    int rc = 0, taken = 0;

    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");

        TT_TRY(read_line(&r, line, length));
        line += length + (line[length] != 0);
    }
    for (size_t k = 0; k < sizeof order / sizeof *order; k++)
        for (int i = 0; i < r.n; i++)
            if (r.table[i].operation == order[k] && r.table[i].rate > 0) {
                TT_TRY(take_table(machine, &r, &r.table[i], where, origin));
                taken++;
            }
    if (taken == 0)
        rc =
            tt_fail(TT_EDATA,
                    "%s has no results of nccl-tests: wanted a table with columns size, algbw and busbw of all_gather, "
                    "reduce_scatter, all_reduce or alltoall, with a bandwidth above 0",
                    where);
out:
    for (int i = 0; i < r.n_hosts; i++)
        tt_free(r.host[i]);
    tt_free(r.host);
    tt_free(r.table);
    return rc;
}
