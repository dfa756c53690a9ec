"""Jinja's sandbox for the templates that come with checkpoints: what transformers offers them, within limits.

The sandbox denies a template access to Python; the limits here end loops, large operators and large outputs with a
reason. What they miss is bounded by the process that a template runs in, `template_worker`. Only Jinja and the standard
library are imported, since that process imports this module.
Source: https://jinja.palletsprojects.com/en/stable/sandbox/, transformers' utils/chat_template_utils.py
"""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, override

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

MAX_RENDERED_CHARS = 16 * 1024 * 1024
MAX_RENDER_S = 10.0
TOO_SLOW = f"the chat template takes longer than {MAX_RENDER_S:g} s"
# A format width of five or more digits, or one taken from the arguments.
HUGE_WIDTH = re.compile(r"\d{5}|\*")


class BrokenTemplate(Exception):
    """A template has raised an error of the type that this names; its own message may quote the prompt."""


class SandboxedTemplate:
    """A template that is compiled and rendered in this process."""

    def __init__(self, source: str) -> None:
        """Compile a template.

        Raises:
            TemplateSyntaxError: it is malformed.
            RecursionError: it is nested too deeply.
        """
        self._source = source
        self._template = TemplateSandbox().from_string(source)

    @property
    def variables(self) -> frozenset[str]:
        """The names that the template reads and does not define."""
        sandbox = TemplateSandbox()
        return frozenset(find_undeclared_variables(sandbox.parse(self._source)) - sandbox.globals.keys())

    def render(self, arguments: Mapping[str, Any]) -> str:
        """Return the output.

        Raises:
            TemplateError: the template rejects the arguments, or exceeds a limit.
            BrokenTemplate: it has raised another error.
            MemoryError: it needs more than this process may take.
        """
        limit = RenderLimit()
        try:
            return "".join(limit.count(part) for part in self._template.generate(**arguments))
        except (TemplateError, MemoryError):
            raise
        except Exception as error:  # a template can raise anything
            raise BrokenTemplate(type(error).__name__) from error

    def wait(self) -> None:
        """Return: it is compiled."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the assistant's text for training; rendered as its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    @override
    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The globals, filters and extensions that transformers offers a chat template, within limits."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        self.filters["tojson"] = to_json
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, range=_TimedRange)

    @override
    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str) and HUGE_WIDTH.search(left):
            raise SecurityError("the width of a formatted string is too large")
        if operator == "**" and _is_huge_power(left, right):
            raise SecurityError("the power is too large")
        if operator == "*" and max(_repeated_len(left, right), _repeated_len(right, left)) > MAX_RENDERED_CHARS:
            raise SecurityError("the repetition is too long")
        return super().call_binop(context, operator, left, right)


class RenderLimit:
    """Bounds the duration (`MAX_RENDER_S`) and size (`MAX_RENDERED_CHARS`) of one rendering."""

    def __init__(self) -> None:
        self._end_s = time.monotonic() + MAX_RENDER_S
        self._num_chars = 0

    def count(self, text: str) -> str:
        """Count a part of the output and return it.

        Raises:
            SecurityError: the output is too large, or the time is over.
        """
        self._num_chars += len(text)
        if self._num_chars > MAX_RENDERED_CHARS:
            raise SecurityError(f"the chat template renders to more than {MAX_RENDERED_CHARS} characters")
        if time.monotonic() > self._end_s:
            raise SecurityError(TOO_SLOW)
        return text


class _TimedRange(Sequence[int]):
    """Jinja's `range` with a deadline, since nested loops multiply."""

    def __init__(self, *bounds: int) -> None:
        self._numbers = range(*bounds)
        if len(self._numbers) > MAX_RANGE:
            raise SecurityError(f"a range of more than {MAX_RANGE} numbers")

    @override
    def __len__(self) -> int:
        return len(self._numbers)

    @override
    def __getitem__(self, index: Any) -> Any:
        return self._numbers[index]

    @override
    def __iter__(self) -> Iterator[int]:
        end_s = time.monotonic() + MAX_RENDER_S
        for number in self._numbers:
            if time.monotonic() > end_s:
                raise SecurityError(TOO_SLOW)
            yield number


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as transformers' filter writes it."""
    # Jinja's own filter escapes HTML, which would put escapes into the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _is_huge_power(base: Any, exponent: Any) -> bool:
    return not (abs(base) <= MAX_RANGE and abs(exponent) <= 64)


def _repeated_len(sequence: Any, factor: Any) -> int:
    return len(sequence) * factor if hasattr(sequence, "__len__") and isinstance(factor, int) else 0


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
