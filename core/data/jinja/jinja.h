/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_JINJA_JINJA_H
#define TT_DATA_JINJA_JINJA_H

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/tokenizer/pretokenizer.h"

/**
 * The part of Jinja that chat templates use, with trim_blocks, lstrip_blocks and the functions that transformers adds.
 * Its output equals transformers' output. A template that uses an unsupported feature fails, and the message names the
 * feature. Memory, steps and depth are limited, so templates need not be trusted. A template never changes; any number
 * of threads may use it.
 */
struct tt_jinja;

/** Reads a template. TT_EUSAGE if the text is not a template; the message names `where` and the line. */
int tt_jinja_new(const char *text, size_t size, const char *where, struct tt_jinja **ret_jinja) TT_MUST_CHECK;
void tt_jinja_free(struct tt_jinja *jinja);

/** Whether the template contains {% generation %}. */
bool tt_jinja_generates(const struct tt_jinja *jinja);

/**
 * Renders the template with the members of context as variables. Appends the output to text, and the passages within {%
 * generation %} to generated, which may be NULL. TT_EDATA if the template itself refuses (raise_exception); TT_EUSAGE
 * if the template uses a feature that is not supported, or has an error that Jinja would report too.
 */
int tt_jinja_render(const struct tt_jinja *jinja, const json_t *context, struct tt_text *text,
                    struct tt_passages *generated) TT_MUST_CHECK;

#endif
