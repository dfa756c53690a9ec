"""From pairs of texts to their scores: token ids, limits, and the encoder's request."""

from functools import partial
from typing import NamedTuple

from service.api.http.call import Call
from service.api.schema.rerank import PairsRequest
from service.api.served import ServedEncoder
from service.api.vectors.encoding import encode
from service.api.vectors.texts import pair_ids


class PairScores(NamedTuple):
    """The score of each pair, and the tokens of all."""

    scores: list[float]
    num_tokens: int


async def score(call: Call, model: ServedEncoder, body: PairsRequest) -> PairScores:
    """Return the scores of the pairs of a request.

    Raises:
        TextTooLong: a pair has more tokens than the model takes, and is not to be cut.
        InvalidParameter: a text is not made of characters, or a limit is above the model's.
        Overloaded, Draining, EngineError: the encoder refuses the request or fails.
        ClientDisconnected, DeadlineExceeded: the client or the time is gone.
    """
    encoded = await call.make_prompt(partial(pair_ids, template=model.vectors.template), body, model)
    vectors = await encode(call, model, [pair.token_ids for pair in encoded], [pair.second_from for pair in encoded])
    return PairScores(vectors[:, 0].tolist(), sum(len(pair.token_ids) for pair in encoded))
