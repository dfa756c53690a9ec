"""A request for a response that continues an earlier one, and the items of a conversation as they are kept.

Both are parsed as one body, so that the prompt, and what is refused, are those of the same items sent in full. Items
are kept as they were sent, with what has no effect here.
"""

import gzip
import uuid
from typing import Any, override

from pydantic_core import from_json, to_json

from service.api.conversation import OwnThinking, Turn
from service.api.schema.generation import MAX_NAME_CHARS
from service.api.schema.response_input import as_items, check_results, turns_of
from service.api.schema.responses import ResponsesRequest
from service.api.work.long_body import LongBody

# Of the ids of items that a client sent without one, by type.
ID_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "function_call_output": "fco_"}

MAX_BASE_CHARS = 64  # of a client's id in one that is made from it


class ContinuedRequest(ResponsesRequest):
    """The body of POST /v1/responses behind the items of the response that it continues; see `joined`."""

    num_earlier: int = 0  # items of its input

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        earlier, request = document["earlier"], super().rewritten(document["request"])
        return {**request, "input": [*earlier, *as_items(request["input"])], "num_earlier": len(earlier)}

    @override
    def _turns(self, own_thinking: OwnThinking) -> tuple[list[Turn], list[str]]:
        return turns_of(self.input, own_thinking, num_earlier=self.num_earlier)

    @override
    def check_results(self) -> None:
        check_results(self.input, num_earlier=self.num_earlier)


def joined(earlier: bytes, request: bytes) -> bytes:
    """Return the JSON text of a `ContinuedRequest`, from an array of items and a body that has been checked."""
    return b'{"earlier":' + earlier + b',"request":' + request + b"}"


def packed_items(body: LongBody) -> bytes:
    """Return the items of a checked body as they are kept: as the client sent them, each with an id, compressed."""
    document = from_json(body.content)
    items = document["earlier"] if body.kind is ContinuedRequest else []
    request = document["request"] if body.kind is ContinuedRequest else document
    items += [item | {"id": _id_of(item)} for item in as_items(request["input"])]
    return gzip.compress(to_json(items), compresslevel=1, mtime=0)


def with_own_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return kept items, each with an id that has its position: clients list on from the id of the last item.

    A client may have sent an id twice, or one that no query can hold.
    """
    stated = {item["id"] for item in items}
    taken, found = set[str](), list[dict[str, Any]]()
    for position, item in enumerate(items):
        item_id: str = item["id"]
        if item_id in taken or not 0 < len(item_id) <= MAX_NAME_CHARS:
            item_id = f"{item_id[:MAX_BASE_CHARS]}.{position}"
            while item_id in stated:
                item_id += "_"
        taken.add(item_id)
        found.append(item | {"id": item_id})
    return found


def stated_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return a kept item as OpenAI lists it, with the fields that a client may leave out."""
    kind = item.get("type") or "message"
    stated = {"type": kind, "status": "completed", **item}
    if kind == "message":
        is_answer = item.get("role") == "assistant"
        parts = item.get("content") or []
        if isinstance(parts, str):
            parts = [{"type": "output_text" if is_answer else "input_text", "text": parts}]
        stated["content"] = [{"annotations": [], "logprobs": [], **part} if is_answer else part for part in parts]
    return stated if kind != "reasoning" else {"summary": [], **stated}


def _id_of(item: dict[str, Any]) -> str:
    stated = item.get("id")
    return (
        stated
        if isinstance(stated, str)
        else ID_PREFIXES.get(item.get("type") or "message", "item_") + uuid.uuid4().hex
    )
