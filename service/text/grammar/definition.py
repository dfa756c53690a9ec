"""Grammars as the grammar library takes them, from what requests state: a schema, a pattern, choices, or a grammar.

Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md,
https://docs.vllm.ai/en/latest/features/structured_outputs.html
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.errors import InvalidParameter
from service.text.grammar.endings import has_end
from service.text.grammar.patterns import MAX_PATTERN_CHARS
from service.text.grammar.schema import reduced
from service.text.grammar.strict import check_strict

MAX_GRAMMAR_CHARS = 64 * 1024
MAX_CHOICES = 1000
# At most one space after a comma or a colon, so that no value is padded without end. Letters are not escaped as \uXXXX,
# under which an additional property could repeat the name of another.
_JSON_STYLE = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "json_allowed_escapes": 'nrbtf\\"',
}
# As `json_part` returns them.
ANY_JSON: dict[str, Any] = {"x-guidance": _JSON_STYLE}
IS_LARK = re.compile(r"^[^\S\n]*+(?:%llguidance\b|start\s*+:)", re.MULTILINE)
ANY_OBJECT = {"type": "object"} | ANY_JSON


@dataclass(frozen=True, slots=True)
class GrammarDefinition:
    """A grammar before it is compiled."""

    part: Mapping[str, Any]  # one grammar of the library's list: a `json_schema` or a `lark_grammar`
    param: str  # the request's field, which errors name


def json_part(schema: Any, param: str, *, is_strict: bool = False, relaxed: list[str] | None = None) -> dict[str, Any]:
    """Return a JSON schema as the library takes it, on its own or after `%json` in a Lark grammar.

    Args:
        schema: from a request's JSON.
        param: the request's field, with which the paths of what cannot be enforced begin.
        is_strict: whether OpenAI's rules of strict schemas apply.
        relaxed: where those paths are added, for a schema of an object that need not be enforced whole.

    Raises:
        InvalidParameter: the schema cannot be enforced although it must, or breaks the rules of strict ones.
    """
    try:
        return ANY_JSON | _enforceable(schema, param, is_strict=is_strict, relaxed=relaxed)
    except InvalidParameter as error:
        if relaxed is None:
            raise
        relaxed.append(error.param or param)
        return ANY_OBJECT


def _enforceable(schema: Any, param: str, *, is_strict: bool, relaxed: list[str] | None) -> dict[str, Any]:
    part = reduced(schema, param, relaxed)
    if is_strict:
        check_strict(schema, param)
    if not has_end(part):
        message = f"Invalid '{param}': only an infinite value satisfies it. Make a recursive property optional."
        raise InvalidParameter(message, param=param)
    return part


def of_schema(schema: Any, param: str, *, is_strict: bool = False) -> GrammarDefinition:
    """Return the grammar of the values that satisfy a JSON schema; raises what `json_part` raises."""
    return GrammarDefinition({"json_schema": json_part(schema, param, is_strict=is_strict)}, param)


def of_pattern(pattern: str, param: str) -> GrammarDefinition:
    """Return the grammar of the texts that a regular expression, in Rust's dialect, matches as a whole."""
    from llguidance import regex_to_lark

    _check_length(pattern, MAX_PATTERN_CHARS, param)
    return GrammarDefinition({"lark_grammar": f"start: /{regex_to_lark(pattern, '')}/"}, param)


def of_choices(choices: Sequence[str], param: str) -> GrammarDefinition:
    """Return the grammar of a few texts."""
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidParameter(f"Invalid '{param}': it must have 1 to {MAX_CHOICES} choices.", param=param)
    _check_length("".join(choices), MAX_GRAMMAR_CHARS, param)
    quoted = (json.dumps(choice, ensure_ascii=False) for choice in choices)
    return GrammarDefinition({"lark_grammar": "start: " + " | ".join(quoted)}, param)


def of_grammar(text: str, param: str) -> GrammarDefinition:
    """Return a grammar that a request states in Lark's syntax or in llama.cpp's GBNF.

    Raises:
        InvalidParameter: it is too long, has a JSON schema inside, or is not GBNF although it looks like it.
    """
    from llguidance.gbnf_to_lark import gbnf_to_lark

    _check_length(text, MAX_GRAMMAR_CHARS, param)
    if "%json" in text:
        message = f"Invalid '{param}': '%json' is not supported in a grammar. Send the schema as 'json'."
        raise InvalidParameter(message, param=param)
    try:
        # Not the library's own test, whose time is quadratic in the number of empty lines.
        lark = text if IS_LARK.search(text) else gbnf_to_lark(text)
        return GrammarDefinition({"lark_grammar": lark}, param)
    except Exception as error:  # the converter raises bare Exception
        raise InvalidParameter(f"Invalid '{param}': it is not a grammar: {error}", param=param) from None


def _check_length(text: str, limit: int, param: str) -> None:
    if len(text) > limit:
        raise InvalidParameter(f"Invalid '{param}': it is longer than {limit} characters.", param=param)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParameter(f"'{param}' has a lone surrogate, which is not a character.", param=param) from None
