/* SPDX-License-Identifier: MIT
 *
 * Strings: growing buffers, nearest words, numbers for people, normal forms of Unicode (UAX #15).
 */
#include "core/base/text.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <ctype.h>
#include <utf8proc.h>

#include "core/base/mem.h"
#include "core/base/utf8.h"

static void reserve(struct tt_text *t, size_t more)
{
    if (t->size + more + 1 <= t->cap)
        return;
    t->cap = (t->size + more + 1) * 2;
    t->text = tt_realloc(t->text, t->cap, 1);
}

void tt_text_add(struct tt_text *t, const char *fmt, ...)
{
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0)
        return;
    reserve(t, (size_t)n);
    va_start(args, fmt);
    (void)vsnprintf(t->text + t->size, (size_t)n + 1, fmt, args);
    va_end(args);
    t->size += (size_t)n;
}

void tt_text_add_bytes(struct tt_text *t, const void *bytes, size_t size)
{
    reserve(t, size);
    if (size)
        memcpy(t->text + t->size, bytes, size);
    t->size += size;
    t->text[t->size] = 0;
}

void tt_text_add_little(struct tt_text *t, uint64_t number, size_t n)
{
    for (; n > 0; n--, number >>= 8)
        tt_text_add_bytes(t, &(uint8_t){(uint8_t)number}, 1);
}

uint64_t tt_text_little(const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    uint64_t number = 0;

    while (n-- > 0)
        number = number << 8 | p[n];
    return number;
}

bool tt_text_ends(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);

    return n >= m && strcmp(text + n - m, with) == 0;
}

void tt_text_add_replaced(struct tt_text *t, const char *bytes, size_t size, const char *from, const char *to)
{
    size_t from_size = strlen(from), to_size = strlen(to);
    const char *end = bytes + size, *found = bytes;

    while (found && (size_t)(end - found) >= from_size) {
        found = memchr(found, from[0], (size_t)(end - found));
        if (!found || (size_t)(end - found) < from_size)
            break;
        if (memcmp(found, from, from_size) != 0) {
            found++;
            continue;
        }
        tt_text_add_bytes(t, bytes, (size_t)(found - bytes));
        tt_text_add_bytes(t, to, to_size);
        bytes = found += from_size;
    }
    tt_text_add_bytes(t, bytes, (size_t)(end - bytes));
}

static bool has_control(const char *word)
{
    for (; *word; word++)
        if ((unsigned char)*word < 0x20 || *word == 0x7f)
            return true;
    return false;
}

/* Adds $'...', in which a shell understands escapes. */
static void add_escaped(struct tt_text *t, const char *word)
{
    tt_text_add(t, "$'");
    for (const char *c = word; *c; c++) {
        if (*c == '\'' || *c == '\\')
            tt_text_add(t, "\\%c", *c);
        else if (has_control((char[]){*c, 0}))
            tt_text_add(t, "\\%03o", (unsigned)(unsigned char)*c);
        else
            tt_text_add(t, "%c", *c);
    }
    tt_text_add(t, "'");
}

void tt_text_add_word(struct tt_text *t, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-=./:,+@%";

    if (*word && strspn(word, plain) == strlen(word)) {
        tt_text_add(t, "%s", word);
    } else if (has_control(word)) {
        add_escaped(t, word);
    } else {
        tt_text_add(t, "'");
        tt_text_add_replaced(t, word, strlen(word), "'", "'\\''");
        tt_text_add(t, "'");
    }
}

void tt_text_make_printable(struct tt_text *t)
{
    struct tt_text shown = {0};

    tt_text_add_shown(&shown, t->text ? t->text : "", t->size);
    tt_text_release(t);
    *t = shown;
}

void tt_text_release(struct tt_text *t)
{
    tt_free(t->text);
    *t = (struct tt_text){0};
}

bool tt_text_is_listed(const char *word, const char *list)
{
    size_t n = strlen(word);

    for (const char *at = list; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        if (strncasecmp(at, word, n) == 0 && (at[n] == 0 || at[n] == '|'))
            return true;
    }
    return false;
}

bool tt_text_is_one_of(const char *word, const char *list)
{
    size_t n = strlen(word);

    for (const char *at = strstr(list, word); n && at; at = strstr(at + 1, word))
        if ((at == list || at[-1] == '|') && (at[n] == 0 || at[n] == '|'))
            return true;
    return false;
}

void tt_text_add_divisors(struct tt_text *t, int64_t n)
{
    enum { MOST = 10 };
    int64_t found[MOST];
    int count = 0;

    for (int64_t d = n; d >= 1 && count < MOST; d--)
        if (n % d == 0)
            found[count++] = d;
    for (int i = count - 1; i >= 0; i--)
        tt_text_add(t, "%" PRId64 "%s", found[i], i > 1 ? ", " : i == 1 ? " or " : "");
}

static bool is_same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

int tt_text_distance(const char *a, const char *b)
{
    enum { LONGEST = 64 };
    int rows[3][LONGEST + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    int *before = rows[0], *last = rows[1], *now = rows[2];

    if (n > LONGEST || m > LONGEST)
        return n > m ? n : m;
    for (int j = 0; j <= m; j++)
        last[j] = j;
    for (int i = 1; i <= n; i++) {
        int *free_row = before;

        now[0] = i;
        for (int j = 1; j <= m; j++) {
            int replace = last[j - 1] + !is_same_letter(a[i - 1], b[j - 1]);

            now[j] = last[j] < now[j - 1] ? last[j] + 1 : now[j - 1] + 1;
            now[j] = replace < now[j] ? replace : now[j];
            if (i > 1 && j > 1 && is_same_letter(a[i - 1], b[j - 2]) && is_same_letter(a[i - 2], b[j - 1]) &&
                before[j - 2] + 1 < now[j])
                now[j] = before[j - 2] + 1;
        }
        before = last;
        last = now;
        now = free_row;
    }
    return last[m];
}

const char *tt_text_nearest(const char *word, const char *const *choices, int n)
{
    const char *best = NULL;
    int limit = (int)strlen(word) / 3;
    int best_distance;

    best_distance = (limit < 1 ? 1 : limit) + 1;
    for (int i = 0; i < n; i++) {
        int d = tt_text_distance(word, choices[i]);

        if (d < best_distance) {
            best_distance = d;
            best = choices[i];
        }
    }
    return best;
}

enum { MOST_LETTERS = 64 };

/* Copies the letters and digits of a text, in lower case; returns their number. */
static int letters_of(const char *text, char letters[MOST_LETTERS])
{
    int n = 0;

    for (; *text && n < MOST_LETTERS; text++)
        if (isalnum((unsigned char)*text))
            letters[n++] = (char)tolower((unsigned char)*text);
    return n;
}

/* The number of letters that a word shares with a name: all letters of the word if the name contains it; otherwise the
 * length of the longest prefix of the name that occurs in the word. */
static int shared(const char *word, int n, const char *name, int m)
{
    int longest = 0;

    for (int i = 0; i + n <= m; i++)
        if (memcmp(word, name + i, (size_t)n) == 0)
            return n;
    for (int i = 0; i < n; i++) {
        int k = 0;

        while (i + k < n && k < m && word[i + k] == name[k])
            k++;
        longest = k > longest ? k : longest;
    }
    return longest;
}

/* The nearest name; NULL if several are equally near. */
static const char *only_nearest(const char *word, const char *const *names, int n)
{
    const char *near = tt_text_nearest(word, names, n);

    for (int i = 0; i < n && near; i++)
        if (strcmp(names[i], near) != 0 && tt_text_distance(word, names[i]) == tt_text_distance(word, near))
            return NULL;
    return near;
}

const char *tt_text_meant(const char *word, const char *const *names, int n)
{
    enum { SHORT = 3 };
    char of_word[MOST_LETTERS], of_name[MOST_LETTERS];
    const char *whole = NULL, *part = NULL, *near = only_nearest(word, names, n);
    int size = letters_of(word, of_word), most_whole = 1, most_part = SHORT - 1;

    for (int i = 0; i < n; i++) {
        int other = letters_of(names[i], of_name), run = shared(of_word, size, of_name, other);
        bool is_whole = run == size || run == other;

        if (is_whole && run > most_whole) {
            whole = names[i];
            most_whole = run;
        } else if (!is_whole && run > most_part && 2 * run >= (size < other ? size : other)) {
            part = names[i];
            most_part = run;
        }
    }
    return whole ? whole : near ? near : part;
}

char *tt_text_bytes(char *buf, size_t buf_size, double bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int u = 0;

    while (bytes >= 1024.0 && u < 5) {
        bytes /= 1024.0;
        u++;
    }
    (void)snprintf(buf, buf_size, u ? "%.2f %s" : "%.0f %s", bytes, unit[u]);
    return buf;
}

char *tt_text_duration(char *buf, size_t buf_size, double sec)
{
    long long whole = sec < 1e15 ? (long long)(sec + 0.5) : 0;

    if (!(sec >= 0.0))
        (void)snprintf(buf, buf_size, "unknown");
    else if (sec < 0.9995)
        (void)snprintf(buf, buf_size, sec < 0.00095 ? "%.2g ms" : "%.3g ms", 1e3 * sec);
    else if (sec < 59.95)
        (void)snprintf(buf, buf_size, "%.3g s", sec);
    else if (sec < 3599.5)
        (void)snprintf(buf, buf_size, "%lld min %lld s", whole / 60, whole % 60);
    else if (sec < 172800.0)
        (void)snprintf(buf, buf_size, "%lld h %lld min", whole / 3600, whole % 3600 / 60);
    else if (sec < 2.0 * 365.25 * 86400.0)
        (void)snprintf(buf, buf_size, sec < 1e6 ? "%.1f days" : "%.0f days", sec / 86400.0);
    else
        (void)snprintf(buf, buf_size, "%.3g years", sec / (365.25 * 86400.0));
    return buf;
}

char *tt_text_real(char *buf, size_t buf_size, double x)
{
    /* how many zeros after the point, and which power of 10, a number may have before it gets an exponent */
    enum { MOST_ZEROS = 5, MOST_PLACES = 15 };
    char text[32], *mark;
    int digits, exponent;

    for (digits = fabs(x) < DBL_MIN ? 0 : DBL_DIG - 1; digits < DBL_DECIMAL_DIG - 1; digits++) {
        (void)snprintf(text, sizeof text, "%.*e", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    (void)snprintf(text, sizeof text, "%.*e", digits, x);
    mark = strchr(text, 'e');
    if (!mark) { /* the number is not finite */
        (void)snprintf(buf, buf_size, "%s", text);
        return buf;
    }
    exponent = (int)strtol(mark + 1, NULL, 10);
    for (digits = (int)(mark - text); digits > 0 && text[digits - 1] == '0' && strchr(text, '.'); digits--)
        ;
    digits -= text[digits - 1] == '.';
    text[digits] = 0;
    digits -= (text[0] == '-') + (strchr(text, '.') != NULL);
    if (exponent < -4 || exponent - (digits - 1) > MOST_ZEROS || exponent > MOST_PLACES)
        (void)snprintf(buf, buf_size, "%se%d", text, exponent);
    else
        (void)snprintf(buf, buf_size, "%.*f", digits - 1 > exponent + 1 ? digits - 1 - exponent : 1, x);
    return buf;
}

char *tt_text_count(char *buf, size_t buf_size, int64_t n)
{
    char plain[24];
    size_t used = 0;
    int digits = snprintf(plain, sizeof plain, "%" PRId64, n < 0 ? -n : n);

    if (n < 0 && used + 1 < buf_size)
        buf[used++] = '-';
    for (int i = 0; i < digits && used + 2 < buf_size; i++) {
        if (i && (digits - i) % 3 == 0)
            buf[used++] = ',';
        buf[used++] = plain[i];
    }
    buf[used] = 0;
    return buf;
}

bool tt_text_to_bytes(const char *text, int64_t *ret_bytes)
{
    static const char letters[] = "kmgtp";
    char *end;
    double value = strtod(text, &end);
    const char *letter;

    if (end == text || !(value >= 0.0))
        return false;
    while (*end == ' ')
        end++;
    if (*end && (letter = strchr(letters, tolower((unsigned char)*end)))) {
        for (const char *l = letters; l <= letter; l++)
            value *= 1024.0;
        end++;
        if (*end == 'i')
            end++;
    }
    if (*end == 'B' || *end == 'b')
        end++;
    if (*end || value > 9.0e18)
        return false;
    *ret_bytes = (int64_t)value;
    return true;
}

int64_t tt_text_hex(const char *text, size_t size, size_t n)
{
    int64_t number = 0;

    for (size_t i = 0; i < n; i++) {
        int c = i < size ? tolower((unsigned char)text[i]) : 0;

        if (!isxdigit(c))
            return -1;
        number = number << 4 | (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return number;
}

/* ---- text from outside ---- */

void tt_text_add_shown(struct tt_text *t, const char *text, size_t size)
{
    size_t plain = 0; /* the start of the text that has not been added yet */
    char buf[TT_SHOWN_BYTES];

    for (size_t at = 0, taken = 0, n = 0; at < size; at += taken) {
        if (tt_shown_next(text + at, size - at, buf, &taken, &n) != buf)
            continue;
        tt_text_add_bytes(t, text + plain, at - plain);
        tt_text_add_bytes(t, buf, n);
        plain = at + taken;
    }
    tt_text_add_bytes(t, text + plain, size - plain);
}

void tt_text_add_xml(struct tt_text *t, const char *text)
{
    struct tt_text shown = {0};

    tt_text_add_shown(&shown, text, strlen(text));
    for (size_t i = 0; i < shown.size; i++) {
        const char c = shown.text[i];

        if (c == '<' || c == '>')
            tt_text_add(t, c == '<' ? "&lt;" : "&gt;");
        else if (c == '&' || c == '"')
            tt_text_add(t, c == '&' ? "&amp;" : "&quot;");
        else
            tt_text_add_bytes(t, &c, 1);
    }
    tt_text_release(&shown);
}

/* ---- UTF-8 ---- */

void tt_utf8_repair(const char *text, size_t size, struct tt_text *out)
{
    while (size) {
        int64_t bad = tt_utf8_invalid(text, size);
        size_t good = bad < 0 ? size : (size_t)bad, skip = 0;

        tt_text_add_bytes(out, text, good);
        text += good;
        size -= good;
        if (!size)
            break;
        /* the longest incomplete character becomes one U+FFFD, and so does any other bad byte */
        for (skip = 3; skip > 1 && (skip > size || tt_utf8_unfinished(text, skip) != skip); skip--) {
        }
        tt_text_add_bytes(out, "\xef\xbf\xbd", 3);
        text += skip;
        size -= skip;
    }
}

/* Code points, with room for at least one more. */
struct codes {
    utf8proc_int32_t *code;
    utf8proc_ssize_t n, cap;
};

static utf8proc_ssize_t decompose(struct codes *c, utf8proc_int32_t code, utf8proc_option_t options)
{
    int boundary = 0;

    for (;;) {
        utf8proc_ssize_t room = c->cap - c->n;
        utf8proc_ssize_t n = utf8proc_decompose_char(code, c->code + c->n, room, options, &boundary);

        if (n <= room) {
            c->n += n > 0 ? n : 0;
            return n;
        }
        c->cap = 2 * c->cap + n;
        c->code = tt_realloc(c->code, (size_t)c->cap, sizeof *c->code);
    }
}

static unsigned class_of(utf8proc_int32_t code)
{
    return (unsigned)utf8proc_get_property(code)->combining_class;
}

/* Sorts a run of combining marks by their classes, of which there are 256. Marks of the same class keep their order. */
static void sort_marks(utf8proc_int32_t *code, size_t n)
{
    size_t begin[257] = {0};
    utf8proc_int32_t *sorted;

    for (size_t i = 0; i < n; i++)
        begin[class_of(code[i]) + 1]++;
    for (int k = 0; k < 256; k++)
        begin[k + 1] += begin[k];
    sorted = tt_calloc(n, sizeof *sorted);
    for (size_t i = 0; i < n; i++)
        sorted[begin[class_of(code[i])]++] = code[i];
    memcpy(code, sorted, n * sizeof *sorted);
    tt_free(sorted);
}

static void order_marks(struct codes *c)
{
    for (utf8proc_ssize_t i = 0, begin = 0; i < c->n; i = begin = i + 1) {
        unsigned last = class_of(c->code[i]), next;
        bool is_sorted = true;

        for (; last && i + 1 < c->n && (next = class_of(c->code[i + 1])); i++) {
            is_sorted = is_sorted && last <= next;
            last = next;
        }
        if (!is_sorted)
            sort_marks(c->code + begin, (size_t)(i + 1 - begin));
    }
}

/* Does not use utf8proc_map, whose sorting of marks takes quadratic time. */
int tt_utf8_normalize(enum tt_utf8_form form, const char *text, size_t size, struct tt_text *out)
{
    static const struct {
        const char *name;
        utf8proc_option_t options;
    } row[] = {
        [TT_UTF8_NFC] = {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        [TT_UTF8_NFD] = {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        [TT_UTF8_NFKC] = {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        [TT_UTF8_NFKD] = {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    struct codes c = {.cap = (utf8proc_ssize_t)size + 8};
    utf8proc_ssize_t n = 0;

    c.code = tt_calloc((size_t)c.cap, sizeof *c.code);
    for (size_t i = 0, length; i < size && n >= 0; i += length) {
        uint32_t code;

        length = (size_t)tt_utf8_decode(text + i, size - i, &code);
        n = length ? decompose(&c, (utf8proc_int32_t)code, row[form].options) : UTF8PROC_ERROR_INVALIDUTF8;
    }
    if (n >= 0) {
        order_marks(&c);
        n = utf8proc_normalize_utf32(c.code, c.n, row[form].options);
    }
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        char bytes[4];

        tt_text_add_bytes(out, bytes, (size_t)tt_utf8_encode((uint32_t)c.code[i], bytes));
    }
    tt_free(c.code);
    if (n >= 0)
        return 0;
    return tt_fail(TT_EDATA, "cannot convert %zu bytes of text to normal form %s: %s", size, row[form].name,
                   utf8proc_errmsg(n));
}
