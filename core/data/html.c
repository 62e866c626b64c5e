/* SPDX-License-Identifier: MIT
 *
 * The text of a page of HTML, in one pass without a tree. Pages from anywhere break the rules of HTML, so nothing here
 * depends on elements that are closed properly.
 */
#include "core/data/html.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

bool tt_html_is_name(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot && (strcasecmp(dot, ".html") == 0 || strcasecmp(dot, ".htm") == 0 || strcasecmp(dot, ".xhtml") == 0);
}

/* ---- references ---- */

/* The characters from U+00A0 on. */
static const char latin[] =
    "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn "
    "sup2 sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest "
    "Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc Euml Igrave Iacute "
    "Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc "
    "Uuml Yacute THORN szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute "
    "ecirc euml igrave iacute icirc iuml eth ntilde ograve oacute ocirc otilde ouml divide "
    "oslash ugrave uacute ucirc uuml yacute thorn yuml";

/* From U+0391 and from U+03B1 on; U+03A2 does not exist. */
static const char greek[] = "Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho - "
                            "Sigma Tau Upsilon Phi Chi Psi Omega";
static const char small_greek[] = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi "
                                  "rho sigmaf sigma tau upsilon phi chi psi omega";

static const struct {
    const char *name;
    uint16_t code;
} others[] = {
    {"quot", 34},     {"amp", 38},      {"apos", 39},     {"lt", 60},       {"gt", 62},       {"OElig", 338},
    {"oelig", 339},   {"Scaron", 352},  {"scaron", 353},  {"Yuml", 376},    {"fnof", 402},    {"circ", 710},
    {"tilde", 732},   {"ensp", 8194},   {"emsp", 8195},   {"thinsp", 8201}, {"zwnj", 8204},   {"zwj", 8205},
    {"ndash", 8211},  {"mdash", 8212},  {"lsquo", 8216},  {"rsquo", 8217},  {"sbquo", 8218},  {"ldquo", 8220},
    {"rdquo", 8221},  {"bdquo", 8222},  {"dagger", 8224}, {"Dagger", 8225}, {"bull", 8226},   {"hellip", 8230},
    {"permil", 8240}, {"prime", 8242},  {"Prime", 8243},  {"lsaquo", 8249}, {"rsaquo", 8250}, {"euro", 8364},
    {"trade", 8482},  {"larr", 8592},   {"uarr", 8593},   {"rarr", 8594},   {"darr", 8595},   {"harr", 8596},
    {"lArr", 8656},   {"rArr", 8658},   {"hArr", 8660},   {"forall", 8704}, {"part", 8706},   {"exist", 8707},
    {"empty", 8709},  {"nabla", 8711},  {"isin", 8712},   {"notin", 8713},  {"ni", 8715},     {"prod", 8719},
    {"sum", 8721},    {"minus", 8722},  {"lowast", 8727}, {"radic", 8730},  {"prop", 8733},   {"infin", 8734},
    {"ang", 8736},    {"and", 8743},    {"or", 8744},     {"cap", 8745},    {"cup", 8746},    {"int", 8747},
    {"there4", 8756}, {"sim", 8764},    {"cong", 8773},   {"asymp", 8776},  {"ne", 8800},     {"equiv", 8801},
    {"le", 8804},     {"ge", 8805},     {"sub", 8834},    {"sup", 8835},    {"sube", 8838},   {"supe", 8839},
    {"oplus", 8853},  {"otimes", 8855}, {"perp", 8869},   {"sdot", 8901},   {"lang", 9001},   {"rang", 9002},
    {"loz", 9674},    {"spades", 9824}, {"clubs", 9827},  {"hearts", 9829}, {"diams", 9830},
};

/* What pages mean by the control characters from 128 on: those of Windows-1252. */
static const uint16_t windows[32] = {8364, 129,  8218, 402,  8222, 8230, 8224, 8225, 710,  8240, 352,
                                     8249, 338,  141,  381,  143,  144,  8216, 8217, 8220, 8221, 8226,
                                     8211, 8212, 732,  8482, 353,  8250, 339,  157,  382,  376};

/* The number of a word in a list, from 0; -1 if it is not there. */
static int number_in(const char *list, const char *word, size_t n)
{
    for (int i = 0;; i++) {
        size_t size = strcspn(list, " ");

        if (size == n && strncmp(list, word, n) == 0)
            return i;
        if (!list[size])
            return -1;
        list += size + 1;
    }
}

/* The character that a name means; 0: none. */
static uint32_t named(const char *name, size_t n)
{
    int i;

    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        if (strlen(others[k].name) == n && strncmp(others[k].name, name, n) == 0)
            return others[k].code;
    if ((i = number_in(latin, name, n)) >= 0)
        return 0xa0 + (uint32_t)i;
    if ((i = number_in(greek, name, n)) >= 0)
        return 0x391 + (uint32_t)i;
    i = number_in(small_greek, name, n);
    return i >= 0 ? 0x3b1 + (uint32_t)i : 0;
}

/* The character of the reference that begins at text, with '&', and the bytes of the reference; 0: there is none. */
static uint32_t reference(const char *text, size_t size, size_t *ret_n)
{
    enum { NAME_MOST = 10 };
    uint32_t code = 0;
    size_t n = 1;

    if (size > 2 && text[1] == '#') {
        bool is_hex = (text[2] | 0x20) == 'x';

        for (n = is_hex ? 3 : 2; n < size && code <= 0x10ffff; n++) {
            char c = text[n], letter = (char)(c | 0x20);
            int digit = c >= '0' && c <= '9'                       ? c - '0'
                        : is_hex && letter >= 'a' && letter <= 'f' ? letter - 'a' + 10
                                                                   : -1;

            if (digit < 0)
                break;
            code = code * (is_hex ? 16 : 10) + (uint32_t)digit;
        }
        if (code >= 128 && code < 160)
            code = windows[code - 128];
        if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
            return 0;
    } else {
        while (n < size && n <= NAME_MOST &&
               (((text[n] | 0x20) >= 'a' && (text[n] | 0x20) <= 'z') || (text[n] >= '0' && text[n] <= '9')))
            n++;
        if (n == 1 || n >= size || text[n] != ';') /* a name without ; may be an address's parameter */
            return 0;
        code = named(text + 1, n - 1);
    }
    *ret_n = n + (n < size && text[n] == ';');
    return code;
}

/* ---- elements ---- */

enum gap { NO_GAP, SPACE, LINE, EMPTY_LINE };

static const char line_elements[] =
    "address|article|aside|body|caption|center|dd|dialog|div|dt|fieldset|figcaption|figure|footer|form|head|header|"
    "hgroup|hr|html|legend|li|main|menu|nav|optgroup|option|search|section|summary|details|tbody|tfoot|thead|tr|title";
static const char paragraph_elements[] = "blockquote|dl|h1|h2|h3|h4|h5|h6|ol|p|pre|table|ul";
static const char space_elements[] = "td|th|button|input|select|textarea|img";

/* Elements whose contents are no text of the page. The first ones contain no tags: they go on to the end of the page if
 * they are not closed. */
static const char *const hidden[] = {"script", "style", "title", "noscript", "template", "svg", "iframe"};
enum { N_HIDDEN = sizeof hidden / sizeof *hidden, N_RAW = 2, NAME_BYTES = 16, TAG_MOST = 1 << 16 };

struct page {
    const char *at, *end;
    struct tt_text *out;
    size_t begin;           /* of the page's text in out */
    enum gap gap;           /* before the next character */
    int pre;                /* elements in which white space stays */
    bool is_open[N_HIDDEN]; /* such an element is not closed in the rest of the page */
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f';
}

static bool is_letter(char c)
{
    return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
}

static void widen(struct page *p, enum gap gap)
{
    p->gap = gap > p->gap ? gap : p->gap;
}

static void add(struct page *p, const char *text, size_t size)
{
    static const char *const gaps[] = {"", " ", "\n", "\n\n"};

    if (p->out->size > p->begin)
        tt_text_add(p->out, "%s", gaps[p->gap]);
    p->gap = NO_GAP;
    tt_text_add_bytes(p->out, text, size);
}

/* The end of a tag that begins at `at`: the place after '>', which may also be in a quoted value. NULL: no tag. */
static const char *tag_end(const char *at, const char *end)
{
    char quote = 0;

    end = end - at > TAG_MOST ? at + TAG_MOST : end;
    for (; at < end; at++) {
        if (quote)
            quote = *at == quote ? 0 : quote;
        else if (*at == '>')
            return at + 1;
        else if (*at == '"' || *at == '\'')
            quote = at[-1] == '=' || is_space(at[-1]) ? *at : 0;
    }
    return NULL;
}

/* The place of the end tag of an element; NULL: it is not closed. */
static const char *closing(const char *at, const char *end, const char *name)
{
    size_t n = strlen(name);

    while ((at = memchr(at, '<', (size_t)(end - at))) != NULL) {
        if ((size_t)(end - at) >= n + 2 && at[1] == '/' && strncasecmp(at + 2, name, n) == 0)
            return at;
        at++;
    }
    return NULL;
}

/* Goes beyond the contents of an element that is hidden. */
static void hide(struct page *p, const char *name)
{
    const char *to;

    for (int i = 0; i < N_HIDDEN; i++) {
        if (strcmp(name, hidden[i]) != 0 || p->is_open[i])
            continue;
        to = closing(p->at, p->end, name);
        p->is_open[i] = !to;
        if (to || i < N_RAW)
            p->at = to ? to : p->end;
    }
}

/* Reads the tag at '<', if it is one. */
static bool read_tag(struct page *p)
{
    bool is_end = p->end - p->at > 1 && p->at[1] == '/';
    const char *from = p->at + 1 + is_end, *to;
    char name[NAME_BYTES] = "";
    size_t n = 0;

    if (p->end - p->at >= 4 && strncmp(p->at, "<!--", 4) == 0) {
        to = memmem(p->at + 4, (size_t)(p->end - p->at) - 4, "-->", 3);
        p->at = to ? to + 3 : p->end;
        return true;
    }
    if (from == p->end || !(is_letter(*from) || (!is_end && (*from == '!' || *from == '?'))))
        return false;
    if (!(to = tag_end(from, p->end)))
        return false;
    while (n + 1 < sizeof name && (is_letter(from[n]) || (from[n] >= '0' && from[n] <= '9'))) {
        name[n] = (char)(from[n] | 0x20);
        n++;
    }
    p->at = to;
    if (strcmp(name, "br") == 0)
        widen(p, p->gap >= LINE ? EMPTY_LINE : LINE);
    else if (tt_text_is_one_of(name, paragraph_elements))
        widen(p, EMPTY_LINE);
    else if (tt_text_is_one_of(name, line_elements))
        widen(p, LINE);
    else if (tt_text_is_one_of(name, space_elements))
        widen(p, SPACE);
    if (strcmp(name, "pre") == 0 || strcmp(name, "textarea") == 0) {
        p->pre = is_end ? 0 : 1;
        if (p->pre && p->at < p->end && *p->at == '\n')
            p->at++;
    }
    if (!is_end && to[-2] != '/')
        hide(p, name);
    return true;
}

void tt_html_add_text(const char *html, size_t size, struct tt_text *out)
{
    struct page p = {.at = html, .end = html + size, .out = out, .begin = out->size};
    char utf8[4];

    while (p.at < p.end) {
        size_t n = 1;
        uint32_t code = *p.at == '&' ? reference(p.at, (size_t)(p.end - p.at), &n) : 0;

        if (*p.at == '<' && read_tag(&p))
            continue;
        if (code == 0xa0) { /* a space that does not end a line */
            add(&p, " ", 1);
        } else if (code == 0xad) {
            /* where a word may be divided */
        } else if (code) {
            add(&p, utf8, (size_t)tt_utf8_encode(code, utf8));
        } else if (is_space(*p.at) && !p.pre) {
            widen(&p, SPACE);
        } else if (*p.at != '\r') {
            while (p.at + n < p.end && !is_space(p.at[n]) && p.at[n] != '<' && p.at[n] != '&')
                n++;
            add(&p, p.at, n);
        }
        p.at += n;
    }
    if (out->size > p.begin)
        tt_text_add(out, "\n");
}
