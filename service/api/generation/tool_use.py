"""The tool calls that a chat allows or requires: from the request's fields to the rules of a grammar."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.tools import NO_PARAMETERS, FunctionDefinition, Tool
from service.api.served import ServedModel
from service.errors import InvalidParameter
from service.text.grammar import definition
from service.text.grammar.definition import GrammarDefinition
from service.text.tools.format import ToolFormat
from service.text.tools.grammar import CallableTool, CallRules, special_markers, tool_grammar
from service.text.tools.parameters import parameters_of

MAX_SCHEMAS_BYTES = 256 * 1024


@dataclass(frozen=True)
class ToolUse:
    """The calls that an answer may have, or must consist of."""

    tool_format: ToolFormat
    tools: Sequence[tuple[int, Tool]]  # those that may be called, with their places in the request
    is_required: bool
    is_named: bool  # whether the request names the one function that must be called
    allows_several: bool

    def shown_ids(self, model: ServedModel) -> frozenset[int]:
        """Return the special tokens that the text must show for calls to be found in it."""
        return frozenset(special_markers(self.tool_format, model.tokenizer).values())

    @cached_property
    def callables(self) -> tuple[CallableTool, ...]:
        """The tools as grammars need them, after milliseconds; raises InvalidParameter for a schema at fault.

        A schema that a call must satisfy, since the request requires calls or the tool is strict, is enforced whole.
        """
        return self._read[0]

    @property
    def relaxed(self) -> Sequence[str]:
        """The paths of what the other schemas have and no call is held to."""
        return self._read[1]

    @property
    def optional(self) -> Sequence[str]:
        """The paths of the other schemas."""
        return [_param(index) for index, tool in self.tools if not self._promises(tool)]

    @cached_property
    def _read(self) -> tuple[tuple[CallableTool, ...], Sequence[str]]:
        relaxed: list[str] = []
        too_large = self._too_large()
        found: list[CallableTool] = []
        for index, tool in self.tools:
            param, function = _param(index), tool.function
            if index in too_large:
                relaxed.append(param)
                function = function.model_copy(update={"parameters": {}})
            has_elements = self.tool_format.has_elements
            found.append(
                _callable(function, param, has_elements=has_elements, relaxed=None if self._promises(tool) else relaxed)
            )
        return tuple(found), relaxed

    def _promises(self, tool: Tool) -> bool:
        """Return whether the request asks that calls of a tool satisfy its whole schema."""
        return self.is_required or tool.function.strict

    def _too_large(self) -> set[int]:
        """Return the places of the tools without whose schemas the others are small enough, the largest first.

        Raises:
            InvalidParameter: the schemas that must be enforced are too large by themselves.
        """
        sizes = {index: len(json.dumps(tool.function.parameters)) for index, tool in self.tools}
        optional = [index for index, tool in self.tools if not self._promises(tool)]
        left_out: set[int] = set()
        for index in sorted(optional, key=sizes.__getitem__, reverse=True):
            if sum(sizes.values()) <= MAX_SCHEMAS_BYTES:
                break
            sizes[index] = 0
            left_out.add(index)
        if sum(sizes.values()) > MAX_SCHEMAS_BYTES:
            message = f"Invalid 'tools': their parameters are larger than {MAX_SCHEMAS_BYTES} bytes together."
            raise InvalidParameter(message, param="tools")
        return left_out

    @property
    def text_names(self) -> dict[str, frozenset[str]]:
        """Of each function, the parameters whose values are written as they are."""
        return {tool.name: frozenset(p.name for p in tool.parameters.stated if p.is_text) for tool in self.callables}

    def grammar(
        self, model: ServedModel, answer: GrammarDefinition | None, *, has_optional: bool = True
    ) -> list[Mapping[str, Any]]:
        """Return the grammar of the answer as parts for the compiler, after milliseconds.

        Args:
            model: that answers.
            answer: the grammar of an answer that calls no tool; None for any text.
            has_optional: whether calls are held to the schemas that they need not satisfy, as far as those can be
                enforced; otherwise their arguments are any object.

        Raises:
            InvalidParameter: the schema of a tool cannot be enforced.
        """
        if answer is not None and not self.is_required and not self.tool_format.opening:
            field = answer.param.partition(".")[0]
            message = (
                f"'{field}' contradicts 'tools': this model's calls begin like JSON answers. "
                "Send 'tool_choice': 'none' or 'required'."
            )
            raise InvalidParameter(message, param=field)
        callables = [
            tool if has_optional or self._promises(stated) else tool.with_any_arguments()
            for tool, (_, stated) in zip(self.callables, self.tools, strict=True)
        ]
        rules = CallRules(
            callables,
            self.is_required,
            self.allows_several,
            None if answer is None or self.is_required else answer.part,
        )
        other_ids = {i for i in model.tokenizer.special_ids - model.stop_ids if i < model.vocab_size}
        return tool_grammar(self.tool_format, rules, model.tokenizer, other_ids)


def tool_use(body: ChatCompletionRequest, model: ServedModel) -> ToolUse | None:
    """Return how the answers of a chat whose template has rendered its tools may call them; None for no known way."""
    tool_format = model.chat_template.tool_format if model.chat_template is not None else None
    if tool_format is None:
        return None
    choice = body.tool_choice
    allowed = {} if choice is None else choice.names
    is_named = choice is not None and choice.function is not None
    return ToolUse(
        tool_format,
        [(i, tool) for i, tool in enumerate(body.tools) if not allowed or tool.function.name in allowed],
        is_required=choice is not None and choice.is_required,
        is_named=is_named,
        allows_several=body.parallel_tool_calls and tool_format.allows_several and not is_named,
    )


def _param(index: int) -> str:
    return f"tools[{index}].function.parameters"


def _callable(
    function: FunctionDefinition, param: str, *, has_elements: bool, relaxed: list[str] | None
) -> CallableTool:
    schema = function.parameters
    if schema is None or (not schema and function.strict):
        schema = NO_PARAMETERS | {"additionalProperties": False}
    schema = _of_object(schema, param, relaxed)
    part = definition.json_part(schema, param, is_strict=function.strict, relaxed=relaxed)
    if not has_elements:
        return CallableTool(function.name, part)
    return CallableTool(function.name, part, parameters_of(part, param, relaxed))


def _of_object(schema: dict[str, Any], param: str, relaxed: list[str] | None) -> dict[str, Any]:
    """Return the schema of arguments, which are an object even where it does not say so."""
    stated = schema.get("type")
    if stated is not None and "object" not in (stated if isinstance(stated, list) else [stated]):
        param = f"{param}.type"
        if relaxed is None:
            message = f"Invalid '{param}': the parameters of a function are an object, so it must be 'object'."
            raise InvalidParameter(message, param=param)
        relaxed.append(param)
        return {"type": "object"}
    return {keyword: value for keyword, value in schema.items() if keyword != "nullable"} | {"type": "object"}
