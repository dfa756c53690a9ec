"""The queries of GET /v1/responses/{response_id} and of its input items.

Source: https://platform.openai.com/docs/api-reference/responses
"""

from typing import ClassVar, Literal

from pydantic import Field

from service.api.schema.generation import MAX_NAME_CHARS
from service.api.schema.wire import NeutralValues, WireObject

MAX_ITEMS_OF_A_PAGE = 100


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
    """Objects of a page."""
    order: Literal["asc", "desc"] = "desc"
    """By the time of creation."""
    after: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """The id of the last object of the page before."""
