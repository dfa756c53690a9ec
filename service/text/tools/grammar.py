"""The grammar of an answer that may or must call tools: from its opening on, a call is held to a name and its schema.

Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md#tool-calling
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from service.text.grammar.definition import ANY_OBJECT
from service.text.tokenizer import Tokenizer
from service.text.tools.arguments import ELEMENT_END, NAME_END
from service.text.tools.format import ToolFormat
from service.text.tools.parameters import Parameter, Parameters

_ANY_TEXT = "/(?s:.*)/"
_LINE_END = "/\\n?/"
_NO_PARAMETERS = Parameters((), None)


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that an answer may call."""

    name: str
    schema: Mapping[str, Any]  # of its arguments, as `definition.json_part` returns it
    parameters: Parameters = _NO_PARAMETERS  # the same as separate elements, for formats that have them

    def with_any_arguments(self) -> "CallableTool":
        """Return the tool with any object as its arguments, of which those that are texts as elements still are."""
        return CallableTool(self.name, ANY_OBJECT, self.parameters.unheld())


@dataclass(frozen=True, slots=True)
class CallRules:
    """How an answer may call tools."""

    tools: Sequence[CallableTool]  # at least one
    is_required: bool  # whether the answer consists of calls
    allows_several: bool
    answer: Mapping[str, Any] | None = None  # the grammar of an answer that calls none; None for any text


def special_markers(tool_format: ToolFormat, tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of a format's markers that are special tokens, which a detokenizer shows on demand alone."""
    found = ((marker, tokenizer.id_of(marker)) for marker in tool_format.markers)
    return {marker: token_id for marker, token_id in found if token_id in tokenizer.special_ids}


def tool_grammar(
    tool_format: ToolFormat, rules: CallRules, tokenizer: Tokenizer, other_ids: Set[int]
) -> list[Mapping[str, Any]]:
    """Return the grammar of an answer as parts for the compiler.

    Args:
        tool_format: how calls are written.
        rules: which calls there may be.
        tokenizer: the model's tokenizer.
        other_ids: special tokens that free text may have; the format's markers are left out.
    """
    writer = _Writer(tool_format, rules, tokenizer, other_ids)
    parts: list[Mapping[str, Any]] = [{"name": "calls", "lark_grammar": writer.text()}]
    return parts if rules.answer is None else [*parts, {"name": "answer", **rules.answer}]


class _Writer:
    """Writes the rules in Lark's syntax."""

    def __init__(self, tool_format: ToolFormat, rules: CallRules, tokenizer: Tokenizer, other_ids: Set[int]) -> None:
        self._format = tool_format
        self._rules = rules
        self._markers = special_markers(tool_format, tokenizer)
        self._other_ids = sorted(other_ids - set(self._markers.values()))

    def text(self) -> str:
        lines = ["%llguidance {}", f"start: {self._start()}", f"body: {self._body()}", f"TEXT: {_ANY_TEXT}"]
        for index, tool in enumerate(self._rules.tools):
            before = self._literal(self._format.before_name + tool.name + self._format.after_name)
            after = self._literal(self._format.after_arguments)
            arguments = f"%json {json.dumps(tool.schema)}"
            if self._format.has_elements:
                named = {f"argument_{index}_{i}": parameter for i, parameter in enumerate(tool.parameters.stated)}
                arguments = " ".join(rule if p.is_required else f"{rule}?" for rule, p in named.items())
                lines += [line for rule, parameter in named.items() for line in _element(rule, parameter)]
                if tool.parameters.others is not None:
                    arguments += f" other_{index}*"
                    lines += _other_element(index, tool.parameters)
            lines.append(f"call_{index}: {before} {arguments} {after}")
        if not self._rules.is_required and self._rules.answer is None:
            lines += self._free_text()
        return "\n".join(lines)

    def _start(self) -> str:
        opening = self._literal(self._format.opening)
        calls = self._calls()
        if self._rules.is_required:
            return f"{opening} {calls}"
        if self._rules.answer is not None:
            return f"@answer | {opening} {calls}"
        if self._format.opening:
            return f"{'other* ' if self._other_ids else ''}(TEXT | head {calls})"
        optional = self._literal(self._format.optional_opening)
        return f"plain | {f'({optional})? ' if optional else ''}{calls}"

    def _calls(self) -> str:
        """Return the rule of one call or several, after their opening."""
        form = self._format
        if form.opens_each:
            line_end = _LINE_END if form.closing else ""
            more = f" ({line_end} {self._literal(form.opening)} body)*"
        else:
            more = f" ({self._literal(form.between)} body)*"
        first = f"/ ?/ {self._literal(form.first)}" if form.first else ""
        # A model that ends its last line is not made to call again.
        last = self._literal(form.last) or (_LINE_END if form.closing else "")
        return f"{first} body{more if self._rules.allows_several else ''} {last}"

    def _body(self) -> str:
        calls = " | ".join(f"call_{index}" for index in range(len(self._rules.tools)))
        closing = self._literal(self._format.closing)
        return f"{_LINE_END} ({calls}) {_LINE_END} {closing}" if closing else calls

    def _free_text(self) -> list[str]:
        """Return the rules of text without a call, or up to the first one."""
        special = f"<[{','.join(map(str, self._other_ids))}]>"
        if not self._format.opening:
            # An answer that begins with a brace is a call.
            more = f" ({special} TEXT)*" if self._other_ids else ""
            return [f"plain: SPACES | BEGUN{more}", "SPACES: /\\s*/", "BEGUN: /\\s*[^{\\s](?s:.*)/"]
        # The opening may be written as a special token, or as the text of one.
        token = self._markers.get(self._format.opening)
        heads = "written" if token is None else f"written | TEXT <[{token}]>"
        rules = [f"head: {heads}", f"written[lazy]: TEXT {json.dumps(self._format.opening)}"]
        return [*rules, f"other: TEXT {special}"] if self._other_ids else rules

    def _literal(self, text: str) -> str:
        return literal(text, self._markers)


def literal(text: str, markers: Mapping[str, int]) -> str:
    """Return a text as the symbols of a rule: special tokens, by their ids, and strings between them."""
    for marker, token_id in markers.items():
        before, found, after = text.partition(marker)
        if found:
            return " ".join(filter(None, (literal(before, markers), f"<[{token_id}]>", literal(after, markers))))
    return _quoted(text) if text else ""


def _element(rule: str, parameter: Parameter) -> list[str]:
    """Return the rules of one argument that is an element."""
    begin, end = _quoted(f"\n<parameter={parameter.name}{NAME_END}"), _quoted(ELEMENT_END)
    if not parameter.is_text:
        return [f"{rule}: {begin} %json {json.dumps(parameter.schema)} {end}"]
    if parameter.texts is not None:
        return [f"{rule}: {begin} ({' | '.join(map(_quoted, parameter.texts))}) {end}"]
    text = _ANY_TEXT if parameter.max_chars is None else f"/(?s:.{{0,{parameter.max_chars}}})/"
    return [f"{rule}: {begin} {rule}_text", f"{rule}_text[lazy]: {text} {end}"]


def _other_element(index: int, parameters: Parameters) -> list[str]:
    """Return the rules of one argument that the parameters of a tool do not name."""
    named = "".join(f" & ~{_quoted(parameter.name)}" for parameter in parameters.stated)
    begin, end = _quoted("\n<parameter="), _quoted(ELEMENT_END)
    value = f"%json {json.dumps(parameters.others)}"
    return [
        f"other_{index}: {begin} OTHER_{index} {_quoted(NAME_END)} {value} {end}",
        f"OTHER_{index}: /[^>\\n]+/{named}",
    ]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
