"""Names of the programs of a runner, as bundles and logs have them.

initial-slots, initial-cache-…  the device state; the cache for each kind of layer group
embed-…                         tokens to hidden states; one for each kind of step and token shape
prefill-…, decode-…             the layers of a group; one for each bucket and kind of layer group
logits-…, choose-…              the sampling that follows a step; one for each number of sequences
greedy-…, random-…              what may take the place of choose-… on an accelerator: if no sequence has a temperature,
                                or none has top_k or top_p; the same
adjust-…, logprobs-…            the parts of sampling that only some requests need; the same. The log-probabilities of
                                a prompt take those of sampled tokens, a few positions at a time
whole-…                         a decode step as one program, where the device prefers that; one for each bucket and
                                each of choose, greedy and random
set-options                     for the sequences of a prefill step
count-tokens                    for sequences with penalties
save, restore, insert, extract  copies where each slot has a cache; one for each kind of layer group; see `CopyKind`
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from service.engine.shapes import Bucket, EngineShapes, StepKind, sufficient_buckets
from service.kernels.cache_layout import CopyKind
from service.models.interface import LayerGroup

INITIAL_SLOTS = "initial-slots"
SET_OPTIONS = "set-options"
COUNT_TOKENS = "count-tokens"


def initial_cache_name(group: LayerGroup) -> str:
    """Name the program that makes a layer group's empty cache."""
    return f"initial-cache-{group.kind}"


def embed_name(kind: StepKind, num_seqs: int, num_tokens: int) -> str:
    """Name the program that begins a step of this shape."""
    return f"embed-{kind}-seqs{num_seqs}-tokens{num_tokens}"


def layer_group_name(kind: StepKind, bucket: Bucket, group: LayerGroup) -> str:
    """Name a layer group's program of a step."""
    return f"{_bucket_name(kind, bucket)}-{group.kind}"


class SamplingPart(StrEnum):
    """The programs of a sampling."""

    LOGITS = "logits"
    ADJUST = "adjust"
    CHOOSE = "choose"
    GREEDY = "greedy"
    RANDOM = "random"
    LOGPROBS = "logprobs"


def whole_name(choice: SamplingPart, bucket: Bucket) -> str:
    """Name the program that is all of a decode step."""
    return f"whole-{choice}-{_bucket_name(StepKind.DECODE, bucket)}"


def sampling_name(part: SamplingPart, num_seqs: int) -> str:
    """Name a part of the sampling after a step of so many sequences."""
    return f"{part}-seqs{num_seqs}"


def copy_name(kind: CopyKind, group: LayerGroup) -> str:
    """Name a copy of pages of a layer group."""
    return f"{kind}-{group.kind}"


def distinct(groups: Sequence[LayerGroup]) -> list[LayerGroup]:
    """Return the first layer group of each kind: programs are made for those alone."""
    return list({group.kind: group for group in reversed(groups)}.values())[::-1]


def copy_names(shapes: EngineShapes, kinds: Sequence[LayerGroup], *only: CopyKind) -> list[str]:
    """Name the copies, or those of some kinds, which only a cache per slot needs."""
    return [copy_name(kind, group) for kind in only or CopyKind for group in kinds] if shapes.has_slot_cache else []


def step_names(kind: StepKind, bucket: Bucket, groups: Sequence[LayerGroup]) -> list[str]:
    """Name the programs that a step of a bucket runs, in that order."""
    return [
        embed_name(kind, bucket.num_seqs, bucket.num_tokens),
        *(layer_group_name(kind, bucket, group) for group in groups),
        *([SET_OPTIONS] if kind is StepKind.PREFILL else []),
        sampling_name(SamplingPart.LOGITS, bucket.num_seqs),
        sampling_name(SamplingPart.CHOOSE, bucket.num_seqs),
    ]


def sampling_parts(shapes: EngineShapes) -> list[SamplingPart]:
    """Return the parts that are compiled for an engine."""
    variants = (SamplingPart.GREEDY, SamplingPart.RANDOM)
    return [part for part in SamplingPart if shapes.has_sampling_variants or part not in variants]


def choice_parts(shapes: EngineShapes) -> list[SamplingPart]:
    """Return those of the parts of which a step runs one, to choose its tokens."""
    choices = (SamplingPart.CHOOSE, SamplingPart.GREEDY, SamplingPart.RANDOM)
    return [part for part in choices if part in sampling_parts(shapes)]


def whole_names(shapes: EngineShapes) -> list[str]:
    """Name the decode steps that are one program each; none where the device does not prefer them."""
    buckets = shapes.decode_grid if shapes.has_whole_steps else ()
    return [whole_name(choice, bucket) for bucket in buckets for choice in choice_parts(shapes)]


def occasional_names(shapes: EngineShapes, num_seqs: Iterable[int]) -> list[str]:
    """Name the parts of sampling that only some requests need."""
    always = (SamplingPart.LOGITS, SamplingPart.CHOOSE)
    return [sampling_name(part, n) for part in sampling_parts(shapes) if part not in always for n in num_seqs]


def sufficient_names(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[str]:
    """Name the programs that suffice to serve any request, if slowly; see `sufficient_buckets`."""
    kinds = distinct(groups)
    caches = [initial_cache_name(group) for group in kinds]
    steps = [name for kind, bucket in sufficient_buckets(shapes) for name in step_names(kind, bucket, kinds)]
    return list(dict.fromkeys([*steps, INITIAL_SLOTS, *caches, *copy_names(shapes, kinds, CopyKind.INSERT)]))


def compile_order(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[str]:
    """Name all programs in the order in which they are worth most to a service that answers already."""
    kinds = distinct(groups)
    # A token shape is used once its widest context is there; long chunks and single sequences gain most.
    widest_first = sorted(shapes.buckets, key=lambda step: (-step[1].num_pages, step[1].num_seqs, -step[1].num_tokens))
    steps = [name for kind, bucket in widest_first for name in step_names(kind, bucket, kinds)]
    all_slots = max(shapes.decode_grid)
    counts = dict.fromkeys(bucket.num_seqs for _, bucket in sufficient_buckets(shapes)) | {all_slots.num_seqs: None}
    soon = [
        *sufficient_names(shapes, groups),
        *copy_names(shapes, kinds, CopyKind.EXTRACT),  # if prompts alternate, for which there must be two slots
        *step_names(StepKind.DECODE, all_slots, kinds),
        *occasional_names(shapes, counts),
        COUNT_TOKENS,
        *copy_names(shapes, kinds),
    ]
    return list(dict.fromkeys([*soon, *steps, *program_names(shapes, groups)]))


def first_names(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[str]:
    """Name the programs that the first token of a short request needs."""
    kinds = distinct(groups)
    return [
        INITIAL_SLOTS,
        *(initial_cache_name(group) for group in kinds),
        *step_names(StepKind.PREFILL, next(iter(shapes.prefill_grid)), kinds),
    ]


def program_names(shapes: EngineShapes, groups: Sequence[LayerGroup]) -> list[str]:
    """Name all programs of a runner, in about the order in which requests need them."""
    kinds = distinct(groups)
    short_first = sorted(shapes.buckets, key=lambda kind_and_bucket: kind_and_bucket[1].num_pages)
    steps = [name for kind, bucket in short_first for name in step_names(kind, bucket, kinds)]
    decode = step_names(StepKind.DECODE, next(iter(shapes.decode_grid)), kinds)
    occasional = occasional_names(shapes, shapes.all_seq_counts)
    second = [*copy_names(shapes, kinds, CopyKind.INSERT), *decode]  # token
    rest = [*second, *steps, *occasional, COUNT_TOKENS, *copy_names(shapes, kinds), *whole_names(shapes)]
    return list(dict.fromkeys([*first_names(shapes, groups), *rest]))


def _bucket_name(kind: StepKind, bucket: Bucket) -> str:
    return f"{kind}-seqs{bucket.num_seqs}-tokens{bucket.num_tokens}-pages{bucket.num_pages}"
