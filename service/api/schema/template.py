"""Fields that control the rendering of a chat's prompt: vLLM's of /v1/chat/completions and /tokenize.

Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (chat: extra parameters)
"""

from typing import Any, Literal

from pydantic import Field

from service.api.schema.wire import WireObject
from service.errors import InvalidParameter


class TemplateFields(WireObject):
    """What a request says about the rendering of its messages."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)  # variables that the template reads
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None

    @property
    def sets_variables(self) -> bool:
        """Whether the request sets variables of the template."""
        return bool(self.chat_template_kwargs) or self.reasoning_effort is not None

    def check_rendering(self) -> None:
        """Check the fields against each other.

        Raises:
            InvalidParameter: the last message cannot be both closed and continued, or the effort is stated twice.
        """
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidParameter(
                "'continue_final_message' needs 'add_generation_prompt' to be false.", param="continue_final_message"
            )
        if self.reasoning_effort is not None and "reasoning_effort" in self.chat_template_kwargs:
            message = "'chat_template_kwargs.reasoning_effort' contradicts 'reasoning_effort'; send one."
            raise InvalidParameter(message, param="chat_template_kwargs.reasoning_effort")
