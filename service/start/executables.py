"""An engine's executables: found in a bundle and loaded, or compiled; and the bundle made of them."""

import gc
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.bundles.bundle import Bundle, make_bundle
from service.bundles.lookup import BundlePlaces
from service.compile.aot import Compiled, compile_programs
from service.compile.lazy import LazyExecutables
from service.compile.program import Executable, load_executable
from service.engine.steps.names import first_names, program_names
from service.engine.steps.programs import engine_programs
from service.models.weight_shapes import weight_shapes
from service.start.imports import run_deferred
from service.start.progress import Phase, StartProgress
from service.start.spec import EngineSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BundleSearch:
    """The places that were searched, and the bundle that was found."""

    places: BundlePlaces
    found: Bundle | None
    begin_s: float  # when the search began, in seconds since the process began


@dataclass(frozen=True)
class Executables:
    """All executables of an engine. Those of a bundle may still be loading; reading one waits for it."""

    by_name: Mapping[str, Executable]
    bundle: Bundle | None = None  # they came from it, if there is one
    compile_seconds: Mapping[str, float] = field(default_factory=dict)  # of those that were compiled

    @property
    def is_hit(self) -> bool:
        """Whether they came from a bundle, and so have run on this kind of device before."""
        return self.bundle is not None

    def load_rest(self) -> None:
        """Load what a first token does not need, and wait for all.

        Raises:
            Exception: loading one failed.
        """
        if isinstance(self.by_name, LazyExecutables):
            self.by_name.wait()

    def to_bundle(self, spec: EngineSpec, progress: StartProgress) -> Bundle:
        """Return the bundle that they came from, or serialize them."""
        if self.bundle is not None:
            return self.bundle
        making = {"recipe": spec.recipe(), "start": progress.report()}
        return make_bundle(spec.key, self.by_name, self.compile_seconds, making)


def needed_names(spec: EngineSpec) -> list[str]:
    """Return the names of all executables of an engine, about in the order in which requests need them."""
    return program_names(spec.shapes, spec.layer_groups)


def find_bundle(spec: EngineSpec, places: BundlePlaces, progress: StartProgress) -> BundleSearch:
    """Look for the bundle of an engine."""
    begin_s = progress.elapsed_s()
    with progress.part(Phase.EXECUTABLES, "find bundle"):
        return BundleSearch(places, places.find(spec.key, needed_names(spec)), begin_s)


def obtain_executables(spec: EngineSpec, search: BundleSearch, progress: StartProgress) -> Executables:
    """Begin to load the executables of a bundle and return at once, or compile all of them."""
    names = needed_names(spec)
    progress.count_executables(0, len(names))
    if search.found is not None:
        return Executables(_load(search.found, spec, names, progress), search.found)
    with progress.phase(Phase.EXECUTABLES, begin_s=search.begin_s) as facts:
        facts.update(search_facts(spec, search))
        return compile_all(spec, progress)


def search_facts(spec: EngineSpec, search: BundleSearch) -> dict[str, Any]:
    """Return what the log says about the executables of a start."""
    size = {} if search.found is None else {"bundle_bytes": search.found.size_bytes}
    return {"bundle": search.places.outcome, "executables": len(needed_names(spec)), **size}


def compile_all(spec: EngineSpec, progress: StartProgress) -> Executables:
    """Compile every executable from its shapes, without waiting for a weight."""
    gc.enable()  # unlike importing, tracing produces garbage
    compiled = _compile(spec, progress)
    return Executables(
        {name: program.executable for name, program in compiled.items()},
        compile_seconds={name: program.seconds for name, program in compiled.items()},
    )


def _load(bundle: Bundle, spec: EngineSpec, names: Sequence[str], progress: StartProgress) -> LazyExecutables:
    done = itertools.count(1)

    def load_one(name: str) -> Executable:
        with progress.part(Phase.EXECUTABLES, name):
            try:
                executable = load_executable(bundle.data[name], spec.mesh.devices)
            except Exception as error:  # of whatever kind: the bytes are those that were stored, and useless here
                facts = {"executable": name, "reason": f"{type(error).__name__}: {str(error)[:200]}"}
                logger.warning("an executable of the bundle does not load; compiling it instead", extra=facts)
                executable = _compile(spec, progress, [name])[name].executable
        progress.count_executables(next(done), len(names))
        return executable

    num_processors = os.cpu_count() or 1
    return LazyExecutables(
        names,
        load_one,
        num_first=len(first_names(spec.shapes, spec.layer_groups)),
        num_first_threads=max(1, num_processors - 1),  # the imports that run at the same time need one processor
        num_threads=num_processors,
    )


def _compile(spec: EngineSpec, progress: StartProgress, names: Sequence[str] | None = None) -> Mapping[str, Compiled]:
    """Compile the programs of these names, or all."""
    with progress.phase(Phase.IMPORT, "haliax"):
        run_deferred()
        model = spec.model()
    programs = engine_programs(model, spec.shapes, weight_shapes(spec.specs, spec.dtype, spec.mesh))
    wanted = [program for program in programs if names is None or program.name in names]
    done = itertools.count(1)

    def count(name: str, seconds: float) -> None:
        progress.record(Phase.EXECUTABLES, name, begin_s=progress.elapsed_s() - seconds)
        if names is None:
            progress.count_executables(next(done), len(wanted))

    return compile_programs(wanted, num_threads=os.cpu_count() or 1, on_compiled=count)
