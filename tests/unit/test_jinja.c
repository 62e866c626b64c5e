/* SPDX-License-Identifier: MIT
 *
 * The evaluator of chat templates. data/jinja.json holds the results of transformers for each template
 * (tests/golden/make_jinja_reference.py).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/data/jinja/jinja.h"
#include "core/os/file.h"

static json_t *golden;

static int render(const char *template, struct tt_text *text, struct tt_passages *generated)
{
    struct tt_jinja *jinja = NULL;
    int rc = tt_jinja_new(template, strlen(template), "t", &jinja);

    if (rc == 0)
        rc = tt_jinja_render(jinja, json_object_get(golden, "context"), text, generated);
    tt_jinja_free(jinja);
    return rc;
}

static void what_is_written_is_that_of_transformers(void **state)
{
    const json_t *row;
    size_t i;

    assert_true(json_array_size(json_object_get(golden, "rows")) > 150);
    json_array_foreach(json_object_get(golden, "rows"), i, row)
    {
        const char *template = json_string_value(json_object_get(row, "template"));
        const char *want = json_string_value(json_object_get(row, "text"));
        const json_t *marked = json_object_get(row, "generated");
        struct tt_text text = {0};
        struct tt_passages generated = {0};

        tt_text_add(&text, "before");
        if (render(template, &text, &generated) < 0)
            fail_msg("%s: %s", template, tt_error_message());
        if (strcmp(text.text + strlen("before"), want) != 0)
            fail_msg("%s writes '%s', wanted '%s'", template, text.text, want);
        assert_int_equal(generated.n, json_array_size(marked));
        for (size_t k = 0; k < generated.n; k++) {
            const json_t *span = json_array_get(marked, k);

            assert_int_equal(generated.item[k].begin, json_integer_value(json_array_get(span, 0)) + 6);
            assert_int_equal(generated.item[k].end, json_integer_value(json_array_get(span, 1)) + 6);
        }
        tt_text_release(&text);
        tt_passages_release(&generated);
    }
}

static void expect_error(const char *template, int code, const char *message)
{
    struct tt_text text = {0};
    struct tt_passages generated = {0};
    int rc = render(template, &text, &generated);

    if (rc != code || !strstr(tt_error_message(), message))
        fail_msg("%s: %d '%s', wanted %d '%s'", template, rc, rc < 0 ? tt_error_message() : text.text, code, message);
    assert_int_equal(text.size, 0);
    tt_text_release(&text);
    tt_passages_release(&generated);
}

static void what_is_not_supported_is_named_with_its_line(void **state)
{
    static const char *const bad[][2] = {
        {"\n{{ 1 | wordcount }}", "t, line 2: the filter 'wordcount' is not supported"},
        {"{{ 1 is sameas 1 }}", "line 1: the test 'sameas' is not supported"},
        {"a\nb\n{% include 'x' %}", "line 3: the tag {% include %} is not supported"},
        {"{{ 'a'.encode() }}", "the method 'encode' is not supported"},
        {"{{ lipsum() }}", "the function 'lipsum' is not supported"},
        {"{{ 'a' | tojson(nonsense=1) }}", "tojson with the argument nonsense is not supported"},
        {"{{ 'a'.split('b', 1, 2) }}", "split with 3 arguments is not supported"},
        {"{% for x in list recursive %}{% endfor %}", "a recursive loop is not supported"},
        {"{{ f(*list) }}", "'*' before an argument is not supported"},
        {"{{ 3 / 2 }}", "'/' of an integer and an integer is not supported"},
        {"{{ 'ß' | upper }}", "upper of the character U+00DF is not supported"},
        {"{{ loop.changed }}", "'loop' is undefined"},
        {"{% for x in list %}{{ loop.cycle(1) }}{% endfor %}", "loop.cycle is not supported"},
        {"{% for x in list %}{{ loop['cycles'[:5]] }}{% endfor %}", "loop.cycle is not supported"},
        {"{{ 'abcdef'[5:1:-9223372036854775807] + 1 }}", "'+' of a string and an integer is not supported"},
        {"{% set x %}{% generation %}a{% endgeneration %}{% endset %}", "{% generation %} within a macro"},
        {"{{ '\\N{DIGIT ONE}' }}", "the escape '\\N' in a string is not supported"},
        {"{{ strftime_now('%c') }}", "'%c' of strftime_now is not supported"},
        {"{% if a %}", "found 'the end of it' where elif was expected"},
        {"{% endif %}", "the tag {% endif %} is not supported"},
        {"{{ a b }}", "found 'b' where }} was expected"},
        {"{{ 'a }}", "a string does not end"},
        {"{# a", "a comment does not end"},
        {"{% break %}", "break is not in a loop"},
        {"{{ a.b }}", "'a' is undefined"},
        {"{{ 1 + 'a' }}", "'+' of an integer and a string is not supported"},
        {"{{ 9223372036854775807 + 1 }}", "leaves the range of 64 bits"},
        {"{{ 1 // 0 }}", "divides by 0"},
        {"{% set x.y = 1 %}", "'x' is not a namespace"},
        {"{{ object.items() }}", "is used as a list, without the filter list"},
        {"{{ (words | map('upper'))[0] }}", "is used as a list"},
        {"{{ words | select | tojson }}", "is used as a list"},
        {"{{ words | select | length }}", "is used as a list"},
        {"{{ (words | select) == words }}", "is used as a list"},
        {"{{ words + (words | select | reverse | select) }}", "is used as a list"},
        {"{% set s = words | select %}{% for a in s %}{% endfor %}{{ s | join }}", "is walked twice"},
        {"{{ '1_0' | int }}", "int of '1_0' is not supported"},
        {"{{ 'a'.startswith(('b', ('a',))) }}", "found a tuple where a string was expected"},
        {"{{ 1 < 'a' }}", "an integer and a string cannot be ordered"},
        {"{{ \xff }}", "invalid UTF-8 at byte 3"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_error(bad[i][0], TT_EUSAGE, bad[i][1]);
    expect_error("{{ raise_exception('no ' + messages[1].role) }}", TT_EDATA,
                 "t, line 1: the template refuses the conversation: no user");
}

static void a_hostile_template_ends(void **state)
{
    char deep[2010] = "{{ ";

    memset(deep + 3, '(', 1000);
    deep[1003] = '1';
    memset(deep + 1004, ')', 1000);
    memcpy(deep + 2004, "}}", 3);

    expect_error(deep, TT_EUSAGE, "it is nested more than 300 deep");
    expect_error("{% for a in range(1000000000) %}{% endfor %}", TT_EUSAGE, "more than 64 MiB");
    expect_error("{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}", TT_EUSAGE,
                 "the template");
    expect_error("{% set n = namespace(s='ab') %}{% for a in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
                 TT_EUSAGE, "more than 64 MiB");
    expect_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", TT_EUSAGE, "deep");
    expect_error("{% set n = namespace(s=[]) %}{% for a in range(2000) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s }}",
                 TT_EUSAGE, "deep");
    expect_error("{% set n = namespace(t='a') %}{% for a in range(40000) %}{% set n.t = ((((n.t,),),),) %}{% endfor %}"
                 "{{ 'a'.startswith(n.t) }}",
                 TT_EUSAGE, "found a tuple where a string was expected");
    expect_error("{% set n = namespace(a='a') %}{% for i in range(20) %}{% set n.a = n.a + n.a %}{% endfor %}"
                 "{{ n.a.rfind(n.a[:500000] + 'b') }}",
                 TT_EUSAGE, "too many steps");
}

static int set_up(void **state)
{
    return tt_json_load(TT_SOURCE_DIR "/tests/unit/data/jinja.json", &golden);
}

static int tear_down(void **state)
{
    json_decref(golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_that_of_transformers),
        cmocka_unit_test(what_is_not_supported_is_named_with_its_line),
        cmocka_unit_test(a_hostile_template_ends),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("jinja", tests, set_up, tear_down);
}
