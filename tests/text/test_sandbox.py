"""A checkpoint's template can neither leave its sandbox nor hold a thread for long."""

from datetime import datetime

import pytest

from service.errors import InvalidParameter
from service.text import sandbox
from service.text.chat_template import ChatTemplate


def render(source):
    return ChatTemplate(source, {}).render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ 'a' * 2000000000 }}",
        "{{ 2000000000 * [1] }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ 10 ** 10000000 }}",
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
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    ],
)
def test_a_template_that_would_not_end_is_stopped(monkeypatch, source):
    monkeypatch.setattr(sandbox, "MAX_RENDER_S", 0.05)
    with pytest.raises(InvalidParameter, match="takes longer"):
        render(source)


def test_a_prompt_that_grows_without_end_is_stopped(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_RENDERED_CHARS", 1000)
    with pytest.raises(InvalidParameter, match="more than 1000 characters"):
        render("{% for i in range(99999) %}xxxxxxxx{% endfor %}")


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{{ '%9999d' % 1 }}", " " * 9998 + "1"),
        ("{{ 2 ** 64 }}", str(2**64)),
        ("{{ 100000 ** 2 }}", "10000000000"),
        ("{{ 2 ** -1 }}", "0.5"),
        ("{{ -3 ** 2 }}", "9"),
        ("{{ 7 % 4 }}", "3"),
        ("{{ 3 * 4 }}", "12"),
        ("{{ 1.5 * 2 }}", "3.0"),
        ("{{ 'ab' * 3 }}{{ 3 * 'ab' }}", "ababab" * 2),
        ("{{ ([1] * 3) | length }}", "3"),
        ("{{ range(100000) | length }}", "100000"),
        ("{{ range(5)[1] }}{{ range(2, 9, 3) | list }}", "1[2, 5, 8]"),
    ],
)
def test_what_stays_within_the_limits_is_computed(source, rendered):
    assert render(source) == rendered


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ '%10000d' % 1 }}", "width"),
        ("{{ '%*d' % (5, 1) }}", "width"),
        ("{{ 2 ** 65 }}", "power"),
        ("{{ 2 ** -65 }}", "power"),
        ("{{ 100001 ** 2 }}", "power"),
        ("{{ -100001 ** 2 }}", "power"),
        ("{{ 'a' * 16777217 }}", "repetition"),
        ("{{ 16777217 * 'a' }}", "repetition"),
        ("{{ 'ab' * 8388609 }}", "repetition"),
        ("{{ [1] * 16777217 }}", "repetition"),
        ("{{ range(100001) | length }}", "range of more than 100000"),
    ],
)
def test_what_goes_beyond_a_limit_is_refused_with_the_limit(source, reason):
    with pytest.raises(InvalidParameter, match=reason):
        render(source)


def test_a_text_as_long_as_the_limit_is_rendered(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_RENDERED_CHARS", 1000)
    assert render("{% for i in range(100) %}{{ 'x' * 10 }}{% endfor %}") == "x" * 1000
    assert render("{{ 'x' * 1000 }}") == "x" * 1000
    with pytest.raises(InvalidParameter, match="more than 1000 characters"):
        render("{% for i in range(100) %}{{ 'x' * 10 }}{% endfor %}x")


def test_a_template_that_sleeps_between_two_outputs_is_stopped(monkeypatch):
    # No loop runs here: the time is looked at with each part of the output.
    monkeypatch.setattr(sandbox, "MAX_RENDER_S", -1.0)
    with pytest.raises(InvalidParameter, match="takes longer"):
        render("x")
    with pytest.raises(InvalidParameter, match="takes longer"):
        render("{% set n = namespace(sum=0) %}{% for i in range(3) %}{% set n.sum = i %}{% endfor %}")


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
