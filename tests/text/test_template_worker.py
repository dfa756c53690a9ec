"""A checkpoint's template in its own process: what it takes is bounded, and its end is one request's error."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from service.errors import InvalidParameter, MalformedCheckpoint, TemplateFailed
from service.text.chat_template import ChatTemplate
from service.text.sandbox import BrokenTemplate, SandboxedTemplate
from service.text.template_worker import TemplateWorker
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
    "nested": "{% for i in range(99999) | list %}{% for j in range(99999) | list %}{% endfor %}{% endfor %}",
}
CASES = "".join(f"{{% elif x == '{name}' %}}{source}" for name, source in ATTACKS.items())
BEGIN = "{% if x == 'refuse' %}{{ raise_exception('no') }}{% elif x == 'break' %}{{ 1 / 0 }}"
END = "{% endif %}{{ x }}"


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


@pytest.fixture(scope="module")
def worker():
    # Twice what an idle process has.
    return TemplateWorker(BEGIN + CASES + END, memory_bytes=128 * 1024 * 1024, render_s=0.5)


def test_a_template_renders_and_refuses_as_it_does_in_this_process(worker):
    here = SandboxedTemplate(BEGIN + END)
    assert here.variables == {"x"}
    assert worker.variables == {"x", "n"}
    for x in ("hi", "é😀", "\ud800", "a" * 1_000_000, "", ["a", None, 1.5], {"b": True}):
        assert worker.render({"x": x}) == here.render({"x": x})
    for template in (worker, here):
        with pytest.raises(TemplateError, match=r"^no$"):
            template.render({"x": "refuse"})
        with pytest.raises(BrokenTemplate, match=r"^ZeroDivisionError$"):
            template.render({"x": "break"})


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_on_memory_or_time_ends_its_request_and_the_next_one_is_rendered(worker, attack):
    with pytest.raises((TemplateFailed, TemplateError)) as caught:
        worker.render({"x": attack})
    if isinstance(caught.value, TemplateError):  # the sandbox was first
        assert attack == "nested"
    assert worker.render({"x": "alive"}) == "alive"


@pytest.mark.parametrize("has_compiled", [True, False])
def test_a_process_that_dies_is_replaced(has_compiled):
    before = children()
    worker = TemplateWorker("{{ x }}")
    if has_compiled:
        worker.wait()
    [pid] = children() - before
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(TemplateFailed, match="crashed"):
        worker.render({"x": "hi"})
    assert worker.render({"x": "hi"}) == "hi"


def test_the_process_sees_no_environment_and_ends_with_its_template(monkeypatch):
    monkeypatch.setenv("API_KEY", "canary")
    before = children()
    template = ChatTemplate("{{ messages[0].content }}", {}, compiled=TemplateWorker)
    assert template.render([{"role": "user", "content": "hi"}]) == "hi"
    [pid] = children() - before
    environment = Path(f"/proc/{pid}/environ")
    assert not environment.exists() or b"canary" not in environment.read_bytes()
    del template
    gc.collect()
    assert pid not in children()


def test_a_process_ends_when_its_parent_is_gone():
    code = (
        "import os, psutil; from service.text.template_worker import TemplateWorker\n"
        "worker = TemplateWorker('x'); worker.wait()\n"
        "print(*[child.pid for child in psutil.Process().children()], flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    wait_until(lambda: not is_running(int(done.stdout)))


def test_a_template_that_does_not_compile_names_its_line_and_its_file():
    with pytest.raises(TemplateSyntaxError) as caught:
        TemplateWorker("x\n{% for %}").wait()
    assert caught.value.lineno == 2
    template = ChatTemplate("{% for %}", {}, uri="gs://b/m", file="chat_template.json", compiled=TemplateWorker)
    with pytest.raises(MalformedCheckpoint, match=r"gs://b/m: chat_template\.json: line 1 of the chat template: "):
        template.wait()
    with pytest.raises(MalformedCheckpoint, match="nested too deeply"):
        ChatTemplate("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", {}, compiled=TemplateWorker).wait()


def test_what_the_sandbox_refuses_is_the_requests_error():
    template = ChatTemplate("{{ ''.__class__.__mro__ }}", {}, compiled=TemplateWorker)
    with pytest.raises(InvalidParameter, match="unsafe"):
        template.render([{"role": "user", "content": "hi"}])


def test_constants_are_not_evaluated_in_this_process():
    worker = TemplateWorker("{{ 'a' | center(9999999999) }}", memory_bytes=128 * 1024 * 1024)
    worker.wait()
    with pytest.raises(TemplateFailed, match="memory"):
        worker.render({})
