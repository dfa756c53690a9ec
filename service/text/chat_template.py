"""Messages to the single prompt string that a chat model was trained on, by the checkpoint's Jinja template.

The template is compiled once, when the checkpoint is loaded; requests cannot send their own. It comes with the weights
and is not trusted further. Jinja's sandbox denies it access to Python, and the limits here bound the time and memory
that the sandbox leaves unbounded: loops, operators and output.
Source: https://huggingface.co/docs/transformers/chat_templating_writing,
https://jinja.palletsprojects.com/en/stable/sandbox/, transformers' utils/chat_template_utils.py
"""

import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, override

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

from service.errors import InvalidParameter, MalformedCheckpoint
from service.text.thinking import CLOSING
from service.text.tools.format import ToolFormat
from service.text.tools.registry import format_of

MAX_RENDERED_CHARS = 16 * 1024 * 1024
MAX_RENDER_S = 10.0
TOO_SLOW = f"the chat template takes longer than {MAX_RENDER_S:g} s"
# What `render` gives every template.
ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
# A format width of five or more digits, or one taken from the arguments.
HUGE_WIDTH = re.compile(r"\d{5}|\*")


class ChatTemplate:
    """A compiled template and the special tokens that it may use."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        uri: str = "chat template",
        file: str = "chat_template.jinja",
        tool_call_parser: str | None = None,
    ) -> None:
        """Compile a template.

        Args:
            source: of the template.
            special_tokens: by transformers' names.
            uri: where it came from, for error messages.
            file: the same.
            tool_call_parser: the name of the format of tool calls; None to find it from the template.

        Raises:
            MalformedCheckpoint: the template does not compile.
        """
        try:
            self._template = TemplateSandbox().from_string(source)
        except TemplateSyntaxError as error:
            raise MalformedCheckpoint(
                uri, file, f"line {error.lineno} of the chat template: {error.message}"
            ) from error
        except RecursionError as error:
            raise MalformedCheckpoint(uri, file, "the chat template is nested too deeply") from error
        self.source = source
        self._tool_call_parser = tool_call_parser
        self._special_tokens = dict(special_tokens)

    @cached_property
    def tool_format(self) -> ToolFormat | None:
        """How the model calls tools; None if the template does not mention them."""
        return format_of(self.source, self._tool_call_parser) if re.search(r"\btools\b", self.source) else None

    @cached_property
    def joins_arguments(self) -> bool:
        """Whether it writes the arguments of earlier calls as they are, as DeepSeek's do, so that they must be text."""
        return "tojson" not in self.source

    @cached_property
    def has_thinking(self) -> bool:
        """Whether the model writes its thinking between tags before an answer."""
        return CLOSING in self.source

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that the template reads and a request may set."""
        from jinja2.meta import find_undeclared_variables

        sandbox = TemplateSandbox()
        read = find_undeclared_variables(sandbox.parse(self.source))
        return frozenset(read - ARGUMENTS - sandbox.globals.keys() - self._special_tokens.keys())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Return the prompt of a conversation, special tokens included: encode it without adding them again.

        Args:
            messages: of the conversation.
            tools: that the model may call.
            add_generation_prompt: whether the prompt ends with the beginning of an answer.
            continue_final_message: whether it ends with the text of the last message, for the model to go on with.
            variables: some of `variables`.

        Raises:
            InvalidParameter: the template rejects the messages, or exceeds its limits.
        """
        if not continue_final_message:
            return self._render(messages, tools, add_generation_prompt, variables)
        # A mark at the end of the last message tells where the template has put that end.
        mark = secrets.token_hex(16)
        marked = [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}{mark}"}]
        text, found, _ = self._render(marked, tools, add_generation_prompt, variables).rpartition(mark)
        if not found:
            message = (
                "The model's chat template does not write the text of the last message, so it cannot be continued."
            )
            raise InvalidParameter(message, param="continue_final_message")
        return text

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        limit = RenderLimit()
        if self.joins_arguments:
            messages = [_with_text_arguments(message) for message in messages]
        try:
            parts = self._template.generate(
                **variables,
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
        self.filters["tojson"] = _to_json
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


def _with_text_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if not (calls := message.get("tool_calls")):
        return message
    functions = [call["function"] for call in calls]
    texts = [{**function, "arguments": _to_json(function["arguments"])} for function in functions]
    return {**message, "tool_calls": [{**call, "function": f} for call, f in zip(calls, texts, strict=True)]}


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
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
