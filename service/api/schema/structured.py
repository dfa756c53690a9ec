"""Fields that constrain the text of an answer: OpenAI's `response_format` and vLLM's `structured_outputs`.

Source: https://platform.openai.com/docs/api-reference/chat/create#chat_create-response_format,
https://docs.vllm.ai/en/latest/features/structured_outputs.html
"""

from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from service.api.conversation import ANY_OBJECT, AnswerFormat
from service.api.schema.wire import ANY, NeutralValues, WireObject
from service.errors import InvalidParameter, MissingParameter

# Of schemas. Source: https://platform.openai.com/docs/api-reference/chat/create
NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,64}$"
NOTATIONS: tuple[Literal["regex", "choice", "grammar"], ...] = ("regex", "choice", "grammar")
# Grammars of other servers' formats, which are `structured_outputs` here.
GRAMMARS_OF_FORMATS: NeutralValues = dict.fromkeys(
    ("ebnf", "grammar", "pattern", "regex", "stop_regex", "structural_tag", "structures", "triggers"), ()
)


class JsonSchemaFormat(WireObject):
    """A schema that an answer must satisfy."""

    name: str | None = None
    """The schema's name; without effect."""
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    """A JSON Schema. A keyword that cannot be enforced is refused by its path."""
    strict: bool = False
    """Whether OpenAI's rules of strict schemas apply too; the schema is enforced either way."""


class ResponseFormat(WireObject):
    """Whether an answer is text, any JSON object, or JSON that satisfies a schema."""

    refused: ClassVar[NeutralValues] = GRAMMARS_OF_FORMATS

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    """The schema, for the type `json_schema`; llama.cpp's `schema` beside the type `json_object` is one too."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a format whose schema is where OpenAI has it."""
        name = next((name for name in ("schema", "value") if document.get(name) is not None), None)
        if name is None or document.get("json_schema") is not None:
            return document
        others = {key: value for key, value in document.items() if key != name}
        if document.get("type") in ("json_object", "json"):
            others["type"] = "json_schema"
        return others | {"json_schema": {"schema": document[name]}}

    def check(self) -> None:
        """Refuse a schema that is missing, or that has no effect.

        Raises:
            MissingParameter, InvalidParameter: the type and the schema do not belong together.
        """
        if self.type == "json_schema" and self.json_schema is None:
            raise MissingParameter("response_format.json_schema")
        if self.type != "json_schema" and self.json_schema is not None:
            message = "'response_format.json_schema' needs 'response_format.type' to be 'json_schema'."
            raise InvalidParameter(message, param="response_format.json_schema")

    def as_format(self) -> AnswerFormat | None:
        """Return the form of the answer's text; None for any text."""
        if self.json_schema is not None:
            schema, at = self.json_schema, "response_format.json_schema.schema"
            return AnswerFormat("json", schema.schema_, at, "response_format", is_strict=schema.strict)
        is_json = self.type == "json_object"
        return AnswerFormat("json", ANY_OBJECT, "response_format", "response_format") if is_json else None


def _schema_or_text(value: Any) -> dict[str, Any] | str:
    if not isinstance(value, dict | str):
        raise PydanticCustomError("schema", "Input should be a JSON schema, or the text of one")
    return value


class StructuredOutputs(WireObject):
    """A grammar of the answer in one of five notations."""

    refused: ClassVar[NeutralValues] = {
        "disable_additional_properties": (False,),
        "stop_regex": (),
        "structural_tag": (),
    }
    hints: ClassVar[NeutralValues] = {
        "disable_any_whitespace": (False,),  # JSON has at most one space after a comma or a colon
        "disable_fallback": ANY,  # there is one backend
        "whitespace_pattern": (),
    }

    json_: Annotated[
        dict[str, Any] | str | None,
        PlainValidator(_schema_or_text, json_schema_input_type=dict[str, Any] | str),
    ] = Field(default=None, alias="json")
    """A JSON Schema, or its text."""
    regex: Annotated[str, Field(min_length=1)] | None = None
    """A regular expression that the whole answer matches."""
    choice: list[str] | None = None
    """Texts, one of which is the answer."""
    grammar: str | None = None
    """A grammar in Lark's syntax, or in llama.cpp's GBNF."""
    json_object: Literal[True] | None = None
    """Whether the answer is any JSON object."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a grammar under vLLM's names of the notations."""
        names = {"ebnf": "grammar", "json_schema": "json"}
        if not document.keys() & names.keys():
            return document
        return {names.get(name, name): value for name, value in document.items() if value is not None}

    def check(self) -> None:
        """Refuse no notation, and several.

        Raises:
            InvalidParameter: there is not exactly one.
        """
        stated = [value for value in dict(self).values() if value is not None]
        if len(stated) != 1:
            message = (
                f"Invalid 'structured_outputs': it has {len(stated)} of 'json', 'regex', 'choice', 'grammar' and "
                "'json_object'. Send one."
            )
            raise InvalidParameter(message, param="structured_outputs")

    def as_format(self) -> AnswerFormat:
        """Return the form of the answer's text."""
        for name in NOTATIONS:
            if (value := getattr(self, name)) is not None:
                return AnswerFormat(name, value, f"structured_outputs.{name}", "structured_outputs")
        if self.json_ is not None:
            return AnswerFormat("json", self.json_, "structured_outputs.json", "structured_outputs")
        return AnswerFormat("json", ANY_OBJECT, "structured_outputs.json_object", "structured_outputs")
