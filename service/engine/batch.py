"""A plan as the padded arrays of one bucket, in the form in which its step's programs take them."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int, UInt

from service.engine.request import Request, Sampling
from service.engine.schedule.plan import Plan, PlannedSequence
from service.engine.shapes import AvailableSteps, Bucket, EngineShapes, StepKind
from service.engine.steps.inputs import (
    NO_TOKEN,
    CountInputs,
    OptionInputs,
    Options,
    StepInputs,
    empty_count,
    empty_options,
    empty_step,
    neutral_options,
    scalar,
)
from service.engine.steps.keys import SamplingPart
from service.engine.token_mask import ALL_ALLOWED


class PackedStep(NamedTuple):
    """The inputs of a step, except those that depend on its hidden states or on the previous step's tokens."""

    plan: Plan
    bucket: Bucket
    best_bucket: Bucket  # the one to run in if all were compiled
    indices: list[int]  # of each planned sequence in the arrays
    inputs: StepInputs
    choice: SamplingPart | None  # the program that suffices to choose tokens; None if no prompt's end is reached
    is_adjusted: bool  # whether an option of a sequence changes the logits of the token that it samples
    is_constrained: bool  # whether the logits of a sequence also depend on its tokens up to the step before
    has_logprobs: bool  # whether log-probabilities of sampled tokens are requested
    options: OptionInputs | None  # of a prefill's sequences; None if none of them samples a token
    counts: list[CountInputs]  # of each sequence with penalties that samples its first token
    prompt_targets: list[tuple[int, ...]]  # of each sequence, the tokens whose log-probabilities it requests

    @property
    def is_plain(self) -> bool:
        """Whether every sequence of a decode step has its token chosen, and none asks for more of its sampling."""
        return self.plan.kind is StepKind.DECODE and not (self.is_adjusted or self.is_constrained or self.has_logprobs)


def pack(plan: Plan, available: AvailableSteps, shapes: EngineShapes) -> PackedStep:
    """Lay a plan out in the arrays of the smallest bucket that is available and holds it."""
    is_prefill = plan.kind is StepKind.PREFILL
    indices = list(range(len(plan.seqs))) if is_prefill else [planned.slot for planned in plan.seqs]
    needed = Bucket(num_seqs=max(indices) + 1, num_tokens=max(planned.num_tokens for planned in plan.seqs))
    bucket = available.grids[plan.kind].smallest(needed)
    sampled = [planned for planned in plan.seqs if planned.is_sampled]
    requests = [planned.sequence.request for planned in sampled]
    return PackedStep(
        plan,
        bucket,
        bucket if available.is_complete else _best_bucket(plan, needed, shapes),
        indices,
        _pack_inputs(plan, indices, empty_step(bucket, shapes)),
        choice=_sufficient_choice(requests, shapes) if requests else None,
        is_adjusted=any(map(_is_adjusted, sampled)),
        is_constrained=any(request.constraint is not None for request in requests),
        has_logprobs=any(request.sampling.num_logprobs is not None for request in requests),
        options=_pack_slot_options(plan, shapes) if is_prefill and requests else None,
        counts=[
            _pack_count(planned, shapes)
            for planned in sampled
            if is_prefill and planned.sequence.request.sampling.has_penalties
        ],
        prompt_targets=[_prompt_targets(planned) for planned in plan.seqs],
    )


def _pack_inputs(plan: Plan, indices: Iterable[int], inputs: StepInputs) -> StepInputs:
    """Write the sequences of a plan over padding."""
    for index, planned in zip(indices, plan.seqs, strict=True):
        if planned.token_ids:
            inputs.token_ids[index, : len(planned.token_ids)] = planned.token_ids
        inputs.start[index] = planned.start
        inputs.num_tokens[index] = planned.num_tokens
        inputs.page_table[index, : len(planned.sequence.pages)] = planned.sequence.pages
        if planned.is_sampled:
            inputs.sample_slots[index] = planned.slot
    return inputs


def _best_bucket(plan: Plan, needed: Bucket, shapes: EngineShapes) -> Bucket:
    """Return the bucket to compile for plans like this one; for a single prompt, that of its longest next chunk."""
    if plan.kind is StepKind.PREFILL and needed.num_seqs == 1:
        [planned] = plan.seqs
        rest = planned.sequence.prefill_len - planned.start
        needed = needed._replace(num_tokens=min(rest, shapes.prefill.chunk_sizes[-1]))
    return shapes.grids[plan.kind].smallest(needed)


def _sufficient_choice(requests: Iterable[Request], shapes: EngineShapes) -> SamplingPart:
    """Return the program that suffices to choose the tokens of a step, of those that an accelerator has."""
    if not shapes.has_sampling_variants:
        return SamplingPart.CHOOSE
    random = [request.sampling for request in requests if request.sampling.temperature > 0]
    if any(sampling.top_k > 0 or sampling.top_p < 1 for sampling in random):
        return SamplingPart.CHOOSE
    return SamplingPart.RANDOM if random else SamplingPart.GREEDY


def _is_adjusted(planned: PlannedSequence) -> bool:
    request = planned.sequence.request
    sampling = request.sampling
    return (
        sampling.has_penalties
        or bool(sampling.logit_bias)
        or sampling.group_from is not None
        or sampling.allowed_mask is not None
        or planned.start + planned.num_tokens < len(request.prompt_ids) + sampling.min_tokens
    )


def _pack_slot_options(plan: Plan, shapes: EngineShapes) -> OptionInputs:
    """Lay out the options of a prefill's sequences, with the slots of those that sample a token."""
    inputs = empty_options(shapes.prefill_seqs[-1], shapes)
    for index, planned in enumerate(plan.seqs):
        if planned.is_sampled:
            inputs.slots[index] = planned.slot
    requests = [planned.sequence.request for planned in plan.seqs]
    return inputs._replace(options=pack_options(requests, len(inputs.slots)))


def _pack_count(planned: PlannedSequence, shapes: EngineShapes) -> CountInputs:
    """Lay out the tokens of a sequence up to the end of its part of the step.

    They are counted just before the sequence samples its first token in its slot. So the counts do not depend on the
    slot's previous owner, on how the prompt was cut into chunks, or on how much of it was cached or generated before
    the sequence was preempted.
    """
    token_ids = planned.sequence.known_ids[: planned.start + planned.num_tokens]
    padded = empty_count(shapes).token_ids
    padded[: len(token_ids)] = token_ids
    return CountInputs(scalar(planned.slot), padded, scalar(planned.sequence.prompt_len), scalar(len(token_ids)))


def _prompt_targets(planned: PlannedSequence) -> tuple[int, ...]:
    """Return the prompt's tokens after each position of a chunk, if their log-probabilities are requested."""
    request = planned.sequence.request
    if request.num_prompt_logprobs is None:
        return ()
    return request.prompt_ids[planned.start + 1 : planned.start + len(planned.token_ids) + 1]


def pack_token_masks(
    step: PackedStep, unrestricted: UInt[Array, "seq word"]
) -> UInt[Array | np.ndarray, "seq word"] | None:
    """Lay out the masks of a step's sequences, which follow from all tokens before.

    Returns:
        `unrestricted` if only other options change the logits; None if nothing does.
    """
    seqs = zip(step.indices, step.plan.seqs, strict=True)
    restricted = [(i, planned.sequence) for i, planned in seqs if planned.is_sampled and planned.sequence.is_restricted]
    if not restricted:
        return unrestricted if step.is_adjusted else None
    masks = np.full(unrestricted.shape, ALL_ALLOWED, np.uint32)
    for index, sequence in restricted:
        sequence.fill_mask(masks[index])
    return masks


def pack_prompt(
    step: PackedStep, hidden: Float[np.ndarray, "seq token hidden"], num_rows: int
) -> Iterator[tuple[Float[np.ndarray, "row 1 hidden"], Int[np.ndarray, " row"]]]:
    """Lay out the positions of a prefill that are followed by a target, and the targets, `num_rows` at a time."""
    rows = np.concatenate([hidden[index, : len(ids)] for index, ids in enumerate(step.prompt_targets)])
    target_ids = np.concatenate([np.array(ids, np.int32) for ids in step.prompt_targets])
    for first in range(0, len(rows), num_rows):
        missing = max(first + num_rows - len(rows), 0)
        yield (
            np.pad(rows[first : first + num_rows], ((0, missing), (0, 0)))[:, None],
            np.pad(target_ids[first : first + num_rows], (0, missing)),
        )


def pack_options(requests: Iterable[Request], num_seqs: int) -> Options:
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
        NO_TOKEN if sampling.group_from is None else sampling.group_from,
    )
