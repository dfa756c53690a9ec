"""Log-probabilities as JSON: OpenAI's format of chats, its older one of completions, and vLLM's of prompts.

Source: https://platform.openai.com/docs/api-reference/chat/object, .../completions/object (logprobs);
https://docs.vllm.ai/en/latest/api/vllm/logprobs.html (Logprob)
"""

from collections.abc import Iterable, Sequence

from service.api.answers.generation import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from service.api.conversation import Options
from service.api.generation.streams import SampledToken, TextDelta, TextStreams
from service.engine.request import TokenLogprobs
from service.text.detokenizer import detokenizer_for
from service.text.tokenizer import Tokenizer

# Writing fewer entries takes less time than passing them to a thread.
SHORT_ENTRIES = 500
# JSON has no infinity. Source: vLLM does the same.
LOWEST = -9999.0


def is_long_to_write(streams: TextStreams, options: Options) -> bool:
    """Return whether an answer has more log-probabilities than the event loop should write."""
    if options.num_prompt_logprobs is not None or options.num_logprobs is None:
        return options.num_prompt_logprobs is not None
    return streams.num_tokens * (options.num_logprobs + 1) > SHORT_ENTRIES


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[SampledToken], *, as_ids: bool = False) -> ChatLogprobs:
    """Return the `logprobs` of a chat's choice, or of a chunk of one; with `as_ids`, tokens are named by their ids."""
    content: list[TokenLogprob] = [
        {
            **_entry(tokenizer, token_id, logprobs.logprob, as_ids),
            "top_logprobs": [_entry(tokenizer, top_id, logprob, as_ids) for top_id, logprob in logprobs.top],
        }
        for token_id, logprobs in tokens
        if logprobs is not None
    ]
    return {"content": content, "refusal": None}


def logged_tokens(delta: TextDelta, *, has_ids: bool) -> Sequence[SampledToken]:
    """Return the tokens that the log-probabilities of a chat are of: those of the content.

    Beside token ids all that were sampled, so that there is one entry for each id, as vLLM has it.
    """
    return delta.sampled_tokens if has_ids else delta.content_tokens


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float, as_ids: bool) -> TopLogprob:
    content = tokenizer.token_bytes_of(token_id)
    name = _id_name(token_id) if as_ids else content.decode(errors="replace")
    return {"token": name, "logprob": max(logprob, LOWEST), "bytes": list(content)}


def _id_name(token_id: int) -> str:
    # Source: vLLM's name of a token with `return_tokens_as_token_ids`
    return f"token_id:{token_id}"


def prompt_logprobs(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], num_top: int
) -> PromptLogprobs:
    """Return, for each token of a prompt except the first, its own entry and those of the likeliest, by token id."""

    def entry(token_id: int, logprob: float, rank: int) -> PromptLogprob:
        name = tokenizer.token_bytes_of(token_id).decode(errors="replace")
        return {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": name}

    entries: list[dict[str, PromptLogprob] | None] = [None]
    for token_id, own in zip(prompt_ids[1:], logprobs[1:], strict=True):
        assert own is not None, "only a prompt's first token lacks log-probabilities"
        by_id = {str(token_id): entry(token_id, own.logprob, own.rank)}
        for rank, (top_id, logprob) in enumerate(own.top[:num_top], 1):
            by_id.setdefault(str(top_id), entry(top_id, logprob, rank))
        entries.append(by_id)
    return entries


class CompletionLogprobsParts:
    """The `logprobs` of one completion, in parts; each continues at the text offset where the last one ended."""

    def __init__(
        self, tokenizer: Tokenizer, num_top: int, *, context_ids: Sequence[int], as_ids: bool, keeps_special: bool
    ) -> None:
        """Begin a completion's log-probabilities.

        Args:
            tokenizer: the model's tokenizer.
            num_top: alternatives for each token.
            context_ids: the tokens before the first one.
            as_ids: whether tokens are named by their ids.
            keeps_special: whether the text has special tokens.
        """
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._as_ids = as_ids
        shown_ids = tokenizer.special_ids if keeps_special else frozenset[int]()
        self._detokenizer = detokenizer_for(tokenizer, context_ids, shown_ids)
        self._offset = 0  # in characters of the text

    def begin_behind(self, text: str) -> None:
        """Let the next token begin behind a text, which its tokens need not spell as the client does."""
        self._offset = len(text)

    def part(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
        """Return the part of the next tokens; None is the entry of a prompt's first token, which has no context."""
        offsets, names, tops = list[int](), list[str](), list[dict[str, float] | None]()
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            text = self._detokenizer.push((token_id,))
            name = stated = self._name(token_id)
            if not self._as_ids and name.lstrip(" ") == text.lstrip(" "):
                stated = text  # decoders may strip the first space of a text
            top = None if entry is None else self._top(token_id, entry)
            if top is not None and stated != name:
                top = {stated if other == name else other: logprob for other, logprob in top.items()}
            offsets.append(self._offset)
            names.append(stated)
            tops.append(top)
            self._offset += len(text)
        return {
            "text_offset": offsets,
            "tokens": names,
            "token_logprobs": [None if entry is None else max(entry.logprob, LOWEST) for entry in logprobs],
            "top_logprobs": tops,
        }

    def _top(self, token_id: int, entry: TokenLogprobs) -> dict[str, float]:
        """Return the likeliest tokens, and the sampled one, which need not be among them."""
        likeliest: dict[str, float] = {}
        top = dict(entry.top[: self._num_top])
        for top_id, logprob in (top if token_id in top else top | {token_id: entry.logprob}).items():
            name = self._name(top_id)
            # Of tokens with one text, the likelier has it as its name.
            likeliest[name if name not in likeliest else _id_name(top_id)] = max(logprob, LOWEST)
        return likeliest

    def _name(self, token_id: int) -> str:
        """Return a token's text; a part of a character is written as its bytes, as OpenAI does."""
        if self._as_ids:
            return _id_name(token_id)
        content = self._tokenizer.token_bytes_of(token_id)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
