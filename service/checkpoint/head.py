"""Whether a model's head is a tensor of its own or the table of embeddings: the files decide, and not `config.json`.

| config.json | the files have | served is |
|---|---|---|
| tied | no head, or one equal to the embeddings | the embeddings |
| tied | another head | that head |
| not tied | a head | that head |
| not tied | no head | the embeddings |
| either | no head but that of another task | nothing: it is refused |

Programs are shaped by it, so it is known before weights are read: from the headers, and of large tables from samples.
The load compares all bytes of two equal ones.
Source: transformers `modeling_utils.py` (tie_weights, which unties tensors that a checkpoint has both and unequal).
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from service.checkpoint.file_set import FileSet
from service.checkpoint.layout import SnapshotLayout
from service.checkpoint.samples import are_equal
from service.checkpoint.stored_names import headers_of, indexed_names, open_ranges
from service.errors import CheckpointError, UnsupportedModel
from service.models.decoder_weights import decoder_weight_specs
from service.models.encoders.registry import any_encoder_weight_specs, is_encoder, read_encoder_config
from service.models.encoders.rotary.config import RotaryConfig
from service.models.registry import OWN_HEAD, read_config
from service.models.weight_spec import FLOAT32, WeightSpec
from service.storage.cache.cache import CheckpointCache
from service.storage.objects import RangeSource
from service.storage.retry import RetryBudget, TransferLimits
from service.weights.left_out import OTHER_HEADS
from service.weights.names import resolve, shown
from service.weights.safetensors import Header
from service.weights.stacked_experts import single_names

logger = logging.getLogger(__name__)

# Classes of transformers and of programs that train reward models.
_OTHER_TASKS = re.compile(
    r"For(TokenClassification|SequenceClassification|QuestionAnswering|MultipleChoice)$|Reward|ValueHead|Critic"
)
EMBED, UNEMBED = "embed", "unembed"  # the names of the weights


class _OtherHead(UnsupportedModel):
    """The files have only the head of another task."""


def with_head(
    files: FileSet,
    layout: SnapshotLayout,
    values: Mapping[str, Any],
    sentence_files: Mapping[str, Any],
    cache: CheckpointCache | None,
) -> Mapping[str, Any]:
    """Return a configuration that says whether the files have a head of their own.

    It is unchanged if the model has no head, or if the files cannot be read, which their load explains.

    Args:
        files: all files of the checkpoint.
        layout: the files of weights.
        values: the content of `config.json`.
        sentence_files: the files of sentence-transformers, by name.
        cache: where files of a bucket may be.

    Raises:
        UnsupportedModel: the files have only the head of another task.
    """
    source = files.source
    if any(info.is_gzipped for info in layout.weights):
        return values
    try:
        names = [info.name for info in layout.weights]
        specs, is_tied = _untied(source.uri, values, sentence_files, names)
        if not any(spec.name == UNEMBED for spec in specs):
            return values
        with open_ranges(files, cache) as ranges:
            own = _has_own_head(specs, layout, ranges, is_tied=is_tied)
    except _OtherHead:
        raise
    except CheckpointError as error:
        logger.info("the head is chosen by config.json", extra={"uri": source.uri, "reason": str(error)})
        return values
    if not own and not is_encoder(values, sentence_files):
        _check_task(source.uri, values)
    if own == is_tied:
        has = "a head that differs from the embeddings, which is served" if own else "no head: the embeddings serve"
        facts = {"uri": source.uri, "tie_word_embeddings": is_tied}
        logger.warning("config.json says otherwise, but the files have %s", has, extra=facts)
    return {**values, OWN_HEAD: own}


def _check_task(uri: str, values: Mapping[str, Any]) -> None:
    """Check that a model without a head of its own writes text.

    Raises:
        UnsupportedModel: its class judges texts, as a reward model does.
    """
    architectures = values.get("architectures")
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    if names and all(_OTHER_TASKS.search(name) for name in names):
        message = f"config.json: architectures is {names[0]}, a model that judges texts, and the files have no head for"
        raise UnsupportedModel(uri, f"{message} tokens. Such models are not served, but rerankers with one label.")


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


def _has_own_head(specs: Sequence[WeightSpec], layout: SnapshotLayout, ranges: RangeSource, *, is_tied: bool) -> bool:
    by_name = {spec.name: spec.sources[0].name for spec in specs}
    embed, head = by_name[EMBED], by_name[UNEMBED]
    budget = RetryBudget(TransferLimits())
    headers: dict[str, Header] = {}
    tensors_of = indexed_names(layout)
    if not tensors_of:
        headers = headers_of(layout.weights, ranges, budget)
        tensors_of = {file: list(header.entries) for file, header in headers.items()}
    names = [source.name for spec in specs for source in spec.sources]
    tensors_of = {file: single_names(own, names) for file, own in tensors_of.items()}
    # Which biases are zero is read by the load.
    resolution = resolve(ranges.uri, specs, tensors_of, optional={embed, head}, zeros=frozenset)
    tensors = resolution.tensors
    if head not in tensors:
        others = [name for what in OTHER_HEADS for name in resolution.left_out.get(what, ())]
        if others and not is_tied:
            message = f"config.json asks for a head of its own, and the files have only another: {shown(others)}"
            raise _OtherHead(ranges.uri, f"{message}. A model that judges texts is not served.")
        return False
    if not is_tied:
        return True
    if embed not in tensors:
        return False
    pair = [tensors[embed], tensors[head]]
    if not headers:
        files = {found.file for found in pair}
        headers = headers_of([info for info in layout.weights if info.name in files], ranges, budget)
    one, other = (headers[found.file].entries.get(found.name) for found in pair)
    if one is None or other is None:
        return True  # the index is not true, which the load explains
    left, right = (headers[found.file].file for found in pair)
    return not are_equal((left, one), (right, other), budget)
