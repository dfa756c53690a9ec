"""The tools of a chat and the choice among them.

Source: https://platform.openai.com/docs/api-reference/chat/create#chat_create-tools
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from service.api.conversation import ANY_CHOICE, Choice, Function
from service.api.schema.wire import WireObject
from service.errors import InvalidParameter, MissingParameter, UnsupportedParameter
from service.text.formats.format import NAME

MAX_TOOLS = 128  # OpenAI's
NAME_PATTERN = f"^{NAME}$"
ToolWord = Literal["none", "auto", "required"]


class FunctionDefinition(WireObject):
    """A function that the model may call."""

    name: str = Field(pattern=NAME_PATTERN)
    """The function's name."""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON Schema of the arguments, an object; without it the function takes none."""
    strict: bool = False
    """Whether OpenAI's rules of strict schemas apply to the parameters too."""


class Tool(WireObject):
    """A tool of a chat; functions are the only kind."""

    supported_types: ClassVar[tuple[str, ...]] = ("function",)

    type: Literal["function"]
    function: FunctionDefinition
    """The function."""

    def as_tool(self, at: str) -> Function:
        """Return the function, whose tool has this path."""
        function = self.function
        return Function(
            name=function.name,
            name_at=f"{at}.function.name",
            description=function.description,
            parameters=function.parameters,
            parameters_at=f"{at}.function.parameters",
            is_strict=function.strict,
            sent=self.sent,
        )


class NamedFunction(WireObject):
    """The function that must be called."""

    name: str
    """The name of one of `tools`."""


class AllowedTool(WireObject):
    """One of the functions that may be called."""

    supported_types: ClassVar[tuple[str, ...]] = ("function",)

    type: Literal["function"]
    function: NamedFunction
    """The function."""


class AllowedTools(WireObject):
    """Some of the tools, all of which the prompt shows."""

    mode: Literal["auto", "required"]
    """`auto`, or `required` where the answer must be a call."""
    tools: Annotated[list[AllowedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]
    """The functions that may be called."""


class ToolChoice(WireObject):
    """Whether tools may or must be called, and which."""

    supported_types: ClassVar[tuple[str, ...]] = ("none", "auto", "required", "function", "allowed_tools")

    type: Literal["none", "auto", "required", "function", "allowed_tools"]
    function: NamedFunction | None = None
    """The function that must be called."""
    allowed_tools: AllowedTools | None = None
    """The functions that may be called, for the type `allowed_tools`; the prompt shows all tools."""

    @model_serializer(mode="wrap")
    def as_sent(self, handler: SerializerFunctionWrapHandler) -> Any:
        """Return the choice as a client may send it: a word if its type says it all."""
        return self.type if self.type in ("none", "auto", "required") else handler(self)

    def as_choice(self) -> Choice:
        """Return the choice.

        Raises:
            MissingParameter, InvalidParameter: it has not what its type consists of.
        """
        for field in ("function", "allowed_tools"):
            param, is_stated = f"tool_choice.{field}", getattr(self, field) is not None
            if self.type == field and not is_stated:
                raise MissingParameter(param)
            if self.type not in (field, "none") and is_stated:
                raise InvalidParameter(f"'{param}' needs 'tool_choice.type' to be '{field}'.", param=param)
        match self.type:
            case "function" if self.function is not None:
                names = {self.function.name: "tool_choice.function.name"}
                return Choice("required", names, is_named=True)
            case "allowed_tools" if self.allowed_tools is not None:
                path = "tool_choice.allowed_tools.tools"
                tools = enumerate(self.allowed_tools.tools)
                names = {tool.function.name: f"{path}[{index}].function.name" for index, tool in tools}
                return Choice(self.allowed_tools.mode, names)
            case "none" | "required" as mode:
                return Choice(mode)
            case _:
                return ANY_CHOICE


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
