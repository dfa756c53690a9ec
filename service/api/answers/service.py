"""The answers of the smaller routes, and errors."""

from typing import Any, Literal, NotRequired, TypedDict


class Model(TypedDict):
    """A model that requests may name."""

    id: str
    """The `model` of requests."""
    object: Literal["model"]
    created: int
    """Unix time of the load, or of the start if it is not loaded, in seconds."""
    owned_by: str
    root: str
    """The name of the model under its first name."""
    parent: str | None
    """The model that it updates, if it is an adapter; otherwise null."""
    max_model_len: int | None
    """Context length in tokens, prompt and completion together; for an encoder, the longest text. Null if it is not
    known before the model is loaded."""
    state: Literal["available", "loading", "ready"]
    """Whether it is loaded. A request loads it, and waits for that."""
    progress: NotRequired[dict[str, Any] | None]
    """Of the load, as GET /health/ready shows that of the start; absent unless it is loading."""
    error: NotRequired[str | None]
    """Why the last load failed, if its files are the cause; absent otherwise, and once it is loaded."""
    capabilities: NotRequired[list[str] | None]
    """The routes that it answers, below /v1/; absent before it is loaded."""
    embedding_dimensions: NotRequired[int | None]
    """The dimensions of an encoder's vectors; absent for a model that generates text."""
    dtype: NotRequired[str | None]
    """The dtype of activations, such as `bfloat16`; absent for an encoder."""
    quantization: NotRequired[Literal["none", "int8", "fp8", "int4"] | None]
    """How weights of layers are stored: `none` in `dtype`, others in 8 or 4 bits with scales; absent for an encoder."""
    kv_dtype: NotRequired[str | None]
    """The dtype of cached keys and values, such as `bfloat16` or `int8`; absent for an encoder."""


class ModelList(TypedDict):
    """The answer of GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Tokens(TypedDict):
    """The answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    """The tokens as the vocabulary writes them, if `return_token_strs` is true."""


class ExtractedText(TypedDict):
    """The answer of POST /extract_text."""

    text: str
    num_pages: int


class Text(TypedDict):
    """The answer of POST /detokenize."""

    prompt: str


class RenderedPrompt(TypedDict):
    """What an engine would get for a prompt; vLLM's name of it is `GenerateRequest`."""

    request_id: str
    token_ids: list[int]
    """The prompt, as an answer to it would continue it."""
    token_offsets: None
    features: None
    """Of images and audio: none."""
    sampling_params: dict[str, Any]
    """The options in effect, under vLLM's names."""
    model: str
    stream: bool
    stream_options: dict[str, Any] | None
    return_token_ids: bool
    cache_salt: str | None
    priority: int
    kv_transfer_params: None


class TokenizerInfo(TypedDict):
    """The answer of GET /tokenizer_info."""

    bos_token: str | None
    """The token that begins a text, if the tokenizer has one; the others alike."""
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    sep_token: NotRequired[str]
    cls_token: NotRequired[str]
    mask_token: NotRequired[str]
    chat_template: str | None
    """In Jinja; null if the model takes no messages."""
    model_max_length: int
    """Context length in tokens, prompt and completion together."""


class Version(TypedDict):
    """The answer of GET /version."""

    version: str


class ModelInfo(TypedDict):
    """The answer of GET /model_info."""

    model_path: str
    """The name of the model under its first name; the next two alike."""
    served_model_name: str
    tokenizer_path: str
    is_generation: bool
    """Whether it continues texts; an encoder does not."""
    preferred_sampling_params: None
    disaggregation_mode: Literal["null"]
    has_image_understanding: bool
    has_audio_understanding: bool


class Load(TypedDict):
    """What runs, what waits and what is full."""

    timestamp: float
    """Unix time of the last change, in seconds."""
    dp_rank: Literal[0]
    num_running_reqs: int
    """Sequences that hold a slot."""
    num_waiting_reqs: int
    num_total_reqs: int
    num_used_tokens: int
    """Token positions of KV pages in use."""
    max_total_num_tokens: int
    """Token positions of all KV pages."""
    max_running_requests: int
    """Slots."""
    token_usage: float
    """Share of KV pages in use, 0 to 1."""
    utilization: float
    """Share of slots in use, 0 to 1."""
    queues: NotRequired[dict[str, int] | None]
    """Absent unless it is included."""


class Loads(TypedDict):
    """The answer of GET /v1/loads."""

    timestamp: str
    version: str
    dp_rank_count: Literal[1]
    loads: list[Load]
    aggregate: dict[str, float]


class EarlierLoad(TypedDict):
    """The load in its older form."""

    dp_rank: Literal[0]
    num_reqs: int
    num_waiting_reqs: int
    num_tokens: int


class ServerInfo(ModelInfo):
    """The answer of GET /server_info."""

    version: str
    dp_size: Literal[1]
    is_embedding: bool
    max_model_len: int | None
    max_running_requests: int
    """Slots."""
    max_total_num_tokens: int
    """Token positions of all KV pages."""
    page_size: int
    """Tokens of a KV page."""
    internal_states: list[Load]


class Invoked(TypedDict):
    """The answer of the route that the body is meant for."""


class Liveness(TypedDict):
    """The answer of GET /health/live."""

    status: Literal["live", "dead"]


class Readiness(TypedDict):
    """The answer of GET /health/ready: the state of the service and the progress of its start."""

    status: Literal["starting", "answering", "complete", "draining", "failed"]
    phase: str
    """The phases under way, separated by commas."""
    seconds: float
    """Age of the process, or how long its start took."""
    percent: int | None
    estimated_seconds_left: float | None
    """Null while nothing can be estimated."""
    phases_done_seconds: dict[str, float]
    phases_running_seconds: dict[str, float]
    bytes_done: int
    bytes_total: int
    executables_done: int
    executables_total: int
    incomplete_because: NotRequired[str]
    """Why some executables will be missing, if a compilation failed behind the running service."""


class ErrorDetails(TypedDict):
    """What is wrong and what to do about it."""

    message: str
    type: str
    param: str | None
    """The field at fault."""
    code: str | None


class Error(TypedDict):
    """Every answer with a status of 400 or more; in a stream, an event of its own."""

    error: ErrorDetails


class Description(TypedDict):
    """An OpenAPI document."""

    openapi: str
    info: dict[str, Any]
    servers: list[dict[str, Any]]
    paths: dict[str, Any]
    components: dict[str, Any]
