"""What templates may hold: each expression in plain values, and transformers writes the same."""

import datetime
from typing import Any

import pytest

from numpy_minimind.text.chat_template import render

pytest.importorskip("jinja2")

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "sys", "name": None},
    {"role": "user", "content": "h\u00e9 <b> 'q'", "meta": {"b": 1, "a": [1, 2.5, None, True]}},
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "part"}, {"type": "image"}],
        "reasoning": "hm",
        "tool_calls": [{"name": "f", "arguments": {"x": 1}}],
    },
    {"role": "user", "content": "bye\nnow"},
]
TOOLS = [{"type": "function", "function": {"name": "get", "description": None, "parameters": {"z": 1, "a": "\u00e9<"}}}]
SEES = {"add_generation_prompt": True, "custom": {"a": (1, 2)}}

# name: (template, what it writes)
TEMPLATES = {
    "generation": ("{% generation %}{{ messages[0].content }}{% endgeneration %}|yo", "sys|yo"),
    "generation, white space": (
        "{% for m in messages %}{%- generation -%} {{ m.role }} {%- endgeneration -%}|{% endfor %}",
        "system|user|assistant|user|",
    ),
    "generation is a scope": ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
    "generation in a macro": (
        ("{% macro f(m) %}{% generation %}{{ m.role }}{% endgeneration %}{% endmacro %}{{ f(messages[0]) | upper }}"),
        "SYSTEM",
    ),
    "break and continue": (
        (
            "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{% if loop.last %}{% "
            "break %}{% endif %}{{ m.role }}{% endfor %}"
        ),
        "systemassistant",
    ),
    "loop": (
        (
            "{% for m in messages %}{{ loop.index0 ~ loop.revindex ~ loop.revindex0 ~ loop.first ~ loop.last ~ "
            "loop.length ~ loop.depth }}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{{ "
            "loop.nextitem.role if loop.nextitem }} {% endfor %}"
        ),
        ("043TrueFalse41aTrueuser 132FalseFalse41bTrueassistant 221FalseFalse41aTrueuser 310FalseTrue41bTrue "),
    ),
    "previtem": (
        "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }},{% endfor %}",
        ",system,user,assistant,",
    ),
    "a loop with a condition": (
        (
            "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% else %}none{% endfor "
            "%}{% for m in [] %}{% else %}none{% endfor %}"
        ),
        "1hé <b> 'q'2bye\nnownone",
    ),
    "a recursive loop": (
        (
            "{% for m in [[1, [2]], 3] recursive %}{% if m is iterable %}({{ loop(m) }}){% else %}{{ m }}{% "
            "endif %}{% endfor %}"
        ),
        "(1(2))3",
    ),
    "tojson": (
        ("{{ tools | tojson }}{{ messages[1].meta | tojson(sort_keys=true, ensure_ascii=True) }}{{ '</é' | tojson }}"),
        (
            '[{"type": "function", "function": {"name": "get", "description": null, "parameters": {"z": 1, '
            '"a": "é<"}}}]{"a": [1, 2.5, null, true], "b": 1}"</é"'
        ),
    ),
    "tojson, indented": (
        (
            "{{ tools | tojson(indent=4) }}{{ tools[0].type | tojson(2) }}{{ [1, {'a': 2}] | "
            "tojson(separators=(',', ':')) }}"
        ),
        (
            '[\n    {\n        "type": "function",\n        "function": {\n            "name": "get",\n        '
            '    "description": null,\n            "parameters": {\n                "z": 1,\n                '
            '"a": "é<"\n            }\n        }\n    }\n]"function"[1,{"a":2}]'
        ),
    ),
    "namespace": (
        (
            "{% set ns = namespace(a=1, b='x') %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}"
            "{{ ns.a }}{{ ns.b }}{{ ns.c }}"
        ),
        "5x",
    ),
    "a namespace as a value": (
        "{% set ns = namespace(a=1) %}{{ ns }}{{ [ns] | length }}{{ ns == 1 }}{{ {'n': ns}.n.a }}",
        "<Namespace {'a': 1}>1False1",
    ),
    "format, the filter": (
        "{{ '%s is %d and %5.2f' | format('x', 3, 2.5) }} {{ '%(a)s' | format(a=2) }}",
        "x is 3 and  2.50 2",
    ),
    "format, the operator": (
        (
            "{{ '%s-%s' % ('a', 1) }} {{ '%(a)s' % {'a': 2} }} {{ '%05d' % 42 }} {{ '%d%%' % 50 }} {{ '%x' % "
            "255 }} {{ '%-5s|' % 'a' }} {{ '%s in (x) 2024' % 'May' }}"
        ),
        "a-1 2 00042 50% ff a    | May in (x) 2024",
    ),
    "format, the method": (
        (
            "{{ '{} {x} {y!r:>5}'.format('a', x=3, y='b') }} {{ '{a}'.format_map({'a': 1}) }} {{ '{:,"
            "}'.format(1234567) }} {{ '{:>8.3f}|{:<4}|{:^5}'.format(2.5, 'a', 'b') }} {{ "
            "'{0.role}{0[content]}'.format(messages[0]) }} {{ '{:{}}|'.format('a', 4) }}"
        ),
        "a 3   'b' 1 1,234,567    2.500|a   |  b   systemsys a   |",
    ),
    "groupby": (
        (
            "{% for role, those in messages | groupby('role') %}{{ role }}:{{ those | length }} {% endfor %}{% "
            "for g in messages | groupby('role') %}{{ g.grouper }}{{ g.list | length }}{% endfor %}"
        ),
        "assistant:1 system:1 user:2 assistant1system1user2",
    ),
    "selectattr and the like": (
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}{{ "
            "messages | rejectattr('role', 'in', ['user']) | list | length }}{{ messages | "
            "map(attribute='role') | unique | list }}{{ messages | selectattr('meta') | list | length }}"
        ),
        "hé <b> 'q', bye\nnow2['system', 'user', 'assistant']1",
    ),
    "batch and slice": (
        (
            "{% for row in messages | batch(3, 'pad') %}{{ row | length }}{{ row[-1] is string }}{% endfor %}"
            "{% for row in range(7) | slice(3, 'x') %}{{ row }}{% endfor %}"
        ),
        "3False3True[0, 1, 2][3, 4, 'x'][5, 6, 'x']",
    ),
    "numbers": (
        (
            "{{ 2.567 | round(1) }} {{ 2.5 | round | int }} {{ 7 | round(-1, 'ceil') }} {{ -3 | abs }} {{ [1, "
            "2, 3] | sum }} {{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }} {{ [[1], [2]] | sum(start=[]) }} "
            "{{ [3, 1] | min }} {{ ['b', 'a'] | max }} {{ 2**10 }} {{ 7 // 2 }} {{ 7 % 3 }} {{ -7 // 2 }} {{ 1 "
            "/ 3 }} {{ 2 ** -1 }} {{ 1.0.is_integer() }} {{ (5).bit_length() }}"
        ),
        "2.6 2 10.0 3 6 3 [1, 2] 1 b 1024 3 1 -4 0.3333333333333333 0.5 True 3",
    ),
    "pprint": (
        "{{ messages[1].meta | pprint }}{{ messages | pprint }}",
        (
            "{'a': [1, 2.5, None, True], 'b': 1}[{'content': 'sys', 'role': 'system'},\n {'content': "
            "\"hé <b> 'q'\",\n  'meta': {'a': [1, 2.5, None, True], 'b': 1},\n  'role': 'user'},\n "
            "{'content': [{'text': 'part', 'type': 'text'}, {'type': 'image'}],\n  'reasoning': 'hm',\n  "
            "'reasoning_content': 'hm',\n  'role': 'assistant',\n  'thinking': 'hm',\n  'tool_calls': "
            "[{'arguments': {'x': 1}, 'name': 'f'}]},\n {'content': 'bye\\nnow', 'role': 'user'}]"
        ),
    ),
    "texts": (
        (
            "{{ 'a b  c' | wordcount }} {{ 'a\nb' | indent(3) }} {{ 'a\nb' | indent(width=2, first=true) }} {{ "
            "'a\nb' | indent('> ') }} {{ 'abcdef ghi' | truncate(5) }} {{ 'ab' | center(6) }}| {{ 'hello world "
            "foo' | wordwrap(5) }} {{ 'x' * 3 }} {{ 'ab' 'cd' }} {{ 'abc' | reverse }} {{ 'hello world' | "
            "title }} {{ 'hELLO' | capitalize }} {{ ' x ' | trim }}{{ 'xax' | trim('x') }}"
        ),
        "3 a\n   b   a\n  b a\n> b abcdef ghi   ab  | hello\nworld\nfoo xxx abcd cba Hello World Hello xa",
    ),
    "HTML and URLs": (
        (
            "{{ 'a b/ü&' | urlencode }} {{ {'a': 'b c'} | urlencode }} {{ '<a>' | escape }} {{ '<a>' | e }} {{ "
            "'<a>' | safe }} {{ '<p>x</p>' | striptags }} {{ {'a': 1} | xmlattr }} {{ '<' | forceescape }} {{ "
            "123456 | filesizeformat }}"
        ),
        'a%20b/%C3%BC%26 a=b+c &lt;a&gt; &lt;a&gt; <a> x  a="1" &lt; 123.5 kB',
    ),
    "methods of texts": (
        (
            "{{ 'abc'.center(7) }}{{ 'a'.ljust(3) }}{{ 'a'.rjust(3, '-') }}{{ '7'.zfill(3) }}{{ "
            "'a\tb'.expandtabs(4) }}{{ 'A'.isascii() }}{{ 'Ab'.istitle() }}{{ 'ab'.partition('a') }}{{ 'a,"
            "b'.split(',')[0] }}{{ 'a\nb'.splitlines() }}{{ 'xay'.strip('x') }}{{ 'ab'.startswith(('a', 'b')) "
            "}}{{ 'aXb'.swapcase() }}{{ 'a.b'.rsplit('.', 1)[-1] }}{{ 'aa'.replace('a', 'b', 1) }}{{ "
            "'ab'.removeprefix('a') }}{{ ','.join(['a', 'b']) }}{{ 'abc'[::-1] }}{{ 'abc'.find('c') }}"
        ),
        "  abc  a  --a007a   bTrueTrue('', 'a', 'b')a['a', 'b']ayTrueAxBbbaba,bcba2",
    ),
    "dicts": (
        (
            "{{ {'b': 1, 'a': 2} | dictsort }} {{ {'b': 1}.items() | list }} {{ messages[1].meta.keys() | list "
            "}} {{ messages[1].meta.values() | list | length }} {{ messages[1].meta | items | list | length }} "
            "{{ messages[0].get('x', 'y') }} {{ {'a': 1}.copy() }} {{ dict(a=1) }}{{ dict.fromkeys(['a', 'b'], "
            "0) }}{{ dict([('a', 1)]) | tojson }}{{ messages[0].name is defined }}"
        ),
        ("[('a', 2), ('b', 1)] [('b', 1)] ['b', 'a'] 2 2 y {'a': 1} {'a': 1}{'a': 0, 'b': 0}{\"a\": 1}False"),
    ),
    "lists": (
        (
            "{{ [1, 2, 2].count(2) }}{{ [1, 2].index(2) }}{{ (1, 2).index(1) }}{{ [1, 2][::-1] }}{{ [0] * 2 }}"
            "{{ [1] + [2] }}{{ [3, 1, 2] | sort(reverse=true) }}{{ ['B', 'a'] | sort }}{{ ['B', 'a'] | "
            "sort(case_sensitive=true) }}{{ [1, 2] | reverse | list }}{{ messages | map(attribute='role') | "
            "first }}{{ messages | last | length }}{{ ['a', 'b'] | map('upper') | join('-') }}{{ [1, 2, 3, 4] "
            "| select('even') | list }}{{ [1, 0] | select | list }}{{ [1, 2] | reject('odd') | list }}{{ "
            "messages | map(attribute='x', default='-') | join }}{{ [1] | random }}{{ messages[1:][0].role }}"
            "{{ messages[0] | attr('x') }}"
        ),
        "210[2, 1][0, 0][1, 2][3, 2, 1]['a', 'B']['B', 'a'][2, 1]system2A-B[2, 4][1][2]----1user",
    ),
    "macros": (
        (
            "{% macro f(x, y='d') %}{{ x }}{{ y }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}{% endmacro "
            "%}{{ f(1) }}{{ f(1, 2, 3, z=4) }}{% call f('c') %}body{% endcall %}{{ f.name }}{{ f.arguments }}"
        ),
        "1d(){}12(3,){'z': 4}cd(){}bodyf('x', 'y')",
    ),
    "blocks": (
        (
            "{% set t %}a {{ 1 + 1 }} b{% endset %}{{ t }}{% set u | upper %}x{% endset %}{{ u }}{% filter "
            "upper %}abc{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{% block z %}B{{ "
            "messages | length }}{% endblock %}{{ self.z() }}{% raw %}{{ x }}{% endraw %}{# comment #}{{ '{{' "
            "}}{%+ if true %} kept {%+ endif %}"
        ),
        "a 2 bXABC3B4B4{{ x }}{{ kept ",
    ),
    "tests": (
        (
            "{{ x is defined }}{{ x is undefined }}{{ x }}{{ messages is iterable }}{{ messages is sequence }}"
            "{{ messages[0] is mapping }}{{ 3 is odd }}{{ 4 is even }}{{ 4 is divisibleby 2 }}{{ 'a' is string "
            "}}{{ 1 is number }}{{ 1.0 is float }}{{ 1 is integer }}{{ true is boolean }}{{ none is none }}{{ "
            "'a' is lower }}{{ 'A' is upper }}{{ 1 is sameas 1 }}{{ 1 in [1] }}{{ 'join' is filter }}{{ 'odd' "
            "is test }}{{ range is callable }}{{ 1 is false }}{{ 2 is gt 1 }}{{ 2 is ne 1 }}"
        ),
        "FalseTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueFalseTrueTrue",
    ),
    "expressions": (
        (
            "{{ 'a' if false }}{{ not true }}{{ 1 and 0 }}{{ '' or 'd' }}{{ (1, 'a') }}{{ [1, 'a', none, true] "
            "}}{{ {'a': [1]} }}{{ 1 == 1.0 }}{{ 1 < 2 < 3 }}{{ \"a'b\" | string }}{{ 3.0 }}{{ 1e3 }}{{ 12_000 "
            "}}{{ 'a' ~ 1 ~ none }}{{ '3' | int + 1 }}{{ 'z' | int(5) }}{{ '2.5' | float }}{{ 'ff' | "
            "int(base=16) }}{{ missing | default('d') }}{{ '' | d('e', boolean=true) }}"
        ),
        "False0d(1, 'a')[1, 'a', None, True]{'a': [1]}TrueTruea'b3.01000.012000a1None452.5255de",
    ),
    "messages": (
        (
            "{{ messages[-1].content.split('\n')[-1] }}{{ messages[2].content[0].text }}{{ messages[2].content "
            "| selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}{{ "
            "messages[2].tool_calls[0].arguments | items | list }}"
        ),
        "nowpartpart[('x', 1)]",
    ),
    "thoughts, by any name": (
        (
            "{{ messages[2].reasoning_content }}{{ messages[2].thinking }}{{ messages[2].reasoning }}{{ "
            "messages[2] | tojson }}{{ messages[1] | tojson }}"
        ),
        (
            'hmhmhm{"thinking": "hm", "role": "assistant", "content": [{"type": "text", "text": "part"}, '
            '{"type": "image"}], "reasoning": "hm", "tool_calls": [{"name": "f", "arguments": {"x": 1}}], '
            '"reasoning_content": "hm"}{"role": "user", "content": "hé <b> \'q\'", "meta": {"b": 1, "a": [1, '
            "2.5, null, true]}}"
        ),
    ),
    "cycler and joiner": (
        (
            "{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner('|') %}"
            "{{ j() }}a{{ j() }}b"
        ),
        "xyxa|b",
    ),
    "what it sees": (
        (
            "{{ raise_exception is defined }}{{ strftime_now is callable }}{{ add_generation_prompt }}{{ "
            "documents }}{{ tools is none }}{{ custom }}{{ custom.a[1] }}{{ enable_thinking is defined }}"
        ),
        "TrueTrueTrueNoneFalse{'a': (1, 2)}2False",
    ),
    "white space": (
        (
            "{%- if messages[0]['role'] == 'system' -%}  {%- set rest = messages[1:] -%}{%- else -%}{%- set "
            "rest = messages -%}{%- endif -%}\n  {{ rest | length }}\n{% if true %}\n  x\n{% endif %}\n\n"
        ),
        "3\n  x\n",
    ),
}


@pytest.mark.parametrize(("template", "expected"), TEMPLATES.values(), ids=TEMPLATES.keys())
def test_what_it_writes(template: str, expected: str) -> None:
    assert render(template, "mine", MESSAGES, TOOLS, **SEES).text == expected


@pytest.mark.parametrize(("template", "expected"), TEMPLATES.values(), ids=TEMPLATES.keys())
def test_transformers_writes_it_too(template: str, expected: str) -> None:
    transformers = pytest.importorskip("transformers")
    messages = [{key: value for key, value in message.items() if value is not None} for message in MESSAGES]
    theirs = transformers.utils.chat_template_utils.render_jinja_template
    assert theirs([messages], tools=TOOLS, chat_template=template, **SEES)[0] == [expected]


def test_the_date() -> None:
    before = datetime.datetime.now().strftime("%Y-%m-%d")
    text = render("{{ strftime_now('%Y-%m-%d') }}", "mine", MESSAGES).text
    assert before <= text <= datetime.datetime.now().strftime("%Y-%m-%d")
