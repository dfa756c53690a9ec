"""Messages to the one string that a chat model was trained on, by the checkpoint's own Jinja template.

The template is compiled once, when the checkpoint is loaded. A request never brings its own. Jinja is imported where
there is a template: a base model starts without it.
Source: https://huggingface.co/docs/transformers/chat_templating_writing
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from service.errors import InvalidParameter, MalformedCheckpoint
from service.text.tokenizer import read_json

TEMPLATE_FILE = "chat_template.jinja"


class ChatTemplate:
    """A compiled template and the special tokens that it may write."""

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

    @classmethod
    def load(cls, folder: Path, special_tokens: Mapping[str, str], uri: str | None = None) -> "ChatTemplate | None":
        """Read the template of a checkpoint; None if it has none, as base models do not.

        Raises:
            MalformedCheckpoint: the template does not compile, or is no text.
        """
        uri = uri or str(folder)
        path = folder / TEMPLATE_FILE
        if path.is_file():
            try:
                return cls(path.read_text(encoding="utf-8"), special_tokens, uri=uri)
            except UnicodeDecodeError as error:
                raise MalformedCheckpoint(uri, path.name, "is not UTF-8 text") from error
        for file in ("chat_template.json", "tokenizer_config.json"):
            stated = read_json(folder, file, uri).get("chat_template")
            if stated is not None:
                return cls(_default_template(stated, uri, file), special_tokens, uri=uri, file=file)
        return None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the prompt of a conversation; encode it without special tokens, which it has.

        Raises:
            InvalidParameter: the template refuses the messages, or its limits do.
        """
        from jinja2.exceptions import TemplateError

        from service.text.sandbox import RenderLimit

        limit = RenderLimit()
        try:
            pieces = self._template.generate(
                **self._special_tokens,
                messages=list(messages),
                tools=None if tools is None else list(tools),
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
            return "".join(limit.count(piece) for piece in pieces)
        except TemplateError as error:
            raise InvalidParameter(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error
        except Exception as error:  # a template may fail in any way that Python can; its words may be the prompt's
            raise InvalidParameter(
                f"The model's chat template cannot render these messages ({type(error).__name__}).", param="messages"
            ) from error


def _default_template(stated: Any, uri: str, file: str) -> str:
    """Return the template for plain chats out of a list of named ones.

    Source: https://huggingface.co/docs/transformers/chat_templating_multiple_templates ("default")
    """
    if isinstance(stated, list):
        named = {entry.get("name"): entry.get("template") for entry in stated if isinstance(entry, dict)}
        stated = named.get("default", next(iter(named.values()), None) if len(named) == 1 else None)
    if not isinstance(stated, str):
        raise MalformedCheckpoint(uri, file, "chat_template is neither a text nor a list with a 'default' template")
    return stated
