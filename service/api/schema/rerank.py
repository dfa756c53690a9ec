"""The bodies of /v1/rerank, /v2/rerank and /v1/score: its fields by the rule of `wire`.

Source: https://docs.cohere.com/reference/rerank, https://jina.ai/reranker,
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (re-rank and score API),
https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/entrypoints/openai/protocol.py (`rid`, `top_k`)
"""

from typing import Annotated, Any, ClassVar, override

from pydantic import Field, PlainValidator, WithJsonSchema

from service.api.schema.encoder import EncoderRequest
from service.api.schema.generation import INT32_MAX
from service.api.schema.wire import NeutralValues
from service.errors import InvalidParameter

MAX_DOCUMENTS = 2048
# What routers write where a client named no model: vllm-router the first, sglang-router and smg the second.
UNSTATED_MODELS = frozenset({"default", "unknown"})

_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_DOCUMENTS}
_DOCUMENT = {
    "anyOf": [_TEXT, {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}],
}
DOCUMENTS = {"type": "array", "items": _DOCUMENT, "minItems": 1, "maxItems": MAX_DOCUMENTS}


def _documents(value: Any) -> tuple[str, ...]:
    """Return the texts of documents, each a string or an object with a `text`."""
    if not isinstance(value, list) or not value:
        message = "Invalid 'documents': it must be a list of strings, or of objects with a text, and not empty."
        raise InvalidParameter(message, param="documents")
    texts = [item["text"] if isinstance(item, dict) and set(item) == {"text"} else item for item in value]
    return _strings(texts, "documents")


def _texts(name: str) -> PlainValidator:
    return PlainValidator(lambda value: _strings(value if isinstance(value, list) else [value], name))


def _strings(values: list[Any], name: str) -> tuple[str, ...]:
    if not 0 < len(values) <= MAX_DOCUMENTS:
        message = f"Invalid '{name}': {len(values)} texts; the limits are 1 and {MAX_DOCUMENTS}."
        raise InvalidParameter(message, param=name)
    for i, value in enumerate(values):
        if not isinstance(value, str) or not value:
            param = name if len(values) == 1 else f"{name}[{i}]"
            raise InvalidParameter(f"Invalid '{param}': it must be a string with at least one character.", param=param)
    return tuple(values)


class PairsRequest(EncoderRequest):
    """The fields that all routes for scores share."""

    hints: ClassVar[NeutralValues] = {"mm_processor_kwargs": ({},), "priority": (0,), "request_id": ()}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of texts, in the order of the answers."""
        raise NotImplementedError

    @property
    def params(self) -> list[str]:
        """The field of each second text, which an error names."""
        raise NotImplementedError

    @property
    def max_second_tokens(self) -> int | None:
        """How many tokens of each second text are kept; None for all."""
        return None


class RerankRequest(PairsRequest):
    """The body of POST /v1/rerank, /v2/rerank and /rerank."""

    query: str = Field(min_length=1)
    """What the documents are to be relevant to."""
    documents: Annotated[tuple[str, ...], PlainValidator(_documents), WithJsonSchema(DOCUMENTS)]
    """The texts to order, up to 2,048: strings, or objects with a `text`."""
    top_n: int | None = Field(default=None, ge=1, le=INT32_MAX)
    """How many results to return; without it all."""
    return_documents: bool | None = None
    """Whether results carry the documents; by default at /v1/rerank, and not at /v2/rerank."""
    max_tokens_per_doc: int | None = Field(default=None, ge=1, le=INT32_MAX)
    """Cohere's: the number of tokens to which each document is cut."""
    # SGLang's id of the request. One that states it, even as null, expects SGLang's answer: so do the routers that
    # descend from SGLang's, which state it in every request and pass on no other answer.
    rid: str | list[str] | None = None
    """SGLang's id of the request. One that states it, even as null, gets SGLang's answer: a list of scores."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a router's request with its null id as an empty one, and without its word for no model."""
        if "rid" not in document:
            return document
        changed = {"rid": document["rid"] or "", "top_n": document.get("top_n") or document.get("top_k")}
        if document.get("model") in UNSTATED_MODELS:
            changed["model"] = ""
        return {name: value for name, value in (document | changed).items() if name != "top_k"}

    @property
    @override
    def pairs(self) -> list[tuple[str, str]]:
        return [(self.query, document) for document in self.documents]

    @property
    @override
    def params(self) -> list[str]:
        return [f"documents[{i}]" for i in range(len(self.documents))]

    @property
    @override
    def max_second_tokens(self) -> int | None:
        return self.max_tokens_per_doc


class ScoreRequest(PairsRequest):
    """The body of POST /v1/score."""

    text_1: Annotated[tuple[str, ...], _texts("text_1"), WithJsonSchema({"anyOf": [_TEXT, _TEXTS]})]
    """The first text of every pair, or of each."""
    text_2: Annotated[tuple[str, ...], _texts("text_2"), WithJsonSchema({"anyOf": [_TEXT, _TEXTS]})]
    """The second texts."""

    @override
    def check_consistency(self) -> None:
        """Refuse lists that do not pair: there is one first text for all, or one for each."""
        super().check_consistency()
        if len(self.text_1) not in (1, len(self.text_2)):
            message = (
                f"'text_1' has {len(self.text_1)} texts; it must have 1, or as many as 'text_2' ({len(self.text_2)})."
            )
            raise InvalidParameter(message, param="text_1")

    @property
    @override
    def params(self) -> list[str]:
        return [f"text_2[{i}]" for i in range(len(self.text_2))] if len(self.text_2) > 1 else ["text_2"]

    @property
    @override
    def pairs(self) -> list[tuple[str, str]]:
        first = self.text_1 * len(self.text_2) if len(self.text_1) == 1 else self.text_1
        return list(zip(first, self.text_2, strict=True))
