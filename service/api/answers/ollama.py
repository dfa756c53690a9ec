"""The answers of Ollama's routes.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from typing import Any, Literal, NotRequired, TypedDict

from service.api.answers.generation import TokenLogprob


class OllamaError(TypedDict):
    """Every answer with a status of 400 or more; in a stream, a line of its own."""

    error: str


class OllamaFunction(TypedDict):
    """A function and what it is called with."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(TypedDict):
    """A call of a function."""

    id: str
    function: OllamaFunction


class ThinkingAndCalls(TypedDict, total=False):
    """What a message may have beside its content."""

    thinking: str
    """The thinking before the answer; absent if there is none."""
    tool_calls: list[OllamaCall]
    """Each with its arguments complete; absent if there is none."""


class MessagePart(ThinkingAndCalls, total=False):
    """What a part of an answer adds to the assistant's message."""

    content: str


class AnsweredMessage(ThinkingAndCalls):
    """The assistant's message, or a part of it."""

    role: Literal["assistant"]
    content: str


class AnswerFacts(TypedDict):
    """What an answer, or a part of it, says beside its text."""

    done: bool
    """Whether the answer is complete; the fields below are those of a complete one."""
    logprobs: NotRequired[list[TokenLogprob]]
    """If the request asks for them, of a part too."""
    done_reason: NotRequired[Literal["stop", "length", "load"]]
    total_duration: NotRequired[int]
    """Nanoseconds since the request arrived; the others alike."""
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    """Tokens of the prompt."""
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    """Tokens of the answer."""
    eval_duration: NotRequired[int]


class OllamaPart(AnswerFacts):
    """An answer, or a part of it."""

    model: str
    created_at: str


class OllamaChat(OllamaPart):
    """The answer of POST /api/chat."""

    message: AnsweredMessage


class OllamaGenerated(OllamaPart):
    """The answer of POST /api/generate."""

    response: str
    thinking: NotRequired[str]
    """The thinking before the answer; absent if there is none."""


class Durations(TypedDict):
    """How long a request took."""

    total_duration: int
    """Nanoseconds since it arrived."""
    load_duration: int


class OllamaEmbeddings(Durations):
    """The answer of POST /api/embed."""

    model: str
    embeddings: list[list[float]]
    prompt_eval_count: int
    """Tokens of the texts."""


class OllamaEmbedding(TypedDict):
    """The answer of POST /api/embeddings."""

    embedding: list[float]


class ModelDetails(TypedDict):
    """What a model is made of."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    """A model that requests may name."""

    name: str
    model: str
    modified_at: str
    """When it was loaded, or when the service started."""
    size: int
    """0."""
    digest: str
    """Empty."""
    details: ModelDetails


class LoadedModel(OllamaModel):
    """A model that is loaded."""

    expires_at: str
    """Never."""
    size_vram: int
    """0."""
    context_length: int | None
    """In tokens, prompt and answer together."""


class OllamaModels(TypedDict):
    """The answer of GET /api/tags."""

    models: list[OllamaModel]


class LoadedModels(TypedDict):
    """The answer of GET /api/ps."""

    models: list[LoadedModel]


class ShownModel(TypedDict):
    """The answer of POST /api/show."""

    license: str
    modelfile: str
    parameters: str
    template: str
    """In Jinja; empty if the model takes no messages, or is not loaded."""
    modified_at: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[Literal["completion", "embedding", "insert", "thinking", "tools"]]
    """Empty if the model is not loaded."""
