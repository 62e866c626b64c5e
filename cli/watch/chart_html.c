/* SPDX-License-Identifier: MIT
 *
 * Curves as a page: the picture, its numbers, and a script that shows them under the mouse. The page needs no network.
 */
#include <math.h>
#include <string.h>

#include "cli/watch/chart.h"
#include "core/base/json.h"
#include "core/base/mem.h"

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>titan plot</title>\n<style>\n"
    "body { margin: 1em; font: 13px Helvetica, Arial, sans-serif; color: #222; background: #fff }\n"
    "#chart { position: relative; width: 1000px }\n"
    "#tip { position: absolute; display: none; pointer-events: none; background: #fffffff0; border: 1px solid #999;\n"
    "  border-radius: 3px; padding: 4px 8px; white-space: nowrap }\n"
    "</style>\n</head>\n<body>\n<div id=\"chart\">\n";

/* Every panel follows the mouse: the same step is marked in all of them. */
static const char script[] =
    "\"use strict\";\n"
    "const chart = document.getElementById('chart'), svg = chart.querySelector('svg');\n"
    "const tip = document.getElementById('tip'), ns = 'http://www.w3.org/2000/svg';\n"
    "const make = (name, attributes) => {\n"
    "  const e = document.createElementNS(ns, name);\n"
    "  for (const k in attributes) e.setAttribute(k, attributes[k]);\n"
    "  return svg.appendChild(e);\n"
    "};\n"
    "const lines = data.panels.map(p => make('line',\n"
    "  {y1: p.y, y2: p.y + p.height, stroke: '#555', 'stroke-dasharray': '3 3', visibility: 'hidden'}));\n"
    "const nearest = (steps, step) => {\n"
    "  let low = 0, high = steps.length - 1;\n"
    "  while (high - low > 1) {\n"
    "    const middle = (low + high) >> 1;\n"
    "    if (steps[middle] < step) low = middle; else high = middle;\n"
    "  }\n"
    "  return step - steps[low] <= steps[high] - step ? low : high;\n"
    "};\n"
    "const number = x => Number(x.toPrecision(7)).toString();\n"
    "const row = (run, text) => {\n"
    "  const line = document.createElement('div'), name = document.createElement('b');\n"
    "  name.style.color = data.colors[run];\n"
    "  name.textContent = data.runs[run] + ' ';\n"
    "  line.append(name, text);\n"
    "  tip.append(line);\n"
    "};\n"
    "svg.addEventListener('mousemove', event => {\n"
    "  const at = svg.getBoundingClientRect(), x = event.clientX - at.left, y = event.clientY - at.top;\n"
    "  const p = data.panels.find(p => x >= p.x && x <= p.x + p.width && y >= p.y && y <= p.y + p.height);\n"
    "  if (!p) { hide(); return; }\n"
    "  const part = (x - p.x) / p.width, step = data.first + part * (data.last - data.first);\n"
    "  data.panels.forEach((q, i) => {\n"
    "    lines[i].setAttribute('x1', q.x + part * q.width);\n"
    "    lines[i].setAttribute('x2', q.x + part * q.width);\n"
    "    lines[i].setAttribute('visibility', 'visible');\n"
    "  });\n"
    "  tip.textContent = p.title;\n"
    "  p.curves.forEach((c, run) => {\n"
    "    const i = nearest(c.step, step);\n"
    "    if (i >= 0 && c.step.length) row(run, 'step ' + c.step[i] + ': ' + number(c.value[i]));\n"
    "    const m = p.marks[run], k = nearest(m.step, step);\n"
    "    if (k >= 0 && m.step.length && Math.abs(m.step[k] - step) < 0.02 * (data.last - data.first))\n"
    "      row(run, 'validation at step ' + m.step[k] + ': ' + number(m.value[k]));\n"
    "  });\n"
    "  tip.style.display = 'block';\n"
    "  const left = x + 14 + tip.offsetWidth > 1000 ? x - 14 - tip.offsetWidth : x + 14;\n"
    "  tip.style.left = left + 'px';\n"
    "  tip.style.top = y + 14 + 'px';\n"
    "});\n"
    "const hide = () => {\n"
    "  tip.style.display = 'none';\n"
    "  lines.forEach(l => l.setAttribute('visibility', 'hidden'));\n"
    "};\n"
    "svg.addEventListener('mouseleave', hide);\n";

static json_t *curves_json(const struct tt_curve *curves, int n)
{
    json_t *list = json_array();

    for (int r = 0; r < n; r++) {
        json_t *step = json_array(), *value = json_array();

        for (int64_t i = 0; i < curves[r].n; i++) {
            (void)json_array_append_new(step, json_integer((json_int_t)curves[r].step[i]));
            (void)json_array_append_new(value, json_real(curves[r].value[i]));
        }
        (void)json_array_append_new(list, json_pack("{s:o, s:o}", "step", step, "value", value));
    }
    return list;
}

static json_t *data_json(const struct tt_chart *chart)
{
    json_t *panels = json_array(), *runs = json_array(), *colors = json_array();

    for (int r = 0; r < chart->n_runs; r++) {
        (void)json_array_append_new(runs, tt_json_string(chart->run[r]));
        (void)json_array_append_new(colors, json_string(tt_chart_color(r)));
    }
    for (int i = 0; i < chart->n_panels; i++) {
        const struct tt_panel *p = &chart->panel[i];
        struct tt_chart_box box = tt_chart_box(chart, i);

        (void)json_array_append_new(
            panels, json_pack("{s:o, s:f, s:f, s:f, s:f, s:o, s:o}", "title", tt_json_string(p->title), "x", box.x, "y",
                              box.y, "width", box.width, "height", box.height, "curves",
                              curves_json(p->curve, chart->n_runs), "marks", curves_json(p->marks, chart->n_runs)));
    }
    return json_pack("{s:o, s:o, s:f, s:f, s:o}", "runs", runs, "colors", colors, "first", chart->first, "last",
                     chart->last, "panels", panels);
}

void tt_chart_draw_html(const struct tt_chart *chart, struct tt_text *out)
{
    json_t *data = data_json(chart);
    char *text = tt_json_text(data);

    tt_text_add(out, "%s", head);
    tt_chart_draw_svg(chart, out);
    tt_text_add(out, "<div id=\"tip\"></div>\n</div>\n<script>\nconst data = ");
    tt_text_add_replaced(out, text, strlen(text), "<", "\\u003c"); /* names cannot be markup */
    tt_text_add(out, ";\n%s</script>\n</body>\n</html>\n", script);
    tt_free(text);
    json_decref(data);
}
