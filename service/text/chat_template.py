"""Messages to the single prompt string that a chat model was trained on, by the checkpoint's Jinja template.

The template is compiled once, when the checkpoint is loaded; requests cannot send their own. Jinja is imported only if
there is a template: a base model starts without it.
Source: https://huggingface.co/docs/transformers/chat_templating_writing
"""

from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import InvalidParameter, MalformedCheckpoint

TEMPLATE_FILE = "chat_template.jinja"


class ChatTemplate:
    """A compiled template and the special tokens that it may use."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], *, uri: str = "chat template", file: str = TEMPLATE_FILE
    ) -> None:
        from jinja2.exceptions import TemplateSyntaxError

        from service.text.sandbox import TemplateSandbox

        try:
            self._template = TemplateSandbox().from_string(source)
        except TemplateSyntaxError as error:
            raise MalformedCheckpoint(
                uri, file, f"line {error.lineno} of the chat template: {error.message}"
            ) from error
        except RecursionError as error:
            raise MalformedCheckpoint(uri, file, "the chat template is nested too deeply") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the prompt of a conversation, special tokens included: encode it without adding them again.

        Raises:
            InvalidParameter: the template rejects the messages, or exceeds its limits.
        """
        from jinja2.exceptions import TemplateError

        from service.text.sandbox import RenderLimit

        limit = RenderLimit()
        try:
            parts = self._template.generate(
                **self._special_tokens,
                messages=list(messages),
                tools=None if tools is None else list(tools),
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
            return "".join(limit.count(part) for part in parts)
        except TemplateError as error:
            raise InvalidParameter(
                f"The model's chat template rejects these messages: {error}", param="messages"
            ) from error
        except Exception as error:  # a template can raise anything, and the message may quote the prompt
            raise InvalidParameter(
                f"The model's chat template cannot render these messages ({type(error).__name__}).", param="messages"
            ) from error
