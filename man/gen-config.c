/* SPDX-License-Identifier: MIT
 *
 * Writes titan-config(5) in scdoc's format to standard output, from the tables of core/config. Links core alone.
 */
#include <stdio.h>
#include <string.h>

#include "core/config/config.h"

/* Text with the characters that scdoc would take for markup escaped. */
static void put(const char *text)
{
    for (const char *c = text; *c; c++) {
        if (strchr("_*\\`~[#|", *c))
            (void)putchar('\\');
        (void)putchar(*c);
    }
}

/* A choice such as a|b with blanks around its bars, since troff breaks lines only at blanks. */
static void put_choices(const char *text)
{
    for (const char *c = text; *c; c++) {
        char one[] = {*c, '\0'};
        put(*c == '|' ? " | " : one);
    }
}

static void put_row(const struct tt_config_row *row)
{
    struct tt_text range = {0};

    (void)printf("*");
    put(row->key);
    (void)printf("*%s (default ", row->flags & TT_FLAG_OWN ? " +" : "");
    put(row->preset ? *row->preset ? row->preset : "\"\"" : "null");
    (void)printf(")\n\t");
    put(row->doc);
    (void)printf("++\n");
    tt_config_range_text(row, &range);
    put("Accepts: ");
    put_choices(range.text);
    (void)printf(".\n\n");
    tt_text_release(&range);
}

static void put_section(const struct tt_config_section *section)
{
    (void)printf("## ");
    put(section->name);
    (void)printf("\n\n");
    put(section->doc);
    (void)printf("\n\n");
    for (int i = 0; i < tt_config_n_rows; i++) {
        if (strcmp(tt_config_rows[i].section, section->name) == 0)
            put_row(&tt_config_rows[i]);
    }
}

static void put_entries(void)
{
    (void)printf(
        "# ENTRIES OF A LIST OF DATASETS\n\n"
        "_training.dataset_ and _validation.dataset_ take a word, or a list whose entries are mappings with the "
        "keys below:\n\n"
        "```\n"
        "training:\n"
        "  dataset:\n"
        "  - {name: books, dataset: text, dataset\\_path: books/, weight: 0.7}\n"
        "  - {name: web, dataset: jsonl, dataset\\_path: web.jsonl.zst, weight: 0.3}\n"
        "```\n\n"
        "On the command line, write the list as one argument: "
        "*--training.dataset*='[{dataset: kjv}, {dataset: text, dataset\\_path: a.txt, weight: 2}]'. A word "
        "in a list is an entry with that _dataset_. A list replaces the whole list of an earlier file. "
        "See MIXTURES in *titan-datasets*(7).\n\n");
    for (int i = 0; i < tt_config_n_entry_rows; i++)
        put_row(&tt_config_entry_rows[i]);
}

static void put_differences(void)
{
    (void)printf("# DEFAULTS THAT DIFFER FROM TORCHTITAN'S\n\n");
    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];

        if (!row->theirs)
            continue;
        (void)printf("- *");
        put(row->path);
        (void)printf("*: ");
        put(row->preset ? *row->preset ? row->preset : "\"\"" : "null");
        (void)printf("; torchtitan's is ");
        put(row->theirs);
        (void)printf(" (");
        put(row->why);
        (void)printf(")\n");
    }
    (void)printf("\n");
}

static void put_inactive(enum tt_inactive_kind kind, const char *intro)
{
    (void)printf("%s\n\n", intro);
    for (int i = 0; i < tt_config_n_inactives; i++) {
        const struct tt_config_inactive *row = &tt_config_inactives[i];
        const char *help = strchr(row->why, '\n');

        if (row->kind != kind)
            continue;
        (void)printf("- *");
        put(row->path);
        (void)printf("*: ");
        for (const char *c = row->why; *c && c != help; c++)
            put((const char[]){*c, 0});
        if (help) {
            (void)printf("; ");
            put(help + strlen("\nhelp: "));
        }
        (void)printf("\n");
    }
    (void)printf("\n");
}

int main(void)
{
    (void)printf(
        "titan-config(5)\n\n"
        "# NAME\n\n"
        "titan-config - keys of titan's configuration\n\n"
        "# DESCRIPTION\n\n"
        "A configuration is a YAML file of sections and keys. Names and meanings are torchtitan's (v0.2.2); keys "
        "marked with + are titan's own. You can also give every key on the command line, before or after other "
        "arguments:\n\n"
        "```\n"
        "--training.steps=100    --training.steps 100    training.steps=100\n"
        "--checkpoint.enable     --no-checkpoint.enable  --checkpoint.no-enable\n"
        "--checkpoint.exclude-from-loading=optimizer,lr\\_scheduler\n"
        "```\n\n"
        "A dash equals an underscore. A list is x,y or [x,y]. The word null means no value. Numbers may be written "
        "as 1e-4, sizes as 80GiB. If a key accepts only certain words, case does not matter: Always, True.\n\n"
        "The later of these wins: default, flavor, files in the order of *--config*, flags. *titan config show "
        "--origin* shows where each value came from. titan reports all errors of all files and flags at once, with "
        "exit status 2.\n\n"
        "# KEYS\n\n");
    for (int i = 0; i < tt_config_n_sections; i++)
        put_section(&tt_config_sections[i]);
    put_entries();
    put_differences();
    (void)printf("# KEYS OF TORCHTITAN THAT TITAN DOES NOT HAVE\n\n");
    put_inactive(TT_INACTIVE_REFUSED, "Refused, unless they have their neutral value:");
    put_inactive(TT_INACTIVE_NOTE, "Accepted with a note that they have no effect:");
    put_inactive(TT_INACTIVE_IDLE, "Accepted in silence:");
    (void)printf("# SEE ALSO\n\n*titan*(1), *titan-config*(1)\n");
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
