"""The bodies of Ollama's routes, and the requests of OpenAI's interface that they mean.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from service.api.schema.chat import FunctionCall, MeantChat, OwnThinking, Role, as_data_url
from service.api.schema.embeddings import INPUT, EmbeddingsRequest, Input, read_inputs
from service.api.schema.generation import MAX_NAME_CHARS
from service.api.schema.other_names import GRAMMAR_PROMISES, LIMITS
from service.api.schema.tools import MAX_TOOLS
from service.api.schema.wire import ANY, NeutralValues, WireObject
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
Whole = Annotated[int, BeforeValidator(_whole)]
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

    temperature: float | None = None
    """Divides the logits; 0 always takes the likeliest token."""
    top_p: float | None = None
    """Keep the likeliest tokens whose probabilities add up to this; 0 keeps only the likeliest."""
    top_k: Whole | None = None
    """vLLM's: keep this many of the likeliest tokens; 0 and -1 keep all."""
    min_p: float | None = None
    """vLLM's: keep tokens at least this fraction as likely as the likeliest."""
    seed: Whole | None = None  # -1 draws one
    """The same seed gives the same text, alone or in a batch. Later choices use seeds derived from it."""
    num_predict: Whole | None = None
    """The most tokens of the answer; without it, or if it is not positive, the rest of the context."""
    stop: Annotated[
        list[str], Field(fail_fast=True), BeforeValidator(_as_list, json_schema_input_type=str | list[str])
    ] = Field(default_factory=list)
    """Strings that end the text; the text excludes them."""
    repeat_penalty: float | None = None
    """Divides positive and multiplies negative logits of tokens in prompt or answer."""
    presence_penalty: float | None = None
    """Subtracted from the logit of a token that the answer already has."""
    frequency_penalty: float | None = None
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

    def as_sampling(self) -> dict[str, Any]:
        """Return the options under the names of OpenAI's and vLLM's."""
        stated = self.model_dump(exclude={"num_predict", "repeat_penalty"}, exclude_none=True)
        if stated.get("seed") == -1:
            del stated["seed"]
        if self.repeat_penalty is not None:
            stated["repetition_penalty"] = self.repeat_penalty
        if self.num_predict is not None and self.num_predict > 0:
            stated["max_tokens"] = self.num_predict
        return stated


class OllamaFunctionCall(FunctionCall):
    """The function of an earlier call, with its arguments as an object."""

    hints: ClassVar[NeutralValues] = {"index": ANY}


class OllamaToolCall(WireObject):
    """A call that the assistant made earlier; most clients leave out its id."""

    hints: ClassVar[NeutralValues] = {"index": ANY, "type": ANY}
    blank: ClassVar[tuple[str, ...]] = ("id",)
    nested: ClassVar[dict[str, type[WireObject]]] = {"function": OllamaFunctionCall}

    id: str | None = None
    """The call's id, which the tool's answer repeats."""
    function: OllamaFunctionCall
    """The function that was called."""


class OllamaMessage(WireObject):
    """One message of a chat."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"tool_calls": OllamaToolCall}

    role: Role
    """Who speaks: `system`, of which `developer` is a newer name, `user`, `assistant`, `tool`, or a role that the
    model's chat template writes."""
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


class OllamaRequest(WireObject):
    """The fields that chats and continuations share."""

    refused: ClassVar[NeutralValues] = _REFUSED
    remedies: ClassVar[Mapping[str, str]] = _REMEDIES
    nested: ClassVar[dict[str, type[WireObject]]] = {"options": OllamaOptions}

    model: str = Field(max_length=MAX_NAME_CHARS)
    """The served model's name; GET /v1/models lists it."""
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
    top_logprobs: Whole = 0
    """How many alternatives to return for each token; needs `logprobs`."""

    def _shared(self) -> dict[str, Any]:
        """Return the fields that chats and completions of OpenAI's interface share."""
        sampling = {} if self.options is None else self.options.as_sampling()
        return {"model": self.model, "stream": self.stream, **sampling}

    def _chat(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        chat = {**self._shared(), "messages": messages, "logprobs": self.logprobs, "top_logprobs": self.top_logprobs}
        if isinstance(self.format, dict):
            chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": self.format}}
        elif self.format:
            chat["response_format"] = {"type": "json_object"}
        if self.think is not None:
            chat["enable_thinking" if isinstance(self.think, bool) else "reasoning_effort"] = self.think
        return chat


class OllamaChatRequest(OllamaRequest):
    """The body of POST /api/chat."""

    hints: ClassVar[NeutralValues] = _HINTS
    bulk: ClassVar[Mapping[str, Any]] = {"messages": []}
    nested: ClassVar[dict[str, type[WireObject]]] = {**OllamaRequest.nested, "messages": OllamaMessage}

    messages: Annotated[list[OllamaMessage], Field(fail_fast=True)] = Field(default_factory=list)
    """The chat so far, oldest message first; without one, the model is loaded."""
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)
    """The functions that the model may call. Calls are held to their schemas; what a grammar cannot hold is refused if
    the call is required or strict, and is otherwise left out and named."""

    def as_chat(self, own_thinking: OwnThinking) -> MeantChat:
        """Return the chat that has the same answer."""
        tools = [{"type": "function"} | tool for tool in self.tools]
        return MeantChat(self._chat(list(_messages_of(self.messages))) | ({"tools": tools} if tools else {}))


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

    def as_chat(self, own_thinking: OwnThinking) -> MeantChat:
        """Return the chat that has the same answer."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return MeantChat(self._chat([*system, {"role": "user", "content": _content(self.images, self.prompt)}]))

    def as_completion(self) -> dict[str, Any]:
        """Return the body of the completion that has the same answer.

        Raises:
            UnsupportedParameter: it has images.
        """
        if self.images:
            reason = "a prompt that is continued as it is, with 'raw' or 'suffix' or without a chat template, has none."
            raise UnsupportedParameter("images", reason)
        completion = {**self._shared(), "prompt": self.prompt, "suffix": self.suffix}
        completion.setdefault("max_tokens", -1)
        if self.logprobs:
            completion["logprobs"] = self.top_logprobs
        if self.format:
            is_schema = isinstance(self.format, dict)
            completion["structured_outputs"] = {"json": self.format} if is_schema else {"json_object": True}
        return completion


class OllamaShowRequest(WireObject):
    """The body of POST /api/show."""

    hints: ClassVar[NeutralValues] = {"options": ANY, "system": ("",), "template": ("",), "verbose": (False,)}

    model: str = Field(max_length=MAX_NAME_CHARS)
    """The served model's name; GET /v1/models lists it."""

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


def _messages_of(messages: Sequence[OllamaMessage]) -> Iterator[dict[str, Any]]:
    """Yield the messages as chats have them."""
    for message in messages:
        stated: dict[str, Any] = {"role": message.role, "content": _content(message.images, message.content)}
        if message.thinking:
            stated["reasoning_content"] = message.thinking
        if message.tool_calls:
            stated["tool_calls"] = [call.model_dump(exclude_none=True) for call in message.tool_calls]
        if message.role == "tool":
            stated |= {"tool_call_id": message.tool_call_id, "name": message.tool_name}
        yield stated


def _content(images: Sequence[str], text: str) -> str | list[dict[str, Any]]:
    """Return what a chat's message says and shows."""
    if not images:
        return text
    urls = [image if _SCHEME.match(image) else as_data_url(image) for image in images]
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*shown, *([{"type": "text", "text": text}] if text else [])]
