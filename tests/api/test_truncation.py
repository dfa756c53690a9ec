"""`truncation: auto`: the oldest turns make room, whole, and it is told; never the instructions or the last turn."""

import pytest

from tests.api.scripted_engine import MODEL, TOKENIZER, tokens
from tests.api.test_response_tools import CLOSE, HEADER, prompt_of, service_of

pytestmark = pytest.mark.anyio

HEAD = [{"role": "developer", "content": "Be brief."}]


def turn(number):
    call_id = f"c{number}"
    return [
        {"role": "user", "content": f"question {number} " + "x" * 20},
        {"type": "function_call", "call_id": call_id, "name": "close_agent", "arguments": "{}"},
        {"type": "function_call_output", "call_id": call_id, "output": f"result {number}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]


def asked(*turns):
    items = [item for number in turns for item in turn(number)]
    return [*HEAD, *items, {"role": "user", "content": "last"}]


async def post(items, limit, **fields):
    service = service_of("y", max_model_len=limit)
    body = {"model": MODEL, "instructions": "Be kind.", "input": items} | fields
    return await service.post("/v1/responses", body), service


async def size_of(items):
    answer, service = await post(items, 10**6)
    assert answer.status_code == 200, answer.text
    return len(service.engine.last.request.prompt_ids)


@pytest.mark.parametrize("num_turns", [1, 2, 3, 9])
async def test_as_few_turns_as_make_room_are_dropped_and_told(num_turns):
    numbers = range(num_turns)
    for num_dropped in range(num_turns + 1):
        limit = await size_of(asked(*numbers[num_dropped:])) + 1
        answer, service = await post(asked(*numbers), limit, truncation="auto")
        assert answer.status_code == 200, answer.text
        assert answer.json()["truncation"] == "auto"
        _, whole = await post(asked(*numbers[num_dropped:]), 10**6)
        assert prompt_of(service) == prompt_of(whole)
        assert answer.headers.get(HEADER) == ("input" if num_dropped else None)
        if num_dropped:
            answer, _ = await post(asked(*numbers), limit)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


async def test_the_last_turn_is_never_dropped():
    limit = await size_of(asked())
    for room in (0, -3):
        answer, _ = await post(asked(1, 2), limit + room, truncation="auto")
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, "input", "context_length_exceeded")
    answer, _ = await post("a" * 100, 50, truncation="auto")
    assert answer.json()["error"]["param"] == "input"


async def test_a_result_is_never_left_without_its_call():
    user = {"role": "user", "content": "Meanwhile."}
    [first, made, result, reply] = turn(1)
    items = [first, made, user, result, reply, {"role": "user", "content": "last"}]
    limit = await size_of([user, reply, {"role": "user", "content": "last"}]) + 1 - len(tokens("\ndeveloper:Be brief."))
    answer, service = await post(items, limit + len(tokens("\ndeveloper:Be brief.")), truncation="auto")
    assert answer.status_code == 200, answer.text
    assert ("Meanwhile." in prompt_of(service), "result 1" in prompt_of(service)) == (True, False)


async def test_a_chat_may_ask_for_it_too():
    messages = [{"role": "user", "content": "x" * 300}, {"role": "assistant", "content": "y"}]
    service = service_of("y", max_model_len=100)
    last = {"role": "user", "content": "last"}
    body = {"model": MODEL, "messages": [*messages, last], "truncation": "auto"}
    answer = await service.post("/v1/chat/completions", body)
    assert (answer.status_code, answer.headers[HEADER]) == (200, "messages")
    assert TOKENIZER.decode(service.engine.last.request.prompt_ids) == "\nuser:last\nassistant:"


async def test_thousands_of_turns_are_cut_by_few_renderings():
    """In the process for long bodies, whose time is bounded."""
    items = [item for number in range(4000) for item in (turn(number)[0], turn(number)[3])]
    answer, service = await post([*items, {"role": "user", "content": "last"}], 4096, truncation="auto", tools=[CLOSE])
    assert (answer.status_code, answer.headers[HEADER]) == (200, "input")
    assert 4000 < len(service.engine.last.request.prompt_ids) < 4096
