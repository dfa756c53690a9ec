"""`levserve check`: say what of a checkpoint would be served, left out or refused, without reading its weights.

It runs what a start runs up to the first weight: the listing, the configuration, the headers and the tokenizer.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.head import open_ranges
from service.checkpoint.layout import LevanterLayout
from service.checkpoint.tokenizer_files import pull_tokenizer
from service.errors import ServiceError
from service.models.encoders.registry import is_encoder, read_encoder_config
from service.models.registry import OWN_HEAD, read_config
from service.observability.metrics import Metrics
from service.observability.progress import Progress
from service.settings import Settings
from service.start.context import StartContext
from service.start.discover import locate_checkpoint
from service.start.prefetch import weight_specs
from service.start.progress import StartProgress
from service.start.tasks import load_text
from service.storage.location import parse_location
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget, TransferLimits
from service.weights.headers import entries_of, read_headers
from service.weights.names import shown

Row = tuple[str, str]


def check(source_uri: str, settings: Settings, out: TextIO | None = None) -> int:
    """Print a table, and return 0 if the checkpoint would be served, otherwise 1.

    Args:
        source_uri: `gs://bucket/prefix`, `hf://org/name[@revision]` or a folder.
        settings: the settings of a start.
        out: receives the table; the standard output if omitted.
    """
    out, code = out or sys.stdout, 0
    try:
        for name, text in _rows(source_uri, settings):
            print(f"{name:<10}  {text}", file=out)
    except ServiceError as error:
        print(f"{'refused':<10}  {error}", file=out)
        code = 1
    print(f"{'result':<10}  {'not served' if code else 'served'}", file=out)
    return code


def _rows(source_uri: str, settings: Settings) -> Iterator[Row]:
    """Yield what a start finds, in its order.

    Raises:
        ServiceError: the start would end here.
    """
    single = {"model_uri": source_uri, "gcs_bucket": None, "catalogue_uri": None, "models_config": None}
    metrics = Metrics()
    context = StartContext(settings.model_copy(update=single), metrics, StartProgress(metrics))
    yield "source", parse_location(source_uri, "SOURCE").uri
    located = locate_checkpoint(context)
    if located.uri != parse_location(source_uri).uri:
        yield "step", located.uri
    values = located.hub_config
    yield "model", str(values.get("model_type"))
    if is_encoder(values, located.sentence_files):
        encoder = read_encoder_config(located.uri, values, located.sentence_files, located.weight_files)
        kind = "scores of pairs" if encoder.vector.is_score else f"vectors of {encoder.vector_size} numbers"
        yield "serves", f"{kind}, from texts of up to {encoder.context_len} tokens"
    else:
        yield "serves", f"text, of up to {read_config(located.uri, values, settings.max_model_len).context_len} tokens"
        if OWN_HEAD in values:
            yield "head", "its own" if values[OWN_HEAD] else "the embeddings"
    yield from _weights(located, context)
    pulled = pull_tokenizer(located, context.cache, Progress())
    try:
        text = load_text(context, located, pulled.path)
    finally:
        pulled.release()
    yield (
        "tokenizer",
        f"{text.tokenizer.vocab_size} tokens, {'no' if text.chat_template is None else 'a'} chat template",
    )


def _weights(located: LocatedCheckpoint, context: StartContext) -> Iterator[Row]:
    if isinstance(located.layout, LevanterLayout):
        yield "weights", f"step {located.layout.step} of a Levanter run, whose tensors are checked as they are loaded"
        return
    yield "files", shown(located.weight_files)
    specs = weight_specs(context.settings, located)
    with open_ranges(located.weights, context.cache) as ranges:
        files = [OpenFile(ranges, info) for info in located.layout.weights]
        headers = read_headers(files, RetryBudget(TransferLimits(deadline_s=context.settings.pull_timeout)))
    found = entries_of(specs, headers)
    dtypes = Counter(entry.dtype_name for own in found.entries.values() for entry in own.values())
    counts = ", ".join(f"{count} of {dtype}" for dtype, count in dtypes.most_common())
    yield "tensors", f"{len(found.resolution.tensors)} ({counts}), named {found.resolution.prefix or 'as the model'}"
    if found.copies:
        yield "copies", shown([copy.found.name for copy in found.copies])
    for what, names in found.resolution.left_out.items():
        yield "left out", f"{what}: {shown(names)}"
