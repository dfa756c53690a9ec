"""Finish a start once requests are answered: probe token, remaining executables, complete, store the bundle."""

import contextlib
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from service.device.heap import return_freed_memory
from service.errors import EngineError
from service.start.context import StartContext
from service.start.devices import Devices
from service.start.imports import end_quick_imports
from service.start.progress import Phase
from service.start.tasks import LoadedModel

if TYPE_CHECKING:
    from service.start.executables import BundleSearch, Executables
    from service.start.kinds.model_spec import ModelSpec, Running

logger = logging.getLogger(__name__)

# How long the rest of a start waits for requests that arrived during it, and how often it looks.
EARLY_REQUESTS_S, POLL_S = 1.0, 0.05
# Packages that a warm start does not need; /admin/stats lists those that were imported all the same.
HEAVY_PACKAGES = ("levanter", "haliax", "equinox", "transformers", "torch", "tensorstore", "google.cloud.storage")


def probe(context: StartContext, *, engine: "Running") -> None:
    """Answer early requests first; compute one token or vector if there were none. From here on it is answering.

    Raises:
        EngineError: no token came out.
    """
    end_quick_imports()
    time.sleep(POLL_S)  # requests that waited for the model are being submitted
    _wait_for_early_requests(engine)
    if engine.thread.first_answer_s is None:
        engine.probe()
    context.progress.mark_answering(engine.thread.first_answer_s)


def obtain_rest(
    context: StartContext,
    *,
    spec: "ModelSpec",
    bundle: "BundleSearch",
    executables: "Executables",
    engine: "Running",
) -> bool:
    """Load or compile the executables that a first token does not need, and run once those that have to.

    What was compiled runs, because a bundle of it is stored next. On an accelerator what was loaded runs too: the first
    call of an executable places its modules, and plans its library calls, on the device.

    Returns:
        Whether all are there; if not, the service goes on with those that it has.
    """
    from service.start.executables import search_facts

    try:
        with context.progress.phase(Phase.EXECUTABLES, begin_s=bundle.begin_s) as facts:
            facts.update(search_facts(spec, bundle))
            executables.wait()
        if not executables.is_hit or (spec.mesh.platform != "cpu" and not executables.is_shared):
            engine.run_all()
    except EngineError:
        raise
    except Exception as error:
        obstacle = f"{type(error).__name__}: {str(error)[:200]}"
        context.progress.mark_incomplete(obstacle)
        message = "an executable could not be made; requests are answered with those that are there"
        logger.exception(message, extra={"reason": obstacle})
        return False
    return True


def mark_ready(
    context: StartContext,
    *,
    devices: Devices,
    spec: "ModelSpec",
    bundle: "BundleSearch",
    model: LoadedModel,
    rest: bool,
) -> None:
    """Report the start complete, with its facts."""
    if not rest:
        return
    progress = context.progress
    progress.facts |= _spec_facts(spec)
    progress.mark_ready(
        model=model.served.name,
        **spec.ready_facts,
        bundle_outcome=bundle.outcome,
        compiles=devices.compiles.num_compiles,
        traces=devices.compiles.num_traces,
        heavy_imports=[name for name in HEAVY_PACKAGES if name in sys.modules],
    )


def store_bundle(
    context: StartContext, *, spec: "ModelSpec", bundle: "BundleSearch", executables: "Executables", rest: bool
) -> None:
    """Store the bundle for later starts, wherever it is missing, and share its executables with other models."""
    with contextlib.closing(bundle.places):
        if not rest or executables.is_shared:
            return
        context.common.executables.keep(spec.key.digest, dict(executables.by_name))
        try:
            bundle.places.store(executables.to_bundle(spec, context.progress))
            bundle.places.kept(spec.key).discard()
        except Exception:  # the service answers, and not every backend can serialize
            logger.warning("no bundle could be made; the next start compiles again", exc_info=True)


def return_memory(_: StartContext) -> None:
    """Return to the system what compilers and loaders have freed."""
    return_freed_memory()


def _wait_for_early_requests(engine: "Running") -> None:
    """Wait until the requests that arrived during the start are answered, but not for long."""
    give_up_s = time.monotonic() + EARLY_REQUESTS_S
    while engine.thread.num_open and time.monotonic() < give_up_s:
        time.sleep(POLL_S)


def _spec_facts(spec: "ModelSpec") -> dict[str, Any]:
    inputs = spec.key.inputs
    reported = {name: inputs[name] for name in ("packages", "platform", "device_kind", "num_devices", "mesh")}
    platform_version = spec.mesh.devices[0].client.platform_version
    return {
        "bundle_key": spec.key.digest,
        "shapes": spec.shape_facts,
        **reported,
        "platform_version": platform_version,
    }
