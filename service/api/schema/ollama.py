"""The bodies of Ollama's routes, and the requests of OpenAI's interface that they mean.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from service.api.schema.chat import FunctionCall, MeantChat, OwnThinking
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.generation import MAX_NAME_CHARS
from service.api.schema.tools import MAX_TOOLS
from service.api.schema.wire import ANY, NeutralValues, WireObject
from service.errors import InvalidParameter

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


Whole = Annotated[int, BeforeValidator(_whole)]
Format = Annotated[
    dict[str, Any] | str, PlainValidator(_format, json_schema_input_type=Literal["", "json"] | dict[str, Any])
]


class OllamaOptions(WireObject):
    """How tokens are sampled; the ranges are those of chats and completions."""

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
    top_p: float | None = None
    top_k: Whole | None = None
    min_p: float | None = None
    seed: Whole | None = None  # -1 draws one
    num_predict: Whole | None = None  # without a limit if it is not positive
    stop: Annotated[
        list[str], Field(fail_fast=True), BeforeValidator(_as_list, json_schema_input_type=str | list[str])
    ] = Field(default_factory=list)
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

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
    nested: ClassVar[dict[str, type[WireObject]]] = {"function": OllamaFunctionCall}

    id: str | None = None
    function: OllamaFunctionCall


class OllamaMessage(WireObject):
    """One message of a chat."""

    refused: ClassVar[NeutralValues] = {"images": ([],)}
    nested: ClassVar[dict[str, type[WireObject]]] = {"tool_calls": OllamaToolCall}

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None  # before an earlier answer
    tool_calls: Annotated[list[OllamaToolCall], Field(fail_fast=True)] = Field(default_factory=list)
    tool_name: str | None = None  # which function's result it is
    tool_call_id: str | None = None  # which call's, where the client has kept the id


class OllamaRequest(WireObject):
    """The fields that chats and continuations share."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"options": OllamaOptions}

    model: str = Field(max_length=MAX_NAME_CHARS)
    stream: bool = True
    format: Format = ""
    options: OllamaOptions | None = None
    think: bool | str | None = None
    logprobs: bool = False
    top_logprobs: Whole = 0

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
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)

    def as_chat(self, own_thinking: OwnThinking) -> MeantChat:
        """Return the chat that has the same answer; raises InvalidParameter for a result without a call."""
        tools = [{"type": "function"} | tool for tool in self.tools]
        return MeantChat(self._chat(list(_messages_of(self.messages))) | ({"tools": tools} if tools else {}))


class OllamaGenerateRequest(OllamaRequest):
    """The body of POST /api/generate."""

    hints: ClassVar[NeutralValues] = {**_HINTS, "height": (), "steps": (), "template": ("",), "width": ()}
    refused: ClassVar[NeutralValues] = {"context": ([],), "images": ([],)}
    remedies: ClassVar[Mapping[str, str]] = {"context": "send the conversation's messages to /api/chat."}
    bulk: ClassVar[Mapping[str, Any]] = {"prompt": "", "system": ""}

    prompt: str = ""
    suffix: str = ""  # the text after the gap that is to be filled
    system: str = ""
    raw: bool = False  # whether the prompt is continued as it is

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
        return MeantChat(self._chat([*system, {"role": "user", "content": self.prompt}]))

    def as_completion(self) -> dict[str, Any]:
        """Return the body of the completion that has the same answer."""
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

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a body whose model has the newer name of its field."""
        return {"model" if name == "name" else name: value for name, value in document.items()}


class OllamaEmbedRequest(EmbeddingsRequest):
    """The body of POST /api/embed, and of the older POST /api/embeddings, which has a single text as `prompt`."""

    hints: ClassVar[NeutralValues] = {**EmbeddingsRequest.hints, **_KEEP_ALIVE, "options": ({},)}

    truncate: bool = True  # whether longer texts are cut

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
    """Yield the messages as chats have them, where each result names its call by an id.

    Raises:
        InvalidParameter: a result answers no call.
    """
    waiting: dict[str, str] = {}  # the functions of calls without a result, by id
    num_calls = 0
    for index, message in enumerate(messages):
        stated: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking:
            stated["reasoning_content"] = message.thinking
        calls: list[dict[str, Any]] = []
        for call in message.tool_calls:
            num_calls += 1
            call_id = call.id or f"call{num_calls:05}"  # nine characters, as Mistral's templates have it
            waiting[call_id] = call.function.name
            calls.append({"id": call_id, "function": call.function.model_dump()})
        if calls:
            stated["tool_calls"] = calls
        if message.role == "tool":
            stated["tool_call_id"] = _answered(message, waiting, f"messages[{index}]")
        yield stated


def _answered(message: OllamaMessage, waiting: dict[str, str], path: str) -> str:
    """Return the id of the call that a result answers: by its id, else the first one of its name, else the first."""
    by_name = (call_id for call_id, name in waiting.items() if message.tool_name in (None, name))
    call_id = message.tool_call_id if message.tool_call_id in waiting else next(by_name, None)
    if call_id is None:
        message_text = f"Invalid '{path}': no earlier message of the assistant has a call that it answers."
        raise InvalidParameter(message_text, param=path)
    del waiting[call_id]
    return call_id
