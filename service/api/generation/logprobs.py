"""Log-probabilities as JSON: OpenAI's format of chats, its older one of completions, and vLLM's of prompts.

Source: https://platform.openai.com/docs/api-reference/chat/object, .../completions/object (logprobs);
https://docs.vllm.ai/en/latest/api/vllm/logprobs.html (Logprob)
"""

import codecs
from collections.abc import Sequence
from typing import Any

from service.api.generation.streams import TextDelta, TextStreams
from service.api.schema.generation import GenerationRequest
from service.engine.request import TokenLogprobs
from service.text.tokenizer import Tokenizer

# Writing fewer entries takes less time than passing them to a thread.
SHORT_ENTRIES = 500
# JSON has no infinity. Source: vLLM does the same.
LOWEST = -9999.0


def is_long_to_write(streams: TextStreams, body: GenerationRequest) -> bool:
    """Return whether an answer has so many log-probabilities that the event loop should not write them."""
    num_tokens, num_top = streams.usage()["completion_tokens"], body.num_logprobs
    return body.num_prompt_logprobs is not None or (num_top is not None and num_tokens * (num_top + 1) > SHORT_ENTRIES)


def chat_logprobs(tokenizer: Tokenizer, deltas: Sequence[TextDelta], *, as_ids: bool) -> dict[str, Any]:
    """Return the `logprobs` of a chat's choice, or of a chunk of one; with `as_ids`, tokens are named by their ids."""
    content = [
        _entry(tokenizer, token_id, logprobs.logprob, as_ids)
        | {"top_logprobs": [_entry(tokenizer, top_id, logprob, as_ids) for top_id, logprob in logprobs.top]}
        for delta in deltas
        for token_id, logprobs in zip(delta.token_ids, delta.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float, as_ids: bool) -> dict[str, Any]:
    content = tokenizer.token_bytes_of(token_id)
    name = _id_name(token_id) if as_ids else content.decode(errors="replace")
    return {"token": name, "logprob": max(logprob, LOWEST), "bytes": list(content)}


def _id_name(token_id: int) -> str:
    # Source: vLLM's name of a token with `return_tokens_as_token_ids`
    return f"token_id:{token_id}"


def prompt_logprobs(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], num_top: int
) -> list[dict[str, Any] | None]:
    """Return, for each token of a prompt except the first, its own entry and those of the likeliest, by token id."""

    def entry(token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        name = tokenizer.token_bytes_of(token_id).decode(errors="replace")
        return {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": name}

    entries: list[dict[str, Any] | None] = [None]
    for token_id, own in zip(prompt_ids[1:], logprobs[1:], strict=True):
        assert own is not None, "only a prompt's first token lacks log-probabilities"
        by_id = {str(token_id): entry(token_id, own.logprob, own.rank)}
        for rank, (top_id, logprob) in enumerate(own.top[:num_top], 1):
            by_id.setdefault(str(top_id), entry(top_id, logprob, rank))
        entries.append(by_id)
    return entries


class CompletionLogprobs:
    """The `logprobs` of one completion, in parts; each continues at the text offset where the last one ended."""

    def __init__(self, tokenizer: Tokenizer, num_top: int, *, as_ids: bool, keeps_special: bool) -> None:
        """Begin a completion's log-probabilities.

        Args:
            tokenizer: the model's tokenizer.
            num_top: alternatives for each token.
            as_ids: whether tokens are named by their ids.
            keeps_special: whether the text has special tokens.
        """
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._as_ids = as_ids
        self._keeps_special = keeps_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0  # in characters of the text

    def part(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """Return the part of the next tokens; None is the entry of a prompt's first token, which has no context."""
        offsets = [self._advance(token_id) for token_id in token_ids]
        return {
            "text_offset": offsets,
            "tokens": [self._name(token_id) for token_id in token_ids],
            "token_logprobs": [None if entry is None else max(entry.logprob, LOWEST) for entry in logprobs],
            "top_logprobs": [
                None if entry is None else self._top(token_id, entry)
                for token_id, entry in zip(token_ids, logprobs, strict=True)
            ],
        }

    def _advance(self, token_id: int) -> int:
        offset = self._offset
        if self._keeps_special or token_id not in self._tokenizer.special_ids:
            self._offset += len(self._utf8.decode(self._tokenizer.token_bytes_of(token_id)))
        return offset

    def _top(self, token_id: int, entry: TokenLogprobs) -> dict[str, float]:
        """Return the likeliest tokens, and the sampled one, which need not be among them."""
        likeliest = {self._name(top_id): max(logprob, LOWEST) for top_id, logprob in entry.top[: self._num_top]}
        return likeliest | {self._name(token_id): max(entry.logprob, LOWEST)}

    def _name(self, token_id: int) -> str:
        """Return a token's text; a part of a character is written as its bytes, as OpenAI does."""
        if self._as_ids:
            return _id_name(token_id)
        content = self._tokenizer.token_bytes_of(token_id)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
