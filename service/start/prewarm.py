"""`levserve prewarm`: make a bundle ahead of traffic, on the kind of machine that will serve or elsewhere.

This needs the checkpoint's configuration, not its weights: each executable runs once on zeros before it is stored, if
its device is here. A Levanter checkpoint's weights are converted as well, so that no later start imports Levanter.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
from service.start.executables import BundleSearch, compile_all, find_bundle
from service.start.graph import GraphRun
from service.start.kinds.model_spec import ModelSpec
from service.start.load import DISCOVERY
from service.start.progress import Phase, StartProgress
from service.text.generation_defaults import NO_DEFAULTS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Goal:
    """The model that a start would build, and the places of its bundles."""

    name: Mapping[str, str]  # what prints it, where there are several
    settings: Settings  # with which it starts
    generations: Mapping[str, int]  # to which its files are pinned
    devices: Devices
    checkpoint: LocatedCheckpoint
    spec: ModelSpec
    places: BundlePlaces
    progress: StartProgress
    is_absent: bool  # whether nothing can run on the devices, which are another machine's


def check(settings: Settings, target: str | None = None) -> int:
    """Print whether a start, of this machine or of a target, would find its bundle; return the exit code, 0 for yes.

    Where the settings name a catalogue, each of its models is looked up, and the code is 0 if all bundles are there.
    """
    return _run(_check, settings, target)


def prewarm(settings: Settings, target: str | None = None) -> int:
    """Make the bundle unless it is there, and print it; return the exit code, 0 if a place holds it.

    Args:
        settings: those with which the service will start; if they name a catalogue, the bundles of all its models.
        target: the machine on which it will, one of `TARGETS`; None for this one.

    Raises:
        StartError: the one checkpoint cannot be served, or nothing can be compiled for the target here.
    """
    return _run(_prewarm, settings, target)


def _run(task: Callable[[_Goal], int], settings: Settings, target: str | None) -> int:
    """Do something for the one model of the settings, or for each of a catalogue; return the greatest exit code."""
    devices = None if target is None else use_target(target)
    if not settings.has_catalogue:
        return task(_discover(settings, devices, None, is_absent=target is not None))
    from service.catalogue.sources import catalogue_of_settings

    catalogue = catalogue_of_settings(settings)
    catalogue.refresh()
    codes = [0]
    for entry in catalogue.entries:
        try:
            goal = _discover(settings, devices, entry, is_absent=target is not None)
            devices = goal.devices
            codes.append(task(goal))
        except (ServiceError, OSError) as error:  # the other models can be served all the same
            logger.error("a model cannot be prewarmed", extra={"model": entry.name, "reason": str(error)})
            codes.append(1)
    return max(codes)


def _check(goal: _Goal) -> int:
    with contextlib.closing(goal.places):
        found = find_bundle(goal.spec, goal.places, goal.progress).found
    key = goal.spec.key.digest if found is None else found.manifest.key
    facts = {"outcome": goal.places.outcome, "key": key, "executables": len(goal.spec.names.every)}
    _print_facts({**goal.name, **facts, "places": [place.uri for place in goal.places.places]})
    return 0 if found is not None else 1


def _prewarm(goal: _Goal) -> int:
    settings = goal.settings
    with contextlib.closing(goal.places):
        search = find_bundle(goal.spec, goal.places, goal.progress, takes_any=False)
        found = search.found
        bundle = found or _make(goal, search)
        stored = goal.places.store(bundle)
        goal.places.kept(goal.spec.key).discard()
    open_pinned = opener(settings, goal.generations)
    converted = store_conversion(settings, goal.checkpoint, checkpoint_uri(settings), open_pinned)
    _print_executables(bundle, is_made=found is None)
    _print_facts(
        {
            **goal.name,
            "outcome": "made" if found is None else "already there",
            "key": goal.spec.key.digest,
            "executables": len(bundle.manifest.executables),
            "bundle_bytes": bundle.size_bytes,
            "places": stored,
            "converted_weights": converted,
            "seconds": round(goal.progress.elapsed_s(), 3),
        }
    )
    return 0 if stored or found is not None else 1


def _discover(process: Settings, devices: Devices | None, entry: ModelEntry | None, *, is_absent: bool) -> _Goal:
    """Find the model that a start would build: of a catalogue's entry, or the only one."""
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
    run = GraphRun(DISCOVERY, context, failed=context.failed)
    spec, checkpoint = run.wait("spec"), run.wait("checkpoint")
    return _Goal(
        {} if entry is None else {"model": entry.name},
        settings,
        context.generations,
        run.wait("devices"),
        checkpoint,
        spec,
        BundlePlaces.of_settings(settings, checkpoint.uri, metrics),
        context.progress,
        is_absent,
    )


def _make(goal: _Goal, search: BundleSearch) -> Bundle:
    """Compile every executable and run each once, so that none is stored that this device cannot run."""
    spec = goal.spec
    executables = compile_all(spec, search, goal.progress)
    executables.wait()
    if goal.is_absent:
        return executables.to_bundle(spec, goal.progress)
    with goal.progress.phase(Phase.WARM):
        # Whether a step runs does not depend on the values of the weights.
        zeros = {weight.name: spec.mesh.put(np.zeros(weight.shape, weight.dtype), weight.axes) for weight in spec.specs}
        spec.run_once(zeros, executables.by_name)
    return executables.to_bundle(spec, goal.progress)


def _print_executables(bundle: Bundle, *, is_made: bool) -> None:
    """Print the executables: a table on a terminal, otherwise a line of JSON each."""
    files = bundle.manifest.executables
    if not sys.stdout.isatty():
        for name, file in files.items():
            facts = {"executable": name, "bytes": file.size_bytes, "compile_seconds": file.compile_seconds}
            sys.stdout.write(json.dumps(facts) + "\n")
        return
    width = max(len(name) for name in files)
    sys.stdout.write(f"{'executable':{width}}  {'bytes':>12}  {'compiled in' if is_made else 'was compiled in':>15}\n")
    for name, file in files.items():
        sys.stdout.write(f"{name:{width}}  {file.size_bytes:12,}  {file.compile_seconds:13.2f} s\n")


def _print_facts(facts: dict[str, object]) -> None:
    if sys.stdout.isatty():
        sys.stdout.write("".join(f"{name:>12}: {value}\n" for name, value in facts.items()))
    else:
        sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
