#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/unit/data/jinja.json: templates, and what transformers makes of them with the context below. Needs
transformers. Each row is one line of a feature; a template that transformers refuses is not one of them."""
import datetime
import json
import pathlib
import sys

import transformers.utils.chat_template_utils as utils

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/unit/data/jinja.json"


class Date(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2024, 7, 26)


CONTEXT = {
    "messages": [{"role": "system", "content": "  Größe\n"}, {"role": "user", "content": "a b  c"},
                 {"role": "assistant", "content": "<think>\nso\n</think>\n\n1", "n": 3}],
    "tools": [{"name": "f", "args": {"x": [1, -2, 0.5, 1e-7, 1e16, 2.0, True, None], "": {}, "q": "it's \"é\"\t"}}],
    "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>",
    "list": [3, 1, 2, 1], "words": ["b", "A", "c", "a"], "text": "one, two, three", "empty": "", "zero": 0,
    "object": {"b": 1, "A": {"k": [1, 2]}, "items": 7}, "wide": "a大é😀z",
}

PRINTED = """
messages[0].content|trim ~ '.' / messages[-1]['content'].split('</think>')[-1].lstrip('\\n')
text.split(', ') / text.split(', ', 1) / text.rsplit(', ', 1) / 'a b  c '.split() / ' a  b c '.split(None, 1)
'xxaxx'.strip('x') / 'xxaxx'.lstrip('x') / 'xxaxx'.rstrip('x') / '\\u3000a\\u00a0'.strip() / 'ab'.strip('')
text.startswith('one') / text.endswith(('x', 'three')) / 'a-b'.replace('-', '+') / 'aaa'.replace('a', 'b', 2)
text.find('two') / wide.find('z') / text.rfind('t') / text.count('t') / 'x' in text / 'q' not in text
'Ab'.upper() / 'Ab'.lower() / 'aB cD'.title() / 'aB'.capitalize() / 'a\\nb\\r\\nc'.splitlines() / ', '.join(words)
'12'.isdigit() / 'ab'.isalpha() / ' '.isspace() / 'abc'.removeprefix('a') / 'abc'.removesuffix('c')
wide[1] / wide[-1] / wide[1:3] / wide[::-1] / wide[-3:] / wide[:-1] / wide[10:] / wide|length / list[::-1]
list[3:0:-2]
list[1:] / list[:-1] / list[-100:100] / list[5] is undefined / object['none'] is undefined / list[5] is defined
1 + 2 * 3 / 7 // 2 / -7 // 2 / -7 % 3 / 7 % -3 / (1 + 2) * 3 / 2 - -1 / 1 == 1.0 / true == 1 / 1 + true
'a' + 'b' / 'a' ~ 1 ~ none ~ true / [1] + [2] / (1, 2) + (3,) / 'a' 'b' / "\\x41\\u00e9\\n'" / '\\q'
1 < 2 < 3 / 1 < 2 > 5 / 'a' < 'b' / [1] == [1] / (1,) == [1] / {'a': 1} == {'a': 1} / none == none / zero == false
true and 'x' / zero or 'y' / not zero / none or empty or [] / 'x' if zero else 'y' / 'x' if zero
1 if zero else 2 if empty else 3
none is none / text is string / list is sequence / object is mapping / 1 is number / true is boolean / 1.5 is float
text is iterable / none is iterable / 1 is iterable / object is iterable / x is defined / x is undefined
2 is even / 3 is odd / 4 is divisibleby 2 / 4 is divisibleby(3) / 1 is eq 1 / 1 is ne 2 / 1 is in [1]
'a' is not string
false is false / true is true / 0 is false / 1 is integer / 1 is not none and 2 is not even / not 1 is odd
list|sort / list|sort(reverse=true) / words|sort / words|sort(case_sensitive=true) / list|unique|list / words|first
list|last
words|join('-') / list|join / messages|map(attribute='role')|join(',') / words|map('upper')|list
words|reject('equalto', 'A')|list
messages|selectattr('role', 'equalto', 'user')|list / messages|rejectattr('n')|map(attribute='role')|list
list|select('gt', 1)|list
messages|selectattr('n', 'defined')|list|length / object|items|list / object.items()|list / object|dictsort
object.keys()|list
object.get('b') / object.get('z') / object.get('z', 5) / object['items'] / object.values()|list / object|length
object|list
tools|tojson / tools[0]|tojson(indent=2) / tools|tojson(separators=(',', ':')) / wide|tojson(ensure_ascii=true)
object|tojson(sort_keys=true)
tools / tools|string|length / "it's" ~ ["it's", 'a"b', "\\n\\t"] / (1,) / () / {} / [none, true, 1.5, -0.25, 100.0]
x|default('d') / empty|default('d') / empty|default('d', true) / x|d / none|default('n')
x|default(default_value='k')
'a\\nb\\n\\nc'|indent / 'a\\nb'|indent(2, true) / 'a\\n\\nb'|indent(width=1, blank=true) / ' x '|trim
'xax'|trim('x')
'ab cd-ef'|title / 'aB'|capitalize / 'aB'|upper / 'aB'|lower / 'aXbX'|replace('X', '') / '42'|int / 'x'|int
'x'|int(7) / -3|abs
list|reverse|list / 'abc'|reverse / list|count / text|safe / ('<'|safe) + '<' / '<' ~ ('<'|safe) / words|list
range(3)|list / range(1, 7, 2)|list / range(3, 0, -1)|list / namespace(a=1).a / dict(a=1) / dict(a=1).a
strftime_now('%d %b %Y') / strftime_now('%Y-%m-%d') / (1, 2)[0] / [[1, 2], [3]][0][1] / {'a': {'b': 2}}.a.b
{'a': 1}['a']
list|select|list|length / 'y' if []|select else 'n' / 'y' if []|map('trim') else 'n' / 'y' if {}|items else 'n'
'y' if {}.items() else 'n' / {}.items() is sequence / []|reverse is sequence / object.items()|length
'y' if list|select|reverse else 'n'
'12.7'|int / '-1e3'|int / ' 7 '|int / 'a1'|int(5) / ''|int(4) / '.'|int / none|int(3)
[{'a': ['x', 'y']}]|map(attribute='a.1')|join / [['b', 'c']]|map('join', attribute='x')|list
'a\\x0cb\\u2028c\\x85d\\x1ce\\x0b'.splitlines() / 'a\\r\\nb\\x0cc\\r'|indent(2) / 'a\\n'|indent(2, true, true)
'a\\x7fé'|tojson(ensure_ascii=true) / 'a\\x7fé'|tojson / 'abc'[2:0:-9223372036854775807] / 'abc'[::9223372036854775807]
'abc'.rfind('') / 'abab'.rfind('ab') / 'abab'.rfind('abc')
-1.5 / 1 in (1, 2) / 'k' in {'k': 1} / none in [none] / list.index(2) / list.count(1)
"""

WRITTEN = [
    "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}{% for x in list if x > 1 %}{{ loop.index }}{{ x }}{% endfor %}",
    "{% for k, v in object.items() %}{{ k }}={{ v }},{% endfor %}{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}"
    "{% endfor %}",
    "{% for x in list %}{% if x == 2 %}{% break %}{% elif x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for i in list %}{% set x = i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}"
    "{% endif %}{{ x }}",
    "{% set ns = namespace(n=0) %}{% for i in list %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}"
    "{{ ns.m is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set t %} x{{ a }}\n{% endset %}[{{ t }}"
    "]{{ t|trim }}",
    "{% macro m(a, b=2, c=none) -%} {{ a }}{{ b }}{{ c }} {%- endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m(b=1, a=0) }}"
    "|{{ m() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{% set y = 5 %}"
    "{% macro g() %}{{ y }}{% endmacro %}{% for y in list %}{{ g() }}{% endfor %}",
    "{% filter upper %}a{{ bos_token }}{% endfilter %}{% if zero %}a{% elif empty %}b{% else %}{% if 1 %}c{% endif %}"
    "d{% endif %}",
    "  {% if true %}\n  a\n  {% endif %}\n  b {% if true %} c {% endif %}\nd\n",
    "a  {%- if true -%}  b  {%- endif -%}  c {#- d -#} e {# f #}\n g {{- 1 -}} \n h {{ 2 }}\n\n",
    "a\n   {%+ if true %}\n b{% endif +%}\n  {# c #}\n d\n\n\n",
    "\n  {%- for x in [1, 2] %}\n    {{ x }}\n  {%- endfor %}\n\n", "a\r\nb\rc\r\n", "\n\n{{ 1 }}"
    "\n\n", "{{ {'a': {'b': 1}}['a']['b'] }}}}",
    "{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}é{% endgeneration %}|{% endfor %}",
    "{% generation %}{% endgeneration %}{% for x in list %}{% generation %}{{ x }}{% endgeneration %}{% endfor %}",
    "{{ '{{ a }}' }}{{ \"{% b %}\" }}{{ '}}' }}{% set s = '%}' %}{{ s }}", "{{ messages[0].content.strip()[0] }}"
    "{{ a }}{{ none }}",
    "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y }}{% filter upper %}{% set z = 'z' %}{{ z }}"
    "{% endfilter %}{{ z }}",
    "{% for a in [] %}{% else %}{% set y = 1 %}{{ y }}{% endfor %}{{ y }}",
    "{% for a in list %}{% for b in [] %}{% else %}{% if a == 2 %}{% continue %}{% endif %}{% endfor %}{{ a }}"
    "{% endfor %}",
    "{% set y = 1 %}{% generation %}{% set y = 2 %}{% set z = 3 %}{{ y }}{{ z }}{% endgeneration %}{{ y }}{{ z }}",
    "{% for a in list %}{{ a }}{% break %}{% else %}e{% endfor %}{% for a in list %}{% continue %}{% else %}f"
    "{% endfor %}{% for a in list %}{% if a == 1 %}{% continue %}{% endif %}{% if loop.last %}{% break %}{% endif %}"
    "{% else %}g{% endfor %}{{ [nothing] }}",
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}"
    "{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}{%- endif %}{{ date_string }}",
]


def render(template):
    context = {key: value for key, value in CONTEXT.items() if key not in ("messages", "tools", "documents")}
    marks = "endgeneration" in template
    texts, marked = utils.render_jinja_template([CONTEXT["messages"]], tools=CONTEXT["tools"], chat_template=template,
                                                return_assistant_tokens_mask=marks, **context)
    text = texts[0]
    found = [[len(text[:a].encode()), len(text[:b].encode())] for a, b in (marked[0] if marks else []) if a < b]
    return {"template": template, "text": text} | ({"generated": found} if found else {})


def main():
    utils.datetime = Date
    rows = [render("{{ %s }}" % one) for line in PRINTED.strip().split("\n") for one in line.split(" / ")]
    rows += [render(template) for template in WRITTEN]
    OUT.write_text('{"context": %s,\n "rows": [\n  %s\n ]}\n' % (
        json.dumps(CONTEXT), ",\n  ".join(json.dumps(row) for row in rows)))
    print(f"{OUT}: {len(rows)} rows", file=sys.stderr)


main()
