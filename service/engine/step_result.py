"""A dispatched step, and its tokens and log-probabilities on the host."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from service.engine.limits import MAX_LOGPROBS
from service.engine.request import StepLogprobs, TokenLogprobs
from service.engine.schedule.plan import Plan, PlannedSequence
from service.engine.steps.logprobs import FIRST_TOP
from service.engine.steps.sampling import SampledTokens


class StepResult(NamedTuple):
    """A step that may still be in flight."""

    plan: Plan
    indices: list[int]  # of each planned sequence in the arrays
    hidden: Float[Array, "seq token hidden"]
    sampled: SampledTokens | None  # None if no sequence reaches its prompt's end
    prompt_logprobs: Int[Array, "seq token packed"] | None  # None if no sequence requests them

    def read(self) -> Int[np.ndarray, " seq"]:
        """Wait for the step and return one token per sequence; -1 for one whose logits are NaN or infinite."""
        if self.sampled is None:
            jax.block_until_ready(self.hidden)
            return np.zeros(len(self.indices), np.int32)  # never read: no sequence of the plan is sampled
        return np.asarray(self.sampled.token_ids)[self.indices]

    def read_logprobs(self) -> StepLogprobs | None:
        """Return the requested log-probabilities; if there are none, nothing is copied from the device."""
        requests = [planned.sequence.request for planned in self.plan.seqs]
        if all(r.sampling.num_logprobs is None and r.num_prompt_logprobs is None for r in requests):
            return None
        pairs = list(zip(self.indices, self.plan.seqs, strict=True))
        return StepLogprobs(
            tokens=tuple(self._of_token(i, planned.sequence.request.sampling.num_logprobs) for i, planned in pairs),
            prompts=tuple(self._of_prompt(i, planned) for i, planned in pairs),
        )

    def _of_token(self, index: int, num_top: int | None) -> TokenLogprobs | None:
        if num_top is None or self.sampled is None:
            return None
        return unpack_logprobs(np.asarray(self.sampled.logprobs)[index], num_top)

    def _of_prompt(self, index: int, planned: PlannedSequence) -> tuple[TokenLogprobs, ...]:
        request = planned.sequence.request
        if request.num_prompt_logprobs is None or self.prompt_logprobs is None:
            return ()
        packed = np.asarray(self.prompt_logprobs)[index]
        num_targets = min(len(planned.token_ids), len(request.prompt_ids) - 1 - planned.start)
        return tuple(unpack_logprobs(packed[i], request.num_prompt_logprobs) for i in range(num_targets))


def unpack_logprobs(packed: Int[np.ndarray, " packed"], num_top: int) -> TokenLogprobs:
    """Return one token's log-probabilities from its row, as `pack_logprobs` lays it out."""
    logprobs = packed.view(np.float32)
    ids = packed[FIRST_TOP:][:num_top].tolist()
    top = logprobs[FIRST_TOP + MAX_LOGPROBS :][:num_top].tolist()
    pairs = tuple((token_id, logprob) for token_id, logprob in zip(ids, top, strict=True) if token_id >= 0)
    return TokenLogprobs(float(logprobs[0]), int(packed[1]), pairs)
