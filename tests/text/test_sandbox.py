"""A checkpoint's template cannot leave its sandbox, and has what transformers offers it."""

from datetime import datetime

import pytest

from service.errors import InvalidParameter
from service.text.chat_template import ChatTemplate


def render(source):
    return ChatTemplate(source, {}).render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ range(1000000000) | list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'x' %}",
        "{{ messages[0].role.foo.bar }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_a_hostile_or_broken_template_is_one_requests_error(source):
    with pytest.raises(InvalidParameter):
        render(source)


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ("", '{"b": "<é>", "a": [1, 2]}'),
        ("ensure_ascii=true", '{"b": "<\\u00e9>", "a": [1, 2]}'),
        ("sort_keys=true", '{"a": [1, 2], "b": "<é>"}'),
        ("separators=(',', ':')", '{"b":"<é>","a":[1,2]}'),
        ("indent=1", '{\n "b": "<é>",\n "a": [\n  1,\n  2\n ]\n}'),
    ],
)
def test_json_is_written_as_transformers_writes_it(arguments, rendered):
    assert render("{{ {'b': '<é>', 'a': [1, 2]} | tojson(" + arguments + ") }}") == rendered


def test_loops_may_be_left_and_continued():
    assert render("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}") == "0234"
    assert render("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"


def test_the_text_after_a_generation_block_follows_it():
    assert render("a{% generation %}b{% if true %}c{% endif %}{% endgeneration %}d") == "abcd"


def test_a_date_has_the_format_that_the_template_wants():
    assert render("{{ strftime_now('%d-%m') }}") == datetime.now().strftime("%d-%m")
