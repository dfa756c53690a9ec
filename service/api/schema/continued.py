"""A request for a response that continues an earlier one, and the items of a conversation as they are kept.

Both are parsed as one body, so that the prompt, and what is refused, are those of the same items sent in full.
"""

import gzip
import uuid
from typing import Any, ClassVar, Literal, override

from pydantic import Field
from pydantic_core import to_json

from service.api.schema.generation import MAX_NAME_CHARS
from service.api.schema.response_input import as_items, check_results
from service.api.schema.responses import ResponsesRequest
from service.api.schema.wire import NeutralValues, WireObject

MAX_ITEMS_OF_A_PAGE = 100
# Of the ids of items that a client sent without one, by type.
ID_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "function_call_output": "fco_"}


class ContinuedRequest(ResponsesRequest):
    """The body of POST /v1/responses behind the items of the response that it continues; see `joined`."""

    num_earlier: int = 0  # items of its input

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        earlier, request = document["earlier"], super().rewritten(document["request"])
        return {**request, "input": [*earlier, *as_items(request["input"])], "num_earlier": len(earlier)}

    @override
    def check_results(self) -> None:
        check_results(self.input, num_earlier=self.num_earlier)


class ResponseQuery(WireObject):
    """The query of GET /v1/responses/{response_id}."""

    hints: ClassVar[NeutralValues] = {
        "include": (),
        "include[]": (),
        "include_obfuscation": ("false",),
        "starting_after": (),
    }
    refused: ClassVar[NeutralValues] = {"stream": ("false",)}


class ItemsQuery(WireObject):
    """The query of GET /v1/responses/{response_id}/input_items."""

    hints: ClassVar[NeutralValues] = {"include": (), "include[]": ()}

    limit: int = Field(default=20, ge=1, le=MAX_ITEMS_OF_A_PAGE)
    order: Literal["asc", "desc"] = "desc"
    after: str | None = Field(default=None, max_length=MAX_NAME_CHARS)


def joined(earlier: bytes, request: bytes) -> bytes:
    """Return the JSON text of a `ContinuedRequest`, from an array of items and a body that has been checked."""
    return b'{"earlier":' + earlier + b',"request":' + request + b"}"


def packed_items(body: ResponsesRequest) -> bytes:
    """Return the items of a request's input as they are kept, each with an id: a JSON array, compressed."""
    items = [item.model_dump(by_alias=True, exclude_none=True) for item in body.input]
    for item in items:
        if "id" not in item:
            item["id"] = ID_PREFIXES.get(item["type"], "item_") + uuid.uuid4().hex
    return gzip.compress(to_json(items), compresslevel=1, mtime=0)
