"""A client's own notes on a request: checked, and without effect, since answers are not stored.

Source: https://platform.openai.com/docs/api-reference/chat/create#chat_create-metadata
"""

from typing import Annotated

from pydantic import Field

MAX_PAIRS, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=MAX_KEY_CHARS)], Annotated[str, Field(max_length=MAX_VALUE_CHARS)]],
    Field(max_length=MAX_PAIRS, fail_fast=True),
]
