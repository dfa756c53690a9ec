"""The prompt before the texts of a request: by its name, by the purpose of the texts, or the model's default.

Source: sentence-transformers `SentenceTransformer.py` (prompt_name; encode_query and encode_document, which look for
the same names); https://docs.cohere.com/reference/embed (input_type).
"""

from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.pooling import EmbeddingRequest
from service.api.served import VectorFacts
from service.errors import InvalidParameter

QUERY_NAMES = ("query", "search_query", "retrieval-query", "retrieval.query")
DOCUMENT_NAMES = ("document", "search_document", "passage", "corpus", "retrieval-document", "retrieval.passage")
# What checkpoints call the prompt of each `input_type`, in lower case; the first that the model has is taken.
PROMPT_NAMES = {
    "query": QUERY_NAMES,
    "search_query": QUERY_NAMES,
    "document": DOCUMENT_NAMES,
    "search_document": DOCUMENT_NAMES,
    "classification": ("classification",),
    "clustering": ("clustering",),
}


def prompt_of(body: EmbeddingsRequest | EmbeddingRequest, vectors: VectorFacts) -> str:
    """Return what comes before each text; an empty string for nothing.

    Raises:
        InvalidParameter: the model has no prompt of that name, or for texts of that type.
    """
    if isinstance(body, EmbeddingRequest):
        name = vectors.default_prompt
    elif body.input_type is not None:
        return _by_type(body.input_type, vectors)
    else:
        name = body.prompt_name if body.prompt_name is not None else vectors.default_prompt
    if name is None:
        return ""
    if name not in vectors.prompts:
        message = f"Invalid 'prompt_name': the model has no prompt {name!r}. {_known(vectors)}"
        raise InvalidParameter(message, param="prompt_name")
    return vectors.prompts[name]


def _by_type(input_type: str, vectors: VectorFacts) -> str:
    by_name = {name.lower(): prompt for name, prompt in vectors.prompts.items()}
    found = [by_name[name] for name in PROMPT_NAMES[input_type] if name in by_name]
    if found:
        return found[0]
    # A model with a prompt only for queries was trained with documents as they are.
    if PROMPT_NAMES[input_type] == DOCUMENT_NAMES and not by_name.keys().isdisjoint(QUERY_NAMES):
        return ""
    message = f"Invalid 'input_type': the model has no prompt for {input_type!r}. {_known(vectors)}"
    raise InvalidParameter(message, param="input_type")


def _known(vectors: VectorFacts) -> str:
    names = ", ".join(map(repr, vectors.prompts))
    return f"Its prompts: {names}." if names else "It has no prompts: leave the field out."
