"""The last tasks of a start, once requests can be answered: probe, remaining executables, report, stored bundle."""

import contextlib
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from service.checkpoint.discover import LocatedCheckpoint
from service.device.heap import return_freed_memory
from service.errors import EngineError, NonFiniteLogits, NonFiniteVector, NonFiniteWeights
from service.start.context import StartContext
from service.start.devices import Devices
from service.start.imports import end_quick_imports
from service.start.progress import Phase
from service.start.tasks import StartedModel

if TYPE_CHECKING:
    import jax

    from service.checkpoint.load import LoadedWeights
    from service.start.executables import BundleSearch, StartExecutables
    from service.start.kinds.model_spec import ModelSpec, Running

logger = logging.getLogger(__name__)

# How long a start waits for requests that arrived during it, and how often it checks.
EARLY_REQUESTS_S, POLL_S = 1.0, 0.005
# Packages that a warm start does not need; /admin/stats lists those that were imported anyway.
HEAVY_PACKAGES = ("levanter", "haliax", "equinox", "transformers", "torch", "tensorstore", "google.cloud.storage")


def probe(
    context: StartContext,
    checkpoint: LocatedCheckpoint,
    spec: "ModelSpec",
    weights: "LoadedWeights[jax.Array]",
    engine: "Running",
) -> None:
    """Answer early requests first; compute one token or vector if there were none. Then the start is answering.

    Raises:
        NonFiniteWeights: the answer is NaN or infinite.
        EngineError: no token was generated.
    """
    _wait_for_early_requests(context, engine)
    end_quick_imports()  # the first answers import too
    if engine.thread.first_answer_s is None:
        try:
            engine.probe()
        except (NonFiniteLogits, NonFiniteVector) as error:
            raise _non_finite(checkpoint.uri, spec, weights) from error
    context.progress.mark_answering(engine.thread.first_answer_s)


def obtain_rest(
    context: StartContext,
    bundle: "BundleSearch",
    executables: "StartExecutables",
    engine: "Running",
) -> bool:
    """Load or compile the executables that a first token does not need, and run new ones once.

    Compiled executables are run before they are stored in a bundle. On an accelerator, loaded ones run too: the first
    call of an executable loads its modules and plans its library calls on the device.

    Returns:
        Whether all are available; otherwise the service continues with the available ones.
    """
    from service.start.executables import search_log_fields

    try:
        with context.progress.phase(Phase.EXECUTABLES, begin_s=bundle.begin_s) as fields:
            fields.update(search_log_fields(bundle))
            executables.wait()
            executables.wait_elsewhere()
        if not executables.is_hit or (bundle.spec.mesh.platform != "cpu" and not executables.is_shared):
            engine.run_all()
    except EngineError:
        raise
    except Exception as error:
        obstacle = f"{type(error).__name__}: {str(error)[:200]}"
        context.progress.mark_incomplete(obstacle)
        message = "an executable failed to load or compile; the service continues without it"
        logger.exception(message, extra={"reason": obstacle})
        return False
    return True


def mark_ready(
    context: StartContext,
    devices: Devices,
    bundle: "BundleSearch",
    model: StartedModel,
    rest: bool,
) -> None:
    """Report that the start is complete."""
    if not rest:
        return
    progress, spec = context.progress, bundle.spec
    progress.details |= _spec_fields(spec)
    progress.mark_ready(
        model=model.served.name,
        **spec.ready_fields,
        **model.running.measured_fields(),
        bundle_outcome=bundle.outcome,
        compiles=devices.compiles.num_compiles,
        traces=devices.compiles.num_traces,
        heavy_imports=[name for name in HEAVY_PACKAGES if name in sys.modules],
    )


def store_bundle(context: StartContext, bundle: "BundleSearch", executables: "StartExecutables", rest: bool) -> None:
    """Store the bundle for later starts wherever it is missing, and share its executables with other models."""
    with contextlib.closing(bundle.places):
        if not rest or executables.is_shared:
            return
        context.common.executables.put(bundle.spec.key.digest, [dict(by_name) for by_name in executables.by_engine])
        try:
            made = executables.to_bundle(bundle.spec, context.progress)
            bundle.places.store(made, replaces=executables.bundle not in (None, made))
        except Exception:  # not every backend can serialize, and the service works without it
            logger.warning("the bundle could not be created; the next start compiles again", exc_info=True)


def return_memory(_: StartContext) -> None:
    """Return the memory that compilers and loaders have freed to the operating system."""
    return_freed_memory()


def _non_finite(uri: str, spec: "ModelSpec", weights: "LoadedWeights[jax.Array]") -> NonFiniteWeights:
    from service.weights.names import NUM_SHOWN
    from service.weights.non_finite import non_finite_tensors  # which no start that succeeds needs

    names = list(dict.fromkeys(non_finite_tensors(spec.all_specs, weights.weights)))
    more = max(len(names) - NUM_SHOWN, 0)
    return NonFiniteWeights(uri, names[:NUM_SHOWN], num_more=more, dtype=spec.dtype.name)


def _wait_for_early_requests(context: StartContext, engine: "Running") -> None:
    """Wait for a short time until the requests that arrived during the start are answered.

    Most of them are not submitted yet. A token of the start's own, or executables that only later requests need, would
    take the processors from them.
    """
    deadline_s = time.monotonic() + EARLY_REQUESTS_S
    while (context.num_early() or engine.thread.num_open) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


def _spec_fields(spec: "ModelSpec") -> dict[str, Any]:
    inputs = spec.key.inputs
    reported = {name: inputs[name] for name in ("packages", "platform", "device_kind", "num_devices", "mesh")}
    platform_version = spec.mesh.devices[0].client.platform_version
    return {
        "bundle_key": spec.key.digest,
        "shapes": spec.shape_fields,
        **reported,
        "platform_version": platform_version,
    }
