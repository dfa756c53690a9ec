"""The prompts of rerankers that are language models: what stands around the two texts of a pair.

Source: https://huggingface.co/Qwen/Qwen3-Reranker-0.6B (README: the prefix, the suffix, the default instruction, and
that the texts between are cut while the prompt around them is not).
"""

from collections.abc import Sequence
from typing import NamedTuple

from service.text.pairs import PairLimits, TokenPair
from service.text.tokenizer import Tokenizer, check_characters


class PairTemplate(NamedTuple):
    """A prompt with two texts in it."""

    begin: str
    before_first: str
    before_second: str
    end: str


QWEN3_RERANKER = PairTemplate(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: ",
    "\n<Document>: ",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
TEMPLATES = {"qwen3_reranker": QWEN3_RERANKER}


def encode_templated(
    tokenizer: Tokenizer,
    template: PairTemplate,
    pairs: Sequence[tuple[str, str]],
    params: Sequence[str],
    limits: PairLimits,
) -> list[TokenPair]:
    """Return the token ids of pairs in a prompt; arguments and errors as of `encode_pairs`."""
    for pair, param in zip(pairs, params, strict=True):
        for text in pair:
            check_characters(text, param)
    backend = tokenizer.backend
    begin, end = (backend.encode(part, add_special_tokens=False).ids for part in (template.begin, template.end))
    seconds = [second for _, second in pairs]
    if limits.second is not None:
        seconds = [_shortened(tokenizer, second, limits.second) for second in seconds]
    texts = [
        f"{template.before_first}{first}{template.before_second}{second}"
        for (first, _), second in zip(pairs, seconds, strict=True)
    ]
    room = None if limits.pair is None else max(0, limits.pair - len(begin) - len(end))
    encoded = []
    for encoding, param in zip(backend.encode_batch_fast(texts, add_special_tokens=False), params, strict=True):
        tokenizer.check_ids(encoding.ids, param)
        ids = (*begin, *encoding.ids[:room], *end)
        encoded.append(TokenPair(ids, len(ids)))
    return encoded


def _shortened(tokenizer: Tokenizer, text: str, num_tokens: int) -> str:
    """Return the beginning of a text up to a number of tokens."""
    offsets = tokenizer.backend.encode(text, add_special_tokens=False).offsets
    return text if len(offsets) <= num_tokens else text[: offsets[num_tokens - 1][1]]
