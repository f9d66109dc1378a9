#include "engine/text/jinja/template.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/json.h"
#include "tests/support/status_matchers.h"

namespace ebb::jinja {
namespace {

using ::testing::HasSubstr;

constexpr char kVariables[] =
    R"({"name": "Ada", "empty": "", "n": 7, "flag": true, "nothing": null, "word": "ünï", "list": [3, 1, 2],
        "people": [{"name": "Bo", "age": 3}, {"name": "al", "age": 40}, {"name": "Cy"}], "dict": {"b": 1, "a": "x"}})";

absl::StatusOr<Text> Render(const std::string& source, const Limits& limits = {}) {
  absl::StatusOr<Template> made = Template::Parse(source);
  if (!made.ok()) return made.status();
  std::vector<std::pair<std::string, Value>> variables;
  const absl::StatusOr<Value> values = FromJson(kVariables);
  for (const auto& [key, value] : values->dict()->entries()) variables.emplace_back(key.text()->bytes(), value);
  return made->Render(variables,
                      {.now = absl::FromCivil(absl::CivilDay(2026, 11, 9), absl::LocalTimeZone()), .limits = limits});
}

std::string Written(const std::string& source) {
  const absl::StatusOr<Text> text = Render(source);
  return text.ok() ? text->bytes() : "FAILED " + std::string(text.status().message());
}

struct Case {
  std::string source = {};
  std::string written = {};
};

void ExpectAll(const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(Written(c.source), c.written) << c.source;
}

// What stands at the right is Python's Jinja 3.1 with trim_blocks and lstrip_blocks.
TEST(Template, KeepsAndRemovesWhiteSpaceAsJinjaDoes) {
  ExpectAll({{"a\n", "a"},
             {"a\r\nb\n\n", "a\nb\n"},
             {"{% if flag %}\n  x\n{% endif %}\ny", "  x\ny"},
             {"  {% if flag %}x{% endif %}  y", "x  y"},
             {"a  {% if flag %}x{% endif %}", "a  x"},
             {"a \n\t {%- if flag -%} \n x \n {%- endif %}\n b", "ax b"},
             {"  {%+ if flag %}x{% endif +%}\ny", "  x\ny"},
             {"  {{ n }}\n{{- n -}}  b", "  77b"},
             {"a {#- gone -#} b", "ab"},
             {"  {# gone #}\nb", "b"},
             {"{% raw %}{{ n }}{% endraw %}", "{{ n }}"},
             {"{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}", "}}1"},
             {"{% generation %}x{% endgeneration %}", "x"}});
}

TEST(Template, HasPythonsPrecedence) {
  ExpectAll({{"{{ 1 + 2 * 3 ** 2 }}", "19"},
             {"{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** -1 }}", "-4 2 3.5 0.5"},
             {"{{ 'a' ~ 1 + 2 }}", "FAILED line 1: '+' does not join a string and a number"},
             {"{{ 1 ~ 2 * 3 }}", "16"},
             {"{{ not flag or n == 7 and 1 < 2 < 3 }}", "True"},
             {"{{ 'a' + name | lower + 'B' }}", "aadaB"},
             {"{{ not nothing is none }}", "False"},
             {"{{ 2 in list and 9 not in list and 'd' in name and 'a' in dict }}", "True"},
             {"{{ 'y' if empty else 'n' }}{{ 'x' if empty }}", "n"},
             {"{{ empty or name }}{{ flag and n }}", "Ada7"},
             {"{{ 'a' 'b' \"\\n\\x41\\u00e9\\q\" }}", "ab\nA\xC3\xA9\\q"},
             {"{{ 1_000 + 1.5e2 }}", "1150.0"},
             {"{{ (1, 'a') }}{{ [] }}{{ {'k': none} }}{{ 'it\\'s' | list }}",
              "[1, 'a'][]{'k': None}['i', 't', \"'\", 's']"}});
}

TEST(Template, LooksUpItemsAttributesAndSlices) {
  ExpectAll(
      {{"{{ people[0].name }}{{ people[-1]['name'] }}{{ dict.a }}{{ list.0 }}", "BoCyx3"},
       {"{{ word[1] }}{{ word[-1] }}{{ word[1:] }}{{ word[::-1] }}", "n\xC3\xAFn\xC3\xAF\xC3\xAFn\xC3\xBC"},
       {"{{ list[1:] }}{{ list[:-1] }}{{ list[::2] }}{{ list[::-1] }}{{ list[5:] }}", "[1, 2][3, 1][3, 2][2, 1, 3][]"},
       {"{{ missing }}{{ dict.missing }}{{ list[9] }}", ""},
       {"{{ missing.x }}", "FAILED line 1: what is undefined has no 'x'"},
       {"{{ missing | length }}{% for x in missing %}x{% else %}none{% endfor %}", "0none"}});
}

TEST(Template, LoopsAsJinjaDoes) {
  ExpectAll(
      {{"{% for x in list %}{{ loop.index }}/{{ loop.length }}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}",
        "1/33,2/31,3/32"},
       {"{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %}", "b=1;a=x;"},
       {"{% for x in list if x > 1 %}{{ loop.index0 }}{{ x }}{% endfor %}", "0312"},
       {"{% for x in [] %}x{% else %}none{% endfor %}", "none"},
       {"{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "32"},
       {"{% for x in list %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "3"},
       {"{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.revindex "
        "}}|{% endfor %}",
        "<3>1a3|3<1>2b2|1<2>a1|"},
       {"{% set x = 1 %}{% for y in list %}{% set x = x + y %}{{ x }}{% endfor %}{{ x }}", "4231"},
       {"{% set ns = namespace(x=1) %}{% for y in list %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}", "7"},
       {"{% for x in range(2, 8, 3) %}{{ x }}{% endfor %}{{ range(3) | list }}", "25[0, 1, 2]"},
       {"{% for a in [1,2] %}{% for b in [3] %}{{ loop.depth }}{% endfor %}{{ loop.index }}{% endfor %}", "1112"}});
}

TEST(Template, DefinesMacrosBlocksAndCalls) {
  ExpectAll(
      {{"{% macro hi(who, mark='!') %}Hi {{ who }}{{ mark }}{% endmacro %}{{ hi('Bo') }}{{ hi(mark='?', who='Al') }}",
        "Hi Bo!Hi Al?"},
       {"{% macro box() %}[{{ caller() }}]{% endmacro %}{% call box() %}x{% endcall %}", "[x]"},
       {"{% set x %}a{{ n }}{% endset %}{{ x | upper }}", "A7"},
       {"{% set x | upper | trim %} a {% endset %}{{ x }}", "A"},
       {"{% filter upper %}a{{ name }}{% endfilter %}", "AADA"},
       {"{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "3"},
       {"{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21"},
       {"{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"}});
}

TEST(Template, HasTheFilters) {
  ExpectAll(
      {{"{{ ' a ' | trim }}{{ 'xax' | trim('x') }}", "aa"},
       {"{{ list | length }}{{ word | count }}{{ dict | length }}", "332"},
       {"{{ list | join(', ') }}{{ people | join('/', attribute='name') }}", "3, 1, 2Bo/al/Cy"},
       {"{{ 'aB' | upper }}{{ 'ÄB' | lower }}{{ 'aB cD' | title }}{{ 'aB cD' | capitalize }}",
        "AB\xC3\xA4"
        "bAb CdAb cd"},
       {"{{ missing | default('x') }}{{ empty | d('y', true) }}{{ empty | default('z') }}", "xy"},
       {"{{ people | selectattr('age') | map(attribute='name') | list }}", "['Bo', 'al']"},
       {"{{ people | selectattr('age') | selectattr('age', 'gt', 3) | map(attribute='name') | first }}", "al"},
       {"{{ people | rejectattr('age', 'defined') | map(attribute='name') | last }}", "Cy"},
       {"{{ people | map(attribute='age', default=0) | list }}{{ ['a'] | map('upper') | list }}", "[3, 40, 0]['A']"},
       {"{{ list | select('odd') | list }}{{ list | reject('odd') | list }}", "[3, 1][2]"},
       {"{{ list | sort }}{{ list | sort(reverse=true) }}{{ people | sort(attribute='name') | map(attribute='name') | "
        "join }}",
        "[1, 2, 3][3, 2, 1]alBoCy"},
       {"{{ dict | items | list }}{{ dict | dictsort }}", "[['b', 1], ['a', 'x']][['a', 'x'], ['b', 1]]"},
       {"{{ 'a-b-c' | replace('-', '+') }}{{ 'aaa' | replace('a', 'b', 2) }}", "a+b+cbba"},
       {"{{ 'a\\nb\\n\\nc' | indent(2) }}|{{ 'a\\nb' | indent(1, true) }}", "a\n  b\n\n  c| a\n b"},
       {"{{ list | sum }}{{ list | min }}{{ list | max }}{{ [1, 1, 2] | unique | list }}{{ 'ab' | reverse }}",
        "613[1, 2]ba"},
       {"{{ '3' | int + 1 }}{{ 'x' | int(9) }}{{ 2.7 | int }}{{ '1.5' | float }}{{ -3 | abs }}{{ 2.5 | round }}{{ 1.25 "
        "| round(1) }}",
        "4921.532.01.2"},
       {"{{ n | string + 'x' }}{{ '<a>' | e }}{{ '<a>' | safe }}{{ '%s-%d' | format('a', 3) }}{{ 'a%s' % 1 }}",
        "7x&lt;a&gt;<a>a-3a1"}});
}

TEST(Template, WritesJsonAsPython) {
  ExpectAll(
      {{"{{ dict | tojson }}", R"({"b": 1, "a": "x"})"},
       {"{{ [1, 1.0, true, none, '\\n\"é<'] | tojson }}", "[1, 1.0, true, null, \"\\n\\\"\xC3\xA9<\"]"},
       {"{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}", "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"},
       {"{{ dict | tojson(separators=(',', ':'), sort_keys=true) }}", R"({"a":"x","b":1})"},
       {"{{ 'é🙂' | tojson(ensure_ascii=true) }}", R"("\u00e9\ud83d\ude42")"}});
}

TEST(Template, HasTheTests) {
  ExpectAll(
      {{"{{ missing is defined }}{{ missing is undefined }}{{ nothing is none }}", "FalseTrueTrue"},
       {"{{ n is number }}{{ n is integer }}{{ 1.0 is float }}{{ flag is boolean }}{{ flag is number }}",
        "TrueTrueTrueTrueTrue"},
       {"{{ name is string }}{{ dict is mapping }}{{ list is iterable }}{{ list is sequence }}{{ list is mapping }}",
        "TrueTrueTrueTrueFalse"},
       {"{{ 3 is odd }}{{ 3 is even }}{{ 6 is divisibleby 3 }}{{ 6 is not divisibleby(4) }}", "TrueFalseTrueTrue"},
       {"{{ n is eq 7 }}{{ n is equalto(8) }}{{ n is in [7] }}{{ 1 is lt 2 }}{{ 'A' is upper }}{{ raise_exception is "
        "callable }}",
        "TrueFalseTrueTrueTrueTrue"}});
}

TEST(Template, HasTheMethods) {
  ExpectAll(
      {{"{{ ' a '.strip() }}{{ 'xa'.lstrip('x') }}{{ 'ax'.rstrip('x') }}", "aaa"},
       {"{{ 'a,b,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a  b '.split() }}",
        "['a', 'b', 'c']['a', 'b,c']['a,b', 'c']['a', 'b']"},
       {"{{ name.startswith('A') }}{{ name.endswith(('x', 'da')) }}{{ name.upper() }}{{ 'a b'.title() }}",
        "TrueTrueADAA B"},
       {"{{ 'aXa'.replace('a', 'b') }}{{ 'a\\nb'.splitlines() }}{{ ','.join(['a', 'b']) }}", "bXb['a', 'b']a,b"},
       {"{{ 'a b'.split(none, 1) }}{{ ' a b c '.split(none, 1) }}{{ ' a b c '.rsplit(none, 1) }}{{ ' '.split() }}",
        "['a', 'b']['a', 'b c '][' a b', 'c'][]"},
       {"{{ 'a\\r\\n\\rb\\x1ec\\n'.splitlines() }}{{ \"don't x-y 3rd\".title() }}", "['a', '', 'b', 'c']Don'T X-Y 3Rd"},
       {"{{ dict.get('a') }}{{ dict.get('z') }}{{ dict.get('z', 3) }}{{ dict.keys() | list }}{{ dict.values() | list "
        "}}",
        "xNone3['b', 'a'][1, 'x']"},
       {"{{ word.find('ï') }}{{ 'aa'.count('a') }}{{ '12'.isdigit() }}{{ 'ab'.removeprefix('a') }}{{ list.index(2) }}",
        "22Trueb2"}});
}

// What Python counts as white space is more than ASCII's, and less than what looks like some.
TEST(Template, TrimsTheWhiteSpaceOfUnicode) {
  ExpectAll(
      {{"{{ '\u3000\u00A0\\x1fa\u2003b\u2028\u0085 ' | trim }}|{{ '\u2003a'.lstrip() }}|{{ 'a\u00A0 b'.split() }}",
        "a\u2003b|a|['a', 'b']"},
       {"{{ '\u200Ba\uFEFF' | trim }}", "\u200Ba\uFEFF"}});
}

// As the tools of a chat that has none are asked for what they are not.
TEST(Template, FindsNothingInWhatIsFalse) {
  ExpectAll(
      {{"{{ none | selectattr('a', 'equalto', 1) | list }}{{ none | reject | list }}{{ none | map('upper') | list }}",
        "[][][]"},
       {"{{ none | join }}", "FAILED line 1: none has no items to go through"}});
}

TEST(Template, MapsByAFilterOfAnyName) {
  ExpectAll({{"{{ ['a'] | map(filter='upper') }}{{ ['a'] | map('replace', 'a', 'b') }}", "['A']['b']"},
             {"{{ ['a'] | map(*(['map'] * 20000)) }}", "FAILED line 1: map: a map within a map is not known"}});
}

TEST(Template, NoByteThatIsNoCharacterIsWhiteSpace) {
  ExpectAll({{"{{ 'a\x80' | trim }}|{{ 'x\xC2y'.split() | length }}", "a\x80|1"}});
}

TEST(Template, SpreadsAListOverParameters) {
  ExpectAll({{"{% macro m(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2], c=3) }}{{ m(0, *[]) }}", "1230"},
             {"{{ m(*) }}", "FAILED line 1: expected an expression, found ')'"}});
}

TEST(Template, FillsPatternsOfTwoKinds) {
  ExpectAll(
      {{"{{ '{\"a\": \"%s\", \"b\": %d%%}' % ('x', 1) }}{{ '{%s}' | format('y') }}", "{\"a\": \"x\", \"b\": 1%}{y}"},
       {"{{ '{}%s{{1}}{0}{k}'.format('x', k='y') }}", "x%s{1}xy"},
       {"{{ '%05.2f' % 1 }}", "FAILED line 1: format: '%0' is not known; known: %s, %d, %%"},
       {"{{ '%s%s' % 'a' }}", "FAILED line 1: format: too few values"},
       {"{{ '{a' .format(1) }}", "FAILED line 1: format: a single '{'"},
       {"{{ '{a.b}'.format(1) }}", "FAILED line 1: format: there is no value for '{a.b}'"}});
}

TEST(Template, ALineEndsBehindRaw) { ExpectAll({{"{% raw %}\n a\n{% endraw %}\nb", "\n a\nb"}}); }

TEST(Template, AHeadlineIsNoTitle) { ExpectAll({{"{{ \"don't x-y (3rd) a_b\" | title }}", "Don't X-Y (3rd) A_b"}}); }

TEST(Template, TellsTheTimeItIsGiven) { ExpectAll({{"{{ strftime_now('%d %b %Y, %-d') }}", "09 Nov 2026, 9"}}); }

TEST(Template, NamesWhatItDoesNotKnowAndWhere) {
  ExpectAll({{"a\n{% block x %}",
              "FAILED line 2: there is no statement 'block'; known: if, for, break, continue, set, macro, call, "
              "filter, with, generation, raw"},
             {"{% if x %}", "FAILED line 1: expected {% endif %}, found the end of the template"},
             {"\n\n{{ x", "FAILED line 3: the tag {{ has no end }}"},
             {"{{ 'x }}", "FAILED line 1: a string has no end"},
             {"{{ x ! }}", "FAILED line 1: unexpected character '!'"},
             {"{{ a b }}", "FAILED line 1: expected }}, found 'b'"},
             {"{% break %}", "FAILED line 1: break outside of a loop"},
             {"\n{{ 1 + 'a' }}", "FAILED line 2: '+' does not join a number and a string"},
             {"{{ missing() }}", "FAILED line 1: 'missing' is undefined, which cannot be called"},
             {"{{ 1 // 0 }}", "FAILED line 1: division by zero"},
             {"{{ list.append(1) }}", "FAILED line 1: a list has no method 'append'"}});
  EXPECT_THAT(Written("{{ 1 | nope }}"), HasSubstr("there is no filter 'nope'; known: abs,"));
  EXPECT_THAT(Written("{{ 1 is nope }}"), HasSubstr("there is no test 'nope'; known: defined,"));
}

TEST(Template, RaisesWhatItWasAskedTo) {
  const auto raised = Render("{{ raise_exception('No ' + name) }}");
  EXPECT_EQ(raised.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(raised.status().message(), "No Ada");
}

TEST(Template, StopsWhereItWouldTakeTooLong) {
  const Limits few = {.work = 10'000, .output_bytes = 1000};
  for (const char* source :
       {"{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(900) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{{ 'ab' * 1000000000 }}", "{{ [1] * 1000000000 }}", "{% for i in range(999) %}{{ 'abcd' }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ range(100000000) }}"}) {
    EXPECT_EQ(Render(source, few).status().code(), absl::StatusCode::kFailedPrecondition) << source;
  }
  EXPECT_THAT(Written("{{ " + std::string(1000, '(') + "1" + std::string(1000, ')') + " }}"), HasSubstr("deeper than"));
  EXPECT_THAT(Written("{{ 1" + std::string(4000, '+') + "1 }}"), HasSubstr("deeper than"));
}

std::string Trusted(const std::string& source) {
  const absl::StatusOr<Text> text = Render(source);
  if (!text.ok()) return std::string(text.status().message());
  std::string trusted;
  for (size_t i = 0; i < text->size(); ++i) {
    if (text->origin(i) == Origin::kTemplate) trusted += text->bytes()[i];
  }
  return trusted;
}

TEST(Template, KnowsWhatACallerSaid) {
  for (const char* through : {"name",
                              "name | trim",
                              "name | upper",
                              "name ~ ''",
                              "name[1:]",
                              "name.split('d') | join",
                              "name | replace('d', name)",
                              "[name] | join",
                              "people | tojson",
                              "people",
                              "dict.items() | list",
                              "name | indent",
                              "'%s' | format(name)",
                              "name * 3",
                              "(name,)",
                              "n",
                              "name | reverse",
                              "name | title",
                              "name if flag else ''",
                              "dict | dictsort",
                              "people | map(attribute='name') | first",
                              "name.strip()",
                              "{'k': name}.k",
                              "name | list | sort | join"}) {
    EXPECT_EQ(Trusted("<{{ " + std::string(through) + " }}>"), "<>") << through;
  }
  EXPECT_EQ(Trusted("{{ '<|' + name + '|>' }}"), "<||>");
  EXPECT_EQ(Trusted("{% set x %}a{{ name }}b{% endset %}{{ x }}"), "ab");
}

}  // namespace
}  // namespace ebb::jinja
