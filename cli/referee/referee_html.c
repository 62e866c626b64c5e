/* SPDX-License-Identifier: MIT
 *
 * The referee's verdict as a page: for each judged dump a picture, a row for each layer and a column for each tensor of
 * a layer. The page needs no network.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/referee/referee.h"
#include "cli/run/page.h"
#include "core/base/mem.h"

/* The tensors of a section of which the names differ only in numbers. */
struct kind {
    char *name; /* what follows the layer's number, with * for other numbers */
};

struct map {
    struct kind *kind;
    int n, cap, layers;
};

/* The part of a name after the number of its layer, or the whole name. */
static char *kind_of(const json_t *tensor)
{
    const char *name = tt_cli_text(tensor, "name"), *at = name;
    struct tt_text text = {0};
    bool behind = !json_is_integer(json_object_get(tensor, "layer"));

    for (const char *next; at; at = next) {
        size_t size = strcspn(at, ".");
        bool is_number = size > 0 && strspn(at, "0123456789") == size;

        next = at[size] ? at + size + 1 : NULL;
        if (behind)
            tt_text_add(&text, "%s%.*s", text.size ? "." : "", is_number ? 1 : (int)size, is_number ? "*" : at);
        else
            behind = is_number;
    }
    if (!text.size)
        tt_text_add(&text, "(whole layer)");
    return text.text;
}

static int find(struct map *map, char *name)
{
    for (int i = 0; i < map->n; i++)
        if (strcmp(map->kind[i].name, name) == 0) {
            tt_free(name);
            return i;
        }
    TT_PUSH(map->kind, map->n, map->cap) = (struct kind){.name = name};
    return map->n - 1;
}

/* 0: the same bits; up to 3: below what rounding explains; above: beyond it. */
static int shade_of(const json_t *tensor)
{
    const char *judgement = tt_cli_text(tensor, "judgement");
    double error = json_number_value(json_object_get(tensor, "error"));
    double tolerance = json_number_value(json_object_get(tensor, "tolerance"));

    if (strcmp(judgement, "same") == 0)
        return 0;
    if (strcmp(judgement, "rounding") == 0)
        return error < 0.01 * tolerance ? 1 : error < 0.1 * tolerance ? 2 : 3;
    if (strcmp(judgement, "different") != 0)
        return 7;
    return error < 10.0 * tolerance ? 4 : error < 0.1 ? 5 : error < 0.7 ? 6 : 7;
}

static void add_cell(const json_t *tensor, struct tt_text *out)
{
    if (!tensor) {
        tt_text_add(out, "<td></td>");
        return;
    }
    tt_text_add(out, "<td class=\"s%d\" title=\"", shade_of(tensor));
    tt_text_add_xml(out, tt_cli_text(tensor, "name"));
    tt_text_add(
        out, ": error %.3g, rounding explains %.2g, cosine %.6f, ratio %.6g\"></td>",
        json_number_value(json_object_get(tensor, "error")), json_number_value(json_object_get(tensor, "tolerance")),
        json_number_value(json_object_get(tensor, "cosine")), json_number_value(json_object_get(tensor, "ratio")));
}

/* The table of one section, if the dump has it. The worst tensor of a place is shown there. */
static void add_section(const json_t *tensors, const char *section, struct tt_text *out)
{
    struct map map = {0};
    const json_t *tensor, **cell;
    size_t i, n = json_array_size(tensors);
    int *place = tt_calloc(n + 1, sizeof *place), alone = 0;

    json_array_foreach((json_t *)tensors, i, tensor)
    {
        const json_t *layer = json_object_get(tensor, "layer");

        place[i] = -1;
        if (strcmp(tt_cli_text(tensor, "section"), section) != 0)
            continue;
        alone += !json_is_integer(layer);
        if (!json_is_integer(layer))
            continue;
        place[i] = find(&map, kind_of(tensor));
        map.layers = (int)json_integer_value(layer) + 1 > map.layers ? (int)json_integer_value(layer) + 1 : map.layers;
    }
    cell = tt_calloc((size_t)map.layers * (size_t)map.n + 1, sizeof *cell);
    json_array_foreach((json_t *)tensors, i, tensor)
    {
        const json_t **at;

        if (place[i] < 0)
            continue;
        at = &cell[(size_t)tt_cli_int(tensor, "layer") * (size_t)map.n + (size_t)place[i]];
        *at = !*at || shade_of(tensor) > shade_of(*at) ? tensor : *at;
    }
    if (map.n || alone) {
        tt_text_add(out, "<section><h2>%s</h2>", section);
        if (alone) {
            tt_text_add(out, "<table><tr>");
            json_array_foreach((json_t *)tensors, i, tensor) if (!json_is_integer(json_object_get(tensor, "layer")) &&
                                                                 strcmp(tt_cli_text(tensor, "section"), section) == 0)
            {
                tt_text_add(out, "<th>");
                tt_text_add_xml(out, tt_cli_text(tensor, "name"));
                tt_text_add(out, "</th>");
                add_cell(tensor, out);
            }
            tt_text_add(out, "</tr></table>\n");
        }
        tt_text_add(out, "<table class=\"map\"><tr><th>layer</th>");
        for (int k = 0; k < map.n; k++) {
            tt_text_add(out, "<th><span>");
            tt_text_add_xml(out, map.kind[k].name);
            tt_text_add(out, "</span></th>");
        }
        tt_text_add(out, "</tr>\n");
        for (int layer = 0; layer < map.layers; layer++) {
            tt_text_add(out, "<tr><th>%d</th>", layer);
            for (int k = 0; k < map.n; k++)
                add_cell(cell[(size_t)layer * (size_t)map.n + (size_t)k], out);
            tt_text_add(out, "</tr>\n");
        }
        tt_text_add(out, "</table></section>\n");
    }
    for (int k = 0; k < map.n; k++)
        tt_free(map.kind[k].name);
    tt_free(map.kind);
    tt_free((void *)cell);
    tt_free(place);
}

static void add_line(const char *label, const json_t *value, struct tt_text *out)
{
    if (!json_is_string(value))
        return;
    tt_text_add(out, "<p>%s: <code>", label);
    tt_text_add_xml(out, json_string_value(value));
    tt_text_add(out, "</code></p>\n");
}

static void add_look(const json_t *look, struct tt_text *out)
{
    static const char *const sections[] = {"gradients", "activations", "activation_gradients", "weights", "optimizer"};
    bool ok = json_is_true(json_object_get(look, "ok"));
    const json_t *pattern, *line;
    size_t i, k;

    tt_text_add(out, "<h1 class=\"%s\">%s: ", ok ? "yes" : "no", ok ? "OK" : "DIFFERENT");
    tt_text_add_xml(out, tt_cli_text(look, "dump"));
    tt_text_add(out, "</h1>\n<p>against ");
    tt_text_add_xml(out, tt_cli_text(look, "truth"));
    tt_text_add(out, "; rounding explains ");
    tt_text_add_xml(out, tt_cli_text(look, "model"));
    tt_text_add(out, "</p>\n");
    json_array_foreach(json_object_get(look, "patterns"), i, pattern)
    {
        tt_text_add(out, "<section><h2>");
        tt_text_add_xml(out, tt_cli_text(pattern, "name"));
        tt_text_add(out, ": ");
        tt_text_add_xml(out, tt_cli_text(pattern, "title"));
        tt_text_add(out, "</h2><ul>");
        json_array_foreach(json_object_get(pattern, "evidence"), k, line)
        {
            tt_text_add(out, "<li>");
            tt_text_add_xml(out, json_string_value(line));
            tt_text_add(out, "</li>");
        }
        tt_text_add(out, "</ul><p>");
        tt_text_add_xml(out, tt_cli_text(pattern, "remedy"));
        tt_text_add(out, "</p></section>\n");
    }
    add_line("first in forward order", json_object_get(look, "first_forward"), out);
    add_line("first in backward order", json_object_get(look, "first_backward"), out);
    for (i = 0; i < sizeof sections / sizeof sections[0]; i++)
        add_section(json_object_get(look, "tensors"), sections[i], out);
}

void tt_referee_draw_html(const json_t *json, struct tt_text *out)
{
    const json_t *look;
    const char *rest;
    char *title = tt_format("%s and %s", tt_cli_text(json, "a"), tt_cli_text(json, "b"));
    size_t i;

    tt_page_begin(out, title);
    rest = tt_page_up_to(out, tt_referee_page_text, "@BODY@");
    json_array_foreach(json_object_get(json, "looks"), i, look) add_look(look, out);
    tt_text_add(out, "%s", rest);
    tt_free(title);
}
