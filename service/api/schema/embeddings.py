"""The body of POST /v1/embeddings: its fields by the rule of `wire`.

Source: https://platform.openai.com/docs/api-reference/embeddings/create,
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#embeddings-api (extra parameters)
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import Field, PlainValidator, WithJsonSchema

from service.api.schema.encoder import EncoderRequest
from service.api.schema.generation import INT32_MAX, MAX_NAME_CHARS
from service.api.schema.wire import NeutralValues
from service.errors import InvalidParameter

MAX_INPUTS = 2048  # OpenAI's

_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
INPUT = {
    "anyOf": [
        _TEXT,
        _TOKEN_IDS,
        {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_INPUTS},
        {"type": "array", "items": _TOKEN_IDS, "minItems": 1, "maxItems": MAX_INPUTS},
    ]
}

type Input = str | tuple[int, ...]
type InputType = Literal["query", "search_query", "document", "search_document", "classification", "clustering"]


def read_inputs(value: Any, param: str = "input") -> tuple[Input, ...]:
    """Return the texts of a string, a list of token ids, or a list of either kind; `param` is their field.

    Raises:
        InvalidParameter: they are something else, too many, or one is empty.
    """
    if not (isinstance(value, list) and value and isinstance(value[0], str | list)):
        return (_input(value, param),)
    if len(value) > MAX_INPUTS:
        message = f"Invalid '{param}': {len(value)} texts are over the limit of {MAX_INPUTS}. Send several requests."
        raise InvalidParameter(message, param=param)
    kind = type(value[0])
    for i, item in enumerate(value):
        if type(item) is not kind:
            message = f"Invalid '{param}[{i}]': all texts must be strings, or all of them lists of token ids."
            raise InvalidParameter(message, param=f"{param}[{i}]")
    return tuple(_input(item, f"{param}[{i}]") for i, item in enumerate(value))


def _input(value: Any, param: str) -> Input:
    if not isinstance(value, str | list):
        raise InvalidParameter(f"Invalid '{param}': it must be a string or a list of token ids.", param=param)
    if not value:
        raise InvalidParameter(f"Invalid '{param}': it is empty, so it has no vector.", param=param)
    if isinstance(value, str):
        return value
    for i, token_id in enumerate(value):
        if type(token_id) is not int:
            raise InvalidParameter(f"Invalid '{param}[{i}]': it must be a token id.", param=f"{param}[{i}]")
    return tuple(value)


class EmbeddingsRequest(EncoderRequest):
    """The body of POST /v1/embeddings."""

    hints: ClassVar[NeutralValues] = {"add_special_tokens": (True,), "priority": (0,), "request_id": ()}
    refused: ClassVar[NeutralValues] = {"embed_dtype": ("float32",), "messages": ()}
    bulk: ClassVar[Mapping[str, Any]] = {"input": "a"}

    input: Annotated[tuple[Input, ...], PlainValidator(read_inputs), WithJsonSchema(INPUT)]
    """A text, token ids, or up to 2,048 of either."""
    dimensions: int | None = Field(default=None, ge=1, le=INT32_MAX)
    """The number of leading dimensions of each vector to keep; for models that were trained for it."""
    encoding_format: Literal["float", "base64"] = "float"
    """`float` for numbers, `base64` for the bytes of little-endian float32."""
    prompt_name: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """sentence-transformers': which of the model's prompts comes before each text, such as `query`."""
    input_type: InputType | None = None
    """Cohere's and vLLM's: the prompt before each text, by what the texts are for."""

    @property
    def texts(self) -> tuple[Input, ...]:
        """The texts."""
        return self.input

    @property
    def param(self) -> str:
        """The field that holds the texts."""
        return "input"

    @property
    def cut_tokens(self) -> int | None:
        """How many tokens of each text are kept, -1 for the model's maximum; None for all."""
        return self.truncate_prompt_tokens

    @override
    def check_consistency(self) -> None:
        """Refuse a text cut to nothing, two prompts, and a prompt before token ids."""
        super().check_consistency()
        names = [name for name in ("prompt_name", "input_type") if getattr(self, name) is not None]
        if len(names) > 1:
            message = "'input_type' contradicts 'prompt_name': each chooses the prompt. Send one of them."
            raise InvalidParameter(message, param="input_type")
        if names and self.input and not isinstance(self.input[0], str):
            message = f"'{names[0]}' contradicts 'input', which has token ids: put the prompt's tokens before them."
            raise InvalidParameter(message, param=names[0])
