"""`levserve prewarm`: a bundle ahead of traffic, made on the kind of machine that will serve.

Needs the checkpoint's configuration, not its weights: each executable runs once on zeros before it is kept. But a
Levanter checkpoint's weights are converted too, so that no later start imports Levanter.
"""

import contextlib
import json
import logging
import sys
from dataclasses import dataclass

import numpy as np

from service.bundles.bundle import Bundle
from service.bundles.lookup import Bundles
from service.checkpoint.discover import LocatedCheckpoint
from service.engine.runner import Runner
from service.engine.steps.programs import program_names
from service.kernels.attention import keeps_rows
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.conversions import keep_conversion
from service.start.discover import checkpoint_uri, find_devices, locate_checkpoint, opener
from service.start.executables import compile_all
from service.start.graph import StartParts
from service.start.progress import Phase, Startup
from service.start.spec import EnginePlan, plan_engine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Goal:
    located: LocatedCheckpoint
    plan: EnginePlan
    bundles: Bundles
    startup: Startup


def check(settings: Settings) -> int:
    """Say whether a start would find its bundle; return the exit code, 0 for yes."""
    goal = _plan(settings)
    names = program_names(goal.plan.shapes, goal.plan.stages, keeps_rows=keeps_rows(goal.plan.mesh.platform))
    with contextlib.closing(goal.bundles):
        bundle = goal.bundles.find(goal.plan.key, names)
    facts = {"outcome": goal.bundles.outcome, "key": goal.plan.key.digest, "executables": len(names)}
    _say({**facts, "places": [place.uri for place in goal.bundles.places]})
    return 0 if bundle is not None else 1


def prewarm(settings: Settings) -> int:
    """Make the bundle unless it is there, and print what was made; return the exit code, 0 if a place has it.

    Raises:
        StartError: the checkpoint cannot be served.
    """
    goal = _plan(settings)
    names = program_names(goal.plan.shapes, goal.plan.stages, keeps_rows=keeps_rows(goal.plan.mesh.platform))
    with contextlib.closing(goal.bundles):
        found = goal.bundles.find(goal.plan.key, names)
        bundle = found or _make(goal)
        kept = goal.bundles.keep(bundle)
    converted = keep_conversion(settings, goal.located, checkpoint_uri(settings), opener(settings))
    _print(bundle, is_made=found is None)
    _say(
        {
            "outcome": "made" if found is None else "already there",
            "key": goal.plan.key.digest,
            "executables": len(names),
            "bundle_bytes": bundle.size_bytes,
            "places": kept,
            "converted_weights": converted,
            "seconds": round(goal.startup.elapsed_s(), 3),
        }
    )
    return 0 if kept or found is not None else 1


def _make(goal: _Goal) -> Bundle:
    """Compile every executable and run each once: one that this device cannot run shall not wait in a bundle."""
    executables = compile_all(goal.plan, goal.startup)
    with goal.startup.phase(Phase.WARM):
        # What the weights are makes no difference to whether a step runs.
        zeros = {
            spec.name: goal.plan.mesh.put(np.zeros(spec.shape, goal.plan.dtype), spec.axes) for spec in goal.plan.specs
        }
        Runner(goal.plan.shapes, goal.plan.stages, zeros, executables.by_name).warm()
    return executables.to_bundle(goal.plan, goal.startup)


def _plan(settings: Settings) -> _Goal:
    metrics = Metrics()
    startup = Startup(metrics)
    parts = StartParts()
    devices = parts.begin("devices", lambda: find_devices(startup, metrics)[0])
    located = parts.begin("locate", lambda: locate_checkpoint(settings, startup))
    parts.wait_for(devices, located)
    plan = plan_engine(settings, located.result(), devices.result())
    return _Goal(located.result(), plan, Bundles.of_settings(settings, located.result().uri, metrics), startup)


def _print(bundle: Bundle, *, is_made: bool) -> None:
    """Show the executables: a table for people, a line of JSON each for programs."""
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


def _say(facts: dict[str, object]) -> None:
    if sys.stdout.isatty():
        sys.stdout.write("".join(f"{name:>12}: {value}\n" for name, value in facts.items()))
    else:
        sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
