"""From pairs of texts to their scores: token ids, limits, and the encoder's request."""

from collections.abc import Sequence
from typing import NamedTuple

from service.api.dependencies import EncodingContext
from service.api.schema.rerank import PairsRequest
from service.api.served import ServedEncoder
from service.api.vectors.encoding import encode, length_limit
from service.errors import TextTooLong
from service.text.pair_template import TEMPLATES, encode_templated
from service.text.pairs import PairLimits, TokenPair, encode_pairs


class Scores(NamedTuple):
    """The score of each pair, and the tokens of all."""

    scores: list[float]
    num_tokens: int


async def score(
    context: EncodingContext,
    body: PairsRequest,
    pairs: Sequence[tuple[str, str]],
    params: Sequence[str],
    *,
    max_second_tokens: int | None = None,
) -> Scores:
    """Return the scores of pairs.

    Args:
        context: of the HTTP request.
        body: its checked body.
        pairs: of texts, such as a query and a document.
        params: the request field of each second text, which an error names.
        max_second_tokens: cut longer second texts to so many tokens; None for no cut.

    Raises:
        TextTooLong: a pair has more tokens than the model takes, and is not to be cut.
        InvalidParameter: a text is not made of characters, or a limit is above the model's.
        Overloaded, Draining, EngineError: the encoder refuses the request or fails.
        ClientDisconnected, DeadlineExceeded: the client or the time is gone.
    """
    limit = length_limit(body.truncate_prompt_tokens, context.model)
    encoded = await context.run_in_thread(
        lambda: _encode(context.model, pairs, params, PairLimits(limit, max_second_tokens))
    )
    vectors = await encode(context, [pair.token_ids for pair in encoded], [pair.second_from for pair in encoded])
    return Scores(vectors[:, 0].tolist(), sum(len(pair.token_ids) for pair in encoded))


def _encode(
    model: ServedEncoder, pairs: Sequence[tuple[str, str]], params: Sequence[str], limits: PairLimits
) -> list[TokenPair]:
    if model.vectors.template is None:
        encoded = encode_pairs(model.tokenizer, pairs, params, limits)
    else:
        encoded = encode_templated(model.tokenizer, TEMPLATES[model.vectors.template], pairs, params, limits)
    for pair, param in zip(encoded, params, strict=True):
        if len(pair.token_ids) > model.max_model_len:
            raise TextTooLong(num_tokens=len(pair.token_ids), limit_tokens=model.max_model_len, param=param)
    return encoded
