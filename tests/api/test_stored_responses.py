"""Responses with a memory, through OpenAI's client: kept, continued, listed, deleted, made in the background."""

import asyncio
import contextlib
import gzip
import json
import threading

import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError

from service.api.memory.store import TOMBSTONE, ResponseStore
from service.engine.request import FinishReason
from service.errors import Draining
from service.server.connection import Connection
from service.storage.folder_store import FolderStore
from service.text.chat_template import ChatTemplate
from tests.api.answer_types import as_typed
from tests.api.scripted_engine import MAX_MODEL_LEN, MODEL, STALL, TOKENIZER, Service, tokens
from tests.api.test_tools import SCHEMA
from tests.sockets import served

pytestmark = pytest.mark.anyio

WEATHER = {"type": "function", "name": "weather", "parameters": SCHEMA}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm 🌍"}}\n</tool_call>'
THOUGHT_AND_CALL = f"<think>\nHm. 🌍\n</think>\n\nWait.{CALL}"
# Everything that items can hold is in the prompt.
TEMPLATE = ChatTemplate(
    "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{% endfor %}<assistant>",
    TOKENIZER.special_tokens,
)
HELLO = "Hello world"
ONE, TWO = "sk-one", "sk-two"
UNKNOWN = "resp_" + "0" * 44


class RecordingStore(FolderStore):
    """A folder that notes what it is asked for, and fails or waits if told to."""

    def __init__(self, path):
        super().__init__(path)
        self.calls = []
        self.failure = None
        self.may_write, self.is_writing = threading.Event(), threading.Event()
        self.may_write.set()

    def read(self, name):
        self._note("read", name)
        return super().read(name)

    def write(self, name, content, **options):
        self._note("write", name)
        if content != TOMBSTONE:
            self.is_writing.set()
            assert self.may_write.wait(20)
        return super().write(name, content, **options)

    def delete(self, name):
        self._note("delete", name)
        super().delete(name)

    def _note(self, call, name):
        self.calls.append((call, len(name)))
        if self.failure is not None:
            raise self.failure


def responses_in(store, *, lifetime_s=3600.0, max_bytes=10**7, max_conversation_bytes=10**6):
    return ResponseStore(
        store, lifetime_s=lifetime_s, max_bytes=max_bytes, max_conversation_bytes=max_conversation_bytes
    )


class RememberingService(Service):
    """A service that keeps responses in a folder, with a script for each of its answers in turn."""

    def __init__(self, place, *texts, limits=None, **settings):
        self.store = place if isinstance(place, FolderStore) else RecordingStore(place)
        self.responses = responses_in(self.store, **(limits or {}))
        model = {"chat_template": TEMPLATE, "max_model_len": 4096} | settings.pop("model", {})
        super().__init__(script_of(HELLO), responses=self.responses, model=model, **settings)
        self.texts = list(texts)

    def api(self, key="none"):
        return AsyncOpenAI(api_key=key, base_url="http://test/v1", http_client=self.client(), max_retries=0)

    async def create(self, key="none", **fields):
        if self.texts:
            self.engine.script = script_of(self.texts.pop(0))
        return await self.api(key).responses.create(**({"model": MODEL, "input": "hi"} | fields))

    async def stream(self, **fields):
        return [event async for event in await self.create(stream=True, **fields)]

    @property
    def prompt(self):
        """The token ids of the last request."""
        return self.engine.last.request.prompt_ids

    def names(self):
        """The ids of what is kept; of what was deleted, a tombstone is left."""
        names = [name for name in self.store.list("") if not name.startswith("claims/")]
        return [name.rpartition("/")[2] for name in names if self.store.read(name) != TOMBSTONE]


def script_of(text):
    return [*tokens(text), FinishReason.STOP]


def sent_back(response):
    """The items of an answer as a stateless client sends them."""
    return [item.to_dict() for item in response.output]


@pytest.fixture
def service(tmp_path):
    return RememberingService(tmp_path / "responses")


async def missing(call):
    with pytest.raises(NotFoundError) as refused:
        await call
    return refused.value.body


async def refused(call):
    with pytest.raises(BadRequestError) as refusal:
        await call
    return refusal.value.body


async def test_a_response_is_kept_unless_it_is_not_to_be(service):
    response = await service.create(metadata={"a": "b"}, instructions="Be brief.")
    assert response.to_dict()["store"] is True
    assert (await service.api().responses.retrieve(response.id)).to_dict() == response.to_dict()
    unkept = await service.create(store=False)
    assert unkept.to_dict()["store"] is False
    assert (await missing(service.api().responses.retrieve(unkept.id)))["code"] == "not_found"
    assert service.names() == [response.id]


async def test_a_stream_is_kept_before_it_is_complete(service):
    service.store.may_write.clear()
    texts = []
    async with at_a_port(service) as api:
        async for event in await api.create(model=MODEL, input="hi", stream=True):
            if event.type == "response.output_item.done":  # everything but the end has come
                assert await asyncio.to_thread(service.store.is_writing.wait, 20)
                assert service.names() == []
                service.store.may_write.set()
            texts += [event.delta] if event.type == "response.output_text.delta" else []
            last = event
    assert "".join(texts) == HELLO
    assert (last.type, last.response.to_dict()["store"]) == ("response.completed", True)
    assert (await service.api().responses.retrieve(last.response.id)).to_dict() == last.response.to_dict()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_turn_that_continues_a_response_has_the_prompt_of_the_same_items_sent_in_full(service, is_streamed):
    """With thinking, tool calls and results in them, so that the prefix cache finds the turn before."""
    service.texts = [THOUGHT_AND_CALL, "Sun.", "Ulm."]
    asked = {"role": "user", "content": [{"type": "input_text", "text": "Weather? 🌍"}]}
    first = await service.create(input=[asked], tools=[WEATHER])
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "17 degrees"}

    async def turn(**fields):
        if is_streamed:
            return (await service.stream(**fields))[-1].response
        return await service.create(**fields)

    second = await turn(previous_response_id=first.id, input=[result], tools=[WEATHER], instructions="Be brief.")
    assert (second.previous_response_id, second.output_text) == (first.id, "Sun.")
    remembered = service.prompt
    history = [asked, *sent_back(first), result]
    await service.create(input=history, tools=[WEATHER], instructions="Be brief.", store=False)
    assert service.prompt == remembered
    third = await turn(previous_response_id=second.id, input="Where?")
    remembered = service.prompt
    assert "Be brief." not in TOKENIZER.decode(remembered)  # instructions are those of one request
    history += [*sent_back(second), {"role": "user", "content": "Where?"}]
    await service.create(input=history, store=False)
    assert service.prompt == remembered
    assert third.usage.input_tokens == len(remembered)


async def test_two_turns_may_continue_the_same_response(service):
    first = await service.create(input="a")
    branches = [await service.create(previous_response_id=first.id, input=text) for text in ("b", "c")]
    for branch, text in zip(branches, ("b", "c"), strict=True):
        items = [item async for item in service.api().responses.input_items.list(branch.id, order="asc")]
        assert [item.content[0].text for item in items] == ["a", HELLO, text]


async def test_a_long_conversation_is_worked_on_like_a_long_body(service):
    text = "long " * 8000
    long = RememberingService(service.store, model={"max_model_len": 60_000})
    first = await long.create(input=text)
    second = await long.create(previous_response_id=first.id, input="and?")
    assert long.process.pid is not None
    remembered = long.prompt
    await long.create(input=[{"role": "user", "content": text}, *sent_back(first), {"role": "user", "content": "and?"}])
    assert long.prompt == remembered
    items = [item async for item in long.api().responses.input_items.list(second.id, order="asc")]
    assert [item.content[0].text for item in items] == [text, HELLO, "and?"]
    long.process.end()


async def test_items_are_listed_in_pages(service):
    first = await service.create(input=[{"role": "user", "content": str(i)} for i in range(25)])
    items = service.api().responses.input_items
    newest = await items.list(first.id)
    assert [item.content[0].text for item in newest.data] == [str(i) for i in range(24, 4, -1)]
    assert (newest.has_more, newest.last_id) == (True, newest.data[-1].id)
    assert [item.content[0].text async for item in items.list(first.id, limit=7)] == [str(i) for i in range(24, -1, -1)]
    page = await items.list(first.id, order="asc", limit=3, after=(await items.list(first.id, order="asc")).data[1].id)
    assert [item.content[0].text for item in page.data] == ["2", "3", "4"]
    assert (await refused(items.list(first.id, after="msg_0")))["param"] == "after"
    assert (await refused(items.list(first.id, limit=101)))["param"] == "limit"
    assert (await missing(items.list(UNKNOWN)))["param"] == "response_id"


async def test_a_deleted_response_is_gone_and_those_that_continue_it_are_whole(service):
    first = await service.create(input="a")
    second = await service.create(previous_response_id=first.id, input="b")
    await service.api().responses.delete(first.id)
    await missing(service.api().responses.retrieve(first.id))
    await missing(service.api().responses.delete(first.id))
    assert (await refused(service.create(previous_response_id=first.id)))["code"] == "previous_response_not_found"
    await service.create(previous_response_id=second.id, input="c")
    assert TOKENIZER.decode(service.prompt).endswith(
        f"<user>a<assistant>{HELLO}<user>b<assistant>{HELLO}<user>c<assistant>"
    )


async def test_another_keys_response_is_as_unknown_as_one_that_never_was(tmp_path):
    service = RememberingService(tmp_path, api_keys=(ONE, TWO))
    response = await service.create(ONE)
    assert (await service.api(ONE).responses.retrieve(response.id)).id == response.id

    async def asked(call):
        service.store.calls.clear()
        with pytest.raises((NotFoundError, BadRequestError)) as refusal:
            await call
        body = refusal.value.body
        return refusal.value.status_code, body["code"], body["param"], list(service.store.calls)

    api = service.api(TWO).responses
    for call in (
        api.retrieve, api.delete, api.cancel, api.input_items.list,
        lambda response_id: service.create(TWO, previous_response_id=response_id),
    ):  # fmt: skip
        of_another = await asked(call(response.id))
        assert of_another == await asked(call(UNKNOWN))
        assert [kind for kind, _ in of_another[-1]] == ["read"]
    assert (await service.api(ONE).responses.retrieve(response.id)).id == response.id


@pytest.mark.parametrize("name", ["resp_1", "..%2f..%2fetc", UNKNOWN[:-1] + "G", "x" * 5000])
async def test_an_id_of_another_form_reads_nothing(service, name):
    async with service.client() as client:
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
            answer = await client.request(method, f"/v1/responses/{name}{path}", json={} if method == "POST" else None)
            assert answer.status_code == 404
    assert (await refused(service.create(previous_response_id=name[:256])))["param"] == "previous_response_id"
    assert service.store.calls == []


@pytest.mark.parametrize("operation", ["compact", "input_tokens"])
async def test_an_operation_that_is_not_served_has_no_route(service, operation):
    answer = await service.post(f"/v1/responses/{operation}", {"model": MODEL, "input": "hi"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), PermissionError(13, "read-only")])
async def test_an_answer_that_cannot_be_kept_is_given_and_says_so(service, failure):
    first = await service.create()
    service.store.failure = failure
    answer = await service.post("/v1/responses", {"model": MODEL, "input": "hi"})
    assert (answer.status_code, answer.json()["store"]) == (200, False)
    assert answer.headers["x-levserve-ignored"] == "store"
    assert (await service.stream())[-1].response.to_dict()["store"] is False
    for call in (service.create(previous_response_id=first.id), service.api().responses.retrieve(first.id)):
        with pytest.raises(InternalServerError) as unavailable:
            await call
        assert (unavailable.value.status_code, unavailable.value.body["code"]) == (503, "responses_unavailable")
    with pytest.raises(InternalServerError):
        await service.create(background=True)
    service.store.failure = None
    assert (await service.create(previous_response_id=first.id)).to_dict()["store"] is True


async def test_with_strict_fields_an_answer_that_cannot_be_kept_is_given_too(tmp_path):
    service = RememberingService(tmp_path, strict_fields=True)
    service.store.failure = OSError("gone")
    assert (await service.create()).to_dict()["store"] is False


async def test_a_damaged_object_is_an_error_of_the_server_and_not_of_the_process(service):
    response = await service.create()
    [name] = service.store.list("")
    service.store.write(name, b"no gzip")
    with pytest.raises(InternalServerError):
        await service.api().responses.retrieve(response.id)


async def test_without_a_store_nothing_is_promised():
    service = Service()
    answer = await service.post("/v1/responses", {"model": MODEL, "input": "hi"})
    assert (answer.json()["store"], "x-levserve-ignored" in answer.headers) == (False, False)
    answer = await service.post("/v1/responses", {"model": MODEL, "input": "hi", "store": True})
    assert (answer.json()["store"], answer.headers["x-levserve-ignored"]) == (False, "store")
    for field in ({"previous_response_id": "resp_1"}, {"background": True}):
        answer = await service.post("/v1/responses", {"model": MODEL, "input": "hi"} | field)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", *field)
    async with service.client() as client:
        path = f"/v1/responses/{answer.json().get('id', 'resp_' + '0' * 40)}"
        assert [(await client.request(method, path)).status_code for method in ("GET", "DELETE")] == [404, 404]


async def test_what_a_batch_asks_is_not_kept(tmp_path):
    from tests.api.batch.running import request_line, running

    responses = responses_in(RecordingStore(tmp_path / "responses"))
    async with running(tmp_path / "batches", script_of(HELLO), responses=responses) as service:
        lines = [request_line("a", "/v1/responses", store=True)]
        batch = await service.begin(lines, endpoint="/v1/responses")
        done = await service.until(batch["id"], "completed")
        [line] = (await service.lines_of(done["output_file_id"])).values()
    assert line["response"]["body"]["store"] is False
    assert not (tmp_path / "responses").exists()


async def test_a_response_ends_with_its_lifetime(tmp_path):
    service = RememberingService(tmp_path, limits={"lifetime_s": 3600})
    response = await service.create()
    later = RememberingService(service.store, limits={"lifetime_s": -3602})
    await missing(later.api().responses.retrieve(response.id))
    assert (await refused(later.create(previous_response_id=response.id)))["code"] == "previous_response_not_found"
    kept = await later.create(store=True)
    await swept(later)
    assert response.id not in later.names()
    assert kept.to_dict()["store"] is True


async def test_the_oldest_responses_make_room_for_new_ones(tmp_path):
    service = RememberingService(tmp_path, limits={"max_bytes": 16_000})
    made = []
    for number in range(60):
        made.append(
            (await service.create(input=f"{number} " + "".join(chr(0x4E00 + number * 97 + i) for i in range(97)))).id
        )
        await swept(service)
        assert sum(service.store.list("").values()) <= 16_000 + 2_000
    left = service.names()
    assert 5 < len(left) < 60
    assert made[-1] in left
    assert made[0] not in left


async def test_a_response_larger_than_all_may_be_is_not_kept(tmp_path):
    service = RememberingService(tmp_path, limits={"max_bytes": 100})
    assert (await service.create()).to_dict()["store"] is False
    assert service.names() == []


async def swept(service):
    """Wait for the deletion of old responses, if it goes on."""
    if (sweeping := service.responses.sweeping) is not None:
        await sweeping


async def test_a_conversation_that_is_too_long_is_refused(tmp_path):
    service = RememberingService(tmp_path, model={"max_model_len": MAX_MODEL_LEN})
    first = await service.create(input="x" * 150)
    error = await refused(service.create(previous_response_id=first.id, input="y" * 150))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    small = RememberingService(service.store, limits={"max_conversation_bytes": 300})
    error = await refused(small.create(previous_response_id=first.id, input="y" * 150))
    assert error["param"] == "previous_response_id"
    assert "summary" in error["message"]


async def test_a_result_needs_a_call_in_the_input_or_in_what_it_continues(service):
    first = await service.create()
    result = {"type": "function_call_output", "call_id": "call_1", "output": "1"}
    error = await refused(service.create(previous_response_id=first.id, input=[result]))
    assert error["param"] == "input[0].call_id"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "stream": True}, "stream"),
        ({"background": True, "store": False}, "background"),
        ({"extra_body": {"conversation": "conv_1"}}, "conversation"),
    ],
)
async def test_what_cannot_be_kept_together_is_refused_by_name(service, fields, param):
    assert (await refused(service.create(**fields)))["param"] == param
    assert service.names() == []


async def test_a_response_is_not_streamed_again(service):
    response = await service.create()
    assert (await refused(service.api().responses.retrieve(response.id, stream=True)))["param"] == "stream"


async def test_a_response_that_is_deleted_while_it_streams_is_not_kept(service):
    service.store.may_write.clear()
    async with at_a_port(service) as api:
        async for event in await api.create(model=MODEL, input="hi", stream=True):
            if event.type == "response.created":
                found = await api.retrieve(event.response.id)
            if event.type == "response.output_item.done":
                assert await asyncio.to_thread(service.store.is_writing.wait, 20)
                await api.delete(found.id)
                service.store.may_write.set()
            last = event
        assert found.status == "in_progress"
        assert (last.type, last.response.to_dict()["store"]) == ("response.completed", False)
        await missing(api.retrieve(found.id))
    assert service.names() == []


async def test_only_what_is_made_in_the_background_is_cancelled(service):
    response = await service.create()
    assert (await refused(service.api().responses.cancel(response.id)))["param"] == "response_id"


@contextlib.asynccontextmanager
async def at_a_port(service):
    """Serve an app on a port, since the answer to a request in the background comes before its work is done."""
    with served(service.app, Connection) as server:
        host, port = server.address
        async with AsyncOpenAI(api_key="none", base_url=f"http://{host}:{port}/v1", max_retries=0) as client:
            yield client.responses


async def until(api, response_id, *statuses):
    while (response := await api.retrieve(response_id)).status not in statuses:
        assert response.status in ("queued", "in_progress"), response
        await asyncio.sleep(0.01)
    return response


async def test_a_response_in_the_background_is_asked_for_until_it_is_complete(service):
    async with at_a_port(service) as api:
        service.engine.script = [STALL]
        begun = await api.create(model=MODEL, input="hi", background=True)
        early = await refused(api.create(model=MODEL, input="x", previous_response_id=begun.id))
        assert early["param"] == "previous_response_id"
        await api.cancel(begun.id)
        service.engine.script = script_of(HELLO)
        queued = await api.create(model=MODEL, input="hi", background=True)
        assert (queued.status, queued.background, queued.output) == ("queued", True, [])
        done = await until(api, queued.id, "completed")
        assert (done.output_text, done.usage.output_tokens, done.id) == (HELLO, len(tokens(HELLO)), queued.id)
        assert (await api.cancel(queued.id)).status == "completed"
        again = await api.create(model=MODEL, input="and?", previous_response_id=queued.id)
    assert again.output_text == HELLO
    assert TOKENIZER.decode(service.prompt).endswith(f"<user>hi<assistant>{HELLO}<user>and?<assistant>")


async def test_a_request_that_is_at_fault_is_refused_at_once_in_the_background_too(service):
    async with at_a_port(service) as api:
        error = await refused(api.create(model=MODEL, input="x" * 5000, background=True))
    assert error["code"] == "context_length_exceeded"
    assert service.names() == []


async def test_a_response_in_the_background_is_cancelled_with_what_it_has(service):
    service.engine.script = [*tokens("Hello"), STALL]
    async with at_a_port(service) as api:
        queued = await api.create(model=MODEL, input="hi", background=True)
        await until(api, queued.id, "in_progress")
        cancelled = await api.cancel(queued.id)
        assert cancelled.status == "cancelled"
        assert (await api.retrieve(queued.id)).to_dict() == cancelled.to_dict()
        assert (await api.cancel(queued.id)).status == "cancelled"
    assert service.engine.last.is_aborted


async def test_a_response_that_is_cancelled_while_its_progress_is_written_stays_cancelled(service, monkeypatch):
    service.engine.script = [*tokens("Hello"), STALL]
    write, is_writing, may_write = service.store.write, threading.Event(), threading.Event()

    def write_progress_late(name, content, **options):
        if b'"in_progress"' in gzip.decompress(content).partition(b"\n")[0]:
            is_writing.set()
            assert may_write.wait(20)
        return write(name, content, **options)

    monkeypatch.setattr(service.store, "write", write_progress_late)
    async with at_a_port(service) as api:
        queued = await api.create(model=MODEL, input="hi", background=True)
        assert await asyncio.to_thread(is_writing.wait, 20)
        cancelling = asyncio.create_task(api.cancel(queued.id))
        await asyncio.wait([cancelling], timeout=0.5)
        may_write.set()
        assert (await cancelling).status == "cancelled"
        assert (await api.retrieve(queued.id)).status == "cancelled"


async def test_a_response_in_the_background_that_is_deleted_ends(service):
    service.engine.script = [STALL]
    async with at_a_port(service) as api:
        queued = await api.create(model=MODEL, input="hi", background=True)
        await api.delete(queued.id)
        while service.responses.live:
            await asyncio.sleep(0.01)
        await missing(api.retrieve(queued.id))
    assert (service.names(), service.engine.last.is_aborted) == ([], True)


async def test_another_instance_shows_and_cancels_what_is_made_in_the_background(service, monkeypatch):
    monkeypatch.setattr("service.api.memory.memory.LOOK_INTERVAL_S", 0.05)
    service.engine.script = [STALL]
    other = RememberingService(service.store).api().responses
    async with at_a_port(service) as api:
        queued = await api.create(model=MODEL, input="hi", background=True)
        assert (await other.retrieve(queued.id)).status == "queued"
        assert (await other.cancel(queued.id)).status == "cancelled"
        while service.responses.live:
            await asyncio.sleep(0.01)
        assert (await api.retrieve(queued.id)).status == "cancelled"
    assert service.engine.last.is_aborted


@pytest.mark.parametrize(
    ("failure", "code"), [(Draining(), "server_error"), (RuntimeError("no"), "server_error")], ids=["drain", "fault"]
)
async def test_a_response_in_the_background_that_fails_says_so(service, failure, code):
    service.engine.script = [*tokens("Hel"), failure]
    async with at_a_port(service) as api:
        queued = await api.create(model=MODEL, input="hi", background=True)
        failed = await until(api, queued.id, "failed")
    assert failed.error.code == code
    assert failed.error.message
    stored = await RememberingService(service.store).api().responses.retrieve(queued.id)
    assert stored.to_dict() == failed.to_dict()


async def test_a_response_whose_instance_was_killed_has_failed_on_every_route(tmp_path):
    service = RememberingService(tmp_path)
    service.engine.script = [STALL]
    other = RememberingService(FolderStore(tmp_path))
    async with at_a_port(service) as api:
        queued = await api.create(model=MODEL, input="hi", background=True)
        assert (await other.api().responses.retrieve(queued.id)).status in ("queued", "in_progress")
        [claim] = service.store.list("claims")
        (tmp_path / claim).unlink()  # as if its process had ended
        continued = await other.create(previous_response_id=queued.id, input="and?")
        lost = await other.api().responses.retrieve(queued.id)
        assert (lost.status, lost.error.code) == ("failed", "server_error")
        assert (await other.api().responses.cancel(queued.id)).status == "failed"
        assert (await api.retrieve(queued.id)).to_dict() == lost.to_dict()
        assert (await refused(other.api().responses.retrieve(queued.id, stream=True)))["param"] == "stream"
        items = [item async for item in other.api().responses.input_items.list(continued.id, order="asc")]
        assert [item.content[0].text for item in items] == ["hi", "and?"]
        await other.api().responses.delete(queued.id)
        await missing(api.retrieve(queued.id))


async def test_the_document_describes_what_is_answered(service):
    from service.api.answers.responses import DeletedResponse, InputItemList, ResponseObject

    response = await service.create()
    async with service.client() as client:
        path = f"/v1/responses/{response.id}"
        assert (await client.get("/openapi.json")).json()["paths"]["/v1/responses/{response_id}"].keys() == {
            "get",
            "delete",
        }
        for answer, kind in (
            (await client.get(path), ResponseObject),
            (await client.get(f"{path}/input_items"), InputItemList),
            (await client.delete(path), DeletedResponse),
        ):
            as_typed(kind, json.loads(answer.text))
