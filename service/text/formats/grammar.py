"""The grammar of an answer in a family's form: the calls of tools that it may or must have, and its content.

Marks that are one token are that token, so that the same characters in several are text.
Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md#tool-calling
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from service.text.formats.codecs import Elements, Literal
from service.text.formats.format import Calls, Format
from service.text.formats.parameters import Parameter, Parameters
from service.text.grammar.definition import ANY_JSON, ANY_OBJECT

_TEXT = "/(?s:.*)/"
_UNIT = re.compile(r"\$n(?!ame)|\$id|\n+|(?:(?!\$n(?!ame)|\$id)[^\n])+")
_PLACES = {"$n": "/[0-9]{1,4}/", "$id": "/[a-zA-Z0-9]{9}/"}
_NO_PARAMETERS = Parameters((), None)
# Of a schema's keywords, what literals are held to; numbers are written as JSON, which can hold to any.
_HELD = {"type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf", "oneOf", "$ref"}
_HELD_OF_TYPES = {"maxLength": "string", "minItems": "array", "maxItems": "array"}
_IGNORED = {"$defs", "x-guidance", "description", "title", "default", "examples"}
_NUMBERS = {"integer", "number"}


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that an answer may call."""

    name: str
    schema: Mapping[str, Any]  # of its arguments, as `definition.json_part` returns it
    parameters: Parameters = _NO_PARAMETERS  # the same one by one, for formats whose arguments are not JSON

    def with_any_arguments(self) -> "CallableTool":
        """Return the tool with any object as its arguments, of which those that are texts as elements still are."""
        return CallableTool(self.name, ANY_OBJECT, self.parameters.unheld())


class Reasoning(NamedTuple):
    """Reasoning that may come before what a grammar holds, or has to where the prompt has begun it."""

    open: str  # empty where the prompt has it
    close: str
    has_space: bool = True  # whether a line end or two may come behind it that are no part of what follows


@dataclass(frozen=True, slots=True)
class CallRules:
    """How an answer may call tools."""

    tools: Sequence[CallableTool] = ()  # none where `answer` is all that there may be
    is_required: bool = False  # whether the answer consists of calls
    allows_several: bool = False
    answer: Mapping[str, Any] | None = None  # the grammar of an answer that calls none; None for any text
    reasoning: Reasoning | None = None  # before what the grammar holds


def answer_grammar(
    form: Format, rules: CallRules, ids: Mapping[str, int], other_ids: Set[int]
) -> list[Mapping[str, Any]]:
    """Return the grammar of an answer as parts for the compiler.

    Args:
        form: how calls are written.
        rules: which calls there may be.
        ids: the marks that are one token.
        other_ids: special tokens that free text may have; those that open calls are left out.
    """
    writer = _Writer(form, rules, ids, other_ids)
    parts: list[Mapping[str, Any]] = [{"name": "calls", "lark_grammar": writer.text()}]
    has_answer = rules.answer is not None and not (rules.is_required and form.has_headers)
    return [*parts, {"name": "answer", **(rules.answer or {})}] if has_answer else parts


def unheld_keywords(schema: Any, path: str) -> Iterator[str]:
    """Yield the paths of a schema's keywords that literals are not held to."""
    if not isinstance(schema, dict) or _types_of(schema) <= _NUMBERS:
        return
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs"):
            for name, part in value.items():
                yield from unheld_keywords(part, f"{path}.{keyword}.{name}")
        elif keyword in ("items", "additionalProperties"):
            yield from unheld_keywords(value, f"{path}.{keyword}")
        elif keyword in ("anyOf", "oneOf"):
            for number, part in enumerate(value):
                yield from unheld_keywords(part, f"{path}.{keyword}[{number}]")
        elif not (keyword in _HELD | _IGNORED or _HELD_OF_TYPES.get(keyword) in _types_of(schema)):
            yield f"{path}.{keyword}"


def _types_of(schema: Mapping[str, Any]) -> set[str]:
    stated = schema.get("type", ["any"])
    return set(stated if isinstance(stated, list) else [stated])


class _Writer:
    """Writes the rules in Lark's syntax."""

    def __init__(self, form: Format, rules: CallRules, ids: Mapping[str, int], other_ids: Set[int]) -> None:
        self._form, self._rules, self._ids = form, rules, ids
        self._calls = form.calls[0] if form.calls else Calls()
        self._lines: list[str] = []
        self._known = re.compile("|".join(map(re.escape, sorted(ids, key=len, reverse=True))) or r"(?!)")
        opening = (self._calls.open or self._calls.each.open).lstrip()
        self._mark = self._calls.openings[0] if not self._calls.is_bare else ""
        self._behind_mark = opening.removeprefix(self._mark)
        self._special = sorted(other_ids - {ids.get(self._mark, -1)})
        self._references: dict[str, str] = {}

    def text(self) -> str:
        has_headers = self._form.has_headers
        self._lines = ["%llguidance {}", *(self._of_messages() if has_headers else self._of_calls()), f"TEXT: {_TEXT}"]
        for index, tool in enumerate(self._rules.tools):
            codec = self._calls.codec
            if isinstance(codec, Elements):
                arguments = self._elements(codec, index, tool.parameters)
            elif isinstance(codec, Literal):
                arguments = self._assignments(codec, index, tool.parameters)
            else:
                arguments = f"%json {json.dumps(tool.schema)}"
            if has_headers:
                to = json.dumps(f"to=functions.{tool.name}")
                channel, message = self._literal("<|channel|>"), self._literal("<|message|>")
                heads = f'{channel} BESIDE " " {to} | " " {to} {channel} BESIDE'
                self._lines.append(f"call_{index}: ( {heads} ) {self._json_type()} {message} {arguments}")
                continue
            head = self._literal(self._calls.head, tool.name)
            end = self._calls.end.lstrip() if isinstance(codec, Elements) else self._calls.end
            self._lines.append(f"call_{index}: {head} {arguments} {self._literal(end)}")
        return "\n".join(self._lines)

    def _of_messages(self) -> list[str]:
        """Return the rules of Harmony's messages: any number of analyses and preambles come before the last one."""
        names = [f"call_{index}" for index in range(len(self._rules.tools))]
        last = names if self._rules.is_required else ["final", *names]
        next_message = self._literal("<|end|><|start|>assistant")
        channel, message = self._literal("<|channel|>"), self._literal("<|message|>")
        lines = [
            f"start: before* ( {' | '.join(last)} )",
            f"before: {channel} BESIDE {message} TEXT {next_message}",
            'BESIDE: "analysis" | "commentary"',
        ]
        if not self._rules.is_required:
            body = "TEXT" if self._rules.answer is None else "@answer"
            lines += [f"final: {channel} FINAL {self._json_type()} {message} {body}", 'FINAL: "final"']
        return lines

    def _json_type(self) -> str:
        return f'( " "? {self._literal("<|constrain|>")} "json" | " json" | " code" )?'

    def _of_calls(self) -> list[str]:
        if not self._rules.tools:
            return self._behind_reasoning("@answer")
        form, calls = self._calls, self._several()
        names = " | ".join(f"call_{index}" for index in range(len(self._rules.tools)))
        lines = [f"body: ({names}) {self._literal(form.each.close)}"]
        opening = f"{self._literal(self._mark)} {calls}" if self._mark else calls
        if not self._mark and form.optional:
            opening = f"({self._literal(form.optional)})? {calls}"
        if self._rules.is_required:
            return [*self._behind_reasoning(opening), *lines]
        if self._rules.answer is not None:
            return [*self._behind_reasoning(f"( @answer | {opening} )"), *lines]
        special = f"<[{','.join(map(str, self._special))}]>"
        if not self._mark:
            # An answer that begins as a call is one.
            more = f" ({special} TEXT)*" if self._special else ""
            begun = r"[^{\s](?s:.*)" if form.head.startswith("{") else r"([^\[\s](?s:.*)|\[([^a-zA-Z_](?s:.*))?)"
            return [f"start: plain | {opening}", f"plain: SPACES | BEGUN{more}", "SPACES: /\\s*/",
                    f"BEGUN: /\\s*{begun}/", *lines]  # fmt: skip
        token = self._ids.get(self._mark)
        head = "written" if token is None else f"TEXT <[{token}]>"
        written = [f"written[lazy]: TEXT {json.dumps(self._mark)}"] if token is None else []
        others = [f"other: TEXT {special}"] if self._special else []
        return [f"start: {'other* ' if others else ''}(TEXT | {head} {calls})", *written, *others, *lines]

    def _behind_reasoning(self, held: str) -> list[str]:
        """Return the rules of what a reasoning may come before."""
        if self._rules.reasoning is None:
            return [f"start: {held}"]
        before, behind, has_space = self._rules.reasoning
        space = r'("\n" | "\n\n")?' if has_space else ""
        is_token = behind in self._ids
        thought = f"TEXT {self._literal(behind)}" if is_token else "thought"
        lines = [
            f"start: reasoning{'?' if before else ''} {held}",
            f"reasoning: {self._literal(before)} {thought} {space}",
        ]
        return lines if is_token else [*lines, f"thought[lazy]: {_TEXT} {_quoted(behind)}"]

    def _several(self) -> str:
        """Return the rule of one call or several, behind the mark that opens them."""
        form = self._calls
        each = self._literal(form.each.open)
        space = '" "?' if self._mark and self._behind_mark == "[" else ""
        first = f"{space} {self._literal(self._behind_mark)} {each if form.open else ''} body"
        more = f" ({self._literal(form.between)} {each} body)*" if self._rules.allows_several else ""
        # A model that ends its last line is not made to call again.
        last = self._literal(form.close) or ("/\\n?/" if form.each.close else "")
        return f"{first}{more} {last}"

    def _literal(self, text: str, name: str = "") -> str:
        """Return a text as the symbols of a rule: tokens, strings, and white space that may be left out."""
        symbols: list[str] = []
        position = 0
        for found in (*self._known.finditer(text), None):
            piece = text[position : found.start() if found else len(text)]
            for unit in _UNIT.findall(piece):
                if unit.isspace():
                    symbols.append(f"({_quoted(unit)})?")
                else:
                    symbols.append(_PLACES.get(unit) or _quoted(unit.replace("$name", name)))
            if found:
                symbols.append(f"<[{self._ids[found[0]]}]>")
                position = found.end()
        return " ".join(symbols)

    # Elements.

    def _elements(self, codec: Elements, index: int, parameters: Parameters) -> str:
        rules: list[str] = []
        for number, parameter in enumerate(parameters.stated):
            rule = f"argument_{index}_{number}"
            rules.append(rule if parameter.is_required else f"{rule}?")
            self._element(codec, rule, _quoted(parameter.name), parameter)
        if parameters.others is not None:
            rules.append(f"other_{index}*")
            named = "".join(f" & ~{_quoted(parameter.name)}" for parameter in parameters.stated)
            self._lines.append(f'OTHER_{index}: /[^<>"\\n]+/{named}')
            self._element(codec, f"other_{index}", f"OTHER_{index}", Parameter("", parameters.others, False))
        return " ".join(rules)

    def _element(self, codec: Elements, rule: str, name: str, parameter: Parameter) -> None:
        """Add the rule of an element, whose value may have lines of its own where the codec has them."""
        says = _quoted(f'" string="{json.dumps(parameter.is_text)}') if codec.says_text else ""
        begin = f"{self._literal(codec.open)} {name} {says} {self._literal(codec.named)}"
        line, close, behind = _quoted("\n") if codec.has_lines else "", self._literal(codec.close), '"\\n"?'
        if parameter.is_text and parameter.texts is None:
            value = f"({' | '.join(self._text_values(codec, rule, parameter.max_chars))})"
        else:
            texts = " | ".join(map(_quoted, parameter.texts or ()))
            self._lines.append(f"{rule}_value: {texts or f'%json {json.dumps(parameter.schema)}'}")
            value = f"({line} {rule}_value {line} | {rule}_value) {close}" if line else f"{rule}_value {close}"
        self._lines.append(f"{rule}: {begin} {value} {behind}")

    def _text_values(self, codec: Elements, rule: str, max_chars: int | None) -> Iterator[str]:
        """Add the rules of an unquoted text up to its closing mark, on lines of its own and not; yield their names."""
        # An element that is not closed would go on to the end of the answer.
        ends = [_escaped(text) for end in (self._calls.end, self._calls.each.close) if (text := end.strip())]
        without = "".join(f" & ~/(?s:.*){text}(?s:.*)/" for text in ends)
        most = "*" if max_chars is None else f"{{0,{max_chars}}}"
        fewer = "*" if max_chars is None else f"{{0,{max(max_chars - 1, 0)}}}"
        values = {"text": ("", f"(?s:.{most})", "")}
        if codec.has_lines:
            inline = f"([^\\n](?s:.{fewer}))?" if max_chars != 0 else "()"
            values = {"lines": ("\\n", f"(?s:.{most})", "\n"), "inline": ("", inline, "")}
        for name, (before, text, after) in values.items():
            value, last = f"{rule}_{name}", after.replace("\n", "\\n")
            if codec.close in self._ids:
                self._lines.append(f"{value.upper()}: /{before}{text}{last}/{without}")
                self._lines.append(f"{value}: {value.upper()} {self._literal(codec.close)}")
            else:
                self._lines.append(f"{value.upper()}: /{before}{text}/{without}")
                self._lines.append(f"{value}[lazy]: {value.upper()} {_quoted(after + codec.close)}")
            yield value

    # Literals, as Python and Gemma write them.

    def _assignments(self, codec: Literal, index: int, parameters: Parameters) -> str:
        def key(name: str) -> str:
            return _quoted(f"{name}{codec.assign}")

        stated = [
            (f"{key(parameter.name)} {self._value(codec, parameter.schema, parameter.schema)}", parameter.is_required)
            for parameter in parameters.stated
        ]
        other = None
        if parameters.others is not None:
            other = f"/[a-zA-Z_][a-zA-Z0-9_]*/ {_quoted(codec.assign)} {self._value(codec, parameters.others, {})}"
        closing = ")" if codec.assign == "=" else "}"
        return f"{self._listed(f'arguments_{index}', codec, stated, other)} {_quoted(closing)}"

    def _listed(self, rule: str, codec: Literal, items: Sequence[tuple[str, bool]], other: str | None) -> str:
        """Return the rule of items with commas between them, of which some may be left out."""
        comma = '"," " "?' if not codec.quote else '","'
        last = f"({comma} {other})*" if other else '""'
        self._lines.append(f"{rule}_more_{len(items)}: {last}")
        self._lines.append(f"{rule}_from_{len(items)}: {f'({other} {last})?' if other else '""'}")
        for number, (item, is_required) in reversed(list(enumerate(items))):
            behind = f"{rule}_more_{number + 1}"
            for name, written in ((f"{rule}_more", f"{comma} {item} {behind}"), (f"{rule}_from", f"{item} {behind}")):
                self._lines.append(f"{name}_{number}: {written}" + ("" if is_required else f" | {name}_{number + 1}"))
        return f"{rule}_from_0"

    def _value(self, codec: Literal, schema: Any, root: Mapping[str, Any]) -> str:
        """Return the rule of a value."""
        name = f"value_{len(self._references)}"
        key = json.dumps([schema, root.get("$defs")], sort_keys=True, default=str)
        if key in self._references:
            return self._references[key]
        self._references[key] = name
        body = " | ".join(dict.fromkeys(self._alternatives(codec, name, schema, root)))
        self._lines.append(f"{name}: {body}")
        return name

    def _alternatives(self, codec: Literal, name: str, schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
        schema = schema if isinstance(schema, Mapping) else {}
        if (reference := schema.get("$ref")) is not None:
            yield self._value(codec, root.get("$defs", {}).get(reference.rpartition("/")[2], {}), root)
        elif "const" in schema or "enum" in schema:
            for value in schema.get("enum", [schema.get("const")]):
                yield self._constant(codec, value)
        elif alternatives := schema.get("anyOf") or schema.get("oneOf"):
            yield from (self._value(codec, part, root) for part in alternatives)
        else:
            types = _types_of(schema)
            types = {"string", "number", "boolean", "null", "array", "object"} if types == {"any"} else types
            writers: dict[str, Callable[[], str]] = {
                "string": lambda: self._string(codec, schema.get("maxLength")),
                "boolean": lambda: '"true" | "false"' if codec.quote else '"True" | "False" | "true" | "false"',
                "null": lambda: '"null"' if codec.quote else '"None" | "null"',
                "array": lambda: self._array(codec, schema, root),
                "object": lambda: self._object(codec, name, schema, root),
            }
            for kind in sorted(types):
                if kind in _NUMBERS:
                    yield f"%json {json.dumps(ANY_JSON | dict(schema) | {'type': kind})}"
                else:
                    yield writers[kind]()

    def _constant(self, codec: Literal, value: Any) -> str:
        match value:
            case str() if codec.quote:
                return f"{self._literal(codec.quote)} {_quoted(value) if value else ''} {self._literal(codec.quote)}"
            case str():
                return " | ".join({_quoted(json.dumps(value, ensure_ascii=False)), _quoted(_single_quoted(value))})
            case list():
                return f'"[" {' "," '.join(self._constant(codec, each) for each in value)} "]"'
            case dict():
                pairs = (
                    f"{_quoted(f'{name}:' if codec.quote else f'{json.dumps(name)}: ')} {self._constant(codec, each)}"
                    for name, each in value.items()
                )
                return f'"{{" {' "," '.join(pairs)} "}}"'
        return _quoted(json.dumps(value) if codec.quote else repr(value))

    def _string(self, codec: Literal, max_chars: int | None) -> str:
        most = "*" if max_chars is None else f"{{0,{max_chars}}}"
        if not codec.quote:
            character = r"[^{}\\\n\r]|\\[nrtbf\\'\"]"
            return " | ".join(f"/{mark}({character.format(mark)}){most}{mark}/" for mark in "\"'")
        quote = self._literal(codec.quote)
        if codec.quote in self._ids:
            return f"{quote} /(?s:.{most})/ {quote}"
        rule = "quoted" if max_chars is None else f"quoted_{max_chars}"
        line = f"{rule}[lazy]: /(?s:.{most})/ {quote}"
        self._lines += [] if line in self._lines else [line]
        return f"{quote} {rule}"

    def _array(self, codec: Literal, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        item = self._value(codec, schema.get("items", {}), root)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        more = f'("," " "? {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}' if most != 1 else ""
        return f'"[" {f"{item} {more}" if least else f"({item} {more})?"} "]"'

    def _object(self, codec: Literal, name: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        def key(text: str) -> str:
            return _quoted(f"{text}:") if codec.quote else f'{_quoted(f"{json.dumps(text)}:")} " "?'

        required = schema.get("required", ())
        properties = schema.get("properties", {})
        items = [
            (f"{key(text)} {self._value(codec, part, root)}", text in required) for text, part in properties.items()
        ]
        others = schema.get("additionalProperties", not properties)
        other = None
        if others is not False:
            any_key = '/[a-zA-Z_][a-zA-Z0-9_]*/ ":"' if codec.quote else r'/"[a-zA-Z_][a-zA-Z0-9_]*"/ ":" " "?'
            other = f"{any_key} {self._value(codec, {} if others is True else others, root)}"
        return f'"{{" {self._listed(f"{name}_items", codec, items, other)} "}}"'


def _single_quoted(text: str) -> str:
    escaped = json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'")
    return f"'{escaped}'"


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", "\\/")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
