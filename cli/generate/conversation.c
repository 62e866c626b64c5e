/* SPDX-License-Identifier: MIT
 *
 * A conversation with a model: the turns so far, the part of them that the model sees, and the commands of its user.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "cli/generate/generate.h"
#include "cli/run/screen.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "trainer/generation.h"

/*
 * The user's side of a conversation: lines of standard input, one for each turn. A line that ends with a backslash
 * continues on the next one. On a terminal, Ctrl-C does not end the process: while titan waits for a turn it ends the
 * conversation, and at other times it sets a flag (interrupted_flag) that ends the answer.
 */
struct turns {
    bool typed;           /* standard input is a terminal */
    int64_t lines;        /* number of lines taken */
    bool ended;           /* the input has ended */
    bool cut;             /* the terminal has cut a line of the turn */
    struct tt_text bytes; /* bytes that were read; those from `at` on are still unused */
    size_t at;
    struct tt_text text; /* the text of the turn */
    struct sigaction before;
};

/* --- what the user says --- */

/* A terminal that edits lines silently drops the bytes of a line beyond TYPED_MOST. */
enum { BLOCK = 65536, TYPED_MOST = 4095 };

/* Not 0 after Ctrl-C, until go_on. A byte in the pipe wakes the thread that waits for a line, whichever thread handled
 * the signal. */
static volatile sig_atomic_t interrupted;
static int wake[2] = {-1, -1};

static void handle(int signal_number)
{
    int before = errno;

    (void)signal_number;
    interrupted = 1;
    (void)!write(wake[1], "", 1);
    errno = before;
}

static void go_on(void)
{
    char bytes[16];

    while (read(wake[0], bytes, sizeof bytes) > 0)
        continue;
    interrupted = 0;
}

static void close_turns(struct turns *t)
{
    if (wake[0] >= 0) {
        (void)sigaction(SIGINT, &t->before, NULL);
        (void)close(wake[0]);
        (void)close(wake[1]);
        wake[0] = wake[1] = -1;
    }
    tt_text_release(&t->bytes);
    tt_text_release(&t->text);
}

/* Drops all input, so that there are no more turns. */
static void end_turns(struct turns *t)
{
    t->ended = true;
    t->at = t->bytes.size;
    t->text.size = 0;
}

static int read_more(struct turns *t)
{
    struct pollfd wait[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = wake[0], .events = POLLIN}};
    struct tt_text rest = {0};
    char *block;
    ssize_t n;

    if (poll(wait, t->typed ? 2 : 1, -1) < 0)
        return errno == EINTR ? 0 : tt_fail(TT_EIO, "cannot wait for standard input: %s", strerror(errno));
    if (t->typed && wait[1].revents) {
        end_turns(t);
        return 0;
    }
    block = tt_calloc(1, BLOCK);
    n = read(STDIN_FILENO, block, BLOCK);
    if (n > 0) {
        tt_text_add_bytes(&rest, t->bytes.text + t->at, t->bytes.size - t->at);
        tt_text_add_bytes(&rest, block, (size_t)n);
        tt_text_release(&t->bytes);
        t->bytes = rest;
        t->at = 0;
    }
    tt_free(block);
    t->ended = n == 0;
    if (n < 0 && errno != EINTR && errno != EAGAIN)
        return tt_fail(TT_EIO, "cannot read standard input: %s", strerror(errno));
    return 0;
}

/* Appends the next line to the turn; false: more input must be read first. The last line of the input may lack a line
 * end. */
static bool take_line(struct turns *t)
{
    size_t size = t->bytes.size - t->at;
    const char *line = size ? t->bytes.text + t->at : "", *newline = memchr(line, '\n', size);
    size_t n = newline ? (size_t)(newline - line) : size;

    if (!newline && !(t->ended && n))
        return false;
    t->at += n + (newline ? 1 : 0);
    t->lines++;
    t->cut = t->cut || (t->typed && n >= TYPED_MOST);
    if (n && line[n - 1] == '\r')
        n--;
    tt_text_add_bytes(&t->text, line, n);
    return true;
}

/*
 * Waits for the next turn. ret_text is valid until the next call; NULL: there are no more turns. TT_EUSAGE for a typed
 * line that is too long for the terminal; TT_EIO.
 */
static int next_turn(struct turns *t, const char **ret_text, size_t *ret_size)
{
    bool goes_on = true;
    int rc = 0;

    *ret_text = NULL;
    t->cut = false;
    t->text.size = 0;
    tt_text_add_bytes(&t->text, "", 0);
    while (goes_on) {
        if (take_line(t)) {
            goes_on = t->text.size && t->text.text[t->text.size - 1] == '\\';
            if (goes_on)
                t->text.text[t->text.size - 1] = '\n';
        } else if (t->ended) {
            if (!t->text.size)
                return 0;
            goes_on = false;
        } else {
            TT_TRY(read_more(t));
        }
    }
    *ret_text = t->text.text;
    *ret_size = t->text.size;
    if (t->cut)
        return tt_fail(
            TT_EUSAGE,
            "the line is longer than %d bytes, and the terminal has dropped the rest\n"
            "help: break it with \\ at the end of a line, or give the turns as a file: titan generate ... <FILE",
            TYPED_MOST - 1);
out:
    return rc;
}

/* --- the conversation --- */

/* An answer gets at least 1 / ANSWER_PART of the context; the oldest turns are forgotten to make room. */
enum { ANSWER_PART = 4 };

struct talk {
    const struct tt_conversation *c;
    struct turns turns;
    struct tt_picker *picker;
    json_t *messages;       /* the whole conversation; an answer that was cut off has the weight 0 */
    size_t seen_from;       /* the first message after the system message that the model sees */
    int64_t answers;        /* number of answers since the beginning or the last /reset */
    struct tt_chat_ids ids; /* the tokens of the model's input */
    struct tt_ids fed;      /* the tokens that the generator has read */
    char *saved_to;         /* the file of the last /save; NULL: nothing was saved in this conversation */
    char *saved;            /* the line that was saved to it */
    bool wrote;             /* whether an answer was written */
    bool dim;               /* colours are allowed on standard error */
};

/* --- the messages --- */

static size_t first_turn(const struct talk *t)
{
    return t->c->system ? 1 : 0;
}

static bool is_of(const json_t *message, const char *role)
{
    return strcmp(json_string_value(json_object_get(message, "role")), role) == 0;
}

static int begin(struct talk *t)
{
    const char *system = t->c->system;

    (void)json_array_clear(t->messages);
    t->seen_from = first_turn(t);
    t->answers = 0;
    tt_free(t->saved_to);
    tt_free(t->saved);
    t->saved_to = t->saved = NULL;
    return system ? tt_chat_add(t->messages, "system", system, strlen(system)) : 0;
}

static void take_back(struct talk *t)
{
    (void)json_array_remove(t->messages, json_array_size(t->messages) - 1);
}

/* --- the part that the model sees --- */

static json_t *seen(const struct talk *t)
{
    json_t *list = json_array();

    for (size_t i = 0; i < json_array_size(t->messages); i++) {
        json_t *message = i < first_turn(t) || i >= t->seen_from ? json_copy(json_array_get(t->messages, i)) : NULL;

        if (!message)
            continue;
        (void)json_object_del(message, "weight"); /* weights are for training */
        (void)json_array_append_new(list, message);
    }
    return list;
}

/* Forgets the oldest turn of the user, with its answer; false: only the newest turn is left. */
static bool forget_turn(struct talk *t)
{
    for (size_t i = t->seen_from + 1; i < json_array_size(t->messages); i++) {
        if (is_of(json_array_get(t->messages, i), "user")) {
            t->seen_from = i;
            return true;
        }
    }
    return false;
}

/* Makes the tokens that ask for an answer, and leaves room for the answer. */
static int encode(struct talk *t)
{
    int64_t context = t->c->context, part = context / ANSWER_PART;
    int64_t room = t->c->max_new_tokens < part ? t->c->max_new_tokens : part;
    size_t before = t->seen_from, forgotten;

    do {
        json_t *messages = seen(t);
        int rc = tt_chat_ask(t->c->prompt->chat, messages, &t->ids);

        json_decref(messages);
        if (rc < 0)
            return rc;
    } while ((int64_t)t->ids.ids.n + room > context && forget_turn(t));
    forgotten = t->seen_from - first_turn(t);
    if (t->ids.ids.n == 0 || (int64_t)t->ids.ids.n > context) {
        t->seen_from = before;
        return t->ids.ids.n
                   ? tt_fail(TT_EUSAGE,
                             "with this message the model would have to read %zu tokens, but the context holds "
                             "%" PRId64 "\nhelp: say less, or set --max-seq-len",
                             t->ids.ids.n, context)
                   : tt_fail(TT_EDATA, "the chat template leaves this message out");
    }
    if (t->seen_from > before)
        tt_screen_say("titan: the context of %" PRId64 " tokens is full: the model no longer sees the first %zu "
                      "messages (/reset begins anew; a larger context: --max-seq-len)\n",
                      context, forgotten);
    return tt_prompt_check_ids(t->c->weights, t->c->prompt, &t->ids.ids);
}

/*
 * Feeds the tokens that the generator has not read yet, and always the last one, to get its logits. ret_logits: after
 * the last token; NULL if Ctrl-C came first.
 */
static int feed(struct talk *t, const float **ret_logits, size_t *ret_n)
{
    const struct tt_ids *ids = &t->ids.ids;
    const float *logits = NULL;
    size_t same = 0;
    int rc = 0;

    while (same + 1 < ids->n && same < t->fed.n && ids->id[same] == t->fed.id[same])
        same++;
    tt_generator_rewind(t->c->generator, (int64_t)same);
    for (t->fed.n = same; t->fed.n < ids->n && !interrupted;) {
        size_t rest = ids->n - t->fed.n, n = rest < (size_t)t->c->prompt_rows ? rest : (size_t)t->c->prompt_rows;

        TT_TRY(tt_generator_feed(t->c->generator, ids->id + t->fed.n, (int64_t)n, &logits));
        for (size_t i = 0; i < n; i++)
            tt_ids_add(&t->fed, ids->id[t->fed.n]);
    }
    *ret_logits = t->fed.n == ids->n ? logits : NULL;
    *ret_n = t->fed.n - same;
out:
    return rc;
}

/* --- an answer --- */

static void report(const struct talk *t, const struct tt_continuation *k, size_t n_read)
{
    static const char *const ends[] = {[TT_FINISH_LENGTH] = "cut by --max-new-tokens; ",
                                       [TT_FINISH_EOS] = "",
                                       [TT_FINISH_CONTEXT] = "the context is full; ",
                                       [TT_FINISH_INTERRUPTED] = "stopped; "};
    double rate = k->seconds > 0.0 ? (double)k->tokens.n / k->seconds : 0.0;

    (void)fflush(stdout);
    (void)fprintf(stderr, "%s%s%sread %zu, wrote %zu at %.0f tokens/s; context %zu/%" PRId64 "%s\n",
                  t->dim ? "\033[2m" : "", t->turns.typed ? "" : "titan: ", ends[k->finish], n_read, k->tokens.n, rate,
                  t->fed.n, t->c->context, t->dim ? "\033[0m" : "");
    if (t->turns.typed)
        (void)fputc('\n', stderr);
}

static int write_answer(struct talk *t, const float *logits, size_t n_read)
{
    const struct tt_prompt *prompt = t->c->prompt;
    struct tt_generation generation = {.generator = t->c->generator,
                                       .picker = t->picker,
                                       .tokenizer = prompt->tokenizer,
                                       .prompt_logits = logits,
                                       .prompt = t->ids.ids.id,
                                       .prompt_tokens = (int64_t)t->ids.ids.n,
                                       .max_new_tokens = t->c->max_new_tokens,
                                       .seed = t->c->seed,
                                       .stop = prompt->stop.id,
                                       .n_stop = t->c->ignore_eos ? 0 : (int)prompt->stop.n,
                                       .interrupted = &interrupted};
    struct tt_continuation k = {.stream = {.to = stdout}};
    size_t position;
    int rc = 0;

    if (!t->turns.typed && t->wrote)
        (void)fputs("----\n", stdout);
    t->wrote = true;
    TT_TRY(tt_generation_run(&generation, t->answers++, &k));
    if (k.stream.text.size == 0 || k.stream.text.text[k.stream.text.size - 1] != '\n')
        (void)fputc('\n', stdout);
    position = (size_t)tt_generator_position(t->c->generator);
    while (t->fed.n < position)
        tt_ids_add(&t->fed, k.tokens.id[t->fed.n - t->ids.ids.n]);
    TT_TRY(tt_chat_add(t->messages, "assistant", k.stream.text.text ? k.stream.text.text : "", k.stream.text.size));
    if (k.finish != TT_FINISH_EOS)
        (void)json_object_set_new(json_array_get(t->messages, json_array_size(t->messages) - 1), "weight",
                                  json_integer(0));
    report(t, &k, n_read);
out:
    tt_continuation_release(&k);
    return rc;
}

static int say(struct talk *t, const char *text, size_t size)
{
    const float *logits = NULL;
    size_t n_read = 0;
    int rc = 0;

    TT_TRY(tt_chat_add(t->messages, "user", text, size));
    rc = encode(t);
    if (rc < 0) {
        take_back(t);
        return rc;
    }
    TT_TRY(feed(t, &logits, &n_read));
    if (logits) {
        rc = write_answer(t, logits, n_read);
    } else {
        take_back(t);
        tt_screen_say("titan: stopped before the answer began; the message is taken back\n");
    }
    go_on();
out:
    return rc;
}

/* --- commands --- */

static int reset(struct talk *t, const char *argument)
{
    if (*argument)
        return tt_fail(TT_EUSAGE, "/reset takes no argument");
    tt_screen_say("titan: a new conversation%s\n", t->c->system ? "; the system message stays" : "");
    return begin(t);
}

/* Reads the line that was saved before, if it is still the last one of the file, so that it can be replaced. */
static int read_saved(const struct talk *t, const char *path, struct tt_text *lines)
{
    bool exists = false;
    char *text = NULL;
    size_t size = 0, old = t->saved ? strlen(t->saved) : 0;
    int rc = 0;

    TT_TRY(tt_path_exists(path, &exists));
    if (exists)
        TT_TRY(tt_file_read(path, &text, &size));
    if (t->saved_to && strcmp(t->saved_to, path) == 0 && size >= old && memcmp(text + size - old, t->saved, old) == 0)
        size -= old;
    if (size)
        tt_text_add_bytes(lines, text, size);
    if (size && text[size - 1] != '\n')
        tt_text_add(lines, "\n");
out:
    tt_free(text);
    return rc;
}

static size_t count_answers(const struct talk *t, bool only_cut)
{
    size_t n = 0;

    for (size_t i = 0; i < json_array_size(t->messages); i++) {
        const json_t *message = json_array_get(t->messages, i);

        n += is_of(message, "assistant") && (!only_cut || json_object_get(message, "weight"));
    }
    return n;
}

/* Adds the conversation as a line to a file of chat data. */
static int save(struct talk *t, const char *path)
{
    size_t answers = count_answers(t, false), cut = count_answers(t, true);
    json_t *conversation = json_pack("{s:O}", "messages", t->messages);
    char *text = tt_json_text(conversation), *line = tt_format("%s\n", text);
    struct tt_text lines = {0};
    int rc = 0;

    if (!*path)
        rc = tt_fail(TT_EUSAGE, "/save needs a file\nhelp: for instance /save chats.jsonl");
    else if (!answers)
        rc = tt_fail(TT_EUSAGE, "there is no answer to save yet");
    TT_TRY(rc);
    TT_TRY(read_saved(t, path, &lines));
    tt_text_add(&lines, "%s", line);
    TT_TRY(tt_file_replace(path, lines.text, lines.size));
    tt_free(t->saved_to);
    tt_free(t->saved);
    t->saved_to = tt_strdup(path);
    t->saved = line;
    line = NULL;
    tt_screen_say("titan: saved as a line of chat data: %s\n", path);
    if (cut)
        tt_screen_say("titan: %zu of %zu answers did not end by %s; the weight 0 keeps training from learning %s\n",
                      cut, answers, cut == 1 ? "itself" : "themselves", cut == 1 ? "it" : "them");
out:
    tt_text_release(&lines);
    tt_free(line);
    tt_free(text);
    json_decref(conversation);
    return rc;
}

static int help(struct talk *t, const char *argument);
static int leave(struct talk *t, const char *argument);

static const struct command {
    const char *name, *argument;
    int (*run)(struct talk *t, const char *argument);
    const char *what;
} commands[] = {
    {"/reset", "", reset, "forget the conversation, except --system"},
    {"/save", " FILE", save, "add the conversation to FILE, as a line of chat data (jsonl_sft)"},
    {"/help", "", help, "show this"},
    {"/exit", "", leave, "end, as Ctrl-D does"},
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static int help(struct talk *t, const char *argument)
{
    (void)t;
    (void)argument;
    for (int i = 0; i < N_COMMANDS; i++)
        tt_screen_say("  %s%-*s  %s\n", commands[i].name, (int)(12 - strlen(commands[i].name)), commands[i].argument,
                      commands[i].what);
    tt_screen_say("  A line that ends with \\ goes on in the next one. Ctrl-C stops an answer.\n");
    return 0;
}

static int leave(struct talk *t, const char *argument)
{
    (void)argument;
    end_turns(&t->turns);
    return 0;
}

static int obey(struct talk *t, const char *text)
{
    size_t word = strcspn(text, " \t"), next = word + strspn(text + word, " \t"), size = strlen(text);
    char *argument = tt_strdup(text + next);
    int rc = 0, i = 0;

    while (size > next && strchr(" \t", text[size - 1]))
        argument[--size - next] = 0;
    while (i < N_COMMANDS && !(strlen(commands[i].name) == word && strncmp(commands[i].name, text, word) == 0))
        i++;
    if (i < N_COMMANDS)
        rc = commands[i].run(t, argument);
    else
        rc = tt_fail(TT_EUSAGE,
                     "there is no command '%.*s'\nhelp: /help lists them; a message that begins with / has a space "
                     "before it",
                     (int)word, text);
    tt_free(argument);
    return rc;
}

/* --- the conversation --- */

/* On a terminal an error in one turn does not end the conversation. */
static int forgive(const struct talk *t, int rc)
{
    bool is_of_turn = rc == TT_EUSAGE || rc == TT_EDATA || rc == TT_EIO;

    if (!t->turns.typed)
        return rc < 0 ? tt_wrap(rc, "standard input, line %" PRId64, t->turns.lines) : 0;
    if (is_of_turn)
        tt_screen_say("titan: %s\n", tt_error_message());
    return is_of_turn ? 0 : rc;
}

static int converse(struct talk *t)
{
    const char *text = NULL;
    bool any = false;
    size_t size = 0;
    int rc = 0;

    for (;;) {
        if (t->turns.typed)
            (void)fputs("> ", stderr);
        rc = next_turn(&t->turns, &text, &size);
        TT_TRY(rc == TT_EUSAGE ? forgive(t, rc) : rc);
        if (!text)
            break;
        if (strspn(text, " \t\n") == size || t->turns.cut)
            continue;
        any = true;
        TT_TRY(forgive(t, text[0] == '/' ? obey(t, text) : say(t, text, size)));
        if (t->turns.ended && t->turns.typed)
            return 0;
    }
    if (t->turns.typed)
        (void)fputc('\n', stderr);
    else if (!any)
        rc = tt_fail(TT_EUSAGE, "standard input contains no message\n"
                                "help: give it a line for each turn, or type at a terminal; --prompt TEXT asks for a "
                                "single answer");
out:
    return rc;
}

int tt_conversation_run(const struct tt_conversation *c)
{
    const char *no_color = getenv("NO_COLOR"); // NOLINT(concurrency-mt-unsafe): titan never changes it
    struct talk t = {.c = c, .messages = json_array(), .turns = {.typed = isatty(STDIN_FILENO) == 1}};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    char context[32];
    int rc = 0;

    if (t.turns.typed && pipe2(wake, O_NONBLOCK | O_CLOEXEC) < 0)
        TT_TRY(tt_fail(TT_EIO, "cannot make a pipe: %s", strerror(errno)));
    interrupted = 0;
    (void)sigemptyset(&action.sa_mask);
    if (t.turns.typed)
        (void)sigaction(SIGINT, &action, &t.turns.before);
    t.dim = isatty(STDERR_FILENO) == 1 && !(no_color && no_color[0]);
    t.picker = tt_picker_new(&c->sampling, c->weights->model->dims.vocab_size);
    TT_TRY(begin(&t));
    if (t.turns.typed)
        tt_screen_say("titan: %s from %s, a context of %s tokens\n"
                      "titan: /help lists commands, Ctrl-C stops an answer, Ctrl-D ends\n",
                      c->weights->model->title, c->weights->path, tt_text_count(context, sizeof context, c->context));
    TT_TRY(converse(&t));
out:
    close_turns(&t.turns);
    tt_picker_free(t.picker);
    tt_chat_ids_release(&t.ids);
    tt_ids_release(&t.fed);
    json_decref(t.messages);
    tt_free(t.saved_to);
    tt_free(t.saved);
    return rc;
}
