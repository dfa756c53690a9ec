"""The tools of a chat and the choice among them.

Source: https://platform.openai.com/docs/api-reference/chat/create#chat_create-tools
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from service.api.schema.structured import NAME_PATTERN
from service.api.schema.wire import WireObject
from service.errors import InvalidParameter, MissingParameter, UnsupportedParameter

MAX_TOOLS = 128  # OpenAI's
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class FunctionDefinition(WireObject):
    """A function that the model may call."""

    name: str = Field(pattern=NAME_PATTERN)
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON Schema of an object; None for a function without parameters
    strict: bool = False  # whether OpenAI's rules of strict schemas apply; calls are held to the schema either way


class Tool(WireObject):
    """A tool of a chat; functions are the only kind."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"function": FunctionDefinition}
    supported_types: ClassVar[tuple[str, ...]] = ("function",)

    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it."""
        stated = self.function.model_dump(exclude={"strict"}, exclude_none=True)
        # Some read the parameters without looking whether there are any.
        return {"type": "function", "function": {"parameters": NO_PARAMETERS} | stated}


class NamedFunction(WireObject):
    """The function that must be called."""

    name: str


class ToolChoice(WireObject):
    """Whether tools may or must be called."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"function": NamedFunction}

    type: Literal["none", "auto", "required", "function"]
    function: NamedFunction | None = None


def as_tool_choice(value: Any) -> Any:
    """Return a choice that is stated as a word as an object."""
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            message = (
                "Invalid 'tool_choice': it must be 'none', 'auto', 'required', or an object that names a function."
            )
            raise InvalidParameter(message, param="tool_choice")
        return {"type": value}
    if isinstance(value, dict) and value.get("type") != "function":
        raise UnsupportedParameter("tool_choice.type", "an object names a function, so its type is 'function'.")
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
        raise InvalidParameter("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
    if choice.type == "function" and choice.function is None:
        raise MissingParameter("tool_choice.function")
    if choice.function is not None and choice.function.name not in names:
        param = "tool_choice.function.name"
        raise InvalidParameter(f"Invalid '{param}': none of the 'tools' has this name.", param=param)
