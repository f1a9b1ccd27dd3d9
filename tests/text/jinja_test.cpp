// The template engine against Python's jinja2 (render_jinja.py), construct by construct, byte for byte.
#include <gtest/gtest.h>

#include <chrono>

#include "base/check.h"
#include "patience.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"
#include "text/python_jinja.h"

namespace quern {
namespace {

std::string render(const std::string& source, const Json& variables, const JinjaLimits& limits = {}) {
  const JinjaBody body = parse_template(source);
  std::vector<std::pair<std::string, JinjaValue>> values;
  for (const auto& [name, value] : variables.as_object())
    values.emplace_back(name, JinjaValue::from_json(value, false));
  JinjaInterpreter interpreter(limits, std::time(nullptr));
  return std::string(interpreter.render(body, std::move(values)).view());
}

std::string error_of(const std::string& source, const Json& variables = Json(Json::Object{})) {
  try {
    return "no error, but: " + render(source, variables).substr(0, 200);
  } catch (const Error& e) {
    return e.what();
  }
}

const char* const kVariables = R"json({
  "name": "World", "empty": "", "one": 1, "half": 0.5, "yes": true, "no": false, "nothing": null,
  "numbers": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "nested": [[1, 2], [3, [4, 5]], []],
  "d": {"b": 1, "a": {"x": [1, 2.0, null, true]}, "items": "shadow", "ключ": "значение"},
  "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25, "tags": []},
             {"name": "Cy", "age": 30}],
  "text": "  One two\tthree \n four  ", "unicode": "Grüße, Öl & 日本 😀 ﬁn straße ΑΣ ΌΔΟΣ",
  "lines": "first\n\n second\r\nthird\n", "quoted": "it's \"quoted\" \\ \u0001 \u00a0 \u2028",
  "big": 123456789012345678901234567890, "floats": [1.0, 1e16, 1e15, 1e-5, 0.0001, 1e22, 1.5e300, -0.0, 0.1, 123456.789, 3e-7],
  "html": "<a href=\"x\">&'</a>", "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}]
})json";

// One construct a line (or a few of a kind); every one is compared with Python.
const std::vector<std::string> kTemplates = {
    // output, literals, operators
    "Hello {{ name }}!",
    "{{ 1 }} {{ 1.0 }} {{ 1e3 }} {{ 'a' 'b' }} {{ true }} {{ none }} {{ True }} {{ 0x1F }} {{ 1_000 }} {{ "
    "0b101 }} {{ 0o17 }}",
    "{{ [1, 'a', 2.5, none, true] }} {{ (1,) }} {{ (1, 2) }} {{ () }} {{ {'a': 1, 2: 'b'} }}",
    "{{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 "
    "}} {{ -7.5 % 2 }} {{ 1 - 2 - 3 }}",
    "{{ 9223372036854775807 + 1 }} {{ big * big }} {{ big // 7 }} {{ -big % 11 }} {{ 2 ** 200 }} {{ big - "
    "big }} {{ big > 1 }} {{ 10 ** 20 == 1e20 }}",
    "{{ floats }} {{ floats | tojson }} {{ floats | join(' ') }}",
    "{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ - 3 | abs }}",
    "{{ 'a' ~ 1 ~ 2.0 ~ none ~ [1] ~ missing }}",
    "{{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] * 2 }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ 'x' * -1 }}|",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ "
    "1 != 2 }} {{ 2 >= 2 }} {{ 1 == '1' }}",
    "{{ 'orl' in name }} {{ 1 in [1, 2] }} {{ 'b' in d }} {{ 3 not in numbers }} {{ not 1 in [2] }} {{ 'x' "
    "in missing }}",
    "{{ 'a' if yes else 'b' }} {{ 'a' if no }}| {{ 'a' if no else 'b' if no else 'c' }}",
    "{{ yes and 'x' }} {{ no or 'y' }} {{ not no }} {{ 0 or none or [] or 'z' }} {{ 1 and 2 and 0 }}",
    "{{ name[0] }} {{ name[-1] }} {{ name[1:3] }} {{ name[::-1] }} {{ name[::2] }} {{ name[-3:] }} {{ "
    "name[:-1] }} {{ name[10:] }}| {{ name[99] }}|",
    "{{ numbers[::-1] }} {{ numbers[1:] }} {{ numbers[-2:] }} {{ numbers[5:1:-1] }} {{ numbers[-1::-2] }} {{ "
    "(1, 2, 3)[1:] }} {{ numbers[-9:9] }} {{ numbers[9:-9:-1] }}",
    "{{ unicode[2:9] }} {{ unicode[::-1] }} {{ unicode | length }} {{ unicode[-1] }}",
    "{{ d.b }} {{ d['a'].x[1] }} {{ d.a['x'][-1] }} {{ d.missing }}| {{ d['ключ'] }} {{ people.0.name }} {{ "
    "people[0]['name'] }}",
    "{{ d.items is callable }} {{ d['items'] }} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{{ d.get('b') }} {{ d.get('zz') }} {{ d.get('zz', 7) }} {{ d.keys() | list }} {{ d.values() | list }}",
    // whitespace control
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if yes -%}\n  b\n  {%- endif -%}\nc\n\n",
    "  {{- name -}}  x",
    "a {{ name -}} \n\n b",
    "{%+ if yes %}x{% endif %}\n",
    "  {%+ if yes +%}\n  x\n {% endif %}",
    "x {# comment #} y\n  {# line #}\nz{#- c -#}  w",
    "{% raw %}{{ not }} {% if %}{% endraw %}|\n",
    "a  {%- raw -%}  b  {%- endraw -%}  c",
    "{% if yes %}\r\n x\r\n{% endif %}\r\ny",
    "\n\n{% set x = 1 %}\n\n{{ x }}\n\n",
    "{{ '{{' }} {{ \"%}\" }}",
    "  \t{% if yes %}  \n\t{% endif %}  .",
    // if
    "{% if no %}a{% elif nothing %}b{% elif one %}c{% else %}d{% endif %}",
    "{% if missing %}a{% else %}b{% endif %}{% if [] %}1{% endif %}{% if {} %}2{% endif %}{% if 0.0 %}3{% "
    "endif %}{% if '' %}4{% endif %}{% if ' ' %}5{% endif %}",
    // for
    "{% for x in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ "
    "loop.first }}{{ loop.last }}{{ loop.length }}:{{ x }} {% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}{% for x in missing %}x{% else %}none{% endfor %}",
    "{% for x in numbers if x > 1 %}{{ x }}{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }} {% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a "
    "}}{{ b }}{{ c }}{% endfor %}",
    "{% for x in numbers %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif "
    "%}{% endfor %}",
    "{% for x in range(5) %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{% if loop.previtem is undefined "
    "%}!{% endif %} {% endfor %}",
    "{% for x in 'añ😀' %}[{{ x }}]{% endfor %}{% for k in d %}{{ k }} {% endfor %}",
    "{% for x in range(1, 10, 3) %}{{ x }} {% endfor %}{% for x in range(5, 0, -2) %}{{ x }} {% endfor %}",
    "{% for x in numbers %}{{ loop.cycle('odd', 'even') }} {% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for n in tree recursive %}{{ n.v }}@{{ loop.depth }}{% if n.kids %}({{ loop(n.kids) }}){% endif %} "
    "{% endfor %}",
    "{% set x = 0 %}{% for i in range(3) %}{{ x }}{% set x = i + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in [1, 2] %}{% for j in [1, 2] %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }}{% "
    "endfor %}",
    "{% for x in numbers | sort if x != 2 %}{{ x }}{% else %}e{% endfor %}",
    // set, namespace, with
    "{% set x = 5 %}{{ x }} {% set a, b = 1, 2 %}{{ a }}{{ b }} {% set t = 1, 2 %}{{ t }}",
    "{% set ns = namespace(found=false, n=0) %}{% for x in numbers %}{% set ns.n = ns.n + x %}{% set "
    "ns.found = true %}{% endfor %}{{ ns.n }} {{ ns.found }} {{ ns.missing }}|",
    "{% set x %}  block {{ name }}\n{% endset %}[{{ x }}]",
    "{% set x | upper | trim %} up {{ name }} {% endset %}[{{ x }}]",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}|",
    "{% set a = 'out' %}{% with a = 'in', b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% if yes %}{% set x = 'leaks' %}{% endif %}{{ x }}",
    "{% set ns = namespace() %}{% set ns.x = [1] %}{% set ns.y = ns.x + [2] %}{{ ns.x }}{{ ns.y }}",
    "{% set d2 = dict(a=1, b=2) %}{{ d2 }} {{ dict([('x', 1)], y=2) }}",
    // macro, call, filter block, generation
    "{% macro m(a, b=2, c='x' ~ b) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, "
    "c=5) }} {{ m(b=1, a=0) }}",
    "{% macro m(a) %}[{{ a }}{{ a is defined }}]{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
    "{% macro box(t) %}<{{ t }}:{{ caller() }}>{% endmacro %}{% call box('h') %}body {{ name }}{% endcall %}",
    "{% macro each(xs) %}{% for x in xs %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}{% call(x, i) "
    "each(numbers) %}{{ i }}={{ x }};{% endcall %}",
    "{% macro fact(n) %}{{ 1 if n <= 1 else n * fact(n - 1) | int }}{% endmacro %}{{ fact(6) }}",
    "{% macro outer() %}{{ late }}{% endmacro %}{% set late = 'seen' %}{{ outer() }}",
    "{% set x = 1 %}{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}",
    "{% macro m(a, b) %}{% endmacro %}{{ m.name }}{{ m.arguments }}",
    "{% filter upper %}a {{ name }} b{% endfilter %}{% filter replace('a', 'b') | trim %} aaa {% endfilter "
    "%}",
    "{% generation %}said {{ name }}{% set z = 1 %}{% endgeneration %}{{ z }}|",
    "{% for x in numbers %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "{% print name, 1 %}",
    // filters
    "{{ name | upper }} {{ name | lower }} {{ 'hello WORLD' | capitalize }} {{ 'hello-world foo_bar (baz) "
    "it\\'s' | title }} {{ unicode | upper }} {{ unicode | lower }} {{ unicode | title }} {{ unicode | "
    "capitalize }}",
    "[{{ text | trim }}] [{{ text.strip() }}] [{{ text.lstrip() }}] [{{ text.rstrip() }}] [{{ 'xxaxx' | "
    "trim('x') }}] [{{ 'xyaxy'.strip('yx') }}] [{{ '\\u3000a\\xa0' | trim }}]",
    "{{ numbers | join(', ') }} {{ words | join }} {{ people | join('/', attribute='name') }} {{ [1, 'a', "
    "none] | join('-') }}",
    "{{ numbers | length }} {{ name | length }} {{ d | count }} {{ missing | length }}",
    "{{ missing | default('x') }} {{ '' | default('x') }}| {{ '' | default('x', true) }} {{ nothing | d('n') "
    "}} {{ no | d('f', boolean=true) }} {{ missing | default }}|",
    "{{ numbers | first }} {{ numbers | last }} {{ [] | first }}| {{ name | first }}{{ name | last }}",
    "{{ numbers | sort }} {{ numbers | sort(reverse=true) }} {{ words | sort }} {{ words | "
    "sort(case_sensitive=true) }} {{ people | sort(attribute='age,name') | map(attribute='name') | list }}",
    "{{ words | unique | list }} {{ words | unique(case_sensitive=true) | list }} {{ people | "
    "unique(attribute='age') | map(attribute='name') | list }} {{ [1, 1.0, true, 2] | unique | list }}",
    "{{ numbers | reverse | list }} {{ name | reverse }} {{ numbers | list }} {{ 'abc' | list }} {{ d | list "
    "}}",
    "{{ people | map(attribute='name') | join(',') }} {{ words | map('upper') | list }} {{ people | "
    "map(attribute='zip', default='?') | list }} {{ people[:2] | map(attribute='tags.0') | list | length }}",
    "{{ people | selectattr('age', 'equalto', 30) | map(attribute='name') | list }} {{ people | "
    "rejectattr('age', 'gt', 26) | map(attribute='name') | list }} {{ people | selectattr('tags') | list | "
    "length }} {{ people | selectattr('tags', 'defined') | list | length }}",
    "{{ numbers | select('odd') | list }} {{ numbers | reject('odd') | list }} {{ [0, 1, '', 'a'] | select | "
    "list }} {{ numbers | select('greaterthan', 1) | list }} {{ [1, 'a'] | select('string') | list }}",
    "{% if people | selectattr('age', 'equalto', 99) %}always{% endif %} {{ people | selectattr('age', "
    "'equalto', 99) | list | length }}",
    "{{ d | dictsort }} {{ {'B': 1, 'a': 2} | dictsort }} {{ {'B': 1, 'a': 2} | dictsort(true) }} {{ {'B': "
    "1, 'a': 2} | dictsort(by='value', reverse=true) }}",
    "{% for k, v in d | items %}{{ k }}:{{ v }} {% endfor %}{{ missing | items | list }}",
    "{{ d | tojson }} {{ people | tojson }} {{ quoted | tojson }} {{ unicode | tojson }} {{ big | tojson }} "
    "{{ none | tojson }} {{ [] | tojson }} {{ {} | tojson }}",
    "{{ d | tojson(indent=2) }} {{ [1, [2], {}] | tojson(indent=4) }} {{ d | tojson(separators=(',', ':')) "
    "}} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ unicode | tojson(ensure_ascii=true) }} {{ {1: 2, "
    "none: 3, true: 4, 1.5: 5} | tojson }}",
    "{{ '42' | int }} {{ '4.7' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ -3.9 | int }} "
    "{{ '0x1f' | int(base=16) }} {{ true | int }} {{ none | int }} {{ ' 12 ' | int }} {{ '1_000' | int }} {{ "
    "1e30 | int }} {{ '1e3' | int }}",
    "{{ '3.5' | float }} {{ 'x' | float }} {{ 'x' | float(1.5) }} {{ 3 | float }} {{ 'inf' | float }} {{ "
    "'-nan' | float }} {{ '1e5' | float }} {{ none | float }} {{ big | float }}",
    "{{ 42.55 | round }} {{ 42.55 | round(1) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 42 | round }} {{ 42.1 "
    "| round(0, 'ceil') }} {{ 42.9 | round(method='floor') }} {{ 1234 | round(-2) }} {{ 0.15 | round(1) }} "
    "{{ 2.675 | round(2) }} {{ 1.234 | round(2, 'ceil') }} {{ 1234.5 | round(-2) }}",
    "{{ -3 | abs }} {{ -2.5 | abs }} {{ numbers | sum }} {{ people | sum(attribute='age') }} {{ [0.1, 0.2] | "
    "sum }} {{ numbers | min }} {{ numbers | max }} {{ words | max }} {{ [] | max }}| {{ people | "
    "max(attribute='age') | tojson }}",
    "{{ name | replace('o', '0') }} {{ 'aaaa' | replace('a', 'b', 2) }} {{ 'ab' | replace('', '-') }} {{ 12 "
    "| replace(1, 'x') }}",
    "{{ lines | indent }}|{{ lines | indent(2, true) }}|{{ lines | indent(width=3, blank=true) }}|{{ 'a\nb' "
    "| indent('> ') }}",
    "{{ 'a long sentence that goes on' | truncate(12) }} {{ 'a long sentence that goes on' | truncate(12, "
    "true) }} {{ 'short' | truncate(5) }} {{ 'a long sentence' | truncate(9, false, '!', 0) }}",
    "[{{ 'x' | center(5) }}] [{{ 'ab' | center(5) }}] [{{ 'ab' | center(4) }}] [{{ 'abc' | center(6) }}]",
    "{{ '%s has %d (%05.2f) %r %x' | format('a', 3, 1.5, 'q', 255) }} {{ '%(a)s' | format(a=1) }} {{ '%s' % "
    "name }} {{ '%s-%s' % (1, 2) }} {{ '%-5s|%5s|%+d|%%' % ('a', 'b', 3) }} {{ '%e %g %.3s' % (12345.678, "
    "0.00001, 'abcdef') }}",
    "{{ html | escape }} {{ html | e }} {{ html | safe }} {{ 'a b/ü?' | urlencode }} {{ {'a': 'b c', 'd': "
    "'/'} | urlencode }} {{ 'two words, ünd drei' | wordcount }}",
    "{{ numbers | batch(2) | list }} {{ numbers | batch(2, 'x') | list }} {{ range(7) | slice(3) | list }} "
    "{{ range(7) | slice(3, 0) | list }}",
    "{% for g in people | groupby('age') %}{{ g.grouper }}:{{ g.list | length }} {% endfor %}{% for k, v in "
    "words | groupby('0') %}{{ k }}{{ v }}{% endfor %}",
    "{{ 5 | string ~ 'x' }} {{ 1.0 | string }} {{ none | string }} {{ [1, 'a'] | string }} {{ true | string "
    "| length }}",
    "{{ name | attr('upper') is callable }} {{ d | attr('b') }}|",
    // tests
    "{{ name is string }} {{ 1 is number }} {{ 1.0 is float }} {{ 1 is integer }} {{ true is integer }} {{ "
    "true is boolean }} {{ true is number }} {{ d is mapping }} {{ numbers is sequence }} {{ d is sequence "
    "}} {{ name is iterable }} {{ 1 is iterable }} {{ nothing is none }} {{ missing is defined }} {{ missing "
    "is undefined }} {{ name is not string }}",
    "{{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 "
    "is sameas 1 }} {{ yes is true }} {{ one is true }} {{ no is false }} {{ 2 is in numbers }} {{ 'abc' is "
    "lower }} {{ 'ABC' is upper }} {{ 3 is gt 2 }} {{ 3 is le(2) }} {{ range is callable }} {{ name is ne "
    "'x' }}",
    "{{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'defined' is test }} {{ (numbers | map('string')) is "
    "sequence }} {{ (numbers | map('string')) is iterable }} {{ d.b is defined and d.b is number }}",
    "{{ missing is none }} {{ missing == missing }} {{ missing is sequence }} {{ missing | list }} {{ "
    "missing ~ 'x' }} {{ not missing }} {{ missing is mapping }} {{ missing is string }}",
    // methods
    "{{ 'a,b,,c'.split(',') }} {{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ ' a b c '.split(none, "
    "1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b c'.rsplit(maxsplit=1) }} {{ ''.split() }} {{ ''.split(',') "
    "}} {{ '</t>x</t>y'.split('</t>')[-1] }}",
    "{{ name.startswith('Wo') }} {{ name.endswith('ld') }} {{ name.startswith(('x', 'W')) }} {{ "
    "name.startswith('o', 1) }} {{ name.endswith('or', 0, 3) }} {{ name.find('r') }} {{ name.find('z') }} {{ "
    "name.rfind('o') }} {{ name.index('l') }} {{ 'banana'.count('an') }} {{ 'ünü'.find('n') }} {{ "
    "'aaa'.count('') }}",
    "{{ name.upper() }} {{ name.lower() }} {{ 'aBc dEf'.title() }} {{ 'aBc'.swapcase() }} {{ \"they're "
    "bill's\".title() }} {{ 'ab'.capitalize() }} {{ name.replace('o', '0') }} {{ 'aaa'.replace('a', 'b', 1) "
    "}} {{ unicode.upper() }} {{ unicode.swapcase() }} {{ unicode.title() }}",
    "{{ '-'.join(['a', 'b']) }} {{ ', '.join(words) }} {{ lines.splitlines() }} {{ lines.splitlines(true) }} "
    "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }} {{ "
    "'abc'.rpartition('x') }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }}",
    "{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ ''.isspace() }} "
    "{{ 'AB1'.isupper() }} {{ 'ab1'.islower() }} {{ '1'.islower() }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} "
    "{{ 'a'.ljust(3) }}| {{ 'a'.rjust(3, '*') }} {{ 'ab'.center(5, '-') }} {{ 'é日'.isalpha() }}",
    "{{ '{} {}'.format(1, 'a') }} {{ '{1} {0}'.format('a', 'b') }} {{ '{x:>5}|{y:<4}|{z:^6}|'.format(x=1, "
    "y='a', z='mid') }} {{ '{:.2f} {:05d} {:,} {:x} {:#x} {:e} {:%}'.format(3.14159, 42, 1234567, 255, 255, "
    "12345.678, 0.25) }} {{ '{{}} {!r}'.format('q') }} {{ '{:+d} {: d} {:*^7}'.format(1, 2, 'c') }} {{ "
    "'{0.name} {0[age]}'.format({'name': 'n', 'age': 3}) if false else '' }}",
    "{{ [1, 2, 1].index(2) }} {{ [1, 2, 1].count(1) }} {{ (1, 2).count(2) }} {{ 1.5.is_integer() if false "
    "else '' }}{{ [1, 2, 3].copy() }} {{ d.copy() | length }} {{ 'a' 'b'.upper() }}",
    "{% set l = [1, 2, 3] %}{{ l.pop() }}{{ l }}{{ l.pop(0) }}{{ l }}",
    // globals
    "{{ range(3) | list }} {{ range(0) | list }} {% set j = joiner('; ') %}{% for x in numbers %}{{ j() }}{{ "
    "x }}{% endfor %} {% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}",
    "{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %B %Y') }}",
    // printing
    "{{ quoted }} {{ [quoted, \"it's\", 'say \"x\"', '\\n\\t'] }} {{ [unicode, '\\x7f\\xad'] }} {{ {'k': "
    "[none, {'x': ()}]} }}",
    "{{ nested }} {{ nested[1][1][0] }} {{ nested | tojson }}",
    "{{ 'a\\nb\\t\\x41\\u00e9\\101\\q\\\\' }}",
    "{{ (1 if yes) }} {{ [1, 2,] }} {{ {'a': 1,} }} {{ ((1)) }} {{ ('a', 'b')[0] }}",
    "{% set x = {'a': 1} %}{{ dict(x, b=2) }} {{ dict(**x) }} {{ 'x{a}'.format(**x) }} {{ '{}{}'.format(*[1, "
    "2]) }}",
    "{% for k, v in {'x': 1, 'y': 2}.items() if v > 1 %}{{ k }}{% endfor %}",
    "{{ numbers | map('string') | join }} {{ [[1, 2], [3]] | map('length') | list }} {{ [[3, 1], [2]] | "
    "map('first') | list }} {{ ['a', 'b'] | map('replace', 'a', 'z') | list }}",
};

TEST(Jinja, prints_what_python_prints) {
  std::vector<std::pair<std::string, Json>> cases;
  for (const std::string& source : kTemplates) cases.emplace_back(source, parse_json(kVariables));
  const std::vector<PythonResult> expected = render_with_python(cases);
  ASSERT_EQ(expected.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_FALSE(expected[i].failed) << "Python refuses " << cases[i].first << ": " << expected[i].text;
    if (expected[i].failed) continue;
    try {
      EXPECT_EQ(render(cases[i].first, cases[i].second), expected[i].text) << cases[i].first;
    } catch (const Error& e) {
      ADD_FAILURE() << cases[i].first << "\n  " << e.what() << "\n  Python: " << expected[i].text;
    }
  }
}

// What Python refuses, we refuse.
const std::vector<std::string> kRefused = {
    "{{ missing.x }}",
    "{{ missing() }}",
    "{{ missing + 1 }}",
    "{{ missing['a'] }}",
    "{{ missing < 1 }}",
    "{{ missing | int }}",
    "{{ missing | tojson }}",
    "{{ name + 1 }}",
    "{{ 1 + name }}",
    "{{ name() }}",
    "{{ 1 / 0 }}",
    "{{ 1 // 0 }}",
    "{{ 1 % 0 }}",
    "{{ 'a' < 1 }}",
    "{{ 1 in 2 }}",
    "{{ 1 in 'a' }}",
    "{% for x in 5 %}{% endfor %}",
    "{% set a, b = [1] %}",
    "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
    "{{ raise_exception('no') }}",
    "{{ numbers.append(4) }}",
    "{{ d.update({}) }}",
    "{{ d.pop('b') }}",
    "{{ numbers.sort() }}",
    "{{ range(1000000) }}",
    "{{ range(1, 2, 0) }}",
    "{{ name.index('zzz') }}",
    "{{ ''.join([1]) }}",
    "{{ 'a'.split('') }}",
    "{{ numbers | nofilter }}",
    "{{ 1 is notest }}",
    "{{ (numbers | map('string')) | length }}",
    "{{ 5 | length }}",
    "{{ d | map('nofilter') | list if true }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(z=1) }}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% set ns = 1 %}{% set ns.x = 2 %}",
    "{{ [1] < ['a'] }}",
    "{{ {[]: 1} }}",
    "{{ 'x' | round }}",
    "{{ [1, 'a'] | sort }}",
    "{{ name.upper(1) }}",
    "{{ '%d' % 'x' }}",
    "{{ '%s %s' % 1 }}",
    "{{ '{}'.format() }}",
    "{{ '%s' % (1, 2) }}",
    "{{ -name }}",
    "{{ {} | dictsort(by='x') }}",
    // syntax
    "{% if %}{% endif %}",
    "{% if x %}",
    "{{ x",
    "{% for x %}{% endfor %}",
    "{{ 1 +  }}",
    "{{ (1 }}",
    "{{ [1 }}",
    "{% endif %}",
    "{% nope %}",
    "{{ 'a }}",
    "{# open",
    "{% raw %}x",
    "{{ 1 is defined if yes else 2 }}",
    "{% set 1 = 2 %}",
    "{% set true = 2 %}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% break %}",
    "{{ a b }}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% from 'x' import y %}",
    "{% extends 'x' %}",
    "{{ x | }}",
    "{{ x is }}",
    "{{ a.'b' }}",
    "{% do 1 %}",
    "{{ f(a=1, 2) }}",
    "{% call x %}{% endcall %}",
    "{{ @ }}",
};

TEST(Jinja, refuses_what_python_refuses) {
  std::vector<std::pair<std::string, Json>> cases;
  for (const std::string& source : kRefused) cases.emplace_back(source, parse_json(kVariables));
  const std::vector<PythonResult> expected = render_with_python(cases);
  ASSERT_EQ(expected.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(expected[i].failed) << "Python accepts " << cases[i].first << ": " << expected[i].text;
    EXPECT_EQ(error_of(cases[i].first, cases[i].second).find("chat template line "), 0u)
        << cases[i].first << ": " << error_of(cases[i].first, cases[i].second)
        << "\n  Python: " << expected[i].text;
  }
}

TEST(Jinja, names_what_it_refuses_and_where) {
  EXPECT_EQ(error_of("a\n\n{% include 'x.html' %}"),
            "chat template line 3: 'include' is not supported: a chat template stands alone");
  EXPECT_EQ(error_of("{{ 1 }}\n{{ missing.name }}"), "chat template line 2: 'missing' is undefined");
  EXPECT_EQ(error_of("\n{% if true %}\n{{ raise_exception('roles must alternate') }}{% endif %}"),
            "chat template line 3: roles must alternate");
  EXPECT_EQ(error_of("{{ x | nope }}"), "chat template line 1: no filter named 'nope'");
}

TEST(Jinja, hostile_templates_end_with_an_error_soon) {
  const std::vector<std::string> hostile = {
      "{% for i in range(10000000000) %}{% endfor %}",
      "{{ range(10**10) }}",
      "{{ 'x' * 10**10 }}",
      "{{ [0] * 10**10 }}",
      "{{ 10 ** 10 ** 10 ** 10 ** 10 }}",
      "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
      "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% "
      "endfor %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ "
      "ns.s == ns.s }}{{ ns.s }}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(90000) %}{% set ns.s = [ns.s] %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(a) %}{{ m(a + [a]) }}{% endmacro %}{{ m([1]) }}",
      "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
      "{{ 'x'.ljust(10**9) }}",
      "{{ 'x'.zfill(10**9) }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
      "{{ (['a' * 100000] * 100000) | join }}",
      "{{ ('a' * 1000) | indent(10**9, true) }}",
      "{{ 'x' | center(10**9) }}",
      "{{ [1] | tojson(indent=10**9) }}",
      "{% set ns = namespace() %}{% for i in range(100000) %}{% set ns = namespace(p=ns) %}{% endfor %}ok{{ "
      "1 // 0 }}",
      "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
      "{{ ('ab' * 1000000).split('a') | length + ('ab' * 1000000).split('a') | length + ('ab' * "
      "1000000).split('b') | length + ('ab' * 4000000).split('b') | length }}",
      "{{ [1] | batch(10**9, 0) | list }}",
      "{{ [1] | slice(10**12) | list }}",
      "{{ '" + std::string(5000, '9') + "' | int }}",
      std::string(100000, '('),
      "{{ " + std::string(100000, '(') + " }}",
      "{{ " + std::string(100000, '[') + " }}",
      "{{ " + std::string(50000, '-') + "1 }}",
      "{{ 1" +
          [] {
            std::string s;
            for (int i = 0; i < 50000; ++i) s += "+1";
            return s;
          }() +
          " }}",
      "{{ x" +
          [] {
            std::string s;
            for (int i = 0; i < 50000; ++i) s += ".y";
            return s;
          }() +
          " }}",
      "{{ x" +
          [] {
            std::string s;
            for (int i = 0; i < 50000; ++i) s += "|abs";
            return s;
          }() +
          " }}",
      [] {
        std::string s;
        for (int i = 0; i < 50000; ++i) s += "{% if 1 %}";
        return s;
      }(),
      "{% set " + std::string(100000, '(') + " = 1 %}",
      "{{ " +
          [] {
            std::string s;
            for (int i = 0; i < 50000; ++i) s += "not ";
            return s;
          }() +
          "1 }}",
      "{{ 1" +
          [] {
            std::string s;
            for (int i = 0; i < 50000; ++i) s += " if 1 else 1";
            return s;
          }() +
          " }}",
      "{{ " + std::string(200000, '9') + " }}",
  };
  for (const std::string& source : hostile) {
    if (source[0] == '(') continue;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(error_of(source).find("chat template line "), 0u) << source.substr(0, 200) << "\n"
                                                                << error_of(source);
    EXPECT_LT(std::chrono::steady_clock::now() - start, test::patience(20)) << source.substr(0, 200);
  }
}

TEST(Jinja, what_refers_to_itself_is_freed) {  // the leak checker of the asan build decides
  render(
      "{% set ns = namespace() %}{% set ns.me = ns %}{% macro m() %}{{ m }}{% endmacro %}{% set ns.m = m %}"
      "{% for x in [1] %}{% set ns.l = loop %}{{ loop.changed(loop) }}{% endfor %}{{ m() | length > 0 }}",
      Json(Json::Object{}));
}

TEST(Jinja, marks_follow_the_bytes) {
  const JinjaBody body = parse_template(
      "<t>{{ x }}{{ x | upper }}{{ ('<' ~ x ~ '>') | replace('b', 'Q') }}{{ x[1:] }}{{ (x ~ ' y') | trim "
      "}}{{ [x] | tojson }}"
      "{{ '%s!' % x }}{{ '{}?'.format(x) }}{{ x.split('b')[0] }}{{ [x, 'z'] | join('-') }}{% set y %}[{{ x "
      "}}]{% endset %}{{ y | indent(1) }}"
      "{% macro m(v) %}({{ v }}){% endmacro %}{{ m(x) }}{{ [x] }}");
  JinjaInterpreter interpreter({}, 0);
  const JinjaText out = interpreter.render(body, {{"x", JinjaText("abc", false)}});
  std::string marked;
  for (size_t i = 0; i < out.size(); ++i) marked += out.trusted_at(i) ? out.view()[i] : '_';
  EXPECT_EQ(out.view(), "<t>abcABC<aQc>bcabc y[\"abc\"]abc!abc?aabc-z[abc](abc)['abc']");
  EXPECT_EQ(marked,
            "<t>______<_Q_>_____ y_______"
            "___!___?____-z[___](___)[_____]");
}

}  // namespace
}  // namespace quern
