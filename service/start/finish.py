"""What follows once requests are answered: a token if none was asked for, what else a bundle holds, ready."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

from service.bundles.lookup import Bundles
from service.compile.counter import CompileCounter
from service.engine.engine import Engine
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.errors import Draining, Overloaded
from service.start.executables import Executables
from service.start.imports import settle
from service.start.progress import Startup
from service.start.spec import EnginePlan

logger = logging.getLogger(__name__)

# What a first token does not need is loaded after the first requests, or when they have had so long.
EARLY_REQUESTS_S, POLL_S = 1.0, 0.05
# What a warm start does without; /admin/stats tells which of them were imported all the same.
HEAVY_PACKAGES = ("levanter", "haliax", "equinox", "transformers", "torch", "tensorstore", "google.cloud.storage")


@dataclass(frozen=True)
class Completion:
    """The end of one start."""

    name: str  # of the model
    plan: EnginePlan
    bundles: Bundles
    compiles: CompileCounter
    engine: Engine
    runner: Runner
    executables: Future[Executables]  # all of them
    load_rest: Callable[[], object]  # lets those come that a first token does not need
    startup: Startup

    def run(self) -> None:
        """Bring what is missing, declare the service ready, and keep the bundle for later starts.

        Raises:
            EngineError: no token came out.
        """
        settle()
        time.sleep(POLL_S)  # requests that came during the start are on their way
        _let_early_requests_go_first(self.engine)
        if self.engine.first_token_s is None:
            asyncio.run(_draw_token(self.engine))
        self.load_rest()
        self.runner.fill_caches()
        executables = self.executables.result()
        self._finish()
        with contextlib.closing(self.bundles):
            try:
                self.bundles.keep(executables.to_bundle(self.plan, self.startup))
            except Exception:  # the service answers, and not every backend can serialize
                logger.warning("no bundle could be made; the next start compiles again", exc_info=True)

    def _finish(self) -> None:
        shapes = self.plan.shapes
        if self.engine.first_token_s is not None:
            self.startup.note_first_token(self.engine.first_token_s)
        self.startup.facts |= _facts_of(self.plan)
        self.startup.finish(
            model=self.name,
            max_model_len=shapes.max_context,
            kv_pages=shapes.num_pages,
            slots=shapes.num_slots,
            bundle_outcome=self.bundles.outcome,
            compiles=self.compiles.num_compiles,
            traces=self.compiles.num_traces,
            heavy_imports=[name for name in HEAVY_PACKAGES if name in sys.modules],
        )


async def _draw_token(engine: Engine) -> None:
    request = Request(id="warm", prompt_ids=(0,), max_tokens=1, sampling=Sampling(temperature=0.0))
    # Where there is no room for one more, those of clients are about to come; and a drain needs none.
    with contextlib.suppress(Overloaded, Draining):
        async for _ in engine.submit(request):
            pass


def _let_early_requests_go_first(engine: Engine) -> None:
    """Wait until those requests are answered that came during the start, but not for long."""
    give_up_s = time.monotonic() + EARLY_REQUESTS_S
    while engine.num_open and time.monotonic() < give_up_s:
        time.sleep(POLL_S)


def _facts_of(plan: EnginePlan) -> dict[str, Any]:
    inputs = plan.key.inputs
    told = ("packages", "platform", "platform_version", "device_kind", "num_devices", "mesh")
    return {"bundle_key": plan.key.digest, "shapes": asdict(plan.shapes), **{name: inputs[name] for name in told}}
