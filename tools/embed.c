/* SPDX-License-Identifier: MIT
 *
 * Writes files as C arrays, for what is part of the program: embed HEADER NAME FILE [NAME FILE]...
 * Each NAME becomes `const char NAME[]` and `const size_t NAME_size`, which the header declares.
 */
#include <stdio.h>

static int embed(const char *name, const char *path)
{
    FILE *file = fopen(path, "rb");
    long size = 0;
    int c;

    if (!file) {
        (void)fprintf(stderr, "embed: cannot open %s\n", path);
        return 1;
    }
    (void)printf("const char %s[] = {", name);
    while ((c = getc(file)) != EOF) {
        (void)printf(size % 24 == 0 ? "\n%d," : "%d,", c < 128 ? c : c - 256);
        size++;
    }
    (void)printf("\n0};\nconst size_t %s_size = %ld;\n", name, size);
    (void)fclose(file);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        (void)printf("#include \"%s\"\n", argv[1]);
    for (int i = 2; i + 1 < argc; i += 2)
        if (embed(argv[i], argv[i + 1]))
            return 1;
    return 0;
}
