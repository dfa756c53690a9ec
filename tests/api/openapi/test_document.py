import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.routing import iter_route_contexts

from service.api.answers.batches import BatchList, BatchObject, DeletedFile, FileList, FileObject
from service.api.answers.generation import ChatCompletion, ChatCompletionChunk, Completion
from service.api.answers.service import Error, ModelList, Text, Tokens, Version
from service.api.openapi import document as document_module
from service.api.openapi.admin import admin_paths
from tests.api.answer_types import as_typed
from tests.api.batch.running import request_line, running
from tests.api.scripted_engine import MODEL, Service, tokens

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
# Other names of described routes.
UNDESCRIBED = {
    "/health",
    "/healthz",
    "/ping",
    "/embeddings",
    "/rerank",
    "/reranking",
    "/v1/reranking",
    "/score",
    "/loads",
    "/get_model_info",
    "/get_server_info",
}
KEY = {"Authorization": "Bearer sk-1"}


def _operations(paths):
    return {(path, method) for path, methods in paths.items() for method in methods}


async def document_of(service, **options):
    async with service.client() as client:
        response = await client.get("/openapi.json", **options)
    assert response.headers["content-type"] == "application/json"
    return response.json()


async def test_it_describes_every_route_and_no_other():
    service = Service()
    paths = (await document_of(service))["paths"]
    routes = [route for route in iter_route_contexts(service.fastapi.routes) if route.path not in UNDESCRIBED]
    served = {(route.path_format, method.lower()) for route in routes for method in route.methods - {"HEAD"}}
    served.remove(("/v1/responses/{response_id}", "post"))  # which only refuses operations that do not exist
    assert _operations(paths) == served | _operations(admin_paths())


async def test_every_reference_leads_to_a_schema():
    document = await document_of(Service())
    schemas = document["components"]["schemas"]
    references = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert references <= schemas.keys()


async def test_a_crowd_that_asks_at_once_has_it_made_once(monkeypatch):
    made = []
    real = document_module.document
    monkeypatch.setattr(document_module, "document", lambda *a, **k: made.append(k) or real(*a, **k))
    service = Service()
    async with service.client() as client:
        leaving = asyncio.ensure_future(client.get("/openapi.json"))
        await asyncio.sleep(0.02)
        leaving.cancel()
        answers = await asyncio.gather(*(client.get("/openapi.json") for _ in range(20)))
    assert {answer.content for answer in answers} == {answers[0].content}
    assert answers[0].json()["openapi"]
    assert made == [{"needs_key": False}]


async def test_every_operation_has_an_id_of_its_own():
    paths = (await document_of(Service()))["paths"].values()
    ids = [operation["operationId"] for methods in paths for operation in methods.values()]
    assert len(ids) == len(set(ids))


async def test_every_field_of_a_request_has_a_description():
    schemas = (await document_of(Service()))["components"]["schemas"]
    # vLLM's request of an engine is an answer here.
    bodies = [schema for name, schema in schemas.items() if name.endswith("Request")]
    assert len(bodies) >= 8
    assert not any("additionalProperties" in body for body in bodies)  # unknown fields are accepted
    assert [name for body in bodies for name, field in body["properties"].items() if "description" not in field] == []


async def test_a_field_that_is_refused_is_not_in_the_schema_of_its_request():
    body = (await document_of(Service()))["components"]["schemas"]["ChatCompletionRequest"]
    for name in ("audio", "modalities", "web_search_options"):
        assert name not in body["properties"]
    assert body["required"] == ["model", "messages"]


async def test_the_fields_with_checks_of_their_own_have_schemas():
    schemas = (await document_of(Service()))["components"]["schemas"]
    prompt = schemas["CompletionRequest"]["properties"]["prompt"]
    assert [kind["type"] for kind in prompt["anyOf"]] == ["string", "array", "array"]
    assert schemas["Message"]["properties"]["content"]["anyOf"][0] == {"type": "string"}
    assert "pattern" in str(schemas["CompletionRequest"]["properties"]["logit_bias"])
    assert "maxItems" in str(schemas["CompletionRequest"]["properties"]["stop"])


async def test_with_a_key_the_document_needs_it_and_says_so():
    service = Service(api_keys=("sk-1",))
    assert (await document_of(service))["error"]["code"] == "invalid_api_key"
    document = await document_of(service, headers=KEY)
    assert document["components"]["securitySchemes"]["key"] == {"type": "http", "scheme": "bearer"}
    assert document["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "401" in document["paths"]["/v1/models"]["get"]["responses"]
    assert "security" not in document["paths"]["/health/live"]["get"]
    keyless = await document_of(Service())
    assert keyless["components"]["securitySchemes"].keys() == {"operator"}
    assert keyless["paths"]["/admin/models"]["get"]["security"] == [{"operator": []}]


async def test_the_errors_of_an_operation_name_their_codes():
    responses = (await document_of(Service()))["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert "`unsupported_parameter`" in responses["400"]["description"]
    assert "`server_overloaded`" in responses["429"]["description"]
    assert responses["503"]["headers"].keys() == {"Retry-After"}
    assert all(response["description"] for response in responses.values())


CHAT = {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1, "return_token_ids": True, "n": 2}
TEXT = {"logprobs": 2, "echo": True, "prompt_logprobs": 1, "return_token_ids": True}


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, ChatCompletion),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]} | CHAT, ChatCompletion),
        ("/v1/chat/completions", {"messages": []}, Error),
        ("/v1/completions", {"prompt": "Once"}, Completion),
        ("/v1/completions", {"prompt": "Once"} | TEXT, Completion),
        ("/tokenize", {"prompt": "Once", "return_token_strs": True}, Tokens),
        ("/detokenize", {"tokens": tokens("Once")}, Text),
    ],
)
async def test_an_answer_has_the_fields_of_its_schema_and_no_others(path, body, kind):
    answer = (await Service().post(path, {"model": MODEL} | body)).json()
    assert as_typed(kind, answer) == answer


@pytest.mark.parametrize(("path", "kind"), [("/v1/models", ModelList), ("/version", Version), ("/nowhere", Error)])
async def test_what_is_read_has_the_fields_of_its_schema(path, kind):
    async with Service().client() as client:
        answer = (await client.get(path)).json()
    assert as_typed(kind, answer) == answer


async def test_files_and_batches_have_the_fields_of_their_schemas(tmp_path):
    async with running(tmp_path) as service:
        failed = await service.until((await service.begin(["{"]))["id"], "failed")
        done = await service.until((await service.begin([request_line("a")], metadata={"a": "b"}))["id"], "completed")
        answers = [(BatchObject, failed), (BatchObject, done)]
        answers += [(BatchList, (await service.get("/v1/batches?limit=1")).json())]
        answers += [(FileList, (await service.get(f"/v1/files{query}")).json()) for query in ("", "?purpose=none")]
        answers += [(FileObject, (await service.get(f"/v1/files/{done['output_file_id']}")).json())]
        async with service.client() as client:
            answers += [(DeletedFile, (await client.delete(f"/v1/files/{done['output_file_id']}")).json())]
    for kind, answer in answers:
        assert as_typed(kind, answer) == answer


async def test_forms_and_queries_are_described(tmp_path):
    async with running(tmp_path) as service:
        document = await document_of(service)
    [(media_type, form)] = document["paths"]["/v1/files"]["post"]["requestBody"]["content"].items()
    assert media_type == "multipart/form-data"
    assert form["schema"]["required"] == ["file", "purpose"]
    parameters = {found["name"]: found for found in document["paths"]["/v1/files"]["get"]["parameters"]}
    assert parameters.keys() == {"purpose", "limit", "order", "after"}
    assert parameters["limit"]["schema"]["maximum"] == 10_000
    [of_path] = document["paths"]["/v1/batches/{batch_id}/cancel"]["post"]["parameters"]
    assert (of_path["name"], of_path["in"]) == ("batch_id", "path")


@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "top_logprobs": 1, "return_token_ids": True, "n": 2}])
async def test_every_event_of_a_stream_has_the_fields_of_its_schema(fields):
    response = await Service().chat(stream=True, stream_options={"include_usage": True}, **fields)
    events = [json.loads(line[len("data: ") :]) for line in response.text.splitlines() if line.startswith("data: {")]
    assert len(events) > 3
    for event in events:
        assert as_typed(ChatCompletionChunk, event) == event


async def test_a_start_makes_neither_the_document_nor_the_bodies_of_requests():
    code = (
        "import service.api.application, sys\n"
        "late = ('service.api.openapi.document', 'service.api.answers.generation', 'service.api.schema.chat')\n"
        "assert not set(late) & sys.modules.keys(), sys.modules.keys() & set(late)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
