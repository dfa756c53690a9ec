"""Every kind of answer against OpenAI's own models, which its client is generated with: strict types, no unknown field.

Where OpenAI's models know no null, its service sends one all the same. Those places are
listed here, and vLLM's fields.
"""

import json

import pytest
from openai.types import Batch, Completion, FileDeleted, FileObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.shared import ErrorObject
from pydantic import BaseModel, TypeAdapter, ValidationError

from tests.api import test_responses, test_thinking, test_tools
from tests.api.batch.running import request_line, running
from tests.api.scripted_engine import MODEL, Service

pytestmark = pytest.mark.anyio

# By the model's name; `*` is any index.
NULLS = {
    "Completion": {
        "choices.*.finish_reason",
        "choices.*.logprobs.token_logprobs.*",
        "choices.*.logprobs.top_logprobs.*",
    },
}
EXTENSIONS = {
    "ChatCompletion": {"prompt_logprobs", "prompt_token_ids"},
    "Choice": {"stop_reason", "token_ids"},
    "ChoiceDelta": {"reasoning", "reasoning_content"},
    "ChatCompletionMessage": {"reasoning", "reasoning_content"},
    "ChatCompletionChunk": {"prompt_token_ids"},
    "CompletionChoice": {"prompt_logprobs", "prompt_token_ids", "stop_reason", "token_ids"},
    "Logprob": {"bytes"},  # of events, as of the whole text
    "LogprobTopLogprob": {"bytes"},
    "ResponseFunctionCallArgumentsDoneEvent": {"name"},  # OpenAI's published schema has it
    # OpenAI's answers have the first; Open Responses, a specification of the same object, asks for the others.
    "Response": {"store", "frequency_penalty", "presence_penalty"},
    "Model": {"root", "parent", "max_model_len", "capabilities", "dtype", "quantization", "kv_dtype", "state"},
}


def check(kind, document):
    name = getattr(kind, "__name__", "ResponseStreamEvent")
    try:
        found = TypeAdapter(kind).validate_python(document, strict=True)
    except ValidationError as error:
        places = {".".join("*" if isinstance(step, int) else str(step) for step in e["loc"]): e for e in error.errors()}
        assert all(e["input"] is None for e in places.values()), places
        assert places.keys() <= NULLS.get(name, set()), places.keys()
        return
    for part in parts_of(found):
        unknown = set(part.model_extra or ()) - EXTENSIONS.get(type(part).__name__, set())
        assert not unknown, (type(part).__name__, unknown)


def parts_of(value):
    if isinstance(value, BaseModel):
        yield value
        for part in dict(value).values():
            yield from parts_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from parts_of(part)


def events_of(response):
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


SERVICES = {
    "text": (Service, {}, {}),
    "tools": (
        lambda: test_tools.service_of(test_tools.TWO),
        {"tools": test_tools.TOOLS},
        {"tools": test_responses.TOOLS},
    ),
    "thinking": (lambda: test_thinking.service_of(test_thinking.THOUGHT), {}, {}),
}


@pytest.mark.parametrize(
    "more", [{}, {"logprobs": True, "top_logprobs": 2, "n": 2, "return_token_ids": True}], ids=["", "all"]
)
@pytest.mark.parametrize("name", SERVICES)
async def test_chats(name, more):
    make, fields, _ = SERVICES[name]
    check(ChatCompletion, (await make().chat(**fields, **more)).json())
    for event in events_of(await make().chat(stream=True, stream_options={"include_usage": True}, **fields, **more)):
        check(ChatCompletionChunk, event)


@pytest.mark.parametrize(
    "fields", [{}, {"logprobs": 2, "echo": True, "n": 2}, {"max_tokens": 0, "echo": True}, {"return_token_ids": True}]
)
async def test_completions(fields):
    check(Completion, (await Service().complete(**fields)).json())
    for event in events_of(await Service().complete(stream=True, stream_options={"include_usage": True}, **fields)):
        check(Completion, event)


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize(
    "more",
    [{}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 3}],
    ids=["", "all"],
)
async def test_responses_and_their_events(name, more):
    make, _, fields = SERVICES[name]
    body = {"model": MODEL, "input": "hi"} | fields | more
    check(Response, (await make().post("/v1/responses", body)).json())
    kinds = set()
    for event in events_of(await make().post("/v1/responses", body | {"stream": True})):
        kinds.add(event["type"])
        check(ResponseStreamEvent, event)
    assert {"response.created", "response.in_progress"} < kinds


async def test_models_and_errors():
    async with Service().client() as client:
        for model in (await client.get("/v1/models")).json()["data"]:
            check(Model, model)
        for path in ("/nowhere", "/v1/models/other"):
            check(ErrorObject, (await client.get(path)).json()["error"])
    check(ErrorObject, (await Service().chat(temperature=9)).json()["error"])


async def test_files_and_batches(tmp_path):
    async with running(tmp_path) as service:
        failed = await service.until((await service.begin(["{"]))["id"], "failed")
        created = await service.begin([request_line("a"), request_line("b", temperature=9)], metadata={"a": "b"})
        done = await service.until(created["id"], "completed")
        for batch in (failed, created, done, *(await service.get("/v1/batches")).json()["data"]):
            check(Batch, batch)
        for file in (await service.get("/v1/files")).json()["data"]:
            check(FileObject, file)
        async with service.client() as client:
            check(FileDeleted, (await client.delete(f"/v1/files/{done['output_file_id']}")).json())
