"""From the texts of a request to their vectors: prompts, token ids, limits, and the encoder's request."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from service.api.http.call import Call
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.pooling import EmbeddingRequest
from service.api.served import ServedEncoder
from service.api.vectors.texts import prompt_tokens, text_ids
from service.encoder.cache import PartialRequest, keys_of
from service.encoder.request import EncodeRequest, HiddenStates, Vectors
from service.errors import NonFiniteVector

# Tokenizing so little takes less time than passing it to a thread.
SHORT_CHARS = 2048
# Hashing so little takes less time than passing it to a thread.
SHORT_TOKENS = 4096


async def token_ids(
    call: Call, model: ServedEncoder, body: EmbeddingsRequest | EmbeddingRequest
) -> list[tuple[int, ...]]:
    """Return the token ids of the texts, each cut if the request asks for that.

    Raises:
        InvalidParameter: a token id or a prompt is not the model's, or a text has no tokens.
        TextTooLong: a text has more tokens than the model takes.
    """
    make = partial(text_ids, vectors=model.vectors)
    if call.has_long_body or sum(len(text) for text in body.texts if isinstance(text, str)) > SHORT_CHARS:
        return await call.make_prompt(make, body, model)
    return make(body, model.prompt_model)


async def encode_body(
    call: Call, model: ServedEncoder, body: EmbeddingsRequest | EmbeddingRequest, texts: Sequence[tuple[int, ...]]
) -> Vectors:
    """Return the vectors of the texts of a request, whose token ids are given; as `encode`, and raises as that."""
    return await encode(call, model, texts, prompt_tokens=prompt_tokens(body, model.tokenizer, model.vectors))


async def encode(
    call: Call,
    model: ServedEncoder,
    texts: Sequence[tuple[int, ...]],
    second_from: Sequence[int] = (),
    prompt_tokens: int = 0,
) -> Vectors:
    """Return the vectors of texts; float32 of shape [text, vector].

    Args:
        call: the HTTP request.
        model: the model that answers.
        texts: token ids.
        second_from: for each pair, where its second text begins, in tokens; empty if no text is a pair.
        prompt_tokens: tokens at the begin of every text that are not pooled.

    Raises:
        Overloaded, Draining, EngineStopped: the encoder does not accept the request now.
        QueueTimeout: it has waited too long for its first step.
        EngineError: the encoder failed, or a vector is NaN or infinite.
        DeadlineExceeded: the time is over.
    """
    request = EncodeRequest(uuid.uuid4().hex, tuple(texts), tuple(second_from), prompt_tokens)
    cache = model.cache
    if not cache.is_on:
        return await _submit(call, model, request)
    if sum(map(len, texts)) > SHORT_TOKENS:
        keys = await call.run_in_thread(lambda: keys_of(request, call.cache_salt))
    else:
        keys = keys_of(request, call.cache_salt)
    partial = PartialRequest(request, keys, cache)
    if not partial.numbers:
        return partial.vectors()
    try:
        return partial.complete(await _submit(call, model, partial.missing))
    except NonFiniteVector as error:
        raise NonFiniteVector(partial.numbers[error.index]) from None


async def encode_tokens(call: Call, model: ServedEncoder, texts: Sequence[tuple[int, ...]]) -> list[HiddenStates]:
    """Return the hidden states of each text's tokens; float32 of shape [token, hidden]. Raises as `encode`."""
    request = EncodeRequest(uuid.uuid4().hex, tuple(texts), wants_tokens=True)
    rows = await _submit(call, model, request)
    return np.split(rows, np.cumsum([len(text) for text in texts])[:-1])


async def _submit(call: Call, model: ServedEncoder, request: EncodeRequest) -> Vectors:
    request = replace(request, queue_deadline=call.wait_in_queue(sum(map(len, request.texts))))
    call.clocks.append(request.clock)
    # The server cancels this task if the client disconnects, which cancels the future and so aborts the request.
    return await call.deadline.within(model.encoder.submit(request))
