"""The service against its own OpenAPI document: schemathesis sends requests that follow it, and some that do not."""

import copy

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

pytestmark = pytest.mark.slow

MODEL = "levserve-demo"
NUM_REQUESTS = 8  # of each operation and mode
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]


@pytest.fixture(scope="module")
def document(demo_service):
    return httpx.get(f"{demo_service.url}/openapi.json").json()


def narrowed(document):
    """The document with requests that name the model and ask for few tokens, since others answer 404 or take long."""
    document = copy.deepcopy(document)
    for name in ("ChatCompletionRequest", "CompletionRequest"):
        body = document["components"]["schemas"][name]
        body["properties"] |= {"model": {"const": MODEL}, "max_tokens": {"type": "integer", "minimum": 1, "maximum": 4}}
        body["properties"].pop("max_completion_tokens", None)
        body["required"].append("max_tokens")
    return document


def ask(document, url, mode, required):
    schema = schemathesis.openapi.from_dict(document)
    num_operations = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and operation.body.items == []:
            continue
        num_operations += 1

        @settings(max_examples=NUM_REQUESTS, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case):
            case.call_and_validate(base_url=url, checks=[*CHECKS, *required], timeout=60)

        send()
    return num_operations


def test_a_request_that_follows_the_document_gets_an_answer_that_does(demo_service, document):
    assert ask(narrowed(document), demo_service.url, GenerationMode.POSITIVE, []) == sum(
        map(len, document["paths"].values())
    )


def test_a_request_that_breaks_the_document_is_refused(demo_service, document):
    num_bodies = sum("requestBody" in operation for path in document["paths"].values() for operation in path.values())
    assert ask(document, demo_service.url, GenerationMode.NEGATIVE, [checks.negative_data_rejection]) == num_bodies
