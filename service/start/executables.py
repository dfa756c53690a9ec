"""An engine's executables: loaded from a bundle, or compiled in the background; and the bundle made of them.

Without a bundle a start needs few of them to answer: a step that holds any chunk and one that holds any batch. The
others are compiled while requests are answered, on threads that leave the processors to the steps.
"""

import contextlib
import gc
import itertools
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from service.bundles.bundle import Bundle, BundledFile, BundleRefused, make_bundle
from service.bundles.kept import KeptExecutables
from service.bundles.lookup import BundlePlaces
from service.compile.aot import STACK_BYTES, compile_programs, compile_timed
from service.compile.lazy import LazyExecutables, Making
from service.compile.program import Executable, Program, load_executable
from service.engine.steps.names import compile_order, first_names, program_names, sufficient_names
from service.engine.steps.programs import engine_programs
from service.models.weight_shapes import weight_shapes
from service.start.imports import run_deferred
from service.start.niceness import yield_to_steps
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
    """All executables of an engine. Some may still be loading or compiling; reading one waits for it."""

    by_name: LazyExecutables
    first: Sequence[str]  # what the first token needs
    bundle: Bundle | None = None  # they came from it, if there is one
    compiler: "_Compiler | None" = None  # it made them, if there was no bundle

    @property
    def is_hit(self) -> bool:
        """Whether they came from a bundle, and so have run on this kind of device before."""
        return self.bundle is not None

    def wait_for_first(self) -> None:
        """Wait for what the first token needs, unless it comes from a bundle: a step waits for what it lacks.

        Raises:
            Exception: compiling one failed.
        """
        if not self.is_hit:
            for name in self.first:
                self.by_name[name]

    def to_bundle(self, spec: EngineSpec, progress: StartProgress) -> Bundle:
        """Return the bundle that they came from, or serialize them."""
        if self.bundle is not None:
            return self.bundle
        assert self.compiler is not None, "executables come from a bundle or from a compiler"
        making = {"recipe": spec.recipe(), "start": progress.report()}
        return make_bundle(spec.key, self.by_name, self.compiler.seconds, making, self.compiler.take_loaded())


def needed_names(spec: EngineSpec) -> list[str]:
    """Return the names of all executables of an engine, about in the order in which requests need them."""
    return program_names(spec.shapes, spec.layer_groups)


def find_bundle(spec: EngineSpec, places: BundlePlaces, progress: StartProgress) -> BundleSearch:
    """Look for the bundle of an engine."""
    begin_s = progress.elapsed_s()
    with progress.part(Phase.EXECUTABLES, "find bundle"):
        return BundleSearch(places, places.find(spec.key, needed_names(spec)), begin_s)


def search_facts(spec: EngineSpec, search: BundleSearch) -> dict[str, Any]:
    """Return what the log says about the executables of a start."""
    size = {} if search.found is None else {"bundle_bytes": search.found.size_bytes}
    return {"bundle": search.places.outcome, "executables": len(needed_names(spec)), **size}


def obtain_executables(spec: EngineSpec, search: BundleSearch, progress: StartProgress) -> Executables:
    """Begin to load the executables of a bundle, or to compile them, and return at once."""
    progress.count_executables(0, len(needed_names(spec)))
    if search.found is not None:
        return _load_all(spec, search.found, progress)
    return compile_all(spec, search, progress)


def compile_all(spec: EngineSpec, search: BundleSearch, progress: StartProgress) -> Executables:
    """Begin to compile every executable from its shapes, without waiting for a weight."""
    gc.enable()  # unlike importing, tracing produces garbage
    compiler = _Compiler(spec, search.places.kept(spec.key), progress)
    first = sufficient_names(spec.shapes, spec.layer_groups)
    names = compile_order(spec.shapes, spec.layer_groups)
    num_processors = os.cpu_count() or 1
    making = Making(
        compiler.obtain,
        num_first_threads=num_processors,
        num_rest_threads=num_processors,
        stack_bytes=STACK_BYTES,
        lookups_make=False,
        on_rest_thread=yield_to_steps,
    )
    return Executables(LazyExecutables(names, len(first), making), first, compiler=compiler)


def _load_all(spec: EngineSpec, bundle: Bundle, progress: StartProgress) -> Executables:
    done = itertools.count(1)
    names = needed_names(spec)

    def load_one(name: str) -> Executable:
        with progress.part(Phase.EXECUTABLES, name):
            try:
                executable = load_executable(bundle.data[name], spec.mesh.devices)
            except Exception as error:  # of whatever kind: the bytes are those that were stored, and useless here
                facts = {"executable": name, "reason": f"{type(error).__name__}: {str(error)[:200]}"}
                logger.warning("an executable of the bundle does not load; compiling it instead", extra=facts)
                [program] = [program for program in _programs(spec, progress) if program.name == name]
                executable = compile_programs([program], num_threads=1)[name].executable
        progress.count_executables(next(done), len(names))
        return executable

    num_processors = os.cpu_count() or 1
    first = first_names(spec.shapes, spec.layer_groups)
    making = Making(
        load_one,
        num_first_threads=max(1, num_processors - 1),  # the imports that run at the same time need one processor
        num_rest_threads=num_processors,
    )
    return Executables(LazyExecutables(names, len(first), making), first, bundle)


class _Compiler:
    """Compiles executables, except those that an earlier start kept, and keeps each one at once."""

    def __init__(self, spec: EngineSpec, kept: KeptExecutables, progress: StartProgress) -> None:
        self.seconds: dict[str, float] = {}  # to compile each, now or in an earlier start
        self._loaded: dict[str, bytes] = {}
        self._spec, self._keeper, self._progress = spec, kept, progress
        self._done = itertools.count(1)
        self._lock = threading.Lock()
        self._can_keep = True

    def obtain(self, name: str) -> Executable:
        """Load what was kept, or compile."""
        begin_s = self._progress.elapsed_s()
        executable = self._load(name) or self._compile(name)
        self._progress.record(Phase.EXECUTABLES, name, begin_s=begin_s)
        self._progress.count_executables(next(self._done), len(needed_names(self._spec)))
        return executable

    def take_loaded(self) -> Mapping[str, bytes]:
        """Hand over the bytes of those that an earlier start had compiled."""
        loaded, self._loaded = self._loaded, {}
        return loaded

    def _load(self, name: str) -> Executable | None:
        with self._lock:
            found = self._kept.pop(name, None)
        if found is not None:
            file, data = found
            with contextlib.suppress(Exception):  # of whatever kind: it is compiled again
                executable = load_executable(data, self._spec.mesh.devices)
                self.seconds[name] = file.compile_seconds
                self._loaded[name] = data
                return executable
        return None

    def _compile(self, name: str) -> Executable:
        with self._lock:
            program = self._programs[name]
        compiled = compile_timed(program)
        self.seconds[name] = compiled.seconds
        self._keep(name, compiled.executable, compiled.seconds)
        return compiled.executable

    def _keep(self, name: str, executable: Executable, seconds: float) -> None:
        try:
            if self._can_keep:
                self._keeper.add(name, executable.serialize(), seconds)
        except Exception as error:  # the service answers all the same, and not every backend can serialize
            self._can_keep = False
            facts = {"executable": name, "reason": f"{type(error).__name__}: {str(error)[:200]}"}
            logger.warning("executables are not kept one by one; a start that is stopped loses them", extra=facts)

    @cached_property
    def _kept(self) -> dict[str, tuple[BundledFile, bytes]]:
        try:
            kept = dict(self._keeper.read())
        except (OSError, BundleRefused) as error:
            logger.warning("what an earlier start compiled cannot be read", extra={"reason": str(error)})
            return {}
        if kept:
            logger.info("an earlier start was stopped while it compiled", extra={"executables_kept": len(kept)})
        return kept

    @cached_property
    def _programs(self) -> Mapping[str, Program]:
        return {program.name: program for program in _programs(self._spec, self._progress)}


def _programs(spec: EngineSpec, progress: StartProgress) -> Sequence[Program]:
    with progress.phase(Phase.IMPORT, "haliax"):
        run_deferred()
        model = spec.model()
    return engine_programs(model, spec.shapes, weight_shapes(spec.specs, spec.dtype, spec.mesh))
