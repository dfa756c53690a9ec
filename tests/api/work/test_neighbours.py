"""What one client or one model makes long is waited for by itself alone."""

import threading

import anyio
import pytest

from service.api.http import call
from service.api.work.text_threads import MAX_TEXT_THREADS, TextThreads
from service.api.work.turns import Anyone
from tests.api.scripted_engine import MODEL, Service

pytestmark = pytest.mark.anyio
USER = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
NUM_RULES = 50
CHAIN = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(NUM_RULES)) + f'r{NUM_RULES} ::= "a"\n'


async def test_a_template_that_does_not_end_holds_the_threads_of_its_own_model_alone():
    threads, may_end, clients = TextThreads(), threading.Event(), [Anyone("one"), Anyone("two")]
    async with anyio.create_task_group() as group:
        for number in range(2 * MAX_TEXT_THREADS):
            looping = threads.of_model("looping")
            group.start_soon(lambda n=number, t=looping: threads.run(may_end.wait, client=clients[n % 2], turns=t))
        await anyio.wait_all_tasks_blocked()
        assert threads.of_model("looping").num_waiting
        with anyio.fail_after(30):
            assert await threads.run(lambda: 1, client=clients[0], turns=threads.of_model("other")) == 1
            assert await threads.run(lambda: 2, client=clients[0]) == 2
        may_end.set()
    threads.of_model("other")
    assert not threads.of_model("looping").num_taken


async def test_a_grammar_is_tried_elsewhere_once():
    service = Service()
    grammar = {"structured_outputs": {"grammar": 'root ::= "Hello" " world"'}}
    assert (await service.post("/v1/chat/completions", USER | grammar)).status_code == 200
    assert service.process.pid is not None
    service.process.end()
    assert (await service.post("/v1/chat/completions", USER | grammar)).status_code == 200
    assert service.process.pid is None


async def test_a_short_schema_is_compiled_at_once():
    service = Service()
    schema = {"structured_outputs": {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    assert (await service.post("/v1/chat/completions", USER | schema)).status_code == 200
    assert service.process.pid is None


@pytest.mark.slow
async def test_a_short_grammar_that_takes_long_is_refused_and_the_next_one_is_not(monkeypatch):
    """Its 800 bytes stand for a text of 2**50 letters."""
    monkeypatch.setattr(call, "GRAMMAR_PROCESSOR_S", 0.5)
    service = Service()
    refused = await service.post("/v1/chat/completions", USER | {"structured_outputs": {"grammar": CHAIN}})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "invalid_value", "structured_outputs")
    assert "took too long" in error["message"]
    schema = {"structured_outputs": {"regex": "Hello( world)?"}}
    assert (await service.post("/v1/chat/completions", USER | schema)).status_code == 200
