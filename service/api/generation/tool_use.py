"""The tool calls that a chat allows or requires: from the request's fields to the rules of a grammar."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from service.api.dependencies import ServedModel
from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.tools import NO_PARAMETERS, Tool
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
        """The tools as grammars need them, after milliseconds; raises InvalidParameter for a schema at fault."""
        has_elements = self.tool_format.has_elements
        return tuple(
            _callable(tool, f"tools[{index}].function.parameters", has_elements=has_elements)
            for index, tool in self.tools
        )

    @property
    def text_names(self) -> dict[str, frozenset[str]]:
        """Of each function, the parameters whose values are written as they are."""
        return {tool.name: frozenset(p.name for p in tool.parameters if p.is_text) for tool in self.callables}

    def grammar(self, model: ServedModel, answer: GrammarDefinition | None) -> list[Mapping[str, Any]]:
        """Return the grammar of the answer as parts for the compiler, after milliseconds.

        Args:
            model: that answers.
            answer: the grammar of an answer that calls no tool; None for any text.

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
        if sum(len(json.dumps(tool.function.parameters)) for _, tool in self.tools) > MAX_SCHEMAS_BYTES:
            message = f"Invalid 'tools': their parameters are larger than {MAX_SCHEMAS_BYTES} bytes together."
            raise InvalidParameter(message, param="tools")
        rules = CallRules(
            self.callables,
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


def _callable(tool: Tool, param: str, *, has_elements: bool) -> CallableTool:
    schema = tool.function.parameters
    if schema is not None and schema.get("type") != "object":
        message = f"Invalid '{param}.type': the parameters of a function are an object, so it must be 'object'."
        raise InvalidParameter(message, param=f"{param}.type")
    stated = NO_PARAMETERS | {"additionalProperties": False} if schema is None else schema
    part = definition.json_part(stated, param, is_strict=tool.function.strict)
    return CallableTool(tool.function.name, part, parameters_of(part, param) if has_elements else ())
