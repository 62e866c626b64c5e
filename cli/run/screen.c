/* SPDX-License-Identifier: MIT
 *
 * Output that fits the terminal.
 */
#include "cli/run/screen.h"

#include <stdlib.h>
#include <string.h>

#include <sys/ioctl.h>
#include <unistd.h>

enum { LEAST_COLUMNS = 40 }; /* a narrower terminal breaks the lines itself */

int tt_screen_columns(void)
{
    const char *text = getenv("TITAN_COLUMNS"); // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
    struct winsize size = {0};
    long columns = text ? strtol(text, NULL, 10) : 0;

    if (!text && isatty(STDERR_FILENO) && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0)
        columns = size.ws_col;
    return columns < LEAST_COLUMNS || columns > 10000 ? 0 : (int)columns;
}

/* The number of bytes of line that fit into columns: all of them, or up to the last space that fits. */
static int fitting(const char *line, int length, int columns, int indent)
{
    int cut = columns;

    if (length <= columns)
        return length;
    while (cut > indent && line[cut] != ' ')
        cut--;
    return cut > indent ? cut : length; /* a single long word stays whole */
}

static void put_line(FILE *file, const char *line, int length, int columns, int indent)
{
    int n = fitting(line, length, columns, indent);

    (void)fprintf(file, "%.*s\n", n, line);
    for (line += n, length -= n; length > 0; line += n, length -= n) {
        line++; /* skip the space at the break */
        length--;
        n = fitting(line, length, columns - indent, 0);
        (void)fprintf(file, "%*s%.*s\n", indent, "", n, line);
    }
}

void tt_screen_put(FILE *file, const char *text, int columns, int indent)
{
    for (const char *end; *text; text = end + (*end == '\n')) {
        end = text + strcspn(text, "\n");
        put_line(file, text, (int)(end - text), columns ? columns : (int)(end - text), indent);
    }
}
