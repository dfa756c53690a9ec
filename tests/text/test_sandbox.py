"""A checkpoint's template can neither leave its sandbox nor hold a thread for long."""

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
