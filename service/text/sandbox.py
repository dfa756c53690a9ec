"""Jinja's sandbox for the templates that come with checkpoints, with what transformers offers them.

The sandbox denies a template access to Python. It bounds neither time nor memory, so a template that is not trusted
runs in a process that does, `TemplateProcess`.
Source: https://jinja.palletsprojects.com/en/stable/sandbox/, transformers' utils/chat_template_utils.py
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, override

from jinja2 import nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser

# Defends against T12.
from jinja2.sandbox import ImmutableSandboxedEnvironment

from service.errors import InvalidParameter, MalformedCheckpoint


class SandboxedTemplate:
    """A template that is compiled and rendered in this process."""

    def __init__(self, source: str, uri: str = "chat template", file: str = "chat_template.jinja") -> None:
        """Compile a template; `uri` and `file` are where it came from.

        Raises:
            MalformedCheckpoint: it does not compile.
        """
        self._source = source
        try:
            self._template = TemplateSandbox().from_string(source)
        except TemplateSyntaxError as error:
            reason = f"line {error.lineno} of the chat template: {error.message}"
            raise MalformedCheckpoint(uri, file, reason) from error
        except RecursionError as error:
            raise MalformedCheckpoint(uri, file, "the chat template is nested too deeply") from error

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names that the template reads and does not define."""
        sandbox = TemplateSandbox()
        return frozenset(find_undeclared_variables(sandbox.parse(self._source)) - sandbox.globals.keys())

    def render(self, arguments: Mapping[str, Any]) -> str:
        """Return the output.

        Raises:
            InvalidParameter: the template rejects the arguments, or cannot render them.
        """
        try:
            return self._template.render(arguments)
        except TemplateError as error:
            message = f"The model's chat template rejects these messages: {error}"
            raise InvalidParameter(message, param="messages") from error
        except MemoryError:
            raise
        except Exception as error:  # a template can raise anything, and its message may quote the prompt
            message = f"The model's chat template cannot render these messages ({type(error).__name__})."
            raise InvalidParameter(message, param="messages") from error


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the assistant's text for training; rendered as its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    @override
    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The globals, filters and extensions that transformers offers a chat template."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which would put escapes into the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
