"""The bodies of Ollama's routes, and what they ask for.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from service.api.conversation import (
    ANY_OBJECT,
    INT64_MAX,
    OFF,
    AnswerFormat,
    Call,
    Continuation,
    Conversation,
    Effort,
    ImagePart,
    Options,
    OwnThinking,
    Part,
    TextPart,
    Turn,
    check_results,
    check_tools,
)
from service.api.schema.chat import FunctionCall, Role, as_data_url
from service.api.schema.embeddings import INPUT, EmbeddingsRequest, Input, read_inputs
from service.api.schema.generation import (
    MAX_NAME_CHARS,
    MinP,
    Penalty,
    RepetitionPenalty,
    Seed,
    StopStrings,
    Temperature,
    TopK,
    TopP,
)
from service.api.schema.other_names import GRAMMAR_PROMISES, LIMITS
from service.api.schema.tools import MAX_TOOLS, Tool
from service.api.schema.wire import ANY, NeutralValues, WireObject
from service.engine.limits import MAX_LOGPROBS
from service.errors import InvalidParameter, UnsupportedParameter

_KEEP_ALIVE: NeutralValues = {"keep_alive": ()}
_HINTS: NeutralValues = {**_KEEP_ALIVE, "shift": (False,), "truncate": (False,)}


def _whole(value: Any) -> Any:
    """Return an integer for a number without a fraction, since some languages write all numbers alike."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _format(value: Any) -> dict[str, Any] | str:
    if value not in ("", "json") and not isinstance(value, dict):
        raise PydanticCustomError("format", "Input should be 'json' or a JSON schema")
    return value


_SCHEME = re.compile(r"\s*(data|https?|file):", re.IGNORECASE)

# Promises of other interfaces, which are options here.
_REFUSED: NeutralValues = {**GRAMMAR_PROMISES, **dict.fromkeys(LIMITS, ()), "stop": ([], ""), "seed": ()}
_REMEDIES: Mapping[str, str] = {
    **dict.fromkeys(LIMITS, "send 'options': {'num_predict': …}."),
    **{name: f"send 'options': {{'{name}': …}}." for name in ("seed", "stop")},
    **dict.fromkeys(("json_schema", "response_format", "structured_outputs"), "send 'format'."),
}

_EMBED_INPUT = {"anyOf": [{"const": ""}, {"type": "array", "maxItems": 0}, *INPUT["anyOf"]]}


def _embed_inputs(value: Any) -> tuple[Input, ...]:
    return () if value in ("", []) else read_inputs(value)


Images = Annotated[list[str], Field(fail_fast=True), BeforeValidator(_as_list, json_schema_input_type=str | list[str])]
Format = Annotated[
    dict[str, Any] | str, PlainValidator(_format, json_schema_input_type=Literal["", "json"] | dict[str, Any])
]


class OllamaOptions(WireObject):
    """How tokens are sampled; the ranges are those of chats and completions."""

    refused: ClassVar[NeutralValues] = GRAMMAR_PROMISES
    hints: ClassVar[NeutralValues] = {
        "draft_num_predict": (),
        "embedding_only": (False,),
        "f16_kv": (True,),
        "logits_all": (False,),
        "low_vram": (False,),
        "main_gpu": (),
        "mirostat": (0,),
        "mirostat_eta": (),
        "mirostat_tau": (),
        "num_batch": (),
        "num_ctx": (),
        "num_gpu": (),
        "num_keep": (),
        "num_thread": (),
        "numa": (False,),
        "penalize_newline": (True,),
        "repeat_last_n": (-1,),  # penalties count the whole context
        "tfs_z": (1, 1.0),
        "typical_p": (1, 1.0),
        "use_mlock": (False,),
        "use_mmap": (),
        "vocab_only": (False,),
    }

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[TopK, BeforeValidator(_whole)] | None = None
    """vLLM's: keep this many of the likeliest tokens; 0 and -1 keep all."""
    min_p: MinP | None = None
    """vLLM's: keep tokens at least this fraction as likely as the likeliest."""
    seed: Annotated[Seed, BeforeValidator(_whole)] | None = None  # -1 draws one
    """The same seed gives the same text, alone or in a batch; -1 draws one."""
    num_predict: Annotated[int, Field(le=INT64_MAX), BeforeValidator(_whole)] | None = None
    """The most tokens of the answer; without it, or if it is not positive, the rest of the context."""
    stop: StopStrings = Field(default_factory=list)
    """Strings that end the text; the text excludes them."""
    repeat_penalty: RepetitionPenalty | None = None
    """Divides positive and multiplies negative logits of tokens in prompt or answer."""
    presence_penalty: Penalty | None = None
    """Subtracted from the logit of a token that the answer already has."""
    frequency_penalty: Penalty | None = None
    """Subtracted from a token's logit for each time that the answer already has it."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return options under Ollama's names."""
        names = dict.fromkeys(LIMITS, "num_predict") | {"repetition_penalty": "repeat_penalty"}
        names["stop_sequences"] = "stop"
        if not document.keys() & names.keys():
            return document
        own = {name: value for name, value in document.items() if name not in names or names[name] == name}
        return {names[name]: value for name, value in document.items() if name in names} | own


class OllamaFunctionCall(FunctionCall):
    """The function of an earlier call, with its arguments as an object."""

    hints: ClassVar[NeutralValues] = {"index": ANY}


class OllamaToolCall(WireObject):
    """A call that the assistant made earlier; most clients leave out its id."""

    hints: ClassVar[NeutralValues] = {"index": ANY, "type": ANY}
    blank: ClassVar[tuple[str, ...]] = ("id",)

    id: str | None = None
    """The call's id, which the tool's answer repeats."""
    function: OllamaFunctionCall
    """The function that was called."""

    def as_call(self) -> Call:
        """Return the call."""
        return Call(self.id, self.function.name, self.function.arguments)


class OllamaTool(Tool):
    """A function that the model may call."""

    type: Literal["function"] = "function"


class OllamaMessage(WireObject):
    """One message of a chat."""

    role: Role
    content: str = ""
    """The text."""
    images: Images = Field(default_factory=list)
    """Images before the text, each as base64 or a data URL, or its https address with ALLOW_REMOTE_IMAGES."""
    thinking: str | None = None
    """The thinking before an earlier answer, for templates that render it."""
    tool_calls: Annotated[list[OllamaToolCall], Field(fail_fast=True)] = Field(default_factory=list)
    """The calls that the assistant made."""
    tool_name: str | None = None
    """The function whose result it is, if the client keeps no ids of calls."""
    tool_call_id: str | None = None
    """Which call a tool's message answers."""

    def as_turn(self, at: str) -> Turn:
        """Return the message, which has this path."""
        is_result = self.role == "tool"
        return Turn(
            role=self.role,
            parts=_parts(self.images, f"{at}.images", self.content, f"{at}.content"),
            at=at,
            name=(self.tool_name or None) if is_result else None,
            thinking=(self.thinking or None) if self.role == "assistant" else None,
            calls=tuple(call.as_call() for call in self.tool_calls),
            call_id=(self.tool_call_id or None) if is_result else None,
        )


class OllamaRequest(WireObject):
    """The fields that chats and continuations share."""

    refused: ClassVar[NeutralValues] = _REFUSED
    remedies: ClassVar[Mapping[str, str]] = _REMEDIES

    model: str = Field(max_length=MAX_NAME_CHARS)
    stream: bool = True
    """Whether to answer with a line for each part, which is the default."""
    format: Format = ""
    """`json` for any JSON object, or a JSON Schema that the answer satisfies."""
    options: OllamaOptions | None = None
    """How tokens are sampled."""
    think: bool | str | None = None
    """Whether the model thinks, or how long: `low`, `medium`, `high`."""
    logprobs: bool = False
    """Whether to return the log-probability of each token."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), BeforeValidator(_whole)] = 0

    def sampling(self) -> Options:
        """Return how the answer is sampled, when it ends, and what comes with it."""
        stated = OllamaOptions() if self.options is None else self.options
        limit = stated.num_predict or 0
        answer_format = None
        if self.format:
            schema = self.format if isinstance(self.format, dict) else ANY_OBJECT
            answer_format = AnswerFormat("json", schema, "format", "format")
        return Options(
            model=self.model,
            stream=self.stream,
            format=answer_format,
            max_tokens=limit if limit > 0 else None,
            max_tokens_at="options.num_predict",
            num_logprobs=self.top_logprobs if self.logprobs else None,
            temperature=stated.temperature,
            top_p=stated.top_p,
            top_k=stated.top_k,
            min_p=stated.min_p,
            repetition_penalty=stated.repeat_penalty,
            presence_penalty=stated.presence_penalty or 0.0,
            frequency_penalty=stated.frequency_penalty or 0.0,
            seed=None if stated.seed == -1 else stated.seed,
            stop=stated.stop,
        )

    @property
    def effort(self) -> Effort | None:
        """How much the request wants the model to think."""
        if isinstance(self.think, bool):
            return Effort(None if self.think else OFF, "think")
        return None if self.think is None else Effort(self.think, "think")

    def check_logprobs(self) -> None:
        """Refuse alternatives for tokens without log-probabilities; raises InvalidParameter."""
        if self.top_logprobs and not self.logprobs:
            raise InvalidParameter("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")


class OllamaChatRequest(OllamaRequest):
    """The body of POST /api/chat."""

    hints: ClassVar[NeutralValues] = _HINTS
    bulk: ClassVar[Mapping[str, Any]] = {"messages": []}

    messages: Annotated[list[OllamaMessage], Field(fail_fast=True)] = Field(default_factory=list)
    """The chat so far, oldest message first; without one, the model is loaded."""
    tools: Annotated[list[OllamaTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)

    @override
    def check_consistency(self) -> None:
        """Report thinking that is not read, since it is of another role than the assistant's."""
        unread = (i for i, message in enumerate(self.messages) if message.thinking and message.role != "assistant")
        self.ignore(f"messages[{index}].thinking" for index in unread)

    def conversation(self, own_thinking: OwnThinking) -> Conversation:
        """Return what the request asks for.

        Raises:
            MissingParameter, InvalidParameter: tools have one name, or a result has no call, or alternatives are asked
                for without log-probabilities.
        """
        tools = [tool.as_tool(f"tools[{index}]") for index, tool in enumerate(self.tools)]
        check_tools(tools)
        turns = [message.as_turn(f"messages[{index}]") for index, message in enumerate(self.messages)]
        check_results(turns)
        self.check_logprobs()
        return Conversation(turns=turns, at="messages", options=self.sampling(), tools=tools, effort=self.effort)


class OllamaGenerateRequest(OllamaRequest):
    """The body of POST /api/generate."""

    hints: ClassVar[NeutralValues] = {**_HINTS, "height": (), "steps": (), "template": ("",), "width": ()}
    refused: ClassVar[NeutralValues] = {**_REFUSED, "context": ([],)}
    remedies: ClassVar[Mapping[str, str]] = {
        **_REMEDIES,
        "context": "send the conversation's messages to /api/chat.",
    }
    bulk: ClassVar[Mapping[str, Any]] = {"images": [], "prompt": "", "system": ""}

    prompt: str = ""
    """What to answer or to continue; without it, the model is loaded."""
    suffix: str = ""
    """The text after a gap that the answer fills, if the tokenizer marks gaps, else refused; not in `echo`."""
    system: str = ""
    """The system's message, before the prompt."""
    images: Images = Field(default_factory=list)
    """Images before the text, each as base64 or a data URL, or its https address with ALLOW_REMOTE_IMAGES."""
    raw: bool = False
    """Whether the prompt is continued as it is."""

    @property
    def is_continuation(self) -> bool:
        """Whether the prompt is continued as a text, rather than answered as a message."""
        return self.raw or bool(self.suffix)

    @override
    def check_consistency(self) -> None:
        """Refuse a system's message for a prompt that is no message."""
        if self.is_continuation and self.system:
            message = "'system' contradicts 'raw' and 'suffix', with which the prompt is no message of a chat."
            raise InvalidParameter(message, param="system")

    def conversation(self, own_thinking: OwnThinking) -> Conversation:
        """Return what a prompt that is a message asks for; raises InvalidParameter."""
        self.check_logprobs()
        system = Turn(role="system", parts=(TextPart(self.system, "system"),), at="system")
        prompt = Turn(role="user", parts=_parts(self.images, "images", self.prompt, "prompt"), at="prompt")
        turns = [system, prompt] if self.system else [prompt]
        return Conversation(turns=turns, at="prompt", options=self.sampling(), effort=self.effort)

    def continuation(self) -> Continuation:
        """Return what a prompt that is continued as it is asks for.

        Raises:
            UnsupportedParameter: it has images.
        """
        if self.images:
            reason = "a prompt that is continued as it is, with 'raw' or 'suffix' or without a chat template, has none."
            raise UnsupportedParameter("images", reason)
        return Continuation(prompts=[self.prompt], options=self.sampling(), suffix=self.suffix)


class OllamaShowRequest(WireObject):
    """The body of POST /api/show."""

    hints: ClassVar[NeutralValues] = {"options": ANY, "system": ("",), "template": ("",), "verbose": (False,)}

    model: str = Field(max_length=MAX_NAME_CHARS)

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a body whose model has the newer name of its field."""
        return {"model" if name == "name" else name: value for name, value in document.items()}


class OllamaEmbedRequest(EmbeddingsRequest):
    """The body of POST /api/embed, and of the older POST /api/embeddings, which has a single text as `prompt`."""

    hints: ClassVar[NeutralValues] = {**EmbeddingsRequest.hints, **_KEEP_ALIVE, "options": ({},)}

    input: Annotated[tuple[Input, ...], PlainValidator(_embed_inputs), WithJsonSchema(_EMBED_INPUT)] = ()
    """A text, token ids, or up to 2,048 of either; without one, the model is loaded."""
    truncate: bool = True
    """Whether a text that is longer than the model takes is cut, which is the default."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a body whose texts have the newer name of their field."""
        return {"input" if name == "prompt" else name: value for name, value in document.items()}

    @property
    @override
    def cut_tokens(self) -> int | None:
        return -1 if self.truncate and self.truncate_prompt_tokens is None else self.truncate_prompt_tokens


def _parts(images: Sequence[str], images_at: str, text: str, text_at: str) -> tuple[Part, ...]:
    """Return images, and the text after them."""
    urls = [image if _SCHEME.match(image) else as_data_url(image) or "" for image in images]
    paths = [f"{images_at}[{index}]" for index in range(len(urls))]
    shown = [ImagePart(url, "auto", path, path) for url, path in zip(urls, paths, strict=True)]
    return (*shown, *((TextPart(text, text_at),) if text or not shown else ()))
