"""Keys of the programs of a runner; a key as a string is the program's name in bundles and logs.

initial-slots, initial-cache-…  the device state; the cache for each kind of layer group
embed-…                         tokens to hidden states; one for each bucket
prefill-…, decode-…             the layers of a group; one for each bucket and kind of layer group
logits-…, choose-…              the sampling that follows a step; one for each number of sequences
greedy-…, random-…              faster variants of choose-… on an accelerator: if no sequence has a temperature, or none
                                has top_k or top_p
adjust-…, logprobs-…            the parts of sampling that only some requests need. The log-probabilities of a prompt
                                take logits-… and logprobs-…, a few positions at a time
whole-…                         a decode step as one program, where the device prefers that; one for each bucket and
                                each of choose, greedy and random
set-options                     for the sequences of a prefill step
count-tokens                    for sequences with penalties
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple, override

from service.engine.shapes import Bucket, EngineShapes, StepKind, sufficient_buckets
from service.models.interface import LayerGroup


class SlotProgram(StrEnum):
    """Programs of all slots, of which there is one each."""

    INITIAL_SLOTS = "initial-slots"
    SET_OPTIONS = "set-options"
    COUNT_TOKENS = "count-tokens"


class SamplingPart(StrEnum):
    """The programs of a sampling."""

    LOGITS = "logits"
    ADJUST = "adjust"
    CHOOSE = "choose"
    GREEDY = "greedy"
    RANDOM = "random"
    LOGPROBS = "logprobs"


class InitialCache(NamedTuple):
    """The program that makes an empty cache."""

    group: str  # the kind of layer group

    @override
    def __str__(self) -> str:
        return f"initial-cache-{self.group}"


class Embed(NamedTuple):
    """The program that begins a step."""

    kind: StepKind
    bucket: Bucket

    @override
    def __str__(self) -> str:
        return f"embed-{_bucket_name(self.kind, self.bucket)}"


class Layers(NamedTuple):
    """The program that runs the layers of a group in a step."""

    kind: StepKind
    bucket: Bucket
    group: str  # the kind of layer group

    @override
    def __str__(self) -> str:
        return f"{_bucket_name(self.kind, self.bucket)}-{self.group}"


class Sample(NamedTuple):
    """A part of the sampling that follows a step."""

    part: SamplingPart
    num_seqs: int

    @override
    def __str__(self) -> str:
        return f"{self.part}-seqs{self.num_seqs}"


class Whole(NamedTuple):
    """The program that is all of a decode step."""

    choice: SamplingPart
    bucket: Bucket

    @override
    def __str__(self) -> str:
        return f"whole-{self.choice}-{_bucket_name(StepKind.DECODE, self.bucket)}"


type ProgramKey = SlotProgram | InitialCache | Embed | Layers | Sample | Whole


def distinct(groups: Sequence[LayerGroup]) -> list[LayerGroup]:
    """Return the first layer group of each kind: programs are made for those alone."""
    return list({group.kind: group for group in reversed(groups)}.values())[::-1]


def step_keys(kind: StepKind, bucket: Bucket, groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Return the programs that a step of a bucket runs, each once and in that order."""
    return [
        Embed(kind, bucket),
        *(Layers(kind, bucket, group.kind) for group in distinct(groups)),
        *([SlotProgram.SET_OPTIONS] if kind is StepKind.PREFILL else []),
        Sample(SamplingPart.LOGITS, bucket.num_seqs),
        Sample(SamplingPart.CHOOSE, bucket.num_seqs),
    ]


def initial_keys(groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Return the programs that make the device state."""
    return [SlotProgram.INITIAL_SLOTS, *(InitialCache(group.kind) for group in distinct(groups))]


def sampling_parts(shapes: EngineShapes) -> list[SamplingPart]:
    """Return the parts that are compiled for an engine."""
    variants = (SamplingPart.GREEDY, SamplingPart.RANDOM)
    return [part for part in SamplingPart if shapes.has_sampling_variants or part not in variants]


def choice_parts(shapes: EngineShapes) -> list[SamplingPart]:
    """Return those of the parts of which a step runs one, to choose its tokens."""
    choices = (SamplingPart.CHOOSE, SamplingPart.GREEDY, SamplingPart.RANDOM)
    return [part for part in choices if part in sampling_parts(shapes)]


def whole_keys(shapes: EngineShapes) -> list[ProgramKey]:
    """Return the decode steps that are one program each; none where the device does not prefer them."""
    buckets = shapes.decode_grid if shapes.has_whole_steps else ()
    return [Whole(choice, bucket) for bucket in buckets for choice in choice_parts(shapes)]


def occasional_keys(shapes: EngineShapes, num_seqs: Iterable[int]) -> list[ProgramKey]:
    """Return the parts of sampling that only some requests need."""
    always = (SamplingPart.LOGITS, SamplingPart.CHOOSE)
    return [Sample(part, n) for part in sampling_parts(shapes) if part not in always for n in num_seqs]


def sufficient_keys(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Return the programs that suffice to serve any request, if slowly; see `sufficient_buckets`."""
    steps = [key for kind, bucket in sufficient_buckets(shapes) for key in step_keys(kind, bucket, groups)]
    return list(dict.fromkeys([*steps, *initial_keys(groups)]))


def compile_order(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Order all programs by how much compiling each one next would speed up a live service."""
    # Long chunks and single sequences gain most.
    longest_first = sorted(shapes.buckets, key=lambda step: (step[1].num_seqs, -step[1].num_tokens))
    steps = [key for kind, bucket in longest_first for key in step_keys(kind, bucket, groups)]
    all_slots = max(shapes.decode_grid)
    counts = dict.fromkeys(bucket.num_seqs for _, bucket in sufficient_buckets(shapes)) | {all_slots.num_seqs: None}
    soon = [
        *sufficient_keys(shapes, groups),
        *step_keys(StepKind.DECODE, all_slots, groups),
        *occasional_keys(shapes, counts),
        SlotProgram.COUNT_TOKENS,
    ]
    return list(dict.fromkeys([*soon, *steps, *program_keys(shapes, groups)]))


def first_keys(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Return the programs that the first token of a short request needs."""
    shortest = next(iter(shapes.prefill_grid))
    return [*initial_keys(groups), *step_keys(StepKind.PREFILL, shortest, groups)]


def program_keys(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Return all programs of a runner, in about the order in which requests need them."""
    steps = [key for kind, bucket in shapes.buckets for key in step_keys(kind, bucket, groups)]
    decode = step_keys(StepKind.DECODE, next(iter(shapes.decode_grid)), groups)
    occasional = occasional_keys(shapes, shapes.all_seq_counts)
    rest = [*decode, *steps, *occasional, SlotProgram.COUNT_TOKENS, *whole_keys(shapes)]
    return list(dict.fromkeys([*first_keys(shapes, groups), *rest]))


def _bucket_name(kind: StepKind, bucket: Bucket) -> str:
    return f"{kind}-seqs{bucket.num_seqs}-tokens{bucket.num_tokens}"
