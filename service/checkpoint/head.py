"""Whether a model's head is a tensor of its own or the table of embeddings: the files decide, and not `config.json`.

| config.json | the files have | served is |
|---|---|---|
| tied | no head, or one equal to the embeddings | the embeddings |
| tied | another head | that head |
| not tied | a head | that head |
| not tied | no head | the embeddings |

Programs are shaped by it, so it is known before weights are read: from the headers, and of large tables from samples.
The load compares all bytes of two equal ones.
Source: transformers `modeling_utils.py` (tie_weights, which unties tensors that a checkpoint has both and unequal).
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from service.checkpoint.layout import SnapshotLayout
from service.errors import CheckpointError
from service.models.decoder_weights import decoder_weight_specs
from service.models.encoders.registry import any_encoder_weight_specs, is_encoder, read_encoder_config
from service.models.encoders.rotary.config import RotaryConfig
from service.models.registry import OWN_HEAD, read_config
from service.models.weight_spec import FLOAT32, WeightSpec
from service.storage.objects import read_range
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget, TransferLimits
from service.storage.source import Source
from service.weights.headers import read_headers
from service.weights.names import FoundTensor, resolve
from service.weights.safetensors import Header, TensorEntry

logger = logging.getLogger(__name__)

EMBED, UNEMBED = "embed", "unembed"  # the names of the weights
WHOLE_BYTES = 8 * 1024 * 1024  # tables up to this size are compared whole
NUM_SAMPLES, SAMPLE_BYTES = 32, 64 * 1024  # of larger ones, evenly spread


def with_head(
    source: Source, layout: SnapshotLayout, values: Mapping[str, Any], sentence_files: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a configuration that says whether the files have a head of their own.

    It is unchanged if the model has no head, or if the files cannot be read, which their load explains.

    Args:
        source: of the files.
        layout: the files of weights.
        values: the content of `config.json`.
        sentence_files: the files of sentence-transformers, by name.
    """
    if any(info.is_gzipped for info in layout.weights):
        return values
    try:
        names = [info.name for info in layout.weights]
        specs, is_tied = _untied(source.uri, values, sentence_files, names)
        if not any(spec.name == UNEMBED for spec in specs):
            return values
        budget = RetryBudget(TransferLimits())
        with source.open_ranges() as ranges:
            headers = read_headers([OpenFile(ranges, info) for info in layout.weights], budget)
            own = _has_own_head(source.uri, specs, headers, budget, is_tied=is_tied)
    except CheckpointError as error:
        logger.info("the head is chosen by config.json alone", extra={"uri": source.uri, "reason": str(error)})
        return values
    if own == is_tied:
        has = "a head that differs from the embeddings, which is served" if own else "no head: the embeddings serve"
        facts = {"uri": source.uri, "tie_word_embeddings": is_tied}
        logger.warning("config.json says otherwise, but the files have %s", has, extra=facts)
    return {**values, OWN_HEAD: own}


def _untied(
    uri: str, values: Mapping[str, Any], sentence_files: Mapping[str, Any], files: Sequence[str]
) -> tuple[tuple[WeightSpec, ...], bool]:
    """Return the weights of a model if its head is its own, and whether `config.json` says that it is not.

    Raises:
        UnsupportedModel: the model is not served.
    """
    own = {**values, OWN_HEAD: True}
    if is_encoder(values, sentence_files):
        config = read_encoder_config(uri, values, sentence_files, files)
        is_tied = (
            isinstance(config, RotaryConfig)
            and config.vector.score_tokens is not None
            and config.vector.score_tokens.is_tied
        )
        return any_encoder_weight_specs(read_encoder_config(uri, own, sentence_files, files), FLOAT32), is_tied
    return decoder_weight_specs(read_config(uri, own)), read_config(uri, values).has_tied_embeddings


def _has_own_head(
    uri: str, specs: Sequence[WeightSpec], headers: Sequence[Header], budget: RetryBudget, *, is_tied: bool
) -> bool:
    by_name = {spec.name: spec.sources[0].name for spec in specs}
    embed, head = by_name[EMBED], by_name[UNEMBED]
    files = {header.file.info.name: header for header in headers}
    entries = {file: header.entries for file, header in files.items()}
    tensors = resolve(uri, specs, entries, optional={embed, head}).tensors
    if head not in tensors:
        return False
    if not is_tied:
        return True
    return embed in tensors and not _are_equal(
        *((files[found.file], _entry(files, found)) for found in (tensors[embed], tensors[head])), budget
    )


def _entry(files: Mapping[str, Header], found: FoundTensor) -> TensorEntry:
    return files[found.file].entries[found.name]


def _are_equal(first: tuple[Header, TensorEntry], second: tuple[Header, TensorEntry], budget: RetryBudget) -> bool:
    """Return whether two tensors are equal; of large ones, whether samples of them are."""
    (one, left), (other, right) = first, second
    if replace(left, file="", begin=0, end=0) != replace(right, file="", begin=0, end=0):
        return False
    if one is other and left == right:
        return True
    size = left.end - left.begin
    pieces = [(0, size)]
    if size > WHOLE_BYTES:
        last = size - SAMPLE_BYTES
        pieces = [(last * number // (NUM_SAMPLES - 1), SAMPLE_BYTES) for number in range(NUM_SAMPLES)]

    def is_equal(piece: tuple[int, int]) -> bool:
        start, length = piece
        return read_range(one.file.source, one.file.info, left.begin + start, length, budget) == read_range(
            other.file.source, other.file.info, right.begin + start, length, budget
        )

    with ThreadPoolExecutor(budget.limits.num_workers, thread_name_prefix="head") as pool:
        return all(pool.map(is_equal, pieces))
