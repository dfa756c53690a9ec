"""The answers of /v1/embeddings, /pooling, /v1/rerank, /v2/rerank and /v1/score."""

from typing import Literal

from service.api.openapi.answer_object import AnswerObject


class Embedding(AnswerObject):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    """Of the text in `input`."""
    embedding: list[float] | str
    """Numbers, or with `encoding_format: base64` the bytes of little-endian float32."""


class InputUsage(AnswerObject):
    """The tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(AnswerObject):
    """The answer of POST /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: InputUsage


class Pooled(AnswerObject):
    """The numbers of one text."""

    index: int
    object: Literal["pooling"]
    data: list[list[float]] | list[float] | str
    """A vector or a weight of each token, one vector, or a score; or with `encoding_format: base64` their bytes."""


class Pooling(AnswerObject):
    """The answer of POST /pooling."""

    id: str
    object: Literal["list"]
    created: int
    """Unix time in seconds."""
    model: str
    data: list[Pooled]
    usage: InputUsage


class RankedText(AnswerObject):
    """A document of the request."""

    text: str


class RankedDocument(AnswerObject):
    """A document in the order of relevance."""

    index: int
    """Of the document in `documents`."""
    relevance_score: float
    document: RankedText | None = None
    """If documents are returned."""


class RerankTokens(AnswerObject):
    """The tokens of a rerank, under Cohere's names."""

    input_tokens: int
    output_tokens: int


class ApiVersion(AnswerObject):
    """Cohere's version of a route."""

    version: str


class RerankMeta(AnswerObject):
    """What Cohere's clients read besides the results."""

    api_version: ApiVersion
    tokens: RerankTokens


class Reranked(AnswerObject):
    """The answer of POST /v1/rerank and POST /v2/rerank."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: InputUsage
    meta: RerankMeta | None = None
    """Only of /v2/rerank."""


class Score(AnswerObject):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class Scores(AnswerObject):
    """The answer of POST /v1/score."""

    id: str
    object: Literal["list"]
    created: int
    """Unix time in seconds."""
    model: str
    data: list[Score]
    usage: InputUsage
