"""One running continuation of a request: how far it is, and what it holds.

The numbers run ahead of each other, because steps are planned before earlier ones are read:

    prompt_len + max_tokens >= prompt_len + num_planned >= prompt_len + len(output_ids)

`num_cached` and `num_planned` count what is done or under way on the device; `output_ids` is what the host has read.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import UInt

from service.engine.request import FinishReason, Request, TokenLogprobs


@dataclass(slots=True, eq=False)
class Sequence:
    """The scheduler's view of one continuation; only the device thread touches it."""

    request: Request
    arrival: int  # running number: who came first
    root_key: bytes  # what its first page's key builds on
    slot: int = -1  # -1 while it waits
    pages: list[int] = field(default_factory=list)  # in the order of positions
    page_keys: list[bytes] = field(default_factory=list)  # of its whole pages, as far as they were computed
    num_remembered: int = 0  # leading pages that were found, or remembered for others
    prefill_len: int = 0  # positions to fill before it decodes: the prompt, and after a preemption its own output too
    num_found: int = 0  # prompt tokens whose pages were found at the first admission
    num_cached: int = 0
    num_planned: int = 0
    last_prefill_turn: int = -1  # when it last got a chunk
    output_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    allowed_words: UInt[np.ndarray, " word"] | None = None  # as `words_allowing` has them; None for all tokens
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)  # by position, if the request asks

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def rank(self) -> tuple[int, int]:
        """Who goes first: by priority, then by arrival."""
        return self.request.priority, self.arrival

    @property
    def known_ids(self) -> tuple[int, ...]:
        """Every token that the host knows, from position 0 on."""
        return (*self.request.prompt_ids, *self.output_ids)

    @property
    def max_positions(self) -> int:
        """The most positions that the sequence writes: the last token is sampled, never cached."""
        return self.prompt_len + self.request.max_tokens - 1

    @property
    def is_running(self) -> bool:
        """Whether it holds a slot."""
        return self.slot >= 0

    @property
    def is_prefilling(self) -> bool:
        """Whether some of what it starts from is not yet cached."""
        return self.num_cached < self.prefill_len

    @property
    def can_decode(self) -> bool:
        """Whether one more token may be planned: the first one comes out of the prefill."""
        return self.is_running and not self.is_prefilling and self.num_planned < self.request.max_tokens

    def keep_prompt_logprobs(self, start: int, logprobs: tuple[TokenLogprobs, ...]) -> None:
        """Take those of the tokens after `start`; a chunk that runs again brings the same ones again."""
        if not self.prompt_logprobs:
            self.prompt_logprobs = [None] * self.prompt_len
        self.prompt_logprobs[start + 1 : start + 1 + len(logprobs)] = logprobs

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come of it."""
        return self.finish_reason is not None
