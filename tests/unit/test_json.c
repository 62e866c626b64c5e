/* SPDX-License-Identifier: MIT
 *
 * JSON text: what is accepted, with which value, and at which place other text is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"

static void values_have_their_text(void **state)
{
    static const struct {
        const char *text, *want; /* compact; NULL: the same */
    } cases[] = {
        {"0", NULL},
        {"-0", "0"},
        {" [ ]\n", "[]"},
        {"{}", NULL},
        {"[1,-2,[3,{\"a\":[]}],\"\"]", NULL},
        {"{\"\":1,\"b\":{\"b\":true,\"c\":false},\"d\":null}", NULL},
        {"9223372036854775807", NULL},
        {"-9223372036854775808", NULL},
        {"9223372036854775808", "9.223372036854776e18"},
        {"-9223372036854775809", "-9.223372036854776e18"},
        {"[1.5,1e2,1E+2,25e-1,0.5]", "[1.5,100.0,100.0,2.5,0.5]"},
        {"1e-400", "0.0"},
        {"[0.0008,-1e-5,1e+20,0.1,17,1e6,\"0.10000000000000001 \\\"2.50e3\",{\"1e05\":3.690384252845857}]",
         "[0.0008,-1e-5,1e20,0.1,17,1e6,\"0.10000000000000001 \\\"2.50e3\",{\"1e05\":3.690384252845857}]"},
        {"\"\\u0041\\n\\/\\\\\\ud83d\\ude00\"", "\"A\\n/\\\\\xf0\x9f\x98\x80\""},
        {"\"a\\u0000b\"", NULL},
        {"\"caf\xc3\xa9\"", NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *json = NULL;
        char *text;

        assert_int_equal(tt_json_parse(cases[i].text, strlen(cases[i].text), "t", &json), 0);
        text = tt_json_text(json);
        assert_string_equal(text, cases[i].want ? cases[i].want : cases[i].text);
        tt_free(text);
        json_decref(json);
    }
}

static void what_python_writes_is_read(void **state)
{
    static const char text[] = "{\"a\\u0000b\": [NaN, Infinity, -Infinity, -1], \"a\": NaN}";
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    struct tt_text key = {0};
    json_t *json = NULL, *list = NULL, *value;
    const char *name;
    double real;

    assert_int_equal(tt_json_parse(text, strlen(text), "t", &json), 0);
    json_object_foreach(json, name, value)
    {
        key.size = 0;
        tt_json_add_key(&key, name);
        list = json_is_array(value) ? value : list;
        if (json_is_array(value))
            assert_memory_equal(key.text, "a\0b", 4);
    }
    assert_int_equal(json_object_size(json), 2);
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 3; i++) {
        json_t *object = json_pack("{s:O}", "b", json_array_get(list, i));
        char *wanted = tt_format("t: 'b' is %s, wanted a number", words[i]);

        assert_int_equal(tt_json_get_real(object, "b", "t", &real), TT_EDATA);
        assert_string_equal(tt_error_message(), wanted);
        tt_free(wanted);
        json_decref(object);
    }
    assert_int_equal(json_integer_value(json_array_get(list, 3)), -1);
    assert_int_equal(tt_json_get_real(json, "a", "t", &real), TT_EDATA);
    assert_string_equal(tt_error_message(), "t: 'a' is NaN, wanted a number");
    tt_text_release(&key);
    json_decref(json);
}

static void faults_have_a_position(void **state)
{
    static const struct {
        const char *text, *position;
    } cases[] = {
        {"", "t:1:1: "},
        {"{\"a\":", "t:1:5: "},
        {"[1,\n 2", "t:2:2: "},
        {"[1,\n 2}", "t:2:3: "},
        {"{}{}", "t:1:3: "},
        {"[1,]", "t:1:4: "},
        {"{\"a\":1,}", "t:1:8: "},
        {"{\"a\" 1}", "t:1:6: "},
        {"{1:2}", "t:1:2: "},
        {"[01]", "t:1:3: "},
        {"[-]", "t:1:3: "},
        {"[1.]", "t:1:4: "},
        {"[1e+]", "t:1:5: "},
        {"[1e999]", "t:1:2: "},
        {"[tru]", "t:1:2: "},
        {"[Nan]", "t:1:2: "},
        {"[-Inf]", "t:1:2: "},
        {"[truex]", "t:1:6: "},
        {"[\"\xc3\xa9\", x]", "t:1:7: "},
        {"[\"\xff\"]", "t:1:3: "},
        {"[\"a\tb\"]", "t:1:4: "},
        {"[\"\\x\"]", "t:1:3: "},
        {"[\"\\u12g4\"]", "t:1:3: "},
        {"[\"\\ud83d\"]", "t:1:3: "},
        {"[\"\\ude00\"]", "t:1:3: "},
        {"[\"\\ud83d\\u0041\"]", "t:1:3: "},
        {"{\"a\\u0000\":1, \"a\\u0000\":2}", "t:1:15: "},
        {"{\"a\":1, \"\\u0061\":2}", "t:1:9: "},
        {"[\"a", "t:1:3: "},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *json = NULL;

        if (tt_json_parse(cases[i].text, strlen(cases[i].text), "t", &json) != TT_EDATA)
            fail_msg("accepted: %s", cases[i].text);
        if (strncmp(tt_error_message(), cases[i].position, strlen(cases[i].position)) != 0)
            fail_msg("%s: %s", cases[i].text, tt_error_message());
    }
}

/* Text that does not end with a 0, cut at every byte. */
static void no_byte_after_the_text_is_read(void **state)
{
    static const char text[] = "{\"a\": [1.5e3, \"\\ud83d\\ude00\", true], \"b\": null, \"c\": -12}";

    for (size_t n = 0; n < strlen(text); n++) {
        char *part = tt_calloc(n + 1, 1), *exact = tt_realloc(NULL, n ? n : 1, 1);
        json_t *json = NULL;

        memcpy(part, text, n);
        memcpy(exact, part, n);
        assert_int_equal(tt_json_parse(exact, n, "t", &json), TT_EDATA);
        tt_free(part);
        tt_free(exact);
    }
}

static void depth_has_a_limit(void **state)
{
    for (int depth = TT_JSON_DEEPEST; depth <= TT_JSON_DEEPEST + 1; depth++) {
        struct tt_text text = {0};
        json_t *json = NULL;

        for (int i = 0; i < depth; i++)
            tt_text_add(&text, "[");
        for (int i = 0; i < depth; i++)
            tt_text_add(&text, "]");
        assert_int_equal(tt_json_parse(text.text, text.size, "t", &json), depth > TT_JSON_DEEPEST ? TT_EDATA : 0);
        json_decref(json);
        tt_text_release(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_have_their_text), cmocka_unit_test(what_python_writes_is_read),
        cmocka_unit_test(faults_have_a_position), cmocka_unit_test(no_byte_after_the_text_is_read),
        cmocka_unit_test(depth_has_a_limit),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
