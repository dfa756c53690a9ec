"""Conversations: turns, tools and sampling of a request, whatever its interface (chat, Responses, Messages, Ollama).

Each part has its path in the client's own body (`at`), so that an error names the field that the client has sent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from service.api.open_calls import OpenCalls
from service.errors import InvalidParameter, MissingParameter
from service.text.grammar import definition
from service.text.grammar.definition import GrammarDefinition

INT64_MAX = 2**63 - 1
ANY_OBJECT: dict[str, Any] = {"type": "object"}
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
OFF = "none"  # the effort of a request that wants no thinking

# Returns the thinking of a text, which may be empty, and its proof; None unless this service has signed it.
type OwnThinking = Callable[[str, str], str | None]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A text in a turn."""

    text: str
    at: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image in a turn."""

    url: str
    detail: str
    at: str
    type_at: str  # the field that says that the part is an image


type Part = TextPart | ImagePart


class Call(NamedTuple):
    """A call that an earlier turn made."""

    id: str | None  # None: the results come in the calls' order
    name: str
    arguments: str  # a JSON object, or whatever a model has written instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of the conversation."""

    role: str
    parts: tuple[Part, ...] | None  # None: it has no content
    at: str
    name: str | None = None
    thinking: str | None = None  # before an earlier answer
    calls: tuple[Call, ...] = ()
    call_id: str | None = None  # the call that a tool's turn answers
    sent: Mapping[str, Any] | None = None  # key by key; None unless it came as a message of a chat

    @property
    def images(self) -> list[ImagePart]:
        """Its images."""
        return [part for part in self.parts or () if isinstance(part, ImagePart)]

    @property
    def texts(self) -> list[TextPart]:
        """Its texts."""
        return [part for part in self.parts or () if isinstance(part, TextPart)]

    def field(self, name: str) -> str:
        """Return the path of one of its fields; a turn that is a field by itself has no others."""
        return f"{self.at}.{name}" if self.at.endswith("]") else self.at


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function that the model may call."""

    name: str
    name_at: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # None: it takes none
    parameters_at: str
    is_strict: bool = False
    sent: dict[str, Any] | None = None  # key by key; None unless it came as a tool of a chat

    def for_template(self) -> dict[str, Any]:
        """Return the tool as a chat template gets it: as the client sent it, else with what is stated."""
        if self.sent is not None:
            return self.sent
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Choice:
    """Whether tools may or must be called, and which."""

    mode: Literal["none", "auto", "required"] = "auto"
    names: Mapping[str, str] = field(default_factory=dict)  # with the field that states each; empty for all tools
    is_named: bool = False  # whether it is one function that must be called


ANY_CHOICE = Choice()


@dataclass(frozen=True)
class AnswerFormat:
    """A form that the answer's text must have."""

    kind: Literal["json", "regex", "choice", "grammar"]
    value: Any  # a JSON Schema or its text, a pattern, the texts, a grammar in Lark's syntax or GBNF
    at: str
    field: str  # the field that states it, which may be a part of `at`
    is_strict: bool = False  # whether OpenAI's rules of strict schemas hold

    def definition(self) -> GrammarDefinition:
        """Return the grammar of the answer, after milliseconds.

        Raises:
            InvalidParameter: it cannot be enforced.
        """
        match self.kind:
            case "json":
                return definition.of_schema(self._schema(), self.at, is_strict=self.is_strict)
            case "regex":
                return definition.of_pattern(self.value, self.at)
            case "choice":
                return definition.of_choices(self.value, self.at)
            case "grammar":
                return definition.of_grammar(self.value, self.at)

    def _schema(self) -> Any:
        if not isinstance(self.value, str):
            return self.value
        try:
            return from_json(self.value, allow_inf_nan=False)
        except ValueError as error:
            raise InvalidParameter(f"Invalid '{self.at}': it is not valid JSON: {error}.", param=self.at) from None


class Effort(NamedTuple):
    """How much a request wants the model to think."""

    level: str | None  # OpenAI's word, or the client's own; None for thinking of no stated degree
    at: str

    @property
    def is_off(self) -> bool:
        """Whether the request wants no thinking."""
        return self.level == OFF


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the answer is sampled, when it ends, and what comes with it; None leaves it to the operator or the author."""

    model: str
    stream: bool = False
    user: str | None = None  # for the log
    format: AnswerFormat | None = None  # None: any text
    max_tokens: int | None = None
    max_tokens_at: str = "max_tokens"
    n: int = 1
    num_logprobs: int | None = None  # alternatives for each token; None for no log-probabilities
    num_prompt_logprobs: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: Sequence[int] = ()
    allowed_token_ids: Sequence[int] | None = None
    stop: Sequence[str] = ()
    include_stop_str_in_output: bool = False
    priority: int = 0
    bad_words: Sequence[str] = ()
    cache_salt: str | None = None
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] = "left"
    prediction: str | None = None  # text that the answer is expected to have

    def check_token_ids(self, vocab_size: int) -> None:
        """Check every token id of the request against the model's vocabulary.

        Raises:
            InvalidParameter: an id is out of range.
        """
        for name, token_ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("allowed_token_ids", self.allowed_token_ids or ()),
        ):
            if token_ids and (largest := max(token_ids)) >= vocab_size:
                raise unknown_token(f"{name}[{token_ids.index(largest)}]", largest, vocab_size)
        for token_id in self.logit_bias:
            if token_id >= vocab_size:
                raise unknown_token("logit_bias", token_id, vocab_size)

    def seed_for(self, index: int, default: int) -> int:
        """Return the seed of one choice: the first uses the request's seed, the others are derived from it.

        Args:
            index: the number of the choice among those of its prompt.
            default: the first choice's seed if the request has none.

        Source: the steps between seeds: Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators".
        """
        own = default if self.seed is None else self.seed
        return (own + index * 0x9E37_79B9_7F4A_7C15) & INT64_MAX

    def truncated(self, prompt_ids: list[int], max_model_len: int) -> list[int]:
        """Return as many of the prompt's tokens as the request keeps, given the context's length."""
        if self.truncate_prompt_tokens is None:
            return prompt_ids
        num_kept = max_model_len - 1 if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens
        return prompt_ids[:num_kept] if self.truncation_side == "right" else prompt_ids[-num_kept:]


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What the model answers, and how."""

    turns: Sequence[Turn]
    at: str  # the field of the turns
    options: Options
    tools: Sequence[Function] = ()
    choice: Choice = ANY_CHOICE
    allows_several_calls: bool = True
    effort: Effort | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the chat template
    documents: Sequence[Mapping[str, Any]] = ()
    begins_answer: bool = True  # whether the prompt ends with the beginning of an answer
    continues_last: bool = False  # whether the answer goes on with the last turn
    drops_oldest: bool = False  # whether the oldest turns of one that is longer than the context are left out
    ignored: Sequence[str] = ()  # fields that were left out

    @property
    def shown_tools(self) -> Sequence[Function]:
        """The tools that answers may call; the prompt shows no others."""
        return self.tools if self.choice.mode != "none" else ()


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """Texts that the model goes on with, as they are."""

    prompts: Sequence[str | Sequence[int]]  # texts, or their token ids
    options: Options
    suffix: str = ""  # the text behind a gap that the answer fills


def check_results(turns: Sequence[Turn]) -> None:
    """Check that each result answers a call before it.

    Raises:
        MissingParameter, InvalidParameter: a result names no call, or one that was not made.
    """
    calls = OpenCalls()
    for index, turn in enumerate(turns):
        for call in turn.calls:
            calls.add(index, call.id, call.name)
        if turn.role != "tool" or calls.answer(turn.call_id, turn.name) is not None:
            continue
        param = turn.field("tool_call_id")
        if turn.call_id is None:
            raise MissingParameter(param)
        text = f"Invalid '{param}': no earlier message of the assistant has a call with this id."
        raise InvalidParameter(text, param=param)


def check_tools(tools: Sequence[Function], choice: Choice = ANY_CHOICE) -> None:
    """Check the names of tools, and that the choice is one of them.

    Raises:
        InvalidParameter: two tools have one name, the choice names none of them, or there is a choice without tools.
    """
    names: set[str] = set()
    for tool in tools:
        if tool.name in names:
            message = f"Invalid '{tool.name_at}': another tool is named '{tool.name}' too. Rename one of them."
            raise InvalidParameter(message, param=tool.name_at)
        names.add(tool.name)
    if not tools and (choice.names or choice.mode == "required"):
        raise InvalidParameter("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
    for name, at in choice.names.items():
        if name not in names:
            raise InvalidParameter(f"Invalid '{at}': none of the 'tools' has this name.", param=at)


def unknown_token(param: str, token_id: int, vocab_size: int) -> InvalidParameter:
    """Return the refusal of a token id that the model does not have."""
    return InvalidParameter(
        f"Invalid '{param}': {token_id} is not a token id of this model, whose ids are less than {vocab_size}.",
        param=param,
    )
