"""The texts of a request for vectors or scores to token ids: prompts before them, pairs, and limits."""

from collections.abc import Sequence

from service.api.conversation import unknown_token
from service.api.schema.embeddings import EmbeddingsRequest, Input
from service.api.schema.pooling import EmbeddingRequest
from service.api.schema.rerank import PairsRequest
from service.api.served import VectorFacts
from service.api.vectors.prompts import prompt_of
from service.errors import InvalidParameter, TextTooLong
from service.text.pair_template import TEMPLATES, encode_templated
from service.text.pairs import PairLimits, TokenPair, encode_pairs
from service.text.prompt_model import PromptModel
from service.text.tokenizer import Tokenizer


def text_ids(
    body: EmbeddingsRequest | EmbeddingRequest, model: PromptModel, *, vectors: VectorFacts
) -> list[tuple[int, ...]]:
    """Return the token ids of the texts of a request, each cut if it asks for that.

    Raises:
        InvalidParameter: a token id or a prompt is not the model's, or a text has no tokens.
        TextTooLong: a text has more tokens than the model takes.
    """
    limit, params = length_limit(body.cut_tokens, model), _params(body.texts, body.param)
    encoded = _given(body.texts, params, model.vocab_size)
    if not encoded:
        prompt = prompt_of(body, vectors)
        texts = [f"{prompt}{text}" for text in body.texts]
        encoded = [tuple(ids) for ids in model.tokenizer.encode_all(texts, params=params, max_tokens=limit)]
    elif limit is not None:
        encoded = [ids[:limit] for ids in encoded]
    for ids, name in zip(encoded, params, strict=True):
        if not ids:
            raise InvalidParameter(f"Invalid '{name}': it has no tokens, so it has no vector.", param=name)
        if len(ids) > model.max_model_len:
            raise TextTooLong(num_tokens=len(ids), max_model_len=model.max_model_len, param=name)
    return encoded


def prompt_tokens(body: EmbeddingsRequest | EmbeddingRequest, tokenizer: Tokenizer, vectors: VectorFacts) -> int:
    """Return how many tokens at the begin of each text are its prompt's and are not pooled; 0 for most models.

    Source: sentence-transformers 6.2 `base/modules/transformer.py` (_get_prompt_length).
    """
    if vectors.pools_prompts or not all(isinstance(text, str) for text in body.texts):
        return 0
    prompt = prompt_of(body, vectors)
    if not prompt:
        return 0
    [ids] = tokenizer.encode_all([prompt], params=["prompt"])
    return len(ids) - (ids[-1] in tokenizer.special_ids)


def pair_ids(body: PairsRequest, model: PromptModel, *, template: str | None) -> list[TokenPair]:
    """Return the token ids of the pairs of a request.

    Args:
        body: the request's body.
        model: that scores them.
        template: the prompt around a pair, by name; None: what the tokenizer puts around it.

    Raises:
        TextTooLong: a pair has more tokens than the model takes, and is not to be cut.
        InvalidParameter: a text is not made of characters, or a limit is above the model's.
    """
    pairs, params = body.pairs, body.params
    limits = PairLimits(length_limit(body.truncate_prompt_tokens, model), body.max_second_tokens)
    if template is None:
        encoded = encode_pairs(model.tokenizer, pairs, params, limits)
    else:
        encoded = encode_templated(model.tokenizer, TEMPLATES[template], pairs, params, limits)
    for pair, param in zip(encoded, params, strict=True):
        if len(pair.token_ids) > model.max_model_len:
            raise TextTooLong(num_tokens=len(pair.token_ids), max_model_len=model.max_model_len, param=param)
    return encoded


def _params(inputs: Sequence[Input], param: str) -> list[str]:
    return [param] if len(inputs) == 1 else [f"{param}[{i}]" for i in range(len(inputs))]


def _given(inputs: Sequence[Input], params: Sequence[str], vocab_size: int) -> list[tuple[int, ...]]:
    """Return the inputs if they are token ids; an empty list if they are strings."""
    given = [text for text in inputs if not isinstance(text, str)]
    for text, param in zip(given, params, strict=False):
        for i, token_id in enumerate(text):
            if not 0 <= token_id < vocab_size:
                raise unknown_token(f"{param}[{i}]", token_id, vocab_size)
    return given


def length_limit(wanted: int | None, model: PromptModel) -> int | None:
    """Return how many tokens of each text are kept, as `truncate_prompt_tokens` asks; None for all.

    Raises:
        InvalidParameter: more than the model takes.
    """
    if wanted is None or wanted == -1:
        return None if wanted is None else model.max_model_len
    if wanted > model.max_model_len:
        message = f"Invalid 'truncate_prompt_tokens': {wanted} is over the model's maximum of {model.max_model_len}."
        raise InvalidParameter(message, param="truncate_prompt_tokens")
    return wanted
