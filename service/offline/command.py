"""`levserve batch`: load a model and answer a batch file."""

import asyncio
import logging
from pathlib import Path

from starlette.types import ASGIApp

from service.api.application import create_api
from service.api.backend import OneModel
from service.api.http.access_log import AccessLog
from service.observability.metrics import Metrics
from service.offline.batch import Tally, run_batch
from service.offline.batch_file import Journal, read_lines
from service.settings import Settings
from service.start.context import StartContext
from service.start.load import ModelStart
from service.start.progress import StartProgress
from service.start.tasks import StartedModel

logger = logging.getLogger(__name__)


def run_file(settings: Settings, source: Path, target: Path) -> int:
    """Answer a batch file and return the exit code.

    Raises:
        BatchError: a file is malformed, or cannot be read or written; raised before the model is loaded.
        StartError: the model cannot be loaded.
        EngineStopped: the engine failed; earlier answers are saved for the next run.
    """
    for _ in read_lines(source):
        pass
    with Journal(target):
        pass
    loaded, metrics = load_model(settings)
    tally = asyncio.run(_answer(settings, loaded, metrics, source, target))
    loaded.running.thread.stop()
    counts = {"lines": tally.num_lines, "refused": tally.num_refused, "tokens": tally.num_tokens}
    logger.info("batch complete", extra={**counts, "tokens_per_second": round(tally.tokens_per_second, 1)})
    return 0


def load_model(settings: Settings) -> tuple[StartedModel, Metrics]:
    """Load the model of the settings; return it, once all its executables are there, and the series of its process.

    Raises:
        StartError, EngineError: it cannot be loaded.
    """
    metrics = Metrics()
    start = ModelStart(StartContext(settings, metrics, StartProgress(metrics)))
    loaded = start.wait_for_model()
    start.wait_until_ready()
    return loaded, metrics


async def _answer(settings: Settings, loaded: StartedModel, metrics: Metrics, source: Path, target: Path) -> Tally:
    api = api_of(settings, loaded, metrics)
    return await run_batch(api, source, target, concurrency=settings.max_concurrent_requests)


def api_of(settings: Settings, loaded: StartedModel, metrics: Metrics) -> ASGIApp:
    """Return the API of a loaded model, as a server has it, without a port."""
    api = create_api(
        OneModel(loaded.served),
        metrics,
        default_max_tokens=settings.default_max_tokens,
        default_temperature=settings.default_temperature,
        max_body_bytes=settings.max_body_bytes,
        max_audio_bytes=settings.max_audio_bytes,
        max_image_body_bytes=settings.image_body_bytes,
    )
    return AccessLog(api, metrics=metrics, strict_fields=settings.strict_fields)
