/* SPDX-License-Identifier: MIT
 *
 * Tasks: their files, tokens and scores.
 */
#include "trainer/task.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/utf8.h"
#include "core/data/jinja/jinja.h"
#include "core/os/file.h"

/* --- formats --- */

enum { MOST_FIELDS = 5, MOST_CHOICES = 64 };

/*
 * A kind of document: its members, and templates over these members that make its texts, as in the task files of
 * lm-evaluation-harness. In `context` and `choice`, i is the number of the continuation.
 *
 * To add a format: a row here, after the rows whose members it also has; a file in tests/cli/tasks; its name in
 * titan-eval(1).
 */
struct format {
    const char *name;
    const char *field[MOST_FIELDS]; /* the members by which a document is recognised */
    const char *start;              /* before the examples; NULL: nothing */
    const char *context, *n, *choice, *gold;
    bool complete; /* contexts have their examples, continuations their blank */
    bool wikihow;  /* remove the marks of WikiHow's texts */
};

#define KEYS "{% for l in choices.label %}{% if l == answerKey.strip() %}{{ loop.index0 }}{% endif %}{% endfor %}"

static const struct format formats[] = {
    {.name = "lm_eval",
     .field = {"arguments", "doc", "target"},
     .context = "{{ arguments['gen_args_' ~ i].arg_0 if arguments is mapping else arguments[i][0] }}",
     .n = "{{ arguments | length }}",
     .choice = "{{ arguments['gen_args_' ~ i].arg_1 if arguments is mapping else arguments[i][1] }}",
     .gold = "{{ 0 if arguments | length == 1 else doc.answer | int - 1 if doc.option1 is defined else target }}",
     .complete = true},
    {.name = "hellaswag",
     .field = {"activity_label", "ctx_a", "ctx_b", "endings", "label"},
     .context = "{{ activity_label }}: {{ ctx_a }} {{ ctx_b.capitalize() }}",
     .n = "{{ endings | length }}",
     .choice = "{{ endings[i] }}",
     .gold = "{{ label }}",
     .wikihow = true},
    {.name = "piqa",
     .field = {"goal", "sol1", "sol2", "label"},
     .context = "Question: {{ goal }}\nAnswer:",
     .n = "2",
     .choice = "{{ [sol1, sol2][i] }}",
     .gold = "{{ label }}"},
    {.name = "winogrande",
     .field = {"sentence", "option1", "option2", "answer"},
     .context = "{{ sentence.split('_', 1)[0] }}{{ [option1, option2][i] }}",
     .n = "2",
     .choice = "{{ sentence.split('_', 1)[1].strip() }}",
     .gold = "{{ answer | int - 1 }}"},
    {.name = "boolq",
     .field = {"passage", "question"},
     .context = "{{ passage }}\nQuestion: {{ question }}?\nAnswer:",
     .n = "2",
     .choice = "{{ ['no', 'yes'][i] }}",
     .gold = "{{ label if label is defined else 1 if answer else 0 }}"},
    {.name = "sciq",
     .field = {"question", "support", "correct_answer", "distractor1", "distractor3"},
     .context = "{{ support.lstrip() }}\nQuestion: {{ question }}\nAnswer:",
     .n = "4",
     .choice = "{{ [distractor1, distractor2, distractor3, correct_answer][i] }}",
     .gold = "3"},
    {.name = "openbookqa",
     .field = {"question_stem", "choices", "answerKey"},
     .context = "{{ question_stem }}",
     .n = "{{ choices.text | length }}",
     .choice = "{{ choices.text[i] }}",
     .gold = KEYS},
    {.name = "arc",
     .field = {"question", "choices", "answerKey"},
     .context = "Question: {{ question }}\nAnswer:",
     .n = "{{ choices.text | length }}",
     .choice = "{{ choices.text[i] }}",
     .gold = KEYS},
    {.name = "mmlu",
     .field = {"question", "choices", "answer"},
     .start = "{% if subject %}The following are multiple choice questions (with answers) about "
              "{{ subject.replace('_', ' ') }}.\n\n{% endif %}",
     .context = "{{ question.strip() }}\nA. {{ choices[0] }}\nB. {{ choices[1] }}\nC. {{ choices[2] }}\n"
                "D. {{ choices[3] }}\nAnswer:",
     .n = "4",
     .choice = "{{ ['A', 'B', 'C', 'D'][i] }}",
     .gold = "{{ answer }}"},
    {.name = "choices",
     .field = {"context", "choices", "gold"},
     .context = "{{ context }}",
     .n = "{{ choices | length }}",
     .choice = "{{ choices[i] }}",
     .gold = "{{ gold }}"},
    {.name = "lambada",
     .field = {"text"},
     .context = "{{ text.split(' ')[:-1] | join(' ') }}",
     .n = "1",
     .choice = "{{ text.split(' ')[-1] }}",
     .gold = "0"},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* The names of all formats. */
static void add_formats(struct tt_text *text)
{
    for (int i = 0; i < N_FORMATS; i++)
        tt_text_add(text, "%s%s", i ? ", " : "", formats[i].name);
}

static bool has_fields(const struct format *format, const json_t *doc)
{
    for (int i = 0; i < MOST_FIELDS && format->field[i]; i++)
        if (!json_object_get(doc, format->field[i]))
            return false;
    return true;
}

static int find_format(const char *name, const json_t *doc, const struct format **ret_format)
{
    struct tt_text names = {0};
    int rc;

    for (int i = 0; i < N_FORMATS; i++)
        if (name ? strcmp(name, formats[i].name) == 0 : has_fields(&formats[i], doc)) {
            *ret_format = &formats[i];
            return 0;
        }
    add_formats(&names);
    if (name)
        rc = tt_fail(TT_EUSAGE, "'%s' is not a format of tasks\nhelp: formats are %s", name, names.text);
    else
        rc = tt_fail(TT_EDATA,
                     "the document has the members of no known format\nhelp: formats are %s; for other tasks write "
                     "lines of {\"context\": TEXT, \"choices\": [TEXT, ...], \"gold\": NUMBER}",
                     names.text);
    tt_text_release(&names);
    return rc;
}

/* --- documents --- */

struct reading {
    const struct format *format;
    struct tt_jinja *start, *context, *n, *choice, *gold;
    struct tt_text examples; /* that precede every context */
    bool bare;               /* contexts without their start */
};

static int open_templates(struct reading *r)
{
    const struct format *f = r->format;
    struct {
        const char *text;
        struct tt_jinja **to;
    } all[] = {{f->start ? f->start : "", &r->start},
               {f->context, &r->context},
               {f->n, &r->n},
               {f->choice, &r->choice},
               {f->gold, &r->gold}};
    int rc = 0;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        TT_TRY(tt_jinja_new(all[i].text, strlen(all[i].text), f->name, all[i].to));
out:
    return rc;
}

static void close_templates(struct reading *r)
{
    tt_jinja_free(r->start);
    tt_jinja_free(r->context);
    tt_jinja_free(r->n);
    tt_jinja_free(r->choice);
    tt_jinja_free(r->gold);
    tt_text_release(&r->examples);
}

/* A template fails where a document lacks a member or has one of another kind. */
static int render(const struct tt_jinja *template, const json_t *doc, const char *what, struct tt_text *text)
{
    int rc = tt_jinja_render(template, doc, text, NULL);

    return rc == TT_EUSAGE || rc == TT_EDATA ? tt_wrap(TT_EDATA, "the document's %s cannot be made", what) : rc;
}

static int render_number(const struct tt_jinja *template, const json_t *doc, const char *what, int below, int *ret_n)
{
    struct tt_text text = {0};
    char *end = NULL;
    long n = 0;
    int rc = 0;

    TT_TRY(render(template, doc, what, &text));
    n = text.size ? strtol(text.text, &end, 10) : -1;
    if (n < 0 || n >= below || (end && *end))
        rc = tt_fail(TT_EDATA, "the document's %s is '%s'; wanted a number from 0 to %d", what,
                     text.text ? text.text : "", below - 1);
    *ret_n = (int)n;
out:
    tt_text_release(&text);
    return rc;
}

/* Removes what HellaSwag's documents have from WikiHow: " [title]" ends a sentence, and other notes in brackets go. */
static void remove_notes(struct tt_text *text)
{
    struct tt_text ends = {0}, plain = {0}, found = {0};
    size_t from = 0, to;

    for (from = 0, to = text->size; from < to && strchr(" \t\n\r\f\v", text->text[from]); from++)
        ;
    for (; to > from && strchr(" \t\n\r\f\v", text->text[to - 1]); to--)
        ;
    tt_text_add_replaced(&ends, text->text + from, to - from, " [title]", ". ");
    for (size_t i = 0; i < ends.size; i++) {
        const char *open = ends.text + i, *close = *open == '[' ? strchr(open, ']') : NULL;
        const char *newline = close ? memchr(open, '\n', (size_t)(close - open)) : NULL;

        if (close && !newline)
            i += (size_t)(close - open);
        else
            tt_text_add_bytes(&plain, open, 1);
    }
    tt_text_add_replaced(&found, plain.text ? plain.text : "", plain.size, "  ", " ");
    tt_text_release(text);
    tt_text_release(&ends);
    tt_text_release(&plain);
    *text = found;
}

static double characters(const char *text)
{
    double n = 0.0;

    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* Text with a final 0, in which no other is. */
static int take_text(struct tt_text *text, const char *what, char **ret_text)
{
    if (text->size && memchr(text->text, 0, text->size))
        return tt_fail(TT_EDATA, "the document's %s contains a zero character", what);
    *ret_text = text->size ? text->text : tt_strdup("");
    if (text->size)
        *text = (struct tt_text){0};
    return 0;
}

static int read_choice(const struct reading *r, json_t *doc, int i, struct tt_task_choice *choice)
{
    const struct format *f = r->format;
    struct tt_text own = {0}, context = {0}, answer = {0}, continuation = {0};
    const char *plain;
    int rc = 0;

    (void)json_object_set_new(doc, "i", json_integer(i));
    if (!r->bare)
        TT_TRY(render(r->start, doc, "subject", &context));
    if (r->examples.size)
        tt_text_add_bytes(&context, r->examples.text, r->examples.size);
    TT_TRY(render(r->context, doc, "context", &own));
    TT_TRY(render(r->choice, doc, "continuation", &answer));
    if (f->wikihow) {
        remove_notes(&own);
        remove_notes(&answer);
    }
    if (own.size)
        tt_text_add_bytes(&context, own.text, own.size);
    if (!f->complete)
        tt_text_add(&continuation, " ");
    if (answer.size)
        tt_text_add_bytes(&continuation, answer.text, answer.size);
    TT_TRY(take_text(&context, "context", &choice->context));
    TT_TRY(take_text(&continuation, "continuation", &choice->continuation));
    plain = choice->continuation + (choice->continuation[0] == ' ');
    choice->length = characters(plain);
    if (choice->length == 0.0)
        rc = tt_fail(TT_EDATA, "continuation %d is empty", i);
out:
    tt_text_release(&own);
    tt_text_release(&context);
    tt_text_release(&answer);
    tt_text_release(&continuation);
    return rc;
}

static int read_item(const struct reading *r, json_t *doc, struct tt_task_item *item)
{
    int rc = 0;

    if (!has_fields(r->format, doc))
        return tt_fail(TT_EDATA, "the document lacks fields of format %s", r->format->name);
    TT_TRY(render_number(r->n, doc, "number of continuations", MOST_CHOICES + 1, &item->n));
    if (item->n < 1)
        return tt_fail(TT_EDATA, "the document has no continuation");
    item->choice = tt_calloc((size_t)item->n, sizeof *item->choice);
    for (int i = 0; i < item->n; i++)
        TT_TRY(read_choice(r, doc, i, &item->choice[i]));
    TT_TRY(render_number(r->gold, doc, "right answer", item->n, &item->gold));
out:
    return rc;
}

static void release_item(struct tt_task_item *item)
{
    for (int i = 0; item->choice && i < item->n; i++) {
        tt_free(item->choice[i].context);
        tt_free(item->choice[i].continuation);
        tt_ids_release(&item->choice[i].ids);
    }
    tt_free(item->choice);
}

static int read_line(const char *line, size_t size, const char *format, struct reading *r, struct tt_task_item *item)
{
    json_t *doc = NULL;
    int rc = 0;

    TT_TRY(tt_json_parse(line, size, "the line", &doc));
    if (!json_is_object(doc))
        TT_TRY(tt_fail(TT_EDATA, "the line is not an object"));
    if (!r->format) {
        TT_TRY(find_format(format, doc, &r->format));
        TT_TRY(open_templates(r));
    }
    TT_TRY(read_item(r, doc, item));
out:
    json_decref(doc);
    return rc;
}

/* Reads at most `limit` documents. */
static int read_file(const char *path, const char *format, int64_t limit, struct reading *r, struct tt_task *task)
{
    char *text = NULL, *at;
    size_t size = 0;
    int64_t number = 1;
    int rc = 0;

    TT_TRY(tt_file_read_any(path, TT_FILE_MOST, &text, &size));
    for (at = text; at < text + size && (!limit || task->n < limit); number++) {
        char *newline = memchr(at, '\n', (size_t)(text + size - at)), *line = at;
        size_t n = (size_t)((newline ? newline : text + size) - at);

        at += n + 1;
        if (n > 0 && line[n - 1] == '\r')
            n--;
        if (n == 0)
            continue;
        TT_PUSH(task->item, task->n, task->cap) = (struct tt_task_item){.line = number};
        rc = read_line(line, n, format, r, &task->item[task->n - 1]);
        if (rc < 0)
            TT_TRY(tt_wrap(rc, "%s:%" PRId64, path, number));
    }
    if (task->n == 0)
        rc = tt_fail(TT_EDATA, "'%s' has no document", path);
out:
    tt_free(text);
    return rc;
}

/* Documents with their right answers, as they precede every context. */
static int read_examples(const struct tt_task_options *o, struct tt_text *examples, const struct format **ret_format)
{
    struct reading r = {.bare = true};
    struct tt_task shown = {.n = 0};
    int rc = 0;

    TT_TRY(read_file(o->fewshot_path, o->format, o->fewshot, &r, &shown));
    if (r.format->complete)
        TT_TRY(tt_fail(TT_EUSAGE,
                       "documents of format %s have their examples in their contexts\nhelp: leave out --fewshot",
                       r.format->name));
    if (shown.n < o->fewshot)
        TT_TRY(
            tt_fail(TT_EDATA, "'%s' has %d documents, --fewshot wants %" PRId64, o->fewshot_path, shown.n, o->fewshot));
    for (int i = 0; i < shown.n; i++) {
        const struct tt_task_choice *right = &shown.item[i].choice[shown.item[i].gold];

        tt_text_add(examples, "%s%s\n\n", right->context, right->continuation);
    }
    *ret_format = r.format;
out:
    close_templates(&r);
    tt_task_release(&shown);
    return rc;
}

int tt_task_read(const char *path, const struct tt_task_options *o, struct tt_task *ret_task)
{
    struct reading r = {.format = NULL};
    struct tt_task task = {.path = tt_strdup(path)};
    const struct format *shown = NULL;
    int rc = 0;

    if (o->fewshot)
        TT_TRY(read_examples(o, &r.examples, &shown));
    TT_TRY(read_file(path, o->format ? o->format : shown ? shown->name : NULL, o->limit, &r, &task));
    task.format = r.format->name;
    task.single = task.item[0].n == 1;
    for (int i = 0; i < task.n; i++) {
        for (int k = 1; k < task.item[i].n; k++)
            task.normed =
                task.normed || strcmp(task.item[i].choice[0].continuation, task.item[i].choice[k].continuation) != 0;
        task.most_choices = task.most_choices > task.item[i].n ? task.most_choices : task.item[i].n;
        if (task.single != (task.item[i].n == 1))
            TT_TRY(tt_fail(TT_EDATA,
                           "%s:%" PRId64 ": one continuation here, several in other documents, or the reverse", path,
                           task.item[i].line));
    }
    *ret_task = task;
    task = (struct tt_task){.n = 0};
out:
    close_templates(&r);
    tt_task_release(&task);
    return rc;
}

void tt_task_release(struct tt_task *task)
{
    for (int i = 0; i < task->n; i++)
        release_item(&task->item[i]);
    tt_free(task->item);
    tt_free(task->score);
    tt_free(task->path);
    *task = (struct tt_task){.n = 0};
}

/* --- tokens --- */

struct encoding {
    struct tt_encoder *encoder;
    const struct tt_tokenizer *tokenizer;
    bool begins;
    int64_t vocab, most;
};

static int encode_text(const struct encoding *e, const char *text, size_t size, struct tt_ids *ids)
{
    int rc;

    if (e->begins)
        tt_tokenizer_begin(e->tokenizer, ids);
    rc = tt_encoder_encode(e->encoder, text, size, ids);
    return rc < 0 ? rc : 0;
}

/* A continuation without context follows BOS or, without one, EOS. */
static int encode_alone(const struct encoding *e, struct tt_task_choice *c)
{
    const struct tt_tokenizer_info *info = tt_tokenizer_info(e->tokenizer);
    int32_t first = info->bos >= 0 ? info->bos : info->eos;
    struct tt_ids own = {0};
    int rc = tt_encoder_encode(e->encoder, c->continuation, strlen(c->continuation), &own);

    TT_TRY(rc < 0 ? rc : 0);
    if (first < 0)
        TT_TRY(tt_fail(TT_EDATA, "the context is empty, and the tokenizer has no token that begins a text"));
    if (own.n == 0 || own.id[0] != first)
        tt_ids_add(&c->ids, first);
    for (size_t i = 0; i < own.n; i++)
        tt_ids_add(&c->ids, own.id[i]);
    c->context_n = 1;
out:
    tt_ids_release(&own);
    return rc < 0 ? rc : 0;
}

/* The size of text without the white space at its end. */
static size_t without_blanks(const char *text)
{
    size_t size = strlen(text);

    while (size && strchr(" \t\n\r\f\v", text[size - 1]))
        size--;
    return size;
}

/*
 * The tokens of the context, then those that the whole text has beyond their number. White space between context and
 * continuation belongs to the continuation, since tokens of most vocabularies begin with it.
 */
static int encode_choice(const struct encoding *e, struct tt_task_choice *c)
{
    struct tt_text whole = {0};
    struct tt_ids all = {0};
    size_t context = without_blanks(c->context);
    int rc = 0;

    if (context == 0 && !c->context[0])
        return encode_alone(e, c);
    tt_text_add(&whole, "%s%s", c->context, c->continuation);
    TT_TRY(encode_text(e, whole.text, whole.size, &all));
    TT_TRY(encode_text(e, whole.text, context, &c->ids));
    c->context_n = (int64_t)c->ids.n;
    for (size_t i = c->ids.n; i < all.n; i++)
        tt_ids_add(&c->ids, all.id[i]);
out:
    tt_text_release(&whole);
    tt_ids_release(&all);
    return rc;
}

/* Leaves out the beginning of a context with which the sequence would be too long. The last token is not fed. */
static int fit(const struct encoding *e, struct tt_task_choice *c, int64_t *cut)
{
    int64_t n = (int64_t)c->ids.n - c->context_n, surplus = (int64_t)c->ids.n - 1 - e->most;

    for (size_t i = 0; i < c->ids.n; i++)
        if (c->ids.id[i] >= e->vocab)
            return tt_fail(TT_EDATA, "the tokenizer gives token %" PRId32 ", but the model's vocabulary has %" PRId64,
                           c->ids.id[i], e->vocab);
    if (n < 1 || c->context_n < 1)
        return tt_fail(TT_EDATA, "'%s' has no token of its own after its context", c->continuation);
    if (surplus <= 0)
        return 0;
    if (surplus >= c->context_n)
        return tt_fail(TT_EDATA, "a continuation has %" PRId64 " tokens; the model's context has %" PRId64, n, e->most);
    memmove(c->ids.id, c->ids.id + surplus, (c->ids.n - (size_t)surplus) * sizeof *c->ids.id);
    c->ids.n -= (size_t)surplus;
    c->context_n -= surplus;
    *cut += 1;
    return 0;
}

int tt_task_encode(struct tt_task *task, const struct tt_tokenizer *tokenizer, bool begins, int64_t vocab_size,
                   int64_t most)
{
    struct encoding e = {.tokenizer = tokenizer, .begins = begins, .vocab = vocab_size, .most = most};
    size_t scores = (size_t)task->n * (size_t)task->most_choices * TT_TASK_SCORES;
    int rc = 0;

    TT_TRY(tt_encoder_new(tokenizer, &e.encoder));
    for (int i = 0; i < task->n; i++) {
        struct tt_task_item *item = &task->item[i];

        for (int k = 0; k < item->n; k++) {
            rc = encode_choice(&e, &item->choice[k]);
            rc = rc < 0 ? rc : fit(&e, &item->choice[k], &task->cut);
            if (rc < 0)
                TT_TRY(tt_wrap(rc, "%s:%" PRId64, task->path, item->line));
        }
    }
    task->score = tt_calloc(scores, sizeof *task->score);
    for (size_t i = 0; i < scores; i++)
        task->score[i] = -HUGE_VAL;
out:
    tt_encoder_free(e.encoder);
    return rc;
}

int64_t tt_task_longest(const struct tt_task *task)
{
    int64_t longest = 1;

    for (int i = 0; i < task->n; i++)
        for (int k = 0; k < task->item[i].n; k++) {
            int64_t n = (int64_t)task->item[i].choice[k].ids.n - 1;

            longest = longest > n ? longest : n;
        }
    return longest;
}

/* --- scores --- */

static double *score_of(const struct tt_task *task, int item, int choice)
{
    return task->score + ((int64_t)item * task->most_choices + choice) * TT_TASK_SCORES;
}

/* Adds a token's log-probability. */
static void count_token(const float *logits, int64_t vocab, int32_t token, double *score)
{
    double sum = 0.0;
    int64_t best = 0;

    for (int64_t v = 1; v < vocab; v++)
        best = logits[v] > logits[best] ? v : best;
    for (int64_t v = 0; v < vocab; v++)
        sum += exp((double)logits[v] - (double)logits[best]);
    score[TT_TASK_LOGPROB] += (double)logits[token] - (double)logits[best] - log(sum);
    if (best != token)
        score[TT_TASK_GREEDY] = 0.0;
}

static bool same_context(const struct tt_task_choice *a, const struct tt_task_choice *b)
{
    return a->context_n == b->context_n && memcmp(a->ids.id, b->ids.id, (size_t)a->context_n * sizeof *a->ids.id) == 0;
}

/* Whether all continuations are a token after one context: then it is fed once. */
static bool are_tokens(const struct tt_task_item *item)
{
    for (int k = 0; k < item->n; k++)
        if ((int64_t)item->choice[k].ids.n != item->choice[k].context_n + 1 ||
            !same_context(&item->choice[0], &item->choice[k]))
            return false;
    return true;
}

/* Scores continuations [begin, begin + n), each in a sequence of its own. */
static int score_together(struct tt_task *task, int i, int begin, int n, struct tt_generator *generator, int64_t vocab)
{
    const struct tt_task_choice *choice = task->item[i].choice + begin;
    const float *logits = NULL;
    int32_t token[MOST_CHOICES] = {0}; /* a generator of more sequences reads them all */
    bool feeds[MOST_CHOICES] = {false}, more = true;
    int rc = 0;

    for (int k = 0; k < n; k++) {
        tt_generator_select(generator, k);
        tt_generator_rewind(generator, 0);
        TT_TRY(tt_generator_feed(generator, choice[k].ids.id, choice[k].context_n, &logits));
        count_token(logits, vocab, choice[k].ids.id[choice[k].context_n], score_of(task, i, begin + k));
    }
    for (int64_t t = 0; more; t++) {
        more = false;
        for (int k = 0; k < n; k++) {
            feeds[k] = choice[k].context_n + t + 1 < (int64_t)choice[k].ids.n;
            token[k] = feeds[k] ? choice[k].ids.id[choice[k].context_n + t] : 0;
            more = more || feeds[k];
        }
        if (!more)
            break;
        TT_TRY(tt_generator_step(generator, token, feeds, &logits));
        for (int k = 0; k < n; k++)
            if (feeds[k])
                count_token(logits + k * vocab, vocab, choice[k].ids.id[choice[k].context_n + t + 1],
                            score_of(task, i, begin + k));
    }
out:
    return rc;
}

int tt_task_score(struct tt_task *task, int i, struct tt_generator *generator, int64_t sequences, int64_t vocab)
{
    const struct tt_task_item *item = &task->item[i];
    const float *logits = NULL;
    int rc = 0;

    for (int k = 0; k < item->n; k++) {
        score_of(task, i, k)[TT_TASK_LOGPROB] = 0.0;
        score_of(task, i, k)[TT_TASK_GREEDY] = 1.0;
    }
    if (are_tokens(item)) {
        tt_generator_select(generator, 0);
        tt_generator_rewind(generator, 0);
        TT_TRY(tt_generator_feed(generator, item->choice[0].ids.id, item->choice[0].context_n, &logits));
        for (int k = 0; k < item->n; k++)
            count_token(logits, vocab, item->choice[k].ids.id[item->choice[k].context_n], score_of(task, i, k));
        return 0;
    }
    for (int k = 0; k < item->n; k += (int)sequences) {
        int n = item->n - k < (int)sequences ? item->n - k : (int)sequences;

        TT_TRY(score_together(task, i, k, n, generator, vocab));
    }
out:
    return rc;
}

int tt_task_answer(const struct tt_task *task, int i, bool by_length)
{
    const struct tt_task_item *item = &task->item[i];
    double best = -HUGE_VAL;
    int answer = 0;

    for (int k = 0; k < item->n; k++) {
        double score = score_of(task, i, k)[TT_TASK_LOGPROB] / (by_length ? item->choice[k].length : 1.0);

        if (score > best) {
            best = score;
            answer = k;
        }
    }
    return answer;
}

/* The standard error of a mean of n values that are 0 or 1. */
static double error_of(double mean, int n)
{
    return n > 1 ? sqrt(mean * (1.0 - mean) / (double)(n - 1)) : 0.0;
}

struct tt_task_results tt_task_results(const struct tt_task *task)
{
    struct tt_task_results r = {.acc = 0.0};
    double logprob = 0.0, n = (double)task->n;

    for (int i = 0; i < task->n; i++) {
        int gold = task->item[i].gold;
        const double *score = score_of(task, i, gold);

        logprob += score[TT_TASK_LOGPROB];
        r.acc += task->single ? score[TT_TASK_GREEDY] : tt_task_answer(task, i, false) == gold;
        r.norm += tt_task_answer(task, i, true) == gold;
        r.chance += task->single ? 0.0 : 1.0 / task->item[i].n;
    }
    r.acc /= n;
    r.norm /= n;
    r.chance /= n;
    r.acc_error = error_of(r.acc, task->n);
    r.norm_error = error_of(r.norm, task->n);
    r.perplexity = exp(-logprob / n);
    return r;
}

void tt_task_numbers(const struct tt_task *task, double values[TT_TASK_METRICS])
{
    struct tt_task_results results = tt_task_results(task);

#define TT_TASK_METRIC(id, name, place, source) values[TT_TASK_METRIC_##id] = (source);
#include "trainer/step/metrics.def"
}
