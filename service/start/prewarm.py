"""`levserve prewarm`: create a bundle ahead of traffic, on the target machine or elsewhere.

This needs the checkpoint's configuration, not its weights: if the device is present, each executable runs once on zeros
before it is stored. The weights of a Levanter checkpoint are also converted, so that no later start imports Levanter.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from service.bundles.bundle import Bundle
from service.bundles.lookup import BundlePlaces
from service.catalogue.entry import ModelEntry
from service.checkpoint.discover import LocatedCheckpoint
from service.errors import ServiceError
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.context import StartContext
from service.start.conversions import store_conversion
from service.start.devices import Devices, use_target
from service.start.discover import checkpoint_uri, opener
from service.start.executables import BundleSearch, compile_all, find_bundle, find_checked
from service.start.graph import Tasks
from service.start.kinds.model_spec import ModelSpec
from service.start.load import add_discovery
from service.start.progress import Phase, StartProgress
from service.start.tasks import replan
from service.text.generation_defaults import NO_DEFAULTS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Plan:
    """The model that a start would build, and the stores of its bundles."""

    name: Mapping[str, str]  # identifies the model in the output if there are several
    settings: Settings  # effective for this model
    generations: Mapping[str, int]  # pinned generation by file name
    devices: Devices
    checkpoint: LocatedCheckpoint
    spec: ModelSpec
    places: BundlePlaces
    progress: StartProgress
    replan: Callable[[str], ModelSpec]  # with the reference kernel, given what is wrong with the usual one
    is_absent: bool  # whether the devices belong to another machine, so that nothing can run on them


def check(settings: Settings, target: str | None = None) -> int:
    """Print whether a start on this machine or a target would find its bundle; return the exit code, 0 if so.

    With a catalogue, look up the bundle of every model; the code is 0 if all of them exist.
    """
    return _run(_check, settings, target)


def prewarm(settings: Settings, target: str | None = None) -> int:
    """Create the bundle unless it exists, and print it; return the exit code, 0 if it is stored somewhere.

    Args:
        settings: the settings that the service will start with; with a catalogue, create the bundles of all models.
        target: the target machine, one of `TARGETS`; None for this one.

    Raises:
        StartError: the checkpoint cannot be served, or nothing can be compiled for the target on this machine.
    """
    return _run(_prewarm, settings, target)


def _run(task: Callable[[_Plan], int], settings: Settings, target: str | None) -> int:
    """Run a task for the single model of the settings or for each one of a catalogue; return the highest exit code."""
    devices = None if target is None else use_target(target)
    if not settings.has_catalogue:
        return task(_discover(settings, devices, None, is_absent=target is not None))
    from service.catalogue.sources import catalogue_of_settings

    catalogue = catalogue_of_settings(settings)
    catalogue.refresh()
    codes = [0]
    for entry in catalogue.entries:
        if entry.has_slot:  # its base has its executables
            continue
        try:
            plan = _discover(settings, devices, entry, is_absent=target is not None)
            devices = plan.devices
            codes.append(task(plan))
        except (ServiceError, OSError) as error:  # continue with the other models
            logger.error("a model cannot be prewarmed", extra={"model": entry.name, "reason": str(error)})
            codes.append(1)
    return max(codes)


def _check(plan: _Plan) -> int:
    with contextlib.closing(plan.places):
        bundle = find_bundle(plan.spec, plan.places, plan.progress).bundle
    key = plan.spec.key.digest if bundle is None else bundle.manifest.key
    fields = {"outcome": plan.places.outcome, "key": key, "executables": len(plan.spec.names.every)}
    _print_fields({**plan.name, **fields, "places": [place.uri for place in plan.places.places]})
    return 0 if bundle is not None else 1


def _prewarm(plan: _Plan) -> int:
    settings = plan.settings
    with contextlib.closing(plan.places):
        search = _search(plan)
        bundle = search.bundle or _build(plan, search)
        stored = plan.places.store(bundle)
    open_pinned = opener(settings, plan.generations)
    converted = store_conversion(settings, plan.checkpoint, checkpoint_uri(settings), open_pinned)
    _print_executables(bundle, is_new=search.bundle is None)
    _print_fields(
        {
            **plan.name,
            "outcome": "made" if search.bundle is None else "already there",
            "key": search.spec.key.digest,
            "executables": len(bundle.manifest.executables),
            "bundle_bytes": bundle.size_bytes,
            "places": stored,
            "converted_weights": converted,
            "seconds": round(plan.progress.elapsed_s(), 3),
        }
    )
    return 0 if stored or search.bundle is not None else 1


def _search(plan: _Plan) -> BundleSearch:
    def find(spec: ModelSpec) -> BundleSearch:
        return find_bundle(spec, plan.places, plan.progress, accepts_untuned=False)

    if plan.is_absent:
        return find(plan.spec)
    return find_checked(find, plan.spec, plan.replan, plan.progress)


def _discover(process: Settings, devices: Devices | None, entry: ModelEntry | None, *, is_absent: bool) -> _Plan:
    """Plan the model of a catalogue's entry, or the only model."""
    metrics = Metrics()
    settings = process if entry is None else entry.settings(process)
    context = StartContext(
        settings,
        metrics,
        StartProgress(metrics),
        defaults=NO_DEFAULTS if entry is None else entry.defaults,
        generations={} if entry is None else entry.generations,
        devices=devices,
        memory_share=1.0 if entry is None else entry.share(process),
    )
    tasks = Tasks[StartContext]()
    found = add_discovery(tasks)
    tasks.begin(context, context.failed)
    spec, checkpoint = found.spec.wait(), found.checkpoint.wait()
    return _Plan(
        {} if entry is None else {"model": entry.name},
        settings,
        context.generations,
        found.devices.wait(),
        checkpoint,
        spec,
        BundlePlaces.of_settings(settings, checkpoint.uri, metrics),
        context.progress,
        partial(replan, context, checkpoint, spec),
        is_absent,
    )


def _build(plan: _Plan, search: BundleSearch) -> Bundle:
    """Compile every executable and run each once, so that only working ones are stored."""
    spec = search.spec
    executables = compile_all(search, plan.progress)
    executables.wait()
    if plan.is_absent:
        return executables.to_bundle(spec, plan.progress)
    with plan.progress.phase(Phase.WARM):
        # Whether a step runs does not depend on the values of the weights.
        mesh = spec.mesh
        zeros = {each.name: mesh.put(np.zeros(each.shape, each.dtype), each.axes) for each in spec.all_specs}
        spec.run_once(zeros, executables.by_name)
    return executables.to_bundle(spec, plan.progress)


def _print_executables(bundle: Bundle, *, is_new: bool) -> None:
    """Print the executables as a table on a terminal, otherwise as JSON lines."""
    files = bundle.manifest.executables
    if not sys.stdout.isatty():
        for name, file in files.items():
            fields = {"executable": name, "bytes": file.size_bytes, "compile_seconds": file.compile_seconds}
            sys.stdout.write(json.dumps(fields) + "\n")
        return
    width = max(len(name) for name in files)
    sys.stdout.write(f"{'executable':{width}}  {'bytes':>12}  {'compiled in' if is_new else 'was compiled in':>15}\n")
    for name, file in files.items():
        sys.stdout.write(f"{name:{width}}  {file.size_bytes:12,}  {file.compile_seconds:13.2f} s\n")


def _print_fields(fields: dict[str, object]) -> None:
    if sys.stdout.isatty():
        sys.stdout.write("".join(f"{name:>12}: {value}\n" for name, value in fields.items()))
    else:
        sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
