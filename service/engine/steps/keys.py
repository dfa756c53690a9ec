"""Keys of the programs of a runner; a key as a string is the program's name in bundles and logs.

initial-state                   the device state: the slots and all caches
embed-…                         tokens to hidden states; one for each bucket
embed-media-…                   the same with rows of media in place of some tokens; one for each bucket with prompts
…-media-…                       the first layers, to whose hidden states media add; one for each bucket with prompts
layers…                         the layers of a group; one for each bucket and kind of layer group
sample-…                        the sampling that follows a step; one for each number of slots
sample-greedy-…, -random-…, …   parts of it that suffice for most steps, on an accelerator; see `Sampler`
verify-…                        the sampling that follows a step with drafts
whole-…                         a decode step as one program, where the device prefers that; one for each bucket and
                                each sampler but the general one
hidden-…                        the same without sampling, for the general sampler, whose masks the host makes
                                meanwhile; one for each bucket
prompt-logprobs                 the log-probabilities of a prompt, a few positions at a time
set-options                     for the sequences whose prompts end in a step
count-tokens                    for sequences with penalties
adapter-…                       a write of an adapter into a slot; one for each kind of layer group
encode-…                        an encoder: before its layers, the layers of a group, after them its output, which
                                `keep` writes to the rows that take the places of tokens; one for each number of rows
                                to which media are padded
remember-…                      its output to keys and values; one for each kind of layer group
attend-…                        layers in a step that also returns what heads attend to; one for each kind of group
draft-…                         a draft model or a head: rows of tokens that it has not read, the tokens it drafts
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, override

from service.engine.shapes import Bucket, EngineShapes, sufficient_buckets
from service.models.interface import LayerGroup


class SingleProgram(StrEnum):
    """Programs of which there is one each."""

    INITIAL_STATE = "initial-state"
    SET_OPTIONS = "set-options"
    COUNT_TOKENS = "count-tokens"
    PROMPT_LOGPROBS = "prompt-logprobs"


class Sampler(StrEnum):
    """The programs that sample, from the one that is for every step to those that do least."""

    GENERAL = "general"
    TOP_P = "top-p"  # temperature, top_k, top_p and min_p; nothing that changes logits, and no log-probabilities
    RANDOM = "random"  # the same without top_k and top_p
    GREEDY = "greedy"  # the likeliest token


class Embed(NamedTuple):
    """The program that begins a step."""

    bucket: Bucket
    has_media: bool = False  # whether rows of media take the places of tokens

    @override
    def __str__(self) -> str:
        return f"embed-{'media-' if self.has_media else ''}{self.bucket.name}"


class Layers(NamedTuple):
    """The program that runs the layers of a group in a step."""

    bucket: Bucket
    group: str  # the kind of layer group
    has_media: bool = False  # whether media add to its hidden states

    @override
    def __str__(self) -> str:
        return f"{self.group}-{'media-' if self.has_media else ''}{self.bucket.name}"


class Sample(NamedTuple):
    """The sampling that follows a step."""

    sampler: Sampler
    num_seqs: int

    @override
    def __str__(self) -> str:
        return f"sample-{self.sampler}-seqs{self.num_seqs}"


class Verify(NamedTuple):
    """The sampling that follows a step with drafts."""

    sampler: Sampler

    @override
    def __str__(self) -> str:
        return f"verify-{self.sampler}"


class EncoderStage(StrEnum):
    """What a program of an encoder does."""

    BEGIN = "begin"
    LAYERS = "layers"
    END = "end"
    KEEP = "keep"  # the end, and the rows that take the places of tokens


class OfEncoder(NamedTuple):
    """A program that encodes a medium."""

    part: EncoderStage
    group: str = ""  # the kind of layer group
    num_rows: int = 0  # to which media are padded; 0 if all are alike

    @override
    def __str__(self) -> str:
        size = f"-rows{self.num_rows}" if self.num_rows else ""
        return f"encode-{self.group or self.part}{size}"


class MemoryPart(StrEnum):
    """What a program of a decoder's layer group does for a memory."""

    REMEMBER = "remember"  # writes the encoder's output into the cache
    ATTEND = "attend"  # runs the layers in the widest step, and returns what heads attend to


class OfMemory(NamedTuple):
    """A program that a model with an encoder has for each kind of layer group."""

    part: MemoryPart
    group: str  # the kind of layer group

    @override
    def __str__(self) -> str:
        return f"{self.part}-{self.group}"


class WriteAdapter(NamedTuple):
    """The program that writes an adapter into its slot, for each kind of layer group."""

    group: str  # the kind of layer group

    @override
    def __str__(self) -> str:
        return f"adapter-{self.group}"


class DraftPart(StrEnum):
    """What a program of a draft model or a head does."""

    READ = "read"  # computes tokens that are known
    DRAFT = "draft"  # drafts the tokens after them


class OfDraft(NamedTuple):
    """A program of a draft model or a head."""

    part: DraftPart

    @override
    def __str__(self) -> str:
        return f"draft-{self.part}"


class Whole(NamedTuple):
    """The program that is all of a decode step."""

    sampler: Sampler
    bucket: Bucket

    @override
    def __str__(self) -> str:
        return f"whole-{self.sampler}-{self.bucket.name}"


class Hidden(NamedTuple):
    """The program that is all of a decode step but its sampling."""

    bucket: Bucket

    @override
    def __str__(self) -> str:
        return f"hidden-{self.bucket.name}"


type ProgramKey = (
    SingleProgram | Embed | Layers | Sample | Verify | Whole | Hidden | OfMemory | OfEncoder | WriteAdapter | OfDraft
)


def distinct(groups: Sequence[LayerGroup]) -> list[LayerGroup]:
    """Return the first layer group of each kind: programs are made only for those."""
    return list({group.kind: group for group in reversed(groups)}.values())[::-1]


def samplers(shapes: EngineShapes) -> list[Sampler]:
    """Return the samplers of an engine."""
    return list(Sampler) if shapes.has_sampling_variants else [Sampler.GENERAL]


def sample_keys(shapes: EngineShapes, num_seqs: int) -> list[Sample]:
    """Return the programs that sample after a step with a number of slots.

    Where decode steps are programs of their own, those sample by themselves, unless it takes the general sampler.
    """
    are_decoding_alone = shapes.has_whole_steps and num_seqs < shapes.num_samples
    return [Sample(sampler, num_seqs) for sampler in ([Sampler.GENERAL] if are_decoding_alone else samplers(shapes))]


def verify_keys(shapes: EngineShapes) -> list[Verify]:
    """Return the programs that sample after a step with drafts; none if nothing is drafted."""
    if not shapes.num_drafts:
        return []
    return [Verify(sampler) for sampler in dict.fromkeys((Sampler.GENERAL, usual_sampler(shapes)))]


def usual_sampler(shapes: EngineShapes) -> Sampler:
    """Return the sampler that most requests need."""
    return Sampler.TOP_P if shapes.has_sampling_variants else Sampler.GENERAL


def step_keys(bucket: Bucket, groups: Sequence[LayerGroup], shapes: EngineShapes) -> list[ProgramKey]:
    """Return the programs that suffice for a step of a bucket."""
    if shapes.has_whole_steps and bucket.num_rows == 0:
        return [Whole(usual_sampler(shapes), bucket), Hidden(bucket), Sample(Sampler.GENERAL, bucket.num_seqs)]
    return [
        Embed(bucket),
        *(Layers(bucket, group.kind) for group in distinct(groups)),
        *([SingleProgram.SET_OPTIONS] if bucket.num_rows else []),
        Sample(usual_sampler(shapes), bucket.num_seqs),
    ]


def encoder_keys(
    encoder_groups: Sequence[LayerGroup], groups: Sequence[LayerGroup], shapes: EngineShapes
) -> list[ProgramKey]:
    """Return the programs that encode a medium, and those that take its rows; none of a model without an encoder."""
    if not encoder_groups:
        return []
    if shapes.media is None:
        return [
            *_encoding(encoder_groups, EncoderStage.END, 0),
            *(OfMemory(MemoryPart.REMEMBER, group.kind) for group in distinct(groups)),
        ]
    encoding = (
        key for num_rows in shapes.media.num_rows for key in _encoding(encoder_groups, EncoderStage.KEEP, num_rows)
    )
    taking = [
        key
        for bucket in shapes.prompt_buckets
        for key in (
            Embed(bucket, has_media=True),
            *([Layers(bucket, groups[0].kind, has_media=True)] if shapes.media.num_added else []),
        )
    ]
    return [*encoding, *taking]


def _encoding(encoder_groups: Sequence[LayerGroup], last: EncoderStage, num_rows: int) -> list[OfEncoder]:
    return [
        OfEncoder(EncoderStage.BEGIN, num_rows=num_rows),
        *(OfEncoder(EncoderStage.LAYERS, group.kind, num_rows) for group in distinct(encoder_groups)),
        OfEncoder(last, num_rows=num_rows),
    ]


def attention_keys(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Return the programs that return what heads attend to; none of a model that does not attend to an encoder."""
    return [] if shapes.memory is None else [OfMemory(MemoryPart.ATTEND, group.kind) for group in distinct(groups)]


def adapter_keys(groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Return the programs that write adapters into slots; none of an engine without slots."""
    return [WriteAdapter(group.kind) for group in distinct(groups) if group.adapters]


def draft_keys() -> list[OfDraft]:
    """Return the programs of a draft model or a head."""
    return [OfDraft(part) for part in DraftPart]


def most_drafting(shapes: EngineShapes) -> int:
    """Return for how many sequences tokens are drafted at once: no step verifies drafts of more."""
    return max(1, min(shapes.num_slots, shapes.row_counts[-1], shapes.num_samples // 2))


def whole_keys(shapes: EngineShapes) -> list[Whole | Hidden]:
    """Return the decode steps that are one program each; none where the device does not prefer them."""
    buckets = shapes.decode_buckets if shapes.has_whole_steps else ()
    sampling = [sampler for sampler in samplers(shapes) if sampler is not Sampler.GENERAL]
    return [key for bucket in buckets for key in (Hidden(bucket), *(Whole(sampler, bucket) for sampler in sampling))]


def occasional_keys(shapes: EngineShapes) -> list[ProgramKey]:
    """Return the programs that only some requests need, and the samplers that only make steps faster."""
    samples = [key for count in shapes.sample_counts for key in sample_keys(shapes, count)]
    return [*samples, *verify_keys(shapes), SingleProgram.COUNT_TOKENS, SingleProgram.PROMPT_LOGPROBS]


def sufficient_keys(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Return the programs that suffice to serve any request, if slowly; see `sufficient_buckets`."""
    steps = [key for bucket in sufficient_buckets(shapes) for key in step_keys(bucket, groups, shapes)]
    return list(dict.fromkeys([*steps, SingleProgram.INITIAL_STATE]))


def compile_order(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Order all programs by how much compiling each one next would speed up a live service."""
    soon = [
        key
        for bucket in (max(shapes.prompt_buckets), min(shapes.decode_buckets))
        for key in step_keys(bucket, groups, shapes)
    ]
    return list(
        dict.fromkeys(
            [*sufficient_keys(shapes, groups), *soon, *occasional_keys(shapes), *program_keys(shapes, groups)]
        )
    )


def first_keys(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Return the programs that the first token of a short request needs."""
    return [SingleProgram.INITIAL_STATE, *step_keys(shapes.smallest_prompt_bucket, groups, shapes)]


def program_keys(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[ProgramKey]:
    """Return all programs of a runner, in about the order in which requests need them."""
    buckets = [*shapes.decode_buckets, *shapes.prompt_buckets]
    steps = [key for bucket in buckets for key in step_keys(bucket, groups, shapes)]
    rest = [*occasional_keys(shapes), *whole_keys(shapes), *adapter_keys(groups)]
    return list(dict.fromkeys([*first_keys(shapes, groups), *steps, *rest]))
