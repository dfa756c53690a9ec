"""A stream of JSON objects, one a line, as Ollama has it.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md#streaming-responses
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, override

from pydantic_core import to_json

from service.api.http.call import Deadline
from service.api.http.lines import single_line
from service.api.http.sse import EventStream


class JsonLineStream(EventStream):
    """A response whose events are lines; a failure is the last one."""

    media_type = "application/x-ndjson"
    end = b""

    def __init__(
        self,
        documents: AsyncIterator[Sequence[Mapping[str, Any]]],
        *,
        sequences: AbstractContextManager[object],
        deadline: Deadline,
        nothing: Mapping[str, Any],
    ) -> None:
        """Create the response; `nothing` is an object without text, since a line cannot be a comment."""
        super().__init__(documents, sequences=sequences, deadline=deadline)
        self.keep_alive = self.frame(nothing)

    @override
    def frame(self, document: Mapping[str, Any]) -> bytes:
        return single_line(to_json(document)) + b"\n"
