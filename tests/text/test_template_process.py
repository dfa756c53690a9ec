"""A checkpoint's template in its own process: what it takes is bounded, and its end is one request's error."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from service.errors import InvalidParameter, MalformedCheckpoint, TemplateFailed, WorkerKilled
from service.text.chat_template import ChatTemplate
from service.text.sandbox import SandboxedTemplate
from service.text.template_process import TemplateProcess
from tests.processes import is_running
from tests.sockets import wait_until

ROOT = Path(__file__).parents[2]
DOUBLING = "{% set n = namespace(s='a') %}{% for i in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}"
ATTACKS = {
    "format": "{{ '%999999999d' | format(1) }}",
    "method": "{{ '{:>9999999999}'.format(1) }}",
    "ljust": "{{ 'a'.ljust(9999999999) }}",
    "center": "{{ x | center(9999999999) }}",
    "doubling": DOUBLING,
    "list": "{% set n = namespace(s=[]) %}{% for i in range(999) %}{% set n.s = n.s + range(9999)|list %}{% endfor %}",
    "lipsum": "{{ lipsum(n=999999999) }}",
    "repetition": "{{ x * 2000000000 }}",
    "power": "{{ (x | length) ** 100000000 }}",
    "width": "{{ '%1000000000d' % 1 }}",
    "output": "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "range": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested": "{% for i in range(99999) | list %}{% for j in range(99999) | list %}{% endfor %}{% endfor %}",
}
CASES = "".join(f"{{% elif x == '{name}' %}}{source}" for name, source in ATTACKS.items())
BEGIN = "{% if x == 'refuse' %}{{ raise_exception('no') }}{% elif x == 'break' %}{{ 1 / 0 }}"
END = "{% endif %}{{ x }}"


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


@pytest.fixture(scope="module")
def template():
    # Several times what an idle process has.
    return TemplateProcess(BEGIN + CASES + END, "here", "chat_template.jinja", memory_bytes=128 * 2**20, render_s=1.0)


def test_a_template_renders_and_refuses_as_it_does_in_this_process(template):
    here = SandboxedTemplate(BEGIN + END)
    assert here.variables == {"x"}
    assert template.variables == {"x", "n"}
    for x in ("hi", "é😀", "\ud800", "a" * 1_000_000, "", ["a", None, 1.5], {"b": True}):
        assert template.render({"x": x}) == here.render({"x": x})
    for rendering in (template, here):
        with pytest.raises(InvalidParameter, match=r"rejects these messages: no$"):
            rendering.render({"x": "refuse"})
        with pytest.raises(InvalidParameter, match=r"cannot render these messages \(ZeroDivisionError\)"):
            rendering.render({"x": "break"})


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_on_memory_or_time_ends_its_request_and_the_next_one_is_rendered(template, attack):
    with pytest.raises(TemplateFailed, match="took too"):
        template.render({"x": attack})
    assert template.render({"x": "alive"}) == "alive"


@pytest.mark.parametrize("has_compiled", [True, False])
def test_a_process_that_dies_is_replaced(has_compiled):
    before = children()
    template = TemplateProcess("{{ x }}", "here", "chat_template.jinja")
    if has_compiled:
        assert template.variables == {"x"}
    [pid] = children() - before
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerKilled):
        template.render({"x": "hi"})
    assert template.render({"x": "hi"}) == "hi"


def test_the_process_sees_no_environment_and_ends_with_its_template(monkeypatch):
    monkeypatch.setenv("API_KEY", "canary")
    before = children()
    template = ChatTemplate("{{ messages[0].content }}", {}, is_isolated=True)
    assert template.render([{"role": "user", "content": "hi"}]) == "hi"
    [pid] = children() - before
    environment = Path(f"/proc/{pid}/environ")
    assert not environment.exists() or b"canary" not in environment.read_bytes()
    del template
    gc.collect()
    assert pid not in children()


def test_a_process_ends_when_its_parent_is_gone():
    code = (
        "import os, psutil; from service.text.template_process import TemplateProcess\n"
        "template = TemplateProcess('x', 'here', 'file'); template.variables\n"
        "print(*[child.pid for child in psutil.Process().children()], flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    wait_until(lambda: not is_running(int(done.stdout)))


def test_a_template_that_does_not_compile_names_its_line_and_its_file():
    template = ChatTemplate("x\n{% for %}", {}, uri="gs://b/m", file="chat_template.json", is_isolated=True)
    with pytest.raises(MalformedCheckpoint, match=r"gs://b/m: chat_template\.json: line 2 of the chat template: "):
        template.wait()
    with pytest.raises(MalformedCheckpoint, match="nested too deeply"):
        ChatTemplate("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", {}, is_isolated=True).wait()


def test_a_template_that_ends_its_process_while_it_is_compiled_is_at_fault():
    before = children()
    template = ChatTemplate("x", {}, uri="gs://b/m", is_isolated=True)
    [pid] = children() - before
    os.kill(pid, signal.SIGABRT)
    with pytest.raises(MalformedCheckpoint, match=r"gs://b/m: chat_template\.jinja: the chat template took too long"):
        template.wait()


def test_a_process_that_is_killed_from_outside_while_it_compiles_is_replaced():
    before = children()
    template = ChatTemplate("{{ messages[0].content }}", {}, is_isolated=True)
    [pid] = children() - before
    os.kill(pid, signal.SIGKILL)
    template.wait()
    assert template.render([{"role": "user", "content": "hi"}]) == "hi"


def test_what_the_sandbox_refuses_is_the_requests_error():
    template = ChatTemplate("{{ ''.__class__.__mro__ }}", {}, is_isolated=True)
    with pytest.raises(InvalidParameter, match="unsafe"):
        template.render([{"role": "user", "content": "hi"}])


def test_constants_are_not_evaluated_in_this_process():
    template = TemplateProcess("{{ 'a' | center(9999999999) }}", "here", "file", memory_bytes=128 * 2**20)
    assert template.variables == set()
    with pytest.raises(TemplateFailed, match="memory"):
        template.render({})
