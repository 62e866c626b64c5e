/* SPDX-License-Identifier: MIT
 *
 * Parts of pictures in SVG; see svg_parts.h.
 */
#include "cli/plan/svg_parts.h"

#include <math.h>
#include <stdio.h>

#include "core/base/shown.h"

void tt_svg_begin(int width, int height, struct tt_text *out)
{
    tt_text_add(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
                "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
                width, height, width, height, width, height);
}

void tt_svg_text(struct tt_text *out, double x, double y, const char *anchor, const char *attributes, const char *text)
{
    tt_text_add(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, attributes);
    tt_text_add_xml(out, text);
    tt_text_add(out, "</text>\n");
}

double tt_svg_step(double range)
{
    double power = pow(10.0, floor(log10(range / 5.0)));

    static const double factors[] = {1.0, 2.0, 5.0};

    for (int i = 0; i < 3; i++)
        if (range / (factors[i] * power) <= 6.0)
            return factors[i] * power;
    return 10.0 * power;
}

void tt_svg_time_axis(int left, int width, int top, int bottom, double seconds, struct tt_text *out)
{
    double step = seconds > 0.0 ? tt_svg_step(seconds) : 1.0;
    char label[32];

    for (int i = 0; i * step <= seconds * 1.0001; i++) {
        double t = i * step, x = left + (seconds > 0.0 ? t * width / seconds : t);

        tt_text_add(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#dddddd\"/>\n", x, x, top, bottom);
        if (seconds < 1.0)
            (void)snprintf(label, sizeof label, "%.4g ms", 1e3 * t);
        else
            (void)snprintf(label, sizeof label, "%.4g s", t);
        tt_svg_text(out, x, bottom + 16, "middle", "", t == 0.0 ? "0" : label);
    }
}
