"""Fields that control the rendering of a chat's prompt: vLLM's, and the level of thinking in all its shapes.

Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (chat: extra parameters),
https://openrouter.ai/docs/use-cases/reasoning-tokens (`reasoning`),
https://api-docs.deepseek.com/guides/thinking_mode (`thinking`), https://qwen.readthedocs.io (`enable_thinking`)
"""

from typing import Annotated, Any

from pydantic import Field

from service.api.conversation import OFF, Effort
from service.api.schema.wire import WireObject
from service.errors import InvalidParameter


class VariableFields(WireObject):
    """What a request says to the template, in the shapes that chats and responses share."""

    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """vLLM's: variables that the model's chat template reads, such as `enable_thinking`."""
    reasoning_effort: str | None = None
    """How much to think, as far as the chat template has it: its degrees, or a switch for `none`."""
    thinking: dict[str, Any] | bool | str | None = None
    """DeepSeek's, GLM's and Anthropic's: whether to think (`type`)."""
    enable_thinking: bool | None = None
    """Qwen's: whether to think."""

    def first_effort(self, *stated: Effort | None) -> Effort | None:
        """Return the first level of thinking, of those that are stated elsewhere and here."""
        own = (_switched(self.enable_thinking, "enable_thinking"), _thinking(self.thinking))
        return next((effort for effort in (*stated, *own) if effort is not None), None)


class TemplateFields(VariableFields):
    """What a request says about the rendering of its messages."""

    add_generation_prompt: bool = True
    """vLLM's: whether the prompt ends with the beginning of an answer."""
    continue_final_message: bool = False
    """vLLM's: go on with the last message; needs `add_generation_prompt: false`."""
    documents: Annotated[list[dict[str, Any]], Field(fail_fast=True)] = Field(default_factory=list)
    """vLLM's: what the model may answer from, if its chat template renders documents."""
    reasoning: dict[str, Any] | bool | None = None
    """OpenRouter's: how much to think (`effort`, `enabled`, `max_tokens`)."""

    @property
    def effort(self) -> Effort | None:
        """The level of thinking, under the first name that states one; None if the request leaves it to the model."""
        stated = self.reasoning_effort
        level = None if stated is None else Effort(stated, "reasoning_effort")
        return self.first_effort(level, _openrouter_effort(self.reasoning))

    def rendering(self) -> dict[str, Any]:
        """Return what a conversation knows about its rendering."""
        return {
            "effort": self.effort,
            "variables": self.chat_template_kwargs,
            "documents": self.documents,
            "begins_answer": self.add_generation_prompt,
            "continues_last": self.continue_final_message,
        }

    def check_rendering(self) -> None:
        """Check the fields against each other.

        Raises:
            InvalidParameter: the last message cannot be both closed and continued, or the effort is stated twice.
        """
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidParameter(
                "'continue_final_message' needs 'add_generation_prompt' to be false.", param="continue_final_message"
            )


def _switched(is_on: bool | None, path: str) -> Effort | None:
    return None if is_on is None else Effort(None if is_on else OFF, path)


def _openrouter_effort(stated: dict[str, Any] | bool | None) -> Effort | None:
    if not isinstance(stated, dict):
        return _switched(stated, "reasoning")
    if stated.get("enabled") is False or stated.get("max_tokens") == 0:
        return Effort(OFF, "reasoning")
    if isinstance(level := stated.get("effort"), str):
        return Effort(level, "reasoning.effort")
    return Effort(None, "reasoning") if stated.get("enabled") or stated.get("max_tokens") else None


def _thinking(stated: dict[str, Any] | bool | str | None) -> Effort | None:
    kind = stated.get("type") if isinstance(stated, dict) else stated
    if kind in ("disabled", "off", OFF, False):
        return Effort(OFF, "thinking")
    return Effort(None, "thinking") if kind in ("adaptive", "enabled", "on", True) else None
