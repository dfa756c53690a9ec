"""One continuation of a request: its progress, and the slot and pages that it holds.

The counts run ahead of each other, because steps are planned before earlier ones are read:

    prompt_len + max_tokens >= prompt_len + num_planned >= prompt_len + len(output_ids)

`num_computed` and `num_planned` include steps in flight on the device; `output_ids` is what the host has read.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, UInt

from service.engine.constraint import Constraint
from service.engine.request import FinishReason, Request, TokenLogprobs
from service.engine.schedule.memory import Memory
from service.engine.token_mask import ALL_ALLOWED, is_allowed
from service.errors import ConstraintError

_versions = itertools.count()
NO_STATE = -1  # in place of a slot: the sequence begins with zeros


@dataclass(slots=True)
class WindowPages:
    """The pages of one window that a sequence holds: adjacent ones, those before were given up."""

    first: int = 0  # number of the first page, counted from position 0
    pages: list[int] = field(default_factory=list)  # in the order of positions

    @property
    def end(self) -> int:
        """The number of the page after the last."""
        return self.first + len(self.pages)


@dataclass(slots=True, eq=False)
class Sequence:
    """The scheduler's view of one continuation; only the device thread touches it."""

    request: Request
    arrival: int  # running number in the order of arrival
    root_key: bytes  # precedes its first page's key
    slot: int = -1  # -1 while it waits
    memory: Memory | None = None  # of a sequence that has one and holds a slot
    media: dict[int, Memory] = field(default_factory=dict)  # by number: those that it holds, to be computed with
    adapter_slot: int = -1  # of a sequence that has an adapter and holds a slot
    pages: list[int] = field(default_factory=list)  # in the order of positions
    # Of `pages` and those of windows: another one, also than any other sequence's, once pages were taken out of them.
    pages_version: int = field(default_factory=_versions.__next__)
    windows: tuple[WindowPages, ...] = ()  # those of layers whose pages are apart, for each window
    branch: int | None = None  # leading pages that it shares with others, where these part from it; None if none do
    state: int = NO_STATE  # the slot of its state, of a model whose layers keep states
    # Of the computed positions, the last ones, which its state has not read: they were drafted. The next step computes
    # them again, now that they are known.
    num_behind: int = 0
    next_state: int = NO_STATE  # the slot that its next step writes, while that is planned
    parting: int = 0  # position up to which others have computed its text already, which is the end of a row
    latest_kept: int = 0  # the last position whose state decoding left findable; 0 for none
    page_keys: list[bytes] = field(default_factory=list)  # of its leading whole pages, as far as computed
    num_registered: int = 0  # leading pages that were found, or were offered to the pool's index
    prefill_len: int = 0  # positions to fill before it decodes: the prompt, and after a preemption its own output too
    num_cached_tokens: int = 0  # prompt tokens whose pages were found at the first admission
    num_computed: int = 0  # positions with keys and values, or that a step in flight gives them
    num_planned: int = 0  # output tokens that were sampled, or that a step in flight samples
    num_drafted: int = 0  # tokens that a step in flight verifies, which `num_computed` and `num_planned` include
    last_chunk: int = -1  # running number of its last prefill chunk among all sequences' chunks
    output_ids: list[int] = field(default_factory=list)
    known_ids: list[int] = field(init=False)  # every token that the host knows, from position 0 on
    # The order within a flow, and of who gives way to whom; lowest first: by priority, then by arrival.
    rank: tuple[int, int] = field(init=False)
    is_plain: bool = field(init=False)  # whether nothing but temperature, top-k and top-p is asked for its tokens
    finish_reason: FinishReason | None = None
    failure: ConstraintError | None = None  # of its constraint; the sequence ends with its next token
    draft_failure: tuple[int, ConstraintError] | None = None  # the same, after so many drafts of the step in flight
    token_mask: UInt[np.ndarray, " word"] | None = field(init=False)  # as `pack_token_mask` returns it; None allows all
    probe: TokenLogprobs | None = None  # of the request's probe, once it was read
    attention: list[Float[np.ndarray, "head prompt_token position"]] = field(
        default_factory=list
    )  # of the prompt's chunks
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)  # by position; empty unless requested

    def __post_init__(self) -> None:
        self.known_ids = list(self.request.prompt_ids)
        self.rank = self.request.priority, self.arrival
        sampling = self.request.sampling
        mask = sampling.allowed_mask
        self.is_plain = not (
            self.request.constraint is not None
            or sampling.has_penalties
            or sampling.logit_bias
            or sampling.group_from is not None
            or mask is not None
            or sampling.num_logprobs is not None
            or sampling.min_tokens
        )
        self.token_mask = None if mask is None else np.frombuffer(mask, "<u4")

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

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
        """Whether some positions before its first decode step are not computed yet."""
        return self.num_computed < self.prefill_len

    @property
    def can_decode(self) -> bool:
        """Whether one more token may be planned: the first one is sampled by the prefill."""
        # One expression: it is asked of every sequence before every step.
        return (
            self.slot >= 0
            and self.num_computed >= self.prefill_len
            and not self.num_drafted
            and self.num_planned < self.request.max_tokens
        )

    @property
    def next_start(self) -> int:
        """The first position that its next step computes, up to which its state has read."""
        return self.num_computed - self.num_behind

    @property
    def is_read(self) -> bool:
        """Whether the host knows every token that was planned, so that drafts may follow."""
        return self.num_planned == len(self.output_ids)

    @property
    def is_finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None

    @property
    def is_restricted(self) -> bool:
        """Whether some tokens must not be sampled next."""
        constraint = self.request.constraint
        is_constrained = constraint is not None and not constraint.is_free
        return not self.is_finished and (self.token_mask is not None or is_constrained)

    def fill_mask(self, words: UInt[np.ndarray, " word"]) -> None:
        """Write the mask of the tokens that may be sampled next; a constraint that fails leaves a neutral mask."""
        try:
            self._fill(words, self.request.constraint)
        except ConstraintError as error:
            self.failure = error
            words[:] = ALL_ALLOWED

    def fill_masks(self, masks: UInt[np.ndarray, "sample word"], drafts: tuple[int, ...]) -> None:
        """Write the mask of the next token, and of those after each draft, as far as these may come at all.

        Where a constraint fails after a draft, no token is allowed: the sequence fails if it gets there.
        """
        masks[:] = ALL_ALLOWED
        self.draft_failure = None
        self.fill_mask(masks[0])
        if self.failure is not None:
            return
        constraint = self.request.constraint
        ahead = None if constraint is None else constraint.copy()
        for place, token_id in enumerate(drafts, 1):
            if not is_allowed(masks[place - 1], token_id):
                return
            try:
                if ahead is not None:
                    ahead.accept(token_id)
                self._fill(masks[place], ahead)
            except ConstraintError as error:
                self.draft_failure = (place, error)
                masks[place] = 0
                return

    def _fill(self, words: UInt[np.ndarray, " word"], constraint: Constraint | None) -> None:
        words[:] = ALL_ALLOWED
        if constraint is not None:
            constraint.fill_mask(words)
        if self.token_mask is not None:
            words[: len(self.token_mask)] &= self.token_mask
            words[len(self.token_mask) :] = 0
        if not words.any():
            raise ConstraintError("The constraints of the request leave no token to sample.")

    def renew_version(self) -> None:
        """Note that pages were taken out."""
        self.pages_version = next(_versions)

    def append(self, token_id: int) -> None:
        """Take a sampled token."""
        self.output_ids.append(token_id)
        self.known_ids.append(token_id)
        if self.request.constraint is not None:
            try:
                self.request.constraint.accept(token_id)
            except ConstraintError as error:
                self.failure = error

    def keep_prompt_logprobs(self, start: int, logprobs: tuple[TokenLogprobs, ...]) -> None:
        """Keep those of the tokens after position `start`, or the probe's; a chunk that runs again brings the same."""
        if self.request.probe is not None:
            [self.probe] = logprobs
            return
        if not self.prompt_logprobs:
            self.prompt_logprobs = [None] * self.prompt_len
        self.prompt_logprobs[start + 1 : start + 1 + len(logprobs)] = logprobs
