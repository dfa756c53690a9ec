"""One completion on its way out, whole or in parts: its text, its token ids, and their log-probabilities.

With `echo` the first part begins with the prompt.
"""

from collections.abc import Sequence
from typing import Any

from service.api.generation.generation import Piece
from service.api.generation.logprobs import CompletionLogprobs, write_prompt_logprobs
from service.api.schema.completions import CompletionRequest
from service.text.tokenizer import Tokenizer


class CompletionWriter:
    """Writes the choices of one index; it knows whether the prompt was told already."""

    def __init__(self, index: int, body: CompletionRequest, prompt_ids: Sequence[int], tokenizer: Tokenizer) -> None:
        self._index = index
        self._body = body
        self._prompt_ids = list(prompt_ids)
        self._tokenizer = tokenizer
        self._logprobs = CompletionLogprobs(tokenizer, body.logprobs or 0)
        self._has_begun = False

    def write(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the choice that tells what these pieces brought."""
        is_first, self._has_begun = not self._has_begun, True
        echoes = is_first and self._body.echo
        token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
        choice: dict[str, Any] = {
            "index": self._index,
            "text": (self._prompt_text() if echoes else "") + "".join(piece.text for piece in pieces),
            "logprobs": self._write_logprobs(pieces, token_ids, echoes=echoes),
            "finish_reason": None if pieces[-1].finish_reason is None else str(pieces[-1].finish_reason),
        }
        if self._body.return_token_ids:
            choice |= {"prompt_token_ids": self._prompt_ids} if is_first else {}
            choice["token_ids"] = token_ids
        if is_first and self._body.prompt_logprobs is not None:
            of_prompt = pieces[0].prompt_logprobs
            num_top = self._body.prompt_logprobs
            choice["prompt_logprobs"] = write_prompt_logprobs(self._tokenizer, self._prompt_ids, of_prompt, num_top)
        return choice

    def _write_logprobs(self, pieces: Sequence[Piece], token_ids: list[int], *, echoes: bool) -> dict[str, Any] | None:
        if self._body.logprobs is None or not (token_ids or echoes):
            return None
        logprobs = [entry for piece in pieces for entry in piece.logprobs]
        if not echoes:
            return self._logprobs.part(token_ids, logprobs)
        # A prompt of one token has none, since its first token follows nothing.
        of_prompt = pieces[0].prompt_logprobs or (None,) * len(self._prompt_ids)
        return self._logprobs.part(self._prompt_ids + token_ids, [*of_prompt, *logprobs])

    def _prompt_text(self) -> str:
        prompt = self._body.prompt[self._index // self._body.n]
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)
