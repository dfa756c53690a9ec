"""`levserve batch IN OUT` with a folder or a bucket at either end: one shard, from its settings to its exit code."""

import asyncio
import logging
import signal

from service.errors import SettingsError
from service.observability.metrics import Metrics
from service.offline.command import api_of, run_file
from service.offline.shards.chunks import BatchInput, open_input
from service.offline.shards.manifest import job_of, sum_up
from service.offline.shards.parts import Parts
from service.offline.shards.run import ShardRun, TooManyErrors
from service.settings import Settings
from service.settings.shard import Shard
from service.start.context import StartContext
from service.start.load import ModelStart
from service.start.progress import StartProgress
from service.storage.gcs.region import say_if_elsewhere
from service.storage.location import GcsLocation, HubLocation, LocalLocation, parse_location
from service.storage.retry import TransferLimits
from service.storage.store import open_store

logger = logging.getLogger(__name__)

STOPPED = 128 + signal.SIGTERM


def run_batch(
    settings: Settings, source: str, target: str, shard: Shard, *, is_single: bool, max_error_rate: float | None
) -> int:
    """Answer a batch file in one process, or a shard of an input; return the exit code.

    Args:
        settings: the settings of the model.
        source: the address of a batch file, or of a folder of some.
        target: the address of a file, or of the folder of the answers.
        shard: which of how many this process is.
        is_single: whether to write the answers as one file too.
        max_error_rate: the share of lines that may have an error for an answer; None for all.

    Raises:
        SettingsError: what is asked for needs a folder of answers, and OUT is a file.
        StartError, EngineError, BatchFileError, TooManyErrors: see `run_file` and `_run_shard`.
    """
    read, written = parse_location(source, "IN"), parse_location(target, "OUT")
    is_folder = target.endswith("/") or (isinstance(written, LocalLocation) and written.path.is_dir())
    if isinstance(read, LocalLocation) and isinstance(written, LocalLocation) and not (is_folder or read.path.is_dir()):
        if shard.count > 1 or is_single or max_error_rate is not None:
            raise SettingsError("OUT", f"{target} is a file; shards and their flags need a folder: {target}/")
        return run_file(settings, read.path, written.path)
    rate = 1.0 if max_error_rate is None else max_error_rate
    return _run_shard(settings, source, target, shard, is_single=is_single, max_error_rate=rate)


def _run_shard(
    settings: Settings, source: str, target: str, shard: Shard, *, is_single: bool, max_error_rate: float
) -> int:
    """Answer the chunks of one shard, and of others that are left; return the exit code.

    Raises:
        SettingsError, BatchFileError, CheckpointError: the input or the place of the answers is at fault; before the
            model is loaded, unless it changes later.
        StartError: the model cannot be loaded.
        EngineStopped: the engine failed; what is answered is kept.
        TooManyErrors: more lines failed than `max_error_rate` allows.
    """
    read = _checked(source, target)
    emulator_host = settings.storage_emulator_host
    batch = open_input(read, emulator_host=emulator_host, is_single=is_single)
    logger.info("batch cut", extra={"lines": batch.num_lines, "chunks": len(batch.chunks), "shard": shard.name})
    for location in (read, parse_location(target, "OUT")):
        if isinstance(location, GcsLocation):
            say_if_elsewhere(location, emulator_host)
    store = open_store(target, "OUT", emulator_host=emulator_host, limits=TransferLimits())
    parts = Parts(store, len(batch.chunks))
    metrics = Metrics()
    start = ModelStart(StartContext(settings, metrics, StartProgress(metrics)))
    job = job_of(batch, start.wait_for_checkpoint(), settings)
    parts.begin(job)
    if len(parts.present()) < len(batch.chunks):
        loaded = start.wait_for_model()
        start.wait_until_ready()
        run = ShardRun(
            api_of(settings, loaded, metrics),
            batch,
            parts,
            shard=shard,
            concurrency=settings.max_concurrent_requests,
            max_error_rate=max_error_rate,
        )
        try:
            is_stopped = asyncio.run(_run_until_stopped(run))
        except TooManyErrors:
            parts.write_manifest(sum_up(batch, parts, job))
            raise
        finally:
            loaded.running.thread.stop()
        if is_stopped:
            logger.warning("batch stopped; its answers are kept, and the next run goes on")
            return STOPPED
    _finish(batch, parts, job, shard, is_single=is_single, max_error_rate=max_error_rate)
    return 0


def _checked(source: str, target: str) -> LocalLocation | GcsLocation:
    """Return the location of the input.

    Raises:
        SettingsError: an address is wrong, or the answers would become input.
    """
    read, written = parse_location(source, "IN"), parse_location(target, "OUT")
    if isinstance(read, HubLocation):
        raise SettingsError("IN", f"{source!r} is on the Hub. Name a file, a folder, or gs://bucket/prefix.")
    if isinstance(read, LocalLocation) and isinstance(written, LocalLocation):
        if written.path.is_file():
            raise SettingsError("OUT", f"{target} is a file, and answers in shards are several. Name a folder.")
        is_inside = read.path.resolve() in (written.path.resolve(), *written.path.resolve().parents)
    elif isinstance(read, GcsLocation) and isinstance(written, GcsLocation):
        is_inside = f"{written.uri}/".startswith(f"{read.uri}/")
    else:
        is_inside = False
    if is_inside:
        raise SettingsError("OUT", f"{target} lies inside the input {source}. Name a folder outside it.")
    return read


async def _run_until_stopped(run: ShardRun) -> bool:
    """Run a shard; return whether SIGTERM stopped it, after its answers were kept."""
    running = asyncio.ensure_future(run.run())
    loop = asyncio.get_running_loop()
    is_stopped = False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True
        running.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        await running
    except asyncio.CancelledError:
        if not is_stopped:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
    return is_stopped


def _finish(
    batch: BatchInput, parts: Parts, job: dict, shard: Shard, *, is_single: bool, max_error_rate: float
) -> None:
    """Sum up, if this process has completed the set.

    Raises:
        BatchFileError, CheckpointError: a part is at fault, or cannot be read.
        TooManyErrors: more lines failed than `max_error_rate` allows.
    """
    if num_left := len(batch.chunks) - len(parts.present()):
        logger.info("this shard is done; other processes work on the rest", extra={"chunks_left": num_left})
        return
    manifest = parts.read_manifest()
    if manifest is None or manifest["missing"]:
        manifest = sum_up(batch, parts, job)
        if is_single:
            parts.compose()
        parts.write_manifest(manifest)
    elif is_single:
        parts.compose()
    counts = manifest["counts"]
    logger.info("batch complete", extra={**counts, "tokens": manifest["usage"]["output_tokens"], "uri": parts.uri})
    if counts["failed"] > max_error_rate * counts["lines"]:
        raise TooManyErrors(counts["failed"], counts["lines"], max_error_rate)
