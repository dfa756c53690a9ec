"""The body of POST /v1/decisions, and the conversation that its questions are about.

Source: https://github.com/openai/openai-python/blob/main/src/openai/types/decision_create_params.py
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import BeforeValidator, Discriminator, Field, PlainValidator, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError, to_json

from service.api.conversation import Conversation, Options, OwnThinking
from service.api.schema.generation import MAX_NAME_CHARS
from service.api.schema.response_input import InputItem, InputPart, as_items, check_results, turns_of
from service.api.schema.wire import ANY, UNION_MEMBER, NeutralValues, OrText, WireObject
from service.engine.request import MAX_PRIORITY
from service.errors import InvalidParameter, UnsupportedParameter

MAX_QUESTIONS, MAX_CHOICES, MAX_LEVELS = 400, 255, 10
JSON_PART = "input_json"


class DecisionPart(InputPart):
    """A part of the input or of a question: as in a response's input, or JSON (`input_json`), read as its text."""

    supported_types: ClassVar[tuple[str, ...]] = (*InputPart.supported_types, JSON_PART)

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        if document.get("type") != JSON_PART:
            return super().rewritten(document)
        data = document.get("data")
        objects = data if isinstance(data, list) else [data]
        if not all(isinstance(item, dict) for item in objects):
            message = f"Invalid 'input': the 'data' of a part of type '{JSON_PART}' is an object, or a list of objects."
            raise InvalidParameter(message, param="input")
        others = {name: value for name, value in document.items() if name != "data"}
        return others | {"type": "input_text", "text": to_json(data).decode()}


class DecisionItem(InputItem):
    """One item of the input."""

    read_as: ClassVar[Mapping[str, type[WireObject]]] = {"content": DecisionPart, "output": DecisionPart}


class Option(WireObject):
    """What an answer may be."""

    description: str | None = None
    """What it means, for the model."""

    @property
    def text(self) -> str:
        """What the model reads."""
        return self.title if self.description is None else f"{self.title}: {self.description}"

    @property
    def title(self) -> str:
        """Its value or label."""
        raise NotImplementedError


def _value(value: Any) -> str | bool:
    if not isinstance(value, str | bool):
        raise PydanticCustomError("choice_value", "Input should be a string or a boolean")
    return value


class ChoiceOption(Option):
    """One of the values of a choice."""

    value: Annotated[
        str | bool, PlainValidator(_value), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "boolean"}]})
    ]
    """What the answer has for it; the boolean `true` is another value than the string."""

    @property
    @override
    def title(self) -> str:
        return self.value if isinstance(self.value, str) else str(self.value).lower()


class Level(Option):
    """One of the levels of a score, whose value is its place in their order, from 0."""

    label: str = Field(min_length=1)
    """The level's name."""

    @property
    @override
    def title(self) -> str:
        return self.label


class Question(WireObject):
    """A question about the input: `predicate`, `choice` or `score`."""

    supported_types: ClassVar[tuple[str, ...]] = ("predicate", "choice", "score")

    name: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """The name that the answer repeats."""
    instructions: Annotated[list[DecisionPart], Field(min_length=1, fail_fast=True), OrText("input_text")]
    """The question, as a text or in parts."""

    @property
    def text(self) -> str:
        """The question."""
        return "".join(part.text for part in self.instructions)

    @property
    def options(self) -> Sequence[str]:
        """What the model reads of each option."""
        raise NotImplementedError

    @property
    def labels(self) -> Sequence[str]:
        """The labels of the options, if each is a token of the model."""
        return ()

    def check(self, path: str) -> None:
        """Check the question's parts and options.

        Raises:
            UnsupportedParameter, MissingParameter, InvalidParameter: they are at fault.
        """
        for number, part in enumerate(self.instructions):
            at = f"{path}.instructions[{number}]"
            part.check(f"{at}.", can_show=True)
            if part.image_url is not None:
                raise UnsupportedParameter(f"{at}.type", "a question has no images of its own. Send them as 'input'.")


class Predicate(Question):
    """How likely a statement about the input is true."""

    type: Literal["predicate"]

    @property
    @override
    def options(self) -> Sequence[str]:
        return ("this is true", "this is not true")

    @property
    @override
    def labels(self) -> Sequence[str]:
        return ("Yes", "No")


class ChoiceQuestion(Question):
    """Which of several values fits the input."""

    type: Literal["choice"]
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=MAX_CHOICES, fail_fast=True)]
    """The values, each of them once."""

    @property
    @override
    def options(self) -> Sequence[str]:
        return [choice.text for choice in self.choices]

    @override
    def check(self, path: str) -> None:
        super().check(path)
        seen: set[tuple[bool, str | bool]] = set()
        for number, choice in enumerate(self.choices):
            key = isinstance(choice.value, bool), choice.value
            if key in seen:
                param = f"{path}.choices[{number}].value"
                raise InvalidParameter(f"Invalid '{param}': an earlier choice has this value.", param=param)
            seen.add(key)


class ScoreQuestion(Question):
    """Where the input is on a scale of levels."""

    type: Literal["score"]
    levels: Annotated[list[Level], Field(min_length=2, max_length=MAX_LEVELS, fail_fast=True)]
    """The levels from the lowest to the highest."""

    @property
    @override
    def options(self) -> Sequence[str]:
        return [level.text for level in self.levels]

    @property
    @override
    def labels(self) -> Sequence[str]:
        return [str(number) for number in range(len(self.levels))]


KINDS: dict[str, type[Question]] = {"predicate": Predicate, "choice": ChoiceQuestion, "score": ScoreQuestion}
Question.kinds = KINDS


def _kind(value: Any) -> str | None:
    stated = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"{UNION_MEMBER}{stated}]" if isinstance(stated, str) else None


AnyQuestion = Annotated[
    Annotated[Predicate, Tag(f"{UNION_MEMBER}predicate]")]
    | Annotated[ChoiceQuestion, Tag(f"{UNION_MEMBER}choice]")]
    | Annotated[ScoreQuestion, Tag(f"{UNION_MEMBER}score]")],
    Discriminator(_kind),
]
Items = Annotated[list[DecisionItem], Field(min_length=1, fail_fast=True)]


class DecisionsRequest(WireObject):
    """The body of POST /v1/decisions."""

    hints: ClassVar[NeutralValues] = {"prompt_cache_key": ANY, "prompt_cache_options": ANY}
    bulk: ClassVar[Mapping[str, Any]] = {"input": ""}

    model: str = Field(max_length=MAX_NAME_CHARS)
    input: Annotated[Items, BeforeValidator(as_items, json_schema_input_type=str | Items)]
    """What all questions are about: a text, or the items of a conversation. A user's message may have JSON
    (`input_json`), read as its text."""
    questions: Annotated[list[AnyQuestion], Field(min_length=1, max_length=MAX_QUESTIONS, fail_fast=True)]
    """The questions; each is answered by itself."""
    safety_identifier: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """The client's own user, written to the log."""
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_NAME_CHARS)
    """vLLM's: only requests with the same salt share cached prefixes."""
    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    """vLLM's: the lower, the sooner. Below 0 is for API keys that may overtake others."""

    @override
    def check_consistency(self) -> None:
        """Refuse items that are incomplete, and questions whose options are not told apart."""
        for index, item in enumerate(self.input):
            item.check(f"input[{index}]")
        check_results(self.input)
        for index, question in enumerate(self.questions):
            question.check(f"questions[{index}]")

    def conversation(self, own_thinking: OwnThinking) -> Conversation:
        """Return what the questions are about."""
        turns, unreadable = turns_of(self.input, own_thinking)
        options = Options(
            model=self.model, user=self.safety_identifier, cache_salt=self.cache_salt, priority=self.priority
        )
        return Conversation(turns=turns, at="input", options=options, ignored=unreadable)
