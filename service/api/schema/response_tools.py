"""The tools of a response and the choice among them, and the functions that stand for them.

A model is shown only functions. A custom tool is one with a single text as its argument, and a function of a namespace
has the namespace's name before its own. Tools that OpenAI runs itself are reported and left out.

Source: https://platform.openai.com/docs/api-reference/responses/create#responses_create-tools,
https://platform.openai.com/docs/guides/function-calling#custom-tools
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from service.api.conversation import Choice, Function
from service.api.schema.tools import MAX_TOOLS, NAME_PATTERN, ToolWord, as_tool_choice
from service.api.schema.wire import ANY, NeutralValues, WireObject
from service.errors import InvalidParameter, MissingParameter, UnsupportedParameter
from service.text.grammar.lark import pattern_of
from service.text.grammar.patterns import rewritten

INPUT = "input"  # the argument of a custom tool
LOCAL_SHELL = "local_shell"
NAMESPACE_END = "."
MAX_GRAMMAR_CHARS = 64 * 1024
# The arguments of a call of `local_shell`, the action of OpenAI's item.
_COMMAND: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "description": "The command and its arguments."},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "timeout_ms": {"type": "integer"},
        "working_directory": {"type": "string"},
    },
    "required": ["command"],
    "additionalProperties": False,
}


class CustomFormat(WireObject):
    """Whether the text for a custom tool is free, or follows a grammar."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    """The notation of the grammar: `lark` or `regex`."""
    definition: Annotated[str, Field(max_length=MAX_GRAMMAR_CHARS)] | None = None
    """The grammar."""

    def check(self, path: str) -> None:
        """Check that a grammar is complete; raises MissingParameter."""
        for name in ("syntax", "definition"):
            if self.type == "grammar" and getattr(self, name) is None:
                raise MissingParameter(f"{path}.{name}")

    def pattern(self) -> str | None:
        """Return the pattern that the whole text matches, None for any text.

        Raises:
            ValueError: the grammar cannot be enforced inside of a call; the message says why.
        """
        if self.definition is None:
            return None
        pattern = f"^(?:{self.definition if self.syntax == 'regex' else pattern_of(self.definition)})$"
        rewritten(pattern)
        return pattern


class NamespacedTool(WireObject):
    """A tool that the model may call: a function, or a custom tool."""

    hints: ClassVar[NeutralValues] = {
        "allowed_callers": (["direct"],),
        "async": (False,),
        "cache_control": (),
        "defer_loading": (False,),
        "output_schema": ANY,  # of what the client's function returns
    }
    supported_types: ClassVar[tuple[str, ...]] = ("function", "custom")
    leaves_out_other_types: ClassVar[bool] = True

    type: str
    name: str | None = Field(default=None, pattern=NAME_PATTERN)
    """The tool's name."""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON Schema of the arguments, an object; without it the function takes none."""
    strict: bool = False
    """Whether OpenAI's rules of strict schemas apply too; the schema is enforced either way."""
    format: CustomFormat | None = None
    """The grammar of the input; without it, any text."""

    def check(self, path: str) -> None:
        """Check that the tool has what its type consists of; raises MissingParameter."""
        if self.type != LOCAL_SHELL and self.is_offered and self.name is None:
            raise MissingParameter(f"{path}.name")
        if self.format is not None:
            self.format.check(f"{path}.format")

    @property
    def is_offered(self) -> bool:
        """Whether the model may call it, or what it has."""
        return self.type in self.supported_types

    def as_stated(self) -> dict[str, Any]:
        """Return the tool as an answer repeats it."""
        stated: dict[str, Any] = {"type": self.type, "name": self.name, "description": self.description}
        if self.type == "function":
            return stated | {"parameters": self.parameters, "strict": self.strict}
        text_format = {"type": "text"} if self.format is None else self.format.model_dump(exclude_none=True)
        return stated | {"format": text_format}


class ResponseTool(NamespacedTool):
    """A tool that the model may call, or a namespace of some."""

    supported_types: ClassVar[tuple[str, ...]] = ("function", "custom", LOCAL_SHELL, "namespace")

    tools: Annotated[list[NamespacedTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """The tools of a namespace."""

    def check(self, path: str) -> None:
        """Check the tool, and those of a namespace; raises MissingParameter."""
        super().check(path)
        if self.type == "namespace" and self.tools is None:
            raise MissingParameter(f"{path}.tools")
        for index, tool in enumerate(self.tools or ()):
            tool.check(f"{path}.tools[{index}]")

    def as_stated(self) -> dict[str, Any]:
        """Return the tool as an answer repeats it."""
        if self.type == LOCAL_SHELL:
            return {"type": LOCAL_SHELL}
        if self.type != "namespace":
            return super().as_stated()
        inner = [tool.as_stated() for tool in self.tools or () if tool.is_offered]
        return {"type": "namespace", "name": self.name, "description": self.description or "", "tools": inner}


class OfferedTool(NamedTuple):
    """A function that the model is shown, and the tool that it stands for."""

    path: str  # of the tool in the request
    type: str
    name: str
    namespace: str | None
    stated: NamespacedTool
    introduction: str | None = None  # of the namespace, which its first tool has

    @property
    def function_name(self) -> str:
        """The name that the model is shown."""
        return qualified(self.name, self.namespace)

    def as_function(self) -> Function:
        """Return the function."""
        stated, parameters_at = self.stated, f"{self.path}.parameters"
        descriptions = [text for text in (self.introduction, stated.description) if text]
        parameters = stated.parameters
        if self.type == "custom":
            parameters, parameters_at = _one_text(stated.format), f"{self.path}.format.definition"
        elif self.type == LOCAL_SHELL:
            parameters, descriptions = _COMMAND, ["Runs a command on the user's machine."]
        return Function(
            name=self.function_name,
            name_at=f"{self.path}.name",
            description="\n\n".join(descriptions) if descriptions else None,
            parameters=parameters,
            parameters_at=parameters_at,
            is_strict=stated.strict,
        )


def qualified(name: str, namespace: str | None) -> str:
    """Return the name of a function with that of its namespace."""
    return name if namespace is None else f"{namespace}{NAMESPACE_END}{name}"


def offered_tools(tools: Sequence[ResponseTool]) -> Iterator[OfferedTool]:
    """Yield the functions that stand for the tools of a response, without those that are left out."""
    for index, tool in enumerate(tools):
        path, own_name = f"tools[{index}]", tool.name or LOCAL_SHELL
        if tool.type != "namespace":
            if tool.is_offered:
                yield OfferedTool(path, tool.type, own_name, None, tool)
            continue
        introduction = tool.description
        for position, inner in enumerate(tool.tools or ()):
            if inner.name is not None and inner.is_offered:
                inner_path = f"{path}.tools[{position}]"
                yield OfferedTool(inner_path, inner.type, inner.name, own_name, inner, introduction)
                introduction = None


def unenforced_formats(tools: Iterable[OfferedTool], *, is_required: bool) -> list[str]:
    """Return the grammars of custom tools that no call is held to.

    Raises:
        InvalidParameter: the request requires calls, which are held to grammars.
    """
    found: list[str] = []
    for tool in tools:
        if tool.stated.format is None:
            continue
        try:
            tool.stated.format.pattern()
        except ValueError as error:
            param = f"{tool.path}.format.definition"
            if is_required:
                raise InvalidParameter(f"Invalid '{param}': it cannot be enforced: {error}.", param=param) from None
            found.append(param)
    return found


def _one_text(text_format: CustomFormat | None) -> dict[str, Any]:
    """Return the parameters of a function that takes one text."""
    text: dict[str, Any] = {"type": "string"}
    if text_format is not None and text_format.definition is not None:
        if text_format.syntax == "lark":
            text["description"] = f"In this grammar, in Lark's syntax:\n{text_format.definition}"
        with contextlib.suppress(ValueError):  # which `unenforced_formats` has reported
            text["pattern"] = text_format.pattern()
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


def as_response_choice(value: Any) -> Any:
    """Return a choice that is stated as a word as an object.

    Raises:
        InvalidParameter: the word is no choice.
        UnsupportedParameter: the choice names a tool that OpenAI runs itself.
    """
    if isinstance(value, str):
        return as_tool_choice(value)
    if isinstance(value, dict) and value.get("type") not in ChosenTool.supported_types:
        raise UnsupportedParameter("tool_choice.type", "tools of this type are offered to nobody here.")
    return value


class NamedTool(WireObject):
    """One of the tools that may be called."""

    supported_types: ClassVar[tuple[str, ...]] = ("function", "custom", LOCAL_SHELL)

    type: Literal["function", "custom", "local_shell"]
    name: str | None = None
    """The name of one of `tools`."""
    namespace: str | None = None
    """The namespace of the tool, if it has one."""

    @property
    def function_name(self) -> str:
        """The name of the tool's function."""
        return qualified(self.name or LOCAL_SHELL, self.namespace)


class ChosenTool(WireObject):
    """Whether tools may or must be called, and which."""

    supported_types: ClassVar[tuple[str, ...]] = (*NamedTool.supported_types, "allowed_tools")

    type: ToolWord | Literal["function", "custom", "local_shell", "allowed_tools"]
    name: str | None = None
    """The name of one of `tools`."""
    namespace: str | None = None
    """The namespace of the tool, if it has one."""
    mode: Literal["auto", "required"] | None = None
    """`auto`, or `required` where the answer must be a call."""
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """The functions that may be called, for the type `allowed_tools`."""

    @model_serializer(mode="wrap")
    def as_sent(self, handler: SerializerFunctionWrapHandler) -> Any:
        """Return the choice as a client may send it: a word if its type says it all."""
        return self.type if self.type in ("none", "auto", "required") else handler(self)

    @property
    def is_required(self) -> bool:
        """Whether the answer must be a call."""
        return self.mode == "required" or self.type == "required" or self.type in NamedTool.supported_types

    def check(self) -> None:
        """Check that the choice has what its type consists of, and nothing else."""
        kinds = {"name": ("function", "custom"), "mode": ("allowed_tools",), "tools": ("allowed_tools",)}
        for name, types in kinds.items():
            param, is_stated = f"tool_choice.{name}", getattr(self, name) is not None
            if self.type in types and not is_stated:
                raise MissingParameter(param)
            if self.type not in types and is_stated:
                raise InvalidParameter(f"'{param}' needs 'tool_choice.type' to be '{types[0]}'.", param=param)
        for index, tool in enumerate(self.tools or ()):
            if tool.name is None and tool.type != LOCAL_SHELL:
                raise MissingParameter(f"tool_choice.tools[{index}].name")

    def as_stated(self) -> str | dict[str, Any]:
        """Return the choice as the client stated it."""
        return self.model_dump(exclude_none=True) if self.type in self.supported_types else self.type

    def as_choice(self) -> Choice:
        """Return the choice."""
        if self.type in ("none", "auto", "required"):
            return Choice(self.type)
        if self.type != "allowed_tools":
            name = qualified(self.name or LOCAL_SHELL, self.namespace)
            return Choice("required", {name: "tool_choice.name"}, is_named=True)
        tools = enumerate(self.tools or ())
        names = {tool.function_name: f"tool_choice.tools[{index}].name" for index, tool in tools}
        return Choice(self.mode or "auto", names)
