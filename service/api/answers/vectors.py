"""The answers of /v1/embeddings, /pooling, /v1/rerank, /v2/rerank and /v1/score."""

from typing import Literal, NotRequired, TypedDict


class Embedding(TypedDict):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    """Of the text in `input`."""
    embedding: list[float] | str
    """Numbers, or with `encoding_format: base64` the bytes of little-endian float32."""


class InputUsage(TypedDict):
    """The tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(TypedDict):
    """The answer of POST /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: InputUsage


class Pooled(TypedDict):
    """The numbers of one text."""

    index: int
    object: Literal["pooling"]
    data: list[list[float]] | list[float] | str
    """A vector or a weight of each token, one vector, or a score; or with `encoding_format: base64` their bytes."""


class Pooling(TypedDict):
    """The answer of POST /pooling."""

    id: str
    object: Literal["list"]
    created: int
    """Unix time in seconds."""
    model: str
    data: list[Pooled]
    usage: InputUsage


class RankedText(TypedDict):
    """A document of the request."""

    text: str


class RankedDocument(TypedDict):
    """A document in the order of relevance."""

    index: int
    """Of the document in `documents`."""
    relevance_score: float
    document: NotRequired[RankedText | None]
    """If documents are returned."""


class RerankTokens(TypedDict):
    """The tokens of a rerank, under Cohere's names."""

    input_tokens: int
    output_tokens: int


class ApiVersion(TypedDict):
    """Cohere's version of a route."""

    version: str


class RerankMeta(TypedDict):
    """What Cohere's clients read besides the results."""

    api_version: ApiVersion
    tokens: RerankTokens


class Reranked(TypedDict):
    """The answer of POST /v1/rerank and POST /v2/rerank."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: InputUsage
    meta: NotRequired[RerankMeta | None]
    """Only of /v2/rerank."""


class Score(TypedDict):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class Scores(TypedDict):
    """The answer of POST /v1/score."""

    id: str
    object: Literal["list"]
    created: int
    """Unix time in seconds."""
    model: str
    data: list[Score]
    usage: InputUsage
