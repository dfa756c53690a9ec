"""The fields that all requests to an encoder share, for vectors and for scores."""

from typing import override

from pydantic import Field

from service.api.schema.generation import INT32_MAX, MAX_NAME_CHARS
from service.api.schema.wire import WireObject
from service.errors import InvalidParameter


class EncoderRequest(WireObject):
    """Which model reads the texts, and how much of each."""

    model: str = Field(max_length=MAX_NAME_CHARS)
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=INT32_MAX)
    """vLLM's: the number of tokens to which each text, of a pair the second one, is cut; -1: the model's maximum."""
    user: str | None = Field(default=None, max_length=MAX_NAME_CHARS)

    @override
    def check_consistency(self) -> None:
        """Refuse texts that are cut to nothing."""
        if self.truncate_prompt_tokens == 0:
            message = "Invalid 'truncate_prompt_tokens': it must be at least 1, or -1 for the model's maximum."
            raise InvalidParameter(message, param="truncate_prompt_tokens")
