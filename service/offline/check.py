"""`levserve check`: say what a start would serve of a checkpoint, what it would leave out and what it would refuse.

The tasks of a start find the files, read the configuration and the tokenizer, and match the names of tensors. Only
small files and headers are read: no weight, and nothing is compiled.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, override

from service.checkpoint.adapters.read import match_adapter
from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.layout import LevanterLayout
from service.checkpoint.samples import are_equal
from service.checkpoint.stored_names import open_ranges
from service.errors import SettingsError, StartError
from service.models.encoders.registry import is_encoder, read_encoder_config
from service.models.encoders.sentence import read_sentence_config
from service.models.registry import OWN_HEAD, read_config
from service.models.weight_spec import WeightSpec
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.context import StartContext
from service.start.discover import locate_checkpoint
from service.start.prefetch import loaded_specs
from service.start.progress import StartProgress
from service.start.tasks import load_text, pull_tokenizer_files
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget, TransferLimits
from service.weights.headers import entries_of, read_headers, unequal_copies
from service.weights.names import shown

if TYPE_CHECKING:
    from service.start.kinds.model_spec import TextFiles
    from service.text.chat_template import ChatTemplate

# What these say during a start is part of the answer.
LOGGERS = ("service.checkpoint", "service.models", "service.text", "service.weights")
SAID_ELSEWHERE = ("uri", "left_out")


@dataclass
class Report:
    """The rows of the table, and whether a start would succeed."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    is_served: bool = True

    def add(self, what: str, found: str) -> None:
        """Add a row, unless it is there."""
        if (what, found) not in self.rows:
            self.rows.append((what, found))

    def attempt[Result](self, read: Callable[[], Result]) -> Result | None:
        """Return what a part of the start gives; None, and a row with the reason, if it refuses."""
        try:
            return read()
        except (StartError, SettingsError) as error:
            self.add("refused", str(error))
            self.is_served = False
            return None

    def table(self) -> str:
        """Return the rows as aligned lines, and the result; what was noted says no reason of a refusal again."""
        reasons = [found for what, found in self.rows if what == "refused"]
        shown = [row for row in self.rows if row[0] != "noted" or not any(reason in row[1] for reason in reasons)]
        rows = [*shown, ("result", "served" if self.is_served else "refused")]
        width = max(len(what) for what, _ in rows)
        return "\n".join(f"{what:{width}}  {found}" for what, found in rows)


def check(source_uri: str, settings: Settings) -> int:
    """Print the table, and return 0 if a start would serve the checkpoint, 1 if not.

    Args:
        source_uri: `gs://bucket/prefix`, `hf://org/name[/folder][@revision]` or a folder.
        settings: of the start: a tokenizer or an adapter of another place, the cache.
    """
    own = {"model_uri": source_uri, "gcs_bucket": None, "catalogue_uri": None, "models_config": None}
    metrics, report = Metrics(), Report()
    context = StartContext(settings.model_copy(update=own), metrics, StartProgress(metrics))
    with _noting(report):
        located = report.attempt(lambda: locate_checkpoint(context))
        if located is not None:
            _check_model(report, context, located)
    print(report.table())
    return 0 if report.is_served else 1


def _check_model(report: Report, context: StartContext, located: LocatedCheckpoint) -> None:
    layout = located.layout
    size = sum(info.size_bytes for info in layout.weights)
    kind = "Levanter" if isinstance(layout, LevanterLayout) else "pickled" if layout.is_pickled else "safetensors"
    report.add("files", f"{located.uri}: {len(layout.weights)} of weights ({kind}), {size / 1e9:.3f} GB")
    specs = report.attempt(lambda: loaded_specs(context.settings, located))
    if specs is not None:
        report.add("model", f"{located.hub_config.get('model_type')}, {_kind(located)}")
        if OWN_HEAD in located.hub_config:
            report.add("head", "its own" if located.hub_config[OWN_HEAD] else "the embeddings")
        report.attempt(lambda: _check_vectors(report, located))
        report.attempt(lambda: _check_tensors(report, context, located, specs))
    if specs is not None and located.adapter is not None:
        adapter = located.adapter
        matched = report.attempt(lambda: match_adapter(adapter, specs))
        if matched is not None:
            whole = f", {len(matched.trained)} whole tensors" if matched.trained else ""
            report.add("adapter", f"{adapter.uri}: merged into {len(matched.layers)} layers{whole}")
    text = report.attempt(lambda: load_text(context, located, pull_tokenizer_files(context, located)))
    if text is not None and specs is not None:
        report.attempt(lambda: _check_images(report, context.settings, located, text, specs))
    if text is not None:
        template = "with a chat template" if text.chat_template is not None else "without a chat template"
        ends = ", ".join(map(str, sorted(text.tokenizer.eos_ids))) or "none"
        report.add("tokenizer", f"{text.tokenizer.vocab_size:,} tokens, {template}; ids that end a text: {ends}")
        if text.chat_template is not None:
            report.add("answers", _format(text.chat_template))


def _check_images(
    report: Report, settings: Settings, located: LocatedCheckpoint, text: "TextFiles", specs: Sequence[WeightSpec]
) -> None:
    """Add the tokens of an image, of a model that takes images.

    Raises:
        MalformedCheckpoint: the files beside the weights do not say how, or ask for what is not done here.
    """
    if is_encoder(located.hub_config, located.sentence_files):
        return
    config = read_config(located.uri, located.hub_config, settings.max_model_len)
    if config.image_encoder is None:
        return
    from service.start.kinds.engine_spec import row_shapes
    from service.start.kinds.vision import read_vision  # which other models do without

    shapes = row_shapes(settings, config, specs)
    assert shapes is not None, "an encoder of images has rows"
    read_vision(located.uri, text, config.image_encoder, shapes, settings.max_image_tokens)
    most = shapes.num_rows[-1]
    report.add(
        "images",
        f"of {most} tokens, or tiles of as many" if config.image_encoder.num_rows else f"of up to {most} tokens",
    )


def _format(template: "ChatTemplate") -> str:
    """Return how the model writes its answers, as its template shows."""
    form = template.format
    tags = " or ".join(f"{tags.open.strip()}…{tags.close.strip()}" for tags in form.thinking)
    reasoning = "in a channel" if form.has_headers else f"between {tags}" if tags else "none"
    if not form.calls:
        return f"reasoning: {reasoning}; the template writes no tools"
    taught = "" if form.is_taught else ", which the template does not show"
    several = "several" if form.allows_several else "one"
    written = "writes" if template.writes_calls else "drops"
    return (
        f"reasoning: {reasoning}; calls: {form.name}{taught}, {several} an answer; the template {written} earlier calls"
    )


def _kind(located: LocatedCheckpoint) -> str:
    if not is_encoder(located.hub_config, located.sentence_files):
        return "a model that generates"
    config = read_encoder_config(located.uri, located.hub_config, located.sentence_files, located.weight_files)
    return "a reranker" if config.vector.is_score else "an embedding model"


def _check_vectors(report: Report, located: LocatedCheckpoint) -> None:
    if not is_encoder(located.hub_config, located.sentence_files):
        return
    uri, files = located.uri, located.sentence_files
    config, sentence = (
        read_encoder_config(uri, located.hub_config, files, located.weight_files),
        read_sentence_config(uri, files),
    )
    if config.vector.is_score:
        return
    pooling = " and ".join(config.vector.poolings)
    is_whole = config.vector.kept_size is None
    length = ", of length 1" if config.vector.is_normalized and is_whole else ""
    tokens = min(config.context_len, sentence.max_tokens or config.context_len)
    report.add("vectors", f"{config.vector_size} dimensions{length}, by {pooling}; texts of up to {tokens:,} tokens")
    if sentence.prompts:
        report.add("prompts", f"{', '.join(sentence.prompts)}; by default {sentence.default_prompt or 'none'}")


def _check_tensors(
    report: Report, context: StartContext, located: LocatedCheckpoint, specs: Sequence[WeightSpec]
) -> None:
    """Match the tensors of the files with those of the model; a run of Levanter has no headers."""
    if isinstance(located.layout, LevanterLayout):
        return
    with open_ranges(located.weights, context.cache) as ranges:
        files = [OpenFile(ranges, info) for info in located.layout.weights]
        budget = RetryBudget(TransferLimits())
        found = entries_of(specs, read_headers(files, budget))
        by_name = {file.info.name: file for file in files}
        for copy in found.copies:
            one = by_name[copy.file], found.entries[copy.file][copy.tensor]
            other = by_name[copy.copy_file], found.entries[copy.copy_file][copy.copy]
            if not are_equal(one, other, budget):
                raise unequal_copies(located.uri, copy)
    stored = Counter(entry.dtype_name for own in found.entries.values() for entry in own.values())
    dtypes = ", ".join(f"{count:,} {name}" for name, count in stored.most_common())
    report.add("tensors", f"{sum(stored.values()):,}: {dtypes}")
    for what, names in found.resolution.left_out.items():
        report.add("left out", f"{what}: {shown(names)}")
    if found.copies:
        report.add(
            "left out",
            f"copies, of which a start compares all bytes: {shown([copy.found.name for copy in found.copies])}",
        )


@contextmanager
def _noting(report: Report) -> Iterator[None]:
    """Add what the parts of a start log to the report, in place of the log."""

    class Notes(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            plain = logging.makeLogRecord({}).__dict__
            facts = {
                name: value
                for name, value in record.__dict__.items()
                if name not in plain and name not in SAID_ELSEWHERE and name != "message"
            }
            facts_shown = "".join(f"; {name}: {value}" for name, value in facts.items())
            report.add("noted", f"{record.getMessage()}{facts_shown}")

    notes = Notes(logging.INFO)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(notes)
        logger.setLevel(logging.INFO)
    usual = [(handler, handler.level) for handler in logging.getLogger().handlers]
    for handler, _ in usual:
        handler.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for handler, level in usual:
            handler.setLevel(level)
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(notes)
            logger.setLevel(level)
