"""From the texts of a request to their vectors: prompts, token ids, limits, and the encoder's request."""

import uuid
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from service.api.dependencies import EncodingContext
from service.api.schema.embeddings import EmbeddingsRequest, Input
from service.api.schema.generation import unknown_token
from service.api.served import ServedEncoder
from service.api.vectors.prompts import prompt_of
from service.encoder.cache import PartialRequest, keys_of
from service.encoder.request import EncodeRequest, HiddenStates, Vectors
from service.errors import InvalidParameter, NonFiniteVector, TextTooLong

# Tokenizing so little takes less time than passing it to a thread.
SHORT_CHARS = 2048
# Hashing so little takes less time than passing it to a thread.
SHORT_TOKENS = 4096


async def token_ids(
    context: EncodingContext, body: EmbeddingsRequest, *, param: str = "input"
) -> list[tuple[int, ...]]:
    """Return the token ids of the texts, each cut if the request asks for that; `param` is their field for errors.

    Raises:
        InvalidParameter: a token id or a prompt is not the model's, or a text has no tokens.
        TextTooLong: a text has more tokens than the model takes.
    """
    if sum(len(text) for text in body.input if isinstance(text, str)) > SHORT_CHARS:
        return await context.run_in_thread(lambda: _token_ids(body, context.model, param))
    return _token_ids(body, context.model, param)


async def encode(
    context: EncodingContext, texts: Sequence[tuple[int, ...]], second_from: Sequence[int] = ()
) -> Vectors:
    """Return the vectors of texts; float32 of shape [text, vector].

    Args:
        context: of the HTTP request.
        texts: token ids.
        second_from: of each text, the first token of the second text of a pair; empty if no text is a pair.

    Raises:
        Overloaded, Draining, EngineStopped: the encoder does not accept the request now.
        QueueTimeout: it has waited too long for its first step.
        EngineError: the encoder failed, or a vector is NaN or infinite.
        DeadlineExceeded: the time is over.
    """
    request = EncodeRequest(uuid.uuid4().hex, tuple(texts), tuple(second_from))
    cache = context.model.cache
    if not cache.is_on:
        return await _submit(context, request)
    if sum(map(len, texts)) > SHORT_TOKENS:
        keys = await context.run_in_thread(lambda: keys_of(request, context.cache_salt))
    else:
        keys = keys_of(request, context.cache_salt)
    partial = PartialRequest(request, keys, cache)
    if not partial.numbers:
        return partial.vectors()
    try:
        return partial.complete(await _submit(context, partial.missing))
    except NonFiniteVector as error:
        raise NonFiniteVector(partial.numbers[error.index]) from None


async def encode_tokens(context: EncodingContext, texts: Sequence[tuple[int, ...]]) -> list[HiddenStates]:
    """Return the hidden states of each text's tokens; float32 of shape [token, hidden]. Raises as `encode`."""
    request = EncodeRequest(uuid.uuid4().hex, tuple(texts), wants_tokens=True)
    rows = await _submit(context, request)
    return np.split(rows, np.cumsum([len(text) for text in texts])[:-1])


async def _submit(context: EncodingContext, request: EncodeRequest) -> Vectors:
    request = replace(request, queue_deadline=context.wait_in_queue(sum(map(len, request.texts))))
    context.clocks.append(request.clock)
    # The server cancels this task if the client disconnects, which cancels the future and so aborts the request.
    return await context.deadline.within(context.model.encoder.submit(request))


def _token_ids(body: EmbeddingsRequest, model: ServedEncoder, param: str) -> list[tuple[int, ...]]:
    limit, params = length_limit(body.truncate_prompt_tokens, model), _params(body.input, param)
    encoded = _given(body.input, params, model.vocab_size)
    if not encoded:
        prompt = prompt_of(body, model.vectors)
        texts = [f"{prompt}{text}" for text in body.input]
        encoded = [tuple(ids) for ids in model.tokenizer.encode_all(texts, params=params, max_tokens=limit)]
    elif limit is not None:
        encoded = [ids[:limit] for ids in encoded]
    for ids, name in zip(encoded, params, strict=True):
        if not ids:
            raise InvalidParameter(f"Invalid '{name}': it has no tokens, so it has no vector.", param=name)
        if len(ids) > model.max_model_len:
            raise TextTooLong(num_tokens=len(ids), limit_tokens=model.max_model_len, param=name)
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


def length_limit(wanted: int | None, model: ServedEncoder) -> int | None:
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
