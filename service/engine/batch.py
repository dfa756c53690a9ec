"""A plan as the padded arrays of one bucket, in the form in which its step's programs take them."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int, UInt

from service.engine.limits import MAX_ATTENTION_HEADS
from service.engine.page_tables import PageTables, window_base, window_row
from service.engine.request import PlacedMedium, Request, Sampling
from service.engine.schedule.plan import Plan, PlannedSequence
from service.engine.schedule.sequence import NO_STATE
from service.engine.shapes import AvailableSteps, Bucket, EngineShapes
from service.engine.steps.inputs import (
    NO_TOKEN,
    NOT_MEDIA,
    NOT_SAMPLED,
    CountInputs,
    Drafted,
    OptionInputs,
    Options,
    PromptInputs,
    StepInputs,
    empty_count,
    empty_options,
    empty_step,
    neutral_options,
    no_drafts,
    scalar,
    with_media,
)
from service.engine.steps.keys import Sampler
from service.engine.token_mask import ALL_ALLOWED
from service.kernels.paging import STATE_BEFORE, ZERO_STATE


class ScoredToken(NamedTuple):
    """A token whose log-probability is requested, and the place in its sequence's chunk of the token before it."""

    place: int
    token_id: int


class PackedStep(NamedTuple):
    """The inputs of a step, except those that depend on its hidden states or on the previous step's tokens."""

    plan: Plan
    bucket: Bucket
    best_bucket: Bucket  # the one to run in if all were compiled
    inputs: StepInputs
    sampler: Sampler | None  # the one that suffices; None if nothing is sampled
    is_constrained: bool  # whether the logits of a sequence also depend on its tokens up to the step before
    has_logprobs: bool  # whether log-probabilities of sampled tokens are requested
    options: OptionInputs | None  # of sequences whose prompts end in this step; None if there are none
    counts: list[CountInputs]  # of each of those that has penalties
    wants_attention: bool  # whether some sequence wants the scores of heads
    prompt_targets: list[tuple[ScoredToken, ...]]  # of each sequence, those whose log-probabilities it requests
    drafted: Drafted | None = None  # of a step that verifies drafts

    @property
    def samples(self) -> list[int]:
        """Which of the sampled tokens are those of each sequence, one sequence after the other."""
        if self.drafted is not None:
            return list(range(sum(planned.num_samples for planned in self.plan.seqs)))
        return [planned.slot for planned in self.plan.seqs]


def pack(plan: Plan, available: AvailableSteps, shapes: EngineShapes, tables: PageTables) -> PackedStep:
    """Lay a plan out in the arrays of the smallest bucket that is available and holds it.

    Args:
        plan: the step.
        available: the buckets.
        shapes: the sizes of the engine.
        tables: the page tables that the steps before have left; those of an engine, or new ones.
    """
    seqs = plan.seqs
    decodes = [planned for planned in seqs if not planned.token_ids]
    in_rows = [planned for planned in seqs if planned.token_ids]
    prompts = [planned for planned in in_rows if planned.is_prompt]
    rows = [row for planned in in_rows for row in _rows(planned, shapes.row_tokens)]
    needed = Bucket(max([planned.slot for planned in decodes], default=-1) + 1, len(rows))
    wants_attention = any(planned.sequence.request.heads for planned in prompts)
    bucket = max(shapes.prompt_buckets) if wants_attention else shapes.smallest(available.buckets, needed)
    inputs = empty_step(bucket, shapes)
    _pack_decodes(decodes, inputs, tables, bucket.num_seqs)
    if shapes.media is not None and any(planned.rows for planned in prompts):
        inputs = with_media(inputs, shapes.media)
    _pack_rows(rows, inputs, bucket, shapes)
    if inputs.positions is not None:
        _pack_positions(rows, decodes, inputs.positions, bucket)
    drafted = None
    if any(planned.drafts for planned in in_rows):
        drafted = _pack_drafts(seqs, inputs, bucket, shapes)
    else:
        after = [NOT_SAMPLED] * bucket.num_seqs
        for planned in decodes:
            after[planned.slot] = planned.start + 1
        inputs.sampled[:] = after
        for planned in in_rows:
            if planned.is_sampled:
                inputs.sampled[planned.slot] = planned.first_sampled
    ending = [planned for planned in prompts if planned.is_sampled]
    sampled = [planned for planned in seqs if planned.is_sampled]
    special = [planned for planned in sampled if not planned.sequence.is_plain]
    return PackedStep(
        plan,
        bucket,
        bucket if available.is_complete else shapes.smallest(shapes.buckets, _most_useful(needed, prompts, shapes)),
        inputs,
        sampler=_sufficient_sampler(sampled, special, shapes) if sampled else None,
        is_constrained=any(planned.sequence.request.constraint is not None for planned in special),
        has_logprobs=any(planned.sequence.request.sampling.num_logprobs is not None for planned in special),
        options=_pack_slot_options(ending, shapes) if ending else None,
        counts=[_pack_count(planned, shapes) for planned in ending if planned.sequence.request.sampling.has_penalties],
        wants_attention=wants_attention,
        prompt_targets=[_prompt_targets(planned) if planned.token_ids else () for planned in seqs],
        drafted=drafted,
    )


def _pack_decodes(decodes: Sequence[PlannedSequence], inputs: StepInputs, tables: PageTables, num_slots: int) -> None:
    """Lay out the sequences whose next token is on the device."""
    # Lists, each taken over at once: to write to an array costs as much as ten times the same to a list.
    starts, counts, places = [0] * num_slots, [0] * num_slots, [0] * num_slots
    for planned in decodes:
        slot = planned.slot
        starts[slot], counts[slot], places[slot] = planned.start, 1, slot
    inputs.starts[:], inputs.num_tokens[:], inputs.places[:] = starts, counts, places
    tables.fill(inputs, decodes, num_slots)
    if inputs.memory_table is not None:
        for planned in decodes:
            _pack_memory(inputs.memory_table, planned.slot, planned)
    if inputs.states is not None:
        for planned in decodes:
            _pack_state(inputs.states, planned.slot, planned, planned.start, planned.start + 1)
    if inputs.adapters is not None:
        for planned in decodes:
            inputs.adapters[planned.slot] = planned.sequence.adapter_slot


def _pack_drafts(seqs: Iterable[PlannedSequence], inputs: StepInputs, bucket: Bucket, shapes: EngineShapes) -> Drafted:
    """Lay out what a step samples that verifies drafts: the tokens of its sequences, one sequence after the other."""
    drafted = no_drafts(bucket.num_seqs)
    first = row = 0
    for planned in seqs:
        after, place = first + planned.num_samples, planned.slot
        if planned.token_ids:  # which lie in one row
            first_place = bucket.num_seqs + row * shapes.row_tokens
            place, row = first_place + planned.num_tokens - planned.num_samples, row + 1
        inputs.places[first:after] = range(place, place + planned.num_samples)
        inputs.sampled[first:after] = range(planned.first_sampled, planned.first_sampled + planned.num_samples)
        drafted.slots[first:after] = planned.slot
        drafted.token_ids[first : after - 1] = planned.drafts
        first = after
    inputs.places[first:] = 0
    return drafted


def _rows(planned: PlannedSequence, row_tokens: int) -> Iterator[tuple[PlannedSequence, int, int]]:
    """Yield the parts of a chunk that lie in one row, with the position of the first token and the end of each."""
    start, after = planned.start, planned.start + planned.num_tokens
    while start < after:
        end = min((start // row_tokens + 1) * row_tokens, after)
        yield planned, start, end
        start = end


def _pack_rows(
    rows: Iterable[tuple[PlannedSequence, int, int]], inputs: StepInputs, bucket: Bucket, shapes: EngineShapes
) -> None:
    for row, (planned, start, end) in enumerate(rows):
        inputs.row_starts[row], inputs.row_tokens[row] = start, end - start
        inputs.token_ids[row, : end - start] = planned.token_ids[start - planned.start : end - planned.start]
        _pack_pages(inputs, bucket.num_seqs + row, planned, start, shapes)
        if inputs.states is not None:
            _pack_state(inputs.states, bucket.num_seqs + row, planned, start, end)
        if inputs.media_rows is not None and shapes.media is not None:
            inputs.media_rows[row, : end - start] = _numbers_of_rows(planned, start, end, shapes.media.place_rows)
        if inputs.media_ahead is not None:
            inputs.media_ahead[row, : end - start] = _rows_ahead(planned, start, end)
        if inputs.row_adapters is not None:
            inputs.row_adapters[row] = planned.sequence.adapter_slot
        if planned.is_sampled and not planned.drafts:  # the last row's remains
            inputs.places[planned.slot] = bucket.num_seqs + row * shapes.row_tokens + end - start - 1


def _pack_pages(inputs: StepInputs, row: int, planned: PlannedSequence, start: int, shapes: EngineShapes) -> None:
    """Lay out the pages of a sequence whose first token of a row is at position `start`."""
    sequence = planned.sequence
    inputs.page_table[row, : len(sequence.pages)] = sequence.pages
    if inputs.memory_table is not None:
        _pack_memory(inputs.memory_table, row, planned)
    if inputs.windows is not None:
        for shape, held in zip(shapes.windows, sequence.windows, strict=True):
            numbers = window_row(shape, held, window_base(shape, start), shapes.page_size)
            inputs.windows[shape.window][row, : len(numbers)] = numbers


def _pack_memory(table: Int[np.ndarray, "slot_and_row page"], row: int, planned: PlannedSequence) -> None:
    if planned.sequence.memory is not None:
        table[row] = planned.sequence.memory.pages


def _pack_state(
    states: Int[np.ndarray, "part slot_and_row"], row: int, planned: PlannedSequence, start: int, end: int
) -> None:
    """Lay out the slots of the state of a sequence before its tokens from `start` to `end`, and after known ones."""
    assert planned.state is not None, "a step of a model whose layers keep states plans them"
    first = ZERO_STATE if planned.state.reads == NO_STATE else planned.state.reads
    states[0, row] = first if start == planned.start else STATE_BEFORE
    known = min(end, planned.first_sampled)
    for position, slot in planned.state.writes:
        if position == known:
            states[1, row] = slot
    if len(states) > 2:
        states[2, row] = known - start


def _numbers_of_rows(planned: PlannedSequence, start: int, end: int, place_rows: int) -> Int[np.ndarray, " token"]:
    """Return which rows of all media take the places of the tokens from position `start` to `end`."""
    numbers = np.full(end - start, NOT_MEDIA, np.int32)
    for rows in planned.rows:
        first, last = max(rows.start, start), min(rows.end, end)
        if first < last:
            own = np.arange(first - rows.start, last - rows.start)
            is_row = np.ones(len(own), bool)
            if rows.line is not None:
                line, of_line = np.divmod(own, rows.line + 1)
                own, is_row = line * rows.line + np.minimum(of_line, rows.line - 1), of_line < rows.line
            places = np.array(rows.places, np.int32)
            taken = places[own // place_rows] * place_rows + own % place_rows
            numbers[first - start : last - start] = np.where(is_row, taken, NOT_MEDIA)
    return numbers


def _rows_ahead(planned: PlannedSequence, start: int, end: int) -> Int[np.ndarray, " token"]:
    """Return how many rows of the same medium are behind each token from position `start` to `end`."""
    ahead = np.zeros(end - start, np.int32)
    for rows in planned.rows:
        first, last = max(rows.start, start), min(rows.end, end)
        ahead[first - start : max(last, first) - start] = rows.end - 1 - np.arange(first, max(last, first))
    return ahead


def _pack_positions(
    rows: Iterable[tuple[PlannedSequence, int, int]],
    decodes: Iterable[PlannedSequence],
    positions: Int[np.ndarray, "3 slot_and_token"],
    bucket: Bucket,
) -> None:
    """Lay out the positions by time, row and column."""
    for planned in decodes:
        media = planned.sequence.request.media
        positions[:, planned.slot] = positions_of(media, planned.start, planned.start + 1)[:, 0]
    width = (positions.shape[1] - bucket.num_seqs) // max(bucket.num_rows, 1)
    for row, (planned, start, end) in enumerate(rows):
        first = bucket.num_seqs + row * width
        positions[:, first : first + end - start] = positions_of(planned.sequence.request.media, start, end)


def positions_of(media: Iterable[PlacedMedium], start: int, end: int) -> Int[np.ndarray, "3 token"]:
    """Return the positions by time, row and column of the tokens from `start` to `end` of a text with media.

    Source: transformers `modeling_qwen3_vl.py` (get_rope_index)
    """
    positions = np.tile(np.arange(start, end, dtype=np.int32), (3, 1))
    shift = 0
    for placed in media:
        if placed.grid is None or placed.start >= end:
            continue
        first, last = max(placed.start, start), min(placed.end, end)
        _, columns = placed.grid
        if first < last:
            own = np.arange(first - placed.start, last - placed.start, dtype=np.int32)
            begin = placed.start + shift
            positions[:, first - start : last - start] = [
                np.full_like(own, begin),
                begin + own // columns,
                begin + own % columns,
            ]
        change = max(placed.grid) - placed.num_rows
        positions[:, max(placed.end - start, 0) :] += change
        shift += change
    return positions


def _most_useful(needed: Bucket, prompts: Sequence[PlannedSequence], shapes: EngineShapes) -> Bucket:
    """Return the size to compile for plans like this one: one that holds all that is left of its prompts."""
    ends = [(planned.start, planned.sequence.prefill_len) for planned in prompts]
    rows = sum(-(-end // shapes.row_tokens) - start // shapes.row_tokens for start, end in ends)
    return Bucket(needed.num_seqs, min(max(needed.num_rows, rows), shapes.row_counts[-1]))


def _sufficient_sampler(
    sampled: Iterable[PlannedSequence], special: Iterable[PlannedSequence], shapes: EngineShapes
) -> Sampler:
    """Return the sampler that suffices for a step, of those that the device has.

    Args:
        sampled: the sequences that sample.
        special: those of them of which more is asked than temperature, top-k and top-p.
        shapes: the sizes of the engine.
    """
    if not shapes.has_sampling_variants or any(map(_needs_everything, special)):
        return Sampler.GENERAL
    samplings = [planned.sequence.request.sampling for planned in sampled]
    random = [sampling for sampling in samplings if sampling.temperature > 0]
    if any(sampling.top_k > 0 or sampling.top_p < 1 for sampling in random):
        return Sampler.TOP_P
    return Sampler.RANDOM if random else Sampler.GREEDY


def _needs_everything(planned: PlannedSequence) -> bool:
    """Return whether a sequence's logits are changed, or its log-probabilities are requested."""
    request = planned.sequence.request
    sampling = request.sampling
    return (
        request.constraint is not None
        or sampling.has_penalties
        or bool(sampling.logit_bias)
        or sampling.group_from is not None
        or sampling.allowed_mask is not None
        or sampling.num_logprobs is not None
        or planned.first_sampled < len(request.prompt_ids) + sampling.min_tokens
    )


def _pack_slot_options(ending: Sequence[PlannedSequence], shapes: EngineShapes) -> OptionInputs:
    """Lay out the options of the sequences whose prompts end in a step, and their slots."""
    inputs = empty_options(shapes.row_counts[-1], shapes)
    inputs.slots[: len(ending)] = [planned.slot for planned in ending]
    requests = [planned.sequence.request for planned in ending]
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


def _prompt_targets(planned: PlannedSequence) -> tuple[ScoredToken, ...]:
    """Return the prompt's tokens after each position of a chunk, or the probe, as far as they are requested."""
    request, start, length = planned.sequence.request, planned.start, len(planned.token_ids)
    if (probe := request.probe) is not None:
        return (ScoredToken(probe.position - start, probe.token_id),) if 0 <= probe.position - start < length else ()
    if request.num_prompt_logprobs is None:
        return ()
    return tuple(itertools.starmap(ScoredToken, enumerate(request.prompt_ids[start + 1 : start + length + 1])))


def pack_token_masks(step: PackedStep, unrestricted: UInt[Array, "slot word"]) -> UInt[Array | np.ndarray, "slot word"]:
    """Lay out the masks of a step's sequences, which follow from all tokens before; `unrestricted` if none has any."""
    samples = iter(step.samples)
    of_each = [(planned, list(itertools.islice(samples, planned.num_samples))) for planned in step.plan.seqs]
    restricted = [(planned, places) for planned, places in of_each if planned.is_sampled and _has_masks(planned)]
    if not restricted:
        return unrestricted
    masks = np.full(unrestricted.shape, ALL_ALLOWED, np.uint32)
    for planned, places in restricted:
        if planned.drafts:
            planned.sequence.fill_masks(masks[places[0] : places[-1] + 1], planned.drafts)
        else:
            planned.sequence.fill_mask(masks[places[0]])
    return masks


def _has_masks(planned: PlannedSequence) -> bool:
    """Return whether some tokens must not be sampled; a constraint that leaves all free may end within drafts."""
    sequence = planned.sequence
    may_end = bool(planned.drafts) and not sequence.is_finished and sequence.request.constraint is not None
    return may_end or sequence.is_restricted


def pack_prompts(step: PackedStep, hidden: Float[np.ndarray, "token hidden"], count: int) -> Iterator[PromptInputs]:
    """Lay out the positions of prompts that are followed by a target, and the targets, `count` at a time."""
    num_tokens = len(hidden) - step.bucket.num_seqs
    of_rows = hidden[step.bucket.num_seqs :].reshape(step.bucket.num_rows, num_tokens // step.bucket.num_rows, -1)
    used = iter(zip(of_rows, step.inputs.row_tokens.tolist(), strict=True))
    parts = []
    for planned, targets in zip(step.plan.seqs, step.prompt_targets, strict=True):
        left, own = len(planned.token_ids), []
        while left > 0:
            row, length = next(used)
            own.append(row[:length])
            left -= length
        parts += [np.concatenate(own)[[target.place for target in targets]]] if targets else []
    rows = np.concatenate(parts)
    target_ids = np.array([target.token_id for targets in step.prompt_targets for target in targets], np.int32)
    for first in range(0, len(rows), count):
        missing = max(first + count - len(rows), 0)
        yield PromptInputs(
            np.pad(rows[first : first + count], ((0, missing), (0, 0))),
            np.pad(target_ids[first : first + count], (0, missing)),
        )


def pack_heads(step: PackedStep, layers: range) -> Int[np.ndarray, "layer head"]:
    """Lay out the heads of some layers whose scores are wanted; those of all sequences of a model are the same."""
    packed = np.zeros((len(layers), MAX_ATTENTION_HEADS), np.int32)
    wanted = next(planned.sequence.request.heads for planned in step.plan.seqs if planned.sequence.request.heads)
    for index, layer in enumerate(layers):
        heads = [head for of_layer, head in wanted if of_layer == layer][:MAX_ATTENTION_HEADS]
        packed[index, : len(heads)] = heads
    return packed


def attention_of(
    step: PackedStep, scores: Mapping[int, Float[np.ndarray, "head prompt_token position"]], length: int
) -> Iterator[Float[np.ndarray, "head prompt_token position"] | None]:
    """Yield the scores of each sequence's chunk; None for one that wants none.

    Args:
        step: whose prompts they are.
        scores: of the rows of the step, by layer.
        length: positions of a memory.
    """
    width = step.inputs.token_ids.shape[1]
    row = 0
    for planned in step.plan.seqs:
        left, places = len(planned.token_ids), []
        while left > 0:
            num_tokens = int(step.inputs.row_tokens[row])
            places += range(row * width, row * width + num_tokens)
            left, row = left - num_tokens, row + 1
        wanted, seen, found = planned.sequence.request.heads, Counter[int](), []
        for layer, _ in wanted:
            found.append(scores[layer][seen[layer], places, :length])
            seen[layer] += 1
        yield np.stack(found) if found and places else None


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
        sampling.scores,
    )
