"""The bodies of POST /pooling, vLLM's, and POST /embedding, llama.cpp's: the fields that are supported.

Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#pooling-api,
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (POST /embedding)
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import Field, PlainValidator, WithJsonSchema

from service.api.schema.embeddings import INPUT, EmbeddingsRequest, Input, read_inputs
from service.api.schema.generation import MAX_NAME_CHARS
from service.api.schema.wire import NeutralValues, WireObject
from service.errors import InvalidParameter, MissingParameter


def _contents(value: Any) -> tuple[Input, ...]:
    return read_inputs(value, "content")


class PoolingRequest(EmbeddingsRequest):
    """The body of POST /pooling."""

    hints: ClassVar[NeutralValues] = {**EmbeddingsRequest.hints, "additional_data": ()}
    refused: ClassVar[NeutralValues] = {
        **EmbeddingsRequest.refused,
        "endianness": ("little", "native"),
        "normalize": (True,),
        "use_activation": (True,),
    }

    task: Literal["embed", "token_embed", "token_classify", "classify"] | None = None
    """`embed`: a text's vector; `token_embed`, the default: one of each token; `token_classify`: bge-m3's weight of
    each token; `classify`: a reranker's score of a text."""

    @override
    def check_consistency(self) -> None:
        """Refuse to cut anything else than a text's one vector."""
        super().check_consistency()
        if self.dimensions is not None and self.task != "embed":
            raise InvalidParameter("'dimensions' needs the task 'embed'.", param="dimensions")


class EmbeddingRequest(WireObject):
    """The body of POST /embedding and POST /embeddings: texts under one of two names."""

    bulk: ClassVar[Mapping[str, Any]] = {"content": "a", "input": "a"}

    model: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    content: Annotated[tuple[Input, ...] | None, PlainValidator(_contents), WithJsonSchema(INPUT)] = None
    """A text, token ids, or up to 2,048 of either."""
    input: Annotated[tuple[Input, ...] | None, PlainValidator(read_inputs), WithJsonSchema(INPUT)] = None
    """A text, token ids, or up to 2,048 of either."""
    embd_normalize: Literal[2] = 2  # the Euclidean norm
    """llama.cpp's: 2, for vectors of length 1."""

    @override
    def check_consistency(self) -> None:
        """Refuse texts under both names, or under none."""
        if self.content is None and self.input is None:
            raise MissingParameter("content")
        if self.content is not None and self.input is not None:
            raise InvalidParameter("'content' and 'input' are two names of the same field.", param="input")

    @property
    def texts(self) -> tuple[Input, ...]:
        """The texts, under whichever name."""
        return self.content or self.input or ()

    @property
    def param(self) -> str:
        """The field that holds the texts."""
        return "input" if self.content is None else "content"

    @property
    def cut_tokens(self) -> None:
        """None: no text is cut."""
        return None
