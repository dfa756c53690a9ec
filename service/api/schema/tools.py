"""The tools of a chat and the choice among them.

Source: https://platform.openai.com/docs/api-reference/chat/create#chat_create-tools
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from service.api.schema.wire import WireObject
from service.errors import InvalidParameter, MissingParameter, UnsupportedParameter
from service.text.formats.format import NAME

MAX_TOOLS = 128  # OpenAI's
NAME_PATTERN = f"^{NAME}$"
ToolWord = Literal["none", "auto", "required"]
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class FunctionDefinition(WireObject):
    """A function that the model may call."""

    name: str = Field(pattern=NAME_PATTERN)
    """The function's name."""
    description: str | None = None
    """What it is for."""
    parameters: dict[str, Any] | None = None
    """A JSON Schema of the arguments, an object; without it the function takes none."""
    strict: bool = False
    """Whether OpenAI's rules of strict schemas apply to the parameters too."""


class Tool(WireObject):
    """A tool of a chat; functions are the only kind."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"function": FunctionDefinition}
    supported_types: ClassVar[tuple[str, ...]] = ("function",)

    type: Literal["function"]
    """The kind of the object."""
    function: FunctionDefinition
    """The function."""

    def for_template(self) -> dict[str, Any]:
        """Return the tool as the client sent it; one of another dialect as name, description and parameters."""
        if self.sent is not None:
            return self.sent
        return {"type": "function", "function": self.function.model_dump(exclude={"strict"}, exclude_none=True)}


class NamedFunction(WireObject):
    """The function that must be called."""

    name: str
    """The name of one of `tools`."""


class AllowedTool(WireObject):
    """One of the functions that may be called."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"function": NamedFunction}
    supported_types: ClassVar[tuple[str, ...]] = ("function",)

    type: Literal["function"]
    """The kind of the object."""
    function: NamedFunction
    """The function."""


class AllowedTools(WireObject):
    """Some of the tools, all of which the prompt shows."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"tools": AllowedTool}

    mode: Literal["auto", "required"]
    """`auto`, or `required` where the answer must be a call."""
    tools: Annotated[list[AllowedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]
    """The functions that may be called."""


class ToolChoice(WireObject):
    """Whether tools may or must be called, and which."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"allowed_tools": AllowedTools, "function": NamedFunction}
    supported_types: ClassVar[tuple[str, ...]] = ("none", "auto", "required", "function", "allowed_tools")

    type: Literal["none", "auto", "required", "function", "allowed_tools"]
    """The kind of the object."""
    function: NamedFunction | None = None
    """The function that must be called."""
    allowed_tools: AllowedTools | None = None
    """The functions that may be called, for the type `allowed_tools`; the prompt shows all tools."""

    @model_serializer(mode="wrap")
    def as_sent(self, handler: SerializerFunctionWrapHandler) -> Any:
        """Return the choice as a client may send it: a word if its type says it all."""
        return self.type if self.type in ("none", "auto", "required") else handler(self)

    @property
    def is_required(self) -> bool:
        """Whether the answer must be a call."""
        if self.allowed_tools is not None:
            return self.allowed_tools.mode == "required"
        return self.type in ("required", "function")

    @property
    def names(self) -> dict[str, str]:
        """The functions that may be called, each with the field that names it; empty for all tools."""
        if self.allowed_tools is not None:
            path = "tool_choice.allowed_tools.tools"
            return {tool.function.name: f"{path}[{i}].function.name" for i, tool in enumerate(self.allowed_tools.tools)}
        return {} if self.function is None else {self.function.name: "tool_choice.function.name"}


def as_tool_choice(value: Any) -> Any:
    """Return a choice that is stated as a word as an object."""
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            message = (
                "Invalid 'tool_choice': it must be 'none', 'auto', 'required', or an object that names a function."
            )
            raise InvalidParameter(message, param="tool_choice")
        return {"type": value}
    if isinstance(value, dict) and value.get("type") not in ("function", "allowed_tools"):
        message = "an object names functions, so its type is 'function' or 'allowed_tools'."
        raise UnsupportedParameter("tool_choice.type", message)
    return value


def check_tools(tools: Sequence[Tool], choice: ToolChoice | None = None) -> None:
    """Check the names of tools, and that the choice is one of them.

    Raises:
        InvalidParameter: two tools have one name, the choice names none of them, or there is a choice without tools.
        MissingParameter: the choice has no name.
    """
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.function.name in names:
            param = f"tools[{index}].function.name"
            message = f"Invalid '{param}': another tool is named '{tool.function.name}' too. Rename one of them."
            raise InvalidParameter(message, param=param)
        names.add(tool.function.name)
    if choice is None or choice.type == "none":
        return
    if not tools:
        if choice.type == "auto":
            return
        raise InvalidParameter("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
    for field in ("function", "allowed_tools"):
        if choice.type == field and getattr(choice, field) is None:
            raise MissingParameter(f"tool_choice.{field}")
        if choice.type != field and getattr(choice, field) is not None:
            param = f"tool_choice.{field}"
            raise InvalidParameter(f"'{param}' needs 'tool_choice.type' to be '{field}'.", param=param)
    for name, param in choice.names.items():
        if name not in names:
            raise InvalidParameter(f"Invalid '{param}': none of the 'tools' has this name.", param=param)
