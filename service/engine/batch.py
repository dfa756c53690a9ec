"""A plan as the padded arrays of one bucket, and the tokens and log-probabilities of its step, back on the host."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from service.engine.limits import MAX_LOGPROBS
from service.engine.request import Request, Sampling, StepLogprobs, TokenLogprobs
from service.engine.schedule.pages import PageCopy
from service.engine.schedule.plan import Plan, PlannedSequence
from service.engine.shapes import Bucket, EngineShapes, StepKind
from service.engine.steps.inputs import (
    CountInputs,
    OptionInputs,
    Options,
    StepInputs,
    empty_copy,
    empty_count,
    empty_options,
    empty_step,
    neutral_options,
    scalar,
)
from service.engine.steps.logprobs import FIRST_TOP
from service.engine.steps.names import SamplingPart
from service.engine.token_mask import ALL_ALLOWED
from service.kernels.paging import RowPages


def needed_bucket(plan: Plan, shapes: EngineShapes) -> Bucket:
    """Return the size of a plan, which a step's bucket must hold."""
    return Bucket(
        num_seqs=max(batch_indices(plan)) + 1,
        num_tokens=max(planned.num_tokens for planned in plan.seqs),
        num_pages=max(shapes.pages_for(planned.start + planned.num_tokens) for planned in plan.seqs),
    )


def batch_indices(plan: Plan) -> list[int]:
    """Return each planned sequence's index in the arrays: its slot in a decode step, its place in a prefill's plan."""
    if plan.kind is StepKind.DECODE:
        return [planned.slot for planned in plan.seqs]
    return list(range(len(plan.seqs)))


def pack(plan: Plan, bucket: Bucket, shapes: EngineShapes) -> StepInputs:
    """Lay a plan out in the arrays of a bucket."""
    inputs = empty_step(bucket, shapes)
    for index, planned in zip(batch_indices(plan), plan.seqs, strict=True):
        if plan.kind is StepKind.PREFILL:
            inputs.token_ids[index, : len(planned.token_ids)] = planned.token_ids
        inputs.start[index] = planned.start
        inputs.num_tokens[index] = planned.num_tokens
        # A sequence holds the pages of all its positions; this step reads only those up to its own.
        pages = planned.sequence.pages[: bucket.num_pages]
        inputs.page_table[index, : len(pages)] = pages
        inputs.slots[index] = planned.slot
        if planned.is_sampled:
            inputs.sample_slots[index] = planned.slot
    return inputs


def is_adjusted(plan: Plan) -> bool:
    """Return whether an option of a sequence changes the logits of the token that it samples now."""
    return any(planned.is_sampled and _is_adjusted(planned) for planned in plan.seqs)


def has_logprobs(plan: Plan) -> bool:
    """Return whether a sequence asks for the log-probabilities of the token that a step chooses for it."""
    return any(p.is_sampled and p.sequence.request.sampling.num_logprobs is not None for p in plan.seqs)


def is_plain(plan: Plan) -> bool:
    """Return whether every sequence of a step has its token chosen, and none asks for more of its sampling."""
    for planned in plan.seqs:
        request = planned.sequence.request
        is_more = request.constraint is not None or request.sampling.num_logprobs is not None
        if is_more or not planned.is_sampled or _is_adjusted(planned):
            return False
    return True


def sufficient_choice(plan: Plan) -> SamplingPart:
    """Return the program that suffices to choose the tokens of a step, of those that an accelerator has."""
    options = [planned.sequence.request.sampling for planned in plan.seqs if planned.is_sampled]
    random = [sampling for sampling in options if sampling.temperature > 0]
    if any(sampling.top_k > 0 or sampling.top_p < 1 for sampling in random):
        return SamplingPart.CHOOSE
    return SamplingPart.RANDOM if random else SamplingPart.GREEDY


def pack_slot_options(plan: Plan, shapes: EngineShapes) -> OptionInputs:
    """Lay out the options of a prefill's sequences, with their slots."""
    inputs = empty_options(shapes.prefill_seqs[-1], shapes)
    for index, planned in enumerate(plan.seqs):
        if planned.is_sampled:
            inputs.slots[index] = planned.slot
    return inputs._replace(options=pack_options([p.sequence.request for p in plan.seqs], len(inputs.slots)))


def pack_token_masks(plan: Plan, unrestricted: UInt[Array, "seq word"]) -> UInt[Array | np.ndarray, "seq word"]:
    """Lay out the masks of a plan's sequences; return `unrestricted` while no sequence restricts its tokens."""
    seqs = zip(batch_indices(plan), plan.seqs, strict=True)
    restricted = [(i, planned.sequence) for i, planned in seqs if planned.is_sampled and planned.sequence.is_restricted]
    if not restricted:
        return unrestricted
    masks = np.full(unrestricted.shape, ALL_ALLOWED, np.uint32)
    for index, sequence in restricted:
        sequence.fill_mask(masks[index])
    return masks


def pack_options(requests: Sequence[Request], num_seqs: int) -> Options:
    """Lay out the options of requests, one a sequence; the sequences after the last one get neutral options."""
    options = neutral_options(num_seqs)
    for index, request in enumerate(requests):
        sampling = request.sampling
        options.floats[index] = _float_options(sampling)
        options.integers[index] = _integer_options(request)
        if sampling.min_tokens:
            options.stop_ids[index, : len(request.stop_ids)] = sorted(request.stop_ids)
        options.bias_ids[index, : len(sampling.logit_bias)] = list(sampling.logit_bias)
        options.biases[index, : len(sampling.logit_bias)] = list(sampling.logit_bias.values())
    return options


def prompt_targets(planned: PlannedSequence) -> tuple[int, ...]:
    """Return the prompt's tokens after each position of a chunk, if their log-probabilities are requested."""
    request = planned.sequence.request
    if request.num_prompt_logprobs is None:
        return ()
    return request.prompt_ids[planned.start + 1 : planned.start + len(planned.token_ids) + 1]


def pack_prompt(
    plan: Plan, hidden: Float[np.ndarray, "seq token hidden"], num_rows: int
) -> Iterator[tuple[Float[np.ndarray, "row 1 hidden"], Int[np.ndarray, " row"]]]:
    """Lay out the positions of a prefill that are followed by a target, and the targets, `num_rows` at a time."""
    targets = [prompt_targets(planned) for planned in plan.seqs]
    rows = np.concatenate([hidden[index, : len(ids)] for index, ids in enumerate(targets)])
    target_ids = np.concatenate([np.array(ids, np.int32) for ids in targets])
    for first in range(0, len(rows), num_rows):
        missing = max(first + num_rows - len(rows), 0)
        yield (
            np.pad(rows[first : first + num_rows], ((0, missing), (0, 0)))[:, None],
            np.pad(target_ids[first : first + num_rows], (0, missing)),
        )


def pack_copy(copy: PageCopy, shapes: EngineShapes) -> RowPages:
    """Lay out a copy between a slot and its pages."""
    ids = np.asarray(empty_copy(shapes).ids)
    ids[: len(copy.pages)] = copy.pages
    return RowPages(scalar(copy.slot), scalar(copy.first_page), ids)


def pack_count(planned: PlannedSequence, shapes: EngineShapes) -> CountInputs:
    """Lay out the tokens of a sequence up to the end of its part of the step."""
    token_ids = planned.sequence.known_ids[: planned.start + planned.num_tokens]
    padded = empty_count(shapes).token_ids
    padded[: len(token_ids)] = token_ids
    return CountInputs(scalar(planned.slot), padded, scalar(planned.sequence.prompt_len), scalar(len(token_ids)))


class SampledTokens(NamedTuple):
    """The outputs of a sampling, which may still be in flight."""

    token_ids: Int[Array, " seq"]  # BROKEN for a sequence that must fail
    logprobs: Int[Array, "seq packed"] | None = (
        None  # as `pack_logprobs` returns them; None if no sequence requests any
    )

    def begin_copy(self) -> None:
        """Have them copied to the host as soon as they exist, rather than when they are read."""
        for array in self:
            if array is not None:
                array.copy_to_host_async()


class StepResult(NamedTuple):
    """A step that may still be in flight."""

    plan: Plan
    indices: list[int]  # of each planned sequence in the arrays
    sampled: SampledTokens | None  # None if no sequence reaches its prompt's end
    hidden: Float[Array, "seq token hidden"] | None = None  # there if nothing is sampled
    prompt_logprobs: tuple[Int[Array, "row packed"], ...] = ()  # of the targets that `pack_prompt` lays out

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
            prompts=tuple(self._of_prompts()),
        )

    def _of_token(self, index: int, num_top: int | None) -> TokenLogprobs | None:
        if num_top is None or self.sampled is None or self.sampled.logprobs is None:
            return None
        return unpack_logprobs(np.asarray(self.sampled.logprobs)[index], num_top)

    def _of_prompts(self) -> Iterator[tuple[TokenLogprobs, ...]]:
        rows = itertools.chain.from_iterable(map(np.asarray, self.prompt_logprobs))
        for planned in self.plan.seqs:
            num_top = planned.sequence.request.num_prompt_logprobs or 0
            targets = prompt_targets(planned)
            yield tuple(unpack_logprobs(row, num_top) for row in itertools.islice(rows, len(targets)))


def unpack_logprobs(packed: Int[np.ndarray, " packed"], num_top: int) -> TokenLogprobs:
    """Return one token's log-probabilities from its row, as `pack_logprobs` lays it out."""
    logprobs = packed.view(np.float32)
    ids = packed[FIRST_TOP:][:num_top].tolist()
    top = logprobs[FIRST_TOP + MAX_LOGPROBS :][:num_top].tolist()
    pairs = tuple((token_id, logprob) for token_id, logprob in zip(ids, top, strict=True) if token_id >= 0)
    return TokenLogprobs(float(logprobs[0]), int(packed[1]), pairs)


def _is_adjusted(planned: PlannedSequence) -> bool:
    request = planned.sequence.request
    sampling, position = request.sampling, planned.start + planned.num_tokens
    return (
        sampling.has_penalties
        or bool(sampling.logit_bias)
        or position < len(request.prompt_ids) + sampling.min_tokens
        or planned.sequence.is_restricted
    )


def _float_options(sampling: Sampling) -> tuple[float, ...]:
    """Return the values of `FloatOption`, in its order."""
    return (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )


def _integer_options(request: Request) -> tuple[int, ...]:
    """Return the values of `IntegerOption`, in its order."""
    sampling = request.sampling
    seed_halves = np.array(divmod(sampling.seed, 1 << 32), np.uint32).view(np.int32)
    return (
        sampling.top_k,
        len(request.prompt_ids) + sampling.min_tokens if sampling.min_tokens else 0,
        -1 if sampling.num_logprobs is None else sampling.num_logprobs,
        -1 if request.num_prompt_logprobs is None else request.num_prompt_logprobs,
        *seed_halves.tolist(),
        bool(sampling.logit_bias),
    )
