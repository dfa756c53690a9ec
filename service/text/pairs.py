"""Pairs of texts to token ids, as cross-encoders read them: one text after the other, with special tokens between."""

from collections.abc import Sequence
from typing import NamedTuple

from service.text.tokenizer import Tokenizer, check_characters


class PairLimits(NamedTuple):
    """The most tokens that are kept; None for all."""

    pair: int | None = None  # of both texts and the special tokens; the second text is cut
    second: int | None = None  # of the second text


class TokenPair(NamedTuple):
    """The token ids of a pair."""

    token_ids: tuple[int, ...]
    second_from: int  # the first token of type 1; the number of tokens if there is none


def encode_pairs(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], params: Sequence[str], limits: PairLimits
) -> list[TokenPair]:
    """Return the token ids of pairs, with the special tokens that the tokenizer puts around them.

    Args:
        tokenizer: the model's.
        pairs: first and second texts.
        params: the request field of each pair, which an error names.
        limits: of their lengths. Where the first text by itself is over the limit, the pair stays over it.

    Raises:
        InvalidParameter: a text has a lone surrogate, which is not a character, or a token that the model lacks.
    """
    for pair, param in zip(pairs, params, strict=True):
        for text in pair:
            check_characters(text, param)
    backend = tokenizer.backend
    unique = list(dict.fromkeys(first for first, _ in pairs))
    firsts = dict(zip(unique, backend.encode_batch_fast(unique, add_special_tokens=False), strict=True))
    seconds = backend.encode_batch_fast([second for _, second in pairs], add_special_tokens=False)
    num_special = backend.num_special_tokens_to_add(is_pair=True)
    encoded = []
    for (first, _), second, param in zip(pairs, seconds, params, strict=True):
        tokenizer.check_ids([*firsts[first].ids, *second.ids], param)
        room = len(second.ids) if limits.second is None else limits.second
        if limits.pair is not None:
            room = min(room, max(0, limits.pair - num_special - len(firsts[first].ids)))
        if room < len(second.ids):
            second.truncate(room)
        whole = backend.post_process(firsts[first], second)
        types = whole.type_ids
        encoded.append(TokenPair(tuple(whole.ids), types.index(1) if 1 in types else len(types)))
    return encoded
